//! `concord definition`: the commands on definitions.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use concord_client::{Client, IfMatch, Operation, Request, UndeleteAt};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    apply::{self, ApplyArgs, DiffArgs},
    change::{self, WayArgs},
    config_read::{history_of, print_history},
    connection::{Failure, FreshnessArgs, NodeArgs, TryArgs, with_cluster},
    current::definition_path,
    document, explain,
    follow::differences,
    interrupt::{self, Doing},
    manifest::{self, FileArgs, ManifestDefinition, Manifests},
    output::{Columns, Format, Table, cell, confirm, counted, note, print_columns, print_done, print_value},
    reindex::{self, ReindexArgs},
    schedule::TimeArgs,
};

const LIST: &str = "/api/v1/config_definition/";

#[derive(Debug, Subcommand)]
pub(super) enum DefinitionCommand {
    /// List definitions, or show one
    Get(DefinitionGetArgs),
    /// Create a definition
    Create(DefinitionCreateArgs),
    /// Create or update definitions and configs from files (the same as `concord apply`)
    Apply(ApplyArgs),
    /// Show what `apply` would change (the same as `concord diff`); exits 1 if there are changes
    Diff(DiffArgs),
    /// Check whether all configs fit a schema; exits 1 if one does not
    Check(CheckArgs),
    /// Delete a definition with its configs
    Delete(DefinitionDeleteArgs),
    /// Undo the deletion of a definition: it returns with its configs and their history
    Undelete(DefinitionUndeleteArgs),
    /// Protect a definition from deletion, or no longer with --off
    Protect(DefinitionProtectArgs),
    /// Describe a definition, or a field of its configs (the same as `concord explain`)
    Explain(explain::ExplainArgs),
    /// Show the changes of a definition, newest first
    History(DefinitionHistoryArgs),
    /// Change the indexed paths of a definition, and wait until the indexes are built
    Reindex(ReindexArgs),
}

#[derive(Debug, Args)]
pub(super) struct DefinitionGetArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of one definition; without it, all definitions are listed
    key: Option<String>,
    /// Only definitions whose key contains this text
    #[arg(long, value_name = "TEXT", conflicts_with = "key")]
    search: Option<String>,
    /// List the deleted definitions that `definition undelete` can bring back
    #[arg(long, conflicts_with_all = ["key", "search", "revision"])]
    deleted: bool,
    /// Show the definition, or list the definitions, as of this revision
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
    #[command(flatten)]
    freshness: FreshnessArgs,
}

#[derive(Debug, Args)]
pub(super) struct DefinitionCreateArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// The key of the definition; not with -f
    #[arg(required_unless_present = "files")]
    key: Option<String>,
    /// A path in its configs to index; repeatable
    #[arg(long = "index", value_name = "PATH", conflicts_with = "files")]
    indexes: Vec<String>,
    /// A JSON or YAML file with the JSON Schema of its configs
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    schema: Option<PathBuf>,
    /// A file of definitions, or `-` for stdin; repeatable
    #[arg(short, long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition
    key: String,
    /// A file with the schema, or with the whole definition; `-` for stdin
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct DefinitionHistoryArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition
    key: String,
    /// Maximum number of changes
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
    #[command(flatten)]
    freshness: FreshnessArgs,
}

#[derive(Debug, Args)]
pub(super) struct DefinitionDeleteArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// The key of the definition
    key: String,
    /// Fail if the definition has configs
    #[arg(long)]
    restrict: bool,
    /// Delete it for good: the deletion can't be undone
    #[arg(long)]
    purge: bool,
    /// Fail unless the definition has this revision
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
pub(super) struct DefinitionUndeleteArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    /// The key of the definition
    key: String,
    /// The revision or the time (RFC 3339) as of which it returns; without it, as it was when it was deleted
    #[arg(long, value_name = "REVISION|TIME")]
    at: Option<String>,
    /// Show what would return, without changing anything
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct DefinitionProtectArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// The key of the definition
    key: String,
    /// End the protection, so that the definition can be deleted
    #[arg(long)]
    off: bool,
    /// Fail unless the definition has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
}

/// Runs a command.
pub(super) fn run(command: DefinitionCommand) -> Result<(), Failure> {
    match command {
        DefinitionCommand::Get(args) => get(&args),
        DefinitionCommand::Create(args) => create(&args),
        DefinitionCommand::Apply(args) => apply::apply(&args),
        DefinitionCommand::Diff(args) => apply::diff(&args),
        DefinitionCommand::Check(args) => check(&args),
        DefinitionCommand::Delete(args) => delete(&args),
        DefinitionCommand::Undelete(args) => undelete(&args),
        DefinitionCommand::Protect(args) => protect(&args),
        DefinitionCommand::Explain(args) => explain::run(&args),
        DefinitionCommand::History(args) => history(&args),
        DefinitionCommand::Reindex(args) => reindex::run(&args),
    }
}

