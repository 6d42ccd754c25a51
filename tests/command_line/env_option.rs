//! `--env` and `CONCORD_ENVIRONMENT`: each command is of one environment, and prints the keys that it was given.

use serde_json::json;

use super::{LIMITS, User, revision};
use crate::harness::Cluster;

/// What one person does with the definition `limits` in one environment, and what they see: all but revisions and times.
#[expect(clippy::cognitive_complexity, reason = "one story, a command in each line")]
async fn work(user: &User) -> Vec<String> {
    let (file, dir) = (user.write("limits.yaml", LIMITS), "exported");
    let mut seen = vec![user.ok(&["apply", "-f", &file]).await];
    assert_eq!(user.run(&["diff", "-f", &file]).await.code, 0);
    let put = ["config", "put", "limits", "acme", "--data", r#"{"plan": "free"}"#];
    let revision = revision(&user.ok(&put).await);
    user.ok(&["config", "patch", "limits", "initech", "--data", r#"{"plan": "pro"}"#]).await;
    for command in [
        &["get", "def", "-o", "name"][..],
        &["get", "def", "limits", "-o", "name"],
        &["get", "cfg", "limits", "-o", "name"],
        &["get", "cfg", "limits", "acme", "-o", "jsonpath={.data}"],
        &["get", "cfg", "lim*", "-o", "name"],
        &["explain", "limits.plan"],
    ] {
        seen.push(user.ok(command).await);
    }
    let diff = user.run(&["config", "diff", "limits", "acme"]).await.out;
    seen.push(diff.lines().map(|line| line.split('@').next().unwrap_or_default()).collect());
    let changes = user.ok(&["changes"]).await;
    seen.push(changes.lines().map(|line| line.split_whitespace().nth(3).unwrap_or_default()).collect());
    user.ok(&["undo", &revision, "--yes"]).await;
    seen.push(user.ok(&["get", "cfg", "limits", "acme", "-o", "jsonpath={.data}"]).await);
    let file = user.write(
        "move.yaml",
        "if: [{config_definition_key: limits, config_key: acme, absent: false}]\n\
         then: [{op: delete_config, config_definition_key: limits, config_key: initech}]\n",
    );
    user.ok(&["transaction", "-f", &file]).await;
    user.ok(&["export", "--dir", dir]).await;
    seen.push(user.ok(&["get", "cfg", "limits", "-o", "name"]).await);
    user.ok(&["definition", "delete", "limits", "--yes"]).await;
    let deleted = user.json(&["get", "def", "--deleted"]).await;
    seen.push(deleted["results"][0]["config_definition_key"].to_string());
    user.ok(&["definition", "undelete", "limits"]).await;
    user.ok(&["import", "--dir", dir]).await;
    seen
}

#[tokio::test]
async fn one_command_line_is_for_every_environment() {
    let cluster = Cluster::start("cli-env").await;
    let whole = User::of(&cluster);
    let plain = work(&whole).await;
    let staging = work(&whole.clone().with("CONCORD_ENVIRONMENT", "staging")).await;
    let default = whole.clone().with("CONCORD_ENVIRONMENT", "default");
    assert_eq!(plain, staging);
    for (name, expected) in [("staging", "pro"), ("prod", "gold")] {
        let data = format!(r#"{{"plan": "{expected}"}}"#);
        if name == "prod" {
            whole.ok(&["--env", "prod", "definition", "create", "limits"]).await;
            whole.ok(&["config", "create", "limits", "acme", "--data", &data, "--env", "prod"]).await;
        }
        let found = whole.json(&["config", "get", &format!("{name}.limits"), "acme"]).await;
        assert_eq!(found["data"]["plan"], expected, "{found}");
    }
    let names = |text: String| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let all = names(whole.ok(&["get", "def", "-o", "name"]).await);
    assert_eq!(all.len(), 3, "{all:?}");
    assert_eq!(names(default.ok(&["get", "def", "-o", "name"]).await), all);
    assert_eq!(names(whole.ok(&["get", "def", "-o", "name", "--env", "prod"]).await).len(), 1);
    let backup = whole.home.join("b.backup");
    let backup = backup.to_str().unwrap();
    whole.ok(&["backup", "--out", backup]).await;
    for (name, expected) in [("prod", true), ("other", false)] {
        whole.ok(&["export", "--dir", name, "--from-backup", backup, "--env", name]).await;
        let files = std::fs::read_dir(whole.home.join(name)).into_iter().flatten();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, vec!["limits"; usize::from(expected)], "{name}");
    }
    let twice = whole.run(&["--env", "prod", "definition", "create", "prod.limits", "--dry-run"]).await;
    assert!(twice.code == 0 && twice.err.contains("keys are given without `prod.`"), "{twice:?}");
    // What is not there in this environment is not looked for in another one.
    let other = whole.run(&["--env", "other", "get", "cfg", "limits", "acme"]).await;
    assert!(other.code == 3 && other.err.contains("other.limits"), "{other:?}");
    for name in ["", "a.b", "-x", "é", "a b"] {
        let refused = whole.run(&["get", "def", &format!("--env={name}")]).await;
        assert!(refused.code == 2 && refused.err.contains("environment"), "{name}: {refused:?}");
    }
}

#[tokio::test]
async fn a_plan_of_one_environment_is_not_applied_to_another() {
    let cluster = Cluster::start("cli-env-plan").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    let saved = user.run(&["diff", "-f", &file, "--save", "plan.json", "--env", "staging"]).await;
    assert_eq!(saved.code, 1, "{saved:?}");
    for other in [&["--env", "prod"][..], &[]] {
        let stale = user.run(&[&["apply", "-f", &file, "--plan", "plan.json"][..], other].concat()).await;
        assert!(stale.code == 4 && stale.err.contains("it is of environment staging, not of "), "{stale:?}");
    }
    user.ok(&["apply", "-f", &file, "--plan", "plan.json", "--env", "staging"]).await;
    let found = user.json(&["get", "def"]).await;
    assert_eq!(found["results"][0]["config_definition_key"], "staging.limits", "{found}");
    assert_eq!(found["meta"]["total"], 1);
}

#[tokio::test]
async fn commands_about_environments_name_the_environment_itself() {
    let cluster = Cluster::start("cli-env-names").await;
    let user = User::of(&cluster).with("CONCORD_ENVIRONMENT", "prod");
    user.ok(&["definition", "create", "limits"]).await;
    user.ok(&["config", "create", "limits", "acme", "--data", "{}"]).await;
    let done = user.ok(&["freeze", "--for", "1h", "--reason", "incident 4711"]).await;
    assert!(done.starts_with("environment prod is frozen"), "{done}");
    let refused = user.run(&["config", "put", "limits", "acme", "--data", "{}"]).await;
    assert!(refused.code == 4 && refused.err.contains("`prod` is frozen"), "{refused:?}");
    user.ok(&["definition", "create", "limits", "--env", "default"]).await;
    assert_eq!(user.ok(&["unfreeze"]).await, "environment prod is not frozen any more\n");
    user.ok(&["env", "set", "prod", "--direct", "refuse", "--approvals", "0"]).await;
    let listed = user.json(&["env", "get", "prod"]).await;
    assert_eq!(listed["environment"], "prod", "{listed}");

    // A change request is read by people of all environments: it has the whole key.
    let put = ["config", "put", "limits", "acme", "--data", r#"{"n": 1}"#, "--propose", "more"];
    let change = user.json(&put).await;
    let id = change["change_id"].as_str().unwrap();
    let listed = user.json(&["change", "list"]).await;
    assert_eq!(listed["results"][0]["change_id"], id, "{listed}");
    let elsewhere = user.json(&["change", "list", "--env", "dev"]).await;
    assert_eq!(elsewhere["results"], json!([]));
    let shown = user.ok(&["change", "show", id]).await;
    assert!(shown.contains("prod.limits") && !shown.contains("prod.prod"), "{shown}");
    user.ok(&["change", "apply", id, "--yes"]).await;
    assert_eq!(user.json(&["config", "get", "limits", "acme"]).await["data"], json!({"n": 1}));
}
