//! Indexed paths: their syntax, the values that they select from data, and the order of those values.
//!
//! A path names members from the root of the data: `a.b`; `\.` is a literal dot, `\\` a backslash. It must resolve
//! through the `properties` of the schema, also through local `$ref`, `allOf`, `anyOf` and `oneOf`, so that a misspelled path is refused
//! when the definition is written instead of finding nothing later. Below an unconstrained part of the schema (`{}` or
//! `true`) any path resolves.
//!
//! | file | what it holds |
//! |---|---|
//! | `declared` | the types that a schema declares for a path |
//! | `empty` | whether data have an empty array at a path, which has no entry |
//! | `inline_bytes` | short bytes without an allocation |
//! | `slots` | the slots of a definition's paths, and the build in progress |
//! | `value` | values as bytes that sort like the values |
//!
//! **Invariant:** the entries of data depend on the paths and the data alone; every node computes the same.

mod declared;
mod empty;
mod inline_bytes;
mod slots;
mod value;

use serde_json::Value;

pub use declared::{Declared, Kind, Kinds, Types};
pub use empty::has_empty_array;
pub use inline_bytes::InlineBytes;
pub use slots::{Build, Indexing, SlotAssignment};
pub use value::{encode, kind_bounds};

use super::{
    error::{LocSegment, Violation},
    limits::{INDEX_ENTRIES_MAX, INDEX_PATH_BYTES_MAX},
    record::{Definition, Entries, Entry},
};

/// A path of a stored definition, with its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPath {
    /// Its slot.
    pub slot: u16,
    /// The path.
    pub path: IndexPath,
}

/// A parsed index path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPath {
    /// As it was written.
    pub text: String,
    /// The member names, outermost first; never empty.
    pub segments: Vec<String>,
}

impl IndexPath {
    /// Parses a path.
    ///
    /// # Errors
    /// When a member is empty or a backslash stands before anything but a dot or a backslash.
    pub fn parse(text: &str) -> Result<Self, Violation> {
        let mut segments = vec![String::new()];
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '.' => segments.push(String::new()),
                '\\' => match rest.next() {
                    Some(escaped @ ('.' | '\\')) => push(&mut segments, escaped),
                    Some(_) | None => {
                        let msg =
                            format!("in index path `{text}` a backslash stands before `.` or `\\` only");
                        return Err(Violation::new(msg));
                    }
                },
                other => push(&mut segments, other),
            }
        }
        if segments.iter().any(String::is_empty) {
            return Err(Violation::new(format!("index path `{text}` has an empty member name")));
        }
        Ok(Self { text: text.into(), segments })
    }

    /// The value at the path.
    #[must_use]
    pub fn find<'a>(&self, data: &'a Value) -> Option<&'a Value> {
        self.segments.iter().try_fold(data, |value, segment| value.as_object()?.get(segment))
    }
}

fn push(segments: &mut [String], c: char) {
    if let Some(last) = segments.last_mut() {
        last.push(c);
    }
}

/// Parses and validates the `indexes` of a definition: unique, at most `max`, each resolves through the schema.
///
/// # Errors
/// All violations, each at `["indexes", position]`.
pub fn check_paths(
    texts: &[String],
    schema: Option<&Value>,
    max: usize,
) -> Result<Vec<IndexPath>, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut paths: Vec<IndexPath> = Vec::new();
    if texts.len() > max {
        let msg = format!("a definition has at most {max} indexed paths, not {}", texts.len());
        return Err(vec![Violation::at(vec!["indexes".into()], msg)]);
    }
    let types = Types::of(schema);
    for (position, text) in (0u64..).zip(texts) {
        let loc = vec!["indexes".into(), LocSegment::Index(position)];
        if text.len() > INDEX_PATH_BYTES_MAX {
            let msg = format!("an index path has at most {INDEX_PATH_BYTES_MAX} bytes, not {}", text.len());
            violations.push(Violation::at(loc, msg));
            continue;
        }
        match IndexPath::parse(text) {
            Err(violation) => violations.push(Violation::at(loc, violation.msg)),
            Ok(path) if paths.iter().any(|other| other.segments == path.segments) => {
                violations.push(Violation::at(loc, format!("index path `{text}` is listed twice")));
            }
            Ok(path) if types.declared(&path).is_none() => {
                let msg = format!("index path `{text}` does not exist in the properties of the schema");
                violations.push(Violation::at(loc, msg));
            }
            Ok(path) => paths.push(path),
        }
    }
    if violations.is_empty() { Ok(paths) } else { Err(violations) }
}

