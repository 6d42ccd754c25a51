//! An agent as a reader of rollouts: its files have the candidate, its commands say how that runs, and what is taken back is
//! taken out of the files.

use serde_json::{Value, json};

use super::{Agent, define, put};
use crate::harness::{Answer, Client, Cluster, check, eventually};

const CHANGES: &str = "/api/v1/change_request/";
/// The command fails with what it does not like.
const FILES: &str = r#"files:
  - path: limits.txt
    template_text: "{{ configs.limits.acme.n }}"
    debounce_ms: 50
    retries: 0
    command: [sh, -c, 'if [ "$(cat limits.txt)" = 666 ]; then echo "666 is too many"; exit 3; fi']
"#;

async fn begin(node: &Client, n: u64, min_healthy: u64) -> Answer {
    let put = json!({"op": "put_config", "config_definition_key": "limits", "config_key": "acme", "data": {"n": n}});
    let stages =
        json!([{"labels": {"ring": ["canary"]}, "for_s": 1, "min_healthy": min_healthy}, {"for_s": 3600}]);
    let body = json!({"title": "a rollout", "operations": [put], "rollout": {"stages": stages}});
    let made = node.post(CHANGES, &body).insist().await.expect(201);
    let apply = format!("{CHANGES}{}/apply", id(&made));
    let begun = node.post(&apply, &json!({"digest": made.data()["digest"]})).insist().await.expect(200);
    assert_eq!(begun.data()["phase"], "rolling", "{begun:?}");
    made
}

fn id(change: &Answer) -> String {
    change.data()["change_id"].as_str().expect("an id").to_owned()
}

async fn becomes(node: &Client, change: &Answer, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let path = format!("{CHANGES}{}", id(change));
    eventually(what, async || {
        let answer = node.get(&path).await;
        check(answer.status == 200 && is_so(answer.data()), || format!("{answer:?}"))?;
        Ok(answer.data().clone())
    })
    .await
}

