//! Whether this process itself stood still: it was stopped, its machine slept, or it got no CPU.
//!
//! After that everything that was due looks late: the leader seems silent to a follower, and the followers to a leader. So
//! a node that stood still logs that, and names nobody else for that time.
//!
//! **Invariant:** the time is the monotonic one, and a standstill is known before anything that it made late is evaluated: a
//! look that comes first finds that the watch is overdue.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How often [`Standstill::tick`] is called at least.
pub(super) const TICK_MAX: Duration = Duration::from_millis(100);
/// The shortest standstill: longer than an election, and longer than what a busy machine takes from a process.
const STANDSTILL_MIN: Duration = Duration::from_secs(1);

/// Watches this process.
#[derive(Debug)]
pub(super) struct Standstill(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    ticked_at: Instant,
    /// When the last standstill ended, and how long it lasted.
    last: Option<(Instant, Duration)>,
}

impl Default for Standstill {
    fn default() -> Self {
        Self(Mutex::new(Seen { ticked_at: Instant::now(), last: None }))
    }
}

impl Seen {
    /// Notes a standstill that ends now. Returns how long it lasted.
    fn look(&mut self, now: Instant) -> Option<Duration> {
        let lasted = now.saturating_duration_since(self.ticked_at);
        self.ticked_at = self.ticked_at.max(now);
        let is_standstill = lasted >= TICK_MAX + STANDSTILL_MIN;
        if is_standstill {
            self.last = Some((now, lasted));
        }
        is_standstill.then_some(lasted)
    }
}

impl Standstill {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the process runs. Logs it if it did not.
    pub(super) fn tick(&self) {
        self.look(Instant::now());
    }

    /// Since when this process runs without a standstill, and how long that lasted. `None` if it never stood still.
    pub(super) fn last(&self, now: Instant) -> Option<(Instant, Duration)> {
        self.look(now);
        self.seen().last
    }

    /// Looks at the clock at `now`.
    pub(super) fn look(&self, now: Instant) {
        let lasted = self.seen().look(now);
        if let Some(lasted) = lasted {
            let ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(lasted_ms = ms, "this process stood still for {:.1} s", lasted.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_looks_first_finds_the_standstill() {
        let watch = Standstill::default();
        let begin = watch.seen().ticked_at;
        let busy = begin + TICK_MAX * 5;
        assert_eq!(watch.last(busy), None, "a busy machine");
        let end = busy + Duration::from_secs(3);
        let found = watch.last(end);
        assert_eq!(found, Some((end, Duration::from_secs(3))));
        watch.look(end + TICK_MAX);
        assert_eq!(watch.last(end + TICK_MAX * 2), found, "it is one, and remembered");
    }
}
