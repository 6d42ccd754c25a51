//! Environments and their freezes: who sees and changes them, and what a freeze refuses.
//!
//! A freeze of `default` would stop the other tests; `tests/cluster/freezes.rs` has it.

use http::Method;
use serde_json::{Value, json};

use super::{DEFINITIONS, Defined, Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Call, Client, check, eventually},
    hostile::grants::{KEYS, VERBS, create_key, in_seconds, known},
};

/// The path of the collection.
const ENVIRONMENTS: &str = "/api/v1/environment/";

pub(super) fn path(name: &str) -> String {
    format!("{ENVIRONMENTS}{name}")
}

/// A freeze that lasts from now for an hour.
fn freeze() -> Value {
    json!({"until": in_seconds(3600), "reason": "incident 4711"})
}

/// Puts an environment with these freezes.
fn put(node: &Client, name: &str, freezes: &[Value]) -> Call {
    node.put(&path(name), &json!({ "freeze": freezes }))
}

/// Deletes an environment. `bypass`: also one that takes change requests only.
pub(super) async fn end(run: &Run, name: &str, bypass: bool) {
    let mut delete = run.node.delete(&path(name));
    if bypass {
        delete = delete.query(&[("bypass", "true")]).header("x-change-reason", "the test is over");
    }
    let ended = delete.await;
    assert!(matches!(ended.status, 200 | 404), "{ended:?}");
}

pub(super) fn code(answer: &Answer) -> &str {
    answer.body["errors"][0]["code"].as_str().unwrap_or_default()
}

/// Asserts that a freeze refused a request.
#[track_caller]
fn frozen(answer: Answer, name: &str) -> Answer {
    let answer = answer.refused(409, "conflict_error");
    assert_eq!(code(&answer), "environment_frozen", "{answer:?}");
    let msg = answer.body["errors"][0]["msg"].as_str().expect("a text");
    assert!(msg.contains(&format!("`{name}`")) && msg.contains("until "), "{answer:?}");
    let seconds: u64 = answer.header("retry-after").parse().expect("the rest of the freeze");
    assert!((1..=3700).contains(&seconds), "{answer:?}");
    answer
}

/// A definition in an environment, with the config `k`.
pub(super) async fn definition_in(run: &Run, environment: &str) -> Defined {
    let key = format!("{environment}.limits");
    run.ask(&key, &json!(["n"]), &Value::Null).await.expect(201);
    let made = Defined { key, node: run.node.clone() };
    made.create("k", &json!({"n": 1})).await.expect(201);
    made
}

