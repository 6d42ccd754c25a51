//! Patterns that match in linear time, in bounded memory.
//!
//! The engine is `regex`: it has no look-around and no back-references, because both can make a match take
//! exponential time. A pattern without them can still be large (`a{1000}{1000}`, `\p{L}{500}`), so the compiled size of
//! each pattern is limited, and that of all patterns of a schema. The translation into the engine's syntax is limited
//! too, before it begins: it parses the pattern once for each character class.
//!
//! **Invariant:** a pattern that is accepted here compiles in the validator, which uses the same options.

use std::collections::BTreeMap;

use jsonschema::{Draft, PatternOptions, Regex, Validator};
use regex_syntax::ast::{ErrorKind, parse::Parser};
use serde_json::{Map, Value};

use super::{graph::Graph, positions};
use crate::model::{
    error::{LocSegment, Violation},
    limits::{PATTERN_BYTES_MAX, PATTERN_TRANSLATION_BYTES_MAX, PATTERNS_BYTES_MAX},
};

/// Size limits in bytes that are tried in ascending order to estimate the size of a compiled pattern.
const SIZE_TIERS_BYTES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, PATTERN_BYTES_MAX];
/// Bytes that the translation writes for `\s`, a class of ten ranges, and for the other character classes.
const TRANSLATED_SPACE_BYTES: usize = 160;
const TRANSLATED_CLASS_BYTES: usize = 16;
/// Bytes of the automaton states that a match caches; when they are used up, the match continues more slowly.
const MATCH_CACHE_BYTES_MAX: usize = 1 << 20;
/// The same for each of very many patterns: it grows with the texts, so a schema of thousands would take gigabytes.
const MATCH_CACHE_BYTES_MIN: usize = 16 << 10;

/// The engine with a size limit.
fn options(size: usize) -> PatternOptions<Regex> {
    PatternOptions::regex().size_limit(size).dfa_size_limit(MATCH_CACHE_BYTES_MAX)
}

/// What the patterns of a schema take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Compiled {
    bytes: usize,
    count: usize,
}

impl Compiled {
    /// The options of the validator. The patterns share what matches may cache.
    pub(super) fn engine(self) -> PatternOptions<Regex> {
        options(PATTERN_BYTES_MAX).dfa_size_limit(self.match_cache_bytes())
    }

    /// Approximate bytes of all patterns with what their matches cache.
    pub(super) fn weight_bytes(self) -> usize {
        self.bytes + self.count * self.match_cache_bytes()
    }

    fn match_cache_bytes(self) -> usize {
        let share = PATTERNS_BYTES_MAX / self.count.max(1);
        share.clamp(MATCH_CACHE_BYTES_MIN, MATCH_CACHE_BYTES_MAX)
    }
}

/// Checks the patterns of all subschemas. Plain data (a `default`, for example) has none, unless a reference points into
/// it. Enters the positions of each into the graph, and returns what all of them take when they are compiled.
pub(super) fn check(graph: &mut Graph<'_>, draft: Draft) -> Result<Compiled, Vec<Violation>> {
    let mut patterns =
        Patterns { draft, sizes: BTreeMap::new(), bytes: 0, translation_bytes: 0, violations: Vec::new() };
    for (map, loc) in graph.subschemas() {
        if let Some(Value::String(pattern)) = map.get("pattern") {
            patterns.check(pattern, || [loc(), vec!["pattern".into()]].concat());
        }
        if let Some(Value::Object(members)) = map.get("patternProperties") {
            for pattern in members.keys() {
                let segments: [LocSegment; 2] = ["patternProperties".into(), pattern.as_str().into()];
                patterns.check(pattern, || [loc(), segments.to_vec()].concat());
            }
        }
    }
    if !patterns.violations.is_empty() {
        return Err(patterns.violations);
    }
    // Only now: a pattern that is accepted has a bounded translation.
    let all: BTreeMap<&str, u64> =
        patterns.sizes.keys().map(|pattern| (*pattern, positions::costly(pattern))).collect();
    graph.set_positions(|pattern| all.get(pattern).copied().unwrap_or(u64::MAX));
    Ok(Compiled { bytes: patterns.bytes, count: patterns.sizes.len() })
}

/// The patterns that were checked.
struct Patterns<'s> {
    draft: Draft,
    sizes: BTreeMap<&'s str, Option<usize>>,
    bytes: usize,
    /// What the translation of all of them parses.
    translation_bytes: usize,
    violations: Vec<Violation>,
}

