//! A filtered watch keeps the client's records equal to those of the list.

use super::*;
use concord_model::{
    access_key::Author,
    command::{Command, Proposal},
    key_set::KeySet,
    time::Timestamp,
};
use concord_state::testing::events::{config, key};

fn definition(revision: Revision, indexes: &[&str]) -> Arc<Definition> {
    Arc::new(Definition {
        id: 1,
        key: key("d"),
        indexes: indexes.iter().map(|path| (*path).to_owned()).collect(),
        schema: None,
        indexing: index::Indexing::fresh(indexes.len()),
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
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
    state.apply(
        1,
        &Proposal {
            at,
            by,
            reason: None,
            request: None,
            definition_read: None,
            command,
            author: Author::Root,
            tail: None,
        },
    );
    state
}

fn selection(
    scope: WatchScope,
    filter: &[(&str, &str)],
    indexes: &[&str],
) -> Result<WatchSelection, Refusal> {
    let params = filter.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    WatchSelection::new(scope, params, &state(indexes), &Limits::default())
}

fn only(keys: &[&str]) -> WatchScope {
    WatchScope::Definitions(keys.iter().map(|text| key(text)).collect())
}

fn item(definition: &str, before: Before, after: Option<&str>) -> RecordChange {
    let after = after.map(|data| config("k", 9, data));
    RecordChange::Config { definition: key(definition), key: key("k"), before, after }
}

fn known(data: &str) -> Before {
    Before::Known(config("k", 8, data))
}

fn event(items: Vec<RecordChange>) -> Event {
    Event::new(9, Timestamp(9), ("root", None), items, Vec::new()).unwrap()
}

fn items(places: &[(usize, bool)]) -> Selected {
    Selected::Items(places.to_vec())
}

#[test]
fn a_scope_contains_its_definitions_and_configs() {
    let deleted = |name: &str| RecordChange::Definition {
        key: key(name),
        is_new: false,
        after: None,
        deleted_configs: None,
        undeleted_configs: None,
    };
    let all = event(vec![
        item("d", Before::Nothing, Some("{}")),
        item("e", Before::Nothing, Some("{}")),
        deleted("d"),
    ]);
    let select = |scope| selection(scope, &[], &[]).unwrap().select(&all);
    assert_eq!(select(WatchScope::Visible(KeySet::ALL)), Some(Selected::All));
    assert_eq!(select(only(&["d"])), Some(items(&[(0, false), (2, false)])));
    assert_eq!(select(only(&["d", "e"])), Some(Selected::All));
    assert_eq!(select(only(&["f"])), None);
    assert_eq!(
        select(WatchScope::Configs(key("d"), [key("k")].into())),
        Some(items(&[(0, false), (2, false)]))
    );
    assert_eq!(select(WatchScope::Configs(key("d"), [key("other")].into())), Some(items(&[(2, false)])));
}

#[test]
fn a_filter_returns_configs_that_match_or_no_longer_match() {
    let select = |before: Before, after: Option<&str>| {
        let mut selection = selection(only(&["d"]), &[("n[gte]", "5")], &["n"]).unwrap();
        selection.select(&event(vec![item("d", before, after)]))
    };
    let (below, above) = (r#"{"n":4}"#, r#"{"n":6}"#);
    let (returned, unmatched) = (Some(Selected::All), Some(items(&[(0, true)])));
    assert_eq!(select(Before::Nothing, Some(above)), returned);
    assert_eq!(select(Before::Nothing, Some(below)), None);
    assert_eq!(select(known(below), Some(above)), returned, "it matches from now on");
    assert_eq!(select(known(above), Some(above)), returned);
    assert_eq!(select(known(above), Some(below)), unmatched);
    assert_eq!(select(known(below), Some(below)), None);
    assert_eq!(select(known(above), None), returned, "a delete is a delete");
    assert_eq!(select(known(below), None), None);
    assert_eq!(select(Before::Unknown, Some(below)), unmatched, "it may have matched");
    assert_eq!(select(Before::Unknown, None), returned);
}

#[test]
fn a_filter_follows_its_definition() {
    let mut selection = selection(only(&["d"]), &[("n", "6")], &["n"]).unwrap();
    let change = |revision, indexes: &[&str]| RecordChange::Definition {
        key: key("d"),
        is_new: false,
        after: Some(definition(revision, indexes)),
        deleted_configs: None,
        undeleted_configs: None,
    };
    // `n` has another slot now. The stored entries of old records have the old slots.
    let both = event(vec![change(9, &["a", "n"]), item("d", known(r#"{"a":6}"#), Some(r#"{"n":6}"#))]);
    assert_eq!(selection.select(&both), Some(Selected::All));
    assert!(selection.take_broken().is_none());
    assert_eq!(selection.select(&event(vec![item("d", known(r#"{"n":5}"#), Some(r#"{"a":6}"#))])), None);
    assert_eq!(selection.select(&event(vec![change(10, &["a"])])), Some(Selected::All));
    assert!(matches!(selection.take_broken(), Some(Refusal::Invalid(_))), "its path is no longer indexed");
}

#[test]
fn a_filter_needs_one_existing_definition_and_an_indexed_path() {
    assert!(matches!(
        selection(WatchScope::Visible(KeySet::ALL), &[("n", "1")], &["n"]),
        Err(Refusal::Invalid(_))
    ));
    assert!(matches!(selection(only(&["d", "e"]), &[("n", "1")], &["n"]), Err(Refusal::Invalid(_))));
    let missing = selection(only(&["e"]), &[("n", "1")], &["n"]).unwrap_err();
    assert_eq!(missing, Rejection::DefinitionNotFound.into());
    assert!(matches!(selection(only(&["d"]), &[("m", "1")], &["n"]), Err(Refusal::Invalid(_))));
    assert!(selection(only(&["e"]), &[], &[]).is_ok(), "without a filter the definition need not exist yet");
}
