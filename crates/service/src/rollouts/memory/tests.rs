//! What the memory counts, forgets and has room for.

use super::*;

fn change(number: u32) -> ChangeId {
    ChangeId::parse(&format!("AbCdEf{number:06}")).unwrap()
}

fn reader(name: &str) -> Reader {
    Reader::parse(name, "ring=canary").unwrap()
}

const RUN: Run = (1, Timestamp(7));

const NO_INSTANCE: SmolStr = SmolStr::new_static("");

struct Tested {
    memory: Memory,
    begin: Instant,
    s: u64,
}

impl Tested {
    fn of(of_subject: usize, reports: usize, words: usize) -> Self {
        let bounds = Bounds { of_subject, reports, of_configs: reports / 2, of_key: reports / 2, words };
        Self { memory: Memory { bounds, ..Memory::default() }, begin: Instant::now(), s: 0 }
    }

    fn at(&self) -> Moment {
        Moment { now: self.begin + Duration::from_secs(self.s), time: Timestamp(self.s) }
    }

    fn report(&mut self, of: u32, name: &str, failure: Option<&str>) -> Result<bool, Full> {
        self.report_instance(of, (name, ""), failure)
    }

    fn report_instance(
        &mut self,
        of: u32,
        (name, instance): (&str, &str),
        failure: Option<&str>,
    ) -> Result<bool, Full> {
        let (at, change) = (self.at(), change(of));
        let about = About::Rollout(&change, RUN);
        let taken = self.memory.report(about, (&reader(name), &instance.into()), failure, at)?;
        assert_ne!(taken, Taken::Dropped);
        Ok(taken == Taken::News)
    }

    /// A report about revision `revision` of a config by a key; its reader is the name.
    fn say_of(
        &mut self,
        (config, revision): (&str, Revision),
        (by, name): (&str, &str),
        failure: Option<&str>,
    ) -> Result<Taken, Full> {
        let (at, key, by) = (self.at(), Key::parse(config).unwrap(), by.into());
        let about = About::Config { definition: 1, key: &key, revision, by: &by };
        self.memory.report(about, (&reader(name), &NO_INSTANCE), failure, at)
    }

