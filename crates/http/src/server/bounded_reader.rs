//! Limits how much of what a client sends is handled in one turn of its connection, and how many frames without a
//! request it can send.
//!
//! hyper and h2 read from a socket until it has no more bytes. A client that sends small frames without a pause would
//! occupy a thread for milliseconds, while all other connections wait. So a turn passes on at most [`TURN_BYTES`] bytes
//! and [`TURN_COST`] frames. Then the connection goes to the end of the queue.
//!
//! h2 limits continuations, resets and empty data frames of HTTP/2. All other frames without a request (pings,
//! settings, priorities, window updates, unknown types) use up an allowance of the connection. An ordinary client never
//! notices it. If the allowance is used up, the next such frame waits, and so the client is read more slowly.
//!
//! | frame | price |
//! |---|---|
//! | data, headers, continuation, reset | none: bodies and requests have limits of their own |
//! | window update | none for one update for each [`WINDOW_BYTES`] bytes that the node has sent, else 1 |
//! | settings | [`SETTINGS_PRICE`], because h2 visits all streams; an acknowledgement 1 |
//! | any other | 1, and 1 for each [`PRICED_BYTES`] |
//!
//! This layer reads frames, so it is above TLS. It also sees when a client has closed its sending side. It delays that
//! signal while an HTTP/1.1 request is in flight ([`HALF_CLOSED_TIMEOUT`]).
//!
//! **Invariant:** every byte is passed on once and in order. A turn passes on at least one byte, and there is a wake-up
//! for every byte that waits.

use std::{
    future::Future as _,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::connection::ServedConnection;
use concord_model::limits::{
    HALF_CLOSED_TIMEOUT, HTTP2_CONTROL_FRAMES_BURST, HTTP2_CONTROL_FRAMES_PER_SECOND,
};

/// Bytes of one turn: the largest head of a request, and some 50 microseconds of parsing.
const TURN_BYTES: usize = 64 << 10;
/// Frames of one turn: some 10 microseconds if they are small.
const TURN_COST: u32 = 64;
/// A request counts as this many frames of a turn, because each starts a task.
const HEADERS_COST: u32 = 2;
/// Bytes that the node sends for each free window update. The shortest event of a watch is longer, and a client may
/// send two updates for it.
const WINDOW_BYTES: u64 = 32;
/// The price of a settings frame: it can change the windows of up to 256 streams.
const SETTINGS_PRICE: i64 = 100;
/// For the price, this many bytes of a frame without a request count as one more frame.
const PRICED_BYTES: usize = 256;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of the head of a frame.
const FRAME_HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// The flag of a settings frame that acknowledges the node's settings.
const ACK: u8 = 1;

/// What is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The preface, of which this many bytes have arrived.
    Preface(usize),
    /// HTTP/1.1, which has no frames.
    Http1,
    /// The head of a frame, of which this many bytes have arrived.
    Head([u8; FRAME_HEAD], usize),
    /// The payload of a frame, of which this many bytes are missing.
    Payload(usize),
}

/// The allowance for frames without a request. It grows with time.
#[derive(Debug)]
struct Allowance {
    left: i64,
    /// When `left` was true.
    since: Instant,
    /// Bytes that were sent, minus those for free window updates.
    sent: u64,
}

impl Allowance {
    fn new() -> Self {
        Self { left: HTTP2_CONTROL_FRAMES_BURST, since: Instant::now(), sent: 0 }
    }

    /// Pays for a frame. False if the allowance is now below zero.
    fn pay(&mut self, head: [u8; FRAME_HEAD], now: impl FnOnce() -> Instant) -> bool {
        let [.., flags, _, _, _, _] = head;
        let price = match kind_of(head) {
            DATA | HEADERS | RESET | CONTINUATION => return true,
            WINDOW_UPDATE if self.sent >= WINDOW_BYTES => {
                self.sent -= WINDOW_BYTES;
                return true;
            }
            SETTINGS if flags & ACK == 0 => SETTINGS_PRICE,
            _ => 1 + i64::try_from(length_of(head) / PRICED_BYTES).unwrap_or(i64::MAX),
        };
        if self.left < price {
            self.refill(now());
        }
        self.left -= price;
        self.left >= 0
    }

