//! What all nodes must compute alike depends on nothing but its input.

use super::{SRC, Source, assert_none};

/// What would let the outside in: clocks, chance, threads, files, the order of a hash map.
const OUTSIDE: [&str; 16] = [
    "SystemTime",
    "Instant",
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "tokio::",
    "fastrand::",
    "Timestamp::now",
    "HashMap",
    "HashSet",
    "RandomState",
    "async fn",
    "println!",
    "new_v4",
    "now_v7",
];

/// Locks, atomics and globals: what one thread could see of another.
const SHARED: [&str; 11] = [
    "Mutex",
    "RwLock",
    "Condvar",
    "AtomicBool",
    "AtomicU64",
    "AtomicUsize",
    "OnceLock",
    "LazyLock",
    "OnceCell",
    "RefCell",
    "static",
];

/// Where shared things stand all the same, and why no result depends on them.
const SHARED_ALLOWED: [(&str, &[&str], &str); 7] = [
    (
        "crates/model/src/index/declared_paths.rs",
        &["Mutex", "static"],
        "what was read of recent large schemas; the same is read again without it",
    ),
    (
        "crates/model/src/schema/formats.rs",
        &["LazyLock", "static"],
        "the checks of the formats of the newest draft; compiled once, and never changed",
    ),
    (
        "crates/state/src/index/deferred/mod.rs",
        &["Mutex", "AtomicU64", "OnceLock", "static"],
        "clones of a state share the indexes that one of them has made; the number only tells lines of states apart",
    ),
    (
        "crates/state/src/digest.rs",
        &["RefCell", "static"],
        "a buffer of each thread that is cleared before each use",
    ),
    (
        "crates/model/src/limits.rs",
        &["static", "AtomicU64"],
        "a limit that a simulation lowers before it begins; no release has it",
    ),
    (
        "crates/state/src/seen.rs",
        &["OnceLock"],
        "an event as readers see it, made once for all of them; nothing is decided by it",
    ),
    (
        "crates/state/src/feed.rs",
        &["Mutex", "OnceLock"],
        "recent changes for watchers, who read them on threads of their own; nothing is decided by them",
    ),
];

/// Nothing of it is in a product: reading the clock is one of the seeded bugs.
const SEEDED_BUGS: &str = "crates/model/src/sabotage.rs";

fn is_pure(source: &&Source) -> bool {
    let is_inside = ["crates/model/src/", "crates/state/src/"].iter().any(|of| source.path.starts_with(of));
    is_inside && source.path != SEEDED_BUGS && !source.is_test()
}

fn outside(source: &Source) -> Vec<String> {
    let found = |(number, line): (usize, &str)| {
        let found = OUTSIDE.iter().filter(|word| line.contains(**word));
        found.map(|word| format!("{}:{number} holds `{word}`", source.path)).collect::<Vec<_>>()
    };
    source.product().flat_map(found).collect()
}

/// The words for shared things in a file, with their lines.
fn shared(source: &Source) -> Vec<(usize, &'static str)> {
    let tested = super::syntax::test_lines(&source.tokens);
    let mut found = Vec::new();
    for (place, token) in source.tokens.iter().enumerate() {
        let is_lifetime = place > 0 && source.tokens[place - 1].text == "'";
        let is_tested = tested.iter().any(|lines| lines.contains(&token.line));
        let word = SHARED.iter().find(|word| **word == token.text && !is_lifetime && !is_tested);
        found.extend(word.map(|word| (token.line, *word)));
    }
    found
}

#[test]
fn model_and_state_depend_on_nothing_but_their_input() {
    let breaches: Vec<String> = SRC.iter().filter(is_pure).flat_map(outside).collect();
    assert_none("`model` and `state` are pure", &breaches);
}

#[test]
fn model_and_state_hold_only_the_listed_locks_and_globals() {
    let allowed =
        |path: &str| SHARED_ALLOWED.iter().find(|(file, ..)| *file == path).map_or(&[][..], |one| one.1);
    let mut breaches = Vec::new();
    for source in SRC.iter().filter(is_pure) {
        let wrong = shared(source).into_iter().filter(|(_, word)| !allowed(&source.path).contains(word));
        breaches.extend(wrong.map(|(line, word)| format!("{}:{line} holds `{word}`", source.path)));
    }
    assert_none("a lock or global in `model` or `state` stands in a list with its reason", &breaches);
    for (path, words, reason) in SHARED_ALLOWED {
        let source = SRC.iter().find(|source| source.path == path);
        let found = source.map(shared).unwrap_or_default();
        for word in words {
            assert!(found.iter().any(|(_, one)| one == word), "{path} holds no `{word}` any more: {reason}");
        }
    }
}

#[test]
fn what_is_impure_is_found() {
    let source = Source::new(
        "crates/state/src/x.rs",
        "use std::collections::HashMap;\nstatic N: AtomicU64 = x;\nfn f(x: &'static str) {} // Mutex\n\
         #[cfg(test)]\nmod tests {\n use std::{fs, sync::Mutex, time::Instant};\n}",
    );
    assert!(is_pure(&&source));
    assert_eq!(outside(&source), ["crates/state/src/x.rs:1 holds `HashMap`"]);
    assert_eq!(shared(&source), [(2, "static"), (2, "AtomicU64")]);
}

#[test]
fn only_the_reply_knows_status_codes() {
    let mut breaches = Vec::new();
    let allowed = ["crates/http/src/", "src/cli/", "crates/net/src/client/mod.rs"];
    for source in SRC.iter().filter(|source| !allowed.iter().any(|path| source.path.starts_with(path))) {
        let lines = source.product().filter(|(_, line)| line.contains("StatusCode"));
        breaches.extend(lines.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    assert_none("`StatusCode` is named in `http`, `cli` and the client of the peers only", &breaches);
}
