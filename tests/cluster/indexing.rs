//! Indexes of many configs are built in steps: nothing waits for them, and a new leader continues them.
//!
//! How far a build is when something else happens can't be chosen from outside. An attempt that came too late is
//! repeated; the test needs one that comes in time.

use serde_json::{Value, json};

use crate::harness::{
    Answer, Client, Cluster, check, eventually,
    load::{definition, fill, set},
};

/// Three times what is indexed at once: a dozen steps.
const CONFIGS: usize = 3000;
/// How often an attempt may come too late.
const ATTEMPTS_MAX: u64 = 10;

fn data(n: usize) -> Value {
    json!({"a": n % 7, "b": format!("b{}", n % 5), "tags": ["all", format!("t{}", n % 3)]})
}

async fn set_indexes(client: &Client, id: &str, indexes: &[&str]) -> Answer {
    let put = client.put(&definition("d"), &json!({"indexes": indexes})).header("idempotency-key", id);
    let answer = put.insist().await.expect(200);
    assert_eq!(answer.data(), &json!({"indexes": indexes}));
    answer
}

/// What a node says of the indexes.
async fn indexes(client: &Client, consistency: &str) -> Value {
    let path = format!("{}/indexes", definition("d"));
    let answer = client.get(&path).query(&[("consistency", consistency)]).insist().await.expect(200);
    answer.data()["indexes"].clone()
}

async fn is_building(client: &Client, consistency: &str) -> bool {
    let indexes = indexes(client, consistency).await;
    let building: Vec<&Value> =
        indexes.as_array().unwrap().iter().filter(|index| index["state"] == "building").collect();
    for index in &building {
        assert!(index["done"].as_u64() <= index["of"].as_u64(), "{index}");
    }
    !building.is_empty()
}

async fn built(clients: &[Client]) {
    eventually("the indexes are built", async || {
        for client in clients {
            let indexes = indexes(client, "linearizable").await;
            check(!indexes.to_string().contains("building"), || indexes.to_string())?;
        }
        Ok(())
    })
    .await;
}

async fn list(client: &Client, name: &str, text: &str) -> Answer {
    let path = format!("{}/config/", definition("d"));
    client.get(&path).query(&[(name, text), ("limit", "1")]).insist().await
}

/// Every node finds exactly what the data says.
async fn totals_are_exact(clients: &[Client], extra: u64) {
    const ALL: u64 = CONFIGS as u64;
    for client in clients {
        assert_eq!(list(client, "b", "b3").await.expect(200).total(), ALL / 5);
        assert_eq!(list(client, "tags", "all").await.expect(200).total(), ALL);
        assert_eq!(list(client, "tags", "t1").await.expect(200).total(), ALL / 3);
        assert_eq!(list(client, "tags", "new").await.expect(200).total(), extra);
        assert_eq!(list(client, "tags[exists]", "true").await.expect(200).total(), ALL + extra);
    }
}

#[tokio::test]
async fn writes_continue_while_indexes_are_built_and_a_new_leader_continues_the_build() {
    let mut cluster = Cluster::start("indexing").await;
    let clients = cluster.clients();
    let body = json!({"config_definition_key": "d", "indexes": ["a"]});
    let made = clients[0].post("/api/v1/config_definition/", &body).header("idempotency-key", "define");
    made.insist().await.expect(201);
    fill(&clients, "d", CONFIGS, data).await;

    let written = writes_during_a_build(&clients).await;
    built(&clients).await;
    totals_are_exact(&clients, written).await;

    let killed = leader_killed_during_a_build(&mut cluster).await;
    let others = [killed % 3 + 1, (killed + 1) % 3 + 1];
    let left = others.map(|id| cluster.client(id));
    built(&left).await;
    totals_are_exact(&left, written).await;
    cluster.node(killed).start().await;
    cluster.ready().await;
    built(&clients).await;
    totals_are_exact(&clients, written).await;
    cluster.equal_digests().await;
    // What is in sled is what a node starts with.
    assert!(cluster.node(killed).stop().await.success());
    cluster.node(killed).start().await;
    cluster.ready().await;
    totals_are_exact(&clients, written).await;
    cluster.equal_digests().await;
}

/// Reads and writes during a build; returns how many configs were written.
async fn writes_during_a_build(clients: &[Client]) -> u64 {
    let mut written = 0;
    for attempt in 0..ATTEMPTS_MAX {
        set_indexes(&clients[0], &format!("begin-{attempt}"), &["b", "a", "tags"]).await;
        let refused = list(&clients[1], "b", "b3").await;
        // A path that was indexed before can be used all the time.
        assert!(list(&clients[1], "a[gte]", "0").await.expect(200).total() >= CONFIGS as u64);
        set(&clients[2], "d", &format!("new-{attempt}"), &json!({"tags": ["new", "new"]})).await;
        written += 1;
        let shown = clients[2].get(&definition("d")).insist().await.expect(200);
        if is_building(&clients[2], "linearizable").await {
            assert!(
                shown.header("x-concord-index-building").ends_with(&format!("/{}", CONFIGS as u64 + written))
            );
            let refused = refused.refused(409, "conflict_error");
            assert!(refused.text.contains("`b` is being built"), "{refused:?}");
            return written;
        }
        set_indexes(&clients[0], &format!("back-{attempt}"), &["a"]).await;
        built(clients).await;
    }
    panic!("no write came through while an index was built, {ATTEMPTS_MAX} times");
}

/// Kills the leader during a build and returns its id.
async fn leader_killed_during_a_build(cluster: &mut Cluster) -> u64 {
    for attempt in 0..ATTEMPTS_MAX {
        let leader = cluster.leader().await;
        let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
        // It has applied what it answers, and without a leader it stays there for as long as an election takes.
        let client = cluster.client(others[0]);
        set_indexes(&client, &format!("drop-{attempt}"), &["a"]).await;
        set_indexes(&client, &format!("again-{attempt}"), &["tags", "b"]).await;
        cluster.node(leader).kill();
        let was_building = is_building(&client, "local").await;
        cluster.leader_on(&others).await;
        if was_building {
            return leader;
        }
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    panic!("no leader was killed while an index was built, {ATTEMPTS_MAX} times");
}
