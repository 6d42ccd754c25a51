//! A read of the Rust client's local cache: a look-up in memory, with the source of the value.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::LazyLock,
    time::Duration,
};

use concord_client::{Cache, CacheOptions, Client, Options, Selection};
use divan::{Bencher, black_box};
use serde_json::json;

/// Configs that the cache holds.
const CONFIGS: usize = 10_000;

/// A cache that a node's answer has filled, and its runtime.
static FILLED: LazyLock<(Cache, tokio::runtime::Runtime)> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || serve(&listener));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let cache = runtime.block_on(async {
        let client = Client::new(Options { urls: vec![url], key: "k".into(), ..Options::default() });
        let options = CacheOptions::new(vec![Selection::definition("limits")]);
        // Nobody answers questions here.
        let options = CacheOptions { confirm_every: Duration::from_secs(3600), ..options };
        let cache = client.and_then(|client| client.cache(options)).expect("the options are good");
        cache.ready(Duration::from_secs(60)).await.expect("the state comes");
        cache
    });
    (cache, runtime)
});

/// Answers one watch with a state, and keeps it open.
fn serve(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("a caller comes");
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).expect("the request comes");
        request.extend_from_slice(&buffer[..count]);
    }
    let config = |number| {
        json!({"config_definition_key": "limits", "config_key": format!("k{number}"),
               "data": {"plan": "pro", "requests": number}, "revision": 1, "created_at": "", "modified_at": ""})
    };
    let configs: Vec<_> = (0..CONFIGS).map(config).collect();
    let state = json!({"revision": 1, "definitions": [], "configs": configs, "complete": true});
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream
        .write_all(format!("{head}event: state\nid: 1\ndata: {state}\n\n").as_bytes())
        .expect("the caller reads");
    // Until the caller ends.
    let _ = stream.read(&mut buffer);
}

/// One thread, then as many as there are processors.
#[divan::bench(threads = [1, 0])]
fn get(bencher: Bencher<'_, '_>) {
    let (cache, _) = &*FILLED;
    bencher.bench(|| cache.get(black_box("limits"), black_box("k7777")).expect("it is filled"));
}
