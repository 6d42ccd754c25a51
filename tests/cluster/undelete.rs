//! A deleted definition returns as it was, at once or not at all, whatever happens to the nodes meanwhile.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use crate::harness::{
    Answer, Call, Client, Cluster, Options, check, eventually,
    load::{config, define, definition, everything, set},
    time::{lasts, pace},
};

fn configs(key: &str) -> String {
    format!("{}/config/", definition(key))
}

fn undelete(client: &Client, key: &str, body: &Value) -> Call {
    client.post(&format!("{}/undelete", definition(key)), body)
}

async fn delete(client: &Client, key: &str, id: &str) {
    let call = client.delete(&definition(key)).header("idempotency-key", id);
    call.insist().await.expect(200);
}

/// A definition with a schema, an index and a unique path.
async fn create(client: &Client, key: &str) {
    let schema = json!({"properties": {"name": {"type": "string"}, "n": {"type": "integer"}}});
    let body = json!({"config_definition_key": key, "indexes": ["n", "name"], "json_schema": schema});
    let call = client.post("/api/v1/config_definition/", &body).header("idempotency-key", key);
    call.insist().await.expect(201);
    let unique = client.put(&format!("{}/unique", definition(key)), &json!({"paths": ["name"]}));
    unique.header("idempotency-key", &format!("unique-{key}")).insist().await.expect(200);
}

fn data(n: u64, name: &str) -> Value {
    json!({"n": n, "name": name})
}

/// A record as it is shown, with its entity tag.
async fn shown(client: &Client, path: &str) -> (Value, String) {
    let answer = client.get(path).insist().await.expect(200);
    (answer.data().clone(), answer.tag())
}

async fn history(client: &Client, key: &str) -> Value {
    let answer = client.get(&format!("{}/history", config("d", key))).insist().await.expect(200);
    answer.data()["results"].clone()
}

fn message(answer: &Answer) -> &str {
    answer.body["errors"][0]["msg"].as_str().unwrap()
}

async fn at(client: &Client, key: &str, revision: u64) -> Answer {
    client.get(&config("d", key)).query(&[("revision", &revision.to_string())]).insist().await
}

