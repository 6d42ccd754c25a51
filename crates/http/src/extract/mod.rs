//! Requests as typed values: keys, query, conditions, headers, body.
//!
//! A read is a [`ReadRequest`]. A write, or a read with a body, is a [`BodyRequest`]. Keys stay unvalidated strings
//! here, because the order of errors is fixed: the shape of query and body comes before the keys.
//!
//! **Invariant:** a malformed parameter or header of the API rejects the request; it is never ignored.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use axum::{body::Bytes, extract::Request, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request::Parts};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    body::{
        self, Received,
        fields::{BodyFields, IGNORED_NAMES_MAX},
    },
    coding,
    condition::{Condition, Stated, header_problem, single},
    endpoints::{Endpoint, Matched},
    entity_tags::client_has,
    reply::Problem,
};
use concord_model::{
    command::IdempotencyKey,
    error::Violation,
    key::Key,
    limits::{
        IDEMPOTENCY_KEY_BYTES_MAX, KEY_BYTES_MAX, QUERY_PARAMETERS_MAX, REASON_BYTES_MAX, VIOLATIONS_MAX,
    },
    patch::PatchFormat,
    query::QueryError,
    record::Revision,
    schema::ListedVariants,
};
use concord_service::{BypassRequest, Caller, Consistency, Level, Principal, Service, Share};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CHANGE_REASON: HeaderName = HeaderName::from_static("x-change-reason");

/// The parameter of a write that is to pass the rules of environments.
const BYPASS: &str = "bypass";

/// A request that was let in.
#[derive(Debug)]
pub(super) struct MatchedRequest {
    pub(super) request: Request,
    pub(super) matched: Matched,
    /// Parsed when somebody asks for them: the query of an unauthenticated client costs nothing.
    params: OnceLock<QueryParams>,
    /// Whether the response has the data alone. Decided once: an index may come to have the name of the parameter.
    pub(super) is_raw: bool,
}

impl MatchedRequest {
    pub(super) fn new(request: Request, matched: Matched) -> Self {
        Self { request, matched, params: OnceLock::new(), is_raw: false }
    }

    /// The parameters of the query.
    pub(super) fn params(&self) -> &QueryParams {
        self.params.get_or_init(|| QueryParams::from_uri(self.request.uri()))
    }

    /// Rejects a query with more parameters than are decoded on a thread that serves others too.
    pub(super) fn check_query(&self) -> Result<(), Problem> {
        let query = self.request.uri().query().unwrap_or_default();
        // Most queries are too short for it.
        if query.len() < QUERY_PARAMETERS_MAX
            || query.bytes().filter(|byte| *byte == b'&').count() < QUERY_PARAMETERS_MAX
        {
            return Ok(());
        }
        let msg = format!("a query has at most {QUERY_PARAMETERS_MAX} parameters");
        Err(Problem::violation(Violation::at(vec!["query".into()], msg)))
    }

    pub(super) fn uri(&self) -> &Uri {
        self.request.uri()
    }

    /// The parameters of a read that have no effect; `None` where all have one. For a request with a body,
    /// [`BodyRequest::receive`] decides what becomes of them.
    pub(super) fn ignored_parameters(&self) -> Option<Ignored> {
        // Most reads have no parameters.
        self.uri().query()?;
        let endpoint = self.matched.endpoint?;
        if !endpoint.warns_of_parameters() {
            return None;
        }
        let ignored = Ignored::default();
        ignored.add_unknown_parameters(endpoint, self.params());
        ignored.add("all but the last query parameter", repeated_parameters(endpoint, self.params()));
        Some(ignored).filter(|ignored| !ignored.is_empty())
    }

    /// Whether it may change something.
    pub(super) fn is_write(&self) -> bool {
        self.matched.is_write(self.request.method())
    }
}

/// A request of who has a good key.
#[derive(Debug)]
pub(crate) struct AuthenticatedCall {
    pub(super) asked: MatchedRequest,
    pub(super) principal: Principal,
}

/// The keys in the path of a write, not validated; empty where the path has none.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) definition: String,
    pub(super) config: String,
}

