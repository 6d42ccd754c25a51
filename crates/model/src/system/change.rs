//! Change requests: operations that wait for approval and are applied as one entry.
//!
//! | record | what it holds | how long |
//! |---|---|---|
//! | [`Change`] | who wants to change what, who approved it, what became of it | for a while after it is closed |
//! | [`Content`] | the operations of the current edition | until it is closed |
//! | [`Content`] of an applied one | what the configs were before, so that it can be taken back | until it can't be any more |
//!
//! **Invariant:** the leader names an action and the log makes the record, from what the state knows of the author and of
//! their key. So no proposal can contain an approval of somebody else.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{
    environment::EnvironmentName,
    identity::{OwnerTag, ProviderId},
    pace::Pace,
    person::PersonId,
};
use crate::{
    access_key::{KeyId, clear_text::is_base62},
    command::source::Guard,
    encoding,
    key::Key,
    limits::EDITION_AGE_US_MAX,
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

    /// The name of the record that has what the configs were before an edition was applied.
    #[must_use]
    pub fn before_name(&self, edition: u32) -> Key {
        Key::parse(&format!("{}-{edition}-before", self.0)).expect("an id, dashes and a number are a key")
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
    /// A machine that has logged in: a CI job, a pod. Since level 3.
    Machine(Box<Machine>),
}

/// A machine that has done something. Its session may have ended since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its session.
    pub session: KeyId,
    /// The revision that opened the session.
    pub opened: Revision,
    /// The provider whose token has opened it.
    pub provider: ProviderId,
    /// Who it is.
    pub owner: OwnerTag,
    /// What history and audit call it.
    pub name: String,
}

impl Party {
    /// Its person.
    #[must_use]
    pub fn person(&self) -> Option<PersonId> {
        match self {
            Self::Root | Self::Machine(_) => None,
            Self::Key { person, .. } => *person,
        }
    }

    /// Whether both may be one human: they have the same key or the same person, or are the same machine. Who is behind a
    /// machine nobody knows; a change request of one needs one approval more ([`Change::approvals_needed`]).
    #[must_use]
    pub fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Root, Self::Root) => true,
            (Self::Key { id, person }, Self::Key { id: other, person: others }) => {
                id == other || (person.is_some() && person == others)
            }
            (Self::Machine(machine), Self::Machine(other)) => machine.owner == other.owner,
            (Self::Root | Self::Key { .. } | Self::Machine(_), _) => false,
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

/// Who applies an edition once it is approved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyMode {
    /// A person, who may do it at once or leave it to the cluster for a time.
    #[default]
    Manual,
    /// The cluster, as soon as it may.
    WhenApproved,
}

/// When an edition may be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Not before this time.
    pub not_before: Timestamp,
    /// Not at this time or later.
    pub not_after: Timestamp,
}

impl Window {
    /// Whether a change that takes this time, from its first to its last moment, lies in it.
    #[must_use]
    pub fn has(&self, first: Timestamp, last: Timestamp) -> bool {
        self.not_before <= first && last < self.not_after
    }
}

/// When an edition is applied and taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// By whom it is applied.
    pub apply: ApplyMode,
    /// When it may be applied; `None` for at any time.
    pub window: Option<Window>,
    /// The cluster takes it back so many seconds after it was applied.
    pub revert_after_s: Option<u32>,
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
    /// The bytes that it takes, about: its content, its part of the record, and what the cluster will need to take it back.
    /// 0 for a bypass, which has no content.
    pub content_bytes: u64,
    /// When it is applied and taken back.
    pub timing: Timing,
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

/// Why the cluster could not do what a change request asks of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In a word.
    pub code: String,
    /// For a person.
    pub text: String,
}

