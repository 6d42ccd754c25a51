//! `concord definition reindex`: changes the indexed paths, and waits for the indexes.
//!
//! The API responds to a change of the paths immediately, and the cluster indexes many configs in the background. This
//! command waits for that. An index that is ready never needs a rebuild: every change of a config updates it.
//!
//! **Invariant:** the paths are changed only if nobody has changed the definition since they were read.

use std::time::Duration;

use clap::Args;
use concord_client::{Client, IfMatch, Operation, Request};
use serde_json::Value;

use super::{
    change::{WayArgs, operations},
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{definition_path, texts},
    interrupt::{self, Doing},
    output::{Columns, note, print_columns},
    progress::Progress,
    schedule::TimeArgs,
};

/// How often the progress is polled.
const PAUSE: Duration = Duration::from_millis(300);
const COLUMNS: Columns = Columns {
    name: "path",
    narrow: &[("PATH", "/path"), ("STATE", "/state"), ("INDEXED", "/done"), ("CONFIGS", "/of")],
    wide: &[],
};

#[derive(Debug, Args)]
pub(super) struct ReindexArgs {
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
    /// Replace the indexed paths with this one; repeatable. Without --index, --add and --remove nothing is changed: the
    /// command waits for the indexes that are being built
    #[arg(long = "index", value_name = "PATH", conflicts_with_all = ["added", "removed"])]
    indexes: Vec<String>,
    /// Add an indexed path; repeatable
    #[arg(long = "add", value_name = "PATH")]
    added: Vec<String>,
    /// Remove an indexed path; repeatable
    #[arg(long = "remove", value_name = "PATH")]
    removed: Vec<String>,
    /// Fail unless the definition has this revision
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Validate and show the result, without storing anything
    #[arg(long)]
    dry_run: bool,
    /// Do not wait until the indexes are built
    #[arg(long)]
    no_wait: bool,
}

impl ReindexArgs {
    /// The new paths; `None` if they do not change.
    fn wanted(&self, now: &[String]) -> Result<Option<Vec<String>>, Failure> {
        if !self.indexes.is_empty() {
            return Ok(Some(self.indexes.clone()));
        }
        if self.added.is_empty() && self.removed.is_empty() {
            return Ok(None);
        }
        if let Some(absent) = self.removed.iter().find(|path| !now.contains(path)) {
            let text =
                format!("`{absent}` is not indexed in {}; its paths are: {}", self.key, now.join(", "));
            return Err(Failure::Invalid(text));
        }
        let kept = now.iter().filter(|path| !self.removed.contains(path));
        let added = self.added.iter().filter(|path| !now.contains(path));
        Ok(Some(kept.chain(added).cloned().collect()))
    }
}

/// Runs the command.
pub(super) fn run(args: &ReindexArgs) -> Result<(), Failure> {
    let path = definition_path(&args.key);
    with_cluster(&args.node, &args.way.tries(&args.tries), async |client| {
        let found = client.send(Request::get(&path)).await?;
        let now = texts(&found.data()?["indexes"]);
        let wanted = args.wanted(&now)?.filter(|wanted| *wanted != now);
        if let Some(wanted) = wanted {
            let operation = Operation::SetIndexes {
                definition: args.key.clone(),
                indexes: wanted.clone(),
                if_match: args.if_match.or(found.revision()).map(IfMatch::Revision),
            };
            let format = args.node.format.or_table();
            if args
                .way
                .at(&args.when)
                .propose(&client, operations([&operation])?, args.dry_run, &format)
                .await?
            {
                return Ok(());
            }
            let request = args.way.on(Request::operation(&operation));
            if !args.dry_run {
                interrupt::now(Doing::Writing);
            }
            let answer = client.send(request.dry_run(args.dry_run)).await?;
            interrupt::now(Doing::Reading);
            if args.dry_run {
                note(format_args!("definition {} would be indexed by {}", args.key, wanted.join(", ")));
                return Ok(());
            }
            let revision = answer.revision().map(|revision| format!("  revision {revision}"));
            note(format_args!("definition {} changed{}", args.key, revision.unwrap_or_default()));
        }
        let data = if args.no_wait { read(&client, &path).await? } else { wait(&client, &path).await? };
        print_columns(&args.node.format.or_table(), &data["indexes"], &COLUMNS)
    })
}

async fn read(client: &Client, path: &str) -> Result<Value, Failure> {
    Ok(client.send(Request::get(format!("{path}/indexes"))).await?.data()?)
}

/// Waits until every index is ready, without a time limit.
async fn wait(client: &Client, path: &str) -> Result<Value, Failure> {
    let mut progress = None;
    loop {
        let data = read(client, path).await?;
        let Some((done, of)) = left(&data["indexes"]) else { return Ok(data) };
        let progress = progress.get_or_insert_with(|| {
            let total = usize::try_from(of).unwrap_or(usize::MAX);
            Progress::with_rest(total, "configs", "the cluster continues without this command")
        });
        progress.set(done, of);
        tokio::time::sleep(PAUSE).await;
    }
}

/// The progress of the slowest index that is being built.
fn left(indexes: &Value) -> Option<(u64, u64)> {
    let building = indexes.as_array().into_iter().flatten().filter(|index| index["state"] != "ready");
    building.map(|index| (index["done"].as_u64().unwrap_or(0), index["of"].as_u64().unwrap_or(0))).min()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ReindexArgs,
    }

    fn wanted(more: &[&str]) -> Option<Vec<String>> {
        let args = Line::try_parse_from([&["reindex", "d"], more].concat()).unwrap().args;
        args.wanted(&["a".to_owned(), "b".to_owned()]).ok().flatten()
    }

    #[test]
    fn paths_are_named_anew_or_one_by_one() {
        let texts = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(wanted(&[]), None);
        assert_eq!(wanted(&["--index", "c"]), texts(&["c"]));
        assert_eq!(wanted(&["--add", "c", "--add", "a", "--remove", "b"]), texts(&["a", "c"]));
        assert_eq!(wanted(&["--remove", "x"]), None, "that is an error");
    }

    #[test]
    fn the_index_that_is_behind_all_others_counts() {
        let index = |state: &str, done: u64| json!({"path": "p", "state": state, "done": done, "of": 9});
        assert_eq!(
            left(&json!([index("ready", 9), index("building", 5), index("building", 3)])),
            Some((3, 9))
        );
        assert_eq!(left(&json!([index("ready", 9)])), None);
    }
}
