//! `apply` and `diff`: brings the cluster to the state of files.
//!
//! An apply is one atomic batch of schemas, unique fields and configs. Only unique fields that need a new index are set by
//! a second request. Changes that exceed one batch are applied in several only with `--split` or by `import`. After an
//! interruption the same command continues, because changes that are already applied are no longer changes.
//!
//! **Invariants:** nothing is deleted unless `--prune` is given and confirmed, and no more than was said. No secret value is
//! shown without `--show-secrets`.

use std::path::PathBuf;

use clap::Args;
use concord_client::{Client, Error, Item, Operation, Request};
use serde_json::{Value, json};

use super::{
    change::{WayArgs, operations},
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current,
    interrupt::{self, Doing},
    manifest::{FileArgs, Manifests, name},
    markdown::{self, ShownChange},
    output::{Format, confirm, counted, is_quiet, note, print_done, say, text},
    plan::{ApplyPlan, PlannedChange, UniqueFieldsStep},
    plan_file::SavedPlan,
    progress::Progress,
    schedule::TimeArgs,
    secret_source::{IfAbsent, SecretArgs},
};

/// Maximum number of operations of a batch.
const OPERATIONS_MAX: usize = 1000;
/// Maximum size of a batch, in bytes; a node accepts 8 MiB by default.
const BATCH_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Number of operations of a change request.
const PROPOSED_MAX: usize = 1000;
/// Number of operations of each batch if there are several.
const BATCH_OPERATIONS: usize = 500;
/// The message for an interruption: the state of the other batches.
const UNDER_WAY: &str = "those in flight may be, too; run the same command again to apply the rest";
/// An example of a file.
const FILE_EXAMPLE: &str = "Example: a YAML file with a definition and one of its configs:

  config_definition_key: limits
  indexes: [plan]
  json_schema:
    required: [plan]
    properties: {plan: {enum: [free, pro]}}
  ---
  config_definition_key: limits
  config_key: acme
  data: {plan: pro}";

/// How many configs `--prune` deletes if nothing else is said.
const DELETES_MAX: usize = 20;
/// Maximum number of records to list before a deletion.
const SHOWN_MAX: usize = 100;

/// What `--prune` may delete.
#[derive(Debug, Clone, Args)]
pub(super) struct PruneBounds {
    /// With --prune: fail if more configs, or files of configs, would be deleted
    #[arg(long, default_value_t = DELETES_MAX, value_name = "N")]
    pub(super) max_deletes: usize,
    /// With --prune: may delete all configs, or files of configs, of a definition
    #[arg(long)]
    pub(super) allow_empty: bool,
}

#[derive(Debug, Args)]
#[command(after_help = FILE_EXAMPLE)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    way: WayArgs,
    #[command(flatten)]
    when: TimeArgs,
    /// Validate all changes on the cluster and show them, without storing anything
    #[arg(long)]
    dry_run: bool,
    /// Delete configs that are missing from the files (only in definitions the files contain)
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    bounds: PruneBounds,
    /// Delete configs without asking for confirmation
    #[arg(short, long)]
    yes: bool,
    /// With -o: show secret values
    #[arg(long)]
    show_secrets: bool,
    /// If the changes exceed one batch, apply them in several, each atomic
    #[arg(long)]
    split: bool,
    /// Do what `diff --save` has written to this file, or fail with exit code 4 if the files or the cluster have changed
    /// since; whether configs are deleted is in the plan
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prune", "split"])]
    plan: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    pub(super) node: NodeArgs,
    #[command(flatten)]
    pub(super) tries: TryArgs,
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    pub(super) secrets: SecretArgs,
    /// Also show the configs that `apply --prune` would delete
    #[arg(long)]
    pub(super) prune: bool,
    /// Show secret values
    #[arg(long)]
    pub(super) show_secrets: bool,
    /// Write the plan of these changes to a file, for `apply --plan`
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
}

impl PruneBounds {
    /// Refuses to delete more than was said: a directory that was left out or not checked out looks like configs that
    /// were removed.
    pub(super) fn check(&self, plan: &ApplyPlan) -> Result<(), Failure> {
        let deletions = plan.changes.iter().filter(|change| change.after.is_none()).count();
        if deletions > self.max_deletes {
            return Err(Failure::Usage(format!(
                "{} would be deleted, and --max-deletes is {}: are all files there? If so, pass --max-deletes {deletions}",
                counted(deletions as u64, "config"),
                self.max_deletes
            )));
        }
        if !plan.emptied.is_empty() && !self.allow_empty {
            return Err(Failure::Usage(format!(
                "all configs of {} would be deleted: are all files there? If so, pass --allow-empty",
                plan.emptied.join(", ")
            )));
        }
        Ok(())
    }
}

