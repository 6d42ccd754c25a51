//! The history of a record: its changes, its state as of a revision, and rollback.

use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::harness::{Answer, Call, Client, answer::is_timestamp};

fn revision(answer: &Answer) -> u64 {
    answer.tag().trim_matches('"').parse().unwrap()
}

fn history_of(node: &Client, d: &Defined, key: &str) -> Call {
    node.get(&format!("{}/history", d.config(key)))
}

fn at(node: &Client, d: &Defined, key: &str, revision: u64) -> Call {
    node.get(&d.config(key)).query(&[("revision", &revision.to_string())])
}

fn rollback(d: &Defined, key: &str, revision: u64) -> Call {
    d.node.post(&format!("{}/rollback", d.config(key)), &json!({"revision": revision}))
}

/// The named member of each item.
fn each(answer: &Answer, name: &str) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.data()["results"].as_array().unwrap().iter().map(|item| item[name].clone()).collect()
}

/// A config that was created, changed, deleted and created again; the revisions of its three records.
async fn lived(d: &Defined) -> [u64; 3] {
    let first = d.create("k", &json!({"n": 1})).header("x-change-reason", "begin").await.expect(201);
    let second = d.put("k", &json!({"n": 7.0})).await.expect(200);
    d.create("neighbour", &json!({})).await.expect(201);
    d.remove("k").header("x-change-reason", "no \"use\"").await.expect(200);
    let third = d.create("k", &json!({"n": 3})).await.expect(201);
    [revision(&first), revision(&second), revision(&third)]
}

#[tokio::test]
async fn a_config_lists_its_changes_newest_first_on_every_node() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let [first, second, third] = lived(&d).await;
        let mut answers = Vec::new();
        for node in run.all() {
            let answer = history_of(&node, &d, "k").await;
            assert_eq!(each(&answer, "operation"), ["create", "delete", "update", "create"]);
            assert_eq!(
                each(&answer, "data"),
                [json!({"n": 3}), Value::Null, json!({"n": 7.0}), json!({"n": 1})]
            );
            assert_eq!(
                each(&answer, "reason"),
                [json!(null), json!("no \"use\""), json!(null), json!("begin")]
            );
            assert_eq!(each(&answer, "by"), ["root", "root", "root", "root"]);
            assert!(each(&answer, "at").iter().all(is_timestamp), "{answer:?}");
            let revisions = each(&answer, "revision");
            assert_eq!(
                (&revisions[0], &revisions[2], &revisions[3]),
                (&json!(third), &json!(second), &json!(first))
            );
            assert!(revisions[1].as_u64().unwrap() > second && revisions[1].as_u64().unwrap() < third);
            assert_eq!(answer.data()["meta"], json!({"limit": 10, "next_before": null, "floor": 0}));
            assert!(answer.text.contains("7.0"), "the data is as it was written: {answer:?}");
            answers.push(answer.data().clone());
        }
        assert!(answers[0] == answers[1] && answers[1] == answers[2]);
        history_of(&run.node, &d, "never").await.refused(404, "not_found_error");
        history_of(&run.node, &d, "a,b").await.invalid();
    })
    .await;
}

#[tokio::test]
async fn pages_of_a_history_follow_one_another_while_changes_come() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut revisions = vec![revision(&d.create("k", &json!({"n": 0})).await.expect(201))];
        for n in 1..12 {
            revisions.push(revision(&d.put("k", &json!({"n": n})).await.expect(200)));
        }
        let mut next = format!("{}/history?limit=5", d.config("k"));
        let mut seen = Vec::new();
        loop {
            let answer = run.node.get(&next).await;
            seen.extend(each(&answer, "revision"));
            d.put("k", &json!({"n": "meanwhile"})).await.expect(200);
            let link = answer.header("link").to_owned();
            let before = &answer.data()["meta"]["next_before"];
            match link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")) {
                Some(link) => {
                    assert!(link.ends_with(&format!("limit=5&before={before}")), "{answer:?}");
                    next = link.to_owned();
                }
                None => {
                    assert!(before.is_null() && link.is_empty(), "{answer:?}");
                    break;
                }
            }
        }
        let expected: Vec<Value> = revisions.iter().rev().map(|revision| json!(revision)).collect();
        assert_eq!(seen, expected);
        let page = |name: &str, value: &str| history_of(&run.node, &d, "k").query(&[(name, value)]);
        page("limit", "0").await.invalid();
        page("limit", "1001").await.invalid();
        page("before", "-1").await.invalid();
        page("limit", "x").await.detail(&[(json!(["query", "limit"]), "int_parsing")]);
        assert_eq!(each(&page("before", &revisions[0].to_string()).await, "data"), [] as [Value; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_definition_lists_its_changes_across_deletes_and_creates() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let d = run.define("d", &json!(["n"]), &schema).await;
        d.fill(&[("k", json!({"n": 1}))]).await;
        run.node.put(&d.path(), &json!({"indexes": []})).await.expect(200);
        run.node.delete(&d.path()).await.expect(200);
        let path = format!("{}/history", d.path());
        let gone = run.node.get(&path).await;
        assert_eq!(each(&gone, "operation"), ["delete", "update", "create"]);
        history_of(&run.node, &d, "k").await.refused(404, "not_found_error");
        run.define_open("d").await;
        for node in run.all() {
            let answer = node.get(&path).await;
            assert_eq!(each(&answer, "operation"), ["create", "delete", "update", "create"]);
            let with_schema = |indexes: Value| json!({"indexes": indexes, "json_schema": schema});
            let expected =
                [json!({"indexes": []}), Value::Null, with_schema(json!([])), with_schema(json!(["n"]))];
            assert_eq!(each(&answer, "data"), expected);
        }
        // The configs of a definition end with it.
        history_of(&run.node, &d, "k").await.refused(404, "not_found_error");
        let never = format!("{}/history", crate::harness::load::definition(&run.key("never")));
        run.node.get(&never).await.refused(404, "not_found_error");
    })
    .await;
}

