//! The frames of a segment file, encrypted or not.
//!
//! The first frame of a segment is never encrypted: it says whether the others are encrypted, and holds the random
//! bytes that the segment's key is derived from (`format`). The content of every other frame of an encrypted segment is
//! encrypted and bound to its offset. So a frame is read only in the file and at the place where it was written.
//!
//! An encrypted segment that a crash has torn is never appended to: the writer seals it and starts a new one with a key
//! of its own (`writer`).
//!
//! **Invariant:** the checksum of a frame is that of the bytes on the disk, and a frame that can't be decrypted is
//! damaged.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
};

use super::format::SegmentHead;
use crate::{
    at_rest::{AtRest, FileKey, KeyPurpose, OVERHEAD_BYTES},
    files::{self, FileFrame},
};
use concord_model::record::Revision;

/// The key of a segment, by its place in the history and the random bytes of its head.
pub(super) fn segment_key(at_rest: &AtRest, after: Revision, id: &[u8]) -> Option<FileKey> {
    at_rest.file_key(KeyPurpose::Segment, &[&after.to_le_bytes()[..], id].concat())
}

/// What encryption adds to each frame but the first.
pub(super) fn overhead(key: Option<&FileKey>) -> usize {
    if key.is_some() { OVERHEAD_BYTES } else { 0 }
}

/// Writes a frame at an offset; returns its checksum, and its length on the disk.
pub(super) fn write(
    to: &mut impl Write,
    key: Option<&FileKey>,
    offset: u64,
    content: &[u8],
) -> io::Result<(u32, u64)> {
    let sealed;
    let bytes = match key {
        None => content,
        Some(key) => {
            sealed = key.seal(&offset.to_le_bytes(), content);
            &sealed
        }
    };
    let check = files::write_frame(to, bytes)?;
    Ok((check, (files::FRAME_HEADER_BYTES + bytes.len()) as u64))
}

/// Reads the frame at an offset; returns its content, and its length on the disk.
pub(super) fn read(from: &mut impl Read, key: Option<&FileKey>, offset: u64) -> io::Result<(FileFrame, u64)> {
    let frame = files::read_frame(from)?;
    let FileFrame::Whole(bytes, check) = frame else { return Ok((frame, 0)) };
    let length = (files::FRAME_HEADER_BYTES + bytes.len()) as u64;
    let Some(key) = key else { return Ok((FileFrame::Whole(bytes, check), length)) };
    Ok(match key.open(&offset.to_le_bytes(), &bytes) {
        Some(content) => (FileFrame::Whole(content, check), length),
        None => (FileFrame::Damaged("a block was not written there"), length),
    })
}

/// The frames of a file, one after the other.
#[derive(Debug)]
pub(super) struct SegmentFrames<R> {
    from: R,
    key: Option<FileKey>,
    offset: u64,
}

impl<R: Read> SegmentFrames<R> {
    /// From the first frame on, of a segment that begins after a revision.
    pub(super) fn new(from: R) -> Self {
        Self { from, key: None, offset: 0 }
    }

    /// The offset of the next frame.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The key of an encrypted file; known after the first frame.
    pub(super) fn into_key(self) -> Option<FileKey> {
        self.key
    }

    pub(super) fn next(&mut self, at_rest: &AtRest, after: Revision) -> io::Result<FileFrame> {
        let (frame, length) = read(&mut self.from, self.key.as_ref(), self.offset)?;
        if self.offset == 0
            && let FileFrame::Whole(first, _) = &frame
            && let Some(head) = SegmentHead::parse(first)
        {
            self.key = key_of(head, at_rest, after)?;
            if self.key.is_none() && !at_rest.allows_plain() {
                return Ok(FileFrame::Damaged("it is not encrypted"));
            }
        }
        self.offset += length;
        Ok(frame)
    }
}

/// A segment's file, open for reading.
#[derive(Debug)]
pub(super) struct SegmentFile {
    file: BufReader<File>,
    key: Option<FileKey>,
    offset: u64,
}

impl SegmentFile {
    /// At the begin of the file.
    pub(super) fn new(file: File, at_rest: &AtRest, after: Revision) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(64 << 10, file);
        let mut key = None;
        // Without a key nothing in the directory is encrypted: the head need not be read.
        if at_rest.has_key() {
            if let FileFrame::Whole(first, _) = files::read_frame(&mut file)?
                && let Some(head) = SegmentHead::parse(&first)
            {
                key = key_of(head, at_rest, after)?;
            }
            if key.is_none() && !at_rest.allows_plain() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a history segment is not encrypted"));
            }
            file.seek(SeekFrom::Start(0))?;
        }
        Ok(Self { file, key, offset: 0 })
    }

    /// The length of the file.
    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.file.get_ref().metadata()?.len())
    }

    /// What encryption adds to each frame.
    pub(super) fn overhead(&self) -> usize {
        overhead(self.key.as_ref())
    }

    /// Goes to the frame at an offset.
    pub(super) fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset))?;
        self.offset = offset;
        Ok(())
    }

    pub(super) fn next(&mut self) -> io::Result<FileFrame> {
        // The first frame is in clear.
        let key = self.key.as_ref().filter(|_| self.offset > 0);
        let (frame, length) = read(&mut self.file, key, self.offset)?;
        self.offset += length;
        Ok(frame)
    }

    /// Whether there is nothing more.
    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.file.read(&mut [0])? == 0)
    }
}

/// The key that the head of a segment asks for; `None` when it is not encrypted.
fn key_of(head: SegmentHead, at_rest: &AtRest, after: Revision) -> io::Result<Option<FileKey>> {
    let no_key = || io::Error::new(io::ErrorKind::Unsupported, "it is encrypted, and there is no key for it");
    head.id.map(|id| segment_key(at_rest, after, &id).ok_or_else(no_key)).transpose()
}
