//! `concord config diff`: compares a config at two revisions, or files with the cluster.
//!
//! **Invariants:** the exit code is 1 exactly when there is a difference. What the access key may not see is never said to
//! be the same, unless no change lies between.

use std::path::PathBuf;

use clap::Args;
use concord_client::{Client, Request};
use concord_formats::yaml;
use serde_json::{Value, json};
use similar::TextDiff;

use super::{
    apply::{self, DiffArgs},
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{config_path, definition_path, keep_redacted},
    document,
    manifest::FileArgs,
    markdown,
    mask::Mask,
    output::{Format, note, print_done, text},
    secret_source::SecretArgs,
};

#[derive(Debug, Args)]
#[command(after_help = "`concord env diff STAGING PROD` compares two environments.")]
pub(super) struct ConfigDiffArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The key of the definition
    #[arg(required_unless_present = "files", conflicts_with = "files", requires = "key")]
    definition: Option<String>,
    /// The key of the config
    key: Option<String>,
    /// The older revision [default: the one before the last change]
    #[arg(long, value_name = "REVISION", conflicts_with = "files")]
    from: Option<u64>,
    /// The newer revision [default: the current one]
    #[arg(long, value_name = "REVISION", conflicts_with = "files")]
    to: Option<u64>,
    /// Compare files with the cluster instead: a file of definitions and configs, a directory of such files, or `-` for
    /// stdin; repeatable
    #[arg(short, long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Also read subdirectories
    #[arg(short = 'R', long, requires = "files")]
    recursive: bool,
    /// Also show the configs that `apply --prune` would delete
    #[arg(long, requires = "files")]
    prune: bool,
    /// Show secret values
    #[arg(long)]
    show_secrets: bool,
}

/// Runs the command.
pub(super) fn run(args: ConfigDiffArgs) -> Result<(), Failure> {
    let ConfigDiffArgs { node, tries, definition, key, from, to, files, recursive, prune, show_secrets } =
        args;
    let (Some(definition), Some(key)) = (definition, key) else {
        let files = FileArgs::new(files, recursive);
        return apply::diff(&DiffArgs {
            node,
            tries,
            files,
            prune,
            show_secrets,
            save: None,
            secrets: SecretArgs::default(),
        });
    };
    let compared = with_cluster(&node, &tries, async |client| {
        let path = config_path(&definition, &key);
        let (mut before, mut after) =
            sides(&client, &path, from, to).await.inspect_err(|_| tell_env_diff(&definition, &key))?;
        let is_different = !before.is_same(&after);
        let is_blind = !before.is_same_change(&after) && (before.is_redacted || after.is_redacted);
        if !show_secrets {
            // What is secret now, was it always.
            let schema =
                client.send(Request::get(format!("{}/schema", definition_path(&definition)))).await?;
            let mut mask = Mask::default();
            mask.add(&definition, Some(&schema.data()?["json_schema"]));
            mask.hide(&definition, before.data.as_mut(), after.data.as_mut());
        }
        let name = format!("{definition}/{key}");
        let format = node.format.or_table();
        let shown = if format == Format::Markdown {
            text(&markdown::block("diff", &unified(&name, &before, &after)))
        } else if format.is_table() {
            text(&unified(&name, &before, &after))
        } else {
            let data = json!({
                "config_definition_key": definition, "config_key": key,
                "from": before.to_json(), "to": after.to_json(),
            });
            print_done(&format, &data, "config_key", "")
        };
        shown.map_err(|failure| failure.of_comparison(is_different))?;
        match (is_different, is_blind) {
            (true, true) => {
                note(BLIND);
                Err(Failure::Difference)
            }
            (true, false) => Err(Failure::Difference),
            (false, true) => Err(Failure::NoAnswer(format!("there is no visible difference, but {BLIND}"))),
            (false, false) => Ok(()),
        }
    });
    compared.map_err(|failure| failure.of_comparison(false))
}

/// If the two names look like those of environments or of records in two, says which command compares these.
fn tell_env_diff(definition: &str, key: &str) {
    let (one, record) = definition.split_once('.').unwrap_or((definition, ""));
    let (other, of_other) = key.split_once('.').unwrap_or((key, ""));
    if record == of_other && one != other {
        let record = if record.is_empty() { String::new() } else { format!(" {record}") };
        note(format_args!("to compare two environments: `concord env diff {one} {other}{record}`"));
    }
}

