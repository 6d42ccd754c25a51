//! Verifies an audit log: each line is the one that was written, and none is missing.
//!
//! A line is *intact* if the next line has its hash; for the last line, the head file has it. So a defect can be located:
//!
//! | if `prev` of a line is not the hash of the line before, and | then |
//! |---|---|
//! | the later line is not intact | the later line was changed |
//! | the numbers are consecutive | the earlier line was changed |
//! | numbers are skipped | those lines are missing |
//! | a number is repeated | the earlier line was inserted |
//!
//! **Invariant:** a line that is not valid JSON, or not whole, is a defect, wherever it is.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    files::{LINE_BYTES_MAX, list, parse_head, read_head},
    line::{ChainHead, NO_HASH, StoredLine, from_hex, hash_of, hex},
};
use concord_net::NodeId;

/// Defects that are listed at most.
const DEFECTS_MAX: usize = 100;

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefectKind {
    /// The line is not the one that was written.
    Changed,
    /// The line was inserted.
    Inserted,
    /// The lines with these numbers are missing before this line.
    Missing(u64, u64),
    /// Lines are missing at the end: the head has this number.
    TailMissing(u64),
    /// When the node started, lines up to this number were missing at the end.
    TailWasMissing(u64),
    /// The line is incomplete. A killed node may leave such a line, and its next start removes it.
    Torn,
    /// The hash of the line is not the one that was noted elsewhere.
    NotAsNoted,
    /// The hash of the line is not the one that the cluster has anchored at this time.
    NotAsAnchored(String),
    /// The log ends before a line, with this number, that the cluster has anchored at this time.
    AnchoredMissing(u64, String),
}

/// A line where a log is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defect {
    /// The file.
    pub file: PathBuf,
    /// The line of the file, from 1.
    pub line: u64,
    /// The number of the line, if it can be parsed.
    pub seq: Option<u64>,
    /// What is wrong.
    pub wrong: DefectKind,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file.display(), self.line)?;
        match (&self.wrong, self.seq) {
            (DefectKind::Changed, Some(seq)) => write!(f, "line {seq} was changed"),
            (DefectKind::Changed, None) => f.write_str("the line was changed"),
            (DefectKind::Inserted, _) => f.write_str("the line was inserted"),
            (DefectKind::Missing(first, last), _) => {
                write!(f, "lines {first} to {last} are missing before this one")
            }
            (DefectKind::TailMissing(head), _) => {
                write!(f, "lines are missing at the end: the last one was line {head}")
            }
            (DefectKind::TailWasMissing(head), _) => {
                write!(f, "lines up to {head} were missing at the end when the node was started")
            }
            (DefectKind::Torn, _) => f.write_str("the last line is not whole"),
            (DefectKind::NotAsAnchored(at), _) => {
                write!(f, "the line is not the one that the cluster anchored at {at}")
            }
            (DefectKind::AnchoredMissing(seq, at), _) => {
                write!(f, "the log ends here, but the cluster anchored line {seq} at {at}")
            }
            (DefectKind::NotAsNoted, _) => f.write_str("the line is not the one whose hash was noted"),
        }
    }
}

