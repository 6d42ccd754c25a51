//! JSON Schema: compiled once, checked on every path that writes data.
//!
//! `jsonschema` validates. The files here make it safe to run a schema of an unknown author.
//!
//! | file | what it does |
//! |---|---|
//! | `bounds` | `minimum`, `multipleOf` and the like, exact for all numbers |
//! | `encoded` | encodes references whose text is not a URI |
//! | `formats` | an asserted format is checked in every draft |
//! | `graph` | the subschemas and references of a document; nothing is fetched |
//! | `pattern` | patterns match in linear time and bounded memory |
//! | `references` | where references lead, for other readers of a schema |
//! | `cost` | the cost of a check is bounded before it begins, because a check that has begun can't be stopped |
//! | `secret` | the secret fields of data: the places that a marked subschema applies to |
//! | `stored` | a schema as it is stored: its text, and what `format` means in it |
//! | `size` | the size of data, as the cost counts it |
//! | `tags` | the members that tell the variants of a union apart |
//! | `unions` | which violations of a union are named |
//! | `unique` | `uniqueItems` in O(n log n) |
//!
//! **Invariant:** compiling and checking are pure functions of schema and data, and their time is bounded whatever
//! either contains.

use std::{
    fmt::{self, Write as _},
    ops::ControlFlow,
};

use jsonschema::{Draft, ValidationError, ValidationOptions, Validator, error::ValidationErrorKind};
use referencing::SPECIFICATIONS;
use serde_json::Value;

use super::{
    error::{LocSegment, Violation},
    limits::{
        LISTED_BYTES_MAX, LISTED_EVALUATIONS_MAX, LISTED_PATHS_BYTES_MAX, PATTERN_STEPS_MAX,
        SECRET_LISTED_STEPS_MAX, VIOLATION_TEXT_BYTES_MAX, VIOLATIONS_MAX,
    },
};
use cost::Costs;
use graph::Graph;
pub use graph::address;
pub use references::References;
use secret::{Secrecy, SecretPlaces};
pub use stored::{Formats, StoredSchema};
use tags::DeclaredTags;
use unions::Finding;
pub use unions::ListedVariants;

mod bounds;
mod cost;
mod encoded;
mod formats;
mod graph;
mod pattern;
mod references;
pub mod secret;
mod size;
pub mod stored;
mod tags;
mod unions;
mod unique;

/// Approximate bytes of a compiled subschema: its keywords, each a validator of its own, and their locations.
const SUBSCHEMA_BYTES: usize = 512;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    costs: Option<Costs>,
    secrets: Option<SecretPlaces>,
    tags: DeclaredTags,
    weight_bytes: usize,
    formats: Formats,
}

impl Schema {
    /// Compiles a schema document: an object or a boolean, of draft 4, 6, 7, 2019-09 or 2020-12 as its `$schema`
    /// says (2020-12 when it says nothing).
    ///
    /// The caller has bounded the size and depth of `schema`.
    ///
    /// # Errors
    /// When the document is no valid schema of its draft, refers outside itself, has a pattern that does not match in
    /// linear time, or when a check could cost too much. Each violation has its location, from the schema's root.
    pub fn compile(schema: &Value, formats: Formats) -> Result<Self, Vec<Violation>> {
        let encoded = encoded::references(schema);
        let schema = &*encoded;
        let draft = draft_of(schema).map_err(|violation| vec![violation])?;
        let violations = against_meta_schema(schema, draft);
        if !violations.is_empty() {
            return Err(violations);
        }
        let mut graph = Graph::of(schema, draft)?;
        let patterns = pattern::check(&mut graph, draft)?;
        let refers_to_meta_schema = graph.refers_to_meta_schema();
        let costs = Costs::of(&graph).map_err(|violation| vec![violation])?;
        let secrets = SecretPlaces::of(&graph, draft);
        let tags = DeclaredTags::of(&graph);
        let weight_bytes = graph.nodes.len() * SUBSCHEMA_BYTES
            + costs.weight_bytes()
            + patterns.weight_bytes()
            + tags.weight_bytes()
            + secrets.as_ref().map_or(0, SecretPlaces::weight_bytes);
        let validator = build(draft, formats, patterns, refers_to_meta_schema, schema)
            .map_err(|error| vec![violation_of(&error, &Finding::Itself, schema)])?;
        let costs = schema.is_object().then_some(costs);
        Ok(Self { validator, costs, secrets, tags, weight_bytes, formats })
    }

