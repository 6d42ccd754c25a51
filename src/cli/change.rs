//! `concord change`: change requests, and the two ways around a direct write: `--propose` and `--bypass`.
//!
//! A vote names the digest of what the person was shown. So `approve`, `reject` and `review` print the preview and ask,
//! or take the digest of a preview that was read elsewhere.
//!
//! **Invariants:** no command approves, rejects or reviews what its user was not shown. Data and words of others are shown
//! as JSON, in one line: none looks like a line of this program, and no two values look alike.

use std::io::{self, IsTerminal as _};

use clap::{Args, Subcommand, ValueEnum};
use concord_client::{Client, Operation, Request, segment};
use http::Method;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    interrupt::{self, Doing},
    output::{
        Columns, Format, cell, confirm, counted, escaped, line, print_columns, print_done, print_value,
        printable,
    },
};

const CHANGES: &str = "/api/v1/change_request/";
const NAME: &str = "change_id";
const COLUMNS: Columns = Columns {
    name: NAME,
    narrow: &[
        ("CHANGE", "/change_id"),
        ("PHASE", "/phase"),
        ("APPROVALS", "/approvals_shown"),
        ("BY", "/sender_shown"),
        ("CREATED", "/created_at"),
        ("TITLE", "/title"),
    ],
    wide: &[("EDITION", "/edition"), ("DEFINITIONS", "/config_definition_keys"), ("STALE", "/stale")],
};

/// How a write is made in an environment with rules.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct WayArgs {
    /// Change nothing yet: create a change request with this title, which others approve
    #[arg(long, value_name = "TITLE", conflicts_with = "bypass")]
    propose: Option<String>,
    /// Change it at once, in a restricted or frozen environment too, for this reason; others must review it. Needs the
    /// permission `bypass`
    #[arg(long, value_name = "REASON")]
    bypass: Option<String>,
}

impl WayArgs {
    /// The title of the change request, if the write is to be one.
    pub(super) fn title(&self) -> Option<&str> {
        self.propose.as_deref()
    }

    /// The same options with the reason of a bypass.
    pub(super) fn tries(&self, tries: &TryArgs) -> TryArgs {
        match &self.bypass {
            Some(reason) => tries.with_reason(reason),
            None => tries.clone(),
        }
    }

    /// Adds the bypass to a request.
    pub(super) fn on(&self, request: Request) -> Request {
        if self.bypass.is_some() { request.query("bypass", "true") } else { request }
    }

    /// Creates a change request of operations, if that is what is wanted. Then the command has done its work.
    pub(super) async fn propose(
        &self,
        client: &Client,
        operations: Vec<Value>,
        is_dry_run: bool,
        format: &Format,
    ) -> Result<bool, Failure> {
        let Some(title) = self.title() else { return Ok(false) };
        if is_dry_run {
            let text = "--propose can't be combined with --dry-run: nothing is changed before the change request is applied";
            return Err(Failure::Usage(text.into()));
        }
        let body = json!({ "title": title, "operations": operations });
        interrupt::now(Doing::Writing);
        let data = client.send(Request::new(Method::POST, CHANGES).json(&body)).await?.data()?;
        let id = cell(&data[NAME]);
        let next = match data["approvals_needed"].as_u64().unwrap_or(0) {
            0 => format!("apply it: concord change apply {id}"),
            needed => {
                format!("it needs the approval of {}: concord change approve {id}", counted(needed, "person"))
            }
        };
        print_done(format, &data, NAME, format!("change request {id} created; {next}"))?;
        Ok(true)
    }
}

/// Operations as a change request takes them.
pub(super) fn operations<'a>(
    operations: impl IntoIterator<Item = &'a Operation>,
) -> Result<Vec<Value>, Failure> {
    let parse = |operation: &Operation| serde_json::from_str(&operation.to_string());
    let all: Result<Vec<Value>, _> = operations.into_iter().map(parse).collect();
    all.map_err(|error| Failure::Failed(format!("an operation can't be sent: {error}")))
}

