//! The trace of a request, from the header `traceparent` of the client (W3C Trace Context) through a node to the leader.
//!
//! A node logs the id of the trace, so that a search for it finds the lines of all nodes about one request. It passes the
//! trace on as it was received. If it records a span of its own (`service/spans`), that is the parent of what follows.
//!
//! **Invariant:** a trace decides nothing. A malformed header is ignored.

use std::future::Future;

use http::{HeaderMap, HeaderName, HeaderValue};
use tracing::Instrument as _;

/// The header of a caller's request.
pub const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header of a call between nodes: for each write of the call its trace, or `-`, with commas between.
const TRACES: HeaderName = HeaderName::from_static("x-concord-traces");

/// Characters of a `traceparent` of version 00: version, trace, parent, flags.
const CHARS: usize = 55;

/// The trace and the parent span that a client names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent([u8; CHARS]);

impl TraceParent {
    /// Parses the value of a header. Of an unknown version, it parses the part that all versions have in common.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(CHARS)?;
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        let is_dash = |place: usize| matches!(place, 2 | 35 | 52);
        let has_form = head
            .iter()
            .enumerate()
            .all(|(place, byte)| if is_dash(place) { *byte == b'-' } else { is_digit(byte) });
        let (version, is_longer) = (&head[..2], !rest.is_empty());
        let is_known = version == b"00" && !is_longer;
        let is_later = version != b"00" && version != b"ff" && (!is_longer || rest[0] == b'-');
        let is_zero = |text: &[u8]| text.iter().all(|byte| *byte == b'0');
        if !has_form || !(is_known || is_later) || is_zero(&head[3..35]) || is_zero(&head[36..52]) {
            return None;
        }
        let mut parent = [0; CHARS];
        parent.copy_from_slice(head);
        parent[..2].copy_from_slice(b"00");
        Some(Self(parent))
    }

    /// That of a request.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(&TRACE_PARENT)?.as_bytes())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and dashes")
    }

    /// The id of the trace.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.text()[3..35]
    }

    /// A trace that begins here, with its first span. It is sampled.
    #[must_use]
    pub fn root(trace: u128, span: u64) -> Option<Self> {
        Self::parse(format!("00-{trace:032x}-{span:016x}-01").as_bytes())
    }

    /// The same trace with another span as the parent of what follows.
    #[must_use]
    pub fn with_span(&self, span: u64) -> Option<Self> {
        Self::parse(format!("00-{}-{span:016x}-{}", self.trace_id(), &self.text()[53..]).as_bytes())
    }

    /// The id of the trace as a number.
    #[must_use]
    pub fn trace(&self) -> u128 {
        u128::from_str_radix(self.trace_id(), 16).expect("hexadecimal digits")
    }

    /// The id of the span that is the parent of what follows.
    #[must_use]
    pub fn span(&self) -> u64 {
        u64::from_str_radix(&self.text()[36..52], 16).expect("hexadecimal digits")
    }

    /// Whether the caller records this trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        let flags = u8::from_str_radix(&self.text()[53..], 16).expect("hexadecimal digits");
        flags & 1 == 1
    }
}

tokio::task_local! {
    static CURRENT: Vec<Option<TraceParent>>;
}

/// The trace of a write of the call that this task serves, or of the caller's request as number 0.
#[must_use]
pub fn at(place: usize) -> Option<TraceParent> {
    CURRENT.try_with(|traces| traces.get(place).copied().flatten()).ok().flatten()
}

/// Does work whose parts belong to these traces: its RPCs name them.
pub fn with_traces<F: Future>(traces: Vec<Option<TraceParent>>, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(traces, work)
}

/// Does work that belongs to a trace: its log lines and its RPCs name it.
pub async fn traced<T>(trace: Option<TraceParent>, work: impl Future<Output = T>) -> T {
    let Some(trace) = trace else { return work.await };
    let span = tracing::info_span!("request", trace_id = trace.trace_id());
    with_traces(vec![Some(trace)], work.instrument(span)).await
}

/// The header for a call that this task makes; `None` when it belongs to no trace.
pub(super) fn header() -> Option<(HeaderName, HeaderValue)> {
    let named = |traces: &Vec<Option<TraceParent>>| {
        traces.iter().any(Option::is_some).then(|| {
            let each = traces.iter().map(|trace| trace.as_ref().map_or("-", TraceParent::text));
            each.collect::<Vec<_>>().join(",")
        })
    };
    let text = CURRENT.try_with(named).ok().flatten()?;
    Some((TRACES, HeaderValue::from_str(&text).ok()?))
}

/// The traces that a call names.
#[must_use]
pub fn received(headers: &HeaderMap) -> Vec<Option<TraceParent>> {
    let Some(value) = headers.get(&TRACES) else { return Vec::new() };
    value.as_bytes().split(|byte| *byte == b',').map(TraceParent::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_a_valid_traceparent_is_parsed() {
        let parsed = TraceParent::parse(ONE.as_bytes()).unwrap();
        assert_eq!((parsed.text(), parsed.trace_id()), (ONE, "4bf92f3577b34da6a3ce929d0e0e4736"));
        let later = ONE.replacen("00", "cc", 1) + "-more";
        assert_eq!(TraceParent::parse(later.as_bytes()), Some(parsed));
        for bad in [
            String::new(),
            ONE[1..].to_owned(),
            format!("{ONE}-more"),
            ONE.to_uppercase(),
            ONE.replace('-', "_"),
            ONE.replacen("00", "ff", 1),
            ONE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            ONE.replace("00f067aa0ba902b7", &"0".repeat(16)),
            format!("{}é", &ONE[..53]),
        ] {
            assert_eq!(TraceParent::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_span_of_this_node_becomes_the_parent() {
        let parsed = TraceParent::parse(ONE.as_bytes()).unwrap();
        assert_eq!(parsed.trace(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parsed.span(), parsed.is_sampled()), (0x00f0_67aa_0ba9_02b7, true));
        let next = parsed.with_span(0xab).unwrap();
        assert_eq!(next.text(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00000000000000ab-01");
        for (flags, is_sampled) in [("00", false), ("02", false), ("03", true), ("fe", false)] {
            let other = TraceParent::parse(format!("{}{flags}", &ONE[..53]).as_bytes()).unwrap();
            assert_eq!(other.is_sampled(), is_sampled, "{flags}");
            assert_eq!(other.with_span(1).unwrap().is_sampled(), is_sampled, "{flags}");
        }
        let root = TraceParent::root(1, 2).unwrap();
        assert_eq!((root.trace(), root.span(), root.is_sampled()), (1, 2, true));
        assert_eq!((TraceParent::root(0, 2), parsed.with_span(0)), (None, None));
    }

    #[tokio::test]
    async fn a_call_names_the_traces_of_its_writes() {
        assert_eq!(header(), None);
        let one = TraceParent::parse(ONE.as_bytes());
        let other = TraceParent::parse(ONE.replace("4bf9", "5bf9").as_bytes());
        let (name, value) = with_traces(vec![one, None, other], async { header() }).await.unwrap();
        let headers = HeaderMap::from_iter([(name, value)]);
        assert_eq!(received(&headers), [one, None, other]);
        assert_eq!(with_traces(vec![None, None], async { header() }).await, None);
        let within = with_traces(received(&headers), async { (at(0), at(1), at(2), at(3)) }).await;
        assert_eq!(within, (one, None, other, None));
        assert_eq!(traced(other, async { at(0) }).await, other);
    }
}
