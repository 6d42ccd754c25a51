//! Files and the cluster: `apply`, `diff`, `export`, `import`.

use std::{collections::BTreeMap, path::Path, process::Stdio};

use serde_json::json;

use super::{LIMITS, User};
use crate::harness::{Cluster, Options};

/// The files below a folder with their bytes.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[tokio::test]
async fn an_apply_is_one_batch_and_a_difference_is_an_exit_code() {
    let cluster = Cluster::start("cli-apply").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    let diff = user.run(&["diff", "-f", &file]).await;
    assert_eq!(diff.code, 1, "{diff:?}");
    assert!(diff.out.contains("+++ file/config limits/acme\n"), "{diff:?}");
    // Nobody reads the output: there is a difference all the same.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread =
        user.command(&["diff", "-f", &file]).stdout(writer).stdin(Stdio::null()).spawn().unwrap();
    let unread = tokio::task::spawn_blocking(move || unread.wait().unwrap()).await.unwrap();
    assert_eq!(unread.code(), Some(1));
    // 1 says that there is a difference; what could not be compared or shown says another thing.
    let absent = user.run(&["diff", "-f", "no-such-file.yaml"]).await;
    assert!(absent.code == 2 && absent.err.contains("no-such-file.yaml"), "{absent:?}");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut unwritten =
        user.command(&["diff", "-f", &file]).stdout(full).stdin(Stdio::null()).spawn().unwrap();
    let unwritten = tokio::task::spawn_blocking(move || unwritten.wait().unwrap()).await.unwrap();
    assert_eq!(unwritten.code(), Some(9));
    let none = user.run(&["export", "--dir", "exported", "--definition", "no-such-definition"]).await;
    assert!(none.code == 3 && none.err.contains("no-such-definition"), "{none:?}");
    assert_eq!(user.run(&["context", "use", "no-such-context"]).await.code, 3);
    assert_eq!(user.run(&["context", "delete", "no-such-context"]).await.code, 3);
    let tried = user.run(&["apply", "-f", &file, "--dry-run"]).await;
    assert!(tried.code == 0 && tried.out.contains("config limits/acme would be created\n"), "{tried:?}");
    assert_eq!(user.run(&["definition", "get", "limits"]).await.code, 3, "nothing is stored");
    user.ok(&["apply", "-f", &file]).await;
    let again = user.run(&["apply", "-f", &file]).await;
    assert_eq!((again.out.as_str(), again.err.as_str()), ("", "0 changed, 3 unchanged\n"));
    assert_eq!(user.run(&["diff", "-f", &file]).await.code, 0);
    // All changes of an apply have one revision.
    let of = async |key: &str| {
        user.json(&["config", "history", "limits", key]).await["results"][0]["revision"].clone()
    };
    assert_eq!(of("acme").await, of("initech").await);

    // One that can't be stored: nothing of the apply is, and the record is named.
    let wrong = LIMITS.replace("plan: free", "plan: gold").replace("1000", "2000");
    let refused = user.run_with(&["apply", "-f", "-"], &wrong).await;
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.err.contains("config limits/initech /data/plan: "), "{refused:?}");
    assert_eq!(user.json(&["config", "get", "limits", "acme"]).await["data"]["quota"]["requests"], 1000);

    // A typing error is no setting.
    for (text, expected) in [
        ("config_definition_key: x\nindex: [a]\n", "unknown members: index"),
        ("config_definition_key: x\nconfig_definition_key: y\n", ":2:1: duplicate member"),
        ("config_definition_key: limits\nconfig_key: k\ndata: {plan: 007}\n", "is not a JSON number"),
    ] {
        let refused = user.run_with(&["apply", "-f", "-"], text).await;
        assert!(refused.code == 5 && refused.err.contains(expected), "{refused:?}");
    }

    // What is changed behind the back of an apply is not overwritten: its writes are conditional.
    let other = user.write(
        "other/limits.yaml",
        &LIMITS.replace("[plan, quota.requests]", "[plan]").replace("initech", "umbrella"),
    );
    let folder = Path::new(&other).parent().unwrap().to_str().unwrap().to_owned();
    let unsure = user.run(&["apply", "-f", &folder, "--prune"]).await;
    assert!(unsure.code == 2 && unsure.err.contains("will be deleted: config limits/initech"), "{unsure:?}");
    let pruned = user.ok(&["apply", "-f", &folder, "--prune", "--yes"]).await;
    assert!(
        pruned.contains("config limits/initech deleted\n") && pruned.contains("definition limits changed\n"),
        "{pruned}"
    );
    assert_eq!(user.ok(&["config", "get", "limits", "-o", "name"]).await, "acme\numbrella\n");
    assert_eq!(user.json(&["definition", "get", "limits"]).await["indexes"], json!(["plan"]));
}

