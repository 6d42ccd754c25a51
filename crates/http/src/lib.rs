//! The HTTP interface: routes, requests as typed values, responses; and the listener of calls between nodes.
//!
//! | where is | file |
//! |---|---|
//! | a route; what is around every request; the standard headers | this one |
//! | accepting connections, their timeouts, the graceful shutdown | `server` |
//! | futures that are not copied | `boxed` |
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
//! | definitions and their lists | `definitions` |
//! | a definition's schema and unique paths | `schema` |
//! | the states of a definition's indexes | `indexes` |
//! | configs and their lists; a config as of a revision | `configs` |
//! | which parts of records an answer has: `include`, `fields` | `shape` |
//! | many configs at once | `read` |
//! | partial updates (`PATCH`) | `patch` |
//! | several writes as one | `batch` |
//! | lists of changes; rollback | `history` |
//! | changes as server-sent events, or by long polls | `watch` |
//! | pages of the audit log | `audit` |
//! | what of a request is recorded in the audit log | `decision` |
//! | access keys; who the caller is | `access_keys` |
//! | cluster status, members, leadership, backup | `cluster` |
//! | `/metrics` and its listener; times of requests | `metrics` |
//! | liveness and readiness probes | `probes` |
//! | the `OpenAPI` document | `openapi` |
//! | `/openapi.json` and the page at `/docs` | `docs` |
//! | quotas of access keys: 429, and what is left | `quota` |
//! | the console at `/ui`; its modules are in `console/` | `console` |
//! | status codes, error types, response headers | `reply` |
//! | which secret values a caller is not shown | `redaction` |
//! | the codes of errors | `error_code` |
//! | answers in the memory budget | `weight` |
//! | numbers in headers | `digits` |
//! | JSON objects with stored text in them | `json` |
//! | calls between nodes, on the peer listener | `peer` |
//!
//! Imports between these files run one way.
//!
//! Most requests get or replace one config. `Api::route` finds these by the form of their path and calls their
//! handlers itself: the router takes about a fifth of the processor time of such a get, for boxed futures, parameters
//! and extensions that these handlers do not need. It is a shorter way to the same handlers and no other answer, which a
//! test compares request by request.
//!
//! **Invariants:** every response passes `Api::handle`, so that the standard headers are on all of them, those for unknown
//! paths and for panics included; the revision only where the credential was good. What is no HTTP, or may be two
//! requests, is refused by `server` and hyper before, with 400 or 431 and no body. Every request passes `access::authenticate` before anything is answered.

mod access;
mod access_keys;
mod across;
mod audit;
mod batch;
mod body;
mod boxed;
mod cluster;
mod coding;
mod condition;
mod configs;
mod console;
mod cors;
mod cursor;
mod decision;
mod definitions;
mod digits;
mod docs;
mod error_code;
mod extract;
mod history;
mod indexes;
mod json;
pub mod metrics;
pub mod openapi;
mod patch;
pub mod peer;
mod pretty;
mod probes;
mod quota;
mod read;
mod redaction;
mod reply;
mod rewriting;
mod schema;
pub mod server;
mod shape;
mod watch;
mod weight;

use std::{
    future::{Ready, ready},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::{Request, State},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, delete, get, post},
};
use futures::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;
use tower::ServiceExt as _;
use tracing::error;
use uuid::{Builder, Uuid};

use access::{Access, Reader};
use boxed::boxed;
use coding::Coding;
use concord_model::limits::{Limits, REQUEST_ID_BYTES_MAX};
use concord_net::trace::TraceParent;
use concord_service::{
    Origin, Principal, Service, audit::observe, memory_budget::Share, metrics::Connections,
};
use cors::CorsOrigins;
use decision::Pending;
use digits::number;
use extract::{ReadRequest, WriteRequest};
use metrics::{MetricsListener, RequestTimes};
use quota::Admitted;
use reply::{LogOnly, NO_STORE, NODE, Problem, Reply, STATE_REVISION};
use server::Answerer;
pub use server::serve;

/// The header with the id of a request, which the log names too.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const DEFINITIONS: &str = "/api/v1/config_definition";
const DEFINITION: &str = "/api/v1/config_definition/{definition}";
const SCHEMA: &str = "/api/v1/config_definition/{definition}/schema";
const UNIQUE: &str = "/api/v1/config_definition/{definition}/unique";
const INDEXES: &str = "/api/v1/config_definition/{definition}/indexes";
const CONFIGS: &str = "/api/v1/config_definition/{definition}/config";
const CONFIG: &str = "/api/v1/config_definition/{definition}/config/{config}";
const CONFIG_HISTORY: &str = "/api/v1/config_definition/{definition}/config/{config}/history";
const ROLLBACK: &str = "/api/v1/config_definition/{definition}/config/{config}/rollback";
const DEFINITION_HISTORY: &str = "/api/v1/config_definition/{definition}/history";

