//! The verdict on a history.
//!
//! Two judges that know the answers only; `past.rs` is the one that knows the service's own history. The per-key one is a crate (`todc-utils`: Wing and Gong's search with Lowe's
//! extension) and knows nothing of revisions beyond equality. The revision judge looks at all keys and lists
//! together: revisions must follow real time, and a list must be what its revision says.

use std::collections::BTreeMap;

use todc_utils::{
    linearizability::{
        WGLChecker,
        history::{Action, History as Actions},
    },
    specifications::Specification,
};

use super::{
    history::{History, Kind, Operation, Sweep},
    workload::group_of,
};

/// A config as the specification knows it: its value, and its revision where an answer told it.
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
            // Unknown: it did what it could do at its place, or nothing; both are tried, because its place may be
            // the end.
            let next = match operation.op {
                Kind::Get => state.clone(),
                Kind::Create if state.is_none() => written(),
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
            // Its test has found another value.
            (Kind::Patch, 409) => (state.as_ref().is_some_and(|(value, _)| !tested(value)), state.clone()),
            (Kind::Delete, 200) => (fits(state), None),
            (Kind::Put | Kind::Patch | Kind::Delete, 412) => {
                let differs = state
                    .as_ref()
                    .is_some_and(|(_, revision)| revision.is_none() || *revision != operation.expected);
                (differs, state.clone())
            }
            (Kind::Get | Kind::Create | Kind::Put | Kind::Patch | Kind::Delete, _) => (false, state.clone()),
        }
    }
}

/// The status of an operation of a batch that was refused for another one of it.
pub(crate) const BESIDE: u16 = 424;

/// Whether the operation says nothing of the state: refused before it was decided or for what it is, or a read
/// without an answer.
fn is_mute(operation: &Operation) -> bool {
    matches!(operation.status, 422 | BESIDE | 429 | 503 | 507)
        || (!operation.is_write() && operation.ret == 0)
}

/// All contradictions of a history by itself, in words.
pub(crate) fn violations(history: &History) -> Vec<String> {
    let operations = history.operations();
    let mut found = history.complaints();
    found.extend(per_key(&operations));
    found.extend(revisions(&operations, &history.sweeps()));
    found.extend(lists(&operations, &history.sweeps()));
    found
}

/// Linearizability of every key by the crate's checker.
pub(crate) fn per_key(operations: &[Operation]) -> Vec<String> {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| !is_mute(operation)) {
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
pub(crate) fn revisions(operations: &[Operation], sweeps: &[Sweep]) -> Vec<String> {
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
    // Acknowledgements by their return, with the greatest revision so far.
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
        let floor = before(operation.call);
        let is = if operation.is_write() { operation.revision } else { operation.state };
        if let Some(is) = is
            && (is < floor || (operation.is_write() && is == floor))
        {
            found.push(format!("revision {floor} was acknowledged before this began: {operation:?}"));
        }
    }
    for sweep in sweeps {
        let floor = before(sweep.call);
        if sweep.state < floor {
            found.push(format!(
                "a list of `{}` at revision {} began after {floor} was acknowledged",
                sweep.definition, sweep.state
            ));
        }
    }
    found
}

/// Lists against writes: what a list shows was written, is the newest acknowledged value at its revision, and
/// nothing that must be there is missing.
pub(crate) fn lists(operations: &[Operation], sweeps: &[Sweep]) -> Vec<String> {
    let mut by_key: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|o| o.is_write() && !is_mute(o)) {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let mut found = Vec::new();
    for sweep in sweeps {
        let shown: BTreeMap<String, &str> = sweep
            .found
            .iter()
            .map(|(key, value)| (format!("{}/{key}", sweep.definition), value.as_str()))
            .collect();
        if shown.len() != sweep.found.len() {
            found.push(format!("a list of `{}` shows a config twice", sweep.definition));
        }
        for (key, value) in &shown {
            found.extend(shown_rightly(key, value, sweep, by_key.get(key.as_str())));
        }
        let prefix = format!("{}/", sweep.definition);
        for (key, writes) in by_key.range(prefix.as_str()..) {
            if !key.starts_with(&prefix) {
                break;
            }
            if !shown.contains_key(*key) {
                found.extend(missing_rightly(key, sweep, writes));
            }
        }
    }
    found
}

fn shown_rightly(key: &str, value: &str, sweep: &Sweep, writes: Option<&Vec<&Operation>>) -> Option<String> {
    let at = sweep.state;
    let Some(write) = writes.and_then(|all| all.iter().find(|o| o.value.as_deref() == Some(value))) else {
        return Some(format!("a list shows `{key}` with `{value}`, which nobody wrote"));
    };
    if write.call > sweep.ret {
        return Some(format!("a list shows `{key}` with `{value}` before it was written"));
    }
    let own = write.revision.filter(|_| write.ret != 0);
    if let Some(own) = own
        && own > at
    {
        return Some(format!("a list at revision {at} shows `{key}` as of revision {own}"));
    }
    let own = own?;
    let newer = writes?.iter().find(|o| {
        o.ret != 0 && o.status < 300 && o.revision.is_some_and(|revision| own < revision && revision <= at)
    });
    newer.map(|newer| format!("a list at revision {at} shows `{key}` as of {own}, not as of {newer:?}"))
}

/// A key that a list lacks: its last acknowledged write up to the list's revision must be no create or put of what
/// the list is about, unless a write that nobody can place may have come after.
fn missing_rightly(key: &str, sweep: &Sweep, writes: &[&Operation]) -> Option<String> {
    let live = writes
        .iter()
        .filter(|o| o.ret != 0 && o.status < 300 && o.op != Kind::Delete)
        .filter(|o| o.revision.is_some_and(|revision| revision <= sweep.state))
        .max_by_key(|o| o.revision)?;
    if sweep
        .group
        .as_deref()
        .is_some_and(|group| live.value.as_deref().is_some_and(|is| group_of(is) != group))
    {
        return None;
    }
    // Another value may be in another group; a whole list would show it.
    let takes_away = |o: &Operation| o.op == Kind::Delete || sweep.group.is_some();
    let may_be_gone = writes.iter().any(|o| {
        let unplaced = o.ret == 0 || (o.op == Kind::Delete && o.status < 300 && o.ret > live.call);
        takes_away(o) && o.call < sweep.ret && unplaced
    });
    (!may_be_gone).then(|| format!("a list at revision {} lacks `{key}`: {live:?}", sweep.state))
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
    fn a_stale_read_is_found_by_both_judges() {
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
        let sweep = |found: &[(&str, &str)], state| Sweep {
            definition: "d".into(),
            group: None,
            call: 5,
            ret: 6,
            state,
            found: found.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        };
        assert_eq!(lists(&writes, &[sweep(&[("k", "b")], 7)]), Vec::<String>::new());
        for wrong in [sweep(&[], 7), sweep(&[("k", "a")], 7), sweep(&[("k", "z")], 7)] {
            assert_eq!(lists(&writes, std::slice::from_ref(&wrong)).len(), 1, "{wrong:?}");
        }
        assert_eq!(revisions(&writes, &[sweep(&[("k", "b")], 6)]).len(), 1);
    }
}
