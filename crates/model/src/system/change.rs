//! Change requests: operations that wait for approval and are applied as one entry.
//!
//! | record | what it holds | how long |
//! |---|---|---|
//! | [`Change`] | who wants to change what, who approved it, what became of it | for a while after it is closed |
//! | [`Content`] | the operations of the current edition | until it is closed |
//!
//! **Invariant:** the leader names an action and the log makes the record, from what the state knows of the author and of
//! their key. So no proposal can contain an approval of somebody else.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{environment::EnvironmentName, person::PersonId};
use crate::{
    access_key::{KeyId, clear_text::is_base62},
    command::source::Guard,
    encoding,
    key::Key,
    record::Revision,
    time::Timestamp,
};

/// Characters of a change request's id: as many as of an access key's, so that no two of a cluster have the same.
pub const ID_CHARS: usize = 12;

/// What an approval names: an HMAC of everything that the edition will change, which the leader computes.
pub type ChangeDigest = [u8; 32];

/// The id of a change request: [`ID_CHARS`] letters and digits. It is no secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeId(Key);

impl ChangeId {
    /// Parses an id; `None` when the text is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == ID_CHARS && is_base62(text);
        Key::parse(text).ok().filter(|_| is_id).map(Self)
    }

    /// The id as the name of its record.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0
    }

    /// The id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The name of the record that has the operations of an edition.
    #[must_use]
    pub fn content_name(&self, edition: u32) -> Key {
        Key::parse(&format!("{}-{edition}", self.0)).expect("an id, a dash and digits are a key")
    }
}

impl Serialize for ChangeId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for ChangeId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let key = Key::deserialize(from)?;
        Self::parse(key.as_str()).ok_or_else(|| de::Error::custom("invalid id of a change request"))
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Who did something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Party {
    /// The holder of the root key.
    Root,
    /// The holder of an access key.
    Key {
        /// The key.
        id: KeyId,
        /// The key's person.
        person: Option<PersonId>,
    },
}

impl Party {
    /// Its person.
    #[must_use]
    pub fn person(&self) -> Option<PersonId> {
        match self {
            Self::Root => None,
            Self::Key { person, .. } => *person,
        }
    }

    /// Whether both may be one human: they have the same key or the same person.
    #[must_use]
    pub fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Root, Self::Root) => true,
            (Self::Key { id, person }, Self::Key { id: other, person: others }) => {
                id == other || (person.is_some() && person == others)
            }
            (Self::Root, Self::Key { .. }) | (Self::Key { .. }, Self::Root) => false,
        }
    }
}

/// What a change request changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// These definitions or their configs; ascending, each once.
    Definitions(Vec<Key>),
    /// The rules of this environment, and nothing else.
    Environment(EnvironmentName),
}

/// One version of a change request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edition {
    /// Its number, from 1.
    pub number: u32,
    /// What an approval names.
    pub digest: ChangeDigest,
    /// What it changes.
    pub scope: Scope,
    /// Who sent it.
    pub sender: Party,
    /// Whether the key of the sender was attested when they sent it.
    pub is_attested: bool,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// The bytes that it takes, about: its content, and its part of the record. 0 for a bypass, which has no content.
    pub content_bytes: u64,
}

/// What somebody says of an edition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opinion {
    /// It may be applied.
    Approval,
    /// It must not be applied.
    Rejection,
    /// The bypass was right.
    Review,
}

/// An approval, rejection or review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// What it says.
    pub opinion: Opinion,
    /// Of which edition.
    pub edition: u32,
    /// The digest that it names.
    pub digest: ChangeDigest,
    /// Who gave it.
    pub by: Party,
    /// Which attestation their key had: it counts only while the key has the same.
    pub attestation: Revision,
    /// Whether they saw the data without its secret values.
    pub is_redacted: bool,
    /// What they wrote.
    pub comment: String,
    /// When.
    pub at: Timestamp,
}

/// Why a change request ended without having been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseReason {
    /// An author or an approver took it back.
    Withdrawn,
    /// Its edition became too old.
    Expired,
    /// A restored cluster has no content of its edition.
    Restored,
}

/// How a change request was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppliedWith {
    /// The approvals of these, which counted.
    Approvals(Vec<Party>),
    /// A bypass of the rules.
    Bypass,
}

