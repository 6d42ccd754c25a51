//! What the audit log records of a request: which routes, which verb they need, and when the line is made.
//!
//! | request | recorded |
//! |---|---|
//! | other than `GET` and `HEAD` | always |
//! | a backup, a page of the audit log | always |
//! | a read of a definition that the settings name | always |
//! | any other read | when it is denied |
//! | with a credential that is missing or not valid | counted by address and minute |
//!
//! A dry run has its line, too: it tells its caller about the records as the write does. The line says what it was, so
//! that nobody takes it for the write.
//!
//! A write whose caller leaves before the answer has its line, too: it may have been applied.
//!
//! **Invariants:** a request has at most one line. Nothing of the request is in it but keys, ids and its request id.

use std::sync::PoisonError;

use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use http::{HeaderValue, Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use super::{
    CONFIG, CONFIG_HISTORY, CONFIGS, DEFINITION, DEFINITION_HISTORY, DEFINITIONS, INDEXES, ROLLBACK, SCHEMA,
    UNIQUE, access_keys, across, audit,
    extract::Params,
    metrics,
    reply::{Problem, STATE_REVISION, WrittenAt},
};
use concord_model::{
    access_key::{Pattern, Verb},
    record::Revision,
};
use concord_service::{
    CallerAddress, Principal, Refusal, Service,
    audit::{Decision, Targets, What},
};

/// The route of watches.
pub(super) const WATCH: &str = "/api/v1/watch";
/// The route of long polls.
pub(super) const CHANGES: &str = "/api/v1/changes";

/// What the audit log knows of a route.
#[derive(Debug)]
struct Route {
    path: &'static str,
    /// The right that a `GET` needs.
    read: Verb,
    /// The right that any other method needs.
    write: Verb,
    /// Whether a `GET` is recorded whatever the settings say.
    is_always: bool,
}

const fn route(path: &'static str, read: Verb, write: Verb) -> Route {
    Route { path, read, write, is_always: false }
}

/// All routes that need a key.
static ROUTES: [Route; 30] = [
    route(DEFINITIONS, Verb::Read, Verb::Define),
    route(DEFINITION, Verb::Read, Verb::Define),
    route(SCHEMA, Verb::Read, Verb::Define),
    route(UNIQUE, Verb::Read, Verb::Define),
    route(INDEXES, Verb::Read, Verb::Define),
    route(CONFIGS, Verb::Read, Verb::Write),
    route(CONFIG, Verb::Read, Verb::Write),
    route(CONFIG_HISTORY, Verb::Read, Verb::Write),
    route(DEFINITION_HISTORY, Verb::Read, Verb::Write),
    route(ROLLBACK, Verb::Read, Verb::Write),
    route(across::PATH, Verb::Read, Verb::Read),
    route("/api/v1/batch", Verb::Read, Verb::Write),
    route(super::read::PATH, Verb::Read, Verb::Read),
    route(WATCH, Verb::Read, Verb::Read),
    route(CHANGES, Verb::Read, Verb::Read),
    route(access_keys::KEYS, Verb::Keys, Verb::Keys),
    route(access_keys::DISABLE_ROOT, Verb::Keys, Verb::Keys),
    route(access_keys::KEY, Verb::Keys, Verb::Keys),
    route(access_keys::ROTATE, Verb::Keys, Verb::Keys),
    route(access_keys::WHOAMI, Verb::Read, Verb::Read),
    Route { path: audit::PATH, read: Verb::Audit, write: Verb::Audit, is_always: true },
    route(metrics::PATH, Verb::Cluster, Verb::Cluster),
    route("/api/v1/cluster", Verb::Cluster, Verb::Cluster),
    route("/api/v1/cluster/init", Verb::Cluster, Verb::Cluster),
    Route { path: "/api/v1/cluster/backup", read: Verb::Backup, write: Verb::Backup, is_always: true },
    route("/api/v1/cluster/leader", Verb::Cluster, Verb::Cluster),
    route("/api/v1/cluster/members", Verb::Cluster, Verb::Cluster),
    route("/api/v1/cluster/members/{id}", Verb::Cluster, Verb::Cluster),
    route("/api/v1/cluster/members/{id}/promote", Verb::Cluster, Verb::Cluster),
    route("/api/v1/cluster/members/{id}/replace", Verb::Cluster, Verb::Cluster),
];

/// The place of [`CONFIG`] among them.
const OF_CONFIG: usize = 6;

fn is_parameter(segment: &str) -> bool {
    segment.starts_with('{')
}

/// The route of a path, with or without a slash at its end.
fn find(path: &str) -> Option<&'static Route> {
    // That of most requests: the way through the table takes longer than finding the config.
    if super::is_config(path) {
        return Some(&ROUTES[OF_CONFIG]);
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    ROUTES.iter().find(|route| {
        let (mut template, mut given) = (route.path.split('/'), path.split('/'));
        loop {
            match (template.next(), given.next()) {
                (None, None) => return true,
                (Some(one), Some(other)) if one == other || (is_parameter(one) && !other.is_empty()) => {}
                _ => return false,
            }
        }
    })
}

/// What the path and the query of a request name.
fn what(route: &Route, uri: &Uri) -> What {
    let mut what = What::default();
    for (name, given) in
        route.path.split('/').zip(uri.path().split('/')).filter(|(name, _)| is_parameter(name))
    {
        let text = percent_decode_str(given).decode_utf8_lossy();
        match name {
            "{definition}" => what.add_definition(&text),
            "{config}" => what.set_config(&text),
            _ => what.set_id(&text),
        }
    }
    if [WATCH, CHANGES, across::PATH].contains(&route.path) {
        let params = Params::from_uri(uri);
        for (_, definition) in params.0.iter().filter(|(name, _)| name == "definition") {
            what.add_definition(definition);
        }
    }
    what
}

/// The method as the log names it: what a caller makes up is not repeated.
pub(super) fn method_name(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE"];
    KNOWN.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}

/// Whether a write asks for its answer alone. What is no value of the parameter is refused.
fn is_dry_run(uri: &Uri) -> bool {
    uri.query().is_some() && Params::from_uri(uri).dry_run().unwrap_or(false)
}

fn is_get(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Whether a request may change something: the verb of its route says so where its method does not.
pub(super) fn is_write(request: &Request) -> bool {
    !is_get(request.method()) && find(request.uri().path()).is_none_or(|route| route.write != Verb::Read)
}

/// The route of a path, as the router has it.
pub(super) fn route_of(path: &str) -> Option<&'static str> {
    find(path).map(|route| route.path)
}

/// A request that may get a line.
#[derive(Debug)]
pub(super) struct Pending {
    service: Service,
    id: HeaderValue,
    uri: Uri,
    method: Method,
    principal: Principal,
    before: Revision,
    route: Option<&'static Route>,
    kind: Kind,
    /// Whether its line was made.
    is_done: bool,
}

#[derive(Debug)]
enum Kind {
    /// Recorded always, and a write.
    Write(Targets),
    /// Recorded always, and a read.
    Read,
    /// A read whose body names what is read: recorded when the settings name it, or when it is denied.
    ReadOf(Targets),
    /// Recorded when it is denied.
    OnDenial,
}

/// In the extensions of an answer a part of which was denied.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartlyDenied;

/// Begins to observe a request whose credential is good. `None` when no line can come of it.
pub(super) fn begin(
    service: &Service,
    request: &Request,
    id: &HeaderValue,
    principal: &Principal,
) -> Option<Pending> {
    let (audit, method) = (service.audit(), request.method());
    if !audit.is_on() {
        return None;
    }
    let is_read = is_get(method);
    // The root key is denied nothing, and this is the route of most requests.
    if is_read && principal.key.is_none() && !audit.has_reads() && super::is_config(request.uri().path()) {
        return None;
    }
    let route = find(request.uri().path());
    let kind = if route.is_some_and(|route| route.path == super::read::PATH) && !is_read {
        Kind::ReadOf(Targets::default())
    } else if !is_read && route.is_none_or(|route| route.write != Verb::Read) {
        let targets = Targets::default();
        if let Some(route) = route {
            *targets.lock().unwrap_or_else(PoisonError::into_inner) = what(route, request.uri());
        }
        Kind::Write(targets)
    } else if route.is_some_and(|route| is_recorded_read(service, route, request.uri())) {
        Kind::Read
    } else if principal.key.is_some() {
        Kind::OnDenial
    } else {
        return None;
    };
    Some(Pending {
        service: service.clone(),
        id: id.clone(),
        uri: request.uri().clone(),
        method: method.clone(),
        principal: principal.clone(),
        before: service.revision(),
        route,
        kind,
        is_done: false,
    })
}

fn is_recorded_read(service: &Service, route: &Route, uri: &Uri) -> bool {
    let audit = service.audit();
    if route.is_always {
        return true;
    }
    if !audit.has_reads() {
        return false;
    }
    if route.path == across::PATH {
        // Which definitions have records on the page is not known yet: those that it may be of.
        return across::named(&Params::from_uri(uri)).iter().any(|one| audit.records_reads_within(one));
    }
    if [WATCH, CHANGES].contains(&route.path) {
        let params = Params::from_uri(uri);
        let mut named = params.0.iter().filter(|(name, _)| name == "definition").peekable();
        // One that names nothing is of everything that its caller may read.
        return named.peek().is_none()
            || named.any(|(_, text)| match Pattern::parse(text) {
                Ok(pattern) => audit.records_reads_within(&pattern),
                // It is refused.
                Err(_) => audit.records_reads_of(None),
            });
    }
    let what = what(route, uri);
    audit.records_reads_of(None) || what.definitions().any(|one| audit.records_reads_of(Some(one)))
}

impl Pending {
    /// What the request turns out to be about, and whether it is a write; `None` where that is in its path.
    pub(super) fn targets(&self) -> Option<(Targets, bool)> {
        match &self.kind {
            Kind::Write(targets) => Some((Targets::clone(targets), true)),
            Kind::ReadOf(targets) => Some((Targets::clone(targets), false)),
            Kind::Read | Kind::OnDenial => None,
        }
    }

    /// Whether a request gets no line, now that its answer is known, as most reads do.
    pub(super) fn gets_no_line(&self, response: &Response) -> bool {
        let is_denied = || {
            matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
                || response.extensions().get::<PartlyDenied>().is_some()
        };
        match &self.kind {
            Kind::OnDenial => !is_denied(),
            Kind::ReadOf(targets) => !is_denied() && !self.is_recorded(targets),
            Kind::Read | Kind::Write(_) => false,
        }
    }

    /// Makes the line of a request that [gets one](Self::gets_no_line). In the strict mode the answer to a write waits until its line is
    /// durable, and says that the outcome is unknown when it is not.
    pub(super) async fn end(mut self, response: Response) -> Response {
        let status = response.status();
        self.is_done = true;
        match &self.kind {
            Kind::OnDenial | Kind::Read | Kind::ReadOf(_) => {
                self.service.audit().record(self.decision(Some(&response)));
                response
            }
            Kind::Write(_) if !status.is_success() && concord_model::sabotage::is("audit-line-lost") => {
                response
            }
            Kind::Write(_) => {
                let is_recorded = self.service.audit().record_write(self.decision(Some(&response))).await;
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
        let audit = self.service.audit();
        let what = targets.lock().unwrap_or_else(PoisonError::into_inner);
        audit.has_reads()
            && (audit.records_reads_of(None)
                || what.definitions().any(|one| audit.records_reads_of(Some(one))))
    }

    fn decision(&self, response: Option<&Response>) -> Decision {
        let is_read = is_get(&self.method) || matches!(self.kind, Kind::ReadOf(_));
        let after = response.and_then(|response| {
            let written = response.extensions().get::<WrittenAt>().map(|WrittenAt(revision)| *revision);
            written.or_else(|| response.headers().get(STATE_REVISION)?.to_str().ok()?.parse().ok())
        });
        let named = match &self.kind {
            Kind::Write(targets) | Kind::ReadOf(targets) => {
                targets.lock().unwrap_or_else(PoisonError::into_inner).clone()
            }
            Kind::Read | Kind::OnDenial => self.route.map(|route| what(route, &self.uri)).unwrap_or_default(),
        };
        let is_write = matches!(self.kind, Kind::Write(_));
        Decision {
            key: Some(self.principal.id.as_str().to_owned()),
            what: named,
            dry_run: is_write && is_dry_run(&self.uri),
            before: self.before,
            after: after.or(response.map(|_| self.service.revision())),
            status: response.map(|response| response.status().as_u16()),
            outcome: response.map_or("unknown", outcome_of),
            ..decision(&self.service, &self.method, self.route.map(|route| (route, is_read)), &self.id)
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The caller has left, or the node ends. A write may have been applied.
        if !self.is_done && matches!(self.kind, Kind::Write(_)) {
            self.service.audit().record(self.decision(None));
        }
    }
}

/// Counts a request that was refused for its credential.
pub(super) fn note_failed_credential(
    service: &Service,
    request: &Request,
    id: &HeaderValue,
    status: StatusCode,
) {
    if !service.audit().is_on() {
        return;
    }
    let is_read = is_get(request.method());
    let route = find(request.uri().path()).map(|route| (route, is_read));
    let decision = Decision {
        status: Some(status.as_u16()),
        outcome: outcome(status),
        ..decision(service, request.method(), route, id)
    };
    service.audit().record_failed_credential(decision.address, decision);
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
fn decision(
    service: &Service,
    method: &Method,
    route: Option<(&'static Route, bool)>,
    id: &HeaderValue,
) -> Decision {
    Decision {
        at: service.audit().now(),
        request_id: id.to_str().unwrap_or_default().to_owned(),
        key: None,
        address: CallerAddress::current(),
        verb: route.map(|(route, is_read)| if is_read { route.read } else { route.write }),
        method: method_name(method),
        route: route.map(|(route, _)| route.path),
        what: What::default(),
        dry_run: false,
        status: None,
        outcome: "unknown",
        before: service.revision(),
        after: None,
    }
}

#[cfg(test)]
mod tests;
