//! The watchers of `--watch`: each an application of its own that counts what it is sent.
//!
//! **Invariant:** an event counts once it is whole, and the time of a delivery begins when its change was sent.

use std::{
    iter::StepBy,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use etcd_client::{Client, WatchOptions};
use hdrhistogram::Histogram;
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;

use crate::{
    http::{Http, Http2},
    load::{KEY, etcd, reader},
    run::{SHARED_CONNECTIONS, histogram, runtime},
};

/// What all of them watch.
pub(crate) const DEFINITION: &str = "watched-300";
/// Watchers of each node whose deliveries are timed, for each thread of the generator.
const TIMED_OF_NODE: usize = 16;
/// Watchers that share a connection of HTTP/2, less than a node admits.
const STREAMS_OF_CONNECTION: usize = 250;
/// The part of an event that only a candidate has.
const VARIANT: &[u8] = br#""variant":"#;

/// How watchers reach a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Server-sent events, a connection of HTTP/1.1 for each.
    Http1,
    /// Server-sent events, streams of shared connections of HTTP/2.
    Http2,
    /// Streams of gRPC on the few connections that etcd's client shares.
    Grpc,
}

impl Protocol {
    /// As the file of `--json` has it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Http1 => "concord",
            Self::Http2 => "concord_http2",
            Self::Grpc => "etcd",
        }
    }

    /// The system that is reached so, as the table has it.
    pub(crate) fn system(self) -> &'static str {
        match self {
            Self::Http1 => "Concord",
            Self::Http2 => "Concord, HTTP/2",
            Self::Grpc => "etcd",
        }
    }
}

/// What all watchers of a round share.
pub(crate) struct Shared {
    pub(crate) begin: Instant,
    pub(crate) open: AtomicUsize,
    pub(crate) counting: AtomicBool,
    pub(crate) delivered: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// Whether each watcher names itself as a reader.
    pub(crate) identified: bool,
    /// When each candidate came, while no deliveries are counted.
    pub(crate) candidates: Mutex<Vec<Duration>>,
}

/// One thread's watchers, by their numbers among all. Some of each node, spread over those that were opened early and
/// late, also measure how long their deliveries took: reading the time in each would burden the generator.
pub(crate) fn watch(
    protocol: Protocol,
    addrs: &[SocketAddr],
    (numbers, shared): (StepBy<Range<usize>>, &Arc<Shared>),
) -> Result<Histogram<u64>, String> {
    runtime()?.block_on(async {
        let latencies = Arc::new(Mutex::new(histogram()?));
        let mut set = JoinSet::new();
        let mut connections = Connections::new(protocol, addrs).await?;
        let step = (numbers.len() / addrs.len() / TIMED_OF_NODE).max(1);
        for (n, number) in numbers.enumerate() {
            let (place, turn) = (n % addrs.len(), n / addrs.len());
            let measures = turn.is_multiple_of(step).then(|| Arc::clone(&latencies));
            let watcher = Watcher { shared: Arc::clone(shared), number, measures };
            match connections.of(place, turn).await? {
                Connection::Own(addr) => set.spawn(watcher.http1(addr)),
                Connection::Http2(client) => set.spawn(watcher.http(client)),
                Connection::Etcd(client) => set.spawn(watcher.etcd(*client)),
            };
        }
        // A watcher waits for its next event: who has to end looks here.
        while !shared.stop.load(Relaxed) {
            if let Ok(Some(ended)) = tokio::time::timeout(Duration::from_millis(20), set.join_next()).await {
                ended.map_err(|error| error.to_string())??;
                return Err("a watch has ended".to_owned());
            }
        }
        set.shutdown().await;
        let all = latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(all)
    })
}

/// The connection of one watcher.
enum Connection {
    Own(SocketAddr),
    Http2(Http),
    Etcd(Box<Client>),
}

/// The connections of one thread to each of the nodes, as far as watchers share any.
struct Connections<'a> {
    protocol: Protocol,
    addrs: &'a [SocketAddr],
    http2: Vec<Vec<Http2>>,
    etcd: Vec<Vec<Client>>,
}

impl<'a> Connections<'a> {
    async fn new(protocol: Protocol, addrs: &'a [SocketAddr]) -> Result<Self, String> {
        let mut clients: Vec<Vec<Client>> = vec![Vec::new(); addrs.len()];
        if protocol == Protocol::Grpc {
            for (of, addr) in clients.iter_mut().zip(addrs) {
                for _ in 0..SHARED_CONNECTIONS {
                    of.push(etcd(*addr).await?);
                }
            }
        }
        Ok(Self { protocol, addrs, http2: addrs.iter().map(|_| Vec::new()).collect(), etcd: clients })
    }

