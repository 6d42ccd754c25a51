//! One sled database: its five trees, the rows that go into them, and the directory that `CURRENT` names.
//!
//! sled is easy to lose: its flush is no fsync, damage may shorten the data without an error, it may panic while
//! opening. So it is never the only copy, it is believed only if the digest of what it holds is the one it was
//! given, and every call is contained: a panic is a [`TreeError`] like an error.
//!
//! Rows go in one by one, not in batches. A batch or a transaction of sled writes its buffer to the disk twice,
//! waits for both writes and wakes all of sled's threads for each of them, however small it is: that was most of
//! what sled cost. A single row goes into a buffer, which is written when it is full. What a batch would give is
//! had from the order instead: all of sled is one log, and a crash leaves a beginning of it. So a mark stands
//! before the rows, the position and the end of the mark behind them, and what bears a mark is not believed.
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
use sled::{Batch, Db, Tree};

use super::{
    keys,
    merge::{Row, Rows, Table},
};
use crate::{
    model::{
        record::{Config, Definition, Revision},
        time::Timestamp,
    },
    state::{RememberedOutcome, State, builder::Builder},
    store::{Position, files},
};

/// How long sled may hold its file after it was closed: a thousand times what was seen.
const SHUT_WAITS: u32 = 2000;
const SHUT_WAIT: Duration = Duration::from_millis(5);

/// What the trees hold together, in `meta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Seal {
    pub(in crate::store) position: Position,
    pub(in crate::store) revision: Revision,
    pub(in crate::store) last_at: Timestamp,
    pub(in crate::store) digest: u128,
    pub(in crate::store) compaction_revision: Revision,
}

impl Seal {
    pub(in crate::store) fn of(state: &State, position: &Position) -> Self {
        Self {
            position: position.clone(),
            revision: state.revision(),
            last_at: state.last_at(),
            digest: state.digest(),
            compaction_revision: state.compaction_revision(),
        }
    }
}

/// Why a database can't be used any more.
#[derive(Debug)]
pub(in crate::store) struct TreeError {
    pub(in crate::store) text: String,
    /// sled's locks may be held for ever: the database must not be touched again, not even to drop it.
    pub(in crate::store) panicked: bool,
}

impl TreeError {
    pub(in crate::store) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), panicked: false }
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

/// Runs calls of sled: a panic of theirs is a fault.
pub(in crate::store) fn contained<T>(calls: impl FnOnce() -> Result<T, TreeError>) -> Result<T, TreeError> {
    panic::catch_unwind(AssertUnwindSafe(calls))
        .unwrap_or_else(|_| Err(TreeError { text: "sled panicked".into(), panicked: true }))
}

