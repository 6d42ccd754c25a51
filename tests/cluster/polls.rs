//! Long polls, creates-or-replaces and lists of versions while leaders are killed: each change is written once, and
//! whoever polls, on whichever node answers, receives each once and in order.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use serde_json::json;

use crate::harness::{
    Client, Cluster,
    load::{config, define, definition},
    time::{lasts, pace},
};

const WRITERS: usize = 4;
const POLLERS: usize = 3;
const LEADERS_KILLED: usize = 3;

/// By revision: the config, and the number that it has from then on.
type Changes = BTreeMap<u64, (String, u64)>;

struct Run {
    clients: Vec<Client>,
    is_over: Cell<bool>,
    /// Clients that still write.
    writing: Cell<usize>,
    written: RefCell<Changes>,
}

impl Run {
    /// Writes a config of its own, with one number after another: by an upsert, or by a put that names its version
    /// among others.
    async fn write(&self, writer: usize) {
        let (key, mut version) = (format!("w{writer}"), None::<u64>);
        let path = config("d", &key);
        for number in 0.. {
            if self.is_over.get() {
                self.writing.set(self.writing.get() - 1);
                return;
            }
            let node = &self.clients[(writer + usize::try_from(number).unwrap()) % self.clients.len()];
            let put = node.put(&path, &json!({"data": {"number": number}}));
            let call = match version.filter(|_| number % 2 == 1) {
                Some(version) => {
                    let others = put.clone().header("if-match", &format!("\"1\", \"{}\"", version + 1));
                    others.insist().await.refused(412, "precondition_failed");
                    put.header("if-match", &format!("\"1\", \"{version}\", \"2\""))
                }
                None => put.query(&[("upsert", "true")]),
            };
            let answer = call.header("idempotency-key", &format!("{key}-{number}")).insist().await;
            assert_eq!(answer.status, if number == 0 { 201 } else { 200 }, "{answer:?}");
            let revision = answer.tag().trim_matches('"').parse().expect("a revision");
            version = Some(revision);
            let before = self.written.borrow_mut().insert(revision, (key.clone(), number));
            assert_eq!(before, None, "two writes have revision {revision}");
            pace(Duration::from_millis(10)).await;
        }
    }

    /// Polls one node after another, from a revision on, until it has received what was written last.
    async fn poll(&self, poller: usize, from: u64) -> Changes {
        let (mut from, mut place, mut received) = (from, poller, Changes::new());
        let mut last_answer = Instant::now();
        loop {
            assert!(last_answer.elapsed() < Duration::from_secs(120), "no poll was answered");
            let is_over = self.writing.get() == 0;
            let query = [("definition", "d"), ("from", &from.to_string()), ("wait", "3")];
            let answer =
                self.clients[place % self.clients.len()].get("/api/v1/changes").query(&query).attempt().await;
            let Some(answer) = answer.ok().filter(|answer| matches!(answer.status, 200 | 304)) else {
                // The node is gone, or knows no leader: another goes on where this one ended.
                place += 1;
                pace(Duration::from_millis(50)).await;
                continue;
            };
            last_answer = Instant::now();
            let next: u64 = answer.header("x-concord-next-from").parse().expect("a revision");
            assert!(next >= from, "a poll from {from} goes on from {next}");
            if answer.status == 200 {
                for event in answer.data()["events"].as_array().expect("events") {
                    let revision = event["revision"].as_u64().expect("a revision");
                    assert!((from..next).contains(&revision), "{revision} in a poll from {from} to {next}");
                    for change in event["changes"].as_array().expect("changes") {
                        let key = change["config_key"].as_str().expect("a key").to_owned();
                        let number = change["data"]["number"].as_u64().expect("a number");
                        let again = received.insert(revision, (key, number));
                        assert_eq!(again, None, "revision {revision} was received twice");
                    }
                }
            } else if is_over && self.written.borrow().keys().next_back().is_none_or(|last| *last < next) {
                return received;
            }
            from = next;
        }
    }
}

#[tokio::test]
async fn polls_upserts_and_lists_of_versions_go_on_over_the_death_of_leaders() {
    let mut cluster = Cluster::start("polls").await;
    define(&cluster.client(1), "d").await;
    let begin = cluster.client(1).get(&definition("d")).insist().await.expect(200).tag();
    let from: u64 = begin.trim_matches('"').parse::<u64>().expect("a revision") + 1;
    let run = Run {
        clients: cluster.clients(),
        is_over: Cell::new(false),
        writing: Cell::new(WRITERS),
        written: RefCell::default(),
    };
    let faults = async {
        for _ in 0..LEADERS_KILLED {
            lasts(Duration::from_millis(1500)).await;
            let leader = cluster.leader().await;
            cluster.node(leader).kill();
            lasts(Duration::from_millis(1500)).await;
            cluster.node(leader).start().await;
            cluster.ready().await;
        }
        lasts(Duration::from_millis(500)).await;
        run.is_over.set(true);
    };
    let writers = join_all((0..WRITERS).map(|writer| run.write(writer)));
    let pollers = join_all((0..POLLERS).map(|poller| run.poll(poller, from)));
    let (_, received) = join(join(faults, writers), pollers).await;
    let written = run.written.take();
    assert!(written.len() > 50, "{} writes", written.len());
    for changes in received {
        assert_eq!(changes, written);
    }
    cluster.equal_digests().await;
}
