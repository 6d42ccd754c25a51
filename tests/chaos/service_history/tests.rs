//! Histories that are right, and histories with one thing wrong.

use serde_json::json;

use super::*;
use crate::chaos::history::Chosen;

const A: &str = "chaos.a/k";
const D: &str = "calm.d/k";

fn history(steps: &[(&str, u64, Option<&str>)]) -> ServiceHistory {
    let mut history = ServiceHistory::default();
    for (key, revision, value) in steps {
        history.add(key, *revision, value.map(str::to_owned)).unwrap();
    }
    history
}

/// Created at 5, changed at 7 in one batch with another, deleted at 9.
fn right() -> ServiceHistory {
    history(&[(A, 5, Some("v1")), (A, 7, Some("v2")), (A, 9, None), (D, 7, Some("v3"))])
}

fn write(key: &str, op: Kind, value: Option<&str>, revision: Option<u64>) -> Operation {
    let value = value.map(str::to_owned);
    Operation { value, revision, ret: 2, status: 200, ..Operation::new(0, key.into(), op, 1) }
}

fn operations() -> Vec<Operation> {
    let batched = |operation| Operation { batch: Some(1), ..operation };
    vec![
        write(A, Kind::Create, Some("v1"), Some(5)),
        batched(write(A, Kind::Patch, Some("v2"), Some(7))),
        batched(write(D, Kind::Put, Some("v3"), Some(7))),
        write(A, Kind::Delete, None, None),
    ]
}

fn violation_count(history: &ServiceHistory, operations: Vec<Operation>) -> usize {
    violations(history, &Answered { operations, ..Answered::default() }).len()
}

#[test]
fn a_write_that_is_lost_repeated_moved_or_invented_is_found() {
    assert_eq!(violation_count(&right(), operations()), 0);
    let mut twice = right();
    twice.add(A, 11, Some("v1".into())).unwrap();
    assert_eq!(violation_count(&twice, operations()), 1);
    let unknown = |ret| Operation { ret, status: 503, ..operations()[0].clone() };
    let with = |first: Operation| [&[first], &operations()[1..]].concat();
    assert_eq!(violation_count(&right(), with(unknown(0))), 0);
    assert_eq!(violation_count(&right(), with(unknown(2))), 1, "it was refused");
    assert_eq!(violation_count(&twice, with(unknown(0))), 1, "at most once");
    let moved = Operation { revision: Some(6), ..operations()[0].clone() };
    assert_eq!(violation_count(&right(), with(moved)), 1);
    assert_eq!(violation_count(&right(), operations()[1..].to_vec()), 1, "nobody wrote `v1`");
    let lost = write(A, Kind::Put, Some("v9"), Some(8));
    assert_eq!(violation_count(&right(), [operations(), vec![lost]].concat()), 1);
    assert_eq!(violation_count(&right(), operations()[..3].to_vec()), 1, "nobody deleted it");
    assert_eq!(violation_count(&right(), [operations(), operations()[3..].to_vec()].concat()), 1);
    assert!(right().add(A, 5, None).is_err());
}

#[test]
fn a_torn_batch_is_found() {
    let of = |one, two| history(&[(A, one, Some("v2")), (D, two, Some("v3"))]);
    let unknown = |operation: &Operation| Operation { ret: 0, status: 0, ..operation.clone() };
    let batch: Vec<_> = operations()[1..3].iter().map(unknown).collect();
    assert_eq!(violation_count(&of(7, 7), batch.clone()), 0);
    assert_eq!(violation_count(&ServiceHistory::default(), batch.clone()), 0);
    assert_eq!(violation_count(&history(&[(A, 7, Some("v2"))]), batch.clone()), 1);
    assert_eq!(violation_count(&history(&[(D, 7, Some("v3"))]), batch.clone()), 1);
    assert_eq!(violation_count(&of(7, 8), batch.clone()), 1);
    let delete = unknown(&Operation { batch: Some(1), ..write("chaos.b/k", Kind::Delete, None, None) });
    assert_eq!(violation_count(&of(7, 7), [batch, vec![delete]].concat()), 1, "the delete is not there");
}

