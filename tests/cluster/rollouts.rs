//! Rollouts on three nodes: what readers and gates say to any of them, the leader counts and acts on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::change_requests::{CHANGES, act, becomes, text};
use crate::{
    harness::{
        Answer, Client, Cluster, check,
        load::{define, set},
        time::must_not_happen,
    },
    hostile::grants::{create_key, known},
};

/// What a failure must be followed by, on a busy machine as well.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A rollout of config `k` of definition `name`, that has begun.
async fn begin(node: &Client, name: &str, on_fail: &str) -> Answer {
    define(node, name).await;
    set(node, name, "k", &json!({"n": 0})).await;
    let put = json!({"op": "put_config", "config_definition_key": name, "config_key": "k", "data": {"n": 1}});
    let stages = json!([
        {"labels": {"ring": ["canary"]}, "for_s": 3600, "min_healthy": 1}, {"for_s": 3600},
    ]);
    let plan = json!({"stages": stages, "gates": [{"name": "errors", "fresh_s": 600}], "on_fail": on_fail});
    let body = json!({"title": "a rollout", "operations": [put], "rollout": plan});
    let made = node.post(CHANGES, &body).header("idempotency-key", name).insist().await.expect(201);
    let begun = act(node, &made, "apply", &format!("apply-{name}")).await.expect(200);
    assert_eq!(begun.data()["phase"], "rolling", "{begun:?}");
    made
}

async fn report(node: &Client, of: &Answer, reader: &str, ring: &str, state: &str) -> Answer {
    let path = format!("{CHANGES}{}/report", text(of, "change_id"));
    let body = json!({"reader": reader, "labels": {"ring": ring}, "state": state, "detail": "no start"});
    node.post(&path, &body).insist().await
}

async fn say(node: &Client, gate: &str, ok: bool) -> Answer {
    node.post(&format!("/api/v1/gate/{gate}"), &json!({"ok": ok, "evidence": "4 % errors"})).insist().await
}

fn status(change: &Value) -> &Value {
    &change["rollout"]["status"]
}

#[tokio::test]
async fn what_is_said_to_a_follower_counts_on_the_leader_and_every_node_shows_it() {
    let cluster = Cluster::start("rollouts-evidence").await;
    let leader = cluster.leader().await;
    let [one, other] = cluster.followers().await.map(|id| cluster.client(id));
    let made = begin(&other, "limits", "abort").await;
    for (node, reader) in [(&one, "a"), (&other, "b"), (&cluster.client(leader), "c")] {
        assert_eq!(
            report(node, &made, reader, "canary", "healthy").await.expect(200).data()["counted"],
            true
        );
    }
    assert_eq!(report(&one, &made, "b", "canary", "healthy").await.expect(200).data()["counted"], true);
    assert_eq!(report(&one, &made, "d", "late", "failed").await.expect(200).data()["counted"], false);
    say(&one, "errors", true).await.expect(200);
    for node in cluster.clients() {
        let is_so = |change: &Value| {
            status(change)["healthy"] == 3
                && status(change)["failed"] == 0
                && status(change)["gates"][0]["ok"] == true
        };
        becomes(&node, &made, "the counts on every node", is_so).await;
    }
    let failed = Instant::now();
    report(&other, &made, "a", "canary", "failed").await.expect(200);
    let closed = becomes(&one, &made, "the end", |change| change["phase"] == "closed").await;
    assert!(failed.elapsed() < AT_ONCE, "{:?}", failed.elapsed());
    assert_eq!((&closed["closed"]["reason"], &closed["closed"]["by"]), (&json!("failed"), &Value::Null));
    let late = report(&one, &made, "a", "canary", "failed").await;
    assert_eq!(late.body["errors"][0]["code"], "rollout_stage", "{late:?}");
}

#[tokio::test]
async fn a_gate_ends_the_rollouts_that_its_key_may_report_and_no_others() {
    let cluster = Cluster::start("rollouts-gates").await;
    let [one, other] = cluster.followers().await.map(|id| cluster.client(id));
    let (ours, theirs) =
        (begin(&one, "ours.limits", "abort").await, begin(&one, "theirs.limits", "pause").await);
    let grants = json!([{"verbs": ["report"], "definitions": ["ours.*"]}]);
    let (_, key) = create_key(&one, &grants, &json!({})).await;
    known(&cluster.clients(), &key, true).await;
    let monitor = other.with_credential(&key);
    let foreign = report(&monitor, &theirs, "a", "canary", "failed").await;
    assert_eq!((foreign.status, &foreign.body["errors"][0]["code"]), (404, &json!("change_not_found")));
    report(&monitor, &ours, "a", "canary", "healthy").await.expect(200);
    say(&monitor, "errors", false).await.expect(200);
    becomes(&one, &ours, "the end", |change| change["phase"] == "closed").await;
    // The other one has the same gate.
    let path = format!("{CHANGES}{}", text(&theirs, "change_id"));
    must_not_happen("the other one pauses", Duration::from_secs(2), async || {
        let shown = other.get(&path).attempt().await?;
        let status = status(shown.data());
        check(status["paused"].is_null() && status["gates"][0]["ok"].is_null(), || format!("{shown:?}"))
    })
    .await;
    say(&other, "errors", false).await.expect(200);
    becomes(&other, &theirs, "a pause", |change| !status(change)["paused"].is_null()).await;
}

#[tokio::test]
async fn a_new_leader_knows_no_reports_and_takes_new_ones() {
    let mut cluster = Cluster::start("rollouts-new-leader").await;
    let leader = cluster.leader().await;
    let followers = cluster.followers().await;
    let node = cluster.client(followers[0]);
    let made = begin(&node, "limits", "abort").await;
    report(&node, &made, "a", "canary", "healthy").await.expect(200);
    becomes(&node, &made, "one reader", |change| status(change)["healthy"] == 1).await;
    cluster.node(leader).kill();
    cluster.leader_on(&followers).await;
    becomes(&node, &made, "none", |change| status(change)["healthy"] == 0).await;
    report(&node, &made, "a", "canary", "failed").await.expect(200);
    becomes(&node, &made, "the end", |change| change["phase"] == "closed").await;
}
