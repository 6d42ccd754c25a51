//! One sled database with its eight trees, and the directory of databases.
//!
//! sled does not protect its data: its flush is no fsync, damage may shorten the data without an error, and
//! it may panic while opening. So it is never the only copy, it is loaded only if its records have the digest
//! of its checkpoint, and a panic of any call becomes a [`TreeError`].
//!
//! Rows are written one by one, not in batches. A batch or a transaction of sled writes its buffer to the
//! disk twice, waits for both writes and wakes all of sled's threads for each of them, however small it is:
//! that was most of sled's cost. A single row goes into a buffer, which is written when it is full. The order
//! replaces the atomicity of a batch: all of sled is one log, and a crash leaves a prefix of it. So the
//! target of a merge is written before its rows, the new checkpoint and the removal of the target after them,
//! and trees with a target are not loaded.
//!
//! **Invariant:** an error never stops the node; the database is removed and rebuilt.

use std::{
    fmt,
    fs::File,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    time::Duration,
};

use sled::{Batch, Db, Tree};

use super::{
    checkpoint::Checkpoint,
    keys,
    rows::{Rows, SledRow, SledTable},
    sealing::{SealedTree, Sealing},
};
use crate::{LogIndex, StoreError, at_rest::AtRest, files};
use concord_model::record::Revision;

/// How often and how long to wait until sled has released its file after it was closed: ten seconds in all, a
/// thousand times what was measured.
const CLOSE_ATTEMPTS: u32 = 2000;
const CLOSE_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Why a database is no longer usable.
#[derive(Debug)]
pub(crate) struct TreeError {
    pub(crate) text: String,
    /// sled's locks may be held forever: the database must not be used again, not even dropped.
    pub(crate) panicked: bool,
    /// The content is whole, and a newer version of this program wrote it: it must not be removed.
    pub(crate) newer: bool,
}

