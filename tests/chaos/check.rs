//! Checks the record of a run by itself.
//!
//! Two independent checkers that know the answers only; `service_history` knows the service's own history too. The
//! one per key is a crate (`todc-utils`: Wing and Gong's search with Lowe's extension) and compares revisions for
//! equality only. The one of revisions reads all keys and lists together: revisions follow real time, and a list shows
//! what its revision says.

use std::collections::BTreeMap;

use todc_utils::{
    linearizability::{
        WGLChecker,
        history::{Action, History as Actions},
    },
    specifications::Specification,
};

use super::{
    history::{Chosen, History, Is, Kind, ListRead, Operation, Transaction},
    stored_keys::accepted_after_the_end,
    workload::group_of,
};

/// A config as the specification knows it: its value, and its revision where an answer named it.
type Cell = Option<(String, Option<u64>)>;

struct ConfigSpec;

impl Specification for ConfigSpec {
    type State = Cell;
    type Operation = Operation;

    fn init() -> Cell {
        None
    }

    fn apply(operation: &Operation, state: &Cell) -> (bool, Cell) {
        let tested = |value: &String| operation.tested.as_ref().is_none_or(|tested| tested == value);
        let fits = |state: &Cell| match (state, operation.expected) {
            (Some((value, Some(is))), Some(expected)) => *is == expected && tested(value),
            (Some((value, _)), _) => tested(value),
            (None, _) => false,
        };
        let written = || operation.value.clone().map(|value| (value, operation.revision));
        if operation.ret == 0 {
            // Unknown: it was applied here, or not at all. Both are tried, because an unknown operation may be
            // placed at the end.
            let next = match operation.op {
                Kind::Get => state.clone(),
                Kind::Create if state.is_none() => written(),
                Kind::Upsert | Kind::Rollback => written(),
                Kind::Put | Kind::Patch if fits(state) => written(),
                Kind::Delete if fits(state) => None,
                Kind::Create | Kind::Put | Kind::Patch | Kind::Delete => state.clone(),
            };
            return (true, next);
        }
        match (operation.op, operation.status) {
            (Kind::Get, 200) => {
                let same = state.as_ref().is_some_and(|(value, revision)| {
                    Some(value) == operation.result.as_ref()
                        && (revision.is_none() || *revision == operation.revision)
                });
                (same, operation.result.clone().map(|value| (value, operation.revision)))
            }
            (Kind::Get | Kind::Put | Kind::Patch | Kind::Delete, 404) => (state.is_none(), state.clone()),
            (Kind::Create, 201) => (state.is_none(), written()),
            (Kind::Create, 409) => (state.is_some(), state.clone()),
            (Kind::Put | Kind::Patch, 200) => (fits(state), written()),
            (Kind::Upsert, 201) => (state.is_none(), written()),
            (Kind::Upsert, 200) => (state.is_some(), written()),
            // A batch that was sent again may not know any more which of the two it was.
            (Kind::Upsert, CREATED_OR_NOT) | (Kind::Rollback, 200) => (true, written()),
            // Its test found another value.
            (Kind::Patch, 409) => (state.as_ref().is_some_and(|(value, _)| !tested(value)), state.clone()),
            (Kind::Delete, 200) => (fits(state), None),
            (Kind::Put | Kind::Patch | Kind::Delete, 412) => {
                let differs = state
                    .as_ref()
                    .is_some_and(|(_, revision)| revision.is_none() || *revision != operation.expected);
                (differs, state.clone())
            }
            (
                Kind::Get
                | Kind::Create
                | Kind::Put
                | Kind::Upsert
                | Kind::Patch
                | Kind::Delete
                | Kind::Rollback,
                _,
            ) => (false, state.clone()),
        }
    }
}

/// The recorded status of an operation that was refused because of another operation of its batch, or of another config.
pub(crate) const FAILED_DEPENDENCY: u16 = 424;

/// The recorded status of an upsert of a batch whose answer leaves out whether it has created the config.
pub(crate) const CREATED_OR_NOT: u16 = 202;

