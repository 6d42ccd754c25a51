//! Which segments exist, which revisions each covers, and their indexes: what the writer of the history
//! shares with its readers.
//!
//! The index of the open segment is in memory. A sealed segment has its index at its end; it is read at first
//! use and cached.
//!
//! A sealed segment in which a read meets damage stays until another member has sent what it holds: what is whole in it
//! can be read meanwhile.
//!
//! **Invariant:** the lock is held for look-ups in memory only, never while a file is read or written.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    format::{Seal, Segment, SegmentFrame, StoredChange},
    frames::SegmentFile,
    query::HistoryError,
    segment_index::Index,
};
use crate::{
    StoreError,
    at_rest::AtRest,
    files::{self, FileFrame, io},
};
use concord_model::{key::Key, record::Revision};

/// Indexes of sealed segments that are cached: those of about 1.5 million changes.
const CACHED_INDEX_BYTES_MAX: usize = 64 << 20;

/// The history on this node's disk. Its queries read files: call them off the threads that serve requests.
#[derive(Debug)]
pub struct History {
    pub(super) directory: PathBuf,
    pub(super) at_rest: AtRest,
    pub(super) damage: Damage,
    inner: Mutex<HistoryInner>,
}

/// The segments in which a read has met damage.
#[derive(Debug, Clone, Default)]
pub(super) struct Damage(Arc<Mutex<BTreeSet<Revision>>>);

impl Damage {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Revision>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a segment is damaged, if it is sealed. Returns the error.
    pub(super) fn found(&self, span: SegmentSpan, what: &str) -> StoreError {
        let after = span.after;
        // The start looks through one that is not sealed.
        if span.sealed && self.lock().insert(after) {
            tracing::warn!(
                "the history segment after revision {after} is damaged: {what}; it is replaced as soon as another member \
                 sends what it holds"
            );
        }
        StoreError::Damaged(format!("the history segment after revision {after} is damaged: {what}"))
    }
}

#[derive(Debug, Default)]
struct HistoryInner {
    /// By the revision after which each begins.
    segments: BTreeMap<Revision, SegmentState>,
    compaction_revision: Revision,
    /// The applied mark: the last log entry that the history covers, whether it changed something or not.
    applied: Revision,
    /// The sealed segments whose index is cached, the least recently used first.
    recently_used: VecDeque<Revision>,
}

#[derive(Debug)]
struct SegmentState {
    upto: Revision,
    sealed: bool,
    bytes: u64,
    /// Always present for a segment that is not sealed.
    index: Option<Index>,
}

/// The revisions that a segment covers now: those after `after`, up to and including `upto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentSpan {
    pub(super) after: Revision,
    pub(super) upto: Revision,
    pub(super) sealed: bool,
}

/// All segments, ascending, as of one moment.
#[derive(Debug)]
pub(super) struct SegmentSpans {
    pub(super) all: Vec<SegmentSpan>,
    pub(super) compaction_revision: Revision,
    pub(super) applied: Revision,
}

