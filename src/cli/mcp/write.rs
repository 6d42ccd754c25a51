//! The tools of `--allow-write`, and the dry run.
//!
//! **Invariants:** no write of what exists is sent without the revision that was read. A result to a write has no data.

use concord_client::{Answer, Client, IfMatch, Operation, PutMode, Request};
use concord_model::limits::REASON_BYTES_MAX;
use http::StatusCode;
use serde_json::{Value, json};

use super::{read::Found, result::ToolError, result::fit, tools::Arguments};
use crate::cli::{
    check, current,
    mask::pointer,
    output::cell,
    redacted::{Redactions, escaped},
};

/// Violations that a result names.
const VIOLATIONS_MAX: usize = 50;

/// What the schemas of the tools call an operation.
const CREATE: &str = "create";
const REPLACE: &str = "replace";
const PATCH: &str = "patch";
const DELETE: &str = "delete";

/// Whether an operation may do without the expected revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Required,
    Optional,
}

/// The operation that arguments describe.
fn operation(op: &str, arguments: &Arguments, expected: Expected) -> Result<Operation, ToolError> {
    let (definition, key) =
        (arguments.required("definition").to_owned(), arguments.required("key").to_owned());
    let revision = arguments.number("revision")?;
    let needed: &[(&str, bool)] = match op {
        CREATE => &[("data", true), ("patch", false), ("revision", false)],
        REPLACE => &[("data", true), ("patch", false)],
        PATCH => &[("data", false), ("patch", true)],
        _ => &[("data", false), ("patch", false)],
    };
    for (name, is_needed) in needed {
        if arguments.value(name).is_some() != *is_needed {
            let verb = if *is_needed { "needs" } else { "has no" };
            return Err(ToolError::arguments(format!("{definition}/{key}: `{op}` {verb} `{name}`")));
        }
    }
    if op != CREATE && expected == Expected::Required && revision.is_none() {
        return Err(ToolError::arguments(format!(
            "{definition}/{key}: `{op}` needs `revision`: read the config, and give the revision that it has"
        )));
    }
    let value = |name: &str| arguments.value(name).cloned().unwrap_or_default();
    let if_match = revision.map(IfMatch::Revision);
    Ok(match op {
        CREATE => Operation::CreateConfig { definition, key, data: value("data") },
        REPLACE => {
            let mode = revision.map_or(PutMode::Replace, PutMode::ReplaceIf);
            Operation::PutConfig { definition, key, data: value("data"), mode }
        }
        PATCH => Operation::PatchConfig { definition, key, patch: value("patch"), if_match },
        _ => Operation::DeleteConfig { definition, key, if_match },
    })
}

/// Sends one write.
async fn write(client: &Client, arguments: &Arguments, op: &str) -> Found {
    let request = Request::operation(&operation(op, arguments, Expected::Required)?);
    let answer = client.send(with_reason(request, arguments)?).await?;
    let deletion = answer.header("x-concord-write-revision").and_then(|text| text.parse::<u64>().ok());
    Ok(with_warnings(
        json!({
            "outcome": "applied", "op": op, "definition": arguments.required("definition"),
            "key": arguments.required("key"), "revision": deletion.or(answer.revision()),
        }),
        &answer,
    ))
}

/// The reason for a change, which is more than spaces.
fn reason(arguments: &Arguments) -> Result<&str, ToolError> {
    match arguments.required("reason").trim() {
        "" => Err(ToolError::arguments("/reason: expected a text that says why")),
        reason => Ok(reason),
    }
}

/// A write with its reason, which is a header.
fn with_reason(request: Request, arguments: &Arguments) -> Result<Request, ToolError> {
    let reason = reason(arguments)?;
    if reason.len() > REASON_BYTES_MAX || reason.contains(char::is_control) {
        let text = format!("/reason: expected one line of at most {REASON_BYTES_MAX} bytes");
        return Err(ToolError::arguments(text));
    }
    Ok(request.header("x-change-reason", reason))
}

fn with_warnings(mut data: Value, answer: &Answer) -> Value {
    let warnings = answer.warnings();
    if !warnings.is_empty() {
        data["warnings"] = json!(warnings);
    }
    data
}

pub(super) async fn create_config(client: &Client, arguments: &Arguments) -> Found {
    write(client, arguments, CREATE).await
}

pub(super) async fn replace_config(client: &Client, arguments: &Arguments) -> Found {
    write(client, arguments, REPLACE).await
}

pub(super) async fn patch_config(client: &Client, arguments: &Arguments) -> Found {
    write(client, arguments, PATCH).await
}

pub(super) async fn delete_config(client: &Client, arguments: &Arguments) -> Found {
    write(client, arguments, DELETE).await
}

pub(super) async fn propose_change(client: &Client, arguments: &Arguments) -> Found {
    let each = |one: &Arguments| operation(one.required("op"), one, Expected::Required);
    let operations = arguments.list("operations").iter().map(each).collect::<Result<Vec<_>, _>>()?;
    let request = Request::propose(arguments.required("title"), reason(arguments)?, &operations);
    let answer = client.send(request).await?;
    // It is created, whatever the response has.
    let change = answer.data().unwrap_or_default();
    let mut shown = json!({ "outcome": "proposed" });
    for name in ["change_id", "title", "phase", "environments", "approvals_needed", "edition", "expires_at"] {
        shown[name] = change[name].clone();
    }
    Ok(with_warnings(shown, &answer))
}

