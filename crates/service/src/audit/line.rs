//! The lines of the audit log, as JSON, and how they form a chain.
//!
//! ```text
//! {"seq":18,"time":"…","log_time":"…","node":1,"request_id":"…","key":"root","address":"10.0.0.7","verb":"write","method":"PUT",
//!  "route":"/api/v1/config_definition/{definition}/config/{config}","definition":"d","config":"k","status":200,
//!  "outcome":"ok","revision_before":41,"revision_after":42,"prev":"<SHA-256 of the previous line, without its line feed>"}
//! ```
//!
//! A line without a request has an `event`: what happened to the log itself, or to the leadership of this node.
//!
//! **Invariant:** `seq` grows by one from line to line, and `prev` of the first line is 64 zeros. The hash covers the bytes
//! as they are in the file, so all readers agree on it.

use std::net::IpAddr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::target::AuditTarget;
use concord_model::{access_key::Verb, key::Key, record::Revision, time::Timestamp};
use concord_net::NodeId;

/// The `prev` of the first line.
pub(super) const NO_HASH: [u8; 32] = [0; 32];

/// A request and its outcome, as the audit log records it.
#[derive(Debug, Clone)]
pub struct AuditDecision {
    /// When the request was decided, by this node's clock.
    pub at: Timestamp,
    /// The same by the cluster's time, which the history has: the time of the newest change that this node had applied.
    pub log_time: Timestamp,
    /// The id of the request.
    pub request_id: String,
    /// The id of the access key, if the credential was valid.
    pub key: Option<String>,
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// The permission that the request needed. `None` for an unknown path.
    pub verb: Option<Verb>,
    /// The method, if the API knows it.
    pub method: &'static str,
    /// The route. `None` for an unknown path.
    pub route: Option<&'static str>,
    /// What the request was about.
    pub what: AuditTarget,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// The status of the response. `None` if the client disconnected before it.
    pub status: Option<u16>,
    /// `ok`, or the type of the error.
    pub outcome: &'static str,
    /// The revision that this node had applied when the request arrived.
    pub before: Revision,
    /// The revision of the change, or of the state that the response was made from.
    pub after: Option<Revision>,
}

/// An event of the log itself, or of this node, without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuditEvent {
    /// The node began to write the log.
    Started,
    /// The last line was incomplete and was removed: this many bytes.
    Repaired(u64),
    /// Lines are missing at the end, up to this number, which the head has.
    TailMissing(u64),
    /// The last line can't be parsed. The chain continues from its bytes.
    Damaged,
    /// This many lines could not be written.
    Lost(u64),
    /// This many lines were never sent to the syslog server: they were removed first, or are too long.
    Unshipped(u64),
    /// The lines up to this number were removed with their files, because of the limit on files.
    Removed(u64),
    /// Failed credentials without a line of their own: of an address, or of all that were not counted separately.
    FailedCredentials { address: Option<IpAddr>, count: u64, throttled: u64 },
    /// This node became the leader in this term.
    LeadershipWon(u64),
    /// This node stepped down as leader. The term that it knows now.
    LeadershipLost(u64),
}

/// A line as it is serialized.
#[derive(Debug, Serialize)]
struct AuditLine<'a> {
    seq: u64,
    time: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_time: Option<&'a str>,
    node: NodeId,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verb: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<&'a Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    definitions: Option<&'a [Key]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    more_definitions: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Key>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    throttled: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    term: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision_before: Option<Revision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision_after: Option<Revision>,
    prev: &'a str,
}

/// The last line of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainHead {
    /// Its number; 0 if there is none.
    pub(super) seq: u64,
    /// Its hash.
    pub(super) hash: [u8; 32],
}

impl ChainHead {
    /// The head of an empty log.
    pub(super) const START: Self = Self { seq: 0, hash: NO_HASH };

    /// Writes the line of a request. It is the new head.
    pub(super) fn write(&mut self, lines: &mut Vec<u8>, node: NodeId, decision: &AuditDecision) {
        let (time, log_time, prev) = (decision.at.text(), decision.log_time.text(), hex(&self.hash));
        let named = decision.what.definitions.as_slice();
        let line = AuditLine {
            log_time: Some(&log_time),
            request_id: Some(&decision.request_id),
            key: decision.key.as_deref(),
            address: decision.address,
            verb: decision.verb.map(Verb::name),
            method: Some(decision.method),
            route: decision.route,
            definition: named.first().filter(|_| named.len() == 1),
            definitions: Some(named).filter(|named| named.len() > 1),
            more_definitions: decision.what.has_more.then_some(true),
            config: decision.what.config.as_ref(),
            id: decision.what.id.as_ref(),
            operations: decision.what.operations,
            dry_run: decision.dry_run.then_some(true),
            status: decision.status,
            outcome: Some(decision.outcome),
            revision_before: Some(decision.before),
            revision_after: decision.after,
            ..AuditLine::empty(self.seq.saturating_add(1), node, &time, &prev)
        };
        self.push(lines, &line);
    }

