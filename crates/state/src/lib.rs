//! The replicated state: one immutable value, the same on every node at the same revision.
//!
//! A [`State`] is a tree of shared nodes: a clone is a snapshot that is taken in constant time, and a page, its sort,
//! its filters and its total all come from one snapshot. Each definition owns its subtree, so that deleting it is one
//! removal, however many configs it has.
//!
//! | file | what it does |
//! |---|---|
//! | [`apply`] | the transition function: each command's verdict, next state and change |
//! | [`index`] | the primary index, the indexes by time and by value, unique paths, index builds |
//! | [`query`] | lists: a page, and the exact number of all matching records |
//! | [`builder`] | a state from stored records: at start and from a received snapshot |
//! | [`deleted`] | the deleted definitions that are kept, so that a deletion can be undone |
//! | [`digest`] | one number by which two nodes compare what they hold |
//! | [`feed`] | the recent changes in memory, for watchers |
//! | [`seen`] | what readers see while a rollout runs |
//! | [`audit`] | the anchors of the audit logs |
//! | [`environment`] | the environments, and whether their rules let a proposal change what it changes |
//! | [`change`] | the change requests, and whether one may be applied |
//! | [`person`] | the persons that access keys name |
//! | [`identity`] | providers, roles, sessions, and whether a proposal in the name of one is accepted |
//! | `system` | where each kind of system record is |
//! | [`access`] | the access keys, and whether a proposal in the name of one is accepted |
//! | [`stored`] | the records and bytes that an access key may change, and its quota |
//! | [`earlier`] | an earlier state, rebuilt from a later one |
//! | [`continuation`] | a later state than that of a backup, by the changes of the history |
//! | `replaced` | what a snapshot keeps in memory after the state has moved on |
//!
//! Shared memory: snapshots of a definition share a cache of applied index updates, with a `Mutex` around two words and
//! an `AtomicU64` that numbers the updates of the process (`index/deferred`). Neither affects a result: the numbers
//! are never stored, hashed or sent, and the cached value depends on the updates alone; a race decides only which
//! thread computes it. `digest` reuses a buffer in each thread.
//!
//! **Invariant:** only [`State::apply`] and [`State::advance`] change an agreed state, and the result depends on the
//! state and their arguments alone.

pub mod access;
pub mod apply;
pub mod audit;
pub mod builder;
pub mod change;
pub mod continuation;
pub mod deleted;
pub mod digest;
pub mod earlier;
pub mod environment;
pub mod feed;
pub mod identity;
pub mod index;
pub mod person;
pub mod query;
mod replaced;
pub mod seen;
pub mod stored;
mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::{cmp::Ordering, sync::Arc};

use serde::{Deserialize, Serialize};

use access::ByKeyId;
use concord_model::{
    access_key::AccessKey,
    audit::AuditAnchors,
    command::{IdempotencyKey, Outcome},
    error::Rejection,
    feature::LEVEL_MIN,
    key::Key,
    record::{Config, Definition, Revision, VoidRevisions},
    system::SystemRecord,
    time::Timestamp,
};
use index::{
    backfill::Reindexed,
    deferred::{DeferredIndexes, IndexSource},
    tree::{Item, Tree},
};
pub use index::{
    entries::{ByKey, BySlot, ByTime, KeyedRecord},
    indexes::Indexes,
};

