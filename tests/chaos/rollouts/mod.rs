//! Rollouts with real readers and real agents while leaders are killed, nodes are cut off and nodes hang: the invariants O1 to
//! O7 of `docs/internals/rollouts.md`.
//!
//! One rollout follows another: some reach their end, some are taken back by the failure of a reader or of an agent's command,
//! some by a person. The short run is a test like any other. `scripts/chaos.sh rollouts` makes one of any size, in a network of
//! its own: `ROLLOUT_WATCHES` readers, `ROLLOUT_AGENTS` agents, `ROLLOUTS` rollouts.
//!
//! | file | what it does |
//! |---|---|
//! | `readers` | watches, reads and reports |
//! | `agents` | processes of `concord agent`, and what is in their files |
//! | `check` | the checker, over all that was seen |
//!
//! **Invariant:** each value is proposed once, so a value says whose candidate it is.

mod agents;
mod check;
mod readers;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::{
    agents::Agents,
    check::{Advance, Item, Items, Line, Record, Seen, Stage, Verdict},
    readers::{BAD_FOR_AGENTS, BAD_FOR_READERS, Readers},
};
use super::{history::any_seed, network::Network, print_violations, violations_in_logs};
use crate::harness::{
    Answer, Call, Client, Cluster, Options, check, eventually,
    load::{define, set},
    number,
    time::{lasts, pace},
    within,
};

const CHANGES: &str = "/api/v1/change_request/";
const DEFINITIONS: [&str; 2] = ["roll.a", "roll.b"];
const KEY: &str = "k";
/// How long a node that may hang gets for a request, before another one is asked.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
/// How long readers and agents may take to have what they should have, once nothing is wrong with the nodes.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a rollout may take to its next stage: a new leader waits for reports for 30 seconds.
const ROLL_TIMEOUT: Duration = Duration::from_secs(100);
/// A stage that ends by no time of the test.
const FOREVER_S: u64 = 3600;

/// How a rollout ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Completes,
    /// A person ends each of its stages.
    Advanced,
    ReaderFails,
    AgentFails,
    /// A person takes it back at its second stage.
    Aborted,
}

impl End {
    fn changes_the_proven(self) -> bool {
        matches!(self, Self::Completes | Self::Advanced)
    }
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillLeader,
    CutLeader,
    CutFollower,
    HangLeader,
    HangFollower,
}

/// The rollouts of a short run, each with what happens meanwhile. A stage that reaches its end under a new leader waits for 30
/// seconds of reports, so this is left to long runs.
const SHORT: [(End, Fault); 5] = [
    (End::Completes, Fault::CutFollower),
    (End::ReaderFails, Fault::KillLeader),
    (End::Advanced, Fault::KillLeader),
    (End::AgentFails, Fault::CutLeader),
    (End::Aborted, Fault::HangFollower),
];
const LEADER: [Fault; 3] = [Fault::KillLeader, Fault::CutLeader, Fault::HangLeader];
const FOLLOWER: [Fault; 2] = [Fault::CutFollower, Fault::HangFollower];

/// Faults that were made.
#[derive(Debug, Default)]
struct Made {
    kills: u64,
    cuts: u64,
    hangs: u64,
    /// Cuts for which a node hung instead, because the run has no network of its own.
    without_network: u64,
}

/// The nodes, and who disturbs them.
struct Nemesis {
    cluster: Cluster,
    network: Option<Network>,
    rng: fastrand::Rng,
    made: Made,
}

struct Run {
    nodes: Vec<Client>,
    readers: std::sync::Arc<Readers>,
    agents: Agents,
    /// The value that all programs have now.
    proven: u64,
    lines: Vec<Line>,
}

fn items(n: u64) -> Items {
    let item = Item { n, change: None };
    [item.clone(), item]
}