#[test]
fn an_answer_that_is_not_of_its_revision_is_found() {
    let look = |at, found: Option<(u64, &str)>| {
        let found = found.map(|(revision, value)| (revision, value.to_owned()));
        let answered = Answered {
            point_in_time_reads: vec![PointInTimeRead { key: A.into(), at, is_gone: false, found }],
            ..Answered::default()
        };
        reads(&right(), &answered).len()
    };
    for (at, found) in
        [(4, None), (5, Some((5, "v1"))), (6, Some((5, "v1"))), (8, Some((7, "v2"))), (9, None)]
    {
        assert_eq!(look(at, found), 0);
    }
    for (at, found) in [(4, Some((5, "v1"))), (6, None), (7, Some((5, "v1"))), (8, Some((8, "v2")))] {
        assert_eq!(look(at, found), 1);
    }
    let read = |state, value: &str, revision| {
        let answer = Operation { state, result: Some(value.into()), ..write(A, Kind::Get, None, revision) };
        reads(&right(), &Answered { operations: vec![answer], ..Answered::default() }).len()
    };
    assert_eq!(read(Some(8), "v2", Some(7)), 0);
    assert_eq!(read(Some(6), "v2", Some(7)), 1);
    assert_eq!(read(None, "v2", Some(7)), 1);
}

#[test]
fn the_past_that_no_node_retains_is_a_followers() {
    let change = |value: &str| {
        let key = ("chaos.a", "k");
        json!([{"type": "config_updated", "config_definition_key": key.0, "config_key": key.1,
            "data": {"value": value}}])
    };
    let past = ServiceHistory::of_events(&[(5, change("v1")), (7, change("v2"))]);
    // The node shows the record as of its compaction revision, or not.
    for retained in [&[(A, 9, None), (D, 7, Some("v3"))][..], &[(A, 7, Some("v2")), (A, 9, None)]] {
        let whole = history(retained).with_past(7, &past);
        assert_eq!(whole.configs[A], right().configs[A]);
        assert!(!whole.configs.contains_key(D), "the follower did not receive it");
    }
    let gone = |at| {
        let read = PointInTimeRead { key: A.into(), at, is_gone: true, found: None };
        let history = history(&[]).with_past(7, &past);
        reads(&history, &Answered { point_in_time_reads: vec![read], ..Answered::default() }).len()
    };
    assert_eq!((gone(6), gone(7)), (0, 1));
}

#[test]
fn a_list_that_mixes_two_revisions_is_found() {
    let list = |state, group: Option<&str>, found: &[(&str, &str)]| {
        let found = found.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let (definition, group) = ("chaos.a".into(), group.map(str::to_owned));
        lists(&right(), &[ListRead { definition, group, call: 1, ret: 2, state, found }]).len()
    };
    assert_eq!(list(6, None, &[("k", "v1")]), 0);
    assert_eq!(list(6, Some("g1"), &[("k", "v1")]), 0);
    assert_eq!(list(6, Some("g2"), &[]), 0);
    assert_eq!(list(9, None, &[]), 0);
    for (state, group, wrong) in [(7, None, "v1"), (6, None, "v2"), (9, None, "v2"), (6, Some("g2"), "v1")] {
        assert_eq!(list(state, group, &[("k", wrong)]), 1, "{state} {wrong}");
    }
    assert_eq!(list(6, Some("g1"), &[]), 1);
}

#[test]
fn a_config_that_breaks_its_schema_is_found() {
    let odd = (0..).map(|number| format!("v{number}")).find(|value| is_odd(value)).unwrap();
    let with = |changes: &[(u64, bool)]| {
        let mut history = history(&[(D, 5, Some(&odd)), (D, 7, Some("v1"))]);
        history.strict.insert("calm.d".into(), changes.iter().copied().collect());
        schemas(&history).len()
    };
    assert_eq!(with(&[(3, false)]), 0);
    assert_eq!(with(&[(3, true), (4, false), (8, true)]), 0);
    assert_eq!(with(&[(3, true), (8, false)]), 1, "it was written then");
    assert_eq!(with(&[(3, false), (6, true)]), 1, "it was there");
}

