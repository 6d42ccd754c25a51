//! The stored form of a change, and reading changes from the segments of the history.
//!
//! ```text
//! frame 0          00 · `CONCHIST` · format `u16le` · the revision behind which the segment begins `u64le`
//! frames 1..n      01 · a change (postcard)              one entry of the log that changed something
//!                  02 · index `u64le`                    entries up to here changed nothing more
//! last frame       03 · frames `u64le` · reach `u64le` · checksum of the frames' checksums `u32le`   if sealed
//! ```
//!
//! A segment is named by the revision behind which it begins: `segment-<20 digits>.open` while it grows,
//! `.sealed` when it is immutable. A stored edit names the revision of the record that it replaced, so that a
//! missing change is seen.
//!
//! **Invariant:** a reader gets every change of the range in order, or an error; never a wrong or a skipped one.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    StoreError,
    disk::{self, Frame, io},
};
use crate::{
    model::{
        key::Key,
        record::{Config, Definition, Revision},
        time::Timestamp,
    },
    state::{Change, Edit, Remembered},
};

const MAGIC: &[u8; 8] = b"CONCHIST";
const FORMAT: u16 = 1;
const HEAD: u8 = 0;
const CHANGE: u8 = 1;
const REACH: u8 = 2;
const SEAL: u8 = 3;

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
    Remember(Remembered),
    /// An answer that is not kept any more; the revision that made it.
    Forget(Revision),
}

impl StoredChange {
    /// The stored form of a change.
    #[must_use]
    pub fn of(change: &Change) -> Self {
        Self {
            revision: change.revision,
            at: change.at,
            by: change.by.clone(),
            reason: change.reason.clone(),
            edits: change.edits.iter().filter_map(StoredEdit::of).collect(),
        }
    }
}

impl StoredEdit {
    /// `None` for an edit of nothing into nothing, which no change has.
    fn of(edit: &Edit) -> Option<Self> {
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
            Edit::Config { definition, before, after } => Self::Config {
                definition: *definition,
                key: after.as_ref().or(before.as_ref())?.key.clone(),
                before: before.as_ref().map(|record| record.revision),
                after: after.clone(),
            },
            Edit::Remember(request) => Self::Remember(request.clone()),
            Edit::Forget(request) => Self::Forget(request.revision),
        })
    }
}

/// A frame of a segment, behind its first byte.
#[derive(Debug)]
pub(super) enum Part {
    Head(Revision),
    Change(StoredChange),
    Reach(Revision),
    Seal(Totals),
}

/// What a seal says of its segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) frames: u64,
    /// The last revision that the segment knows of.
    pub(super) reach: Revision,
    pub(super) check: u32,
}

impl Totals {
    pub(super) fn frame(&mut self, reach: Revision, check: u32) {
        self.frames += 1;
        self.reach = reach;
        self.check = crc32c::crc32c_append(self.check, &check.to_le_bytes());
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&[SEAL][..], &self.frames.to_le_bytes(), &self.reach.to_le_bytes(), &self.check.to_le_bytes()]
            .concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (frames, rest) = bytes.split_first_chunk::<8>()?;
        let (reach, rest) = rest.split_first_chunk::<8>()?;
        Some(Self {
            frames: u64::from_le_bytes(*frames),
            reach: Revision::from_le_bytes(*reach),
            check: u32::from_le_bytes(rest.try_into().ok()?),
        })
    }
}

pub(super) fn head_bytes(behind: Revision) -> Vec<u8> {
    [&[HEAD][..], MAGIC, &FORMAT.to_le_bytes(), &behind.to_le_bytes()].concat()
}

pub(super) fn change_bytes(change: &Change) -> Vec<u8> {
    postcard::to_extend(&StoredChange::of(change), vec![CHANGE])
        .expect("a change is plain data and memory grows")
}

pub(super) fn reach_bytes(index: Revision) -> Vec<u8> {
    [&[REACH][..], &index.to_le_bytes()].concat()
}

