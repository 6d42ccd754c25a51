//! The body of a response. Over HTTP/2 it knows whether the client reads it, and its stream can be reset.
//!
//! hyper polls for the next part of a body as soon as it has passed the previous one to h2. There a part can stay
//! without limit, and after the last part hyper drops the body. So hyper's polls do not show whether the client has
//! read a part. The parts themselves show it: h2 drops each part once it is written. Until then a part keeps its
//! request in flight.
//!
//! A client may stop reading one stream and continue with others, so only that stream is reset. A reset needs the task
//! of the stream, and this task ends once h2 has the last part. So h2 is told the end of a response only after all
//! parts are written. The end of a short response is told at once: it fits into the window of every ordinary client. If
//! it is not read all the same, its connection is closed.
//!
//! **Invariant:** a request is in flight until every part of its response is written or dropped.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use futures::{future::Either, task::AtomicWaker};
use hyper::{
    body::{Buf, Frame, SizeHint},
    rt::Executor,
};
use tokio::task::AbortHandle;

use super::{
    connection::{RequestInFlight, millis, now},
    scheduler::ClientTurns,
};
use concord_model::limits::{SCARCE_TIMEOUT, SEND_BYTES_MIN};

/// Bytes of a response that are passed to h2 at once. The rest waits here, where the node sees whether the client
/// reads.
const PIECE_BYTES: usize = 64 << 10;
/// Up to this size, h2 is told the end of a response at once. The default window of a stream is eight times as large.
const SHORT_BYTES: usize = 8 << 10;

/// Ends the task of a stream, and so resets the stream. It is set once the task is spawned.
type Reset = Arc<OnceLock<AbortHandle>>;

tokio::task_local! {
    /// The handle for the stream that a task serves.
    static RESET: Reset;
}

/// Spawns the tasks of HTTP/2 streams, so that each stream can be reset: dropping its task resets it.
#[derive(Debug, Clone)]
pub(super) struct StreamTasks(pub(super) Option<ClientTurns>);

impl<F> Executor<F> for StreamTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let reset = Reset::default();
        let stream = match &self.0 {
            None => Either::Left(stream),
            Some(turns) => Either::Right(turns.clone().answer(stream)),
        };
        let task = tokio::spawn(RESET.scope(Arc::clone(&reset), stream));
        // It is set only here.
        drop(reset.set(task.abort_handle()));
    }
}

/// The parts of an HTTP/2 response that were passed to h2 and not written yet.
#[derive(Debug)]
pub(super) struct Untaken {
    in_flight: RequestInFlight,
    waiting: Mutex<ResponsesWaiting>,
    reset: Option<Reset>,
    /// Wakes the body, which waits until all parts are written.
    all_taken: AtomicWaker,
}

#[derive(Debug, Default)]
struct ResponsesWaiting {
    pieces: usize,
    /// When parts began to wait, or when [`SEND_BYTES_MIN`] bytes were last written; and the bytes written since.
    since: u64,
    taken: usize,
    /// When the first part was passed to h2, and the bytes of all parts.
    begun: u64,
    handed_over: usize,
}

