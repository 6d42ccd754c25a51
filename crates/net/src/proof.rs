//! The headers of a sent RPC: its addressee, its sender, and a credential unless TLS proves the sender.
//!
//! **Invariant:** secrets are never logged, and never sent.

use http::{HeaderMap, HeaderValue};
use uuid::Uuid;

use super::{
    NodeId,
    client::{AT, CLUSTER, CREDENTIAL, CallError, DIGEST, FROM, NONCE, Peers, TO, value},
    credential::{CredentialPurpose, CredentialScope, body_digest, text_of},
    tls::nodes::Mode,
};

impl Peers {
    /// The headers of a call within the cluster.
    pub(super) fn headers(&self, to: NodeId, addr: &str) -> Result<HeaderMap, CallError> {
        let me = self.me.get().ok_or_else(|| CallError::NotSent("this node belongs to no cluster".into()))?;
        let mut headers = to_headers(to, addr)?;
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
        let mut headers = to_headers(to, addr)?;
        if self.is_tls_required() {
            return Ok(headers);
        }
        let digest = body_digest(body);
        headers.extend(self.proof(to, addr, CredentialPurpose::Join(digest))?);
        headers.insert(DIGEST, value(&text_of(&digest))?);
        Ok(headers)
    }

    /// The header that proves the secret to one node.
    fn proof(&self, to: NodeId, at: &str, purpose: CredentialPurpose) -> Result<HeaderMap, CallError> {
        credential_header(&CredentialScope { at, to, purpose }, first_secret(self.secrets())?)
    }

    /// Whether RPCs are sent and accepted over TLS only, whose certificates prove both ends.
    pub(super) fn is_tls_required(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.mode() == Mode::Required)
    }
}

/// The headers of a `prove` with this scope.
pub(super) fn prove_headers(
    scope: &CredentialScope<'_>,
    nonce: Uuid,
    secret: &str,
) -> Result<HeaderMap, CallError> {
    let mut headers = to_headers(scope.to, scope.at)?;
    headers.insert(NONCE, value(&nonce.to_string())?);
    headers.extend(credential_header(scope, secret)?);
    Ok(headers)
}

/// The secret with which credentials are made.
pub(super) fn first_secret(secrets: &[String]) -> Result<&str, CallError> {
    let secret = secrets.first().map(String::as_str);
    secret.ok_or_else(|| CallError::NotSent("no cluster secret is set".into()))
}

/// The headers that name the addressee.
fn to_headers(to: NodeId, at: &str) -> Result<HeaderMap, CallError> {
    let mut headers = HeaderMap::new();
    headers.insert(AT, value(at)?);
    headers.insert(TO, HeaderValue::from(to));
    Ok(headers)
}

fn credential_header(scope: &CredentialScope<'_>, secret: &str) -> Result<HeaderMap, CallError> {
    let mut headers = HeaderMap::new();
    headers.insert(CREDENTIAL, sensitive(&scope.sign(secret))?);
    Ok(headers)
}

fn sensitive(text: &str) -> Result<HeaderValue, CallError> {
    let mut value = value(text)?;
    value.set_sensitive(true);
    Ok(value)
}
