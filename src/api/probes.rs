//! What those who watch over a node ask it, without a key.
//!
//! **Invariant:** these answers tell nothing of the data. Liveness does not depend on the cluster: a node
//! without a quorum must not be restarted for it.

use std::future::{Ready, ready as now};

use axum::extract::State;

use super::reply::{Problem, Reply};
use crate::service::{Refusal, Service};

/// Paths that ask whether the process answers.
pub(super) const LIVE: [&str; 2] = ["/livez", "/health"];
/// Paths that ask whether the node is caught up with a live leader.
pub(super) const READY: [&str; 2] = ["/readyz", "/readiness-probe"];

/// Says what this is.
pub(super) fn root() -> Ready<Reply> {
    now(Reply::done("concord", r#"{"service":"concord","api":"/api/v1"}"#))
}

/// The process answers.
pub(super) fn live() -> Ready<Reply> {
    now(Reply::done("alive", "{}"))
}

/// The node is of use, or why not.
pub(super) fn ready(State(service): State<Service>) -> Ready<Result<Reply, Problem>> {
    let answer = service.ready().map(|()| Reply::done("ready", "{}"));
    now(answer.map_err(|reason| Refusal::Unavailable(reason).into()))
}
