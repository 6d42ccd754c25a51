//! What the texts of the records of identity hold: the log does not look at it.
//!
//! **Invariant:** what this version can't read gives nobody anything. A later version may have written it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use concord_identity::{Claims, Membership};
use concord_model::{
    access_key::{Grant, Grants, Pattern, Quota, Verb},
    error::Violation,
    system::identity::OwnerTag,
};

/// The text of a role's record.
#[derive(Debug, Clone)]
pub(crate) struct StoredRole {
    /// What it allows.
    pub(crate) grants: Grants,
    /// How much of it: rates only.
    pub(crate) quota: Quota,
    /// Its members, as they were written.
    pub(crate) members: Value,
    /// How long a session with it lasts, in seconds.
    pub(crate) session_s: u64,
}

#[derive(Serialize, Deserialize)]
struct RoleText {
    grants: Vec<GrantText>,
    quota: QuotaText,
    members: Value,
    session_s: u64,
}

#[derive(Serialize, Deserialize)]
struct GrantText {
    verbs: Vec<String>,
    definitions: Vec<Pattern>,
}

#[derive(Serialize, Deserialize)]
struct QuotaText {
    requests_per_second: Option<u64>,
    writes_per_second: Option<u64>,
}

impl StoredRole {
    pub(crate) fn of(text: &str) -> Option<Self> {
        let RoleText { grants, quota, members, session_s } = serde_json::from_str(text).ok()?;
        let grant = |GrantText { verbs, definitions }: GrantText| {
            let verbs = verbs.iter().map(|name| Verb::named(name)).collect::<Option<_>>()?;
            Some(Grant { verbs, definitions })
        };
        let grants = grants.into_iter().map(grant).collect::<Option<_>>()?;
        let QuotaText { requests_per_second, writes_per_second } = quota;
        let quota = Quota { requests_per_second, writes_per_second, ..Quota::default() };
        Some(Self { grants: Grants(grants), quota, members, session_s })
    }

    pub(crate) fn to_text(&self) -> Arc<str> {
        let grant = |grant: &Grant| GrantText {
            verbs: grant.verbs.iter().map(|verb| verb.name().to_owned()).collect(),
            definitions: grant.definitions.clone(),
        };
        let Quota { requests_per_second, writes_per_second, .. } = self.quota;
        let text = RoleText {
            grants: self.grants.0.iter().map(grant).collect(),
            quota: QuotaText { requests_per_second, writes_per_second },
            members: self.members.clone(),
            session_s: self.session_s,
        };
        serde_json::to_string(&text).expect("texts, numbers and JSON are JSON").into()
    }

    /// Its members, as they are compared with claims.
    ///
    /// # Errors
    /// All problems of its members.
    pub(crate) fn membership(&self) -> Result<Membership, Vec<Violation>> {
        Membership::parse(&json!({ "members": self.members, "session_s": self.session_s }))
    }
}

/// The text of a session's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionText {
    /// Whom the token named.
    pub(crate) subject: String,
    /// What is kept of its claims.
    pub(crate) claims: Claims,
}

#[derive(Serialize, Deserialize)]
struct SessionJson {
    subject: String,
    claims: Value,
}

impl SessionText {
    pub(crate) fn of(text: &str) -> Option<Self> {
        let SessionJson { subject, claims } = serde_json::from_str(text).ok()?;
        Some(Self { subject, claims: Claims::from_text(&claims.to_string()).ok()? })
    }

    pub(crate) fn to_text(&self) -> Arc<str> {
        let claims = serde_json::from_str(&self.claims.to_text()).unwrap_or_default();
        let text = SessionJson { subject: self.subject.clone(), claims };
        serde_json::to_string(&text).expect("texts and JSON are JSON").into()
    }

    /// Who has the session: two logins are of one owner if all of this is the same.
    pub(crate) fn owner(&self, issuer: &str) -> OwnerTag {
        let mut hash = Sha256::new();
        for part in [issuer, &self.subject, &self.claims.to_text()] {
            // Each part is preceded by its length, so that different owners never give the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (half, _) = digest.split_first_chunk().expect("32 bytes have a first 16");
        OwnerTag(*half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_as_it_was_stored_and_an_unknown_verb_gives_nothing() {
        let grant = Grant {
            verbs: [Verb::Read, Verb::Propose].into_iter().collect(),
            definitions: vec![Pattern::parse("prod.*").unwrap()],
        };
        let role = StoredRole {
            grants: Grants(vec![grant]),
            quota: Quota { writes_per_second: Some(20), ..Quota::default() },
            members: json!([{ "provider": "github", "match": { "repository_id": ["7712"] } }]),
            session_s: 3600,
        };
        let text = role.to_text();
        let again = StoredRole::of(&text).unwrap();
        assert_eq!((&again.grants, again.quota, again.session_s), (&role.grants, role.quota, 3600));
        assert_eq!(again.membership().unwrap().members.len(), 1);
        assert!(StoredRole::of(&text.replace("propose", "fly")).is_none());
    }

    #[test]
    fn an_owner_is_an_issuer_a_subject_and_kept_claims() {
        let text = |subject: &str, claims: &str| SessionText {
            subject: subject.into(),
            claims: Claims::from_text(claims).unwrap(),
        };
        let one = text("repo:a", r#"{"environment":"prod","run":12345678901234567890123}"#);
        assert_eq!(SessionText::of(&one.to_text()), Some(one.clone()));
        let tag = one.owner("https://a.example");
        assert_eq!(tag, one.clone().owner("https://a.example"));
        for other in [
            one.owner("https://b.example"),
            text("repo:b", &one.claims.to_text()).owner("https://a.example"),
            text("repo:a", r#"{"environment":"dev"}"#).owner("https://a.example"),
        ] {
            assert_ne!(tag, other);
        }
    }
}
