//! openraft's calls to the other members.
//!
//! | call | connections | deadline |
//! |---|---|---|
//! | heartbeat, votes, transfer | pulse | openraft's |
//! | entries | a stream (`stream.rs`) | ours: by size, for an entry of 8 MiB on a slow link takes longer than a heartbeat |
//! | snapshot | bulk | openraft's, 120 s |
//!
//! **Invariants**
//! 1. A dead peer is `Unreachable`, so openraft backs off; so is a snapshot past its deadline, which openraft would
//!    otherwise send again at once.
//! 2. A damaged snapshot file does not end the leader: a new one is built, the member waits.

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
use tokio::sync::{Notify, mpsc};

use super::{
    stream::{Appends, Frames, frames},
    types::{Kind, Snapshot, Vote},
    wire::{self, Answer, Append, Appended, Ask, Ballot, Head, Transfer, Transferred},
};
use crate::peer::call::Call;
use crate::{
    peer::{
        Member, NodeId,
        client::{CallError, Lane, Peers},
    },
    store::{SnapshotFile, Store},
};

/// How long a peer may take for entries, beside their transfer: a slow fsync, not a dead disk.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long for an append without entries.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The slowest link that we wait for.
const BYTES_PER_SECOND_MIN: usize = 512 << 10;

/// What all connections share.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) peers: Arc<Peers>,
    pub(super) store: Store,
    /// Snapshots that are being sent: the log is not purged meanwhile.
    pub(super) sending: AtomicUsize,
    /// Wakes the builder of snapshots: the newest one is damaged.
    pub(super) rebuild: Notify,
    /// Members that answer again.
    pub(super) revived: mpsc::Sender<NodeId>,
}

/// Makes openraft's connections.
#[derive(Debug)]
pub(super) struct Network(pub(super) Arc<Links>);

/// One of openraft's connections to a member.
pub(super) struct Link {
    links: Arc<Links>,
    lane: Lane,
    to: NodeId,
    addr: String,
    /// The stream of entries, between two uses of it.
    stream: Mutex<Option<Frames>>,
    /// Whether the last heartbeat failed.
    silent: AtomicBool,
}

impl Network {
    fn link(&self, lane: Lane, to: NodeId, member: &Member) -> Link {
        let links = Arc::clone(&self.0);
        Link {
            links,
            lane,
            to,
            addr: member.peer_addr.clone(),
            stream: Mutex::default(),
            silent: AtomicBool::new(false),
        }
    }
}

impl RaftNetworkFactory<Kind> for Network {
    type Network = Link;

    async fn new_client(&mut self, to: NodeId, member: &Member) -> Link {
        self.link(Lane::Append, to, member)
    }

    async fn new_heartbeat_client(&mut self, to: NodeId, member: &Member) -> Link {
        self.link(Lane::Pulse, to, member)
    }

    async fn new_snapshot_client(&mut self, to: NodeId, member: &Member) -> Link {
        self.link(Lane::Bulk, to, member)
    }
}

fn unreachable(why: impl fmt::Display) -> RPCError<Kind> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

fn unsent(why: impl fmt::Display) -> StreamingError<Kind> {
    StreamingError::Unreachable(Unreachable::from_string(why))
}

/// Counts one in while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Link {
    async fn call<T: DeserializeOwned>(
        &self,
        lane: Lane,
        call: Call,
        body: Vec<u8>,
        deadline: Duration,
    ) -> Result<T, RPCError<Kind>> {
        let called = self.links.peers.call(lane, self.to, &self.addr, call, body.into(), deadline).await;
        if lane == Lane::Pulse {
            self.note(called.as_ref().err());
        }
        let answer: Bytes = called.map_err(unreachable)?;
        wire::from_bytes(&answer).map_err(|error| RPCError::Network(NetworkError::new(&error)))
    }

    /// A member that answers heartbeats again need not wait for its back-off to end.
    fn note(&self, error: Option<&CallError>) {
        let was_silent = self.silent.swap(error.is_some(), Ordering::Relaxed);
        if was_silent && error.is_none() {
            // A full queue holds enough of them: a lost one costs half a second of back-off.
            let _ = self.links.revived.try_send(self.to);
        }
    }

    async fn snapshot(
        &self,
        vote: Vote,
        file: SnapshotFile,
        deadline: Duration,
    ) -> Result<Vote, StreamingError<Kind>> {
        let _counted = Counted::new(&self.links.sending);
        let (store, checked) = (self.links.store.clone(), file.clone());
        let whole = tokio::task::spawn_blocking(move || store.verify(&checked)).await;
        if let Err(error) = whole.map_err(unsent)? {
            tracing::error!(%error, "the snapshot that member {} needs is damaged; building another", self.to);
            self.links.rebuild.notify_one();
            return Err(unsent(error));
        }
        let head = Head {
            vote: Some(Ballot::from(&vote)),
            index: file.position.index,
            stamp: file.position.raft_meta.clone(),
            bytes: file.bytes,
            digest: file.digest,
        };
        let opened = tokio::fs::File::open(&file.path).await.map_err(unsent)?;
        let (head, peers) = (head.to_header(), &self.links.peers);
        let answer =
            peers.send_snapshot(self.to, &self.addr, (&head, opened), deadline).await.map_err(unsent)?;
        let ballot: Ballot = wire::from_bytes(&answer).map_err(unsent)?;
        Ok(ballot.into())
    }
}

