//! What the audit log records of a request: which routes, which verb they need, and when the line is written.
//!
//! | request | recorded |
//! |---|---|
//! | other than `GET` and `HEAD` | always |
//! | a backup, a page of the audit log | always |
//! | a read of a definition that the settings name | always |
//! | any other read | when it is denied |
//! | a report of a reader, a word of a gate | when it is denied, or is news: a new failure, another word |
//! | with a credential that is missing or not valid | counted by address and minute |
//! | a login | when it opens a session; otherwise counted as such a credential |
//!
//! A dry run is recorded as such, because it reveals as much about the records as the write. A write whose client
//! disconnects before the response is recorded, because it may have been applied.
//!
//! **Invariants:** a request has at most one line. Of the request, the line has only keys, ids and the request id.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use http::{HeaderValue, Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use super::{
    across,
    endpoints::{Audited, Endpoint, Handler, Matched},
    extract::{MatchedRequest, QueryParams},
    reply::{Problem, STATE_REVISION, WrittenAt},
};
use concord_model::{
    access_key::{KeyId, Pattern},
    record::Revision,
};
use concord_service::{
    CallerAddress, Principal, Refusal, Service,
    audit::{AuditDecision, AuditTarget, Targets},
};

/// How long a write that took all of its time still waits for its line: a slow fsync.
const LINE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// What the path and the query of a request name.
fn what(matched: &Matched, uri: &Uri, params: &QueryParams) -> AuditTarget {
    let mut what = AuditTarget::default();
    for (name, given) in matched.parameters(uri) {
        let text = percent_decode_str(given).decode_utf8_lossy();
        match name {
            "definition" => what.add_definition(&text),
            "config" => what.set_config(&text),
            _ => what.set_id(&text),
        }
    }
    if let Some(Audited::Listed | Audited::Watched) = matched.endpoint.map(|endpoint| endpoint.audited) {
        for (_, definition) in params.0.iter().filter(|(name, _)| name == "definition") {
            what.add_definition(definition);
        }
    }
    what
}

/// The method as the log names it: what a client makes up is not repeated.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE"];
    KNOWN.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}

/// A request that may get a line.
#[derive(Debug)]
pub(super) struct PendingDecision {
    service: Service,
    id: HeaderValue,
    uri: Uri,
    method: Method,
    /// The client; `None` for a login, whose client is known when it has succeeded.
    principal: Option<Principal>,
    before: Revision,
    matched: Matched,
    dry_run: bool,
    kind: DecisionKind,
    begun: Instant,
    /// Whether its line was made.
    is_done: bool,
}

#[derive(Debug)]
enum DecisionKind {
    /// Recorded always, and a write.
    Write(Targets),
    /// Recorded always, and a read.
    Read,
    /// A read whose body names what is read: recorded when the settings name it, or when it is denied.
    ReadOf(Targets),
    /// Recorded when it is denied.
    OnDenial,
    /// Recorded when it is denied, or its handler says that it is news.
    OnNews,
    /// Recorded when it opens a session.
    Login(Targets),
}

/// In the extensions of the response to a login: whose session it has opened.
#[derive(Debug, Clone)]
pub(super) struct LoginTarget {
    /// The name of the owner.
    pub(super) owner: String,
    /// The session.
    pub(super) session: KeyId,
}

/// In the extensions of a response to a request that is recorded when it is news.
#[derive(Debug, Clone, Copy)]
pub(super) struct News;

/// In the extensions of a response a part of which was denied.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartlyDenied;

/// Begins to observe a request whose credential is good. `None` when no line can come of it.
pub(super) fn begin(
    service: &Service,
    asked: &MatchedRequest,
    id: &HeaderValue,
    principal: &Principal,
) -> Option<PendingDecision> {
    let (audit, matched, uri) = (&service.cx.audit, &asked.matched, asked.uri());
    if !audit.is_on() {
        return None;
    }
    let is_of_body = matched.endpoint.is_some_and(|endpoint| endpoint.audited == Audited::Body);
    let kind = if is_of_body {
        DecisionKind::ReadOf(Targets::default())
    } else if matched.endpoint.is_some_and(|endpoint| endpoint.audited == Audited::News) {
        DecisionKind::OnNews
    } else if asked.is_write() {
        let targets = Targets::default();
        *targets.lock().unwrap_or_else(PoisonError::into_inner) = what(matched, uri, asked.params());
        DecisionKind::Write(targets)
    } else if is_recorded_read(service, asked) {
        DecisionKind::Read
    } else if !principal.is_unbounded() {
        DecisionKind::OnDenial
    } else {
        // The root key is denied nothing.
        return None;
    };
    let mut pending = PendingDecision::new(service, asked, id, kind);
    // What is no value of the parameter is rejected. The query of a read is not parsed for its line.
    pending.dry_run = asked.is_write() && asked.params().dry_run().is_ok_and(|(dry_run, _)| dry_run);
    pending.principal = Some(principal.clone());
    Some(pending)
}

