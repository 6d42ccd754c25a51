//! Writers whose rate is measured: how many writes a second are acknowledged, and how long each took.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;

use super::{Call, PAUSE, time::pace};

/// Writers that write as fast as they are answered, until they are stopped.
#[derive(Debug)]
pub(crate) struct Writers {
    begin: Instant,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Vec<Duration>>>,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) per_second: f64,
    /// Ascending.
    times: Vec<Duration>,
}

impl Writers {
    /// Starts so many at once; `call` makes the request of a writer's place and round.
    pub(crate) fn start(number: usize, call: impl Fn(usize, usize) -> Call + Clone + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let writer = |place| {
            let (call, stop) = (call.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut times = Vec::new();
                for turn in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let begin = Instant::now();
                    let answer = call(place, turn).attempt().await.expect("no connection is lost");
                    match answer.status {
                        200 | 201 => times.push(begin.elapsed()),
                        429 => pace(PAUSE).await,
                        _ => panic!("{answer:?}"),
                    }
                }
                times
            })
        };
        let writers = (0..number).map(writer).collect();
        Self { begin: Instant::now(), stop, writers }
    }

    /// Stops them; each ends with the write that it is at.
    pub(crate) async fn stop(self) -> Pace {
        self.stop.store(true, Ordering::SeqCst);
        let span = self.begin.elapsed();
        let mut times = Vec::new();
        for writer in self.writers {
            times.extend(writer.await.expect("every write is taken"));
        }
        times.sort_unstable();
        Pace { per_second: times.len() as f64 / span.as_secs_f64(), times }
    }

    /// Their rate while some work runs, and the result of the work.
    pub(crate) async fn during<T>(self, work: impl Future<Output = T>) -> (Pace, T) {
        let done = work.await;
        (self.stop().await, done)
    }
}

impl Pace {
    /// The time within which so many of a thousand writes were answered.
    pub(crate) fn within(&self, of_1000: usize) -> Duration {
        let place = (self.times.len() * of_1000 / 1000).min(self.times.len().saturating_sub(1));
        self.times.get(place).copied().unwrap_or_default()
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, longest] = [500, 990, 1000].map(|of| self.within(of).as_secs_f64() * 1000.0);
        write!(
            f,
            "{:.0} writes/s; median {half:.1} ms, p99 {most:.1} ms, longest {longest:.1} ms",
            self.per_second
        )
    }
}
