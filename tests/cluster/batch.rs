//! Batches under a leader that is killed: each is applied whole or not at all, on every node, and no reader ever sees a
//! part of one.
//!
//! The long test sends `BATCHES` (200) batches of `OPS` (1000) operations and kills a leader during each, at a moment
//! drawn from `SEED`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{
    Client, Cluster, Options,
    load::{config, define, definition, everything},
    number,
    time::pace,
    watch::Follower,
};

const DEFINITIONS: usize = 10;

/// The size of a run.
#[derive(Debug, Clone, Copy)]
struct Plan {
    kills: usize,
    /// Batches that are under way at once when a leader is killed.
    at_once: usize,
    /// A multiple of [`DEFINITIONS`].
    operations: usize,
    seed: u64,
}

fn name(number: usize) -> String {
    format!("d{}", number % DEFINITIONS)
}

fn key(turn: usize, number: usize) -> String {
    format!("t{turn:04}-{number:04}")
}

fn operations(turn: usize, operations: usize) -> Value {
    let operations = (0..operations).map(|number| {
        json!({
            "op": "create_config",
            "config_definition_key": name(number),
            "config_key": key(turn, number),
            "data": {"turn": turn},
        })
    });
    json!({"operations": operations.collect::<Vec<_>>()})
}

fn batch_of(data: &Value) -> usize {
    data["turn"]
        .as_u64()
        .and_then(|turn| usize::try_from(turn).ok())
        .expect("each config has the number of its batch")
}

/// How many configs of each batch a node has.
async fn counts(client: &Client) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for number in 0..DEFINITIONS {
        for (_, data) in everything(client, &name(number)).await {
            *counts.entry(batch_of(&data)).or_default() += 1;
        }
    }
    counts
}

/// The answer to each batch.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    acknowledged: BTreeSet<usize>,
    /// 429 and 503: certainly not applied.
    refused: BTreeSet<usize>,
    unknown: BTreeSet<usize>,
    /// Those that had no answer yet when the leader was killed.
    caught: usize,
}

impl Answers {
    fn record(&mut self, turn: usize, status: Option<u16>) {
        let of = match status {
            Some(200) => &mut self.acknowledged,
            Some(429 | 503) => &mut self.refused,
            None | Some(504) => &mut self.unknown,
            Some(other) => panic!("batch {turn} was answered {other}"),
        };
        of.insert(turn);
    }

    /// What is wrong with the configs of each batch that a node has, when a whole batch has so many.
    fn contradictions(&self, counts: &BTreeMap<usize, usize>, whole: usize) -> Vec<String> {
        let torn = counts.iter().filter(|(_, count)| **count != whole);
        let torn = torn.map(|(turn, count)| format!("of batch {turn} there are {count} of {whole}"));
        let lost = self.acknowledged.iter().filter(|turn| !counts.contains_key(turn));
        let lost = lost.map(|turn| format!("batch {turn} was acknowledged and is not there"));
        let refused = self.refused.iter().filter(|turn| counts.contains_key(turn));
        let refused = refused.map(|turn| format!("batch {turn} was refused and is there"));
        torn.chain(lost).chain(refused).collect()
    }
}

/// A reader that looks at the newest batches all the time.
#[derive(Debug, Default)]
struct Reader {
    stop: AtomicBool,
    /// Batches up to this one may be applied.
    newest: AtomicUsize,
    whole: AtomicUsize,
    absent: AtomicUsize,
    torn: Mutex<Vec<String>>,
}

impl Reader {
    async fn run(self: Arc<Self>, clients: Vec<Client>, plan: Plan, mut rng: fastrand::Rng) {
        while !self.stop.load(Ordering::Relaxed) {
            let newest = self.newest.load(Ordering::Relaxed);
            let turn = newest.saturating_sub(rng.usize(..=plan.at_once));
            match is_applied(&clients, plan, turn, &mut rng).await {
                Some(Ok(true)) => drop(self.whole.fetch_add(1, Ordering::Relaxed)),
                Some(Ok(false)) => drop(self.absent.fetch_add(1, Ordering::Relaxed)),
                Some(Err(torn)) => self.torn.lock().expect("no holder panics").push(torn),
                // A node that was killed, or that hears of no leader.
                None => pace(Duration::from_millis(5)).await,
            }
        }
    }
}

