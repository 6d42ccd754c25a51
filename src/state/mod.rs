//! STUB
pub mod apply;
pub mod build;
pub mod digest;
pub mod order;
pub mod query;

use std::{cmp::Ordering, sync::Arc};

use crate::model::{command::{Outcome, RequestStamp}, record::{Config, Definition, Revision}, time::Timestamp};
use order::{Item, Order};

/// Everything the cluster has agreed on, at one revision. Cloning it is O(1) and is taking a snapshot.
#[derive(Debug, Clone)]
pub struct State {
    pub(in crate::state) revision: Revision,
    pub(in crate::state) last_at: Timestamp,
    pub(in crate::state) by_key: Order<ByKey<Arc<Collection>>>,
    pub(in crate::state) by_created: Order<ByCreated<Arc<Collection>>>,
    pub(in crate::state) by_modified: Order<ByModified<Arc<Collection>>>,
    // B adds: requests, digest, ...
}

/// A definition with its configs and their orders.
#[derive(Debug, Clone)]
pub struct Collection {
    pub definition: Arc<Definition>,
    pub by_key: Order<ByKey<Arc<Config>>>,
    pub by_created: Order<ByCreated<Arc<Config>>>,
    pub by_modified: Order<ByModified<Arc<Config>>>,
    /// One per slot, each with the configs' entries of that slot, by value, then key.
    pub indexes: Vec<Order<BySlot>>,
    // B adds: digest, bytes
}

/// What an order by key or time needs of a record.
pub trait Record: Clone + std::fmt::Debug {
    fn key(&self) -> &str;
    fn created_at(&self) -> Timestamp;
    fn modified_at(&self) -> Timestamp;
}

#[derive(Debug, Clone)] pub struct ByKey<R>(pub R);
/// By time; ties by key ASCENDING in both directions of listing can't arise: stamps grow strictly and are unique.
#[derive(Debug, Clone)] pub struct ByCreated<R>(pub R);
#[derive(Debug, Clone)] pub struct ByModified<R>(pub R);
/// A config by one of its entries: `config.entries[place]`.
#[derive(Debug, Clone)] pub struct BySlot { pub config: Arc<Config>, pub place: u32 }

impl Record for Arc<Config> { fn key(&self) -> &str { self.key.as_str() } fn created_at(&self) -> Timestamp { self.created_at } fn modified_at(&self) -> Timestamp { self.modified_at } }
impl Record for Arc<Collection> { fn key(&self) -> &str { self.definition.key.as_str() } fn created_at(&self) -> Timestamp { self.definition.created_at } fn modified_at(&self) -> Timestamp { self.definition.modified_at } }
impl<R: Record> Item for ByKey<R> { type Seek<'a> = &'a str; fn seek(&self) -> &str { self.0.key() } fn compare(a: &str, b: &str) -> Ordering { a.cmp(b) } }
impl<R: Record> Item for ByCreated<R> { type Seek<'a> = (Timestamp, &'a str); fn seek(&self) -> (Timestamp, &str) { (self.0.created_at(), self.0.key()) } fn compare(a: (Timestamp, &str), b: (Timestamp, &str)) -> Ordering { a.cmp(&b) } }
impl<R: Record> Item for ByModified<R> { type Seek<'a> = (Timestamp, &'a str); fn seek(&self) -> (Timestamp, &str) { (self.0.modified_at(), self.0.key()) } fn compare(a: (Timestamp, &str), b: (Timestamp, &str)) -> Ordering { a.cmp(&b) } }
impl BySlot { pub fn value(&self) -> &[u8] { &self.config.entries[self.place as usize].value } }
impl Item for BySlot { type Seek<'a> = (&'a [u8], &'a str); fn seek(&self) -> (&[u8], &str) { (self.value(), self.config.key.as_str()) } fn compare(a: (&[u8], &str), b: (&[u8], &str)) -> Ordering { a.cmp(&b) } }

impl State {
    pub fn new() -> Self { todo!() }
    /// The last agreed entry that it knows; entries without a command count.
    pub fn revision(&self) -> Revision { self.revision }
    pub fn last_at(&self) -> Timestamp { self.last_at }
    /// An additive hash over all that is stored (definitions, configs, requests, last_at).
    pub fn digest(&self) -> u128 { todo!() }
    pub fn definition(&self, _key: &str) -> Option<&Arc<Collection>> { todo!() }
    pub fn definitions(&self) -> impl Iterator<Item = &Arc<Collection>> { self.by_key.from(0).map(|c| &c.0) }
    /// Remembered requests, oldest first.
    pub fn requests(&self) -> impl Iterator<Item = &Remembered> { std::iter::empty() }
    pub fn remembered(&self, _id: &[u8; 16]) -> Option<&Remembered> { todo!() }
    pub fn config_count(&self) -> u64 { todo!() }
}

impl Collection {
    pub fn config(&self, key: &str) -> Option<&Arc<Config>> { self.by_key.get(key).map(|c| &c.0) }
}

/// The kept answer of a request.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Remembered { pub stamp: RequestStamp, pub at: Timestamp, pub revision: Revision, pub outcome: Outcome }

/// What one entry did.
#[derive(Debug, Clone, PartialEq)]
pub struct Change { pub revision: Revision, pub at: Timestamp, pub by: String, pub reason: Option<String>, pub edits: Vec<Edit> }

/// One record's part of a change. Also entries whose verdict is a rejection have a change when a request is remembered.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// `before` None = created, `after` None = deleted with all its configs.
    Definition { before: Option<Arc<Definition>>, after: Option<Arc<Definition>> },
    /// All configs of the definition (id) were indexed anew; follows its Edit::Definition.
    Reindexed { definition: Revision },
    /// A config of the definition with this id.
    Config { definition: Revision, before: Option<Arc<Config>>, after: Option<Arc<Config>> },
    Remember(Remembered),
    Forget(Remembered),
}
