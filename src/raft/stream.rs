//! Entries from the leader to a member, on one connection that stays: frames there, frames back, in the same order.
//!
//! The call that opens it is one of `peers.rs` and admitted as such; then the connection is upgraded and bears
//! nothing but frames: a length of four bytes and an [`Append`] or its [`Appended`]. A request and its answer as HTTP
//! cost more than the entries that they carry, and their sender must wait for each answer before the next request,
//! as two connections may overtake each other. Here what the leader has agreed on follows the entries at once.
//!
//! **Invariants**
//! 1. Answers come in the order of the requests. When openraft's requests end, the answers end, without an error:
//!    anything else makes it begin again at once.
//! 2. A connection that failed in any way is not used again, and neither is one that still owes an answer.
//! 3. A peer that is silent for longer than the oldest request may take is unreachable.

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
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::{
    Consensus,
    types::{Kind, LogId},
    wire::{self, Append, Appended},
};

/// Requests that are under way at once. Only one of them has entries: while a member writes a batch to its disk the
/// next one grows, and one fsync of many is worth more than two of few. The others tell of what was agreed on, and
/// need no disk.
const REQUESTS_MAX: usize = 8;
/// Longest frame: the most that one append takes along, and one entry more.
const FRAME_BYTES_MAX: usize = 32 << 20;

/// A connection that was upgraded.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection's frames.
pub(super) type Frames = Framed<Box<dyn Wire>, LengthDelimitedCodec>;

pub(super) fn frames(wire: Box<dyn Wire>) -> Frames {
    let codec = LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec();
    Framed::new(wire, codec)
}

/// A connection that comes about.
pub(super) type Opening<'a> = BoxFuture<'a, Result<Frames, RPCError<Kind>>>;

/// How long to wait for the answer to a request of so many entries and bytes.
pub(super) type Patience = fn(usize, usize) -> Duration;

/// A request that waits for its answer.
#[derive(Debug)]
struct Sent {
    previous: Option<LogId>,
    last: Option<LogId>,
    has_entries: bool,
    patience: Duration,
}

/// The leader's end of a stream while openraft uses it. Dropped before its end, it closes the connection.
pub(super) struct Appends<'a, S> {
    frames: Option<Frames>,
    /// Opens a connection. Not before there is a request: openraft backs off before it makes one, and nowhere else.
    open: Option<Opening<'a>>,
    /// Where the connection is kept for the next use.
    kept: &'a mut Option<Frames>,
    input: Option<S>,
    sent: VecDeque<Sent>,
    patience: Patience,
    /// When the oldest answer must have come.
    due: Instant,
}

fn lost(why: impl std::fmt::Display) -> RPCError<Kind> {
    RPCError::Unreachable(Unreachable::from_string(why))
}

impl<'a, S> Appends<'a, S>
where
    S: Stream<Item = AppendEntriesRequest<Kind>> + Send + Unpin + 'static,
{
    /// Sends what comes from `input` over the connection that is kept, or over one that it opens; at the end it is
    /// kept again.
    pub(super) fn new(kept: &'a mut Option<Frames>, open: Opening<'a>, input: S, patience: Patience) -> Self {
        let (frames, open) = (kept.take(), Some(open));
        let (input, sent, due) = (Some(input), VecDeque::new(), Instant::now());
        Self { frames, open, kept, input, sent, patience, due }
    }

    /// The answers, as openraft wants them.
    pub(super) fn answers(self) -> BoxStream<'a, Result<StreamAppendResult<Kind>, RPCError<Kind>>> {
        Box::pin(futures::stream::unfold(Some(self), async |state| {
            let mut appends = state?;
            match appends.next().await {
                None => {
                    *appends.kept = appends.frames;
                    None
                }
                Some(Ok(Ok(last))) => Some((Ok(Ok(last)), Some(appends))),
                // The member does not follow: what else is under way is for nothing.
                Some(Ok(Err(refused))) => Some((Ok(Err(refused)), None)),
                Some(Err(error)) => Some((Err(error), None)),
            }
        }))
    }

    /// The next answer; `None` once all requests have theirs and no more will come.
    async fn next(&mut self) -> Option<Result<StreamAppendResult<Kind>, RPCError<Kind>>> {
        loop {
            let is_full = self.sent.len() == REQUESTS_MAX || self.sent.iter().any(|sent| sent.has_entries);
            let requests = if is_full { None } else { self.input.as_mut() };
            if requests.is_none() && self.sent.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                // Listened to also while nothing is owed: a member that has gone is found before the next write.
                answer = answer_of(self.frames.as_mut()) => return Some(self.take(answer).map_err(lost)),
                () = sleep_until(self.due), if !self.sent.is_empty() => {
                    return Some(Err(lost(io::Error::from(io::ErrorKind::TimedOut))));
                }
                request = next_of(requests) => match request {
                    Some(request) => if let Err(error) = self.send(&request).await {
                        return Some(Err(error));
                    },
                    None => self.input = None,
                },
            }
        }
    }

    async fn send(&mut self, request: &AppendEntriesRequest<Kind>) -> Result<(), RPCError<Kind>> {
        if self.frames.is_none()
            && let Some(open) = self.open.take()
        {
            self.frames = Some(open.await?);
        }
        let frames = self.frames.as_mut().ok_or_else(|| lost("the connection has failed"))?;
        let body = wire::to_bytes(&Append::from(request));
        let patience = (self.patience)(request.entries.len(), body.len());
        let until = Instant::now() + patience;
        if self.sent.is_empty() {
            self.due = until;
        }
        let (previous, last) = (request.prev_log_id, request.entries.last().map(|entry| entry.log_id));
        let has_entries = last.is_some();
        self.sent.push_back(Sent { previous, last: last.or(previous), has_entries, patience });
        let sent = timeout_at(until, frames.send(Bytes::from(body))).await;
        sent.map_err(lost)?.map_err(lost)
    }

    fn take(&mut self, answer: Option<io::Result<bytes::BytesMut>>) -> io::Result<StreamAppendResult<Kind>> {
        let answer = answer.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        let answer: Appended = wire::from_bytes(&answer).map_err(io::Error::other)?;
        let sent = self.sent.pop_front().ok_or(io::ErrorKind::InvalidData)?;
        if let Some(next) = self.sent.front() {
            self.due = Instant::now() + next.patience;
        }
        Ok(AppendEntriesResponse::from(answer).into_stream_result(sent.previous, sent.last))
    }
}

