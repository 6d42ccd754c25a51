//! `POST /api/v1/batch` with conditions, checks and reads: what it rests on and what it changes is of one state.

use serde_json::{Value, json};

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::{Answer, Call, Client};

const BATCH: &str = "/api/v1/batch";

fn check(definition: &str, key: &str, more: &Value) -> Value {
    operation("check_config", definition, key, more)
}

fn operation(op: &str, definition: &str, key: &str, more: &Value) -> Value {
    let mut made = json!({"op": op, "config_definition_key": definition, "config_key": key});
    made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    made
}

fn send(node: &Client, body: &Value) -> Call {
    node.post(BATCH, body)
}

fn of_record(answer: &Answer) -> u64 {
    answer.tag().trim_matches('"').parse().unwrap()
}

fn locs(answer: &Answer) -> Vec<Value> {
    answer.body["errors"].as_array().unwrap().iter().map(|error| error["loc"].clone()).collect()
}

#[tokio::test]
async fn the_conditions_choose_what_is_done_and_reads_see_the_state_before() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1, "deep": {"x/y": [1, 2.0]}}))]).await;
        let key = &d.key;
        let revision = of_record(&d.get("a").await);
        let holding = [
            json!({"revision": revision}),
            json!({"absent": false}),
            json!({"pointer": "/n", "equals": 1.0}),
            json!({"pointer": "/deep/x~1y", "equals": [1.0, 2]}),
            json!({"pointer": "/m", "absent": true}),
            json!({"equals": {"deep": {"x/y": [1, 2]}, "n": 1}}),
        ];
        let failing = [
            json!({"revision": revision + 1}),
            json!({"revision": 0}),
            json!({"absent": true}),
            json!({"pointer": "/n", "equals": "1"}),
            json!({"pointer": "/m", "equals": null}),
            json!({"pointer": "/n", "absent": true}),
        ];
        // Nothing is changed: each is a read.
        for (conditions, succeeded) in [(&holding, true), (&failing, false)] {
            for condition in conditions {
                let get = [operation("get_config", key, "a", &json!({}))];
                let body = json!({"if": [check(key, "a", condition)], "then": get, "else": get});
                let answer = send(&run.node, &body).await.expect(200);
                assert_eq!(answer.data()["succeeded"], succeeded, "{condition}");
                assert_eq!(answer.data()["results"][0]["config"]["data"]["n"], 1);
                assert_eq!(answer.data()["results"][0]["config"]["revision"], revision);
            }
        }
        assert_eq!(of_record(&d.get("a").await), revision);
        // The branch is written, and read as it was before, wherever the read stands.
        let body = json!({
            "if": [check(key, "a", &holding[2]), check(key, "b", &json!({"absent": true})), check("no-such-definition", "b", &json!({"absent": true}))],
            "then": [
                operation("patch_config", key, "a", &json!({"patch": {"n": 2}})),
                operation("create_config", key, "b", &json!({"data": {"n": 5}})),
                operation("get_config", key, "a", &json!({})),
                operation("get_config", key, "b", &json!({})),
            ],
            "else": [operation("delete_config", key, "a", &json!({}))],
        });
        let sent = || send(&run.node, &body).header("idempotency-key", &format!("{key}-1"));
        let answer = sent().await.expect(200);
        let results = &answer.data()["results"];
        assert_eq!((&answer.data()["succeeded"], &results[0]["op"]), (&json!(true), &json!("patch_config")));
        assert_eq!(results[2]["config"]["data"]["n"], 1);
        assert_eq!(results[3]["config"], Value::Null);
        let revision = answer.data()["revision"].as_u64().unwrap();
        for node in run.all() {
            for (name, n) in [("a", 2), ("b", 5)] {
                let found = node.get(&d.config(name)).await.expect(200);
                assert_eq!((of_record(&found), &found.data()["data"]["n"]), (revision, &json!(n)));
            }
        }
        // Sent again it is done once, whatever the conditions say by now, and shows the same.
        d.put("a", &json!({"n": 9})).await.expect(200);
        for node in run.all() {
            let again = send(&node, &body).header("idempotency-key", &format!("{key}-1")).await.expect(200);
            assert_eq!(again.body, answer.body);
        }
        assert_eq!(sent().await.expect(200).body, answer.body);
        let other = send(&run.node, &body).await.expect(200);
        assert_eq!(other.data()["succeeded"], false);
        d.get("a").await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn a_check_that_does_not_hold_refuses_the_batch_and_is_named() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1}))]).await;
        let key = &d.key;
        let put = operation("put_config", key, "a", &json!({"data": {"n": 2}}));
        let missing = operation("delete_config", key, "none", &json!({}));
        let no_definition = operation("get_config", &run.key("none"), "a", &json!({}));
        for (body, status, at) in [
            (
                json!({"operations": [put, check(key, "a", &json!({"revision": 1}))]}),
                412,
                json!(["operations", 1]),
            ),
            (
                json!({"operations": [check(key, "b", &json!({"absent": false})), put]}),
                412,
                json!(["operations", 0]),
            ),
            (
                json!({"if": [check(key, "a", &json!({"absent": false}))], "then": [put, missing]}),
                404,
                json!(["then", 1]),
            ),
            (
                json!({"if": [check(key, "a", &json!({"absent": true}))], "then": [put], "else": [missing]}),
                404,
                json!(["else", 0]),
            ),
            (
                json!({"if": [check(key, "a", &json!({"absent": false}))], "then": [no_definition]}),
                404,
                json!(["then", 0]),
            ),
            (
                json!({"if": [check(key, "\u{1}", &json!({"absent": true}))], "then": [put]}),
                422,
                json!(["if", 0, "config_key"]),
            ),
            (json!({"if": [check(key, "a", &json!({}))], "then": [put]}), 422, json!(["if", 0, "op"])),
        ] {
            for keyed in [false, true] {
                let call = send(&run.node, &body);
                let call = if keyed {
                    call.header("idempotency-key", &format!("{key}-{at}-{status}"))
                } else {
                    call
                };
                let answer = call.clone().await;
                assert_eq!((answer.status, locs(&answer)), (status, vec![at.clone()]), "{body}: {answer:?}");
                if keyed && status != 422 {
                    // A refusal is remembered: it is the same when it would not hold any more.
                    d.create("none", &json!({})).await.expect(201);
                    assert_eq!(call.await.body, answer.body);
                    d.remove("none").await.expect(200);
                }
            }
        }
        assert_eq!(d.get("a").await.data()["data"]["n"], 1);
    })
    .await;
}

