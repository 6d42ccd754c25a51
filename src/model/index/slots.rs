//! The numbers of a definition's indexed paths, and how far those that came late are built.
//!
//! A path keeps its number, its *slot*, for as long as it is indexed, wherever it stands in the list: a change of
//! the list costs what is new in it and nothing for what stays. A number is not used for another path before all
//! others were used; configs may bear entries of a dropped path for a while, and nobody takes them for another's.
//!
//! **Invariant:** while no build is going on, a definition's configs bear entries of its `slots` only. While one
//! is, they may bear entries of slots that nothing uses, but none of a slot that was given to a new path.

use serde::{Deserialize, Serialize};

use crate::model::{key::Key, record::Revision};

/// What there is of numbers.
const SLOTS: usize = 1 << 16;

/// How a definition's paths are indexed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Indexing {
    /// The slot of each indexed path, in the order of the paths.
    pub slots: Vec<u16>,
    /// Where the search for the slot of a new path begins.
    pub next: u16,
    /// Set while the configs are indexed anew, step by step.
    pub build: Option<Build>,
}

/// A pass over all configs by key that gives them the entries of new paths and takes those of dropped ones away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The revision that began it: no other build has the same.
    pub begun: Revision,
    /// The slots that are not complete before its end; none where paths were only dropped.
    pub slots: Vec<u16>,
    /// The last key that was passed; `None` before the first step.
    pub cursor: Option<Key>,
}

/// What a new list of paths makes of the slots.
#[derive(Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The slot of each path of the new list.
    pub slots: Vec<u16>,
    /// Where the next search begins.
    pub next: u16,
    /// The slots of paths that the old list has not.
    pub added: Vec<u16>,
    /// Whether a path of the old list is gone.
    pub dropped: bool,
}

impl Indexing {
    /// The numbers of a first list of paths.
    #[must_use]
    pub fn fresh(count: usize) -> Self {
        let slots: Vec<u16> = (0..=u16::MAX).take(count).collect();
        let next = slots.last().map_or(0, |last| last.wrapping_add(1));
        Self { slots, next, build: None }
    }

    /// The place of a slot's path in the list; `None` for a path that was dropped.
    #[must_use]
    pub fn place(&self, slot: u16) -> Option<usize> {
        self.slots.iter().position(|other| *other == slot)
    }

    /// Whether a slot lacks the entries of some configs.
    #[must_use]
    pub fn is_building(&self, slot: u16) -> bool {
        self.build.as_ref().is_some_and(|build| build.slots.contains(&slot))
    }

    /// The slots for a new list of paths: kept ones keep theirs. `None` when the numbers have run out while a build
    /// is going on: then configs may bear entries of any number, and all must be indexed at once.
    #[must_use]
    pub fn renewed(&self, old: &[String], new: &[String]) -> Option<Renewed> {
        let kept = |path: &String| {
            let place = old.iter().position(|other| other == path)?;
            self.slots.get(place).copied()
        };
        let wanted = new.iter().filter(|path| kept(path).is_none()).count();
        if self.build.is_some() && usize::from(self.next) + self.slots.len() + wanted > SLOTS {
            return None;
        }
        let mut renewed = Renewed {
            slots: Vec::with_capacity(new.len()),
            next: self.next,
            added: Vec::new(),
            dropped: old.iter().any(|path| !new.contains(path)),
        };
        // Only numbers that no path has, old or new.
        let mut free =
            (0..=u16::MAX).map(|n| self.next.wrapping_add(n)).filter(|slot| !self.slots.contains(slot));
        for path in new {
            let slot = match kept(path) {
                Some(slot) => slot,
                None => {
                    let slot = free.next()?;
                    renewed.next = slot.wrapping_add(1);
                    renewed.added.push(slot);
                    slot
                }
            };
            renewed.slots.push(slot);
        }
        Some(renewed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_path_keeps_its_slot_and_a_dropped_one_is_not_used_again() {
        let first = Indexing::fresh(2);
        let renewed = first.renewed(&paths(&["a", "b"]), &paths(&["b", "c"])).unwrap();
        assert_eq!(renewed, Renewed { slots: vec![1, 2], next: 3, added: vec![2], dropped: true });
        let second = Indexing { slots: renewed.slots, next: renewed.next, build: None };
        let renewed = second.renewed(&paths(&["b", "c"]), &paths(&["a", "c", "b"])).unwrap();
        assert_eq!(renewed, Renewed { slots: vec![3, 2, 1], next: 4, added: vec![3], dropped: false });
        assert_eq!((second.place(2), second.place(0)), (Some(1), None));
    }

    #[test]
    fn numbers_come_round_but_not_during_a_build() {
        let mut indexing = Indexing { slots: vec![0, 65_534], next: 65_535, build: None };
        let (old, new) = (paths(&["a", "b"]), paths(&["a", "b", "c", "d"]));
        let renewed = indexing.renewed(&old, &new).unwrap();
        assert_eq!((renewed.slots, renewed.next), (vec![0, 65_534, 65_535, 1], 2));
        indexing.build = Some(Build { begun: 1, slots: vec![0], cursor: None });
        assert_eq!(indexing.renewed(&old, &new), None);
        indexing.next = 100;
        assert!(indexing.renewed(&old, &new).is_some());
        assert!(indexing.is_building(0) && !indexing.is_building(65_534));
    }
}
