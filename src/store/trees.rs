//! One sled database: its five trees, the batches that go into them, and the directory that `CURRENT` names.
//!
//! sled is fast to carry into and easy to lose: its flush is no fsync, damage may shorten the data without an
//! error, it may panic while opening. So it is never the only copy, it is believed only if the digest of what it
//! holds is the one it was given, and every call is contained: a panic is a [`Fault`] like an error.
//!
//! **Invariant:** a fault never stops the node; the directory is thrown away and written again.

use std::{
    fmt,
    fs::File,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sled::{
    Batch, Db, Transactional, Tree,
    transaction::{ConflictableTransactionError, TransactionError},
};

use super::{Position, disk, keyspace, merge::Batches};
use crate::{
    model::{
        record::{Config, Definition, Revision},
        time::Timestamp,
    },
    state::{Remembered, State, build::Builder},
};

/// How long sled may hold its file after it was closed: a thousand times what was seen.
const SHUT_WAITS: u32 = 2000;
const SHUT_WAIT: Duration = Duration::from_millis(5);

/// What the trees hold together, in `meta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seal {
    pub(super) position: Position,
    pub(super) revision: Revision,
    pub(super) last_at: Timestamp,
    pub(super) digest: u128,
    pub(super) floor: Revision,
}

impl Seal {
    pub(super) fn of(state: &State, position: &Position) -> Self {
        Self {
            position: position.clone(),
            revision: state.revision(),
            last_at: state.last_at(),
            digest: state.digest(),
            floor: state.floor(),
        }
    }
}

