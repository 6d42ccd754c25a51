//! A key is revoked while its owner writes and watches: once that is acknowledged, nothing is written in its name on any
//! node, whatever happens to the leader, and its watches end. A node that slept through it answers the key nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::access_keys::{Key, all, unauthorized};
use crate::harness::{
    Client, Cluster, DEADLINE, check, eventually,
    load::{config, define},
    time::{lasts, pace},
    watch::Watch,
};

/// How often each writer tries again after its key was first rejected. An accepted write among them would be found.
const REJECTIONS: usize = 100;

/// Writes in the name of a key as fast as possible, until the key was rejected [`REJECTIONS`] times. Returns when each
/// accepted write began.
async fn write_until_rejected(client: Client, path: String, accepted: Arc<AtomicU64>) -> Vec<Instant> {
    let (mut begun, mut rejected) = (Vec::new(), 0);
    for number in 0u64.. {
        if rejected == REJECTIONS {
            break;
        }
        let at = Instant::now();
        let answer = client.put(&path, &json!({ "data": { "n": number } })).attempt().await;
        match answer.map(|answer| answer.status) {
            Ok(200) => {
                begun.push(at);
                accepted.fetch_add(1, Ordering::SeqCst);
            }
            // The key is revoked.
            Ok(401) => {
                rejected += 1;
                pace(Duration::from_millis(5)).await;
            }
            // No leader, or unknown.
            Ok(503 | 504) | Err(_) => {}
            Ok(other) => panic!("{other}"),
        }
    }
    begun
}

/// The revisions of all changes of a config that a key made, as one node has them.
async fn revisions_by(client: &Client, config: &str, by: &str) -> Vec<u64> {
    let mut found = Vec::new();
    let mut before: Option<u64> = None;
    loop {
        let mut query = vec![("limit", "1000".to_owned()), ("consistency", "local".to_owned())];
        query.extend(before.map(|before| ("before", before.to_string())));
        let pairs: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = client.get(&format!("{config}/history")).query(&pairs).await.expect(200);
        let results = answer.data()["results"].as_array().expect("a list").clone();
        let Some(last) = results.last() else { return found };
        before = last["revision"].as_u64();
        let own = results.iter().filter(|change| change["by"] == by);
        found.extend(own.filter_map(|change| change["revision"].as_u64()));
    }
}

/// Starts writers in the name of a key and waits until they are under way.
pub(super) async fn start_writers(
    client: &Client,
    accepted: &Arc<AtomicU64>,
) -> Vec<JoinHandle<Vec<Instant>>> {
    let writers = (0..16).map(|writer| {
        let path = config("d", &format!("k{}", writer % 4));
        tokio::spawn(write_until_rejected(client.clone(), path, Arc::clone(accepted)))
    });
    let writers = writers.collect();
    eventually("writes are under way", async || {
        let count = accepted.load(Ordering::SeqCst);
        check(count > 200, || format!("{count} writes"))
    })
    .await;
    writers
}

/// Asserts that every node has the same changes by an author, and none after a revision.
pub(super) async fn none_after(cluster: &Cluster, by: &str, revision: u64) {
    let mut expected: Option<Vec<u64>> = None;
    for client in cluster.clients() {
        let mut made = Vec::new();
        for number in 0..4 {
            made.extend(revisions_by(&client, &config("d", &format!("k{number}")), by).await);
        }
        assert!(made.len() > 200, "the writes are in the history: {}", made.len());
        assert!(made.iter().all(|made| *made <= revision), "after {revision}: {:?}", made.iter().max());
        assert_eq!(expected.get_or_insert_with(|| made.clone()), &made, "every node has the same");
    }
}

/// The configs that the writers replace.
pub(super) async fn four_configs(client: &Client) {
    for number in 0..4 {
        let body = json!({ "config_key": format!("k{number}"), "data": {} });
        client.post("/api/v1/config_definition/d/config/", &body).await.expect(201);
    }
}

/// Revokes a key, and returns a revision at which it is. An unknown outcome is asked for again: 404 says that it was done.
async fn revoke(client: &Client, key: &Key) -> u64 {
    eventually("the key is revoked", async || {
        let answer = client.delete(&key.path()).attempt().await?;
        check([200, 404].contains(&answer.status), || format!("{answer:?}"))?;
        Ok(answer.revision())
    })
    .await
}

/// Waits until the key of all writers was rejected, and asserts that none of their accepted writes began after this moment.
pub(super) async fn none_began_after(writers: Vec<JoinHandle<Vec<Instant>>>, moment: Instant) {
    for writer in writers {
        let begun = tokio::time::timeout(DEADLINE, writer).await.expect("the key is rejected");
        let late = begun.expect("a writer ends").into_iter().filter(|begun| *begun >= moment).count();
        assert_eq!(late, 0, "writes that began after the acknowledgement were accepted");
    }
}

/// A key in whose name writers replace configs through `other`.
struct UnderLoad {
    asked: Client,
    other: Client,
    key: Key,
    accepted: Arc<AtomicU64>,
    begun: Instant,
    writers: Vec<JoinHandle<Vec<Instant>>>,
}

