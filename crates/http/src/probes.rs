//! Liveness and readiness probes, and the root path; none needs a key.
//!
//! **Invariants:** these answers reveal nothing of the data. Liveness does not depend on the cluster: restarting a node
//! that has no quorum would not help it.

use std::future::{Ready, ready as done};

use axum::extract::State;

use super::reply::{Problem, Reply};
use concord_service::{Refusal, Service};

/// Paths of the liveness probe: the process answers.
pub(super) const LIVE: [&str; 2] = ["/livez", "/health"];
/// Paths of the readiness probe: the node is caught up with a live leader.
pub(super) const READY: [&str; 2] = ["/readyz", "/readiness-probe"];

/// Names the service and the root of its interface.
pub(super) fn root() -> Ready<Reply> {
    done(Reply::ok("concord", r#"{"service":"concord","api":"/api/v1"}"#))
}

/// Liveness.
pub(super) fn live() -> Ready<Reply> {
    done(Reply::ok("alive", "{}"))
}

/// Readiness, or the reason why the node is not ready.
pub(super) fn ready(State(service): State<Service>) -> Ready<Result<Reply, Problem>> {
    let answer = service.ready().map(|()| Reply::ok("ready", "{}"));
    done(answer.map_err(|reason| Refusal::Unavailable(reason).into()))
}
