//! From edits to rows: the batches of one step, and the merge of many changes into the newest value of each key.
//!
//! **Invariant:** carrying a merge gives the same rows as carrying its changes one by one, because every put
//! knows the record that the trees hold (the first `before`) and the one that they shall hold (the last `after`).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use sled::Batch;

use super::{keyspace, trees::Seal};
use crate::{
    model::{
        key::Key,
        record::{Config, Definition, Revision},
    },
    state::{Change, Collection, Edit, Remembered, State},
};

/// Rows to put and to remove, tree by tree.
#[derive(Debug, Default)]
pub(super) struct Batches {
    pub(super) definitions: Batch,
    pub(super) configs: Batch,
    pub(super) indexes: Batch,
    pub(super) requests: Batch,
    pub(super) meta: Batch,
    /// Rough bytes that come and go.
    pub(super) added: u64,
    pub(super) removed: u64,
}

impl Batches {
    pub(super) fn definition(&mut self, before: Option<&Definition>, after: Option<&Definition>) {
        let Some(id) = after.or(before).map(|record| record.id) else { return };
        let rough = |record: &Definition| {
            let paths: usize = record.indexes.iter().chain(&record.unique).map(|path| path.len() + 5).sum();
            record.schema.as_ref().map_or(0, |schema| schema.len()) + paths + 512
        };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keyspace::encode(after);
            self.added += bytes.len() as u64;
            for (piece, bytes) in keyspace::pieces(&bytes) {
                self.definitions.insert(keyspace::definition(id, piece), bytes);
                written = piece + 1;
            }
        }
        if let Some(before) = before {
            self.removed += rough(before) as u64;
            for piece in written..keyspace::piece_count(before, rough(before)) {
                self.definitions.remove(keyspace::definition(id, piece));
            }
        }
    }

    pub(super) fn config(&mut self, definition: Revision, before: Option<&Config>, after: Option<&Config>) {
        let Some(key) = after.or(before).map(|record| &record.key) else { return };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keyspace::encode(after);
            for (piece, bytes) in keyspace::pieces(&bytes) {
                self.configs.insert(keyspace::config(definition, key, piece), bytes);
                written = piece + 1;
            }
            self.added += rough_bytes(after) as u64;
        }
        if let Some(before) = before {
            for piece in written..keyspace::piece_count(before, rough_bytes(before)) {
                self.configs.remove(keyspace::config(definition, key, piece));
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
            self.indexes.remove(keyspace::index(definition, entry.slot, &entry.value, key));
        }
        for entry in new.iter().filter(|entry| old.binary_search(entry).is_err()) {
            self.indexes.insert(keyspace::index(definition, entry.slot, &entry.value, key), &[]);
        }
    }

    pub(super) fn remember(&mut self, request: &Remembered) {
        self.requests.insert(&keyspace::request(request.revision), keyspace::encode(request));
    }

    pub(super) fn forget(&mut self, revision: Revision) {
        self.requests.remove(&keyspace::request(revision));
    }

    /// An edit that touches one record's rows only; see [`is_wide`].
    pub(super) fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Definition { before, after } => self.definition(before.as_deref(), after.as_deref()),
            Edit::Config { definition, before, after } => {
                self.config(*definition, before.as_deref(), after.as_deref());
            }
            Edit::Remember(request) => self.remember(request),
            Edit::Forget(request) => self.forget(request.revision),
            Edit::Reindexed { .. } => {}
        }
    }
}

/// Roughly a config's bytes in all trees; no less than its encoded length.
fn rough_bytes(config: &Config) -> usize {
    let key = config.key.as_str().len();
    let entries: usize = config.entries.iter().map(|entry| entry.value.len() * 2 + key + 24).sum();
    config.data.len() + key + entries + 64
}

/// Whether an edit touches any number of rows.
pub(super) fn is_wide(edit: &Edit) -> bool {
    match edit {
        Edit::Definition { after, .. } => after.is_none(),
        Edit::Reindexed { .. } => true,
        Edit::Config { .. } | Edit::Remember(_) | Edit::Forget(_) => false,
    }
}

/// What one run of applying did, waiting to be carried.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) seal: Seal,
    pub(super) changes: Vec<Arc<Change>>,
    /// The state at the seal, when a definition was indexed anew.
    pub(super) state: Option<Box<State>>,
}

impl Pending {
    pub(super) fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.changes.iter().flat_map(|change| &change.edits)
    }

    /// What it weighs in a queue; an empty one has a place there, too.
    pub(super) fn weight(&self) -> usize {
        1 + self.edits().map(weight).sum::<usize>()
    }
}

