//! Each kind of wrong run is found, and a right one is not.

use serde_json::json;

use super::*;
use crate::chaos::changes::deed::By;

const ID: &str = "AAAAAAAAAAAA";
const RECORD: &str = "marks.mark0/mark0-k0";

fn by(name: &str) -> By {
    let person = Some(name.to_owned()).filter(|name| name != "root" && name != "machine");
    By { key: name.to_owned(), person }
}

fn deed(what: What, name: &str, call: u64) -> Deed {
    Deed {
        what,
        by: by(name),
        of: Some(ID.into()),
        digest: Some("d1".into()),
        call,
        ret: call + 1,
        status: 200,
        ..Deed::default()
    }
}

fn vote(name: &str, at: u64) -> Vote {
    Vote { key: name.into(), at }
}

/// What a run has left.
#[derive(Clone)]
struct Run {
    deeds: Vec<Deed>,
    ends: BTreeMap<String, End>,
    rules: BTreeMap<(String, u64), Rules>,
    record: Shown,
    events: BTreeMap<u64, Event>,
}

impl Run {
    /// `ann` changes a config that `root` has made, `carol` approves that, and `ann` applies it.
    fn right() -> Self {
        let step = Step::with(RECORD, Does::Patch, "mark0-7".into());
        let applied = Applied {
            revision: 20,
            at: 2000,
            by: "ann".into(),
            scheduled_by: String::new(),
            approved_by: vec!["carol".into()],
        };
        let open = Shown {
            id: ID.into(),
            title: "mark0 t1".into(),
            phase: "open".into(),
            edition: 1,
            digest: "d1".into(),
            definitions: vec!["marks.mark0".into()],
            authors: vec!["ann".into()],
            sent_at: 1000,
            ..Shown::default()
        };
        let record = Shown {
            phase: "applied".into(),
            approvals: vec![vote("carol", 1500)],
            applied: Some(applied),
            ..open.clone()
        };
        let create = Deed {
            of: None,
            digest: None,
            title: Some("mark0 t1".into()),
            steps: vec![step],
            shown: Some(open.clone()),
            ..deed(What::Create, "ann", 10)
        };
        let preview = Deed {
            digest: None,
            shown: Some(open),
            bases: BTreeMap::from([(RECORD.to_owned(), Some(9))]),
            ..deed(What::Preview, "ann", 20)
        };
        let apply = Deed { shown: Some(record.clone()), ..deed(What::Apply, "ann", 50) };
        let before = Step::with(RECORD, Does::Put, "mark0-3".into());
        let direct =
            Deed { of: None, digest: None, steps: vec![before.clone()], ..deed(What::Direct, "root", 1) };
        let mut after = before.data();
        after["value"] = json!("mark0-7");
        let event = |at, data| Event { at, changed: BTreeMap::from([(RECORD.to_owned(), Some(data))]) };
        let rules = Rules { refuses: true, approvals: 1, freezes: Vec::new() };
        Self {
            deeds: vec![direct, create, preview, deed(What::Approve, "carol", 30), apply],
            ends: BTreeMap::new(),
            rules: BTreeMap::from([(("marks".to_owned(), 10), rules)]),
            record,
            events: BTreeMap::from([(9, event(900, before.data())), (20, event(2000, after))]),
        }
    }

    fn found(self) -> Vec<String> {
        let past = Recorded { records: vec![self.record], events: self.events, compacted: 0 };
        Ledger::new(self.deeds, self.ends, self.rules, past).check()
    }

    fn applied(&mut self) -> &mut Applied {
        self.record.applied.as_mut().expect("it is applied")
    }

    fn rules(&mut self) -> &mut Rules {
        self.rules.values_mut().next().expect("they are there")
    }
}

