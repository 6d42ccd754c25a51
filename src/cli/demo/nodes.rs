//! The nodes of a demo: ports, processes, shutdown.

use std::{
    fmt,
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cli::{cert, connection::Failure};

/// How far the ports of two nodes are apart.
const PORT_STEP: u16 = 10;
/// Time limit for a graceful shutdown of the nodes.
const END_TIMEOUT: Duration = Duration::from_secs(20);
const END_PAUSE: Duration = Duration::from_millis(20);

/// The ports of a node, on the loopback address.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct NodePorts {
    api: u16,
    peer: u16,
}

/// The settings of a demo, in a file next to its data for the next start. `Debug` shows no secret.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct DemoSettings {
    pub(super) key: String,
    secret: String,
    ports: Vec<NodePorts>,
    /// Whether clients and nodes use TLS, with certificates below the folder.
    #[serde(default)]
    has_tls: bool,
    /// Whether the sample data were loaded.
    pub(super) is_loaded: bool,
}

impl fmt::Debug for DemoSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key: _, secret: _, ports, has_tls, is_loaded } = self;
        f.debug_struct("DemoSettings")
            .field("ports", ports)
            .field("has_tls", has_tls)
            .field("is_loaded", is_loaded)
            .finish_non_exhaustive()
    }
}

impl DemoSettings {
    fn file(folder: &Path) -> PathBuf {
        folder.join("demo.json")
    }

    /// The folder of the certificates.
    fn certificates(folder: &Path) -> PathBuf {
        folder.join("tls")
    }

    /// The CA of the nodes, if they use TLS.
    pub(super) fn authority(&self, folder: &Path) -> Option<PathBuf> {
        self.has_tls.then(|| Self::certificates(folder).join("ca.pem"))
    }

    /// The settings of the demo in the folder, or new ones.
    pub(super) fn find_or_make(folder: &Path, nodes: u16, port: u16, has_tls: bool) -> Result<Self, Failure> {
        let file = Self::file(folder);
        match fs::read(&file) {
            Ok(bytes) => {
                let read: Self = serde_json::from_slice(&bytes)
                    .map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
                if has_tls && !read.has_tls {
                    let text = format!("the demo in {} was created without --tls", folder.display());
                    return Err(Failure::Usage(text));
                }
                if usize::from(nodes) != read.ports.len() {
                    let made = read.ports.len();
                    let text = format!("the demo in {} was created with --nodes {made}", folder.display());
                    return Err(Failure::Usage(text));
                }
                return Ok(read);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::Failed(format!("{}: {error}", file.display()))),
        }
        let random = || format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let ports = free_ports(nodes, port)?;
        let key = format!("demo_{}", random());
        let made = Self { key, secret: random(), ports, has_tls, is_loaded: false };
        if has_tls {
            made.certify(folder)?;
        }
        made.write(folder)?;
        Ok(made)
    }

    /// Creates a CA and the node certificates.
    fn certify(&self, folder: &Path) -> Result<(), Failure> {
        let folder = Self::certificates(folder);
        // An earlier start that was killed may have left some of them.
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::Failed(format!("{}: {error}", folder.display())));
            }
            _ => {}
        }
        cert::make_for(&folder, "demo", self.ports.len(), &["127.0.0.1", "localhost"])?;
        Ok(())
    }

    fn write(&self, folder: &Path) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", folder.display()));
        let new = folder.join("demo.json.new");
        let text = json!(self).to_string();
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new);
        file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes())).map_err(failed)?;
        fs::rename(new, Self::file(folder)).map_err(failed)
    }

    /// Notes that the sample data were loaded.
    pub(super) fn remember_loaded(&self, folder: &Path) -> Result<(), Failure> {
        Self { is_loaded: true, ..self.clone() }.write(folder)
    }

    pub(super) fn urls(&self) -> Vec<String> {
        let scheme = if self.has_tls { "https" } else { "http" };
        self.ports.iter().map(|ports| format!("{scheme}://127.0.0.1:{}", ports.api)).collect()
    }

    /// The nodes as a body of a request names them.
    pub(super) fn members(&self) -> Vec<Value> {
        let member = |(id, NodePorts { api, peer }): (u64, &NodePorts)| json!({ "id": id, "api_addr": format!("127.0.0.1:{api}"), "peer_addr": format!("127.0.0.1:{peer}") });
        (1..).zip(&self.ports).map(member).collect()
    }
}

/// Two ports for each node, skipping busy ones.
fn free_ports(nodes: u16, first: u16) -> Result<Vec<NodePorts>, Failure> {
    // The listeners stay open until all ports are found, so that no two are the same.
    let mut held = Vec::new();
    let mut take = |from: u16| {
        for port in from..=u16::MAX {
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                held.push(listener);
                return Ok(port);
            }
        }
        Err(Failure::Failed(format!("no free port from {from} on")))
    };
    let mut ports = Vec::new();
    for node in 0..nodes {
        let own = first.saturating_add(node * PORT_STEP);
        let api = take(own)?;
        let peer = take(own.saturating_add(1).max(api.saturating_add(1)))?;
        ports.push(NodePorts { api, peer });
    }
    Ok(ports)
}

