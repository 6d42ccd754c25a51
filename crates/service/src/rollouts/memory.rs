//! The reports of readers and the words of gates that a leader remembers.
//!
//! ```text
//! Memory ── Group, Group, …      of each rollout: the newest report of each of its readers
//!         └ Word, Word, …        of each gate and key: the newest thing that it has said
//! ```
//!
//! **Invariants:** it never has more than [`ROLLOUT_READERS_MAX`] readers of a rollout, [`REPORTED_READERS_MAX`] in all, and
//! [`GATE_WORDS_MAX`] words. What is full of readers that run well still takes a failure: the oldest of those makes room.
//! What it has is of one term, so a new leader begins with nothing.

use std::{collections::BTreeMap, sync::Arc};

use smol_str::SmolStr;
use tokio::time::{Duration, Instant};

use super::evidence::FailureReport;
use crate::request::Principal;
use concord_model::{
    limits::{
        GATE_WORDS_MAX, REPORT_AGE_S_MAX, REPORT_DETAILS_MAX, REPORTED_READERS_MAX, ROLLOUT_READERS_MAX,
        ROLLOUT_TIME_S_MAX,
    },
    system::{change::ChangeId, rollout::Reader},
    time::Timestamp,
};

/// How long a report counts.
const REPORT_AGE: Duration = Duration::from_secs(REPORT_AGE_S_MAX);
/// How long a word is kept: no plan counts an older one.
const WORD_AGE: Duration = Duration::from_secs(ROLLOUT_TIME_S_MAX as u64);

/// There is no room for a report or a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// One run of a rollout: its edition, and when it began. What readers have said of an earlier run counts for nothing.
pub(super) type Run = (u32, Timestamp);

/// When something is said, by the monotonic clock and by the time of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// What ages are counted by.
    pub(super) now: Instant,
    /// What is shown.
    pub(super) time: Timestamp,
}

/// What a memory has at most.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    readers_of_rollout: usize,
    readers: usize,
    words: usize,
}

const BOUNDS: Bounds =
    Bounds { readers_of_rollout: ROLLOUT_READERS_MAX, readers: REPORTED_READERS_MAX, words: GATE_WORDS_MAX };

/// All that a leader remembers.
#[derive(Debug)]
pub(super) struct Memory {
    term: u64,
    groups: BTreeMap<ChangeId, Group>,
    words: BTreeMap<(String, SmolStr), Word>,
    /// Numbers reports and words by their age.
    last_number: u64,
    bounds: Bounds,
}

impl Default for Memory {
    fn default() -> Self {
        Self { term: 0, groups: BTreeMap::new(), words: BTreeMap::new(), last_number: 0, bounds: BOUNDS }
    }
}

/// The reports about one run of a rollout.
#[derive(Debug, Default)]
struct Group {
    run: Option<Run>,
    /// The place of each reader in one of the two others.
    places: BTreeMap<Arc<str>, Place>,
    /// By age.
    healthy: BTreeMap<u64, Healthy>,
    /// By age.
    failed: BTreeMap<u64, Failed>,
    /// Those of `failed` that have a detail.
    details: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    number: u64,
    is_failed: bool,
}

#[derive(Debug)]
struct Healthy {
    reader: Arc<str>,
    at: Instant,
}

#[derive(Debug)]
struct Failed {
    reader: Arc<str>,
    at: Instant,
    time: Timestamp,
    /// What is shown of it; of the first [`REPORT_DETAILS_MAX`] only.
    detail: Option<Box<Detail>>,
}

#[derive(Debug)]
struct Detail {
    labels: Vec<(String, String)>,
    text: String,
}

/// What a key has said of a gate.
#[derive(Debug, Clone)]
pub(super) struct Word {
    /// Whether all is well.
    pub(super) is_ok: bool,
    /// What the monitor has seen.
    pub(super) evidence: String,
    /// When.
    pub(super) at: Moment,
    /// Whose key.
    pub(super) by: Principal,
    number: u64,
}

fn is_old(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) >= REPORT_AGE
}

