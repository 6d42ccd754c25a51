//! Access keys: their permissions, their expiry, and their text.
//!
//! | to find | look in |
//! |---|---|
//! | verbs, patterns, what a key is granted and what it may grant | [`grants`] |
//! | the text of a key that its owner holds | [`clear_text`] |
//! | lists of keys | [`list`] |
//!
//! This file has the key as it is stored. Only its id and the SHA-256 of its texts are stored, sent or logged; the text
//! itself exists only where it is made, and with its owner.
//!
//! **Invariants:** an id is never used for another key. A key's `revision` changes with everything that decides whether
//! a request in its name is allowed: its grants, its expiry, its secrets. So code that has authorized a request by a
//! key can name the revision, and a different revision means that it must authorize the request again.

pub mod clear_text;
pub mod grants;
pub mod list;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

use super::{
    feature::{IDENTITY, LEVEL_MIN},
    record::Revision,
    system::person::PersonId,
    time::Timestamp,
};
use clear_text::is_base62;
pub use grants::{Grant, Grants, Pattern, Verb, Verbs};

/// Characters of a key's id: 71 random bits, so that no two keys of a cluster ever have the same.
pub const ID_CHARS: usize = 12;
/// Microseconds of a day.
const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;

/// The id of an access key: [`ID_CHARS`] letters and digits. It is no secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(SmolStr);

impl KeyId {
    /// Parses an id; `None` when the text is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == ID_CHARS && is_base62(text)).then(|| Self(text.into()))
    }

    /// The id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("invalid access key id"))
    }
}

/// What a key's owner may use of the cluster; `None` is no limit of the key's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Requests a second.
    pub requests_per_second: Option<u64>,
    /// Writes a second.
    pub writes_per_second: Option<u64>,
    /// Bytes of the keys and data of configs, in all definitions that the key may change.
    pub bytes: Option<u64>,
    /// Definitions and configs, of those definitions.
    pub records: Option<u64>,
    /// Open watches.
    pub watches: Option<u64>,
    /// Cursors of lists.
    pub cursors: Option<u64>,
    /// Lists that are computed at once.
    pub lists: Option<u64>,
}

impl Quota {
    /// Whether another one allows nothing that this one does not.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let members = |quota: &Self| {
            [
                quota.requests_per_second,
                quota.writes_per_second,
                quota.bytes,
                quota.records,
                quota.watches,
                quota.cursors,
                quota.lists,
            ]
        };
        let is_within = |(own, other): (Option<u64>, Option<u64>)| {
            own.is_none_or(|own| other.is_some_and(|other| other <= own))
        };
        members(self).into_iter().zip(members(other)).all(is_within)
    }
}

/// A text by which the key's owner is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySecret {
    /// The SHA-256 of the text.
    pub sha256: [u8; 32],
    /// The revision that made it: tells the secrets of a key apart.
    pub made: Revision,
    /// The time from which on it is not accepted; `None` for the newest one.
    pub until: Option<Timestamp>,
    /// Whether the root key or the key itself made it: no holder of another key has ever had it.
    pub is_own: bool,
}

/// The confirmation that the person of a key, and nobody else, holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attestation {
    /// The revision that completed it: tells the attestations of a key apart.
    pub at: Revision,
    /// Who gave it.
    pub by: AttestedBy,
}

/// Who has attested a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttestedBy {
    /// The root key.
    Root,
    /// Two persons, neither of them the key's own.
    Persons([Attester; 2]),
}

impl AttestedBy {
    /// The persons; none for the root key.
    #[must_use]
    pub fn persons(&self) -> &[Attester] {
        match self {
            Self::Root => &[],
            Self::Persons(attesters) => attesters,
        }
    }
}

/// A person who has attested a key, and the key with which they did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attester {
    /// Their key, attested as well. It may be gone since.
    pub key: KeyId,
    /// The person.
    pub person: PersonId,
}

/// The confirmation by the first of two persons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HalfAttestation {
    /// Its revision.
    pub at: Revision,
    /// Who gave it.
    pub by: Attester,
}

/// An access key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// Its id.
    pub id: KeyId,
    /// What its owner calls it; several keys may have one name.
    pub name: String,
    /// What it may do.
    pub grants: Grants,
    /// How much of it.
    pub quota: Quota,
    /// The time from which on it is not accepted.
    pub expires_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// The id of the key that created it.
    pub created_by: String,
    /// When it was last changed or rotated.
    pub modified_at: Timestamp,
    /// The revision of its last change or rotation: of its terms and secrets, which is what an attestation names.
    pub revision: Revision,
    /// The texts that are accepted, newest last; at most [`SECRETS_MAX`].
    pub secrets: Vec<KeySecret>,
    /// The last day on which it was used, counted from 1970-01-01.
    pub last_used_day: Option<u64>,
    /// The person who holds it; set when it is created, and never changed. `None` for the key of a machine.
    pub person: Option<PersonId>,
    /// Set while the key is attested. Neither this nor the next member changes [`Self::revision`], because two persons
    /// must be able to attest the same revision.
    pub attestation: Option<Attestation>,
    /// The first of the two persons who must attest it. It counts for this revision of the key.
    pub half_attested: Option<HalfAttestation>,
}

