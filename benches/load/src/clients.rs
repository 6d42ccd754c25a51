//! Clients that ask the leader in the background while something else is done to the cluster. What they saw is kept
//! apart by what was going on at the time.
//!
//! **Invariant:** a request counts as quiet only if it was quiet from its question to its answer, and as work if
//! there was work at either end.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    http::Http,
    load::{Ask, Asker, KEY},
    report::rounded,
    run::{histogram, runtime},
};

/// What is going on. The numbers are places: of a histogram, and of seconds.
pub(crate) const QUIET: u8 = 0;
pub(crate) const WORK: u8 = 1;
/// Nothing that is measured.
pub(crate) const ELSE: u8 = 2;

/// The latencies of one thread: in quiet, during work.
type Latencies = Mutex<[Histogram<u64>; 2]>;

pub(crate) struct Clients {
    /// Whoever does the work says here what is going on.
    pub(crate) phase: Arc<AtomicU8>,
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

struct Thread {
    latencies: Arc<Latencies>,
    /// Ends before it is told to only by an error.
    running: JoinHandle<Result<(), String>>,
}

impl Clients {
    /// So many clients in a closed loop against one node, shared out over one thread per core.
    pub(crate) fn start(addr: SocketAddr, ask: Ask, clients: usize) -> Result<Self, String> {
        let cores = thread::available_parallelism().map_or(1, usize::from).min(clients).min(8);
        let (phase, stop) = (Arc::new(AtomicU8::new(ELSE)), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        for thread in 0..cores {
            let latencies = Arc::new(Mutex::new([histogram()?, histogram()?]));
            let part = Part { ask, phase: phase.clone(), stop: stop.clone(), latencies: latencies.clone() };
            let count = (thread..clients).step_by(cores).count();
            threads.push(Thread { latencies, running: thread::spawn(move || part.run(addr, count)) });
        }
        Ok(Self { phase, stop, threads })
    }

    /// What was seen in quiet and during work since the last call; an error when a client has failed.
    pub(crate) fn take(&self) -> Result<[Histogram<u64>; 2], String> {
        if self.threads.iter().any(|thread| thread.running.is_finished()) {
            return Err("a client has failed".to_owned());
        }
        let mut all = [histogram()?, histogram()?];
        for thread in &self.threads {
            let mut part = thread.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            for (all, part) in all.iter_mut().zip(part.iter_mut()) {
                all.add(&*part).map_err(|error| error.to_string())?;
                part.reset();
            }
        }
        Ok(all)
    }

    /// Ends them; an error of any is the error.
    pub(crate) fn end(self) -> Result<(), String> {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.running.join().map_err(|_| "a thread of the generator panicked".to_owned())??;
        }
        Ok(())
    }
}

/// A thread's clients.
#[derive(Clone)]
struct Part {
    ask: Ask,
    phase: Arc<AtomicU8>,
    stop: Arc<AtomicBool>,
    latencies: Arc<Latencies>,
}

impl Part {
    fn run(self, addr: SocketAddr, count: usize) -> Result<(), String> {
        runtime()?.block_on(async {
            let mut set = JoinSet::new();
            for _ in 0..count {
                let asker = Asker::Concord(Http::connect(addr, KEY).await?);
                set.spawn(self.clone().client(asker));
            }
            while let Some(done) = set.join_next().await {
                done.map_err(|error| error.to_string())??;
            }
            Ok(())
        })
    }

    async fn client(self, mut asker: Asker) -> Result<(), String> {
        let made = AtomicUsize::new(0);
        while !self.stop.load(Relaxed) {
            let (before, asked) = (self.phase.load(Relaxed), Instant::now());
            asker.once(&self.ask, &made).await?;
            let (took, after) = (asked.elapsed(), self.phase.load(Relaxed));
            let place = match (before, after) {
                (WORK, _) | (_, WORK) => WORK,
                (QUIET, QUIET) => QUIET,
                _ => continue,
            };
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            latencies[usize::from(place)].saturating_record(took);
        }
        Ok(())
    }
}

/// What a histogram says, with the seconds that it was filled in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) ops_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Figures {
    pub(crate) fn of(seen: &Histogram<u64>, seconds: f64) -> Self {
        let ms = |quantile: f64| seen.value_at_quantile(quantile) as f64 / 1e6;
        Self {
            seconds,
            requests: seen.len(),
            ops_per_s: seen.len() as f64 / seconds.max(f64::MIN_POSITIVE),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "seconds": rounded(self.seconds),
            "ops_per_s": self.ops_per_s.round(),
            "p50_ms": rounded(self.p50_ms),
            "p99_ms": rounded(self.p99_ms),
        })
    }
}
