//! A backup and the history of a stopped node restore the cluster as it was at any revision or time after the backup.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::harness::{
    Client, Cluster, Options, check, data_keys, eventually,
    load::{config, define, definition, everything, set},
    node::Node,
};

/// A moment of the old cluster.
struct Moment {
    revision: u64,
    /// The time of its last change.
    at: String,
    digest: String,
    content: BTreeMap<String, BTreeMap<String, Value>>,
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_concord"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONCORD_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the binary can be started")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn shown(output: &Output) -> Value {
    assert!(output.status.success(), "{}", errors(output));
    serde_json::from_slice(&output.stdout).expect("JSON on the standard output")
}

async fn back_up(node: &Node, to: &Path) {
    let (url, key) = (format!("http://{}", node.api_addr()), node.settings["CONCORD_API_KEY"].clone());
    let arguments =
        ["backup", "--url", &url, "--api-key", &key, "--out", to.to_str().unwrap()].map(str::to_owned);
    let called = tokio::task::spawn_blocking(move || run(&arguments.each_ref().map(String::as_str)));
    shown(&called.await.unwrap());
}

async fn content(client: &Client) -> BTreeMap<String, BTreeMap<String, Value>> {
    let answer =
        client.get("/api/v1/config_definition/").query(&[("limit", "100")]).insist().await.expect(200);
    let mut all = BTreeMap::new();
    for key in answer.keys_of("config_definition_key") {
        all.insert(key.clone(), everything(client, &key).await);
    }
    all
}

/// The moment after the last change, which `changed` names as a definition and a config.
async fn moment(cluster: &Cluster, changed: (&str, &str)) -> Moment {
    let client = cluster.client(1);
    let digest = cluster.equal_digests().await;
    let content = content(&client).await;
    let status = client.status().await.unwrap();
    assert_eq!(status["digest"], json!(digest), "nothing else writes");
    let path = format!("{}/history", config(changed.0, changed.1));
    let history = client.get(&path).insist().await.expect(200);
    let last = &history.data()["results"][0];
    Moment {
        revision: last["revision"].as_u64().unwrap(),
        at: last["at"].as_str().unwrap().to_owned(),
        digest,
        content,
    }
}

async fn done(call: crate::harness::Call, id: &str, status: u16) {
    call.header("idempotency-key", id).insist().await.expect(status);
}

/// Three definitions with configs; the moment of the backup.
async fn begun(cluster: &Cluster, backup: &Path) -> Moment {
    let (first, second) = (cluster.client(1), cluster.client(2));
    for key in ["orders", "users", "gone"] {
        define(&first, key).await;
        for n in 0..20 {
            set(&second, key, &format!("k{n}"), &json!({"n": n})).await;
        }
    }
    let moment = moment(cluster, ("gone", "k19")).await;
    back_up(&cluster.nodes[2], backup).await;
    moment
}

/// Changes of configs and of a definition, then of several definitions at one revision.
async fn changed(cluster: &Cluster) -> [Moment; 2] {
    let (first, second) = (cluster.client(1), cluster.client(2));
    set(&first, "orders", "k1", &json!({"n": "changed"})).await;
    done(first.delete(&config("orders", "k2")), "delete-k2", 200).await;
    let schema = json!({"json_schema": {"properties": {"n": {}, "name": {"type": "string"}}}});
    done(first.put(&format!("{}/schema", definition("users")), &schema), "schema", 200).await;
    done(first.put(&definition("users"), &json!({"indexes": ["n", "name"]})), "indexes", 200).await;
    set(&second, "users", "k3", &json!({"n": 3, "name": "three"})).await;
    let defined = moment(cluster, ("users", "k3")).await;
    let create = |definition: &str| {
        json!({
            "op": "create_config", "config_definition_key": definition, "config_key": "new", "data": {"n": 1},
        })
    };
    let operations = json!({"operations": [create("orders"), create("users"), create("gone")]});
    done(first.post("/api/v1/batch", &operations), "batch", 200).await;
    [defined, moment(cluster, ("users", "new")).await]
}

