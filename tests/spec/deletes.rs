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
async fn a_protected_definition_is_not_deleted_until_its_protection_ends() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({})).await.expect(201);
        let path = format!("{}/protection", d.path());
        let shown = async |protected: bool| {
            for node in run.all() {
                assert_eq!(*node.get(&path).await.expect(200).data(), json!({ "protected": protected }));
            }
        };
        let set = |protected: bool| run.node.put(&path, &json!({ "protected": protected }));
        shown(false).await;
        run.node.put(&path, &json!({"protected": "yes"})).await.expect(422);
        run.node.put(&path, &json!({})).await.expect(422);
        set(true).query(&[("dry_run", "true")]).await.expect(200);
        shown(false).await;
        let stored = set(true).await.expect(200);
        shown(true).await;
        assert_eq!(
            run.node.get(&d.path()).await.expect(200).tag(),
            stored.tag(),
            "it is a part of the definition"
        );
        set(false).header("if-match", "\"1\"").await.refused(412, "precondition_failed");
        let operations = |set: bool| {
            let clear = json!({"op": "set_protection", "config_definition_key": d.key, "protected": false});
            let delete = json!({"op": "delete_definition", "config_definition_key": d.key});
            let all = if set { vec![clear, delete] } else { vec![delete] };
            run.node.post("/api/v1/batch", &json!({ "operations": all }))
        };
        for call in [
            run.node.delete(&d.path()),
            run.node.delete(&d.path()).query(&[("purge", "true")]),
            run.node.delete(&d.path()).query(&[("dry_run", "true")]),
            run.node.delete(&d.path()).query(&[("mode", "restrict")]),
            operations(false),
        ] {
            let refused = call.await.refused(409, "conflict_error");
            let error = &refused.body["errors"][0];
            assert_eq!(error["code"], "definition_protected", "{refused:?}");
            assert!(error["msg"].as_str().unwrap().contains("set `protected` to false first"), "{refused:?}");
        }
        d.get("k").await.expect(200);
        operations(true).await.expect(200);
        run.node.get(&d.path()).await.refused(404, "not_found_error");
        // It returns as it was before the batch.
        run.node.post(&format!("{}/undelete", d.path()), &json!({})).await.expect(201);
        shown(true).await;
        set(false).await.expect(200);
        run.node.delete(&d.path()).await.expect(200);
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
