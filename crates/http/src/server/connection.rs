//! The state of one connection, and when the node closes it.
//!
//! A connection is *authenticated* (in the code: known) once it has carried a valid credential. Until then it has the
//! short timeout, can be evicted, and can send only a limited number of bytes without a complete request.
//!
//! | reason to close it | unauthenticated | authenticated |
//! |---|---|---|
//! | no complete request since the last response | header timeout | idle timeout |
//! | the client does not read a part of a response | the shorter of send and header timeout | send timeout; over HTTP/2 it ends the stream only |
//! | the client reads responses slowly while memory is scarce | | [`SCARCE_TIMEOUT`], over HTTP/2 the stream only |
//! | bytes without a complete request | [`STRANGER_BYTES_MAX`], those above [`FREE_HEAD_BYTES`] from a common budget | the head of one request |
//! | its place is needed | at once | never |
//!
//! hyper has no idle timeout for HTTP/2 and no send timeout; for HTTP/1 it has a timer that it sets for each request. A
//! slow HTTP/1 client blocks the socket (`socket.rs`). A slow HTTP/2 client exhausts the flow control window, which
//! shows only in the parts of a response (`answer.rs`). Here one timer per connection observes all of this, and is set
//! again when it fires.
//!
//! **Invariant:** if the client reads each part of a response in time, the response never ends its connection, however
//! long it takes: a watch may be silent without limit. A response that the client does not read ends no other stream of
//! its connection.

