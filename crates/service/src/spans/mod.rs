//! Records spans: what this node did for a request of a trace, for the collector in the settings.
//!
//! | to find | look in |
//! |---|---|
//! | which requests are traced; a span from its start to its end; the queue | this file |
//! | the task that sends them | `export` |
//! | spans as OTLP messages | `message` |
//!
//! A request with a sampled `traceparent` is traced. Of the requests without one, a configured share starts a trace here.
//! The spans of one request are: the request on the receiving node; if that is not the leader, each attempt to forward the
//! write, and the decision on the leader.
//!
//! **Invariants**
//! 1. Without a collector a request costs one check of an `Option`.
//! 2. Nothing waits for the collector: if the queue is full, a span is counted and dropped.
//! 3. A span contains path templates, methods, statuses, addresses of nodes and the request id. It contains no key, query or
//!    data of a record.
#![cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "without the feature nothing begins a span"))]

#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod message;

use std::{
    future::Future,
    path::PathBuf,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::HeaderValue;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    now,
    retry::{Attempt, AttemptError},
};
use concord_model::time::Timestamp;
use concord_net::{
    Member, NodeId,
    trace::{TraceParent, traced, with_traces},
};

/// Spans that wait to be sent, some 300 bytes each: what a busy node records while its collector starts again.
const QUEUE_MAX: usize = 8192;
/// How long a stopping node waits until they are sent.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// The settings of the collector.
#[derive(Debug, Clone)]
pub struct SpanOptions {
    /// The URL that they are posted to.
    pub url: String,
    /// A file with its certificate authorities. Without one, those that this machine trusts.
    pub authority: Option<PathBuf>,
    /// The share of requests without a trace that start one, 0 to 1.
    pub sample: f64,
    /// The address of this node's client listener.
    pub address: String,
    /// Whether that listener is encrypted.
    pub is_encrypted: bool,
}

/// The numbers of spans by what happened to them.
#[derive(Debug, Default)]
pub(super) struct SpanCounts {
    sent: AtomicU64,
    /// Dropped because the queue was full.
    unqueued: AtomicU64,
    /// Dropped because the collector rejected them, or the node stopped before it accepted them.
    refused: AtomicU64,
}

/// The values of [`SpanCounts`] at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanFigures {
    pub(super) sent: u64,
    pub(super) unqueued: u64,
    pub(super) refused: u64,
}

impl SpanCounts {
    fn dropped(&self) -> u64 {
        self.unqueued.load(Ordering::Relaxed) + self.refused.load(Ordering::Relaxed)
    }
}

fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(more as u64, Ordering::Relaxed);
}

/// The spans of a node.
#[derive(Debug, Default)]
pub struct SpanRecorder {
    counts: Arc<SpanCounts>,
    outbox: Option<Arc<Outbox>>,
}

/// The queue of the task that sends spans.
#[derive(Debug)]
struct Outbox {
    queue: mpsc::Sender<FinishedSpan>,
    sample: f64,
    counts: Arc<SpanCounts>,
    /// Tells the task to send the remaining spans and to end.
    ending: CancellationToken,
    ended: CancellationToken,
}

/// What a node does in a span.
#[derive(Debug, PartialEq, Eq)]
enum SpanWork {
    /// It answers a client request. The route is empty for an unknown path.
    Request { method: &'static str, route: &'static str },
    /// It forwards a write to the leader.
    Forward(Member),
    /// As the leader, it decides a forwarded write.
    Decision,
}

/// How a span ended.
#[derive(Debug, PartialEq, Eq)]
enum SpanOutcome {
    /// The work was cancelled.
    Abandoned,
    /// With a status and the id of the request.
    Answered(u16, HeaderValue),
    /// The result of an attempt, and whether it is a failure.
    Attempted(&'static str, bool),
}

/// A span that has ended.
#[derive(Debug)]
struct FinishedSpan {
    context: TraceParent,
    parent: Option<u64>,
    began: Timestamp,
    took: Duration,
    work: SpanWork,
    outcome: SpanOutcome,
}

/// A span in progress. It ends when it is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    outbox: Arc<Outbox>,
    at: Instant,
    open: Option<FinishedSpan>,
}

impl OpenSpan {
    /// The trace, with this span as the parent of what follows.
    fn context(&self) -> Option<TraceParent> {
        self.open.as_ref().map(|open| open.context)
    }

    fn set(&mut self, outcome: SpanOutcome) {
        if let Some(open) = &mut self.open {
            open.outcome = outcome;
        }
    }

    fn end<T>(mut self, attempt: &Attempt<T>) {
        let (name, is_failure) = match attempt {
            Ok(_) => ("decided", false),
            Err(AttemptError::Refused(_)) => ("refused", false),
            Err(AttemptError::Retry(_)) => ("not_done", true),
            Err(AttemptError::Unknown(_)) => ("unknown", true),
            Err(AttemptError::Begun(_)) => ("begun", true),
        };
        self.set(SpanOutcome::Attempted(name, is_failure));
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut finished) = self.open.take() {
            finished.took = self.at.elapsed();
            if self.outbox.queue.try_send(finished).is_err() {
                add(&self.outbox.counts.unqueued, 1);
            }
        }
    }
}

