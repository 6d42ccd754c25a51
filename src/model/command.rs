//! What is asked of the cluster, what the log carries, and what the log decides.
//!
//! [`Command`] (what is asked) → [`Proposal`] (what an entry holds) → [`Verdict`] (what `state` says of it).
//!
//! **Invariant:** everything that a decision rests on rides in the proposal or stands in the state: the time, the
//! author, the request id, the revision of the definition that the data was checked against. Replicated enums
//! grow only at the end; `tests/format.rs` pins their bytes.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    error::Rejection,
    key::Key,
    record::{Entries, Revision},
    time::Timestamp,
};

/// The form of a stored proposal; the first byte of each.
const FORM: u8 = 1;

/// What a write may rest on: the state of the record that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// Whatever is there.
    Any,
    /// Nothing may be there (a create).
    Absent,
    /// Something must be there (an update or a delete).
    Present,
    /// Exactly this revision must be there (`If-Match`); its absence is *not found*.
    At(Revision),
    /// Nothing may be there (`If-None-Match: *`), and a record is a failed precondition, not a conflict.
    None,
    /// Exactly what the leader read when it computed the command: a record at this revision, or none. Anything
    /// else makes the verdict [`Verdict::Stale`].
    Read(Option<Revision>),
}

/// One change that is asked for, checked and completed by the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A new definition.
    CreateDefinition {
        /// Its key.
        key: Key,
        /// Its indexed paths.
        indexes: Vec<String>,
        /// The JSON text of its schema.
        schema: Option<Arc<str>>,
    },
    /// Other indexed paths for a definition. Few configs are indexed anew in the same entry, many by the
    /// [`Command::BuildIndex`] entries behind it.
    SetIndexes {
        /// The definition.
        key: Key,
        /// All its indexed paths from now on.
        indexes: Vec<String>,
        /// What must be there.
        expect: Expect,
    },
    /// The end of a definition and of all its configs.
    DeleteDefinition {
        /// The definition.
        key: Key,
        /// What must be there.
        expect: Expect,
        /// Refuse while it has configs.
        restrict: bool,
    },
    /// A config's data, as a new config or in place of the old, as `expect` says.
    WriteConfig {
        /// The definition.
        definition: Key,
        /// The config.
        key: Key,
        /// The JSON text of the data.
        data: Arc<str>,
        /// Its index entries, by the definition that [`Proposal::definition_read`] names.
        entries: Entries,
        /// What must be there.
        expect: Expect,
    },
    /// The end of a config.
    DeleteConfig {
        /// The definition.
        definition: Key,
        /// The config.
        key: Key,
        /// What must be there.
        expect: Expect,
    },
    /// Changes up to this revision may be forgotten; the compaction revision of the history never sinks.
    Compact {
        /// The oldest revision whose state is still asked for.
        compaction_revision: Revision,
    },
    /// Another schema for a definition, or none.
    SetSchema {
        /// The definition.
        key: Key,
        /// The JSON text of its schema from now on.
        schema: Option<Arc<str>>,
        /// What must be there.
        expect: Expect,
        /// The leader has checked all its configs up to this revision; a later one makes the verdict
        /// [`Verdict::Stale`]. `None` when they may break the schema.
        configs_read: Option<Revision>,
    },
    /// Other unique paths for a definition.
    SetUnique {
        /// The definition.
        key: Key,
        /// All its unique paths from now on; each is an indexed one.
        paths: Vec<String>,
        /// What must be there.
        expect: Expect,
        /// As in [`Command::SetSchema`]; `None` when no path is unique from now on.
        configs_read: Option<Revision>,
    },
    /// The next step of the build that a change of indexed paths began; made by the leader on its own. It does
    /// nothing when the build has gone on without it or is over.
    BuildIndex {
        /// The definition.
        key: Key,
        /// Which build: the revision that began it.
        begun: Revision,
        /// Where the build stood when the step was made.
        cursor: Option<Key>,
    },
    /// Several changes as one: all of them are done, in their order, or none.
    Batch(Vec<BatchStep>),
}

/// What a step of a batch names as the revision that it read when an earlier step of the same batch wrote it: the
/// entry has no revision yet. No entry of a log gets this far.
pub const THIS_ENTRY: Revision = Revision::MAX;

/// Steps of one batch: what the ids of the definitions that one entry makes leave room for.
pub const BATCH_STEPS_MAX: usize = 1024;

