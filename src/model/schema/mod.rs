//! JSON schemas: compiled once, checked on every path that writes data.
//!
//! `jsonschema` does the checking. What stands around it makes a schema of an unknown author safe to run: it
//! fetches nothing (`graph.rs`), its patterns match in linear time (`pattern.rs`), and its cost is bounded before
//! a check begins (`cost.rs`), because a check that has begun can't be stopped.
//!
//! **Invariant:** compiling and checking are pure functions of schema and data. They end soon, whatever either
//! holds.

use std::fmt::{self, Write as _};

use jsonschema::{Draft, ValidationError, ValidationOptions, Validator};
use serde_json::Value;

use super::{
    error::{Step, Violation},
    limits::VIOLATIONS_MAX,
};
use cost::{Costs, LISTED_PRICE_MAX};
use graph::Graph;

mod cost;
mod graph;
mod pattern;
mod unique;

/// Longest text of a violation in bytes: the validator quotes the data, which may be a megabyte.
const MESSAGE_BYTES_MAX: usize = 300;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    costs: Option<Costs>,
}

impl Schema {
    /// Compiles a schema document: an object or a boolean, of draft 4, 6, 7, 2019-09 or 2020-12 as its `$schema`
    /// says (2020-12 when it says nothing).
    ///
    /// `schema` must be bounded in size and depth already.
    ///
    /// # Errors
    /// When the document is no valid schema of its draft, refers outside itself, has a pattern that does not
    /// match in linear time, or when a check could cost too much. Each violation has its place, from the schema's root.
    pub fn compile(schema: &Value) -> Result<Self, Vec<Violation>> {
        let draft = draft_of(schema).map_err(|violation| vec![violation])?;
        let violations = against_meta_schema(schema, draft);
        if !violations.is_empty() {
            return Err(violations);
        }
        let graph = Graph::of(schema, draft)?;
        let costs = Costs::of(&graph).map_err(|violation| vec![violation])?;
        let violations = pattern::check(&graph, draft);
        if !violations.is_empty() {
            return Err(violations);
        }
        let validator = options(draft).build(schema).map_err(|error| vec![fault_of(&error, schema)])?;
        Ok(Self { validator, costs: schema.is_object().then_some(costs) })
    }

    /// Whether [`Self::check`] finds nothing; much cheaper where it would find much.
    #[must_use]
    pub fn accepts(&self, data: &Value) -> bool {
        self.costs.as_ref().is_none_or(|costs| costs.afford(data).is_ok()) && self.validator.is_valid(data)
    }

    /// Checks data: all violations, each with `loc` from the data's root, at most [`VIOLATIONS_MAX`]. Of data that
    /// are very large for the schema it says only that they break it.
    ///
    /// # Errors
    /// When the data break the schema, or when the check would cost too much.
    pub fn check(&self, data: &Value) -> Result<(), Vec<Violation>> {
        let price = self
            .costs
            .as_ref()
            .map_or(Ok(0), |costs| costs.afford(data))
            .map_err(|violation| vec![violation])?;
        if self.validator.is_valid(data) {
            return Ok(());
        }
        // The validator collects every violation, and those of every branch of a union, before it shows one.
        if price > LISTED_PRICE_MAX {
            return Err(vec![Violation::new("the data break the schema, and are too large to list where")]);
        }
        let violations = self.validator.iter_errors(data).take(VIOLATIONS_MAX);
        Err(violations.map(|error| fault_of(&error, data)).collect())
    }
}

/// Members of a schema that ask nothing of data, whatever their values.
const ASKS_NOTHING: [&str; 12] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Whether a schema certainly takes any data: it says nothing of them.
#[must_use]
pub fn takes_all(schema: &Value) -> bool {
    let silent = |members: &serde_json::Map<String, Value>| {
        members.keys().all(|member| ASKS_NOTHING.contains(&member.as_str()))
    };
    *schema == Value::Bool(true) || schema.as_object().is_some_and(silent)
}

/// The validator's options, the same for every schema of a draft.
fn options(draft: Draft) -> ValidationOptions<'static> {
    jsonschema::options()
        .with_draft(draft)
        .offline()
        .with_pattern_options(pattern::engine())
        .with_keyword("uniqueItems", unique::keyword)
}

/// The draft that the document names.
fn draft_of(schema: &Value) -> Result<Draft, Violation> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(Violation::new("a schema is an object or a boolean"));
    }
    let Some(dialect) = schema.get("$schema") else {
        return Ok(Draft::Draft202012);
    };
    let draft = dialect.as_str().map_or(Draft::Unknown, Draft::from_schema_uri);
    if draft == Draft::Unknown {
        let msg =
            format!("{} is no known dialect; known are drafts 4, 6, 7, 2019-09 and 2020-12", short(dialect));
        return Err(Violation::at(vec!["$schema".into()], msg));
    }
    Ok(draft)
}

/// What the draft's meta-schema says against the document.
fn against_meta_schema(schema: &Value, draft: Draft) -> Vec<Violation> {
    let meta = match draft {
        Draft::Draft4 => jsonschema::draft4::meta::validator(),
        Draft::Draft6 => jsonschema::draft6::meta::validator(),
        Draft::Draft7 => jsonschema::draft7::meta::validator(),
        Draft::Draft201909 => jsonschema::draft201909::meta::validator(),
        Draft::Draft202012 | _ => jsonschema::draft202012::meta::validator(),
    };
    if meta.is_valid(schema) {
        return Vec::new();
    }
    meta.iter_errors(schema).take(VIOLATIONS_MAX).map(|error| fault_of(&error, schema)).collect()
}

/// A violation as a violation.
fn fault_of(error: &ValidationError<'_>, root: &Value) -> Violation {
    Violation::at(steps(error.instance_path().as_str(), root), short(error))
}

/// The steps of a JSON pointer into `root`, where a number is a name unless it is an array's.
fn steps(pointer: &str, root: &Value) -> Vec<Step> {
    let mut value = Some(root);
    let parts = pointer.split('/').skip(1);
    parts
        .map(|part| {
            let name = part.replace("~1", "/").replace("~0", "~");
            let place = value.filter(|value| value.is_array()).and_then(|_| name.parse::<u64>().ok());
            value = match (value, place) {
                (Some(Value::Array(items)), Some(place)) => {
                    usize::try_from(place).ok().and_then(|place| items.get(place))
                }
                (Some(value), _) => value.get(&name),
                (None, _) => None,
            };
            place.map_or(Step::Name(name), Step::Place)
        })
        .collect()
}

/// A text of bounded length. Writing ends at the bound: what is quoted is never rendered whole.
fn short(what: &dyn fmt::Display) -> String {
    struct Bounded(String);

    impl fmt::Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = MESSAGE_BYTES_MAX.saturating_sub(self.0.len());
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            if text.len() > room { Err(fmt::Error) } else { Ok(()) }
        }
    }

    let mut text = Bounded(String::new());
    // The only error is that the bound was reached.
    if write!(text, "{what}").is_err() {
        text.0.push('…');
    }
    text.0
}

#[cfg(test)]
mod tests;
