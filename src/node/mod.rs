//! A node's process: lock the data directory, listen, start consensus, serve, shut down.
//!
//! It listens before consensus starts, so that `/livez` answers while a long log is read, and so that a port in use
//! is reported at once. Shutdown has the reverse order: the node reports that it is not ready, transfers leadership,
//! completes the requests of clients, then those of peers, and closes log and store.
//!
//! Client requests and consensus run on separate runtimes, so client tasks never queue ahead of consensus. Consensus has
//! one thread: the tasks that an entry wakes on its way (openraft, the connections to the other members, applying) run on
//! it, and waking them costs nothing.
//!
//! **Invariants:** a node that can't go on logs the reason and exits. It never goes on in part. The exit code is 2 only for
//! a wrong setting, or a file of the settings that can't be used: a supervisor need not start that node again.

mod data_directory;
mod listener;
pub(crate) mod process;

use std::{
    convert::Infallible,
    fmt::Display,
    fs::File,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    runtime::{Handle, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    time::{sleep, timeout},
};

use crate::settings::{RootKeys, Secret, Settings, digest_of};
use concord_consensus::{
    end_process_later,
    recover::{self, MovedMembers, SingleRecovery},
};
use concord_http::{
    Api, Served,
    peer::PeerListener,
    server::{ServeOptions, ShareOf, Transport},
};
use concord_model::limits::{CONNECTIONS_MAX, OPEN_FILES_RESERVE};
use concord_net::{
    Member,
    client::{Peers, Secrets},
    identity::Identity,
    tls::{callers::CallerTls, nodes::NodeTls},
};
use concord_service::{Access, Options, Service, access::upkeep::ask_for_root, now};
use concord_storage::{self as store, at_rest::AtRest};
use listener::{BoundListener, MetricsServer, Servers};
use uuid::Uuid;

/// Threads of consensus. What would occupy one for long runs elsewhere (`crates/consensus/src/machine/mod.rs`,
/// `spawn_blocking`).
const CONSENSUS_THREADS: usize = 1;
/// How often the file with the root keys is read.
const ROOT_KEYS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the transfer of leadership may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long requests in flight may take to end; the server aborts them a little earlier.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(12);
/// How long log and store may take to close; what is not yet mirrored into sled is mirrored after the next start.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long each step of a shutdown after a failure may take, and remaining threads after any shutdown.
const FAILED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Of the connections that a node takes from others, the part that it opens itself for writes that have a call of their
/// own: the leader has room for those of several nodes with its limit of open files.
const PEER_CALLS_PART: usize = 4;

/// Connections to the listener of metrics: a few servers that read them.
const METRICS_CONNECTIONS: usize = 32;

/// Why a node ended.
#[derive(Debug)]
pub enum NodeFailure {
    /// A setting, or a file that a setting names, is wrong: the next start would fail in the same way.
    Setting(String),
    /// It could not start or go on.
    Failed(String),
}

impl From<String> for NodeFailure {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// Runs a node until a signal ends it.
///
/// # Errors
/// The reason why it could not start or go on.
pub fn run(settings: Settings) -> Result<(), NodeFailure> {
    process::log_panics();
    // Once more, because failures are logged now.
    process::restrict();
    let tls = NodeCertificates::open(&settings).map_err(NodeFailure::Setting)?;
    let _lock = data_directory::lock(&settings.data_dir)?;
    // Before anything is changed, and before clients are told to wait.
    if let Some(identity) = Identity::read(&settings.data_dir)? {
        identity.require_node(&settings.data_dir, settings.node_id).map_err(NodeFailure::Setting)?;
    }
    data_directory::protect(&settings.data_dir)?;
    let keys = AtRest::open(&settings.data_dir, settings.at_rest.data_key_file.as_deref());
    keys.map_err(NodeFailure::Setting)?;
    process::minimize_timer_slack();
    process::give_free_memory_back()?;
    let open_files_max = process::raise_open_files_limit();
    let callers = runtime("concord", settings.worker_threads)?;
    let consensus = runtime("raft", CONSENSUS_THREADS)?;
    let result = callers.block_on(serve(settings, tls, open_files_max, consensus.handle()));
    callers.shutdown_timeout(FAILED_SHUTDOWN_TIMEOUT);
    consensus.shutdown_timeout(FAILED_SHUTDOWN_TIMEOUT);
    result.map_err(NodeFailure::Failed)
}

fn runtime(thread_name: &str, threads: usize) -> Result<Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(threads).thread_name(thread_name).enable_all().build();
    built.map_err(|error| format!("no runtime: {error}"))
}

/// The limits on connections of clients and of peers: three quarters and one quarter of what the limit of open files
/// leaves.
fn connections_max(open_files_max: usize) -> (usize, usize) {
    let rest = open_files_max.saturating_sub(OPEN_FILES_RESERVE);
    let share = |quarters: usize| (rest / 4 * quarters).clamp(8, CONNECTIONS_MAX);
    (share(3), share(1))
}

async fn serve(
    mut settings: Settings,
    tls: NodeCertificates,
    open_files_max: usize,
    consensus: &Handle,
) -> Result<(), String> {
    let signals = ShutdownSignals::listen()?;
    let callers = Handle::current();
    let api = BoundListener::bind(&settings.api_addr, &callers).await?;
    let peer = BoundListener::bind(&settings.peer_addr, consensus).await?;
    let metrics = match &settings.metrics_addr {
        Some(address) => Some(BoundListener::bind(address, &callers).await?),
        None => None,
    };
    let (api_max, peer_max) = connections_max(open_files_max);
    let service = make_service(&settings, &tls, peer_max / PEER_CALLS_PART, consensus);
    let first_keys = digest_of(&settings.api_keys);
    settings.forget_secrets();
    let (for_callers, for_nodes) = tls.transports(&callers);
    let answerer = Api::new(service.clone()).with_origins(settings.cors_origins.clone());
    let metrics_options = options(&settings, METRICS_CONNECTIONS, ShareOf::All);
    let served = Served::Metrics(answerer.metrics_listener());
    let metrics = MetricsServer::serve(metrics, served, metrics_options);
    let api = api.serve(Served::Clients(answerer), for_callers, options(&settings, api_max, ShareOf::All));
    let peer_options = options(&settings, peer_max, ShareOf::Unknown);
    let peer_listener = PeerListener::new(service.clone(), callers);
    let peer = peer.serve(Served::Peers(peer_listener), for_nodes, peer_options);
    let mut servers = Servers { api, peer, metrics };
    let (node, directory) = (settings.node_id, settings.data_dir.display());
    tracing::info!(node, api = settings.api_addr, peer = settings.peer_addr, %directory, "listening");
    let result = tokio::select! {
        reason = participate(&service, &settings) => Err(reason),
        never = follow_root_keys(&service, settings.root_keys.clone(), first_keys) => match never {},
        reason = servers.failed() => Err(reason),
        reason = service.keep_certificates() => Err(reason),
        () = signals.received() => Ok(()),
    };
    shut_down(&service, servers, result.is_err()).await;
    tracing::info!(node, "ended");
    result
}

/// How a listener serves so many connections.
fn options(settings: &Settings, connections_max: usize, share_of: ShareOf) -> ServeOptions {
    ServeOptions {
        connections_max,
        per_address_max: match share_of {
            ShareOf::All => {
                settings.connections_per_address.map_or(connections_max / 2, |most| most.min(connections_max))
            }
            // The setting is about callers.
            ShareOf::Unknown => connections_max / 2,
        },
        share_of,
        header_timeout: settings.header_timeout,
        idle_timeout: settings.idle_timeout,
        send_timeout: settings.send_timeout,
    }
}

/// Shuts a node down. A failed node waits for nothing: its clients see that their connections end.
async fn shut_down(service: &Service, servers: Servers, has_failed: bool) {
    service.stop();
    let (drain, close) = if has_failed {
        // Whatever has failed may hold up any thread, and a node that does not end is not started again.
        let last_resort = std::thread::Builder::new().name("last-resort".into()).spawn(end_process_later);
        if let Err(error) = last_resort {
            tracing::error!(%error, "the end of this process is not bounded");
        }
        (FAILED_SHUTDOWN_TIMEOUT, FAILED_SHUTDOWN_TIMEOUT)
    } else {
        bounded(TRANSFER_TIMEOUT, service.hand_over(), "the transfer of leadership").await;
        (DRAIN_TIMEOUT, CLOSE_TIMEOUT)
    };
    servers.api.close("clients", drain).await;
    servers.peer.close("peers", drain).await;
    bounded(close, service.shutdown(), "closing log and store").await;
    // To the end: what a shutdown takes is of interest, too.
    servers.metrics.close().await;
}

/// Takes part in the cluster until the node fails; returns the reason. Forms it before, where there are members to form
/// it of.
async fn participate(service: &Service, settings: &Settings) -> String {
    if let Err(error) = service.members.start().await {
        return error.to_string();
    }
    if let Some(text) = service.members.moved(&addresses(settings)) {
        tracing::warn!("{text}");
    }
    match settings.forms() {
        Some(members) => {
            tokio::select! {
                reason = service.failed() => return reason,
                () = service.members.form_when_possible(members) => {}
            }
        }
        None if service.cx.consensus().is_none() => {
            tracing::info!("this node belongs to no cluster yet: it waits for `concord init`");
        }
        None => {}
    }
    service.failed().await
}

/// Where others are to reach this node, by its own settings: as its entry in the list of members says, or where it listens.
fn addresses(settings: &Settings) -> Member {
    let own = settings.peers.iter().find(|member| member.id == settings.node_id).cloned();
    own.unwrap_or_else(|| Member {
        id: settings.node_id,
        api_addr: settings.api_addr.clone(),
        peer_addr: settings.peer_addr.clone(),
    })
}

/// Reads the file with the root keys again when it has changed, for as long as the node runs. What can't be read changes
/// nothing.
async fn follow_root_keys(service: &Service, root_keys: RootKeys, first: [u8; 32]) -> Infallible {
    if !root_keys.are_in_a_file() {
        return std::future::pending().await;
    }
    let (mut accepted, mut was_refused) = (first, None);
    loop {
        sleep(ROOT_KEYS_INTERVAL).await;
        let root_keys = root_keys.clone();
        let read = tokio::task::spawn_blocking(move || root_keys.read()).await;
        match read.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(keys) if digest_of(&keys) == accepted => was_refused = None,
            Ok(keys) => {
                service.authentication.set_root_keys(keys.iter().map(Secret::expose));
                tracing::info!(keys = keys.len(), "the root keys have changed");
                (accepted, was_refused) = (digest_of(&keys), None);
            }
            Err(error) if was_refused.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::warn!("the root keys stay as they were: {error}");
                was_refused = Some(error);
            }
        }
    }
}