    /// Approximate bytes that the compiled schema takes: some ten times its text, and the automata of its patterns.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The secret fields of its data; `None` when it has none.
    #[must_use]
    pub fn secrets(&self) -> Option<&SecretPlaces> {
        self.secrets.as_ref()
    }

    /// An upper bound of the evaluations that a check of `data` takes.
    ///
    /// # Errors
    /// When the check would cost too much.
    pub fn price(&self, data: &Value) -> Result<u64, Violation> {
        self.costs.as_ref().map_or(Ok(0), |costs| costs.check_budget(data))
    }

    /// Whether [`Self::check`] finds no violation; much cheaper when there would be many.
    #[must_use]
    pub fn accepts(&self, data: &Value) -> bool {
        self.price(data).is_ok() && self.validator.is_valid(data)
    }

    /// Validates data: all violations, each with `loc` from the data's root, at most [`VIOLATIONS_MAX`]. For data that
    /// are very large for the schema the only violation says that they break it.
    ///
    /// # Errors
    /// When the data break the schema, or when the check would cost too much.
    pub fn check(&self, data: &Value) -> Result<(), Vec<Violation>> {
        let price = self.price(data).map_err(|violation| vec![violation])?;
        self.check_priced(data, price, ListedVariants::BestFit)
    }

    /// The same for data whose [`Self::price`] is known.
    ///
    /// # Errors
    /// When the data break the schema.
    pub fn check_priced(
        &self,
        data: &Value,
        price: u64,
        listed_variants: ListedVariants,
    ) -> Result<(), Vec<Violation>> {
        if self.validator.is_valid(data) {
            return Ok(());
        }
        // The validator collects all violations, also those of every branch of a union, before it returns the first.
        if price > LISTED_EVALUATIONS_MAX || price.saturating_mul(longest_path(data)) > LISTED_PATHS_BYTES_MAX
        {
            return Err(vec![Violation::new(
                "the data break the schema; they are too large to list each violation",
            )]);
        }
        let mut steps_left = SECRET_LISTED_STEPS_MAX;
        let mut bytes_left = LISTED_BYTES_MAX;
        let mut violations = Vec::new();
        let mut list = |error: &ValidationError<'_>, finding: &Finding<'_>| {
            let violation = self.violation(error, finding, data, &mut steps_left);
            let left = bytes_left.checked_sub(bytes_of(&violation));
            bytes_left = left.unwrap_or(0);
            if left.is_some() || violations.is_empty() {
                violations.push(violation);
            }
            let is_full = left.is_none() || violations.len() == VIOLATIONS_MAX;
            if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // The list is full, or has everything.
        let _ = self.validator.iter_errors(data).try_for_each(|error| match listed_variants {
            ListedVariants::BestFit => unions::visit(&error, &self.tags, &mut list),
            ListedVariants::All => unions::visit_all(&error, &mut list),
        });
        if self.secrets.is_some() {
            // Errors within one secret value are all at its place.
            violations.dedup();
        }
        Err(violations)
    }

    /// The violation of an error of the data, without the text of a secret value: an error quotes the value that it is
    /// about.
    fn violation(
        &self,
        error: &ValidationError<'_>,
        finding: &Finding<'_>,
        data: &Value,
        steps_left: &mut u64,
    ) -> Violation {
        let mut loc = segments(error.instance_path().as_str(), data);
        let place =
            self.secrets.as_ref().map_or(Secrecy::Open, |secrets| secrets.at_within(&loc, steps_left));
        if let Secrecy::Secret(depth) = place {
            // What is below is a part of the value, the names of members included.
            loc.truncate(depth);
            let keyword = error.kind().keyword();
            return Violation::at(loc, format!("the secret value breaks `{keyword}` of the schema"));
        }
        if matches!(error.kind(), ValidationErrorKind::BacktrackLimitExceeded { .. }) {
            let msg = format!("matching a pattern takes more than {PATTERN_STEPS_MAX} steps");
            return Violation::at(loc, msg);
        }
        let mut msg = text_of(error, finding, place == Secrecy::Open);
        let is_format = matches!(error.kind(), ValidationErrorKind::Format { .. });
        if is_format && self.formats == Formats::Asserted {
            msg.push_str(FORMAT_HINT);
        }
        if matches!(finding, Finding::InVariant) {
            msg = format!("{msg} (schema: `{}`)", error.schema_path());
        }
        Violation::at(loc, msg)
    }
}

/// The bytes of the longest path to a value.
fn longest_path(data: &Value) -> u64 {
    match data {
        Value::Object(members) => {
            let path = |(name, member): (&String, &Value)| name.len() as u64 + 1 + longest_path(member);
            members.iter().map(path).max().unwrap_or(0)
        }
        Value::Array(elements) => elements.iter().map(|element| 8 + longest_path(element)).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn bytes_of(violation: &Violation) -> usize {
    let of = |segment: &LocSegment| match segment {
        LocSegment::Name(name) => name.len(),
        LocSegment::Index(_) => 8,
    };
    violation.loc.iter().map(of).sum::<usize>() + violation.msg.len()
}

/// Keywords that constrain no data, whatever their values.
const UNCONSTRAINING: [&str; 12] = [
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

/// Whether a keyword constrains no data, whatever its value.
#[must_use]
pub fn is_annotation(keyword: &str) -> bool {
    UNCONSTRAINING.contains(&keyword)
}

/// Whether a schema certainly accepts any data, because it has no constraint.
#[must_use]
pub fn accepts_any(schema: &Value) -> bool {
    let is_unconstrained =
        |members: &serde_json::Map<String, Value>| members.keys().all(|keyword| is_annotation(keyword));
    *schema == Value::Bool(true) || schema.as_object().is_some_and(is_unconstrained)
}

/// The types of JSON Schema, for a reader.
const TYPES: &str = "`array`, `boolean`, `integer`, `null`, `number`, `object`, `string`";
/// What follows the text of a violated format.
const FORMAT_HINT: &str =
    " (`format` is asserted; `\"format_assertion\": false` beside `json_schema` switches that off)";
/// Bytes of a text that is checked as a regular expression. The check compares the names of all groups. Longer ones are
/// none.
const REGEX_TEXT_BYTES_MAX: usize = 32 << 10;

/// The validator of a schema of a draft with these patterns.
fn build(
    draft: Draft,
    formats: Formats,
    patterns: pattern::CompiledPatterns,
    refers_to_meta_schema: bool,
    schema: &Value,
) -> Result<Validator, ValidationError<'static>> {
    let options: ValidationOptions<'static> = jsonschema::options()
        .with_draft(draft)
        .offline()
        .with_format("regex", is_regex)
        .with_keyword("uniqueItems", unique::keyword);
    let options = bounds::configure(options);
    let options = formats::configure(options, draft, formats);
    let options = if refers_to_meta_schema { options.with_registry(&SPECIFICATIONS) } else { options };
    patterns.configure(options.should_validate_formats(formats.is_asserted())).build(schema)
}

fn is_regex(text: &str) -> bool {
    text.len() <= REGEX_TEXT_BYTES_MAX && jsonschema_regex::is_valid_ecma_regex(text)
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
        let msg = format!(
            "unknown dialect {}: Concord knows drafts 4, 6, 7, 2019-09 and 2020-12",
            shortened(dialect)
        );
        return Err(Violation::at(vec!["$schema".into()], msg));
    }
    Ok(draft)
}

/// The violations of the draft's meta-schema.
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
    let (mut violations, tags) = (Vec::new(), DeclaredTags::default());
    for error in meta.iter_errors(schema) {
        let mut add = |error: &ValidationError<'_>, finding: &Finding<'_>| {
            violations.push(violation_of(error, finding, schema));
            if violations.len() < VIOLATIONS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let is_full = match unknown_type(&error, schema) {
            Some(violation) => {
                violations.push(violation);
                violations.len() == VIOLATIONS_MAX
            }
            None => unions::visit(&error, &tags, &mut add).is_break(),
        };
        if is_full {
            break;
        }
    }
    violations
}

/// The violation of a misspelt `type`. It is the most frequent one, and its reader knows nothing of the alternatives
/// that the meta-schema has for it.
fn unknown_type(error: &ValidationError<'_>, schema: &Value) -> Option<Violation> {
    let loc = segments(error.instance_path().as_str(), schema);
    let is_type = loc.last() == Some(&LocSegment::Name("type".into()));
    if !is_type || !matches!(error.kind(), ValidationErrorKind::AnyOf { .. }) {
        return None;
    }
    let text = format_args!("`type` must be {TYPES}, or a list of these, not {}", error.instance());
    Some(Violation::at(loc, shortened(&text)))
}

/// The validator's error as a violation.
fn violation_of(error: &ValidationError<'_>, finding: &Finding<'_>, root: &Value) -> Violation {
    Violation::at(segments(error.instance_path().as_str(), root), text_of(error, finding, true))
}

/// The text of an error. It quotes the value that it is about, unless that is hidden.
fn text_of(error: &ValidationError<'_>, finding: &Finding<'_>, is_shown: bool) -> String {
    let value: &dyn fmt::Display = if is_shown { error.instance() } else { &"value" };
    match (finding, error.kind()) {
        (Finding::NoneOf(values), _) => {
            shortened(&format_args!("{value} is not one of {}", CommaSeparated(values)))
        }
        (Finding::OtherType(types), _) => {
            shortened(&format_args!("{value} is not of types {}", CommaSeparated(types)))
        }
        (Finding::Itself | Finding::InVariant, ValidationErrorKind::Custom { keyword, message })
            if bounds::is_bound(keyword) =>
        {
            shortened(&format_args!("{value} {message}"))
        }
        (Finding::Itself | Finding::InVariant, _) if is_shown => shortened(error),
        (Finding::Itself | Finding::InVariant, _) => shortened(&error.masked()),
    }
}

/// Values in a text.
struct CommaSeparated<'v, V>(&'v [V]);

impl<V: fmt::Display> fmt::Display for CommaSeparated<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, value)| match index {
            0 => write!(f, "{value}"),
            _ => write!(f, ", {value}"),
        })
    }
}

/// The segments of a JSON pointer into `root`, where a number is a name unless it indexes an array.
fn segments(pointer: &str, root: &Value) -> Vec<LocSegment> {
    let mut value = Some(root);
    let parts = pointer.split('/').skip(1);
    parts
        .map(|part| {
            let name = part.replace("~1", "/").replace("~0", "~");
            let index = value.filter(|value| value.is_array()).and_then(|_| name.parse::<u64>().ok());
            value = match (value, index) {
                (Some(Value::Array(items)), Some(index)) => {
                    usize::try_from(index).ok().and_then(|index| items.get(index))
                }
                (Some(value), _) => value.get(&name),
                (None, _) => None,
            };
            index.map_or(LocSegment::Name(name), LocSegment::Index)
        })
        .collect()
}

/// A text of bounded length. Rendering stops at the bound: a long quoted value is never rendered whole.
fn shortened(what: &dyn fmt::Display) -> String {
    struct Bounded(String);

    impl fmt::Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = VIOLATION_TEXT_BYTES_MAX.saturating_sub(self.0.len());
            self.0.push_str(&text[..text.floor_char_boundary(left)]);
            if text.len() > left { Err(fmt::Error) } else { Ok(()) }
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
