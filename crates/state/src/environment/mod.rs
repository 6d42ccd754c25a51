//! The environments, and whether their rules let a proposal change what it changes.
//!
//! | an environment | its definitions and configs | its rules |
//! |---|---|---|
//! | refuses direct changes | change by change request | as well, but short freezes are added directly |
//! | is frozen | do not change | change: a freeze can be ended |
//! | has no record | have the rules of `default` | are made by the rules of `default`, also while that is frozen |
//!
//! The service asks the same functions before it proposes, so that a client learns it early. What counts is the decision
//! here, by the time of the entry: a proposal that was made before a freeze and is decided in it is rejected.
//!
//! **Invariants:** all steps of a proposal are evaluated on the state before it. Such a rejection leaves nothing, also no
//! idempotency record. The root key has no other rules than other keys.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Edit, State,
    apply::EntryContext,
    system::{expected, record_after},
};
use concord_model::{
    command::{Command, EnvironmentChange, Expect, Outcome, StepOutcome, SystemCommand, touched::Touch},
    error::Rejection,
    key::Key,
    limits::ENVIRONMENTS_MAX,
    system::{
        SystemBody, SystemRecord,
        environment::{DEFAULT_ENVIRONMENT, Direct, Environment, environment_name},
    },
    time::Timestamp,
};

/// The environments by their names. They are few, and a state that is cloned shares them.
pub(super) type EnvironmentsByName = Arc<BTreeMap<Key, Arc<SystemRecord>>>;

/// The time that a change takes, by its first and its last moment.
#[derive(Clone, Copy)]
pub(super) struct ChangeTime {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl ChangeTime {
    /// The time of a command in an entry of this time.
    pub(super) fn of(at: Timestamp, command: &Command) -> Self {
        Self { first: at, last: Timestamp(at.0.saturating_add(command.moments() - 1)) }
    }

    /// Why nothing of an environment changes in this time, if it is frozen.
    pub(super) fn frozen(self, record: &SystemRecord) -> Option<Rejection> {
        let until = record.environment()?.frozen_until(self.first, self.last)?;
        Some(Rejection::EnvironmentFrozen { environment: record.name.clone(), until })
    }
}

impl State {
    /// The records of all environments, by name.
    pub fn environments(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.environments.values()
    }

    /// The record of the environment with this name.
    #[must_use]
    pub fn environment(&self, name: &str) -> Option<&Arc<SystemRecord>> {
        self.environments.get(name)
    }

    /// The record of the environment that a definition belongs to, whether it exists or not: that of the environment
    /// which its key names, else that of `default`. `None` when there is neither.
    #[must_use]
    pub fn environment_of(&self, definition: &str) -> Option<&Arc<SystemRecord>> {
        let named = environment_name(definition).and_then(|name| self.environment(name));
        named.or_else(|| self.environment(DEFAULT_ENVIRONMENT))
    }

    /// Why a direct change of a definition or of its configs is rejected at a time, if it is.
    #[must_use]
    pub fn refused_direct(&self, at: Timestamp, definition: &str) -> Option<Rejection> {
        refused_content(self.environment_of(definition)?, ChangeTime { first: at, last: at })
    }

    /// Why the environments reject a command in an entry of this time, if they do.
    #[must_use]
    pub fn refused_by_environment(&self, at: Timestamp, command: &Command) -> Option<Rejection> {
        if self.environments.is_empty() {
            return None;
        }
        let time = ChangeTime::of(at, command);
        command.touches().find_map(|(place, touch)| {
            let rejection = match touch {
                Touch::Definition(key) => refused_content(self.environment_of(key.as_str())?, time),
                Touch::Environment(change) => self.refused_rules(change, time),
            }?;
            Some(match place {
                Some(index) => Rejection::InBatch { index, rejection: rejection.into() },
                None => rejection,
            })
        })
    }

