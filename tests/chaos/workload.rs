//! What the clients do: at least ten run at once, each on all nodes, on few keys, so that they conflict.
//!
//! A key gets at most [`OPERATIONS_PER_KEY`] operations; then its slot gets a new key. The checkers' search grows with
//! the operations of one key.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    bank::{BANK, Bank},
    changes::Changes,
    expensive::Expensive,
    freezes::Freezes,
    history::{History, Kind, ListRead, Operation, PointInTimeRead},
    requests::{complete, record_of, request},
    rights::Limited,
    stored_keys::{Credential, StoredKeys},
};
use crate::harness::{
    Answer, Client,
    load::{config, definition, padding},
    time::pace,
};

/// The search of the per-key checker stays fast below this.
const OPERATIONS_PER_KEY: u64 = 400;
/// Keys that are worked on at once, per definition, at most.
pub(crate) const SLOTS: usize = 12;
/// Definitions whose configs are worked on; these are never deleted. The last one is never frozen.
pub(crate) const DEFINITIONS: [&str; 4] = ["chaos.a", "chaos.b", "chaos.c", "calm.d"];
/// The one whose schema forbids odd values at times.
const STRICT: usize = 1;
/// The definition of configs that have owners, of which none may have two.
pub(crate) const CLAIMS: &str = "chaos.claims";
/// Different owners.
const OWNERS: u64 = 6;
/// Different values of the indexed member `group`.
const GROUPS: u64 = 4;
/// One value of so many is odd: few enough that at times no config has one and the strict schema is accepted.
const ODD_EVERY: u64 = 16;
/// One value of so many is written with much padding.
const LARGE_EVERY: u64 = 256;

/// What a client can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    Get,
    Create,
    Upsert,
    Put,
    Patch,
    Delete,
    Rollback,
    Batch,
    Transaction,
    /// Moves money.
    Transfer,
    List,
    /// Lists what an index finds.
    Group,
    PointInTime,
    /// Reads the changes of a config.
    Changes,
    Reindex,
    Schema,
    /// Creates a definition that is not checked, or deletes it.
    Passing,
    Undelete,
    /// A write of a config whose owner may have no other.
    Claim,
    /// In the name of a key that may not do it.
    Limited,
    Expensive,
}

/// What the clients of a run do.
#[derive(Debug, Clone)]
pub(crate) struct Mix {
    /// How often each is done, compared with the others.
    pub(crate) actions: Vec<(Action, u32)>,
    /// Definitions whose configs are worked on: two or more of [`DEFINITIONS`].
    pub(crate) definitions: usize,
    /// Keys of each that are worked on at once.
    pub(crate) slots: usize,
    /// The pause between two operations of a client, in milliseconds.
    pub(crate) pause_ms: (u64, u64),
    /// Of a hundred operations: those in the name of a stored key.
    pub(crate) with_key: u8,
}

impl Default for Mix {
    fn default() -> Self {
        let actions = [
            (Action::Get, 32),
            (Action::Create, 12),
            (Action::Upsert, 3),
            (Action::Put, 9),
            (Action::Patch, 11),
            (Action::Delete, 5),
            (Action::Rollback, 2),
            (Action::Batch, 5),
            (Action::Transaction, 6),
            (Action::Transfer, 3),
            (Action::List, 3),
            (Action::Group, 4),
            (Action::PointInTime, 3),
            (Action::Changes, 2),
            (Action::Reindex, 1),
            (Action::Schema, 2),
            (Action::Passing, 1),
            (Action::Undelete, 1),
            (Action::Claim, 3),
            (Action::Limited, 3),
            (Action::Expensive, 1),
        ];
        Self {
            actions: actions.to_vec(),
            definitions: DEFINITIONS.len(),
            slots: SLOTS,
            // About 25 operations a second for each client: the machine is shared with the nodes.
            pause_ms: (5, 50),
            with_key: 70,
        }
    }
}