/// A record counts as one; a large one as its pieces.
fn weight(edit: &Edit) -> usize {
    let bytes = match edit {
        Edit::Config { after: Some(after), .. } => after.data.len(),
        Edit::Definition { after: Some(after), .. } => after.schema.as_ref().map_or(0, |schema| schema.len()),
        Edit::Config { .. }
        | Edit::Definition { .. }
        | Edit::Reindexed { .. }
        | Edit::Remember(_)
        | Edit::Forget(_) => 0,
    };
    1 + bytes / keyspace::PIECE_BYTES
}

/// One record's move: what the trees hold, and what they shall hold.
type Move<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// Many changes, merged, on the way into the trees in several steps.
#[derive(Debug)]
pub(super) struct Merge {
    /// Where it leads.
    pub(super) seal: Seal,
    /// Definitions whose rows go first, all of them.
    wiped: VecDeque<Revision>,
    definitions: BTreeMap<Revision, Move<Definition>>,
    configs: BTreeMap<(Revision, Key), Move<Config>>,
    requests: BTreeMap<Revision, Option<Remembered>>,
    /// Collections to be written whole, and how far the first of them is.
    rewritten: VecDeque<(Arc<Collection>, u64)>,
}

/// The next step of a merge.
#[derive(Debug)]
pub(super) enum Step {
    /// Remove rows of this definition, then say [`Merge::wiped`] once all are gone.
    Wipe(Revision),
    Put(Box<Batches>),
    /// Everything is in.
    Done,
}

impl Merge {
    pub(super) fn new(seal: Seal) -> Self {
        Self {
            seal,
            wiped: VecDeque::new(),
            definitions: BTreeMap::new(),
            configs: BTreeMap::new(),
            requests: BTreeMap::new(),
            rewritten: VecDeque::new(),
        }
    }

    /// Everything that a state holds, for fresh trees.
    pub(super) fn whole(state: &State, seal: Seal) -> Self {
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
    pub(super) fn is_open(&self) -> bool {
        self.rewritten.is_empty()
    }

    /// How many records it holds.
    pub(super) fn weight(&self) -> usize {
        self.definitions.len() + self.configs.len() + self.requests.len() + self.wiped.len()
    }

    /// Joins what comes next in the log.
    pub(super) fn join(&mut self, pending: Pending) {
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
                self.wiped.push_back(before.id);
            }
            Edit::Definition { before, after } => {
                if let Some(id) = after.as_ref().map(|record| record.id) {
                    self.definitions.entry(id).or_insert_with(|| (before.clone(), None)).1 = after.clone();
                }
            }
            Edit::Config { definition, before, after } => {
                if let Some(key) = after.as_ref().or(before.as_ref()).map(|record| record.key.clone()) {
                    let kept = self.configs.entry((*definition, key));
                    kept.or_insert_with(|| (before.clone(), None)).1 = after.clone();
                }
            }
            Edit::Reindexed { definition } => {
                reindexed.insert(*definition);
            }
            Edit::Remember(request) => {
                self.requests.insert(request.revision, Some(request.clone()));
            }
            Edit::Forget(request) => {
                self.requests.insert(request.revision, None);
            }
        }
    }

    fn drop_configs(&mut self, id: Revision) {
        // Keys have no smallest value to make a range with; the map is small or the deletion is rare.
        self.configs.retain(|(definition, _), _| *definition != id);
    }

    /// All rows of the first wiped definition are gone.
    pub(super) fn wiped(&mut self) {
        self.wiped.pop_front();
    }

    /// The next step, of about `limit` records.
    pub(super) fn step(&mut self, limit: usize) -> Step {
        if let Some(id) = self.wiped.front() {
            return Step::Wipe(*id);
        }
        let mut batches = Box::<Batches>::default();
        let mut room = limit;
        while room > 0 && self.put(&mut batches, &mut room) {}
        if room == limit { Step::Done } else { Step::Put(batches) }
    }

    /// Puts one record, or some of a collection; whether there was any.
    fn put(&mut self, batches: &mut Batches, room: &mut usize) -> bool {
        if let Some((_, (before, after))) = self.definitions.pop_first() {
            batches.definition(before.as_deref(), after.as_deref());
            *room -= 1;
        } else if let Some(((definition, _), (before, after))) = self.configs.pop_first() {
            batches.config(definition, before.as_deref(), after.as_deref());
            // A large record fills a step.
            let bytes = after.map_or(0, |record| rough_bytes(&record));
            *room = (*room - 1).saturating_sub(bytes / keyspace::PIECE_BYTES);
        } else if let Some((revision, request)) = self.requests.pop_first() {
            match request {
                Some(request) => batches.remember(&request),
                None => batches.forget(revision),
            }
            *room -= 1;
        } else if let Some((collection, place)) = self.rewritten.front_mut() {
            let mut ended = true;
            for config in collection.by_key.from(*place) {
                if *room == 0 {
                    ended = false;
                    break;
                }
                batches.config(collection.definition.id, None, Some(&config.0));
                *place += 1;
                *room = (*room - 1).saturating_sub(rough_bytes(&config.0) / keyspace::PIECE_BYTES);
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
