//! What goes on in the name of a key that has ended on the node that serves it: watches, long polls and bodies that were
//! begun before. The root keys are settings of the node; a stored key is revoked in the log, for which see `revoked`.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::access_keys::{Key, all};
use crate::{
    harness::{
        Client, Cluster, Options, check, eventually,
        load::{config, define},
        node,
        time::lasts,
        watch::Watch,
    },
    hostile::raw,
};

const WHOAMI: &str = "/api/v1/whoami";
/// Much longer than it takes, and shorter than the polls that must have ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until the watch ends with an error; what comes before it is returned.
async fn ended(watch: &mut Watch) -> Vec<String> {
    let mut before = Vec::new();
    loop {
        let event = tokio::time::timeout(END_TIMEOUT, watch.event()).await.expect("the watch ends");
        if event.name == "error" {
            assert!(event.data.to_string().contains("unauthorized_error"), "{event:?}");
            return before;
        }
        before.push(event.name);
    }
}

#[tokio::test]
async fn what_a_replaced_root_key_has_open_ends() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("root-key");
    let (old, new) = (node::api_key(), format!("{}-new", node::api_key()));
    std::fs::write(&file, format!("{old}\n{new}\n")).unwrap();
    let path = file.to_str().unwrap().to_owned();
    let prepare = |_: &std::path::Path, nodes: &mut [crate::harness::Node]| {
        for node in nodes {
            // An empty setting is none.
            node.overrides.push(("CONCORD_API_KEY".into(), String::new()));
            node.overrides.push(("CONCORD_API_KEY_FILE".into(), path.clone()));
        }
    };
    let cluster = Cluster::start_prepared("keys-replaced", &Options::default(), prepare).await;
    let client = cluster.client(1);
    let newer = Client::new(&client.base, &new);
    define(&client, "d").await;
    let (mut of_old, mut of_new) = (client.watch(&[], None).await, newer.watch(&[], None).await);
    for watch in [&mut of_old, &mut of_new] {
        assert_eq!(watch.event().await.name, "heartbeat");
    }
    let poll = client.get("/api/v1/changes").query(&[("wait", "60")]);
    let poll = tokio::spawn(async move { (poll.attempt().await, Instant::now()) });
    eventually("the poll is open, beside two watches", async || {
        let metrics = newer.get("/metrics").attempt().await?.text;
        check(metrics.contains("\nconcord_watches 3.0\n"), || metrics.clone())
    })
    .await;
    std::fs::write(&file, format!("{new}\n")).unwrap();
    eventually("the file was read", async || {
        let answer = client.get(WHOAMI).attempt().await?;
        check(answer.status == 401, || format!("{answer:?}"))
    })
    .await;
    let read = Instant::now();
    let before = ended(&mut of_old).await;
    assert!(before.iter().all(|name| name == "heartbeat"), "{before:?}");
    let (answer, at) = poll.await.unwrap();
    answer.unwrap().refused(401, "unauthorized_error");
    assert!(at.saturating_duration_since(read) < END_TIMEOUT, "it did not wait until its time was up");
    newer.post(&config("d", ""), &json!({ "config_key": "k", "data": {} })).await.expect(201);
    assert_eq!(of_new.data_event().await.name, "change", "the other root key is good");
}

