//! The cluster under faults: seeded, with many clients, and with a history that is checked afterwards.
//!
//! The short run is a test like any other. `scripts/chaos.sh` runs the same with `SEED`, `DURATION_S` and
//! `HISTORY` from the environment, in a network of its own, and prints a JSON summary as its last line.
//!
//! | file | what it does |
//! |---|---|
//! | `workload`, `requests` | the clients: which operations they choose, how one is sent, sent again, answered |
//! | `transactions`, `bank` | batches of the clients that rest on what they read; money that is moved by them |
//! | `changes` | change requests: who makes, approves and applies them, and their checker |
//! | `rights` | what a key without a right is refused; secret values |
//! | `expensive` | operations of the clients that cost much: schemas, lists, dry runs |
//! | `stored_keys` | access keys, in whose names the clients work while they are revoked, rotated, limited |
//! | `faults`, `nemesis` | the faults: which there are and which nodes each holds; the schedule, and making them |
//! | `data_keys` | another data key, where the data directories are encrypted |
//! | `network`, `volumes`, `files`, `tools` | cuts between nodes, full disks, damaged files, the programs that some need |
//! | `history` | records what the clients did, as it happens |
//! | `check` | checks that record by itself: linearizability of each key, revisions, lists |
//! | `service_history` | checks it against the service's own history, and the watches too |
//! | `leaders` | a run of its own: change requests, and a leader that is killed again and again |
//! | `rollouts` | a run of its own: rollouts with readers and agents, and their checker |
//! | `power`, `bitrot` | runs of their own: power cuts, and bits that flip on a disk |
//!
//! **Invariant:** an answer that says nothing of the state proves nothing; every other answer is checked.

mod bank;
mod bitrot;
mod changes;
mod check;
mod data_keys;
mod expensive;
mod faults;
pub(crate) mod files;
mod freezes;
mod history;
mod leaders;
mod nemesis;
pub(crate) mod network;
mod power;
mod requests;
mod rights;
mod rollouts;
mod service_history;
mod stored_keys;
pub(crate) mod tools;
mod transactions;
mod volumes;
mod workload;

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{
    Client, Cluster, Node, Options, is_encrypted,
    load::{define, definition},
    number,
    time::pace,
    tls::Authority,
    watch::Follower,
};
use bank::BANK;
use changes::{PersonAdmin, Proposer, Witness};
use faults::{Fault, Record};
use freezes::Freezer;
use history::{History, Kind, Operation};
use nemesis::{Nemesis, RESERVE_BYTES, ROOM};
use network::Network;
use service_history::{ServiceHistory, indexes_are_complete};
use stored_keys::KeyAdmin;
use tools::Tools;
use volumes::Volume;
use workload::{CLAIMS, DEFINITIONS, Mix, Shared, Worker, is_large, read_all};

/// Clients at once, over all nodes.
const CLIENTS: usize = 12;
/// A fault about this often.
const PERIOD: Duration = Duration::from_secs(4);
/// Quiet between two faults.
const QUIET: Duration = Duration::from_millis(1500);
/// Watches that are followed throughout the run.
const FOLLOWERS: usize = 4;
/// Workers at change requests, beside the clients.
const PROPOSERS: usize = 3;
/// Revisions of history that two of the nodes retain, in a run with retention.
const RETAINED: [u64; 2] = [1500, 3000];

/// What a run is to do.
struct Plan {
    /// A run of `scripts/chaos.sh`, not the short run of the test command.
    is_long: bool,
    seed: u64,
    duration: Duration,
    history: Option<String>,
    /// The kinds of faults that are made, with commas between them; all of them where none is named.
    only: Option<String>,
    /// Some nodes retain little of the history. Drawn from the seed: without it more of the history can be checked.
    retention: bool,
    /// The data directories are encrypted: with `ENCRYPTED=1`, and for every third seed.
    encrypted: bool,
}

