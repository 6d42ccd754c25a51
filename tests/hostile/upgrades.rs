//! Two versions of the program serve one cluster, forward and back, and each reads what the other may leave.
//!
//! The older one is the last of feature level 1. `scripts/level1.sh` builds it from `tests/fixtures/level-1`, where the
//! directories that it left are, too.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{
    Client, Cluster, Node, Options, check, eventually, fresh_directory,
    load::{config, define, everything},
    node::BINARY,
};

/// The program of feature level 1.
pub(crate) static LEVEL_1: LazyLock<PathBuf> = LazyLock::new(|| {
    let built = || {
        let profile = Path::new(env!("CARGO_BIN_EXE_concord")).parent().expect("a binary is in a directory");
        profile.parent().expect("and that in target").join("debug/concord-level-1")
    };
    let path = std::env::var_os("CONCORD_LEVEL_1_BIN").map_or_else(built, PathBuf::from);
    assert!(path.is_file(), "{} is not built: run scripts/level1.sh", path.display());
    path
});

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/level-1/data.tar.gz");
const FIXTURE_KEY: &str = "the-key-of-a-fixture-0123456789";
/// Every node of a cluster that is being upgraded is served by one of the others: more tries than these are a failure.
const TRIES: usize = 3;

/// What the level-1 program left, unpacked, and what it answered.
fn fixture(to: &Path) -> Value {
    let unpacked = Command::new("tar").args(["-xzf", FIXTURE, "-C"]).arg(to).status();
    assert!(unpacked.is_ok_and(|status| status.success()), "{FIXTURE} is unpacked");
    serde_json::from_slice(&std::fs::read(to.join("expected.json")).unwrap()).unwrap()
}

/// All files of a directory with their bytes.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.insert(path.clone(), Vec::new());
            files.extend(content(&path));
        } else {
            files.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    files
}

fn concord(arguments: &[&str]) -> Output {
    Command::new(BINARY.as_path()).args(arguments).output().expect("the binary can be started")
}

async fn reaches_level(clients: &[Client], level: u64) {
    for client in clients {
        eventually(&format!("feature level {level}"), async || {
            let status = client.status().await?;
            check(status["feature_level"] == level, || format!("{status}"))
        })
        .await;
    }
}

