//! Does a node give away what another node accepts, to an address that a caller names?

use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::raw::{PATIENCE, connect, peer, send};
use crate::harness::Cluster;

type Received = Arc<Mutex<Vec<Vec<u8>>>>;

/// Listens as a node would, answers each call with this, and keeps what came.
async fn listen(response: &'static [u8]) -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let received = Received::default();
    let keeps = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let keeps = Arc::clone(&keeps);
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                let mut chunk = vec![0; 64 << 10];
                while let Ok(count @ 1..) = stream.read(&mut chunk).await {
                    bytes.extend_from_slice(&chunk[..count]);
                    if is_whole(&bytes) {
                        keeps.lock().expect("no holder panics").push(std::mem::take(&mut bytes));
                        drop(stream.write_all(response).await);
                    }
                }
            });
        }
    });
    (address, received)
}

/// Whether a whole request is there, with its body.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    bytes.len() >= end + 4 + length.unwrap_or(0)
}

/// The first line of the answer to bytes that are sent to a node's peer port.
async fn replay(node: &crate::harness::Node, bytes: &[u8]) -> String {
    let mut stream = connect(peer(node)).await;
    send(&mut stream, bytes).await;
    let mut first = [0; 12];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut first)).await;
    read.expect("it is answered in time").expect("it is answered");
    String::from_utf8_lossy(&first).into_owned()
}

/// A request for another call.
fn with_call(bytes: &[u8], call: &str) -> Vec<u8> {
    let end = bytes.windows(6).position(|part| part == b" HTTP/").expect("a request");
    [b"POST /peer/", call.as_bytes(), &bytes[end..]].concat()
}

/// Asserts that a call names no secret, and that no node accepts it, for whatever call.
async fn is_worthless(bytes: &[u8], cluster: &Cluster, secret: &str) {
    let names_it = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
    assert!(!names_it, "the secret: {}", String::from_utf8_lossy(bytes));
    for node in &cluster.nodes {
        for call in ["prove", "join", "vote", "write", "fetch-snapshot", "stream", "heartbeats", "read-index"]
        {
            let answer = replay(node, &with_call(bytes, call)).await;
            assert!(answer == "HTTP/1.1 401" || answer == "HTTP/1.1 421", "{call}: {answer}");
        }
    }
}

#[tokio::test]
async fn what_a_node_sends_to_a_callers_address_is_good_nowhere_else() {
    let mut cluster = Cluster::start("hostile-secret").await;
    let newcomer = cluster.newcomer(4).await;
    let secret = cluster.nodes[0].settings["CONCORD_CLUSTER_SECRET"].clone();
    let client = cluster.client(1);
    // The first one asks for more.
    let refusals: [&[u8]; 2] = [
        b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 42\r\n\r\nthe header x-concord-credential is missing",
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    ];
    for refusal in refusals {
        let (address, received) = listen(refusal).await;
        let member = json!({"id": 4, "api_addr": "127.0.0.1:1", "peer_addr": address});
        let added = client.post("/api/v1/cluster/members", &member).attempt().await.unwrap();
        assert!(added.status >= 400, "it is no node: {added:?}");
        let calls = received.lock().expect("no holder panics").clone();
        assert!(!calls.is_empty(), "it was called");
        // The node with this id belongs to no cluster yet and could be brought into this one: that is all it is for.
        let node = cluster.nodes.pop().expect("the newcomer");
        for bytes in &calls {
            is_worthless(bytes, &cluster, &secret).await;
        }
        cluster.nodes.push(node);
    }
    let added = client.post("/api/v1/cluster/members", &newcomer).attempt().await.unwrap();
    assert!(added.status == 201 || added.status == 200, "{added:?}");
    // This one says what a node says that joins: that it is node 5 and belongs to no cluster.
    let (address, received) =
        listen(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n\x01\x05\x00\x00\x00").await;
    let member = json!({"id": 5, "api_addr": "127.0.0.1:1", "peer_addr": address});
    let added = client.post("/api/v1/cluster/members", &member).attempt().await.unwrap();
    assert!(added.status >= 400 && added.text.contains("cluster secret"), "{added:?}");
    let calls = received.lock().expect("no holder panics").clone();
    assert!(!calls.is_empty(), "it was called");
    for bytes in &calls {
        let text = String::from_utf8_lossy(bytes);
        assert!(
            text.starts_with("POST /peer/prove ") && text.ends_with("\r\n\r\n"),
            "nothing else is sent: {text}"
        );
        is_worthless(bytes, &cluster, &secret).await;
    }
    let status = client.status().await.unwrap();
    let ids: Vec<_> = status["members"].as_array().unwrap().iter().map(|member| &member["id"]).collect();
    assert!(ids.contains(&&json!(4)) && !ids.contains(&&json!(5)), "{ids:?}");
}