/// Why a change request ended without having been applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseReason {
    /// An author or an approver took it back.
    Withdrawn,
    /// Its edition became too old.
    Expired,
    /// A restored cluster has no content of its edition.
    Restored,
    /// The cluster could not apply it.
    Failed(Failure),
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
        /// Who applied it; `None` when the cluster did.
        by: Option<Party>,
        /// By what right.
        with: AppliedWith,
        /// Who left it to the cluster to apply it in its window.
        scheduled_by: Option<Party>,
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
    /// The cluster applies it in its window.
    Scheduled {
        /// Who has left it to the cluster.
        by: Party,
        /// When they did.
        at: Timestamp,
    },
    /// It is released in stages (`rollout.rs`), and applied after the last one. Since level 2.
    Rolling {
        /// Who has begun it; `None` when the cluster did.
        by: Option<Party>,
        /// When.
        at: Timestamp,
        /// Who left it to the cluster to begin it in its window.
        scheduled_by: Option<Party>,
        /// How it goes on.
        pace: Pace,
    },
}

/// Who has taken a change request back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevertedBy {
    /// The cluster, at the time that the edition names.
    Cluster,
    /// A person whose approval counted.
    Approver(Party),
    /// Somebody who passed the rules.
    Bypass {
        /// Who.
        by: Party,
        /// Whether their key was attested then.
        is_attested: bool,
    },
}

/// What becomes of a change request after it was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Revert {
    /// A person may take it back.
    ByHand {
        /// Before this time.
        until: Timestamp,
        /// The bytes of what the configs were before.
        bytes: u64,
    },
    /// The cluster takes it back. Until then a person may.
    Armed {
        /// At this time, or later.
        due: Timestamp,
        /// The bytes of what the configs were before.
        bytes: u64,
    },
    /// A restore or a recovery was in between: only a person takes it back.
    Held {
        /// When the cluster would have done it.
        due: Timestamp,
        /// The bytes of what the configs were before.
        bytes: u64,
    },
    /// It was taken back.
    Done {
        /// The revision of all of its records.
        revision: Revision,
        /// When.
        at: Timestamp,
        /// Who did it.
        by: RevertedBy,
    },
    /// The cluster could not take it back.
    Failed {
        /// When it found out.
        at: Timestamp,
        /// Why.
        failure: Failure,
    },
    /// A person whose approval counted has decided that what it changed stays.
    Ended {
        /// When.
        at: Timestamp,
        /// Who.
        by: Party,
        /// Why.
        comment: String,
    },
}

impl Revert {
    /// Whether it may still be taken back: what the configs were before is stored.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.bytes().is_some()
    }

    /// The bytes of what the configs were before, while that is stored.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::ByHand { bytes, .. } | Self::Armed { bytes, .. } | Self::Held { bytes, .. } => Some(*bytes),
            Self::Done { .. } | Self::Failed { .. } | Self::Ended { .. } => None,
        }
    }

    /// When the cluster takes it back, or would have.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        match self {
            Self::Armed { due, .. } | Self::Held { due, .. } => Some(*due),
            Self::ByHand { .. } | Self::Done { .. } | Self::Failed { .. } | Self::Ended { .. } => None,
        }
    }
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
    /// What becomes of it after it was applied; `None` for one that can't be taken back, or no longer.
    pub revert: Option<Revert>,
    /// The fingerprint of the request that created it, if that had an idempotency key.
    pub fingerprint: Option<[u8; 16]>,
}

/// What an edition does when it is applied, or what takes it back. The operations of an edition are the text of its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its bases: what the records were, that it replaces. All must be the same when it is applied, or taken back.
    pub bases: Vec<Guard>,
    /// The random key of its digest. It is never shown.
    pub digest_key: [u8; 32],
    /// What takes it back: for each base, which then is a config after the change, what that was before; `None` for one
    /// that was not there. Empty before it is applied.
    pub before: Vec<Option<DataBefore>>,
}

