//! Where a value comes from, and how old it is.
//!
//! **Invariant:** the age of a value is at least the time since it was last known to be current. It is measured by two
//! clocks, and the larger answer counts: the monotonic one stands still while a machine is suspended, and the other may
//! be set.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// By which way a value came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A node answered this very read.
    Live,
    /// Memory, which follows the cluster.
    Cache,
    /// The last-known-good file: no node has answered since the start.
    File,
}

impl Origin {
    /// Its name: `live`, `cache` or `file`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Cache => "cache",
            Self::File => "file",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a value may be relied on to be current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// It holds every change that was acknowledged before the time that its age names, which is within the bound.
    Fresh,
    /// Nothing has confirmed it since this time.
    StaleSince(SystemTime),
}

/// Where a value comes from, and how old it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// By which way it came.
    pub origin: Origin,
    /// The id of the node that sent or confirmed it, if known.
    pub node: Option<Arc<str>>,
    /// The revision of the state that the value is of: every change up to it is in.
    pub revision: u64,
    /// How long ago it was last known to hold every acknowledged change.
    pub age: Duration,
    /// Whether that is recent enough.
    pub freshness: Freshness,
}

impl Source {
    /// Whether it is fresh.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.freshness == Freshness::Fresh
    }

    /// Since when it is stale, if it is.
    #[must_use]
    pub fn stale_since(&self) -> Option<SystemTime> {
        match self.freshness {
            Freshness::Fresh => None,
            Freshness::StaleSince(since) => Some(since),
        }
    }
}

impl fmt::Display for Source {
    /// As in `cache, revision 41, node 2, 3 s old, fresh`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, revision {}", self.origin, self.revision)?;
        if let Some(node) = &self.node {
            write!(f, ", node {node}")?;
        }
        let state = if self.is_fresh() { "fresh" } else { "stale" };
        write!(f, ", {} s old, {state}", self.age.as_secs())
    }
}

/// A time at which something was known to be current.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    at: Instant,
    wall: SystemTime,
    /// How old it was then.
    before: Duration,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), wall: wall_clock(), before: Duration::ZERO }
    }

    /// A time that a file names. One in the future is taken for now.
    pub(crate) fn of_file(unix_ms: u64) -> Self {
        let wall = wall_clock();
        let then = UNIX_EPOCH + Duration::from_millis(unix_ms);
        Self { at: Instant::now(), wall, before: wall.duration_since(then).unwrap_or_default() }
    }

    /// How long ago it was.
    pub(crate) fn age(&self) -> Duration {
        self.before.saturating_add(self.elapsed(wall_clock()))
    }

    fn elapsed(&self, wall: SystemTime) -> Duration {
        self.at.elapsed().max(wall.duration_since(self.wall).unwrap_or_default())
    }

    /// The time as a file has it.
    pub(crate) fn unix_ms(&self) -> u64 {
        let since = self.wall.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(self.before);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether a value that was current so long ago is fresh, if that bound makes it so. Without one it is not.
    pub(crate) fn freshness(age: Duration, fresh_for: Option<Duration>) -> Freshness {
        if fresh_for.is_some_and(|fresh_for| age <= fresh_for) {
            return Freshness::Fresh;
        }
        Freshness::StaleSince(wall_clock().checked_sub(age).unwrap_or(UNIX_EPOCH))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the age of a value is told to the caller; nothing replicated reads it"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_answer_of_the_two_clocks_counts() {
        let moment = Moment::now();
        // The monotonic clock stood still for an hour, as that of a suspended machine does.
        let elapsed = moment.elapsed(moment.wall + Duration::from_secs(3600));
        assert_eq!(elapsed.as_secs(), 3600);
        // The wall clock was set back.
        assert!(moment.elapsed(moment.wall - Duration::from_secs(3600)) < Duration::from_secs(60));
    }

    #[test]
    fn a_time_goes_through_a_file() {
        let hour_ago = Moment { before: Duration::from_secs(3600), ..Moment::now() };
        let read = Moment::of_file(hour_ago.unix_ms());
        assert!(read.age() >= Duration::from_secs(3599) && read.age() < Duration::from_secs(3700));
        assert_eq!(Moment::of_file(u64::MAX / 1_000_000).before, Duration::ZERO);
    }

    #[test]
    fn a_source_says_what_it_is() {
        let mut source = Source {
            origin: Origin::Cache,
            node: Some("2".into()),
            revision: 41,
            age: Duration::from_millis(3100),
            freshness: Moment::freshness(Duration::from_secs(3), Some(Duration::from_secs(10))),
        };
        assert_eq!(source.to_string(), "cache, revision 41, node 2, 3 s old, fresh");
        source.freshness = Moment::freshness(Duration::from_secs(11), Some(Duration::from_secs(10)));
        assert!(source.stale_since().is_some());
        assert_eq!(source.to_string(), "cache, revision 41, node 2, 3 s old, stale");
    }
}
