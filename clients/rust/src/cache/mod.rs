//! A local replica of configs, kept in sync by a watch: reads come from memory, without I/O, even while no node responds.
//!
//! | module | what it is for |
//! |---|---|
//! | `content` | the configs, and what changes do to them |
//! | `source` | where a value comes from, and how old it is |
//! | `follow` | the tasks: list and watch, confirm, save |
//! | `file` | the last-known-good file |
//! | `report` | what the cache says of candidates of rollouts, and of configs that the program rejects |
//! | `typed` | a config as a type of the program's |
//!
//! A watch delivers the state and then each change immediately. It does not prove that nothing is missing: its node may
//! be isolated from the quorum. So every few seconds a second task reads the revision of the cluster, linearizably. Once
//! the replica has reached that revision, it contains every change that was acknowledged before the read was sent: its
//! age counts from that moment.
//!
//! The nodes may suddenly belong to another cluster: one that was restored from a backup. Its id, which each response
//! has, differs, or its revision is lower. Then nothing confirms the replica any longer, and the cache lists the new
//! state.
//!
//! **Invariants:** a value is called fresh only while that moment is within the bound. A read never waits, and a copy
//! that was filled once never becomes empty because nodes are gone. What a file held is never called fresh.

mod content;
mod file;
mod follow;
mod report;
mod source;
mod typed;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak, atomic::AtomicBool},
    time::Duration,
};

use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinHandle};

pub use content::{Config, Selection};
pub use report::{Judge, Rejected, Verdict};
pub use source::{Freshness, Origin, Source};
pub use typed::{Typed, TypedRead};

pub(crate) use source::Moment;

use crate::{Client, Error, Request, records::config_path};
use content::Content;
use file::ToSave;
use report::Check;

/// What a cache contains, and how it is kept in sync.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The configs to keep.
    pub selections: Vec<Selection>,
    /// The last-known-good file: read at the start, and written as changes come. None is kept without it.
    pub file: Option<PathBuf>,
    /// The pause between two checks that nothing is missing. Each costs the cluster a linearizable read.
    pub confirm_every: Duration,
    /// For how long values are fresh after a check.
    pub fresh_for: Duration,
    /// How often the file is written while nothing changes, so that its age is known.
    pub save_every: Duration,
    /// Says whether the program runs well with a candidate of a rollout. Without it, it does as long as it admits the data;
    /// see [`Cache::typed`].
    pub judge: Option<Judge>,
    /// Lists what else the program rejects outside rollouts, beside data that it does not admit; see [`Cache::typed`].
    pub rejected: Option<Rejected>,
}

impl CacheOptions {
    /// A cache of these configs: confirmed every 2 s, fresh for 10 s, and without a file.
    #[must_use]
    pub fn new(selections: Vec<Selection>) -> Self {
        Self {
            selections,
            file: None,
            confirm_every: Duration::from_secs(2),
            fresh_for: Duration::from_secs(10),
            save_every: Duration::from_secs(60),
            judge: None,
            rejected: None,
        }
    }

    /// With a list of what the program rejects outside rollouts.
    #[must_use]
    pub fn rejected(
        mut self,
        list: impl Fn() -> Vec<(Arc<Config>, Verdict)> + Send + Sync + 'static,
    ) -> Self {
        self.rejected = Some(Rejected::new(list));
        self
    }

    /// With a judge of candidates.
    #[must_use]
    pub fn judge(mut self, judge: impl Fn(&Config) -> Verdict + Send + Sync + 'static) -> Self {
        self.judge = Some(Judge::new(judge));
        self
    }

    /// With a last-known-good file.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }
}

/// A config, and where it comes from.
#[derive(Debug, Clone)]
pub struct Read {
    /// The config.
    pub config: Arc<Config>,
    /// Where it comes from.
    pub source: Source,
}

/// The status of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Where its values come from; `None` while it has none.
    pub source: Option<Source>,
    /// The number of configs.
    pub configs: usize,
    /// How often its configs have changed since the start.
    pub changes: u64,
    /// How often it was filled with the whole state.
    pub listings: u64,
    /// Why it is not in sync with the cluster, if it is not.
    pub problem: Option<String>,
    /// What is wrong with its file, if anything is.
    pub file_problem: Option<String>,
}