/// The next frame, where there is a connection.
async fn answer_of(frames: Option<&mut Frames>) -> Option<io::Result<bytes::BytesMut>> {
    match frames {
        Some(frames) => frames.next().await,
        None => std::future::pending().await,
    }
}

/// The next request, where requests are wanted.
async fn next_of<S: Stream + Unpin>(requests: Option<&mut S>) -> Option<S::Item> {
    match requests {
        Some(requests) => requests.next().await,
        None => std::future::pending().await,
    }
}

impl Consensus {
    /// The member's end: answers the frames of an upgraded connection until it ends, fails, or this node stops.
    pub(crate) async fn serve_stream(&self, wire: impl Wire + 'static) {
        let (sink, source) = frames(Box::new(wire)).split();
        let requests = Requests(source);
        let answers = self.inner.raft.stream_append(requests);
        let gone = self.inner.machine_gone.clone();
        tokio::select! {
            () = reply(sink, answers) => {}
            () = gone.cancelled() => {}
        }
    }
}

async fn reply<E>(
    mut sink: impl Sink<Bytes, Error = io::Error> + Unpin,
    answers: impl Stream<Item = Result<StreamAppendResult<Kind>, E>>,
) {
    let mut answers = std::pin::pin!(answers);
    // The end is openraft's: a failure of the node, or the end of the requests.
    while let Some(Ok(answer)) = answers.next().await {
        let answer = Appended::from(AppendEntriesResponse::from(answer));
        if let Err(error) = sink.send(Bytes::from(wire::to_bytes(&answer))).await {
            tracing::debug!(%error, "a stream of entries was left by its sender");
            return;
        }
    }
}

/// The requests in a connection's frames, until it ends or says what is none.
struct Requests<S>(S);

