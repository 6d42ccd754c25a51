//! `--floor`: what no service of this shape can beat on this machine: an answer of axum that does nothing, an fsync of
//! a log, a round trip between two nodes.
//!
//! Generator and servers share the cores, and three nodes share one disk. So there is a rate that no code reaches
//! here, and a time that no write undercuts; both are measured as the loads are, instead of being asserted: by the
//! same generator with the same requests, on the same disk, in one run.
//!
//! **Invariant:** no node of Concord takes part; what it adds is what lies between these figures and those of the loads.

use std::{
    fmt::Write as _,
    io,
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    bare::{ENTRY_BYTES, SYNCS, TRIPS, round_trips, syncs_at_once},
    cluster::Cluster,
    load::{Ask, Load, Speaks},
    report::{median, middle, rounded},
    run::{self, Seen, Times},
};

/// Of the value in a PUT.
const VALUE_BYTES: usize = 300;
const NODES: usize = 3;
const WARM: Duration = Duration::from_millis(300);
const MEASURED_MS: u64 = 800;

/// What the servers are asked for.
#[derive(Debug, Clone, Copy)]
struct Point {
    processes: usize,
    load: Load,
    clients: usize,
}

impl Point {
    fn all() -> Vec<Self> {
        let of = |processes, load, clients: &[usize]| -> Vec<Self> {
            clients.iter().map(|clients| Self { processes, load, clients: *clients }).collect()
        };
        [
            of(1, Load::GetLeader, &[1, 64, 256]),
            of(1, Load::UpdatePlain, &[1, 64, 256]),
            of(NODES, Load::GetLocal, &[64, 256]),
            of(NODES, Load::UpdateIndexedSpread, &[64, 256]),
        ]
        .concat()
    }

    fn name(&self) -> &'static str {
        if matches!(self.load, Load::GetLeader | Load::GetLocal) { "GET" } else { "PUT" }
    }

    fn measure(&self, servers: &Cluster, times: Times) -> Result<Seen, String> {
        let ask = Ask { load: self.load, value_bytes: VALUE_BYTES, keys: 10_000, of: None };
        let made = Arc::new(AtomicUsize::new(0));
        run::measure(servers, 0, Speaks::Concord, (ask, self.clients, times), &made)
    }
}

/// Median and p99 of milliseconds.
fn quantiles(mut took: Vec<f64>) -> (f64, f64) {
    took.sort_by(f64::total_cmp);
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or(0.0);
    (middle(took), p99)
}

/// How entries are written: on so many files at once, and whether over bytes that are there already.
const DISK: [(&str, usize, bool); 4] = [
    ("appended to one file", 1, false),
    ("written over what one file holds", 1, true),
    ("appended to three files at once", NODES, false),
    ("written over what three files hold, at once", NODES, true),
];

/// What one turn showed, or the medians of some.
struct Floor {
    answers: Vec<Seen>,
    /// Median and p99 in ms of each of [`DISK`].
    disk: Vec<(f64, f64)>,
    /// On one core, between two.
    trips_us: [f64; 2],
}

impl Floor {
    fn turn(servers: &[Cluster; 2], data: &Path, points: &[Point], times: Times) -> Result<Self, String> {
        let [one, three] = servers;
        let ask = |point: &Point| point.measure(if point.processes == 1 { one } else { three }, times);
        let answers = points.iter().map(ask).collect::<Result<_, _>>()?;
        let written = DISK.iter().map(|(_, count, over)| syncs_at_once(data, *count, *over).map(quantiles));
        let disk = written.collect::<io::Result<_>>();
        let disk = disk.map_err(|error| format!("{}: {error}", data.display()))?;
        let trips_us = round_trips().map_err(|error| format!("loopback: {error}"))?;
        Ok(Self { answers, disk, trips_us })
    }

    fn median(turns: &[Self]) -> Self {
        let answers =
            |place: usize| median(&turns.iter().map(|turn| turn.answers[place].clone()).collect::<Vec<_>>());
        let of = |figure: &dyn Fn(&Self) -> f64| middle(turns.iter().map(figure).collect());
        Self {
            answers: (0..turns.first().map_or(0, |turn| turn.answers.len())).map(answers).collect(),
            disk: (0..DISK.len())
                .map(|place| (of(&|turn| turn.disk[place].0), of(&|turn| turn.disk[place].1)))
                .collect(),
            trips_us: [0, 1].map(|place: usize| of(&|turn| turn.trips_us[place])),
        }
    }

