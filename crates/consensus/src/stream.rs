//! The append stream: entries from the leader to a member over one persistent connection, with pipelined requests.
//!
//! A peer RPC opens it, which is admitted like any other. Then the connection is upgraded and has frames
//! only: a length of four bytes and a [`WireAppendRequest`], or in the other direction a [`WireConfirmation`].
//! As HTTP, a request and its response would cost more than the entries in them, and the sender would have to wait
//! for each response before the next request, because requests on two connections may arrive in another order. Here
//! the commit index follows the entries at once.
//!
//! **Invariants**
//! 1. Responses have the order of the requests. When openraft's requests end, the responses end without an error:
//!    after anything else openraft starts over at once.
//! 2. A connection is not reused after any failure, nor while a response on it is outstanding.
//! 3. A member is unreachable once it has not answered within the timeout of the oldest request.
//! 4. A response confirms the request that it answers and no later one. openraft matches responses with requests by
//!    their last log id alone (`InflightAppendQueue::drain_acked`): of several requests in flight with the same last
//!    id, the first response would count as the answer to the newest, and a read index that was requested in between
//!    would be confirmed by a member that has since elected another leader. So of responses to such requests only the
//!    last is passed on.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _, future::BoxFuture, stream::BoxStream};
use openraft::{
    errors::{RPCError, Unreachable},
    raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    Consensus,
    lease::Lease,
    receive::check_sender,
    types::{LogId, TypeConfig},
    wire::{self, WireAppendRequest, WireAppendResponse, WireConfirmation},
};
use concord_net::{
    NodeId,
    framed::{self, Frames, UpgradedConnection},
};

/// Most requests in flight. Only one of them has entries: while a member writes a batch to its disk the next batch
/// grows, and one fsync of many entries costs less than two of few. The other requests only advance the commit
/// index, which needs no disk.
const REQUESTS_IN_FLIGHT_MAX: usize = 8;
/// Longest frame: the most entries that one append has, and one entry more.
const FRAME_BYTES_MAX: usize = 32 << 20;

/// The frames of a connection for entries.
pub(super) fn frames(connection: Box<dyn UpgradedConnection>) -> Frames {
    framed::frames(connection, FRAME_BYTES_MAX)
}

/// A connection that is being opened.
pub(super) type OpenFuture<'a> = BoxFuture<'a, Result<Frames, RPCError<TypeConfig>>>;

/// How long a member may take to answer a request of so many entries and bytes.
pub(super) type TimeoutOf = fn(usize, usize) -> Duration;

/// Notes the lease that comes with a response, and how long the member took if the request had entries.
pub(super) type NoteAnswer<'a> = Box<dyn Fn(Lease, Option<Duration>) + Send + 'a>;

/// A request whose response is outstanding.
#[derive(Debug)]
struct InFlightAppend {
    previous: Option<LogId>,
    last: Option<LogId>,
    has_entries: bool,
    timeout: Duration,
    sent_at: Instant,
}

/// The leader's end of a stream while openraft uses it. If it is dropped before its end, the connection is closed.
pub(super) struct AppendPipeline<'a, S> {
    frames: Option<Frames>,
    /// Opens a connection. It waits for a request: openraft backs off before it makes one, and nowhere else.
    open: Option<OpenFuture<'a>>,
    /// Where the connection waits for the next use.
    idle: &'a mut Option<Frames>,
    input: Option<S>,
    in_flight: VecDeque<InFlightAppend>,
    timeout_of: TimeoutOf,
    note_answer: NoteAnswer<'a>,
    /// When the oldest response must have arrived.
    deadline: Instant,
}

