//! The endpoints: one row for each method of a path.
//!
//! A row names the permission that a request needs, what the audit log records of it, what it uses of its key's quota,
//! its handler, and its operation in the `OpenAPI` document. The row states the permission; the service checks it. Everything else that depends on the endpoint is derived
//! from the row: the router, the labels of metrics, who needs a key, `Allow`, the paths of the document.
//!
//! | where is | file |
//! |---|---|
//! | the rows | `rows` |
//! | which row a request matches | `matching` |
//!
//! A new endpoint takes a row, a handler, and its operation in `openapi`; `docs/internals/adding-an-operation.md` lists
//! the other places: the service, the tests, the documents.
//!
//! **Invariant:** a request is matched once, by `pipeline`, and carries what was found.

mod matching;
mod rows;
#[cfg(test)]
mod tests;

use std::pin::Pin;

use axum::response::Response;
use http::{Method, request::Parts};

use super::{
    Api,
    extract::{AuthenticatedCall, MatchedRequest},
    pretty::PRETTY,
    raw::RAW,
};
use concord_model::access_key::Verb;
use concord_service::quota::Gauge;

pub(crate) use matching::{Matched, Route, TABLE};
pub(crate) use rows::{
    AUDIT, CHANGE_REQUESTS, CONFIGS, DEFINITIONS, DOCS, DOCUMENT, ENDPOINTS, ENVIRONMENTS, KEYS, METRICS,
    PROVIDERS, ROLES, SESSIONS, UI,
};
#[cfg(test)]
pub(crate) use rows::{CHANGES, CONFIG, WATCH};

/// The parameters that choose the consistency of a read.
const CONSISTENCY_PARAMETERS: [&str; 3] = ["consistency", "max_staleness_ms", "min_revision"];
/// The parameters of reads that have a second form, with `$` before the name.
const ESCAPED_PARAMETERS: [&str; 5] = ["revision", "include", "fields", PRETTY, RAW];

/// One method of one path.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) method: EndpointMethod,
    /// As the document has it, except the names of parameters: the path of a collection ends with a slash.
    pub(crate) path: &'static str,
    pub(crate) right: RequiredRight,
    pub(crate) audited: Audited,
    /// What is counted while the response is made, beside the request itself.
    pub(crate) gauge: Option<Gauge>,
    pub(crate) pretty: Pretty,
    /// Whether a request has a body. Otherwise a body with members is rejected, or a warning names it: what it asks for,
    /// as a dry run, would not be done.
    pub(crate) takes_body: bool,
    /// Whether a request without a body is as one with an empty object.
    pub(crate) may_lack_body: bool,
    /// Whether the body is a patch, in a media type of its own.
    pub(crate) takes_patch: bool,
    /// The query parameters that have one value, except those of [`Self::takes_once`].
    parameters: &'static [&'static str],
    /// Whether it takes the parameters that choose the consistency of a read.
    has_consistency: bool,
    /// Whether a parameter of any other name is a filter.
    has_filters: bool,
    /// Whether nobody waits for the response once the client has closed its sending side. A client that is gone and one
    /// that has only finished sending look the same until something is sent to it; a response that sends nothing for
    /// long would keep its place.
    pub(crate) ends_with_its_client: bool,
    /// Whether unknown members and parameters of a write have no effect: the specification's writes. Otherwise they are
    /// errors. Unknown parameters of a read never have an effect.
    pub(crate) is_lenient: bool,
    /// Whether HEAD is answered as GET is, without the body.
    pub(crate) takes_head: bool,
    /// Whether the path with a slash more at its end, or one less, is the same one.
    takes_slash: bool,
    /// Whether the parameter `ticket` lets its client in, in place of a header.
    pub(crate) takes_ticket: bool,
    /// What a raw response has of the ordinary one; `None` where there is none.
    pub(crate) raw: Option<RawPart>,
    /// Whether it speaks the protocol of Consul: it takes the header of its clients, and a request may wait as a watch does.
    pub(crate) is_consul: bool,
    /// Whether the document has its operation: not those of other protocols, which have documents and clients of their own,
    /// and not the pages for people, which no program calls.
    pub(crate) is_documented: bool,
    /// Whether its rejections have the form of OFREP.
    pub(crate) is_ofrep: bool,
    /// The name of its operation in the document, and in generated clients.
    pub(crate) operation: &'static str,
    pub(crate) handler: Handler,
}

