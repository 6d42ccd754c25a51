//! No read goes back: a reader never sees less than what was acknowledged or read anywhere before its request.
//!
//! A counter is raised by writes that expect the revision that they read, so an abandoned write can't be applied later
//! and lower it. Every lower value that a default read returns is therefore a stale read.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use serde_json::json;
use tokio::task::JoinHandle;

use crate::harness::{
    Answer, Client, Cluster, Node, check, eventually,
    load::{config, define, set},
    time::pace,
};

#[derive(Debug, Default)]
struct Witness {
    /// The highest value that any write was acknowledged with or any read has shown.
    known: AtomicU64,
    writes: AtomicU64,
    reads: [AtomicU64; 3],
    stop: AtomicBool,
}

#[derive(Debug)]
struct Watchers {
    witness: Arc<Witness>,
    tasks: Vec<JoinHandle<()>>,
}

fn value(answer: &Answer) -> u64 {
    answer.body["data"]["data"]["n"].as_u64().unwrap_or_else(|| panic!("{answer:?}"))
}

async fn raise(client: &Client, witness: &Witness) {
    let path = config("d", "counter");
    let Ok(now) = client.get(&path).attempt().await else { return };
    if now.status != 200 {
        return;
    }
    let n = value(&now) + 1;
    let put = client.put(&path, &json!({"data": {"n": n}})).header("if-match", &now.tag());
    if put.attempt().await.is_ok_and(|answer| answer.status == 200) {
        witness.known.fetch_max(n, Ordering::SeqCst);
        witness.writes.fetch_add(1, Ordering::SeqCst);
    }
}

async fn read(client: &Client, witness: &Witness, place: usize) {
    let known = witness.known.load(Ordering::SeqCst);
    let Ok(read) = client.get(&config("d", "counter")).attempt().await else { return };
    if read.status != 200 {
        return;
    }
    let n = value(&read);
    assert!(n >= known, "a read went back from {known} to {n}: {read:?}");
    witness.known.fetch_max(n, Ordering::SeqCst);
    witness.reads[place].fetch_add(1, Ordering::SeqCst);
}

impl Watchers {
    /// A writer and two readers on each node.
    async fn start(cluster: &Cluster) -> Self {
        let clients = cluster.clients();
        define(&clients[0], "d").await;
        set(&clients[0], "d", "counter", &json!({"n": 0})).await;
        let witness = Arc::new(Witness::default());
        let mut tasks = Vec::new();
        for (place, client) in clients.into_iter().enumerate() {
            for reads in [false, true, true] {
                let (client, witness) = (client.clone(), Arc::clone(&witness));
                tasks.push(tokio::spawn(async move {
                    while !witness.stop.load(Ordering::SeqCst) {
                        if reads {
                            read(&client, &witness, place).await;
                        } else {
                            raise(&client, &witness).await;
                        }
                        // A dead node refuses at once: leave the processor to the living.
                        pace(std::time::Duration::from_millis(2)).await;
                    }
                }));
            }
        }
        Self { witness, tasks }
    }

    /// Waits until more writes are acknowledged and each of these nodes has answered more reads.
    async fn go_on(&self, more: u64, nodes: &[u64]) {
        let (witness, tasks) = (&self.witness, &self.tasks);
        let reads = |id: &u64| witness.reads[usize::try_from(*id - 1).unwrap()].load(Ordering::SeqCst);
        let writes_goal = witness.writes.load(Ordering::SeqCst) + more;
        let reads_goal: Vec<u64> = nodes.iter().map(|id| reads(id) + more).collect();
        eventually("reads and writes go on", async || {
            assert!(!tasks.iter().any(JoinHandle::is_finished), "a reader has seen an old value");
            let writes = witness.writes.load(Ordering::SeqCst);
            let now: Vec<u64> = nodes.iter().map(reads).collect();
            let enough = writes >= writes_goal && now.iter().zip(&reads_goal).all(|(now, goal)| now >= goal);
            check(enough, || format!("{writes} writes of {writes_goal}, {now:?} reads of {reads_goal:?}"))
        })
        .await;
    }

    async fn stop(self) {
        self.witness.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("a reader has seen an old value");
        }
    }
}

#[tokio::test]
async fn no_read_goes_back_while_all_nodes_write_and_read() {
    let cluster = Cluster::start("all-busy").await;
    let watchers = Watchers::start(&cluster).await;
    for _ in 0..3 {
        watchers.go_on(100, &[1, 2, 3]).await;
    }
    watchers.stop().await;
}

#[tokio::test]
async fn no_read_goes_back_when_the_leader_restarts_within_its_lease() {
    let mut cluster = Cluster::start("leased-leader").await;
    let watchers = Watchers::start(&cluster).await;
    for _ in 0..4 {
        watchers.go_on(50, &[1, 2, 3]).await;
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        cluster.node(leader).start().await;
        watchers.go_on(20, &[1, 2, 3]).await;
    }
    watchers.stop().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn no_read_goes_back_when_the_whole_cluster_restarts() {
    let mut cluster = Cluster::start("restarted-all").await;
    let watchers = Watchers::start(&cluster).await;
    for _ in 0..2 {
        watchers.go_on(50, &[1, 2, 3]).await;
        cluster.kill_all();
        futures::future::join_all(cluster.nodes.iter_mut().map(Node::start)).await;
        watchers.go_on(20, &[1, 2, 3]).await;
    }
    watchers.stop().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn no_read_goes_back_when_a_leader_hangs_and_wakes() {
    let mut cluster = Cluster::start("waking-leader").await;
    let watchers = Watchers::start(&cluster).await;
    for _ in 0..2 {
        watchers.go_on(30, &[1, 2, 3]).await;
        let leader = cluster.leader().await;
        let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
        cluster.node(leader).pause();
        watchers.go_on(30, &others).await;
        cluster.node(leader).resume();
        watchers.go_on(30, &[1, 2, 3]).await;
    }
    watchers.stop().await;
    cluster.equal_digests().await;
}
