//! Access keys while nodes are killed, cut off and upgraded: what is created is good everywhere at once, and ends
//! everywhere. What is written in the name of a key that is revoked meanwhile: `revoked`.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{
    Answer, Client, Cluster, Options, check,
    cluster::snapshots,
    eventually,
    load::{config, define},
    node,
    time::pace,
};

const KEYS: &str = "/api/v1/api_key/";
const WHOAMI: &str = "/api/v1/whoami";

/// A key that was made, with its text.
pub(super) struct Key {
    pub(super) id: String,
    pub(super) text: String,
}

impl Key {
    fn of(answer: &Answer) -> Self {
        let text = |name: &str| answer.data()[name].as_str().expect("a text").to_owned();
        Self { id: text("key_id"), text: text("api_key") }
    }

    pub(super) async fn create(client: &Client, grants: Value) -> Self {
        let body = json!({ "name": "test", "grants": grants });
        Self::of(&client.post(KEYS, &body).await.expect(201))
    }

    /// A client of the same node with this key.
    pub(super) fn on(&self, client: &Client) -> Client {
        Client::new(&client.base, &self.text)
    }

    pub(super) fn path(&self) -> String {
        format!("{KEYS}{}", self.id)
    }
}

pub(super) fn all(verbs: &[&str]) -> Value {
    json!([{ "verbs": verbs, "definitions": ["*"] }])
}

pub(super) fn unauthorized(answer: Answer) {
    answer.refused(401, "unauthorized_error");
}

