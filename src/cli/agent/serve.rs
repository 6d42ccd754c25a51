//! HTTP on loopback: the configs in the form of the API, health and metrics.
//!
//! Every program on the machine may read here without an access key, but web pages must not (DNS rebinding): a request
//! with a `Host` other than `localhost` or a loopback address is rejected.
//!
//! **Invariants:** each response with configs has their age, and whether they are fresh. A parameter without
//! effect is rejected.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use concord_client::{Config, Error, Source, segment};
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

const REDACTED: HeaderName = HeaderName::from_static("x-concord-redacted");
const VARIANT: HeaderName = HeaderName::from_static("x-concord-variant");
/// Time limit for asking a node whether a definition exists.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

type LoopbackResponse = Response<Full<Bytes>>;
/// A response, or the rejection of the request.
type Answered = Result<LoopbackResponse, Box<LoopbackResponse>>;

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
                let agent = agent.clone();
                async move {
                    Ok::<_, Infallible>(
                        answer(&agent, request.method(), request.uri(), request.headers()).await,
                    )
                }
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

async fn answer(agent: &Agent, method: &Method, uri: &http::Uri, headers: &HeaderMap) -> LoopbackResponse {
    if !is_local(headers) {
        return *refused(
            StatusCode::MISDIRECTED_REQUEST,
            "request_invalid",
            "the agent accepts requests for `localhost` and loopback addresses only",
        );
    }
    if method != Method::GET && method != Method::HEAD {
        let text = "the agent is read-only: send writes to a node";
        let mut answer = *refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text);
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let decoded = |part: &str| percent_decode_str(part).decode_utf8().map(Cow::into_owned).ok();
    let parts: Option<Vec<String>> =
        uri.path().trim_end_matches('/').split('/').skip(1).map(decoded).collect();
    let parts = parts.unwrap_or_default();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let query: Vec<_> = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect();
    let answered = match parts.as_slice() {
        ["healthz"] => healthz(agent, &query),
        ["metrics"] => {
            let text = agent.metrics.text(agent);
            Ok(with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
        }
        ["api", "v1", "config_definition", definition, "config"] => list(agent, definition, &query).await,
        ["api", "v1", "config_definition", definition, "config", key] => {
            one(agent, definition, key, headers, &query)
        }
        _ => Err(refused(StatusCode::NOT_FOUND, "path_not_found", "the agent does not have this path")),
    };
    answered.unwrap_or_else(|refusal| *refusal)
}

/// The parameters of a request: their names and values.
type Query<'a> = [(Cow<'a, str>, Cow<'a, str>)];

/// The rejection of a parameter: a parameter without effect is never ignored.
fn unsupported(name: &str) -> Box<LoopbackResponse> {
    let text = format!("the agent does not support the parameter `{name}`: ask a node");
    refused(StatusCode::UNPROCESSABLE_ENTITY, "query_invalid", &text)
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
fn healthz(agent: &Agent, query: &Query<'_>) -> Answered {
    let mut needs_fresh = false;
    for (name, value) in query {
        needs_fresh = match (&**name, &**value) {
            ("fresh", "true") => true,
            ("fresh", "false") => false,
            ("fresh", _) => {
                let text = "`fresh` must be true or false";
                return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "query_invalid", text));
            }
            (name, _) => return Err(unsupported(name)),
        };
    }
    let status = agent.cache.status();
    let wrong = agent.metrics.wrong();
    let is_fresh = status.source.as_ref().is_some_and(Source::is_fresh);
    let is_good = status.source.is_some() && wrong.is_empty() && (is_fresh || !needs_fresh);
    let body = json!({
        "ok": is_good, "fresh": is_fresh, "configs": status.configs,
        "age_s": status.source.as_ref().map(|source| source.age.as_secs()),
        "source": status.source.as_ref().map(|source| source.origin.name()),
        "candidates": candidates(agent), "problem": status.problem, "file_problem": status.file_problem, "files_failing": wrong,
    });
    let code = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(with_type(code, JSON, body.to_string()))
}

/// The configs that are candidates of rollouts, with their change requests.
fn candidates(agent: &Agent) -> Vec<Value> {
    let configs = agent.cache.all().map(|(configs, _)| configs).unwrap_or_default();
    let shown = |config: &Arc<Config>| {
        let change = config.variant.as_deref()?;
        Some(json!({
            "config_definition_key": config.definition, "config_key": config.key, "change_id": change,
        }))
    };
    configs.iter().filter_map(shown).collect()
}

fn one(agent: &Agent, definition: &str, key: &str, headers: &HeaderMap, query: &Query<'_>) -> Answered {
    if let Some((name, _)) = query.first() {
        return Err(unsupported(name));
    }
    let read = match agent.cache.get(definition, key) {
        Ok(Some(read)) => read,
        Ok(None) => {
            let text = format!("config `{definition}/{key}` does not exist");
            let mut answer = refused(StatusCode::NOT_FOUND, "config_not_found", &text);
            if let Some(source) = agent.cache.source() {
                describe(&mut answer, &source);
            }
            return Err(answer);
        }
        Err(error) => return Err(not_held(&error)),
    };
    let variant = read.config.variant.as_deref();
    let etag = match variant {
        Some(change) => format!("\"{change}\""),
        None => format!("\"{}\"", read.config.revision),
    };
    let mut answer = if is_known(headers, &etag) {
        let mut answer = Response::new(Full::default());
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
    } else {
        success("config found", &record(&read.config))
    };
    set(&mut answer, header::ETAG, &etag);
    if let Some(change) = variant {
        set(&mut answer, VARIANT, &format!("candidate; change={change}"));
    }
    if !read.config.redacted.is_empty() {
        set(&mut answer, REDACTED, &read.config.redacted.join(", "));
    }
    describe(&mut answer, &read.source);
    Ok(answer)
}

