//! The log's time while clocks jump, do not respond, or are all wrong.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000;
/// Some date, in microseconds since 1970.
const DATE: u64 = 1_800_000_000 * SECOND;
const DAYS_33: i64 = 33 * 24 * 60 * 60 * 1_000_000;

/// Three voters and their clocks, seen from node 1.
struct Cluster {
    log: LogClock,
    /// Real time since node 1 began.
    elapsed: u64,
    /// How far the clock of each voter is off. `None`: it does not respond.
    off: [Option<i64>; 3],
    last_at: Timestamp,
}

impl Cluster {
    fn new(off: [Option<i64>; 3], last_at: u64) -> Self {
        let mut cluster = Self { log: LogClock::default(), elapsed: 0, off, last_at: Timestamp(last_at) };
        cluster.log.set_others([2, 3].into_iter());
        cluster.pass(SECOND);
        cluster
    }

    fn wall(&self, off: i64) -> Timestamp {
        Timestamp((DATE + self.elapsed).saturating_add_signed(off))
    }

    fn reading(&self) -> ClockReading {
        ClockReading { wall: self.wall(self.off[0].unwrap_or(0)), elapsed: self.elapsed }
    }

    /// Lets time pass, and reads the other clocks each second.
    fn pass(&mut self, micros: u64) {
        let end = self.elapsed + micros;
        while self.elapsed < end {
            self.elapsed = end.min(self.elapsed + SECOND);
            for id in [2, 3] {
                if let Some(off) = self.off[id - 1] {
                    self.log.hear(id as u64, self.wall(off), self.elapsed, self.elapsed);
                }
            }
            self.log.update(self.reading(), self.last_at, false);
        }
    }

    /// Writes an entry. Returns its time, in microseconds after real time.
    fn write(&mut self) -> i64 {
        let before = self.last_at;
        self.last_at = self.log.stamp(self.reading(), self.last_at).after(self.last_at);
        assert!(self.last_at > before);
        signed(self.last_at.0) - signed(DATE + self.elapsed)
    }

    fn is_confirmed(&self, seconds: u64) -> bool {
        self.log.confirmed(self.reading(), Duration::from_secs(seconds)).is_some()
    }
}

fn near(micros: i64) -> bool {
    micros.unsigned_abs() <= 2
}

#[test]
fn a_jumping_clock_does_not_move_the_time_and_is_reported() {
    for jump in [DAYS_33, -DAYS_33] {
        for place in 0..3 {
            let mut cluster = Cluster::new([Some(0); 3], DATE - 5);
            cluster.pass(60 * SECOND);
            assert!(near(cluster.write()) && cluster.is_confirmed(60));
            cluster.off[place] = Some(jump);
            for _ in 0..4000 {
                cluster.pass(SECOND / 2);
                let off = cluster.write();
                assert!(near(off), "{off} {place} {jump}");
            }
            let named = match place {
                0 => Deviation::Own(jump),
                place => Deviation::Other(place as u64 + 1, jump),
            };
            assert_eq!(cluster.log.deviations(cluster.reading()), [named]);
            assert_eq!(cluster.is_confirmed(60), place != 0, "a node with a wrong clock deletes nothing");
            cluster.off[place] = Some(0);
            cluster.pass(2 * SECOND);
            assert_eq!(cluster.log.deviations(cluster.reading()), []);
            assert!(near(cluster.write()) && cluster.is_confirmed(60));
        }
    }
}

#[test]
fn a_start_follows_the_time_of_the_majority() {
    for wrong in [DAYS_33, -DAYS_33] {
        let mut own = Cluster::new([Some(wrong), Some(0), Some(0)], DATE - 5);
        assert!(near(own.write()), "its own clock is wrong");
        let mut other = Cluster::new([Some(0), Some(wrong), Some(0)], DATE - 5);
        assert!(near(other.write()), "another clock is wrong");
    }
}

#[test]
fn two_differing_clocks_confirm_nothing() {
    for off in [[Some(DAYS_33), Some(0), None], [Some(0), Some(DAYS_33), None]] {
        let mut cluster = Cluster::new(off, DATE - 5);
        assert!(near(cluster.write()), "the earlier one is followed");
        cluster.pass(100 * SECOND);
        assert!(near(cluster.write()) && !cluster.is_confirmed(0));
    }
    // The log's time never goes back.
    let mut cluster = Cluster::new([Some(-DAYS_33), Some(0), None], DATE);
    cluster.write();
    cluster.pass(100 * SECOND);
    let behind = cluster.write();
    assert!(behind > -60 * 1_000_000, "{behind}");
    // The third clock decides.
    cluster.off[2] = Some(0);
    cluster.pass(100 * SECOND);
    assert!(near(cluster.write()) && !cluster.is_confirmed(0));
    cluster.off[0] = Some(0);
    assert!(near(cluster.write()) && cluster.is_confirmed(60));
}

