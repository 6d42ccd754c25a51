//! `concord change`: change requests, and the two ways around a direct write: `--propose` and `--bypass`.
//!
//! A vote names the digest of what the person was shown. So `approve`, `reject` and `review` print the preview and ask,
//! or take the digest of a preview that was read elsewhere.
//!
//! **Invariant:** no command approves, rejects or reviews what its user was not shown.

use std::io::{self, IsTerminal as _};

use clap::{Args, Subcommand, ValueEnum};
use concord_client::{Client, Operation, Request, segment};
use http::Method;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    interrupt::{self, Doing},
    output::{Columns, Format, cell, confirm, counted, line, print_columns, print_done, print_value},
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
    if person.is_null() { key } else { format!("{} ({key})", cell(person)) }
}

/// Prints a change request for people.
fn shown(change: &Value) -> Result<(), Failure> {
    line(format_args!("change request {}: {}", cell(&change[NAME]), cell(&change["title"])))?;
    for text in change["description"].as_str().unwrap_or_default().lines() {
        line(format_args!("  {text}"))?;
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
                comment => format!(": {comment}"),
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
        line(format_args!("closed: {} {}", cell(&closed["reason"]), cell(&closed["comment"])))?;
    }
    if let Some(stale) = change["stale"].as_str() {
        line(format_args!("stale: {stale}"))?;
    }
    for record in change["preview"]["records"].as_array().into_iter().flatten() {
        record_shown(record)?;
    }
    let effect = &change["preview"]["environment_effect"];
    if !effect.is_null() {
        let definitions = counted(effect["definitions"].as_u64().unwrap_or(0), "definition");
        let configs = counted(effect["configs"].as_u64().unwrap_or(0), "config");
        line(format_args!("these rules are for {definitions} with {configs}"))?;
    }
    line(format_args!("digest: {}", cell(&change["digest"])))
}

/// Prints a record before and after.
fn record_shown(record: &Value) -> Result<(), Failure> {
    let name = match (&record["config_definition_key"], &record["config_key"]) {
        (Value::Null, _) => format!("environment {}", cell(&record["environment"])),
        (definition, Value::Null) => format!("definition {}", cell(definition)),
        (definition, config) => format!("{}/{}", cell(definition), cell(config)),
    };
    let (before, after) = (&record["before"], &record["after"]);
    let is_whole = record["fields"].as_array().is_some_and(|fields| fields.iter().any(|field| field == ""));
    let what = match (before.is_null(), after.is_null()) {
        _ if record["before_omitted"] == true => "changes; too large to show".to_owned(),
        (true, false) => format!("is created: {}", cell(after)),
        (false, true) => match record["configs"].as_u64() {
            Some(configs) => format!("is deleted, with {}", counted(configs, "config")),
            None => format!("is deleted: {}", cell(before)),
        },
        _ if is_whole => format!("{} -> {}", cell(before), cell(after)),
        _ => String::new(),
    };
    if what.is_empty() {
        line(&name)?;
        for field in record["fields"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let at = |value: &Value| value.pointer(field).map_or_else(|| "(absent)".into(), cell);
            line(format_args!("  {field}: {} -> {}", at(before), at(after)))?;
        }
    } else {
        line(format_args!("{name} {what}"))?;
    }
    let redacted: Vec<String> = record["redacted"].as_array().into_iter().flatten().map(cell).collect();
    if !redacted.is_empty() {
        line(format_args!("  not shown to this access key: {}", redacted.join(", ")))?;
    }
    Ok(())
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
