//! Anchors of the audit logs: the numbers and hashes of lines, as the cluster has agreed on them.
//!
//! Each line of an audit log has the hash of the line before. So the hash of one line stands for all lines before it: a
//! log that was rewritten up to an anchored line no longer has the anchor's hash, even if the rest of it matches.
//!
//! The anchors of a node take a bounded number of bytes, however long it runs. They are thinned by the log's time: the
//! older they are, the fewer are kept. Of several in a span, the first is kept: a node that was taken over can add
//! anchors, and they must not displace those from before.
//!
//! **Invariant:** what is kept depends on the anchors and the log's time alone. The newest anchor is always kept.

use serde::{Deserialize, Serialize};

use super::{record::Revision, time::Timestamp};

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
const HOUR_US: u64 = 60 * MINUTE_US;
const DAY_US: u64 = 24 * HOUR_US;

/// For anchors that are younger than the first: the span of which one is kept. One anchor a minute gives some 240, 11 kB, in
/// ten years; more of them give at most 50 more.
const SPANS_US: [(u64, u64); 5] = [
    (10 * MINUTE_US, 10 * SECOND_US),
    (HOUR_US, MINUTE_US),
    (DAY_US, HOUR_US),
    (30 * DAY_US, DAY_US),
    (3650 * DAY_US, 30 * DAY_US),
];

/// A line of an audit log at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditAnchor {
    /// When the cluster agreed on it, by the log's time.
    pub at: Timestamp,
    /// The number of the line.
    pub seq: u64,
    /// The SHA-256 of the line.
    pub sha256: [u8; 32],
}

/// The log that anchors are of: a node's. A restored cluster has nodes of the same ids, and other logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AnchoredLog {
    /// The id of the node's cluster.
    pub cluster: [u8; 16],
    /// The id of the node.
    pub node: u64,
}

/// Who accepted a log that does not have its anchors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnchorAcceptance {
    /// When, by the log's time. The log need not have the anchors up to this time.
    pub at: Timestamp,
    /// The principal.
    pub by: String,
    /// The reason that they gave.
    pub reason: Option<String>,
}

/// The anchors of a node's audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditAnchors {
    /// Whose log it is.
    pub log: AnchoredLog,
    /// The revision of the newest change.
    pub revision: Revision,
    /// The anchors, oldest first. Their numbers ascend as well, unless the log was replaced.
    pub anchors: Vec<AuditAnchor>,
    /// The last acceptance, if there was one.
    pub accepted: Option<AnchorAcceptance>,
}

impl AuditAnchors {
    /// The record of a log without anchors.
    #[must_use]
    pub fn new(log: AnchoredLog) -> Self {
        Self { log, revision: 0, anchors: Vec::new(), accepted: None }
    }

    /// Adds an anchor, which is the newest, and thins the others by its time.
    pub fn add(&mut self, anchor: AuditAnchor) {
        self.anchors.push(anchor);
        let (now, newest) = (anchor.at, self.anchors.len() - 1);
        let (mut place, mut span_before) = (0, None);
        self.anchors.retain(|anchor| {
            let age = now.0.saturating_sub(anchor.at.0);
            let span = SPANS_US.into_iter().find(|(younger_than, _)| age < *younger_than);
            let span = span.map(|(_, span)| (span, anchor.at.0 / span));
            let is_first = span.is_some() && span != span_before;
            span_before = span;
            let is_newest = place == newest;
            place += 1;
            is_first || is_newest
        });
    }

    /// Whether an anchor was accepted: its log need not have it.
    #[must_use]
    pub fn is_accepted(&self, anchor: &AuditAnchor) -> bool {
        self.accepted.as_ref().is_some_and(|accepted| anchor.at <= accepted.at)
    }

    /// Two anchors of which the later one has a lower number, or another hash for the same number. No log that only grows
    /// has such anchors. Accepted anchors do not count.
    #[must_use]
    pub fn regression(&self) -> Option<(&AuditAnchor, &AuditAnchor)> {
        let mut open = self.anchors.iter().filter(|anchor| !self.is_accepted(anchor));
        let mut before = open.next()?;
        for after in open {
            if after.seq < before.seq || (after.seq == before.seq && after.sha256 != before.sha256) {
                return Some((before, after));
            }
            before = after;
        }
        None
    }

    /// The time of the newest anchor.
    #[must_use]
    pub fn newest_at(&self) -> Timestamp {
        self.anchors.last().map_or(Timestamp(0), |anchor| anchor.at)
    }

