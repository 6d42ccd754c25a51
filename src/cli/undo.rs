//! `concord undo`: sets back the configs and definitions that revisions changed, in one batch.
//!
//! A batch, and so an `apply`, is one revision. Its changes come from the node with the previous value of each config. A
//! config is set back if these revisions made its last changes; the others are listed and left. An `apply --split` is
//! several revisions: named together, they are taken back together.
//!
//! The schema and the indexes of a definition are set back as well, as `apply` sets them. Of its other members no earlier
//! value can be read.
//!
//! A value that the access key may not see is set back by a rollback, for which the node reads it.
//!
//! A change request that was applied is the revision at which it was.
//!
//! **Invariants:** each operation is conditional on the revision that it takes back. If another client changes one of the
//! configs meanwhile, the batch fails and nothing is changed. No secret value is shown without `--show-secrets`.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use clap::Args;
use concord_client::{Client, Error, Operation, PutMode, Request};
use concord_model::system::change::ChangeId;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    apply::with_names,
    change::{self, WayArgs},
    changes,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{self, Versioned, config_path, definition_path, keep_redacted, texts},
    document,
    follow::differences,
    interrupt::{self, Doing},
    manifest::{ManifestDefinition, config_json, name},
    mask::Mask,
    output::{Format, Table, cell, confirm, counted, print_done, print_value, say},
    plan::{ApplyPlan, PlannedChange},
    two_environments::{is_in, without},
};

/// Most revisions of one call: more operations than a batch has.
const REVISIONS_MAX: usize = 1000;
/// Maximum number of operations of a batch.
const OPERATIONS_MAX: usize = 1000;
/// Configs that are read at the same time.
const READS_AT_ONCE: usize = 16;
/// Characters of a value in the table.
const SHOWN_MAX: usize = 60;

#[derive(Debug, Args)]
#[command(
    after_help = "Example: concord undo 4711 --dry-run\n\nA batch, an `apply` or a change request is one revision. `concord \
                  changes` lists the latest ones."
)]
pub(super) struct UndoArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    way: WayArgs,
    /// The revision whose changes are taken back, or the id of a change request; several for an `apply --split`
    #[arg(required = true, value_name = "REVISION|CHANGE", num_args = 1..=REVISIONS_MAX)]
    undone: Vec<UndoneChange>,
    /// Show what would be set back, and validate it unless it is proposed, without storing anything
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Show secret values
    #[arg(long)]
    show_secrets: bool,
}

/// What is taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UndoneChange {
    Revision(u64),
    /// The id of a change request.
    Request(String),
}

impl FromStr for UndoneChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(revision) => Ok(Self::Revision(revision)),
            // One id in 10^9 has no letter.
            Err(_) if ChangeId::parse(text).is_some() => Ok(Self::Request(text.to_owned())),
            Err(_) => Err("expected a revision, or the id of a change request".into()),
        }
    }
}

impl UndoneChange {
    /// How messages name it.
    fn shown(&self) -> String {
        match self {
            Self::Revision(revision) => format!("revision {revision}"),
            Self::Request(id) => format!("change request {id}"),
        }
    }

    /// The revision that it made.
    async fn revision(&self, client: &Client) -> Result<u64, Failure> {
        match self {
            Self::Revision(revision) => Ok(*revision),
            Self::Request(id) => {
                let change = change::get(client, id).await?;
                change["applied"]["revision"].as_u64().ok_or_else(|| {
                    let phase = cell(&change["phase"]);
                    Failure::Missing(format!(
                        "change request {id} was not applied, so it changed nothing: it is {phase}"
                    ))
                })
            }
        }
    }
}

/// A config that the revisions changed.
#[derive(Debug, Default)]
struct ChangedConfig {
    /// Its data before the first of them; `None` if it did not exist.
    before: Option<Value>,
    /// Whether there were data that the node did not send.
    is_unknown: bool,
    /// Whether the access key may not see a part of these data.
    is_redacted: bool,
    /// The revisions that changed it, oldest first.
    revisions: Vec<u64>,
    /// Whether the last of them deleted it.
    is_deleted: bool,
}

