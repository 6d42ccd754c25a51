//! Each command in each output format.

use std::collections::BTreeSet;

use concord_identity::testing::TestIssuer;
use saphyr_parser::Parser;
use serde_json::{Value, json};

use super::{LIMITS, User, revision};
use crate::harness::{Cluster, clock::unix_s};

const FORMATS: [&str; 8] = ["table", "wide", "markdown", "json", "jsonl", "yaml", "name", "jsonpath={.}"];

/// Commands that print no data, or that another test runs to their end.
const OTHERS: [&str; 38] = [
    "agent",
    "audit-accept",
    "change-abort",
    "change-advance",
    "change-approve",
    "change-keep",
    "change-pause",
    "change-reject",
    "change-report",
    "change-resume",
    "change-review",
    "change-watch",
    "change-withdraw",
    "check",
    "gate",
    "identity-end-sessions",
    "identity-rm",
    "logout",
    "role-rm",
    "session-end",
    "cluster-add",
    "cluster-init",
    "cluster-promote",
    "cluster-remove",
    "cluster-replace",
    "cluster-transfer-leader",
    "cluster-update",
    "cluster-vouch",
    "completions",
    "demo",
    "exec",
    "man",
    "mcp",
    "notify",
    "recover",
    "recover-root",
    "schema-export",
    "serve",
];
/// Groups, and commands that are another name of one that is here.
const GROUPS: [&str; 22] = [
    "audit",
    "cert",
    "change",
    "cluster",
    "config",
    "context",
    "definition",
    "env",
    "flag",
    "get",
    "help",
    "identity",
    "key",
    "role",
    "session",
    "config-apply",
    "definition-apply",
    "definition-diff",
    "definition-explain",
    "get-config",
    "get-definition",
    "schema",
];

/// Earlier spellings of commands of `cluster`: no help and no manual page shows them.
const HIDDEN: [(&str, &[&str]); 8] = [
    ("init", &["cluster", "init"]),
    ("status", &["cluster", "status"]),
    ("member add", &["cluster", "add"]),
    ("member promote", &["cluster", "promote"]),
    ("member replace", &["cluster", "replace"]),
    ("member update", &["cluster", "update"]),
    ("member remove", &["cluster", "remove"]),
    ("transfer", &["cluster", "transfer-leader"]),
];

