//! Reading a segment frame by frame: its changes for a query, or all of it up to its first damage.
//!
//! **Invariant:** no change is returned before its checksum was verified. A sealed segment that ends early is
//! damaged; the end of an open one may not be written yet, and a start cuts off what a crash has torn.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use super::{
    format::{SegmentFrame, SegmentTotals, StoredChange},
    frames::{SegmentFile, SegmentFrames},
    segment_index::Index,
    segments::{Damage, SegmentSpan},
};
use crate::{
    StoreError,
    at_rest::{AtRest, FileKey},
    files::{FileFrame, io},
};
use concord_model::record::Revision;

/// Reads the changes of one segment.
#[derive(Debug)]
pub(super) struct SegmentReader {
    file: SegmentFile,
    span: SegmentSpan,
    damage: Damage,
    totals: SegmentTotals,
    /// It reads from the first frame: the totals can be compared with those of the seal.
    from_start: bool,
    ended: bool,
}

impl SegmentReader {
    /// Starts at the frame at an offset; 0 is the first one. Damage is noted.
    pub(super) fn open(
        mut file: SegmentFile,
        (span, damage): (SegmentSpan, &Damage),
        offset: u64,
    ) -> Result<Self, StoreError> {
        file.seek(offset).map_err(io("can't read the history"))?;
        let totals = SegmentTotals { upto: span.after, ..SegmentTotals::default() };
        Ok(Self { file, span, damage: damage.clone(), totals, from_start: offset == 0, ended: false })
    }

    /// The next change; `None` after the seal, or at the end of what is whole of an open segment.
    pub(super) fn next(&mut self) -> Result<Option<StoredChange>, StoreError> {
        while !self.ended {
            let frame = self
                .file
                .next()
                .map_err(io(format!("can't read the history segment after revision {}", self.span.after)))?;
            let (bytes, check) = match frame {
                FileFrame::Whole(bytes, check) => (bytes, check),
                // What the writer appends may be there in part.
                FileFrame::End | FileFrame::Cut(_) if !self.span.sealed => return Ok(None),
                FileFrame::End => return Err(self.damaged("it ends early")),
                FileFrame::Cut(what) | FileFrame::Damaged(what) => return Err(self.damaged(what)),
            };
            match SegmentFrame::parse(&bytes) {
                Some(SegmentFrame::Header(after))
                    if after == self.span.after && self.totals.frames == 0 && self.from_start =>
                {
                    self.totals.add(after, check);
                }
                Some(SegmentFrame::Change(change)) if change.revision > self.totals.upto => {
                    self.totals.add(change.revision, check);
                    return Ok(Some(change));
                }
                Some(SegmentFrame::AppliedMark(index)) if index > self.totals.upto => {
                    self.totals.add(index, check);
                }
                Some(SegmentFrame::Index(_)) => self.totals.add(self.totals.upto, check),
                Some(SegmentFrame::Seal(seal))
                    if seal.totals == self.totals
                        || (!self.from_start && seal.totals.upto == self.totals.upto) =>
                {
                    self.end()?;
                }
                _ => return Err(self.damaged("a frame does not belong there")),
            }
        }
        Ok(None)
    }

    /// Fails when the segment ended before the last revision that it covered when it was opened.
    pub(super) fn check_complete(&self) -> Result<(), StoreError> {
        if self.totals.upto >= self.span.upto { Ok(()) } else { Err(self.damaged("it ends early")) }
    }

    fn end(&mut self) -> Result<(), StoreError> {
        self.ended = true;
        let is_at_end = self.file.is_at_end().map_err(io("can't read the history"))?;
        if is_at_end { Ok(()) } else { Err(self.damaged("there are bytes after its seal")) }
    }

    fn damaged(&self, what: &str) -> StoreError {
        self.damage.found(self.span, what)
    }
}

/// What a segment holds up to its first damage.
#[derive(Debug, Default)]
pub(super) struct SegmentScan {
    pub(super) totals: SegmentTotals,
    /// Bytes that are whole; of a segment without a seal, those before its index.
    pub(super) bytes: u64,
    pub(super) sealed: bool,
    pub(super) index: Index,
    /// The key of an encrypted one.
    pub(super) key: Option<FileKey>,
    /// Why the scan stopped.
    pub(super) damage: Option<&'static str>,
}

/// Reads a segment's file up to its first damage.
pub(super) fn scan(path: &Path, after: Revision, at_rest: &AtRest) -> Result<SegmentScan, StoreError> {
    let file = File::open(path).map_err(io(format!("can't open {}", path.display())))?;
    let file = BufReader::with_capacity(256 << 10, file);
    scan_from(file, after, at_rest).map_err(|error| {
        if error.kind() == std::io::ErrorKind::Unsupported {
            return StoreError::Newer(format!("{}: {error}", path.display()));
        }
        io(format!("can't read {}", path.display()))(error)
    })
}

/// Reads a segment up to its first damage. A whole frame that this version does not know is an error of the kind
/// *unsupported*: it must not be cut off.
pub(super) fn scan_from(from: impl Read, after: Revision, at_rest: &AtRest) -> std::io::Result<SegmentScan> {
    let mut frames = SegmentFrames::new(from);
    let scan = scan_frames(&mut frames, after, at_rest)?;
    Ok(SegmentScan { key: frames.into_key(), ..scan })
}

fn scan_frames(
    frames: &mut SegmentFrames<impl Read>,
    after: Revision,
    at_rest: &AtRest,
) -> std::io::Result<SegmentScan> {
    let mut scan = SegmentScan {
        totals: SegmentTotals { upto: after, ..SegmentTotals::default() },
        ..SegmentScan::default()
    };
    // Only the seal may follow the index. Without a seal the index is cut off, so it is not counted before.
    let mut indexed: Option<(SegmentTotals, u64)> = None;
    loop {
        let begin = frames.offset();
        let (bytes, check) = match frames.next(at_rest, after)? {
            FileFrame::Whole(bytes, check) => (bytes, check),
            FileFrame::End => return Ok(scan),
            FileFrame::Cut(what) | FileFrame::Damaged(what) => {
                scan.damage = Some(what);
                return Ok(scan);
            }
        };
        let length = frames.offset() - begin;
        match (SegmentFrame::parse(&bytes), indexed) {
            (Some(SegmentFrame::Header(at)), None) if at == after && scan.totals.frames == 0 => {
                scan.totals.add(at, check);
            }
            (Some(SegmentFrame::Change(change)), None)
                if scan.totals.frames > 0 && change.revision > scan.totals.upto =>
            {
                scan.index.add(&change, scan.bytes);
                scan.totals.add(change.revision, check);
            }
            (Some(SegmentFrame::AppliedMark(revision)), None)
                if scan.totals.frames > 0 && revision > scan.totals.upto =>
            {
                scan.totals.add(revision, check);
            }
            (Some(SegmentFrame::Index(index)), None) if index == scan.index => {
                let mut totals = scan.totals;
                totals.add(totals.upto, check);
                indexed = Some((totals, scan.bytes + length));
                continue;
            }
            (Some(SegmentFrame::Seal(seal)), Some((totals, before)))
                if seal.totals == totals && seal.index_at == scan.bytes =>
            {
                (scan.totals, scan.bytes, scan.sealed) = (totals, before + length, true);
                return Ok(scan);
            }
            // Its checksum is right: this is what was written.
            (None, _) => {
                let text = "a frame holds what this version does not know; start a newer version";
                return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text));
            }
            _ => {
                scan.damage = Some("a frame does not belong there");
                return Ok(scan);
            }
        }
        scan.bytes += length;
    }
}
