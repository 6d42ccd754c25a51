//! What the node knows of one connection, and when it ends it.
//!
//! A connection is *known* once a credential was good on it. Until then it has the short time-out, its place may be
//! taken by a new one, and what it sends without a whole request is counted.
//!
//! | ends it | until it is known | afterwards |
//! |---|---|---|
//! | no whole request since the last answer | header timeout | idle timeout |
//! | a part of an answer that is not taken | the shorter of send and header timeout | send timeout |
//! | bytes without a whole request | [`STRANGER_BYTES_MAX`], those above [`FREE_HEAD_BYTES`] of a common budget | the head of one request |
//! | its place is needed | at once | never |
//!
//! hyper itself has no idle timeout for HTTP/2, one timer for the idle time and the head of HTTP/1, which it sets anew
//! for each request, and none for writing. HTTP/1 waits in the socket (`socket.rs`), HTTP/2 in its flow control, which
//! only the body sees. All of it is watched here by one timer for each connection, which is set anew when it fires.
//!
//! **Invariant:** an answer in flight whose parts are taken in time ends no connection, however long it takes: a watch
//! may be silent without limit.

use std::{
    pin::Pin,
    sync::{
        Arc, LazyLock, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::body::{Body, Bytes, HttpBody};
use http::Extensions;
use hyper::body::{Frame, SizeHint};
use tokio::{sync::Notify, time::sleep};

use crate::model::limits::{FREE_HEAD_BYTES, STRANGER_BYTES_MAX};

/// Bytes of an answer that HTTP/2 is given at once: the rest waits where it is seen whether the caller takes it.
const HTTP2_PIECE_BYTES: usize = 64 << 10;

/// Answers that have ended and are still listed, beside as many as twice those in flight.
const ENDED_ANSWERS_MAX: usize = 16;

/// The zero of the clock of all connections.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since [`BEGIN`], from 1: zero is *never*.
fn now() -> u64 {
    u64::try_from(BEGIN.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long a connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Without a whole request, until it is known.
    pub(super) header: Duration,
    /// Without a whole request, afterwards.
    pub(super) idle: Duration,
    /// To take the next part of an answer.
    pub(super) send: Duration,
}

/// Why a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// No whole request came in time.
    Idle,
    /// The caller does not take its answer.
    Stalled,
    /// A new connection needs the place.
    Evicted,
}

/// The bytes that unknown connections may hold in common.
#[derive(Debug)]
pub(super) struct HeadBudget(AtomicUsize);

impl HeadBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What is known of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    is_known: AtomicBool,
    begun: Instant,
    /// Requests whose answer is not wholly handed over.
    in_flight: AtomicUsize,
    /// Since when there is none.
    idle_since: AtomicU64,
    /// The socket takes no more.
    is_blocked: AtomicBool,
    evicted: Notify,
    /// Bytes read since the last whole request, while it is unknown; and those of them that the budget has given.
    unasked: AtomicUsize,
    charged: AtomicUsize,
    budget: Arc<HeadBudget>,
    /// Answers over HTTP/2 that may wait for the caller: since when, or 0.
    waiting: Mutex<Vec<Weak<AtomicU64>>>,
}

impl Connection {
    pub(super) fn new(budget: Arc<HeadBudget>) -> Self {
        Self {
            is_known: AtomicBool::new(false),
            begun: Instant::now(),
            in_flight: AtomicUsize::new(0),
            idle_since: AtomicU64::new(now()),
            is_blocked: AtomicBool::new(false),
            evicted: Notify::new(),
            unasked: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            budget,
            waiting: Mutex::default(),
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Asks the connection to end, because its place is needed.
    pub(super) fn evict(&self) {
        self.evicted.notify_one();
    }

    /// A request has arrived: counts it until the guard is dropped, and lets its handler say that it is known.
    pub(super) fn begin(self: &Arc<Self>, extensions: &mut Extensions) -> InFlight {
        if !self.is_known() {
            self.unasked.store(0, Ordering::Relaxed);
            self.budget.give_back(self.charged.swap(0, Ordering::Relaxed));
            extensions.insert(CallerConnection(Arc::clone(self)));
        }
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Counts bytes that were read. False when an unknown connection may hold no more.
    pub(super) fn note_read(&self, bytes: usize) -> bool {
        if self.is_known() {
            return true;
        }
        let before = self.unasked.fetch_add(bytes, Ordering::Relaxed);
        let after = before + bytes;
        let charge = after.saturating_sub(before.max(FREE_HEAD_BYTES));
        if after > STRANGER_BYTES_MAX || !self.budget.take(charge) {
            return false;
        }
        self.charged.fetch_add(charge, Ordering::Relaxed);
        true
    }

    /// Whether the socket has stopped or begun again to take what is written.
    pub(super) fn note_blocked(&self, is_blocked: bool) {
        self.idle_since.store(now(), Ordering::Relaxed);
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Resolves when the connection must end.
    pub(super) async fn ending(&self, times: Times) -> Ending {
        loop {
            let pause = match self.check(times, now()) {
                Ok(pause) => pause,
                Err(ending) => return ending,
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.evicted.notified() => if !self.is_known() { return Ending::Evicted },
            }
        }
    }

    /// After which time to look again, unless it must end now.
    fn check(&self, times: Times, now: u64) -> Result<Duration, Ending> {
        let (idle, send) = if self.is_known() {
            (times.idle, times.send)
        } else {
            (times.header, times.send.min(times.header))
        };
        let left = |since: u64, limit: Duration| (since + millis(limit)).saturating_sub(now);
        let is_idle = self.in_flight.load(Ordering::Relaxed) == 0 && !self.is_blocked.load(Ordering::Relaxed);
        if is_idle {
            let left = left(self.idle_since.load(Ordering::Relaxed), idle);
            return if left == 0 { Err(Ending::Idle) } else { Ok(Duration::from_millis(left)) };
        }
        // What begins to wait from now on is seen then.
        let mut pause = millis(idle.min(send)).max(1);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|answer| answer.strong_count() > 0);
        for since in waiting.iter().filter_map(Weak::upgrade).map(|since| since.load(Ordering::Relaxed)) {
            if since > 0 {
                let left = left(since, send);
                if left == 0 {
                    return Err(Ending::Stalled);
                }
                pause = pause.min(left);
            }
        }
        Ok(Duration::from_millis(pause))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.budget.give_back(*self.charged.get_mut());
    }
}

/// In a request's extensions: the connection that it arrived on, while that is unknown.
#[derive(Debug, Clone)]
pub(in crate::api) struct CallerConnection(Arc<Connection>);

impl CallerConnection {
    /// Notes that the credential of a request was good.
    pub(in crate::api) fn mark_known(extensions: &Extensions) {
        if let Some(Self(connection)) = extensions.get() {
            connection.is_known.store(true, Ordering::Relaxed);
        }
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.idle_since.store(now(), Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer. Its request is in flight until it ends.
#[derive(Debug)]
pub(super) struct AnswerBody {
    body: Body,
    _in_flight: InFlight,
    /// Over HTTP/2: since when a part waits for the caller.
    waits_since: Option<Arc<AtomicU64>>,
    /// The rest of a part that was too long to be handed over at once.
    rest: Bytes,
}

impl AnswerBody {
    pub(super) fn new(body: Body, in_flight: InFlight, is_http2: bool) -> Self {
        let waits_since = (is_http2 && !body.is_end_stream()).then(|| {
            let since = Arc::new(AtomicU64::new(0));
            let connection = &in_flight.0;
            let mut waiting = connection.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Not for each answer: with hundreds of them in flight that would be a walk over as many for each.
            if waiting.len() > 2 * connection.in_flight.load(Ordering::Relaxed) + ENDED_ANSWERS_MAX {
                waiting.retain(|answer| answer.strong_count() > 0);
            }
            waiting.push(Arc::downgrade(&since));
            drop(waiting);
            since
        });
        Self { body, _in_flight: in_flight, waits_since, rest: Bytes::new() }
    }

    /// Cuts what HTTP/2 is given at once.
    fn cut(&mut self, mut bytes: Bytes) -> Frame<Bytes> {
        if bytes.len() > HTTP2_PIECE_BYTES {
            self.rest = bytes.split_off(HTTP2_PIECE_BYTES);
        }
        Frame::data(bytes)
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(since) = self.waits_since.clone() else {
            return Pin::new(&mut self.body).poll_frame(context);
        };
        // Asked for the next part: the one before was taken.
        since.store(0, Ordering::Relaxed);
        let frame = if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.cut(bytes),
                    Err(other) => other,
                },
                end_or_error => return Poll::Ready(end_or_error),
            }
        } else {
            let rest = std::mem::take(&mut self.rest);
            self.cut(rest)
        };
        since.store(now(), Ordering::Relaxed);
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
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
    use http_body_util::BodyExt as _;

    const TIMES: Times = Times {
        header: Duration::from_millis(10),
        idle: Duration::from_millis(75),
        send: Duration::from_millis(30),
    };

    fn connection(budget: usize) -> Arc<Connection> {
        let connection = Connection::new(Arc::new(HeadBudget::new(budget)));
        connection.idle_since.store(1000, Ordering::Relaxed);
        Arc::new(connection)
    }

    fn make_known(connection: &Arc<Connection>) {
        let mut extensions = Extensions::new();
        drop(connection.begin(&mut extensions));
        CallerConnection::mark_known(&extensions);
        connection.idle_since.store(1000, Ordering::Relaxed);
    }

    #[test]
    fn an_idle_connection_ends_sooner_until_it_is_known() {
        let stranger = connection(0);
        assert_eq!(stranger.check(TIMES, 1009), Ok(Duration::from_millis(1)));
        assert_eq!(stranger.check(TIMES, 1010), Err(Ending::Idle));
        let known = connection(0);
        make_known(&known);
        assert_eq!(known.check(TIMES, 1074), Ok(Duration::from_millis(1)));
        assert_eq!(known.check(TIMES, 1075), Err(Ending::Idle));
    }

    #[test]
    fn a_request_in_flight_and_a_blocked_socket_are_not_idle() {
        let one = connection(0);
        let in_flight = one.begin(&mut Extensions::new());
        assert!(one.check(TIMES, u64::MAX / 2).is_ok());
        drop(in_flight);
        one.note_blocked(true);
        assert!(one.check(TIMES, u64::MAX / 2).is_ok());
        one.note_blocked(false);
        assert_eq!(one.check(TIMES, u64::MAX / 2), Err(Ending::Idle));
    }

    #[test]
    fn what_strangers_send_without_a_request_has_a_budget() {
        let budget = Arc::new(HeadBudget::new(10));
        let one = Arc::new(Connection::new(Arc::clone(&budget)));
        assert!(one.note_read(FREE_HEAD_BYTES) && one.note_read(10));
        let two = Connection::new(Arc::clone(&budget));
        assert!(two.note_read(FREE_HEAD_BYTES) && !two.note_read(1), "the first one has all of the rest");
        drop(one.begin(&mut Extensions::new()));
        assert!(two.note_read(10), "the first one's head is read");
        drop(two);
        make_known(&one);
        assert!(one.note_read(10 * STRANGER_BYTES_MAX), "a known one is bounded by hyper");
        let three = Connection::new(budget);
        assert!(three.note_read(FREE_HEAD_BYTES + 10) && !three.note_read(1));
        let alone = Connection::new(Arc::new(HeadBudget::new(usize::MAX)));
        assert!(alone.note_read(STRANGER_BYTES_MAX) && !alone.note_read(1));
    }

    #[tokio::test]
    async fn over_http2_an_answer_is_handed_over_in_pieces_that_must_be_taken() {
        let one = connection(0);
        make_known(&one);
        let bytes = Bytes::from(vec![7; HTTP2_PIECE_BYTES + 5]);
        let mut body = AnswerBody::new(Body::from(bytes.clone()), one.begin(&mut Extensions::new()), true);
        assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64));
        assert!(one.check(TIMES, u64::MAX / 2).is_ok(), "nothing waits yet");
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((first.len(), body.size_hint().exact()), (HTTP2_PIECE_BYTES, Some(5)));
        assert_eq!(one.check(TIMES, u64::MAX / 2), Err(Ending::Stalled));
        let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(last.len() == 5 && body.is_end_stream());
        assert_eq!(one.check(TIMES, u64::MAX / 2), Err(Ending::Stalled), "the last piece waits too");
        drop(body);
        one.idle_since.store(1000, Ordering::Relaxed);
        assert!(one.check(TIMES, 1001).is_ok());
    }

    #[test]
    fn answers_that_have_ended_are_not_listed_for_ever() {
        let one = connection(0);
        make_known(&one);
        let answer = || AnswerBody::new(Body::from("x"), one.begin(&mut Extensions::new()), true);
        let listed = || one.waiting.lock().unwrap().len();
        let open: Vec<_> = (0..100).map(|_| answer()).collect();
        assert_eq!(listed(), 100);
        for _ in 0..10_000 {
            drop(answer());
            assert!(listed() <= 2 * 101 + ENDED_ANSWERS_MAX + 1);
        }
        drop(open);
        drop((answer(), answer()));
        assert!(listed() <= 3, "{}", listed());
    }
}