#[tokio::test]
async fn an_environment_is_created_replaced_and_deleted() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let get = || run.node.get(&path(&name));
        get().await.refused(404, "not_found_error");
        assert_eq!(code(&get().await), "environment_not_found");
        let made = put(&run.node, &name, &[]).await.expect(201);
        assert_eq!(made.header("location"), path(&name));
        assert_eq!(made.data()["environment"], *name);
        assert_eq!((&made.data()["direct"], &made.data()["approvals"]), (&json!("allow"), &json!(0)));
        assert_eq!((&made.data()["freeze"], &made.data()["frozen_until"]), (&json!([]), &Value::Null));
        for node in run.all() {
            let read = node.get(&path(&name)).await.expect(200);
            assert_eq!((read.data(), read.tag()), (made.data(), made.tag()));
            let all = node.get(ENVIRONMENTS).await.expect(200);
            assert!(all.keys_of("environment").contains(&name), "{all:?}");
        }
        let created = || put(&run.node, &name, &[]).header("if-none-match", "*");
        created().await.refused(412, "precondition_failed");
        let stored = put(&run.node, &name, &[freeze()]).header("if-match", &made.tag()).await.expect(200);
        assert_ne!(stored.tag(), made.tag());
        let one = &stored.data()["freeze"][0];
        assert_eq!((&one["reason"], &one["by"]), (&json!("incident 4711"), &json!("root")));
        assert_eq!(stored.data()["frozen_until"], one["until"]);
        put(&run.node, &name, &[]).header("if-match", &made.tag()).await.refused(412, "precondition_failed");
        run.node
            .delete(&path(&name))
            .header("if-match", &made.tag())
            .await
            .refused(412, "precondition_failed");
        let gone = run.node.delete(&path(&name)).header("if-match", &stored.tag()).await.expect(200);
        assert_eq!(*gone.data(), json!({ "environment": name }));
        get().await.refused(404, "not_found_error");
        run.node.delete(&path(&name)).await.refused(404, "not_found_error");
        put(&run.node, &name, &[]).header("if-match", "*").await.refused(404, "not_found_error");
        created().await.expect(201);
        end(&run, &name, false).await;
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_of_an_environment_stores_nothing() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let dry = |call: Call| call.query(&[("dry_run", "true")]);
        let tried = dry(put(&run.node, &name, &[freeze()])).await.expect(201);
        assert_eq!((tried.header("x-concord-dry-run"), tried.header("etag")), ("true", ""));
        assert_eq!(tried.data()["freeze"][0]["reason"], "incident 4711");
        run.node.get(&path(&name)).await.refused(404, "not_found_error");
        dry(run.node.delete(&path(&name))).await.refused(404, "not_found_error");
        let made = put(&run.node, &name, &[freeze()]).await.expect(201);
        let tried = dry(put(&run.node, &name, &[])).await.expect(200);
        assert_eq!((&tried.data()["freeze"], &tried.data()["frozen_until"]), (&json!([]), &Value::Null));
        dry(put(&run.node, &name, &[])).header("if-match", "\"1\"").await.refused(412, "precondition_failed");
        dry(run.node.delete(&path(&name))).await.expect(200);
        assert_eq!(run.node.get(&path(&name)).await.expect(200).tag(), made.tag());
        end(&run, &name, false).await;
    })
    .await;
}

