//! The way of a request through this layer. Each step calls the next:
//!
//! ```text
//! step              before the call                        after it
//! answer            finds the endpoint, once
//! open_to_origins   answers a preflight                    headers for pages of other origins
//! authenticate      checks the credential                  standard headers; measures the time
//! admit             quota of the key; begins a line of     ends the line; counts what was used
//!                   the audit log
//! respond                                                  checks the permission of a slow read again; takes raw
//!                                                          data out, indents, compresses and weighs the response
//! contain           strict audit log                       a panic of the handler becomes 500
//! dispatch          404 and 405                            calls the handler of the endpoint
//! ```
//!
//! **Invariants:** every response gets its headers in `with_standard_headers`: from `authenticate`, or from
//! `open_to_origins` for a preflight; the revision only where the credential was good. Only preflights and open
//! endpoints are answered without a check of the credential. What is no HTTP, or may be two requests, is rejected by
//! `server` and hyper before, with 400 or 431 and no body.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc};

use axum::{
    body::{Body, HttpBody as _},
    extract::Request,
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;
use tracing::error;
use uuid::{Builder, Uuid};

use super::{
    Api,
    access::{self, RequestAccess, WaitingReader},
    coding::{self, Coding},
    configs, cors,
    decision::{self, PendingDecision},
    endpoints::{Handler, Matched, OpenCall, RawPart, Route, TABLE},
    extract::{AuthenticatedCall, MatchedRequest, ReadRequest},
    flags, pretty, quota,
    raw::{self, RawFormat},
    reply::{self, LogOnly, NO_STORE, NODE, Problem, STATE_REVISION, number, ofrep::OfrepForm},
    server::{Answerer, boxed},
    usage::{CountedRequest, measured},
    weight,
};
use concord_model::limits::REQUEST_ID_BYTES_MAX;
use concord_net::trace::TraceParent;
use concord_service::{
    Origin, Refusal, RequestWork, audit::observe, memory_budget::Share, metrics::Connections,
};

/// The header with the id of a request, which the log names too.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl Answerer for Api {
    const TAKES_TURNS: bool = true;

    type Found = Matched;

    fn find(request: &http::Request<Incoming>) -> Matched {
        TABLE.find(request.method(), request.uri().path())
    }

    fn ends_with_its_client(matched: &Matched) -> bool {
        matched.endpoint.is_some_and(|endpoint| endpoint.ends_with_its_client)
    }

    fn connections(&self) -> Option<Connections> {
        Some(self.service.caller_connections())
    }

    fn is_memory_scarce(&self) -> bool {
        self.service.cx.reservation(Share::Callers).is_share_scarce()
    }

    async fn answer(self: Arc<Self>, request: http::Request<Incoming>, matched: Matched) -> Response {
        let names = || self.times.names(request.method(), &matched);
        let traced = self.service.cx.spans.traced_request(TraceParent::of(request.headers()), names);
        // A box for each body costs more than the question whether there is one.
        let request = request.map(|body| if body.is_end_stream() { Body::empty() } else { Body::new(body) });
        let Some(traced) = traced else { return self.open_to_origins(request, matched).await };
        let answered = |answer: &Response| {
            let (status, id) = (answer.status().as_u16(), answer.headers().get(&REQUEST_ID));
            tracing::debug!(status, request_id = ?id, "answered a request");
            (status, id.cloned())
        };
        // Boxed: as most requests belong to no trace, they need not have its space.
        boxed(|| traced.run(self.open_to_origins(request, matched), answered)).await
    }
}

impl Api {
    /// Responds to a request that came over no connection.
    #[cfg(any(test, feature = "testing"))]
    pub async fn handle(&self, request: Request) -> Response {
        let matched = TABLE.find(request.method(), request.uri().path());
        self.open_to_origins(request, matched).await
    }

    /// Answers a request, and lets pages of the settings' origins read the response.
    async fn open_to_origins(&self, request: Request, matched: Matched) -> Response {
        // Off unless the settings name origins.
        let Some(origins) = &self.origins else { return self.authenticate(request, matched).await };
        let (path, headers) = (request.uri().path(), request.headers());
        let Some(origin) = cors::allowed(origins, path, headers) else {
            return self.authenticate(request, matched).await;
        };
        let mut response = if cors::is_preflight(request.method(), headers) {
            let id = request_id(headers);
            self.with_standard_headers(id, false, cors::preflight())
        } else {
            boxed(|| self.authenticate(request, matched)).await
        };
        cors::open(&mut response, origin);
        response
    }

