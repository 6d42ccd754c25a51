//! The headers of a sent RPC: its addressee, its sender, and a credential unless TLS proves the sender.
//!
//! **Invariant:** secrets are never logged, and never sent.

use http::{HeaderMap, HeaderValue};

use super::{
    NodeId,
    client::{AT, CLUSTER, CREDENTIAL, CallError, DIGEST, FROM, Peers, TO, value},
    credential::{CredentialPurpose, CredentialScope, body_digest, text_of},
    tls::nodes::Mode,
};

impl Peers {
    /// The headers of a call within the cluster.
    pub(super) fn headers(&self, to: NodeId, addr: &str) -> Result<HeaderMap, CallError> {
        let me = self.me.get().ok_or_else(|| CallError::NotSent("this node belongs to no cluster".into()))?;
        if to == me.node_id {
            return Err(CallError::NotSent(format!("node {to} does not call itself")));
        }
        let mut headers = Self::to_headers(to, addr)?;
        headers.insert(CLUSTER, value(&me.cluster_id.to_string())?);
        headers.insert(FROM, HeaderValue::from(me.node_id));
        if self.is_tls_required() {
            return Ok(headers);
        }
        headers.extend(self.proof(to, addr, CredentialPurpose::Call(me.cluster_id))?);
        Ok(headers)
    }

    /// The headers of a `join`.
    pub(super) fn join_headers(&self, to: NodeId, addr: &str, body: &[u8]) -> Result<HeaderMap, CallError> {
        let mut headers = Self::to_headers(to, addr)?;
        if self.is_tls_required() {
            return Ok(headers);
        }
        let digest = body_digest(body);
        headers.extend(self.proof(to, addr, CredentialPurpose::Join(digest))?);
        headers.insert(DIGEST, value(&text_of(&digest))?);
        Ok(headers)
    }

    /// The headers that name the addressee.
    fn to_headers(to: NodeId, at: &str) -> Result<HeaderMap, CallError> {
        let mut headers = HeaderMap::new();
        headers.insert(AT, value(at)?);
        headers.insert(TO, HeaderValue::from(to));
        Ok(headers)
    }

    /// The header that proves the secret to one node.
    fn proof(&self, to: NodeId, at: &str, purpose: CredentialPurpose) -> Result<HeaderMap, CallError> {
        let credential = CredentialScope { at, to, purpose }.sign(self.secret()?);
        let mut headers = HeaderMap::new();
        headers.insert(CREDENTIAL, sensitive(&credential)?);
        Ok(headers)
    }

    /// Whether RPCs are sent and accepted over TLS only, whose certificates prove both ends.
    pub(super) fn is_tls_required(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.mode() == Mode::Required)
    }

    fn secret(&self) -> Result<&str, CallError> {
        let secret = self.secrets().first().map(String::as_str);
        secret.ok_or_else(|| CallError::NotSent("no cluster secret is set".into()))
    }
}

fn sensitive(text: &str) -> Result<HeaderValue, CallError> {
    let mut value = value(text)?;
    value.set_sensitive(true);
    Ok(value)
}