/// Runs `definition get`.
pub(super) fn get(args: &DefinitionGetArgs) -> Result<(), Failure> {
    let format = &args.node.format.or_table();
    with_cluster(&args.node, &args.tries, async |client| {
        let mut table = Table::new(
            "config_definition_key",
            &["KEY", "CONFIGS", "INDEXES", "REVISION", "MODIFIED"],
            &["CREATED", "PROTECTED"],
        );
        let has_table = format.is_table();
        if let Some(key) = &args.key
            && args.revision.is_none()
        {
            let request = args.freshness.on(Request::get(definition_path(key)));
            let data = client.send(request).await?.data()?;
            if has_table {
                add_row(&client, &args.freshness, &mut table, &data).await?;
            }
            return print_value(format, &data, &table);
        }
        if args.deleted {
            return print_deleted(&client, &args.freshness, format).await;
        }
        let mut first = args.freshness.on(Request::get(LIST)).query("limit", 1000);
        first = first.query("sort_by", "config_definition_key").query("sort_order", "asc");
        if let Some(text) = args.key.as_ref().or(args.search.as_ref()) {
            first = first.query("search", text);
        }
        if let Some(revision) = args.revision {
            let first = first.query("revision", revision);
            return print_past(&client, first, args.key.as_deref(), revision, format).await;
        }
        let results = client.pages(first).all().await?;
        if has_table {
            for definition in &results {
                add_row(&client, &args.freshness, &mut table, definition).await?;
            }
        }
        let total = results.len();
        print_value(format, &json!({ "results": results, "meta": { "total": total } }), &table)
    })
}

/// Definitions at an earlier revision, or the one with a key: the API has only lists at a revision, and does not report how
/// many configs a definition had.
async fn print_past(
    client: &Client,
    first: Request,
    key: Option<&str>,
    revision: u64,
    format: &Format,
) -> Result<(), Failure> {
    const COLUMNS: Columns = Columns {
        name: "config_definition_key",
        narrow: &[("KEY", "/config_definition_key"), ("INDEXES", "/indexes"), ("MODIFIED", "/modified_at")],
        wide: &[("CREATED", "/created_at")],
    };
    let results = client.pages(first).all().await?;
    if let Some(key) = key {
        let Some(found) = results.iter().find(|one| one["config_definition_key"] == key) else {
            return Err(Failure::Missing(format!("definition {key} did not exist at revision {revision}")));
        };
        return print_columns(format, found, &COLUMNS);
    }
    let total = results.len();
    print_columns(format, &json!({ "results": results, "meta": { "total": total } }), &COLUMNS)
}

/// The deleted definitions that are kept.
async fn print_deleted(client: &Client, freshness: &FreshnessArgs, format: &Format) -> Result<(), Failure> {
    const COLUMNS: Columns = Columns {
        name: "config_definition_key",
        narrow: &[
            ("KEY", "/config_definition_key"),
            ("CONFIGS", "/configs"),
            ("BYTES", "/bytes"),
            ("DELETED", "/deleted_at"),
        ],
        wide: &[("REVISION", "/deleted_revision")],
    };
    let request = freshness.on(Request::get("/api/v1/deleted_definition/"));
    print_columns(format, &client.send(request).await?.data()?, &COLUMNS)
}