/// A method that an endpoint can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointMethod {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

/// What a request must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredRight {
    /// Nothing: the response reveals nothing of the data.
    Open,
    /// A good key.
    AnyKey,
    /// A key with a grant of this verb. The service asks for it, with what the request is about.
    Needs(Verb),
}

/// What the audit log has of a request. A write has a line always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audited {
    /// The path names what is read or written.
    Path,
    /// The same, and a read has a line always.
    Always,
    /// The parameters `definition` name what is listed.
    Listed,
    /// The parameters `definition` name what is watched: everything, where there are none.
    Watched,
    /// The body of this read names what is read.
    Body,
    /// A request that stores nothing and is often repeated: it has a line when it is denied, or when its handler says that
    /// it is news.
    News,
}

/// Whether `?pretty=true` indents the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pretty {
    /// The response is no JSON, or has no end.
    Never,
    Taken,
    /// Unless it is a filter: an index may have the name of the parameter.
    UnlessIndexed,
}

/// What a raw response has of the ordinary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawPart {
    /// The data of a config.
    Data,
    /// All that is in the envelope. The handler answers another list: without pages, by key.
    All,
    /// A schema.
    Schema,
}

/// The future of a response.
pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// What answers the requests of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Handler {
    /// Gets one config. Most requests do: this future alone is awaited in place, and takes no allocation.
    GetConfig,
    /// Answers who has a good key.
    Keyed(for<'a> fn(&'a Api, AuthenticatedCall) -> Answering<'a>),
    /// Answers anybody.
    Open(for<'a> fn(&'a Api, OpenCall) -> Answering<'a>),
    /// Answers anybody who sends a body: the login.
    Login(for<'a> fn(&'a Api, MatchedRequest) -> Answering<'a>),
}

/// A request that needs no key.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) parts: Parts,
    pub(crate) matched: Matched,
}

impl Endpoint {
    const fn new(
        method: EndpointMethod,
        path: &'static str,
        right: RequiredRight,
        operation: &'static str,
        handler: Handler,
    ) -> Self {
        let is_open = matches!(right, RequiredRight::Open);
        Self {
            method,
            path,
            right,
            audited: Audited::Path,
            gauge: None,
            pretty: if is_open { Pretty::Never } else { Pretty::Taken },
            takes_body: !matches!(method, EndpointMethod::Get | EndpointMethod::Delete),
            may_lack_body: false,
            takes_patch: false,
            parameters: &[],
            has_consistency: false,
            has_filters: false,
            ends_with_its_client: false,
            is_lenient: false,
            takes_head: matches!(method, EndpointMethod::Get),
            takes_slash: !is_open,
            takes_ticket: false,
            raw: None,
            is_consul: false,
            is_documented: true,
            is_ofrep: false,
            operation,
            handler,
        }
    }

    const fn audited(self, audited: Audited) -> Self {
        Self { audited, ..self }
    }

    const fn gauge(self, gauge: Gauge) -> Self {
        Self { gauge: Some(gauge), ..self }
    }

    const fn pretty(self, pretty: Pretty) -> Self {
        Self { pretty, ..self }
    }

    const fn without_body(self) -> Self {
        Self { takes_body: false, ..self }
    }

    const fn optional_body(self) -> Self {
        Self { may_lack_body: true, ..self }
    }

    const fn takes_patch(self) -> Self {
        Self { takes_patch: true, ..self }
    }

