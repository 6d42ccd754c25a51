//! At most one line of the log of a kind in each period, with the number of those that were left out.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long a kind of line is left out after a line.
const PERIOD: Duration = Duration::from_secs(1);

/// The lines of one kind.
#[derive(Debug, Default)]
pub struct LineLimit(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    last: Option<Instant>,
    left_out: u64,
}

impl LineLimit {
    /// How many lines were left out since the last one, if there is to be one now. Else this one is left out.
    pub fn due(&self, now: Instant) -> Option<u64> {
        // A poisoned lock is intact: nothing in here can stop half-way.
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.last.is_some_and(|last| now.saturating_duration_since(last) < PERIOD) {
            lines.left_out = lines.left_out.saturating_add(1);
            return None;
        }
        lines.last = Some(now);
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_one_line_and_the_next_one_counts_the_others() {
        let (lines, begin) = (LineLimit::default(), Instant::now());
        assert_eq!(lines.due(begin), Some(0));
        assert_eq!(lines.due(begin), None);
        assert_eq!(lines.due(begin + PERIOD / 2), None);
        assert_eq!(lines.due(begin + PERIOD), Some(2));
        assert_eq!(lines.due(begin + PERIOD * 2), Some(0));
    }
}
