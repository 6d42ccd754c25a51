//! STUB
use super::{error::Fault, record::Entries};
use serde_json::Value;

/// A parsed path of an index: `a.b`, `\.` a literal dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPath {
    /// As it was written.
    pub text: String,
    /// Its members, outermost first.
    pub segments: Vec<String>,
}

/// Parses and checks a definition's `indexes`: unique, at most `max`, each resolves through the schema.
/// Faults have `loc` ["indexes", place].
pub fn check_paths(
    _texts: &[String],
    _schema: Option<&Value>,
    _max: usize,
) -> Result<Vec<IndexPath>, Vec<Fault>> {
    todo!()
}

/// Parses paths that were checked before (stored ones).
pub fn stored_paths(_texts: &[String]) -> Vec<IndexPath> {
    todo!()
}

/// The index entries of `data`, sorted and unique; slot = place in `paths`.
pub fn entries(_paths: &[IndexPath], _data: &Value) -> Result<Entries, Fault> {
    todo!()
}

/// A value's order-preserving bytes: null < false < true < numbers < strings < arrays/objects (equality only).
pub fn encode(_value: &Value) -> Box<[u8]> {
    todo!()
}