/// The processes. Dropping this kills those that still run.
#[derive(Debug)]
pub(super) struct Nodes {
    /// By the ids from 1 on; `None` after the end.
    children: Vec<Option<Child>>,
    folder: PathBuf,
}

impl Nodes {
    /// Starts the processes and returns at once.
    pub(super) fn start(folder: &Path, settings: &DemoSettings) -> Result<Self, Failure> {
        let mut nodes = Self { children: Vec::new(), folder: folder.to_owned() };
        for (id, ports) in (1..).zip(&settings.ports) {
            let failed = |error: io::Error| Failure::Failed(format!("node {id} can't be started: {error}"));
            let child = nodes.command(id, *ports, settings).and_then(|mut command| command.spawn());
            nodes.children.push(Some(child.map_err(failed)?));
        }
        Ok(nodes)
    }

    fn command(&self, id: usize, ports: NodePorts, settings: &DemoSettings) -> io::Result<Command> {
        let log = File::options().create(true).append(true).mode(0o600).open(self.log(id))?;
        let mut command = Command::new(std::env::current_exe()?);
        // The user's settings must not affect the nodes of the demo.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CONCORD_") {
                command.env_remove(name);
            }
        }
        command
            .arg("demo-node")
            .env("CONCORD_NODE_ID", id.to_string())
            .env("CONCORD_DATA_DIR", self.folder.join(format!("node{id}")))
            .env("CONCORD_API_ADDR", format!("127.0.0.1:{}", ports.api))
            .env("CONCORD_PEER_ADDR", format!("127.0.0.1:{}", ports.peer))
            .env("CONCORD_API_KEY", &settings.key)
            .env("CONCORD_CLUSTER_SECRET", &settings.secret)
            // Ctrl-C of the terminal is for the demo, which then ends its nodes.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if settings.has_tls {
            let file = |name: String| DemoSettings::certificates(&self.folder).join(name);
            let (certificate, key) = (file(format!("node-{id}.pem")), file(format!("node-{id}.key")));
            command
                .env("CONCORD_TLS_CERT_FILE", &certificate)
                .env("CONCORD_TLS_KEY_FILE", &key)
                .env("CONCORD_PEER_CERT_FILE", certificate)
                .env("CONCORD_PEER_KEY_FILE", key)
                .env("CONCORD_PEER_CA_FILE", file("ca.pem".into()));
        }
        Ok(command)
    }

    fn log(&self, id: usize) -> PathBuf {
        self.folder.join(format!("node{id}.log"))
    }

    /// A message for each node that has exited since the last call.
    pub(super) fn ended(&mut self) -> Result<Vec<String>, Failure> {
        let mut texts = Vec::new();
        for (place, slot) in self.children.iter_mut().enumerate() {
            let Some(child) = slot else { continue };
            let status = child.try_wait().map_err(|error| format!("node {}: {error}", place + 1))?;
            if let Some(status) = status {
                *slot = None;
                texts.push(format!("node {} exited: {status}", place + 1));
            }
        }
        Ok(texts)
    }

    /// Checks that no node has exited.
    ///
    /// # Errors
    /// With the last line of its log.
    pub(super) fn all_run(&mut self) -> Result<(), Failure> {
        let ended = self.ended()?;
        let Some(first) = ended.first() else { return Ok(()) };
        let place = self.children.iter().position(Option::is_none).unwrap_or(0);
        let log = fs::read_to_string(self.log(place + 1)).unwrap_or_default();
        let last = log.lines().next_back().unwrap_or("its log is empty");
        Err(Failure::Failed(format!("{first}: {last}")))
    }

    pub(super) fn any_runs(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }

    /// The process id of a node, as a suffix of its name.
    pub(super) fn process(&self, id: &Value) -> String {
        let place = id.as_u64().and_then(|id| usize::try_from(id).ok()).and_then(|id| id.checked_sub(1));
        let child = place.and_then(|place| self.children.get(place)?.as_ref());
        child.map(|child| format!(", process {}", child.id())).unwrap_or_default()
    }

    /// Stops all processes: gracefully if their data are kept, otherwise immediately.
    pub(super) async fn end(&mut self, in_order: bool) {
        if in_order {
            for child in self.children.iter().flatten() {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                // A process that has ended needs no signal.
                let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
            }
            let deadline = Instant::now() + END_TIMEOUT;
            while Instant::now() < deadline && self.ended().is_ok() && self.any_runs() {
                sleep(END_PAUSE).await;
            }
        }
        self.kill();
    }

    fn kill(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // A process that has exited can't be killed, and must still be reaped.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_show_no_secret() {
        let (key, secret) = ("the-root-key".to_owned(), "the-cluster-secret".to_owned());
        let settings = DemoSettings { key, secret, ports: Vec::new(), has_tls: false, is_loaded: true };
        let shown = format!("{settings:?}");
        assert!(!shown.contains("the-") && shown.contains("is_loaded: true"), "{shown}");
    }

    #[test]
    fn a_port_that_is_busy_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = listener.local_addr().unwrap().port().min(60_000);
        let ports = free_ports(3, busy).unwrap();
        let all: std::collections::BTreeSet<u16> =
            ports.iter().flat_map(|ports| [ports.api, ports.peer]).collect();
        assert_eq!((ports.len(), all.len()), (3, 6));
        assert!(!all.contains(&listener.local_addr().unwrap().port()));
    }
}
