//! What a request says besides its body: keys, query, conditions, headers, as typed values.
//!
//! A read is a [`Read`], a write is an [`Ask`]. Keys stay raw texts here: they are judged in the contract's order,
//! behind the shape of query and body.
//!
//! **Invariant:** a parameter or header of ours that can't be understood refuses the request; it is never taken
//! for absent.

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
    body,
    condition::{Condition, single, wrong},
    patch,
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
    service::{Caller, Consistency, Level, Principal, Refusal, Service},
};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CHANGE_REASON: HeaderName = HeaderName::from_static("x-change-reason");

/// The keys in a path; empty where the path has none.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) definition: String,
    pub(super) config: String,
}

impl Keys {
    fn of(uri: &Uri) -> Self {
        // `/api/v1/config_definition/{definition}/config/{config}`: bytes that are no UTF-8 become a replacement
        // character, which no key has, so that they are refused as a wrong key in its turn.
        let segment = |place| {
            let text = uri.path().split('/').nth(place).unwrap_or_default();
            percent_decode_str(text).decode_utf8_lossy().into_owned()
        };
        Self { definition: segment(4), config: segment(6) }
    }
}

/// The key that a text in a path is; `name` is the path's parameter.
pub(super) fn key(text: &str, name: &'static str) -> Result<Key, Problem> {
    Key::parse(text).map_err(|error| Problem::violation(Violation::at(vec![name.into()], error.to_string())))
}

/// The pairs of a query, decoded, in their order.
#[derive(Debug)]
pub(super) struct Params(pub(super) Vec<(String, String)>);

impl Params {
    pub(super) fn of(uri: &Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// The value of a parameter; the last counts.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Some parameters that are whole numbers and none of them negative, where they are there.
    pub(super) fn numbers<const N: usize>(&self, names: [&str; N]) -> Result<[Option<u64>; N], QueryError> {
        let mut wrong = Wrong::default();
        let numbers = names.map(|name| wrong.number(self, name));
        wrong.end(Some(numbers))
    }

    /// Whether only the answer is asked for.
    fn dry_run(&self) -> Result<bool, Problem> {
        match self.get("dry_run") {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::violation(violation("dry_run", "`dry_run` must be `true` or `false`"))),
        }
    }

    /// Whether `mode=restrict` is asked.
    pub(super) fn restrict(&self) -> Result<bool, Problem> {
        match self.get("mode") {
            None => Ok(false),
            Some("restrict") => Ok(true),
            Some(_) => Err(Problem::violation(violation("mode", "`mode` must be `restrict` or absent"))),
        }
    }

    /// How fresh the read must be, beside what the rest of the query says: all that is wrong is told at once,
    /// integers that don't parse before all else.
    pub(super) fn read<T>(&self, rest: Result<T, QueryError>) -> Result<(Consistency, T), Problem> {
        let mut wrong = Wrong::default();
        let staleness_ms = wrong.number(self, "max_staleness_ms");
        let min_revision = wrong.number(self, "min_revision");
        let level = match self.get("consistency") {
            Some("local") => Level::Local { max_staleness: staleness_ms.map(Duration::from_millis) },
            None | Some("linearizable") => {
                if self.get("max_staleness_ms").is_some() {
                    wrong
                        .violations
                        .push(violation("max_staleness_ms", "`max_staleness_ms` needs `consistency=local`"));
                }
                Level::Linearizable
            }
            Some(_) => {
                wrong
                    .violations
                    .push(violation("consistency", "`consistency` must be `local` or `linearizable`"));
                Level::Linearizable
            }
        };
        let rest = match rest {
            Ok(rest) => Some(rest),
            Err(QueryError::NotIntegers(names)) => {
                wrong.integers.splice(0..0, names);
                None
            }
            Err(QueryError::Violations(more)) => {
                wrong.violations.splice(0..0, more);
                None
            }
            Err(building @ QueryError::Building(_)) => return Err(building.into()),
        };
        Ok(wrong.end(rest.map(|rest| (Consistency { level, min_revision }, rest)))?)
    }
}

pub(super) fn violation(name: &str, msg: impl Into<String>) -> Violation {
    Violation::at(vec!["query".into(), name.into()], msg)
}

/// What is wrong with a query, as it is found.
#[derive(Default)]
pub(super) struct Wrong {
    integers: Vec<String>,
    pub(super) violations: Vec<Violation>,
}

impl Wrong {
    /// A parameter that is a whole number and not negative, where it is there.
    pub(super) fn number(&mut self, params: &Params, name: &str) -> Option<u64> {
        match params.get(name).map(whole)? {
            None => self.integers.push(name.to_owned()),
            Some(Whole::Negative) => {
                self.violations.push(violation(name, format!("`{name}` must not be negative")));
            }
            Some(Whole::Number(number)) => return Some(number),
        }
        None
    }

