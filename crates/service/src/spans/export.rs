//! The task that sends spans to the collector, many in one request.
//!
//! What the collector does not take for the moment is sent again, after pauses that grow; meanwhile the queue fills, and
//! what finds no place is dropped and counted. A request that was not answered in time may have been taken: the
//! collector then gets its spans twice, with the same ids.
//!
//! **Invariants:** one request is under way at a time, and each has a time-out. The log has a line when the collector
//! ceases to take spans and one when it takes them again, however often it is tried between.

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

/// Spans of one request: some 200 KB.
const BATCH_MAX: usize = 512;
/// How long the first span of a request waits for others.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// How long a request may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause after a failure, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Statuses after which OTLP lets the same spans be sent again.
const PASSING: [u16; 4] = [429, 502, 503, 504];
/// Bytes of an answer that are read: more than the answer of a collector has.
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
    /// Since when the collector takes no spans.
    failing_since: Option<Instant>,
}

/// Why spans were not taken.
struct SendFailure {
    why: String,
    /// Whether the collector will not take them later either.
    is_final: bool,
    /// How long it asks to wait.
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

    /// The spans of the next request; `None` when the node ends and none waits.
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

    /// Sends so many spans until the collector takes or refuses them, or the node ends.
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
                        // Once more, before the node ends.
                        () = self.ending.cancelled() => {}
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Posts spans once; how many of them the collector refused.
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

    /// The client of the collector. It reads a file, or what this machine trusts.
    async fn client(&self) -> Result<reqwest::Client, String> {
        let is_encrypted = self.options.url.starts_with("https:");
        let tls = concord_client::Tls { authority: self.options.authority.clone(), own: None };
        let config = tokio::task::spawn_blocking(move || tls.config(is_encrypted)).await;
        let config = config.map_err(|error| error.to_string())??;
        let client = reqwest::Client::builder().tls_backend_preconfigured(config);
        client.no_proxy().redirect(Policy::none()).build().map_err(text_of)
    }

    fn note_failure(&mut self, why: &str) {
        if self.failing_since.is_none() {
            self.failing_since = Some(Instant::now());
            tracing::warn!(collector = self.options.url, "the collector takes no spans: {why}");
        }
    }

    fn note_success(&mut self) {
        if let Some(since) = self.failing_since.take() {
            let lasted_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let dropped_spans = self.counts.dropped();
            let collector = &self.options.url;
            tracing::info!(collector, lasted_ms, dropped_spans, "the collector takes spans again");
        }
    }
}

/// What a status that is no success means.
fn refusal(status: u16, headers: &HeaderMap) -> SendFailure {
    let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let why = format!("it answers {status}");
    SendFailure { why, is_final: !PASSING.contains(&status), pause: seconds.map(Duration::from_secs) }
}

/// How many spans the collector has refused although it took the others. An answer that can't be read says that it took
/// them, by its status.
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

/// Why a request failed: the innermost cause. The address is named beside it.
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
    fn what_may_be_tried_again_is_what_otlp_says() {
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
