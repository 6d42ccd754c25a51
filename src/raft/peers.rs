//! STUB
use super::{NodeId, identity::Identity};
use bytes::Bytes;
use std::{sync::OnceLock, time::Duration};
/// The cluster's secrets: the first is sent, all are accepted (rotation).
#[derive(Clone)]
pub struct Secrets(pub Vec<String>);
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}
/// How a call between nodes failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Certainly not received (connection refused, not resolved).
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have been received (time-out, connection lost).
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// Received and refused before anything was done (identity, secret, malformed, no such call).
    #[error("refused with {status}: {text}")]
    Refused { status: u16, text: String },
}
pub const CLUSTER: &str = "x-concord-cluster";
pub const FROM: &str = "x-concord-from";
pub const TO: &str = "x-concord-to";
pub const SECRET: &str = "x-concord-secret";
/// Calls to other nodes: POST `http://{addr}/peer/{kind}`, binary bodies, separate connection pools for heartbeats/votes, appends, forwards, snapshots.
#[derive(Debug)]
pub struct Peers {
    pub me: OnceLock<Identity>,
    pub secrets: Secrets,
}
/// Which pool a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Pulse,
    Append,
    Forward,
    Bulk,
}
impl Peers {
    pub fn new(_secrets: Secrets) -> Self {
        todo!()
    }
    pub async fn call(
        &self,
        _lane: Lane,
        _to: NodeId,
        _addr: &str,
        _kind: &str,
        _body: Bytes,
        _deadline: Duration,
    ) -> Result<Bytes, CallError> {
        todo!()
    }
    /// The server's side: whether the call's headers carry a valid secret, this cluster, this node; the sender's id. Err: status and text (401 secret, 421 identity).
    pub fn admit(&self, _headers: &http::HeaderMap) -> Result<NodeId, (u16, String)> {
        todo!()
    }
    /// Only the secret (a node without an identity is being joined).
    pub fn admit_secret(&self, _headers: &http::HeaderMap) -> Result<(), (u16, String)> {
        todo!()
    }
}
