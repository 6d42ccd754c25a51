//! `concord config get` and `history`.

use std::collections::BTreeSet;

use clap::Args;
use concord_client::{Client, Request};
use concord_formats::yaml;
use serde_json::{Value, json};

use super::{
    changes::by,
    config::ConfigTarget,
    connection::{Failure, FreshnessArgs, NodeArgs, TryArgs, with_cluster},
    current::{self, config_path, definition_path},
    follow::reason_of,
    manifest::config_json,
    output::{Columns, Format, Table, cell, line, text},
    redacted::Redactions,
    rollout_steer::ReaderArgs,
};

/// The most indexed fields that are columns of a table.
const FIELDS_MAX: usize = 6;

#[derive(Debug, Args)]
pub(super) struct ConfigGetArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition; `PREFIX*` lists the configs of all definitions with this key prefix
    definition: String,
    /// The key of one config; without it, all configs are listed
    key: Option<String>,
    /// Read at this revision
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
    /// Only configs that match, as in `plan=pro`, `quota.requests[gte]=500` or `labels.team=search`; repeatable
    #[arg(long = "filter", value_name = "FILTER", conflicts_with = "key")]
    filters: Vec<String>,
    /// Only configs whose key contains this text
    #[arg(long, value_name = "TEXT", conflicts_with = "key")]
    search: Option<String>,
    /// Sort by `config_key`, `created_at`, `modified_at` or an indexed path
    #[arg(long, default_value = "config_key", value_name = "PATH", conflicts_with = "key")]
    sort_by: String,
    /// Sort in descending order
    #[arg(long, conflicts_with = "key")]
    descending: bool,
    /// Maximum number of configs
    #[arg(long, value_name = "N", conflicts_with = "key")]
    limit: Option<usize>,
    #[command(flatten)]
    freshness: FreshnessArgs,
    /// The same as `--consistency local`
    #[arg(long, conflicts_with = "consistency")]
    local: bool,
    #[command(flatten)]
    reader: ReaderArgs,
    /// Print YAML documents that `apply -f` reads; secret values that the key may not read stay as they are when they
    /// are applied
    #[arg(long, conflicts_with_all = ["revision", "output"])]
    for_apply: bool,
}

#[derive(Debug, Args)]
pub(super) struct ConfigHistoryArgs {
    #[command(flatten)]
    target: ConfigTarget,
    #[command(flatten)]
    freshness: FreshnessArgs,
    /// Maximum number of changes
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: usize,
}

/// The two sides of a filter: its path with the operator, and its value.
pub(super) fn pair(filter: &str) -> Result<(&str, &str), Failure> {
    let wrong = || {
        let text = format!("invalid filter `{filter}`: expected PATH=VALUE or PATH[OPERATOR]=VALUE");
        Failure::Usage(text)
    };
    filter.split_once('=').filter(|(path, _)| !path.is_empty()).ok_or_else(wrong)
}

/// Runs `config get`.
pub(super) fn get(args: &ConfigGetArgs) -> Result<(), Failure> {
    let format = args.node.format.or_table();
    args.check_reader()?;
    with_cluster(&args.node, &args.tries, async |client| {
        let client = args.reader.on(client)?;
        if args.for_apply {
            return for_apply(&client, args).await;
        }
        if args.definition.contains('*') {
            return across(&client, args, &format).await;
        }
        let indexes = if format.is_table() { args.indexes(&client).await? } else { ListColumns::default() };
        match &args.key {
            Some(key) => one(&client, args, key, &format, &indexes.columns).await,
            None => list(&client, args, &format, &indexes).await,
        }
    })
}

/// The indexes of a definition.
#[derive(Debug, Default)]
struct ListColumns {
    /// The fields that are columns of a table.
    columns: Vec<String>,
    /// Whether a parameter of the list has the name of an indexed path.
    has_revision: bool,
}

impl ConfigGetArgs {
    fn read(&self, path: String) -> Request {
        let request = self.freshness.on(Request::get(path));
        if self.local { FreshnessArgs::local().on(request) } else { request }
    }