impl Keys {
    fn of(matched: &Matched, uri: &Uri) -> Self {
        Self { definition: matched.definition(uri).into_owned(), config: matched.config(uri).into_owned() }
    }
}

/// Rejects a malformed key; `name` is the path's parameter.
pub(super) fn check_key(text: &str, name: &'static str) -> Result<(), Problem> {
    match Key::parse(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::violation(Violation::at(vec![name.into()], error.to_string()))),
    }
}

/// The pairs of a query, decoded, in order.
#[derive(Debug)]
pub(super) struct QueryParams(pub(super) Vec<(String, String)>);

impl QueryParams {
    pub(super) fn from_uri(uri: &Uri) -> Self {
        let all = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        // A request with more is rejected ([`MatchedRequest::check_query`]).
        Self(
            all.take(QUERY_PARAMETERS_MAX)
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    /// The value of a parameter; the last one where it is repeated.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Optional parameters that are non-negative integers.
    pub(super) fn numbers<const N: usize>(&self, names: [&str; N]) -> Result<[Option<u64>; N], QueryError> {
        let mut errors = QueryErrors::default();
        let numbers = names.map(|name| errors.number(self, name));
        errors.finish(Some(numbers))
    }

    /// Whether the write is a dry run: validated and answered, not stored. And which violations of a union the response
    /// lists.
    pub(super) fn dry_run(&self) -> Result<(bool, ListedVariants), Problem> {
        match self.get("dry_run") {
            None | Some("false") => Ok((false, ListedVariants::BestFit)),
            Some("true") => Ok((true, ListedVariants::BestFit)),
            Some("all-violations") => Ok((true, ListedVariants::All)),
            Some(_) => {
                let msg = "`dry_run` must be `true`, `false` or `all-violations`";
                Err(Problem::violation(query_violation("dry_run", msg)))
            }
        }
    }

    /// A parameter that is `true`, `false` or absent.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => {
                let msg = format!("`{name}` must be `true` or `false`");
                Err(Problem::violation(query_violation(name, msg)))
            }
        }
    }

    /// Whether the client sets `mode=restrict`.
    pub(super) fn restrict(&self) -> Result<bool, Problem> {
        match self.get("mode") {
            None => Ok(false),
            Some("restrict") => Ok(true),
            Some(_) => {
                Err(Problem::violation(query_violation("mode", "`mode` must be `restrict` or absent")))
            }
        }
    }

    /// Whether the client sets `purge=true`.
    pub(super) fn purge(&self) -> Result<bool, Problem> {
        match self.get("purge") {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::violation(query_violation("purge", "`purge` must be `true` or `false`"))),
        }
    }

    /// The consistency of a read, together with the rest of its query (`rest`). The rejection lists the errors of
    /// both; where integers do not parse, it lists these alone.
    pub(super) fn with_consistency<T>(
        &self,
        rest: Result<T, QueryError>,
    ) -> Result<(Consistency, T), Problem> {
        let mut errors = QueryErrors::default();
        let staleness_ms = errors.number(self, "max_staleness_ms");
        let min_revision = errors.number(self, "min_revision");
        let level = match self.get("consistency") {
            Some("local") => Level::Local { max_staleness: staleness_ms.map(Duration::from_millis) },
            level @ (None | Some("linearizable" | "lease")) => {
                if self.get("max_staleness_ms").is_some() {
                    errors.violations.push(query_violation(
                        "max_staleness_ms",
                        "`max_staleness_ms` needs `consistency=local`",
                    ));
                }
                if level == Some("lease") { Level::Lease } else { Level::Linearizable }
            }
            Some(_) => {
                errors.violations.push(query_violation(
                    "consistency",
                    "`consistency` must be `local`, `linearizable` or `lease`",
                ));
                Level::Linearizable
            }
        };
        let rest = match rest {
            Ok(rest) => Some(rest),
            Err(QueryError::NotIntegers(names)) => {
                errors.integers.splice(0..0, names);
                None
            }
            Err(QueryError::Violations(more)) => {
                errors.violations.splice(0..0, more);
                None
            }
            Err(building @ QueryError::Building(_)) => return Err(building.into()),
        };
        Ok(errors.finish(rest.map(|rest| (Consistency { level, min_revision }, rest)))?)
    }
}