impl ChangedConfig {
    fn first(&self) -> u64 {
        self.revisions.first().copied().unwrap_or_default()
    }

    fn last(&self) -> u64 {
        self.revisions.last().copied().unwrap_or_default()
    }
}

/// What revisions changed.
#[derive(Debug, Default)]
struct ChangedRecords {
    configs: BTreeMap<(String, String), ChangedConfig>,
    /// The revisions that changed a definition that existed before, oldest first.
    definitions: BTreeMap<String, Vec<u64>>,
}

/// A change that takes one back.
#[derive(Debug)]
struct Reversal {
    definition: String,
    key: String,
    /// What it is now, and what it will be; `None` if it does not exist.
    now: Option<Value>,
    after: Option<Value>,
    operation: Operation,
}

/// Something that is not set back, and why.
#[derive(Debug)]
struct Left {
    name: String,
    why: String,
}

/// What is set back and what is not.
#[derive(Debug, Default)]
struct UndoPlan {
    /// The definitions that are set back.
    definitions: ApplyPlan,
    reversals: Vec<Reversal>,
    left: Vec<Left>,
    mask: Mask,
}

/// Runs the command.
pub(super) fn run(args: &UndoArgs) -> Result<(), Failure> {
    let format = args.node.format.or_table();
    let named: Vec<String> = args.undone.iter().map(UndoneChange::shown).collect();
    let named = named.join(", ");
    let tries = args.way.tries_or(&args.tries, format!("undo of {named}"));
    with_cluster(&args.node, &tries, async |client| {
        let mut revisions = BTreeSet::new();
        for undone in &args.undone {
            revisions.insert(undone.revision(&client).await?);
        }
        let mut plan = UndoPlan::new(&client, &revisions).await?;
        if !args.show_secrets {
            plan.hide_secrets();
        }
        if plan.operations().len() > OPERATIONS_MAX {
            return Err(Failure::Usage(format!(
                "{} would be set back, and a batch has at most {OPERATIONS_MAX} operations: undo fewer revisions at once",
                plan.counted()
            )));
        }
        if format.is_table() && !plan.is_empty() {
            print_value(&format, &Value::Null, &plan.table())?;
        }
        plan.left.iter().for_each(|left| say(format_args!("not undone: {}: {}", left.name, left.why)));
        plan.execute(&client, args, &named, &format).await
    })
}

impl Reversal {
    fn name(&self) -> String {
        name(&self.definition, &self.key)
    }

    fn verb(&self) -> &'static str {
        match (&self.now, &self.after) {
            (None, _) => "created",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "deleted",
        }
    }

    /// The rows of the table: a field each.
    fn rows(&self) -> Vec<[String; 4]> {
        let config = || format!("{}/{}", self.definition, self.key);
        match (&self.now, &self.after) {
            (Some(now), Some(after)) => {
                let rows = rows_of(&config(), now, after);
                if rows.is_empty() {
                    return vec![[config(), "(secret values)".into(), String::new(), String::new()]];
                }
                rows
            }
            (now, after) => vec![[config(), "(config)".into(), shown(now.as_ref()), shown(after.as_ref())]],
        }
    }
}

/// The rows of the fields that differ.
fn rows_of(name: &str, now: &Value, after: &Value) -> Vec<[String; 4]> {
    let row = |change: super::follow::FieldChange| {
        [name.to_owned(), change.path, shown(change.before.as_ref()), shown(change.after.as_ref())]
    };
    differences(now, after).into_iter().map(row).collect()
}