/// The logs that these paths are of, each with its paths in their order. A directory is a log; files that follow each
/// other are one log as long as their lines are of one node. Each node has a log of its own, so the lines of two nodes
/// form no chain.
///
/// # Errors
/// When a file can't be read.
pub fn logs(paths: &[PathBuf]) -> Result<Vec<Vec<PathBuf>>, String> {
    let mut logs: Vec<Vec<PathBuf>> = Vec::new();
    // The node of the last log, if the next file may belong to it.
    let mut open: Option<Option<NodeId>> = None;
    for path in paths {
        if path.is_dir() {
            open = None;
            logs.push(vec![path.clone()]);
            continue;
        }
        let node = first_node(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let is_same = open.is_some_and(|last| last.is_none() || node.is_none() || last == node);
        match logs.last_mut().filter(|_| is_same) {
            Some(log) => log.push(path.clone()),
            None => logs.push(vec![path.clone()]),
        }
        open = Some(node.or(open.flatten()));
    }
    Ok(logs)
}

/// The node of the first line of a file; `None` when the line can't be parsed.
fn first_node(path: &Path) -> io::Result<Option<NodeId>> {
    let mut line = Vec::new();
    let mut start = io::Read::take(BufReader::new(File::open(path)?), LINE_BYTES_MAX as u64);
    start.read_until(b'\n', &mut line)?;
    Ok(StoredLine::parse(line.trim_ascii_end()).and_then(|line| line.node))
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Files that were read.
    pub files: u64,
    /// Lines that were read.
    pub lines: u64,
    /// The node that has written the log. `None` without lines.
    pub node: Option<NodeId>,
    /// The number of the first line. `None` without lines.
    pub first: Option<u64>,
    /// Number and hash of the last line, as `--head` takes them.
    pub head: Option<String>,
    /// The first hundred defects, in the order of the log.
    pub defects: Vec<Defect>,
    /// What was found of the anchors of the log, if there are any.
    pub anchors: AnchorCounts,
}

/// How a log compares with its anchors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnchorCounts {
    /// Anchors whose lines the log has.
    pub matched: u64,
    /// Anchors whose lines the log does not have, although nobody has accepted that.
    pub differing: u64,
    /// Anchors whose lines the log does not have, as somebody has accepted.
    pub accepted: u64,
    /// Anchors of lines that the files do not reach.
    pub outside: u64,
}

/// An anchor that a log is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAnchor {
    /// The cluster that has it.
    pub cluster: String,
    /// The node whose log it is.
    pub node: NodeId,
    /// When it was made.
    pub at: String,
    /// The number of the line.
    pub seq: u64,
    /// The hash of the line.
    pub hash: [u8; 32],
    /// Whether somebody has accepted that the log does not have it.
    pub is_accepted: bool,
}

impl KnownAnchor {
    /// Parses the anchors as `GET /api/v1/audit/anchors` shows them, with or without the envelope of the response.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse_all(text: &[u8]) -> Result<Vec<Self>, String> {
        let shown: ShownAnchors = match serde_json::from_slice::<Enveloped>(text) {
            Ok(Enveloped { data }) => data,
            Err(_) => serde_json::from_slice(text).map_err(|error| error.to_string())?,
        };
        let each = |log: ShownLog| {
            let (node, cluster) = (log.node_id, log.cluster_id);
            log.anchors.into_iter().map(move |one| {
                let hash = from_hex(&one.hash).ok_or("a hash has 64 hexadecimal digits")?;
                let (cluster, is_accepted) = (cluster.clone(), one.accepted);
                Ok(Self { cluster, node, at: one.at, seq: one.seq, hash, is_accepted })
            })
        };
        shown.logs.into_iter().flat_map(each).collect()
    }
}

#[derive(Deserialize)]
struct Enveloped {
    data: ShownAnchors,
}

#[derive(Deserialize)]
struct ShownAnchors {
    logs: Vec<ShownLog>,
}

#[derive(Deserialize)]
struct ShownLog {
    cluster_id: String,
    node_id: NodeId,
    anchors: Vec<ShownAnchor>,
}

#[derive(Deserialize)]
struct ShownAnchor {
    at: String,
    seq: u64,
    hash: String,
    accepted: bool,
}

/// A line as it was read.
struct ReadLine {
    file: PathBuf,
    line: u64,
    hash: [u8; 32],
    stored: Option<StoredLine>,
}

impl ReadLine {
    fn defect(&self, wrong: DefectKind) -> Defect {
        let seq = self.stored.as_ref().map(|stored| stored.seq);
        Defect { file: self.file.clone(), line: self.line, seq, wrong }
    }
}

