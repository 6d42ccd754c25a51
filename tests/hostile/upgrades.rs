//! Two versions of the program serve one cluster, forward and back, and each reads what the other may leave.
//!
//! The older one is the newest release (`released.rs`), the newer one is this program, which knows a feature level more
//! that only tests have (`crates/model/src/sabotage.rs`). So what is tested is that the level rises when all know it,
//! that nothing of it is written before, and that whoever does not know it refuses it; what a version adds with a level
//! has tests of its own.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use concord_model::feature::TEST_LEVEL;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::released::{self, Left};
use crate::harness::{
    Client, Cluster, Node, Options, check, eventually, fresh_directory,
    load::{config, define, everything},
    node::BINARY,
};

/// Set for a program that knows [`TEST_LEVEL`].
const KNOWS: &str = "CONCORD_TEST_FEATURE_LEVEL";
/// The highest level of the older program.
const OLD_LEVEL: u32 = released::LEVEL;
/// Every node of a cluster that is being upgraded is served by one of the others: more tries than these are a failure.
const TRIES: usize = 3;

/// A program.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Version {
    /// The newest release.
    Older,
    /// This one, perhaps held at a level.
    Newer(Option<u32>),
}

impl Version {
    fn install(self, node: &mut Node) {
        node.settings.remove(KNOWS);
        node.settings.remove("CONCORD_FEATURE_LEVEL_MAX");
        self.program().clone_into(&mut node.binary);
        if let Self::Newer(held_at) = self {
            node.settings.insert(KNOWS.into(), "1".into());
            if let Some(level) = held_at {
                node.settings.insert("CONCORD_FEATURE_LEVEL_MAX".into(), level.to_string());
            }
        }
    }

    fn program(self) -> &'static Path {
        if self == Self::Older { &released::PROGRAM } else { &BINARY }
    }

    /// Runs a command of this version.
    fn run(self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.program());
        command.args(arguments).env_remove(KNOWS);
        if self != Self::Older {
            command.env(KNOWS, "1");
        }
        command.output().expect("the binary can be started")
    }
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

/// The directory's format, as `identity.json` names it.
fn format_of(directory: &Path) -> Value {
    let identity = std::fs::read(directory.join("identity.json")).unwrap();
    serde_json::from_slice::<Value>(&identity).unwrap()["format"].clone()
}

fn set_format(directory: &Path, format: u32) {
    let path = directory.join("identity.json");
    let mut identity: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    identity["format"] = format.into();
    std::fs::write(&path, identity.to_string()).unwrap();
}

async fn reaches_level(clients: &[Client], level: u32) {
    for client in clients {
        eventually(&format!("feature level {level}"), async || {
            let status = client.status().await?;
            check(status["feature_level"] == level, || format!("{status}"))
        })
        .await;
    }
}

/// A node alone, at the highest level that its program knows, with some configs.
async fn alone(root: &Path, version: Version, options: &Options) -> Node {
    let mut node = Node::new(1, root, &options.settings);
    version.install(&mut node);
    node.start_anywhere().await;
    let client = node.client();
    let members = json!({"members": [node.as_member()]});
    eventually("the cluster is formed", async || {
        let answer = client.post("/api/v1/cluster/init", &members).attempt().await?;
        check(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    let level = if version == Version::Newer(None) { TEST_LEVEL } else { OLD_LEVEL };
    let status = client.status().await.unwrap();
    assert_eq!(status["feature_level"], level, "a new cluster begins at the highest level: {status}");
    define(&client, "d").await;
    for n in 0..40 {
        let put = client.put(&config("d", &format!("k{n}")), &json!({"data": {"text": "x".repeat(200)}}));
        put.header("if-none-match", "*").await.expect(201);
    }
    node
}

/// Snapshots after few writes.
fn with_snapshots() -> Options {
    Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "4096")
}

/// The snapshots of a node, once there are some.
async fn snapshots(node: &Node) -> Vec<PathBuf> {
    let directory = node.directory.join("store/snapshot");
    let files = || {
        let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "concord")).collect::<Vec<_>>()
    };
    eventually("a snapshot is written", async || check(!files().is_empty(), || "there is none".to_owned()))
        .await;
    files()
}