impl Mix {
    fn draw(&self, rng: &mut fastrand::Rng) -> Action {
        let all: u32 = self.actions.iter().map(|(_, weight)| weight).sum();
        let mut place = rng.u32(..all);
        for (action, weight) in &self.actions {
            if place < *weight {
                return *action;
            }
            place -= weight;
        }
        Action::Get
    }
}

/// What all clients of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mix: Mix,
    pub(crate) history: History,
    /// Operations so far of each slot of the key table.
    slots: Vec<Vec<AtomicU64>>,
    /// The revision and the value of each config that a client saw last.
    seen: Mutex<BTreeMap<String, (u64, String)>>,
    /// The newest revision that an answer named.
    newest: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// Clients make no pauses: a fault follows, and writes are to be in flight when it comes.
    pub(crate) hurry: AtomicBool,
    numbers: AtomicU64,
    /// Acknowledged writes: (when, nanoseconds of the history), for the availability windows.
    pub(crate) acknowledged: Mutex<Vec<u64>>,
    /// Accepted changes of the strict schema.
    pub(crate) schemas: AtomicU64,
    pub(crate) expensive: Expensive,
    pub(crate) freezes: Freezes,
    pub(crate) changes: Changes,
    pub(super) bank: Bank,
    pub(crate) stored_keys: StoredKeys,
    pub(super) limited: Mutex<Limited>,
}

impl Shared {
    pub(crate) fn new(history: History, mix: Mix) -> Self {
        let slots = || (0..mix.slots).map(|_| AtomicU64::default()).collect();
        Self {
            history,
            slots: DEFINITIONS.iter().chain([&CLAIMS]).map(|_| slots()).collect(),
            mix,
            seen: Mutex::default(),
            newest: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            schemas: AtomicU64::new(0),
            expensive: Expensive::default(),
            freezes: Freezes::default(),
            changes: Changes::default(),
            bank: Bank::default(),
            stored_keys: StoredKeys::default(),
            limited: Mutex::default(),
        }
    }

    /// Every key that was used.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.history.operations().into_iter().map(|o| o.key).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// The newest revision that an answer named.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// A number that is given once.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// What a client saw last of a config.
    pub(super) fn seen(&self, key: &str) -> Option<(u64, String)> {
        self.seen.lock().expect("no client panics").get(key).cloned()
    }

    /// Records an operation that has ended or whose outcome is unknown.
    pub(super) fn record(&self, operation: Operation) {
        if let Some(revision) = operation.revision.max(operation.state) {
            self.newest.fetch_max(revision, Ordering::Relaxed);
        }
        let mut seen = self.seen.lock().expect("no client panics");
        let value = operation.value.as_ref().or(operation.result.as_ref());
        match (operation.revision, value) {
            (Some(revision), Some(value)) => {
                seen.insert(operation.key.clone(), (revision, value.clone()));
            }
            _ if operation.status == 404 || (operation.op == Kind::Delete && operation.is_done()) => {
                seen.remove(&operation.key);
            }
            _ => {}
        }
        drop(seen);
        if operation.is_write() && operation.is_done() {
            self.acknowledged.lock().expect("no client panics").push(operation.ret);
        }
        self.history.record(operation);
    }
}

/// The precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guard {
    Nothing,
    Revision,
    /// Of a patch only.
    Value,
}

/// One client: a loop of operations until [`Shared::stop`] is set.
pub(crate) struct Worker {
    pub(crate) id: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) nodes: Vec<Client>,
    pub(crate) rng: fastrand::Rng,
    /// In whose name the operation is made; none: the root key's.
    pub(crate) credential: Option<Credential>,
}

