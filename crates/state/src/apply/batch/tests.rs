//! Batches are atomic, apply their steps in order, and make one edit for each record.

use super::*;
use crate::{
    Change,
    apply::tests::{decide, define, delete, key, proposal, rebuilt, same, write},
};
use concord_model::{
    command::{Applied, Done, Expect, IdempotencyKey, Proposal, StepOutcome, Verdict},
    record::Revision,
};

fn batch(steps: Vec<(Option<Revision>, Proposal)>) -> Proposal {
    let step =
        |(definition_read, proposal): (_, Proposal)| BatchStep { definition_read, command: proposal.command };
    proposal(Command::Batch(steps.into_iter().map(step).collect()))
}

fn open(steps: Vec<Proposal>) -> Proposal {
    batch(steps.into_iter().map(|step| (None, step)).collect())
}

fn set_indexes(paths: &[&str]) -> Proposal {
    let indexes = paths.iter().map(|path| (*path).to_owned()).collect();
    proposal(Command::SetIndexes { key: key("d"), indexes, expect: Expect::Present })
}

fn end() -> Proposal {
    proposal(Command::DeleteDefinition {
        key: key("d"),
        expect: Expect::Present,
        restrict: false,
        keep: None,
    })
}

/// Applies at the next revision; the proposal must be accepted and change something.
fn apply(state: &mut State, proposal: &Proposal) -> (Applied, Change) {
    let (verdict, change) = state.apply(state.revision() + 1, proposal);
    let Verdict::Decided(Ok(applied)) = verdict else { panic!("{verdict:?}") };
    same(state, &rebuilt(state));
    (applied, change.expect("something changed"))
}

/// A definition `d` with the configs `a` and `b`.
fn state() -> State {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    decide(&mut state, &write("a", "1", Expect::Absent)).unwrap();
    decide(&mut state, &write("b", "2", Expect::Absent)).unwrap();
    state
}

fn data(edit: &Edit) -> (Option<String>, Option<String>) {
    let Edit::Config { before, after, .. } = edit else { panic!("{edit:?}") };
    let text = |config: &Option<Arc<Config>>| config.as_ref().map(|config| config.data.to_string());
    (text(before), text(after))
}

#[test]
fn later_steps_see_earlier_ones_and_all_have_one_revision() {
    let mut state = State::new();
    let steps = vec![
        define("d"),
        write("k", "1", Expect::Absent),
        write("k", "2", Expect::Present),
        write("l", "3", Expect::None),
    ];
    let (applied, change) = apply(&mut state, &open(steps));
    let collection = state.definition("d").unwrap();
    let revisions = collection.configs().map(|config| config.revision);
    assert!(revisions.chain([collection.definition.revision]).all(|revision| revision == applied.revision));
    assert_eq!(&*collection.config("k").unwrap().data, "2");
    assert_eq!((applied.at, change.at), (state.last_at(), state.last_at()));
    let times: BTreeSet<u64> = collection.configs().map(|config| config.modified_at.0).collect();
    assert_eq!(times.len(), 2, "each step has its own time");
    assert_eq!(change.edits.len(), 3, "{change:?}");
    assert_eq!(data(&change.edits[1]), (None, Some("2".into())), "written twice, edited once");
    let next = decide(&mut state, &write("m", "4", Expect::Absent)).unwrap();
    assert!(next.at > applied.at);
    same(&state, &rebuilt(&state));
}

#[test]
fn the_stored_outcome_has_the_result_of_each_step() {
    use StepOutcome::{Changed, Created, Deleted};
    let mut state = state();
    let remove = |name: &str| {
        proposal(Command::DeleteConfig { definition: key("d"), key: key(name), expect: Expect::Present })
    };
    let upsert = |name: &str| write(name, "9", Expect::Any);
    let steps = vec![upsert("a"), remove("a"), upsert("a"), upsert("new"), upsert("new"), set_indexes(&[])];
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    let sent = Proposal { request, ..open(steps) };
    let (applied, _) = apply(&mut state, &sent);
    let expected = [Changed, Deleted, Created, Created, Changed, Changed];
    assert_eq!(applied.done, Done::Batch(expected.into()));
    decide(&mut state, &remove("new")).unwrap();
    assert_eq!(decide(&mut state, &sent), Ok(applied), "the same, whatever came after it");
}

