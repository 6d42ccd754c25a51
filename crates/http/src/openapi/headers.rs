//! The headers of responses.
//!
//! **Invariant:** every response has the headers of [`STANDARD`], the revision only where a key was good; `api::handle`
//! sets them.

use serde_json::json;
use utoipa::openapi::{
    ComponentsBuilder, ObjectBuilder, Ref,
    header::HeaderBuilder,
    response::{Response, ResponseBuilder},
};

use super::schemas::text;

/// The header that only answers to requests with a key have.
const REVISION: &str = "X-Concord-Revision";
/// The headers of every response to a request with a key.
const STANDARD: [&str; 3] = ["X-Request-ID", "X-Concord-Node", REVISION];

/// A response with these headers and the standard ones.
pub(super) fn with_headers(mut response: ResponseBuilder, headers: &[&str]) -> ResponseBuilder {
    for name in STANDARD.iter().chain(headers) {
        // A header that has another meaning in some responses has a component for it.
        let (name, component) = name.split_once(" = ").unwrap_or((name, name));
        response = response.header_ref(name, Ref::new(format!("#/components/headers/{component}")));
    }
    response
}

/// Makes a response one to a request without a key.
pub(super) fn without_key(response: &mut Response) {
    response.headers.remove(REVISION);
}

/// Adds all headers to the components.
pub(super) fn add_to(mut components: ComponentsBuilder) -> ComponentsBuilder {
    for (name, about, schema) in all().into_iter().chain(of_readers()) {
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(about)).build();
        components = components.header(name, header);
    }
    components
}

fn all() -> Vec<(&'static str, &'static str, ObjectBuilder)> {
    let number = || text().pattern(Some("^[0-9]+$"));
    vec![
        ("X-Request-ID", "The id of the request: the client's, or a new one. The log names it too.", text()),
        ("X-Concord-Node", "The id of the node that responds.", number()),
        (
            REVISION,
            "The revision of the state that the response shows; only if the request had a valid key.",
            number(),
        ),
        ("ETag", "The revision of the record, for `If-Match`.", text().pattern(Some("^\"[0-9]+\"$"))),
        ("BodyTag", "A hash of the body, for `If-None-Match`.", text().pattern(Some("^\"[0-9a-f]{32}\"$"))),
        ("Last-Modified", "When the record was last changed, to the second.", text()),
        ("Location", "The path of the new resource.", text().pattern(Some("^/"))),
        (
            "Link",
            "The next page, where there is one, of the same state: `<…?cursor=…>; rel=\"next\"`.",
            text(),
        ),
        ("Warning", "Which part of the request had no effect, or is missing from the response.", text()),
        (
            "X-Concord-Dry-Run",
            "The write was a dry run and was not stored, so there is neither `ETag` nor `Last-Modified`.",
            text().enum_values(Some(["true"])),
        ),
        (
            "X-Concord-Index-Building",
            "The progress of the index build, while there is one: configs indexed, `/`, all configs.",
            text().pattern(Some("^[0-9]+/[0-9]+$")),
        ),
        (
            "X-Concord-Deletion",
            "Whether the deleted definition is kept, so that the deletion can be undone.",
            text().enum_values(Some(["kept", "final"])),
        ),
        ("X-Concord-Write-Revision", "The revision of the deletion.", number()),
        ("X-Concord-Breaking-Configs", "How many configs do not fit the schema.", number()),
        (
            "X-Concord-Redacted",
            "The paths in `data` of secret values, which are `null` because the key has no permission to `reveal`: \
             JSON pointers as URI fragments, each once, and `...` if there are more.",
            text().pattern(Some("^#")),
        ),
        ("Accept-Encoding", "The supported codings of request bodies.", text()),
        (
            "Content-Encoding",
            "The coding of a compressed body.",
            text().enum_values(Some(["gzip", "br", "zstd"])),
        ),
        ("Vary", "The request headers that decided the form of the response.", text()),
        (
            "X-Concord-Next-From",
            "The `from` of the next request: every requested change before it has been returned.",
            number(),
        ),
        (
            "X-Concord-Cluster",
            "The id of the cluster. If it differs from an earlier one, earlier revisions have no meaning here.",
            text().pattern(Some("^[0-9a-f-]{36}$")),
        ),
        ("Accept-Patch", "The media types of patches.", text()),
        ("Allow", "The methods that the path takes.", text()),
        ("Retry-After", "Seconds after which the client may retry.", number()),
        (
            "RateLimit-Policy",
            "The scarcest rate limit of the access key, if it has one: its name, `q` requests in `w` seconds.",
            text().examples([json!("\"requests\";q=100;w=1")]),
        ),
        (
            "RateLimit",
            "The remainder of that limit: `r` requests now, all of them after `t` seconds.",
            text().examples([json!("\"requests\";r=99;t=1")]),
        ),
        ("WWW-Authenticate", "How to authenticate.", text()),
        ("Cache-Control", "No cache may store the response.", text().enum_values(Some(["no-store"]))),
        ("Content-Disposition", "A name for the file.", text()),
    ]
}

/// Those of a config as its reader sees it.
fn of_readers() -> [(&'static str, &'static str, ObjectBuilder); 2] {
    [
        (
            "SeenTag",
            "The revision of the record, for `If-Match`; of a candidate the id and the edition of its change request, which no write matches.",
            text().pattern(Some("^\"[0-9A-Za-z]+(-[0-9]+)?\"$")),
        ),
        (
            "X-Concord-Variant",
            "The response is the candidate of this change request, because the reader is in its rollout.",
            text().examples([json!("candidate; change=mD3kQ9xYb7Lz")]),
        ),
    ]
}
