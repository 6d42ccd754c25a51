//! The clusters: three processes each, fresh, on free ports of loopback, data on the same disk, real fsyncs.
//!
//! **Invariant:** no process outlives this one. Each is killed when its cluster is dropped, and by the kernel
//! (`setpriv --pdeathsig`) when this process dies in another way.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    files::silent_for,
    http::Http,
    load::{KEY, Speaks},
};

const START_MAX: Duration = Duration::from_secs(30);
/// A node with a million configs carries them to disk before it ends, and reads them when it starts.
const RESTART_MAX: Duration = Duration::from_secs(180);

/// A node that has written nothing for so long is at rest: sled is complete a fifth of a second after the last write.
const SETTLED: Duration = Duration::from_secs(3);
/// sled is written whole behind a load that was too fast for it.
const SETTLE_MAX: Duration = Duration::from_secs(600);

pub(crate) struct Node {
    child: Child,
    /// How it was started, and is again.
    command: Command,
    /// Where callers are served.
    pub(crate) addr: SocketAddr,
    /// Where its data directory is, as `data`.
    pub(crate) home: PathBuf,
}

impl Node {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        ended.map(drop).map_err(|error| format!("a node can't be killed: {error}"))
    }

    /// Ends it as an operator does, and waits until it has.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        let asked = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
        asked.map_err(|error| format!("kill: {error}"))?;
        let until = Instant::now() + RESTART_MAX;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("a node that was told to end: {status}")),
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(format!("a node can't be waited for: {error}")),
            }
        }
        Err("a node does not end".to_owned())
    }

    /// Starts it again, where it was.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        self.child = self.command.spawn().map_err(|error| format!("{:?}: {error}", self.command))?;
        Ok(())
    }

    /// Waits until a node that was started again is ready: it has caught up with a live leader.
    pub(crate) fn ready(&mut self, runtime: &Runtime) -> Result<(), String> {
        let until = Instant::now() + RESTART_MAX;
        while let Err(error) = wait(runtime, (self.addr, KEY), (Method::GET, "/readyz"), Duration::ZERO) {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if let Some(status) = ended {
                return Err(format!("a node that was started again has ended: {status}"));
            }
            if Instant::now() > until {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A program that counts what it executes (scripts/pgo.sh) writes its counts when it ends well.
        if std::env::var_os("LLVM_PROFILE_FILE").is_some()
            && let Err(error) = self.stop()
        {
            eprintln!("a node has written no counts: {error}");
        }
        // It may be gone already; then there is nothing to end.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

pub(crate) struct Cluster {
    pub(crate) speaks: Speaks,
    pub(crate) nodes: Vec<Node>,
}

/// Ports that were free a moment ago: all are held until all are known. They lie below those that a kernel gives to
/// outgoing connections: a member that is down is called all the time, and one such call would take its port.
fn free_addrs(count: usize) -> Result<Vec<SocketAddr>, String> {
    let mut held: Vec<(SocketAddr, TcpListener)> = Vec::new();
    for _ in 0..10_000 {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(10_000..32_000)));
        if let Ok(listener) = TcpListener::bind(addr) {
            held.push((addr, listener));
        }
        if held.len() == count {
            return Ok(held.iter().map(|(addr, _)| *addr).collect());
        }
    }
    Err("no free ports".to_owned())
}

fn command(binary: &Path, home: &Path) -> Result<Command, String> {
    fs::create_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
    let log = File::create(home.join("log")).map_err(|error| format!("{}: {error}", home.display()))?;
    let copy = log.try_clone().map_err(|error| format!("{}: {error}", home.display()))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
    command.stdin(Stdio::null()).stdout(log).stderr(copy);
    Ok(command)
}

fn spawn(mut command: Command, addr: SocketAddr, home: PathBuf) -> Result<Node, String> {
    let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(Node { child, command, addr, home })
}

/// Waits until a node answers well.
fn wait(
    runtime: &Runtime,
    (addr, key): (SocketAddr, &str),
    (method, path): (Method, &str),
    most: Duration,
) -> Result<(), String> {
    let until = Instant::now() + most;
    loop {
        let asked = runtime.block_on(async {
            Http::connect(addr, key).await?.good(method.clone(), path, String::new()).await
        });
        match asked {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > until => {
                return Err(format!("a node does not start: {error}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

impl Cluster {
    /// Starts three nodes of Concord, forms the cluster and waits until each serves.
    pub(crate) fn concord(
        runtime: &Runtime,
        binary: &Path,
        data: &Path,
        settings: &[(&str, String)],
    ) -> Result<Self, String> {
        Self::concord_of(runtime, (binary, data), settings, 3)
    }

    /// The same of more nodes: three have a vote, the others are replicas.
    pub(crate) fn concord_of(
        runtime: &Runtime,
        (binary, data): (&Path, &Path),
        settings: &[(&str, String)],
        count: usize,
    ) -> Result<Self, String> {
        let addrs = free_addrs(2 * count)?;
        let (api, peer) = addrs.split_at(count);
        let mut nodes = Vec::new();
        for n in 0..count {
            let home = data.join(format!("concord{}", n + 1));
            let mut command = command(binary, &home)?;
            command.arg("serve").env("CONCORD_NODE_ID", (n + 1).to_string());
            command.env("CONCORD_DATA_DIR", home.join("data")).env("CONCORD_LOG", "warn");
            command.env("CONCORD_API_ADDR", api[n].to_string()).env("CONCORD_PEER_ADDR", peer[n].to_string());
            command.env("CONCORD_API_KEY", KEY).env("CONCORD_CLUSTER_SECRET", "only-between-these-three");
            command.envs(settings.iter().map(|(name, value)| (name, value)));
            nodes.push(spawn(command, api[n], home)?);
        }
        let cluster = Self { speaks: Speaks::Concord, nodes };
        for node in &cluster.nodes {
            cluster.wait(runtime, node, Method::GET, "/livez")?;
        }
        let mut init = Command::new(binary);
        init.arg("init").arg("--url").arg(format!("http://{}", api[0])).env("CONCORD_API_KEY", KEY);
        for n in 0..3 {
            init.arg("--member").arg(format!("{}={}@{}", n + 1, api[n], peer[n]));
        }
        let done = init.stdout(Stdio::null()).status().map_err(|error| format!("{init:?}: {error}"))?;
        if !done.success() {
            return Err(format!("{init:?}: {done}"));
        }
        for node in &cluster.nodes[..3] {
            cluster.wait(runtime, node, Method::GET, "/readyz")?;
        }
        for n in 3..count {
            let mut add = Command::new(binary);
            add.args(["member", "add", "--url"]).arg(format!("http://{}", api[0]));
            add.arg(format!("{}={}@{}", n + 1, api[n], peer[n])).env("CONCORD_API_KEY", KEY);
            let done = add.stdout(Stdio::null()).status().map_err(|error| format!("{add:?}: {error}"))?;
            if !done.success() {
                return Err(format!("{add:?}: {done}"));
            }
            cluster.wait(runtime, &cluster.nodes[n], Method::GET, "/readyz")?;
        }
        Ok(cluster)
    }

    /// Starts three nodes of etcd with its defaults, but for the quota, which a long run would meet.
    pub(crate) fn etcd(runtime: &Runtime, binary: &Path, data: &Path) -> Result<Self, String> {
        let addrs = free_addrs(6)?;
        let (client, peer) = addrs.split_at(3);
        let all: Vec<String> = (0..3).map(|n| format!("n{}=http://{}", n + 1, peer[n])).collect();
        let mut nodes = Vec::new();
        for n in 0..3 {
            let home = data.join(format!("etcd{}", n + 1));
            let mut command = command(binary, &home)?;
            let (client_url, peer_url) = (format!("http://{}", client[n]), format!("http://{}", peer[n]));
            command.arg("--name").arg(format!("n{}", n + 1)).arg("--data-dir").arg(home.join("data"));
            command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
            command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
            command.arg("--initial-cluster").arg(all.join(",")).args(["--initial-cluster-state", "new"]);
            command.args(["--log-level", "error", "--quota-backend-bytes", "8589934592"]);
            nodes.push(spawn(command, client[n], home)?);
        }
        let cluster = Self { speaks: Speaks::Etcd, nodes };
        for node in &cluster.nodes {
            cluster.wait(runtime, node, Method::GET, "/health")?;
        }
        Ok(cluster)
    }

    /// Starts processes that answer whatever they are asked with one fixed text. Their program was built beside this.
    pub(crate) fn fixed(runtime: &Runtime, data: &Path, count: usize) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        // Of another profile, whose directory lies beside that of this program.
        let profiles = own.ancestors().nth(2).ok_or_else(|| format!("{}: no directory", own.display()))?;
        let binary = profiles.join("fixed/concord-bench-fixed");
        let mut nodes = Vec::new();
        for (n, addr) in free_addrs(count)?.into_iter().enumerate() {
            let home = data.join(format!("fixed{}", n + 1));
            let mut command = command(&binary, &home)?;
            command.arg(addr.to_string());
            nodes.push(spawn(command, addr, home)?);
        }
        let cluster = Self { speaks: Speaks::Concord, nodes };
        for node in &cluster.nodes {
            cluster.wait(runtime, node, Method::GET, "/api/v1/config_definition/any/config/any")?;
        }
        Ok(cluster)
    }

    fn key(&self) -> &'static str {
        if self.speaks == Speaks::Concord { KEY } else { "" }
    }

    /// Waits until the node answers well.
    fn wait(&self, runtime: &Runtime, node: &Node, method: Method, path: &str) -> Result<(), String> {
        wait(runtime, (node.addr, self.key()), (method, path), START_MAX)
    }

    /// What a node of Concord answers.
    pub(crate) fn ask(
        &self,
        runtime: &Runtime,
        place: usize,
        (method, path, body): (Method, &str, String),
    ) -> Result<Value, String> {
        let body = runtime.block_on(async {
            Http::connect(self.nodes[place].addr, KEY).await?.good(method, path, body).await
        })?;
        serde_json::from_slice(&body).map_err(|error| format!("{path}: {error}"))
    }

    /// Waits until no node of Concord writes anything behind its answers any more.
    pub(crate) fn settle(&self) -> Result<(), String> {
        let until = Instant::now() + SETTLE_MAX;
        for node in &self.nodes {
            while silent_for(&node.home, "store").is_none_or(|silent| silent < SETTLED) {
                if Instant::now() > until {
                    return Err("the nodes do not come to rest".to_owned());
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// Where the leader is among the nodes.
    pub(crate) fn leader(&self, runtime: &Runtime) -> Result<usize, String> {
        let until = Instant::now() + START_MAX;
        loop {
            for (place, node) in self.nodes.iter().enumerate() {
                if runtime.block_on(self.leads(node, place)).unwrap_or(false) {
                    return Ok(place);
                }
            }
            if Instant::now() > until {
                return Err(format!("{:?} has no leader", self.speaks));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    async fn leads(&self, node: &Node, place: usize) -> Result<bool, String> {
        let mut http = Http::connect(node.addr, self.key()).await?;
        let concord = self.speaks == Speaks::Concord;
        let body = if concord {
            http.good(Method::GET, "/api/v1/cluster", String::new()).await?
        } else {
            http.good(Method::POST, "/v3/maintenance/status", "{}".to_owned()).await?
        };
        let answer: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok(if concord {
            answer["data"]["leader_id"].as_u64() == Some(place as u64 + 1)
        } else {
            answer["leader"].is_string() && answer["leader"] == answer["header"]["member_id"]
        })
    }
}

/// The processor time that a process has used, in clock ticks (100 a second on Linux).
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold spaces; what follows its bracket does not.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    field(11) + field(12)
}

/// The resident memory of a process in MB.
pub(crate) fn rss_mb(pid: u32) -> f64 {
    memory_mb(pid, "VmRSS:")
}

/// The most that the resident memory of a process has been, in MB.
pub(crate) fn peak_mb(pid: u32) -> f64 {
    memory_mb(pid, "VmHWM:")
}

fn memory_mb(pid: u32, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}

/// Flushes that the disks of the machine have completed, whoever asked for them: an fsync that reached a disk.
pub(crate) fn disk_flushes() -> u64 {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let flushes = |line: &str| line.split_whitespace().nth(18).and_then(|field| field.parse::<u64>().ok());
    text.lines().filter_map(flushes).sum()
}