impl Part {
    /// `None` when a whole frame holds nothing that this version writes.
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let (kind, bytes) = frame.split_first()?;
        match *kind {
            HEAD => {
                let behind = bytes.strip_prefix(MAGIC)?.strip_prefix(&FORMAT.to_le_bytes())?;
                Some(Self::Head(Revision::from_le_bytes(behind.try_into().ok()?)))
            }
            CHANGE => postcard::take_from_bytes(bytes)
                .ok()
                .and_then(|(change, rest)| rest.is_empty().then_some(Self::Change(change))),
            REACH => Some(Self::Reach(Revision::from_le_bytes(bytes.try_into().ok()?))),
            SEAL => Totals::from_bytes(bytes).map(Self::Seal),
            _ => None,
        }
    }
}

/// A segment's file as its name tells it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    /// The revision behind which it begins.
    pub(super) behind: Revision,
    pub(super) sealed: bool,
}

impl Segment {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (number, ending) = name.strip_prefix("segment-")?.split_once('.')?;
        let sealed = match ending {
            "sealed" => true,
            "open" => false,
            _ => return None,
        };
        Some(Self { behind: number.parse().ok()?, sealed })
    }

    pub(super) fn path(&self, directory: &Path) -> PathBuf {
        let ending = if self.sealed { "sealed" } else { "open" };
        directory.join(format!("segment-{:020}.{ending}", self.behind))
    }
}

/// The segments of a directory, ascending.
pub(super) fn segments(directory: &Path) -> Result<Vec<Segment>, StoreError> {
    Ok(disk::names(directory)?.iter().filter_map(|name| Segment::parse(name)).collect())
}

/// The changes from a revision on, oldest first. It ends behind the first error, and where the history ends.
#[derive(Debug)]
pub struct Changes {
    directory: PathBuf,
    from: Revision,
    segments: VecDeque<Segment>,
    current: Option<Reading>,
    /// Where the segment before the next one ends.
    reach: Option<Revision>,
}

#[derive(Debug)]
struct Reading {
    file: BufReader<File>,
    segment: Segment,
    totals: Totals,
    ended: bool,
}

impl Changes {
    pub(super) fn new(directory: &Path, from: Revision) -> Result<Self, StoreError> {
        let mut segments: VecDeque<_> = segments(directory)?.into();
        while segments.get(1).is_some_and(|next| next.behind < from) {
            segments.pop_front();
        }
        if let Some(first) = segments.front().filter(|first| first.behind >= from.max(1)) {
            return Err(StoreError::Damaged(format!(
                "the history on this node begins behind revision {}, not before {from}",
                first.behind
            )));
        }
        Ok(Self { directory: directory.into(), from, segments, current: None, reach: None })
    }

    /// Once it has ended without an error: the last revision that it knows of. Entries without a change count; `None`
    /// when there is no history.
    #[must_use]
    pub fn reach(&self) -> Option<Revision> {
        self.reach
    }

    fn advance(&mut self) -> Result<Option<StoredChange>, StoreError> {
        loop {
            let Some(reading) = &mut self.current else {
                let Some(segment) = self.segments.pop_front() else { return Ok(None) };
                if let Some(reach) = self.reach.filter(|reach| *reach != segment.behind) {
                    return Err(StoreError::Damaged(format!(
                        "the history on this node has nothing between revisions {reach} and {}",
                        segment.behind
                    )));
                }
                self.current = Some(Reading::open(&self.directory, segment)?);
                continue;
            };
            match reading.next()? {
                Some(change) if change.revision >= self.from => return Ok(Some(change)),
                Some(_) => {}
                None => {
                    self.reach = Some(reading.totals.reach);
                    self.current = None;
                }
            }
        }
    }
}

impl Iterator for Changes {
    type Item = Result<StoredChange, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance();
        if let Err(error) = &item {
            tracing::warn!(%error, "the history can't be read on");
            self.segments.clear();
            self.current = None;
        }
        item.transpose()
    }
}

