//! What callers with a valid key whose writes are expensive do to the cluster.
//!
//! Each attack runs at least three times at once, on all nodes, beside the good client. An attacker gets an honest answer: the
//! one that the write deserves, 413 or 422 where it costs too much, 429 or 503 where there is no time for it. A write that
//! is slow to validate was not proposed, so it may not be answered 504.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{GoodClient, good_client::Report};
use crate::harness::{
    Answer, Client, Cluster, Options,
    load::{config, define, definition, set},
    time::lasts,
};

/// Words that one check of [`doubling`] allows just about: 18 million evaluations.
pub(super) const MANY_WORDS: usize = 4400;
/// How long an attack lasts.
const ATTACK_TIME: Duration = Duration::from_secs(4);

/// A schema that evaluates 4,000 subschemas for each word of `n`: ten levels, each of which applies the next twice.
fn doubling() -> Value {
    let mut schema =
        json!({"type": "object", "properties": {"n": {"items": {"$ref": "#/$defs/d0"}}}, "$defs": {}});
    for level in 0..10 {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        schema["$defs"][format!("d{level}")] = json!({"allOf": [next, next]});
    }
    schema["$defs"]["d10"] = json!({"type": "string", "pattern": "^[a-z]+([0-9]|[A-Z])*$"});
    schema
}

pub(super) fn words(count: usize) -> Value {
    json!({"n": vec!["ab1"; count]})
}

pub(super) async fn define_doubling(client: &Client, key: &str) {
    let body = json!({"config_definition_key": key, "json_schema": doubling(), "indexes": []});
    let made = client.post("/api/v1/config_definition/", &body).header("idempotency-key", key);
    made.insist().await.expect(201);
}

/// Attackers, one for each client, that ask again and again until they are stopped.
struct Attack {
    stop: Arc<AtomicBool>,
    attackers: Vec<JoinHandle<Vec<Answer>>>,
}

impl Attack {
    fn start<F>(clients: &[Client], request: impl Fn(Client, usize) -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = Answer> + Send,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = |(place, client): (usize, &Client)| {
            let (client, request, stop) = (client.clone(), request.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut answers = Vec::new();
                for turn in 0.. {
                    answers.push(request(client.clone(), 100 * turn + place).await);
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
                answers
            })
        };
        let attackers = clients.iter().enumerate().map(attacker).collect();
        Self { stop, attackers }
    }

    /// Lets it go on for a while, and returns all answers.
    async fn run(self, what: &str) -> Vec<Answer> {
        let begin = Instant::now();
        lasts(ATTACK_TIME).await;
        self.stop.store(true, Ordering::SeqCst);
        let answers = join_all(self.attackers).await.into_iter().flat_map(|all| all.expect("no panic"));
        let answers: Vec<Answer> = answers.collect();
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        println!("{what}: {:.1} s, answers {statuses:?}", begin.elapsed().as_secs_f64());
        assert!(!answers.is_empty());
        answers
    }
}

/// Sends it once; a lost connection is no honest answer.
async fn ask(call: crate::harness::Call) -> Answer {
    call.attempt().await.expect("an attacker gets an answer, too")
}

#[track_caller]
fn are_honest(answers: &[Answer], allowed: &[u16]) {
    for answer in answers {
        assert!(allowed.contains(&answer.status), "{answer:?}");
    }
}

/// The same for writes that may have been proposed late: some may be 504, as far as the good client's writes explain it.
#[track_caller]
fn are_honest_beside(good: &Report, answers: Vec<Answer>, allowed: &[u16]) {
    good.explains_unknown(answers.iter().map(|answer| answer.status));
    let known: Vec<Answer> = answers.into_iter().filter(|answer| answer.status != 504).collect();
    are_honest(&known, allowed);
}

/// A short time for writes, so that a test need not wait long for those that exceed it.
fn impatient() -> Options {
    Options::default().with("CONCORD_WRITE_TIMEOUT_MS", "3000")
}

#[tokio::test]
async fn a_pattern_of_many_classes_is_refused_at_once() {
    let cluster = Cluster::start("hostile-pattern").await;
    let clients = cluster.clients();
    let good = GoodClient::start(&cluster).await;
    let attack = Attack::start(&clients, |client, turn| async move {
        let schema = json!({"type": "object", "properties": {"a": {"pattern": r"\s".repeat(12_000)}}});
        let body = json!({"config_definition_key": format!("p{turn}"), "json_schema": schema, "indexes": []});
        ask(client.post("/api/v1/config_definition/", &body)).await
    });
    let answers = attack.run("a pattern of 12,000 classes").await;
    good.stop(&cluster, "a pattern of 12,000 classes").await.is_unhurt().memory_within(512);
    are_honest(&answers, &[422]);
    assert!(answers.iter().all(|answer| answer.text.contains("character classes")), "{:?}", answers[0]);
}

