//! `notify --definition`: changes of configs reach another program as signed `CloudEvents`, though the program, the leader
//! and the notifier are killed, and though the program refuses some of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{User, notify::Notifier, revision};
use crate::harness::{
    Cluster, Options, check, eventually,
    load::{define, set},
    webhook::{Conduct, Webhook},
};

const TYPE: &str = "io.github.concordconfig.";
const SECRETS: [&str; 2] =
    ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
const POSITION: [&str; 4] = ["--webhook-file", "hook.url", "--position", "at.json"];
const SIGNED: [&str; 5] = ["--definition", "prod.*", "--cloudevents", "--secret-file", "secrets"];

/// Each event that a webhook has taken, once by its id, in the order of arrival, and how often it came. Checks what each has
/// beside its data, with the library of Standard Webhooks.
fn events(webhook: &Webhook) -> (Vec<Value>, BTreeMap<String, usize>) {
    let (mut events, mut counts) = (Vec::new(), BTreeMap::new());
    for (headers, body) in webhook.raw() {
        for secret in SECRETS {
            let verifier = standardwebhooks::Webhook::new(secret).expect("a secret");
            verifier.verify(&body, &headers).expect("it is signed");
        }
        assert_eq!(headers["content-type"], "application/cloudevents+json");
        let event: Value = serde_json::from_slice(&body).expect("JSON");
        let id = event["id"].as_str().expect("an id").to_owned();
        assert_eq!(headers["webhook-id"], id);
        assert!(!id.contains('.'), "what is signed is delimited by them: {id}");
        assert_eq!(
            (&event["specversion"], &event["datacontenttype"]),
            (&json!("1.0"), &json!("application/json"))
        );
        assert_eq!(event["source"], format!("urn:uuid:{}", id.split('/').next().expect("a cluster")));
        assert_eq!((&event["time"], &event["data"]["id"]), (&event["data"]["at"], &event["id"]));
        let count = counts.entry(id).or_insert(0);
        *count += 1;
        if *count == 1 {
            events.push(event);
        } else {
            assert!(events.contains(&event), "it is the same each time");
        }
    }
    (events, counts)
}

/// What happened to what.
fn named(event: &Value) -> String {
    let text = |name: &str| event[name].as_str().expect("a text").replace(TYPE, "");
    format!("{} {}", text("type"), text("subject"))
}

async fn reaches(webhook: &Webhook, expected: &[String]) {
    eventually("the webhook has all of it, in order", async || {
        let found: Vec<String> = events(webhook).0.iter().map(named).collect();
        check(found == expected, || format!("{found:?} and not {expected:?}"))
    })
    .await;
}

async fn grows(webhook: &Webhook, count: impl Fn(&Webhook) -> usize, by: usize) {
    let before = count(webhook);
    eventually("it gets more", async || {
        check(count(webhook) >= before + by, || format!("{} after {before}", count(webhook)))
    })
    .await;
}

fn position(user: &User) -> Value {
    let text = fs::read_to_string(user.home.join("at.json")).expect("it is there");
    serde_json::from_str(&text).expect("JSON")
}

/// A cluster with a definition, a user, the user of a sink, and a webhook.
async fn followed(name: &str, options: &Options) -> (Cluster, User, User, Webhook) {
    let cluster = Cluster::start_with(name, options).await;
    let root = User::of(&cluster);
    let made = root.json(&["key", "create", "--name", "sink", "--grant", "read:prod.*"]).await;
    let sink = root.clone().with("CONCORD_API_KEY", made["api_key"].as_str().expect("a key"));
    let webhook = Webhook::start(Conduct::Takes).await;
    root.write("hook.url", &webhook.url);
    root.write("secrets", &format!("# the new one\n{}\n\n{}\n", SECRETS[0], SECRETS[1]));
    (cluster, root, sink, webhook)
}

