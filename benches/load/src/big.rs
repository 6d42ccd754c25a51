//! `--big`: a million configs with two indexes: what they take, how long a node needs to be back, and what a deep page
//! costs.

use std::{
    fmt::Write as _,
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    cluster::{Cluster, peak_mb, rss_mb},
    http::Http,
    load::{Ask, GROUPS, KEY, Load, Speaks, Subject, definition_body},
    report::{middle, rounded},
    run::{self, Seen, Times},
};

const DEFINITION: &str = "big";
const CLIENTS: usize = 64;
const VALUE_BYTES: usize = 300;
const PAGE: usize = 100;
/// Times that each page is asked for.
const PAGES: usize = 51;
const TIMES: Times = Times { warm: Duration::from_secs(1), measured: Duration::from_secs(5) };

/// A node that was started again.
struct Restart {
    how: &'static str,
    /// How long it took to end.
    end_s: f64,
    ready_s: f64,
    rss_mb: f64,
}

/// What was seen.
struct Big {
    keys: usize,
    load_s: f64,
    /// From the last answer until no node writes anything any more.
    rest_s: f64,
    /// Of each node, at rest: resident, and the most that it was.
    loaded_mb: Vec<(f64, f64)>,
    restarts: Vec<Restart>,
    /// Offset, median and slowest ms.
    pages: Vec<(usize, f64, f64)>,
    seen: Vec<(Load, Seen)>,
}

fn restart(cluster: &mut Cluster, place: usize, runtime: &Runtime, killed: bool) -> Result<Restart, String> {
    let (node, asked) = (&mut cluster.nodes[place], Instant::now());
    if killed {
        node.kill()?
    } else {
        node.stop()?
    }
    let (end_s, begin) = (asked.elapsed().as_secs_f64(), Instant::now());
    node.start()?;
    node.ready(runtime)?;
    let ready_s = begin.elapsed().as_secs_f64();
    let how = if killed { "killed after the updates" } else { "stopped" };
    eprintln!("a node that was {how} is ready after {ready_s:.1} s");
    Ok(Restart { how, end_s, ready_s, rss_mb: rss_mb(node.pid()) })
}

/// Median and slowest ms of a page at each offset, asked for in turns.
fn pages(cluster: &Cluster, place: usize, offsets: &[usize]) -> Result<Vec<(usize, f64, f64)>, String> {
    let mut took = vec![Vec::new(); offsets.len()];
    run::runtime()?.block_on(async {
        let mut http = Http::connect(cluster.nodes[place].addr, KEY).await?;
        for _ in 0..PAGES {
            for (offset, took) in offsets.iter().zip(&mut took) {
                let page = offset / PAGE + 1;
                let path = format!("/api/v1/config_definition/{DEFINITION}/config/?page={page}&limit={PAGE}");
                let begin = Instant::now();
                let body = http.good(Method::GET, &path, String::new()).await?;
                took.push(begin.elapsed().as_secs_f64() * 1000.0);
                if body.len() < PAGE * VALUE_BYTES {
                    return Err(format!("{path}: a short page"));
                }
            }
        }
        Ok(())
    })?;
    let slowest = |took: &[f64]| took.iter().copied().fold(0.0, f64::max);
    Ok(offsets
        .iter()
        .zip(took)
        .map(|(offset, took)| (*offset, middle(took.clone()), slowest(&took)))
        .collect())
}

/// Measures it; the section's text and its JSON.
pub(crate) fn section(binary: &Path, data: &Path, keys: usize) -> Result<(String, Value), String> {
    if keys < GROUPS * PAGE {
        return Err(format!(
            "--big lists pages of {PAGE} by index: it needs --keys {} or more",
            GROUPS * PAGE
        ));
    }
    let runtime = run::runtime()?;
    let mut cluster = Cluster::concord(&runtime, binary, data, &[])?;
    let leader = cluster.leader(&runtime)?;
    let create = (Method::POST, "/api/v1/config_definition/", definition_body(DEFINITION));
    cluster.ask(&runtime, leader, create)?;
    let begin = Instant::now();
    run::fill_batches(cluster.nodes[leader].addr, DEFINITION, (keys, VALUE_BYTES))?;
    let load_s = begin.elapsed().as_secs_f64();
    eprintln!("{keys} configs made in {load_s:.1} s");
    let loaded = Instant::now();
    cluster.settle()?;
    let rest_s = loaded.elapsed().as_secs_f64();
    let memory = |pid| (rss_mb(pid), peak_mb(pid));
    let loaded_mb = cluster.nodes.iter().map(|node| memory(node.pid())).collect();
    let pages = pages(&cluster, leader, &[0, keys / 10 * 9])?;
    let mut seen = Vec::new();
    for load in [Load::ListIndexed, Load::GetLeader, Load::UpdateIndexed] {
        let of = Subject { definition: DEFINITION, first: 0, readers: 0 };
        let ask = Ask { load, value_bytes: VALUE_BYTES, keys, of: Some(of) };
        let made = Arc::new(AtomicUsize::new(0));
        let figures = run::measure(&cluster, leader, Speaks::Concord, (ask, CLIENTS, TIMES), &made)?;
        eprintln!("{}: {:.0}/s", load.name(), figures.ops_per_s);
        seen.push((load, figures));
    }
    // At once, with what sled has not got yet; then every node, the leader last.
    let places = cluster.nodes.len();
    let mut restarts = vec![restart(&mut cluster, (leader + 1) % places, &runtime, true)?];
    cluster.settle()?;
    for place in (1..=places).map(|step| (leader + step) % places) {
        restarts.push(restart(&mut cluster, place, &runtime, false)?);
    }
    let big = Big { keys, load_s, rest_s, loaded_mb, restarts, pages, seen };
    Ok((big.text(), big.json()))
}

