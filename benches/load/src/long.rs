//! `--long`: the same load for minutes, and what grows meanwhile.
//!
//! How far sled trails is not told by any API. A sled that keeps up is written to every few seconds; one that has been
//! left behind is not. So its longest silence under load is in the table.

use std::{
    fmt::Write as _,
    path::Path,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    clients::{Clients, Figures, QUIET},
    cluster::{Cluster, disk_flushes, rss_mb},
    files::{Weight, silent_for},
    load::{Ask, Load, definition_body},
    report::rounded,
    run,
};

const CLIENTS: usize = 64;
const VALUE_BYTES: usize = 300;
const MINUTE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// One minute.
struct Minute {
    figures: Figures,
    /// Of each node.
    rss_mb: Vec<f64>,
    /// The greatest of any node at any look.
    weight: Weight,
    sled_silent_s: f64,
    flushes_per_write: f64,
}

fn minute(cluster: &Cluster, clients: &Clients) -> Result<Minute, String> {
    let (begin, flushes) = (Instant::now(), disk_flushes());
    let (mut weight, mut silent) = (Weight::default(), Duration::ZERO);
    while begin.elapsed() < MINUTE {
        thread::sleep(POLL_INTERVAL);
        for node in &cluster.nodes {
            weight = weight.most(Weight::of(&node.home));
            silent = silent.max(silent_for(&node.home, "store/sled").unwrap_or_default());
        }
    }
    let [seen, _] = clients.take()?;
    let figures = Figures::of(&seen, begin.elapsed().as_secs_f64());
    Ok(Minute {
        figures,
        rss_mb: cluster.nodes.iter().map(|node| rss_mb(node.pid())).collect(),
        weight,
        sled_silent_s: silent.as_secs_f64(),
        flushes_per_write: (disk_flushes() - flushes) as f64 / (seen.len() as f64).max(1.0),
    })
}

/// Loads for so many minutes; the section's text and its JSON.
pub(crate) fn section(
    binary: &Path,
    data: &Path,
    (keys, minutes): (usize, usize),
) -> Result<(String, Value), String> {
    let runtime = run::runtime()?;
    let cluster = Cluster::concord(&runtime, binary, data, &[])?;
    let leader = cluster.leader(&runtime)?;
    let ask = Ask { load: Load::UpdateIndexed, value_bytes: VALUE_BYTES, keys, of: None };
    let definition = ask.definition();
    let create = (hyper::Method::POST, "/api/v1/config_definition/", definition_body(&definition));
    cluster.ask(&runtime, leader, create)?;
    run::fill_batches(cluster.nodes[leader].addr, &definition, (keys, VALUE_BYTES))?;
    cluster.settle()?;
    let clients = Clients::start(cluster.nodes[leader].addr, ask, CLIENTS)?;
    clients.phase.store(QUIET, Relaxed);
    let mut rows = Vec::new();
    let mut failed = None;
    while rows.len() < minutes && failed.is_none() {
        match minute(&cluster, &clients) {
            Ok(row) => {
                eprintln!("minute {}: {:.0}/s", rows.len() + 1, row.figures.ops_per_s);
                rows.push(row);
            }
            Err(error) => failed = Some(error),
        }
    }
    clients.end()?;
    let ended = Instant::now();
    failed.map_or(Ok(()), Err)?;
    cluster.settle()?;
    let rest_s = ended.elapsed().as_secs_f64();
    let json = json!({
        "load": Load::UpdateIndexed.name(),
        "clients": CLIENTS,
        "value_bytes": VALUE_BYTES,
        "configs": keys,
        "minutes": rows.iter().map(Minute::json).collect::<Vec<_>>(),
        "rest_s": rounded(rest_s),
    });
    Ok((text(&rows, keys, rest_s), json))
}

impl Minute {
    fn json(&self) -> Value {
        json!({
            "seen": self.figures.json(),
            "rss_mb": self.rss_mb.iter().map(|mb| mb.round()).collect::<Vec<_>>(),
            "log_mb": rounded(self.weight.log),
            "history_mb": rounded(self.weight.history),
            "snapshots_mb": rounded(self.weight.snapshots),
            "sled_mb": rounded(self.weight.sled),
            "sled_silent_s": rounded(self.sled_silent_s),
            "flushes_per_write": rounded(self.flushes_per_write),
        })
    }
}

fn text(rows: &[Minute], keys: usize, rest_s: f64) -> String {
    let mut text = format!(
        "Updates of an indexed field of {keys} configs of {VALUE_BYTES} bytes by {CLIENTS} clients without a pause. Sizes on disk are the greatest of any node in that minute; sled's silence is the longest time for which a node did not write to it. {rest_s:.1} s after the last answer all nodes had been at rest for 3 s.\n\n| minute | ops/s | p50 ms | p99 ms | MB of each node | log, MB | history, MB | snapshots, MB | sled, MB | sled silent for, s | disk flushes per write, whole machine |\n|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|\n"
    );
    for (place, row) in rows.iter().enumerate() {
        let rss: Vec<String> = row.rss_mb.iter().map(|mb| format!("{mb:.0}")).collect();
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.2} | {:.2} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.1} | {:.2} |",
            place + 1,
            row.figures.ops_per_s,
            row.figures.p50_ms,
            row.figures.p99_ms,
            rss.join(", "),
            row.weight.log,
            row.weight.history,
            row.weight.snapshots,
            row.weight.sled,
            row.sled_silent_s,
            row.flushes_per_write
        );
    }
    text
}