/// Two parts of a query, or the errors of both; integers that do not parse come before violations.
pub(super) fn both<A, B>(
    one: Result<A, QueryError>,
    other: Result<B, QueryError>,
) -> Result<(A, B), QueryError> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(QueryError::NotIntegers(mut names)), Err(QueryError::NotIntegers(more))) => {
            names.extend(more);
            Err(QueryError::NotIntegers(names))
        }
        (Err(QueryError::Violations(mut violations)), Err(QueryError::Violations(more))) => {
            violations.extend(more);
            Err(QueryError::Violations(violations))
        }
        (Err(error @ QueryError::NotIntegers(_)), _) | (_, Err(error)) | (Err(error), Ok(_)) => Err(error),
    }
}

/// A violation in a parameter of the query.
pub(super) fn query_violation(name: &str, msg: impl Into<String>) -> Violation {
    Violation::at(vec!["query".into(), name.into()], msg)
}

/// The errors in a query, collected.
#[derive(Default)]
pub(super) struct QueryErrors {
    integers: Vec<String>,
    pub(super) violations: Vec<Violation>,
}

impl QueryErrors {
    /// An optional parameter that is a non-negative integer.
    pub(super) fn number(&mut self, params: &QueryParams, name: &str) -> Option<u64> {
        match params.get(name).map(parse_integer)? {
            None => self.integers.push(name.to_owned()),
            Some(Integer::TooLarge) => {
                self.violations.push(query_violation(name, format!("`{name}` is at most {}", u64::MAX)));
            }
            Some(Integer::Negative) => {
                self.violations.push(query_violation(name, format!("`{name}` must not be negative")));
            }
            Some(Integer::NonNegative(number)) => return Some(number),
        }
        None
    }

    /// The value, unless there are errors; integers that do not parse are rejected before violations.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, QueryError> {
        match value {
            _ if !self.integers.is_empty() => Err(QueryError::NotIntegers(self.integers)),
            Some(value) if self.violations.is_empty() => Ok(value),
            Some(_) | None => Err(QueryError::Violations(self.violations)),
        }
    }
}

/// An integer of any number of digits.
enum Integer {
    Negative,
    NonNegative(u64),
    TooLarge,
}

fn parse_integer(text: &str) -> Option<Integer> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(match digits.parse() {
        Ok(0) => Integer::NonNegative(0),
        _ if text.starts_with('-') => Integer::Negative,
        Ok(number) => Integer::NonNegative(number),
        // All of it is digits.
        Err(_) => Integer::TooLarge,
    })
}

/// A read.
#[derive(Debug)]
pub(super) struct ReadRequest {
    /// The owner of the credential.
    pub(super) principal: Principal,
    pub(super) params: QueryParams,
    /// Whether the response has the data alone.
    pub(super) is_raw: bool,
    matched: Matched,
    uri: Uri,
    headers: HeaderMap,
}

impl From<AuthenticatedCall> for ReadRequest {
    fn from(call: AuthenticatedCall) -> Self {
        let AuthenticatedCall { asked: MatchedRequest { request, matched, params, is_raw }, principal } =
            call;
        let params = params.into_inner().unwrap_or_else(|| QueryParams::from_uri(request.uri()));
        let (Parts { uri, headers, .. }, _) = request.into_parts();
        Self { principal, params, is_raw, matched, uri, headers }
    }
}

impl ReadRequest {
    pub(super) fn path(&self) -> &str {
        self.uri.path()
    }

