//! Patches of data: JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902), over values that keep their written text.
//!
//! The crate `json-patch` was tried and is not used: with `preserve_order` its removals move the last member to the
//! position of the removed one, its `test` compares the texts of numbers (`6` and `6.0` differ), and its `copy` doubles
//! a document as often as the patch says. Here members keep their order, numbers are compared by value, and the cost of
//! a patch is bounded.
//!
//! **Invariant:** the result of a patch depends on the patch and its target alone, and costs no more than
//! it may, at most [`PATCH_COST_MAX`](super::limits::PATCH_COST_MAX).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    document::Document,
    error::{LocSegment, Violation},
    index,
    limits::{PATCH_DEPTH_MAX, PATCH_VIOLATIONS_MAX},
};

/// The format of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatchFormat {
    /// RFC 7396: an object that is merged into the target.
    Merge,
    /// RFC 6902: a list of operations.
    Json,
    /// New data as a whole, with markers that keep secret values (`redaction.rs`).
    Replace,
}

/// A patch whose shape is valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Patch {
    /// Its format.
    pub format: PatchFormat,
    /// Its text and value.
    pub document: Document,
}

/// An error in the shape of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeError {
    /// The location, from the patch's root.
    pub loc: Vec<LocSegment>,
    /// What is wrong.
    pub kind: ShapeErrorKind,
}

/// What is wrong with the shape of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShapeErrorKind {
    /// A member is missing.
    Missing,
    /// Not a string.
    NotText,
    /// Not a list.
    NotList,
    /// Not an object.
    NotObject,
    /// The type is right, but a rule is broken.
    Wrong(String),
}

/// Why a patch can't be applied to its target. Locations start at the patch's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchError {
    /// An operation is not possible on this target.
    Violation(Violation),
    /// A `test` found another value, or none.
    TestFailed {
        /// The place of the `test` in its patch, from 0.
        operation: u64,
    },
    /// It costs more than it may.
    TooCostly(Violation),
}

