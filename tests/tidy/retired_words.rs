//! The words that the glossary's terms have replaced do not come back.
//!
//! `docs/glossary.md` gives each thing one name. A reader who meets another word for it looks for another
//! thing. This file holds words that are gone from the whole tree, each with the term to use. It is the only file that
//! may hold them. The glossary lists more words to avoid, which the tree still has; reviewers look for those.
//!
//! The parts of an identifier are compared as well: `held_against` and `HeldAgainst` are two words. Words that are also
//! plain English (`told`, `kept`) are rejected only as the name of a type, a constant or a module.

use std::collections::BTreeMap;

use super::{assert_none, files_below, read, syntax::is_word, tokens};

/// Where a word is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In every text, identifiers and comments included, whatever its case.
    Anywhere,
    /// As a part of an identifier in Rust code, whatever its case.
    Code,
    /// As a whole identifier in Rust code, in this case; as the name of a file.
    Name,
}

use Place::{Anywhere, Code, Name};

#[derive(Debug)]
struct Retired {
    place: Place,
    /// Words or phrases, separated by commas.
    words: &'static str,
    /// The term of the glossary.
    instead: &'static str,
    /// Phrases with one of the words that mean something else, separated by commas.
    allowed: &'static str,
}

const fn retired(place: Place, words: &'static str, instead: &'static str) -> Retired {
    Retired { place, words, instead, allowed: "" }
}

impl Retired {
    const fn but(self, allowed: &'static str) -> Self {
        Self { allowed, ..self }
    }
}

const RETIRED: [Retired; 25] = [
    retired(Anywhere, "picture, pictures", "snapshot, state"),
    retired(Anywhere, "convoy, convoys", "forwarding batch"),
    retired(Anywhere, "trailing", "deferred index updates").but(
        "trailing slash, trailing slashes, trailing comma, trailing commas, trailing byte, trailing bytes, \
         trailing zero, trailing zeros, trailing space, trailing spaces, trailing whitespace, trailing newline, \
         trailing var arg",
    ),
    retired(Anywhere, "gate, gates, keeper, keepers, gatekeeper", "write barrier"),
    retired(Anywhere, "on aside", "run_blocking"),
    retired(Code, "aside", "run_blocking").but("set aside"),
    retired(Anywhere, "board, boards", "applied-state publisher"),
    retired(Anywhere, "rooms, this room, a room, one room, no other room, each room, every room", "layer, module"),
    retired(Anywhere, "room above, room below, rooms above, rooms below, house, houses", "layer, module"),
    retired(Anywhere, "held against", "validated against, compared with"),
    retired(Anywhere, "came together, come together, comes together", "batched"),
    retired(Anywhere, "come on, came on, comes on", "arrived"),
    retired(Anywhere, "behind revision, behind revisions, up to behind", "after revision"),
    retired(Anywhere, "trial, trials", "dry run"),
    retired(Code, "carry, carries, carried, carrying, carrier, carriers", "enqueue, mirror, forward"),
    retired(Name, "orders, Orders", "indexes"),
    retired(Code, "floor", "compaction_revision, the oldest retained revision").but("floor char boundary"),
    retired(Code, "stamped", "with an idempotency key"),
    retired(Name, "Turn, Turns", "waiter, page, step"),
    retired(Name, "Told", "HistoryResponse"),
    retired(Name, "Was, Past", "AsOf, history"),
    retired(Name, "Kept", "Retained"),
    retired(Name, "Reach", "applied mark, high-water mark"),
    retired(Name, "Notes", "pending updates"),
    retired(Name, "SOON, FEW, MANY, NEARLY, LOOK", "the quantity with its unit"),
];

/// What is read: folders with their files' extensions, and the Markdown files of the top level.
const READ: [(&str, &[&str]); 6] = [
    ("crates", &["rs", "html"]),
    ("src", &["rs", "html"]),
    ("tests", &["rs", "py"]),
    ("benches", &["rs"]),
    ("scripts", &["sh", "py"]),
    ("docs", &["md"]),
];

/// A word in lower case, and the line that it stands in.
type Part = (usize, String);

/// The parts of the words of a text: `HeldAgainst`, `held_against` and `held against` are the same two. An empty part
/// stands where no phrase goes on, as at a full stop or a bracket.
fn parts(first_line: usize, text: &str, found: &mut Vec<Part>) {
    let (mut line, mut word) = (first_line, String::new());
    let mut was_small = false;
    for c in text.chars() {
        let is_part = is_word(c) && c != '_';
        if !word.is_empty() && (!is_part || (c.is_uppercase() && was_small)) {
            found.push((line, std::mem::take(&mut word)));
        }
        was_small = !c.is_uppercase();
        if is_part {
            word.extend(c.to_lowercase());
        } else if !c.is_whitespace() && !"_/!`*-".contains(c) {
            found.push((line, String::new()));
        }
        line += usize::from(c == '\n');
    }
    found.extend([(line, word), (line, String::new())]);
}

fn phrases(list: &str) -> impl Iterator<Item = Vec<&str>> {
    list.split(',')
        .map(|phrase| phrase.split_whitespace().collect::<Vec<_>>())
        .filter(|phrase| !phrase.is_empty())
}

/// Whether a phrase stands at a place of some parts.
fn stands(parts: &[Part], place: usize, phrase: &[&str]) -> bool {
    let there = parts[place..].iter().map(|(_, word)| word.as_str()).take(phrase.len());
    there.eq(phrase.iter().copied())
}

