//! `env diff` and `promote`: two environments are compared at one revision, and one is made as the other is.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use super::{Done, User, change_requests::restricted};
use crate::harness::Cluster;

const STAGING: &str = "config_definition_key: staging.limits
indexes: [plan]
json_schema: {type: object, properties: {plan: {enum: [free, pro, gold]}}}
---
{config_definition_key: staging.limits, config_key: acme, data: {plan: gold, quota: {requests: 2000}}}
---
{config_definition_key: staging.limits, config_key: new, data: {plan: free}}
---
{config_definition_key: staging.limits, config_key: same, data: {plan: free}}
---
config_definition_key: staging.routes
---
{config_definition_key: staging.routes, config_key: eu, data: {to: a}}
";
const PROD: &str = "config_definition_key: prod.limits
json_schema: {type: object, properties: {plan: {enum: [free, pro]}}}
---
{config_definition_key: prod.limits, config_key: acme, data: {plan: pro, quota: {requests: 1000}}}
---
{config_definition_key: prod.limits, config_key: old, data: {plan: free}}
---
{config_definition_key: prod.limits, config_key: same, data: {plan: free}}
";

async fn both(name: &str) -> (Cluster, User) {
    let cluster = Cluster::start(name).await;
    let user = User::of(&cluster);
    for file in [STAGING, PROD] {
        assert_eq!(user.run_with(&["apply", "-f", "-"], file).await.code, 0);
    }
    (cluster, user)
}

async fn data(user: &User, definition: &str, key: &str) -> Value {
    user.json(&["config", "get", definition, key]).await["data"].clone()
}

