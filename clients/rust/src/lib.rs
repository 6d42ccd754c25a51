//! A client of a Concord cluster.
//!
//! | module | what it is for |
//! |---|---|
//! | `client` | failover and retries |
//! | `request`, `answer` | requests and responses |
//! | `environment` | the environment that is put before definition keys |
//! | `reader` | who reads, by which rollouts choose |
//! | `login` | sessions of a client that logs in with the token of an identity provider |
//! | `error` | why a request failed: rejected, unavailable, or with an unknown outcome |
//! | `pages` | snapshot-consistent pagination of lists |
//! | `watch` | changes, across lost connections |
//! | `operation` | the operations of batches and transactions |
//! | `change_request` | making a change request of operations |
//! | `deleted` | deleted definitions, and undoing a deletion |
//! | `records` | one config: typed, conditional, read-modify-write |
//! | `keep` | redacted values of a record that is changed and written back |
//! | `cache` | a local replica kept in sync by a watch, usable without the cluster |
//! | `tls` | the trusted CAs and the client certificate |
//!
//! **Invariants:** a write is retried only if it certainly was not applied, or has an idempotency key, by which the
//! cluster applies all its attempts once. Once an attempt may have been applied, the result is success, an error that
//! the cluster's log decided, or [`Error::Unknown`]; it is never reported as a failure.

mod answer;
mod cache;
mod change_request;
mod client;
mod deleted;
mod environment;
mod error;
mod keep;
mod login;
mod operation;
mod pages;
mod reader;
mod records;
mod request;
mod tls;
mod watch;

pub use answer::Answer;
pub use cache::{
    Cache, CacheOptions, Changes, Config, Freshness, Judge, Origin, Read, Rejected, Selection, Source,
    Status, Typed, TypedRead, Verdict,
};
pub use client::{Client, Options, shown_url};
pub use deleted::{DeletedDefinition, UndeleteAt, Undeleted};
pub use error::{Error, Item, Refusal};
pub use login::Login;
pub use operation::{
    Applied, Check, CheckCondition, IfMatch, Operation, OperationResult, PutMode, ReadConfig, Transaction,
};
pub use pages::Pages;
pub use records::{Found, Record};
pub use request::{Request, Retry, segment};
pub use tls::Tls;
pub use watch::{Event, EventKind, Watch};

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