/// Sends something to one node after the other until one has decided it.
async fn anywhere(nodes: &[Client], accepted: &[u16], call: impl Fn(&Client) -> Call) -> Answer {
    let mut turn = 0;
    eventually("a node decides", async || {
        turn += 1;
        let answer = timeout(REQUEST_TIMEOUT, call(&nodes[turn % nodes.len()]).attempt()).await;
        match answer {
            Ok(Ok(answer)) if accepted.contains(&answer.status) => Ok(answer),
            Ok(Ok(answer)) if answer.status < 500 && answer.status != 429 => panic!("{answer:?}"),
            Ok(Ok(answer)) => Err(format!("{answer:?}")),
            Ok(Err(why)) => Err(why),
            Err(_) => Err("the node hangs".to_owned()),
        }
    })
    .await
}

impl Run {
    /// The plan of a rollout. Its first stage needs more healthy readers than there are agents in it, which report by
    /// themselves.
    fn plan(&self, end: End) -> (Vec<Stage>, Vec<u64>) {
        let first_s = if matches!(end, End::ReaderFails | End::AgentFails) { FOREVER_S } else { 1 };
        let second_s = if end == End::Aborted { FOREVER_S } else { 1 };
        let agents = self.agents.count(|who| who.ring == Some("canary"));
        let stages = vec![
            Stage { ring: Some("canary"), share: 10_000, for_s: first_s, min_healthy: agents + 2 },
            Stage { ring: None, share: 5_000, for_s: second_s, min_healthy: 0 },
            Stage { ring: None, share: 10_000, for_s: 1, min_healthy: 0 },
        ];
        (stages, vec![agents, 0, 0])
    }

    /// A rollout from its proposal to its end. The error says what did not come to be.
    async fn roll(&mut self, end: End) -> Result<(), String> {
        let number = self.lines.len() as u64 + 1;
        let n = match end {
            End::ReaderFails => BAD_FOR_READERS + number,
            End::AgentFails => BAD_FOR_AGENTS + number,
            End::Completes | End::Advanced | End::Aborted => number,
        };
        let (stages, agents) = self.plan(end);
        let operation = |definition: &&str| json!({"op": "put_config", "config_definition_key": definition, "config_key": KEY, "data": {"n": n}});
        let operations: Vec<Value> = DEFINITIONS.iter().map(operation).collect();
        let plan: Vec<Value> = stages.iter().map(stage_json).collect();
        let body = json!({"title": format!("{end:?}"), "operations": operations, "rollout": {"stages": plan, "timeout_s": FOREVER_S}});
        let made = anywhere(&self.nodes, &[201], |node| {
            node.post(CHANGES, &body).header("idempotency-key", &format!("make-{n}"))
        })
        .await;
        let change = made.data()["change_id"].as_str().expect("an id").to_owned();
        let digest = json!({"digest": made.data()["digest"]});
        let line = Line { change: change.clone(), n, stages, agents, ..Line::default() };
        self.lines.push(Line { is_advanced: end == End::Advanced, ..line.clone() });
        self.act(&change, "apply", &digest, &[200]).await;
        let is_over = |change: &Value| matches!(change["phase"].as_str(), Some("applied" | "closed"));
        match end {
            End::Completes | End::ReaderFails | End::AgentFails => {}
            End::Advanced => {
                for stage in 0..line.stages.len() {
                    // 409: the cluster has ended it before.
                    self.act(&change, "advance", &json!({ "stage": stage }), &[200, 409]).await;
                }
            }
            End::Aborted => {
                self.becomes(&change, |change| {
                    check(change["rollout"]["status"]["stage"] == 1, || format!("{change}"))
                })
                .await?;
                self.has_sides(&line).await?;
                self.act(&change, "abort", &json!({"comment": "enough"}), &[200]).await;
            }
        }
        let ended = self.becomes(&change, |change| check(is_over(change), || format!("{change}"))).await?;
        let reason = match end {
            End::Completes | End::Advanced => Value::Null,
            End::ReaderFails | End::AgentFails => json!("failed"),
            End::Aborted => json!("withdrawn"),
        };
        if end.changes_the_proven() {
            self.proven = n;
        }
        check(ended["closed"]["reason"] == reason, || format!("{end:?}: {ended}"))
    }

