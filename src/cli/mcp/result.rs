//! What a tool returns: JSON of bounded length, or an error that says whether anything was changed.
//!
//! **Invariants:** no result is longer than [`RESULT_BYTES_MAX`]. A write whose outcome is not known is called that, and
//! never failed.

use concord_client::{Error, Item, Refusal};
use serde_json::{Value, json};

use crate::cli::connection::Failure;

/// Bytes of the text of a result.
pub(super) const RESULT_BYTES_MAX: usize = 64 << 10;
/// What records may take of a result. The rest is for what stands around them.
const RECORDS_BYTES_MAX: usize = RESULT_BYTES_MAX - (4 << 10);
/// Reasons of a rejection that are named.
const ITEMS_MAX: usize = 50;
/// Bytes of the message of an error.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Why a call failed, as the `error` of a response.
#[derive(Debug)]
pub(super) struct ToolError(Value);

impl ToolError {
    /// Nothing was sent to the cluster, or nothing came of it.
    pub(super) fn new(kind: &str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message.push('…');
        }
        Self(json!({ "kind": kind, "message": message }))
    }

    /// The arguments do not fit the tool.
    pub(super) fn arguments(message: impl Into<String>) -> Self {
        Self::new("arguments_invalid", message)
    }

    /// The same with what to do.
    fn with_hint(mut self, hint: Option<&str>) -> Self {
        if let Some(hint) = hint {
            self.0["hint"] = hint.into();
        }
        self
    }

    /// The result.
    pub(super) fn into_text(self) -> String {
        bounded(&json!({ "error": self.0 })).0
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        match error {
            Error::Usage(text) => Self::arguments(text),
            Error::Refused(refusal) => refused(&refusal),
            Error::Unavailable(text) => Self::new(
                "unavailable",
                format!("no node could serve the request, nothing was changed: {text}"),
            ),
            Error::Unknown { text, .. } => Self::new(
                "outcome_unknown",
                format!("the outcome is unknown, the write may have been applied: {text}"),
            )
            .with_hint(Some("read the record and its history before you write again")),
            Error::Protocol(text) => Self::new("protocol", text),
        }
    }
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        let kind = if matches!(failure, Failure::Usage(_)) { "arguments_invalid" } else { "failed" };
        if let Failure::Client(error) = failure { error.into() } else { Self::new(kind, failure.into_text()) }
    }
}

fn refused(refusal: &Refusal) -> ToolError {
    let all: Vec<String> = refusal.items.iter().take(ITEMS_MAX).map(Item::to_string).collect();
    let code = refusal.items.first().map_or("", |item| item.code.as_str());
    let mut error = ToolError::new("rejected", all.join("; "));
    error.0["code"] = code.into();
    error.0["status"] = refusal.status.as_u16().into();
    if refusal.items.len() > all.len() {
        error.0["more_reasons"] = (refusal.items.len() - all.len()).into();
    }
    if let Some(revision) = refusal.current_revision {
        error.0["current_revision"] = revision.into();
    }
    error.with_hint(hint(code, refusal.status.as_u16()))
}

fn hint(code: &str, status: u16) -> Option<&'static str> {
    Some(match (code, status) {
        ("change_required", _) => "this environment takes change requests only: propose the change",
        ("environment_frozen", _) => "nothing in this environment can be changed until the freeze ends",
        ("expired_error", _) | ("", 410) => "start again without a cursor",
        (_, 412) => "somebody has changed the record: read it again, and decide again",
        (_, 403) => "the access key lacks the permission; only a person can grant it",
        _ => return None,
    })
}

/// The text of a result, and whether it is an error: it is too long.
pub(super) fn bounded(result: &Value) -> (String, bool) {
    let text = result.to_string();
    if text.len() <= RESULT_BYTES_MAX {
        return (text, false);
    }
    let message = format!(
        "the result has {} bytes, and {RESULT_BYTES_MAX} is the limit: select less, with a smaller `limit`, some `fields` or a longer `path`",
        text.len()
    );
    (json!({ "error": { "kind": "result_too_long", "message": message } }).to_string(), true)
}

/// Leaves members out of records that do not fit into a result; such a record says so as `omitted`.
pub(super) fn fit<'a>(records: impl IntoIterator<Item = &'a mut Value>, members: &[&str]) {
    let mut used = 0;
    for record in records {
        let size = record.to_string().len();
        if used + size > RECORDS_BYTES_MAX {
            omit(record, members);
            used += record.to_string().len();
        } else {
            used += size;
        }
    }
}

