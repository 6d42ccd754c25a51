//! CORS: which pages of other origins may use the API from a browser. By default none; the settings name them.
//!
//! A page sends its key itself, in `Authorization`; a browser never adds one. So no response allows *credentials*
//! (cookies and the like), and with `*` in the settings a page still has only the permissions of its key.
//!
//! Before such a request a browser sends a preflight (`OPTIONS`), without the key. The response is the same for every
//! path below [`API`], whether the path exists or not, and only for allowed origins.
//!
//! **Invariants:** a response to another origin has no header of this file. The response to a preflight depends on no
//! state. The console has the same origin and needs none of this.

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::endpoints::DOCUMENT;

/// The paths that other origins may use: the API, and evaluations of flags by OFREP.
const API: [&str; 2] = ["/api/", "/ofrep/"];

/// What a page may send.
const REQUEST_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, content-encoding, if-match, if-none-match, idempotency-key, last-event-id, \
     x-change-reason, x-concord-labels, x-concord-reader, x-request-id",
);
/// What a page may read.
const ANSWER_HEADERS: HeaderValue = HeaderValue::from_static(
    "accept-encoding, accept-patch, allow, etag, last-modified, link, location, ratelimit, ratelimit-policy, retry-after, \
     warning, x-concord-breaking-configs, x-concord-cluster, x-concord-deletion, x-concord-dry-run, \
     x-concord-index-building, x-concord-next-from, x-concord-node, x-concord-redacted, x-concord-revision, \
     x-concord-variant, x-concord-write-revision, x-request-id",
);
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
/// Seconds for which a browser remembers the response to a preflight.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// The origins whose pages may use the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CorsOrigins {
    /// All.
    Any,
    /// These, as a browser sends them.
    These(Vec<String>),
}

impl CorsOrigins {
    /// Those of the settings; `None` for no other than the interface's own.
    pub(super) fn of(origins: Vec<String>) -> Option<Self> {
        match origins.as_slice() {
            [] => None,
            [one] if one == "*" => Some(Self::Any),
            _ => Some(Self::These(origins)),
        }
    }
}

/// The value of `Access-Control-Allow-Origin` for a request from a page that may use the interface.
pub(super) fn allowed(origins: &CorsOrigins, path: &str, headers: &HeaderMap) -> Option<HeaderValue> {
    if !(API.iter().any(|api| path.starts_with(api)) || path == DOCUMENT) {
        return None;
    }
    let mut values = headers.get_all(header::ORIGIN).iter();
    let origin = values.next().filter(|_| values.next().is_none())?;
    match origins {
        CorsOrigins::Any => Some(HeaderValue::from_static("*")),
        CorsOrigins::These(these) => {
            these.iter().any(|one| one.as_bytes() == origin.as_bytes()).then(|| origin.clone())
        }
    }
}

/// Whether a request is a preflight.
pub(super) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to a preflight.
pub(super) fn preflight() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    response
}

/// Lets the page read a response.
pub(super) fn open(response: &mut Response, origin: HeaderValue) {
    const VARIES: HeaderName = header::VARY;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, ANSWER_HEADERS);
    headers.append(VARIES, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(origin: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_str(origin).unwrap())])
    }

    #[test]
    fn only_named_origins_may_use_only_the_interface() {
        let these = CorsOrigins::These(vec!["https://a.example".into(), "http://localhost:3000".into()]);
        let is_allowed =
            |origins: &CorsOrigins, path: &str, origin: &str| allowed(origins, path, &from(origin)).is_some();
        assert!(is_allowed(&these, "/api/v1/batch", "https://a.example"));
        assert!(is_allowed(&these, "/openapi.json", "http://localhost:3000"));
        assert!(is_allowed(&these, "/ofrep/v1/evaluate/flags", "https://a.example"));
        for origin in
            ["https://b.example", "http://a.example", "https://a.example:444", "null", "https://a.example.b"]
        {
            assert!(!is_allowed(&these, "/api/v1/batch", origin), "{origin}");
        }
        for path in ["/ui/", "/docs", "/livez", "/", "/api"] {
            assert!(!is_allowed(&these, path, "https://a.example"), "{path}");
            assert!(!is_allowed(&CorsOrigins::Any, path, "https://a.example"), "{path}");
        }
        assert_eq!(allowed(&CorsOrigins::Any, "/api/", &from("https://b.example")).unwrap(), "*");
        let mut twice = from("https://a.example");
        twice.append(header::ORIGIN, HeaderValue::from_static("https://a.example"));
        assert!(allowed(&these, "/api/", &twice).is_none());
        assert!(allowed(&these, "/api/", &HeaderMap::new()).is_none());
    }
}
