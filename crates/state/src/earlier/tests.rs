//! Rebuilt earlier states, compared with the original ones.

use proptest::prelude::*;

use super::*;
use crate::{Change, Edit};
use concord_model::{
    access_key::Author,
    command::{Command, Expect, Proposal},
    query::{self, Page},
    time::Timestamp,
};

const KEYS: [&str; 2] = ["d", "e"];

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// A state that continues, with all states and changes so far.
struct Lived {
    states: Vec<State>,
    changes: Vec<Option<Change>>,
}

impl Lived {
    fn new() -> Self {
        Self { states: vec![State::new()], changes: vec![None] }
    }

    fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    fn apply(&mut self, command: Command) {
        let mut state = self.now().clone();
        let revision = state.revision() + 1;
        let (by, at) = ("root".into(), Timestamp(revision * 10));
        let proposal = Proposal {
            at,
            by,
            reason: None,
            request: None,
            definition_read: None,
            command,
            author: Author::Root,
            tail: None,
        };
        let (_, change) = state.apply(revision, &proposal);
        self.states.push(state);
        self.changes.push(change);
    }

    fn write(&mut self, definition: &str, number: u8, value: u8) {
        let data = format!(r#"{{"a":{value},"b":"s{}","list":[{},{value}]}}"#, value % 3, number % 4);
        let Some(found) = self.now().definition(definition) else { return };
        let entries = index::all_entries(
            &index::stored_paths(&found.definition),
            &serde_json::from_str(&data).unwrap(),
        );
        let (definition, key) = (key(definition), key(&format!("k{}", number % 12)));
        self.apply(Command::WriteConfig { definition, key, data: data.into(), entries, expect: Expect::Any });
    }

    /// The configs of a definition that changed after a revision, as they were before.
    fn replaced(&self, id: u64, at: usize, upto: usize) -> BTreeMap<Key, Option<Arc<Config>>> {
        let mut found = BTreeMap::new();
        for edit in self.changes[at + 1..=upto].iter().flatten().flat_map(|change| &change.edits) {
            if let Edit::Config { definition, before, after } = edit
                && *definition == id
            {
                let any = before.as_ref().or(after.as_ref()).unwrap();
                found.entry(any.key.clone()).or_insert_with(|| before.clone());
            }
        }
        found
    }

    fn replaced_definitions(&self, at: usize, upto: usize) -> BTreeMap<Key, Option<Arc<Definition>>> {
        let mut found = BTreeMap::new();
        for edit in self.changes[at + 1..=upto].iter().flatten().flat_map(|change| &change.edits) {
            if let Edit::Definition { before, after } = edit {
                let any = before.as_ref().or(after.as_ref()).unwrap();
                found.entry(any.key.clone()).or_insert_with(|| before.clone());
            }
        }
        found
    }
}

#[derive(Debug, Clone)]
enum EditStep {
    Write(u8, u8, u8),
    Delete(u8, u8),
    Create(u8),
    Drop(u8),
    Index(u8, u8),
}

fn step() -> impl Strategy<Value = EditStep> {
    prop_oneof![
        12 => (0..2u8, any::<u8>(), any::<u8>()).prop_map(|(d, k, v)| EditStep::Write(d, k, v)),
        3 => (0..2u8, any::<u8>()).prop_map(|(d, k)| EditStep::Delete(d, k)),
        1 => (0..2u8).prop_map(EditStep::Create),
        1 => (0..2u8).prop_map(EditStep::Drop),
        1 => (0..2u8, 0..4u8).prop_map(|(d, n)| EditStep::Index(d, n)),
    ]
}

fn paths(number: u8) -> Vec<String> {
    let lists: [&[&str]; 4] = [&["a", "b"], &["list"], &["b", "list", "a"], &[]];
    lists[usize::from(number % 4)].iter().map(|path| (*path).to_owned()).collect()
}

fn lived(steps: &[EditStep]) -> Lived {
    let mut lived = Lived::new();
    for name in KEYS {
        lived.apply(Command::CreateDefinition { key: key(name), indexes: paths(0), schema: None });
    }
    for step in steps {
        let name = |place: &u8| KEYS[usize::from(place % 2)];
        match step {
            EditStep::Write(d, number, value) => lived.write(name(d), *number, *value),
            EditStep::Delete(d, number) => lived.apply(Command::DeleteConfig {
                definition: key(name(d)),
                key: key(&format!("k{}", number % 12)),
                expect: Expect::Any,
            }),
            EditStep::Create(d) => {
                lived.apply(Command::CreateDefinition {
                    key: key(name(d)),
                    indexes: paths(*d),
                    schema: None,
                });
            }
            EditStep::Drop(d) => lived.apply(Command::DeleteDefinition {
                key: key(name(d)),
                expect: Expect::Any,
                restrict: false,
                keep: None,
            }),
            EditStep::Index(d, number) => lived.apply(Command::SetIndexes {
                key: key(name(d)),
                indexes: paths(*number),
                expect: Expect::Any,
            }),
        }
    }
    lived
}

type CollectionContent = (Arc<Definition>, Vec<Vec<Arc<Config>>>);

/// All records, and the lists by each index.
fn content(state: &State, name: &str) -> Option<CollectionContent> {
    let found = state.definition(name)?;
    let mut lists = vec![found.configs().cloned().collect()];
    let sorts = found.definition.indexes.iter().map(String::as_str).chain([
        "config_key",
        "created_at",
        "modified_at",
    ]);
    for sort in sorts {
        for (name, text) in [("sort_by", sort), ("list[exists]", "true"), ("a[gte]", "100"), ("b", "s1")] {
            let params = [(name.to_owned(), text.to_owned()), ("limit".to_owned(), "100".to_owned())];
            // Not every path is indexed.
            if let Ok(query) =
                query::configs(&params, &found.definition, &concord_model::limits::Limits::default())
            {
                lists.push(found.list(&query).results);
            }
        }
    }
    Some((Arc::clone(&found.definition), lists))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn an_earlier_state_is_made_again_as_it_was(
        steps in proptest::collection::vec(step(), 1..80),
        between in any::<proptest::sample::Index>(),
    ) {
        let lived = lived(&steps);
        let last = lived.states.len() - 1;
        let present = EarlierState::present(Arc::new(lived.now().clone()));
        for name in KEYS {
            let Some(now) = lived.now().definition(name) else { continue };
            let id = now.definition.id;
            let created = usize::try_from(now.definition.created_revision()).unwrap();
            let back = |from: &EarlierState, at: usize| {
                let upto = usize::try_from(from.state.revision()).unwrap();
                let then = &lived.states[at].definition(name).unwrap().definition;
                from.configs_at(at as u64, then, lived.replaced(id, at, upto), &|| false).unwrap()
            };
            let between = created + between.index(last + 1 - created);
            let on_the_way = back(&present, between);
            for at in created..=last {
                let expected = content(&lived.states[at], name);
                prop_assert_eq!(content(&back(&present, at).state, name), expected.clone(), "{} at {}", name, at);
                if at <= between {
                    prop_assert_eq!(content(&back(&on_the_way, at).state, name), expected, "{} at {}", name, at);
                }
            }
        }
        for at in 0..=last {
            let past = present.definitions_at(at as u64, lived.replaced_definitions(at, last));
            let page = Page { page: 1, limit: 10, descending: true, search: String::new() };
            let query = query::DefinitionQuery { page, sort: query::DefinitionSort::Modified };
            let (found, expected) = (past.state.list(&query), lived.states[at].list(&query));
            prop_assert_eq!((found.results, found.total), (expected.results, expected.total), "{}", at);
        }
    }
}

#[test]
fn an_index_that_was_being_built_is_complete() {
    let mut lived = Lived::new();
    lived.apply(Command::CreateDefinition { key: key("d"), indexes: vec![], schema: None });
    for number in 0..12 {
        lived.write("d", number, number * 10);
    }
    let mut definition = Definition::clone(&lived.now().definition("d").unwrap().definition);
    definition.revision = 2;
    definition.indexes = vec!["a".into()];
    definition.indexing = Indexing::fresh(1);
    definition.indexing.build = Some(index::Build { begun: 1, slots: vec![0], cursor: None });
    let present = EarlierState::present(Arc::new(lived.now().clone()));
    let past = present.configs_at(13, &Arc::new(definition), BTreeMap::new(), &|| false).unwrap();
    let found = past.state.definition("d").unwrap();
    let params = [("a[gte]".to_owned(), "60".to_owned())];
    let query =
        query::configs(&params, &found.definition, &concord_model::limits::Limits::default()).unwrap();
    assert_eq!(found.list(&query).total, 6);
}

#[test]
fn an_unneeded_result_is_given_up_and_shared_records_do_not_count() {
    let mut lived = Lived::new();
    lived.apply(Command::CreateDefinition { key: key("d"), indexes: vec![], schema: None });
    for number in 0..12 {
        lived.write("d", number, number);
    }
    let present = EarlierState::present(Arc::new(lived.now().clone()));
    let definition = Arc::clone(&lived.now().definition("d").unwrap().definition);
    let same = present.configs_at(13, &definition, BTreeMap::new(), &|| true).unwrap();
    assert_eq!(same.bytes_kept_beside(lived.now()), 0, "there was nothing to do");
    let replaced = lived.replaced(definition.id, 5, 13);
    assert!(present.configs_at(5, &definition, replaced.clone(), &|| true).is_none());
    let past = present.configs_at(5, &definition, replaced, &|| false).unwrap();
    let bytes = past.bytes_kept_beside(lived.now());
    assert!(bytes > 0 && bytes < 10_000, "{bytes}");
}
