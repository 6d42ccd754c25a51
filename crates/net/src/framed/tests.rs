//! When a framed connection is reused, and when it is not.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::stream;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use super::*;
use crate::{
    client::{Secrets, prove::testing::prove_and_read},
    identity::Identity,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// A node with this listener, which answers a frame with its own bytes, except those that are named below.
struct FrameNode {
    addr: String,
    /// How often each call was made.
    calls: Mutex<BTreeMap<String, usize>>,
    /// Connections for frames that it may open.
    may_open: Semaphore,
    /// Answers to the frame `late` that it may give, and how many it has begun to wait for.
    may_answer: Semaphore,
    late: AtomicUsize,
    connections: Mutex<JoinSet<()>>,
}

impl FrameNode {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Arc::new(Self {
            addr: listener.local_addr().unwrap().to_string(),
            calls: Mutex::default(),
            may_open: Semaphore::new(Semaphore::MAX_PERMITS),
            may_answer: Semaphore::new(0),
            late: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let listening = Arc::clone(&node);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                listening.connections.lock().unwrap().spawn(Arc::clone(&listening).run(socket));
            }
        });
        node
    }

    async fn run(self: Arc<Self>, mut socket: TcpStream) {
        let head = prove_and_read(&mut socket, &["a-secret"]).await;
        let call = head.strip_prefix("POST /peer/").and_then(|rest| rest.split(' ').next()).unwrap();
        *self.calls.lock().unwrap().entry(call.to_owned()).or_default() += 1;
        self.may_open.acquire().await.unwrap().forget();
        let head =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: concord-frames\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        serve(socket, |body| self.answer(body)).await;
    }

    async fn answer(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        match &body[..] {
            b"fail" => Err(ReceiveError::Failed("as asked".into())),
            b"late" => {
                self.late.fetch_add(1, Ordering::SeqCst);
                self.may_answer.acquire().await.unwrap().forget();
                Ok(body)
            }
            b"long" => Ok(vec![0; FRAME_BYTES_MAX].into()),
            _ => Ok(body),
        }
    }

    /// How often this call was made.
    fn calls(&self, call: &str) -> usize {
        self.calls.lock().unwrap().get(call).copied().unwrap_or_default()
    }

    /// Closes all connections, as a restart does.
    async fn restart(&self) {
        let mut connections = std::mem::take(&mut *self.connections.lock().unwrap());
        connections.shutdown().await;
    }
}

/// Another node, which calls this one.
struct FrameCaller {
    peers: Arc<Peers>,
    calls: FramedCalls,
    node: Arc<FrameNode>,
}

impl FrameCaller {
    async fn start() -> Self {
        let peers = Peers::new(Secrets(vec!["a-secret".into()]));
        peers.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 }).unwrap();
        let calls = FramedCalls::new(Lane::Forward, Call::ReadIndex);
        Self { peers: Arc::new(peers), calls, node: FrameNode::start().await }
    }

    async fn call(&self, body: &'static str, timeout: Duration) -> Result<Bytes, CallError> {
        self.calls
            .call(
                &self.peers,
                PeerAddress { id: 2, addr: &self.node.addr },
                Bytes::from_static(body.as_bytes()),
                timeout,
            )
            .await
    }

    /// Asserts that a request is answered, and how many connections for frames were opened until then.
    async fn is_answered(&self, body: &'static str, opened: usize) {
        assert_eq!(self.call(body, LONG).await.unwrap(), body);
        assert_eq!(self.node.calls("read-index"), opened, "connections");
    }

    async fn is_lost(&self, body: &'static str, timeout: Duration) {
        let lost = self.call(body, timeout).await;
        assert!(matches!(lost, Err(CallError::Unknown(_))), "{lost:?}");
    }
}

#[tokio::test]
async fn a_connection_is_reused_after_a_response() {
    let caller = FrameCaller::start().await;
    for body in ["one", "", "three"] {
        caller.is_answered(body, 1).await;
    }
}

#[tokio::test]
async fn a_connection_is_not_reused_after_a_failure() {
    let caller = FrameCaller::start().await;
    caller.is_lost("fail", LONG).await;
    caller.is_answered("one", 2).await;
    // On a connection that was used before, the request is sent again on another.
    caller.is_lost("fail", LONG).await;
    assert_eq!(caller.node.calls("read-index"), 3);
    caller.is_answered("two", 4).await;
}

