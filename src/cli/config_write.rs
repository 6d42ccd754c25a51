//! `concord config create`, `put`, `patch`, `delete`, `rollback` and `validate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use concord_client::{Error, Request};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    config::Target,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{config_path, definition_path},
    definition::one_value,
    document,
    interrupt::{self, Doing},
    output::{confirm, print_done},
};

/// Data on the command line or in a file.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct DataArgs {
    /// The data, as JSON
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// A file with the data, as JSON or YAML; `-` for the standard input. Of a config as files have it, its `data`
    #[arg(short, long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl DataArgs {
    fn read(&self) -> Result<Value, Failure> {
        if let Some(text) = &self.data {
            return document::read_json(text).map_err(|error| Failure::Invalid(format!("--data{error}")));
        }
        let Some(path) = &self.file else { return Err(Failure::Usage("give --data or -f".into())) };
        let mut value = one_value(path)?;
        let is_manifest =
            ["config_definition_key", "config_key", "data"].iter().all(|name| value.get(*name).is_some());
        Ok(if is_manifest { value["data"].take() } else { value })
    }
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    data: DataArgs,
    /// Check and answer, and store nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    data: DataArgs,
    /// Only if this is its revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Create it where there is none
    #[arg(long)]
    upsert: bool,
    /// Check and answer, and store nothing
    #[arg(long)]
    dry_run: bool,
}

/// The two forms of patches.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PatchType {
    /// RFC 7396: members to set, null to remove
    Merge,
    /// RFC 6902: a list of operations
    Json,
}

#[derive(Debug, Args)]
#[command(
    after_help = "As in: concord config patch limits acme --data '{\"quota\": {\"requests\": 2000}, \"note\": null}'"
)]
pub(super) struct PatchArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    data: DataArgs,
    /// The form of the patch; by default a list is `json` and an object `merge`
    #[arg(long = "type", value_name = "TYPE")]
    form: Option<PatchType>,
    /// Only if this is its revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Check and answer, and store nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    /// Only if this is its revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    target: Target,
    /// The revision to bring back
    #[arg(long, value_name = "REVISION")]
    to: u64,
    /// Only if this is its revision now
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Check and answer, and store nothing
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
    /// The config that the data are for, if they are for one: its unique values are its own
    key: Option<String>,
    #[command(flatten)]
    data: DataArgs,
}

/// Sends a write of one config and says what was done.
fn write(target: &Target, request: Request, done: &str, is_dry_run: bool) -> Result<(), Failure> {
    with_cluster(&target.node, &target.tries, async |client| {
        if !is_dry_run {
            interrupt::now(Doing::Writing);
        }
        let answer = client.send(request.dry_run(is_dry_run)).await?;
        target.print(done, is_dry_run, answer.revision(), answer.data()?)
    })
}

impl Target {
    /// Says what was done with the config: in words, or as a record.
    pub(super) fn print(
        &self,
        done: &str,
        is_dry_run: bool,
        revision: Option<u64>,
        data: Value,
    ) -> Result<(), Failure> {
        let Self { definition, key, .. } = self;
        let text = match (is_dry_run, revision) {
            (true, _) => format!("config {definition}/{key} would be {done}"),
            (false, Some(revision)) => format!("config {definition}/{key} {done}  revision {revision}"),
            (false, None) => format!("config {definition}/{key} {done}"),
        };
        let record = json!({
            "config_definition_key": definition, "config_key": key, "operation": done, "dry_run": is_dry_run,
            "revision": revision.filter(|_| !is_dry_run), "data": data,
        });
        print_done(&self.node.format.or_table(), &record, "config_key", text)
    }
}

/// Runs `config create`.
pub(super) fn create(args: &CreateArgs) -> Result<(), Failure> {
    let body = json!({ "config_key": args.target.key, "data": args.data.read()? });
    let path = format!("{}/config/", definition_path(&args.target.definition));
    write(&args.target, Request::new(Method::POST, path).json(&body), "created", args.dry_run)
}

/// Runs `config put`.
pub(super) fn put(args: &PutArgs) -> Result<(), Failure> {
    let path = config_path(&args.target.definition, &args.target.key);
    let request = Request::new(Method::PUT, path).json(&json!({ "data": args.data.read()? }));
    let request = args.if_match.into_iter().fold(request, Request::if_match);
    let request = if args.upsert { request.query("upsert", "true") } else { request };
    write(&args.target, request, "put", args.dry_run)
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
    write(&args.target, request, "changed", args.dry_run)
}

/// Runs `config delete`.
pub(super) fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let Target { definition, key, .. } = &args.target;
    confirm(&format!("config {definition}/{key} will be deleted"), args.yes)?;
    let request = Request::new(Method::DELETE, config_path(definition, key));
    let request = args.if_match.into_iter().fold(request, Request::if_match);
    write(&args.target, request, "deleted", false)
}

/// Runs `config rollback`.
pub(super) fn rollback(args: &RollbackArgs) -> Result<(), Failure> {
    let path = format!("{}/rollback", config_path(&args.target.definition, &args.target.key));
    let request = Request::new(Method::POST, path).json(&json!({ "revision": args.to }));
    let request = args.if_match.into_iter().fold(request, Request::if_match);
    write(&args.target, request, &format!("rolled back to {}", args.to), args.dry_run)
}

/// Runs `config validate`.
pub(super) fn validate(args: &ValidateArgs) -> Result<(), Failure> {
    let data = args.data.read()?;
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.tries, async |client| {
        let mut existing = None;
        if let Some(key) = &args.key {
            let path = config_path(&args.definition, key);
            match client.send(Request::get(&path)).await {
                Ok(_) => existing = Some(path),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let request = if let Some(path) = existing {
            Request::new(Method::PUT, path).json(&json!({ "data": data }))
        } else {
            // Nothing is stored, so any key that nobody has will do.
            let key = args.key.clone().unwrap_or_else(|| format!("validate-{}", uuid::Uuid::now_v7()));
            let path = format!("{}/config/", definition_path(&args.definition));
            Request::new(Method::POST, path).json(&json!({ "config_key": key, "data": data }))
        };
        match client.send(request.dry_run(true)).await {
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
