//! The spans of requests: which there are, what they say, and that no request waits for the collector of them.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Call, Client, Cluster, Node, Options, check,
    collector::{Collector, Conduct, Span},
    eventually, fresh_directory,
    load::{config, define, set},
    ports,
    tls::Authority,
};

const DEFINITION: &str = "unseen-definition";
const KEY: &str = "unseen-key";
const CONFIG: &str = "/api/v1/config_definition/{definition}/config/{config}";
/// The span of a caller, which is the parent of what nodes do.
const CALLER: &str = "00f067aa0ba902b7";

fn trace(n: u64) -> String {
    format!("{n:032x}")
}

fn parent(n: u64, flags: &str) -> String {
    format!("00-{}-{CALLER}-{flags}", trace(n))
}

/// Waits until a trace has so many spans, the first ones first.
async fn spans(collector: &Collector, n: u64, count: usize) -> Vec<Span> {
    let what = format!("the collector has {count} spans of trace {n}");
    eventually(&what, async || {
        let found = collector.spans(&trace(n));
        check(found.len() >= count, || format!("{found:?}"))?;
        Ok(found)
    })
    .await
}

/// The only span of these with such a name and kind.
fn one<'a>(spans: &'a [Span], name: &str, kind: i32) -> &'a Span {
    let found: Vec<&Span> =
        spans.iter().filter(|span| (span.name.as_str(), span.kind) == (name, kind)).collect();
    let [span] = found[..] else { panic!("{name}: {spans:?}") };
    span
}

/// The value of a sample on a node's page of metrics.
async fn sample(client: &Client, name: &str) -> f64 {
    let page = client.get("/metrics").insist().await.expect(200).text;
    let found = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("{name} is not in\n{page}"))
}

/// How many lines of a node's log have such a message.
fn lines(node: &Node, message: &str) -> usize {
    let log = node.tail(usize::MAX);
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with(message))).count()
}

/// A write of such data on a follower, which the leader decided at the first attempt: the node asked, the leader, and
/// the three spans. Another is made where the leader has changed meanwhile.
async fn forwarded(
    cluster: &Cluster,
    collector: &Collector,
    first: u64,
    data: &str,
) -> (u64, u64, [Span; 3]) {
    let mut others = Vec::new();
    for n in (first..).step_by(100).take(5) {
        let leader = cluster.leader().await;
        let asked = leader % 3 + 1;
        put(&cluster.client(asked), &parent(n, "01"), data).await.expect(200);
        let spans = spans(collector, n, 3).await;
        if let [_, _, _] = spans[..] {
            let request = one(&spans, &format!("PUT {CONFIG}"), 2).clone();
            let forward = one(&spans, "concord.peer/write", 3).clone();
            let decision = one(&spans, "concord.peer/write", 2).clone();
            return (asked, leader, [request, forward, decision]);
        }
        others.push(spans);
    }
    panic!("no write had three spans: {others:?}");
}

/// A replacement of the config of the tests below, with all that no span may show.
async fn put(client: &Client, header: &str, data: &str) -> Answer {
    let call = client.put(&config(DEFINITION, KEY), &json!({"data": {"unseen-member": data}}));
    let call = call.header("traceparent", header).header("x-change-reason", "unseen-reason");
    call.header("x-request-id", "an-id").insist().await
}

