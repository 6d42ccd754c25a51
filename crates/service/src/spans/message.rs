//! Encodes spans as OTLP messages, with the names of OpenTelemetry's conventions for HTTP and RPC.
//!
//! **Invariant:** a message contains nothing but the [`FinishedSpan`]s and the settings.

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span::SpanKind},
};
use prost::Message as _;

use super::{FinishedSpan, SpanOutcome, SpanWork};
use concord_net::NodeId;

/// The name of the RPC that forwards a write to the leader.
const FORWARDED_WRITE: &str = "concord.peer/write";
/// Status codes of a span. A rejected request is no failure.
const NOT_FAILED: i32 = 0;
const FAILED: i32 = 2;
/// Flags of a span: whether it is known if the parent is remote, and that it is remote.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// The node that sends spans.
#[derive(Debug)]
pub(super) struct SendingNode {
    pub(super) node: NodeId,
    /// The address of its client listener.
    pub(super) address: String,
    /// Whether that listener is encrypted.
    pub(super) is_encrypted: bool,
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: impl TryInto<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.try_into().unwrap_or(i64::MAX)))
}

/// An address as attributes: the host, and the port.
fn server(address: &str) -> Vec<KeyValue> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = text("server.address", host.trim_matches(['[', ']']));
    let port = port.parse::<u16>().ok().map(|port| number("server.port", port));
    [Some(host), port].into_iter().flatten().collect()
}

/// The body of a request with these spans.
pub(super) fn encode(sender: &SendingNode, spans: Vec<FinishedSpan>) -> Vec<u8> {
    let attributes = vec![
        text("service.name", "concord"),
        text("service.instance.id", &format!("node-{}", sender.node)),
        text("service.version", env!("CARGO_PKG_VERSION")),
        number("concord.node_id", sender.node),
    ];
    let scope = InstrumentationScope {
        name: "concord".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = spans.into_iter().map(|finished| span(sender, finished)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
    let resource = Some(Resource { attributes, ..Resource::default() });
    let resource_spans = vec![ResourceSpans { resource, scope_spans, schema_url: String::new() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn span(sender: &SendingNode, finished: FinishedSpan) -> Span {
    let FinishedSpan { context, parent, began, took, work, outcome } = finished;
    let SpanDescription { name, kind, mut attributes } = described(sender, &work);
    let code = match outcome {
        SpanOutcome::Abandoned => {
            attributes.push(text("error.type", "cancelled"));
            FAILED
        }
        SpanOutcome::Answered(status, id) => {
            attributes.push(number("http.response.status_code", status));
            // A request id of a client has only visible characters. Otherwise the node has made one.
            attributes.push(text("concord.request_id", id.to_str().unwrap_or_default()));
            if status >= 500 {
                attributes.push(text("error.type", &status.to_string()));
                FAILED
            } else {
                NOT_FAILED
            }
        }
        SpanOutcome::Attempted(outcome, is_failure) => {
            attributes.push(text("concord.outcome", outcome));
            if is_failure {
                attributes.push(text("error.type", outcome));
                FAILED
            } else {
                NOT_FAILED
            }
        }
    };
    let was_elsewhere = parent.is_some() && !matches!(work, SpanWork::Forward(_));
    let start = began.0.saturating_mul(1000);
    Span {
        trace_id: context.trace().to_be_bytes().into(),
        span_id: context.span().to_be_bytes().into(),
        parent_span_id: parent.map(|parent| parent.to_be_bytes().into()).unwrap_or_default(),
        flags: 1 | HAS_IS_REMOTE | if was_elsewhere { IS_REMOTE } else { 0 },
        name,
        kind: kind.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
        attributes,
        status: Some(Status { message: String::new(), code }),
        ..Span::default()
    }
}

/// What is known of a span before its end.
struct SpanDescription {
    name: String,
    kind: SpanKind,
    attributes: Vec<KeyValue>,
}

fn described(sender: &SendingNode, work: &SpanWork) -> SpanDescription {
    match work {
        SpanWork::Request { method, route } => {
            // An unknown method is not in the name.
            let verb = if *method == "_OTHER" { "HTTP" } else { method };
            let name = if route.is_empty() { verb.to_owned() } else { format!("{verb} {route}") };
            let mut attributes = vec![
                text("http.request.method", method),
                text("url.scheme", if sender.is_encrypted { "https" } else { "http" }),
            ];
            if !route.is_empty() {
                attributes.push(text("http.route", route));
            }
            attributes.extend(server(&sender.address));
            SpanDescription { name, kind: SpanKind::Server, attributes }
        }
        SpanWork::Forward(leader) => {
            let mut attributes = vec![
                text("rpc.system.name", "concord"),
                text("rpc.method", FORWARDED_WRITE),
                number("concord.leader_id", leader.id),
            ];
            attributes.extend(server(&leader.peer_addr));
            SpanDescription { name: FORWARDED_WRITE.to_owned(), kind: SpanKind::Client, attributes }
        }
        SpanWork::Decision => {
            let attributes = vec![text("rpc.system.name", "concord"), text("rpc.method", FORWARDED_WRITE)];
            SpanDescription { name: FORWARDED_WRITE.to_owned(), kind: SpanKind::Server, attributes }
        }
    }
}