#[test]
fn a_follower_that_misses_a_change_or_receives_one_twice_is_found() {
    let change = |key: &str, value: Option<&str>| {
        let (of, config) = key.split_once('/').unwrap();
        let kind = if value.is_some() { "config_updated" } else { "config_deleted" };
        let mut change = json!({"type": kind, "config_definition_key": of, "config_key": config});
        if let Some(value) = value {
            change["data"] = json!({"value": value});
        }
        change
    };
    let both = json!([change(D, Some("v3")), change(A, Some("v2"))]);
    let all = [(5, json!([change(A, Some("v1"))])), (7, both.clone()), (9, json!([change(A, None)]))];
    let violation_count = |events: &[(u64, Value)]| watched(&right(), &(5..=9), events).len();
    assert_eq!(violation_count(&all), 0);
    assert_eq!(watched(&right(), &(6..=9), &all[1..]).len(), 0);
    assert_eq!(violation_count(&all[..2]), 1);
    // What arrives after the end may have been received or not.
    for events in [&all[..], &all[..2]] {
        assert_eq!(watched(&right().until(8), &(5..=8), events).len(), 0);
    }
    assert_eq!(watched(&right().until(8), &(5..=8), &all[..1]).len(), 1);
    assert_eq!(violation_count(&all[1..]), 1);
    assert_eq!(violation_count(&[&all[..], &all[2..]].concat()), 2, "again, and not in order");
    assert_eq!(violation_count(&[all[1].clone(), all[0].clone(), all[2].clone()]), 1);
    assert_eq!(violation_count(&[all[0].clone(), (7, json!([both[0]])), all[2].clone()]), 1);
    assert_eq!(violation_count(&[all[0].clone(), (8, both), all[2].clone()]), 1);
    let with_prev = |prev: [Value; 4]| {
        let mut events = all.clone();
        let places = [(0, 0), (1, 0), (1, 1), (2, 0)];
        for ((event, place), prev) in places.into_iter().zip(prev) {
            events[event].1[place]["prev"] = prev;
        }
        violation_count(&events)
    };
    let [v1, v2] = ["v1", "v2"].map(|text| json!({"value": text}));
    assert_eq!(with_prev([json!(null), json!(null), v1.clone(), v2.clone()]), 0);
    assert_eq!(with_prev([json!(null), json!(null), v2, v1]), 2);
}

/// `A` is created at 5 and put at 7 with `D`; a transaction whose condition is of `A` and that reads both.
fn transaction(is: Is, decided: Option<(bool, u64)>, found: &[Option<(u64, &str)>]) -> Transaction {
    let found = found.iter().map(|found| found.map(|(revision, value)| (revision, value.to_owned())));
    let found = Some(found.collect());
    let decided = decided.map(|(succeeded, revision)| Chosen { succeeded, revision, found });
    let reads = vec![A.into(), D.into()];
    Transaction { branches: [1, 2], changes: [true, true], conditions: vec![(A.into(), is)], reads, decided }
}

/// The operations of `then` (batch 1: both changes at 7) and of `else` (batch 2: `v8`, which is nowhere).
fn of_branches(succeeded: Option<bool>) -> Vec<Operation> {
    let other = Operation { batch: Some(2), ..write("chaos.b/k", Kind::Upsert, Some("v8"), None) };
    let mut all = [operations(), vec![other]].concat();
    for operation in &mut all {
        let Some(batch) = operation.batch else { continue };
        match succeeded {
            None => (operation.ret, operation.status) = (0, 0),
            Some(succeeded) if succeeded == (batch == 1) => {}
            Some(_) => operation.status = 424,
        }
    }
    all
}

fn of_transaction(history: &ServiceHistory, succeeded: Option<bool>, made: Transaction) -> usize {
    let (operations, transactions) = (of_branches(succeeded), vec![made]);
    violations(history, &Answered { operations, transactions, ..Answered::default() }).len()
}

