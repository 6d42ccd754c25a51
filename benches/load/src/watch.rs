//! Watches at scale: so many watchers of one definition, spread over all nodes, while its configs change at a fixed rate.
//!
//! Each watcher is an application of its own: to Concord a connection of HTTP/1.1 with server-sent events, or a stream of
//! HTTP/2, as many applications of one host behind a proxy are; to etcd a stream of gRPC on one of the few connections
//! that its client shares. etcd sends a watcher the changes of a prefix, in messages that may hold several; Concord one
//! event for each revision.
//!
//! **Invariant:** a delivery is one change received by one watcher within the measured time, and the processor time is
//! that of all nodes in the same time, the writes included.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use hyper::Method;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use crate::{
    cluster::{Cluster, cpu_ticks, rss_mb},
    http::Http,
    load::{Asker, KEY, Speaks, definition_body, etcd},
    report::{Ratios, middle, rounded},
    run::{TICKS, Times, histogram, leader_first, runtime},
    watchers::{DEFINITION, Protocol, Shared, watch},
};

/// Configs that change, one after the other.
pub(crate) const CONFIGS: usize = 100;
/// The bytes of a config.
pub(crate) const BYTES: usize = 300;
/// Files that this process has open beside the connections of watchers.
const SPARE_FILES: usize = 200;
/// How long all watchers may take to be open.
const OPEN_MAX: Duration = Duration::from_secs(120);

/// So many watchers, so many changes a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) watchers: usize,
    pub(crate) changes_per_s: usize,
    pub(crate) rounds: usize,
    pub(crate) times: Times,
    /// Whether each watcher names itself as a reader.
    pub(crate) identified: bool,
}

/// What one round showed; the microseconds are of processor time for each delivery.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) changes_per_s: f64,
    pub(crate) deliveries_per_s: f64,
    /// Of each node, the leader first.
    pub(crate) cpu_us: Vec<f64>,
    pub(crate) generator_us: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) rss_mb: f64,
}

impl Seen {
    /// Of all nodes.
    pub(crate) fn all_us(&self) -> f64 {
        self.cpu_us.iter().sum()
    }

    pub(crate) fn leader_us(&self) -> f64 {
        self.cpu_us.first().copied().unwrap_or(0.0)
    }
}

/// One of those that are compared, and what its rounds showed.
struct System<'a> {
    cluster: &'a Cluster,
    protocol: Protocol,
    seen: Vec<Seen>,
}

impl<'a> System<'a> {
    fn new(cluster: &'a Cluster, protocol: Protocol) -> Self {
        Self { cluster, protocol, seen: Vec::new() }
    }

    /// The processor time of all nodes for a delivery, by that of another system in the round beside it.
    fn ratios(&self, other: &Self) -> Ratios {
        let [own, other] =
            [self, other].map(|system| system.seen.iter().map(Seen::all_us).collect::<Vec<_>>());
        Ratios::of(&own, &other)
    }
}

/// The section's text and JSON: Concord, and etcd if it is there, in turns.
pub(crate) fn section(
    (concord, etcd, data): (&Path, Option<&Path>, &Path),
    plan: Plan,
) -> Result<(String, Value), String> {
    let runtime = runtime()?;
    let concord = Cluster::concord(&runtime, concord, data, &[])?;
    let etcd = etcd.map(|binary| Cluster::etcd(&runtime, binary, data)).transpose()?;
    for cluster in std::iter::once(&concord).chain(&etcd) {
        prepare(cluster, cluster.leader(&runtime)?)?;
    }
    let mut systems = vec![System::new(&concord, Protocol::Http1), System::new(&concord, Protocol::Http2)];
    systems.extend(etcd.as_ref().map(|etcd| System::new(etcd, Protocol::Grpc)));
    if !may_connect(plan.watchers) {
        eprintln!("{} connections are more than this process may open: HTTP/1.1 is left out", plan.watchers);
        systems.retain(|system| system.protocol != Protocol::Http1);
    }
    for _ in 0..plan.rounds.max(1) {
        for System { cluster, protocol, seen } in &mut systems {
            let name = protocol.system();
            let order = leader_first(cluster, cluster.leader(&runtime)?);
            let round = once(cluster, (&order, &order), (plan, *protocol));
            let round = round.map_err(|error| format!("watches of {name}: {error}"))?;
            eprintln!("{name}: {:.0} deliveries/s, {:.2} µs each", round.deliveries_per_s, round.all_us());
            seen.push(round);
        }
    }
    Ok(report(&systems, plan))
}

/// Whether this process may open a connection for each watcher.
pub(crate) fn may_connect(watchers: usize) -> bool {
    let sockets_max = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
    sockets_max.is_none_or(|most| watchers + SPARE_FILES <= most)
}

