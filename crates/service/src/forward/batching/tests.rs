//! Writes to a simulated leader: which of them share an RPC, and the answer to each.

use futures::future::join_all;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};

use super::*;
use crate::forward::wire::{WireAnswer, encode_part};
use crate::{
    Principal,
    request::{Caller, Write},
};
use concord_model::{command::Expect, document::Document};
use concord_net::codec::decode;
use concord_net::{
    NodeId,
    client::{NONCE, Secrets},
    identity::{FORMAT, Identity},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn request(key: &str) -> WriteRequest {
    let principal = Principal::root();
    let caller = Caller {
        principal,
        reason: None,
        idempotency_key: None,
        dry_run: false,
        listed_variants: concord_model::schema::ListedVariants::default(),
        bypass: None,
    };
    let write = Write::DeleteConfig { definition: "d".into(), key: key.into(), expect: Expect::Any };
    WriteRequest::new(caller, write)
}

fn peers() -> Arc<Peers> {
    peers_of(2)
}

/// Adds the header of a line, if it has one.
fn note_header(line: &str, headers: &mut HeaderMap) {
    if let Some((name, value)) = line.trim_end().split_once(": ") {
        headers.insert(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
}

fn peers_of(node_id: NodeId) -> Arc<Peers> {
    let peers = Peers::new(Secrets(vec!["s".into()]));
    peers.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id, format: FORMAT }).unwrap();
    Arc::new(peers)
}

/// A leader that answers as many calls as the test permits, and answers each write with its own key.
#[derive(Clone)]
struct WritesLeader {
    /// The number of writes of each call.
    calls: Arc<Mutex<Vec<usize>>>,
    may_answer: Arc<Semaphore>,
}

impl WritesLeader {
    async fn start() -> (Self, Member) {
        let leader = Self { calls: Arc::default(), may_answer: Arc::new(Semaphore::new(0)) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer_addr = listener.local_addr().unwrap().to_string();
        let serving = leader.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        (leader, Member { id: 1, api_addr: String::new(), peer_addr })
    }

    /// As much HTTP as the calls of a node need.
    async fn serve(self, stream: TcpStream) {
        let mut stream = BufStream::new(stream);
        let (mut line, mut length, mut headers) = (String::new(), 0, HeaderMap::new());
        while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
            let given = std::mem::take(&mut line);
            note_header(&given, &mut headers);
            let header = given.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if header == "\r\n" {
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.unwrap();
                let headers = std::mem::take(&mut headers);
                // The first call on a connection asks for a proof of the secret.
                let answer = if headers.contains_key(NONCE) {
                    peers_of(1).admit_prove(&headers).unwrap().into()
                } else {
                    self.answer(&body).await
                };
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
                // The calling node may have closed the connection.
                let _gone = stream.write_all(&[head.as_bytes(), &answer].concat()).await;
                let _gone = stream.flush().await;
            }
        }
    }

    async fn answer(&self, body: &[u8]) -> Bytes {
        let requests: Vec<WireRequest<'static>> = decode(body).unwrap();
        self.calls.lock().unwrap().push(requests.len());
        self.may_answer.acquire().await.unwrap().forget();
        let key = |request: WireRequest<'static>| {
            let (_, request) = request.open(10).unwrap();
            let Write::DeleteConfig { key, .. } = &request.write else { panic!("{request:?}") };
            WireAnswer::Retry(key.clone())
        };
        let answers = requests.into_iter().map(key);
        // In reverse and one by one.
        let mut parts: Vec<Bytes> = (0..).zip(answers).map(|answer| encode_part(&vec![answer])).collect();
        parts.reverse();
        parts.concat().into()
    }

    /// Waits until this many calls have arrived.
    async fn has_calls(&self, count: usize) {
        while self.calls.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn many_writes_share_few_calls_and_each_gets_its_own_answer() {
    let (leader, member) = WritesLeader::start().await;
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    leader.may_answer.add_permits(1000);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let sends = (0..300).map(|n| {
        let (batcher, peers, member) = (Arc::clone(&batcher), Arc::clone(&peers), member.clone());
        async move { batcher.send(&peers, &member, &Arc::new(request(&n.to_string())), deadline).await }
    });
    for (n, attempt) in join_all(sends).await.into_iter().enumerate() {
        assert_eq!(attempt, Err(AttemptError::Retry(n.to_string())));
    }
    let calls = leader.calls.lock().unwrap().clone();
    assert_eq!(calls.iter().sum::<usize>(), 300, "each is sent once");
    assert!(calls.len() <= 12 && calls.iter().all(|writes| *writes <= BATCH_WRITES_MAX), "{calls:?}");
    assert_eq!(batcher.waits().count(), 300, "each has waited once");
    let ended = async {
        while !batcher.queue_to(&member).writes.is_idle() {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, ended).await.expect("no call counts, and no write waits");
}

#[tokio::test]
async fn a_write_that_was_rejected_with_404_was_certainly_not_made() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer_addr = listener.local_addr().unwrap().to_string();
    let member = Member { id: 1, api_addr: String::new(), peer_addr };
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufStream::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 7\r\nconnection: close\r\n\r\nnothing";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    let attempt = batcher.send(&peers, &member, &Arc::new(request("k")), Instant::now() + TEST_TIMEOUT).await;
    assert!(matches!(&attempt, Err(AttemptError::Retry(_))), "{attempt:?}");
}

#[tokio::test]
async fn a_lost_connection_leaves_only_unanswered_writes_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer_addr = listener.local_addr().unwrap().to_string();
    let member = Member { id: 1, api_addr: String::new(), peer_addr };
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    let deadline = Instant::now() + TEST_TIMEOUT;
    let sends: Vec<_> = (0..3)
        .map(|n: u8| {
            let (batcher, peers, member) = (Arc::clone(&batcher), Arc::clone(&peers), member.clone());
            tokio::spawn(async move {
                batcher.send(&peers, &member, &Arc::new(request(&n.to_string())), deadline).await
            })
        })
        .collect();
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufStream::new(stream);
    let mut line = String::new();
    // The first request of the connection asks for a proof of the secret, the second one has the writes.
    for is_proven in [false, true] {
        let mut headers = HeaderMap::new();
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            note_header(&line, &mut headers);
        }
        line.clear();
        if !is_proven {
            let proof = peers_of(1).admit_prove(&headers).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{proof}", proof.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    }
    let part = encode_part(&vec![(1, WireAnswer::Retry("decided".into()))]);
    let head = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n", part.len());
    stream.write_all(&[head.as_bytes(), &part, b"\r\n"].concat()).await.unwrap();
    stream.flush().await.unwrap();
    let mut sends = sends.into_iter();
    let (zero, one, two) = (sends.next().unwrap(), sends.next().unwrap(), sends.next().unwrap());
    // It is answered while the others are not.
    assert_eq!(one.await.unwrap(), Err(AttemptError::Retry("decided".into())));
    assert!(!zero.is_finished() && !two.is_finished());
    drop(stream);
    for unanswered in [zero, two] {
        let attempt = unanswered.await.unwrap();
        assert!(matches!(attempt, Err(AttemptError::Unknown(_))), "{attempt:?}");
    }
}

#[tokio::test]
async fn a_batch_is_no_larger_than_the_leader_parses_inline() {
    let queue = Arc::new(BatchQueue::<QueuedWrite, Attempt<Decision>>::new(FORWARDING));
    let text = "x".repeat(BATCHED_WRITE_BYTES_MAX);
    let data = Document { text: text.into(), value: serde_json::Value::Null };
    let write = Write::WriteConfig { definition: "d".into(), key: "k".into(), data, expect: Expect::Any };
    let request = Arc::new(WriteRequest::new(request("k").caller.clone(), write));
    let pushed: Vec<_> = (0..40)
        .map(|_| {
            let request = Arc::clone(&request);
            let write = QueuedWrite { request, deadline: Instant::now() + TEST_TIMEOUT, trace: None };
            let bytes = write.request.write.document_bytes();
            queue.push(WorkOwner::SHARED, write, bytes)
        })
        .collect();
    let (_pending, senders): (Vec<_>, Vec<_>) = pushed.into_iter().unzip();
    let mut sender = senders.into_iter().flatten().next().unwrap();
    let mut calls = Vec::new();
    while let Some(batch) = sender.next().await {
        calls.push(batch.len());
    }
    let most = INLINE_BYTES_MAX / BATCHED_WRITE_BYTES_MAX;
    assert_eq!(calls, [most, most, 40 - 2 * most]);
}

#[tokio::test]
async fn a_slow_call_makes_room_for_the_next() {
    let (leader, member) = WritesLeader::start().await;
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    let mut sends = Vec::new();
    for n in 0..2 * FORWARDING.senders_max {
        let (batcher, peers, member) = (Arc::clone(&batcher), Arc::clone(&peers), member.clone());
        let deadline = Instant::now() + TEST_TIMEOUT;
        sends.push(tokio::spawn(async move {
            batcher.send(&peers, &member, &Arc::new(request(&n.to_string())), deadline).await
        }));
        // None is answered, and yet each is sent.
        timeout(TEST_TIMEOUT, leader.has_calls(n + 1)).await.unwrap();
    }
    leader.may_answer.add_permits(1000);
    for (n, send) in sends.into_iter().enumerate() {
        assert_eq!(send.await.unwrap(), Err(AttemptError::Retry(n.to_string())));
    }
}

#[tokio::test]
async fn a_write_that_was_not_sent_is_certainly_not_made() {
    let (leader, member) = WritesLeader::start().await;
    let peers = peers();
    let nothing_sent = BatchPolicy { senders_max: 0, ..FORWARDING };
    let batcher = Batcher { policy: nothing_sent, ..Batcher::default() };
    let deadline = Instant::now() + Duration::from_millis(20);
    let attempt = batcher.send(&peers, &member, &Arc::new(request("k")), deadline).await;
    assert!(matches!(attempt, Err(AttemptError::Retry(_))), "{attempt:?}");
    assert!(batcher.waiting() == 0 && leader.calls.lock().unwrap().is_empty());
    // Sent but not answered, its outcome is unknown.
    let batcher = Batcher::default();
    let deadline = Instant::now() + Duration::from_millis(200);
    let attempt = batcher.send(&peers, &member, &Arc::new(request("k")), deadline).await;
    assert!(matches!(attempt, Err(AttemptError::Unknown(_))), "{attempt:?}");
    assert_eq!(*leader.calls.lock().unwrap(), [1]);
}

#[tokio::test]
async fn nothing_was_sent_to_a_leader_that_does_not_listen() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer_addr = listener.local_addr().unwrap().to_string();
    drop(listener);
    let member = Member { id: 1, api_addr: String::new(), peer_addr };
    let attempt = Arc::new(Batcher::default())
        .send(&peers(), &member, &Arc::new(request("k")), Instant::now() + TEST_TIMEOUT)
        .await;
    assert!(matches!(attempt, Err(AttemptError::Retry(_))), "{attempt:?}");
}

#[test]
fn a_large_or_slow_write_does_not_share_a_call() {
    assert!(may_batch(&request("k")));
    let with = |write| WriteRequest::new(request("k").caller.clone(), write);
    let config = |length: usize| Write::WriteConfig {
        definition: "d".into(),
        key: "k".into(),
        data: Document { text: "x".repeat(length).into(), value: serde_json::Value::Null },
        expect: Expect::Any,
    };
    assert!(may_batch(&with(config(BATCHED_WRITE_BYTES_MAX))));
    assert!(!may_batch(&with(config(BATCHED_WRITE_BYTES_MAX + 1))));
    assert!(!may_batch(&with(Write::Batch(Vec::new()))));
    let mut dry_run = request("k");
    dry_run.caller.dry_run = true;
    assert!(!may_batch(&dry_run));
}
