//! Patterns that match in bounded time and memory.
//!
//! The engine is `regex`, which matches in linear time: it has no look-around and no back-references, because both can
//! make a match take exponential time. A schema that has one of them is matched by `fancy-regex`, which backtracks: at
//! most [`PATTERN_STEPS_MAX`] times for a text, and each of its patterns is charged as if it did. A text that takes
//! more does not match. A pattern without them can still be large (`a{1000}{1000}`, `\p{L}{500}`), so the compiled size
//! of each pattern is limited, and that of all patterns of a schema. The translation into the engine's syntax is
//! limited too, before it begins: it parses the pattern once for each character class.
//!
//! The engine follows a pattern as an automaton and caches the combinations of states that a match is in. If there are
//! too many combinations, the engine follows each state by itself, byte by byte, which costs hundreds of times as much.
//! A pattern with few states has few combinations, so only patterns with many states are priced ([`costly_positions`]).
//! They are counted on the syntax tree that the engine's own parser makes of the text that the validator passes to the
//! engine. That text is not the pattern (`[` in a class, `\cX`, `\d`), and another grammar would count other states.
//!
//! **Invariants:** a pattern that is accepted here compiles in the validator, which uses the same options. The count of
//! positions is an upper bound, up to a constant factor, of the states of the compiled pattern. A class counts once: of
//! its states for the bytes of a character, a match is in one.

use std::collections::BTreeMap;

use jsonschema::{
    Draft, FancyRegex, PatternOptions, Regex, ValidationOptions, Validator, error::ValidationErrorKind,
};
use jsonschema_regex::to_rust_regex;
use regex_syntax::ast::{Ast, ErrorKind, GroupKind, RepetitionKind, RepetitionRange, parse::Parser};
use serde_json::{Map, Value};

use super::graph::Graph;
use crate::{
    error::{LocSegment, Violation},
    limits::{
        BACKTRACKING_PATTERN_BYTES_MAX, PATTERN_BYTES_MAX, PATTERN_STEPS_MAX, PATTERN_TRANSLATION_BYTES_MAX,
        PATTERNS_BYTES_MAX, SECRET_PATTERN_STEPS_MAX,
    },
};

/// Size limits in bytes that are tried in ascending order to estimate the size of a compiled pattern.
const SIZE_TIERS_BYTES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, PATTERN_BYTES_MAX];
/// Steps of a match that backtracks, for one evaluation.
const STEPS_PER_EVALUATION: u64 = 16;
/// How often the validator checks data again, with other outcomes assumed, when a match takes more steps than it may.
const ASSUMED_RUNS: u64 = 64;
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

/// The engine that backtracks; each part of a pattern that does not is compiled by the other one, within the limit.
fn backtracking(size: usize, steps: u64) -> PatternOptions<FancyRegex> {
    let steps = usize::try_from(steps).unwrap_or(usize::MAX);
    PatternOptions::fancy_regex()
        .backtrack_limit(steps)
        .size_limit(size)
        .dfa_size_limit(MATCH_CACHE_BYTES_MIN)
}

/// What the patterns of a schema take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CompiledPatterns {
    bytes: usize,
    count: usize,
    /// Whether one of them has look-around or a back-reference.
    backtracks: bool,
}