fn unreachable(why: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

impl<'a, S> AppendPipeline<'a, S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
{
    /// Sends the requests of `input` over the idle connection, or else over one that it opens. At the end the
    /// connection is idle again.
    pub(super) fn new(
        idle: &'a mut Option<Frames>,
        open: OpenFuture<'a>,
        input: S,
        timeout_of: TimeoutOf,
        note_answer: NoteAnswer<'a>,
    ) -> Self {
        let (frames, open) = (idle.take(), Some(open));
        let (input, in_flight, deadline) = (Some(input), VecDeque::new(), Instant::now());
        Self { frames, open, idle, input, in_flight, timeout_of, note_answer, deadline }
    }

    /// The responses, in the shape that openraft expects.
    pub(super) fn responses(
        self,
    ) -> BoxStream<'a, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> {
        Box::pin(futures::stream::unfold(Some(self), async |state| {
            let mut pipeline = state?;
            match pipeline.next().await {
                None => {
                    *pipeline.idle = pipeline.frames;
                    None
                }
                Some(Ok(Ok(last))) => Some((Ok(Ok(last)), Some(pipeline))),
                // The member has rejected the request: it will reject the others in flight too.
                Some(Ok(Err(refused))) => Some((Ok(Err(refused)), None)),
                Some(Err(error)) => Some((Err(error), None)),
            }
        }))
    }

    /// The next response; `None` once every request has its response and no more requests will come.
    async fn next(&mut self) -> Option<Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> {
        loop {
            let is_full = self.in_flight.len() == REQUESTS_IN_FLIGHT_MAX
                || self.in_flight.iter().any(|request| request.has_entries);
            let requests = if is_full { None } else { self.input.as_mut() };
            if requests.is_none() && self.in_flight.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                // Also while no response is outstanding: a lost connection is found before the next write.
                response = next_frame(self.frames.as_mut()) => match self.accept(response) {
                    Ok(Some(response)) => return Some(Ok(response)),
                    Ok(None) => {}
                    Err(error) => return Some(Err(unreachable(error))),
                },
                () = sleep_until(self.deadline), if !self.in_flight.is_empty() => {
                    return Some(Err(unreachable(io::Error::from(io::ErrorKind::TimedOut))));
                }
                request = next_request(requests) => match request {
                    Some(request) => if let Err(error) = self.send(&request).await {
                        return Some(Err(error));
                    },
                    None => self.input = None,
                },
            }
        }
    }

    async fn send(&mut self, request: &AppendEntriesRequest<TypeConfig>) -> Result<(), RPCError<TypeConfig>> {
        if self.frames.is_none()
            && let Some(open) = self.open.take()
        {
            self.frames = Some(open.await?);
        }
        let frames = self.frames.as_mut().ok_or_else(|| unreachable("the connection failed"))?;
        let body = wire::append_request(request);
        let timeout = (self.timeout_of)(request.entries.len(), body.len());
        let sent_at = Instant::now();
        let deadline = sent_at + timeout;
        if self.in_flight.is_empty() {
            self.deadline = deadline;
        }
        let (previous, last) = (request.prev_log_id, request.entries.last().map(|entry| entry.log_id));
        let has_entries = last.is_some();
        let last = last.or(previous);
        self.in_flight.push_back(InFlightAppend { previous, last, has_entries, timeout, sent_at });
        let sent = timeout_at(deadline, frames.send(Bytes::from(body))).await;
        sent.map_err(unreachable)?.map_err(unreachable)
    }

    /// Matches a response with the oldest request in flight. `None` when openraft would take it for the response to a
    /// later request: the response to that one says the same and more.
    fn accept(
        &mut self,
        frame: Option<io::Result<bytes::BytesMut>>,
    ) -> io::Result<Option<StreamAppendResult<TypeConfig>>> {
        let frame = frame.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        let WireConfirmation { lease, response } = wire::from_bytes(&frame).map_err(io::Error::other)?;
        let request = self.in_flight.pop_front().ok_or(io::ErrorKind::InvalidData)?;
        (self.note_answer)(lease, request.has_entries.then(|| request.sent_at.elapsed()));
        if let Some(next) = self.in_flight.front() {
            self.deadline = Instant::now() + next.timeout;
        }
        let result = AppendEntriesResponse::from(response).into_stream_result(request.previous, request.last);
        let is_ambiguous = result.is_ok() && self.in_flight.iter().any(|later| later.last == request.last);
        let is_kept = is_ambiguous && !concord_model::sabotage::is("later-request-confirmed");
        Ok(if is_kept { None } else { Some(result) })
    }
}

/// The next frame; pending without a connection.
async fn next_frame(frames: Option<&mut Frames>) -> Option<io::Result<bytes::BytesMut>> {
    match frames {
        Some(frames) => frames.next().await,
        None => std::future::pending().await,
    }
}

