//! Reads pages of an audit log, with filters.
//!
//! A page reads a bounded part of the files and returns where the next one begins. So it may have fewer lines than its
//! limit, even none, although more follow.
//!
//! **Invariant:** a page has the lines exactly as they are in the files, so that their hashes can be checked.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    files::{LINE_BYTES_MAX, LogFile, list, read_head},
    line::{StoredLine, hash_of, hex},
};
use concord_model::time::Timestamp;

/// Bytes of files that one page reads at most: some 10 ms.
const SCAN_BYTES_MAX: u64 = 4 << 20;
/// Bytes of lines after which a page ends.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read at once.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes that are read to find the beginning of a line: it has one, as no line is longer.
const PROBE_BYTES: usize = LINE_BYTES_MAX + 64;

/// Which lines a page has. Sent between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditQuery {
    /// Only lines after this number, ascending. Without it, the newest line is first.
    pub after: Option<u64>,
    /// Only lines before this number, descending.
    pub before: Option<u64>,
    /// The number of lines at most.
    pub limit: usize,
    /// Only lines since this time.
    pub since: Option<Timestamp>,
    /// Only lines before this time.
    pub until: Option<Timestamp>,
    /// Only lines with this access key id.
    pub key: Option<String>,
    /// Only lines with this definition.
    pub definition: Option<String>,
    /// Only lines with this outcome: `ok`, or the type of an error.
    pub outcome: Option<String>,
}

/// A page of lines. Sent between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    /// The lines.
    pub lines: Vec<String>,
    /// The number with which the next page begins, as `after` or `before`; `None` at the end.
    pub next: Option<u64>,
    /// Number and hash of the last line of the log.
    pub head: Option<(u64, String)>,
}

impl AuditQuery {
    fn matches(&self, line: &StoredLine) -> bool {
        let is = |wanted: &Option<String>, has: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| Some(wanted) == has)
        };
        let at = || Timestamp::parse(&line.time);
        let is_in_time = (self.since.is_none() && self.until.is_none())
            || at().is_some_and(|at| {
                self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
            });
        let names =
            |wanted: &String| line.definition.as_ref() == Some(wanted) || line.definitions.contains(wanted);
        is(&self.key, line.key.as_ref())
            && is(&self.outcome, line.outcome.as_ref())
            && self.definition.as_ref().is_none_or(names)
            && is_in_time
    }
}

/// Reads a page from the files of a directory.
///
/// # Errors
/// When they can't be read.
pub(super) fn read(directory: &Path, query: &AuditQuery) -> Result<AuditPage, String> {
    let failed = |error: io::Error| format!("the audit log can't be read: {}: {error}", directory.display());
    let files = list(directory).map_err(failed)?;
    let head = read_head(directory).map_err(failed)?;
    let mut page = PageScan { query, page: AuditPage::default(), bytes: 0, scanned: 0 };
    let read = match query.after {
        Some(after) => page.ascend(&files, after),
        None => page.descend(&files, query.before.unwrap_or(u64::MAX)),
    };
    read.map_err(failed)?;
    Ok(AuditPage { head: head.map(|head| (head.seq, hex(&head.hash))), ..page.page })
}

struct PageScan<'a> {
    query: &'a AuditQuery,
    page: AuditPage,
    bytes: usize,
    scanned: u64,
}

impl PageScan<'_> {
    /// Adds a line if it matches. False if the page ends with it.
    fn take(&mut self, line: &[u8]) -> bool {
        self.scanned += line.len() as u64 + 1;
        // A malformed line is on no page. Verifying the log reports it.
        let Some(stored) = StoredLine::parse(line) else { return true };
        if self.query.matches(&stored)
            && let Ok(text) = std::str::from_utf8(line)
        {
            self.bytes += text.len();
            self.page.lines.push(text.to_owned());
        }
        let is_over = self.page.lines.len() >= self.query.limit
            || self.bytes >= PAGE_BYTES_MAX
            || self.scanned >= SCAN_BYTES_MAX;
        self.page.next = is_over.then_some(stored.seq);
        !is_over
    }

    fn ascend(&mut self, files: &[LogFile], after: u64) -> io::Result<()> {
        let begin = files.partition_point(|file| file.first <= after.saturating_add(1)).saturating_sub(1);
        for file in &files[begin.min(files.len())..] {
            let open = File::open(&file.path)?;
            let bytes = open.metadata()?.len();
            let mut at = begin_of(&open, bytes, after)?;
            while at < bytes {
                let block = read_block(&open, at, bytes, BLOCK_BYTES)?;
                let Some(whole) = block.iter().rposition(|byte| *byte == b'\n') else { break };
                for line in block[..whole].split(|byte| *byte == b'\n') {
                    if seq_of(line).is_none_or(|seq| seq > after) && !self.take(line) {
                        return Ok(());
                    }
                }
                at += whole as u64 + 1;
            }
        }
        Ok(())
    }

    fn descend(&mut self, files: &[LogFile], before: u64) -> io::Result<()> {
        for file in files.iter().rev().filter(|file| file.first < before) {
            let open = File::open(&file.path)?;
            let bytes = open.metadata()?.len();
            let mut end = begin_of(&open, bytes, before.saturating_sub(1))?;
            while end > 0 {
                let begin = end.saturating_sub(BLOCK_BYTES as u64);
                let mut block = vec![0; usize::try_from(end - begin).unwrap_or(BLOCK_BYTES)];
                open.read_exact_at(&mut block, begin)?;
                // The first line may begin before the block.
                let cut = match block.iter().position(|byte| *byte == b'\n') {
                    _ if begin == 0 => 0,
                    Some(cut) if cut + 1 < block.len() => cut + 1,
                    Some(_) | None => break,
                };
                let lines = block[cut..].strip_suffix(b"\n").unwrap_or(&block[cut..]);
                for line in lines.rsplit(|byte| *byte == b'\n') {
                    if !self.take(line) {
                        return Ok(());
                    }
                }
                end = begin + cut as u64;
            }
        }
        Ok(())
    }
}

