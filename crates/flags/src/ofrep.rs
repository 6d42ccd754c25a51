//! Request and response bodies of OFREP 0.3.

use concord_model::limits::FLAGS_RESPONSE_BYTES_MAX;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, value::RawValue};

use super::{
    context::{Context, ContextError},
    set::{ErrorCode, Evaluation, FlagSet, Outcome},
};

/// The context of a request's body, which has the member `context` or nothing.
///
/// # Errors
/// When the body is no object, or its context can't be used.
pub fn context(body: &Value) -> Result<Context, ContextError> {
    match body {
        Value::Null => Ok(Context::empty()),
        Value::Object(members) => members.get("context").map_or_else(|| Ok(Context::empty()), Context::new),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(ContextError::NotAnObject)
        }
    }
}

/// One evaluation; the members that there are not are left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_details: Option<&'a str>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata<'a>,
}

/// The metadata of a flag, and that of the set where the flag has no other.
struct Metadata<'a> {
    of_flag: Option<&'a Map<String, Value>>,
    of_set: &'a Map<String, Value>,
}

impl Metadata<'_> {
    fn is_empty(&self) -> bool {
        self.of_set.is_empty() && self.of_flag.is_none_or(Map::is_empty)
    }
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let is_own = |name: &String| self.of_flag.is_some_and(|own| own.contains_key(name));
        let of_set = self.of_set.iter().filter(|(name, _)| !is_own(name));
        to.collect_map(self.of_flag.into_iter().flatten().chain(of_set))
    }
}

impl<'a> Body<'a> {
    const fn new(evaluation: &'a Evaluation<'_>) -> Self {
        let key = evaluation.key;
        let metadata = Metadata { of_flag: evaluation.metadata, of_set: evaluation.set_metadata };
        let empty = Body {
            key,
            value: None,
            reason: None,
            variant: None,
            error_code: None,
            error_details: None,
            metadata,
        };
        match &evaluation.outcome {
            Outcome::Value { value, variant, reason } => {
                Body { value: Some(value), variant: Some(variant), reason: Some(reason.name()), ..empty }
            }
            // Providers read `variant` of every success, so it is there, and empty.
            Outcome::CodeDefault { reason } => {
                Body { variant: Some(""), reason: Some(reason.name()), ..empty }
            }
            Outcome::Failure { code, details } => {
                Body { error_code: Some(code.name()), error_details: Some(details.as_str()), ..empty }
            }
        }
    }
}

/// A failure that is of no flag in particular.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    error_code: &'static str,
    error_details: &'a str,
}

/// The body of one evaluation.
#[must_use]
pub fn one(evaluation: &Evaluation<'_>) -> Vec<u8> {
    written(&Body::new(evaluation))
}

/// The body of a failure; `key` is that of the flag, if the request names one.
#[must_use]
pub fn failure(key: Option<&str>, code: ErrorCode, details: &str) -> Vec<u8> {
    written(&Failure { key, error_code: code.name(), error_details: details })
}

/// Why there is no response with all flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAll {
    /// It is larger than a response may be.
    TooLarge,
    /// Nobody waits for it any more.
    Over,
}

/// The evaluation of all flags and the metadata of the set. The address of the stream of changes is not part of it, so equal
/// evaluations have equal bytes at every node. `is_over` is called after each flag.
///
/// # Errors
/// When it is too large, or over before its end.
pub fn all(
    set: &FlagSet,
    context: &Context,
    time_s: i64,
    is_over: impl Fn() -> bool,
) -> Result<Vec<u8>, NotAll> {
    let mut out = b"{\"flags\":[".to_vec();
    let (mut is_first, mut was_over) = (true, false);
    set.evaluate_all(context, time_s, |evaluation| {
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        out.extend(one(evaluation));
        was_over = is_over();
        out.len() <= FLAGS_RESPONSE_BYTES_MAX && !was_over
    });
    if was_over {
        return Err(NotAll::Over);
    }
    if out.len() > FLAGS_RESPONSE_BYTES_MAX {
        return Err(NotAll::TooLarge);
    }
    out.push(b']');
    if !set.metadata().is_empty() {
        out.extend(b",\"metadata\":");
        out.extend(written(set.metadata()));
    }
    out.push(b'}');
    Ok(out)
}

/// [`all`] with the address at which changes are announced.
#[must_use]
pub fn with_event_stream(mut all: Vec<u8>, request_uri: &str) -> Vec<u8> {
    all.pop();
    all.extend(b",\"eventStreams\":[{\"type\":\"sse\",\"endpoint\":{\"requestUri\":");
    all.extend(written(request_uri));
    all.extend(b"}}]}");
    all
}

