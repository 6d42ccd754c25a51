//! Authentication of every request, those for unknown paths included.
//!
//! **Invariant:** no answer reveals anything about a request, not even whether its path exists, before the credential is
//! checked. Only GET and HEAD of the probes, of `docs` and of `console` need none; no other header, address or spelling is
//! exempt.

use axum::extract::Request;
use http::{HeaderMap, Method, header};

use super::{console, docs, probes, reply::Problem, server::CallerConnection};
use crate::service::{Principal, Service};

/// How a request was let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Its credential is good, and this is the credential's owner.
    Granted(Principal),
    /// It needs none, and none was looked at.
    Public,
}

/// Lets a request in, or refuses it.
pub(super) fn authenticate(service: &Service, request: &Request) -> Result<Access, Problem> {
    if is_public(request.method(), request.uri().path()) {
        return Ok(Access::Public);
    }
    let credential = credential(request.headers()).map_err(Problem::Unauthenticated)?;
    let principal =
        service.authenticate(credential).ok_or(Problem::Unauthenticated("the credential is not valid"))?;
    CallerConnection::mark_known(request.extensions());
    Ok(Access::Granted(principal))
}

fn is_public(method: &Method, path: &str) -> bool {
    (method == Method::GET || method == Method::HEAD)
        && (path == "/"
            || probes::LIVE.contains(&path)
            || probes::READY.contains(&path)
            || docs::is_public(path)
            || console::is_public(path))
}

/// The credential of `Authorization: <key>` or `Authorization: Bearer <key>`.
fn credential(headers: &HeaderMap) -> Result<&[u8], &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or("the header `Authorization` is missing")?;
    if values.next().is_some() {
        // Servers differ in which of two headers counts: a proxy may have checked the other one.
        return Err("the header `Authorization` is given twice");
    }
    let value = value.as_bytes().trim_ascii();
    let credential = match value.split_at_checked(6) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer") => match rest.first() {
            None => rest,
            Some(b' ' | b'\t') => rest.trim_ascii_start(),
            Some(_) => value,
        },
        _ => value,
    };
    if credential.is_empty() { Err("the header `Authorization` is empty") } else { Ok(credential) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        credential(&headers).ok().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn a_key_is_given_alone_or_after_its_scheme() {
        for value in ["secret", "Bearer secret", "bearer secret", "BEARER   secret", " secret "] {
            assert_eq!(of(&[value]).as_deref(), Some("secret"), "{value:?}");
        }
        assert_eq!(
            of(&["bearersecret"]).as_deref(),
            Some("bearersecret"),
            "a key may begin with the name of the scheme"
        );
        assert_eq!(
            of(&["Basic secret"]).as_deref(),
            Some("Basic secret"),
            "another scheme is part of the credential, which then is no key"
        );
    }

    #[test]
    fn no_header_an_empty_one_and_two_are_no_credential() {
        for values in [&[][..], &[""], &["Bearer"], &["bearer "], &["secret", "secret"]] {
            assert_eq!(of(values), None, "{values:?}");
        }
    }

    #[test]
    fn only_reads_of_the_probes_are_public() {
        for path in ["/", "/livez", "/readyz", "/health", "/readiness-probe"] {
            assert!(is_public(&Method::GET, path) && is_public(&Method::HEAD, path), "{path}");
            assert!(!is_public(&Method::POST, path) && !is_public(&Method::OPTIONS, path), "{path}");
        }
        for path in ["", "//", "/livez/", "//livez", "/%6civez", "/livez/../api/v1/cluster", "/metrics"] {
            assert!(!is_public(&Method::GET, path), "{path}");
        }
    }
}
