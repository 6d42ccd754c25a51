//! Raw responses: data without the envelope of other responses, as JSON, YAML or Java properties.
//!
//! ```text
//! ?raw=true                           the data of a config; all configs of a definition, by key; a schema
//! Accept: application/yaml            the same as YAML
//! Accept: text/x-java-properties      the same as Java properties; not of a schema
//! Accept: application/schema+json     a schema
//! ```
//!
//! A handler responds as always. What its envelope holds is taken out, and written in the format, before the response is
//! indented and compressed.
//!
//! **Invariants:** status, entity tag and all other headers are those of the response with an envelope. A rejection keeps
//! its form. What a format can't say is an error.

use axum::{
    body::{Body, HttpBody as _},
    response::{IntoResponse as _, Response},
};
use concord_formats::{
    properties::{self, NotFlat},
    yaml,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    coding,
    condition::header_problem,
    endpoints::{Matched, RawPart},
    extract::QueryParams,
    pretty::flag,
    reply::{Problem, REDACTED},
    rewriting::BufferedResponse,
};
use concord_model::{
    access_key::Verb,
    error::Violation,
    limits::{BODY_COPIES, FORMATTED_BYTES_MAX},
};
use concord_service::{Principal, Refusal, Service, memory_budget::Share};

/// The parameter, where no index has its name.
pub(super) const RAW: &str = "raw";
/// The same, whatever the names of indexes.
pub(super) const ESCAPED: &str = "$raw";

/// Bytes of a response up to which it is rewritten on the threads that serve requests.
const INLINE_BYTES_MAX: usize = 16 << 10;
/// Bytes that a byte of JSON may become in another format, beside the bytes that any data may become. Names that repeat
/// those of all objects around them, and lines that are indented, make a text longer than its data.
const GROWTH: usize = 32;
const FORMATTED_BYTES_MIN: usize = 64 << 10;

/// Bytes that so many bytes of JSON may become in another format.
pub(super) fn formatted_max(bytes: usize) -> usize {
    bytes.saturating_mul(GROWTH).saturating_add(FORMATTED_BYTES_MIN).min(FORMATTED_BYTES_MAX)
}

/// The memory in which so many bytes of JSON are written in another format.
pub(super) fn room_for(bytes: usize) -> u64 {
    bytes as u64 * BODY_COPIES + formatted_max(bytes) as u64 * 2
}

/// How data are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawFormat {
    Json,
    Yaml,
    Properties,
    /// JSON, of a schema.
    Schema,
}

impl RawFormat {
    pub(super) const fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Properties => "text/x-java-properties",
            Self::Schema => "application/schema+json",
        })
    }

    /// The format of a media type.
    fn of(media_type: &str, part: RawPart) -> Option<Self> {
        let is = |name: &str| media_type.eq_ignore_ascii_case(name);
        if is("application/yaml") || is("application/x-yaml") || is("text/yaml") {
            return Some(Self::Yaml);
        }
        match part {
            RawPart::Schema => is("application/schema+json").then_some(Self::Schema),
            RawPart::Data | RawPart::All => is("text/x-java-properties").then_some(Self::Properties),
        }
    }

    /// The format that a client likes best; `None` for the ordinary response.
    fn accepted(headers: &HeaderMap, part: RawPart) -> Option<Self> {
        let texts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut best = (0, None);
        for element in texts.flat_map(|text| text.split(',')) {
            let mut parts = element.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let format = Self::of(media_type, part);
            if format.is_none() && !["application/json", "*/*", "application/*"].contains(&media_type) {
                continue;
            }
            let weight = parts.find(|part| part.starts_with("q=")).map_or(1000, coding::thousandths);
            if weight > best.0 {
                best = (weight, format);
            }
        }
        best.1
    }
}

/// How a request wants its data; `None` for the ordinary response.
///
/// # Errors
/// When the parameter is malformed.
pub(super) fn format(
    service: &Service,
    principal: &Principal,
    (matched, params, uri): (&Matched, &QueryParams, &Uri),
    headers: &HeaderMap,
) -> Result<Option<RawFormat>, Problem> {
    let Some(part) = matched.endpoint.and_then(|endpoint| endpoint.raw) else { return Ok(None) };
    if let Some(format) = RawFormat::accepted(headers, part) {
        return Ok(Some(format));
    }
    let is_raw = !params.0.is_empty()
        && flag(service, principal, (matched, params, uri), [RAW, ESCAPED], part == RawPart::All)?;
    Ok(is_raw.then_some(RawFormat::Json))
}