#[tokio::test]
async fn a_key_is_good_on_every_node_at_once_and_ends_everywhere() {
    let cluster = Cluster::start("keys-at-once").await;
    let clients = cluster.clients();
    for round in 0..15 {
        let key = Key::create(&clients[round % 3], all(&["read"])).await;
        for client in &clients {
            let answer = key.on(client).get(WHOAMI).await.expect(200);
            assert_eq!(answer.data()["key_id"], key.id.as_str());
        }
    }
    define(&clients[0], "d").await;
    let key = Key::create(&clients[0], all(&["read", "write"])).await;
    let put = |client: &Client| {
        client.put(&config("d", "k"), &json!({ "data": {} })).query(&[]).header("if-none-match", "*")
    };
    let rotate =
        |grace: u64| clients[1].post(&format!("{}/rotate", key.path()), &json!({ "grace_s": grace }));
    let second = Key::of(&rotate(600).await.expect(200));
    assert_ne!(second.text, key.text);
    for client in &clients {
        for text in [&key, &second] {
            text.on(client).get(WHOAMI).await.expect(200);
        }
    }
    let third = Key::of(&rotate(0).await.expect(200));
    for client in &clients {
        third.on(client).get(WHOAMI).await.expect(200);
        // A node that does not know of the rotation yet may answer a read; nobody decides a write.
        for text in [&key, &second] {
            unauthorized(put(&text.on(client)).await);
        }
    }
    put(&third.on(&clients[2])).await.expect(201);
    for client in &clients {
        let old = second.on(client);
        eventually("the old text ends", async || {
            let answer = old.get(WHOAMI).attempt().await?;
            check(answer.status == 401, || format!("{answer:?}"))
        })
        .await;
    }
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_key_expires_on_every_node() {
    let cluster = Cluster::start("keys-expire").await;
    let clients = cluster.clients();
    define(&clients[0], "d").await;
    let key = Key::create(&clients[0], all(&["read", "write"])).await;
    for client in &clients {
        key.on(client).get(WHOAMI).await.expect(200);
    }
    // A time that is past by every clock.
    let body = json!({ "expires_at": "2020-01-01T00:00:00Z" });
    clients[1].call(Method::PATCH, &key.path()).json(&body).await.expect(200);
    for client in &clients {
        unauthorized(key.on(client).put(&config("d", "k"), &json!({ "data": {} })).await);
        let own = key.on(client);
        eventually("the key has expired", async || {
            let answer = own.get(WHOAMI).attempt().await?;
            check(answer.status == 401, || format!("{answer:?}"))
        })
        .await;
    }
    let body = json!({ "expires_at": null });
    clients[2].call(Method::PATCH, &key.path()).json(&body).await.expect(200);
    for client in &clients {
        key.on(client).get(WHOAMI).await.expect(200);
    }
}

#[tokio::test]
async fn a_node_that_lost_the_cluster_accepts_the_root_key_alone() {
    let mut cluster = Cluster::start("keys-cut-off").await;
    let client = cluster.client(1);
    let key = Key::create(&client, all(&["read", "cluster"])).await;
    let own = key.on(&client);
    own.get(WHOAMI).await.expect(200);
    for id in [2, 3] {
        cluster.node(id).pause();
    }
    eventually("the key is not accepted any more", async || {
        let answer = own.get(WHOAMI).attempt().await?;
        check(answer.status == 503, || format!("{answer:?}"))
    })
    .await;
    own.get(WHOAMI).attempt().await.expect("it answers").refused(503, "unavailable_error");
    client.get("/api/v1/cluster").await.expect(200);
    unauthorized(Client::new(&client.base, "concord_nonsense").get(WHOAMI).await);
    for id in [2, 3] {
        cluster.node(id).resume();
    }
    eventually("the key is accepted again", async || {
        let answer = own.get(WHOAMI).attempt().await?;
        check(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
}

/// Requests with one root key on all nodes, all of which must succeed.
struct RootKeyLoad {
    stop: Arc<AtomicBool>,
    loops: Vec<JoinHandle<u64>>,
}

impl RootKeyLoad {
    fn start(clients: &[Client], key: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let request = |client: Client, stop: Arc<AtomicBool>| async move {
            let mut count = 0;
            while !stop.load(Ordering::SeqCst) {
                client.get("/api/v1/config_definition/d").await.expect(200);
                count += 1;
            }
            count
        };
        let loops = clients.iter().chain(clients);
        let loops =
            loops.map(|client| tokio::spawn(request(Client::new(&client.base, key), Arc::clone(&stop))));
        Self { loops: loops.collect(), stop }
    }

    /// Stops the requests. Returns how many there were.
    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let counts = futures::future::join_all(self.loops).await;
        counts.into_iter().map(|count| count.expect("no request was rejected")).sum()
    }
}

#[tokio::test]
async fn the_root_key_is_rotated_under_load_without_a_rejection() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("root-key");
    let (old, new) = (node::api_key(), format!("{}-new", node::api_key()));
    std::fs::write(&file, &old).unwrap();
    let path = file.to_str().unwrap().to_owned();
    let prepare = |_: &std::path::Path, nodes: &mut [crate::harness::Node]| {
        for node in nodes {
            // An empty setting is none.
            node.overrides.push(("CONCORD_API_KEY".into(), String::new()));
            node.overrides.push(("CONCORD_API_KEY_FILE".into(), path.clone()));
        }
    };
    let cluster = Cluster::start_prepared("keys-root", &Options::default(), prepare).await;
    let clients = cluster.clients();
    define(&clients[0], "d").await;
    let before = RootKeyLoad::start(&clients, &old);
    let all_answer = async |key: &str, status: u16| {
        for client in &clients {
            let client = Client::new(&client.base, key);
            eventually(&format!("the file was read: {status}"), async || {
                let answer = client.get(WHOAMI).attempt().await?;
                check(answer.status == status, || format!("{answer:?}"))
            })
            .await;
        }
    };
    std::fs::write(&file, format!("{new}\n{old}\n")).unwrap();
    all_answer(&new, 200).await;
    let mut count = before.stop().await;
    let after = RootKeyLoad::start(&clients, &new);
    std::fs::write(&file, "").unwrap();
    for node in &cluster.nodes {
        eventually("the node reports the empty file", async || {
            check(node.tail(usize::MAX).contains("the root keys stay as they were"), || node.tail(5))
        })
        .await;
    }
    all_answer(&new, 200).await;
    std::fs::write(&file, format!("{new}\n")).unwrap();
    all_answer(&old, 401).await;
    count += after.stop().await;
    println!("{count} requests while the root key was rotated, none rejected");
    assert!(count > 50, "{count}");
}

#[tokio::test]
async fn the_root_key_is_disabled_and_recovered_on_a_stopped_node() {
    let mut cluster = Cluster::start("keys-recover").await;
    let root = cluster.client(1);
    root.post("/api/v1/api_key/root/disable", &json!({})).await.refused(409, "conflict_error");
    let admin = Key::create(
        &root,
        all(&[
            "read", "reveal", "write", "define", "delete", "approve", "bypass", "backup", "cluster", "keys",
            "audit",
        ]),
    )
    .await;
    let weak = Key::create(&root, all(&["keys"])).await;
    weak.on(&root).post("/api/v1/api_key/root/disable", &json!({})).await.refused(403, "forbidden_error");
    admin.on(&root).post("/api/v1/api_key/root/disable", &json!({})).await.expect(200);
    for client in cluster.clients() {
        unauthorized(client.post(KEYS, &json!({ "name": "n", "grants": [] })).await);
        let root = client.clone();
        eventually("the root key is refused", async || {
            let answer = root.get(WHOAMI).attempt().await?;
            check(answer.status == 401, || format!("{answer:?}"))
        })
        .await;
        admin.on(&client).get(WHOAMI).await.expect(200);
    }
    let admin_client = admin.on(&cluster.client(2));
    admin_client.delete(&weak.path()).await.expect(200);
    admin_client.delete(&admin.path()).await.refused(409, "conflict_error");
    let directory = cluster.node(3).directory.clone();
    let binary = cluster.node(3).binary.clone();
    let recover = || {
        let mut command = Command::new(&binary);
        command.arg("recover-root").arg("--data-dir").arg(&directory).output().expect("it runs")
    };
    assert!(!recover().status.success(), "the node runs");
    cluster.node(3).stop().await;
    let output = recover();
    assert!(output.status.success(), "{output:?}");
    cluster.node(3).start().await;
    for client in cluster.clients() {
        eventually("the root key is accepted again", async || {
            let answer = client.get(WHOAMI).attempt().await?;
            check(answer.status == 200, || format!("{answer:?}"))
        })
        .await;
    }
    eventually("it is asked for once", async || {
        check(!directory.join("recover-root").exists(), || "the note is still there".to_owned())
    })
    .await;
    root.delete(&admin.path()).await.expect(200);
    cluster.equal_digests().await;
}

#[tokio::test]
async fn keys_survive_a_restart_of_all_nodes_and_a_snapshot() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with("keys-restart", &options).await;
    let client = cluster.client(1);
    let key = Key::create(&client, all(&["read", "define", "write"])).await;
    key.on(&client)
        .post("/api/v1/config_definition/", &json!({ "config_definition_key": "d" }))
        .await
        .expect(201);
    eventually("the day of its use is noted", async || {
        let answer = client.get(&key.path()).attempt().await?;
        check(answer.data()["last_used_at"].is_string(), || format!("{answer:?}"))
    })
    .await;
    let data = json!({ "data": { "text": "x".repeat(20_000) } });
    for number in 0..10 {
        let body = json!({ "config_key": format!("k{number}"), "data": data["data"] });
        key.on(&client).post("/api/v1/config_definition/d/config/", &body).await.expect(201);
    }
    eventually("each node has a snapshot", async || {
        let found: Vec<_> = cluster.nodes.iter().map(|node| snapshots(&node.directory)).collect();
        check(found.iter().all(|found| !found.is_empty()), || format!("{found:?}"))
    })
    .await;
    let digest = cluster.equal_digests().await;
    cluster.kill_all();
    cluster.start_all().await;
    assert_eq!(cluster.equal_digests().await, digest);
    for client in cluster.clients() {
        key.on(&client).get(&config("d", "k0")).await.expect(200);
    }
}

/// Many clients behind one address have good keys, and the node can't know whether these were revoked. None of them has
/// failed, so none counts.
#[tokio::test]
async fn good_keys_do_not_lock_out_the_root_key_while_the_quorum_is_lost() {
    let mut cluster = Cluster::start("keys-outage").await;
    let root = cluster.client(1);
    let key = Key::create(&root, all(&["read"])).await;
    cluster.ready().await;
    cluster.node(2).kill();
    cluster.node(3).kill();
    eventually("the node can't know whether the key is good", async || {
        let answer = key.on(&root).get(WHOAMI).attempt().await?;
        check(answer.status == 503, || format!("{answer:?}"))
    })
    .await;
    let is_over = Arc::new(AtomicBool::new(false));
    let good: Vec<JoinHandle<Vec<u16>>> = (0..20)
        .map(|_| {
            let (client, is_over) = (key.on(&root), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut statuses = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let answer = client.anew().get(WHOAMI).attempt().await.expect("an answer");
                    statuses.push(answer.status);
                }
                statuses
            })
        })
        .collect();
    for _ in 0..40 {
        root.anew().get("/api/v1/cluster").await.expect(200);
        pace(std::time::Duration::from_millis(100)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for client in good {
        let statuses = client.await.expect("it does not panic");
        assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    }
}
