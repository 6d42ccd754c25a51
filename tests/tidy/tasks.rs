//! Each task has an owner: one that lives as long as the node is supervised (`crates/consensus/src/supervisor.rs`), and what else is
//! spawned stands in a list that says when it ends and who learns of its panic.

use super::{SRC, Source, assert_none};

/// Files that spawn tasks of their own: when these end, and what follows from a panic.
const SPAWNS: [(&str, &str); 24] = [
    ("crates/http/src/body/mod.rs", "ends at its time-out; a panic only leaves a rest of a body unread"),
    (
        "crates/http/src/peer/mod.rs",
        "ends with its connection, which a panic closes: the leader opens another; or with its call",
    ),
    ("crates/http/src/peer/refusal_log.rs", "ends after a second; a panic only leaves refusals uncounted"),
    ("crates/http/src/server/answer.rs", "ends with its stream, which a panic resets"),
    (
        "crates/http/src/server/wire.rs",
        "ends with its handshake or its connection; a panic refuses the connection",
    ),
    ("src/node/listener.rs", "a listener's task: its end is the node's end"),
    (
        "crates/net/src/outgoing/resolve.rs",
        "ends with its lookup, which nothing can cancel; a panic fails the call that awaits it",
    ),
    ("crates/consensus/src/consensus.rs", "a seeded bug only"),
    (
        "crates/consensus/src/group/mod.rs",
        "ends when no write waits; a panic gives waiting writes back and leaves the others unknown",
    ),
    ("crates/consensus/src/start.rs", "the start of consensus awaits it"),
    ("crates/simulation/src/harness.rs", "simulated: ends with its connection"),
    ("crates/simulation/src/disk.rs", "simulated: ends with its flush"),
    ("crates/simulation/src/node.rs", "simulated: the listeners of a node end with it"),
    ("crates/storage/src/writer/inline.rs", "simulated: ends with the store"),
    ("crates/consensus/src/supervisor.rs", "the supervised tasks"),
    (
        "crates/service/src/backup.rs",
        "ends with the backup or at its time-out; a panic ends the answer early",
    ),
    (
        "crates/service/src/forward/batching/mod.rs",
        "ends when no write waits; a panic leaves the writes of its batch unknown",
    ),
    ("crates/service/src/membership/change.rs", "ends with its change; the caller awaits it"),
    ("crates/service/src/membership/forming.rs", "ends with the forming; the caller awaits it"),
    ("crates/service/src/read/retained.rs", "ends when nothing is retained; it locks, compares and removes"),
    (
        "crates/service/src/freshness/shared_index.rs",
        "ends when no reader waits; a panic refuses them, and the next starts anew",
    ),
    ("src/cli/mcp/mod.rs", "waits for a signal, and ends with the process"),
    ("crates/service/src/spans/export.rs", "ends with the node; a panic drops spans, which are counted"),
    (
        "crates/service/src/write/forwarded.rs",
        "ends with the time of its writes, or with the call; a panic cuts the answer off",
    ),
];

fn spawns(source: &Source) -> bool {
    let tested = super::syntax::test_lines(&source.tokens);
    source.tokens.windows(3).any(|three| {
        let names: Vec<&str> = three.iter().map(|token| token.text.as_str()).collect();
        let is_tested = tested.iter().any(|lines| lines.contains(&three[0].line));
        !is_tested && matches!(names[..], ["tokio", "::", "spawn"] | ["runtime" | "callers", ".", "spawn"])
    })
}

#[test]
fn only_listed_files_spawn_tasks_of_their_own() {
    let own = |path: &str| SPAWNS.iter().any(|(file, _)| *file == path);
    let found: Vec<&Source> = SRC.iter().filter(|source| !source.is_test() && spawns(source)).collect();
    let breaches: Vec<String> =
        found.iter().filter(|source| !own(&source.path)).map(|source| source.path.clone()).collect();
    assert_none("a long task is supervised, another stands in a list with its end", &breaches);
    for (path, reason) in SPAWNS {
        assert!(found.iter().any(|source| source.path == path), "{path} spawns no task any more: {reason}");
    }
}

/// Files of the crates that run work on blocking threads: in a simulation it would not depend on the seed alone.
const BLOCKS: [&str; 2] = ["crates/consensus/src/blocking.rs", "crates/service/src/cpu_pool/mod.rs"];

fn blocks(source: &Source) -> bool {
    let tested = super::syntax::test_lines(&source.tokens);
    let is_tested = |line| tested.iter().any(|lines| lines.contains(&line));
    source.tokens.iter().any(|token| token.text == "spawn_blocking" && !is_tested(token.line))
}

#[test]
fn what_blocks_runs_where_a_simulation_can_run_it() {
    let found = SRC.iter().filter(|source| source.path.starts_with("crates/") && !source.is_test());
    let found: Vec<&Source> = found.filter(|source| blocks(source)).collect();
    let breaches: Vec<String> = found
        .iter()
        .filter(|source| !BLOCKS.contains(&source.path.as_str()))
        .map(|source| source.path.clone())
        .collect();
    assert_none("crates/consensus/src/blocking.rs runs what blocks", &breaches);
    for path in BLOCKS {
        assert!(found.iter().any(|source| source.path == path), "{path} blocks nothing any more");
    }
}

#[test]
fn a_spawned_task_is_found() {
    let source = |text| Source::new("crates/consensus/src/x.rs", text);
    assert!(spawns(&source("fn f() {\n    drop(tokio::spawn(async {}));\n}")));
    assert!(spawns(&source("fn f() { runtime.spawn(async {}) }")));
    assert!(!spawns(&source(
        "fn f() { pool.spawn(1) }\n#[cfg(test)]\nmod tests {\n fn g() { tokio::spawn(x); }\n}"
    )));
}