/// Whether a batch was applied: a list of one definition shows it, and the other definitions as of that revision must
/// agree.
/// None without an answer.
async fn is_applied(
    clients: &[Client],
    plan: Plan,
    turn: usize,
    rng: &mut fastrand::Rng,
) -> Option<Result<bool, String>> {
    let first = rng.usize(..DEFINITIONS);
    let mut node = || clients[rng.usize(..clients.len())].clone();
    let list = node().get(&format!("{}/config/", definition(&name(first))));
    let search = format!("t{turn:04}-");
    let list = list.query(&[("search", &search), ("limit", "1")]).attempt().await.ok()?;
    if list.status != 200 {
        return None;
    }
    let (total, at) = (list.total(), list.revision().to_string());
    let all = u64::try_from(plan.operations / DEFINITIONS).expect("a batch is short");
    if total != 0 && total != all {
        return Some(Err(format!("{total} of {all} configs of batch {turn} at revision {at}")));
    }
    for number in (0..DEFINITIONS).filter(|number| *number != first) {
        let other = node().get(&config(&name(number), &key(turn, number))).query(&[("revision", &at)]);
        match other.attempt().await.ok()?.status {
            200 if total == all => {}
            404 if total == 0 => {}
            status @ (200 | 404) => {
                return Some(Err(format!("{total} in d{first}, {status} in d{number} at revision {at}")));
            }
            _ => return None,
        }
    }
    Some(Ok(total == all))
}

/// Sends the batches of a round on all nodes and kills the leader meanwhile.
async fn round(cluster: &mut Cluster, plan: Plan, from: usize, moment: Duration, answers: &mut Answers) {
    let (leader, clients) = (cluster.leader().await, cluster.clients());
    let sent: Vec<_> = (from..from + plan.at_once)
        .map(|turn| {
            let client = clients[turn % clients.len()].clone();
            let body = operations(turn, plan.operations);
            tokio::spawn(async move { (turn, client.post("/api/v1/batch", &body).attempt().await) })
        })
        .collect();
    // A single batch is interrupted at a drawn moment; of several, the rest when the first is answered.
    let end = Instant::now() + moment;
    while Instant::now() < end && (plan.at_once == 1 || !sent.iter().any(JoinHandle::is_finished)) {
        pace(Duration::from_millis(1)).await;
    }
    answers.caught += sent.iter().filter(|task| !task.is_finished()).count();
    cluster.node(leader).kill();
    for task in sent {
        let (turn, answer) = task.await.expect("a task ends");
        answers.record(turn, answer.ok().map(|answer| answer.status));
    }
    cluster.node(leader).start().await;
    cluster.ready().await;
}

/// Asserts that a follower received each batch in one event, once, and the batches that were applied.
fn received_whole(events: &[(u64, Value)], there: &BTreeSet<usize>, whole: usize) {
    let mut seen = BTreeSet::new();
    for (revision, changes) in events {
        let changes = changes.as_array().expect("`changes` is a list");
        let turns: Vec<_> = changes
            .iter()
            .filter(|change| change["type"] == "config_created")
            .map(|change| batch_of(&change["data"]))
            .collect();
        let Some(turn) = turns.first() else { continue };
        assert!(turns.len() == whole && turns.iter().all(|one| one == turn), "a part at revision {revision}");
        assert!(seen.insert(*turn), "batch {turn} was received twice");
    }
    assert!(seen == *there, "other batches were received than were applied");
}

/// Batches and killed leaders, and a reader meanwhile.
async fn run_with_kills(cluster: &mut Cluster, plan: Plan, reader: &Arc<Reader>) -> Answers {
    let (clients, mut answers) = (cluster.clients(), Answers::default());
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let reading = tokio::spawn(Arc::clone(reader).run(clients.clone(), plan, rng.fork()));
    // The first one runs undisturbed: the leader of the others lives about as long as it takes.
    let alone = Instant::now();
    let body = operations(0, plan.operations);
    clients[0].post("/api/v1/batch", &body).header("idempotency-key", "alone").insist().await.expect(200);
    let long = alone.elapsed() * u32::try_from(plan.at_once).expect("few are sent at once");
    answers.record(0, Some(200));
    for kill in 0..plan.kills {
        let from = 1 + kill * plan.at_once;
        reader.newest.store(from + plan.at_once - 1, Ordering::Relaxed);
        round(cluster, plan, from, long.mul_f64(rng.f64()), &mut answers).await;
    }
    reader.stop.store(true, Ordering::Relaxed);
    reading.await.expect("the reader does not panic");
    answers
}

