//! The login: a token of an identity provider is exchanged for a session.
//!
//! It needs no key, so what it costs is bounded before the token is validated: its body is short, and an address that sends
//! many tokens which nobody has signed gets no more reasons.
//!
//! **Invariant:** a line of the audit log names the owner and the session, and never the token.

use axum::response::{IntoResponse as _, Response};

use super::body::{self, LoginRequest};
use crate::{
    Api,
    body::{Received, check_type, fields::BodyFields, receive},
    decision::LoginTarget,
    endpoints::SESSIONS,
    extract::MatchedRequest,
    json::Object,
    quota,
    reply::{Problem, Reply},
};
use concord_model::{key::Key, limits::TOKEN_BYTES_MAX};
use concord_service::{FailedLogin, OpenedSession, Refusal, Share};

/// Bytes of a body at most: a token, a name, and what JSON needs.
const BODY_BYTES_MAX: usize = TOKEN_BYTES_MAX + (4 << 10);

/// Opens a session.
pub(crate) async fn log_in(api: &Api, asked: MatchedRequest) -> Response {
    match opened(api, asked).await {
        Ok(session) => {
            let target = LoginTarget { owner: session.owner.clone(), session: session.text.id().clone() };
            let mut response = reply(&session).into_response();
            response.extensions_mut().insert(target);
            response
        }
        Err(response) => *response,
    }
}

async fn opened(api: &Api, asked: MatchedRequest) -> Result<OpenedSession, Box<Response>> {
    let service = &api.service;
    let failed = |problem: Problem| Box::new(problem.into_response());
    let (parts, body) = asked.request.into_parts();
    let mut held = service.cx.reservation(Share::Callers);
    let bytes = receive(&parts.headers, body, BODY_BYTES_MAX, &mut held).await.map_err(failed)?;
    check_type(&parts.headers).map_err(failed)?;
    let received = Received::new(bytes, held).map_err(failed)?;
    let read = |body| BodyFields::read(body, body::login);
    let LoginRequest { provider, token } = received.read(service, read).await.map_err(failed)?;
    service.logins.log_in(&provider, &token).await.map_err(|FailedLogin { refusal, is_signed }| {
        let is_forged = matches!(refusal, Refusal::TokenRejected { .. }) && !is_signed;
        let counted = if is_forged { service.quotas.count_failed_login() } else { Ok(()) };
        counted.map_or_else(|exceeded| Box::new(quota::refused(&exceeded)), |()| failed(refusal.into()))
    })
}

fn reply(session: &OpenedSession) -> Reply {
    let roles: Vec<&str> = session.roles.iter().map(Key::as_str).collect();
    let data = Object::new()
        .unescaped("session", session.text.expose())
        .unescaped("session_id", session.text.id().as_str())
        .value("owner", &session.owner)
        .value("roles", &roles)
        .time("expires_at", session.expires_at)
        .value("expires_in_s", &session.expires_in_s)
        .finish();
    let location = format!("{SESSIONS}{}", session.text.id());
    Reply::created("session opened", &data, &location).no_store()
}
