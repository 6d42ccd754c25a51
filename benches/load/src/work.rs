//! `--work`: what snapshots, a member that is caught up and an index build cost those who write meanwhile.
//!
//! Each is a load of its own: quiet first, then the work, by the same clients, so both rows of a figure come from the
//! same minute. The state holds the configs that are written and [`LISTED`] others, which do not compress: a snapshot
//! of the former alone would be over before anything could be measured.
//!
//! **Invariant:** what is told as *during* overlapped the work, which was seen in the files of a node or told by the
//! API; else it is an error. While a snapshot is written, nothing counts but for the first row.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    clients::{Clients, ELSE, Figures, QUIET, WORK},
    cluster::Cluster,
    files,
    load::{Ask, LISTED, Load, definition, definition_body},
    report::rounded,
    run,
};

const CLIENTS: usize = 64;
const VALUE_BYTES: usize = 300;
const WARM: Duration = Duration::from_secs(2);
const QUIET_MIN: Duration = Duration::from_secs(8);
/// A snapshot is due after so much log, or its own weight if that is more: every ten seconds or so of this load.
const SNAPSHOT_LOG_BYTES: usize = 8 << 20;
/// How often it is looked what is going on.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// What follows a snapshot, as cutting the log, counts as a part of it.
const TAIL: Duration = Duration::from_millis(200);
const WORK_MAX: Duration = Duration::from_secs(120);
/// Fewer requests have no 99th percentile.
const REQUESTS_MIN: u64 = 1000;
/// Times that a node is caught up, and an index built.
const ROUNDS: usize = 2;
/// Snapshots of each node.
const SNAPSHOTS: usize = 3;

struct World {
    runtime: Runtime,
    cluster: Cluster,
    leader: usize,
    ask: Ask,
}

/// A row of the table.
struct Outcome {
    during: &'static str,
    /// How it is known that it was.
    seen: String,
    quiet: Figures,
    work: Figures,
}

/// Looks all the time what the nodes do, and tells the clients.
struct Watch {
    /// What is done to the cluster, as whoever does it says.
    stage: Arc<AtomicU8>,
    stop: Arc<AtomicBool>,
    /// Begun by any node while something was measured.
    snapshots: Arc<AtomicUsize>,
    /// Gives the seconds of each phase.
    thread: JoinHandle<[f64; 3]>,
}

impl Watch {
    fn start(homes: Vec<PathBuf>, phase: Arc<AtomicU8>, snapshots_are_work: bool) -> Self {
        let (stage, stop) = (Arc::new(AtomicU8::new(ELSE)), Arc::new(AtomicBool::new(false)));
        let snapshots = Arc::new(AtomicUsize::new(0));
        let (its_stage, its_stop, its_snapshots) = (stage.clone(), stop.clone(), snapshots.clone());
        let thread = thread::spawn(move || {
            let (mut seconds, mut looked) = ([0.0; 3], Instant::now());
            let mut writing = vec![false; homes.len()];
            let mut written: Option<Instant> = None;
            while !its_stop.load(Relaxed) {
                for (home, was) in homes.iter().zip(&mut writing) {
                    let is = files::writes_snapshot(home);
                    let begun = is && !*was && its_stage.load(Relaxed) != ELSE;
                    its_snapshots.fetch_add(usize::from(begun), Relaxed);
                    *was = is;
                }
                if writing.contains(&true) {
                    written = Some(Instant::now());
                }
                let busy = written.is_some_and(|written| written.elapsed() < TAIL);
                let now = match (its_stage.load(Relaxed), busy) {
                    (QUIET, true) if snapshots_are_work => WORK,
                    (_, true) => ELSE,
                    (stage, false) => stage,
                };
                let before = usize::from(phase.swap(now, Relaxed));
                seconds[before] += looked.elapsed().as_secs_f64();
                looked = Instant::now();
                thread::sleep(POLL_INTERVAL);
            }
            phase.store(ELSE, Relaxed);
            seconds
        });
        Self { stage, stop, snapshots, thread }
    }

    fn stage(&self, stage: u8) {
        self.stage.store(stage, Relaxed);
    }

    fn end(self) -> Result<[f64; 3], String> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| "the watching thread panicked".to_owned())
    }
}