/// Everything that the cluster has agreed on, at one revision.
#[derive(Debug, Clone, Default)]
pub struct State {
    revision: Revision,
    last_at: Timestamp,
    by_key: Tree<ByKey<Arc<Collection>>>,
    by_created: Tree<ByTime<Arc<Definition>>>,
    by_modified: Tree<ByTime<Arc<Definition>>>,
    /// The definitions with an index build in progress.
    building: Tree<ByKey<Arc<Definition>>>,
    requests: Tree<ById>,
    requests_by_age: Tree<ByAge>,
    configs: u64,
    /// The deleted definitions that are kept, by the revision of their deletion, then by id. They are few
    /// ([`DELETED_DEFINITIONS_MAX`](concord_model::limits::DELETED_DEFINITIONS_MAX)).
    deleted: Arc<Vec<Arc<Collection>>>,
    /// How many configs they have together.
    deleted_configs: u64,
    /// The bytes that they hold in memory, about.
    deleted_bytes: u64,
    /// The sum of the hashes of all records (`digest.rs`).
    sum: u128,
    /// Not in the digest: it says how far back the history reaches, not what is stored. A restored backup, whose
    /// history begins with the restore, has the digest of the backup.
    compaction_revision: Revision,
    /// Ascending. Not in the digest, for the same reason.
    void: Arc<[VoidRevisions]>,
    feature_level: FeatureLevel,
    access_keys: Tree<ByKeyId>,
    root_disabled: bool,
    /// The anchors of the audit logs, by log.
    audit_anchors: audit::AnchorsByLog,
    environments: environment::EnvironmentsByName,
    changes: Arc<change::records::ChangeRecords>,
    persons: Tree<person::ByPersonId>,
    persons_by_label: Tree<person::ByLabel>,
    identity: Arc<identity::records::IdentityRecords>,
    /// What the entry that is being applied has reindexed so far.
    reindexed: Reindexed,
    /// The bytes of all records (`replaced.rs`).
    bytes: u64,
    /// The bytes of the keys and data of all configs (`stored.rs`).
    content: u64,
    replaced: replaced::Replaced,
}

/// The feature level of the cluster (`model/feature.rs`); [`LEVEL_MIN`] in a state that nothing has raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FeatureLevel(u32);

impl Default for FeatureLevel {
    fn default() -> Self {
        Self(LEVEL_MIN)
    }
}

/// A definition with its configs and their indexes.
#[derive(Debug, Clone)]
pub struct Collection {
    /// The definition itself.
    pub definition: Arc<Definition>,
    /// Whether the schema may mark secret fields.
    is_marked: bool,
    /// The primary index: all configs by key.
    pub by_key: Tree<ByKey<Arc<Config>>>,
    /// The indexes by time and by value. Their entries name configs by key, so a write touches only the indexes in
    /// which the position of its config changes.
    deferred: DeferredIndexes,
    /// For each indexed path, how many entries are not the first of their config.
    repeated: Vec<u64>,
    /// The sum of the hashes of the configs.
    sum: u128,
    /// The bytes of the definition and its configs.
    bytes: u64,
    /// The bytes of the keys and data of its configs.
    content: u64,
}

/// The remembered outcome of a request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedOutcome {
    /// The request.
    pub request: IdempotencyKey,
    /// When it was decided, by the log's time.
    pub at: Timestamp,
    /// The revision at which it was decided.
    pub revision: Revision,
    /// The decision.
    pub outcome: Outcome,
}

impl RememberedOutcome {
    /// The answer to a request that bears the same idempotency key.
    ///
    /// # Errors
    /// The rejection that was remembered, or the one of another request under the same key.
    pub fn answer_to(&self, request: &IdempotencyKey) -> Outcome {
        let same = self.request.fingerprint == request.fingerprint;
        if same { self.outcome.clone() } else { Err(Rejection::RequestReused) }
    }
}

#[derive(Debug, Clone)]
struct ById(Arc<RememberedOutcome>);

impl Item for ById {
    type SearchKey<'a> = &'a [u8; 16];
    type Bound = [u8; 16];
    type Weight = ();

    fn search_key(&self) -> &[u8; 16] {
        &self.0.request.id
    }

    fn bound(&self) -> [u8; 16] {
        self.0.request.id
    }

    fn search_key_of(bound: &[u8; 16]) -> &[u8; 16] {
        bound
    }

    fn compare(a: &[u8; 16], b: &[u8; 16]) -> Ordering {
        a.cmp(b)
    }

    fn weight(&self) {}
}

#[derive(Debug, Clone)]
struct ByAge(Arc<RememberedOutcome>);

impl Item for ByAge {
    type SearchKey<'a> = Revision;
    type Bound = Revision;
    type Weight = ();

    fn search_key(&self) -> Revision {
        self.0.revision
    }

    fn bound(&self) -> Revision {
        self.0.revision
    }

    fn search_key_of(bound: &Revision) -> Revision {
        *bound
    }

    fn compare(a: Revision, b: Revision) -> Ordering {
        a.cmp(&b)
    }

    fn weight(&self) {}
}

/// What one proposal changed: what the store writes and watchers receive.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The revision at which it was decided.
    pub revision: Revision,
    /// Its time.
    pub at: Timestamp,
    /// Its author.
    pub by: String,
    /// The caller's reason.
    pub reason: Option<String>,
    /// The changed records; at least one.
    pub edits: Vec<Edit>,
}

