//! The stored form of a change, and of the segments that changes stand in.
//!
//! ```text
//! frame 0          00 · `CONCHIST` · format `u16le` · the revision behind which the segment begins `u64le`
//! frames 1..n      01 · a change (postcard)              one entry of the log that changed something
//!                  02 · index `u64le`                    entries up to here changed nothing more
//! last but one     04 · the index (postcard): where the changes of each key stand            if sealed
//! last frame       03 · frames `u64le` · reach `u64le` · checksum of the frames' checksums `u32le` ·
//!                       where the index stands `u64le`                                       if sealed
//! ```
//!
//! A segment is named by the revision behind which it begins: `segment-<20 digits>.open` while it grows,
//! `.sealed` when it is immutable. A stored edit names the revision of the record that it replaced; where that
//! stands in an older segment the edit holds the replaced record itself.
//!
//! **Invariant:** a segment is enough to tell what each key that changed in it was before and after: removing
//! older segments takes nothing from it.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::segment_index::Index;
use crate::{
    model::{
        key::Key,
        record::{Config, Definition, Revision},
        time::Timestamp,
    },
    state::{Change, Edit, RememberedOutcome},
    store::{StoreError, files},
};

const MAGIC: &[u8; 8] = b"CONCHIST";
const FORMAT: u16 = 2;
const HEAD: u8 = 0;
const CHANGE: u8 = 1;
const REACH: u8 = 2;
const SEAL: u8 = 3;
const INDEX: u8 = 4;

/// What one entry of the log did, as the history keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredChange {
    /// The entry.
    pub revision: Revision,
    /// When.
    pub at: Timestamp,
    /// Who asked.
    pub by: String,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// What it did, in order.
    pub edits: Vec<StoredEdit>,
}

/// One record's part of a stored change. Variants are added at the end only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredEdit {
    /// A definition; its end is the end of all its configs.
    Definition {
        /// The revision that created it.
        id: Revision,
        /// Its key.
        key: Key,
        /// The revision of the record that was replaced; `None` when it is new.
        before: Option<Revision>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Definition>>,
    },
    /// All configs of the definition were indexed anew.
    Reindexed {
        /// The definition's id.
        definition: Revision,
    },
    /// A config.
    Config {
        /// The definition's id.
        definition: Revision,
        /// Its key.
        key: Key,
        /// The revision of the record that was replaced; `None` when it is new.
        before: Option<Revision>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Config>>,
    },
    /// An answer that is kept for its request from now on.
    Remember(RememberedOutcome),
    /// An answer that is not kept any more; the revision that made it.
    Forget(Revision),
    /// A config whose replaced record does not stand in the same segment.
    ConfigOver {
        /// The definition's id.
        definition: Revision,
        /// The record that was replaced.
        before: Arc<Config>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Config>>,
    },
}

impl StoredChange {
    /// The stored form of a change, in a segment that begins behind a revision.
    #[must_use]
    pub fn of(change: &Change, behind: Revision) -> Self {
        Self {
            revision: change.revision,
            at: change.at,
            by: change.by.clone(),
            reason: change.reason.clone(),
            edits: change.edits.iter().filter_map(|edit| StoredEdit::of(edit, behind)).collect(),
        }
    }
}

impl StoredEdit {
    /// `None` for what the history does not keep, and for an edit of nothing into nothing, which no change has.
    fn of(edit: &Edit, behind: Revision) -> Option<Self> {
        Some(match edit {
            Edit::Definition { before, after } => {
                let any = after.as_ref().or(before.as_ref())?;
                Self::Definition {
                    id: any.id,
                    key: any.key.clone(),
                    before: before.as_ref().map(|record| record.revision),
                    after: after.clone(),
                }
            }
            Edit::Reindexed { definition } => Self::Reindexed { definition: *definition },
            Edit::Config { definition, before: Some(before), after } if before.revision <= behind => {
                Self::ConfigOver { definition: *definition, before: before.clone(), after: after.clone() }
            }
            Edit::Config { definition, before, after } => Self::Config {
                definition: *definition,
                key: after.as_ref().or(before.as_ref())?.key.clone(),
                before: before.as_ref().map(|record| record.revision),
                after: after.clone(),
            },
            Edit::Remember(request) => Self::Remember(request.clone()),
            Edit::Forget(request) => Self::Forget(request.revision),
            Edit::Entries { .. } | Edit::Building { .. } => return None,
        })
    }
}

/// A frame of a segment, behind its first byte.
#[derive(Debug)]
pub(in crate::store) enum Part {
    Head(Revision),
    Change(StoredChange),
    Reach(Revision),
    Seal(Seal),
    Index(Index),
}

/// What a segment's frames come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::store) struct Totals {
    pub(in crate::store) frames: u64,
    /// The last revision that the segment knows of.
    pub(in crate::store) reach: Revision,
    pub(in crate::store) check: u32,
}

/// The last frame of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Seal {
    pub(in crate::store) totals: Totals,
    /// Where the frame of the index begins.
    pub(in crate::store) index_at: u64,
}

impl Totals {
    pub(in crate::store) fn frame(&mut self, reach: Revision, check: u32) {
        self.frames += 1;
        self.reach = reach;
        self.check = crc32c::crc32c_append(self.check, &check.to_le_bytes());
    }
}

