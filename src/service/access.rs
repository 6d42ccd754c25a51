//! Who a credential belongs to. Until access keys are stored in the cluster, the root key of the settings is the
//! only one.
//!
//! **Invariant:** the key itself is not kept, only its digest, and digests are compared in constant time: neither
//! a dump of the memory nor the time of an answer tells the key.

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The id of the root key: the author of the changes that are made with it.
const ROOT: &str = "root";

/// Who a credential belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The key's id: the author of changes.
    pub id: String,
}

/// The credentials that this node takes.
pub struct Access {
    root: [u8; 32],
}

impl Access {
    /// Takes the root key.
    #[must_use]
    pub fn new(root_key: &str) -> Self {
        Self { root: Sha256::digest(root_key.as_bytes()).into() }
    }

    /// The principal of a credential; `None` when it is nobody's.
    #[must_use]
    pub fn principal(&self, credential: &[u8]) -> Option<Principal> {
        let given: [u8; 32] = Sha256::digest(credential).into();
        bool::from(given.ct_eq(&self.root)).then(|| Principal { id: ROOT.into() })
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
    fn only_the_whole_root_key_is_somebody() {
        let access = Access::new("correct horse battery");
        assert_eq!(access.principal(b"correct horse battery"), Some(Principal { id: "root".into() }));
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