#[tokio::test]
async fn a_schema_and_the_configs_that_change_with_it_are_one_batch() {
    let cluster = Cluster::start("cli-schema").await;
    let user = User::of(&cluster);
    let file = user.write("limits.yaml", LIMITS);
    user.ok(&["apply", "-f", &file]).await;
    // `initech` would be left behind.
    let (definition, configs) = LIMITS.split_once("---").unwrap();
    let (acme, initech) = configs.split_once("---").unwrap();
    let tighter = definition.replace("[free, pro]", "[pro]");
    for flags in [&["apply", "-f", "-"][..], &["apply", "-f", "-", "--dry-run"]] {
        let refused = user.run_with(flags, &format!("{tighter}---{acme}")).await;
        assert!(refused.code == 5 && refused.err.contains("initech"), "{refused:?}");
    }
    let revision = async || user.json(&["definition", "get", "limits"]).await;
    let before = revision().await;
    // With it, neither the old schema fits what is stored afterwards nor the new one what was stored before.
    let both = format!("{tighter}---{acme}---{}", initech.replace("plan: free", "plan: pro"));
    let tried = user.run_with(&["apply", "-f", "-", "--dry-run"], &both).await;
    assert_eq!((tried.code, revision().await), (0, before), "{tried:?}");
    let done = user.run_with(&["apply", "-f", "-"], &both).await;
    assert_eq!(done.code, 0, "{done:?}");
    let history = user.json(&["definition", "history", "limits"]).await;
    let of_config = user.json(&["config", "history", "limits", "initech"]).await;
    assert_eq!(
        history["results"][0]["revision"], of_config["results"][0]["revision"],
        "one revision for both"
    );
    let wider = LIMITS.replace("[free, pro]", "[free, pro, gold]").replace("plan: free", "plan: gold");
    let wider = wider.replace("json_schema:", "unique: [quota.requests]\njson_schema:");
    let done = user.run_with(&["apply", "-f", "-"], &wider).await;
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(user.json(&["config", "get", "limits", "initech"]).await["data"]["plan"], "gold");
    let again = user.run_with(&["diff", "-f", "-"], &wider).await;
    assert_eq!(again.code, 0, "{again:?}");
}