#[test]
fn the_outcome_of_a_transaction_has_its_conditions_and_its_steps() {
    let mut state = state();
    let step = |proposal: Proposal| BatchStep { definition_read: None, command: proposal.command };
    for conditions_held in [true, false] {
        for steps in [vec![], vec![(2, step(write("a", "9", Expect::Any)))]] {
            let outcomes: Vec<StepOutcome> = steps.iter().map(|_| StepOutcome::Changed).collect();
            let transaction = Transaction { reads: Vec::new(), chosen: Ok(conditions_held), steps };
            let applied = decide(&mut state, &proposal(Command::Transaction(transaction))).unwrap();
            assert_eq!(applied.done, Done::Transaction { conditions_held, steps: outcomes.into() });
        }
    }
}

#[test]
fn nothing_is_applied_when_one_step_is_rejected() {
    let mut state = state();
    let before = (state.digest(), state.last_at(), state.config_count());
    for (steps, index, rejection) in [
        (vec![write("a", "9", Expect::Present), delete("c", Expect::Present)], 1, Rejection::ConfigNotFound),
        (vec![end(), write("a", "9", Expect::Present)], 1, Rejection::DefinitionNotFound),
        (
            vec![write("c", "9", Expect::Absent), define("e"), write("c", "9", Expect::Absent)],
            2,
            Rejection::ConfigExists,
        ),
        (vec![write("a", "9", Expect::At(3))], 0, Rejection::Precondition { current: 2 }),
        (vec![define("e"), define("d")], 1, Rejection::DefinitionExists),
    ] {
        let (verdict, change) = state.apply(state.revision() + 1, &open(steps));
        let rejection = Box::new(rejection);
        assert_eq!(verdict, Verdict::Decided(Err(Rejection::InBatch { index, rejection })));
        assert_eq!(change, None);
        assert_eq!((state.digest(), state.last_at(), state.config_count()), before);
        same(&state, &rebuilt(&state));
    }
}

#[test]
fn a_stale_step_makes_the_batch_stale() {
    let mut state = state();
    let at = |revision, name: &str| (Some(revision), write(name, "9", Expect::Present));
    let before = state.digest();
    for stale in [
        vec![at(1, "a"), at(2, "b")],
        vec![at(THIS_ENTRY, "a")],
        vec![(None, set_indexes(&[])), at(1, "a")],
        vec![(None, write("a", "9", Expect::Read(Some(3))))],
        vec![(None, write("a", "9", Expect::Present)), (None, write("a", "9", Expect::Read(Some(2))))],
    ] {
        let verdict = state.apply(state.revision() + 1, &batch(stale)).0;
        assert_eq!(verdict, Verdict::Stale);
        assert_eq!(state.digest(), before);
    }
    let good = vec![
        (None, set_indexes(&[])),
        at(THIS_ENTRY, "a"),
        (Some(THIS_ENTRY), write("a", "10", Expect::Read(Some(THIS_ENTRY)))),
        (Some(THIS_ENTRY), write("c", "11", Expect::Read(None))),
    ];
    apply(&mut state, &batch(good));
    assert_eq!(&*state.definition("d").unwrap().config("a").unwrap().data, "10");
}

#[test]
fn each_record_is_edited_once() {
    let mut state = state();
    let steps = vec![
        write("a", "7", Expect::Present),
        write("new", "1", Expect::Absent),
        delete("new", Expect::Present),
        delete("b", Expect::Present),
        write("b", "8", Expect::Absent),
        write("a", "9", Expect::Present),
        define("e"),
        proposal(Command::DeleteDefinition {
            key: key("e"),
            expect: Expect::Any,
            restrict: true,
            keep: None,
        }),
    ];
    let (_, change) = apply(&mut state, &open(steps));
    assert_eq!(change.edits.len(), 2, "{change:?}");
    assert_eq!(data(&change.edits[0]), (Some("1".into()), Some("9".into())));
    assert_eq!(data(&change.edits[1]), (Some("2".into()), Some("8".into())));
    let nothing = vec![write("new", "1", Expect::Absent), delete("new", Expect::Present)];
    let (verdict, change) = state.apply(state.revision() + 1, &open(nothing));
    assert!(matches!(verdict, Verdict::Decided(Ok(_))));
    assert_eq!(change, None);
}

