//! Deleting: a definition takes its configs and indexes with it, unless it is restricted.

use serde_json::json;

use super::{Run, on_leader_and_follower};

#[tokio::test]
async fn a_deleted_definition_takes_its_configs_with_it() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &json!(null)).await;
        d.fill(&[("a", json!({"n": 1})), ("b", json!({"n": 2}))]).await;
        run.node.delete(&d.path()).await.expect(200);
        for node in run.all() {
            node.get(&d.path()).await.refused(404, "not_found_error");
            node.get(&d.configs()).await.refused(404, "not_found_error");
            node.get(&d.config("a")).await.refused(404, "not_found_error");
        }
        d.create("a", &json!({})).await.refused(404, "not_found_error");
        run.node.delete(&d.path()).await.refused(404, "not_found_error");
        let again = run.define("d", &json!(["n"]), &json!(null)).await;
        assert_eq!(again.list(&[]).await.total(), 0);
        assert_eq!(again.list(&[("n", "1")]).await.total(), 0);
        again.create("a", &json!({"n": 1})).await.expect(201);
    })
    .await;
}

#[tokio::test]
async fn a_restricted_delete_is_refused_while_configs_exist() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let restricted = || run.node.delete(&d.path()).query(&[("mode", "restrict")]);
        restricted().await.refused(409, "conflict_error");
        d.get("k").await.expect(200);
        d.remove("k").await.expect(200);
        restricted().await.expect(200);
        restricted().await.refused(404, "not_found_error");
    })
    .await;
}

#[tokio::test]
async fn a_deleted_config_is_gone_and_can_be_created_again() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let first = d.get("k").await;
        d.remove("k").await.expect(200);
        d.get("k").await.refused(404, "not_found_error");
        d.remove("k").await.refused(404, "not_found_error");
        d.put("k", &json!({})).await.refused(404, "not_found_error");
        assert_eq!(d.list(&[]).await.total(), 0);
        d.create("k", &json!({"n": 2})).await.expect(201);
        let second = d.get("k").await;
        let times = [&first, &second].map(|answer| answer.data()["created_at"].as_str().unwrap().to_owned());
        assert!(times[0] < times[1], "it is another config: {times:?}");
    })
    .await;
}

#[tokio::test]
async fn what_exists_cannot_be_created() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &json!(null)).await;
        run.ask(&d.key, &json!([]), &json!(null)).await.refused(409, "conflict_error");
        assert_eq!(run.node.get(&d.path()).await.data()["indexes"], json!(["n"]));
        d.create("k", &json!({"n": 1})).await.expect(201);
        d.create("k", &json!({"n": 2})).await.refused(409, "conflict_error");
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
    })
    .await;
}