    /// The key of the definition, not validated.
    pub(super) fn definition(&self) -> Cow<'_, str> {
        self.matched.definition(&self.uri)
    }

    /// The key of the config, not validated; empty where the path has none.
    pub(super) fn config(&self) -> Cow<'_, str> {
        self.matched.config(&self.uri)
    }

    /// The parameter of the path that is no key.
    pub(super) fn name(&self) -> String {
        self.matched.name(&self.uri)
    }

    /// The parameters of the path that are no keys; empty where it has fewer.
    pub(super) fn names(&self) -> [String; 3] {
        self.matched.names(&self.uri)
    }

    /// Whether the client already has this version (`If-None-Match`).
    pub(super) fn has(&self, revision: Revision) -> bool {
        client_has(&self.headers, itoa::Buffer::new().format(revision))
    }

    /// The same for the version with another tag than that of a revision.
    pub(super) fn has_tag(&self, tag: &str) -> bool {
        client_has(&self.headers, tag)
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

/// A write: who sends it, on what condition, with which body.
#[derive(Debug)]
pub(super) struct BodyRequest {
    pub(super) keys: Keys,
    /// The parameter of the path that is no key; empty where it has keys.
    pub(super) name: String,
    pub(super) params: QueryParams,
    pub(super) condition: Condition,
    pub(super) caller: Caller,
    /// The format of the patch in the body of a `PATCH`.
    pub(super) patch_format: Option<PatchFormat>,
    pub(super) headers: HeaderMap,
    body: Received,
    /// Whether unknown members are no errors.
    is_lenient: bool,
    ignored: Ignored,
}

/// The parts of a request that had no effect.
#[derive(Debug, Clone, Default)]
pub(super) struct Ignored(Arc<Mutex<Vec<String>>>);

impl Ignored {
    fn add(&self, place: &str, names: impl IntoIterator<Item = String>) {
        let visible =
            |char: char| if char.is_ascii_graphic() && !['"', '\\'].contains(&char) { char } else { '?' };
        let short = |name: String| name.chars().take(IGNORED_NAME_CHARS_MAX).map(visible).collect::<String>();
        // Nothing panics while it is held.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = IGNORED_NAMES_MAX.saturating_sub(all.len());
        all.extend(names.into_iter().take(left).map(|name| format!("{place} `{}`", short(name))));
    }

    fn add_unknown_parameters(&self, endpoint: &Endpoint, params: &QueryParams) {
        self.add("unknown query parameter", unknown_parameters(endpoint, params).cloned());
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// A response to the request, with a warning if a part had no effect.
    pub(super) fn warn(&self, mut response: Response) -> Response {
        let ignored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ignored.is_empty() || !response.status().is_success() {
            return response;
        }
        let text = format!("299 - \"without effect: {}\"", ignored.join(", "));
        if let Ok(text) = HeaderValue::from_str(&text) {
            response.headers_mut().append(header::WARNING, text);
        }
        response
    }
}

/// Characters of an ignored name that a warning shows.
const IGNORED_NAME_CHARS_MAX: usize = 40;

/// The names of the parameters that an endpoint does not have.
fn unknown_parameters<'a>(endpoint: &Endpoint, params: &'a QueryParams) -> impl Iterator<Item = &'a String> {
    params.0.iter().map(|(name, _)| name).filter(|name| !endpoint.takes(name))
}

/// The names of the parameters that have one value and are given several times.
fn repeated_parameters(endpoint: &Endpoint, params: &QueryParams) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let names = params.0.iter().map(|(name, _)| name).filter(|name| endpoint.takes_once(name));
    names.filter(|name| !seen.insert(*name)).cloned().collect()
}

/// Rejects parameters of a request with a body that are unknown, unless the endpoint ignores them, and those that are
/// given several times: which value is meant is not known.
fn check_parameters(matched: &Matched, params: &QueryParams, ignored: &Ignored) -> Result<(), Problem> {
    let Some(endpoint) = matched.endpoint else { return Ok(()) };
    let repeated = repeated_parameters(endpoint, params);
    let repeated = repeated.iter().map(|name| query_violation(name, "this query parameter is given twice"));
    let mut violations: Vec<Violation> = repeated.collect();
    if endpoint.is_lenient {
        ignored.add_unknown_parameters(endpoint, params);
    } else {
        let violation = |name: &String| {
            let name: String = name.chars().take(KEY_BYTES_MAX).collect();
            query_violation(&name, "this query parameter is unknown here")
        };
        violations.extend(unknown_parameters(endpoint, params).map(violation).take(VIOLATIONS_MAX));
    }
    if violations.is_empty() { Ok(()) } else { Err(QueryError::Violations(violations).into()) }
}