#[tokio::test]
async fn a_body_that_arrives_after_its_key_was_revoked_is_refused() {
    let mut cluster = Cluster::start("keys-late-body").await;
    let client = cluster.client(1);
    define(&client, "d").await;
    client.post(&config("d", ""), &json!({ "config_key": "k", "data": { "n": 1 } })).await.expect(201);
    let (revoked, good) =
        (Key::create(&client, all(&["read"])).await, Key::create(&client, all(&["read"])).await);
    let body = json!({ "configs": [{ "config_definition_key": "d", "config_key": "k" }] }).to_string();
    let mut open = Vec::new();
    for key in [&revoked, &good] {
        let mut stream = raw::connect(raw::api(cluster.node(1))).await;
        let length = body.len().to_string();
        let headers = [
            ("Authorization", key.text.as_str()),
            ("Content-Type", "application/json"),
            ("Connection", "close"),
            ("Content-Length", &length),
        ];
        raw::send(&mut stream, raw::request("POST /api/v1/read", &headers)).await;
        raw::send(&mut stream, &body[..5]).await;
        open.push(stream);
    }
    // A request that takes less than a second is authorized once, when it begins. These must take longer.
    lasts(Duration::from_millis(1500)).await;
    client.delete(&revoked.path()).await.expect(200);
    for (stream, status) in open.iter_mut().zip(["401", "200"]) {
        raw::send(stream, &body[5..]).await;
        let answer = raw::answer(stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
    }
}

#[tokio::test]
async fn a_read_that_waited_is_answered_only_to_who_has_the_right_then() {
    let options = Options::default().with("CONCORD_READ_TIMEOUT_MS", "60000");
    let cluster = Cluster::start_with("keys-late-read", &options).await;
    let client = cluster.client(1);
    define(&client, "d").await;
    let path = config("d", "k");
    client.post(&config("d", ""), &json!({ "config_key": "k", "data": { "n": 0 } })).await.expect(201);
    let mut keys = Vec::new();
    for _ in 0..4 {
        keys.push(Key::create(&client, all(&["read", "write"])).await);
    }
    let [revoked, narrowed, widened, good] = &keys[..] else { panic!("four keys") };
    let later: u64 =
        10 + client.get(&path).await.expect(200).header("x-concord-revision").parse::<u64>().unwrap();
    let reads: Vec<_> = keys
        .iter()
        .map(|key| {
            let wanted = later.to_string();
            let call = key.on(&client).get(&path).query(&[("min_revision", wanted.as_str())]);
            tokio::spawn(async move { call.attempt().await.unwrap() })
        })
        .collect();
    // A request that takes less than a second is authorized once, when it begins. These must take longer.
    lasts(Duration::from_millis(1500)).await;
    client.delete(&revoked.path()).await.expect(200);
    for (key, verbs) in [(narrowed, &["read"][..]), (widened, &["read", "write", "define"])] {
        let body = json!({ "grants": all(verbs) });
        client.call(http::Method::PATCH, &key.path()).json(&body).await.expect(200);
    }
    assert!(!good.id.is_empty());
    for n in 1..=10 {
        client.put(&path, &json!({ "data": { "n": n } })).await.expect(200);
    }
    let mut statuses = Vec::new();
    for read in reads {
        statuses.push(read.await.unwrap().status);
    }
    assert_eq!(statuses, [401, 503, 200, 200]);
}

#[tokio::test]
async fn a_request_that_is_sent_again_does_not_tell_of_a_key_that_may_do_more_by_now() {
    let cluster = Cluster::start("keys-again").await;
    let root = cluster.client(1);
    let manager = Key::create(&root, all(&["keys", "read"])).await.on(&root);
    let keys = "/api/v1/api_key/";
    let make = || {
        let body = json!({ "name": "made", "grants": all(&["read"]) });
        manager.post(keys, &body).header("idempotency-key", "make")
    };
    let made = make().await.expect(201);
    let path = format!("{keys}{}", made.data()["key_id"].as_str().unwrap());
    let change = || {
        let body = json!({ "name": "changed" });
        manager.call(http::Method::PATCH, &path).json(&body).header("idempotency-key", "change")
    };
    change().await.expect(200);
    assert_eq!(make().await.expect(201).data()["name"], "changed", "it is told of the key, without its text");
    let more = json!({ "grants": all(&["read", "write"]) });
    root.call(http::Method::PATCH, &path).json(&more).await.expect(200);
    make().await.refused(409, "conflict_error");
    change().await.refused(404, "not_found_error");
}