/// A row of the table: a list has neither the revision of a definition nor the number of its configs.
async fn add_row(
    client: &Client,
    freshness: &FreshnessArgs,
    table: &mut Table,
    definition: &Value,
) -> Result<(), Failure> {
    let text = |name: &str| definition[name].as_str().unwrap_or_default();
    let key = text("config_definition_key");
    let path = definition_path(key);
    // It has the revision of the definition, too.
    let protection = freshness.on(Request::get(format!("{path}/protection")));
    let (revision, protected) = match client.send(protection).await {
        Ok(found) => (found.revision(), found.data()?["protected"] == true),
        // It was deleted after the list was read.
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let list = freshness.on(Request::get(format!("{path}/config/"))).query("limit", 1);
    let configs = client.send(list).await;
    let configs = configs.and_then(|answer| answer.data()).map(|data| data["meta"]["total"].to_string());
    let configs = match configs {
        Ok(count) => count,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let indexes: Vec<&str> =
        definition["indexes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let revision = revision.map(|revision| revision.to_string()).unwrap_or_default();
    let protected = if protected { "yes" } else { "no" };
    table.row(&[
        key,
        &configs,
        &indexes.join(","),
        &revision,
        text("modified_at"),
        text("created_at"),
        protected,
    ]);
    Ok(())
}

fn create(args: &DefinitionCreateArgs) -> Result<(), Failure> {
    let operations = creations(args)?;
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let format = args.node.format.or_table();
        let proposed = change::operations(&operations)?;
        if args.way.at(&args.when).propose(&client, proposed, args.dry_run, &format).await? {
            return Ok(());
        }
        let (mut texts, mut created) = (Vec::new(), Vec::new());
        for operation in &operations {
            let request = args.way.on(Request::operation(operation)).dry_run(args.dry_run);
            if !args.dry_run {
                interrupt::now(Doing::Writing);
            }
            let answer = client.send(request).await?;
            let revision = answer.revision().map(|revision| format!("  revision {revision}"));
            let what = if args.dry_run { "would be created" } else { "created" };
            texts.push(format!(
                "{} {what}{}",
                manifest::name(operation.definition(), ""),
                revision.unwrap_or_default()
            ));
            created.push(answer.data()?);
        }
        print_done(&format, &created.into(), "config_definition_key", texts.join("\n"))
    })
}

/// The definitions that are to be created.
fn creations(args: &DefinitionCreateArgs) -> Result<Vec<Operation>, Failure> {
    match (&args.key, args.files.is_empty()) {
        (None, _) => {
            let read = Manifests::read(&FileArgs::new(args.files.clone(), false))?;
            if !read.configs.is_empty() {
                return Err(Failure::Usage("the files also contain configs: use `concord apply`".into()));
            }
            if read.definitions.values().any(|definition| !definition.unique.is_empty()) {
                return Err(Failure::Usage("the files declare unique fields: use `concord apply`".into()));
            }
            Ok(read.definitions.iter().map(|(key, definition)| definition.create(key)).collect())
        }
        (Some(key), true) => {
            let schema = args.schema.as_deref().map(one_value).transpose()?;
            let (definition, indexes) = (key.clone(), args.indexes.clone());
            Ok(vec![Operation::CreateDefinition { definition, indexes, schema, format_assertion: None }])
        }
        (Some(_), false) => Err(Failure::Usage("pass a key or -f, not both".into())),
    }
}

/// The one value that a file has.
pub(super) fn one_value(path: &Path) -> Result<Value, Failure> {
    let mut read = document::read_file(path)?;
    match (read.pop(), read.is_empty()) {
        (Some(document), true) => Ok(document.value),
        (None, _) => Err(Failure::Invalid(format!("{}: the file is empty", path.display()))),
        (Some(_), false) => {
            Err(Failure::Invalid(format!("{}: expected one value, found several", path.display())))
        }
    }
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let value = one_value(&args.file)?;
    // A definition as files have it, or a schema alone.
    let (schema, format_assertion) = if value.get("config_definition_key").is_some() {
        let place = args.file.display().to_string();
        let (key, read) = ManifestDefinition::parse(value, &place).map_err(Failure::Invalid)?;
        if key != args.key {
            let text = format!("the file contains definition {key}, not {}", args.key);
            return Err(Failure::Usage(text));
        }
        (read.schema.unwrap_or_default(), read.format_assertion)
    } else {
        (value, None)
    };
    with_cluster(&args.node, &args.tries, async |client| {
        let path = format!("{}/schema", definition_path(&args.key));
        let now = client.send(Request::get(path)).await?.data()?["json_schema"].take();
        let narrowed: Vec<String> = differences(&now, &schema).iter().map(ToString::to_string).collect();
        let operation = Operation::SetSchema {
            definition: args.key.clone(),
            schema: Some(schema).filter(|schema| !schema.is_null()),
            format_assertion,
            force: false,
            if_match: None,
        };
        let report = client.send(Request::operation(&operation).dry_run(true)).await?.data()?;
        let mut table = Table::new("config_key", &["CONFIG", "PLACE", "REASON"], &[]);
        for config in report["breaking"].as_array().into_iter().flatten() {
            for error in config["errors"].as_array().into_iter().flatten() {
                let place: Vec<String> = error["loc"].as_array().into_iter().flatten().map(cell).collect();
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                table.row(&[
                    text(&config["config_key"]),
                    format!("/{}", place.join("/")),
                    text(&error["msg"]),
                ]);
            }
        }
        let count = report["breaking_count"].as_u64().unwrap_or(0);
        let format = args.node.format.or_table();
        if format.is_table() {
            narrowed.iter().for_each(|text| note(format_args!("schema change: {text}")));
        }
        if count > 0 || !format.is_table() {
            print_value(&format, &report, &table)?;
        }
        let checked = counted(report["checked"].as_u64().unwrap_or_default(), "config");
        note(format_args!(
            "{checked} checked, {count} {} not fit the schema",
            if count == 1 { "does" } else { "do" }
        ));
        if count == 0 { Ok(()) } else { Err(Failure::Difference) }
    })
}

fn history(args: &DefinitionHistoryArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.tries, async |client| {
        let first = args.freshness.on(history_of(&definition_path(&args.key), args.limit));
        print_history(&client, first, args.limit, &args.node.format.or_table()).await
    })
}

