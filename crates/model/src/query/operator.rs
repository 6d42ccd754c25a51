//! Parses the operator and the text of a filter to a [`FilterTest`].
//!
//! A text is matched as each kind that the path may have: where a schema allows strings and numbers, `7` is the number
//! and the string. There a text in JSON's quotes is that string alone. If only strings are possible, a text is a string
//! as it is, including quotes; but in a list of values (`in`), a text in JSON's quotes is the string in them, so that a
//! value may contain commas. If the schema does not restrict the kind, a text is read as JSON, and is a string if it is
//! not JSON.

use std::{borrow::Cow, ops::Bound};

use serde_json::Value;

use super::{FilterField, FilterTest, FilterValue, quoted};
use crate::{
    document,
    index::{self, Declared, JsonKind, JsonKinds},
    limits::FILTER_VALUES_MAX,
    time::Timestamp,
};

/// Levels of nesting of an object in a filter's text: those of the data by default.
const TEXT_DEPTH_MAX: usize = 64;
/// The kinds whose values have an order.
const ORDERED: [JsonKind; 4] = [JsonKind::Null, JsonKind::Boolean, JsonKind::Number, JsonKind::String];

/// The test of a field.
///
/// # Errors
/// The message, when the text has no meaning for the field.
pub(super) fn parse(
    field: FilterField,
    declared: Declared,
    operator: &str,
    text: &str,
) -> Result<FilterTest, String> {
    let kinds = if let FilterField::Slot(_) = field { declared.indexed() } else { JsonKinds::ALL };
    let one = || values(field, kinds, kinds, text);
    Ok(match operator {
        "" => FilterTest::AnyOf(one()?),
        "in" => {
            let are_texts =
                kinds == JsonKinds::of([JsonKind::String]) || !matches!(field, FilterField::Slot(_));
            let value = |part| {
                let text = if are_texts { unquoted(part) } else { Cow::Borrowed(part) };
                values(field, kinds, kinds, &text)
            };
            let values: Result<Vec<_>, _> = parts(text).into_iter().map(value).collect();
            FilterTest::AnyOf(values?.concat())
        }
        "ne" => FilterTest::NoneOf(one()?),
        "gte" => ranges(field, kinds, text, |value, (_, end)| (Bound::Included(value), end))?,
        "gt" => ranges(field, kinds, text, |value, (_, end)| (Bound::Excluded(value), end))?,
        "lte" => ranges(field, kinds, text, |value, (begin, _)| (begin, Bound::Included(value)))?,
        "lt" => ranges(field, kinds, text, |value, (begin, _)| (begin, Bound::Excluded(value)))?,
        "prefix" => match field {
            FilterField::Slot(_) if !kinds.has(JsonKind::String) => {
                return Err(format!("only a string has a prefix, and the declared type is {}", names(kinds)));
            }
            FilterField::Slot(_) | FilterField::Key => FilterTest::Prefix(text.into()),
            FilterField::Created | FilterField::Modified => return Err("a time has no prefix".into()),
        },
        "exists" => match text {
            "true" => FilterTest::Exists(true),
            "false" => FilterTest::Exists(false),
            _ => return Err(format!("`exists` is `true` or `false`, not `{}`", quoted(text))),
        },
        other => {
            return Err(format!(
                "unknown operator `{}`: use gte, gt, lte, lt, ne, prefix, in or exists, or no operator for equality",
                quoted(other)
            ));
        }
    })
}

type Bounds = (Bound<FilterValue>, Bound<FilterValue>);

/// The ranges that begin or end at the text's values. Each ends where the values of its kind end: users do not mean
/// that a number is less than a string.
fn ranges(
    field: FilterField,
    kinds: JsonKinds,
    text: &str,
    range: impl Fn(FilterValue, Bounds) -> Bounds,
) -> Result<FilterTest, String> {
    let ordered = if let FilterField::Slot(_) = field { kinds & JsonKinds::of(ORDERED) } else { kinds };
    if ordered == JsonKinds::NONE && kinds != JsonKinds::NONE {
        return Err("arrays and objects can't be compared by order".into());
    }
    let of_kind = |value: &FilterValue| match field {
        FilterField::Slot(_) => {
            let (begin, end) = index::kind_bounds(value);
            (Bound::Included(begin), Bound::Excluded(end))
        }
        FilterField::Created | FilterField::Modified | FilterField::Key => {
            (Bound::Unbounded, Bound::Unbounded)
        }
    };
    let values = values(field, kinds, ordered, text)?.into_iter();
    Ok(FilterTest::Ranges(
        values
            .map(|value| {
                let bounds = of_kind(&value);
                range(value, bounds)
            })
            .collect(),
    ))
}

/// The values that a text may stand for at a path of these kinds, `among` those that the operator takes; at least one.
fn values(
    field: FilterField,
    kinds: JsonKinds,
    among: JsonKinds,
    text: &str,
) -> Result<Vec<FilterValue>, String> {
    match field {
        FilterField::Key => return Ok(vec![text.as_bytes().into()]),
        FilterField::Created | FilterField::Modified => {
            let time = Timestamp::parse(text);
            let time = time.ok_or_else(|| format!("`{}` is not an RFC 3339 time", quoted(text)))?;
            return Ok(vec![time.0.to_be_bytes().into()]);
        }
        FilterField::Slot(_) => {}
    }
    let string = || index::encode(&text.into());
    if kinds == JsonKinds::of([JsonKind::String]) {
        return Ok(vec![string()]);
    }
    let json = document::parse(text.as_bytes(), TEXT_DEPTH_MAX).ok();
    let parsed = json.as_ref().filter(|value| among.has(JsonKind::of(value))).map(index::encode);
    if kinds == JsonKinds::ALL && json.is_some() && parsed.is_none() {
        return Err("arrays and objects can't be compared by order".into());
    }
    // In a union, a text in quotes is that string alone.
    let is_exact = kinds == JsonKinds::ALL || json.as_ref().is_some_and(Value::is_string);
    let as_string = among.has(JsonKind::String) && !(is_exact && parsed.is_some());
    let values: Vec<_> = parsed.into_iter().chain(as_string.then(string)).collect();
    if values.is_empty() {
        return Err(format!("`{}` is not of the declared type ({})", quoted(text), names(kinds)));
    }
    Ok(values)
}

/// The parts of a list of values: between commas, but a JSON string, array or object is one part.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    loop {
        let end = json_end(rest).unwrap_or_else(|| rest.find(',').unwrap_or(rest.len()));
        let (part, after) = rest.split_at(end);
        parts.push(part);
        // More values than a filter may have are rejected, whatever they are.
        let Some(next) = after.strip_prefix(',').filter(|_| parts.len() <= FILTER_VALUES_MAX) else {
            return parts;
        };
        rest = next;
    }
}

/// The string of a text in JSON's quotes; any other text as it is.
fn unquoted(text: &str) -> Cow<'_, str> {
    let string = text.starts_with('"').then(|| serde_json::from_str(text).ok()).flatten();
    string.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Where the JSON string, array or object ends that a text begins with, when a comma or nothing is after it.
fn json_end(text: &str) -> Option<usize> {
    if !text.starts_with(['"', '[', '{']) {
        return None;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    values.next()?.ok()?;
    let end = values.byte_offset();
    (end == text.len() || text[end..].starts_with(',')).then_some(end)
}

fn names(kinds: JsonKinds) -> String {
    let names: Vec<_> = kinds.iter().map(JsonKind::name).collect();
    if names.is_empty() { "none: no value can be there".into() } else { names.join(", ") }
}
