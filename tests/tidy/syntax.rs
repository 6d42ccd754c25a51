//! As much of Rust's syntax as the rules need: tokens without comments, and the paths that a file names.
//!
//! A parser of the whole language would be a dependency. The rules ask for less: which words stand in the code, and
//! what `crate::…`, `super::…` and the groups of a `use` name.

use std::ops::RangeInclusive;

/// An identifier, a number, `::`, one character of punctuation, or `""` for a string or character literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) text: String,
}

impl Token {
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(is_word)
    }
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The tokens of a Rust file.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let (mut found, mut line, mut rest) = (Vec::new(), 1, text);
    while let Some(first) = rest.chars().next() {
        let (length, token) = match first {
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), None),
            _ if rest.starts_with("/*") => (block_comment(rest), None),
            _ if first.is_whitespace() => (first.len_utf8(), None),
            _ if rest.starts_with("::") => (2, Some("::")),
            _ => match literal(rest) {
                Some(length) => (length, Some("\"\"")),
                None => {
                    let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                    let length = if word == 0 { first.len_utf8() } else { word };
                    (length, Some(&rest[..length]))
                }
            },
        };
        found.extend(token.map(|text| Token { line, text: text.to_owned() }));
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// The length of the block comment that a text begins with; they nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut place) = (0_usize, 0);
    loop {
        let rest = &text[place..];
        let Some(step) = rest.find("/*").into_iter().chain(rest.find("*/")).min() else { return text.len() };
        depth = if rest[step..].starts_with("/*") { depth + 1 } else { depth - 1 };
        place += step + 2;
        if depth == 0 {
            return place;
        }
    }
}

/// The length of the string or character literal that a text begins with.
fn literal(text: &str) -> Option<usize> {
    let prefix = text.find(|c: char| !c.is_ascii_alphabetic()).filter(|length| *length <= 2)?;
    let inner = &text[prefix..];
    let is_raw = matches!(&text[..prefix], "r" | "br" | "cr");
    if is_raw {
        let hashes = inner.find(|c| c != '#')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let body = inner[hashes..].strip_prefix('"')?;
        return Some(prefix + hashes + 1 + body.find(&end)? + end.len());
    }
    if !matches!(&text[..prefix], "" | "b" | "c") {
        return None;
    }
    let quote = inner.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut chars = inner.chars().skip(1);
    // A lifetime: no quote behind its first character.
    if quote == '\'' && chars.next()? != '\\' && chars.next()? != quote {
        return None;
    }
    let mut escaped = false;
    for (place, c) in inner.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(prefix + place + 1),
            _ => {}
        }
    }
    None
}

/// The lines of the items below `#[cfg(test)]` and `#[cfg(any(test, feature = "testing"))]`.
pub(super) fn test_lines(tokens: &[Token]) -> Vec<RangeInclusive<usize>> {
    let attributes: [&[&str]; 2] = [
        &["#", "[", "cfg", "(", "test", ")", "]"],
        &["#", "[", "cfg", "(", "any", "(", "test", ",", "feature", "=", "\"\"", ")", ")", "]"],
    ];
    let mut found: Vec<RangeInclusive<usize>> = Vec::new();
    for place in 0..tokens.len() {
        let begins = |text: &&&[&str]| {
            text.iter().eq(tokens[place..].iter().map(|token| &token.text).take(text.len()))
        };
        let Some(attribute) = attributes.iter().find(begins) else { continue };
        let mut depth = 0_usize;
        let end = tokens[place + attribute.len()..].iter().find(|token| {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && matches!(token.text.as_str(), "}" | ";")
        });
        found.push(tokens[place].line..=end.map_or(usize::MAX, |end| end.line));
    }
    found
}

/// A path that a file names, from the workspace's root: first the crate, by its name without `concord_`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
}

/// The crate that a word names in a path: `concord_state` is `state`.
fn library(word: &str) -> Option<&str> {
    word.strip_prefix("concord_")
}