use std::{
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use http::Extensions;
use tokio::{sync::Notify, time::timeout};

use super::{answer::Untaken, pace::ReadingPace};
use concord_model::limits::{FREE_HEAD_BYTES, SCARCE_TIMEOUT, STRANGER_BYTES_MAX};

/// How many send timeouts a stream may make no progress while other streams of its connection are read: in that time a
/// slow link serves each of 256 streams.
const SHARED_LINK_TIMES: u32 = 8;

/// Ended responses are removed from the list once it has this many more entries than twice the requests in flight.
const ENDED_ANSWERS_MAX: usize = 16;

/// The zero of the clock of all connections.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since [`BEGIN`], at least 1, because 0 means *never*.
pub(super) fn now() -> u64 {
    u64::try_from(BEGIN.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Without a complete request, until the connection is authenticated.
    pub(super) header: Duration,
    /// Without a complete request, afterwards.
    pub(super) idle: Duration,
    /// Until the client has read the next part of a response.
    pub(super) send: Duration,
}

/// Why a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// No complete request arrived in time.
    Idle,
    /// The client does not read its response.
    Stalled,
    /// The client reads its responses slowly while others need the memory.
    Slow,
    /// A new connection needs the place.
    Evicted,
}

/// The bytes that all unauthenticated connections together can hold.
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

/// The state of a connection.
#[derive(Debug)]
pub(super) struct ServedConnection {
    is_known: AtomicBool,
    begun: Instant,
    /// Requests whose response is not completely passed on; over HTTP/2, not completely written.
    in_flight: AtomicUsize,
    /// Wakes a task that waits until no request is in flight: see [`Self::poll_answered`].
    answered: AtomicWaker,
    /// Since when no request is in flight.
    idle_since: AtomicU64,
    /// Whether the request in flight ends when the client closes its sending side.
    ends_with_client: AtomicBool,
    /// Whether the socket accepts no more bytes.
    is_blocked: AtomicBool,
    is_evicted: AtomicBool,
    /// Wakes [`Self::ending`]. Without a wake-up, it checks again at `looks_at`.
    woken: Notify,
    looks_at: AtomicU64,
    /// Bytes read since the last complete request, until the connection is authenticated; and how many of them were
    /// taken from the budget.
    unasked: AtomicUsize,
    charged: AtomicUsize,
    budget: Arc<HeadBudget>,
    /// Responses over HTTP/2 that may wait for the client.
    answers: Mutex<Vec<Weak<Untaken>>>,
    is_http2: AtomicBool,
    pace: Mutex<ReadingPace>,
}

impl ServedConnection {
    pub(super) fn new(budget: Arc<HeadBudget>) -> Self {
        Self {
            is_known: AtomicBool::new(false),
            begun: Instant::now(),
            in_flight: AtomicUsize::new(0),
            answered: AtomicWaker::new(),
            idle_since: AtomicU64::new(now()),
            ends_with_client: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            woken: Notify::new(),
            looks_at: AtomicU64::new(0),
            unasked: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            budget,
            answers: Mutex::default(),
            is_http2: AtomicBool::new(false),
            pace: Mutex::default(),
        }
    }

    fn pace(&self) -> MutexGuard<'_, ReadingPace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that bytes wait for the client, in an HTTP/2 response or in the socket.
    pub(super) fn begins_to_owe(&self) {
        let now = now();
        self.pace().begin(now);
        // Once for each check, not for each response.
        if self.looks_at.load(Ordering::Relaxed) > now + millis(SCARCE_TIMEOUT) {
            self.woken.notify_one();
        }
    }

    /// Records that these bytes no longer wait.
    pub(super) fn ceases_to_owe(&self) {
        self.pace().end(now());
    }

    /// Records that the client has read bytes of a response over HTTP/2.
    pub(super) fn note_taken(&self, bytes: usize) {
        self.pace().note_taken(bytes, now());
    }

    /// Records that the socket has accepted bytes.
    pub(super) fn note_written(&self, bytes: usize) {
        // Over HTTP/2 the responses count them.
        if !self.is_http2.load(Ordering::Relaxed) {
            self.note_taken(bytes);
        }
    }

    /// Adds a response over HTTP/2 to those whose progress is checked.
    pub(super) fn list(&self, answer: &Arc<Untaken>) {
        self.is_http2.store(true, Ordering::Relaxed);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // Not for each response, because this visits all of them, and hundreds may be in flight.
        if answers.len() > 2 * self.in_flight() + ENDED_ANSWERS_MAX {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(answer));
    }

    /// Requests whose response is not completely written.
    pub(super) fn in_flight(&self) -> usize {
        // Acquire, so that `idle_since`, which is stored before this, is visible.
        self.in_flight.load(Ordering::Acquire)
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Asks the connection to end, because its place is needed.
    pub(super) fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        self.woken.notify_one();
    }

    /// Counts a request that has arrived, until the guard is dropped. Its handler can mark the connection as
    /// authenticated.
    pub(super) fn begin(self: &Arc<Self>, extensions: &mut Extensions) -> RequestInFlight {
        if !self.is_known() {
            self.unasked.store(0, Ordering::Relaxed);
            self.budget.give_back(self.charged.swap(0, Ordering::Relaxed));
            extensions.insert(CallerConnection(Arc::clone(self)));
        }
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        RequestInFlight(Arc::clone(self))
    }

    /// Records whether the newest request ends when the client closes its sending side, as a watch does.
    pub(super) fn note_patience(&self, ends_with_client: bool) {
        self.ends_with_client.store(ends_with_client, Ordering::Relaxed);
    }

    /// Waits until a client that has closed its sending side has its response.
    pub(super) fn poll_answered(&self, context: &Context<'_>) -> Poll<()> {
        self.answered.register(context.waker());
        if self.in_flight() > 0 && !self.ends_with_client.load(Ordering::Relaxed) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    /// Counts bytes that were read. False if an unauthenticated connection exceeds its limit.
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

    /// Records whether the socket accepts bytes.
    pub(super) fn note_blocked(&self, is_blocked: bool) {
        self.idle_since.store(now(), Ordering::Relaxed);
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
        if is_blocked {
            self.begins_to_owe();
        } else {
            self.ceases_to_owe();
        }
    }

    /// Resolves when the connection must end. `is_scarce` says whether other requests need the memory that responses
    /// hold.
    pub(super) async fn ending(&self, times: Times, is_scarce: impl Fn() -> bool) -> ConnectionEnd {
        loop {
            let pause = match self.check(times, now(), &is_scarce) {
                Ok(pause) => pause,
                Err(ending) => return ending,
            };
            self.looks_at.store(now().saturating_add(millis(pause)), Ordering::Relaxed);
            // In both cases, after the pause or a wake-up, it checks again.
            drop(timeout(pause, self.woken.notified()).await);
            if self.is_evicted.load(Ordering::Relaxed) && !self.is_known() {
                return ConnectionEnd::Evicted;
            }
        }
    }

    /// Whether the connection must end, although requests are in flight.
    pub(super) fn must_end_now(&self, times: Times) -> bool {
        matches!(self.check(times, now(), || false), Err(ConnectionEnd::Stalled | ConnectionEnd::Slow))
    }

    /// Returns the time until the next check, or why the connection must end now. Resets the streams that must end.
    fn check(&self, times: Times, now: u64, is_scarce: impl Fn() -> bool) -> Result<Duration, ConnectionEnd> {
        let (idle, send) = if self.is_known() {
            (times.idle, times.send)
        } else {
            (times.header, times.send.min(times.header))
        };
        let is_blocked = self.is_blocked.load(Ordering::Relaxed);
        if self.in_flight() == 0 && !is_blocked {
            let left = (self.idle_since.load(Ordering::Relaxed) + millis(idle)).saturating_sub(now);
            return if left == 0 { Err(ConnectionEnd::Idle) } else { Ok(Duration::from_millis(left)) };
        }
        let (owes, is_slow, moves) = {
            let mut pace = self.pace();
            (pace.owes(), pace.is_slow(now), pace.has_moved_within(send, now))
        };
        let pause = idle.min(send).max(Duration::from_millis(1));
        if !owes {
            // Bytes that begin to wait from now on wake it.
            return Ok(pause);
        }
        let pause = pause.min(SCARCE_TIMEOUT);
        let is_scarce = is_scarce();
        if is_scarce && is_slow && is_blocked {
            return Err(ConnectionEnd::Slow);
        }
        let limit = if moves && !is_scarce { send * SHARED_LINK_TIMES } else { send };
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|answer| answer.strong_count() > 0);
        for answer in answers.iter().filter_map(Weak::upgrade) {
            let must_end =
                answer.has_stood_still(limit, now) || (is_scarce && is_slow && answer.is_slow(now));
            if must_end && !(self.is_known() && answer.reset()) {
                return Err(ConnectionEnd::Stalled);
            }
        }
        Ok(pause)
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        self.budget.give_back(*self.charged.get_mut());
    }
}

/// In a request's extensions: the connection that it arrived on, while that is unauthenticated.
#[derive(Debug, Clone)]
pub(crate) struct CallerConnection(Arc<ServedConnection>);

impl CallerConnection {
    /// Marks the connection of a request as authenticated, because the request's credential was valid.
    pub(crate) fn mark_known(extensions: &Extensions) {
        if let Some(Self(connection)) = extensions.get() {
            connection.is_known.store(true, Ordering::Relaxed);
        }
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct RequestInFlight(pub(super) Arc<ServedConnection>);

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.idle_since.store(now(), Ordering::Relaxed);
        // The order matters: a task that sees no request in flight also sees this time.
        if self.0.in_flight.fetch_sub(1, Ordering::Release) == 1 {
            self.0.answered.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::answer::AnswerBody;
    use axum::body::Body;
    use futures::FutureExt as _;

    const TIMES: Times = Times {
        header: Duration::from_millis(10),
        idle: Duration::from_millis(75),
        send: Duration::from_millis(30),
    };

    fn never() -> bool {
        false
    }

    fn connection(budget: usize) -> Arc<ServedConnection> {
        let connection = ServedConnection::new(Arc::new(HeadBudget::new(budget)));
        connection.idle_since.store(1000, Ordering::Relaxed);
        Arc::new(connection)
    }

    fn make_known(connection: &Arc<ServedConnection>) {
        let mut extensions = Extensions::new();
        drop(connection.begin(&mut extensions));
        CallerConnection::mark_known(&extensions);
        connection.idle_since.store(1000, Ordering::Relaxed);
    }

    #[test]
    fn an_idle_connection_ends_sooner_until_it_is_known() {
        let stranger = connection(0);
        assert_eq!(stranger.check(TIMES, 1009, never), Ok(Duration::from_millis(1)));
        assert_eq!(stranger.check(TIMES, 1010, never), Err(ConnectionEnd::Idle));
        let known = connection(0);
        make_known(&known);
        assert_eq!(known.check(TIMES, 1074, never), Ok(Duration::from_millis(1)));
        assert_eq!(known.check(TIMES, 1075, never), Err(ConnectionEnd::Idle));
    }

    #[test]
    fn a_request_in_flight_and_a_blocked_socket_are_not_idle() {
        let one = connection(0);
        let in_flight = one.begin(&mut Extensions::new());
        assert!(one.check(TIMES, u64::MAX / 2, never).is_ok());
        drop(in_flight);
        one.note_blocked(true);
        assert!(one.check(TIMES, u64::MAX / 2, never).is_ok());
        one.note_blocked(false);
        assert_eq!(one.check(TIMES, u64::MAX / 2, never), Err(ConnectionEnd::Idle));
    }

    #[test]
    fn what_strangers_send_without_a_request_has_a_budget() {
        let budget = Arc::new(HeadBudget::new(10));
        let one = Arc::new(ServedConnection::new(Arc::clone(&budget)));
        assert!(one.note_read(FREE_HEAD_BYTES) && one.note_read(10));
        let two = ServedConnection::new(Arc::clone(&budget));
        assert!(two.note_read(FREE_HEAD_BYTES) && !two.note_read(1), "the first one has all of the rest");
        drop(one.begin(&mut Extensions::new()));
        assert!(two.note_read(10), "the first one's head is read");
        drop(two);
        make_known(&one);
        assert!(one.note_read(10 * STRANGER_BYTES_MAX), "a known one is bounded by hyper");
        let three = ServedConnection::new(budget);
        assert!(three.note_read(FREE_HEAD_BYTES + 10) && !three.note_read(1));
        let alone = ServedConnection::new(Arc::new(HeadBudget::new(usize::MAX)));
        assert!(alone.note_read(STRANGER_BYTES_MAX) && !alone.note_read(1));
    }

    #[test]
    fn what_begins_to_wait_is_looked_at_soon_and_once() {
        let one = connection(0);
        one.looks_at.store(u64::MAX, Ordering::Relaxed);
        one.begins_to_owe();
        assert!(one.woken.notified().now_or_never().is_some());
        one.ceases_to_owe();
        one.looks_at.store(now() + millis(SCARCE_TIMEOUT), Ordering::Relaxed);
        one.begins_to_owe();
        assert!(one.woken.notified().now_or_never().is_none());
    }

    #[test]
    fn a_reader_that_is_slow_while_memory_is_scarce_makes_way() {
        let (one, long) = (connection(0), Duration::from_secs(600));
        let times = Times { header: long, idle: long, send: long };
        make_known(&one);
        let _in_flight = one.begin(&mut Extensions::new());
        one.note_blocked(true);
        let later = now() + 60_000;
        assert!(one.check(times, later, never).is_ok());
        one.note_written(100 << 20);
        assert!(one.check(times, later, || true).is_ok(), "it takes more than a MiB a second");
        assert_eq!(one.check(times, later + 600_000, || true), Err(ConnectionEnd::Slow));
        one.note_blocked(false);
        assert!(one.check(times, later + 600_000, || true).is_ok(), "nothing waits");
    }

    #[test]
    fn answers_that_have_ended_are_not_listed_for_ever() {
        let one = connection(0);
        make_known(&one);
        let answer = || AnswerBody::new(Body::from("x"), one.begin(&mut Extensions::new()), true);
        let listed = || one.answers.lock().unwrap().len();
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
