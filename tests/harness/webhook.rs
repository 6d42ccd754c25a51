//! A receiver of webhooks: keeps what it is sent, answers as a test wants, and can be killed.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::post,
};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
};

use super::eventually;

/// What a receiver does with what it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Conduct {
    Takes,
    /// It takes the message, and answers nothing.
    TakesInSilence,
    /// It answers this status, and forgets the message.
    Answers(u16),
    /// It answers this status to messages with this text, and takes the others.
    Refuses(u16, &'static str),
    /// It sends the sender to another address.
    Redirects(String),
    /// It answers nothing.
    Hangs,
}

#[derive(Debug)]
struct Inner {
    conduct: Conduct,
    requests: usize,
    taken: Vec<(HeaderMap, Bytes)>,
}

type Shared = Arc<Mutex<Inner>>;

/// A receiver that runs until it is killed or dropped.
#[derive(Debug)]
pub(crate) struct Webhook {
    inner: Shared,
    pub(crate) url: String,
    address: SocketAddr,
    /// Its own, so that its connections end with it.
    runtime: Option<Runtime>,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Webhook {
    /// One on a port of its own.
    pub(crate) async fn start(conduct: Conduct) -> Self {
        let inner = Arc::new(Mutex::new(Inner { conduct, requests: 0, taken: Vec::new() }));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut webhook = Self { inner, url: String::new(), address, runtime: None };
        webhook.restart().await;
        webhook.url = format!("http://{}/hook/a-secret-path", webhook.address);
        webhook
    }

    /// Ends it and its connections at once.
    pub(crate) fn kill(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }

    /// Starts it at the same address, with what it has taken.
    pub(crate) async fn restart(&mut self) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be started");
        let address = self.address;
        let listener = eventually("its port is free", async || {
            let bound = runtime.spawn(TcpListener::bind(address)).await.expect("it does not panic");
            bound.map_err(|error| error.to_string())
        })
        .await;
        self.address = listener.local_addr().expect("it is bound");
        let routes = Router::new().route("/{*path}", post(receive)).with_state(Arc::clone(&self.inner));
        runtime.spawn(async move {
            axum::serve(listener, routes).await.expect("it serves until it is killed");
        });
        self.runtime = Some(runtime);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it is held")
    }

    pub(crate) fn set(&self, conduct: Conduct) {
        self.inner().conduct = conduct;
    }

    /// How many requests have come.
    pub(crate) fn requests(&self) -> usize {
        self.inner().requests
    }

    /// What it has taken, with the headers, in the order of arrival.
    pub(crate) fn taken(&self) -> Vec<(HeaderMap, Value)> {
        let parsed = |body: &Bytes| serde_json::from_slice(body).expect("a message is JSON");
        self.raw().iter().map(|(headers, body)| (headers.clone(), parsed(body))).collect()
    }

    /// The same as the bytes that came.
    pub(crate) fn raw(&self) -> Vec<(HeaderMap, Bytes)> {
        self.inner().taken.clone()
    }
}

async fn receive(State(inner): State<Shared>, headers: HeaderMap, body: Bytes) -> (StatusCode, HeaderMap) {
    let has = |text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    let conduct = {
        let mut inner = inner.lock().expect("nothing panics while it is held");
        inner.requests += 1;
        let mut conduct = inner.conduct.clone();
        if let Conduct::Refuses(status, text) = conduct {
            conduct = if has(text) { Conduct::Answers(status) } else { Conduct::Takes };
        }
        if matches!(conduct, Conduct::Takes | Conduct::TakesInSilence) {
            inner.taken.push((headers, body));
        }
        conduct
    };
    let mut answer = HeaderMap::new();
    let status = match conduct {
        Conduct::Answers(status) => status,
        Conduct::Redirects(to) => {
            answer.insert("location", HeaderValue::from_str(&to).expect("a URL is a header"));
            307
        }
        Conduct::Hangs | Conduct::TakesInSilence => std::future::pending().await,
        Conduct::Takes | Conduct::Refuses(..) => 204,
    };
    (StatusCode::from_u16(status).expect("a status"), answer)
}
