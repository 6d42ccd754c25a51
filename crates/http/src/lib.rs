//! The HTTP interface: routes, requests as typed values, responses; and the listener of calls between nodes.
//!
//! | where is | file |
//! |---|---|
//! | the rows of endpoints, and which of them is that of a request | `endpoints` |
//! | the way of a request from its head to its answer; the standard headers | `pipeline` |
//! | accepting connections, their timeouts, the graceful shutdown; futures that are not copied | `server` |
//! | authentication of a request | `access` |
//! | parsing of keys, query, headers and consistency; idempotency keys | `extract` |
//! | content codings: compressed answers, encoded bodies | `coding` |
//! | indented answers | `pretty` |
//! | answers that are made anew as a whole | `rewriting` |
//! | pages of other origins | `cors` |
//! | `If-Match`, `If-None-Match`, headers that may be given once only | `condition` |
//! | receiving and parsing of bodies, errors of their shape, media types | `body` |
//! | the parameter `cursor` and the `Link` to the next page | `cursor` |
//! | lists of the configs of several definitions | `across` |
//! | definitions, their lists, the states of their indexes | `definitions` |
//! | a definition's schema and unique paths | `schema` |
//! | configs and their lists; a config as of a revision | `configs` |
//! | which parts of records an answer has: `include`, `fields` | `shape` |
//! | many configs at once | `read` |
//! | several writes as one | `batch` |
//! | lists of changes; rollback | `history` |
//! | changes as server-sent events, or by long polls | `watch` |
//! | pages of the audit log | `audit` |
//! | what of a request is recorded in the audit log | `decision` |
//! | access keys; who the caller is | `access_keys` |
//! | cluster status, members, leadership, backup; probes | `cluster` |
//! | `/metrics` and its listener; times of requests | `metrics` |
//! | the `OpenAPI` document | `openapi` |
//! | `/openapi.json` and the page at `/docs` | `docs` |
//! | quotas of access keys: 429, and what is left | `quota` |
//! | the console at `/ui`; its modules are in `console/` | `console` |
//! | status codes, error types, response headers | `reply` |
//! | the codes of errors | `error_code` |
//! | answers in the memory budget | `weight` |
//! | JSON objects with stored text in them | `json` |
//! | calls between nodes, on the peer listener | `peer` |

mod access;
mod access_keys;
mod across;
mod audit;
mod batch;
mod body;
mod cluster;
mod coding;
mod condition;
mod configs;
mod console;
mod cors;
mod cursor;
mod decision;
mod definitions;
mod docs;
mod endpoints;
mod error_code;
mod extract;
mod history;
mod json;
pub mod metrics;
pub mod openapi;
pub mod peer;
mod pipeline;
mod pretty;
mod quota;
mod read;
mod reply;
mod rewriting;
mod schema;
pub mod server;
mod shape;
mod watch;
mod weight;

use std::sync::Arc;

use bytes::Bytes;

use concord_service::Service;
use cors::CorsOrigins;
use metrics::{MetricsListener, RequestTimes};
pub use server::serve;

/// What answers the requests of the API listener.
#[derive(Debug, Clone)]
pub struct Api {
    service: Service,
    times: Arc<RequestTimes>,
    /// The text of the `OpenAPI` document.
    document: Bytes,
    /// The origins of other pages that may use it.
    origins: Option<Arc<CorsOrigins>>,
}

impl Api {
    /// Answers for a service.
    #[must_use]
    pub fn new(service: Service) -> Self {
        let document = docs::document_text(service.limits());
        Self { service, times: Arc::new(RequestTimes::new()), document, origins: None }
    }

    /// What answers the requests of the listener of metrics.
    #[must_use]
    pub fn metrics_listener(&self) -> MetricsListener {
        MetricsListener::new(self.service.clone(), Arc::clone(&self.times))
    }

    /// The same for pages of these origins, too; of all for `*`.
    #[must_use]
    pub fn with_origins(self, origins: Vec<String>) -> Self {
        Self { origins: CorsOrigins::of(origins).map(Arc::new), ..self }
    }
}
