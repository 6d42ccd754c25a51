//! The indexed paths that a query names: their slots, and the types that their values may have.
//!
//! A path that is indexed itself takes precedence over a pattern that it matches (`labels.team` over `labels.*`), and
//! of several patterns the first in the definition's list. The types of a pattern are the types of all values that it
//! selects.

use std::{collections::BTreeMap, ops::Bound};

use super::{ConfigSort, Filter, FilterField, FilterTest, FilterValue, Within, at, operator, quoted};
use crate::{
    error::Violation,
    index::{self, Declared, DeclaredPaths, IndexPath, JsonKind, StoredPath},
    record::Definition,
};

/// The slots of a definition; each path is resolved once.
pub(super) struct Slots<'a> {
    definition: &'a Definition,
    parsed: Option<(Vec<StoredPath>, DeclaredPaths)>,
    resolved: BTreeMap<String, FilterSlot>,
}

/// The slot of a path, and the types that its values may have.
#[derive(Clone)]
struct FilterSlot {
    number: u16,
    declared: Declared,
    /// As the query names it.
    path: IndexPath,
    within: Option<Within>,
}

impl<'a> Slots<'a> {
    pub(super) fn new(definition: &'a Definition) -> Self {
        Self { definition, parsed: None, resolved: BTreeMap::new() }
    }

    /// The slot of a path and its declared types.
    fn find(&mut self, text: &str) -> Option<FilterSlot> {
        if let Some(known) = self.resolved.get(text) {
            return Some(known.clone());
        }
        let found = self.resolve(text)?;
        self.resolved.insert(text.to_owned(), found.clone());
        Some(found)
    }

    fn resolve(&mut self, text: &str) -> Option<FilterSlot> {
        let definition = self.definition;
        let (paths, declared) = self
            .parsed
            .get_or_insert_with(|| (index::stored_paths(definition), index::declared_paths(definition)));
        let declared = |place: usize| declared.get(place).copied().unwrap_or(Declared::ANY);
        let plain = IndexPath::stored(text);
        let of_plain = |stored: &StoredPath| !stored.path.is_pattern() && stored.path.steps == plain.steps;
        if let Some(place) = paths.iter().position(of_plain) {
            let (number, declared) = (paths[place].slot, declared(place));
            return Some(FilterSlot { number, declared, path: plain, within: None });
        }
        let path = IndexPath::parse(text).ok()?;
        let mut patterns = paths.iter().enumerate().filter(|(_, stored)| stored.path.is_pattern());
        let matched =
            patterns.find_map(|(place, stored)| Some((place, stored.slot, stored.path.matched(&path)?)));
        let (place, number, names) = matched?;
        let within = Within { prefix: index::prefix_of(&names), steps: path.steps.clone() };
        Some(FilterSlot { number, declared: declared(place), path: path.clone(), within: Some(within) })
    }

    pub(super) fn sort(&mut self, text: Option<&str>, violations: &mut Vec<Violation>) -> ConfigSort {
        match text {
            Some("config_key") => ConfigSort::Key,
            Some("created_at") => ConfigSort::Created,
            Some("modified_at") | None => ConfigSort::Modified,
            Some(path) => {
                let path = path.strip_prefix("data.").filter(|_| self.find(path).is_none()).unwrap_or(path);
                match self.find(path) {
                    Some(FilterSlot { within: Some(_), .. }) => {
                        let msg = "an indexed path with `*` or `[]` may have several values: lists can't be sorted by it";
                        violations.push(at("sort_by", msg.into()));
                    }
                    Some(slot) if slot.declared.is_sortable() => return ConfigSort::Slot(slot.number),
                    Some(_) => {
                        violations.push(at("sort_by", "lists can't be sorted by arrays or objects".into()));
                    }
                    None => {
                        let msg = format!(
                            "sort field must be `config_key`, `created_at`, `modified_at` or an indexed path, not `{}`",
                            quoted(path)
                        );
                        violations.push(at("sort_by", msg));
                    }
                }
                ConfigSort::Modified
            }
        }
    }

    pub(super) fn filter(&mut self, name: &str, text: &str) -> Result<Filter, String> {
        let (path, operator) = operator_of(name);
        let field = match path {
            "created_at" => Some((FilterField::Created, None)),
            "modified_at" => Some((FilterField::Modified, None)),
            "config_key" => Some((FilterField::Key, None)),
            path => {
                let stripped = path.strip_prefix("data.");
                let slot = self.find(path).or_else(|| self.find(stripped?));
                slot.map(|slot| (FilterField::Slot(slot.number), Some(slot)))
            }
        };
        let (field, slot) = field.ok_or_else(|| self.not_indexed(path))?;
        let declared = slot.as_ref().map_or(Declared::ANY, |slot| slot.declared);
        let test = operator::parse(field, declared, operator, text)?;
        let asks_for_any = matches!(test, FilterTest::NoneOf(_) | FilterTest::Exists(_));
        let (path, within) = slot.map(|slot| (slot.path, slot.within)).unzip();
        let within = within.flatten();
        let path = path.filter(|_| asks_for_any && declared.kinds.has(JsonKind::Array));
        let test = match &within {
            Some(within) => behind(test, &within.prefix),
            None => test,
        };
        Ok(Filter { field, test, empty_array_at: path.map(|path| path.steps), within })
    }
}

impl Slots<'_> {
    /// The message for a path without an index. A client that names a pattern itself means one of its members.
    fn not_indexed(&self, path: &str) -> String {
        let is_own = self.definition.indexes.iter().any(|own| own == path) && index::is_pattern(path);
        if is_own {
            return format!("`{}` matches many members: replace each `*` with the name of one", quoted(path));
        }
        format!("`{}` is not an indexed path", quoted(path))
    }
}

/// The path and the operator of a filter's name: `a[gte]`. A `[` behind a backslash is part of a member's name.
fn operator_of(name: &str) -> (&str, &str) {
    let parts = name.strip_suffix(']').and_then(|inner| inner.rsplit_once('['));
    parts.filter(|(path, _)| is_unescaped(path)).unwrap_or((name, ""))
}

/// Whether what follows a text is not behind a backslash that escapes it.
fn is_unescaped(text: &str) -> bool {
    let backslashes = text.bytes().rev().take_while(|byte| *byte == b'\\').count();
    backslashes % 2 == 0
}

/// A test of values whose entries begin with a prefix.
fn behind(test: FilterTest, prefix: &[u8]) -> FilterTest {
    let value = |value: FilterValue| [prefix, &value].concat().into_boxed_slice();
    let bound = |bound: Bound<FilterValue>| bound.map(value);
    match test {
        FilterTest::AnyOf(values) => FilterTest::AnyOf(values.into_iter().map(value).collect()),
        FilterTest::NoneOf(values) => FilterTest::NoneOf(values.into_iter().map(value).collect()),
        FilterTest::Ranges(ranges) => {
            FilterTest::Ranges(ranges.into_iter().map(|(from, to)| (bound(from), bound(to))).collect())
        }
        FilterTest::Prefix(text) => {
            let from = [prefix, &[index::STRING], text.as_bytes()].concat();
            // No UTF-8 text contains this byte, so this bound is above all texts with the prefix.
            let to = [&from[..], &[0xFF]].concat();
            FilterTest::Ranges(vec![(Bound::Included(from.into()), Bound::Excluded(to.into()))])
        }
        FilterTest::Exists(expected) => FilterTest::Exists(expected),
    }
}
