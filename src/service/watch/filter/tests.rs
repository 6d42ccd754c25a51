//! What a filtered watcher is told, and that it holds what the list shows.

use super::*;
use crate::{
    feed::tests::{config, key},
    model::{
        command::{Command, Proposal},
        time::Timestamp,
    },
};

fn definition(revision: Revision, indexes: &[&str]) -> Arc<Definition> {
    Arc::new(Definition {
        id: 1,
        key: key("d"),
        indexes: indexes.iter().map(|path| (*path).to_owned()).collect(),
        schema: None,
        indexing: index::Indexing::fresh(indexes.len()),
        unique: Vec::new(),
        created_at: Timestamp(1),
        modified_at: Timestamp(revision),
        revision,
    })
}

fn state(indexes: &[&str]) -> State {
    let mut state = State::new();
    let indexes = indexes.iter().map(|path| (*path).to_owned()).collect();
    let command = Command::CreateDefinition { key: key("d"), indexes, schema: None };
    let (at, by) = (Timestamp(1), "root".to_owned());
    state.apply(1, &Proposal { at, by, reason: None, request: None, definition_read: None, command });
    state
}

fn selection(scope: Scope, filter: &[(&str, &str)], indexes: &[&str]) -> Result<Selection, Refusal> {
    let params = filter.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Selection::new(scope, params, &state(indexes), &Limits::default())
}

fn only(keys: &[&str]) -> Scope {
    Scope::Definitions(keys.iter().map(|text| key(text)).collect())
}

fn item(definition: &str, before: Before, after: Option<&str>) -> RecordChange {
    let after = after.map(|data| config("k", 9, data));
    RecordChange::Config { definition: key(definition), key: key("k"), before, after }
}

fn known(data: &str) -> Before {
    Before::Known(config("k", 8, data))
}

fn event(items: Vec<RecordChange>) -> Event {
    Event::new(9, Timestamp(9), ("root", None), items).unwrap()
}

fn part(places: &[(usize, bool)]) -> Picked {
    Picked::Some(places.to_vec())
}

#[test]
fn a_scope_takes_its_definitions_and_configs() {
    let gone = |name: &str| RecordChange::Definition { key: key(name), is_new: false, after: None };
    let all = event(vec![
        item("d", Before::Nothing, Some("{}")),
        item("e", Before::Nothing, Some("{}")),
        gone("d"),
    ]);
    let pick = |scope| selection(scope, &[], &[]).unwrap().pick(&all);
    assert_eq!(pick(Scope::All), Some(Picked::All));
    assert_eq!(pick(only(&["d"])), Some(part(&[(0, false), (2, false)])));
    assert_eq!(pick(only(&["d", "e"])), Some(Picked::All));
    assert_eq!(pick(only(&["f"])), None);
    assert_eq!(pick(Scope::Configs(key("d"), [key("k")].into())), Some(part(&[(0, false), (2, false)])));
    assert_eq!(pick(Scope::Configs(key("d"), [key("other")].into())), Some(part(&[(2, false)])));
}

#[test]
fn a_filter_tells_who_is_in_it_and_who_has_left() {
    let pick = |before: Before, after: Option<&str>| {
        let mut selection = selection(only(&["d"]), &[("n[gte]", "5")], &["n"]).unwrap();
        selection.pick(&event(vec![item("d", before, after)]))
    };
    let (below, above) = (r#"{"n":4}"#, r#"{"n":6}"#);
    let (told, left) = (Some(Picked::All), Some(part(&[(0, true)])));
    assert_eq!(pick(Before::Nothing, Some(above)), told);
    assert_eq!(pick(Before::Nothing, Some(below)), None);
    assert_eq!(pick(known(below), Some(above)), told, "it has come in");
    assert_eq!(pick(known(above), Some(above)), told);
    assert_eq!(pick(known(above), Some(below)), left);
    assert_eq!(pick(known(below), Some(below)), None);
    assert_eq!(pick(known(above), None), told, "a delete is a delete");
    assert_eq!(pick(known(below), None), None);
    assert_eq!(pick(Before::Unknown, Some(below)), left, "it may have been in");
    assert_eq!(pick(Before::Unknown, None), told);
}

#[test]
fn a_filter_follows_its_definition() {
    let mut selection = selection(only(&["d"]), &[("n", "6")], &["n"]).unwrap();
    let change = |revision, indexes: &[&str]| RecordChange::Definition {
        key: key("d"),
        is_new: false,
        after: Some(definition(revision, indexes)),
    };
    // The slot of `n` is another one now, and the stored entries of old records are of the old slots.
    let both = event(vec![change(9, &["a", "n"]), item("d", known(r#"{"a":6}"#), Some(r#"{"n":6}"#))]);
    assert_eq!(selection.pick(&both), Some(Picked::All));
    assert!(selection.broken().is_none());
    assert_eq!(selection.pick(&event(vec![item("d", known(r#"{"n":5}"#), Some(r#"{"a":6}"#))])), None);
    assert_eq!(selection.pick(&event(vec![change(10, &["a"])])), Some(Picked::All));
    assert!(matches!(selection.broken(), Some(Refusal::Invalid(_))), "its path is indexed no longer");
}

#[test]
fn a_filter_needs_one_definition_that_is_there_and_an_indexed_path() {
    assert!(matches!(selection(Scope::All, &[("n", "1")], &["n"]), Err(Refusal::Invalid(_))));
    assert!(matches!(selection(only(&["d", "e"]), &[("n", "1")], &["n"]), Err(Refusal::Invalid(_))));
    let missing = selection(only(&["e"]), &[("n", "1")], &["n"]).unwrap_err();
    assert_eq!(missing, Rejection::DefinitionNotFound.into());
    assert!(matches!(selection(only(&["d"]), &[("m", "1")], &["n"]), Err(Refusal::Invalid(_))));
    assert!(selection(only(&["e"]), &[], &[]).is_ok(), "without a filter it need not be there yet");
}
