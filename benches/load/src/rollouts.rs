//! `--rollouts`: what rollouts cost gets and watches, and how fast a stage reaches its readers.
//!
//! One cluster has no rollout and the most rollouts alternately, within each round. So all ratios compare neighbouring
//! minutes of one run. A sender may have half of the rollouts that the others leave, so several access keys send them.
//!
//! **Invariant:** a load is measured only after reads on all nodes have shown which readers see a candidate. A stage has
//! reached its readers when each of the watchers has its candidate.

use std::{
    fmt::Write as _,
    path::Path,
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    cluster::Cluster,
    http::Http,
    load::{Ask, KEY, Load, Speaks, Subject, data, reader},
    report::{Ratios, median, middle, rounded},
    run::{self, Seen, Times, leader_first},
    watch::{self, BYTES, CONFIGS, Watchers},
    watchers::{DEFINITION, Protocol},
};

/// Rollouts of each sender: half of those that the earlier ones leave, so the most that a cluster runs.
const OF_SENDER: [usize; 7] = [32, 16, 8, 4, 2, 1, 1];
const ROLLOUTS: usize = 64;
/// The first rollouts have every reader in their first stage. The others have it in their second stage only.
const EARLY: usize = ROLLOUTS / 2;
/// Names that the clients send.
const READERS: usize = 10_000;
const CLIENTS: usize = 64;
const LOADS: [Load; 2] = [Load::GetLeader, Load::GetLocal];
/// Times in a round that gets are measured without and with rollouts: many short loads say more than few long ones while
/// other programs run.
const TURNS: usize = 3;
/// Stages that are timed in a round, without and with other rollouts each.
const ADVANCES: usize = 3;
/// How long a stage may take to reach its readers.
const ARRIVE_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Between two loads, so that the events and requests of one do not burden the next.
const PAUSE: Duration = Duration::from_millis(300);
/// Reads that show which readers see a candidate, on each node.
const PROBES: usize = 20;
/// The names in proven data begin with the first text, and in candidates with the second.
const NAMES: [&str; 2] = ["config-", "staged-"];

/// Which config is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Config {
    /// One that is in no rollout.
    Outside,
    /// One of a rollout whose first stage has every reader.
    In,
    /// One of a rollout whose first stage has no reader.
    NotIn,
}

impl Config {
    /// The number of the first such config.
    fn first(self) -> usize {
        match self {
            Self::Outside => 0,
            Self::In => CONFIGS,
            Self::NotIn => CONFIGS + EARLY,
        }
    }
}

/// What the table compares.
#[derive(Debug, Clone, Copy)]
struct Case {
    rolling: bool,
    readers: bool,
    config: Config,
}

impl Case {
    /// The config, as the table has it.
    fn config_name(self) -> &'static str {
        match (self.config, self.readers) {
            (Config::Outside, _) => "in no rollout",
            (Config::In | Config::NotIn, false) => "in a rollout",
            (Config::In, true) => "in a rollout, the reader in",
            (Config::NotIn, true) => "in a rollout, the reader not in",
        }
    }
}

const fn case(rolling: bool, readers: bool, config: Config) -> Case {
    Case { rolling, readers, config }
}

/// The first is the one that the others are compared with.
const GETS: [Case; 7] = [
    case(false, false, Config::Outside),
    case(false, true, Config::Outside),
    case(true, false, Config::Outside),
    case(true, false, Config::In),
    case(true, true, Config::Outside),
    case(true, true, Config::NotIn),
    case(true, true, Config::In),
];
/// The same of watches.
const WATCHES: [Case; 4] = [
    case(false, false, Config::Outside),
    case(false, true, Config::Outside),
    case(true, false, Config::Outside),
    case(true, true, Config::Outside),
];

/// How long, and how many watchers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) times: Times,
    pub(crate) watches: watch::Plan,
}

/// Milliseconds from the request that ended a stage.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    responded: f64,
    /// Until half of the readers that came in had the candidate, and until all had it.
    half: f64,
    all: f64,
}

struct World {
    runtime: Runtime,
    cluster: Cluster,
    /// The keys of the senders.
    keys: Vec<String>,
    plan: Plan,
    protocol: Protocol,
}

/// What all rounds showed, in the order of the cases.
#[derive(Default)]
struct Outcomes {
    gets: [[Vec<Seen>; GETS.len()]; LOADS.len()],
    watches: [Vec<watch::Seen>; WATCHES.len()],
    /// Beside as few rollouts as are advanced, and as one of the most.
    arrivals: [Vec<Arrival>; 2],
}