#[tokio::test]
async fn a_config_is_shown_as_it_was_at_a_revision() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let [first, second, third] = lived(&d).await;
        for node in run.all() {
            for (asked, expected, data) in [
                (first, first, json!({"n": 1})),
                (second, second, json!({"n": 7.0})),
                (second + 1, second, json!({"n": 7.0})),
                (third, third, json!({"n": 3})),
            ] {
                let answer = at(&node, &d, "k", asked).await.expect(200);
                assert_eq!((revision(&answer), &answer.data()["data"]), (expected, &data), "at {asked}");
            }
            at(&node, &d, "k", first - 1).await.refused(404, "not_found_error");
            at(&node, &d, "k", third - 1).await.refused(404, "not_found_error");
            at(&node, &d, "k", 1).await.refused(404, "not_found_error");
            at(&node, &d, "k", u64::MAX).await.invalid();
            at(&node, &d, "never", third).await.refused(404, "not_found_error");
        }
        let whole = at(&run.node, &d, "k", second).await.expect(200);
        assert_eq!(whole.data()["config_key"], "k");
        let query = [("revision", "-1")];
        run.node.get(&d.config("k")).query(&query).await.invalid();
        let query = [("revision", "x")];
        let place = (json!(["query", "revision"]), "int_parsing");
        run.node.get(&d.config("k")).query(&query).await.detail(&[place]);
        let tag = format!("\"{second}\"");
        assert_eq!(at(&run.node, &d, "k", second).header("if-none-match", &tag).await.status, 304);
    })
    .await;
}

#[tokio::test]
async fn a_rollback_is_a_new_change_and_brings_a_deleted_config_back() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let [first, second, third] = lived(&d).await;
        let before = d.get("k").await.tag();
        let tried = rollback(&d, "k", second).query(&[("dry_run", "true")]).await.expect(200);
        assert_eq!((tried.header("etag"), tried.header("x-concord-dry-run")), ("", "true"));
        assert_eq!(d.get("k").await.tag(), before);
        let back = rollback(&d, "k", second).header("x-change-reason", "undo").await.expect(200);
        assert_eq!(back.data(), &json!({"n": 7.0}));
        assert!(revision(&back) > third);
        assert_eq!(d.get("k").await.tag(), back.tag());
        let history = history_of(&run.others[0], &d, "k").query(&[("limit", "1")]).await;
        assert_eq!(
            (each(&history, "operation"), each(&history, "reason")),
            (vec![json!("update")], vec![json!("undo")])
        );
        d.remove("k").await.expect(200);
        let restored = rollback(&d, "k", first).await.expect(201);
        assert_eq!(restored.header("location"), d.config("k"));
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
        rollback(&d, "k", first - 1).await.refused(404, "not_found_error");
        rollback(&d, "never", second).await.refused(404, "not_found_error");
        rollback(&d, "k", u64::MAX).await.invalid();
        run.node
            .post(&format!("{}/rollback", d.config("k")), &json!({}))
            .await
            .detail(&[(json!(["body", "revision"]), "missing")]);
    })
    .await;
}

#[tokio::test]
async fn a_rollback_honours_preconditions_and_is_answered_again() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let [first, second, third] = lived(&d).await;
        let stale = rollback(&d, "k", first).header("if-match", &format!("\"{second}\"")).await;
        stale.refused(412, "precondition_failed");
        rollback(&d, "k", first).header("if-none-match", "*").await.refused(412, "precondition_failed");
        let key = run.key("rollback");
        let current = format!("\"{third}\"");
        let call = rollback(&d, "k", first).header("if-match", &current).header("idempotency-key", &key);
        let done = call.clone().await.expect(200);
        d.put("k", &json!({"n": "later"})).await.expect(200);
        for node in run.all() {
            let path = format!("{}/rollback", d.config("k"));
            let again = node.post(&path, &json!({"revision": first}));
            let again = again.header("if-match", &current).header("idempotency-key", &key).await;
            assert_eq!((again.status, &again.body, again.tag()), (200, &done.body, done.tag()), "{again:?}");
        }
        let other = rollback(&d, "k", second).header("idempotency-key", &key).await;
        other.invalid();
        assert_eq!(d.get("k").await.data()["data"], json!({"n": "later"}));
    })
    .await;
}
