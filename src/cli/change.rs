//! `concord change`: change requests, and the two ways around a direct write: `--propose` and `--bypass`.
//!
//! A vote names the digest of what the person was shown. So `approve`, `reject` and `review` print the preview and ask,
//! or take the digest of a preview that was read elsewhere.
//!
//! **Invariant:** no command approves, rejects or reviews what its user was not shown.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
};

use clap::{Args, Subcommand, ValueEnum};
use concord_client::{Client, Error, Operation, Request, segment};
use concord_model::limits::CHANGE_TITLE_BYTES_MAX;
use http::Method;
use serde_json::{Value, json};

use super::{
    change_shown::{self, approvals, name_of},
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    definition::one_value,
    interrupt::{self, Doing},
    output::{Columns, Format, cell, confirm, counted, note, print_columns, print_done, print_value, say},
    rollout_steer::{self, ReportArgs, RolloutArgs, StopArgs},
    schedule::{self, TimeArgs},
};

const CHANGES: &str = "/api/v1/change_request/";
pub(super) const NAME: &str = "change_id";
const COLUMNS: Columns = Columns {
    name: NAME,
    narrow: &[
        ("CHANGE", "/change_id"),
        ("PHASE", "/phase_shown"),
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
    /// What the change request says of itself.
    #[arg(skip)]
    description: Option<String>,
}

impl WayArgs {
    /// The same options with a description of the change request.
    pub(super) fn describing(&self, description: String) -> Self {
        Self { description: Some(description), ..self.clone() }
    }

    /// The title of the change request, if the write is to be one.
    pub(super) fn title(&self) -> Option<&str> {
        self.propose.as_deref()
    }

    /// The same options with the reason of a bypass.
    pub(super) fn tries(&self, tries: &TryArgs) -> TryArgs {
        match &self.bypass {
            // What is said beside it is not lost: it has one place.
            Some(reason) => match tries.reason().filter(|more| more != reason) {
                Some(more) if reason.len() + 2 + more.len() <= CHANGE_TITLE_BYTES_MAX => {
                    tries.with_reason(&format!("{reason}: {more}"))
                }
                Some(_) => {
                    note("--reason is left out: with the text of --bypass it is too long");
                    tries.with_reason(reason)
                }
                None => tries.with_reason(reason),
            },
            None => tries.clone(),
        }
    }

    /// The same, with a reason for when none is given.
    pub(super) fn tries_or(&self, tries: &TryArgs, reason: String) -> TryArgs {
        if self.bypass.is_some() { self.tries(tries) } else { tries.or_reason(reason) }
    }

    /// Adds the bypass to a request.
    pub(super) fn on(&self, request: Request) -> Request {
        if self.bypass.is_some() { request.query("bypass", "true") } else { request }
    }

    /// With times.
    pub(super) fn at<'a>(&'a self, when: &'a TimeArgs) -> TimedWay<'a> {
        TimedWay { way: self, when }
    }

    /// Creates a change request of operations, if that is what is wanted. Then the command has done its work.
    pub(super) async fn propose(
        &self,
        client: &Client,
        operations: Vec<Value>,
        is_dry_run: bool,
        format: &Format,
    ) -> Result<bool, Failure> {
        self.at(&TimeArgs::default()).propose(client, operations, is_dry_run, format).await
    }
}

/// How and when a write is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimedWay<'a> {
    way: &'a WayArgs,
    when: &'a TimeArgs,
}

impl TimedWay<'_> {
    /// Whether the write is to be a change request.
    pub(super) fn is_proposal(&self) -> bool {
        self.way.propose.is_some() || self.when.is_given()
    }

    /// Creates a change request of operations, if that is what is wanted. Then the command has done its work.
    pub(super) async fn propose(
        &self,
        client: &Client,
        operations: Vec<Value>,
        is_dry_run: bool,
        format: &Format,
    ) -> Result<bool, Failure> {
        if self.way.bypass.is_some() {
            self.when.expect_none("--bypass")?;
        }
        if !self.is_proposal() {
            return Ok(false);
        }
        if is_dry_run {
            let text =
                "a change request can't be combined with --dry-run: nothing is changed before it is applied";
            return Err(Failure::Usage(text.into()));
        }
        let title = self.way.propose.clone().unwrap_or_else(|| self.when.title_of(&operations));
        let mut body = json!({ "title": title, "operations": operations });
        if let Some(description) = &self.way.description {
            body["description"] = description.as_str().into();
        }
        create(client, body, self.when, format).await?;
        Ok(true)
    }
}