#[tokio::test]
async fn a_put_names_all_freezes_and_a_retry_is_done_once() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let later = json!({"from": in_seconds(7200), "until": in_seconds(9000), "reason": "night"});
        let id = run.key("id");
        let both = [later, freeze()];
        let first = put(&run.node, &name, &both).header("idempotency-key", &id).await.expect(201);
        assert_eq!(first.data()["freeze"][1]["reason"], "night", "by their begin");
        // What was read can be sent back: the times, the reasons and who set them stay.
        let sent: Vec<Value> = first.data()["freeze"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| json!({"from": one["from"], "until": one["until"], "reason": one["reason"]}))
            .collect();
        let all = json!([{"verbs": ["define"], "definitions": [format!("{name}.*")]}]);
        let (id_of_key, key) = create_key(&run.node, &all, &json!({})).await;
        known(&run.all(), &key, true).await;
        let again = put(&run.node.with_credential(&key), &name, &sent).await.expect(200);
        assert_eq!(again.data()["freeze"], first.data()["freeze"]);
        let ended = put(&run.node.with_credential(&key), &name, &sent[1..]).await.expect(200);
        assert_eq!(
            (&ended.data()["frozen_until"], &ended.data()["freeze"][0]["by"]),
            (&Value::Null, &json!("root"))
        );
        for node in run.all() {
            // It was done before, and undone since.
            let answer = put(&node, &name, &both).header("idempotency-key", &id).await.expect(201);
            assert_eq!(answer.data()["freeze"], ended.data()["freeze"], "{answer:?}");
        }
        run.node.delete(&format!("{KEYS}{id_of_key}")).await.expect(200);
        end(&run, &name, false).await;
        // It was done before, whatever came after it.
        let answer = put(&run.node, &name, &both).header("idempotency-key", &id).await.expect(201);
        assert_eq!(answer.data()["freeze"].as_array().map(Vec::len), Some(2), "{answer:?}");
        run.node.get(&path(&name)).await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_environment_is_refused_with_its_place() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let refused = async |body: Value, loc: Value| {
            let answer = run.node.put(&path(&name), &body).await.invalid();
            assert_eq!(
                (code(&answer), &answer.body["errors"][0]["loc"]),
                ("environment_invalid", &loc),
                "{answer:?}"
            );
            answer.body["errors"][0]["msg"].as_str().expect("a text").to_owned()
        };
        let soon = in_seconds(60);
        for (freeze, member) in [
            (json!({"until": in_seconds(-60), "reason": "r"}), "until"),
            (json!({"from": soon, "until": soon, "reason": "r"}), "until"),
            (json!({"from": soon, "until": in_seconds(367 * 86_400), "reason": "r"}), "until"),
            (json!({"until": in_seconds(367 * 86_400), "reason": "r"}), "until"),
            (json!({"until": "soon", "reason": "r"}), "until"),
            (json!({"until": soon, "reason": ""}), "reason"),
            (json!({"until": soon, "reason": "r".repeat(256)}), "reason"),
            (json!({"until": soon, "reason": "\u{1b}[2K"}), "reason"),
            (json!({"until": soon, "reason": "\u{202e}"}), "reason"),
        ] {
            refused(json!({"freeze": [freeze]}), json!(["freeze", 0, member])).await;
        }
        refused(json!({"freeze": vec![freeze(); 17]}), json!(["freeze"])).await;
        refused(json!({"direct": "never", "freeze": []}), json!(["direct"])).await;
        refused(json!({"approvals": 11, "freeze": []}), json!(["approvals"])).await;
        let missing = run.node.put(&path(&name), &json!({})).await;
        missing.detail(&[(json!(["body", "freeze"]), "missing")]);
        let unknown = run.node.put(&path(&name), &json!({"freeze": [], "rollout": {}})).await;
        unknown.detail(&[(json!(["body", "rollout"]), "extra_forbidden")]);
        for wrong in ["a.b", ".a", &"a".repeat(65)] {
            let answer = put(&run.node, wrong, &[]).await.invalid();
            assert_eq!(answer.body["errors"][0]["loc"], json!(["environment"]), "{answer:?}");
        }
        run.node.get(&path(&name)).await.refused(404, "not_found_error");
    })
    .await;
}

