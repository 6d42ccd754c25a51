//! The cluster under faults: seeded, with many clients, and a history that is judged afterwards.
//!
//! The short run is a test like any other. `scripts/chaos.sh` runs the same with `SEED`, `DURATION_S` and
//! `HISTORY` from the environment, in a network of its own, and prints a JSON summary as its last line.

mod bitrot;
mod check;
mod faults;
mod history;
mod network;
mod past;
mod power;
mod requests;
mod tools;
mod workload;

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::FutureExt;
use serde_json::{Value, json};

use crate::harness::{
    Client, Cluster, Options,
    load::{define, definition},
    number,
    watch::Follower,
};
use faults::{Nemesis, Record};
use history::{Kind, Operation};
use network::Network;
use past::{Answered, Past};
use tools::Tools;
use workload::{Board, DEFINITIONS, Worker, read_all};

/// Clients at once, over all nodes.
const CLIENTS: usize = 12;
/// A fault about this often.
const PERIOD: Duration = Duration::from_secs(4);
/// Quiet between two faults.
const QUIET: Duration = Duration::from_millis(1500);
/// Watches that are followed through all of it.
const FOLLOWERS: usize = 4;

/// What a run is asked for.
struct Plan {
    /// Not the short run of the test command.
    asked: bool,
    seed: u64,
    duration: Duration,
    history: Option<String>,
}