/// Parses a definition's paths, which were valid when they were stored.
#[must_use]
pub fn stored_paths(definition: &Definition) -> Vec<StoredPath> {
    let stored = |(text, slot): (&String, &u16)| {
        // A path that does not parse selects nothing.
        let path = IndexPath::parse(text)
            .unwrap_or_else(|_| IndexPath { text: text.clone(), segments: vec![String::new()] });
        StoredPath { slot: *slot, path }
    };
    definition.indexes.iter().zip(&definition.indexing.slots).map(stored).collect()
}

/// The index entries of data that a caller sent.
///
/// # Errors
/// When the array at a path has more than [`INDEX_ENTRIES_MAX`] elements.
pub fn entries(paths: &[StoredPath], data: &Value) -> Result<Entries, Violation> {
    let too_long = |path: &&IndexPath| {
        path.find(data).and_then(Value::as_array).is_some_and(|elements| elements.len() > INDEX_ENTRIES_MAX)
    };
    if let Some(path) = paths.iter().map(|stored| &stored.path).find(too_long) {
        let loc = path.segments.iter().map(|segment| segment.as_str().into()).collect();
        return Err(Violation::at(loc, format!("an indexed array has at most {INDEX_ENTRIES_MAX} elements")));
    }
    Ok(all_entries(paths, data))
}

/// The index entries of data, sorted and unique.
///
/// A scalar, null included, has one entry by its value; an array one for each element; an object one by its whole value.
/// A missing value has no entry.
#[must_use]
pub fn all_entries(paths: &[StoredPath], data: &Value) -> Entries {
    let mut entries = Vec::new();
    for StoredPath { slot, path } in paths {
        let slot = *slot;
        match path.find(data) {
            Some(Value::Array(elements)) => {
                entries.extend(elements.iter().map(|value| Entry { slot, value: encode(value).into() }));
            }
            Some(value) => entries.push(Entry { slot, value: encode(value).into() }),
            None => {}
        }
    }
    entries.sort_unstable();
    entries.dedup();
    entries.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn paths_are_split_at_dots_and_escapes_are_read() {
        assert_eq!(IndexPath::parse("a.b c").unwrap().segments, ["a", "b c"]);
        assert_eq!(IndexPath::parse(r"a\.b.c\\").unwrap().segments, ["a.b", r"c\"]);
        for bad in ["", ".", "a.", ".a", "a..b", r"a\b", r"a\"] {
            assert!(IndexPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_violations_of_a_list_are_found_with_their_locations() {
        let schema = json!({"properties": {"a": {"properties": {"b": {"type": "string"}}}}});
        assert!(check_paths(&texts(&["a", "a.b"]), Some(&schema), 64).is_ok());
        let violations = check_paths(&texts(&["a.b", "a.c", "a.b", "a..b"]), Some(&schema), 64).unwrap_err();
        let positions: Vec<_> = violations.iter().map(|violation| violation.loc[1].clone()).collect();
        assert_eq!(positions, [LocSegment::Index(1), LocSegment::Index(2), LocSegment::Index(3)]);
        assert!(check_paths(&texts(&["a", "b"]), None, 1).is_err());
        assert!(check_paths(&["a".repeat(INDEX_PATH_BYTES_MAX)], None, 1).is_ok());
        assert!(check_paths(&["a".repeat(INDEX_PATH_BYTES_MAX + 1)], None, 1).is_err());
        assert!(check_paths(&texts(&["any.path"]), None, 64).is_ok());
    }

    #[test]
    fn entries_of_scalars_arrays_and_objects() {
        let stored = |(slot, text)| StoredPath { slot, path: IndexPath::parse(text).unwrap() };
        let paths: Vec<_> = (0..).zip(["a", "list", "none", "o", "missing"]).map(stored).collect();
        let data = json!({"a": 6.0, "list": ["x", "y", "x"], "none": null, "o": {"b": 1, "a": 2}});
        let found = entries(&paths, &data).unwrap();
        let slots: Vec<u16> = found.iter().map(|entry| entry.slot).collect();
        assert_eq!(slots, [0, 1, 1, 2, 3]);
        assert_eq!(found[0].value, encode(&json!(6)).into());
        assert_eq!(found[4].value, encode(&json!({"a": 2.0, "b": 1})).into());
        assert_eq!(entries(&paths, &json!({"list": []})).unwrap().len(), 0);
        assert!(entries(&paths, &json!({"list": vec![1; INDEX_ENTRIES_MAX + 1]})).is_err());
    }
}
