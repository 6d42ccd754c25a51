//! The units of `service`, its direct children, name each other one way.
//!
//! A unit is a struct that has the units that it calls, so each call names its type. `impl Service` would hide calls, and
//! stands in two files: the one that makes the units, and `metrics`, which shows figures of all of them.
//!
//! `lib.rs` puts them together and is exempt. A name that it brings in from a unit counts as the unit's: a path like
//! `crate::Rollback` hides no circle.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    SRC, Source, assert_none,
    syntax::{module_of, named_paths, test_lines},
};

const ROOT: &str = "crates/service/src/lib.rs";

/// For each unit the units that it names, with one place where it does.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

fn unit(path: &str) -> Option<String> {
    let module = module_of(path);
    let is_unit = module.len() > 1 && module[0] == "service" && path != ROOT;
    is_unit.then(|| module[1].clone())
}

/// What the root brings in from units: name, unit.
fn brought_in(root: &Source) -> BTreeMap<String, String> {
    let units = named_paths(&root.path, &as_from_crate(root)).into_iter();
    let units = units.filter(|named| named.segments.len() > 2 && named.segments[0] == "service");
    units
        .map(|mut named| (named.segments.pop().expect("three or more"), named.segments.swap_remove(1)))
        .collect()
}

/// The root's tokens with `self::` before each child that a `use` begins with: `pub use access::Access;`.
fn as_from_crate(root: &Source) -> Vec<super::Token> {
    let token = |line, text: &str| super::Token { line, text: text.to_owned() };
    let mut tokens = Vec::new();
    for (place, one) in root.tokens.iter().enumerate() {
        tokens.push(one.clone());
        let next = root.tokens.get(place + 1).map_or("", |next| next.text.as_str());
        if one.text == "use" && !["crate", "self", "super"].contains(&next) {
            tokens.extend([token(one.line, "self"), token(one.line, "::")]);
        }
    }
    tokens
}

fn edges(sources: &[Source]) -> Edges {
    let units: BTreeSet<String> = sources.iter().filter_map(|source| unit(&source.path)).collect();
    let brought_in = sources.iter().find(|source| source.path == ROOT).map(brought_in).unwrap_or_default();
    let mut edges = Edges::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some(own) = unit(&source.path) else { continue };
        let tested = test_lines(&source.tokens);
        for named in named_paths(&source.path, &source.tokens) {
            let [first, second, ..] = named.segments.as_slice() else { continue };
            if first != "service" || tested.iter().any(|lines| lines.contains(&named.line)) {
                continue;
            }
            let other = if units.contains(second) { Some(second) } else { brought_in.get(second) };
            let Some(other) = other.filter(|other| **other != own) else { continue };
            let place = format!("{}:{}", source.path, named.line);
            edges.entry(own.clone()).or_default().entry(other.clone()).or_insert(place);
        }
    }
    edges
}

/// The units that can be reached from one.
fn reachable(edges: &Edges, from: &str) -> BTreeSet<String> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(one) = pending.pop() {
        for next in edges.get(&one).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(next.clone()) {
                pending.push(next.clone());
            }
        }
    }
    found
}

/// The edges that are part of a circle.
fn circles(edges: &Edges) -> Vec<String> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        edges.keys().map(|unit| (unit, reachable(edges, unit))).collect();
    let comes_back = |from: &String, to: &String| reach.get(to).is_some_and(|found| found.contains(from));
    let all = edges.iter().flat_map(|(from, tos)| tos.iter().map(move |(to, place)| (from, to, place)));
    let wrong = all.filter(|(from, to, _)| comes_back(from, to));
    wrong.map(|(from, to, place)| format!("`{from}` names `{to}` at {place}")).collect()
}

#[test]
fn the_units_of_service_name_each_other_one_way() {
    assert_none("no unit of `service` names one that names it", &circles(&edges(&SRC)));
}

#[test]
fn a_unit_does_not_extend_the_service() {
    let extends = |source: &&Source| {
        source.tokens.windows(3).any(|three| {
            let text = |at: usize| three[at].text.as_str();
            (text(0), text(1), text(2)) == ("impl", "Service", "{")
        })
    };
    let of_service = SRC.iter().filter(|source| source.path.starts_with("crates/service/src/"));
    let found: Vec<&str> = of_service.filter(extends).map(|source| source.path.as_str()).collect();
    assert_eq!(
        found,
        [ROOT, "crates/service/src/metrics/mod.rs", "crates/service/src/metrics/replicated.rs"]
    );
}

#[test]
fn a_circle_of_units_is_found() {
    let found = |files: &[(&str, &str)]| {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        circles(&edges(&sources))
    };
    let read = ("crates/service/src/read/mod.rs", "use crate::{Service, write::prepare};");
    let forward = ("crates/service/src/forward.rs", "fn f() { super::read::page() }");
    let write = ("crates/service/src/write/mod.rs", "mod prepare; use super::forward;");
    assert_eq!(found(&[read, forward, write]).len(), 3);
    let quiet = ("crates/service/src/write/mod.rs", "#[cfg(test)]\nmod tests {\n use crate::forward;\n}");
    assert_eq!(found(&[read, forward, quiet]), Vec::<String>::new());
    let hidden = ("crates/service/src/write/mod.rs", "use super::Page;");
    let root = (ROOT, "pub use read::page::Page;");
    assert_eq!(found(&[read, hidden]), Vec::<String>::new());
    assert_eq!(
        found(&[read, hidden, root]),
        [
            "`read` names `write` at crates/service/src/read/mod.rs:1",
            "`write` names `read` at crates/service/src/write/mod.rs:1"
        ]
    );
}
