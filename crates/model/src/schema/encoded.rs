//! References whose text is not a URI: `#/definitions/Page<Item>`, `#/$defs/Größe`.
//!
//! A reference is a URI reference, in which such characters are percent-encoded. Generators write them as they are
//! (those for TypeScript name a generic type `Page<Item>`), and other validators follow them. So a schema is compiled
//! with the characters encoded.
//!
//! **Invariant:** only the text of references changes, and only characters that a URI can't have. Data inside a schema
//! (`const`, `enum`) stay.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;

/// The characters of ASCII that are in no URI reference. A `%` before two hexadecimal digits begins what is encoded
/// already.
const NOT_IN_URIS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');
/// Those that are in no fragment.
const NOT_IN_FRAGMENTS: &AsciiSet = &NOT_IN_URIS.add(b'#').add(b'[').add(b']');

/// The schema with its references encoded; the same where they are URIs.
pub(super) fn references(schema: &Value) -> Cow<'_, Value> {
    let is_affected = |text: &str| matches!(encoded(text), Cow::Owned(_));
    if !any_reference(schema, &is_affected) {
        return Cow::Borrowed(schema);
    }
    let mut copy = schema.clone();
    encode(&mut copy);
    Cow::Owned(copy)
}

fn encoded(text: &str) -> Cow<'_, str> {
    let Some((document, fragment)) = text.split_once('#') else {
        return utf8_percent_encode(text, NOT_IN_URIS).into();
    };
    let with_octets = bare_percents_encoded(fragment);
    let document: Cow<'_, str> = utf8_percent_encode(document, NOT_IN_URIS).into();
    let encoded: Cow<'_, str> = utf8_percent_encode(&with_octets, NOT_IN_FRAGMENTS).into();
    if document.len() + 1 + encoded.len() == text.len() {
        return text.into();
    }
    format!("{document}#{encoded}").into()
}

/// The text in which every `%` begins an octet.
fn bare_percents_encoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut encoded: String = parts.next().unwrap_or_default().into();
    for part in parts {
        let is_octet = part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
        encoded.push_str(if is_octet { "%" } else { "%25" });
        encoded.push_str(part);
    }
    encoded
}

/// How the members of a schema's member are to be read.
enum MemberRole {
    /// A reference.
    Reference,
    /// Data.
    Data,
    /// Schemas by name.
    Named,
    /// A schema, or a list of them.
    Schemas,
}

impl MemberRole {
    fn of(keyword: &str) -> Self {
        match keyword {
            "$ref" | "$dynamicRef" => Self::Reference,
            "const" | "enum" | "default" | "examples" => Self::Data,
            "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties"
            | "properties" => Self::Named,
            _ => Self::Schemas,
        }
    }
}

/// Whether a predicate holds for any reference of a schema. The recursion is bounded by the document's depth.
fn any_reference(schema: &Value, predicate: &dyn Fn(&str) -> bool) -> bool {
    match schema {
        Value::Object(members) => {
            members.iter().any(|(keyword, member)| match (MemberRole::of(keyword), member) {
                (MemberRole::Reference, Value::String(text)) => predicate(text),
                (MemberRole::Named, Value::Object(named)) => {
                    named.values().any(|part| any_reference(part, predicate))
                }
                (MemberRole::Data, _) => false,
                (MemberRole::Reference | MemberRole::Named | MemberRole::Schemas, member) => {
                    any_reference(member, predicate)
                }
            })
        }
        Value::Array(parts) => parts.iter().any(|part| any_reference(part, predicate)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn encode(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (keyword, member) in members.iter_mut() {
                match (MemberRole::of(keyword), member) {
                    (MemberRole::Reference, Value::String(text)) => *text = encoded(text).into_owned(),
                    (MemberRole::Named, Value::Object(named)) => named.values_mut().for_each(encode),
                    (MemberRole::Data, _) => {}
                    (MemberRole::Reference | MemberRole::Named | MemberRole::Schemas, member) => {
                        encode(member);
                    }
                }
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(encode),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_encoded_and_data_are_not() {
        let schema = json!({
            "properties": {"$ref": {"$ref": "#/$defs/Größe"}, "enum": {"anyOf": [{"$ref": "#/definitions/Page<A b>"}]}},
            "items": [{"$ref": "#/$defs/A[]"}, {"$ref": "#/$defs/a#b"}, {"$ref": "#/$defs/50%"}, {"$ref": "#/$defs/%41%zz%é"}],
            "const": {"$ref": "#/ä"}, "enum": [{"$ref": "<"}], "default": {"$ref": "<"}, "$defs": {"Größe": {}},
        });
        let mut expected = schema.clone();
        expected["properties"]["$ref"]["$ref"] = json!("#/$defs/Gr%C3%B6%C3%9Fe");
        expected["properties"]["enum"]["anyOf"][0]["$ref"] = json!("#/definitions/Page%3CA%20b%3E");
        for (index, text) in ["A%5B%5D", "a%23b", "50%25", "%41%25zz%25%C3%A9"].into_iter().enumerate() {
            expected["items"][index]["$ref"] = format!("#/$defs/{text}").into();
        }
        assert_eq!(*references(&schema), expected);
        assert!(matches!(references(&expected), Cow::Borrowed(_)), "what is encoded stays");
    }
}
