//! Authenticates callers: finds the principal of a credential. What a principal may do is in `request/principal.rs`.
//!
//! **Invariant:** only digests of keys are stored, and digests are compared in constant time: neither a memory dump nor
//! the time that an answer takes reveals a key.

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::request::Principal;

/// The credentials that this node accepts.
pub struct Access {
    root: [u8; 32],
}

impl Access {
    /// Accepts the root key.
    #[must_use]
    pub fn new(root_key: &str) -> Self {
        Self { root: Sha256::digest(root_key.as_bytes()).into() }
    }

    /// The principal of a credential; `None` when it is unknown.
    #[must_use]
    pub fn principal(&self, credential: &[u8]) -> Option<Principal> {
        let given: [u8; 32] = Sha256::digest(credential).into();
        bool::from(given.ct_eq(&self.root)).then(Principal::root)
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_complete_root_key_is_accepted() {
        let access = Access::new("correct horse battery");
        assert_eq!(access.principal(b"correct horse battery"), Some(Principal::root()));
        for wrong in
            [&b""[..], b"correct horse batter", b"correct horse battery ", b"Correct horse battery", b"\xff"]
        {
            assert_eq!(access.principal(wrong), None);
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", Access::new("correct horse battery")), "Access");
    }
}
