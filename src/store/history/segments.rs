//! Which segments there are, how far each reaches, and their indexes: what the writer of the history and its
//! readers share.
//!
//! The index of the segment that grows is in memory. A sealed segment has its own at its end; it is read when it
//! is first used and kept while there is room.
//!
//! **Invariant:** the lock is held for look-ups in memory only, never while a file is read or written.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    format::{Part, Seal, Segment, StoredChange},
    query::HistoryError,
    segment_index::Index,
};
use crate::{
    model::record::Revision,
    store::{
        StoreError,
        files::{self, Frame, io},
    },
};

/// Indexes of sealed segments that stay in memory: those of about 1.5 million changes.
const INDEX_BYTES_MAX: usize = 64 << 20;

/// What the writer and the readers of a history share.
#[derive(Debug)]
pub(in crate::store) struct Catalog {
    pub(in crate::store) directory: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the revision behind which each begins.
    segments: BTreeMap<Revision, Known>,
    compaction_revision: Revision,
    reach: Revision,
    /// The sealed segments whose index is in memory, the one used longest ago first.
    used: VecDeque<Revision>,
}

#[derive(Debug)]
struct Known {
    reach: Revision,
    sealed: bool,
    bytes: u64,
    /// Of one that is not sealed it is always there.
    index: Option<Index>,
}

/// A segment as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Span {
    pub(in crate::store) behind: Revision,
    pub(in crate::store) reach: Revision,
    pub(in crate::store) sealed: bool,
}

/// All segments, ascending, as one picture.
#[derive(Debug)]
pub(in crate::store) struct Spans {
    pub(in crate::store) all: Vec<Span>,
    pub(in crate::store) compaction_revision: Revision,
    pub(in crate::store) reach: Revision,
}

impl Catalog {
    pub(in crate::store) fn new(directory: &Path) -> Self {
        Self { directory: directory.into(), inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::store) fn spans(&self) -> Spans {
        let inner = self.lock();
        let span = |(behind, known): (&Revision, &Known)| Span {
            behind: *behind,
            reach: known.reach,
            sealed: known.sealed,
        };
        Spans {
            all: inner.segments.iter().map(span).collect(),
            compaction_revision: inner.compaction_revision,
            reach: inner.reach,
        }
    }

    pub(in crate::store) fn compaction_revision(&self) -> Revision {
        self.lock().compaction_revision
    }

    /// Bytes of all segments.
    pub(in crate::store) fn bytes(&self) -> u64 {
        self.lock().segments.values().map(|known| known.bytes).sum()
    }

    /// The first stretch above the compaction revision of which nothing is here.
    pub(in crate::store) fn gap(&self) -> Option<(Revision, Revision)> {
        let inner = self.lock();
        let mut reached = inner.compaction_revision;
        for (behind, known) in &inner.segments {
            if *behind > reached {
                return Some((reached, *behind));
            }
            reached = reached.max(known.reach);
        }
        (reached < inner.reach).then_some((reached, inner.reach))
    }

    /// A segment is there. One that is not sealed comes with its index.
    pub(in crate::store) fn add(&self, segment: &Segment, reach: Revision, bytes: u64, index: Option<Index>) {
        let known = Known { reach, sealed: segment.sealed, bytes, index };
        let mut inner = self.lock();
        inner.reach = inner.reach.max(reach);
        inner.segments.insert(segment.behind, known);
    }

    /// A received segment takes its place; `false` when that is not free any more.
    pub(in crate::store) fn fill(&self, behind: Revision, reach: Revision, bytes: u64) -> bool {
        let mut inner = self.lock();
        let overlaps = |(other, known): (&Revision, &Known)| *other < reach && known.reach > behind;
        if reach <= behind || reach > inner.reach || inner.segments.iter().any(overlaps) {
            return false;
        }
        inner.segments.insert(behind, Known { reach, sealed: true, bytes, index: None });
        true
    }

    /// The history knows of all up to here, from now on, or begins again behind it.
    pub(in crate::store) fn reached(&self, reach: Revision) {
        let mut inner = self.lock();
        inner.reach = inner.reach.max(reach);
    }

    /// The segment that grows has grown.
    pub(in crate::store) fn grown(
        &self,
        behind: Revision,
        reach: Revision,
        bytes: u64,
        change: Option<(&StoredChange, u64)>,
    ) {
        let mut inner = self.lock();
        inner.reach = reach;
        if let Some(known) = inner.segments.get_mut(&behind) {
            (known.reach, known.bytes) = (reach, bytes);
            if let (Some(index), Some((change, offset))) = (&mut known.index, change) {
                index.add(change, offset);
            }
        }
    }

    /// The index of the segment that grows.
    pub(in crate::store) fn growing(&self, behind: Revision) -> Index {
        self.lock().segments.get(&behind).and_then(|known| known.index.clone()).unwrap_or_default()
    }

    /// The segment that grew is sealed.
    pub(in crate::store) fn sealed(&self, behind: Revision, bytes: u64) {
        let mut inner = self.lock();
        if let Some(known) = inner.segments.get_mut(&behind) {
            (known.sealed, known.bytes) = (true, bytes);
            inner.used.push_back(behind);
        }
        inner.make_room();
    }

    /// Raises the compaction revision; gives the segments that it has passed, which are known no more. The newest one may grow.
    pub(in crate::store) fn raise_compaction_revision(&self, compaction_revision: Revision) -> Vec<Segment> {
        let mut inner = self.lock();
        inner.compaction_revision = inner.compaction_revision.max(compaction_revision);
        let compaction_revision = inner.compaction_revision;
        let newest = inner.segments.last_key_value().map(|(behind, _)| *behind);
        let is_passed = |(behind, known): &(&Revision, &Known)| {
            known.reach <= compaction_revision && (known.sealed || Some(**behind) != newest)
        };
        let segment =
            |(behind, known): (&Revision, &Known)| Segment { behind: *behind, sealed: known.sealed };
        let passed: Vec<Segment> = inner.segments.iter().filter(is_passed).map(segment).collect();
        for segment in &passed {
            inner.segments.remove(&segment.behind);
            inner.used.retain(|behind| *behind != segment.behind);
        }
        passed
    }

    /// Looks into the index of a segment.
    pub(in crate::store) fn with_index<T>(
        &self,
        span: Span,
        look: impl Fn(&Index) -> T,
    ) -> Result<T, HistoryError> {
        {
            let mut inner = self.lock();
            if let Some(index) = inner.segments.get(&span.behind).and_then(|known| known.index.as_ref()) {
                let seen = look(index);
                inner.touch(span.behind);
                return Ok(seen);
            }
        }
        let index = read_index(self.open(span)?, span)?;
        let seen = look(&index);
        let mut inner = self.lock();
        if let Some(known) = inner.segments.get_mut(&span.behind).filter(|known| known.index.is_none()) {
            known.index = Some(index);
            inner.used.push_back(span.behind);
            inner.make_room();
        }
        Ok(seen)
    }

    /// Opens the file of a segment, which may be sealed or removed meanwhile.
    pub(in crate::store) fn open(&self, span: Span) -> Result<File, HistoryError> {
        let path = |sealed| Segment { behind: span.behind, sealed }.path(&self.directory);
        let missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        for sealed in [span.sealed, true] {
            match File::open(path(sealed)) {
                Err(error) if missing(&error) => {}
                opened => {
                    let context = format!("can't open {}", path(sealed).display());
                    return Ok(opened.map_err(io(context))?);
                }
            }
        }
        let compaction_revision = self.compaction_revision();
        if span.reach <= compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        Err(io(format!("can't open {}", path(true).display()))(gone).into())
    }
}

impl Inner {
    /// Only sealed segments are in the list of use.
    fn touch(&mut self, behind: Revision) {
        if self.used.back() != Some(&behind)
            && let Some(place) = self.used.iter().position(|other| *other == behind)
        {
            self.used.remove(place);
            self.used.push_back(behind);
        }
    }