    /// Only one config, as it is now, is shown as a reader sees it.
    fn check_reader(&self) -> Result<(), Failure> {
        let is_one = self.key.is_some() && self.revision.is_none() && !self.for_apply;
        if self.reader.is_given() && !is_one {
            let text = "--reader and --label show one config as it is now: name it, and drop --revision and --for-apply";
            return Err(Failure::Usage(text.into()));
        }
        Ok(())
    }

    async fn indexes(&self, client: &Client) -> Result<ListColumns, Failure> {
        let definition = match client.send(self.read(definition_path(&self.definition))).await {
            // The read at the revision says why: the definition may have existed then.
            Err(error) if self.revision.is_some() && error.is_not_found() => {
                return Ok(ListColumns::default());
            }
            answer => answer?.data()?,
        };
        let indexes: Vec<String> = definition["indexes"].as_array().into_iter().flatten().map(cell).collect();
        let has_revision = indexes.iter().any(|path| path == "revision");
        Ok(ListColumns { columns: indexes.into_iter().take(FIELDS_MAX).collect(), has_revision })
    }

    /// The first page of a list.
    fn first(&self, path: String) -> Result<Request, Failure> {
        let order = if self.descending { "desc" } else { "asc" };
        let mut first = self
            .read(path)
            .query("limit", self.limit.unwrap_or(1000).clamp(1, 1000))
            .query("sort_by", &self.sort_by)
            .query("sort_order", order);
        for filter in &self.filters {
            let (path, value) = pair(filter)?;
            first = first.query(path, value);
        }
        if let Some(search) = &self.search {
            first = first.query("search", search);
        }
        Ok(first)
    }

    /// The first page of the configs of several definitions.
    fn first_across(&self) -> Result<Request, Failure> {
        if self.key.is_some() {
            return Err(Failure::Usage("a key prefix (`*`) can't be combined with a config key".into()));
        }
        Ok(self.first("/api/v1/config".into())?.query("definition", &self.definition))
    }

    /// All records of a list up to `--limit`, as data to print.
    async fn records(&self, client: &Client, first: Request) -> Result<(Value, Redactions), Failure> {
        let (results, total, redactions) = listed(client, first, self.limit.unwrap_or(usize::MAX)).await?;
        Ok((json!({ "results": results, "meta": { "total": total } }), redactions))
    }
}

/// So many records of a list, the number of all, and what of them the access key may not see.
async fn listed(
    client: &Client,
    first: Request,
    most: usize,
) -> Result<(Vec<Value>, Option<u64>, Redactions), Failure> {
    let (mut pages, mut results, mut redactions) = (client.pages(first), Vec::new(), Redactions::default());
    while results.len() < most
        && let Some(page) = pages.next().await?
    {
        let left = most - results.len();
        for mut record in page.into_iter().take(left) {
            redactions.record(&format!("/results/{}", results.len()), &mut record, pages.redacted());
            results.push(record);
        }
    }
    Ok((results, pages.total(), redactions))
}

async fn one(
    client: &Client,
    args: &ConfigGetArgs,
    key: &str,
    format: &Format,
    fields: &[String],
) -> Result<(), Failure> {
    let mut request = args.read(config_path(&args.definition, key));
    if let Some(revision) = args.revision {
        request = request.query("revision", revision);
    }
    let answer = client.send(request).await?;
    let mut data = answer.data()?;
    let redactions = Redactions::of(&mut data, &answer);
    let table = Table::new("config_key", &["KEY", "REVISION", "MODIFIED"], &["CREATED", "DATA"]);
    let mut table = table.with_columns(1, fields);
    let revision = match answer.variant() {
        Some(change) => {
            data["variant"] = json!({ "change_id": change });
            Some(format!("candidate of {change}"))
        }
        None => args.revision.or(answer.revision()).map(|revision| revision.to_string()),
    };
    table.row(&row(&redactions.shown(data.clone()), fields, revision));
    redactions.print(format, &data, &table)
}

