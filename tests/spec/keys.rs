//! Keys: the alphabet, the length, the case; in bodies and in paths.

use serde_json::json;

use super::{DEFINITIONS, Run, on_leader_and_follower};

const WRONG: [&str; 11] = ["", ".a", "-a", "_a", "~a", "a b", "a/b", "ä", "a\n", "a:b", "a%b"];

#[tokio::test]
async fn the_whole_alphabet_makes_keys() {
    on_leader_and_follower(async |run: Run| {
        let long = format!("{}{}", run.key(""), "x".repeat(255 - run.key("").len()));
        let keys = [run.key("A.b_c~d-e"), run.key("0"), long];
        for key in keys {
            run.node.post(DEFINITIONS, &json!({"config_definition_key": key})).await.expect(201);
            let shown = run.node.get(&format!("{DEFINITIONS}{key}")).await.expect(200);
            assert_eq!(shown.data()["config_definition_key"], *key);
        }
        let d = run.define_open("d").await;
        for key in ["a", "0", "Z", "a.b_c~d-e", &"x".repeat(255)] {
            d.create(key, &json!({})).await.expect(201);
            assert_eq!(d.get(key).await.expect(200).data()["config_key"], *key);
        }
    })
    .await;
}

#[tokio::test]
async fn other_texts_are_no_keys_in_a_body() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for key in WRONG.into_iter().chain([&*"x".repeat(256)]) {
            run.node.post(DEFINITIONS, &json!({"config_definition_key": key})).await.invalid();
            d.create(key, &json!({})).await.invalid();
        }
        assert_eq!(d.found(&[]).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn other_texts_are_no_keys_in_a_path() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for key in ["a%20b", "-a", "_a", "%C3%A4", "a%0A", "a:b", &"x".repeat(256)] {
            let path = format!("{DEFINITIONS}{key}");
            run.node.get(&path).await.invalid();
            run.node.put(&path, &json!({"indexes": []})).await.invalid();
            run.node.delete(&path).await.invalid();
            run.node.get(&format!("{path}/config/")).await.invalid();
            run.node.get(&format!("{path}/config/k")).await.invalid();
            let config = d.config(key);
            run.node.get(&config).await.invalid();
            run.node.put(&config, &json!({"data": {}})).await.invalid();
            run.node.delete(&config).await.invalid();
        }
    })
    .await;
}

#[tokio::test]
async fn keys_differ_by_case_and_are_decoded_in_paths() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("key", json!({"n": 1})), ("KEY", json!({"n": 2}))]).await;
        assert_eq!(d.get("key").await.data()["data"]["n"], 1);
        assert_eq!(d.get("KEY").await.data()["data"]["n"], 2);
        d.get("Key").await.refused(404, "not_found_error");
        assert_eq!(d.get("%6Bey").await.data()["data"]["n"], 1);
    })
    .await;
}