impl Worker {
    pub(crate) async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.step().await;
            let (least, most) = self.shared.mix.pause_ms;
            let pause = Duration::from_millis(self.rng.u64(least..most));
            if !self.shared.hurry.load(Ordering::Relaxed) {
                pace(pause).await;
            }
        }
    }

    #[expect(clippy::cognitive_complexity, reason = "one line for each kind of operation")]
    async fn step(&mut self) {
        let mix = &self.shared.mix;
        let (definitions, with_key) = (mix.definitions, mix.with_key);
        let action = mix.draw(&mut self.rng);
        let in_its_name = self.rng.u8(..100) < with_key;
        self.credential = in_its_name.then(|| self.shared.stored_keys.draw(&mut self.rng)).flatten();
        let definition = self.rng.usize(..definitions);
        let guards = [Guard::Nothing, Guard::Revision, Guard::Value];
        let guard = guards[self.rng.usize(..guards.len())];
        match action {
            Action::Get => self.on_key(definition, Kind::Get, Guard::Nothing).await,
            Action::Create => self.on_key(definition, Kind::Create, Guard::Nothing).await,
            Action::Upsert => self.on_key(definition, Kind::Upsert, Guard::Nothing).await,
            Action::Put => self.on_key(definition, Kind::Put, guard).await,
            Action::Patch => self.on_key(definition, Kind::Patch, guard).await,
            Action::Delete => self.on_key(definition, Kind::Delete, Guard::Nothing).await,
            Action::Rollback => self.on_key(definition, Kind::Rollback, Guard::Nothing).await,
            Action::Batch => self.batch().await,
            Action::Transaction => self.transaction().await,
            Action::Transfer => self.transfer().await,
            Action::Claim => self.claim().await,
            Action::Expensive => self.expensive().await,
            Action::Limited => self.limited().await,
            Action::List | Action::Group => self.read_list(definition, action == Action::Group).await,
            Action::PointInTime => self.read_point_in_time(definition).await,
            Action::Changes => self.read_changes(definition).await,
            Action::Reindex => self.reindex(definition).await,
            Action::Schema => self.change_schema().await,
            Action::Passing => self.create_or_delete_definition().await,
            Action::Undelete => self.undelete().await,
        }
    }

    /// Some of the definitions, two at least, in any order.
    pub(super) fn definitions(&mut self) -> Vec<usize> {
        let mut definitions: Vec<usize> = (0..self.shared.mix.definitions).collect();
        self.rng.shuffle(&mut definitions);
        definitions.truncate(self.rng.usize(2..=definitions.len()));
        definitions
    }

    pub(super) fn node(&mut self) -> Client {
        let place = self.rng.usize(..self.nodes.len());
        let node = self.nodes[place].clone();
        match &self.credential {
            Some(credential) => credential.on(node),
            None => node,
        }
    }

    /// The next key of a slot of a definition, and whether this is its last operation.
    pub(super) fn key(&mut self, definition: usize) -> (String, bool) {
        let slots = &self.shared.slots[definition];
        let place = self.rng.usize(..slots.len());
        let used = slots[place].fetch_add(1, Ordering::Relaxed);
        let (generation, used) = (used / OPERATIONS_PER_KEY, used % OPERATIONS_PER_KEY);
        let name = DEFINITIONS.get(definition).unwrap_or(&CLAIMS);
        (format!("{name}/k{place}-{generation}"), used + 1 == OPERATIONS_PER_KEY)
    }

    /// An operation that is about to be sent, with a value of its own when it writes one.
    pub(super) fn operation(&self, key: String, op: Kind, guard: Guard, batch: Option<u64>) -> Operation {
        let mut operation = self.make(key, op, guard, batch);
        self.shared.history.begin(&mut operation);
        operation
    }

    /// An operation of a batch, which is not recorded yet.
    pub(super) fn draft(&self, key: String, op: Kind, guard: Guard, batch: u64) -> Operation {
        self.make(key, op, guard, Some(batch))
    }

    fn make(&self, key: String, op: Kind, guard: Guard, batch: Option<u64>) -> Operation {
        let seen = self.shared.seen(&key).filter(|_| guard != Guard::Nothing);
        let by = self.credential.as_ref().map(Credential::name);
        let mut operation =
            Operation { batch, by, ..Operation::new(self.id, key, op, self.shared.history.now()) };
        if matches!(op, Kind::Create | Kind::Put | Kind::Upsert | Kind::Patch) {
            operation.value = Some(format!("v{}", self.shared.number()));
        }
        match (guard, seen) {
            (Guard::Revision, Some((revision, _))) => operation.expected = Some(revision),
            (Guard::Value, Some((_, value))) if op == Kind::Patch => operation.tested = Some(value),
            _ => {}
        }
        operation
    }

    /// A write of a config whose owner may have no other.
    async fn claim(&mut self) {
        let all = [Kind::Create, Kind::Upsert, Kind::Put, Kind::Patch, Kind::Delete];
        let (op, definition) = (all[self.rng.usize(..all.len())], DEFINITIONS.len());
        self.on_key(definition, op, Guard::Nothing).await;
    }

    /// One operation on one key. A write with an idempotency key is repeated when its outcome is unknown.
    async fn on_key(&mut self, definition: usize, op: Kind, guard: Guard) {
        let (key, last) = self.key(definition);
        // A key that gets no more writes must not keep the strict schema from being accepted for ever.
        let op = if last && definition == STRICT { Kind::Delete } else { op };
        let guard = if last { Guard::Nothing } else { guard };
        let seen = self.shared.seen(&key);
        // Only what somebody has seen can be rolled back to.
        let op = if op == Kind::Rollback && seen.is_none() { Kind::Get } else { op };
        let mut operation = self.make(key, op, guard, None);
        if let (Kind::Rollback, Some((revision, value))) = (op, seen) {
            (operation.to, operation.value) = (Some(revision), Some(value));
        }
        self.shared.history.begin(&mut operation);
        let with_key = op != Kind::Get && self.rng.u8(..100) < 40;
        let asked = operation.clone();
        let remembered = matches!(op, Kind::Create | Kind::Put | Kind::Upsert | Kind::Delete);
        let answer = self.decided(|node| request(node, &asked), with_key, remembered).await;
        if let Some(answer) = answer {
            complete(&mut operation, &answer, self.shared.history.now());
        }
        self.shared.record(operation);
    }

    /// Lists all configs of a definition, or one group of them by index.
    async fn read_list(&mut self, definition: usize, grouped: bool) {
        let node = self.node();
        let group = grouped.then(|| format!("g{}", self.rng.u64(..GROUPS)));
        let path = format!("/api/v1/config_definition/{}/config/", DEFINITIONS[definition]);
        let mut call = node.get(&path).query(&[("limit", "1000")]);
        if let Some(group) = &group {
            call = call.query(&[("group", group)]);
        }
        let asked = self.shared.history.now();
        let Ok(answer) = call.attempt().await else { return };
        if answer.status != 200 {
            return;
        }
        let found = records(&answer);
        if let Some(group) = &group
            && let Some(stray) = found.iter().find(|(_, value)| &group_of(value) != group)
        {
            self.shared.history.contradict(format!("the index finds {stray:?} in `{group}`"));
        }
        let list = ListRead {
            definition: DEFINITIONS[definition].into(),
            group,
            call: asked,
            ret: self.shared.history.now(),
            state: answer.revision(),
            found,
        };
        self.shared.history.record_list(list);
    }

    /// Reads a config as of a random revision.
    async fn read_point_in_time(&mut self, definition: usize) {
        let newest = self.shared.newest();
        let (key, at) = (self.key(definition).0, self.rng.u64(newest / 2..=newest));
        let node = self.node();
        let call = request(&node, &Operation::new(self.id, key.clone(), Kind::Get, 0));
        let Ok(answer) = call.query(&[("revision", &at.to_string())]).attempt().await else { return };
        let found = match answer.status {
            200 => record_of(&answer),
            // Whether it is retained is checked at the end.
            404 | 410 => None,
            401 | 403 | 429 | 503 | 504 => return,
            // The revision is applied.
            _ => return self.shared.history.contradict(format!("a point-in-time read: {answer:?}")),
        };
        let is_gone = answer.status == 410;
        self.shared.history.record_point_in_time(PointInTimeRead { key, at, is_gone, found });
    }

    /// Reads the newest changes of a config: each says what was there at its revision, and just before the next.
    async fn read_changes(&mut self, definition: usize) {
        let (key, node) = (self.key(definition).0, self.node());
        let (of, name) = key.split_once('/').expect("keys are def/cfg");
        let limit = self.rng.u8(2..9).to_string();
        let call = node.get(&format!("{}/history", config(of, name))).query(&[("limit", &limit)]);
        let Ok(answer) = call.attempt().await else { return };
        if answer.status != 200 {
            return;
        }
        let mut next = None;
        for change in answer.body["data"]["results"].as_array().into_iter().flatten() {
            let Some(revision) = change["revision"].as_u64() else { continue };
            let found = change["data"]["value"].as_str().map(|value| (revision, value.to_owned()));
            for at in [Some(revision), next].into_iter().flatten() {
                let (key, found) = (key.clone(), found.clone());
                let read = PointInTimeRead { key, at, is_gone: false, found };
                self.shared.history.record_point_in_time(read);
            }
            next = Some(revision - 1);
        }
    }

    /// Deletes a definition of its own and undoes that: its configs are there as before.
    async fn undelete(&mut self) {
        let name = format!("own.{}", self.shared.number());
        let all = "/api/v1/config_definition/";
        let body = json!({"config_definition_key": name, "indexes": ["group"]});
        let Some(201) = self.status_of(|node| node.post(all, &body)).await else { return };
        let configs = [("a", "v1"), ("b", "v2")];
        for (key, value) in configs {
            let body = json!({"config_key": key, "data": data(value)});
            let path = config(&name, "");
            let Some(201) = self.status_of(|node| node.post(&path, &body)).await else { return };
        }
        let path = definition(&name);
        let Some(200) = self.status_of(|node| node.delete(&path)).await else { return };
        let gone = self.node().get(&path).attempt().await;
        if gone.is_ok_and(|answer| answer.status == 200) {
            self.shared.history.contradict(format!("`{name}` is there after its deletion"));
        }
        let undelete = format!("{path}/undelete");
        let Some(201) = self.status_of(|node| node.post(&undelete, &json!({}))).await else { return };
        let list =
            self.node().get(&config(&name, "")).query(&[("sort_by", "config_key"), ("sort_order", "asc")]);
        let Ok(answer) = list.attempt().await else { return };
        let expected: Vec<_> = configs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        if answer.status == 200 && records(&answer) != expected {
            self.shared.history.contradict(format!("`{name}` returned from its deletion as {answer:?}"));
        }
        // So that definitions do not pile up.
        drop(self.node().delete(&path).query(&[("purge", "true")]).attempt().await);
    }

    /// Sends it with an idempotency key until it is decided, a few times.
    async fn status_of(&mut self, make: impl Fn(&Client) -> crate::harness::Call) -> Option<u16> {
        Some(self.decided(make, true, false).await?.status)
    }

    /// Sets the schema that forbids odd values, or one that does not.
    async fn change_schema(&mut self) {
        let node = self.node();
        let odd = if self.rng.bool() { json!({"const": false}) } else { json!({}) };
        let properties = json!({"value": {}, "group": {}, "n": {"type": "integer"}, "odd": odd});
        let path = format!("{}/schema", definition(DEFINITIONS[STRICT]));
        let body = json!({"json_schema": {"type": "object", "properties": properties}});
        // It is refused while a config is odd; when no answer comes, the service's history says whether it was stored.
        if node.put(&path, &body).attempt().await.is_ok_and(|answer| answer.status == 200) {
            self.shared.schemas.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets other indexes for a definition; `group` is always one of them.
    async fn reindex(&mut self, definition: usize) {
        let node = self.node();
        let indexes = if self.rng.bool() { json!(["group"]) } else { json!(["value", "group", "n"]) };
        let path = format!("/api/v1/config_definition/{}", DEFINITIONS[definition]);
        // The answer does not matter: the lists are checked in any case.
        drop(node.put(&path, &json!({"indexes": indexes})).attempt().await);
    }

    /// Creates a definition with a config, or deletes it.
    async fn create_or_delete_definition(&mut self) {
        let node = self.node();
        let name = format!("passing.{}", self.rng.u8(..4));
        let path = format!("/api/v1/config_definition/{name}");
        if self.rng.bool() {
            drop(node.delete(&path).attempt().await);
            return;
        }
        let body = json!({"config_definition_key": name, "indexes": ["group"]});
        drop(node.post("/api/v1/config_definition/", &body).attempt().await);
        let body = json!({"config_key": "x", "data": {"group": "g", "padding": "x".repeat(2000)}});
        drop(node.post(&format!("{path}/config/"), &body).attempt().await);
    }
}

/// The data of a value; its group followers from it, so that a reader can tell where the index must find it.
pub(super) fn data(value: &str) -> Value {
    let mut data = changing(value);
    data["padding"] = json!("p".repeat(padding(is_large(value))));
    data
}

/// The members of the data that are not the same for all values.
pub(super) fn changing(value: &str) -> Value {
    let (group, owner) = (group_of(value), owner_of(value));
    json!({"value": value, "group": group, "n": value.len(), "odd": is_odd(value), "owner": owner})
}

fn number_of(value: &str) -> u64 {
    value.trim_start_matches('v').parse().unwrap_or(0)
}

pub(super) fn group_of(value: &str) -> String {
    format!("g{}", number_of(value) % GROUPS)
}

/// The owner of a claim.
pub(super) fn owner_of(value: &str) -> String {
    format!("o{}", number_of(value) % OWNERS)
}

/// Whether a record that is created or put with it is large.
pub(super) fn is_large(value: &str) -> bool {
    number_of(value) % LARGE_EVERY == LARGE_EVERY / 2
}

/// Whether the strict schema forbids it.
pub(super) fn is_odd(value: &str) -> bool {
    number_of(value) % ODD_EVERY == ODD_EVERY - 1
}

/// (key, value) of each record of a list.
fn records(answer: &Answer) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let results = answer.body["data"]["results"].as_array().cloned().unwrap_or_default();
    results.iter().map(|row| (text(&row["config_key"]), text(&row["data"]["value"]))).collect()
}

/// Creates the definitions whose configs are checked.
pub(crate) async fn prepare(client: &Client) {
    for name in DEFINITIONS.into_iter().chain([BANK, CLAIMS]) {
        let indexes = if name == CLAIMS { json!(["group", "owner"]) } else { json!(["group"]) };
        let body = json!({"config_definition_key": name, "indexes": indexes});
        let post = client.post("/api/v1/config_definition/", &body);
        post.header("idempotency-key", name).insist().await.expect(201);
    }
    let unique = client.put(&format!("{}/unique", definition(CLAIMS)), &json!({"paths": ["owner"]}));
    unique.header("idempotency-key", "unique").insist().await.expect(200);
}

/// Reads every key on a node and records the reads: what was acknowledged must be there.
pub(crate) async fn read_all(shared: &Shared, node: &Client, client: usize) {
    for key in shared.keys() {
        let mut operation = Operation::new(client, key, Kind::Get, shared.history.now());
        shared.history.begin(&mut operation);
        let answer = request(node, &operation).insist().await;
        complete(&mut operation, &answer, shared.history.now());
        shared.history.record(operation);
    }
}
