//! Indexed paths: their syntax.
//!
//! A path names members from the root of the data: `a.b`; `\.` is a literal dot, `\\` a backslash. A path may be a
//! *pattern*: `*` stands for every member of a map (`labels.*`), `[]` behind a member for every element of an array
//! (`items[].name`). `\*` and `\[` are literal.
//!
//! **Invariant:** the meaning of a stored path follows from its text alone.

use crate::{
    error::Violation,
    limits::{INDEX_PATH_WILDCARDS_MAX, INDEX_PATTERN_NAME_BYTES_MAX},
};

/// A parsed index path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPath {
    /// As it was written.
    pub text: String,
    /// The way from the root of the data; never empty.
    pub steps: Vec<PathStep>,
}

/// A step from a value to one or several below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// The member of this name.
    Member(String),
    /// Every member.
    AnyMember,
    /// Every element.
    Elements,
}

/// A character of a path, and whether it was escaped.
type Char = (char, bool);

impl IndexPath {
    /// The names of its members; `None` of a pattern.
    #[must_use]
    pub fn into_members(self) -> Option<Vec<String>> {
        let name = |step| if let PathStep::Member(name) = step { Some(name) } else { None };
        self.steps.into_iter().map(name).collect()
    }

    /// Parses a path that may be a pattern.
    ///
    /// # Errors
    /// When a member is empty, a backslash stands before another character than those that it escapes, or the pattern
    /// has too many steps or ends in `[]`.
    pub fn parse(text: &str) -> Result<Self, Violation> {
        let mut steps = Vec::new();
        for (place, segment) in split(text)?.into_iter().enumerate() {
            let mut rest = &segment[..];
            let mut arrays = 0;
            while let Some(before) = rest.strip_suffix(&[('[', false), (']', false)]) {
                (rest, arrays) = (before, arrays + 1);
            }
            match rest {
                // The root may be an array.
                [] if arrays > 0 && place == 0 => {}
                [] => return Err(empty_member(text)),
                [('*', false)] => steps.push(PathStep::AnyMember),
                name => steps.push(PathStep::Member(name.iter().map(|(c, _)| *c).collect())),
            }
            steps.extend(std::iter::repeat_n(PathStep::Elements, arrays));
        }
        if steps.last() == Some(&PathStep::Elements) {
            let msg = format!(
                "index path `{text}` ends in `[]`: an array at the end is indexed by its elements without it"
            );
            return Err(Violation::new(msg));
        }
        let wildcards = steps.iter().filter(|step| !matches!(step, PathStep::Member(_))).count();
        if wildcards > INDEX_PATH_WILDCARDS_MAX {
            let msg = format!(
                "index path `{text}` has {wildcards} steps that are `*` or `[]`; at most {INDEX_PATH_WILDCARDS_MAX}"
            );
            return Err(Violation::new(msg));
        }
        Ok(Self { text: text.into(), steps })
    }

    /// A path of a definition, which was valid when it was stored. One that does not parse selects nothing.
    #[must_use]
    pub fn stored(text: &str) -> Self {
        let nothing = |_| Self { text: text.into(), steps: vec![PathStep::Member(String::new())] };
        Self::parse(text).unwrap_or_else(nothing)
    }

    /// Whether it may select several values.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, PathStep::Member(_)))
    }

    /// Where another path names the members that this one leaves open: the names, in their order.
    #[must_use]
    pub fn matched<'p>(&self, other: &'p Self) -> Option<Vec<&'p str>> {
        let mut names = Vec::new();
        for (own, given) in self.steps.iter().zip(&other.steps) {
            match (own, given) {
                (PathStep::AnyMember, PathStep::Member(name)) => names.push(name.as_str()),
                (own, given) if own == given && *own != PathStep::AnyMember => {}
                _ => return None,
            }
        }
        (self.steps.len() == other.steps.len()).then_some(names)
    }
}

/// Whether the text of a path is a pattern.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    IndexPath::parse(text).is_ok_and(|path| path.is_pattern())
}

/// The beginning of the entries of a member of a map: its name, or the digest of a long one. No name's is the beginning
/// of another's, because no UTF-8 text contains the bytes that end it or begin a digest.
pub(super) fn push_name(name: &str, to: &mut Vec<u8>) {
    if name.len() <= INDEX_PATTERN_NAME_BYTES_MAX {
        to.extend_from_slice(name.as_bytes());
        to.push(0xFF);
    } else {
        use sha2::{Digest as _, Sha256};
        to.push(0xFE);
        to.extend_from_slice(&Sha256::digest(name.as_bytes()));
    }
}

