//! The bodies of requests about access keys.
//!
//! **Invariant:** what is granted is exactly what the body says: an unknown verb or an invalid pattern rejects it.

use serde_json::Value;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder};

use crate::{
    body::fields::{self, BodyFields, FieldType, array},
    openapi::schemas::{integer, pattern_of_keys, reference, text},
};
use concord_model::{
    access_key::{Grant, Grants, Pattern, Quota, Verb},
    command::KeyTerms,
    limits::{
        GRANT_PATTERNS_MAX, GRANTS_MAX, KEY_NAME_BYTES_MAX, PERSON_LABEL_BYTES_MAX, ROTATION_GRACE_MAX,
    },
    record::Revision,
    system::person::PersonLabel,
    time::Timestamp,
};
use concord_service::KeyPatch;

/// A key to be created.
#[derive(Debug)]
pub(crate) struct NewKey {
    pub(crate) terms: KeyTerms,
    /// The label of the person who holds it.
    pub(crate) person: Option<PersonLabel>,
}

/// The body that creates a key.
pub(crate) fn new_key(fields: &mut BodyFields) -> NewKey {
    let terms = KeyTerms {
        name: fields.required("name", &NAME),
        grants: Grants(fields.required("grants", &GRANTS)),
        expires_at: fields.nullable("expires_at", &EXPIRY),
        quota: fields.nullable("quota", &QUOTA).unwrap_or_default(),
    };
    // A label that is invalid has its violation, and is none.
    NewKey { terms, person: fields.nullable("person", &PERSON).flatten() }
}

/// The body that changes a key: what it does not name stays as it is.
pub(crate) fn changed_key(fields: &mut BodyFields) -> KeyPatch {
    KeyPatch {
        name: fields.optional("name", &NAME),
        grants: fields.optional("grants", &GRANTS).map(Grants),
        expires_at: fields.nullable_if_present("expires_at", &EXPIRY),
        quota: fields.nullable_if_present("quota", &QUOTA).map(Option::unwrap_or_default),
    }
}

/// The body that attests a key: the revision of the key that is attested.
pub(crate) fn attested_revision(fields: &mut BodyFields) -> Revision {
    const REVISION: FieldType<u64> = FieldType { read: fields::integer, schema: |_| integer(1).into() };
    fields.required("revision", &REVISION)
}

/// The body that rotates a key: for how many microseconds the previous secret remains valid.
pub(crate) fn grace(fields: &mut BodyFields) -> u64 {
    const GRACE: FieldType<u64> = FieldType {
        read: |value, fields| {
            let seconds = fields::integer(value, fields)?;
            let seconds_max = ROTATION_GRACE_MAX.as_secs();
            if seconds > seconds_max {
                fields.violation(&[], format!("a grace is at most {seconds_max} seconds"));
            }
            Some(seconds)
        },
        schema: |_| {
            let seconds_max = usize::try_from(ROTATION_GRACE_MAX.as_secs()).unwrap_or(usize::MAX);
            integer(0).maximum(Some(seconds_max)).into()
        },
    };
    fields.required("grace_s", &GRACE).saturating_mul(1_000_000)
}

