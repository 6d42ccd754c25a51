//! From changes to rows: changes are merged by key to the newest value, and written as rows in bounded steps.
//!
//! **Invariant:** writing a merge gives the same rows as writing its changes one by one, because every update
//! knows the record that the trees hold (the first `before`) and the record that they must hold (the last
//! `after`). An index row that is the same before and after is not written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::Arc,
};

use super::{checkpoint::Checkpoint, keys};
use crate::{
    model::{
        access_key::{AccessKey, KeyId},
        key::Key,
        record::{Config, Definition, Revision},
    },
    state::{Change, Collection, Edit, RememberedOutcome, State},
};

/// Bytes of text that weigh as much as one record.
const WEIGHT_BYTES: usize = 4 << 10;

/// A tree whose rows are records or index entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Definitions,
    Configs,
    Indexes,
    Requests,
    AccessKeys,
}

/// A row to put, or to remove when it has no value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// Rows to put and to remove.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) list: Vec<Row>,
    /// Approximate bytes that are added and removed.
    pub(super) added: u64,
    pub(super) removed: u64,
}

impl Rows {
    fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.list.push(Row { table, key, value: Some(value) });
    }

    fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.list.push(Row { table, key, value: None });
    }

    pub(super) fn definition(&mut self, before: Option<&Definition>, after: Option<&Definition>) {
        let Some(id) = after.or(before).map(|record| record.id) else { return };
        let rough = |record: &Definition| {
            let paths: usize = record.indexes.iter().chain(&record.unique).map(|path| path.len() + 5).sum();
            // A slot or two for each path, and the cursor of an index build.
            record.schema.as_ref().map_or(0, |schema| schema.len()) + paths + 6 * record.indexes.len() + 1024
        };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            self.added += bytes.len() as u64;
            for (chunk, bytes) in keys::chunks(&bytes) {
                self.put(Table::Definitions, keys::definition(id, chunk), bytes.to_vec());
                written = chunk + 1;
            }
        }
        if let Some(before) = before {
            self.removed += rough(before) as u64;
            for chunk in written..keys::chunk_count(before, rough(before)) {
                self.remove(Table::Definitions, keys::definition(id, chunk));
            }
        }
    }

    pub(super) fn config(&mut self, definition: Revision, before: Option<&Config>, after: Option<&Config>) {
        let Some(key) = after.or(before).map(|record| &record.key) else { return };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            for (chunk, bytes) in keys::chunks(&bytes) {
                self.put(Table::Configs, keys::config(definition, key, chunk), bytes.to_vec());
                written = chunk + 1;
            }
            self.added += rough_bytes(after) as u64;
        }
        if let Some(before) = before {
            for chunk in written..keys::chunk_count(before, rough_bytes(before)) {
                self.remove(Table::Configs, keys::config(definition, key, chunk));
            }
            self.removed += rough_bytes(before) as u64;
        }
        self.entries(definition, key, before, after);
    }

    /// Both lists are sorted: an entry that is in one of them only is put or removed, the others are not
    /// written.
    fn entries(&mut self, definition: Revision, key: &Key, before: Option<&Config>, after: Option<&Config>) {
        let old = before.map_or(&[][..], |record| &record.entries);
        let new = after.map_or(&[][..], |record| &record.entries);
        for entry in old.iter().filter(|entry| new.binary_search(entry).is_err()) {
            self.remove(Table::Indexes, keys::index(definition, entry.slot, &entry.value, key));
        }
        for entry in new.iter().filter(|entry| old.binary_search(entry).is_err()) {
            self.put(Table::Indexes, keys::index(definition, entry.slot, &entry.value, key), Vec::new());
        }
    }

    pub(super) fn remember(&mut self, request: &RememberedOutcome) {
        self.put(Table::Requests, keys::request(request.revision).to_vec(), keys::encode(request));
    }

    pub(super) fn access_key(&mut self, id: &KeyId, after: Option<&AccessKey>) {
        match after {
            Some(after) => self.put(Table::AccessKeys, keys::access_key(id), keys::encode(after)),
            None => self.remove(Table::AccessKeys, keys::access_key(id)),
        }
    }

    pub(super) fn forget(&mut self, revision: Revision) {
        self.remove(Table::Requests, keys::request(revision).to_vec());
    }
}

/// The approximate bytes of a config in all trees; at least its encoded length.
fn rough_bytes(config: &Config) -> usize {
    let key = config.key.as_str().len();
    let entries: usize = config.entries.iter().map(|entry| entry.value.len() * 2 + key + 24).sum();
    config.data.len() + key + entries + 64
}

