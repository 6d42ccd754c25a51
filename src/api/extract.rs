//! Requests as typed values: keys, query, conditions, headers, body.
//!
//! A read is a [`ReadRequest`], a write is a [`WriteRequest`]. Keys stay unvalidated strings here, because the order of
//! errors is fixed: the shape of query and body comes before the keys.
//!
//! **Invariant:** a parameter or header of this interface that is malformed refuses the request; it is never ignored.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request},
};
use http::{HeaderMap, HeaderName, Method, Uri, header, request::Parts};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    body::{self, Received},
    condition::{Condition, header_problem, single},
    reply::Problem,
};
use crate::{
    model::{
        command::IdempotencyKey,
        error::Violation,
        key::Key,
        limits::{IDEMPOTENCY_KEY_BYTES_MAX, REASON_BYTES_MAX},
        patch::PatchFormat,
        query::QueryError,
        record::Revision,
    },
    service::{Caller, Consistency, Level, Principal, Refusal, Service, Share},
};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CHANGE_REASON: HeaderName = HeaderName::from_static("x-change-reason");

/// The keys in a path, not validated; empty where the path has none.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) definition: String,
    pub(super) config: String,
}

impl Keys {
    fn from_uri(uri: &Uri) -> Self {
        // `/api/v1/config_definition/{definition}/config/{config}`: bytes that are not UTF-8 become a replacement
        // character, which no key contains, so that the check of the key refuses them.
        let segment = |position| {
            let text = uri.path().split('/').nth(position).unwrap_or_default();
            percent_decode_str(text).decode_utf8_lossy().into_owned()
        };
        Self { definition: segment(4), config: segment(6) }
    }
}

/// Refuses a malformed key; `name` is the path's parameter.
pub(super) fn check_key(text: &str, name: &'static str) -> Result<(), Problem> {
    match Key::parse(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::violation(Violation::at(vec![name.into()], error.to_string()))),
    }
}

/// The pairs of a query, decoded, in order.
#[derive(Debug)]
pub(super) struct Params(pub(super) Vec<(String, String)>);

impl Params {
    pub(super) fn from_uri(uri: &Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect())
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

    /// Whether the write is a dry run: validated and answered, not stored.
    fn dry_run(&self) -> Result<bool, Problem> {
        match self.get("dry_run") {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => {
                Err(Problem::violation(query_violation("dry_run", "`dry_run` must be `true` or `false`")))
            }
        }
    }

    /// Whether the caller sets `mode=restrict`.
    pub(super) fn restrict(&self) -> Result<bool, Problem> {
        match self.get("mode") {
            None => Ok(false),
            Some("restrict") => Ok(true),
            Some(_) => {
                Err(Problem::violation(query_violation("mode", "`mode` must be `restrict` or absent")))
            }
        }
    }

    /// The consistency of a read, together with the rest of its query (`rest`). The refusal lists the errors of
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
            None | Some("linearizable") => {
                if self.get("max_staleness_ms").is_some() {
                    errors.violations.push(query_violation(
                        "max_staleness_ms",
                        "`max_staleness_ms` needs `consistency=local`",
                    ));
                }
                Level::Linearizable
            }
            Some(_) => {
                errors
                    .violations
                    .push(query_violation("consistency", "`consistency` must be `local` or `linearizable`"));
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
    pub(super) fn number(&mut self, params: &Params, name: &str) -> Option<u64> {
        match params.get(name).map(parse_integer)? {
            None => self.integers.push(name.to_owned()),
            Some(Integer::Negative) => {
                self.violations.push(query_violation(name, format!("`{name}` must not be negative")));
            }
            Some(Integer::NonNegative(number)) => return Some(number),
        }
        None
    }

    /// The value, unless there are errors; integers that do not parse are refused before violations.
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
    /// A number that is too large saturates: no revision and no time reaches it.
    NonNegative(u64),
}

fn parse_integer(text: &str) -> Option<Integer> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().unwrap_or(u64::MAX);
    Some(if text.starts_with('-') && number > 0 { Integer::Negative } else { Integer::NonNegative(number) })
}

