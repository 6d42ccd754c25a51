//! Answers the RPCs of other members: openraft's requests, snapshots and digests.
//!
//! **Invariants**
//! 1. `crates/net/src/admission.rs` admitted every RPC that arrives here. A malformed body is rejected.
//! 2. openraft gets no vote and no entry that this member must not grant or confirm (`witness/participation.rs`), and
//!    no entry and no snapshot that contradicts a committed entry of its log, also where that is purged.
//! 3. A node requests votes, sends entries or snapshots, and transfers leadership only in its own name.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::stream::BoxStream;
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest};

use super::{
    Consensus,
    figures::count,
    machine::snapshot_of,
    snapshot,
    types::TypeConfig,
    wire::{
        self, SnapshotHeader, StateMetadata, WireAppendRequest, WireAppendResponse, WireConfirmation,
        WireLogId, WireTransferRequest, WireTransferResponse, WireVote, WireVoteRequest, WireVoteResponse,
    },
};
use concord_model::{record::Revision, sabotage};
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

/// Why entries from a leader are not passed to openraft.
#[derive(Debug)]
pub(super) enum AppendRefusal {
    /// This member may have voted in this later term.
    HigherVote(WireVote),
    Failed(String),
}

/// The committed entry of this member's log where the log of the leader has another entry, if there is one.
#[derive(Debug, Default)]
pub(super) struct Contradicted(Mutex<Option<(NodeId, WireLogId)>>);

impl Contradicted {
    fn lock(&self) -> MutexGuard<'_, Option<(NodeId, WireLogId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leader, and the index of the entry.
    pub(super) fn get(&self) -> Option<(NodeId, u64)> {
        self.lock().map(|(leader, own)| (leader, own.index))
    }

    /// Records that the leader's log agrees with this one up to this entry.
    fn agrees(&self, index: u64) {
        self.lock().take_if(|(_, own)| own.index <= index);
    }

    fn note(&self, leader: NodeId, own: WireLogId) {
        let index = own.index;
        if self.lock().replace((leader, own)).is_none_or(|(_, known)| known != own) {
            tracing::error!(
                leader,
                index,
                "entry {index} of this member's log is committed, but the log of the leader, node {leader}, has \
                 another entry there. This member confirms none of the leader's entries. Acknowledged writes were \
                 lost on other members, and this one may have the only copy of them"
            );
        }
    }
}

impl Consensus {
    /// Answers an RPC of the member `from`.
    ///
    /// # Errors
    /// If the body is malformed, if the RPC is not one of consensus, or if this node has stopped.
    pub async fn receive(&self, from: NodeId, call: Call, body: Bytes) -> Result<Bytes, ReceiveError> {
        let raft = &self.inner.raft;
        let response = match call {
            // A frame on an open connection, without entries.
            Call::Heartbeats => {
                let request = wire::from_bytes::<WireAppendRequest>(&body)?;
                check_sender(&request.vote, from)?;
                let rpc = request.try_into()?;
                let response = match self.judge_append(&rpc).await {
                    Ok(()) => WireAppendResponse::from(raft.append_entries(rpc).await.map_err(failed)?),
                    Err(AppendRefusal::HigherVote(vote)) => WireAppendResponse::HigherVote(vote),
                    Err(AppendRefusal::Failed(why)) => return Err(ReceiveError::Failed(why)),
                };
                wire::to_bytes(&WireConfirmation { lease: self.inner.timers.lease(), response })
            }
            Call::Vote => {
                let request = wire::from_bytes::<WireVoteRequest>(&body)?;
                check_sender(&request.vote, from)?;
                match self.judge_vote(&request).await? {
                    Some(refusal) => wire::to_bytes(&refusal),
                    None => wire::to_bytes(&WireVoteResponse::from(
                        raft.vote(request.into()).await.map_err(failed)?,
                    )),
                }
            }
            Call::PreVote => {
                let request = wire::from_bytes::<WireVoteRequest>(&body)?;
                check_sender(&request.vote, from)?;
                // A candidate is alive, so this node sends to it at once if it becomes leader, without waiting for the
                // back-off to end.
                let candidate = request.vote.node;
                let response = match self.judge_vote(&request).await? {
                    Some(refusal) => refusal,
                    None => raft.pre_vote(request.into()).await.map_err(failed)?.into(),
                };
                raft.trigger().reset_backoff([candidate]).await.map_err(failed)?;
                wire::to_bytes(&response)
            }
            Call::Transfer => {
                let request = wire::from_bytes::<WireTransferRequest>(&body)?;
                check_sender(&request.from, from)?;
                let term = request.from.term;
                if !self.inner.witnesses.witness.is_open() {
                    return Err(ReceiveError::Failed(
                        "this member has not caught up after the rollback of its disk".into(),
                    ));
                }
                let rpc: TransferLeaderRequest<TypeConfig> = request.into();
                self.inner.transfers.note(from, *rpc.to_node_id(), term);
                wire::to_bytes(&WireTransferResponse::from(
                    raft.handle_transfer_leader(rpc).await.map_err(failed)?,
                ))
            }
            Call::Digests => {
                let revision = wire::from_bytes::<Revision>(&body)?;
                let publisher = &self.inner.publisher;
                wire::to_bytes(&publisher.digests.list_with(&publisher.applied.load().state, revision))
            }
            Call::Witness => self.inner.witnesses.answer(from, &body).await?,
            // The service answers these, or they consist of more than a body and a response.
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
            | Call::Audit
            | Call::Report
            | Call::Levels => return Err(ReceiveError::Unknown(call.to_string())),
        };
        Ok(response.into())
    }

