//! Secret values: what a key may not see is named and never taken for `null`, and what is shown for people is hidden.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::{Value, json};

use super::{User, revision};
use crate::harness::{Cluster, check, eventually};

const DB: &str = r#"config_definition_key: db
json_schema: {properties: {password: {type: string, x-concord-secret: true}, tls: {x-concord-secret: true}, replicas: {items: {properties: {token: {x-concord-secret: true}}}}}}
---
config_definition_key: db
config_key: main
data: {host: h1, none: null, password: pw-old, tls: {key: pw-key}, replicas: [{n: 1, token: pw-token}]}
"#;
const PLACES: [&str; 3] = ["#/password", "#/replicas/0/token", "#/tls"];

/// A cluster with a config that has secret values, the operator, and a user whose key lacks `reveal`.
async fn secrets(name: &str) -> (Cluster, User, User) {
    let cluster = Cluster::start(name).await;
    let root = User::of(&cluster);
    assert_eq!(root.run_with(&["apply", "-f", "-"], DB).await.code, 0);
    let key = root.json(&["key", "create", "--name", "blind", "--grant", "read,write:*"]).await;
    let blind = root.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    (cluster, root, blind)
}

#[tokio::test]
async fn what_a_key_may_not_see_is_named_and_selecting_it_fails() {
    let (_cluster, root, blind) = secrets("cli-redacted").await;
    let put = ["config", "put", "db", "main", "--data"];
    let kept = r#"{"host": "h2", "none": null, "password": {"$concord-keep": true}, "tls": {"$concord-keep": true}, "replicas": [{"n": 1, "token": {"$concord-keep": true}}]}"#;
    let get = ["config", "get", "db", "main"];
    let list = ["config", "get", "db"];
    let across = ["config", "get", "d*"];
    let history = ["config", "history", "db", "main"];
    let write = [&put[..], &[kept]].concat();
    let from = revision(&blind.ok(&write).await);
    let watch = ["config", "watch", "db", "--count", "1", "--from", &from];
    let file = blind.write("read.yaml", "- {op: get_config, config_definition_key: db, config_key: main}");
    let transaction = ["transaction", "-f", &file];

    for (command, record) in [
        (&get[..], ""),
        (&list, ".results[0]"),
        (&across, ".results[0]"),
        (&history, ".results[0]"),
        (&write, ""),
        (&transaction, ".results[0].config"),
        (&watch, ".changes[0]"),
    ] {
        for format in ["json", "jsonl", "yaml", "wide"] {
            if format == "wide" && (command == watch || command == write) {
                continue;
            }
            let shown = blind.run(&[command, &["-o", format]].concat()).await;
            assert!(shown.code == 0 && !shown.out.contains("pw-"), "{command:?} {shown:?}");
            let is_named = |place: &&str| shown.out.contains(*place) || shown.err.contains(*place);
            assert!(PLACES.iter().all(is_named), "{command:?} {format}: {shown:?}");
        }
        let select = async |user: &User, path: &str| {
            let path = format!("jsonpath={{{record}.data{path}}}");
            user.run(&[command, &["-o", &path]].concat()).await
        };
        for path in [".password", ".tls", ".tls.key", ".replicas[0].token", ".replicas[*]", ""] {
            let refused = select(&blind, path).await;
            assert_eq!((refused.code, refused.out.as_str()), (6, ""), "{command:?} {path}: {refused:?}");
            assert!(refused.err.contains("`reveal`"), "{refused:?}");
        }
        for (path, expected) in
            [(".host", "h2\n"), (".replicas[0].n", "1\n"), (".none", "\n"), (".absent", "")]
        {
            let found = select(&blind, path).await;
            assert_eq!((found.code, found.out.as_str()), (0, expected), "{command:?} {path}: {found:?}");
        }
        // Whoever may see it gets it as it is.
        let found = select(&root, ".password").await;
        assert_eq!((found.code, found.out.as_str()), (0, "pw-old\n"), "{command:?}: {found:?}");
    }
    let data = blind.json(&get).await;
    assert_eq!(data["redacted"], json!(PLACES));
    let seen = root.json(&get).await;
    assert!(seen.get("redacted").is_none() && seen["data"]["tls"] == json!({"key": "pw-key"}), "{seen}");
    // A write whose output fails is done, and says so.
    let hidden = blind.run(&[&write[..], &["-o", "jsonpath={.data.password}"]].concat()).await;
    assert!(hidden.code == 6 && hidden.err.contains("config db/main put"), "{hidden:?}");
    // What the key may see needs no note.
    let seen = root.run(&[&get[..], &["-o", "json"]].concat()).await;
    assert_eq!(seen.err, "", "{seen:?}");
}

