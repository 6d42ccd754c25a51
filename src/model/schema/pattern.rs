//! Patterns that match in linear time, in bounded memory.
//!
//! The engine is `regex`: it has no look-around and no back-references, because both can make a match take
//! exponential time. What it does have can still be large (`a{1000}{1000}`, `\p{L}{500}`), so a pattern is
//! compiled under a limit, and all patterns of a schema together under another.
//!
//! **Invariant:** a pattern that passes here compiles in the validator, which uses the same options.

use std::collections::BTreeMap;

use jsonschema::{Draft, PatternOptions, Regex};
use regex_syntax::ast::{ErrorKind, parse::Parser};
use serde_json::{Map, Value};

use super::graph::Graph;
use crate::model::error::{Step, Violation};

/// Bytes of one compiled pattern: the limit under which common patterns lie by far.
const PATTERN_BYTES_MAX: usize = 256 << 10;
/// Bytes of all compiled patterns of a schema; it is kept in a cache beside others.
const PATTERNS_BYTES_MAX: usize = 16 << 20;
/// The limits that are tried in turn to learn about how large a pattern is.
const TIERS: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, PATTERN_BYTES_MAX];
/// Bytes of the states that a match may remember; without room it goes on, slower.
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// The engine and its limits, for these checks and for the validator.
pub(super) fn options(size: usize) -> PatternOptions<Regex> {
    PatternOptions::regex().size_limit(size).dfa_size_limit(MEMORY_BYTES_MAX)
}

/// The options of the validator.
pub(super) fn engine() -> PatternOptions<Regex> {
    options(PATTERN_BYTES_MAX)
}

/// Checks the patterns of all subschemas. What is only data (a `default`, say) has none, unless a reference
/// leads into it.
pub(super) fn check(graph: &Graph<'_>, draft: Draft) -> Vec<Violation> {
    let mut checks = Checks { draft, sizes: BTreeMap::new(), bytes: 0, violations: Vec::new() };
    for (map, way) in graph.subschemas() {
        if let Some(Value::String(pattern)) = map.get("pattern") {
            checks.check(pattern, || [way(), vec!["pattern".into()]].concat());
        }
        if let Some(Value::Object(patterns)) = map.get("patternProperties") {
            for pattern in patterns.keys() {
                let steps: [Step; 2] = ["patternProperties".into(), pattern.as_str().into()];
                checks.check(pattern, || [way(), steps.to_vec()].concat());
            }
        }
    }
    checks.violations
}

struct Checks<'s> {
    draft: Draft,
    sizes: BTreeMap<&'s str, Option<usize>>,
    bytes: usize,
    violations: Vec<Violation>,
}

impl<'s> Checks<'s> {
    fn check(&mut self, pattern: &'s str, way: impl Fn() -> Vec<Step>) {
        if self.bytes > PATTERNS_BYTES_MAX {
            return;
        }
        let new = !self.sizes.contains_key(pattern);
        let size = *self.sizes.entry(pattern).or_insert_with(|| size_of(pattern, self.draft));
        match size {
            None => self.violations.push(Violation::at(way(), refusal(pattern))),
            Some(size) if new => {
                self.bytes += size;
                if self.bytes > PATTERNS_BYTES_MAX {
                    let msg = format!(
                        "the patterns of the schema take more than {} MiB up to this one",
                        PATTERNS_BYTES_MAX >> 20
                    );
                    self.violations.push(Violation::at(way(), msg));
                }
            }
            Some(_) => {}
        }
    }
}

/// About the size of the compiled pattern; `None` when it does not compile within the limit.
fn size_of(pattern: &str, draft: Draft) -> Option<usize> {
    let schema = Value::Object(Map::from_iter([("pattern".to_owned(), Value::String(pattern.to_owned()))]));
    TIERS.into_iter().find(|size| {
        let options = jsonschema::options().with_draft(draft).offline().with_pattern_options(options(*size));
        options.build(&schema).is_ok()
    })
}

/// Why a pattern that does not compile is refused.
fn refusal(pattern: &str) -> String {
    let shown: String = pattern.chars().take(100).collect();
    match Parser::new().parse(pattern).err().map(|error| error.kind().clone()) {
        Some(ErrorKind::UnsupportedLookAround) => format!(
            "the pattern `{shown}` looks around ((?=, (?!, (?<), which a match in linear time has no room for"
        ),
        Some(ErrorKind::UnsupportedBackreference) => {
            format!(
                "the pattern `{shown}` refers back to a group, which a match in linear time has no room for"
            )
        }
        Some(kind) => format!("the pattern `{shown}` is no regular expression: {kind}"),
        None => format!("the pattern `{shown}` takes more than {} KiB", PATTERN_BYTES_MAX >> 10),
    }
}
