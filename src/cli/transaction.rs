//! `concord transaction`: several operations atomically, from a file.
//!
//! **Invariant:** the exit code is 0 only if the operations of `operations` or `then` were done; 1 if a condition did not
//! hold, so that those of `else` were. A member that no operation has is an error: a misspelt condition would be none.

use std::path::PathBuf;

use clap::Args;
use concord_client::Request;
use http::Method;
use serde_json::{Value, json};

use super::{
    apply::with_names,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::texts,
    definition::one_value,
    document::without_schema_reference,
    interrupt::{self, Doing},
    manifest::name,
    output::{Columns, note, print_columns},
    redacted::Redactions,
};

/// The members of a file.
const MEMBERS: [&str; 4] = ["operations", "if", "then", "else"];
const DEFINITION: &str = "config_definition_key";
const CONFIG: &str = "config_key";
/// The operations, and the members of each beside `op` and the key of the definition.
const OPERATIONS: [(&str, &[&str]); 13] = [
    ("create_definition", &["indexes", "json_schema", "format_assertion", "if_none_match"]),
    ("set_indexes", &["indexes", "if_match"]),
    ("set_schema", &["json_schema", "format_assertion", "policy", "if_match"]),
    ("set_unique", &["paths", "if_match"]),
    ("set_protection", &["protected", "if_match"]),
    ("delete_definition", &["mode", "if_match"]),
    ("create_config", &[CONFIG, "data", "if_none_match"]),
    ("put_config", &[CONFIG, "data", "upsert", "if_match", "if_none_match"]),
    ("patch_config", &[CONFIG, "patch", "if_match"]),
    ("delete_config", &[CONFIG, "if_match"]),
    ("rollback_config", &[CONFIG, "revision", "if_match"]),
    (CHECK, &[CONFIG, "revision", "absent", "equals", "pointer"]),
    ("get_config", &[CONFIG]),
];
/// The operation that a condition is.
const CHECK: &str = "check_config";
const COLUMNS: Columns = Columns {
    name: "config_key",
    narrow: &[
        ("OPERATION", "/op"),
        ("DEFINITION", "/config_definition_key"),
        ("KEY", "/config_key"),
        ("CREATED", "/created"),
        ("FOUND", "/config/data"),
    ],
    wide: &[("REVISION", "/config/revision")],
};

/// An example of a file.
const FILE_EXAMPLE: &str = "Example: a YAML file that changes a config if a field has the expected value:

  if:
    - {config_definition_key: jobs, config_key: j1, pointer: /state, equals: open}
  then:
    - op: patch_config
      config_definition_key: jobs
      config_key: j1
      patch: {state: done}";

#[derive(Debug, Args)]
#[command(after_help = FILE_EXAMPLE)]
pub(super) struct TransactionArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// A JSON or YAML file with `operations`, or with `if`, `then` and `else`; `-` for stdin. A plain list is taken as
    /// `operations`
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
    /// Idempotency key: if you run the command again with the same key and operations, they are applied only once. By
    /// default each run has a key of its own, which covers its retries
    #[arg(long, value_name = "NAME")]
    idempotency_key: Option<String>,
}

/// Runs the command.
pub(super) fn run(args: &TransactionArgs) -> Result<(), Failure> {
    let body = body(one_value(&args.file)?)
        .map_err(|text| Failure::Invalid(format!("{}: {text}", args.file.display())))?;
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.tries, async |client| {
        let mut request = Request::new(Method::POST, "/api/v1/batch").json(&body).dry_run(args.dry_run);
        if let Some(key) = &args.idempotency_key {
            request = request.idempotency_key(key);
        }
        if !args.dry_run {
            interrupt::now(Doing::Writing);
        }
        let sent = client.send(request).await;
        let data = sent.map_err(|error| with_names(error, |place| name_of(&body, place)))?.data()?;
        interrupt::now(Doing::Reading);
        let redactions = redactions(&data);
        if format.is_for_records() {
            let shown = if format.is_table() { redactions.shown(data.clone()) } else { data.clone() };
            print_columns(&format, &shown["results"], &COLUMNS)?;
            redactions.note();
        } else {
            // What was done is said, although the output fails.
            let printed = redactions.print(&format, &data, &COLUMNS.empty());
            printed.inspect_err(|_| note(told(&data, args.dry_run)))?;
        }
        note(told(&data, args.dry_run));
        let results = data["results"].as_array().into_iter().flatten();
        for lost in results.filter(|result| result["kept"] == false) {
            let key = lost[DEFINITION].as_str().unwrap_or_default();
            note(format_args!(
                "the deletion of {key} can't be undone: the definition takes more memory than CONCORD_DELETED_BYTES"
            ));
        }
        if data["succeeded"] == false { Err(Failure::Difference) } else { Ok(()) }
    })
}