/// Leaves a note in the data directory of a stopped node that enables the root key at its next start.
///
/// # Errors
/// When the directory belongs to no node, is in use, or can't be written.
pub fn recover_root(directory: &Path) -> Result<(), String> {
    let node = StoppedNode::lock(directory)?;
    ask_for_root(&node.directory).map_err(|error| node.failed(&error))
}

/// The data directory of a node that is stopped, and stays stopped while this exists.
#[derive(Debug)]
pub(crate) struct StoppedNode {
    directory: PathBuf,
    _lock: File,
}

impl StoppedNode {
    /// Locks the directory of a member.
    ///
    /// # Errors
    /// When it belongs to no member, or is in use.
    pub(crate) fn lock(directory: &Path) -> Result<Self, String> {
        if !directory.join("identity.json").is_file() {
            return Err(format!("data directory {} belongs to no node of a cluster", directory.display()));
        }
        let lock = data_directory::lock(directory)?;
        Ok(Self { directory: directory.into(), _lock: lock })
    }

    fn failed(&self, error: &dyn Display) -> String {
        format!("data directory {}: {error}", self.directory.display())
    }

    pub(crate) fn identity(&self) -> Result<Identity, String> {
        let found = Identity::read(&self.directory)?;
        found.ok_or_else(|| self.failed(&"it belongs to no node of a cluster"))
    }

