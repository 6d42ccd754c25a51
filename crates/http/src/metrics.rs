//! `/metrics`: the times of requests, which are counted here, and what the service measures.
//!
//! A request is counted when its answer begins: a watch or a backup may go on for hours afterwards. One whose caller
//! leaves before that is not counted.
//!
//! **Invariants**
//! 1. Counting a request takes no lock and allocates only where a route, method and status meet for the first time.
//! 2. Labels are the templates of the route table, the methods that the interface knows and the statuses that it
//!    answers. Whatever callers send, there are no more samples than these allow.

use std::{
    sync::{Arc, OnceLock},
    thread::available_parallelism,
    time::Instant,
};

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::Incoming;

use super::{
    CONFIG,
    decision::method_name,
    extract::ReadRequest,
    is_config, public_routes,
    reply::{Problem, Reply},
    resource_routes,
    server::Answerer,
};
use concord_service::{
    Service,
    metrics::{Family, Histogram, Labels, MEDIA_TYPE, render},
};

/// The path of the page.
pub(super) const PATH: &str = "/metrics";

/// Methods as the label has them; what is none of these is the last one, as OpenTelemetry has it.
const METHODS: [&str; 9] = ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "_OTHER"];

/// Statuses that are answered. There is none other; if one came, it would count as 500.
const STATUSES: [u16; 31] = [
    200, 201, 500, 204, 206, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 406, 409, 410, 412, 413,
    415, 422, 428, 429, 431, 501, 503, 504, 505, 507,
];
const UNKNOWN_STATUS: usize = 2;

/// Most parts of a histogram: more processors share them.
const PARTS_MAX: usize = 16;

type OfStatus = [OnceLock<Box<Histogram>>; STATUSES.len()];

/// The times of requests by route, method and status.
#[derive(Debug)]
pub(super) struct RequestTimes {
    /// The templates of the route table. The first one stands for paths that are none.
    routes: Vec<&'static str>,
    /// The place of the template of one config among them.
    config: usize,
    /// For each route, one after another, for each method.
    times: Box<[OnceLock<Box<OfStatus>>]>,
    parts: usize,
}

/// A request that is being answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    at: Instant,
    place: usize,
}

impl RequestTimes {
    pub(super) fn new(service: &Service) -> Self {
        let mut routes = vec![""];
        let all = resource_routes().into_iter().chain(public_routes(service.limits()));
        for path in all.map(|(path, _)| without_slash(path)) {
            if !routes.contains(&path) {
                routes.push(path);
            }
        }
        let config = routes.iter().position(|route| *route == CONFIG).expect("it is in the route table");
        let times = (0..routes.len() * METHODS.len()).map(|_| OnceLock::new()).collect();
        Self { routes, config, times, parts: available_parallelism().map_or(2, usize::from).min(PARTS_MAX) }
    }

    /// Begins to measure a request.
    pub(super) fn begin(&self, method: &Method, path: &str) -> Begun {
        let at = Instant::now();
        Begun { at, place: self.place(method, path) }
    }

    /// The method and the template of a path, as the labels have them.
    pub(super) fn names(&self, method: &Method, path: &str) -> (&'static str, &'static str) {
        let place = self.place(method, path);
        (METHODS[place % METHODS.len()], self.routes[place / METHODS.len()])
    }

    fn place(&self, method: &Method, path: &str) -> usize {
        let route = if is_config(path) { self.config } else { self.find(path) };
        let name = method_name(method);
        let method = METHODS.iter().position(|known| *known == name).unwrap_or(METHODS.len() - 1);
        route * METHODS.len() + method
    }

    /// Counts the request when its answer begins.
    pub(super) fn end(&self, begun: Begun, status: StatusCode) {
        let known = STATUSES.iter().position(|known| *known == status.as_u16());
        let of_status =
            self.times[begun.place].get_or_init(|| Box::new([const { OnceLock::new() }; STATUSES.len()]));
        let times =
            of_status[known.unwrap_or(UNKNOWN_STATUS)].get_or_init(|| Box::new(Histogram::new(self.parts)));
        times.observe(begun.at.elapsed());
    }

    /// The route of a path; 0 when it is none.
    fn find(&self, path: &str) -> usize {
        let path = without_slash(path);
        self.routes.iter().position(|template| matches(template, path)).unwrap_or(0)
    }