/// What the access key may not see of the configs that were read.
fn redactions(data: &Value) -> Redactions {
    let mut redactions = Redactions::default();
    for (place, result) in data["results"].as_array().into_iter().flatten().enumerate() {
        let pointer = format!("/results/{place}/config/data");
        redactions.data(&pointer, &result["config"]["data"], &texts(&result["redacted"]));
    }
    redactions
}

/// The record that an operation of a file is about.
fn name_of(body: &Value, place: usize) -> Option<String> {
    let operation = body.get("operations")?.get(place)?;
    let text = |name: &str| operation[name].as_str().unwrap_or_default();
    Some(name(text("config_definition_key"), text("config_key")))
}

/// The request body for the contents of a file.
fn body(value: Value) -> Result<Value, String> {
    let value = if value.is_array() { json!({ "operations": value }) } else { value };
    let value = without_schema_reference(value);
    let Value::Object(members) = &value else {
        return Err("expected a list of operations, or an object".into());
    };
    if let Some(unknown) = members.keys().find(|name| !MEMBERS.contains(&name.as_str())) {
        return Err(format!("unknown member `{unknown}`: expected {}", MEMBERS.join(", ")));
    }
    for list in MEMBERS {
        for (place, item) in members.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
            check(item, list == "if").map_err(|error| format!("{list}[{place}]: {error}"))?;
        }
    }
    let has = |name: &str| members.contains_key(name);
    match (has("operations"), has("if"), has("then") || has("else")) {
        (true, false, false) | (false, true, _) => Ok(value),
        (true, ..) => Err("`operations` can't be combined with `if`, `then` or `else`".into()),
        (false, false, _) => Err("`operations` or `if` is missing".into()),
    }
}

/// Whether an operation has only members that it knows. The node checks their values, and the names of operations.
fn check(item: &Value, is_condition: bool) -> Result<(), String> {
    let Value::Object(members) = item else { return Err("expected an object".into()) };
    let name = match members.get("op").map(Value::as_str) {
        None if is_condition => CHECK,
        Some(Some(name)) => name,
        None | Some(None) => return Err("`op` is missing, or no string".into()),
    };
    let Some((_, known)) = OPERATIONS.iter().find(|(known, _)| *known == name) else { return Ok(()) };
    let is_known =
        |member: &String| ["op", DEFINITION].contains(&member.as_str()) || known.contains(&member.as_str());
    match members.keys().find(|member| !is_known(member)) {
        None => Ok(()),
        Some(unknown) => {
            Err(format!("unknown member `{unknown}`: `{name}` has op, {DEFINITION}, {}", known.join(", ")))
        }
    }
}

/// The outcome as a sentence.
fn told(data: &Value, is_dry_run: bool) -> String {
    let held = match data["succeeded"].as_bool() {
        None => "",
        Some(true) => "all conditions hold: ",
        Some(false) => "a condition does not hold: ",
    };
    let what = match (data["succeeded"].as_bool(), is_dry_run) {
        (Some(false), false) => "the operations of `else` were applied",
        (Some(false), true) => "the operations of `else` would be applied",
        (_, true) => "the operations would be applied",
        (_, false) => "the operations were applied",
    };
    let revision = data["revision"].as_u64().map(|revision| format!("  revision {revision}"));
    format!("{held}{what}{}", revision.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_operations_or_conditions() {
        assert_eq!(body(json!([{"op": "x"}])), Ok(json!({"operations": [{"op": "x"}]})));
        for good in [json!({"operations": []}), json!({"if": [], "then": []}), json!({"if": [], "else": []})]
        {
            assert_eq!(body(good.clone()), Ok(good));
        }
        for wrong in [
            json!(7),
            json!({}),
            json!({"then": []}),
            json!({"operations": [], "then": []}),
            json!({"operations": [], "if": []}),
            json!({"if": [], "than": []}),
            json!([{"op": "put_config", "config_definition_key": "d", "config_key": "k", "data": {}, "if_mach": "1"}]),
            json!({"if": [{"config_definition_key": "d", "config_key": "k", "equal": 1}], "then": []}),
            json!({"if": [], "else": [{"op": "delete_config", "ifMatch": "1"}]}),
            json!([{"config_key": "k"}]),
            json!([7]),
        ] {
            assert!(body(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_became_of_it_is_said() {
        assert_eq!(told(&json!({"revision": 7}), false), "the operations were applied  revision 7");
        let text = told(&json!({"succeeded": false, "revision": 7}), false);
        assert_eq!(text, "a condition does not hold: the operations of `else` were applied  revision 7");
        let text = told(&json!({"succeeded": true, "revision": null}), true);
        assert_eq!(text, "all conditions hold: the operations would be applied");
    }
}
