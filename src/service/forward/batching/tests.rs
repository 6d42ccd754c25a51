//! Writes to a leader that is played: who goes with whom, and what each is told.

use futures::future::join_all;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::*;
use crate::{
    model::{command::Expect, document::Document, limits::Limits},
    peer::{
        client::Secrets,
        identity::{FORMAT, Identity},
    },
    service::{Caller, Principal},
};

const LONG_TIME: Duration = Duration::from_secs(30);

fn asked(key: &str) -> Asked {
    let principal = Principal { id: "root".into() };
    let caller = Caller { principal, reason: None, request: None, dry_run: false };
    let write = Write::DeleteConfig { definition: "d".into(), key: key.into(), expect: Expect::Any };
    Asked { caller, write }
}

fn peers() -> Arc<Peers> {
    let peers = Peers::new(Secrets(vec!["s".into()]));
    peers.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 2, format: FORMAT }).unwrap();
    Arc::new(peers)
}

/// A leader that lets as many calls through as the test says, and tells each write its own key.
#[derive(Clone)]
struct Leader {
    /// How many writes each call brought.
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

    /// Just as much HTTP as the calls of a node need.
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
                // The caller may have gone.
                let _gone = stream.write_all(&[head.as_bytes(), &answer].concat()).await;
                let _gone = stream.flush().await;
            }
        }
    }

    async fn answer(&self, body: &[u8]) -> Bytes {
        let carried: Vec<Carried> = decode(body).unwrap();
        self.calls.lock().unwrap().push(carried.len());
        self.may_answer.acquire().await.unwrap().forget();
        let key = |carried: Carried| {
            let (_, asked) = carried.open(10).unwrap();
            let Write::DeleteConfig { key, .. } = asked.write else { panic!("{asked:?}") };
            Attempt::Later(key)
        };
        encode(&carried.into_iter().map(key).collect::<Vec<_>>())
    }

    /// Waits until so many calls have come.
    async fn has_calls(&self, count: usize) {
        while self.calls.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn many_writes_go_with_few_calls_and_each_gets_its_own_answer() {
    let (leader, member) = Leader::start().await;
    let (convoys, peers) = (Arc::new(Convoys::default()), peers());
    leader.may_answer.add_permits(1000);
    let deadline = Instant::now() + LONG_TIME;
    let sends = (0..300).map(|n| {
        let (convoys, peers, member) = (Arc::clone(&convoys), Arc::clone(&peers), member.clone());
        async move { convoys.send(&peers, &member, &asked(&n.to_string()), deadline).await }
    });
    for (n, attempt) in join_all(sends).await.into_iter().enumerate() {
        assert_eq!(attempt, Attempt::Later(n.to_string()));
    }
    let calls = leader.calls.lock().unwrap().clone();
    assert_eq!(calls.iter().sum::<usize>(), 300, "each goes once");
    assert!(calls.len() <= 12 && calls.iter().all(|writes| *writes <= WRITES_MAX), "{calls:?}");
    assert_eq!(convoys.queues().get(&1).map(|queue| (queue.calls, queue.waiting.len())), Some((0, 0)));
}

#[tokio::test]
async fn a_call_brings_no_more_than_is_parsed_where_requests_are_served() {
    let convoys = Convoys::default();
    let write = |n: u64| {
        let data = Document { text: "x".repeat(SMALL).into(), value: serde_json::Value::Null };
        let write = Write::WriteConfig { definition: "d".into(), key: "k".into(), data, expect: Expect::Any };
        let asked = Asked { write, ..asked("k") };
        let (answer, answered) = oneshot::channel();
        let bytes = bytes_of(&asked.write).unwrap();
        let carried = Carried::of(&asked, LONG_TIME);
        (Waiting { number: n, leader: Member::default(), carried, bytes, answer }, answered)
    };
    let (waiting, _answered): (VecDeque<_>, Vec<_>) = (0..40).map(write).unzip();
    convoys.queues().insert(0, Queue { calls: 1, waiting, next: 40 });
    let calls: Vec<usize> = std::iter::from_fn(|| convoys.next(0)).map(|convoy| convoy.len()).collect();
    assert_eq!(calls, [LONG / SMALL, LONG / SMALL, 40 - 2 * (LONG / SMALL)]);
}

#[tokio::test]
async fn calls_that_are_not_answered_soon_make_room_for_the_next() {
    let (leader, member) = Leader::start().await;
    let (convoys, peers) = (Arc::new(Convoys::default()), peers());
    let mut sends = Vec::new();
    for n in 0..2 * CALLS_MAX {
        let (convoys, peers, member) = (Arc::clone(&convoys), Arc::clone(&peers), member.clone());
        let deadline = Instant::now() + LONG_TIME;
        sends.push(tokio::spawn(async move {
            convoys.send(&peers, &member, &asked(&n.to_string()), deadline).await
        }));
        // Nobody is answered, and yet each goes out.
        timeout(LONG_TIME, leader.has_calls(n + 1)).await.unwrap();
    }
    leader.may_answer.add_permits(1000);
    for (n, send) in sends.into_iter().enumerate() {
        assert_eq!(send.await.unwrap(), Attempt::Later(n.to_string()));
    }
}

#[tokio::test]
async fn a_write_that_was_not_sent_is_certainly_not_made() {
    let (leader, member) = Leader::start().await;
    let (convoys, peers) = (Arc::new(Convoys::default()), peers());
    convoys.queues().insert(1, Queue { calls: CALLS_MAX, ..Queue::default() });
    let soon = Instant::now() + Duration::from_millis(20);
    let attempt = convoys.send(&peers, &member, &asked("k"), soon).await;
    assert!(matches!(attempt, Attempt::Later(_)), "{attempt:?}");
    assert!(convoys.queues()[&1].waiting.is_empty() && leader.calls.lock().unwrap().is_empty());
    // Sent and not answered it is unknown.
    convoys.queues().clear();
    let soon = Instant::now() + Duration::from_millis(200);
    let attempt = convoys.send(&peers, &member, &asked("k"), soon).await;
    assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
    assert_eq!(*leader.calls.lock().unwrap(), [1]);
}

#[tokio::test]
async fn a_leader_that_is_not_there_was_sent_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer_addr = listener.local_addr().unwrap().to_string();
    drop(listener);
    let member = Member { id: 1, api_addr: String::new(), peer_addr };
    let attempt =
        Arc::new(Convoys::default()).send(&peers(), &member, &asked("k"), Instant::now() + LONG_TIME).await;
    assert!(matches!(attempt, Attempt::Later(_)), "{attempt:?}");
}

