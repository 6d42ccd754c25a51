//! Changes are merged by key to the newest value, and written as rows in bounded steps.
//!
//! While a merge collects changes, it refers to the newest text of each config, as the state does. Of the text before
//! it only keeps the rows. So it costs memory for each key and none for the text. While it is being written, the state
//! continues, and the merge alone may hold the text that it has not written.
//!
//! **Invariant:** writing a merge gives the same rows as writing its changes one by one, because every update
//! knows the rows that the trees hold (of the first `before`) and the record that they must hold (the last
//! `after`). An index row that is the same before and after is not written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use indexmap::{IndexMap, map::Entry};

use super::{
    checkpoint::Checkpoint,
    keys,
    rows::{ConfigRows, Rows, SystemRows, rough_bytes, rough_system_bytes},
};
use concord_model::{
    access_key::{AccessKey, KeyId},
    audit::{AnchoredLog, AuditAnchors},
    key::Key,
    record::{Config, Definition, Revision},
    system::{SystemKey, SystemRecord},
};
use concord_state::{Change, Collection, Edit, RememberedOutcome, State};

/// Bytes of text that weigh as much as one record in the queue before the merge.
const WEIGHT_BYTES: usize = 4 << 10;

/// One batch of applied changes that is not merged yet: a pending update.
#[derive(Debug)]
pub(super) struct PendingBatch {
    pub(super) checkpoint: Checkpoint,
    pub(super) changes: Vec<Arc<Change>>,
    /// The state at the checkpoint, when a definition was indexed again.
    pub(super) state: Option<Box<State>>,
}

impl PendingBatch {
    fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.changes.iter().flat_map(|change| &change.edits)
    }

    /// Its weight in a queue; an empty one counts as well.
    pub(super) fn weight(&self) -> usize {
        1 + self.edits().map(weight).sum::<usize>()
    }
}

/// A record weighs one, and its text by its length, because the queue holds each text, the replaced ones too.
fn weight(edit: &Edit) -> usize {
    match edit {
        Edit::Config { after, .. } => config_weight(after.as_deref()),
        Edit::Entries { after, .. } => config_weight(Some(after)),
        Edit::Definition { after: Some(after), .. } | Edit::Building { after, .. } => {
            1 + after.schema.as_ref().map_or(0, |schema| schema.len()) / WEIGHT_BYTES
        }
        Edit::System { after, .. } => 1 + after.as_ref().map_or(0, |record| record.text.len()) / WEIGHT_BYTES,
        Edit::Definition { after: None, .. }
        | Edit::Reindexed { .. }
        | Edit::Deleted { .. }
        | Edit::Undeleted { .. }
        | Edit::Dropped { .. }
        | Edit::Skipped(_)
        | Edit::Remember(_)
        | Edit::AuditAnchors { .. }
        | Edit::AccessKey { .. }
        | Edit::Forget(_) => 1,
    }
}

fn config_weight(after: Option<&Config>) -> usize {
    1 + after.map_or(0, |record| record.data.len()) / WEIGHT_BYTES
}

/// The rows that the trees hold, and the record that they must hold.
type Update<Held, T> = (Option<Held>, Option<Arc<T>>);

/// Changes merged by key, which are written in several steps.
#[derive(Debug)]
pub(super) struct SledMerge {
    /// What the trees hold once the merge is written.
    pub(super) checkpoint: Checkpoint,
    /// Definitions whose rows are all removed before anything is put.
    deleted: VecDeque<Revision>,
    definitions: BTreeMap<Revision, Update<Arc<Definition>, Definition>>,
    /// Found by hash, since each change looks its config up, and sorted once they are written: `is_sorted`.
    configs: IndexMap<(Revision, Key), Update<ConfigRows, Config>>,
    /// Whether `configs` descend.
    is_sorted: bool,
    requests: BTreeMap<Revision, Option<RememberedOutcome>>,
    access_keys: BTreeMap<KeyId, Option<Arc<AccessKey>>>,
    audit_anchors: BTreeMap<AnchoredLog, Option<Arc<AuditAnchors>>>,
    system: BTreeMap<SystemKey, Update<SystemRows, SystemRecord>>,
    /// Collections that are written whole, and how many configs of each are written.
    collections: VecDeque<(Arc<Collection>, u64)>,
    /// How many records are to be written; text counts apart.
    records: usize,
    /// Bytes of the configs' text that is to be written.
    text_bytes: usize,
    /// How many changes of records were added.
    changes: usize,
}

