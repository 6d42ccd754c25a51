//! `--replicas`: members without a vote that stay, beside three voters: what they serve, and what each costs the leader.
//!
//! Each number of replicas has a cluster of its own. Updates go to the leader; reads go to the replicas alone, or where
//! there are none to the voters that do not lead.
//!
//! **Invariant:** the processor time of a row is that of all nodes in its measured time.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
};

use hyper::Method;
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    load::{Ask, LISTED, Load, Speaks, definition, definition_body},
    report::{middle, rounded},
    run::{self, Seen, Times},
    watch,
    watchers::Protocol,
};

/// Clients of each load.
const CLIENTS: usize = 64;
const VALUE_BYTES: usize = 300;
const LOADS: [Load; 4] = [Load::UpdateIndexed, Load::GetSpread, Load::GetLocal, Load::ListIndexed];
/// Watchers of one definition, and its changes a second.
const WATCHERS: usize = 600;
const CHANGES_PER_S: usize = 100;
/// The voters.
const VOTERS: usize = 3;

/// How many replicas, and for how long.
pub(crate) struct Plan {
    pub(crate) replicas: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) times: Times,
    pub(crate) keys: usize,
}

/// Microseconds of processor time per operation, and the rate.
struct Figures {
    ops_per_s: f64,
    leader: f64,
    /// Of one of the other voters.
    voter: f64,
    /// Of one replica.
    replica: Option<f64>,
    p50_ms: f64,
    p99_ms: f64,
}

/// The section's text and JSON.
pub(crate) fn section(concord: &Path, data: &Path, plan: &Plan) -> Result<(String, Value), String> {
    let mut text = format!(
        "Three voters and so many replicas, {CLIENTS} clients, {} configs of {VALUE_BYTES} bytes. Updates go to the leader; reads to \
         the replicas, where there are none to the voters that do not lead. Medians of {} rounds of {} ms after {} ms. \
         {WATCHERS} watchers of one definition have {CHANGES_PER_S} changes a second, and an operation is a change that one is told.\n\n\
         | replicas | load | ops/s | CPU µs/op: leader | another voter | a replica | p50 ms | p99 ms |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|\n",
        plan.keys,
        plan.rounds,
        plan.times.measured.as_millis(),
        plan.times.warm.as_millis(),
    );
    let mut rows = Vec::new();
    for replicas in &plan.replicas {
        for (name, figures) in with(concord, &data.join(replicas.to_string()), (*replicas, plan))? {
            let replica = figures.replica.map_or_else(String::new, |us| format!("{us:.2}"));
            let _ = writeln!(
                text,
                "| {replicas} | {name} | {:.0} | {:.2} | {:.2} | {replica} | {:.2} | {:.2} |",
                figures.ops_per_s, figures.leader, figures.voter, figures.p50_ms, figures.p99_ms,
            );
            rows.push(json!({
                "replicas": replicas,
                "load": name,
                "ops_per_s": figures.ops_per_s.round(),
                "leader_cpu_us_per_op": rounded(figures.leader),
                "voter_cpu_us_per_op": rounded(figures.voter),
                "replica_cpu_us_per_op": figures.replica.map(rounded),
                "p50_ms": rounded(figures.p50_ms),
                "p99_ms": rounded(figures.p99_ms),
            }));
        }
    }
    Ok((text, Value::Array(rows)))
}