fn read_block(file: &File, at: u64, bytes: u64, most: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(bytes - at).unwrap_or(most).min(most);
    let mut block = vec![0; length];
    file.read_exact_at(&mut block, at)?;
    Ok(block)
}

/// Where the first line with a number above `after` begins. Without one, the end of the last whole line.
fn begin_of(file: &File, bytes: u64, after: u64) -> io::Result<u64> {
    // Lines that begin before `low` have numbers up to `after`; lines that begin at or after `high` have greater ones.
    let (mut low, mut high) = (0, bytes);
    while high - low > LINE_BYTES_MAX as u64 {
        let middle = low + (high - low) / 2;
        let block = read_block(file, middle, bytes, PROBE_BYTES)?;
        let line = block.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        let seq = line.and_then(|line| seq_of(&block[line..]));
        match (line, seq) {
            (Some(line), Some(seq)) if seq <= after => low = middle + line as u64,
            _ => high = middle,
        }
    }
    let mut at = low;
    let rest = read_block(file, low, bytes, BLOCK_BYTES)?;
    for line in rest.split_inclusive(|byte| *byte == b'\n') {
        if !line.ends_with(b"\n") || seq_of(line).is_some_and(|seq| seq > after) {
            break;
        }
        at += line.len() as u64;
    }
    Ok(at)
}

/// A line of a log, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineAt {
    /// The hash of the line; of another line if the log has none with this number.
    Found([u8; 32]),
    /// It is before the first line.
    Removed,
    /// It is after the last line, which has this number.
    After(u64),
}

/// Finds a line by its number, in a few reads.
pub(super) fn line_at(files: &[LogFile], seq: u64) -> io::Result<LineAt> {
    let Some(place) = files.partition_point(|file| file.first <= seq).checked_sub(1) else {
        return Ok(if files.is_empty() { LineAt::After(0) } else { LineAt::Removed });
    };
    // The lines after the last one of a file begin the next file.
    let mut last = files[place].first.saturating_sub(1);
    for file in &files[place..] {
        let open = File::open(&file.path)?;
        let bytes = open.metadata()?.len();
        let begin = begin_of(&open, bytes, seq.saturating_sub(1))?;
        let block = read_block(&open, begin, bytes, PROBE_BYTES)?;
        if let Some(end) = block.iter().position(|byte| *byte == b'\n') {
            return Ok(LineAt::Found(hash_of(&block[..end])));
        }
        last = last_seq(&open, begin)?.unwrap_or(last);
    }
    Ok(LineAt::After(last))
}

/// A place in a file of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePlace {
    /// The number of the first line of the file.
    first: u64,
    offset: u64,
}

/// Lines after a number.
#[derive(Debug, Default)]
pub(super) struct LinesAfter {
    /// The lines, without their line feeds.
    pub(super) lines: Vec<Vec<u8>>,
    /// The number of the last of them.
    pub(super) last: u64,
    /// Where the next line begins.
    pub(super) place: Option<FilePlace>,
    /// How many lines before them no longer exist: their file was removed.
    pub(super) removed: u64,
}

/// Reads some lines with numbers above `after`, and up to `upto`. `place` is where they begin, if that is known.
pub(super) fn lines_after(
    directory: &Path,
    after: u64,
    upto: u64,
    place: Option<&FilePlace>,
) -> io::Result<LinesAfter> {
    let mut found = LinesAfter { last: after, ..LinesAfter::default() };
    let files = list(directory)?;
    let begin = files.partition_point(|file| file.first <= after.saturating_add(1)).saturating_sub(1);
    if let Some(oldest) = files.first() {
        found.removed = oldest.first.saturating_sub(after.saturating_add(1));
    }
    for file in &files[begin.min(files.len())..] {
        let open = File::open(&file.path)?;
        let bytes = open.metadata()?.len();
        let mut offset = match place.filter(|place| place.first == file.first && place.offset <= bytes) {
            Some(place) => place.offset,
            None => begin_of(&open, bytes, after)?,
        };
        let block = read_block(&open, offset, bytes, BLOCK_BYTES)?;
        for line in block.split_inclusive(|byte| *byte == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else { break };
            // A line that is damaged is sent like the others.
            let seq = seq_of(text).unwrap_or(found.last);
            if seq > upto {
                break;
            }
            offset += line.len() as u64;
            found.last = seq;
            found.lines.push(text.to_vec());
        }
        found.place = Some(FilePlace { first: file.first, offset });
        if !found.lines.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// The number of the last line before a place.
fn last_seq(file: &File, end: u64) -> io::Result<Option<u64>> {
    let begin = end.saturating_sub(2 * LINE_BYTES_MAX as u64);
    let block = read_block(file, begin, end, 2 * LINE_BYTES_MAX)?;
    let lines = block.strip_suffix(b"\n").unwrap_or(&block);
    Ok(lines.rsplit(|byte| *byte == b'\n').next().and_then(seq_of))
}

/// The number of a line, from its beginning.
fn seq_of(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"{\"seq\":")?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}
