//! Watches at scale: so many watchers of one definition, spread over all nodes, while its configs change at a fixed rate.
//!
//! Each watcher is an application of its own: to Concord a connection of HTTP/1.1 with server-sent events, to etcd a
//! stream of gRPC on one of the few connections that its client shares. etcd sends a watcher the changes of a prefix, in
//! messages that may hold several; Concord one event for each revision.
//!
//! **Invariant:** a delivery is one change received by one watcher within the measured time, and the processor time is
//! that of all nodes in the same time, the writes included.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use etcd_client::{Client, WatchOptions};
use hdrhistogram::Histogram;
use http_body_util::BodyExt as _;
use hyper::Method;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::MissedTickBehavior};

use crate::{
    cluster::{Cluster, cpu_ticks, rss_mb},
    http::Http,
    load::{Asker, KEY, Speaks, definition_body, etcd},
    report::{Ratios, middle, rounded},
    run::{ETCD_CONNECTIONS, TICKS, Times, histogram, leader_first, runtime},
};

const DEFINITION: &str = "watched-300";
/// Configs that change, one after the other.
const CONFIGS: usize = 100;
/// The bytes of a config.
const BYTES: usize = 300;
/// How long all watchers may take to be open.
const OPEN_MAX: Duration = Duration::from_secs(120);

/// So many watchers, so many changes a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) watchers: usize,
    pub(crate) changes_per_s: usize,
    pub(crate) rounds: usize,
    pub(crate) times: Times,
}

/// What one round showed; the microseconds are of processor time for each delivery.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) changes_per_s: f64,
    pub(crate) deliveries_per_s: f64,
    /// Of each node, the leader first.
    pub(crate) cpu_us: Vec<f64>,
    generator_us: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    rss_mb: f64,
}

impl Seen {
    /// Of all nodes.
    fn all_us(&self) -> f64 {
        self.cpu_us.iter().sum()
    }

    fn leader_us(&self) -> f64 {
        self.cpu_us.first().copied().unwrap_or(0.0)
    }
}

/// What all watchers of a round share.
struct Shared {
    begin: Instant,
    open: AtomicUsize,
    counting: AtomicBool,
    delivered: AtomicU64,
    stop: AtomicBool,
}

/// The section's text and JSON: Concord, and etcd if it is there, in turns.
pub(crate) fn section(
    (concord, etcd, data): (&Path, Option<&Path>, &Path),
    plan: Plan,
) -> Result<(String, Value), String> {
    let runtime = runtime()?;
    let concord = Cluster::concord(&runtime, concord, data, &[])?;
    let etcd = etcd.map(|binary| Cluster::etcd(&runtime, binary, data)).transpose()?;
    let clusters: Vec<(&str, &Cluster)> =
        [Some(("Concord", &concord)), etcd.as_ref().map(|etcd| ("etcd", etcd))]
            .into_iter()
            .flatten()
            .collect();
    for (_, cluster) in &clusters {
        prepare(cluster, cluster.leader(&runtime)?)?;
    }
    let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); clusters.len()];
    for _ in 0..plan.rounds.max(1) {
        for (place, (name, cluster)) in clusters.iter().enumerate() {
            let order = leader_first(cluster, cluster.leader(&runtime)?);
            let round = once(cluster, (&order, &order), plan);
            let round = round.map_err(|error| format!("watches of {name}: {error}"))?;
            eprintln!("{name}: {:.0} deliveries/s, {:.2} µs each", round.deliveries_per_s, round.all_us());
            seen[place].push(round);
        }
    }
    Ok(report(&clusters, &seen, plan))
}

/// Makes the configs that are watched.
pub(crate) fn prepare(cluster: &Cluster, leader: usize) -> Result<(), String> {
    if cluster.speaks == Speaks::Concord {
        let body = definition_body(DEFINITION);
        cluster.ask(&runtime()?, leader, (Method::POST, "/api/v1/config_definition/", body))?;
    }
    crate::run::fill(cluster, leader, DEFINITION, (CONFIGS, BYTES))
}

