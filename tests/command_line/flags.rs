//! `concord flag`: flags are switched for everybody and with their rule, proposed, and evaluated as programs do.

use serde_json::json;

use super::{User, revision};
use crate::harness::Cluster;

const RULE: &str = r#"{"targeting": {"if": [{"==": [{"var": "country"}, "de"]}, "on", {"fractional": [["on", 20], ["off", 80]]}]}}"#;

async fn flags(name: &str) -> (Cluster, User) {
    let cluster = Cluster::start(name).await;
    let user = User::of(&cluster);
    user.ok(&["definition", "create", "prod.flags"]).await;
    let flag = r#"{"state": "ENABLED", "variants": {"on": true, "off": false}, "defaultVariant": "off", "owner": 7.0}"#;
    user.ok(&["config", "create", "prod.flags", "new-checkout", "--data", flag]).await;
    let price = r#"{"state": "ENABLED", "variants": {"low": 1.50, "high": 12345678901234567890123}, "defaultVariant": "high"}"#;
    user.ok(&["config", "create", "prod.flags", "price", "--data", price]).await;
    user.ok(&["config", "create", "prod.flags", "shared~", "--data", r#"{"$evaluators": {}}"#]).await;
    (cluster, user.with("CONCORD_ENVIRONMENT", "prod"))
}

async fn data(user: &User) -> serde_json::Value {
    user.json(&["flag", "get", "new-checkout"]).await["data"].clone()
}

#[tokio::test]
async fn a_boolean_flag_is_switched_for_everybody_and_keeps_what_it_has() {
    let (_cluster, user) = flags("cli-flags").await;
    let listed = user.ok(&["flag", "list"]).await;
    let lines: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(lines, [["FLAG", "SERVES"], ["new-checkout", "off"], ["price", "high"]]);
    assert_eq!(user.json(&["flag", "list"]).await["meta"], json!({ "total": 2 }));

    let done = user.ok(&["flag", "on", "new-checkout", "--dry-run"]).await;
    assert_eq!(done, "config flags/new-checkout would be turned on\n");
    let done = user.ok(&["flag", "on", "new-checkout", "--reason", "launch"]).await;
    assert!(done.starts_with("config flags/new-checkout turned on  revision "), "{done}");
    let expected =
        r#"{"state":"ENABLED","variants":{"on":true,"off":false},"defaultVariant":"on","owner":7.0}"#;
    assert_eq!(user.ok(&["flag", "get", "new-checkout", "-o", "jsonpath={.data}"]).await.trim(), expected);
    let again = user.ok(&["flag", "on", "new-checkout"]).await;
    assert_eq!(again, "nothing was changed: config flags/new-checkout is turned on already\n");
    assert!(user.ok(&["changes", "flags", "--limit", "1"]).await.contains("launch"));

    // Disabled is not off: a program then uses its own default.
    user.ok(&["flag", "disable", "new-checkout"]).await;
    let shown = user.ok(&["flag", "get", "new-checkout"]).await;
    assert!(shown.contains("serves:          the program's default\n"), "{shown}");
    assert!(
        shown.contains("state:           DISABLED\n") && shown.contains("default variant: on\n"),
        "{shown}"
    );
    let evaluated = user.ok(&["flag", "eval", "new-checkout"]).await;
    assert!(evaluated.contains("(the program's default)") && evaluated.contains("DISABLED"), "{evaluated}");
    user.ok(&["flag", "enable", "new-checkout"]).await;
    assert_eq!(data(&user).await["state"], "ENABLED");
    user.ok(&["flag", "disable", "new-checkout"]).await;
    user.ok(&["flag", "off", "new-checkout"]).await;
    let found = data(&user).await;
    assert_eq!((&found["state"], &found["defaultVariant"]), (&json!("ENABLED"), &json!("off")));

    let number = user.run(&["flag", "on", "price"]).await;
    assert!(
        number.code == 5 && number.err.contains("no variant of the flag has the value `true`"),
        "{number:?}"
    );
    let absent = user.run(&["flag", "on", "absent"]).await;
    assert!(absent.code == 3 && absent.err.contains("prod.flags/absent"), "{absent:?}");
    let elsewhere = user.run(&["flag", "list", "--env", "default"]).await;
    assert_eq!(elsewhere.code, 3, "{elsewhere:?}");
    let named =
        user.ok(&["flag", "list", "--env", "default", "--definition", "prod.flags", "-o", "name"]).await;
    assert_eq!(named, "new-checkout\nprice\n");
}

#[tokio::test]
async fn a_flag_with_a_rule_is_switched_only_when_it_is_said_what_becomes_of_the_rule() {
    let (_cluster, user) = flags("cli-flags-rule").await;
    user.ok(&["config", "patch", "flags", "new-checkout", "--data", RULE]).await;
    let unsaid = user.run(&["flag", "on", "new-checkout"]).await;
    assert!(unsaid.code == 2 && unsaid.err.contains("--drop-rule"), "{unsaid:?}");
    let both = user.run(&["flag", "on", "new-checkout", "--drop-rule", "--keep-rule"]).await;
    assert_eq!(both.code, 2, "{both:?}");
    assert_eq!(data(&user).await["defaultVariant"], "off");

    let kept = user.run(&["flag", "on", "new-checkout", "--keep-rule"]).await;
    assert!(kept.code == 0 && kept.err.contains("still decides"), "{kept:?}");
    let found = data(&user).await;
    assert!(found["defaultVariant"] == "on" && found["targeting"].is_object(), "{found}");
    assert!(user.ok(&["flag", "list"]).await.contains("by its rule, else on"));

    let dropped = revision(&user.ok(&["flag", "off", "new-checkout", "--drop-rule"]).await);
    let found = data(&user).await;
    assert!(found["defaultVariant"] == "off" && found.get("targeting").is_none(), "{found}");
    user.ok(&["undo", &dropped, "--yes"]).await;
    assert!(data(&user).await["targeting"].is_object());
}

#[tokio::test]
async fn flags_are_evaluated_for_one_user_as_programs_evaluate_them() {
    let (_cluster, user) = flags("cli-flags-eval").await;
    user.ok(&["config", "patch", "flags", "new-checkout", "--data", RULE]).await;
    let flag =
        user.json(&["flag", "eval", "new-checkout", "--for", "ada", "--attribute", "country=de"]).await;
    let expected =
        json!({ "key": "new-checkout", "value": true, "reason": "TARGETING_MATCH", "variant": "on" });
    assert_eq!(flag, expected);
    let shown = user.ok(&["flag", "eval", "new-checkout", "--attribute", "country:=\"fr\""]).await;
    let cells: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(cells, ["FLAG", "VALUE", "VARIANT", "REASON", "new-checkout", "false", "off", "DEFAULT"]);
    let all = user.json(&["flag", "eval", "--all", "--for", "ada"]).await;
    assert_eq!(all["results"][1]["key"], "price", "{all}");
    assert_eq!(all["results"][1]["value"].to_string(), "12345678901234567890123");
    assert!(all.get("eventStreams").is_none() && all["meta"] == json!({ "total": 2 }), "{all}");

    let absent = user.run(&["flag", "eval", "absent", "--for", "ada"]).await;
    assert!(absent.code == 3 && absent.err.contains("concord flag list"), "{absent:?}");
    user.ok(&["config", "put", "flags", "price", "--data", r#"{"state": "?", "variants": {}}"#]).await;
    let broken = user.run(&["flag", "eval", "price"]).await;
    assert!(broken.code == 5 && broken.err.contains("`state` must be"), "{broken:?}");
    for wrong in [
        &["flag", "eval"][..],
        &["flag", "eval", "price", "--all"],
        &["flag", "eval", "price", "--attribute", "x"],
    ] {
        assert_eq!(user.run(wrong).await.code, 2, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_switch_is_proposed_where_an_environment_takes_change_requests_only() {
    let (_cluster, user) = flags("cli-flags-propose").await;
    user.ok(&["env", "set", "prod", "--direct", "refuse", "--approvals", "0"]).await;
    let refused = user.run(&["flag", "on", "new-checkout"]).await;
    assert!(refused.code == 4 && refused.err.contains("--propose TITLE"), "{refused:?}");
    let change = user.json(&["flag", "on", "new-checkout", "--propose", "launch"]).await;
    let id = change["change_id"].as_str().unwrap();
    assert_eq!(data(&user).await["defaultVariant"], "off");
    let shown = user.ok(&["change", "show", id]).await;
    assert!(shown.contains(r#"/defaultVariant: "off" -> "on""#), "{shown}");
    user.ok(&["change", "apply", id, "--yes"]).await;
    assert_eq!(data(&user).await["defaultVariant"], "on");
    user.ok(&["env", "rm", "prod", "--yes", "--bypass", "the test is over"]).await;
}