/// A read.
#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) keys: Keys,
    pub(super) params: Params,
    pub(super) path: String,
    headers: HeaderMap,
}

impl ReadRequest {
    /// Whether the caller already has this version (`If-None-Match`).
    pub(super) fn has(&self, revision: Revision) -> bool {
        let current = format!("\"{revision}\"");
        // A malformed tag cannot be the current one: the read is answered in full.
        self.headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == current)
    }
}

impl<S: Sync> FromRequestParts<S> for ReadRequest {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let headers = std::mem::take(&mut parts.headers);
        let path = parts.uri.path().to_owned();
        Ok(Self { keys: Keys::from_uri(&parts.uri), params: Params::from_uri(&parts.uri), path, headers })
    }
}

/// A write: who sends it, on what condition, with which body.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) keys: Keys,
    pub(super) params: Params,
    pub(super) condition: Condition,
    pub(super) caller: Caller,
    /// The format of the patch in the body of a `PATCH`.
    pub(super) patch_format: Option<PatchFormat>,
    body: Received,
}

impl WriteRequest {
    /// The body, parsed.
    pub(super) fn json(&self, service: &Service) -> Result<Value, Problem> {
        self.body.json(service.limits().json_depth)
    }

    /// Refuses a dry run; for requests that have none.
    pub(super) fn refuse_dry_run(self) -> Result<Self, Problem> {
        if self.caller.dry_run {
            return Err(Problem::violation(query_violation("dry_run", "this request has no dry run")));
        }
        Ok(self)
    }
}

impl FromRequest<Service> for WriteRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let limit = service.limits().body_bytes;
        let mut held = service.reservation(Share::Callers);
        let body = body::receive(&parts.headers, body, limit, &mut held).await?;
        let body = if parts.method == Method::DELETE { Bytes::new() } else { body };
        let patch_format = body::patch_format(&parts.headers).filter(|_| parts.method == Method::PATCH);
        if parts.method == Method::PATCH && patch_format.is_none() {
            return Err(Problem::UnsupportedPatch);
        }
        if parts.method != Method::DELETE {
            body::check_type(&parts.headers)?;
        }
        let principal = parts
            .extensions
            .remove::<Principal>()
            .ok_or_else(|| Refusal::Internal("a write passed the access layer without a principal".into()))?;
        let params = Params::from_uri(&parts.uri);
        let dry_run = params.dry_run()?;
        // The answer to a dry run is not remembered, and a remembered answer never answers a dry run.
        let request = idempotency_key(&principal, &parts, &body)?.filter(|_| !dry_run);
        let reason = reason(&parts.headers)?;
        Ok(Self {
            keys: Keys::from_uri(&parts.uri),
            params,
            condition: Condition::from_headers(&parts.headers)?,
            caller: Caller { principal, reason, idempotency_key: request, dry_run },
            patch_format,
            body: Received::new(service, body, held).await?,
        })
    }
}

/// The reason of the change, as the caller states it.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = single(headers, &CHANGE_REASON)? else { return Ok(None) };
    if value.len() > REASON_BYTES_MAX {
        return Err(header_problem(&CHANGE_REASON, &format!("longer than {REASON_BYTES_MAX} bytes")));
    }
    let text =
        std::str::from_utf8(value.as_bytes()).map_err(|_| header_problem(&CHANGE_REASON, "not UTF-8"))?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