/// Checks the log in a directory, or files of one log in their order. `noted` is a head that was noted elsewhere; of the
/// `anchors`, those of the log's node count.
///
/// # Errors
/// When a file can't be read, or the noted head is malformed.
pub fn verify(
    paths: &[PathBuf],
    noted: Option<&str>,
    anchors: &[KnownAnchor],
) -> Result<AuditReport, String> {
    let noted = match noted {
        None => None,
        Some(text) => Some(parse_head(text).ok_or("expected the noted head as NUMBER:HASH")?),
    };
    let (mut files, mut head) = (Vec::new(), None);
    for path in paths {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        if path.is_dir() {
            files.extend(list(path).map_err(failed)?.into_iter().map(|file| file.path));
            head = read_head(path).map_err(failed)?;
        } else {
            files.push(path.clone());
        }
    }
    let mut known: BTreeMap<u64, Vec<&KnownAnchor>> = BTreeMap::new();
    for anchor in anchors {
        known.entry(anchor.seq).or_default().push(anchor);
    }
    let mut check = LogCheck { noted, anchors: known, is_whole: head.is_some(), ..LogCheck::default() };
    for file in &files {
        check.read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(check.end(head))
}

/// What was found of the anchors of one cluster.
#[derive(Debug, Default)]
struct ComparedAnchors<'a> {
    counts: AnchorCounts,
    /// The time of the newest of them.
    newest: &'a str,
    defects: Vec<Defect>,
}

impl ComparedAnchors<'_> {
    /// Counts an anchor whose line the log does not have. Whether that is a defect.
    fn is_defect(&mut self, anchor: &KnownAnchor) -> bool {
        let count = if anchor.is_accepted { &mut self.counts.accepted } else { &mut self.counts.differing };
        *count += 1;
        !anchor.is_accepted
    }
}

#[derive(Default)]
struct LogCheck<'a> {
    report: AuditReport,
    noted: Option<ChainHead>,
    /// The anchors that were not compared yet, by their number.
    anchors: BTreeMap<u64, Vec<&'a KnownAnchor>>,
    /// What was found of those that were, by their cluster.
    compared: BTreeMap<&'a str, ComparedAnchors<'a>>,
    /// Whether it is the whole log of a directory.
    is_whole: bool,
    /// The line before `line`.
    before: Option<ReadLine>,
    /// Whether `before` was changed. Then its number and hash prove nothing about the next line.
    is_before_changed: bool,
    /// Whether the first line was changed. It has no line before it.
    is_first_changed: bool,
    /// The line to check once the next line, and so the expected hash, is known.
    line: Option<ReadLine>,
    /// The node itself removed the lines up to this number.
    removed: u64,
    torn: Option<Defect>,
    /// The defect of a first line whose number is not 1.
    late_begin: Option<Defect>,
}