fn report(clusters: &[(&str, &Cluster)], seen: &[Vec<Seen>], plan: Plan) -> (String, Value) {
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
    let mut systems = serde_json::Map::new();
    for ((name, _), rounds) in clusters.iter().zip(seen) {
        let of = |figure: fn(&Seen) -> f64| middle(rounds.iter().map(figure).collect());
        let (changes, deliveries) = (of(|seen| seen.changes_per_s), of(|seen| seen.deliveries_per_s));
        let (cpu, leader) = (of(Seen::all_us), of(Seen::leader_us));
        let generator = of(|seen| seen.generator_us);
        let (p50, p99, rss) = (of(|seen| seen.p50_ms), of(|seen| seen.p99_ms), of(|seen| seen.rss_mb));
        let share = deliveries / (changes * plan.watchers as f64).max(1.0) * 100.0;
        let _ = writeln!(
            text,
            "| {name} | {changes:.0} | {deliveries:.0} | {share:.1} % | {cpu:.2} · {leader:.2} | {generator:.2} | {p50:.2} | {p99:.1} | {rss:.0} |"
        );
        systems.insert(
            name.to_lowercase(),
            json!({
                "changes_per_s": rounded(changes),
                "deliveries_per_s": deliveries.round(),
                "cpu_us_per_op": rounded(cpu),
                "leader_cpu_us_per_op": rounded(leader),
                "generator_us_per_op": rounded(generator),
                "p50_ms": rounded(p50),
                "p99_ms": rounded(p99),
                "rss_mb": rss.round(),
            }),
        );
    }
    systems.insert("watchers".to_owned(), json!(plan.watchers));
    if let [concord, etcd] = seen {
        let of = |rounds: &[Seen]| rounds.iter().map(Seen::all_us).collect::<Vec<_>>();
        let ratios = Ratios::of(&of(concord), &of(etcd));
        let (least, greatest) = ratios.spread();
        let _ = writeln!(
            text,
            "\nProcessor time of all nodes for each delivery, Concord's by etcd's: {:.2} ({least:.2} to {greatest:.2}).",
            ratios.middle()
        );
        let [ratio, least, greatest] = ratios.json();
        let ratio = json!({ "cpu_ratio": ratio, "cpu_ratio_least": least, "cpu_ratio_greatest": greatest });
        systems.insert("of_etcd".to_owned(), ratio);
    }
    (text, Value::Object(systems))
}

