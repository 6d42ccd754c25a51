//! What is done to a change request.

use serde::{Deserialize, Serialize};

use super::Expect;
use crate::{
    feature::{LEVEL_MIN, ROLLOUTS},
    system::{
        change::{ChangeDigest, Failure, NewEdition, NewVote},
        rollout::{Candidate, Evidence, StagedEdition},
    },
    time::Timestamp,
};

/// What is done to a change request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeAction {
    /// Creates it.
    Create(Box<NewEdition>),
    /// Replaces its edition. All approvals end.
    Edit {
        /// The edition before it. If there is another one, the verdict is [`Verdict::Stale`](super::Verdict::Stale).
        after: u32,
        /// The precondition.
        expect: Expect,
        /// The edition.
        edition: Box<NewEdition>,
    },
    /// Approves or rejects it, or reviews a bypass.
    Vote(Box<NewVote>),
    /// Takes it back.
    Withdraw {
        /// Why.
        comment: String,
    },
    /// Leaves it to the cluster to apply it in its window.
    Schedule {
        /// The current edition.
        edition: u32,
        /// Its digest.
        digest: ChangeDigest,
    },
    /// Closes it, because the cluster could not apply it; proposed by the leader itself when it is due.
    Fail {
        /// The current edition.
        edition: u32,
        /// Why.
        failure: Failure,
    },
    /// Notes that the cluster can't take it back; proposed by the leader itself when it is due.
    FailRevert {
        /// The edition that was applied.
        edition: u32,
        /// Why.
        failure: Failure,
    },
    /// Keeps what it has changed: nobody takes it back any more.
    Keep {
        /// The edition that was applied.
        edition: u32,
        /// Its digest.
        digest: ChangeDigest,
        /// Why.
        comment: String,
    },
    /// Creates one that is released in stages.
    CreateStaged(Box<StagedEdition>),
    /// Replaces its edition by one that is released in stages. All approvals end.
    EditStaged {
        /// As of [`Self::Edit`].
        after: u32,
        /// The precondition.
        expect: Expect,
        /// The edition.
        edition: Box<StagedEdition>,
    },
    /// Begins its rollout. If a record that it replaces is another one by then, the verdict is [`Verdict::Stale`](super::Verdict::Stale).
    BeginRollout {
        /// The current edition.
        edition: u32,
        /// Its digest.
        digest: ChangeDigest,
        /// What its configs will be, as the digest has them.
        candidates: Vec<Candidate>,
    },
    /// Ends a stage.
    AdvanceRollout {
        /// Which one.
        at: RolloutStage,
        /// By what evidence.
        evidence: Evidence,
    },
    /// Lets its rollout wait for somebody.
    PauseRollout {
        /// At which stage.
        at: RolloutStage,
        /// Why.
        comment: String,
    },
    /// Lets its rollout go on. The time of its stage begins again.
    ResumeRollout {
        /// At which stage.
        at: RolloutStage,
    },
}

/// A stage of a rollout, as the author of an action has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStage {
    /// The edition.
    pub edition: u32,
    /// The stages that have ended.
    pub passed: u32,
    /// Since when the present stage lasts, or goes on after a pause.
    pub since: Timestamp,
}

impl ChangeAction {
    /// The feature level that a node must know to apply it.
    pub(super) fn feature_level(&self) -> u32 {
        match self {
            Self::Create(_)
            | Self::Edit { .. }
            | Self::Vote(_)
            | Self::Withdraw { .. }
            | Self::Schedule { .. }
            | Self::Fail { .. }
            | Self::FailRevert { .. }
            | Self::Keep { .. } => LEVEL_MIN,
            Self::CreateStaged(_)
            | Self::EditStaged { .. }
            | Self::BeginRollout { .. }
            | Self::AdvanceRollout { .. }
            | Self::PauseRollout { .. }
            | Self::ResumeRollout { .. } => ROLLOUTS,
        }
    }

    /// Whether the cluster does it itself, in nobody's name.
    pub(super) fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::Fail { .. } | Self::FailRevert { .. } => true,
            Self::Create(_)
            | Self::Edit { .. }
            | Self::Vote(_)
            | Self::Withdraw { .. }
            | Self::Schedule { .. }
            | Self::Keep { .. }
            | Self::CreateStaged(_)
            | Self::EditStaged { .. }
            | Self::BeginRollout { .. }
            | Self::AdvanceRollout { .. }
            | Self::PauseRollout { .. }
            | Self::ResumeRollout { .. } => false,
        }
    }
}