/// What answers the requests of the API listener.
#[derive(Debug, Clone)]
pub struct Api {
    service: Service,
    routes: Router,
    times: Arc<RequestTimes>,
    /// The origins of other pages that may use it.
    origins: Option<Arc<CorsOrigins>>,
}

impl Answerer for Api {
    fn connections(&self) -> Option<Connections> {
        Some(self.service.caller_connections())
    }

    fn is_memory_scarce(&self) -> bool {
        self.service.reservation(Share::Callers).is_share_scarce()
    }

    async fn answer(self: Arc<Self>, request: http::Request<Incoming>) -> Response {
        let names = || self.times.names(request.method(), request.uri().path());
        let traced = self.service.traced_request(TraceParent::of(request.headers()), names);
        // A box for each body costs more than the question whether there is one.
        let request = request.map(|body| if body.is_end_stream() { Body::empty() } else { Body::new(body) });
        let Some(traced) = traced else { return self.handle(request).await };
        let answered = |answer: &Response| {
            let (status, id) = (answer.status().as_u16(), answer.headers().get(&REQUEST_ID));
            tracing::debug!(status, request_id = ?id, "answered a request");
            (status, id.cloned())
        };
        // Boxed: as most requests belong to no trace, they need not have its space.
        boxed(|| traced.run(self.handle(request), answered)).await
    }
}

impl Api {
    /// Answers for a service.
    #[must_use]
    pub fn new(service: Service) -> Self {
        let (routes, times) = (routes(&service), Arc::new(RequestTimes::new(&service)));
        Self { service, routes, times, origins: None }
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

    /// Answers a request: authenticates it, answers 500 when its handler panics, logs the text of an internal error,
    /// weighs the answer, and adds the standard headers.
    ///
    /// It is around the whole router and no layer of it: axum adds `Allow` outside of the routes' layers, which would
    /// reveal that a path exists before the credential is checked, and each layer costs two allocations.
    pub async fn handle(&self, request: Request) -> Response {
        // Off unless the settings name origins.
        let Some(origins) = &self.origins else { return self.answered(request).await };
        let (path, headers) = (request.uri().path(), request.headers());
        let Some(origin) = cors::allowed(origins, path, headers) else { return self.answered(request).await };
        let mut response = if cors::is_preflight(request.method(), headers) {
            let id = request_id(headers);
            self.with_standard_headers(id, false, cors::preflight())
        } else {
            boxed(|| self.answered(request)).await
        };
        cors::open(&mut response, origin);
        response
    }

    /// The same, whatever page it comes from.
    async fn answered(&self, request: Request) -> Response {
        let service = &self.service;
        let begun = self.times.begin(request.method(), request.uri().path());
        let id = request_id(request.headers());
        let target = (request.method(), request.uri().path());
        let authenticated =
            access::authenticate(service, target, request.headers(), request.extensions()).await;
        let (is_granted, response) = match authenticated {
            Ok(access) => {
                let is_granted = access != Access::Public;
                let (pending, admitted) = match &access {
                    Access::Granted(principal) => (
                        decision::begin(service, &request, &id, principal),
                        quota::admit(service, principal, &request),
                    ),
                    Access::Public => (None, Ok(None)),
                };
                let answered = match admitted {
                    Ok(admitted) => self.admitted_answer(access, request, pending.as_ref(), admitted).await,
                    Err(exceeded) => quota::refused(&exceeded),
                };
                let recorded = match pending {
                    None => answered,
                    Some(pending) if pending.gets_no_line(&answered) => answered,
                    Some(pending) => boxed(|| pending.end(answered)).await,
                };
                (is_granted, recorded)
            }
            Err(response) => {
                decision::note_failed_credential(service, &request, &id, response.status());
                (false, response)
            }
        };
        let response = self.with_standard_headers(id, is_granted, response);
        self.times.end(begun, response.status());
        response
    }

    /// Adds the headers that every answer has, and logs the text of an internal error.
    fn with_standard_headers(&self, id: HeaderValue, is_granted: bool, mut response: Response) -> Response {
        let service = &self.service;
        if let Some(LogOnly(text)) = response.extensions_mut().remove() {
            error!(request_id = ?id, "a request failed: {text}");
        }
        let status = response.status();
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, id);
        headers.insert(NODE, number(service.node_id()));
        // No browser takes an answer for another kind of document than it is.
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if is_granted {
            // What needs a key is for its owner alone, and is in no cache.
            headers.insert(header::CACHE_CONTROL, NO_STORE);
        }
        if is_granted && status != StatusCode::UNAUTHORIZED {
            headers.entry(STATE_REVISION).or_insert_with(|| number(service.revision()));
        } else {
            // Made from no state. Without a key it would tell how much is written.
            headers.remove(STATE_REVISION);
        }
        response
    }