pub(super) async fn validate_write(client: &Client, arguments: &Arguments) -> Found {
    let op = arguments.required("op");
    let operation = operation(op, arguments, Expected::Optional)?;
    let request = Request::operation(&operation).query("dry_run", "all-violations");
    let error = match client.send(request).await {
        Ok(answer) => {
            let mut record = json!({ "data": answer.data()? });
            let _ = Redactions::of(&mut record, &answer);
            let mut shown = json!({ "valid": true, "checked": "all", "data": record["data"].take() });
            if let Some(redacted) = record.get_mut("redacted") {
                shown["redacted"] = redacted.take();
            }
            fit([&mut shown], &["data"]);
            return Ok(with_warnings(shown, &answer));
        }
        Err(error) => error,
    };
    let concord_client::Error::Refused(refusal) = &error else { return Err(error.into()) };
    if refusal.status == StatusCode::UNPROCESSABLE_ENTITY {
        let items: Vec<Value> = refusal
            .items
            .iter()
            .take(VIOLATIONS_MAX)
            .map(|item| json!({ "code": item.code, "message": item.msg, "place": place(&item.loc) }))
            .collect();
        return Ok(invalid("all", items, refusal.items.len()));
    }
    let is_left_to_others = refusal.status == StatusCode::FORBIDDEN || error.is_change_required();
    match arguments.value("data") {
        // The permission to write is not needed to know what the schema says.
        Some(data) if is_left_to_others => schema_says(client, arguments, data).await,
        _ => Err(error.into()),
    }
}

/// Whether data fits its definition, as this program finds it.
async fn schema_says(client: &Client, arguments: &Arguments, data: &Value) -> Found {
    let (definition, key) = (arguments.required("definition"), arguments.required("key"));
    let found = current::definition(client, definition).await?;
    let found =
        found.ok_or_else(|| ToolError::new("failed", format!("definition {definition} does not exist")))?;
    let violations = check::violations(&found.value, key, data);
    if violations.is_empty() {
        return Ok(json!({ "valid": true, "checked": "schema" }));
    }
    let items = violations
        .iter()
        .take(VIOLATIONS_MAX)
        .map(|(code, violation)| json!({ "code": code, "message": violation.msg, "place": pointer(&violation.loc) }));
    Ok(invalid("schema", items.collect(), violations.len()))
}

/// The place of an error in a request, as a JSON pointer.
fn place(loc: &[Value]) -> String {
    loc.iter().map(|step| format!("/{}", escaped(&cell(step)))).collect()
}

fn invalid(checked: &str, mut errors: Vec<Value>, count: usize) -> Value {
    fit(&mut errors, &["message"]);
    json!({ "valid": false, "checked": checked, "count": count, "errors": errors })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mcp::tools::Tool;

    fn made(text: &str, expected: Expected) -> Result<Operation, String> {
        let arguments = Tool::ValidateWrite
            .arguments(serde_json::from_str(text).unwrap())
            .map_err(ToolError::into_text)?;
        operation(arguments.required("op"), &arguments, expected).map_err(ToolError::into_text)
    }

    #[test]
    fn a_write_has_a_reason_of_one_line() {
        let with = |text: &str| {
            let arguments = json!({"definition": "d", "key": "k", "revision": 1, "reason": text});
            let Value::Object(arguments) = arguments else { panic!("it is an object") };
            let arguments = Tool::DeleteConfig.arguments(arguments).map_err(ToolError::into_text)?;
            with_reason(Request::get("/"), &arguments).map(drop).map_err(ToolError::into_text)
        };
        assert_eq!(with(" as agreed\n"), Ok(()));
        assert_eq!(with(&"é".repeat(512)), Ok(()));
        for text in [" \n", "two\nlines", &"é".repeat(513)] {
            let error = with(text).unwrap_err();
            assert!(error.contains("/reason"), "{error}");
        }
    }

    #[test]
    fn a_change_of_what_exists_has_the_expected_revision() {
        let of = |rest: &str| format!(r#"{{"definition": "d", "key": "k", {rest}}}"#);
        for rest in [r#""op": "replace", "data": {}"#, r#""op": "patch", "patch": {}"#, r#""op": "delete""#] {
            let error = made(&of(rest), Expected::Required).unwrap_err();
            assert!(error.contains("needs `revision`"), "{error}");
            assert!(made(&of(rest), Expected::Optional).is_ok());
            let operation = made(&of(&format!(r#"{rest}, "revision": 7"#)), Expected::Required).unwrap();
            assert!(operation.to_string().contains(r#""if_match":"7""#), "{operation}");
        }
        let create = made(&of(r#""op": "create", "data": {"n": 1.50}"#), Expected::Required).unwrap();
        assert!(create.to_string().contains(r#""n":1.50"#), "{create}");
        for rest in [
            r#""op": "create", "data": {}, "revision": 7"#,
            r#""op": "create""#,
            r#""op": "patch", "data": {}, "revision": 7"#,
            r#""op": "delete", "data": {}, "revision": 7"#,
        ] {
            let error = made(&of(rest), Expected::Required).unwrap_err();
            assert!(error.contains("arguments_invalid"), "{rest}: {error}");
        }
    }
}