impl<S: Stream<Item = io::Result<bytes::BytesMut>> + Unpin> Stream for Requests<S> {
    type Item = AppendEntriesRequest<Kind>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(frame) = std::task::ready!(self.0.poll_next_unpin(context)) else {
            return Poll::Ready(None);
        };
        let request = frame.map_err(|error| error.to_string()).and_then(|frame| {
            let append = wire::from_bytes::<Append>(&frame).map_err(|error| error.to_string())?;
            append.try_into().map_err(|error: crate::peer::ReceiveError| error.to_string())
        });
        Poll::Ready(request.inspect_err(|error| tracing::warn!("a stream of entries ended: {error}")).ok())
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, stream};
    use openraft::EntryPayload;
    use tokio::io::DuplexStream;

    use super::*;
    use crate::raft::{
        types::Entry,
        wire::{Ballot, Id},
    };

    fn id(index: u64) -> LogId {
        LogId::from(Id { index, term: 1, node: 1 })
    }

    /// A request with entries from `first` to `last`; with none when `last` comes before.
    fn request(first: u64, last: u64) -> AppendEntriesRequest<Kind> {
        let entry = |index| Entry { log_id: id(index), payload: EntryPayload::Blank };
        AppendEntriesRequest {
            vote: Ballot { term: 1, node: 1, committed: true }.into(),
            prev_log_id: Some(id(first - 1)),
            entries: (first..=last).map(entry).collect(),
            leader_commit: None,
        }
    }

    fn wires() -> (Frames, Frames) {
        let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 20);
        (frames(Box::new(ours)), frames(Box::new(theirs)))
    }

    fn ready<'a>(frames: Frames) -> Opening<'a> {
        Box::pin(std::future::ready(Ok(frames)))
    }

    async fn answer(member: &mut Frames, answer: Appended) {
        let frame = member.next().await.unwrap().unwrap();
        wire::from_bytes::<Append>(&frame).unwrap();
        member.send(Bytes::from(wire::to_bytes(&answer))).await.unwrap();
    }

    fn patient(_entries: usize, _bytes: usize) -> Duration {
        Duration::from_secs(60)
    }

    #[tokio::test]
    async fn answers_come_in_order_and_the_connection_is_kept_for_the_next_use() {
        let (ours, mut member) = wires();
        let mut kept = None;
        let input = stream::iter([request(1, 3), request(4, 3), request(4, 3), request(4, 5)]);
        let answers = Appends::new(&mut kept, ready(ours), input, patient).answers();
        let member = async {
            for _ in 0..3 {
                answer(&mut member, Appended::All).await;
            }
            answer(&mut member, Appended::UpTo(Some(Id { index: 4, term: 1, node: 1 }))).await;
            member
        };
        let (answers, _member) = tokio::join!(answers.collect::<Vec<_>>(), member);
        let acknowledged: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
        assert_eq!(acknowledged, [3, 3, 3, 4].map(|index| Some(id(index))));
        assert!(kept.is_some());
    }

    #[tokio::test]
    async fn a_batch_waits_for_the_one_before_it_but_not_for_what_has_no_entries() {
        let (ours, mut member) = wires();
        let mut kept = None;
        let input = stream::iter([request(4, 3), request(4, 4), request(5, 5)]).chain(stream::pending());
        let mut answers = Appends::new(&mut kept, ready(ours), Box::pin(input), patient).answers();
        assert!(answers.next().now_or_never().is_none());
        let entries = async |member: &mut Frames| {
            let frame = member.next().now_or_never()?.unwrap().unwrap();
            let append = wire::from_bytes::<Append>(&frame).unwrap();
            Some(AppendEntriesRequest::try_from(append).unwrap().entries.len())
        };
        assert_eq!(entries(&mut member).await, Some(0));
        assert_eq!(entries(&mut member).await, Some(1));
        assert_eq!(entries(&mut member).await, None);
        for _ in 0..2 {
            member.send(Bytes::from(wire::to_bytes(&Appended::All))).await.unwrap();
            answers.next().await.unwrap().unwrap().unwrap();
        }
        assert!(answers.next().now_or_never().is_none());
        assert_eq!(entries(&mut member).await, Some(1));
        drop(answers);
        assert!(kept.is_none(), "a connection that owes an answer is not used again");
    }

    #[tokio::test]
    async fn a_member_that_is_silent_or_leaves_is_unreachable() {
        for stays in [true, false] {
            let (ours, member) = wires();
            let _member = stays.then_some(member);
            let mut kept = None;
            let input = stream::iter([request(1, 1)]).chain(stream::pending());
            let patience = |_, _| Duration::from_millis(20);
            let mut answers = Appends::new(&mut kept, ready(ours), Box::pin(input), patience).answers();
            let answer = answers.next().await.unwrap();
            assert!(matches!(answer, Err(RPCError::Unreachable(_))), "{answer:?}");
            assert!(answers.next().await.is_none());
            drop(answers);
            assert!(kept.is_none());
        }
    }

    #[tokio::test]
    async fn a_member_that_leaves_is_missed_before_anything_is_sent() {
        let (ours, member) = wires();
        drop(member);
        let mut kept = Some(ours);
        let none = Box::pin(async { panic!("opened without a request") });
        let input = stream::pending::<AppendEntriesRequest<Kind>>();
        let mut answers = Appends::new(&mut kept, none, input, patient).answers();
        assert!(matches!(answers.next().await, Some(Err(RPCError::Unreachable(_)))));
    }

    #[tokio::test]
    async fn a_connection_is_opened_only_for_a_request() {
        let mut kept = None;
        let none = || -> Opening<'static> { Box::pin(async { Err(lost("nobody is there")) }) };
        let pending = stream::pending::<AppendEntriesRequest<Kind>>();
        assert!(Appends::new(&mut kept, none(), pending, patient).answers().next().now_or_never().is_none());
        let input = stream::iter([request(1, 1)]);
        let answers: Vec<_> = Appends::new(&mut kept, none(), input, patient).answers().collect().await;
        assert!(matches!(&answers[..], [Err(RPCError::Unreachable(_))]));
    }

    #[tokio::test]
    async fn a_member_that_does_not_follow_ends_the_stream() {
        let (ours, mut member) = wires();
        let mut kept = None;
        let input = stream::iter([request(4, 4), request(5, 5)]);
        let answers = Appends::new(&mut kept, ready(ours), input, patient).answers();
        let (answers, ()) =
            tokio::join!(answers.collect::<Vec<_>>(), answer(&mut member, Appended::Conflict));
        assert_eq!(answers.len(), 1);
        assert!(answers.into_iter().all(|answer| answer.unwrap().is_err()));
        assert!(kept.is_none());
    }

    #[tokio::test]
    async fn what_is_no_request_ends_the_member_s_part() {
        let (mut ours, member) = wires();
        ours.send(Bytes::from(wire::to_bytes(&Append::from(&request(1, 2))))).await.unwrap();
        ours.send(Bytes::from_static(b"?")).await.unwrap();
        let requests: Vec<_> = Requests(member).collect().await;
        assert_eq!(requests.iter().map(|request| request.entries.len()).collect::<Vec<_>>(), [2]);
    }
}