impl History {
    pub(super) fn new(directory: &Path, at_rest: &AtRest) -> Self {
        Self {
            directory: directory.into(),
            at_rest: at_rest.clone(),
            damage: Damage::default(),
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HistoryInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn spans(&self) -> SegmentSpans {
        let inner = self.lock();
        let span = |(after, segment): (&Revision, &SegmentState)| SegmentSpan {
            after: *after,
            upto: segment.upto,
            sealed: segment.sealed,
        };
        SegmentSpans {
            all: inner.segments.iter().map(span).collect(),
            compaction_revision: inner.compaction_revision,
            applied: inner.applied,
        }
    }

    pub(super) fn compaction_revision(&self) -> Revision {
        self.lock().compaction_revision
    }

    /// The last revision that the history covers.
    pub(super) fn applied(&self) -> Revision {
        self.lock().applied
    }

    /// The error of a record that was written at a revision and is not there.
    pub(super) fn lacks(&self, key: &Key, revision: Revision) -> HistoryError {
        let compaction_revision = self.compaction_revision();
        // Its segment was removed while it was looked for.
        if revision <= compaction_revision {
            return HistoryError::Compacted { compaction_revision };
        }
        let text = format!("the history has no change of config `{key}` at revision {revision}");
        StoreError::Damaged(text).into()
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().segments.values().map(|segment| segment.bytes).sum()
    }

    /// The first range above the compaction revision that is missing: after one revision, up to and including
    /// another.
    #[must_use]
    pub fn first_gap(&self) -> Option<(Revision, Revision)> {
        let inner = self.lock();
        let mut covered = inner.compaction_revision;
        for (after, segment) in &inner.segments {
            if *after > covered {
                return Some((covered, *after));
            }
            covered = covered.max(segment.upto);
        }
        (covered < inner.applied).then_some((covered, inner.applied))
    }

    /// The retained range of a sealed segment in which a read has met damage: after one revision, up to and including
    /// another.
    #[must_use]
    pub fn first_damaged(&self) -> Option<(Revision, Revision)> {
        let mut damaged = self.damage.lock();
        let inner = self.lock();
        let compaction_revision = inner.compaction_revision;
        let is_retained = |segment: &SegmentState| segment.upto > compaction_revision;
        damaged.retain(|after| inner.segments.get(after).is_some_and(is_retained));
        let after = *damaged.first()?;
        inner.segments.get(&after).map(|segment| (after.max(compaction_revision), segment.upto))
    }

    /// Renames the segment whose range [`Self::first_damaged`] has named, so that it is a gap. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn set_aside(&self, after: Revision) -> Result<(), StoreError> {
        let found = self.lock().segments.range(..=after).next_back().map(|(after, _)| *after);
        let Some(after) = found else { return Ok(()) };
        let path = Segment { after, sealed: true }.path(&self.directory);
        if path.exists() {
            files::rename(&path, &path.with_extension("damaged"))?;
        }
        let mut inner = self.lock();
        inner.segments.remove(&after);
        inner.recently_used.retain(|other| *other != after);
        drop(inner);
        self.damage.lock().remove(&after);
        Ok(())
    }

    /// Adds a segment that is on the disk. The caller passes the index of one that is not sealed.
    pub(super) fn add(&self, segment: &Segment, upto: Revision, bytes: u64, index: Option<Index>) {
        let state = SegmentState { upto, sealed: segment.sealed, bytes, index };
        let mut inner = self.lock();
        inner.applied = inner.applied.max(upto);
        inner.segments.insert(segment.after, state);
    }

    /// Adds a received segment; `false` when its range is no longer missing.
    pub(super) fn add_received(&self, after: Revision, upto: Revision, bytes: u64) -> bool {
        let mut inner = self.lock();
        let overlaps = |(other, segment): (&Revision, &SegmentState)| *other < upto && segment.upto > after;
        if upto <= after || upto > inner.applied || inner.segments.iter().any(overlaps) {
            return false;
        }
        inner.segments.insert(after, SegmentState { upto, sealed: true, bytes, index: None });
        true
    }

    /// Raises the applied mark without a segment: the history continues after this revision.
    pub(super) fn advance(&self, applied: Revision) {
        let mut inner = self.lock();
        inner.applied = inner.applied.max(applied);
    }

    /// The open segment was appended to: it covers the revisions up to `upto` now.
    pub(super) fn appended(
        &self,
        after: Revision,
        upto: Revision,
        bytes: u64,
        change: Option<(&StoredChange, u64)>,
    ) {
        let mut inner = self.lock();
        inner.applied = upto;
        if let Some(segment) = inner.segments.get_mut(&after) {
            (segment.upto, segment.bytes) = (upto, bytes);
            if let (Some(index), Some((change, offset))) = (&mut segment.index, change) {
                index.add(change, offset);
            }
        }
    }

    /// The index of the open segment.
    pub(super) fn open_index(&self, after: Revision) -> Index {
        self.lock().segments.get(&after).and_then(|segment| segment.index.clone()).unwrap_or_default()
    }

    /// The open segment was sealed.
    pub(super) fn sealed(&self, after: Revision, bytes: u64) {
        let mut inner = self.lock();
        if let Some(segment) = inner.segments.get_mut(&after) {
            (segment.sealed, segment.bytes) = (true, bytes);
            inner.recently_used.push_back(after);
        }
        inner.evict();
    }

    /// Raises the compaction revision and returns the segments below it, which it removes from the list. The newest
    /// segment stays while it is open.
    pub(super) fn raise_compaction_revision(&self, compaction_revision: Revision) -> Vec<Segment> {
        let mut inner = self.lock();
        inner.compaction_revision = inner.compaction_revision.max(compaction_revision);
        let compaction_revision = inner.compaction_revision;
        let newest = inner.segments.last_key_value().map(|(after, _)| *after);
        let is_compacted = |(after, segment): &(&Revision, &SegmentState)| {
            segment.upto <= compaction_revision && (segment.sealed || Some(**after) != newest)
        };
        let name =
            |(after, segment): (&Revision, &SegmentState)| Segment { after: *after, sealed: segment.sealed };
        let compacted: Vec<Segment> = inner.segments.iter().filter(is_compacted).map(name).collect();
        for segment in &compacted {
            inner.segments.remove(&segment.after);
            inner.recently_used.retain(|after| *after != segment.after);
        }
        compacted
    }

    /// Calls `read` with the index of a segment.
    pub(super) fn with_index<T>(
        &self,
        span: SegmentSpan,
        read: impl Fn(&Index) -> T,
    ) -> Result<T, HistoryError> {
        {
            let mut inner = self.lock();
            if let Some(index) = inner.segments.get(&span.after).and_then(|segment| segment.index.as_ref()) {
                let found = read(index);
                inner.touch(span.after);
                return Ok(found);
            }
        }
        let index = self.read_index(span)?;
        let found = read(&index);
        let mut inner = self.lock();
        if let Some(segment) = inner.segments.get_mut(&span.after).filter(|segment| segment.index.is_none()) {
            segment.index = Some(index);
            inner.recently_used.push_back(span.after);
            inner.evict();
        }
        Ok(found)
    }

    fn read_index(&self, span: SegmentSpan) -> Result<Index, HistoryError> {
        let mut file = self.open(span)?;
        let failed = || format!("can't read the history segment after revision {}", span.after);
        let damaged = |what| HistoryError::from(self.damage.found(span, what));
        let seal = read_seal(&mut file).map_err(io(failed()))?.ok_or_else(|| damaged("it has no seal"))?;
        file.seek(seal.index_at).map_err(io(failed()))?;
        match file.next().map_err(io(failed()))? {
            FileFrame::Whole(bytes, _) => match SegmentFrame::parse(&bytes) {
                Some(SegmentFrame::Index(index)) => Ok(index),
                _ => Err(damaged("its index can't be decoded")),
            },
            FileFrame::End => Err(damaged("its index is missing")),
            FileFrame::Cut(what) | FileFrame::Damaged(what) => Err(damaged(what)),
        }
    }

    /// Opens the file of a segment, which may be sealed or removed meanwhile.
    pub(super) fn open(&self, span: SegmentSpan) -> Result<SegmentFile, HistoryError> {
        let path = |sealed| Segment { after: span.after, sealed }.path(&self.directory);
        let missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        for sealed in [span.sealed, true] {
            match File::open(path(sealed)) {
                Err(error) if missing(&error) => {}
                opened => {
                    let context = format!("can't open {}", path(sealed).display());
                    let opened = opened.and_then(|file| SegmentFile::new(file, &self.at_rest, span.after));
                    return Ok(opened.map_err(io(context))?);
                }
            }
        }
        let compaction_revision = self.compaction_revision();
        if span.upto <= compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        Err(io(format!("can't open {}", path(true).display()))(missing).into())
    }
}

impl HistoryInner {
    /// Marks a segment as the most recently used. Only sealed segments are listed.
    fn touch(&mut self, after: Revision) {
        if self.recently_used.back() != Some(&after)
            && let Some(place) = self.recently_used.iter().position(|other| *other == after)
        {
            self.recently_used.remove(place);
            self.recently_used.push_back(after);
        }
    }

