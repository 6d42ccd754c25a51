//! What a client says of itself as a reader, and how a response says that it is a candidate.
//!
//! ```text
//! X-Concord-Reader: host-17                           its name, and with it that it is a reader
//! X-Concord-Labels: ring=canary,region=eu             its labels; only beside a name
//! X-Concord-Variant: candidate; change=mD3kQ9xYb7Lz   the response has the candidate of this change request
//! ```
//!
//! The entity tag of a candidate is the id of its change request with the edition: the same over all stages, and none that a
//! write can match, because the config does not change meanwhile.
//!
//! **Invariant:** only requests that show one config, several named ones or their changes read these headers. The headers of
//! all others have no effect, and what they show is proven.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{
    condition::{header_problem, single},
    json::Object,
    reply::{Problem, Reply},
};
use concord_model::{
    key::Key,
    limits::{READER_BYTES_MAX, READER_LABELS_BYTES_MAX},
    system::rollout::{Reader, ReaderError},
};
use concord_service::Variant;

const READER: HeaderName = HeaderName::from_static("x-concord-reader");
const LABELS: HeaderName = HeaderName::from_static("x-concord-labels");
const VARIANT: HeaderName = HeaderName::from_static("x-concord-variant");
const VARIES: HeaderValue = HeaderValue::from_static("x-concord-reader, x-concord-labels");

/// The reader that the headers name; `None` where they name none.
///
/// # Errors
/// If one of them is malformed, too large or given twice; if there are labels without a name.
pub(super) fn reader_of(headers: &HeaderMap) -> Result<Option<Reader>, Problem> {
    let labels = text(headers, &LABELS, READER_LABELS_BYTES_MAX)?;
    let Some(id) = text(headers, &READER, READER_BYTES_MAX)? else {
        return match labels {
            None => Ok(None),
            Some(_) => {
                Err(header_problem(&LABELS, "labels are those of a reader: send `x-concord-reader` too"))
            }
        };
    };
    let reader = Reader::parse(id, labels.unwrap_or_default());
    reader.map(Some).map_err(|error| {
        let name = match error {
            ReaderError::Id => &READER,
            ReaderError::Labels => &LABELS,
        };
        header_problem(name, &error.to_string())
    })
}

/// The reader whose flags are evaluated: the `targetingKey` of the context, with the labels of the header. `None` where that
/// can be no name of a reader, which OFREP does not ask of it.
///
/// # Errors
/// If the labels are malformed, too large or given twice.
pub(super) fn evaluated_for(
    headers: &HeaderMap,
    targeting_key: Option<&str>,
) -> Result<Option<Reader>, Problem> {
    let labels = text(headers, &LABELS, READER_LABELS_BYTES_MAX)?.unwrap_or_default();
    match Reader::parse(targeting_key.unwrap_or_default(), labels) {
        Ok(reader) => Ok(Some(reader)),
        Err(ReaderError::Id) => Ok(None),
        Err(error @ ReaderError::Labels) => Err(header_problem(&LABELS, &error.to_string())),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName, bytes_max: usize) -> Result<Option<&'a str>, Problem> {
    let Some(value) = single(headers, name)? else { return Ok(None) };
    if value.len() > bytes_max {
        return Err(header_problem(name, &format!("longer than {bytes_max} bytes")));
    }
    std::str::from_utf8(value.as_bytes()).map(Some).map_err(|_| header_problem(name, "not UTF-8"))
}

impl Reply {
    /// Says that the response depends on who reads, if the client has said it.
    pub(super) fn seen_by(self, is_identified: bool) -> Self {
        if is_identified { self.with(header::VARY, VARIES) } else { self }
    }

    /// Names the version of a candidate, which is the response.
    pub(super) fn variant(self, variant: &Variant) -> Self {
        self.header(header::ETAG, &format!("\"{}\"", variant.tag()))
            .header(VARIANT, &format!("candidate; change={}", variant.change))
    }
}

/// Adds to an object with a config that it is a candidate, where it is one.
pub(super) fn with_variant(object: Object, change: Option<&Key>) -> Object {
    match change {
        None => object,
        Some(change) => {
            object.raw("variant", &Object::new().unescaped("change_id", change.as_str()).finish())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::error::{Invalid, LocSegment};
    use concord_service::Refusal;

    fn read(pairs: &[(&HeaderName, &str)]) -> Result<Option<Reader>, Problem> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        reader_of(&headers)
    }

    #[test]
    fn a_client_says_who_it_is_by_two_headers() {
        assert_eq!(read(&[]).unwrap(), None);
        let reader = read(&[(&READER, "höst-17")]).unwrap().unwrap();
        assert_eq!((reader.id.as_str(), reader.labels.len()), ("höst-17", 0));
        let reader = read(&[(&READER, "h"), (&LABELS, "ring=canary,region=eu")]).unwrap().unwrap();
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(reader.labels, [label("ring", "canary"), label("region", "eu")]);
        let long = "x".repeat(READER_BYTES_MAX + 1);
        let many = format!("a={}", "x".repeat(READER_LABELS_BYTES_MAX));
        for (pairs, name) in [
            (&[(&READER, "")][..], &READER),
            (&[(&READER, long.as_str())], &READER),
            (&[(&READER, "a"), (&READER, "b")], &READER),
            (&[(&LABELS, "ring=canary")], &LABELS),
            (&[(&LABELS, "")], &LABELS),
            (&[(&READER, "a"), (&LABELS, "ring")], &LABELS),
            (&[(&READER, "a"), (&LABELS, "ring=a,ring=b")], &LABELS),
            (&[(&READER, "a"), (&LABELS, many.as_str())], &LABELS),
            (&[(&READER, "a"), (&LABELS, "a=b"), (&LABELS, "c=d")], &LABELS),
        ] {
            let Err(Problem::Refused(Refusal::Invalid(Invalid::Violations(violations)), None)) = read(pairs)
            else {
                panic!("{pairs:?}")
            };
            let loc = [LocSegment::Name("header".into()), LocSegment::Name(name.to_string())];
            assert_eq!(violations[0].loc, loc, "{pairs:?}");
        }
    }
}