/// Loads the cluster while something is done to it.
fn during(
    world: &mut World,
    what: &'static str,
    snapshots_are_work: bool,
    work: impl FnOnce(&mut World, &Watch) -> Result<String, String>,
) -> Result<Outcome, String> {
    eprintln!("{what} …");
    let homes = world.cluster.nodes.iter().map(|node| node.home.clone()).collect();
    let clients = Clients::start(world.cluster.nodes[world.leader].addr, world.ask, CLIENTS)?;
    let watch = Watch::start(homes, clients.phase.clone(), snapshots_are_work);
    thread::sleep(WARM);
    let worked = work(world, &watch);
    let seconds = watch.end()?;
    let taken = clients.take();
    // A client's error is the cause of what else failed.
    clients.end()?;
    let (seen, [quiet, work]) = (worked?, taken?);
    let quiet = Figures::of(&quiet, seconds[usize::from(QUIET)]);
    let work = Figures::of(&work, seconds[usize::from(WORK)]);
    if quiet.requests < REQUESTS_MIN || work.requests < REQUESTS_MIN {
        return Err(format!(
            "{what}: {} requests in quiet and {} during it are too few to tell",
            quiet.requests, work.requests
        ));
    }
    Ok(Outcome { during: what, seen, quiet, work })
}

/// Looks until it is so.
fn until(what: &str, mut is: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let end = Instant::now() + WORK_MAX;
    while !is()? {
        if Instant::now() > end {
            return Err(format!("{what}: not within {} s", WORK_MAX.as_secs()));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn snapshots(world: &mut World, watch: &Watch) -> Result<String, String> {
    watch.stage(QUIET);
    let wanted = SNAPSHOTS * world.cluster.nodes.len();
    until("snapshots are written", || Ok(watch.snapshots.load(Relaxed) >= wanted))?;
    for node in &world.cluster.nodes {
        until("a snapshot ends", || Ok(!files::writes_snapshot(&node.home)))?;
    }
    thread::sleep(TAIL);
    Ok(format!("{} snapshots of a node", watch.snapshots.load(Relaxed)))
}

fn catching_up(world: &mut World, watch: &Watch) -> Result<String, String> {
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        watch.stage(QUIET);
        thread::sleep(QUIET_MIN);
        watch.stage(ELSE);
        let places = world.cluster.nodes.len();
        let (follower, other) =
            ((world.leader + 1 + round % 2) % places, (world.leader + 2 - round % 2) % places);
        let status = get(world, follower, "/api/v1/cluster")?;
        let has = status["data"]["revision"].as_u64().ok_or("a status without a revision")?;
        let home = &world.cluster.nodes[follower].home;
        until("a snapshot ends", || Ok(!files::writes_snapshot(home)))?;
        world.cluster.nodes[follower].kill()?;
        for place in [world.leader, other] {
            let home = &world.cluster.nodes[place].home;
            until("the log is cut", || Ok(files::log_floor(home) > has))?;
        }
        watch.stage(WORK);
        let begin = Instant::now();
        world.cluster.nodes[follower].start()?;
        took.push(caught_up(world, follower, begin)?);
    }
    watch.stage(ELSE);
    Ok(format!("{ROUNDS} nodes, ready after {} s, by a snapshot", took.join(" and ")))
}

/// Waits until a node that was started is ready; it must have received a snapshot on the way.
fn caught_up(world: &mut World, follower: usize, begin: Instant) -> Result<String, String> {
    let node = &mut world.cluster.nodes[follower];
    let (home, done) = (node.home.clone(), AtomicBool::new(false));
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut received = false;
            while !done.load(Relaxed) {
                received |= files::receives_snapshot(&home);
                thread::sleep(Duration::from_millis(1));
            }
            received
        });
        let ready = node.ready(&world.runtime);
        let took = begin.elapsed().as_secs_f64();
        done.store(true, Relaxed);
        match (ready, looking.join()) {
            (Err(error), _) => Err(error),
            (Ok(()), Ok(true)) => Ok(format!("{took:.1}")),
            _ => Err("the node caught up without a snapshot".to_owned()),
        }
    })
}

