//! The client of a cluster: sends requests to its nodes, with failover and retries.
//!
//! **Invariant:** a write without an idempotency key is retried only if the previous attempt certainly had no effect,
//! because the connection was refused.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    error::Error as StdError,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, StatusCode};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    Answer, Error, Login, Pages, Refusal, Request, Retry, Tls, Watch,
    answer::warnings_of,
    environment::{Environment, keys_of},
    login::Credential,
    reader::{Reader, host_name},
};

/// No retry starts with less time left than this: it would time out, and the outcome would be unknown because of it.
const ATTEMPT_MIN: Duration = Duration::from_millis(20);
/// A node that rejects a request sooner has asked no other one.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The first pause between two rounds of attempts; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// How long the connection to a node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an idle connection is kept: less than a node keeps it (75 s), so that no request is sent on a connection that
/// the node is closing. The outcome of such a write would be unknown.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long after the first copy of unknown outcome was sent the request is sent again: the cluster remembers what it
/// decided for at least 45 seconds, and a node works on a request for at most 30.
const RESEND_WINDOW: Duration = Duration::from_secs(15);
/// How long a copy of a write may take while another one may be sent.
const WRITE_ATTEMPT: Duration = Duration::from_secs(5);
/// A stream without data for this long is dead: two and a half heartbeats of a watch.
pub(crate) const SILENCE: Duration = Duration::from_secs(25);

/// How a cluster is reached. `Debug` shows neither the access key nor a password in a URL.
#[derive(Clone)]
pub struct Options {
    /// The node URLs, as in `http://127.0.0.1:8101`.
    pub urls: Vec<String>,
    /// The access key, or the text of a session.
    pub key: String,
    /// How the client logs in, instead of a key: with the token of an identity provider, before the first request and
    /// again before its session ends.
    pub login: Option<Login>,
    /// The trusted CAs and the client certificate.
    pub tls: Tls,
    /// The time limit of a request with all its retries.
    pub timeout: Duration,
    /// Called with each request as a curl command, without the access key and the body.
    pub trace: Option<fn(&str)>,
    /// Called with each warning of a response, see [`Answer::warnings`], and with those of the client itself.
    pub warn: Option<fn(&str)>,
    /// The reason for the changes, stored in their history.
    pub reason: Option<String>,
    /// The id of the requests, for logs and the audit log; by default a new one for each request.
    pub request_id: Option<String>,
    /// The environment, which is put with a dot before each definition key: with `prod`, the definition `limits` is
    /// `prod.limits` of the cluster. Responses have the keys without it, and lists and watches without a definition are of
    /// this environment. So one program runs in every environment. `default` has no prefix: it is as `None`.
    pub environment: Option<String>,
    /// The name of this reader, by default the host name. By it and by its labels, a rollout chooses who sees its
    /// candidates; without it, this client sees them at the end only. It is no secret and proves nothing. 1 to 255 visible
    /// ASCII characters.
    pub reader: Option<String>,
    /// The labels of this reader, as in `ring` = `canary`: at most 16, of 1 KiB in all. They need a reader.
    pub labels: BTreeMap<String, String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            urls: vec!["http://127.0.0.1:8101".into()],
            key: String::new(),
            login: None,
            tls: Tls::default(),
            timeout: Duration::from_secs(30),
            trace: None,
            warn: None,
            reason: None,
            request_id: None,
            environment: None,
            reader: host_name(),
            labels: BTreeMap::new(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A field that is added is decided on here.
        let Self { urls, key, login, tls, timeout, trace, warn, .. } = self;
        let Self { reason, request_id, environment, reader, labels, .. } = self;
        let urls: Vec<_> = urls.iter().map(|url| shown_url(url)).collect();
        f.debug_struct("Options")
            .field("urls", &urls)
            .field("key", &if key.is_empty() { "" } else { "***" })
            .field("login", login)
            .field("tls", tls)
            .field("timeout", timeout)
            .field("trace", &trace.is_some())
            .field("warn", &warn.is_some())
            .field("reason", reason)
            .field("request_id", request_id)
            .field("environment", environment)
            .field("reader", reader)
            .field("labels", labels)
            .finish()
    }
}