type Wrong = (&'static str, fn(&mut Run));

const WRONG: [Wrong; 22] = [
    ("C1: 1 approvals were needed", |run| run.applied().approved_by.clear()),
    ("C1: 2 approvals were needed", |run| run.rules().approvals = 2),
    ("C1: 2 approvals were needed", |run| run.record.authors.push("machine".into())),
    ("C1: carol is an author", |run| run.record.authors.push("carol".into())),
    ("revoked up to revision 19", |run| {
        run.ends.insert("carol/0".into(), End { at: 100, revision: Some(19) });
    }),
    ("attested anew at 1700", |run| {
        let rotated = Deed { of: Some("carol".into()), at: Some(1700), ..deed(What::Rotate, "root", 40) };
        run.deeds.push(rotated);
    }),
    ("it was rejected and applied", |run| {
        run.record.rejections.push(vote("dan", 1600));
        run.deeds.push(deed(What::Reject, "dan", 35));
    }),
    ("C1: the person of carol2 has two votes", |run| {
        run.record.approvals.push(vote("carol2", 1600));
        let second = Deed { by: By { key: "carol2".into(), ..by("carol") }, ..deed(What::Approve, "", 35) };
        run.deeds.push(second);
    }),
    ("C2: nobody gave this vote", |run| run.deeds[3].digest = Some("d0".into())),
    ("C2: nobody gave this vote", |run| run.deeds[3].status = 409),
    ("C2: the vote of carol is older", |run| run.record.sent_at = 1600),
    ("C2: accepted for an earlier edition", |run| {
        let shown = Shown { edition: 2, digest: "d2".into(), ..run.record.clone() };
        run.deeds.push(Deed { shown: Some(shown), ..deed(What::Rebase, "bob", 25) });
    }),
    ("C1: an author has voted", |run| run.deeds.push(deed(What::Approve, "ann", 35))),
    ("C3: at revision 20", |run| {
        let other = ("marks.mark1/mark1-k0".to_owned(), None);
        run.events.get_mut(&20).expect("it is there").changed.extend([other]);
    }),
    ("C3: at revision 20", |run| {
        run.deeds[1].steps.push(Step::new("marks.mark1/mark1-k0", Does::Delete));
    }),
    ("C3: `mark0-7` is in the history", |run| {
        let again = run.events[&20].clone();
        run.events.insert(21, Event { at: 2100, ..again });
    }),
    ("C4: `marks.mark0/mark0-k0` was Some(9)", |run| {
        run.deeds[2].bases.insert(RECORD.into(), Some(8));
    }),
    ("C4: `marks.mark0/mark0-k0` changed", |run| {
        run.events.get_mut(&9).expect("it is there").at = 1100;
    }),
    ("C5: no change request names", |run| {
        run.record.applied = None;
    }),
    ("F1: revision 20 is in the freeze", |run| run.rules().freezes.push((1900, 2001))),
    ("it was acknowledged, and is lost", |run| run.record.approvals.clear()),
    ("accepted after the end of its key", |run| {
        run.ends.insert("ann/0".into(), End { at: 40, revision: None });
    }),
];

#[test]
fn a_right_run_has_no_violation() {
    assert_eq!(Run::right().found(), [""; 0]);
    // An answer that was lost proves nothing, in either direction.
    let mut unknown = Run::right();
    unknown.deeds.iter_mut().for_each(|deed| deed.ret = 0);
    assert_eq!(unknown.found(), [""; 0]);
    // A key that ended with the apply or after it.
    let mut later = Run::right();
    later.ends.insert("carol/0".into(), End { at: 100, revision: Some(20) });
    let rotated = |at| Deed { of: Some("carol".into()), at: Some(at), ..deed(What::Rotate, "root", 60) };
    later.deeds.extend([rotated(1400), rotated(2100)]);
    assert_eq!(later.found(), [""; 0]);
}

#[test]
fn each_kind_of_wrong_run_is_found() {
    for (expected, change) in WRONG {
        let mut run = Run::right();
        change(&mut run);
        let found = run.found();
        assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:#?}");
    }
}

/// The run, in which the cluster takes the change back three microseconds after the apply.
fn taken_back() -> Run {
    let mut run = Run::right();
    run.deeds[1].timing.revert_after = Some(3);
    let revert = Reverted { state: "done".into(), revision: Some(30), at: 2003, ..Reverted::default() };
    run.record.revert = Some(revert);
    let before = run.events[&9].changed.clone();
    run.events.insert(30, Event { at: 2003, changed: before });
    run
}

/// The run, in which this person keeps what the cluster was to take back.
fn kept_by(name: &str) -> Run {
    let mut run = taken_back();
    run.events.remove(&30);
    run.record.revert =
        Some(Reverted { state: "kept".into(), by: name.into(), at: 2002, ..Reverted::default() });
    run.deeds.push(Deed { shown: Some(run.record.clone()), ..deed(What::Keep, name, 60) });
    run
}

#[test]
fn a_revert_is_compared_with_what_was_there_before() {
    assert_eq!(taken_back().found(), [""; 0]);
    let mut by_hand = taken_back();
    by_hand.record.revert.as_mut().expect("it is taken back").by = "carol".into();
    by_hand.deeds.push(Deed { shown: Some(by_hand.record.clone()), ..deed(What::Revert, "carol", 60) });
    assert_eq!(by_hand.found(), [""; 0]);
    assert_eq!(kept_by("carol").found(), [""; 0]);
    assert!(kept_by("dan").found()[0].starts_with("T2: it was kept by somebody who may not"));
    let wrong: [Wrong; 8] = [
        ("T2: it was to be taken back, and nothing says so", |run| run.record.revert = None),
        ("it was acknowledged, and is lost", |run| run.deeds.extend(kept_by("carol").deeds.pop())),
        ("T2: it was taken back too early", |run| run.deeds[1].timing.revert_after = Some(4)),
        ("T2: it was taken back too early", |run| run.deeds[1].timing.revert_after = None),
        ("T2: it was taken back too early", |run| {
            run.record.revert.as_mut().expect("it is taken back").by = "dan".into();
        }),
        ("T2: the revert left", |run| {
            let now = run.events[&20].changed.clone();
            run.events.get_mut(&30).expect("it is there").changed = now;
        }),
        ("T2: `marks.mark0/mark0-k0` was changed at Some(25)", |run| {
            let now = run.events[&20].clone();
            run.events.insert(25, now);
        }),
        ("T2: a revert failed although", |run| {
            run.events.remove(&30);
            let failed = Reverted { state: "failed".into(), ..Reverted::default() };
            run.record.revert = Some(failed);
        }),
    ];
    for (expected, change) in wrong {
        let mut run = taken_back();
        change(&mut run);
        let found = run.found();
        assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:#?}");
    }
}

#[test]
fn an_apply_outside_its_window_is_found() {
    for (window, wrong) in [((1900, 2000), 0), ((2000, 2100), 0), ((2001, 2100), 1), ((1900, 1999), 1)] {
        let mut run = Run::right();
        run.deeds[1].timing.window = Some(window);
        assert_eq!(run.found().len(), wrong, "{window:?}");
    }
}

#[test]
fn a_rejection_that_was_applied_is_found() {
    let mut run = Run::right();
    run.deeds[1].status = 409;
    assert!(run.found().iter().any(|text| text.contains("it was rejected, and is there")));
    let mut run = Run::right();
    run.deeds[4].status = 409;
    assert!(run.found().iter().any(|text| text.contains("nobody applied it with the key ann")));
}

#[test]
fn a_key_that_one_person_has_attested_counts_for_nothing() {
    let mut run = Run::right();
    let ghost = By { key: "ghost".into(), person: Some("ghost1".into()) };
    run.deeds[3].by = ghost;
    run.record.approvals = vec![vote("ghost", 1500)];
    run.applied().approved_by = vec!["ghost".into()];
    let attest = |name, is_attested| Deed {
        of: Some("ghost".into()),
        digest: None,
        is_attested,
        ..deed(What::Attest, name, 5)
    };
    let mut alone = run.clone();
    alone.deeds.push(attest("gus", true));
    let found = alone.found();
    for expected in ["attested the key", "one person alone has attested a key"] {
        assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:#?}");
    }
    run.deeds.extend([attest("gus", false), attest("hal", true)]);
    let found = run.found();
    assert!(!found.iter().any(|text| text.contains("attested the key")), "{found:#?}");
    assert!(!found.iter().any(|text| text.contains("attested a key")), "{found:#?}");
}