/// One batch of applied changes that is not merged yet: a pending update.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) checkpoint: Checkpoint,
    pub(super) changes: Vec<Arc<Change>>,
    /// The state at the checkpoint, when a definition was indexed again.
    pub(super) state: Option<Box<State>>,
}

impl Pending {
    fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.changes.iter().flat_map(|change| &change.edits)
    }

    /// Its weight in a queue; an empty one counts, too.
    pub(super) fn weight(&self) -> usize {
        1 + self.edits().map(weight).sum::<usize>()
    }
}

/// A record weighs one, and its text by its length, because a merge holds the text in memory.
fn weight(edit: &Edit) -> usize {
    match edit {
        Edit::Config { after, .. } => config_weight(after.as_deref()),
        Edit::Entries { after, .. } => config_weight(Some(after)),
        Edit::Definition { after: Some(after), .. } | Edit::Building { after, .. } => {
            1 + after.schema.as_ref().map_or(0, |schema| schema.len()) / WEIGHT_BYTES
        }
        Edit::Definition { after: None, .. }
        | Edit::Reindexed { .. }
        | Edit::Deleted { .. }
        | Edit::Remember(_)
        | Edit::AccessKey { .. }
        | Edit::Forget(_) => 1,
    }
}

fn config_weight(after: Option<&Config>) -> usize {
    1 + after.map_or(0, |record| record.data.len()) / WEIGHT_BYTES
}

/// The record that the trees hold, and the record that they must hold.
type Update<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// Changes merged by key, which are written in several steps.
#[derive(Debug)]
pub(super) struct Merge {
    /// What the trees hold once the merge is written.
    pub(super) checkpoint: Checkpoint,
    /// Definitions whose rows are all removed before anything is put.
    deleted: VecDeque<Revision>,
    definitions: BTreeMap<Revision, Update<Definition>>,
    configs: BTreeMap<(Revision, Key), Update<Config>>,
    requests: BTreeMap<Revision, Option<RememberedOutcome>>,
    access_keys: BTreeMap<KeyId, Option<Arc<AccessKey>>>,
    /// Collections that are written whole, and how many configs of each are written.
    collections: VecDeque<(Arc<Collection>, u64)>,
    /// The weight of what was added, without what it replaced.
    weight: usize,
}

/// The next step of a merge.
#[derive(Debug)]
pub(super) enum Step {
    /// The caller removes the rows of this definition and calls [`Merge::definition_deleted`] once all are
    /// removed.
    DeleteDefinition(Revision),
    Put(Rows),
    /// Everything is written.
    Done,
}

