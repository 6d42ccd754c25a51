//! A node in a simulation: the service with its two listeners, as `src/node/mod.rs` starts it in a process.

use std::{cell::RefCell, path::PathBuf, rc::Rc, sync::Arc, time::Duration};

use concord_http::{
    Api, Served,
    peer::PeerListener,
    server::{ServeOptions, ShareOf, Transport},
};
use concord_model::{access_key::Quota, limits::Limits};
use concord_net::{
    Member,
    client::{Peers, Secrets},
    outgoing::address::OutgoingPolicy,
    socket::TcpListener,
};
use concord_service::{Access, Options, Retention, Service, audit::AuditOptions};
use concord_storage::StoreOptions;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::setup::Setup;

pub(crate) const ROOT_KEY: &str = "a-root-key-for-the-simulation";
const SECRET: &str = "a-secret-of-the-simulated-cluster";
pub(crate) const API_PORT: u16 = 8200;
const PEER_PORT: u16 = 8201;

/// The name of a node in the network.
pub(crate) fn name(node: usize) -> String {
    format!("n{node}")
}

/// What the simulation sees of a node from outside.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// While it runs.
    pub(crate) service: Option<Service>,
    /// Shuts it down.
    pub(crate) stop: CancellationToken,
    /// It was shut down, and has ended.
    pub(crate) has_stopped: bool,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

pub(crate) type Nodes = Rc<Vec<RefCell<Watched>>>;

pub(crate) fn member(node: usize) -> Member {
    Member {
        id: node as u64,
        api_addr: format!("{}:{API_PORT}", name(node)),
        peer_addr: format!("{}:{PEER_PORT}", name(node)),
    }
}

/// The members of the new cluster.
fn founders(setup: &Setup) -> Vec<Member> {
    (1..=setup.founders()).map(member).collect()
}

/// Sets how much space the volume of a node has left.
pub(crate) fn set_free_bytes(node: usize, bytes: Option<u64>) {
    concord_service::set_free_bytes(&PathBuf::from(name(node)), bytes);
}

fn service(setup: &Setup, node: usize) -> Service {
    let options = Options {
        node_id: node as u64,
        directory: PathBuf::from(name(node)),
        limits: Limits::default(),
        write_timeout: Duration::from_secs(5),
        read_timeout: Duration::from_secs(5),
        watch_heartbeat: Duration::from_secs(5),
        consensus_runtime: None,
        timers: setup.timers.timers(),
        store: StoreOptions { segment_bytes: setup.segment_bytes, ..StoreOptions::default() },
        snapshot_log_bytes: setup.snapshot_log_bytes,
        log_stall_timeout: Duration::from_secs(20),
        disk_reserve_bytes: 1 << 20,
        rescue: Vec::new(),
        data_key_file: None,
        backup_envelope: None,
        retention: Retention { revisions: Some(setup.retained_revisions), ..Retention::default() },
        feature_level_max: concord_model::feature::level_max(),
        caller_tls: None,
        audit: AuditOptions::off(),
        quotas: Quota::default(),
        failed_credentials: 0,
        spans: None,
        identity_calls: OutgoingPolicy::Off,
    };
    let own = member(node);
    let peers = Peers::new(Secrets(vec![SECRET.into()])).known_as(None, vec![own.peer_addr]);
    Service::new(options, Access::new([ROOT_KEY]), Arc::new(peers))
}

/// Runs a node until it is told to stop, or fails.
pub(crate) async fn run(setup: Rc<Setup>, node: usize, nodes: Nodes) -> turmoil::Result {
    let stop = CancellationToken::new();
    {
        let mut watched = nodes[node].borrow_mut();
        watched.stop = stop.clone();
        watched.has_stopped = false;
    }
    std::fs::create_dir_all(name(node))?;
    let service = service(&setup, node);
    nodes[node].borrow_mut().service = Some(service.clone());
    let api = TcpListener::bind(("0.0.0.0", API_PORT)).await?;
    let peer = TcpListener::bind(("0.0.0.0", PEER_PORT)).await?;
    let (closed, is_over) = (CancellationToken::new(), CancellationToken::new());
    let api = Served::Clients(Api::new(service.clone())).serve(
        api,
        Transport::Plain,
        options(ShareOf::All),
        closed.clone(),
    );
    let listener = PeerListener::new(service.clone(), Handle::current());
    let peer =
        Served::Peers(listener).serve(peer, Transport::Plain, options(ShareOf::Unknown), is_over.clone());
    let (api, peer) = (tokio::spawn(api), tokio::spawn(peer));
    let ended = tokio::select! {
        biased;
        why = participate(&service, &setup) => Some(why),
        () = stop.cancelled() => None,
    };
    service.stop();
    if let Some(why) = ended {
        nodes[node].borrow_mut().failure.get_or_insert(why);
    } else {
        service.hand_over().await;
        closed.cancel();
        let api = api.await;
        is_over.cancel();
        let peer = peer.await;
        if let Some(error) = api.err().or(peer.err()) {
            nodes[node].borrow_mut().failure.get_or_insert(error.to_string());
        }
        service.shutdown().await;
    }
    let mut watched = nodes[node].borrow_mut();
    watched.service = None;
    watched.has_stopped = true;
    Ok(())
}

/// Takes part in the cluster until the node fails; returns the reason.
async fn participate(service: &Service, setup: &Setup) -> String {
    if let Err(error) = service.members.start().await {
        return error.to_string();
    }
    // The one with the lowest id forms the cluster, as `CONCORD_FORM` says.
    if service.cx.node_id() == 1 {
        let members = founders(setup);
        tokio::select! {
            biased;
            reason = service.failed() => return reason,
            () = service.members.form_when_possible(&members) => {}
        }
    }
    service.failed().await
}

fn options(share_of: ShareOf) -> ServeOptions {
    ServeOptions {
        connections_max: 256,
        per_address_max: 128,
        share_of,
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        send_timeout: Duration::from_secs(10),
    }
}