/// What openraft hears of one of its requests.
type Appending = Result<StreamAppendResult<Kind>, RPCError<Kind>>;

/// How long to wait for the answer to a body of this length.
fn append_deadline(entries: usize, bytes: usize) -> Duration {
    if entries == 0 {
        return PROBE_TIMEOUT;
    }
    let seconds = u64::try_from(bytes / BYTES_PER_SECOND_MIN).unwrap_or(u64::MAX);
    APPEND_TIMEOUT.saturating_add(Duration::from_secs(seconds))
}

impl RaftNetworkV2<Kind> for Link {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Kind>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Kind>, RPCError<Kind>> {
        let body = wire::to_bytes(&Append::from(&rpc));
        let answer: Appended = self.call(self.lane, Call::Append, body, option.hard_ttl()).await?;
        Ok(answer.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Appending>, RPCError<Kind>>>
    where
        S: Stream<Item = AppendEntriesRequest<Kind>> + Send + Unpin + 'static,
    {
        match self.lane {
            Lane::Append => {
                let (peers, to, addr) = (&self.links.peers, self.to, &self.addr);
                let open = async move {
                    let wire = peers.open_stream(to, addr).await.map_err(unreachable)?;
                    Ok(frames(Box::new(wire)))
                };
                let kept = self.stream.get_mut().unwrap_or_else(PoisonError::into_inner);
                let answers = Appends::new(kept, open.boxed(), input, append_deadline).answers();
                std::future::ready(Ok(answers)).boxed()
            }
            Lane::Pulse | Lane::Forward | Lane::Bulk => stream_append_sequential(self, input, option),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Kind>,
        option: RPCOption,
    ) -> Result<VoteResponse<Kind>, RPCError<Kind>> {
        let body = wire::to_bytes(&Ask::from(&rpc));
        let answer: Answer = self.call(Lane::Pulse, Call::Vote, body, option.hard_ttl()).await?;
        Ok(answer.into())
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Kind>,
        option: RPCOption,
    ) -> Result<VoteResponse<Kind>, RPCError<Kind>> {
        let body = wire::to_bytes(&Ask::from(&rpc));
        let answer: Answer = self.call(Lane::Pulse, Call::PreVote, body, option.hard_ttl()).await?;
        Ok(answer.into())
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Kind>, StreamingError<Kind>> {
        let deadline = option.hard_ttl();
        tokio::select! {
            sent = tokio::time::timeout(deadline, self.snapshot(vote, snapshot.snapshot, deadline)) => {
                let vote = sent.unwrap_or_else(|_| Err(unsent(format!("not sent within {deadline:?}"))))?;
                Ok(SnapshotResponse::new(vote))
            }
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<Kind>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Kind>, RPCError<Kind>> {
        let body = wire::to_bytes(&Transfer::from(&rpc));
        let answer: Transferred = self.call(Lane::Pulse, Call::Transfer, body, option.hard_ttl()).await?;
        Ok(answer.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_append_is_given_the_time_of_its_transfer() {
        assert_eq!(append_deadline(0, 100), PROBE_TIMEOUT);
        assert_eq!(append_deadline(1, 100), APPEND_TIMEOUT);
        assert_eq!(append_deadline(1, 8 << 20), APPEND_TIMEOUT + Duration::from_secs(16));
    }
}
