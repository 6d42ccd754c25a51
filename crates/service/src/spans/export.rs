//! The task that sends spans to the collector in batches.
//!
//! After a temporary failure it sends a batch again, with growing pauses. Meanwhile the queue fills, and spans that do not
//! fit are dropped and counted. After a timeout the collector may have accepted the batch. Then it gets these spans twice,
//! with the same ids.
//!
//! **Invariants:** one request is in flight at a time, and each has a timeout. The task logs once when the collector stops
//! accepting spans, and once when it accepts them again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, header};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use reqwest::redirect::Policy;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    FinishedSpan, Outbox, QUEUE_MAX, SpanCounts, SpanOptions, add,
    message::{SendingNode, encode},
};
use concord_net::NodeId;

/// Spans of one request at most: some 200 KB.
const BATCH_MAX: usize = 512;
/// How long the first span of a request waits for others.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// How long a request may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause after a failure, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Statuses after which OTLP allows a retry.
const PASSING: [u16; 4] = [429, 502, 503, 504];
/// Bytes of a response that are read at most: more than a collector sends.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Starts the task.
pub(super) fn start(options: SpanOptions, node: NodeId, counts: Arc<SpanCounts>) -> Outbox {
    let (queue, inbox) = mpsc::channel(QUEUE_MAX);
    let (ending, ended) = (CancellationToken::new(), CancellationToken::new());
    let outbox = Outbox {
        queue,
        sample: options.sample,
        counts: Arc::clone(&counts),
        ending: ending.clone(),
        ended: ended.clone(),
    };
    let sender = SendingNode { node, address: options.address.clone(), is_encrypted: options.is_encrypted };
    let exporter = Exporter { inbox, options, sender, counts, ending, failing_since: None };
    // It ends with the node. After a panic each span is dropped and counted, which harms no request.
    tokio::spawn(async move {
        let _ended = ended.drop_guard();
        exporter.run().await;
    });
    outbox
}

struct Exporter {
    inbox: mpsc::Receiver<FinishedSpan>,
    options: SpanOptions,
    sender: SendingNode,
    counts: Arc<SpanCounts>,
    ending: CancellationToken,
    /// Since when the collector accepts no spans.
    failing_since: Option<Instant>,
}

/// Why the collector did not accept spans.
struct SendFailure {
    why: String,
    /// Whether a retry is useless.
    is_final: bool,
    /// How long to wait, according to the collector.
    pause: Option<Duration>,
}

impl SendFailure {
    fn passing(why: String) -> Self {
        Self { why, is_final: false, pause: None }
    }
}

impl Exporter {
    async fn run(mut self) {
        let mut http = None;
        while let Some(batch) = self.gather().await {
            let count = batch.len();
            let body = Bytes::from(encode(&self.sender, batch));
            self.deliver(&mut http, body, count).await;
        }
    }