    async fn act(&self, change: &str, action: &str, body: &Value, accepted: &[u16]) {
        let path = format!("{CHANGES}{change}/{action}");
        let id = format!("{action}-{change}-{}", body["stage"]);
        anywhere(&self.nodes, accepted, |node| node.post(&path, body).header("idempotency-key", &id)).await;
    }

    async fn becomes(
        &self,
        change: &str,
        is_so: impl Fn(&Value) -> Result<(), String>,
    ) -> Result<Value, String> {
        let path = format!("{CHANGES}{change}");
        within(ROLL_TIMEOUT, async || {
            let answer = anywhere(&self.nodes, &[200], |node| node.get(&path)).await;
            is_so(answer.data())?;
            pace(Duration::from_millis(100)).await;
            Ok(answer.data().clone())
        })
        .await
    }

    /// Waits until the watches and the files of a rollout at its second stage have what they should have.
    async fn has_sides(&self, line: &Line) -> Result<(), String> {
        let inside = self.readers.all.iter().filter(|who| line.has(1, who)).count();
        within(SETTLE_TIMEOUT, async || {
            let now = self.readers.inside(&line.change);
            check(now == inside, || {
                format!("{now} readers of {inside} have the candidate at the second stage")
            })
        })
        .await?;
        within(SETTLE_TIMEOUT, async || {
            let wrong = self.agents.without(|who| if line.has(1, who) { line.n } else { self.proven });
            check(wrong.is_empty(), || format!("files at the second stage: {wrong:?}"))
        })
        .await
    }

    /// Waits until the watches and the files have what is proven.
    async fn settles(&self) -> Result<(), String> {
        within(SETTLE_TIMEOUT, async || {
            let without = self.readers.without(&items(self.proven));
            check(without == 0, || format!("{without} readers do not have what is proven"))
        })
        .await?;
        within(SETTLE_TIMEOUT, async || {
            let wrong = self.agents.without(|_| self.proven);
            check(wrong.is_empty(), || format!("files without what is proven: {wrong:?}"))
        })
        .await
    }
}

fn stage_json(stage: &Stage) -> Value {
    let mut json =
        json!({"share": stage.share / 100, "for_s": stage.for_s, "min_healthy": stage.min_healthy});
    if let Some(ring) = stage.ring {
        json["labels"] = json!({"ring": [ring]});
    }
    json
}

impl Nemesis {
    /// Makes a fault, and ends it.
    async fn make(&mut self, fault: Fault) {
        let leader = self.cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let follower = others[self.rng.usize(..2)];
        let time = Duration::from_millis(self.rng.u64(1000..3500));
        let (id, is_cut) = match fault {
            Fault::KillLeader => {
                self.made.kills += 1;
                self.cluster.node(leader).kill();
                lasts(time / 3).await;
                self.cluster.node(leader).start().await;
                return self.cluster.ready().await;
            }
            Fault::CutLeader => (leader, true),
            Fault::CutFollower => (follower, true),
            Fault::HangLeader => (leader, false),
            Fault::HangFollower => (follower, false),
        };
        match self.network.as_ref().filter(|_| is_cut) {
            Some(network) => {
                self.made.cuts += 1;
                (1..=3).filter(|other| *other != id).for_each(|other| network.cut_both(id, other));
                lasts(time).await;
                network.heal();
            }
            None => {
                self.made.hangs += 1;
                self.made.without_network += u64::from(is_cut);
                self.cluster.node(id).pause();
                lasts(time).await;
                self.cluster.node(id).resume();
            }
        }
        self.cluster.ready().await;
    }
}