/// Why data are not written in a format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotWritten {
    /// Properties are those of an object.
    NoObject,
    Repeated(String),
    TooLarge,
    Malformed(String),
}

impl NotWritten {
    fn text(&self) -> String {
        match self {
            Self::NoObject => "only an object can be written as properties".into(),
            Self::Repeated(name) => format!("two values have the name `{name}` as properties"),
            Self::TooLarge => "in this format the data are too long".into(),
            Self::Malformed(text) => text.clone(),
        }
    }

    /// The rejection of a request that has chosen its format by a header.
    fn of_header(self) -> Problem {
        match self {
            Self::Malformed(text) => Refusal::Internal(text).into(),
            Self::NoObject | Self::Repeated(_) | Self::TooLarge => {
                header_problem(&header::ACCEPT, &self.text())
            }
        }
    }
}

/// The rejection of a request whose path has chosen the format.
impl From<NotWritten> for Problem {
    fn from(error: NotWritten) -> Self {
        match error {
            NotWritten::Malformed(text) => Refusal::Internal(text).into(),
            NotWritten::NoObject | NotWritten::Repeated(_) | NotWritten::TooLarge => {
                Self::violation(Violation::at(vec!["path".into()], error.text()))
            }
        }
    }
}

impl From<NotFlat> for NotWritten {
    fn from(error: NotFlat) -> Self {
        match error {
            NotFlat::Repeated(name) => Self::Repeated(name),
            NotFlat::TooLarge => Self::TooLarge,
        }
    }
}

/// A value in a format; `bytes` is the length of its JSON.
pub(super) fn written(value: &Value, format: RawFormat, bytes: usize) -> Result<String, NotWritten> {
    let bytes_max = formatted_max(bytes);
    match (format, value) {
        (RawFormat::Json | RawFormat::Schema, _) => Ok(value.to_string()),
        (RawFormat::Yaml, _) => yaml::write_within(value, bytes_max).ok_or(NotWritten::TooLarge),
        (RawFormat::Properties, Value::Object(members)) => Ok(properties::write(members, bytes_max)?),
        (
            RawFormat::Properties,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => Err(NotWritten::NoObject),
    }
}

/// A response with its data alone.
pub(super) async fn rewritten(
    response: Response,
    (format, part): (RawFormat, RawPart),
    service: &Service,
) -> Response {
    if response.status() != StatusCode::OK {
        return response;
    }
    if format == RawFormat::Properties && response.headers().contains_key(REDACTED) {
        // An empty property would pass for the value.
        return Problem::from(Refusal::Forbidden { verb: Verb::Reveal }).into_response();
    }
    let mut response = response;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, format.media_type());
    headers.append(header::VARY, HeaderValue::from_static("accept"));
    // That of the envelope.
    headers.remove(header::CONTENT_LENGTH);
    let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > 0) else {
        return response;
    };
    let mut room = service.cx.reservation(Share::Callers);
    let more = match format {
        RawFormat::Json | RawFormat::Schema => bytes,
        RawFormat::Yaml | RawFormat::Properties => room_for(usize::try_from(bytes).unwrap_or(usize::MAX)),
    };
    if let Err(refusal) = room.grow(more) {
        return Problem::from(refusal).into_response();
    }
    let Ok(held) = BufferedResponse::of(response, service).await else {
        // Sent as it is, it would be no raw response.
        let text = "this node has no memory for the response";
        return Problem::from(Refusal::Unavailable(text.into())).into_response();
    };
    let rewrite = move |text: &[u8]| {
        let _room = &room;
        data_of(text, part).and_then(|data| match format {
            RawFormat::Json | RawFormat::Schema => Ok(data.to_owned()),
            RawFormat::Yaml | RawFormat::Properties => {
                let value = serde_json::from_str(data).map_err(|error| malformed(&error))?;
                written(&value, format, data.len())
            }
        })
    };
    match held.rewritten(service, INLINE_BYTES_MAX, rewrite).await {
        (parts, _, Some(Ok(text))) => Response::from_parts(parts, Body::from(text)),
        (_, _, Some(Err(error))) => error.of_header().into_response(),
        (_, _, None) => {
            Problem::from(Refusal::Unavailable("the response was not written in time".into())).into_response()
        }
    }
}

