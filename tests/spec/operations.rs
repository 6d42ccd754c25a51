//! The ten operations: statuses, closed bodies, `Location`, each path with and without a slash at its end.

use http::Method;
use serde_json::{Value, json};

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::answer::{is_timestamp, names};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "o": {"type": "object", "properties": {"k": {"type": "integer"}}}},
        "required": ["name"]
    })
}

#[tokio::test]
async fn a_created_definition_is_shown_with_three_members_and_its_location() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let answer = run.ask(&key, &json!(["name", "o.k"]), &schema()).await.expect(201);
        let expected =
            json!({"config_definition_key": key, "indexes": ["name", "o.k"], "json_schema": schema()});
        assert_eq!(*answer.data(), expected);
        assert!(
            answer.header("location").ends_with(&format!("/api/v1/config_definition/{key}")),
            "{answer:?}"
        );
        assert!(answer.header("content-type").starts_with("application/json"), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn a_definition_without_a_schema_shows_none() {
    on_leader_and_follower(async |run: Run| {
        let bodies = [
            json!({"config_definition_key": run.key("a")}),
            json!({"config_definition_key": run.key("b"), "json_schema": null}),
            json!({"config_definition_key": run.key("c"), "indexes": []}),
        ];
        for body in bodies {
            let answer = run.node.post(DEFINITIONS, &body).await.expect(201);
            let key = &body["config_definition_key"];
            assert_eq!(*answer.data(), json!({"config_definition_key": key, "indexes": []}));
            let path = format!("{DEFINITIONS}{}", key.as_str().unwrap());
            let shown = run.node.get(&path).await.expect(200);
            assert_eq!(
                names(shown.data()),
                ["config_definition_key", "created_at", "indexes", "modified_at"]
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_definition_is_shown_alone_and_in_the_list_with_five_members() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["name"]), &schema()).await;
        let one = run.node.get(&d.path()).await.expect(200);
        let record = one.data();
        let expected = ["config_definition_key", "created_at", "indexes", "json_schema", "modified_at"];
        assert_eq!(names(record), expected);
        assert_eq!(record["config_definition_key"], d.key);
        assert_eq!(record["indexes"], json!(["name"]));
        assert_eq!(record["json_schema"], schema());
        assert!(is_timestamp(&record["created_at"]), "{one:?}");
        assert_eq!(record["created_at"], record["modified_at"]);
        let list = run.node.get(DEFINITIONS).query(&[("search", &d.key)]).await.expect(200);
        assert_eq!(*list.data(), json!({"results": [record], "meta": {"page": 1, "limit": 10, "total": 1}}));
    })
    .await;
}

#[tokio::test]
async fn updating_a_definition_answers_its_indexes_alone() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["name"]), &schema()).await;
        let before = run.node.get(&d.path()).await.expect(200);
        let answer = run.node.put(&d.path(), &json!({"indexes": ["o.k", "name"]})).await.expect(200);
        assert_eq!(*answer.data(), json!({"indexes": ["o.k", "name"]}));
        let after = run.node.get(&d.path()).await.expect(200);
        assert_eq!(after.data()["indexes"], json!(["o.k", "name"]));
        assert_eq!(after.data()["json_schema"], schema());
        assert_eq!(after.data()["created_at"], before.data()["created_at"]);
        let times = [&before, &after].map(|answer| answer.data()["modified_at"].as_str().unwrap().to_owned());
        assert!(times[0] < times[1], "{times:?}");
    })
    .await;
}

#[tokio::test]
async fn updating_a_definition_ignores_a_schema_and_warns() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["name"]), &schema()).await;
        let body = json!({"indexes": [], "json_schema": {"type": "object"}});
        let answer = run.node.put(&d.path(), &body).await.expect(200);
        assert_eq!(*answer.data(), json!({"indexes": []}));
        assert!(answer.header("warning").contains("/schema"), "{answer:?}");
        assert_eq!(run.node.get(&d.path()).await.data()["json_schema"], schema());
        let plain = run.node.put(&d.path(), &json!({"indexes": []})).await.expect(200);
        assert_eq!(plain.header("warning"), "");
    })
    .await;
}

