//! Change requests while leaders die: what is approved is applied once, whoever leads, and however often it is asked.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    harness::{
        Answer, Client, Cluster, check, eventually,
        load::{config, define, set},
    },
    hostile::grants::{create_key, known},
};

pub(super) const CHANGES: &str = "/api/v1/change_request/";

async fn person(cluster: &Cluster, name: &str) -> String {
    let verbs = ["read", "write", "define", "approve"];
    let grants = json!([{ "verbs": verbs, "definitions": ["prod.*"] }]);
    let (_, key) = create_key(&cluster.client(1), &grants, &json!({ "person": name })).await;
    known(&cluster.clients(), &key, true).await;
    key
}

pub(super) fn text(answer: &Answer, name: &str) -> String {
    answer.data()[name].as_str().unwrap_or_else(|| panic!("`{name}` in {answer:?}")).to_owned()
}

/// Sends something about a change request until a node has decided it.
pub(super) async fn act(node: &Client, change: &Answer, action: &str, id: &str) -> Answer {
    let path = format!("{CHANGES}{}/{action}", text(change, "change_id"));
    let body = json!({ "digest": text(change, "digest") });
    node.post(&path, &body).header("idempotency-key", id).insist().await
}

/// The same with times.
pub(super) async fn create_timed(node: &Client, id: &str, n: u64, times: &Value) -> Answer {
    let put = json!({"op": "put_config", "config_definition_key": "prod.limits", "config_key": "k", "data": {"n": n}});
    let mut body = json!({"title": "a change", "operations": [put]});
    for (name, value) in times.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    node.post(CHANGES, &body).header("idempotency-key", id).insist().await.expect(201)
}

/// Waits until a change request is so on a node.
pub(super) async fn becomes(
    node: &Client,
    change: &Answer,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let path = format!("{CHANGES}{}", text(change, "change_id"));
    eventually(what, async || {
        let shown = node.get(&path).attempt().await?;
        check(shown.status == 200 && is_so(shown.data()), || format!("{shown:?}"))?;
        Ok(shown.data().clone())
    })
    .await
}

/// The values that the config has had, the last first.
async fn values(node: &Client) -> Vec<Value> {
    let history = node.get(&format!("{}/history", config("prod.limits", "k"))).insist().await.expect(200);
    let all = history.data()["results"].as_array().cloned().unwrap_or_default();
    all.into_iter().map(|one| one["data"]["n"].clone()).collect()
}

/// A time that is so many seconds away.
pub(super) fn time(seconds: u64) -> String {
    concord_model::time::Timestamp(concord_service::now().0 + seconds * 1_000_000).to_string()
}

async fn create(node: &Client, id: &str, n: u64) -> Answer {
    let put = json!({"op": "put_config", "config_definition_key": "prod.limits", "config_key": "k", "data": {"n": n}});
    let body = json!({"title": "a change", "operations": [put]});
    node.post(CHANGES, &body).header("idempotency-key", id).insist().await.expect(201)
}

/// A cluster with two configs in an environment that takes change requests only, and the keys of two persons.
pub(super) async fn restricted(name: &str) -> (Cluster, String, String) {
    let cluster = Cluster::start(name).await;
    let root = cluster.client(1);
    for definition in ["prod.limits", "prod.more"] {
        define(&root, definition).await;
        set(&root, definition, "k", &json!({"n": 0})).await;
    }
    let (ann, bob) = (person(&cluster, "ann").await, person(&cluster, "bob").await);
    let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
    root.put("/api/v1/environment/prod", &rules)
        .header("idempotency-key", "rules")
        .insist()
        .await
        .expect(201);
    (cluster, ann, bob)
}

#[tokio::test]
async fn what_was_approved_is_applied_once_by_the_next_leader() {
    let (mut cluster, ann, bob) = restricted("changes-failover").await;
    for round in 1..=3_u64 {
        let leader = cluster.leader().await;
        let other = leader % 3 + 1;
        let by = |node: u64, key: &str| cluster.client(node).with_credential(key);
        let made = create(&by(other, &ann), &format!("make-{round}"), round).await;
        act(&by(leader, &bob), &made, "approve", &format!("approve-{round}")).await.expect(200);
        let appliers = [by(other, &ann), by(other % 3 + 1, &bob), by(other, &bob)];
        cluster.node(leader).kill();
        let apply = async |(place, node): (u64, &Client)| {
            act(node, &made, "apply", &format!("apply-{round}-{place}")).await
        };
        let all = join_all((0..).zip(&appliers).map(apply)).await;
        let applied: Vec<Value> =
            all.into_iter().map(|one| one.expect(200).data()["applied"].clone()).collect();
        assert!(applied.windows(2).all(|pair| pair[0] == pair[1]), "one apply, whoever asks: {applied:?}");
        cluster.node(leader).start().await;
        cluster.ready().await;
        for node in cluster.clients() {
            eventually("every node has it", async || {
                let read = node.get(&config("prod.limits", "k")).attempt().await?;
                check(read.status == 200 && read.body["data"]["data"]["n"] == round, || format!("{read:?}"))
            })
            .await;
        }
    }
    let history =
        cluster.client(1).get(&format!("{}/history", config("prod.limits", "k"))).insist().await.expect(200);
    assert_eq!(history.data()["results"].as_array().map(Vec::len), Some(4), "each is in the history once");
    cluster.equal_digests().await;
}