/// The idempotency key of a request, with a fingerprint of everything that its meaning depends on.
fn idempotency_key(
    principal: &Principal,
    parts: &Parts,
    body: &[u8],
) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(key) = single(&parts.headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = key.as_bytes();
    if !(1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
        let msg = format!("expected 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters");
        return Err(header_problem(&IDEMPOTENCY_KEY, &msg));
    }
    let header = |name| parts.headers.get(name).map_or(&b""[..], http::HeaderValue::as_bytes);
    let path = parts.uri.path();
    // The media type decides how a patch is read; the meaning of other bodies does not depend on it.
    let format = match body::patch_format(&parts.headers).filter(|_| parts.method == Method::PATCH) {
        Some(PatchFormat::Merge) => "merge",
        Some(PatchFormat::Json) => "json",
        None => "",
    };
    let fingerprint = [
        format.as_bytes(),
        parts.method.as_str().as_bytes(),
        path.strip_suffix('/').unwrap_or(path).as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        header(header::IF_MATCH),
        header(header::IF_NONE_MATCH),
        body,
    ];
    let mut hash = Sha256::new();
    for part in fingerprint {
        // Each part is preceded by its length, so that different requests never give the same bytes.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let id = Sha256::new().chain_update(&principal.id).chain_update([0]).chain_update(key);
    Ok(Some(IdempotencyKey { id: first_half(id), fingerprint: first_half(hash) }))
}

fn first_half(hash: Sha256) -> [u8; 16] {
    let whole: [u8; 32] = hash.finalize().into();
    let (half, _) = whole.split_first_chunk().expect("32 bytes have a first 16");
    *half
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::reply::Detail,
        model::error::{Invalid, LocSegment},
    };

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn violations<T: std::fmt::Debug>(made: Result<T, Problem>) -> usize {
        match made {
            Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) => {
                violations.len()
            }
            other => panic!("{other:?} is not a refusal with violations"),
        }
    }

    fn read(query: &str, rest: Result<(), QueryError>) -> Result<Consistency, Problem> {
        Params::from_uri(&format!("/?{query}").parse().unwrap())
            .with_consistency(rest)
            .map(|(consistency, ())| consistency)
    }

    #[test]
    fn if_none_match_is_compared_with_the_current_version() {
        let has = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| (header::IF_NONE_MATCH, *value)).collect();
            let uri = Uri::from_static("/");
            ReadRequest {
                keys: Keys::from_uri(&uri),
                params: Params::from_uri(&uri),
                path: "/".into(),
                headers: headers(&pairs),
            }
            .has(7)
        };
        assert!(has(&["\"7\""]) && has(&["*"]) && has(&["\"1\", W/\"7\""]) && has(&["\"1\"", "\"7\""]));
        assert!(!has(&[]) && !has(&["\"8\""]) && !has(&["7"]) && !has(&["\"77\""]) && !has(&["\"7"]));
    }

    #[test]
    fn consistency_is_parsed_and_its_violations_are_listed_with_the_others() {
        let local = |max_staleness| Level::Local { max_staleness };
        let is = |level, min_revision| Consistency { level, min_revision };
        assert_eq!(read("", Ok(())).unwrap(), is(Level::Linearizable, None));
        assert_eq!(
            read("consistency=linearizable&min_revision=%2B5", Ok(())).unwrap(),
            is(Level::Linearizable, Some(5))
        );
        let time = Some(Duration::from_millis(20));
        assert_eq!(read("consistency=local&max_staleness_ms=20", Ok(())).unwrap(), is(local(time), None));
        let huge = "consistency=local&min_revision=99999999999999999999999";
        assert_eq!(read(huge, Ok(())).unwrap(), is(local(None), Some(u64::MAX)));
        for bad in ["consistency=", "consistency=Local", "max_staleness_ms=1", "min_revision=-1"] {
            assert_eq!(violations(read(bad, Ok(()))), 1, "{bad}");
        }
        let rest = QueryError::Violations(vec![Violation::new("x")]);
        assert_eq!(violations(read("consistency=x&min_revision=-1", Err(rest))), 3);
    }

    #[test]
    fn all_integers_that_do_not_parse_are_listed_before_anything_else_is() {
        let rest = QueryError::NotIntegers(vec!["page".into()]);
        let made = read("min_revision=&max_staleness_ms=1.5&consistency=x", Err(rest));
        let Err(Problem::Shape(details)) = made else { panic!("{made:?}") };
        let loc = |name: &str| vec![LocSegment::from("query"), name.into()];
        let locs: Vec<_> = details.iter().map(|Detail { loc, .. }| loc.clone()).collect();
        assert_eq!(locs, [loc("page"), loc("max_staleness_ms"), loc("min_revision")]);
        assert!(details.iter().all(|detail| detail.kind == "int_parsing"));
    }

    #[test]
    fn keys_are_decoded_once_and_invalid_utf_8_is_no_key() {
        let keys = |path: &str| Keys::from_uri(&format!("/api/v1/config_definition{path}").parse().unwrap());
        let both = keys("/d.1/config/k%7E/");
        assert_eq!((both.definition.as_str(), both.config.as_str()), ("d.1", "k~"));
        assert_eq!(keys("/a%252F/config/").definition, "a%2F");
        assert_eq!(keys("/").definition, "");
        for bad in ["/%ff", "/a%2Fb", "/%00", "/a%20"] {
            assert_eq!(violations(check_key(&keys(bad).definition, "config_definition_key")), 1, "{bad}");
        }
    }

    #[test]
    fn requests_have_the_same_fingerprint_only_when_no_part_differs() {
        let key_of_request =
            |principal: &str, method: &str, uri: &str, pairs: &[(HeaderName, &str)], body: &str| {
                let mut request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
                *request.headers_mut() = headers(pairs);
                request.headers_mut().append(IDEMPOTENCY_KEY, "k".parse().unwrap());
                let (parts, ()) = request.into_parts();
                idempotency_key(&Principal { id: principal.into() }, &parts, body.as_bytes())
                    .unwrap()
                    .unwrap()
            };
        let tag = (header::IF_MATCH, "\"1\"");
        let first = key_of_request("p", "PUT", "/a", std::slice::from_ref(&tag), "b");
        assert_eq!(key_of_request("p", "PUT", "/a/", std::slice::from_ref(&tag), "b"), first);
        let other = key_of_request("q", "PUT", "/a", std::slice::from_ref(&tag), "b");
        assert!(other.id != first.id && other.fingerprint == first.fingerprint);
        for different in [
            key_of_request("p", "POST", "/a", std::slice::from_ref(&tag), "b"),
            key_of_request("p", "PUT", "/b", std::slice::from_ref(&tag), "b"),
            key_of_request("p", "PUT", "/a?x", std::slice::from_ref(&tag), "b"),
            key_of_request("p", "PUT", "/a", &[], "b"),
            key_of_request("p", "PUT", "/a", &[(header::IF_NONE_MATCH, "\"1\"")], "b"),
            key_of_request("p", "PUT", "/a", std::slice::from_ref(&tag), "c"),
        ] {
            assert!(different.id == first.id && different.fingerprint != first.fingerprint);
        }
    }

    #[test]
    fn reasons_and_idempotency_keys_are_bounded() {
        let reason_of = |value: &str| reason(&headers(&[(CHANGE_REASON, value)]));
        assert_eq!(reason_of("größer").unwrap().as_deref(), Some("größer"));
        assert_eq!(reason_of("").unwrap(), None);
        assert!(reason_of(&"x".repeat(1024)).is_ok());
        assert_eq!(violations(reason_of(&"x".repeat(1025))), 1);
        let latin = HeaderMap::from_iter([(CHANGE_REASON, http::HeaderValue::from_bytes(b"\xff").unwrap())]);
        assert_eq!(violations(reason(&latin)), 1);
        let key_of = |value: &str| {
            let mut request = http::Request::new(());
            request.headers_mut().append(IDEMPOTENCY_KEY, value.parse().unwrap());
            idempotency_key(&Principal { id: "p".into() }, &request.into_parts().0, b"")
        };
        assert!(key_of(&"x".repeat(255)).is_ok());
        for bad in ["", "a b", &"x".repeat(256)] {
            assert_eq!(violations(key_of(bad)), 1, "{bad:?}");
        }
    }
}
