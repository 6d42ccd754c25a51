//! The history outlives restarts, snapshots and members, and ends at the same revision everywhere.

use serde_json::{Value, json};

use super::snapshot::purge_logs;
use crate::harness::{
    Answer, Call, Client, Cluster, Options, check, eventually,
    load::{config, define, set},
};

const FETCHED: &str = "fetched the history that was missing or damaged on this node";

fn history_of(client: &Client, key: &str) -> Call {
    client.get(&format!("{}/history", config("d", key))).query(&[("limit", "1000")])
}

fn at(client: &Client, key: &str, revision: u64) -> Call {
    client.get(&config("d", key)).query(&[("revision", &revision.to_string())])
}

/// The pages of a history up to its end, without the data of its changes.
async fn revisions(client: &Client, key: &str) -> Vec<(u64, Value)> {
    let (mut all, mut before) = (Vec::new(), None::<u64>);
    loop {
        let mut call = history_of(client, key);
        if let Some(before) = before {
            call = call.query(&[("before", &before.to_string())]);
        }
        let answer = call.insist().await.expect(200);
        for item in answer.data()["results"].as_array().unwrap() {
            all.push((item["revision"].as_u64().unwrap(), item["data"]["turn"].clone()));
        }
        before = answer.data()["meta"]["next_before"].as_u64();
        if before.is_none() {
            return all;
        }
    }
}

/// Waits until a node has logged that its history is complete, `times` times.
async fn fetched(cluster: &mut Cluster, id: u64, times: usize) {
    let log = cluster.node(id).log.clone();
    eventually(&format!("node {id} has fetched the history"), async || {
        let text = std::fs::read_to_string(&log).map_err(|error| error.to_string())?;
        check(text.matches(FETCHED).count() >= times, || "not yet".to_owned())
    })
    .await;
}

/// A config that was set to 1, then to 2, and the revision of the first.
async fn set_twice(client: &Client) -> u64 {
    set(client, "d", "before", &json!({"n": 1})).await;
    let first = client.get(&config("d", "before")).insist().await.expect(200);
    set(client, "d", "before", &json!({"n": 2})).await;
    first.tag().trim_matches('"').parse().unwrap()
}

async fn is_whole(client: &Client, first: u64, expected: &[(u64, Value)]) {
    let read = at(client, "before", first).insist().await.expect(200);
    assert_eq!(read.data()["data"], json!({"n": 1}));
    let found = revisions(client, "k3").await;
    assert!(found == expected, "{} changes, expected {}", found.len(), expected.len());
}

#[tokio::test]
async fn a_node_that_was_given_a_snapshot_has_the_whole_history() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with("history", &options).await;
    define(&cluster.client(1), "d").await;
    let first = set_twice(&cluster.client(1)).await;
    let away = cluster.followers().await[0];
    let others = [away % 3 + 1, (away + 1) % 3 + 1];
    let missed_from = cluster.place_in_log(away).await;
    cluster.node(away).kill();
    purge_logs(&cluster, &others, "d", missed_from).await;
    let expected = revisions(&cluster.client(others[0]), "k3").await;
    assert!(expected.len() >= 40, "{} changes", expected.len());
    cluster.node(away).start().await;
    cluster.ready().await;
    // Until it has fetched them it asks another member.
    is_whole(&cluster.client(away), first, &expected).await;
    fetched(&mut cluster, away, 1).await;
    // A member that replaces another has the whole history too.
    let (gone, stays) = (others[0], others[1]);
    cluster.node(gone).kill();
    let body = cluster.newcomer(4).await;
    let path = format!("/api/v1/cluster/members/{gone}/replace");
    eventually("the member is replaced", async || {
        let answer = cluster.client(stays).post(&path, &body).insist().await;
        check(matches!(answer.status, 200 | 201), || format!("{answer:?}"))
    })
    .await;
    fetched(&mut cluster, 4, 1).await;
    // What they have fetched is on their own disks: alone, they serve it.
    let local = [("consistency", "local")];
    cluster.node(stays).kill();
    for (id, other) in [(away, 4), (4, away)] {
        cluster.node(other).kill();
        let client = cluster.client(id);
        let read = at(&client, "before", first).query(&local).insist().await.expect(200);
        assert_eq!(read.data()["data"], json!({"n": 1}));
        let page = history_of(&client, "k3").query(&local).insist().await.expect(200);
        let found = page.data()["results"].as_array().unwrap();
        assert_eq!(found[0]["revision"], json!(expected[0].0));
        cluster.node(other).start().await;
    }
    cluster.node(stays).start().await;
    cluster.ready_on(&[away, stays, 4]).await;
    for id in [away, stays, 4] {
        is_whole(&cluster.client(id), first, &expected).await;
    }
}