#[tokio::test]
async fn change_requests_are_kept_by_a_restart_of_all_nodes() {
    let (mut cluster, ann, bob) = restricted("changes-restart").await;
    let root = cluster.client(1);
    let made = create(&root.with_credential(&ann), "make", 7).await;
    act(&root.with_credential(&bob), &made, "approve", "approve").await.expect(200);
    cluster.kill_all();
    cluster.start_all().await;
    cluster.ready().await;
    let node = cluster.client(2).with_credential(&ann);
    let shown = node.get(&format!("{CHANGES}{}", text(&made, "change_id"))).insist().await.expect(200);
    assert_eq!((&shown.data()["approved"], &shown.data()["edition"]), (&json!(true), &json!(1)));
    act(&node, &made, "apply", "apply").await.expect(200);
    cluster.equal_digests().await;
}

/// The events of change requests in these, without the prefix of their types.
fn kinds(changes: &[(u64, Value)]) -> Vec<String> {
    let kind = |change: &Value| change["type"].as_str().expect("a type").to_owned();
    changes.iter().map(|(_, change)| kind(change).replace("change_request_", "")).collect()
}

/// All events of change requests after a revision, by long polls.
async fn polled(node: &Client, after: u64) -> Vec<(u64, Value)> {
    let (mut from, mut found) = (after + 1, Vec::new());
    loop {
        let query = [("change_requests", "true"), ("from", &from.to_string()), ("wait", "0")];
        let answer = node.get("/api/v1/changes").query(&query).insist().await;
        if answer.status == 304 {
            return found;
        }
        let answer = answer.expect(200);
        for event in answer.data()["events"].as_array().expect("a list") {
            let revision = event["revision"].as_u64().expect("a revision");
            found.extend(
                event["changes"].as_array().expect("a list").iter().map(|change| (revision, change.clone())),
            );
        }
        from = answer.data()["from"].as_u64().expect("a revision");
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, an action in some lines")]
async fn what_happens_is_told_once_whoever_leads_and_however_old_it_is() {
    let (mut cluster, ann, bob) = restricted("changes-watched").await;
    let root = cluster.client(1);
    define(&root, "team.a").await;
    let grants = json!([{ "verbs": ["read", "propose"], "definitions": ["prod.*", "team.*"] }]);
    let (_, eve) = create_key(&root, &grants, &json!({})).await;
    known(&cluster.clients(), &eve, true).await;
    let begun = root.get("/api/v1/environment/prod").insist().await.expect(200);
    let begun: u64 = begun.header("x-concord-revision").parse().expect("a revision");
    let from = (begun + 1).to_string();
    let query = [("change_requests", "true"), ("from", from.as_str())];
    let by = |cluster: &Cluster, node: u64, key: &str| cluster.client(node).with_credential(key);

    let leader = cluster.leader().await;
    let [here, there] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let mut watch = by(&cluster, here, &ann).watch(&query, None).await;
    let mut of_records = by(&cluster, here, &ann).watch(&[("from", from.as_str())], None).await;
    let made = create(&by(&cluster, here, &ann), "make", 7).await;
    act(&by(&cluster, there, &bob), &made, "approve", "approve").await.expect(200);
    let told = watch.changes(2).await;
    assert_eq!(kinds(&told), ["created", "approved"]);
    let (revision, approved) = told.last().expect("two").clone();
    for (name, expected) in [
        ("change_id", made.data()["change_id"].clone()),
        ("title", json!("a change")),
        ("phase", json!("open")),
        ("edition", json!(1)),
        ("digest", made.data()["digest"].clone()),
        ("environments", json!(["prod"])),
        ("bypass", json!(false)),
    ] {
        assert_eq!(approved[name], expected, "{name}");
    }
    assert_eq!(approved["by"]["person"], "bob");
    drop(watch);
    // The leader dies; the watch resumes at another node with the last event that it has seen.
    cluster.node(leader).kill();
    act(&by(&cluster, here, &ann), &made, "apply", "apply").await.expect(200);
    let mut watch = by(&cluster, there, &ann).watch(&query, Some(revision)).await;
    let rest = watch.changes(1).await;
    assert_eq!(kinds(&rest), ["applied"]);
    cluster.node(leader).start().await;
    cluster.ready().await;
    // An edition that changes what ann may not read leaves her view, and comes back.
    let [first, last] = ["prod.limits", "team.a"];
    let put = |definition: &str| json!({"op": "create_config", "config_definition_key": definition, "config_key": "w", "data": {}});
    let body = |title: &str, definitions: &[&str]| json!({"title": title, "operations": definitions.iter().map(|key| put(key)).collect::<Vec<_>>()});
    let eves = by(&cluster, leader, &eve);
    let open = eves
        .post(CHANGES, &body("one", &[first]))
        .header("idempotency-key", "eve")
        .insist()
        .await
        .expect(201);
    let path = format!("{CHANGES}{}", text(&open, "change_id"));
    eves.put(&path, &body("a secret title", &[first, last]))
        .header("idempotency-key", "e2")
        .insist()
        .await
        .expect(200);
    eves.put(&path, &body("three", &[first])).header("idempotency-key", "e3").insist().await.expect(200);
    let rest = watch.changes(3).await;
    assert_eq!(kinds(&rest), ["created", "hidden", "edited"]);
    let hidden = json!({"type": "change_request_hidden", "change_id": open.data()["change_id"]});
    assert_eq!(rest[1].1, hidden);
    let told = polled(&by(&cluster, here, &ann), begun).await;
    let expected = ["created", "approved", "applied", "created", "hidden", "edited"];
    assert_eq!(kinds(&told), expected);
    assert!(!format!("{told:?}").contains("secret title"));
    let all = polled(&by(&cluster, here, &eve), begun).await;
    assert_eq!(kinds(&all), ["created", "approved", "applied", "created", "edited", "edited"]);
    assert_eq!(all[0].1["by"]["person"], json!("ann"), "a reviewer knows who asks");
    // The watch of records has what was applied, and nothing of change requests.
    let records = of_records.changes(1).await;
    assert_eq!((records[0].0, records[0].1["type"].as_str()), (told[2].0, Some("config_updated")));
    // Whatever a node has in memory: it is the same from the history.
    cluster.kill_all();
    cluster.start_all().await;
    cluster.ready().await;
    for node in cluster.clients() {
        assert_eq!(polled(&node.with_credential(&ann), begun).await, told);
        assert_eq!(polled(&node.with_credential(&eve), begun).await, all);
    }
    for (name, value) in [
        ("definition", "prod.limits"),
        ("initial", "true"),
        ("prev", "true"),
        ("port", "80"),
        ("search", "x"),
    ] {
        let node = by(&cluster, here, &ann);
        let refused =
            node.try_watch(&[("change_requests", "true"), (name, value)], None).await.err().flatten();
        refused.expect("a refusal").refused(422, "validation_error");
    }
    cluster.equal_digests().await;
}

#[tokio::test]
async fn what_is_scheduled_and_what_is_armed_is_done_once_by_the_next_leader() {
    let (mut cluster, ann, bob) = restricted("changes-scheduled").await;
    // The cluster applies it some seconds from now, and takes it back some seconds later: for both the leader dies.
    let begin = time(6);
    let times = json!({"apply": "when_approved", "schedule": {"not_before": begin}, "revert_after_s": 8});
    let by = |cluster: &Cluster, node: u64, key: &str| cluster.client(node).with_credential(key);
    let made = create_timed(&by(&cluster, 1, &ann), "make", 7, &times).await;
    act(&by(&cluster, 2, &bob), &made, "approve", "approve").await.expect(200);
    let mut killed = cluster.leader().await;
    cluster.node(killed).kill();
    let other = killed % 3 + 1;
    let applied =
        becomes(&by(&cluster, other, &ann), &made, "it is applied", |change| !change["applied"].is_null())
            .await;
    assert!(applied["applied"]["at"].as_str() >= Some(begin.as_str()), "{applied}");
    assert_eq!((&applied["applied"]["by"], &applied["phase"]), (&Value::Null, &json!("applied")));
    cluster.node(killed).start().await;
    cluster.ready().await;
    killed = cluster.leader().await;
    cluster.node(killed).kill();
    let other = killed % 3 + 1;
    let is_done = |change: &Value| change["revert"]["state"] == "done";
    let done = becomes(&by(&cluster, other, &ann), &made, "it is taken back", is_done).await;
    let (revert, armed) = (&done["revert"], &applied["revert"]);
    // It may have been taken back before anybody looked.
    assert!(armed["state"] == "done" || revert["at"].as_str() >= armed["due_at"].as_str(), "{done}");
    assert_eq!((&done["applied"], &revert["by"]), (&applied["applied"], &Value::Null));
    cluster.node(killed).start().await;
    cluster.ready().await;
    assert_eq!(values(&cluster.client(other)).await, [0, 7, 0], "one apply and one revert");
    cluster.equal_digests().await;
}
