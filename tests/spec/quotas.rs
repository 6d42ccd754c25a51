//! What a key may have open at once: cursors and watches, of every route that has them. Rates and stored bytes are in
//! `hostile::greedy`.

use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};
use crate::{
    harness::{Answer, Call, Client, watch::WATCH},
    hostile::grants::{create_key, known},
};

/// A client of the asked node with a key that may read everything of the run, with this quota.
async fn bounded(run: &Run, quota: &Value) -> Client {
    let grants = json!([{"verbs": ["read"], "definitions": [run.key("*")]}]);
    let (_, key) = create_key(&run.node, &grants, &json!({"quota": quota})).await;
    known(&run.all(), &key, true).await;
    Client::new(&run.node.base, &key)
}

/// Sends it until it is no failure of a busy node: a quota is named in its refusal.
async fn once(call: &Call) -> Answer {
    crate::harness::eventually("an answer of this key's quota", async || {
        let answer = call.attempt().await?;
        let is_busy = answer.status == 503 || (answer.status == 429 && !answer.text.contains("access key"));
        crate::harness::check(!is_busy, || format!("{answer:?}")).map(|()| answer)
    })
    .await
}

fn next(answer: &Answer) -> Option<String> {
    let link = answer.headers.get("link")?.to_str().expect("ASCII");
    Some(link.split(['<', '>']).nth(1).expect("a link").to_owned())
}

#[tokio::test]
async fn a_list_that_is_not_read_to_its_end_takes_a_place_among_the_cursors() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for n in 0..3 {
            d.create(&format!("k{n}"), &json!({"n": n})).await.expect(201);
        }
        let (pattern, path) = (run.key("d*"), d.configs());
        let lists: [(&str, &[(&str, &str)]); 3] = [
            (&path, &[("limit", "1")]),
            ("/api/v1/config", &[("limit", "1"), ("definition", pattern.as_str())]),
            (&path, &[("limit", "1"), ("sort_by", "config_key"), ("sort_order", "asc")]),
        ];
        let client = bounded(&run, &json!({"cursors": 1})).await;
        for (path, query) in lists {
            let first = client.get(path).query(query);
            let mut page = once(&first).await.expect(200);
            for (other, query) in lists {
                once(&client.get(other).query(query)).await.refused(429, "rate_limited");
            }
            while let Some(path) = next(&page) {
                page = once(&client.get(&path)).await.expect(200);
            }
        }
        once(&client.get(&d.configs())).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_watch_takes_a_place_until_it_ends() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let client = bounded(&run, &json!({"watches": 1})).await;
        let named = [("definition", d.key.as_str())];
        let watch = client.watch(&named, None).await;
        once(&client.get(WATCH).query(&named)).await.refused(429, "rate_limited");
        let poll = [("definition", d.key.as_str()), ("wait", "0")];
        once(&client.get("/api/v1/changes").query(&poll)).await.refused(429, "rate_limited");
        let left = once(&client.get("/api/v1/whoami")).await.expect(200);
        assert_eq!(left.data()["quota_left"]["watches"], 0, "{left:?}");
        drop(watch);
        crate::harness::eventually("the place is free again", async || {
            let left = client.get("/api/v1/whoami").attempt().await?;
            let is_free = left.status == 200 && left.data()["quota_left"]["watches"] == 1;
            crate::harness::check(is_free, || format!("{left:?}"))
        })
        .await;
        drop(client.watch(&named, None).await);
    })
    .await;
}
