//! What a key sees of what it has no right to: nothing, in lists, batches, watches, history, cursors and errors.

use serde_json::{Value, json};

use super::{DEFINITIONS, Defined, Run, on_leader_and_follower};
use crate::{
    harness::{
        Answer, Client, check, eventually,
        load::definition,
        watch::{WATCH, Watch, changes_of},
    },
    hostile::grants::{KEYS, create_key, in_seconds, known},
};

/// What a key without the right to read learns of configs that share a value: that there are some.
const NOT_UNIQUE: &str = "a path can't be unique: several configs have the same value there";

/// A client with a new key, and the key's id.
async fn with_grants(run: &Run, grants: &Value) -> (Client, String) {
    let (id, key) = create_key(&run.node, grants, &json!({})).await;
    known(&run.all(), &key, true).await;
    (Client::new(&run.node.base, &key), id)
}

/// A client that may do this with the definitions of these patterns.
async fn may(run: &Run, verbs: &[&str], patterns: &[String]) -> Client {
    with_grants(run, &json!([{"verbs": verbs, "definitions": patterns}])).await.0
}

fn as_client(d: &Defined, node: &Client) -> Defined {
    Defined { key: d.key.clone(), node: node.clone() }
}

fn forbidden(answer: Answer) -> Answer {
    answer.refused(403, "forbidden_error")
}

/// The keys on a page of definitions.
fn definitions_of(answer: &Answer) -> Vec<String> {
    let records = answer.data()["results"].as_array().expect("a list");
    records.iter().map(|one| one["config_definition_key"].as_str().expect("a key").to_owned()).collect()
}

fn next(answer: &Answer) -> Option<String> {
    let link = answer.headers.get("link")?.to_str().expect("ASCII");
    Some(link.strip_prefix('<')?.strip_suffix(">; rel=\"next\"")?.to_owned())
}

