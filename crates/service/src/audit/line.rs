//! What a line of the audit log says, as JSON, and how lines form a chain.
//!
//! ```text
//! {"seq":18,"time":"…","node":1,"request_id":"…","key":"root","address":"10.0.0.7","verb":"write","method":"PUT",
//!  "route":"/api/v1/config_definition/{definition}/config/{config}","definition":"d","config":"k","status":200,
//!  "outcome":"ok","revision_before":41,"revision_after":42,"prev":"<SHA-256 of the line before, without its end>"}
//! ```
//!
//! A line that no request caused says in `event` what happened: to the log itself, or to the leadership of this node.
//!
//! **Invariant:** `seq` grows by one from line to line, and `prev` of the first line of all is 64 zeros. The hash is
//! that of the bytes as they stand in the file, so no two readers differ about it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::target::AuditTarget;
use concord_model::{access_key::Verb, key::Key, record::Revision, time::Timestamp};
use concord_net::NodeId;

/// The hash of the line before the first one.
pub(super) const NO_HASH: [u8; 32] = [0; 32];

/// A decision, as it is recorded.
#[derive(Debug, Clone)]
pub struct AuditDecision {
    /// When it was made, by this node's clock.
    pub at: Timestamp,
    /// The id of the request.
    pub request_id: String,
    /// The id of the key, where the credential was good.
    pub key: Option<String>,
    /// The address that the request came from.
    pub address: Option<IpAddr>,
    /// What the request needed; `None` where it was for nothing that there is.
    pub verb: Option<Verb>,
    /// The method, where it is one that the interface knows.
    pub method: &'static str,
    /// The route; `None` for a path that is none.
    pub route: Option<&'static str>,
    /// What it was about.
    pub what: AuditTarget,
    /// Whether it was a write of which nothing was to be stored.
    pub dry_run: bool,
    /// The status of the answer; `None` when the caller left before there was one.
    pub status: Option<u16>,
    /// `ok`, or the type of the error.
    pub outcome: &'static str,
    /// The revision that this node had applied when the request came.
    pub before: Revision,
    /// The revision of the change, or of the state that the answer was made from.
    pub after: Option<Revision>,
}

/// What happened to the log itself, or to this node without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuditEvent {
    /// The node began to write the log.
    Started,
    /// The last line was not whole and was removed, so many bytes.
    Repaired(u64),
    /// Lines up to the head are missing at the end; the head named this one.
    TailMissing(u64),
    /// The last line can't be read; the chain goes on from its bytes.
    Damaged,
    /// So many lines could not be written.
    Lost(u64),
    /// The lines up to this one were removed with their file, because of the limit on files.
    Removed(u64),
    /// Failed credentials beside those with lines of their own: of an address, or of all that were not counted apart.
    FailedCredentials { address: Option<IpAddr>, count: u64, throttled: u64 },
    /// This node leads the cluster from now on, in this term.
    LeadershipWon(u64),
    /// This node led, and leads no more; the term that it knows now.
    LeadershipLost(u64),
}

/// A line as it is written.
#[derive(Debug, Serialize)]
struct AuditLine<'a> {
    seq: u64,
    time: &'a str,
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

/// The place in the chain after which the next line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainHead {
    /// The number of the last line; 0 when there is none.
    pub(super) seq: u64,
    /// Its hash.
    pub(super) hash: [u8; 32],
}

impl ChainHead {
    /// The place before the first line.
    pub(super) const START: Self = Self { seq: 0, hash: NO_HASH };

    /// Writes the line of a decision, and moves behind it.
    pub(super) fn write(&mut self, lines: &mut Vec<u8>, node: NodeId, decision: &AuditDecision) {
        let (time, prev) = (decision.at.text(), hex(&self.hash));
        let named = decision.what.definitions.as_slice();
        let line = AuditLine {
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
            ..AuditLine::empty((self.seq.saturating_add(1), node), &time, &prev)
        };
        self.push(lines, &line);
    }

    /// Writes the line of an event, and moves behind it.
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
            AuditEvent::Removed(upto) => ("removed", Some(*upto)),
            AuditEvent::FailedCredentials { count, .. } => ("failed_credentials", Some(*count)),
            AuditEvent::LeadershipWon(_) => ("leadership_won", None),
            AuditEvent::LeadershipLost(_) => ("leadership_lost", None),
        };
        let empty = AuditLine::empty((self.seq.saturating_add(1), node), &time, &prev);
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
    fn empty((seq, node): (u64, NodeId), time: &'a str, prev: &'a str) -> Self {
        Self {
            seq,
            time,
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

/// What of a stored line a reader judges it by.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct StoredLine {
    pub(super) seq: u64,
    pub(super) time: String,
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
    /// A line without its end; `None` when it is none.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// The hash of a line without its end.
pub(super) fn hash_of(line: &[u8]) -> [u8; 32] {
    Sha256::digest(line).into()
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// The bytes of 64 hexadecimal digits.
pub(super) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}