/// The section's text and JSON.
pub(crate) fn section(concord: &Path, data: &Path, plan: Plan) -> Result<(String, Value), String> {
    let runtime = run::runtime()?;
    // The limit is that of a node, so it exceeds the share of each node.
    let watches = plan.watches.watchers.max(10_000);
    let settings = [("CONCORD_WATCHES", watches.to_string())];
    let cluster = Cluster::concord(&runtime, concord, data, &settings)?;
    watch::prepare_more(&cluster, cluster.leader(&runtime)?, ROLLOUTS)?;
    let protocol = if watch::may_connect(plan.watches.watchers) { Protocol::Http1 } else { Protocol::Http2 };
    let mut world = World { runtime, cluster, keys: vec![KEY.to_owned()], plan, protocol };
    world.make_keys()?;
    let mut outcomes = Outcomes::default();
    for round in 0..plan.rounds {
        eprintln!("round {} of {} …", round + 1, plan.rounds);
        for _ in 0..TURNS {
            world.all_gets(false, &mut outcomes)?;
            let changes = world.begin()?;
            world.all_gets(true, &mut outcomes)?;
            world.abort(&changes)?;
        }
        world.all_watches(false, &mut outcomes)?;
        let changes = world.begin()?;
        world.all_watches(true, &mut outcomes)?;
        let advanced = changes[EARLY..EARLY + ADVANCES].iter().cloned().map(Ok);
        outcomes.arrivals[1].extend(world.advance_each(advanced)?);
        world.abort(&changes)?;
        let mut changes = Vec::new();
        let advanced = (EARLY..EARLY + ADVANCES).map(|rollout| {
            let change = world.begin_one(KEY, rollout)?;
            changes.push(change.clone());
            Ok(change)
        });
        outcomes.arrivals[0].extend(world.advance_each(advanced)?);
        world.abort(&changes)?;
    }
    Ok((text(&outcomes, &world), outcomes.json(plan)))
}

impl World {
    fn ask(&self, key: &str, method: Method, path: &str, body: &Value) -> Result<Value, String> {
        let leader = self.cluster.leader(&self.runtime)?;
        let addr = self.cluster.nodes[leader].addr;
        let body = self
            .runtime
            .block_on(async { Http::connect(addr, key).await?.good(method, path, body.to_string()).await })?;
        serde_json::from_slice(&body).map_err(|error| format!("{path}: {error}"))
    }

    /// Makes the keys of the other senders.
    fn make_keys(&mut self) -> Result<(), String> {
        let grants = json!([{"verbs": ["read", "write", "approve"], "definitions": [DEFINITION]}]);
        for n in 1..OF_SENDER.len() {
            let body = json!({"name": format!("sender {n}"), "grants": grants});
            let made = self.ask(KEY, Method::POST, "/api/v1/api_key/", &body)?;
            self.keys.push(text_of(&made, "api_key")?);
        }
        Ok(())
    }

    /// Begins all rollouts; the ids of their change requests.
    fn begin(&self) -> Result<Vec<String>, String> {
        let keys = self.keys.iter().zip(OF_SENDER).flat_map(|(key, count)| std::iter::repeat_n(key, count));
        keys.enumerate().map(|(rollout, key)| self.begin_one(key, rollout)).collect()
    }

    fn begin_one(&self, key: &str, rollout: usize) -> Result<String, String> {
        let n = CONFIGS + rollout;
        let candidate = data(n, 0, BYTES).replace(NAMES[0], NAMES[1]);
        let candidate: Value = serde_json::from_str(&candidate).map_err(|error| error.to_string())?;
        // No stage ends by its time while it is measured.
        let nobody = json!({"labels": {"ring": ["canary"]}, "for_s": 86_400});
        let all = json!({"share": 100, "for_s": 86_400});
        let stages = if rollout < EARLY { json!([all]) } else { json!([nobody, all]) };
        let put = json!({
            "op": "put_config", "config_definition_key": DEFINITION, "config_key": format!("c{n:08}"), "data": candidate
        });
        let body = json!({"title": "in stages", "operations": [put], "rollout": {"stages": stages}});
        let made = self.ask(key, Method::POST, "/api/v1/change_request/", &body)?;
        let (change, digest) = (text_of(&made, "change_id")?, text_of(&made, "digest")?);
        let path = format!("/api/v1/change_request/{change}/apply");
        let begun = self.ask(key, Method::POST, &path, &json!({"digest": digest}))?;
        match begun["data"]["phase"].as_str() {
            Some("rolling") => Ok(change),
            phase => Err(format!("a rollout did not begin: {phase:?}")),
        }
    }

