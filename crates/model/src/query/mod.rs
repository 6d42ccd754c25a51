//! List queries, parsed from the query string of a URL: page, sort, search, filters.
//!
//! The text of a filter is parsed by the types that the schema declares for its path, and compared as the bytes of
//! [`index`]. A filter on a path without an index is rejected, so that no filter silently scans all configs.
//!
//! | file | what it does |
//! |---|---|
//! | `operator` | parses the operator and the text of a filter |
//! | `slots` | finds the indexed paths that a query names |
//! | `across` | parses queries for the configs of several definitions |
//!
//! **Invariant:** a query that was parsed can be answered; it can't fail later.

use std::ops::Bound;

use super::{
    error::Violation,
    index::{self, PathStep},
    key_set::KeySet,
    limits::{FILTER_VALUES_MAX, FILTERS_MAX, Limits, VIOLATIONS_MAX},
    record::Definition,
};
use slots::Slots;

mod across;
mod operator;
mod slots;

pub use across::{AcrossQuery, AcrossSort, DEFINITION, across};

/// The parameters of a config list that are no filters.
const RESERVED: [&str; 10] = [
    "page",
    "limit",
    "sort_by",
    "sort_order",
    "search",
    "consistency",
    "max_staleness_ms",
    "min_revision",
    "cursor",
    PAST,
];

/// The parameter that names the revision whose state a list shows. As `revision` it is written where no path of this
/// name is indexed.
pub const PAST: &str = "$revision";

/// The encoded value of a field: for a slot as by `index::encode`, for a time big-endian, for a key its text.
pub type FilterValue = Box<[u8]>;

/// How definitions are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionSort {
    /// By key.
    Key,
    /// By time of creation.
    Created,
    /// By time of the last change.
    Modified,
}

/// How configs are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSort {
    /// By key.
    Key,
    /// By time of creation.
    Created,
    /// By time of the last change.
    Modified,
    /// By the value of an indexed path; configs without a value come last in both directions.
    Slot(u16),
}

/// The parameters that both lists share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// From 1.
    pub page: u64,
    /// Records of a page: 1 to the limit.
    pub limit: u64,
    /// Whether the order is descending.
    pub descending: bool,
    /// A part of the key, in lower case; empty for all keys.
    pub search: String,
}

/// A list of definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionQuery {
    /// Page and direction.
    pub page: Page,
    /// The sort field.
    pub sort: DefinitionSort,
}

impl DefinitionQuery {
    /// Whether a page of such a list is walked to, so that it costs the same at any depth.
    #[must_use]
    pub fn is_walk(&self, keys: &KeySet) -> bool {
        self.page.search.is_empty() && (keys.ranges().is_none() || self.sort == DefinitionSort::Key)
    }
}

/// A list of configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigQuery {
    /// Page and direction.
    pub page: Page,
    /// The sort field.
    pub sort: ConfigSort,
    /// The conditions that each config must meet.
    pub filters: Vec<Filter>,
}

impl ConfigQuery {
    /// Whether it is about the configs in the order of their keys, which no other index has to be read for.
    #[must_use]
    pub fn is_by_key_alone(&self) -> bool {
        self.sort == ConfigSort::Key && self.filters.is_empty()
    }
}

/// One condition on a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The field that is tested.
    pub field: FilterField,
    /// The test.
    pub test: FilterTest,
    /// The steps that lead to the field, where it may be an array and the test asks whether it has a value: an empty
    /// array is a value and has no index entry.
    pub empty_array_at: Option<Vec<PathStep>>,
    /// Where the indexed path is a pattern: which of its values the filter is about.
    pub within: Option<Within>,
}

/// Some of the values of a pattern: those below the members that a query names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Within {
    /// The beginning of their index entries.
    pub prefix: Box<[u8]>,
    /// The steps that lead to them, none of which is any member.
    pub steps: Vec<PathStep>,
}

/// A field that a filter tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterField {
    /// An indexed path.
    Slot(u16),
    /// The time of creation.
    Created,
    /// The time of the last change.
    Modified,
    /// The key.
    Key,
}

/// The test of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterTest {
    /// A value is one of these, which ascend: each is there once.
    AnyOf(Vec<FilterValue>),
    /// The field has a value, and none of its values is one of these, which ascend.
    NoneOf(Vec<FilterValue>),
    /// A value is between the bounds of one of these, which do not overlap.
    Ranges(Vec<(Bound<FilterValue>, Bound<FilterValue>)>),
    /// A value is a string with this prefix.
    Prefix(String),
    /// Whether the field has a value.
    Exists(bool),
}

