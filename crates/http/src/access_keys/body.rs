//! The bodies of requests about access keys.
//!
//! Wrong shapes are collected first and refused with `detail`; then broken rules are collected and refused with
//! `errors`, each with its location.
//!
//! **Invariant:** what is granted is exactly what the body says: a verb or pattern that is not understood refuses it.

use serde_json::Value;

use crate::{
    body::{Fields, not_an_object},
    reply::Problem,
};
use concord_model::{
    access_key::{Grant, Grants, Pattern, Quota, Verb},
    command::KeyTerms,
    error::{Invalid, LocSegment, Violation},
    limits::{GRANT_PATTERNS_MAX, GRANTS_MAX, KEY_NAME_BYTES_MAX, ROTATION_GRACE_MAX},
    time::Timestamp,
};
use concord_service::{KeyPatch, Refusal};

/// The body that creates a key.
pub(super) fn new_key(body: Value) -> Result<KeyTerms, Problem> {
    let mut read = Reading::begin(body)?;
    let name = read.name();
    let grants = read.grants();
    let expires_at = read.fields.has("expires_at").then(|| read.time("expires_at")).flatten();
    let quota = if read.fields.has("quota") { read.quota() } else { Quota::default() };
    read.finish(KeyTerms { name, grants, quota, expires_at })
}

/// The body that changes a key: what it does not name stays as it is.
pub(super) fn changed_key(body: Value) -> Result<KeyPatch, Problem> {
    let mut read = Reading::begin(body)?;
    let name = read.fields.has("name").then(|| read.name());
    let grants = read.fields.has("grants").then(|| read.grants());
    let expires_at = read.fields.has("expires_at").then(|| read.time("expires_at"));
    let quota = read.fields.has("quota").then(|| read.quota());
    read.finish(KeyPatch { name, grants, quota, expires_at })
}

/// The body that rotates a key: the microseconds for which its text before stays good.
pub(super) fn grace(body: Value) -> Result<u64, Problem> {
    let mut read = Reading::begin(body)?;
    let seconds = read.fields.integer("grace_s");
    if seconds > ROTATION_GRACE_MAX.as_secs() {
        read.refuse(
            &["grace_s".into()],
            format!("a grace is at most {} seconds", ROTATION_GRACE_MAX.as_secs()),
        );
    }
    read.finish(seconds.saturating_mul(1_000_000))
}

/// A body while it is read.
struct Reading {
    fields: Fields,
    violations: Vec<Violation>,
}

impl Reading {
    fn begin(body: Value) -> Result<Self, Problem> {
        Ok(Self { fields: Fields::from_json(body)?, violations: Vec::new() })
    }

    fn finish<T>(self, made: T) -> Result<T, Problem> {
        let made = self.fields.finish(made)?;
        if self.violations.is_empty() {
            Ok(made)
        } else {
            Err(Refusal::Invalid(Invalid::Violations(self.violations)).into())
        }
    }

    fn refuse(&mut self, loc: &[LocSegment], msg: impl Into<String>) {
        self.violations.push(Violation::at(loc.to_vec(), msg));
    }

    fn name(&mut self) -> String {
        let name = self.fields.string("name");
        let is_good =
            !name.is_empty() && name.len() <= KEY_NAME_BYTES_MAX && !name.contains(char::is_control);
        if !is_good {
            let msg = format!("a name has 1 to {KEY_NAME_BYTES_MAX} bytes and no control characters");
            self.refuse(&["name".into()], msg);
        }
        name
    }

    fn time(&mut self, name: &'static str) -> Option<Timestamp> {
        if self.fields.is_null(name) {
            self.fields.object.remove(name);
            return None;
        }
        let text = self.fields.string(name);
        let time = Timestamp::parse(&text);
        if time.is_none() {
            self.refuse(
                &[name.into()],
                "expected a time as RFC 3339 has it, such as `2027-01-01T00:00:00Z`, or null",
            );
        }
        time
    }

    fn grants(&mut self) -> Grants {
        let items = self.fields.list("grants");
        if items.len() > GRANTS_MAX {
            self.refuse(&["grants".into()], format!("a key has at most {GRANTS_MAX} grants"));
            return Grants::default();
        }
        let grants: Vec<Grant> =
            (0..).zip(items).filter_map(|(place, (loc, item))| self.grant(place, loc, item)).collect();
        if grants.iter().map(|grant| grant.definitions.len()).sum::<usize>() > GRANT_PATTERNS_MAX {
            let msg = format!("the grants of a key have at most {GRANT_PATTERNS_MAX} patterns in all");
            self.refuse(&["grants".into()], msg);
        }
        Grants(grants)
    }

