//! `change`, `--propose` and `--bypass`: what a restricted environment takes, and what each command says to do next.

use serde_json::json;

use super::{Done, User};
use crate::harness::Cluster;

/// A restricted environment, its owner with the root key, and two people.
async fn restricted(name: &str) -> (Cluster, User, User, User) {
    let cluster = Cluster::start(name).await;
    let root = User::of(&cluster);
    let person = async |name: &str| {
        let grant = "read,write,define,delete,approve,bypass:prod.*";
        let made = root.json(&["key", "create", "--name", name, "--person", name, "--grant", grant]).await;
        root.clone().with("CONCORD_API_KEY", made["api_key"].as_str().expect("a key"))
    };
    let (ann, bob) = (person("ann").await, person("bob").await);
    root.ok(&["definition", "create", "prod.limits"]).await;
    root.ok(&["config", "create", "prod.limits", "acme", "--data", r#"{"n": 1}"#]).await;
    root.ok(&["env", "set", "prod", "--direct", "refuse", "--approvals", "1"]).await;
    (cluster, root, ann, bob)
}

fn fails(done: &Done, code: i32, hint: &str) {
    assert!(done.code == code && done.err.contains(hint), "{done:?}");
}

#[tokio::test]
async fn a_change_is_proposed_shown_approved_and_applied() {
    let (_cluster, _root, ann, bob) = restricted("cli-changes").await;
    let patch = ["config", "patch", "prod.limits", "acme", "--data", r#"{"n": 2}"#];
    fails(&ann.run(&patch).await, 4, "--propose TITLE");
    let told = ann.ok(&[&patch[..], &["--propose", "two"]].concat()).await;
    assert!(told.contains("it needs the approval of 1 person: concord change approve "), "{told}");
    let listed = ann.json(&["change", "list", "--phase", "open", "--env", "prod"]).await;
    let id = listed["results"][0]["change_id"].as_str().expect("an id").to_owned();
    assert!(ann.ok(&["change", "list"]).await.contains("0 of 1"));
    fails(&ann.run(&["change", "apply", &id, "--yes"]).await, 4, &format!("concord change approve {id}"));
    let shown = bob.ok(&["change", "show", &id]).await;
    assert!(shown.contains("prod.limits/acme\n  /n: 1 -> 2\n") && shown.contains("by ann ("), "{shown}");
    // Without a terminal nothing is approved that was not read.
    fails(&bob.run(&["change", "approve", &id]).await, 2, &format!("concord change show {id}"));
    let digest = bob.json(&["change", "show", &id]).await["digest"].as_str().expect("a digest").to_owned();
    fails(&bob.run(&["change", "approve", &id, "--digest", &"0".repeat(64)]).await, 4, "concord change show");
    fails(&ann.run(&["change", "approve", &id, "--digest", &digest]).await, 6, "another person");
    let told = bob.ok(&["change", "approve", &id, "--digest", &digest, "--comment", "fine"]).await;
    assert_eq!(told, format!("change request {id} approved; apply it: concord change apply {id}\n"));
    let told = ann.ok(&["change", "apply", &id, "--yes"]).await;
    assert!(told.starts_with(&format!("change request {id} applied  revision ")), "{told}");
    assert_eq!(ann.json(&["config", "get", "prod.limits", "acme"]).await["data"], json!({"n": 2}));
    fails(&bob.run(&["change", "show", "absent"]).await, 3, "concord change list");
    let told = ann.ok(&[&patch[..], &["--propose", "three", "-o", "jsonpath={.change_id}"]].concat()).await;
    assert!(ann.ok(&["change", "rebase", told.trim()]).await.contains("edition 2"));
    ann.ok(&["change", "withdraw", told.trim(), "--comment", "no"]).await;
    fails(&ann.run(&["change", "rebase", told.trim()]).await, 4, "concord change show");
}

#[tokio::test]
async fn files_definitions_and_environments_are_proposed_and_an_incident_passes_the_rules() {
    let (_cluster, root, ann, bob) = restricted("cli-changes-more").await;
    let done = async |command: &[&str]| {
        let id = ann.ok(&[command, &["--propose", "t", "-o", "jsonpath={.change_id}"]].concat()).await;
        let id = id.trim();
        let digest = bob.ok(&["change", "show", id, "-o", "jsonpath={.digest}"]).await;
        bob.ok(&["change", "approve", id, "--digest", digest.trim()]).await;
        ann.ok(&["change", "apply", id, "--digest", digest.trim()]).await
    };
    let file = ann.write(
        "limits.yaml",
        "config_definition_key: prod.new\nindexes: [n]\n---\nconfig_definition_key: prod.new\nconfig_key: a\ndata: {n: 1}\n",
    );
    fails(&ann.run(&["apply", "-f", &file]).await, 4, "--propose TITLE");
    done(&["apply", "-f", &file]).await;
    assert_eq!(ann.json(&["config", "get", "prod.new", "a"]).await["data"], json!({"n": 1}));
    done(&["definition", "protect", "prod.new"]).await;
    done(&["definition", "protect", "prod.new", "--off"]).await;
    done(&["definition", "reindex", "prod.new", "--add", "m"]).await;
    done(&["config", "delete", "prod.new", "a"]).await;
    done(&["definition", "delete", "prod.new"]).await;
    done(&["definition", "undelete", "prod.new"]).await;
    let usage = ann.run(&["config", "delete", "prod.limits", "acme", "--propose", "t", "--dry-run"]).await;
    fails(&usage, 2, "--dry-run");
    let write =
        ["config", "put", "prod.limits", "acme", "--data", r#"{"n": 9}"#, "--bypass", "incident 4711"];
    ann.ok(&write).await;
    let open = ann.json(&["change", "list", "--unreviewed"]).await;
    assert_eq!((&open["meta"]["total"], &open["results"][0]["title"]), (&json!(1), &json!("incident 4711")));
    let (id, digest) = (open["results"][0]["change_id"].clone(), open["results"][0]["digest"].clone());
    let (id, digest) = (id.as_str().expect("an id"), digest.as_str().expect("a digest"));
    fails(&ann.run(&["change", "review", id, "--digest", digest]).await, 6, "another person");
    bob.ok(&["change", "review", id, "--digest", digest]).await;
    fails(&root.run(&["env", "set", "prod", "--direct", "allow", "--approvals", "0"]).await, 4, "--propose");
    done(&["env", "set", "prod", "--direct", "allow", "--approvals", "0"]).await;
    ann.ok(&["config", "put", "prod.limits", "acme", "--data", r#"{"n": 10}"#]).await;
}
