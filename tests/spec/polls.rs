//! Long polls: the changes of a watch in answers, each once, in order, on any node.

use http::Method;
use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};
use crate::harness::{Answer, Client};

const CHANGES: &str = "/api/v1/changes";

async fn poll(node: &Client, definition: &str, more: &[(&str, &str)]) -> Answer {
    let query: Vec<_> = [("definition", definition)].into_iter().chain(more.iter().copied()).collect();
    node.get(CHANGES).query(&query).await
}

/// The `from` to go on with, which the header of both answers has.
fn next_from(answer: &Answer) -> String {
    let next = answer.header("x-concord-next-from").to_owned();
    if answer.status == 200 {
        assert_eq!(answer.data()["from"].to_string(), next, "{answer:?}");
    }
    next
}

/// The types of the changes, with the config's key.
fn brief(answer: &Answer) -> Vec<String> {
    let events = answer.data()["events"].as_array().expect("events");
    let revisions: Vec<u64> = events.iter().map(|event| event["revision"].as_u64().unwrap()).collect();
    assert!(revisions.is_sorted_by(|one, two| one < two), "{answer:?}");
    let changes = events.iter().flat_map(|event| event["changes"].as_array().unwrap());
    let text = |change: &Value, name: &str| change[name].as_str().unwrap_or_default().to_owned();
    changes.map(|change| format!("{} {}", text(change, "type"), text(change, "config_key"))).collect()
}

#[tokio::test]
async fn a_poll_that_does_not_wait_has_what_was_acknowledged_before() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut from = next_from(&poll(&run.node, &d.key, &[("wait", "0")]).await.expect(304));
        for number in 0..100 {
            let put = run.others[number % 2].put(&d.config("k"), &json!({"data": {"n": number}}));
            let put = put.query(&[("upsert", "true")]).insist().await;
            assert!(matches!(put.status, 200 | 201), "{put:?}");
            let answer = poll(&run.node, &d.key, &[("from", &from), ("wait", "0")]).await;
            assert_eq!(answer.status, 200, "{number}: after {put:?}: {answer:?}");
            from = next_from(&answer);
        }
    })
    .await;
}

#[tokio::test]
async fn polls_one_after_another_have_every_change_once_on_any_node() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let idle = poll(&run.node, &d.key, &[("wait", "0")]).await.expect(304);
        assert_eq!(idle.text, "");
        let shown = run.node.get("/api/v1/cluster").await.expect(200);
        let cluster = shown.data()["cluster_id"].as_str().unwrap().to_owned();
        assert_eq!(idle.header("x-concord-cluster"), cluster);
        let mut from = next_from(&idle);
        let mut seen = Vec::new();
        for (place, node) in run.all().iter().cycle().take(9).enumerate() {
            let key = format!("k{place}");
            d.create(&key, &json!({"n": place})).await.expect(201);
            if place % 3 == 1 {
                // Two at once.
                d.put(&key, &json!({})).await.expect(200);
            }
            let answer = poll(node, &d.key, &[("from", &from), ("wait", "60")]).await.expect(200);
            seen.extend(brief(&answer));
            assert_eq!(answer.header("x-concord-cluster"), cluster, "the same on every node");
            from = next_from(&answer);
        }
        let mut expected = Vec::new();
        for place in 0..9 {
            expected.push(format!("config_created k{place}"));
            if place % 3 == 1 {
                expected.push(format!("config_updated k{place}"));
            }
        }
        assert_eq!(seen, expected);
        let idle = poll(&run.others[0], &d.key, &[("from", &from), ("wait", "0")]).await.expect(304);
        assert!(next_from(&idle).parse::<u64>().unwrap() >= from.parse().unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_poll_waits_for_a_change_and_answers_it_at_once() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &json!({"properties": {"n": {"type": "integer"}}})).await;
        let from = next_from(&poll(&run.node, &d.key, &[("wait", "0")]).await.expect(304));
        let wanted = [("from", from.as_str()), ("wait", "300"), ("n[gte]", "5"), ("prev", "true")];
        let waiting = poll(&run.node, &d.key, &wanted);
        let writes = async {
            d.create("low", &json!({"n": 1})).await.expect(201);
            d.create("high", &json!({"n": 7})).await.expect(201);
        };
        let (answer, ()) = tokio::join!(waiting, writes);
        let answer = answer.expect(200);
        assert_eq!(brief(&answer), ["config_created high"]);
        let change = &answer.data()["events"][0]["changes"][0];
        assert_eq!((&change["data"], &change["prev"]), (&json!({"n": 7}), &json!(null)), "{answer:?}");
    })
    .await;
}

#[tokio::test]
async fn old_changes_come_in_bounded_answers() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let mut from = d.create("first", &json!({})).await.expect(201).tag().trim_matches('"').to_owned();
        let text = "x".repeat(400_000);
        for place in 0..6 {
            d.create(&format!("k{place}"), &json!({"text": text})).await.expect(201);
        }
        let (mut keys, mut answers) = (Vec::new(), 0);
        while keys.len() < 7 {
            let answer = poll(&run.node, &d.key, &[("from", &from), ("wait", "60")]).await.expect(200);
            keys.extend(brief(&answer));
            from = next_from(&answer);
            answers += 1;
        }
        let expected: Vec<String> =
            ["first", "k0", "k1", "k2", "k3", "k4", "k5"].map(|key| format!("config_created {key}")).into();
        assert_eq!(keys, expected);
        assert!(answers > 1, "2.4 MB are not one answer");
    })
    .await;
}

#[tokio::test]
async fn what_can_not_be_polled_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let ask = |query: &[(&str, &str)]| run.node.get(CHANGES).query(query);
        ask(&[("from", "x")]).await.detail(&[(json!(["query", "from"]), "int_parsing")]);
        ask(&[("wait", "x")]).await.detail(&[(json!(["query", "wait"]), "int_parsing")]);
        for bad in [
            &[("from", "-1")][..],
            &[("wait", "301")],
            &[("wait", "-1")],
            &[("initial", "true")],
            &[("prev", "yes")],
            &[("n", "1")],
            &[("definition", "a b")],
        ] {
            ask(bad).await.invalid();
        }
        ask(&[("from", "9000000000000"), ("wait", "0")]).await.refused(410, "expired_error");
        run.node.bare(Method::GET, CHANGES).await.refused(401, "unauthorized_error");
        assert_eq!(run.node.call(Method::HEAD, CHANGES).await.expect(405).header("allow"), "GET");
    })
    .await;
}
