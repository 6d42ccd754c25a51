//! One point: so many clients in a closed loop, for so long, against one cluster.
//!
//! The clients are shared out over one thread per core, each with a runtime of its own, so that no client moves
//! between cores. A request counts when it was answered within the measured time; an error ends the run.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use hyper::Method;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    cluster::{Cluster, cpu_ticks, disk_flushes, rss_mb},
    http::{Http, Http2},
    load::{Ask, Asker, GROUPS, KEY, Speaks, etcd, noisy},
};

/// Connections of HTTP/2 per thread and node: many clients share one.
pub(crate) const SHARED_CONNECTIONS: usize = 4;
/// Clock ticks of `/proc` in a second.
pub(crate) const TICKS: f64 = 100.0;

/// How long a point lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) warm: Duration,
    pub(crate) measured: Duration,
}

/// What one round of one point showed.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) ops_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    /// Percent of one core: each node, the leader first.
    pub(crate) cpu: Vec<f64>,
    pub(crate) generator_cpu: f64,
    /// Of the biggest node.
    pub(crate) rss_mb: f64,
    pub(crate) flushes_per_s: f64,
}

impl Seen {
    /// Microseconds of processor time that all nodes together spent on one operation.
    pub(crate) fn cpu_us_per_op(&self) -> f64 {
        self.us_per_op(self.cpu.iter().sum())
    }

    /// The leader's part of it.
    pub(crate) fn leader_cpu_us_per_op(&self) -> f64 {
        self.us_per_op(self.cpu.first().copied().unwrap_or(0.0))
    }

    /// What the generator spent on one operation.
    pub(crate) fn generator_us_per_op(&self) -> f64 {
        self.us_per_op(self.generator_cpu)
    }

    fn us_per_op(&self, percent: f64) -> f64 {
        percent * 1e4 / self.ops_per_s.max(1.0)
    }
}

struct Part {
    ask: Ask,
    speaks: Speaks,
    targets: Vec<SocketAddr>,
    /// The numbers of the clients of this thread.
    clients: Vec<usize>,
    made: Arc<AtomicUsize>,
    ready: Arc<Barrier>,
    times: Times,
}

impl Part {
    async fn connect(&self) -> Result<Vec<Asker>, String> {
        let per_target = self.clients.len().div_ceil(self.targets.len()).min(SHARED_CONNECTIONS);
        let (mut of_etcd, mut of_concord) = (Vec::new(), Vec::new());
        for target in &self.targets {
            let (mut clients, mut connections) = (Vec::new(), Vec::new());
            for _ in 0..per_target {
                match self.speaks {
                    Speaks::Etcd => clients.push(etcd(*target).await?),
                    Speaks::ConcordHttp2 => connections.push(Http2::connect(*target, KEY).await?),
                    Speaks::Concord | Speaks::Gateway => {}
                }
            }
            of_etcd.push(clients);
            of_concord.push(connections);
        }
        let mut askers = Vec::new();
        for (place, client) in self.clients.iter().enumerate() {
            let (target, share) = (client % self.targets.len(), (place / self.targets.len()) % per_target);
            askers.push(match self.speaks {
                Speaks::Concord => Asker::Concord(Http::connect(self.targets[target], KEY).await?),
                Speaks::Gateway => Asker::Gateway(Http::connect(self.targets[target], "").await?),
                Speaks::ConcordHttp2 => Asker::Concord(of_concord[target][share].client()),
                Speaks::Etcd => Asker::Etcd(Box::new(of_etcd[target][share].kv_client())),
            });
        }
        Ok(askers)
    }

    fn run(self) -> Result<Histogram<u64>, String> {
        let runtime = runtime()?;
        let askers = runtime.block_on(self.connect());
        // Whoever failed still comes to the barrier, or the others would wait for ever.
        self.ready.wait();
        let begin = Instant::now() + self.times.warm;
        let end = begin + self.times.measured;
        runtime.block_on(async {
            let mut set = JoinSet::new();
            // One for the thread, so that the lock is never waited for.
            let latencies = Arc::new(Mutex::new(histogram()?));
            for asker in askers? {
                let (made, latencies) = (Arc::clone(&self.made), Arc::clone(&latencies));
                set.spawn(client(asker, self.ask, made, latencies, (begin, end)));
            }
            while let Some(done) = set.join_next().await {
                done.map_err(|error| error.to_string())??;
            }
            let all = latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Ok(all)
        })
    }
}

pub(crate) fn histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).map_err(|error| error.to_string())
}

async fn client(
    mut asker: Asker,
    ask: Ask,
    made: Arc<AtomicUsize>,
    latencies: Arc<Mutex<Histogram<u64>>>,
    (begin, end): (Instant, Instant),
) -> Result<(), String> {
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok(());
        }
        asker.once(&ask, &made).await?;
        let answered = Instant::now();
        if answered >= begin && answered < end {
            let took = u64::try_from((answered - asked).as_nanos()).unwrap_or(u64::MAX);
            latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(took);
        }
    }
}

/// Measures one point once.
pub(crate) fn measure(
    cluster: &Cluster,
    leader: usize,
    speaks: Speaks,
    (ask, clients, times): (Ask, usize, Times),
    made: &Arc<AtomicUsize>,
) -> Result<Seen, String> {
    let order = leader_first(cluster, leader);
    let asked = if ask.load.spread() { &order[..] } else { &order[..1] };
    measure_at(cluster, (&order, asked), speaks, (ask, clients, times), made)
}

