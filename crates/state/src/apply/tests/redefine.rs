//! Changes of the schema and of unique paths: what is stale, what is rejected, and that the configs do not change.

use super::*;
use concord_model::{command::BatchStep, limits::REINDEX_CONFIGS_MAX};

fn set_schema(text: Option<&str>, configs_read: Option<u64>) -> Proposal {
    let (key, schema, expect) = (key("d"), text.map(Into::into), Expect::Present);
    proposal(Command::SetSchema { key, schema, expect, configs_read })
}

fn set_unique(paths: &[&str], configs_read: Option<u64>) -> Proposal {
    let paths = paths.iter().copied().map(String::from).collect();
    proposal(Command::SetUnique { key: key("d"), paths, expect: Expect::Present, configs_read })
}

/// A definition `d` with index `n`, at revision 1, and configs of these values from revision 2 on.
fn filled(values: &[&str]) -> State {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    for (place, value) in values.iter().enumerate() {
        decide(&mut state, &write(&format!("k{place}"), value, Expect::Absent)).unwrap();
    }
    state
}

fn verdict(state: &mut State, proposal: &Proposal) -> Verdict {
    state.apply(state.revision() + 1, proposal).0
}

#[test]
fn a_change_that_has_not_seen_the_newest_config_is_stale() {
    let mut state = filled(&["a", "b"]);
    for change in [set_schema(None, Some(2)), set_unique(&["n"], Some(2)), set_schema(None, Some(0))] {
        let before = state.digest();
        assert_eq!(verdict(&mut state, &change), Verdict::Stale);
        assert_eq!(state.digest(), before);
    }
    // A config that was deleted since does not count, nor do other definitions.
    decide(&mut state, &delete("k1", Expect::Any)).unwrap();
    decide(&mut state, &define("other")).unwrap();
    decide(&mut state, &set_schema(Some("{}"), Some(3))).unwrap();
    decide(&mut state, &set_unique(&["n"], Some(2))).unwrap();
    decide(&mut state, &set_schema(None, None)).unwrap();
    // Without configs nothing can be stale.
    decide(&mut filled(&[]), &set_schema(None, Some(0))).unwrap();
}

#[test]
fn a_write_that_was_checked_against_the_old_schema_is_stale() {
    let mut state = filled(&["a"]);
    let mut late = write("k0", "b", Expect::Present);
    late.definition_read = Some(1);
    decide(&mut state, &set_schema(Some("{}"), Some(2))).unwrap();
    assert_eq!(verdict(&mut state, &late), Verdict::Stale);
}

#[test]
fn a_redefinition_changes_neither_configs_nor_indexes() {
    let mut state = filled(&["a", "b", "c"]);
    let old = Arc::clone(state.definition("d").unwrap());
    decide(&mut state, &set_schema(Some("{}"), Some(4))).unwrap();
    let (verdict, change) = state.apply(6, &set_unique(&["n"], Some(4)));
    assert!(matches!(verdict, Verdict::Decided(Ok(_))));
    let edits = change.unwrap().edits;
    let [Edit::Definition { before: Some(before), after: Some(after) }] = &edits[..] else {
        panic!("{edits:?}")
    };
    assert_eq!((before.revision, after.revision, after.id), (5, 6, before.id));
    let found = state.definition("d").unwrap();
    assert_eq!(found.definition.schema.as_deref(), Some("{}"));
    assert_eq!((found.definition.unique.as_slice(), found.definition.revision), (&["n".to_owned()][..], 6));
    assert!(found.configs().zip(old.configs()).all(|(new, old)| Arc::ptr_eq(new, old)));
    same(&state, &rebuilt(&state));
    let absent = proposal(Command::SetUnique {
        key: key("none"),
        paths: Vec::new(),
        expect: Expect::Present,
        configs_read: None,
    });
    assert_eq!(decide(&mut state, &absent), Err(Rejection::DefinitionNotFound));
    let mut guarded = set_schema(None, None);
    let Command::SetSchema { expect, .. } = &mut guarded.command else { panic!() };
    *expect = Expect::At(5);
    assert_eq!(decide(&mut state, &guarded), Err(Rejection::Precondition { current: 6 }));
}