impl Untaken {
    fn waiting(&self) -> MutexGuard<'_, ResponsesWaiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(self: &Arc<Self>, bytes: Bytes) -> Piece {
        let mut waiting = self.waiting();
        if waiting.pieces == 0 {
            (waiting.since, waiting.taken) = (now(), 0);
            self.in_flight.0.begins_to_owe();
        }
        if waiting.handed_over == 0 {
            waiting.begun = waiting.since;
        }
        waiting.handed_over += bytes.len();
        waiting.pieces += 1;
        drop(waiting);
        Piece { bytes, untaken: Some(Arc::clone(self)) }
    }

    fn note_taken(&self, bytes: usize) {
        self.in_flight.0.note_taken(bytes);
        let mut waiting = self.waiting();
        waiting.taken += bytes;
        if waiting.taken >= SEND_BYTES_MIN {
            (waiting.since, waiting.taken) = (now(), 0);
        }
    }

    fn note_gone(&self) {
        let mut waiting = self.waiting();
        waiting.pieces -= 1;
        let are_all_taken = waiting.pieces == 0;
        (waiting.since, waiting.taken) = (now(), 0);
        drop(waiting);
        if are_all_taken {
            self.in_flight.0.ceases_to_owe();
            self.all_taken.wake();
        }
    }

    /// Whether parts wait, and the client has not read [`SEND_BYTES_MIN`] of them within this limit.
    pub(super) fn has_stood_still(&self, limit: Duration, now: u64) -> bool {
        let waiting = self.waiting();
        waiting.pieces > 0 && now.saturating_sub(waiting.since) >= millis(limit)
    }

    /// Whether this response makes the connection slow: it makes no progress, or it is long. A watch whose events
    /// wait behind such a response does not count.
    pub(super) fn is_slow(&self, now: u64) -> bool {
        let waiting = self.waiting();
        let limit = millis(SCARCE_TIMEOUT);
        let is_long = waiting.handed_over > PIECE_BYTES && now.saturating_sub(waiting.begun) >= limit;
        waiting.pieces > 0 && (is_long || now.saturating_sub(waiting.since) >= limit)
    }

    /// Resets the stream. False if that is impossible, because its task has ended.
    pub(super) fn reset(&self) -> bool {
        match self.reset.as_ref().and_then(|reset| reset.get()) {
            Some(task) if !task.is_finished() => {
                task.abort();
                true
            }
            _ => false,
        }
    }

    fn poll_all_taken(&self, context: &Context<'_>) -> Poll<()> {
        self.all_taken.register(context.waker());
        if self.waiting().pieces == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A part of a response.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    untaken: Option<Arc<Untaken>>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(untaken) = &self.untaken {
            untaken.note_taken(count);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(untaken) = &self.untaken {
            untaken.note_gone();
        }
    }
}

/// How the progress of a response is observed.
#[derive(Debug)]
enum Taker {
    /// By the socket, which closes the connection of a slow client itself.
    Http1(#[expect(dead_code, reason = "it counts the request while the body lives")] RequestInFlight),
    Http2(Arc<Untaken>),
}

/// The body of a response.
#[derive(Debug)]
pub(super) struct AnswerBody {
    body: Body,
    taker: Taker,
    /// The rest of a part that was too long to be passed to h2 at once.
    rest: Bytes,
    /// Whether h2 was told the end.
    is_told: bool,
}

impl AnswerBody {
    pub(super) fn new(body: Body, in_flight: RequestInFlight, is_http2: bool) -> Self {
        let is_told = body.is_end_stream();
        let taker = if is_http2 && !is_told {
            let connection = Arc::clone(&in_flight.0);
            let reset = RESET.try_with(Clone::clone).ok();
            let untaken = Arc::new(Untaken {
                in_flight,
                waiting: Mutex::default(),
                reset,
                all_taken: AtomicWaker::new(),
            });
            connection.list(&untaken);
            Taker::Http2(untaken)
        } else {
            Taker::Http1(in_flight)
        };
        Self { body, taker, rest: Bytes::new(), is_told }
    }