#[tokio::test]
async fn a_late_response_does_not_answer_a_later_request() {
    let caller = FrameCaller::start().await;
    caller.is_answered("one", 1).await;
    caller.is_lost("late", SHORT).await;
    assert_eq!(caller.node.late.load(Ordering::SeqCst), 1, "it was received once");
    caller.node.may_answer.add_permits(1);
    caller.is_answered("two", 2).await;
    caller.is_answered("three", 2).await;
}

#[tokio::test]
async fn an_abandoned_request_closes_its_connection() {
    let caller = FrameCaller::start().await;
    caller.is_answered("one", 1).await;
    let given_up = tokio::time::timeout(SHORT, caller.call("late", LONG)).await;
    assert!(given_up.is_err());
    caller.is_answered("two", 2).await;
}

#[tokio::test]
async fn no_request_fails_when_the_node_restarts() {
    let caller = FrameCaller::start().await;
    for opened in 1..5 {
        caller.is_answered("one", opened).await;
        caller.node.restart().await;
    }
}

#[tokio::test]
async fn the_next_request_continues_to_open_the_connection() {
    let caller = FrameCaller::start().await;
    caller.node.may_open.forget_permits(Semaphore::MAX_PERMITS);
    caller.is_lost("one", Duration::from_secs(1)).await;
    caller.node.may_open.add_permits(1);
    caller.is_answered("two", 1).await;
}

#[tokio::test]
async fn another_address_has_another_connection() {
    let caller = FrameCaller::start().await;
    caller.is_answered("one", 1).await;
    let elsewhere = FrameNode::start().await;
    let body = Bytes::from_static(b"two");
    let to = PeerAddress { id: 2, addr: &elsewhere.addr };
    assert_eq!(caller.calls.call(&caller.peers, to, body, LONG).await.unwrap(), "two");
    assert_eq!((caller.node.calls("read-index"), elsewhere.calls("read-index")), (1, 1));
}

#[tokio::test]
async fn an_oversized_frame_closes_the_connection() {
    let caller = FrameCaller::start().await;
    let long = Bytes::from(vec![0; FRAME_BYTES_MAX + 1]);
    let sent =
        caller.calls.call(&caller.peers, PeerAddress { id: 2, addr: &caller.node.addr }, long, LONG).await;
    assert!(matches!(sent, Err(CallError::Unknown(_))), "{sent:?}");
    caller.is_answered("one", 2).await;
    let (mut from, to) = tokio::io::duplex(1 << 10);
    let served = tokio::spawn(serve(to, |_| async { Err(ReceiveError::Failed("no frame is whole".into())) }));
    from.write_u32(u32::try_from(FRAME_BYTES_MAX + 1).unwrap()).await.unwrap();
    assert_eq!(from.read(&mut [0; 8]).await.unwrap(), 0, "it is closed before the frame has come");
    served.await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let (from, to) = tokio::io::duplex(1 << 10);
    let mut from = frames(Box::new(from), FRAME_BYTES_MAX);
    let served = tokio::spawn(serve_for(to, SHORT, async |body| Ok(body)));
    from.send(Bytes::from_static(b"one")).await.unwrap();
    assert_eq!(from.next().await.unwrap().unwrap(), "one");
    assert!(from.next().await.is_none());
    served.await.unwrap();
}

#[tokio::test]
async fn the_frames_of_a_response_are_received_whole() {
    let body = [frame("one".into()), frame("two".into())].concat();
    for cut in 0..=body.len() {
        let chunks = [&body[..cut], &body[cut..]].map(|chunk| Ok(Bytes::copy_from_slice(chunk)));
        let frames: Vec<Bytes> = frames_of(stream::iter(chunks)).try_collect().await.unwrap();
        assert_eq!(frames, ["one", "two"]);
    }
    let cut_off = Bytes::copy_from_slice(&body[..body.len() - 1]);
    let oversized = u32::try_from(RESPONSE_FRAME_BYTES_MAX + 1).unwrap().to_be_bytes();
    for (chunk, whole) in [(cut_off, 1), (Bytes::copy_from_slice(&oversized), 0)] {
        let frames: Vec<_> = frames_of(stream::iter([Ok(chunk)])).collect().await;
        assert!(matches!(&frames[whole..], [Err(CallError::Unknown(_))]), "{frames:?}");
    }
}