fn malformed(error: &serde_json::Error) -> NotWritten {
    NotWritten::Malformed(format!("a response is no JSON: {error}"))
}

/// The text of the data in an envelope.
fn data_of(text: &[u8], part: RawPart) -> Result<&str, NotWritten> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        data: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Schema<'a> {
        #[serde(borrow)]
        json_schema: &'a RawValue,
    }
    let envelope: Envelope<'_> = serde_json::from_slice(text).map_err(|error| malformed(&error))?;
    let data = envelope.data.get();
    match part {
        RawPart::All => Ok(data),
        RawPart::Data => {
            let config: Envelope<'_> = serde_json::from_str(data).map_err(|error| malformed(&error))?;
            Ok(config.data.get())
        }
        RawPart::Schema => {
            let found: Schema<'_> = serde_json::from_str(data).map_err(|error| malformed(&error))?;
            // Without a schema all data are valid, as with this one.
            Ok(Some(found.json_schema.get()).filter(|schema| *schema != "null").unwrap_or("true"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(value: &str, part: RawPart) -> Option<RawFormat> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.parse().unwrap());
        RawFormat::accepted(&headers, part)
    }

    #[test]
    fn the_format_is_the_one_that_the_client_likes_best() {
        for (value, expected) in [
            ("*/*", None),
            ("text/html,application/xhtml+xml,*/*;q=0.8", None),
            ("application/yaml", Some(RawFormat::Yaml)),
            ("APPLICATION/YAML; charset=utf-8", Some(RawFormat::Yaml)),
            ("application/json, application/yaml", None),
            ("application/json;q=0.5, application/yaml", Some(RawFormat::Yaml)),
            ("text/x-java-properties;q=0.9, */*;q=0.1", Some(RawFormat::Properties)),
            ("application/yaml;q=0", None),
            ("application/schema+json", None),
        ] {
            assert_eq!(accepted(value, RawPart::Data), expected, "{value}");
        }
        assert_eq!(accepted("application/schema+json", RawPart::Schema), Some(RawFormat::Schema));
        assert_eq!(accepted("text/x-java-properties", RawPart::Schema), None);
    }

    #[test]
    fn the_data_are_taken_out_as_they_are_written() {
        let config = br#"{"status":"SUCCESS","message":"m","data":{"config_key":"k","data":{"b":1.50,"a":[]},"created_at":"t"}}"#;
        assert_eq!(data_of(config, RawPart::Data), Ok(r#"{"b":1.50,"a":[]}"#));
        let schema = br#"{"data":{"json_schema":{"type":"object"},"format_assertion":null}}"#;
        assert_eq!(data_of(schema, RawPart::Schema), Ok(r#"{"type":"object"}"#));
        assert_eq!(data_of(br#"{"data":{"json_schema":null}}"#, RawPart::Schema), Ok("true"));
        assert_eq!(data_of(br#"{"data":{"k":{}}}"#, RawPart::All), Ok(r#"{"k":{}}"#));
        assert!(data_of(b"x", RawPart::All).is_err());
    }

    #[test]
    fn a_format_says_what_it_can_not_write() {
        let value: Value = serde_json::from_str(r#"{"a.b": 1, "a": {"b": 2}}"#).unwrap();
        assert_eq!(written(&value, RawFormat::Properties, 30), Err(NotWritten::Repeated("a.b".into())));
        assert_eq!(written(&Value::Null, RawFormat::Properties, 4), Err(NotWritten::NoObject));
        assert_eq!(written(&value, RawFormat::Yaml, 30).unwrap(), "a.b: 1\na:\n  b: 2\n");
        let deep = (0..200).fold(Value::from(vec![1; 100_000]), |inner, _| Value::from(vec![inner]));
        assert_eq!(written(&deep, RawFormat::Yaml, 200_400), Err(NotWritten::TooLarge));
    }
}