#[tokio::test]
async fn a_unique_value_goes_from_one_config_to_another_in_one_apply() {
    let cluster = Cluster::start("cli-rename").await;
    let user = User::of(&cluster);
    let of = |key: &str| {
        format!(
            "config_definition_key: d\nindexes: [name]\nunique: [name]\n---\nconfig_definition_key: d\nconfig_key: {key}\ndata: {{name: one}}\n"
        )
    };
    assert_eq!(user.run_with(&["apply", "-f", "-"], &of("zulu")).await.code, 0);
    let renamed = user.run_with(&["apply", "-f", "-", "--prune", "--yes"], &of("alpha")).await;
    assert_eq!(renamed.code, 0, "{renamed:?}");
    assert_eq!(user.ok(&["config", "get", "d", "-o", "name"]).await, "alpha\n");

    // A definition that is gone is gone from the files, if that is asked for.
    user.ok(&["export", "--dir", "files"]).await;
    let note = cluster.root().join("files/d/README");
    std::fs::write(&note, "mine").unwrap();
    user.ok(&["definition", "create", "e"]).await;
    user.ok(&["definition", "delete", "d", "--yes"]).await;
    let told = user.run(&["export", "--dir", "files"]).await;
    assert!(told.err.contains("1 files written, 0 unchanged, 2 obsolete"), "{told:?}");
    let unsure = user.run(&["export", "--dir", "files", "--prune"]).await;
    assert!(unsure.code == 2 && unsure.err.contains("--allow-empty"), "{unsure:?}");
    let unsure = user.run(&["export", "--dir", "files", "--prune", "--max-deletes", "1"]).await;
    assert!(unsure.code == 2 && unsure.err.contains("--max-deletes 2"), "{unsure:?}");
    // A key that may read nothing lists nothing.
    let key = user.json(&["key", "create", "--name", "n", "--grant", "read:elsewhere"]).await;
    let nobody = user.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    let unsure = nobody.run(&["export", "--dir", "files", "--prune"]).await;
    assert!(unsure.code == 2 && unsure.err.contains("no file was removed"), "{unsure:?}");
    assert_eq!(files(&cluster.root().join("files")).len(), 4);
    let pruned = user.run(&["export", "--dir", "files", "--prune", "--allow-empty"]).await;
    assert!(pruned.err.contains("0 files written, 1 unchanged, 2 removed"), "{pruned:?}");
    let left = files(&cluster.root().join("files"));
    assert_eq!(left.keys().collect::<Vec<_>>(), ["d/README", "e/definition.json"]);
}

#[tokio::test]
async fn an_export_is_applied_and_exported_again_byte_for_byte() {
    let (from, to) = Cluster::start_two("cli-export", &Options::default()).await;
    let (source, target) = (User::of(&from), User::of(&to));
    let mut text = LIMITS.replace("json_schema:", "unique: [quota.requests]\njson_schema:");
    for n in 0..1200 {
        let data = format!(
            r#"{{"plan": "free", "n": {n}, "big": 123456789012345678901234567890, "z": {n}.0, "a": "é\n\u0000"}}"#
        );
        text.push_str(&format!("---\nconfig_definition_key: limits\nconfig_key: k{n}\ndata: {data}\n"));
    }
    let long = "k".repeat(255);
    text.push_str(&format!("---\nconfig_definition_key: {long}\n---\nconfig_definition_key: {long}\nconfig_key: {long}\ndata: {{}}\n"));
    let refused = source.run_with(&["apply", "-f", "-"], &text).await;
    assert!(refused.code == 2 && refused.err.contains("--split"), "{refused:?}");
    let applied = source.run_with(&["apply", "-f", "-", "--split"], &text).await;
    assert_eq!(applied.code, 0, "{}", applied.err);

    source.ok(&["export", "--dir", "one"]).await;
    let one = files(&from.root().join("one"));
    assert_eq!(one.len(), 2 + 1202 + 1);
    let folder = from.root().join("one");
    target.ok(&["apply", "-f", folder.to_str().unwrap(), "-R", "--prune", "--yes", "--split"]).await;
    target.ok(&["export", "--dir", "two"]).await;
    let two = files(&to.root().join("two"));
    assert_eq!(one.keys().collect::<Vec<_>>(), two.keys().collect::<Vec<_>>());
    assert!(one == two, "the bytes of every file are the same");

    // An import that begins again does what is left; an export writes only what differs.
    target.ok(&["config", "delete", "limits", "k7", "--yes"]).await;
    let imported = target.run(&["import", "--dir", folder.to_str().unwrap()]).await;
    assert!(
        imported.code == 0 && imported.err.starts_with("1 changed, 1204 unchanged; revision "),
        "{imported:?}"
    );
    target.ok(&["config", "delete", "limits", "k8", "--yes"]).await;
    let exported = target.run(&["export", "--dir", "two", "--prune"]).await;
    assert_eq!(exported.err, "0 files written, 1204 unchanged, 1 removed\n");
}