    const fn parameters(self, parameters: &'static [&'static str]) -> Self {
        Self { parameters, ..self }
    }

    const fn consistency(self) -> Self {
        Self { has_consistency: true, ..self }
    }

    const fn filters(self) -> Self {
        Self { has_filters: true, ..self }
    }

    const fn ends_with_its_client(self) -> Self {
        Self { ends_with_its_client: true, ..self }
    }

    const fn takes_ticket(self) -> Self {
        Self { takes_ticket: true, ..self }
    }

    const fn raw(self, part: RawPart) -> Self {
        Self { raw: Some(part), ..self }
    }

    const fn consul(self) -> Self {
        Self { is_consul: true, is_documented: false, ..self }
    }

    const fn undocumented(self) -> Self {
        Self { is_documented: false, ..self }
    }

    const fn ofrep(self) -> Self {
        Self { is_ofrep: true, ..self }
    }

    const fn lenient(self) -> Self {
        Self { is_lenient: true, ..self }
    }

    /// Whether a request has this query parameter.
    pub(crate) fn takes(&self, parameter: &str) -> bool {
        self.has_filters || self.takes_once(parameter)
    }

    /// Whether a request has this query parameter, with one value. A filter may have several.
    pub(crate) fn takes_once(&self, parameter: &str) -> bool {
        let is_read = self.method == EndpointMethod::Get;
        // The form that no index takes from a list.
        let plain = ESCAPED_PARAMETERS.into_iter().find(|name| parameter.strip_prefix('$') == Some(name));
        // An index may have this name.
        if self.has_filters && plain.is_none() && ESCAPED_PARAMETERS.contains(&parameter) {
            return false;
        }
        let parameter = plain.filter(|_| is_read).unwrap_or(parameter);
        (parameter == PRETTY && (self.pretty != Pretty::Never || !is_read))
            || (parameter == RAW && self.raw.is_some())
            || (parameter == "dry_run" && !is_read)
            || (self.has_consistency && CONSISTENCY_PARAMETERS.contains(&parameter))
            || self.parameters.contains(&parameter)
    }

    /// HEAD is rejected: a response that waits, has no end, or costs as much as with its body.
    const fn without_head(self) -> Self {
        Self { takes_head: false, ..self }
    }

    /// The path with a slash at its end is the same one.
    const fn with_slash(self) -> Self {
        Self { takes_slash: true, ..self }
    }

    /// The path as metrics and the audit log name it, and as the router knows it.
    pub(crate) fn template(&self) -> &'static str {
        self.path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(self.path)
    }

    /// Whether a request may change something. A report stores nothing: it is as cheap as a read, and counts as one.
    pub(crate) fn is_write(&self) -> bool {
        self.method != EndpointMethod::Get
            && self.right != RequiredRight::Needs(Verb::Read)
            && self.audited != Audited::News
    }

    /// Whether it is a read without a body that names the parameters that have no effect.
    pub(crate) fn warns_of_parameters(&self) -> bool {
        self.method == EndpointMethod::Get && self.right != RequiredRight::Open
    }

    /// The right that the audit log names.
    pub(crate) const fn verb(&self) -> Verb {
        match self.right {
            RequiredRight::Needs(verb) => verb,
            RequiredRight::Open | RequiredRight::AnyKey => Verb::Read,
        }
    }
}

impl EndpointMethod {
    fn http(self) -> Method {
        match self {
            Self::Get => Method::GET,
            Self::Put => Method::PUT,
            Self::Post => Method::POST,
            Self::Patch => Method::PATCH,
            Self::Delete => Method::DELETE,
        }
    }

    /// That of a request; HEAD is answered as GET is.
    fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Self::Get),
            Method::PUT => Some(Self::Put),
            Method::POST => Some(Self::Post),
            Method::PATCH => Some(Self::Patch),
            Method::DELETE => Some(Self::Delete),
            _ => None,
        }
    }
}

impl OpenCall {
    /// The parameter of the path.
    pub(crate) fn name(&self) -> String {
        self.matched.name(&self.parts.uri)
    }

    /// Both parameters of the path.
    pub(crate) fn names(&self) -> [String; 2] {
        let [one, two, _] = self.matched.names(&self.parts.uri);
        [one, two]
    }
}