impl Group {
    fn len(&self) -> usize {
        self.places.len()
    }

    /// Forgets a reader. Whether its last report was a failure.
    fn forget(&mut self, reader: &str) -> bool {
        let Some(place) = self.places.remove(reader) else { return false };
        if place.is_failed {
            let failed = self.failed.remove(&place.number);
            self.details -= usize::from(failed.is_some_and(|failed| failed.detail.is_some()));
        } else {
            self.healthy.remove(&place.number);
        }
        place.is_failed
    }

    /// Forgets what counts no more.
    fn expire(&mut self, now: Instant) {
        while let Some(oldest) = self.healthy.first_entry().filter(|oldest| is_old(oldest.get().at, now)) {
            self.places.remove(&*oldest.remove().reader);
        }
        while let Some(oldest) = self.failed.first_entry().filter(|oldest| is_old(oldest.get().at, now)) {
            let oldest = oldest.remove();
            self.details -= usize::from(oldest.detail.is_some());
            self.places.remove(&*oldest.reader);
        }
    }

    /// Forgets the oldest reader that runs well. Whether there was one.
    fn make_room(&mut self) -> bool {
        let Some((_, oldest)) = self.healthy.pop_first() else { return false };
        self.places.remove(&*oldest.reader);
        true
    }

    fn add(&mut self, number: u64, reader: &Reader, failure: Option<&str>, at: Moment) {
        let name: Arc<str> = reader.id.as_str().into();
        self.places.insert(Arc::clone(&name), Place { number, is_failed: failure.is_some() });
        let Some(text) = failure else {
            self.healthy.insert(number, Healthy { reader: name, at: at.now });
            return;
        };
        let detail = (self.details < REPORT_DETAILS_MAX).then(|| {
            let (labels, text) = (reader.labels.clone(), text.to_owned());
            Box::new(Detail { labels, text })
        });
        self.details += usize::from(detail.is_some());
        self.failed.insert(number, Failed { reader: name, at: at.now, time: at.time, detail });
    }
}

impl Memory {
    /// Forgets all that is of another term.
    pub(super) fn begin_term(&mut self, term: u64) {
        if self.term != term {
            *self = Self { term, bounds: self.bounds, ..Self::default() };
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn readers(&self) -> usize {
        self.groups.values().map(Group::len).sum()
    }

    /// The reports about a run, without those that count no more.
    fn group(&mut self, change: &ChangeId, run: Run, now: Instant) -> Option<&mut Group> {
        let group = self.groups.get_mut(change).filter(|group| group.run == Some(run))?;
        group.expire(now);
        Some(group)
    }

    /// Forgets a reader that is not in. It may have said so with other labels before.
    pub(super) fn forget_reader(&mut self, change: &ChangeId, reader: &Reader) {
        if let Some(group) = self.groups.get_mut(change) {
            group.forget(&reader.id);
        }
    }

    /// Takes the report of a reader that is in; `failure`: what it says of it, if it does not run well. Returns whether it
    /// is a failure of a reader that had none.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn report(
        &mut self,
        (change, run): (&ChangeId, Run),
        reader: &Reader,
        failure: Option<&str>,
        at: Moment,
    ) -> Result<bool, Full> {
        let group = self.groups.entry(change.clone()).or_default();
        if group.run != Some(run) {
            *group = Group { run: Some(run), ..Group::default() };
        }
        group.expire(at.now);
        let had_failed = group.forget(&reader.id);
        self.find_room(change, failure.is_some(), at.now)?;
        let number = self.next_number();
        self.groups.entry(change.clone()).or_default().add(number, reader, failure, at);
        Ok(failure.is_some() && !had_failed)
    }

    /// Makes room for one more reader of a rollout.
    fn find_room(&mut self, change: &ChangeId, is_failure: bool, now: Instant) -> Result<(), Full> {
        let Bounds { readers_of_rollout, readers, .. } = self.bounds;
        let own = self.groups.get_mut(change).ok_or(Full)?;
        if own.len() >= readers_of_rollout && !(is_failure && own.make_room()) {
            return Err(Full);
        }
        let own = own.len();
        if self.readers() < readers {
            return Ok(());
        }
        self.groups.values_mut().for_each(|group| group.expire(now));
        if self.readers() < readers {
            return Ok(());
        }
        // The rollout that has the most gives a place to any that has fewer, and to a failure in any case.
        let most = self.groups.values_mut().max_by_key(|group| group.healthy.len());
        let gives = most.is_some_and(|most| (is_failure || most.len() > own + 1) && most.make_room());
        if gives { Ok(()) } else { Err(Full) }
    }

    /// The readers that run well with a rollout, and those that do not.
    pub(super) fn count(&mut self, change: &ChangeId, run: Run, now: Instant) -> (u32, u32) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let group = self.group(change, run, now);
        group.map_or((0, 0), |group| (number(group.healthy.len()), number(group.failed.len())))
    }

