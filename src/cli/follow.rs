//! `concord config watch`: prints a line for each change, with the fields that differ.
//!
//! The lines are for people, as a diff is, so secret values are hidden in them. All other formats print the events of the
//! API, with what the access key may see.
//!
//! **Invariants:** the previous value is that of the record before this change: the node sends it with the change, wherever
//! the watch starts. A line shows no secret value without `--show-secrets`, and no value at all while the schema that says
//! what is secret is not known.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use clap::Args;
use concord_client::{Client, EventKind, Request};
use concord_formats::yaml;
use serde_json::Value;

use super::{
    config_read::pair,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{definition_path, keep_redacted, texts},
    document,
    mask::Mask,
    output::{Format, cell, counted, escaped, line, printable, text},
    redacted::Redactions,
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
    /// Show secret values in the lines
    #[arg(long)]
    show_secrets: bool,
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
        let mut masks = (!args.show_secrets).then(WatchMasks::default);
        while shown < args.count.unwrap_or(usize::MAX) {
            let mut event = watch.next().await?;
            match event.kind {
                EventKind::Heartbeat | EventKind::Restarted | EventKind::State => {}
                EventKind::Change => {
                    shown += 1;
                    if format.is_table() {
                        if let Some(masks) = &mut masks {
                            masks.hide(&client, &mut event.data).await;
                        }
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
        Format::Yaml => text(&format!("---\n{}", yaml::write(data))),
        Format::Json => line(escaped(&format!("{data:#}"))),
        Format::Path(path) => {
            redactions(data).check(path, data)?;
            path.find(data).iter().try_for_each(|found| line(cell(found)))
        }
        Format::Name => {
            let changes = data["changes"].as_array().into_iter().flatten();
            changes.map(id).try_for_each(|(definition, key)| line(format_args!("{definition}/{key}")))
        }
        Format::Jsonl | Format::Table | Format::Wide | Format::Markdown => line(escaped(&data.to_string())),
    }
}

/// What the access key may not see of an event: the event names it itself.
fn redactions(event: &Value) -> Redactions {
    let mut redactions = Redactions::default();
    for (place, change) in event["changes"].as_array().into_iter().flatten().enumerate() {
        for (data, places) in [("data", "redacted"), ("prev", "prev_redacted")] {
            redactions.data(&format!("/changes/{place}/{data}"), &change[data], &texts(&change[places]));
        }
    }
    redactions
}

/// What is secret in the definitions of a watch.
///
/// The current schema says it, for earlier changes too. It is read again for each change that is later than the state that
/// it was read from: once for all changes that wait. So it does not matter which events of definitions a watch brings.
#[derive(Debug, Default)]
pub(super) struct WatchMasks {
    by_definition: BTreeMap<String, (u64, Option<Mask>)>,
    /// Whether all changes are there already: then no schema is read twice, nor one that can't be read.
    is_list: bool,
}

impl WatchMasks {
    /// Of a list of changes.
    pub(super) fn of_list() -> Self {
        Self { is_list: true, ..Self::default() }
    }

    /// Hides the secret values of an event.
    pub(super) async fn hide(&mut self, client: &Client, event: &mut Value) {
        let revision = event["revision"].as_u64().unwrap_or(u64::MAX);
        for change in event["changes"].as_array_mut().into_iter().flatten() {
            if !change["prev"].is_object() {
                continue;
            }
            let definition = cell(&change["config_definition_key"]);
            let is_current =
                |(state, mask): &(u64, Option<Mask>)| self.is_list || (*state >= revision && mask.is_some());
            if !self.by_definition.get(&definition).is_some_and(is_current) {
                self.by_definition.insert(definition.clone(), mask_of(client, &definition).await);
            }
            let mask = self.by_definition.get(&definition).and_then(|(_, mask)| mask.as_ref());
            hide(mask, &definition, change);
        }
    }
}

/// What a definition's schema marks as secret, and the revision of the state that it was read from; no mask if it can't be
/// read, as that of a definition that is deleted.
async fn mask_of(client: &Client, definition: &str) -> (u64, Option<Mask>) {
    let Ok(answer) = client.send(Request::get(format!("{}/schema", definition_path(definition)))).await
    else {
        return (0, None);
    };
    let mask = answer.data().ok().map(|data| {
        let mut mask = Mask::default();
        mask.add(definition, Some(&data["json_schema"]));
        mask
    });
    (answer.state_revision().unwrap_or_default(), mask)
}

/// Hides what a mask marks in a change; everything, if there is none.
fn hide(mask: Option<&Mask>, definition: &str, change: &mut Value) {
    let Some(mask) = mask else {
        change["prev"] = Value::Null;
        change["is_schema_unknown"] = true.into();
        return;
    };
    let (mut before, mut after) = (change["prev"].take(), change["data"].take());
    for (data, places) in [(&mut before, "prev_redacted"), (&mut after, "redacted")] {
        // If it names fewer places than there are, the others are null on both sides.
        let _ = keep_redacted(data, texts(&change[places]).iter().map(String::as_str));
    }
    mask.hide(definition, Some(&mut before), Some(&mut after));
    (change["prev"], change["data"]) = (before, after);
}

/// The keys of a record.
pub(super) fn id(record: &Value) -> (String, String) {
    (cell(&record["config_definition_key"]), cell(&record["config_key"]))
}

/// The lines of a revision.
fn describe(event: &Value) -> Vec<String> {
    let reason = reason_of(event).map(|reason| format!(": {reason}")).unwrap_or_default();
    let by = cell(&event["by"]);
    let changes = event["changes"].as_array().into_iter().flatten();
    let line = |change: &Value| {
        let (definition, key) = id(change);
        let name = if key.is_empty() { definition } else { format!("{definition}/{key}") };
        printable(&format!("{} {name} {} (by {by}{reason})", event["revision"], what(change)))
    };
    changes.map(line).collect()
}

/// Why something was changed: the reason that was given, or the title of the change request.
pub(super) fn reason_of(change: &Value) -> Option<String> {
    if let Some(reason) = change["reason"].as_str() {
        return Some(reason.to_owned());
    }
    let title = change["change_title"].as_str()?;
    Some(if change["change_reverted"] == true { format!("taken back: {title}") } else { title.to_owned() })
}

/// The description of a change.
pub(super) fn what(change: &Value) -> String {
    let kind = change["type"].as_str().unwrap_or_default();
    match (kind, &change["prev"], &change["count"]) {
        ("config_updated", before @ Value::Object(_), _) => {
            let is_redacted = ["redacted", "prev_redacted"].iter().any(|places| change[*places].is_array());
            summary(before, &change["data"], is_redacted)
        }
        ("config_updated", _, _) if change["is_schema_unknown"] == true => {
            "updated (the schema that says what is secret can't be read)".to_owned()
        }
        ("definition_deleted", _, Value::Number(count)) => {
            let count = count.as_u64().unwrap_or_default();
            format!("definition deleted with {}", counted(count, "config"))
        }
        _ if kind.starts_with("config_") => kind.trim_start_matches("config_").to_owned(),
        _ => kind.replace('_', " "),
    }
}

/// A field in which two values differ. A side is `None` where the field is absent.
#[derive(Debug)]
pub(super) struct FieldChange {
    pub(super) path: String,
    /// The same as a JSON pointer.
    pub(super) pointer: String,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl Display for FieldChange {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| value.as_ref().map_or_else(|| "absent".into(), Value::to_string);
        write!(to, "{} {} → {}", self.path, text(&self.before), text(&self.after))
    }
}

/// The fields in which two values differ.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare(("", ""), before, after, &mut found);
    found
}

/// The same in a line. If the access key may not see some values, they may differ, too.
fn summary(before: &Value, after: &Value, is_redacted: bool) -> String {
    let mut found = differences(before, after);
    let more = found.len().saturating_sub(FIELDS_MAX);
    found.truncate(FIELDS_MAX);
    let shown = found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (found.is_empty(), more) {
        (true, _) if is_redacted => "rewritten, no visible change (secret values can't be compared)".into(),
        (true, _) => "rewritten, unchanged".into(),
        (false, 0) => shown,
        (false, more) => format!("{shown}, and {more} more"),
    }
}

fn compare((path, pointer): (&str, &str), before: &Value, after: &Value, found: &mut Vec<FieldChange>) {
    if let (Value::Object(before), Value::Object(after)) = (before, after) {
        let added = after.keys().filter(|name| !before.contains_key(*name));
        for name in before.keys().chain(added) {
            let inside = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            match (before.get(name), after.get(name)) {
                (Some(before), Some(after)) => compare((&inside, &pointer), before, after, found),
                (before, after) => {
                    let (before, after) = (before.cloned(), after.cloned());
                    found.push(FieldChange { path: inside, pointer, before, after });
                }
            }
        }
    } else if !document::is_same(before, after) {
        let path = if path.is_empty() { "data" } else { path }.to_owned();
        let (before, after) = (Some(before.clone()), Some(after.clone()));
        found.push(FieldChange { path, pointer: pointer.to_owned(), before, after });
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

    #[test]
    fn a_line_shows_no_secret_and_nothing_without_a_schema() {
        let schema = json!({"properties": {"password": {"x-concord-secret": true}}});
        let mut mask = Mask::default();
        mask.add("s", Some(&schema));
        let told = |mask: Option<&Mask>, mut change: Value| {
            change["config_definition_key"] = "s".into();
            change["config_key"] = "eu".into();
            change["type"] = "config_updated".into();
            hide(mask, "s", &mut change);
            describe(&json!({"revision": 418, "by": "demo", "changes": [change]})).concat()
        };
        let change = |old: &str, new: &str, n: u64| json!({"prev": {"n": 1, "password": old}, "data": {"n": n, "password": new}});
        assert_eq!(
            told(Some(&mask), change("pw-1", "pw-2", 2)),
            "418 s/eu n 1 → 2, password \"(secret)\" → \"(secret, changed)\" (by demo)"
        );
        assert_eq!(told(Some(&mask), change("pw-1", "pw-1", 2)), "418 s/eu n 1 → 2 (by demo)");
        let unknown = told(None, change("pw-1", "pw-2", 2));
        assert!(unknown.contains("updated (the schema") && !unknown.contains('→'), "{unknown}");
        // The key may not see the value: that it is the same is not known.
        let redacted = json!({"prev": {"password": null}, "prev_redacted": ["#/password"],
            "data": {"password": null}, "redacted": ["#/password"]});
        let blind = told(Some(&mask), redacted);
        assert!(blind.contains("no visible change"), "{blind}");
    }
}
