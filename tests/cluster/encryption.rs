//! The data directory is encrypted: turned on and off while the cluster serves, under other keys, and with wrong ones.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    chaos::files::files_below,
    harness::{
        Cluster, Node, Options, check, data_keys, eventually,
        load::{Load, define, everything, set},
        write_secret,
    },
};

/// Stands in every record, and is sought on the disk.
const TELLING: &str = "a-telling-value";

/// A second data key.
const SECOND: &str = "IAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The files under a directory that hold a text. The audit log is not encrypted: it names definitions and configs.
fn holding(directory: &Path, text: &str) -> Vec<PathBuf> {
    let holds = |file: &PathBuf| {
        if file.starts_with(directory.join("audit")) {
            return false;
        }
        let bytes = fs::read(file).unwrap_or_default();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    files_below(directory).into_iter().filter(holds).collect()
}

/// Every file of a directory, with its bytes.
fn bytes_of(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files_below(directory).into_iter().map(|file| (file.clone(), fs::read(&file).unwrap())).collect()
}

async fn write(cluster: &Cluster, from: usize, count: usize) {
    for n in from..from + count {
        let data = json!({"n": n, "text": format!("{TELLING}-{n}").repeat(20)});
        set(&cluster.client(1 + n as u64 % 3), "secrets", &format!("{TELLING}-{}", n % 40), &data).await;
    }
}

/// Stops a node, sets its key file and starts it. The others serve meanwhile.
async fn restart(cluster: &mut Cluster, id: u64, key_file: Option<&Path>) {
    let node = cluster.node(id);
    assert!(node.stop().await.success());
    let name = "CONCORD_DATA_KEY_FILE".to_owned();
    if let Some(path) = key_file {
        node.settings.insert(name, path.to_string_lossy().into());
    } else {
        node.settings.remove(&name);
    }
    node.start().await;
    cluster.ready().await;
}

/// The data key that a node says it uses.
async fn data_key(node: &Node) -> Option<String> {
    let status = node.client().status().await.expect("the node answers");
    status["data_key"].as_str().map(str::to_owned)
}

/// Until sled is rebuilt nothing of what it holds is on the disk.
async fn sled_is_whole(directory: &Path) {
    eventually("sled is rebuilt", async || {
        check(directory.join("store/sled/CURRENT").exists(), || "there is no database".into())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn encryption_is_turned_on_rotated_and_turned_off_while_the_cluster_serves() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "16384");
    let mut cluster = Cluster::start_with("encryption", &options).await;
    define(&cluster.client(1), "secrets").await;
    write(&cluster, 0, 120).await;
    let directories: Vec<PathBuf> = cluster.nodes.iter().map(|node| node.directory.clone()).collect();
    for directory in &directories {
        // The search finds what is there.
        sled_is_whole(directory).await;
        assert!(!holding(directory, TELLING).is_empty());
    }

    let mut load = Load::start(&cluster.clients(), "load").await;
    let keys = data_keys(cluster.root());
    for id in 1..=3 {
        restart(&mut cluster, id, Some(&keys)).await;
        // What was written before is encrypted now, and what is written from now on.
        write(&cluster, 200, 40).await;
    }
    load.grows_by(20).await;
    let first = data_key(&cluster.nodes[0]).await.expect("it is encrypted");
    for (node, directory) in cluster.nodes.iter().zip(&directories) {
        assert_eq!(data_key(node).await.as_ref(), Some(&first));
        sled_is_whole(directory).await;
        assert_eq!(holding(directory, TELLING), [] as [PathBuf; 0]);
        assert_eq!(holding(directory, "secrets"), [] as [PathBuf; 0], "the name of a definition");
    }

    // A new key without a restart, while writes go on.
    let text = fs::read_to_string(&keys).unwrap();
    fs::write(&keys, format!("{SECOND}\n{text}")).unwrap();
    for node in &cluster.nodes {
        eventually("the new key is in use", async || {
            let shown = data_key(node).await;
            check(shown.is_some() && shown.as_ref() != Some(&first), || format!("{shown:?}"))
        })
        .await;
    }
    // The old key is needed no more.
    fs::write(&keys, format!("{SECOND}\n")).unwrap();
    load.grows_by(20).await;
    cluster.kill_all();
    cluster.start_all().await;

    // A key that is missing is an alarm, and changes nothing while the node runs.
    fs::write(&keys, &text).unwrap();
    eventually("the node says that it lacks its key", async || {
        let status = cluster.client(1).status().await?;
        let alarms = status["alarms"].as_array().cloned().unwrap_or_default();
        check(alarms.iter().any(|alarm| alarm["type"] == "data_key"), || format!("{alarms:?}"))
    })
    .await;

    fs::write(&keys, format!("none\n{SECOND}\n")).unwrap();
    for id in 1..=3 {
        restart(&mut cluster, id, Some(&keys)).await;
        assert_eq!(data_key(cluster.node(id)).await, None);
        // Nothing is encrypted any more: the key is not needed.
        restart(&mut cluster, id, None).await;
    }
    load.grows_by(20).await;
    load.stop().await;
    cluster.equal_digests().await;
    for client in cluster.clients() {
        load.is_kept_by(&client).await;
        assert_eq!(everything(&client, "secrets").await.len(), 40);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_or_missing_key_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::start("wrong-key").await;
    define(&cluster.client(1), "secrets").await;
    let keys = data_keys(cluster.root());
    restart(&mut cluster, 3, Some(&keys)).await;
    write(&cluster, 0, 30).await;
    let before_stop = cluster.equal_digests().await;
    assert!(cluster.node(3).stop().await.success());
    let directory = cluster.node(3).directory.clone();
    let before = bytes_of(&directory);
    let wrong = cluster.root().join("wrong-keys");
    write_secret(&wrong, &format!("{SECOND}\n"));
    let missing = cluster.root().join("no-such-file");
    for (file, why) in [
        (Some(&wrong), "is encrypted under data key"),
        (None, "CONCORD_DATA_KEY_FILE"),
        (Some(&missing), "no-such-file"),
    ] {
        let node = cluster.node(3);
        match file {
            Some(path) => node.settings.insert("CONCORD_DATA_KEY_FILE".into(), path.to_string_lossy().into()),
            None => node.settings.remove("CONCORD_DATA_KEY_FILE"),
        };
        let refusal = node.try_start().await.expect_err("the key is wrong");
        assert!(refusal.contains(why), "{refusal}");
        assert_eq!(bytes_of(&directory), before, "{why}");
    }
    let node = cluster.node(3);
    node.settings.insert("CONCORD_DATA_KEY_FILE".into(), keys.to_string_lossy().into());
    node.start().await;
    cluster.ready().await;
    assert_eq!(cluster.equal_digests().await, before_stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_gets_a_state_into_its_encrypted_directory() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "16384");
    let mut cluster = Cluster::start_with("encrypted-member", &options).await;
    let keys = data_keys(cluster.root());
    for id in [1, 3] {
        restart(&mut cluster, id, Some(&keys)).await;
    }
    define(&cluster.client(1), "secrets").await;
    write(&cluster, 0, 150).await;
    let digest = cluster.equal_digests().await;
    // A node whose log no longer names the members is told them by its settings.
    let named = |node: &Node| format!("{}={}@{}", node.id, node.api_addr(), node.peer_addr());
    let peers = cluster.nodes.iter().map(named).collect::<Vec<_>>().join(",");
    // Its state is lost; node 1 is encrypted and node 2 is not.
    for (id, encrypted) in [(3, true), (2, false)] {
        let node = cluster.node(id);
        assert!(node.stop().await.success());
        let directory = node.directory.clone();
        fs::remove_dir_all(directory.join("store")).unwrap();
        node.settings.insert("CONCORD_PEERS".into(), peers.clone());
        node.start().await;
        cluster.ready().await;
        assert_eq!(cluster.equal_digests().await, digest);
        sled_is_whole(&directory).await;
        assert_eq!(holding(&directory, TELLING).is_empty(), encrypted, "node {id}");
    }
}

#[tokio::test]
async fn others_may_not_read_a_data_directory() {
    let mut cluster = Cluster::start("modes").await;
    define(&cluster.client(1), "secrets").await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let directory = cluster.node(1).directory.clone();
    let all_private = || {
        let open: Vec<PathBuf> =
            files_below(&directory).into_iter().filter(|file| mode(file) & 0o077 != 0).collect();
        assert_eq!((open, mode(&directory)), (Vec::new(), 0o700));
    };
    all_private();
    // As version 0.1 left it.
    assert!(cluster.node(1).stop().await.success());
    for file in files_below(&directory) {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    cluster.node(1).start().await;
    cluster.ready().await;
    all_private();
    // Nothing of its memory gets into a file.
    let limits = fs::read_to_string(format!("/proc/{}/limits", cluster.node(1).pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("the line is there");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
}
