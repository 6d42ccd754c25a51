//! From edits to rows: many changes merged into the newest value of each key, and the rows of one step of them.
//!
//! **Invariant:** carrying a merge gives the same rows as carrying its changes one by one, because every put
//! knows the record that the trees hold (the first `before`) and the one that they shall hold (the last `after`).
//! A row that is the same before and after is not written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::Arc,
};

use super::{keys, trees::Seal};
use crate::{
    model::{
        key::Key,
        record::{Config, Definition, Revision},
    },
    state::{Change, Collection, Edit, RememberedOutcome, State},
};

/// So many bytes of a text weigh as much as a record.
const WEIGHT_BYTES: usize = 4 << 10;

/// A tree that holds rows of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum Table {
    Definitions,
    Configs,
    Indexes,
    Requests,
}

/// A row to put, or to remove when it has no value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct Row {
    pub(in crate::store) table: Table,
    pub(in crate::store) key: Vec<u8>,
    pub(in crate::store) value: Option<Vec<u8>>,
}

/// Rows to put and to remove.
#[derive(Debug, Default)]
pub(in crate::store) struct Rows {
    pub(in crate::store) list: Vec<Row>,
    /// Rough bytes that come and go.
    pub(in crate::store) added: u64,
    pub(in crate::store) removed: u64,
}

impl Rows {
    fn put(&mut self, table: Table, key: Vec<u8>, value: Vec<u8>) {
        self.list.push(Row { table, key, value: Some(value) });
    }

    fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.list.push(Row { table, key, value: None });
    }

    pub(in crate::store) fn definition(&mut self, before: Option<&Definition>, after: Option<&Definition>) {
        let Some(id) = after.or(before).map(|record| record.id) else { return };
        let rough = |record: &Definition| {
            let paths: usize = record.indexes.iter().chain(&record.unique).map(|path| path.len() + 5).sum();
            // A slot or two for each path, and the cursor of a build.
            record.schema.as_ref().map_or(0, |schema| schema.len()) + paths + 6 * record.indexes.len() + 1024
        };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            self.added += bytes.len() as u64;
            for (piece, bytes) in keys::pieces(&bytes) {
                self.put(Table::Definitions, keys::definition(id, piece), bytes.to_vec());
                written = piece + 1;
            }
        }
        if let Some(before) = before {
            self.removed += rough(before) as u64;
            for piece in written..keys::piece_count(before, rough(before)) {
                self.remove(Table::Definitions, keys::definition(id, piece));
            }
        }
    }

    pub(in crate::store) fn config(
        &mut self,
        definition: Revision,
        before: Option<&Config>,
        after: Option<&Config>,
    ) {
        let Some(key) = after.or(before).map(|record| &record.key) else { return };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            for (piece, bytes) in keys::pieces(&bytes) {
                self.put(Table::Configs, keys::config(definition, key, piece), bytes.to_vec());
                written = piece + 1;
            }
            self.added += rough_bytes(after) as u64;
        }
        if let Some(before) = before {
            for piece in written..keys::piece_count(before, rough_bytes(before)) {
                self.remove(Table::Configs, keys::config(definition, key, piece));
            }
            self.removed += rough_bytes(before) as u64;
        }
        self.entries(definition, key, before, after);
    }

    /// Both lists ascend: what stands in one only is put or removed, the rest stays as it is.
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

    pub(in crate::store) fn remember(&mut self, request: &RememberedOutcome) {
        self.put(Table::Requests, keys::request(request.revision).to_vec(), keys::encode(request));
    }

    pub(in crate::store) fn forget(&mut self, revision: Revision) {
        self.remove(Table::Requests, keys::request(revision).to_vec());
    }
}

/// Roughly a config's bytes in all trees; no less than its encoded length.
fn rough_bytes(config: &Config) -> usize {
    let key = config.key.as_str().len();
    let entries: usize = config.entries.iter().map(|entry| entry.value.len() * 2 + key + 24).sum();
    config.data.len() + key + entries + 64
}

/// What one run of applying did, waiting to be carried.
#[derive(Debug)]
pub(in crate::store) struct Pending {
    pub(in crate::store) seal: Seal,
    pub(in crate::store) changes: Vec<Arc<Change>>,
    /// The state at the seal, when a definition was indexed anew.
    pub(in crate::store) state: Option<Box<State>>,
}