/// Creates a change request, and says what is next.
async fn create(client: &Client, mut body: Value, when: &TimeArgs, format: &Format) -> Result<(), Failure> {
    when.add_to(&mut body)?;
    interrupt::now(Doing::Writing);
    let data = client.send(Request::new(Method::POST, CHANGES).json(&body)).await?.data()?;
    let id = cell(&data[NAME]);
    let needed = counted(data["approvals_needed"].as_u64().unwrap_or(0), "person");
    let next = schedule::next_step(&data, &id, &needed);
    print_done(format, &data, NAME, format!("change request {id} created; {next}"))
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
    /// Create a change request of operations in a file
    Create(CreateArgs),
    /// List change requests, newest first; with `--env`, those of this environment
    List(ListArgs),
    /// Show a change request: what it would change, and who has approved it
    #[command(visible_alias = "get")]
    Show(ShowArgs),
    /// Approve a change request, after its preview or with the digest of one
    Approve(VoteArgs),
    /// Reject a change request: its edition can't be applied then
    Reject(VoteArgs),
    /// Apply a change request, as one entry; before its time, arm it
    Apply(ApplyArgs),
    /// Take back a change request that was applied: its configs get the data that they had before
    Revert(RevertArgs),
    /// Keep what a change request has changed, although the cluster was to take it back
    Keep(VoteArgs),
    /// Close a change request without applying it
    Withdraw(WithdrawArgs),
    /// Base a change request on the current records; it must be approved again
    Rebase(ShowArgs),
    /// Review a bypass: a write that passed the rules
    Review(VoteArgs),
    /// Follow a change request until it ends: the stages of its rollout, and what readers say; exits 0 if it was applied
    Watch(RolloutArgs),
    /// Let a rollout wait at its present stage
    Pause(StopArgs),
    /// Let a rollout that waits go on; its stage begins its time again
    Resume(RolloutArgs),
    /// End the present stage of a rollout, whatever it waits for
    Advance(RolloutArgs),
    /// Take a rollout back: all readers get the data that they had before
    Abort(StopArgs),
    /// Report that a reader runs well with a candidate, or not
    Report(ReportArgs),
}

/// The phases of change requests.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PhaseArg {
    /// It waits for approvals, or to be applied
    Open,
    /// It is armed: the cluster applies it at its time
    Scheduled,
    /// It is released in stages
    Rolling,
    /// It waits for a new edition since a restore or a recovery
    Held,
    /// It was applied
    Applied,
    /// It ended without having been applied
    Closed,
}

/// The states of reverts.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RevertStateArg {
    /// The cluster takes it back at its time
    Armed,
    /// A restore or a recovery has left it to a person
    Held,
    /// The cluster could not take it back
    Failed,
}

/// An example of a file.
const FILE_EXAMPLE: &str = "Example: a YAML file with a list of operations, as a batch has them:

  - op: put_config
    config_definition_key: prod.limits
    config_key: acme
    data: {requests: 2000}";

#[derive(Debug, Args)]
#[command(after_help = FILE_EXAMPLE)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// What it is, in a line
    title: String,
    /// A JSON or YAML file with a list of operations; `-` for stdin
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
    /// Why
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    when: TimeArgs,
}

#[derive(Debug, Args)]
pub(super) struct RevertArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The id of the change request
    id: String,
    /// Fail unless the change request has this digest
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// Take it back without having approved it, for this reason; others must review it. Needs the permission `bypass`
    #[arg(long, value_name = "REASON")]
    bypass: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
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
    /// Only change requests that this access key, or another one of its person, has sent or edited
    #[arg(long)]
    mine: bool,
    /// Only change requests that wait for a vote of yours: an approval that is missing, or the review of a bypass
    #[arg(long)]
    needs_me: bool,
    /// Only bypasses that wait for a review
    #[arg(long)]
    unreviewed: bool,
    /// Only applied change requests whose revert is in this state
    #[arg(long, value_enum, value_name = "STATE")]
    revert: Option<RevertStateArg>,
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
        ChangeCommand::Create(args) => {
            let mut operations = one_value(&args.file)?;
            if !operations.is_array() {
                operations = operations["operations"].take();
            }
            let mut body = json!({ "title": args.title, "operations": operations });
            if let Some(description) = &args.description {
                body["description"] = description.as_str().into();
            }
            with_cluster(&args.node, &args.tries, async |client| {
                create(&client, body.clone(), &args.when, &args.node.format.or_table()).await
            })
        }
        ChangeCommand::List(args) => list(&args),
        ChangeCommand::Show(args) => with_cluster(&args.node, &args.tries, async |client| {
            let data = read(&client, &args.id).await?;
            let format = args.node.format.or_table();
            if format.is_table() {
                change_shown::show(&client, &data).await
            } else {
                print_value(&format, &data, &COLUMNS.empty())
            }
        }),
        ChangeCommand::Approve(args) => vote(&args, "approve", "approved"),
        ChangeCommand::Reject(args) => vote(&args, "reject", "rejected"),
        ChangeCommand::Review(args) => vote(&args, "review", "reviewed"),
        ChangeCommand::Keep(args) => vote(&args, "keep", "kept"),
        ChangeCommand::Watch(args) => rollout_steer::watch(&args),
        ChangeCommand::Pause(args) => rollout_steer::stop(&args, "pause", "paused"),
        ChangeCommand::Resume(args) => rollout_steer::go_on(&args, "resume", "resumed"),
        ChangeCommand::Advance(args) => rollout_steer::go_on(&args, "advance", "advanced"),
        ChangeCommand::Abort(args) => rollout_steer::stop(&args, "abort", "aborted"),
        ChangeCommand::Report(args) => rollout_steer::report(&args),
        ChangeCommand::Apply(args) => apply(&args),
        ChangeCommand::Revert(args) => revert(&args),
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