/// The deleted definitions that are kept.
async fn deleted_definitions(client: &Client) -> Vec<Value> {
    let answer = client.get("/api/v1/deleted_definition/").insist().await.expect(200);
    answer.data()["results"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_deleted_definition_returns_with_its_configs_and_their_history() {
    let mut cluster = Cluster::start("undelete").await;
    let clients = cluster.clients();
    let first = &clients[0];
    create(first, "d").await;
    for n in 0..30 {
        set(first, "d", &format!("k{n}"), &data(n, &format!("name {n}"))).await;
    }
    set(first, "d", "k1", &data(100, "changed")).await;
    let (_, tag) = shown(first, &config("d", "k1")).await;
    let wanted: u64 = tag.trim_matches('"').parse().unwrap();
    let all = everything(first, "d").await;
    let before = (shown(first, &config("d", "k1")).await, history(first, "k1").await);
    delete(first, "d", "deletion").await;
    for client in &clients {
        client.get(&configs("d")).insist().await.refused(404, "not_found_error");
        let past = at(client, "k1", wanted).await.refused(404, "not_found_error");
        assert!(
            message(&past).contains("existed at revision") && message(&past).contains("undelete"),
            "{past:?}"
        );
    }
    let (kept, fields) = (deleted_definitions(first).await, |one: &Value| {
        (one["config_definition_key"].clone(), one["configs"].clone())
    });
    assert_eq!(kept.iter().map(fields).collect::<Vec<_>>(), [(json!("d"), json!(30))], "{kept:?}");
    // The nodes keep it on their disks.
    cluster.kill_all();
    cluster.start_all().await;
    cluster.ready().await;
    for client in &clients {
        assert_eq!(deleted_definitions(client).await, kept);
    }
    let dry = undelete(first, "d", &json!({})).query(&[("dry_run", "true")]).insist().await.expect(201);
    assert_eq!((&dry.data()["configs"], dry.header("x-concord-dry-run")), (&json!(30), "true"));
    first.get(&definition("d")).insist().await.expect(404);
    let mut watch = first.watch(&[("definition", "d")], None).await;
    let call = undelete(&clients[1], "d", &json!({})).header("idempotency-key", "undo");
    let answer = call.insist().await.expect(201);
    let deleted = answer.data()["deleted_revision"].as_u64().unwrap();
    assert_eq!(answer.data()["revision"], json!(deleted - 1));
    assert_eq!(kept[0]["deleted_revision"], json!(deleted));
    assert_eq!(deleted_definitions(first).await, Vec::<Value>::new());
    assert_eq!(call.insist().await.expect(201).data(), answer.data(), "a retry");
    for client in &clients {
        assert_eq!(everything(client, "d").await, all);
        assert_eq!((shown(client, &config("d", "k1")).await, history(client, "k1").await), before);
        let list = client.get(&configs("d")).query(&[("n[gte]", "29")]).insist().await;
        assert_eq!(list.config_keys().len(), 2);
        assert_eq!(at(client, "k1", wanted - 1).await.expect(200).data()["data"], data(1, "name 1"));
        let absent = at(client, "k1", deleted).await.refused(404, "not_found_error");
        assert!(message(&absent).contains("was deleted at revision"), "{absent:?}");
        for (revision, status) in [(deleted - 1, 200), (deleted, 404)] {
            let query = [("revision", revision.to_string())];
            let query = query.each_ref().map(|(name, value)| (*name, value.as_str()));
            client.get(&configs("d")).query(&query).insist().await.expect(status);
        }
        let taken = client.put(&config("d", "other"), &json!({"data": data(1, "changed")}));
        taken.header("if-none-match", "*").insist().await.refused(409, "conflict_error");
        let wrong = client.put(&config("d", "k2"), &json!({"data": {"n": "x"}}));
        wrong.insist().await.invalid();
    }
    undelete(first, "d", &json!({})).insist().await.refused(409, "conflict_error");
    // A watch from before it is told to resync, one from after it goes on.
    let mut resumed = first.watch(&[("definition", "d")], Some(deleted)).await;
    for watch in [&mut watch, &mut resumed] {
        let event = loop {
            let event = watch.event().await;
            if event.name == "error" {
                break event;
            }
            assert!(!format!("{event:?}").contains("definition_created"), "{event:?}");
        };
        let told = format!("{event:?}");
        assert!(told.contains("expired_error") && told.contains("its configs returned"), "{told}");
    }
    let later = first.get(&definition("d")).insist().await.revision();
    set(first, "d", "k1", &data(101, "after")).await;
    let mut after = first.watch(&[("definition", "d")], Some(later)).await;
    assert_eq!(after.changes(1).await.len(), 1);
    cluster.equal_digests().await;
}

#[tokio::test]
async fn it_returns_as_of_a_revision_or_a_time_and_not_over_another_one() {
    let cluster = Cluster::start("undelete-at").await;
    let client = &cluster.client(1);
    for (key, is_by_time) in [("d", false), ("e", true)] {
        let id = |name: &str| format!("{name}-{key}");
        create(client, key).await;
        for n in 0..5 {
            set(client, key, &format!("k{n}"), &data(n, &format!("name {n}"))).await;
        }
        let wanted = everything(client, key).await;
        let revision = client.get(&configs(key)).insist().await.expect(200).revision();
        let (newest, _) = shown(client, &config(key, "k4")).await;
        set(client, key, "k0", &data(7, "wrong")).await;
        client.delete(&config(key, "k1")).header("idempotency-key", &id("k1")).insist().await.expect(200);
        set(client, key, "new", &data(8, "name 1")).await;
        delete(client, key, &id("first")).await;
        // Another definition takes its key, and is deleted too: the first one can still return.
        let body = json!({"config_definition_key": key});
        let other = client.post("/api/v1/config_definition/", &body).header("idempotency-key", &id("other"));
        other.insist().await.expect(201);
        set(client, key, "other", &json!({"n": 1})).await;
        undelete(client, key, &json!({"revision": revision})).insist().await.refused(409, "conflict_error");
        let query = [("revision", revision.to_string())];
        let query = query.each_ref().map(|(name, value)| (*name, value.as_str()));
        let past =
            client.get(&config(key, "k0")).query(&query).insist().await.refused(404, "not_found_error");
        assert!(message(&past).contains("another definition has its key now"), "{past:?}");
        delete(client, key, &id("second")).await;
        let body =
            if is_by_time { json!({"time": newest["modified_at"]}) } else { json!({"revision": revision}) };
        let answer = undelete(client, key, &body).header("idempotency-key", &id("undo")).insist().await;
        assert_eq!(answer.expect(201).data()["configs"], json!(5));
        assert_eq!(everything(client, key).await, wanted);
        let page = client.get(&format!("{}/history", config(key, "k0"))).insist().await.expect(200);
        let names: Vec<&Value> =
            page.data()["results"].as_array().unwrap().iter().map(|one| &one["data"]["name"]).collect();
        assert_eq!(names, ["name 0", "wrong", "name 0"]);
        let taken = client.put(&config(key, "more"), &json!({"data": data(1, "name 1")}));
        taken.header("if-none-match", "*").insist().await.refused(409, "conflict_error");
        // It was deleted and protected since: its configs are data of the same schema all the same.
        set(client, key, "k3", &data(9, "wrong again")).await;
        for protected in [true, false] {
            let path = format!("{}/protection", definition(key));
            let call = client.put(&path, &json!({ "protected": protected }));
            call.header("idempotency-key", &id(&protected.to_string())).insist().await.expect(200);
        }
        delete(client, key, &id("again")).await;
        let early =
            undelete(client, key, &json!({"revision": revision})).header("idempotency-key", &id("early"));
        assert_eq!(early.insist().await.expect(201).data()["configs"], json!(5));
        assert_eq!(early.insist().await.expect(201).data()["configs"], json!(5), "a retry");
        assert_eq!(everything(client, key).await, wanted);
        // With other indexes it would not be what it was.
        let fewer = client.put(&definition(key), &json!({"indexes": ["name"]}));
        fewer.header("idempotency-key", &id("fewer")).insist().await.expect(200);
        delete(client, key, &id("deletion-of-fewer")).await;
        let early = undelete(client, key, &json!({"revision": revision})).insist().await;
        assert!(message(&early.refused(409, "conflict_error")).contains("other indexes"));
        let plain = undelete(client, key, &json!({})).header("idempotency-key", &id("plain")).insist().await;
        assert_eq!(plain.expect(201).data()["configs"], json!(5));
        assert_eq!(everything(client, key).await, wanted);
    }
    undelete(client, "d", &json!({"revision": 1, "time": "2026-01-01T00:00:00Z"})).insist().await.expect(422);
    // Gone for good: only what was deleted before is left of that key.
    let purge = client.delete(&definition("d")).query(&[("purge", "true")]);
    purge.header("idempotency-key", "purge").insist().await.expect(200);
    let answer = undelete(client, "d", &json!({})).query(&[("dry_run", "true")]).insist().await.expect(201);
    assert_eq!(answer.data()["configs"], json!(1), "the other one");
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_deletion_can_not_be_undone_once_its_history_is_compacted() {
    let options = Options::default().with("CONCORD_HISTORY_REVISIONS", "40");
    let cluster = Cluster::start_with("undelete-compacted", &options).await;
    let client = &cluster.client(1);
    define(client, "d").await;
    define(client, "other").await;
    set(client, "d", "k", &json!({"n": 1})).await;
    delete(client, "d", "deletion").await;
    for n in 0..100 {
        set(client, "other", "k", &json!({"n": n})).await;
    }
    let gone = eventually("what was deleted is dropped", async || {
        let dry = undelete(client, "d", &json!({})).query(&[("dry_run", "true")]).insist().await;
        check(dry.status == 404, || format!("{dry:?}")).map(|()| dry)
    })
    .await;
    let gone = gone.refused(404, "not_found_error");
    assert!(message(&gone).contains("while the history has them (from revision"), "{gone:?}");
    let early = undelete(client, "d", &json!({"revision": 3})).insist().await;
    assert!(message(&early.refused(410, "expired_error")).contains("is retained from revision"));
    cluster.equal_digests().await;
}

/// What readers of one definition have seen: the totals of its configs, `None` where there is no definition.
type Seen = Arc<Mutex<BTreeSet<Option<u64>>>>;

/// Reads the total of a definition's configs on a node, until it is stopped.
fn read_totals(client: Client, stop: Arc<AtomicBool>, seen: Seen) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while !stop.load(Ordering::SeqCst) {
            let query = [("limit", "1"), ("consistency", "local")];
            if let Ok(answer) = client.get(&configs("d")).query(&query).attempt().await {
                let total = match answer.status {
                    200 => Some(answer.total()),
                    404 => None,
                    _ => continue,
                };
                seen.lock().unwrap().insert(total);
            }
            pace(Duration::from_millis(2)).await;
        }
    })
}

