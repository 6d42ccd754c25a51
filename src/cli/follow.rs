//! `concord config watch`: prints a line for each change, with the fields that differ.
//!
//! **Invariant:** the previous value is that of the record before this change: the node sends it with the change, wherever
//! the watch starts.

use clap::Args;
use concord_client::{EventKind, Request};
use serde_json::Value;

use super::{
    config_read::pair,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    document,
    output::{Format, cell, counted, escaped, line, printable, text},
    yaml_writer,
};

/// Maximum number of fields in the line of a change.
const FIELDS_MAX: usize = 8;

#[derive(Debug, Args)]
pub(super) struct ConfigWatchArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition, or `PREFIX*`; without it, everything that the access key may read is watched
    definition: Option<String>,
    /// The key of one config
    key: Option<String>,
    /// Also watch this definition, or `PREFIX*`; repeatable
    #[arg(long = "definition", value_name = "DEFINITION", conflicts_with = "key")]
    others: Vec<String>,
    /// Only configs that match, as in `plan=pro`; repeatable
    #[arg(long = "filter", value_name = "FILTER", requires = "definition", conflicts_with = "others")]
    filters: Vec<String>,
    /// Start with the changes of this revision [default: new changes only]
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    /// Exit after this many revisions; a batch is one revision
    #[arg(long, value_name = "N")]
    count: Option<usize>,
}

impl ConfigWatchArgs {
    fn request(&self) -> Result<Request, Failure> {
        let mut request = Request::get("/api/v1/watch").query("prev", "true");
        for definition in self.definition.iter().chain(&self.others) {
            request = request.query("definition", definition);
        }
        if let Some(key) = &self.key {
            request = request.query("config_key", key);
        }
        for filter in &self.filters {
            let (path, value) = pair(filter)?;
            request = request.query(path, value);
        }
        Ok(self.from.into_iter().fold(request, |request, from| request.query("from", from)))
    }
}

/// Runs the command.
pub(super) fn run(args: &ConfigWatchArgs) -> Result<(), Failure> {
    let (format, request) = (args.node.format.or_table(), args.request()?);
    with_cluster(&args.node, &args.tries, async |client| {
        let (mut watch, mut shown) = (client.watch(request), 0);
        while shown < args.count.unwrap_or(usize::MAX) {
            let event = watch.next().await?;
            match event.kind {
                EventKind::Heartbeat | EventKind::Restarted | EventKind::State => {}
                EventKind::Change => {
                    shown += 1;
                    if format.is_table() {
                        describe(&event.data).iter().try_for_each(line)?;
                    } else {
                        print(&format, &event.data)?;
                    }
                }
            }
        }
        Ok(())
    })
}

fn print(format: &Format, data: &Value) -> Result<(), Failure> {
    match format {
        Format::Yaml => text(&format!("---\n{}", yaml_writer::write(data))),
        Format::Json => line(escaped(&format!("{data:#}"))),
        Format::Path(path) => path.find(data).iter().try_for_each(|found| line(cell(found))),
        Format::Name => {
            let changes = data["changes"].as_array().into_iter().flatten();
            changes.map(id).try_for_each(|(definition, key)| line(format_args!("{definition}/{key}")))
        }
        Format::Jsonl | Format::Table | Format::Wide => line(escaped(&data.to_string())),
    }
}

fn id(record: &Value) -> (String, String) {
    (cell(&record["config_definition_key"]), cell(&record["config_key"]))
}

/// The lines of a revision.
fn describe(event: &Value) -> Vec<String> {
    let reason = event["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    let by = cell(&event["by"]);
    let changes = event["changes"].as_array().into_iter().flatten();
    let line = |change: &Value| {
        let (definition, key) = id(change);
        let name = if key.is_empty() { definition } else { format!("{definition}/{key}") };
        printable(&format!("{} {name} {} (by {by}{reason})", event["revision"], what(change)))
    };
    changes.map(line).collect()
}

/// The description of a change.
fn what(change: &Value) -> String {
    let kind = change["type"].as_str().unwrap_or_default();
    match (kind, &change["prev"], &change["count"]) {
        ("config_updated", before @ Value::Object(_), _) => summary(before, &change["data"]),
        ("definition_deleted", _, Value::Number(count)) => {
            let count = count.as_u64().unwrap_or_default();
            format!("definition deleted with {}", counted(count, "config"))
        }
        _ if kind.starts_with("config_") => kind.trim_start_matches("config_").to_owned(),
        _ => kind.replace('_', " "),
    }
}

/// The fields in which two values differ, each as in `limit 20 → 50`.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

/// The same in a line.
fn summary(before: &Value, after: &Value) -> String {
    let mut found = differences(before, after);
    let more = found.len().saturating_sub(FIELDS_MAX);
    found.truncate(FIELDS_MAX);
    match (found.is_empty(), more) {
        (true, _) => "rewritten, unchanged".into(),
        (false, 0) => found.join(", "),
        (false, more) => format!("{}, and {more} more", found.join(", ")),
    }
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    if let (Value::Object(before), Value::Object(after)) = (before, after) {
        let added = after.keys().filter(|name| !before.contains_key(*name));
        for name in before.keys().chain(added) {
            let inside = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match (before.get(name), after.get(name)) {
                (Some(before), Some(after)) => compare(&inside, before, after, found),
                (Some(before), None) => found.push(format!("{inside} {before} → absent")),
                (None, Some(after)) => found.push(format!("{inside} absent → {after}")),
                (None, None) => {}
            }
        }
    } else if !document::is_same(before, after) {
        let name = if path.is_empty() { "data" } else { path };
        found.push(format!("{name} {before} → {after}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_told_by_the_fields_that_differ() {
        let told = |change: Value| {
            let mut change = change;
            change["config_definition_key"] = "s".into();
            describe(&json!({"revision": 418, "by": "demo", "reason": null, "changes": [change]})).concat()
        };
        let config = |kind: &str, prev: Value, data: Value| {
            told(json!({"type": kind, "config_key": "eu", "data": data, "prev": prev}))
        };
        let before = json!({"limit": 20});
        assert_eq!(config("config_created", Value::Null, before.clone()), "418 s/eu created (by demo)");
        let after = json!({"limit": 50, "a": {"b": "\u{1b}"}});
        assert_eq!(
            config("config_updated", before, after.clone()),
            "418 s/eu limit 20 → 50, a absent → {\"b\":\"\\u001b\"} (by demo)"
        );
        assert_eq!(
            config("config_updated", after.clone(), after.clone()),
            "418 s/eu rewritten, unchanged (by demo)"
        );
        // The previous change is no longer retained.
        assert_eq!(config("config_updated", Value::Null, after), "418 s/eu updated (by demo)");
        assert_eq!(config("config_deleted", json!({}), Value::Null), "418 s/eu deleted (by demo)");
        let deleted = told(json!({"type": "definition_deleted", "count": 3}));
        assert_eq!(deleted, "418 s definition deleted with 3 configs (by demo)");
        let deleted = told(json!({"type": "definition_deleted", "count": 1}));
        assert_eq!(deleted, "418 s definition deleted with 1 config (by demo)");
    }
}
