//! Reading a segment frame by frame.
//!
//! **Invariant:** nothing is taken for a change whose checksum was not compared; what a sealed segment lacks is
//! damage, the end of one that grows may be torn.

use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use super::{
    format::{Part, StoredChange, Totals},
    segment_index::Index,
    segments::Span,
};
use crate::{
    model::record::Revision,
    store::{
        StoreError,
        files::{self, Frame, io},
    },
};

/// Reads the changes of one segment.
#[derive(Debug)]
pub(in crate::store) struct Reading {
    file: BufReader<File>,
    span: Span,
    totals: Totals,
    /// Read from its beginning: the sum over all frames can be compared.
    whole: bool,
    ended: bool,
}

impl Reading {
    /// Begins at a frame; 0 is the first.
    pub(in crate::store) fn open(mut file: File, span: Span, offset: u64) -> Result<Self, StoreError> {
        file.seek(SeekFrom::Start(offset)).map_err(io("can't read the history"))?;
        let totals = Totals { reach: span.behind, ..Totals::default() };
        let file = BufReader::with_capacity(64 << 10, file);
        Ok(Self { file, span, totals, whole: offset == 0, ended: false })
    }

    /// The next change; `None` at a whole end. One that is not sealed may end anywhere.
    pub(in crate::store) fn next(&mut self) -> Result<Option<StoredChange>, StoreError> {
        while !self.ended {
            let frame = files::read_frame(&mut self.file)
                .map_err(io(format!("can't read the history behind revision {}", self.span.behind)))?;
            let (bytes, check) = match frame {
                Frame::Whole(bytes, check) => (bytes, check),
                Frame::End | Frame::Damaged(_) if !self.span.sealed => return Ok(None),
                Frame::End => return Err(self.damaged("it ends early")),
                Frame::Damaged(what) => return Err(self.damaged(what)),
            };
            match Part::parse(&bytes) {
                Some(Part::Head(behind))
                    if behind == self.span.behind && self.totals.frames == 0 && self.whole =>
                {
                    self.totals.frame(behind, check);
                }
                Some(Part::Change(change)) if change.revision > self.totals.reach => {
                    self.totals.frame(change.revision, check);
                    return Ok(Some(change));
                }
                Some(Part::Reach(index)) if index > self.totals.reach => self.totals.frame(index, check),
                Some(Part::Index(_)) => self.totals.frame(self.totals.reach, check),
                Some(Part::Seal(seal))
                    if seal.totals == self.totals
                        || (!self.whole && seal.totals.reach == self.totals.reach) =>
                {
                    self.end()?;
                }
                _ => return Err(self.damaged("a frame does not belong there")),
            }
        }
        Ok(None)
    }

    /// Whether it was read as far as it was known to reach.
    pub(in crate::store) fn check_reach(&self) -> Result<(), StoreError> {
        if self.totals.reach >= self.span.reach { Ok(()) } else { Err(self.damaged("it ends early")) }
    }

    fn end(&mut self) -> Result<(), StoreError> {
        self.ended = true;
        let read = self.file.read(&mut [0]).map_err(io("can't read the history"))?;
        if read == 0 { Ok(()) } else { Err(self.damaged("it goes on behind its seal")) }
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged(format!(
            "the segment of the history behind revision {} is damaged: {what}",
            self.span.behind
        ))
    }
}

/// What a segment holds, read up to its first damage.
#[derive(Debug, Default)]
pub(in crate::store) struct Scan {
    pub(in crate::store) totals: Totals,
    /// How many bytes were whole: of one without a seal those before its index.
    pub(in crate::store) bytes: u64,
    pub(in crate::store) sealed: bool,
    pub(in crate::store) index: Index,
    /// Why it went no further.
    pub(in crate::store) damage: Option<&'static str>,
}

/// Reads a segment's file up to its first damage.
pub(in crate::store) fn scan(path: &Path, behind: Revision) -> Result<Scan, StoreError> {
    let file = File::open(path).map_err(io(format!("can't open {}", path.display())))?;
    let file = BufReader::with_capacity(256 << 10, file);
    scan_from(file, behind).map_err(io(format!("can't read {}", path.display())))
}

/// Reads a segment up to its first damage.
pub(in crate::store) fn scan_from(mut from: impl Read, behind: Revision) -> std::io::Result<Scan> {
    let mut scan = Scan { totals: Totals { reach: behind, ..Totals::default() }, ..Scan::default() };
    // Behind an index only the seal may come; without it the index is cut off.
    let mut indexed: Option<(Totals, u64)> = None;
    loop {
        let (bytes, check) = match files::read_frame(&mut from)? {
            Frame::Whole(bytes, check) => (bytes, check),
            Frame::End => return Ok(scan),
            Frame::Damaged(what) => {
                scan.damage = Some(what);
                return Ok(scan);
            }
        };
        let length = (files::FRAME_HEAD_BYTES + bytes.len()) as u64;
        match (Part::parse(&bytes), indexed) {
            (Some(Part::Head(at)), None) if at == behind && scan.totals.frames == 0 => {
                scan.totals.frame(at, check);
            }
            (Some(Part::Change(change)), None)
                if scan.totals.frames > 0 && change.revision > scan.totals.reach =>
            {
                scan.index.add(&change, scan.bytes);
                scan.totals.frame(change.revision, check);
            }
            (Some(Part::Reach(revision)), None) if scan.totals.frames > 0 && revision > scan.totals.reach => {
                scan.totals.frame(revision, check);
            }
            (Some(Part::Index(index)), None) if index == scan.index => {
                let mut totals = scan.totals;
                totals.frame(totals.reach, check);
                indexed = Some((totals, scan.bytes + length));
                continue;
            }
            (Some(Part::Seal(seal)), Some((totals, before)))
                if seal.totals == totals && seal.index_at == scan.bytes =>
            {
                (scan.totals, scan.bytes, scan.sealed) = (totals, before + length, true);
                return Ok(scan);
            }
            _ => {
                scan.damage = Some("a frame does not belong there");
                return Ok(scan);
            }
        }
        scan.bytes += length;
    }
}
