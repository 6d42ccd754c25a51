//! `If-Match` and `If-None-Match`.

use std::{future::IntoFuture, time::Instant};

use serde_json::json;

use super::{Run, on_leader_and_follower};
use crate::harness::{Answer, Client, DEADLINE};

fn failed(answer: Answer) {
    answer.refused(412, "precondition_failed");
}

#[tokio::test]
async fn a_write_that_expects_a_revision_is_done_at_that_revision_only() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let first = d.create("k", &json!({"n": 1})).await.expect(201).tag();
        let second = d.put("k", &json!({"n": 2})).header("if-match", &first).await.expect(200).tag();
        failed(d.put("k", &json!({"n": 3})).header("if-match", &first).await);
        failed(d.remove("k").header("if-match", &first).await);
        failed(d.put("k", &json!({"n": 3})).header("if-match", "\"99999999999\"").await);
        let date = "Fri, 31 Dec 9999 23:59:59 GMT";
        d.put("k", &json!({"n": 3})).header("if-unmodified-since", date).await.invalid();
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 2}));
        d.put("k", &json!({"n": 3})).header("if-match", "*").await.expect(200);
        let third = d.get("k").await.tag();
        assert_ne!(second, third);
        d.remove("k").header("if-match", &third).await.expect(200);
        d.get("k").await.expect(404);
        d.remove("k").header("if-match", &third).await.refused(404, "not_found_error");
    })
    .await;
}

#[tokio::test]
async fn definitions_take_preconditions_too() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let first = run.node.get(&d.path()).await.tag();
        let indexes = json!({"indexes": ["a"]});
        let second = run.node.put(&d.path(), &indexes).header("if-match", &first).await.expect(200).tag();
        failed(run.node.put(&d.path(), &json!({"indexes": []})).header("if-match", &first).await);
        failed(run.node.delete(&d.path()).header("if-match", &first).await);
        assert_eq!(run.node.get(&d.path()).await.data()["indexes"], json!(["a"]));
        run.node.delete(&d.path()).header("if-match", &second).await.expect(200);
        run.node.get(&d.path()).await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn a_put_that_expects_nothing_creates() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let put = |n: u64| d.put("k", &json!({"n": n})).header("if-none-match", "*");
        let answer = put(1).await.expect(201);
        assert_eq!(*answer.data(), json!({"n": 1}));
        assert!(answer.header("location").ends_with(&d.config("k")), "{answer:?}");
        failed(put(2).await);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
        d.remove("k").await.expect(200);
        put(3).await.expect(201);
    })
    .await;
}

#[tokio::test]
async fn a_read_of_what_is_known_already_is_answered_without_a_body() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let tag = d.create("k", &json!({})).await.expect(201).tag();
        for (path, tag) in [(d.config("k"), tag), (d.path(), run.node.get(&d.path()).await.tag())] {
            let get = |tag: &str| run.node.get(&path).header("if-none-match", tag);
            let answer = get(&tag).await.expect(304);
            assert_eq!((answer.text.as_str(), answer.tag()), ("", tag.clone()));
            get(&format!("\"1\", {tag}")).await.expect(304);
            get(&format!("W/{tag}")).await.expect(304);
            get("*").await.expect(304);
            get("\"1\"").await.expect(200);
        }
        d.put("k", &json!({})).await.expect(200);
        let old = d.get("k").await.tag();
        d.put("k", &json!({})).await.expect(200);
        d.get("k").header("if-none-match", &old).await.expect(200);
    })
    .await;
}

/// Adds one, surely once: a write whose outcome is unknown can't be told from another's, so it ends the run.
async fn increment(node: &Client, path: &str) {
    let end = Instant::now() + DEADLINE;
    loop {
        let now = node.get(path).await.expect(200);
        let n = now.data()["data"]["n"].as_u64().expect("a number");
        let put = node.put(path, &json!({"data": {"n": n + 1}})).header("if-match", &now.tag()).await;
        if put.status == 200 {
            return;
        }
        failed(put);
        assert!(Instant::now() < end, "no turn before the deadline");
    }
}

#[tokio::test]
async fn four_clients_that_add_twenty_each_end_at_eighty() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 0})).await.expect(201);
        let [a, b, c] = run.all();
        let path = d.config("k");
        let add = async |node: Client| {
            for _ in 0..20 {
                increment(&node, &path).await;
            }
        };
        tokio::join!(add(a.clone()), add(b), add(c), add(a));
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 80}));
    })
    .await;
}

#[tokio::test]
async fn of_writes_that_expect_the_same_revision_one_is_done() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let tag = d.create("k", &json!({})).await.expect(201).tag();
        let nodes = run.all();
        let puts = (0..9).map(|n| {
            let put = nodes[n % 3].put(&d.config("k"), &json!({"data": {"n": n}}));
            put.header("if-match", &tag).into_future()
        });
        let answers = futures::future::join_all(puts).await;
        let done: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 200).collect();
        assert_eq!(done.len(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| answer.status == 412).count(), 8, "{answers:?}");
        let kept = d.get("k").await.data()["data"].clone();
        assert_eq!(kept, *done[0].data());
    })
    .await;
}