#[tokio::test]
async fn a_large_definition_returns_whole_although_the_leader_is_killed() {
    const CONFIGS: usize = 20_000;
    let mut cluster = Cluster::start("undelete-killed").await;
    create(&cluster.client(1), "d").await;
    for part in 0..CONFIGS / 1000 {
        let operation = |n: usize| {
            let n = part * 1000 + n;
            json!({"op": "create_config", "config_definition_key": "d", "config_key": format!("k{n}"),
                   "data": {"n": n, "name": format!("name {n}")}})
        };
        let body = json!({"operations": (0..1000).map(operation).collect::<Vec<_>>()});
        let call = cluster.client(1).post("/api/v1/batch", &body);
        call.header("idempotency-key", &format!("part-{part}")).insist().await.expect(200);
    }
    let all = everything(&cluster.client(1), "d").await;
    assert_eq!(all.len(), CONFIGS);
    delete(&cluster.client(1), "d", "deletion").await;
    // Every node has applied it.
    cluster.equal_digests().await;
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Seen::default());
    let readers: Vec<_> = cluster
        .clients()
        .into_iter()
        .map(|client| read_totals(client, Arc::clone(&stop), Arc::clone(&seen)))
        .collect();
    eventually("the readers read", async || check(!seen.lock().unwrap().is_empty(), String::new)).await;
    let leader = cluster.leader().await;
    let follower = cluster.followers().await[0];
    let undo = undelete(&cluster.client(follower), "d", &json!({})).header("idempotency-key", "undo");
    let (sent, ()) = tokio::join!(undo.insist(), async {
        lasts(Duration::from_millis(3)).await;
        cluster.node(leader).kill();
    });
    sent.expect(201);
    undo.insist().await.expect(201);
    cluster.node(leader).start().await;
    cluster.ready().await;
    for client in cluster.clients() {
        assert!(everything(&client, "d").await == all);
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    let seen = seen.lock().unwrap().clone();
    assert!(seen.iter().all(|total| [None, Some(CONFIGS as u64)].contains(total)), "{seen:?}");
    assert!(seen.contains(&None) && seen.contains(&Some(CONFIGS as u64)), "{seen:?}");
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_deletion_says_whether_it_can_be_undone_also_in_a_batch() {
    let options = Options::default().with("CONCORD_DELETED_BYTES", "20000");
    let cluster = Cluster::start_with("undelete-told", &options).await;
    let first = &cluster.clients()[1];
    let fill = async |key: &str, bytes: usize| {
        define(first, key).await;
        set(first, key, "k", &json!({ "text": "x".repeat(bytes) })).await;
    };
    let told = |answer: &Answer| {
        let mut warnings = answer.headers.get_all("warning").iter();
        let is_warned = warnings.any(|text| text.to_str().unwrap().contains("can't be undone"));
        (answer.headers.get("x-concord-deletion").map(|value| value.to_str().unwrap().to_owned()), is_warned)
    };
    let (kept, gone) = ((Some("kept".to_owned()), false), (Some("final".to_owned()), true));
    for (key, bytes, expected) in [("small", 10, &kept), ("large", 50_000, &gone)] {
        fill(key, bytes).await;
        let delete = || first.delete(&definition(key));
        let dry = delete().query(&[("dry_run", "true")]).insist().await.expect(200);
        assert_eq!(&told(&dry), expected, "{key}");
        let done = delete().header("idempotency-key", &format!("delete-{key}"));
        for _ in 0..2 {
            assert_eq!(&told(&done.insist().await.expect(200)), expected, "{key}, and its retry");
        }
    }
    fill("purged", 10).await;
    let purge =
        first.delete(&definition("purged")).query(&[("purge", "true")]).header("idempotency-key", "purge");
    assert_eq!(told(&purge.insist().await.expect(200)), (Some("final".into()), false), "it was asked for");

    fill("small-2", 10).await;
    fill("large-2", 50_000).await;
    let delete = |key: &str| json!({"op": "delete_definition", "config_definition_key": key});
    let list = json!([delete("small-2"), delete("large-2")]);
    let absent = json!([{"config_definition_key": "none", "config_key": "k", "absent": true}]);
    let dry = first.post("/api/v1/batch", &json!({ "operations": list }));
    let dry = dry.query(&[("dry_run", "true")]).insist().await.expect(200);
    let call =
        first.post("/api/v1/batch", &json!({"if": absent, "then": list})).header("idempotency-key", "both");
    for answer in [dry, call.insist().await.expect(200), call.insist().await.expect(200)] {
        let results = answer.data()["results"].as_array().unwrap();
        assert_eq!(
            results.iter().map(|one| one["kept"].clone()).collect::<Vec<_>>(),
            [json!(true), json!(false)]
        );
        assert_eq!(told(&answer), (None, true));
    }
    let kept: Vec<Value> = deleted_definitions(first)
        .await
        .into_iter()
        .map(|one| one["config_definition_key"].clone())
        .collect();
    assert_eq!(kept, [json!("small-2"), json!("small")]);
    let none = undelete(first, "large-2", &json!({})).insist().await.refused(404, "not_found_error");
    assert_eq!(none.body["errors"][0]["code"], "deletion_not_kept", "{none:?}");
    let answer = at(first, "k", 1).await.refused(404, "not_found_error");
    assert_eq!(answer.body["errors"][0]["code"], "definition_not_found");
    define(first, "d").await;
    let answer = at(first, "k", 1).await.refused(404, "not_found_error");
    assert_eq!(answer.body["errors"][0]["code"], "definition_not_there", "{answer:?}");
    let revision = first.get("/api/v1/config_definition/").insist().await.expect(200).revision();
    let answer = at(first, "k", revision).await.refused(404, "not_found_error");
    assert_eq!(answer.body["errors"][0]["code"], "not_there", "{answer:?}");
}
