//! Loads a fresh three-node Concord and a fresh three-node etcd in turns, and compares them.
//!
//! `scripts/bench.sh` builds what is needed and runs this. Generator and servers share the machine: what a client
//! costs is missing from its server, so the CPU of all is in the table.

mod bare;
mod big;
mod clients;
mod cluster;
mod files;
mod floor;
mod http;
mod load;
mod long;
mod replicas;
mod report;
mod rollouts;
mod run;
mod watch;
mod watchers;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicUsize},
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use hyper::Method;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    cluster::Cluster,
    http::Http,
    load::{Ask, KEY, LISTED, Load, Speaks, definition, definition_body},
    report::{Compared, Row},
    run::{Seen, Times},
};

/// Between two points, so that what one leaves behind does not burden the next.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Parser)]
struct Args {
    /// The binary of Concord
    #[arg(long)]
    concord: PathBuf,
    /// The binary of etcd; without it Concord is measured alone
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// Where both keep their data
    #[arg(long)]
    data: PathBuf,
    /// The file that gets the table as its first section
    #[arg(long)]
    results: Option<PathBuf>,
    /// The file that gets the rows as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// The points that say most, in less than 5 minutes
    #[arg(long)]
    quick: bool,
    /// Rounds: Concord, etcd, Concord, etcd, …; the table has the medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured milliseconds of a round of a point
    #[arg(long)]
    measured_ms: Option<u64>,
    /// Configs that exist before the loads: 10,000, and of --big 1,000,000
    #[arg(long)]
    keys: Option<usize>,
    /// Only these loads, with commas between
    #[arg(long, value_delimiter = ',')]
    loads: Vec<String>,
    /// Only these numbers of clients, with commas between
    #[arg(long, value_delimiter = ',')]
    clients: Vec<usize>,
    /// Only these sizes of values, with commas between
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    /// Concord alone: to profile it
    #[arg(long)]
    alone: bool,
    /// Instead: updates while snapshots are taken, a node is caught up, an index is built
    #[arg(long)]
    work: bool,
    /// Instead: memory, restart and pages of a million configs
    #[arg(long)]
    big: bool,
    /// Instead: updates for minutes, and what grows
    #[arg(long)]
    long: bool,
    /// Instead: what an axum that does nothing, the disk and the loopback allow here
    #[arg(long)]
    floor: bool,
    /// Instead: watchers of one definition that changes, of both systems
    #[arg(long)]
    watch: bool,
    /// Instead: members without a vote, and what they cost the leader; as many as named, with commas between
    #[arg(long, value_delimiter = ',')]
    replicas: Vec<usize>,
    /// Instead: gets and watches without and with rollouts, and how fast a stage reaches its readers
    #[arg(long)]
    rollouts: bool,
    /// Watchers of --watch and --rollouts, over three nodes
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// Changes a second of --watch and --rollouts
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// Minutes of --long
    #[arg(long, default_value_t = 10)]
    minutes: usize,
}

impl Args {
    fn keys(&self) -> usize {
        self.keys.unwrap_or(10_000)
    }
}

/// What is measured: load, clients, bytes.
fn plan(args: &Args) -> Result<Vec<(Load, usize, usize)>, String> {
    let unknown = args.loads.iter().find(|name| Load::ALL.iter().all(|load| load.name() != *name));
    if let Some(name) = unknown {
        let names: Vec<_> = Load::ALL.iter().map(|load| load.name()).collect();
        return Err(format!("there is no load `{name}`; the loads are: {}", names.join(" ")));
    }
    let chosen = !args.loads.is_empty() || !args.clients.is_empty() || !args.bytes.is_empty();
    let mut points = Vec::new();
    if args.quick && !chosen {
        let quick: [(Load, &[usize]); 12] = [
            (Load::Create, &[64]),
            (Load::UpdateIndexed, &[1, 64, 256]),
            (Load::UpdateIndexedSpread, &[256]),
            (Load::UpdatePlain, &[64]),
            (Load::GetLeader, &[1, 64]),
            (Load::GetSpread, &[64, 256]),
            (Load::GetLocal, &[256]),
            (Load::ListIndexed, &[64]),
            (Load::Mixed, &[256]),
            (Load::MixedDay, &[256]),
            (Load::Transaction, &[16]),
            (Load::ReadMany, &[16]),
        ];
        for (load, clients) in quick {
            points.extend(clients.iter().map(|clients| (load, *clients, 300)));
        }
        points.push((Load::UpdateIndexed, 64, 8192));
        return Ok(points);
    }
    let or =
        |given: &[usize], default: &[usize]| if given.is_empty() { default.to_vec() } else { given.to_vec() };
    for load in Load::ALL {
        if !args.loads.is_empty() && !args.loads.iter().any(|name| name == load.name()) {
            continue;
        }
        for bytes in or(&args.bytes, &[300, 8192]) {
            // 100,000 big values measure the disk's size.
            if load == Load::ListIndexed && bytes > 300 {
                continue;
            }
            // Neither system takes 100 of them as one request.
            if load.operations() > 1 && bytes > 300 {
                continue;
            }
            points.extend(
                or(&args.clients, &[1, 16, 64, 256]).into_iter().map(|clients| (load, clients, bytes)),
            );
        }
    }
    Ok(points)
}