/// Why a query is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryError {
    /// These parameters are no integers.
    NotIntegers(Vec<String>),
    /// Broken rules; at least one.
    Violations(Vec<Violation>),
    /// The query is valid, but the index of this path is being built.
    Building(String),
}

type QueryParams = [(String, String)];

/// Parses the query of a definition list. `params` are the decoded pairs in order; unknown ones are ignored.
///
/// # Errors
/// All violations.
pub fn definitions(params: &QueryParams, limits: &Limits) -> Result<DefinitionQuery, QueryError> {
    let mut violations = Vec::new();
    let page = page(params, limits, &mut violations)?;
    let sort = match last(params, "sort_by") {
        Some("config_definition_key") => DefinitionSort::Key,
        Some("created_at") => DefinitionSort::Created,
        Some("modified_at") | None => DefinitionSort::Modified,
        Some(other) => {
            let msg = format!(
                "sort field must be one of `config_definition_key`, `created_at`, `modified_at`, not `{}`",
                quoted(other)
            );
            violations.push(at("sort_by", msg));
            DefinitionSort::Modified
        }
    };
    if violations.is_empty() {
        Ok(DefinitionQuery { page, sort })
    } else {
        Err(QueryError::Violations(violations))
    }
}

/// Parses the parts of a config list's query that do not depend on the definition, so that an invalid query is rejected
/// before the definition is looked up.
///
/// # Errors
/// All violations.
pub fn configs_shape(params: &QueryParams, limits: &Limits) -> Result<Page, QueryError> {
    let mut violations = Vec::new();
    let page = page(params, limits, &mut violations)?;
    if violations.is_empty() { Ok(page) } else { Err(QueryError::Violations(violations)) }
}

/// Parses the query of a config list for a definition.
///
/// # Errors
/// All violations.
pub fn configs(
    params: &QueryParams,
    definition: &Definition,
    limits: &Limits,
) -> Result<ConfigQuery, QueryError> {
    let mut violations = Vec::new();
    let page = page(params, limits, &mut violations)?;
    let mut slots = Slots::new(definition);
    let sort = slots.sort(last(params, "sort_by"), &mut violations);
    let mut filters: Vec<Filter> = Vec::new();
    for (name, text) in params.iter().filter(|(name, _)| !RESERVED.contains(&name.as_str())) {
        match slots.filter(name, text) {
            Ok(filter) => merge(&mut filters, filter),
            Err(msg) => violations.push(at(name, msg)),
        }
        if filters.len() > FILTERS_MAX || violations.len() > VIOLATIONS_MAX {
            break;
        }
    }
    let values = |filter: &Filter| match &filter.test {
        FilterTest::AnyOf(values) | FilterTest::NoneOf(values) => values.len(),
        FilterTest::Ranges(_) | FilterTest::Prefix(_) | FilterTest::Exists(_) => 1,
    };
    if filters.len() > FILTERS_MAX {
        violations.push(Violation::new(format!("a query has at most {FILTERS_MAX} filters")));
    }
    if filters.iter().any(|filter| values(filter) > FILTER_VALUES_MAX) {
        violations.push(Violation::new(format!("a filter has at most {FILTER_VALUES_MAX} values")));
    }
    if !violations.is_empty() {
        return Err(QueryError::Violations(violations));
    }
    let sorted = if let ConfigSort::Slot(slot) = sort { Some(FilterField::Slot(slot)) } else { None };
    let building = |field: FilterField| match field {
        FilterField::Slot(slot) if definition.indexing.is_building(slot) => {
            definition.indexing.position(slot)
        }
        FilterField::Slot(_) | FilterField::Created | FilterField::Modified | FilterField::Key => None,
    };
    match filters.iter().map(|filter| filter.field).chain(sorted).find_map(building) {
        Some(position) => Err(QueryError::Building(definition.indexes[position].clone())),
        None => {
            filters.iter_mut().for_each(Filter::sort);
            Ok(ConfigQuery { page, sort, filters })
        }
    }
}