    /// What a write by one client takes at least, where logs grow and where they are written over: the answer, and
    /// behind the leader one round trip with an fdatasync at its end, while the other nodes have theirs.
    fn write_ms(&self, points: &[Point]) -> [f64; 2] {
        let is_it = |(point, _): &(&Point, &Seen)| point.name() == "PUT" && point.clients == 1;
        let put = points.iter().zip(&self.answers).find(is_it).map_or(0.0, |(_, seen)| seen.p50_ms);
        [2, 3].map(|place: usize| put + self.trips_us[0].min(self.trips_us[1]) / 1e3 + self.disk[place].0)
    }

    fn json(&self, points: &[Point]) -> Value {
        let answer = |(point, seen): (&Point, &Seen)| {
            json!({
                "method": point.name(),
                "processes": point.processes,
                "clients": point.clients,
                "ops_per_s": seen.ops_per_s.round(),
                "p50_ms": rounded(seen.p50_ms),
                "p99_ms": rounded(seen.p99_ms),
                "cpu_us_per_op": rounded(seen.cpu_us_per_op()),
            })
        };
        let disk = |((name, ..), (median, p99)): (&(&str, usize, bool), &(f64, f64))| json!({ "how": name, "median_ms": rounded(*median), "p99_ms": rounded(*p99) });
        json!({
            "answers": points.iter().zip(&self.answers).map(answer).collect::<Vec<_>>(),
            "fdatasync": DISK.iter().zip(&self.disk).map(disk).collect::<Vec<_>>(),
            "round_trip_us": self.trips_us.map(rounded),
            "write_by_one_client_ms": self.write_ms(points).map(rounded),
        })
    }

    fn text(&self, points: &[Point], (turns, times): (usize, Times)) -> String {
        let mut text = format!(
            "No Concord and no etcd: medians of {turns} turns. Requests are the loads' own, by the same generator, for {} ms after {} ms of warm-up, to an axum that answers each with the same {VALUE_BYTES} bytes; of a PUT it reads and parses the body first.\n\n| axum that does nothing | processes | clients | ops/s | p50 ms | p99 ms | CPU % of a core: servers · generator | CPU µs/op, servers |\n|---|---:|---:|---:|---:|---:|---|---:|\n",
            times.measured.as_millis(),
            times.warm.as_millis()
        );
        for (point, seen) in points.iter().zip(&self.answers) {
            let Seen { ops_per_s, p50_ms, p99_ms, generator_cpu, .. } = seen;
            let (cpu, Point { processes, clients, .. }) = (seen.cpu.iter().sum::<f64>(), point);
            let _ = writeln!(
                text,
                "| {} | {processes} | {clients} | {ops_per_s:.0} | {p50_ms:.3} | {p99_ms:.2} | {cpu:.0} · {generator_cpu:.0} | {:.0} |",
                point.name(),
                cpu * 1e4 / ops_per_s.max(1.0)
            );
        }
        let _ = writeln!(
            text,
            "\n| {ENTRY_BYTES} bytes and their fdatasync, {SYNCS} times | median ms | p99 ms |\n|---|---:|---:|"
        );
        for ((name, ..), (median, p99)) in DISK.iter().zip(&self.disk) {
            let _ = writeln!(text, "| {name} | {median:.3} | {p99:.2} |");
        }
        let [grown, over] = self.write_ms(points);
        let _ = writeln!(
            text,
            "\n| {ENTRY_BYTES} bytes to another thread and back over loopback, {TRIPS} times | median µs |\n|---|---:|\n| on one core | {:.1} |\n| between two cores | {:.1} |\n\nThe PUT by one client, the quicker round trip and an fdatasync beside two others take {grown:.2} ms by their medians, or {over:.2} ms where a log is written over what it holds: the floor of a write by one client.",
            self.trips_us[0], self.trips_us[1]
        );
        text
    }
}

/// Measures it; the section's text and its JSON.
pub(crate) fn section(
    data: &Path,
    turns: usize,
    measured_ms: Option<u64>,
) -> Result<(String, Value), String> {
    let measured = Duration::from_millis(measured_ms.unwrap_or(MEASURED_MS));
    let (times, turns) = (Times { warm: WARM.min(measured), measured }, turns.max(1));
    let runtime = run::runtime()?;
    let servers = [
        Cluster::fixed(&runtime, &data.join("one"), 1)?,
        Cluster::fixed(&runtime, &data.join("three"), NODES)?,
    ];
    let points = Point::all();
    let mut seen = Vec::new();
    for turn in 0..turns {
        seen.push(Floor::turn(&servers, data, &points, times)?);
        eprintln!("turn {} of {turns}", turn + 1);
    }
    let floor = Floor::median(&seen);
    Ok((floor.text(&points, (turns, times)), floor.json(&points)))
}
