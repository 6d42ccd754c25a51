//! What other members call: openraft's questions, and snapshots.
//!
//! **Invariant:** only a call that `peers.rs` has admitted comes here; a malformed body is refused, never guessed at.

use std::io;

use bytes::Bytes;
use futures::stream::BoxStream;

use super::{
    Consensus,
    machine::snapshot_of,
    snapshot,
    wire::{self, Answer, Append, Appended, Ask, Ballot, Head, Transfer, Transferred},
};
use crate::peer::ReceiveError;
use crate::peer::call::Call;

fn failed(error: impl std::fmt::Display) -> ReceiveError {
    ReceiveError::Failed(error.to_string())
}

impl Consensus {
    /// Answers a peer's call. The caller has checked secret and identity headers.
    ///
    /// # Errors
    /// When the body is malformed, the call not one of these, or this node has stopped.
    pub async fn receive(&self, call: Call, body: Bytes) -> Result<Bytes, ReceiveError> {
        let raft = &self.inner.raft;
        let answer = match call {
            Call::Append => {
                let rpc = wire::from_bytes::<Append>(&body)?.try_into()?;
                wire::to_bytes(&Appended::from(raft.append_entries(rpc).await.map_err(failed)?))
            }
            Call::Vote => {
                let rpc = wire::from_bytes::<Ask>(&body)?.into();
                wire::to_bytes(&Answer::from(raft.vote(rpc).await.map_err(failed)?))
            }
            Call::PreVote => {
                let ask = wire::from_bytes::<Ask>(&body)?;
                // Whoever asks for votes is alive: a leader need not wait to send to it.
                let candidate = ask.vote.node;
                let answer = raft.pre_vote(ask.into()).await.map_err(failed)?;
                raft.trigger().reset_backoff([candidate]).await.map_err(failed)?;
                wire::to_bytes(&Answer::from(answer))
            }
            Call::Transfer => {
                let rpc = wire::from_bytes::<Transfer>(&body)?.into();
                wire::to_bytes(&Transferred::from(raft.handle_transfer_leader(rpc).await.map_err(failed)?))
            }
            Call::Digests => {
                let publisher = &self.inner.publisher;
                wire::to_bytes(&publisher.digests.list(&publisher.applied.load().state))
            }
            // Answered by the service, or not by a body alone.
            Call::Stream
            | Call::Snapshot
            | Call::FetchSnapshot
            | Call::ReadIndex
            | Call::Write
            | Call::Writes
            | Call::Page
            | Call::History
            | Call::Change
            | Call::Join => return Err(ReceiveError::Unknown(call.to_string())),
        };
        Ok(answer.into())
    }

    /// Takes a snapshot that a leader sends. `head` is the value of the header `x-concord-head` as it came; `body`
    /// is the file as a stream of chunks.
    ///
    /// # Errors
    /// When the head is malformed, the file is not whole, or this node has stopped.
    pub async fn receive_snapshot(
        &self,
        head: Bytes,
        body: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<Bytes, ReceiveError> {
        let head = Head::from_header(&head)?;
        let vote = head.vote.ok_or_else(|| ReceiveError::Malformed("the head has no vote".into()))?;
        let file = snapshot::receive(&self.inner.store, &head, body).await?;
        let path = file.path.clone();
        let snapshot = snapshot_of(file).map_err(failed)?;
        let answer = self.inner.raft.install_full_snapshot(vote.into(), snapshot).await.map_err(failed)?;
        // Adopting moves the file. It is still there when openraft had no use for it.
        match tokio::fs::remove_file(&path).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "an unused snapshot could not be removed");
            }
        }
        Ok(wire::to_bytes(&Ballot::from(&answer.vote)).into())
    }

    /// The newest snapshot, for a member that has lost its state: the value of the header `x-concord-head`, and
    /// the file.
    pub async fn current_snapshot(&self) -> Option<(Bytes, tokio::fs::File)> {
        let file = self.inner.store.current_snapshot()?;
        let opened = tokio::fs::File::open(&file.path).await;
        let opened =
            opened.inspect_err(|error| tracing::error!(%error, "the newest snapshot can't be read")).ok()?;
        let (index, stamp) = (file.position.index, file.position.raft_meta);
        let head = Head { vote: None, index, stamp, bytes: file.bytes, digest: file.digest };
        Some((head.to_header().into_bytes().into(), opened))
    }
}