#[test]
fn deleting_a_definition_includes_its_configs_and_a_new_one_has_a_new_id() {
    let mut state = state();
    let old = state.definition("d").unwrap().definition.id;
    let steps = vec![
        write("a", "7", Expect::Present),
        end(),
        define("d"),
        write("c", "1", Expect::Absent),
        define("e"),
    ];
    let (_, change) = apply(&mut state, &open(steps));
    let ids: BTreeSet<u64> = state.definitions().map(|found| found.definition.id).collect();
    assert!(ids.len() == 2 && ids.iter().all(|id| *id > old), "ids are unique and ascend: {ids:?}");
    for id in ids {
        assert_eq!(state.definition_by_id(id).unwrap().definition.id, id);
    }
    assert!(
        matches!(&change.edits[0], Edit::Definition { before: Some(before), after: None } if before.id == old)
    );
    assert!(matches!(&change.edits[1], Edit::Deleted { configs: 2, .. }), "{change:?}");
    assert!(matches!(&change.edits[2], Edit::Definition { before: None, after: Some(_) }));
    assert!(matches!(&change.edits[3], Edit::Definition { before: None, after: Some(_) }));
    assert_eq!(data(&change.edits[4]), (None, Some("1".into())));
    assert_eq!(change.edits.len(), 5, "{change:?}");
}

#[test]
fn configs_written_around_a_change_of_indexes_have_one_final_edit() {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    decide(&mut state, &write("a", r#"{"n":1,"m":2}"#, Expect::Absent)).unwrap();
    let steps = vec![
        write("a", r#"{"n":3,"m":4}"#, Expect::Present),
        set_indexes(&["m"]),
        delete("a", Expect::Present),
        write("a", r#"{"n":5,"m":6}"#, Expect::Absent),
        set_indexes(&["n", "m"]),
    ];
    let (_, change) = apply(&mut state, &open(steps));
    assert!(matches!(change.edits[1], Edit::Reindexed { .. }), "{change:?}");
    let Edit::Config { after: Some(after), .. } = &change.edits[2] else { panic!("{change:?}") };
    assert_eq!(after, state.definition("d").unwrap().config("a").unwrap());
    assert_eq!(after.entries.len(), 2);
    assert_eq!(change.edits.len(), 3);
}

#[test]
fn a_scratch_copy_decides_steps_as_the_batch_does() {
    let mut state = State::new();
    state.try_step(0, &define("d").command).unwrap();
    state.try_step(1, &write("k", "1", Expect::Absent).command).unwrap();
    let found = state.definition("d").unwrap();
    assert_eq!((found.definition.revision, found.config("k").unwrap().revision), (THIS_ENTRY, THIS_ENTRY));
    assert_eq!(state.try_step(2, &define("d").command), Err(Rejection::DefinitionExists));
    state.try_step(3, &define("e").command).unwrap();
}

#[test]
fn a_batch_forgets_no_outcome_and_builds_no_index() {
    let mut state = state();
    let key = IdempotencyKey { id: [1; 16], fingerprint: [2; 16] };
    decide(&mut state, &Proposal { request: Some(key), ..write("k", "1", Expect::Absent) }).unwrap();
    let forget = proposal(Command::Forget { upto: state.revision() });
    // Its edits don't tell of it, so the nodes would keep on the disk what the state has forgotten.
    let (_, change) = apply(&mut state, &open(vec![write("k", "2", Expect::Any), forget.clone()]));
    assert_eq!((change.edits.len(), state.request_count()), (1, 1));
    assert!(state.remembered(&key.id).is_some());
    decide(&mut state, &forget).unwrap();
    assert_eq!(state.request_count(), 0, "alone it does");
}