/// A client of one cluster. Clones share connections.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    urls: Vec<String>,
    credential: Arc<Credential>,
    timeout: Duration,
    trace: Option<fn(&str)>,
    warn: Option<fn(&str)>,
    reason: Option<String>,
    request_id: Option<String>,
    environment: Option<Environment>,
    reader: Option<Reader>,
    /// The CAs that issue certificates of nodes, as messages name them.
    authorities: String,
    /// The node that answered last.
    preferred: AtomicUsize,
}

/// The status, the headers and the body of a response.
type Received = (StatusCode, http::HeaderMap, bytes::Bytes);

/// How an attempt ended, unless it was answered.
enum Failed {
    /// It certainly was not applied.
    NotSent(String),
    /// It may have been applied.
    Unclear(String),
    Refused(Box<Refusal>, Option<Duration>),
}

impl Client {
    /// Creates a client. Sends nothing yet.
    ///
    /// # Errors
    /// When a URL, the access key, a TLS file, the name of the environment, the reader or a label is invalid.
    pub fn new(options: Options) -> Result<Self, Error> {
        let urls: Vec<String> =
            options.urls.iter().map(|url| url.trim().trim_end_matches('/').into()).collect();
        if let Some(problem) = urls.iter().find_map(|url| problem_of(url)) {
            return Err(Error::Usage(problem));
        }
        if urls.is_empty() {
            return Err(Error::Usage("no node URL".into()));
        }
        let credential = Arc::new(Credential::of(&options.key, options.login)?);
        let is_encrypted = urls.iter().any(|url| url.starts_with("https://"));
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(options.tls.config(is_encrypted).map_err(Error::Usage)?)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()
            .map_err(|error| Error::Usage(with_causes(&error)))?;
        let authorities = options.tls.shown_authorities();
        let environment = named(options.environment.as_deref())?;
        let reader = Reader::new(options.reader.as_deref(), &options.labels)?;
        let Options { timeout, trace, warn, reason, request_id, .. } = options;
        // Blanks at the ends are no part of a header's value.
        let reason =
            reason.map(|text| text.trim_matches([' ', '\t']).to_owned()).filter(|text| !text.is_empty());
        for (text, what) in [(&request_id, "request id"), (&reason, "reason")] {
            if let Some(text) = text {
                check_header(what, text)?;
            }
        }
        let preferred = AtomicUsize::new(0);
        let inner = Inner {
            http,
            urls,
            credential,
            timeout,
            trace,
            warn,
            reason,
            request_id,
            environment,
            reader,
            authorities,
            preferred,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The node URLs.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.0.urls
    }

    /// The environment; see [`Options::environment`]. `None` if definition keys have no prefix.
    #[must_use]
    pub fn environment(&self) -> Option<&str> {
        self.0.environment.as_ref().map(Environment::name)
    }

    /// The name of the reader; see [`Options::reader`]. `None` if the client sends none.
    #[must_use]
    pub fn reader(&self) -> Option<&str> {
        self.0.reader.as_ref().map(|reader| reader.name.as_str())
    }

    /// The reader with its labels.
    pub(crate) fn as_reader(&self) -> Option<&Reader> {
        self.0.reader.as_ref()
    }

    /// The same client in another environment; with `None`, definition keys have no prefix. They share connections.
    ///
    /// # Errors
    /// When the name is invalid.
    pub fn in_environment(&self, name: Option<&str>) -> Result<Self, Error> {
        Ok(self.with(named(name)?, self.0.reader.clone()))
    }

    /// The same client as another reader, or as none; see [`Options::reader`]. They share connections.
    ///
    /// # Errors
    /// When the name or a label is invalid.
    pub fn with_reader(
        &self,
        reader: Option<&str>,
        labels: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        Ok(self.with(self.0.environment.clone(), Reader::new(reader, labels)?))
    }

    fn with(&self, environment: Option<Environment>, reader: Option<Reader>) -> Self {
        let Inner { http, urls, credential, timeout, trace, warn, reason, request_id, authorities, .. } =
            &*self.0;
        Self(Arc::new(Inner {
            http: http.clone(),
            urls: urls.clone(),
            credential: Arc::clone(credential),
            timeout: *timeout,
            trace: *trace,
            warn: *warn,
            reason: reason.clone(),
            request_id: request_id.clone(),
            environment,
            reader,
            authorities: authorities.clone(),
            preferred: AtomicUsize::new(self.0.preferred.load(Ordering::Relaxed)),
        }))
    }

    /// The time limit of a request with all its retries.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// The pages of a list.
    #[must_use]
    pub fn pages(&self, first: Request) -> Pages {
        Pages::new(self.clone(), first)
    }

    /// Watches the changes that a request to `/api/v1/watch` selects.
    #[must_use]
    pub fn watch(&self, request: Request) -> Watch {
        Watch::new(self.clone(), self.entered(request))
    }

    /// Sends a request, with retries where they are safe, and returns the response.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send(&self, request: Request) -> Result<Answer, Error> {
        let keys = keys_of(&request.method, &request.path);
        let environment = self.0.environment.clone().map(|environment| (environment, keys));
        let (response, url) = self.open(self.entered(request)).await.map_err(|error| self.told(error))?;
        let (status, headers) = (response.0, response.1);
        Ok(Answer { status, headers, body: response.2, url, environment })
    }

