//! Change requests that the cluster applies and takes back by itself, and those that a person takes back.

use serde_json::{Value, json};

use super::{
    Run,
    change_requests::{CHANGES, Restricted, act, at, create, person, put, refused, text},
    on_leader_and_follower,
};
use crate::harness::{Answer, Call, Client, check, eventually};

/// A change request with times.
fn timed(node: &Client, operations: &[Value], times: &Value) -> Call {
    let mut body = json!({ "title": "a change", "operations": operations });
    for (name, value) in times.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    node.post(CHANGES, &body)
}

/// A time that is so many seconds away, as a node writes it.
fn time(seconds: i64) -> String {
    let now = i64::try_from(concord_service::now().0).expect("a clock that is right");
    let at = u64::try_from(now + seconds * 1_000_000).expect("it is after 1970");
    concord_model::time::Timestamp(at).to_string()
}

/// Waits until a change request is so.
async fn becomes(node: &Client, change: &Answer, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let path = at(change);
    eventually(what, async || {
        let shown = node.get(&path).await;
        check(shown.status == 200 && is_so(shown.data()), || format!("{shown:?}"))?;
        Ok(shown.data().clone())
    })
    .await
}

#[tokio::test]
async fn an_expiring_change_is_applied_when_it_is_approved_and_taken_back_after_its_time() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let times = json!({"apply": "when_approved", "revert_after_s": 2});
        let made = timed(&ann.node, &[env.put(2)], &times).await.expect(201);
        let data = made.data();
        assert_eq!(
            (&data["apply"], &data["revert_after_s"], &data["schedule"]),
            (&json!("when_approved"), &json!(2), &Value::Null)
        );
        act(&bob.node, &made, "approve").await.expect(200);
        let done =
            becomes(&ann.node, &made, "it is taken back", |change| change["revert"]["state"] == "done").await;
        let (applied, revert) = (&done["applied"], &done["revert"]);
        assert_eq!(
            (&applied["by"], &revert["by"], &revert["bypass"]),
            (&Value::Null, &Value::Null, &json!(false))
        );
        assert_eq!(applied["approved_by"][0]["key_id"], *bob.id);
        assert!(revert["at"].as_str() > applied["at"].as_str(), "{done}");
        for node in run.all() {
            let path = format!("{}/history", env.d.config("k"));
            let history =
                node.get(&path).query(&[("min_revision", &revert["revision"].to_string())]).await.expect(200);
            let all = history.data()["results"].as_array().cloned().unwrap_or_default();
            let ns: Vec<_> = all.iter().map(|one| &one["data"]["n"]).collect();
            assert_eq!(ns, [&json!(1), &json!(2), &json!(1)], "once each: {all:?}");
            assert_eq!(
                (&all[0]["revision"], &all[1]["revision"]),
                (&revert["revision"], &applied["revision"])
            );
        }
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_person_who_approved_a_change_takes_it_back_once_and_others_by_a_bypass() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let [ann, bob, carol] =
            [env.person(&run, "ann").await, env.person(&run, "bob").await, env.person(&run, "carol").await];
        let new = put(&env.d.key, "new", json!({"n": 5})).tap_upsert();
        let made = create(&ann.node, &[env.put(2), new]).await.expect(201);
        refused(act(&bob.node, &made, "revert").await, 422, "not_revertible");
        act(&bob.node, &made, "approve").await.expect(200);
        let applied = act(&ann.node, &made, "apply").await.expect(200);
        assert_eq!(applied.data()["revert"]["state"], "possible");
        for node in [&ann.node, &carol.node] {
            refused(act(node, &made, "revert").await, 403, "not_approver");
        }
        refused(act(&run.node, &made, "revert").await, 403, "key_not_attested");
        let reader = person(&run, "reader", &["read"], &env.all()).await;
        act(&reader.node, &made, "revert").await.refused(403, "forbidden_error");
        let other = bob.node.post(&format!("{}/revert", at(&made)), &json!({"digest": "0".repeat(64)}));
        refused(other.await, 409, "change_digest");
        let shown = bob.node.get(&at(&made)).query(&[("include", "preview")]).await.expect(200);
        let records = shown.data()["preview"]["records"].as_array().cloned().unwrap_or_default();
        let data: Vec<_> =
            records.iter().map(|one| (&one["before"], &one["after"], &one["deleted"])).collect();
        let [k, new] = [(json!({"n": 2}), json!({"n": 1})), (json!({"n": 5}), Value::Null)];
        assert!(
            data.contains(&(&k.0, &k.1, &json!(false))) && data.contains(&(&new.0, &new.1, &json!(true))),
            "{data:?}"
        );
        let back = act(&bob.node, &made, "revert").await.expect(200);
        let revert = &back.data()["revert"];
        assert_eq!(
            (&revert["state"], &revert["by"]["key_id"], &revert["bypass"]),
            (&json!("done"), &json!(bob.id), &json!(false))
        );
        let read = env.d.get("k").await;
        assert_eq!(
            (&read.data()["data"], read.tag()),
            (&json!({"n": 1}), format!("\"{}\"", revert["revision"]))
        );
        env.d.get("new").await.refused(404, "not_found_error");
        let again = act(&bob.node, &made, "revert").await.expect(200);
        assert_eq!(again.data()["revert"], *revert, "whoever asks again is told the same");

        // Another one, which others take back without having approved it: it is reviewed as a bypass is.
        let made = create(&ann.node, &[env.put(3)]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        act(&ann.node, &made, "apply").await.expect(200);
        let bypass = |node: &Client| act(node, &made, "revert").query(&[("bypass", "true")]);
        bypass(&carol.node).header("x-change-reason", "incident").await.refused(403, "forbidden_error");
        let verbs = ["read", "write", "bypass"];
        let dan = person(&run, "dan", &verbs, &env.all()).await;
        bypass(&dan.node).await.invalid();
        let back = bypass(&dan.node).header("x-change-reason", "incident").await.expect(200);
        assert_eq!(
            (&back.data()["revert"]["bypass"], &back.data()["reviews_missing"]),
            (&json!(true), &json!(1))
        );
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 1}));
        let unreviewed = [("unreviewed", "true"), ("environment", env.name.as_str())];
        let list = bob.node.get(CHANGES).query(&unreviewed).await.expect(200);
        assert_eq!(list.data()["results"][0]["change_id"], text(&made, "change_id"));
        let reviewed = act(&ann.node, &made, "review").await.expect(200);
        assert_eq!(reviewed.data()["reviews_missing"], 0);
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn nothing_is_taken_back_if_a_record_was_changed_since() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let other = put(&env.d.key, "other", json!({"n": 5})).tap_upsert();
        let made = create(&ann.node, &[env.put(2), other]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        act(&ann.node, &made, "apply").await.expect(200);
        let later = create(&ann.node, &[put(&env.d.key, "other", json!({"n": 6}))]).await.expect(201);
        act(&bob.node, &later, "approve").await.expect(200);
        act(&ann.node, &later, "apply").await.expect(200);
        refused(act(&bob.node, &made, "revert").await, 409, "change_stale");
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 2}), "not even a part of it");
        // What took the later one back has changed it once more.
        act(&bob.node, &later, "revert").await.expect(200);
        refused(act(&bob.node, &made, "revert").await, 409, "change_stale");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_schedule_is_left_to_the_cluster_after_the_checks_of_an_apply() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let times = json!({"schedule": {"not_before": time(3600)}});
        let made = timed(&ann.node, &[env.put(2)], &times).await.expect(201);
        assert_eq!(made.data()["expires_at"], made.data()["schedule"]["not_after"]);
        refused(act(&ann.node, &made, "apply").await, 409, "not_approved");
        act(&bob.node, &made, "approve").await.expect(200);
        let left = act(&ann.node, &made, "apply").await.expect(200);
        assert_eq!(
            (&left.data()["phase"], left.body["message"].as_str()),
            (&json!("scheduled"), Some("change request scheduled"))
        );
        assert_eq!(left.data()["scheduled"]["by"]["key_id"], *ann.id);
        let again = act(&bob.node, &made, "apply").await.expect(200);
        assert_eq!(again.tag(), left.tag(), "it is left once");
        let keyed = |node: &Client| {
            let body = json!({"digest": made.data()["digest"]});
            node.post(&format!("{}/apply", at(&made)), &body).header("idempotency-key", &run.key("left"))
        };
        let first = keyed(&ann.node).await.expect(200);
        assert_eq!((first.tag(), &first.data()["scheduled"]), (left.tag(), &left.data()["scheduled"]));
        let list = bob
            .node
            .get(CHANGES)
            .query(&[("phase", "scheduled"), ("environment", &env.name)])
            .await
            .expect(200);
        assert_eq!(list.data()["meta"]["total"], 1);
        assert_eq!(env.d.get("k").await.data()["data"], json!({"n": 1}));
        // A new edition ends it, and inherits no times.
        let edit =
            ann.node.put(&at(&made), &json!({"title": "t", "operations": [env.put(3)]})).await.expect(200);
        assert_eq!((&edit.data()["phase"], &edit.data()["schedule"]), (&json!("open"), &Value::Null));
        assert_ne!(text(&edit, "digest"), text(&made, "digest"));
        for node in run.all() {
            let retried = keyed(&node.with_credential(&ann.node.key)).await.expect(200);
            assert_eq!(
                (&retried.data()["phase"], retried.body["message"].as_str()),
                (&json!("open"), Some("done before; the change request has changed since"))
            );
        }
        refused(act(&ann.node, &made, "apply").await, 409, "change_digest");

        // Who approves a time approves nothing else.
        let early = timed(
            &ann.node,
            &[env.put(2)],
            &json!({"apply": "when_approved", "schedule": {"not_before": time(3600)}}),
        );
        let early = early.await.expect(201);
        act(&bob.node, &early, "approve").await.expect(200);
        refused(act(&ann.node, &early, "apply").await, 409, "change_not_due");
        // One whose time has come.
        let due = timed(
            &ann.node,
            &[env.put(4)],
            &json!({"schedule": {"not_before": time(-60), "not_after": time(600)}, "revert_after_s": 3600}),
        );
        let due = due.await.expect(201);
        act(&bob.node, &due, "approve").await.expect(200);
        let applied = act(&ann.node, &due, "apply").await.expect(200);
        assert_eq!(
            (&applied.data()["phase"], &applied.data()["revert"]["state"]),
            (&json!("applied"), &json!("armed"))
        );
        let armed =
            bob.node.get(CHANGES).query(&[("revert", "armed"), ("environment", &env.name)]).await.expect(200);
        assert_eq!(armed.data()["results"][0]["change_id"], text(&due, "change_id"));
        act(&bob.node, &due, "revert").await.expect(200);
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn times_that_can_not_be_are_refused() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let window =
            |from: i64, until: i64| json!({"schedule": {"not_before": time(from), "not_after": time(until)}});
        let day = 86_400;
        for (times, expected) in [
            (window(120, 60), "change_invalid"),
            (window(-120, -60), "change_invalid"),
            (window(60, 31 * day), "change_invalid"),
            (json!({"schedule": {"not_before": "tomorrow"}}), "change_invalid"),
            (json!({"apply": "now"}), "change_invalid"),
            (json!({"revert_after_s": 0}), "change_invalid"),
            (json!({"revert_after_s": 7 * day + 1}), "change_invalid"),
        ] {
            refused(timed(&ann.node, &[env.put(2)], &times).await, 422, expected);
        }
        // What is no config can't be taken back.
        let index = json!({"op": "set_indexes", "config_definition_key": env.d.key, "indexes": []});
        let times = json!({"revert_after_s": 60});
        refused(timed(&ann.node, std::slice::from_ref(&index), &times).await, 422, "not_revertible");
        refused(timed(&ann.node, &[env.put(2), index], &times).await, 422, "not_revertible");
        let list = ann.node.get(CHANGES).query(&[("revert", "someday")]).await.invalid();
        assert_eq!(list.body["errors"][0]["loc"], json!(["query", "revert"]));
        env.end(&run).await;
    })
    .await;
}

trait TapUpsert {
    /// The operation creates its config if there is none.
    fn tap_upsert(self) -> Self;
}

impl TapUpsert for Value {
    fn tap_upsert(mut self) -> Self {
        self["upsert"] = true.into();
        self
    }
}
