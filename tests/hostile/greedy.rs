//! An access key whose owner asks as fast as they can, beside a client that only wants to be served.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::{Value, json};

use super::GoodClient;
use crate::harness::{
    Client, Cluster, check, eventually,
    load::{config, define, set},
    time::lasts,
};

/// Connections of the greedy one.
const CONNECTIONS: usize = 64;
/// How long each part is measured.
const TIME: Duration = Duration::from_secs(4);
/// Requests a second that its quota allows on a node.
const RATE: u64 = 50;

/// A client with a new access key.
pub(super) async fn with_key(root: &Client, quota: &Value) -> Client {
    let grants = json!([{"verbs": ["read", "write"], "definitions": ["greedy*"]}]);
    let body = json!({"name": "greedy", "grants": grants, "quota": quota});
    let made = eventually("a key is made", async || {
        let answer = root.post("/api/v1/api_key/", &body).attempt().await?;
        // Until every member knows access keys there are none.
        check(answer.status == 201, || format!("{answer:?}")).map(|()| answer)
    })
    .await;
    root.with_credential(made.data()["api_key"].as_str().expect("the text of the key"))
}

#[tokio::test]
async fn a_greedy_key_with_a_quota_leaves_others_unharmed() {
    let cluster = Cluster::start("hostile-greedy").await;
    let leader = cluster.leader().await;
    let root = cluster.client(leader);
    define(&root, "greedy").await;
    set(&root, "greedy", "k", &json!({"n": 0})).await;
    let good = GoodClient::start(&cluster).await;
    lasts(TIME).await;
    let alone = good.stop(&cluster, "alone").await;
    alone.is_unhurt();
    let greedy = with_key(&root, &json!({"requests_per_second": RATE, "writes_per_second": RATE / 5})).await;
    let good = GoodClient::start(&cluster).await;
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(Mutex::new(BTreeMap::<u16, u64>::new()));
    let begin = Instant::now();
    let callers: Vec<_> = (0..CONNECTIONS)
        .map(|caller| {
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            // A client of its own has a connection of its own.
            let client = Client::new(&greedy.base, &greedy.key);
            tokio::spawn(async move {
                let path = config("greedy", "k");
                while !stop.load(Ordering::SeqCst) {
                    let call = if caller % 2 == 0 {
                        client.get(&path)
                    } else {
                        client.put(&path, &json!({"data": {"n": caller}}))
                    };
                    let answer = call.attempt().await.expect("the node answers");
                    if answer.status == 429 {
                        let pause: u64 = answer.header("retry-after").parse().expect("seconds");
                        assert!(pause >= 1, "{answer:?}");
                        assert!(answer.header("ratelimit").contains(";r=0;"), "{answer:?}");
                    }
                    *seen.lock().expect("no holder panics").entry(answer.status).or_default() += 1;
                }
            })
        })
        .collect();
    lasts(TIME).await;
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("a caller does not panic");
    }
    let took = begin.elapsed();
    let beside = good.stop(&cluster, "beside a greedy key").await;
    beside.is_unhurt();
    let seen = seen.lock().expect("no holder panics").clone();
    let served = seen.get(&200).copied().unwrap_or_default();
    // The first second's are there at once, and its last one may be half over.
    let most = RATE * (took.as_secs() + 2);
    println!(
        "the greedy key: {seen:?} in {took:?}, at most {most} may be served; the good one's p99 {:.2} times as long",
        beside.p99.as_secs_f64() / alone.p99.as_secs_f64().max(1e-6)
    );
    assert!(served > 0 && served <= most, "{served} were served, at most {most} may be");
    assert!(seen.keys().all(|status| [200, 429].contains(status)), "{seen:?}");
}

#[tokio::test]
async fn two_nodes_at_once_do_not_store_more_than_a_key_may() {
    let cluster = Cluster::start("hostile-stored").await;
    let leader = cluster.leader().await;
    let root = cluster.client(leader);
    define(&root, "greedy").await;
    let greedy = with_key(&root, &json!({"records": 11, "bytes": 100_000})).await;
    let bases: Vec<String> = cluster.clients().into_iter().map(|client| client.base).collect();
    let puts = (0..30_usize).map(|n| {
        let client = Client::new(&bases[n % bases.len()], &greedy.key);
        async move {
            let put = client.put(&config("greedy", &format!("k{n}")), &json!({"data": {"n": n}}));
            put.header("if-none-match", "*").insist().await
        }
    });
    let mut counts = BTreeMap::<u16, u64>::new();
    for answer in join_all(puts).await {
        if answer.status == 507 {
            assert!(answer.body.to_string().contains("11 records"), "{answer:?}");
        }
        *counts.entry(answer.status).or_default() += 1;
    }
    assert_eq!(counts, BTreeMap::from([(201, 10), (507, 20)]), "ten configs and their definition");
    let whoami = Client::new(&root.base, &greedy.key).get("/api/v1/whoami").insist().await.expect(200);
    assert_eq!(whoami.data()["quota_left"]["records"], 0, "{whoami:?}");
    let large = json!({"data": {"text": "x".repeat(200_000)}});
    // Which ten there are is chance: one of them is written again.
    let list = root.get("/api/v1/config_definition/greedy/config/").insist().await.expect(200);
    let key = list.config_keys().swap_remove(0);
    greedy.put(&config("greedy", &key), &large).insist().await.refused(507, "storage_full");
    let total = root.get("/api/v1/config_definition/greedy/config/").insist().await.expect(200).total();
    assert_eq!(total, 10);
    cluster.equal_digests().await;
}
