//! Programs of one version with a cluster of another: the command line and the agent of the newest release (`released.rs`)
//! while a rollout runs, and those of this version with nodes of the release, which know no rollouts.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};

use super::released::PROGRAM;
use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{config, define, set},
    node::{BINARY, spawn},
};

/// The program of one version, as a user runs it.
struct User {
    program: &'static Path,
    home: PathBuf,
    urls: String,
    key: String,
}

/// A program that runs until the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl User {
    fn new(cluster: &Cluster, program: &'static Path, name: &str) -> Self {
        let home = cluster.root().join(name);
        std::fs::create_dir_all(&home).expect("it can be made");
        let urls: Vec<String> =
            cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
        Self { program, home, urls: urls.join(","), key: cluster.client(1).key }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(self.program).args(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CONCORD_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(&self.home)
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", &self.home)
            .env("CONCORD_URL", &self.urls)
            .env("CONCORD_API_KEY", &self.key)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("it does not panic");
        output.expect("it can be started")
    }

    /// What a command prints, which must succeed.
    async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What a command says that must fail with this exit code.
    async fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    async fn number(&self, key: &str) -> String {
        self.ok(&["config", "get", "limits", key, "-o", "jsonpath={.data.n}"]).await.trim().to_owned()
    }

    /// Starts a command that goes on; what it prints is in `NAME.txt`, what it logs in `NAME.log`.
    fn start(&self, name: &str, arguments: &[&str]) -> Running {
        let file = |kind: &str| {
            std::fs::File::create(self.home.join(format!("{name}.{kind}"))).expect("it can be written")
        };
        let mut command = self.command(arguments);
        command.stdout(file("txt")).stderr(file("log"));
        Running(spawn(command))
    }

    /// Starts an agent that keeps a file with both configs.
    fn start_agent(&self) -> Running {
        let settings = r#"configs: [{definition: limits}]
data_dir: data
files:
  - path: both.conf
    template_text: "{{ configs.limits.acme.n }} {{ configs.limits.other.n }}"
    debounce_ms: 50
    command: ["true"]
"#;
        std::fs::write(self.home.join("agent.yaml"), settings).expect("it can be written");
        self.start("agent", &["agent", "--config", "agent.yaml"])
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.home.join(name)).unwrap_or_default()
    }

    /// Waits until a file is so.
    async fn becomes(&self, name: &str, is_so: impl Fn(&str) -> bool) {
        eventually(&format!("{name} of {}", self.program.display()), async || {
            let text = self.read(name);
            check(is_so(&text), || format!("{text:?}\n{}", self.read("agent.log")))
        })
        .await;
    }
}

async fn prepare(client: &Client) {
    define(client, "limits").await;
    for key in ["acme", "other"] {
        set(client, "limits", key, &json!({"n": 1})).await;
    }
}

/// Waits until every node gives this number to a reader.
async fn readers_get(cluster: &Cluster, n: u64) {
    for node in cluster.clients() {
        eventually("a reader has it", async || {
            let get = node.get(&config("limits", "acme")).header("x-concord-reader", "host");
            let read = get.attempt().await?;
            check(read.status == 200 && read.data()["data"]["n"] == n, || format!("{read:?}"))
        })
        .await;
    }
}