impl Seal {
    /// Bytes of its frame with the frame's head: by them it is found from the end of a file.
    pub(in crate::store) const FRAME_BYTES: usize = files::FRAME_HEAD_BYTES + 1 + 8 + 8 + 4 + 8;

    fn to_bytes(self) -> Vec<u8> {
        let Totals { frames, reach, check } = self.totals;
        let numbers = [frames.to_le_bytes(), reach.to_le_bytes()].concat();
        [&[SEAL][..], &numbers, &check.to_le_bytes(), &self.index_at.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (frames, rest) = bytes.split_first_chunk::<8>()?;
        let (reach, rest) = rest.split_first_chunk::<8>()?;
        let (check, rest) = rest.split_first_chunk::<4>()?;
        let totals = Totals {
            frames: u64::from_le_bytes(*frames),
            reach: Revision::from_le_bytes(*reach),
            check: u32::from_le_bytes(*check),
        };
        Some(Self { totals, index_at: u64::from_le_bytes(rest.try_into().ok()?) })
    }
}

impl Part {
    /// `None` when a whole frame holds nothing that this version writes.
    pub(in crate::store) fn parse(frame: &[u8]) -> Option<Self> {
        let (kind, bytes) = frame.split_first()?;
        match *kind {
            HEAD => {
                let behind = bytes.strip_prefix(MAGIC)?.strip_prefix(&FORMAT.to_le_bytes())?;
                Some(Self::Head(Revision::from_le_bytes(behind.try_into().ok()?)))
            }
            CHANGE => whole(bytes).map(Self::Change),
            REACH => Some(Self::Reach(Revision::from_le_bytes(bytes.try_into().ok()?))),
            SEAL => Seal::from_bytes(bytes).map(Self::Seal),
            INDEX => whole(bytes).map(Self::Index),
            _ => None,
        }
    }
}

fn whole<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().and_then(|(value, rest)| rest.is_empty().then_some(value))
}

/// Writes a segment frame by frame, into a file or into memory.
#[derive(Debug)]
pub(in crate::store) struct Encoder<W> {
    pub(in crate::store) to: W,
    totals: Totals,
    pub(in crate::store) bytes: u64,
}

impl<W: Write> Encoder<W> {
    /// Begins a segment.
    pub(in crate::store) fn begin(to: W, behind: Revision) -> std::io::Result<Self> {
        let mut encoder = Self { to, totals: Totals::default(), bytes: 0 };
        let head = [&[HEAD][..], MAGIC, &FORMAT.to_le_bytes(), &behind.to_le_bytes()].concat();
        encoder.frame(&head, behind)?;
        Ok(encoder)
    }

    /// Goes on with a segment that has been read.
    pub(in crate::store) fn resume(to: W, totals: Totals, bytes: u64) -> Self {
        Self { to, totals, bytes }
    }

    pub(in crate::store) fn change(&mut self, change: &StoredChange) -> std::io::Result<()> {
        let bytes =
            postcard::to_extend(change, vec![CHANGE]).expect("a change is plain data and memory grows");
        self.frame(&bytes, change.revision)
    }

    /// Entries up to this one changed nothing more.
    pub(in crate::store) fn reach(&mut self, index: Revision) -> std::io::Result<()> {
        self.frame(&[&[REACH][..], &index.to_le_bytes()].concat(), index)
    }

    pub(in crate::store) fn reached(&self) -> Revision {
        self.totals.reach
    }

    /// Ends the segment with its index and its seal.
    pub(in crate::store) fn seal(mut self, index: &Index) -> std::io::Result<W> {
        let index_at = self.bytes;
        let index = postcard::to_extend(index, vec![INDEX]).expect("an index is plain data and memory grows");
        self.frame(&index, self.totals.reach)?;
        let seal = Seal { totals: self.totals, index_at };
        files::write_frame(&mut self.to, &seal.to_bytes())?;
        Ok(self.to)
    }

    fn frame(&mut self, bytes: &[u8], reach: Revision) -> std::io::Result<()> {
        let check = files::write_frame(&mut self.to, bytes)?;
        self.totals.frame(reach, check);
        self.bytes += (files::FRAME_HEAD_BYTES + bytes.len()) as u64;
        Ok(())
    }
}

/// A segment's file as its name tells it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct Segment {
    /// The revision behind which it begins.
    pub(in crate::store) behind: Revision,
    pub(in crate::store) sealed: bool,
}

impl Segment {
    pub(in crate::store) fn parse(name: &str) -> Option<Self> {
        let (number, ending) = name.strip_prefix("segment-")?.split_once('.')?;
        let sealed = match ending {
            "sealed" => true,
            "open" => false,
            _ => return None,
        };
        Some(Self { behind: number.parse().ok()?, sealed })
    }

    pub(in crate::store) fn path(&self, directory: &Path) -> PathBuf {
        let ending = if self.sealed { "sealed" } else { "open" };
        directory.join(format!("segment-{:020}.{ending}", self.behind))
    }
}

/// The segments of a directory, ascending.
pub(in crate::store) fn segments(directory: &Path) -> Result<Vec<Segment>, StoreError> {
    Ok(files::names(directory)?.iter().filter_map(|name| Segment::parse(name)).collect())
}