/// What has become of a change request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It waits for approval, or to be applied.
    Open,
    /// A restore or a recovery has voided its approvals: it needs a new edition.
    Held,
    /// It was applied.
    Applied {
        /// The revision of all of its records.
        revision: Revision,
        /// When.
        at: Timestamp,
        /// Who applied it.
        by: Party,
        /// By what right.
        with: AppliedWith,
    },
    /// It ended otherwise.
    Closed {
        /// Why.
        reason: CloseReason,
        /// When.
        at: Timestamp,
        /// Who closed it; `None` when the cluster did.
        by: Option<Party>,
        /// What they wrote.
        comment: String,
    },
}

/// A change request. Its title and description are the text of its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The current edition.
    pub edition: Edition,
    /// The senders of all editions, each once.
    pub authors: Vec<Party>,
    /// What was said of the current edition, at most once by each; rejections of earlier editions before them.
    pub votes: Vec<Vote>,
    /// What has become of it.
    pub phase: Phase,
    /// The fingerprint of the request that created it, if that had an idempotency key.
    pub fingerprint: Option<[u8; 16]>,
}

/// The operations of an edition. They are the text of its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its bases: what the records were, that it replaces. All must be the same when it is applied.
    pub bases: Vec<Guard>,
    /// The random key of its digest. It is never shown.
    pub digest_key: [u8; 32],
}

/// An edition as its sender sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewEdition {
    /// [`Edition::digest`].
    pub digest: ChangeDigest,
    /// [`Edition::scope`].
    pub scope: Scope,
    /// The JSON text of title and description.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub text: Arc<str>,
    /// The JSON text of the operations.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub operations: Arc<str>,
    /// Everything else of the content.
    pub content: Content,
}

/// A vote as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVote {
    /// [`Vote::opinion`].
    pub opinion: Opinion,
    /// [`Vote::edition`].
    pub edition: u32,
    /// [`Vote::digest`].
    pub digest: ChangeDigest,
    /// [`Vote::is_redacted`].
    pub is_redacted: bool,
    /// [`Vote::comment`].
    pub comment: String,
}

impl Change {
    /// Whether it can still be applied, now or after a new edition.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        match self.phase {
            Phase::Open | Phase::Held => true,
            Phase::Applied { .. } | Phase::Closed { .. } => false,
        }
    }

    /// Whether somebody may be an author of it.
    #[must_use]
    pub fn is_author(&self, party: &Party) -> bool {
        self.authors.iter().any(|author| author.may_be(party))
    }

    /// What was said of the current edition.
    pub fn current_votes(&self) -> impl Iterator<Item = &Vote> {
        let Edition { number, digest, .. } = &self.edition;
        self.votes.iter().filter(move |vote| vote.edition == *number && vote.digest == *digest)
    }

    /// How many persons must approve it where an environment asks for so many: one more if the key of the sender was not
    /// attested, because the human behind it may have an attested key as well.
    #[must_use]
    pub fn approvals_needed(&self, asked: u8) -> u8 {
        if asked > 0 && !self.edition.is_attested { asked.saturating_add(1) } else { asked }
    }

    /// Whether it is a bypass.
    #[must_use]
    pub fn is_bypass(&self) -> bool {
        matches!(self.phase, Phase::Applied { with: AppliedWith::Bypass, .. })
    }

    /// How many persons must still review a bypass; 0 for any other change request.
    #[must_use]
    pub fn reviews_missing(&self) -> u8 {
        let needed = if self.edition.is_attested { 1 } else { 2 };
        let given = self.current_votes().filter(|vote| vote.opinion == Opinion::Review).count();
        if self.is_bypass() { needed - u8::try_from(given).unwrap_or(needed).min(needed) } else { 0 }
    }

    /// The bytes of its texts and lists in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let scope = match &self.edition.scope {
            Scope::Definitions(definitions) => definitions.iter().map(|key| key.as_str().len()).sum(),
            Scope::Environment(name) => name.as_str().len(),
        };
        let votes: usize = self.votes.iter().map(|vote| vote.comment.len()).sum();
        let comment = match &self.phase {
            Phase::Closed { comment, .. } => comment.len(),
            Phase::Open | Phase::Held | Phase::Applied { .. } => 0,
        };
        scope + votes + comment + size_of_val(&self.votes[..]) + size_of_val(&self.authors[..])
    }

    /// When it ended; `None` while it is pending.
    #[must_use]
    pub fn ended_at(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Open | Phase::Held => None,
            Phase::Applied { at, .. } | Phase::Closed { at, .. } => Some(*at),
        }
    }
}

impl Content {
    /// The bytes of its lists in memory, about.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.bases[..])
    }
}
