//! Identity providers: whether a token is valid, who it names, and which roles that gives.
//!
//! A provider (`OpenID` Connect, a CI system, Kubernetes) signs tokens. A client shows one once, and gets a session. This
//! crate judges the token. It knows nothing of sessions, of the cluster, and of who asks.
//!
//! | file | what it holds |
//! |---|---|
//! | [`token`] | the three parts of a token, read strictly |
//! | [`judgement`] | all checks of a token in their order; the reason of a rejection |
//! | [`keys`] | the public keys of a provider, of a key set (JWKS); signatures |
//! | [`claims`] | names of claims, values, and what is kept of a token with its session |
//! | [`provider`] | the document of a provider as people write it; who its persons are |
//! | [`conflict`] | which providers can't stand side by side; how one can't change; whether a change changes whom it trusts |
//! | [`discovery`] | the document in which a provider names its endpoints |
//! | [`roles`] | the members of a role: which claims make one |
//! | [`permissions`] | what somebody may do by all of their roles |
//! | [`url`] | the URLs that a node may call or a browser may open |
//! | `fuzz` | functions for the fuzzer |
//! | `testing` | a provider for the tests of other crates |
//! | `fields` | members of a document, and every problem that they have |
//! | `json` | JSON of others: bounded, without duplicate members |
//!
//! **Invariants:** everything here is pure: no I/O, no clock, no randomness. A judgement depends on the token, the
//! provider, the key set and the given time. Every text is bounded before it is parsed, and no text makes anything panic.
//! What is not certain is rejected: a claim that is absent or of another type never makes a check hold.

pub mod claims;
pub mod conflict;
pub mod discovery;
mod fields;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod json;
pub mod judgement;
pub mod keys;
pub mod permissions;
pub mod provider;
pub mod roles;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod token;
pub mod url;

pub use claims::{ClaimName, Claims};
pub use conflict::{change_problems, changes_trust, conflicts};
pub use discovery::Discovery;
pub use json::JsonError;
pub use judgement::{Accepted, Check, Judgement, Reason, TokenSource, judge};
pub use keys::{Algorithm, KeySet};
pub use permissions::{Owner, OwnerKind, Permissions, Role};
pub use provider::Provider;
pub use roles::{Member, Membership};
pub use token::{Token, TokenError};
