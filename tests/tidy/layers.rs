//! Layers: calls go down, and each library is used in one place.

use super::{SRC, Source, assert_none, syntax::named_paths};

/// The layers from the lowest up: a layer names itself and those below.
const LAYERS: [&str; 8] = ["model", "state", "feed", "store", "peer", "raft", "service", "api"];

/// What is above all layers. No layer names it.
const ABOVE: [&str; 3] = ["node", "cli", "main"];

/// What belongs to no layer: the settings, the seeded bugs, the functions for fuzzers, and the crate's list of modules.
const BESIDE: [&str; 4] = ["settings", "sabotage", "fuzz_targets", "lib"];

/// Pairs that the order of the layers would allow: the calls between nodes know nothing of what they carry.
const APART: [(&str, &str); 3] = [("peer", "state"), ("peer", "feed"), ("peer", "store")];

/// Where a library is used, and nowhere else.
const LIBRARIES: [(&str, &[&str]); 10] = [
    ("axum", &["src/api/"]),
    ("openraft", &["src/raft/"]),
    ("raft_log", &["src/raft/"]),
    ("sled", &["src/store/"]),
    ("rustls", &["src/peer/"]),
    ("x509_parser", &["src/peer/tls/"]),
    ("opentelemetry_proto", &["src/service/spans/"]),
    ("prost", &["src/service/spans/"]),
    ("jsonschema", &["src/model/schema/"]),
    ("clap", &["src/settings.rs", "src/settings/", "src/cli/", "src/main.rs"]),
];

/// The part of the crate that a file belongs to: the folder or file directly below `src`.
fn part(path: &str) -> &str {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    let part = inside.split('/').next().unwrap_or(inside);
    part.strip_suffix(".rs").unwrap_or(part)
}

fn rank(part: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == part)
}

/// Whether a part of the crate may name another.
fn may_name(own: &str, other: &str) -> bool {
    match (rank(own), rank(other)) {
        (Some(own_rank), Some(other_rank)) => other_rank <= own_rank && !APART.contains(&(own, other)),
        (Some(_), None) => !ABOVE.contains(&other),
        (None, _) => true,
    }
}

fn upward(source: &Source) -> Vec<String> {
    let own = part(&source.path);
    let named = named_paths(&source.path, &source.tokens).into_iter();
    let named = named.filter_map(|named| Some((named.line, named.segments.into_iter().next()?)));
    let wrong = named.filter(|(_, other)| !may_name(own, other));
    wrong.map(|(line, other)| format!("{}:{line} names `{other}`", source.path)).collect()
}

#[test]
fn a_layer_names_only_itself_and_those_below() {
    let breaches: Vec<String> = SRC.iter().flat_map(upward).collect();
    assert_none("calls between layers go down", &breaches);
}

#[test]
fn every_part_of_the_crate_has_its_place() {
    let is_known = |part: &str| rank(part).is_some() || ABOVE.contains(&part) || BESIDE.contains(&part);
    let mut unknown: Vec<String> = SRC.iter().map(|source| part(&source.path).to_owned()).collect();
    unknown.dedup();
    unknown.retain(|part| !is_known(part));
    assert_none("each file or folder below `src` is a layer or stands in a list here", &unknown);
    let exists = |name: &str| SRC.iter().any(|source| part(&source.path) == name);
    assert!(LAYERS.iter().chain(&ABOVE).chain(&BESIDE).all(|name| exists(name)), "a name here is no part");
}

#[test]
fn a_call_upward_is_found() {
    let breaches = |path: &str, text: &str| upward(&Source::new(path, text)).len();
    assert_eq!(
        breaches("src/raft/x.rs", "use crate::{\n    peer, store::{files, api},\n    service::Service,\n};"),
        1
    );
    assert_eq!(breaches("src/feed.rs", "fn f() { crate::store::open() }"), 1);
    assert_eq!(breaches("src/peer/client.rs", "use crate::{model::key::Key, state::State};"), 1);
    assert_eq!(breaches("src/model/key.rs", "use super::super::state;"), 1);
    assert_eq!(breaches("src/store/mod.rs", "use crate::{node, settings};"), 1);
    assert_eq!(breaches("src/node.rs", "use crate::{api, cli};"), 0);
}

#[test]
fn only_the_node_names_the_front_end() {
    let mut breaches = Vec::new();
    for source in SRC.iter().filter(|source| !["api", "node", "lib"].contains(&part(&source.path))) {
        let named = named_paths(&source.path, &source.tokens).into_iter();
        let named = named.filter(|named| named.segments.first().is_some_and(|first| first == "api"));
        breaches.extend(named.map(|named| format!("{}:{}", source.path, named.line)));
    }
    assert_none("`api` is named by `node` only", &breaches);
}

/// The lines in which a file uses a library: `library::…` or `use library;`, not a module of ours of that name.
fn uses(source: &Source, library: &str) -> Vec<usize> {
    let text = |place: usize| source.tokens.get(place).map_or("", |token| token.text.as_str());
    let is_use = |place: &usize| {
        let before = place.checked_sub(1).map_or("", text);
        text(*place) == library
            && before != "::"
            && (text(place + 1) == "::" || (before == "use" && text(place + 1) == ";"))
    };
    (0..source.tokens.len()).filter(is_use).map(|place| source.tokens[place].line).collect()
}

#[test]
fn a_library_is_used_in_one_place() {
    let mut breaches = Vec::new();
    for source in SRC.iter() {
        for (library, homes) in LIBRARIES {
            if homes.iter().any(|home| source.path.starts_with(home)) {
                continue;
            }
            let lines = uses(source, library).into_iter();
            breaches.extend(lines.map(|line| format!("{}:{line} uses `{library}`", source.path)));
        }
    }
    assert_none("each library is used in one place", &breaches);
}

#[test]
fn a_library_is_told_from_a_module_of_its_name() {
    let lines = |text: &str| uses(&Source::new("src/x.rs", text), "sled");
    assert_eq!(lines("use sled::Tree;\nlet db = sled::open();\nuse sled;"), [1, 2, 3]);
    assert!(lines("use crate::store::sled::Mirror;\nmod sled;\nlet sled = 1;").is_empty());
}