    /// Completes a recovery that was interrupted. Returns the id of its cluster; `None` if there was none to complete.
    ///
    /// # Errors
    /// When the identity can't be read, or the disk fails.
    pub(crate) fn finish_recovery(&self) -> Result<Option<Uuid>, String> {
        let me = self.identity()?;
        let is_completed = recover::finish(&self.directory, &me).map_err(|error| self.failed(&error))?;
        Ok(is_completed.then_some(me.cluster_id))
    }

    /// The members with other addresses, on this disk.
    ///
    /// # Errors
    /// See [`MovedMembers::plan`].
    pub(crate) fn plan_addresses(
        &self,
        data_key_file: Option<&Path>,
        moved: &[Member],
    ) -> Result<MovedMembers, String> {
        MovedMembers::plan(&self.directory, data_key_file, moved)
    }

    /// How the node would continue as the only member of a new cluster.
    ///
    /// # Errors
    /// See [`SingleRecovery::plan`].
    pub(crate) fn plan_single(&self, data_key_file: Option<&Path>) -> Result<SingleRecovery, String> {
        SingleRecovery::plan(&self.directory, data_key_file, now())
    }
}

/// Bounds a step of the shutdown. The next start makes up for what the step did not complete.
async fn bounded(limit: Duration, step: impl Future<Output = ()>, what: &str) {
    if timeout(limit, step).await.is_err() {
        tracing::warn!("{what} took more than {} s and was aborted", limit.as_secs());
    }
}