/// Runs `apply`.
pub(super) fn apply(args: &ApplyArgs) -> Result<(), Failure> {
    let saved = args.plan.as_deref().map(SavedPlan::read).transpose()?;
    let wanted = Manifests::read(&args.files)?;
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let prune = saved.as_ref().map_or(args.prune, |saved| saved.prune);
        let mut plan = ApplyPlan::new(&client, &wanted, prune, (&args.secrets, IfAbsent::Fail)).await?;
        if let Some(saved) = &saved {
            saved.check(&SavedPlan::of(&client, &wanted, &plan, prune).await?)?;
        }
        if !args.show_secrets {
            plan.hide_secrets();
        }
        if args.way.at(&args.when).is_proposal() {
            args.bounds.check(&plan)?;
            if plan.changes.is_empty() {
                return report(&plan, &format, None);
            }
            let batch = one_change_request(&plan)?;
            return args.way.at(&args.when).propose(&client, batch, args.dry_run, &format).await.map(drop);
        }
        if args.dry_run {
            try_all(&client, &plan, &args.way).await?;
            report(&plan, &format, None)?;
            return args.bounds.check(&plan);
        }
        args.bounds.check(&plan)?;
        confirm_deletions(&plan, args.yes)?;
        let (plan, revisions) = execute(&client, plan, args.split, &args.way).await?;
        report(&plan, &format, Some(&revisions))
    })
}

/// Runs `diff`: the exit code is 1 when there is a difference.
pub(super) fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let compare = || {
        let wanted = Manifests::read(&args.files)?;
        with_cluster(&args.node, &args.tries, async |client| {
            // A pipeline that only compares need not have the secrets. A plan says what will be done.
            let if_absent = if args.save.is_some() { IfAbsent::Fail } else { IfAbsent::Keep };
            let mut plan = ApplyPlan::new(&client, &wanted, args.prune, (&args.secrets, if_absent)).await?;
            if !args.show_secrets {
                plan.hide_secrets();
            }
            let is_different = !plan.changes.is_empty();
            if let Some(path) = &args.save {
                SavedPlan::of(&client, &wanted, &plan, args.prune).await?.write(path)?;
            }
            let format = args.node.format.or_table();
            let shown = if format == Format::Markdown {
                text(&markdown_of(&plan))
            } else if format.is_table() {
                plan.changes.iter().try_for_each(|change| text(&change.diff("cluster", "file")))
            } else {
                print_changes(&plan, &format, None)
            };
            shown.map_err(|failure| failure.of_comparison(is_different))?;
            if is_different { Err(Failure::Difference) } else { Ok(()) }
        })
    };
    compare().map_err(|failure| failure.of_comparison(false))
}

/// Asks before configs are deleted.
pub(super) fn confirm_deletions(plan: &ApplyPlan, is_confirmed: bool) -> Result<(), Failure> {
    let deleted = plan.changes.iter().filter(|change| change.after.is_none());
    let deleted: Vec<String> = deleted.map(|change| name(&change.definition, &change.key)).collect();
    if deleted.is_empty() {
        return Ok(());
    }
    // The confirmation prompt follows the list, so --quiet does not hide it.
    let tell = |text: String| if is_confirmed { note(text) } else { say(text) };
    deleted.iter().take(SHOWN_MAX).for_each(|name| tell(format!("will be deleted: {name}")));
    if deleted.len() > SHOWN_MAX {
        tell(format!("and {} more; --dry-run lists them all", deleted.len() - SHOWN_MAX));
    }
    confirm(&format!("{} will be deleted", counted(deleted.len() as u64, "config")), is_confirmed)
}

/// Reports what was done, with its revisions: `concord undo` takes them back. `None` if nothing was done.
fn report(plan: &ApplyPlan, format: &Format, revisions: Option<&[u64]>) -> Result<(), Failure> {
    let (changed, unchanged, is_done) = (plan.changes.len(), plan.unchanged, revisions.is_some());
    let summary = match revisions {
        Some([]) => format!("{changed} changed, {unchanged} unchanged"),
        Some([one]) => format!("{changed} changed, {unchanged} unchanged; revision {one}"),
        Some(all) => {
            let all = all.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            format!("{changed} changed, {unchanged} unchanged; revisions {all}")
        }
        None => format!("{changed} would be changed, {unchanged} unchanged; nothing was stored"),
    };
    if !format.is_table() {
        print_changes(plan, format, revisions)?;
    } else if changed > 0 && !is_quiet() {
        let lines = plan.changes.iter();
        let lines = lines.map(|one| format!("{} {}\n", name(&one.definition, &one.key), one.verb(is_done)));
        text(&lines.collect::<String>())?;
    }
    note(summary);
    Ok(())
}