    /// The failures of a rollout of which there are details, the newest first.
    pub(super) fn failures(&mut self, change: &ChangeId, run: Run, now: Instant) -> Vec<FailureReport> {
        let shown = |failed: &Failed| {
            let detail = failed.detail.as_ref()?;
            let (reader, labels) = (failed.reader.to_string(), detail.labels.clone());
            Some(FailureReport { reader, labels, detail: detail.text.clone(), at: failed.time })
        };
        let group = self.group(change, run, now);
        group.map(|group| group.failed.values().rev().filter_map(shown).collect()).unwrap_or_default()
    }

    /// Takes what a key says of a gate. `is_needed`: whether a rollout that runs waits for this gate and counts this key.
    /// Returns whether it is something else than it has said before.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn say(
        &mut self,
        gate: &str,
        (by, is_ok, evidence): (&Principal, bool, String),
        at: Moment,
        is_needed: impl Fn(&str, &Principal) -> bool,
    ) -> Result<bool, Full> {
        let place = (gate.to_owned(), by.id.clone());
        let before = self.words.remove(&place);
        if self.words.len() >= self.bounds.words {
            let unneeded = self.words.iter().filter(|((gate, _), word)| !is_needed(gate, &word.by));
            let oldest = unneeded.min_by_key(|(_, word)| word.number).map(|(place, _)| place.clone());
            // Who fills the memory keeps nobody's word out that something is wrong.
            let good = || self.words.iter().filter(|(_, word)| word.is_ok && !is_ok);
            let oldest_good = || good().min_by_key(|(_, word)| word.number).map(|(place, _)| place.clone());
            let oldest = oldest.or_else(oldest_good).ok_or(Full)?;
            self.words.remove(&oldest);
        }
        let number = self.next_number();
        self.words.insert(place, Word { is_ok, evidence, at, by: by.clone(), number });
        Ok(before.is_none_or(|before| before.is_ok != is_ok))
    }

    /// The newest word of a gate by a key that counts.
    pub(super) fn word(&self, gate: &str, counts: impl Fn(&Principal) -> bool) -> Option<&Word> {
        let first = (gate.to_owned(), SmolStr::default());
        let of_gate = self.words.range(first..).take_while(|((name, _), _)| name == gate);
        let newest_first = |(_, word): &(&_, &Word)| std::cmp::Reverse(word.number);
        let mut words: Vec<_> = of_gate.collect();
        words.sort_unstable_by_key(newest_first);
        words.into_iter().map(|(_, word)| word).find(|word| counts(&word.by))
    }

    /// Forgets what counts no more, and the reports about rollouts that do not run.
    pub(super) fn tidy(&mut self, now: Instant, runs: impl Fn(&ChangeId) -> bool) {
        self.groups.retain(|change, group| {
            group.expire(now);
            group.len() > 0 && runs(change)
        });
        self.words.retain(|_, word| now.saturating_duration_since(word.at.now) < WORD_AGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u32) -> ChangeId {
        ChangeId::parse(&format!("AbCdEf{number:06}")).unwrap()
    }

    fn reader(name: &str) -> Reader {
        Reader::parse(name, "ring=canary").unwrap()
    }

    const RUN: Run = (1, Timestamp(7));

    struct Tested {
        memory: Memory,
        begin: Instant,
        s: u64,
    }

    impl Tested {
        fn of(readers_of_rollout: usize, readers: usize, words: usize) -> Self {
            let bounds = Bounds { readers_of_rollout, readers, words };
            Self { memory: Memory { bounds, ..Memory::default() }, begin: Instant::now(), s: 0 }
        }

        fn at(&self) -> Moment {
            Moment { now: self.begin + Duration::from_secs(self.s), time: Timestamp(self.s) }
        }

        fn report(&mut self, of: u32, name: &str, failure: Option<&str>) -> Result<bool, Full> {
            let at = self.at();
            self.memory.report((&change(of), RUN), &reader(name), failure, at)
        }

        fn count(&mut self, of: u32) -> (u32, u32) {
            let now = self.at().now;
            self.memory.count(&change(of), RUN, now)
        }

        fn say(&mut self, gate: &str, key: &str, is_ok: bool, needed: &[&str]) -> Result<bool, Full> {
            let at = self.at();
            let said = (&Principal::named(key, 1), is_ok, String::new());
            self.memory.say(gate, said, at, |gate, _| needed.contains(&gate))
        }
    }

    #[test]
    fn the_newest_report_of_a_reader_counts_for_a_minute() {
        let mut tested = Tested::of(10, 10, 1);
        assert_eq!(tested.report(1, "a", None), Ok(false));
        tested.s = 30;
        assert_eq!(tested.report(1, "b", Some("no start")), Ok(true), "a new failure");
        assert_eq!(tested.report(1, "b", Some("no start")), Ok(false), "the same again");
        assert_eq!((tested.count(1), tested.count(2)), ((1, 1), (0, 0)));
        tested.s = 59;
        assert_eq!(tested.count(1), (1, 1));
        tested.s = 60;
        assert_eq!(tested.count(1), (0, 1), "a report is younger than a minute");
        assert_eq!(tested.report(1, "b", None), Ok(false));
        assert_eq!(tested.count(1), (1, 0), "the reader runs well by now");
        tested.s = 200;
        let now = tested.at().now;
        tested.memory.tidy(now, |_| true);
        assert!(tested.memory.groups.is_empty());
    }

    #[test]
    fn another_run_and_another_term_begin_with_nothing() {
        let mut tested = Tested::of(10, 10, 1);
        tested.report(1, "a", Some("")).unwrap();
        let now = tested.at().now;
        assert_eq!(tested.memory.count(&change(1), (2, Timestamp(7)), now), (0, 0));
        assert_eq!(tested.memory.count(&change(1), (1, Timestamp(8)), now), (0, 0));
        let at = tested.at();
        tested.memory.report((&change(1), (1, Timestamp(8))), &reader("b"), None, at).unwrap();
        assert_eq!(tested.memory.count(&change(1), (1, Timestamp(8)), now), (1, 0));
        tested.memory.begin_term(0);
        assert_eq!(tested.memory.readers(), 1);
        tested.memory.begin_term(4);
        assert_eq!(tested.memory.readers(), 0);
        assert_eq!(tested.memory.bounds.readers, 10, "its bounds stay");
    }

    #[test]
    fn readers_that_run_well_never_crowd_out_a_failure() {
        let mut tested = Tested::of(3, 100, 1);
        for name in ["a", "b", "c"] {
            tested.report(1, name, None).unwrap();
        }
        assert_eq!(tested.report(1, "d", None), Err(Full));
        assert_eq!(tested.report(1, "a", None), Ok(false), "a known reader has its place");
        assert_eq!(tested.report(1, "d", Some("x")), Ok(true));
        assert_eq!(tested.count(1), (2, 1));
        tested.report(1, "b", Some("x")).unwrap();
        tested.report(1, "e", Some("x")).unwrap();
        assert_eq!(tested.count(1), (0, 3));
        assert_eq!(tested.report(1, "f", Some("x")), Err(Full), "it is full of failures");
        tested.s = 61;
        assert_eq!(tested.report(1, "f", None), Ok(false), "old ones make room");
    }

    #[test]
    fn a_rollout_with_many_readers_leaves_places_for_the_others() {
        let mut tested = Tested::of(100, 6, 1);
        for name in ["a", "b", "c", "d", "e", "f"] {
            tested.report(1, name, None).unwrap();
        }
        for name in ["a", "b", "c"] {
            assert_eq!(tested.report(2, name, None), Ok(false));
        }
        assert_eq!((tested.count(1), tested.count(2)), ((3, 0), (3, 0)));
        assert_eq!(tested.report(2, "d", None), Err(Full), "both have the same");
        assert_eq!(tested.report(1, "g", Some("x")), Ok(true));
        assert_eq!(tested.memory.readers(), 6);
        for number in 0..5 {
            tested.report(3, &format!("r{number}"), Some("x")).unwrap();
        }
        assert_eq!(tested.memory.readers(), 6);
        assert_eq!(tested.report(3, "last", Some("x")), Err(Full), "nothing but failures");
    }

    #[test]
    fn so_many_failures_have_details_and_the_newest_is_the_first() {
        let mut tested = Tested::of(1000, 1000, 1);
        for number in 0..=REPORT_DETAILS_MAX {
            tested.report(1, &format!("r{number}"), Some("crash")).unwrap();
        }
        let now = tested.at().now;
        let shown = tested.memory.failures(&change(1), RUN, now);
        assert_eq!(shown.len(), REPORT_DETAILS_MAX);
        assert_eq!(tested.count(1).1 as usize, REPORT_DETAILS_MAX + 1);
        let labels = vec![("ring".to_owned(), "canary".to_owned())];
        let newest = FailureReport { reader: "r49".into(), labels, detail: "crash".into(), at: Timestamp(0) };
        assert_eq!(shown[0], newest);
        tested.report(1, "r0", None).unwrap();
        tested.report(1, "another", Some("late")).unwrap();
        assert_eq!(tested.memory.failures(&change(1), RUN, now)[0].detail, "late", "there was room again");
        tested.memory.forget_reader(&change(1), &reader("another"));
        assert_eq!(tested.memory.groups[&change(1)].details, REPORT_DETAILS_MAX - 1);
    }

    #[test]
    fn the_newest_word_of_a_gate_by_a_key_that_counts_is_taken() {
        let mut tested = Tested::of(1, 1, 10);
        assert_eq!(tested.say("errors", "a", true, &[]), Ok(true));
        assert_eq!(tested.say("errors", "a", true, &[]), Ok(false), "the same again");
        assert_eq!(tested.say("errors", "b", false, &[]), Ok(true));
        assert_eq!(tested.say("error", "b", true, &[]), Ok(true));
        let word = |gate: &str, key: Option<&str>| {
            let word = tested.memory.word(gate, |by| key.is_none_or(|key| by.id == key));
            word.map(|word| word.is_ok)
        };
        assert_eq!((word("errors", None), word("errors", Some("a"))), (Some(false), Some(true)));
        assert_eq!((word("error", None), word("err", None)), (Some(true), None));
        assert_eq!(word("errors", Some("c")), None);
    }

    #[test]
    fn words_that_no_rollout_needs_make_room_and_others_do_not() {
        let mut tested = Tested::of(1, 1, 2);
        tested.say("needed", "a", false, &[]).unwrap();
        tested.say("junk", "a", true, &[]).unwrap();
        assert_eq!(tested.say("other", "a", true, &["needed"]), Ok(true));
        assert!(tested.memory.word("needed", |_| true).is_some());
        assert!(tested.memory.word("junk", |_| true).is_none());
        assert_eq!(tested.say("third", "a", true, &["needed", "other"]), Err(Full));
        assert_eq!(
            tested.say("other", "a", false, &["needed", "other"]),
            Ok(true),
            "a known one has its place"
        );
        tested.s = u64::from(ROLLOUT_TIME_S_MAX);
        let now = tested.at().now;
        tested.memory.tidy(now, |_| true);
        assert!(tested.memory.words.is_empty());
    }
}
