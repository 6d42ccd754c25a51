//! A cache that follows, goes on without nodes, and begins without them.

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use concord_client::{Cache, CacheOptions, Error, Origin, Record, Selection};
use serde_json::{Value, json};

use super::{client, client_with, define};
use crate::harness::{Cluster, DEADLINE, check, eventually};

/// How long values are fresh in these tests.
const FRESH_FOR: Duration = Duration::from_secs(3);

fn options(cluster: &Cluster) -> CacheOptions {
    let options = CacheOptions::new(vec![Selection::definition("limits")]);
    let options = options.file(cluster.root().join("cache.json"));
    CacheOptions { confirm_every: Duration::from_millis(200), fresh_for: FRESH_FOR, ..options }
}

async fn has(cache: &Cache, key: &str, expected: &Value) {
    eventually(&format!("`{key}` is {expected}"), async || {
        let read = cache.get("limits", key).map_err(|error| error.to_string())?;
        check(read.as_ref().is_some_and(|read| read.config.data == *expected), || format!("{read:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_follows_over_the_death_of_the_leader_and_of_all_nodes() {
    let mut cluster = Cluster::start("rust-cache").await;
    let client = client(&cluster);
    define(&client, "limits").await;
    let acme: Record = client.config("limits", "acme");
    acme.create(&json!({"n": 1})).await.unwrap();
    let cache = client.cache(options(&cluster)).unwrap();
    let source = cache.fresh(DEADLINE).await.unwrap();
    assert_eq!(source.origin, Origin::Cache);
    has(&cache, "acme", &json!({"n": 1})).await;
    assert!(cache.get("limits", "absent").unwrap().is_none());

    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    let revision = acme.replace(&json!({"n": 2})).await.unwrap();
    let source = cache.reached(revision, DEADLINE).await.unwrap();
    assert_ne!(source.node.as_deref(), Some(leader.to_string().as_str()), "it goes on at a node that lives");
    let read = cache.get("limits", "acme").unwrap().unwrap();
    assert_eq!((&read.config.data, read.config.revision), (&json!({"n": 2}), revision));
    cache.fresh(DEADLINE).await.unwrap();

    // Without any node it answers on, says since when it is stale, and grows older.
    cache.save().await.unwrap();
    cluster.kill_all();
    eventually("stale", async || {
        let source = cache.source().ok_or("no source")?;
        check(!source.is_fresh(), || source.to_string())
    })
    .await;
    let read = cache.get("limits", "acme").unwrap().unwrap();
    assert_eq!(read.config.data, json!({"n": 2}));
    assert!(read.source.age > FRESH_FOR && read.source.stale_since().is_some(), "{}", read.source);
    eventually("a problem is told", async || cache.status().problem.map(drop).ok_or("none".into())).await;
    // So does a live read, and a write says that it certainly did nothing, or that nobody knows.
    let quick = client_with(&cluster, Duration::from_secs(1));
    let error = quick.config("limits", "acme").replace(&json!({})).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_) | Error::Unknown { .. }), "{error}");
    let read = cache.read("limits", "acme", Duration::from_millis(500)).await.unwrap().unwrap();
    assert_eq!(read.source.origin, Origin::Cache);
    assert!(!read.source.is_fresh());

    // A program that starts now has the file, and is told so.
    let path = cluster.root().join("cache.json");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = quick.cache(options(&cluster)).unwrap();
    let read = second.get("limits", "acme").unwrap().unwrap();
    assert_eq!(read.config.data, json!({"n": 2}));
    assert_eq!((read.source.origin, read.source.is_fresh()), (Origin::File, false));

    // Both follow again when the nodes are back.
    cluster.start_all().await;
    let revision = acme.replace(&json!({"n": 3})).await.unwrap();
    for cache in [&cache, &second] {
        cache.reached(revision, DEADLINE).await.unwrap();
        has(cache, "acme", &json!({"n": 3})).await;
        let source = cache.fresh(DEADLINE).await.unwrap();
        assert_eq!(source.origin, Origin::Cache);
    }
    assert_eq!(second.status().problem, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_node_is_passed_over_and_its_silence_is_not_taken_for_quiet() {
    let mut cluster = Cluster::start("rust-cache-paused").await;
    let client = client(&cluster);
    define(&client, "limits").await;
    client.config("limits", "acme").create(&json!({"n": 1})).await.unwrap();
    let cache = client.cache(options(&cluster)).unwrap();
    let followed = cache.ready(DEADLINE).await.unwrap().node.expect("a node is named");
    let followed: u64 = followed.parse().unwrap();
    cluster.node(followed).pause();
    let others: Vec<u64> = (1..=3).filter(|id| *id != followed).collect();
    cluster.leader_on(&others).await;
    let revision = client.config("limits", "acme").replace(&json!({"n": 2})).await.unwrap();
    // The connection of the watch is silent, not closed.
    cache.reached(revision, DEADLINE).await.unwrap();
    has(&cache, "acme", &json!({"n": 2})).await;
    cache.fresh(DEADLINE).await.unwrap();
    cluster.node(followed).resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_many_are_all_there() {
    let cluster = Cluster::start("rust-updates").await;
    let client = client(&cluster);
    define(&client, "counters").await;
    let counter = client.config("counters", "c");
    counter.create(&json!({"n": 0})).await.unwrap();
    let adders = (0..4).map(|_| {
        let counter = counter.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                counter
                    .update(|data: &mut Value| data["n"] = (data["n"].as_u64().unwrap() + 1).into())
                    .await
                    .unwrap();
            }
        })
    });
    for adder in adders.collect::<Vec<_>>() {
        adder.await.unwrap();
    }
    let found = counter.get::<Value>().await.unwrap().unwrap();
    assert_eq!(found.value["n"], 80);
    let stale = counter.replace_if(found.revision - 1, &json!({"n": 0})).await.unwrap_err();
    assert_eq!(stale.status(), Some(http::StatusCode::PRECONDITION_FAILED));
    counter.delete_if(found.revision).await.unwrap();
    assert!(counter.get::<Value>().await.unwrap().is_none());
}
