//! `concord-bench-fixed ADDR`: the server that `--floor` measures: axum with nothing behind it.
//!
//! A program of its own, because it has Concord's allocator and the generator has not.
//!
//! **Invariant:** it knows no config and keeps nothing of what it is sent; every good request gets the same bytes.

use std::{hint::black_box, process::ExitCode, thread};

use axum::{
    Router,
    http::{HeaderName, HeaderValue, StatusCode, header},
    routing::get,
    serve::ListenerExt as _,
};
use bytes::Bytes;
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Builder};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The path of a config, as the loads ask for it.
const PATH: &str = "/api/v1/config_definition/{definition}/config/{config}";
/// Of an answer's body.
const BYTES: usize = 300;

fn main() -> ExitCode {
    let addr = std::env::args().nth(1).unwrap_or_default();
    match serve(&addr) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("concord-bench-fixed: {addr}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until it is killed.
fn serve(addr: &str) -> std::io::Result<()> {
    // As many as a node of Concord has for callers.
    let threads = thread::available_parallelism().map_or(1, usize::from).saturating_sub(1).max(1);
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        // Where it can't be set the connection is slower, not wrong.
        let listener = TcpListener::bind(addr).await?.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router()).await
    })
}

fn router() -> Router {
    let head = r#"{"name":"config-00000000","group":0,"tier":"tier-0000","count":500000,"pad":""#;
    let text = Bytes::from(format!("{head}{}\"}}", "x".repeat(BYTES - head.len() - 2)));
    let answer = move || (headers(), text.clone());
    let got = answer.clone();
    let put = move |body: Bytes| async move {
        let parsed = serde_json::from_slice::<Value>(&body).map_err(|_| StatusCode::UNPROCESSABLE_ENTITY)?;
        black_box(parsed);
        Ok::<_, StatusCode>(answer())
    };
    Router::new().route(PATH, get(move || async move { got() }).put(put))
}

/// As many as Concord's answer to a get has, and about as long.
fn headers() -> [(HeaderName, HeaderValue); 6] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::ETAG, HeaderValue::from_static("\"10001\"")),
        (header::LAST_MODIFIED, HeaderValue::from_static("Sat, 21 Nov 2026 21:45:00 GMT")),
        (HeaderName::from_static("x-concord-revision"), HeaderValue::from_static("10001")),
        (HeaderName::from_static("x-concord-node"), HeaderValue::from_static("1")),
        (
            HeaderName::from_static("x-request-id"),
            HeaderValue::from_static("019aa0a8-0000-7000-8000-000000000000"),
        ),
    ]
}