    /// The bytes that it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let texts = self
            .accepted
            .as_ref()
            .map_or(0, |accepted| accepted.by.len() + accepted.reason.as_ref().map_or(0, String::len));
        (size_of::<Self>() + self.anchors.len() * size_of::<AuditAnchor>() + texts) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(at: u64, seq: u64) -> AuditAnchor {
        AuditAnchor { at: Timestamp(at), seq, sha256: [1; 32] }
    }

    fn record() -> AuditAnchors {
        AuditAnchors::new(AnchoredLog { cluster: [1; 16], node: 2 })
    }

    #[test]
    fn anchors_of_every_minute_stay_few_and_reach_far_back() {
        let mut record = record();
        let begin = 1_700_000_000_000_000;
        let mut most = 0;
        // Ten years and more, with several anchors in each day; then two days with all anchors.
        let years = (0..4 * 4000).map(|part| begin + part * 6 * HOUR_US);
        let days = (0..2 * 24 * 60).map(|minute| begin + 4000 * DAY_US + minute * MINUTE_US);
        let mut newest = 0;
        for (seq, at) in (1..).zip(years.chain(days)) {
            record.add(anchor(at, seq));
            most = most.max(record.anchors.len());
            newest = at;
        }
        assert!((200..=245).contains(&most), "{most}");
        assert!(record.anchors.is_sorted_by(|a, b| a.at < b.at));
        let oldest = record.anchors[0].at.0;
        assert!((newest - oldest) / DAY_US >= 3600, "{}", (newest - oldest) / DAY_US);
        assert_eq!(record.newest_at().0, newest);
        let encoded = crate::encoding::append(Vec::new(), &record);
        assert!(encoded.len() < 16 << 10, "{}", encoded.len());
    }

    #[test]
    fn an_older_age_keeps_the_first_of_its_span() {
        let mut record = record();
        let begin = 20_000 * DAY_US;
        for minute in 0..240 {
            record.add(anchor(begin + minute * MINUTE_US, 1 + minute));
        }
        let kept: Vec<u64> = record.anchors.iter().map(|anchor| anchor.seq).collect();
        // The hour of the oldest anchors, the two after it, and each minute of the last hour.
        assert_eq!(kept[..3], [1, 61, 121]);
        assert_eq!(kept[3..], (181..=240).collect::<Vec<u64>>());
    }

    #[test]
    fn a_flood_of_anchors_displaces_no_earlier_one() {
        let mut record = record();
        let begin = 20_000 * DAY_US;
        for minute in 0..30 {
            record.add(anchor(begin + minute * MINUTE_US, 1 + minute));
        }
        let before = record.anchors.clone();
        for more in 0..10_000 {
            record.add(anchor(begin + 30 * MINUTE_US + more, 1_000 + more));
        }
        assert_eq!(record.anchors[..30], before);
        assert_eq!(record.anchors.len(), 32, "the first of the minute, and the newest");
    }

    #[test]
    fn an_acceptance_covers_the_anchors_before_it() {
        let mut record = record();
        record.add(anchor(DAY_US, 1));
        record.add(anchor(2 * DAY_US, 2));
        let covered = |record: &AuditAnchors| -> Vec<bool> {
            record.anchors.iter().map(|anchor| record.is_accepted(anchor)).collect()
        };
        assert_eq!(covered(&record), [false, false]);
        let (by, reason) = ("root".into(), None);
        record.accepted = Some(AnchorAcceptance { at: Timestamp(DAY_US + 1), by, reason });
        assert_eq!(covered(&record), [true, false]);
    }

    #[test]
    fn a_log_that_goes_back_shows_in_its_anchors() {
        let mut record = record();
        record.add(anchor(DAY_US, 10));
        record.add(anchor(2 * DAY_US, 20));
        record.add(anchor(3 * DAY_US, 20));
        assert_eq!(record.regression(), None, "the same line twice");
        record.add(AuditAnchor { sha256: [2; 32], ..anchor(4 * DAY_US, 20) });
        let (before, after) = record.regression().unwrap();
        assert_eq!((before.at.0, after.at.0), (3 * DAY_US, 4 * DAY_US));
        record.anchors.pop();
        record.add(anchor(4 * DAY_US, 5));
        assert_eq!(record.regression().map(|(before, after)| (before.seq, after.seq)), Some((20, 5)));
        record.accepted =
            Some(AnchorAcceptance { at: Timestamp(3 * DAY_US), by: "root".into(), reason: None });
        assert_eq!(record.regression(), None);
    }
}