impl<'s> Patterns<'s> {
    fn check(&mut self, pattern: &'s str, loc: impl Fn() -> Vec<LocSegment>) {
        if self.bytes > PATTERNS_BYTES_MAX || self.translation_bytes > PATTERN_TRANSLATION_BYTES_MAX {
            return;
        }
        let is_new = !self.sizes.contains_key(pattern);
        if is_new {
            self.translation_bytes = self.translation_bytes.saturating_add(translation_bytes(pattern));
            if self.translation_bytes > PATTERN_TRANSLATION_BYTES_MAX {
                let msg = "the patterns of the schema have too many character classes (`\\s`, `\\d`, `\\w`, `\\cX`) up \
                           to this one; write `[0-9]` for `\\d`, or `{n}` for a repetition";
                self.violations.push(Violation::at(loc(), msg));
                return;
            }
        }
        let size = *self.sizes.entry(pattern).or_insert_with(|| size_of(pattern, self.draft));
        match size {
            None => self.violations.push(Violation::at(loc(), refusal(pattern))),
            Some(size) if is_new => {
                self.bytes += size;
                if self.bytes > PATTERNS_BYTES_MAX {
                    let msg = format!(
                        "the patterns of the schema take more than {} MiB up to this one",
                        PATTERNS_BYTES_MAX >> 20
                    );
                    self.violations.push(Violation::at(loc(), msg));
                }
            }
            Some(_) => {}
        }
    }
}

/// The bytes that the translation of a pattern parses: all of it, once more for each character class, and it grows.
fn translation_bytes(pattern: &str) -> usize {
    let (mut classes, mut grown, mut is_escaped) = (0_usize, pattern.len(), false);
    for byte in pattern.bytes() {
        let translated = match byte {
            b's' | b'S' if is_escaped => TRANSLATED_SPACE_BYTES,
            b'd' | b'D' | b'w' | b'W' | b'c' if is_escaped => TRANSLATED_CLASS_BYTES,
            _ => 0,
        };
        classes += usize::from(translated > 0);
        grown += translated;
        is_escaped = !is_escaped && byte == b'\\';
    }
    grown.saturating_mul(classes + 1)
}

/// The approximate size of the compiled pattern; `None` when it does not compile within the limit.
fn size_of(pattern: &str, draft: Draft) -> Option<usize> {
    let schema = Value::Object(Map::from_iter([("pattern".to_owned(), Value::String(pattern.to_owned()))]));
    SIZE_TIERS_BYTES.into_iter().find(|size| {
        let options = jsonschema::options().with_draft(draft).offline().with_pattern_options(options(*size));
        options.build(&schema).is_ok()
    })
}

/// A pattern that was checked, as the schema of a text that it matches.
pub(super) fn compiled(pattern: &str, draft: Draft) -> Option<Validator> {
    let schema = Value::Object(Map::from_iter([("pattern".to_owned(), Value::String(pattern.to_owned()))]));
    let options = options(PATTERN_BYTES_MAX).dfa_size_limit(MATCH_CACHE_BYTES_MIN);
    jsonschema::options().with_draft(draft).offline().with_pattern_options(options).build(&schema).ok()
}

/// Why a pattern that does not compile is refused.
fn refusal(pattern: &str) -> String {
    let shown: String = pattern.chars().take(100).collect();
    match Parser::new().parse(pattern).err().map(|error| error.kind().clone()) {
        Some(ErrorKind::UnsupportedLookAround) => format!(
            "the pattern `{shown}` looks around ((?=, (?!, (?<), which can't be matched in linear time"
        ),
        Some(ErrorKind::UnsupportedBackreference) => {
            format!("the pattern `{shown}` refers back to a group, which can't be matched in linear time")
        }
        Some(kind) => format!("the pattern `{shown}` is no regular expression: {kind}"),
        None => format!("the pattern `{shown}` takes more than {} KiB", PATTERN_BYTES_MAX >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patterns_of_a_schema_share_what_matches_may_cache() {
        let cached = |count: usize| Compiled { bytes: 0, count }.weight_bytes();
        assert_eq!((cached(0), cached(1), cached(16)), (0, MATCH_CACHE_BYTES_MAX, PATTERNS_BYTES_MAX));
        assert_eq!(cached(1000), PATTERNS_BYTES_MAX / 1000 * 1000);
        assert_eq!(cached(4000), 4000 * MATCH_CACHE_BYTES_MIN);
    }
}