/// An open database.
#[derive(Debug)]
pub(in crate::store) struct Trees {
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
    pub(in crate::store) fn open(path: &Path, cache_bytes: u64) -> Result<Self, TreeError> {
        contained(|| {
            // No flushing by the clock: it would fsync beside the log and promise nothing that we rely on.
            let db =
                sled::Config::new().path(path).cache_capacity(cache_bytes).flush_every_ms(None).open()?;
            let [definitions, configs, indexes, requests, meta] = keys::TREES;
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
    pub(in crate::store) fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// What the trees hold together; `None` when they are fresh.
    pub(in crate::store) fn seal(&self) -> Result<Option<Seal>, TreeError> {
        self.meta_record(keys::POSITION)
    }

    /// The position that a carrier was on the way to when it stopped.
    pub(in crate::store) fn carrying(&self) -> Result<Option<Revision>, TreeError> {
        self.meta_record(keys::CARRYING)
    }

    fn meta_record<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<Option<T>, TreeError> {
        let Some(bytes) = contained(|| Ok(self.meta.get(name)?))? else { return Ok(None) };
        let whole = bytes.split_last_chunk::<4>().and_then(|(bytes, check)| {
            let whole = crc32c::crc32c(bytes) == u32::from_le_bytes(*check);
            whole.then(|| keys::decode(bytes)).flatten()
        });
        whole.map(Some).ok_or_else(|| TreeError::new(format!("`{name}` of sled is damaged")))
    }

    /// Puts rows in and takes rows out, one by one: for trees that are marked or not yet current.
    pub(in crate::store) fn carry(&self, rows: Rows) -> Result<(), TreeError> {
        contained(|| {
            for Row { table, key, value } in rows.list {
                let tree = match table {
                    Table::Definitions => &self.definitions,
                    Table::Configs => &self.configs,
                    Table::Indexes => &self.indexes,
                    Table::Requests => &self.requests,
                };
                match value {
                    Some(value) => tree.insert(key, value)?,
                    None => tree.remove(key)?,
                };
            }
            Ok(())
        })
    }

    /// From here until [`Self::arrive`] the trees are between two positions.
    pub(in crate::store) fn depart(&self, target: Revision) -> Result<(), TreeError> {
        contained(|| Ok(self.meta.insert(keys::CARRYING, meta_bytes(&target)).map(drop)?))
    }

    /// The trees hold a position again.
    pub(in crate::store) fn arrive(&self, seal: &Seal) -> Result<(), TreeError> {
        contained(|| {
            self.meta.insert(keys::POSITION, meta_bytes(seal))?;
            self.meta.remove(keys::CARRYING)?;
            // An empty batch makes sled write its buffer, without waiting for it: as long as the end of the mark
            // is only in memory, a crash would find the mark.
            Ok(self.meta.apply_batch(Batch::default())?)
        })
    }

    /// Removes at most `limit` rows of a definition, its own last; whether all are gone, and their bytes.
    pub(in crate::store) fn wipe(
        &self,
        definition: Revision,
        limit: usize,
    ) -> Result<(bool, u64), TreeError> {
        contained(|| {
            let mut bytes = 0;
            for tree in [&self.configs, &self.indexes, &self.definitions] {
                let gone = tree.scan_prefix(keys::prefix(definition)).take(limit);
                let gone = gone.collect::<Result<Vec<_>, _>>()?;
                let count = gone.len();
                for (key, value) in gone {
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

    /// Bytes on disk.
    pub(in crate::store) fn size(&self) -> Result<u64, TreeError> {
        contained(|| Ok(self.db.size_on_disk()?))
    }

    /// Hands everything to the operating system and fsyncs it.
    pub(in crate::store) fn sync(&self) -> Result<(), TreeError> {
        contained(|| Ok(self.db.flush().map(drop)?))?;
        sync_all(&self.path).map_err(|error| TreeError::new(error.to_string()))
    }

    /// Closes the database; the directory stays. Work of sled's own threads may hold it open a little longer
    /// than the last handle: the lock on its file tells.
    pub(in crate::store) fn shut(self) -> Result<(), TreeError> {
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
        if closed { Ok(()) } else { Err(TreeError::new("sled keeps its file open")) }
    }

    /// The state that the trees hold, if they bear a position and no mark and its digest is the given one; and
    /// roughly how many bytes it is.
    pub(in crate::store) fn load(&self, seal: &Seal) -> Result<(State, u64), TreeError> {
        let state = contained(|| {
            let mut rows = Joiner::default();
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
                let request: RememberedOutcome = keys::decode(&value).ok_or_else(damaged_row)?;
                rows.builder.request(request).map_err(|error| TreeError::new(error.0))?;
            }
            let logical = rows.bytes;
            rows.builder.compaction_revision(seal.compaction_revision);
            let state =
                rows.builder.finish(seal.revision, seal.last_at).map_err(|error| TreeError::new(error.0))?;
            Ok((state, logical))
        })?;
        if state.0.digest() == seal.digest || crate::sabotage::is("digest-ignored") {
            Ok(state)
        } else {
            Err(TreeError::new("the records in sled have another digest than its position"))
        }
    }
}

/// Joins pieces while the rows of a tree go by.
struct Joiner {
    builder: Builder,
    row: Option<(Revision, Vec<u8>, u16)>,
    value: Vec<u8>,
    bytes: u64,
}

impl Default for Joiner {
    fn default() -> Self {
        Self { builder: Builder::new(), row: None, value: Vec::new(), bytes: 0 }
    }
}

type Add<'a, T> =
    &'a mut dyn FnMut(Revision, T, &mut Joiner) -> Result<(), crate::state::builder::BuildError>;

impl Joiner {
    fn take<T: for<'de> Deserialize<'de>>(
        &mut self,
        key: &[u8],
        value: &[u8],
        add: Add<'_, T>,
    ) -> Result<(), TreeError> {
        let (id, name, piece) = keys::split(key).ok_or_else(damaged_row)?;
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

    fn end<T: for<'de> Deserialize<'de>>(&mut self, add: Add<'_, T>) -> Result<(), TreeError> {
        let Some((id, name, _)) = self.row.take() else { return Ok(()) };
        let record = keys::decode(&self.value).ok_or_else(damaged_row)?;
        self.value.clear();
        drop(name);
        add(id, record, self).map_err(|error| TreeError::new(error.0))
    }
}

fn damaged_row() -> TreeError {
    TreeError::new("a row of sled is damaged")
}

/// sled does not tell a damaged value; what decides about the rest bears a checksum of its own.
fn meta_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = keys::encode(record);
    let check = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

fn sync_all(directory: &Path) -> Result<(), crate::store::StoreError> {
    for name in files::names(directory)? {
        let path = directory.join(name);
        if path.is_dir() { sync_all(&path)? } else { files::sync_file(&path)? }
    }
    files::sync_directory(directory)
}

/// The directory of databases; `CURRENT` names the one that counts.
#[derive(Debug, Clone)]
pub(in crate::store) struct Home {
    directory: PathBuf,
    cache_bytes: u64,
}

impl Home {
    pub(in crate::store) fn open(
        directory: &Path,
        cache_bytes: u64,
    ) -> Result<Self, crate::store::StoreError> {
        files::make_directory(directory)?;
        Ok(Self { directory: directory.into(), cache_bytes })
    }

    /// Opens the database that `CURRENT` names and removes all others; `None` when there is none.
    pub(in crate::store) fn current(&self) -> Result<Option<Trees>, TreeError> {
        let name = std::fs::read_to_string(self.directory.join("CURRENT")).unwrap_or_default();
        let there = name.starts_with("state-") && self.directory.join(&name).is_dir();
        self.sweep(if there { &name } else { "" })?;
        if there { Trees::open(&self.directory.join(name), self.cache_bytes).map(Some) } else { Ok(None) }
    }

    /// Makes a fresh database beside the current one.
    pub(in crate::store) fn fresh(&self) -> Result<Trees, TreeError> {
        let names = files::names(&self.directory).map_err(lost)?;
        let number =
            |name: &String| name.strip_prefix("state-").and_then(|number| number.parse::<u64>().ok());
        let next = names.iter().filter_map(number).max().unwrap_or(0) + 1;
        Trees::open(&self.directory.join(format!("state-{next}")), self.cache_bytes)
    }

    /// Makes a complete database the current one and removes all others.
    pub(in crate::store) fn adopt(&self, trees: &Trees) -> Result<(), TreeError> {
        trees.sync()?;
        files::sync_directory(&self.directory).map_err(lost)?;
        files::write_file(&self.directory.join("CURRENT"), trees.name().as_bytes()).map_err(lost)?;
        self.sweep(&trees.name())
    }

    /// There is no database any more that counts.
    pub(in crate::store) fn discard(&self) -> Result<(), TreeError> {
        files::remove(&self.directory.join("CURRENT")).map_err(lost)?;
        files::sync_directory(&self.directory).map_err(lost)?;
        self.sweep("")
    }

    fn sweep(&self, kept: &str) -> Result<(), TreeError> {
        for name in files::names(&self.directory).map_err(lost)? {
            if name != kept && (name.starts_with("state-") || name.ends_with(".tmp")) {
                files::remove(&self.directory.join(name)).map_err(lost)?;
            }
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` calls")]
fn lost(error: crate::store::StoreError) -> TreeError {
    TreeError::new(error.to_string())
}