#[tokio::test]
async fn a_definition_is_exported_out_of_a_backup_while_no_node_runs() {
    let mut cluster = Cluster::start("cli-from-backup").await;
    let user = User::of(&cluster);
    let mut text = LIMITS.replace("json_schema:", "unique: [quota.requests]\nprotected: true\njson_schema:");
    text.push_str("---\nconfig_definition_key: limits\nconfig_key: exact\ndata: {plan: free, n: 1.50, big: 123456789012345678901234567890}\n");
    text.push_str(
        "---\nconfig_definition_key: other\n---\nconfig_definition_key: other\nconfig_key: k\ndata: {}\n",
    );
    let applied = user.run_with(&["apply", "-f", "-"], &text).await;
    assert_eq!(applied.code, 0, "{applied:?}");
    user.ok(&["export", "--dir", "live"]).await;
    let at = |name: &str| cluster.root().join(name);
    let live = files(&at("live"));
    assert!(String::from_utf8_lossy(&live["limits/definition.json"]).contains("\"protected\": true"));
    user.ok(&["backup", "--out", "whole.backup"]).await;
    let recipient = user.json(&["keygen", "identity", "--out", "identity"]).await["recipient"].clone();
    let signer = user.json(&["keygen", "signing", "--out", "signing"]).await["signer"].clone();
    let sealing = ["--recipient", recipient.as_str().unwrap(), "--signing-key", "signing"];
    user.ok(&[&["backup", "--out", "sealed.backup"], &sealing[..]].concat()).await;
    let refused = user.run(&["definition", "delete", "limits", "--yes"]).await;
    assert!(
        refused.code == 4 && refused.err.contains("concord definition protect limits --off"),
        "{refused:?}"
    );
    user.ok(&["definition", "protect", "limits", "--off"]).await;
    user.ok(&["definition", "delete", "limits", "--yes"]).await;
    let later = user.json(&["backup", "--out", "later.backup"]).await;
    assert_eq!((&later["definitions"], &later["configs"]), (&json!(1), &json!(1)), "not what is kept");
    cluster.kill_all();

    user.ok(&["export", "--from-backup", "whole.backup", "--dir", "all"]).await;
    assert!(files(&cluster.root().join("all")) == live, "the bytes of every file are the same");
    let opening = ["--identity", "identity", "--signer", signer.as_str().unwrap()];
    let sealed = ["export", "--from-backup", "sealed.backup", "--dir", "one", "--definition", "limits"];
    let refused = user.run(&sealed).await;
    assert!(refused.code != 0 && refused.err.contains("--signer"), "{refused:?}");
    user.ok(&[&sealed[..], &opening].concat()).await;
    let one = files(&cluster.root().join("one"));
    let limits: BTreeMap<_, _> = live.into_iter().filter(|(name, _)| name.starts_with("limits/")).collect();
    assert!(one == limits);
    // A definition that was deleted before the backup, and was kept.
    let kept = ["export", "--from-backup", "later.backup", "--dir", "kept", "--definition"];
    let told = user.run(&[&kept[..], &["limits"]].concat()).await;
    assert!(told.code == 0 && told.err.contains("was deleted before the backup"), "{told:?}");
    let found = files(&cluster.root().join("kept"));
    assert!(
        limits
            .iter()
            .filter(|(name, _)| name.contains("/config/"))
            .all(|(name, bytes)| found[name] == *bytes)
    );
    let none = user.run(&[&kept[..], &["no-such-definition"]].concat()).await;
    assert!(none.code == 3 && none.err.contains("no-such-definition is not in the backup"), "{none:?}");

    cluster.start_all().await;
    cluster.ready().await;
    user.ok(&["import", "--dir", "one"]).await;
    user.ok(&["export", "--dir", "again", "--definition", "limits"]).await;
    assert!(files(&cluster.root().join("again")) == limits);
}

