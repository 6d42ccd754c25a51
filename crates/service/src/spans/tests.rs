//! Which requests are traced, the content of spans, and a full queue.

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span as Sent,
};
use prost::Message as _;

use super::{
    message::{SendingNode, encode},
    *,
};
use crate::Refusal;

const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

fn parsed(text: &str) -> Option<TraceParent> {
    TraceParent::parse(text.as_bytes())
}

/// A recorder whose queue the test reads in place of the task.
fn spans(most: usize, sample: f64) -> (SpanRecorder, mpsc::Receiver<FinishedSpan>) {
    let (queue, inbox) = mpsc::channel(most);
    let counts = Arc::<SpanCounts>::default();
    let (ending, ended) = (CancellationToken::new(), CancellationToken::new());
    let outbox = Outbox { queue, sample, counts: Arc::clone(&counts), ending, ended };
    (SpanRecorder { counts, outbox: Some(Arc::new(outbox)) }, inbox)
}

fn request() -> SpanWork {
    SpanWork::Request { method: "PUT", route: "/a/{b}" }
}

/// The spans as the collector gets them.
fn sent(inbox: &mut mpsc::Receiver<FinishedSpan>) -> Vec<Sent> {
    let finished = std::iter::from_fn(|| inbox.try_recv().ok()).collect();
    let sender = SendingNode { node: 7, address: "[::1]:8101".into(), is_encrypted: true };
    let request = ExportTraceServiceRequest::decode(encode(&sender, finished).as_slice()).unwrap();
    let [of_resource] = &request.resource_spans[..] else { panic!("{request:?}") };
    let resource = of_resource.resource.clone().unwrap();
    assert_eq!(value(&resource.attributes, "service.name"), "concord");
    assert_eq!(value(&resource.attributes, "service.instance.id"), "node-7");
    assert_eq!(value(&resource.attributes, "service.version"), env!("CARGO_PKG_VERSION"));
    of_resource.scope_spans.iter().flat_map(|scope| scope.spans.clone()).collect()
}

fn value(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|one| one.key == key).and_then(|one| one.value.clone()?.value);
    match found {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn the_client_decides_on_its_trace_and_a_share_of_the_others_starts_one() {
    let (all, _inbox) = spans(9, 1.0);
    let (none, _inbox2) = spans(9, 0.0);
    for spans in [&all, &none] {
        let span = spans.begin_request(parsed(SAMPLED), request).unwrap();
        let (context, caller) = (span.context().unwrap(), parsed(SAMPLED).unwrap());
        assert_eq!((context.trace(), context.is_sampled()), (caller.trace(), true));
        assert_ne!(context.span(), caller.span());
        assert!(spans.begin_request(parsed(NOT_SAMPLED), request).is_none());
        for trace in [None, parsed(NOT_SAMPLED)] {
            assert!(spans.begin(trace, || SpanWork::Decision).is_none(), "only a request starts a trace");
        }
    }
    assert!(none.begin_request(None, request).is_none());
    let [one, other] = [(); 2].map(|()| all.begin_request(None, request).unwrap().context().unwrap());
    assert!(one.is_sampled() && one.trace() != other.trace());
    assert!(SpanRecorder::default().begin_request(parsed(SAMPLED), request).is_none());
}

#[test]
fn spans_beyond_the_queue_are_counted() {
    let (spans, mut inbox) = spans(2, 0.0);
    for _ in 0..5 {
        drop(spans.begin_request(parsed(SAMPLED), request).unwrap());
    }
    assert_eq!(spans.figures(), SpanFigures { sent: 0, unqueued: 3, refused: 0 });
    assert_eq!(sent(&mut inbox).len(), 2);
    // The task that sends them has ended.
    drop(inbox);
    drop(spans.begin_request(parsed(SAMPLED), request).unwrap());
    assert_eq!(spans.figures(), SpanFigures { sent: 0, unqueued: 4, refused: 0 });
}

#[test]
fn a_span_says_what_was_done_and_how_it_ended() {
    let (spans, mut inbox) = spans(99, 1.0);
    let end = |method, route, outcome: SpanOutcome| {
        let work = || SpanWork::Request { method, route };
        let mut span = spans.begin_request(parsed(SAMPLED), work).unwrap();
        span.set(outcome);
    };
    let id = || HeaderValue::from_static("an-id");
    end("PUT", "/a/{b}", SpanOutcome::Answered(404, id()));
    end("GET", "", SpanOutcome::Answered(500, id()));
    end("_OTHER", "/a/{b}", SpanOutcome::Answered(405, id()));
    drop(spans.begin_request(None, request).unwrap());
    let leader = Member { id: 3, api_addr: "a:1".into(), peer_addr: "b:2".into() };
    let (why, refusal) = (|| "why".to_owned(), Refusal::Overloaded);
    let attempts: [Attempt<()>; 5] = [
        Ok(()),
        Err(AttemptError::Refused(refusal)),
        Err(AttemptError::Retry(why())),
        Err(AttemptError::Unknown(why())),
        Err(AttemptError::Begun(why())),
    ];
    for attempt in attempts {
        spans.begin(parsed(SAMPLED), || SpanWork::Forward(leader.clone())).unwrap().end(&attempt);
    }
    spans.begin(parsed(SAMPLED), || SpanWork::Decision).unwrap().end(&Ok(()));

    let sent = sent(&mut inbox);
    let shown: Vec<_> = sent
        .iter()
        .map(|span| (span.name.as_str(), span.kind, span.status.as_ref().unwrap().code, span.flags))
        .collect();
    let forwarded = "concord.peer/write";
    assert_eq!(
        shown,
        [
            ("PUT /a/{b}", 2, 0, 0x301),
            ("GET", 2, 2, 0x301),
            ("HTTP /a/{b}", 2, 0, 0x301),
            ("PUT /a/{b}", 2, 2, 0x101),
            (forwarded, 3, 0, 0x101),
            (forwarded, 3, 0, 0x101),
            (forwarded, 3, 2, 0x101),
            (forwarded, 3, 2, 0x101),
            (forwarded, 3, 2, 0x101),
            (forwarded, 2, 0, 0x301),
        ]
    );
    for span in &sent {
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    }
    assert_eq!(sent[0].parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert!(sent[3].parent_span_id.is_empty(), "it started the trace");
    for (place, key, expected) in [
        (0, "http.request.method", "PUT"),
        (0, "http.route", "/a/{b}"),
        (0, "http.response.status_code", "404"),
        (0, "url.scheme", "https"),
        (0, "server.address", "::1"),
        (0, "server.port", "8101"),
        (0, "concord.request_id", "an-id"),
        (1, "error.type", "500"),
        (2, "http.request.method", "_OTHER"),
        (3, "error.type", "cancelled"),
        (4, "server.address", "b"),
        (4, "server.port", "2"),
        (4, "concord.outcome", "decided"),
        (5, "concord.outcome", "refused"),
        (6, "error.type", "not_done"),
        (7, "error.type", "unknown"),
        (8, "error.type", "begun"),
    ] {
        assert_eq!(value(&sent[place].attributes, key), expected, "{place} {key}");
    }
    assert!(!sent[1].attributes.iter().any(|one| one.key == "http.route"));
}
