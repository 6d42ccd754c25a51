//! Patches of data: JSON Merge Patch (RFC 7396) and JSON Patch (RFC 6902), over values that keep what was written.
//!
//! The crate `json-patch` was tried and is not used: under `preserve_order` its removals move the last member to
//! the place of the removed one, its `test` compares the texts of numbers (`6` and `6.0` differ), and its `copy`
//! doubles a document as often as it is asked to. Here members keep their order, numbers are compared by value,
//! and the work of a patch is bounded.
//!
//! **Invariant:** what a patch makes follows from the patch and its target alone, and costs no more than
//! [`PATCH_WORK_MAX`], whatever the patch says.

use serde_json::{Map, Value};

use super::{
    document::Document,
    error::{Step, Violation},
    index,
    limits::PATCH_WORK_MAX,
};

/// How a patch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchForm {
    /// RFC 7396: an object that is laid over the target.
    Merge,
    /// RFC 6902: a list of operations.
    Json,
}

/// A patch whose shape was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// How it is written.
    pub form: PatchForm,
    /// What it says.
    pub document: Document,
}

/// Something that is wrong with the shape of a patch, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misshape {
    /// The way to the place, from the patch's root.
    pub loc: Vec<Step>,
    /// What is wrong there.
    pub kind: MisshapeKind,
}

/// What is wrong with the shape of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MisshapeKind {
    /// A member is missing.
    Missing,
    /// No string.
    NotText,
    /// No list.
    NotList,
    /// No object.
    NotObject,
    /// Of the right type, but it breaks a rule.
    Wrong(String),
}

/// Why a patch can't be applied to its target. Places are named from the patch's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchError {
    /// An operation is not possible on this target.
    Violation(Violation),
    /// A `test` found something else.
    TestFailed(Violation),
}

/// One operation of a JSON Patch.
#[derive(Debug, PartialEq)]
enum Operation<'a> {
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
    /// Checks the shape of a patch: all that is wrong with it, nothing when it is whole.
    #[must_use]
    pub fn misshapes(form: PatchForm, value: &Value) -> Vec<Misshape> {
        let mut wrong = Vec::new();
        match (form, value) {
            (PatchForm::Merge, Value::Object(_)) => {}
            (PatchForm::Merge, _) => wrong.push(Misshape { loc: vec![], kind: MisshapeKind::NotObject }),
            (PatchForm::Json, Value::Array(operations)) => {
                for (place, operation) in (0..).zip(operations) {
                    if Operation::of(operation, place, &mut wrong).is_none() && wrong.len() > WRONG_MAX {
                        break;
                    }
                }
            }
            (PatchForm::Json, _) => wrong.push(Misshape { loc: vec![], kind: MisshapeKind::NotList }),
        }
        wrong
    }

    /// What the patch makes of a target.
    ///
    /// # Errors
    /// When an operation can't be done; nothing is done then.
    pub fn apply(&self, mut target: Value) -> Result<Value, PatchError> {
        match (self.form, &self.document.value) {
            (PatchForm::Merge, patch) => merge(&mut target, patch),
            (PatchForm::Json, Value::Array(operations)) => {
                let mut work = Work(PATCH_WORK_MAX);
                for (place, operation) in (0..).zip(operations) {
                    let at = |stop: Stop| stop.at(place);
                    let operation = Operation::of(operation, place, &mut Vec::new());
                    let operation = operation.ok_or_else(|| at(Stop::Violation("is no operation")))?;
                    operation.apply(&mut target, &mut work).map_err(at)?;
                }
            }
            (PatchForm::Json, _) => return Err(Stop::Violation("a JSON Patch is a list").at(0)),
        }
        Ok(target)
    }
}

/// Violations of one patch that are told: enough to mend it.
const WRONG_MAX: usize = 100;

/// Why an operation can't be done.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stop {
    Violation(&'static str),
    Differs,
}

