//! Calls that an older node does not know, and the older calls that are made in their place.
//!
//! A node answers a call that it does not know with 404 and [`UNKNOWN_CALL`], and has done nothing. Then the caller makes
//! the older call, and remembers not to try the newer one on that node again. Every answer of a node names the highest
//! feature level that it knows ([`LEVEL`]; nodes of level 1 name none): when that changes, the node was restarted with
//! another version, and what was remembered is forgotten.
//!
//! **Invariant:** the older call is made only when the newer one has certainly done nothing.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use http::HeaderMap;

use super::{
    NodeId,
    call::Call,
    client::{CallError, Peers},
};

/// The header of an answer with the highest feature level that the node knows.
pub const LEVEL: &str = "x-concord-level";
/// How the text of a 404 begins when the node does not know the call, in every version.
pub const UNKNOWN_CALL: &str = "unknown call";

/// What is known of the other nodes.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(Mutex<BTreeMap<NodeId, KnownNode>>);

#[derive(Debug, Default)]
struct KnownNode {
    /// The level that it named last; `None` for a node of level 1.
    level: Option<u32>,
    /// The calls that it did not know.
    unknown: Vec<Call>,
}

impl KnownNodes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, KnownNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the headers of an answer.
    pub(super) fn answered(&self, node: NodeId, headers: &HeaderMap) {
        let level = headers.get(LEVEL).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut nodes = self.lock();
        let known = nodes.entry(node).or_default();
        if known.level != level {
            *known = KnownNode { level, unknown: Vec::new() };
        }
    }

    pub(super) fn refused(&self, node: NodeId, call: Call) {
        let mut nodes = self.lock();
        let unknown = &mut nodes.entry(node).or_default().unknown;
        if !unknown.contains(&call) {
            unknown.push(call);
        }
    }

    pub(super) fn lacks(&self, node: NodeId, call: Call) -> bool {
        self.lock().get(&node).is_some_and(|known| known.unknown.contains(&call))
    }
}

impl CallError {
    /// Whether the node does not know the call: it has done nothing.
    #[must_use]
    pub fn is_unknown_call(&self) -> bool {
        matches!(self, Self::Refused { status: 404, text } if text.starts_with(UNKNOWN_CALL))
    }
}

impl Peers {
    /// Whether a node is remembered not to know a call.
    pub fn lacks(&self, node: NodeId, call: Call) -> bool {
        self.known.lacks(node, call)
    }

    /// Remembers that a node does not know a call. Only once the older call was answered: that answer shows with which
    /// version the node was started, and clears what was remembered before.
    pub fn note_lacking(&self, node: NodeId, call: Call) {
        self.known.refused(node, call);
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::client::Secrets;

    #[test]
    fn what_a_node_does_not_know_is_remembered_until_it_has_another_version() {
        let peers = Peers::new(Secrets(vec!["a-secret".into()]));
        let answered = |level: Option<&'static str>| {
            let headers =
                level.map(|level| (HeaderName::from_static(LEVEL), HeaderValue::from_static(level)));
            peers.known.answered(2, &headers.into_iter().collect());
        };
        let lacks = || [2, 3].map(|node| peers.lacks(node, Call::WritesEach));
        answered(None);
        peers.note_lacking(2, Call::WritesEach);
        answered(None);
        assert_eq!(lacks(), [true, false]);
        assert!(!peers.lacks(2, Call::Writes), "only what it refused");
        answered(Some("2"));
        assert_eq!(lacks(), [false, false], "it was upgraded");
        peers.note_lacking(2, Call::WritesEach);
        answered(Some("2"));
        assert_eq!(lacks(), [true, false]);
        answered(None);
        assert_eq!(lacks(), [false, false], "and undone");
    }

    #[test]
    fn any_other_refusal_is_returned() {
        for (status, text, unknown) in [
            (404, "this node has no snapshot", false),
            (421, "unknown call", false),
            (404, "unknown call `x`", true),
        ] {
            assert_eq!(CallError::Refused { status, text: text.into() }.is_unknown_call(), unknown, "{text}");
        }
    }
}
