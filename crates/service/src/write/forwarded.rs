//! Decides the writes that other nodes forward to this one.
//!
//! **Invariant:** one hop. A node that receives a forwarded write decides it or responds that it does not lead; it
//! never forwards the write again.

use std::{panic::AssertUnwindSafe, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use futures::{
    FutureExt as _, StreamExt as _,
    future::BoxFuture,
    poll,
    stream::{self, BoxStream, FuturesUnordered},
};
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::{
    context::INLINE_BYTES_MAX,
    cpu_pool::Weight,
    forward::{
        answer_time,
        batching::BATCH_WRITES_MAX,
        wire::{WireAnswer, WirePart, WireRequest, encode_part, remaining_of},
    },
    origin::Origin,
    request::{Decision, WriteRequest},
    retry::{Attempt, AttemptError},
    write::Writes,
};
use concord_net::{
    ReceiveError,
    codec::{decode, encode},
    trace,
};

/// How long the first decision of an RPC waits for others: usually one fsync of the log decides all of them, and one
/// part of the response is cheaper than many.
const GATHER_TIME: Duration = Duration::from_millis(2);
/// Writes of an RPC that are prepared in one turn: less than a millisecond.
const TURN_WRITES: usize = 32;

/// The decision on a write of an RPC, with its place in the RPC.
type WriteDecision = BoxFuture<'static, (u16, WireAnswer)>;

/// The response to a forwarding batch, in parts.
pub struct ForwardedResponse {
    /// The first decisions.
    pub first: Bytes,
    /// The other decisions as they are made; `None` if `first` has all.
    pub others: Option<BoxStream<'static, Bytes>>,
}

impl std::fmt::Debug for ForwardedResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ForwardedResponse(whole: {})", self.others.is_none())
    }
}

impl Writes {
    /// Decides a write that another node has forwarded.
    ///
    /// # Errors
    /// When this version can't read the body. Every other result is a response.
    pub async fn answer_write(self: &Arc<Self>, body: Bytes) -> Result<Bytes, ReceiveError> {
        let json_depth = self.cx.limits().json_depth;
        let open = move |body: &[u8]| decode::<WireRequest<'static>>(body)?.open(json_depth);
        let received = Instant::now();
        let (remaining, request) = if body.len() > INLINE_BYTES_MAX {
            let deadline = received + time_to_decide(remaining_of(&body)?);
            match self.cx.cpu_pool.run(Weight::Short, deadline, move |_| open(&body)).await {
                Ok(opened) => opened?,
                Err(refusal) => return Ok(encode(&WireAnswer::from(Err(refusal.into())))),
            }
        } else {
            open(&body)?
        };
        let remaining = remaining.saturating_sub(received.elapsed());
        let decided =
            self.cx.spans.in_decision_span(trace::at(0), self.decide_forwarded(request, remaining)).await;
        Ok(encode(&WireAnswer::from(decided)))
    }

    /// Decides the writes of a forwarding batch, each by itself. A write that waits for a lock does not delay the
    /// decisions on the others.
    ///
    /// # Errors
    /// When this version can't read the body, or it has more writes than a forwarding batch may have. Every other
    /// result is a response.
    pub async fn answer_writes(self: &Arc<Self>, body: Bytes) -> Result<ForwardedResponse, ReceiveError> {
        let all = self.decisions(&body)?;
        drop(body);
        let (mut decisions, begun) = begin(all).await;
        let first = encode_part(&gather(&mut decisions, begun).await);
        if decisions.is_empty() {
            return Ok(ForwardedResponse { first, others: None });
        }
        let (send, receive) = mpsc::channel(BATCH_WRITES_MAX);
        // The task ends with the last write, whose time is bounded, or when the sender has gone.
        tokio::spawn(Origin::current().serve(async move {
            while !decisions.is_empty() {
                let part = tokio::select! {
                    part = gather(&mut decisions, WirePart::new()) => part,
                    () = send.closed() => return,
                };
                if send.send(encode_part(&part)).await.is_err() {
                    return;
                }
            }
        }));
        let others = stream::unfold(receive, async |mut receive: mpsc::Receiver<Bytes>| {
            receive.recv().await.map(|part| (part, receive))
        });
        Ok(ForwardedResponse { first, others: Some(others.boxed()) })
    }

    /// The decisions on the writes of an RPC, each with its place in the RPC, in the order in which they are made.
    fn decisions(self: &Arc<Self>, body: &[u8]) -> Result<Vec<WriteDecision>, ReceiveError> {
        let requests: Vec<WireRequest<'static>> = decode(body)?;
        if requests.len() > BATCH_WRITES_MAX {
            return Err(ReceiveError::Malformed(format!("{} writes in one call", requests.len())));
        }
        let json_depth = self.cx.limits().json_depth;
        let decide = |(place, request): (u16, WireRequest<'static>)| {
            let (this, trace) = (Arc::clone(self), trace::at(usize::from(place)));
            let decided = async move {
                match request.open(json_depth) {
                    Ok((remaining, request)) => {
                        let deciding = this.decide_forwarded(request, remaining);
                        this.cx.spans.in_decision_span(trace, deciding).await.into()
                    }
                    // Only this write fails; the others of the batch are decided.
                    Err(error) => WireAnswer::Retry(format!("the leader: {error}")),
                }
            };
            contained(decided).map(move |answer| (place, answer)).boxed()
        };
        Ok((0..).zip(requests).map(decide).collect())
    }