    fn family(&self) -> Family {
        let mut samples = Vec::new();
        for (place, of_status) in self.times.iter().enumerate() {
            let Some(of_status) = of_status.get() else { continue };
            for (status, times) in STATUSES.iter().zip(of_status.iter()) {
                let Some(times) = times.get() else { continue };
                let labels: Labels = vec![
                    ("http_request_method", METHODS[place % METHODS.len()].to_owned()),
                    ("http_route", self.routes[place / METHODS.len()].to_owned()),
                    ("http_response_status_code", status.to_string()),
                ];
                samples.push((labels, times.read()));
            }
        }
        Family::histograms(
            "http_server_request_duration_seconds",
            "Times from a request's head until its answer begins.",
            samples,
        )
    }
}

fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path)
}

/// Whether a path without a slash at its end is of a template.
fn matches(template: &str, path: &str) -> bool {
    let (mut template, mut path) = (template.split('/'), path.split('/'));
    loop {
        match (template.next(), path.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one == other || (one.starts_with('{') && !other.is_empty()) => {}
            _ => return false,
        }
    }
}

fn page(times: &RequestTimes, mut families: Vec<Family>) -> Reply {
    families.insert(0, times.family());
    Reply::asset(MEDIA_TYPE, Bytes::from(render(families)))
}

/// Shows the page to whom may see the cluster.
pub(super) async fn show(
    State(service): State<Service>,
    Extension(times): Extension<Arc<RequestTimes>>,
    request: ReadRequest,
) -> Result<Reply, Problem> {
    Ok(page(&times, service.metrics(&request.principal)?))
}

/// What answers the requests of the listener of metrics. It asks for no key: its address decides who reaches it.
#[derive(Debug, Clone)]
pub struct MetricsListener {
    service: Service,
    times: Arc<RequestTimes>,
}

impl MetricsListener {
    pub(super) fn new(service: Service, times: Arc<RequestTimes>) -> Self {
        Self { service, times }
    }

    fn respond(&self, method: &Method, path: &str) -> Response {
        if path != PATH {
            return (StatusCode::NOT_FOUND, "metrics are at /metrics\n").into_response();
        }
        if method != Method::GET && method != Method::HEAD {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        }
        page(&self.times, self.service.open_metrics()).into_response()
    }
}

impl Answerer for MetricsListener {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response {
        self.respond(request.method(), request.uri().path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::limits::Limits;
    use concord_service::testing::service;

    fn times() -> RequestTimes {
        let directory = tempfile::tempdir().unwrap();
        RequestTimes::new(&service(directory.path(), Limits::default()))
    }

    #[tokio::test]
    async fn a_path_has_the_template_of_the_route_table() {
        let times = times();
        let route = |path: &str| times.routes[times.begin(&Method::GET, path).place / METHODS.len()];
        assert_eq!(route("/api/v1/config_definition/a/config/b"), CONFIG);
        assert_eq!(route("/api/v1/config_definition/a/config/b/"), CONFIG);
        assert_eq!(route("/api/v1/config_definition/"), "/api/v1/config_definition");
        assert_eq!(route("/api/v1/cluster/members/7/promote"), "/api/v1/cluster/members/{id}/promote");
        assert_eq!(route("/docs/x.css"), "/docs/{file}");
        assert_eq!(route("/metrics"), PATH);
        assert_eq!(route("/"), "/");
        assert_eq!(route("//"), "/");
        assert_eq!(route("/no/such/path"), "");
        assert_eq!(route(""), "");
    }

    #[tokio::test]
    async fn no_caller_makes_more_samples_than_the_tables_allow() {
        let times = times();
        for one in 0..5000 {
            let method = Method::from_bytes(format!("M{one}").as_bytes()).unwrap();
            times.end(times.begin(&method, &format!("/{one}/x{one}")), StatusCode::UNAUTHORIZED);
            let path = format!("/api/v1/config_definition/{one}/config/{one}");
            times.end(times.begin(&Method::GET, &path), StatusCode::from_u16(600 + one % 300).unwrap());
        }
        let page = render(vec![times.family()]);
        let count = |line: &str| page.lines().filter(|other| other.starts_with(line)).count();
        assert_eq!(count("http_server_request_duration_seconds_count"), 2, "{page}");
        let other = "http_server_request_duration_seconds_count{http_request_method=\"_OTHER\",http_route=\"\",http_response_status_code=\"401\"} 5000";
        assert_eq!(count(other), 1, "{page}");
    }

    #[test]
    fn an_unknown_status_counts_as_a_failure() {
        assert_eq!(STATUSES[UNKNOWN_STATUS], 500);
    }
}