    /// Writes the line of an event. It is the new head.
    pub(super) fn write_event(
        &mut self,
        lines: &mut Vec<u8>,
        node: NodeId,
        at: Timestamp,
        event: &AuditEvent,
    ) {
        let (time, prev) = (at.text(), hex(&self.hash));
        let (name, count) = match event {
            AuditEvent::Started => ("started", None),
            AuditEvent::Repaired(bytes) => ("repaired", Some(*bytes)),
            AuditEvent::TailMissing(seq) => ("tail_missing", Some(*seq)),
            AuditEvent::Damaged => ("damaged", None),
            AuditEvent::Lost(lines) => ("lost", Some(*lines)),
            AuditEvent::Unshipped(lines) => ("unshipped", Some(*lines)),
            AuditEvent::Removed(upto) => ("removed", Some(*upto)),
            AuditEvent::FailedCredentials { count, .. } => ("failed_credentials", Some(*count)),
            AuditEvent::LeadershipWon(_) => ("leadership_won", None),
            AuditEvent::LeadershipLost(_) => ("leadership_lost", None),
        };
        let empty = AuditLine::empty(self.seq.saturating_add(1), node, &time, &prev);
        let line = AuditLine { event: Some(name), count, ..empty };
        let line = match event {
            AuditEvent::FailedCredentials { address, throttled, .. } => AuditLine {
                address: *address,
                throttled: Some(*throttled),
                outcome: Some("unauthorized_error"),
                ..line
            },
            AuditEvent::LeadershipWon(term) | AuditEvent::LeadershipLost(term) => {
                AuditLine { term: Some(*term), ..line }
            }
            AuditEvent::Started
            | AuditEvent::Repaired(_)
            | AuditEvent::TailMissing(_)
            | AuditEvent::Damaged
            | AuditEvent::Lost(_)
            | AuditEvent::Unshipped(_)
            | AuditEvent::Removed(_) => line,
        };
        self.push(lines, &line);
    }

    fn push(&mut self, lines: &mut Vec<u8>, line: &AuditLine<'_>) {
        let begin = lines.len();
        serde_json::to_writer(&mut *lines, line).expect("texts and numbers, into memory");
        *self = Self { seq: line.seq, hash: hash_of(&lines[begin..]) };
        lines.push(b'\n');
    }
}

impl<'a> AuditLine<'a> {
    fn empty(seq: u64, node: NodeId, time: &'a str, prev: &'a str) -> Self {
        Self {
            seq,
            time,
            log_time: None,
            node,
            event: None,
            request_id: None,
            key: None,
            address: None,
            verb: None,
            method: None,
            route: None,
            definition: None,
            definitions: None,
            more_definitions: None,
            config: None,
            id: None,
            operations: None,
            dry_run: None,
            count: None,
            throttled: None,
            term: None,
            status: None,
            outcome: None,
            revision_before: None,
            revision_after: None,
            prev,
        }
    }
}

/// The members of a stored line that its readers need.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct StoredLine {
    pub(super) seq: u64,
    pub(super) time: String,
    pub(super) node: Option<NodeId>,
    pub(super) prev: String,
    pub(super) event: Option<String>,
    pub(super) count: Option<u64>,
    pub(super) key: Option<String>,
    pub(super) definition: Option<String>,
    #[serde(default)]
    pub(super) definitions: Vec<String>,
    pub(super) outcome: Option<String>,
}

impl StoredLine {
    /// Parses a line without its line feed. `None` if it is malformed.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// The hash of a line without its line feed.
pub(super) fn hash_of(line: &[u8]) -> [u8; 32] {
    Sha256::digest(line).into()
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8; 32]) -> String {
    HEXLOWER.encode(bytes)
}

/// The bytes of 64 hexadecimal digits.
pub(super) fn from_hex(text: &str) -> Option<[u8; 32]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}