impl Pending {
    pub(in crate::store) fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.changes.iter().flat_map(|change| &change.edits)
    }

    /// What it weighs in a queue; an empty one has a place there, too.
    pub(in crate::store) fn weight(&self) -> usize {
        1 + self.edits().map(weight).sum::<usize>()
    }
}

/// A record counts as one, and its text by its length: what a merge holds of it stays in memory.
fn weight(edit: &Edit) -> usize {
    match edit {
        Edit::Config { after, .. } => config_weight(after.as_deref()),
        Edit::Entries { after, .. } => config_weight(Some(after)),
        Edit::Definition { after: Some(after), .. } | Edit::Building { after, .. } => {
            1 + after.schema.as_ref().map_or(0, |schema| schema.len()) / WEIGHT_BYTES
        }
        Edit::Definition { after: None, .. }
        | Edit::Reindexed { .. }
        | Edit::Remember(_)
        | Edit::Forget(_) => 1,
    }
}

fn config_weight(after: Option<&Config>) -> usize {
    1 + after.map_or(0, |record| record.data.len()) / WEIGHT_BYTES
}

/// One record's move: what the trees hold, and what they shall hold.
type Move<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// Many changes, merged, on the way into the trees in several steps.
#[derive(Debug)]
pub(in crate::store) struct Merge {
    /// Where it leads.
    pub(in crate::store) seal: Seal,
    /// Definitions whose rows go first, all of them.
    wiped: VecDeque<Revision>,
    definitions: BTreeMap<Revision, Move<Definition>>,
    configs: BTreeMap<(Revision, Key), Move<Config>>,
    requests: BTreeMap<Revision, Option<RememberedOutcome>>,
    /// Collections to be written whole, and how far the first of them is.
    rewritten: VecDeque<(Arc<Collection>, u64)>,
    /// What has joined and did not take the place of something else.
    weight: usize,
}

/// The next step of a merge.
#[derive(Debug)]
pub(in crate::store) enum Step {
    /// Remove rows of this definition, then say [`Merge::wiped`] once all are gone.
    Wipe(Revision),
    Put(Rows),
    /// Everything is in.
    Done,
}

impl Merge {
    pub(in crate::store) fn new(seal: Seal) -> Self {
        Self {
            seal,
            wiped: VecDeque::new(),
            definitions: BTreeMap::new(),
            configs: BTreeMap::new(),
            requests: BTreeMap::new(),
            rewritten: VecDeque::new(),
            weight: 0,
        }
    }

    /// Everything that a state holds, for fresh trees.
    pub(in crate::store) fn whole(state: &State, seal: Seal) -> Self {
        let mut merge = Self::new(seal);
        for collection in state.definitions() {
            let definition = &collection.definition;
            merge.definitions.insert(definition.id, (None, Some(definition.clone())));
            merge.rewritten.push_back((collection.clone(), 0));
        }
        merge.requests.extend(state.requests().map(|request| (request.revision, Some(request.clone()))));
        merge
    }

    /// Whether more changes may join: a collection that is being rewritten comes from the state at the seal.
    pub(in crate::store) fn is_open(&self) -> bool {
        self.rewritten.is_empty()
    }

    /// What it weighs; see [`Pending::weight`].
    pub(in crate::store) fn weight(&self) -> usize {
        self.weight
    }

    /// Joins what comes next in the log.
    pub(in crate::store) fn join(&mut self, pending: Pending) {
        let Pending { seal, changes, state } = pending;
        let mut reindexed = BTreeSet::new();
        for edit in changes.iter().flat_map(|change| &change.edits) {
            self.join_edit(edit, &mut reindexed);
        }
        for id in reindexed {
            let collection =
                state.as_ref().and_then(|state| state.definitions().find(|c| c.definition.id == id).cloned());
            // A definition that is gone again was wiped anyway.
            if let Some(collection) = collection {
                self.drop_configs(id);
                self.wiped.push_back(id);
                let definition = self.definitions.entry(id).or_default();
                *definition = (None, Some(collection.definition.clone()));
                self.rewritten.push_back((collection, 0));
            }
        }
        self.seal = seal;
    }