async fn list(
    client: &Client,
    args: &ConfigGetArgs,
    format: &Format,
    indexes: &ListColumns,
) -> Result<(), Failure> {
    let mut first = args.first(format!("{}/config/", definition_path(&args.definition)))?;
    if let Some(revision) = args.revision {
        // Where a field has this name it is a filter.
        first = first.query(if indexes.has_revision { "$revision" } else { "revision" }, revision);
    }
    let (data, redactions) = args.records(client, first).await?;
    let fields = &indexes.columns;
    let table = Table::new("config_key", &["KEY", "MODIFIED"], &["CREATED", "DATA"]);
    let mut table = table.with_columns(1, fields);
    let shown = if format.is_table() { redactions.shown(data.clone()) } else { Value::Null };
    for config in shown["results"].as_array().into_iter().flatten() {
        table.row(&row(config, fields, None));
    }
    redactions.print(format, &data, &table)
}

/// The configs of several definitions.
async fn across(client: &Client, args: &ConfigGetArgs, format: &Format) -> Result<(), Failure> {
    const COLUMNS: Columns = Columns {
        name: "config_key",
        narrow: &[
            ("DEFINITION", "/config_definition_key"),
            ("KEY", "/config_key"),
            ("MODIFIED", "/modified_at"),
        ],
        wide: &[("CREATED", "/created_at"), ("DATA", "/data")],
    };
    if args.revision.is_some() {
        return Err(Failure::Usage("a key prefix (`*`) can't be combined with --revision".into()));
    }
    let (data, redactions) = args.records(client, args.first_across()?).await?;
    if *format == Format::Name {
        // The key of a config alone names none of them.
        return records(&data).try_for_each(|(definition, key)| line(format_args!("{definition}/{key}")));
    }
    redactions.print_columns(format, &data, &COLUMNS)
}

/// The keys of the configs of a list across definitions.
fn records(data: &Value) -> impl Iterator<Item = (String, String)> {
    let results = data["results"].as_array().into_iter().flatten();
    results.map(|config| (cell(&config["config_definition_key"]), cell(&config["config_key"])))
}

/// Prints configs in the form of files.
async fn for_apply(client: &Client, args: &ConfigGetArgs) -> Result<(), Failure> {
    let keys: Vec<(String, String)> = match &args.key {
        Some(key) => vec![(args.definition.clone(), key.clone())],
        None if args.definition.contains('*') => {
            records(&args.records(client, args.first_across()?).await?.0).collect()
        }
        None => {
            let first = args.first(format!("{}/config/", definition_path(&args.definition)))?;
            let (data, _) = args.records(client, first).await?;
            records(&data).map(|(_, key)| (args.definition.clone(), key)).collect()
        }
    };
    let named: Vec<&(String, String)> = keys.iter().collect();
    let definitions: BTreeSet<String> = keys.iter().map(|(definition, _)| definition.clone()).collect();
    let definitions: Vec<String> = definitions.into_iter().collect();
    let found = current::some_or_all(client, &named, &definitions, false).await?;
    if let (Some(key), true) = (&args.key, found.is_empty()) {
        // The error says what does not exist.
        client.send(args.read(config_path(&args.definition, key))).await?;
    }
    let documents = keys.iter().filter_map(|id| {
        let found = found.get(id)?;
        Some(format!("---\n{}", yaml::write_exact(&config_json(&id.0, &id.1, &found.value))))
    });
    text(&documents.collect::<String>())
}

/// The cells of a config.
fn row(config: &Value, fields: &[String], revision: Option<String>) -> Vec<String> {
    let mut cells = vec![cell(&config["config_key"])];
    cells.extend(fields.iter().map(|path| at(&config["data"], path)));
    cells.extend(revision);
    cells.extend(["modified_at", "created_at", "data"].map(|name| cell(&config[name])));
    cells
}

