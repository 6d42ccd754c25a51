//! A node's life: take the directory, listen, start consensus, serve, and end in order.
//!
//! It listens before consensus starts, so that `/livez` answers while a long log is read, and so that a taken port
//! is told at once. It ends in the reverse order: first it is not ready, then another node leads, then callers are
//! served to the end, then peers, then log and store are closed.
//!
//! **Invariants:** a data directory serves one process. A node that can't go on ends with exit code 1 and says
//! why; it never goes on in part.

use std::{
    fs::{self, File, TryLockError},
    future::Future,
    io,
    net::SocketAddr,
    num::NonZeroU64,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api,
    peer::client::{Peers, Secrets},
    service::{Access, Options, Service},
    settings::Settings,
    store,
};

/// The file whose lock says that a process uses the directory.
const LOCK: &str = "lock";
/// How long leadership may take to change hands.
const HAND_OVER: Duration = Duration::from_secs(5);
/// How long requests that are being served may take to end; the listener cuts them off a little earlier.
const DRAIN: Duration = Duration::from_secs(12);
/// How long log and store may take to close; what is not carried by then is carried at the next start.
const CLOSE: Duration = Duration::from_secs(60);
/// How long anything may hold up an end that is not in order, and threads that still work any end.
const LINGER: Duration = Duration::from_secs(2);

/// Runs a node until it is told to end.
///
/// # Errors
/// Why it could not start, or could not go on.
pub fn run(settings: Settings) -> Result<(), String> {
    log_panics();
    let _lock = take_directory(&settings.data_dir)?;
    be_punctual();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.worker_threads)
        .thread_name("concord")
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let ended = runtime.block_on(live(settings));
    runtime.shutdown_timeout(LINGER);
    ended
}

/// Makes short waits end in time. The system may put 50 µs on each, for the sake of batteries; the log waits shorter
/// than that for company, before every fsync. Threads that are made from here on inherit it.
fn be_punctual() {
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        tracing::debug!(%error, "timers stay as they are");
    }
}

async fn live(settings: Settings) -> Result<(), String> {
    let stop = Stop::listen()?;
    let api = Door::open(&settings.api_addr).await?;
    let peer = Door::open(&settings.peer_addr).await?;
    let service = make_service(&settings);
    let api = api.serve(api::router(service.clone()), settings.header_timeout);
    let peer = peer.serve(api::peer::peer_router(service.clone()), settings.header_timeout);
    let (node, directory) = (settings.node_id, settings.data_dir.display());
    tracing::info!(node, api = settings.api_addr, peer = settings.peer_addr, %directory, "listening");
    let ended = tokio::select! {
        reason = work(&service) => Err(reason),
        () = stop.asked() => Ok(()),
    };
    service.stop();
    if ended.is_ok() {
        in_time(HAND_OVER, service.hand_over(), "handing over leadership").await;
    }
    // A node that can't go on has nothing to wait for: its callers are told by the end of their connections.
    let (drain, close) = if ended.is_ok() { (DRAIN, CLOSE) } else { (LINGER, LINGER) };
    api.close("callers", drain).await;
    peer.close("peers", drain).await;
    in_time(close, service.shutdown(), "closing log and store").await;
    tracing::info!(node, "ended");
    ended
}

/// Takes part in the cluster until that can't go on; gives the reason.
async fn work(service: &Service) -> String {
    if let Err(error) = service.start().await {
        return error.to_string();
    }
    if service.consensus().is_none() {
        tracing::info!("this node belongs to no cluster yet: it waits for `concord init`");
    }
    service.failed().await
}

/// Waits for a step of the end, but not for ever: what is left undone is mended at the next start.
async fn in_time(most: Duration, step: impl Future<Output = ()>, what: &str) {
    if timeout(most, step).await.is_err() {
        tracing::warn!("{what} took more than {} s and was given up", most.as_secs());
    }
}