#[test]
fn a_value_of_a_unique_field_belongs_to_one_config() {
    let mut state = filled(&["a", "b"]);
    // Not unique yet.
    decide(&mut state, &write("k2", "b", Expect::Absent)).unwrap();
    decide(&mut state, &delete("k2", Expect::Any)).unwrap();
    let now = state.revision();
    decide(&mut state, &set_unique(&["n"], Some(now))).unwrap();
    let taken = |by: &str| Err(Rejection::NotUnique { path: "n".into(), by: key(by) });
    assert_eq!(decide(&mut state, &write("k2", "b", Expect::Absent)), taken("k1"));
    assert_eq!(decide(&mut state, &write("k0", "b", Expect::Present)), taken("k1"));
    // A config's own value is no conflict, and a released value can be used again.
    decide(&mut state, &write("k1", "b", Expect::Present)).unwrap();
    decide(&mut state, &write("k1", "c", Expect::Present)).unwrap();
    decide(&mut state, &write("k0", "b", Expect::Present)).unwrap();
    assert_eq!(decide(&mut state, &write("k2", "c", Expect::Absent)), taken("k1"));
    decide(&mut state, &delete("k1", Expect::Any)).unwrap();
    decide(&mut state, &write("k2", "c", Expect::Absent)).unwrap();
    // Preconditions come first.
    assert_eq!(decide(&mut state, &write("k2", "b", Expect::Absent)), Err(Rejection::ConfigExists));
    same(&state, &rebuilt(&state));
    decide(&mut state, &set_unique(&[], None)).unwrap();
    decide(&mut state, &write("k3", "c", Expect::Absent)).unwrap();
}

#[test]
fn each_element_of_an_array_is_a_value_but_a_missing_member_is_not() {
    let mut state = filled(&[]);
    decide(&mut state, &set_unique(&["n"], Some(0))).unwrap();
    let write = |name: &str, values: &[&str]| {
        let entries: IndexEntries =
            values.iter().map(|value| IndexEntry { slot: 0, value: value.as_bytes().into() }).collect();
        let (definition, data, expect) = (key("d"), "{}".into(), Expect::Any);
        proposal(Command::WriteConfig { definition, key: key(name), data, entries, expect })
    };
    decide(&mut state, &write("a", &["1", "2"])).unwrap();
    decide(&mut state, &write("b", &[])).unwrap();
    decide(&mut state, &write("c", &[])).unwrap();
    let taken = Err(Rejection::NotUnique { path: "n".into(), by: key("a") });
    assert_eq!(decide(&mut state, &write("c", &["0", "2", "3"])), taken);
    decide(&mut state, &write("c", &["0", "3"])).unwrap();
    decide(&mut state, &write("a", &["1", "2", "4"])).unwrap();
}

/// The steps of a batch, each with what it has read of its definition.
fn batch(steps: Vec<(u64, Proposal)>) -> Proposal {
    let step = |(read, proposal): (u64, Proposal)| BatchStep {
        definition_read: Some(read),
        command: proposal.command,
    };
    proposal(Command::Batch(steps.into_iter().map(step).collect()))
}

#[test]
fn the_writes_of_a_batch_do_not_make_its_schema_change_stale() {
    let change = |read| {
        let own = vec![(1, write("k0", "c", Expect::Present)), (1, write("k2", "d", Expect::Absent))];
        let changes =
            vec![(1, set_schema(Some("{}"), Some(read))), (THIS_ENTRY, set_unique(&["n"], Some(read)))];
        batch([own, changes].concat())
    };
    let mut state = filled(&["a", "b"]);
    let before = state.digest();
    assert_eq!(verdict(&mut state, &change(2)), Verdict::Stale, "`k1` was written at 3");
    assert_eq!(state.digest(), before);
    decide(&mut state, &change(3)).unwrap();
    let definition = Arc::clone(&state.definition("d").unwrap().definition);
    assert_eq!((definition.schema.as_deref(), &definition.unique[..]), (Some("{}"), &["n".to_owned()][..]));
    same(&state, &rebuilt(&state));
}

#[test]
fn the_configs_of_a_definition_that_the_batch_creates_are_its_own() {
    let mut state = filled(&["a", "b"]);
    let end =
        Command::DeleteDefinition { key: key("d"), expect: Expect::Present, restrict: false, keep: None };
    let again = vec![
        (1, proposal(end)),
        (1, define("d")),
        (THIS_ENTRY, write("k0", "c", Expect::Absent)),
        (THIS_ENTRY, set_unique(&["n"], Some(0))),
        (THIS_ENTRY, set_schema(None, Some(0))),
    ];
    decide(&mut state, &batch(again)).unwrap();
    assert_eq!(state.definition("d").unwrap().by_key.len(), 1);
    same(&state, &rebuilt(&state));
}

#[test]
fn a_path_that_the_batch_only_begins_to_index_does_not_become_unique() {
    let values: Vec<String> = (0..=REINDEX_CONFIGS_MAX).map(|value| value.to_string()).collect();
    let mut state = filled(&values.iter().map(String::as_str).collect::<Vec<_>>());
    let indexes = vec!["n".into(), "m".into()];
    let index = proposal(Command::SetIndexes { key: key("d"), indexes, expect: Expect::Present });
    let newest = state.revision();
    let change = batch(vec![(1, index), (THIS_ENTRY, set_unique(&["m"], Some(newest)))]);
    assert_eq!(verdict(&mut state, &change), Verdict::Stale);
    // In a state of fewer configs the index is ready within the entry.
    for value in 0..10 {
        decide(&mut state, &delete(&format!("k{value}"), Expect::Any)).unwrap();
    }
    decide(&mut state, &change).unwrap();
    same(&state, &rebuilt(&state));
}