    fn join_edit(&mut self, edit: &Edit, reindexed: &mut BTreeSet<Revision>) {
        match edit {
            Edit::Definition { before: Some(before), after: None } => {
                self.definitions.remove(&before.id);
                self.drop_configs(before.id);
                self.weight += 1;
                self.wiped.push_back(before.id);
            }
            Edit::Definition { before, after } => {
                if let Some(id) = after.as_ref().map(|record| record.id) {
                    self.weight += weight(edit);
                    self.definitions.entry(id).or_insert_with(|| (before.clone(), None)).1 = after.clone();
                }
            }
            Edit::Config { definition, before, after } => {
                self.join_config(*definition, before.as_ref(), after.as_ref());
            }
            Edit::Entries { definition, before, after } => {
                self.join_config(*definition, Some(before), Some(after));
            }
            Edit::Building { before, after } => {
                self.weight += weight(edit);
                let kept = self.definitions.entry(after.id);
                kept.or_insert_with(|| (Some(before.clone()), None)).1 = Some(after.clone());
            }
            Edit::Reindexed { definition } => {
                reindexed.insert(*definition);
            }
            Edit::Remember(request) => {
                self.weight += 1;
                self.requests.insert(request.revision, Some(request.clone()));
            }
            Edit::Forget(request) => {
                self.weight += 1;
                self.requests.insert(request.revision, None);
            }
        }
    }

    fn join_config(&mut self, id: Revision, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
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

    fn drop_configs(&mut self, id: Revision) {
        // Keys have no smallest value to make a range with; the map is small or the deletion is rare.
        self.configs.retain(|(definition, _), _| *definition != id);
    }

    /// All rows of the first wiped definition are gone.
    pub(in crate::store) fn wiped(&mut self) {
        self.wiped.pop_front();
    }

    /// The next step, of about `limit` records.
    pub(in crate::store) fn step(&mut self, limit: usize) -> Step {
        if let Some(id) = self.wiped.front() {
            return Step::Wipe(*id);
        }
        let mut rows = Rows::default();
        let mut room = limit;
        while room > 0 && self.put(&mut rows, &mut room) {}
        if room == limit {
            return Step::Done;
        }
        // Neighbours in a tree are on one page of it, and each row stands there once.
        rows.list.sort_unstable();
        Step::Put(rows)
    }

    /// Puts one record, or some of a collection; whether there was any.
    fn put(&mut self, rows: &mut Rows, room: &mut usize) -> bool {
        if let Some((_, (before, after))) = self.definitions.pop_first() {
            rows.definition(before.as_deref(), after.as_deref());
            *room -= 1;
        } else if let Some(((definition, _), (before, after))) = self.configs.pop_first() {
            rows.config(definition, before.as_deref(), after.as_deref());
            // A large record fills a step.
            let bytes = after.map_or(0, |record| rough_bytes(&record));
            *room = (*room - 1).saturating_sub(bytes / keys::PIECE_BYTES);
        } else if let Some((revision, request)) = self.requests.pop_first() {
            match request {
                Some(request) => rows.remember(&request),
                None => rows.forget(revision),
            }
            *room -= 1;
        } else if let Some((collection, place)) = self.rewritten.front_mut() {
            let mut ended = true;
            for config in collection.by_key.from(*place) {
                if *room == 0 {
                    ended = false;
                    break;
                }
                rows.config(collection.definition.id, None, Some(&config.record));
                *place += 1;
                *room = (*room - 1).saturating_sub(rough_bytes(&config.record) / keys::PIECE_BYTES);
            }
            if ended {
                self.rewritten.pop_front();
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
        let position = Position { index: revision, stamp: Vec::new() };
        let seal =
            Seal { position, revision, last_at: Timestamp(revision), digest: 0, compaction_revision: 0 };
        Pending { seal, changes: vec![Arc::new(change(revision))], state: None }
    }

    #[test]
    fn a_key_that_changes_often_weighs_once_and_is_put_once() {
        let mut merge = Merge::new(pending(1).seal);
        (1..=50).for_each(|revision| merge.join(pending(revision)));
        assert_eq!((merge.weight(), merge.seal.revision), (1, 50));
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
    fn an_index_entry_that_stays_is_not_written() {
        let mut merge = Merge::new(pending(2).seal);
        merge.join(pending(2));
        let Step::Put(rows) = merge.step(10) else { panic!("there is something to put") };
        assert!(rows.list.iter().all(|row| row.table == Table::Configs), "{rows:?}");
    }
}
