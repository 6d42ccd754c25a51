//! Points in time: stored as microseconds since 1970, shown as RFC 3339 in UTC with `Z`.
//!
//! **Invariant:** nothing here reads a clock. `service` reads the leader's clock and puts the time into the proposal.

use std::{fmt, ops::Deref};

use jiff::{civil::date, fmt::temporal::Pieces};
use serde::{Deserialize, Serialize};

/// The last time that has a text, in the year 9999; what is later is shown as this one.
const LAST_SHOWN: u64 = 253_402_300_799_999_999;
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// As HTTP names them; 1970 began on a Thursday.
const WEEKDAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

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
    pub fn http_date(self) -> TimeText<29> {
        let time = self.civil();
        let mut text = TimeText(*b"Thu, 01 Jan 1970 00:00:00 GMT");
        text.put(0, time.weekday);
        text.number(5, 2, time.day);
        text.put(8, time.month_name);
        text.number(12, 4, time.year);
        text.clock(17, &time);
        text
    }

    /// The time as it is shown: RFC 3339 with microseconds.
    #[must_use]
    pub fn text(self) -> TimeText<27> {
        let time = self.civil();
        let mut text = TimeText(*b"1970-01-01T00:00:00.000000Z");
        text.number(0, 4, time.year);
        text.number(5, 2, time.month);
        text.number(8, 2, time.day);
        text.clock(11, &time);
        text.number(20, 6, time.us);
        text
    }

    fn civil(self) -> Civil {
        let shown = self.0.min(LAST_SHOWN);
        let seconds = shown / 1_000_000;
        let days = seconds / DAY_SECONDS;
        // Years that begin with March, so that a leap day is the last one of its year; from March of the year 0.
        let since = days + 719_468;
        let (era, in_era) = (since / 146_097, since % 146_097);
        let year_in_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
        let in_year = in_era - (365 * year_in_era + year_in_era / 4 - year_in_era / 100);
        let from_march = (5 * in_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Civil {
            year: era * 400 + year_in_era + u64::from(month <= 2),
            month,
            month_name: named(&MONTHS, month - 1),
            day: in_year - (153 * from_march + 2) / 5 + 1,
            weekday: named(&WEEKDAYS, days % 7),
            second: seconds % DAY_SECONDS,
            us: shown % 1_000_000,
        }
    }

    /// Parses an RFC 3339 text; a time before 1970 counts as the first one. `None` when it is no such text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // A `jiff::Timestamp` ends a day before the year 9999 does, for the sake of time zones.
        let pieces = Pieces::parse(text).ok()?;
        let local = pieces.date().to_datetime(pieces.time()?);
        let since = local.duration_since(date(1970, 1, 1).at(0, 0, 0, 0));
        let us = since.as_micros() - i128::from(pieces.to_numeric_offset()?.seconds()) * 1_000_000;
        Some(Self(u64::try_from(us).unwrap_or(0)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

fn named(names: &[&'static [u8; 3]], index: u64) -> &'static [u8; 3] {
    usize::try_from(index).ok().and_then(|index| names.get(index).copied()).unwrap_or(b"???")
}

/// A time by the calendar.
struct Civil {
    year: u64,
    month: u64,
    month_name: &'static [u8; 3],
    day: u64,
    weekday: &'static [u8; 3],
    /// Of the day.
    second: u64,
    us: u64,
}

/// The text of a time, of `N` ASCII characters. Each answer about a record has three, so they are written in place and
/// not by a printer of formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeText<const N: usize>([u8; N]);

impl<const N: usize> TimeText<N> {
    fn put(&mut self, at: usize, text: &[u8; 3]) {
        self.0[at..at + 3].copy_from_slice(text);
    }

    /// Writes a number with leading zeros.
    fn number(&mut self, at: usize, digits: usize, number: u64) {
        let mut rest = number;
        for place in self.0[at..at + digits].iter_mut().rev() {
            *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
    }

    fn clock(&mut self, at: usize, time: &Civil) {
        self.number(at, 2, time.second / 3600);
        self.number(at + 3, 2, time.second / 60 % 60);
        self.number(at + 6, 2, time.second % 60);
    }
}

impl<const N: usize> Deref for TimeText<N> {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and names are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_have_microseconds_and_round_trip() {
        let time = Timestamp(1_763_000_000_000_100);
        assert_eq!(time.to_string(), "2025-11-13T02:13:20.000100Z");
        assert_eq!(Timestamp::parse(&time.to_string()), Some(time));
        assert_eq!(&*time.http_date(), "Thu, 13 Nov 2025 02:13:20 GMT");
        assert_eq!(Timestamp::parse("1969-12-31T23:59:59Z"), Some(Timestamp(0)));
    }

    #[test]
    fn the_last_second_of_the_calendar_is_a_time() {
        for (text, shown) in [
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z"),
            ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999Z"),
            ("9999-12-31T22:00:00+01:00", "9999-12-31T21:00:00.000000Z"),
            ("9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59.999999Z"),
            ("0000-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
        ] {
            let time = Timestamp::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(time.to_string(), shown, "{text}");
        }
        assert_eq!(&*Timestamp(LAST_SHOWN).http_date(), "Fri, 31 Dec 9999 23:59:59 GMT");
        for wrong in
            ["", "9999-12-31", "9999-12-31T23:59:59", "9999-12-31T24:00:01Z", "10000-01-01T00:00:00Z", "x"]
        {
            assert_eq!(Timestamp::parse(wrong), None, "{wrong}");
        }
    }

    /// The texts that another implementation gives.
    fn expected(us: u64) -> (String, String) {
        let shown = i64::try_from(us.min(LAST_SHOWN)).unwrap();
        let epoch = date(1970, 1, 1).at(0, 0, 0, 0);
        let time = epoch.checked_add(jiff::SignedDuration::from_micros(shown)).unwrap();
        (format!("{time:.6}Z"), time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
    }

    proptest! {
        #[test]
        fn times_are_read_as_another_implementation_reads_them(
            us in 0..250_000_000_000_000_000_i64, offset in -5_000..5_000_i32,
        ) {
            let time = jiff::Timestamp::from_microsecond(us).unwrap();
            let zone = jiff::tz::Offset::from_seconds(offset * 10 / 60 * 60).unwrap();
            let text = time.display_with_offset(zone).to_string();
            prop_assert_eq!(Timestamp::parse(&text), Some(Timestamp(us.unsigned_abs())), "{}", text);
        }
    }

    proptest! {
        #[test]
        fn texts_are_those_of_the_calendar(
            us in prop_oneof![0..LAST_SHOWN, 0..4_000_000_000_000_000_u64, (LAST_SHOWN - 9..=u64::MAX)],
        ) {
            let time = Timestamp(us);
            prop_assert_eq!((time.to_string(), time.http_date().to_string()), expected(us));
        }
    }

    #[test]
    fn every_day_of_eight_hundred_years_has_its_date() {
        for day in 0..292_194 {
            for us in [day * DAY_SECONDS * 1_000_000, (day + 1) * DAY_SECONDS * 1_000_000 - 1] {
                let time = Timestamp(us);
                assert_eq!((time.to_string(), time.http_date().to_string()), expected(us));
            }
        }
    }

    #[test]
    fn times_grow_whatever_the_clock_does() {
        assert_eq!(Timestamp(5).after(Timestamp(9)), Timestamp(10));
        assert_eq!(Timestamp(50).after(Timestamp(9)), Timestamp(50));
    }
}