impl Big {
    /// How much longer the last page takes than the first.
    fn depth_ratio(&self) -> f64 {
        match self.pages.as_slice() {
            [(_, first, _), .., (_, last, _)] => last / first.max(f64::MIN_POSITIVE),
            _ => 0.0,
        }
    }

    fn json(&self) -> Value {
        let restart = |restart: &Restart| {
            json!({
                "how": restart.how,
                "end_s": rounded(restart.end_s),
                "ready_s": rounded(restart.ready_s),
                "rss_mb": restart.rss_mb.round(),
            })
        };
        let page = |(offset, median, slowest): &(usize, f64, f64)| json!({ "offset": offset, "median_ms": rounded(*median), "slowest_ms": rounded(*slowest) });
        let seen = |(load, seen): &(Load, Seen)| {
            json!({
                "load": load.name(),
                "clients": CLIENTS,
                "ops_per_s": seen.ops_per_s.round(),
                "cpu_us_per_op": rounded(seen.cpu_us_per_op()),
                "leader_cpu_us_per_op": rounded(seen.leader_cpu_us_per_op()),
                "p50_ms": rounded(seen.p50_ms),
                "p99_ms": rounded(seen.p99_ms),
                "rss_mb": seen.rss_mb.round(),
            })
        };
        json!({
            "configs": self.keys,
            "value_bytes": VALUE_BYTES,
            "load_s": rounded(self.load_s),
            "rest_s": rounded(self.rest_s),
            "loaded_rss_mb": self.loaded_mb.iter().map(|(rss, _)| rss.round()).collect::<Vec<_>>(),
            "loaded_peak_mb": self.loaded_mb.iter().map(|(_, peak)| peak.round()).collect::<Vec<_>>(),
            "restarts": self.restarts.iter().map(restart).collect::<Vec<_>>(),
            "pages": self.pages.iter().map(page).collect::<Vec<_>>(),
            "page_depth_ratio": rounded(self.depth_ratio()),
            "loads": self.seen.iter().map(seen).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let loaded: Vec<String> =
            self.loaded_mb.iter().map(|(rss, peak)| format!("{rss:.0} (at most {peak:.0})")).collect();
        let mut text = format!(
            "{} configs of {VALUE_BYTES} bytes with two indexes, made in {:.1} s by change sets of 500; {:.1} s later all nodes had been at rest for 3 s. MB of each node then: {}.\n\n| a node was | s to its end | s from its start to ready | MB when ready |\n|---|---:|---:|---:|\n",
            self.keys,
            self.load_s,
            self.rest_s,
            loaded.join(", ")
        );
        for Restart { how, end_s, ready_s, rss_mb } in &self.restarts {
            let _ = writeln!(text, "| {how} | {end_s:.1} | {ready_s:.1} | {rss_mb:.0} |");
        }
        text.push_str("\n| a page of 100 at offset | median ms | slowest ms |\n|---:|---:|---:|\n");
        for (offset, median, slowest) in &self.pages {
            let _ = writeln!(text, "| {offset} | {median:.2} | {slowest:.2} |");
        }
        let _ = write!(
            text,
            "\nThe deep page takes {:.2} times as long as the first.\n\n| load | clients | ops/s | p50 ms | p99 ms | CPU µs/op: all nodes · leader | biggest node, MB |\n|---|---:|---:|---:|---:|---:|---:|\n",
            self.depth_ratio()
        );
        for (load, seen) in &self.seen {
            let Seen { ops_per_s, p50_ms, p99_ms, rss_mb, .. } = seen;
            let _ = writeln!(
                text,
                "| {} | {CLIENTS} | {ops_per_s:.0} | {p50_ms:.2} | {p99_ms:.2} | {:.1} · {:.1} | {rss_mb:.0} |",
                load.name(),
                seen.cpu_us_per_op(),
                seen.leader_cpu_us_per_op()
            );
        }
        text
    }
}
