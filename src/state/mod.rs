//! What the cluster has agreed on: one immutable value, the same on every node at the same revision.
//!
//! A [`State`] is a tree of shared nodes: cloning it takes a snapshot in constant time, and a page, its sort, its
//! filters and its total all come from one such picture, without a lock. Each definition owns its subtree, so that
//! deleting it is one removal however many configs it has.
//!
//! | file | what it does |
//! |---|---|
//! | [`apply`] | the transition function: each command's verdict, next state and change |
//! | [`indexing`] | changed indexed paths, and the build that brings configs up to them |
//! | `unique` | unique paths: whether a value is taken |
//! | [`query`] | lists: a page, and the exact number of all that match |
//! | [`order`] | the counted copy-on-write tree of all orders |
//! | `trailing` | the orders beside the one by key, which trail behind it unseen |
//! | `items`, `short` | what stands in the orders |
//! | [`build`] | a state of stored records, all orders at once |
//! | [`digest`] | one number by which two nodes compare what they hold |
//! | [`compaction_revision`] | the oldest revision whose state may be asked for |
//!
//! **Invariant:** only [`State::apply`] and [`State::advance`] change a state, and what they make of it follows
//! from their arguments alone.

pub mod apply;
pub mod builder;
pub mod compaction;
pub mod digest;
pub mod index;
pub mod query;

use std::{cmp::Ordering, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::model::{
    command::{IdempotencyKey, Outcome},
    error::Rejection,
    key::Key,
    record::{Config, Definition, Revision},
    time::Timestamp,
};
use index::deferred::DeferredIndexes;
pub use index::deferred::Indexes;
pub use index::entries::{ByKey, BySlot, ByTime, Record};
use index::tree::{Item, Tree};

/// Everything that the cluster has agreed on, at one revision.
#[derive(Debug, Clone, Default)]
pub struct State {
    revision: Revision,
    last_at: Timestamp,
    by_key: Tree<ByKey<Arc<Collection>>>,
    by_created: Tree<ByTime<Arc<Definition>>>,
    by_modified: Tree<ByTime<Arc<Definition>>>,
    /// The definitions whose configs are being indexed.
    building: Tree<ByKey<Arc<Definition>>>,
    requests: Tree<ById>,
    requests_by_age: Tree<ByAge>,
    configs: u64,
    /// The sum of the hashes of all records (`digest.rs`).
    sum: u128,
    compaction_revision: Revision,
}

/// A definition with its configs in their orders.
#[derive(Debug, Clone)]
pub struct Collection {
    /// The definition itself.
    pub definition: Arc<Definition>,
    /// All configs by key.
    pub by_key: Tree<ByKey<Arc<Config>>>,
    /// The orders by time and by value: they name configs by their keys alone, so a write touches only those in which
    /// its config moves.
    trailing: DeferredIndexes,
    /// For each indexed path, how many entries are not the first of their config there.
    repeated: Vec<u64>,
    /// The sum of the hashes of the configs.
    sum: u128,
}

/// The kept answer of a request that may be sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The request.
    pub stamp: IdempotencyKey,
    /// When it was decided, by the log's time.
    pub at: Timestamp,
    /// The entry that decided it.
    pub revision: Revision,
    /// The decision.
    pub outcome: Outcome,
}

impl Remembered {
    /// The answer to a request that bears the same idempotency key.
    ///
    /// # Errors
    /// The rejection that was remembered, or the one of another request under the same key.
    pub fn answer_to(&self, request: &IdempotencyKey) -> Outcome {
        let same = self.stamp.fingerprint == request.fingerprint;
        if same { self.outcome.clone() } else { Err(Rejection::RequestReused) }
    }
}

#[derive(Debug, Clone)]
struct ById(Arc<Remembered>);

impl Item for ById {
    type Seek<'a> = &'a [u8; 16];
    type Bound = [u8; 16];

    fn seek(&self) -> &[u8; 16] {
        &self.0.stamp.id
    }

    fn bound(&self) -> [u8; 16] {
        self.0.stamp.id
    }

    fn seek_of(bound: &[u8; 16]) -> &[u8; 16] {
        bound
    }

    fn compare(a: &[u8; 16], b: &[u8; 16]) -> Ordering {
        a.cmp(b)
    }
}

#[derive(Debug, Clone)]
struct ByAge(Arc<Remembered>);

impl Item for ByAge {
    type Seek<'a> = Revision;
    type Bound = Revision;

    fn seek(&self) -> Revision {
        self.0.revision
    }

    fn bound(&self) -> Revision {
        self.0.revision
    }

    fn seek_of(bound: &Revision) -> Revision {
        *bound
    }

    fn compare(a: Revision, b: Revision) -> Ordering {
        a.cmp(&b)
    }
}

/// What one entry did: what the store writes and, later, a watcher receives.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The entry.
    pub revision: Revision,
    /// Its time.
    pub at: Timestamp,
    /// Who asked for it.
    pub by: String,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// What it did, record by record; at least one.
    pub edits: Vec<Edit>,
}

