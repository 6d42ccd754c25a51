//! Segments that are rewritten because encryption was turned on or off since they were written.
//!
//! **Invariant:** a segment is replaced only by a durable one that holds every readable change of it.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write as _},
    path::Path,
};

use super::{
    format::{self, Encoder, SegmentFrame, SegmentHead},
    frames::SegmentFrames,
    segment_index::Index,
};
use crate::{
    StoreError,
    at_rest::AtRest,
    files::{self, FileFrame, io},
};
use concord_model::record::Revision;

/// Bytes that are buffered of each file.
const BUFFER_BYTES: usize = 256 << 10;

/// What was written of a segment.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) upto: Revision,
    /// The file's length.
    pub(super) bytes: u64,
    /// Why the copy ends before the segment does.
    pub(super) damage: Option<&'static str>,
}

/// Rewrites all segments of a directory that are encrypted and should not be, or the other way round. Nothing is open
/// yet.
pub(super) fn convert(directory: &Path, at_rest: &AtRest) -> Result<(), StoreError> {
    if at_rest.is_converted() {
        return Ok(());
    }
    for segment in format::segments(directory)? {
        let path = segment.path(directory);
        if is_sealed(&path)? == at_rest.seals() {
            continue;
        }
        let failed = || format!("can't rewrite {}", path.display());
        let unfinished = files::unfinished(&path);
        let from = File::open(&path).map_err(io(failed()))?;
        let to = File::create(&unfinished).map_err(io(failed()))?;
        let copied = copy((from, at_rest), (to, at_rest), segment.after).map_err(io(failed()))?;
        if let Some(damage) = copied.damage {
            tracing::warn!("{} is whole up to revision {} only: {damage}", path.display(), copied.upto);
        }
        if copied.upto == segment.after {
            // Nothing of it is whole. What was not encrypted does not stay.
            files::remove(&unfinished)?;
            if at_rest.seals() {
                files::remove(&path)?;
            } else {
                files::rename(&path, &path.with_extension("damaged"))?;
            }
        } else {
            files::rename(&unfinished, &path)?;
        }
    }
    if at_rest.seals() {
        // What was set aside before is readable on the disk.
        for name in files::names(directory)?.iter().filter(|name| name.ends_with(".damaged")) {
            let path = directory.join(name);
            if !is_sealed(&path)? {
                files::remove(&path)?;
            }
        }
    }
    Ok(())
}

/// Whether a segment's file is encrypted.
fn is_sealed(path: &Path) -> Result<bool, StoreError> {
    let failed = || format!("can't read {}", path.display());
    let file = File::open(path).map_err(io(failed()))?;
    let mut begin = file.take(format::HEADER_FRAME_BYTES);
    let first = files::read_frame(&mut begin).map_err(io(failed()))?;
    let FileFrame::Whole(first, _) = first else { return Ok(false) };
    Ok(SegmentHead::parse(&first).is_some_and(|head| head.id.is_some()))
}

/// Writes the changes of a segment as a sealed segment, durably, up to the first damage. Each side has its own keys: what
/// comes from another member is unencrypted, and an encrypted directory may refuse that of its own.
pub(super) fn copy(
    (from, from_keys): (impl Read, &AtRest),
    (to, to_keys): (File, &AtRest),
    after: Revision,
) -> io::Result<Copied> {
    let mut frames = SegmentFrames::new(BufReader::with_capacity(BUFFER_BYTES, from));
    let mut encoder = Encoder::new(BufWriter::with_capacity(BUFFER_BYTES, to), after, to_keys)?;
    let (mut index, mut begun) = (Index::default(), false);
    let damage = loop {
        let bytes = match frames.next(from_keys, after)? {
            FileFrame::Whole(bytes, _) => bytes,
            FileFrame::End => break None,
            FileFrame::Cut(what) | FileFrame::Damaged(what) => break Some(what),
        };
        match SegmentFrame::parse(&bytes) {
            Some(SegmentFrame::Header(at)) if at == after && !begun => begun = true,
            Some(SegmentFrame::Change(change)) if begun && change.revision > encoder.upto() => {
                index.add(&change, encoder.bytes);
                encoder.change(&change)?;
            }
            Some(SegmentFrame::AppliedMark(revision)) if begun && revision > encoder.upto() => {
                encoder.applied_mark(revision)?;
            }
            Some(SegmentFrame::Index(_) | SegmentFrame::Seal(_)) if begun => {}
            _ => break Some("a frame does not belong there"),
        }
    };
    let upto = encoder.upto();
    let mut file = encoder.seal(&index)?;
    file.flush()?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(Copied { upto, bytes: file.metadata()?.len(), damage })
}