#[tokio::test]
async fn a_refusal_is_the_same_whether_the_thing_exists_or_not() {
    on_leader_and_follower(async |run: Run| {
        let there = run.define_open("there").await;
        there.create("k", &json!({})).await.expect(201);
        let absent = run.key("absent");
        let stranger = may(&run, &["read", "write", "define"], &[run.key("other")]).await;
        let of = |key: &str| {
            let d = definition(key);
            let config = format!("{d}/config/k");
            let revision = [("revision", "1")];
            [
                stranger.get(&d),
                stranger.get(&format!("{d}/schema")),
                stranger.get(&format!("{d}/history")),
                stranger.get(&format!("{d}/config/")),
                stranger.get(&format!("{d}/config/")).query(&[("no-index", "1")]),
                stranger.get(&config),
                stranger.get(&config).query(&revision),
                stranger.get(&format!("{config}/history")),
                stranger.put(&config, &json!({"data": {}})),
                stranger.put(&config, &json!({"data": {}})).query(&[("dry_run", "true")]),
                stranger.put(&config, &json!({"data": {}})).header("if-match", "\"1\""),
                stranger.delete(&config),
                stranger.delete(&d),
                stranger.put(&d, &json!({"indexes": []})),
                stranger
                    .put(&format!("{d}/schema"), &json!({"json_schema": {}}))
                    .query(&[("dry_run", "true")]),
                stranger.post(&format!("{config}/rollback"), &json!({"revision": 1})),
                stranger.post(DEFINITIONS, &json!({"config_definition_key": key, "indexes": []})),
                stranger.get(WATCH).query(&[("definition", key), ("config_key", "k")]),
                stranger.get(WATCH).query(&[("definition", key), ("n", "1")]),
            ]
        };
        for (there, absent) in of(&there.key).into_iter().zip(of(&absent)) {
            let (there, absent) = (forbidden(there.await), forbidden(absent.await));
            assert_eq!(there.text, absent.text);
            assert_eq!(there.headers.len(), absent.headers.len(), "{there:?} {absent:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_batch_is_judged_operation_by_operation() {
    on_leader_and_follower(async |run: Run| {
        let (own, read_only, hidden) =
            (run.define_open("own").await, run.define_open("seen").await, run.define_open("hidden").await);
        hidden.create("k", &json!({"n": 1})).await.expect(201);
        read_only.create("k", &json!({"n": 1})).await.expect(201);
        let grants = json!([
            {"verbs": ["read", "write"], "definitions": [own.key]},
            {"verbs": ["read"], "definitions": [read_only.key]},
        ]);
        let (client, _) = with_grants(&run, &grants).await;
        let put = |d: &Defined| json!({"op": "create_config", "config_definition_key": d.key, "config_key": "new", "data": {}});
        let change = |op: &str, d: &Defined, more: Value| {
            let mut operation = json!({"op": op, "config_definition_key": d.key, "config_key": "k"});
            for (name, value) in more.as_object().expect("members") {
                operation[name] = value.clone();
            }
            operation
        };
        for d in [&read_only, &hidden] {
            let test = json!({"patch": [{"op": "test", "path": "/n", "value": 2}]});
            let operations = [
                put(d),
                change("put_config", d, json!({"data": {}})),
                change("patch_config", d, test),
                change("delete_config", d, json!({})),
                change("delete_config", d, json!({"if_match": "1"})),
                json!({"op": "set_indexes", "config_definition_key": d.key, "indexes": []}),
                json!({"op": "delete_definition", "config_definition_key": d.key}),
                json!({"op": "create_definition", "config_definition_key": d.key}),
            ];
            for operation in operations {
                let body = json!({"operations": [put(&own), operation]});
                for dry_run in ["true", "false"] {
                    let answer = client.post("/api/v1/batch", &body).query(&[("dry_run", dry_run)]).await;
                    let answer = forbidden(answer);
                    assert_eq!(answer.body["errors"][0]["loc"], json!(["operations", 1]), "{answer:?}");
                }
            }
        }
        own.get("new").await.expect(404);
        client.post("/api/v1/batch", &json!({"operations": [put(&own)]})).await.expect(200);
        own.get("new").await.expect(200);
        hidden.get("k").await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_list_of_definitions_has_those_that_the_key_may_read_and_their_number() {
    on_leader_and_follower(async |run: Run| {
        for name in ["a.one", "a.two", "a.three", "b", "b.one", "c"] {
            run.define_open(name).await;
        }
        let client = may(&run, &["read"], &[run.key("a.*"), run.key("b"), run.key("absent")]).await;
        let expected: Vec<String> =
            ["a.one", "a.three", "a.two", "b"].map(|name| run.key(name)).into_iter().collect();
        let list = |more: &[(&str, &str)]| client.get(DEFINITIONS).query(more);
        let by_key = [("sort_by", "config_definition_key"), ("sort_order", "asc")];
        let all = list(&by_key).await.expect(200);
        assert_eq!((definitions_of(&all), all.total()), (expected.clone(), 4));
        let none = list(&[("search", "c")]).await.expect(200);
        assert_eq!((definitions_of(&none), none.total()), (Vec::new(), 0), "{none:?}");
        let found = list(&by_key).query(&[("search", "ONE")]).await.expect(200);
        assert_eq!((definitions_of(&found), found.total()), (vec![run.key("a.one")], 1));
        for sort in ["config_definition_key", "created_at", "modified_at"] {
            for order in ["asc", "desc"] {
                let query = [("sort_by", sort), ("sort_order", order), ("limit", "1")];
                let mut page = list(&query).await.expect(200);
                let mut keys = Vec::new();
                for node in run.all().iter().cycle() {
                    assert_eq!(page.total(), 4, "{page:?}");
                    keys.extend(definitions_of(&page));
                    let Some(link) = next(&page) else { break };
                    page = Client::new(&node.base, &client.key).get(&link).await.expect(200);
                }
                keys.sort();
                assert_eq!(keys, expected, "every page on another node: {sort} {order}");
            }
        }
        let writer = may(&run, &["write", "define"], &[run.key("a.*")]).await;
        forbidden(writer.get(DEFINITIONS).await);
    })
    .await;
}

#[tokio::test]
async fn a_cursor_belongs_to_its_key_and_to_what_it_could_see() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for name in ["d2", "d3"] {
            run.define_open(name).await;
        }
        d.fill(&[("a", json!({})), ("b", json!({})), ("c", json!({}))]).await;
        let grants = json!([{"verbs": ["read"], "definitions": [run.key("*")]}]);
        let (one, id) = with_grants(&run, &grants).await;
        let (two, _) = with_grants(&run, &grants).await;
        for path in [d.configs(), DEFINITIONS.to_owned()] {
            let page = one.get(&path).query(&[("limit", "1")]).await.expect(200);
            let link = next(&page).expect("there are more");
            for node in run.all() {
                Client::new(&node.base, &one.key).get(&link).await.expect(200);
                for other in [&two, &run.node] {
                    let foreign = Client::new(&node.base, &other.key).get(&link).await;
                    foreign.refused(422, "validation_error");
                }
            }
        }
        // The key sees less from now on: the pages of what it saw are gone.
        let (configs, definitions) = (
            one.get(&d.configs()).query(&[("limit", "1")]).await.expect(200),
            one.get(DEFINITIONS).query(&[("limit", "1")]).await.expect(200),
        );
        let fewer = json!({"grants": [{"verbs": ["read"], "definitions": [run.key("d2*")]}]});
        let change = run.node.call(http::Method::PATCH, &format!("{KEYS}{id}")).json(&fewer);
        change.settled().await.expect("an answer").expect(200);
        for node in run.all() {
            let node = Client::new(&node.base, &one.key);
            eventually("the node knows the change", async || {
                let answer = node.get(&d.path()).attempt().await?;
                check(answer.status == 403, || format!("{answer:?}"))
            })
            .await;
            forbidden(node.get(&next(&configs).expect("a link")).await);
            node.get(&next(&definitions).expect("a link")).await.refused(422, "validation_error");
            assert_eq!(node.get(DEFINITIONS).await.expect(200).total(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn a_key_that_may_only_write_learns_nothing_that_is_stored() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "m": {"type": "integer"}}});
        let d = run.define("d", &json!(["name"]), &schema).await;
        run.node.put(&format!("{}/unique", d.path()), &json!({"paths": ["name"]})).await.expect(200);
        d.create("hidden", &json!({"name": "taken", "n": 1})).await.expect(201);
        let writer = as_client(&d, &may(&run, &["write"], std::slice::from_ref(&d.key)).await);
        let told = |answer: Answer| {
            assert!(!answer.text.contains("hidden"), "{answer:?}");
            answer
        };
        told(writer.create("k", &json!({"name": "taken"})).await).refused(409, "conflict_error");
        let create = json!({"op": "create_config", "config_definition_key": d.key, "config_key": "k", "data": {"name": "taken"}});
        let batch = writer.node.post("/api/v1/batch", &json!({"operations": [create]})).await;
        let batch = told(batch).refused(409, "conflict_error");
        assert_eq!(batch.body["errors"][0]["loc"], json!(["operations", 0]));
        writer.create("k", &json!({"name": "free"})).await.expect(201);
        let patch = writer.node.call(http::Method::PATCH, &d.config("hidden"));
        forbidden(patch.text("application/merge-patch+json", "{}").await);
        forbidden(writer.get("k").await);
        forbidden(writer.node.post(&format!("{}/rollback", d.config("hidden")), &json!({"revision": 1})).await);

        let definer = may(&run, &["define", "delete"], std::slice::from_ref(&d.key)).await;
        let strict = json!({"json_schema": {"type": "object", "properties": {"n": {"type": "string"}, "name": {"type": "string"}, "m": {"type": "integer"}}}});
        let path = format!("{}/schema", d.path());
        told(definer.put(&path, &strict).await).refused(422, "validation_error");
        forbidden(definer.put(&path, &strict).query(&[("dry_run", "true")]).await);
        d.create("hidden2", &json!({"name": "taken2", "m": 1})).await.expect(201);
        run.node.put(&d.path(), &json!({"indexes": ["name", "m"]})).await.expect(200);
        d.create("hidden3", &json!({"name": "taken3", "m": 1})).await.expect(201);
        let unique = definer.put(&format!("{}/unique", d.path()), &json!({"paths": ["m"]})).await;
        let unique = told(unique).refused(409, "conflict_error");
        assert_eq!(unique.body["errors"][0]["msg"], NOT_UNIQUE);
        let set_unique = json!({"op": "set_unique", "config_definition_key": d.key, "paths": ["m"]});
        let batch = definer.post("/api/v1/batch", &json!({"operations": [set_unique]})).await;
        let batch = told(batch).refused(409, "conflict_error");
        assert_eq!(batch.body["errors"][0]["msg"], NOT_UNIQUE);
        assert_eq!(batch.body["errors"][0]["loc"], json!(["operations", 0]));
        let by_root = run.node.post("/api/v1/batch", &json!({"operations": [set_unique]})).await;
        let by_root = by_root.refused(409, "conflict_error");
        assert!(by_root.text.contains("configs `hidden2` and `hidden3`"), "{by_root:?}");
        let full = definer.delete(&d.path()).query(&[("mode", "restrict")]).await;
        let full = full.refused(409, "conflict_error");
        assert!(!full.text.contains("4 configs"), "it does not say how many: {full:?}");
        let stored = told(definer.put(&path, &strict).query(&[("policy", "force")]).await.expect(200));
        assert!(stored.header("x-concord-breaking-configs").is_empty(), "{stored:?}");
        let by_root = run.node.put(&path, &strict).query(&[("dry_run", "true")]).await.expect(200);
        assert_eq!(by_root.data()["breaking_count"], 1);
    })
    .await;
}

#[tokio::test]
async fn an_idempotency_key_belongs_to_the_access_key() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let one = as_client(&d, &may(&run, &["write"], std::slice::from_ref(&d.key)).await);
        let two = as_client(&d, &may(&run, &["write"], std::slice::from_ref(&d.key)).await);
        let id = run.key("request");
        let create = |client: &Defined| client.create("k", &json!({})).header("idempotency-key", &id);
        create(&one).await.expect(201);
        create(&one).await.expect(201);
        create(&two).await.refused(409, "conflict_error");
        let other = two.create("other", &json!({})).header("idempotency-key", &id).await;
        other.refused(422, "validation_error");
        one.create("other", &json!({})).header("idempotency-key", &run.key("new")).await.expect(201);
    })
    .await;
}

async fn all_changes_until(watch: &mut Watch, last: &str) -> Vec<Value> {
    let mut seen = Vec::new();
    loop {
        let event = watch.data_event().await;
        let mut changes: Vec<Value> = match event.name.as_str() {
            "change" => changes_of(&event).into_iter().map(|(_, change)| change).collect(),
            "state" => ["definitions", "configs"]
                .iter()
                .flat_map(|name| event.data[name].as_array().unwrap())
                .cloned()
                .collect(),
            other => panic!("{other}: {event:?}"),
        };
        seen.append(&mut changes);
        if seen.iter().any(|change| change["config_key"] == last) {
            return seen;
        }
    }
}

#[tokio::test]
async fn a_watch_of_everything_is_of_what_the_key_may_read() {
    on_leader_and_follower(async |run: Run| {
        let (own, hidden) = (run.define_open("own.a").await, run.define_open("hidden").await);
        let begin = own.create("first", &json!({})).await.expect(201).revision();
        hidden.create("secret", &json!({"secret": 1})).await.expect(201);
        let client = may(&run, &["read"], &[run.key("own.*")]).await;
        let from = begin.to_string();
        let mut watches = Vec::new();
        for node in run.all() {
            let node = Client::new(&node.base, &client.key);
            for query in [&[][..], &[("initial", "true")], &[("from", from.as_str())]] {
                watches.push(node.watch(query, None).await);
            }
        }
        let put = |d: &Defined, key: &str| json!({"op": "create_config", "config_definition_key": d.key, "config_key": key, "data": {"secret": 2}});
        run.node.post("/api/v1/batch", &json!({"operations": [put(&hidden, "b"), put(&own, "b")]})).await.expect(200);
        hidden.remove("secret").await.expect(200);
        let late = run.define_open("own.b").await;
        late.create("last", &json!({})).await.expect(201);
        for watch in &mut watches {
            let seen = all_changes_until(watch, "last").await;
            assert!(seen.iter().any(|change| change["config_key"] == "b"), "{seen:?}");
            for change in seen {
                let key = change["config_definition_key"].as_str().expect("a key");
                assert!(key.starts_with(&run.key("own.")), "{change:?}");
            }
        }
        let both = [("definition", own.key.as_str()), ("definition", hidden.key.as_str())];
        forbidden(client.get(WATCH).query(&both).await);
    })
    .await;
}

/// Reads a watch until it ends, for the error that it ends with.
async fn error_of(watch: &mut Watch) -> Value {
    loop {
        let event = watch.next().await.expect("the stream is not cut off").expect("it ends with an error");
        if event.name == "error" {
            assert_eq!(watch.next().await, Ok(None), "nothing follows");
            return event.data;
        }
    }
}

#[tokio::test]
async fn a_watch_ends_with_the_right_to_it() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let grants = json!([{"verbs": ["read"], "definitions": [d.key]}]);
        let named = [("definition", d.key.as_str())];
        let nodes = run.all();
        let open = async |key: &str| {
            let mut watches = Vec::new();
            for node in &nodes {
                let node = Client::new(&node.base, key);
                watches.push(node.watch(&named, None).await);
                watches.push(node.watch(&[], None).await);
            }
            watches
        };
        let end = async |mut watches: Vec<Watch>, kind: &str| {
            for watch in &mut watches {
                let error = error_of(watch).await;
                assert_eq!(error["errors"][0]["type"], kind, "{error}");
            }
        };
        let (revoked, id) = with_grants(&run, &grants).await;
        let watches = open(&revoked.key).await;
        run.node.delete(&format!("{KEYS}{id}")).settled().await.expect("an answer").expect(200);
        end(watches, "unauthorized_error").await;

        let (limited, id) = with_grants(&run, &grants).await;
        let watches = open(&limited.key).await;
        let fewer = json!({"grants": [{"verbs": ["write"], "definitions": [d.key]}]});
        let change = run.node.call(http::Method::PATCH, &format!("{KEYS}{id}")).json(&fewer);
        change.settled().await.expect("an answer").expect(200);
        end(watches, "forbidden_error").await;

        let (_, expiring) = create_key(&run.node, &grants, &json!({"expires_at": in_seconds(15)})).await;
        known(&nodes, &expiring, true).await;
        end(open(&expiring).await, "unauthorized_error").await;
    })
    .await;
}