/// A local replica of configs, kept in sync by a watch. Clones share the cache; its tasks end with the last of them.
#[derive(Debug, Clone)]
pub struct Cache(Arc<Running>);

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Shared {
    client: Client,
    options: CacheOptions,
    query: Vec<(&'static str, String)>,
    known: RwLock<Known>,
    /// Counts the changes of `known` that a reader can see.
    changed: watch::Sender<u64>,
    /// The last listing of a cluster that the nodes are no longer of.
    superseded: watch::Sender<u64>,
    /// Whose turn it is to write the file.
    saving: tokio::sync::Mutex<()>,
    /// What else must admit a config.
    checks: Mutex<Vec<Weak<Check>>>,
    /// Whether the program was told that its list of rejected configs panics.
    has_no_list: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    content: Option<Content>,
    /// Whether the content was sent by the cluster, and not read from a file.
    is_live: bool,
    /// Counts the listings. What belongs to an earlier one is late.
    listing: u64,
    /// While a listing is under way, the content stays as it is.
    is_listing: bool,
    /// The id of the cluster that the content is of, if a node has told it.
    cluster: Option<Arc<str>>,
    /// The nodes are, or may be, those of another cluster than the content, or of an earlier state of it.
    is_superseded: bool,
    confirmed: Option<Moment>,
    node: Option<Arc<str>>,
    problem: Option<String>,
    file_problem: Option<String>,
    listings: u64,
    changes: u64,
}

impl Shared {
    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn source(&self, known: &Known, content: &Content) -> Source {
        let age = known.confirmed.map_or(Duration::MAX, |moment| moment.age());
        let origin = if known.is_live { Origin::Cache } else { Origin::File };
        // No answer has confirmed what a file held, nor what another cluster holds.
        let fresh_for = (known.is_live && !known.is_superseded).then_some(self.options.fresh_for);
        let freshness = Moment::freshness(age, fresh_for);
        Source { origin, node: known.node.clone(), revision: content.position, age, freshness }
    }

    /// What the file has to hold; `None` while nothing was heard of the cluster.
    fn to_save(&self) -> Option<ToSave> {
        let known = self.known();
        if !known.is_live {
            return None;
        }
        Some(ToSave {
            content: known.content.clone()?,
            confirmed: known.confirmed?,
            node: known.node.clone(),
        })
    }
}

impl Client {
    /// A cache of configs. Its file is read at once, so values may be there when this returns; the nodes are asked in
    /// the background, by tasks of the runtime that this is called in.
    ///
    /// # Errors
    /// When the options are invalid. It is no error if no node responds.
    pub fn cache(&self, options: CacheOptions) -> Result<Cache, Error> {
        let query = content::query(&options.selections).map_err(Error::Usage)?;
        let mut known = Known::default();
        match options.file.as_deref().map(|path| file::read(path, self.environment(), &options.selections)) {
            Some(Ok(Some(saved))) => {
                known.content = Some(saved.content);
                known.confirmed = Some(saved.confirmed);
                known.node = saved.node;
            }
            Some(Err(problem)) => known.file_problem = Some(problem),
            Some(Ok(None)) | None => {}
        }
        let known = RwLock::new(known);
        let changed = watch::Sender::new(0);
        let saving = tokio::sync::Mutex::default();
        let (client, superseded) = (self.clone(), watch::Sender::new(0));
        let (checks, has_no_list) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared {
            client,
            options,
            query,
            known,
            changed,
            superseded,
            saving,
            checks,
            has_no_list,
        });
        let task = tokio::spawn(follow::run(shared.clone()));
        Ok(Cache(Arc::new(Running { shared, task })))
    }
}

impl Cache {
    /// A config from memory; `None` if there is no such config. Never waits and does no I/O.
    ///
    /// # Errors
    /// [`Error::Usage`] when the cache does not select this config; [`Error::Unavailable`] while no node has responded and
    /// there was no file.
    pub fn get(&self, definition: &str, key: &str) -> Result<Option<Read>, Error> {
        let shared = &self.0.shared;
        if !content::is_selected(&shared.options.selections, definition, key) {
            return Err(Error::Usage(format!("the cache does not select `{definition}/{key}`")));
        }
        let known = shared.known();
        let content = known.content.as_ref().ok_or_else(|| nothing_known(&known))?;
        let found = content.get(definition, key);
        Ok(found.map(|config| Read { config: config.clone(), source: shared.source(&known, content) }))
    }