    fn grant(&mut self, place: u64, loc: Vec<LocSegment>, item: Value) -> Option<Grant> {
        let Value::Object(object) = item else {
            self.fields.errors.push(not_an_object(loc));
            return None;
        };
        let mut fields = Fields { object, loc, errors: std::mem::take(&mut self.fields.errors) };
        let verbs = fields.strings("verbs");
        let patterns = if fields.has("definitions") { fields.strings("definitions") } else { Vec::new() };
        self.fields.errors = fields.errors;
        let at = |member: &str, index: u64| {
            vec!["grants".into(), LocSegment::Index(place), member.into(), LocSegment::Index(index)]
        };
        let names: Vec<&str> = Verb::ALL.into_iter().map(Verb::name).collect();
        let mut known = Vec::new();
        for (index, name) in (0..).zip(&verbs) {
            match Verb::named(name) {
                Some(verb) => known.push(verb),
                None => {
                    self.refuse(&at("verbs", index), format!("a verb is one of `{}`", names.join("`, `")));
                }
            }
        }
        let mut definitions = Vec::new();
        for (index, text) in (0..).zip(&patterns) {
            match Pattern::parse(text) {
                Ok(pattern) => definitions.push(pattern),
                Err(error) => self.refuse(&at("definitions", index), error.to_string()),
            }
        }
        if patterns.is_empty()
            && let Some(verb) = known.iter().find(|verb| verb.is_about_definitions())
        {
            let loc = ["grants".into(), LocSegment::Index(place), "definitions".into()];
            self.refuse(
                &loc,
                format!("the verb `{verb}` needs the definitions that it is granted for; `*` is all"),
            );
        }
        Some(Grant { verbs: known.into_iter().collect(), definitions })
    }

    fn quota(&mut self) -> Quota {
        if self.fields.is_null("quota") {
            self.fields.object.remove("quota");
            return Quota::default();
        }
        let Value::Object(object) = self.fields.object("quota") else { return Quota::default() };
        let loc = self.fields.loc_of("quota");
        let mut fields = Fields { object, loc, errors: std::mem::take(&mut self.fields.errors) };
        let mut limit =
            |name: &str| (fields.has(name) && !fields.is_null(name)).then(|| fields.integer(name));
        let quota = Quota {
            requests_per_second: limit("requests_per_second"),
            writes_per_second: limit("writes_per_second"),
            bytes: limit("bytes"),
            records: limit("records"),
            watches: limit("watches"),
            cursors: limit("cursors"),
            lists: limit("lists"),
        };
        self.fields.errors = fields.errors;
        quota
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            "name": "reader", "expires_at": "2027-01-01T00:00:00Z", "quota": { "watches": 3, "lists": null },
            "grants": [{ "verbs": ["read", "reveal"], "definitions": ["billing.*", "limits"] }, { "verbs": ["audit"] }],
        });
        let terms = new_key(body).unwrap();
        assert_eq!(terms.quota, Quota { watches: Some(3), ..Quota::default() });
        assert!(
            terms.grants.allows(Verb::Reveal, Some("billing.eu")) && terms.grants.allows(Verb::Audit, None)
        );
        assert!(!terms.grants.allows(Verb::Write, Some("billing.eu")));
        assert_eq!(terms.expires_at.map(|at| at.to_string()).as_deref(), Some("2027-01-01T00:00:00.000000Z"));
        let plain = new_key(json!({ "name": "n", "grants": [], "expires_at": null, "quota": null })).unwrap();
        assert_eq!((plain.expires_at, plain.quota), (None, Quota::default()));
    }

    #[test]
    fn a_patch_names_what_it_changes() {
        assert_eq!(changed_key(json!({})).unwrap(), KeyPatch::default());
        let patch = changed_key(json!({ "expires_at": null })).unwrap();
        assert_eq!(patch, KeyPatch { expires_at: Some(None), ..KeyPatch::default() });
        assert_eq!(grace(json!({ "grace_s": 60 })).unwrap(), 60_000_000);
    }

    #[test]
    fn all_wrong_fields_and_all_broken_rules_are_listed() {
        assert_eq!(refused(new_key(json!({}))), (2, 0));
        assert_eq!(refused(new_key(json!({ "name": 1, "grants": [1, { "verbs": "read" }] }))), (3, 0));
        assert_eq!(refused(new_key(json!({ "name": "n", "grants": [], "quota": { "bytes": -1 } }))), (1, 0));
        assert_eq!(refused(new_key(json!([]))), (1, 0));
        let body = json!({
            "name": "", "expires_at": "tomorrow",
            "grants": [{ "verbs": ["read", "delete"], "definitions": ["a*b"] }, { "verbs": ["write"] }],
        });
        assert_eq!(refused(new_key(body)), (0, 5));
        let many = vec![json!({ "verbs": ["audit"] }); GRANTS_MAX + 1];
        assert_eq!(refused(new_key(json!({ "name": "n", "grants": many }))), (0, 1));
        let wide = json!([{ "verbs": ["read"], "definitions": vec!["a"; GRANT_PATTERNS_MAX + 1] }]);
        assert_eq!(refused(new_key(json!({ "name": "n", "grants": wide }))), (0, 1));
        assert_eq!(refused(grace(json!({ "grace_s": ROTATION_GRACE_MAX.as_secs() + 1 }))), (0, 1));
        assert_eq!(refused(grace(json!({}))), (1, 0));
    }
}