/// The change of one record.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// Created (no `before`), changed, or deleted with all its configs (no `after`).
    Definition {
        /// Before the change.
        before: Option<Arc<Definition>>,
        /// After the change.
        after: Option<Arc<Definition>>,
    },
    /// All configs of the definition with this id were reindexed; follows its `Definition`.
    Reindexed {
        /// The definition's id.
        definition: Revision,
    },
    /// So many configs went with the deleted definition; follows its `Definition`.
    Deleted {
        /// The definition's id.
        definition: Revision,
        /// The number of its configs before the change.
        configs: u64,
        /// The definition as it is kept; `None` when it is gone for good.
        kept: Option<Arc<Definition>>,
    },
    /// A config of the definition with this id: created, changed or deleted.
    Config {
        /// The definition's id.
        definition: Revision,
        /// Before the change.
        before: Option<Arc<Config>>,
        /// After the change.
        after: Option<Arc<Config>>,
    },
    /// An outcome is remembered.
    Remember(RememberedOutcome),
    /// An outcome is forgotten.
    Forget(RememberedOutcome),
    /// An index build changed the index entries of a config of the definition with this id, and nothing else of it.
    Entries {
        /// The definition's id.
        definition: Revision,
        /// Before the change.
        before: Arc<Config>,
        /// After the change.
        after: Arc<Config>,
    },
    /// The index build of a definition advanced or ended; nothing else of the definition changed.
    Building {
        /// Before the change.
        before: Arc<Definition>,
        /// After the change.
        after: Arc<Definition>,
    },
    /// An access key: created, changed or revoked.
    AccessKey {
        /// Before the change.
        before: Option<Arc<AccessKey>>,
        /// After the change.
        after: Option<Arc<AccessKey>>,
    },
    /// The definition returned with so many configs; follows its `Definition`.
    Undeleted {
        /// The definition as it was kept.
        kept: Arc<Definition>,
        /// The number of its configs.
        configs: u64,
    },
    /// A deleted definition that was kept is gone for good.
    Dropped {
        /// The definition as it was kept.
        kept: Arc<Definition>,
    },
    /// A recovered cluster continues after these revisions, which no change has.
    Skipped(VoidRevisions),
    /// The anchors of an audit log.
    AuditAnchors {
        /// Before the change.
        before: Option<Arc<AuditAnchors>>,
        /// After the change; `None` when there are too many logs.
        after: Option<Arc<AuditAnchors>>,
    },
    /// A system record: created, changed or deleted.
    System {
        /// Before the change.
        before: Option<Arc<SystemRecord>>,
        /// After the change.
        after: Option<Arc<SystemRecord>>,
    },
}