impl TreeError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), panicked: false, newer: false }
    }

    /// A newer version wrote the content.
    pub(super) fn newer(text: impl Into<String>) -> Self {
        Self { newer: true, ..Self::new(text) }
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<sled::Error> for TreeError {
    fn from(error: sled::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Runs calls of sled; a panic becomes an error.
pub(super) fn catch_panic<T>(calls: impl FnOnce() -> Result<T, TreeError>) -> Result<T, TreeError> {
    panic::catch_unwind(AssertUnwindSafe(calls))
        .unwrap_or_else(|_| Err(TreeError { panicked: true, ..TreeError::new("sled panicked") }))
}

/// An open database.
#[derive(Debug)]
pub(crate) struct Trees {
    db: Db,
    pub(super) definitions: Tree,
    pub(super) configs: Tree,
    indexes: Tree,
    pub(super) requests: Tree,
    pub(super) access_keys: Tree,
    pub(super) audit_anchors: Tree,
    pub(super) system: Tree,
    meta: Tree,
    path: PathBuf,
    pub(super) sealing: Option<Sealing>,
}

impl Trees {
    /// Opens or creates the database of a directory.
    pub(crate) fn open(path: &Path, cache_bytes: u64, at_rest: &AtRest) -> Result<Self, TreeError> {
        let is_sealed = path.file_name().and_then(|name| name.to_str()).is_some_and(is_sealed);
        let sealing = is_sealed.then(|| Sealing::of(at_rest)).flatten();
        catch_panic(|| {
            // No periodic flush: it would compete with the log's fsyncs and guarantee nothing that we rely
            // on.
            let db =
                sled::Config::new().path(path).cache_capacity(cache_bytes).flush_every_ms(None).open()?;
            let [definitions, configs, indexes, requests, access_keys, audit_anchors, system, meta] =
                keys::TREES;
            Ok(Self {
                definitions: db.open_tree(definitions)?,
                configs: db.open_tree(configs)?,
                indexes: db.open_tree(indexes)?,
                requests: db.open_tree(requests)?,
                access_keys: db.open_tree(access_keys)?,
                audit_anchors: db.open_tree(audit_anchors)?,
                system: db.open_tree(system)?,
                meta: db.open_tree(meta)?,
                db,
                path: path.into(),
                sealing,
            })
        })
    }

    /// The directory's name.
    pub(super) fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The checkpoint of the trees; `None` when they are new.
    pub(crate) fn checkpoint(&self) -> Result<Option<Checkpoint>, TreeError> {
        match self.meta_record(keys::POSITION)? {
            Some(bytes) => Checkpoint::from_bytes(&bytes).map(Some),
            None => Ok(None),
        }
    }

    /// The log entry that an interrupted merge was to end at.
    pub(crate) fn merge_target(&self) -> Result<Option<LogIndex>, TreeError> {
        let Some(bytes) = self.meta_record(keys::MERGE_TARGET)? else { return Ok(None) };
        keys::decode(&bytes).map(Some).ok_or_else(|| damaged_meta(keys::MERGE_TARGET))
    }

    /// The bytes of a record of `meta`, whose checksum is right.
    fn meta_record(&self, name: &str) -> Result<Option<Vec<u8>>, TreeError> {
        let Some(bytes) = catch_panic(|| Ok(self.meta.get(name)?))? else { return Ok(None) };
        let intact = bytes.split_last_chunk::<4>().and_then(|(bytes, check)| {
            (crc32c::crc32c(bytes) == u32::from_le_bytes(*check)).then(|| bytes.to_vec())
        });
        let bytes = intact.ok_or_else(|| damaged_meta(name))?;
        match &self.sealing {
            Some(sealing) => sealing.open(SealedTree::Meta, name.as_bytes(), &bytes).map(Some),
            None => Ok(Some(bytes)),
        }
    }

    /// A record of `meta` as it is written.
    fn meta_bytes(&self, name: &str, bytes: Vec<u8>) -> Vec<u8> {
        // sled does not detect a damaged value. What decides about loading the rest has a checksum of its own.
        let mut bytes = match &self.sealing {
            Some(sealing) => sealing.seal(SealedTree::Meta, name.as_bytes(), &bytes),
            None => bytes,
        };
        let check = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Calls `read` with each row of a tree, in its order, and the row's value as it was given.
    pub(super) fn rows(
        &self,
        kind: SealedTree,
        tree: &Tree,
        mut read: impl FnMut(&[u8], &[u8]) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        for row in tree {
            let (key, value) = row?;
            match &self.sealing {
                Some(sealing) => read(&key, &sealing.open(kind, &key, &value)?)?,
                None => read(&key, &value)?,
            }
        }
        Ok(())
    }

    /// Puts and removes rows, one by one: during a merge, or in trees that are not current yet.
    pub(super) fn write(&self, rows: Rows) -> Result<(), TreeError> {
        catch_panic(|| {
            for SledRow { table, key, value } in rows.list {
                let (tree, kind) = match table {
                    SledTable::Definitions => (&self.definitions, SealedTree::Definitions),
                    SledTable::Configs => (&self.configs, SealedTree::Configs),
                    SledTable::Indexes => (&self.indexes, SealedTree::Indexes),
                    SledTable::Requests => (&self.requests, SealedTree::Requests),
                    SledTable::AccessKeys => (&self.access_keys, SealedTree::AccessKeys),
                    SledTable::AuditAnchors => (&self.audit_anchors, SealedTree::AuditAnchors),
                    SledTable::System => (&self.system, SealedTree::System),
                };
                let (key, value) = match &self.sealing {
                    None => (key, value),
                    Some(sealing) => {
                        let key = sealing.key(kind, &key);
                        let value = value.map(|value| sealing.seal(kind, &key, &value));
                        (key, value)
                    }
                };
                match value {
                    Some(value) => tree.insert(key, value)?,
                    None => tree.remove(key)?,
                };
            }
            Ok(())
        })
    }

    /// Begins to write a merge: until [`Self::commit`] the trees are between two checkpoints.
    pub(crate) fn begin_merge(&self, target: LogIndex) -> Result<(), TreeError> {
        catch_panic(|| {
            let target = self.meta_bytes(keys::MERGE_TARGET, keys::encode(&target));
            Ok(self.meta.insert(keys::MERGE_TARGET, target).map(drop)?)
        })
    }

    /// Ends a merge: the trees hold a checkpoint again.
    pub(super) fn commit(&self, checkpoint: &Checkpoint) -> Result<(), TreeError> {
        catch_panic(|| {
            let position = self.meta_bytes(keys::POSITION, checkpoint.to_bytes());
            self.meta.insert(keys::POSITION, position)?;
            self.meta.remove(keys::MERGE_TARGET)?;
            // An empty batch makes sled write its buffer, without waiting for it. As long as the removal of
            // the target is only in memory, a crash would leave the target.
            Ok(self.meta.apply_batch(Batch::default())?)
        })
    }

    /// Removes at most `limit` rows of a definition, its own last; returns whether all are removed, and the
    /// removed bytes.
    pub(super) fn delete_definition(
        &self,
        definition: Revision,
        limit: usize,
    ) -> Result<(bool, u64), TreeError> {
        catch_panic(|| {
            let mut bytes = 0;
            for tree in [&self.configs, &self.indexes, &self.definitions] {
                let rows = tree.scan_prefix(keys::prefix(definition)).take(limit);
                let rows = rows.collect::<Result<Vec<_>, _>>()?;
                let count = rows.len();
                for (key, value) in rows {
                    bytes += (key.len() + value.len()) as u64;
                    tree.remove(key)?;
                }
                if count == limit {
                    return Ok((false, bytes));
                }
            }
            Ok((true, bytes))
        })
    }

    /// Bytes on the disk.
    pub(super) fn size(&self) -> Result<u64, TreeError> {
        // Threads of sled write when the machine lets them, which does not follow from a seed.
        if cfg!(feature = "simulation") {
            return Ok(0);
        }
        catch_panic(|| Ok(self.db.size_on_disk()?))
    }

    /// Hands everything to the operating system and fsyncs it.
    pub(super) fn sync(&self) -> Result<(), TreeError> {
        catch_panic(|| Ok(self.db.flush().map(drop)?))?;
        sync_all(&self.path).map_err(|error| TreeError::new(error.to_string()))
    }

    /// Closes the database; the directory stays. sled's own threads may keep it open a little longer than the
    /// last handle: the lock on its file shows when they have ended.
    pub(crate) fn close(self) -> Result<(), TreeError> {
        let file = File::open(self.path.join("db"));
        catch_panic(|| {
            drop(self);
            Ok(())
        })?;
        // A directory that was removed can't be opened again; there is nothing to wait for.
        let Ok(file) = file else { return Ok(()) };
        let closed = (0..CLOSE_ATTEMPTS).any(|_| match file.try_lock() {
            Ok(()) => true,
            Err(_) => {
                std::thread::sleep(CLOSE_RETRY_PAUSE);
                false
            }
        });
        if closed { Ok(()) } else { Err(TreeError::new("sled did not release its file")) }
    }
}

pub(super) fn damaged_row() -> TreeError {
    TreeError::new("a row of sled is damaged")
}

fn damaged_meta(name: &str) -> TreeError {
    TreeError::new(format!("`{name}` of sled is damaged"))
}

fn sync_all(directory: &Path) -> Result<(), StoreError> {
    for name in files::names(directory)? {
        let path = directory.join(name);
        if path.is_dir() { sync_all(&path)? } else { files::sync_file(&path)? }
    }
    files::sync_directory(directory)
}

/// How the name of a database begins; a number follows.
const PLAIN: &str = "state-";
/// How that of an encrypted one begins.
const SEALED: &str = "sealed-";

/// The number in the name of a database; `None` for another name.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PLAIN).or_else(|| name.strip_prefix(SEALED))?.parse().ok()
}

fn is_sealed(name: &str) -> bool {
    name.starts_with(SEALED)
}

/// The directory of databases; `CURRENT` names the current one.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseDir {
    directory: PathBuf,
    cache_bytes: u64,
    at_rest: AtRest,
}

impl DatabaseDir {
    pub(crate) fn open(directory: &Path, cache_bytes: u64, at_rest: AtRest) -> Result<Self, StoreError> {
        files::make_directory(directory)?;
        Ok(Self { directory: directory.into(), cache_bytes, at_rest })
    }

    /// Opens the database that `CURRENT` names and removes all others; `None` when there is none.
    pub(crate) fn current(&self) -> Result<Option<Trees>, TreeError> {
        let name = std::fs::read_to_string(self.directory.join("CURRENT")).unwrap_or_default();
        let exists = number(&name).is_some() && self.directory.join(&name).is_dir();
        self.remove_others(if exists { &name } else { "" })?;
        if !exists {
            return Ok(None);
        }
        if is_sealed(&name) != self.at_rest.seals() {
            return Err(TreeError::new("encryption was turned on or off since it was written"));
        }
        Trees::open(&self.directory.join(name), self.cache_bytes, &self.at_rest).map(Some)
    }

    /// Creates an empty database next to the current one.
    pub(super) fn create(&self) -> Result<Trees, TreeError> {
        let names = files::names(&self.directory).map_err(failed)?;
        let next = names.iter().filter_map(|name| number(name)).max().unwrap_or(0) + 1;
        let begin = if self.at_rest.seals() { SEALED } else { PLAIN };
        Trees::open(&self.directory.join(format!("{begin}{next}")), self.cache_bytes, &self.at_rest)
    }

    /// Makes a complete database the current one and removes all others.
    pub(super) fn make_current(&self, trees: &Trees) -> Result<(), TreeError> {
        trees.sync()?;
        files::sync_directory(&self.directory).map_err(failed)?;
        files::write_file(&self.directory.join("CURRENT"), trees.name().as_bytes()).map_err(failed)?;
        self.remove_others(&trees.name())
    }

    /// Fsyncs what closed databases have handed to the operating system.
    pub(super) fn sync(&self) -> Result<(), TreeError> {
        sync_all(&self.directory).map_err(failed)
    }

    /// Removes all databases.
    pub(crate) fn remove_all(&self) -> Result<(), TreeError> {
        files::remove(&self.directory.join("CURRENT")).map_err(failed)?;
        files::sync_directory(&self.directory).map_err(failed)?;
        self.remove_others("")
    }

    fn remove_others(&self, current: &str) -> Result<(), TreeError> {
        for name in files::names(&self.directory).map_err(failed)? {
            if name != current && (number(&name).is_some() || name.ends_with(".tmp")) {
                files::remove(&self.directory.join(name)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` calls")]
fn failed(error: StoreError) -> TreeError {
    TreeError::new(error.to_string())
}
