//! Field selection: the members of the data that a request names, and nothing else.
//!
//! The data are read once, from left to right; members that the request does not name are skipped, and the others are
//! copied as they were written. So the price is that of reading the text, however many paths there are.
//!
//! **Invariant:** the result is a JSON object with the members of the data that are on one of the paths, in the order
//! and with the text of the data. An object on the way to no selected member is left out.

use std::{collections::BTreeMap, fmt};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    document,
    error::LocSegment,
    index::IndexPath,
    limits::{FIELD_DEPTH_MAX, FIELDS_BYTES_MAX, FIELDS_MAX},
    redaction::RedactedPlaces,
};

/// The paths that a caller names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    members: ProjectedMembers,
    paths: Vec<Vec<LocSegment>>,
}

type ProjectedMembers = BTreeMap<String, ProjectionNode>;

/// Which parts of a member the request names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProjectionNode {
    Whole,
    Members(ProjectedMembers),
}

impl Projection {
    /// Parses comma-separated paths: `a.b,c`. A backslash stands before a dot, a comma or a backslash of a name.
    ///
    /// # Errors
    /// What is wrong, as a text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > FIELDS_BYTES_MAX {
            return Err(format!("`fields` has at most {FIELDS_BYTES_MAX} bytes"));
        }
        let texts = split(text);
        if texts.len() > FIELDS_MAX {
            return Err(format!("`fields` has at most {FIELDS_MAX} paths"));
        }
        let (mut members, mut paths) = (ProjectedMembers::new(), Vec::new());
        for text in texts {
            let Some(names) = IndexPath::parse(&text).ok().and_then(IndexPath::into_members) else {
                return Err(
                    "`fields` must be comma-separated paths of members, such as `db.port,name`".into()
                );
            };
            if names.len() > FIELD_DEPTH_MAX {
                return Err(format!("a path of `fields` has at most {FIELD_DEPTH_MAX} members"));
            }
            // No data have such a member: it is how the parser tells its own values from others.
            if !names.iter().any(|name| document::is_reserved(name)) {
                add(&mut members, &names);
            }
            paths.push(names.into_iter().map(LocSegment::Name).collect());
        }
        Ok(Self { members, paths })
    }

    /// The parts of data. What is not an object stays as it is: `null` stands for redacted data.
    #[must_use]
    pub fn of(&self, data: &str) -> String {
        let mut out = String::new();
        let part = MembersWriter { members: &self.members, out: &mut out };
        match part.deserialize(&mut serde_json::Deserializer::from_str(data)) {
            Ok(_) if !out.is_empty() => out,
            // Stored data were parsed when they were written.
            Ok(_) | Err(_) => data.to_owned(),
        }
    }

    /// The redacted places that the request names.
    #[must_use]
    pub fn places(&self, redacted: &RedactedPlaces) -> RedactedPlaces {
        redacted.on(&self.paths)
    }
}

/// The texts between commas; of `\,` the comma remains.
fn split(text: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let last = texts.last_mut().expect("there is a first text, and none is removed");
        match c {
            ',' => texts.push(String::new()),
            '\\' => match rest.next() {
                Some(',') => last.push(','),
                Some(other) => last.extend(['\\', other]),
                None => last.push('\\'),
            },
            other => last.push(other),
        }
    }
    texts
}

fn add(members: &mut ProjectedMembers, path: &[String]) {
    let Some((name, rest)) = path.split_first() else { return };
    let node =
        members.entry(name.clone()).or_insert_with(|| ProjectionNode::Members(ProjectedMembers::new()));
    match node {
        // A shorter path already selects more.
        ProjectionNode::Whole => {}
        _ if rest.is_empty() => *node = ProjectionNode::Whole,
        ProjectionNode::Members(members) => add(members, rest),
    }
}