/// Every change of a definition in an environment and of its configs, each of which would be done without a freeze.
pub(super) fn changes(d: &Defined, earlier: u64) -> Vec<(&'static str, Call)> {
    let node = &d.node;
    let batch = |body: Value| node.post("/api/v1/batch", &body);
    let write =
        |op: &str| json!({"op": op, "config_definition_key": d.key, "config_key": "k", "data": {"n": 2}});
    let delete = json!({"op": "delete_config", "config_definition_key": d.key, "config_key": "k"});
    let if_absent =
        |absent: bool| json!({"config_definition_key": d.key, "config_key": "k", "absent": absent});
    let new = json!({"config_definition_key": format!("{}2", d.key), "indexes": []});
    vec![
        ("create a definition", node.post(DEFINITIONS, &new)),
        ("indexes", node.put(&d.path(), &json!({"indexes": []}))),
        (
            "schema",
            node.put(&format!("{}/schema", d.path()), &json!({"json_schema": {"properties": {"n": {}}}})),
        ),
        ("unique", node.put(&format!("{}/unique", d.path()), &json!({"paths": ["n"]}))),
        ("protection", node.put(&format!("{}/protection", d.path()), &json!({"protected": true}))),
        ("create", d.create("new", &json!({}))),
        ("put", d.put("k", &json!({"n": 2}))),
        ("upsert", d.put("other", &json!({"n": 3})).query(&[("upsert", "true")])),
        ("create by put", d.put("third", &json!({"n": 4})).header("if-none-match", "*")),
        (
            "patch",
            node.call(Method::PATCH, &d.config("k")).text("application/merge-patch+json", r#"{"n":5}"#),
        ),
        ("rollback", node.post(&format!("{}/rollback", d.config("k")), &json!({ "revision": earlier }))),
        ("batch", batch(json!({"operations": [write("put_config")]}))),
        ("then", batch(json!({"if": [if_absent(false)], "then": [write("put_config")], "else": []}))),
        ("else", batch(json!({"if": [if_absent(true)], "then": [], "else": [write("put_config")]}))),
        ("delete in a batch", batch(json!({"operations": [delete]}))),
        ("delete", d.remove("k")),
        ("delete the definition", node.delete(&d.path())),
        ("delete it for good", node.delete(&d.path()).query(&[("purge", "true")])),
    ]
}

/// Everything that a definition and its config show.
async fn shown(d: &Defined) -> Vec<Value> {
    let mut all = Vec::new();
    for part in ["", "/schema", "/unique", "/protection", "/indexes", "/history", "/config/"] {
        all.push(d.node.get(&format!("{}{part}", d.path())).await.expect(200).body);
    }
    all.push(d.get("k").await.expect(200).body);
    all
}

#[tokio::test]
async fn a_freeze_refuses_every_change_and_no_read() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        let earlier = d.get("k").await.revision();
        let outside = definition_in(&run, &run.key("other")).await;
        put(&run.node, &name, &[freeze()]).await.expect(201);
        let before = shown(&d).await;
        for (what, call) in changes(&d, earlier) {
            for call in [call.clone().query(&[("dry_run", "true")]), call] {
                let answer = call.await;
                assert_eq!(answer.status, 409, "{what}: {answer:?}");
                frozen(answer, &name);
            }
        }
        assert_eq!(shown(&d).await, before);
        outside.put("k", &json!({"n": 2})).await.expect(200);
        // A batch is refused as a whole, and names the operation.
        let write = |key: &str| json!({"op": "put_config", "config_definition_key": key, "config_key": "k", "data": {}});
        let both = json!({"operations": [write(&outside.key), write(&d.key)]});
        let refused = frozen(run.node.post("/api/v1/batch", &both).await, &name);
        assert_eq!(refused.body["errors"][0]["loc"], json!(["operations", 1]), "{refused:?}");
        assert_eq!(outside.get("k").await.data()["data"], json!({"n": 2}));
        // Reads in a batch change nothing.
        let read = json!({"op": "get_config", "config_definition_key": d.key, "config_key": "k"});
        run.node.post("/api/v1/batch", &json!({"operations": [read, write(&outside.key)]})).await.expect(200);
        end(&run, &name, false).await;
        for (what, call) in changes(&d, earlier) {
            let answer = call.query(&[("dry_run", "true")]).await;
            assert!(matches!(answer.status, 200 | 201), "{what} without a freeze: {answer:?}");
        }
        d.put("k", &json!({"n": 9})).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_freeze_refuses_an_undelete() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        run.node.delete(&d.path()).await.expect(200);
        put(&run.node, &name, &[freeze()]).await.expect(201);
        let undelete = || run.node.post(&format!("{}/undelete", d.path()), &json!({}));
        frozen(undelete().await, &name);
        frozen(undelete().query(&[("dry_run", "true")]).await, &name);
        end(&run, &name, false).await;
        undelete().await.expect(201);
    })
    .await;
}

#[tokio::test]
async fn a_freeze_ends_by_itself_and_begins_at_its_time() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        let soon = json!({"from": in_seconds(2), "until": in_seconds(4), "reason": "a moment"});
        let made = put(&run.node, &name, &[soon]).await.expect(201);
        assert_eq!(made.data()["frozen_until"], Value::Null);
        eventually("the freeze begins", async || {
            let answer = d.put("k", &json!({"n": 2})).await;
            check(answer.status == 409, || format!("{answer:?}"))
        })
        .await;
        eventually("the freeze ends", async || {
            let answer = d.put("k", &json!({"n": 3})).await;
            check(answer.status == 200, || format!("{answer:?}"))
        })
        .await;
        assert_eq!(run.node.get(&path(&name)).await.data()["frozen_until"], Value::Null);
        end(&run, &name, false).await;
    })
    .await;
}