impl CompiledPatterns {
    /// The options of the validator. The patterns share what matches may cache.
    pub(super) fn configure(self, options: ValidationOptions<'static>) -> ValidationOptions<'static> {
        if self.backtracks {
            return options.with_pattern_options(backtracking(PATTERN_BYTES_MAX, PATTERN_STEPS_MAX));
        }
        let engine = self::options(PATTERN_BYTES_MAX).dfa_size_limit(self.match_cache_bytes());
        options.with_pattern_options(engine)
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

/// Checks the patterns of all subschemas. Plain data (a `default`, for example) has none, unless a reference points
/// into it. Enters the positions of each into the graph, and returns what all of them take when they are compiled.
pub(super) fn check(graph: &mut Graph<'_>, draft: Draft) -> Result<CompiledPatterns, Vec<Violation>> {
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
    let of = |(pattern, size): (&&'_ str, &Option<PatternSize>)| {
        let backtracks = size.is_some_and(|size| size.backtracks);
        // What backtracks is charged by its steps.
        if backtracks { 0 } else { costly_positions(pattern) }
    };
    let all: BTreeMap<&str, u64> = patterns.sizes.iter().map(|pattern| (*pattern.0, of(pattern))).collect();
    let backtracks = patterns.sizes.values().flatten().any(|size| size.backtracks);
    // Then the same engine matches all patterns of the schema.
    let steps = if backtracks { PATTERN_STEPS_MAX / STEPS_PER_EVALUATION * ASSUMED_RUNS } else { 0 };
    graph.set_patterns(|pattern| all.get(pattern).copied().unwrap_or(u64::MAX), steps);
    Ok(CompiledPatterns { bytes: patterns.bytes, count: patterns.sizes.len(), backtracks })
}

/// The patterns that were checked.
struct Patterns<'s> {
    draft: Draft,
    sizes: BTreeMap<&'s str, Option<PatternSize>>,
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
        let draft = self.draft;
        let size = *self.sizes.entry(pattern).or_insert_with(|| size_of(pattern, draft));
        match size.map(|size| size.bytes) {
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

/// The approximate size of a compiled pattern.
#[derive(Debug, Clone, Copy)]
struct PatternSize {
    bytes: usize,
    backtracks: bool,
}

/// The approximate size of the compiled pattern; `None` when it does not compile within the limit.
fn size_of(pattern: &str, draft: Draft) -> Option<PatternSize> {
    let schema = Value::Object(Map::from_iter([("pattern".to_owned(), Value::String(pattern.to_owned()))]));
    let plain = || jsonschema::options().with_draft(draft).offline();
    let mut tiers = SIZE_TIERS_BYTES.into_iter();
    if !backtracks(pattern) {
        let fits = |size: &usize| plain().with_pattern_options(options(*size)).build(&schema).is_ok();
        return tiers.find(fits).map(|bytes| PatternSize { bytes, backtracks: false });
    }
    if pattern.len() > BACKTRACKING_PATTERN_BYTES_MAX {
        return None;
    }
    // Each group may be a part that is compiled by itself.
    let parts = 1 + pattern.bytes().filter(|byte| *byte == b'(').count();
    let fits = |size: &usize| {
        plain().with_pattern_options(backtracking(*size, PATTERN_STEPS_MAX)).build(&schema).is_ok()
    };
    tiers.find(fits).map(|size| PatternSize { bytes: size.saturating_mul(parts), backtracks: true })
}

/// Whether a pattern has look-around or a back-reference.
fn backtracks(pattern: &str) -> bool {
    let error = Parser::new().parse(pattern).err();
    let kinds = [ErrorKind::UnsupportedLookAround, ErrorKind::UnsupportedBackreference];
    error.is_some_and(|error| kinds.contains(error.kind()))
}

/// A pattern of `patternProperties` for other readers of a schema; it matches as the validator's.
#[derive(Debug)]
pub(super) struct NamePattern {
    /// The schema of a text that it matches; `None` where it is known only with the whole schema.
    schema: Option<Validator>,
    backtracks: bool,
}

impl NamePattern {
    /// One of the patterns of a schema that were checked.
    pub(super) fn of(pattern: &str, draft: Draft) -> Self {
        let schema =
            Value::Object(Map::from_iter([("pattern".to_owned(), Value::String(pattern.to_owned()))]));
        let backtracks = backtracks(pattern);
        let plain = jsonschema::options().with_draft(draft).offline();
        let options = if backtracks {
            plain.with_pattern_options(backtracking(PATTERN_BYTES_MAX, SECRET_PATTERN_STEPS_MAX))
        } else {
            let engine = options(PATTERN_BYTES_MAX).dfa_size_limit(MATCH_CACHE_BYTES_MIN);
            plain.with_pattern_options(engine)
        };
        Self { schema: options.build(&schema).ok(), backtracks }
    }

    /// Whether it matches a name; `None` when that takes too many steps to find out.
    pub(super) fn matches(&self, name: &str) -> Option<bool> {
        let (schema, name) = (self.schema.as_ref()?, Value::String(name.to_owned()));
        if !self.backtracks {
            return Some(schema.is_valid(&name));
        }
        let Err(error) = schema.validate(&name) else { return Some(true) };
        // Any other error does not concern the name.
        matches!(error.kind(), ValidationErrorKind::Pattern { .. }).then_some(false)
    }

    /// The cost of matching a name, in evaluations.
    pub(super) fn steps(&self) -> u64 {
        if self.backtracks { SECRET_PATTERN_STEPS_MAX / STEPS_PER_EVALUATION } else { 1 }
    }
}

/// Why a pattern that does not compile is rejected.
fn refusal(pattern: &str) -> String {
    let shown: String = pattern.chars().take(100).collect();
    let (most, error) = (PATTERN_BYTES_MAX >> 10, Parser::new().parse(pattern).err());
    match error.map(|error| error.kind().clone()) {
        Some(ErrorKind::UnsupportedLookAround | ErrorKind::UnsupportedBackreference)
            if pattern.len() > BACKTRACKING_PATTERN_BYTES_MAX =>
        {
            format!(
                "the pattern `{shown}` has look-around or a back-reference, and more than {BACKTRACKING_PATTERN_BYTES_MAX} bytes"
            )
        }
        Some(ErrorKind::UnsupportedLookAround | ErrorKind::UnsupportedBackreference) => {
            format!("the pattern `{shown}` is not a regular expression, or takes more than {most} KiB")
        }
        Some(kind) => format!("the pattern `{shown}` is not a regular expression: {kind}"),
        None => format!("the pattern `{shown}` takes more than {most} KiB"),
    }
}

/// Positions up to which all their combinations are cached.
const CHEAP_POSITIONS_MAX: u64 = 8;

/// The positions of a pattern: the states of the automaton that a match may be in at one byte. 0 if they are few.
fn costly_positions(pattern: &str) -> u64 {
    let positions = positions(pattern);
    if positions > CHEAP_POSITIONS_MAX { positions } else { 0 }
}

/// All positions. A pattern that the engine does not compile is rejected elsewhere.
fn positions(pattern: &str) -> u64 {
    let translated = to_rust_regex(pattern).ok();
    let tree = translated.and_then(|translated| Parser::new().parse(&translated).ok());
    tree.map_or(u64::MAX, |tree| count(&tree))
}

/// The recursion is bounded by the parser, which rejects a deep tree.
fn count(tree: &Ast) -> u64 {
    match tree {
        Ast::Flags(_) => 0,
        Ast::Empty(_)
        | Ast::Assertion(_)
        | Ast::Dot(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_)
        | Ast::ClassBracketed(_) => 1,
        Ast::Literal(literal) => literal.c.len_utf8() as u64,
        Ast::Repetition(repetition) => {
            let repeated = count(&repetition.ast);
            match &repetition.op.kind {
                RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => {
                    repeated.saturating_add(1)
                }
                RepetitionKind::Range(range) => repeated.saturating_mul(times(range)),
            }
        }
        Ast::Group(group) => {
            let captured = !matches!(group.kind, GroupKind::NonCapturing(_));
            count(&group.ast).saturating_add(captured.into())
        }
        Ast::Alternation(alternation) => sum(&alternation.asts),
        Ast::Concat(concat) => sum(&concat.asts),
    }
}

fn sum(trees: &[Ast]) -> u64 {
    trees.iter().map(count).fold(0, u64::saturating_add)
}

/// How often the engine compiles what is repeated.
fn times(range: &RepetitionRange) -> u64 {
    match *range {
        RepetitionRange::Exactly(times) | RepetitionRange::Bounded(_, times) => times.max(1).into(),
        // The last one is a loop.
        RepetitionRange::AtLeast(times) => u64::from(times) + 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use regex_automata::{nfa::thompson, util::syntax};

    use super::*;

    #[test]
    fn the_patterns_of_a_schema_share_the_match_cache() {
        let cached = |count: usize| CompiledPatterns { bytes: 0, count, backtracks: false }.weight_bytes();
        assert_eq!((cached(0), cached(1), cached(32)), (0, MATCH_CACHE_BYTES_MAX, PATTERNS_BYTES_MAX));
        assert_eq!(cached(1000), PATTERNS_BYTES_MAX / 1000 * 1000);
        assert_eq!(cached(4000), 4000 * MATCH_CACHE_BYTES_MIN);
    }

    #[test]
    fn positions_are_counted_with_their_repetitions() {
        for (pattern, expected) in [
            ("", 1),
            ("^[a-z]+$", 4),
            ("abc", 3),
            ("aé", 3),
            (r"a{3}b{2,5}c{4,}", 13),
            (r"(?:ab){10}", 20),
            (r"(?<year>a){4}", 8),
            (r"(?:a(?:b){3}){5}", 20),
            (r"[\]x]{7}\{2", 9),
            (r"\p{L}{100}", 100),
            (r"\cA{7}", 7),
            (r"[\s\d]{7}", 7),
            ("(?:a{4294967295}){4294967295}{4294967295}", u64::MAX),
            ("((", u64::MAX),
        ] {
            assert_eq!(positions(pattern), expected, "{pattern}");
        }
        assert_eq!((costly_positions(&"a".repeat(8)), costly_positions(&"a".repeat(9))), (0, 9));
    }

    #[test]
    fn comments_and_classes_of_the_engine_hide_no_positions() {
        for (pattern, plain) in [
            ("(?x)#{\n[ab]*a[ab]{300}$", "[ab]*a[ab]{300}$"),
            ("[]{]?[ab]*a[ab]{300}$", "[ab]*a[ab]{300}$"),
            // With nested classes it would be one class. The validator has none.
            ("[[]{2}]{300}]", "[x]{2}]{300}]"),
            (r"[ab]*a[\s[ab]{300}$", "[ab]*a[ab]{300}$"),
        ] {
            assert!(positions(pattern) >= positions(plain), "{pattern}: {}", positions(pattern));
        }
    }

    /// The states of the compiled pattern, with classes of bytes: each is one state.
    fn compiled_states(pattern: &str) -> Option<u64> {
        let translated = to_rust_regex(pattern).ok()?;
        let compiler = thompson::Config::new().utf8(false).nfa_size_limit(Some(1 << 20));
        let bytes = syntax::Config::new().unicode(false).utf8(false);
        let compiled = thompson::Compiler::new().configure(compiler).syntax(bytes).build(&translated).ok()?;
        Some(compiled.states().len() as u64)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_count_bounds_what_the_engine_compiles(parts in vec(select(&PARTS[..]), 0..24)) {
            let pattern = parts.concat();
            if let Some(states) = compiled_states(&pattern) {
                // The whole match adds a few.
                prop_assert!(states <= 3 * positions(&pattern) + 16, "{pattern}: {states}, {}", positions(&pattern));
            }
        }
    }

    /// Parts of which texts are made that one grammar may read differently from another.
    const PARTS: [&str; 40] = [
        "a", "b", "#", "\n", " ", "-", "&&", "~~", "--", "^", "$", r"\b", "|", "*", "+", "?", "[", "]", "[^",
        "[]", "[a-c", "[ab]", "{", "}", "{3}", "{2,7}", "{4,}", "{0}", "(", ")", "(?:", "(?x)", "(?x:",
        "(?i)", "(?<n>", r"\[", r"\]", r"\{", r"\cA", r"\d",
    ];
}