fn rows(done: &Done) -> Vec<Vec<&str>> {
    done.out.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn two_environments_are_compared_by_records_and_fields() {
    let (_cluster, user) = both("cli-env-diff").await;
    let done = user.run(&["env", "diff", "staging", "prod"]).await;
    assert_eq!(done.code, 1, "{done:?}");
    let found = rows(&done);
    assert_eq!(found[0], ["RECORD", "FIELD", "STAGING", "PROD"]);
    for row in [
        vec!["limits/acme", "plan", r#""gold""#, r#""pro""#],
        vec!["limits/acme", "quota.requests", "2000", "1000"],
        vec!["limits/new", "(config)", r#"{"plan":"free"}"#, "absent"],
        vec!["limits/old", "(config)", "absent", r#"{"plan":"free"}"#],
        vec!["routes/eu", "(config)", r#"{"to":"a"}"#, "absent"],
        vec!["limits", "indexes", r#"["plan"]"#, "[]"],
    ] {
        assert!(found.contains(&row), "{row:?}: {done:?}");
    }
    assert!(found.iter().any(|row| row[..2] == ["limits", "json_schema.properties.plan.enum"]), "{done:?}");
    assert!(!done.out.contains("limits/same"), "{done:?}");
    let as_json = user.run(&["env", "diff", "staging", "prod", "limits/acme", "-o", "json"]).await;
    let told: Value =
        serde_json::from_str(&as_json.out).unwrap_or_else(|error| panic!("{error}: {as_json:?}"));
    assert_eq!((as_json.code, told["results"].as_array().map(Vec::len)), (1, Some(2)), "{told}");
    let config = &told["results"][1];
    assert_eq!((&config["name"], &config["difference"]), (&json!("config limits/acme"), &json!("differs")));
    assert_eq!(config["fields"][0], json!({"path": "plan", "from": "gold", "to": "pro"}));
    let limited = user.run(&["env", "diff", "staging", "prod", "--limit", "1"]).await;
    assert!(limited.code == 1 && limited.err.contains("more: pass --limit"), "{limited:?}");
    for (wrong, code, text) in [
        (&["env", "diff", "stagin", "prod"][..], 3, "no environment `stagin`"),
        (&["env", "diff", "staging", "default"], 2, "no common prefix"),
        (&["env", "diff", "staging", "staging"], 2, "name two"),
        (&["env", "diff", "staging", "prod", "staging.limits"], 3, "without the environment"),
        (&["env", "diff", "staging", "prod", "limits/absent"], 3, "in neither"),
    ] {
        let done = user.run(wrong).await;
        assert!(done.code == code && done.err.contains(text), "{wrong:?}: {done:?}");
    }
    // Whatever the environment of other commands is.
    let same =
        user.clone().with("CONCORD_ENVIRONMENT", "prod").run(&["env", "diff", "staging", "prod"]).await;
    assert_eq!((same.code, &same.out), (1, &done.out), "{same:?}");
    // A key that may read a part is told so.
    let key = user.json(&["key", "create", "--name", "part", "--grant", "read:staging.*,prod.limits"]).await;
    let part = user.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let done = part.run(&["env", "diff", "staging", "prod"]).await;
    assert!(done.code == 1 && done.err.contains("may not read all of `prod.*`"), "{done:?}");
    assert!(!done.err.contains("`staging.*`"), "{done:?}");
}

#[tokio::test]
async fn a_promotion_makes_the_target_as_the_source_is_and_deletes_only_if_asked_to() {
    let (_cluster, user) = both("cli-promote").await;
    let promote = ["promote", "--from", "staging", "--to", "prod"];
    let with = |more: &[&'static str]| [&promote[..], more].concat();
    let before = user.json(&["config", "get", "prod.*"]).await;
    let tried = user.run(&with(&["limits/acme", "--dry-run"])).await;
    assert!(tried.code == 5 && tried.err.contains("prod.limits/acme"), "gold is not valid yet: {tried:?}");
    let tried = user.run(&with(&["--definitions", "--dry-run"])).await;
    assert_eq!(tried.code, 0, "{tried:?}");
    assert!(
        tried.out.contains("--- prod/config prod.limits/acme\n+++ staging/config prod.limits/acme\n"),
        "{tried:?}"
    );
    assert!(
        tried.out.contains("-  plan: pro\n+  plan: gold\n") && tried.err.contains("1 config only in prod"),
        "{tried:?}"
    );
    assert_eq!(user.json(&["config", "get", "prod.*"]).await, before, "nothing is stored");

    let in_prod = user.clone().with("CONCORD_ENVIRONMENT", "prod");
    assert_eq!(in_prod.run(&with(&["--definitions", "--dry-run"])).await.out, tried.out);

    // One config; its definition is there, and another one is not.
    let done = user.run(&with(&["limits/new"])).await;
    assert!(
        done.code == 0 && done.err.contains("other definitions than in staging: prod.limits"),
        "{done:?}"
    );
    assert_eq!(data(&user, "prod.limits", "new").await, json!({"plan": "free"}));
    let left = user.run(&with(&["routes/eu"])).await;
    assert!(
        left.code == 8 && left.err.contains("not promoted: definition prod.routes: it does not exist"),
        "{left:?}"
    );
    // A definition with all its configs.
    let done = user.run(&with(&["limits", "-o", "json"])).await;
    assert_eq!(done.code, 0, "{done:?}");
    let told: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        data(&user, "prod.limits", "acme").await,
        json!({"plan": "gold", "quota": {"requests": 2000}})
    );
    assert_eq!(data(&user, "prod.limits", "old").await, json!({"plan": "free"}), "it is not deleted");
    let history = user.json(&["config", "history", "prod.limits", "acme"]).await;
    assert_eq!(history["results"][0]["revision"], told["meta"]["revisions"][0], "one revision");
    assert_eq!(history["results"][0]["reason"], "promotion from staging to prod");

    let asked = user.run(&with(&["--definitions", "--prune"])).await;
    assert!(asked.code == 2 && asked.err.contains("confirm with --yes"), "{asked:?}");
    let bound = user.run(&with(&["--definitions", "--prune", "--yes", "--max-deletes", "0"])).await;
    assert!(bound.code == 2 && bound.err.contains("--max-deletes 1"), "{bound:?}");
    user.ok(&with(&["--definitions", "--prune", "--yes"])).await;
    let equal = user.run(&["env", "diff", "staging", "prod"]).await;
    assert!(equal.code == 0 && equal.err.contains("are equal"), "{equal:?}");
    assert_eq!(
        user.ok(&with(&["--definitions", "--prune"])).await,
        "prod is as staging: nothing to promote\n"
    );
    // What was named alone is deleted alone.
    user.ok(&["config", "create", "prod.limits", "x", "--data", "{}"]).await;
    user.ok(&["config", "create", "prod.limits", "y", "--data", "{}"]).await;
    user.ok(&with(&["limits/x", "--prune", "--yes"])).await;
    let diff = user.run(&["env", "diff", "staging", "prod"]).await;
    assert!(diff.out.contains("limits/y") && !diff.out.contains("limits/x "), "{diff:?}");
    let misspelt = user.run(&["promote", "--from", "staging", "--to", "prdo", "limits"]).await;
    assert!(misspelt.code == 3 && misspelt.err.contains("concord env set prdo"), "{misspelt:?}");
}

#[tokio::test]
async fn a_promotion_into_a_restricted_environment_is_one_change_request_that_a_change_makes_stale() {
    let (_cluster, root, ann, bob) = restricted("cli-promote-proposed").await;
    let staging = "config_definition_key: staging.limits\n---\n{config_definition_key: staging.limits, config_key: acme, data: {n: 2}}\n---\n{config_definition_key: staging.limits, config_key: b, data: {n: 2}}\n";
    assert_eq!(root.run_with(&["apply", "-f", "-"], staging).await.code, 0);
    let promote = ["promote", "--from", "staging", "--to", "prod"];
    let refused = ann.run(&promote).await;
    assert!(refused.code == 3 || refused.code == 6, "ann may not read staging: {refused:?}");
    let key = root
        .json(&[
            "key",
            "create",
            "--name",
            "carl",
            "--person",
            "carl",
            "--grant",
            "read:staging.*",
            "--grant",
            "read,write:prod.*",
        ])
        .await;
    let carl = root.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let refused = carl.run(&promote).await;
    assert!(refused.code == 4 && refused.err.contains("--propose TITLE"), "{refused:?}");
    let tried = carl.run(&[&promote[..], &["--propose", "t", "--dry-run"]].concat()).await;
    assert!(tried.code == 0 && tried.out.contains("2 records would be proposed"), "{tried:?}");
    assert_eq!(root.json(&["change", "list"]).await["meta"]["total"], 0);
    let proposed = async || {
        let id = carl
            .ok(&[&promote[..], &["--propose", "as in staging", "-o", "jsonpath={.change_id}"]].concat())
            .await;
        id.trim().to_owned()
    };
    let (id, second) = (proposed().await, proposed().await);
    let shown = bob.json(&["change", "show", &id]).await;
    let description = shown["description"].as_str().unwrap();
    assert!(description.starts_with("Promoted from environment staging at revision "), "{description}");
    for change in [&id, &second] {
        let digest = bob.ok(&["change", "show", change, "-o", "jsonpath={.digest}"]).await;
        bob.ok(&["change", "approve", change, "--digest", digest.trim()]).await;
    }
    carl.ok(&["change", "apply", &id, "--yes"]).await;
    let stale = carl.run(&["change", "apply", &second, "--yes"]).await;
    assert!(stale.code == 4 && stale.err.contains("concord change rebase"), "{stale:?}");
    assert_eq!(carl.run(&["env", "diff", "staging", "prod"]).await.code, 0);
    // And it is taken back by its id.
    let left = carl.run(&["undo", &id, "--yes"]).await;
    assert!(left.code == 4 && left.err.contains("--propose TITLE"), "{left:?}");
    let undo = carl.ok(&["undo", &id, "--propose", "back", "-o", "jsonpath={.change_id}"]).await;
    let undo = undo.trim();
    let open = carl.run(&["undo", undo, "--yes"]).await;
    assert!(open.code == 3 && open.err.contains("was not applied"), "{open:?}");
    let digest = bob.ok(&["change", "show", undo, "-o", "jsonpath={.digest}"]).await;
    bob.ok(&["change", "approve", undo, "--digest", digest.trim()]).await;
    carl.ok(&["change", "apply", undo, "--yes"]).await;
    assert_eq!(data(&carl, "prod.limits", "acme").await, json!({"n": 1}));
    assert_eq!(carl.run(&["config", "get", "prod.limits", "b"]).await.code, 3);
    // In an incident without a second person.
    let forbidden = carl.run(&["undo", undo, "--yes", "--bypass", "incident"]).await;
    assert_eq!(forbidden.code, 6, "{forbidden:?}");
    assert_eq!(ann.run(&["undo", undo, "--bypass", "incident 4711", "--dry-run"]).await.code, 0);
    ann.ok(&["undo", undo, "--yes", "--bypass", "incident 4711"]).await;
    assert_eq!(data(&carl, "prod.limits", "acme").await, json!({"n": 2}));
    let unreviewed = bob.json(&["change", "list", "--unreviewed"]).await;
    assert_eq!(unreviewed["results"][0]["title"], "incident 4711");
}

#[tokio::test]
async fn secret_values_that_the_key_may_not_see_are_left_and_not_compared() {
    let cluster = Cluster::start("cli-promote-secrets").await;
    let root = User::of(&cluster);
    let side = |name: &str, host: &str| {
        let schema = "json_schema: {properties: {password: {type: string, x-concord-secret: true}}}";
        format!(
            "config_definition_key: {name}.db\n{schema}\n---\n{{config_definition_key: {name}.db, config_key: main, \
             data: {{host: {host}, password: pw-{name}}}}}\n"
        )
    };
    let new =
        "---\n{config_definition_key: staging.db, config_key: new, data: {host: h, password: pw-new}}\n";
    for file in [side("staging", "h") + new, side("prod", "h")] {
        assert_eq!(root.run_with(&["apply", "-f", "-"], &file).await.code, 0);
    }
    let key =
        root.json(&["key", "create", "--name", "blind", "--grant", "read,write:staging.*,prod.*"]).await;
    let blind = root.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let diff = ["env", "diff", "staging", "prod"];
    let unknown = blind.run(&[&diff[..], &["db/main"]].concat()).await;
    assert!(
        unknown.code == 9 && unknown.out.contains("db/main  password") && unknown.err.contains("may differ"),
        "{unknown:?}"
    );
    let known = root.run(&diff).await;
    assert!(known.code == 1 && known.out.contains(r#""(secret, differs)""#), "{known:?}");
    assert!(!known.out.contains("pw-"), "{known:?}");

    root.ok(&["config", "patch", "staging.db", "main", "--data", r#"{"host": "h2"}"#]).await;
    let promote = ["promote", "--from", "staging", "--to", "prod"];
    let done = blind.run(&promote).await;
    assert!(done.code == 8 && done.err.contains("not promoted: config prod.db/new: it is new"), "{done:?}");
    assert!(done.err.contains("prod.db/main keeps its own secret value at /password"), "{done:?}");
    assert!(![&done.out, &done.err].iter().any(|text| text.contains("pw-")), "{done:?}");
    assert_eq!(data(&root, "prod.db", "main").await, json!({"host": "h2", "password": "pw-prod"}));
    assert_eq!(root.run(&["config", "get", "prod.db", "new"]).await.code, 3);
    // Who may see them can let them stay, or take them along.
    let stay = root.run(&[&promote[..], &["--keep-secrets"]].concat()).await;
    assert!(stay.code == 8 && stay.out.contains("nothing to promote"), "{stay:?}");
    let done = root.run(&promote).await;
    assert!(
        done.code == 0 && done.out.contains("(secret, changed)") && !done.out.contains("pw-"),
        "{done:?}"
    );
    assert_eq!(data(&root, "prod.db", "main").await["password"], "pw-staging");
    // What is secret in staging is not put where everybody reads it.
    root.ok(&["definition", "create", "dev.db"]).await;
    let open = root.run(&["promote", "--from", "staging", "--to", "dev"]).await;
    assert!(open.code == 8 && open.err.contains("is secret in staging, and not in dev"), "{open:?}");
    assert_eq!(root.ok(&["config", "get", "dev.db", "-o", "name"]).await, "");
}

#[tokio::test]
async fn both_environments_are_read_at_one_revision() {
    let cluster = Cluster::start("cli-env-diff-race").await;
    let user = User::of(&cluster);
    let definitions = json!([
        {"op": "create_definition", "config_definition_key": "a.d", "indexes": []},
        {"op": "create_definition", "config_definition_key": "b.d", "indexes": []}
    ]);
    let node = cluster.client(1);
    node.post("/api/v1/batch", &json!({ "operations": definitions })).await.expect(200);
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (node, is_over) = (node.clone(), Arc::clone(&is_over));
        async move {
            let mut written = 0;
            while !is_over.load(Ordering::Relaxed) {
                written += 1;
                let put = |definition: &str| json!({"op": "put_config", "config_definition_key": definition, "config_key": "k", "data": {"n": written}, "upsert": true});
                let mut operations = vec![put("a.d"), put("b.d")];
                if written % 50 == 0 {
                    let schema = |definition: &str| json!({"op": "set_schema", "config_definition_key": definition, "json_schema": {"title": written.to_string()}});
                    operations.extend([schema("a.d"), schema("b.d")]);
                }
                node.post("/api/v1/batch", &json!({ "operations": operations })).await.expect(200);
            }
            written
        }
    });
    for _ in 0..10 {
        for named in [&[][..], &["d"], &["d/k"]] {
            let done = user.run(&[&["env", "diff", "a", "b"], named].concat()).await;
            // Before its first write there is no config to name.
            let is_early = done.code == 3 && done.err.contains("in neither");
            assert!(done.code == 0 || is_early, "{named:?}: {done:?}");
        }
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(writer.await.expect("it does not panic") > 30, "there were changes meanwhile");
}