/// The changes for a comment of a pull request.
fn markdown_of(plan: &ApplyPlan) -> String {
    let shown = |change: &PlannedChange| ShownChange {
        name: name(&change.definition, &change.key),
        verb: change.verb(false),
        diff: change.diff("cluster", "file"),
    };
    let head = format!("{}, {} unchanged", counted(plan.changes.len() as u64, "change"), plan.unchanged);
    markdown::changes(&head, &plan.changes.iter().map(shown).collect::<Vec<_>>())
}

/// Prints the changes as records.
fn print_changes(plan: &ApplyPlan, format: &Format, revisions: Option<&[u64]>) -> Result<(), Failure> {
    print_done(format, &changes_json(plan, revisions), "name", "")
}

/// The changes as records.
pub(super) fn changes_json(plan: &ApplyPlan, revisions: Option<&[u64]>) -> Value {
    let is_done = revisions.is_some();
    let record = |change: &PlannedChange| {
        json!({
            "name": name(&change.definition, &change.key), "operation": change.verb(true), "done": is_done,
            "before": change.before, "after": change.after,
        })
    };
    let results: Vec<Value> = plan.changes.iter().map(record).collect();
    let mut meta = json!({ "changed": results.len(), "unchanged": plan.unchanged });
    if let Some(revisions) = revisions {
        meta["revisions"] = json!(revisions);
    }
    json!({ "results": results, "meta": meta })
}