async fn put(user: &User, key: &str, data: &Value) -> String {
    let data = data.to_string();
    revision(
        &user
            .ok(&["config", "put", "prod.limits", key, "--upsert", "--data", &data, "--reason", "load"])
            .await,
    )
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, a death in some lines")]
async fn each_change_is_posted_signed_and_in_order_though_all_sides_are_killed() {
    let (mut cluster, root, sink, mut webhook) = followed("sink", &Options::default()).await;
    let arguments = [&SIGNED[..], &["--with-data"]].concat();
    let notifier = Notifier::start(&sink, &arguments);
    notifier.says("begins after revision").await;
    root.write("schema.json", r#"{"properties": {"pin": {"x-concord-secret": true}}}"#);
    root.ok(&["definition", "create", "prod.limits", "--schema", "schema.json"]).await;
    root.ok(&["definition", "create", "staging.limits"]).await;
    root.ok(&["config", "create", "staging.limits", "acme", "--data", "{}"]).await;
    let first = put(&root, "acme", &json!({"n": 1, "pin": "a-secret-pin"})).await;
    put(&root, "other.one", &json!({"n": 1})).await;
    root.ok(&["config", "delete", "prod.limits", "other.one", "--yes"]).await;
    let mut expected: Vec<String> = [
        "definition.created prod.limits",
        "config.created prod.limits/acme",
        "config.created prod.limits/other.one",
        "config.deleted prod.limits/other.one",
    ]
    .map(str::to_owned)
    .into();
    reaches(&webhook, &expected).await;
    let data = events(&webhook).0[1]["data"].clone();
    assert_eq!(
        (data["revision"].to_string(), &data["by"], &data["reason"]),
        (first, &json!("root"), &json!("load"))
    );
    assert_eq!((&data["data"], &data["redacted"]), (&json!({"n": 1, "pin": null}), &json!(["#/pin"])));
    let mut n = 1;
    let mut update = async |expected: &mut Vec<String>| {
        n += 1;
        expected.push("config.updated prod.limits/acme".to_owned());
        put(&root, "acme", &json!({"n": n, "pin": "a-secret-pin"})).await
    };
    let taken = |webhook: &Webhook| webhook.raw().len();
    let came_twice = |webhook: &Webhook, revision: &str| {
        let (_, counts) = events(webhook);
        let (id, count) =
            counts.iter().find(|(id, _)| id.contains(&format!("/{revision}/"))).expect("it came");
        assert!(*count > 1, "{id} came {count} times");
    };

    // The receiver is killed after it has taken an event, before it has answered.
    webhook.set(Conduct::TakesInSilence);
    let before = taken(&webhook);
    let revision = update(&mut expected).await;
    eventually("it was taken", async || check(taken(&webhook) > before, String::new)).await;
    webhook.kill();
    update(&mut expected).await;
    webhook.set(Conduct::Takes);
    webhook.restart().await;
    reaches(&webhook, &expected).await;
    came_twice(&webhook, &revision);

    // The notifier is killed at the same place: its position is still before the event.
    webhook.set(Conduct::TakesInSilence);
    let before = taken(&webhook);
    let revision = update(&mut expected).await;
    eventually("it was taken", async || check(taken(&webhook) > before, String::new)).await;
    drop(notifier);
    assert!(position(&sink)["from"].as_u64() <= revision.parse().ok(), "{} {revision}", position(&sink));
    update(&mut expected).await;
    webhook.set(Conduct::Takes);
    let mut notifier = Notifier::start(&sink, &arguments);
    reaches(&webhook, &expected).await;
    came_twice(&webhook, &revision);

    // The leader is killed.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    update(&mut expected).await;
    reaches(&webhook, &expected).await;
    cluster.node(leader).start().await;

    // A batch is several events of one revision, also if it puts a definition in the place of one.
    root.ok(&["definition", "create", "prod.more"]).await;
    expected.push("definition.created prod.more".to_owned());
    let batch = json!([
        {"op": "put_config", "config_definition_key": "prod.limits", "config_key": "acme", "data": {"n": 0}},
        {"op": "delete_definition", "config_definition_key": "prod.more"},
        {"op": "create_definition", "config_definition_key": "prod.more"},
        {"op": "create_config", "config_definition_key": "prod.more", "config_key": "a", "data": {}},
        {"op": "create_config", "config_definition_key": "staging.limits", "config_key": "b", "data": {}},
    ]);
    cluster.client(1).post("/api/v1/batch", &json!({ "operations": batch })).await.expect(200);
    let all = [
        "config.created prod.more/a",
        "config.updated prod.limits/acme",
        "definition.created prod.more",
        "definition.deleted prod.more",
    ];
    eventually("all of the batch came", async || {
        let events = events(&webhook).0;
        let found: BTreeSet<String> = events.iter().skip(expected.len()).map(named).collect();
        check(found == all.map(str::to_owned).into(), || format!("{found:?}"))
    })
    .await;

    // What the events say is what the cluster has.
    let mut copy = BTreeMap::new();
    for event in events(&webhook).0 {
        let subject = event["subject"].as_str().expect("a subject").to_owned();
        match event["type"].as_str().expect("a type").trim_start_matches(TYPE) {
            "config.created" | "config.updated" => {
                copy.insert(subject, event["data"]["data"]["n"].clone());
            }
            "config.deleted" => {
                copy.remove(&subject);
            }
            _ => {}
        }
    }
    assert_eq!(
        copy,
        [("prod.limits/acme".to_owned(), json!(0)), ("prod.more/a".to_owned(), Value::Null)].into()
    );

    // SIGTERM ends it, and nothing is lost by it.
    let pid = Pid::from_child(&notifier.child);
    kill_process(pid, Signal::TERM).expect("it runs");
    let status = tokio::task::spawn_blocking(move || notifier.child.wait()).await.expect("no panic");
    assert_eq!(status.expect("it has ended").code(), Some(0));
}

#[tokio::test]
async fn an_event_that_is_refused_for_good_goes_to_the_dead_letters_once_they_have_room() {
    let (_cluster, root, sink, webhook) = followed("dead-letters", &Options::default()).await;
    root.ok(&["definition", "create", "prod.limits"]).await;
    let arguments = [&SIGNED[..], &["--with-data"]].concat();
    let notifier = Notifier::start(&sink, &arguments);
    notifier.says("begins after revision").await;
    // Without the option it holds back what follows.
    webhook.set(Conduct::Refuses(422, "poison"));
    let refused = put(&root, "a", &json!({"n": "poison"})).await;
    put(&root, "b", &json!({"n": "fine"})).await;
    grows(&webhook, Webhook::requests, 3).await;
    assert_eq!(webhook.raw().len(), 0);
    drop(notifier);

    // The disk is full: it waits, and its position does.
    let dead = root.home.join("dead.ndjson");
    symlink("/dev/full", &dead).expect("it can be made");
    let arguments = [&arguments[..], &["--dead-letters", "dead.ndjson", "--attempts", "2"]].concat();
    let notifier = Notifier::start(&sink, &arguments);
    notifier.says("No space left on device (os error 28); the event").await;
    assert_eq!(webhook.raw().len(), 0);
    assert!(position(&sink)["from"].as_u64() <= refused.parse().ok(), "{} {refused}", position(&sink));
    fs::remove_file(&dead).expect("it is there");
    let mut expected = vec!["config.created prod.limits/b".to_owned()];
    reaches(&webhook, &expected).await;
    let lines = || fs::read_to_string(&dead).expect("it is there");
    let letter: Value = serde_json::from_str(&lines()).expect("one line of JSON");
    assert!(letter["why"].as_str().is_some_and(|why| why.starts_with("422")), "{letter}");
    assert_eq!(letter["message"]["body"]["data"]["revision"].to_string(), refused);
    assert_eq!(fs::metadata(&dead).expect("it is there").permissions().mode() & 0o777, 0o600);

    // An answer that says nothing against the event is no reason to leave it behind, however often it comes.
    for status in [404, 410, 429, 503] {
        webhook.set(Conduct::Answers(status));
        put(&root, &format!("c{status}"), &json!({"n": 1})).await;
        grows(&webhook, Webhook::requests, 3).await;
        webhook.set(Conduct::Takes);
        expected.push(format!("config.created prod.limits/c{status}"));
        reaches(&webhook, &expected).await;
    }
    assert_eq!(lines().lines().count(), 1, "{}", lines());

    // It is posted again while the notifier runs: refused once more, interrupted, and taken.
    let retry = ["notify", "--webhook-file", "hook.url", "--secret-file", "secrets"];
    let retry =
        [&retry[..], &["--dead-letters", "dead.ndjson", "--attempts", "1", "--retry-dead-letters"]].concat();
    let before = lines();
    webhook.set(Conduct::Refuses(422, "poison"));
    let done = sink.run(&retry).await;
    assert!(done.code == 8 && done.err.contains("1 event could not be posted and stay"), "{done:?}");
    webhook.set(Conduct::Answers(503));
    let mut child = sink.command(&retry).spawn().expect("it can be started");
    grows(&webhook, Webhook::requests, 1).await;
    child.kill().and_then(|()| child.wait()).expect("it runs");
    assert_eq!(lines(), before);
    webhook.set(Conduct::Takes);
    let nobody = sink.clone().with("CONCORD_URL", "http://127.0.0.1:9").with("CONCORD_API_KEY", "");
    let done = nobody.run(&retry).await;
    assert!(done.code == 0 && done.err.contains("1 event posted"), "{done:?}");
    expected.push("config.created prod.limits/a".to_owned());
    reaches(&webhook, &expected).await;
    assert_eq!(lines(), "");
    let log = fs::read_to_string(&notifier.log).expect("its log");
    assert!(
        !SECRETS.iter().any(|secret| log.contains(&secret[6..])) && !log.contains("a-secret-path"),
        "{log}"
    );
}

#[tokio::test]
async fn changes_that_can_not_be_read_are_told_by_their_revisions() {
    let options = Options::default().with("CONCORD_HISTORY_REVISIONS", "40");
    let (cluster, root, sink, webhook) = followed("sink-missed", &options).await;
    root.ok(&["definition", "create", "prod.limits"]).await;
    let once = [&["notify"], &POSITION[..], &SIGNED, &["--once"]].concat();
    sink.ok(&once).await;
    put(&root, "a", &json!({"n": 1})).await;
    let from = position(&sink)["from"].to_string();
    let node = cluster.client(1);
    define(&node, "d").await;
    eventually("the history is compacted", async || {
        set(&node, "d", "k", &json!({"n": 1})).await;
        let query = [("definition", "prod.*"), ("from", &from), ("wait", "0")];
        let answer = node.get("/api/v1/changes").query(&query).attempt().await?;
        check(answer.status == 410, || format!("{answer:?}"))
    })
    .await;
    // A webhook that fails does not make it forget what it has missed.
    webhook.set(Conduct::Refuses(422, "missed"));
    let mut running = Notifier::start(&sink, &SIGNED);
    grows(&webhook, Webhook::requests, 2).await;
    running.child.kill().expect("it runs");
    running.child.wait().expect("it ends");
    assert_eq!(position(&sink)["from"].to_string(), from);
    webhook.set(Conduct::Takes);
    let missed = async |why: &str| {
        let done = sink.run(&once).await;
        assert!(done.code == 0 && done.err.contains(why), "{done:?}");
        let event = events(&webhook).0.pop().expect("an event");
        assert_eq!(event["type"], format!("{TYPE}changes.missed"));
        let to = position(&sink)["from"].as_u64().expect("a revision") - 1;
        assert_eq!(event["data"]["to"], to);
        event["data"]["from"].to_string()
    };
    assert_eq!(missed("the history no longer has the events").await, from);
    // The configs that return with a definition are no events.
    root.ok(&["definition", "delete", "prod.limits", "--yes"]).await;
    sink.ok(&once).await;
    let from = position(&sink)["from"].to_string();
    root.ok(&["definition", "undelete", "prod.limits"]).await;
    assert_eq!(missed("the history no longer has the events").await, from);
    // Another cluster has other revisions.
    let mut other = position(&sink);
    other["cluster"] = "0198c0de-4a6b-7c11-8a9b-0c1d2e3f4a5b".into();
    root.write("at.json", &other.to_string());
    assert_eq!(missed("another cluster").await, "1");
    // Events go on, and those of change requests have the same form.
    put(&root, "a", &json!({"n": 2})).await;
    sink.ok(&once).await;
    assert_eq!(events(&webhook).0.last().map(named).as_deref(), Some("config.updated prod.limits/a"));
    let of_requests =
        ["--webhook-file", "hook.url", "--position", "requests.json", "--secret-file", "secrets"];
    let of_requests = [&["notify"], &of_requests[..], &["--cloudevents", "--once"]].concat();
    root.ok(&of_requests).await;
    let proposal = ["config", "patch", "prod.limits", "a", "--data", r#"{"n": 3}"#, "--propose", "more"];
    let id = root.ok(&[&proposal[..], &["-o", "jsonpath={.change_id}"]].concat()).await;
    root.ok(&of_requests).await;
    let created = format!("change_request.created {}", id.trim());
    assert_eq!(events(&webhook).0.last().map(named), Some(created));
}
