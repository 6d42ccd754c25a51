//! The operations of the log in flight, and the watchdog that ends the process at an I/O stall.
//!
//! A stalled disk gives no error. The other threads of the node continue, and everything that depends on the node would
//! wait: its clients, and a leader that counts on it. So a node whose log makes no progress for the configured time fails
//! like a node whose log had an error: it closes its connections and exits; the other members elect a leader, and the
//! supervisor of the process restarts it. The shutdown waits for nothing for long; if it hangs all the same, the watchdog
//! aborts the process.
//!
//! **Invariant:** the time is counted in ticks of this process. After the process was stopped or the machine slept, a
//! stall has lasted for one tick.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::slow_flush::FlushTimes;

/// After this time without progress the stall is reported: the node is not ready.
const REPORTED_AFTER: Duration = Duration::from_secs(5);
/// Longest pause between two looks at the log.
const TICK_MAX: Duration = Duration::from_millis(500);

/// Counts operations that began and ended. The log, its callbacks and the watchdog share it.
#[derive(Debug, Default)]
pub(super) struct LogProgress {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Bytes of the operations in flight.
    bytes: AtomicUsize,
    /// For how long no operation ended although some are in flight; 0 until that is reported.
    stalled_ms: AtomicU64,
    /// How long the flushes took.
    pub(super) flushes: Arc<FlushTimes>,
}

/// One operation on the disk. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct LogOperation {
    progress: Arc<LogProgress>,
    bytes: usize,
    pub(super) begun: Instant,
}

impl LogProgress {
    /// Begins an operation that writes so many bytes.
    pub(super) fn begin(self: &Arc<Self>, bytes: usize) -> LogOperation {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        LogOperation { progress: Arc::clone(self), bytes, begun: Instant::now() }
    }

    /// Operations that have not ended, and their bytes.
    pub(super) fn in_flight(&self) -> (u64, usize) {
        let ended = self.ended.load(Ordering::Relaxed);
        (self.begun.load(Ordering::Relaxed).saturating_sub(ended), self.bytes.load(Ordering::Relaxed))
    }

    /// For how long the log has made no progress, if that is reported.
    pub(super) fn stalled(&self) -> Option<Duration> {
        match self.stalled_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }
}

impl LogOperation {
    /// Its bytes are durable now.
    pub(super) fn flushed(&self, now: Instant) {
        self.progress.flushes.ended(self.begun, now);
    }
}

impl Drop for LogOperation {
    fn drop(&mut self) {
        self.progress.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.progress.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// One kind of operation as the watchdog has seen it.
#[derive(Debug, Default)]
struct SeenProgress {
    ended: u64,
    ticks: u32,
}

impl SeenProgress {
    /// For how many ticks no operation ended although some are in flight.
    fn look(&mut self, progress: &LogProgress) -> u32 {
        let ended = progress.ended.load(Ordering::Relaxed);
        if ended != self.ended || progress.begun.load(Ordering::Relaxed) == ended {
            *self = Self { ended, ticks: 0 };
        } else {
            self.ticks += 1;
        }
        self.ticks
    }
}

/// Watches the operations of a log while there is one, and calls `stalled` once none has ended for `timeout`.
pub(super) fn watch(
    kinds: [(&'static str, Weak<LogProgress>); 2],
    timeout: Duration,
    stalled: impl FnOnce(String) + Send + 'static,
) -> std::io::Result<()> {
    // In a simulation no operation hangs, and a thread would not know its time.
    if cfg!(feature = "simulation") {
        return Ok(());
    }
    let tick = (timeout / 20).clamp(Duration::from_millis(5), TICK_MAX);
    let reported_after = REPORTED_AFTER.min(timeout / 2);
    std::thread::Builder::new().name("log-watchdog".into()).spawn(move || {
        let mut seen: [SeenProgress; 2] = Default::default();
        loop {
            std::thread::sleep(tick);
            for ((kind, progress), seen) in kinds.iter().zip(&mut seen) {
                let Some(progress) = progress.upgrade() else { return };
                let lasts = tick * seen.look(&progress);
                let reported = if lasts >= reported_after { lasts } else { Duration::ZERO };
                let ms = u64::try_from(reported.as_millis()).unwrap_or(u64::MAX);
                progress.stalled_ms.store(ms, Ordering::Relaxed);
                if lasts >= timeout && !concord_model::sabotage::is("stall-ignored") {
                    let secs = timeout.as_secs_f64();
                    return stalled(format!("the log made no progress for {secs} s: a {kind} hangs"));
                }
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);
    const FAR: Duration = Duration::from_secs(60);

    fn watched() -> (Arc<LogProgress>, Arc<LogProgress>, mpsc::Receiver<String>) {
        let (writes, reads) = (Arc::new(LogProgress::default()), Arc::new(LogProgress::default()));
        let (sender, stalled) = mpsc::channel();
        let kinds = [("write", Arc::downgrade(&writes)), ("read", Arc::downgrade(&reads))];
        watch(kinds, TIMEOUT, move |why| drop(sender.send(why))).unwrap();
        (writes, reads, stalled)
    }

    #[test]
    fn an_operation_that_hangs_is_a_stall() {
        let (writes, reads, stalled) = watched();
        drop(writes.begin(10));
        let hung = reads.begin(0);
        let why = stalled.recv_timeout(FAR).unwrap();
        assert_eq!(why, "the log made no progress for 0.1 s: a read hangs");
        assert!(reads.stalled() >= Some(TIMEOUT / 2), "{reads:?}");
        assert_eq!(writes.stalled(), None);
        drop(hung);
    }

    #[test]
    fn finished_operations_and_an_idle_log_are_no_stall() {
        let progress = Arc::new(LogProgress::default());
        let mut seen = SeenProgress::default();
        assert_eq!([seen.look(&progress), seen.look(&progress)], [0, 0], "idle");
        let hung = progress.begin(3);
        assert_eq!([seen.look(&progress), seen.look(&progress)], [1, 2], "in flight");
        drop(progress.begin(5));
        assert_eq!(seen.look(&progress), 0, "another one ended");
        assert_eq!(seen.look(&progress), 1);
        assert_eq!(progress.in_flight(), (1, 3));
        drop(hung);
        assert_eq!(progress.in_flight(), (0, 0));
        assert_eq!([seen.look(&progress), seen.look(&progress)], [0, 0]);
    }

    #[test]
    fn the_watchdog_ends_with_the_log() {
        let (writes, reads, stalled) = watched();
        drop((writes, reads));
        assert_eq!(stalled.recv_timeout(FAR), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
