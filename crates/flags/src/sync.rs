//! All flags as one document, as flagd fetches it over HTTP: `{"flags": {…}, "$evaluators": {…}, "metadata": {…}}`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{SHARED_KEY, definition};

/// The members of the shared config, as they are written.
#[derive(Default, Deserialize)]
struct Shared<'a> {
    #[serde(default, borrow, rename = "$evaluators")]
    evaluators: Option<&'a RawValue>,
    #[serde(default, borrow)]
    metadata: Option<&'a RawValue>,
}

/// The document of configs: their keys and their data, which is JSON text. What is hidden from the client is left out.
#[must_use]
pub fn document<'a>(configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Vec<u8> {
    let mut out = b"{\"flags\":{".to_vec();
    let mut shared = Shared::default();
    let mut is_first = true;
    for (key, data) in configs {
        let Some(data) = data else { continue };
        if key == SHARED_KEY {
            // What is no object of such members can't be part of the document; evaluations say that it is wrong.
            shared = definition::object(data).unwrap_or_default();
            continue;
        }
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        // A key has no character that JSON escapes.
        out.extend(format!("\"{key}\":").into_bytes());
        out.extend(data.as_bytes());
    }
    out.push(b'}');
    for (name, value) in [("$evaluators", shared.evaluators), ("metadata", shared.metadata)] {
        if let Some(value) = value {
            out.extend(format!(",\"{name}\":{value}").into_bytes());
        }
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_all_texts_as_they_are_and_what_they_share() {
        let shared = r#"{"$evaluators":{"a":{"var":"x"}},"metadata":{"v":1.0},"other":1}"#;
        let configs =
            [("a", Some(r#"{"n":1.0}"#)), ("b", None), ("c", Some("{}")), (SHARED_KEY, Some(shared))];
        let wanted =
            r#"{"flags":{"a":{"n":1.0},"c":{}},"$evaluators":{"a":{"var":"x"}},"metadata":{"v":1.0}}"#;
        assert_eq!(String::from_utf8(document(configs)).unwrap(), wanted);
        assert_eq!(document([(SHARED_KEY, Some("[]"))]), b"{\"flags\":{}}");
    }
}