    /// Answers a request that its key's quota admits.
    async fn admitted_answer(
        &self,
        access: Access,
        request: Request,
        pending: Option<&Pending>,
        admitted: Option<Admitted>,
    ) -> Response {
        if let Access::Granted(principal) = &access {
            Origin::note(principal);
        }
        let answered = self.weighed_answer(access, request, pending).await;
        match admitted {
            None => answered,
            Some(admitted) => admitted.end(answered),
        }
    }

    /// Calls the handler of a request, and weighs the answer.
    async fn weighed_answer(&self, access: Access, request: Request, pending: Option<&Pending>) -> Response {
        let is_read = match *request.method() {
            Method::GET | Method::HEAD => true,
            _ => request.uri().path().starts_with(read::PATH),
        };
        let (version, is_granted) = (request.version(), access != Access::Public);
        let is_pretty = match pretty::is_wanted(&self.service, &access, &request) {
            Ok(is_wanted) => is_wanted,
            Err(problem) => return problem.into_response(),
        };
        let reader = Reader::of(&access, is_read);
        let mut response = self.route_observed(access, request, pending).await;
        if let Some(reader) = reader {
            response = reader.answered(&self.service, response);
        }
        if is_pretty {
            response = Box::pin(pretty::indented(response, &self.service)).await;
        }
        if response.extensions().get::<Coding>().is_some() {
            response = Box::pin(coding::encoded(response, &self.service)).await;
        }
        // What needs no key is part of the program and takes no memory of its own.
        let heavy = if is_granted { weight::bytes_to_weigh(&response, version) } else { None };
        match heavy {
            None => response,
            // Boxed: few answers need it, and every request would have its space.
            Some(bytes) => Box::pin(weight::weighed(response, bytes, &self.service, is_read)).await,
        }
    }

    /// Calls the handler of a request, unless it is a write whose line of the audit log could not be stored; answers 500
    /// when the handler panics.
    async fn route_observed(&self, access: Access, request: Request, pending: Option<&Pending>) -> Response {
        let Some((targets, is_write)) = pending.and_then(Pending::targets) else {
            let answered = AssertUnwindSafe(self.route(access, request)).catch_unwind().await;
            return answered.unwrap_or_else(reply::panicked);
        };
        if let Some(Err(refusal)) = is_write.then(|| self.service.audit().admit_write()) {
            return Problem::from(refusal).into_response();
        }
        // Boxed: as above, and this is no read.
        let answered =
            boxed(|| AssertUnwindSafe(observe(targets, self.route(access, request))).catch_unwind());
        answered.await.unwrap_or_else(reply::panicked)
    }

    /// Calls the handler of a request.
    async fn route(&self, access: Access, request: Request) -> Response {
        match (access, request.method()) {
            (Access::Granted(principal), &Method::GET) if is_config(request.uri().path()) => {
                let request = ReadRequest::new(principal, request.into_parts().0);
                configs::get_one(&self.service, &request).await.into_response()
            }
            (Access::Granted(principal), &Method::PUT) if is_config(request.uri().path()) => {
                // Boxed: its space is many times that of a get, which would have it, too.
                boxed(|| self.put_config(principal, request)).await.into_response()
            }
            (access, _) => self.route_by_table(access, request).await,
        }
    }

    async fn put_config(&self, principal: Principal, request: Request) -> Result<Reply, Problem> {
        let (parts, body) = request.into_parts();
        let request = WriteRequest::receive(parts, body, principal, &self.service).await?;
        configs::put(State(self.service.clone()), request).await
    }

    /// Calls the handler that the route table names.
    async fn route_by_table(&self, access: Access, mut request: Request) -> Response {
        if let Access::Granted(principal) = access {
            request.extensions_mut().insert(principal);
        }
        if request.uri().path().starts_with(metrics::PATH) {
            request.extensions_mut().insert(Arc::clone(&self.times));
        }
        let Ok(response) = self.routes.clone().oneshot(request).await;
        response
    }
}

/// Whether a path is that of one config, as [`CONFIG`] has it. Segments are compared as they are sent: what is encoded
/// in a name is decoded later, by the handler.
fn is_config(path: &str) -> bool {
    let below = path.strip_prefix(DEFINITIONS).and_then(|rest| rest.strip_prefix('/'));
    let Some((definition, rest)) = below.and_then(|rest| rest.split_once('/')) else { return false };
    let Some(config) = rest.strip_prefix("config/") else { return false };
    let config = config.strip_suffix('/').unwrap_or(config);
    !definition.is_empty() && !config.is_empty() && !config.contains('/')
}