impl Reading {
    fn open(directory: &Path, segment: Segment) -> Result<Self, StoreError> {
        let opened = match File::open(segment.path(directory)) {
            // It may have been sealed since the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !segment.sealed => {
                File::open(Segment { sealed: true, ..segment.clone() }.path(directory))
            }
            opened => opened,
        };
        let file = opened.map_err(io(format!("can't open {}", segment.path(directory).display())))?;
        let totals = Totals { reach: segment.behind, ..Totals::default() };
        Ok(Self { file: BufReader::new(file), segment, totals, ended: false })
    }

    /// The next change; `None` at a whole end. An open segment may end anywhere.
    fn next(&mut self) -> Result<Option<StoredChange>, StoreError> {
        while !self.ended {
            let frame = disk::read_frame(&mut self.file)
                .map_err(io(format!("can't read the history behind revision {}", self.segment.behind)))?;
            let (bytes, check) = match frame {
                Frame::Whole(bytes, check) => (bytes, check),
                Frame::End | Frame::Damaged(_) if !self.segment.sealed => return Ok(None),
                Frame::End => return Err(self.damaged("it ends early")),
                Frame::Damaged(what) => return Err(self.damaged(what)),
            };
            match Part::parse(&bytes) {
                Some(Part::Head(behind)) if behind == self.segment.behind && self.totals.frames == 0 => {
                    self.totals.frame(behind, check);
                }
                Some(Part::Change(change)) if change.revision > self.totals.reach => {
                    self.totals.frame(change.revision, check);
                    return Ok(Some(change));
                }
                Some(Part::Reach(index)) if index > self.totals.reach => self.totals.frame(index, check),
                Some(Part::Seal(totals)) if totals == self.totals => self.end()?,
                _ => return Err(self.damaged("a frame does not belong there")),
            }
        }
        Ok(None)
    }

    fn end(&mut self) -> Result<(), StoreError> {
        self.ended = true;
        let read = self.file.read(&mut [0]).map_err(io("can't read the history"))?;
        if read == 0 { Ok(()) } else { Err(self.damaged("it goes on behind its seal")) }
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged(format!(
            "the segment of the history behind revision {} is damaged: {what}",
            self.segment.behind
        ))
    }
}

/// What a segment holds, read up to its first damage.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) totals: Totals,
    /// How many bytes were whole.
    pub(super) bytes: u64,
    pub(super) sealed: bool,
    /// Why it went no further.
    pub(super) damage: Option<&'static str>,
}

/// Reads a segment up to its first damage.
pub(super) fn scan(path: &Path, behind: Revision) -> Result<Scan, StoreError> {
    let file = File::open(path).map_err(io(format!("can't open {}", path.display())))?;
    let mut file = BufReader::with_capacity(256 << 10, file);
    let mut scan = Scan { totals: Totals { reach: behind, ..Totals::default() }, ..Scan::default() };
    loop {
        let frame = disk::read_frame(&mut file).map_err(io(format!("can't read {}", path.display())))?;
        let (bytes, check) = match frame {
            Frame::Whole(bytes, check) => (bytes, check),
            Frame::End => return Ok(scan),
            Frame::Damaged(what) => {
                scan.damage = Some(what);
                return Ok(scan);
            }
        };
        match Part::parse(&bytes) {
            Some(Part::Head(at)) if at == behind && scan.totals.frames == 0 => scan.totals.frame(at, check),
            Some(Part::Change(StoredChange { revision, .. }) | Part::Reach(revision))
                if scan.totals.frames > 0 && revision > scan.totals.reach =>
            {
                scan.totals.frame(revision, check);
            }
            Some(Part::Seal(totals)) if totals == scan.totals => scan.sealed = true,
            _ => {
                scan.damage = Some("a frame does not belong there");
                return Ok(scan);
            }
        }
        scan.bytes += (disk::FRAME_HEAD_BYTES + bytes.len()) as u64;
        if scan.sealed {
            return Ok(scan);
        }
    }
}
