//! Points in time: stored as microseconds since 1970, shown as RFC 3339 in UTC with `Z`.
//!
//! **Invariant:** nothing here reads a clock. `service` reads the leader's clock and puts the time into the proposal.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time of a change: what its proposer read, but always later than the last change, so that times grow strictly
    /// whatever the clocks of the leaders do.
    #[must_use]
    pub fn after(self, last: Self) -> Self {
        Self(self.0.max(last.0.saturating_add(1)))
    }

    /// The time as an HTTP date, in whole seconds.
    #[must_use]
    pub fn to_http_date(self) -> String {
        jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&self.to_jiff())
            .unwrap_or_default()
    }

    fn to_jiff(self) -> jiff::Timestamp {
        i64::try_from(self.0)
            .ok()
            .and_then(|us| jiff::Timestamp::from_microsecond(us).ok())
            .unwrap_or(jiff::Timestamp::MAX)
    }

    /// Parses an RFC 3339 text; `None` when it is none or before 1970.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let time: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(time.as_microsecond()).ok().map(Self)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.to_jiff())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_microseconds_and_round_trip() {
        let time = Timestamp(1_763_000_000_000_100);
        assert_eq!(time.to_string(), "2025-11-13T02:13:20.000100Z");
        assert_eq!(Timestamp::parse(&time.to_string()), Some(time));
        assert_eq!(time.to_http_date(), "Thu, 13 Nov 2025 02:13:20 GMT");
        assert_eq!(Timestamp::parse("1969-12-31T23:59:59Z"), None);
    }

    #[test]
    fn times_grow_whatever_the_clock_does() {
        assert_eq!(Timestamp(5).after(Timestamp(9)), Timestamp(10));
        assert_eq!(Timestamp(50).after(Timestamp(9)), Timestamp(50));
    }
}
