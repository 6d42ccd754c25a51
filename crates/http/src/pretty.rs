//! Answers for people: `?pretty=true` indents the JSON of a response, errors included.
//!
//! Only white space between tokens is added, so numbers keep their digits and members their order. A response that is
//! sent as it is made, or that would be too long when indented, is sent as it is.
//!
//! **Invariant:** an indented text is the same JSON text but for white space between its tokens.

use axum::{
    body::{Body, HttpBody as _},
    response::Response,
};
use http::{HeaderValue, Uri, header};

use super::{
    access::RequestAccess,
    endpoints::{Matched, Pretty},
    extract::{MatchedRequest, QueryParams},
    reply::Problem,
    rewriting::BufferedResponse,
};
use concord_model::limits::{PRETTY_BYTES_MAX, REWRITTEN_BYTES_MAX};
use concord_service::{Principal, Service};

/// The parameter, where no index has its name.
pub(super) const PRETTY: &str = "pretty";
/// The same, whatever the names of indexes.
pub(super) const ESCAPED: &str = "$pretty";

/// Bytes of a response up to which it is indented on the threads that serve requests.
const INLINE_BYTES_MAX: usize = 64 << 10;
const INDENT: usize = 2;

/// Whether the response to a request is to be indented.
///
/// # Errors
/// When the parameter is malformed.
pub(super) fn is_wanted(
    service: &Service,
    access: &RequestAccess,
    asked: &MatchedRequest,
) -> Result<bool, Problem> {
    // Most requests have no parameters.
    if asked.params().0.is_empty() {
        return Ok(false);
    }
    let RequestAccess::Authenticated(principal) = access else { return Ok(false) };
    let head = (&asked.matched, asked.params(), asked.uri());
    match asked.matched.endpoint.map_or(Pretty::Taken, |endpoint| endpoint.pretty) {
        Pretty::Never => Ok(false),
        Pretty::Taken => flag(service, principal, head, [PRETTY, ESCAPED], false),
        Pretty::UnlessIndexed => flag(service, principal, head, [PRETTY, ESCAPED], true),
    }
}

/// Whether one of the two forms of a parameter is `true`. `may_be_filter`: an index may have the name of the first form;
/// then it is a filter.
pub(super) fn flag(
    service: &Service,
    principal: &Principal,
    (matched, params, uri): (&Matched, &QueryParams, &Uri),
    [plain, escaped]: [&str; 2],
    may_be_filter: bool,
) -> Result<bool, Problem> {
    if may_be_filter
        && params.get(escaped).is_none()
        && params.get(plain).is_some()
        && service.reads.has_index_named(principal, &matched.definition(uri), plain)
    {
        return Ok(false);
    }
    Ok(params.flag(escaped)? || params.flag(plain)?)
}

/// The response, indented where it is JSON that is held in memory.
pub(super) async fn indented(response: Response, service: &Service) -> Response {
    let is_json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    if bytes == 0
        || bytes > REWRITTEN_BYTES_MAX
        || !response.headers().get(header::CONTENT_TYPE).is_some_and(is_json)
    {
        return response;
    }
    let held = match BufferedResponse::of(response, service).await {
        Ok(held) => held,
        Err(response) => return response,
    };
    let indent = |plain: &[u8]| indent(plain, PRETTY_BYTES_MAX);
    let (mut parts, plain, made) = held.rewritten(service, INLINE_BYTES_MAX, indent).await;
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, made.flatten().map_or_else(|| Body::from(plain), Body::from))
}

/// The text with each value of a list and each member of an object on a line of its own; `None` when it would be longer
/// than `bytes_max`.
fn indent(text: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len().saturating_mul(2).min(bytes_max));
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut bytes = text.iter().copied().peekable();
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.resize(out.len() + depth * INDENT, b' ');
    };
    while let Some(byte) = bytes.next() {
        if out.len() > bytes_max {
            return None;
        }
        if in_string {
            out.push(byte);
            (in_string, is_escaped) = match byte {
                _ if is_escaped => (true, false),
                b'\\' => (true, true),
                b'"' => (false, false),
                _ => (true, false),
            };
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'{' | b'[' => {
                out.push(byte);
                while bytes.peek().is_some_and(u8::is_ascii_whitespace) {
                    bytes.next();
                }
                if let Some(end) = bytes.next_if(|next| matches!(next, b'}' | b']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            _ => {
                in_string = byte == b'"';
                out.push(byte);
            }
        }
    }
    out.push(b'\n');
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn indented(text: &str) -> String {
        String::from_utf8(indent(text.as_bytes(), PRETTY_BYTES_MAX).unwrap()).unwrap()
    }

    #[test]
    fn each_value_has_a_line_and_is_as_it_was_written() {
        let text = r#"{"a":[1E22, {}],"b,":"x\"{,:","c":[ ],"d":{"e":-0.0}}"#;
        let expected = "{\n  \"a\": [\n    1E22,\n    {}\n  ],\n  \"b,\": \"x\\\"{,:\",\n  \"c\": [],\n  \"d\": {\n    \"e\": -0.0\n  }\n}\n";
        assert_eq!(indented(text), expected);
    }

    #[test]
    fn what_would_be_too_long_is_not_made() {
        let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
        assert!(indent(deep.as_bytes(), 1 << 20).is_none());
    }

    proptest! {
        #[test]
        fn an_indented_text_says_the_same(names in prop::collection::vec("[\\PC\"\\\\]{0,6}", 0..6), n in any::<i64>()) {
            let value = serde_json::json!({ "names": names, "n": [n, { "of": names.first() }], "none": null });
            let made: serde_json::Value = serde_json::from_str(&indented(&value.to_string())).unwrap();
            prop_assert_eq!(made, value);
        }
    }
}