    /// Judges a vote that another member requests: `None` if openraft may answer, else the rejection. A leader whose
    /// entries contradict this member's is not elected again.
    pub(super) async fn judge_vote(
        &self,
        request: &WireVoteRequest,
    ) -> Result<Option<WireVoteResponse>, ReceiveError> {
        let candidate = request.vote.node;
        if self.inner.contradicted.get().is_some_and(|(leader, _)| leader == candidate) {
            return Ok(Some(self.inner.log.position().await.map_err(failed)?.refusal()));
        }
        self.inner.witnesses.witness.judge_vote(request).await
    }

    /// Checks entries or a heartbeat from a leader: this member must not confirm entries that contradict what it has
    /// confirmed or committed before.
    pub(super) async fn judge_append(
        &self,
        request: &AppendEntriesRequest<TypeConfig>,
    ) -> Result<(), AppendRefusal> {
        let (vote, leader) = (WireVote::from(&request.vote), request.vote.leader_id.node_id);
        let judged = self.inner.witnesses.witness.judge_leader(vote).await;
        judged.map_err(|greater| match greater {
            Some(vote) => AppendRefusal::HigherVote(vote),
            None => AppendRefusal::Failed("this member must not confirm entries yet".into()),
        })?;
        let ids = request.prev_log_id.into_iter().chain(request.entries.iter().map(|entry| entry.log_id));
        let applied = self.inner.publisher.applied.load_full();
        let compared = self.inner.log.compared_with(ids.map(WireLogId::from), Some(&applied)).await;
        match compared.map_err(|error| AppendRefusal::Failed(error.to_string()))? {
            Some((own, theirs)) if own != theirs && !sabotage::is("contradiction-ignored") => {
                let later = self.later_vote(vote).await;
                if let Some(later) = later.map_err(|error| AppendRefusal::Failed(error.to_string()))? {
                    return Err(AppendRefusal::HigherVote(later));
                }
                self.inner.contradicted.note(leader, own);
                return Err(AppendRefusal::Failed(format!(
                    "entry {} is committed here with different content",
                    own.index
                )));
            }
            // What an earlier leader has sent says nothing of the log of the one that contradicts.
            Some((own, _)) if self.inner.contradicted.get().is_some() => {
                let later = self.later_vote(vote).await;
                if later.map_err(|error| AppendRefusal::Failed(error.to_string()))?.is_none() {
                    self.inner.contradicted.agrees(own.index);
                }
            }
            Some(_) | None => {}
        }
        self.inner.last_heard.note(leader);
        Ok(())
    }

    /// The vote of this member, if it is later than that of a leader. What the leader sent was on the way while another one
    /// was elected, so it says nothing of the leader's log of now. The vote is read after the logs were compared: an entry
    /// of the later term is committed here only after the vote for it was stored.
    async fn later_vote(&self, leader: WireVote) -> io::Result<Option<WireVote>> {
        Ok(self.inner.log.position().await?.vote.filter(|own| *own > leader))
    }

    /// Receives a snapshot from the leader `from`. `header` is the value of the HTTP header `x-concord-head`; `body` is
    /// the file as a stream of chunks.
    ///
    /// # Errors
    /// If the header is malformed, if the file is damaged, or if this node has stopped.
    pub async fn receive_snapshot(
        &self,
        from: NodeId,
        header: Bytes,
        body: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<Bytes, ReceiveError> {
        let header = SnapshotHeader::from_header(&header)?;
        let vote = header.vote.ok_or_else(|| ReceiveError::Malformed("the header has no vote".into()))?;
        check_sender(&vote, from)?;
        if self.inner.witnesses.witness.judge_leader(vote).await.is_err() {
            return Err(ReceiveError::Failed("this member must not follow a leader of this term".into()));
        }
        let metadata = StateMetadata::decode(&header.metadata).map_err(ReceiveError::Malformed)?;
        let applied = self.inner.publisher.applied.load_full();
        let contradiction =
            metadata.last_log_id.and_then(|last| applied.contradicted_by(last, &metadata.terms));
        if let Some(own) = contradiction {
            self.inner.contradicted.note(from, own);
            return Err(ReceiveError::Failed(format!(
                "entry {} is committed here, and the snapshot is of a history with another one",
                own.index
            )));
        }
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
        // Installing moves the file. If openraft did not install the snapshot, the file is still there.
        let unused = path.clone();
        let removed = crate::blocking::blocking(move || std::fs::remove_file(unused)).await;
        match removed.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "failed to remove an unused snapshot");
            }
        }
        Ok(wire::to_bytes(&WireVote::from(&response.vote)).into())
    }

    /// The newest snapshot, for a member that has lost its state: the value of the HTTP header `x-concord-head`,
    /// and its content. If there is none, it is built now. `None` while the state of this node is not proven.
    pub async fn current_snapshot(&self) -> Option<(Bytes, SnapshotContent)> {
        if !self.inner.proof.is_given() {
            return None;
        }
        let opened = match self.inner.store.current_snapshot() {
            Some(file) => {
                let content = self.inner.store.content(&file).await;
                content.map(|content| (file, content)).map_err(|error| error.to_string())
            }
            None => self.fresh_snapshot().await,
        };
        let (file, opened) =
            opened.inspect_err(|error| tracing::error!(%error, "the newest snapshot can't be read")).ok()?;
        let (index, metadata) = (file.position.index, file.position.raft_meta);
        let header = SnapshotHeader { vote: None, index, metadata, bytes: file.bytes, digest: file.digest };
        Some((header.to_header().into_bytes().into(), opened))
    }
}