/// One operation of a JSON Patch.
#[derive(Debug, PartialEq)]
enum PatchOperation<'a> {
    Add { path: Pointer, value: &'a Value },
    Remove { path: Pointer },
    Replace { path: Pointer, value: &'a Value },
    Move { from: Pointer, path: Pointer },
    Copy { from: Pointer, path: Pointer },
    Test { path: Pointer, value: &'a Value },
}

/// The tokens of a JSON pointer (RFC 6901), unescaped.
#[derive(Debug, Clone, PartialEq)]
struct Pointer(Vec<String>);

impl Patch {
    /// Checks the shape of a patch: all errors, none when it is valid.
    #[must_use]
    pub fn check_shape(format: PatchFormat, value: &Value) -> Vec<ShapeError> {
        let mut errors = Vec::new();
        match (format, value) {
            (PatchFormat::Merge | PatchFormat::Replace, Value::Object(_)) => {}
            (PatchFormat::Merge | PatchFormat::Replace, _) => {
                errors.push(ShapeError { loc: vec![], kind: ShapeErrorKind::NotObject });
            }
            (PatchFormat::Json, Value::Array(operations)) => {
                for (index, operation) in (0..).zip(operations) {
                    if PatchOperation::parse(operation, index, &mut errors).is_none()
                        && errors.len() > PATCH_VIOLATIONS_MAX
                    {
                        break;
                    }
                }
            }
            (PatchFormat::Json, _) => errors.push(ShapeError { loc: vec![], kind: ShapeErrorKind::NotList }),
        }
        errors
    }

    /// Applies the patch to a target. What it costs is taken from `cost_left`, whether it succeeds or not.
    ///
    /// # Errors
    /// When an operation can't be applied, or costs more than is left.
    pub fn apply(&self, mut target: Value, cost_left: &mut usize) -> Result<Value, PatchError> {
        let mut budget = PatchBudget(cost_left);
        match (self.format, &self.document.value) {
            (PatchFormat::Merge, patch) => merge(&mut target, patch),
            (PatchFormat::Replace, data) => target.clone_from(data),
            (PatchFormat::Json, Value::Array(operations)) => {
                for (index, operation) in (0..).zip(operations) {
                    let at = |error: OperationError| error.at(index);
                    let operation = PatchOperation::parse(operation, index, &mut Vec::new());
                    let operation = operation
                        .ok_or_else(|| at(OperationError::Violation("must be a JSON Patch operation")))?;
                    operation.apply(&mut target, &mut budget).map_err(at)?;
                }
            }
            (PatchFormat::Json, _) => return Err(OperationError::Violation("a JSON Patch is a list").at(0)),
        }
        Ok(target)
    }
}

/// Why an operation can't be applied.
#[derive(Debug, Clone, Copy, PartialEq)]
enum OperationError {
    Violation(&'static str),
    TestFailed,
    TooCostly,
}

impl OperationError {
    fn at(self, index: u64) -> PatchError {
        let loc = vec![LocSegment::Index(index)];
        match self {
            Self::Violation(text) => {
                PatchError::Violation(Violation::at(loc, format!("operation {index}: {text}")))
            }
            Self::TestFailed => PatchError::TestFailed { operation: index },
            Self::TooCostly => {
                let text = format!("operation {index}: the patch exceeds the cost limit of a patch");
                PatchError::TooCostly(Violation::at(loc, text))
            }
        }
    }
}

const PATH_NOT_FOUND: OperationError = OperationError::Violation("`path` does not exist in the data");
const FROM_NOT_FOUND: OperationError = OperationError::Violation("`from` does not exist in the data");

/// The remaining cost that a patch may have: roughly the bytes and elements that it copies or moves.
struct PatchBudget<'a>(&'a mut usize);

impl PatchBudget<'_> {
    fn spend(&mut self, cost: usize) -> Result<(), OperationError> {
        *self.0 = self.0.checked_sub(cost).ok_or(OperationError::TooCostly)?;
        Ok(())
    }
}

impl<'a> PatchOperation<'a> {
    /// Parses an operation; `None` when it is invalid, with all its errors added to `errors`.
    fn parse(value: &'a Value, index: u64, errors: &mut Vec<ShapeError>) -> Option<Self> {
        let at = |name: &str| vec![LocSegment::Index(index), name.into()];
        let Value::Object(members) = value else {
            errors.push(ShapeError { loc: vec![LocSegment::Index(index)], kind: ShapeErrorKind::NotObject });
            return None;
        };
        let before = errors.len();
        let mut text = |name: &str| match members.get(name) {
            Some(Value::String(text)) => Some(text.as_str()),
            Some(_) => {
                errors.push(ShapeError { loc: at(name), kind: ShapeErrorKind::NotText });
                None
            }
            None => {
                errors.push(ShapeError { loc: at(name), kind: ShapeErrorKind::Missing });
                None
            }
        };
        let op = text("op");
        let path = text("path");
        let from = if matches!(op, Some("move" | "copy")) { text("from") } else { None };
        let needs_value = matches!(op, Some("add" | "replace" | "test"));
        let value = members.get("value");
        if needs_value && value.is_none() {
            errors.push(ShapeError { loc: at("value"), kind: ShapeErrorKind::Missing });
        }
        let mut pointer = |name: &str, text: Option<&str>| {
            let pointer = Pointer::parse(text?);
            if pointer.is_none() {
                let msg = "a JSON pointer is empty or begins with `/`, and `~` stands before 0 or 1 only";
                errors.push(ShapeError { loc: at(name), kind: ShapeErrorKind::Wrong(msg.into()) });
            }
            pointer
        };
        let (path, from) = (pointer("path", path), pointer("from", from));
        let operation = match (op, path, from, value) {
            (Some("add"), Some(path), _, Some(value)) => Some(Self::Add { path, value }),
            (Some("remove"), Some(path), _, _) => Some(Self::Remove { path }),
            (Some("replace"), Some(path), _, Some(value)) => Some(Self::Replace { path, value }),
            (Some("move"), Some(path), Some(from), _) => Some(Self::Move { from, path }),
            (Some("copy"), Some(path), Some(from), _) => Some(Self::Copy { from, path }),
            (Some("test"), Some(path), _, Some(value)) => Some(Self::Test { path, value }),
            (Some(_), _, _, _) | (None, _, _, _) => None,
        };
        if let Some(op) = op
            && !matches!(op, "add" | "remove" | "replace" | "move" | "copy" | "test")
        {
            let msg = "`op` must be one of add, remove, replace, move, copy, test";
            errors.push(ShapeError { loc: at("op"), kind: ShapeErrorKind::Wrong(msg.into()) });
        }
        operation.filter(|_| errors.len() == before)
    }

    fn apply(self, target: &mut Value, budget: &mut PatchBudget<'_>) -> Result<(), OperationError> {
        match self {
            Self::Add { path, value } => path.add(target, value.clone(), budget),
            Self::Remove { path } => path.remove(target, budget).ok_or(PATH_NOT_FOUND)?.map(drop),
            Self::Replace { path, value } => {
                path.check_depth(value)?;
                descend(target, &path.0).ok_or(PATH_NOT_FOUND)?.clone_from(value);
                Ok(())
            }
            Self::Move { from, path } => {
                if path.0.len() > from.0.len() && path.0.starts_with(&from.0) {
                    return Err(OperationError::Violation("a value can't be moved into itself"));
                }
                if path == from {
                    return from.find(target).map(drop).ok_or(FROM_NOT_FOUND);
                }
                let value = from.remove(target, budget).ok_or(FROM_NOT_FOUND)??;
                budget.spend(size(&value))?;
                path.add(target, value, budget)
            }
            Self::Copy { from, path } => {
                let found = from.find(target).ok_or(FROM_NOT_FOUND)?;
                budget.spend(size(found))?;
                let value = found.clone();
                path.add(target, value, budget)
            }
            Self::Test { path, value } => {
                // A value that is gone is another one than the client saw, just like one that changed.
                let is_equal = path.find(target).is_some_and(|found| equal(found, value));
                if is_equal { Ok(()) } else { Err(OperationError::TestFailed) }
            }
        }
    }
}

impl Pointer {
    fn parse(text: &str) -> Option<Self> {
        let Some(rest) = text.strip_prefix('/') else { return text.is_empty().then(|| Self(Vec::new())) };
        rest.split('/').map(unescape).collect::<Option<_>>().map(Self)
    }

    fn find<'v>(&self, target: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(target, |at, token| match at {
            Value::Object(members) => members.get(token),
            Value::Array(elements) => elements.get(element_index(token)?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
    }

    /// Rejects a value that would be nested too deep at this location.
    fn check_depth(&self, value: &Value) -> Result<(), OperationError> {
        let fits = self.0.len() + depth(value) <= PATCH_DEPTH_MAX;
        if fits { Ok(()) } else { Err(OperationError::Violation("the data would be nested too deep")) }
    }

    /// Adds a value: as a new member, in place of a member, or between two elements.
    fn add(
        &self,
        target: &mut Value,
        value: Value,
        budget: &mut PatchBudget<'_>,
    ) -> Result<(), OperationError> {
        self.check_depth(&value)?;
        let Some((last, parents)) = self.0.split_last() else {
            *target = value;
            return Ok(());
        };
        match descend(target, parents).ok_or(PATH_NOT_FOUND)? {
            Value::Object(members) => {
                members.insert(last.clone(), value);
                Ok(())
            }
            Value::Array(elements) => {
                let at = if last == "-" { Some(elements.len()) } else { element_index(last) };
                let at = at.filter(|at| *at <= elements.len()).ok_or(PATH_NOT_FOUND)?;
                budget.spend(elements.len() - at)?;
                elements.insert(at, value);
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(PATH_NOT_FOUND),
        }
    }

    /// Removes the value; `None` when there is none. The values after it keep their order.
    fn remove(
        &self,
        target: &mut Value,
        budget: &mut PatchBudget<'_>,
    ) -> Option<Result<Value, OperationError>> {
        let (last, parents) = self.0.split_last()?;
        match descend(target, parents)? {
            Value::Object(members) => {
                let cost = members.contains_key(last).then(|| members.len())?;
                Some(budget.spend(cost).map(|()| members.shift_remove(last).unwrap_or_default()))
            }
            Value::Array(elements) => {
                let at = element_index(last).filter(|at| *at < elements.len())?;
                Some(budget.spend(elements.len() - at).map(|()| elements.remove(at)))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
}

fn descend<'v>(target: &'v mut Value, tokens: &[String]) -> Option<&'v mut Value> {
    tokens.iter().try_fold(target, |at, token| match at {
        Value::Object(members) => members.get_mut(token),
        Value::Array(elements) => elements.get_mut(element_index(token)?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// The index of an element: digits without a leading zero.
fn element_index(token: &str) -> Option<usize> {
    let is_number = token == "0" || !token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit());
    token.parse().ok().filter(|_| is_number)
}

fn unescape(token: &str) -> Option<String> {
    let valid = token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    valid.then(|| token.replace("~1", "/").replace("~0", "~"))
}

/// Applies a merge patch to a target: `null` removes, objects are merged, any other value replaces.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    // One pass over the members instead of one removal each: a removal that keeps the order visits all of them.
    let is_removed = |name: &String| patch.get(name).is_some_and(Value::is_null);
    if patch.values().any(Value::is_null) {
        members.retain(|name, _| !is_removed(name));
    }
    for (name, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        merge(members.entry(name.as_str()).or_insert(Value::Null), value);
    }
}

/// Whether two values are equal: numbers by value, objects regardless of member order. It visits no more of one
/// value than the other has.
pub fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(_), Value::Number(_)) => index::encode(one) == index::encode(other),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has_equal = |(name, one)| other.get(name).is_some_and(|other| equal(one, other));
            one.len() == other.len() && one.iter().all(has_equal)
        }
        (one, other) => one == other,
    }
}

/// The approximate size of a value in bytes, hardly less than its text has.
#[must_use]
pub fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 8,
        Value::Number(number) => 8 + number.as_str().len(),
        Value::String(text) => 8 + text.len(),
        Value::Array(elements) => elements.iter().fold(8, |sum, element| sum + size(element)),
        Value::Object(members) => {
            members.iter().fold(8, |sum, (name, value)| sum + 8 + name.len() + size(value))
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(elements) => 1 + elements.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests;
