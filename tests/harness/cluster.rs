//! Three nodes that form a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Client, ENCRYPTED, Node, check, eventually, fresh_directory, node};

/// Clusters that run at once besides the shared one: more would take the processor from each other.
static PLACES: Semaphore = Semaphore::const_new(2);

/// What a test changes of the settings.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) settings: BTreeMap<String, String>,
}

impl Default for Options {
    fn default() -> Self {
        let key = node::api_key();
        let settings = [
            ("CONCORD_API_KEY", key.as_str()),
            ("CONCORD_CLUSTER_SECRET", "the-secret-of-a-test-cluster-0123456789"),
            // Longer than the service's own: a test machine halts for hundreds of milliseconds.
            ("CONCORD_HEARTBEAT_MS", "100"),
            ("CONCORD_ELECTION_MIN_MS", "500"),
            ("CONCORD_ELECTION_MAX_MS", "900"),
            ("CONCORD_WRITE_TIMEOUT_MS", "20000"),
            ("CONCORD_READ_TIMEOUT_MS", "10000"),
            // Tests present wrong credentials by the dozen, all from one address.
            ("CONCORD_FAILED_CREDENTIALS_PER_MINUTE", "0"),
            // The tests read there what openraft does.
            ("CONCORD_LOG", "info,openraft=info"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { settings: settings.into() }
    }
}

impl Options {
    /// Data directories are encrypted.
    pub(crate) fn encrypted(self) -> Self {
        self.with(ENCRYPTED, "1")
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// The places in the log of the snapshot files under a directory, ascending. They are no revisions.
pub(crate) fn snapshots(directory: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(snapshots(&entry.path()));
        }
        let name = entry.file_name();
        let index = name.to_str().and_then(|name| name.strip_prefix("snapshot-")?.strip_suffix(".concord"));
        found.extend(index.and_then(|index| index.parse::<u64>().ok()));
    }
    found.sort_unstable();
    found
}

/// Three nodes and their directory. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    directory: tempfile::TempDir,
    _place: Option<SemaphorePermit<'static>>,
}

impl Cluster {
    /// A formed cluster that is ready on every node.
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_with(name, &Options::default()).await
    }

    /// The same with other settings.
    pub(crate) async fn start_with(name: &str, options: &Options) -> Self {
        let place = PLACES.acquire().await.expect("never closed");
        let mut cluster = Self::unformed(name, options, Some(place)).await;
        cluster.form().await;
        cluster
    }

    /// The same after something was done to the nodes that do not run yet.
    pub(crate) async fn start_prepared(
        name: &str,
        options: &Options,
        prepare: impl FnOnce(&Path, &mut [Node]),
    ) -> Self {
        Self::start_on_hosts(name, options, |_| "127.0.0.1".to_owned(), prepare).await
    }

    /// The same with an address of its own for each node, so that the network between two can be cut.
    pub(crate) async fn start_on_hosts(
        name: &str,
        options: &Options,
        host: fn(u64) -> String,
        prepare: impl FnOnce(&Path, &mut [Node]),
    ) -> Self {
        let mut cluster = Self::prepared(name, options, host, prepare).await;
        cluster.form().await;
        cluster
    }

    /// Three nodes of which the first one has the directory of a cluster of its own, which the others join.
    pub(crate) async fn start_joined(
        name: &str,
        options: &Options,
        prepare: impl FnOnce(&Path, &mut [Node]),
    ) -> Self {
        let cluster = Self::prepared(name, options, |_| "127.0.0.1".to_owned(), prepare).await;
        let first = cluster.client(1);
        for node in &cluster.nodes {
            let path = format!("/api/v1/cluster/members/{}", node.id);
            if node.id == 1 {
                let there = json!({"api_addr": node.api_addr(), "peer_addr": node.peer_addr()});
                first.put(&path, &there).insist().await.expect(200);
            } else {
                first.post("/api/v1/cluster/members", &node.as_member()).insist().await;
                first.call(Method::POST, &format!("{path}/promote")).insist().await.expect(200);
            }
        }
        cluster.ready().await;
        cluster
    }