/// One record's part of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Created (no `before`), changed, or deleted with all its configs (no `after`).
    Definition {
        /// As it was.
        before: Option<Arc<Definition>>,
        /// As it is.
        after: Option<Arc<Definition>>,
    },
    /// All configs of the definition with this id have other index entries now; follows its `Definition`.
    Reindexed {
        /// The definition's id.
        definition: Revision,
    },
    /// A config of the definition with this id: created, changed or deleted.
    Config {
        /// The definition's id.
        definition: Revision,
        /// As it was.
        before: Option<Arc<Config>>,
        /// As it is.
        after: Option<Arc<Config>>,
    },
    /// An answer is kept from now on.
    Remember(Remembered),
    /// An answer is kept no longer.
    Forget(Remembered),
    /// A config of the definition with this id has other index entries; all else of it is as it was.
    Entries {
        /// The definition's id.
        definition: Revision,
        /// As it was.
        before: Arc<Config>,
        /// As it is.
        after: Arc<Config>,
    },
    /// The build of a definition's indexes stands elsewhere or is over; all else of it is as it was.
    Building {
        /// As it was.
        before: Arc<Definition>,
        /// As it is.
        after: Arc<Definition>,
    },
}

impl Edit {
    /// Whether the state before it held what takes long to free.
    #[must_use]
    pub fn frees_much(&self) -> bool {
        match self {
            Self::Definition { before: Some(before), after: Some(after) } => {
                before.indexing.slots.iter().any(|slot| after.indexing.place(*slot).is_none())
            }
            Self::Definition { after, .. } => after.is_none(),
            Self::Reindexed { .. } => true,
            Self::Config { .. }
            | Self::Remember(_)
            | Self::Forget(_)
            | Self::Entries { .. }
            | Self::Building { .. } => false,
        }
    }

    /// Whether it is a part of what was done, and not of how it is indexed: what the history keeps.
    #[must_use]
    pub fn is_told(&self) -> bool {
        match self {
            Self::Definition { .. }
            | Self::Reindexed { .. }
            | Self::Config { .. }
            | Self::Remember(_)
            | Self::Forget(_) => true,
            Self::Entries { .. } | Self::Building { .. } => false,
        }
    }
}

impl State {
    /// The state before the first entry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The last agreed entry that it knows; entries without a command count.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The time of the last change.
    #[must_use]
    pub fn last_at(&self) -> Timestamp {
        self.last_at
    }

    /// The definition with a key, and its configs.
    #[must_use]
    pub fn definition(&self, key: &str) -> Option<&Arc<Collection>> {
        self.by_key.get(key).map(|found| &found.record)
    }

    /// The definition with an id. Ids grow with the time of creation.
    #[must_use]
    pub fn definition_by_id(&self, id: Revision) -> Option<&Arc<Collection>> {
        let place = self.by_created.rank(|definition| definition.of.id < id);
        let found = &self.by_created.at(place)?.of;
        if found.id == id { self.definition(found.key.as_str()) } else { None }
    }

    /// All definitions by key.
    pub fn definitions(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.by_key.from(0).map(|found| &found.record)
    }

    /// The definition at a place in the order of keys.
    #[must_use]
    pub fn definition_at(&self, place: u64) -> Option<&Arc<Collection>> {
        self.by_key.at(place).map(|found| &found.record)
    }

    /// How many definitions there are.
    #[must_use]
    pub fn definition_count(&self) -> u64 {
        self.by_key.len()
    }

    /// How many configs there are, of all definitions.
    #[must_use]
    pub fn config_count(&self) -> u64 {
        self.configs
    }

    /// The kept answers, oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &Remembered> {
        self.requests_by_age.from(0).map(|found| &*found.0)
    }

    /// How many answers are kept.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.requests.len()
    }

    /// The kept answer of a request.
    #[must_use]
    pub fn remembered(&self, id: &[u8; 16]) -> Option<&Remembered> {
        self.requests.get(id).map(|found| &*found.0)
    }
}

impl Collection {
    /// The config with a key.
    #[must_use]
    pub fn config(&self, key: &str) -> Option<&Arc<Config>> {
        self.by_key.get(key).map(|found| &found.record)
    }

    /// Where the path of a slot stands; `None` for a path that was dropped.
    fn place(&self, slot: u16) -> Option<usize> {
        self.definition.indexing.place(slot)
    }

    /// The orders by time and by value. The first who asks after some writes brings them up to date, which takes 1 or
    /// 2 ms at most.
    #[must_use]
    pub fn orders(&self) -> &Indexes {
        self.trailing.orders(&self.definition.indexing)
    }

    /// The order of a slot.
    fn order(&self, slot: u16) -> Option<&Tree<BySlot>> {
        let place = self.place(slot)?;
        self.orders().by_slot.get(place)
    }

    /// The config that another order names.
    #[must_use]
    pub fn named(&self, key: &Key) -> &Arc<Config> {
        self.config(key.as_str()).expect("the orders name only configs that there are")
    }

    /// How many entries of a slot are not the first of their config: those of arrays.
    fn repeated(&self, slot: u16) -> u64 {
        self.place(slot).and_then(|place| self.repeated.get(place)).copied().unwrap_or(0)
    }

    /// All configs by key.
    pub fn configs(&self) -> impl Iterator<Item = &Arc<Config>> {
        self.by_key.from(0).map(|found| &found.record)
    }
}