/// A definition is deleted, and the deletion undone. Then somebody breaks everything.
async fn deleted(cluster: &Cluster) -> [Moment; 3] {
    let (first, second) = (cluster.client(1), cluster.client(2));
    done(first.delete(&definition("gone")), "delete-gone", 200).await;
    set(&second, "orders", "k4", &json!({"n": "while it was gone"})).await;
    let without = moment(cluster, ("orders", "k4")).await;
    done(first.post(&format!("{}/undelete", definition("gone")), &json!({})), "undelete", 201).await;
    define(&first, "later").await;
    set(&second, "later", "k", &json!({"n": 1})).await;
    let again = moment(cluster, ("later", "k")).await;
    done(first.delete(&definition("users")).query(&[("purge", "true")]), "purge", 200).await;
    done(first.delete(&definition("orders")), "delete-orders", 200).await;
    set(&second, "gone", "k1", &json!({"n": "broken"})).await;
    [without, again, moment(cluster, ("gone", "k1")).await]
}

/// Edits of all kinds, with a moment after each group of them. The first moment is that of the backup.
async fn edited(cluster: &Cluster, backup: &Path) -> Vec<Moment> {
    let mut moments = vec![begun(cluster, backup).await];
    moments.extend(changed(cluster).await);
    moments.extend(deleted(cluster).await);
    moments
}

/// The end of a command line that restores to a directory.
fn restored(backup: &Path, history: &Path, at: &str, more: &[&str]) -> Output {
    let base =
        ["restore", "--from", backup.to_str().unwrap(), "--history", history.to_str().unwrap(), "--at", at];
    run(&[&base, more].concat())
}

/// Each moment would be restored as it was.
fn every_moment_is_found(backup: &Path, history: &Path, moments: &[Moment]) {
    for one in moments {
        let dry = restored(backup, history, &one.revision.to_string(), &["--dry-run"]);
        let text = errors(&dry);
        let dry = shown(&dry);
        assert_eq!(dry["digest"], json!(one.digest), "revision {}", one.revision);
        let (as_of, revision) = (&dry["as_of"]["revision"], &dry["revision"]);
        assert_eq!((as_of, revision), (&json!(one.revision), &Value::Null), "{dry}");
        assert_eq!(dry["as_of"]["at"], json!(one.at));
        assert!(text.contains("access keys are those of the backup"), "{text}");
    }
}

/// A time leads to the same moment, and so does a copy of the history alone.
fn a_time_is_found_in_a_copy(backup: &Path, history: &Path, copy: &Path, one: &Moment) {
    fs::create_dir(copy).unwrap();
    for entry in fs::read_dir(history.join("store/history")).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let dry = restored(backup, copy, &one.at, &["--dry-run"]);
    let text = errors(&dry);
    let dry = shown(&dry);
    assert_eq!((&dry["digest"], &dry["as_of"]["revision"]), (&json!(one.digest), &json!(one.revision)));
    assert_eq!(dry["as_of"]["next"]["by"], "root");
    assert!(text.contains("left out first: revision") && text.contains("by root"), "{text}");
}