/// How a patch is to be read; `None` for another body.
fn patch_format(is_patch: bool, headers: &HeaderMap) -> Result<Option<PatchFormat>, Problem> {
    if !is_patch {
        return Ok(None);
    }
    body::patch_format(headers).map(Some).ok_or(Problem::UnsupportedPatch)
}

impl BodyRequest {
    /// Receives the body of a write, and reads its head.
    pub(super) async fn receive(call: AuthenticatedCall, service: &Service) -> Result<Self, Problem> {
        let AuthenticatedCall { asked: MatchedRequest { request, matched, params, is_raw: _ }, principal } =
            call;
        let params = params.into_inner().unwrap_or_else(|| QueryParams::from_uri(request.uri()));
        let (parts, body) = request.into_parts();
        let limit = service.cx.limits().body_bytes;
        let ignored = Ignored::default();
        check_parameters(&matched, &params, &ignored)?;
        let (begin, mut held) = (Instant::now(), service.cx.reservation(Share::Callers));
        let body = body::receive(&parts.headers, body, limit, &mut held).await?;
        let principal = service.authentication.still(principal, begin)?;
        let (body, held) = match coding::of_body(&parts.headers)? {
            None => (body, held),
            // Boxed: few bodies are encoded.
            Some(coding) => Box::pin(coding::decoded(service, coding, body, limit, held)).await?,
        };
        let is = |of: fn(&Endpoint) -> bool| matched.endpoint.is_some_and(of);
        let takes_body = matched.endpoint.is_none_or(|endpoint| endpoint.takes_body);
        let is_lenient = is(|endpoint| endpoint.is_lenient);
        let is_left_out = body.is_empty() && is(|endpoint| endpoint.may_lack_body);
        let patch_format = patch_format(is(|endpoint| endpoint.takes_patch), &parts.headers)?;
        if takes_body && !is_left_out || !body.is_empty() && !is_lenient {
            body::check_type(&parts.headers)?;
        }
        let (body, held) = match body {
            _ if is_left_out => (Bytes::from_static(b"{}"), held),
            body if takes_body || body.is_empty() => (body, held),
            _ if is_lenient => {
                ignored.add("the", ["body".to_owned()]);
                (Bytes::new(), held)
            }
            body => {
                // An object without members asks for nothing.
                let read = |body| BodyFields::read(body, |_| ());
                Box::pin(Received::new(body, held)?.read(service, read)).await?;
                (Bytes::new(), service.cx.reservation(Share::Callers))
            }
        };
        let (dry_run, listed_variants) = params.dry_run()?;
        // The response to a dry run is not remembered, and a remembered response never answers a dry run.
        let request = match begin_idempotency_key(&principal, &parts)?.filter(|_| !dry_run) {
            Some(begun) if body::is_long(&body) => {
                let body = body.clone();
                Some(Box::pin(service.cx.run_long(move || begun.end(&body))).await?)
            }
            begun => begun.map(|begun| begun.end(&body)),
        };
        let reason = reason(&parts.headers)?;
        let bypass = bypass(&matched, &params, request, reason.as_deref())?;
        let (keys, stated) = (Keys::of(&matched, &parts.uri), Stated::from_headers(&parts.headers)?);
        let condition = match stated.simple() {
            Some(simple) => simple,
            // Boxed: few conditions need it.
            None => Box::pin(stated.settled(service, &principal, &matched, &keys)).await?,
        };
        Ok(Self {
            keys,
            name: matched.name(&parts.uri),
            params,
            condition,
            caller: Caller { principal, reason, idempotency_key: request, dry_run, listed_variants, bypass },
            patch_format,
            headers: parts.headers,
            body: Received::new(body, held)?,
            is_lenient,
            ignored,
        })
    }