    /// Authenticates the request unless its endpoint is open, then answers it.
    async fn authenticate(&self, request: Request, matched: Matched) -> Response {
        let service = &self.service;
        let begun = self.times.begin(request.method(), &matched);
        let id = request_id(request.headers());
        let is_open = matched.is_open(request.method(), request.uri().path());
        let ticket = access::ticket_of(&matched, request.uri(), request.headers());
        let access = if is_open {
            Ok(RequestAccess::Public)
        } else if let Some(ticket) = ticket {
            let definition = matched.definition(request.uri());
            access::authenticate_ticket(service, request.extensions(), &definition, &ticket)
                .map_err(|response| *response)
        } else {
            let takes_token = matched.route.is_some_and(Route::is_consul);
            access::authenticate(service, request.headers(), request.extensions(), takes_token).await
        };
        let (is_authenticated, response) = match access {
            Ok(access) => (
                access != RequestAccess::Public,
                self.admit(access, MatchedRequest::new(request, matched), &id).await,
            ),
            Err(response) => {
                decision::note_failed_credential(service, &request, &matched, &id, response.status());
                (false, in_form(response, flags::form_of(&matched, request.uri())).await)
            }
        };
        let response = self.with_standard_headers(id, is_authenticated, response);
        self.times.end(begun, response.status());
        response
    }

    /// Answers a request that its key's quota admits, and has it recorded in the audit log.
    async fn admit(&self, access: RequestAccess, asked: MatchedRequest, id: &HeaderValue) -> Response {
        let RequestAccess::Authenticated(principal) = &access else {
            // Boxed: few requests are logins, and every request would have its space.
            let Some(pending) = decision::begin_login(&self.service, &asked, id) else {
                return self.respond(access, asked, None).await;
            };
            return boxed(|| async move {
                let answered = self.respond(access, asked, Some(&pending)).await;
                pending.end_login(answered).await
            })
            .await;
        };
        let counted = CountedRequest::begin(&self.service, principal, &asked);
        let pending = decision::begin(&self.service, &asked, id, principal);
        let admitted = quota::admit(&self.service, principal, &asked);
        let form = flags::form_of(&asked.matched, asked.uri());
        let answered = match admitted {
            Err(exceeded) => quota::refused(&exceeded),
            Ok(admitted) => {
                Origin::note(principal);
                // In place: as an argument, the future would take its space twice.
                let responding = pin!(self.respond(access, asked, pending.as_ref()));
                let answered = measured(responding).await;
                match admitted {
                    None => answered,
                    Some(admitted) => admitted.end(answered),
                }
            }
        };
        // Before the line of the audit log, which has the status that is sent.
        let answered = in_form(answered, form).await;
        let answered = counted.answered(answered);
        match pending {
            None => answered,
            Some(pending) if pending.gets_no_line(&answered) => answered,
            Some(pending) => boxed(|| pending.end(answered)).await,
        }
    }

    /// Calls the handler, checks the permission of a slow read again, then indents, compresses and weighs the response.
    async fn respond(
        &self,
        access: RequestAccess,
        mut asked: MatchedRequest,
        pending: Option<&PendingDecision>,
    ) -> Response {
        if let Err(problem) = asked.check_query() {
            return problem.into_response();
        }
        let is_read = !asked.is_write();
        let (version, is_authenticated) = (asked.request.version(), access != RequestAccess::Public);
        let is_pretty = match pretty::is_wanted(&self.service, &access, &asked) {
            Ok(is_wanted) => is_wanted,
            Err(problem) => return problem.into_response(),
        };
        let raw = match self.raw(&access, &asked) {
            Ok(raw) => raw,
            Err(problem) => return problem.into_response(),
        };
        asked.is_raw = raw.is_some();
        let reader = WaitingReader::of(&access, is_read);
        let mut response = self.contain(access, asked, pending).await;
        if let Some(reader) = reader {
            response = reader.answered(&self.service, response);
        }
        if let Some(raw) = raw {
            // Boxed: few requests need it, and every request would have its space.
            response = Box::pin(raw::rewritten(response, raw, &self.service)).await;
        }
        if is_pretty {
            response = Box::pin(pretty::indented(response, &self.service)).await;
        }
        if response.extensions().get::<Coding>().is_some() {
            response = Box::pin(coding::encoded(response, &self.service)).await;
        }
        // What needs no key is part of the program and takes no memory of its own.
        let heavy = if is_authenticated { weight::bytes_to_weigh(&response, version) } else { None };
        match heavy {
            None => response,
            // Boxed: few responses need it, and every request would have its space.
            Some(bytes) => Box::pin(weight::weighed(response, bytes, &self.service, is_read)).await,
        }
    }

    /// The format of a raw response, and what it has; `None` for the ordinary one.
    fn raw(
        &self,
        access: &RequestAccess,
        asked: &MatchedRequest,
    ) -> Result<Option<(RawFormat, RawPart)>, Problem> {
        let (Some(part), RequestAccess::Authenticated(principal)) =
            (asked.matched.endpoint.and_then(|endpoint| endpoint.raw), access)
        else {
            return Ok(None);
        };
        let (headers, params) = (asked.request.headers(), asked.params());
        let format = raw::format(&self.service, principal, (&asked.matched, params, asked.uri()), headers)?;
        Ok(format.map(|format| (format, part)))
    }