impl Merge {
    pub(super) fn new(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            deleted: VecDeque::new(),
            definitions: BTreeMap::new(),
            configs: BTreeMap::new(),
            requests: BTreeMap::new(),
            access_keys: BTreeMap::new(),
            collections: VecDeque::new(),
            weight: 0,
        }
    }

    /// Everything that a state holds, for an empty database.
    pub(super) fn from_state(state: &State, checkpoint: Checkpoint) -> Self {
        let mut merge = Self::new(checkpoint);
        for collection in state.definitions() {
            let definition = &collection.definition;
            merge.definitions.insert(definition.id, (None, Some(definition.clone())));
            merge.collections.push_back((collection.clone(), 0));
        }
        merge.requests.extend(state.requests().map(|request| (request.revision, Some(request.clone()))));
        merge.access_keys.extend(state.access_keys().map(|key| (key.id.clone(), Some(Arc::clone(key)))));
        merge
    }

    /// Whether more changes may be added: a collection that is written whole comes from the state at the
    /// checkpoint.
    pub(super) fn accepts_more(&self) -> bool {
        self.collections.is_empty()
    }

    /// Its weight; see [`Pending::weight`].
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Adds the next pending update in the order of the log.
    pub(super) fn add(&mut self, pending: Pending) {
        let Pending { checkpoint, changes, state } = pending;
        let mut reindexed = BTreeSet::new();
        for edit in changes.iter().flat_map(|change| &change.edits) {
            self.add_edit(edit, &mut reindexed);
        }
        for id in reindexed {
            let collection =
                state.as_ref().and_then(|state| state.definitions().find(|c| c.definition.id == id).cloned());
            // A definition that was deleted after that has its rows removed anyway.
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
            Edit::Definition { before: Some(before), after: None } => {
                self.definitions.remove(&before.id);
                self.forget_configs(before.id);
                self.weight += 1;
                self.deleted.push_back(before.id);
            }
            Edit::Definition { before, after } => {
                if let Some(id) = after.as_ref().map(|record| record.id) {
                    self.weight += weight(edit);
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
                self.weight += weight(edit);
                let update = self.definitions.entry(after.id);
                update.or_insert_with(|| (Some(before.clone()), None)).1 = Some(after.clone());
            }
            Edit::Reindexed { definition } => {
                reindexed.insert(*definition);
            }
            Edit::Deleted { .. } => {}
            Edit::Remember(request) => {
                self.weight += 1;
                self.requests.insert(request.revision, Some(request.clone()));
            }
            Edit::AccessKey { before, after } => {
                if let Some(any) = after.as_ref().or(before.as_ref()) {
                    self.weight += 1;
                    self.access_keys.insert(any.id.clone(), after.clone());
                }
            }
            Edit::Forget(request) => {
                self.weight += 1;
                self.requests.insert(request.revision, None);
            }
        }
    }

    fn add_config(&mut self, id: Revision, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        let Some(any) = after.or(before) else { return };
        self.weight += config_weight(after.map(|record| &**record));
        match self.configs.entry((id, any.key.clone())) {
            Entry::Vacant(place) => {
                place.insert((before.cloned(), after.cloned()));
            }
            Entry::Occupied(mut place) => {
                let replaced = std::mem::replace(&mut place.get_mut().1, after.cloned());
                self.weight -= config_weight(replaced.as_deref());
            }
        }
    }

    fn forget_configs(&mut self, id: Revision) {
        // Keys have no smallest value to start a range with; the map is small, or the deletion is rare.
        self.configs.retain(|(definition, _), _| *definition != id);
    }

    /// The caller has removed all rows of the definition of [`Step::DeleteDefinition`].
    pub(super) fn definition_deleted(&mut self) {
        self.deleted.pop_front();
    }

    /// The next step, of about `limit` records.
    pub(super) fn step(&mut self, limit: usize) -> Step {
        if let Some(id) = self.deleted.front() {
            return Step::DeleteDefinition(*id);
        }
        let mut rows = Rows::default();
        let mut budget = limit;
        while budget > 0 && self.put(&mut rows, &mut budget) {}
        if budget == limit {
            return Step::Done;
        }
        // Sorted rows that are neighbours in a tree are on one of its pages; each row occurs once.
        rows.list.sort_unstable();
        Step::Put(rows)
    }

    /// Puts one record, or some configs of a collection; returns whether there was any.
    fn put(&mut self, rows: &mut Rows, budget: &mut usize) -> bool {
        if let Some((_, (before, after))) = self.definitions.pop_first() {
            rows.definition(before.as_deref(), after.as_deref());
            *budget -= 1;
        } else if let Some(((definition, _), (before, after))) = self.configs.pop_first() {
            rows.config(definition, before.as_deref(), after.as_deref());
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
        } else if let Some((collection, written)) = self.collections.front_mut() {
            let mut ended = true;
            for config in collection.by_key.from(*written) {
                if *budget == 0 {
                    ended = false;
                    break;
                }
                rows.config(collection.definition.id, None, Some(&config.record));
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
    use super::*;
    use crate::{
        model::time::Timestamp,
        store::{Position, history::writer::tests::change},
    };

    fn pending(revision: Revision) -> Pending {
        let position = Position { index: revision, raft_meta: Vec::new() };
        let checkpoint = Checkpoint {
            position,
            revision,
            last_at: Timestamp(revision),
            digest: 0,
            compaction_revision: 0,
            level: Default::default(),
        };
        Pending { checkpoint, changes: vec![Arc::new(change(revision))], state: None }
    }

    #[test]
    fn a_key_that_changes_often_weighs_one_and_is_put_once() {
        let mut merge = Merge::new(pending(1).checkpoint);
        (1..=50).for_each(|revision| merge.add(pending(revision)));
        assert_eq!((merge.weight(), merge.checkpoint.revision), (1, 50));
        let Step::Put(rows) = merge.step(10) else { panic!("there is something to put") };
        let last = change(50);
        let Edit::Config { definition, after: Some(after), .. } = &last.edits[0] else { panic!("a config") };
        let row = keys::config(*definition, &after.key, 0);
        let entry = &after.entries[0];
        let index = keys::index(*definition, entry.slot, &entry.value, &after.key);
        let expected = [
            Row { table: Table::Configs, key: row, value: Some(keys::encode(&**after)) },
            Row { table: Table::Indexes, key: index, value: Some(Vec::new()) },
        ];
        assert_eq!(rows.list, expected);
        assert!(matches!(merge.step(10), Step::Done));
    }

    #[test]
    fn an_unchanged_index_entry_is_not_written() {
        let mut merge = Merge::new(pending(2).checkpoint);
        merge.add(pending(2));
        let Step::Put(rows) = merge.step(10) else { panic!("there is something to put") };
        assert!(rows.list.iter().all(|row| row.table == Table::Configs), "{rows:?}");
    }
}