/// The ends of the rollouts of a run, each with the faults that are made meanwhile.
fn schedule(rng: &mut fastrand::Rng, count: usize) -> Vec<(End, Vec<Fault>)> {
    if count <= SHORT.len() {
        return SHORT.iter().take(count).map(|(end, fault)| (*end, vec![*fault])).collect();
    }
    (0..count)
        .map(|place| {
            let (end, _) = SHORT[place % SHORT.len()];
            // Each new leader costs a stage that ends by itself 30 seconds.
            let mut faults = vec![LEADER[rng.usize(..LEADER.len())]];
            let more = if end == End::Completes { FOLLOWER[rng.usize(..2)] } else { LEADER[rng.usize(..3)] };
            faults.extend((rng.bool()).then_some(more));
            faults.extend((rng.bool()).then_some(FOLLOWER[rng.usize(..2)]));
            (end, faults)
        })
        .collect()
}

/// The lines with what the events of the change requests say of them.
async fn with_events(nodes: &[Client], from: u64, mut lines: Vec<Line>) -> Vec<Line> {
    let mut from = from.to_string();
    loop {
        let query = [("change_requests", "true"), ("from", from.as_str()), ("wait", "1")];
        let answer = anywhere(nodes, &[200, 304], |node| node.get("/api/v1/changes").query(&query)).await;
        if answer.status == 304 {
            return lines;
        }
        for event in answer.data()["events"].as_array().into_iter().flatten() {
            let revision = event["revision"].as_u64().expect("a revision");
            let at: Timestamp = event["at"].as_str().and_then(|at| at.parse().ok()).expect("a time");
            let at = u64::try_from(at.as_microsecond()).expect("after 1970");
            for change in event["changes"].as_array().into_iter().flatten() {
                let line = lines.iter_mut().find(|line| change["change_id"] == line.change);
                let Some(line) = line else { continue };
                match change["type"].as_str().unwrap_or_default() {
                    "change_request_begun" => (line.begun, line.begun_at) = (revision, at),
                    "change_request_advanced" => {
                        let is_by_cluster = change["by"].is_null();
                        line.advanced.push(Advance { revision, at, is_by_cluster });
                    }
                    "change_request_applied" => (line.end, line.is_applied) = (Some(revision), true),
                    "change_request_closed" => line.end = Some(revision),
                    _ => {}
                }
            }
        }
        from = answer.data()["from"].as_u64().expect("where to go on").to_string();
    }
}

/// A number of the environment, or another one.
fn setting(name: &str, otherwise: usize) -> usize {
    number(name).map_or(otherwise, |number| usize::try_from(number).expect("a small number"))
}

/// Nodes with two configs, and the revision that they are at.
async fn prepared(network: Option<&Network>) -> (Cluster, u64) {
    let host = if network.is_some() { Network::host } else { |_| "127.0.0.1".to_owned() };
    let options =
        Options::default().with("CONCORD_WRITE_TIMEOUT_MS", "5000").with("CONCORD_READ_TIMEOUT_MS", "3000");
    let cluster = Cluster::start_on_hosts("chaos-rollouts", &options, host, |_, _| {}).await;
    let first = cluster.client(1);
    for definition in DEFINITIONS {
        define(&first, definition).await;
        set(&first, definition, KEY, &json!({"n": 0})).await;
    }
    let status = first.status().await.expect("a node that has answered");
    let revision = status["revision"].as_u64().expect("a revision");
    (cluster, revision)
}

/// One rollout with its faults, until readers and agents have what is proven. The error says what did not come to be.
async fn roll_under_faults(
    run: &mut Run,
    nemesis: &mut Nemesis,
    (end, faults): (End, Vec<Fault>),
) -> Result<(), String> {
    let is_over = AtomicBool::new(false);
    let disturb = async {
        for fault in faults {
            pace(Duration::from_millis(nemesis.rng.u64(100..900))).await;
            if is_over.load(Ordering::SeqCst) {
                break;
            }
            eprintln!("rollouts: {end:?} with {fault:?}");
            nemesis.make(fault).await;
        }
    };
    let roll = async {
        let rolled = run.roll(end).await;
        is_over.store(true, Ordering::SeqCst);
        rolled
    };
    let (rolled, ()) = tokio::join!(roll, disturb);
    rolled?;
    run.settles().await
}

