//! Identity: whom the cluster trusts to say who somebody is, what that gives, and who has logged in.
//!
//! | record | its text | in the history |
//! |---|---|---|
//! | [`Provider`] | the document as it was written | yes |
//! | a role | the document as it was written | yes |
//! | [`KeySet`] | the public keys of a provider, as a JWKS | no |
//! | [`Session`] | who has logged in, and what is kept of their claims | no |
//! | the policy | empty: its revision is that of the newest change of a provider or role | yes |
//!
//! What somebody may do follows from the kept claims and the roles. The service computes it, and a proposal names the
//! revision of the policy that it was computed by. So the log compares numbers, and never reads a claim.
//!
//! **Invariant:** the text of a session is stored nowhere, only its SHA-256.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{key::Key, record::Revision, time::Timestamp};

/// The name of the record of the policy. There is one.
pub const POLICY: &str = "policy";

/// The id of a provider: the revision, and the step of the entry, that made it. No other one ever has it, also not one of
/// the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProviderId(pub u64);

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who has a session, as a number that the service computes: two sessions of one owner have the same one, and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnerTag(pub [u8; 16]);

/// A provider, as the log decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// Its id.
    pub id: ProviderId,
    /// Sessions that were opened at this revision or earlier have ended: since then the provider trusts others, or somebody
    /// has ended all of its sessions.
    pub trusted_since: Revision,
    /// Tokens that were issued before this time open no session: somebody has ended all sessions, and a token outlives the
    /// session that it has opened.
    pub tokens_since: Timestamp,
}

/// A session, as the log decides by it. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The SHA-256 of its text.
    pub sha256: [u8; 32],
    /// The provider whose token has opened it.
    pub provider: ProviderId,
    /// Who has it.
    pub owner: OwnerTag,
    /// What history and audit call the owner: the names of provider and subject, with a `/` between them.
    pub name: String,
    /// The time from which on it is not accepted.
    pub expires_at: Timestamp,
}

/// The public keys of a provider, as the log decides by them. The name of the record is that of the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySet {
    /// The provider.
    pub provider: ProviderId,
    /// When the provider has last given exactly these keys.
    pub confirmed_at: Timestamp,
}

/// The key of the policy's record.
#[must_use]
pub fn policy_name() -> Key {
    Key::parse(POLICY).expect("letters are a key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_has_a_name() {
        assert_eq!(policy_name().as_str(), POLICY);
    }
}