/// The texts of a member of the rows of a list.
fn names_in(usage: &Answer, list: &str, member: &str) -> Vec<String> {
    let rows = usage.data()[list].as_array().expect("a list");
    rows.iter().map(|row| row[member].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn the_usage_names_what_a_key_has_a_permission_for() {
    const USAGE: &str = "/api/v1/cluster/usage";
    on_leader_and_follower(async |run: Run| {
        let (own, other) = (run.define_open("own").await, run.define_open("other").await);
        for d in [&own, &other] {
            d.create("k", &json!({"n": 1})).await.expect(201);
            d.get("k").await.expect(200);
        }
        let patterns = [run.key("own*")];
        let observe = |grant: Value| json!([{"verbs": ["observe"], "definitions": []}, grant]);
        let pages = async |grants: &Value| {
            let (client, id) = with_grants(&run, grants).await;
            // What it used before is counted by now.
            client.get(USAGE).await.expect(200);
            let metrics = client.get("/metrics").await.expect(200).text;
            (client.get(USAGE).await.expect(200), metrics, id)
        };
        let label = |name: &str| format!("\"{name}\"");
        for verb in ["observe", "read", "write", "define", "delete"] {
            let (usage, metrics, id) =
                pages(&observe(json!({"verbs": [verb], "definitions": patterns}))).await;
            assert_eq!(
                names_in(&usage, "definitions", "config_definition_key"),
                [own.key.as_str()],
                "{verb}"
            );
            let row = &usage.data()["definitions"][0];
            assert_eq!((&row["configs"], row["stored_bytes"].as_u64() > Some(0)), (&json!(1), true), "{row}");
            assert_eq!(
                names_in(&usage, "keys", "key_id"),
                [id.as_str()],
                "{verb}: the others are no concern of it"
            );
            let others = &usage.data()["other_keys"]["requests"];
            assert!(others.as_u64() >= Some(6), "they are in the sum: {others}");
            assert!(metrics.contains(&label(&own.key)) && !metrics.contains(&label(&other.key)), "{metrics}");
            assert!(
                metrics.contains(&label(&id)) && !metrics.contains("by=\"key\",name=\"root\""),
                "{metrics}"
            );
        }
        let (usage, metrics, _) = pages(&observe(json!({"verbs": ["audit"], "definitions": ["*"]}))).await;
        assert_eq!(names_in(&usage, "definitions", "config_definition_key"), [""; 0]);
        assert!(!metrics.contains("concord_definition_configs{"), "{metrics}");
        let (usage, metrics, _) = pages(&json!([{"verbs": ["observe"], "definitions": ["*"]}])).await;
        assert!(names_in(&usage, "keys", "key_id").contains(&"root".to_owned()), "{usage:?}");
        assert!(metrics.contains("by=\"key\",name=\"root\""), "{metrics}");
        // A key can't give what it lacks.
        let manager = with_grants(&run, &json!([{"verbs": ["observe", "keys"], "definitions": []}])).await.0;
        let wanted = json!({"name": "more", "grants": [{"verbs": ["observe"], "definitions": ["*"]}]});
        forbidden(manager.post(KEYS, &wanted).await);
        forbidden(may(&run, &["read", "write", "define", "delete"], &patterns).await.get(USAGE).await);
    })
    .await;
}