/// A config before a change request was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataBefore {
    /// The JSON text of its data.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub data: Arc<str>,
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
    /// [`Edition::timing`].
    pub timing: Timing,
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
            Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } | Phase::Held => true,
            Phase::Applied { .. } | Phase::Closed { .. } => false,
        }
    }

    /// Whether it is being released in stages.
    #[must_use]
    pub fn is_rolling(&self) -> bool {
        matches!(self.phase, Phase::Rolling { .. })
    }

    /// When it expires, while it is pending: its edition is too old, or its window is over. A rollout that has begun doesn't.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        let too_old = Timestamp(self.edition.sent_at.0.saturating_add(EDITION_AGE_US_MAX));
        let over = self.edition.timing.window.map_or(too_old, |window| window.not_after);
        let may_expire = self.is_pending() && !self.is_rolling();
        may_expire.then(|| too_old.min(over))
    }

    /// The name of the record that has its content, while there is one.
    #[must_use]
    pub fn content_name(&self, id: &ChangeId) -> Option<Key> {
        if self.is_pending() {
            return Some(id.content_name(self.edition.number));
        }
        let is_possible = self.revert.as_ref().is_some_and(Revert::is_possible);
        is_possible.then(|| id.before_name(self.edition.number))
    }

    /// What the cluster could not do, and when it found out.
    #[must_use]
    pub fn failure(&self) -> Option<(Timestamp, &Failure)> {
        match (&self.phase, &self.revert) {
            (Phase::Closed { reason: CloseReason::Failed(failure), at, .. }, _) => Some((*at, failure)),
            (_, Some(Revert::Failed { at, failure })) => Some((*at, failure)),
            _ => None,
        }
    }

    /// Who passed the rules, with or to take back a change request: others review it. Whether their key was attested.
    #[must_use]
    pub fn bypassed_by(&self) -> Option<(&Party, bool)> {
        if self.is_bypass() {
            return Some((&self.edition.sender, self.edition.is_attested));
        }
        match &self.revert {
            Some(Revert::Done { by: RevertedBy::Bypass { by, is_attested }, .. }) => Some((by, *is_attested)),
            _ => None,
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

    /// How many persons must still review it: a bypass, or one that was taken back by a bypass.
    #[must_use]
    pub fn reviews_missing(&self) -> u8 {
        let Some((_, is_attested)) = self.bypassed_by() else { return 0 };
        let needed: u8 = if is_attested { 1 } else { 2 };
        let given = self.current_votes().filter(|vote| vote.opinion == Opinion::Review).count();
        needed - u8::try_from(given).unwrap_or(needed).min(needed)
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
            Phase::Rolling { pace, .. } => pace.bytes(),
            Phase::Open | Phase::Scheduled { .. } | Phase::Held | Phase::Applied { .. } => 0,
        };
        let failure = self.failure().map_or(0, |(_, failure)| failure.code.len() + failure.text.len());
        let kept = if let Some(Revert::Ended { comment, .. }) = &self.revert { comment.len() } else { 0 };
        scope
            + votes
            + comment
            + kept
            + failure
            + size_of_val(&self.votes[..])
            + size_of_val(&self.authors[..])
    }

    /// When the last of it ended: it was closed, applied, or taken back, or the cluster could not take it back.
    #[must_use]
    pub fn last_ended_at(&self) -> Option<Timestamp> {
        let reverted_at = match &self.revert {
            Some(Revert::Done { at, .. } | Revert::Failed { at, .. } | Revert::Ended { at, .. }) => Some(*at),
            Some(Revert::ByHand { .. } | Revert::Armed { .. } | Revert::Held { .. }) | None => None,
        };
        self.ended_at().max(reverted_at)
    }

    /// When it was closed or applied; `None` while it is pending.
    #[must_use]
    pub fn ended_at(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } | Phase::Held => None,
            Phase::Applied { at, .. } | Phase::Closed { at, .. } => Some(*at),
        }
    }
}

impl Content {
    /// The content of an edition that is not applied.
    #[must_use]
    pub fn new(bases: Vec<Guard>, digest_key: [u8; 32]) -> Self {
        Self { bases, digest_key, before: Vec::new() }
    }

    /// The bytes of its lists in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let data = self.before.iter().flatten().map(|before| before.data.len()).sum::<usize>();
        data + size_of_val(&self.bases[..]) + size_of_val(&self.before[..])
    }
}