impl Edit {
    /// At most how many bytes the edit keeps in memory, of records before and after it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let definition = |one: &Option<Arc<Definition>>| one.as_deref().map_or(0, replaced::definition_bytes);
        let config = |one: &Option<Arc<Config>>| one.as_deref().map_or(0, replaced::config_bytes);
        let texts = match self {
            Self::Definition { before, after } => definition(before).saturating_add(definition(after)),
            Self::Config { before, after, .. } => config(before).saturating_add(config(after)),
            Self::Entries { before, after, .. } => {
                replaced::config_bytes(before).saturating_add(replaced::config_bytes(after))
            }
            Self::AccessKey { before, after } => {
                let bytes = |one: &Option<Arc<AccessKey>>| one.as_deref().map_or(0, access::key_bytes);
                bytes(before).saturating_add(bytes(after))
            }
            Self::AuditAnchors { before, after } => {
                let bytes = |one: &Option<Arc<AuditAnchors>>| one.as_deref().map_or(0, AuditAnchors::bytes);
                bytes(before).saturating_add(bytes(after))
            }
            Self::System { before, after } => {
                let bytes = |one: &Option<Arc<SystemRecord>>| one.as_deref().map_or(0, SystemRecord::bytes);
                bytes(before).saturating_add(bytes(after))
            }
            Self::Building { .. }
            | Self::Reindexed { .. }
            | Self::Deleted { .. }
            | Self::Undeleted { .. }
            | Self::Dropped { .. }
            | Self::Skipped(_)
            | Self::Remember(_)
            | Self::Forget(_) => 0,
        };
        texts.saturating_add(replaced::BYTES_PER_RECORD)
    }

    /// Whether it releases memory that takes long to free: a definition with its configs, or an index.
    #[must_use]
    pub fn is_costly_to_free(&self) -> bool {
        match self {
            Self::Definition { before: Some(before), after: Some(after) } => {
                before.indexing.slots.iter().any(|slot| after.indexing.position(*slot).is_none())
            }
            Self::Definition { after, .. } => after.is_none(),
            Self::Reindexed { .. } | Self::Dropped { .. } => true,
            Self::Undeleted { .. }
            | Self::Config { .. }
            | Self::Deleted { .. }
            | Self::Remember(_)
            | Self::Forget(_)
            | Self::Entries { .. }
            | Self::Building { .. }
            | Self::Skipped(_)
            | Self::AuditAnchors { .. }
            | Self::System { .. }
            | Self::AccessKey { .. } => false,
        }
    }

    /// Whether the history keeps it: all edits but the steps of index builds, those of access keys and anchors, which are no
    /// content of the cluster, those of the contents of change requests, which are gone with the last one, and those of
    /// sessions and key sets, which no other cluster has.
    #[must_use]
    pub fn is_in_history(&self) -> bool {
        match self {
            Self::Definition { .. }
            | Self::Reindexed { .. }
            | Self::Deleted { .. }
            | Self::Undeleted { .. }
            | Self::Config { .. }
            | Self::Dropped { .. }
            | Self::Skipped(_)
            | Self::Remember(_)
            | Self::Forget(_) => true,
            Self::System { before, after } => {
                let is_left_out = |record: &Arc<SystemRecord>| {
                    record.content().is_some() || record.session().is_some() || record.key_set().is_some()
                };
                !after.as_ref().or(before.as_ref()).is_some_and(is_left_out)
            }
            Self::Entries { .. }
            | Self::Building { .. }
            | Self::AuditAnchors { .. }
            | Self::AccessKey { .. } => false,
        }
    }
}

impl State {
    /// The state before the first entry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How much has been decided: each proposal is decided at the next revision, and an entry of the log without one
    /// takes a revision as well. It is the state's own count and not the index of an entry, which may hold several
    /// proposals.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The time of the last change.
    #[must_use]
    pub fn last_at(&self) -> Timestamp {
        self.last_at
    }

    /// The oldest revision whose state is available. Changes after it are retained, older ones may be deleted. The log
    /// decides it, so all nodes agree on which revisions are compacted.
    #[must_use]
    pub fn compaction_revision(&self) -> Revision {
        self.compaction_revision
    }

    /// The revisions that no change has, because a recovery has skipped them; ascending, without those that are compacted.
    #[must_use]
    pub fn void_revisions(&self) -> &[VoidRevisions] {
        &self.void
    }

    /// The void revisions that a revision is one of.
    #[must_use]
    pub fn void_at(&self, revision: Revision) -> Option<VoidRevisions> {
        self.void.iter().find(|void| (void.first..=void.last).contains(&revision)).copied()
    }

    /// The revision after which so many were given out; 0 if there are fewer. Void ones do not count.
    #[must_use]
    pub fn revision_before(&self, count: u64) -> Revision {
        let (mut from, mut count) = (self.revision, count);
        for void in self.void.iter().rev() {
            let given_out = from.saturating_sub(void.last);
            if given_out > count {
                break;
            }
            count -= given_out;
            from = void.first.saturating_sub(1);
        }
        from.saturating_sub(count)
    }

    /// The same records at a later revision and without their history: the first state of a restored cluster. No key is
    /// attested in it, there is no session, all change requests are held, and the cluster takes none back.
    #[must_use]
    pub fn restored_at(mut self, revision: Revision) -> Self {
        self.revision = self.revision.max(revision);
        self.raise_compaction_revision(self.revision);
        self.end_attestations();
        self.hold_restored_changes();
        self.drop_sessions();
        self
    }