fn written<T: Serialize + ?Sized>(body: &T) -> Vec<u8> {
    serde_json::to_vec(body).expect("a body of texts and JSON values is always JSON text")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::SHARED_KEY;

    const ON: &str =
        r#"{"state":"ENABLED","variants":{"on":1.0},"defaultVariant":"on","metadata":{"team":"a","x":null}}"#;

    fn set(configs: &[(&str, Option<&str>)]) -> FlagSet {
        FlagSet::compile(configs.iter().copied())
    }

    fn value(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn a_body_has_the_value_as_written_and_all_metadata() {
        let shared = r#"{"metadata":{"team":"b","set":true,"list":[]}}"#;
        let set = set(&[("f", Some(ON)), (SHARED_KEY, Some(shared))]);
        let body = one(&set.evaluate("f", &Context::empty(), 0));
        let wanted =
            r#"{"key":"f","value":1.0,"reason":"STATIC","variant":"on","metadata":{"team":"a","set":true}}"#;
        assert_eq!(String::from_utf8(body).unwrap(), wanted);
        let all = value(&all(&set, &Context::empty(), 0, || false).unwrap());
        assert_eq!(all["metadata"], json!({ "team": "b", "set": true }));
        assert_eq!(all["flags"].as_array().unwrap().len(), 1, "what they share is no flag");
        assert_eq!(
            value(&one(&set.evaluate(SHARED_KEY, &Context::empty(), 0)))["errorCode"],
            "FLAG_NOT_FOUND"
        );
    }

    #[test]
    fn what_gives_no_value_says_why() {
        let flags = [
            ("broken", Some("{}")),
            ("disabled", Some(r#"{"state":"DISABLED","variants":{}}"#)),
            ("hidden", None),
        ];
        let all = value(&all(&set(&flags), &Context::empty(), 0, || false).unwrap());
        let of = |number: usize, name: &str| all["flags"][number][name].clone();
        assert_eq!((of(0, "key"), of(0, "errorCode")), (json!("broken"), json!("PARSE_ERROR")));
        assert_eq!(
            (of(1, "reason"), of(1, "variant"), of(1, "value")),
            (json!("DISABLED"), json!(""), Value::Null)
        );
        assert_eq!(of(2, "errorCode"), json!("GENERAL"));
    }

    #[test]
    fn a_broken_part_that_flags_share_is_seen_at_each() {
        let set = set(&[("f", Some(ON)), (SHARED_KEY, Some("[]"))]);
        assert_eq!(value(&one(&set.evaluate("f", &Context::empty(), 0)))["errorCode"], "PARSE_ERROR");
    }

    #[test]
    fn a_response_is_bounded() {
        let long = json!({ "metadata": { "text": "x".repeat(FLAGS_RESPONSE_BYTES_MAX / 8) } }).to_string();
        let mut configs = vec![(SHARED_KEY, Some(long.as_str()))];
        let keys: Vec<String> = (0..10).map(|n| format!("f{n}")).collect();
        configs.extend(keys.iter().map(|key| (key.as_str(), Some(ON))));
        assert_eq!(all(&set(&configs), &Context::empty(), 0, || false), Err(NotAll::TooLarge));
        assert!(all(&set(&configs[..4]), &Context::empty(), 0, || false).is_ok());
        let asked = std::cell::Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) == 1;
        assert_eq!(all(&set(&configs[..4]), &Context::empty(), 0, is_over), Err(NotAll::Over));
        assert_eq!(asked.get(), 2, "it ends with the flag after which nobody waits");
    }

    #[test]
    fn the_context_of_a_body_may_be_absent() {
        for body in [json!(null), json!({}), json!({ "context": null }), json!({ "context": {}, "more": 1 })]
        {
            assert!(context(&body).is_ok(), "{body}");
        }
        assert!(context(&json!([])).is_err() && context(&json!({ "context": 1 })).is_err());
    }

    #[test]
    fn the_address_of_the_stream_is_added_to_the_end() {
        let body = with_event_stream(b"{\"flags\":[],\"metadata\":{}}".to_vec(), "/a?b=c");
        let wanted = json!({ "flags": [], "metadata": {},
            "eventStreams": [{ "type": "sse", "endpoint": { "requestUri": "/a?b=c" } }] });
        assert_eq!(value(&body), wanted);
    }
}