#[derive(Debug, Subcommand)]
pub(super) enum ChangeCommand {
    /// List change requests, newest first
    List(ListArgs),
    /// Show a change request: what it would change, and who has approved it
    #[command(visible_alias = "get")]
    Show(ShowArgs),
    /// Approve a change request, after its preview or with the digest of one
    Approve(VoteArgs),
    /// Reject a change request: its edition can't be applied then
    Reject(VoteArgs),
    /// Apply a change request, as one entry
    Apply(ApplyArgs),
    /// Close a change request without applying it
    Withdraw(WithdrawArgs),
    /// Base a change request on the current records; it must be approved again
    Rebase(ShowArgs),
    /// Review a bypass: a write that passed the rules
    Review(VoteArgs),
}

/// The phases of change requests.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PhaseArg {
    /// It waits for approvals, or to be applied
    Open,
    /// It waits for a new edition since a restore or a recovery
    Held,
    /// It was applied
    Applied,
    /// It ended without having been applied
    Closed,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// Only change requests in this phase
    #[arg(long, value_enum, value_name = "PHASE")]
    phase: Option<PhaseArg>,
    /// Only change requests of this environment
    #[arg(long, value_name = "NAME")]
    env: Option<String>,
    /// Only bypasses that wait for a review
    #[arg(long)]
    unreviewed: bool,
    /// Maximum number of change requests
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: usize,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
}

#[derive(Debug, Args)]
pub(super) struct VoteArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
    /// The digest of the preview that you have read [default: print the preview, and ask]
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// What you say to it
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
    /// Fail unless the change request has this digest
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct WithdrawArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
}

/// Runs a command.
pub(super) fn run(command: ChangeCommand) -> Result<(), Failure> {
    match command {
        ChangeCommand::List(args) => list(&args),
        ChangeCommand::Show(args) => with_cluster(&args.node, &args.tries, async |client| {
            let data = read(&client, &args.id).await?;
            let format = args.node.format.or_table();
            if format.is_table() { shown(&data) } else { print_value(&format, &data, &COLUMNS.empty()) }
        }),
        ChangeCommand::Approve(args) => vote(&args, "approve", "approved"),
        ChangeCommand::Reject(args) => vote(&args, "reject", "rejected"),
        ChangeCommand::Review(args) => vote(&args, "review", "reviewed"),
        ChangeCommand::Apply(args) => apply(&args),
        ChangeCommand::Withdraw(args) => with_cluster(&args.node, &args.tries, async |client| {
            let body = json!({ "comment": args.comment.as_deref().unwrap_or_default() });
            let data = send(&client, &args.id, "withdraw", Some(&body)).await?;
            let text = format!("change request {} withdrawn", args.id);
            print_done(&args.node.format.or_table(), &data, NAME, text)
        }),
        ChangeCommand::Rebase(args) => with_cluster(&args.node, &args.tries, async |client| {
            let data = send(&client, &args.id, "rebase", None).await?;
            let text = format!("change request {} rebased: edition {}", args.id, data["edition"]);
            print_done(&args.node.format.or_table(), &data, NAME, text)
        }),
    }
}

fn path(id: &str) -> String {
    format!("{CHANGES}{}", segment(id))
}

async fn read(client: &Client, id: &str) -> Result<Value, Failure> {
    Ok(client.send(Request::get(path(id)).query("include", "preview")).await?.data()?)
}

async fn send(client: &Client, id: &str, action: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let request = Request::new(Method::POST, format!("{}/{action}", path(id)));
    interrupt::now(Doing::Writing);
    Ok(client.send(body.into_iter().fold(request, Request::json)).await?.data()?)
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let mut request = Request::get(CHANGES).query("limit", args.limit.clamp(1, 1000));
        if let Some(phase) = args.phase {
            let name = match phase {
                PhaseArg::Open => "open",
                PhaseArg::Held => "held",
                PhaseArg::Applied => "applied",
                PhaseArg::Closed => "closed",
            };
            request = request.query("phase", name);
        }
        if let Some(environment) = &args.env {
            request = request.query("environment", environment);
        }
        if args.unreviewed {
            request = request.query("unreviewed", "true");
        }
        let mut data = client.send(request).await?.data()?;
        let format = args.node.format.or_table();
        if format.is_table() {
            for change in data["results"].as_array_mut().into_iter().flatten() {
                change["approvals_shown"] = approvals(change).into();
                change["sender_shown"] = name_of(&change["sender"]).into();
            }
        }
        print_columns(&format, &data, &COLUMNS)
    })
}