    /// Nodes that listen, after something was done to them.
    async fn prepared(
        name: &str,
        options: &Options,
        host: fn(u64) -> String,
        prepare: impl FnOnce(&Path, &mut [Node]),
    ) -> Self {
        let place = PLACES.acquire().await.expect("never closed");
        let directory = fresh_directory(name);
        let node = |id| Node::on_host(id, directory.path(), &options.settings, host(id));
        let mut nodes: Vec<Node> = (1..=3).map(node).collect();
        prepare(directory.path(), &mut nodes);
        join_all(nodes.iter_mut().map(Node::start_anywhere)).await;
        Self { nodes, directory, _place: Some(place) }
    }

    /// Two clusters at once. Their places are taken together: two tests that each wait for a second would wait
    /// for ever.
    pub(crate) async fn start_two(name: &str, options: &Options) -> (Self, Self) {
        let places = PLACES.acquire_many(2).await.expect("never closed");
        let mut one = Self::unformed(name, options, Some(places)).await;
        let mut two = Self::unformed(name, options, None).await;
        one.form().await;
        two.form().await;
        (one, two)
    }

    /// The cluster that all tests of the contract share. It takes no place.
    pub(crate) async fn start_shared(options: &Options) -> Self {
        let mut cluster = Self::unformed("shared", options, None).await;
        cluster.form().await;
        cluster
    }

    /// Three nodes that listen and belong to no cluster yet.
    pub(crate) async fn start_unformed(name: &str) -> Self {
        let place = PLACES.acquire().await.expect("never closed");
        Self::unformed(name, &Options::default(), Some(place)).await
    }

    async fn unformed(name: &str, options: &Options, place: Option<SemaphorePermit<'static>>) -> Self {
        let directory = fresh_directory(name);
        let mut nodes: Vec<Node> =
            (1..=3).map(|id| Node::new(id, directory.path(), &options.settings)).collect();
        join_all(nodes.iter_mut().map(Node::start_anywhere)).await;
        Self { nodes, directory, _place: place }
    }

    /// Starts a node that belongs to no cluster yet, with the settings of the others. It is one of `nodes` from
    /// now on, whether it becomes a member or not.
    pub(crate) async fn newcomer(&mut self, id: u64) -> Value {
        self.prepared_newcomer(id, |_| {}).await
    }

    /// The same after something was done to it before it runs.
    pub(crate) async fn prepared_newcomer(&mut self, id: u64, prepare: impl FnOnce(&mut Node)) -> Value {
        let settings = self.nodes[0].settings.clone();
        let mut node = Node::new(id, self.directory.path(), &settings);
        prepare(&mut node);
        node.start_anywhere().await;
        let body = node.as_member();
        self.nodes.push(node);
        body
    }

    /// The body that forms the cluster.
    pub(crate) fn members(&self) -> Value {
        json!({"members": self.nodes.iter().map(Node::as_member).collect::<Vec<_>>()})
    }