#[tokio::test]
async fn a_write_that_can_not_be_read_is_refused_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let service =
        crate::service::tests::service(directory.path(), Limits { json_depth: 2, ..Limits::default() });
    let write = |text: &str| {
        let data = Document { text: text.into(), value: serde_json::Value::Null };
        let (definition, key) = ("d".into(), "k".into());
        let write = Write::WriteConfig { definition, key, data, expect: Expect::Any };
        Carried::of(&Asked { write, ..asked("k") }, LONG_TIME)
    };
    let body = encode(&vec![write("{}"), write("[[[[]]]]"), write("{}")]);
    let attempts: Vec<Attempt> = decode(&service.answer_writes(body).await.unwrap()).unwrap();
    // The node leads nothing: that is what those are told that it could read.
    let is_unread =
        |attempt: &Attempt| matches!(attempt, Attempt::Later(text) if text.starts_with("the leader"));
    assert_eq!(attempts.iter().map(is_unread).collect::<Vec<_>>(), [false, true, false], "{attempts:?}");
    let many: Vec<Carried> = (0..=WRITES_MAX).map(|_| write("{}")).collect();
    assert!(service.answer_writes(encode(&many)).await.is_err());
}

#[test]
fn what_is_long_or_takes_long_goes_alone() {
    assert!(may_join(&asked("k")));
    let with = |write| Asked { write, ..asked("k") };
    let config = |length: usize| Write::WriteConfig {
        definition: "d".into(),
        key: "k".into(),
        data: Document { text: "x".repeat(length).into(), value: serde_json::Value::Null },
        expect: Expect::Any,
    };
    assert!(may_join(&with(config(SMALL))) && !may_join(&with(config(SMALL + 1))));
    assert!(!may_join(&with(Write::Batch(Vec::new()))));
    let mut dry = asked("k");
    dry.caller.dry_run = true;
    assert!(!may_join(&dry));
}
