//! Has every request its line, and is every change of the lines found?
//!
//! The routes are those of the matrix of rights, which a test compares with the document that a node serves.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    audit::{lines, verify},
    grants::cases,
};
use crate::harness::{
    Cluster, Options, check, eventually,
    load::{define, set},
};

/// The lines of a request.
fn lines_of(all: &[Value], id: &str) -> Vec<Value> {
    all.iter().filter(|line| line["request_id"] == id).cloned().collect()
}

#[tokio::test]
async fn every_route_that_is_called_once_has_one_line_on_the_node_that_was_asked() {
    let options = Options::default().with("CONCORD_AUDIT_READS", "*");
    let cluster = Cluster::start_with("hostile-audit-routes", &options).await;
    let leader = cluster.leader().await;
    let mut asked = Vec::new();
    // Reports and words of gates have a line only if they are denied, or say something new.
    let is_told = |path: &str| !path.ends_with("/report") && !path.contains("/gate/");
    for (place, case) in cases().into_iter().filter(|case| is_told(case.path)).enumerate() {
        // Each node is asked in turn.
        let id = 1 + (leader + place as u64) % 3;
        let client = cluster.client(id);
        let answer = case.call(&client, Some(&client.key), &case.method).await;
        asked.push((id, case, answer.header("x-request-id").to_owned(), answer.status));
    }
    let directories: Vec<PathBuf> = cluster.nodes.iter().map(|node| node.directory.join("audit")).collect();
    for (id, case, request, status) in &asked {
        let found = eventually("the line is written", async || {
            let all: Vec<Vec<Value>> =
                directories.iter().map(|directory| lines_of(&lines(directory), request)).collect();
            check(all.iter().any(|lines| !lines.is_empty()), || {
                format!("{} {}: {request} has no line", case.method, case.path)
            })
            .map(|()| all)
        })
        .await;
        let counts: Vec<usize> = found.iter().map(Vec::len).collect();
        let expected: Vec<usize> = (1..=3).map(|other| usize::from(other == *id)).collect();
        assert_eq!(counts, expected, "{} {}: {found:?}", case.method, case.path);
        let line = &found[usize::try_from(*id - 1).expect("a small number")][0];
        assert_eq!(
            (&line["method"], &line["status"], &line["key"]),
            (&json!(case.method.as_str()), &json!(status), &json!("root")),
            "{line}"
        );
        let verb = line["verb"].as_str().expect("a verb");
        assert!(case.verbs.is_empty() || case.verbs.contains(&verb), "{line}");
    }
    for directory in &directories {
        let (is_whole, text) = verify(directory);
        assert!(is_whole, "{text}");
    }
    println!("{} routes, one line each", asked.len());
}

#[tokio::test]
async fn a_read_of_many_configs_is_recorded_whatever_else_it_names() {
    let options = Options::default().with("CONCORD_AUDIT_READS", "vault");
    let mut cluster = Cluster::start_with("hostile-audit-many", &options).await;
    let client = cluster.client(1);
    define(&client, "vault").await;
    set(&client, "vault", "k", &json!({ "n": 1 })).await;
    let read = async |others: usize, definition: &str| {
        let of = |definition: &str| json!({ "config_definition_key": definition, "config_key": "k" });
        let mut configs: Vec<Value> = (0..others).map(|number| of(&format!("other-{number}"))).collect();
        configs.push(of(definition));
        let answer = client.post("/api/v1/read", &json!({ "configs": configs })).await.expect(200);
        answer.header("x-request-id").to_owned()
    };
    let mut recorded = Vec::new();
    for others in [0, 3, 31, 32, 100] {
        recorded.push((others, read(others, "vault").await));
    }
    let unrecorded = read(100, "another").await;
    assert!(cluster.node(1).stop().await.success());
    let all = lines(&cluster.node(1).directory.join("audit"));
    for (others, id) in recorded {
        let found = lines_of(&all, &id);
        assert_eq!(found.len(), 1, "beside {others}: {found:?}");
        let first = if others == 0 { &found[0]["definition"] } else { &found[0]["definitions"][0] };
        assert_eq!(first, "vault", "beside {others}: {found:?}");
        assert_eq!(found[0]["more_definitions"] == true, others > 31, "beside {others}: {found:?}");
    }
    assert_eq!(lines_of(&all, &unrecorded), [] as [Value; 0]);
}