impl Filter {
    /// Puts its values into their order, each once.
    fn sort(&mut self) {
        if let FilterTest::AnyOf(values) | FilterTest::NoneOf(values) = &mut self.test {
            values.sort_unstable();
            values.dedup();
        }
    }
}

/// Repeated equality means any of the values, repeated inequality none of them; any other repetition adds a filter.
fn merge(filters: &mut Vec<Filter>, filter: Filter) {
    let same = filters.iter_mut().find(|other| {
        other.field == filter.field
            && other.within == filter.within
            && matches!(
                (&other.test, &filter.test),
                (FilterTest::AnyOf(_), FilterTest::AnyOf(_)) | (FilterTest::NoneOf(_), FilterTest::NoneOf(_))
            )
    });
    match (same.map(|other| &mut other.test), filter.test) {
        (Some(FilterTest::AnyOf(values)), FilterTest::AnyOf(more))
        | (Some(FilterTest::NoneOf(values)), FilterTest::NoneOf(more)) => {
            values.extend(more);
        }
        (_, test) => filters.push(Filter { test, ..filter }),
    }
}

pub(crate) fn last<'a>(params: &'a QueryParams, name: &str) -> Option<&'a str> {
    params.iter().rev().find(|(other, _)| other == name).map(|(_, text)| text.as_str())
}

pub(crate) fn at(name: &str, msg: String) -> Violation {
    Violation::at(vec!["query".into(), quoted(name).as_str().into()], msg)
}

/// A caller's text as an error quotes it: shortened.
pub(crate) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 100;
    if text.chars().count() <= CHARS_MAX {
        text.into()
    } else {
        text.chars().take(CHARS_MAX).chain(['…']).collect()
    }
}

/// Reads the parameters that all lists share. Adds what is wrong with them to `violations`.
///
/// # Errors
/// When one is no integer.
pub fn page(
    params: &QueryParams,
    limits: &Limits,
    violations: &mut Vec<Violation>,
) -> Result<Page, QueryError> {
    let integer = |name: &str, default| last(params, name).map_or(Some(default), integer);
    let (page, limit) = (integer("page", 1), integer("limit", 10));
    let (Some(page), Some(limit)) = (page, limit) else {
        let missing = [("page", page), ("limit", limit)].into_iter().filter(|(_, value)| value.is_none());
        return Err(QueryError::NotIntegers(missing.map(|(name, _)| name.into()).collect()));
    };
    for (name, value) in [("page", page), ("limit", limit)] {
        if value < 1 {
            violations.push(at(name, "page number and limit must be greater than 0".into()));
        }
    }
    // The response repeats the number: another one would be a lie.
    if page > i128::from(u64::MAX) {
        violations.push(at("page", format!("page number is at most {}", u64::MAX)));
    }
    let max = limits.page_limit as u64;
    let (page, limit) = (u64::try_from(page).unwrap_or(u64::MAX), u64::try_from(limit).unwrap_or(u64::MAX));
    if limit > max && violations.is_empty() {
        violations.push(at("limit", format!("limit is at most {max}")));
    }
    let descending = match last(params, "sort_order") {
        Some("desc") | None => true,
        Some("asc") => false,
        Some(other) => {
            violations.push(at(
                "sort_order",
                format!("sort order must be `asc` or `desc`, not `{}`", quoted(other)),
            ));
            true
        }
    };
    let search = last(params, "search").unwrap_or_default().to_lowercase();
    Ok(Page { page, limit, descending, search })
}

/// An integer of any size. One that does not fit saturates; the checks that follow treat both alike.
fn integer(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let extreme = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    Some(text.parse().unwrap_or(extreme))
}

/// Whether a query takes no longer than about a millisecond to parse: the types of the paths that it names are known,
/// or the schema is not large.
#[must_use]
pub fn is_quick_to_parse(params: &QueryParams, definition: &Definition) -> bool {
    !names_path(params) || index::is_quick_to_declare(definition)
}

/// Whether a query may name a path; otherwise the schema is not needed.
fn names_path(params: &QueryParams) -> bool {
    const FIELDS: [&str; 3] = ["config_key", "created_at", "modified_at"];
    params.iter().any(|(name, text)| match name.as_str() {
        "sort_by" => !FIELDS.contains(&text.as_str()),
        name => !RESERVED.contains(&name) && !FIELDS.contains(&name.split('[').next().unwrap_or(name)),
    })
}

#[cfg(test)]
mod tests;
