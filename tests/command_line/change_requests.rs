//! `change`, `--propose` and `--bypass`: what a restricted environment takes, and what each command says to do next.

use serde_json::json;

use super::{Done, User};
use crate::harness::{Cluster, check, eventually};

/// A restricted environment, its owner with the root key, and two people.
pub(super) async fn restricted(name: &str) -> (Cluster, User, User, User) {
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
    // A long freeze is proposed, and so is its end; a short one is added at once.
    let long = ["freeze", "prod", "--for", "3d", "--reason", "audit"];
    fails(&ann.run(&long).await, 4, "--propose TITLE");
    done(&long).await;
    ann.ok(&["freeze", "prod", "--for", "1h", "--reason", "incident"]).await;
    let reasons = async || ann.ok(&["env", "get", "prod", "-o", "jsonpath={.freeze[*].reason}"]).await;
    assert_eq!(reasons().await, "audit\nincident\n");
    fails(&ann.run(&["unfreeze", "prod"]).await, 4, "--propose TITLE");
    done(&["unfreeze", "prod"]).await;
    assert_eq!(reasons().await, "");
    assert!(ann.ok(&["unfreeze", "prod", "--propose", "t"]).await.contains("was not frozen"));
    assert_eq!(ann.json(&["env", "get", "prod"]).await["direct"], "refuse");
    // A freeze that was added since is not lost: the proposal does not rest on what was read.
    let id = ann.ok(&[&long[..], &["--propose", "t", "-o", "jsonpath={.change_id}"]].concat()).await;
    ann.ok(&["freeze", "prod", "--for", "1h", "--reason", "since"]).await;
    let digest = bob.ok(&["change", "show", id.trim(), "-o", "jsonpath={.digest}"]).await;
    bob.ok(&["change", "approve", id.trim(), "--digest", digest.trim()]).await;
    fails(&ann.run(&["change", "apply", id.trim(), "--yes"]).await, 4, "concord change rebase");
    done(&["unfreeze", "prod"]).await;
    fails(&root.run(&["env", "set", "prod", "--direct", "allow", "--approvals", "0"]).await, 4, "--propose");
    done(&["env", "set", "prod", "--direct", "allow", "--approvals", "0"]).await;
    ann.ok(&["config", "put", "prod.limits", "acme", "--data", r#"{"n": 10}"#]).await;
}

#[tokio::test]
async fn a_change_for_a_time_is_applied_by_the_cluster_and_taken_back() {
    let (_cluster, _root, ann, bob) = restricted("cli-changes-timed").await;
    let put = ["config", "put", "prod.limits", "acme", "--data", r#"{"n": 5}"#, "--for", "2h"];
    fails(&ann.run(&[&put[..], &["--bypass", "x"]].concat()).await, 2, "--bypass");
    fails(&ann.run(&[&put[..], &["--dry-run"]].concat()).await, 2, "--dry-run");
    let told = ann.ok(&put).await;
    assert!(
        told.contains("the cluster applies it, with the approval of 1 person: concord change approve"),
        "{told}"
    );
    let listed = ann.json(&["change", "list", "--phase", "open"]).await;
    assert_eq!(listed["results"][0]["title"], "put config prod.limits/acme for 2h");
    let id = listed["results"][0]["change_id"].as_str().expect("an id").to_owned();
    let shown = bob.ok(&["change", "show", &id]).await;
    assert!(shown.contains("taken back 2h after it is applied\n"), "{shown}");
    let approve = async |id: &str| {
        let digest = bob.ok(&["change", "show", id, "-o", "jsonpath={.digest}"]).await;
        bob.ok(&["change", "approve", id, "--digest", digest.trim()]).await
    };
    assert_eq!(approve(&id).await, format!("change request {id} approved; the cluster applies it\n"));
    eventually("the cluster applies it", async || {
        let shown = ann.ok(&["change", "show", &id]).await;
        check(shown.contains("revert: the cluster takes it back at "), || shown)
    })
    .await;
    let shown = ann.ok(&["change", "show", &id]).await;
    let preview = "what taking it back would change:\nprod.limits/acme\n  /n: 5 -> 1\n";
    assert!(shown.contains("applied by the cluster  revision ") && shown.contains(preview), "{shown}");
    assert!(ann.ok(&["change", "list", "--revert", "armed"]).await.contains("applied, taken back at "));
    fails(&ann.run(&["change", "revert", &id, "--yes"]).await, 6, "approval");
    let told = bob.ok(&["change", "revert", &id, "--yes"]).await;
    assert!(told.starts_with(&format!("change request {id} taken back  revision ")), "{told}");
    assert!(ann.ok(&["change", "show", &id]).await.contains("taken back by bob ("));
    assert_eq!(ann.json(&["config", "get", "prod.limits", "acme"]).await["data"], json!({"n": 1}));

    // One that somebody leaves to the cluster.
    let operations =
        "- {op: put_config, config_definition_key: prod.limits, config_key: acme, data: {n: 7}}\n";
    let file = ann.write("operations.yaml", operations);
    let later = concord_model::time::Timestamp(concord_service::now().0 + 3_600_000_000).to_string();
    let create = ["change", "create", "seven", "-f", &file, "--at", &later, "--apply", "manual"];
    let id = ann.ok(&[&create[..], &["-o", "jsonpath={.change_id}"]].concat()).await;
    let id = id.trim();
    approve(id).await;
    let told = ann.ok(&["change", "apply", id, "--yes"]).await;
    assert_eq!(told, format!("change request {id} armed: the cluster applies it from {later} on\n"));
    assert!(
        ann.ok(&["change", "list", "--phase", "scheduled"])
            .await
            .contains(&format!("scheduled, from {later}"))
    );
    ann.ok(&["change", "withdraw", id]).await;
}

#[tokio::test]
async fn a_reviewer_sees_what_a_bypass_changed_and_by_whom() {
    let (_cluster, root, ann, bob) = restricted("cli-changes-seen").await;
    let put = ["config", "put", "prod.limits", "acme", "--data", r#"{"n": 7}"#];
    ann.ok(&[&put[..], &["--bypass", "incident 4711", "--reason", "nobody is awake"]].concat()).await;
    let waiting = bob.ok(&["change", "list", "--needs-me", "-o", "jsonpath={.results[*].change_id}"]).await;
    let shown = bob.ok(&["change", "show", waiting.trim()]).await;
    assert!(shown.contains("what it changed:\nprod.limits/acme\n  /n: 1 -> 7\n"), "{shown}");
    assert!(
        shown.contains("incident 4711: nobody is awake\n") && shown.contains("by ann (key ann)"),
        "{shown}"
    );
    assert_eq!(ann.ok(&["change", "list", "--needs-me", "-o", "name"]).await.trim(), "");
    assert!(ann.ok(&["change", "list", "--mine", "-o", "name"]).await.contains(waiting.trim()));
    let changes = bob.ok(&["changes", "prod.limits", "--by", "ann"]).await;
    assert!(changes.contains("ann (key ann)") && changes.contains("incident 4711"), "{changes}");
    fails(&bob.run(&["changes", "--by", "nobody"]).await, 3, "`nobody` has made no change");

    // What is stale names who has changed the record.
    let three = ["config", "put", "prod.limits", "acme", "--data", r#"{"n": 3}"#, "--propose", "three"];
    let id = ann.ok(&[&three[..], &["-o", "jsonpath={.change_id}"]].concat()).await;
    let id = id.trim();
    let digest = bob.ok(&["change", "show", id, "-o", "jsonpath={.digest}"]).await;
    bob.ok(&["change", "approve", id, "--digest", digest.trim()]).await;
    ann.ok(&[&put[..4], &["--data", r#"{"n": 8}"#, "--bypass", "again"]].concat()).await;
    let by = "prod.limits/acme was changed by ann (key ann) at revision ";
    fails(&ann.run(&["change", "apply", id, "--digest", digest.trim()]).await, 4, by);
    let shown = ann.ok(&["change", "show", id]).await;
    assert!(shown.contains(by) && shown.contains(": again\n"), "{shown}");
    assert!(ann.ok(&["change", "list", "--mine"]).await.contains("open, stale"));
    ann.ok(&["change", "withdraw", id]).await;
    assert!(ann.ok(&["change", "list", "--mine"]).await.contains("closed, withdrawn"));

    // A freeze is named where a change waits for it, and to a dry run.
    let id = ann.ok(&[&three[..], &["-o", "jsonpath={.change_id}"]].concat()).await;
    root.ok(&["freeze", "prod", "--for", "1h", "--reason", "incident"]).await;
    assert!(
        ann.ok(&["change", "show", id.trim()]).await.contains("waits: environment prod is frozen until 20")
    );
    assert!(ann.ok(&["change", "list", "--mine"]).await.contains("open, frozen until 20"));
    let listed = ann.ok(&["env", "list"]).await;
    assert!(listed.contains("refused: change requests, or --bypass"), "{listed}");
    fails(&ann.run(&[&put[..], &["--dry-run"]].concat()).await, 4, "dry run: this would be rejected");
    fails(&ann.run(&["unfreeze", "prod", "--bypass", "over"]).await, 6, "with the root key only");
    let later = ["--at", "2m", "--until", "2h", "-o", "json"];
    let later = ann.json(&[&three[..], &later[..4]].concat()).await;
    assert!(later["schedule"]["not_before"].is_string(), "{later}");
    fails(&ann.run(&[&three[..], &["--at", "2020-01-01T00:00:00Z"]].concat()).await, 2, "in the past");
}

#[tokio::test]
async fn an_import_changes_nothing_that_takes_change_requests_only() {
    let (_cluster, root, _, _) = restricted("cli-import").await;
    root.ok(&["definition", "create", "dev.limits"]).await;
    root.ok(&["export", "--dir", "exported"]).await;
    let file = "exported/prod.limits/config/acme.json";
    let text = std::fs::read_to_string(root.home.join(file)).expect("it was exported");
    root.write(file, &text.replace('1', "2"));
    root.write("exported/prod.limits/config/new.json", &text.replace("acme", "new"));
    let definition = "exported/prod.limits/definition.json";
    let old = std::fs::read_to_string(root.home.join(definition)).expect("it was exported");
    let before = root.json(&["config", "get", "prod.limits", "acme"]).await;
    fails(&root.run(&["import", "--dir", "exported"]).await, 4, "change request");
    // A definition that is changed, one that is new, and the environment around it.
    root.write(definition, &old.replace("\"indexes\": []", "\"indexes\": [\"n\"]"));
    root.write("exported/prod.more/definition.json", &old.replace("prod.limits", "prod.more"));
    std::fs::remove_dir_all(root.home.join("exported/prod.limits/config")).expect("it is there");
    fails(&root.run(&["import", "--dir", "exported"]).await, 4, "change request");
    fails(&root.run(&["definition", "get", "prod.more"]).await, 3, "");
    assert_eq!(root.json(&["config", "get", "prod.limits", "acme"]).await, before);
    fails(&root.run(&["config", "get", "prod.limits", "new"]).await, 3, "");
    fails(&root.run(&["env", "set", "prod", "--direct", "allow"]).await, 4, "");
    // What has not changed is imported, and what is elsewhere.
    root.ok(&["export", "--dir", "again"]).await;
    root.write("again/dev.limits/config/acme.json", &text.replace("prod.limits", "dev.limits"));
    root.ok(&["import", "--dir", "again"]).await;
}
