//! Batches: several changes in one entry, applied atomically.
//!
//! The steps are decided in order on a clone of the state, so each sees the result of those before it; the clone
//! becomes the state only when all are accepted. Each step has its own time, one microsecond after the one before; the
//! last one is the time of the entry.
//!
//! **Invariant:** a batch produces at most one edit for each record, from its state before the batch to its state after
//! it, so that a revision identifies one content of a record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Edit, EntryContext, State, ToKeep};
use concord_model::{
    command::{Applied, BatchStep, Command, ConfigRead, Done, Outcome, StepOutcome, THIS_ENTRY, Transaction},
    error::Rejection,
    key::Key,
    record::{Config, Definition},
    time::Timestamp,
};

/// A step that deletes a definition.
#[derive(Clone, Copy)]
struct StepDeletes {
    /// Its place among the steps.
    step: usize,
    /// The most bytes of all kept definitions; `None` when it is not to be kept.
    keep: Option<u64>,
}

/// What an accepted batch did.
pub(super) struct DecidedBatch {
    /// The time of its last step.
    pub(super) at: Timestamp,
    /// What each step did.
    pub(super) steps: Box<[StepOutcome]>,
}

impl State {
    /// Decides a transaction; `None` when what it rests on has changed, or one of its steps is stale.
    pub(super) fn decide_transaction(
        &mut self,
        context: EntryContext,
        transaction: &Transaction,
        edits: &mut Vec<Edit>,
    ) -> Option<Outcome> {
        if !self.is_as_read(&transaction.reads) && !concord_model::sabotage::is("transaction-reads-unchecked")
        {
            return None;
        }
        let conditions_held = match &transaction.chosen {
            Ok(conditions_held) => *conditions_held,
            Err(rejection) => return Some(Err(rejection.clone())),
        };
        let steps = transaction.steps.iter().map(|(place, step)| (*place, step));
        let decided = self.decide_batch(context, steps, edits)?;
        Some(decided.map(|DecidedBatch { at, steps }| {
            let done = Done::Transaction { conditions_held, steps };
            Applied { revision: context.revision, at, done }
        }))
    }

    /// Decides a batch, each step with its place among the operations of the request; `None` when one is stale.
    pub(super) fn decide_batch<'a>(
        &mut self,
        context: EntryContext,
        steps: impl Iterator<Item = (u32, &'a BatchStep)>,
        edits: &mut Vec<Edit>,
    ) -> Option<Result<DecidedBatch, Rejection>> {
        let mut next = self.clone();
        let mut keeps = BTreeMap::new();
        let (mut step_edits, mut outcomes) = (Vec::new(), Vec::with_capacity(steps.size_hint().0));
        let mut last = context;
        for (index, (place, BatchStep { definition_read, command })) in (0..).zip(steps) {
            if index > 0 && context.revision.is_multiple_of(16) && concord_model::sabotage::is("batch-torn") {
                break;
            }
            last = context.of_step(index);
            if next.is_stale(self, context.revision, *definition_read, command) {
                return None;
            }
            if let Command::DeleteDefinition { key, keep, .. } = command
                && let Some(found) = next.definition(key.as_str())
            {
                keeps.insert(found.definition.id, StepDeletes { step: outcomes.len(), keep: *keep });
            }
            // No batch has these: its edits would not tell of them.
            if matches!(command, Command::Forget { .. } | Command::BuildIndex { .. }) {
                outcomes.push(StepOutcome::NoRecord);
                continue;
            }
            match next.decide(last, command, &mut step_edits) {
                Ok(applied) => outcomes.extend_from_slice(applied.steps()),
                Err(rejection) => {
                    return Some(Err(Rejection::InBatch { index: place, rejection: Box::new(rejection) }));
                }
            }
        }
        if are_of_distinct_configs(&step_edits) {
            edits.append(&mut step_edits);
        } else {
            let mut merged = merged(&step_edits, self, &next);
            for step in next.keep_all(EntryContext { at: last.at, ..context }, self, &keeps, &mut merged) {
                outcomes[step] = StepOutcome::Retained;
            }
            edits.append(&mut merged);
        }
        *self = next;
        Some(Ok(DecidedBatch { at: last.at, steps: outcomes.into() }))
    }