/// Both clusters, and what the rounds have in common.
struct Bench {
    runtime: Runtime,
    concord: Cluster,
    etcd: Option<Cluster>,
    /// How many configs the creating load has made, by system and definition.
    made: BTreeMap<(&'static str, String), Arc<AtomicUsize>>,
}

impl Bench {
    fn start(args: &Args) -> Result<Self, String> {
        let runtime = run::runtime()?;
        let concord = Cluster::concord(&runtime, &args.concord, &args.data, &[])?;
        let etcd = args.etcd.as_ref().filter(|_| !args.alone);
        let etcd = etcd.map(|binary| Cluster::etcd(&runtime, binary, &args.data)).transpose()?;
        Ok(Self { runtime, concord, etcd, made: BTreeMap::new() })
    }

    /// Makes what the points need to be there.
    fn prepare(&self, points: &[(Load, usize, usize)], keys: usize) -> Result<(), String> {
        let wanted: BTreeSet<(String, usize, usize)> = points
            .iter()
            .map(|(load, _, bytes)| {
                let count = match load {
                    Load::Create => 0,
                    Load::ListIndexed => LISTED,
                    _ => keys,
                };
                (definition(*load, *bytes), count, *bytes)
            })
            .collect();
        for (definition, count, bytes) in wanted {
            let begin = Instant::now();
            let leader = self.concord.leader(&self.runtime)?;
            let addr = self.concord.nodes[leader].addr;
            self.runtime.block_on(async {
                let body = definition_body(&definition);
                let mut http = Http::connect(addr, KEY).await?;
                http.good(Method::POST, "/api/v1/config_definition/", body).await
            })?;
            for cluster in [Some(&self.concord), self.etcd.as_ref()].into_iter().flatten() {
                run::fill(cluster, cluster.leader(&self.runtime)?, &definition, (count, bytes))?;
            }
            eprintln!("{definition}: {count} configs made in {:.1} s", begin.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn once(&mut self, speaks: Speaks, ask: Ask, clients: usize, times: Times) -> Result<Seen, String> {
        let (system, cluster) = match (speaks, &self.etcd) {
            (Speaks::Etcd | Speaks::Gateway, Some(etcd)) => ("etcd", etcd),
            _ => ("concord", &self.concord),
        };
        let made = self.made.entry((system, definition(ask.load, ask.value_bytes))).or_default();
        let leader = cluster.leader(&self.runtime)?;
        let seen = run::measure(cluster, leader, speaks, (ask, clients, times), made)
            .map_err(|error| format!("{} by {clients} clients of {system}: {error}", ask.load.name()))?;
        thread::sleep(PAUSE);
        Ok(seen)
    }

    fn point(&mut self, ask: Ask, clients: usize, (rounds, times): (usize, Times)) -> Result<Row, String> {
        // The protocol's share shows where it is biggest: small values, many clients.
        let many = clients >= 64 && ask.value_bytes == 300;
        let http2 = many && ask.load.asks_for_one();
        let gateway = clients == 64 && matches!(ask.load, Load::UpdateIndexed | Load::GetLeader);
        let gateway = many && gateway && self.etcd.is_some();
        let (mut concord, mut by_http2) = (Vec::new(), Vec::new());
        let (mut etcd, mut by_gateway) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            concord.push(self.once(Speaks::Concord, ask, clients, times)?);
            if http2 {
                by_http2.push(self.once(Speaks::ConcordHttp2, ask, clients, times)?);
            }
            if self.etcd.is_none() {
                continue;
            }
            etcd.push(self.once(Speaks::Etcd, ask, clients, times)?);
            if gateway {
                by_gateway.push(self.once(Speaks::Gateway, ask, clients, times)?);
            }
        }
        Ok(Row {
            ask,
            clients,
            concord: Compared::of(&concord, &etcd),
            http2: http2.then(|| Compared::of(&by_http2, &etcd)),
            etcd: report::median(&etcd),
            gateway: gateway.then(|| report::median(&by_gateway)),
        })
    }
}

/// Puts a section before the others of a file, behind what introduces them. The file is replaced as a whole.
fn record(path: &Path, section: &str) -> Result<(), String> {
    let before = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let next = path.with_extension("md.tmp");
    let written = fs::write(&next, report::newest_first(&before, section));
    written.and_then(|()| fs::rename(&next, path)).map_err(|error| format!("{}: {error}", path.display()))
}

/// The loads of the table; the section's text and its JSON.
fn compare(args: &Args) -> Result<(String, Value), String> {
    let begin = Instant::now();
    let points = plan(args)?;
    let (warm, measured) = if args.quick { (300, 1000) } else { (1000, 3000) };
    let measured = Duration::from_millis(args.measured_ms.unwrap_or(measured));
    let times = Times { warm: Duration::from_millis(warm), measured };
    let mut bench = Bench::start(args)?;
    for node in &bench.concord.nodes {
        eprintln!("a node of Concord: process {}", node.pid());
    }
    bench.prepare(&points, args.keys())?;
    let mut rows = Vec::new();
    for (load, clients, value_bytes) in points {
        let ask = Ask { load, value_bytes, keys: args.keys(), of: None };
        let row = bench.point(ask, clients, (args.rounds.max(1), times))?;
        eprintln!(
            "{} × {clients}, {value_bytes} bytes: {:.0}/s, etcd {:.0}/s",
            load.name(),
            row.concord.seen.ops_per_s,
            row.etcd.ops_per_s
        );
        rows.push(row);
    }
    let text = format!(
        "{} configs, medians of {} rounds of {} ms after {} ms of warm-up, {:.0} s in all.\n\n{}",
        args.keys(),
        args.rounds,
        times.measured.as_millis(),
        times.warm.as_millis(),
        begin.elapsed().as_secs_f64(),
        report::table(&rows)
    );
    Ok((text, report::json(&rows)))
}

/// Measures one section, prints it and records it; its members of the file of `--json`.
fn section(
    args: &Args,
    (title, is_recorded): (&str, bool),
    measure: impl FnOnce() -> Result<(String, Value), String>,
) -> Result<Value, String> {
    let head = format!("## {}{title}\n\n{}. ", report::now(), report::machine(&args.data));
    let (text, json) = measure()?;
    let text = head + &text;
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}"))?;
    if let Some(path) = args.results.as_ref().filter(|_| is_recorded) {
        record(path, &text)?;
    }
    Ok(json)
}

fn bench(args: &Args) -> Result<(), String> {
    let (concord, data) = (args.concord.as_path(), args.data.as_path());
    let mut json = report::json(&[]);
    if args.work {
        let measure = || work::section(concord, &data.join("work"), args.keys());
        json["work"] = section(args, (", Concord at other work", true), measure)?;
    }
    if args.big {
        let measure = || big::section(concord, &data.join("big"), args.keys.unwrap_or(1_000_000));
        json["big"] = section(args, (", Concord with many configs", true), measure)?;
    }
    if args.long {
        let measure = || long::section(concord, &data.join("long"), (args.keys(), args.minutes));
        json["long"] = section(args, (", Concord for long", true), measure)?;
    }
    if args.watch {
        let plan = watch::Plan {
            watchers: args.watchers,
            changes_per_s: args.changes,
            rounds: args.rounds,
            times: Times {
                warm: Duration::from_secs(2),
                measured: Duration::from_millis(args.measured_ms.unwrap_or(5000)),
            },
            identified: false,
        };
        let etcd = args.etcd.as_deref().filter(|_| !args.alone);
        let measure = || watch::section((concord, etcd, &data.join("watch")), plan);
        json["watch"] = section(args, (", watches", true), measure)?;
    }
    if !args.replicas.is_empty() {
        let times = Times {
            warm: Duration::from_secs(1),
            measured: Duration::from_millis(args.measured_ms.unwrap_or(5000)),
        };
        let plan = replicas::Plan {
            replicas: args.replicas.clone(),
            rounds: args.rounds.max(1),
            times,
            keys: args.keys(),
        };
        let measure = || replicas::section(concord, &data.join("replicas"), &plan);
        json["replicas"] = section(args, (", replicas", true), measure)?;
    }
    if args.rollouts {
        let measured = |ms| Duration::from_millis(args.measured_ms.unwrap_or(ms));
        let plan = rollouts::Plan {
            rounds: args.rounds.max(1),
            times: Times { warm: Duration::from_millis(300), measured: measured(1000) },
            watches: watch::Plan {
                watchers: args.watchers,
                changes_per_s: args.changes,
                rounds: args.rounds,
                times: Times { warm: Duration::from_secs(1), measured: measured(5000) },
                identified: false,
            },
        };
        let measure = || rollouts::section(concord, &data.join("rollouts"), plan);
        json["rollouts"] = section(args, (", rollouts", true), measure)?;
    }
    if args.floor {
        let measure = || floor::section(&data.join("floor"), args.rounds, args.measured_ms);
        json["floor"] = section(args, (", what this machine allows", true), measure)?;
    }
    let instead = args.work || args.big || args.long || args.floor || args.watch || args.rollouts;
    if !instead && args.replicas.is_empty() {
        let title = if args.quick { ", quick" } else { "" };
        let is_recorded = args.etcd.is_some() && !args.alone;
        json = section(args, (title, is_recorded), || compare(args))?;
    }
    let Some(path) = &args.json else { return Ok(()) };
    fs::write(path, format!("{json:#}\n")).map_err(|error| format!("{}: {error}", path.display()))
}

fn main() -> ExitCode {
    match bench(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