    /// Sends a request and passes the body of the response to `write` as it arrives.
    ///
    /// # Errors
    /// When no node responds, or `write` fails.
    pub async fn download(
        &self,
        request: Request,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + request.timeout.unwrap_or(self.0.timeout);
        let (mut response, url) = self.stream(&self.entered(request), deadline).await?;
        let cut = |error: reqwest::Error| Error::Unavailable(format!("{url}: {}", with_causes(&error)));
        let late = |_| Error::Unavailable(format!("{url}: timed out"));
        while let Some(chunk) =
            tokio::time::timeout_at(deadline, response.chunk()).await.map_err(late)?.map_err(cut)?
        {
            write(&chunk).map_err(|error| Error::Usage(format!("the file can't be written: {error}")))?;
        }
        Ok(())
    }

    /// The request with the client's environment before its definition keys, and with its reader.
    fn entered(&self, request: Request) -> Request {
        let request = match &self.0.environment {
            Some(environment) => {
                let request = environment.enter(request);
                if let Some(text) = environment.warning(&request) {
                    self.warn_of(&text);
                }
                request
            }
            None => request,
        };
        self.0.reader.iter().fold(request, |request, reader| reader.on(request))
    }

    /// An error that says which environment the client has.
    fn told(&self, mut error: Error) -> Error {
        if let Error::Refused(refusal) = &mut error {
            refusal.environment = self.environment().map(str::to_owned);
        }
        error
    }

    /// Takes the client's environment off the definition keys of an event.
    pub(crate) fn leave_event(&self, event: &mut serde_json::Value) {
        self.0.environment.iter().for_each(|environment| environment.leave_event(event));
    }

    /// The first answer of success to a read, its body still to come.
    pub(crate) async fn stream(
        &self,
        request: &Request,
        deadline: Instant,
    ) -> Result<(reqwest::Response, String), Error> {
        check_headers(request, None)?;
        let shown = self.0.credential.shown(self, deadline).await?;
        let result = self.stream_with(request, deadline, &shown).await;
        if !self.is_to_log_in(result.as_ref().err(), &shown) {
            return result;
        }
        let shown = self.0.credential.shown(self, deadline).await?;
        self.stream_with(request, deadline, &shown).await
    }