/// How far a change request is, in a few words.
fn approvals(change: &Value) -> String {
    if change["bypass"] == true {
        return match change["reviews_missing"].as_u64().unwrap_or(0) {
            0 => "bypass, reviewed".into(),
            missing => format!("bypass, {} missing", counted(missing, "review")),
        };
    }
    if !change["rejections"].as_array().is_none_or(Vec::is_empty) {
        return "rejected".into();
    }
    format!("{} of {}", change["approvals_counted"], change["approvals_needed"])
}

/// Who somebody is, as far as the key may know it.
fn name_of(party: &Value) -> String {
    let (key, person) = (cell(&party["key_id"]), &party["person"]);
    if person.is_null() { key } else { format!("{} ({key})", printable(&cell(person))) }
}

/// Prints a change request for people.
fn shown(change: &Value) -> Result<(), Failure> {
    line(format_args!("change request {}: {}", cell(&change[NAME]), printable(&cell(&change["title"]))))?;
    if !change["description"].as_str().unwrap_or_default().is_empty() {
        line(format_args!("description: {}", json_of(&change["description"])))?;
    }
    let sender = name_of(&change["sender"]);
    let attested = if change["attested"] == true { "" } else { ", whose key is not attested" };
    line(format_args!("{}, edition {} by {sender}{attested}", cell(&change["phase"]), change["edition"]))?;
    line(format_args!("approvals: {}", approvals(change)))?;
    for (opinion, verb) in [("approvals", "approved"), ("rejections", "rejected"), ("reviews", "reviewed")] {
        for vote in change[opinion].as_array().into_iter().flatten() {
            let counts = if vote["counts"] == false { ", no longer counts" } else { "" };
            let redacted = if vote["redacted"] == true { ", without secret values" } else { "" };
            let comment = match vote["comment"].as_str().unwrap_or_default() {
                "" => String::new(),
                _ => format!(": {}", json_of(&vote["comment"])),
            };
            line(format_args!("  {verb} by {}{redacted}{counts}{comment}", name_of(vote)))?;
        }
    }
    if !change["applied"].is_null() {
        let applied = &change["applied"];
        line(format_args!("applied by {}  revision {}", name_of(&applied["by"]), applied["revision"]))?;
    }
    if !change["closed"].is_null() {
        let closed = &change["closed"];
        line(format_args!("closed: {} {}", cell(&closed["reason"]), json_of(&closed["comment"])))?;
    }
    if let Some(stale) = change["stale"].as_str() {
        line(format_args!("stale: {}", printable(stale)))?;
    }
    for record in change["preview"]["records"].as_array().into_iter().flatten() {
        for shown in record_lines(record) {
            line(shown)?;
        }
    }
    let effect = &change["preview"]["environment_effect"];
    if !effect.is_null() {
        let definitions = counted(effect["definitions"].as_u64().unwrap_or(0), "definition");
        let configs = counted(effect["configs"].as_u64().unwrap_or(0), "config");
        line(format_args!("these rules are for {definitions} with {configs}"))?;
    }
    line(format_args!("digest: {}", cell(&change["digest"])))
}

/// A value as JSON in one line, with characters that nobody sees escaped.
fn json_of(value: &Value) -> String {
    escaped(&value.to_string())
}

/// A JSON pointer as it is, or quoted if it could be taken for something else.
fn place(pointer: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "/_-.~$@".contains(char);
    if pointer.chars().all(is_plain) { pointer.to_owned() } else { json_of(&pointer.into()) }
}

