//! The definitions that a client may see, as ranges of keys.
//!
//! The patterns of a grant are single keys and prefixes. Sorted, and without those that another contains, they are
//! disjoint ranges in the order of the keys: whether a key is in the set is one search, and the definitions in it are
//! a few ranges of the index by key, so that counting them costs a look-up for each range and not for each definition.
//!
//! **Invariant:** the ranges ascend and are disjoint, so the same set has the same value, whatever patterns it was made
//! of.

use serde::{Deserialize, Serialize};

use super::{access_key::Pattern, key::Key};

/// A set of keys of definitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySet(Option<Vec<KeyRange>>);

/// Keys that are next to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRange {
    /// One key.
    Key(Key),
    /// All keys that begin with a text.
    Prefix(String),
}

impl KeyRange {
    /// The keys that a pattern names.
    #[must_use]
    pub fn of(pattern: &Pattern) -> Option<Self> {
        match pattern.beginning() {
            Some(beginning) => Some(Self::Prefix(beginning.into())),
            None => Key::parse(pattern.as_str()).ok().map(Self::Key),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Key(key) => key.as_str(),
            Self::Prefix(prefix) => prefix,
        }
    }

    /// Whether a key is one of them.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        match self {
            Self::Key(only) => only.as_str() == key,
            Self::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }

    /// The keys that are in both ranges: of two that have any in common, one contains the other.
    fn and(&self, other: &Self) -> Option<Self> {
        let is_within = |inner: &Self, outer: &Self| match (inner, outer) {
            (Self::Prefix(_), Self::Key(_)) => false,
            (Self::Key(_), Self::Key(_) | Self::Prefix(_)) | (Self::Prefix(_), Self::Prefix(_)) => {
                outer.contains(inner.text())
            }
        };
        if is_within(self, other) {
            return Some(self.clone());
        }
        is_within(other, self).then(|| other.clone())
    }

    /// Whether a key is before all of them.
    #[must_use]
    pub fn is_after(&self, key: &str) -> bool {
        key < self.text()
    }
}

impl KeySet {
    /// All keys.
    pub const ALL: Self = Self(None);
    /// No key.
    pub const NONE: Self = Self(Some(Vec::new()));

    /// The keys of some ranges, which may overlap.
    #[must_use]
    pub fn of(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        let mut sorted: Vec<KeyRange> = ranges.into_iter().collect();
        // A prefix comes before the key of the same text, which it contains.
        sorted.sort_by(|a, b| {
            let order = |range: &KeyRange| matches!(range, KeyRange::Key(_));
            a.text().cmp(b.text()).then(order(a).cmp(&order(b)))
        });
        let mut disjoint: Vec<KeyRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            // What a prefix contains follows it.
            if !disjoint.last().is_some_and(|last| last.contains(range.text())) {
                disjoint.push(range);
            }
        }
        let is_all = matches!(disjoint.first(), Some(KeyRange::Prefix(prefix)) if prefix.is_empty());
        Self((!is_all).then_some(disjoint))
    }

    /// The keys that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (Some(ranges), Some(others)) = (&self.0, &other.0) else {
            return if self.0.is_none() { other.clone() } else { self.clone() };
        };
        Self::of(ranges.iter().flat_map(|one| others.iter().filter_map(|other| one.and(other))))
    }

    /// Whether a key is in the set.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        let Some(ranges) = &self.0 else { return true };
        let after = ranges.partition_point(|range| range.text() <= key);
        after.checked_sub(1).and_then(|last| ranges.get(last)).is_some_and(|range| range.contains(key))
    }

    /// The ranges, ascending; `None` for all keys.
    #[must_use]
    pub fn ranges(&self) -> Option<&[KeyRange]> {
        self.0.as_deref()
    }

    /// Whether no key is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> KeyRange {
        KeyRange::Key(Key::parse(text).unwrap())
    }

    fn prefix(text: &str) -> KeyRange {
        KeyRange::Prefix(text.into())
    }

    #[test]
    fn the_same_keys_are_the_same_set() {
        let set = KeySet::of([key("b"), prefix("a."), key("a.b"), prefix("a.c"), key("b"), key("a")]);
        assert_eq!(set.ranges(), Some(&[key("a"), prefix("a."), key("b")][..]));
        assert_eq!(set, KeySet::of([prefix("a."), key("b"), key("a")]));
        assert_eq!(KeySet::of([key("b"), prefix("")]), KeySet::ALL);
        assert_eq!(KeySet::of([prefix("b"), key("b")]).ranges(), Some(&[prefix("b")][..]));
        assert!(KeySet::of([]).is_empty() && !KeySet::ALL.is_empty());
    }

    #[test]
    fn a_set_contains_the_keys_that_one_of_its_patterns_matches() {
        let patterns = [key("a"), prefix("a.b"), prefix("a.b.c"), key("a.a"), prefix("c"), key("b~")];
        let texts =
            ["", "a", "a.", "a.a", "a.aa", "a.b", "a.b.c", "a.bz", "a.c", "b", "b~", "b~~", "c", "cz", "d"];
        for some in 0_u32..1 << patterns.len() {
            let chosen: Vec<KeyRange> = (0..)
                .zip(&patterns)
                .filter(|(bit, _)| some & (1 << bit) != 0)
                .map(|(_, one)| one.clone())
                .collect();
            let set = KeySet::of(chosen.clone());
            for text in texts {
                let expected = chosen.iter().any(|range| range.contains(text));
                assert_eq!(set.contains(text), expected, "{text:?} in {chosen:?}");
            }
        }
        assert!(KeySet::ALL.contains("x") && !KeySet::NONE.contains("x"));
    }

    #[test]
    fn both_sets_have_the_keys_of_their_intersection_and_no_others() {
        let ranges = [key("a"), prefix("a"), prefix("a.b"), key("a.b"), key("b"), prefix("b."), prefix("")];
        let texts = ["a", "a.", "a.a", "a.b", "a.b.c", "ab", "b", "b.", "b.x", "c"];
        let sets: Vec<KeySet> = (0_u32..1 << ranges.len())
            .map(|some| {
                let chosen = (0..).zip(&ranges).filter(|(bit, _)| some & (1 << bit) != 0);
                KeySet::of(chosen.map(|(_, one)| one.clone()))
            })
            .collect();
        for one in &sets {
            for other in &sets {
                let both = one.and(other);
                for text in texts {
                    let expected = one.contains(text) && other.contains(text);
                    assert_eq!(both.contains(text), expected, "{text:?} in {one:?} and {other:?}");
                }
                assert_eq!(both, other.and(one));
            }
        }
    }
}