/// All loads on a cluster with so many replicas.
fn with(
    concord: &Path,
    data: &Path,
    (replicas, plan): (usize, &Plan),
) -> Result<Vec<(&'static str, Figures)>, String> {
    let runtime = run::runtime()?;
    let cluster = Cluster::concord_of(&runtime, (concord, data), &[], VOTERS + replicas)?;
    let leader = cluster.leader(&runtime)?;
    let names: BTreeSet<String> = LOADS.iter().map(|load| definition(*load, VALUE_BYTES)).collect();
    for name in names {
        cluster.ask(
            &runtime,
            leader,
            (Method::POST, "/api/v1/config_definition/", definition_body(&name)),
        )?;
        let count = if name == definition(Load::ListIndexed, VALUE_BYTES) { LISTED } else { plan.keys };
        run::fill(&cluster, leader, &name, (count, VALUE_BYTES))?;
    }
    watch::prepare(&cluster, leader)?;
    let mut measured = Vec::new();
    for load in LOADS {
        let ask = Ask { load, value_bytes: VALUE_BYTES, keys: plan.keys, of: None };
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            let order = order(cluster.leader(&runtime)?, replicas);
            let asked = if load == Load::UpdateIndexed { &order[..1] } else { readers(&order) };
            let made = Arc::new(AtomicUsize::new(0));
            let point = (ask, CLIENTS, plan.times);
            rounds.push(run::measure_at(&cluster, (&order, asked), Speaks::Concord, point, &made)?);
        }
        let seen: Vec<_> = rounds.iter().map(Round::of).collect();
        measured.push((load.name(), figures(&seen, replicas)));
    }
    let mut seen = Vec::new();
    for _ in 0..plan.rounds {
        let order = order(cluster.leader(&runtime)?, replicas);
        let watches = watch::Plan {
            watchers: WATCHERS,
            changes_per_s: CHANGES_PER_S,
            rounds: 1,
            times: plan.times,
            identified: false,
        };
        seen.push(Round::of_watches(watch::once(
            &cluster,
            (&order, readers(&order)),
            (watches, Protocol::Http1),
        )?));
    }
    measured.push(("watch", figures(&seen, replicas)));
    for (name, Figures { ops_per_s, leader, .. }) in &measured {
        eprintln!("{replicas} replicas, {name}: {ops_per_s:.0}/s, leader {leader:.1} µs");
    }
    Ok(measured)
}

/// The places of the nodes: the leader, the other voters, the replicas.
fn order(leader: usize, replicas: usize) -> Vec<usize> {
    let voters = (0..VOTERS).map(|n| (leader + n) % VOTERS);
    voters.chain(VOTERS..VOTERS + replicas).collect()
}

/// Those of them that reads go to.
fn readers(order: &[usize]) -> &[usize] {
    if order.len() == VOTERS { &order[1..] } else { &order[VOTERS..] }
}

/// What one round showed.
struct Round {
    ops_per_s: f64,
    /// Microseconds of processor time for each operation, in the order of the nodes.
    us_per_op: Vec<f64>,
    p50_ms: f64,
    p99_ms: f64,
}

impl Round {
    fn of(seen: &Seen) -> Self {
        let Seen { ops_per_s, p50_ms, p99_ms, .. } = *seen;
        let us_per_op = seen.cpu.iter().map(|percent| percent * 1e4 / ops_per_s.max(1.0)).collect();
        Self { ops_per_s, us_per_op, p50_ms, p99_ms }
    }

    fn of_watches(seen: watch::Seen) -> Self {
        let watch::Seen { deliveries_per_s, cpu_us, p50_ms, p99_ms, .. } = seen;
        Self { ops_per_s: deliveries_per_s, us_per_op: cpu_us, p50_ms, p99_ms }
    }
}

fn figures(rounds: &[Round], replicas: usize) -> Figures {
    let of = |figure: &dyn Fn(&Round) -> f64| middle(rounds.iter().map(figure).collect());
    let each = |from: usize, count: usize| {
        of(&|seen| seen.us_per_op[from..from + count].iter().sum::<f64>() / count as f64)
    };
    Figures {
        ops_per_s: of(&|seen| seen.ops_per_s),
        leader: each(0, 1),
        voter: each(1, VOTERS - 1),
        replica: (replicas > 0).then(|| each(VOTERS, replicas)),
        p50_ms: of(&|seen| seen.p50_ms),
        p99_ms: of(&|seen| seen.p99_ms),
    }
}