    async fn decide_forwarded(
        self: &Arc<Self>,
        request: WriteRequest,
        remaining: Duration,
    ) -> Attempt<Decision> {
        let Some(consensus) = self.cx.consensus() else { return Err(AttemptError::Retry(self.cx.absence())) };
        if !self.cx.leads(consensus) {
            return Err(AttemptError::Retry(format!("node {} does not lead", self.cx.node_id())));
        }
        let _permit = self.admission.admit(&request.caller.principal)?;
        self.check_disk(&request.write)?;
        let time = time_to_decide(remaining).min(self.time_for(&request.write));
        let decided = self.decide(consensus, &Arc::new(request), Instant::now() + time).await;
        tracing::debug!(is_decided = decided.is_ok(), "decided a write that another node has forwarded");
        decided
    }
}

/// The decision on one of several writes. Catches a panic, which would lose the decisions on the others.
fn contained(decided: impl Future<Output = WireAnswer>) -> impl Future<Output = WireAnswer> {
    // The writes of an RPC share nothing that writes of separate RPCs do not share as well.
    AssertUnwindSafe(decided).catch_unwind().map(|answer| {
        answer.unwrap_or_else(|_| WireAnswer::Unknown("the leader failed while it decided the write".into()))
    })
}

/// How long the leader may take when the sender waits for `remaining`.
fn time_to_decide(remaining: Duration) -> Duration {
    remaining.saturating_sub(answer_time(remaining))
}

/// Begins to decide the writes, [`TURN_WRITES`] of them at a time: others run in between. Returns those that were decided
/// meanwhile apart.
async fn begin(all: Vec<WriteDecision>) -> (FuturesUnordered<WriteDecision>, WirePart) {
    let (mut decisions, mut decided) = (FuturesUnordered::new(), WirePart::new());
    for (number, decision) in (1..).zip(all) {
        decisions.push(decision);
        if number % TURN_WRITES == 0 {
            if let Poll::Ready(next) = poll!(decisions.next()) {
                decided.extend(next);
            }
            yield_now().await;
        }
    }
    (decisions, decided)
}

/// Waits for the next decision unless there are some, and for [`GATHER_TIME`] for those that are made with it.
async fn gather(decisions: &mut FuturesUnordered<WriteDecision>, mut part: WirePart) -> WirePart {
    if part.is_empty() {
        part.extend(decisions.next().await);
    }
    let others = async {
        while let Some(next) = decisions.next().await {
            part.push(next);
        }
    };
    let _not_all = timeout(GATHER_TIME, others).await.is_err();
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Principal,
        request::{Caller, Write},
    };
    use concord_model::{command::Expect, document::Document, limits::Limits};

    /// The length in front of a frame.
    const LENGTH_BYTES: usize = 4;

    #[tokio::test]
    async fn a_panic_loses_no_decision_on_another_write() {
        let failing = contained(async { panic!("a defect") }).map(|answer| (0, answer)).boxed();
        let decided =
            contained(async { WireAnswer::Retry("later".into()) }).map(|answer| (1, answer)).boxed();
        let mut decisions: FuturesUnordered<_> = [failing, decided].into_iter().collect();
        let mut part = gather(&mut decisions, WirePart::new()).await;
        part.sort_unstable_by_key(|(place, _)| *place);
        let [(0, WireAnswer::Unknown(_)), (1, WireAnswer::Retry(text))] = &part[..] else {
            panic!("{part:?}")
        };
        assert_eq!(text, "later");
    }

    #[tokio::test]
    async fn a_malformed_write_does_not_affect_the_others_of_its_batch() {
        let directory = tempfile::tempdir().unwrap();
        let service =
            crate::testing::service(directory.path(), Limits { json_depth: 2, ..Limits::default() });
        let write = |text: &str| {
            let data = Document { text: text.into(), value: serde_json::Value::Null };
            let (definition, key) = ("d".into(), "k".into());
            let write = Write::WriteConfig { definition, key, data, expect: Expect::Any };
            let principal = Principal::root();
            let caller = Caller {
                principal,
                reason: None,
                idempotency_key: None,
                dry_run: false,
                listed_variants: concord_model::schema::ListedVariants::default(),
                bypass: None,
            };
            WriteRequest::new(caller, write)
        };
        let body = |requests: &[WriteRequest]| {
            encode(
                &requests
                    .iter()
                    .map(|request| WireRequest::of(request, Duration::from_secs(30)))
                    .collect::<Vec<_>>(),
            )
        };
        let batch = body(&[write("{}"), write("[[[[]]]]"), write("{}")]);
        let parts = service.writes.answer_writes(batch).await.unwrap();
        assert!(parts.others.is_none(), "all were decided at once");
        let mut answers = decode::<WirePart>(&parts.first[LENGTH_BYTES..]).unwrap();
        answers.sort_unstable_by_key(|(place, _)| *place);
        // The node does not lead: that is the answer to the writes that it could read.
        let is_unread = |(_, answer): &(u16, WireAnswer)| matches!(answer, WireAnswer::Retry(text) if text.starts_with("the leader"));
        assert_eq!(answers.iter().map(is_unread).collect::<Vec<_>>(), [false, true, false], "{answers:?}");
        let many: Vec<WriteRequest> = (0..=BATCH_WRITES_MAX).map(|_| write("{}")).collect();
        assert!(service.writes.answer_writes(body(&many)).await.is_err());
    }
}
