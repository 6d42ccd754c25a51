//! Asserted formats mean the same in every draft.
//!
//! The validator checks a format from the draft on that defines it, and libraries write formats in whatever draft they
//! have: zod-to-json-schema writes draft 7 with `uuid` and `duration`, which came with 2019-09. If formats are
//! asserted, these are checked as well. And it checks host names by older rules in older drafts.
//!
//! **Invariant:** whether a text has a format does not depend on the draft.

use std::{collections::BTreeMap, sync::LazyLock};

use jsonschema::{Draft, ValidationOptions, Validator};
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

/// The formats with host names in them: ASCII letters are the same in both cases there, also in the prefix `xn--`
/// (RFC 5890, 2.3.1), which the validator wants in lower case.
const WITH_HOST: [&str; 2] = ["email", "hostname"];

/// Options with the formats that a draft has.
pub(super) fn configure(
    options: ValidationOptions<'static>,
    draft: Draft,
    formats: Formats,
) -> ValidationOptions<'static> {
    if formats != Formats::Asserted {
        return options;
    }
    let options = WITH_HOST.into_iter().fold(options, |options, name| {
        options.with_format(name, move |text: &str| has_format(name, &text.to_ascii_lowercase()))
    });
    if draft >= Draft::Draft201909 {
        return options;
    }
    LATER
        .into_iter()
        .fold(options, |options, name| options.with_format(name, move |text: &str| has_format(name, text)))
}

/// Whether a text has a format by the newest draft.
fn has_format(name: &str, text: &str) -> bool {
    NEWEST.get(name).is_none_or(|validator| validator.is_valid(&Value::from(text)))
}

/// The formats of the newest draft that are checked in other ones, too.
static NEWEST: LazyLock<BTreeMap<&str, Validator>> = LazyLock::new(|| {
    let of = |name: &'static str| {
        let options = jsonschema::draft202012::options().should_validate_formats(true);
        options.build(&json!({"format": name})).ok().map(|validator| (name, validator))
    };
    LATER.into_iter().chain(WITH_HOST).filter_map(of).collect()
});

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
    fn a_host_name_is_the_same_in_every_draft_and_case() {
        for draft in DRAFTS {
            for (host, is_valid) in [
                ("xn--mnchen-3ya.de", true),
                ("XN--MNCHEN-3YA.DE", true),
                ("Example.COM", true),
                ("ab--cd.example", false),
                ("xn--x", false),
                ("-a.example", false),
            ] {
                let asserted = Formats::Asserted;
                assert_eq!(accepts(draft, "hostname", asserted, host), is_valid, "{draft}: {host}");
                let address = format!("A.b@{host}");
                assert_eq!(accepts(draft, "email", asserted, &address), is_valid, "{draft}: {address}");
            }
        }
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
