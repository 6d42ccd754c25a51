//! Who is named with a change, which change request it was, and what a change request waits for.

use serde_json::{Value, json};

use super::{
    Run,
    change_requests::{CHANGES, Restricted, act, at, create, person, put, text},
    environments::{definition_in, path as environment},
    on_leader_and_follower,
};
use crate::{
    harness::{Answer, Client},
    hostile::grants::{KEYS, create_key, known},
};

/// The latest change of a definition, as a client sees it.
async fn latest(node: &Client, definition: &str, more: &[(&str, &str)]) -> Value {
    let found =
        node.get("/api/v1/changes").query(&[("latest", "1"), ("definition", definition)]).query(more).await;
    found.expect(200).data()["events"][0].clone()
}

async fn history(node: &Client, path: &str) -> Value {
    node.get(&format!("{path}/history")).query(&[("limit", "1")]).await.expect(200).data()["results"][0]
        .clone()
}

#[tokio::test]
async fn a_change_names_its_author_and_its_change_request_to_those_who_take_part() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let reader = person(&run, "reader", &["read"], &env.all()).await;
        // Who may read everything takes no part either.
        let all_reader = person(&run, "all-reader", &["read"], "*").await;
        let label = run.key("ann").to_lowercase();
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        let applied = act(&ann.node, &made, "apply").await.expect(200);
        let (key, id) = (&env.d.key, text(&made, "change_id"));
        let config = env.d.config("k");
        for event in [latest(&bob.node, key, &[]).await, history(&bob.node, &config).await] {
            assert_eq!((&event["by"], &event["by_person"]), (&json!(ann.id), &json!(label)), "{event}");
            assert_eq!((&event["by_name"], &event["reason"]), (&json!("of a test"), &Value::Null), "{event}");
            assert_eq!((&event["change_id"], &event["change_title"]), (&json!(id), &json!("a change")));
            assert!(event["change_reverted"].is_null(), "{event}");
        }
        // Who can only read sees an id, as in the change request; and no name finds it.
        for event in [
            latest(&reader.node, key, &[]).await,
            history(&reader.node, &config).await,
            latest(&all_reader.node, key, &[]).await,
            history(&all_reader.node, &config).await,
        ] {
            assert_eq!((&event["by"], &event["change_id"]), (&json!(ann.id), &json!(id)), "{event}");
            assert!(event["by_name"].is_null() && event["by_person"].is_null(), "{event}");
        }
        assert_eq!(latest(&bob.node, key, &[("by", &label)]).await["change_id"], *id);
        assert_eq!(latest(&bob.node, key, &[("by", &run.key("bob"))]).await, Value::Null);
        assert_eq!(latest(&reader.node, key, &[("by", &label)]).await, Value::Null);
        assert_eq!(latest(&all_reader.node, key, &[("by", &label)]).await, Value::Null);
        assert_eq!(latest(&reader.node, key, &[("by", &ann.id)]).await["change_id"], *id);
        // A watch names the change request, also when it reads it from the history.
        let from = applied.data()["applied"]["revision"].to_string();
        let polled =
            bob.node.get("/api/v1/changes").query(&[("definition", key), ("from", &from), ("wait", "0")]);
        let polled = polled.await.expect(200).data()["events"][0].clone();
        assert_eq!((&polled["change_id"], &polled["by_name"]), (&json!(id), &Value::Null), "{polled}");
        let shown = bob.node.get(&at(&made)).await.expect(200);
        assert_eq!(shown.data()["sender"]["name"], "of a test");
        assert_eq!(reader.node.get(&at(&made)).await.expect(200).data()["sender"]["name"], Value::Null);
        act(&bob.node, &made, "revert").await.expect(200);
        let back = latest(&ann.node, key, &[]).await;
        assert_eq!((&back["change_id"], &back["change_reverted"]), (&json!(id), &json!(true)), "{back}");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn who_may_not_read_all_of_a_change_request_does_not_learn_of_it_by_its_changes() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let other = definition_in(&run, &run.key("other")).await;
        let all = ["read", "write", "define", "approve", "reveal"];
        let (ann, bob) = (person(&run, "ann", &all, "*").await, person(&run, "bob", &all, "*").await);
        let part = env.person(&run, "part").await;
        let made = create(&ann.node, &[env.put(2), put(&other.key, "k", json!({"n": 2}))]).await.expect(201);
        act(&bob.node, &made, "approve").await.expect(200);
        let applied = act(&ann.node, &made, "apply").await.expect(200);
        let from = applied.data()["applied"]["revision"].to_string();
        let polled = |node: &Client| {
            node.get("/api/v1/changes").query(&[("definition", &*env.d.key), ("from", &from), ("wait", "0")])
        };
        let config = env.d.config("k");
        for node in [&part.node, &bob.node] {
            let events = [
                latest(node, &env.d.key, &[]).await,
                history(node, &config).await,
                polled(node).await.expect(200).data()["events"][0].clone(),
            ];
            let expected =
                if std::ptr::eq(node, &bob.node) { made.data()["change_id"].clone() } else { Value::Null };
            for event in events {
                assert_eq!((&event["by"], &event["change_id"]), (&json!(ann.id), &expected), "{event}");
                assert_eq!(event["change_title"].is_null(), expected.is_null(), "{event}");
            }
        }
        env.end(&run).await;
    })
    .await;
}

