//! The rejections: their statuses, error types and bodies.
//!
//! **Invariant:** each status has one error type, that of `reply::status_and_type`; only 422 has a second body, for a
//! request of the wrong shape.

use serde_json::json;
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, Content, ObjectBuilder, Ref,
    content::ContentBuilder,
    response::{Response, ResponseBuilder},
    schema::OneOfBuilder,
};

use super::{
    super::error_code::Code,
    headers::{with_headers, without_key},
    schemas::{closed, location, reference, text},
};

struct DocumentedRefusal {
    status: u16,
    /// The name of its component.
    name: &'static str,
    /// The error type in its body.
    kind: &'static str,
    about: &'static str,
    headers: &'static [&'static str],
}

const fn refusal_of(
    status: u16,
    name: &'static str,
    kind: &'static str,
    about: &'static str,
    headers: &'static [&'static str],
) -> DocumentedRefusal {
    DocumentedRefusal { status, name, kind, about, headers }
}

static REFUSALS: [DocumentedRefusal; 15] = [
    refusal_of(
        401,
        "Unauthorized",
        "unauthorized_error",
        "The credential is missing or not valid.",
        &["WWW-Authenticate"],
    ),
    refusal_of(403, "Forbidden", "forbidden_error", "The access key does not have the permission.", &[]),
    refusal_of(404, "NotFound", "not_found_error", "There is no such resource or path.", &[]),
    refusal_of(
        405,
        "MethodNotAllowed",
        "method_not_allowed",
        "The path does not take this method.",
        &["Allow"],
    ),
    refusal_of(
        409,
        "Conflict",
        "conflict_error",
        "The request conflicts with the current state. `Retry-After` only while a freeze refuses the change.",
        &["Retry-After"],
    ),
    refusal_of(
        410,
        "Expired",
        "expired_error",
        "The requested state or revision is no longer retained.",
        &[],
    ),
    refusal_of(
        412,
        "PreconditionFailed",
        "precondition_failed",
        "The condition of the request does not hold. `ETag` has the version of the record that there is.",
        &["ETag"],
    ),
    refusal_of(
        413,
        "PayloadTooLarge",
        "payload_too_large",
        "The body, the data or the schema is larger than its limit.",
        &[],
    ),
    refusal_of(
        415,
        "UnsupportedCoding",
        "unsupported_coding",
        "The content coding of the body is not supported.",
        &["Accept-Encoding"],
    ),
    refusal_of(
        422,
        "Unprocessable",
        "validation_error",
        "The request violates a rule, or has the wrong shape.",
        &[],
    ),
    refusal_of(
        429,
        "RateLimited",
        "rate_limited",
        "A limit is reached: of this node, of the quota of the access key, or of failed credentials from the \
         address. The request was not applied.",
        &["Retry-After", "RateLimit-Policy", "RateLimit"],
    ),
    refusal_of(
        500,
        "ServerError",
        "server_error",
        "An internal error; the node's log has its text, with the request id.",
        &[],
    ),
    refusal_of(
        503,
        "Unavailable",
        "unavailable_error",
        "No leader or no quorum. The request was not applied.",
        &["Retry-After"],
    ),
    refusal_of(
        504,
        "Timeout",
        "timeout_error",
        "The outcome of a write is unknown, or a read did not reach its revision in time.",
        &[],
    ),
    refusal_of(
        507,
        "StorageFull",
        "storage_full",
        "The volume is full: writes are rejected, reads are served.",
        &[],
    ),
];

fn find(status: u16) -> &'static DocumentedRefusal {
    let found = REFUSALS.iter().find(|refusal| refusal.status == status);
    found.expect("every status that an operation names is listed")
}

/// The rejection with a status.
pub(super) fn refusal(status: u16) -> Ref {
    Ref::from_response_name(find(status).name)
}

/// The rejection with a status, with further headers.
pub(super) fn refusal_with(status: u16, headers: &[&str]) -> Response {
    response(find(status), headers)
}

/// The rejection with a status, in the form of OFREP.
pub(super) fn of_ofrep(status: u16) -> Response {
    // What is 422 in other forms is 400 in this one.
    let DocumentedRefusal { about, headers, .. } = find(if status == 400 { 422 } else { status });
    let example = json!({ "key": "new-checkout", "errorCode": "GENERAL", "errorDetails": about });
    let content = ContentBuilder::new().schema(Some(reference("FlagFailure"))).example(Some(example)).build();
    let response = ResponseBuilder::new().description(*about).content("application/json", content);
    let mut response = with_headers(response, headers).build();
    if status == 401 {
        without_key(&mut response);
    }
    response
}

/// Adds all rejections and their bodies to the components.
pub(super) fn add_to(mut components: ComponentsBuilder) -> ComponentsBuilder {
    for refusal in &REFUSALS {
        components = components
            .schema(body_name(refusal.kind), body(refusal.kind))
            .response(refusal.name, response(refusal, &[]));
    }
    components
}

fn response(refusal: &DocumentedRefusal, more_headers: &[&str]) -> Response {
    let DocumentedRefusal { status, kind, about, headers, .. } = refusal;
    let code = Code::ALL.iter().find(|(_, of)| of == kind).map(|(code, _)| code.name());
    let example = json!({ "status": "FAILURE", "errors": [{ "type": kind, "code": code, "msg": about }] });
    let body = reference(&body_name(kind));
    let content = if *status == 422 {
        let bodies = OneOfBuilder::new().item(body).item(reference("ShapeError"));
        ContentBuilder::new().schema(Some(bodies))
    } else {
        ContentBuilder::new().schema(Some(body))
    };
    let content: Content = content.example(Some(example)).build();
    let response = ResponseBuilder::new().description(*about).content("application/json", content);
    let mut response = with_headers(response, &[headers, more_headers].concat()).build();
    if *status == 401 {
        without_key(&mut response);
    }
    response
}

/// `not_found_error` → `NotFoundError`.
fn body_name(kind: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    kind.split('_').map(word).collect()
}

/// The body of a rejection of one type.
fn body(kind: &str) -> ObjectBuilder {
    let codes = Code::ALL.iter().filter(|(_, of)| *of == kind).map(|(code, _)| code.name());
    let code = text().enum_values(Some(codes.collect::<Vec<_>>()));
    let item = closed(
        vec![
            ("type", text().enum_values(Some([kind])).into()),
            ("code", code.into()),
            ("msg", text().min_length(Some(1)).into()),
        ],
        vec![("loc", location().description(Some("the location, outermost step first")).into())],
    );
    let errors = ArrayBuilder::new().items(item).min_items(Some(1));
    closed(
        vec![("status", text().enum_values(Some(["FAILURE"])).into()), ("errors", errors.into())],
        Vec::new(),
    )
}

/// The body of a rejection of a request of the wrong shape.
pub(super) fn shape_error() -> ObjectBuilder {
    let kinds = [
        "json_invalid",
        "missing",
        "string_type",
        "list_type",
        "dict_type",
        "int_type",
        "int_parsing",
        "bool_type",
        "model_attributes_type",
        "extra_forbidden",
    ];
    let item = closed(
        vec![
            ("loc", location().min_items(Some(1)).into()),
            ("msg", text().min_length(Some(1)).into()),
            ("type", text().enum_values(Some(kinds)).into()),
        ],
        Vec::new(),
    );
    closed(vec![("detail", ArrayBuilder::new().items(item).min_items(Some(1)).into())], Vec::new())
}