/// What can't be said without `reveal`.
const BLIND: &str = "secret values can't be compared: the access key may not see them (it lacks `reveal`)";

/// A config at a revision.
struct Side {
    revision: u64,
    /// `None` if it did not exist. A value that the access key may not see is the marker that keeps it.
    data: Option<Value>,
    /// The revision of its last change then.
    changed: Option<u64>,
    /// Whether the access key may not see a part of it.
    is_redacted: bool,
}

impl Side {
    fn to_json(&self) -> Value {
        json!({ "revision": self.revision, "data": self.data })
    }

    /// Whether both are what one change has left.
    fn is_same_change(&self, other: &Self) -> bool {
        self.changed.is_some() && self.changed == other.changed
    }

    fn is_same(&self, other: &Self) -> bool {
        match (&self.data, &other.data) {
            (Some(one), Some(other)) => document::is_same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// The two states that are compared.
async fn sides(
    client: &Client,
    path: &str,
    from: Option<u64>,
    to: Option<u64>,
) -> Result<(Side, Side), Failure> {
    let mut history = Request::get(format!("{path}/history")).query("limit", 2);
    if let Some(to) = to {
        history = history.query("before", to.saturating_add(1));
    }
    let answer = client.send(history).await?;
    let now = to.or(answer.state_revision()).unwrap_or_default();
    let changes = answer.data()?["results"].take();
    let before_last = || {
        let first = &changes[1]["revision"];
        // Before its first change, the config did not exist.
        first.as_u64().or_else(|| changes[0]["revision"].as_u64().and_then(|last| last.checked_sub(1)))
    };
    let Some(from) = from.or_else(before_last) else {
        return Err(Failure::Invalid("the config has no changes up to that revision".into()));
    };
    let before = at(client, path, from).await?;
    let after = at(client, path, now).await?;
    if before.data.is_none() && after.data.is_none() {
        // The error says what does not exist.
        client.send(Request::get(path)).await?;
    }
    Ok((before, after))
}

async fn at(client: &Client, path: &str, revision: u64) -> Result<Side, Failure> {
    let answer = match client.send(Request::get(path).query("revision", revision)).await {
        Ok(answer) => answer,
        Err(error) if error.is_not_found() => {
            return Ok(Side { revision, data: None, changed: None, is_redacted: false });
        }
        Err(error) => return Err(error.into()),
    };
    let (mut data, places) = (answer.data()?["data"].take(), answer.redacted_places());
    // If the header names fewer places than there are, the others stay null, and no comparison counts them.
    let _ = keep_redacted(&mut data, places.iter().map(String::as_str));
    Ok(Side { revision, data: Some(data), changed: answer.revision(), is_redacted: !places.is_empty() })
}

/// The lines that differ, as a unified diff of YAML.
fn unified(name: &str, before: &Side, after: &Side) -> String {
    let written = |side: &Side| side.data.as_ref().map(yaml::write_exact).unwrap_or_default();
    let head = |side: &Side| match &side.data {
        Some(_) => format!("{name}@{}", side.revision),
        None => "/dev/null".into(),
    };
    let (old, new) = (written(before), written(after));
    let diff = TextDiff::from_lines(&old, &new);
    diff.unified_diff().context_radius(3).header(&head(before), &head(after)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_its_revisions_and_what_was_absent() {
        let side = |revision, data| Side { revision, data, changed: Some(revision), is_redacted: false };
        let (one, other) = (side(7, Some(json!({"a": 1, "b": 2}))), side(9, Some(json!({"a": 1, "b": 3}))));
        assert_eq!(
            unified("d/k", &one, &other),
            "--- d/k@7\n+++ d/k@9\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n+b: 3\n"
        );
        assert!(unified("d/k", &side(6, None), &one).starts_with("--- /dev/null\n+++ d/k@7\n"));
        assert!(!one.is_same(&other) && one.is_same(&side(8, one.data.clone())));
        assert!(!one.is_same(&side(6, None)) && side(5, None).is_same(&side(6, None)));
    }
}