#[tokio::test]
async fn a_write_on_a_follower_has_three_spans_on_two_nodes() {
    let collector = Collector::start(Conduct::Takes).await;
    let options = Options::default().with("CONCORD_OTLP_ENDPOINT", &collector.url);
    let cluster = Cluster::start_with("spans", &options).await;
    let leader = cluster.leader().await;
    let (follower, leading) = (cluster.client(leader % 3 + 1), cluster.client(leader));
    define(&follower, DEFINITION).await;
    set(&follower, DEFINITION, KEY, &json!({})).await;
    // None of these has a span: not even when those that follow have theirs, which each node sends in order.
    for header in [parent(1, "00"), parent(1, "02"), format!("{}-more", parent(1, "01"))] {
        put(&follower, &header, "unseen").await.expect(200);
        put(&leading, &header, "unseen").await.expect(200);
    }
    // Small ones share a call, a large one has one of its own.
    for (n, data) in [(2, "unseen"), (3, "unseen".repeat(2000).as_str())] {
        let (asked, leader, [request, forward, decision]) = forwarded(&cluster, &collector, n, data).await;
        let parents = [&request, &forward, &decision].map(|span| span.parent.as_str());
        assert_eq!(parents, [CALLER, &request.id, &forward.id]);
        let nodes = [&request, &forward, &decision].map(|span| span.node.clone());
        assert_eq!(nodes, [asked, asked, leader].map(|id| format!("node-{id}")));
        assert_eq!([request.status, forward.status, decision.status], [0; 3]);
        let leader = leader.to_string();
        for (span, key, value) in [
            (&request, "http.route", CONFIG),
            (&request, "http.request.method", "PUT"),
            (&request, "http.response.status_code", "200"),
            (&request, "url.scheme", "http"),
            (&request, "concord.request_id", "an-id"),
            (&forward, "concord.leader_id", &leader),
            (&forward, "concord.outcome", "decided"),
            (&decision, "concord.outcome", "decided"),
        ] {
            assert_eq!(span.attributes.get(key).map(String::as_str), Some(value), "{key}: {span:?}");
        }
    }
    // A read is answered where it is asked, and so is what is refused.
    let traced = |n: u64, call: Call| call.header("traceparent", &parent(n, "01"));
    let list = follower.get(&format!("/api/v1/config_definition/{DEFINITION}/config"));
    let list = traced(4, list.query(&[("unseen-member", "unseen")])).insist().await;
    let absent = follower.get(&config(DEFINITION, "unseen-absent"));
    traced(5, absent).insist().await.expect(404);
    let stranger = follower.bare(Method::GET, &config(DEFINITION, KEY));
    traced(6, stranger).attempt().await.unwrap().expect(401);
    for (n, name, status) in [
        (4, "GET /api/v1/config_definition/{definition}/config".to_owned(), list.status.to_string()),
        (5, format!("GET {CONFIG}"), "404".to_owned()),
        (6, format!("GET {CONFIG}"), "401".to_owned()),
    ] {
        let spans = spans(&collector, n, 1).await;
        let span = one(&spans, &name, 2);
        assert_eq!((span.status, span.parent.as_str()), (0, CALLER));
        assert_eq!(span.attributes["http.response.status_code"], status);
    }
    let strange = |span: &Span| !(2..1000).any(|n| span.trace == trace(n));
    let others: Vec<Span> = collector.spans("").into_iter().filter(strange).collect();
    assert!(others.is_empty(), "not sampled, or no trace of a caller: {others:?}");
    assert!(!collector.has_seen("unseen") && !collector.has_seen(&follower.key));
    let mut sent = 0.0;
    for client in cluster.clients() {
        sent += sample(&client, "concord_spans_sent_total").await;
        for why in ["queue", "collector"] {
            assert!(sample(&client, &format!("concord_spans_dropped_total{{why=\"{why}\"}}")).await < 0.5);
        }
    }
    assert!(sent >= 9.0, "{sent} sent");
}

#[tokio::test]
async fn no_request_waits_for_a_collector_that_is_gone_or_hangs() {
    let address = format!("127.0.0.1:{}", ports::free("127.0.0.1"));
    let options = Options::default()
        .with("CONCORD_LOG_FORMAT", "json")
        .with("CONCORD_OTLP_ENDPOINT", &format!("http://{address}"));
    let mut cluster = Cluster::start_with("spans-gone", &options).await;
    let leader = cluster.leader().await;
    let asked = leader % 3 + 1;
    let follower = cluster.client(asked);
    define(&follower, "d").await;
    set(&follower, "d", "k", &json!({})).await;
    let put = async |n: u64| {
        let call = follower.put(&config("d", "k"), &json!({"data": {"n": n}}));
        call.header("traceparent", &parent(n, "01")).insist().await.expect(200);
    };
    // Nobody listens there. The log says so once, however often it is tried.
    for n in 1..=5 {
        put(n).await;
    }
    let (gone, back) = ("the collector accepts no spans", "the collector accepts spans again");
    eventually("the log says that the collector is gone", async || {
        check(lines(cluster.node(asked), gone) == 1, || "no line".into())
    })
    .await;
    put(6).await;
    let collector = Collector::on(&address, Conduct::Answers(503)).await;
    eventually("it is tried again", async || {
        check(collector.requests() >= 4, || format!("{} requests", collector.requests()))
    })
    .await;
    assert_eq!((lines(cluster.node(asked), gone), lines(cluster.node(asked), back)), (1, 0));
    put(7).await;
    collector.set(Conduct::Takes);
    // What was recorded meanwhile has waited.
    for n in 1..=7 {
        spans(&collector, n, 1).await;
    }
    eventually("the log says that it is back", async || {
        let found = (lines(cluster.node(asked), gone), lines(cluster.node(asked), back));
        check(found.1 >= 1 && found.0 == found.1, || format!("{found:?}"))
    })
    .await;

    collector.set(Conduct::Hangs);
    for n in 8..=30 {
        put(n).await;
    }
    eventually("the log says that it hangs", async || {
        let found = (lines(cluster.node(asked), gone), lines(cluster.node(asked), back));
        check(found.0 == found.1 + 1, || format!("{found:?}"))
    })
    .await;
    put(31).await;
    // It hangs for ever. The end does not.
    for id in [asked, asked % 3 + 1, (asked + 1) % 3 + 1] {
        let status = cluster.node(id).stop().await;
        assert!(status.success(), "node {id}: {status}");
    }
    assert_eq!(lines(cluster.node(asked), "the collector did not accept the last spans in time"), 1);
}