#[test]
fn a_transaction_that_does_not_rest_on_the_state_before_it_is_found() {
    let before = [Some((5, "v1")), None];
    for is in [Is::Revision(5), Is::Value("v1".into()), Is::Present] {
        let made = transaction(is.clone(), Some((true, 7)), &before);
        assert_eq!(of_transaction(&right(), Some(true), made), 0, "{is:?}");
    }
    for (is, found, count) in [
        // It held at no time, or only after the change.
        (Is::Revision(4), before, 1),
        (Is::Value("v2".into()), before, 1),
        (Is::Absent, before, 1),
        // It saw its own change, or another time.
        (Is::Revision(5), [Some((7, "v2")), None], 1),
        (Is::Revision(5), [Some((5, "v1")), Some((7, "v3"))], 1),
        (Is::Revision(5), [None, None], 1),
        (Is::Revision(5), [Some((7, "v2")), Some((7, "v3"))], 2),
    ] {
        let wrong = transaction(is.clone(), Some((true, 7)), &found);
        assert_eq!(of_transaction(&right(), Some(true), wrong), count, "{is:?} {found:?}");
    }
    // Another revision than the one that its changes have.
    let moved = transaction(Is::Revision(5), Some((true, 6)), &before);
    assert_eq!(of_transaction(&right(), Some(true), moved), 1);
}

#[test]
fn a_branch_that_was_not_chosen_must_not_be_there() {
    let both = {
        let mut history = right();
        history.add("chaos.b/k", 7, Some("v8".into())).unwrap();
        history
    };
    let made = |decided| transaction(Is::Revision(5), decided, &[Some((5, "v1")), None]);
    assert!(of_transaction(&both, Some(true), made(Some((true, 7)))) >= 1);
    // Of an unknown outcome one branch may be there, the one that the conditions choose, or none.
    assert_eq!(of_transaction(&right(), None, made(None)), 0);
    assert_eq!(of_transaction(&both, None, made(None)), 1);
    let none = history(&[(A, 5, Some("v1")), (A, 9, None)]);
    assert_eq!(of_transaction(&none, None, made(None)), 0);
    let other = history(&[(A, 5, Some("v1")), ("chaos.b/k", 7, Some("v8")), (A, 9, None)]);
    assert_eq!(of_transaction(&other, None, made(None)), 1, "the conditions hold at 6");
    assert_eq!(of_transaction(&other, None, transaction(Is::Revision(4), None, &[])), 0);
    assert_eq!(of_transaction(&right(), None, transaction(Is::Revision(4), None, &[])), 1);
}

#[test]
fn a_value_is_there_once_more_for_each_rollback() {
    let back = |ret, status| Operation {
        to: Some(5),
        ret,
        status,
        ..write(A, Kind::Rollback, Some("v1"), (ret > 0 && status == 200).then_some(11))
    };
    let with = |back: Operation| [operations(), vec![back]].concat();
    let mut again = right();
    again.add(A, 11, Some("v1".into())).unwrap();
    assert_eq!(violation_count(&again, with(back(2, 200))), 0);
    assert_eq!(violation_count(&again, with(back(0, 0))), 0);
    assert_eq!(violation_count(&right(), with(back(0, 0))), 0);
    assert_eq!(violation_count(&again, with(back(2, 424))), 1, "it was refused");
    assert_eq!(violation_count(&right(), with(back(2, 200))), 1, "it was lost");
    again.add(A, 12, Some("v1".into())).unwrap();
    assert_eq!(violation_count(&again, with(back(0, 0))), 1);
}

#[test]
fn two_claims_of_one_owner_are_found() {
    const ONE: &str = "chaos.claims/a";
    const OTHER: &str = "chaos.claims/b";
    assert_eq!(owner_of("v1"), owner_of("v7"));
    let right = [(ONE, 5, Some("v1")), (OTHER, 6, Some("v2")), (ONE, 7, None), (OTHER, 8, Some("v7"))];
    assert_eq!(claims(&history(&right)), Vec::<String>::new());
    assert_eq!(claims(&history(&[right[0], right[1], right[3]])).len(), 1);
    // Configs of other definitions may have it.
    assert_eq!(claims(&history(&[right[0], (A, 6, Some("v7"))])).len(), 0);
}