/// Secrets of a key that are valid at the same time: the newest, and the previous one during its grace period.
pub const SECRETS_MAX: usize = 2;

impl AccessKey {
    /// Whether the key is accepted at this time.
    #[must_use]
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }

    /// The secret that this revision made, if it is accepted at this time.
    #[must_use]
    pub fn secret_at(&self, made: Revision, now: Timestamp) -> Option<&KeySecret> {
        let secret = self.secrets.iter().find(|secret| secret.made == made)?;
        secret.until.is_none_or(|end| now < end).then_some(secret)
    }

    /// Whether the secret that this revision made is the newest one.
    #[must_use]
    pub fn is_newest_secret(&self, made: Revision) -> bool {
        self.secrets.last().is_some_and(|newest| newest.made == made)
    }

    /// Whether no holder of another key has a secret that is accepted at this time.
    #[must_use]
    pub fn has_only_own_secrets(&self, now: Timestamp) -> bool {
        self.secrets.iter().all(|secret| secret.is_own || secret.until.is_some_and(|end| end <= now))
    }

    /// The revision of the last of its changes, rotations and attestations: its `ETag`.
    #[must_use]
    pub fn tag(&self) -> Revision {
        let attested = self.attestation.as_ref().map(|attestation| attestation.at);
        let half = self.half_attested.as_ref().map(|half| half.at);
        self.revision.max(attested.max(half).unwrap_or_default())
    }

    /// All persons that it names.
    pub fn persons(&self) -> impl Iterator<Item = PersonId> {
        let attesters = self.attestation.iter().flat_map(|attestation| attestation.by.persons());
        let half = self.half_attested.iter().map(|half| &half.by);
        self.person.into_iter().chain(attesters.chain(half).map(|attester| attester.person))
    }

    /// Whether it depends on the time what the key is accepted for.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.expires_at.is_some() || self.secrets.iter().any(|secret| secret.until.is_some())
    }
}

/// The day of a time, counted from 1970-01-01.
#[must_use]
pub fn day_of(at: Timestamp) -> u64 {
    at.0 / DAY_US
}

/// The first moment of a day.
#[must_use]
pub fn start_of_day(day: u64) -> Timestamp {
    Timestamp(day.saturating_mul(DAY_US))
}

/// In whose name a proposal is made. Replicated: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Author {
    /// The root key.
    Root,
    /// An access key.
    Key(KeyUse),
    /// The cluster itself. It may propose only what
    /// [`is_of_the_cluster`](super::command::Command::is_of_the_cluster).
    Cluster,
    /// A session. Since level 3.
    Session(SessionUse),
}

impl Author {
    /// The feature level that a node must know to apply what it proposes.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        match self {
            Self::Root | Self::Key(_) | Self::Cluster => LEVEL_MIN,
            Self::Session(_) => IDENTITY,
        }
    }
}

/// A session as it was when the request was evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUse {
    /// The session.
    pub id: KeyId,
    /// The revision of the policy that its permissions were computed by.
    pub policy: Revision,
}

/// An access key as it was when the request was evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyUse {
    /// The key.
    pub id: KeyId,
    /// [`AccessKey::revision`] of the key that allowed the request.
    pub revision: Revision,
    /// [`KeySecret::made`] of the secret that the request brought.
    pub secret: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    #[test]
    fn an_id_has_its_length_and_alphabet() {
        assert_eq!(KeyId::parse("0123456789aZ").unwrap().as_str(), "0123456789aZ");
        for wrong in ["", "root", "0123456789a", "0123456789aZZ", "0123456789a.", "0123456789ä"] {
            assert_eq!(KeyId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_and_its_secrets_end_at_their_times() {
        let mut key = key(3);
        assert!(!key.has_end() && key.is_valid_at(Timestamp(u64::MAX)));
        assert!(key.secret_at(3, Timestamp(u64::MAX)).is_some() && key.secret_at(4, Timestamp(0)).is_none());
        key.secrets[0].until = Some(Timestamp(10));
        assert!(key.has_end());
        assert_eq!(
            (9..=10).map(|at| key.secret_at(3, Timestamp(at)).is_some()).collect::<Vec<_>>(),
            [true, false]
        );
        key.expires_at = Some(Timestamp(5));
        assert_eq!((4..=5).map(|at| key.is_valid_at(Timestamp(at))).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn days_begin_at_midnight() {
        let (first, last) = (start_of_day(3), Timestamp(start_of_day(4).0 - 1));
        assert_eq!((day_of(first), day_of(last), day_of(Timestamp(0))), (3, 3, 0));
    }
}