    fn refill(&mut self, now: Instant) {
        let micros = u64::try_from(now.saturating_duration_since(self.since).as_micros()).unwrap_or(u64::MAX);
        let more = micros.saturating_mul(HTTP2_CONTROL_FRAMES_PER_SECOND) / 1_000_000;
        if more > 0 {
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            self.left = self.left.saturating_add(more).min(HTTP2_CONTROL_FRAMES_BURST);
            self.since = now;
        }
    }

    /// When an allowance below zero will be zero again.
    fn paid_at(&self) -> Instant {
        let debts = u64::try_from(-self.left.min(0)).unwrap_or(u64::MAX);
        self.since + Duration::from_micros((debts * 1_000_000).div_ceil(HTTP2_CONTROL_FRAMES_PER_SECOND))
    }
}

/// The reader of a connection, which limits each turn.
#[derive(Debug)]
pub(super) struct BoundedReader<S> {
    stream: S,
    place: Place,
    /// Of this turn.
    bytes: usize,
    cost: u32,
    /// Bytes that were read and not passed on yet.
    rest: BytesMut,
    allowance: Allowance,
    /// Ends when the allowance is no longer below zero.
    pause: Option<Pin<Box<Sleep>>>,
    connection: Arc<ServedConnection>,
    /// Ends the wait for the response to a client that has closed its sending side.
    half_closed: Option<Pin<Box<Sleep>>>,
}

impl<S> BoundedReader<S> {
    pub(super) fn new(stream: S, connection: Arc<ServedConnection>) -> Self {
        Self {
            stream,
            connection,
            half_closed: None,
            place: Place::Preface(0),
            bytes: 0,
            cost: 0,
            rest: BytesMut::new(),
            allowance: Allowance::new(),
            pause: None,
        }
    }

    fn is_over(&self) -> bool {
        self.bytes >= TURN_BYTES || self.cost >= TURN_COST
    }

    /// Delays the end of the stream until the client has its response, or until a timeout. hyper assumes at the end
    /// that the client has disconnected: a write would be applied without a response.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.place != Place::Http1 || self.connection.poll_answered(context).is_ready() {
            return Poll::Ready(());
        }
        let held = || Box::pin(sleep(HALF_CLOSED_TIMEOUT));
        self.half_closed.get_or_insert_with(held).as_mut().poll(context)
    }

    fn begin_turn(&mut self) {
        (self.bytes, self.cost) = (0, 0);
    }

    /// How many of these bytes are passed on: at least one, and at most to the end of the turn or to a frame that the
    /// allowance does not cover.
    fn hand_on(&mut self, bytes: &[u8], now: impl Fn() -> Instant) -> usize {
        let mut handed_on = 0;
        while let Some(left) = bytes.get(handed_on..).filter(|left| !left.is_empty()) {
            let (read, is_cut) = self.step(left, &now);
            handed_on += read;
            if is_cut {
                break;
            }
        }
        self.bytes += handed_on;
        handed_on
    }

    /// Continues to the next place. Returns how many bytes it read, at least one, and whether the other bytes must
    /// wait.
    fn step(&mut self, left: &[u8], now: impl FnOnce() -> Instant) -> (usize, bool) {
        match self.place {
            Place::Http1 => (left.len(), false),
            Place::Preface(count) => {
                self.place = if left.first() != PREFACE.get(count) {
                    Place::Http1
                } else if count + 1 == PREFACE.len() {
                    Place::Head([0; FRAME_HEAD], 0)
                } else {
                    Place::Preface(count + 1)
                };
                (1, false)
            }
            Place::Payload(length) => {
                let read = left.len().min(length);
                self.place = Self::payload(length - read);
                (read, read == length && self.cost >= TURN_COST)
            }
            Place::Head(mut head, count) => {
                let read = left.len().min(FRAME_HEAD - count);
                head[count..count + read].copy_from_slice(&left[..read]);
                if count + read < FRAME_HEAD {
                    self.place = Place::Head(head, count + read);
                    return (read, false);
                }
                let length = length_of(head);
                self.place = Self::payload(length);
                self.cost += match kind_of(head) {
                    HEADERS if self.connection.is_known() => HEADERS_COST,
                    HEADERS => TURN_COST,
                    _ => 1,
                };
                let is_paid = self.allowance.pay(head, now);
                (read, !is_paid || (length == 0 && self.cost >= TURN_COST))
            }
        }
    }

    /// The place of a payload of which this many bytes are missing.
    fn payload(left: usize) -> Place {
        if left == 0 { Place::Head([0; FRAME_HEAD], 0) } else { Place::Payload(left) }
    }
}

