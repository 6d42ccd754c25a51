//! `concord agent` as programs meet it: real processes, real files, real nodes that go and come back.
//!
//! | file | question |
//! |---|---|
//! | `files` | are files as the configs say, and do commands run when they changed, and only then? |
//! | `absence` | does the agent go on without the cluster, begin without it, and end cleanly? |
//! | `rights` | does a permission that the agent's key lacks, or loses, change no file? |
//! | `rollouts` | has it the candidate of a rollout, does it say how its command runs with it, and is it taken out again? |
//! | `secret_edits` | after random edits, are the files as the model says, and is no secret where it may not be? |

mod absence;
mod environment;
mod files;
mod rights;
mod rollouts;
mod secret_edits;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use concord_client::Tls;
use serde_json::{Value, json};

use crate::harness::{Cluster, check, eventually, node::BINARY, ports};

/// An agent of a test, in a directory of its own. Dropping it kills it.
struct Agent {
    root: PathBuf,
    port: u16,
    urls: String,
    key: String,
    environment: Option<&'static str>,
    labels: Option<&'static str>,
    child: Option<Child>,
}

impl Agent {
    /// An agent that is not started yet. `settings` follow `configs`, `data_dir` and `listen`.
    fn new(cluster: &Cluster, settings: &str) -> Self {
        let root = cluster.root().join("agent");
        std::fs::create_dir_all(&root).expect("it can be made");
        let urls: Vec<String> =
            cluster.nodes.iter().map(|node| format!("http://{}", node.api_addr())).collect();
        let key = cluster.client(1).key;
        let (port, urls) = (ports::free("127.0.0.1"), urls.join(","));
        let agent = Self { root, port, urls, key, environment: None, labels: None, child: None };
        agent.configure(settings);
        agent
    }

    fn configure(&self, settings: &str) {
        let head = format!(
            "configs: [{{definition: limits}}]\ndata_dir: data\nlisten: 127.0.0.1:{}\nconfirm_every_s: 1\nfresh_for_s: 3\n",
            self.port
        );
        self.write("agent.yaml", &format!("{head}{settings}"));
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.root.join(name), text).expect("it can be written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// What a file holds; nothing when there is none.
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(BINARY.as_path());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONCORD_"))
        {
            command.env_remove(name);
        }
        command
            .args(["agent", "--config", "agent.yaml"])
            .current_dir(&self.root)
            .env("HOME", &self.root)
            .env("CONCORD_URL", &self.urls)
            .env("CONCORD_API_KEY", &self.key)
            .envs(self.environment.map(|name| ("CONCORD_ENVIRONMENT", name)))
            .envs(self.labels.map(|labels| ("CONCORD_LABELS", labels)));
        command
    }

    fn start(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log.txt"))
            .expect("it can be written");
        let mut command = self.command();
        self.child = Some(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("the binary can be started"),
        );
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id();
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {pid}")).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }

    /// SIGTERM; waits for the end.
    async fn stop(&mut self) {
        self.signal("TERM");
        let child = self.child.as_mut().expect("it runs");
        let status = eventually("the agent ends", async || {
            child.try_wait().expect("it is ours").ok_or("it runs".to_owned())
        })
        .await;
        assert!(status.success(), "{status}\n{}", self.read("log.txt"));
        self.child = None;
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            child.wait().expect("it is ours");
        }
    }

    /// An answer over loopback: its status, its headers, its body.
    async fn get(&self, path: &str) -> Result<(u16, http::HeaderMap, Value), String> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let answer = http().get(url).send().await;
        let answer = answer.map_err(|error| error.to_string())?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.map_err(|error| error.to_string())?;
        Ok((status, headers, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Waits until a file holds this text.
    async fn has(&self, name: &str, expected: &str) {
        eventually(&format!("`{name}` is {expected:?}"), async || {
            let text = self.read(name);
            check(text == expected, || format!("{text:?}\n{}", self.read("log.txt")))
        })
        .await;
    }

    /// Waits until no command is due: the one that has shown what it does has ended, too.
    async fn nothing_due(&self) {
        eventually("nothing is due", async || {
            // The directory is made with the first command that is due.
            let due = std::fs::read_dir(self.path("data/due")).map_or(0, Iterator::count);
            check(due == 0, || self.read("log.txt"))
        })
        .await;
    }

    /// Waits until the log has this text.
    async fn logs(&self, expected: &str) {
        eventually(&format!("the log has {expected:?}"), async || {
            let text = self.read("log.txt");
            check(text.contains(expected), || text.clone())
        })
        .await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client over plain HTTP that knows nothing of the interface.
fn http() -> reqwest::Client {
    let tls = Tls::default().config(false).expect("it needs no file");
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .build()
        .expect("a client can be made")
}

async fn put(cluster: &Cluster, id: u64, key: &str, data: &Value) {
    let path = format!("/api/v1/config_definition/limits/config/{key}?upsert=true");
    let answer = cluster.client(id).put(&path, &json!({"data": data})).await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
}

async fn define(cluster: &Cluster) {
    let answer = cluster
        .client(1)
        .post("/api/v1/config_definition/", &json!({"config_definition_key": "limits"}))
        .await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

/// Whether a process of this id runs.
fn lives(pid: &str) -> bool {
    let status =
        std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}
