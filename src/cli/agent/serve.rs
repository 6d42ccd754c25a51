//! HTTP on loopback: the configs in the form of the API, health and metrics.
//!
//! Every program on the machine may read here without an access key, but web pages must not (DNS rebinding): a request
//! with a `Host` other than `localhost` or a loopback address is rejected.
//!
//! **Invariant:** each response with configs has their age, and whether they are fresh.

use std::{borrow::Cow, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use concord_client::{Config, Error, Source};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};

use super::Agent;

/// Connections at once.
const CONNECTIONS_MAX: usize = 256;
/// Time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Configs of a page without `limit`, and at most.
const LIMIT: usize = 10;
const LIMIT_MAX: usize = 1000;

type LoopbackResponse = Response<Full<Bytes>>;

/// Serves until the agent stops.
pub(super) async fn run(agent: Arc<Agent>, listener: &TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Dropping it closes the open connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = agent.stopping.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("a connection can't be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let agent = agent.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(&agent, request.method(), request.uri(), request.headers());
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            // A client that disconnects is no error.
            drop(served);
            drop(place);
        });
    }
}

fn answer(agent: &Agent, method: &Method, uri: &http::Uri, headers: &HeaderMap) -> LoopbackResponse {
    if !is_local(headers) {
        return refused(
            StatusCode::MISDIRECTED_REQUEST,
            "the agent accepts requests for `localhost` and loopback addresses only",
        );
    }
    if method != Method::GET && method != Method::HEAD {
        let mut answer = refused(StatusCode::METHOD_NOT_ALLOWED, "the agent is read-only");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let decoded = |part: &str| percent_decode_str(part).decode_utf8().map(Cow::into_owned).ok();
    let parts: Option<Vec<String>> =
        uri.path().trim_end_matches('/').split('/').skip(1).map(decoded).collect();
    let parts = parts.unwrap_or_default();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["healthz"] => healthz(agent, uri.query()),
        ["metrics"] => {
            let text = agent.metrics.text(agent);
            with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
        }
        ["api", "v1", "config_definition", definition, "config"] => list(agent, definition, uri.query()),
        ["api", "v1", "config_definition", definition, "config", key] => one(agent, definition, key, headers),
        _ => refused(StatusCode::NOT_FOUND, "the agent does not have this path"),
    }
}

/// Whether the request is for `localhost` or a loopback address.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// 200 while the agent has configs and every file is up to date, otherwise 503; with `?fresh=true` also 503 while they
/// are stale.
fn healthz(agent: &Agent, query: Option<&str>) -> LoopbackResponse {
    let status = agent.cache.status();
    let wrong = agent.metrics.wrong();
    let is_fresh = status.source.as_ref().is_some_and(Source::is_fresh);
    let needs_fresh = query.is_some_and(|query| {
        form_urlencoded::parse(query.as_bytes()).any(|(name, value)| name == "fresh" && value == "true")
    });
    let is_good = status.source.is_some() && wrong.is_empty() && (is_fresh || !needs_fresh);
    let body = json!({
        "ok": is_good, "fresh": is_fresh, "configs": status.configs,
        "age_s": status.source.as_ref().map(|source| source.age.as_secs()),
        "source": status.source.as_ref().map(|source| source.origin.name()),
        "problem": status.problem, "file_problem": status.file_problem, "files_failing": wrong,
    });
    with_type(if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, body.to_string())
}

fn one(agent: &Agent, definition: &str, key: &str, headers: &HeaderMap) -> LoopbackResponse {
    let read = match agent.cache.get(definition, key) {
        Ok(Some(read)) => read,
        Ok(None) => {
            let mut answer =
                refused(StatusCode::NOT_FOUND, &format!("config `{definition}/{key}` does not exist"));
            if let Some(source) = agent.cache.source() {
                describe(&mut answer, &source);
            }
            return answer;
        }
        Err(error) => return not_held(&error),
    };
    let etag = format!("\"{}\"", read.config.revision);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut answer = if known.is_some_and(|known| known.split(',').any(|one| one.trim() == etag)) {
        let mut answer = Response::new(Full::default());
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
    } else {
        success("config found", &record(&read.config))
    };
    set(&mut answer, header::ETAG, &etag);
    if !read.config.redacted.is_empty() {
        set(&mut answer, HeaderName::from_static("x-concord-redacted"), &read.config.redacted.join(", "));
    }
    describe(&mut answer, &read.source);
    answer
}