impl Plan {
    /// `CONCORD_CHAOS=1` marks a run of `scripts/chaos.sh`; without it this is the short run of the test command.
    fn read() -> Self {
        let is_long = std::env::var_os("CONCORD_CHAOS").is_some();
        let seed = number("SEED").unwrap_or_else(|| if is_long { history::any_seed() } else { 1 });
        Self {
            is_long,
            seed,
            retention: seed.is_multiple_of(2),
            encrypted: is_encrypted() || (is_long && seed.is_multiple_of(3)),
            duration: Duration::from_secs(number("DURATION_S").filter(|_| is_long).unwrap_or(45)),
            history: text("HISTORY"),
            only: text("FAULTS").filter(|_| is_long),
        }
    }
}

/// A text from the environment, a setting of the run.
fn text(name: &str) -> Option<String> {
    std::env::var_os(name)?.into_string().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_hold_under_faults() {
    let plan = Plan::read();
    let tools = Tools::find(Network::own().is_some(), volumes::possible(), plan.encrypted);
    let (kinds, skipped) = Fault::possible(&tools, plan.only.as_deref());
    assert!(!kinds.is_empty(), "none of the faults that FAULTS names can be made: {skipped:?}");
    eprintln!(
        "chaos: SEED={} for {} s, {} kinds of faults, retention: {}, encrypted: {}",
        plan.seed,
        plan.duration.as_secs(),
        kinds.len(),
        plan.retention,
        tools.encrypted
    );
    for kind in &skipped {
        eprintln!("chaos: SKIPPED {kind}");
    }
    let (mut cluster, volumes) = start(&plan, &tools).await;
    let shared = Arc::new(Shared::new(History::new(plan.history.as_deref()), Mix::default()));
    workload::prepare(&cluster.client(1)).await;
    rights::prepare(&cluster.client(1), &shared).await;
    changes::prepare(&cluster.client(1), &shared).await;
    define(&cluster.client(1), ROOM).await;
    expensive::prepare(&cluster.client(1)).await;
    let from = cluster.client(1).status().await.expect("a node that has answered")["revision"].as_u64();
    let followers = Followers::start(&cluster.clients(), from.expect("a revision") + 1);
    let mut record = Record { skipped, ..Record::default() };
    let nemesis = Nemesis {
        cluster: &mut cluster,
        network: Network::own(),
        volumes: &volumes,
        rng: fastrand::Rng::with_seed(plan.seed),
        record: &mut record,
        shared: &shared,
        tools,
        in_force: Vec::new(),
    };
    let run = run_under_faults(&plan, &kinds, nemesis, &shared);
    if let Err(panic) = AssertUnwindSafe(run).catch_unwind().await {
        report_of_a_dead_run(&plan, &shared, &record);
        std::panic::resume_unwind(panic);
    }
    let mut violations = check_at_rest(&mut cluster, &shared).await;
    violations.extend(check::violations(&shared.history));
    let (watches, compaction_revision, more) = check_service_history(&cluster, &shared, followers).await;
    violations.extend(more);
    violations.extend(violations_in_logs(&cluster));
    let (changes, more) = changes::check(&cluster.clients(), false, &shared).await;
    violations.extend(more);
    violations.extend(record.violations.iter().cloned());
    let mut summary = summary(&plan, &shared, &record, &violations);
    summary["watches"] = json!(watches);
    summary["changes"] = changes;
    // Fewer entries than revisions: writes shared entries.
    summary["entries"] = json!(cluster.place_in_log(1).await);
    let status = cluster.client(1).status().await.unwrap_or_else(|why| panic!("{why}"));
    summary["revision"] = status["revision"].clone();
    summary["compaction_revision"] = json!(compaction_revision);
    print_violations(&violations);
    println!("{summary}");
    assert!(violations.is_empty(), "{} violations with SEED={}", violations.len(), plan.seed);
    let (is, made) = (record.made.len(), record.made.values().sum::<u64>());
    assert!(made >= 10 && is >= kinds.len().min(5), "only {made} faults of {is} kinds were made");
}

/// A cluster, on an address and a volume of its own for each node where the machine has them.
async fn start(plan: &Plan, tools: &Tools) -> (Cluster, Vec<Volume>) {
    // Frequent snapshots and purges, so that snapshots are installed too.
    let options = Options::default()
        .with("CONCORD_SNAPSHOT_LOG_BYTES", "131072")
        .with("CONCORD_DISK_RESERVE_BYTES", &RESERVE_BYTES.to_string())
        .with("CONCORD_WRITE_TIMEOUT_MS", "5000")
        .with("CONCORD_READ_TIMEOUT_MS", "3000")
        .with("CONCORD_LEASE_READS", "true");
    let options = match &tools.old {
        // Else the cluster would rise to a level that the other version does not know.
        Some(_) => options.with("CONCORD_FEATURE_LEVEL_MAX", "1"),
        None => options,
    };
    let options = if tools.encrypted { options.encrypted() } else { options };
    let host = if tools.network { Network::host } else { |_| "127.0.0.1".to_owned() };
    let mut volumes = Vec::new();
    let prepare = |root: &Path, nodes: &mut [Node]| {
        if std::env::var_os("CONCORD_CHAOS_TLS").is_some() {
            let authority = Authority::new(root, "ca");
            for node in nodes.iter_mut() {
                authority.equip(node);
                node.settings.insert("CONCORD_PEER_TLS".into(), "required".into());
            }
        }
        if tools.volumes {
            volumes.extend(nodes.iter_mut().map(|node| Volume::for_node(root, node)));
        }
        if plan.retention {
            for (node, retained) in nodes[1..].iter_mut().zip(RETAINED) {
                node.overrides.push(("CONCORD_HISTORY_REVISIONS".into(), retained.to_string()));
            }
        }
    };
    (Cluster::start_on_hosts("chaos", &options, host, prepare).await, volumes)
}

/// Clients and faults for the duration of the run.
async fn run_under_faults(plan: &Plan, kinds: &[Fault], mut nemesis: Nemesis<'_>, shared: &Arc<Shared>) {
    let workers: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let (nodes, rng) = (nemesis.cluster.clients(), nemesis.rng.fork());
            let worker = Worker { id, shared: Arc::clone(shared), nodes, rng, credential: None };
            tokio::spawn(worker.run())
        })
        .collect();
    let (keys, nodes, rng) = (Arc::clone(shared), nemesis.cluster.clients(), nemesis.rng.fork());
    let admin = tokio::spawn(async move { KeyAdmin { shared: &keys, nodes, rng }.run().await });
    let (freezes, nodes, rng) = (Arc::clone(shared), nemesis.cluster.clients(), nemesis.rng.fork());
    let freezer = tokio::spawn(async move { Freezer { shared: &freezes, nodes, rng }.run().await });
    let changes = people_at_work(&nemesis.cluster.clients(), shared, PROPOSERS, || nemesis.rng.fork());
    let count = usize::try_from(plan.duration.as_secs() / PERIOD.as_secs()).expect("a run is short").max(10);
    let count = if plan.is_long { count.max(kinds.len()) } else { count };
    let begin = Instant::now();
    for fault in nemesis.schedule(kinds, count) {
        nemesis.make(fault, kinds).await;
        pace(QUIET).await;
    }
    while begin.elapsed() < plan.duration {
        let [fault] = nemesis.schedule(kinds, 1)[..] else { break };
        nemesis.make(fault, kinds).await;
        pace(QUIET).await;
    }
    shared.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no client panics");
    }
    admin.await.expect("no client panics");
    freezer.await.expect("no client panics");
    changes.join_all().await;
}

