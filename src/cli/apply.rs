//! `apply`, `diff`, `import` and `export`: the cluster as files have it, and the files as the cluster has them.
//!
//! An apply is one batch: all of it or nothing, schemas and unique paths with the configs. Only unique paths whose index
//! begins with the batch are a request of their own, behind it. More than a batch takes is applied in several only if the
//! caller says so (`--split`, `import`); begun again after an interruption it goes on with what is left, because what is
//! there already is no change.
//!
//! **Invariant:** nothing is deleted unless `--prune` is given and confirmed.

use clap::Args;
use concord_client::{Client, Error, Item, Operation, Request};
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current,
    interrupt::{self, Doing},
    manifest::{FileArgs, Manifests, name},
    output::{Format, confirm, counted, note, print_done, say, text},
    plan::{Change, Plan, Step},
    progress::Progress,
};

/// The most operations of a batch.
const OPERATIONS_MAX: usize = 1000;
/// The most bytes of a batch that this client makes; a node takes 8 MiB unless it is set otherwise.
const BATCH_BYTES_MAX: usize = 6 * 1024 * 1024;
/// The changes of one batch of many.
const BATCH_OPERATIONS: usize = 500;
/// What an interruption says of the rest.
const UNDER_WAY: &str = "those under way may be, too; the same command goes on with the rest";
/// A file as the command takes it.
const FILE_EXAMPLE: &str = "A file of a definition and a config of it, in YAML:

  config_definition_key: limits
  indexes: [plan]
  json_schema:
    required: [plan]
    properties: {plan: {enum: [free, pro]}}
  ---
  config_definition_key: limits
  config_key: acme
  data: {plan: pro}";

/// The most records that are named before they are deleted.
const SHOWN_MAX: usize = 100;

#[derive(Debug, Args)]
#[command(after_help = FILE_EXAMPLE)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    #[command(flatten)]
    files: FileArgs,
    /// Check everything in the cluster, show what would be done, and store nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete the configs that no file has, of the definitions that files have
    #[arg(long)]
    prune: bool,
    /// Do not ask before configs are deleted
    #[arg(short, long)]
    yes: bool,
    /// Apply more than a batch takes in several batches, each as a whole
    #[arg(long)]
    split: bool,
}

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    pub(super) node: NodeArgs,
    #[command(flatten)]
    pub(super) tries: TryArgs,
    #[command(flatten)]
    pub(super) files: FileArgs,
    /// Show the configs, too, that `apply --prune` would delete
    #[arg(long)]
    pub(super) prune: bool,
}

/// Runs `apply`.
pub(super) fn apply(args: &ApplyArgs) -> Result<(), Failure> {
    let wanted = Manifests::read(&args.files)?;
    let format = args.node.format.or_table();
    with_cluster(&args.node, &args.tries, async |client| {
        let plan = Plan::new(&client, &wanted, args.prune).await?;
        if args.dry_run {
            try_all(&client, &plan).await?;
            return report(&plan, &format, false);
        }
        let deleted: Vec<String> = plan
            .changes
            .iter()
            .filter(|change| change.after.is_none())
            .map(|change| name(&change.definition, &change.key))
            .collect();
        if !deleted.is_empty() {
            // Who is asked sees what of.
            let tell = |text: String| if args.yes { note(text) } else { say(text) };
            deleted.iter().take(SHOWN_MAX).for_each(|name| tell(format!("to be deleted: {name}")));
            if deleted.len() > SHOWN_MAX {
                tell(format!("and {} more: --dry-run shows them all", deleted.len() - SHOWN_MAX));
            }
            confirm(&format!("{} will be deleted", counted(deleted.len() as u64, "config")), args.yes)?;
        }
        let plan = execute(&client, plan, args.split).await?;
        report(&plan, &format, true)
    })
}

/// Runs `diff`: the exit code is 1 when there is a difference.
pub(super) fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let compare = || {
        let wanted = Manifests::read(&args.files)?;
        with_cluster(&args.node, &args.tries, async |client| {
            let plan = Plan::new(&client, &wanted, args.prune).await?;
            let is_different = !plan.changes.is_empty();
            let format = args.node.format.or_table();
            let shown = if format.is_table() {
                plan.changes.iter().try_for_each(|change| text(&change.diff()))
            } else {
                print_changes(&plan, &format, false)
            };
            shown.map_err(|failure| failure.of_comparison(is_different))?;
            if is_different { Err(Failure::Difference) } else { Ok(()) }
        })
    };
    compare().map_err(|failure| failure.of_comparison(false))
}

fn report(plan: &Plan, format: &Format, is_done: bool) -> Result<(), Failure> {
    let (changed, unchanged) = (plan.changes.len(), plan.unchanged);
    let summary = if is_done {
        format!("{changed} changed, {unchanged} unchanged")
    } else {
        format!("{changed} would be changed, {unchanged} unchanged; nothing was stored")
    };
    if !format.is_table() {
        print_changes(plan, format, is_done)?;
    } else if changed > 0 {
        let lines = plan.changes.iter();
        let lines = lines.map(|one| format!("{} {}\n", name(&one.definition, &one.key), one.verb(is_done)));
        text(&lines.collect::<String>())?;
    }
    note(summary);
    Ok(())
}

/// The changes as records.
fn print_changes(plan: &Plan, format: &Format, is_done: bool) -> Result<(), Failure> {
    let record = |change: &Change| {
        json!({
            "name": name(&change.definition, &change.key), "operation": change.verb(true), "done": is_done,
            "before": change.before, "after": change.after,
        })
    };
    let results: Vec<Value> = plan.changes.iter().map(record).collect();
    let meta = json!({ "changed": results.len(), "unchanged": plan.unchanged });
    print_done(format, &json!({ "results": results, "meta": meta }), "name", "")
}

