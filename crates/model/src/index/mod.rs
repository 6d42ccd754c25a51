//! Indexed paths: their syntax, the values that they select from data, and the order of those values.
//!
//! A path names members from the root of the data (`a.b`), and may be a pattern (`labels.*`, `items[].name`). It must
//! resolve through the `properties` of the schema, also through local `$ref`, `allOf`, `anyOf` and `oneOf`, and a
//! pattern through the schemas of other members and of elements, so that a misspelled path is rejected when the
//! definition is written instead of finding nothing later. Below an unconstrained part of the schema (`{}` or `true`)
//! any path resolves.
//!
//! | file | what it holds |
//! |---|---|
//! | `declared` | the types that a schema declares for a path |
//! | `declared_paths` | the types of all paths of a definition, read once |
//! | `empty` | whether data have an empty array at a path, which has no entry |
//! | `inline_bytes` | short bytes without an allocation |
//! | `path` | the syntax of paths |
//! | `slots` | the slots of a definition's paths, and the build in progress |
//! | `value` | values as bytes that sort like the values |
//! | `values` | the values that a path selects, and their entries |
//!
//! **Invariant:** the entries of data depend on the paths and the data alone; every node computes the same.

mod declared;
mod declared_paths;
mod empty;
mod inline_bytes;
mod path;
mod slots;
mod value;
mod values;

use serde_json::Value;

pub use declared::{Declared, JsonKind, JsonKinds, Types};
pub use declared_paths::{DeclaredPaths, declared_paths, is_quick_to_declare};
pub use empty::has_empty_array;
pub use inline_bytes::InlineBytes;
pub use path::{IndexPath, PathStep, is_pattern};
pub use slots::{Build, Indexing, SlotAssignment, is_pattern_slot};
pub use value::{STRING, encode, kind_bounds};
pub use values::{TOO_MANY, values_at};

use super::{
    error::{LocSegment, Violation},
    limits::{
        INDEX_ENTRIES_MAX, INDEX_PATH_BYTES_MAX, INDEX_PATTERN_BYTES_MAX, INDEX_PATTERN_ENTRIES_MAX,
        INDEX_PATTERNS_MAX,
    },
    record::{Definition, IndexEntries, IndexEntry},
};

/// A path of a stored definition, with its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPath {
    /// Its slot.
    pub slot: u16,
    /// The path.
    pub path: IndexPath,
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
            Ok(path) if paths.iter().any(|other| other.steps == path.steps) => {
                violations.push(Violation::at(loc, format!("index path `{text}` is listed twice")));
            }
            Ok(path) if types.declared(&path).is_none() => {
                violations.push(Violation::at(loc, unresolved(text)));
            }
            Ok(path) => paths.push(path),
        }
    }
    let patterns = paths.iter().filter(|path| path.is_pattern()).count();
    if patterns > INDEX_PATTERNS_MAX {
        let msg = format!(
            "a definition has at most {INDEX_PATTERNS_MAX} indexed paths with `*` or `[]`, not {patterns}"
        );
        violations.push(Violation::at(vec!["indexes".into()], msg));
    }
    if violations.is_empty() { Ok(paths) } else { Err(violations) }
}

/// Checks that the paths of a definition resolve through another schema.
///
/// # Errors
/// All violations, each at `["indexes", position]`.
pub fn check_stored_paths(
    definition: &Definition,
    schema: Option<&Value>,
) -> Result<Vec<IndexPath>, Vec<Violation>> {
    let types = Types::of(schema);
    let paths: Vec<IndexPath> = stored_paths(definition).into_iter().map(|stored| stored.path).collect();
    let violations: Vec<Violation> = (0u64..)
        .zip(&paths)
        .filter(|(_, path)| types.declared(path).is_none())
        .map(|(position, path)| {
            Violation::at(vec!["indexes".into(), LocSegment::Index(position)], unresolved(&path.text))
        })
        .collect();
    if violations.is_empty() { Ok(paths) } else { Err(violations) }
}

fn unresolved(text: &str) -> String {
    format!("index path `{text}` does not exist in the properties of the schema")
}

/// Parses a definition's paths, which were valid when they were stored.
#[must_use]
pub fn stored_paths(definition: &Definition) -> Vec<StoredPath> {
    let stored = |(text, slot): (&String, &u16)| StoredPath { slot: *slot, path: IndexPath::stored(text) };
    definition.indexes.iter().zip(&definition.indexing.slots).map(stored).collect()
}