/// Leaves members out of a record. They are null, and `omitted` names them with their bytes.
pub(super) fn omit(record: &mut Value, members: &[&str]) {
    let mut omitted = json!({});
    for member in members {
        if let Some(value) = record.get_mut(*member).filter(|value| !value.is_null()) {
            omitted[*member] = value.to_string().len().into();
            *value = Value::Null;
        }
    }
    record["omitted"] = omitted;
}

/// The first records that fit into a result, at least one, and whether there are more. `shrink` makes the first one
/// smaller if it is too long by itself.
pub(super) fn first(records: Vec<Value>, shrink: impl Fn(&mut Value)) -> (Vec<Value>, bool) {
    let (mut kept, mut used) = (Vec::new(), 0);
    for mut record in records {
        let size = record.to_string().len();
        if used + size > RECORDS_BYTES_MAX {
            if !kept.is_empty() {
                return (kept, true);
            }
            shrink(&mut record);
        }
        used += record.to_string().len();
        kept.push(record);
    }
    (kept, false)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn an_unknown_outcome_is_no_failure() {
        let unknown = Error::Unknown { text: "the connection broke".into(), idempotency_key: None };
        let text = ToolError::from(unknown).into_text();
        assert!(
            text.contains(r#""kind":"outcome_unknown""#) && text.contains("may have been applied"),
            "{text}"
        );
        let text = ToolError::from(Error::Unavailable("refused".into())).into_text();
        assert!(text.contains(r#""kind":"unavailable""#) && text.contains("nothing was changed"), "{text}");
    }

    #[test]
    fn a_rejection_has_its_code_its_text_and_what_to_do() {
        let item = |n: usize| Item {
            code: "data_invalid".into(),
            msg: format!("wrong {n}"),
            loc: vec!["data".into()],
        };
        let refusal = Refusal {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            items: (0..60).map(item).collect(),
            url: "http://n:1/x".into(),
            request_id: String::new(),
            body: Value::Null,
            current_revision: None,
            environment: None,
        };
        let stale = Refusal {
            status: StatusCode::PRECONDITION_FAILED,
            items: vec![Item { code: "precondition_failed".into(), msg: "no".into(), loc: vec![] }],
            current_revision: Some(7),
            ..refusal.clone()
        };
        let error = |refusal| -> Value {
            serde_json::from_str(&ToolError::from(Error::Refused(Box::new(refusal))).into_text()).unwrap()
        };
        let found = error(refusal);
        assert_eq!(
            (&found["error"]["code"], &found["error"]["status"]),
            (&json!("data_invalid"), &json!(422))
        );
        assert_eq!(found["error"]["more_reasons"], 10);
        assert!(found["error"]["message"].as_str().unwrap().starts_with("/data: wrong 0; /data: wrong 1; "));
        let found = error(stale);
        assert_eq!(found["error"]["current_revision"], 7);
        assert!(found["error"]["hint"].as_str().unwrap().contains("read it again"));
    }

    #[test]
    fn a_result_is_bounded() {
        let long = "x".repeat(40 << 10);
        let mut records = vec![
            json!({"key": "a", "data": long}),
            json!({"key": "b", "data": long}),
            json!({"key": "c", "data": 1}),
        ];
        let (text, is_error) = bounded(&json!(records));
        assert!(is_error && text.contains("result_too_long") && text.len() < 500, "{text}");
        fit(&mut records, &["data"]);
        assert_eq!(records[1], json!({"key": "b", "data": null, "omitted": {"data": (40 << 10) + 2}}));
        assert_eq!(records[2], json!({"key": "c", "data": 1}));
        assert!(!bounded(&json!(records)).1);
    }

    #[test]
    fn a_page_ends_where_the_result_is_full() {
        let long = "x".repeat(40 << 10);
        let records = vec![json!({"data": long}), json!({"data": long})];
        let (kept, is_cut) = first(records.clone(), |record| omit(record, &["data"]));
        assert!(is_cut && kept == records[..1]);
        let huge = vec![json!({"data": "x".repeat(80 << 10)}), json!({"data": 1})];
        let (kept, is_cut) = first(huge, |record| omit(record, &["data"]));
        assert!(!is_cut && kept[0]["data"].is_null() && kept[1] == json!({"data": 1}));
    }
}
