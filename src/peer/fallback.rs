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
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;

use super::{
    NodeId,
    call::Call,
    client::{CallError, Lane, Peers},
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
    /// Makes the first of two calls, or the second where the node does not know the first. Returns which one was
    /// answered, and the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    #[expect(clippy::too_many_arguments, reason = "those of `call`, and the older call")]
    pub async fn call_or_older(
        &self,
        lane: Lane,
        (to, addr): (NodeId, &str),
        calls: [Call; 2],
        body: impl Fn(Call) -> Bytes,
        timeout: Duration,
    ) -> Result<(Call, Bytes), CallError> {
        let [call, older] = calls;
        let is_known = !self.known.lacks(to, call);
        if is_known {
            match self.call(lane, to, addr, call, body(call), timeout).await {
                Err(error) if error.is_unknown_call() => {}
                answered => return answered.map(|answer| (call, answer)),
            }
        }
        let answered = self.call(lane, to, addr, older, body(older), timeout).await;
        if is_known {
            // After the answer: it shows with which version the node was started, and clears what was remembered before.
            self.known.refused(to, call);
        }
        answered.map(|answer| (older, answer))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::peer::{client::Secrets, identity::Identity};

    type Calls = Arc<Mutex<Vec<String>>>;

    /// A node that knows `write`, and every call once it has a level. It notes what it is asked.
    async fn node(calls: Calls, level: Arc<Mutex<Option<u32>>>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let (mut request, mut piece) = (Vec::new(), [0; 1024]);
                // The body of each call is its name.
                let name = loop {
                    let read = socket.read(&mut piece).await.unwrap();
                    request.extend_from_slice(&piece[..read]);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let name = text.strip_prefix("POST /peer/").and_then(|rest| rest.split(' ').next());
                    if let Some(name) = name.filter(|name| text.ends_with(&format!("\r\n\r\n{name}"))) {
                        break name.to_owned();
                    }
                };
                calls.lock().unwrap().push(name.clone());
                let level = *level.lock().unwrap();
                let header = level.map_or_else(String::new, |level| format!("{LEVEL}: {level}\r\n"));
                let status = if name == "write" || level.is_some() { "200 OK" } else { "404 Not Found" };
                let text = format!("{UNKNOWN_CALL} `{name}`");
                let length = text.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n{text}"
                );
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        addr
    }

    #[tokio::test]
    async fn an_older_call_is_made_until_the_node_has_another_version() {
        let (calls, level) = (Calls::default(), Arc::new(Mutex::new(None)));
        let addr = node(Arc::clone(&calls), Arc::clone(&level)).await;
        let peers = Peers::new(Secrets(vec!["a-secret".into()]));
        peers.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 }).unwrap();
        let timeout = Duration::from_secs(10);
        let ask = async || {
            let body = |call: Call| Bytes::from_static(call.name().as_bytes());
            let to = (2, addr.as_str());
            peers
                .call_or_older(Lane::Forward, to, [Call::Writes, Call::Write], body, timeout)
                .await
                .unwrap()
                .0
        };
        assert_eq!((ask().await, ask().await), (Call::Write, Call::Write));
        let asked = std::mem::take(&mut *calls.lock().unwrap());
        assert_eq!(asked, ["writes", "write", "write"], "it was asked once only");
        // It is restarted with a version that knows the call: its next answer shows it.
        *level.lock().unwrap() = Some(2);
        assert_eq!((ask().await, ask().await), (Call::Write, Call::Writes));
        // And with the older one again.
        *level.lock().unwrap() = None;
        assert_eq!((ask().await, ask().await), (Call::Write, Call::Write));
        assert_eq!(*calls.lock().unwrap(), ["write", "writes", "writes", "write", "write"]);
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
