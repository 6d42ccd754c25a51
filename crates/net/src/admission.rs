//! Admits a received RPC: it must prove its sender and name this cluster and this node.
//!
//! | proof | accepted |
//! |---|---|
//! | the certificate of the sender (see `tls/nodes.rs`), which names the node that sends the RPC | always |
//! | the credential (see `credential.rs`) of an unencrypted RPC | unless TLS is required |
//!
//! Before an unencrypted connection is used, the called node proves the secret, too ([`Peers::admit_prove`]).
//!
//! TLS needs no other proof: the sender verified the certificate of this node before it sent anything, and a certificate
//! that was intercepted is worthless without its key.
//!
//! The address that a credential names must be an address of this node: in the agreed membership, in its own entry in
//! `CONCORD_PEERS`, or the one it listens on. A node without any of them is new; a credential with its id is only good
//! for letting it join.
//!
//! **Invariant:** everything here is decided by the headers, before a byte of a body is read.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::{
    NodeId,
    client::{AT, CLUSTER, CREDENTIAL, DIGEST, FROM, NONCE, Peers, TO},
    credential::{BodyDigest, CredentialPurpose, CredentialScope, digest_of},
};

/// Status and text of a rejection.
pub type NotAdmitted = (u16, String);

/// The peer addresses of the members that the cluster has agreed on, as far as this node has applied them.
pub type Members = BTreeMap<NodeId, String>;

fn misdirected(text: impl Into<String>) -> NotAdmitted {
    (421, text.into())
}

fn unproven(text: impl Into<String>) -> NotAdmitted {
    (401, text.into())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

impl Peers {
    /// Admits a received call within the cluster, of a node that has shown the certificate of `shown` if it came over
    /// TLS. Returns the sender.
    ///
    /// # Errors
    /// 401 when it proves nothing, 421 when it is for another cluster or node.
    pub fn admit(&self, headers: &HeaderMap, shown: Option<NodeId>) -> Result<NodeId, NotAdmitted> {
        let from = self.admit_own_id(headers, shown)?;
        if self.me.get().is_some_and(|me| me.node_id == from) {
            return Err(misdirected(format!("node {from} called itself")));
        }
        Ok(from)
    }

    /// The same for a call by which a node looks whether another process with its id is at its address.
    ///
    /// # Errors
    /// As [`Self::admit`], except that a node may call itself.
    pub fn admit_own_id(&self, headers: &HeaderMap, shown: Option<NodeId>) -> Result<NodeId, NotAdmitted> {
        let cluster = text(headers, CLUSTER).and_then(|text| text.parse::<uuid::Uuid>().ok());
        self.admit_proof(headers, shown, cluster.map(CredentialPurpose::Call))?;
        let me = self.me.get().ok_or_else(|| misdirected("this node belongs to no cluster"))?;
        if cluster != Some(me.cluster_id) {
            return Err(misdirected("this node belongs to another cluster"));
        }
        if addressee(headers) != Some(me.node_id) {
            return Err(misdirected(format!("this is node {}", me.node_id)));
        }
        let from = text(headers, FROM).and_then(|text| text.parse().ok());
        let from = from.ok_or_else(|| misdirected(format!("the header {FROM} has no node id")))?;
        if let Some(shown) = shown.filter(|shown| *shown != from) {
            return Err(unproven(format!(
                "the RPC is from node {from}, but the certificate is that of node {shown}"
            )));
        }
        Ok(from)
    }

    /// Admits the question for the feature levels: as any other call, but a node that is to join has no identity yet and
    /// answers every node that proves itself.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub fn admit_levels(&self, headers: &HeaderMap, shown: Option<NodeId>) -> Result<(), NotAdmitted> {
        if self.me.get().is_some() {
            return self.admit(headers, shown).map(drop);
        }
        let cluster = text(headers, CLUSTER).and_then(|text| text.parse::<uuid::Uuid>().ok());
        self.admit_proof(headers, shown, cluster.map(CredentialPurpose::Call))
    }

    /// Admits a received `join`, which names no cluster: the called node may have none. Returns the digest that the
    /// body must have, unless it came over TLS.
    ///
    /// # Errors
    /// 401 when it proves nothing, 421 when it is for another node.
    pub fn admit_join(
        &self,
        headers: &HeaderMap,
        shown: Option<NodeId>,
    ) -> Result<Option<BodyDigest>, NotAdmitted> {
        let digest = text(headers, DIGEST).and_then(digest_of);
        self.admit_proof(headers, shown, digest.map(CredentialPurpose::Join))?;
        let digest = digest.filter(|_| shown.is_none());
        // A node without an identity answers every join with its id, so that the caller learns which node it reached.
        match self.me.get() {
            Some(me) if addressee(headers) != Some(me.node_id) => {
                Err(misdirected(format!("this is node {}", me.node_id)))
            }
            Some(_) | None => Ok(digest),
        }
    }

    /// Admits a received `prove`, and returns the proof that this node knows the secret of the sender's credential. It
    /// proves that only at its own address and under its own id, so nobody can let it prove for another node.
    ///
    /// # Errors
    /// 401 when the sender does not know the secret, 421 when it is for another node.
    pub fn admit_prove(&self, headers: &HeaderMap) -> Result<String, NotAdmitted> {
        let nonce = text(headers, NONCE).and_then(|text| text.parse::<uuid::Uuid>().ok());
        let (secret, scope) = self.admit_credential(headers, nonce.map(CredentialPurpose::Prove))?;
        match (self.me.get(), nonce) {
            (Some(me), _) if scope.to != me.node_id => {
                Err(misdirected(format!("this is node {}", me.node_id)))
            }
            (_, Some(nonce)) => {
                Ok(CredentialScope { purpose: CredentialPurpose::Proof(nonce), ..scope }.sign(secret))
            }
            (_, None) => Err(unproven(format!("the header {NONCE} is missing"))),
        }
    }

    fn admit_proof(
        &self,
        headers: &HeaderMap,
        shown: Option<NodeId>,
        purpose: Option<CredentialPurpose>,
    ) -> Result<(), NotAdmitted> {
        match shown {
            Some(_) => Ok(()),
            None => self.admit_credential(headers, purpose).map(drop),
        }
    }

    /// Admits an unencrypted call by its credential. Returns the secret that the sender knows.
    fn admit_credential<'a>(
        &'a self,
        headers: &'a HeaderMap,
        purpose: Option<CredentialPurpose>,
    ) -> Result<(&'a str, CredentialScope<'a>), NotAdmitted> {
        if self.is_tls_required() {
            return Err(unproven("the RPC is unencrypted, but TLS is required"));
        }
        let missing = || unproven(format!("the header {CREDENTIAL} is missing"));
        let given = headers.get(CREDENTIAL).ok_or_else(missing)?;
        let scope = (text(headers, AT), addressee(headers), purpose);
        let (Some(at), Some(to), Some(purpose)) = scope else {
            return Err(unproven(format!("the headers that belong to {CREDENTIAL} are incomplete")));
        };
        let scope = CredentialScope { at, to, purpose };
        let secret = scope.secret_of(given.as_bytes(), self.secrets());
        let secret = secret.ok_or_else(|| unproven("the cluster secret is different"))?;
        let known = self.own_addresses();
        if known.is_empty() || known.iter().any(|own| own == at) {
            return Ok((secret, scope));
        }
        Err(misdirected(format!("the RPC is for {at}, but the address of this node is {}", known.join(", "))))
    }

    /// The addresses by which this node is known. None until it has applied the membership that it is part of, unless
    /// its settings name it.
    fn own_addresses(&self) -> Vec<String> {
        let members = self.members();
        let agreed = self.me.get().and_then(|me| members.get(&me.node_id));
        // The address that it listens on may be another one than that by which it is called.
        let bound = agreed.and(self.bound.as_ref());
        agreed.into_iter().chain(bound).chain(&self.configured).cloned().collect()
    }
}