/// Whether one of the allowed phrases covers a place.
fn is_allowed(parts: &[Part], place: usize, allowed: &str) -> bool {
    phrases(allowed).any(|phrase| {
        let covers = |offset: usize| place >= offset && stands(parts, place - offset, &phrase);
        (0..phrase.len()).any(covers)
    })
}

/// The parts of a file, and where each word stands among them.
struct Text {
    parts: Vec<Part>,
    places: BTreeMap<String, Vec<usize>>,
}

impl Text {
    fn new(parts: Vec<Part>) -> Self {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, (_, word)) in parts.iter().enumerate().filter(|(_, (_, word))| !word.is_empty()) {
            match places.get_mut(word) {
                Some(places) => places.push(place),
                None => drop(places.insert(word.clone(), vec![place])),
            }
        }
        Self { parts, places }
    }

    fn find(&self, retired: &Retired) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for phrase in phrases(retired.words) {
            for place in self.places.get(phrase[0]).into_iter().flatten().copied() {
                if stands(&self.parts, place, &phrase) && !is_allowed(&self.parts, place, retired.allowed) {
                    found.push((self.parts[place].0, phrase.join(" ")));
                }
            }
        }
        found
    }
}

/// The names of types, constants and modules in a Rust file that went.
fn names_in(path: &str, words: &[super::Token], retired: &Retired) -> Vec<(usize, String)> {
    let module = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let names: Vec<&str> = phrases(retired.words).flatten().collect();
    let file =
        names.iter().filter(|name| name.eq_ignore_ascii_case(module)).map(|name| (1, (*name).to_owned()));
    let inside = words.iter().filter(|word| names.contains(&word.text.as_str()));
    file.chain(inside.map(|word| (word.line, word.text.clone()))).collect()
}

/// The retired words of a file, each with its line and what to write instead.
fn breaches(path: &str, text: &str) -> Vec<String> {
    let (mut all, mut code) = (Vec::new(), Vec::new());
    parts(0, path, &mut all);
    parts(1, text, &mut all);
    let words = if path.ends_with(".rs") { tokens(text) } else { Vec::new() };
    for word in words.iter().filter(|word| word.is_word()) {
        parts(word.line, &word.text, &mut code);
    }
    let (all, code) = (Text::new(all), Text::new(code));
    let mut found = Vec::new();
    for retired in &RETIRED {
        let lines = match retired.place {
            Anywhere => all.find(retired),
            Code => code.find(retired),
            Name => names_in(path, &words, retired),
        };
        found.extend(lines.into_iter().map(|(line, word)| (line, word, retired.instead)));
    }
    found.sort();
    // What a machine allows at most is a floor in the benchmark, too.
    if path.starts_with("benches/load/") {
        found.retain(|(_, word, _)| word != "floor");
    }
    let shown = |(line, word, instead)| format!("{path}:{line} says `{word}`; the term is: {instead}");
    found.into_iter().map(shown).collect()
}

#[test]
fn retired_words_do_not_come_back() {
    let inside = READ.iter().flat_map(|(folder, extensions)| files_below(folder, extensions));
    let top = std::fs::read_dir(super::root()).unwrap().map(|entry| entry.unwrap().file_name());
    let top = top.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".md"));
    let files = inside.chain(top).filter(|path| path != file!());
    let found: Vec<String> = files.flat_map(|path| breaches(&path, &read(&path))).collect();
    assert_none("a word that the glossary has replaced", &found);
}

#[test]
fn a_retired_word_is_found() {
    let count = |text: &str| breaches("src/x.rs", text).len();
    for text in [
        "// the picture of a state",
        "fn from_convoy() {}",
        "const CONVOY_MAX: usize = 1;",
        "struct WriteGate;",
        "// a schema that data is held\n    // against",
        "/// Called by the room above.",
        "//! | this room | what |",
        "\"behind revision 7\"",
        "let carried = 1;",
        "struct CarriedWrite;",
        "fn aside() {}",
        "// it runs on `aside`",
        "struct Turn;",
        "const SOON: u8 = 1;",
        "match was { Was::Then => 1 }",
        "let x = state.floor;",
        "// a trailing index",
    ] {
        assert_eq!(count(text), 1, "{text}");
    }
    assert_eq!(breaches("src/a/past.rs", "").len(), 1);
    assert_eq!(
        breaches("docs/x.md", "See the\npictures."),
        ["docs/x.md:2 says `pictures`; the term is: snapshot, state"]
    );
}

#[test]
fn plain_words_are_not_retired() {
    let count = |path: &str, text: &str| breaches(path, text).len();
    for text in [
        "// a trailing slash, or the trailing zeros",
        "let n = bits.trailing_zeros();",
        "// carries the number of its format",
        "\"carry\"",
        "text.floor_char_boundary(9)",
        "\"floor\"",
        "// Turns a value into its bytes. Few do. Was it there?",
        "// is set aside",
        "let room = 1; // leaves room for more",
        "fn investigate_dashboard() {}",
        "fn sorted_in_both_orders() {}",
        "// The data is held. Against that stands nothing.",
        "fn while_changes_come() { on_all() }",
    ] {
        assert_eq!(count("src/x.rs", text), 0, "{text}");
    }
    assert_eq!(count("docs/upgrade.md", "A directory carries a number; the Turn."), 0);
}