    /// The next part to pass to h2.
    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        untaken: &Arc<Untaken>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let mut bytes = if !self.rest.is_empty() {
            std::mem::take(&mut self.rest)
        } else if self.body.is_end_stream() {
            ready!(untaken.poll_all_taken(context));
            return Poll::Ready(None);
        } else {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => bytes,
                    Err(other) => return Poll::Ready(Some(Ok(not_weighed(other)))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.body = Body::empty();
                    ready!(untaken.poll_all_taken(context));
                    return Poll::Ready(None);
                }
            }
        };
        if bytes.len() > PIECE_BYTES {
            self.rest = bytes.split_off(PIECE_BYTES);
        }
        let is_last = self.rest.is_empty() && self.body.is_end_stream();
        let is_short = bytes.len() <= SHORT_BYTES;
        let piece = untaken.hand_over(bytes);
        // The parts before this one may be long.
        self.is_told = is_last && is_short && untaken.waiting().pieces == 1;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// A part of a response that is not observed.
fn not_weighed(frame: Frame<Bytes>) -> Frame<Piece> {
    frame.map_data(|bytes| Piece { bytes, untaken: None })
}

impl HttpBody for AnswerBody {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        if let Taker::Http2(untaken) = &self.taker {
            let untaken = Arc::clone(untaken);
            return self.poll_piece(context, &untaken);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map(not_weighed)))
    }

    fn is_end_stream(&self) -> bool {
        match self.taker {
            Taker::Http1(_) => self.body.is_end_stream(),
            Taker::Http2(_) => self.is_told,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::connection::{HeadBudget, ServedConnection};
    use futures::FutureExt as _;
    use http::Extensions;
    use http_body_util::BodyExt as _;

    fn body(connection: &Arc<ServedConnection>, bytes: &Bytes) -> AnswerBody {
        AnswerBody::new(Body::from(bytes.clone()), connection.begin(&mut Extensions::new()), true)
    }

    fn connection() -> Arc<ServedConnection> {
        Arc::new(ServedConnection::new(Arc::new(HeadBudget::new(0))))
    }

    async fn piece(body: &mut AnswerBody) -> Piece {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    fn waits(untaken: &Untaken) -> bool {
        untaken.has_stood_still(Duration::ZERO, now())
    }

    fn untaken(body: &AnswerBody) -> Arc<Untaken> {
        match &body.taker {
            Taker::Http2(untaken) => Arc::clone(untaken),
            Taker::Http1(_) => panic!("it is HTTP/2"),
        }
    }

    #[tokio::test]
    async fn an_answer_is_in_flight_until_its_last_piece_is_taken() {
        let one = connection();
        let bytes = Bytes::from(vec![7; PIECE_BYTES + SHORT_BYTES + 1]);
        let mut body = body(&one, &bytes);
        let known = untaken(&body);
        assert_eq!((body.size_hint().exact(), waits(&known)), (Some(bytes.len() as u64), false));
        let mut first = piece(&mut body).await;
        assert_eq!(
            (first.remaining(), body.size_hint().exact()),
            (PIECE_BYTES, Some(SHORT_BYTES as u64 + 1))
        );
        assert!(waits(&known));
        first.advance(PIECE_BYTES);
        drop(first);
        assert!(!waits(&known));
        let last = piece(&mut body).await;
        assert!(!body.is_end_stream() && body.frame().now_or_never().is_none(), "the end is not told yet");
        assert!(waits(&known));
        drop(last);
        assert!(body.frame().now_or_never().is_some_and(|end| end.is_none()));
        drop(body);
        assert_eq!(one.in_flight(), 1);
        drop(known);
        assert_eq!(one.in_flight(), 0);
    }

    #[tokio::test]
    async fn a_short_answer_is_told_its_end_and_still_waits() {
        let one = connection();
        let mut body = body(&one, &Bytes::from(vec![7; SHORT_BYTES]));
        let piece = piece(&mut body).await;
        assert!(body.is_end_stream() && !untaken(&body).reset());
        drop(body);
        assert_eq!(one.in_flight(), 1, "it lies in the library");
        drop(piece);
        assert_eq!(one.in_flight(), 0);
    }

    #[tokio::test]
    async fn bytes_that_are_taken_begin_the_time_anew() {
        let one = connection();
        let mut body = body(&one, &Bytes::from(vec![7; PIECE_BYTES]));
        let mut piece = piece(&mut body).await;
        let known = untaken(&body);
        known.waiting().since = 1;
        piece.advance(SEND_BYTES_MIN - 1);
        assert_eq!(known.waiting().since, 1, "too few");
        known.waiting().since = u64::MAX;
        piece.advance(1);
        assert_ne!(known.waiting().since, u64::MAX);
        assert!(!known.has_stood_still(Duration::from_secs(10), now()));
        assert!(known.has_stood_still(Duration::from_secs(10), now() + 10_000));
    }

    #[tokio::test]
    async fn a_stream_can_be_reset() {
        let (one, taken) = (connection(), Arc::new(Mutex::new(None)));
        let (ended, in_task) = (tokio::sync::oneshot::channel::<()>(), Arc::clone(&taken));
        let (alive, is_dropped) = ended;
        let in_flight = one.begin(&mut Extensions::new());
        StreamTasks(None).execute(async move {
            let body = AnswerBody::new(Body::from(vec![7; PIECE_BYTES]), in_flight, true);
            *in_task.lock().unwrap() = Some(untaken(&body));
            std::future::pending::<()>().await;
            drop((body, alive));
        });
        let known = loop {
            tokio::task::yield_now().await;
            if let Some(known) = taken.lock().unwrap().take() {
                break known;
            }
        };
        assert!(known.reset());
        let dropped = tokio::time::timeout(Duration::from_secs(30), is_dropped).await;
        assert!(dropped.unwrap().is_err(), "the task is dropped");
    }
}