#[tokio::test]
async fn a_read_by_the_protocol_of_another_service_is_recorded() {
    let options = Options::default().with("CONCORD_AUDIT_READS", "vault");
    let mut cluster = Cluster::start_with("hostile-audit-protocols", &options).await;
    let client = cluster.client(1);
    define(&client, "vault").await;
    set(&client, "vault", "k", &json!({ "n": 1 })).await;
    define(&client, "open").await;
    set(&client, "open", "k", &json!({ "n": 1 })).await;
    let read = async |path: &str| client.get(path).await.expect(200).header("x-request-id").to_owned();
    let mut recorded = Vec::new();
    for path in [
        "/v1/kv/vault/k",
        "/v1/kv/vault/k/n?raw",
        "/v1/kv/vault/k/?recurse",
        "/v1/kv/vault/?keys",
        "/v1/kv/?recurse",
        "/spring/vault(_)k/prod",
        "/spring/vault(_)k-prod.yml",
        "/api/v1/config_definition/vault/config/?raw=true",
    ] {
        recorded.push((path, read(path).await));
    }
    let unrecorded = read("/v1/kv/open/k").await;
    assert!(cluster.node(1).stop().await.success());
    let all = lines(&cluster.node(1).directory.join("audit"));
    for (path, id) in recorded {
        let found = lines_of(&all, &id);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        let named = if found[0]["definition"].is_null() {
            &found[0]["definitions"][0]
        } else {
            &found[0]["definition"]
        };
        assert_eq!(named, "vault", "{path}: {found:?}");
    }
    assert_eq!(lines_of(&all, &unrecorded), [] as [Value; 0]);
}

/// The only file of a log.
fn file_of(directory: &Path) -> PathBuf {
    let all = fs::read_dir(directory).expect("an audit log").map(|entry| entry.expect("an entry").path());
    let mut all: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all.swap_remove(0)
}

#[tokio::test]
async fn a_line_that_is_changed_removed_or_inserted_is_named() {
    let mut cluster = Cluster::start("hostile-audit-changed").await;
    define(&cluster.client(1), "audited").await;
    for n in 0..20 {
        set(&cluster.client(1), "audited", "k", &json!({ "n": n })).await;
    }
    assert!(cluster.node(1).stop().await.success());
    let directory = cluster.node(1).directory.join("audit");
    let (is_whole, text) = verify(&directory);
    assert!(is_whole, "{text}");
    let file = file_of(&directory);
    let whole = fs::read_to_string(&file).expect("the log is text");
    let all: Vec<&str> = whole.lines().collect();
    let count = all.len();
    assert!(count > 20, "{count} lines");
    let is_named = |changed: &[&str], place: usize, what: &str| {
        fs::write(&file, format!("{}\n", changed.join("\n"))).expect("it can be written");
        let (is_whole, text) = verify(&directory);
        let name = format!("{}:{place}: ", file.display());
        assert!(!is_whole && text.contains(&name), "{what}, expected at line {place}: {text}");
    };
    for place in [0, 1, count / 2, count - 2, count - 1] {
        let mut bytes = all[place].as_bytes().to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let changed = String::from_utf8(bytes).expect("it stays ASCII");
        let mut lines = all.clone();
        lines[place] = &changed;
        // What stands in the files is counted from 1.
        is_named(&lines, place + 1, "a flipped bit");
    }
    for place in [1, count / 2, count - 2] {
        let mut lines = all.clone();
        lines.remove(place);
        is_named(&lines, place + 1, "a line that is missing");
        let mut lines = all.clone();
        // It bears the right hash; the line after it does, too.
        let forged = all[place].replacen("\"node\":1", "\"node\":2", 1);
        lines.insert(place, &forged);
        is_named(&lines, place + 1, "a line that was inserted");
    }
    // At the end nothing follows that would bear its hash: the file `head` does.
    fs::write(&file, format!("{}\n", all[..count - 1].join("\n"))).expect("it can be written");
    assert!(!verify(&directory).0, "the last line is missing");
    fs::write(&file, &whole).expect("it can be written");
    let (is_whole, text) = verify(&directory);
    assert!(is_whole, "{text}");
}