    #[cfg(test)]
    pub(crate) fn credential(&self) -> &Credential {
        &self.0.credential
    }

    /// Whether a session was rejected, and the request can be made again with another one. It was certainly not applied.
    fn is_to_log_in(&self, error: Option<&Error>, shown: &HeaderValue) -> bool {
        let is_rejected =
            matches!(error, Some(Error::Refused(refusal)) if refusal.status == StatusCode::UNAUTHORIZED);
        is_rejected && self.0.credential.forget(shown)
    }

    async fn stream_with(
        &self,
        request: &Request,
        deadline: Instant,
        shown: &HeaderValue,
    ) -> Result<(reqwest::Response, String), Error> {
        let mut attempts = Attempts::new(self, request, deadline);
        loop {
            let (base, left) = attempts.next().await?;
            let id = self.request_id();
            let url = format!("{base}{}", request.target());
            let begun = self.begin(request, &url, left, (&id, None, Some(shown))).await;
            match begun {
                Ok(response) if response.status().is_success() => {
                    attempts.remember();
                    self.warn(response.headers());
                    return Ok((response, url));
                }
                Ok(response) => {
                    let silence = Silence { each: left, deadline };
                    attempts.failed(refused(&url, response, id, request, silence).await)?;
                }
                Err(failed) => attempts.failed(failed)?,
            }
        }
    }

    async fn open(&self, request: Request) -> Result<(Received, String), Error> {
        let deadline = Instant::now() + request.timeout.unwrap_or(self.0.timeout);
        let key = self.idempotency_key(&request);
        check_headers(&request, key.as_deref())?;
        let shown = self.0.credential.shown(self, deadline).await?;
        let result = self.open_with(&request, deadline, (key.clone(), Some(&shown))).await;
        if !self.is_to_log_in(result.as_ref().err(), &shown) {
            return result;
        }
        let shown = self.0.credential.shown(self, deadline).await?;
        self.open_with(&request, deadline, (key, Some(&shown))).await
    }

    /// Logs in, without a credential. It may be sent again after an unknown outcome: a session that nobody has received
    /// ends by itself.
    pub(crate) async fn log_in(
        &self,
        request: &Request,
        deadline: Instant,
    ) -> Result<serde_json::Value, Error> {
        // In a box: a request logs in, and a login is a request.
        let ((_, _, body), url) = Box::pin(self.open_with(request, deadline, (None, None))).await?;
        let answer: serde_json::Value = serde_json::from_slice(&body)
            .map_err(|_| Error::Unavailable(format!("{url}: the response to the login is not of a node")))?;
        Ok(answer["data"].clone())
    }

    /// Without a credential, a write is repeated as if it had an idempotency key.
    async fn open_with(
        &self,
        request: &Request,
        deadline: Instant,
        (key, shown): (Option<String>, Option<&HeaderValue>),
    ) -> Result<(Received, String), Error> {
        let mut attempts = Attempts::new(self, request, deadline);
        attempts.key = key.clone().or_else(|| shown.is_none().then(String::new));
        loop {
            let (base, left) = attempts.next().await?;
            let id = self.request_id();
            let url = format!("{base}{}", request.target());
            let mut response = match self.begin(request, &url, left, (&id, key.as_deref(), shown)).await {
                Ok(response) => response,
                Err(failed) => {
                    attempts.failed(failed)?;
                    continue;
                }
            };
            let silence = Silence { each: left, deadline };
            let is_unchanged = response.status() == StatusCode::NOT_MODIFIED && request.is_read();
            if !response.status().is_success() && !is_unchanged {
                attempts.failed(refused(&url, response, id, request, silence).await)?;
                continue;
            }
            let (status, headers) = (response.status(), response.headers().clone());
            match body_of(&mut response, silence).await {
                Ok(body) if !request.is_read() && !is_object(&body) => {
                    let text = format!("{url}: {status} with a body that is not of a node");
                    attempts.failed(Failed::Unclear(text))?;
                }
                Ok(body) => {
                    attempts.remember();
                    self.warn(&headers);
                    return Ok(((status, headers, body), url));
                }
                Err(text) => attempts.failed(Failed::Unclear(format!("{url}: {text}")))?,
            }
        }
    }

