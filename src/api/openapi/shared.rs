//! Parameters, headers, refusals and credentials that operations have in common.

use serde_json::json;
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, Content, ObjectBuilder, Ref, RefOr, Required, Schema, Type,
    content::ContentBuilder,
    header::HeaderBuilder,
    path::{Parameter, ParameterBuilder, ParameterIn, ParameterStyle},
    response::{Response, ResponseBuilder},
    schema::OneOfBuilder,
    security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

use super::{
    builder::{schema, with_headers},
    schemas::{failure, integer, key, text},
};
use crate::model::limits::{IDEMPOTENCY_KEY_BYTES_MAX, Limits, REASON_BYTES_MAX, WATCH_KEYS_MAX};

/// Every refusal: its status, its name here, the type in its body, when it is said, the headers it has.
const REFUSALS: [(u16, &str, &str, &str, &[&str]); 13] = [
    (
        401,
        "Unauthorized",
        "unauthorized_error",
        "The credential is missing or not valid.",
        &["WWW-Authenticate"],
    ),
    (404, "NotFound", "not_found_error", "There is no such resource or path.", &[]),
    (405, "MethodNotAllowed", "method_not_allowed", "The path does not take this method.", &["Allow"]),
    (409, "Conflict", "conflict_error", "The request conflicts with what is there.", &[]),
    (410, "Expired", "expired_error", "The state or revision that is asked for is not kept any more.", &[]),
    (412, "PreconditionFailed", "precondition_failed", "The condition of the request does not hold.", &[]),
    (413, "PayloadTooLarge", "payload_too_large", "Body, data or schema are over their limit of bytes.", &[]),
    (422, "Unprocessable", "validation_error", "The request breaks a rule, or its shape is wrong.", &[]),
    (429, "RateLimited", "rate_limited", "This node is overloaded; certainly not applied.", &["Retry-After"]),
    (500, "ServerError", "server_error", "A fault of the service; its log names the request id.", &[]),
    (
        503,
        "Unavailable",
        "unavailable_error",
        "No leader or quorum; certainly not applied.",
        &["Retry-After"],
    ),
    (
        504,
        "Timeout",
        "timeout_error",
        "A write's outcome is unknown; a read did not reach its revision in time.",
        &[],
    ),
    (507, "StorageFull", "storage_full", "The volume is full: writes are refused, reads go on.", &[]),
];

/// The refusal with a status.
pub(super) fn refusal(status: u16) -> Ref {
    let found = REFUSALS.iter().find(|refusal| refusal.0 == status);
    Ref::from_response_name(found.map_or("ServerError", |refusal| refusal.1))
}

/// The refusal with a status, with headers that only this one has.
pub(super) fn refusal_with(status: u16, more: &[&str]) -> Response {
    let found = REFUSALS.iter().find(|refusal| refusal.0 == status);
    let (kind, about, headers) =
        found.map_or(("server_error", "", &[][..]), |(_, _, kind, about, headers)| (*kind, *about, *headers));
    refusal_component(kind, about, &[headers, more].concat(), status == 422)
}

fn refusal_component(kind: &str, about: &str, headers: &[&str], or_shape: bool) -> Response {
    let mut bodies = OneOfBuilder::new().item(schema(&failure_name(kind)));
    if or_shape {
        bodies = bodies.item(schema("ShapeError"));
    }
    let example = json!({ "status": "FAILURE", "errors": [{ "type": kind, "msg": about }] });
    let content = ContentBuilder::new();
    let content = if or_shape {
        content.schema(Some(bodies))
    } else {
        content.schema(Some(schema(&failure_name(kind))))
    };
    let content: Content = content.example(Some(example)).build();
    let response = ResponseBuilder::new().description(about).content("application/json", content);
    with_headers(response, headers).build()
}

/// `not_found_error` → `NotFoundError`.
fn failure_name(kind: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    kind.split('_').map(word).collect()
}

