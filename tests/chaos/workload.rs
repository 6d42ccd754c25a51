//! What the clients do: at least ten at once, each on all nodes in turn, on few keys, so that they meet.
//!
//! A key takes at most [`OPERATIONS_PER_KEY`] operations; then its slot goes on under a new key. The checkers'
//! search grows with the operations of one key.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::history::{History, Kind, Operation, Sweep};
use crate::harness::{Answer, Call, Client};

/// The search of the per-key checker stays fast below this.
const OPERATIONS_PER_KEY: u64 = 400;
/// Keys that are worked on at once, per definition.
const SLOTS: usize = 12;
/// Definitions whose configs are worked on; these are never deleted.
pub(crate) const DEFINITIONS: [&str; 3] = ["chaos.a", "chaos.b", "chaos.c"];
/// Values of the indexed member `group`.
const GROUPS: u64 = 4;

/// A slot of the key table: the key's generation, its operations so far and the newest revision that was seen.
#[derive(Debug, Default)]
struct Slot {
    operations: AtomicU64,
    seen: AtomicU64,
}

/// What all clients share.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) history: History,
    slots: Vec<Vec<Slot>>,
    pub(crate) stop: AtomicBool,
    /// Clients make no pauses: a fault is to come, and it shall meet writes in flight.
    pub(crate) hurry: AtomicBool,
    values: AtomicU64,
    /// Acknowledged writes: (when, nanoseconds of the history), for the availability windows.
    pub(crate) acknowledged: Mutex<Vec<u64>>,
}

impl Board {
    pub(crate) fn new() -> Self {
        let slots = || (0..SLOTS).map(|_| Slot::default()).collect();
        Self {
            history: History::new(),
            slots: DEFINITIONS.iter().map(|_| slots()).collect(),
            stop: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            values: AtomicU64::new(0),
            acknowledged: Mutex::default(),
        }
    }

    /// Every key that was used.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.history.operations().into_iter().map(|o| o.key).collect();
        keys.sort();
        keys.dedup();
        keys
    }
}

/// One client: an endless loop of operations until the board says stop.
pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) board: Arc<Board>,
    pub(crate) nodes: Vec<Client>,
    pub(crate) dice: fastrand::Rng,
}

