//! The HTTP API: routes, requests as typed values, responses; and the peer listener, which serves the RPCs of other
//! nodes.
//!
//! A request passes `server` (the connection), `pipeline` (credential, quota, audit log) and the handler of its row in
//! `endpoints`. A handler reads its request (`extract`, `condition`, `body`), awaits the service once, and makes a
//! [`Reply`](reply::Reply).
//!
//! | where is | file |
//! |---|---|
//! | the rows of endpoints; which row a request matches | `endpoints` |
//! | the steps of a request from its head to its response; the standard headers | `pipeline` |
//! | connections, their timeouts, the graceful shutdown; futures that are not copied | `server` |
//! | authentication of a request | `access` |
//! | keys, query parameters, consistency, idempotency keys | `extract` |
//! | `If-Match`, `If-None-Match`, headers that may occur once only | `condition` |
//! | entity tags: a list of them, whether the client has a version, the tag of a body | `entity_tags` |
//! | receiving and parsing of bodies, their members, media types | `body` |
//! | content codings: compressed responses, encoded bodies | `coding` |
//! | indented responses; raw ones; what they share with compressed ones | `pretty`; `raw`; `rewriting` |
//! | pages of other origins | `cors` |
//! | pages of lists: the parameter `cursor`, the `Link` to the next page | `cursor` |
//! | definitions, their lists, the states of their indexes | `definitions` |
//! | the schema and the unique paths of a definition | `schema` |
//! | configs, their lists, patches; a config at a revision | `configs` |
//! | lists of the configs of several definitions | `across` |
//! | field selection: `include`, `fields` | `shape` |
//! | bulk reads | `read` |
//! | evaluations of feature flags; the document that flagd fetches | `flags` |
//! | the protocols of Consul's key-value store and of Spring Cloud Config, read only | `consul`, `spring` |
//! | batches and transactions | `batch` |
//! | lists of changes; rollback | `history` |
//! | changes as server-sent events, or by long polling | `watch` |
//! | pages of the audit log; what the audit log records of a request | `audit`, `decision` |
//! | access keys; the key of a request | `access_keys` |
//! | identity providers, roles, sessions; logins | `identity` |
//! | environments | `environments` |
//! | what readers and gates say of rollouts | `reports` |
//! | cluster status, members, leadership, backup; probes | `cluster` |
//! | `/metrics` and its listener; request times | `metrics` |
//! | what a request uses, counted for its access key and its definition | `usage` |
//! | the `OpenAPI` document; `/openapi.json` and the page at `/docs` | `openapi`, `docs` |
//! | quotas of access keys: 429, and the remainder | `quota` |
//! | the console at `/ui`; its modules are in `console/` | `console` |
//! | status codes, error types, response headers; the codes of errors | `reply`, `error_code` |
//! | responses in the memory budget | `weight` |
//! | JSON objects built as text | `json` |
//! | peer RPCs, on the peer listener | `peer` |
//!
//! **Invariant:** only `reply` decides the status of a response.

mod access;
mod access_keys;
mod across;
mod audit;
mod batch;
mod body;
mod change_requests;
mod cluster;
mod coding;
mod condition;
mod configs;
mod console;
mod consul;
mod cors;
mod cursor;
mod decision;
mod definitions;
mod docs;
mod endpoints;
mod entity_tags;
mod environments;
mod error_code;
mod extract;
mod flags;
mod history;
mod identity;
mod json;
mod latest;
pub mod metrics;
pub mod openapi;
pub mod peer;
mod pipeline;
mod pretty;
mod quota;
mod raw;
mod read;
mod reader;
mod reply;
mod reports;
mod rewriting;
mod rollouts;
mod schema;
pub mod server;
mod shape;
mod spring;
mod usage;
mod watch;
mod weight;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use concord_net::socket::TcpListener;
use concord_service::Service;
use cors::CorsOrigins;
use metrics::{MetricsListener, RequestTimes};
use peer::PeerListener;
use server::{ServeOptions, Transport};

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
        let document = docs::document_text(service.cx.limits());
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

/// What answers the requests of a listener.
#[derive(Debug)]
pub enum Served {
    /// Clients, on the API listener.
    Clients(Api),
    /// The other members, on the peer listener.
    Peers(PeerListener),
    /// Servers that collect metrics, on a listener of their own.
    Metrics(MetricsListener),
}

impl Served {
    /// Serves until `stop` is cancelled, then accepts no more connections and waits for the requests in flight.
    // Boxed, and not generic, so that what a request runs through is compiled once, and here.
    pub fn serve(
        self,
        listener: TcpListener,
        transport: Transport,
        options: ServeOptions,
        stop: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        let stop = stop.cancelled_owned();
        match self {
            Self::Clients(api) => Box::pin(server::serve(listener, api, transport, options, stop)),
            Self::Peers(peers) => Box::pin(server::serve(listener, peers, transport, options, stop)),
            Self::Metrics(metrics) => Box::pin(server::serve(listener, metrics, transport, options, stop)),
        }
    }
}