    /// What was found, if nothing is wrong; integers that don't parse are told before all else.
    pub(super) fn end<T>(self, found: Option<T>) -> Result<T, QueryError> {
        match found {
            _ if !self.integers.is_empty() => Err(QueryError::NotIntegers(self.integers)),
            Some(found) if self.violations.is_empty() => Ok(found),
            Some(_) | None => Err(QueryError::Violations(self.violations)),
        }
    }
}

/// An integer of any size.
enum Whole {
    Negative,
    /// One that is too large to be represented saturates: no revision and no time reaches it.
    Number(u64),
}

fn whole(text: &str) -> Option<Whole> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().unwrap_or(u64::MAX);
    Some(if text.starts_with('-') && number > 0 { Whole::Negative } else { Whole::Number(number) })
}

/// A read as it was asked.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) keys: Keys,
    pub(super) params: Params,
    pub(super) path: String,
    headers: HeaderMap,
}

impl Read {
    /// Whether the caller has this version already (`If-None-Match`).
    pub(super) fn has(&self, revision: Revision) -> bool {
        let current = format!("\"{revision}\"");
        // A tag that is malformed can't be the current one, and a read is no worse for being answered in full.
        self.headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == current)
    }
}

impl<S: Sync> FromRequestParts<S> for Read {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let headers = std::mem::take(&mut parts.headers);
        let path = parts.uri.path().to_owned();
        Ok(Self { keys: Keys::of(&parts.uri), params: Params::of(&parts.uri), path, headers })
    }
}

/// A write as it was asked: who, on what condition, with which body.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) keys: Keys,
    pub(super) params: Params,
    pub(super) condition: Condition,
    pub(super) caller: Caller,
    /// What kind of patch the body says it is, if it is one.
    pub(super) patch_form: Option<PatchFormat>,
    body: Bytes,
}

impl Ask {
    /// The body, parsed.
    pub(super) fn json(&self, service: &Service) -> Result<Value, Problem> {
        body::json(&self.body, service.limits().json_depth)
    }
}

impl Ask {
    /// The request of something that can't be tried: it is done, or refused when a dry run is asked.
    pub(super) fn real(self) -> Result<Self, Problem> {
        if self.caller.dry_run {
            return Err(Problem::violation(violation("dry_run", "this request has no dry run")));
        }
        Ok(self)
    }
}

impl FromRequest<Service> for Ask {
    type Rejection = Problem;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let limit = service.limits().body_bytes;
        let body = body::receive(&parts.headers, body, limit).await?;
        let body = if parts.method == Method::DELETE { Bytes::new() } else { body };
        let patch_form = patch::form(&parts.headers).filter(|_| parts.method == Method::PATCH);
        if parts.method == Method::PATCH && patch_form.is_none() {
            return Err(Problem::NoPatch);
        }
        if parts.method != Method::DELETE {
            body::check_type(&parts.headers)?;
        }
        let principal = parts.extensions.get::<Principal>().cloned().ok_or_else(|| {
            Refusal::Internal("a write came past the access layer without a principal".into())
        })?;
        let params = Params::of(&parts.uri);
        let dry_run = params.dry_run()?;
        // Nothing of a dry run is remembered, and no kept answer is one.
        let request = stamp(&principal, &parts, &body)?.filter(|_| !dry_run);
        let reason = reason(&parts.headers)?;
        Ok(Self {
            keys: Keys::of(&parts.uri),
            params,
            condition: Condition::of(&parts.headers)?,
            caller: Caller { principal, reason, idempotency_key: request, dry_run },
            patch_form,
            body,
        })
    }
}

/// Why the change is made, in the caller's words.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = single(headers, &CHANGE_REASON)? else { return Ok(None) };
    if value.len() > REASON_BYTES_MAX {
        return Err(wrong(&CHANGE_REASON, &format!("longer than {REASON_BYTES_MAX} bytes")));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| wrong(&CHANGE_REASON, "not UTF-8"))?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