    fn warn(&self, headers: &http::HeaderMap) {
        warnings_of(headers).iter().for_each(|text| self.warn_of(text));
    }

    /// Says something that is no error of a request. That the program panics at it, its hook of panics has told, and it must
    /// not end the task of a cache.
    pub(crate) fn warn_of(&self, text: &str) {
        if let Some(warn) = self.0.warn {
            let _ = std::panic::catch_unwind(|| warn(text));
        }
    }

    /// Asks another node first from now on: this one has gone silent.
    pub(crate) fn leave_node(&self) {
        let next = (self.0.preferred.load(Ordering::Relaxed) + 1) % self.0.urls.len();
        self.0.preferred.store(next, Ordering::Relaxed);
    }

    fn request_id(&self) -> String {
        self.0.request_id.clone().unwrap_or_else(|| Uuid::now_v7().to_string())
    }

    /// The idempotency key of a write that may be sent again.
    fn idempotency_key(&self, request: &Request) -> Option<String> {
        if request.is_read() || request.retry == Retry::OtherNode {
            return request.idempotency_key.clone();
        }
        Some(request.idempotency_key.clone().unwrap_or_else(|| Uuid::now_v7().to_string()))
    }

    /// Sends a request once and waits for the head of the answer.
    async fn begin(
        &self,
        request: &Request,
        url: &str,
        left: Duration,
        (id, idempotency_key, shown): (&str, Option<&str>, Option<&HeaderValue>),
    ) -> Result<reqwest::Response, Failed> {
        let mut built = self.0.http.request(request.method.clone(), url).header("x-request-id", id);
        if let Some(shown) = shown {
            built = built.header("authorization", shown.clone());
        }
        for (name, value) in &request.headers {
            built = built.header(*name, value);
        }
        if let Some(key) = idempotency_key {
            built = built.header("idempotency-key", key);
        }
        if let Some(reason) = self.0.reason.as_ref().filter(|_| !request.is_read()) {
            built = built.header("x-change-reason", reason);
        }
        if let Some((content_type, body)) = &request.body {
            built = built.header("content-type", *content_type).body(body.clone());
        }
        match tokio::time::timeout(left, built.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() || error.is_builder() => {
                let why = if is_of_unknown_issuer(&error) {
                    format!("its certificate is not issued by {}", self.0.authorities)
                } else {
                    innermost(&error)
                };
                Err(Failed::NotSent(format!("{} can't be reached: {why}", base_of(url))))
            }
            Ok(Err(error)) => Err(Failed::Unclear(format!("{url}: {}", with_causes(&error)))),
            Err(_) => Err(Failed::Unclear(format!("{url}: no response in time"))),
        }
    }
}

fn named(environment: Option<&str>) -> Result<Option<Environment>, Error> {
    Ok(environment.map(Environment::new).transpose()?.flatten())
}

/// Why a text is not the URL of a node. A user and a password in it are not shown.
fn problem_of(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if url.split(['/', '?']).nth(2).unwrap_or(url).contains('@') {
        return Some("the URL of a node has no user and no password: give the access key as the key".into());
    }
    let is_url = rest.is_some_and(|rest| !rest.is_empty());
    (!is_url).then(|| format!("`{url}` is not the URL of a node: expected http[s]://host:port"))
}

fn check_header(what: &str, text: &str) -> Result<(), Error> {
    let invalid =
        |_| Error::Usage(format!("the {what} contains characters that are not allowed in a header"));
    HeaderValue::from_bytes(text.as_bytes()).map(drop).map_err(invalid)
}