    /// The members of the body, as `read` reads them.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        service: &Service,
        read: impl FnOnce(&mut BodyFields) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if !self.is_lenient {
            return self.body.read(service, |body| BodyFields::read(body, read)).await;
        }
        let (made, ignored) = self.body.read(service, |body| BodyFields::read_leniently(body, read)).await?;
        self.ignored.add("unknown member", ignored);
        Ok(made)
    }

    /// What of the request had no effect. It is complete once the body was read.
    pub(super) fn ignored(&self) -> Ignored {
        self.ignored.clone()
    }

    /// The value of the body, as `read` reads it.
    pub(super) async fn read_value<T: Send + 'static>(
        &self,
        service: &Service,
        read: impl FnOnce(Value) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.body.read(service, read).await
    }

    /// Rejects a dry run; for requests that have none.
    pub(super) fn refuse_dry_run(self) -> Result<Self, Problem> {
        if self.caller.dry_run {
            return Err(Problem::violation(query_violation("dry_run", "this request has no dry run")));
        }
        Ok(self)
    }
}

/// What makes the write a bypass, if the client wants one.
fn bypass(
    matched: &Matched,
    params: &QueryParams,
    request: Option<IdempotencyKey>,
    reason: Option<&str>,
) -> Result<Option<BypassRequest>, Problem> {
    let is_taken = matched.endpoint.is_some_and(|endpoint| endpoint.takes_once(BYPASS));
    if !is_taken || !params.flag(BYPASS)? {
        return Ok(None);
    }
    if reason.is_none() {
        return Err(header_problem(&CHANGE_REASON, "a bypass has a reason, which its reviewers read"));
    }
    Ok(Some(concord_service::bypass(request)?))
}

/// The reason of the change, as the client states it.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = single(headers, &CHANGE_REASON)? else { return Ok(None) };
    if value.len() > REASON_BYTES_MAX {
        return Err(header_problem(&CHANGE_REASON, &format!("longer than {REASON_BYTES_MAX} bytes")));
    }
    let text =
        std::str::from_utf8(value.as_bytes()).map_err(|_| header_problem(&CHANGE_REASON, "not UTF-8"))?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

/// The idempotency key of a request, without its body.
#[derive(Debug)]
struct BegunKey {
    id: Sha256,
    fingerprint: Sha256,
}

impl BegunKey {
    fn end(mut self, body: &[u8]) -> IdempotencyKey {
        add_part(&mut self.fingerprint, body);
        IdempotencyKey { id: first_half(self.id), fingerprint: first_half(self.fingerprint) }
    }
}

/// The idempotency key of a request, with a fingerprint of everything that its meaning depends on but the body.
fn begin_idempotency_key(principal: &Principal, parts: &Parts) -> Result<Option<BegunKey>, Problem> {
    let Some(key) = single(&parts.headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = key.as_bytes();
    if !(1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
        let msg = format!("expected 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters");
        return Err(header_problem(&IDEMPOTENCY_KEY, &msg));
    }
    // A header that is given several times is one list.
    let header = |name| {
        let mut values = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let first = values.next().unwrap_or_default();
        values.fold(Cow::Borrowed(first), |all: Cow<'_, [u8]>, value| {
            Cow::Owned([&all, &b","[..], value].concat())
        })
    };
    let path = parts.uri.path();
    // The media type decides how a patch is read; the meaning of other bodies does not depend on it.
    let format = match body::patch_format(&parts.headers).filter(|_| parts.method == Method::PATCH) {
        Some(PatchFormat::Merge) => "merge",
        Some(PatchFormat::Json) => "json",
        // No media type says it.
        Some(PatchFormat::Replace) | None => "",
    };
    let fingerprint = [
        format.as_bytes(),
        parts.method.as_str().as_bytes(),
        path.strip_suffix('/').unwrap_or(path).as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        &*header(header::IF_MATCH),
        &*header(header::IF_NONE_MATCH),
    ];
    let mut hash = Sha256::new();
    for part in fingerprint {
        add_part(&mut hash, part);
    }
    let id = Sha256::new().chain_update(principal.owner()).chain_update([0]).chain_update(key);
    Ok(Some(BegunKey { id, fingerprint: hash }))
}

/// Each part is preceded by its length, so that different requests never give the same bytes.
fn add_part(hash: &mut Sha256, part: &[u8]) {
    hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
    hash.update(part);
}

fn first_half(hash: Sha256) -> [u8; 16] {
    let whole: [u8; 32] = hash.finalize().into();
    let (half, _) = whole.split_first_chunk().expect("32 bytes have a first 16");
    *half
}

#[cfg(test)]
mod tests;