/// The next request; pending while none is wanted.
async fn next_request<S: Stream + Unpin>(requests: Option<&mut S>) -> Option<S::Item> {
    match requests {
        Some(requests) => requests.next().await,
        None => std::future::pending().await,
    }
}

impl Consensus {
    /// The member's end: responses the frames of a connection that `from` has opened until it ends, fails, or this node
    /// stops.
    pub async fn serve_stream(&self, from: NodeId, connection: impl UpgradedConnection + 'static) {
        let (sink, source) = frames(Box::new(connection)).split();
        // One that is refused ends the connection: the leader waits before it opens another.
        let requests = (AppendRequests { from, frames: source }, self.clone());
        let judged = futures::stream::unfold(requests, |(mut requests, consensus)| async move {
            let request = requests.next().await?;
            let judged = consensus.judge_append(&request).await;
            judged.is_ok().then_some((request, (requests, consensus)))
        });
        let responses = self.inner.raft.stream_append(Box::pin(judged));
        let stopped = self.inner.machine_dropped.clone();
        let lease = self.inner.timers.lease();
        tokio::select! {
            () = send_responses(sink, responses, lease) => {}
            () = stopped.cancelled() => {}
        }
    }
}

async fn send_responses<E>(
    mut sink: impl Sink<Bytes, Error = io::Error> + Unpin,
    responses: impl Stream<Item = Result<StreamAppendResult<TypeConfig>, E>>,
    lease: Lease,
) {
    let mut responses = std::pin::pin!(responses);
    // openraft ends the responses when the requests end or the node fails.
    while let Some(Ok(response)) = responses.next().await {
        let response = WireAppendResponse::from(AppendEntriesResponse::from(response));
        let confirmation = WireConfirmation { lease, response };
        if let Err(error) = sink.send(Bytes::from(wire::to_bytes(&confirmation))).await {
            tracing::debug!(%error, "an append stream was closed by its sender");
            return;
        }
    }
}

/// The requests of a node in a connection's frames, until it ends, a frame is malformed or not the node's own.
struct AppendRequests<S> {
    from: NodeId,
    frames: S,
}

impl<S: Stream<Item = io::Result<bytes::BytesMut>> + Unpin> Stream for AppendRequests<S> {
    type Item = AppendEntriesRequest<TypeConfig>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(frame) = std::task::ready!(self.frames.poll_next_unpin(context)) else {
            return Poll::Ready(None);
        };
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                log_lost(&error);
                return Poll::Ready(None);
            }
        };
        let request = || -> Result<Self::Item, String> {
            let request = wire::from_bytes::<WireAppendRequest>(&frame).map_err(|error| error.to_string())?;
            check_sender(&request.vote, self.from).map_err(|error| error.to_string())?;
            request.try_into().map_err(|error: concord_net::ReceiveError| error.to_string())
        };
        Poll::Ready(request().inspect_err(|error| tracing::warn!("an append stream failed: {error}")).ok())
    }
}