const NAME: FieldType<String> = FieldType {
    read: |value, fields| {
        let name = fields::string(value, fields)?;
        let is_valid = (1..=KEY_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        if !is_valid {
            let msg = format!("a name has 1 to {KEY_NAME_BYTES_MAX} bytes and no control characters");
            fields.violation(&[], msg);
        }
        Some(name)
    },
    schema: |_| name().into(),
};

const PERSON: FieldType<Option<PersonLabel>> = FieldType {
    read: |value, fields| {
        let parsed = PersonLabel::parse(&fields::string(value, fields)?);
        Some(parsed.map_err(|error| fields.violation(&[], error.to_string())).ok())
    },
    schema: |_| text().min_length(Some(1)).max_length(Some(PERSON_LABEL_BYTES_MAX)).into(),
};

const EXPIRY: FieldType<Timestamp> = FieldType {
    read: |value, fields| {
        let time = Timestamp::parse(&fields::string(value, fields)?);
        if time.is_none() {
            let msg = "expected an RFC 3339 time such as `2027-01-01T00:00:00Z`, or null";
            fields.violation(&[], msg);
        }
        time
    },
    schema: |_| text().description(Some("RFC 3339; null for never")).into(),
};

pub(crate) const GRANTS: FieldType<Vec<Grant>> = FieldType {
    read: |value, fields| {
        let too_long = format!("a key has at most {GRANTS_MAX} grants");
        let grants =
            fields.bounded_list(value, GRANTS_MAX, &too_long, |item, fields| fields.object(item, grant))?;
        if grants.iter().map(|grant| grant.definitions.len()).sum::<usize>() > GRANT_PATTERNS_MAX {
            let msg = format!("the grants of a key have at most {GRANT_PATTERNS_MAX} patterns in all");
            fields.violation(&[], msg);
        }
        Some(grants)
    },
    schema: |_| grants().into(),
};

/// A grant.
pub(crate) fn grant(fields: &mut BodyFields) -> Grant {
    const VERBS: FieldType<Vec<Verb>> = FieldType {
        read: |value, fields| fields.list(value, verb),
        schema: |_| ArrayBuilder::new().items(text().enum_values(Some(Verb::ALL.map(Verb::name)))).into(),
    };
    // `None` for an invalid pattern, so that a grant with only such patterns has one violation and not two.
    const PATTERNS: FieldType<Vec<Option<Pattern>>> = FieldType {
        read: |value, fields| fields.list(value, pattern),
        schema: |_| array(pattern_of_keys(), GRANT_PATTERNS_MAX).into(),
    };
    let verbs = fields.required("verbs", &VERBS);
    let definitions = fields.optional("definitions", &PATTERNS).unwrap_or_default();
    if definitions.is_empty()
        && let Some(verb) = verbs.iter().find(|verb| verb.is_about_definitions())
    {
        let msg = format!("the verb `{verb}` needs `definitions`; `*` grants it for all");
        fields.violation_in("definitions", msg);
    }
    Grant { verbs: verbs.into_iter().collect(), definitions: definitions.into_iter().flatten().collect() }
}

fn verb(value: Value, fields: &mut BodyFields) -> Option<Verb> {
    let verb = Verb::named(&fields::string(value, fields)?);
    if verb.is_none() {
        let names = Verb::ALL.map(Verb::name).join("`, `");
        fields.violation(&[], format!("a verb is one of `{names}`"));
    }
    verb
}

fn pattern(value: Value, fields: &mut BodyFields) -> Option<Option<Pattern>> {
    let parsed = Pattern::parse(&fields::string(value, fields)?);
    Some(parsed.map_err(|error| fields.violation(&[], error.to_string())).ok())
}

const QUOTA: FieldType<Quota> = FieldType {
    read: |value, fields| {
        let value = fields::any_object(value, fields)?;
        fields.object(value, quota)
    },
    schema: |_| reference("Quota"),
};

/// A quota: the limits of a key. A limit that is absent or null is none.
pub(crate) fn quota(fields: &mut BodyFields) -> Quota {
    const LIMIT: FieldType<u64> = FieldType { read: fields::integer, schema: |_| integer(0).into() };
    Quota {
        requests_per_second: fields.nullable("requests_per_second", &LIMIT),
        writes_per_second: fields.nullable("writes_per_second", &LIMIT),
        bytes: fields.nullable("bytes", &LIMIT),
        records: fields.nullable("records", &LIMIT),
        watches: fields.nullable("watches", &LIMIT),
        cursors: fields.nullable("cursors", &LIMIT),
        lists: fields.nullable("lists", &LIMIT),
    }
}

/// The schema of a key's name.
pub(crate) fn name() -> ObjectBuilder {
    text().min_length(Some(1)).max_length(Some(KEY_NAME_BYTES_MAX))
}

/// The schema of a key's grants.
pub(crate) fn grants() -> ArrayBuilder {
    array(reference("Grant"), GRANTS_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reply::Problem;
    use concord_model::error::Invalid;
    use concord_service::Refusal;

    fn parse<T>(read: fn(&mut BodyFields) -> T, body: Value) -> Result<T, Problem> {
        BodyFields::read(body, read)
    }

    fn refused<T: std::fmt::Debug>(read: Result<T, Problem>) -> (usize, usize) {
        match read {
            Err(Problem::Shape(details)) => (details.len(), 0),
            Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), _)) => {
                (0, violations.len())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_body_says_what_is_granted() {
        let body = json!({
            "name": "reader", "person": "Ada@example.com", "expires_at": "2027-01-01T00:00:00Z", "quota": { "watches": 3, "lists": null },
            "grants": [{ "verbs": ["read", "reveal"], "definitions": ["billing.*", "limits"] }, { "verbs": ["audit"] }],
        });
        let NewKey { terms, person } = parse(new_key, body).unwrap();
        assert_eq!(person.as_ref().map(PersonLabel::as_str), Some("ada@example.com"));
        assert_eq!(terms.quota, Quota { watches: Some(3), ..Quota::default() });
        assert!(
            terms.grants.allows(Verb::Reveal, Some("billing.eu")) && terms.grants.allows(Verb::Audit, None)
        );
        assert!(!terms.grants.allows(Verb::Write, Some("billing.eu")));
        assert_eq!(terms.expires_at.map(|at| at.to_string()).as_deref(), Some("2027-01-01T00:00:00.000000Z"));
        let plain = json!({ "name": "n", "grants": [], "expires_at": null, "quota": null, "person": null });
        let plain = parse(new_key, plain).unwrap();
        assert_eq!((plain.terms.expires_at, plain.terms.quota, plain.person), (None, Quota::default(), None));
    }

    #[test]
    fn a_patch_names_what_it_changes() {
        assert_eq!(parse(changed_key, json!({})).unwrap(), KeyPatch::default());
        let patch = parse(changed_key, json!({ "expires_at": null })).unwrap();
        assert_eq!(patch, KeyPatch { expires_at: Some(None), ..KeyPatch::default() });
        assert_eq!(parse(grace, json!({ "grace_s": 60 })).unwrap(), 60_000_000);
        assert_eq!(parse(attested_revision, json!({ "revision": 44 })).unwrap(), 44);
    }

    #[test]
    fn all_wrong_fields_and_all_broken_rules_are_listed() {
        assert_eq!(refused(parse(new_key, json!({}))), (2, 0));
        assert_eq!(refused(parse(new_key, json!({ "name": 1, "grants": [1, { "verbs": "read" }] }))), (3, 0));
        assert_eq!(
            refused(parse(new_key, json!({ "name": "n", "grants": [], "quota": { "bytes": -1 } }))),
            (1, 0)
        );
        assert_eq!(refused(parse(new_key, json!([]))), (1, 0));
        let body = json!({
            "name": "", "expires_at": "tomorrow", "person": "a\tb",
            "grants": [{ "verbs": ["read", "destroy"], "definitions": ["a*b"] }, { "verbs": ["write"] }],
        });
        assert_eq!(refused(parse(new_key, body)), (0, 6));
        let many = vec![json!({ "verbs": ["audit"] }); GRANTS_MAX + 1];
        assert_eq!(refused(parse(new_key, json!({ "name": "n", "grants": many }))), (0, 1));
        let wide = json!([{ "verbs": ["read"], "definitions": vec!["a"; GRANT_PATTERNS_MAX + 1] }]);
        assert_eq!(refused(parse(new_key, json!({ "name": "n", "grants": wide }))), (0, 1));
        assert_eq!(refused(parse(grace, json!({ "grace_s": ROTATION_GRACE_MAX.as_secs() + 1 }))), (0, 1));
        assert_eq!(refused(parse(grace, json!({}))), (1, 0));
        assert_eq!(refused(parse(attested_revision, json!({ "revision": -1 }))), (1, 0));
    }
}
