//! Work in the name of access keys, which end during the run: they are revoked, rotated, expired and narrowed while their
//! owners go on, and some may not do much.
//!
//! A worker does most of its operations in the name of a key, and goes on with one for a while after its end. Who ended
//! a key notes when that was acknowledged. From then on no write in its name may be accepted by any node, which is
//! checked twice: by the clients' answers, and by the authors in the service's own history.
//!
//! **Invariant:** an operation has one credential, however often it is sent: idempotency keys belong to a credential.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};

use super::{
    history::{End, History, Operation},
    workload::Shared,
};
use crate::harness::{Answer, Client, time::pace};

const KEYS: &str = "/api/v1/api_key/";
/// Keys that are good at a time.
const GOOD: usize = 5;
/// Keys that have ended and are used on.
const ENDED: usize = 4;

/// A text of an access key.
#[derive(Debug, Clone)]
pub(crate) struct Credential {
    id: String,
    /// Which text of the key it is, counted by rotations.
    generation: u64,
    text: String,
}

impl Credential {
    /// What operations in its name are recorded under.
    pub(crate) fn name(&self) -> String {
        name(&self.id, self.generation)
    }

    /// A client with this credential, on the connections of another.
    pub(crate) fn on(&self, mut node: Client) -> Client {
        node.key.clone_from(&self.text);
        node
    }
}

fn name(id: &str, generation: u64) -> String {
    format!("{id}/{generation}")
}

#[derive(Debug, Default)]
struct Pool {
    good: Vec<Credential>,
    /// The newest last.
    ended: Vec<Credential>,
}

/// The keys of a run.
#[derive(Debug, Default)]
pub(crate) struct StoredKeys {
    pool: Mutex<Pool>,
    /// What was done to keys, by what it was.
    done: Mutex<BTreeMap<&'static str, u64>>,
    made: AtomicU64,
}

impl StoredKeys {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("no client panics")
    }

    /// In whose name an operation is made; none: the root key's.
    pub(crate) fn draw(&self, rng: &mut fastrand::Rng) -> Option<Credential> {
        let pool = self.pool();
        let from = if rng.u8(..7) < 5 { &pool.good } else { &pool.ended };
        rng.choice(from).cloned()
    }

    fn count(&self, what: &'static str) {
        *self.done.lock().expect("no client panics").entry(what).or_default() += 1;
    }

    /// For the summary: what was done to keys, and what became of the writes in their names.
    pub(crate) fn summary(&self, history: &History) -> Value {
        let (operations, ends) = (history.operations(), history.ends());
        let written = |of: &dyn Fn(&Operation) -> bool| {
            operations.iter().filter(|o| o.is_write() && o.by.is_some() && of(o)).count()
        };
        let is_late = |o: &Operation| {
            let end = o.by.as_ref().and_then(|by| ends.get(by));
            end.is_some_and(|end| o.call >= end.at)
        };
        json!({
            "made": self.made.load(Ordering::Relaxed),
            "done": *self.done.lock().expect("no client panics"),
            "acknowledged_writes": written(&Operation::is_done),
            "tried_after_the_end": written(&is_late),
            "refused_by_quota": written(&|o| matches!(o.status, 429 | 507)),
        })
    }

    /// Moves a text to those that have ended.
    fn retire(&self, id: &str, generation: u64) {
        let mut pool = self.pool();
        if let Some(place) = pool.good.iter().position(|key| key.id == id && key.generation == generation) {
            let ended = pool.good.remove(place);
            pool.ended.push(ended);
        }
        while pool.ended.len() > ENDED {
            pool.ended.remove(0);
        }
    }
}

/// Who makes and ends the keys, until the run stops.
pub(crate) struct KeyAdmin<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) nodes: Vec<Client>,
    pub(crate) rng: fastrand::Rng,
}

