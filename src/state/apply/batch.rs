//! Batches: several changes in one entry, all or none.
//!
//! The steps are decided in their order on a clone of the state, so each sees what those before it did; the clone
//! becomes the state only when all were decided well. Each step has a time of its own, one microsecond behind the
//! one before, because times are unique in the orders; the last one is the entry's.
//!
//! **Invariant:** outside of the entry a record has one edit of a batch at most, from what it was before to what it
//! is behind it, so that a revision names one content of a record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Edit, Stamp, State, applied};
use crate::model::{
    command::{BatchStep, Command, Outcome, THIS_ENTRY},
    error::Rejection,
    key::Key,
    record::{Config, Definition},
    time::Timestamp,
};

impl State {
    /// Decides a batch; `None` when what one of its steps rests on has changed.
    pub(super) fn decide_batch(
        &mut self,
        stamp: Stamp,
        steps: &[BatchStep],
        edits: &mut Vec<Edit>,
    ) -> Option<Outcome> {
        let mut next = self.clone();
        let mut made = Vec::new();
        let mut last = stamp;
        for (place, BatchStep { definition_read, command }) in (0..).zip(steps) {
            if place > 0 && stamp.revision.is_multiple_of(16) && crate::sabotage::is("batch-torn") {
                break;
            }
            last = stamp.of_step(place);
            if next.is_stale(stamp.revision, *definition_read, command) {
                return None;
            }
            if let Err(rejection) = next.decide(last, command, &mut made) {
                return Some(Err(Rejection::InBatch { index: place, rejection: Box::new(rejection) }));
            }
        }
        edits.extend(collapsed(&made, &next));
        *self = next;
        Some(Ok(applied(last, false)))
    }

    /// Makes the change of a batch's step on a state that is not agreed on: what the batch's later steps are checked
    /// against before the batch is proposed. All that it writes has the revision [`THIS_ENTRY`].
    ///
    /// # Errors
    /// What the step is rejected with.
    pub fn try_step(&mut self, place: u32, command: &Command) -> Result<(), Rejection> {
        let at = self.last_at.after(self.last_at);
        let stamp = Stamp { revision: THIS_ENTRY, at, step: 0 }.of_step(place);
        self.decide(stamp, command, &mut Vec::new()).map(drop)
    }
}

impl Stamp {
    fn of_step(self, place: u32) -> Self {
        Self { at: Timestamp(self.at.0.saturating_add(place.into())), step: place, ..self }
    }
}

/// What was first touched in what order, with what it was before.
#[derive(Debug)]
struct Touched<K, T> {
    order: Vec<(K, Option<Arc<T>>)>,
    known: BTreeSet<K>,
}

impl<K: Ord + Clone, T> Touched<K, T> {
    fn new() -> Self {
        Self { order: Vec::new(), known: BTreeSet::new() }
    }

    fn touch(&mut self, key: &K, before: Option<&Arc<T>>) {
        if self.known.insert(key.clone()) {
            self.order.push((key.clone(), before.cloned()));
        }
    }
}

/// One edit a record: from the first `before` to what the state behind the batch holds. A record that was made and
/// ended again has none, and the end of a definition is the end of its configs.
fn collapsed(made: &[Edit], next: &State) -> Vec<Edit> {
    let mut definitions: Touched<u64, Definition> = Touched::new();
    let mut configs: Touched<(u64, Key), Config> = Touched::new();
    let mut reindexed = BTreeSet::new();
    for edit in made {
        match edit {
            Edit::Definition { before, after } => {
                let id = after.as_ref().or(before.as_ref()).map(|record| record.id);
                id.into_iter().for_each(|id| definitions.touch(&id, before.as_ref()));
            }
            Edit::Reindexed { definition } => drop(reindexed.insert(*definition)),
            Edit::Config { definition, before, after } => {
                let key = after.as_ref().or(before.as_ref()).map(|record| record.key.clone());
                key.into_iter().for_each(|key| configs.touch(&(*definition, key), before.as_ref()));
            }
            // Answers are remembered by the entry, not by its steps.
            Edit::Remember(_) | Edit::Forget(_) => {}
            // Steps of a build are entries of their own.
            Edit::Entries { .. } | Edit::Building { .. } => {}
        }
    }
    let mut collections = BTreeMap::new();
    let mut found = |id: u64| {
        let entry = collections.entry(id);
        entry.or_insert_with(|| next.definition_by_id(id).cloned()).clone()
    };
    let mut edits = Vec::new();
    for (id, before) in definitions.order {
        let after = found(id).map(|collection| Arc::clone(&collection.definition));
        let was_there = before.is_some();
        if was_there || after.is_some() {
            let stays = was_there && after.is_some();
            edits.push(Edit::Definition { before, after });
            // All configs of a new definition are new themselves.
            if stays && reindexed.contains(&id) {
                edits.push(Edit::Reindexed { definition: id });
            }
        }
    }
    for ((definition, key), before) in configs.order {
        let Some(collection) = found(definition) else { continue };
        let after = collection.config(key.as_str()).cloned();
        if before.is_some() || after.is_some() {
            edits.push(Edit::Config { definition, before, after });
        }
    }
    edits
}

#[cfg(test)]
mod tests;