/// Makes the configs that are watched.
pub(crate) fn prepare(cluster: &Cluster, leader: usize) -> Result<(), String> {
    prepare_more(cluster, leader, 0)
}

/// Makes them, and so many that are watched but do not change.
pub(crate) fn prepare_more(cluster: &Cluster, leader: usize, more: usize) -> Result<(), String> {
    if cluster.speaks == Speaks::Concord {
        let body = definition_body(DEFINITION);
        cluster.ask(&runtime()?, leader, (Method::POST, "/api/v1/config_definition/", body))?;
    }
    crate::run::fill(cluster, leader, DEFINITION, (CONFIGS + more, BYTES))
}

fn report(systems: &[System<'_>], plan: Plan) -> (String, Value) {
    let mut text = format!(
        "{} watchers of one definition, spread over three nodes, while its {CONFIGS} configs of {BYTES} bytes are replaced \
         {} times a second through the leader. Medians of {} rounds of {} ms after {} ms.\n\n\
         | system | changes/s | deliveries/s | of what changed | CPU µs per delivery: all nodes · leader | generator's | p50 ms | p99 ms | biggest node, MB |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        plan.watchers,
        plan.changes_per_s,
        plan.rounds,
        plan.times.measured.as_millis(),
        plan.times.warm.as_millis(),
    );
    let mut json = serde_json::Map::new();
    json.insert("watchers".to_owned(), json!(plan.watchers));
    let etcd = systems.iter().find(|system| system.protocol == Protocol::Grpc);
    let mut beside_etcd = String::new();
    for system in systems {
        let mut figures = row(&mut text, system, plan);
        if let Some(etcd) = etcd.filter(|_| system.protocol != Protocol::Grpc) {
            let [ratio, least, greatest] = system.ratios(etcd).json();
            let name = system.protocol.system();
            let _ = write!(
                beside_etcd,
                "\nProcessor time of all nodes for each delivery, {name} by etcd: {ratio:.2} ({least:.2} to {greatest:.2}).\n",
            );
            for (name, ratio) in
                [("cpu_ratio", ratio), ("cpu_ratio_least", least), ("cpu_ratio_greatest", greatest)]
            {
                figures[name] = json!(ratio);
            }
        }
        json.insert(system.protocol.key().to_owned(), figures);
    }
    (text + &beside_etcd, Value::Object(json))
}

/// Adds the row of a system to the table; the same as JSON.
fn row(text: &mut String, system: &System<'_>, plan: Plan) -> Value {
    let of = |figure: fn(&Seen) -> f64| middle(system.seen.iter().map(figure).collect());
    let (changes, deliveries) = (of(|seen| seen.changes_per_s), of(|seen| seen.deliveries_per_s));
    let (cpu, leader) = (of(Seen::all_us), of(Seen::leader_us));
    let generator = of(|seen| seen.generator_us);
    let (p50, p99, rss) = (of(|seen| seen.p50_ms), of(|seen| seen.p99_ms), of(|seen| seen.rss_mb));
    let share = deliveries / (changes * plan.watchers as f64).max(1.0) * 100.0;
    let name = system.protocol.system();
    let _ = writeln!(
        text,
        "| {name} | {changes:.0} | {deliveries:.0} | {share:.1} % | {cpu:.2} · {leader:.2} | {generator:.2} | {p50:.2} | {p99:.1} | {rss:.0} |"
    );
    json!({
        "changes_per_s": rounded(changes),
        "deliveries_per_s": deliveries.round(),
        "cpu_us_per_op": rounded(cpu),
        "leader_cpu_us_per_op": rounded(leader),
        "generator_us_per_op": rounded(generator),
        "p50_ms": rounded(p50),
        "p99_ms": rounded(p99),
        "rss_mb": rss.round(),
    })
}

/// Watchers that are open.
pub(crate) struct Watchers {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<Histogram<u64>, String>>>,
}

impl Watchers {
    /// Opens them, on those nodes that are asked.
    pub(crate) fn open(
        cluster: &Cluster,
        asked: &[usize],
        (plan, protocol): (Plan, Protocol),
    ) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            begin: Instant::now(),
            open: AtomicUsize::new(0),
            counting: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            identified: plan.identified,
            candidates: Mutex::default(),
        });
        let addrs: Vec<SocketAddr> = asked.iter().map(|place| cluster.nodes[*place].addr).collect();
        let cores = thread::available_parallelism().map_or(1, usize::from).min(8);
        let mut threads = Vec::new();
        for thread in 0..cores {
            let (shared, addrs) = (Arc::clone(&shared), addrs.clone());
            let numbers = (thread..plan.watchers).step_by(cores);
            threads.push(thread::spawn(move || watch(protocol, &addrs, (numbers, &shared))));
        }
        let watchers = Self { shared, threads };
        let until = Instant::now() + OPEN_MAX;
        while watchers.shared.open.load(Relaxed) < plan.watchers {
            if Instant::now() > until || watchers.has_failed() {
                let failed = watchers.end().err();
                return Err(failed.unwrap_or_else(|| "not all watchers are open in time".to_owned()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(watchers)
    }

    /// Whether some of them have ended.
    pub(crate) fn has_failed(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends them; how long the deliveries took that were timed.
    pub(crate) fn end(self) -> Result<Histogram<u64>, String> {
        self.shared.stop.store(true, Relaxed);
        let mut all = histogram()?;
        for thread in self.threads {
            let part = thread.join().map_err(|_| "a thread of the generator panicked".to_owned())??;
            all.add(part).map_err(|error| error.to_string())?;
        }
        Ok(all)
    }
}

/// One round: the watchers open, on those nodes that are asked; the changes begin, through the first of all nodes, and
/// after the warm-up all is counted for the measured time.
pub(crate) fn once(
    cluster: &Cluster,
    (order, asked): (&[usize], &[usize]),
    (plan, protocol): (Plan, Protocol),
) -> Result<Seen, String> {
    let watchers = Watchers::open(cluster, asked, (plan, protocol))?;
    let shared = &watchers.shared;
    let writes_to = order.first().map(|leader| cluster.nodes[*leader].addr);
    let writes_to = writes_to.ok_or_else(|| "there is no node".to_owned())?;
    let writer = {
        let (shared, addr, speaks) = (Arc::clone(shared), writes_to, cluster.speaks);
        thread::spawn(move || change(speaks, addr, plan.changes_per_s, &shared))
    };
    thread::sleep(plan.times.warm);
    let pids: Vec<u32> = order.iter().map(|place| cluster.nodes[*place].pid()).collect();
    let ticks = || pids.iter().map(|pid| cpu_ticks(*pid)).collect::<Vec<u64>>();
    let own = || cpu_ticks(std::process::id());
    let (before, own_before, began) = (ticks(), own(), Instant::now());
    shared.counting.store(true, Relaxed);
    thread::sleep(plan.times.measured);
    let delivered = shared.delivered.load(Relaxed) as f64;
    let (after, own_after, took) = (ticks(), own(), began.elapsed().as_secs_f64());
    shared.stop.store(true, Relaxed);
    let rss_mb = pids.iter().map(|pid| rss_mb(*pid)).fold(0.0, f64::max);
    let changes = writer.join().map_err(|_| "the writer panicked".to_owned())??;
    let all = watchers.end()?;
    let us = |ticks: u64| ticks as f64 / TICKS * 1e6 / delivered.max(1.0);
    Ok(Seen {
        changes_per_s: changes,
        deliveries_per_s: delivered / took,
        cpu_us: before.iter().zip(&after).map(|(before, after)| us(after - before)).collect(),
        generator_us: us(own_after - own_before),
        p50_ms: all.value_at_quantile(0.5) as f64 / 1e6,
        p99_ms: all.value_at_quantile(0.99) as f64 / 1e6,
        rss_mb,
    })
}

/// Replaces one config after the other at the rate until it is stopped; the rate that was reached while it was counted.
/// The data's name says when it was sent.
fn change(speaks: Speaks, addr: SocketAddr, per_s: usize, shared: &Shared) -> Result<f64, String> {
    runtime()?.block_on(async {
        let mut asker = match speaks {
            Speaks::Etcd => Asker::Etcd(Box::new(etcd(addr).await?.kv_client())),
            _ => Asker::Concord(Http::connect(addr, KEY).await?),
        };
        let mut ticks =
            tokio::time::interval(Duration::from_secs(1) / u32::try_from(per_s.max(1)).unwrap_or(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (mut made, mut began) = (0_u64, None);
        for n in 0.. {
            ticks.tick().await;
            if shared.stop.load(Relaxed) {
                break;
            }
            let sent = shared.begin.elapsed().as_nanos();
            let pad = "x".repeat(BYTES - 100);
            let data = format!(
                r#"{{"name":"sent-{sent:020}","group":{},"tier":"tier-0001","count":{},"pad":"{pad}"}}"#,
                n % 7,
                n
            );
            asker.put(DEFINITION, n % CONFIGS, data).await?;
            if shared.counting.load(Relaxed) {
                began.get_or_insert_with(Instant::now);
                made += 1;
            }
        }
        let took = began.map_or(1.0, |began: Instant| began.elapsed().as_secs_f64());
        Ok(made as f64 / took.max(f64::MIN_POSITIVE))
    })
}
