//! The command line as people and pipelines use it: real processes against real nodes.
//!
//! | file | question |
//! |---|---|
//! | `output` | does each format print what it says, and does each failure have its exit code? |
//! | `pipeline` | is what files say what the cluster has, in one batch, and back byte for byte? |
//! | `editing` | is a config stored as the editor left it, and is nothing that was typed lost? |
//! | `change_requests` | is a change proposed, shown, approved, applied and reviewed, and does each refusal say what to do? |
//! | `environments` | does a freeze refuse what is tried, and is it ended, planned and kept as it was asked? |
//! | `example_repository` | does the example repository do what its README says, and does no older or second pipeline win? |
//! | `flags` | is a flag switched, with or without its rule, and evaluated as programs do? |
//! | `formats` | does every command print every format? |
//! | `commands` | do transactions, the past, lists and watches of several definitions, indexes and probes work? |
//! | `terminal` | what is shown on a terminal, and what is left by Ctrl-C? |
//! | `exec` | does a program get a config as variables or as a file, and never a part of it? |
//! | `failing` | what does it say of nodes that are gone, and of contexts? |
//! | `local_cluster` | does `scripts/cluster.sh` name nodes that run with other settings than it is asked for? |
//! | `github_action` | does the action for GitHub check, comment and apply, and run no command that somebody else wrote? |
//! | `identity` | does a job log in, and does a command by itself with the token of a pod? |
//! | `mcp` | does an assistant read and write as far as its key goes, and see no secret value? |
//! | `moving` | does each value of another store arrive, typed or reported, and is nothing overwritten or printed? |
//! | `notify` | does each event of change requests reach a webhook, whatever fails in between? |
//! | `rollouts` | is a rollout begun, seen, steered and followed, and does a gate say what Prometheus says, and nothing else? |
//! | `sink` | does each change of a config reach a program, signed, whatever dies in between? |
//! | `secrets` | is a value that a key may not see named, and hidden where people read? |
//! | `secret_edits` | do random edits by such a key move, lose and show no secret value? |
//! | `top` | does one command find a noisy key, and one a definition that grows? |
//! | `undo` | is what a revision changed found and taken back, and nothing else? |
//! | `promote` | are two environments compared at one revision, and is one made as the other is, and nothing else? |
//! | `quickstart` | do the first five minutes with `concord demo` go as the documents say? |

mod change_requests;
mod commands;
mod editing;
mod env_option;
mod environments;
mod example_repository;
mod exec;
mod failing;
mod flags;
mod formats;
mod github_action;
mod identity;
mod local_cluster;
mod mcp;
mod moving;
mod notify;
mod output;
mod pipeline;
mod promote;
mod quickstart;
mod rollouts;
mod secret_edits;
mod secrets;
mod sink;
mod terminal;
mod top;
mod undo;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::harness::{Cluster, node::BINARY};

/// A user: an environment and a home of their own.
#[derive(Debug, Clone)]
struct User {
    home: PathBuf,
    settings: Vec<(String, String)>,
}

/// What a command did.
#[derive(Debug)]
struct Done {
    code: i32,
    out: String,
    err: String,
}

impl User {
    fn new(home: &Path) -> Self {
        Self { home: home.to_owned(), settings: Vec::new() }
    }

    /// A user of a cluster, with the root key.
    fn of(cluster: &Cluster) -> Self {
        let urls: Vec<String> =
            cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
        let key = cluster.client(1).key;
        Self::new(cluster.root()).with("CONCORD_URL", &urls.join(",")).with("CONCORD_API_KEY", &key)
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY.as_path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CONCORD_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env_remove("VISUAL")
            .env("EDITOR", "false")
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", self.home.join("settings"))
            .env("TMPDIR", &self.home)
            .envs(self.settings.iter().cloned())
            .current_dir(&self.home);
        command
    }

    /// Runs a command to its end, on a thread for blocking work: clients of the tests live on this one.
    async fn run(&self, arguments: &[&str]) -> Done {
        self.run_with(arguments, "").await
    }

    /// The same with a standard input.
    async fn run_with(&self, arguments: &[&str], input: &str) -> Done {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let done = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("the binary can be started");
            // A command that reads nothing may have closed it already.
            drop(child.stdin.take().expect("it is a pipe").write_all(input.as_bytes()));
            child.wait_with_output().expect("its output can be read")
        });
        Done::new(&done.await.expect("it does not panic"))
    }

    /// Runs a command that must succeed, and returns what it printed.
    async fn ok(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments).await;
        assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
        done.out
    }

    /// The same as JSON.
    async fn json(&self, arguments: &[&str]) -> Value {
        let out = self.ok(&[arguments, &["-o", "json"]].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
    }

    /// Writes a file into the home.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.join(name);
        std::fs::create_dir_all(path.parent().expect("it is below the home")).expect("it can be made");
        std::fs::write(&path, text).expect("it can be written");
        path.to_str().expect("the path is text").to_owned()
    }
}

impl Done {
    fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Self { code, out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// The revision in `… revision N`.
fn revision(out: &str) -> String {
    let number = out.trim().rsplit(' ').next().unwrap_or_default();
    assert!(number.parse::<u64>().is_ok(), "no revision: {out}");
    number.to_owned()
}

/// A definition and two configs in one file.
const LIMITS: &str = r#"# The limits.
config_definition_key: limits
indexes: [plan, quota.requests]
json_schema:
  required: [plan]
  properties:
    plan: {enum: [free, pro], description: What the customer pays for}
    quota: {type: object, properties: {requests: {type: integer, minimum: 0}}}
---
config_definition_key: limits
config_key: acme
data: {plan: pro, quota: {requests: 1000}, exact: 7.0}
---
config_definition_key: limits
config_key: initech
data: {plan: free, note: "a: b # c"}
"#;