    /// Why the rules of an environment may not be changed so.
    fn refused_rules(&self, change: EnvironmentChange<'_>, time: ChangeTime) -> Option<Rejection> {
        let own = self.environment(change.name.as_str());
        let record = own.or_else(|| self.environment(DEFAULT_ENVIRONMENT))?;
        let before = record.environment()?;
        if change.after.is_some_and(|after| after.only_adds_short_freezes(before, time.first)) {
            return None;
        }
        match (own, before.direct) {
            (_, Direct::Refuse) => refused_content(record, time),
            (Some(_), Direct::Allow) => None,
            (None, Direct::Allow) => leaves_freeze(record, change.after, time),
        }
    }

    /// Whether the record that a command changes is another one than the leader read.
    pub(super) fn is_system_stale(&self, command: &SystemCommand) -> bool {
        if let SystemCommand::Change { id, action } = command {
            return self.is_change_stale(id, action);
        }
        if let SystemCommand::Identity(command) = command {
            return self.is_identity_stale(command);
        }
        let Some(EnvironmentChange { name, expect: Expect::Read(read), .. }) = command.environment() else {
            return false;
        };
        self.environment(name.as_str()).map(|record| record.revision) != read
    }

    /// Creates an environment or replaces it. `text`: everything but its rules.
    pub(super) fn put_environment(
        &mut self,
        context: EntryContext,
        change: EnvironmentChange<'_>,
        (after, text): (&Environment, &Arc<str>),
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let before = self.expect_environment(change)?;
        if before.is_none() && self.environments.len() >= ENVIRONMENTS_MAX {
            return Err(Rejection::TooManyEnvironments);
        }
        let done = if before.is_none() { StepOutcome::Created } else { StepOutcome::Changed };
        let of = (change.name.key().clone(), SystemBody::Environment(after.clone()), Arc::clone(text));
        let record = record_after(context, before.as_deref(), of);
        self.put_system_record(before, Some(record), edits);
        Ok(context.applied(done))
    }

    pub(super) fn delete_environment(
        &mut self,
        context: EntryContext,
        change: EnvironmentChange<'_>,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let before = self.expect_environment(change)?.ok_or(Rejection::EnvironmentNotFound)?;
        self.put_system_record(Some(before), None, edits);
        Ok(context.applied(StepOutcome::Deleted))
    }

    /// The record of the environment that a command changes, when it meets the precondition.
    fn expect_environment(
        &self,
        change: EnvironmentChange<'_>,
    ) -> Result<Option<Arc<SystemRecord>>, Rejection> {
        expected(self.environment(change.name.as_str()), change.expect, Rejection::EnvironmentNotFound)
    }
}

/// Why an environment may not be made, if it would take definitions out of a freeze of `default`, also out of one that has
/// not begun. A freeze is ended by changing the environment that has it, and not by leaving that environment.
pub(super) fn leaves_freeze(
    default: &SystemRecord,
    after: Option<&Environment>,
    time: ChangeTime,
) -> Option<Rejection> {
    let rules = default.environment()?;
    // There is none to delete.
    let Some(after) = after else { return time.frozen(default) };
    let left =
        rules.freezes.iter().filter(|freeze| time.first < freeze.until && !after.freezes.contains(freeze));
    let (environment, left) = (default.name.clone(), left.collect::<Vec<_>>());
    let until = left.iter().map(|freeze| freeze.until).max()?;
    let is_active = left.iter().any(|freeze| freeze.overlaps(time.first, time.last));
    Some(if is_active {
        Rejection::EnvironmentFrozen { environment, until }
    } else {
        Rejection::FreezeLeft { environment, until }
    })
}

/// Why definitions and configs of an environment may not be changed directly.
fn refused_content(record: &SystemRecord, time: ChangeTime) -> Option<Rejection> {
    if record.environment()?.direct == Direct::Refuse {
        return Some(Rejection::ChangeRequired { environment: record.name.clone() });
    }
    time.frozen(record)
}

#[cfg(test)]
pub(crate) mod tests;