#[tokio::test]
async fn a_refusal_by_a_freeze_is_not_remembered_and_an_earlier_answer_is() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let d = definition_in(&run, &name).await;
        let with = |call: Call, id: &str| call.header("idempotency-key", &run.key(id));
        let patch = || {
            run.node.call(Method::PATCH, &d.config("k")).text("application/merge-patch+json", r#"{"n":5}"#)
        };
        let write =
            json!({"op": "put_config", "config_definition_key": d.key, "config_key": "k", "data": {"n": 6}});
        let exists = json!({"config_definition_key": d.key, "config_key": "k", "absent": false});
        let calls = || {
            [
                ("put", d.put("k", &json!({"n": 4}))),
                ("patch", patch()),
                ("batch", run.node.post("/api/v1/batch", &json!({"operations": [write]}))),
                (
                    "then",
                    run.node.post("/api/v1/batch", &json!({"if": [exists], "then": [write], "else": []})),
                ),
            ]
        };
        let done = with(d.put("k", &json!({"n": 2})), "before").await.expect(200);
        put(&run.node, &name, &[freeze()]).await.expect(201);
        let again = with(d.put("k", &json!({"n": 2})), "before").await.expect(200);
        assert_eq!(again.tag(), done.tag(), "it was decided before the freeze");
        for (id, call) in calls() {
            frozen(with(call, id).await, &name);
        }
        end(&run, &name, false).await;
        for (id, call) in calls() {
            with(call, id).await.expect(200);
        }
    })
    .await;
}

#[tokio::test]
async fn a_freeze_is_judged_right_after_the_rights() {
    on_leader_and_follower(async |run: Run| {
        let name = run.key("env");
        let key = format!("{name}.limits");
        run.ask(&key, &json!([]), &json!({"properties": {"n": {"type": "integer"}}})).await.expect(201);
        let d = Defined { key, node: run.node.clone() };
        d.create("k", &json!({"n": 1})).await.expect(201);
        put(&run.node, &name, &[freeze()]).await.expect(201);
        // Neither the data nor the precondition nor the existence of anything is told.
        frozen(d.put("k", &json!({"n": "x"})).await, &name);
        frozen(d.put("k", &json!({"n": 1})).header("if-match", "\"1\"").await, &name);
        frozen(d.put("absent", &json!({"n": 1})).await, &name);
        frozen(run.node.put(&format!("{DEFINITIONS}{name}.absent"), &json!({"indexes": []})).await, &name);
        let grants = json!([{"verbs": ["read"], "definitions": ["*"]}, {"verbs": VERBS, "definitions": ["elsewhere.*"]}]);
        let (id, reader) = create_key(&run.node, &grants, &json!({})).await;
        known(&run.all(), &reader, true).await;
        let reader = run.node.with_credential(&reader);
        let body = json!({"data": {"n": 1}});
        reader.put(&d.config("k"), &body).await.refused(403, "forbidden_error");
        run.node.delete(&format!("{KEYS}{id}")).await.expect(200);
        end(&run, &name, false).await;
    })
    .await;
}