#[tokio::test]
async fn dry_runs_of_expensive_batches_cost_the_leader_nothing_but_their_share() {
    let cluster = Cluster::start_with("hostile-dry-run", &impatient()).await;
    let clients = cluster.clients();
    define_doubling(&clients[0], "dear").await;
    let data = words(2500);
    let operation = |n: usize| json!({"op": "create_config", "config_definition_key": "dear", "config_key": format!("k{n}"), "data": data});
    let body = Arc::new(json!({"operations": (0..300).map(operation).collect::<Vec<_>>()}).to_string());
    let good = GoodClient::start(&cluster).await;
    let attack = Attack::start(&clients, move |client, _| {
        let body = Arc::clone(&body);
        async move {
            let call = client.call(http::Method::POST, "/api/v1/batch").query(&[("dry_run", "true")]);
            ask(call.text("application/json", &body)).await
        }
    });
    let answers = attack.run("dry runs of expensive batches").await;
    good.stop(&cluster, "dry runs of expensive batches").await.is_unhurt().memory_within(512);
    are_honest(&answers, &[413, 422, 429, 503]);
}

#[tokio::test]
async fn a_batch_deletes_no_more_than_the_history_can_hold_in_one_piece() {
    let cluster = Cluster::start("hostile-delete").await;
    let client = cluster.client(1);
    define(&client, "d").await;
    let text = "x".repeat(1_000_000);
    for number in 0..34 {
        set(&client, "d", &format!("k{number}"), &json!({"text": text})).await;
    }
    let delete = async |places: std::ops::Range<u64>| {
        let operation =
            |n| json!({"op": "delete_config", "config_definition_key": "d", "config_key": format!("k{n}")});
        let body = json!({"operations": places.map(operation).collect::<Vec<_>>()});
        client.post("/api/v1/batch", &body).await
    };
    let refused = delete(0..34).await.refused(413, "payload_too_large");
    assert!(refused.text.contains("divide it"), "{refused:?}");
    delete(0..17).await.expect(200);
    delete(17..34).await.expect(200);
    cluster.equal_digests().await;
}

#[tokio::test]
async fn expensive_writes_of_one_config_run_beside_the_others() {
    let cluster = Cluster::start_with("hostile-put", &impatient()).await;
    let clients = cluster.clients();
    define_doubling(&clients[0], "dear").await;
    set(&clients[0], "dear", "k", &words(1)).await;
    let good = GoodClient::start(&cluster).await;
    // More at once than there are threads that serve requests.
    let attack = Attack::start(&vec![clients.clone(); 4].concat(), |client, turn| async move {
        let path = config("dear", "k");
        match turn / 3 % 2 {
            0 => ask(client.put(&path, &json!({"data": words(MANY_WORDS)}))).await,
            _ => {
                let patch = words(MANY_WORDS).to_string();
                let call = client.call(http::Method::PATCH, &path);
                ask(call.text("application/merge-patch+json", &patch)).await
            }
        }
    });
    let answers = attack.run("expensive writes").await;
    let good = good.stop(&cluster, "expensive writes").await;
    good.is_unhurt().memory_within(512);
    are_honest_beside(&good, answers, &[200, 429, 503]);
}