/// The route table.
fn routes(service: &Service) -> Router {
    let mut routes = Router::new();
    for (path, methods) in public_routes(service.limits()) {
        routes = routes.route(path, methods);
    }
    for (path, methods) in resource_routes() {
        // Both forms of a path are served: after a redirect some clients repeat a POST as a GET.
        routes = routes.route(path, methods.clone()).route(&format!("{path}/"), methods);
    }
    routes.fallback(unknown_path).method_not_allowed_fallback(method_not_allowed).with_state(service.clone())
}

/// The routes that need no key.
fn public_routes(limits: &Limits) -> Vec<(&'static str, MethodRouter<Service>)> {
    let mut routes = vec![
        ("/", get(probes::root)),
        (docs::DOCUMENT, docs::document(limits)),
        (docs::PAGE, get(docs::page)),
        ("/docs/", get(docs::page_with_slash)),
        ("/docs/{file}", get(docs::asset)),
        (console::PAGE, get(console::to_page)),
        ("/ui/", get(console::page)),
        ("/ui/{file}", get(console::file)),
        ("/ui/{folder}/{file}", get(console::file_in_folder)),
    ];
    routes.extend(probes::LIVE.map(|path| (path, get(probes::live))));
    routes.extend(probes::READY.map(|path| (path, get(probes::ready))));
    routes
}

/// The routes that need a key. `openapi` describes each of them.
fn resource_routes() -> Vec<(&'static str, MethodRouter<Service>)> {
    vec![
        (DEFINITIONS, get(definitions::list).post(definitions::create)),
        (DEFINITION, get(definitions::get).put(definitions::set_indexes).delete(definitions::delete)),
        (SCHEMA, get(schema::get).put(schema::put)),
        (UNIQUE, get(schema::get_unique).put(schema::put_unique)),
        (INDEXES, get(indexes::show)),
        (CONFIGS, get(configs::list).post(configs::create)),
        (CONFIG, get(configs::get).put(configs::put).patch(patch::patch).delete(configs::delete)),
        (CONFIG_HISTORY, get(history::of_config)),
        (DEFINITION_HISTORY, get(history::of_definition)),
        (ROLLBACK, post(history::rollback)),
        (across::PATH, get(across::list)),
        ("/api/v1/batch", post(batch::run)),
        (read::PATH, post(read::run)),
        (decision::WATCH, get(watch::open)),
        (decision::CHANGES, get(watch::poll)),
        (access_keys::KEYS, get(access_keys::list).post(access_keys::create)),
        (access_keys::KEY, get(access_keys::get).patch(access_keys::change).delete(access_keys::revoke)),
        (access_keys::ROTATE, post(access_keys::rotate)),
        (access_keys::DISABLE_ROOT, post(access_keys::disable_root)),
        (access_keys::WHOAMI, get(access_keys::whoami)),
        (audit::PATH, get(audit::show)),
        (metrics::PATH, get(metrics::show)),
        ("/api/v1/cluster", get(cluster::show)),
        ("/api/v1/cluster/init", post(cluster::init)),
        ("/api/v1/cluster/backup", get(cluster::backup)),
        ("/api/v1/cluster/leader", post(cluster::transfer_leadership)),
        ("/api/v1/cluster/members", post(cluster::add)),
        ("/api/v1/cluster/members/{id}", delete(cluster::remove)),
        ("/api/v1/cluster/members/{id}/promote", post(cluster::promote)),
        ("/api/v1/cluster/members/{id}/replace", post(cluster::replace)),
    ]
}

fn unknown_path() -> Ready<Problem> {
    ready(Problem::UnknownPath)
}

fn method_not_allowed() -> Ready<Problem> {
    ready(Problem::MethodNotAllowed)
}

/// The caller's id of the request if it is valid, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_valid = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(&REQUEST_ID).filter(is_valid).cloned().unwrap_or_else(|| {
        let mut text = Uuid::encode_buffer();
        let text = new_request_id().hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(text).expect("a UUID is visible ASCII")
    })
}

/// A new id that sorts by time. It names a request in the log and protects nothing, so its random part needs no system
/// call.
fn new_request_id() -> Uuid {
    let (seconds, nanos) = uuid::Timestamp::now(uuid::NoContext).to_unix();
    let millis = seconds.saturating_mul(1000).saturating_add(u64::from(nanos) / 1_000_000);
    let mut random = [0; 10];
    fastrand::fill(&mut random);
    Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

#[cfg(test)]
mod tests;