fn make_service(settings: &Settings) -> Service {
    let secrets = settings.cluster_secrets.iter().map(|secret| secret.expose().into()).collect();
    let options = Options {
        node_id: settings.node_id,
        directory: settings.data_dir.clone(),
        limits: settings.limits.clone(),
        write_timeout: settings.write_timeout,
        read_timeout: settings.read_timeout,
        watch_heartbeat: settings.watch_heartbeat,
        timers: settings.timers.clone(),
        store: store::Options::default(),
        snapshot_log_bytes: settings.snapshot_log_bytes,
        disk_reserve_bytes: settings.disk_reserve_bytes,
        rescue: settings.peers.clone(),
        retention: settings.retention,
    };
    let listens: Option<SocketAddr> = settings.peer_addr.parse().ok();
    let source = listens.map(|listens| listens.ip()).filter(|ip| !ip.is_unspecified());
    let peers = Peers::from_address(Secrets(secrets), source);
    Service::new(options, Access::new(settings.api_key.expose()), Arc::new(peers))
}

/// The signals that end a node in order.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("signals can't be received: {error}"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn asked(mut self) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal, "told to end");
    }
}

/// A bound listener.
struct Door(TcpListener);

/// A listener that is served.
struct Served {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Door {
    async fn open(address: &str) -> Result<Self, String> {
        let bound = TcpListener::bind(address).await;
        bound.map(Self).map_err(|error| {
            let in_use = error.kind() == io::ErrorKind::AddrInUse;
            let why = if in_use { "address in use".into() } else { error.to_string() };
            format!("cannot listen on {address}: {why}")
        })
    }

    fn serve(self, router: api::Router, header_timeout: Duration) -> Served {
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        Served { task: tokio::spawn(api::server::serve(self.0, router, header_timeout, stopped)), stop }
    }
}

impl Served {
    /// Takes no more connections and waits for the requests that are being served.
    async fn close(mut self, whose: &str, drain: Duration) {
        self.stop.cancel();
        match timeout(drain, &mut self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("the listener for {whose} had ended: {error}"),
            Err(_) => {
                self.task.abort();
                tracing::warn!("requests of {whose} were cut off after {} s", drain.as_secs());
            }
        }
    }
}

/// Makes the directory when there is none, and takes it for this process.
fn take_directory(directory: &Path) -> Result<File, String> {
    let shown = directory.display();
    let failed = |error: io::Error| format!("data directory {shown}: {error}");
    fs::create_dir_all(directory).map_err(failed)?;
    check_is_ours(directory)?;
    let lock = File::options().create(true).append(true).open(directory.join(LOCK)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(format!("data directory {shown}: another process uses it")),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Refuses a directory that has files but no identity: it is somebody else's, or a node's that has lost its
/// identity and must not begin anew.
fn check_is_ours(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("data directory {}: {error}", directory.display());
    let mut foreign = None;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        if name == "identity.json" {
            return Ok(());
        }
        // A volume's own folder, and an identity that was being written when the power went.
        if name != LOCK && name != "lost+found" && !name.starts_with("identity.json.") {
            foreign = Some(name.into_owned());
        }
    }
    match foreign {
        None => Ok(()),
        Some(name) => Err(format!(
            "data directory {} is no node's: it has `{name}`, but no identity.json; give an empty directory",
            directory.display()
        )),
    }
}

/// A panic is logged with its place, as one event, wherever the log goes.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no text");
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(place, thread, %backtrace, "panicked: {text}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_serves_one_process() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("deep/data");
        let first = take_directory(&directory).unwrap();
        assert!(take_directory(&directory).unwrap_err().contains("another process"));
        drop(first);
        assert!(take_directory(&directory).is_ok());
    }

    #[test]
    fn a_foreign_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.txt"), "mine").unwrap();
        assert!(take_directory(directory.path()).unwrap_err().contains("`thesis.txt`"));
        fs::write(directory.path().join("identity.json"), "{}").unwrap();
        assert!(take_directory(directory.path()).is_ok());
    }

    #[tokio::test]
    async fn a_taken_port_is_told() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let Err(error) = Door::open(&address).await else { panic!("bound twice") };
        assert_eq!(error, format!("cannot listen on {address}: address in use"));
    }
}
