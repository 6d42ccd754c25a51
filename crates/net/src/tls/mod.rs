//! TLS: the certificates of this node, for callers and between nodes.
//!
//! | where is … | file |
//! |---|---|
//! | what a certificate says: how long it is good, its serial, its fingerprint | [`certificate`] |
//! | certificates and keys as files, and files that are read again when they change | [`files`] |
//! | which node of which cluster a certificate names | [`name`] |
//! | the listener for callers | [`callers`] |
//! | mutual TLS between nodes: whom a node trusts, who is revoked | [`nodes`], `verify` |
//! | a connection between nodes whose other end has shown its certificate | [`shown`] |
//!
//! TLS 1.3 and 1.2, with the suites of `rustls`: all of them have forward secrecy and authenticate what they encrypt.
//!
//! **Invariants**
//! 1. A key is never logged.
//! 2. Unusable files change nothing: the node keeps the previous ones, and logs a warning.

pub mod callers;
pub mod certificate;
pub mod files;
pub mod name;
pub mod nodes;
pub mod shown;
mod verify;

use std::sync::Arc;

use rustls::{SupportedProtocolVersion, crypto::CryptoProvider};

/// The versions of TLS that are spoken.
pub(crate) const VERSIONS: [&SupportedProtocolVersion; 2] =
    [&rustls::version::TLS13, &rustls::version::TLS12];

/// The cryptography of all connections.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