fn headers() -> Vec<(&'static str, &'static str, ObjectBuilder)> {
    let number = || text().pattern(Some("^[0-9]+$"));
    vec![
        ("X-Request-ID", "The caller's id of the request, or a new one; it stands in the log too.", text()),
        ("X-Concord-Node", "The id of the node that answers.", number()),
        ("X-Concord-Revision", "The revision of the state that the answer was made from.", number()),
        ("ETag", "The revision of the record, for `If-Match`.", text().pattern(Some("^\"[0-9]+\"$"))),
        ("Last-Modified", "When the record was changed last, to the second.", text()),
        ("Location", "The path of what was created.", text().pattern(Some("^/"))),
        (
            "Link",
            "The next page of the same state, where there is one: `<…?cursor=…>; rel=\"next\"`.",
            text(),
        ),
        ("Warning", "What of the request had no effect, or is not shown.", text()),
        (
            "X-Concord-Dry-Run",
            "The write was only tried, so there is neither `ETag` nor `Last-Modified`.",
            text().enum_values(Some(["true"])),
        ),
        (
            "X-Concord-Index-Building",
            "How far the building of indexes is, while some can't be used: configs done, `/`, all.",
            text().pattern(Some("^[0-9]+/[0-9]+$")),
        ),
        ("X-Concord-Breaking-Configs", "How many configs break the schema.", number()),
        ("Accept-Patch", "The media types of patches.", text()),
        ("Allow", "The methods that the path takes.", text()),
        ("Retry-After", "Seconds after which the request may be sent again.", number()),
        ("WWW-Authenticate", "How to authenticate.", text()),
        ("Content-Disposition", "A name for the file.", text()),
    ]
}

fn parameter(name: &str, place: ParameterIn, about: &str, schema: impl Into<RefOr<Schema>>) -> Parameter {
    let required = if matches!(place, ParameterIn::Path) { Required::True } else { Required::False };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .description(Some(about))
        .required(required)
        .schema(Some(schema))
        .build()
}

fn path_parameters() -> Vec<(&'static str, Parameter)> {
    let path = |name, about, schema: ObjectBuilder| (name, parameter(name, ParameterIn::Path, about, schema));
    vec![
        path("config_definition_key", "The definition's key.", key().examples([json!("app")])),
        path("config_key", "The config's key within its definition.", key().examples([json!("prod")])),
        path("id", "The node's id.", integer(1)),
        path("file", "A file of the page.", text().pattern(Some("^[A-Za-z0-9._-]+$"))),
    ]
}

/// The parameters of the past, of watches and of trials.
fn further_parameters() -> Vec<(&'static str, Parameter)> {
    let query =
        |key, name, about, schema: RefOr<Schema>| (key, parameter(name, ParameterIn::Query, about, schema));
    let plain = |name, about, schema: ObjectBuilder| query(name, name, about, schema.into());
    let keys = || ArrayBuilder::new().items(key()).max_items(Some(WATCH_KEYS_MAX)).into();
    let flag = || ObjectBuilder::new().schema_type(Type::Boolean).default(Some(json!(false)));
    vec![
        plain("dry_run", "`true` gives the answer that the write would get, and stores nothing.", flag()),
        plain("revision", "The config as it was then; 422 when it is not reached yet.", integer(0)),
        plain("before", "Only changes before this revision.", integer(0)),
        plain("policy", "`force` stores a schema that configs break.", text().enum_values(Some(["force"]))),
        plain("from", "Begins with the changes of this revision.", integer(0)),
        plain("initial", "`true` begins with the state of now; not beside `from`.", flag()),
        query(
            "definition",
            "definition",
            "Only this definition and its configs; may be repeated. It need not exist yet.",
            keys(),
        ),
        query(
            "watched_config",
            "config_key",
            "With one `definition`: only this config of it; may be repeated.",
            keys(),
        ),
    ]
}

