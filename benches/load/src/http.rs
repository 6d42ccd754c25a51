//! HTTP/1.1 over a kept-alive connection for each client, and HTTP/2 over one that clients share, with as little around
//! them as hyper allows.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::{http1, http2},
    header,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// One client; one request at a time.
pub(crate) struct Http {
    sender: Sender,
    host: String,
    authorization: String,
    /// The reader that its requests name.
    pub(crate) reader: Option<String>,
}

enum Sender {
    /// A connection of its own.
    Http1(http1::SendRequest<Full<Bytes>>),
    /// A part of one.
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One connection of HTTP/2, which many clients share.
pub(crate) struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    host: String,
    authorization: String,
}

impl Http2 {
    pub(crate) async fn connect(addr: SocketAddr, authorization: &str) -> Result<Self, String> {
        let shaken = http2::handshake(TokioExecutor::new(), opened(addr).await?).await;
        let (sender, connection) = shaken.map_err(|error| format!("{addr}: {error}"))?;
        tokio::spawn(connection);
        Ok(Self { sender, host: addr.to_string(), authorization: authorization.to_owned() })
    }

    pub(crate) fn client(&self) -> Http {
        Http {
            sender: Sender::Http2(self.sender.clone()),
            host: self.host.clone(),
            authorization: self.authorization.clone(),
            reader: None,
        }
    }
}

impl Http {
    pub(crate) async fn connect(addr: SocketAddr, authorization: &str) -> Result<Self, String> {
        let shaken = http1::handshake(opened(addr).await?).await;
        let (sender, connection) = shaken.map_err(|error| format!("{addr}: {error}"))?;
        tokio::spawn(connection);
        let sender = Sender::Http1(sender);
        let (host, authorization) = (addr.to_string(), authorization.to_owned());
        Ok(Self { sender, host, authorization, reader: None })
    }

    /// The body of an answer that goes on for as long as it is read.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<Incoming, String> {
        let answer = self.send(Method::GET, path, String::new()).await?;
        let status = answer.status();
        if status.is_success() { Ok(answer.into_body()) } else { Err(format!("GET {path}: {status}")) }
    }

    /// The status and the body of the answer.
    pub(crate) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), String> {
        let answer = self.send(method, path, body).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| format!("{path}: {error}"))?;
        Ok((status, body.to_bytes()))
    }

    async fn send(&mut self, method: Method, path: &str, body: String) -> Result<Response<Incoming>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let request = Request::builder().method(method).header(header::CONTENT_TYPE, "application/json");
        // The gateway would take any value for a token of its own and refuse it.
        let request = match self.authorization.as_str() {
            "" => request,
            key => request.header(header::AUTHORIZATION, key),
        };
        let request = match &self.reader {
            Some(name) => request.header("x-concord-reader", name),
            None => request,
        };
        let request = match self.sender {
            Sender::Http1(_) => request.uri(path).header(header::HOST, &self.host),
            Sender::Http2(_) => request.uri(format!("http://{}{path}", self.host)),
        };
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| failed(&error))?;
        let answer = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await.map_err(|error| failed(&error))?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await.map_err(|error| failed(&error))?;
                sender.send_request(request).await
            }
        };
        answer.map_err(|error| failed(&error))
    }

    /// The body of an answer that says success.
    pub(crate) async fn good(&mut self, method: Method, path: &str, body: String) -> Result<Bytes, String> {
        let (status, body) = self.call(method.clone(), path, body).await?;
        if status.is_success() {
            return Ok(body);
        }
        Err(format!("{method} {path}: {status} {}", String::from_utf8_lossy(&body)))
    }
}

async fn opened(addr: SocketAddr) -> Result<TokioIo<TcpStream>, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| format!("{addr}: {error}"))?;
    stream.set_nodelay(true).map_err(|error| format!("{addr}: {error}"))?;
    Ok(TokioIo::new(stream))
}