fn length_of([high, middle, low, ..]: [u8; FRAME_HEAD]) -> usize {
    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)
}

fn kind_of(head: [u8; FRAME_HEAD]) -> u8 {
    head[3]
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.allowance.left < 0 {
            let paid_at = this.allowance.paid_at();
            let pause = this.pause.get_or_insert_with(|| Box::pin(sleep_until(paid_at)));
            ready!(pause.as_mut().poll(context));
            this.pause = None;
            this.allowance.refill(Instant::now().max(paid_at));
            this.begin_turn();
        }
        if this.is_over() {
            this.begin_turn();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !this.rest.is_empty() {
            let mut rest = std::mem::take(&mut this.rest);
            let most = rest.len().min(buffer.remaining());
            let handed_on = this.hand_on(&rest[..most], Instant::now);
            buffer.put_slice(&rest[..handed_on]);
            rest.advance(handed_on);
            if !rest.is_empty() {
                this.rest = rest;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buffer) else {
            this.begin_turn();
            return Poll::Pending;
        };
        read?;
        if buffer.filled().len() == before && buffer.remaining() > 0 {
            ready!(this.poll_end(context));
        }
        let handed_on = this.hand_on(&buffer.filled()[before..], Instant::now);
        this.rest.extend_from_slice(&buffer.filled()[before + handed_on..]);
        buffer.set_filled(before + handed_on);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> BoundedReader<S> {
    fn note_sent(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.allowance.sent = self.allowance.sent.saturating_add(*count as u64);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedReader<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_sent(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note_sent(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::server::connection::HeadBudget;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_be_bytes();
        [&[size[1], size[2], size[3], kind, flags, 0, 0, 0, 0][..], &vec![7; length]].concat()
    }

    /// A stream that has all of this to read, and takes everything.
    fn turns(bytes: &[u8]) -> BoundedReader<impl AsyncRead + AsyncWrite + Unpin> {
        BoundedReader::new(tokio::io::join(io::Cursor::new(bytes.to_vec()), Vec::new()), connection())
    }

    fn connection() -> Arc<ServedConnection> {
        Arc::new(ServedConnection::new(Arc::new(HeadBudget::new(0))))
    }

    /// What each turn hands on, until it is paused or at its end.
    fn read_turns(turns: &mut BoundedReader<impl AsyncRead + AsyncWrite + Unpin>) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        let mut space = vec![0; 8 << 10];
        loop {
            match turns.read(&mut space).now_or_never() {
                Some(count) => match count.unwrap() {
                    0 => return all,
                    count => all.last_mut().unwrap().extend_from_slice(&space[..count]),
                },
                None if turns.pause.is_some() => return all,
                None => all.push(Vec::new()),
            }
        }
    }

    #[tokio::test]
    async fn a_turn_of_http1_has_a_bound_in_bytes() {
        let bytes = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n".repeat(10_000);
        let mut turns = turns(&bytes);
        let read = read_turns(&mut turns);
        assert_eq!(read.concat(), bytes);
        assert!(read.len() >= bytes.len() / (TURN_BYTES + (8 << 10)), "{}", read.len());
        assert!(read.iter().all(|turn| turn.len() <= TURN_BYTES + (8 << 10)));
    }

    #[tokio::test]
    async fn a_turn_of_http2_has_a_bound_in_frames_whatever_a_read_gives() {
        let bodies = [PREFACE, &frame(DATA, 0, 1).repeat(1000)].concat();
        let read = read_turns(&mut turns(&bodies));
        assert_eq!(read.concat(), bodies);
        let longest = PREFACE.len() + 10 * TURN_COST as usize;
        assert!(read.iter().all(|turn| turn.len() <= longest), "a frame of one byte has ten");
        let requests = [PREFACE, &frame(HEADERS, 5, 20).repeat(1000)].concat();
        let read = read_turns(&mut turns(&requests));
        assert_eq!(read.concat(), requests);
        assert!(read.iter().all(|turn| turn.len() <= PREFACE.len() + 29 * 32), "thirty-two requests");
        let large = [PREFACE, &frame(DATA, 0, 16 << 10).repeat(64)].concat();
        let read = read_turns(&mut turns(&large));
        assert_eq!((read.concat() == large, read.len() <= 20), (true, true), "{}", read.len());
    }

    #[test]
    fn frames_without_a_request_are_paid_from_an_allowance_that_time_fills() {
        let burst = usize::try_from(HTTP2_CONTROL_FRAMES_BURST).unwrap();
        for (unit, units) in [
            (frame(6, 0, 8), burst),
            (frame(2, 0, 5), burst),
            (frame(WINDOW_UPDATE, 0, 4), burst),
            (frame(0x16, 0, 0), burst),
            (frame(0x16, 0, 1024), burst / 5),
            (frame(SETTINGS, 0, 6), burst / 100),
            (frame(SETTINGS, ACK, 0), burst),
        ] {
            let head: [u8; FRAME_HEAD] = unit[..FRAME_HEAD].try_into().unwrap();
            let mut allowance = Allowance::new();
            let mut now = allowance.since;
            let mut paid = || (0..2 * burst).take_while(|_| allowance.pay(head, || now)).count();
            assert_eq!(paid(), units, "{head:?}");
            now = allowance.paid_at();
            allowance.refill(now);
            assert_eq!(allowance.left, 0, "{head:?}");
            now += Duration::from_secs(3600);
            let mut paid = || (0..2 * burst).take_while(|_| allowance.pay(head, || now)).count();
            assert_eq!(paid(), units, "no more than at the beginning: {head:?}");
        }
        let mut allowance = Allowance::new();
        let now = allowance.since;
        for kind in [DATA, HEADERS, RESET, CONTINUATION] {
            let head = frame(kind, 0, 0).try_into().unwrap();
            assert!((0..10_000).all(|_| allowance.pay(head, || now)), "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_slowly_and_as_a_whole() {
        let bytes = [PREFACE, &frame(6, 0, 8).repeat(600)].concat();
        let begun = Instant::now();
        let mut read = Vec::new();
        turns(&bytes).read_to_end(&mut read).await.unwrap();
        assert!(read == bytes && begun.elapsed() > Duration::from_millis(150), "{:?}", begun.elapsed());
        // As one that comes in pieces is.
        let (ours, mut theirs) = tokio::io::duplex(1);
        let sent = bytes.clone();
        let sender = tokio::spawn(async move { theirs.write_all(&sent).await });
        let begun = Instant::now();
        let mut read = Vec::new();
        BoundedReader::new(ours, connection()).read_to_end(&mut read).await.unwrap();
        sender.await.unwrap().unwrap();
        assert!(read == bytes && begun.elapsed() > Duration::from_millis(150), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn an_honest_client_never_waits() {
        // What it sends for requests and bodies has no price.
        let [request, body, end] = [frame(HEADERS, 5, 30), frame(DATA, 0, 100), frame(RESET, 0, 4)];
        let bytes = [PREFACE, &frame(SETTINGS, 0, 36), &[request, body, end].concat().repeat(5000)].concat();
        let mut stream = turns(&bytes);
        assert!(read_turns(&mut stream).concat() == bytes && stream.pause.is_none());
        // Two updates of a window for each short event.
        let bytes = [PREFACE, &frame(WINDOW_UPDATE, 0, 4).repeat(20_000)].concat();
        let mut stream = turns(&bytes);
        for _ in 0..10_000 {
            stream.write_all(&[1; 64]).await.unwrap();
        }
        assert!(read_turns(&mut stream).concat() == bytes && stream.pause.is_none());
    }

    #[tokio::test]
    async fn a_client_that_sends_no_more_is_answered_for_a_while() {
        let known = connection();
        let mut stream = BoundedReader::new(tokio::io::join(&b"GET"[..], Vec::new()), Arc::clone(&known));
        let in_flight = known.begin(&mut http::Extensions::new());
        let mut read = Vec::new();
        assert!(stream.read_to_end(&mut read).now_or_never().is_none(), "the request is in flight");
        drop(in_flight);
        assert_eq!(stream.read_to_end(&mut read).now_or_never().unwrap().unwrap(), 0, "it was answered");
        let _in_flight = known.begin(&mut http::Extensions::new());
        known.note_patience(true);
        assert!(stream.read_to_end(&mut read).now_or_never().is_some(), "a watch ends with its client");
    }

    #[tokio::test]
    async fn a_stream_that_is_no_http2_after_all_has_no_frames() {
        let bytes = [&PREFACE[..20], &vec![6; 100_000]].concat();
        let mut stream = turns(&bytes);
        assert!(read_turns(&mut stream).concat() == bytes && stream.place == Place::Http1);
    }
}
