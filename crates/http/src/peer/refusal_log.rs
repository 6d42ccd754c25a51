//! Rejected calls in the log: a few of each kind a second, then only how many more there were.
//!
//! The peer listener is open to whoever reaches it, and the log may be on the volume of the data: a line for each
//! rejected call would let an unauthenticated client fill it, and without room writes are rejected.
//!
//! **Invariant:** each second has at most [`LINES_MAX`] lines of a kind and one that counts the others. None holds what
//! a client without the secret has sent.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

/// Lines of a kind within one period.
const LINES_MAX: u32 = 3;
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Period {
    begin: Instant,
    refused: u32,
}

/// The rejections of the current period, by status.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(Mutex<BTreeMap<u16, Period>>);

/// What is logged of a rejection.
#[derive(Debug, PartialEq, Eq)]
enum RefusalLine {
    /// The rejection itself.
    Refusal,
    /// How many more there were, at the end of the period.
    CountLater,
    Nothing,
}

impl RefusalLog {
    /// Logs a rejection, or counts it.
    pub(super) fn note(self: &Arc<Self>, call: &'static str, status: u16, why: &str) {
        match self.count(status, Instant::now()) {
            RefusalLine::Refusal => tracing::warn!(call, status, "refused a call of another node: {why}"),
            RefusalLine::CountLater => {
                let log = Arc::clone(self);
                // The task ends with the period.
                tokio::spawn(async move {
                    sleep(PERIOD).await;
                    let left_out = log.end_period(status);
                    tracing::warn!(status, left_out, "refused more calls of other nodes");
                });
            }
            RefusalLine::Nothing => {}
        }
    }

    fn count(&self, status: u16, now: Instant) -> RefusalLine {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let period = periods.entry(status).or_insert(Period { begin: now, refused: 0 });
        // A period with more rejections than lines is ended by the task that counts them.
        if period.refused <= LINES_MAX && now.duration_since(period.begin) >= PERIOD {
            *period = Period { begin: now, refused: 0 };
        }
        period.refused = period.refused.saturating_add(1);
        match period.refused {
            ..=LINES_MAX => RefusalLine::Refusal,
            count if count == LINES_MAX + 1 => RefusalLine::CountLater,
            _ => RefusalLine::Nothing,
        }
    }

    fn end_period(&self, status: u16) -> u32 {
        let mut periods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        periods.remove(&status).map_or(0, |period| period.refused.saturating_sub(LINES_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_each_kind_are_told_and_the_others_counted() {
        let (log, begin) = (RefusalLog::default(), Instant::now());
        for _ in 0..LINES_MAX {
            assert_eq!(log.count(401, begin), RefusalLine::Refusal);
        }
        assert_eq!(log.count(401, begin), RefusalLine::CountLater);
        assert_eq!(log.count(421, begin), RefusalLine::Refusal, "another kind has its own");
        for _ in 0..9 {
            assert_eq!(log.count(401, begin + 2 * PERIOD), RefusalLine::Nothing);
        }
        assert_eq!(log.end_period(401), 10);
        assert_eq!(log.count(401, begin + 2 * PERIOD), RefusalLine::Refusal);
    }

    #[test]
    fn a_quiet_period_leaves_nothing_behind() {
        let (log, begin) = (RefusalLog::default(), Instant::now());
        for turn in 0..20 {
            for _ in 0..LINES_MAX {
                assert_eq!(log.count(401, begin + turn * PERIOD), RefusalLine::Refusal);
            }
        }
    }
}
