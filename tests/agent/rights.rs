//! The access key of the agent: what it may not see is no value, and a permission that is gone is no config that is gone.

use http::Method;
use serde_json::{Value, json};

use super::{Agent, define, put};
use crate::harness::{Cluster, check, eventually};

const CONFIG: &str = "/api/v1/config_definition/limits/config/acme";

/// A key with these grants: its id and its text.
pub(super) async fn key(cluster: &Cluster, grants: &Value) -> (String, String) {
    let answer =
        cluster.client(1).post("/api/v1/api_key/", &json!({"name": "agent", "grants": grants})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let text = |name: &str| answer.body["data"][name].as_str().unwrap().to_owned();
    (text("key_id"), text("api_key"))
}

async fn mark_secret(cluster: &Cluster) {
    let schema = json!({"json_schema": {"properties": {"password": {"x-concord-secret": true}}}});
    let answer = cluster.client(1).put("/api/v1/config_definition/limits/schema", &schema).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn a_redacted_value_overwrites_no_file() {
    let cluster = Cluster::start("agent-secrets").await;
    define(&cluster).await;
    let data = |n: u64| json!({"password": "pw-1", "n": n});
    put(&cluster, 1, "acme", &data(1)).await;
    let settings = r#"files:
  - {path: db.json, definition: limits, config: acme, debounce_ms: 50}
  - {path: db.yaml, definition: limits, config: acme, format: yaml, debounce_ms: 50}
  - {path: db.toml, definition: limits, config: acme, format: toml, debounce_ms: 50}
  - {path: db.env, definition: limits, config: acme, format: env, prefix: DB_, debounce_ms: 50}
  - {path: all.json, definition: limits, debounce_ms: 50}
  - {path: db.conf, template_text: "password={{ configs.limits.acme.password }}", debounce_ms: 50}
  - {path: whole.conf, template_text: "{{ configs.limits.acme|json }}", debounce_ms: 50}
  - {path: n.conf, template_text: "n={{ configs.limits.acme.n }}", debounce_ms: 50}
"#;
    const FILES: [&str; 7] = ["db.json", "db.yaml", "db.toml", "db.env", "all.json", "db.conf", "whole.conf"];
    let (id, text) = key(&cluster, &json!([{"verbs": ["read"], "definitions": ["limits"]}])).await;
    let mut agent = Agent::new(&cluster, settings);
    agent.key = text;
    agent.start();
    agent.has("n.conf", "n=1").await;
    for file in FILES {
        eventually(file, async || check(agent.read(file).contains("pw-1"), || agent.read(file))).await;
    }
    let before = FILES.map(|file| agent.read(file));

    mark_secret(&cluster).await;
    put(&cluster, 1, "acme", &data(2)).await;
    // What does not use the value follows.
    agent.has("n.conf", "n=2").await;
    eventually("all files that need the value fail", async || {
        let (status, _, health) = agent.get("/healthz").await?;
        let failing = health["files_failing"].as_array().map_or(0, Vec::len);
        check(status == 503 && failing == FILES.len(), || health.to_string())
    })
    .await;
    assert_eq!(FILES.map(|file| agent.read(file)), before);
    let log = agent.read("log.txt");
    assert!(log.contains("the permission `reveal`") && log.contains("#/password"), "{log}");
    // Over loopback the places are named.
    let (status, headers, body) = agent.get(CONFIG).await.unwrap();
    assert_eq!((status, &body["data"]["data"]["password"]), (200, &Value::Null));
    assert_eq!(headers["x-concord-redacted"], "#/password");
    let (_, headers, _) = agent.get("/api/v1/config_definition/limits/config/").await.unwrap();
    assert_eq!(headers["x-concord-redacted"], "#/password");
    agent.stop().await;
    let done = {
        let mut command = agent.command();
        tokio::task::spawn_blocking(move || command.arg("--once").output().unwrap()).await.unwrap()
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && said.contains("`reveal`"), "{said}");
    assert_eq!(FILES.map(|file| agent.read(file)), before);

    // With the permission all is as it should be.
    let grants = json!({"grants": [{"verbs": ["read", "reveal"], "definitions": ["limits"]}]});
    let answer = cluster.client(1).call(Method::PATCH, &format!("/api/v1/api_key/{id}")).json(&grants).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    agent.start();
    agent.has("whole.conf", "{\n  \"password\": \"pw-1\",\n  \"n\": 2\n}").await;
    agent.has("db.env", "DB_PASSWORD='pw-1'\nDB_N='2'\n").await;
    agent.stop().await;
}

/// Gives a key other grants.
async fn regrant(cluster: &Cluster, id: &str, grants: &Value) {
    let path = format!("/api/v1/api_key/{id}");
    let answer = cluster.client(1).call(Method::PATCH, &path).json(&json!({ "grants": grants })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Waits until the agent reports each file that is written from the definition.
async fn all_fail(agent: &Agent) {
    eventually("each file fails", async || {
        let (status, _, health) = agent.get("/healthz").await?;
        let failing = health["files_failing"].to_string();
        let is_told = ["one.json", "all.json", "list.conf"].iter().all(|file| failing.contains(file));
        check(status == 503 && is_told, || health.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_permission_that_is_gone_removes_no_file() {
    let cluster = Cluster::start("agent-narrowed").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    put(&cluster, 1, "bravo", &json!({"n": 1})).await;
    let settings = r#"configs: [{definition: "*"}]
data_dir: data
confirm_every_s: 1
fresh_for_s: 3
files:
  - {path: one.json, definition: limits, config: acme, when_absent: remove, debounce_ms: 50, command: [sh, -c, 'echo x >> ran']}
  - {path: other.json, definition: limits, config: bravo, when_absent: remove, debounce_ms: 50}
  - {path: all.json, definition: limits, debounce_ms: 50}
  - {path: list.conf, template_text: "{% for name, of in configs|items %}{{ name }} {% endfor %}", debounce_ms: 50}
"#;
    let grants = |definition: &str| json!([{"verbs": ["read"], "definitions": [definition]}]);
    let (id, text) = key(&cluster, &grants("*")).await;
    let mut agent = Agent::new(&cluster, "");
    agent.write("agent.yaml", &format!("{settings}listen: 127.0.0.1:{}\n", agent.port));
    agent.key = text;
    agent.start();
    let one = "{\n  \"n\": 1\n}\n";
    agent.has("one.json", one).await;
    agent.has("ran", "x\n").await;
    agent.has("list.conf", "limits ").await;
    agent.nothing_due().await;
    // A config that is deleted is gone.
    let answer = cluster.client(1).delete("/api/v1/config_definition/limits/config/bravo").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    eventually("it is removed", async || check(!agent.path("other.json").exists(), || agent.read("log.txt")))
        .await;
    let all = "{\n  \"acme\": {\n    \"n\": 1\n  }\n}\n";
    agent.has("all.json", all).await;

    // The grant is narrowed: the key may read nothing of `limits` any more.
    regrant(&cluster, &id, &grants("elsewhere")).await;
    agent.logs("no node says that it is deleted").await;
    eventually("it is told", async || {
        let (status, _, health) = agent.get("/healthz").await?;
        check(status == 503, || health.to_string())
    })
    .await;
    let unchanged = |agent: &Agent| {
        let files = ["one.json", "all.json", "list.conf", "ran"].map(|file| agent.read(file));
        assert_eq!(files, [one, all, "limits ", "x\n"].map(str::to_owned), "{}", agent.read("log.txt"));
    };
    all_fail(&agent).await;
    unchanged(&agent);
    // The agent keeps what it had: with new settings, after a restart, and in a job.
    agent.write("log.txt", "");
    agent.signal("HUP");
    agent.logs("the agent watches the cluster").await;
    all_fail(&agent).await;
    unchanged(&agent);
    agent.stop().await;
    agent.start();
    all_fail(&agent).await;
    unchanged(&agent);
    agent.stop().await;
    let done = {
        let mut command = agent.command();
        tokio::task::spawn_blocking(move || command.arg("--once").output().unwrap()).await.unwrap()
    };
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && said.contains("list.conf: definition limits is not"), "{said}");
    unchanged(&agent);

    // With the permission the copy is behind at first, and no file is without what it had.
    let widened = json!({"grants": grants("*")});
    let answer = cluster.client(1).call(Method::PATCH, &format!("/api/v1/api_key/{id}")).json(&widened).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    agent.start();
    eventually("all is well", async || {
        let (status, _, health) = agent.get("/healthz").await?;
        check(status == 200 && health["fresh"] == true, || health.to_string())
    })
    .await;
    unchanged(&agent);
    // Definitions that are deleted are gone.
    let answer = cluster.client(1).delete("/api/v1/config_definition/limits").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    agent.has("list.conf", "").await;
    agent.stop().await;
}

#[tokio::test]
async fn without_a_note_of_what_it_had_the_agent_asks_for_what_its_settings_name() {
    let cluster = Cluster::start("agent-no-note").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    // A pattern that has every definition, and the name of one.
    let settings = r#"configs: [{definition: "*"}, {definition: limits}]
data_dir: data
files:
  - {path: list.conf, template_text: "{% for name, of in configs|items %}{{ name }} {% endfor %}", debounce_ms: 50}
"#;
    let grants = |definition: &str| json!([{"verbs": ["read"], "definitions": [definition]}]);
    let (id, text) = key(&cluster, &grants("*")).await;
    let mut agent = Agent::new(&cluster, "");
    agent.write("agent.yaml", settings);
    agent.key = text;
    agent.start();
    agent.has("list.conf", "limits ").await;
    agent.stop().await;
    regrant(&cluster, &id, &grants("elsewhere")).await;
    // The data directory is new, the file is not.
    std::fs::remove_dir_all(agent.path("data")).unwrap();
    agent.start();
    agent.logs("definition limits is not in the copy").await;
    assert_eq!(agent.read("list.conf"), "limits ");
    agent.stop().await;
}
