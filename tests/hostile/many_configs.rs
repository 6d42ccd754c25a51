//! Updates among very many configs, alone and beside lists that test all of them.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::counts;
use crate::harness::{
    Client, Cluster,
    load::{config, definition},
    number,
};

/// Clients that update, and lists at once.
const UPDATERS: usize = 32;
const LISTERS: usize = 16;
/// How long each rate is measured.
const MEASURED: Duration = Duration::from_secs(10);

/// Updates in the measured time.
struct Rate {
    per_s: f64,
    p99: Duration,
}

fn data(n: usize) -> Value {
    json!({"a": n, "b": n % 1000, "c": format!("team-{}", n % 50), "text": "x".repeat(200)})
}

async fn fill(clients: &[Client], configs: usize) {
    const AT_ONCE: usize = 4;
    let writer = async |place: usize| {
        for first in (place * 500..configs).step_by(AT_ONCE * 500) {
            let operation = |n: usize| json!({"op": "create_config", "config_definition_key": "many", "config_key": format!("k{n}"), "data": data(n)});
            let operations: Vec<Value> = (first..configs.min(first + 500)).map(operation).collect();
            let batch = clients[0].post("/api/v1/batch", &json!({"operations": operations}));
            batch.header("idempotency-key", &format!("fill-{first}")).insist().await.expect(200);
        }
    };
    join_all((0..AT_ONCE).map(writer)).await;
}

/// Updates random configs on all nodes; each must succeed.
async fn update(clients: &[Client], configs: usize) -> Rate {
    let (end, next) = (Instant::now() + MEASURED, AtomicUsize::new(1));
    let updater = async |place: usize| {
        let mut took = Vec::new();
        while Instant::now() < end {
            let n = next.fetch_add(7919, Ordering::Relaxed) % configs;
            let body = json!({"data": data(n + place)}).to_string();
            let put = clients[place % clients.len()].call(Method::PUT, &config("many", &format!("k{n}")));
            let begin = Instant::now();
            let answer = put.text("application/json", &body).open().await.expect("an answer");
            assert_eq!(answer.status(), 200);
            answer.bytes().await.expect("a whole answer");
            took.push(begin.elapsed());
        }
        took
    };
    let mut took = join_all((0..UPDATERS).map(updater)).await.concat();
    took.sort_unstable();
    Rate { per_s: took.len() as f64 / MEASURED.as_secs_f64(), p99: took[took.len() * 99 / 100] }
}

/// Lists that test every config, again and again.
async fn list(clients: &[Client], until: Instant) -> Vec<u16> {
    let values = |path: &str| (0..900).map(|n| format!("{path}[ne]={}", 10_000_000 + n)).collect::<Vec<_>>();
    let excluded = [values("a"), values("b"), values("c")].concat().join("&");
    let queries = [
        format!("{excluded}&limit=1"),
        "a[exists]=false&sort_by=c".to_owned(),
        "search=K9&sort_by=b&page=7".to_owned(),
        "a[gte]=10&b[lt]=999&sort_by=c&sort_order=asc".to_owned(),
    ];
    let lister = async |place: usize| {
        let mut statuses = Vec::new();
        let path = format!("{}/config/?{}", definition("many"), queries[place % queries.len()]);
        while Instant::now() < until {
            let answer = clients[place % clients.len()].get(&path).open().await.expect("an answer");
            let status = answer.status().as_u16();
            assert!(matches!(status, 200 | 429 | 503), "{answer:?}");
            answer.bytes().await.expect("a whole answer");
            statuses.push(status);
        }
        statuses
    };
    join_all((0..LISTERS).map(lister)).await.concat()
}

#[tokio::test]
#[ignore = "takes minutes and gigabytes: `scripts/hostile.sh` runs it with a release build"]
async fn updates_beside_hostile_lists_keep_half_their_rate() {
    let configs = number("HOSTILE_CONFIGS").map_or(1_000_000, |n| usize::try_from(n).expect("it fits"));
    let cluster = Cluster::start("hostile-many").await;
    let clients = cluster.clients();
    let body = json!({"config_definition_key": "many", "indexes": ["a", "b", "c"]});
    clients[0].post("/api/v1/config_definition/", &body).insist().await.expect(201);
    fill(&clients, configs).await;
    let quiet = update(&clients, configs).await;
    let end = Instant::now() + MEASURED;
    let (beside, statuses) = tokio::join!(update(&clients, configs), list(&clients, end));
    let rate = beside.per_s / quiet.per_s;
    let p99 = beside.p99.as_secs_f64() / quiet.p99.as_secs_f64();
    println!(
        "{configs} configs: updates {:.0}/s, p99 {:.1} ms; beside {LISTERS} lists {:?} {:.0}/s, p99 {:.1} ms: \
         {rate:.2} of the rate, {p99:.1} times the p99",
        quiet.per_s,
        quiet.p99.as_secs_f64() * 1e3,
        counts(&statuses),
        beside.per_s,
        beside.p99.as_secs_f64() * 1e3,
    );
    if number("HOSTILE_P99_MS").is_some() {
        assert!(rate >= 0.5 && p99 <= 5.0, "{rate:.2} of the rate, {p99:.1} times the p99");
    }
}