    /// Drops the least recently used indexes until the rest fits the cache.
    fn evict(&mut self) {
        let bytes = |inner: &Self, after: &Revision| {
            inner.segments.get(after).and_then(|segment| segment.index.as_ref()).map_or(0, Index::bytes)
        };
        let mut total: usize = self.recently_used.iter().map(|after| bytes(self, after)).sum();
        while total > CACHED_INDEX_BYTES_MAX && self.recently_used.len() > 1 {
            let Some(oldest) = self.recently_used.pop_front() else { return };
            total -= bytes(self, &oldest);
            if let Some(segment) = self.segments.get_mut(&oldest) {
                segment.index = None;
            }
        }
    }
}

/// Reads the seal at the end of a segment's file; `None` when there is none.
pub(super) fn read_seal(file: &mut SegmentFile) -> std::io::Result<Option<Seal>> {
    let bytes = (Seal::FRAME_BYTES + file.overhead()) as u64;
    let Some(offset) = file.length()?.checked_sub(bytes) else { return Ok(None) };
    file.seek(offset)?;
    Ok(match file.next()? {
        FileFrame::Whole(bytes, _) => match SegmentFrame::parse(&bytes) {
            Some(SegmentFrame::Seal(seal)) => Some(seal),
            _ => None,
        },
        FileFrame::End | FileFrame::Cut(_) | FileFrame::Damaged(_) => None,
    })
}
