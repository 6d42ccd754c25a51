//! `PUT …/unique`: values that only one config of a definition may have.

use std::future::IntoFuture;

use futures::future::join_all;
use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::harness::{Call, answer::names};

fn unique(d: &Defined, paths: &Value) -> Call {
    d.node.put(&format!("{}/unique", d.path()), &json!({ "paths": paths }))
}

async fn paths(d: &Defined) -> Value {
    let answer = d.node.get(&format!("{}/unique/", d.path())).await.expect(200);
    assert_eq!(names(answer.data()), ["paths"]);
    answer.data()["paths"].clone()
}

#[tokio::test]
async fn a_value_of_a_unique_path_is_refused_to_a_second_config() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n", "tags", "o.k"]), &Value::Null).await;
        assert_eq!(paths(&d).await, json!([]));
        d.fill(&[("a", json!({"n": 1, "tags": ["x", "y"]})), ("b", json!({"n": null}))]).await;
        let answer = unique(&d, &json!(["n", "tags"])).await.expect(200);
        assert_eq!(*answer.data(), json!({"paths": ["n", "tags"]}));
        assert_eq!(answer.tag(), d.node.get(&d.path()).await.tag());
        for node in run.all() {
            assert_eq!(paths(&Defined { node, ..d.clone() }).await, json!(["n", "tags"]));
        }
        let taken = |call: Call, by: &'static str| async move {
            let answer = call.await.refused(409, "conflict_error");
            let msg = answer.body["errors"][0]["msg"].as_str().unwrap();
            assert!(msg.contains(&format!("`{by}`")), "{answer:?}");
        };
        taken(d.create("c", &json!({"n": 1.0})), "a").await;
        taken(d.create("c", &json!({"n": null})), "b").await;
        taken(d.create("c", &json!({"tags": ["z", "y"]})), "a").await;
        taken(d.put("b", &json!({"n": 1})), "a").await;
        // Within one config a value may repeat; what is missing is no value; other paths are free.
        d.put("a", &json!({"n": 1, "tags": ["x", "x"], "o": {"k": 5}})).await.expect(200);
        d.create("c", &json!({"tags": ["y"], "o": {"k": 5}})).await.expect(201);
        d.create("e", &json!({})).await.expect(201);
        d.remove("b").await.expect(200);
        d.put("e", &json!({"n": null})).await.expect(200);

        assert_eq!(*unique(&d, &json!([])).await.expect(200).data(), json!({"paths": []}));
        d.create("f", &json!({"n": 1})).await.expect(201);
    })
    .await;
}

#[tokio::test]
async fn a_path_that_configs_share_or_that_is_not_indexed_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["m", "n"]), &Value::Null).await;
        d.fill(&[("a", json!({"n": [1, 2]})), ("b", json!({"n": 3})), ("c", json!({"n": [2]}))]).await;
        for dry in ["false", "true"] {
            let refused = unique(&d, &json!(["m", "n"])).query(&[("dry_run", dry)]).await;
            let refused = refused.refused(409, "conflict_error");
            let msg = refused.body["errors"][0]["msg"].as_str().unwrap();
            assert!(["`n`", "`a`", "`c`"].iter().all(|part| msg.contains(part)), "{refused:?}");
        }
        let wrong = unique(&d, &json!(["x", "m", "m"])).await.invalid();
        let locs: Vec<&Value> =
            wrong.body["errors"].as_array().unwrap().iter().map(|error| &error["loc"]).collect();
        assert_eq!(locs, [&json!(["paths", 0]), &json!(["paths", 2])]);
        let path = format!("{}/unique", d.path());
        d.node.put(&path, &json!({})).await.detail(&[(json!(["body", "paths"]), "missing")]);
        unique(&d, &json!([1])).await.detail(&[(json!(["body", "paths", 0]), "string_type")]);
        d.node.put(&format!("{}-none/unique", d.path()), &json!({"paths": []})).await.expect(404);

        let tried = unique(&d, &json!(["m"])).query(&[("dry_run", "true")]).await.expect(200);
        assert_eq!(tried.header("x-concord-dry-run"), "true");
        assert_eq!(paths(&d).await, json!([]));
        unique(&d, &json!(["m"])).header("if-match", "\"1\"").await.refused(412, "precondition_failed");
        unique(&d, &json!(["m"])).await.expect(200);
        // A unique path stays indexed.
        let indexes = |paths: Value| d.node.put(&d.path(), &json!({ "indexes": paths }));
        indexes(json!(["n"])).await.refused(409, "conflict_error");
        indexes(json!(["m"])).await.expect(200);
        d.create("e", &json!({"m": 1})).await.expect(201);
        d.create("f", &json!({"m": 1})).await.refused(409, "conflict_error");
    })
    .await;
}

#[tokio::test]
async fn of_sixteen_configs_with_one_value_one_is_done() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        unique(&d, &json!(["n"])).await.expect(200);
        let nodes = run.all();
        for round in 0..5 {
            let calls = (0..16).map(|k| {
                let body = json!({"config_key": format!("k{round}-{k}"), "data": {"n": round}});
                nodes[k % 3].post(&d.configs(), &body).into_future()
            });
            let mut statuses: Vec<u16> = join_all(calls).await.iter().map(|answer| answer.status).collect();
            statuses.sort_unstable();
            assert_eq!((statuses[0], &statuses[1..]), (201, &[409; 15][..]));
            let n = round.to_string();
            assert_eq!(d.found(&[("n", n.as_str())]).await.len(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn a_path_becomes_unique_during_writes_or_a_write_is_refused() {
    on_leader_and_follower(async |run: Run| {
        for round in 0..5 {
            let d = run.define(&format!("d{round}"), &json!(["n"]), &Value::Null).await;
            d.create("a", &json!({"n": 1})).await.expect(201);
            let nodes = run.all();
            let creates = (0..6).map(|k| {
                let body = json!({"config_key": format!("k{k}"), "data": {"n": 1}});
                nodes[k % 3].post(&d.configs(), &body).into_future()
            });
            let call = unique(&d, &json!(["n"]));
            let (created, changed) = tokio::join!(join_all(creates), call.into_future());
            let done = created.iter().filter(|answer| answer.status == 201).count();
            assert!(created.iter().all(|answer| matches!(answer.status, 201 | 409)), "{created:?}");
            match changed.status {
                200 => assert_eq!(done, 0, "the path is unique: {created:?}"),
                _ => {
                    changed.refused(409, "conflict_error");
                    assert_eq!(done, 6, "nothing is unique: {created:?}");
                }
            }
        }
    })
    .await;
}