/// Rejects headers that can't be sent. Later they would look like a node that can't be reached.
fn check_headers(request: &Request, idempotency_key: Option<&str>) -> Result<(), Error> {
    for (name, value) in &request.headers {
        check_header(&format!("header {name}"), value)?;
    }
    match idempotency_key {
        Some(key) if !(1..=255).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(Error::Usage("an idempotency key has 1 to 255 visible ASCII characters".into()))
        }
        Some(_) | None => Ok(()),
    }
}

/// How long a response may say nothing.
#[derive(Clone, Copy)]
struct Silence {
    /// Between two parts of it: as long as the attempt may take.
    each: Duration,
    /// In all.
    deadline: Instant,
}

/// The body of a response. A node that is silent for too long is given up.
async fn body_of(response: &mut reqwest::Response, silence: Silence) -> Result<bytes::Bytes, String> {
    let mut body = bytes::BytesMut::new();
    loop {
        let until = silence.deadline.min(Instant::now() + silence.each);
        match tokio::time::timeout_at(until, response.chunk()).await {
            Ok(Ok(Some(chunk))) if body.is_empty() => body = chunk.into(),
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            Ok(Ok(None)) => return Ok(body.freeze()),
            Ok(Err(error)) => return Err(with_causes(&error)),
            Err(_) => return Err("the response stopped before its end".into()),
        }
    }
}

/// Whether a body is an object of JSON, as that of each response to a write. Nothing of it is kept.
fn is_object(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

/// The refusal of a node, with the pause that it asks for.
async fn refused(
    url: &str,
    mut response: reqwest::Response,
    id: String,
    request: &Request,
    silence: Silence,
) -> Failed {
    let status = response.status();
    let pause = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let pause = pause.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    let tag = response.headers().get("etag").filter(|_| status == StatusCode::PRECONDITION_FAILED);
    let current_revision = tag.and_then(|tag| tag.to_str().ok()?.trim_matches('"').parse().ok());
    let text = match body_of(&mut response, silence).await {
        Ok(body) => String::from_utf8_lossy(&body).into_owned(),
        Err(text) => return Failed::Unclear(format!("{url}: {text}")),
    };
    let refusal = Box::new(Refusal { current_revision, ..Refusal::new(url, status, id, &text) });
    // A proxy that lost the node knows nothing of the outcome. In its own words, only these say that it passed nothing on.
    let is_listed = |name: &&str| refusal.body[name].as_array().is_some_and(|listed| !listed.is_empty());
    // OFREP has words of its own for what is wrong.
    let is_of_node = ["errors", "detail"].iter().any(is_listed) || refusal.body["errorCode"].is_string();
    let is_unknown = match status.as_u16() {
        500 | 502 | 504 => true,
        401 | 403 | 404 | 405 | 413 => false,
        _ => !request.is_read() && !is_of_node,
    };
    if is_unknown { Failed::Unclear(refusal.to_string()) } else { Failed::Refused(refusal, pause) }
}

/// Whether the cluster's log decided an error for all attempts of a write, and stores it under their idempotency key. An
/// error about the request itself, a permission, a freeze, or an index that is being built says nothing about another
/// attempt. Nor does an error about a change request: the cluster stores none of them.
fn is_verdict(refusal: &Refusal, request: &Request) -> bool {
    const CODES: [&str; 7] = [
        "config_exists",
        "config_not_found",
        "definition_exists",
        "definition_not_empty",
        "definition_protected",
        "precondition_failed",
        "unique_taken",
    ];
    let code = refusal.items.first().map_or("", |item| &item.code);
    let is_computed = request.method == http::Method::PATCH || request.path.starts_with("/api/v1/batch");
    let is_stored = CODES.contains(&code) || (code == "definition_not_found" && is_computed);
    is_stored && !request.path.starts_with("/api/v1/change_request/")
}

/// The attempts of one request.
struct Attempts<'a> {
    inner: &'a Inner,
    request: &'a Request,
    begun: Instant,
    deadline: Instant,
    /// The idempotency key.
    key: Option<String>,
    /// How many there were.
    made: usize,
    first: usize,
    pause: Duration,
    asked_pause: Duration,
    /// How the last attempt at each node ended, by its place.
    last: BTreeMap<usize, String>,
    /// When the last copy was sent, at the earliest.
    sent: Instant,
    /// Until when another copy may be sent.
    resend_until: Instant,
    /// Why an attempt may have been applied.
    unknown: Option<String>,
    /// The last rejection, if it was for too many requests.
    limited: Option<Box<Refusal>>,
}

