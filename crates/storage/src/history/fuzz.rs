//! Segments for the fuzzer: scanned, put into frames, taken out of them.

use super::{
    format::{Encoder, SegmentFrame, StoredChange},
    reader::scan_from,
    segment_index::Index,
};
use crate::{
    at_rest::AtRest,
    files::{self, FileFrame},
};
use concord_state::Change;
use concord_state::testing::join;

/// Scans a segment, and again what the scan found to be whole. Whether all of it is.
pub(crate) fn scan(bytes: &[u8]) -> bool {
    // The revision that the segment itself says it begins after.
    let mut rest = bytes;
    let after = match files::read_frame(&mut rest).expect("memory is read") {
        FileFrame::Whole(frame, _) => match SegmentFrame::parse(&frame) {
            Some(SegmentFrame::Header(after)) => after,
            _ => 0,
        },
        FileFrame::End | FileFrame::Cut(_) | FileFrame::Damaged(_) => 0,
    };
    let scan = match scan_from(bytes, after, &AtRest::default()) {
        Ok(scan) => scan,
        // Whole, and written by a newer version: rejected.
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "memory is read");
            return false;
        }
    };
    let whole = usize::try_from(scan.bytes).expect("no more than there is");
    assert!(whole <= bytes.len(), "a scan finds no more than there is");
    let again = scan_from(&bytes[..whole], after, &AtRest::default()).expect("memory is read");
    assert_eq!((again.totals, again.bytes, again.sealed), (scan.totals, scan.bytes, scan.sealed));
    assert!(again.damage.is_none(), "what is whole has no damage");
    scan.damage.is_none()
}

pub(crate) fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        files::write_frame(&mut bytes, part).expect("memory grows");
    }
    bytes
}

/// The parts of which [`framed`] makes the bytes again.
pub(crate) fn unframed(mut bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let FileFrame::Whole(frame, _) = files::read_frame(&mut bytes).expect("memory is read") {
        frames.push(frame);
    }
    join(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// A sealed segment with these changes, and an open one.
pub(crate) fn segments(changes: &[Change]) -> [Vec<u8>; 2] {
    let write = |sealed| {
        let mut encoder = Encoder::new(Vec::new(), 0, &AtRest::default()).expect("memory grows");
        let mut index = Index::default();
        for change in changes {
            let change = StoredChange::of(change, 0);
            index.add(&change, encoder.bytes);
            encoder.change(&change).expect("memory grows");
        }
        encoder.applied_mark(encoder.upto() + 3).expect("memory grows");
        if sealed { encoder.seal(&index).expect("memory grows") } else { encoder.to }
    };
    [write(true), write(false)]
}