/// Asserts that a node shows what the fixture's node showed.
async fn shows(client: &Client, expected: &Value) {
    for (path, name) in [
        (config("shop", "k7"), "config"),
        (format!("{}/history?limit=1000", config("shop", "k1")), "history"),
        (format!("{}?sort_by=n&limit=5&tags=t3", config("shop", "")), "listed"),
        (config("free", "kept"), "kept"),
    ] {
        assert_eq!(*client.get(&path).insist().await.expect(200).data(), expected[name], "{path}");
    }
    // From the history on the disk: the first changes are older than any snapshot.
    let mut watch = client.watch(&[("definition", "shop")], Some(1)).await;
    let changes = watch.changes(20).await;
    assert!(changes.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{changes:?}");
}

#[tokio::test]
async fn a_directory_of_level_1_opens_with_all_that_it_holds() {
    let root = fresh_directory("level-1");
    let expected = fixture(root.path());
    for name in ["stopped", "killed"] {
        let mut settings = Options::default().with("CONCORD_API_KEY", FIXTURE_KEY).settings;
        settings.insert("CONCORD_FEATURE_LEVEL_MAX".into(), "1".into());
        settings.insert("CONCORD_SNAPSHOT_LOG_BYTES".into(), "4096".into());
        let mut node = Node::new(1, root.path(), &settings);
        node.directory = root.path().join(name);
        node.start_anywhere().await;
        let client = node.client();
        eventually("it is ready", async || {
            let ready = client.get("/readyz").attempt().await?;
            check(ready.status == 200, || format!("{ready:?}"))
        })
        .await;
        let status = client.status().await.unwrap();
        assert_eq!((&status["digest"], &status["feature_level"]), (&expected[name]["digest"], &json!(1)));
        shows(&client, &expected[name]).await;

        // The level rises once it is not held back any more, and a killed node is still there afterwards.
        node.kill();
        node.settings.remove("CONCORD_FEATURE_LEVEL_MAX");
        node.start().await;
        reaches_level(std::slice::from_ref(&client), 2).await;
        shows(&client, &expected[name]).await;
        let digest = client.status().await.unwrap()["digest"].clone();
        node.kill();
        node.start().await;
        reaches_level(std::slice::from_ref(&client), 2).await;
        assert_eq!(client.status().await.unwrap()["digest"], digest);
        shows(&client, &expected[name]).await;
    }
}

#[tokio::test]
async fn a_backup_of_level_1_is_verified_and_restored() {
    let root = fresh_directory("level-1-backup");
    let expected = fixture(root.path());
    let backup = root.path().join("backup.concord");
    let shown = concord(&["verify", backup.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    for (name, value) in expected["backup"].as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name}");
    }
    let settings = Options::default().with("CONCORD_API_KEY", FIXTURE_KEY).settings;
    let mut node = Node::new(1, root.path(), &settings);
    let member = format!("1={}@{}", node.api_addr(), node.peer_addr());
    let (from, to) = (backup.to_str().unwrap(), node.directory.to_str().unwrap().to_owned());
    let restored = concord(&["restore", "--from", from, "--data-dir", &to, "--member", &member]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    node.start().await;
    let client = node.client();
    reaches_level(std::slice::from_ref(&client), 2).await;
    let kept = client.get(&config("free", "kept")).insist().await.expect(200);
    assert_eq!(*kept.data(), expected["killed"]["kept"]);
}

/// A node of this version alone, at its highest level, with snapshots of that level on its disk.
async fn alone(root: &Path) -> Node {
    let settings = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "4096").settings;
    let mut node = Node::new(1, root, &settings);
    node.start_anywhere().await;
    let client = node.client();
    let members = json!({"members": [node.as_member()]});
    eventually("the cluster is formed", async || {
        let answer = client.post("/api/v1/cluster/init", &members).attempt().await?;
        check(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    assert_eq!(
        client.status().await.unwrap()["feature_level"],
        2,
        "a new cluster begins at the highest level"
    );
    node
}

#[tokio::test]
async fn an_older_program_refuses_the_directory_of_a_higher_level_and_changes_nothing() {
    let root = fresh_directory("refused");
    let mut node = alone(root.path()).await;
    let client = node.client();
    define(&client, "d").await;
    for n in 0..40 {
        let put = client.put(&config("d", &format!("k{n}")), &json!({"data": {"text": "x".repeat(200)}}));
        put.header("if-none-match", "*").await.expect(201);
    }
    let snapshots = node.directory.join("store/snapshot");
    eventually("a snapshot is written", async || {
        let written = std::fs::read_dir(&snapshots).unwrap().count();
        check(written > 0, || "there is none".to_owned())
    })
    .await;
    node.stop().await;
    let before = content(&node.directory);
    node.binary = LEVEL_1.clone();
    let said = node.try_start().await.expect_err("the older program does not start");
    assert!(said.contains("format 2") && said.contains("start a newer version"), "{said}");
    assert_eq!(content(&node.directory), before);

    // So does this one with a directory of a level after its own.
    let identity = node.directory.join("identity.json");
    let later = std::fs::read_to_string(&identity).unwrap().replace("\"format\": 2", "\"format\": 99");
    std::fs::write(&identity, later).unwrap();
    let before = content(&node.directory);
    node.binary = BINARY.clone();
    let said = node.try_start().await.expect_err("a later directory is refused");
    assert!(said.contains("format 99") && said.contains("start a newer version"), "{said}");
    assert_eq!(content(&node.directory), before);
}

#[tokio::test]
async fn a_node_that_does_not_know_the_level_can_not_join() {
    let root = fresh_directory("join");
    let node = alone(root.path()).await;
    let mut older = Node::new(2, root.path(), &node.settings);
    older.binary = LEVEL_1.clone();
    older.start_anywhere().await;
    // It does not know how a member proves the secret, either, so it can't be asked for its levels.
    let refused = node.client().post("/api/v1/cluster/members", &older.as_member()).attempt().await.unwrap();
    assert!(matches!(refused.status, 409 | 503), "{refused:?}");
    assert!(refused.text.contains("start a newer one there"), "{refused:?}");
    assert!(!older.directory.join("identity.json").exists(), "it was given no identity");
}

/// Writers that try each request on three nodes, and read back what was acknowledged.
#[derive(Debug)]
struct Callers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, Value>>>,
    failed: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Callers {
    async fn start(clients: &[Client]) -> Self {
        define(&clients[0], "upgraded").await;
        let (stop, acknowledged, failed) = (Arc::default(), Arc::default(), Arc::default());
        let mut callers = Self { stop, acknowledged, failed, tasks: Vec::new() };
        for place in 0..clients.len() * 2 {
            let (clients, stop) = (clients.to_vec(), Arc::clone(&callers.stop));
            let (acknowledged, failed) = (Arc::clone(&callers.acknowledged), Arc::clone(&callers.failed));
            callers.tasks.push(tokio::spawn(async move {
                for turn in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("w{place}-{turn}");
                    match call(&clients, place + turn, &key).await {
                        Ok(data) => drop(acknowledged.lock().unwrap().insert(key, data)),
                        Err(why) => failed.lock().unwrap().push(why),
                    }
                }
            }));
        }
        callers
    }

    async fn grow(&self) {
        let goal = self.acknowledged.lock().unwrap().len() + 60;
        eventually("writes are acknowledged", async || {
            let now = self.acknowledged.lock().unwrap().len();
            check(now >= goal, || format!("{now} of {goal}"))
        })
        .await;
    }

    /// Stops them and asserts that every node has everything that was acknowledged.
    async fn end(self, cluster: &Cluster, what: &str) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("a caller does not panic");
        }
        let (acknowledged, failed) =
            (self.acknowledged.lock().unwrap().clone(), self.failed.lock().unwrap().clone());
        let mut lost = 0;
        for client in cluster.clients() {
            let present = everything(&client, "upgraded").await;
            lost += acknowledged.iter().filter(|(key, data)| present.get(*key) != Some(*data)).count();
        }
        println!(
            "{what}: acknowledged {}, lost {lost}, failed three tries {}",
            acknowledged.len(),
            failed.len()
        );
        assert_eq!(lost, 0, "acknowledged writes are lost");
        assert!(failed.is_empty(), "{failed:?}");
        cluster.equal_digests().await;
    }
}

/// Creates a config and reads it back on another node, each with three tries.
async fn call(clients: &[Client], place: usize, key: &str) -> Result<Value, String> {
    let data = json!({"value": key});
    let path = config("upgraded", key);
    let create = |client: &Client| {
        let put = client.put(&path, &json!({"data": data}));
        put.header("if-none-match", "*").header("idempotency-key", key)
    };
    tries(clients, place, 201, create).await?;
    let read = tries(clients, place + 1, 200, |client| client.get(&path)).await?;
    if read["data"] == data {
        Ok(data)
    } else {
        Err(format!("{key} was acknowledged, but is read as {read}"))
    }
}

async fn tries(
    clients: &[Client],
    place: usize,
    expected: u16,
    request: impl Fn(&Client) -> crate::harness::Call,
) -> Result<Value, String> {
    let mut answers = Vec::new();
    for one in 0..TRIES {
        match request(&clients[(place + one) % clients.len()]).attempt().await {
            Ok(answer) if answer.status == expected => return Ok(answer.data().clone()),
            Ok(answer) if matches!(answer.status, 429 | 503 | 504) => answers.push(format!("{answer:?}")),
            Ok(answer) => return Err(format!("{answer:?} after {answers:?}")),
            Err(lost) => answers.push(lost),
        }
    }
    Err(format!("{answers:?}"))
}

/// How a node is ended before it is started with the other program.
#[derive(Debug, Clone, Copy)]
enum End {
    Stop,
    Kill,
}

/// Starts each node in turn with another program, the leader last.
async fn roll(
    cluster: &mut Cluster,
    callers: &Callers,
    binary: &Path,
    held_at: Option<&str>,
    ends: [End; 3],
) {
    let [one, two] = cluster.followers().await;
    let leader = 6 - one - two;
    for (id, end) in [one, two, leader].into_iter().zip(ends) {
        let node = cluster.node(id);
        match end {
            End::Stop => drop(node.stop().await),
            End::Kill => node.kill(),
        }
        node.binary = binary.to_owned();
        match held_at {
            Some(level) => drop(node.settings.insert("CONCORD_FEATURE_LEVEL_MAX".into(), level.into())),
            None => drop(node.settings.remove("CONCORD_FEATURE_LEVEL_MAX")),
        }
        node.start().await;
        cluster.ready().await;
        callers.grow().await;
    }
}

/// Three nodes of the level-1 program.
async fn older_cluster(name: &str) -> Cluster {
    let older =
        |_: &Path, nodes: &mut [Node]| nodes.iter_mut().for_each(|node| node.binary = LEVEL_1.clone());
    Cluster::start_prepared(name, &Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536"), older)
        .await
}

#[tokio::test]
async fn a_cluster_is_upgraded_node_by_node_under_load_with_kills() {
    let mut cluster = older_cluster("upgrade").await;
    let callers = Callers::start(&cluster.clients()).await;
    callers.grow().await;
    roll(&mut cluster, &callers, &BINARY, None, [End::Stop, End::Kill, End::Kill]).await;
    reaches_level(&cluster.clients(), 2).await;
    // What it wrote at the new level is read again.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    callers.grow().await;
    cluster.node(leader).start().await;
    cluster.ready().await;
    callers.grow().await;
    callers.end(&cluster, "rolling upgrade").await;
    let status = cluster.client(1).status().await.unwrap();
    for member in status["members"].as_array().unwrap() {
        assert_eq!(member["feature_level_max"], 2, "{status}");
    }
}

#[tokio::test]
async fn an_upgrade_that_is_held_back_is_undone_node_by_node_under_load_with_kills() {
    let mut cluster = older_cluster("rollback").await;
    let callers = Callers::start(&cluster.clients()).await;
    roll(&mut cluster, &callers, &BINARY, Some("1"), [End::Kill, End::Stop, End::Kill]).await;
    for client in cluster.clients() {
        assert_eq!(client.status().await.unwrap()["feature_level"], 1);
    }
    roll(&mut cluster, &callers, &LEVEL_1, None, [End::Stop, End::Kill, End::Kill]).await;
    callers.end(&cluster, "rolling back").await;
    for node in &cluster.nodes {
        let identity = std::fs::read_to_string(node.directory.join("identity.json")).unwrap();
        assert!(identity.contains("\"format\": 1"), "{identity}");
    }
}