/// Whether the operation says nothing of the state: a refusal before a decision or of the request itself, or a read
/// without an answer.
fn says_nothing(operation: &Operation) -> bool {
    // 410: the revision of a rollback is compacted.
    matches!(operation.status, 401 | 403 | 410 | 422 | FAILED_DEPENDENCY | 429 | 503 | 507)
        || (!operation.is_write() && operation.ret == 0)
}

/// All contradictions of a history by itself, in words.
pub(crate) fn violations(history: &History) -> Vec<String> {
    let operations = history.operations();
    let mut found = history.contradictions();
    found.extend(per_key(&operations));
    found.extend(revisions(&operations, &history.list_reads()));
    found.extend(lists(&operations, &history.list_reads()));
    found.extend(accepted_after_the_end(&operations, &history.ends()));
    found.extend(transactions(&history.transactions()));
    found
}

/// Transactions by their own answers: where all configs that the conditions are about were read, these say which branch
/// is the right one.
pub(crate) fn transactions(transactions: &[Transaction]) -> Vec<String> {
    let mut found = Vec::new();
    for transaction in transactions {
        let Some(Chosen { succeeded, found: Some(read), .. }) = &transaction.decided else { continue };
        let configs: BTreeMap<&String, &Option<(u64, String)>> = transaction.reads.iter().zip(read).collect();
        let holds = |(key, is): &(String, Is)| {
            let config = configs.get(key)?;
            Some(is.holds(config.as_ref().map(|(revision, value)| (*revision, value.as_str()))))
        };
        let held: Option<Vec<bool>> = transaction.conditions.iter().map(holds).collect();
        if held.is_some_and(|held| held.iter().all(|held| *held) != *succeeded) {
            found.push(format!("what was read chooses the other branch: {transaction:?}"));
        }
    }
    found
}

/// Linearizability of every key by the crate's checker.
pub(crate) fn per_key(operations: &[Operation]) -> Vec<String> {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| !says_nothing(operation)) {
        keys.entry(&operation.key).or_default().push(operation);
    }
    let mut found = Vec::new();
    for (key, operations) in keys {
        if !WGLChecker::<ConfigSpec>::is_linearizable(Actions::from_actions(actions(&operations))) {
            found.push(format!("`{key}` is not linearizable ({} operations)", operations.len()));
        }
    }
    found
}

/// Calls and responses in their order. Each operation is a process of its own; an unknown one responds at the end.
fn actions(operations: &[&Operation]) -> Vec<(usize, Action<Operation>)> {
    let mut events: Vec<(u64, u8, usize)> = Vec::new();
    for (process, operation) in operations.iter().enumerate() {
        events.push((operation.call, 0, process));
        events.push((if operation.ret == 0 { u64::MAX } else { operation.ret }, 1, process));
    }
    events.sort_unstable();
    let action = |(_, part, process): (u64, u8, usize)| {
        let operation = operations[process].clone();
        (process, if part == 0 { Action::Call(operation) } else { Action::Response(operation) })
    };
    events.into_iter().map(action).collect()
}

/// Revisions against real time, over all keys: a write that was acknowledged before another began has the lower
/// revision, no two have the same, and a state that answers is at least as new as every earlier acknowledgement.
pub(crate) fn revisions(operations: &[Operation], list_reads: &[ListRead]) -> Vec<String> {
    let mut found = Vec::new();
    let acknowledged: Vec<&Operation> = operations.iter().filter(|o| o.is_write() && o.is_done()).collect();
    let mut seen: BTreeMap<u64, &Operation> = BTreeMap::new();
    for operation in &acknowledged {
        // A delete's answer names no revision of its own.
        let Some(revision) = operation.revision else { continue };
        let other = seen.insert(revision, operation);
        if let Some(other) = other.filter(|other| other.batch.is_none() || other.batch != operation.batch) {
            found.push(format!("revision {revision} was given to {other:?} and to {operation:?}"));
        }
    }
    // Acknowledgements in the order of their returns, each with the greatest revision so far.
    let mut returns: Vec<(u64, u64)> =
        acknowledged.iter().filter_map(|o| Some((o.ret, o.revision.or(o.state)?))).collect();
    returns.sort_unstable();
    let mut newest = 0;
    for (_, revision) in &mut returns {
        newest = newest.max(*revision);
        *revision = newest;
    }
    let before = |call: u64| match returns.partition_point(|(ret, _)| *ret < call) {
        0 => 0,
        n => returns[n - 1].1,
    };
    for operation in operations.iter().filter(|o| o.is_done()) {
        let newest_before = before(operation.call);
        let is = if operation.is_write() { operation.revision } else { operation.state };
        if let Some(is) = is
            && (is < newest_before || (operation.is_write() && is == newest_before))
        {
            found.push(format!("revision {newest_before} was acknowledged before this began: {operation:?}"));
        }
    }
    for list in list_reads {
        let newest_before = before(list.call);
        if list.state < newest_before {
            found.push(format!(
                "a list of `{}` at revision {} began after {newest_before} was acknowledged",
                list.definition, list.state
            ));
        }
    }
    found
}

