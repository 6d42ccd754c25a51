//! Answers the RPCs of other members: openraft's requests, snapshots and digests.
//!
//! **Invariants**
//! 1. `crates/net/src/admission.rs` admitted every RPC that arrives here. A malformed body is rejected.
//! 2. A node requests votes, sends entries or a snapshot, and transfers leadership in its own name only.

use std::{io, sync::atomic::Ordering};

use bytes::Bytes;
use futures::stream::BoxStream;

use super::{
    Consensus,
    figures::count,
    machine::snapshot_of,
    snapshot,
    wire::{
        self, SnapshotHeader, WireAppendRequest, WireAppendResponse, WireTransferRequest,
        WireTransferResponse, WireVote, WireVoteRequest, WireVoteResponse,
    },
};
use concord_net::{NodeId, ReceiveError, call::Call};
use concord_storage::SnapshotContent;

fn failed(error: impl std::fmt::Display) -> ReceiveError {
    ReceiveError::Failed(error.to_string())
}

/// Checks that a vote is that of the node that sends it.
pub(super) fn check_sender(vote: &WireVote, from: NodeId) -> Result<(), ReceiveError> {
    if vote.node == from {
        return Ok(());
    }
    Err(ReceiveError::Malformed(format!("node {from} sent the vote of node {}", vote.node)))
}

impl Consensus {
    /// Answers a call of the member `from`.
    ///
    /// # Errors
    /// When the body is malformed, the call is none of consensus, or this node has stopped.
    pub async fn receive(&self, from: NodeId, call: Call, body: Bytes) -> Result<Bytes, ReceiveError> {
        let raft = &self.inner.raft;
        let response = match call {
            // A frame of the connection, without entries.
            Call::Heartbeats => {
                let request = wire::from_bytes::<WireAppendRequest>(&body)?;
                check_sender(&request.vote, from)?;
                let rpc = request.try_into()?;
                wire::to_bytes(&WireAppendResponse::from(raft.append_entries(rpc).await.map_err(failed)?))
            }
            Call::Vote => {
                let request = wire::from_bytes::<WireVoteRequest>(&body)?;
                check_sender(&request.vote, from)?;
                wire::to_bytes(&WireVoteResponse::from(raft.vote(request.into()).await.map_err(failed)?))
            }
            Call::PreVote => {
                let request = wire::from_bytes::<WireVoteRequest>(&body)?;
                check_sender(&request.vote, from)?;
                // A candidate is alive: a leader need not wait for its back-off to end before it sends to it.
                let candidate = request.vote.node;
                let response = raft.pre_vote(request.into()).await.map_err(failed)?;
                raft.trigger().reset_backoff([candidate]).await.map_err(failed)?;
                wire::to_bytes(&WireVoteResponse::from(response))
            }
            Call::Transfer => {
                let request = wire::from_bytes::<WireTransferRequest>(&body)?;
                check_sender(&request.from, from)?;
                self.inner.handed_over.store(from, Ordering::Relaxed);
                let rpc = request.into();
                wire::to_bytes(&WireTransferResponse::from(
                    raft.handle_transfer_leader(rpc).await.map_err(failed)?,
                ))
            }
            Call::Digests => {
                let publisher = &self.inner.publisher;
                wire::to_bytes(&publisher.digests.list(&publisher.applied.load().state))
            }
            // The service answers these, or they are more than a body and a response.
            Call::Stream
            | Call::Snapshot
            | Call::FetchSnapshot
            | Call::ReadIndex
            | Call::Write
            | Call::Writes
            | Call::Page
            | Call::History
            | Call::Change
            | Call::Join
            | Call::Clock
            | Call::Room
            | Call::Prove
            | Call::Levels => return Err(ReceiveError::Unknown(call.to_string())),
        };
        Ok(response.into())
    }

    /// Receives a snapshot from the leader `from`. `header` is the value of the HTTP header `x-concord-head`; `body` is the
    /// file as a stream of chunks.
    ///
    /// # Errors
    /// When the header is malformed, the file is damaged, or this node has stopped.
    pub async fn receive_snapshot(
        &self,
        from: NodeId,
        header: Bytes,
        body: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<Bytes, ReceiveError> {
        let header = SnapshotHeader::from_header(&header)?;
        let vote = header.vote.ok_or_else(|| ReceiveError::Malformed("the header has no vote".into()))?;
        check_sender(&vote, from)?;
        let counts = &self.inner.context.counts;
        let received = snapshot::receive(&self.inner.store, &header, body).await;
        let file = received.inspect_err(|_| count(&counts.snapshots_failed))?;
        count(&counts.snapshots_received);
        tracing::info!(
            node = from,
            revision = file.revision,
            bytes = file.bytes,
            "received a snapshot from node {from}"
        );
        let path = file.path.clone();
        let snapshot = snapshot_of(file).map_err(failed)?;
        let response = self.inner.raft.install_full_snapshot(vote.into(), snapshot).await.map_err(failed)?;
        // Installing moves the file. It is still there when openraft had no use for it.
        match tokio::fs::remove_file(&path).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "failed to remove an unused snapshot");
            }
        }
        Ok(wire::to_bytes(&WireVote::from(&response.vote)).into())
    }

    /// The newest snapshot, for a member that has lost its state: the value of the HTTP header `x-concord-head`,
    /// and its content.
    pub async fn current_snapshot(&self) -> Option<(Bytes, SnapshotContent)> {
        let file = self.inner.store.current_snapshot()?;
        let opened = self.inner.store.content(&file).await;
        let opened =
            opened.inspect_err(|error| tracing::error!(%error, "the newest snapshot can't be read")).ok()?;
        let (index, metadata) = (file.position.index, file.position.raft_meta);
        let header = SnapshotHeader { vote: None, index, metadata, bytes: file.bytes, digest: file.digest };
        Some((header.to_header().into_bytes().into(), opened))
    }
}
