//! How a caller says it: the route table and the layers around it.
//!
//! | file | what it does |
//! |---|---|
//! | `server` | the listener: connections, their limits, a graceful end |
//! | `access` | the layer that asks for a key, over everything |
//! | `extract`, `condition`, `cursor` | keys, query, headers and conditions of a request, typed |
//! | `intake` | bodies, bounded, and the framework-level refusals of their shape |
//! | `definitions`, `schema`, `indexes`, `configs`, `patch`, `batch`, `history`, `cluster`, `probes` | the handlers |
//! | `watch` | the changes as server-sent events |
//! | `openapi`, `docs` | the interface as a document, and the page that shows it |
//! | `json`, `reply` | answers; `reply` alone knows status codes |
//! | `peer` | the other listener's routes: calls between nodes |
//!
//! **Invariant:** every answer passes `attend`, so that the three standard headers are on all of them, on those
//! of unknown routes and of panics too; and every request passes `access::admit` before anything is said of it.

mod access;
mod batch;
mod body;
mod cluster;
mod condition;
mod configs;
mod cursor;
mod definitions;
mod docs;
mod extract;
mod history;
mod indexes;
mod json;
pub mod openapi;
mod patch;
pub mod peer;
mod probes;
mod reply;
mod schema;
pub mod server;
mod watch;

use std::{
    future::{Ready, ready},
    panic::AssertUnwindSafe,
};

/// The routes of a listener, for the room that starts them.
pub use axum::Router;
use axum::{
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, delete, get, post},
};
use futures::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use tracing::error;
use uuid::{Builder, Uuid};

use crate::{model::limits::Limits, service::Service};
use reply::{NODE, Problem, REVISION, Unshown};
pub use server::serve;

/// The header that names a request, from caller to log.
const REQUEST_ID: &str = "x-request-id";
/// Longest request id that is echoed: trace contexts have 55 characters, joined ids of proxies about 100.
const REQUEST_ID_BYTES_MAX: usize = 128;

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

/// The router of the callers' listener.
pub fn router(service: Service) -> Router {
    let mut routes = Router::new();
    for (path, methods) in open(service.limits()) {
        routes = routes.route(path, methods);
    }
    for (path, methods) in resources() {
        // Both forms are served: a redirect would make some clients repeat a POST as a GET.
        routes = routes.route(path, methods.clone()).route(&format!("{path}/"), methods);
    }
    let routes = routes.fallback(no_route).method_not_allowed_fallback(no_method).with_state(service.clone());
    // The layer lies around the whole router and not around each route as `Router::layer` would put it: axum adds
    // `Allow` outside of those, which would tell of a path before its caller's credential is known.
    Router::new().fallback_service(routes).layer(from_fn_with_state(service, attend))
}

/// What needs no key.
fn open(limits: &Limits) -> Vec<(&'static str, MethodRouter<Service>)> {
    let mut routes = vec![
        ("/", get(probes::root)),
        (docs::DOCUMENT, docs::document(limits)),
        (docs::PAGE, get(docs::page)),
        ("/docs/", get(docs::page_in_place)),
        ("/docs/{file}", get(docs::asset)),
    ];
    routes.extend(probes::LIVE.map(|path| (path, get(probes::live))));
    routes.extend(probes::READY.map(|path| (path, get(probes::ready))));
    routes
}

/// What needs a key. Each entry stands in `openapi` too.
fn resources() -> Vec<(&'static str, MethodRouter<Service>)> {
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
        ("/api/v1/batch", post(batch::run)),
        ("/api/v1/watch", get(watch::open)),
        ("/api/v1/cluster", get(cluster::show)),
        ("/api/v1/cluster/init", post(cluster::init)),
        ("/api/v1/cluster/backup", get(cluster::backup)),
        ("/api/v1/cluster/leader", post(cluster::lead)),
        ("/api/v1/cluster/members", post(cluster::add)),
        ("/api/v1/cluster/members/{id}", delete(cluster::remove)),
        ("/api/v1/cluster/members/{id}/promote", post(cluster::promote)),
        ("/api/v1/cluster/members/{id}/replace", post(cluster::replace)),
    ]
}

fn no_route() -> Ready<Problem> {
    ready(Problem::NoRoute)
}

fn no_method() -> Ready<Problem> {
    ready(Problem::NoMethod)
}

/// Lets a request in, sees that it is answered whatever happens, and puts the standard headers on the answer and the
/// text of a violation into the log instead. One layer, because each costs a request two allocations.
async fn attend(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let mut response = match access::admit(&service, &mut request) {
        Ok(()) => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(reply::panicked),
        Err(problem) => problem.into_response(),
    };
    if let Some(Unshown(text)) = response.extensions_mut().remove() {
        error!(request_id = ?id, "a request failed: {text}");
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(NODE, service.node_id().into());
    headers.entry(REVISION).or_insert_with(|| service.revision().into());
    response
}

/// The caller's id for the request when it is one, else a new one that sorts by time.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let usable = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(usable).cloned().unwrap_or_else(|| {
        let mut text = Uuid::encode_buffer();
        let text = new_request_id().hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(text).expect("a UUID is visible ASCII")
    })
}

/// An id that sorts by time. It names a request in the log and guards nothing, so its random part needs no system call.
fn new_request_id() -> Uuid {
    let (seconds, nanos) = uuid::Timestamp::now(uuid::NoContext).to_unix();
    let millis = seconds.saturating_mul(1000).saturating_add(u64::from(nanos) / 1_000_000);
    let mut random = [0; 10];
    fastrand::fill(&mut random);
    Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visible_request_id_is_echoed_and_any_other_is_replaced() {
        let echo = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap());
            request_id(&headers).to_str().unwrap() == id
        };
        assert!(echo("a") && echo("trace/1;x=\"y\"") && echo(&"x".repeat(128)));
        assert!(!echo("") && !echo("a b") && !echo(&"x".repeat(129)));
        let made = request_id(&HeaderMap::new());
        assert_eq!(Uuid::parse_str(made.to_str().unwrap()).unwrap().get_version_num(), 7);
    }
}