    /// Ends rollouts. No watcher is open: each one that is in would be sent the proven data of all.
    fn abort(&self, changes: &[String]) -> Result<(), String> {
        for change in changes {
            let path = format!("/api/v1/change_request/{change}/abort");
            self.ask(KEY, Method::POST, &path, &json!({}))?;
        }
        Ok(())
    }

    /// Measures gets of each of the cases without, or with, rollouts once, in random order.
    fn all_gets(&self, rolling: bool, outcomes: &mut Outcomes) -> Result<(), String> {
        self.cluster.settle()?;
        for case in GETS.iter().filter(|case| case.rolling == rolling) {
            self.probe(*case)?;
        }
        let mut points: Vec<(usize, usize)> = (0..LOADS.len())
            .flat_map(|load| (0..GETS.len()).map(move |place| (load, place)))
            .filter(|(_, place)| GETS[*place].rolling == rolling)
            .collect();
        fastrand::shuffle(&mut points);
        for (load, place) in points {
            outcomes.gets[load][place].push(self.gets(LOADS[load], GETS[place])?);
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The same of watches.
    fn all_watches(&self, rolling: bool, outcomes: &mut Outcomes) -> Result<(), String> {
        self.cluster.settle()?;
        let mut places: Vec<usize> =
            (0..WATCHES.len()).filter(|place| WATCHES[*place].rolling == rolling).collect();
        fastrand::shuffle(&mut places);
        for place in places {
            let order = leader_first(&self.cluster, self.cluster.leader(&self.runtime)?);
            let watches = watch::Plan { identified: WATCHES[place].readers, ..self.plan.watches };
            let seen = watch::once(&self.cluster, (&order, &order), (watches, self.protocol))?;
            eprintln!("{:?}: {:.2} µs a delivery", WATCHES[place], seen.all_us());
            outcomes.watches[place].push(seen);
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn gets(&self, load: Load, case: Case) -> Result<Seen, String> {
        let readers = if case.readers { READERS } else { 0 };
        let of = Subject { definition: DEFINITION, first: case.config.first(), readers };
        let ask = Ask { load, value_bytes: BYTES, keys: EARLY, of: Some(of) };
        let leader = self.cluster.leader(&self.runtime)?;
        let point = (ask, CLIENTS, self.plan.times);
        let seen = run::measure(&self.cluster, leader, Speaks::Concord, point, &Arc::default())
            .map_err(|error| format!("{} of {case:?}: {error}", load.name()))?;
        eprintln!("{} of {case:?}: {:.2} µs", load.name(), seen.cpu_us_per_op());
        Ok(seen)
    }

    /// Reads configs of the case on each node: all of them are candidates, or none is.
    fn probe(&self, case: Case) -> Result<(), String> {
        let staged = case.rolling && case.readers && case.config == Config::In;
        for node in &self.cluster.nodes {
            self.runtime.block_on(async {
                let mut http = Http::connect(node.addr, KEY).await?;
                for n in 0..PROBES {
                    http.reader = case.readers.then(|| reader(fastrand::usize(..READERS)));
                    let config = case.config.first() + n;
                    let path = format!("/api/v1/config_definition/{DEFINITION}/config/c{config:08}");
                    let body = http.good(Method::GET, &path, String::new()).await?;
                    let name = if staged { NAMES[1] } else { NAMES[0] };
                    // A delivery of an earlier round has replaced the data of configs outside of rollouts.
                    let is_changed = case.config == Config::Outside && has(&body, "sent-");
                    if !has(&body, name) && !is_changed {
                        let read = String::from_utf8_lossy(&body);
                        return Err(format!("{case:?}: expected `{name}` in {read}"));
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Opens watchers that name themselves, and ends the first stage of each of these rollouts.
    fn advance_each(
        &self,
        changes: impl Iterator<Item = Result<String, String>>,
    ) -> Result<Vec<Arrival>, String> {
        let order = leader_first(&self.cluster, self.cluster.leader(&self.runtime)?);
        let plan = watch::Plan { identified: true, ..self.plan.watches };
        let watchers = Watchers::open(&self.cluster, &order, (plan, self.protocol))?;
        let arrivals = changes.map(|change| self.advance(&watchers, &change?)).collect();
        let ended = watchers.end();
        // A watcher's error is the cause of what else failed.
        ended.and(arrivals)
    }

    /// Ends the first stage of a rollout: each watcher gets the candidate.
    fn advance(&self, watchers: &Watchers, change: &str) -> Result<Arrival, String> {
        thread::sleep(PAUSE);
        let count = self.plan.watches.watchers;
        let candidates = || watchers.shared.candidates.lock().unwrap_or_else(PoisonError::into_inner);
        candidates().clear();
        let addr = self.cluster.nodes[self.cluster.leader(&self.runtime)?].addr;
        let path = format!("/api/v1/change_request/{change}/advance");
        let now = || watchers.shared.begin.elapsed();
        let (begin, responded) = self.runtime.block_on(async {
            let mut http = Http::connect(addr, KEY).await?;
            let begin = now();
            http.good(Method::POST, &path, json!({"stage": 0}).to_string()).await?;
            Ok::<_, String>((begin, now()))
        })?;
        let until = Instant::now() + ARRIVE_MAX;
        while candidates().len() < count {
            if Instant::now() > until || watchers.has_failed() {
                return Err(format!("{} of {count} watchers have a candidate", candidates().len()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        let ms = |time: Duration| time.saturating_sub(begin).as_secs_f64() * 1e3;
        let came: Vec<f64> = candidates().iter().map(|time| ms(*time)).collect();
        let all = came.iter().copied().fold(0.0, f64::max);
        let arrival = Arrival { responded: ms(responded), half: middle(came), all };
        eprintln!("{arrival:?}");
        Ok(arrival)
    }
}

fn has(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

fn text_of(answer: &Value, name: &str) -> Result<String, String> {
    let text = answer["data"][name].as_str().map(str::to_owned);
    text.ok_or_else(|| format!("no `{name}` in {answer}"))
}

/// The first columns of a row.
fn columns(case: Case) -> String {
    let rollouts = if case.rolling { ROLLOUTS } else { 0 };
    format!("{rollouts} | {}", if case.readers { "yes" } else { "no" })
}

/// A ratio with the least and the greatest of the rounds.
fn shown(ratios: &Ratios) -> String {
    let (least, greatest) = ratios.spread();
    format!("{:.3} ({least:.2} to {greatest:.2})", ratios.middle())
}

fn text(outcomes: &Outcomes, world: &World) -> String {
    let Plan { rounds, times, watches } = world.plan;
    let mut text = format!(
        "Three nodes, which have no rollout and {ROLLOUTS} rollouts alternately, each of one config of {BYTES} bytes. \
         Figures are medians; a ratio is that of the CPU time of all nodes to the first row of its load or table, measured just \
         before or after. With a reader, each request sends one of {READERS} names.\n\n\
         Gets of one config by {CLIENTS} clients, {} times {} ms after {} ms:\n\n\
         | read | rollouts | reader | config | gets/s | CPU µs: all nodes · leader | ratio (least to greatest) | generator's | p50 ms | p99 ms |\n\
         |---|---:|---|---|---:|---:|---:|---:|---:|---:|\n",
        rounds * TURNS,
        times.measured.as_millis(),
        times.warm.as_millis(),
    );
    for (load, cases) in LOADS.iter().zip(&outcomes.gets) {
        for (case, rounds) in GETS.iter().zip(cases) {
            let seen = median(rounds);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:.2} · {:.2} | {} | {:.2} | {:.2} | {:.2} |",
                load.name(),
                columns(*case),
                case.config_name(),
                seen.ops_per_s,
                seen.cpu_us_per_op(),
                seen.leader_cpu_us_per_op(),
                shown(&ratios(rounds, &cases[0], Seen::cpu_us_per_op)),
                seen.generator_us_per_op(),
                seen.p50_ms,
                seen.p99_ms,
            );
        }
    }
    let _ = write!(
        text,
        "\n{} watches ({}) of one definition, whose {CONFIGS} configs in no rollout are replaced {} times a second, {rounds} \
         times {} ms after {} ms:\n\n\
         | rollouts | reader | changes/s | deliveries/s | CPU µs per delivery: all nodes · leader | ratio (least to greatest) | generator's | p50 ms | p99 ms | biggest node, MB |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        watches.watchers,
        if world.protocol == Protocol::Http1 { "a connection each" } else { "shared connections of HTTP/2" },
        watches.changes_per_s,
        watches.times.measured.as_millis(),
        watches.times.warm.as_millis(),
    );
    for (case, rounds) in WATCHES.iter().zip(&outcomes.watches) {
        let of = |figure: fn(&watch::Seen) -> f64| middle(rounds.iter().map(figure).collect());
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.2} · {:.2} | {} | {:.2} | {:.2} | {:.1} | {:.0} |",
            columns(*case),
            of(|seen| seen.changes_per_s),
            of(|seen| seen.deliveries_per_s),
            of(watch::Seen::all_us),
            of(watch::Seen::leader_us),
            shown(&ratios(rounds, &outcomes.watches[0], watch::Seen::all_us)),
            of(|seen| seen.generator_us),
            of(|seen| seen.p50_ms),
            of(|seen| seen.p99_ms),
            of(|seen| seen.rss_mb),
        );
    }
    let _ = write!(
        text,
        "\nFrom the request `advance` until the {} identified watchers have the candidate, {} times; in brackets \
         the greatest:\n\n\
         | rollouts | response ms | half of the readers, ms | all readers, ms |\n|---:|---:|---:|---:|\n",
        watches.watchers,
        rounds * ADVANCES,
    );
    for (rollouts, arrivals) in
        [format!("1 to {ADVANCES}"), ROLLOUTS.to_string()].iter().zip(&outcomes.arrivals)
    {
        let of = |figure: fn(&Arrival) -> f64| {
            let all: Vec<f64> = arrivals.iter().map(figure).collect();
            let greatest = all.iter().copied().fold(0.0, f64::max);
            format!("{:.1} ({greatest:.1})", middle(all))
        };
        let _ = writeln!(
            text,
            "| {rollouts} | {} | {} | {} |",
            of(|arrival| arrival.responded),
            of(|arrival| arrival.half),
            of(|arrival| arrival.all),
        );
    }
    text
}

/// A figure relative to that of other rounds, in each round.
fn ratios<T>(rounds: &[T], base: &[T], figure: impl Fn(&T) -> f64) -> Ratios {
    let of = |rounds: &[T]| rounds.iter().map(&figure).collect::<Vec<f64>>();
    Ratios::of(&of(rounds), &of(base))
}

impl Outcomes {
    fn json(&self, plan: Plan) -> Value {
        let head = |case: Case| json!({"rolling": case.rolling, "readers": case.readers, "config": case.config_name()});
        let mut gets = Vec::new();
        for (load, cases) in LOADS.iter().zip(&self.gets) {
            for (case, rounds) in GETS.iter().zip(cases) {
                let (mut row, seen) = (head(*case), median(rounds));
                row["load"] = json!(load.name());
                row["ops_per_s"] = json!(seen.ops_per_s.round());
                row["cpu_us_per_op"] = json!(rounded(seen.cpu_us_per_op()));
                row["leader_cpu_us_per_op"] = json!(rounded(seen.leader_cpu_us_per_op()));
                row["cpu_ratio"] = json!(ratios(rounds, &cases[0], Seen::cpu_us_per_op).json());
                gets.push(row);
            }
        }
        let mut watches = Vec::new();
        for (case, rounds) in WATCHES.iter().zip(&self.watches) {
            let of = |figure: fn(&watch::Seen) -> f64| rounded(middle(rounds.iter().map(figure).collect()));
            let mut row = head(*case);
            row["deliveries_per_s"] = json!(of(|seen| seen.deliveries_per_s));
            row["cpu_us_per_op"] = json!(of(watch::Seen::all_us));
            row["leader_cpu_us_per_op"] = json!(of(watch::Seen::leader_us));
            row["cpu_ratio"] = json!(ratios(rounds, &self.watches[0], watch::Seen::all_us).json());
            row["p50_ms"] = json!(of(|seen| seen.p50_ms));
            row["p99_ms"] = json!(of(|seen| seen.p99_ms));
            watches.push(row);
        }
        let arrivals = self.arrivals.iter().zip([ADVANCES, ROLLOUTS]).map(|(arrivals, rollouts)| {
            let of = |figure: fn(&Arrival) -> f64| rounded(middle(arrivals.iter().map(figure).collect()));
            json!({
                "rollouts_most": rollouts,
                "response_ms": of(|arrival| arrival.responded),
                "half_ms": of(|arrival| arrival.half),
                "all_ms": of(|arrival| arrival.all),
            })
        });
        json!({
            "watchers": plan.watches.watchers,
            "gets": gets,
            "watches": watches,
            "advances": arrivals.collect::<Vec<_>>(),
        })
    }
}
