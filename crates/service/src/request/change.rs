//! Change requests as clients send them and as nodes forward them.
//!
//! The receiving node draws what must be random: the id of a new change request, and the key of the digest of an edition.
//! So the leader prepares the same request twice with the same result.

use std::{collections::BTreeSet, ops::RangeInclusive};

use serde::{Deserialize, Serialize};

use super::{
    environment::EnvironmentWrite,
    write::{Write, decode_operations},
};
use concord_model::{
    command::{Command, source::Guard},
    error::{Invalid, Violation},
    feature::{LEVEL_MIN, ROLLOUTS},
    system::{
        change::{ChangeDigest, ChangeId, Timing},
        rollout::Plan,
    },
    unseen::is_unseen,
};

/// A request about a change request. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ChangeWrite {
    /// Creates one.
    Create {
        /// Its id, which the receiving node has drawn or made of the idempotency key.
        id: String,
        /// Its first edition.
        edition: NewEdition,
    },
    /// Replaces what it proposes.
    Edit {
        /// Its id.
        id: String,
        /// The new edition.
        edition: NewEdition,
        /// The revision that its record must have; `None` for any.
        if_match: Option<u64>,
    },
    /// Makes an edition of the same operations on the current records.
    Rebase {
        /// Its id.
        id: String,
        /// The key of the digest.
        seal: [u8; 32],
        /// The revision that its record must have; `None` for any.
        if_match: Option<u64>,
    },
    /// Approves or rejects an edition, or reviews a bypass.
    Judge {
        /// Its id.
        id: String,
        /// What the person says.
        judgement: ChangeJudgement,
        /// The digest of what the person was shown.
        digest: [u8; 32],
        /// The person's words; empty for none.
        comment: String,
    },
    /// Applies the edition. Before its window a client leaves it to the cluster thereby.
    Apply {
        /// Its id.
        id: String,
        /// The digest of what the person was shown.
        digest: [u8; 32],
    },
    /// Closes it.
    Withdraw {
        /// Its id.
        id: String,
        /// The person's words; empty for none.
        comment: String,
    },
    /// Takes back what it has changed.
    Revert {
        /// Its id.
        id: String,
        /// The digest of what was applied.
        digest: [u8; 32],
    },
    /// Keeps what it has changed: the cluster takes it back no more.
    Keep {
        /// Its id.
        id: String,
        /// The digest of what was applied.
        digest: [u8; 32],
        /// The person's words; empty for none.
        comment: String,
    },
    /// Creates one that is released in stages. At feature level 2, as all that follows.
    CreateStaged {
        /// As of [`Self::Create`].
        id: String,
        /// Its first edition.
        edition: NewEdition,
        /// How it is released.
        plan: Plan,
    },
    /// Replaces what it proposes by what is released in stages.
    EditStaged {
        /// Its id.
        id: String,
        /// The new edition.
        edition: NewEdition,
        /// How it is released.
        plan: Plan,
        /// The revision that its record must have; `None` for any.
        if_match: Option<u64>,
    },
    /// Lets its rollout wait, go on, or end.
    Steer {
        /// Its id.
        id: String,
        /// What.
        steer: RolloutSteer,
        /// The stage at which it must be, from 0; `None` for any.
        stage: Option<u32>,
        /// The person's words; empty for none.
        comment: String,
    },
}

/// What a person does with a rollout. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RolloutSteer {
    /// It waits for somebody.
    Pause,
    /// It goes on: the time of its stage begins again.
    Resume,
    /// Its stage ends now.
    Advance,
    /// It ends, and nobody sees its candidates any more.
    Abort,
}

/// What a person says of a change request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeJudgement {
    /// The edition may be applied.
    Approve,
    /// The edition may not be applied.
    Reject,
    /// The bypass was looked at.
    Review,
}

/// What a change request proposes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewEdition {
    /// What it is, in a line.
    pub title: String,
    /// Why; empty for nothing.
    pub description: String,
    /// What it does.
    pub operations: ProposedOperations,
    /// When it is applied, and taken back.
    pub timing: Timing,
    /// The key of the digest, which nobody is shown.
    pub seal: [u8; 32],
}

/// The operations of a change request. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ProposedOperations {
    /// Changes of definitions and configs.
    Records(#[serde(deserialize_with = "decode_operations")] Vec<Write>),
    /// The undoing of a deletion, as of that deletion.
    Undelete {
        /// The definition.
        key: String,
    },
    /// A change of an environment.
    Environment(EnvironmentWrite),
}

impl ProposedOperations {
    /// The keys of the definitions that it changes, each once.
    pub(crate) fn definitions(&self) -> BTreeSet<&str> {
        match self {
            Self::Records(operations) => operations.iter().map(Write::definition).collect(),
            Self::Undelete { key } => [key.as_str()].into(),
            Self::Environment(_) => BTreeSet::new(),
        }
    }

    /// How many they are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Records(operations) => operations.len(),
            Self::Undelete { .. } | Self::Environment(_) => 1,
        }
    }
}