fn empty_member(text: &str) -> Violation {
    Violation::new(format!("index path `{text}` has an empty member name"))
}

/// The segments of a path between its dots.
fn split(text: &str) -> Result<Vec<Vec<Char>>, Violation> {
    let mut segments = vec![Vec::new()];
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let next = match c {
            '.' => {
                segments.push(Vec::new());
                continue;
            }
            '\\' => match rest.next() {
                Some(next @ ('.' | '\\' | '*' | '[')) => (next, true),
                Some(_) | None => {
                    let msg = format!(
                        "in index path `{text}` a backslash stands before `.`, `\\`, `*` or `[` only"
                    );
                    return Err(Violation::new(msg));
                }
            },
            other => (other, false),
        };
        if let Some(last) = segments.last_mut() {
            last.push(next);
        }
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str) -> PathStep {
        PathStep::Member(name.into())
    }

    #[test]
    fn paths_are_split_at_dots_and_escapes_are_read() {
        assert_eq!(IndexPath::parse("a.b c").unwrap().steps, [member("a"), member("b c")]);
        assert_eq!(IndexPath::parse(r"a\.b.c\\").unwrap().steps, [member("a.b"), member(r"c\")]);
        for bad in ["", ".", "a.", ".a", "a..b", r"a\b", r"a\"] {
            assert!(IndexPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stars_and_brackets_are_patterns() {
        let all = IndexPath::parse("labels.*").unwrap();
        assert_eq!(all.steps, [member("labels"), PathStep::AnyMember]);
        assert_eq!(
            IndexPath::parse("groups.*[].items[][].name").unwrap().steps[1..],
            [
                PathStep::AnyMember,
                PathStep::Elements,
                member("items"),
                PathStep::Elements,
                PathStep::Elements,
                member("name")
            ]
        );
        assert_eq!(IndexPath::parse("[].name").unwrap().steps, [PathStep::Elements, member("name")]);
        for literal in [r"a.\*", "a.b*", "a[0].b", r"a\[].b"] {
            assert!(!IndexPath::parse(literal).unwrap().is_pattern(), "{literal}");
        }
        assert_eq!(IndexPath::parse(r"a\[]").unwrap().steps, [member("a[]")]);
        for bad in ["tags[]", "a.[].b", "*.*.*.*.*", "a[][][][][].b"] {
            assert!(IndexPath::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(IndexPath::stored(r"a.\*").steps, [member("a"), member("*")]);
        assert_eq!(IndexPath::stored("a.*").steps, [member("a"), PathStep::AnyMember]);
    }

    #[test]
    fn a_path_names_the_members_of_a_pattern() {
        let names = |pattern: &str, path: &str| {
            let (pattern, path) = (IndexPath::parse(pattern).unwrap(), IndexPath::parse(path).unwrap());
            pattern.matched(&path).map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(names("labels.*", r"labels.a\.b"), Some(vec!["a.b".to_owned()]));
        assert_eq!(names("*.x.*", "a.x.b"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names("items[].name", "items[].name"), Some(vec![]));
        for (pattern, path) in [
            ("labels.*", "labels.*"),
            ("labels.*", "labels"),
            ("labels.*", "labels.a.b"),
            ("items[].name", "items.name"),
            ("labels.*", "items[].a"),
        ] {
            assert_eq!(names(pattern, path), None, "{pattern} {path}");
        }
    }

    #[test]
    fn no_name_begins_with_another() {
        let long = "n".repeat(INDEX_PATTERN_NAME_BYTES_MAX + 1);
        let names = ["", "a", "ab", "é", "\u{0}", &long[1..], &long, &format!("{long}n")];
        let bytes: Vec<Vec<u8>> = names
            .iter()
            .map(|name| {
                let mut bytes = Vec::new();
                push_name(name, &mut bytes);
                bytes
            })
            .collect();
        for (place, one) in bytes.iter().enumerate() {
            let others = bytes.iter().enumerate().filter(|(other, _)| *other != place);
            assert!(others.into_iter().all(|(_, other)| !other.starts_with(one)), "{place}");
        }
    }
}