/// The paths of this workspace that a file names: `crate::…`, `concord_state::…`, `self::…` and `super::…` with the groups
/// of a `use` taken apart, each resolved against the module that it stands in.
pub(super) fn named_paths(file: &str, tokens: &[Token]) -> Vec<Named> {
    let mut module = module_of(file);
    // The depth of braces at which each inline module was opened.
    let (mut inline, mut depth) = (Vec::new(), 0_usize);
    let (mut found, mut place) = (Vec::new(), 0);
    while place < tokens.len() {
        let text = |ahead: usize| tokens.get(place + ahead).map_or("", |token| token.text.as_str());
        match text(0) {
            "mod" if text(2) == "{" => {
                module.push(text(1).to_owned());
                inline.push(depth);
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            word if text(1) == "::"
                && (matches!(word, "crate" | "self" | "super") || library(word).is_some()) =>
            {
                let mut paths = Vec::new();
                place = tree(tokens, place, &[], &mut paths);
                found.extend(paths.into_iter().map(|(line, path)| absolute(line, &path, &module)));
                continue;
            }
            _ => {}
        }
        place += 1;
    }
    found
}

/// Reads a path or the tree of a `use` at a place, and returns the place behind it.
fn tree(
    tokens: &[Token],
    mut place: usize,
    before: &[String],
    found: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let mut path = before.to_vec();
    let text = |place: usize| tokens.get(place).map_or("", |token| token.text.as_str());
    let line = tokens.get(place).map_or(0, |token| token.line);
    while place < tokens.len() && (tokens[place].is_word() || text(place) == "*") {
        path.push(text(place).to_owned());
        place += 1;
        if text(place) != "::" {
            break;
        }
        place += 1;
        if text(place) == "{" {
            place += 1;
            while place < tokens.len() && text(place) != "}" {
                let behind = tree(tokens, place, &path, found);
                // Over a comma, or over `as` and a name.
                place = behind.max(place + 1);
                while place < tokens.len() && !matches!(text(place), "," | "}") {
                    place += 1;
                }
                place += usize::from(text(place) == ",");
            }
            return place + 1;
        }
    }
    if path.len() > before.len() {
        found.push((line, path));
    }
    place
}

/// The module that a file is, from the workspace's root. The program in `src` is the crate `program`.
pub(super) fn module_of(file: &str) -> Vec<String> {
    let (own, inside) = match file.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) {
        Some(found) => found,
        None => ("program", file.strip_prefix("src/").unwrap_or(file)),
    };
    let path = inside.strip_suffix(".rs").unwrap_or(inside);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let below = path.split('/').filter(|_| !matches!(path, "lib" | "main"));
    [own].into_iter().chain(below).map(str::to_owned).collect()
}

fn absolute(line: usize, path: &[String], module: &[String]) -> Named {
    let (mut segments, mut rest) = (module.to_vec(), path);
    while let [first, others @ ..] = rest {
        match (first.as_str(), library(first)) {
            ("crate", _) => segments.truncate(1),
            ("super", _) => drop(segments.pop()),
            ("self", _) => {}
            (_, Some(name)) => segments = vec![name.to_owned()],
            (_, None) => break,
        }
        rest = others;
    }
    // The `self` of a group stands for what the group is of.
    segments.extend(rest.iter().filter(|segment| *segment != "self").cloned());
    Named { line, segments }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        tokens(text).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        let text = "a /* b /* c */ d */ e // f\n\"g \\\" h\" r#\"i \" j\"# b'k' '\\'' '\"' l 'm' n";
        assert_eq!(words(text), ["a", "e", "\"\"", "\"\"", "\"\"", "\"\"", "\"\"", "l", "\"\"", "n"]);
        assert_eq!(words("fn f<'a>(x: &'a str, y: &'static u8)").iter().filter(|w| *w == "a").count(), 2);
        assert_eq!(words("crate::x"), ["crate", "::", "x"]);
        assert_eq!(tokens("a\n\"\n\"\nb").last().unwrap().line, 4);
    }

    #[test]
    fn unit_tests_are_told_from_the_product() {
        let lines = |text: &str| test_lines(&tokens(text));
        assert_eq!(lines("a;\n#[cfg(test)]\nmod tests;\nb;"), [2..=3]);
        assert_eq!(lines("#[cfg(test)]\nmod tests {\n fn f() { ; }\n}\nb"), [1..=4]);
        assert_eq!(lines("a;\n#[cfg(any(test, feature = \"x\"))]\npub mod fuzz;\nb;"), [2..=3]);
        assert!(lines("#[cfg(unix)]\nmod tests;").is_empty());
    }

    #[test]
    fn paths_are_resolved() {
        let named = |file: &str, text: &str| -> Vec<String> {
            let named = named_paths(file, &tokens(text)).into_iter();
            named.map(|named| named.segments.join("/")).collect()
        };
        let text = "use crate::{\n    a::{self, reply::{A, b::C as D}},\n    b,\n};\nf(concord_storage::files::open());";
        let expected = ["model/a", "model/a/reply/A", "model/a/reply/b/C", "model/b", "storage/files/open"];
        assert_eq!(named("crates/model/src/x.rs", text), expected);
        assert_eq!(
            named("crates/service/src/write/mod.rs", "use super::{read, Service};"),
            ["service/read", "service/Service"]
        );
        assert_eq!(
            named("crates/service/src/write/a.rs", "mod t { use super::super::b; } use super::c;"),
            ["service/write/b", "service/write/c"]
        );
        assert_eq!(named("crates/service/src/lib.rs", "use self::concord_net::{A, b};"), ["net/A", "net/b"]);
        assert_eq!(named("src/cli/mod.rs", "crate::node::run(self.x)"), ["program/node/run"]);
    }
}
