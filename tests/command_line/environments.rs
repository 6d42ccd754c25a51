//! `env`, `freeze` and `unfreeze`, and what other commands say during a freeze.

use serde_json::json;

use super::{User, revision};
use crate::harness::Cluster;

async fn frozen(name: &str) -> (Cluster, User) {
    let cluster = Cluster::start(name).await;
    let user = User::of(&cluster);
    user.ok(&["definition", "create", "prod.limits"]).await;
    user.ok(&["config", "create", "prod.limits", "acme", "--data", r#"{"n": 1}"#]).await;
    (cluster, user)
}

#[tokio::test]
async fn a_freeze_refuses_changes_with_an_exit_code_until_it_is_ended() {
    let (_cluster, user) = frozen("cli-freeze").await;
    let first =
        revision(&user.ok(&["config", "patch", "prod.limits", "acme", "--data", r#"{"n": 2}"#]).await);
    let done = user.ok(&["freeze", "prod", "--for", "1h", "--reason", "incident 4711"]).await;
    assert!(done.starts_with("environment prod is frozen until 20"), "{done}");
    let file =
        user.write("limits.yaml", "config_definition_key: prod.limits\nconfig_key: acme\ndata: {n: 3}\n");
    for command in [
        &["config", "patch", "prod.limits", "acme", "--data", r#"{"n": 3}"#][..],
        &["config", "patch", "prod.limits", "acme", "--data", r#"{"n": 3}"#, "--dry-run"],
        &["config", "put", "prod.limits", "acme", "--data", r#"{"n": 3}"#],
        &["config", "rollback", "prod.limits", "acme", "--to", &first],
        &["config", "delete", "prod.limits", "acme", "--yes"],
        &["definition", "delete", "prod.limits", "--yes"],
        &["definition", "create", "prod.other"],
        &["apply", "-f", &file],
    ] {
        let refused = user.run(command).await;
        assert_eq!(refused.code, 4, "{command:?}: {refused:?}");
        assert!(
            refused.err.contains("the environment `prod` is frozen until 20"),
            "{command:?}: {refused:?}"
        );
        assert!(refused.err.contains("concord env list"), "{command:?}: {refused:?}");
    }
    assert_eq!(user.json(&["config", "get", "prod.limits", "acme"]).await["data"], json!({"n": 2}));
    let listed = user.ok(&["env", "list"]).await;
    assert!(listed.contains("incident 4711") && listed.starts_with("ENVIRONMENT  DIRECT WRITES"), "{listed}");
    assert_eq!(user.ok(&["unfreeze", "prod"]).await, "environment prod is not frozen any more\n");
    assert_eq!(user.ok(&["unfreeze", "prod"]).await, "environment prod was not frozen\n");
    user.ok(&["config", "patch", "prod.limits", "acme", "--data", r#"{"n": 3}"#]).await;
}

#[tokio::test]
async fn freezes_are_planned_added_and_ended_without_touching_the_others() {
    let (_cluster, user) = frozen("cli-freezes").await;
    let planned =
        ["--from", "2199-12-23T18:00:00+01:00", "--until", "2200-01-02T08:00:00Z", "--reason", "holidays"];
    let done = user.ok(&[&["freeze", "prod"], &planned[..]].concat()).await;
    assert_eq!(
        done,
        "environment prod will be frozen from 2199-12-23T17:00:00.000000Z until 2200-01-02T08:00:00.000000Z\n"
    );
    user.ok(&["freeze", "prod", "--for", "30m", "--reason", "one"]).await;
    user.ok(&["freeze", "prod", "--for", "90m", "--reason", "two"]).await;
    let reasons = async || user.ok(&["env", "get", "prod", "-o", "jsonpath={.freeze[*].reason}"]).await;
    assert_eq!(reasons().await, "one\ntwo\nholidays\n");
    // What is printed can be sent back.
    let file = user.write("prod.yaml", &user.ok(&["env", "get", "prod", "-o", "yaml"]).await);
    user.ok(&["env", "set", "prod", "-f", &file]).await;
    assert_eq!(reasons().await, "one\ntwo\nholidays\n");
    assert_eq!(
        user.ok(&["unfreeze", "prod"]).await,
        "environment prod is not frozen any more; planned freezes: 1\n"
    );
    assert_eq!(reasons().await, "holidays\n");
    user.ok(&["unfreeze", "prod", "--all"]).await;
    assert_eq!(reasons().await, "");
    // It stays as it is.
    assert_eq!(user.ok(&["env", "set", "prod"]).await, "environment prod stored\n");
    // Without a terminal a deletion is confirmed by an option.
    let asked = user.run(&["env", "rm", "prod"]).await;
    assert!(asked.code == 2 && asked.err.contains("it has no freezes: confirm with --yes"), "{asked:?}");
    assert_eq!(user.ok(&["env", "rm", "prod", "--yes"]).await, "environment prod deleted\n");
    assert_eq!(user.run(&["env", "get", "prod"]).await.code, 3);
    assert_eq!(user.run(&["unfreeze", "prod"]).await.code, 0, "it is not frozen");
}

#[tokio::test]
async fn a_freeze_that_is_not_whole_is_a_usage_error() {
    let (_cluster, user) = frozen("cli-freeze-usage").await;
    for wrong in [
        &["freeze", "prod", "--reason", "r"][..],
        &["freeze", "prod", "--for", "1h"],
        &["freeze", "prod", "--for", "1w", "--reason", "r"],
        &["freeze", "prod", "--for", "1h", "--until", "2199-01-01T00:00:00Z", "--reason", "r"],
        &["freeze", "prod", "--until", "tomorrow", "--reason", "r"],
    ] {
        let refused = user.run(wrong).await;
        assert_eq!(refused.code, 2, "{wrong:?}: {refused:?}");
    }
    for wrong in [
        &["freeze", "prod", "--until", "2020-01-01T00:00:00Z", "--reason", "r"][..],
        &["freeze", "prod", "--for", "400d", "--reason", "r"],
        &["freeze", "prod.limits", "--for", "1h", "--reason", "r"],
    ] {
        let refused = user.run(wrong).await;
        assert_eq!(refused.code, 5, "{wrong:?}: {refused:?}");
    }
    assert_eq!(user.json(&["env", "list"]).await["results"], json!([]));
}

#[tokio::test]
async fn a_first_freeze_keeps_the_rules_that_the_environment_had() {
    let (_cluster, user) = frozen("cli-first-freeze").await;
    let planned =
        ["--from", "2199-12-23T18:00:00Z", "--until", "2200-01-02T08:00:00Z", "--reason", "holidays"];
    user.ok(&[&["freeze", "default"], &planned[..]].concat()).await;
    user.ok(&["env", "set", "default", "--approvals", "0"]).await;
    user.ok(&["freeze", "foo", "--for", "1h", "--reason", "incident"]).await;
    let foo = user.json(&["env", "get", "foo"]).await;
    let reasons: Vec<&str> =
        foo["freeze"].as_array().unwrap().iter().map(|one| one["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["incident", "holidays"], "{foo}");
    assert_eq!(user.ok(&["unfreeze", "bar", "--all"]).await, "environment bar was not frozen\n");
    assert_eq!(user.run(&["env", "get", "bar"]).await.code, 3, "nothing was created");
}