#[tokio::test]
async fn a_write_that_is_not_prepared_in_time_is_certainly_not_applied_on_any_node() {
    let cluster = Cluster::start_with("hostile-late", &impatient()).await;
    let clients = cluster.clients();
    define_doubling(&clients[0], "dear").await;
    let body = |part: usize| {
        let operation = |n: usize| {
            json!({"op": "create_config", "config_definition_key": "dear", "config_key": format!("k{part}-{n}"),
                "data": words(1200)})
        };
        json!({"operations": (0..8).map(operation).collect::<Vec<_>>()})
    };
    // More at once than can be prepared in that time.
    let good = GoodClient::start(&cluster).await;
    let calls = (0..36).map(async |part| {
        let answer = ask(clients[part % 3].post("/api/v1/batch", &body(part))).await;
        (answer, Instant::now())
    });
    let (unknown, answers): (Vec<_>, Vec<_>) =
        join_all(calls).await.into_iter().partition(|(answer, _)| answer.status == 504);
    let unknown: Vec<Instant> = unknown.into_iter().map(|(_, at)| at).collect();
    let answers: Vec<Answer> = answers.into_iter().map(|(answer, _)| answer).collect();
    let late = answers.iter().filter(|answer| answer.status == 503).count();
    println!("late: {late}, unknown: {}, known: {}", unknown.len(), answers.len());
    // Nothing is left behind: the same record can be written at once.
    set(&clients[1], "dear", "k0-0", &words(1)).await;
    let good = good.stop(&cluster, "writes that are late").await;
    good.is_unhurt().memory_within(512);
    assert!(late > 0, "{answers:?}");
    good.explains_unknown_at(&unknown);
    are_honest(&answers, &[200, 429, 503]);
}

#[tokio::test]
async fn alternating_indexes_of_large_data_delay_nobody() {
    let cluster = Cluster::start_with("hostile-indexes", &impatient()).await;
    let clients = cluster.clients();
    define(&clients[0], "wide").await;
    let text = "x".repeat(40_000);
    let operation = |n: usize| json!({"op": "create_config", "config_definition_key": "wide", "config_key": format!("k{n}"), "data": {"a": n, "b": n, "text": text}});
    for part in 0..40 {
        let body = json!({"operations": (10 * part..10 * (part + 1)).map(operation).collect::<Vec<_>>()});
        let fill = clients[0].post("/api/v1/batch", &body).header("idempotency-key", &format!("fill{part}"));
        fill.insist().await.expect(200);
    }
    let good = GoodClient::start(&cluster).await;
    let attack = Attack::start(&clients, |client, _| async move {
        let change = |n: usize| json!({"op": "set_indexes", "config_definition_key": "wide", "indexes": [if n.is_multiple_of(2) { "a" } else { "b" }]});
        let body = json!({"operations": (0..10).map(change).collect::<Vec<_>>()});
        ask(client.post("/api/v1/batch", &body)).await
    });
    let answers = attack.run("alternating indexes").await;
    let good = good.stop(&cluster, "alternating indexes").await;
    good.is_unhurt().memory_within(1024);
    are_honest_beside(&good, answers, &[200, 409, 429, 503]);
    // Whatever was decided last is built in the end, on every node the same.
    cluster.equal_digests().await;
    clients[0].get(&definition("wide")).insist().await.expect(200);
}

#[tokio::test]
async fn a_write_that_waits_for_its_record_does_not_delay_those_sent_with_it() {
    let cluster = Cluster::start("hostile-shared-call").await;
    let [follower, _] = cluster.followers().await;
    let (leader, follower) = (cluster.client(cluster.leader().await), cluster.client(follower));
    define_doubling(&leader, "dear").await;
    set(&leader, "dear", "held", &words(1)).await;
    // Patches of one record follow one another: its lock is held until the last of them is decided.
    let patch = words(MANY_WORDS).to_string();
    let patches: Vec<_> = (0..6)
        .map(|_| {
            let call = leader.call(http::Method::PATCH, &config("dear", "held"));
            tokio::spawn(ask(call.text("application/merge-patch+json", &patch)))
        })
        .collect();
    let put = |key: &str| ask(follower.put(&config("dear", key), &json!({"data": words(2)})));
    // Those of the held record and the others share calls, because they are asked for at once.
    let mut held = Vec::new();
    let mut others = Vec::new();
    for n in 0..200 {
        if n % 8 == 0 {
            held.push(tokio::spawn(put("held")));
        } else {
            let call = follower.put(&config("dear", &format!("k{n}")), &json!({"data": words(2)}));
            others.push(tokio::spawn(ask(call.header("if-none-match", "*"))));
        }
    }
    let begin = Instant::now();
    for other in others {
        other.await.expect("no panic").expect(201);
    }
    let took = begin.elapsed();
    let is_held = patches.iter().any(|patch| !patch.is_finished());
    println!("the others were answered after {took:.1?}, while the record was held: {is_held}");
    for answer in join_all(patches.into_iter().chain(held)).await {
        are_honest(&[answer.expect("no panic")], &[200, 503]);
    }
    assert!(is_held, "the writes of other records waited {took:?} for those of the held one");
}
