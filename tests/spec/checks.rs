//! The order of checks: which of several violations of one request is answered.

use http::Method;
use serde_json::json;

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::Answer;

const NOT_FOUND: (u16, &str) = (404, "not_found_error");

fn is(answer: Answer, (status, kind): (u16, &str)) {
    answer.refused(status, kind);
}

#[tokio::test]
async fn the_shape_of_a_request_comes_before_keys_and_existence() {
    on_leader_and_follower(async |run: Run| {
        for definition in [run.key("absent"), "a%20b".to_owned()] {
            let path = format!("{DEFINITIONS}{definition}");
            let call = |method: Method, tail: &str| run.node.call(method, &format!("{path}{tail}"));
            for (method, tail) in [(Method::PUT, ""), (Method::POST, "/config/"), (Method::PUT, "/config/k")]
            {
                let answer = call(method.clone(), tail).text("application/json", "{").await.expect(422);
                assert_eq!(answer.body["detail"][0]["type"], "json_invalid", "{answer:?}");
                let answer = call(method.clone(), tail).text("application/json", "{}").await.expect(422);
                assert_eq!(answer.body["detail"][0]["type"], "missing", "{answer:?}");
                let answer = call(method, tail).text("text/plain", "{").await.expect(422);
                assert_eq!(answer.body["detail"][0]["type"], "model_attributes_type", "{answer:?}");
            }
            let answer = call(Method::GET, "/config/").query(&[("page", "x")]).await;
            answer.detail(&[(json!(["query", "page"]), "int_parsing")]);
            call(Method::GET, "/config/").query(&[("page", "0")]).await.invalid();
            call(Method::GET, "/config/").query(&[("sort_order", "up")]).await.invalid();
        }
    })
    .await;
}

#[tokio::test]
async fn the_definition_comes_before_the_config() {
    on_leader_and_follower(async |run: Run| {
        let absent = format!("{DEFINITIONS}{}", run.key("absent"));
        let post = |path: &str, key: &str| run.node.post(path, &json!({"config_key": key, "data": {}}));
        // A wrong key of the definition, then its absence, then a wrong key of the config.
        post(&format!("{DEFINITIONS}a%20b/config/"), "a b").await.invalid();
        is(post(&format!("{absent}/config/"), "a b").await, NOT_FOUND);
        let d = run.define_open("d").await;
        post(&d.configs(), "a b").await.invalid();
        for (method, body) in
            [(Method::GET, None), (Method::DELETE, None), (Method::PUT, Some(json!({"data": {}})))]
        {
            let call = |path: &str| {
                let call = run.node.call(method.clone(), path);
                if let Some(body) = &body { call.json(body) } else { call }
            };
            is(call(&format!("{absent}/config/a%20b")).await, NOT_FOUND);
            is(call(&format!("{absent}/config/k")).await, NOT_FOUND);
            call(&d.config("a%20b")).await.invalid();
            is(call(&d.config("k")).await, NOT_FOUND);
        }
        is(run.node.get(&format!("{absent}/config/")).await, NOT_FOUND);
        is(run.node.get(&absent).await, NOT_FOUND);
        is(run.node.delete(&absent).await, NOT_FOUND);
        is(run.node.put(&absent, &json!({"indexes": []})).await, NOT_FOUND);
    })
    .await;
}

#[tokio::test]
async fn existence_comes_before_preconditions_and_preconditions_before_data() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"n": {"type": "integer"}}});
        let d = run.define("d", &json!([]), &schema).await;
        let (good, wrong) = (json!({"n": 1}), json!({"n": "x"}));
        d.create("k", &good).await.expect(201);
        is(d.create("k", &wrong).await, (409, "conflict_error"));
        let stale = |call: crate::harness::Call| call.header("if-match", "\"1\"");
        is(stale(d.put("k", &wrong)).await, (412, "precondition_failed"));
        is(d.put("k", &wrong).header("if-none-match", "*").await, (412, "precondition_failed"));
        d.put("k", &wrong).await.invalid();
        // An absent config: valid data 404, invalid data 422, but 404 when a revision is expected.
        is(d.put("absent", &good).await, NOT_FOUND);
        d.put("absent", &wrong).await.invalid();
        is(stale(d.put("absent", &good)).await, NOT_FOUND);
        is(stale(d.put("absent", &wrong)).await, NOT_FOUND);
        d.put("absent", &wrong).header("if-none-match", "*").await.invalid();
        assert_eq!(d.get("k").await.data()["data"], good);
    })
    .await;
}

#[tokio::test]
async fn a_filter_is_checked_after_the_definition_is_found() {
    on_leader_and_follower(async |run: Run| {
        let absent = format!("{DEFINITIONS}{}/config/", run.key("absent"));
        is(run.node.get(&absent).query(&[("nothing", "1")]).await, NOT_FOUND);
        let d = run.define_open("d").await;
        d.list(&[("nothing", "1")]).await.invalid();
    })
    .await;
}