/// A value in the table.
pub(super) fn shown(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "absent".into(), Value::to_string);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl UndoPlan {
    async fn new(client: &Client, revisions: &BTreeSet<u64>) -> Result<Self, Failure> {
        let (mut plan, mut changed) = (Self::default(), ChangedRecords::default());
        // What a revision changed in other environments is listed, too.
        let everywhere = client.in_environment(None)?;
        for revision in revisions {
            let mut changes = changes_of(&everywhere, *revision).await?;
            for change in changes.as_array_mut().into_iter().flatten() {
                if plan.enter(change, client.environment()) {
                    plan.add(*revision, change, &mut changed);
                }
            }
        }
        for (definition, revisions) in &changed.definitions {
            plan.set_back(client, definition, revisions).await?;
        }
        let configs = changed.configs;
        let definitions: BTreeSet<String> =
            configs.keys().map(|(definition, _)| definition.clone()).collect();
        for definition in &definitions {
            let schema = client.send(Request::get(format!("{}/schema", definition_path(definition)))).await;
            match schema {
                Ok(answer) => plan.mask.add(definition, Some(&answer.data()?["json_schema"])),
                // It was deleted since, and so were its configs: none of them is shown.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        // One by one: a definition may have many times as many configs.
        let found = configs.iter().map(async |((definition, key), changed)| {
            let now = current::config(client, definition, key).await?;
            Ok::<_, Failure>((name(definition, key), reversal(client, definition, key, changed, now).await?))
        });
        let mut found = stream::iter(found).buffered(READS_AT_ONCE);
        while let Some((name, reversal)) = found.try_next().await? {
            match reversal {
                Ok(reversal) => plan.reversals.extend(reversal),
                Err(why) => plan.left.push(Left { name, why }),
            }
        }
        drop(found);
        // Deletions come first: a config that is made again may have the unique value of one that goes.
        plan.reversals.sort_by_key(|reversal| reversal.after.is_some());
        let touched = plan.reversals.iter().map(|reversal| reversal.definition.clone()).collect();
        plan.definitions.close_schemas_of(&touched);
        Ok(plan)
    }

    /// Plans to set back a definition that revisions, oldest first, changed.
    async fn set_back(&mut self, client: &Client, key: &str, revisions: &[u64]) -> Result<(), Failure> {
        let (Some(first), Some(last)) = (revisions.first(), revisions.last()) else { return Ok(()) };
        let history = format!("`concord definition history {key}` shows what it was");
        let mut leave = |why: String| self.left.push(Left { name: name(key, ""), why });
        let Some(now) = current::definition(client, key).await? else {
            leave("deleted since".into());
            return Ok(());
        };
        let path = definition_path(key);
        if now.revision != *last || (revisions.len() > 1 && !are_last(client, &path, revisions).await?) {
            let by = changes::by_whom(client, key, None, revisions).await;
            leave(format!("changed since{by}; {history}"));
            return Ok(());
        }
        let Some(mut then) = current::definition_at(client, key, first.saturating_sub(1)).await? else {
            leave(format!("what it was before is not known; {history}"));
            return Ok(());
        };
        let wanted = ManifestDefinition {
            indexes: texts(&then["indexes"]),
            schema: Some(then["json_schema"].take()).filter(|schema| !schema.is_null()),
            unique: now.value.unique.clone(),
            format_assertion: None,
            protected: None,
        };
        let before = self.definitions.changes.len();
        self.definitions.definition(key, &wanted, Some(&now));
        if self.definitions.changes.len() == before {
            let text = "its schema and indexes are what they were; other members are not undone";
            self.left.push(Left { name: name(key, ""), why: format!("{text}: {history}") });
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.reversals.is_empty() && self.definitions.changes.is_empty()
    }

    /// What is set back, in words.
    fn counted(&self) -> String {
        let configs = counted(self.reversals.len() as u64, "config");
        let definitions = self.definitions.changes.len() as u64;
        match (definitions, self.reversals.len()) {
            (0, _) => configs,
            (_, 0) => counted(definitions, "definition"),
            (_, _) => format!("{} and {configs}", counted(definitions, "definition")),
        }
    }

    /// The operations, each with the name of its record: definitions, configs, and the schemas again, which then validate
    /// all configs.
    fn operations(&self) -> Vec<(String, &Operation)> {
        let name_of = |change: &PlannedChange| name(&change.definition, "");
        let definitions = self.definitions.changes.iter();
        let definitions = definitions
            .flat_map(|change| change.operations.iter().map(move |operation| (name_of(change), operation)));
        let configs = self.reversals.iter().map(|reversal| (reversal.name(), &reversal.operation));
        let closing = self.definitions.closing.iter().map(|operation| ("its definition".into(), operation));
        definitions.chain(configs).chain(closing).collect()
    }

    /// Takes the environment of the command off the key of a change. False if it is of another one.
    fn enter(&mut self, change: &mut Value, environment: Option<&str>) -> bool {
        let Some(environment) = environment else { return true };
        let whole = cell(&change["config_definition_key"]);
        if is_in(environment, &whole) {
            change["config_definition_key"] = without(environment, &whole).into();
            return true;
        }
        let name = name(&whole, &cell(&change["config_key"]));
        self.left.push(Left { name, why: format!("it is not of environment {environment}") });
        false
    }

    /// Adds a change of a revision.
    fn add(&mut self, revision: u64, change: &Value, changed: &mut ChangedRecords) {
        let definition = cell(&change["config_definition_key"]);
        let key = cell(&change["config_key"]);
        if key.is_empty() && change["type"] == "definition_updated" {
            changed.definitions.entry(definition).or_default().push(revision);
            return;
        }
        if key.is_empty() {
            let why = match change["type"].as_str() {
                // Only the event of an undone deletion has the number of the configs that returned.
                Some("definition_created") if !change["count"].is_null() => {
                    "its deletion was undone; `concord definition delete` deletes it again"
                }
                Some("definition_created") => "it was created; `concord definition delete` deletes it",
                Some("definition_deleted") => "it was deleted; `concord definition undelete` makes it again",
                _ => "such a change is not undone; `concord definition history` shows what it was",
            };
            self.left.push(Left { name: name(&definition, ""), why: why.into() });
            return;
        }
        let config = changed.configs.entry((definition, key)).or_default();
        if config.revisions.is_empty() {
            let mut before = Some(change["prev"].clone()).filter(|before| !before.is_null());
            config.is_unknown = before.is_none() && change["type"] != "config_created";
            let places = texts(&change["prev_redacted"]);
            config.is_redacted = !places.is_empty();
            if let Some(before) = &mut before {
                // If it names fewer places than there are, the others stay null: these data are only shown.
                let _ = keep_redacted(before, places.iter().map(String::as_str));
            }
            config.before = before;
        }
        config.revisions.push(revision);
        config.is_deleted = change["type"] == "config_deleted";
    }

    fn hide_secrets(&mut self) {
        for reversal in &mut self.reversals {
            self.mask.hide(&reversal.definition, reversal.now.as_mut(), reversal.after.as_mut());
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new("name", &["CONFIG", "FIELD", "NOW", "AFTER UNDO"], &[]);
        for change in &self.definitions.changes {
            let (Some(now), Some(after)) = (&change.before, &change.after) else { continue };
            let name = name(&change.definition, "");
            rows_of(&name, now, after).iter().for_each(|row| table.row(row));
        }
        self.reversals.iter().flat_map(Reversal::rows).for_each(|row| table.row(&row));
        table
    }

    /// Makes the changes, proposes them, or tries them.
    async fn execute(
        &self,
        client: &Client,
        args: &UndoArgs,
        named: &str,
        format: &Format,
    ) -> Result<(), Failure> {
        let all = self.operations();
        let operations = || all.iter().map(|(_, operation)| *operation);
        let mut revision = None;
        if !self.is_empty() && args.way.title().is_some() {
            if !args.dry_run {
                args.way
                    .describing(format!("Undo of {named}: a note of the sender, which nobody checks."))
                    .propose(client, change::operations(operations())?, false, format)
                    .await?;
                return self.rest(false);
            }
        } else if !self.is_empty() {
            if !args.dry_run {
                let count = self.counted();
                confirm(&format!("{count} will be set back to what was before {named}"), args.yes)?;
                interrupt::now(Doing::Writing);
            }
            let sent = client.send(args.way.on(Request::batch(operations())).dry_run(args.dry_run)).await;
            let names = |place: usize| all.get(place).map(|(name, _)| name.clone());
            revision =
                sent.and_then(|answer| answer.applied()).map_err(|error| with_names(error, names))?.revision;
        }
        self.report(format, args.dry_run, revision)
    }

    /// Prints what was done. The failure says that a part was not.
    fn report(&self, format: &Format, is_dry_run: bool, revision: Option<u64>) -> Result<(), Failure> {
        let (back, left) = (self.back(), self.left.len());
        let count = self.counted();
        let text = match (back, revision) {
            (0, _) => "nothing to undo".to_owned(),
            (_, Some(revision)) => format!("{count} set back  revision {revision}"),
            (_, None) if is_dry_run => format!("{count} would be set back; nothing was stored"),
            (_, None) => format!("{count} set back"),
        };
        let record = |one: &Reversal| {
            let whole =
                |data: &Option<Value>| data.as_ref().map(|data| config_json(&one.definition, &one.key, data));
            json!({
                "name": one.name(), "operation": one.verb(), "done": !is_dry_run,
                "before": whole(&one.now), "after": whole(&one.after),
            })
        };
        let definition = |change: &PlannedChange| {
            json!({
                "name": name(&change.definition, ""), "operation": "changed", "done": !is_dry_run,
                "before": change.before, "after": change.after,
            })
        };
        let definitions = self.definitions.changes.iter().map(definition);
        let results: Vec<Value> = definitions.chain(self.reversals.iter().map(record)).collect();
        let not_undone: Vec<Value> =
            self.left.iter().map(|left| json!({ "name": left.name, "reason": left.why })).collect();
        let meta = json!({ "changed": back, "left": left, "revision": revision });
        let data = json!({ "results": results, "left": not_undone, "meta": meta });
        print_done(format, &data, "name", text)?;
        self.rest(is_dry_run)
    }

    /// How many records are set back.
    fn back(&self) -> u64 {
        (self.reversals.len() + self.definitions.changes.len()) as u64
    }

    /// The failure that says that a part was not undone.
    fn rest(&self, is_dry_run: bool) -> Result<(), Failure> {
        let (back, left) = (self.back(), self.left.len() as u64);
        if left == 0 {
            return Ok(());
        }
        let verb = if is_dry_run { "would not be" } else { "not" };
        Err(Failure::Partial(format!("{left} of {} {verb} undone", back + left)))
    }
}

/// The changes of a revision, with the previous values of configs.
async fn changes_of(client: &Client, revision: u64) -> Result<Value, Failure> {
    let Some(mut event) = changes::at_revision(client, revision).await? else {
        return Err(Failure::Missing(format!(
            "revision {revision} is compacted: its changes are no longer known"
        )));
    };
    if event["changes"].as_array().is_none_or(Vec::is_empty) {
        let text =
            format!("revision {revision} changed no definition or config that the access key may read");
        return Err(Failure::Missing(text));
    }
    Ok(event["changes"].take())
}

/// The change that takes back what was changed; `None` if the config is what it was, and why there is none.
async fn reversal(
    client: &Client,
    definition: &str,
    key: &str,
    changed: &ChangedConfig,
    now: Option<Versioned<Value>>,
) -> Result<Result<Option<Reversal>, String>, Failure> {
    let last = changed.last();
    if changed.is_unknown {
        return Ok(Err("what it was before is not known".into()));
    }
    match &now {
        Some(_) if changed.is_deleted => {
            return Ok(Err(since(client, (definition, key), "created again since", changed).await));
        }
        Some(now) if now.revision != last => {
            return Ok(Err(since(client, (definition, key), "changed since", changed).await));
        }
        None if !changed.is_deleted => {
            return Ok(Err(since(client, (definition, key), "deleted since", changed).await));
        }
        Some(_) | None => {}
    }
    // The revision of a config that exists says it already.
    if (changed.is_deleted || changed.revisions.len() > 1)
        && !are_last(client, &config_path(definition, key), &changed.revisions).await?
    {
        let text = "changed by other revisions as well, the last time";
        return Ok(Err(since(client, (definition, key), text, changed).await));
    }
    let (of, its_key) = (definition.to_owned(), key.to_owned());
    let operation = match (&changed.before, &now) {
        (None, None) => return Ok(Ok(None)),
        (None, Some(_)) => {
            Operation::DeleteConfig { definition: of, key: its_key, if_match: Some(last.into()) }
        }
        (Some(before), Some(now)) if !changed.is_redacted => {
            if document::is_same(before, &now.value) {
                return Ok(Ok(None));
            }
            let mode = PutMode::ReplaceIf(last);
            Operation::PutConfig { definition: of, key: its_key, data: before.clone(), mode }
        }
        (Some(before), None) if !changed.is_redacted => {
            Operation::PutConfig { definition: of, key: its_key, data: before.clone(), mode: PutMode::Create }
        }
        (Some(_), Some(_)) => {
            // The access key sees no revision of the value, but a rollback to the one before.
            let revision = changed.first().saturating_sub(1);
            if !is_retained(client, definition, key, revision).await? {
                return Ok(Err("its secret values before are compacted".into()));
            }
            Operation::RollbackConfig { definition: of, key: its_key, revision, if_match: Some(last.into()) }
        }
        (Some(_), None) => {
            return Ok(
                Err("it has secret values that the access key may not see (it lacks `reveal`)".into()),
            );
        }
    };
    let (definition, key) = (definition.to_owned(), key.to_owned());
    let after = changed.before.clone();
    Ok(Ok(Some(Reversal { definition, key, now: now.map(|now| now.value), after, operation })))
}

/// Says by whom a config was changed since, and what sets it back all the same.
async fn since(
    client: &Client,
    (definition, key): (&str, &str),
    what: &str,
    changed: &ChangedConfig,
) -> String {
    let by = changes::by_whom(client, definition, Some(key), &changed.revisions).await;
    let next = match &changed.before {
        Some(_) => {
            format!("concord config rollback {definition} {key} --to {}", changed.first().saturating_sub(1))
        }
        None => format!("concord config delete {definition} {key}"),
    };
    format!("{what}{by}; to set it back all the same: {next}")
}

/// Whether these revisions, oldest first, made the last changes of the record with this path.
async fn are_last(client: &Client, path: &str, revisions: &[u64]) -> Result<bool, Failure> {
    let answer =
        match client.send(Request::get(format!("{path}/history")).query("limit", revisions.len())).await {
            // The definition was deleted since.
            Err(error) if error.is_not_found() => return Ok(false),
            answer => answer?,
        };
    let data = answer.data()?;
    let found = data["results"].as_array().into_iter().flatten().map(|one| one["revision"].as_u64());
    Ok(found.eq(revisions.iter().rev().map(|revision| Some(*revision))))
}

/// Whether a config can still be read at a revision.
async fn is_retained(client: &Client, definition: &str, key: &str, revision: u64) -> Result<bool, Failure> {
    match client.send(Request::get(config_path(definition, key)).query("revision", revision)).await {
        Ok(_) => Ok(true),
        Err(Error::Refused(refusal))
            if matches!(refusal.status, StatusCode::GONE | StatusCode::NOT_FOUND) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(change: &[Value]) -> (UndoPlan, BTreeMap<(String, String), ChangedConfig>) {
        let (mut plan, mut changed) = (UndoPlan::default(), ChangedRecords::default());
        for (revision, change) in (7..).zip(change) {
            let mut change = change.clone();
            change["config_definition_key"] = "d".into();
            plan.add(revision, &change, &mut changed);
        }
        (plan, changed.configs)
    }

    #[test]
    fn several_changes_of_a_config_are_taken_back_to_what_was_before_the_first() {
        let update = json!({"type": "config_updated", "config_key": "k", "prev": {"n": 1}, "data": {"n": 2}});
        let deletion = json!({"type": "config_deleted", "config_key": "k", "prev": {"n": 2}});
        let (plan, configs) = changed(&[update, deletion, json!({"type": "definition_deleted"})]);
        let config = &configs[&("d".into(), "k".into())];
        assert_eq!((&config.before, config.revisions.as_slice()), (&Some(json!({"n": 1})), &[7, 8][..]));
        assert!(config.is_deleted && !config.is_redacted && !config.is_unknown);
        assert!(plan.left.len() == 1 && plan.left[0].why.contains("undelete"), "{plan:?}");
    }

    #[test]
    fn a_config_whose_previous_value_is_not_there_is_not_taken_for_a_new_one() {
        let change = |kind: &str| json!({"type": kind, "config_key": "k", "data": {}});
        let is_unknown = |kind: &str| changed(&[change(kind)]).1[&("d".into(), "k".into())].is_unknown;
        assert!(
            is_unknown("config_updated") && is_unknown("config_deleted") && !is_unknown("config_created")
        );
    }

    #[test]
    fn a_change_of_another_environment_is_listed() {
        let mut plan = UndoPlan::default();
        let mut enter = |key: &str, environment: Option<&str>| {
            let mut change = json!({"config_definition_key": key, "config_key": "k"});
            let is_entered = plan.enter(&mut change, environment);
            (is_entered, cell(&change["config_definition_key"]))
        };
        assert_eq!(enter("prod.d", None), (true, "prod.d".to_owned()));
        assert_eq!(enter("prod.d", Some("prod")), (true, "d".to_owned()));
        assert_eq!(enter("product.d", Some("prod")), (false, "product.d".to_owned()));
        assert_eq!((plan.left.len(), plan.left[0].name.as_str()), (1, "config product.d/k"));
    }

    #[test]
    fn an_undone_deletion_is_not_taken_for_a_new_definition() {
        let created = json!({"type": "definition_created"});
        let (plan, _) = changed(std::slice::from_ref(&created));
        assert!(plan.left[0].why.contains("it was created"), "{plan:?}");
        let mut undeleted = created;
        undeleted["count"] = 0.into();
        let (plan, _) = changed(&[undeleted]);
        assert!(plan.left[0].why.contains("its deletion was undone"), "{plan:?}");
    }

    #[test]
    fn a_revision_and_a_change_request_are_told_apart() {
        let parse = |text: &str| text.parse::<UndoneChange>();
        assert_eq!(parse("4711"), Ok(UndoneChange::Revision(4711)));
        assert_eq!(parse("7hQx2mVb9KsT"), Ok(UndoneChange::Request("7hQx2mVb9KsT".into())));
        for wrong in ["", "-1", "a/b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_field_and_one_for_a_whole_config() {
        let operation =
            || Operation::DeleteConfig { definition: "d".into(), key: "k".into(), if_match: None };
        let rows = |now: Option<Value>, after: Option<Value>| {
            let (definition, key) = ("d".to_owned(), "k".to_owned());
            Reversal { definition, key, now, after, operation: operation() }.rows()
        };
        let texts = |row: [&str; 4]| row.map(str::to_owned);
        assert_eq!(
            rows(Some(json!({"a": 1, "b": {"c": "x"}})), Some(json!({"b": {"c": "y"}, "a": 1, "d": 2}))),
            [texts(["d/k", "b.c", "\"x\"", "\"y\""]), texts(["d/k", "d", "absent", "2"])]
        );
        assert_eq!(rows(Some(json!({})), None), [texts(["d/k", "(config)", "{}", "absent"])]);
        let long = rows(None, Some(json!("é".repeat(SHOWN_MAX))));
        assert!(long[0][3].ends_with('…') && long[0][3].chars().count() == SHOWN_MAX + 1);
    }
}