    /// Keeps the definitions that a batch has deleted, as they were before it: none of its changes of them is in its
    /// edits. `deletes`: its deletions, by the ids of the definitions. Returns the steps that deleted what is kept.
    fn keep_all(
        &mut self,
        context: EntryContext,
        before: &Self,
        deletes: &BTreeMap<u64, StepDeletes>,
        edits: &mut Vec<Edit>,
    ) -> Vec<usize> {
        let (mut dropped, mut kept_by) = (Vec::new(), Vec::new());
        for edit in edits.iter_mut() {
            let Edit::Deleted { definition, kept, .. } = edit else { continue };
            let Some(collection) = before.definition_by_id(*definition).cloned() else { continue };
            let Some(StepDeletes { step, keep }) = deletes.get(definition).copied() else { continue };
            *kept = self.keep_deleted(context, &ToKeep { collection, keep }, &mut dropped);
            kept_by.push((*definition, step));
        }
        edits.append(&mut dropped);
        // One that was dropped in favour of a later one, or was not kept at all, is gone.
        let is_kept = |id: u64| self.deleted().any(|kept| kept.definition.id == id);
        kept_by.into_iter().filter(|(id, _)| is_kept(*id)).map(|(_, step)| step).collect()
    }

    /// Whether these configs are as they were read.
    #[must_use]
    pub fn is_as_read(&self, reads: &[ConfigRead]) -> bool {
        reads.iter().all(|read| {
            let found = self.definition(read.definition.as_str());
            found.and_then(|found| found.config(read.key.as_str())).map(|config| config.revision)
                == read.revision
        })
    }

    /// Applies a step of a batch to a scratch copy of another state than the one that it was prepared on. `None` when
    /// what it was made from is not the same in this one; the check of all configs that it may demand is not looked at.
    pub fn retry_step(&mut self, index: u32, step: &BatchStep) -> Option<Result<(), Rejection>> {
        let is_stale = self.is_read_stale(THIS_ENTRY, step.definition_read, &step.command);
        (!is_stale).then(|| self.try_step(index, &step.command))
    }

    /// Applies a step of a batch to a scratch copy of the state: the leader validates the later steps against it before
    /// it proposes the batch. The records that it writes have the revision [`THIS_ENTRY`].
    ///
    /// # Errors
    /// The rejection of the step.
    pub fn try_step(&mut self, index: u32, command: &Command) -> Result<(), Rejection> {
        let at = self.last_at.after(self.last_at);
        let context = EntryContext { revision: THIS_ENTRY, at, step: 0, is_step: true }.of_step(index);
        self.decide(context, command, &mut Vec::new()).map(drop)
    }
}

impl EntryContext {
    fn of_step(self, step: u32) -> Self {
        Self { at: Timestamp(self.at.0.saturating_add(step.into())), step, is_step: true, ..self }
    }
}

/// Whether the edits are as [`merged`] would make them: each of another config.
fn are_of_distinct_configs(edits: &[Edit]) -> bool {
    let mut seen = BTreeSet::new();
    edits.iter().all(|edit| match edit {
        Edit::Config { definition, before, after } => after
            .as_ref()
            .or(before.as_ref())
            .is_some_and(|record| seen.insert((*definition, record.key.as_str()))),
        Edit::Definition { .. }
        | Edit::Reindexed { .. }
        | Edit::Deleted { .. }
        | Edit::Remember(_)
        | Edit::Forget(_)
        | Edit::Entries { .. }
        | Edit::Building { .. }
        | Edit::Undeleted { .. }
        | Edit::Dropped { .. }
        | Edit::Skipped(_)
        | Edit::System { .. }
        | Edit::AuditAnchors { .. }
        | Edit::AccessKey { .. } => false,
    })
}