    /// The spans of the next request. `None` when the node stops and no span waits.
    async fn gather(&mut self) -> Option<Vec<FinishedSpan>> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            _ = self.inbox.recv_many(&mut batch, BATCH_MAX) => {}
            () = self.ending.cancelled() => {}
        }
        if batch.is_empty() {
            return None;
        }
        let others = async {
            while batch.len() < BATCH_MAX {
                let most = BATCH_MAX - batch.len();
                if self.inbox.recv_many(&mut batch, most).await == 0 {
                    return;
                }
            }
        };
        tokio::select! {
            () = others => {}
            () = sleep(GATHER_TIME) => {}
            () = self.ending.cancelled() => {}
        }
        Some(batch)
    }

    /// Sends a batch until the collector accepts or rejects it, or the node stops.
    async fn deliver(&mut self, http: &mut Option<reqwest::Client>, body: Bytes, count: usize) {
        let mut pause = PAUSE_MIN;
        loop {
            match self.send(http, &body).await {
                Ok(refused) => {
                    let refused = usize::try_from(refused).unwrap_or_default().min(count);
                    add(&self.counts.sent, count - refused);
                    add(&self.counts.refused, refused);
                    return self.note_success();
                }
                Err(failure) => {
                    self.note_failure(&failure.why);
                    if failure.is_final || self.ending.is_cancelled() {
                        return add(&self.counts.refused, count);
                    }
                    let wait = failure.pause.unwrap_or(pause).min(PAUSE_MAX);
                    tokio::select! {
                        () = sleep(wait.mul_f64(1.0 + fastrand::f64() / 4.0)) => {}
                        // One more attempt before the node stops.
                        () = self.ending.cancelled() => {}
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Posts a batch once. Returns how many of its spans the collector rejected.
    async fn send(&self, http: &mut Option<reqwest::Client>, body: &Bytes) -> Result<i64, SendFailure> {
        let client = match http {
            Some(client) => client,
            None => http.insert(self.client().await.map_err(SendFailure::passing)?),
        };
        let post = client
            .post(&self.options.url)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .body(body.clone());
        let answered = async {
            let response = post.send().await.map_err(|error| SendFailure::passing(text_of(error)))?;
            let (status, headers) = (response.status(), response.headers().clone());
            if !status.is_success() {
                return Err(refusal(status.as_u16(), &headers));
            }
            Ok(refused_spans(response).await)
        };
        let late = |_| SendFailure::passing(format!("no answer within {} s", SEND_TIMEOUT.as_secs()));
        timeout(SEND_TIMEOUT, answered).await.map_err(late)?
    }

    /// The HTTP client for the collector. It trusts the certificate authorities of a file, or those of this machine.
    async fn client(&self) -> Result<reqwest::Client, String> {
        let is_encrypted = self.options.url.starts_with("https:");
        let tls = concord_client::Tls { authority: self.options.authority.clone(), own: None };
        let config = concord_consensus::blocking::blocking(move || tls.config(is_encrypted)).await;
        let config = config.map_err(|error| error.to_string())??;
        let client = reqwest::Client::builder().tls_backend_preconfigured(config);
        client.no_proxy().redirect(Policy::none()).build().map_err(text_of)
    }

    fn note_failure(&mut self, why: &str) {
        if self.failing_since.is_none() {
            self.failing_since = Some(Instant::now());
            tracing::warn!(collector = self.options.url, "the collector accepts no spans: {why}");
        }
    }

    fn note_success(&mut self) {
        if let Some(since) = self.failing_since.take() {
            let lasted_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let dropped_spans = self.counts.dropped();
            let collector = &self.options.url;
            tracing::info!(collector, lasted_ms, dropped_spans, "the collector accepts spans again");
        }
    }
}

/// The failure that an unsuccessful status means.
fn refusal(status: u16, headers: &HeaderMap) -> SendFailure {
    let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let why = format!("it answers {status}");
    SendFailure { why, is_final: !PASSING.contains(&status), pause: seconds.map(Duration::from_secs) }
}

/// How many spans of an accepted batch the collector rejected. If the response can't be decoded, its status says that the
/// collector accepted all.
async fn refused_spans(mut response: reqwest::Response) -> i64 {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return 0;
        }
        body.extend_from_slice(&chunk);
    }
    let answer = ExportTraceServiceResponse::decode(body.as_slice()).ok();
    answer.and_then(|answer| answer.partial_success).map_or(0, |partial| partial.rejected_spans)
}

/// Why a request failed: the innermost cause, without the address, which the log line has.
fn text_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_follow_otlp() {
        let none = HeaderMap::new();
        for status in [429, 502, 503, 504] {
            assert!(!refusal(status, &none).is_final, "{status}");
        }
        for status in [301, 400, 401, 403, 404, 413, 500] {
            assert!(refusal(status, &none).is_final, "{status}");
        }
        let mut headers = HeaderMap::new();
        for (text, pause) in [("7", Some(7)), ("soon", None), ("-1", None)] {
            headers.insert(header::RETRY_AFTER, text.parse().unwrap());
            let found = refusal(503, &headers).pause;
            assert_eq!(found, pause.map(Duration::from_secs), "{text}");
        }
    }
}
