//! A test waits for a condition. What lets time pass names its reason: one of the helpers of `tests/harness/time.rs`, or
//! virtual time.

use super::{SRC, Source, TESTS, assert_none, syntax::test_lines};

/// The helpers, each of which is a reason.
const HELPERS: &str = "tests/harness/time.rs";

/// Unit tests that let real time pass. In virtual time (`tokio::time::pause`), a file sleeps as it likes.
const REAL: [(&str, &str); 9] = [
    ("crates/consensus/src/suite.rs", "looks again until a node leads, up to a deadline"),
    ("crates/http/src/server/tests.rs", "a socket tells its other end in real time"),
    ("crates/net/src/outgoing/tests.rs", "a server drips a body over a socket"),
    ("crates/service/src/audit/tests.rs", "looks again for what a thread writes, up to a deadline"),
    ("crates/service/src/cpu_pool/mod.rs", "work that keeps a thread busy"),
    ("crates/service/src/forward/batching/tests.rs", "looks again for calls over a socket, up to a deadline"),
    ("crates/storage/src/tests/fixture.rs", "looks again for what a thread writes, up to a deadline"),
    ("crates/storage/src/tests/mod.rs", "looks again for what a thread writes, up to a deadline"),
    ("src/cli/agent/command.rs", "looks again for the end of a process, up to a deadline"),
];

/// The lines on which a file lets time pass.
fn sleeps(source: &Source) -> Vec<usize> {
    let names = ["sleep", "sleep_until", "sleep_ms", "interval", "interval_at", "park_timeout"];
    let mut found = Vec::new();
    for two in source.tokens.windows(2) {
        if names.contains(&two[0].text.as_str()) && two[1].text == "(" {
            found.push(two[0].line);
        }
    }
    found
}

/// Whether a file has tests in virtual time.
fn is_virtual(source: &Source) -> bool {
    source.tokens.iter().any(|token| token.text == "start_paused")
        || source.tokens.iter().any(|token| token.text == "Scripted")
        || source.tokens.windows(4).any(|four| {
            let names: Vec<&str> = four.iter().map(|token| token.text.as_str()).collect();
            names == ["time", "::", "pause", "("]
        })
}

#[test]
fn only_the_named_reasons_let_time_pass_in_a_test_of_the_program() {
    let own = |source: &&Source| source.path.starts_with("tests/") && source.path != HELPERS;
    let breaches = TESTS.iter().filter(own).flat_map(|source| {
        sleeps(source).into_iter().map(move |line| format!("{}:{line} sleeps", source.path))
    });
    assert_none(
        "a test waits for a condition (`eventually`); a fixed time has its reason as a name (`tests/harness/time.rs`)",
        &breaches.collect::<Vec<_>>(),
    );
}

/// The lines of a file's unit tests on which real time may pass.
fn real(source: &Source) -> Vec<usize> {
    if is_virtual(source) {
        return Vec::new();
    }
    let tested = test_lines(&source.tokens);
    let is_tested = |line: &usize| source.is_test() || tested.iter().any(|lines| lines.contains(line));
    sleeps(source).into_iter().filter(is_tested).collect()
}

#[test]
fn a_unit_test_sleeps_in_virtual_time() {
    let is_own = |path: &str| !path.starts_with("tests/") && !path.starts_with("crates/simulation/");
    let all = SRC.iter().chain(TESTS.iter()).filter(|source| is_own(&source.path));
    let found: Vec<(&Source, Vec<usize>)> = all.map(|source| (source, real(source))).collect();
    let is_listed = |source: &Source| REAL.iter().any(|(file, _)| *file == source.path);
    let breaches = found.iter().filter(|(source, _)| !is_listed(source));
    let breaches = breaches.flat_map(|(source, lines)| {
        lines.iter().map(move |line| format!("{}:{line} sleeps in real time", source.path))
    });
    assert_none(
        "a unit test waits for a condition, or sleeps in virtual time (`start_paused`)",
        &breaches.collect::<Vec<_>>(),
    );
    for (file, reason) in REAL {
        let is_there = found.iter().any(|(source, lines)| source.path == file && !lines.is_empty());
        assert!(is_there, "{file} does not sleep in real time any more: {reason}");
    }
}

#[test]
fn a_sleep_is_found() {
    let source = |text: &str| Source::new("crates/service/src/x.rs", text);
    let asleep = "#[cfg(test)]\nmod tests {\n    async fn f() { tokio::time::sleep(TIME).await }\n}";
    assert_eq!(sleeps(&source(asleep)), [3]);
    assert_eq!(real(&source(asleep)), [3]);
    assert!(real(&source("fn f() { sleep(TIME) }")).is_empty(), "not in a test");
    assert!(
        real(&source(&asleep.replace("async fn f", "#[tokio::test(start_paused = true)]async fn f")))
            .is_empty()
    );
    assert!(sleeps(&source("fn f() { call(\"sleep(1)\") } // sleep(1)")).is_empty());
    assert_eq!(sleeps(&source("use std::thread::sleep;\nfn f() { std::thread::sleep(TIME) }")), [2]);
}