    /// That of the watcher whose turn it is at a node.
    async fn of(&mut self, place: usize, turn: usize) -> Result<Connection, String> {
        match self.protocol {
            Protocol::Http1 => Ok(Connection::Own(self.addrs[place])),
            Protocol::Http2 => {
                let shared = &mut self.http2[place];
                if turn.is_multiple_of(STREAMS_OF_CONNECTION) {
                    shared.push(Http2::connect(self.addrs[place], KEY).await?);
                }
                let client = shared.last().map(Http2::client);
                client.map(Connection::Http2).ok_or_else(|| "no connection".to_owned())
            }
            Protocol::Grpc => {
                let client = &self.etcd[place][turn % SHARED_CONNECTIONS];
                Ok(Connection::Etcd(Box::new(client.clone())))
            }
        }
    }
}

/// When the changes were sent whose values are whole in these bytes: every one, since those that are delivered together
/// have waited for different times.
fn times_sent(bytes: &[u8]) -> impl Iterator<Item = Duration> {
    let starts = bytes.windows(5).enumerate().filter(|(_, part)| *part == b"sent-").map(|(at, _)| at + 5);
    let digits = starts.filter_map(|start| std::str::from_utf8(bytes.get(start..start + 20)?).ok());
    digits.filter_map(|digits| digits.parse().ok()).map(Duration::from_nanos)
}

/// How often a text is in the parts of a body, of which two may share one. No other part of the text begins as it does.
struct Finder {
    text: &'static [u8],
    matched: usize,
}

impl Finder {
    fn count(&mut self, bytes: &[u8]) -> usize {
        let mut count = 0;
        for byte in bytes {
            self.matched = if *byte == self.text[self.matched] {
                self.matched + 1
            } else {
                usize::from(*byte == self.text[0])
            };
            if self.matched == self.text.len() {
                (self.matched, count) = (0, count + 1);
            }
        }
        count
    }
}

struct Watcher {
    shared: Arc<Shared>,
    /// Its number among all watchers.
    number: usize,
    measures: Option<Arc<Mutex<Histogram<u64>>>>,
}

impl Watcher {
    /// So many changes have come; the values of those that are whole are somewhere in `parts`.
    fn received<'a>(&self, changes: u64, parts: impl Iterator<Item = &'a [u8]>) {
        if !self.shared.counting.load(Relaxed) {
            return;
        }
        self.shared.delivered.fetch_add(changes, Relaxed);
        let Some(latencies) = &self.measures else { return };
        let now = self.shared.begin.elapsed();
        let mut latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
        for sent in parts.flat_map(times_sent) {
            let took = u64::try_from(now.saturating_sub(sent).as_nanos()).unwrap_or(u64::MAX);
            latencies.saturating_record(took);
        }
    }

    /// So many candidates have come now.
    fn candidates(&self, count: usize) {
        if count == 0 {
            return;
        }
        let now = self.shared.begin.elapsed();
        let mut candidates = self.shared.candidates.lock().unwrap_or_else(PoisonError::into_inner);
        candidates.extend(std::iter::repeat_n(now, count));
    }

    async fn etcd(self, mut client: Client) -> Result<(), String> {
        let options = WatchOptions::new().with_prefix();
        let watched = client.watch(format!("{DEFINITION}/"), Some(options)).await;
        let mut stream = watched.map_err(|error| error.to_string())?;
        while let Some(message) = stream.message().await.map_err(|error| error.to_string())? {
            if message.created() {
                self.shared.open.fetch_add(1, Relaxed);
                continue;
            }
            let events = message.events();
            self.received(
                events.len() as u64,
                events.iter().filter_map(|event| event.kv()).map(|kv| kv.value()),
            );
        }
        Ok(())
    }

    async fn http1(self, addr: SocketAddr) -> Result<(), String> {
        self.http(Http::connect(addr, KEY).await?).await
    }

    async fn http(self, mut http: Http) -> Result<(), String> {
        let path = format!("/api/v1/watch?definition={DEFINITION}");
        http.reader = self.shared.identified.then(|| reader(self.number));
        let mut body = http.stream(&path).await?;
        self.shared.open.fetch_add(1, Relaxed);
        let mut variants = Finder { text: VARIANT, matched: 0 };
        // An event ends with an empty line, which two parts of the body may share.
        let mut after_line = false;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Some(bytes) = frame.data_ref() else { continue };
            if self.shared.identified && !self.shared.counting.load(Relaxed) {
                self.candidates(variants.count(bytes));
            }
            let mut events = 0;
            for byte in bytes {
                let is_line = *byte == b'\n';
                events += u64::from(is_line && after_line);
                after_line = is_line && !after_line;
            }
            self.received(events, std::iter::once(&**bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Finder, VARIANT};

    #[test]
    fn a_text_is_found_wherever_parts_end() {
        let text = br#"{"a":"variant"},{"variant":{"variants":1},"x":""variant":2}"#;
        for end in 0..text.len() {
            let mut finder = Finder { text: VARIANT, matched: 0 };
            let (first, second) = text.split_at(end);
            assert_eq!(finder.count(first) + finder.count(second), 2, "{end}");
        }
    }
}
