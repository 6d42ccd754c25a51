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
    load::{Ask, Load, Speaks, definition, definition_body},
    report::{middle, rounded},
    run::{self, Seen, Times},
};

/// Clients of each load.
const CLIENTS: usize = 64;
const VALUE_BYTES: usize = 300;
const LOADS: [Load; 3] = [Load::UpdateIndexed, Load::GetSpread, Load::GetLocal];
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
         the replicas, where there are none to the voters that do not lead. Medians of {} rounds of {} ms after {} ms.\n\n\
         | replicas | load | ops/s | CPU µs/op: leader | another voter | a replica | p50 ms | p99 ms |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|\n",
        plan.keys,
        plan.rounds,
        plan.times.measured.as_millis(),
        plan.times.warm.as_millis(),
    );
    let mut rows = Vec::new();
    for replicas in &plan.replicas {
        for (load, figures) in with(concord, &data.join(replicas.to_string()), (*replicas, plan))? {
            let replica = figures.replica.map_or_else(String::new, |us| format!("{us:.1}"));
            let _ = writeln!(
                text,
                "| {replicas} | {} | {:.0} | {:.1} | {:.1} | {replica} | {:.2} | {:.2} |",
                load.name(),
                figures.ops_per_s,
                figures.leader,
                figures.voter,
                figures.p50_ms,
                figures.p99_ms,
            );
            rows.push(json!({
                "replicas": replicas,
                "load": load.name(),
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
) -> Result<Vec<(Load, Figures)>, String> {
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
        run::fill(&cluster, leader, &name, (plan.keys, VALUE_BYTES))?;
    }
    let mut measured = Vec::new();
    for load in LOADS {
        let ask = Ask { load, value_bytes: VALUE_BYTES, keys: plan.keys, of: None };
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            let leader = cluster.leader(&runtime)?;
            let mut order: Vec<usize> = (0..VOTERS).map(|n| (leader + n) % VOTERS).collect();
            order.extend(VOTERS..VOTERS + replicas);
            let asked = match load {
                Load::GetSpread | Load::GetLocal if replicas == 0 => &order[1..],
                Load::GetSpread | Load::GetLocal => &order[VOTERS..],
                _ => &order[..1],
            };
            let made = Arc::new(AtomicUsize::new(0));
            let point = (ask, CLIENTS, plan.times);
            rounds.push(run::measure_at(&cluster, (&order, asked), Speaks::Concord, point, &made)?);
        }
        let figures = figures(&rounds, replicas);
        eprintln!(
            "{replicas} replicas, {}: {:.0}/s, leader {:.1} µs",
            load.name(),
            figures.ops_per_s,
            figures.leader
        );
        measured.push((load, figures));
    }
    Ok(measured)
}

fn figures(rounds: &[Seen], replicas: usize) -> Figures {
    let of = |figure: &dyn Fn(&Seen) -> f64| middle(rounds.iter().map(figure).collect());
    let each = |from: usize, count: usize| {
        of(&|seen| {
            seen.cpu[from..from + count].iter().sum::<f64>() / count as f64 * 1e4 / seen.ops_per_s.max(1.0)
        })
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