/// Asserts that a node does not start, that it says why, and that it changes nothing but its audit log, which has a line
/// for each start.
async fn refuses(node: &mut Node, why: &str) {
    let before = content(&node.directory);
    let said = node.try_start().await.expect_err("it does not start");
    assert!(said.contains(why) && said.contains("start a newer version"), "{said}");
    let after = content(&node.directory);
    let changed = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let audit = node.directory.join("audit");
    let stored = |path: &&PathBuf| !path.starts_with(&audit);
    let changed: Vec<&PathBuf> = before.keys().chain(after.keys()).filter(stored).filter(changed).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

#[tokio::test]
async fn a_directory_of_the_level_before_opens_with_all_that_it_holds() {
    let root = fresh_directory("level-before");
    let mut node = alone(root.path(), Version::Older, &with_snapshots()).await;
    let client = node.client();
    let written = everything(&client, "d").await;
    assert_eq!(written.len(), 40);
    let status = client.status().await.unwrap();
    node.kill();
    Version::Newer(Some(OLD_LEVEL)).install(&mut node);
    node.start().await;
    // The state before the log is read has the first level, too.
    eventually("the state is the one that was stored", async || {
        let found = client.status().await?;
        check(found["digest"] == status["digest"], || format!("{found}"))
    })
    .await;
    reaches_level(std::slice::from_ref(&client), OLD_LEVEL).await;
    assert_eq!(
        (everything(&client, "d").await, format_of(&node.directory)),
        (written.clone(), json!(OLD_LEVEL))
    );

    // The level rises once it is not held back any more, and a killed node is still there afterwards.
    node.kill();
    Version::Newer(None).install(&mut node);
    node.start().await;
    reaches_level(std::slice::from_ref(&client), TEST_LEVEL).await;
    let digest = client.status().await.unwrap()["digest"].clone();
    assert_ne!(digest, status["digest"], "the level is part of the state");
    node.kill();
    node.start().await;
    reaches_level(std::slice::from_ref(&client), TEST_LEVEL).await;
    assert_eq!(client.status().await.unwrap()["digest"], digest);
    assert_eq!((everything(&client, "d").await, format_of(&node.directory)), (written, json!(TEST_LEVEL)));
}

#[tokio::test]
async fn an_older_program_refuses_the_directory_of_a_higher_level_and_changes_nothing() {
    let root = fresh_directory("refused");
    let mut node = alone(root.path(), Version::Newer(None), &with_snapshots()).await;
    snapshots(&node).await;
    node.stop().await;
    Version::Older.install(&mut node);
    refuses(&mut node, &format!("format {TEST_LEVEL}")).await;
    // So it would if the directory were not marked.
    set_format(&node.directory, OLD_LEVEL);
    refuses(&mut node, &format!("feature level {TEST_LEVEL}")).await;

    // So does the newer one with a directory of a level after its own.
    set_format(&node.directory, 99);
    Version::Newer(None).install(&mut node);
    refuses(&mut node, "format 99").await;
}

#[tokio::test]
async fn an_older_program_refuses_a_log_and_a_snapshot_of_a_higher_level() {
    let root = fresh_directory("refused-log");
    let mut node = alone(root.path(), Version::Newer(None), &Options::default()).await;
    node.stop().await;
    Version::Older.install(&mut node);
    set_format(&node.directory, OLD_LEVEL);
    std::fs::remove_dir_all(node.directory.join("store")).unwrap();
    // The first entry that it does not know raises the level by one.
    refuses(&mut node, &format!("this log needs feature level {}", OLD_LEVEL + 1)).await;

    let root = fresh_directory("refused-snapshot");
    let node = alone(root.path(), Version::Newer(None), &with_snapshots()).await;
    let snapshot = snapshots(&node).await.pop().unwrap();
    // A backup without recipients is the same file.
    let copy = root.path().join("copy.concord");
    std::fs::copy(&snapshot, &copy).unwrap();
    let verify = |version: Version| version.run(&["verify", copy.to_str().unwrap()]);
    assert!(verify(Version::Newer(None)).status.success());
    let refused = verify(Version::Older);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    let known = format!("has feature level {TEST_LEVEL}, and this version knows {OLD_LEVEL}");
    assert!(said.contains(&known) && said.contains("start a newer version"), "{said}");
}

#[tokio::test]
async fn a_node_that_does_not_know_the_level_can_not_join() {
    let root = fresh_directory("join");
    let node = alone(root.path(), Version::Newer(None), &Options::default()).await;
    let mut older = Node::new(2, root.path(), &node.settings);
    Version::Older.install(&mut older);
    older.start_anywhere().await;
    let join = node.client().post("/api/v1/cluster/members", &older.as_member());
    let refused = join.insist().await.refused(409, "conflict_error");
    let numbers = format!("levels 1 to {OLD_LEVEL}, and this cluster has level {TEST_LEVEL}");
    assert!(refused.text.contains(&numbers), "{refused:?}");
    assert!(refused.text.contains("start a newer version there"), "{refused:?}");
    assert!(!older.directory.join("identity.json").exists(), "it was given no identity");
    older.stop().await;
    Version::Newer(None).install(&mut older);
    older.start().await;
    node.client().post("/api/v1/cluster/members", &older.as_member()).insist().await.expect(201);
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
async fn roll(cluster: &mut Cluster, callers: &Callers, version: Version, ends: [End; 3]) {
    let [one, two] = cluster.followers().await;
    let leader = 6 - one - two;
    for (id, end) in [one, two, leader].into_iter().zip(ends) {
        if version == Version::Newer(None) {
            let status = cluster.client(id).status().await.unwrap();
            assert_eq!(status["feature_level"], OLD_LEVEL, "not before all know it: {status}");
        }
        let node = cluster.node(id);
        match end {
            End::Stop => drop(node.stop().await),
            End::Kill => node.kill(),
        }
        version.install(node);
        node.start().await;
        cluster.ready().await;
        callers.grow().await;
    }
}

/// Three nodes of the older program. The first one has a directory that the release left.
async fn older_cluster(name: &str, directory: (&str, bool)) -> (Cluster, Left) {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let options = if directory.1 { options.encrypted() } else { options };
    let mut left = None;
    let cluster = Cluster::start_joined(name, &options, |root, nodes| {
        let found = Left::unpack(directory.0, root, &mut nodes[0]);
        found.set_clocks(root, nodes);
        nodes.iter_mut().for_each(|node| Version::Older.install(node));
        left = Some(found);
    });
    let cluster = cluster.await;
    let left = left.expect("the nodes were prepared");
    reaches_level(&cluster.clients(), OLD_LEVEL).await;
    left.is_answered_by(&cluster.client(2)).await;
    (cluster, left)
}

/// The highest level of each member, as a node shows it.
async fn known_levels(client: &Client) -> Vec<Value> {
    let status = client.status().await.unwrap();
    let members = status["members"].as_array().unwrap();
    members.iter().map(|member| member["feature_level_max"].clone()).collect()
}

#[tokio::test]
async fn a_cluster_is_upgraded_node_by_node_under_load_with_kills() {
    let (mut cluster, left) = older_cluster("upgrade", released::DIRECTORIES[0]).await;
    let callers = Callers::start(&cluster.clients()).await;
    callers.grow().await;
    roll(&mut cluster, &callers, Version::Newer(None), [End::Stop, End::Kill, End::Kill]).await;
    reaches_level(&cluster.clients(), TEST_LEVEL).await;
    // What it wrote at the new level is read again.
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    callers.grow().await;
    cluster.node(leader).start().await;
    cluster.ready().await;
    callers.grow().await;
    callers.end(&cluster, "rolling upgrade").await;
    left.is_kept_by(&cluster.client(1)).await;
    eventually("all members show what they know", async || {
        let known = known_levels(&cluster.client(1)).await;
        check(known == vec![json!(TEST_LEVEL); 3], || format!("{known:?}"))
    })
    .await;
    for node in &cluster.nodes {
        assert_eq!(format_of(&node.directory), TEST_LEVEL);
    }
}

/// A change request that puts a config of `d` in stages.
async fn propose_in_stages(client: &Client) -> crate::harness::Answer {
    let put =
        json!({"op": "put_config", "config_definition_key": "staged", "config_key": "k", "data": {"n": 1}});
    let plan = json!({"stages": [{"share": 100, "for_s": 600}]});
    let body = json!({"title": "in stages", "operations": [put], "rollout": plan});
    client.post("/api/v1/change_request/", &body).insist().await
}

#[tokio::test]
async fn a_rollout_begins_once_all_members_are_upgraded_and_none_before() {
    let (mut cluster, _) = older_cluster("upgrade-rollout", released::DIRECTORIES[0]).await;
    let callers = Callers::start(&cluster.clients()).await;
    define(&cluster.client(1), "staged").await;
    crate::harness::load::set(&cluster.client(1), "staged", "k", &json!({"n": 0})).await;
    let [one, _] = cluster.followers().await;
    let node = cluster.node(one);
    node.stop().await;
    Version::Newer(None).install(node);
    node.start().await;
    cluster.ready().await;
    let refused = propose_in_stages(&cluster.client(one)).await;
    assert_eq!((refused.status, &refused.body["errors"][0]["type"]), (409, &json!("conflict_error")));
    assert!(refused.body.to_string().contains("upgrade"), "{refused:?}");
    roll(&mut cluster, &callers, Version::Newer(None), [End::Stop, End::Stop, End::Kill]).await;
    reaches_level(&cluster.clients(), TEST_LEVEL).await;
    let made = propose_in_stages(&cluster.client(2)).await.expect(201);
    let path = format!("/api/v1/change_request/{}/apply", made.data()["change_id"].as_str().unwrap());
    let begun = cluster.client(3).post(&path, &json!({"digest": made.data()["digest"]})).insist().await;
    assert_eq!(begun.expect(200).data()["phase"], "rolling");
    for client in cluster.clients() {
        let read = client.get(&config("staged", "k")).header("x-concord-reader", "host").insist().await;
        assert_eq!(read.expect(200).data()["data"]["n"], 1);
    }
    callers.end(&cluster, "upgrade to rollouts").await;
}

#[tokio::test]
async fn an_upgrade_that_is_held_back_is_undone_node_by_node_under_load_with_kills() {
    let (mut cluster, left) = older_cluster("rollback", released::DIRECTORIES[1]).await;
    let callers = Callers::start(&cluster.clients()).await;
    let held = Version::Newer(Some(OLD_LEVEL));
    roll(&mut cluster, &callers, held, [End::Kill, End::Stop, End::Kill]).await;
    for client in cluster.clients() {
        assert_eq!(client.status().await.unwrap()["feature_level"], OLD_LEVEL);
    }
    roll(&mut cluster, &callers, Version::Older, [End::Stop, End::Kill, End::Kill]).await;
    callers.end(&cluster, "rolling back").await;
    left.is_kept_by(&cluster.client(1)).await;
    for node in &cluster.nodes {
        assert_eq!(format_of(&node.directory), OLD_LEVEL);
    }
}

#[tokio::test]
async fn a_directory_that_a_release_left_is_upgraded_rolled_back_and_then_refused() {
    for (name, is_encrypted) in released::DIRECTORIES {
        let root = fresh_directory("released");
        let options = if is_encrypted { with_snapshots().encrypted() } else { with_snapshots() };
        let mut nodes = [Node::new(1, root.path(), &options.settings)];
        let left = Left::unpack(name, root.path(), &mut nodes[0]);
        left.set_clocks(root.path(), &mut nodes);
        let [node] = &mut nodes;
        // Forward, back, and forward again: each is killed.
        for version in [Version::Newer(Some(OLD_LEVEL)), Version::Older, Version::Newer(Some(OLD_LEVEL))] {
            version.install(node);
            node.start().await;
            reaches_level(&[node.client()], OLD_LEVEL).await;
            left.is_answered_by(&node.client()).await;
            assert_eq!(format_of(&node.directory), OLD_LEVEL);
            node.kill();
        }
        Version::Newer(None).install(node);
        node.start().await;
        reaches_level(&[node.client()], TEST_LEVEL).await;
        left.is_answered_by(&node.client()).await;
        node.stop().await;
        Version::Older.install(node);
        refuses(node, &format!("format {TEST_LEVEL}")).await;
    }
}