#[tokio::test]
async fn an_agent_reports_by_its_command_and_takes_back_what_is_taken_back() {
    let cluster = Cluster::start("agent-rollouts").await;
    let node = cluster.client(1);
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let mut agent = Agent::new(&cluster, FILES);
    agent.labels = Some("ring=canary,region=eu");
    agent.start();
    agent.has("limits.txt", "1").await;

    // It runs well, says so, and the next stage begins.
    let good = begin(&node, 2, 1).await;
    agent.has("limits.txt", "2").await;
    let (_, headers, body) = agent.get("/api/v1/config_definition/limits/config/acme").await.unwrap();
    assert_eq!(body["data"]["data"], json!({"n": 2}));
    assert_eq!(headers["x-concord-variant"], format!("candidate; change={}", id(&good)).as_str());
    assert_eq!(headers["etag"], format!("\"{}\"", id(&good)).as_str());
    let (_, _, health) = agent.get("/healthz").await.unwrap();
    assert_eq!(health["candidates"][0]["change_id"], id(&good).as_str());
    becomes(&node, &good, "the second stage", |change| change["rollout"]["status"]["stage"] == 1).await;
    let kept = agent.read("data/configs.json");
    assert!(kept.contains(&format!(r#""variant":"{}""#, id(&good))), "{kept}");
    let abort = format!("{CHANGES}{}/abort", id(&good));
    node.post(&abort, &json!({})).await.expect(200);
    agent.has("limits.txt", "1").await;

    // It does not, and the rollout is taken back.
    let bad = begin(&node, 666, 1).await;
    let ended = becomes(&node, &bad, "the end", |change| change["phase"] == "closed").await;
    assert_eq!(ended["closed"]["reason"], "failed", "{ended}");
    agent.has("limits.txt", "1").await;
    agent.logs("666 is too many").await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_reports_outside_rollouts_what_its_command_rejects() {
    let cluster = Cluster::start("agent-readers").await;
    let node = cluster.client(1);
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let mut agent = Agent::new(&cluster, FILES);
    agent.labels = Some("ring=canary");
    agent.start();
    agent.has("limits.txt", "1").await;
    let path = "/api/v1/config_definition/limits/config/acme/readers";
    let becomes = async |what: &str, state: &str| {
        eventually(what, async || {
            let list = node.get(path).await;
            check(list.status == 200, || format!("{list:?}"))?;
            let row = list.data()["results"][0].clone();
            check(row["state"] == state, || format!("{list:?}"))?;
            Ok(row)
        })
        .await
    };
    let row = becomes("it follows", "unknown").await;
    assert_eq!(row["labels"], json!({"ring": "canary"}));
    put(&cluster, 1, "acme", &json!({"n": 666})).await;
    let row = becomes("a failure", "failed").await;
    assert!(row["detail"].as_str().is_some_and(|detail| detail.contains("limits.txt")), "{row}");
    put(&cluster, 1, "acme", &json!({"n": 2})).await;
    becomes("its end", "healthy").await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_no_reader_has_what_is_proven() {
    let cluster = Cluster::start("agent-no-reader").await;
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let change = begin(&cluster.client(1), 2, 0).await;
    becomes(&cluster.client(1), &change, "the second stage", |change| {
        change["rollout"]["status"]["stage"] == 1
    })
    .await;
    let agent = Agent::new(&cluster, FILES);
    let once = |more: &[&str]| {
        let done = agent.command().args(["--once"]).args(more).output().expect("it can be started");
        assert!(done.status.success(), "{done:?}");
        agent.read("limits.txt")
    };
    assert_eq!(once(&["--no-reader"]), "1");
    assert_eq!(once(&["--reader", "any"]), "2");
    let bad = agent.command().args(["--once", "--reader", "hö"]).output().expect("it can be started");
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
}

#[tokio::test]
async fn a_failure_that_was_there_before_takes_no_candidate_back() {
    let cluster = Cluster::start("agent-broken").await;
    let node = cluster.client(1);
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let files = r#"files:
  - path: limits.txt
    template_text: "{{ configs.limits.acme.n }}"
    debounce_ms: 50
    retries: 100
    command: [sh, -c, 'if [ -e broken ]; then echo "broken with $(cat limits.txt)"; exit 3; fi']
"#;
    let mut agent = Agent::new(&cluster, files);
    agent.labels = Some("ring=canary");
    agent.start();
    agent.has("limits.txt", "1").await;
    agent.nothing_due().await;
    agent.write("broken", "");
    put(&cluster, 1, "acme", &json!({"n": 2})).await;
    agent.logs("broken with 2").await;

    let change = begin(&node, 3, 1).await;
    agent.has("limits.txt", "3").await;
    eventually("it fails with the candidate, and again", async || {
        let log = agent.read("log.txt");
        let count = log.lines().filter(|line| *line == "broken with 3").count();
        check(count >= 2, || log)
    })
    .await;
    std::fs::remove_file(agent.path("broken")).expect("it is there");
    becomes(&node, &change, "the second stage", |change| change["rollout"]["status"]["stage"] == 1).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_failure_tells_readers_of_one_definition_nothing_of_another() {
    let cluster = Cluster::start("agent-two-definitions").await;
    let node = cluster.client(1);
    define(&cluster).await;
    put(&cluster, 1, "acme", &json!({"n": 1})).await;
    let tokens = json!({"config_definition_key": "tokens"});
    node.post("/api/v1/config_definition/", &tokens).await.expect(201);
    let path = "/api/v1/config_definition/tokens/config/";
    node.post(path, &json!({"config_key": "acme", "data": {"token": "s3cret"}})).await.expect(201);
    let mut agent = Agent::new(&cluster, "");
    let settings = r#"configs: [{definition: limits}, {definition: tokens}]
data_dir: data
files:
  - path: both.txt
    template_text: "{{ configs.tokens.acme.token }} {{ configs.limits.acme.n }}"
    debounce_ms: 50
    check: [sh, -c, "cat {new}; echo; ! grep -q 666 {new}"]
"#;
    agent.write("agent.yaml", settings);
    agent.labels = Some("ring=canary");
    agent.start();
    agent.has("both.txt", "s3cret 1").await;
    put(&cluster, 1, "acme", &json!({"n": 666})).await;
    let readers = async |definition: &str| {
        let list = node
            .get(&format!("/api/v1/config_definition/{definition}/config/acme/readers"))
            .await
            .expect(200);
        list.data()["results"][0].clone()
    };
    let row = eventually("a failure", async || {
        let row = readers("limits").await;
        check(row["state"] == "failed", || row.to_string())?;
        Ok(row)
    })
    .await;
    let detail = row["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("both.txt: its check failed") && !detail.contains("s3cret"), "{row}");
    let other = readers("tokens").await;
    assert_eq!((&other["state"], &other["detail"]), (&json!("unknown"), &Value::Null), "{other}");
    agent.logs("s3cret 666").await;
    agent.stop().await;
}