/// One change of a batch, checked on the state that the steps before it make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStep {
    /// As [`Proposal::definition_read`]; [`THIS_ENTRY`] for a definition that an earlier step wrote.
    pub definition_read: Option<Revision>,
    /// The change; never a batch.
    pub command: Command,
}

/// The mark of a request that may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// A digest of credential and idempotency key: the same key of another credential is another request.
    pub id: [u8; 16],
    /// A digest of method, path, preconditions and body: the same key with another request is refused.
    pub fingerprint: [u8; 16],
}

/// What an entry of the log holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The leader's clock.
    pub at: Timestamp,
    /// Who asked: the id of the access key.
    pub by: String,
    /// Why, in the caller's words (`X-Change-Reason`).
    pub reason: Option<String>,
    /// Set when the caller may send the request again (`Idempotency-Key`).
    pub request: Option<IdempotencyKey>,
    /// The revision of the definition that the command was checked against; `None` when the command was
    /// checked against none. Another one at its turn makes the verdict [`Verdict::Stale`].
    pub definition_read: Option<Revision>,
    /// What is asked.
    pub command: Command,
}

/// What a decided write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The revision that the record has now, or that ended it.
    pub revision: Revision,
    /// When.
    pub at: Timestamp,
    /// Whether the record is new.
    pub created: bool,
}

/// The decision on a command; the same on every node, kept with its request's stamp.
pub type Outcome = Result<Applied, Rejection>;

/// What the log says of a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Decided, now or when the same request was decided before.
    Decided(Outcome),
    /// Not decided: what the leader read has changed meanwhile. It prepares again; nothing is remembered.
    Stale,
}

impl Proposal {
    /// The bytes that an entry of the log holds.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FORM]).expect("a proposal is plain data and memory grows")
    }

    /// The proposal that bytes of [`Self::to_bytes`] hold.
    ///
    /// # Errors
    /// When the bytes are of a newer form or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormError> {
        let (form, rest) = bytes.split_first().ok_or(FormError::Damaged)?;
        if *form != FORM {
            return Err(FormError::Unknown(*form));
        }
        let (proposal, rest) = postcard::take_from_bytes(rest).map_err(|_| FormError::Damaged)?;
        if rest.is_empty() { Ok(proposal) } else { Err(FormError::Damaged) }
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, definition, key) = match &self.command {
            Command::CreateDefinition { key, .. } => ("create definition", key, None),
            Command::SetIndexes { key, .. } => ("set indexes", key, None),
            Command::DeleteDefinition { key, .. } => ("delete definition", key, None),
            Command::WriteConfig { definition, key, .. } => ("write config", definition, Some(key)),
            Command::DeleteConfig { definition, key, .. } => ("delete config", definition, Some(key)),
            Command::Compact { compaction_revision } => return write!(f, "compact to {compaction_revision}"),
            Command::SetSchema { key, .. } => ("set schema", key, None),
            Command::SetUnique { key, .. } => ("set unique paths", key, None),
            Command::BuildIndex { key, .. } => ("build index", key, None),
            Command::Batch(steps) => return write!(f, "batch of {}", steps.len()),
        };
        write!(f, "{verb} `{definition}`")?;
        key.map_or(Ok(()), |key| write!(f, " `{key}`"))
    }
}

/// Bytes that are no proposal of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// Written by a newer version.
    #[error("written in form {0}, which this version does not know")]
    Unknown(u8),
    /// Not what was written.
    #[error("damaged")]
    Damaged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_comes_back_and_a_longer_or_newer_one_is_refused() {
        let proposal = Proposal {
            at: Timestamp(7),
            by: "root".into(),
            reason: None,
            request: None,
            definition_read: Some(3),
            command: Command::DeleteConfig {
                definition: Key::parse("d").unwrap(),
                key: Key::parse("k").unwrap(),
                expect: Expect::At(9),
            },
        };
        let mut bytes = proposal.to_bytes();
        assert_eq!(Proposal::from_bytes(&bytes), Ok(proposal));
        bytes.push(0);
        assert_eq!(Proposal::from_bytes(&bytes), Err(FormError::Damaged));
        bytes[0] = 9;
        assert_eq!(Proposal::from_bytes(&bytes), Err(FormError::Unknown(9)));
    }
}