#[tokio::test]
async fn an_environment_is_seen_by_who_may_name_a_definition_in_it_and_changed_by_who_defines_all_of_it() {
    on_leader_and_follower(async |run: Run| {
        let (name, other) = (run.key("env"), run.key("env2"));
        put(&run.node, &name, &[]).await.expect(201);
        put(&run.node, &other, &[]).await.expect(201);
        let mut made = Vec::new();
        let mut key = async |verbs: &[&str], definitions: &[String]| {
            let grants = json!([{"verbs": verbs, "definitions": definitions}]);
            let (id, key) = create_key(&run.node, &grants, &json!({})).await;
            known(&run.all(), &key, true).await;
            made.push(id);
            run.node.with_credential(&key)
        };
        let part = key(&["write", "define"], &[format!("{name}.limits")]).await;
        let whole = key(&["define"], &[format!("{name}.*")]).await;
        let elsewhere = key(&VERBS, &["elsewhere.*".into(), name.clone(), format!("{name}2.*")]).await;
        for sees in [&part, &whole] {
            sees.get(&path(&name)).await.expect(200);
            assert_eq!(sees.get(ENVIRONMENTS).await.keys_of("environment"), [name.as_str()]);
            sees.get(&path(&other)).await.refused(404, "not_found_error");
        }
        for (hidden, absent) in [(path(&name), path("absent"))] {
            let [one, two] = [elsewhere.get(&hidden).await, elsewhere.get(&absent).await];
            assert_eq!((one.status, &one.body), (404, &two.body), "as if it did not exist");
        }
        for refused in [&part, &elsewhere] {
            put(refused, &name, &[freeze()]).await.refused(403, "forbidden_error");
            put(refused, &run.key("none"), &[freeze()]).await.refused(403, "forbidden_error");
            refused.delete(&path(&name)).await.refused(403, "forbidden_error");
        }
        put(&whole, "default", &[]).query(&[("dry_run", "true")]).await.refused(403, "forbidden_error");
        put(&whole, &other, &[]).await.refused(403, "forbidden_error");
        let frozen = put(&whole, &name, &[freeze()]).await.expect(200);
        assert_ne!(frozen.data()["frozen_until"], Value::Null);
        whole.delete(&path(&name)).await.expect(200);
        for id in made {
            run.node.delete(&format!("{KEYS}{id}")).await.expect(200);
        }
        end(&run, &other, false).await;
    })
    .await;
}

#[tokio::test]
async fn no_route_of_definitions_and_configs_shows_an_environment() {
    on_leader_and_follower(async |run: Run| {
        let (name, marker) = (run.key("hidden"), run.key("marker"));
        let d = definition_in(&run, &run.key("shown")).await;
        let from = d.get("k").await.revision();
        let secret = json!({"from": in_seconds(7200), "until": in_seconds(9000), "reason": marker});
        put(&run.node, &name, &[secret]).await.expect(201);
        let last = d.put("k", &json!({"n": 2})).await.expect(200);
        let min_revision = last.revision().to_string();
        for path in [
            DEFINITIONS.to_owned(),
            format!("{DEFINITIONS}?search={name}&limit=1000"),
            format!("/api/v1/config?search={name}"),
            "/api/v1/deleted_definition/".to_owned(),
            format!("/api/v1/changes?from={from}&wait=0"),
            format!("/api/v1/changes?from={from}&wait=0&prev=true&definition={name}.*&definition={name}"),
            format!("{}/history", d.path()),
            format!("{}/history", d.config("k")),
            KEYS.to_owned(),
            "/api/v1/cluster".to_owned(),
            "/api/v1/cluster/usage".to_owned(),
            "/metrics".to_owned(),
        ] {
            let answer = run.node.get(&path).await;
            assert!(matches!(answer.status, 200 | 304), "{answer:?}");
            assert!(!answer.text.contains(&marker), "{answer:?}");
        }
        for key in [
            name.clone(),
            format!("{name}."),
            format!("environment.{name}"),
            "environment".to_owned(),
            format!("0{name}"),
        ] {
            for path in [
                format!("{DEFINITIONS}{key}"),
                format!("{DEFINITIONS}{key}/config/{name}"),
                format!("{DEFINITIONS}{key}/history"),
            ] {
                let answer = run.node.get(&path).query(&[("min_revision", &min_revision)]).await;
                assert_eq!(answer.status, 404, "{answer:?}");
            }
        }
        end(&run, &name, false).await;
    })
    .await;
}