/// The value at an indexed path; for a path with `*` or `[]` all values that it selects, comma-separated.
fn at(data: &Value, path: &str) -> String {
    let mut found = vec![data];
    for name in segments(path) {
        let (name, is_list) = match name.strip_suffix("[]") {
            Some(name) => (name.to_owned(), true),
            None => (name, false),
        };
        found = found.into_iter().flat_map(|value| inside(value, &name)).collect();
        if is_list {
            found = found.into_iter().filter_map(Value::as_array).flatten().collect();
        }
    }
    found.into_iter().map(cell).collect::<Vec<_>>().join(",")
}

/// The members of a value with this name, or all of them.
fn inside<'a>(value: &'a Value, name: &str) -> Vec<&'a Value> {
    match value.as_object() {
        Some(object) if name == "*" => object.values().collect(),
        Some(object) => object.get(&name.replace("\\*", "*").replace("\\[", "[")).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The names of a path. A backslash escapes a dot, a backslash, `*` and `[` in a name; `*` and `[` stay escaped here.
fn segments(path: &str) -> Vec<String> {
    let (mut segments, mut last) = (Vec::new(), String::new());
    let mut characters = path.chars();
    while let Some(character) = characters.next() {
        match (character, character == '\\') {
            ('.', _) => segments.push(std::mem::take(&mut last)),
            (_, true) => match characters.next() {
                Some(marked @ ('*' | '[')) => last.extend(['\\', marked]),
                Some(other) => last.push(other),
                None => last.push('\\'),
            },
            (other, false) => last.push(other),
        }
    }
    segments.push(last);
    segments
}

/// Runs `config history`.
pub(super) fn history(args: &ConfigHistoryArgs) -> Result<(), Failure> {
    let ConfigTarget { node, tries, definition, key } = &args.target;
    with_cluster(node, tries, async |client| {
        let first = args.freshness.on(history_of(&config_path(definition, key), args.limit));
        print_history(&client, first, args.limit, &node.format.or_table()).await
    })
}

/// Asks for the changes of the record at a path.
pub(super) fn history_of(path: &str, limit: usize) -> Request {
    Request::get(format!("{path}/history")).query("limit", limit.clamp(1, 1000))
}

/// Prints the changes of a record, newest first.
pub(super) async fn print_history(
    client: &Client,
    first: Request,
    limit: usize,
    format: &Format,
) -> Result<(), Failure> {
    const COLUMNS: Columns = Columns {
        name: "revision",
        narrow: &[
            ("REVISION", "/revision"),
            ("OPERATION", "/operation"),
            ("AT", "/at"),
            ("BY", "/by_shown"),
            ("REASON", "/reason_shown"),
        ],
        wide: &[("DATA", "/data")],
    };
    let (mut results, _, redactions) = listed(client, first, limit).await?;
    if format.is_table() {
        for change in &mut results {
            (change["by_shown"], change["reason_shown"]) = (by(change).into(), reason_of(change).into());
        }
    }
    let data = json!({ "results": results });
    redactions.print_columns(format, &data, &COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_a_cell() {
        let data = json!({"a": {"b.c": 7}, "d": [1], "e": null});
        let cells = ["a.b\\.c", "a", "d", "e", "x.y"].map(|path| at(&data, path));
        assert_eq!(cells, ["7", r#"{"b.c":7}"#, "[1]", "", ""]);
    }

    #[test]
    fn a_pattern_leads_to_all_that_it_selects() {
        let data =
            json!({"labels": {"team": "pay", "a.b": 1}, "items": [{"n": "x"}, {"n": "y"}, 7], "*": "star"});
        let cells = ["labels.*", "items[].n", "items[]", "labels[].x", "\\*", "labels.a\\.b"];
        let cells = cells.map(|path| at(&data, path));
        assert_eq!(cells, ["pay,1", "x,y", r#"{"n":"x"},{"n":"y"},7"#, "", "star", "1"]);
    }

    #[test]
    fn a_filter_has_a_path_and_a_value() {
        assert_eq!(pair("a[gte]=b=c").unwrap(), ("a[gte]", "b=c"));
        assert!(pair("a").is_err() && pair("=a").is_err());
    }
}
