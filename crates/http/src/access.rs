//! Authentication of every request, those for unknown paths included.
//!
//! **Invariant:** before the credential is checked, no response reveals anything, not even whether a path exists. Only
//! open endpoints (`endpoints`), and unknown paths below those of the pages, need no credential; no header, address or
//! spelling exempts a request. A ticket is a credential of one endpoint alone.

use std::borrow::Cow;

use axum::response::{IntoResponse as _, Response};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{Extensions, HeaderMap, HeaderName, Uri, header};
use tokio::time::Instant;

use super::{
    endpoints::Matched,
    extract::QueryParams,
    quota,
    reply::{NOT_VALID, Problem},
    server::CallerConnection,
};
use concord_service::{
    CallerAddress, Judgement, NotAuthenticated, Principal, Refusal, Service, quota::CredentialAttempt,
};

/// The parameter with a ticket.
pub(super) const TICKET: &str = "ticket";
/// The header in which Consul's clients send their credential.
const CONSUL_TOKEN: HeaderName = HeaderName::from_static("x-consul-token");

/// How a request was let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestAccess {
    /// Its credential is good, and this is the credential's owner.
    Authenticated(Principal),
    /// It needs none, and none was looked at.
    Public,
}

/// Lets in a request that needs a key, or answers why not. It takes the parts of the request's head, because a body is
/// used by one thread. `takes_token`: its endpoint takes the header of Consul's clients, too.
pub(super) async fn authenticate(
    service: &Service,
    headers: &HeaderMap,
    extensions: &Extensions,
    takes_token: bool,
) -> Result<RequestAccess, Response> {
    let refused = |why| Problem::Unauthenticated(why).into_response();
    let credential = credential(headers, takes_token).map_err(refused)?;
    let credential = &*credential;
    let authentication = &service.authentication;
    // Before the credential is checked, so that the time of the response tells nothing to a client that guesses.
    let mut attempt = match service.quotas.admit_credential(credential) {
        Ok(attempt) => Some(attempt),
        // Whose key is stored is not locked out by others of the same address.
        Err(_)
            if authentication.is_stored(credential) && !concord_model::sabotage::is("good-key-throttled") =>
        {
            None
        }
        Err(exceeded) => return Err(quota::refused(&exceeded)),
    };
    let judged = match authentication.judge(credential) {
        Judgement::Valid(principal) => Ok(principal),
        Judgement::NotValid => Err(NotAuthenticated::NotValid),
        Judgement::Unsettled => {
            if let Some(attempt) = &mut attempt {
                attempt.waits();
            }
            // Boxed: otherwise the future of every request would have space for it.
            Box::pin(authentication.settle(credential)).await
        }
    };
    match judged {
        Ok(principal) => {
            attempt.into_iter().for_each(CredentialAttempt::was_good);
            CallerConnection::mark_known(extensions);
            CallerAddress::note_owner(&principal);
            Ok(RequestAccess::Authenticated(principal))
        }
        Err(NotAuthenticated::NotValid) => {
            attempt.into_iter().for_each(CredentialAttempt::has_failed);
            Err(refused(NOT_VALID))
        }
        Err(NotAuthenticated::Unconfirmed(why)) => {
            Err(Problem::from(Refusal::Unavailable(why)).into_response())
        }
    }
}

/// The ticket of a request without a header for its credential, if its endpoint takes one.
pub(super) fn ticket_of(matched: &Matched, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let takes_ticket = matched.endpoint.is_some_and(|endpoint| endpoint.takes_ticket);
    if !takes_ticket || headers.contains_key(header::AUTHORIZATION) {
        return None;
    }
    QueryParams::from_uri(uri).get(TICKET).map(str::to_owned)
}

/// Lets in a request with a ticket for a definition, or answers why not.
pub(super) fn authenticate_ticket(
    service: &Service,
    extensions: &Extensions,
    definition: &str,
    ticket: &str,
) -> Result<RequestAccess, Box<Response>> {
    let attempt = match service.quotas.admit_credential(ticket.as_bytes()) {
        Ok(attempt) => attempt,
        Err(exceeded) => return Err(Box::new(quota::refused(&exceeded))),
    };
    match service.authentication.judge_ticket(definition, ticket) {
        Judgement::Valid(principal) => {
            attempt.was_good();
            CallerConnection::mark_known(extensions);
            CallerAddress::note_owner(&principal);
            Ok(RequestAccess::Authenticated(principal))
        }
        Judgement::NotValid => {
            attempt.has_failed();
            Err(Box::new(Problem::Unauthenticated(NOT_VALID).into_response()))
        }
        Judgement::Unsettled => {
            let text = "this node can't know now whether the ticket is valid";
            Err(Box::new(Problem::from(Refusal::Unavailable(text.into())).into_response()))
        }
    }
}