impl SpanRecorder {
    /// Starts the task that sends spans, if the settings name a collector.
    pub(super) fn start(options: Option<SpanOptions>, node: NodeId) -> Self {
        let counts = Arc::<SpanCounts>::default();
        #[cfg(feature = "otlp")]
        let outbox = options.map(|options| Arc::new(export::start(options, node, Arc::clone(&counts))));
        // The settings refuse the address of a collector.
        #[cfg(not(feature = "otlp"))]
        let (outbox, _unused) = (None, (options, node));
        Self { counts, outbox }
    }

    /// Begins a span if the trace is sampled.
    fn begin(&self, parent: Option<TraceParent>, work: impl FnOnce() -> SpanWork) -> Option<OpenSpan> {
        let outbox = self.outbox.as_ref()?;
        let parent = parent.filter(TraceParent::is_sampled)?;
        let context = parent.with_span(fastrand::u64(1..))?;
        Some(OpenSpan::open(outbox, context, Some(parent.span()), work()))
    }

    /// Begins the span of a client request if its trace is sampled, or perhaps starts a trace.
    fn begin_request(
        &self,
        caller: Option<TraceParent>,
        work: impl FnOnce() -> SpanWork,
    ) -> Option<OpenSpan> {
        let outbox = self.outbox.as_ref()?;
        if caller.is_some() {
            return self.begin(caller, work);
        }
        if fastrand::f64() >= outbox.sample {
            return None;
        }
        let context = TraceParent::root(fastrand::u128(1..), fastrand::u64(1..))?;
        Some(OpenSpan::open(outbox, context, None, work()))
    }

    /// What became of the spans so far.
    pub(super) fn figures(&self) -> SpanFigures {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let SpanCounts { sent, unqueued, refused } = &*self.counts;
        SpanFigures { sent: load(sent), unqueued: load(unqueued), refused: load(refused) }
    }

    /// Waits for a moment until the queued spans are sent.
    pub(super) async fn flush(&self) {
        let Some(outbox) = &self.outbox else { return };
        outbox.ending.cancel();
        if timeout(END_TIMEOUT, outbox.ended.cancelled()).await.is_err() {
            tracing::warn!("the collector did not accept the last spans in time: they are dropped");
        }
    }
}

impl OpenSpan {
    fn open(outbox: &Arc<Outbox>, context: TraceParent, parent: Option<u64>, work: SpanWork) -> Self {
        let (began, took, outcome) = (now(), Duration::ZERO, SpanOutcome::Abandoned);
        let open = Some(FinishedSpan { context, parent, began, took, work, outcome });
        Self { outbox: Arc::clone(outbox), at: Instant::now(), open }
    }
}

/// A client request that belongs to a trace.
#[derive(Debug)]
pub struct TracedRequest {
    trace: TraceParent,
    span: Option<OpenSpan>,
}

impl TracedRequest {
    /// Does the work of the request within the trace. `answered` returns the status and the id of the response.
    pub async fn run<T>(
        self,
        work: impl Future<Output = T>,
        answered: impl FnOnce(&T) -> (u16, Option<HeaderValue>),
    ) -> T {
        let Self { trace, mut span } = self;
        traced(Some(trace), async move {
            let done = work.await;
            let (status, id) = answered(&done);
            if let (Some(span), Some(id)) = (&mut span, id) {
                span.set(SpanOutcome::Answered(status, id));
            }
            done
        })
        .await
    }
}

impl SpanRecorder {
    /// The traced request, if the request belongs to a trace: that of the client, or a new one. `names` returns the method
    /// and the route.
    #[must_use]
    pub fn traced_request(
        &self,
        caller: Option<TraceParent>,
        names: impl FnOnce() -> (&'static str, &'static str),
    ) -> Option<TracedRequest> {
        let work = || {
            let (method, route) = names();
            SpanWork::Request { method, route }
        };
        let span = self.begin_request(caller, work);
        let trace = span.as_ref().and_then(OpenSpan::context).or(caller)?;
        Some(TracedRequest { trace, span })
    }

    /// Forwards a write to the leader, in a span if it belongs to a trace.
    pub(super) async fn in_forward_span<T>(
        &self,
        trace: Option<TraceParent>,
        leader: &Member,
        forwarding: Pin<&mut impl Future<Output = Attempt<T>>>,
    ) -> Attempt<T> {
        let span = self.begin(trace, || SpanWork::Forward(leader.clone()));
        let Some(span) = span else { return forwarding.await };
        let attempt = with_traces(vec![span.context()], forwarding).await;
        span.end(&attempt);
        attempt
    }

    /// Decides a forwarded write, in a span if it belongs to a trace.
    pub(super) async fn in_decision_span<T>(
        &self,
        trace: Option<TraceParent>,
        deciding: impl Future<Output = Attempt<T>>,
    ) -> Attempt<T> {
        // Pinned here: moved on, it would take its space again in each function.
        let deciding = pin!(deciding);
        let Some(span) = self.begin(trace, || SpanWork::Decision) else {
            return traced(trace, deciding).await;
        };
        let attempt = traced(span.context(), deciding).await;
        span.end(&attempt);
        attempt
    }
}

#[cfg(test)]
#[cfg(feature = "otlp")]
mod tests;