fn query_parameters(limits: &Limits) -> Vec<(&'static str, Parameter)> {
    let query =
        |key, name, about, schema: ObjectBuilder| (key, parameter(name, ParameterIn::Query, about, schema));
    let plain = |name, about, schema: ObjectBuilder| query(name, name, about, schema);
    let by = |names: [&'static str; 3]| text().enum_values(Some(names)).default(Some(json!("modified_at")));
    let limit = integer(1).maximum(Some(limits.page_limit)).default(Some(json!(10)));
    let order = text().enum_values(Some(["asc", "desc"])).default(Some(json!("desc")));
    let level = text().enum_values(Some(["linearizable", "local"])).default(Some(json!("linearizable")));
    vec![
        plain("page", "Which page, from 1. One past the end is empty.", integer(1).default(Some(json!(1)))),
        plain("limit", "Records of a page.", limit),
        query(
            "sort_definitions",
            "sort_by",
            "Ties are broken by key, ascending.",
            by(["config_definition_key", "created_at", "modified_at"]),
        ),
        query(
            "sort_configs",
            "sort_by",
            "`config_key`, `created_at`, `modified_at` or an indexed path of scalars; configs without a value come \
             last in both orders, ties are broken by key, ascending.",
            text().default(Some(json!("modified_at"))),
        ),
        plain("sort_order", "The direction.", order),
        plain("search", "A part of the key, whatever its case; empty for none.", text()),
        plain(
            "cursor",
            "Of the `Link` of a page: the page after it, of the same state. The other parameters must be those of \
             the first page, and `page` must be absent.",
            text().pattern(Some("^[A-Za-z0-9_-]*$")),
        ),
        plain("consistency", "`local` reads this node's state as it is, without asking the leader.", level),
        plain("max_staleness_ms", "How old a `local` read may be; else it is confirmed.", integer(0)),
        plain(
            "min_revision",
            "Waits until this node has applied it; 504 when that takes too long.",
            integer(0),
        ),
        plain(
            "mode",
            "`restrict` refuses to delete a definition that has configs.",
            text().enum_values(Some(["restrict"])),
        ),
    ]
}

/// The further parameters of a list of configs.
fn filters() -> Parameter {
    let about = "Any further parameter is a filter on an indexed path: `db.port=5432`, repeated for any of, \
        `n[gte]=`, `n[gt]=`, `n[lte]=`, `n[lt]=`, `n[ne]=`, `name[prefix]=`, `name[in]=a,b`, `n[exists]=true`, also on \
        `created_at`, `modified_at` and `config_key`. Filters on several paths must all hold. A path that is not \
        indexed is refused; `data.<path>` reaches one that is named like a parameter.";
    let any = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(RefOr::T(Schema::from(text().build()))));
    let mut filters = parameter("filters", ParameterIn::Query, about, any);
    filters.style = Some(ParameterStyle::Form);
    filters.explode = Some(true);
    filters
}

fn header_parameters() -> Vec<(&'static str, Parameter)> {
    let header =
        |key, name, about, schema: ObjectBuilder| (key, parameter(name, ParameterIn::Header, about, schema));
    let visible = |most| text().pattern(Some("^[!-~]+$")).max_length(Some(most));
    vec![
        header(
            "X-Request-ID",
            "X-Request-ID",
            "An id for logs, 1 to 128 visible characters; another is replaced.",
            text(),
        ),
        header(
            "If-Match",
            "If-Match",
            "The `ETag` that the record must have, or `*`: that it must exist.",
            text().pattern(Some("^(\\*|(W/)?\"[!#-~]*\")$")),
        ),
        header(
            "If-None-Match",
            "If-None-Match",
            "Entity tags that the caller has: 304 when one is current.",
            text(),
        ),
        header(
            "create_only",
            "If-None-Match",
            "`*` creates, and fails when the record exists.",
            text().enum_values(Some(["*"])),
        ),
        header(
            "Idempotency-Key",
            "Idempotency-Key",
            "Makes the request safe to send again: its first answer is kept and given again. With another request: 422.",
            visible(IDEMPOTENCY_KEY_BYTES_MAX),
        ),
        header(
            "Last-Event-ID",
            "Last-Event-ID",
            "The `id` of the last event that the caller has seen: the stream goes on behind it, whatever `from` and \
             `initial` say.",
            text().pattern(Some("^[0-9]*$")),
        ),
        header(
            "X-Change-Reason",
            "X-Change-Reason",
            "Why the change is made; kept with it. UTF-8.",
            text().max_length(Some(REASON_BYTES_MAX)),
        ),
    ]
}

/// Both forms of the credential; either is enough.
pub(super) fn credentials() -> [SecurityRequirement; 2] {
    ["Bearer", "BearerToken"].map(|name| SecurityRequirement::new::<_, [&str; 0], &str>(name, []))
}

/// Adds all of it.
pub(super) fn components(mut components: ComponentsBuilder, limits: &Limits) -> ComponentsBuilder {
    for (status, name, kind, about, headers) in REFUSALS {
        components = components
            .schema(failure_name(kind), failure(kind))
            .response(name, refusal_component(kind, about, headers, status == 422));
    }
    for (name, about, schema) in headers() {
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(about)).build();
        components = components.header(name, header);
    }
    let parameters = [path_parameters(), query_parameters(limits), further_parameters(), header_parameters()];
    for (key, parameter) in parameters.into_iter().flatten().chain([("filters", filters())]) {
        components = components.parameter(key, parameter);
    }
    let key = ApiKeyValue::with_description("Authorization", "The key alone.");
    let bearer =
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("`Bearer <key>`.")).build();
    components
        .security_scheme("Bearer", SecurityScheme::ApiKey(ApiKey::Header(key)))
        .security_scheme("BearerToken", SecurityScheme::Http(bearer))
}
