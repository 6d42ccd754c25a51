//! A client of one node.
//!
//! The contract decides what a caller may send again: a request answered 503 or 429 was certainly not applied and is
//! sent again here; after 504 or a lost connection the outcome is unknown, which only the test can handle.

use std::{
    future::{Future, IntoFuture},
    io::Read as _,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    pin::Pin,
    time::{Duration, Instant},
};

use concord_client::Tls;
use flate2::read::GzDecoder;
use http::Method;
use serde_json::Value;

use super::{Answer, DEADLINE, document, time::pace};

/// How long a request may take. Longer than any node needs to refuse it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an idle connection is kept: less than a node keeps one on which no credential was good yet (10 s), so that
/// no call meets its end. Tests of those limits have sockets of their own.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The panic of a test run with an unknown outcome: such a run proves nothing and is repeated.
#[derive(Debug)]
pub(crate) struct Unsettled;

/// Calls one node with one credential. Belongs to the runtime of the test that made it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    authority: Option<PathBuf>,
    pub(crate) base: String,
    pub(crate) key: String,
}

/// A request that is being built; awaiting it sends it.
#[derive(Debug, Clone)]
#[must_use]
pub(crate) struct Call {
    http: reqwest::Client,
    method: Method,
    url: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

/// A body as it was before it was compressed.
fn decoded(coding: Option<&str>, bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    match coding {
        None => text.extend_from_slice(bytes),
        Some("gzip") => {
            GzDecoder::new(bytes).read_to_end(&mut text).expect("gzip");
        }
        Some("br") => brotli::BrotliDecompress(&mut &*bytes, &mut text).expect("brotli"),
        Some("zstd") => zstd::stream::copy_decode(bytes, &mut text).expect("zstd"),
        Some(other) => panic!("an unknown coding: {other}"),
    }
    text
}

impl Client {
    pub(crate) fn new(base: &str, key: &str) -> Self {
        Self::at(None, base, key, None)
    }

    /// The same over TLS, of a node whose certificate this authority has signed.
    pub(crate) fn trusting(authority: &Path, base: &str, key: &str) -> Self {
        Self::at(None, base, key, Some(authority))
    }

    /// The same with another credential.
    pub(crate) fn with_credential(&self, key: &str) -> Self {
        Self::at(None, &self.base, key, self.authority.as_deref())
    }

    /// The same from another address of this machine, for which it is another caller.
    pub(crate) fn sending_from(&self, address: Ipv4Addr) -> Self {
        Self::at(Some(address.into()), &self.base, &self.key, self.authority.as_deref())
    }

    /// The same with connections of its own.
    pub(crate) fn anew(&self) -> Self {
        Self::at(None, &self.base, &self.key, self.authority.as_deref())
    }

    fn at(address: Option<IpAddr>, base: &str, key: &str, authority: Option<&Path>) -> Self {
        let tls = Tls { authority: authority.map(Path::to_owned), own: None };
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.config(authority.is_some()).expect("the authority is good"))
            .no_proxy()
            .local_address(address)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            .pool_idle_timeout(IDLE_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .build()
            .expect("a client can be made");
        let authority = authority.map(Path::to_owned);
        Self { http, authority, base: base.to_owned(), key: key.to_owned() }
    }

    /// A call with the credential.
    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        self.bare(method, path).header("authorization", &self.key)
    }

    /// A call without a credential.
    pub(crate) fn bare(&self, method: Method, path: &str) -> Call {
        Call {
            http: self.http.clone(),
            method,
            url: format!("{}{path}", self.base),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
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

    /// The payload of `GET /api/v1/cluster`.
    pub(crate) async fn status(&self) -> Result<Value, String> {
        let answer = self.get("/api/v1/cluster").attempt().await?;
        if answer.status == 200 { Ok(answer.body["data"].clone()) } else { Err(format!("{answer:?}")) }
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

    pub(crate) fn text(self, content_type: &str, body: &str) -> Self {
        self.header("content-type", content_type).bytes(body.as_bytes().to_vec())
    }

    pub(crate) fn bytes(mut self, body: Vec<u8>) -> Self {
        self.body = Some(body);
        self
    }

    /// Sends it once. The error is a lost connection or a time-out: the outcome is unknown.
    pub(crate) async fn attempt(&self) -> Result<Answer, String> {
        let response = self.request().send().await.map_err(|error| self.lost(&error))?;
        self.answer(response).await
    }

    /// Sends it once; its body is a stream of any length.
    pub(crate) async fn open(&self) -> Result<reqwest::Response, String> {
        let request = self.request().timeout(Duration::from_secs(24 * 60 * 60));
        request.send().await.map_err(|error| self.lost(&error))
    }

    fn lost(&self, error: &reqwest::Error) -> String {
        format!("{}: {error:?}", self.asked())
    }

    fn asked(&self) -> String {
        format!("{} {} {:?} {:?}", self.method, self.url, self.query, self.headers)
    }

    fn request(&self) -> reqwest::RequestBuilder {
        let mut request = self.http.request(self.method.clone(), &self.url);
        if !self.query.is_empty() {
            request = request.query(&self.query);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(body) = &self.body {
            request = request.body(body.clone());
        }
        request
    }

    /// The whole answer.
    pub(crate) async fn answer(&self, response: reqwest::Response) -> Result<Answer, String> {
        let asked = self.asked();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let url = response.url();
        let path =
            url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let bytes = response.bytes().await.map_err(|error| self.lost(&error))?;
        let coding = headers.get("content-encoding").and_then(|value| value.to_str().ok());
        let text = String::from_utf8_lossy(&decoded(coding, &bytes)).into_owned();
        // Another process may have taken the port of a node that ended.
        if headers.contains_key("x-concord-node")
            && let Err(why) = document::check(&self.method, &path, status, &headers, &text)
        {
            panic!("not as documented: {why}: {asked} → {status} {headers:?} {text}");
        }
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { asked, status, headers, text, body })
    }

    /// Sends it until the answer is neither 503 nor 429, which say that nothing was done.
    pub(crate) async fn settled(&self) -> Result<Answer, String> {
        let end = Instant::now() + DEADLINE;
        loop {
            let answer = self.attempt().await?;
            if !matches!(answer.status, 429 | 503) || Instant::now() >= end {
                return Ok(answer);
            }
            pace(super::PAUSE).await;
        }
    }

    /// Sends it until the outcome is known. Only for what may be applied twice: reads, and writes with an
    /// `Idempotency-Key`.
    pub(crate) async fn insist(&self) -> Answer {
        super::eventually("an answer", async || {
            let answer = self.settled().await?;
            if answer.status == 504 { Err(format!("{answer:?}")) } else { Ok(answer) }
        })
        .await
    }
}

impl IntoFuture for Call {
    type Output = Answer;
    type IntoFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

    /// Sends it; an unknown outcome ends the run with [`Unsettled`].
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.settled().await {
                Ok(answer) if answer.status != 504 => answer,
                Ok(answer) => unsettled(&format!("{answer:?}")),
                Err(why) => unsettled(&why),
            }
        })
    }
}

fn unsettled(why: &str) -> ! {
    eprintln!("outcome unknown: {why}");
    std::panic::panic_any(Unsettled)
}
