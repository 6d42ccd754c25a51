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

/// The revisions of a list, with the keys of their configs.
fn listed(answer: &Answer) -> Vec<(u64, String)> {
    let events = answer.data()["events"].as_array().expect("events").iter();
    let key = |event: &Value| event["changes"][0]["config_key"].as_str().unwrap_or("definition").to_owned();
    events.map(|event| (event["revision"].as_u64().expect("a revision"), key(event))).collect()
}

#[tokio::test]
async fn the_latest_changes_are_listed_newest_first_and_page_by_page() {
    on_leader_and_follower(async |run: Run| {
        let (d, other) = (run.define_open("d").await, run.define_open("other").await);
        for number in 0..5 {
            d.create(&format!("k{number}"), &json!({"n": number})).await.expect(201);
            other.create(&format!("o{number}"), &json!({})).await.expect(201);
        }
        let put = d.put("k3", &json!({"n": 7})).header("x-change-reason", "why").await.expect(200);
        let revision: u64 = put.tag().trim_matches('"').parse().expect("a revision");
        let list = async |more: &[(&str, &str)]| poll(&run.node, &d.key, more).await.expect(200);
        let whole = list(&[("latest", "100"), ("prev", "true")]).await;
        let keys: Vec<String> = listed(&whole).into_iter().map(|(_, key)| key).collect();
        assert_eq!(keys, ["k3", "k4", "k3", "k2", "k1", "k0", "definition"]);
        assert_eq!(whole.data()["next_before"], Value::Null, "{whole:?}");
        let newest = &whole.data()["events"][0];
        assert_eq!((&newest["revision"], &newest["reason"]), (&json!(revision), &json!("why")));
        assert_eq!(newest["changes"][0]["prev"], json!({"n": 3}));
        assert!(next_from(&whole).parse::<u64>().unwrap() > revision, "new changes follow");

        let (mut pages, mut before) = (Vec::new(), String::from("18446744073709551615"));
        loop {
            let page = list(&[("latest", "2"), ("before", &before)]).await;
            assert!(listed(&page).len() <= 2, "{page:?}");
            pages.extend(listed(&page));
            match page.data()["next_before"].as_u64() {
                Some(next) => before = next.to_string(),
                None => break,
            }
        }
        assert_eq!(pages, listed(&whole), "each once");

        assert_eq!(listed(&list(&[("latest", "9"), ("by", "root")]).await).len(), 7);
        assert_eq!(listed(&list(&[("latest", "9"), ("by", "nobody")]).await), []);
        assert_eq!(listed(&list(&[("latest", "9"), ("since", "2999-01-01T00:00:00Z")]).await), []);
        let at = newest["at"].as_str().unwrap();
        assert_eq!(listed(&list(&[("latest", "9"), ("since", at)]).await), [(revision, "k3".into())]);
        let one = list(&[("latest", "9"), ("config_key", "k0")]).await;
        assert_eq!(listed(&one).first().map(|(_, key)| key.as_str()), Some("k0"), "{one:?}");
    })
    .await;
}

#[tokio::test]
async fn a_list_of_changes_goes_on_before_an_undone_deletion_and_is_bounded_in_bytes() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let text = "x".repeat(400_000);
        for place in 0..6 {
            d.create(&format!("k{place}"), &json!({"text": text})).await.expect(201);
        }
        run.node.delete(&d.path()).await.expect(200);
        run.node.post(&format!("{}/undelete", d.path()), &json!({})).await.expect(201);
        let (mut all, mut before, mut pages) = (Vec::new(), String::from("18446744073709551615"), 0);
        loop {
            let page = poll(&run.node, &d.key, &[("latest", "100"), ("before", &before)]).await.expect(200);
            assert!(page.text.len() < 1_500_000, "{}", page.text.len());
            all.extend(page.data()["events"].as_array().unwrap().clone());
            pages += 1;
            match page.data()["next_before"].as_u64() {
                Some(next) => before = next.to_string(),
                None => break,
            }
        }
        assert!(pages > 1, "2.4 MB are not one page");
        let kinds: Vec<&str> =
            all.iter().map(|event| event["changes"][0]["type"].as_str().unwrap()).collect();
        assert_eq!(kinds[..2], ["definition_created", "definition_deleted"]);
        assert_eq!(all[0]["changes"][0]["count"], 6, "{}", all[0]);
        assert_eq!(
            kinds[2..],
            ["config_created"; 6].into_iter().chain(["definition_created"]).collect::<Vec<_>>()
        );
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
            &[("latest", "0")][..],
            &[("latest", "5"), ("wait", "1")],
            &[("latest", "5"), ("n", "1")],
            &[("latest", "5"), ("since", "yesterday")],
            &[("from", "-1")],
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
