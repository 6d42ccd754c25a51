//! `concord config create`, `put`, `patch`, `delete`, `rollback` and `validate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use concord_client::{Answer, Client, Error, IfMatch, Operation, PutMode, Request};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    change::{WayArgs, operations},
    config::ConfigTarget,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::config_path,
    definition::one_value,
    document,
    interrupt::{self, Doing},
    output::{confirm, print_done},
    redacted::Redactions,
    schedule::TimeArgs,
};

/// Data on the command line or in a file.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct DataArgs {
    /// The data, as JSON
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// A JSON or YAML file with the data; `-` for stdin. If it holds a whole config, its `data` are used
    #[arg(short, long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl DataArgs {
    fn read(&self) -> Result<Value, Failure> {
        if let Some(text) = &self.data {
            return document::read_json(text).map_err(|error| Failure::Invalid(format!("--data{error}")));
        }
        let Some(path) = &self.file else { return Err(Failure::Usage("pass --data or -f".into())) };
        let mut value = one_value(path)?;
        let is_manifest =
            ["config_definition_key", "config_key", "data"].iter().all(|name| value.get(*name).is_some());
        Ok(if is_manifest { value["data"].take() } else { value })
    }
}

#[derive(Debug, Args)]
pub(super) struct ConfigCreateArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// Fail unless the config has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Create the config if it does not exist
    #[arg(long)]
    upsert: bool,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
}

/// The two forms of patches.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PatchType {
    /// JSON Merge Patch (RFC 7396): an object with the members to set; null removes a member
    Merge,
    /// JSON Patch (RFC 6902): a list of operations
    Json,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: concord config patch limits acme --data '{\"quota\": {\"requests\": 2000}, \"note\": null}'"
)]
pub(super) struct PatchArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// The type of the patch [default: `json` for a list, `merge` for an object]
    #[arg(long = "type", value_name = "TYPE")]
    form: Option<PatchType>,
    /// Fail unless the config has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct ConfigDeleteArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// Fail unless the config has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Show what would be deleted, without deleting it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// The revision to restore
    #[arg(long, value_name = "REVISION")]
    to: u64,
    /// Fail unless the config has this revision now
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition
    definition: String,
    /// The key of the config that the data belong to, so that its own unique values are no conflict
    key: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    /// List the violations of all variants of a union, not only those of the variant that fits best
    #[arg(long)]
    all_violations: bool,
}

/// A write of one config.
pub(super) struct ConfigWrite<'a> {
    pub(super) target: &'a ConfigTarget,
    pub(super) way: &'a WayArgs,
    pub(super) when: &'a TimeArgs,
    /// The write as an operation of a change request.
    pub(super) operation: Operation,
    /// What is said of the config when it is done.
    pub(super) done: &'a str,
    pub(super) is_dry_run: bool,
}

impl ConfigWrite<'_> {
    /// Sends it as a request of its own, or as a change request, and reports the result.
    fn send(self, request: Request) -> Result<(), Failure> {
        let (target, way) = (self.target, self.way);
        let tries = way.tries(&target.tries);
        with_cluster(&target.node, &tries, async move |client| self.send_with(&client, request).await)
    }

    /// The same with a client.
    pub(super) async fn send_with(self, client: &Client, request: Request) -> Result<(), Failure> {
        let Self { target, way, when, operation, done, is_dry_run } = self;
        let format = target.node.format.or_table();
        if way.at(when).propose(client, operations([&operation])?, is_dry_run, &format).await? {
            return Ok(());
        }
        if !is_dry_run {
            interrupt::now(Doing::Writing);
        }
        let answer = client.send(way.on(request).dry_run(is_dry_run)).await?;
        target.print(done, is_dry_run, &answer)
    }
}

impl ConfigTarget {
    /// Creates the config.
    pub(super) fn create(&self, data: Value) -> Operation {
        let (definition, key) = (self.definition.clone(), self.key.clone());
        Operation::CreateConfig { definition, key, data }
    }

    /// Puts the config.
    pub(super) fn put(&self, data: Value, mode: PutMode) -> Operation {
        let (definition, key) = (self.definition.clone(), self.key.clone());
        Operation::PutConfig { definition, key, data, mode }
    }

    /// Reports the result of a write: as a sentence, or as a record.
    fn print(&self, done: &str, is_dry_run: bool, answer: &Answer) -> Result<(), Failure> {
        let Self { definition, key, .. } = self;
        // A deletion leaves no record.
        let deletion = answer.header("x-concord-write-revision").and_then(|text| text.parse().ok());
        let revision = answer.revision().or(deletion);
        let text = match (is_dry_run, revision) {
            (true, _) => format!("config {definition}/{key} would be {done}"),
            (false, Some(revision)) => format!("config {definition}/{key} {done}  revision {revision}"),
            (false, None) => format!("config {definition}/{key} {done}"),
        };
        let mut record = json!({
            "config_definition_key": definition, "config_key": key, "operation": done, "dry_run": is_dry_run,
            "revision": revision.filter(|_| !is_dry_run), "data": answer.data()?,
        });
        let redactions = Redactions::of(&mut record, answer);
        redactions.print_done(&self.node.format.or_table(), &record, "config_key", text)
    }
}