fn building(world: &mut World, watch: &Watch) -> Result<String, String> {
    let listed = definition(Load::ListIndexed, VALUE_BYTES);
    let path = format!("/api/v1/config_definition/{listed}");
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        watch.stage(QUIET);
        thread::sleep(QUIET_MIN);
        watch.stage(ELSE);
        world.ask(world.leader, Method::PUT, &path, r#"{"indexes":["group","tier"]}"#)?;
        let begin = Instant::now();
        watch.stage(WORK);
        world.ask(world.leader, Method::PUT, &path, r#"{"indexes":["group","tier","count"]}"#)?;
        let mut steps = 0;
        until("an index is built", || {
            let indexes = get(world, world.leader, &format!("{path}/indexes"))?;
            let indexes = indexes["data"]["indexes"].as_array().cloned().unwrap_or_default();
            let ready = indexes.len() == 3 && indexes.iter().all(|index| index["state"] == "ready");
            steps += usize::from(!ready);
            thread::sleep(POLL_INTERVAL * 4);
            Ok(ready)
        })?;
        if steps < 10 {
            return Err("the index was there before anything could be measured".to_owned());
        }
        took.push(format!("{:.1}", begin.elapsed().as_secs_f64()));
    }
    watch.stage(ELSE);
    Ok(format!("{ROUNDS} builds over {LISTED} configs in {} s", took.join(" and ")))
}

impl World {
    fn ask(&self, place: usize, method: Method, path: &str, body: &str) -> Result<Value, String> {
        self.cluster.ask(&self.runtime, place, (method, path, body.to_owned()))
    }
}

fn get(world: &World, place: usize, path: &str) -> Result<Value, String> {
    world.ask(place, Method::GET, path, "")
}

/// Measures all three; the section's text and its JSON.
pub(crate) fn section(binary: &Path, data: &Path, keys: usize) -> Result<(String, Value), String> {
    let runtime = run::runtime()?;
    let settings = [("CONCORD_SNAPSHOT_LOG_BYTES", SNAPSHOT_LOG_BYTES.to_string())];
    let cluster = Cluster::concord(&runtime, binary, data, &settings)?;
    let leader = cluster.leader(&runtime)?;
    let ask = Ask { load: Load::UpdateIndexed, value_bytes: VALUE_BYTES, keys, of: None };
    let mut world = World { runtime, cluster, leader, ask };
    for (name, count) in [(ask.definition(), keys), (definition(Load::ListIndexed, VALUE_BYTES), LISTED)] {
        world.ask(leader, Method::POST, "/api/v1/config_definition/", &definition_body(&name))?;
        run::fill_batches(world.cluster.nodes[leader].addr, &name, (count, VALUE_BYTES))?;
    }
    world.cluster.settle()?;
    let outcomes = [
        during(&mut world, "snapshots are taken", true, snapshots)?,
        during(&mut world, "a node is caught up", false, catching_up)?,
        during(&mut world, "an index is built", false, building)?,
    ];
    let rows: Vec<Value> = outcomes.iter().map(Outcome::json).collect();
    Ok((text(&outcomes, keys), json!(rows)))
}

impl Outcome {
    fn ratio(&self) -> f64 {
        self.work.p99_ms / self.quiet.p99_ms.max(f64::MIN_POSITIVE)
    }

    fn json(&self) -> Value {
        json!({
            "while": self.during,
            "seen": self.seen,
            "load": Load::UpdateIndexed.name(),
            "clients": CLIENTS,
            "value_bytes": VALUE_BYTES,
            "quiet": self.quiet.json(),
            "work": self.work.json(),
            "p99_ratio": rounded(self.ratio()),
        })
    }
}

fn text(outcomes: &[Outcome], keys: usize) -> String {
    let mut text = format!(
        "Updates of an indexed field of {keys} configs of {VALUE_BYTES} bytes by {CLIENTS} clients, {LISTED} other configs beside them, while the nodes do other work, and in quiet before and between. A snapshot is due after {} MiB of log or its own weight.\n\n| while | seen | s | ops/s | p50 ms | p99 ms | quiet: s | ops/s | p50 ms | p99 ms | p99 ratio |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        SNAPSHOT_LOG_BYTES >> 20
    );
    for outcome in outcomes {
        let half = |figures: &Figures| {
            let Figures { seconds, ops_per_s, p50_ms, p99_ms, .. } = figures;
            format!("{seconds:.1} | {ops_per_s:.0} | {p50_ms:.2} | {p99_ms:.2}")
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | **{:.2}** |",
            outcome.during,
            outcome.seen,
            half(&outcome.work),
            half(&outcome.quiet),
            outcome.ratio()
        );
    }
    text
}
