//! `concord import --from`: the exports of other stores, value by value, as files that a cluster takes.

use std::{collections::BTreeMap, fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{Done, User};
use crate::harness::Cluster;

const EXPORTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command_line/exports");

/// A user without a cluster.
fn alone() -> (tempfile::TempDir, User) {
    let home = tempfile::tempdir().expect("a directory can be made");
    let user = User::new(home.path());
    (home, user)
}

fn report(done: &Done) -> Vec<String> {
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let results = report["results"].as_array().expect("it is a list");
    let line = |finding: &Value| {
        let mark = if finding["left_out"] == true { "!" } else { "" };
        let text = |name: &str| finding[name].as_str().expect("it is a text").to_owned();
        let at = text("at").replace(&format!("{EXPORTS}/"), "");
        format!("{mark}{} {at}", text("code"))
    };
    results.iter().map(line).collect()
}

/// The file of a config.
fn written(home: &Path, out: &str, key: &str) -> String {
    let path = home.join(out).join(format!("settings/config/{key}.yaml"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The keys and the bytes of an export.
fn pairs(kind: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = fs::read_to_string(format!("{EXPORTS}/{kind}.json")).expect("it can be read");
    let export: Value = serde_json::from_str(&text).expect("it is JSON");
    let decoded = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).expect("it is base64");
    let found = if kind == "etcd" { &export["kvs"] } else { &export };
    let pair = |pair: &Value| {
        let key = &pair["key"];
        let key = if kind == "etcd" { decoded(key) } else { key.as_str().unwrap_or_default().into() };
        (key, decoded(&pair["value"]))
    };
    found.as_array().expect("it is a list").iter().map(pair).collect()
}

/// Where a key of the export is in the cluster: the config, and the path to the value.
fn place(key: &str) -> (&str, Vec<&str>) {
    match key {
        "/shop/db/host" => ("shop~2", vec!["db", "host"]),
        "team a/x" => ("team-a~2", vec!["x"]),
        "café/name" => ("caf-", vec!["name"]),
        "shop/level" => ("shop", vec!["level", "_value"]),
        _ => match key.split_once('/') {
            None => ("default", vec![key]),
            Some((config, field)) => (config, field.split('/').collect()),
        },
    }
}

#[tokio::test]
async fn each_value_of_a_real_etcd_and_a_real_consul_arrives() {
    let cluster = Cluster::start("cli-moving").await;
    let user = User::of(&cluster);
    for kind in ["etcd", "consul"] {
        let from = format!("{EXPORTS}/{kind}.json");
        let arguments = ["import", "--from", kind, &from, "--out", kind, "--definition", kind, "-o", "json"];
        let done = user.run(&arguments).await;
        // The lease of a key, or its flags.
        assert!(
            done.code == 8 && done.err.contains("something of the source is in no file: 1 line"),
            "{done:?}"
        );
        let mut expected: Vec<&str> = [
            "renamed team a",
            "renamed caf\u{e9}",
            "value_and_folder shop/level/sql",
            "ambiguous /broken",
            "ambiguous /zip",
            "ambiguous /timeout",
            "ambiguous /legacy",
            "ambiguous /big",
            "ambiguous /version",
            "mixed /version",
            "binary /icon",
            "empty /empty",
            "secret /db/password",
            "secret /url",
        ]
        .into();
        expected.extend(match kind {
            "etcd" => &["!metadata services/one", "renamed raw/\u{fffd}\u{fffd}", "renamed /shop"][..],
            _ => &["!metadata shop/flagged", "skipped folder/"],
        });
        let mut found = report(&done);
        found.sort();
        expected.sort_unstable();
        assert_eq!(found, expected);

        assert!(user.ok(&["check", kind]).await.starts_with("valid: 1 definition, "));
        user.ok(&["apply", "-R", "-f", kind]).await;
        let configs = user.json(&["config", "get", kind]).await;
        let configs = configs["results"].as_array().expect("it is a list").iter();
        let stored: BTreeMap<&str, &Value> =
            configs.map(|config| (config["config_key"].as_str().expect("a key"), &config["data"])).collect();
        let mut values = 0;
        for (key, bytes) in pairs(kind) {
            let key = String::from_utf8_lossy(&key).into_owned();
            if key == "folder/" {
                continue;
            }
            let (config, path) = place(&key);
            let found = path.iter().fold(stored[config], |value, name| &value[*name]);
            let expected = match String::from_utf8(bytes) {
                Ok(text) if matches!(found, Value::Object(_)) => {
                    serde_json::from_str(&text).expect("it is JSON")
                }
                Ok(text) if found.is_string() => text.into(),
                // A number and a boolean are what the source has written, digit by digit.
                Ok(text) => {
                    assert_eq!(found.to_string(), text, "{key}");
                    found.clone()
                }
                Err(error) => STANDARD.encode(error.as_bytes()).into(),
            };
            assert_eq!(*found, expected, "{key}");
            values += 1;
        }
        assert_eq!(values, pairs(kind).len() - usize::from(kind == "consul"));
        let typed = [("/db/port", json!(5432)), ("/checkout", json!(true)), ("/db/ratio", json!(0.75))];
        for (path, value) in typed.iter().chain(&[("/version", json!("1.10")), ("/zip", json!("00750"))]) {
            assert_eq!(stored["shop"].pointer(path), Some(value), "{path}");
        }
        let definition = user.json(&["definition", "get", kind]).await;
        let schema = &definition["json_schema"]["properties"];
        // The etcd has a key `/shop/db/host`, too.
        let required = if kind == "etcd" { json!(["host"]) } else { json!(["host", "password", "port"]) };
        assert_eq!(schema["db"]["required"], required);
        assert_eq!(schema["icon"], json!({"type": "string", "contentEncoding": "base64"}));
    }
    // Nothing is written a second time.
    let from = format!("{EXPORTS}/etcd.json");
    let done = user.run(&["import", "--from", "etcd", &from, "--out", "etcd"]).await;
    assert!(done.code == 2 && done.err.contains("a new or an empty directory"), "{done:?}");
    // And an import of an export is what it was.
    let done = user.run(&["import", "--dir", "etcd"]).await;
    assert!(done.code == 0 && done.err.contains("0 changed"), "{done:?}");
}

#[tokio::test]
async fn an_export_that_is_not_whole_is_reported() {
    let (home, user) = alone();
    let part = format!("{EXPORTS}/etcd-part.json");
    let done = user.run(&["import", "--from", "etcd", &part, "--out", "out", "-o", "json"]).await;
    assert_eq!(done.code, 8, "{done:?}");
    assert!(report(&done).contains(&"!unread etcd-part.json".to_owned()), "{done:?}");
    for (kind, text, code, message) in [
        ("consul", "{}", 5, "no output of `consul kv export`"),
        ("consul", r#"[{"key": "a", "value": "?"}]"#, 5, "is no base64"),
        ("consul", "[]", 5, "no config was found"),
        ("etcd", "[", 5, "no output of `etcdctl get -w json`"),
        ("yaml", "a: [1", 5, "input:"),
        ("nacos", "no zip", 5, "neither a folder nor a zip file"),
        ("dotenv", "A=\u{0}", 0, ""),
    ] {
        let path = user.write("input", text);
        let out = format!("out-{kind}-{code}-{}", text.len());
        let done = user.run(&["import", "--from", kind, &path, "--out", &out]).await;
        assert!(done.code == code && done.err.contains(message), "{kind}: {done:?}");
        assert_eq!(home.path().join(out).exists(), code == 0, "{kind}");
    }
    for (arguments, message) in [
        (&["--from", "yaml", "input"][..], "--out <DIR>"),
        (&["--from", "yaml", "--out", "x"], "<PATH>"),
        (&["--out", "x", "input"], "--from"),
        (&[], "--dir <DIR>"),
        (&["--dir", "x", "--from", "yaml", "input", "--out", "y"], "cannot be used with"),
        (&["--from", "yaml", "input", "--out", "x", "--depth", "2"], "--depth and --prefix are for"),
        (&["--from", "yaml", "input", "--out", "x", "--profile", "a"], "--profile is for"),
        (&["--from", "yaml", "input", "--out", "x", "--definition", "a/b"], "--definition `a/b`"),
        (&["--from", "yaml", "missing", "--out", "x"], "missing: No such file"),
    ] {
        let done = user.run(&[&["import"], arguments].concat()).await;
        assert!(done.code == 2 && done.err.contains(message), "{arguments:?}: {done:?}");
    }
}

#[tokio::test]
async fn documents_of_portals_become_configs() {
    let (home, user) = alone();
    let zip = format!("{EXPORTS}/nacos.zip");
    let done = user.run(&["import", "--from", "nacos", &zip, "--out", "out", "-o", "json"]).await;
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        report(&done),
        [
            "skipped nacos.zip/.metadata.yml",
            "document nacos.zip/PAYMENT_GROUP/com.example.rules",
            "document nacos.zip/DEFAULT_GROUP/broken.yaml",
            "document nacos.zip/PAYMENT_GROUP/com.example.rules",
            "document nacos.zip/DEFAULT_GROUP/broken.yaml",
        ]
    );
    let text = |key: &str| written(home.path(), "out", key);
    assert!(text("shop").ends_with(
        "data:\n  server:\n    port: 8080\n  defaults:\n    retries: 3\n  billing:\n    url: \"https://billing.internal\"\n    retries: 3\n"
    ));
    assert!(
        text("cache").ends_with("hosts:\n      - a\n      - b\n    ttl: 60\n  name: \"café\"\n"),
        "{}",
        text("cache")
    );
    assert!(text("PAYMENT_GROUP.limits").ends_with("data:\n  requests: 1000\n  burst: 1.50\n"));
    assert!(text("PAYMENT_GROUP.com.example.rules").ends_with("  _value: |\n    when x then y\n"));
    assert!(text("typed").ends_with("data:\n  enabled: true\n"));

    let namespace = r#"{"appId": "shop", "clusterName": "default", "namespaceName": "application", "format": "properties", "items": [
        {"key": "timeout", "value": "100"}, {"key": "", "value": "", "comment": "why"}, {"key": "db.password", "value": "123"}]}"#;
    let other = r#"[{"appId": "shop", "clusterName": "eu", "namespaceName": "limits.yaml", "format": "yaml", "items": [{"key": "content", "value": "a: 1\n"}]}]"#;
    let page = r#"{"page": 0, "size": 1, "total": 2, "content": [{"key": "c.d", "value": "1"}]}"#;
    for (name, text) in [
        ("apollo/one.json", namespace),
        ("apollo/two.json", other),
        ("apollo/page.json", page),
        ("apollo/shop+default+redis.properties", "redis.hosts=a,b\nredis.db = 0\n"),
        ("apollo/plain.json", "[{\"name\": 1}]"),
    ] {
        user.write(name, text);
    }
    let arguments =
        ["import", "--from", "apollo", "apollo", "--out", "apollo-out", "--mark-secrets", "-o", "json"];
    let done = user.run(&arguments).await;
    assert_eq!(done.code, 8, "{done:?}");
    assert_eq!(
        report(&done),
        ["!unread apollo/page.json", "document apollo/plain.json", "secret /db/password"]
    );
    let files = fs::read_dir(home.path().join("apollo-out/settings/config")).expect("it can be listed");
    let mut names: Vec<String> =
        files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(
        names,
        ["page.yaml", "plain.yaml", "shop.application.yaml", "shop.eu.limits.yaml", "shop.redis.yaml"]
    );
    let definition =
        fs::read_to_string(home.path().join("apollo-out/settings/definition.yaml")).expect("a file");
    assert!(
        definition.contains("password:\n          type: string\n          x-concord-secret: true"),
        "{definition}"
    );
    let application = written(home.path(), "apollo-out", "shop.application");
    assert!(application.ends_with("timeout: 100\n  db:\n    password: \"123\"\n"), "{application}");
}

#[tokio::test]
async fn files_of_programs_become_configs_and_no_secret_is_printed() {
    let (home, user) = alone();
    user.write("env/.env", "PORT=8080\nAPI_TOKEN=t0p-s3cret-001\nURL=http://u:t0p-s3cret-002@h\n");
    user.write("env/.env.production", "PORT=80\nAPI_TOKEN='t0p-s3cret-003'\nPORT=81\nNOTHING\n");
    let done = user.run(&["import", "--from", "dotenv", "env", "--out", "out"]).await;
    assert_eq!(done.code, 8, "{done:?}");
    assert!(!done.out.contains("t0p-s3cret") && !done.err.contains("t0p-s3cret"), "{done:?}");
    for line in ["duplicate", "unread", "secret", "LEFT OUT"] {
        assert!(done.out.contains(line), "{done:?}");
    }
    assert!(written(home.path(), "out", "production").contains("PORT: 81\n"));
    assert!(written(home.path(), "out", "default").contains("API_TOKEN: t0p-s3cret-001\n"));
    let mode = fs::metadata(home.path().join("out/settings/config/default.yaml")).expect("it is there");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o77, 0, "others can read it");

    user.write(
        "spring/application.yml",
        "server: {port: 80}\n---\nspring.config.activate.on-profile: dev\nserver.port: 81\n",
    );
    user.write("spring/application-prod.properties", "server.port=82\n");
    let arguments = ["import", "--from", "spring", "spring", "--out", "spring-out", "-o", "json"];
    let configs = user.run(&arguments).await;
    assert!(configs.code == 0 && report(&configs).is_empty(), "{configs:?}");
    for (key, port) in [("application", 80), ("application-dev", 81), ("application-prod", 82)] {
        let text = written(home.path(), "spring-out", key);
        assert!(text.ends_with(&format!("data:\n  server:\n    port: {port}\n")), "{text}");
    }
    let one = ["import", "--from", "spring", "spring", "--out", "prod", "--profile", "prod", "-q"];
    assert_eq!(user.ok(&one).await, "");
    let text = written(home.path(), "prod", "application");
    assert!(text.ends_with("port: 82\n"), "{text}");

    // From stdin, and all formats of the report.
    let done =
        user.run_with(&["import", "--from", "yaml", "-", "--out", "stdin", "-o", "name"], "a: !x 1\n").await;
    assert_eq!((done.code, done.out.as_str()), (8, "-:1\n"), "{done:?}");
    assert!(home.path().join("stdin/settings/config/stdin.yaml").exists());
}
