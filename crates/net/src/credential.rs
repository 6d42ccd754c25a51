//! The credential of an unencrypted RPC, so that the cluster secret leaves no node.
//!
//! The sender sends no secret, but an HMAC-SHA256 under it of the called address, the id of the called node, and the
//! cluster. So a credential is valid at one address only: an attacker who makes a node call them learns nothing that
//! another node accepts. A `join` has no cluster yet, and signs the digest of its body instead.
//!
//! An attacker who reads the traffic between two nodes can still replay it to the called one. Only an encrypted network
//! prevents that.
//!
//! **Invariants**
//! 1. The signed bytes are unambiguous: each part has a fixed length or is the last.
//! 2. Credentials are compared in constant time.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use uuid::Uuid;

use super::NodeId;

/// The digest of a body.
pub type BodyDigest = [u8; 32];

/// The purpose of a credential.
#[derive(Debug, Clone, Copy)]
pub(super) enum CredentialPurpose {
    /// Any call within this cluster but `join`.
    Call(Uuid),
    /// A `join` with the body of this digest.
    Join(BodyDigest),
}

/// The addressee and the purpose of a credential.
#[derive(Debug, Clone, Copy)]
pub(super) struct CredentialScope<'a> {
    /// The called address, as the sender writes it.
    pub(super) at: &'a str,
    /// The node that is called.
    pub(super) to: NodeId,
    pub(super) purpose: CredentialPurpose,
}

impl CredentialScope<'_> {
    /// The credential as the text of a header.
    pub(super) fn sign(&self, secret: &str) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
        let (label, what): (&[u8; 16], [u8; 32]) = match self.purpose {
            CredentialPurpose::Call(cluster) => {
                let mut what = [0; 32];
                what[..16].copy_from_slice(cluster.as_bytes());
                (b"concord call  v2", what)
            }
            CredentialPurpose::Join(digest) => (b"concord join  v2", digest),
        };
        mac.update(label);
        mac.update(&what);
        mac.update(&self.to.to_be_bytes());
        mac.update(self.at.as_bytes());
        text_of(&mac.finalize().into_bytes())
    }

    /// Whether a credential was made with one of these secrets. All are tried, even after a match, so that the time
    /// reveals nothing.
    pub(super) fn is_proven(&self, given: &[u8], secrets: &[String]) -> bool {
        let matches = secrets
            .iter()
            .fold(Choice::from(0), |matches, secret| matches | self.sign(secret).as_bytes().ct_eq(given));
        matches.into()
    }
}

/// The digest of a body.
pub fn body_digest(body: &[u8]) -> BodyDigest {
    Sha256::digest(body).into()
}

/// Bytes as the text of a header.
pub(super) fn text_of(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The digest that the text of a header names.
pub(super) fn digest_of(text: &str) -> Option<BodyDigest> {
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: CredentialScope<'_> =
        CredentialScope { at: "a:1", to: 2, purpose: CredentialPurpose::Call(Uuid::from_u128(7)) };

    #[test]
    fn a_credential_is_valid_for_one_secret_address_node_and_purpose() {
        let secrets = ["new".to_owned(), "old".to_owned()];
        let given = SCOPE.sign("old");
        assert!(SCOPE.is_proven(given.as_bytes(), &secrets));
        assert!(!SCOPE.is_proven(given.as_bytes(), &secrets[..1]) && !SCOPE.is_proven(given.as_bytes(), &[]));
        let others = [
            CredentialScope { at: "a:10", ..SCOPE },
            CredentialScope { at: "b:1", ..SCOPE },
            CredentialScope { to: 3, ..SCOPE },
            CredentialScope { purpose: CredentialPurpose::Call(Uuid::from_u128(8)), ..SCOPE },
            CredentialScope { purpose: CredentialPurpose::Join([7; 32]), ..SCOPE },
        ];
        for other in others {
            assert!(!other.is_proven(given.as_bytes(), &secrets), "{other:?}");
        }
        for wrong in ["", "0", "old", &given[1..], &given.to_uppercase()] {
            assert!(!SCOPE.is_proven(wrong.as_bytes(), &secrets), "{wrong}");
        }
    }

    #[test]
    fn the_bytes_of_a_credential_are_as_recorded() {
        let join = CredentialScope { purpose: CredentialPurpose::Join(body_digest(b"body")), ..SCOPE };
        assert_eq!(SCOPE.sign("secret"), "wOOfqxt93gq5eMlMg4c4RyUdGxpqsK3VDGD1d3Ra38o");
        assert_eq!(join.sign("secret"), "V-Fn2-_smNUE7Ln94Xgibpv9kPrJAJg9J9Wxvjz1mI0");
    }

    #[test]
    fn a_digest_is_read_back() {
        let digest = body_digest(b"body");
        assert_eq!(digest_of(&text_of(&digest)), Some(digest));
        for wrong in ["", "zz", &"z".repeat(64), &"é".repeat(32), &text_of(&digest)[1..]] {
            assert_eq!(digest_of(wrong), None);
        }
    }
}