/// The mark of a request that may be sent again; all that may change its meaning is in its print.
fn stamp(principal: &Principal, parts: &Parts, body: &[u8]) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(key) = single(&parts.headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = key.as_bytes();
    if !(1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
        let msg = format!("expected 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters");
        return Err(wrong(&IDEMPOTENCY_KEY, &msg));
    }
    let header = |name| parts.headers.get(name).map_or(&b""[..], http::HeaderValue::as_bytes);
    let path = parts.uri.path();
    // The media type says how a patch is read; of other bodies it says nothing more.
    let form = match patch::form(&parts.headers).filter(|_| parts.method == Method::PATCH) {
        Some(PatchFormat::Merge) => "merge",
        Some(PatchFormat::Json) => "json",
        None => "",
    };
    let print = [
        form.as_bytes(),
        parts.method.as_str().as_bytes(),
        path.strip_suffix('/').unwrap_or(path).as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        header(header::IF_MATCH),
        header(header::IF_NONE_MATCH),
        body,
    ];
    let mut hash = Sha256::new();
    for part in print {
        // With its length, so that no two requests are the same run of bytes.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let id = Sha256::new().chain_update(&principal.id).chain_update([0]).chain_update(key);
    Ok(Some(IdempotencyKey { id: half(id), fingerprint: half(hash) }))
}

fn half(hash: Sha256) -> [u8; 16] {
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
            other => panic!("{other:?} is no refusal of a rule"),
        }
    }

    fn read(query: &str, rest: Result<(), QueryError>) -> Result<Consistency, Problem> {
        Params::of(&format!("/?{query}").parse().unwrap()).read(rest).map(|(consistency, ())| consistency)
    }

    #[test]
    fn a_read_knows_the_version_that_its_caller_has() {
        let has = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| (header::IF_NONE_MATCH, *value)).collect();
            let uri = Uri::from_static("/");
            Read {
                keys: Keys::of(&uri),
                params: Params::of(&uri),
                path: "/".into(),
                headers: headers(&pairs),
            }
            .has(7)
        };
        assert!(has(&["\"7\""]) && has(&["*"]) && has(&["\"1\", W/\"7\""]) && has(&["\"1\"", "\"7\""]));
        assert!(!has(&[]) && !has(&["\"8\""]) && !has(&["7"]) && !has(&["\"77\""]) && !has(&["\"7"]));
    }

    #[test]
    fn freshness_is_read_and_its_faults_are_told_with_the_others() {
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
        let place = |name: &str| vec![LocSegment::from("query"), name.into()];
        let places: Vec<_> = details.iter().map(|Detail { loc, .. }| loc.clone()).collect();
        assert_eq!(places, [place("page"), place("max_staleness_ms"), place("min_revision")]);
        assert!(details.iter().all(|detail| detail.kind == "int_parsing"));
    }

    #[test]
    fn keys_are_decoded_once_and_what_is_no_text_is_no_key() {
        let keys = |path: &str| Keys::of(&format!("/api/v1/config_definition{path}").parse().unwrap());
        let both = keys("/d.1/config/k%7E/");
        assert_eq!((both.definition.as_str(), both.config.as_str()), ("d.1", "k~"));
        assert_eq!(keys("/a%252F/config/").definition, "a%2F");
        assert_eq!(keys("/").definition, "");
        for bad in ["/%ff", "/a%2Fb", "/%00", "/a%20"] {
            assert_eq!(violations(key(&keys(bad).definition, "config_definition_key")), 1, "{bad}");
        }
    }

    #[test]
    fn a_request_is_itself_again_only_when_nothing_of_it_differs() {
        let stamp_of =
            |principal: &str, method: &str, uri: &str, pairs: &[(HeaderName, &str)], body: &str| {
                let mut request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
                *request.headers_mut() = headers(pairs);
                request.headers_mut().append(IDEMPOTENCY_KEY, "k".parse().unwrap());
                let (parts, ()) = request.into_parts();
                stamp(&Principal { id: principal.into() }, &parts, body.as_bytes()).unwrap().unwrap()
            };
        let tag = (header::IF_MATCH, "\"1\"");
        let first = stamp_of("p", "PUT", "/a", std::slice::from_ref(&tag), "b");
        assert_eq!(stamp_of("p", "PUT", "/a/", std::slice::from_ref(&tag), "b"), first);
        let other = stamp_of("q", "PUT", "/a", std::slice::from_ref(&tag), "b");
        assert!(other.id != first.id && other.fingerprint == first.fingerprint);
        for different in [
            stamp_of("p", "POST", "/a", std::slice::from_ref(&tag), "b"),
            stamp_of("p", "PUT", "/b", std::slice::from_ref(&tag), "b"),
            stamp_of("p", "PUT", "/a?x", std::slice::from_ref(&tag), "b"),
            stamp_of("p", "PUT", "/a", &[], "b"),
            stamp_of("p", "PUT", "/a", &[(header::IF_NONE_MATCH, "\"1\"")], "b"),
            stamp_of("p", "PUT", "/a", std::slice::from_ref(&tag), "c"),
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
            stamp(&Principal { id: "p".into() }, &request.into_parts().0, b"")
        };
        assert!(key_of(&"x".repeat(255)).is_ok());
        for bad in ["", "a b", &"x".repeat(256)] {
            assert_eq!(violations(key_of(bad)), 1, "{bad:?}");
        }
    }
}