fn addressee(headers: &HeaderMap) -> Option<NodeId> {
    text(headers, TO)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client::Secrets, credential::body_digest, identity::Identity, proof::prove_headers};
    use http::HeaderValue;

    fn node(id: NodeId, secrets: &[&str]) -> Peers {
        let peers = Peers::new(Secrets(secrets.iter().map(|secret| (*secret).to_owned()).collect()));
        peers.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: id, format: 1 }).unwrap();
        peers
    }

    fn one() -> Peers {
        let one = node(1, &["new", "old"]);
        one.set_members((1..=3).map(|id| (id, format!("a:{id}"))).collect());
        one
    }

    fn status<T>(admitted: Result<T, NotAdmitted>) -> u16 {
        admitted.err().map_or(200, |refusal| refusal.0)
    }

    #[test]
    fn a_call_of_this_cluster_to_this_node_is_admitted() {
        for secret in ["new", "old"] {
            assert_eq!(one().admit(&node(2, &[secret]).headers(1, "a:1").unwrap(), None), Ok(2));
        }
        let wrong = node(2, &["ne"]).headers(1, "a:1").unwrap();
        assert_eq!(status(one().admit(&wrong, None)), 401);
        assert_eq!(status(node(1, &[]).admit(&node(2, &["new"]).headers(1, "a:1").unwrap(), None)), 401);
        assert_eq!(status(one().admit(&HeaderMap::new(), None)), 401);
    }

    #[test]
    fn a_call_to_another_address_node_or_cluster_is_rejected() {
        let two = node(2, &["new"]);
        assert_eq!(status(one().admit(&two.headers(1, "a:9").unwrap(), None)), 421, "another address");
        assert_eq!(status(one().admit(&two.headers(3, "a:1").unwrap(), None)), 421, "another node");
        let elsewhere = Peers::new(Secrets(vec!["new".into()]));
        let cluster_id = uuid::Uuid::from_u128(2);
        elsewhere.me.set(Identity { cluster_id, node_id: 2, format: 1 }).unwrap();
        assert_eq!(status(one().admit(&elsewhere.headers(1, "a:1").unwrap(), None)), 421, "another cluster");
        let fresh = Peers::new(Secrets(vec!["new".into()]));
        assert_eq!(status(fresh.admit(&two.headers(1, "a:1").unwrap(), None)), 421, "no cluster yet");
        let itself = node(1, &["new"]);
        let headers = itself.headers(1, "a:1").unwrap();
        assert_eq!(status(itself.admit(&headers, None)), 421, "its own id");
        assert_eq!(itself.admit_own_id(&headers, None), Ok(1));
    }

    #[test]
    fn over_tls_the_certificate_names_the_sender() {
        let mut headers = node(2, &["another"]).headers(1, "b:1").unwrap();
        assert_eq!(one().admit(&headers, Some(2)), Ok(2), "whatever the secret and the address");
        assert_eq!(status(one().admit(&headers, Some(3))), 401, "the certificate of another node");
        assert_eq!(status(node(3, &[]).admit(&headers, Some(2))), 421, "for another node");
        headers.insert(CLUSTER, HeaderValue::from_static("00000000-0000-0000-0000-000000000009"));
        assert_eq!(status(one().admit(&headers, Some(2))), 421, "of another cluster");
        let join = node(2, &["another"]).join_headers(1, "b:1", b"body").unwrap();
        assert_eq!(one().admit_join(&join, Some(2)), Ok(None));
        assert_eq!(status(node(3, &[]).admit_join(&join, Some(2))), 421);
        let fresh = Peers::new(Secrets(Vec::new()));
        assert_eq!(fresh.admit_join(&join, Some(2)), Ok(None));
    }

    #[test]
    fn a_changed_header_invalidates_the_credential() {
        let sent = node(2, &["new"]).headers(1, "a:9").unwrap();
        for (name, value) in [(AT, "a:1"), (TO, "2"), (TO, ""), (CLUSTER, "x"), (CREDENTIAL, "00")] {
            let mut headers = sent.clone();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(status(one().admit(&headers, None)), 401, "{name}: {value}");
        }
        // A credential of an RPC is invalid for a join, and vice versa.
        assert_eq!(status(one().admit_join(&sent, None)), 401);
    }

    #[test]
    fn a_node_proves_the_secret_of_the_sender_at_its_own_address_and_id() {
        let nonce = uuid::Uuid::from_u128(9);
        let asked = |secret: &str, to, at| {
            let scope = CredentialScope { at, to, purpose: CredentialPurpose::Prove(nonce) };
            prove_headers(&scope, nonce, secret).unwrap()
        };
        let proof = CredentialScope { at: "a:1", to: 1, purpose: CredentialPurpose::Proof(nonce) };
        for secret in ["new", "old"] {
            assert_eq!(one().admit_prove(&asked(secret, 1, "a:1")), Ok(proof.sign(secret)));
        }
        assert_eq!(status(one().admit_prove(&asked("ne", 1, "a:1"))), 401, "another secret");
        assert_eq!(status(one().admit_prove(&asked("new", 4, "a:1"))), 421, "another node");
        assert_eq!(status(one().admit_prove(&asked("new", 1, "b:9"))), 421, "another address");
        let mut changed = asked("new", 1, "a:1");
        changed.insert(NONCE, HeaderValue::from_static("00000000-0000-0000-0000-000000000001"));
        assert_eq!(status(one().admit_prove(&changed)), 401, "another nonce");
        assert_eq!(status(one().admit_prove(&node(2, &["new"]).headers(1, "a:1").unwrap())), 401, "no nonce");
        assert_eq!(status(one().admit(&asked("new", 1, "a:1"), None)), 401, "it is good for nothing else");
    }

    #[test]
    fn a_join_is_for_one_node_and_body() {
        let sender = node(2, &["new"]);
        let fresh = Peers::new(Secrets(vec!["new".into()]));
        let headers = sender.join_headers(4, "a:4", b"body").unwrap();
        assert_eq!(fresh.admit_join(&headers, None), Ok(Some(body_digest(b"body"))));
        assert_eq!(status(one().admit_join(&headers, None)), 421, "a member is known by its own address");
        assert_eq!(status(node(3, &["new"]).admit_join(&headers, None)), 421, "an identity names its node");
        let mut other = headers.clone();
        other.insert(DIGEST, HeaderValue::from_str(&"0".repeat(64)).unwrap());
        assert_eq!(status(fresh.admit_join(&other, None)), 401);
        let named = Peers::new(Secrets(vec!["new".into()])).known_as(None, vec!["b:4".into()]);
        assert_eq!(status(named.admit_join(&headers, None)), 421, "its settings say how it is called");
    }
}