/// Asks until the compaction revision of a node's history is at least this high.
async fn compaction_revision(client: &Client, least: u64) -> Answer {
    eventually("the history is cut", async || {
        let answer = history_of(client, "k").insist().await;
        let oldest = answer.body["data"]["meta"]["floor"].as_u64();
        check(oldest.is_some_and(|oldest| oldest >= least), || format!("{answer:?}")).map(|()| answer)
    })
    .await
}

#[tokio::test]
async fn what_is_not_retained_is_expired_on_every_node_and_the_rest_is_right() {
    let options = Options::default().with("CONCORD_HISTORY_REVISIONS", "40");
    let mut cluster = Cluster::start_with("compacted", &options).await;
    let clients = cluster.clients();
    define(&clients[0], "d").await;
    let mut written = Vec::new();
    for n in 0..100_u64 {
        let client = &clients[usize::try_from(n % 3).unwrap()];
        set(client, "d", "k", &json!({"n": n})).await;
        let answer = client.get(&config("d", "k")).insist().await.expect(200);
        written.push((answer.tag().trim_matches('"').parse::<u64>().unwrap(), n));
    }
    let least = written[20].0;
    for restarted in [false, true] {
        if restarted {
            cluster.kill_all();
            cluster.start_all().await;
        }
        for client in &clients {
            let answer = compaction_revision(client, least).await;
            let oldest = answer.data()["meta"]["floor"].as_u64().unwrap();
            let results = answer.data()["results"].as_array().unwrap();
            let found: Vec<u64> = results.iter().map(|item| item["revision"].as_u64().unwrap()).collect();
            let expected: Vec<u64> = written
                .iter()
                .rev()
                .map(|(revision, _)| *revision)
                .filter(|revision| *revision > oldest)
                .collect();
            assert_eq!(found, expected, "compaction revision {oldest}");
            assert!(expected.len() >= 4, "so much is retained: {answer:?}");
            at(client, "k", written[3].0).insist().await.refused(410, "expired_error");
            let before = history_of(client, "k").query(&[("before", "2")]).insist().await;
            before.refused(410, "expired_error");
            for (revision, n) in written.iter().filter(|(revision, _)| *revision >= oldest) {
                let read = at(client, "k", *revision).insist().await;
                // The compaction revision may have risen since.
                if read.status != 410 {
                    assert_eq!(read.expect(200).data()["data"], json!({"n": n}));
                }
            }
        }
    }
    cluster.equal_digests().await;
}

#[tokio::test]
async fn what_is_too_old_expires_without_a_later_write() {
    let options = Options::default().with("CONCORD_HISTORY_AGE_S", "1");
    let cluster = Cluster::start_with("aged", &options).await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
    let first = cluster.client(1).get(&config("d", "k")).insist().await.expect(200);
    let first = first.tag().trim_matches('"').parse::<u64>().unwrap();
    for client in cluster.clients() {
        let answer = compaction_revision(&client, first).await;
        assert_eq!(answer.data()["results"], json!([]), "{answer:?}");
        at(&client, "k", first - 1).insist().await.refused(410, "expired_error");
        let now = client.get(&config("d", "k")).insist().await.expect(200);
        assert_eq!(now.data()["data"], json!({"n": 1}));
    }
}
