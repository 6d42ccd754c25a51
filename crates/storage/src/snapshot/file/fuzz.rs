//! Snapshot files for the fuzzer: put into frames, taken out of them.

use super::{BLOCK, Header, SnapshotTotals};
use crate::files::{self, FileFrame};
use concord_state::testing::join;

/// A file with this header and these blocks, which are not compressed yet, and with the footer that fits.
pub(crate) fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let Some((head, blocks)) = parts.split_first() else { return Vec::new() };
    let (mut bytes, mut totals) = (Vec::new(), SnapshotTotals::default());
    files::write_frame(&mut bytes, head).expect("memory grows");
    for block in blocks {
        let length = u32::try_from(block.len()).expect("a part is short");
        let frame = [&[BLOCK][..], &length.to_le_bytes(), &lz4_flex::block::compress(block)].concat();
        totals.block(length, files::write_frame(&mut bytes, &frame).expect("memory grows"));
    }
    totals.records = Header::from_bytes(head, "this file").map_or(0, |header| header.records());
    files::write_frame(&mut bytes, &totals.to_bytes()).expect("memory grows");
    bytes
}

/// The parts of which [`framed`] makes the bytes again.
pub(crate) fn unframed(mut bytes: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    while let FileFrame::Whole(frame, _) = files::read_frame(&mut bytes).expect("memory is read") {
        if found.is_empty() {
            found.push(frame);
        } else if let Some((&[BLOCK, a, b, c, d], block)) = frame.split_first_chunk::<5>() {
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            found.push(lz4_flex::block::decompress(block, length).expect("it was compressed"));
        }
    }
    join(&found.iter().map(Vec::as_slice).collect::<Vec<_>>())
}