    fn of_config(&mut self, config: &str, revision: Revision) -> (u32, u32) {
        let now = self.at().now;
        let key = Key::parse(config).unwrap();
        let (healthy, failed, _) = self.memory.of_config((1, &key, revision), now);
        (healthy, failed)
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
fn a_reader_has_failed_as_long_as_one_of_its_instances_has() {
    let mut tested = Tested::of(10, 10, 1);
    assert_eq!(tested.report_instance(1, ("host", "one"), Some("no start")), Ok(true));
    assert_eq!(tested.report_instance(1, ("host", "two"), None), Ok(false));
    assert_eq!(tested.count(1), (0, 1), "the newer report hides no failure");
    assert_eq!(tested.report_instance(1, ("host", "two"), Some("no end")), Ok(false), "it had failed");
    assert_eq!(tested.report_instance(1, ("host", "one"), None), Ok(false));
    assert_eq!(tested.count(1), (0, 1));
    tested.report_instance(1, ("host", "two"), None).unwrap();
    assert_eq!(tested.count(1), (1, 0), "a reader counts once");
    tested.report_instance(1, ("host", "two"), Some("x")).unwrap();
    tested.s = 30;
    tested.report_instance(1, ("host", "one"), None).unwrap();
    tested.s = 60;
    assert_eq!(tested.count(1), (1, 0), "the failure is old");
    tested.s = 90;
    assert_eq!(tested.count(1), (0, 0));
    let group = &tested.memory.groups[&Subject::Rollout(change(1))];
    assert!(group.readers.is_empty() && group.places.is_empty() && tested.memory.totals.reports == 0);
}

#[test]
fn a_report_about_a_config_counts_as_long_as_its_revision_is_the_current_one() {
    let mut tested = Tested::of(10, 10, 1);
    assert_eq!(tested.say_of(("k", 7), ("key", "a"), Some("no number")), Ok(Taken::News));
    assert_eq!(tested.say_of(("k", 6), ("key", "a"), None), Ok(Taken::Dropped), "of earlier data");
    assert_eq!(tested.say_of(("k", 7), ("key", "b"), None), Ok(Taken::Counted), "another reader");
    assert_eq!(tested.say_of(("l", 6), ("key", "a"), None), Ok(Taken::Counted), "another config");
    assert_eq!((tested.of_config("k", 7), tested.of_config("l", 6)), ((1, 1), (1, 0)));
    let (subject, now) = (Subject::Config(1, Key::parse("k").unwrap()), tested.at().now);
    let said = tested.memory.said(&subject, Version::Revision(7), ["a", "b", "c"].into_iter(), now);
    let a = Said { is_failed: true, detail: Some("no number".into()), revision: 7, at: Timestamp(0) };
    let b = Said { is_failed: false, detail: None, revision: 7, at: Timestamp(0) };
    assert_eq!(said, [Some(a), Some(b), None]);
    assert_eq!(tested.of_config("k", 8), (0, 0), "the failure was of the data before");
    assert_eq!(tested.say_of(("k", 8), ("key", "a"), None), Ok(Taken::Counted));
    assert_eq!((tested.of_config("k", 8), tested.of_config("k", 7)), ((1, 0), (0, 0)));
    tested.s = 60;
    assert_eq!(tested.of_config("k", 8), (0, 0));
    tested.memory.tidy(tested.begin + Duration::from_secs(60), |_| true);
    assert!(tested.memory.groups.is_empty() && tested.memory.totals.of_keys.is_empty());
}

#[test]
fn a_key_takes_no_more_than_its_part_and_configs_take_nothing_from_rollouts() {
    // Two keys may have three reports about configs each, and all keys four; there are eight in all.
    let mut tested = Tested::of(100, 8, 1);
    (tested.memory.bounds.of_key, tested.memory.bounds.of_configs) = (3, 4);
    for name in ["a", "b", "c"] {
        tested.say_of(("k", 1), ("loud", name), None).unwrap();
    }
    assert_eq!(tested.say_of(("l", 1), ("loud", "a"), None), Err(Full), "its part is used up");
    assert_eq!(tested.say_of(("l", 1), ("loud", "a"), Some("x")), Ok(Taken::News), "a failure");
    assert_eq!((tested.of_config("k", 1), tested.of_config("l", 1)), ((2, 0), (0, 1)));
    assert_eq!(tested.say_of(("m", 1), ("quiet", "a"), None), Ok(Taken::Counted));
    assert_eq!(tested.say_of(("m", 1), ("quiet", "b"), None), Err(Full), "all are used up");
    assert_eq!(tested.say_of(("m", 1), ("quiet", "b"), Some("x")), Ok(Taken::News));
    assert_eq!((tested.of_config("k", 1), tested.of_config("m", 1)), ((1, 0), (1, 1)));
    for name in ["a", "b", "c", "d"] {
        assert_eq!(tested.report(1, name, None), Ok(false), "rollouts have their places");
    }
    for (name, key) in [("c", "quiet"), ("d", "other"), ("e", "other")] {
        let taken = tested.say_of(("m", 1), (key, name), Some("x"));
        assert_eq!(taken.is_ok(), name != "e", "{name}: nothing is left but failures");
    }
    assert_eq!((tested.memory.totals.reports, tested.count(1)), (8, (4, 0)));
}

#[test]
fn of_one_config_a_key_may_send_half_of_what_the_others_leave() {
    let mut tested = Tested::of(8, 100, 1);
    for name in ["a", "b", "c", "d"] {
        tested.say_of(("k", 1), ("loud", name), Some("x")).unwrap();
    }
    assert_eq!(tested.say_of(("k", 1), ("loud", "e"), Some("x")), Err(Full), "its part");
    assert_eq!(tested.say_of(("k", 1), ("loud", "a"), None), Ok(Taken::Counted), "it replaces its own");
    assert_eq!(tested.say_of(("k", 1), ("loud", "e"), Some("x")), Ok(Taken::News), "in place of it");
    for (by, name) in [("two", "f"), ("two", "g"), ("three", "h"), ("four", "i")] {
        assert_eq!(tested.say_of(("k", 1), (by, name), Some("x")), Ok(Taken::News), "{by}");
    }
    assert_eq!(tested.of_config("k", 1), (0, 8));
}

#[test]
fn what_is_rejected_changes_nothing() {
    let mut tested = Tested::of(100, 8, 1);
    (tested.memory.bounds.of_key, tested.memory.bounds.of_configs) = (1, 4);
    tested.say_of(("k", 1), ("one", "a"), Some("x")).unwrap();
    tested.say_of(("l", 1), ("two", "b"), None).unwrap();
    assert_eq!(tested.say_of(("k", 1), ("two", "a"), None), Err(Full), "its part is used up");
    assert_eq!(tested.of_config("k", 1), (0, 1), "the failure stays");
}

#[test]
fn each_reader_that_has_failed_is_listed_once() {
    let mut tested = Tested::of(1000, 1000, 1);
    let key = Key::parse("k").unwrap();
    let by: SmolStr = "key".into();
    let mut fail = |name: &str, instance: &str| {
        let about = About::Config { definition: 1, key: &key, revision: 1, by: &by };
        let at = Moment { now: tested.begin, time: Timestamp(0) };
        tested.memory.report(about, (&reader(name), &instance.into()), Some("x"), at).unwrap();
    };
    for number in 0..REPORT_DETAILS_MAX {
        fail("host", &number.to_string());
    }
    for number in 0..=REPORT_DETAILS_MAX {
        fail(&format!("r{number}"), "");
    }
    let (_, failed, failures) = tested.memory.of_config((1, &key, 1), tested.begin);
    let readers: BTreeSet<&str> = failures.iter().map(|failure| failure.reader.as_str()).collect();
    assert_eq!(
        (failed as usize, failures.len(), readers.len()),
        (REPORT_DETAILS_MAX + 2, failures.len(), failures.len())
    );
    assert_eq!(failures.len(), REPORT_DETAILS_MAX + 2);
    let details = failures.iter().filter(|failure| !failure.detail.is_empty()).count();
    assert_eq!(details, REPORT_DETAILS_MAX, "instances of one reader take the place of one");
}

#[test]
fn another_run_and_another_term_begin_with_nothing() {
    let mut tested = Tested::of(10, 10, 1);
    tested.report(1, "a", Some("")).unwrap();
    let now = tested.at().now;
    assert_eq!(tested.memory.count(&change(1), (2, Timestamp(7)), now), (0, 0));
    assert_eq!(tested.memory.count(&change(1), (1, Timestamp(8)), now), (0, 0));
    let at = tested.at();
    let (first, later) = (change(1), (1, Timestamp(8)));
    let about = About::Rollout(&first, later);
    tested.memory.report(about, (&reader("b"), &NO_INSTANCE), None, at).unwrap();
    assert_eq!(tested.memory.count(&change(1), (1, Timestamp(8)), now), (1, 0));
    tested.memory.begin_term(0);
    assert_eq!(tested.memory.totals.reports, 1);
    tested.memory.begin_term(4);
    assert_eq!(tested.memory.totals.reports, 0);
    assert_eq!(tested.memory.bounds.reports, 10, "its bounds stay");
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
    assert_eq!(tested.memory.totals.reports, 6);
    for number in 0..5 {
        tested.report(3, &format!("r{number}"), Some("x")).unwrap();
    }
    assert_eq!(tested.memory.totals.reports, 6);
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
    let newest = FailureReport {
        reader: "r49".into(),
        instance: String::new(),
        labels,
        detail: "crash".into(),
        revision: 0,
        at: Timestamp(0),
    };
    assert_eq!(shown[0], newest);
    tested.report(1, "r0", None).unwrap();
    tested.report(1, "another", Some("late")).unwrap();
    assert_eq!(tested.memory.failures(&change(1), RUN, now)[0].detail, "late", "there was room again");
    tested.report(1, "another", None).unwrap();
    assert_eq!(tested.memory.groups[&Subject::Rollout(change(1))].details, REPORT_DETAILS_MAX - 1);
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
    assert_eq!(tested.say("other", "a", false, &["needed", "other"]), Ok(true), "a known one has its place");
    tested.s = u64::from(ROLLOUT_TIME_S_MAX);
    let now = tested.at().now;
    tested.memory.tidy(now, |_| true);
    assert!(tested.memory.words.is_empty());
}