/// A change request, without its preview.
pub(super) async fn get(client: &Client, id: &str) -> Result<Value, Failure> {
    Ok(client.send(Request::get(path(id))).await?.data()?)
}

async fn read(client: &Client, id: &str) -> Result<Value, Failure> {
    Ok(client.send(Request::get(path(id)).query("include", "preview")).await?.data()?)
}

/// Says who has changed the records on which a change request rests. If that can't be read, the rejection says enough.
async fn say_who(client: &Client, id: &str) {
    let found = async {
        let client = client.in_environment(None)?;
        let change = read(&client, id).await?;
        Ok::<_, Failure>(change_shown::changed_since(&client, &change).await)
    };
    for text in found.await.unwrap_or_default() {
        say(text);
    }
}

/// Does something to a change request, and returns it.
pub(super) async fn send(
    client: &Client,
    id: &str,
    action: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
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
                PhaseArg::Scheduled => "scheduled",
                PhaseArg::Rolling => "rolling",
                PhaseArg::Held => "held",
                PhaseArg::Applied => "applied",
                PhaseArg::Closed => "closed",
            };
            request = request.query("phase", name);
        }
        if let Some(environment) = args.node.environment() {
            request = request.query("environment", environment);
        }
        let flags = [("unreviewed", args.unreviewed), ("mine", args.mine), ("needs_me", args.needs_me)];
        for (name, _) in flags.into_iter().filter(|(_, is_wanted)| *is_wanted) {
            request = request.query(name, "true");
        }
        if let Some(state) = args.revert {
            let name = match state {
                RevertStateArg::Armed => "armed",
                RevertStateArg::Held => "held",
                RevertStateArg::Failed => "failed",
            };
            request = request.query("revert", name);
        }
        let mut data = client.send(request).await?.data()?;
        let format = args.node.format.or_table();
        if format.is_table() {
            for change in data["results"].as_array_mut().into_iter().flatten() {
                change["phase_shown"] = schedule::phase_cell(change).into();
                change["approvals_shown"] = approvals(change).into();
                change["sender_shown"] = name_of(&change["sender"]).into();
            }
        }
        print_columns(&format, &data, &COLUMNS)
    })
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
                change_shown::show(&client, &change).await?;
                confirm(&format!("{action} this"), false)?;
                digest
            }
        };
        let body = json!({ "digest": digest, "comment": args.comment.as_deref().unwrap_or_default() });
        let data = send(&client, &args.id, action, Some(&body)).await?;
        let state = match (data["bypass"] == true, data["approved"] == true, action) {
            (true, _, _) => format!("; {}", approvals(&data)),
            (false, true, "approve") if data["apply"] == "when_approved" => "; the cluster applies it".into(),
            (false, true, "approve") => format!("; apply it: concord change apply {}", args.id),
            (false, _, "keep") => "; what it changed stays".into(),
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
                    change_shown::show(&client, &change).await?;
                }
                confirm(&format!("change request {} will be applied", args.id), args.yes)?;
                cell(&change["digest"])
            }
        };
        let sent = send(&client, &args.id, "apply", Some(&json!({ "digest": digest }))).await;
        if let Err(Failure::Client(Error::Refused(refusal))) = &sent
            && refusal.items.iter().any(|item| item.code == "change_stale")
        {
            say_who(&client, &args.id).await;
        }
        let data = sent?;
        let revision = &data["applied"]["revision"];
        let text = if data["phase"] == "rolling" {
            format!("rollout of change request {0} begun; follow it: concord change watch {0}", args.id)
        } else if data["phase"] == "scheduled" {
            let at = cell(&data["schedule"]["not_before"]);
            format!("change request {} armed: the cluster applies it from {at} on", args.id)
        } else if revision.is_null() {
            format!("change request {} was done before, and is {} now", args.id, cell(&data["phase"]))
        } else {
            format!("change request {} applied  revision {revision}", args.id)
        };
        print_done(&args.node.format.or_table(), &data, NAME, text)
    })
}

fn revert(args: &RevertArgs) -> Result<(), Failure> {
    let tries =
        args.bypass.as_ref().map_or_else(|| args.tries.clone(), |reason| args.tries.with_reason(reason));
    with_cluster(&args.node, &tries, async |client| {
        let digest = match &args.digest {
            Some(digest) => digest.clone(),
            None => {
                let change = read(&client, &args.id).await?;
                if !args.yes {
                    change_shown::show(&client, &change).await?;
                }
                confirm(&format!("change request {} will be taken back", args.id), args.yes)?;
                cell(&change["digest"])
            }
        };
        let request = Request::new(Method::POST, format!("{}/revert", path(&args.id)));
        let request = if args.bypass.is_some() { request.query("bypass", "true") } else { request };
        interrupt::now(Doing::Writing);
        let data = client.send(request.json(&json!({ "digest": digest }))).await?.data()?;
        let text = format!("change request {} taken back  revision {}", args.id, data["revert"]["revision"]);
        print_done(&args.node.format.or_table(), &data, NAME, text)
    })
}
