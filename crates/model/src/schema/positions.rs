//! How many states of a pattern a match may be in at one byte of a text.
//!
//! The engine follows a pattern as an automaton. It caches the combinations of states that it meets; when there are too
//! many of them, it follows each state by itself, byte by byte, which costs hundreds of times what a cached combination
//! does. With few states there are few combinations, so only patterns of many are priced ([`costly`]).
//!
//! The states are counted on the syntax tree of the engine's own parser, of the text that the validator gives to the
//! engine: that text is not the pattern (`[` in a class, `\cX`, `\d`), and another grammar would count other states
//! than the engine has. So the caller has bounded what the translation takes.
//!
//! **Invariant:** the count is an upper bound, up to a constant factor, of the states of the compiled pattern, where a
//! class counts once: of its states for the bytes of a character a match is in one.

use jsonschema_regex::to_rust_regex;
use regex_syntax::ast::{Ast, GroupKind, RepetitionKind, RepetitionRange, parse::Parser};

/// Positions up to which all their combinations are cached.
const CHEAP_POSITIONS_MAX: u64 = 8;

/// The positions of a pattern, where they are many.
pub(super) fn costly(pattern: &str) -> u64 {
    let positions = positions(pattern);
    if positions > CHEAP_POSITIONS_MAX { positions } else { 0 }
}

/// All positions. A pattern that the engine does not compile is refused elsewhere.
fn positions(pattern: &str) -> u64 {
    let translated = to_rust_regex(pattern).ok();
    let tree = translated.and_then(|translated| Parser::new().parse(&translated).ok());
    tree.map_or(u64::MAX, |tree| count(&tree))
}

/// The recursion is bounded by the parser, which refuses a deep tree.
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
        assert_eq!((costly(&"a".repeat(8)), costly(&"a".repeat(9))), (0, 9));
    }

    #[test]
    fn what_the_engine_takes_for_a_comment_or_for_a_class_hides_nothing() {
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
