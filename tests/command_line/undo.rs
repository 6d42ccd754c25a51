//! `changes` finds what a run has changed, and `undo` takes it back.

use serde_json::{Value, json};

use super::{Done, User, revision};
use crate::harness::Cluster;

const FIRST: &str = "config_definition_key: prod.limits
---
{config_definition_key: prod.limits, config_key: a, data: {n: 1, deep: {x: [1]}}}
---
{config_definition_key: prod.limits, config_key: b, data: {n: 1}}
---
{config_definition_key: prod.limits, config_key: c, data: {n: 1}}
";
/// Changes `a` and `b`, deletes `c`, and creates `d`.
const SECOND: &str = "config_definition_key: prod.limits
---
{config_definition_key: prod.limits, config_key: a, data: {n: 2, deep: {x: [2]}}}
---
{config_definition_key: prod.limits, config_key: b, data: {n: 2}}
---
{config_definition_key: prod.limits, config_key: d, data: {n: 2}}
";

/// A cluster on which a run has changed configs, a user, and the run's revision.
async fn with_run(name: &str) -> (Cluster, User, String) {
    let cluster = Cluster::start(name).await;
    let user = User::of(&cluster);
    assert_eq!(user.run_with(&["apply", "-f", "-"], FIRST).await.code, 0);
    let run = ["apply", "-f", "-", "--prune", "--yes", "--reason", "CI run 4711", "-o", "json"];
    let done = user.run_with(&run, SECOND).await;
    assert_eq!(done.code, 0, "{done:?}");
    let done: Value = serde_json::from_str(&done.out).unwrap();
    let [revision] = done["meta"]["revisions"].as_array().unwrap().as_slice() else { panic!("{done}") };
    (cluster, user, revision.to_string())
}

async fn data(user: &User, key: &str) -> Option<Value> {
    let done = user.run(&["config", "get", "prod.limits", key, "-o", "json"]).await;
    assert!(matches!(done.code, 0 | 3), "{done:?}");
    (done.code == 0).then(|| serde_json::from_str::<Value>(&done.out).unwrap()["data"].take())
}

async fn all(user: &User) -> Vec<Option<Value>> {
    let mut found = Vec::new();
    for key in ["a", "b", "c", "d"] {
        found.push(data(user, key).await);
    }
    found
}

/// Deletes a config, and returns the revision of that.
async fn delete(user: &User, definition: &str, key: &str) -> String {
    let deleted = revision(&user.ok(&["config", "delete", definition, key, "--yes"]).await);
    let newest = ["changes", "--limit", "1", "-o", "jsonpath={.results[0].revision}"];
    assert_eq!(user.ok(&newest).await.trim(), deleted);
    deleted
}