#[tokio::test]
async fn a_secret_is_kept_by_an_export_of_a_key_that_may_not_see_it() {
    let cluster = Cluster::start("cli-secret").await;
    let root = User::of(&cluster);
    let text = r#"config_definition_key: db
json_schema: {properties: {password: {type: string, x-concord-secret: true}, port: {type: integer}}}
---
config_definition_key: db
config_key: main
data: {password: hunter2, port: 5432}
"#;
    assert_eq!(root.run_with(&["apply", "-f", "-"], text).await.code, 0);
    let key = root.ok(&["key", "create", "--name", "ci", "--grant", "read,write,define:*"]).await;
    let key: serde_json::Value = serde_json::from_str(&key).unwrap();
    let user = root.clone().with("CONCORD_API_KEY", key["api_key"].as_str().unwrap());
    user.ok(&["export", "--dir", "files"]).await;
    let path = cluster.root().join("files/db/config/main.json");
    let exported = std::fs::read_to_string(&path).unwrap();
    assert!(exported.contains("$concord-keep") && !exported.contains("hunter2"), "{exported}");
    let folder = cluster.root().join("files");
    let folder = folder.to_str().unwrap();
    assert_eq!(user.run(&["diff", "-f", folder, "-R"]).await.code, 0);
    std::fs::write(&path, exported.replace("5432", "5433")).unwrap();
    user.ok(&["apply", "-f", folder, "-R"]).await;
    let data = root.json(&["config", "get", "db", "main"]).await["data"].clone();
    assert_eq!(data, json!({"password": "hunter2", "port": 5433}));
}

/// A definition with `count` configs.
fn many(count: usize) -> String {
    let configs =
        (0..count).map(|n| format!("---\nconfig_definition_key: many\nconfig_key: k{n}\ndata: {{n: {n}}}\n"));
    format!("config_definition_key: many\n{}", configs.collect::<String>())
}

#[tokio::test]
async fn a_prune_deletes_no_more_than_was_said() {
    let cluster = Cluster::start("cli-prune").await;
    let user = User::of(&cluster);
    user.run_with(&["apply", "-f", "-"], &many(30)).await;
    let left = async || user.json(&["config", "get", "many"]).await["meta"]["total"].clone();
    assert_eq!(left().await, 30);
    let prune = ["apply", "-f", "-", "--prune", "--yes"];
    // The configs were forgotten, or most of them.
    for (files, expected) in [(many(0), "--max-deletes 30"), (many(5), "--max-deletes 25")] {
        let refused = user.run_with(&prune, &files).await;
        assert!(refused.code == 2 && refused.err.contains(expected), "{refused:?}");
        let tried = user.run_with(&[&prune[..], &["--dry-run"]].concat(), &files).await;
        assert!(tried.code == 2 && tried.out.contains("would be deleted"), "{tried:?}");
    }
    let refused = user.run_with(&[&prune[..], &["--max-deletes", "30"]].concat(), &many(0)).await;
    assert!(refused.code == 2 && refused.err.contains("--allow-empty"), "{refused:?}");
    assert_eq!(left().await, 30);
    let done = user.run_with(&[&prune[..], &["--max-deletes", "25"]].concat(), &many(5)).await;
    assert_eq!((done.code, left().await), (0, 5.into()), "{done:?}");
    let done = user.run_with(&[&prune[..], &["--allow-empty"]].concat(), &many(0)).await;
    assert_eq!((done.code, left().await), (0, 0.into()), "{done:?}");

    // A deletion can be rehearsed.
    user.run_with(&["apply", "-f", "-"], &many(2)).await;
    let tried = user.ok(&["definition", "delete", "many", "--dry-run"]).await;
    assert!(tried.contains("definition many and its 2 configs would be deleted"), "{tried}");
    user.ok(&["config", "delete", "many", "k0", "--dry-run"]).await;
    assert_eq!(left().await, 2);
}

