//! Whether data have an empty array at a path. It has no elements and so no index entry, but it exists.
//!
//! **Invariant:** the time is that of reading the text once; no value is built.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::PathStep;

/// Whether the value at the path is an array without elements. `text` is the JSON text of stored data.
#[must_use]
pub fn has_empty_array(text: &str, steps: &[PathStep]) -> bool {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    At(steps).deserialize(&mut deserializer).unwrap_or(false)
}

/// Reads the value below these steps, none of which is any member.
#[derive(Clone, Copy)]
struct At<'a>(&'a [PathStep]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<bool, M::Error> {
        let mut is_empty = false;
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.0.split_first() {
                Some((PathStep::Member(first), rest)) if *first == name => {
                    is_empty = map.next_value_seed(At(rest))?;
                }
                Some(_) | None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(is_empty)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<bool, S::Error> {
        if let Some((PathStep::Elements, rest)) = self.0.split_first() {
            let mut is_any_empty = false;
            while let Some(is_empty) = items.next_element_seed(At(rest))? {
                is_any_empty |= is_empty;
            }
            return Ok(is_any_empty);
        }
        let is_empty = items.next_element::<IgnoredAny>()?.is_none();
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(is_empty && self.0.is_empty())
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::IndexPath;

    #[test]
    fn an_empty_array_is_found_where_the_path_leads_and_nowhere_else() {
        let path = |text: &str| IndexPath::parse(text).unwrap().steps;
        let data = r#"{"a": [], "b": {"c": [], "d": [1]}, "e": [[]], "f": 1e400, "g": "[]", "h": {}, "i": null,
            "j": true, "k": -1.5, "l": [{"m": []}], "\u006e": []}"#;
        for (at, expected) in [
            ("a", true),
            ("b.c", true),
            ("n", true),
            ("b.d", false),
            ("b", false),
            ("e", false),
            ("f", false),
            ("g", false),
            ("h", false),
            ("i", false),
            ("j", false),
            ("k", false),
            ("l.m", false),
            ("a.x", false),
            ("none", false),
            ("l[].m", true),
            ("b[].m", false),
            ("l[].x", false),
        ] {
            assert_eq!(has_empty_array(data, &path(at)), expected, "{at}");
        }
    }
}