/// Begins to observe a login.
pub(super) fn begin_login(
    service: &Service,
    asked: &MatchedRequest,
    id: &HeaderValue,
) -> Option<PendingDecision> {
    let is_login =
        asked.matched.endpoint.is_some_and(|endpoint| matches!(endpoint.handler, Handler::Login(_)));
    let is_recorded = is_login && service.cx.audit.is_on();
    is_recorded.then(|| PendingDecision::new(service, asked, id, DecisionKind::Login(Targets::default())))
}

/// Whether the settings, or its endpoint, have a read recorded.
fn is_recorded_read(service: &Service, asked: &MatchedRequest) -> bool {
    let (audit, Some(endpoint)) = (&service.cx.audit, asked.matched.endpoint) else { return false };
    if endpoint.audited == Audited::Always {
        return true;
    }
    if !audit.has_reads() {
        return false;
    }
    match endpoint.audited {
        // Which definitions have records on the page is not known yet: those that it may be of.
        Audited::Listed => across::named(asked.params()).iter().any(|one| audit.records_reads_within(one)),
        Audited::Watched => {
            let mut named = asked.params().0.iter().filter(|(name, _)| name == "definition").peekable();
            // One that names nothing is of everything that its client may read.
            named.peek().is_none()
                || named.any(|(_, text)| match Pattern::parse(text) {
                    Ok(pattern) => audit.records_reads_within(&pattern),
                    // It is rejected.
                    Err(_) => audit.records_reads_of(None),
                })
        }
        Audited::Path | Audited::Always | Audited::Body | Audited::News => {
            let what = what(&asked.matched, asked.uri(), asked.params());
            audit.records_reads_of(None) || what.definitions().any(|one| audit.records_reads_of(Some(one)))
        }
    }
}

impl PendingDecision {
    fn new(service: &Service, asked: &MatchedRequest, id: &HeaderValue, kind: DecisionKind) -> Self {
        Self {
            service: service.clone(),
            id: id.clone(),
            uri: asked.uri().clone(),
            method: asked.request.method().clone(),
            dry_run: false,
            principal: None,
            before: service.cx.revision(),
            matched: asked.matched,
            kind,
            begun: Instant::now(),
            is_done: false,
        }
    }

    /// What the request turns out to be about, and whether it is a write; `None` where that is in its path.
    pub(super) fn targets(&self) -> Option<(Targets, bool)> {
        match &self.kind {
            DecisionKind::Write(targets) | DecisionKind::Login(targets) => {
                Some((Targets::clone(targets), true))
            }
            DecisionKind::ReadOf(targets) => Some((Targets::clone(targets), false)),
            DecisionKind::Read | DecisionKind::OnDenial | DecisionKind::OnNews => None,
        }
    }

    /// Whether a request gets no line, now that its response is known, as most reads do.
    pub(super) fn gets_no_line(&self, response: &Response) -> bool {
        let is_denied = || {
            matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
                || response.extensions().get::<PartlyDenied>().is_some()
        };
        match &self.kind {
            DecisionKind::OnDenial => !is_denied(),
            DecisionKind::OnNews => !is_denied() && response.extensions().get::<News>().is_none(),
            DecisionKind::ReadOf(targets) => !is_denied() && !self.is_recorded(targets),
            DecisionKind::Read | DecisionKind::Write(_) | DecisionKind::Login(_) => false,
        }
    }

    /// Makes the line of a login that has opened a session. Of others, a client may make any number, so they are counted as
    /// failed credentials are.
    pub(super) async fn end_login(mut self, response: Response) -> Response {
        if response.status().is_success() {
            return self.end(response).await;
        }
        self.is_done = true;
        let decision = self.decision(Some(&response));
        self.service.cx.audit.record_failed_credential(decision.address, decision);
        response
    }

    /// Makes the line of a request that [gets one](Self::gets_no_line). In the strict mode the response to a write
    /// waits until its line is durable, and says that the outcome is unknown when it is not.
    pub(super) async fn end(mut self, response: Response) -> Response {
        let status = response.status();
        self.is_done = true;
        match &self.kind {
            DecisionKind::OnDenial | DecisionKind::OnNews | DecisionKind::Read | DecisionKind::ReadOf(_) => {
                self.service.cx.audit.record(self.decision(Some(&response)));
                response
            }
            DecisionKind::Write(_)
                if !status.is_success() && concord_model::sabotage::is("audit-line-lost") =>
            {
                response
            }
            DecisionKind::Write(_) | DecisionKind::Login(_) => {
                // The write and its line together take no longer than a write may.
                let wait = self.service.cx.write_timeout().saturating_sub(self.begun.elapsed());
                let wait = wait.max(LINE_TIMEOUT_MIN);
                let decision = self.decision(Some(&response));
                let is_recorded = self.service.cx.audit.record_write(decision, wait).await;
                if is_recorded || !status.is_success() {
                    return response;
                }
                let text =
                    "the request was carried out, but its line of the audit log is not certainly stored";
                Problem::from(Refusal::Undecided(text.into())).into_response()
            }
        }
    }