/// The operations of a plan in batches: one where all fit, or else several of whole changes, in their order.
fn batches(plan: &Plan, operations_max: usize) -> Vec<Vec<&Operation>> {
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

/// Tries each batch without storing anything. What rests on something that is not stored yet can't be tried, and is
/// said.
async fn try_all(client: &Client, plan: &Plan) -> Result<(), Failure> {
    let batches = batches(plan, OPERATIONS_MAX);
    if batches.len() > 1 {
        note(format_args!(
            "this is more than one batch: `apply` needs --split, for {} batches",
            batches.len()
        ));
    }
    // A later batch may rest on a definition that an earlier one creates or changes.
    let defines = plan.changes.iter().any(|change| change.key.is_empty() && !change.operations.is_empty());
    let tried = if defines { 1 } else { batches.len() };
    if tried < batches.len() {
        let text =
            "not tried: all but the first batch, because they rest on definitions that are not stored yet";
        note(text);
    }
    let progress =
        Progress::with_rest(batches.iter().map(Vec::len).sum(), "operations", "nothing was stored");
    for batch in batches.iter().take(tried) {
        let request = Request::batch(batch.iter().copied()).dry_run(true);
        client.send(request).await.map_err(|error| explain(error, batch))?;
        progress.add(batch.len());
    }
    Ok(())
}

/// Carries a plan out.
pub(super) async fn execute(client: &Client, plan: Plan, split: bool) -> Result<Plan, Failure> {
    let whole = batches(&plan, OPERATIONS_MAX).len();
    if whole > 1 && !split {
        return Err(Failure::Usage(format!(
            "{} changes are more than one batch takes ({OPERATIONS_MAX} operations, {BATCH_BYTES_MAX} bytes): \
             give --split to apply them in {whole} batches or more, each as a whole",
            plan.changes.len(),
        )));
    }
    let (plan, operations_max) =
        if whole > 1 { (plan.divided(), BATCH_OPERATIONS) } else { (plan, OPERATIONS_MAX) };
    send_batches(client, &batches(&plan, operations_max)).await?;
    for step in &plan.after {
        interrupt::now(Doing::Writing);
        if let Err(failure) = set_unique(client, step).await {
            failure.report();
            let text = format!("all but the unique paths of definition {} is applied", step.definition);
            return Err(Failure::Partial(text));
        }
    }
    Ok(plan)
}

/// Sets the unique paths of a definition, if nobody else has meanwhile.
async fn set_unique(client: &Client, step: &Step) -> Result<(), Failure> {
    let found = current::definition(client, &step.definition).await?;
    let found = found.filter(|found| found.value.unique == step.before).ok_or_else(|| {
        Failure::Failed(format!("somebody has changed definition {} meanwhile", step.definition))
    })?;
    let operation = Operation::SetUnique {
        definition: step.definition.clone(),
        paths: step.paths.clone(),
        if_match: Some(found.revision.into()),
    };
    client.send(Request::operation(&operation)).await?;
    Ok(())
}

async fn send_batches(client: &Client, batches: &[Vec<&Operation>]) -> Result<(), Failure> {
    let total: usize = batches.iter().map(Vec::len).sum();
    let progress = Progress::with_rest(total, "operations", UNDER_WAY);
    for (place, batch) in batches.iter().enumerate() {
        let sent = client.batch(batch.iter().copied()).await.map_err(|error| explain(error, batch));
        if let Err(failure) = sent {
            drop(progress);
            if place > 0 {
                failure.report();
                let text = format!(
                    "{place} of {} batches are applied; the same command goes on with the rest",
                    batches.len()
                );
                return Err(Failure::Partial(text));
            }
            return Err(failure);
        }
        progress.add(batch.len());
    }
    Ok(())
}

fn explain(error: Error, batch: &[&Operation]) -> Failure {
    let named = |operation: &&Operation| name(operation.definition(), operation.key().unwrap_or_default());
    with_names(error, |place| batch.get(place).map(named))
}

/// A refusal of a batch names its operations by number: say which records those are.
pub(super) fn with_names(error: Error, name_of: impl Fn(usize) -> Option<String>) -> Failure {
    let Error::Refused(mut refusal) = error else { return error.into() };
    for item in &mut refusal.items {
        let place = item.loc.get(1).and_then(Value::as_u64).and_then(|place| usize::try_from(place).ok());
        let is_operation = item.loc.first().is_some_and(|first| first == "operations");
        if let Some(name) = place.filter(|_| is_operation).and_then(&name_of) {
            let rest = Item { loc: item.loc.split_off(2), ..item.clone() };
            *item = Item { msg: format!("{name} {rest}"), loc: Vec::new(), ..item.clone() };
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

    fn change(bytes: usize) -> Change {
        let operations = vec![operation(bytes)];
        let (definition, key) = ("d".to_owned(), "k".to_owned());
        Change { definition, key, before: None, after: None, operations }
    }

    #[test]
    fn a_batch_is_bounded_in_operations_and_in_bytes() {
        let sizes = |changes: Vec<Change>, closing: usize| -> Vec<usize> {
            let plan = Plan { changes, closing: vec![operation(0); closing], ..Plan::default() };
            batches(&plan, 10).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(Vec::new(), 0), [] as [usize; 0]);
        let small = || (0..25).map(|_| change(1)).collect();
        assert_eq!(sizes(small(), 0), [10, 10, 5]);
        assert_eq!(sizes(small(), 6), [10, 10, 10, 1]);
        assert_eq!(sizes((0..5).map(|_| change(BATCH_BYTES_MAX / 2)).collect(), 0), [1, 1, 1, 1, 1]);
    }
}
