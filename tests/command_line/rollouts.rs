//! Rollouts: what a person makes, follows and steers, what a script reports, and what a gate says of Prometheus.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
};

use serde_json::json;

use super::{Done, User};
use crate::harness::{Cluster, check, eventually, watch::Watch};

const PLAN: &str = "stages:\n  - labels: {ring: [canary]}\n    for_s: 1\n    min_healthy: 1\n  - for_s: 3600\n\
                    gates: [{name: errors, fresh_s: 600}]\n";
const CANARY: [&str; 4] = ["--reader", "host-1", "--label", "ring=canary"];

async fn started(name: &str) -> (Cluster, User) {
    let cluster = Cluster::start(name).await;
    let root = User::of(&cluster);
    root.ok(&["definition", "create", "limits"]).await;
    root.ok(&["config", "create", "limits", "acme", "--data", r#"{"n": 1}"#]).await;
    root.write("plan.yaml", PLAN);
    (cluster, root)
}

fn fails(done: &Done, code: i32, hint: &str) {
    assert!(done.code == code && done.err.contains(hint), "{done:?}");
}

/// Begins a rollout of the config, and returns the id of its change request.
async fn begin(root: &User, data: &str) -> String {
    let patch = ["config", "put", "limits", "acme", "--data", data, "--rollout", "plan.yaml"];
    let id = root.ok(&[&patch[..], &["-o", "jsonpath={.change_id}"]].concat()).await.trim().to_owned();
    let told = root.ok(&["change", "apply", &id, "--yes"]).await;
    assert_eq!(told, format!("rollout of change request {id} begun; follow it: concord change watch {id}\n"));
    id
}

async fn seen(root: &User, reader: &[&str]) -> serde_json::Value {
    root.json(&[&["config", "get", "limits", "acme"][..], reader].concat()).await
}

#[tokio::test]
async fn a_rollout_is_begun_seen_steered_and_followed_to_its_end() {
    let (_cluster, root) = started("cli-rollouts").await;
    let id = begin(&root, r#"{"n": 2}"#).await;
    assert_eq!(seen(&root, &[]).await["data"], json!({"n": 1}));
    let candidate = seen(&root, &CANARY).await;
    assert_eq!((&candidate["data"], &candidate["variant"]["change_id"]), (&json!({"n": 2}), &json!(id)));
    let table = root.ok(&[&["config", "get", "limits", "acme"][..], &CANARY].concat()).await;
    assert!(table.contains(&format!("candidate of {id}")), "{table}");
    fails(&root.run(&["config", "get", "limits", "--reader", "host-1"]).await, 2, "name it");
    fails(&root.run(&["config", "put", "limits", "acme", "--data", "{}"]).await, 4, "rolled out");

    let told = root.ok(&["change", "pause", &id, "--comment", "lunch"]).await;
    assert!(told.ends_with("paused: rolling, stage 1 of 2, paused\n"), "{told}");
    let shown = root.ok(&["change", "show", &id]).await;
    assert!(shown.contains("> stage 1: readers with ring=canary, 1s, 1 healthy, since "), "{shown}");
    assert!(shown.contains(r#": "lunch""#) && shown.contains("gate \"errors\""), "{shown}");
    assert!(root.ok(&["change", "list", "--phase", "rolling"]).await.contains("stage 1 of 2, paused"));
    root.ok(&["change", "resume", &id]).await;

    let told = root.ok(&[&["change", "report", &id, "--state", "healthy"][..], &CANARY].concat()).await;
    assert_eq!(told, "reader \"host-1\" is healthy\n");
    let told = root.ok(&["gate", "errors", "--ok", "--evidence", "0.1 %"]).await;
    assert!(told.starts_with("gate \"errors\" is good: \"0.1 %\""), "{told}");
    eventually("the second stage", async || {
        let list = root.ok(&["change", "list", "--phase", "rolling"]).await;
        check(list.contains("rolling, stage 2 of 2"), || list.clone())
    })
    .await;
    assert_eq!(seen(&root, &["--reader", "any"]).await["data"], json!({"n": 2}));
    root.ok(&["change", "advance", &id]).await;
    let watched = root.ok(&["change", "watch", &id]).await;
    assert!(watched.trim_end().ends_with(" applied"), "{watched}");
    assert_eq!(seen(&root, &[]).await["data"], json!({"n": 2}));
    let last = root.json(&["change", "watch", &id]).await;
    assert_eq!(last["phase"], "applied");
}

#[tokio::test]
async fn a_failure_takes_it_back_and_a_watch_says_so() {
    let (_cluster, root) = started("cli-rollouts-failed").await;
    let id = begin(&root, r#"{"n": 3}"#).await;
    let report = ["change", "report", &id, "--state", "failed", "--detail", "no start"];
    root.ok(&[&report[..], &CANARY].concat()).await;
    let watched = root.run(&["change", "watch", &id]).await;
    fails(&watched, 1, "was not applied: failed");
    assert_eq!(seen(&root, &CANARY).await["data"], json!({"n": 1}));
    let bad = root.run(&["change", "report", &id, "--state", "failed", "--reader", "hö"]).await;
    fails(&bad, 2, "is not the name of a reader");
    let id = begin(&root, r#"{"n": 4}"#).await;
    root.ok(&["change", "abort", &id, "--comment", "no"]).await;
    fails(&root.run(&["change", "watch", &id]).await, 1, "was not applied: withdrawn");
    root.write("bad.yaml", "stages: []");
    let made = root.run(&["config", "put", "limits", "acme", "--data", "{}", "--rollout", "bad.yaml"]).await;
    assert_eq!(made.code, 5, "{made:?}");
    fails(
        &root.run(&["config", "put", "limits", "acme", "--data", "{}", "--rollout", "none.yaml"]).await,
        2,
        "none.yaml",
    );
}

#[tokio::test]
async fn the_readers_of_a_config_are_listed_with_what_they_report() {
    let (cluster, root) = started("cli-readers").await;
    let readers = ["config", "readers", "limits", "acme"];
    let empty = root.run(&readers).await;
    assert!(empty.code == 0 && empty.out.starts_with("READER"), "{empty:?}");
    assert!(empty.err.contains("0 healthy, 0 failed with the current data"), "{empty:?}");
    let query = [("definition", "limits"), ("config_key", "acme"), ("initial", "true")];
    let call = cluster.client(2).get("/api/v1/watch").query(&query).header("x-concord-reader", "host-1");
    let mut watch = Watch::of(&call).await;
    watch.event().await;
    let other = cluster.client(3).get("/api/v1/watch").query(&query[..2]);
    let _nameless = Watch::of(&other).await;

    let report = ["config", "report", "limits", "acme", "--reader", "host-1"];
    let failed = ["--state", "failed", "--instance", "a", "--detail", "no start"];
    assert_eq!(root.ok(&[&report[..], &failed].concat()).await, "reader \"host-1\" has failed\n");
    let healthy = ["--state", "healthy", "--instance", "b"];
    assert_eq!(root.ok(&[&report[..], &healthy].concat()).await, "reader \"host-1\" is healthy\n");
    let late = ["--state", "healthy", "--instance", "a", "--revision", "1"];
    let told = root.ok(&[&report[..], &late].concat()).await;
    assert_eq!(told, "reader \"host-1\" is healthy; it does not count now\n");

    let table = root.run(&readers).await;
    let line = table.out.lines().nth(1).unwrap_or_default();
    assert!(line.starts_with("host-1") && line.contains("failed") && line.ends_with("no start"), "{table:?}");
    assert!(
        table.err.contains("0 healthy, 1 failed") && table.err.contains("1 watch without a reader"),
        "{table:?}"
    );
    let list = root.json(&readers).await;
    let row = &list["results"][0];
    assert_eq!(
        (&row["node_id"], &row["state"], &row["variant"]),
        (&json!(2), &json!("failed"), &json!(null))
    );
    assert_eq!(list["meta"]["watches"], json!({"identified": 1, "unidentified": 1}));
    fails(&root.run(&["config", "readers", "limits", "none"]).await, 3, "limits");
    let bad = ["--state", "failed", "--instance", "a b"];
    assert_eq!(root.run(&[&report[..], &bad].concat()).await.code, 5);

    let id = begin(&root, r#"{"n": 2}"#).await;
    let report = ["change", "report", &id, "--state", "failed", "--instance", "a"];
    root.ok(&[&report[..], &CANARY].concat()).await;
    fails(&root.run(&["change", "watch", &id]).await, 1, "was not applied: failed");
}

/// A Prometheus that answers as it is told.
fn prometheus() -> (String, Arc<Mutex<(u16, String)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    let answer = Arc::new(Mutex::new((200, String::new())));
    let told = Arc::clone(&answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut head = [0; 4096];
            let count = stream.read(&mut head).unwrap_or_default();
            assert!(String::from_utf8_lossy(&head[..count]).starts_with("GET /api/v1/query?query=up"));
            let (status, body) = told.lock().expect("nobody has panicked").clone();
            let text = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            drop(stream.write_all(text.as_bytes()));
        }
    });
    (url, answer)
}

#[tokio::test]
async fn a_gate_says_what_a_value_of_prometheus_means_and_nothing_without_one() {
    let (_cluster, root) = started("cli-gates").await;
    let id = begin(&root, r#"{"n": 2}"#).await;
    let (url, answer) = prometheus();
    let ask = ["gate", "errors", "--prometheus", &url, "--query", "up", "--max", "1", "--once"];
    let vector = |values: &str| {
        format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{values}]}}}}"#)
    };
    let gate = async || root.json(&["change", "show", &id]).await["rollout"]["status"]["gates"][0].clone();
    for (status, body) in [
        (200, vector("")),
        (200, vector(r#"{"metric":{},"value":[1,"NaN"]}"#)),
        (503, r#"{"status":"error","error":"not now"}"#.to_owned()),
        (200, "<html>".to_owned()),
    ] {
        *answer.lock().unwrap() = (status, body);
        fails(&root.run(&ask).await, 1, "nothing is said of the gate");
        assert!(gate().await["ok"].is_null());
    }
    *answer.lock().unwrap() = (200, vector(r#"{"metric":{},"value":[1,"0.5"]}"#));
    let told = root.ok(&ask).await;
    assert!(told.starts_with("gate \"errors\" is good: \"0.5: up\""), "{told}");
    assert_eq!(gate().await["ok"], true);
    // What is outside takes the rollout back.
    *answer.lock().unwrap() = (200, vector(r#"{"metric":{},"value":[1,"7"]},{"metric":{},"value":[1,"0"]}"#));
    let told = root.ok(&ask).await;
    assert!(told.starts_with("gate \"errors\" is not good: \"7 > 1: up\""), "{told}");
    fails(&root.run(&["change", "watch", &id]).await, 1, "was not applied: failed");
    for bad in [
        &["gate", "errors"][..],
        &["gate", "errors", "--ok", "--failed"],
        &["gate", "errors", "--prometheus", "http://127.0.0.1:1", "--query", "up"],
        &["gate", "errors", "--prometheus", "ftp://x", "--query", "up", "--max", "1"],
        &["gate", "errors", "--prometheus", "http://x", "--query", "up", "--max", "1", "--min", "2"],
    ] {
        assert_eq!(root.run(bad).await.code, 2, "{bad:?}");
    }
}
