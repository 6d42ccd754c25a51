//! What callers do to the cluster whose lists are of many different earlier revisions.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use futures::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::{
    GoodClient, counts,
    reads::{define_indexed, fill, write_large},
};
use crate::harness::{
    Cluster, DEADLINE,
    cluster::Options,
    load::{definition, set},
};

#[tokio::test]
async fn lists_of_many_earlier_revisions_of_a_large_definition_hurt_nobody() {
    const CONFIGS: usize = 10_000;
    let options = Options::default().with("CONCORD_IN_FLIGHT_BYTES", &(64 << 20).to_string());
    let cluster = Cluster::start_with("hostile-past", &options).await;
    let clients = cluster.clients();
    define_indexed(&clients[0], "big", &json!(["a", "b"])).await;
    fill(&clients[0], "big", CONFIGS, |n| json!({"a": n, "b": format!("b{}", n % 100)})).await;
    for n in 0..200_u64 {
        set(&clients[0], "big", &format!("k{:07}", n * 31), &json!({"a": n, "b": "again"})).await;
    }
    let list = format!("{}/config/", definition("big"));
    let now = clients[0].get(&list).insist().await.expect(200).revision();
    let good = GoodClient::start(&cluster).await;
    let end = Instant::now() + Duration::from_secs(5);
    // On a busy machine all may be refused for so long; one answer at least is awaited.
    let (is_answered, last) = (AtomicBool::new(false), Instant::now() + DEADLINE / 3);
    let attack = async |place: u64| {
        let (client, mut statuses) = (&clients[usize::try_from(place % 3).unwrap()], Vec::new());
        for turn in 0.. {
            let at = now - (place * 7 + turn * 13) % 200;
            let query = [("limit", "1"), ("sort_by", "b"), ("b[ne]", "b7"), ("revision", &at.to_string())];
            let answer = client.get(&list).query(&query).attempt().await.expect("an answer");
            match answer.status {
                // `b7` has every hundredth config, unless it was written again.
                200 => {
                    assert!((9900..=9901 + 2).contains(&answer.total()), "{answer:?}");
                    is_answered.store(true, Relaxed);
                }
                429 | 503 => {}
                other => panic!("{other}: {answer:?}"),
            }
            statuses.push(answer.status);
            if Instant::now() > if is_answered.load(Relaxed) { end } else { last } {
                break;
            }
        }
        statuses
    };
    let statuses = join_all((0..48).map(attack)).await.concat();
    println!("48 callers of 200 revisions of {CONFIGS} configs: {:?}", counts(&statuses));
    // On a very busy machine none of them may be done in its time; a single one is.
    let query = [("limit", "1"), ("sort_by", "b"), ("b[ne]", "b7"), ("revision", &now.to_string())];
    let alone = clients[0].get(&list).query(&query).insist().await.expect(200);
    assert!((9900..=9901 + 2).contains(&alone.total()), "{alone:?}");
    good.stop(&cluster, "lists of the past").await.is_unhurt().memory_within(400);
}

#[tokio::test]
async fn earlier_states_of_large_records_take_bounded_memory() {
    let options = Options::default().with("CONCORD_IN_FLIGHT_BYTES", &(32 << 20).to_string());
    let cluster = Cluster::start_with("hostile-past-bytes", &options).await;
    let clients = cluster.clients();
    define_indexed(&clients[0], "d", &json!([])).await;
    write_large(&clients[0], "d", 0..8, true).await;
    let list = format!("{}/config/", definition("d"));
    let first = clients[0].get(&list).query(&[("limit", "1")]).insist().await.expect(200).revision();
    write_large(&clients[0], "d", (0..8).cycle().take(40), false).await;
    let before = cluster.nodes[0].memory_kb();
    let good = GoodClient::start(&cluster).await;
    let asked = async |at: u64| {
        let query = [("limit", "1"), ("revision", &at.to_string())];
        let answer = clients[0].get(&list).query(&query).open().await.expect("an answer");
        answer.status().as_u16()
    };
    let mut statuses = Vec::new();
    for round in 0..4 {
        statuses.extend(join_all((0..40).map(|turn| asked(first + (turn * 7 + round) % 40))).await);
    }
    let grown = cluster.nodes[0].memory_kb().saturating_sub(before) >> 10;
    println!("160 lists of 40 revisions of 8 configs of 600 kB: {:?}, {grown} MB more", counts(&statuses));
    assert!(statuses.contains(&200) && statuses.iter().all(|status| [200, 429, 503].contains(status)));
    good.stop(&cluster, "large records of the past").await.is_unhurt();
    // 4 MiB are retained and 12 MiB are callers'; as much again for what is freed and not given back.
    assert!(grown <= 120, "{grown} MB more");
}