#[tokio::test]
async fn a_run_is_taken_back_except_what_was_changed_since() {
    let (_cluster, user, run) = with_run("cli-undo").await;
    let since = revision(&user.ok(&["config", "patch", "prod.limits", "b", "--data", r#"{"n": 3}"#]).await);
    let before = all(&user).await;
    let is_listed = |done: &Done| {
        let left = format!(
            "not undone: config prod.limits/b: changed since by root at revision {since}; to set it back all the same: \
             concord config rollback prod.limits b --to {}\n",
            run.parse::<u64>().unwrap() - 1
        );
        assert!(done.code == 8 && done.err.contains(&left), "{done:?}");
    };
    let tried = user.run(&["undo", &run, "--dry-run"]).await;
    is_listed(&tried);
    let rows: Vec<Vec<&str>> = tried.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["CONFIG", "FIELD", "NOW", "AFTER", "UNDO"]);
    for row in [
        vec!["prod.limits/d", "(config)", r#"{"n":2}"#, "absent"],
        vec!["prod.limits/a", "n", "2", "1"],
        vec!["prod.limits/a", "deep.x", "[2]", "[1]"],
        vec!["prod.limits/c", "(config)", "absent", r#"{"n":1}"#],
        vec!["3", "configs", "would", "be", "set", "back;", "nothing", "was", "stored"],
    ] {
        assert!(rows.contains(&row), "{row:?}: {tried:?}");
    }
    assert_eq!(user.run(&["undo", &run]).await.code, 2, "nobody can answer");
    assert_eq!(all(&user).await, before, "nothing was stored");

    let done = user.run(&["undo", &run, "--yes", "-o", "json"]).await;
    is_listed(&done);
    let told: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&told["meta"]["changed"], &told["meta"]["left"]), (&json!(3), &json!(1)), "{told}");
    assert_eq!(told["left"][0]["name"], "config prod.limits/b");
    let one = Some(json!({"n": 1}));
    let first = Some(json!({"n": 1, "deep": {"x": [1]}}));
    assert_eq!(all(&user).await, [first, Some(json!({"n": 3})), one, None]);
    let history = user.json(&["config", "history", "prod.limits", "a"]).await;
    let newest = &history["results"][0];
    assert_eq!(newest["revision"], told["meta"]["revision"], "one revision: {history}");
    assert_eq!(newest["reason"], format!("undo of revision {run}"));

    // What is undone is not undone again; and what was undone can be.
    let again = user.run(&["undo", &run, "--yes"]).await;
    assert!(again.code == 8 && again.out == "nothing to undo\n", "{again:?}");
    let undone = told["meta"]["revision"].to_string();
    user.ok(&["undo", &undone, "--yes"]).await;
    assert_eq!(all(&user).await, before);
    for revision in ["1", "99999999"] {
        let none = user.run(&["undo", revision, "--yes"]).await;
        assert!(matches!(none.code, 3 | 8), "{none:?}");
    }
}

#[tokio::test]
async fn revisions_are_taken_back_together_if_nobody_changed_the_configs_between_them() {
    let (_cluster, user, run) = with_run("cli-undo-several").await;
    let patch = async |key: &str, data: &str| {
        revision(&user.ok(&["config", "patch", "prod.limits", key, "--data", data]).await)
    };
    let second = patch("a", r#"{"n": 3}"#).await;
    let between = patch("b", r#"{"n": 3}"#).await;
    let third = patch("b", r#"{"n": 4}"#).await;
    let done = user.run(&["undo", &third, &run, &second, "--yes"]).await;
    assert!(
        done.code == 8 && done.err.contains("prod.limits/b: changed by other revisions as well"),
        "{done:?}"
    );
    let first = Some(json!({"n": 1, "deep": {"x": [1]}}));
    assert_eq!(all(&user).await, [first, Some(json!({"n": 4})), Some(json!({"n": 1})), None]);
    user.ok(&["undo", &between, &third, "--yes"]).await;
    assert_eq!(data(&user, "b").await, Some(json!({"n": 2})));
    // A config that was deleted, made again and deleted is no longer that run's.
    let deleted = delete(&user, "prod.limits", "b").await;
    user.ok(&["config", "create", "prod.limits", "b", "--data", "{}"]).await;
    user.ok(&["config", "delete", "prod.limits", "b", "--yes"]).await;
    let left = user.run(&["undo", &deleted, "--yes"]).await;
    assert!(left.code == 8 && left.err.contains("changed by other revisions as well"), "{left:?}");
    assert_eq!(data(&user, "b").await, None);
}

#[tokio::test]
async fn a_freeze_refuses_an_undo_and_definitions_are_listed() {
    let (_cluster, user, run) = with_run("cli-undo-frozen").await;
    let before = all(&user).await;
    user.ok(&["freeze", "prod", "--for", "1h", "--reason", "incident"]).await;
    let refused = user.run(&["undo", &run, "--yes"]).await;
    assert!(refused.code == 4 && refused.err.contains("is frozen until"), "{refused:?}");
    assert_eq!(user.run(&["undo", &run, "--dry-run"]).await.code, 4);
    assert_eq!(all(&user).await, before);
    user.ok(&["unfreeze", "prod"]).await;
    let created = user.json(&["changes", "prod.limits"]).await;
    let created = created["results"].as_array().unwrap().last().unwrap()["revision"].to_string();
    user.ok(&["undo", &run, "--yes"]).await;
    let left = user.run(&["undo", &created, "--dry-run"]).await;
    assert!(
        left.code == 8 && left.err.contains("not undone: definition prod.limits: it was created"),
        "{left:?}"
    );
}

#[tokio::test]
async fn a_schema_and_indexes_are_set_back_with_the_configs_that_they_fit() {
    let cluster = Cluster::start("cli-undo-schema").await;
    let user = User::of(&cluster);
    let apply = async |text: &str| {
        let done = user.run_with(&["apply", "-f", "-", "-o", "json"], text).await;
        assert_eq!(done.code, 0, "{done:?}");
        let done: Value = serde_json::from_str(&done.out).unwrap();
        done["meta"]["revisions"][0].to_string()
    };
    let typed = |properties: &str, index: &str, value: &str| {
        format!(
            "config_definition_key: d\njson_schema: {{properties: {{{properties}}}}}\nindexes: [{index}]\n---\n\
             {{config_definition_key: d, config_key: a, data: {{t: {value}}}}}\n---\n\
             {{config_definition_key: d, config_key: b, data: {{t: {value}}}}}\n"
        )
    };
    // Neither schema has the field that the other one indexes.
    let (first, second) = ("t: {type: integer}", "t: {type: string}, u: {type: integer}");
    apply(&typed(first, "t", "1")).await;
    let definition = async || user.json(&["definition", "get", "d"]).await;
    let before = definition().await;
    let bad = apply(&typed(second, "u", "1s")).await;
    let tried = user.run(&["undo", &bad, "--dry-run"]).await;
    assert_eq!(tried.code, 0, "{tried:?}");
    let rows: Vec<Vec<&str>> = tried.out.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        vec!["definition", "d", "json_schema.properties.t.type", "\"string\"", "\"integer\""],
        vec!["definition", "d", "indexes", "[\"u\"]", "[\"t\"]"],
        vec!["d/a", "t", "\"1s\"", "1"],
        "1 definition and 2 configs would be set back; nothing was stored".split(' ').collect(),
    ] {
        assert!(rows.contains(&row), "{row:?}: {tried:?}");
    }
    assert_ne!(definition().await["json_schema"], before["json_schema"], "nothing was stored");
    let done: Value = serde_json::from_str(&user.ok(&["undo", &bad, "--yes", "-o", "json"]).await).unwrap();
    assert_eq!((&done["meta"]["changed"], &done["meta"]["left"]), (&json!(3), &json!(0)), "{done}");
    assert_eq!(done["results"][0]["after"]["json_schema"], before["json_schema"], "{done}");
    let after = definition().await;
    for member in ["json_schema", "indexes"] {
        assert_eq!(after[member], before[member], "{after}");
    }
    assert_eq!(user.json(&["config", "get", "d", "a"]).await["data"], json!({"t": 1}));

    // A config that somebody changed meanwhile does not fit the schema of before: nothing is set back.
    let worse = apply(&typed(second, "u", "2s")).await;
    user.ok(&["config", "put", "d", "b", "--data", r#"{"t": "by hand"}"#]).await;
    let refused = user.run(&["undo", &worse, "--yes"]).await;
    assert!(refused.code == 5 && refused.err.contains("d/b"), "{refused:?}");
    assert_eq!(user.json(&["config", "get", "d", "a"]).await["data"], json!({"t": "2s"}));

    // A definition that was changed since is left, and so is what only other members have changed.
    let third =
        apply("config_definition_key: d\njson_schema: {properties: {u: {}, v: {}}}\nindexes: [u]\n").await;
    user.ok(&["definition", "reindex", "d", "--add", "v"]).await;
    let left = user.run(&["undo", &third, "--yes"]).await;
    let says = "not undone: definition d: changed since by root at revision";
    assert!(left.code == 8 && left.err.contains(says) && left.out == "nothing to undo\n", "{left:?}");
    user.ok(&["definition", "protect", "d"]).await;
    let newest = ["changes", "--limit", "1", "-o", "jsonpath={.results[0].revision}"];
    let protected = user.ok(&newest).await;
    let left = user.run(&["undo", protected.trim(), "--yes"]).await;
    assert!(left.code == 8 && left.err.contains("other members are not undone"), "{left:?}");
}

#[tokio::test]
async fn what_a_revision_changed_in_other_environments_is_listed() {
    let (_cluster, user, _run) = with_run("cli-undo-env").await;
    let both = "config_definition_key: dev.limits
---
{config_definition_key: dev.limits, config_key: k, data: {n: 1}}
---
{config_definition_key: prod.limits, config_key: a, data: {n: 9}}
";
    let done = user.run_with(&["apply", "-f", "-", "-o", "json"], both).await;
    let done: Value = serde_json::from_str(&done.out).unwrap();
    let run = done["meta"]["revisions"][0].to_string();
    let in_prod = user.clone().with("CONCORD_ENVIRONMENT", "prod");
    let left = in_prod.run(&["undo", &run, "--yes"]).await;
    assert!(
        left.code == 8 && left.err.contains("config dev.limits/k: it is not of environment prod"),
        "{left:?}"
    );
    assert!(left.out.contains("limits/a") && !left.out.contains("prod.limits/a"), "{left:?}");
    assert_eq!(data(&user, "a").await.unwrap()["n"], 2);
    user.ok(&["config", "get", "dev.limits", "k"]).await;
}

#[tokio::test]
async fn an_undone_deletion_is_listed_and_not_undone() {
    let (_cluster, user, _run) = with_run("cli-undo-undelete").await;
    user.ok(&["definition", "delete", "prod.limits", "--yes"]).await;
    user.ok(&["definition", "undelete", "prod.limits"]).await;
    let newest = ["changes", "--limit", "1", "-o", "jsonpath={.results[0].revision}"];
    let undeleted = user.ok(&newest).await;
    let left = user.run(&["undo", undeleted.trim(), "--yes"]).await;
    assert!(
        left.code == 8 && left.err.contains("definition prod.limits: its deletion was undone"),
        "{left:?}"
    );
    // Of the revisions from before, configs that are as they were are taken back.
    let patched = revision(&user.ok(&["config", "patch", "prod.limits", "a", "--data", r#"{"n": 7}"#]).await);
    user.ok(&["undo", &patched, "--yes"]).await;
    assert_eq!(data(&user, "a").await.unwrap()["n"], 2);
    let unknown = user.run(&["undo", "7hQx2mVb9KsT", "--yes"]).await;
    assert!(unknown.code == 3 && unknown.err.contains("concord change list"), "{unknown:?}");
    assert_eq!(user.run(&["undo", "not-an-id", "--yes"]).await.code, 2);
}

#[tokio::test]
async fn a_secret_value_is_set_back_and_not_shown() {
    let cluster = Cluster::start("cli-undo-secrets").await;
    let root = User::of(&cluster);
    let file = "config_definition_key: db
json_schema: {properties: {password: {type: string, x-concord-secret: true}}}
---
{config_definition_key: db, config_key: main, data: {host: h1, password: pw-old}}
---
{config_definition_key: db, config_key: gone, data: {host: h1, password: pw-gone}}
";
    assert_eq!(root.run_with(&["apply", "-f", "-"], file).await.code, 0);
    let key = root.json(&["key", "create", "--name", "blind", "--grant", "read,write:*"]).await;
    let blind = root.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let patch = r#"{"host": "h2", "password": "pw-new"}"#;
    let changed = revision(&root.ok(&["config", "patch", "db", "main", "--data", patch]).await);
    let shown = blind.run(&["undo", &changed, "--dry-run"]).await;
    assert!(shown.code == 0 && shown.out.contains("host"), "{shown:?}");
    let done = blind.run(&["undo", &changed, "--yes", "-o", "json"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    for text in [&shown.out, &shown.err, &done.out, &done.err] {
        assert!(!text.contains("pw-"), "{text}");
    }
    let stored = root.json(&["config", "get", "db", "main"]).await;
    assert_eq!(stored["data"], json!({"host": "h1", "password": "pw-old"}));

    let deleted = delete(&root, "db", "gone").await;
    let left = blind.run(&["undo", &deleted, "--yes"]).await;
    assert!(left.code == 8 && left.err.contains("`reveal`"), "{left:?}");
    let shown = root.run(&["undo", &deleted, "--yes"]).await;
    assert!(shown.code == 0 && !shown.out.contains("pw-"), "{shown:?}");
    let stored = root.json(&["config", "get", "db", "gone"]).await;
    assert_eq!(stored["data"]["password"], "pw-gone");
}

#[tokio::test]
async fn changes_are_found_by_time_key_and_environment() {
    let (_cluster, user, run) = with_run("cli-changes").await;
    user.ok(&["definition", "create", "dev.limits"]).await;
    let key = user.json(&["key", "create", "--name", "ci", "--grant", "read,write:*"]).await;
    let ci = user.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let own = revision(&ci.ok(&["config", "create", "dev.limits", "k", "--data", r#"{"n": 1}"#]).await);
    let id = key["key_id"].as_str().unwrap();

    let table = user.ok(&["changes", "--since", "1h", "--env", "prod"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("REVISION") && lines[1].starts_with(&run), "{table}");
    assert!(lines[1].contains("CI run 4711") && lines[1].contains("(and 3 more)"), "{table}");
    assert!(!table.contains("dev.limits"), "{table}");
    let table = user.ok(&["changes", "--by", "ci"]).await;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[2], row[3]), (own.as_str(), "key", "ci"), "the key by its name: {table}");
    assert_eq!(table.lines().count(), 2, "{table}");
    let found = user.json(&["changes", "--by", id]).await;
    assert_eq!(found["results"][0]["by"], id, "{found}");
    // A key that can only read sees ids; nobody has the name.
    let reader = user.json(&["key", "create", "--name", "reader", "--grant", "read:dev.*"]).await;
    let reader = user.clone().with("CONCORD_API_KEY", reader["api_key"].as_str().unwrap());
    assert!(reader.ok(&["changes", "--limit", "1"]).await.contains(id));
    assert!(ci.ok(&["changes", "--limit", "1"]).await.contains("key ci"));
    let none = user.run(&["changes", "--by", "nobody", "-o", "json"]).await;
    assert!(none.code == 3 && none.err.contains("`nobody` has made no change"), "{none:?}");
    let none = user.json(&["changes", "--by", "reader"]).await;
    assert_eq!(none["results"], json!([]), "a key that has changed nothing is known to who may list it");
    let none = user.json(&["changes", "--by", "ci", "--since", "2999-01-01T00:00:00Z"]).await;
    assert_eq!(none["results"], json!([]), "it is known, and has changed nothing then");
    let first = user.run(&["changes", "--limit", "1"]).await;
    assert!(first.err.contains("there may be older changes: pass --before"), "{first:?}");
    let whole = user.json(&["changes"]).await;
    let next = user.json(&["changes", "--before", &own]).await;
    assert_eq!(whole["results"].as_array().unwrap()[1..], next["results"].as_array().unwrap()[..]);
    let future = user.json(&["changes", "--since", "2999-01-01T00:00:00Z"]).await;
    assert_eq!(future["results"], json!([]));
    // Without a record of `prod`, everything is of `default`.
    user.ok(&["definition", "create", "plain"]).await;
    let of_default = async |more: &[&str]| {
        let found = user.json(&[&["changes", "--env", "default"], more].concat()).await;
        let changes = found["results"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|event| event["changes"].as_array().unwrap());
        changes.map(|change| change["config_definition_key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(of_default(&[]).await.contains(&"prod.limits".to_owned()));
    user.ok(&["env", "set", "prod"]).await;
    assert_eq!(of_default(&[]).await, ["plain", "dev.limits", "dev.limits"]);
    assert_eq!(of_default(&["--limit", "1"]).await, ["plain"]);
    let first = user.json(&["changes", "--env", "default", "--limit", "1"]).await;
    let next = first["meta"]["next_before"].to_string();
    assert_eq!(of_default(&["--before", &next]).await, ["dev.limits", "dev.limits"]);
}
