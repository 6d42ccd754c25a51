//! HTTP/1.1 over one kept-alive connection, and streams of HTTP/2, with as little around them as hyper allows.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::{http1::SendRequest, http2},
    header,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// One connection; one request at a time.
pub(crate) struct Http {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    authorization: String,
}

impl Http {
    pub(crate) async fn connect(addr: SocketAddr, authorization: &str) -> Result<Self, String> {
        let stream = opened(addr).await?;
        let shaken = hyper::client::conn::http1::handshake(stream).await;
        let (sender, connection) = shaken.map_err(|error| format!("{addr}: {error}"))?;
        tokio::spawn(connection);
        Ok(Self { sender, host: addr.to_string(), authorization: authorization.to_owned() })
    }

    /// The body of an answer that goes on for as long as it is read.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<Incoming, String> {
        good_body(path, self.send(Method::GET, path, String::new()).await?)
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
        self.sender.ready().await.map_err(|error| format!("{path}: {error}"))?;
        let request = Request::builder().method(method).uri(path).header(header::HOST, &self.host);
        // The gateway would take any value for a token of its own and refuse it.
        let request = match self.authorization.as_str() {
            "" => request,
            key => request.header(header::AUTHORIZATION, key),
        };
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let request =
            request.body(Full::new(Bytes::from(body))).map_err(|error| format!("{path}: {error}"))?;
        self.sender.send_request(request).await.map_err(|error| format!("{path}: {error}"))
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

/// One connection of HTTP/2, whose copies share it.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: http2::SendRequest<Empty<Bytes>>,
    base: String,
    authorization: String,
}

impl Http2 {
    pub(crate) async fn connect(addr: SocketAddr, authorization: &str) -> Result<Self, String> {
        let shaken = http2::handshake(TokioExecutor::new(), opened(addr).await?).await;
        let (sender, connection) = shaken.map_err(|error| format!("{addr}: {error}"))?;
        tokio::spawn(connection);
        Ok(Self { sender, base: format!("http://{addr}"), authorization: authorization.to_owned() })
    }

    /// The body of an answer that goes on for as long as it is read.
    pub(crate) async fn stream(mut self, path: &str) -> Result<Incoming, String> {
        self.sender.ready().await.map_err(|error| format!("{path}: {error}"))?;
        let request = Request::get(format!("{}{path}", self.base));
        let request = request.header(header::AUTHORIZATION, &self.authorization).body(Empty::new());
        let request = request.map_err(|error| format!("{path}: {error}"))?;
        let answer = self.sender.send_request(request).await.map_err(|error| format!("{path}: {error}"))?;
        good_body(path, answer)
    }
}

fn good_body(path: &str, answer: Response<Incoming>) -> Result<Incoming, String> {
    let status = answer.status();
    if status.is_success() { Ok(answer.into_body()) } else { Err(format!("GET {path}: {status}")) }
}

async fn opened(addr: SocketAddr) -> Result<TokioIo<TcpStream>, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| format!("{addr}: {error}"))?;
    stream.set_nodelay(true).map_err(|error| format!("{addr}: {error}"))?;
    Ok(TokioIo::new(stream))
}