/// Checks all nodes, and once more after all were killed; returns the batches that were applied.
async fn check_all(cluster: &mut Cluster, plan: Plan, answers: &Answers) -> BTreeSet<usize> {
    let mut there = BTreeSet::new();
    for restarted in [false, true] {
        if restarted {
            cluster.kill_all();
            cluster.start_all().await;
        }
        cluster.equal_digests().await;
        for client in cluster.clients() {
            let counts = counts(&client).await;
            assert_eq!(answers.contradictions(&counts, plan.operations), Vec::<String>::new());
            there = counts.into_keys().collect();
        }
    }
    there
}

/// The whole run, with a follower of all changes.
async fn whole_or_absent(plan: Plan) {
    let begin = Instant::now();
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "4194304");
    let mut cluster = Cluster::start_with("batches", &options).await;
    let client = cluster.client(2);
    for number in 0..DEFINITIONS {
        define(&client, &name(number)).await;
    }
    let from = client.status().await.unwrap()["revision"].as_u64().unwrap() + 1;
    let follower = Follower::start(cluster.clients(), from, 20);
    let reader = Arc::new(Reader::default());
    let answers = run_with_kills(&mut cluster, plan, &reader).await;
    let there = check_all(&mut cluster, plan, &answers).await;
    define(&client, "the-end").await;
    let end = client.get(&definition("the-end")).insist().await.expect(200).tag();
    follower.reaches(end.trim_matches('"').parse().unwrap()).await;
    received_whole(&follower.end().await, &there, plan.operations);
    let (whole, absent) = (reader.whole.load(Ordering::Relaxed), reader.absent.load(Ordering::Relaxed));
    eprintln!(
        "{} batches of {} operations, {} killed leaders, SEED={}: {} had no answer at the kill; {} acknowledged, {} \
         refused, {} unknown of which {} are there; a reader saw {whole} whole, {absent} absent; {:.0} s",
        1 + plan.kills * plan.at_once,
        plan.operations,
        plan.kills,
        plan.seed,
        answers.caught,
        answers.acknowledged.len(),
        answers.refused.len(),
        answers.unknown.len(),
        answers.unknown.intersection(&there).count(),
        begin.elapsed().as_secs_f64()
    );
    assert_eq!(*reader.torn.lock().unwrap(), Vec::<String>::new(), "a reader saw a part");
    assert!(whole + absent > 0, "the reader had answers");
}

#[tokio::test]
async fn a_batch_is_whole_or_absent_when_its_leader_is_killed() {
    whole_or_absent(Plan { kills: 3, at_once: 6, operations: 200, seed: 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: BATCHES (200) batches of OPS (1000) operations, a killed leader for each"]
async fn long_batches_are_whole_or_absent() {
    let size = |name, otherwise| number(name).map_or(otherwise, |n| usize::try_from(n).unwrap());
    let (kills, operations) = (size("BATCHES", 200), size("OPS", 1000));
    whole_or_absent(Plan { kills, at_once: 1, operations, seed: number("SEED").unwrap_or(1) }).await;
}

#[test]
fn a_torn_a_lost_and_a_refused_batch_are_distinguished() {
    let mut answers = Answers::default();
    for (turn, status) in [(1, Some(200)), (2, Some(503)), (3, Some(504)), (4, None)] {
        answers.record(turn, status);
    }
    assert_eq!(answers.contradictions(&[(1, 10), (4, 10)].into(), 10), Vec::<String>::new());
    for (wrong, found) in [
        (vec![(1, 9)], "of batch 1 there are 9 of 10"),
        (vec![(1, 10), (3, 1)], "of batch 3 there are 1 of 10"),
        (vec![(3, 10)], "batch 1 was acknowledged and is not there"),
        (vec![(1, 10), (2, 10)], "batch 2 was refused and is there"),
    ] {
        assert_eq!(answers.contradictions(&wrong.into_iter().collect(), 10), [found]);
    }
}