/// Why a database can't be used any more.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) text: String,
    /// sled's locks may be held for ever: the database must not be touched again, not even to drop it.
    pub(super) panicked: bool,
}

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), panicked: false }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<sled::Error> for Fault {
    fn from(error: sled::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Runs calls of sled: a panic of theirs is a fault.
pub(super) fn contained<T>(calls: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    panic::catch_unwind(AssertUnwindSafe(calls))
        .unwrap_or_else(|_| Err(Fault { text: "sled panicked".into(), panicked: true }))
}

/// An open database.
#[derive(Debug)]
pub(super) struct Trees {
    db: Db,
    definitions: Tree,
    configs: Tree,
    indexes: Tree,
    requests: Tree,
    meta: Tree,
    path: PathBuf,
}

impl Trees {
    /// Opens the database of a directory, or makes it.
    pub(super) fn open(path: &Path, cache_bytes: u64) -> Result<Self, Fault> {
        contained(|| {
            // No flushing by the clock: it would fsync beside the log and promise nothing that we rely on.
            let db =
                sled::Config::new().path(path).cache_capacity(cache_bytes).flush_every_ms(None).open()?;
            let [definitions, configs, indexes, requests, meta] = keyspace::TREES;
            Ok(Self {
                definitions: db.open_tree(definitions)?,
                configs: db.open_tree(configs)?,
                indexes: db.open_tree(indexes)?,
                requests: db.open_tree(requests)?,
                meta: db.open_tree(meta)?,
                db,
                path: path.into(),
            })
        })
    }

    /// The directory's name.
    pub(super) fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// What the trees hold together; `None` when they are fresh.
    pub(super) fn seal(&self) -> Result<Option<Seal>, Fault> {
        self.meta_record(keyspace::POSITION)
    }

    /// The position that a carrier was on the way to when it stopped.
    pub(super) fn carrying(&self) -> Result<Option<Revision>, Fault> {
        self.meta_record(keyspace::CARRYING)
    }

    fn meta_record<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<Option<T>, Fault> {
        let Some(bytes) = contained(|| Ok(self.meta.get(name)?))? else { return Ok(None) };
        let whole = bytes.split_last_chunk::<4>().and_then(|(bytes, check)| {
            let whole = crc32c::crc32c(bytes) == u32::from_le_bytes(*check);
            whole.then(|| keyspace::decode(bytes)).flatten()
        });
        whole.map(Some).ok_or_else(|| Fault::new(format!("`{name}` of sled is damaged")))
    }

    /// Puts everything in, and the position, or nothing.
    pub(super) fn commit(&self, mut batches: Batches, seal: &Seal) -> Result<(), Fault> {
        batches.meta.insert(keyspace::POSITION, meta_bytes(seal));
        contained(|| {
            let trees = (&self.definitions, &self.configs, &self.indexes, &self.requests, &self.meta);
            trees
                .transaction(|(definitions, configs, indexes, requests, meta)| {
                    definitions.apply_batch(&batches.definitions)?;
                    configs.apply_batch(&batches.configs)?;
                    indexes.apply_batch(&batches.indexes)?;
                    requests.apply_batch(&batches.requests)?;
                    meta.apply_batch(&batches.meta)?;
                    Ok::<(), ConflictableTransactionError<()>>(())
                })
                .map_err(|error| match error {
                    TransactionError::Abort(()) => Fault::new("sled gave a transaction up"),
                    TransactionError::Storage(error) => error.into(),
                })
        })
    }

    /// Puts everything in, tree by tree: for trees that are marked or not yet current.
    pub(super) fn spread(&self, batches: Box<Batches>) -> Result<(), Fault> {
        contained(|| {
            self.definitions.apply_batch(batches.definitions)?;
            self.configs.apply_batch(batches.configs)?;
            self.indexes.apply_batch(batches.indexes)?;
            self.requests.apply_batch(batches.requests)?;
            Ok(())
        })
    }

    /// From here until [`Self::arrive`] the trees are between two positions.
    pub(super) fn depart(&self, target: Revision) -> Result<(), Fault> {
        contained(|| Ok(self.meta.insert(keyspace::CARRYING, meta_bytes(&target)).map(drop)?))
    }

    /// The trees hold a position again.
    pub(super) fn arrive(&self, seal: &Seal) -> Result<(), Fault> {
        let mut batch = Batch::default();
        batch.remove(keyspace::CARRYING);
        batch.insert(keyspace::POSITION, meta_bytes(seal));
        contained(|| Ok(self.meta.apply_batch(batch)?))
    }

    /// Removes at most `limit` rows of a definition, its own last; whether all are gone, and their bytes.
    pub(super) fn wipe(&self, definition: Revision, limit: usize) -> Result<(bool, u64), Fault> {
        contained(|| {
            let mut bytes = 0;
            for tree in [&self.configs, &self.indexes, &self.definitions] {
                let mut batch = Batch::default();
                let mut count = 0;
                for row in tree.scan_prefix(keyspace::prefix(definition)).take(limit) {
                    let (key, value) = row?;
                    bytes += (key.len() + value.len()) as u64;
                    count += 1;
                    batch.remove(key);
                }
                tree.apply_batch(batch)?;
                if count == limit {
                    return Ok((false, bytes));
                }
            }
            Ok((true, bytes))
        })
    }

    /// Bytes on disk.
    pub(super) fn size(&self) -> Result<u64, Fault> {
        contained(|| Ok(self.db.size_on_disk()?))
    }

    /// Hands everything to the operating system and fsyncs it.
    pub(super) fn sync(&self) -> Result<(), Fault> {
        contained(|| Ok(self.db.flush().map(drop)?))?;
        sync_all(&self.path).map_err(|error| Fault::new(error.to_string()))
    }

    /// Closes the database; the directory stays. Work of sled's own threads may hold it open a little longer
    /// than the last handle: the lock on its file tells.
    pub(super) fn shut(self) -> Result<(), Fault> {
        let file = File::open(self.path.join("db"));
        contained(|| {
            drop(self);
            Ok(())
        })?;
        // A directory that is gone can't be opened again; there is nothing to wait for.
        let Ok(file) = file else { return Ok(()) };
        let closed = (0..SHUT_WAITS).any(|_| match file.try_lock() {
            Ok(()) => true,
            Err(_) => {
                std::thread::sleep(SHUT_WAIT);
                false
            }
        });
        if closed { Ok(()) } else { Err(Fault::new("sled keeps its file open")) }
    }

    /// The state that the trees hold, if they bear a position and no mark and its digest is the given one; and
    /// roughly how many bytes it is.
    pub(super) fn load(&self, seal: &Seal) -> Result<(State, u64), Fault> {
        let state = contained(|| {
            let mut rows = Rows::default();
            for row in &self.definitions {
                let (key, value) = row?;
                rows.take(&key, &value, &mut |_, record: Definition, rows| rows.builder.definition(record))?;
            }
            rows.end(&mut |_, record: Definition, rows| rows.builder.definition(record))?;
            for row in &self.configs {
                let (key, value) = row?;
                rows.take(&key, &value, &mut |id, record: Config, rows| rows.builder.config(id, record))?;
            }
            rows.end(&mut |id, record: Config, rows| rows.builder.config(id, record))?;
            for row in &self.requests {
                let (_, value) = row?;
                let request: Remembered = keyspace::decode(&value).ok_or_else(damaged_row)?;
                rows.builder.request(request).map_err(|error| Fault::new(error.0))?;
            }
            let logical = rows.bytes;
            rows.builder.floor(seal.floor);
            let state =
                rows.builder.finish(seal.revision, seal.last_at).map_err(|error| Fault::new(error.0))?;
            Ok((state, logical))
        })?;
        if state.0.digest() == seal.digest || crate::sabotage::is("digest-ignored") {
            Ok(state)
        } else {
            Err(Fault::new("the records in sled have another digest than its position"))
        }
    }
}

/// Joins pieces while the rows of a tree go by.
struct Rows {
    builder: Builder,
    row: Option<(Revision, Vec<u8>, u16)>,
    value: Vec<u8>,
    bytes: u64,
}

impl Default for Rows {
    fn default() -> Self {
        Self { builder: Builder::new(), row: None, value: Vec::new(), bytes: 0 }
    }
}

type Add<'a, T> = &'a mut dyn FnMut(Revision, T, &mut Rows) -> Result<(), crate::state::build::BuildError>;

impl Rows {
    fn take<T: for<'de> Deserialize<'de>>(
        &mut self,
        key: &[u8],
        value: &[u8],
        add: Add<'_, T>,
    ) -> Result<(), Fault> {
        let (id, name, piece) = keyspace::split(key).ok_or_else(damaged_row)?;
        self.bytes += (key.len() + value.len()) as u64;
        match &mut self.row {
            Some((last_id, last_name, last_piece)) if *last_id == id && last_name == name => {
                if *last_piece + 1 != piece {
                    return Err(damaged_row());
                }
                *last_piece = piece;
            }
            _ => {
                self.end(add)?;
                if piece != 0 {
                    return Err(damaged_row());
                }
                self.row = Some((id, name.into(), 0));
            }
        }
        self.value.extend_from_slice(value);
        Ok(())
    }

    fn end<T: for<'de> Deserialize<'de>>(&mut self, add: Add<'_, T>) -> Result<(), Fault> {
        let Some((id, name, _)) = self.row.take() else { return Ok(()) };
        let record = keyspace::decode(&self.value).ok_or_else(damaged_row)?;
        self.value.clear();
        drop(name);
        add(id, record, self).map_err(|error| Fault::new(error.0))
    }
}

fn damaged_row() -> Fault {
    Fault::new("a row of sled is damaged")
}

/// sled does not tell a damaged value; what decides about the rest bears a checksum of its own.
fn meta_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = keyspace::encode(record);
    let check = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

fn sync_all(directory: &Path) -> Result<(), super::StoreError> {
    for name in disk::names(directory)? {
        let path = directory.join(name);
        if path.is_dir() { sync_all(&path)? } else { disk::sync_file(&path)? }
    }
    disk::sync_directory(directory)
}

/// The directory of databases; `CURRENT` names the one that counts.
#[derive(Debug, Clone)]
pub(super) struct Home {
    directory: PathBuf,
    cache_bytes: u64,
}

impl Home {
    pub(super) fn open(directory: &Path, cache_bytes: u64) -> Result<Self, super::StoreError> {
        disk::make_directory(directory)?;
        Ok(Self { directory: directory.into(), cache_bytes })
    }

    /// Opens the database that `CURRENT` names and removes all others; `None` when there is none.
    pub(super) fn current(&self) -> Result<Option<Trees>, Fault> {
        let name = std::fs::read_to_string(self.directory.join("CURRENT")).unwrap_or_default();
        let there = name.starts_with("state-") && self.directory.join(&name).is_dir();
        self.sweep(if there { &name } else { "" })?;
        if there { Trees::open(&self.directory.join(name), self.cache_bytes).map(Some) } else { Ok(None) }
    }

    /// Makes a fresh database beside the current one.
    pub(super) fn fresh(&self) -> Result<Trees, Fault> {
        let names = disk::names(&self.directory).map_err(lost)?;
        let number =
            |name: &String| name.strip_prefix("state-").and_then(|number| number.parse::<u64>().ok());
        let next = names.iter().filter_map(number).max().unwrap_or(0) + 1;
        Trees::open(&self.directory.join(format!("state-{next}")), self.cache_bytes)
    }

    /// Makes a complete database the current one and removes all others.
    pub(super) fn adopt(&self, trees: &Trees) -> Result<(), Fault> {
        trees.sync()?;
        disk::sync_directory(&self.directory).map_err(lost)?;
        disk::write_file(&self.directory.join("CURRENT"), trees.name().as_bytes()).map_err(lost)?;
        self.sweep(&trees.name())
    }

    /// There is no database any more that counts.
    pub(super) fn discard(&self) -> Result<(), Fault> {
        disk::remove(&self.directory.join("CURRENT")).map_err(lost)?;
        disk::sync_directory(&self.directory).map_err(lost)?;
        self.sweep("")
    }

    fn sweep(&self, kept: &str) -> Result<(), Fault> {
        for name in disk::names(&self.directory).map_err(lost)? {
            if name != kept && (name.starts_with("state-") || name.ends_with(".tmp")) {
                disk::remove(&self.directory.join(name)).map_err(lost)?;
            }
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` calls")]
fn lost(error: super::StoreError) -> Fault {
    Fault::new(error.to_string())
}