/// The places of the nodes, the leader's first.
pub(crate) fn leader_first(cluster: &Cluster, leader: usize) -> Vec<usize> {
    (0..cluster.nodes.len()).map(|n| (leader + n) % cluster.nodes.len()).collect()
}

/// Measures one point once: by those nodes that are asked, and the processor time in the order of all nodes.
pub(crate) fn measure_at(
    cluster: &Cluster,
    (order, asked): (&[usize], &[usize]),
    speaks: Speaks,
    (ask, clients, times): (Ask, usize, Times),
    made: &Arc<AtomicUsize>,
) -> Result<Seen, String> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(clients).min(8);
    let ready = Arc::new(Barrier::new(threads + 1));
    let targets: Vec<SocketAddr> = asked.iter().map(|place| cluster.nodes[*place].addr).collect();
    let mut running = Vec::new();
    for thread in 0..threads {
        let part = Part {
            ask,
            speaks,
            targets: targets.clone(),
            clients: (thread..clients).step_by(threads).collect(),
            made: Arc::clone(made),
            ready: Arc::clone(&ready),
            times,
        };
        running.push(thread::spawn(|| part.run()));
    }
    ready.wait();
    let own = std::process::id();
    let pids: Vec<u32> = order.iter().map(|place| cluster.nodes[*place].pid()).collect();
    let ticks = || -> Vec<u64> { pids.iter().chain([&own]).map(|pid| cpu_ticks(*pid)).collect() };
    thread::sleep(times.warm);
    let (before, flushes_before, begin) = (ticks(), disk_flushes(), Instant::now());
    thread::sleep(times.measured);
    let (after, flushes_after, took) = (ticks(), disk_flushes(), begin.elapsed().as_secs_f64());
    let rss_mb = pids.iter().map(|pid| rss_mb(*pid)).fold(0.0, f64::max);
    let mut all = histogram()?;
    for thread in running {
        let part = thread.join().map_err(|_| "a thread of the generator panicked".to_owned())??;
        all.add(part).map_err(|error| error.to_string())?;
    }
    let used =
        before.iter().zip(&after).map(|(before, after)| (after - before) as f64 / TICKS / took * 100.0);
    let mut cpu: Vec<f64> = used.collect();
    let generator_cpu = cpu.pop().unwrap_or(0.0);
    let ms = |quantile: f64| all.value_at_quantile(quantile) as f64 / 1e6;
    Ok(Seen {
        ops_per_s: all.len() as f64 * ask.load.operations() as f64 / times.measured.as_secs_f64(),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        p999_ms: ms(0.999),
        cpu,
        generator_cpu,
        rss_mb,
        flushes_per_s: (flushes_after - flushes_before) as f64 / took,
    })
}

/// A runtime of one thread, for those who wait.
pub(crate) fn runtime() -> Result<Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}

/// Fills Concord alone with configs that do not compress, by change sets.
pub(crate) fn fill_batches(
    addr: SocketAddr,
    definition: &str,
    (count, value_bytes): (usize, usize),
) -> Result<(), String> {
    const CLIENTS: usize = 4;
    const BATCH: usize = 500;
    runtime()?.block_on(async {
        let next = Arc::new(AtomicUsize::new(0));
        let mut set = JoinSet::new();
        for _ in 0..CLIENTS {
            let mut http = Http::connect(addr, KEY).await?;
            let (next, definition) = (Arc::clone(&next), definition.to_owned());
            set.spawn(async move {
                loop {
                    let first = next.fetch_add(BATCH, Relaxed);
                    if first >= count {
                        return Ok::<(), String>(());
                    }
                    let of = |n| {
                        let data = noisy(n, n % GROUPS, value_bytes);
                        format!(r#"{{"op":"create_config","config_definition_key":"{definition}","config_key":"c{n:08}","data":{data}}}"#)
                    };
                    let all: Vec<String> = (first..count.min(first + BATCH)).map(of).collect();
                    let body = format!(r#"{{"operations":[{}]}}"#, all.join(","));
                    http.good(Method::POST, "/api/v1/batch", body).await?;
                }
            });
        }
        while let Some(done) = set.join_next().await {
            done.map_err(|error| error.to_string())??;
        }
        Ok(())
    })
}

/// Fills both systems with the same configs, as fast as it goes.
pub(crate) fn fill(
    cluster: &Cluster,
    leader: usize,
    definition: &str,
    (count, value_bytes): (usize, usize),
) -> Result<(), String> {
    const CLIENTS: usize = 128;
    let runtime = runtime()?;
    let addr = cluster.nodes[leader].addr;
    let speaks = cluster.speaks;
    runtime.block_on(async {
        let shared = if speaks == Speaks::Etcd { Some(etcd(addr).await?) } else { None };
        let next = Arc::new(AtomicUsize::new(0));
        let mut set = JoinSet::new();
        for _ in 0..CLIENTS {
            let mut asker = match &shared {
                Some(client) => Asker::Etcd(Box::new(client.kv_client())),
                None => Asker::Concord(Http::connect(addr, KEY).await?),
            };
            let (next, definition) = (Arc::clone(&next), definition.to_owned());
            set.spawn(async move {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= count {
                        return Ok::<(), String>(());
                    }
                    asker.create(&definition, n, value_bytes).await?;
                }
            });
        }
        while let Some(done) = set.join_next().await {
            done.map_err(|error| error.to_string())??;
        }
        Ok(())
    })
}