impl Plan {
    /// `CONCORD_CHAOS=1` marks a run that was asked for; the others are the short one of the test command.
    fn read() -> Self {
        let asked = std::env::var_os("CONCORD_CHAOS").is_some();
        Self {
            asked,
            seed: number("SEED").unwrap_or_else(|| if asked { history::any_seed() } else { 1 }),
            duration: Duration::from_secs(number("DURATION_S").filter(|_| asked).unwrap_or(45)),
            history: std::env::var_os("HISTORY").and_then(|text| text.into_string().ok()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_hold_under_faults() {
    let plan = Plan::read();
    let network = Network::own();
    eprintln!(
        "chaos: SEED={} for {} s, network faults: {}",
        plan.seed,
        plan.duration.as_secs(),
        network.is_some()
    );
    // Snapshots and purges all the time, so that installs happen too.
    let options = Options::default()
        .with("CONCORD_SNAPSHOT_LOG_BYTES", "131072")
        .with("CONCORD_WRITE_TIMEOUT_MS", "5000")
        .with("CONCORD_READ_TIMEOUT_MS", "3000");
    let mut cluster = match network {
        Some(_) => Cluster::start_on_hosts("chaos", &options, Network::host).await,
        None => Cluster::start_with("chaos", &options).await,
    };
    let board = Arc::new(Board::new());
    for name in DEFINITIONS {
        let body = json!({"config_definition_key": name, "indexes": ["group"]});
        let post = cluster.client(1).post("/api/v1/config_definition/", &body);
        post.header("idempotency-key", name).insist().await.expect(201);
    }
    let from = cluster.client(1).status().await.expect("a node that has answered")["revision"].as_u64();
    let follows = Follows::start(&cluster.clients(), from.expect("a revision") + 1);
    let record = torment(&plan, &mut cluster, network, &board).await;
    let mut violations = settle(&mut cluster, &board).await;
    violations.extend(check::violations(&board.history));
    let (watches, more) = remember(&cluster, &board, follows).await;
    violations.extend(more);
    violations.extend(logged(&cluster));
    violations.extend(record.violations.iter().cloned());
    if let Some(path) = &plan.history {
        board.history.write(path);
    }
    let mut summary = summary(&plan, &board, &record, &violations);
    summary["watches"] = json!(watches);
    for violation in violations.iter().take(20) {
        eprintln!("VIOLATION {violation}");
    }
    println!("{summary}");
    assert!(violations.is_empty(), "{} violations with SEED={}", violations.len(), plan.seed);
    let kinds = record.made.len();
    let made: u64 = record.made.values().sum();
    assert!(made >= 10 && kinds >= 5, "only {made} faults of {kinds} kinds were made");
}

/// Clients and faults for the duration of the run.
async fn torment(plan: &Plan, cluster: &mut Cluster, network: Option<Network>, board: &Arc<Board>) -> Record {
    let mut dice = fastrand::Rng::with_seed(plan.seed);
    let workers: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let worker = Worker { id, board: Arc::clone(board), nodes: cluster.clients(), dice: dice.fork() };
            tokio::spawn(worker.run())
        })
        .collect();
    let count = usize::try_from(plan.duration.as_secs() / PERIOD.as_secs()).expect("a run is short").max(10);
    let now = || board.history.now();
    let tools = Tools::look(network.is_some());
    let (record, hurry) = (Record::default(), &board.hurry);
    let mut nemesis = Nemesis { cluster, network, dice, record, now: &now, tools, hurry };
    let count = if plan.asked { count.max(nemesis.kinds().len()) } else { count };
    nemesis.kinds();
    for kind in &nemesis.record.skipped {
        eprintln!("chaos: SKIPPED {kind}");
    }
    let begin = Instant::now();
    for fault in nemesis.schedule(count) {
        nemesis.make(fault).await;
        tokio::time::sleep(QUIET).await;
    }
    while begin.elapsed() < plan.duration {
        let [fault] = nemesis.schedule(1)[..] else { break };
        nemesis.make(fault).await;
        tokio::time::sleep(QUIET).await;
    }
    let record = nemesis.record;
    board.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no client panics");
    }
    record
}

/// Everything is well again: every key is read on every node, the digests are equal, the indexes complete.
async fn settle(cluster: &mut Cluster, board: &Board) -> Vec<String> {
    cluster.ready().await;
    for (place, client) in cluster.clients().iter().enumerate() {
        read_all(board, client, 1000 + place).await;
    }
    cluster.equal_digests().await;
    let mut found = Vec::new();
    for client in cluster.clients() {
        for definition in DEFINITIONS {
            found.extend(indexes_are_complete(&client, definition).await);
        }
    }
    found
}

/// Watches of everything from a revision on, on all nodes, that go on at another node when they are cut off.
struct Follows {
    from: u64,
    followers: Vec<Follower>,
}

impl Follows {
    fn start(clients: &[Client], from: u64) -> Self {
        let follower = |place: usize| {
            let mut clients = clients.to_vec();
            clients.rotate_left(place % 3);
            // One leaves nodes that do well, too.
            Follower::start(clients, from, if place == 0 { 40 } else { usize::MAX })
        };
        Self { from, followers: (0..FOLLOWERS).map(follower).collect() }
    }
}

/// The service's own history, the same on every node, against what was answered and what the watches told; and how
/// often each watch was opened.
async fn remember(cluster: &Cluster, board: &Board, follows: Follows) -> (Vec<u64>, Vec<String>) {
    let (keys, clients) = (board.keys(), cluster.clients());
    let mut found = Vec::new();
    let mut pasts = Vec::new();
    for client in &clients {
        match Past::told_by(client, &keys).await {
            Ok(past) => pasts.push(past),
            Err(why) => found.push(format!("{}: {why}", client.base)),
        }
    }
    let Some(past) = pasts.first() else { return (Vec::new(), found) };
    if pasts.iter().any(|other| other != past) {
        found.push("the nodes tell different histories".to_owned());
    }
    let history = &board.history;
    let (operations, sweeps, looks) = (history.operations(), history.sweeps(), history.looks());
    found.extend(past::violations(past, &Answered { operations, sweeps, looks }));
    // The last change of all, so that each follower knows when it has been told everything.
    define(&clients[0], "the-end").await;
    let end = clients[0].get(&definition("the-end")).insist().await.expect(200).tag();
    let end: u64 = end.trim_matches('"').parse().expect("a revision");
    let mut opened = Vec::new();
    for follower in follows.followers {
        opened.push(follower.opened.load(Ordering::SeqCst));
        // It panics when a node breaks the form of a watch, or refuses to go on.
        let told = async {
            follower.reaches(end).await;
            follower.end().await
        };
        match AssertUnwindSafe(told).catch_unwind().await {
            Ok(told) => found.extend(past::told(past, follows.from, &told)),
            Err(_) => found.push("a follower gave up: its panic stands above".to_owned()),
        }
    }
    (opened, found)
}

/// Every config is found by its group, and nothing else is.
async fn indexes_are_complete(client: &Client, definition: &str) -> Vec<String> {
    let path = format!("/api/v1/config_definition/{definition}/config/");
    let all = client.get(&path).query(&[("limit", "1000")]).insist().await;
    let rows: Vec<Value> = all.data()["results"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for group in ["g0", "g1", "g2", "g3"] {
        let by_index = client.get(&path).query(&[("limit", "1000"), ("group", group)]).insist().await;
        let mut expected: Vec<&str> = rows
            .iter()
            .filter(|row| row["data"]["group"] == group)
            .filter_map(|row| row["config_key"].as_str())
            .collect();
        let mut is = by_index.config_keys();
        expected.sort_unstable();
        is.sort();
        if is != expected {
            found.push(format!(
                "{} finds {is:?} in `{group}` of `{definition}`, not {expected:?}",
                client.base
            ));
        }
    }
    found
}

/// Panics and broken invariants in the nodes' logs.
fn logged(cluster: &Cluster) -> Vec<String> {
    let mut found = Vec::new();
    for node in &cluster.nodes {
        let text = std::fs::read_to_string(&node.log).unwrap_or_default();
        let bad = |line: &&str| line.contains("panicked at") || line.contains("invariant");
        found.extend(text.lines().filter(bad).map(|line| format!("node {} logged: {line}", node.id)));
    }
    found
}

/// The last line of a run.
fn summary(plan: &Plan, board: &Board, record: &Record, violations: &[String]) -> Value {
    let operations = board.history.operations();
    let mut acknowledged = board.acknowledged.lock().expect("no client panics").clone();
    acknowledged.sort_unstable();
    let done = |of: &dyn Fn(&Operation) -> bool| operations.iter().filter(|o| o.is_done() && of(o)).count();
    let batches: BTreeSet<u64> = operations.iter().filter(|o| o.is_done()).filter_map(|o| o.batch).collect();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let worst = acknowledged.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let mut recoveries: Vec<f64> = record
        .leader_deaths
        .iter()
        .filter_map(|death| Some(seconds(acknowledged.iter().find(|ack| *ack > death)? - death)))
        .collect();
    recoveries.sort_by(f64::total_cmp);
    json!({
        "seed": plan.seed,
        "violations": violations.len(),
        "operations": operations.len() + board.history.sweeps().len() + board.history.looks().len(),
        "acknowledged_writes": acknowledged.len(),
        "patches": done(&|o| o.op == Kind::Patch),
        "batches": batches.len(),
        "schema_changes": board.schemas.load(Ordering::Relaxed),
        "reads_of_the_past": board.history.looks().len(),
        "unknown": operations.iter().filter(|o| o.ret == 0).count(),
        "keys": board.keys().len(),
        "faults": record.made,
        "kinds": record.made.len(),
        "overlapping": record.overlapping,
        "skipped": record.skipped,
        "worst_gap_s": seconds(worst),
        "leader_death_to_write_median_s": recoveries.get(recoveries.len() / 2),
        "leader_death_to_write_worst_s": recoveries.last(),
    })
}