impl<'a> Attempts<'a> {
    fn new(client: &'a Client, request: &'a Request, deadline: Instant) -> Self {
        let inner = &*client.0;
        let first = inner.preferred.load(Ordering::Relaxed);
        if let Some(trace) = inner.trace {
            trace(&request.as_curl(&inner.urls[first % inner.urls.len()]));
        }
        Self {
            inner,
            request,
            begun: Instant::now(),
            deadline,
            key: None,
            made: 0,
            first,
            pause: PAUSE_MIN,
            asked_pause: Duration::ZERO,
            last: BTreeMap::new(),
            sent: Instant::now(),
            resend_until: deadline + RESEND_WINDOW,
            unknown: None,
            limited: None,
        }
    }

    /// The node to ask now, and the time for that. Between two rounds over all nodes there is a pause.
    async fn next(&mut self) -> Result<(&'a str, Duration), Error> {
        let nodes = self.inner.urls.len();
        if self.made > 0 && self.made.is_multiple_of(nodes) {
            if self.request.retry == Retry::OtherNode {
                return Err(self.given_up());
            }
            let jitter = self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            let pause = jitter.max(self.asked_pause);
            if Instant::now() + pause + ATTEMPT_MIN >= self.deadline.min(self.resend_until) {
                return Err(self.given_up());
            }
            tokio::time::sleep(pause).await;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero()
            || (self.made > 0 && left < ATTEMPT_MIN)
            || (self.unknown.is_some() && Instant::now() >= self.resend_until)
        {
            return Err(self.given_up());
        }
        let place = (self.first + self.made) % nodes;
        self.made += 1;
        // A node that hangs may not take the time that the others need.
        let may_go_on = (self.request.is_read() || self.key.is_some()) && nodes > 1;
        self.sent = Instant::now();
        let share = match (may_go_on, self.request.is_read()) {
            (false, _) => left,
            (true, true) => (left / 2).max(Duration::from_secs(1)).min(left),
            // The last copy that may be sent has the time that is left.
            (true, false) if self.sent + WRITE_ATTEMPT >= self.resend_until => left,
            (true, false) => (left / 2).max(Duration::from_secs(1)).min(left).min(WRITE_ATTEMPT),
        };
        Ok((&self.inner.urls[place], share))
    }

    fn remember(&self) {
        let place = self.first + self.made.saturating_sub(1);
        self.inner.preferred.store(place % self.inner.urls.len(), Ordering::Relaxed);
    }

    fn given_up(&self) -> Error {
        match &self.unknown {
            Some(text) => self.unknown(text.clone()),
            None => match &self.limited {
                Some(refusal) => Error::Refused(refusal.clone()),
                None => Error::Unavailable(self.reasons()),
            },
        }
    }

    fn unknown(&self, text: String) -> Error {
        Error::Unknown { text, idempotency_key: self.key.clone() }
    }

    /// What each node said at last, or why it said nothing.
    fn reasons(&self) -> String {
        let reasons: Vec<&str> = self.last.values().map(String::as_str).collect();
        match (reasons.as_slice(), self.inner.urls.len()) {
            ([], _) => "timed out".into(),
            ([one], 1) => (*one).into(),
            (all, nodes) if all.len() == nodes => {
                format!("all {nodes} nodes failed: {}", all.join("; "))
            }
            (some, nodes) => format!("tried {} of {nodes} nodes: {}", some.len(), some.join("; ")),
        }
    }

    /// Remembers how the last attempt ended.
    fn note(&mut self, text: String) {
        let place = (self.first + self.made.saturating_sub(1)) % self.inner.urls.len();
        self.last.insert(place, text);
    }

    /// Decides what follows from an attempt: another one, or the end.
    fn failed(&mut self, failed: Failed) -> Result<(), Error> {
        let is_read = self.request.is_read();
        match failed {
            Failed::NotSent(text) => {
                self.note(text);
                Ok(())
            }
            Failed::Unclear(text) => {
                self.note(text.clone());
                if is_read {
                    return Ok(());
                }
                if self.unknown.is_none() {
                    // From the sending on: by the time that a loss is noticed, the cluster may have forgotten.
                    self.resend_until = self.sent + RESEND_WINDOW;
                }
                (self.unknown, self.limited) = (Some(text), None);
                // Without a key another copy would be another write.
                if self.key.is_some() { Ok(()) } else { Err(self.given_up()) }
            }
            Failed::Refused(refusal, pause) => {
                let status = refusal.status;
                self.note(refusal.to_string());
                let is_limited = status == StatusCode::TOO_MANY_REQUESTS;
                self.limited = is_limited.then(|| refusal.clone());
                let is_momentary = is_limited || status == StatusCode::SERVICE_UNAVAILABLE;
                if is_momentary && self.request.retry == Retry::UntilTimeout {
                    self.asked_pause = pause.unwrap_or_default();
                    return Ok(());
                }
                // It belongs to no cluster, or is starting, and has changed nothing. One that has asked the others first
                // knows what they know.
                let at_once = self.begun.elapsed() < AT_ONCE && self.made < self.inner.urls.len();
                if status == StatusCode::SERVICE_UNAVAILABLE && at_once {
                    return Ok(());
                }
                // Only a verdict of the log says what became of the copy whose outcome is not known.
                match &self.unknown {
                    Some(text) if !is_verdict(&refusal, self.request) => {
                        Err(self.unknown(format!("{text}; then {refusal}")))
                    }
                    _ => Err(Error::Refused(refusal)),
                }
            }
        }
    }
}

/// A URL as messages show it: without a user and a password in it.
#[must_use]
pub fn shown_url(url: &str) -> Cow<'_, str> {
    let begin = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |at| begin + at);
    match url[begin..end].rfind('@') {
        Some(at) => Cow::Owned(format!("{}***{}", &url[..begin], &url[begin + at..])),
        None => Cow::Borrowed(url),
    }
}

/// The node of a URL.
fn base_of(url: &str) -> &str {
    let path = url.find("://").and_then(|scheme| url[scheme + 3..].find('/').map(|at| scheme + 3 + at));
    path.map_or(url, |path| &url[..path])
}

/// The innermost cause of an error: that of a connection that was not made says all.
fn innermost(error: &reqwest::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

/// Whether a connection failed because none of the CAs has issued the certificate of the node.
fn is_of_unknown_issuer(error: &reqwest::Error) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return *found == rustls::CertificateError::UnknownIssuer.into();
        }
        // The source of an I/O error is that of the error within it.
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = within.map_or_else(|| error.source(), |within| Some(within as _));
    }
    false
}

/// An error with its causes, which its own text omits.
pub(crate) fn with_causes(error: &reqwest::Error) -> String {
    // The URL stands before it.
    let mut texts = vec![error.to_string().split(" for url (").next().unwrap_or_default().to_owned()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.dedup();
    texts.join(": ")
}

#[cfg(test)]
mod tests;