    /// Whether the settings name what was read.
    fn is_recorded(&self, targets: &Targets) -> bool {
        let audit = &self.service.cx.audit;
        let what = targets.lock().unwrap_or_else(PoisonError::into_inner);
        audit.has_reads()
            && (audit.records_reads_of(None)
                || what.definitions().any(|one| audit.records_reads_of(Some(one))))
    }

    fn decision(&self, response: Option<&Response>) -> AuditDecision {
        let after = response.and_then(|response| {
            let written = response.extensions().get::<WrittenAt>().map(|WrittenAt(revision)| *revision);
            written.or_else(|| response.headers().get(STATE_REVISION)?.to_str().ok()?.parse().ok())
        });
        let login = response.and_then(|response| response.extensions().get::<LoginTarget>());
        let mut named = match &self.kind {
            DecisionKind::Write(targets) | DecisionKind::ReadOf(targets) | DecisionKind::Login(targets) => {
                targets.lock().unwrap_or_else(PoisonError::into_inner).clone()
            }
            DecisionKind::Read | DecisionKind::OnDenial | DecisionKind::OnNews => {
                what(&self.matched, &self.uri, &QueryParams::from_uri(&self.uri))
            }
        };
        if let Some(login) = login {
            named.set_id(login.session.as_str());
        }
        let owner = self.principal.as_ref().map(|principal| principal.id.as_str().to_owned());
        AuditDecision {
            key: owner.or_else(|| login.map(|login| login.owner.clone())),
            what: named,
            dry_run: self.dry_run,
            before: self.before,
            after: after.or(response.map(|_| self.service.cx.revision())),
            status: response.map(|response| response.status().as_u16()),
            outcome: response.map_or("unknown", outcome_of),
            ..decision(&self.service, &self.method, &self.matched, &self.id)
        }
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        // The client has left, or the node ends. A write may have been applied.
        if !self.is_done && matches!(self.kind, DecisionKind::Write(_)) {
            self.service.cx.audit.record(self.decision(None));
        }
    }
}

/// Counts a request that was rejected for its credential.
pub(super) fn note_failed_credential(
    service: &Service,
    request: &Request,
    matched: &Matched,
    id: &HeaderValue,
    status: StatusCode,
) {
    if !service.cx.audit.is_on() {
        return;
    }
    let decision = AuditDecision {
        status: Some(status.as_u16()),
        outcome: outcome(status),
        ..decision(service, request.method(), matched, id)
    };
    service.cx.audit.record_failed_credential(decision.address, decision);
}

/// What the audit log calls the outcome of a request: denied, if a part of it was.
fn outcome_of(response: &Response) -> &'static str {
    let is_partly_denied = response.extensions().get::<PartlyDenied>().is_some();
    outcome(if is_partly_denied { StatusCode::FORBIDDEN } else { response.status() })
}

/// What the audit log calls the outcome of a request with this status: each status has one type of error.
fn outcome(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "unauthorized_error",
        StatusCode::FORBIDDEN => "forbidden_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::METHOD_NOT_ALLOWED => "method_not_allowed",
        StatusCode::CONFLICT => "conflict_error",
        StatusCode::GONE => "expired_error",
        StatusCode::PRECONDITION_FAILED => "precondition_failed",
        StatusCode::PAYLOAD_TOO_LARGE => "payload_too_large",
        StatusCode::UNPROCESSABLE_ENTITY => "validation_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limited",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        StatusCode::INSUFFICIENT_STORAGE => "storage_full",
        status if status.is_client_error() || status.is_server_error() => "server_error",
        _ => "ok",
    }
}

/// What the lines of all requests have.
fn decision(service: &Service, method: &Method, matched: &Matched, id: &HeaderValue) -> AuditDecision {
    AuditDecision {
        at: service.cx.audit.now(),
        log_time: service.cx.last_at(),
        request_id: id.to_str().unwrap_or_default().to_owned(),
        key: None,
        address: CallerAddress::current(),
        verb: matched.endpoint.map(Endpoint::verb),
        method: method_name(method),
        route: matched.template(),
        what: AuditTarget::default(),
        dry_run: false,
        status: None,
        outcome: "unknown",
        before: service.cx.revision(),
        after: None,
    }
}

#[cfg(test)]
mod tests;
