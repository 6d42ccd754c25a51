//! openraft's RPCs to the other members: the calling end.
//!
//! | call | connections | deadline |
//! |---|---|---|
//! | heartbeat | persistent (`crates/net/src/framed/mod.rs`) | openraft's |
//! | vote, transfer of leadership | [`Lane::Heartbeat`] | openraft's |
//! | entries | [`Lane::Append`], as a stream (`stream.rs`) | by size: an entry of 8 MiB on a slow link takes longer than a heartbeat |
//! | snapshot | [`Lane::Bulk`] | openraft's, 120 s |
//!
//! **Invariants**
//! 1. A member that does not respond is `Unreachable`, so openraft backs off. So is a snapshot that misses its
//!    deadline: openraft would otherwise send it again immediately.
//! 2. A damaged snapshot file does not stop the leader: another one is built while the member waits.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, Stream, future::BoxFuture, stream::BoxStream};
use openraft::{
    RaftNetworkFactory, RaftNetworkV2,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use super::{
    figures::{ConsensusCounts, count},
    lease::Leases,
    stream::{AppendPipeline, frames},
    types::{Snapshot, TypeConfig, Vote},
    wire::{
        self, SnapshotHeader, WireAppendRequest, WireConfirmation, WireTransferRequest, WireTransferResponse,
        WireVote, WireVoteRequest, WireVoteResponse,
    },
    witness::Witness,
};
use concord_net::{
    Member, NodeId, PeerAddress,
    call::Call,
    client::{CallError, Lane, Peers},
    framed::{FramedCalls, Frames},
};
use concord_storage::{SnapshotFile, Store};

/// How long a member may take to store entries, in addition to their transfer: enough for a slow fsync, not for a
/// failed disk.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a member may take to answer an append without entries.
const EMPTY_APPEND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long opening a connection for entries may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// The slowest link whose transfer the deadline allows for.
const BYTES_PER_SECOND_MIN: usize = 512 << 10;

/// What the clients of all members share.
#[derive(Debug)]
pub(super) struct NetworkContext {
    pub(super) peers: Arc<Peers>,
    pub(super) store: Store,
    /// Number of snapshots that are being sent: the log is not purged meanwhile.
    pub(super) snapshots_in_flight: AtomicUsize,
    /// Wakes the snapshot scheduler: the newest snapshot is damaged.
    pub(super) rebuild: Notify,
    /// Members that answer heartbeats again.
    pub(super) recovered: mpsc::Sender<NodeId>,
    pub(super) counts: ConsensusCounts,
    pub(super) leases: Leases,
    /// Judges whether this member may ask for votes.
    pub(super) witness: Arc<Witness>,
}

/// Makes openraft's clients.
#[derive(Debug)]
pub(super) struct Network(pub(super) Arc<NetworkContext>);

/// One of openraft's clients of a member: openraft has one each for entries, heartbeats and snapshots.
pub(super) struct MemberClient {
    context: Arc<NetworkContext>,
    lane: Lane,
    to: NodeId,
    /// Its address when this client was made: openraft keeps its clients when a member moves.
    first_addr: String,
    /// The stream of entries while openraft does not use it.
    idle_stream: Mutex<Option<Frames>>,
    heartbeats: FramedCalls,
    /// Whether the last heartbeat or vote has no response yet.
    is_silent: AtomicBool,
}

impl Network {
    fn client(&self, lane: Lane, to: NodeId, member: &Member) -> MemberClient {
        MemberClient {
            context: Arc::clone(&self.0),
            lane,
            to,
            first_addr: member.peer_addr.clone(),
            idle_stream: Mutex::default(),
            heartbeats: FramedCalls::new(Lane::Heartbeat, Call::Heartbeats),
            is_silent: AtomicBool::new(false),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = MemberClient;

    async fn new_client(&mut self, to: NodeId, member: &Member) -> MemberClient {
        self.client(Lane::Append, to, member)
    }

    async fn new_heartbeat_client(&mut self, to: NodeId, member: &Member) -> MemberClient {
        self.client(Lane::Heartbeat, to, member)
    }

    async fn new_snapshot_client(&mut self, to: NodeId, member: &Member) -> MemberClient {
        self.client(Lane::Bulk, to, member)
    }
}

fn unreachable(why: impl fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

fn decode<T: DeserializeOwned>(response: &[u8]) -> Result<T, RPCError<TypeConfig>> {
    wire::from_bytes(response).map_err(|error| RPCError::Network(NetworkError::new(&error)))
}

fn snapshot_unreachable(why: impl fmt::Display) -> StreamingError<TypeConfig> {
    StreamingError::Unreachable(Unreachable::from_string(why))
}

/// Raises a counter by one until it is dropped.
struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MemberClient {
    /// Where the member is called now.
    fn addr(&self) -> String {
        self.context.peers.address_of(self.to).unwrap_or_else(|| self.first_addr.clone())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        lane: Lane,
        call: Call,
        body: Vec<u8>,
        deadline: Duration,
    ) -> Result<T, RPCError<TypeConfig>> {
        let addr = self.addr();
        let called = self.context.peers.call(lane, self.to, &addr, call, body.into(), deadline);
        let response = match lane {
            Lane::Heartbeat => self.observe(called).await,
            Lane::Append | Lane::Forward | Lane::Bulk => called.await,
        };
        decode(&response.map_err(unreachable)?)
    }

    async fn request_vote(
        &self,
        call: Call,
        rpc: &VoteRequest<TypeConfig>,
        option: &RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let request = WireVoteRequest::from(rpc);
        if let Some(refusal) = self.context.witness.judge_own_vote(&request).await.map_err(unreachable)? {
            return Ok(refusal.into());
        }
        let body = wire::to_bytes(&request);
        let response: WireVoteResponse = self.call(Lane::Heartbeat, call, body, option.hard_ttl()).await?;
        Ok(response.into())
    }

    /// Ends the back-off of a member that responds again.
    async fn observe(
        &self,
        called: impl Future<Output = Result<Bytes, CallError>>,
    ) -> Result<Bytes, CallError> {
        // Until there is an answer: openraft has the same deadline, and may drop the call before it fails.
        let was_silent = self.is_silent.swap(true, Ordering::Relaxed);
        let response = called.await?;
        self.is_silent.store(false, Ordering::Relaxed);
        if was_silent {
            // If the queue is full, the member's back-off lasts up to half a second longer.
            let _ = self.context.recovered.try_send(self.to);
        }
        Ok(response)
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        file: SnapshotFile,
    ) -> Result<Vote, StreamingError<TypeConfig>> {
        let _guard = CountGuard::new(&self.context.snapshots_in_flight);
        let (store, verified) = (self.context.store.clone(), file.clone());
        let verify = move || store.verify_or_reject(&verified);
        let verified = crate::blocking::blocking(verify).await;
        if let Err(error) = verified.map_err(snapshot_unreachable)? {
            tracing::error!(%error, "the snapshot for member {} is damaged; building another one", self.to);
            self.context.rebuild.notify_one();
            return Err(snapshot_unreachable(error));
        }
        let header = SnapshotHeader {
            vote: Some(WireVote::from(&vote)),
            index: file.position.index,
            metadata: file.position.raft_meta.clone(),
            bytes: file.bytes,
            digest: file.digest,
        };
        let content = self.context.store.content(&file).await.map_err(snapshot_unreachable)?;
        let (node, revision, bytes, begun) = (self.to, file.revision, file.bytes, Instant::now());
        tracing::info!(node, revision, bytes, "sending a snapshot to node {node}");
        let addr = self.addr();
        let sent = self.context.peers.send_snapshot(self.to, &addr, &header.to_header(), content).await;
        let response = sent.map_err(snapshot_unreachable)?;
        let vote: WireVote = wire::from_bytes(&response).map_err(snapshot_unreachable)?;
        let took = begun.elapsed();
        self.context.counts.snapshot_send_times.observe(took);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(node, revision, bytes, took_ms, "node {node} has the snapshot");
        count(&self.context.counts.snapshots_sent);
        Ok(vote.into())
    }
}

/// The outcome of one append request.
type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// How long a member may take to answer an append of so many entries and bytes.
fn append_timeout(entries: usize, bytes: usize) -> Duration {
    if entries == 0 {
        return EMPTY_APPEND_TIMEOUT;
    }
    let seconds = u64::try_from(bytes / BYTES_PER_SECOND_MIN).unwrap_or(u64::MAX);
    APPEND_TIMEOUT.saturating_add(Duration::from_secs(seconds))
}

impl RaftNetworkV2<TypeConfig> for MemberClient {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let body = wire::to_bytes(&WireAppendRequest::from(&rpc));
        // openraft sends heartbeats this way; entries go through the stream.
        let addr = self.addr();
        let (peers, to) = (&self.context.peers, PeerAddress { id: self.to, addr: &addr });
        let called = self.heartbeats.call(peers, to, body.into(), option.hard_ttl());
        let confirmation: WireConfirmation = decode(&self.observe(called).await.map_err(unreachable)?)?;
        self.context.leases.note(self.to, confirmation.lease);
        Ok(confirmation.response.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        match self.lane {
            Lane::Append => {
                let (peers, id, addr) = (&self.context.peers, self.to, self.addr());
                let open = async move {
                    let to = PeerAddress { id, addr: &addr };
                    let connection = peers.open(Lane::Append, to, Call::Stream, OPEN_TIMEOUT).await;
                    let connection = connection.map_err(unreachable)?;
                    Ok(frames(Box::new(connection)))
                };
                let idle = self.idle_stream.get_mut().unwrap_or_else(PoisonError::into_inner);
                let (leases, to) = (&self.context.leases, self.to);
                let times = self.context.counts.append_times.of(to);
                let note_answer = Box::new(move |lease, took: Option<Duration>| {
                    leases.note(to, lease);
                    took.into_iter().for_each(|took| times.observe(took));
                });
                let responses =
                    AppendPipeline::new(idle, open.boxed(), input, append_timeout, note_answer).responses();
                std::future::ready(Ok(responses)).boxed()
            }
            Lane::Heartbeat | Lane::Forward | Lane::Bulk => stream_append_sequential(self, input, option),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.request_vote(Call::Vote, &rpc, &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.request_vote(Call::PreVote, &rpc, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let deadline = option.hard_ttl();
        tokio::select! {
            sent = tokio::time::timeout(deadline, self.send_snapshot(vote, snapshot.snapshot)) => {
                let late = |_| Err(snapshot_unreachable(format!("not sent within {deadline:?}")));
                sent.unwrap_or_else(late).map(SnapshotResponse::new)
            }
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let body = wire::to_bytes(&WireTransferRequest::from(&rpc));
        let response: WireTransferResponse =
            self.call(Lane::Heartbeat, Call::Transfer, body, option.hard_ttl()).await?;
        Ok(response.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_append_timeout_includes_the_transfer() {
        assert_eq!(append_timeout(0, 100), EMPTY_APPEND_TIMEOUT);
        assert_eq!(append_timeout(1, 100), APPEND_TIMEOUT);
        assert_eq!(append_timeout(1, 8 << 20), APPEND_TIMEOUT + Duration::from_secs(16));
    }
}