impl LogCheck<'_> {
    fn read(&mut self, path: &Path) -> io::Result<()> {
        self.report.files += 1;
        let mut reader = BufReader::new(File::open(path)?);
        let mut bytes = Vec::new();
        for line in 1_u64.. {
            bytes.clear();
            let mut limited = io::Read::take(&mut reader, LINE_BYTES_MAX as u64);
            if limited.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            // It is torn only at the end of the last file. Elsewhere it is a defect.
            let torn = self.torn.take();
            self.note(torn);
            let is_whole = bytes.pop_if(|byte| *byte == b'\n').is_some();
            let stored = StoredLine::parse(&bytes);
            let read = ReadLine { file: path.to_owned(), line, hash: hash_of(&bytes), stored };
            if is_whole {
                self.push(read);
            } else {
                self.torn = Some(read.defect(DefectKind::Torn));
            }
        }
        Ok(())
    }

    fn push(&mut self, next: ReadLine) {
        self.report.lines += 1;
        if let Some(stored) = &next.stored {
            self.check_line(stored, &next);
        }
        if let Some(line) = self.line.replace(next) {
            let borne =
                self.line.as_ref().and_then(|next| next.stored.as_ref()).map(|next| next.prev.clone());
            self.check_link(&line, borne.as_deref());
            self.before = Some(line);
        }
    }

    /// Checks a line that has no line before it, its event, and its noted hash.
    fn check_line(&mut self, stored: &StoredLine, line: &ReadLine) {
        if self.report.lines == 1 {
            // Only line 1 has no previous hash.
            if (stored.seq == 1) != (stored.prev == hex(&NO_HASH)) {
                self.is_first_changed = true;
                self.note(Some(line.defect(DefectKind::Changed)));
            } else if stored.seq > 1 {
                self.late_begin = Some(line.defect(DefectKind::Missing(1, stored.seq - 1)));
            }
        }
        self.report.first = self.report.first.or(Some(stored.seq));
        self.report.node = self.report.node.or(stored.node);
        match (stored.event.as_deref(), stored.count) {
            (Some("removed"), Some(upto)) => self.removed = self.removed.max(upto),
            (Some("tail_missing"), Some(upto)) => {
                self.note(Some(line.defect(DefectKind::TailWasMissing(upto))));
            }
            _ => {}
        }
        self.check_anchors(stored.seq, line);
        if let Some(noted) = self.noted.filter(|noted| noted.seq == stored.seq) {
            self.noted = None;
            if noted.hash != line.hash {
                self.note(Some(line.defect(DefectKind::NotAsNoted)));
            }
        }
    }

    /// Compares a line with its anchors.
    fn check_anchors(&mut self, seq: u64, line: &ReadLine) {
        let own = self.report.node;
        for anchor in self.anchors.remove(&seq).unwrap_or_default() {
            if Some(anchor.node) != own {
                continue;
            }
            let found = self.compared.entry(&anchor.cluster).or_default();
            found.newest = found.newest.max(&anchor.at);
            if anchor.hash == line.hash {
                found.counts.matched += 1;
            } else if found.is_defect(anchor) {
                found.defects.push(line.defect(DefectKind::NotAsAnchored(anchor.at.clone())));
            }
        }
    }

    /// Looks at the anchors of lines that were not read: the last of them is a defect if it should be there.
    fn check_anchors_outside(&mut self, last: &ReadLine) {
        let (own, first) = (self.report.node, self.report.first);
        let mut missing: BTreeMap<&str, &KnownAnchor> = BTreeMap::new();
        let left = std::mem::take(&mut self.anchors).into_values().flatten();
        for anchor in left.filter(|anchor| Some(anchor.node) == own) {
            let found = self.compared.entry(&anchor.cluster).or_default();
            found.newest = found.newest.max(&anchor.at);
            let is_after = first.is_none_or(|first| anchor.seq >= first);
            // Exported files may end anywhere.
            if !is_after || !self.is_whole {
                found.counts.outside += 1;
            } else if found.is_defect(anchor) {
                missing.insert(&anchor.cluster, anchor);
            }
        }
        for (cluster, anchor) in missing {
            let wrong = DefectKind::AnchoredMissing(anchor.seq, anchor.at.clone());
            self.compared.entry(cluster).or_default().defects.push(last.defect(wrong));
        }
    }

    /// Reports what was found of the anchors. A restored cluster also has the anchors of the cluster before it, whose nodes
    /// have other logs and may have the same ids. So anchors of an earlier cluster do not count if the log has none of
    /// them, and has some of the newest cluster.
    fn report_anchors(&mut self) {
        let compared: Vec<ComparedAnchors<'_>> = std::mem::take(&mut self.compared).into_values().collect();
        let newest = compared.iter().map(|found| found.newest).max().unwrap_or_default();
        let has_newest = compared.iter().any(|found| found.newest == newest && found.counts.matched > 0);
        for found in compared {
            if has_newest && found.newest != newest && found.counts.matched == 0 {
                continue;
            }
            let (total, counts) = (&mut self.report.anchors, found.counts);
            total.matched += counts.matched;
            total.differing += counts.differing;
            total.accepted += counts.accepted;
            total.outside += counts.outside;
            let room = DEFECTS_MAX.saturating_sub(self.report.defects.len());
            self.report.defects.extend(found.defects.into_iter().take(room));
        }
    }

    /// Checks a line against the line before it. `borne` is the hash of the line in the next line or the head, if there is
    /// one.
    fn check_link(&mut self, line: &ReadLine, borne: Option<&str>) {
        let is_before_changed = std::mem::take(&mut self.is_before_changed);
        let Some(stored) = &line.stored else {
            self.is_before_changed = true;
            return self.note(Some(line.defect(DefectKind::Changed)));
        };
        let Some((before, earlier)) =
            self.before.as_ref().and_then(|before| Some((before, before.stored.as_ref()?.seq)))
        else {
            self.is_before_changed = self.before.is_none() && self.is_first_changed;
            return;
        };
        let is_linked = stored.prev == hex(&before.hash);
        let is_changed = borne.is_some_and(|borne| borne != hex(&line.hash));
        let found = match stored.seq.checked_sub(earlier) {
            Some(1) if is_linked => None,
            _ if is_before_changed => None,
            // This line is the node's own report of missing lines.
            Some(2..) if is_linked && stored.event.as_deref() == Some("tail_missing") => None,
            _ if is_changed => Some(line.defect(DefectKind::Changed)),
            Some(1) => Some(before.defect(DefectKind::Changed)),
            Some(2..) => Some(line.defect(DefectKind::Missing(earlier + 1, stored.seq - 1))),
            Some(0) | None => Some(before.defect(DefectKind::Inserted)),
        };
        self.is_before_changed =
            found.as_ref().is_some_and(|found| found.wrong == DefectKind::Changed && found.line == line.line);
        self.note(found);
    }

    /// Notes a defect, unless its line has one already.
    fn note(&mut self, defect: Option<Defect>) {
        let Some(defect) = defect else { return };
        let is_same = |other: &Defect| (&other.file, other.line) == (&defect.file, defect.line);
        if self.report.defects.len() < DEFECTS_MAX && !self.report.defects.iter().any(is_same) {
            self.report.defects.push(defect);
        }
    }

    /// The report, after all lines were read.
    fn end(mut self, head: Option<ChainHead>) -> AuditReport {
        if let Some(last) = self.line.take() {
            let seq = last.stored.as_ref().map(|stored| stored.seq);
            let place = self.before.as_ref().and_then(|before| Some(before.stored.as_ref()?.seq + 1));
            // By its number, or by its position if the number was changed.
            let is_last = |head: &ChainHead| [seq, place].contains(&Some(head.seq));
            let of_last = head.filter(is_last).map(|head| hex(&head.hash));
            self.check_link(&last, of_last.as_deref());
            if of_last.is_some_and(|hash| hash != hex(&last.hash)) {
                self.note(Some(last.defect(DefectKind::Changed)));
            }
            for named in head.into_iter().chain(self.noted) {
                if seq.is_some_and(|seq| seq < named.seq) {
                    self.note(Some(last.defect(DefectKind::TailMissing(named.seq))));
                }
            }
            self.check_anchors_outside(&last);
            self.report_anchors();
            self.report.head = seq.map(|seq| format!("{seq}:{}", hex(&last.hash)));
        }
        let begin = self.late_begin.take();
        let is_removed =
            |begin: &Defect| matches!(begin.wrong, DefectKind::Missing(_, last) if last <= self.removed);
        self.note(begin.filter(|begin| self.is_whole && !is_removed(begin)));
        let torn = self.torn.take();
        self.note(torn);
        self.report
    }
}

#[cfg(test)]
mod tests;
