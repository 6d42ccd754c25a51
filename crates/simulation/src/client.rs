//! A client of the simulated nodes: one connection, one request at a time.

use std::time::Duration;

use bytes::Bytes;
use concord_net::socket::TcpStream;
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

use crate::node::{API_PORT, ROOT_KEY, name};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longer than a node takes to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<Value>,
}

impl Call {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: None }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn json(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }
}

/// What a node has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// A revision in a header.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.headers.get(name)?.to_str().ok()?.trim_matches('"').parse().ok()
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The request was not sent.
    NotSent,
    /// It may have been executed.
    Unknown,
}

/// Calls one node after the other.
pub(crate) struct Client {
    node: usize,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(node: usize) -> Self {
        Self { node, connection: None }
    }

    /// Calls another node from now on.
    pub(crate) fn turn_to(&mut self, node: usize) {
        if self.node != node {
            *self = Self::new(node);
        }
    }

    async fn connected(&mut self) -> Result<SendRequest<Full<Bytes>>, Lost> {
        if let Some(connection) = self.connection.take().filter(|connection| !connection.is_closed()) {
            return Ok(connection);
        }
        let name = name(self.node);
        let connecting = async {
            let stream = TcpStream::connect((name.as_str(), API_PORT)).await.map_err(|_| Lost::NotSent)?;
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Lost::NotSent)
        };
        let (sender, connection) =
            timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| Lost::NotSent)??;
        // It ends with its sender.
        drop(tokio::spawn(connection));
        Ok(sender)
    }

    /// Sends a request once.
    pub(crate) async fn send(&mut self, call: &Call) -> Result<Answer, Lost> {
        let mut connection = self.connected().await?;
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(header::HOST, name(self.node))
            .header(header::AUTHORIZATION, ROOT_KEY);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let body = call.body.as_ref().map_or_else(Bytes::new, |body| body.to_string().into());
        if call.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body)).expect("a valid request");
        let answered = async {
            let response = connection.send_request(request).await.map_err(|_| Lost::Unknown)?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|_| Lost::Unknown)?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        let answer = timeout(ANSWER_TIMEOUT, answered).await.map_err(|_| Lost::Unknown)??;
        self.connection = Some(connection);
        if answer.status == 504 { Err(Lost::Unknown) } else { Ok(answer) }
    }
}