/// A record before and after, in lines.
fn record_lines(record: &Value) -> Vec<String> {
    let name = match (&record["config_definition_key"], &record["config_key"]) {
        (Value::Null, _) => format!("environment {}", cell(&record["environment"])),
        (definition, Value::Null) => format!("definition {}", cell(definition)),
        (definition, config) => format!("{}/{}", cell(definition), cell(config)),
    };
    let places = |name: &str| record[name].as_array().into_iter().flatten().filter_map(Value::as_str);
    let is_hidden = places("redacted").any(str::is_empty);
    let whole = |value: &Value| if is_hidden { "(not shown)".to_owned() } else { json_of(value) };
    let (before, after) = (&record["before"], &record["after"]);
    let (is_new, is_deleted) = (record["revision"].is_null(), record["deleted"] == true);
    let is_cut = record["before_omitted"] == true;
    // Where not every difference is named, the whole is shown.
    let is_whole =
        is_cut || is_hidden || record["fields_omitted"] == true || places("fields").any(str::is_empty);
    let before_shown = if is_cut { "(too large to show)".to_owned() } else { whole(before) };
    let mut lines = match (is_new, is_deleted) {
        (true, true) => vec![format!("{name} is created and deleted")],
        (true, false) => vec![format!("{name} is created: {}", whole(after))],
        (false, true) => vec![format!("{name} is deleted: {before_shown}")],
        (false, false) if is_whole => vec![format!("{name}: {before_shown} -> {}", whole(after))],
        (false, false) => {
            let at = |value: &Value, field: &str| value.pointer(field).map_or("(absent)".into(), json_of);
            let change =
                |field: &str| format!("  {}: {} -> {}", place(field), at(before, field), at(after, field));
            [name].into_iter().chain(places("fields").map(change)).collect()
        }
    };
    for operation in record["operations"].as_array().into_iter().flatten() {
        let note = match (operation["force"] == true, operation["restrict"] == true) {
            (true, _) => ", even if configs violate it",
            (_, true) => ", only if it has no configs",
            (false, false) => "",
        };
        lines.push(format!("  operation: {}{note}", cell(&operation["op"])));
    }
    if let Some(configs) = record["configs"].as_u64() {
        let again = if is_deleted { "" } else { "; it is created again without them" };
        lines.push(format!("  deletes the definition with its {}{again}", counted(configs, "config")));
    }
    if let Some(configs) = record["returned_configs"].as_u64() {
        lines.push(format!("  brings back {}; at most 200 of them are shown", counted(configs, "config")));
    }
    let hidden: Vec<String> =
        places("redacted").map(|at| if at.is_empty() { "all of it".into() } else { place(at) }).collect();
    if !hidden.is_empty() {
        lines.push(format!("  not shown to this access key: {}", hidden.join(", ")));
    }
    lines
}

fn vote(args: &VoteArgs, action: &str, done: &str) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let digest = match &args.digest {
            Some(digest) => digest.clone(),
            None => {
                let change = read(&client, &args.id).await?;
                let digest = cell(&change["digest"]);
                if !io::stdin().is_terminal() {
                    let text = format!(
                        "read the preview first: `concord change show {id}`; then pass --digest, as it shows",
                        id = args.id
                    );
                    return Err(Failure::Usage(text));
                }
                shown(&change)?;
                confirm(&format!("{action} this"), false)?;
                digest
            }
        };
        let body = json!({ "digest": digest, "comment": args.comment.as_deref().unwrap_or_default() });
        let data = send(&client, &args.id, action, Some(&body)).await?;
        let state = match (data["bypass"] == true, data["approved"] == true, action) {
            (true, _, _) => format!("; {}", approvals(&data)),
            (false, true, "approve") => format!("; apply it: concord change apply {}", args.id),
            (false, _, _) => format!("; approvals: {}", approvals(&data)),
        };
        let text = format!("change request {} {done}{state}", args.id);
        print_done(&args.node.format.or_table(), &data, NAME, text)
    })
}

