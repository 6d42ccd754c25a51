//! Asserted formats mean the same in every draft.
//!
//! The validator checks a format from the draft on that defines it, and libraries write formats in whatever draft they
//! have: zod-to-json-schema writes draft 7 with `uuid` and `duration`, which came with 2019-09. If formats are
//! asserted, these are checked as well.

use jsonschema::{Draft, ValidationOptions};
use serde_json::{Value, json};

use super::Formats;

/// The formats that a later draft than 4 defines.
const LATER: [&str; 9] = [
    "duration",
    "iri",
    "iri-reference",
    "json-pointer",
    "relative-json-pointer",
    "time",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// Options with the formats that a draft has.
pub(super) fn configure(
    options: ValidationOptions<'static>,
    draft: Draft,
    formats: Formats,
) -> ValidationOptions<'static> {
    if formats != Formats::Asserted || draft >= Draft::Draft201909 {
        return options;
    }
    LATER.iter().fold(options, |options, name| match of_newest_draft(name) {
        Some(check) => options.with_format(*name, move |text: &str| check(text)),
        None => options,
    })
}

/// The check of a format in the newest draft.
fn of_newest_draft(name: &str) -> Option<impl Fn(&str) -> bool + Send + Sync + 'static> {
    let schema = json!({"format": name});
    let validator = jsonschema::draft202012::options().should_validate_formats(true).build(&schema).ok()?;
    Some(move |text: &str| validator.is_valid(&Value::from(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schema;

    const DRAFTS: [&str; 5] = [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ];

    /// A good and a bad text of each format that a later draft than 4 defines.
    const TEXTS: [(&str, &str, &str); 9] = [
        ("duration", "P1DT2H", "1 day"),
        ("iri", "http://ƒøø.ßår/?∂éœ=πîx", "bar,baz"),
        ("iri-reference", "/âππ", "\\\\WINDOWS\\filëßåré"),
        ("json-pointer", "/a/b", "a/b"),
        ("relative-json-pointer", "1/a", "/a"),
        ("time", "08:30:06Z", "28:30:06Z"),
        ("uri-reference", "/a?b#c", "\\\\a"),
        ("uri-template", "http://example.com/{term}", "http://example.com/{term"),
        ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"),
    ];

    fn accepts(draft: &str, format: &str, formats: Formats, text: &str) -> bool {
        let schema = json!({"$schema": draft, "format": format});
        Schema::compile(&schema, formats).unwrap().accepts(&text.into())
    }

    #[test]
    fn an_asserted_format_is_checked_in_every_draft() {
        assert_eq!(TEXTS.map(|(name, ..)| name), LATER);
        for draft in DRAFTS {
            for (format, good, bad) in TEXTS {
                assert!(accepts(draft, format, Formats::Asserted, good), "{draft}: {format}: {good}");
                assert!(!accepts(draft, format, Formats::Asserted, bad), "{draft}: {format}: {bad}");
                assert!(accepts(draft, format, Formats::Annotated, bad), "{draft}: {format}: {bad}");
            }
        }
    }
}
