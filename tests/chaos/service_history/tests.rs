//! Histories that are right, and histories with one thing wrong.

use serde_json::json;

use super::*;

const A: &str = "chaos.a/k";
const D: &str = "chaos.d/k";

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
        history.strict.insert("chaos.d".into(), changes.iter().copied().collect());
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
    let violation_count = |events: &[(u64, Value)]| watched(&right(), 5, events).len();
    assert_eq!(violation_count(&all), 0);
    assert_eq!(watched(&right(), 6, &all[1..]).len(), 0);
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