/// Starts the workers at change requests, who changes keys meanwhile, and the witnesses.
fn people_at_work(
    nodes: &[Client],
    shared: &Arc<Shared>,
    proposers: usize,
    mut rng: impl FnMut() -> fastrand::Rng,
) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..proposers {
        let (shared, nodes, rng) = (Arc::clone(shared), nodes.to_vec(), rng());
        all.spawn(async move { Proposer { shared: &shared, nodes, rng }.run().await });
    }
    let (of_admin, of_witness) = (Arc::clone(shared), Arc::clone(shared));
    let (to_keep, to_see) = (nodes.to_vec(), nodes.to_vec());
    let (keeping, seeing) = (rng(), rng());
    all.spawn(async move { PersonAdmin::new(&of_admin, to_keep, keeping).run().await });
    all.spawn(async move { Witness { shared: &of_witness, nodes: to_see, rng: seeing }.run().await });
    all
}

/// The harness itself failed in the middle of a run: what was recorded until then is checked all the same.
fn report_of_a_dead_run(plan: &Plan, shared: &Shared, record: &Record) {
    shared.stop.store(true, Ordering::Relaxed);
    let violations = [check::violations(&shared.history), record.violations.clone()].concat();
    print_violations(&violations);
    let mut summary = summary(plan, shared, record, &violations);
    summary["died"] = json!(true);
    eprintln!("chaos: the run died; until then: {summary}");
}

