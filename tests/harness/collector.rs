//! A collector of spans: an HTTP server that decodes what nodes send by OTLP.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    },
    common::v1::{KeyValue, any_value::Value},
};
use prost::Message as _;
use tokio::{net::TcpListener, task::JoinHandle};

/// What a collector does with what it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    Takes,
    /// It answers this status.
    Answers(u16),
    /// It takes all but so many.
    Refuses(i64),
    /// It answers nothing.
    Hangs,
}

/// A span that was sent, with what says from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) node: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// 2 for the side that answers, 3 for the side that asks.
    pub(crate) kind: i32,
    /// 2 for a failure.
    pub(crate) status: i32,
    pub(crate) attributes: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Inner {
    conduct: Conduct,
    requests: usize,
    spans: Vec<Span>,
    /// The bodies that were taken, one after another.
    bytes: Vec<u8>,
}

type Shared = Arc<Mutex<Inner>>;

/// A collector that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Collector {
    inner: Shared,
    pub(crate) url: String,
    server: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Collector {
    /// One on a port of its own.
    pub(crate) async fn start(conduct: Conduct) -> Self {
        Self::on("127.0.0.1:0", conduct).await
    }

    /// One on this address.
    pub(crate) async fn on(address: &str, conduct: Conduct) -> Self {
        let listener = TcpListener::bind(address).await.expect("the port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let inner = Inner { conduct, requests: 0, spans: Vec::new(), bytes: Vec::new() };
        let inner = Arc::new(Mutex::new(inner));
        let routes = Router::new().route("/v1/traces", post(receive)).with_state(Arc::clone(&inner));
        let server = tokio::spawn(async move {
            axum::serve(listener, routes).await.expect("it serves until it is dropped");
        });
        Self { inner, url, server }
    }

    pub(crate) fn set(&self, conduct: Conduct) {
        self.inner.lock().expect("nothing panics while it is held").conduct = conduct;
    }

    /// How many requests have come.
    pub(crate) fn requests(&self) -> usize {
        self.inner.lock().expect("nothing panics while it is held").requests
    }

    /// The spans of a trace; of all traces for the empty name.
    pub(crate) fn spans(&self, trace: &str) -> Vec<Span> {
        let inner = self.inner.lock().expect("nothing panics while it is held");
        inner.spans.iter().filter(|span| trace.is_empty() || span.trace == trace).cloned().collect()
    }

    /// Whether a text was anywhere in what it has taken.
    pub(crate) fn has_seen(&self, text: &str) -> bool {
        let inner = self.inner.lock().expect("nothing panics while it is held");
        inner.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<Value>| match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("no value that nodes send: {other:?}"),
    };
    attributes.into_iter().map(|one| (one.key, text(one.value.and_then(|value| value.value)))).collect()
}

async fn receive(State(inner): State<Shared>, headers: HeaderMap, body: Bytes) -> (StatusCode, Vec<u8>) {
    let conduct = {
        let mut inner = inner.lock().expect("nothing panics while it is held");
        inner.requests += 1;
        inner.conduct
    };
    let partial_success = match conduct {
        Conduct::Hangs => std::future::pending().await,
        Conduct::Answers(status) => return (StatusCode::from_u16(status).expect("a status"), Vec::new()),
        Conduct::Takes => None,
        Conduct::Refuses(rejected_spans) => {
            Some(ExportTracePartialSuccess { rejected_spans, error_message: "too many".into() })
        }
    };
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body.clone()).expect("a request of OTLP");
    let mut found = Vec::new();
    for of_node in request.resource_spans {
        let resource = named(of_node.resource.expect("each names its node").attributes);
        assert_eq!(resource["service.name"], "concord");
        for span in of_node.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            found.push(Span {
                node: resource["service.instance.id"].clone(),
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                kind: span.kind,
                status: span.status.map_or(0, |status| status.code),
                attributes: named(span.attributes),
            });
        }
    }
    let mut inner = inner.lock().expect("nothing panics while it is held");
    inner.spans.extend(found);
    inner.bytes.extend_from_slice(&body);
    (StatusCode::OK, ExportTraceServiceResponse { partial_success }.encode_to_vec())
}
