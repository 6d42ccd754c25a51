//! How proposals and their commands are named in logs and spans.
//!
//! **Invariant:** nothing of the data is shown, only keys.

use std::fmt;

use super::{
    AccessCommand, AuditCommand, ChangeAction, Command, IdentityCommand, Proposal, SystemCommand,
    Transaction, Undeletion,
};

impl fmt::Display for AccessCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { id, .. } => write!(f, "create access key {id}"),
            Self::Change { id, .. } => write!(f, "change access key {id}"),
            Self::Revoke { id, .. } => write!(f, "revoke access key {id}"),
            Self::Rotate { id, .. } => write!(f, "rotate access key {id}"),
            Self::MarkUsed { ids } => write!(f, "mark {} access keys as used", ids.len()),
            Self::DisableRoot => f.write_str("disable the root key"),
            Self::EnableRoot => f.write_str("enable the root key"),
            Self::Attest { id, .. } => write!(f, "attest access key {id}"),
        }
    }
}

impl fmt::Display for IdentityCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PutProvider { of, .. } => write!(f, "put identity provider `{}`", of.name),
            Self::DeleteProvider(of) => write!(f, "delete identity provider `{}`", of.name),
            Self::PutRole { of, .. } => write!(f, "put role `{}`", of.name),
            Self::DeleteRole(of) => write!(f, "delete role `{}`", of.name),
            Self::EndSessions { name, .. } => write!(f, "end all sessions of identity provider `{name}`"),
            Self::EndSession { id } => write!(f, "end session {id}"),
            Self::OpenSession(session) => write!(f, "open session {}", session.id),
            Self::PutKeySet { provider, .. } => write!(f, "put the key set of identity provider {provider}"),
            Self::SweepSessions { .. } => f.write_str("sweep sessions"),
        }
    }
}

impl fmt::Display for SystemCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PutEnvironment { name, .. } => write!(f, "put environment `{name}`"),
            Self::DeleteEnvironment { name, .. } => write!(f, "delete environment `{name}`"),
            Self::Change { id, action } => {
                let verb = match action {
                    ChangeAction::Create(_) => "create",
                    ChangeAction::Edit { .. } => "edit",
                    ChangeAction::Vote(_) => "vote on",
                    ChangeAction::Withdraw { .. } => "withdraw",
                    ChangeAction::Schedule { .. } => "schedule",
                    ChangeAction::Fail { .. } => "fail",
                    ChangeAction::FailRevert { .. } => "fail the revert of",
                    ChangeAction::Keep { .. } => "keep what was changed by",
                    ChangeAction::CreateStaged(_) => "create in stages",
                    ChangeAction::EditStaged { .. } => "edit in stages",
                    ChangeAction::BeginRollout { .. } => "begin the rollout of",
                    ChangeAction::AdvanceRollout { .. } => "end a stage of",
                    ChangeAction::PauseRollout { .. } => "pause the rollout of",
                    ChangeAction::ResumeRollout { .. } => "resume the rollout of",
                };
                write!(f, "{verb} change request {id}")
            }
            Self::SweepChanges { .. } => f.write_str("sweep change requests"),
            Self::HoldChanges => f.write_str("hold all change requests"),
            Self::Identity(command) => command.fmt(f),
        }
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
            Command::UndeleteDefinition(Undeletion { key, .. }) => ("undelete definition", key, None),
            Command::SetProtection { key, .. } => ("set protection", key, None),
            Command::Batch(steps) => return write!(f, "batch of {}", steps.len()),
            Command::Transaction(Transaction { reads, steps, .. }) => {
                return write!(f, "transaction of {} reads and {} changes", reads.len(), steps.len());
            }
            Command::RaiseFeatureLevel { to } => return write!(f, "raise the feature level to {to}"),
            Command::Forget { upto } => return write!(f, "forget outcomes up to {upto}"),
            Command::Access(command) => return command.fmt(f),
            Command::Audit(AuditCommand::Anchor { log, seq, .. }) => {
                return write!(f, "anchor line {seq} of the audit log of node {}", log.node);
            }
            Command::Audit(AuditCommand::Accept { log }) => {
                return write!(f, "accept the audit log of node {}", log.node);
            }
            Command::SkipRevisions { to } => return write!(f, "continue at revision {to}"),
            Command::System(command) => return command.fmt(f),
        };
        write!(f, "{verb} `{definition}`")?;
        key.map_or(Ok(()), |key| write!(f, " `{key}`"))
    }
}
