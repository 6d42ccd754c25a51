//! Writes that share an entry of the log: each has a revision, a change in the history and an event of its own.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::harness::{
    Client, Cluster, check, eventually,
    load::{config, define},
    watch::Follower,
};

const WRITERS: u64 = 64;
const KEYS: u64 = 16;
/// Writes of each writer.
const TURNS: u64 = 12;

/// What was acknowledged: by revision, the key and the data.
type Written = Mutex<BTreeMap<u64, (String, Value)>>;

/// Writes a config exactly once, and notes the revision. It is sent again until its outcome is known.
async fn write(client: &Client, (writer, turn): (u64, u64), written: &Written) -> u64 {
    let (key, data) = (format!("k{}", writer % KEYS), json!({"writer": writer, "turn": turn}));
    let id = format!("write-{writer}-{turn}");
    let put = client.put(&config("d", &key), &json!({"data": data})).header("idempotency-key", &id);
    let answer = if turn == 0 && writer < KEYS {
        put.header("if-none-match", "*").insist().await.expect(201)
    } else {
        put.insist().await.expect(200)
    };
    let revision = answer.tag().trim_matches('"').parse::<u64>().unwrap();
    let other = written.lock().unwrap().insert(revision, (key, data));
    assert!(other.is_none(), "revision {revision} was given to two writes: {other:?}");
    revision
}

/// The history of a config, oldest first.
async fn history(client: &Client, key: &str) -> Vec<(u64, Value)> {
    let path = format!("{}/history", config("d", key));
    let answer = client.get(&path).query(&[("limit", "1000")]).insist().await.expect(200);
    assert_eq!(answer.data()["meta"]["next_before"], Value::Null, "one page holds it");
    let item = |item: &Value| (item["revision"].as_u64().unwrap(), item["data"].clone());
    answer.data()["results"].as_array().unwrap().iter().rev().map(item).collect()
}

async fn is_whole(client: &Client, written: &BTreeMap<u64, (String, Value)>) {
    for number in 0..KEYS {
        let key = format!("k{number}");
        let mine = written.iter().filter(|(_, (of, _))| *of == key);
        let expected: Vec<(u64, Value)> = mine.map(|(at, (_, data))| (*at, data.clone())).collect();
        assert!(history(client, &key).await == expected, "the history of {key}");
    }
    // Right at the revision of a write, and right before it, the config is as the writes up to there left it.
    let (first, _) = written.iter().nth(usize::try_from(KEYS).unwrap()).unwrap();
    for (at, (key, _)) in written.range(*first..).step_by(7) {
        for at in [*at - 1, *at] {
            let newest = written.range(..=at).rev().find(|(_, (of, _))| of == key);
            let expected = newest.map(|(_, (_, data))| data).unwrap();
            let call = client.get(&config("d", key)).query(&[("revision", &at.to_string())]);
            assert_eq!(&call.insist().await.expect(200).data()["data"], expected, "{key} at {at}");
        }
    }
}

#[tokio::test]
async fn each_write_of_many_has_its_own_revision_change_and_event_while_leaders_die() {
    let mut cluster = Cluster::start("groups").await;
    define(&cluster.client(1), "d").await;
    let begin = cluster.client(1).status().await.unwrap()["revision"].as_u64().unwrap();
    let followers: Vec<Follower> =
        (0..2).map(|_| Follower::start(cluster.clients(), begin + 1, usize::MAX)).collect();
    let written = Written::default();
    let clients = cluster.clients();
    // The configs are there before anybody updates them.
    join_all((0..KEYS).map(|writer| write(&clients[0], (writer, 0), &written))).await;
    let count = AtomicU64::new(0);
    let writer = async |writer: u64| {
        let client = &clients[usize::try_from(writer % 3).unwrap()];
        let mut newest = 0;
        for turn in 1..=TURNS {
            let revision = write(client, (writer, turn), &written).await;
            assert!(revision > newest, "what began later has a later revision");
            newest = revision;
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    let fault = async {
        eventually("a third of the writes is acknowledged", async || {
            let now = count.load(Ordering::SeqCst);
            check(now >= WRITERS * TURNS / 3, || format!("{now}"))
        })
        .await;
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        // Its callers find no node meanwhile, and the others' writes need another leader.
        cluster.leader_on(&[leader % 3 + 1, (leader + 1) % 3 + 1]).await;
        cluster.node(leader).start().await;
    };
    tokio::join!(join_all((0..WRITERS).map(writer)), fault);
    cluster.ready().await;
    cluster.equal_digests().await;
    let written = written.into_inner().unwrap();
    assert_eq!(written.len() as u64, KEYS + WRITERS * TURNS);

    let (last, _) = written.last_key_value().unwrap();
    for follower in followers {
        follower.reaches(*last).await;
        let received = follower.end().await;
        let data = |changes: &Value| {
            (changes[0]["config_key"].as_str().unwrap().to_owned(), changes[0]["data"].clone())
        };
        let received: Vec<_> = received.iter().map(|(at, changes)| (*at, data(changes))).collect();
        let expected: Vec<_> = written.iter().map(|(at, write)| (*at, write.clone())).collect();
        assert!(received == expected, "a watch sees every change once, in order");
    }
    for client in &clients {
        is_whole(client, &written).await;
    }
    // They did share entries: the log has fewer entries than there are revisions.
    let revision = cluster.client(1).status().await.unwrap()["revision"].as_u64().unwrap();
    let place = cluster.place_in_log(1).await;
    assert!(place + 100 < revision, "the log ends at {place}, the revision is {revision}");
    // What a restart reads from the disks is the same.
    cluster.kill_all();
    cluster.start_all().await;
    cluster.equal_digests().await;
    for client in cluster.clients() {
        is_whole(&client, &written).await;
    }
}