    /// Forms the cluster. Forming is idempotent, so it is asked until it is done.
    pub(crate) async fn form(&mut self) {
        let first = self.nodes[0].client();
        let members = self.members();
        eventually("the cluster is formed", async || {
            let answer = first.post("/api/v1/cluster/init", &members).attempt().await?;
            check((200..300).contains(&answer.status), || format!("{answer:?}"))
        })
        .await;
        self.ready().await;
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// The node with this id.
    pub(crate) fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id == id).expect("a member's id")
    }

    /// A client of the node with this id.
    pub(crate) fn client(&self, id: u64) -> Client {
        self.nodes.iter().find(|node| node.id == id).expect("a member's id").client()
    }

    /// Clients of all nodes, in the order of their ids.
    pub(crate) fn clients(&self) -> Vec<Client> {
        self.nodes.iter().map(Node::client).collect()
    }

    /// Waits until every node is ready.
    pub(crate) async fn ready(&self) {
        self.ready_on(&[1, 2, 3]).await;
    }

    /// Waits until these nodes are ready.
    pub(crate) async fn ready_on(&self, ids: &[u64]) {
        for id in ids {
            let client = self.client(*id);
            eventually(&format!("node {id} is ready"), async || {
                let answer = client.bare(Method::GET, "/readyz").attempt().await?;
                check(answer.status == 200, || format!("{answer:?}"))
            })
            .await;
        }
    }

    /// The leader as all the named nodes see it; waits until they agree.
    pub(crate) async fn leader_on(&self, ids: &[u64]) -> u64 {
        let clients: Vec<Client> = ids.iter().map(|id| self.client(*id)).collect();
        eventually("one leader", async || {
            let mut seen = BTreeSet::new();
            for client in &clients {
                seen.insert(client.status().await?["leader_id"].as_u64());
            }
            let only =
                seen.first().copied().flatten().filter(|leader| seen.len() == 1 && ids.contains(leader));
            only.ok_or_else(|| format!("leaders seen: {seen:?}"))
        })
        .await
    }

    /// The leader as all nodes see it.
    pub(crate) async fn leader(&self) -> u64 {
        self.leader_on(&[1, 2, 3]).await
    }

    /// The two that do not lead.
    pub(crate) async fn followers(&self) -> [u64; 2] {
        match self.leader().await {
            1 => [2, 3],
            2 => [1, 3],
            _ => [1, 2],
        }
    }

    /// Waits until all nodes have applied the same, and asserts that it is the same.
    pub(crate) async fn equal_digests(&self) -> String {
        self.equal_digests_on(&[1, 2, 3]).await
    }

    /// The same of these nodes.
    pub(crate) async fn equal_digests_on(&self, ids: &[u64]) -> String {
        let clients: Vec<Client> = ids.iter().map(|id| self.client(*id)).collect();
        eventually("equal revisions", async || {
            let mut digests: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
            for client in &clients {
                let status = client.status().await?;
                let revision = status["revision"].as_u64().ok_or("no revision")?;
                let digest = status["digest"].as_str().ok_or("no digest")?;
                digests.entry(revision).or_default().insert(digest.to_owned());
            }
            let differing = digests.values().any(|at_one_revision| at_one_revision.len() > 1);
            assert!(!differing, "equal revisions with different digests: {digests:?}");
            check(digests.len() == 1, || format!("{digests:?}"))?;
            digests.into_values().flatten().next().ok_or_else(|| "no node".to_owned())
        })
        .await
    }

    /// How far in the log a node is: a backup is a snapshot of what it has applied, and its file names the place.
    pub(crate) async fn place_in_log(&self, id: u64) -> u64 {
        let node = self.nodes.iter().find(|node| node.id == id).expect("a member's id");
        eventually("a backup", async || {
            let backup = node.client().get("/api/v1/cluster/backup").open().await?;
            check(backup.status().as_u16() == 200, || format!("{backup:?}"))?;
            backup.bytes().await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        snapshots(&node.directory).pop().expect("there is one now")
    }

    /// Kills all nodes at once.
    pub(crate) fn kill_all(&mut self) {
        for node in &mut self.nodes {
            node.kill();
        }
    }

    /// Starts all nodes and waits until they are ready.
    pub(crate) async fn start_all(&mut self) {
        join_all(self.nodes.iter_mut().map(Node::start)).await;
        self.ready().await;
    }

    /// The last lines of every node's log.
    pub(crate) fn tails(&self, lines: usize) -> String {
        let tail = |node: &Node| format!("--- node {}:\n{}", node.id, node.tail(lines));
        self.nodes.iter().map(tail).collect::<Vec<_>>().join("\n")
    }
}
