//! `/metrics`: the request times, which are counted here, and the measurements of the service.
//!
//! A request is counted when its response begins, because a watch or a backup may then run for hours. A request whose
//! client disconnects before that is not counted.
//!
//! **Invariants**
//! 1. Counting a request takes no lock. It allocates only if a route, method and status occur together for the first
//!    time.
//! 2. Labels are the path templates of endpoints, the methods of the API and the statuses of its responses. So clients
//!    cannot increase the number of samples beyond that.

use std::{
    sync::{Arc, OnceLock},
    thread::available_parallelism,
    time::Instant,
};

use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::Incoming;

use super::{
    Api,
    endpoints::{Answering, METRICS, Matched, TABLE},
    extract::AuthenticatedCall,
    reply::{Problem, Reply},
    server::{Answerer, boxed},
};
use concord_service::{
    Service,
    metrics::{Histogram, Labels, MEDIA_TYPE, MetricFamily, render},
};

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
    /// For paths that are none, and for each route by its number, one after another, for each method.
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
    pub(super) fn new() -> Self {
        let times = (0..=TABLE.routes().len()).flat_map(|_| METHODS).map(|_| OnceLock::new()).collect();
        Self { times, parts: available_parallelism().map_or(2, usize::from).min(PARTS_MAX) }
    }

    /// Begins to measure a request.
    pub(super) fn begin(&self, method: &Method, matched: &Matched) -> Begun {
        let at = Instant::now();
        let route = matched.route.map_or(0, |route| route.number + 1);
        Begun { at, place: route * METHODS.len() + method_place(method) }
    }

    /// The method and the template of a path, as the labels have them.
    pub(super) fn names(&self, method: &Method, matched: &Matched) -> (&'static str, &'static str) {
        (METHODS[method_place(method)], matched.template().unwrap_or_default())
    }

    /// Counts the request when its response begins.
    pub(super) fn end(&self, begun: Begun, status: StatusCode) {
        let known = STATUSES.iter().position(|known| *known == status.as_u16());
        let of_status =
            self.times[begun.place].get_or_init(|| Box::new([const { OnceLock::new() }; STATUSES.len()]));
        let times =
            of_status[known.unwrap_or(UNKNOWN_STATUS)].get_or_init(|| Box::new(Histogram::new(self.parts)));
        times.observe(begun.at.elapsed());
    }

    fn family(&self) -> MetricFamily {
        let mut samples = Vec::new();
        let templates = std::iter::once("").chain(TABLE.routes().iter().map(|route| route.template));
        let labels = templates.flat_map(|template| METHODS.map(|method| (template, method)));
        for ((template, method), of_status) in labels.zip(self.times.iter()) {
            let Some(of_status) = of_status.get() else { continue };
            for (status, times) in STATUSES.iter().zip(of_status.iter()) {
                let Some(times) = times.get() else { continue };
                let labels: Labels = vec![
                    ("http_request_method", method.to_owned()),
                    ("http_route", template.to_owned()),
                    ("http_response_status_code", status.to_string()),
                ];
                samples.push((labels, times.read()));
            }
        }
        MetricFamily::histograms(
            "http_server_request_duration_seconds",
            "Times from a request's head until its answer begins.",
            samples,
        )
    }
}

/// The place of a method among [`METHODS`].
fn method_place(method: &Method) -> usize {
    let name = method.as_str();
    METHODS.iter().position(|known| *known == name).unwrap_or(METHODS.len() - 1)
}

fn page(times: &RequestTimes, mut families: Vec<MetricFamily>) -> Reply {
    families.insert(0, times.family());
    Reply::asset(MEDIA_TYPE, Bytes::from(render(families)))
}

/// Shows the page to whom may see the cluster.
pub(super) fn show(api: &Api, call: AuthenticatedCall) -> Answering<'_> {
    boxed(|| async move {
        let families = api.service.metrics(&call.principal).await.map_err(Problem::from);
        families.map(|families| page(&api.times, families)).into_response()
    })
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
        if path != METRICS {
            return (StatusCode::NOT_FOUND, "metrics are at /metrics\n").into_response();
        }
        if method != Method::GET && method != Method::HEAD {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        }
        page(&self.times, self.service.open_metrics()).into_response()
    }
}

impl Answerer for MetricsListener {
    type Found = ();

    fn find(_request: &Request<Incoming>) {}

    async fn answer(self: Arc<Self>, request: Request<Incoming>, (): ()) -> Response {
        self.respond(request.method(), request.uri().path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_makes_more_samples_than_the_tables_allow() {
        let times = RequestTimes::new();
        let begin = |method: &Method, path: &str| times.begin(method, &TABLE.find(method, path));
        for one in 0..5000 {
            let method = Method::from_bytes(format!("M{one}").as_bytes()).unwrap();
            times.end(begin(&method, &format!("/{one}/x{one}")), StatusCode::UNAUTHORIZED);
            let path = format!("/api/v1/config_definition/{one}/config/{one}");
            times.end(begin(&Method::GET, &path), StatusCode::from_u16(600 + one % 300).unwrap());
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