impl Stop {
    fn at(self, place: u64) -> PatchError {
        let loc = vec![Step::Place(place)];
        match self {
            Self::Violation(text) => {
                PatchError::Violation(Violation::at(loc, format!("operation {place}: {text}")))
            }
            Self::Differs => {
                let text = format!("operation {place}: the value is not the one that `test` names");
                PatchError::TestFailed(Violation::at(loc, text))
            }
        }
    }
}

const NO_PATH: Stop = Stop::Violation("`path` leads nowhere");
const NO_FROM: Stop = Stop::Violation("`from` leads nowhere");

/// What a patch may still cost: roughly the bytes and elements that it copies or moves.
struct Work(usize);

impl Work {
    fn spend(&mut self, cost: usize) -> Result<(), Stop> {
        self.0 = self.0.checked_sub(cost).ok_or(Stop::Violation("the patch as a whole costs too much"))?;
        Ok(())
    }
}

impl<'a> Operation<'a> {
    /// Reads an operation; `None` after telling all that is wrong with it.
    fn of(value: &'a Value, place: u64, wrong: &mut Vec<Misshape>) -> Option<Self> {
        let at = |name: &str| vec![Step::Place(place), name.into()];
        let Value::Object(members) = value else {
            wrong.push(Misshape { loc: vec![Step::Place(place)], kind: MisshapeKind::NotObject });
            return None;
        };
        let before = wrong.len();
        let mut text = |name: &str| match members.get(name) {
            Some(Value::String(text)) => Some(text.as_str()),
            Some(_) => {
                wrong.push(Misshape { loc: at(name), kind: MisshapeKind::NotText });
                None
            }
            None => {
                wrong.push(Misshape { loc: at(name), kind: MisshapeKind::Missing });
                None
            }
        };
        let op = text("op");
        let path = text("path");
        let from = if matches!(op, Some("move" | "copy")) { text("from") } else { None };
        let needs_value = matches!(op, Some("add" | "replace" | "test"));
        let value = members.get("value");
        if needs_value && value.is_none() {
            wrong.push(Misshape { loc: at("value"), kind: MisshapeKind::Missing });
        }
        let mut pointer = |name: &str, text: Option<&str>| {
            let pointer = Pointer::parse(text?);
            if pointer.is_none() {
                let msg = "a JSON pointer is empty or begins with `/`, and `~` stands before 0 or 1 only";
                wrong.push(Misshape { loc: at(name), kind: MisshapeKind::Wrong(msg.into()) });
            }
            pointer
        };
        let (path, from) = (pointer("path", path), pointer("from", from));
        let made = match (op, path, from, value) {
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
            wrong.push(Misshape { loc: at("op"), kind: MisshapeKind::Wrong(msg.into()) });
        }
        made.filter(|_| wrong.len() == before)
    }

    fn apply(self, target: &mut Value, work: &mut Work) -> Result<(), Stop> {
        match self {
            Self::Add { path, value } => path.add(target, value.clone(), work),
            Self::Remove { path } => path.remove(target, work).ok_or(NO_PATH)?.map(drop),
            Self::Replace { path, value } => {
                path.check_depth(value)?;
                descend(target, &path.0).ok_or(NO_PATH)?.clone_from(value);
                Ok(())
            }
            Self::Move { from, path } => {
                if path.0.len() > from.0.len() && path.0.starts_with(&from.0) {
                    return Err(Stop::Violation("a value can't be moved into itself"));
                }
                if path == from {
                    return from.find(target).map(drop).ok_or(NO_FROM);
                }
                let value = from.remove(target, work).ok_or(NO_FROM)??;
                work.spend(size(&value))?;
                path.add(target, value, work)
            }
            Self::Copy { from, path } => {
                let found = from.find(target).ok_or(NO_FROM)?;
                work.spend(size(found))?;
                let value = found.clone();
                path.add(target, value, work)
            }
            Self::Test { path, value } => {
                let found = path.find(target).ok_or(NO_PATH)?;
                if same(found, value) { Ok(()) } else { Err(Stop::Differs) }
            }
        }
    }
}