fn apply(args: &ApplyArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let digest = match &args.digest {
            Some(digest) => digest.clone(),
            None => {
                let change = read(&client, &args.id).await?;
                if !args.yes {
                    shown(&change)?;
                }
                confirm(&format!("change request {} will be applied", args.id), args.yes)?;
                cell(&change["digest"])
            }
        };
        let data = send(&client, &args.id, "apply", Some(&json!({ "digest": digest }))).await?;
        let text = format!("change request {} applied  revision {}", args.id, data["applied"]["revision"]);
        print_done(&args.node.format.or_table(), &data, NAME, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(more: Value) -> Vec<String> {
        let mut record = json!({
            "config_definition_key": "prod.a", "revision": 7, "before": null, "after": null, "fields": [],
            "redacted": [], "before_omitted": false, "fields_omitted": false, "deleted": false,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            record[name] = value.clone();
        }
        record_lines(&record)
    }

    #[test]
    fn a_definition_that_is_deleted_and_created_again_says_that_its_configs_go() {
        let same = json!({"indexes": []});
        let operations = json!([{"op": "delete_definition", "restrict": false}, {"op": "create_definition"}]);
        let lines = record(json!({
            "before": same, "after": same, "fields": [""], "configs": 5000, "operations": operations,
        }));
        assert_eq!(
            lines,
            [
                r#"definition prod.a: {"indexes":[]} -> {"indexes":[]}"#,
                "  operation: delete_definition",
                "  operation: create_definition",
                "  deletes the definition with its 5000 configs; it is created again without them",
            ]
        );
        let lines = record(json!({"deleted": true, "before": same, "fields": [""], "configs": 1}));
        assert_eq!(lines[1], "  deletes the definition with its 1 config");
        let forced = record(json!({"operations": [{"op": "set_schema", "force": true}]}));
        assert_eq!(forced[1], "  operation: set_schema, even if configs violate it");
        let back = record(json!({"revision": null, "after": same, "fields": [""], "returned_configs": 3}));
        assert!(back[1].starts_with("  brings back 3 configs"), "{back:?}");
    }

    #[test]
    fn what_is_not_named_is_shown_as_a_whole() {
        let more = json!({
            "config_key": "k", "before": {"a": 1, "z": 1}, "after": {"a": 2, "z": 2}, "fields": ["/a"],
        });
        assert_eq!(record(more.clone()), ["prod.a/k", "  /a: 1 -> 2"]);
        let mut omitted = more;
        omitted["fields_omitted"] = true.into();
        assert_eq!(record(omitted), [r#"prod.a/k: {"a":1,"z":1} -> {"a":2,"z":2}"#]);
        let cut = json!({"config_key": "k", "after": {"a": 2}, "before_omitted": true});
        assert_eq!(record(cut), [r#"prod.a/k: (too large to show) -> {"a":2}"#]);
    }

    #[test]
    fn no_two_values_look_alike_and_none_is_a_line_of_its_own() {
        let shown = |before: Value, after: Value| {
            let lines = record(
                json!({"config_key": "k", "before": {"a": before}, "after": {"a": after}, "fields": ["/a"]}),
            );
            assert_eq!(lines.len(), 2, "{lines:?}");
            lines[1].clone()
        };
        assert_eq!(shown(json!(1000), json!("1000")), r#"  /a: 1000 -> "1000""#);
        assert_eq!(shown(json!(null), json!("")), r#"  /a: null -> """#);
        let forged = "x\ndigest: 00";
        assert_eq!(shown(json!("\u{200b}"), json!(forged)), r#"  /a: "\u200b" -> "x\ndigest: 00""#);
        let named =
            json!({"config_key": "k", "before": {}, "after": {"a: 1 -> 2\n": 3}, "fields": ["/a: 1 -> 2\n"]});
        assert_eq!(record(named)[1], r#"  "/a: 1 -> 2\n": (absent) -> 3"#);
        let null = record(json!({"config_key": "k", "before": 1, "fields": [""]}));
        assert_eq!(null, ["prod.a/k: 1 -> null"], "it is not deleted");
        let gone = record(json!({"config_key": "k", "before": 1, "fields": [""], "deleted": true}));
        assert_eq!(gone, ["prod.a/k is deleted: 1"]);
        let hidden = record(json!({"config_key": "k", "redacted": [""]}));
        assert_eq!(hidden[0], "prod.a/k: (not shown) -> (not shown)");
    }
}