/// The certificates of a node, as far as its settings name any.
struct NodeCertificates {
    callers: Option<Arc<CallerTls>>,
    nodes: Option<Arc<NodeTls>>,
}

impl NodeCertificates {
    fn open(settings: &Settings) -> Result<Self, String> {
        let callers = settings.tls.callers.clone().map(CallerTls::open).transpose();
        let open = |(files, mode)| NodeTls::open(files, settings.node_id, mode);
        let nodes = settings.tls.nodes.clone().map(open).transpose();
        Ok(Self {
            callers: callers.map_err(|error| format!("TLS for clients: {error}"))?.map(Arc::new),
            nodes: nodes.map_err(|error| format!("TLS between nodes: {error}"))?.map(Arc::new),
        })
    }

    /// How the two listeners accept connections. `threads` serve client requests.
    fn transports(&self, threads: &Handle) -> (Transport, Transport) {
        let callers = self.callers.clone().map_or(Transport::Plain, Transport::Callers);
        let of_nodes = |tls| Transport::Nodes(tls, threads.clone());
        (callers, self.nodes.clone().map_or(Transport::Plain, of_nodes))
    }
}

fn make_service(
    settings: &Settings,
    tls: &NodeCertificates,
    lone_calls_max: usize,
    consensus: &Handle,
) -> Service {
    let secrets = settings.cluster_secrets.iter().map(|secret| secret.expose().into()).collect();
    let options = Options {
        node_id: settings.node_id,
        directory: settings.data_dir.clone(),
        limits: settings.limits.clone(),
        write_timeout: settings.write_timeout,
        read_timeout: settings.read_timeout,
        watch_heartbeat: settings.watch_heartbeat,
        consensus_runtime: Some(consensus.clone()),
        timers: settings.timers.clone(),
        store: store::StoreOptions::default(),
        snapshot_log_bytes: settings.snapshot_log_bytes,
        log_stall_timeout: settings.log_stall_timeout,
        disk_reserve_bytes: settings.disk_reserve_bytes,
        rescue: settings.peers.clone(),
        data_key_file: settings.at_rest.data_key_file.clone(),
        backup_envelope: settings.at_rest.backups.clone(),
        retention: settings.retention,
        feature_level_max: settings.feature_level_max,
        caller_tls: tls.callers.clone(),
        audit: settings.audit.clone(),
        quotas: settings.quotas,
        failed_credentials: settings.failed_credentials,
        spans: settings.spans.clone(),
        identity_calls: settings.identity_calls,
    };
    let peer_addr: Option<SocketAddr> = settings.peer_addr.parse().ok();
    let source = peer_addr.map(|addr| addr.ip()).filter(|ip| !ip.is_unspecified());
    let bound = source.map(|_| settings.peer_addr.clone());
    let own = settings.peers.iter().filter(|member| member.id == settings.node_id);
    let configured = own.map(|member| member.peer_addr.clone()).collect();
    let peers = Peers::from_address(Secrets(secrets), source, tls.nodes.clone()).known_as(bound, configured);
    let peers = peers.with_lone_calls(lone_calls_max);
    let access = Access::new(settings.api_keys.iter().map(Secret::expose));
    Service::new(options, access, Arc::new(peers))
}

/// The signals that shut a node down.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl ShutdownSignals {
    fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("signals can't be received: {error}"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn received(mut self) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal, "shutting down");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_log() {
        for files in [0, 256, 1024, 4096, 65_536, usize::MAX] {
            let (callers, peers) = connections_max(files);
            assert!(callers >= peers && peers >= 8 && callers <= CONNECTIONS_MAX, "{files}");
            assert!(files < 300 || callers + peers + OPEN_FILES_RESERVE <= files, "{files}");
        }
        assert_eq!(connections_max(1024), (576, 192));
    }
}