#[tokio::test]
async fn an_end_in_order_sends_what_is_left() {
    let collector = Collector::start(Conduct::Takes).await;
    let directory = fresh_directory("spans-alone");
    let options = Options::default()
        .with("CONCORD_OTLP_ENDPOINT", &format!("{}/", collector.url))
        .with("CONCORD_OTLP_SAMPLE", "1");
    let mut node = Node::new(1, directory.path(), &options.settings);
    node.start_anywhere().await;
    let client = node.client();
    // A share of one is all of those that name no trace; a trace that is not sampled is not.
    for n in 0..20 {
        let live = client.bare(Method::GET, "/livez").header("x-request-id", &format!("live-{n}"));
        live.attempt().await.unwrap().expect(200);
        let other = client.bare(Method::GET, "/livez").header("x-request-id", "not-sampled");
        other.header("traceparent", &parent(1, "00")).attempt().await.unwrap().expect(200);
    }
    assert!(node.stop().await.success());
    let found = collector.spans("");
    let id = |span: &Span| span.attributes["concord.request_id"].clone();
    for n in 0..20 {
        let mine: Vec<&Span> = found.iter().filter(|span| id(span) == format!("live-{n}")).collect();
        let [span] = mine[..] else { panic!("{n}: {found:?}") };
        assert_eq!((span.name.as_str(), span.parent.as_str()), ("GET /livez", ""));
    }
    assert!(found.iter().all(|span| id(span) != "not-sampled"));
    let mut traces: Vec<&str> = found.iter().map(|span| span.trace.as_str()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), found.len(), "each began a trace of its own");
}

#[tokio::test]
async fn what_a_collector_refuses_is_counted() {
    let collector = Collector::start(Conduct::Answers(400)).await;
    let directory = fresh_directory("spans-refused");
    let options = Options::default().with("CONCORD_OTLP_ENDPOINT", &collector.url);
    let mut node = Node::new(1, directory.path(), &options.settings);
    node.start_anywhere().await;
    let client = node.client();
    let live = async |n: u64| {
        let call = client.bare(Method::GET, "/livez").header("traceparent", &parent(n, "01"));
        call.attempt().await.unwrap().expect(200);
    };
    let counts = async |expected: (f64, f64)| {
        eventually("the spans are counted", async || {
            let sent = sample(&client, "concord_spans_sent_total").await;
            let dropped = sample(&client, "concord_spans_dropped_total{why=\"collector\"}").await;
            let is_it = (sent - expected.0).abs() < 0.5 && (dropped - expected.1).abs() < 0.5;
            check(is_it, || format!("{sent} sent, {dropped} dropped"))
        })
        .await;
    };
    for n in 1..=3 {
        live(n).await;
    }
    counts((0.0, 3.0)).await;
    collector.set(Conduct::Refuses(1));
    live(4).await;
    live(5).await;
    // In one request or in two, of which each loses one.
    eventually("the others are taken", async || {
        let sent = sample(&client, "concord_spans_sent_total").await;
        let dropped = sample(&client, "concord_spans_dropped_total{why=\"collector\"}").await;
        check((sent + dropped - 5.0).abs() < 0.5 && dropped > 3.5, || {
            format!("{sent} sent, {dropped} dropped")
        })
    })
    .await;
}

#[tokio::test]
async fn an_encrypted_collector_shows_a_certificate_that_is_trusted() {
    let directory = fresh_directory("spans-encrypted");
    let authority = Authority::new(directory.path(), "authority");
    let options = Options::default().with("CONCORD_LOG_FORMAT", "json");
    // Any server will do: this one has no such path, which it says over a connection that both trust.
    let mut server = Node::new(1, directory.path(), &options.settings);
    authority.equip_for_callers(&mut server);
    server.start_anywhere().await;
    let mut nodes = [2, 3].map(|id| Node::new(id, directory.path(), &options.settings));
    for node in &mut nodes {
        node.settings.insert("CONCORD_OTLP_ENDPOINT".into(), format!("https://{}", server.api_addr()));
    }
    let file = authority.certificate().to_str().expect("a path of ASCII").to_owned();
    nodes[1].settings.insert("CONCORD_OTLP_CA_FILE".into(), file);
    for (node, why) in nodes.iter_mut().zip(["certificate", "it answers 401"]) {
        node.start_anywhere().await;
        let live = node.client().bare(Method::GET, "/livez").header("traceparent", &parent(1, "01"));
        live.attempt().await.unwrap().expect(200);
        eventually(why, async || {
            let log = node.tail(usize::MAX);
            let said = log.lines().find(|line| line.contains("the collector accepts no spans"));
            check(said.is_some_and(|line| line.contains(why)), || format!("{said:?}"))
        })
        .await;
    }
}