#[tokio::test]
async fn programs_of_the_release_have_what_is_proven_until_a_rollout_has_ended() {
    let cluster = Cluster::start("versions-older-programs").await;
    let root = cluster.client(1);
    prepare(&root).await;
    let old = User::new(&cluster, &PROGRAM, "old");
    let _agent = old.start_agent();
    old.becomes("both.conf", |text| text == "1 1").await;
    let _watch = old.start("watch", &["config", "watch", "limits", "--from", "1", "-o", "jsonl"]);
    old.ok(&["config", "put", "limits", "other", "--data", r#"{"n": 2}"#]).await;
    old.becomes("watch.txt", |text| text.contains(r#""data":{"n":2}"#)).await;

    let put = json!({"op": "put_config", "config_definition_key": "limits", "config_key": "acme", "data": {"n": 5}});
    let body = json!({"title": "in stages", "operations": [put], "rollout": {"stages": [{"for_s": 3600}]}});
    let made = root.post("/api/v1/change_request/", &body).insist().await.expect(201);
    let id = made.data()["change_id"].as_str().expect("an id").to_owned();
    let path = format!("/api/v1/change_request/{id}");
    let apply = root.post(&format!("{path}/apply"), &json!({"digest": made.data()["digest"]}));
    assert_eq!(apply.insist().await.expect(200).data()["phase"], "rolling");
    readers_get(&cluster, 5).await;

    // They see nothing of it, show it as a change request, and can't write what is in it.
    assert_eq!(old.number("acme").await, "1");
    assert!(old.ok(&["change", "list"]).await.contains("in stages"));
    assert!(old.ok(&["change", "show", &id]).await.contains("in stages"));
    let refused = old.fails(&["config", "put", "limits", "acme", "--data", r#"{"n": 9}"#], 4).await;
    assert!(refused.contains("rolled out") && refused.contains(&id), "{refused}");
    // What comes after it shows that they missed nothing in between.
    old.ok(&["config", "put", "limits", "other", "--data", r#"{"n": 3}"#]).await;
    old.becomes("watch.txt", |text| text.contains(r#""data":{"n":3}"#)).await;
    old.becomes("both.conf", |text| text == "1 3").await;
    let watched = old.read("watch.txt");
    assert!(!watched.contains(r#""data":{"n":5}"#), "{watched}");

    root.post(&format!("{path}/advance"), &json!({})).insist().await.expect(200);
    old.becomes("both.conf", |text| text == "5 3").await;
    old.becomes("watch.txt", |text| text.contains(r#""data":{"n":5}"#)).await;
    assert_eq!(old.number("acme").await, "5");
    old.ok(&["config", "put", "limits", "acme", "--data", r#"{"n": 6}"#]).await;
    old.becomes("both.conf", |text| text == "6 3").await;
    old.becomes("watch.txt", |text| text.contains(r#""data":{"n":6}"#)).await;
    let watched = old.read("watch.txt");
    assert_eq!(watched.matches(r#""data":{"n":5}"#).count(), 1, "once: {watched}");
}

#[tokio::test]
async fn programs_of_this_version_work_with_a_cluster_of_the_release() {
    let options = Options::default();
    let cluster = Cluster::start_prepared("versions-older-cluster", &options, |_, nodes| {
        nodes.iter_mut().for_each(|node| PROGRAM.clone_into(&mut node.binary));
    });
    let cluster = cluster.await;
    prepare(&cluster.client(1)).await;
    let new = User::new(&cluster, &BINARY, "new");
    let _agent = new.start_agent();
    new.becomes("both.conf", |text| text == "1 1").await;
    let _watch = new.start("watch", &["config", "watch", "limits", "--from", "1", "-o", "jsonl"]);
    new.ok(&["config", "put", "limits", "other", "--data", r#"{"n": 2}"#]).await;
    new.becomes("watch.txt", |text| text.contains(r#""data":{"n":2}"#)).await;
    new.becomes("both.conf", |text| text == "1 2").await;
    assert_eq!(new.number("acme").await, "1");
    // A change request without stages goes its way.
    let propose = ["config", "patch", "limits", "acme", "--data", r#"{"n": 4}"#, "--propose", "more"];
    let id = new.ok(&[&propose[..], &["-o", "jsonpath={.change_id}"]].concat()).await.trim().to_owned();
    new.ok(&["change", "show", &id]).await;
    new.ok(&["change", "apply", &id, "--yes"]).await;
    new.becomes("both.conf", |text| text == "4 2").await;
    let watched = new.ok(&["change", "watch", &id]).await;
    assert!(watched.contains("applied"), "{watched}");

    // What the release does not know is rejected, and nothing is done by halves.
    std::fs::write(new.home.join("plan.yaml"), "stages: [{for_s: 1}]\n").expect("it can be written");
    let said = new.fails(&[&propose[..], &["--rollout", "plan.yaml"]].concat(), 5).await;
    assert!(said.contains("/body/rollout: this member is unknown"), "{said}");
    let report = ["change", "report", &id, "--reader", "host", "--state", "healthy"];
    for arguments in [&report[..], &["change", "pause", &id], &["gate", "errors", "--ok"]] {
        let said = new.fails(arguments, 3).await;
        assert!(said.contains("no such path") && said.contains("earlier version"), "{arguments:?}: {said}");
    }
    let list: Value = serde_json::from_str(&new.ok(&["change", "list", "-o", "json"]).await).expect("JSON");
    assert_eq!(list["results"].as_array().map(Vec::len), Some(1), "{list}");
    // There is no candidate that a reader could get, and nothing to report.
    let read = new.ok(&["config", "get", "limits", "acme", "--reader", "host", "-o", "json"]).await;
    let read: Value = serde_json::from_str(&read).expect("JSON");
    assert_eq!((&read["data"]["n"], read.get("variant")), (&json!(4), None), "{read}");
    let log = new.read("agent.log");
    assert!(!log.contains("WARN") && !log.contains("ERROR") && !log.contains("report"), "{log}");
}