/// Nesting that no step of a patch exceeds: what functions that call themselves bear. The limit of data is lower.
const DEPTH_MAX: usize = 256;

impl Pointer {
    fn parse(text: &str) -> Option<Self> {
        let Some(rest) = text.strip_prefix('/') else { return text.is_empty().then(|| Self(Vec::new())) };
        rest.split('/').map(unescape).collect::<Option<_>>().map(Self)
    }

    fn find<'v>(&self, target: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(target, |at, token| match at {
            Value::Object(members) => members.get(token),
            Value::Array(elements) => elements.get(place(token)?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
    }

    /// Refuses a value that would nest too deep at this place.
    fn check_depth(&self, value: &Value) -> Result<(), Stop> {
        let fits = self.0.len() + depth(value) <= DEPTH_MAX;
        if fits { Ok(()) } else { Err(Stop::Violation("the data would be nested too deep")) }
    }

    /// Puts a value at the place: a new member, in the place of a member, or between two elements.
    fn add(&self, target: &mut Value, value: Value, work: &mut Work) -> Result<(), Stop> {
        self.check_depth(&value)?;
        let Some((last, parents)) = self.0.split_last() else {
            *target = value;
            return Ok(());
        };
        match descend(target, parents).ok_or(NO_PATH)? {
            Value::Object(members) => {
                members.insert(last.clone(), value);
                Ok(())
            }
            Value::Array(elements) => {
                let at = if last == "-" { Some(elements.len()) } else { place(last) };
                let at = at.filter(|at| *at <= elements.len()).ok_or(NO_PATH)?;
                work.spend(elements.len() - at)?;
                elements.insert(at, value);
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(NO_PATH),
        }
    }

    /// Takes the value out; `None` when there is none. What stands behind it keeps its order.
    fn remove(&self, target: &mut Value, work: &mut Work) -> Option<Result<Value, Stop>> {
        let (last, parents) = self.0.split_last()?;
        match descend(target, parents)? {
            Value::Object(members) => {
                let cost = members.contains_key(last).then(|| members.len())?;
                Some(work.spend(cost).map(|()| members.shift_remove(last).unwrap_or_default()))
            }
            Value::Array(elements) => {
                let at = place(last).filter(|at| *at < elements.len())?;
                Some(work.spend(elements.len() - at).map(|()| elements.remove(at)))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
}

fn descend<'v>(target: &'v mut Value, tokens: &[String]) -> Option<&'v mut Value> {
    tokens.iter().try_fold(target, |at, token| match at {
        Value::Object(members) => members.get_mut(token),
        Value::Array(elements) => elements.get_mut(place(token)?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// An element's number: digits without a leading zero.
fn place(token: &str) -> Option<usize> {
    let is_number = token == "0" || !token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit());
    token.parse().ok().filter(|_| is_number)
}

fn unescape(token: &str) -> Option<String> {
    let whole = token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    whole.then(|| token.replace("~1", "/").replace("~0", "~"))
}

/// Lays a merge patch over a target: `null` removes, objects are merged, all else replaces.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    // One pass instead of a removal each: a removal that keeps the order costs the number of members.
    let is_gone = |name: &String| patch.get(name).is_some_and(Value::is_null);
    if patch.values().any(Value::is_null) {
        members.retain(|name, _| !is_gone(name));
    }
    for (name, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        merge(members.entry(name.as_str()).or_insert(Value::Null), value);
    }
}

/// Whether two values are equal: numbers by value, objects whatever the order of their members. It looks at no
/// more of one than the other has.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(_), Value::Number(_)) => index::encode(one) == index::encode(other),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let equal = |(name, one)| other.get(name).is_some_and(|other| same(one, other));
            one.len() == other.len() && one.iter().all(equal)
        }
        (one, other) => one == other,
    }
}

/// Roughly the bytes of a value.
fn size(value: &Value) -> usize {
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