/// The operations of a plan in batches, in their order: one if all fit, otherwise several of whole changes.
fn batches(plan: &ApplyPlan, operations_max: usize) -> Vec<Vec<&Operation>> {
    let mut batches: Vec<Vec<&Operation>> = Vec::new();
    let mut bytes = 0;
    let changes = plan.changes.iter().map(|change| &change.operations[..]);
    let closing = plan.closing.iter().map(std::slice::from_ref);
    for operations in changes.chain(closing).filter(|operations| !operations.is_empty()) {
        let size: usize = operations.iter().map(|operation| operation.to_string().len() + 1).sum();
        let is_full = batches.last().is_none_or(|batch| {
            batch.len() + operations.len() > operations_max || bytes + size > BATCH_BYTES_MAX
        });
        if is_full {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(batch) = batches.last_mut() {
            batch.extend(operations);
        }
    }
    batches
}

/// Whether the operations of a plan fit one batch.
pub(super) fn is_one_batch(plan: &ApplyPlan) -> bool {
    batches(plan, OPERATIONS_MAX).len() <= 1
}

/// Validates the batches without storing anything. Batches that depend on an earlier one can't be validated; a message
/// says so.
pub(super) async fn try_all(client: &Client, plan: &ApplyPlan, way: &WayArgs) -> Result<(), Failure> {
    let batches = batches(plan, OPERATIONS_MAX);
    if batches.len() > 1 {
        note(format_args!(
            "the changes exceed one batch: `apply` needs --split, for {} batches",
            batches.len()
        ));
    }
    // A later batch may depend on a definition that an earlier one creates or changes.
    let defines = plan.changes.iter().any(|change| change.key.is_empty() && !change.operations.is_empty());
    let tried = if defines { 1 } else { batches.len() };
    if tried < batches.len() {
        let text =
            "only the first batch was validated: the others depend on definitions that are not stored yet";
        note(text);
    }
    let progress =
        Progress::with_rest(batches.iter().map(Vec::len).sum(), "operations", "nothing was stored");
    for batch in batches.iter().take(tried) {
        let request = Request::batch(batch.iter().copied()).dry_run(true);
        client.send(way.on(request)).await.map_err(|error| explain(error, batch))?;
        progress.add(batch.len());
    }
    Ok(())
}

/// The operations of a plan, for one change request.
///
/// # Errors
/// When they are too many, or take two steps.
pub(super) fn one_change_request(plan: &ApplyPlan) -> Result<Vec<Value>, Failure> {
    let mut batches = batches(plan, PROPOSED_MAX);
    if batches.len() > 1 {
        let text = format!(
            "the changes exceed one change request ({PROPOSED_MAX} operations): propose fewer records at a time"
        );
        return Err(Failure::Usage(text));
    }
    if !plan.after.is_empty() {
        let text = "unique fields that need a new index take two steps: propose the index first, and the rest when it is built";
        return Err(Failure::Usage(text.into()));
    }
    operations(batches.pop().unwrap_or_default())
}

/// Applies a plan. Returns it with the revisions of its batches.
pub(super) async fn execute(
    client: &Client,
    plan: ApplyPlan,
    split: bool,
    way: &WayArgs,
) -> Result<(ApplyPlan, Vec<u64>), Failure> {
    let whole = batches(&plan, OPERATIONS_MAX).len();
    if whole > 1 && !split {
        return Err(Failure::Usage(format!(
            "{} changes exceed one batch ({OPERATIONS_MAX} operations, {BATCH_BYTES_MAX} bytes): \
             pass --split to apply them in {whole} or more batches, each atomic",
            plan.changes.len(),
        )));
    }
    let (plan, operations_max) =
        if whole > 1 { (plan.divided(), BATCH_OPERATIONS) } else { (plan, OPERATIONS_MAX) };
    let revisions = send_batches(client, &batches(&plan, operations_max), way).await?;
    for step in &plan.after {
        interrupt::now(Doing::Writing);
        if let Err(failure) = set_unique(client, step, way).await {
            failure.report();
            let text =
                format!("everything is applied except the unique fields of definition {}", step.definition);
            return Err(Failure::Partial(text));
        }
    }
    Ok((plan, revisions))
}

/// Sets the unique fields of a definition, unless another client has changed them.
async fn set_unique(client: &Client, step: &UniqueFieldsStep, way: &WayArgs) -> Result<(), Failure> {
    let found = current::definition(client, &step.definition).await?;
    let found = found.filter(|found| found.value.unique == step.before).ok_or_else(|| {
        Failure::Failed(format!(
            "definition {} was changed by another client in the meantime",
            step.definition
        ))
    })?;
    let operation = Operation::SetUnique {
        definition: step.definition.clone(),
        paths: step.paths.clone(),
        if_match: Some(found.revision.into()),
    };
    client.send(way.on(Request::operation(&operation))).await?;
    Ok(())
}

/// Sends batches, and returns their revisions.
async fn send_batches(
    client: &Client,
    batches: &[Vec<&Operation>],
    way: &WayArgs,
) -> Result<Vec<u64>, Failure> {
    let mut revisions = Vec::with_capacity(batches.len());
    let total: usize = batches.iter().map(Vec::len).sum();
    let progress = Progress::with_rest(total, "operations", UNDER_WAY);
    for (place, batch) in batches.iter().enumerate() {
        let sent = client.send(way.on(Request::batch(batch.iter().copied()))).await;
        match sent.and_then(|answer| answer.applied()).map_err(|error| explain(error, batch)) {
            Ok(applied) => revisions.extend(applied.revision),
            Err(failure) if place > 0 => {
                drop(progress);
                failure.report();
                let text = format!(
                    "{place} of {} batches are applied; run the same command again to apply the rest",
                    batches.len()
                );
                return Err(Failure::Partial(text));
            }
            Err(failure) => return Err(failure),
        }
        progress.add(batch.len());
    }
    Ok(revisions)
}

fn explain(error: Error, batch: &[&Operation]) -> Failure {
    let named = |operation: &&Operation| name(operation.definition(), operation.key().unwrap_or_default());
    with_names(error, |place| batch.get(place).map(named))
}

/// The errors of a rejected batch name operations by number: adds the names of their records.
pub(super) fn with_names(error: Error, name_of: impl Fn(usize) -> Option<String>) -> Failure {
    let Error::Refused(mut refusal) = error else { return error.into() };
    for item in &mut refusal.items {
        let place = item.loc.get(1).and_then(Value::as_u64).and_then(|place| usize::try_from(place).ok());
        let is_operation = item.loc.first().is_some_and(|first| first == "operations");
        if let Some(name) = place.filter(|_| is_operation).and_then(&name_of) {
            let rest = Item { loc: item.loc.split_off(2), ..item.clone() };
            let between = if rest.loc.is_empty() { ": " } else { " " };
            *item = Item { msg: format!("{name}{between}{rest}"), loc: Vec::new(), ..item.clone() };
        }
    }
    Error::Refused(refusal).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn operation(bytes: usize) -> Operation {
        let (definition, key) = ("d".to_owned(), "k".to_owned());
        Operation::CreateConfig { definition, key, data: json!("x".repeat(bytes)) }
    }

    fn change(bytes: usize) -> PlannedChange {
        let operations = vec![operation(bytes)];
        let (definition, key) = ("d".to_owned(), "k".to_owned());
        PlannedChange { definition, key, before: None, after: None, revision: None, operations }
    }

    #[test]
    fn a_batch_is_bounded_in_operations_and_in_bytes() {
        let sizes = |changes: Vec<PlannedChange>, closing: usize| -> Vec<usize> {
            let plan = ApplyPlan { changes, closing: vec![operation(0); closing], ..ApplyPlan::default() };
            batches(&plan, 10).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(Vec::new(), 0), [] as [usize; 0]);
        let small = || (0..25).map(|_| change(1)).collect();
        assert_eq!(sizes(small(), 0), [10, 10, 5]);
        assert_eq!(sizes(small(), 6), [10, 10, 10, 1]);
        assert_eq!(sizes((0..5).map(|_| change(BATCH_BYTES_MAX / 2)).collect(), 0), [1, 1, 1, 1, 1]);
    }
}
