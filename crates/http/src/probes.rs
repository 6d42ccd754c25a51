//! Liveness and readiness probes, and the root path; none needs a key.
//!
//! **Invariants:** these answers reveal nothing of the data. Liveness does not depend on the cluster: restarting a node
//! that has no quorum would not help it.

use super::{
    Api,
    endpoints::OpenCall,
    reply::{Problem, Reply},
};
use concord_service::Refusal;

/// Names the service and the root of its interface.
pub(super) fn root(_: &Api, _: &OpenCall) -> Reply {
    Reply::ok("concord", r#"{"service":"concord","api":"/api/v1"}"#)
}

/// Liveness: the process answers.
pub(super) fn live(_: &Api, _: &OpenCall) -> Reply {
    Reply::ok("alive", "{}")
}

/// Readiness: the node is caught up with a live leader; or the reason why it is not.
pub(super) fn ready(api: &Api, _: &OpenCall) -> Result<Reply, Problem> {
    let answer = api.service.ready().map(|()| Reply::ok("ready", "{}"));
    answer.map_err(|reason| Refusal::Unavailable(reason).into())
}
