//! The credential of an unencrypted RPC, so that the cluster secret leaves no node.
//!
//! The sender sends no secret, but an HMAC-SHA256 under it of the called address, the id of the called node, and the
//! cluster. So a credential is valid at one address only: an attacker who makes a node call them learns nothing that
//! another node accepts. A `join` has no cluster yet, and signs the digest of its body instead.
//!
//! The called node proves the secret, too, before anything is sent to it (`client/prove.rs`): it signs a nonce that the
//! sender chose. So nobody becomes a member, or is sent data, because they own an address.
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
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::NodeId;

/// The digest of a body.
pub type BodyDigest = [u8; 32];

/// The purpose of a credential.
#[derive(Debug, Clone, Copy)]
pub(super) enum CredentialPurpose {
    /// Any call within this cluster but `join` and `prove`.
    Call(Uuid),
    /// A `join` with the body of this digest.
    Join(BodyDigest),
    /// A `prove` with this nonce. A node responds only to a node that knows the secret: others could guess secrets with it.
    Prove(Uuid),
    /// The response of the called node.
    Proof(Uuid),
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
            CredentialPurpose::Call(cluster) => (b"concord call  v2", padded(cluster)),
            CredentialPurpose::Join(digest) => (b"concord join  v2", digest),
            CredentialPurpose::Prove(nonce) => (b"concord prove v2", padded(nonce)),
            CredentialPurpose::Proof(nonce) => (b"concord proof v2", padded(nonce)),
        };
        mac.update(label);
        mac.update(&what);
        mac.update(&self.to.to_be_bytes());
        mac.update(self.at.as_bytes());
        text_of(&mac.finalize().into_bytes())
    }

    /// The one of these secrets with which a credential was made. All are tried, even after a match, so that the time
    /// reveals nothing.
    pub(super) fn secret_of<'s>(&self, given: &[u8], secrets: &'s [String]) -> Option<&'s str> {
        let matches = |found, secret: &'s String| {
            if self.sign(secret).as_bytes().ct_eq(given).into() { Some(secret.as_str()) } else { found }
        };
        secrets.iter().fold(None, matches)
    }
}

/// An id as 32 bytes.
fn padded(id: Uuid) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(id.as_bytes());
    bytes
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
        assert_eq!(SCOPE.secret_of(given.as_bytes(), &secrets), Some("old"));
        for unknown in [&secrets[..1], &[]] {
            assert_eq!(SCOPE.secret_of(given.as_bytes(), unknown), None);
        }
        let others = [
            CredentialScope { at: "a:10", ..SCOPE },
            CredentialScope { at: "b:1", ..SCOPE },
            CredentialScope { to: 3, ..SCOPE },
            CredentialScope { purpose: CredentialPurpose::Call(Uuid::from_u128(8)), ..SCOPE },
            CredentialScope { purpose: CredentialPurpose::Join([7; 32]), ..SCOPE },
            CredentialScope { purpose: CredentialPurpose::Prove(Uuid::from_u128(7)), ..SCOPE },
            CredentialScope { purpose: CredentialPurpose::Proof(Uuid::from_u128(7)), ..SCOPE },
        ];
        for other in others {
            assert_eq!(other.secret_of(given.as_bytes(), &secrets), None, "{other:?}");
        }
        for wrong in ["", "0", "old", &given[1..], &given.to_uppercase()] {
            assert_eq!(SCOPE.secret_of(wrong.as_bytes(), &secrets), None, "{wrong}");
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