#[tokio::test]
async fn a_comparison_without_reveal_is_not_said_to_find_no_difference() {
    let (_cluster, root, blind) = secrets("cli-blind-diff").await;
    let patch = ["config", "patch", "db", "main", "--data", r#"{"password": "pw-new"}"#];
    let second = revision(&root.ok(&patch).await);
    for format in [&[][..], &["-o", "json"], &["--show-secrets"]] {
        let shown = blind.run(&[&["config", "diff", "db", "main"], format].concat()).await;
        assert!(shown.code == 9 && shown.err.contains("secret values can't be compared"), "{shown:?}");
        assert!(!shown.out.contains("pw-"), "{shown:?}");
    }
    // No change lies between the two.
    let same = blind.run(&["config", "diff", "db", "main", "--from", &second]).await;
    assert_eq!((same.code, same.err.as_str()), (0, ""), "{same:?}");
    root.ok(&["config", "patch", "db", "main", "--data", r#"{"host": "h3", "password": "pw-last"}"#]).await;
    let shown = blind.run(&["config", "diff", "db", "main"]).await;
    assert!(shown.code == 1 && shown.out.contains("+host: h3\n"), "{shown:?}");
    assert!(shown.err.contains("secret values can't be compared"), "{shown:?}");
    let shown = root.run(&["config", "diff", "db", "main"]).await;
    assert!(shown.code == 1 && shown.out.contains("(secret, changed)") && shown.err.is_empty(), "{shown:?}");
}

#[tokio::test]
async fn a_watch_shows_no_secret_value_and_follows_the_schema() {
    let (cluster, root, blind) = secrets("cli-watch-secrets").await;
    let lines = |user: &User, more: &[&str]| {
        let arguments = [&["config", "watch", "db", "main"], more].concat();
        let mut child = user.command(&arguments).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let (send, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        (child, lines)
    };
    let next = async |lines: &std::sync::mpsc::Receiver<String>| {
        eventually("a line about the config", async || {
            let line = lines.try_recv().map_err(|error| error.to_string())?;
            check(!line.contains(" definition "), || line.clone()).map(|()| line)
        })
        .await
    };
    let patch = async |data: Value| {
        revision(&root.ok(&["config", "patch", "db", "main", "--data", &data.to_string()]).await)
    };
    let from = patch(json!({"password": "pw-new", "pin": "pw-1"})).await;
    let (mut watcher, seen) = lines(&root, &["--from", &from]);
    let (mut teller, told) = lines(&root, &["--from", &from, "--show-secrets"]);
    let (mut other, blind_seen) = lines(&blind, &["--from", &from]);
    let line = next(&seen).await;
    assert!(line.contains(r#"password "(secret)" → "(secret, changed)", pin absent → "pw-1""#), "{line}");
    assert!(next(&told).await.contains(r#"password "pw-old" → "pw-new""#));
    assert!(next(&blind_seen).await.contains(r#"pin absent → "pw-1""#));
    // Another field becomes secret while the watch goes on.
    let schema = json!({"json_schema": {"properties": {
        "password": {"x-concord-secret": true}, "pin": {"x-concord-secret": true}}}});
    let answer = cluster.client(1).put("/api/v1/config_definition/db/schema", &schema).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    patch(json!({"pin": "pw-2", "host": "h4"})).await;
    let line = next(&seen).await;
    assert!(line.contains(r#"host "h1" → "h4""#) && line.contains("(secret, changed)"), "{line}");
    assert!(!line.contains("pw-"), "{line}");
    assert!(next(&told).await.contains(r#"pin "pw-1" → "pw-2""#));
    let line = next(&blind_seen).await;
    assert!(line.contains(r#"host "h1" → "h4""#) && !line.contains("pw-"), "{line}");
    // For a key that may not see it, an unchanged look is no proof.
    patch(json!({"pin": "pw-3"})).await;
    assert!(next(&blind_seen).await.contains("no visible change"));
    for child in [&mut watcher, &mut teller, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Events of the API have what the key may see, as every read.
    let events = root.ok(&["config", "watch", "db", "--from", &from, "--count", "1", "-o", "jsonl"]).await;
    assert!(events.contains("pw-new"), "{events}");
    // The schema of a definition that is gone is not known: nothing is shown.
    root.ok(&["definition", "delete", "db", "--purge", "--yes"]).await;
    let lines = root.run(&["config", "watch", "db", "--from", &from, "--count", "1"]).await;
    check(!lines.out.contains("pw-") && lines.out.contains("updated"), || format!("{lines:?}")).unwrap();
}

#[tokio::test]
async fn what_the_node_warns_of_is_printed() {
    let cluster = Cluster::start("cli-warnings").await;
    let user = User::of(&cluster);
    for (key, more) in [("form", &[][..]), ("quiet", &["-q"])] {
        let create = [&["definition", "create", key, "--index", "fields"], more].concat();
        let done = user.run(&create).await;
        assert!(
            done.code == 0 && done.err.starts_with("warning: an index has the name of a parameter"),
            "{done:?}"
        );
        assert_eq!(done.err.lines().count(), 1, "{done:?}");
    }
}

#[tokio::test]
async fn a_file_names_a_secret_value_and_does_not_have_it() {
    let (_cluster, root, blind) = secrets("cli-secret-sources").await;
    let file = root.write(
        "db.yaml",
        "config_definition_key: db\nconfig_key: main\ndata:\n  host: h2\n  none: null\n  password: {$concord-env: CONCORD_SECRET_DB}\n  tls: {key: {$concord-file: tls/key}}\n",
    );
    root.write("secrets/tls/key", "pw-file\n");
    let with = |user: &User| user.clone().with("CONCORD_SECRET_DB", "pw-env");
    let files = ["-f", &file, "--secret-files", "secrets"];
    let data = async || root.json(&["config", "get", "db", "main"]).await["data"].clone();

    // A pipeline that only compares has no secrets, and says that it does not know them.
    let compared = blind.run(&["diff", "-f", &file]).await;
    assert!(compared.code == 1 && compared.out.contains("-  host: h1\n+  host: h2\n"), "{compared:?}");
    assert!(compared.out.contains("   tls: \"(secret)\"\n"), "{compared:?}");
    for text in [
        "db.yaml:1: config db/main /data/password: CONCORD_SECRET_DB is not set: the value is taken as unchanged",
        "db.yaml:1: config db/main /data/tls/key: there is no --secret-files: the value is taken as unchanged",
    ] {
        assert!(compared.err.contains(text), "{compared:?}");
    }
    // What writes needs them.
    for command in [&["apply"][..], &["apply", "--dry-run"], &["diff", "--save", "plan.json"]] {
        let failed = root.run(&[command, &files].concat()).await;
        assert!(failed.code >= 2 && failed.err.contains("CONCORD_SECRET_DB is not set"), "{failed:?}");
    }
    assert_eq!(data().await["host"], "h1");

    let planned = with(&root).run(&[&["diff", "--save", "plan.json"], &files[..]].concat()).await;
    assert!(planned.code == 1 && planned.out.contains("+  password: \"(secret, changed)\"\n"), "{planned:?}");
    let plan = std::fs::read_to_string(root.home.join("plan.json")).unwrap();
    let applied =
        with(&root).run(&[&["apply", "--plan", "plan.json", "-o", "json"], &files[..]].concat()).await;
    assert_eq!(applied.code, 0, "{applied:?}");
    for text in [&planned.out, &planned.err, &plan, &applied.out, &applied.err] {
        assert!(!text.contains("pw-"), "{text}");
    }
    assert_eq!(
        data().await,
        json!({"host": "h2", "none": null, "password": "pw-env", "tls": {"key": "pw-file"}})
    );
    assert_eq!(with(&root).run(&[&["diff"], &files[..]].concat()).await.code, 0);

    // A field that is not secret, a variable that is not for this, and a file elsewhere.
    for (member, text) in [
        ("host: {$concord-env: CONCORD_SECRET_DB}", "the field is not secret"),
        ("password: {$concord-env: CONCORD_API_KEY}", "files can name no other variable"),
        ("password: {$concord-file: ../db.yaml}", "below the directory of --secret-files"),
    ] {
        let wrong = root.write(
            "wrong.yaml",
            &format!("config_definition_key: db\nconfig_key: main\ndata: {{{member}}}\n"),
        );
        for command in [&["diff"][..], &["apply"]] {
            let failed =
                with(&root).run(&[command, &["-f", &wrong, "--secret-files", "secrets"]].concat()).await;
            assert!(failed.code > 1 && failed.err.contains(text), "{failed:?}");
        }
    }
    assert_eq!(data().await["password"], "pw-env");
}
