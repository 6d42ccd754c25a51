//! A receiver of webhooks: keeps what it is sent, and answers as a test wants.

use std::sync::{Arc, Mutex, MutexGuard};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::post,
};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle};

/// What a receiver does with what it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Conduct {
    Takes,
    /// It answers this status, and forgets the message.
    Answers(u16),
    /// It sends the sender to another address.
    Redirects(String),
    /// It answers nothing.
    Hangs,
}

#[derive(Debug)]
struct Inner {
    conduct: Conduct,
    requests: usize,
    taken: Vec<(HeaderMap, Value)>,
}

type Shared = Arc<Mutex<Inner>>;

/// A receiver that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Webhook {
    inner: Shared,
    pub(crate) url: String,
    server: JoinHandle<()>,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Webhook {
    /// One on a port of its own.
    pub(crate) async fn start(conduct: Conduct) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}/hook/a-secret-path", listener.local_addr().expect("it is bound"));
        let inner = Arc::new(Mutex::new(Inner { conduct, requests: 0, taken: Vec::new() }));
        let routes = Router::new().route("/{*path}", post(receive)).with_state(Arc::clone(&inner));
        let server = tokio::spawn(async move {
            axum::serve(listener, routes).await.expect("it serves until it is dropped");
        });
        Self { inner, url, server }
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
        self.inner().taken.clone()
    }
}

async fn receive(State(inner): State<Shared>, headers: HeaderMap, body: Bytes) -> (StatusCode, HeaderMap) {
    let conduct = {
        let mut inner = inner.lock().expect("nothing panics while it is held");
        inner.requests += 1;
        if inner.conduct == Conduct::Takes {
            inner.taken.push((headers, serde_json::from_slice(&body).expect("a message is JSON")));
        }
        inner.conduct.clone()
    };
    let mut answer = HeaderMap::new();
    let status = match conduct {
        Conduct::Takes => 204,
        Conduct::Answers(status) => status,
        Conduct::Redirects(to) => {
            answer.insert("location", HeaderValue::from_str(&to).expect("a URL is a header"));
            307
        }
        Conduct::Hangs => std::future::pending().await,
    };
    (StatusCode::from_u16(status).expect("a status"), answer)
}