fn print_violations(violations: &[String]) {
    for violation in violations.iter().take(20) {
        eprintln!("VIOLATION {violation}");
    }
}

/// Checks the file that a run has left, by itself.
#[test]
#[ignore = "needs HISTORY: scripts/chaos.sh check FILE"]
fn a_history_file_has_no_violation() {
    let path = text("HISTORY").expect("HISTORY names the file");
    let history = History::read(&path).unwrap_or_else(|why| panic!("{why}"));
    let violations = check::violations(&history);
    print_violations(&violations);
    let operations = history.operations();
    let unknown = operations.iter().filter(|operation| operation.ret == 0).count();
    println!(
        "{}",
        json!({
            "file": path,
            "violations": violations.len(),
            "operations": operations.len() + history.list_reads().len() + history.point_in_time_reads().len(),
            "unknown": unknown,
        })
    );
    assert!(violations.is_empty(), "{} violations", violations.len());
}

/// The faults are over: every key is read on every node, the digests are equal, the indexes are complete.
async fn check_at_rest(cluster: &mut Cluster, shared: &Shared) -> Vec<String> {
    cluster.ready().await;
    for (place, client) in cluster.clients().iter().enumerate() {
        read_all(shared, client, 1000 + place).await;
    }
    freezes::look(&cluster.clients()[0], shared).await;
    cluster.equal_digests().await;
    let mut found = Vec::new();
    for client in cluster.clients() {
        for definition in DEFINITIONS.into_iter().chain([CLAIMS]) {
            found.extend(indexes_are_complete(&client, definition).await);
        }
    }
    found
}

/// Watches of everything from a revision on, on all nodes, that resume at another node when they are cut off.
struct Followers {
    from: u64,
    followers: Vec<Follower>,
}

impl Followers {
    fn start(clients: &[Client], from: u64) -> Self {
        let follower = |place: usize| {
            let mut clients = clients.to_vec();
            clients.rotate_left(place % 3);
            // One leaves healthy nodes, too.
            let patience = if place == 0 { 40 } else { usize::MAX };
            let more: &[(&str, &str)] = if place < 2 { &[("prev", "true")] } else { &[] };
            Follower::start_with(clients, from, patience, more)
        };
        Self { from, followers: (0..FOLLOWERS).map(follower).collect() }
    }
}