/// Runs `config create`.
pub(super) fn create(args: &ConfigCreateArgs) -> Result<(), Failure> {
    let operation = args.target.create(args.data.read()?);
    let request = Request::operation(&operation);
    let ConfigCreateArgs { target, way, when, dry_run, .. } = args;
    ConfigWrite { target, way, when, operation, done: "created", is_dry_run: *dry_run }.send(request)
}

/// Runs `config put`.
pub(super) fn put(args: &PutArgs) -> Result<(), Failure> {
    let data = args.data.read()?;
    let mode = match (args.if_match, args.upsert) {
        (Some(revision), _) => PutMode::ReplaceIf(revision),
        (None, true) => PutMode::Upsert,
        (None, false) => PutMode::Replace,
    };
    let operation = args.target.put(data, mode);
    let request = Request::operation(&operation);
    let PutArgs { target, way, when, dry_run, .. } = args;
    ConfigWrite { target, way, when, operation, done: "put", is_dry_run: *dry_run }.send(request)
}

/// Runs `config patch`.
pub(super) fn patch(args: &PatchArgs) -> Result<(), Failure> {
    let patch = args.data.read()?;
    let content_type = match args.form {
        Some(PatchType::Json) => "application/json-patch+json",
        None if patch.is_array() => "application/json-patch+json",
        Some(PatchType::Merge) | None => "application/merge-patch+json",
    };
    let path = config_path(&args.target.definition, &args.target.key);
    let request = Request::new(Method::PATCH, path).body(content_type, patch.to_string());
    let request = args.if_match.into_iter().fold(request, Request::if_match);
    let PatchArgs { target, way, when, dry_run, .. } = args;
    let operation = Operation::PatchConfig {
        definition: target.definition.clone(),
        key: target.key.clone(),
        patch,
        if_match: args.if_match.map(IfMatch::Revision),
    };
    ConfigWrite { target, way, when, operation, done: "changed", is_dry_run: *dry_run }.send(request)
}

/// Runs `config delete`.
pub(super) fn delete(args: &ConfigDeleteArgs) -> Result<(), Failure> {
    let ConfigTarget { definition, key, .. } = &args.target;
    let is_asked = !args.yes && !args.dry_run && !args.way.at(&args.when).is_proposal();
    confirm(&format!("config {definition}/{key} will be deleted"), !is_asked)?;
    let (definition, key) = (definition.clone(), key.clone());
    let if_match = args.if_match.map(IfMatch::Revision);
    let operation = Operation::DeleteConfig { definition, key, if_match };
    let request = Request::operation(&operation);
    let ConfigDeleteArgs { target, way, when, dry_run, .. } = args;
    ConfigWrite { target, way, when, operation, done: "deleted", is_dry_run: *dry_run }.send(request)
}

/// Runs `config rollback`.
pub(super) fn rollback(args: &RollbackArgs) -> Result<(), Failure> {
    let ConfigTarget { definition, key, .. } = &args.target;
    let operation = Operation::RollbackConfig {
        definition: definition.clone(),
        key: key.clone(),
        revision: args.to,
        if_match: args.if_match.map(IfMatch::Revision),
    };
    let done = format!("rolled back to {}", args.to);
    let request = Request::operation(&operation);
    let RollbackArgs { target, way, when, dry_run, .. } = args;
    ConfigWrite { target, way, when, operation, done: &done, is_dry_run: *dry_run }.send(request)
}

/// Runs `config validate`.
pub(super) fn validate(args: &ValidateArgs) -> Result<(), Failure> {
    let data = args.data.read()?;
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.tries, async |client| {
        let definition = args.definition.clone();
        let exists = match &args.key {
            Some(key) => match client.send(Request::get(config_path(&definition, key))).await {
                Ok(_) => true,
                Err(error) if error.is_not_found() => false,
                Err(error) => return Err(error.into()),
            },
            None => false,
        };
        // Nothing is stored, so any unused key will do.
        let key = args.key.clone().unwrap_or_else(|| format!("validate-{}", uuid::Uuid::now_v7()));
        let operation = if exists {
            Operation::PutConfig { definition, key, data, mode: PutMode::Replace }
        } else {
            Operation::CreateConfig { definition, key, data }
        };
        let dry_run = if args.all_violations { "all-violations" } else { "true" };
        match client.send(Request::operation(&operation).query("dry_run", dry_run)).await {
            Ok(_) => print_done(&format, &json!({ "valid": true, "errors": [] }), "valid", "valid"),
            Err(Error::Refused(refusal)) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
                let items: Vec<String> = refusal.items.iter().map(ToString::to_string).collect();
                if !format.is_table() {
                    print_done(&format, &json!({ "valid": false, "errors": items }), "valid", "")?;
                }
                match items.as_slice() {
                    [one] => Err(Failure::Invalid(one.clone())),
                    all => Err(Failure::Invalid(format!("{} reasons:\n  {}", all.len(), all.join("\n  ")))),
                }
            }
            Err(error) => Err(error.into()),
        }
    })
}