/// The principal that waits for the response to a read, and since when. A read may wait seconds for a revision or for
/// its turn, so the permission is checked again before the response. A write is authorized again where it is applied.
#[derive(Debug)]
pub(super) struct WaitingReader {
    principal: Principal,
    begin: Instant,
}

impl WaitingReader {
    /// The reader of a request; `None` for a write, and for what needs no credential.
    pub(super) fn of(access: &RequestAccess, is_read: bool) -> Option<Self> {
        match access {
            RequestAccess::Authenticated(principal) if is_read => {
                Some(Self { principal: principal.clone(), begin: Instant::now() })
            }
            RequestAccess::Authenticated(_) | RequestAccess::Public => None,
        }
    }

    /// The response, or why there is none.
    pub(super) fn answered(self, service: &Service, response: Response) -> Response {
        // Also 304, 404 and 410 tell something about the data. An error of the node does not.
        if response.status().is_server_error() {
            return response;
        }
        match service.authentication.check_still(&self.principal, self.begin) {
            Ok(()) => response,
            Err(refusal) => Problem::from(refusal).into_response(),
        }
    }
}

/// The credential of a request: that of [`authorization`], or of the header of Consul's clients.
fn credential(headers: &HeaderMap, takes_token: bool) -> Result<Cow<'_, [u8]>, &'static str> {
    if !takes_token || !headers.contains_key(&CONSUL_TOKEN) {
        return authorization(headers);
    }
    let mut values = headers.get_all(&CONSUL_TOKEN).iter();
    let value = values.next().map(|value| value.as_bytes().trim_ascii()).unwrap_or_default();
    // Consul's clients may send one key in both ways.
    let is_same = || authorization(headers).is_ok_and(|other| *other == *value);
    if values.next().is_some() || (headers.contains_key(header::AUTHORIZATION) && !is_same()) {
        return Err("the request has two credentials");
    }
    if value.is_empty() { Err("the header `X-Consul-Token` is empty") } else { Ok(value.into()) }
}

/// The credential of `Authorization: <key>`, `Bearer <key>`, or `Basic` with the key as password and any name.
fn authorization(headers: &HeaderMap) -> Result<Cow<'_, [u8]>, &'static str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or("the header `Authorization` is missing")?;
    if values.next().is_some() {
        // Servers differ in which of two headers counts: a proxy may have checked the other one.
        return Err("the header `Authorization` is given twice");
    }
    let value = value.as_bytes().trim_ascii();
    let after = |scheme: &str| {
        let (given, rest) = value.split_at_checked(scheme.len())?;
        let is_named = given.eq_ignore_ascii_case(scheme.as_bytes());
        let rest = rest.first().is_none_or(u8::is_ascii_whitespace).then(|| rest.trim_ascii_start());
        rest.filter(|_| is_named)
    };
    let credential = match (after("bearer"), after("basic")) {
        (Some(rest), _) => Cow::Borrowed(rest),
        // What is no Basic credential may be a key that begins with the name of the scheme.
        (None, Some(rest)) => password(rest).map_or(Cow::Borrowed(value), Cow::Owned),
        (None, None) => Cow::Borrowed(value),
    };
    if credential.is_empty() { Err("the header `Authorization` is empty") } else { Ok(credential) }
}

/// The password of a Basic credential (RFC 7617).
fn password(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut pair = BASE64.decode(encoded).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair.split_off(colon + 1))
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
        credential(&headers, false).ok().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
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
        for value in ["Digest secret", "Basic secret", "Basic bm8gY29sb24="] {
            assert_eq!(of(&[value]).as_deref(), Some(value), "another scheme is part of the credential");
        }
    }

    #[test]
    fn a_key_is_the_password_of_a_basic_credential() {
        // `anyone:secret`, `:a:b`
        for (value, expected) in [("Basic YW55b25lOnNlY3JldA==", "secret"), ("basic  OmE6Yg==", "a:b")] {
            assert_eq!(of(&[value]).as_deref(), Some(expected), "{value:?}");
        }
        assert_eq!(of(&["Basic YW55b25lOg=="]), None, "an empty password");
    }

    #[test]
    fn only_the_routes_of_consul_take_its_header() {
        let mut headers = HeaderMap::new();
        headers.append(CONSUL_TOKEN, HeaderValue::from_static("secret"));
        assert_eq!(credential(&headers, true), Ok(Cow::Borrowed(&b"secret"[..])));
        assert!(credential(&headers, false).is_err());
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("secret"));
        assert!(credential(&headers, true).is_ok(), "both are the same");
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("another"));
        assert_eq!(credential(&headers, true), Err("the request has two credentials"));
        assert!(credential(&headers, false).is_ok());
    }

    #[test]
    fn no_header_an_empty_one_and_two_are_no_credential() {
        for values in [&[][..], &[""], &["Bearer"], &["bearer "], &["secret", "secret"]] {
            assert_eq!(of(values), None, "{values:?}");
        }
    }
}