/// The index entries of data that a caller sent.
///
/// # Errors
/// When the array at a path has more than [`INDEX_ENTRIES_MAX`] elements, or a pattern selects more than is indexed.
pub fn entries(paths: &[StoredPath], data: &Value) -> Result<IndexEntries, Violation> {
    let too_long = |path: &&IndexPath| {
        let found = values::find(path, data).and_then(Value::as_array);
        found.is_some_and(|elements| elements.len() > INDEX_ENTRIES_MAX)
    };
    let plain = paths.iter().map(|stored| &stored.path).filter(|path| !path.is_pattern());
    if let Some(path) = plain.into_iter().find(too_long) {
        let msg = format!("an indexed array has at most {INDEX_ENTRIES_MAX} elements");
        return Err(Violation::at(beginning(path), msg));
    }
    let entries = all_entries(paths, data);
    let marked = |stored: &&StoredPath| {
        let is_mark = |entry: &IndexEntry| entry.slot == stored.slot && *entry.value == *TOO_MANY;
        stored.path.is_pattern() && entries.iter().any(is_mark)
    };
    match paths.iter().find(marked) {
        None => Ok(entries),
        Some(StoredPath { path, .. }) => {
            let msg = format!(
                "the index path `{}` selects more than {INDEX_PATTERN_ENTRIES_MAX} values of a config, or more than \
                 {INDEX_PATTERN_BYTES_MAX} bytes of them with the names of their members",
                path.text
            );
            Err(Violation::at(beginning(path), msg))
        }
    }
}

/// The beginning of the entries of a pattern's values, below these members in place of its `*`.
#[must_use]
pub fn prefix_of(names: &[&str]) -> Box<[u8]> {
    let mut prefix = Vec::new();
    names.iter().for_each(|name| path::push_name(name, &mut prefix));
    prefix.into()
}

/// The members that a path names before it may have several values.
fn beginning(path: &IndexPath) -> Vec<LocSegment> {
    let member =
        |step: &PathStep| if let PathStep::Member(name) = step { Some(name.as_str().into()) } else { None };
    path.steps.iter().map_while(member).collect()
}

/// The index entries of data, sorted and unique.
///
/// A scalar, null included, has one entry by its value; an array one for each element; an object one by its whole
/// value. A missing value has no entry. What a pattern selects has its entries alike (`values`).
#[must_use]
pub fn all_entries(paths: &[StoredPath], data: &Value) -> IndexEntries {
    let mut entries = Vec::new();
    for StoredPath { slot, path } in paths {
        let slot = *slot;
        if path.is_pattern() {
            let _is_whole = values::add_pattern(path, slot, data, &mut entries);
            continue;
        }
        match values::find(path, data) {
            Some(Value::Array(elements)) => {
                entries.extend(elements.iter().map(|value| IndexEntry { slot, value: encode(value).into() }));
            }
            Some(value) => entries.push(IndexEntry { slot, value: encode(value).into() }),
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

    #[test]
    fn patterns_resolve_through_other_members_and_elements() {
        let schema = json!({"properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "items": {"type": "array", "items": {"properties": {"name": {"type": "string"}}}}
        }});
        let some = texts(&["labels.*", "items[].name"]);
        assert_eq!(check_paths(&some, Some(&schema), 64).unwrap().len(), 2);
        let wrong = texts(&["labels[].a", "items.*", "items[].nmae", "labels.*.x"]);
        assert_eq!(check_paths(&wrong, Some(&schema), 64).unwrap_err().len(), 4);
        let many: Vec<String> = (0..=INDEX_PATTERNS_MAX).map(|n| format!("a{n}.*")).collect();
        assert!(check_paths(&many, None, 64).is_err());
        assert!(check_paths(&many[1..], None, 64).is_ok());
    }

    #[test]
    fn a_config_has_at_most_so_many_values_of_a_pattern() {
        let slot = Indexing::of(&texts(&["labels.*"])).slots[0];
        let paths = [StoredPath { slot, path: IndexPath::stored("labels.*") }];
        let labels = |number: usize| {
            let labels: serde_json::Map<_, _> = (0..number).map(|n| (format!("l{n}"), json!(n))).collect();
            json!({"labels": labels})
        };
        let most = labels(INDEX_PATTERN_ENTRIES_MAX);
        assert_eq!(entries(&paths, &most).unwrap().len(), INDEX_PATTERN_ENTRIES_MAX);
        let violation = entries(&paths, &labels(INDEX_PATTERN_ENTRIES_MAX + 1)).unwrap_err();
        assert_eq!(violation.loc, ["labels".into()]);
        // What was there before the index is marked.
        assert_eq!(all_entries(&paths, &labels(INDEX_PATTERN_ENTRIES_MAX + 1)).len(), 1);
    }
}