/// Lists against writes: what a list shows was written, is the newest acknowledged value at its revision, and
/// nothing that must be there is missing.
pub(crate) fn lists(operations: &[Operation], list_reads: &[ListRead]) -> Vec<String> {
    let mut by_key: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|o| o.is_write() && !says_nothing(o)) {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let mut found = Vec::new();
    for list in list_reads {
        let shown: BTreeMap<String, &str> = list
            .found
            .iter()
            .map(|(key, value)| (format!("{}/{key}", list.definition), value.as_str()))
            .collect();
        if shown.len() != list.found.len() {
            found.push(format!("a list of `{}` shows a config twice", list.definition));
        }
        for (key, value) in &shown {
            found.extend(wrongly_shown(key, value, list, by_key.get(key.as_str())));
        }
        let prefix = format!("{}/", list.definition);
        for (key, writes) in by_key.range(prefix.as_str()..) {
            if !key.starts_with(&prefix) {
                break;
            }
            if !shown.contains_key(*key) {
                found.extend(wrongly_missing(key, list, writes));
            }
        }
    }
    found
}

fn wrongly_shown(
    key: &str,
    value: &str,
    list: &ListRead,
    writes: Option<&Vec<&Operation>>,
) -> Option<String> {
    let writes = writes.map_or(&[][..], Vec::as_slice);
    // Several, if one was rolled back to: it is right as soon as one of them is.
    let of_value = writes.iter().filter(|o| o.value.as_deref() == Some(value));
    let wrong: Vec<_> = of_value.map(|write| wrongly_shown_of(key, value, list, (write, writes))).collect();
    match wrong.first() {
        None => Some(format!("a list shows `{key}` with `{value}`, which nobody wrote")),
        Some(_) if wrong.iter().any(Option::is_none) => None,
        Some(first) => first.clone(),
    }
}

fn wrongly_shown_of(
    key: &str,
    value: &str,
    list: &ListRead,
    (write, writes): (&Operation, &[&Operation]),
) -> Option<String> {
    let at = list.state;
    if write.call > list.ret {
        return Some(format!("a list shows `{key}` with `{value}` before it was written"));
    }
    let own = write.revision.filter(|_| write.ret != 0);
    if let Some(own) = own
        && own > at
    {
        return Some(format!("a list at revision {at} shows `{key}` as of revision {own}"));
    }
    let own = own?;
    let newer = writes.iter().find(|o| {
        o.ret != 0 && o.status < 300 && o.revision.is_some_and(|revision| own < revision && revision <= at)
    });
    newer.map(|newer| format!("a list at revision {at} shows `{key}` as of {own}, not as of {newer:?}"))
}