/// The commands, their name as that of their manual page, and what each one may return. `FORMAT` in an argument is a
/// text of its own for each format, so that nothing is made twice.
const COMMANDS: [(&str, &[&str], i32); 88] = [
    ("apply", &["apply", "-f", "limits.yaml"], 0),
    ("changes", &["changes", "--since", "1h"], 0),
    ("undo", &["undo", "REVISION", "--dry-run"], 0),
    ("audit-anchors", &["audit", "anchors"], 0),
    ("audit-export", &["audit", "export", "--url", "URL"], 0),
    ("audit-list", &["audit", "list"], 0),
    ("audit-tail", &["audit", "tail", "--url", "URL"], 0),
    ("audit-verify", &["audit", "verify", "AUDIT"], 0),
    ("backup", &["backup", "--out", "FORMAT.backup"], 0),
    ("bench", &["bench", "--seconds", "1", "--clients", "2", "--configs", "10"], 0),
    ("cert-ca", &["cert", "ca", "--out", "ca-FORMAT"], 0),
    ("cert-node", &["cert", "node", "7", "--ca", "ca", "--out", "node-FORMAT"], 0),
    ("cert-show", &["cert", "show", "ca/ca.pem"], 0),
    ("cluster-status", &["cluster", "status"], 0),
    ("cluster-watch", &["cluster", "watch", "--count", "1"], 0),
    ("top", &["top", "definitions", "--seconds", "0"], 0),
    ("config-create", &["config", "create", "limits", "new", "--data", r#"{"plan": "pro"}"#, "--dry-run"], 0),
    ("config-diff", &["config", "diff", "limits", "acme"], 1),
    ("config-edit", &["config", "edit", "limits", "acme"], 0),
    ("config-get", &["config", "get", "limits"], 0),
    ("config-history", &["config", "history", "limits", "acme"], 0),
    ("config-patch", &["config", "patch", "limits", "acme", "--data", r#"{"n": 1}"#], 0),
    ("config-put", &["config", "put", "limits", "FORMAT", "--upsert", "--data", r#"{"plan": "pro"}"#], 0),
    ("config-delete", &["config", "delete", "limits", "FORMAT", "--yes"], 0),
    ("config-rollback", &["config", "rollback", "limits", "initech", "--to", "REVISION"], 0),
    ("config-report", &["config", "report", "limits", "acme", "--state", "failed", "--reader", "FORMAT"], 0),
    ("config-readers", &["config", "readers", "limits", "acme"], 0),
    ("config-validate", &["config", "validate", "limits", "--data", r#"{"plan": "pro"}"#], 0),
    ("config-watch", &["config", "watch", "limits", "--from", "REVISION", "--count", "1"], 0),
    ("context-list", &["context", "list"], 0),
    ("definition-check", &["definition", "check", "limits", "-f", "tighter.yaml"], 1),
    ("definition-create", &["definition", "create", "d.FORMAT"], 0),
    ("definition-delete", &["definition", "delete", "d.FORMAT", "--yes"], 0),
    ("definition-get", &["definition", "get", "--deleted"], 0),
    ("definition-undelete", &["definition", "undelete", "d.FORMAT"], 0),
    ("definition-protect", &["definition", "protect", "d.FORMAT"], 0),
    ("definition-get", &["definition", "get"], 0),
    ("definition-history", &["definition", "history", "limits"], 0),
    ("definition-reindex", &["definition", "reindex", "limits"], 0),
    ("diff", &["diff", "-f", "other.yaml"], 1),
    ("flag-list", &["flag", "list"], 0),
    ("flag-get", &["flag", "get", "beta"], 0),
    ("flag-on", &["flag", "on", "beta", "--dry-run"], 0),
    ("flag-off", &["flag", "off", "beta"], 0),
    ("flag-disable", &["flag", "disable", "beta"], 0),
    ("flag-enable", &["flag", "enable", "beta"], 0),
    ("flag-eval", &["flag", "eval", "beta"], 0),
    ("env-set", &["env", "set", "FORMAT"], 0),
    ("env-diff", &["env", "diff", "one", "two"], 1),
    ("promote", &["promote", "--from", "one", "--to", "two", "--dry-run"], 0),
    ("freeze", &["freeze", "FORMAT", "--for", "1h", "--reason", "all formats"], 0),
    ("env-list", &["env", "list"], 0),
    ("env-get", &["env", "get", "yaml"], 0),
    ("unfreeze", &["unfreeze", "FORMAT"], 0),
    ("env-rm", &["env", "rm", "FORMAT", "--yes"], 0),
    ("change-list", &["change", "list"], 0),
    ("change-show", &["change", "show", "CHANGE"], 0),
    ("change-rebase", &["change", "rebase", "CHANGE"], 0),
    // Once it is applied, it is told again, and so is how it was taken back.
    ("change-apply", &["change", "apply", "CHANGE", "--yes"], 0),
    ("change-revert", &["change", "revert", "CHANGE", "--yes", "--bypass", "formats"], 0),
    ("change-create", &["change", "create", "FORMAT", "-f", "operations.yaml"], 0),
    ("explain", &["explain", "limits.plan"], 0),
    ("export", &["export", "--dir", "files"], 0),
    ("import", &["import", "--dir", "files"], 0),
    ("identity-set", &["identity", "set", "ci", "-f", "provider.json"], 0),
    ("identity-get", &["identity", "get", "ci"], 0),
    ("identity-list", &["identity", "list"], 0),
    ("role-set", &["role", "set", "writers", "-f", "role.json"], 0),
    ("identity-try", &["identity", "try", "ci", "--token-file", "token"], 0),
    ("role-get", &["role", "get", "writers"], 0),
    ("role-list", &["role", "list"], 0),
    ("login", &["login", "--provider", "ci", "--token-file", "token"], 0),
    ("session-list", &["session", "list"], 0),
    ("key-attest", &["key", "attest", "KEY", "--yes"], 0),
    ("key-change", &["key", "change", "KEY", "--name", "FORMAT"], 0),
    ("key-create", &["key", "create", "--name", "FORMAT", "--grant", "read:*"], 0),
    ("key-get", &["key", "get", "KEY"], 0),
    ("key-list", &["key", "list"], 0),
    ("key-rotate", &["key", "rotate", "KEY", "--grace-s", "60"], 0),
    ("keygen", &["keygen", "signing", "--out", "signing.FORMAT"], 0),
    ("openapi", &["openapi"], 0),
    ("probe", &["probe", "ready"], 0),
    (
        "restore",
        &["restore", "--from", "one.backup", "--data-dir", "data.FORMAT", "--member", "1=a:1@b:2"],
        0,
    ),
    ("status", &["status"], 0),
    ("transaction", &["transaction", "-f", "read.yaml"], 0),
    ("plan", &["plan", "--configs", "1000", "--bytes", "300"], 0),
    ("verify", &["verify", "one.backup"], 0),
    ("version", &["version"], 0),
];

/// What does not fit a place of a table above: what it needs, or what it leaves.
const LAST: [(&str, &[&str], i32); 2] =
    [("key-revoke", &["key", "revoke", "KEY", "--yes"], 0), ("whoami", &["whoami"], 0)];

fn filled(argument: &str, format: &str, values: &[(&str, String)]) -> String {
    let short = format.split('=').next().unwrap_or(format);
    let mut text = argument.replace("FORMAT", short);
    for (name, value) in values {
        text = text.replace(name, value);
    }
    text
}

/// What each format promises of the output.
fn check(format: &str, out: &str) -> Result<(), String> {
    let is_json =
        |text: &str| serde_json::from_str::<Value>(text).map(drop).map_err(|error| error.to_string());
    // A stream has a document for each record.
    let documents = |text: &str| {
        let mut all = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        all.try_for_each(|one| one.map(drop).map_err(|error| error.to_string()))
    };
    match format {
        "json" | "jsonpath={.}" if out.trim().is_empty() => Err("nothing is printed".into()),
        // A table, or a sentence.
        "markdown" => match out.lines().any(|line| line.starts_with('|') && !line.ends_with('|')) {
            true => Err("a row does not end".into()),
            false => Ok(()),
        },
        "json" => documents(out),
        "jsonl" => out.lines().try_for_each(is_json),
        "jsonpath={.}" => out.lines().next().map_or(Ok(()), |line| {
            // The whole is one line of JSON, or a text.
            if line.starts_with(['{', '[']) { is_json(line) } else { Ok(()) }
        }),
        "yaml" => {
            Parser::new_from_str(out).try_for_each(|event| event.map(drop).map_err(|error| error.to_string()))
        }
        "name" => match out.lines().any(|line| line.contains(['{', '['])) {
            true => Err("a name is no record".into()),
            false => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Writes a provider, a role and the token of a member.
fn write_identity(user: &User) {
    let issuer = TestIssuer::new("one");
    user.write("provider.json", &issuer.document("https://ci.example.com").to_string());
    let member = json!({ "provider": "ci", "match": { "environment": ["prod"] } });
    let grants = json!([{ "verbs": ["read"], "definitions": ["*"] }]);
    user.write("role.json", &json!({ "grants": grants, "members": [member], "session_s": 600 }).to_string());
    user.write("token", &issuer.token("https://ci.example.com", "job", "prod", unix_s()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_command_prints_each_format() {
    let cluster = Cluster::start("cli-formats").await;
    let user = User::of(&cluster).with("EDITOR", "true");
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    user.write("other.yaml", &LIMITS.replace("1000", "2000"));
    user.write(
        "tighter.yaml",
        "properties: {plan: {const: pro}, quota: {properties: {requests: {type: integer}}}}",
    );
    user.write("read.yaml", "- {op: get_config, config_definition_key: limits, config_key: acme}\n");
    user.write(
        "operations.yaml",
        "- {op: patch_config, config_definition_key: limits, config_key: acme, patch: {n: 6}}\n",
    );
    let changed = revision(&user.ok(&["config", "patch", "limits", "initech", "--data", "{}"]).await);
    user.ok(&["config", "patch", "limits", "acme", "--data", r#"{"n": 0}"#]).await;
    for definition in ["one.x", "two.x"] {
        user.ok(&["definition", "create", definition]).await;
    }
    user.ok(&["config", "create", "one.x", "k", "--data", "{}"]).await;
    user.ok(&["definition", "create", "flags"]).await;
    let flag = r#"{"state": "ENABLED", "variants": {"on": true, "off": false}, "defaultVariant": "off"}"#;
    user.ok(&["config", "create", "flags", "beta", "--data", flag]).await;
    user.ok(&["cert", "ca", "--out", "ca"]).await;
    write_identity(&user);
    user.ok(&["backup", "--out", "one.backup"]).await;
    let key =
        user.json(&["key", "create", "--name", "x", "--person", "ada", "--grant", "read:*"]).await["key_id"]
            .clone();
    let proposed =
        user.json(&["config", "patch", "limits", "acme", "--data", r#"{"n": 5}"#, "--propose", "five"]).await;
    let change = proposed["change_id"].as_str().unwrap().to_owned();
    // Each node has an audit log of its own.
    let url = format!("http://{}", cluster.nodes[0].api_addr());
    let audit = user.write("audit.jsonl", &user.ok(&["audit", "export", "--url", &url]).await);
    let key = key.as_str().unwrap().to_owned();
    let values = [("REVISION", changed), ("CHANGE", change), ("KEY", key), ("AUDIT", audit), ("URL", url)];
    for (name, arguments, code) in COMMANDS.iter().chain(&LAST) {
        for format in FORMATS {
            // A key is revoked once.
            if *name == "key-revoke" && format != "wide" {
                continue;
            }
            // Its files are JSON, which `-o yaml` would seem to change.
            if *name == "export" && format == "yaml" {
                continue;
            }
            let mut line: Vec<String> =
                arguments.iter().map(|argument| filled(argument, format, &values)).collect();
            line.extend(["-o".to_owned(), format.to_owned()]);
            let words: Vec<&str> = line.iter().map(String::as_str).collect();
            let done = user.run(&words).await;
            assert_eq!(done.code, *code, "{words:?}: {done:?}");
            check(format, &done.out).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", done.out));
        }
    }
}

#[tokio::test]
async fn no_command_is_left_out() {
    let home = crate::harness::fresh_directory("cli-all");
    let user = User::new(home.path());
    user.ok(&["man", "--dir", "pages"]).await;
    let pages = std::fs::read_dir(home.path().join("pages")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let names = names.filter_map(|name| Some(name.strip_prefix("concord-")?.strip_suffix(".1")?.to_owned()));
    // What prints nothing: contexts that are set.
    let silent = ["context-set", "context-use", "context-delete"];
    let known: BTreeSet<&str> = COMMANDS.iter().chain(&LAST).map(|(name, ..)| *name).collect();
    let known: BTreeSet<&str> = known.into_iter().chain(OTHERS).chain(GROUPS).chain(silent).collect();
    let real: BTreeSet<String> = names.filter(|name| !name.contains("help")).collect();
    let missing: Vec<&String> = real.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} are in no list of this file");
    let is_shown = |name: &str| name != "help" && HIDDEN.iter().all(|(hidden, _)| *hidden != name);
    let gone: Vec<&&str> = known.iter().filter(|name| is_shown(name) && !real.contains(**name)).collect();
    assert!(gone.is_empty(), "{gone:?} are no commands any more");
}

#[tokio::test]
async fn earlier_spellings_take_the_arguments_of_the_commands_of_cluster() {
    let home = crate::harness::fresh_directory("cli-hidden");
    let user = User::new(home.path());
    let arguments = |help: &str| help.split_once("\n\n").map(|(_, rest)| rest.to_owned());
    let without_usage = |help: &str| {
        let lines = help.lines().filter(|line| !line.starts_with("Usage: "));
        lines.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    for (old, new) in HIDDEN.iter().filter(|(old, _)| *old != "status") {
        let words: Vec<&str> = old.split(' ').chain(["--help"]).collect();
        let old_help = user.ok(&words).await;
        let new_help = user.ok(&[*new, &["--help"]].concat()).await;
        let of = |help: &str| arguments(&without_usage(help));
        assert_eq!(of(&old_help), of(&new_help), "{old}");
        assert!(old_help.contains(&format!("Usage: concord {old} ")), "{old_help}");
    }
    let all = user.ok(&["--help"]).await;
    let shown: Vec<&str> =
        all.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    for (old, _) in HIDDEN {
        assert!(!shown.contains(&old.split(' ').next().unwrap()), "{old}: {all}");
    }
}