/// The next step of a merge.
#[derive(Debug)]
pub(super) enum MergeStep {
    /// The caller removes the rows of this definition and calls [`SledMerge::definition_deleted`] once all are
    /// removed.
    DeleteDefinition(Revision),
    Put(Rows),
    /// Everything is written.
    Done,
}

impl SledMerge {
    pub(super) fn new(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            deleted: VecDeque::new(),
            definitions: BTreeMap::new(),
            configs: IndexMap::new(),
            is_sorted: false,
            requests: BTreeMap::new(),
            access_keys: BTreeMap::new(),
            audit_anchors: BTreeMap::new(),
            system: BTreeMap::new(),
            collections: VecDeque::new(),
            records: 0,
            text_bytes: 0,
            changes: 0,
        }
    }

    /// Everything that a state holds, for an empty database.
    pub(super) fn from_state(state: &State, checkpoint: Checkpoint) -> Self {
        let mut merge = Self::new(checkpoint);
        for collection in state.stored_definitions() {
            let definition = &collection.definition;
            merge.definitions.insert(definition.id, (None, Some(definition.clone())));
            merge.collections.push_back((collection.clone(), 0));
        }
        merge.requests.extend(state.requests().map(|request| (request.revision, Some(request.clone()))));
        merge.access_keys.extend(state.access_keys().map(|key| (key.id.clone(), Some(Arc::clone(key)))));
        merge.audit_anchors.extend(state.audit_anchors().map(|one| (one.log, Some(Arc::clone(one)))));
        merge.system.extend(state.system_records().map(|one| (one.key(), (None, Some(Arc::clone(one))))));
        merge
    }

    /// Whether more changes may be added: a collection that is written whole comes from the state at the
    /// checkpoint.
    pub(super) fn accepts_more(&self) -> bool {
        self.collections.is_empty()
    }

    /// How many records it was to write when it was begun to be written.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// Bytes of text that it was to write then.
    pub(super) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// How many records it is to write yet.
    pub(super) fn left(&self) -> u64 {
        let whole = |(collection, written): &(Arc<Collection>, u64)| collection.by_key.len() - written;
        let few = self.access_keys.len() + self.audit_anchors.len() + self.system.len();
        let records = self.definitions.len() + self.configs.len() + self.requests.len() + few;
        records as u64 + self.collections.iter().map(whole).sum::<u64>()
    }

    /// How many changes of records it merges.
    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    /// Adds the next pending update in the order of the log.
    pub(super) fn add(&mut self, pending: PendingBatch) {
        let PendingBatch { checkpoint, changes, state } = pending;
        let mut reindexed = BTreeSet::new();
        for edit in changes.iter().flat_map(|change| &change.edits) {
            self.changes += 1;
            self.add_edit(edit, &mut reindexed);
        }
        for id in reindexed {
            let collection = state
                .as_ref()
                .and_then(|state| state.stored_definitions().find(|c| c.definition.id == id).cloned());
            // A definition that is gone for good after that has its rows removed anyway.
            if let Some(collection) = collection {
                self.forget_configs(id);
                self.deleted.push_back(id);
                let definition = self.definitions.entry(id).or_default();
                *definition = (None, Some(collection.definition.clone()));
                self.collections.push_back((collection, 0));
            }
        }
        self.checkpoint = checkpoint;
    }

    fn add_edit(&mut self, edit: &Edit, reindexed: &mut BTreeSet<Revision>) {
        match edit {
            // `Deleted`, which follows, says whether it is kept.
            Edit::Definition { after: None, .. } => {}
            Edit::Definition { before, after } => {
                if let Some(id) = after.as_ref().map(|record| record.id) {
                    self.records += 1;
                    self.definitions.entry(id).or_insert_with(|| (before.clone(), None)).1 = after.clone();
                }
            }
            Edit::Config { definition, before, after } => {
                self.add_config(*definition, before.as_ref(), after.as_ref());
            }
            Edit::Entries { definition, before, after } => {
                self.add_config(*definition, Some(before), Some(after));
            }
            Edit::Building { before, after } => {
                self.records += 1;
                let update = self.definitions.entry(after.id);
                update.or_insert_with(|| (Some(before.clone()), None)).1 = Some(after.clone());
            }
            Edit::Reindexed { definition } => {
                reindexed.insert(*definition);
            }
            Edit::Deleted { definition, kept: None, .. } => self.remove_definition(*definition),
            Edit::Dropped { kept } => self.remove_definition(kept.id),
            // The checkpoint has the void revisions.
            Edit::Skipped(_) => {}
            // Of what is kept, only the record of the definition changes. The kept record is at least as long as the
            // one that the trees hold.
            Edit::Deleted { kept: Some(kept), .. } => {
                self.records += 1;
                let update = self.definitions.entry(kept.id);
                update.or_insert_with(|| (Some(kept.clone()), None)).1 = Some(kept.clone());
            }
            Edit::Undeleted { kept, .. } => {
                if let Some((held, _)) = self.definitions.get_mut(&kept.id) {
                    held.get_or_insert_with(|| kept.clone());
                }
            }
            Edit::Remember(request) => {
                self.records += 1;
                self.requests.insert(request.revision, Some(request.clone()));
            }
            Edit::AccessKey { before, after } => {
                if let Some(any) = after.as_ref().or(before.as_ref()) {
                    self.records += 1;
                    self.access_keys.insert(any.id.clone(), after.clone());
                }
            }
            Edit::AuditAnchors { before, after } => {
                if let Some(any) = after.as_ref().or(before.as_ref()) {
                    self.records += 1;
                    self.audit_anchors.insert(any.log, after.clone());
                }
            }
            Edit::System { before, after } => {
                if let Some(any) = after.as_ref().or(before.as_ref()) {
                    self.records += 1;
                    let held = || before.as_deref().map(SystemRows::of);
                    self.system.entry(any.key()).or_insert_with(|| (held(), None)).1 = after.clone();
                }
            }
            Edit::Forget(request) => {
                self.records += 1;
                self.requests.insert(request.revision, None);
            }
        }
    }

    fn add_config(&mut self, id: Revision, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        let Some(any) = after.or(before) else { return };
        let text_bytes = |record: Option<&Arc<Config>>| record.map_or(0, |record| record.data.len());
        self.text_bytes += text_bytes(after);
        self.is_sorted = false;
        match self.configs.entry((id, any.key.clone())) {
            Entry::Vacant(place) => {
                self.records += 1;
                place.insert((before.map(|record| ConfigRows::of(record)), after.cloned()));
            }
            Entry::Occupied(mut place) => {
                let replaced = std::mem::replace(&mut place.get_mut().1, after.cloned());
                self.text_bytes -= text_bytes(replaced.as_ref());
            }
        }
    }

    fn remove_definition(&mut self, id: Revision) {
        self.definitions.remove(&id);
        self.forget_configs(id);
        self.records += 1;
        self.deleted.push_back(id);
    }

    fn forget_configs(&mut self, id: Revision) {
        // Keys have no smallest value to start a range with; the map is small, or the deletion is rare.
        self.configs.retain(|(definition, _), _| *definition != id);
    }

    /// The caller has removed all rows of the definition of [`MergeStep::DeleteDefinition`].
    pub(super) fn definition_deleted(&mut self) {
        self.deleted.pop_front();
    }

    /// The next step, of about `limit` records.
    pub(super) fn step(&mut self, limit: usize) -> MergeStep {
        if let Some(id) = self.deleted.front() {
            return MergeStep::DeleteDefinition(*id);
        }
        if !std::mem::replace(&mut self.is_sorted, true) {
            self.configs.sort_unstable_by(|a, _, b, _| b.cmp(a));
        }
        let mut rows = Rows::default();
        let mut budget = limit;
        while budget > 0 && self.put(&mut rows, &mut budget) {}
        if budget == limit {
            return MergeStep::Done;
        }
        // Sorted rows that are neighbours in a tree are on one of its pages; each row occurs once.
        rows.list.sort_unstable();
        MergeStep::Put(rows)
    }

    /// Puts one record, or some configs of a collection; returns whether there was any.
    fn put(&mut self, rows: &mut Rows, budget: &mut usize) -> bool {
        if let Some((_, (before, after))) = self.definitions.pop_first() {
            rows.definition(before.as_deref(), after.as_deref());
            *budget -= 1;
        } else if let Some(((definition, key), (before, after))) = self.configs.pop() {
            rows.config(definition, &key, before.as_ref(), after.as_deref());
            // A large record fills a step.
            let bytes = after.map_or(0, |record| rough_bytes(&record));
            *budget = (*budget - 1).saturating_sub(bytes / keys::CHUNK_BYTES);
        } else if let Some((revision, request)) = self.requests.pop_first() {
            match request {
                Some(request) => rows.remember(&request),
                None => rows.forget(revision),
            }
            *budget -= 1;
        } else if let Some((id, key)) = self.access_keys.pop_first() {
            rows.access_key(&id, key.as_deref());
            *budget -= 1;
        } else if let Some((log, anchors)) = self.audit_anchors.pop_first() {
            rows.audit_anchors(&log, anchors.as_deref());
            *budget -= 1;
        } else if let Some((key, (before, after))) = self.system.pop_first() {
            rows.system(&key, before.as_ref(), after.as_deref());
            let bytes = after.map_or(0, |record| rough_system_bytes(&record));
            *budget = (*budget - 1).saturating_sub(bytes / keys::CHUNK_BYTES);
        } else if let Some((collection, written)) = self.collections.front_mut() {
            let mut ended = true;
            for config in collection.by_key.from(*written) {
                if *budget == 0 {
                    ended = false;
                    break;
                }
                rows.config(collection.definition.id, &config.record.key, None, Some(&config.record));
                *written += 1;
                *budget = (*budget - 1).saturating_sub(rough_bytes(&config.record) / keys::CHUNK_BYTES);
            }
            if ended {
                self.collections.pop_front();
            }
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::rows::{SledRow, SledTable},
        *,
    };
    use crate::{Position, history::writer::tests::change};
    use concord_model::time::Timestamp;

    fn pending(revision: Revision) -> PendingBatch {
        let position = Position { index: revision, raft_meta: Vec::new() };
        let checkpoint = Checkpoint {
            feature_level: 1,
            position,
            revision,
            last_at: Timestamp(revision),
            digest: 0,
            compaction_revision: 0,
            root_disabled: false,
            void: Vec::new(),
        };
        PendingBatch { checkpoint, changes: vec![Arc::new(change(revision))], state: None }
    }

    #[test]
    fn a_key_that_changes_often_weighs_as_one_and_is_written_once() {
        let mut merge = SledMerge::new(pending(1).checkpoint);
        (1..=50).for_each(|revision| merge.add(pending(revision)));
        assert_eq!((merge.records(), merge.checkpoint.revision), (1, 50));
        let MergeStep::Put(rows) = merge.step(10) else { panic!("there is something to put") };
        let last = change(50);
        let Edit::Config { definition, after: Some(after), .. } = &last.edits[0] else { panic!("a config") };
        let row = keys::config(*definition, &after.key, 0);
        let entry = &after.entries[0];
        let index = keys::index(*definition, entry.slot, &entry.value, &after.key);
        let expected = [
            SledRow { table: SledTable::Configs, key: row, value: Some(keys::encode(&**after)) },
            SledRow { table: SledTable::Indexes, key: index, value: Some(Vec::new()) },
        ];
        assert_eq!(rows.list, expected);
        assert!(matches!(merge.step(10), MergeStep::Done));
    }

    #[test]
    fn a_merge_refers_to_the_newest_text_alone() {
        let mut merge = SledMerge::new(pending(1).checkpoint);
        let texts: Vec<Arc<Config>> = (2..=50)
            .map(|revision| {
                let pending = pending(revision);
                let Edit::Config { after: Some(after), .. } = &pending.changes[0].edits[0] else {
                    panic!("a config")
                };
                let text = Arc::clone(after);
                merge.add(pending);
                text
            })
            .collect();
        let (last, replaced) = texts.split_last().unwrap();
        assert!(replaced.iter().all(|text| Arc::strong_count(text) == 1));
        assert_eq!((Arc::strong_count(last), merge.text_bytes()), (2, last.data.len()));
    }

    #[test]
    fn an_unchanged_index_entry_is_not_written() {
        let mut merge = SledMerge::new(pending(2).checkpoint);
        merge.add(pending(2));
        let MergeStep::Put(rows) = merge.step(10) else { panic!("there is something to put") };
        assert!(rows.list.iter().all(|row| row.table == SledTable::Configs), "{rows:?}");
    }
}