/// The change requests of an environment that a client is shown with a filter.
async fn listed(node: &Client, env: &Restricted, filter: &str) -> Vec<String> {
    let query = [("environment", env.name.as_str()), (filter, "true")];
    node.get(CHANGES).query(&query).await.expect(200).keys_of("change_id")
}

#[tokio::test]
async fn a_list_has_what_waits_for_the_client_and_what_the_client_has_sent() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let verbs = ["read", "write", "define", "delete", "approve", "bypass"];
        let ann = person(&run, "ann", &verbs, &env.all()).await;
        let bob = env.person(&run, "bob").await;
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        let id = || vec![text(&made, "change_id")];
        let none = Vec::<String>::new();
        assert_eq!(
            (listed(&bob.node, &env, "needs_me").await, listed(&ann.node, &env, "needs_me").await),
            (id(), none.clone())
        );
        assert_eq!(
            (listed(&bob.node, &env, "mine").await, listed(&ann.node, &env, "mine").await),
            (none.clone(), id())
        );
        act(&bob.node, &made, "approve").await.expect(200);
        assert_eq!(listed(&bob.node, &env, "needs_me").await, none, "it has voted");
        // With another key of the same person it votes again, because the approval has ended with the key.
        run.node.delete(&format!("{KEYS}{}", bob.id)).await.expect(200);
        let bob = env.person(&run, "bob").await;
        assert_eq!(listed(&bob.node, &env, "needs_me").await, id());
        act(&bob.node, &made, "approve").await.expect(200);
        assert_eq!(listed(&bob.node, &env, "needs_me").await, none);
        act(&ann.node, &made, "apply").await.expect(200);
        let bypass =
            ann.node.put(&env.d.config("k"), &json!({"data": {"n": 3}})).query(&[("bypass", "true")]);
        bypass.header("x-change-reason", "incident").await.expect(200);
        let waiting = listed(&bob.node, &env, "needs_me").await;
        assert_eq!((waiting.len(), listed(&ann.node, &env, "needs_me").await), (1, none), "its own bypass");
        // So does what another one has taken back without having approved it: its author may review that.
        let verbs = ["read", "write", "approve", "bypass"];
        let carol = person(&run, "carol", &verbs, &env.all()).await;
        let other = create(&ann.node, &[json!({"op": "create_config", "config_definition_key": env.d.key, "config_key": "k2", "data": {"n": 4}})]).await.expect(201);
        act(&bob.node, &other, "approve").await.expect(200);
        act(&ann.node, &other, "apply").await.expect(200);
        let revert =
            carol.node.post(&format!("{}/revert", at(&other)), &json!({"digest": text(&other, "digest")}));
        let revert = revert.query(&[("bypass", "true")]).header("x-change-reason", "incident");
        revert.await.expect(200);
        let id = text(&other, "change_id");
        assert!(listed(&ann.node, &env, "needs_me").await.contains(&id));
        assert!(!listed(&carol.node, &env, "needs_me").await.contains(&id));
        let wrong = bob.node.get(CHANGES).query(&[("mine", "yes")]).await;
        assert_eq!(wrong.status, 422, "{wrong:?}");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_change_request_says_what_it_waits_for() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        assert_eq!(made.data()["waits"], Value::Null);
        let shown = async |change: &Answer| ann.node.get(&at(change)).await.expect(200).data().clone();
        let rules = |freezes: Value| json!({"direct": "refuse", "approvals": 1, "freeze": freezes});
        let now = concord_service::now().0;
        let until = concord_model::time::Timestamp(now + 3_600_000_000).to_string();
        let put =
            run.node.put(&environment(&env.name), &rules(json!([{"until": until, "reason": "incident"}])));
        put.await.expect(200);
        let waits = shown(&made).await["waits"].clone();
        assert_eq!(
            (&waits["for"], &waits["environment"], &waits["until"]),
            (&json!("freeze"), &json!(env.name), &json!(until))
        );
        let ended = run.node.put(&environment(&env.name), &rules(json!([]))).query(&[("bypass", "true")]);
        ended.header("x-change-reason", "over").await.expect(200);
        let body = json!({
            "title": "later", "operations": [env.put(3)], "schedule": {"not_before": until},
        });
        let later = ann.node.post(CHANGES, &body).await.expect(201);
        assert_eq!(
            (&later.data()["waits"]["for"], &later.data()["waits"]["until"]),
            (&json!("schedule"), &json!(until))
        );

        // What can't be taken back any more, because somebody has changed it since.
        act(&bob.node, &made, "approve").await.expect(200);
        act(&ann.node, &made, "apply").await.expect(200);
        assert_eq!(shown(&made).await["revert"]["stale"], Value::Null);
        let write = run.node.put(&env.d.config("k"), &json!({"data": {"n": 9}})).query(&[("bypass", "true")]);
        write.header("x-change-reason", "over").await.expect(200);
        let stale = shown(&made).await["revert"]["stale"].clone();
        assert!(stale.as_str().is_some_and(|text| text.contains("was changed since")), "{stale}");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn a_rebased_change_request_names_the_author_whose_key_is_not_attested() {
    on_leader_and_follower(async |run: Run| {
        let env = Restricted::new(&run, 1).await;
        let ann = env.person(&run, "ann").await;
        let grants = json!([{ "verbs": ["read", "write"], "definitions": [env.all()] }]);
        let (bot, secret) = create_key(&run.node, &grants, &Value::Null).await;
        known(&run.all(), &secret, true).await;
        let bot_node = run.node.with_credential(&secret);
        let made = create(&bot_node, &[env.put(2)]).await.expect(201);
        assert_eq!(made.data()["unattested"][0]["key_id"], *bot);
        let rebased = ann.node.post(&format!("{}/rebase", at(&made)), &json!({})).await.expect(200);
        let data = rebased.data();
        assert_eq!((&data["sender"]["key_id"], &data["attested"]), (&json!(ann.id), &json!(false)));
        let unattested = data["unattested"].as_array().expect("a list");
        assert_eq!((unattested.len(), &unattested[0]["key_id"]), (1, &json!(bot)), "not that of the sender");
        let own = create(&ann.node, &[env.put(3)]).await.expect(201);
        assert_eq!(own.data()["unattested"], json!([]));
        env.end(&run).await;
    })
    .await;
}