/// Writes the members of an object that the request names. Returns whether there were any.
struct MembersWriter<'a> {
    members: &'a ProjectedMembers,
    out: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for MembersWriter<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MembersWriter<'_> {
    type Value = bool;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let (begin, mut any) = (self.out.len(), false);
        self.out.push('{');
        while let Some(name) = map.next_key::<String>()? {
            let Some(node) = self.members.get(&name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let before = self.out.len();
            if any {
                self.out.push(',');
            }
            self.out.push_str(&serde_json::to_string(&name).map_err(serde::de::Error::custom)?);
            self.out.push(':');
            let is_there = match node {
                ProjectionNode::Whole => {
                    self.out.push_str(map.next_value::<&RawValue>()?.get());
                    true
                }
                ProjectionNode::Members(members) => {
                    map.next_value_seed(MembersWriter { members, out: &mut *self.out })?
                }
            };
            if is_there {
                any = true;
            } else {
                self.out.truncate(before);
            }
        }
        self.out.push('}');
        // A number comes as a map, too. It has none of the members.
        let is_root = begin == 0;
        if !any && !is_root {
            self.out.truncate(begin);
        }
        Ok(any)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn part(fields: &str, data: &str) -> String {
        Projection::parse(fields).unwrap().of(data)
    }

    #[test]
    fn members_are_copied_as_they_were_written() {
        let data = r#"{"b":{"x":1E22,"y":[1, 2]},"a":-0.0,"n":7,"s":"\u0041","o":{}}"#;
        assert_eq!(part("a", data), r#"{"a":-0.0}"#);
        assert_eq!(part("b.x,a", data), r#"{"b":{"x":1E22},"a":-0.0}"#);
        assert_eq!(part("b.y,b", data), r#"{"b":{"x":1E22,"y":[1, 2]}}"#);
        assert_eq!(part("s,b.y.0", data), r#"{"s":"\u0041"}"#);
        assert_eq!(part("o,n", data), r#"{"n":7,"o":{}}"#);
        assert_eq!(part("o.x,n.x,s.x,absent", data), "{}");
        assert_eq!(part("a", "null"), "null");
    }

    #[test]
    fn names_with_dots_and_commas_are_escaped() {
        let data = r#"{"a.b":1,"a":{"b":2},"c,d":3,"e\\f":4}"#;
        assert_eq!(part(r"a\.b", data), r#"{"a.b":1}"#);
        assert_eq!(part("a.b", data), r#"{"a":{"b":2}}"#);
        assert_eq!(part(r"c\,d,e\\f", data), r#"{"c,d":3,"e\\f":4}"#);
        for wrong in ["", ",", "a,", "a..b", r"a\", r"a\x", "."] {
            assert!(Projection::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(Projection::parse(&vec!["a"; FIELDS_MAX].join(",")).is_ok());
        assert!(Projection::parse(&vec!["a"; FIELDS_MAX + 1].join(",")).is_err());
        assert!(Projection::parse(&"a".repeat(FIELDS_BYTES_MAX)).is_ok());
        assert!(Projection::parse(&"a".repeat(FIELDS_BYTES_MAX + 1)).unwrap_err().contains("bytes"));
        assert!(Projection::parse(&vec!["a"; FIELD_DEPTH_MAX + 1].join(".")).is_err());
    }

    #[test]
    fn a_number_is_no_object_whatever_the_parser_calls_it() {
        let data = r#"{"n":7}"#;
        let name = "n.$serde_json::private::Number";
        assert_eq!(part(name, data), "{}");
    }

    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(4, 40, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[a-c]", inner, 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    /// What is on the paths, found another way.
    fn found(value: &Value, paths: &[Vec<&str>]) -> Option<Value> {
        if paths.iter().any(Vec::is_empty) {
            return Some(value.clone());
        }
        let mut members = Map::new();
        for (name, member) in value.as_object()? {
            let below: Vec<Vec<&str>> =
                paths.iter().filter(|path| path[0] == name).map(|path| path[1..].to_vec()).collect();
            if let Some(part) = found(member, &below).filter(|_| !below.is_empty()) {
                members.insert(name.clone(), part);
            }
        }
        (!members.is_empty()).then(|| Value::Object(members))
    }

    proptest! {
        #[test]
        fn the_parts_are_those_that_a_walk_finds(
            data in document(), paths in prop::collection::vec("[a-c](\\.[a-c]){0,2}", 1..4),
        ) {
            let split: Vec<Vec<&str>> = paths.iter().map(|path| path.split('.').collect()).collect();
            let made: Value = serde_json::from_str(&part(&paths.join(","), &data.to_string())).unwrap();
            prop_assert_eq!(made, found(&data, &split).unwrap_or_else(|| json!({})));
        }
    }
}
