//! Races of equal requests over all three nodes.

use std::future::IntoFuture;

use futures::future::join_all;
use serde_json::json;

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::Answer;

fn one_of_sixteen(answers: &[Answer]) -> &Answer {
    let with = |status: u16| answers.iter().filter(move |answer| answer.status == status);
    assert_eq!((with(201).count(), with(409).count()), (1, 15), "{answers:?}");
    with(201).next().expect("counted")
}

#[tokio::test]
async fn of_sixteen_equal_creates_of_a_config_one_is_done() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let nodes = run.all();
        for round in 0..5 {
            let key = format!("k{round}");
            let calls = (0..16).map(|n| {
                let body = json!({"config_key": key, "data": {"n": n}});
                nodes[n % 3].post(&d.configs(), &body).into_future()
            });
            let answers = join_all(calls).await;
            let winner = one_of_sixteen(&answers).data();
            for node in &nodes {
                assert_eq!(node.get(&d.config(&key)).await.data()["data"], *winner);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn of_sixteen_equal_creates_of_a_definition_one_is_done() {
    on_leader_and_follower(async |run: Run| {
        let nodes = run.all();
        let key = run.key("d");
        let calls = (0..16).map(|n| {
            let body = json!({"config_definition_key": key, "indexes": [format!("f{n}")]});
            nodes[n % 3].post(DEFINITIONS, &body).into_future()
        });
        let answers = join_all(calls).await;
        let winner = one_of_sixteen(&answers).data();
        let shown = run.node.get(&format!("{DEFINITIONS}{key}")).await;
        assert_eq!(shown.data()["indexes"], winner["indexes"]);
    })
    .await;
}

#[tokio::test]
async fn of_equal_requests_with_one_idempotency_key_one_is_done_and_all_are_answered_alike() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let nodes = run.all();
        let calls = (0..12).map(|n| {
            let body = json!({"config_key": "k", "data": {}});
            let call = nodes[n % 3].post(&d.configs(), &body);
            call.header("idempotency-key", &run.key("id")).into_future()
        });
        let answers = join_all(calls).await;
        for answer in &answers {
            assert_eq!((answer.status, answer.tag()), (201, answers[0].tag()), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_create_during_the_delete_of_its_definition_leaves_no_orphan() {
    on_leader_and_follower(async |run: Run| {
        for round in 0..5 {
            let d = run.define_open(&format!("d{round}")).await;
            let nodes = run.all();
            let creates = (0..6).map(|n| {
                let body = json!({"config_key": format!("k{n}"), "data": {}});
                nodes[n % 3].post(&d.configs(), &body).into_future()
            });
            let (created, deleted) =
                tokio::join!(join_all(creates), run.node.delete(&d.path()).into_future());
            deleted.expect(200);
            for answer in created {
                assert!(matches!(answer.status, 201 | 404), "{answer:?}");
            }
            d.list(&[]).await.refused(404, "not_found_error");
            let again = run.define_open(&format!("d{round}")).await;
            assert_eq!(again.list(&[]).await.total(), 0);
        }
    })
    .await;
}