fn delete(args: &DefinitionDeleteArgs) -> Result<(), Failure> {
    let path = definition_path(&args.key);
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let operation = Operation::DeleteDefinition {
            definition: args.key.clone(),
            restrict: args.restrict,
            if_match: args.if_match.map(IfMatch::Revision),
        };
        let format = args.node.format.or_table();
        let way = args.way.at(&args.when);
        if way.is_proposal() && args.purge {
            let text = "a change request can't be combined with --purge: it keeps what it deletes";
            return Err(Failure::Usage(text.into()));
        }
        if way.propose(&client, change::operations([&operation])?, args.dry_run, &format).await? {
            return Ok(());
        }
        let list = Request::get(format!("{path}/config/")).query("limit", 1);
        let total = match client.send(list).await {
            // Who may delete need not be allowed to read.
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => None,
            answer => answer?.data()?["meta"]["total"].as_u64(),
        };
        let configs = match total {
            Some(0) => ", which has no configs,".into(),
            Some(total) => format!(" and its {}", counted(total, "config")),
            None => " and its configs".into(),
        };
        let would = if args.dry_run { "would" } else { "will" };
        let forever = if args.purge { " for good" } else { "" };
        let what = format!("definition {}{configs} {would} be deleted{forever}", args.key);
        confirm(&what, args.yes || args.dry_run)?;
        if !args.dry_run {
            interrupt::now(Doing::Writing);
        }
        let mut request = args.way.on(Request::operation(&operation)).dry_run(args.dry_run);
        if args.purge {
            request = request.query("purge", true);
        }
        let answer = client.send(request).await?;
        let is_final = answer.header("x-concord-deletion") == Some("final");
        let data = answer.data()?;
        let text = if args.dry_run { what } else { format!("definition {} deleted{forever}", args.key) };
        print_done(&args.node.format.or_table(), &data, "config_definition_key", text)?;
        // Otherwise the warning of the node has said that it can't be undone.
        if !is_final && !args.dry_run && !args.purge {
            note(format_args!("`concord definition undelete {}` undoes the deletion", args.key));
        }
        Ok(())
    })
}

fn protect(args: &DefinitionProtectArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let operation = Operation::SetProtection {
            definition: args.key.clone(),
            protected: !args.off,
            if_match: args.if_match.map(IfMatch::Revision),
        };
        let format = args.node.format.or_table();
        if args.way.at(&args.when).propose(&client, change::operations([&operation])?, false, &format).await?
        {
            return Ok(());
        }
        interrupt::now(Doing::Writing);
        let mut data = client.send(args.way.on(Request::operation(&operation))).await?.data()?;
        data["config_definition_key"] = args.key.as_str().into();
        let state = if args.off { "is no longer protected" } else { "is protected from deletion" };
        let text = format!("definition {} {state}", args.key);
        print_done(&args.node.format.or_table(), &data, "config_definition_key", text)
    })
}

fn undelete(args: &DefinitionUndeleteArgs) -> Result<(), Failure> {
    let at = args.at.as_deref().map_or(UndeleteAt::Deletion, |at| {
        at.parse().map_or_else(|_| UndeleteAt::Time(at.into()), UndeleteAt::Revision)
    });
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let format = args.node.format.or_table();
        if args.way.title().is_some() && args.at.is_some() {
            let text =
                "--propose can't be combined with --at: a change request undoes the deletion as a whole";
            return Err(Failure::Usage(text.into()));
        }
        let operation = json!({ "op": "undelete_definition", "config_definition_key": args.key });
        if args.way.propose(&client, vec![operation], args.dry_run, &format).await? {
            return Ok(());
        }
        if !args.dry_run {
            interrupt::now(Doing::Writing);
        }
        let request = args.way.on(Request::undelete(&args.key, &at)).dry_run(args.dry_run);
        let data = client.send(request).await?.data()?;
        let configs = data["configs"].as_u64().map_or_else(String::new, |configs| {
            let bytes = data["bytes"].as_u64().unwrap_or_default();
            format!(" with {}, {bytes} bytes,", counted(configs, "config"))
        });
        let (would, key) = (if args.dry_run { "would return" } else { "returned" }, &args.key);
        let text = format!("definition {key}{configs} {would} as of revision {}", data["revision"]);
        print_done(&args.node.format.or_table(), &data, "config_definition_key", text)
    })
}
