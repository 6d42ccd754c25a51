//! Headers: on every answer, and the entity tags of the answers that show one record.

use http::Method;
use serde_json::json;

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::{Answer, Call};

#[tokio::test]
async fn every_answer_names_request_and_node_and_with_the_key_the_revision() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let calls: Vec<(u16, Call)> = vec![
            (200, run.node.get(DEFINITIONS)),
            (201, d.create("k", &json!({}))),
            (200, run.node.bare(Method::GET, "/livez")),
            (200, run.node.get("/api/v1/cluster")),
            (401, run.node.bare(Method::GET, DEFINITIONS)),
            (404, run.node.get("/nothing")),
            (404, d.get("absent")),
            (405, run.node.delete(DEFINITIONS)),
            (409, d.create("k", &json!({}))),
            (422, run.node.get(DEFINITIONS).query(&[("page", "x")])),
            (422, d.create("a b", &json!({}))),
        ];
        for (status, call) in calls {
            let answer = call.header("x-request-id", "my-request-7").await.expect(status);
            assert_eq!(answer.header("x-request-id"), "my-request-7", "{answer:?}");
            let without_key = status == 401 || answer.asked.contains("/livez");
            let names_revision = answer.headers.contains_key("x-concord-revision");
            assert_eq!(names_revision, !without_key, "{answer:?}");
            assert!(without_key || answer.revision() > 0, "{answer:?}");
            assert_eq!(answer.header("x-concord-node"), run.id.to_string(), "{answer:?}");
            assert_eq!(answer.header("x-content-type-options"), "nosniff", "{answer:?}");
            let is_stored = answer.headers.get("cache-control").is_none_or(|value| value != "no-store");
            assert_eq!(is_stored, without_key, "no cache keeps what needs a key: {answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_id_is_made_when_none_is_sent() {
    on_leader_and_follower(async |run: Run| {
        let one = run.node.get(DEFINITIONS).await.header("x-request-id").to_owned();
        let two = run.node.get(DEFINITIONS).await.header("x-request-id").to_owned();
        assert!(!one.is_empty() && !two.is_empty());
        assert_ne!(one, two);
    })
    .await;
}

fn tagged(answer: Answer) -> String {
    let date = answer.header("last-modified");
    assert!(date.ends_with(" GMT") && date.len() == "Thu, 13 Nov 2025 02:13:20 GMT".len(), "{answer:?}");
    answer.tag()
}

#[tokio::test]
async fn answers_that_show_one_record_have_its_tag_and_date() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let created = tagged(run.ask(&key, &json!([]), &json!(null)).await.expect(201));
        let path = format!("{DEFINITIONS}{key}");
        assert_eq!(tagged(run.node.get(&path).await), created);
        let updated = tagged(run.node.put(&path, &json!({"indexes": ["a"]})).await.expect(200));
        assert_ne!(updated, created);
        assert_eq!(tagged(run.node.get(&path).await), updated);
        let configs = format!("{path}/config/");
        let config = format!("{path}/config/k");
        let body = json!({"config_key": "k", "data": {}});
        let created = tagged(run.node.post(&configs, &body).await.expect(201));
        for node in run.all() {
            assert_eq!(tagged(node.get(&config).await), created);
        }
        let updated = tagged(run.node.put(&config, &json!({"data": {}})).await.expect(200));
        assert_ne!(updated, created);
        assert_eq!(tagged(run.node.get(&config).await), updated);
    })
    .await;
}

#[tokio::test]
async fn the_revision_of_an_answer_covers_the_record_that_it_shows_and_never_falls() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut last = 0;
        for turn in 0..5 {
            let write = d.create(&format!("k{turn}"), &json!({})).await.expect(201);
            let record: u64 = write.tag().trim_matches('"').parse().unwrap();
            assert!(record > last && write.revision() >= record, "{write:?}");
            let read = d.get(&format!("k{turn}")).await;
            assert!(read.revision() >= record, "{read:?}");
            last = record;
        }
    })
    .await;
}

#[tokio::test]
async fn every_whole_answer_states_its_length() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let created = d.create("k", &json!({"a": "ä"})).await.expect(201);
        let config = d.config("k");
        let calls: Vec<(u16, Call)> = vec![
            (200, run.node.get(&config)),
            (200, run.node.get(&config).query(&[("consistency", "local")])),
            (200, run.node.put(&config, &json!({"data": {}}))),
            (404, d.get("absent")),
            (404, run.node.get("/nothing")),
            (401, run.node.bare(Method::GET, &config)),
            (422, run.node.put(&config, &json!({"data": 1}))),
            (200, run.node.get(DEFINITIONS)),
        ];
        for (status, call) in calls {
            let answer = call.await.expect(status);
            assert_eq!(answer.header("content-length"), answer.text.len().to_string(), "{answer:?}");
            assert!(!answer.headers.contains_key("transfer-encoding"), "{answer:?}");
        }
        let unchanged = run.node.get(&config).header("if-none-match", "*").await.expect(304);
        assert!(!unchanged.headers.contains_key("content-length"), "{unchanged:?}");
        assert_eq!(created.header("content-length"), created.text.len().to_string(), "{created:?}");
    })
    .await;
}