    fn make_room(&mut self) {
        let bytes = |inner: &Self, behind: &Revision| {
            inner.segments.get(behind).and_then(|known| known.index.as_ref()).map_or(0, Index::bytes)
        };
        let mut total: usize = self.used.iter().map(|behind| bytes(self, behind)).sum();
        while total > INDEX_BYTES_MAX && self.used.len() > 1 {
            let Some(oldest) = self.used.pop_front() else { return };
            total -= bytes(self, &oldest);
            if let Some(known) = self.segments.get_mut(&oldest) {
                known.index = None;
            }
        }
    }
}

fn damaged(span: Span, what: &str) -> StoreError {
    StoreError::Damaged(format!("the segment of the history behind {} is damaged: {what}", span.behind))
}

/// The seal of a segment's file, looked for at its end; `None` when there is none.
pub(in crate::store) fn read_seal(file: &mut File) -> std::io::Result<Option<Seal>> {
    let length = file.metadata()?.len();
    let Some(place) = length.checked_sub(Seal::FRAME_BYTES as u64) else { return Ok(None) };
    file.seek(SeekFrom::Start(place))?;
    Ok(match files::read_frame(file)? {
        Frame::Whole(bytes, _) => match Part::parse(&bytes) {
            Some(Part::Seal(seal)) => Some(seal),
            _ => None,
        },
        Frame::End | Frame::Damaged(_) => None,
    })
}

fn read_index(mut file: File, span: Span) -> Result<Index, StoreError> {
    let failed = || format!("can't read the history behind revision {}", span.behind);
    let seal = read_seal(&mut file).map_err(io(failed()))?.ok_or_else(|| damaged(span, "it has no seal"))?;
    file.seek(SeekFrom::Start(seal.index_at)).map_err(io(failed()))?;
    match files::read_frame(&mut BufReader::with_capacity(256 << 10, file)).map_err(io(failed()))? {
        Frame::Whole(bytes, _) => match Part::parse(&bytes) {
            Some(Part::Index(index)) => Ok(index),
            _ => Err(damaged(span, "its index is none")),
        },
        Frame::End => Err(damaged(span, "its index is missing")),
        Frame::Damaged(what) => Err(damaged(span, what)),
    }
}