#[tokio::test]
async fn a_difference_shows_no_secret_value() {
    let cluster = Cluster::start("cli-secrets").await;
    let user = User::of(&cluster);
    let files = |password: &str| {
        format!(
            "config_definition_key: db\njson_schema: {{properties: {{password: {{x-concord-secret: true}}}}}}\n---\nconfig_definition_key: db\nconfig_key: main\ndata: {{host: h, password: {password}}}\n"
        )
    };
    user.run_with(&["apply", "-f", "-"], &files("pw-old")).await;
    for format in [&[][..], &["-o", "json"], &["-o", "yaml"]] {
        let shown = user.run_with(&[&["diff", "-f", "-"], format].concat(), &files("pw-new")).await;
        assert!(shown.code == 1 && shown.out.contains("(secret, changed)"), "{shown:?}");
        assert!(!shown.out.contains("pw-"), "{shown:?}");
    }
    let shown = user.run_with(&["diff", "-f", "-", "--show-secrets"], &files("pw-new")).await;
    assert!(shown.out.contains("-  password: pw-old\n+  password: pw-new\n"), "{shown:?}");
    let applied = user.run_with(&["apply", "-f", "-", "-o", "json"], &files("pw-new")).await;
    assert!(applied.code == 0 && !applied.out.contains("pw-"), "{applied:?}");
    assert_eq!(user.json(&["config", "get", "db", "main"]).await["data"]["password"], "pw-new");
    let shown = user.run(&["config", "diff", "db", "main"]).await;
    assert!(
        shown.out.contains("+password: \"(secret, changed)\"\n") && !shown.out.contains("pw-"),
        "{shown:?}"
    );
}

#[tokio::test]
async fn what_is_read_for_files_is_applied_without_a_difference() {
    let cluster = Cluster::start("cli-round-trip").await;
    let user = User::of(&cluster);
    let text = "config_definition_key: a.one\n---\nconfig_definition_key: a.two\n---\nconfig_definition_key: a.one\nconfig_key: k\ndata: {n: 1.50, e: 1e22, lines: \"a\\n  b\\n\"}\n---\nconfig_definition_key: a.two\nconfig_key: k\ndata: {x: \"\\u202e\"}\n";
    let applied = user.run_with(&["apply", "-f", "-"], text).await;
    assert_eq!(applied.code, 0, "{applied:?}");
    for arguments in [&["a.one"][..], &["a.one", "k"], &["a.*"]] {
        let files = user.ok(&[&["config", "get"], arguments, &["--for-apply"]].concat()).await;
        assert!(files.contains("config_key: k\n"), "{files}");
        let same = user.run_with(&["diff", "-f", "-"], &files).await;
        assert_eq!((same.code, same.out.as_str()), (0, ""), "{files}: {same:?}");
    }
    let shown = user.ok(&["config", "get", "a.one", "k", "-o", "yaml"]).await;
    assert!(
        shown.contains("  e: 1.0e+22\n  lines: |\n    a\n      b\n") && shown.contains("  \"n\": 1.50\n"),
        "{shown}"
    );
    assert_eq!(user.ok(&["config", "get", "a.*", "-o", "name"]).await, "a.one/k\na.two/k\n");
    let refused = user.run(&["export", "--dir", "files", "-o", "yaml"]).await;
    assert!(refused.code == 2 && refused.err.contains("--for-apply"), "{refused:?}");

    // A misspelt guard is an error, and changes nothing.
    let guarded = r#"[{"op": "put_config", "config_definition_key": "a.one", "config_key": "k", "data": {}, "if_mach": "1"}]"#;
    let refused = user.run_with(&["transaction", "-f", "-"], guarded).await;
    assert!(
        refused.code == 5 && refused.err.contains("operations[0]: unknown member `if_mach`"),
        "{refused:?}"
    );
    let refused = user
        .run(&["key", "create", "--name", "n", "--grant", "read:*", "--quota", "writes_per_sec=10"])
        .await;
    assert!(refused.code == 2 && refused.err.contains("writes_per_second"), "{refused:?}");
    let checked = user
        .run_with(
            &["definition", "check", "a.one", "-f", "-"],
            r#"{"config_definition_key": "a.one", "json_shema": {"required": ["z"]}}"#,
        )
        .await;
    assert!(checked.code == 5 && checked.err.contains("json_shema"), "{checked:?}");
    assert_eq!(user.json(&["config", "get", "a.one", "k"]).await["data"]["n"].to_string(), "1.50");
}

