//! Writes to a simulated leader: which of them share a call, and what each is answered.

use futures::future::join_all;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use bytes::Bytes;

use super::*;
use crate::peer::codec::decode;
use crate::service::forward::wire::{WireAnswer, encode_part};
use crate::{
    model::{command::Expect, document::Document},
    peer::{
        client::Secrets,
        identity::{FORMAT, Identity},
    },
    service::{
        Principal,
        request::{Caller, Write},
    },
};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn request(key: &str) -> WriteRequest {
    let principal = Principal::root();
    let caller = Caller { principal, reason: None, idempotency_key: None, dry_run: false };
    let write = Write::DeleteConfig { definition: "d".into(), key: key.into(), expect: Expect::Any };
    WriteRequest { caller, write }
}

fn peers() -> Arc<Peers> {
    let peers = Peers::new(Secrets(vec!["s".into()]));
    peers.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 2, format: FORMAT }).unwrap();
    Arc::new(peers)
}

/// A leader that answers as many calls as the test permits, and answers each write with its own key.
#[derive(Clone)]
struct Leader {
    /// The number of writes of each call.
    calls: Arc<Mutex<Vec<usize>>>,
    may_answer: Arc<Semaphore>,
}

impl Leader {
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
        let (mut line, mut length) = (String::new(), 0);
        while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
            let header = std::mem::take(&mut line).to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if header == "\r\n" {
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.unwrap();
                let answer = self.answer(&body).await;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
                // The caller may have hung up.
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
    let (leader, member) = Leader::start().await;
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
    // The tasks that make calls end once nobody joins.
    let counts = || batcher.queues().get(&1).map(|queue| (queue.calls, queue.waiting.len()));
    let ended = async {
        while counts() != Some((0, 0)) {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, ended).await.expect("no call counts, and no write waits");
}

#[tokio::test]
async fn a_write_that_was_refused_with_404_was_certainly_not_made() {
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
async fn a_connection_that_is_lost_leaves_only_what_was_not_answered_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer_addr = listener.local_addr().unwrap().to_string();
    let member = Member { id: 1, api_addr: String::new(), peer_addr };
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    // One call counts already, so that all three share the other.
    batcher.queues().insert(1, Queue { calls: CALLS_MAX, ..Queue::default() });
    let deadline = Instant::now() + TEST_TIMEOUT;
    let sends: Vec<_> = (0..3)
        .map(|n: u8| {
            let (batcher, peers, member) = (Arc::clone(&batcher), Arc::clone(&peers), member.clone());
            tokio::spawn(async move {
                batcher.send(&peers, &member, &Arc::new(request(&n.to_string())), deadline).await
            })
        })
        .collect();
    while batcher.queues()[&1].waiting.len() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::spawn(Arc::clone(&batcher).run_calls(Arc::clone(&peers), 1));
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufStream::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
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
    let batcher = Batcher::default();
    let write = |n: u64| {
        let text = "x".repeat(BATCHED_WRITE_BYTES_MAX);
        let data = Document { text: text.into(), value: serde_json::Value::Null };
        let write = Write::WriteConfig { definition: "d".into(), key: "k".into(), data, expect: Expect::Any };
        let request = Arc::new(WriteRequest { write, caller: request("k").caller.clone() });
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + TEST_TIMEOUT;
        (Waiting { number: n, leader: Member::default(), request, deadline, trace: None, answer }, answered)
    };
    let (waiting, _answered): (VecDeque<_>, Vec<_>) = (0..40).map(write).unzip();
    batcher.queues().insert(0, Queue { calls: 1, waiting, last_number: 40, ..Queue::default() });
    let calls: Vec<usize> =
        std::iter::from_fn(|| batcher.next_batch(0)).map(|(batch, _)| batch.len()).collect();
    let most = INLINE_PARSE_BYTES_MAX / BATCHED_WRITE_BYTES_MAX;
    assert_eq!(calls, [most, most, 40 - 2 * most]);
}

#[tokio::test]
async fn a_call_that_is_not_answered_in_time_makes_room_for_the_next() {
    let (leader, member) = Leader::start().await;
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    let mut sends = Vec::new();
    for n in 0..2 * CALLS_MAX {
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
    let (leader, member) = Leader::start().await;
    let (batcher, peers) = (Arc::new(Batcher::default()), peers());
    batcher.queues().insert(1, Queue { calls: CALLS_MAX, ..Queue::default() });
    let deadline = Instant::now() + Duration::from_millis(20);
    let attempt = batcher.send(&peers, &member, &Arc::new(request("k")), deadline).await;
    assert!(matches!(attempt, Err(AttemptError::Retry(_))), "{attempt:?}");
    assert!(batcher.queues()[&1].waiting.is_empty() && leader.calls.lock().unwrap().is_empty());
    // Sent but not answered, its outcome is unknown.
    batcher.queues().clear();
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
fn a_write_that_is_large_or_takes_long_does_not_share_a_call() {
    assert!(may_batch(&request("k")));
    let with = |write| WriteRequest { write, caller: request("k").caller.clone() };
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