impl KeyAdmin<'_> {
    pub(crate) async fn run(mut self) {
        while !self.is_over() {
            let good = self.keys().pool().good.clone();
            match self.rng.choice(&good).cloned() {
                Some(key) if good.len() >= GOOD => self.change(&key).await,
                _ => self.create().await,
            }
            pace(Duration::from_millis(self.rng.u64(100..1200))).await;
        }
    }

    fn keys(&self) -> &StoredKeys {
        &self.shared.stored_keys
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Sends a request to one node after another until the answer is one of these; none when the run ends before.
    async fn insist(
        &mut self,
        (method, path): (Method, &str),
        body: &Value,
        wanted: &[u16],
    ) -> Option<Answer> {
        while !self.is_over() {
            let place = self.rng.usize(..self.nodes.len());
            let call = self.nodes[place].call(method.clone(), path);
            let call = if body.is_null() { call } else { call.json(body) };
            match call.attempt().await {
                Ok(answer) if wanted.contains(&answer.status) => return Some(answer),
                // Busy, without a leader, unknown; 409 until the cluster has risen to the level that has keys.
                Ok(answer) if matches!(answer.status, 409 | 429 | 503 | 504 | 507) => {}
                Ok(answer) => {
                    self.shared.history.contradict(format!("a request about access keys: {answer:?}"));
                    return None;
                }
                Err(_) => {}
            }
            pace(Duration::from_millis(100)).await;
        }
        None
    }

    async fn create(&mut self) {
        let grants =
            json!([{"verbs": ["read", "reveal", "write", "define", "delete"], "definitions": ["*"]}]);
        let body = json!({"name": "chaos", "grants": grants});
        let Some(answer) = self.insist((Method::POST, KEYS), &body, &[201]).await else { return };
        let (id, text) = texts(&answer);
        self.keys().made.fetch_add(1, Ordering::Relaxed);
        self.keys().pool().good.push(Credential { id, generation: 0, text });
    }

    /// Does something to a key that is good.
    async fn change(&mut self, key: &Credential) {
        let patch = |member: &str, value: Value| json!({member: value});
        let read_only = json!([{"verbs": ["read"], "definitions": ["*"]}]);
        match self.rng.u8(..12) {
            0..4 => self.end("revoked", key, Method::DELETE, &Value::Null).await,
            4..7 => self.rotate(key, 0).await,
            7 => self.rotate(key, 600).await,
            // A time that is past by every clock, also by one that is wrong.
            8 => {
                let past = patch("expires_at", json!("2001-01-01T00:00:00Z"));
                self.end("expired", key, Method::PATCH, &past).await;
            }
            9 => self.end("narrowed", key, Method::PATCH, &patch("grants", read_only)).await,
            more => {
                let quota = if more == 10 { json!({"writes_per_second": 2}) } else { json!({"records": 1}) };
                let path = format!("{KEYS}{}", key.id);
                let limited = self.insist((Method::PATCH, &path), &patch("quota", quota), &[200]).await;
                if limited.is_some() {
                    self.keys().count("limited");
                }
            }
        }
    }

    /// Ends the right of a key to write, whatever text it is used with.
    async fn end(&mut self, what: &'static str, key: &Credential, method: Method, body: &Value) {
        let path = format!("{KEYS}{}", key.id);
        // An unknown outcome is asked for again: 404 says that it was revoked.
        let wanted: &[u16] = if method == Method::DELETE { &[200, 404] } else { &[200] };
        if self.insist((method, &path), body, wanted).await.is_none() {
            return;
        }
        let at = self.shared.history.now();
        // The answer has the revision of the state of the node that gave it, which may not have applied the end. A
        // linearizable read is of a state that has.
        let read = self.insist((Method::GET, KEYS), &Value::Null, &[200]).await;
        let revision = read.map(|read| read.revision());
        for generation in 0..=key.generation {
            self.shared.history.record_end(&name(&key.id, generation), End { at, revision });
        }
        self.shared.history.record_fault(&format!("key {} {what} before revision {revision:?}", key.id));
        self.keys().retire(&key.id, key.generation);
        self.keys().count(what);
    }

    /// Gives a key another text; without grace the others end with it.
    async fn rotate(&mut self, key: &Credential, grace: u64) {
        let path = format!("{KEYS}{}/rotate", key.id);
        let Some(answer) = self.insist((Method::POST, &path), &json!({"grace_s": grace}), &[200]).await
        else {
            return;
        };
        let (id, text) = texts(&answer);
        let at = self.shared.history.now();
        if grace == 0 {
            for generation in 0..=key.generation {
                // Others of its texts go on: the revision says nothing of one of them.
                self.shared.history.record_end(&name(&id, generation), End { at, revision: None });
            }
            self.shared.history.record_fault(&format!("key {id} rotated"));
        }
        self.keys().retire(&id, key.generation);
        self.keys().count(if grace == 0 { "rotated" } else { "rotated with grace" });
        self.keys().pool().good.push(Credential { id, generation: key.generation + 1, text });
    }
}

