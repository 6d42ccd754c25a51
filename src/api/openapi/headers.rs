//! The headers of responses.
//!
//! **Invariant:** every response has the three headers of [`STANDARD`]; `api::handle` sets them.

use utoipa::openapi::{
    ComponentsBuilder, ObjectBuilder, Ref, header::HeaderBuilder, response::ResponseBuilder,
};

use super::schemas::text;

/// The headers of every response.
const STANDARD: [&str; 3] = ["X-Request-ID", "X-Concord-Node", "X-Concord-Revision"];

/// A response with these headers and the standard ones.
pub(super) fn with_headers(mut response: ResponseBuilder, headers: &[&str]) -> ResponseBuilder {
    for name in STANDARD.iter().chain(headers) {
        response = response.header_ref(*name, Ref::new(format!("#/components/headers/{name}")));
    }
    response
}

/// Adds all headers to the components.
pub(super) fn add_to(mut components: ComponentsBuilder) -> ComponentsBuilder {
    for (name, about, schema) in all() {
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(about)).build();
        components = components.header(name, header);
    }
    components
}

fn all() -> Vec<(&'static str, &'static str, ObjectBuilder)> {
    let number = || text().pattern(Some("^[0-9]+$"));
    vec![
        ("X-Request-ID", "The id of the request: the caller's, or a new one. The log names it too.", text()),
        ("X-Concord-Node", "The id of the node that answers.", number()),
        ("X-Concord-Revision", "The revision of the state that the answer was made from.", number()),
        ("ETag", "The revision of the record, for `If-Match`.", text().pattern(Some("^\"[0-9]+\"$"))),
        ("Last-Modified", "When the record was last changed, to the second.", text()),
        ("Location", "The path of the new resource.", text().pattern(Some("^/"))),
        (
            "Link",
            "The next page, where there is one, of the same state: `<…?cursor=…>; rel=\"next\"`.",
            text(),
        ),
        ("Warning", "Which part of the request had no effect, or is missing from the answer.", text()),
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
        ("X-Concord-Breaking-Configs", "How many configs do not fit the schema.", number()),
        ("Accept-Patch", "The media types of patches.", text()),
        ("Allow", "The methods that the path takes.", text()),
        ("Retry-After", "Seconds after which the request may be sent again.", number()),
        ("WWW-Authenticate", "How to authenticate.", text()),
        ("Content-Disposition", "A name for the file.", text()),
    ]
}