fn is_exported(backup: &Path, history: &Path, to: &Path, one: &Moment) {
    let [backup, history, to_text] = [backup, history, to].map(|path| path.to_str().unwrap());
    let export = ["export", "--from-backup", backup, "--history", history, "--at", &one.at];
    let output = run(&[&export[..], &["--definition", "orders", "--dir", to_text]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let files = fs::read_dir(to.join("orders/config")).unwrap().count();
    assert_eq!(files, one.content["orders"].len());
}

/// The restored cluster has what the old one still shows as of that moment.
async fn is_as_the_old_cluster_was(client: &Client, old: &Client, one: &Moment) {
    assert_eq!(content(client).await, one.content);
    let indexed = client.get(&format!("{}/config/", definition("users"))).query(&[("name", "three")]);
    assert_eq!(indexed.insist().await.expect(200).config_keys(), ["k3"]);
    let mut compared = 0;
    for (key, name) in one.content.iter().flat_map(|(key, all)| all.keys().map(move |name| (key, name))) {
        let path = config(key, name);
        let now = client.get(&path).insist().await.expect(200);
        let then = old.get(&path).query(&[("revision", &one.revision.to_string())]).insist().await;
        // Those of definitions that were deleted since can't be read there any more.
        if then.status == 200 {
            assert_eq!((now.tag(), now.data()), (then.tag(), then.data()), "{path}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}

#[tokio::test]
async fn a_cluster_is_restored_as_of_any_moment_after_a_backup() {
    let mut cluster = Cluster::start("point-in-time").await;
    let root = cluster.root().to_owned();
    let [backup, late] = ["before.backup", "late.backup"].map(|name| root.join(name));
    let moments = edited(&cluster, &backup).await;
    back_up(&cluster.nodes[0], &late).await;
    let history = cluster.nodes[1].directory.clone();
    let (last, good) = (moments.last().unwrap(), &moments[moments.len() - 2]);
    let is_used = restored(&backup, &history, &last.revision.to_string(), &["--dry-run"]);
    assert!(errors(&is_used).contains("another process uses it"), "{}", errors(&is_used));
    assert!(cluster.node(2).stop().await.success());
    every_moment_is_found(&backup, &history, &moments);
    a_time_is_found_in_a_copy(&backup, &history, &root.join("copy"), good);
    is_exported(&backup, &history, &root.join("exported"), good);

    // What can't be: before the backup, after the history, and at a time that nothing was changed after.
    let after = last.revision + 1_000_000;
    for (from, at, what) in [
        (&late, good.revision.to_string(), "older backup"),
        (&late, good.at.clone(), "older backup"),
        (&backup, after.to_string(), "the history ends at revision"),
        (&backup, "2100-01-01T00:00:00Z".into(), "the history ends at revision"),
    ] {
        let refused = restored(from, &history, &at, &["--dry-run"]);
        let text = errors(&refused);
        assert!(refused.status.code() == Some(1) && text.contains(what), "{at}: {text}");
    }
    for (at, more) in [("yesterday", &["--dry-run"][..]), ("5", &[])] {
        assert_eq!(restored(&backup, &history, at, more).status.code(), Some(2), "{at}");
    }

    let mut first = Node::new(7, cluster.root(), &cluster.nodes[0].settings.clone());
    let named = format!("7={}@{}", first.api_addr(), first.peer_addr());
    let directory = first.directory.clone();
    let to = ["--data-dir", directory.to_str().unwrap(), "--member", &named];
    let new = shown(&restored(&backup, &history, &good.revision.to_string(), &to));
    assert!(new["revision"].as_u64().unwrap() > last.revision, "{new}");
    first.start().await;
    let client = first.client();
    eventually("the restored node serves", async || {
        let status = client.status().await?;
        check(status["digest"] == json!(good.digest), || format!("{status}"))
    })
    .await;
    is_as_the_old_cluster_was(&client, &cluster.client(1), good).await;
}

#[tokio::test]
async fn the_history_of_an_encrypted_node_is_read_with_its_data_key() {
    let mut cluster = Cluster::start_with("sealed-point-in-time", &Options::default().encrypted()).await;
    let backup = cluster.root().join("before.backup");
    let moments = edited(&cluster, &backup).await;
    let history = cluster.nodes[2].directory.clone();
    // Nothing but the end of its history may be lost by a kill, and what was confirmed before is on the disk.
    cluster.node(3).kill();
    let keys: PathBuf = data_keys(cluster.root());
    let (one, restored_to) = (&moments[3], cluster.root().join("restored"));
    let to = ["--data-dir", restored_to.to_str().unwrap(), "--member", "1=a:1@b:2"];
    let without = restored(&backup, &history, &one.revision.to_string(), &to);
    assert!(without.status.code() == Some(1) && errors(&without).contains("key"), "{}", errors(&without));
    let with_key = [&to[..], &["--data-key-file", keys.to_str().unwrap()]].concat();
    let new = shown(&restored(&backup, &history, &one.revision.to_string(), &with_key));
    assert_eq!(new["digest"], json!(one.digest));
    assert!(restored_to.join("keys").is_file(), "the new directory is encrypted as well");
}
