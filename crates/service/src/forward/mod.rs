//! Sends a write to the leader's peer listener and returns its outcome.
//!
//! | topic | file |
//! |---|---|
//! | the bytes of a forwarded write and of the response | `wire` |
//! | forwarding batches: small writes that share an RPC | `batching` |
//! | receiving a forwarded write on the leader | `write/forwarded` |
//!
//! **Invariant:** one hop: a forwarded write is never forwarded again. A failed RPC is classified exactly: not sent,
//! rejected before anything was done, or outcome unknown.

pub(super) mod batching;
pub(super) mod wire;

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    context::Context,
    request::{Decision, Target, WriteRequest},
    retry::{Attempt, AttemptError},
};
use batching::may_batch;
use concord_consensus::Consensus;
use concord_net::{
    Member,
    call::Call,
    client::Lane,
    codec::{decode, encode},
    trace,
};
use wire::{WireAnswer, WireRequest};

/// How long the old leader may still respond after another node leads: the old leader responds to a transfer.
pub(crate) const OLD_LEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// The part of a write's time that is reserved for the leader's response to arrive, and its bounds. A response that the
/// write was not decided must arrive before the sender's deadline even under load; otherwise the outcome is unknown.
const ANSWER_TIME_PART: u32 = 5;
const ANSWER_TIME_MIN: Duration = Duration::from_millis(100);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Forwards writes to the leader.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pub(crate) cx: Arc<Context>,
    pub(crate) batcher: Arc<batching::Batcher>,
}

impl Forwarder {
    /// Makes one attempt at a write on the leader, which is another node.
    pub(super) async fn forward(
        &self,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        leader: &Member,
        deadline: Instant,
    ) -> Attempt<Decision> {
        let (peers, batcher) = (&self.cx.peers, &self.batcher);
        // If the write were sent later, the leader would have no time to decide it, or its response would arrive too
        // late.
        let for_answer = answer_time(self.cx.options.write_timeout);
        if remaining(deadline) <= for_answer {
            return Err(AttemptError::Retry(
                "too little time is left to send the write to the leader".into(),
            ));
        }
        let sent = async {
            if may_batch(request) {
                batcher.send(peers, leader, request, deadline).await
            } else {
                Box::pin(self.send_alone(leader, request, deadline - for_answer, deadline)).await
            }
        };
        // A lost leader never responds. A write that can be retried waits no longer; another one has only this response.
        let leader_lost = async {
            consensus.leader_changed().await;
            if !request.is_repeatable() {
                sleep(OLD_LEADER_TIMEOUT).await;
            }
        };
        let answered = pin!(async {
            tokio::select! {
                attempt = sent => attempt,
                () = leader_lost => Err(AttemptError::Unknown(
                    "the leader changed while the write was in progress".into(),
                )),
            }
        });
        self.cx.spans.in_forward_span(trace::at(0), leader, answered).await
    }

    /// Sends a write in an RPC of its own, which must start before `latest`.
    async fn send_alone(
        &self,
        leader: &Member,
        request: &WriteRequest,
        latest: Instant,
        deadline: Instant,
    ) -> Attempt<Decision> {
        let is_ordinary = matches!(request.write.target(), Target::Config { .. }) && !request.caller.dry_run;
        let begun = Instant::now();
        let Ok(_place) = timeout_at(latest, self.cx.peers.lone_call(!is_ordinary)).await else {
            return Err(AttemptError::Retry(
                "the time was up before the write was sent to the leader".into(),
            ));
        };
        self.batcher.waits.observe(begun.elapsed());
        let remaining = remaining(deadline);
        let body = encode(&WireRequest::of(request, remaining));
        let answer = self
            .cx
            .peers
            .call(Lane::Forward, leader.id, &leader.peer_addr, Call::Write, body, remaining)
            .await?;
        match decode::<WireAnswer>(&answer) {
            Ok(answer) => answer.into(),
            Err(error) => Err(AttemptError::Unknown(format!("the leader's response is {error}"))),
        }
    }
}

/// The part of a write's time that is reserved for the response to arrive.
pub(super) fn answer_time(time: Duration) -> Duration {
    (time / ANSWER_TIME_PART).clamp(ANSWER_TIME_MIN, ANSWER_TIME_MAX).min(time / 2)
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