#[test]
fn a_corrected_majority_is_followed_once_it_is_confirmed() {
    let mut cluster = Cluster::new([Some(-DAYS_33); 3], 0);
    assert!(near(cluster.write() + DAYS_33));
    cluster.pass(100 * SECOND);
    cluster.off = [Some(0); 3];
    cluster.pass(10 * SECOND);
    assert!(near(cluster.write() + DAYS_33), "not at once");
    assert!(!cluster.is_confirmed(0));
    cluster.pass(30 * SECOND);
    assert!(near(cluster.write()));
    assert!(cluster.is_confirmed(1) && !cluster.is_confirmed(60));
}

#[test]
fn a_log_that_is_ahead_advances_at_half_speed() {
    let ahead = 100 * SECOND;
    let mut cluster = Cluster::new([Some(0); 3], DATE + ahead);
    let first = cluster.write();
    cluster.pass(50 * SECOND);
    assert!(matches!(cluster.log.deviations(cluster.reading())[..], [Deviation::Log(_)]));
    let second = cluster.write();
    assert!((first - second - 25 * 1_000_000).abs() < 5, "{first} {second}");
    cluster.pass(200 * SECOND);
    assert!(near(cluster.write()));
}

#[test]
fn a_single_voter_follows_its_clock_after_a_lasting_jump() {
    let mut cluster = Cluster::new([Some(0), None, None], 0);
    cluster.log.set_others(std::iter::empty());
    cluster.pass(SECOND);
    assert!(near(cluster.write()));
    cluster.off[0] = Some(DAYS_33);
    cluster.pass(2 * SECOND);
    assert!(near(cluster.write()) && !cluster.is_confirmed(0), "a short jump");
    cluster.off[0] = Some(0);
    cluster.pass(2 * SECOND);
    assert!(near(cluster.write()) && cluster.is_confirmed(0));
    cluster.off[0] = Some(DAYS_33);
    cluster.pass(40 * SECOND);
    assert!(near(cluster.write() - DAYS_33));
    assert!(!cluster.is_confirmed(600), "and deletes nothing for a while");
}

#[test]
fn old_readings_do_not_count() {
    let mut cluster = Cluster::new([Some(0); 3], 0);
    cluster.pass(60 * SECOND);
    cluster.off = [Some(0), None, None];
    cluster.pass(60 * SECOND);
    assert!(!cluster.is_confirmed(0), "no majority is known");
    assert!(near(cluster.write()));
    cluster.off[0] = Some(DAYS_33);
    cluster.pass(60 * SECOND);
    assert!(near(cluster.write()), "alone it does not follow its own clock");
}

proptest! {
    #[test]
    fn one_wrong_clock_at_a_time_does_not_move_the_time(
        jumps in proptest::collection::vec((0_usize..3, -DAYS_33..DAYS_33, 1_u64..100), 1..40),
    ) {
        let mut cluster = Cluster::new([Some(0); 3], DATE);
        for (place, off, seconds) in jumps {
            cluster.off = [Some(0); 3];
            cluster.off[place] = Some(off);
            cluster.pass(seconds * SECOND);
            let error = cluster.write().unsigned_abs();
            prop_assert!(error <= micros(TOLERANCE) + 2, "{error}");
        }
    }

    #[test]
    fn times_ascend_and_nothing_overflows_with_any_clocks(
        rounds in proptest::collection::vec(
            (any::<u64>(), any::<u64>(), proptest::option::of(any::<u64>()), 0_u64..1_000_000_000_000),
            1..40,
        ),
    ) {
        let mut log = LogClock::default();
        log.set_others([2, 3].into_iter());
        let (mut elapsed, mut last_at) = (0, Timestamp(7));
        for (own, two, three, passed) in rounds {
            elapsed += passed;
            log.hear(2, Timestamp(two), elapsed, elapsed);
            if let Some(three) = three {
                log.hear(3, Timestamp(three), elapsed, elapsed);
            }
            let now = ClockReading { wall: Timestamp(own), elapsed };
            let at = log.stamp(now, last_at);
            prop_assert!(at >= last_at);
            last_at = at.after(last_at);
            log.deviations(now);
        }
    }
}

#[test]
fn reading_the_time_does_not_influence_later_times() {
    let mut log = LogClock::default();
    log.set_others([2, 3].into_iter());
    let now = |elapsed| ClockReading { wall: Timestamp(DATE + DAYS_33.unsigned_abs() + elapsed), elapsed };
    assert_eq!(
        log.time(now(0), Timestamp(7)),
        Timestamp(7),
        "before a majority is known: the time of the newest entry"
    );
    assert!(!log.is_set());
    for id in [2, 3] {
        log.hear(id, Timestamp(DATE), 0, 0);
    }
    log.update(now(0), Timestamp(7), false);
    assert_eq!(
        log.time(now(0), Timestamp(7)),
        Timestamp(DATE),
        "the time of the majority, not of the own clock"
    );
}