/// Logs that no more frames come. A node that stops ends its connections in the middle, without the end of TLS, at each
/// restart. The leader reports members that do not respond, so that it is no warning here.
fn log_lost(error: &io::Error) {
    let is_malformed = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput);
    if is_malformed {
        tracing::warn!("an append stream failed: {error}");
    } else {
        tracing::debug!(%error, "an append stream was closed by its sender");
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, stream};
    use openraft::EntryPayload;
    use tokio::io::DuplexStream;

    use super::*;
    use crate::{
        types::Entry,
        wire::{WireLogId, WireVote},
    };

    fn id(index: u64) -> LogId {
        LogId::from(WireLogId { index, term: 1, node: 1 })
    }

    /// A request with entries from `first` to `last`; with none when `last` is less than `first`.
    fn request(first: u64, last: u64) -> AppendEntriesRequest<TypeConfig> {
        let entry = |index| Entry { log_id: id(index), payload: EntryPayload::Blank };
        AppendEntriesRequest {
            vote: WireVote { term: 1, node: 1, committed: true }.into(),
            prev_log_id: Some(id(first - 1)),
            entries: (first..=last).map(entry).collect(),
            leader_commit: None,
        }
    }

    /// The leader's and the member's end of a connection.
    fn connection() -> (Frames, Frames) {
        let (leader, member): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
        (frames(Box::new(leader)), frames(Box::new(member)))
    }

    fn ready<'a>(frames: Frames) -> OpenFuture<'a> {
        Box::pin(std::future::ready(Ok(frames)))
    }

    async fn respond(member: &mut Frames, response: WireAppendResponse) {
        let frame = member.next().await.unwrap().unwrap();
        wire::from_bytes::<WireAppendRequest>(&frame).unwrap();
        member.send(confirmation(response)).await.unwrap();
    }

    fn confirmation(response: WireAppendResponse) -> Bytes {
        Bytes::from(wire::to_bytes(&WireConfirmation { lease: Some(7), response }))
    }

    fn unnoted() -> NoteAnswer<'static> {
        Box::new(|lease, _| assert_eq!(lease, Some(7)))
    }

    fn one_minute(_entries: usize, _bytes: usize) -> Duration {
        Duration::from_secs(60)
    }

    #[tokio::test]
    async fn responses_come_in_order_and_the_connection_is_reused() {
        let (leader, mut member) = connection();
        let mut idle = None;
        let input = stream::iter([request(1, 3), request(4, 3), request(4, 3), request(4, 5)]);
        let responses =
            AppendPipeline::new(&mut idle, ready(leader), input, one_minute, unnoted()).responses();
        let member = async {
            for _ in 0..3 {
                respond(&mut member, WireAppendResponse::Success).await;
            }
            respond(
                &mut member,
                WireAppendResponse::PartialSuccess(Some(WireLogId { index: 4, term: 1, node: 1 })),
            )
            .await;
            member
        };
        let (responses, _member) = tokio::join!(responses.collect::<Vec<_>>(), member);
        let acknowledged: Vec<_> = responses.into_iter().map(|response| response.unwrap().unwrap()).collect();
        // Two requests with the last id 3 are in flight at once: one response is handed on for both.
        assert_eq!(acknowledged, [3, 3, 4].map(|index| Some(id(index))));
        assert!(idle.is_some());
    }

    #[tokio::test]
    async fn a_response_does_not_confirm_a_later_request_with_the_same_last_id() {
        let (leader, mut member) = connection();
        let mut idle = None;
        let input = stream::iter([request(4, 3), request(4, 3), request(4, 3)]).chain(stream::pending());
        let mut responses =
            AppendPipeline::new(&mut idle, ready(leader), Box::pin(input), one_minute, unnoted()).responses();
        assert!(responses.next().now_or_never().is_none());
        for _ in 0..2 {
            respond(&mut member, WireAppendResponse::Success).await;
            assert!(responses.next().now_or_never().is_none(), "a later request is unanswered");
        }
        respond(&mut member, WireAppendResponse::Success).await;
        assert_eq!(responses.next().await.unwrap().unwrap().unwrap(), Some(id(3)));
        assert!(responses.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_rejection_is_returned_although_a_later_request_has_the_same_last_id() {
        let (leader, mut member) = connection();
        let mut idle = None;
        let input = stream::iter([request(4, 3), request(4, 3)]).chain(stream::pending());
        let mut responses =
            AppendPipeline::new(&mut idle, ready(leader), Box::pin(input), one_minute, unnoted()).responses();
        assert!(responses.next().now_or_never().is_none());
        respond(&mut member, WireAppendResponse::Conflict).await;
        assert!(responses.next().await.unwrap().unwrap().is_err());
        assert!(responses.next().await.is_none());
    }

    #[tokio::test]
    async fn a_batch_waits_for_the_one_before_it_but_not_for_requests_without_entries() {
        let (leader, mut member) = connection();
        let mut idle = None;
        let input = stream::iter([request(4, 3), request(4, 4), request(5, 5)]).chain(stream::pending());
        let mut responses =
            AppendPipeline::new(&mut idle, ready(leader), Box::pin(input), one_minute, unnoted()).responses();
        assert!(responses.next().now_or_never().is_none());
        let entries = async |member: &mut Frames| {
            let frame = member.next().now_or_never()?.unwrap().unwrap();
            let append = wire::from_bytes::<WireAppendRequest>(&frame).unwrap();
            Some(AppendEntriesRequest::try_from(append).unwrap().entries.len())
        };
        assert_eq!(entries(&mut member).await, Some(0));
        assert_eq!(entries(&mut member).await, Some(1));
        assert_eq!(entries(&mut member).await, None);
        for _ in 0..2 {
            member.send(confirmation(WireAppendResponse::Success)).await.unwrap();
            responses.next().await.unwrap().unwrap().unwrap();
        }
        assert!(responses.next().now_or_never().is_none());
        assert_eq!(entries(&mut member).await, Some(1));
        drop(responses);
        assert!(idle.is_none(), "a connection with an outstanding response is not used again");
    }

    #[tokio::test]
    async fn a_member_that_does_not_answer_or_disconnects_is_unreachable() {
        for stays in [true, false] {
            let (leader, member) = connection();
            let _member = stays.then_some(member);
            let mut idle = None;
            let input = stream::iter([request(1, 1)]).chain(stream::pending());
            let timeout_of = |_, _| Duration::from_millis(20);
            let mut responses =
                AppendPipeline::new(&mut idle, ready(leader), Box::pin(input), timeout_of, unnoted())
                    .responses();
            let response = responses.next().await.unwrap();
            assert!(matches!(response, Err(RPCError::Unreachable(_))), "{response:?}");
            assert!(responses.next().await.is_none());
            drop(responses);
            assert!(idle.is_none());
        }
    }

    #[tokio::test]
    async fn a_lost_connection_is_found_before_anything_is_sent() {
        let (leader, member) = connection();
        drop(member);
        let mut idle = Some(leader);
        let none = Box::pin(async { panic!("opened without a request") });
        let input = stream::pending::<AppendEntriesRequest<TypeConfig>>();
        let mut responses = AppendPipeline::new(&mut idle, none, input, one_minute, unnoted()).responses();
        assert!(matches!(responses.next().await, Some(Err(RPCError::Unreachable(_)))));
    }

    #[tokio::test]
    async fn a_connection_is_opened_only_for_a_request() {
        let mut idle = None;
        let none = || -> OpenFuture<'static> { Box::pin(async { Err(unreachable("no listener")) }) };
        let pending = stream::pending::<AppendEntriesRequest<TypeConfig>>();
        assert!(
            AppendPipeline::new(&mut idle, none(), pending, one_minute, unnoted())
                .responses()
                .next()
                .now_or_never()
                .is_none()
        );
        let input = stream::iter([request(1, 1)]);
        let responses: Vec<_> =
            AppendPipeline::new(&mut idle, none(), input, one_minute, unnoted()).responses().collect().await;
        assert!(matches!(&responses[..], [Err(RPCError::Unreachable(_))]));
    }

    #[tokio::test]
    async fn a_member_that_rejects_a_request_ends_the_stream() {
        let (leader, mut member) = connection();
        let mut idle = None;
        let input = stream::iter([request(4, 4), request(5, 5)]);
        let responses =
            AppendPipeline::new(&mut idle, ready(leader), input, one_minute, unnoted()).responses();
        let (responses, ()) =
            tokio::join!(responses.collect::<Vec<_>>(), respond(&mut member, WireAppendResponse::Conflict));
        assert_eq!(responses.len(), 1);
        assert!(responses.into_iter().all(|response| response.unwrap().is_err()));
        assert!(idle.is_none());
    }

    #[tokio::test]
    async fn a_malformed_frame_ends_the_stream_of_the_member() {
        let (mut leader, member) = connection();
        leader.send(Bytes::from(wire::to_bytes(&WireAppendRequest::from(&request(1, 2))))).await.unwrap();
        leader.send(Bytes::from_static(b"?")).await.unwrap();
        let requests: Vec<_> = AppendRequests { from: 1, frames: member }.collect().await;
        assert_eq!(requests.iter().map(|request| request.entries.len()).collect::<Vec<_>>(), [2]);
    }

    #[tokio::test]
    async fn entries_in_the_name_of_another_node_end_the_stream_of_the_member() {
        let (mut leader, member) = connection();
        leader.send(Bytes::from(wire::to_bytes(&WireAppendRequest::from(&request(1, 2))))).await.unwrap();
        assert_eq!(AppendRequests { from: 2, frames: member }.count().await, 0);
    }
}