/// The records that a batch touched, in the order of their first edit, each as it was before the batch.
#[derive(Debug)]
struct Touched<K, T> {
    records: Vec<(K, Option<Arc<T>>)>,
    keys: BTreeSet<K>,
}

impl<K: Ord + Clone, T> Touched<K, T> {
    fn new() -> Self {
        Self { records: Vec::new(), keys: BTreeSet::new() }
    }

    fn touch(&mut self, key: &K, before: Option<&Arc<T>>) {
        if self.keys.insert(key.clone()) {
            self.records.push((key.clone(), before.cloned()));
        }
    }
}

/// One edit for each record, from the first `before` to the state after the batch. A record that the batch creates and
/// deletes has none, and the deletion of a definition includes that of its configs.
fn merged(step_edits: &[Edit], before_batch: &State, next: &State) -> Vec<Edit> {
    let mut definitions: Touched<u64, Definition> = Touched::new();
    let mut configs: Touched<(u64, Key), Config> = Touched::new();
    let (mut reindexed, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    let mut dropped = Vec::new();
    for edit in step_edits {
        match edit {
            Edit::Definition { before, after } => {
                let id = after.as_ref().or(before.as_ref()).map(|record| record.id);
                id.into_iter().for_each(|id| definitions.touch(&id, before.as_ref()));
            }
            Edit::Reindexed { definition } => drop(reindexed.insert(*definition)),
            Edit::Deleted { definition, .. } => drop(deleted.insert(*definition)),
            Edit::Config { definition, before, after } => {
                let key = after.as_ref().or(before.as_ref()).map(|record| record.key.clone());
                key.into_iter().for_each(|key| configs.touch(&(*definition, key), before.as_ref()));
            }
            // The entry remembers outcomes, not its steps.
            Edit::Remember(_) | Edit::Forget(_) => {}
            // Steps of an index build are separate entries.
            Edit::Entries { .. } | Edit::Building { .. } => {}
            // So are changes of access keys, anchors and system records, the undoing of a deletion, and what a recovery
            // skips.
            Edit::AccessKey { .. }
            | Edit::System { .. }
            | Edit::AuditAnchors { .. }
            | Edit::Undeleted { .. }
            | Edit::Skipped(_) => {}
            // What a compaction step drops is gone, whatever the other steps do.
            Edit::Dropped { .. } => dropped.push(edit.clone()),
        }
    }
    let mut collections = BTreeMap::new();
    let mut found = |id: u64| {
        let entry = collections.entry(id);
        entry.or_insert_with(|| next.definition_by_id(id).cloned()).clone()
    };
    let mut edits = Vec::new();
    for (id, before) in definitions.records {
        let after = found(id).map(|collection| Arc::clone(&collection.definition));
        let existed = before.is_some();
        if existed || after.is_some() {
            let remains = existed && after.is_some();
            edits.push(Edit::Definition { before, after });
            // All configs of a new definition are new as well.
            if remains && reindexed.contains(&id) {
                edits.push(Edit::Reindexed { definition: id });
            }
            // Those that were there before the batch: what it created is not told.
            if existed && deleted.contains(&id) {
                let configs = before_batch.definition_by_id(id).map_or(0, |found| found.by_key.len());
                edits.push(Edit::Deleted { definition: id, configs, kept: None });
            }
        }
    }
    for ((definition, key), before) in configs.records {
        let Some(collection) = found(definition) else { continue };
        let after = collection.config(key.as_str()).cloned();
        if before.is_some() || after.is_some() {
            edits.push(Edit::Config { definition, before, after });
        }
    }
    edits.append(&mut dropped);
    edits
}

#[cfg(test)]
mod tests;