impl Worker {
    pub(crate) async fn run(mut self) {
        while !self.board.stop.load(Ordering::Relaxed) {
            self.step().await;
            // About 25 operations a second for each client: the machine is shared with the nodes.
            let pause = Duration::from_millis(self.dice.u64(5..50));
            if !self.board.hurry.load(Ordering::Relaxed) {
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn step(&mut self) {
        let definition = self.dice.usize(..DEFINITIONS.len());
        match self.dice.u8(..100) {
            0..38 => self.on_key(definition, Kind::Get, false).await,
            38..52 => self.on_key(definition, Kind::Create, false).await,
            52..70 => self.on_key(definition, Kind::Put, false).await,
            70..82 => self.on_key(definition, Kind::Put, true).await,
            82..88 => self.on_key(definition, Kind::Delete, false).await,
            88..92 => self.sweep(definition, false).await,
            92..97 => self.sweep(definition, true).await,
            97..99 => self.reindex(definition).await,
            _ => self.coming_and_going().await,
        }
    }

    fn node(&mut self) -> Client {
        let turn = self.dice.usize(..self.nodes.len());
        self.nodes[turn].clone()
    }

    /// One operation on one key; a write may be sent again with its key when its outcome is unknown.
    async fn on_key(&mut self, definition: usize, op: Kind, guarded: bool) {
        let board = Arc::clone(&self.board);
        let place = self.dice.usize(..SLOTS);
        let slot = &board.slots[definition][place];
        let generation = slot.operations.fetch_add(1, Ordering::Relaxed) / OPERATIONS_PER_KEY;
        let key = format!("k{place}-{generation}");
        let expected = guarded.then(|| slot.seen.load(Ordering::Relaxed)).filter(|seen| *seen > 0);
        let value = matches!(op, Kind::Create | Kind::Put)
            .then(|| format!("v{}", board.values.fetch_add(1, Ordering::Relaxed)));
        let stamp =
            (op != Kind::Get && self.dice.u8(..100) < 40).then(|| format!("{:032x}", self.dice.u128(..)));
        let mut operation = Operation {
            client: self.id,
            key: format!("{}/{key}", DEFINITIONS[definition]),
            op,
            value,
            expected,
            call: board.history.now(),
            ret: 0,
            status: 0,
            result: None,
            revision: None,
            state: None,
        };
        let first = self.send(definition, &key, &operation, stamp.as_deref()).await;
        let answer = match (first, &stamp) {
            // Sent again elsewhere: whatever the first try did, the answer is the one decision on both.
            (Err(_), Some(_)) => self.again(definition, &key, &operation, stamp.as_deref()).await,
            (Ok(answer), Some(_)) if self.dice.u8(..4) == 0 => {
                self.compare((definition, &key), &operation, stamp.as_deref(), &answer).await;
                Ok(answer)
            }
            (first, _) => first,
        };
        if let Ok(answer) = answer {
            complete(&mut operation, &answer, board.history.now());
            if let Some(revision) = operation.revision {
                slot.seen.store(revision, Ordering::Relaxed);
            }
            if op != Kind::Get && answer.status < 300 {
                board.acknowledged.lock().expect("no client panics").push(operation.ret);
            }
        }
        board.history.record(operation);
    }

    /// Sends it once to some node; `Err` is an unknown outcome.
    async fn send(
        &mut self,
        definition: usize,
        key: &str,
        operation: &Operation,
        stamp: Option<&str>,
    ) -> Result<Answer, String> {
        let node = self.node();
        let base = format!("/api/v1/config_definition/{}/config/", DEFINITIONS[definition]);
        let data = || data(operation.value.as_deref().expect("writes have a value"));
        let mut call: Call = match operation.op {
            Kind::Get => node.get(&format!("{base}{key}")),
            Kind::Create => node.post(&base, &json!({"config_key": key, "data": data()})),
            Kind::Put => node.put(&format!("{base}{key}"), &json!({"data": data()})),
            Kind::Delete => node.delete(&format!("{base}{key}")),
        };
        if let Some(expected) = operation.expected {
            call = call.header("if-match", &format!("\"{expected}\""));
        }
        if let Some(stamp) = stamp {
            call = call.header("idempotency-key", stamp);
        }
        let answer = call.attempt().await?;
        if answer.status == 504 { Err("504".into()) } else { Ok(answer) }
    }

    /// Up to three more tries of a stamped write. An answer that says *not applied* speaks of its own try only,
    /// so the outcome stays unknown.
    async fn again(
        &mut self,
        definition: usize,
        key: &str,
        operation: &Operation,
        stamp: Option<&str>,
    ) -> Result<Answer, String> {
        for _ in 0..3 {
            match self.send(definition, key, operation, stamp).await {
                Ok(answer) if !matches!(answer.status, 429 | 503 | 507) => return Ok(answer),
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(self.dice.u64(50..500))).await,
            }
        }
        Err("still unknown".into())
    }

    /// A decided, stamped write that is sent once more must be answered the same.
    async fn compare(
        &mut self,
        (definition, key): (usize, &str),
        operation: &Operation,
        stamp: Option<&str>,
        first: &Answer,
    ) {
        if matches!(first.status, 429 | 503 | 507) {
            return;
        }
        let Ok(second) = self.send(definition, key, operation, stamp).await else { return };
        let tag = |answer: &Answer| answer.headers.get("etag").cloned();
        let same = (first.status, tag(first)) == (second.status, tag(&second));
        if !same && !matches!(second.status, 429 | 503 | 507) {
            self.board
                .history
                .complain(format!("a repeated request got another answer: {first:?} {second:?}"));
        }
    }

    /// The whole of a definition, or one group of it by index.
    async fn sweep(&mut self, definition: usize, grouped: bool) {
        let node = self.node();
        let group = grouped.then(|| format!("g{}", self.dice.u64(..GROUPS)));
        let path = format!("/api/v1/config_definition/{}/config/", DEFINITIONS[definition]);
        let mut call = node.get(&path).query(&[("limit", "1000")]);
        if let Some(group) = &group {
            call = call.query(&[("group", group)]);
        }
        let asked = self.board.history.now();
        let Ok(answer) = call.attempt().await else { return };
        if answer.status != 200 {
            return;
        }
        let found = records(&answer);
        if let Some(group) = &group
            && let Some(stray) = found.iter().find(|(_, value)| &group_of(value) != group)
        {
            self.board.history.complain(format!("the index finds {stray:?} in `{group}`"));
        }
        let sweep = Sweep {
            definition: DEFINITIONS[definition].into(),
            group,
            call: asked,
            ret: self.board.history.now(),
            state: answer.revision(),
            found,
        };
        self.board.history.sweep(sweep);
    }

    /// Other indexes for a definition, `group` always among them.
    async fn reindex(&mut self, definition: usize) {
        let node = self.node();
        let indexes = if self.dice.bool() { json!(["group"]) } else { json!(["value", "group", "n"]) };
        let path = format!("/api/v1/config_definition/{}", DEFINITIONS[definition]);
        // Whatever comes of it, the lists are checked all the same.
        drop(node.put(&path, &json!({"indexes": indexes})).attempt().await);
    }

    /// A definition that comes and goes beside the others, with a config.
    async fn coming_and_going(&mut self) {
        let node = self.node();
        let name = format!("passing.{}", self.dice.u8(..4));
        let path = format!("/api/v1/config_definition/{name}");
        if self.dice.bool() {
            drop(node.delete(&path).attempt().await);
            return;
        }
        let body = json!({"config_definition_key": name, "indexes": ["group"]});
        drop(node.post("/api/v1/config_definition/", &body).attempt().await);
        let body = json!({"config_key": "x", "data": {"group": "g", "padding": "x".repeat(2000)}});
        drop(node.post(&format!("{path}/config/"), &body).attempt().await);
    }
}

/// The data of a value; its group follows from it, so that a reader can tell where the index must find it.
fn data(value: &str) -> Value {
    json!({"value": value, "group": group_of(value), "n": value.len(), "padding": "p".repeat(200)})
}

pub(super) fn group_of(value: &str) -> String {
    let number: u64 = value.trim_start_matches('v').parse().unwrap_or(0);
    format!("g{}", number % GROUPS)
}

/// (key, value) of each record of a list.
fn records(answer: &Answer) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let results = answer.body["data"]["results"].as_array().cloned().unwrap_or_default();
    results.iter().map(|row| (text(&row["config_key"]), text(&row["data"]["value"]))).collect()
}

fn complete(operation: &mut Operation, answer: &Answer, now: u64) {
    let header = |name: &str| {
        let text = answer.headers.get(name)?.to_str().ok()?;
        text.trim_matches('"').parse::<u64>().ok()
    };
    operation.ret = now;
    operation.status = answer.status;
    operation.state = header("x-concord-revision");
    if answer.status < 300 {
        operation.revision = header("etag");
        if operation.op == Kind::Get {
            operation.result = answer.body["data"]["data"]["value"].as_str().map(str::to_owned);
        }
    }
}

/// Reads every key on a node, as operations of the history: what was acknowledged must be there.
pub(crate) async fn read_all(board: &Board, node: &Client, client: usize) {
    for key in board.keys() {
        let (definition, config) = key.split_once('/').expect("keys are def/cfg");
        let call = board.history.now();
        let answer =
            node.get(&format!("/api/v1/config_definition/{definition}/config/{config}")).insist().await;
        let mut operation = Operation {
            client,
            key: key.clone(),
            op: Kind::Get,
            value: None,
            expected: None,
            call,
            ret: 0,
            status: 0,
            result: None,
            revision: None,
            state: None,
        };
        complete(&mut operation, &answer, board.history.now());
        board.history.record(operation);
    }
}