/// Compares the service's own history, which must be the same on every node, with the answers and with what the
/// watches received; also returns how often each watch was opened, and the compaction revision.
async fn check_service_history(
    cluster: &Cluster,
    shared: &Shared,
    followers: Followers,
) -> (Vec<u64>, u64, Vec<String>) {
    let (keys, clients) = (shared.keys(), cluster.clients());
    let mut found = Vec::new();
    // The last change of all, so that each follower knows when it has received everything.
    define(&clients[0], "the-end").await;
    let end = clients[0].get(&definition("the-end")).insist().await.expect(200).tag();
    let end: u64 = end.trim_matches('"').parse().expect("a revision");
    let from = followers.from;
    let (mut opened, mut received) = (Vec::new(), Vec::new());
    for follower in followers.followers {
        opened.push(follower.opened.load(Ordering::SeqCst));
        // It panics when an event is malformed or a node refuses to resume.
        let events = async {
            follower.reaches(end).await;
            follower.end().await
        };
        match AssertUnwindSafe(events).catch_unwind().await {
            Ok(events) => received.push(events),
            Err(_) => found.push("a follower gave up: its panic stands above".to_owned()),
        }
    }
    let mut histories = Vec::new();
    for client in &clients {
        match ServiceHistory::read_from(client, &keys).await {
            Ok(history) => histories.push(history),
            Err(why) => found.push(format!("{}: {why}", client.base)),
        }
    }
    let (compacted, differences) =
        service_history::differences(histories, &shared.history, &shared.freezes, from..=end, &received);
    found.extend(differences);
    (opened, compacted, found)
}

/// Panics and broken invariants in the nodes' logs.
fn violations_in_logs(cluster: &Cluster) -> Vec<String> {
    let mut found = Vec::new();
    for node in &cluster.nodes {
        let text = std::fs::read_to_string(&node.log).unwrap_or_default();
        let bad = |line: &&str| line.contains("panicked at") || line.contains("invariant");
        found.extend(
            text.lines().filter(bad).map(|line| format!("node {} violations_in_logs: {line}", node.id)),
        );
    }
    found
}

/// The last line of a run.
fn summary(plan: &Plan, shared: &Shared, record: &Record, violations: &[String]) -> Value {
    let operations = shared.history.operations();
    let mut acknowledged = shared.acknowledged.lock().expect("no client panics").clone();
    acknowledged.sort_unstable();
    let done = |of: &dyn Fn(&Operation) -> bool| operations.iter().filter(|o| o.is_done() && of(o)).count();
    let batches: BTreeSet<u64> = operations.iter().filter(|o| o.is_done()).filter_map(|o| o.batch).collect();
    let transactions = shared.history.transactions();
    let chose = |branch: bool| {
        let chosen = transactions.iter().filter_map(|made| made.decided.as_ref());
        chosen.filter(|chosen| chosen.succeeded == branch).count()
    };
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
        "operations": operations.len() + shared.history.list_reads().len() + shared.history.point_in_time_reads().len(),
        "acknowledged_writes": acknowledged.len(),
        "patches": done(&|o| o.op == Kind::Patch),
        "batches": batches.len(),
        "transactions": {"sent": transactions.len(), "then": chose(true), "else": chose(false)},
        "upserts": done(&|o| o.op == Kind::Upsert),
        "rollbacks": done(&|o| o.op == Kind::Rollback),
        "transfers": done(&|o| o.op == Kind::Put && o.key.starts_with(BANK)) / 2,
        "schema_changes": shared.schemas.load(Ordering::Relaxed),
        "large_writes": done(&|o| o.is_write() && o.value.as_deref().is_some_and(is_large)),
        "expensive": shared.expensive.counts(),
        "stored_keys": shared.stored_keys.summary(&shared.history),
        "freezes": shared.freezes.count(),
        "retention": plan.retention,
        "data_keys_removed": record.data_keys_removed,
        "point_in_time_reads": shared.history.point_in_time_reads().len(),
        "unknown": operations.iter().filter(|o| o.ret == 0).count(),
        "keys": shared.keys().len(),
        "faults": record.made,
        "kinds": record.made.len(),
        "overlapping": record.overlapping,
        "ended_by_themselves": record.ended,
        "done_without_room": record.done_without_room,
        "skipped": record.skipped,
        "worst_gap_s": seconds(worst),
        "leader_death_to_write_median_s": recoveries.get(recoveries.len() / 2),
        "leader_death_to_write_worst_s": recoveries.last(),
    })
}