#[tokio::test]
async fn a_config_is_rolled_back_with_other_changes() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1}))]).await;
        let first = of_record(&d.get("a").await);
        d.put("a", &json!({"n": 2})).await.expect(200);
        let back = |to: u64| operation("rollback_config", &d.key, "a", &json!({"revision": to}));
        let create = operation("create_config", &d.key, "b", &json!({"data": {}}));
        let refused = send(&run.node, &json!({"operations": [create, back(1)]})).await;
        assert!(matches!(refused.status, 404 | 410), "{refused:?}");
        d.get("b").await.expect(404);
        let body = json!({"operations": [create, back(first)]});
        let answer = send(&run.node, &body).await.expect(200);
        assert_eq!(answer.data()["results"][1]["op"], "rollback_config");
        assert_eq!(d.get("a").await.data()["data"]["n"], 1);
        d.get("b").await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_rollback_to_nothing_refuses_where_its_list_is_chosen_and_nowhere_else() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1}))]).await;
        let before = of_record(&d.get("a").await);
        let back = |definition: &str, key: &str, to: u64| {
            operation("rollback_config", definition, key, &json!({"revision": to}))
        };
        let impossible = [
            back(&d.key, "none", before),
            back("no-such-definition", "none", before),
            back(&d.key, "a", u64::MAX >> 12),
        ];
        for (number, back) in impossible.iter().enumerate() {
            let create = operation("create_config", &d.key, &format!("k{number}"), &json!({"data": {}}));
            let there = check(&d.key, "a", &json!({"absent": false}));
            let body = json!({"if": [there], "then": [create], "else": [back]});
            assert_eq!(send(&run.node, &body).await.expect(200).data()["succeeded"], true);
            let body = json!({"if": [there], "then": [create, back], "else": []});
            let alone = send(&run.node, &json!({"operations": [back]})).await;
            let chosen = send(&run.node, &body).await;
            assert_eq!(chosen.status, 409, "the first that is refused is named: {chosen:?}");
            let absent = check(&d.key, "a", &json!({"absent": true}));
            let body = json!({"if": [absent], "then": [create], "else": [back]});
            let id = format!("{}-{number}", d.key);
            let refused = send(&run.node, &body).header("idempotency-key", &id).await.expect(alone.status);
            assert_eq!(refused.body["errors"][0]["code"], alone.body["errors"][0]["code"]);
            assert_eq!(locs(&refused)[0][0], "else", "{refused:?}");
            assert_eq!((&locs(&alone)[0][0], &locs(&alone)[0][1]), (&json!("operations"), &json!(0)));
        }
    })
    .await;
}

#[tokio::test]
async fn a_rollback_in_a_batch_says_whether_it_created_and_which_one_had_nothing_to_go_back_to() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1})), ("b", json!({"n": 1}))]).await;
        let there = of_record(&d.get("b").await);
        d.remove("a").await.expect(200);
        let back = |key: &str| operation("rollback_config", &d.key, key, &json!({"revision": there}));
        let answer = send(&run.node, &json!({"operations": [back("a"), back("b")]})).await.expect(200);
        let created: Vec<&Value> =
            answer.data()["results"].as_array().unwrap().iter().map(|result| &result["created"]).collect();
        assert_eq!(created, [true, false]);
        let twice = json!({"operations": [back("a"), back("none")]});
        let refused = send(&run.node, &twice).await.refused(404, "not_found_error");
        assert_eq!(locs(&refused), [json!(["operations", 1])]);
    })
    .await;
}

#[tokio::test]
async fn a_unique_value_is_passed_on_within_a_batch() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["email"]), &json!({"properties": {"email": {"type": "string"}}})).await;
        run.node.put(&format!("{}/unique", d.path()), &json!({"paths": ["email"]})).await.expect(200);
        d.fill(&[("a", json!({"email": "x"})), ("c", json!({"email": "y"}))]).await;
        let with = |op: &str, name: &str, email: &str| operation(op, &d.key, name, &json!({"data": {"email": email}}));
        let remove = |name: &str| operation("delete_config", &d.key, name, &json!({}));
        let passed = json!({"operations": [remove("a"), with("create_config", "b", "x")]});
        send(&run.node, &passed).await.expect(200);
        let rotated = json!({"operations": [with("put_config", "b", "z"), with("put_config", "c", "x"), with("put_config", "b", "y")]});
        send(&run.node, &rotated).await.expect(200);
        let taken = json!({"operations": [with("create_config", "e", "new"), with("create_config", "f", "new")]});
        send(&run.node, &taken).await.refused(409, "conflict_error");
        assert_eq!(d.found(&[("email", "y")]).await, ["b"]);
        assert_eq!(run.node.get(&format!("{DEFINITIONS}{}/config/", d.key)).await.config_keys().len(), 2);
    })
    .await;
}
