//! A client of a Concord cluster.
//!
//! | module | what it is for |
//! |---|---|
//! | `client` | the nodes, and a request with its attempts |
//! | `request`, `answer` | what is asked, and what comes back |
//! | `error` | why there is no answer: refused, unavailable, or an outcome that nobody knows |
//! | `pages` | the pages of a list, all of one state |
//! | `watch` | the changes, over any loss of a connection |
//! | `operation` | the operations of batches and transactions |
//! | `records` | one config: typed, conditional, read-modify-write |
//! | `cache` | a local copy of configs that follows the cluster, and goes on without it |
//! | `tls` | whom the client trusts, and how it proves itself |
//!
//! **Invariants:** a write is sent again only if it certainly was not applied, or carries an idempotency key, by which
//! the cluster decides all its copies as one. Once an attempt may have been applied, the result is success, a verdict
//! of the cluster's log, or [`Error::Unknown`]; it is never reported as a failure.

mod answer;
mod cache;
mod client;
mod error;
mod operation;
mod pages;
mod records;
mod request;
mod tls;
mod watch;

pub use answer::Answer;
pub use cache::{
    Cache, CacheOptions, Changes, Config, Freshness, Origin, Read, Selection, Source, Status, Typed,
    TypedRead,
};
pub use client::{Client, Options};
pub use error::{Error, Item, Refusal};
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