/// Whether the client has the version with this tag: `If-None-Match` compares weakly, and `*` is any version.
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// The configs of a definition in the order of their keys.
async fn list(agent: &Agent, definition: &str, query: &Query<'_>) -> Answered {
    let (mut page, mut limit) = (1, LIMIT);
    for (name, value) in query {
        let number = value.parse::<usize>().ok().filter(|number| *number > 0);
        match (&**name, number) {
            ("page", Some(number)) => page = number,
            ("limit", Some(number)) if number <= LIMIT_MAX => limit = number,
            ("page", None) => {
                let text = "`page` must be a number from 1";
                return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "query_invalid", text));
            }
            ("limit", _) => {
                let text = format!("`limit` must be a number from 1 to {LIMIT_MAX}");
                return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "query_invalid", &text));
            }
            (name, _) => return Err(unsupported(name)),
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
        let text = format!("the agent does not keep all configs of `{definition}`");
        return Err(refused(StatusCode::NOT_FOUND, "definition_not_found", &text));
    }
    let (configs, source) = agent.cache.list(definition).map_err(|error| not_held(&error))?;
    // The copy has configs. It does not tell a definition without configs from one that is deleted.
    if configs.is_empty() && agent.absent.is_absent(agent, &source, definition).await {
        let text = format!("definition `{definition}` does not exist");
        let mut answer = refused(StatusCode::NOT_FOUND, "definition_not_found", &text);
        describe(&mut answer, &source);
        return Err(answer);
    }
    let from = (page - 1).saturating_mul(limit);
    let shown: Vec<_> = configs.iter().skip(from).take(limit).collect();
    let results: Vec<Value> = shown.iter().map(|config| record(config)).collect();
    let meta = json!({"page": page, "limit": limit, "total": configs.len()});
    let mut answer = success("configs found", &json!({"results": results, "meta": meta}));
    let redacted: BTreeSet<&str> =
        shown.iter().flat_map(|config| &config.redacted).map(String::as_str).collect();
    if !redacted.is_empty() {
        set(&mut answer, REDACTED, &redacted.into_iter().collect::<Vec<_>>().join(", "));
    }
    describe(&mut answer, &source);
    Ok(answer)
}

/// The definitions without configs that a node has said not to exist.
#[derive(Debug, Default)]
pub(super) struct AbsentDefinitions(Mutex<BTreeSet<String>>);

impl AbsentDefinitions {
    /// Asks a node while the copy is fresh. If none answers, what the last answer said.
    async fn is_absent(&self, agent: &Agent, source: &Source, definition: &str) -> bool {
        let answer = if source.is_fresh() {
            let path = format!("/api/v1/config_definition/{}", segment(definition));
            let asked = concord_client::Request::get(path).timeout(ASK_TIMEOUT);
            Some(agent.client.send(asked).await)
        } else {
            None
        };
        // A lock whose holder panicked holds a whole set all the same: a change of it is one call.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Some(Ok(_)) => {
                known.remove(definition);
            }
            Some(Err(error)) if error.is_not_found() => {
                known.insert(definition.to_owned());
            }
            Some(Err(_)) | None => {}
        }
        known.contains(definition)
    }
}

fn record(config: &Config) -> Value {
    json!({"config_key": config.key, "data": config.data, "created_at": config.created_at, "modified_at": config.modified_at})
}

fn not_held(error: &Error) -> Box<LoopbackResponse> {
    match error {
        Error::Usage(text) => refused(StatusCode::NOT_FOUND, "config_not_found", text),
        Error::Refused(_) | Error::Unavailable(_) | Error::Unknown { .. } | Error::Protocol(_) => {
            let text = format!("the agent has no configs yet: {error}");
            refused(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &text)
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

/// A rejection with a code of the API.
fn refused(status: StatusCode, code: &str, msg: &str) -> Box<LoopbackResponse> {
    let kind = match status {
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
        _ => "validation_error",
    };
    let body = json!({"status": "FAILURE", "errors": [{"type": kind, "code": code, "msg": msg}]});
    Box::new(with_type(status, JSON, body.to_string()))
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
    fn a_known_version_is_compared_weakly() {
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            }
            is_known(&headers, "\"5\"")
        };
        for good in [&["\"5\""][..], &["W/\"5\""], &["*"], &["\"4\", W/\"5\""], &["\"4\"", "\"5\""]] {
            assert!(known(good), "{good:?}");
        }
        for bad in [&[][..], &["\"4\""], &["5"], &["w/\"5\""]] {
            assert!(!known(bad), "{bad:?}");
        }
    }

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