impl ChangeWrite {
    /// The id of the change request.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Create { id, .. }
            | Self::Edit { id, .. }
            | Self::Rebase { id, .. }
            | Self::Judge { id, .. }
            | Self::Apply { id, .. }
            | Self::Withdraw { id, .. }
            | Self::Revert { id, .. }
            | Self::Keep { id, .. }
            | Self::CreateStaged { id, .. }
            | Self::EditStaged { id, .. }
            | Self::Steer { id, .. } => id,
        }
    }

    /// The edition that it brings.
    pub(crate) fn edition(&self) -> Option<&NewEdition> {
        match self {
            Self::Create { edition, .. }
            | Self::Edit { edition, .. }
            | Self::CreateStaged { edition, .. }
            | Self::EditStaged { edition, .. } => Some(edition),
            Self::Rebase { .. }
            | Self::Judge { .. }
            | Self::Apply { .. }
            | Self::Withdraw { .. }
            | Self::Revert { .. }
            | Self::Keep { .. }
            | Self::Steer { .. } => None,
        }
    }

    /// The plan of the edition that it brings.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        if let Self::CreateStaged { plan, .. } | Self::EditStaged { plan, .. } = self {
            Some(plan)
        } else {
            None
        }
    }

    /// The feature level that the leader must have to know it.
    pub(crate) fn feature_level(&self) -> u32 {
        let is_of_rollouts = self.plan().is_some() || matches!(self, Self::Steer { .. });
        if is_of_rollouts { ROLLOUTS } else { LEVEL_MIN }
    }

    /// The changes of records in it.
    pub(crate) fn records_mut(&mut self) -> &mut [Write] {
        match self {
            Self::Create { edition, .. }
            | Self::Edit { edition, .. }
            | Self::CreateStaged { edition, .. }
            | Self::EditStaged { edition, .. } => match &mut edition.operations {
                ProposedOperations::Records(operations) => operations,
                ProposedOperations::Undelete { .. } | ProposedOperations::Environment(_) => &mut [],
            },
            Self::Rebase { .. }
            | Self::Judge { .. }
            | Self::Apply { .. }
            | Self::Withdraw { .. }
            | Self::Revert { .. }
            | Self::Keep { .. }
            | Self::Steer { .. } => &mut [],
        }
    }

    /// Whether it is decided as the write of other operations: those that it applies, or what takes them back.
    pub(crate) fn is_of_records(&self) -> bool {
        matches!(self, Self::Apply { .. } | Self::Revert { .. })
    }

    /// Whether it ends a change request or its rollout, or lets the rollout wait.
    pub(crate) fn is_stop(&self) -> bool {
        let is_stop = |steer: RolloutSteer| matches!(steer, RolloutSteer::Pause | RolloutSteer::Abort);
        matches!(self, Self::Withdraw { .. }) || matches!(self, Self::Steer { steer, .. } if is_stop(*steer))
    }

    /// Whether it may have many operations.
    pub(crate) fn is_large(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::Edit { .. }
            | Self::CreateStaged { .. }
            | Self::EditStaged { .. }
            | Self::Rebase { .. }
            | Self::Apply { .. }
            | Self::Revert { .. } => true,
            Self::Judge { .. } | Self::Withdraw { .. } | Self::Keep { .. } | Self::Steer { .. } => false,
        }
    }
}

/// What is done with an edition, as the leader has found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditionUse {
    /// It is applied.
    Apply,
    /// It is left to the cluster, which applies it in its window.
    Schedule,
    /// Its rollout begins.
    Begin,
    /// It is taken back, by a bypass or not.
    Revert {
        /// Whether by a bypass.
        is_bypass: bool,
    },
}

/// An edition that is being applied or taken back, as the leader has found it.
#[derive(Debug)]
pub(crate) struct UsedEdition {
    /// What is done with it.
    pub(crate) purpose: EditionUse,
    /// The change request.
    pub(crate) id: ChangeId,
    /// The edition.
    pub(crate) number: u32,
    /// Its digest.
    pub(crate) digest: ChangeDigest,
    /// The key of the digest.
    pub(crate) seal: [u8; 32],
    /// What it rests on; of one that is taken back, what it has left.
    pub(crate) bases: Vec<Guard>,
    /// The command of an operation that is alone; the others are the operations of the request.
    pub(crate) alone: Option<Command>,
}

/// Rejects words of a person that are too long or have characters that nobody sees. A description has lines.
pub(crate) fn check_words(
    name: &'static str,
    text: &str,
    bytes: RangeInclusive<usize>,
) -> Result<(), Invalid> {
    let is_unseen = |char: char| is_unseen(char) && !(name == "description" && char == '\n');
    let (least, most) = (*bytes.start(), *bytes.end());
    if !bytes.contains(&text.len()) || text.contains(is_unseen) {
        let text = format!("a {name} has {least} to {most} bytes, and no characters that can't be seen");
        return Err(Violation::at(vec![name.into()], text).into());
    }
    Ok(())
}
