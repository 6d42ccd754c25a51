//! What the clients of the chaos tests call (`tests/harness`), over the simulated network.
//!
//! Their code is the same in both: it asks for a `crate::harness` with these names.
//!
//! **Invariant:** an error is an unknown outcome. A request that was not sent is answered 503, as a node answers that has
//! certainly not applied it.

#[path = "../../../tests/harness/answer.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod answer;
#[path = "../../../tests/harness/event.rs"]
pub(crate) mod event;
#[path = "../../../tests/harness/time.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
pub(crate) mod time;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use concord_net::socket::TcpStream;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    node::{API_PORT, ROOT_KEY, name},
    setup::Setup,
};
pub(crate) use answer::Answer;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longer than a node takes to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the cluster may take until it answers, once all faults are over; and how long it does not at most while there
/// are some.
pub(crate) const RECOVERY_MAX: Duration = Duration::from_secs(90);
/// The pause before a retry.
const PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
    static PADDING: Cell<usize> = const { Cell::new(0) };
    static LEASE_READS: Cell<bool> = const { Cell::new(false) };
}

/// Sets what is the same for all clients of a run.
pub(crate) fn begin(is_told: bool, setup: &Setup) {
    IS_TOLD.set(is_told);
    PADDING.set(setup.padding);
    LEASE_READS.set(setup.timers.lease_reads);
}

/// Says what happens, to who looks on, so many nanoseconds after the start.
pub(crate) fn tell(at: u64, text: &str) {
    if IS_TOLD.get() {
        eprintln!("{:>8} {text}", at / 1_000_000);
    }
}

/// Paths and sizes.
pub(crate) mod load {
    /// A record so large that it needs many messages.
    const LARGE_BYTES: usize = 40_000;

    pub(crate) fn definition(key: &str) -> String {
        format!("/api/v1/config_definition/{key}")
    }

    pub(crate) fn config(definition: &str, key: &str) -> String {
        format!("/api/v1/config_definition/{definition}/config/{key}")
    }

    pub(crate) fn lease_reads() -> bool {
        super::LEASE_READS.get()
    }

    pub(crate) fn padding(is_large: bool) -> usize {
        if is_large { LARGE_BYTES } else { super::PADDING.get() }
    }
}

/// Calls one node with one credential. Belongs to the host that made it.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) base: String,
    pub(crate) key: String,
    /// Connections on which no request is under way.
    idle: Rc<RefCell<Vec<SendRequest<Full<Bytes>>>>>,
}

/// A request.
#[derive(Clone)]
#[must_use]
pub(crate) struct Call {
    client: Client,
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Client {
    pub(crate) fn new(node: usize) -> Self {
        Self { base: name(node), key: ROOT_KEY.to_owned(), idle: Rc::default() }
    }

    /// A client of each node.
    pub(crate) fn all(nodes: usize) -> Vec<Self> {
        (1..=nodes).map(Self::new).collect()
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        let headers = vec![("authorization".to_owned(), self.key.clone())];
        Call {
            client: self.clone(),
            method,
            path: path.to_owned(),
            query: Vec::new(),
            headers,
            body: Bytes::new(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.call(Method::GET, path)
    }

    pub(crate) fn delete(&self, path: &str) -> Call {
        self.call(Method::DELETE, path)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Call {
        self.call(Method::POST, path).json(body)
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Call {
        self.call(Method::PUT, path).json(body)
    }

    /// A connection; none when the node can't be reached.
    async fn connected(&self) -> Option<SendRequest<Full<Bytes>>> {
        while let Some(idle) = self.idle.borrow_mut().pop() {
            if !idle.is_closed() {
                return Some(idle);
            }
        }
        let connecting = async {
            let stream = TcpStream::connect((self.base.as_str(), API_PORT)).await.ok()?;
            http1::handshake(TokioIo::new(stream)).await.ok()
        };
        let (sender, connection) = timeout(CONNECT_TIMEOUT, connecting).await.ok()??;
        // It ends with its sender.
        drop(tokio::spawn(connection));
        Some(sender)
    }
}

impl Call {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn query(mut self, pairs: &[(&str, &str)]) -> Self {
        self.query.extend(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.text("application/json", &body.to_string())
    }

    pub(crate) fn text(mut self, content_type: &str, body: &str) -> Self {
        self.body = body.to_owned().into();
        self.header("content-type", content_type)
    }

    fn asked(&self) -> String {
        format!(
            "{} {} {}{} {:?}",
            self.client.base,
            self.method,
            self.path,
            self.parameters(),
            &self.headers[1..]
        )
    }

    fn parameters(&self) -> String {
        let pairs: Vec<String> = self.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(format!("{}{}", self.path, self.parameters()))
            .header(header::HOST, &self.client.base);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(self.body.clone())).expect("a valid request")
    }

    fn answer(&self, status: u16, headers: HeaderMap, text: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(text).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { asked: self.asked(), status, headers, text, body }
    }

    /// Sends it once. The error is a lost connection or a time-out: the outcome is unknown.
    pub(crate) async fn attempt(&self) -> Result<Answer, String> {
        let Some(mut connection) = self.client.connected().await else {
            return Ok(self.answer(503, HeaderMap::new(), b"not sent"));
        };
        let answered = async {
            let response =
                connection.send_request(self.request()).await.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            Ok(self.answer(head.status.as_u16(), head.headers, &body))
        };
        let answer = timeout(ANSWER_TIMEOUT, answered).await.map_err(|_| "no answer".to_owned());
        let answer = answer.and_then(|answer| answer).map_err(|why| format!("{why}: {}", self.asked()))?;
        self.client.idle.borrow_mut().push(connection);
        Ok(answer)
    }

    /// Sends it once, on a connection of its own; its body is a stream.
    pub(crate) async fn open(&self) -> Result<Response<Incoming>, String> {
        let Some(mut connection) = self.client.connected().await else { return Err("not sent".to_owned()) };
        let opened = timeout(ANSWER_TIMEOUT, connection.send_request(self.request())).await;
        opened.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())
    }

    /// Sends it until the outcome is known. Only for what may be applied twice.
    pub(crate) async fn insist(&self) -> Answer {
        let end = Instant::now() + RECOVERY_MAX;
        loop {
            let last = match self.attempt().await {
                Ok(answer) if !matches!(answer.status, 429 | 503 | 504 | 507) => return answer,
                last => last,
            };
            assert!(Instant::now() < end, "no answer within {RECOVERY_MAX:?}: {last:?}");
            sleep(PAUSE).await;
        }
    }
}