/// The id and the text of a key that an answer shows.
fn texts(answer: &Answer) -> (String, String) {
    let text = |name: &str| answer.data()[name].as_str().expect("a text").to_owned();
    (text("key_id"), text("api_key"))
}

/// Writes that were accepted although they began after the end of their key was acknowledged.
pub(crate) fn accepted_after_the_end(operations: &[Operation], ends: &BTreeMap<String, End>) -> Vec<String> {
    let is_late = |operation: &&Operation| {
        let end = operation.by.as_ref().and_then(|by| ends.get(by));
        operation.is_write() && operation.is_done() && end.is_some_and(|end| operation.call >= end.at)
    };
    let late = operations.iter().filter(is_late);
    late.map(|operation| format!("accepted after the end of its key: {operation:?}")).collect()
}

/// Changes in a node's history that a key has made after the revision at which its end was acknowledged.
pub(crate) fn changes_after_the_end(
    newest: &BTreeMap<String, u64>,
    ends: &BTreeMap<String, End>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (name, end) in ends {
        let Some((id, revision)) = name.split('/').next().zip(end.revision) else { continue };
        if let Some(last) = newest.get(id).filter(|last| **last > revision) {
            found.push(format!("key {id} ended at revision {revision}, and a change of {last} is its"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::history::Kind;

    fn ends(revision: Option<u64>) -> BTreeMap<String, End> {
        BTreeMap::from([("key/0".to_owned(), End { at: 10, revision })])
    }

    #[test]
    fn a_write_that_was_accepted_after_the_end_of_its_key_is_found() {
        let write = |by: &str, call, status| Operation {
            by: Some(by.into()),
            ret: call + 2,
            status,
            ..Operation::new(1, "d/k".into(), Kind::Put, call)
        };
        for (operation, wrong) in [
            (write("key/0", 10, 200), 1),
            // It was under way.
            (write("key/0", 9, 200), 0),
            (write("key/0", 11, 401), 0),
            // Another text of the key.
            (write("key/1", 11, 200), 0),
            (Operation { op: Kind::Get, ..write("key/0", 11, 200) }, 0),
            (Operation { ret: 0, ..write("key/0", 11, 0) }, 0),
        ] {
            let found = accepted_after_the_end(std::slice::from_ref(&operation), &ends(None));
            assert_eq!(found.len(), wrong, "{operation:?}");
        }
    }

    #[test]
    fn a_change_in_the_history_after_the_end_of_its_key_is_found() {
        let newest = BTreeMap::from([("key".to_owned(), 21_u64), ("other".to_owned(), 99)]);
        for (revision, wrong) in [(Some(20), 1), (Some(21), 0), (None, 0)] {
            assert_eq!(changes_after_the_end(&newest, &ends(revision)).len(), wrong);
        }
    }
}