    /// All configs of a definition that the cache holds, in the order of their keys, all of one revision.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn list(&self, definition: &str) -> Result<(Vec<Arc<Config>>, Source), Error> {
        let known = self.0.shared.known();
        let content = known.content.as_ref().ok_or_else(|| nothing_known(&known))?;
        let configs = content.of(definition).into_iter().flat_map(|of| of.values().cloned()).collect();
        Ok((configs, self.0.shared.source(&known, content)))
    }

    /// All configs that the cache holds, by definition and key, all of one revision.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub fn all(&self) -> Result<(Vec<Arc<Config>>, Source), Error> {
        let known = self.0.shared.known();
        let content = known.content.as_ref().ok_or_else(|| nothing_known(&known))?;
        let mut configs = Vec::with_capacity(content.definitions().map(|(_, of)| of.len()).sum());
        configs.extend(content.all().cloned());
        Ok((configs, self.0.shared.source(&known, content)))
    }

    /// Reads a config from a node, linearizably; from memory if no node responds within `timeout`.
    ///
    /// # Errors
    /// When a node rejects the read, or no node responds and [`Cache::get`] fails too.
    pub async fn read(&self, definition: &str, key: &str, timeout: Duration) -> Result<Option<Read>, Error> {
        let sent = Moment::now();
        let request = Request::get(config_path(definition, key)).timeout(timeout);
        match self.0.shared.client.send(request).await {
            Ok(answer) => {
                let mut record = answer.data()?;
                let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
                let redacted = answer.redacted().into_iter().flat_map(|all| all.split(", "));
                let config = Config {
                    definition: definition.into(),
                    key: key.into(),
                    revision: answer.revision().unwrap_or_default(),
                    variant: answer.variant().map(str::to_owned),
                    created_at: text("created_at"),
                    modified_at: text("modified_at"),
                    redacted: redacted.map(str::to_owned).collect(),
                    data: record["data"].take(),
                };
                let source = Source {
                    origin: Origin::Live,
                    node: answer.header("x-concord-node").map(Into::into),
                    revision: answer.state_revision().unwrap_or_default(),
                    age: sent.age(),
                    freshness: Freshness::Fresh,
                };
                Ok(Some(Read { config: Arc::new(config), source }))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(Error::Unavailable(_)) => self.get(definition, key),
            Err(error) => Err(error),
        }
    }

    /// Waits until the cache has values, of the cluster or of its file.
    ///
    /// # Errors
    /// When the time limit is reached first.
    pub async fn ready(&self, timeout: Duration) -> Result<Source, Error> {
        self.wait(timeout, |_| true).await
    }

    /// Waits until the values are fresh.
    ///
    /// # Errors
    /// When the time limit is reached first.
    pub async fn fresh(&self, timeout: Duration) -> Result<Source, Error> {
        self.wait(timeout, Source::is_fresh).await
    }

    /// Waits until the cache contains every change up to a revision, for example that of a write.
    ///
    /// # Errors
    /// When the time limit is reached first.
    pub async fn reached(&self, revision: u64, timeout: Duration) -> Result<Source, Error> {
        self.wait(timeout, |source| source.origin == Origin::Cache && source.revision >= revision).await
    }

    async fn wait(&self, timeout: Duration, is_good: impl Fn(&Source) -> bool) -> Result<Source, Error> {
        let mut changed = self.0.shared.changed.subscribe();
        let waited = tokio::time::timeout(timeout, async {
            loop {
                if let Some(source) = self.source().filter(&is_good) {
                    return source;
                }
                // The sender lives as long as this cache.
                let _ = changed.changed().await;
            }
        });
        waited.await.map_err(|_| nothing_known(&self.0.shared.known()))
    }

    /// Where values come from now; `None` while there are none.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        let known = self.0.shared.known();
        known.content.as_ref().map(|content| self.0.shared.source(&known, content))
    }

    /// The status of the cache.
    #[must_use]
    pub fn status(&self) -> Status {
        let known = self.0.shared.known();
        Status {
            source: known.content.as_ref().map(|content| self.0.shared.source(&known, content)),
            configs: known.content.iter().flat_map(Content::definitions).map(|(_, of)| of.len()).sum(),
            changes: known.changes,
            listings: known.listings,
            problem: known.problem.clone(),
            file_problem: known.file_problem.clone(),
        }
    }

    /// Subscribes to changes: of configs, of the last check, of the problem. A slow subscriber misses intermediate states
    /// and never the latest one.
    #[must_use]
    pub fn subscribe(&self) -> Changes {
        Changes(self.0.shared.changed.subscribe())
    }

    /// A config as a type of the program's. While it is there, a candidate that the type does not admit is reported as
    /// failed.
    pub fn typed<T: DeserializeOwned>(
        &self,
        definition: impl Into<String>,
        key: impl Into<String>,
    ) -> Typed<T> {
        Typed::new(self.clone(), definition.into(), key.into())
    }

    /// Writes the file, so that it is as new as the memory. The cache keeps running.
    ///
    /// # Errors
    /// When the file can't be written.
    pub async fn save(&self) -> Result<(), Error> {
        follow::save(&self.0.shared).await.map_err(Error::Usage)
    }
}

/// A subscription to the changes of a cache.
#[derive(Debug)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Waits for a change since the last call, or since the subscription. `false` when the cache has ended.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

fn nothing_known(known: &Known) -> Error {
    let why = known.problem.as_deref().unwrap_or("no node has responded yet");
    let file = known.file_problem.as_deref().map(|text| format!("; {text}")).unwrap_or_default();
    Error::Unavailable(format!("{why}{file}"))
}

#[cfg(test)]
mod tests;