/// One round: the watchers open, on those nodes that are asked; the changes begin, through the first of all nodes, and
/// after the warm-up all is counted for the measured time.
pub(crate) fn once(
    cluster: &Cluster,
    (order, asked): (&[usize], &[usize]),
    plan: Plan,
) -> Result<Seen, String> {
    let shared = Arc::new(Shared {
        begin: Instant::now(),
        open: AtomicUsize::new(0),
        counting: AtomicBool::new(false),
        delivered: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    let addrs: Vec<SocketAddr> = asked.iter().map(|place| cluster.nodes[*place].addr).collect();
    let writes_to = order.first().map(|leader| cluster.nodes[*leader].addr);
    let writes_to = writes_to.ok_or_else(|| "there is no node".to_owned())?;
    let cores = thread::available_parallelism().map_or(1, usize::from).min(8);
    let mut threads: Vec<JoinHandle<Result<Histogram<u64>, String>>> = Vec::new();
    for thread in 0..cores {
        let (shared, addrs, speaks) = (Arc::clone(&shared), addrs.clone(), cluster.speaks);
        let count = (thread..plan.watchers).step_by(cores).count();
        threads.push(thread::spawn(move || watch(speaks, &addrs, count, &shared)));
    }
    let until = Instant::now() + OPEN_MAX;
    while shared.open.load(Relaxed) < plan.watchers {
        if Instant::now() > until || threads.iter().any(JoinHandle::is_finished) {
            shared.stop.store(true, Relaxed);
            let failed = threads.into_iter().find_map(|thread| thread.join().ok().and_then(Result::err));
            return Err(failed.unwrap_or_else(|| "not all watchers are open in time".to_owned()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let writer = {
        let (shared, addr, speaks) = (Arc::clone(&shared), writes_to, cluster.speaks);
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
    let mut all = histogram()?;
    for thread in threads {
        let part = thread.join().map_err(|_| "a thread of the generator panicked".to_owned())??;
        all.add(part).map_err(|error| error.to_string())?;
    }
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
            Speaks::Concord | Speaks::Gateway => Asker::Concord(Http::connect(addr, KEY).await?),
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

/// One thread's watchers. One of them also measures how long its deliveries took: reading the time in each would burden
/// the generator.
fn watch(
    speaks: Speaks,
    addrs: &[SocketAddr],
    count: usize,
    shared: &Arc<Shared>,
) -> Result<Histogram<u64>, String> {
    runtime()?.block_on(async {
        let latencies = Arc::new(Mutex::new(histogram()?));
        let mut set = JoinSet::new();
        let mut clients: Vec<Vec<Client>> = vec![Vec::new(); addrs.len()];
        if speaks == Speaks::Etcd {
            for (of, addr) in clients.iter_mut().zip(addrs) {
                for _ in 0..ETCD_CONNECTIONS {
                    of.push(etcd(*addr).await?);
                }
            }
        }
        for n in 0..count {
            let place = n % addrs.len();
            let measures = (n == 0).then(|| Arc::clone(&latencies));
            let watcher = Watcher { shared: Arc::clone(shared), measures };
            match clients[place].get((n / addrs.len()) % ETCD_CONNECTIONS) {
                Some(client) => set.spawn(watcher.etcd(client.clone())),
                None => set.spawn(watcher.concord(addrs[place])),
            };
        }
        // A watcher waits for its next event: who has to end looks here.
        while !shared.stop.load(Relaxed) {
            if let Ok(Some(ended)) = tokio::time::timeout(Duration::from_millis(20), set.join_next()).await {
                ended.map_err(|error| error.to_string())??;
                return Err("a watch has ended".to_owned());
            }
        }
        set.shutdown().await;
        let all = latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(all)
    })
}

/// When the changes were sent whose values are whole in these bytes: every one, since those that are delivered together
/// have waited for different times.
fn times_sent(bytes: &[u8]) -> impl Iterator<Item = Duration> {
    let starts = bytes.windows(5).enumerate().filter(|(_, part)| *part == b"sent-").map(|(at, _)| at + 5);
    let digits = starts.filter_map(|start| std::str::from_utf8(bytes.get(start..start + 20)?).ok());
    digits.filter_map(|digits| digits.parse().ok()).map(Duration::from_nanos)
}

struct Watcher {
    shared: Arc<Shared>,
    measures: Option<Arc<Mutex<Histogram<u64>>>>,
}

impl Watcher {
    /// So many changes have come; the values of those that are whole are somewhere in `parts`.
    fn received<'a>(&self, changes: u64, parts: impl Iterator<Item = &'a [u8]>) {
        if !self.shared.counting.load(Relaxed) {
            return;
        }
        self.shared.delivered.fetch_add(changes, Relaxed);
        let Some(latencies) = &self.measures else { return };
        let now = self.shared.begin.elapsed();
        let mut latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
        for sent in parts.flat_map(times_sent) {
            let took = u64::try_from(now.saturating_sub(sent).as_nanos()).unwrap_or(u64::MAX);
            latencies.saturating_record(took);
        }
    }

    async fn etcd(self, mut client: Client) -> Result<(), String> {
        let options = WatchOptions::new().with_prefix();
        let watched = client.watch(format!("{DEFINITION}/"), Some(options)).await;
        let mut stream = watched.map_err(|error| error.to_string())?;
        while let Some(message) = stream.message().await.map_err(|error| error.to_string())? {
            if message.created() {
                self.shared.open.fetch_add(1, Relaxed);
                continue;
            }
            let events = message.events();
            self.received(
                events.len() as u64,
                events.iter().filter_map(|event| event.kv()).map(|kv| kv.value()),
            );
        }
        Ok(())
    }

    async fn concord(self, addr: SocketAddr) -> Result<(), String> {
        let mut http = Http::connect(addr, KEY).await?;
        let mut body = http.stream(&format!("/api/v1/watch?definition={DEFINITION}")).await?;
        self.shared.open.fetch_add(1, Relaxed);
        // An event ends with an empty line, which two parts of the body may share.
        let mut after_line = false;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Some(bytes) = frame.data_ref() else { continue };
            let mut events = 0;
            for byte in bytes {
                let is_line = *byte == b'\n';
                events += u64::from(is_line && after_line);
                after_line = is_line && !after_line;
            }
            self.received(events, std::iter::once(&**bytes));
        }
        Ok(())
    }
}
