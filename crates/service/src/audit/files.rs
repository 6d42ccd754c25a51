//! The files of an audit log, and how a start repairs them.
//!
//! ```text
//! audit/audit-00000000000000000001.jsonl    lines, from the one with this number on
//! audit/audit-00000000000000052381.jsonl    …
//! audit/head                                number and hash of the last line: "52417 <64 hexadecimal digits>"
//! ```
//!
//! The head is written after the lines. So a killed process may leave a head that is older than the lines. A head that is
//! newer means that lines are missing at the end.
//!
//! Space for the next lines is reserved before it is needed. So on a full disk, writes are rejected while there is still
//! space for the lines of the writes in progress.
//!
//! **Invariants:** files have mode 0600, their directory has 0700. A failed append leaves the length of the file
//! unchanged, or marks the log as failed.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

use super::line::{AuditEvent, ChainHead, StoredLine, from_hex, hash_of, hex};

const PREFIX: &str = "audit-";
const SUFFIX: &str = ".jsonl";
const HEAD: &str = "head";
/// The longest line that is read: far longer than any line that a node writes.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes that are reserved beyond the last line: the lines of all writes that a node works on at once by default.
const RESERVED_BYTES: u64 = 4 << 20;

/// A file of the log, by the number of its first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogFile {
    pub(super) first: u64,
    pub(super) path: PathBuf,
}

/// The files of a directory, oldest first.
pub(super) fn list(directory: &Path) -> io::Result<Vec<LogFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        if let Some(first) = number.and_then(|number| number.parse().ok()) {
            files.push(LogFile { first, path: entry.path() });
        }
    }
    files.sort_by_key(|file| file.first);
    Ok(files)
}

/// The head beside the files. `None` if it is missing or malformed.
pub(super) fn read_head(directory: &Path) -> io::Result<Option<ChainHead>> {
    match fs::read_to_string(directory.join(HEAD)) {
        Ok(text) => Ok(parse_head(text.trim_end())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses a head: number and hash, separated by a space or a colon.
pub(super) fn parse_head(text: &str) -> Option<ChainHead> {
    let (seq, hash) = text.split_once([' ', ':'])?;
    Some(ChainHead { seq: seq.parse().ok()?, hash: from_hex(hash.trim())? })
}

/// The log, open for appending.
#[derive(Debug)]
pub(super) struct OpenLog {
    directory: PathBuf,
    file: File,
    first: u64,
    bytes: u64,
    reserved: u64,
    head_file: File,
    /// The last line.
    pub(super) head: ChainHead,
}

fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).read(true).write(true).truncate(false).mode(0o600).open(path)
}

fn path_of(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{first:020}{SUFFIX}"))
}

/// How the last file ends.
struct FileEnding {
    /// The last whole line, without its line feed.
    line: Option<Vec<u8>>,
    /// Where it ends, including its line feed.
    end: u64,
    bytes: u64,
}

fn ending_of(file: &mut File) -> io::Result<FileEnding> {
    let bytes = file.metadata()?.len();
    let begin = bytes.saturating_sub(2 * LINE_BYTES_MAX as u64);
    file.seek(SeekFrom::Start(begin))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let Some(last) = text.iter().rposition(|byte| *byte == b'\n') else {
        return Ok(FileEnding { line: None, end: begin, bytes });
    };
    let start = text[..last].iter().rposition(|byte| *byte == b'\n').map_or(0, |before| before + 1);
    Ok(FileEnding { line: Some(text[start..last].to_vec()), end: begin + last as u64 + 1, bytes })
}

impl OpenLog {
    /// Opens the log and repairs its end. The events describe the repairs.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, Vec<AuditEvent>)> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let (known, mut events) = (read_head(directory)?, Vec::new());
        let (mut head, mut last) = (ChainHead::START, None);
        for found in list(directory)?.into_iter().rev() {
            let mut file = open_private(&found.path)?;
            let ending = ending_of(&mut file)?;
            if ending.end < ending.bytes {
                file.set_len(ending.end)?;
                file.sync_all()?;
                events.push(AuditEvent::Repaired(ending.bytes - ending.end));
            }
            let first = found.first;
            last = last.or(Some((found, ending.end)));
            let Some(line) = ending.line else { continue };
            head.hash = hash_of(&line);
            head.seq = StoredLine::parse(&line).map_or_else(
                || {
                    events.push(AuditEvent::Damaged);
                    known.map_or(first, |known| known.seq.max(first))
                },
                |stored| stored.seq,
            );
            break;
        }
        if let Some(known) = known.filter(|known| known.seq > head.seq) {
            events.push(AuditEvent::TailMissing(known.seq));
            head.seq = known.seq;
        }
        let (path, first, bytes) = match last {
            Some((file, bytes)) => (file.path, file.first, bytes),
            None => (path_of(directory, head.seq + 1), head.seq + 1, 0),
        };
        let file = open_private(&path)?;
        let head_file = open_private(&directory.join(HEAD))?;
        File::open(directory)?.sync_all()?;
        let directory = directory.to_owned();
        Ok((Self { directory, file, first, bytes, reserved: bytes, head_file, head }, events))
    }

    /// Appends lines. The last of them is the new head.
    pub(super) fn append(&mut self, lines: &[u8], head: ChainHead) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(lines, self.bytes) {
            // A part of the lines may have been written.
            self.file.set_len(self.bytes)?;
            self.reserved = self.bytes;
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        self.head = head;
        let text = format!("{:020} {}\n", head.seq, hex(&head.hash));
        self.head_file.write_all_at(text.as_bytes(), 0)
    }

    /// Reserves space for the next lines.
    pub(super) fn reserve(&mut self) -> io::Result<()> {
        let needed = self.bytes + RESERVED_BYTES;
        // Half of the reserve is enough until the next call: so one call serves many lines.
        if self.reserved >= self.bytes + RESERVED_BYTES / 2 && self.reserved > self.bytes {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.bytes, needed - self.bytes) {
            Ok(()) => {}
            // The file system can't reserve. Then appending notices a full disk.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        self.reserved = needed;
        Ok(())
    }

    /// Waits until the lines are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Begins the next file when this one has its size, and removes the oldest files beyond the limit. Returns the number of
    /// the last removed line.
    pub(super) fn rotate(&mut self, file_bytes: u64, files_max: usize) -> io::Result<Option<u64>> {
        if self.bytes < file_bytes {
            return Ok(None);
        }
        // Gives the unused reserve back.
        self.file.set_len(self.bytes)?;
        self.file.sync_all()?;
        let first = self.head.seq + 1;
        self.file = open_private(&path_of(&self.directory, first))?;
        (self.first, self.bytes, self.reserved) = (first, 0, 0);
        let files = list(&self.directory)?;
        let too_many = files.len().saturating_sub(files_max);
        let mut removed = None;
        for pair in files.windows(2).take(too_many) {
            fs::remove_file(&pair[0].path)?;
            removed = Some(pair[1].first - 1);
        }
        File::open(&self.directory)?.sync_all()?;
        Ok(removed)
    }
}