/// A folder of files, and the plan of their changes.
async fn planned(user: &User, requests: u64) -> Vec<String> {
    let text = format!(
        "config_definition_key: plans\njson_schema: {{properties: {{requests: {{type: integer}}, password: {{x-concord-secret: true}}}}}}\n---\n\
         {{config_definition_key: plans, config_key: a, data: {{requests: {requests}, password: pw-in-the-file}}}}\n"
    );
    let file = user.write(&format!("plans-{requests}.yaml"), &text);
    let plan = format!("{file}.plan");
    let done = user.run(&["diff", "-f", &file, "--save", &plan]).await;
    assert_eq!(done.code, 1, "{done:?}");
    let plan_text = std::fs::read_to_string(&plan).unwrap();
    assert!(plan_text.contains("\"concord_plan\": 1") && !plan_text.contains("pw-"), "{plan_text}");
    ["apply", "-f", &file, "--plan", &plan].map(str::to_owned).into()
}

#[tokio::test]
async fn a_plan_does_what_was_reviewed_or_nothing() {
    let cluster = Cluster::start("cli-plans").await;
    let user = User::of(&cluster);
    let apply =
        async |command: &[String]| user.run(&command.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let refused = async |command: &[String], why: &str| {
        let before = user.run(&["config", "get", "plans", "-o", "json"]).await.out;
        let done = apply(command).await;
        assert!(done.code == 4 && done.err.contains(why) && done.err.contains("is stale"), "{why}: {done:?}");
        assert_eq!(user.run(&["config", "get", "plans", "-o", "json"]).await.out, before, "{why}");
    };
    let requests = async || user.json(&["config", "get", "plans", "a"]).await["data"]["requests"].clone();

    // The older pipeline loses, whichever comes first.
    let (older, newer) = (planned(&user, 1).await, planned(&user, 2).await);
    assert_eq!(apply(&newer).await.code, 0);
    refused(&older, "definition plans was absent, and is revision").await;
    assert_eq!(requests().await, json!(2));
    // The same plan is done once.
    refused(&newer, "definition plans was absent").await;
    let (one, other) = (planned(&user, 3).await, planned(&user, 4).await);
    let (one, other) = tokio::join!(apply(&one), apply(&other));
    assert_eq!(one.code.min(other.code), 0, "{one:?} {other:?}");
    assert_eq!(one.code.max(other.code), 4, "{one:?} {other:?}");

    // A config that the files do not change is none of the plan, unless its change would be undone.
    let plan = planned(&user, 5).await;
    user.ok(&["config", "create", "plans", "b", "--data", "{}"]).await;
    assert_eq!(apply(&plan).await.code, 0);
    let plan = planned(&user, 6).await;
    user.ok(&["config", "patch", "plans", "a", "--data", r#"{"requests": 7}"#]).await;
    refused(&plan, "config plans/a was revision").await;
    let plan = planned(&user, 8).await;
    user.ok(&["definition", "reindex", "plans", "--add", "requests"]).await;
    refused(&plan, "definition plans was revision").await;

    // The files have changed, or another plan is named.
    let plan = planned(&user, 9).await;
    let text = std::fs::read_to_string(&plan[2]).unwrap();
    user.write("plans-9.yaml", &text.replace("requests: 9", "requests: 10"));
    refused(&plan, "the files say something else").await;
    // Comments say nothing.
    user.write("plans-9.yaml", &format!("# a comment\n{text}"));
    let tried = [&plan[..], &["--dry-run".to_owned()]].concat();
    assert_eq!(apply(&tried).await.code, 0);
    assert_eq!(apply(&plan).await.code, 0);
    assert_eq!(requests().await, json!(9));
    let wrong = user.write("wrong.plan", "{}");
    let broken = user.run(&["apply", "-f", &plan[2], "--plan", &wrong]).await;
    assert!(broken.code == 2 && broken.err.contains("not a plan"), "{broken:?}");

    // A deletion is in the plan.
    let file = user.write("none.yaml", "config_definition_key: plans\nindexes: [requests]\njson_schema: {properties: {requests: {type: integer}, password: {x-concord-secret: true}}}\n");
    let save = ["diff", "-f", &file, "--prune", "--save", "prune.plan"];
    assert_eq!(user.run(&save).await.code, 1);
    user.ok(&["config", "create", "plans", "c", "--data", "{}"]).await;
    let prune: Vec<String> =
        ["apply", "-f", &file, "--plan", "prune.plan", "--yes", "--allow-empty"].map(str::to_owned).into();
    refused(&prune, "config plans/c would be deleted as well").await;
    assert_eq!(user.run(&save).await.code, 1);
    assert_eq!(apply(&prune).await.code, 0);
    assert_eq!(user.ok(&["config", "get", "plans", "-o", "name"]).await, "");
}

#[tokio::test]
async fn files_are_brought_to_the_state_of_the_cluster_in_place() {
    let cluster = Cluster::start("cli-update-files").await;
    let user = User::of(&cluster);
    let schema = "config_definition_key: db   # databases
json_schema:
  properties: {password: {x-concord-secret: true}}
---
# the main one
config_definition_key: db
config_key: main
data:
  host: h1   # of the network team
  password: {$concord-env: CONCORD_SECRET_DB}
";
    let list = "[{\"config_definition_key\": \"db\", \"config_key\": \"spare\", \"data\": {\"host\": \"h9\"}}] // spare";
    let only_here = "config_definition_key: db\nconfig_key: gone\ndata: {host: h}\n";
    let path = user.write("files/sub/db.yaml", schema);
    user.write("files/list.json", list);
    let user = user.with("CONCORD_SECRET_DB", "pw");
    user.ok(&["apply", "-R", "-f", "files"]).await;
    user.write("files/gone.yaml", only_here);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let same = user.run(&["export", "--update", "files"]).await;
    assert!(same.code == 0 && same.out.is_empty(), "{same:?}");
    assert!(same.err.contains("gone.yaml:1: left as it is: the cluster has no config db/gone"), "{same:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), schema);

    let new = "{\"host\": \"h2\", \"password\": \"other\", \"ports\": [1, 2]}";
    user.ok(&["config", "put", "db", "main", "--data", new]).await;
    user.ok(&["config", "patch", "db", "spare", "--data", "{\"host\": \"h8\"}"]).await;
    let updated = user.json(&["export", "--update", "files"]).await;
    assert_eq!(updated["meta"]["updated"], 2, "{updated}");
    let expected = schema.replace("h1", "h2") + "  ports:\n    - 1\n    - 2\n";
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    let found = files(&user.home.join("files"));
    assert_eq!(found["list.json"], list.replace("h9", "h8").into_bytes());
    assert_eq!(found["gone.yaml"], only_here.as_bytes());
    assert_eq!(found.len(), 3, "{found:?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o640);
    // All but the secret value is equal.
    let diff = user.clone().with("CONCORD_SECRET_DB", "other").run(&["diff", "-f", &path]).await;
    assert_eq!(diff.code, 0, "{diff:?}");

    // A file that can't be read: no other one is changed.
    user.ok(&["config", "patch", "db", "spare", "--data", "{\"host\": \"h7\"}"]).await;
    user.write("files/wrong.yaml", "config_definition_key: db\nkey: x\n");
    assert_eq!(user.run(&["export", "--update", "files"]).await.code, 5);
    assert_eq!(files(&user.home.join("files"))["list.json"], list.replace("h9", "h8").into_bytes());
    for arguments in
        [&["export"][..], &["export", "--update", "files", "--dir", "d"], &["export", "--update", "-"]]
    {
        assert_eq!(user.run(arguments).await.code, 2, "{arguments:?}");
    }
}
