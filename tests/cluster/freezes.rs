//! Freezes of environments on a cluster of their own: `default`, times while many write, a leader that dies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    harness::{
        Client, Cluster, check, eventually,
        load::{config, define, definition, set},
    },
    hostile::grants::in_seconds,
};

fn path(name: &str) -> String {
    format!("/api/v1/environment/{name}")
}

/// Puts the freezes of an environment, exactly once; the environment then.
async fn put(node: &Client, name: &str, id: &str, freezes: Value) -> Value {
    let put = node.put(&path(name), &json!({ "freeze": freezes })).header("idempotency-key", id);
    let answer = put.insist().await;
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.data().clone()
}

#[tokio::test]
async fn a_freeze_of_default_is_one_of_all_definitions_without_an_environment() {
    let mut cluster = Cluster::start("freeze-default").await;
    let node = cluster.client(1);
    for key in ["plain", "prod.limits", "default.x", "free.x"] {
        define(&node, key).await;
        set(&node, key, "k", &json!({"n": 1})).await;
    }
    put(&node, "free", "free", json!([])).await;
    put(&node, "prod", "prod", json!([])).await;
    put(&node, "default", "on", json!([{"until": in_seconds(3600), "reason": "all"}])).await;
    let status = async |key: &str| {
        let put = node.put(&config(key, "k"), &json!({"data": {"n": 2}}));
        put.settled().await.expect("an answer").status
    };
    assert_eq!([status("plain").await, status("default.x").await], [409; 2]);
    assert_eq!(
        [status("free.x").await, status("prod.limits").await],
        [200; 2],
        "they have environments of their own"
    );
    // An environment that is deleted gives its definitions back to `default`, and takes them out again only after the
    // freeze.
    node.delete(&path("prod")).header("idempotency-key", "gone").insist().await.expect(200);
    assert_eq!(status("prod.limits").await, 409);
    for call in [
        node.put(&path("prod"), &json!({"freeze": []})),
        node.put(&path("prod"), &json!({"freeze": []})).query(&[("dry_run", "true")]),
    ] {
        let refused = call.insist().await.refused(409, "conflict_error");
        assert_eq!(refused.body["errors"][0]["code"], "environment_frozen", "{refused:?}");
    }
    // It is kept by a restart of all nodes.
    cluster.kill_all();
    cluster.start_all().await;
    cluster.ready().await;
    let node = cluster.client(1);
    let put_again = node.put(&config("plain", "k"), &json!({"data": {"n": 3}}));
    put_again.insist().await.refused(409, "conflict_error");
    put(&node, "default", "off", json!([])).await;
    put(&node, "prod", "again", json!([])).await;
    set(&node, "plain", "k", &json!({"n": 3})).await;
    cluster.equal_digests().await;
}

/// The times of all changes of a definition's configs, as the history has them.
async fn times(node: &Client, key: &str, configs: usize) -> Vec<String> {
    let mut all = Vec::new();
    for n in 0..configs {
        let mut before: Option<String> = None;
        loop {
            let path = format!("{}/history", config(key, &format!("k{n}")));
            let mut call = node.get(&path).query(&[("limit", "1000")]);
            if let Some(before) = &before {
                call = call.query(&[("before", before.as_str())]);
            }
            let answer = call.insist().await.expect(200);
            let results = answer.data()["results"].as_array().expect("a list");
            all.extend(results.iter().map(|one| one["at"].as_str().expect("a time").to_owned()));
            match answer.data()["meta"]["next_before"].as_u64() {
                Some(next) if !results.is_empty() => before = Some(next.to_string()),
                _ => break,
            }
        }
    }
    all
}

/// No write has a time in a freeze, whoever prepared it, and whoever led: the time of a freeze is that of the log.
#[tokio::test]
async fn no_acknowledged_write_has_a_time_in_a_freeze() {
    const WRITERS: usize = 24;
    const FREEZES: usize = 5;
    let mut cluster = Cluster::start("freeze-race").await;
    let nodes = cluster.clients();
    define(&nodes[0], "prod.limits").await;
    for n in 0..WRITERS {
        set(&nodes[0], "prod.limits", &format!("k{n}"), &json!({"n": 0})).await;
    }
    let (stop, done, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let writer = async |writer: usize| {
        let mut turn = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            turn += 1;
            let node = &nodes[(writer + usize::try_from(turn).expect("few turns")) % nodes.len()];
            let data = json!({"data": {"n": turn}});
            let Ok(answer) = node.put(&config("prod.limits", &format!("k{writer}")), &data).attempt().await
            else {
                continue;
            };
            match answer.status {
                200 => done.fetch_add(1, Ordering::Relaxed),
                409 => refused.fetch_add(1, Ordering::Relaxed),
                429 | 503 | 504 => 0,
                _ => panic!("{answer:?}"),
            };
        }
    };
    let more = async |count: &AtomicU64| {
        let before = count.load(Ordering::Relaxed);
        eventually("the writers go on", async || {
            check(count.load(Ordering::Relaxed) > before + 20, || "few more".to_owned())
        })
        .await;
    };
    // From the time of the write that set a freeze, or from its own begin, to its end or that of the write that ended it.
    let frozen = async {
        let mut frozen = Vec::new();
        for n in 0..FREEZES {
            more(&done).await;
            let node = &nodes[n % nodes.len()];
            let at_once = json!([{"until": in_seconds(3600), "reason": "now"}]);
            let set = put(node, "prod", &format!("set-{n}"), at_once).await;
            more(&refused).await;
            let ended = put(node, "prod", &format!("end-{n}"), json!([])).await;
            let time = |of: &Value| of["modified_at"].as_str().expect("a time").to_owned();
            frozen.push((time(&set), time(&ended)));
        }
        // This one was set before: the log judges writes that were prepared before it began.
        more(&done).await;
        let later = json!([{"from": in_seconds(2), "until": in_seconds(4), "reason": "later"}]);
        let set = put(&nodes[0], "prod", "later", later).await;
        let time = |name: &str| set["freeze"][0][name].as_str().expect("a time").to_owned();
        frozen.push((time("from"), time("until")));
        more(&refused).await;
        more(&done).await;
        frozen
    };
    let (frozen, _) = tokio::join!(
        async {
            let frozen = frozen.await;
            stop.store(true, Ordering::Relaxed);
            frozen
        },
        join_all((0..WRITERS).map(&writer)),
    );
    let times = times(&nodes[0], "prod.limits", WRITERS).await;
    assert!(times.len() as u64 > done.load(Ordering::Relaxed), "{} times", times.len());
    for (from, until) in &frozen {
        assert!(from < until, "{frozen:?}");
        // The write that ends a freeze has this time itself.
        let inside: Vec<&String> = times.iter().filter(|at| from < *at && *at < until).collect();
        assert!(inside.is_empty(), "in the freeze from {from} to {until}: {inside:?}");
    }
    // A leader that was elected in a freeze knows of it.
    put(&nodes[0], "prod", "last", json!([{"until": in_seconds(3600), "reason": "now"}])).await;
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    let other = cluster.client(leader % 3 + 1);
    let put = other.put(&config("prod.limits", "k0"), &json!({"data": {}})).header("idempotency-key", "dead");
    put.insist().await.refused(409, "conflict_error");
    other.delete(&definition("prod.limits")).insist().await.refused(409, "conflict_error");
}
