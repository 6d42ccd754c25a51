//! Load whose every outcome is recorded: what was acknowledged must be there, what was never sent must not.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Client, check, eventually, time::pace};

/// The path of a definition.
pub(crate) fn definition(key: &str) -> String {
    format!("/api/v1/config_definition/{key}")
}

/// Whether the nodes of a run with faults answer reads by the lease of the leader.
pub(crate) fn lease_reads() -> bool {
    true
}

/// Bytes that are added to a record of a run with faults, so that it is as large as records are.
pub(crate) fn padding(is_large: bool) -> usize {
    if is_large { 300_000 } else { 200 }
}

/// The path of a config.
pub(crate) fn config(definition: &str, key: &str) -> String {
    format!("/api/v1/config_definition/{definition}/config/{key}")
}

/// Makes a definition without a schema; safe to repeat.
pub(crate) async fn define(client: &Client, key: &str) {
    let body = json!({"config_definition_key": key});
    let answer = client
        .post("/api/v1/config_definition/", &body)
        .header("idempotency-key", &format!("define-{key}"))
        .insist()
        .await;
    answer.expect(201);
}

static SETS: AtomicU64 = AtomicU64::new(0);

/// Sets a config whether it exists or not, exactly once: an abandoned request that arrives late is recognised by its
/// idempotency key.
pub(crate) async fn set(client: &Client, definition: &str, key: &str, data: &Value) {
    let id = SETS.fetch_add(1, Ordering::SeqCst);
    let put = client.put(&config(definition, key), &json!({"data": data}));
    let update = put.clone().header("idempotency-key", &format!("update-{id}"));
    let answer = update.insist().await;
    if answer.status != 404 {
        answer.expect(200);
        return;
    }
    let create = put.header("if-none-match", "*").header("idempotency-key", &format!("create-{id}"));
    create.insist().await.expect(201);
}

/// Creates the configs `k0`, `k1`, … of a definition, many at once, on all nodes.
pub(crate) async fn fill(clients: &[Client], definition: &str, count: usize, data: fn(usize) -> Value) {
    const AT_ONCE: usize = 48;
    let writer = async |first: usize| {
        for n in (first..count).step_by(AT_ONCE) {
            let client = &clients[n % clients.len()];
            let put = client.put(&config(definition, &format!("k{n}")), &json!({"data": data(n)}));
            let put = put.header("if-none-match", "*").header("idempotency-key", &format!("fill-{n}"));
            put.insist().await.expect(201);
        }
    };
    futures::future::join_all((0..AT_ONCE).map(writer)).await;
}

/// All configs of a definition as a node shows them: key → data.
pub(crate) async fn everything(client: &Client, key: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for page in 1.. {
        let page = page.to_string();
        let query =
            [("sort_by", "config_key"), ("sort_order", "asc"), ("limit", "1000"), ("page", page.as_str())];
        let path = format!("/api/v1/config_definition/{key}/config/");
        let answer = client.get(&path).query(&query).insist().await.expect(200);
        let results = answer.data()["results"].as_array().expect("`results` is a list");
        if results.is_empty() {
            break;
        }
        for record in results {
            let key = record["config_key"].as_str().expect("a key is a string").to_owned();
            all.insert(key, record["data"].clone());
        }
    }
    all
}

#[derive(Debug, Default)]
struct Book {
    sent: BTreeMap<String, Value>,
    acknowledged: BTreeMap<String, Value>,
}

/// Writers that create configs of one definition on all nodes until they are stopped.
#[derive(Debug)]
pub(crate) struct Load {
    definition: String,
    stop: Arc<AtomicBool>,
    book: Arc<Mutex<Book>>,
    cuts: Arc<AtomicU64>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Two writers for each client.
    pub(crate) async fn start(clients: &[Client], key: &str) -> Self {
        define(&clients[0], key).await;
        let stop = Arc::new(AtomicBool::new(false));
        let book = Arc::new(Mutex::new(Book::default()));
        let cuts = Arc::new(AtomicU64::new(0));
        let writer = |place: usize| {
            let client = clients[place % clients.len()].clone();
            let (stop, book, key) = (Arc::clone(&stop), Arc::clone(&book), key.to_owned());
            let cuts = Arc::clone(&cuts);
            tokio::spawn(async move {
                for turn in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    write(&client, &key, &format!("w{place}-{turn:06}"), &book, &cuts).await;
                }
            })
        };
        let writers = (0..clients.len() * 2).map(writer).collect();
        Self { definition: key.to_owned(), stop, book, cuts, writers }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.book.lock().expect("no holder panics").acknowledged.len()
    }

    /// Waits until `more` further writes are acknowledged.
    pub(crate) async fn grows_by(&self, more: usize) {
        let goal = self.acknowledged() + more;
        eventually(&format!("{more} more writes are acknowledged"), async || {
            let now = self.acknowledged();
            check(now >= goal, || format!("{now} of {goal}"))
        })
        .await;
    }

    /// From here to [`Self::cut_ends`] the power is being cut: what is in flight in between proves nothing. An
    /// `fdatasync` at the instant of a cut may succeed although its data is lost.
    pub(crate) fn cut_begins(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }

    /// All nodes whose power was cut are dead.
    pub(crate) fn cut_ends(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }

    /// Stops the writers and waits for them.
    pub(crate) async fn stop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for writer in self.writers.drain(..) {
            writer.await.expect("a writer does not panic");
        }
    }

    /// Asserts on a node that everything acknowledged is there as it was written, and nothing that was not sent.
    pub(crate) async fn is_kept_by(&self, client: &Client) {
        let (lost, strange) = self.differences_on(client).await;
        assert!(lost.is_empty(), "{} acknowledged writes are lost: {lost:?}", lost.len());
        assert!(strange.is_empty(), "nobody sent {strange:?}");
    }

    /// The keys that a node lost, and those that it has and nobody sent.
    pub(crate) async fn differences_on(&self, client: &Client) -> (Vec<String>, Vec<String>) {
        let present = everything(client, &self.definition).await;
        let book = self.book.lock().expect("no holder panics");
        let missing = |one: &BTreeMap<String, Value>, other: &BTreeMap<String, Value>| {
            let differ = one.iter().filter(|(key, data)| other.get(*key) != Some(*data));
            differ.map(|(key, _)| key.clone()).collect()
        };
        (missing(&book.acknowledged, &present), missing(&present, &book.sent))
    }
}

async fn write(client: &Client, definition: &str, key: &str, book: &Mutex<Book>, cuts: &AtomicU64) {
    let cuts_before = cuts.load(Ordering::SeqCst);
    let data = json!({"value": key, "padding": "x".repeat(100)});
    book.lock().expect("no holder panics").sent.insert(key.to_owned(), data.clone());
    let path = format!("/api/v1/config_definition/{definition}/config/");
    let answer = client.post(&path, &json!({"config_key": key, "data": data})).attempt().await;
    match answer {
        Ok(answer) if answer.status == 201 => {
            // Odd: a cut is being made.
            if cuts_before.is_multiple_of(2) && cuts.load(Ordering::SeqCst) == cuts_before {
                book.lock().expect("no holder panics").acknowledged.insert(key.to_owned(), data);
            }
        }
        Ok(answer) if matches!(answer.status, 429 | 503 | 504) => pause().await,
        // Created once and sent once: any other answer is wrong. The writer panics, and `stop` reports it.
        Ok(answer) => panic!("{answer:?}"),
        Err(_) => pause().await,
    }
}

/// A dead node refuses at once; without a pause its writers would only use up the processor.
async fn pause() {
    pace(super::PAUSE).await;
}