    /// The feature level of the cluster. Whatever a level adds is used from that level on.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        self.feature_level.0
    }

    /// The definition with this key, and its configs.
    #[must_use]
    pub fn definition(&self, key: &str) -> Option<&Arc<Collection>> {
        self.by_key.get(key).map(|found| &found.record)
    }

    /// The definition with this id. Ids grow with the time of creation.
    #[must_use]
    pub fn definition_by_id(&self, id: Revision) -> Option<&Arc<Collection>> {
        let position = self.by_created.rank(|definition| definition.of.id < id);
        let found = &self.by_created.at(position)?.of;
        if found.id == id { self.definition(found.key.as_str()) } else { None }
    }

    /// All definitions by key.
    pub fn definitions(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.by_key.from(0).map(|found| &found.record)
    }

    /// The definitions whose keys begin with a text, by key.
    pub fn definitions_beginning(&self, beginning: &str) -> impl Iterator<Item = &Arc<Collection>> {
        let from = self.by_key.rank(|key| key.as_str() < beginning);
        let found = self.by_key.from(from).map(|found| &found.record);
        found.take_while(move |collection| collection.definition.key.as_str().starts_with(beginning))
    }

    /// The definition at a position in the order of keys.
    #[must_use]
    pub fn definition_at(&self, position: u64) -> Option<&Arc<Collection>> {
        self.by_key.at(position).map(|found| &found.record)
    }

    /// How many definitions there are.
    #[must_use]
    pub fn definition_count(&self) -> u64 {
        self.by_key.len()
    }

    /// How many configs all definitions have together.
    #[must_use]
    pub fn config_count(&self) -> u64 {
        self.configs
    }

    /// The remembered outcomes, oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &RememberedOutcome> {
        self.requests_by_age.from(0).map(|found| &*found.0)
    }

    /// How many outcomes are remembered.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.requests.len()
    }

    /// The remembered outcome of a request, by the id of its idempotency key.
    #[must_use]
    pub fn remembered(&self, id: &[u8; 16]) -> Option<&RememberedOutcome> {
        self.requests.get(id).map(|found| &*found.0)
    }
}

impl Collection {
    /// Whether the data may have secret fields; where it says no, they have none.
    #[must_use]
    pub fn may_have_secrets(&self) -> bool {
        self.is_marked
    }

    /// What differs between any two versions of definitions with their configs: the id and the revision of the
    /// definition, and the sum of the hashes of its configs, which have their revisions.
    #[must_use]
    pub fn version(&self) -> (Revision, Revision, u128) {
        (self.definition.id, self.definition.revision, self.sum)
    }

    /// The config with this key.
    #[must_use]
    pub fn config(&self, key: &str) -> Option<&Arc<Config>> {
        self.by_key.get(key).map(|found| &found.record)
    }

    /// The position of a slot's path in the definition; `None` for a dropped path.
    fn slot_position(&self, slot: u16) -> Option<usize> {
        self.definition.indexing.position(slot)
    }

    /// The indexes by time and by value. The first call after writes applies the pending updates or builds the indexes,
    /// which takes some milliseconds.
    #[must_use]
    pub fn indexes(&self) -> &Indexes {
        self.deferred.indexes(IndexSource {
            definition: &self.definition,
            configs: &self.by_key,
            repeated: &self.repeated,
        })
    }

    /// Whether [`Self::indexes`] need not be built: pending updates alone take at most 1 or 2 ms.
    #[must_use]
    pub fn has_indexes(&self) -> bool {
        self.deferred.is_built()
    }

    /// Builds the indexes for their next readers.
    pub fn build_indexes(&self) {
        let _built = self.indexes();
    }

    /// The index of a slot.
    fn index(&self, slot: u16) -> Option<&Tree<BySlot>> {
        let position = self.slot_position(slot)?;
        self.indexes().by_slot.get(position)
    }

    /// The config that an index entry names.
    #[must_use]
    pub fn config_of(&self, key: &Key) -> &Arc<Config> {
        self.config(key.as_str()).expect("an index names only existing configs")
    }

    /// How many entries of a slot are not the first of their config: arrays have several.
    fn repeated(&self, slot: u16) -> u64 {
        self.slot_position(slot).and_then(|position| self.repeated.get(position)).copied().unwrap_or(0)
    }

    /// The configs whose keys begin with a text, by key.
    pub fn configs_beginning(&self, beginning: &str) -> impl Iterator<Item = &Arc<Config>> {
        let from = self.by_key.rank(|key| key.as_str() < beginning);
        let found = self.by_key.from(from).map(|found| &found.record);
        found.take_while(move |config| config.key.as_str().starts_with(beginning))
    }

    /// All configs by key.
    pub fn configs(&self) -> impl Iterator<Item = &Arc<Config>> {
        self.by_key.from(0).map(|found| &found.record)
    }
}