/// The configs of a definition in the order of their keys.
fn list(agent: &Agent, definition: &str, query: Option<&str>) -> LoopbackResponse {
    let (mut page, mut limit) = (1, LIMIT);
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let number = value.parse::<usize>().ok().filter(|number| *number > 0);
        match (&*name, number) {
            ("page", Some(number)) => page = number,
            ("limit", Some(number)) if number <= LIMIT_MAX => limit = number,
            ("page" | "limit", _) => {
                return refused(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    &format!("`{name}` must be a number from 1 to {LIMIT_MAX}"),
                );
            }
            _ => {
                return refused(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    &format!("the agent does not support the parameter `{name}`: send the request to a node"),
                );
            }
        }
    }
    let is_held = |one: &concord_client::Selection| {
        one.config.is_none()
            && match one.definition.strip_suffix('*') {
                Some(prefix) => definition.starts_with(prefix),
                None => one.definition == definition,
            }
    };
    if !agent.settings.configs.iter().any(is_held) {
        return refused(
            StatusCode::NOT_FOUND,
            &format!("the agent does not keep all configs of `{definition}`"),
        );
    }
    let (configs, source) = match agent.cache.list(definition) {
        Ok(found) => found,
        Err(error) => return not_held(&error),
    };
    let from = (page - 1).saturating_mul(limit);
    let results: Vec<Value> = configs.iter().skip(from).take(limit).map(|config| record(config)).collect();
    let meta = json!({"page": page, "limit": limit, "total": configs.len()});
    let mut answer = success("configs found", &json!({"results": results, "meta": meta}));
    describe(&mut answer, &source);
    answer
}

fn record(config: &Config) -> Value {
    json!({"config_key": config.key, "data": config.data, "created_at": config.created_at, "modified_at": config.modified_at})
}

fn not_held(error: &Error) -> LoopbackResponse {
    match error {
        Error::Usage(text) => refused(StatusCode::NOT_FOUND, text),
        Error::Refused(_) | Error::Unavailable(_) | Error::Unknown(_) | Error::Protocol(_) => {
            refused(StatusCode::SERVICE_UNAVAILABLE, &format!("the agent has no configs yet: {error}"))
        }
    }
}

/// Adds headers with the age and the source of a response.
fn describe(answer: &mut LoopbackResponse, source: &Source) {
    let name = HeaderName::from_static;
    set(answer, header::AGE, &source.age.as_secs().to_string());
    set(answer, name("x-concord-source"), source.origin.name());
    set(answer, name("x-concord-state"), if source.is_fresh() { "fresh" } else { "stale" });
    set(answer, name("x-concord-revision"), &source.revision.to_string());
    if let Some(node) = &source.node {
        set(answer, name("x-concord-node"), node);
    }
    if let Some(since) = source.stale_since().and_then(|since| jiff::Timestamp::try_from(since).ok()) {
        set(answer, name("x-concord-stale-since"), &since.to_string());
    }
}

fn set(answer: &mut LoopbackResponse, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

const JSON: &str = "application/json";

fn success(message: &str, data: &Value) -> LoopbackResponse {
    let body = json!({"status": "SUCCESS", "message": message, "data": data});
    with_type(StatusCode::OK, JSON, body.to_string())
}

fn refused(status: StatusCode, msg: &str) -> LoopbackResponse {
    let kind = match status {
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
        _ => "validation_error",
    };
    let body = json!({"status": "FAILURE", "errors": [{"type": kind, "msg": msg}]});
    with_type(status, JSON, body.to_string())
}

fn with_type(status: StatusCode, content_type: &'static str, body: String) -> LoopbackResponse {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered_to() {
        let host = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            is_local(&headers)
        };
        for good in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.9.9.9", "[::1]:80"] {
            assert!(host(good), "{good}");
        }
        for bad in ["example.org", "localhost.example.org", "10.0.0.1:80", "127.0.0.1.example.org", ""] {
            assert!(!host(bad), "{bad}");
        }
        assert!(!is_local(&HeaderMap::new()));
    }
}