async fn under_load(cluster: &Cluster) -> UnderLoad {
    let [asked, other] = cluster.followers().await;
    let (asked, other) = (cluster.client(asked), cluster.client(other));
    define(&asked, "d").await;
    four_configs(&asked).await;
    let key = Key::create(&asked, all(&["read", "write"])).await;
    let accepted = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let writers = start_writers(&key.on(&other), &accepted).await;
    UnderLoad { asked, other, key, accepted, begun, writers }
}

/// Revokes a key under load; the revision at which it is.
async fn revoke_under_load(load: &mut UnderLoad) -> u64 {
    let revision = revoke(&load.asked, &load.key).await;
    let revoked = Instant::now();
    let count = load.accepted.load(Ordering::SeqCst);
    none_began_after(std::mem::take(&mut load.writers), revoked).await;
    unauthorized(load.key.on(&load.other).put(&config("d", "k0"), &json!({ "data": {} })).await);
    let rate = count as f64 / revoked.duration_since(load.begun).as_secs_f64();
    println!(
        "{count} writes ({rate:.0} a second) were accepted up to the acknowledgement at revision {revision}"
    );
    revision
}

#[tokio::test]
async fn nothing_is_written_in_the_name_of_a_key_once_its_revocation_is_acknowledged() {
    let cluster = Cluster::start("keys-revoked").await;
    let mut load = under_load(&cluster).await;
    let revision = revoke_under_load(&mut load).await;
    cluster.equal_digests().await;
    none_after(&cluster, &load.key.id, revision).await;
}

#[tokio::test]
async fn nothing_is_written_in_the_name_of_a_revoked_key_when_the_leader_is_killed() {
    let mut cluster = Cluster::start("keys-revoked-kill").await;
    let mut load = under_load(&cluster).await;
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    let revision = revoke_under_load(&mut load).await;
    cluster.node(leader).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    none_after(&cluster, &load.key.id, revision).await;
}

/// Reads a watch until the node ends it; how long that was after a moment.
async fn ends(mut watch: Watch, since: Instant) -> Duration {
    loop {
        match watch.next().await {
            Ok(Some(event)) if event.name == "error" => {
                assert_eq!(event.data["errors"][0]["type"], "unauthorized_error", "{event:?}");
                return since.elapsed();
            }
            Ok(Some(_)) => {}
            other => panic!("the watch ended without a reason: {other:?}"),
        }
    }
}

#[tokio::test]
async fn watches_end_and_nothing_is_written_when_the_leader_dies_right_after_a_revocation() {
    let mut cluster = Cluster::start("keys-revoked-then-kill").await;
    let mut load = under_load(&cluster).await;
    let leader = cluster.leader().await;
    let mut watches = Vec::new();
    for node in [&load.asked, &load.other] {
        for query in [&[][..], &[("definition", "d")]] {
            watches.push(load.key.on(node).watch(query, None).await);
        }
    }
    let revision = revoke(&load.asked, &load.key).await;
    let revoked = Instant::now();
    // The next leader decides what the writers send on and on.
    cluster.node(leader).kill();
    let ended = futures::future::join_all(watches.into_iter().map(|watch| ends(watch, revoked))).await;
    println!("the watches ended {ended:?} after the acknowledgement");
    let again = load.asked.clone();
    eventually("there is a leader again", async || {
        let answer = again.put(&config("d", "k1"), &json!({ "data": { "by": "root" } })).attempt().await?;
        check(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    none_began_after(std::mem::take(&mut load.writers), revoked).await;
    unauthorized(load.key.on(&load.other).put(&config("d", "k0"), &json!({ "data": {} })).await);
    cluster.node(leader).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    none_after(&cluster, &load.key.id, revision).await;
}

#[tokio::test]
async fn a_node_that_slept_through_a_revocation_answers_the_key_nothing() {
    let mut cluster = Cluster::start("keys-slept").await;
    let [sleeper, awake] = cluster.followers().await;
    let (asked, client) = (cluster.client(awake), cluster.client(sleeper));
    define(&asked, "d").await;
    four_configs(&asked).await;
    let key = Key::create(&asked, all(&["read", "write"])).await;
    key.on(&client).get(&config("d", "k0")).await.expect(200);
    cluster.node(sleeper).pause();
    let revision = revoke(&asked, &key).await;
    // After 5 seconds without contact to the leader a node accepts no key. It must be paused for longer than that.
    lasts(Duration::from_secs(6)).await;
    cluster.node(sleeper).resume();
    let own = key.on(&client);
    eventually("it knows that the key is revoked", async || {
        let local = own.get(&config("d", "k0")).query(&[("consistency", "local")]);
        for read in [local.attempt().await?, own.get("/api/v1/whoami").attempt().await?] {
            assert!([401, 503].contains(&read.status), "{read:?}");
        }
        let write = own.put(&config("d", "k0"), &json!({ "data": { "late": true } })).attempt().await?;
        assert!([401, 503].contains(&write.status), "{write:?}");
        check(write.status == 401, || format!("{write:?}"))
    })
    .await;
    cluster.equal_digests().await;
    for client in cluster.clients() {
        let made = revisions_by(&client, &config("d", "k0"), &key.id).await;
        assert!(made.iter().all(|made| *made <= revision), "after {revision}: {made:?}");
    }
}