    /// Calls the handler of a request, unless it is a write whose line of the audit log could not be stored; answers
    /// 500 when the handler panics.
    async fn contain(
        &self,
        access: RequestAccess,
        asked: MatchedRequest,
        pending: Option<&PendingDecision>,
    ) -> Response {
        let Some((targets, is_write)) = pending.and_then(PendingDecision::targets) else {
            let answered = AssertUnwindSafe(self.dispatch(access, asked)).catch_unwind().await;
            return answered.unwrap_or_else(reply::panicked);
        };
        if let Some(Err(refusal)) = is_write.then(|| self.service.cx.audit.admit_write()) {
            return Problem::from(refusal).into_response();
        }
        // Boxed: as above, and this is no read.
        let answered =
            boxed(|| AssertUnwindSafe(observe(targets, self.dispatch(access, asked))).catch_unwind());
        answered.await.unwrap_or_else(reply::panicked)
    }

    /// Calls the handler of the endpoint.
    async fn dispatch(&self, access: RequestAccess, asked: MatchedRequest) -> Response {
        let (matched, is_head) = (asked.matched, asked.request.method() == Method::HEAD);
        let endpoint = matched.endpoint.filter(|endpoint| !is_head || endpoint.takes_head);
        let ignored = asked.ignored_parameters();
        let response = match (endpoint.map(|endpoint| endpoint.handler), access) {
            (None, _) => not_taken(&matched),
            // Not boxed: most requests are this one, and the allocation would be theirs.
            (Some(Handler::GetConfig), RequestAccess::Authenticated(principal)) => {
                let request = ReadRequest::from(AuthenticatedCall { asked, principal });
                let answered = configs::get(&self.service, &request).await;
                RequestWork::note_read(usize::from(answered.is_ok()));
                answered.into_response()
            }
            (Some(Handler::Keyed(handler)), RequestAccess::Authenticated(principal)) => {
                handler(self, AuthenticatedCall { asked, principal }).await
            }
            (Some(Handler::Login(handler)), _) => handler(self, asked).await,
            (Some(Handler::Open(handler)), _) => {
                handler(self, OpenCall { parts: asked.request.into_parts().0, matched }).await
            }
            (Some(Handler::GetConfig | Handler::Keyed(_)), RequestAccess::Public) => {
                let text = "a request passed the access layer without a principal";
                Problem::from(Refusal::Internal(text.into())).into_response()
            }
        };
        let response = if is_head { without_body(response) } else { response };
        match ignored {
            None => response,
            Some(ignored) => ignored.warn(response),
        }
    }

    /// Adds the headers that every response has, and logs the text of an internal error.
    fn with_standard_headers(
        &self,
        id: HeaderValue,
        is_authenticated: bool,
        mut response: Response,
    ) -> Response {
        let service = &self.service;
        if let Some(LogOnly(text)) = response.extensions_mut().remove() {
            error!(request_id = ?id, "a request failed: {text}");
        }
        let status = response.status();
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, id);
        headers.insert(NODE, number(service.cx.node_id()));
        // No browser takes a response for another kind of document than it is.
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if is_authenticated {
            // What needs a key is for its owner alone, and is in no cache.
            headers.insert(header::CACHE_CONTROL, NO_STORE);
        }
        if is_authenticated && status != StatusCode::UNAUTHORIZED {
            headers.entry(STATE_REVISION).or_insert_with(|| number(service.cx.revision()));
        } else {
            // Made from no state. Without a key it would tell how much is written.
            headers.remove(STATE_REVISION);
        }
        response
    }
}

/// A response in the form of its endpoint.
async fn in_form(response: Response, form: Option<OfrepForm>) -> Response {
    match form {
        None => response,
        // Boxed: few requests need it, and every request would have its space.
        Some(form) => boxed(|| form.of(response)).await,
    }
}

/// The response to a path that there is not, or that does not take the method.
fn not_taken(matched: &Matched) -> Response {
    match matched.route {
        None => Problem::UnknownPath.into_response(),
        Some(route) => {
            let mut response = Problem::MethodNotAllowed.into_response();
            response.headers_mut().insert(header::ALLOW, route.allow.clone());
            response
        }
    }
}

/// The response to HEAD: the head of the one to GET, with the length that its body would have.
fn without_body(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    // That of 304 would be the length of 200.
    if let Some(bytes) = body.size_hint().exact().filter(|_| parts.status != StatusCode::NOT_MODIFIED) {
        parts.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| number(bytes));
    }
    Response::from_parts(parts, Body::empty())
}

/// The client's id of the request if it is valid, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_valid = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(&REQUEST_ID).filter(is_valid).cloned().unwrap_or_else(|| {
        let mut text = Uuid::encode_buffer();
        let text = new_request_id().hyphenated().encode_lower(&mut text);
        HeaderValue::from_str(text).expect("a UUID is visible ASCII")
    })
}

/// A new id that sorts by time. It names a request in the log and protects nothing, so its random part needs no system
/// call.
fn new_request_id() -> Uuid {
    let (seconds, nanos) = uuid::Timestamp::now(uuid::NoContext).to_unix();
    let millis = seconds.saturating_mul(1000).saturating_add(u64::from(nanos) / 1_000_000);
    let mut random = [0; 10];
    fastrand::fill(&mut random);
    Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

#[cfg(test)]
mod tests;