/// A key that a list lacks: its last acknowledged write up to the list's revision must not be a create or put that the
/// list would show, unless a write of unknown place may have come after it.
fn wrongly_missing(key: &str, list: &ListRead, writes: &[&Operation]) -> Option<String> {
    let live = writes
        .iter()
        .filter(|o| o.ret != 0 && o.status < 300 && o.op != Kind::Delete)
        .filter(|o| o.revision.is_some_and(|revision| revision <= list.state))
        .max_by_key(|o| o.revision)?;
    if list
        .group
        .as_deref()
        .is_some_and(|group| live.value.as_deref().is_some_and(|is| group_of(is) != group))
    {
        return None;
    }
    // Another value may be in another group; a whole list would show it.
    let takes_away = |o: &Operation| o.op == Kind::Delete || list.group.is_some();
    let may_be_gone = writes.iter().any(|o| {
        let unplaced = o.ret == 0 || (o.op == Kind::Delete && o.status < 300 && o.ret > live.call);
        takes_away(o) && o.call < list.ret && unplaced
    });
    (!may_be_gone).then(|| format!("a list at revision {} lacks `{key}`: {live:?}", list.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(op: Kind, call: u64, ret: u64, status: u16) -> Operation {
        Operation { ret, status, ..Operation::new(0, "d/k".into(), op, call) }
    }

    fn write(kind: Kind, value: &str, revision: u64, call: u64, ret: u64) -> Operation {
        let status = if kind == Kind::Create { 201 } else { 200 };
        Operation { value: Some(value.into()), revision: Some(revision), ..op(kind, call, ret, status) }
    }

    fn read(value: &str, revision: u64, call: u64, ret: u64) -> Operation {
        let (result, revision) = (Some(value.into()), Some(revision));
        Operation { result, revision, state: revision, ..op(Kind::Get, call, ret, 200) }
    }

    #[test]
    fn a_right_history_passes() {
        let history = [
            write(Kind::Create, "a", 5, 1, 2),
            read("a", 5, 3, 4),
            write(Kind::Put, "b", 7, 5, 9),
            read("b", 7, 6, 7),
            Operation { ret: 0, status: 504, revision: None, ..write(Kind::Put, "c", 0, 10, 0) },
            read("c", 9, 11, 12),
            op(Kind::Delete, 13, 14, 200),
            op(Kind::Get, 15, 16, 404),
        ];
        assert_eq!(per_key(&history), Vec::<String>::new());
        assert_eq!(revisions(&history[..4], &[]), Vec::<String>::new());
    }

    #[test]
    fn a_stale_read_is_found_by_both_checkers() {
        let history = [write(Kind::Create, "a", 5, 1, 2), write(Kind::Put, "b", 7, 3, 4), read("a", 5, 5, 6)];
        assert_eq!(per_key(&history).len(), 1);
        assert_eq!(revisions(&history, &[]).len(), 1);
    }

    #[test]
    fn a_lost_write_a_phantom_and_a_write_after_503_are_found() {
        let lost = [write(Kind::Create, "a", 5, 1, 2), op(Kind::Get, 3, 4, 404)];
        let phantom = [write(Kind::Create, "a", 5, 1, 2), read("x", 6, 3, 4)];
        let refused = [
            write(Kind::Create, "a", 5, 1, 2),
            Operation { status: 503, ..write(Kind::Put, "b", 0, 3, 4) },
            read("b", 6, 5, 6),
        ];
        for history in [&lost[..], &phantom, &refused] {
            assert_eq!(per_key(history).len(), 1, "{history:?}");
        }
    }

    #[test]
    fn a_guarded_write_over_another_revision_is_found() {
        let history = [
            write(Kind::Create, "a", 5, 1, 2),
            write(Kind::Put, "b", 7, 3, 4),
            Operation { expected: Some(5), ..write(Kind::Put, "c", 8, 5, 6) },
        ];
        assert_eq!(per_key(&history).len(), 1);
    }

    #[test]
    fn a_patch_whose_test_should_have_failed_or_held_is_found() {
        let begin = [write(Kind::Create, "a", 5, 1, 2), write(Kind::Put, "b", 7, 3, 4)];
        let patch = |tested: &str, status| Operation {
            tested: Some(tested.into()),
            status,
            ..write(Kind::Patch, "c", 8, 5, 6)
        };
        for (patch, wrong) in
            [(patch("b", 200), 0), (patch("a", 409), 0), (patch("a", 200), 1), (patch("b", 409), 1)]
        {
            let history = [&begin[..], std::slice::from_ref(&patch)].concat();
            assert_eq!(per_key(&history).len(), wrong, "{patch:?}");
        }
    }

    #[test]
    fn an_upsert_that_says_the_wrong_thing_and_a_rollback_that_is_not_seen_are_found() {
        let upsert = |status, value: &str, revision, call| Operation {
            status,
            ..write(Kind::Upsert, value, revision, call, call + 1)
        };
        let begin = write(Kind::Create, "a", 5, 1, 2);
        for (status, wrong) in [(200, 0), (CREATED_OR_NOT, 0), (201, 1)] {
            let history = [begin.clone(), upsert(status, "b", 7, 3)];
            assert_eq!(per_key(&history).len(), wrong, "{status}");
        }
        assert_eq!(per_key(&[upsert(201, "a", 5, 1)]).len(), 0);
        assert_eq!(per_key(&[upsert(200, "a", 5, 1)]).len(), 1);
        let put = write(Kind::Put, "b", 7, 3, 4);
        let back = Operation { to: Some(5), ..write(Kind::Rollback, "a", 9, 5, 6) };
        let history = |last| [begin.clone(), put.clone(), back.clone(), last];
        assert_eq!(per_key(&history(read("a", 9, 7, 8))).len(), 0);
        assert_eq!(per_key(&history(read("b", 7, 7, 8))).len(), 1);
        // A list of its revision shows the old value, and one of the revision before does not.
        let list = |value: &str, state| ListRead {
            definition: "d".into(),
            group: None,
            call: 7,
            ret: 8,
            state,
            found: vec![("k".into(), value.into())],
        };
        let writes = [begin, put, back];
        for (value, state, wrong) in [("a", 9, 0), ("b", 7, 0), ("a", 7, 1), ("b", 9, 1)] {
            assert_eq!(lists(&writes, &[list(value, state)]).len(), wrong, "{value} at {state}");
        }
    }

    #[test]
    fn a_transaction_that_chose_what_its_reads_do_not_say_is_found() {
        let of = |is: Is, config: Option<(u64, &str)>, succeeded| {
            let config = config.map(|(revision, value)| (revision, value.to_owned()));
            let found = Some(vec![Some((1, "v0".to_owned())), config]);
            let transaction = Transaction {
                branches: [1, 2],
                changes: [true, false],
                conditions: vec![("d/a".into(), Is::Present), ("d/b".into(), is)],
                reads: vec!["d/a".into(), "d/b".into()],
                decided: Some(Chosen { succeeded, revision: 9, found }),
            };
            transactions(&[transaction]).len()
        };
        let config = Some((7, "v1"));
        for (is, config, succeeded) in [
            (Is::Revision(7), config, true),
            (Is::Revision(8), config, false),
            (Is::Value("v1".into()), config, true),
            (Is::Value("v2".into()), config, false),
            (Is::Value("v2".into()), None, false),
            (Is::Absent, None, true),
            (Is::Absent, config, false),
            (Is::Present, None, false),
        ] {
            assert_eq!(of(is.clone(), config, succeeded), 0, "{is:?}");
            assert_eq!(of(is.clone(), config, !succeeded), 1, "{is:?}");
        }
    }

    #[test]
    fn one_revision_for_two_writes_is_found_unless_they_are_a_batch() {
        let other = Operation { key: "d/j".into(), ..write(Kind::Put, "b", 5, 1, 2) };
        let both = |one, two| {
            [
                Operation { batch: one, ..write(Kind::Create, "a", 5, 1, 2) },
                Operation { batch: two, ..other.clone() },
            ]
        };
        assert_eq!(revisions(&both(Some(1), Some(1)), &[]), Vec::<String>::new());
        for (one, two) in [(None, None), (Some(1), None), (Some(1), Some(2))] {
            assert_eq!(revisions(&both(one, two), &[]).len(), 1);
        }
    }

    #[test]
    fn a_list_that_lacks_or_shows_the_wrong_thing_is_found() {
        let writes = [write(Kind::Create, "a", 5, 1, 2), write(Kind::Put, "b", 7, 3, 4)];
        let list = |found: &[(&str, &str)], state| ListRead {
            definition: "d".into(),
            group: None,
            call: 5,
            ret: 6,
            state,
            found: found.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        };
        assert_eq!(lists(&writes, &[list(&[("k", "b")], 7)]), Vec::<String>::new());
        for wrong in [list(&[], 7), list(&[("k", "a")], 7), list(&[("k", "z")], 7)] {
            assert_eq!(lists(&writes, std::slice::from_ref(&wrong)).len(), 1, "{wrong:?}");
        }
        assert_eq!(revisions(&writes, &[list(&[("k", "b")], 6)]).len(), 1);
    }
}