/// The last line of a run.
fn summary(record: &Record, verdict: &Verdict, made: &Made) -> Value {
    let applied = record.lines.iter().filter(|line| line.is_applied).count();
    let shows_candidate = |seen: &&Seen| seen.items[0].change.is_some();
    json!({
        "rollouts": record.lines.len(), "applied": applied, "taken_back": record.lines.len() - applied,
        "stages_ended": record.lines.iter().map(|line| line.advanced.len()).sum::<usize>(),
        "kills": made.kills, "cuts": made.cuts, "hangs": made.hangs, "cuts_skipped": made.without_network,
        "reads": record.seen.len(), "reads_of_candidates": record.seen.iter().filter(shows_candidate).count(),
        "judged": verdict.judged, "compared": verdict.compared, "file_values": record.written.len(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_keep_their_invariants_while_leaders_die_and_nodes_are_cut_off() {
    let (watch_count, agent_count) = (setting("ROLLOUT_WATCHES", 20), setting("ROLLOUT_AGENTS", 3));
    let count = setting("ROLLOUTS", SHORT.len());
    let is_long = std::env::var_os("CONCORD_CHAOS").is_some();
    let seed = number("SEED").unwrap_or_else(|| if is_long { any_seed() } else { 1 });
    assert!(watch_count >= 20 && agent_count >= 1, "the first stage needs two readers beside the agents");
    eprintln!("rollouts: SEED={seed}, {count} rollouts, {watch_count} watches, {agent_count} agents");
    let network = Network::own();
    let (cluster, from) = prepared(network.as_ref()).await;
    // About 100 reads a second, however many readers there are.
    let every = Duration::from_millis(10 * watch_count as u64);
    let (readers, tasks) = Readers::start(cluster.clients(), watch_count, every);
    let agents = Agents::start(&cluster, agent_count);
    let mut run = Run { nodes: cluster.clients(), readers, agents, proven: 0, lines: Vec::new() };
    let rng = fastrand::Rng::with_seed(seed);
    let mut nemesis = Nemesis { cluster, network, rng, made: Made::default() };
    run.settles().await.unwrap_or_else(|why| panic!("{why}"));
    let mut violations = Vec::new();
    for (end, faults) in schedule(&mut nemesis.rng, count) {
        // The checker says why.
        if let Err(why) = roll_under_faults(&mut run, &mut nemesis, (end, faults)).await {
            violations.push(format!("{end:?}: {why}"));
            break;
        }
    }
    let Run { nodes, readers, agents, lines, .. } = run;
    let (seen, followed, found) = readers.end(tasks).await;
    violations.extend(found);
    let (looks, written) = agents.end().await;
    let mut lines = with_events(&nodes, from + 1, lines).await;
    for line in &mut lines {
        line.healthy = readers.healthy(&line.change);
        if line.begun == 0 || line.end.is_none() {
            violations.push(format!("no event says when it began, or when it ended: {line:?}"));
        }
    }
    let record = Record { readers: readers.all.clone(), lines, seen, followed, written };
    let verdict = record.check();
    violations.extend(verdict.found.iter().cloned());
    violations.extend(violations_in_logs(&nemesis.cluster));
    nemesis.cluster.equal_digests().await;
    print_violations(&violations);
    let mut summary = summary(&record, &verdict, &nemesis.made);
    summary["seed"] = seed.into();
    summary["violations"] = violations.len().into();
    summary["watches"] = json!({"readers": watch_count, "opened": readers.opened()});
    summary["agents"] = json!({"agents": agent_count, "file_reads": looks});
    println!("{summary}");
    if nemesis.made.without_network > 0 {
        eprintln!("rollouts: SKIPPED cuts: no network of its own (scripts/chaos.sh rollouts)");
    }
    assert!(violations.is_empty(), "{} violations with SEED={seed}", violations.len());
    assert!(verdict.compared > 100 && !record.written.is_empty(), "little was compared: {summary}");
}
