//! The values that a path selects from data, and their index entries.
//!
//! The entry of a value below members that a pattern leaves open begins with their names, so that the values of one
//! member are next to each other in the index.
//!
//! A pattern may select as many values as the data have, and several patterns may select the same ones. So a written
//! config has at most [`INDEX_PATTERN_ENTRIES_MAX`] entries for each pattern, and [`INDEX_PATTERN_BYTES_MAX`] bytes of
//! them. A config that was written before the pattern was indexed may have more. Then it has one mark instead of its
//! entries, and filters read its data.
//!
//! **Invariant:** what a filter finds does not depend on the limits; they decide where it is read from.

use std::ops::ControlFlow;

use serde_json::Value;

use super::{IndexPath, PathStep, encode, path::push_name};
use crate::{
    limits::{INDEX_PATTERN_BYTES_MAX, INDEX_PATTERN_ENTRIES_MAX},
    record::IndexEntry,
};

/// The only entry of a config that has more values than are indexed. No value's entry is the same: none begins with two
/// such bytes.
pub const TOO_MANY: &[u8] = &[0xFF, 0xFF];

/// Calls a function with each value that a path selects, and the beginning of its entry.
fn visit<'v>(
    steps: &[PathStep],
    value: &'v Value,
    prefix: &mut Vec<u8>,
    found: &mut dyn FnMut(&[u8], &'v Value) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let Some((step, rest)) = steps.split_first() else { return found(prefix, value) };
    match (step, value) {
        (PathStep::Member(name), Value::Object(members)) => match members.get(name) {
            Some(member) => visit(rest, member, prefix, found),
            None => ControlFlow::Continue(()),
        },
        (PathStep::AnyMember, Value::Object(members)) => members.iter().try_for_each(|(name, member)| {
            let length = prefix.len();
            push_name(name, prefix);
            let flow = visit(rest, member, prefix, found);
            prefix.truncate(length);
            flow
        }),
        (PathStep::Elements, Value::Array(elements)) => {
            elements.iter().try_for_each(|element| visit(rest, element, prefix, found))
        }
        (PathStep::Member(_) | PathStep::AnyMember | PathStep::Elements, _) => ControlFlow::Continue(()),
    }
}

/// The values of data by which they are indexed, where the steps lead, each encoded behind a prefix; an array by its
/// elements. Also whether anything is there, if only an empty array.
#[must_use]
pub fn values_at(steps: &[PathStep], prefix: &[u8], data: &Value) -> (Vec<Box<[u8]>>, bool) {
    let (mut values, mut is_there) = (Vec::new(), false);
    let _all = visit(steps, data, &mut prefix.to_vec(), &mut |prefix, value| {
        is_there = true;
        let encoded = |value| [prefix, &encode(value)].concat().into_boxed_slice();
        if let Value::Array(elements) = value {
            values.extend(elements.iter().map(encoded));
        } else {
            values.push(encoded(value));
        }
        ControlFlow::Continue(())
    });
    (values, is_there)
}

/// The value at a path that is no pattern.
pub(super) fn find<'v>(path: &IndexPath, data: &'v Value) -> Option<&'v Value> {
    path.steps.iter().try_fold(data, |value, step| match step {
        PathStep::Member(name) => value.as_object()?.get(name),
        PathStep::AnyMember | PathStep::Elements => None,
    })
}

/// Adds the entries of a pattern; whether there are no more than may be. Otherwise it adds the mark.
pub(super) fn add_pattern(path: &IndexPath, slot: u16, data: &Value, entries: &mut Vec<IndexEntry>) -> bool {
    let (begin, mut bytes) = (entries.len(), 0_usize);
    let flow = visit(&path.steps, data, &mut Vec::new(), &mut |prefix, value| {
        let mut add = |value: &Value| {
            let value = encode(value);
            bytes = bytes.saturating_add(prefix.len() + value.len());
            if entries.len() - begin >= INDEX_PATTERN_ENTRIES_MAX || bytes > INDEX_PATTERN_BYTES_MAX {
                return ControlFlow::Break(());
            }
            let value =
                if prefix.is_empty() { value.into() } else { [prefix, &value].concat().as_slice().into() };
            entries.push(IndexEntry { slot, value });
            ControlFlow::Continue(())
        };
        if let Value::Array(elements) = value { elements.iter().try_for_each(&mut add) } else { add(value) }
    });
    if flow.is_break() {
        entries.truncate(begin);
        entries.push(IndexEntry { slot, value: TOO_MANY.into() });
    }
    flow.is_continue()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(path: &str, data: &Value) -> Vec<Vec<u8>> {
        let mut entries = Vec::new();
        add_pattern(&IndexPath::parse(path).unwrap(), 7, data, &mut entries);
        entries.into_iter().map(|entry| entry.value.to_vec()).collect()
    }

    fn named(name: &str, value: &Value) -> Vec<u8> {
        [name.as_bytes(), &[0xFF], &encode(value)].concat()
    }

    #[test]
    fn patterns_select_members_and_elements() {
        let data = json!({
            "labels": {"a": "x", "b": 1, "c": ["y", null], "d": {}, "e": []},
            "items": [{"name": "one", "tags": ["t"]}, {"name": 2}, {}, 7, {"name": ["three"]}],
            "grid": [[{"v": 1}], [{"v": 2}, {"w": 3}]]
        });
        let labels = [
            named("a", &json!("x")),
            named("b", &json!(1)),
            named("c", &json!("y")),
            named("c", &json!(null)),
            named("d", &json!({})),
        ];
        assert_eq!(of("labels.*", &data), labels);
        let plain = |values: &[Value]| values.iter().map(|value| encode(value).to_vec()).collect::<Vec<_>>();
        assert_eq!(of("items[].name", &data), plain(&[json!("one"), json!(2), json!("three")]));
        assert_eq!(of("items[].tags", &data), plain(&[json!("t")]));
        assert_eq!(of("grid[][].v", &data), plain(&[json!(1), json!(2)]));
        assert_eq!(of("*.a", &data), [named("labels", &json!("x"))]);
        assert!(of("none.*", &data).is_empty() && of("labels[].a", &data).is_empty());
        let steps = IndexPath::parse("labels.e").unwrap().steps;
        assert_eq!(values_at(&steps, b"", &data), (vec![], true));
        let steps = IndexPath::parse("labels.f").unwrap().steps;
        assert_eq!(values_at(&steps, b"", &data), (vec![], false));
    }

    #[test]
    fn more_values_than_are_indexed_are_marked() {
        let items = |number| json!({"items": vec![json!({"n": 1}); number]});
        assert_eq!(of("items[].n", &items(INDEX_PATTERN_ENTRIES_MAX)).len(), INDEX_PATTERN_ENTRIES_MAX);
        assert_eq!(of("items[].n", &items(INDEX_PATTERN_ENTRIES_MAX + 1)), [TOO_MANY.to_vec()]);
        let long = json!({"items": [{"n": "x".repeat(INDEX_PATTERN_BYTES_MAX)}]});
        assert_eq!(of("items[].n", &long), [TOO_MANY.to_vec()]);
    }
}