#[tokio::test]
async fn deletes_answer_the_identity() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let config = d.remove("k").await.expect(200);
        assert_eq!(*config.data(), json!({"config_definition_key": d.key, "config_key": "k"}));
        let whole = run.node.delete(&d.path()).await.expect(200);
        assert_eq!(*whole.data(), json!({"config_definition_key": d.key}));
    })
    .await;
}

#[tokio::test]
async fn a_created_config_answers_its_data_and_location() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &schema()).await;
        let data = json!({"name": "a", "o": {"k": 1}, "more": [null, true, 1.5]});
        let answer = d.create("k", &data).await.expect(201);
        assert_eq!(*answer.data(), data);
        assert!(answer.header("location").ends_with(&d.config("k")), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn a_config_is_shown_alone_and_in_the_list_with_four_members() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let data = json!({"a": {"b": [1, 2]}});
        d.create("k", &data).await.expect(201);
        let one = d.get("k").await.expect(200);
        let record = one.data();
        assert_eq!(names(record), ["config_key", "created_at", "data", "modified_at"]);
        assert_eq!(record["config_key"], "k");
        assert_eq!(record["data"], data);
        assert!(is_timestamp(&record["created_at"]), "{one:?}");
        assert_eq!(record["created_at"], record["modified_at"]);
        let list = d.list(&[]).await.expect(200);
        assert_eq!(*list.data(), json!({"results": [record], "meta": {"page": 1, "limit": 10, "total": 1}}));
    })
    .await;
}

#[tokio::test]
async fn updating_a_config_replaces_it_whole_and_answers_its_data() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"a": 1, "b": 2})).await.expect(201);
        let before = d.get("k").await;
        let answer = d.put("k", &json!({"c": 3})).await.expect(200);
        assert_eq!(*answer.data(), json!({"c": 3}));
        let after = d.get("k").await;
        assert_eq!(after.data()["data"], json!({"c": 3}));
        assert_eq!(after.data()["created_at"], before.data()["created_at"]);
    })
    .await;
}

#[tokio::test]
async fn an_update_with_equal_data_is_a_write() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"a": 1})).await.expect(201);
        let before = d.get("k").await;
        d.put("k", &json!({"a": 1})).await.expect(200);
        let after = d.get("k").await;
        let times = [&before, &after].map(|answer| answer.data()["modified_at"].as_str().unwrap().to_owned());
        assert!(times[0] < times[1], "{times:?}");
        assert_ne!(before.tag(), after.tag());
    })
    .await;
}

#[tokio::test]
async fn times_grow_strictly_from_write_to_write() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut last = String::new();
        for (turn, node) in run.all().iter().cycle().take(12).enumerate() {
            let key = format!("k{turn}");
            node.post(&d.configs(), &json!({"config_key": key, "data": {}})).await.expect(201);
            let shown = d.get(&key).await;
            let time = shown.data()["modified_at"].as_str().unwrap();
            assert!(last.as_str() < time, "{last} then {time}");
            last = time.to_owned();
        }
    })
    .await;
}

#[tokio::test]
async fn every_path_is_served_with_and_without_a_trailing_slash() {
    on_leader_and_follower(async |run: Run| {
        for slash in ["", "/"] {
            let key = run.key(&format!("d{}", slash.len()));
            let call = |method: &str, path: &str| {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                run.node.call(method, &format!("/api/v1/config_definition{path}{slash}"))
            };
            call("POST", "").json(&json!({"config_definition_key": key})).await.expect(201);
            call("GET", "").query(&[("search", key.as_str())]).await.expect(200);
            let item = format!("/{key}");
            call("GET", &item).await.expect(200);
            call("PUT", &item).json(&json!({"indexes": []})).await.expect(200);
            let configs = format!("{item}/config");
            call("POST", &configs).json(&json!({"config_key": "k", "data": {}})).await.expect(201);
            call("GET", &configs).await.expect(200);
            let config = format!("{configs}/k");
            call("GET", &config).await.expect(200);
            call("PUT", &config).json(&json!({"data": {}})).await.expect(200);
            call("DELETE", &config).await.expect(200);
            call("DELETE", &item).await.expect(200);
        }
    })
    .await;
}
