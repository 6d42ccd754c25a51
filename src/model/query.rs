//! STUB
use super::{error::Fault, limits::Limits, record::Definition};
use std::ops::Bound;

/// How definitions are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionSort {
    Key,
    Created,
    Modified,
}

/// How configs are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSort {
    Key,
    Created,
    Modified,
    Slot(u16),
}

/// What both lists share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// 1 or more; a huge one saturates.
    pub page: u64,
    /// 1 to the limit.
    pub limit: u64,
    /// Newest or greatest first.
    pub descending: bool,
    /// Lower-case substring of the key; empty = none.
    pub search: String,
}

/// A list of definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionQuery {
    pub page: Page,
    pub sort: DefinitionSort,
}

/// A list of configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigQuery {
    pub page: Page,
    pub sort: ConfigSort,
    pub filters: Vec<Filter>,
}

/// One condition; all of a query must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    pub field: Field,
    pub test: Test,
}

/// What a condition looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Slot(u16),
    Created,
    Modified,
    Key,
}

/// What it asks; values are encoded bytes of the field (slot: `index::encode`; times: u64 be; key: text).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    AnyOf(Vec<Box<[u8]>>),
    NoneOf(Vec<Box<[u8]>>),
    Range(Bound<Box<[u8]>>, Bound<Box<[u8]>>),
    Prefix(String),
    Exists(bool),
}

/// Why a query can't be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryError {
    /// These query integers do not parse (names): the framework's `int_parsing` at ["query", name].
    NotIntegers(Vec<String>),
    /// Rules that are broken.
    Faults(Vec<Fault>),
}

/// Reads the query of operation 2. `params`: decoded pairs in their order.
pub fn definitions(_params: &[(String, String)], _limits: &Limits) -> Result<DefinitionQuery, QueryError> {
    todo!()
}

/// Checks what needs no definition of operation 7's query (integers, page, limit, sort_order), so that it is refused before the
/// definition is looked up.
pub fn configs_shape(_params: &[(String, String)], _limits: &Limits) -> Result<(), QueryError> {
    todo!()
}

/// Reads the query of operation 7 against its definition.
pub fn configs(
    _params: &[(String, String)],
    _definition: &Definition,
    _limits: &Limits,
) -> Result<ConfigQuery, QueryError> {
    todo!()
}
