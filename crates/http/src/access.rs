//! Authentication of every request, those for unknown paths included.
//!
//! **Invariant:** before the credential is checked, no response reveals anything, not even whether a path exists. Only
//! open endpoints (`endpoints`), and unknown paths below those of the pages, need no credential; no header, address or
//! spelling exempts a request. A ticket is a credential of one endpoint alone.

use axum::response::{IntoResponse as _, Response};
use http::{Extensions, HeaderMap, Uri, header};
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

/// How a request was let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestAccess {
    /// Its credential is good, and this is the credential's owner.
    Authenticated(Principal),
    /// It needs none, and none was looked at.
    Public,
}

/// Lets in a request that needs a key, or answers why not. It takes the parts of the request's head, because a body is
/// used by one thread.
pub(super) async fn authenticate(
    service: &Service,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<RequestAccess, Response> {
    let refused = |why| Problem::Unauthenticated(why).into_response();
    let credential = credential(headers).map_err(refused)?;
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
}
