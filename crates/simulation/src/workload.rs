//! What the clients do, and what they record of it for the checkers of the chaos tests (`tests/chaos/check.rs`).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Answer, Call, Client, Lost},
    history::{History, Kind, ListRead, Operation},
    setup::Setup,
    trace,
};

/// Groups by which configs are indexed.
const GROUPS: u64 = 3;
const DEFINITION: &str = "d";
/// How long the cluster may take until it answers, once all faults are over.
const RECOVERY_MAX: Duration = Duration::from_secs(90);

/// What the clients share.
pub(crate) struct Shared {
    pub(crate) setup: Rc<Setup>,
    pub(crate) history: History,
    values: Cell<u64>,
    /// The newest revision that was seen of each key.
    seen: RefCell<BTreeMap<String, u64>>,
    /// Clients that are still at work.
    pub(crate) working: Cell<usize>,
    /// All faults are over, and all nodes run.
    pub(crate) is_healed: Cell<bool>,
    /// The definition is there.
    is_ready: Cell<bool>,
}

impl Shared {
    pub(crate) fn new(setup: Rc<Setup>) -> Self {
        let working = Cell::new(setup.clients);
        Self {
            setup,
            history: History::new(None),
            values: Cell::new(0),
            seen: RefCell::default(),
            working,
            is_healed: Cell::new(false),
            is_ready: Cell::new(false),
        }
    }

    fn value(&self) -> String {
        self.values.set(self.values.get() + 1);
        format!("v{}", self.values.get())
    }

    fn record(&self, operation: Operation) {
        if let Some(revision) = operation.revision {
            let mut seen = self.seen.borrow_mut();
            let newest = seen.entry(operation.key.clone()).or_default();
            *newest = revision.max(*newest);
        }
        let Operation { client, key, op, value, call, ret, status, result, revision, .. } = &operation;
        trace::note(
            |counts| counts.operations += 1,
            format_args!(
                "client {client} {op:?} {key} {value:?} {call}..{ret} {status} {result:?} {revision:?}"
            ),
        );
        self.history.record(operation);
    }
}

/// The group of a value, by which an index finds it.
pub(crate) fn group_of(value: &str) -> String {
    let number: u64 = value.trim_start_matches('v').parse().unwrap_or(0);
    format!("g{}", number % GROUPS)
}

fn path_of(key: &str) -> String {
    let (definition, key) = key.split_once('/').expect("keys are definition/config");
    format!("/api/v1/config_definition/{definition}/config/{key}")
}

struct Worker {
    id: usize,
    shared: Rc<Shared>,
    rng: fastrand::Rng,
    client: Client,
}

/// One client, until its time is over.
pub(crate) async fn run(id: usize, shared: Rc<Shared>) -> turmoil::Result {
    let setup = Rc::clone(&shared.setup);
    let mut rng = fastrand::Rng::with_seed(setup.seed.wrapping_mul(31).wrapping_add(id as u64));
    let client = Client::new(rng.usize(1..=setup.nodes));
    let mut worker = Worker { id, shared: Rc::clone(&shared), rng, client };
    if id == 1 {
        worker.prepare().await;
        shared.is_ready.set(true);
    }
    while !shared.is_ready.get() {
        sleep(Duration::from_millis(10)).await;
    }
    let end = Instant::now() + setup.duration;
    let pause_max = worker.rng.u64(1..=30);
    while Instant::now() < end {
        worker.step().await;
        sleep(Duration::from_millis(worker.rng.u64(..=pause_max))).await;
    }
    shared.working.set(shared.working.get() - 1);
    Ok(())
}

impl Worker {
    /// Creates the definition, as soon as there is a cluster. Whether an attempt of unknown outcome has done it the next
    /// one says.
    async fn prepare(&mut self) {
        let body = json!({"config_definition_key": DEFINITION, "indexes": ["group"]});
        let call = Call::new(Method::POST, "/api/v1/config_definition/").json(body);
        let end = Instant::now() + RECOVERY_MAX;
        loop {
            match self.client.send(&call).await {
                Ok(answer) if matches!(answer.status, 201 | 409) => return,
                _ if Instant::now() > end => {
                    return self.shared.history.contradict("the cluster never accepted a definition".into());
                }
                _ => {}
            }
            self.another_node();
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn another_node(&mut self) {
        let node = self.rng.usize(1..=self.shared.setup.nodes);
        self.client.turn_to(node);
    }

    async fn step(&mut self) {
        if self.rng.u8(..20) == 0 {
            self.another_node();
        }
        let key = format!("{DEFINITION}/k{}", self.rng.u64(..self.shared.setup.keys));
        match self.rng.u8(..100) {
            0..35 => self.on_key(key, Kind::Get, false).await,
            35..45 => self.on_key(key, Kind::Create, false).await,
            45..60 => self.on_key(key, Kind::Put, false).await,
            60..75 => self.on_key(key, Kind::Put, true).await,
            75..85 => self.on_key(key, Kind::Upsert, false).await,
            85..90 => self.on_key(key, Kind::Delete, false).await,
            90..93 => self.on_key(key, Kind::Delete, true).await,
            _ => self.list().await,
        }
    }

    async fn on_key(&mut self, key: String, op: Kind, is_guarded: bool) {
        let shared = Rc::clone(&self.shared);
        let mut operation = Operation::new(self.id, key, op, shared.history.now());
        if matches!(op, Kind::Create | Kind::Put | Kind::Upsert) {
            operation.value = Some(shared.value());
        }
        if is_guarded {
            operation.expected = shared.seen.borrow().get(&operation.key).copied();
        }
        let mut call = self.request(&operation);
        // A write with an idempotency key may be sent again when its outcome is unknown.
        let is_keyed = operation.is_write() && self.rng.u8(..100) < 40;
        if is_keyed {
            call = call.header("idempotency-key", format!("{:032x}", self.rng.u128(..)));
        }
        shared.history.begin(&mut operation);
        let mut sent = self.client.send(&call).await;
        for _ in 0..3 {
            let again = match &sent {
                Err(_) => is_keyed,
                Ok(answer) => is_keyed && answer.status >= 300 && !is_remembered(op, answer.status),
            };
            if !again {
                break;
            }
            self.another_node();
            sleep(Duration::from_millis(self.rng.u64(20..300))).await;
            sent = self.client.send(&call).await;
            // What is refused now may have been executed before, but what is remembered holds for all attempts.
            if sent.as_ref().is_ok_and(|answer| answer.status >= 300 && !is_remembered(op, answer.status)) {
                sent = Err(Lost::Unknown);
            }
        }
        if let Ok(first) = &sent
            && is_keyed
            && (first.status < 300 || is_remembered(op, first.status))
            && self.rng.u8(..4) == 0
        {
            self.compare(&call, first).await;
        }
        match sent {
            Ok(answer) => complete(&mut operation, &answer, shared.history.now()),
            Err(Lost::NotSent) if !is_keyed => {
                // As if it had been refused: nothing was done.
                (operation.ret, operation.status) = (shared.history.now(), 503);
            }
            Err(Lost::NotSent | Lost::Unknown) => {}
        }
        if operation.ret == 0 || operation.status == 503 {
            self.another_node();
        }
        shared.record(operation);
    }

    /// A decided write that is repeated with its idempotency key gets the same answer.
    async fn compare(&mut self, call: &Call, first: &Answer) {
        let Ok(second) = self.client.send(call).await else { return };
        let of = |answer: &Answer| (answer.status, answer.number("etag"));
        if of(first) != of(&second) && !matches!(second.status, 429 | 503) {
            let text = format!("a repeated request got another answer: {call:?} {first:?} {second:?}");
            self.shared.history.contradict(text);
        }
    }

    fn request(&mut self, operation: &Operation) -> Call {
        let path = path_of(&operation.key);
        let padding = "p".repeat(self.shared.setup.padding);
        let data = || {
            let value = operation.value.as_deref().expect("writes have a value");
            json!({"value": value, "group": group_of(value), "padding": padding})
        };
        let call = match operation.op {
            Kind::Get if self.shared.setup.timers.lease_reads && self.rng.bool() => {
                Call::new(Method::GET, format!("{path}?consistency=lease"))
            }
            Kind::Get => Call::new(Method::GET, path),
            Kind::Create => {
                let (definition, key) = operation.key.split_once('/').expect("keys are definition/config");
                Call::new(Method::POST, format!("/api/v1/config_definition/{definition}/config/"))
                    .json(json!({"config_key": key, "data": data()}))
            }
            Kind::Upsert => {
                Call::new(Method::PUT, format!("{path}?upsert=true")).json(json!({"data": data()}))
            }
            Kind::Put | Kind::Patch | Kind::Rollback => {
                Call::new(Method::PUT, path).json(json!({"data": data()}))
            }
            Kind::Delete => Call::new(Method::DELETE, path),
        };
        match operation.expected {
            Some(expected) => call.header("if-match", format!("\"{expected}\"")),
            None => call,
        }
    }

    async fn list(&mut self) {
        let group = self.rng.bool().then(|| format!("g{}", self.rng.u64(..GROUPS)));
        let filter = group.as_ref().map_or_else(String::new, |group| format!("&group={group}"));
        let path = format!("/api/v1/config_definition/{DEFINITION}/config/?limit=1000{filter}");
        let call = self.shared.history.now();
        let Ok(answer) = self.client.send(&Call::new(Method::GET, path)).await else { return };
        let Some(state) = answer.number("x-concord-revision").filter(|_| answer.status == 200) else {
            return;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = answer.body["data"]["results"].as_array().cloned().unwrap_or_default();
        let found: Vec<_> =
            rows.iter().map(|row| (text(&row["config_key"]), text(&row["data"]["value"]))).collect();
        let stray = found.iter().find(|(_, value)| group.as_ref().is_some_and(|is| *is != group_of(value)));
        if let Some(stray) = stray {
            self.shared.history.contradict(format!("the index finds {stray:?} in {group:?}"));
        }
        let (definition, ret) = (DEFINITION.into(), self.shared.history.now());
        trace::note(
            |counts| counts.operations += 1,
            format_args!("client {} lists {group:?} {call}..{ret} at {state}: {found:?}", self.id),
        );
        self.shared.history.record_list(ListRead { definition, group, call, ret, state, found });
    }
}

/// Whether the service remembers a rejection of a write with an idempotency key.
fn is_remembered(op: Kind, status: u16) -> bool {
    op != Kind::Patch && matches!(status, 404 | 409 | 412)
}

fn complete(operation: &mut Operation, answer: &Answer, now: u64) {
    operation.ret = now;
    operation.status = answer.status;
    operation.state = answer.number("x-concord-revision");
    if answer.status < 300 {
        operation.revision = answer.number("etag");
        if operation.op == Kind::Get {
            operation.result = answer.body["data"]["data"]["value"].as_str().map(str::to_owned);
        }
    }
}

/// Reads every key on every node once all faults are over: what was acknowledged is there, and the cluster has recovered.
pub(crate) async fn audit(id: usize, shared: Rc<Shared>) -> turmoil::Result {
    while !shared.is_healed.get() {
        sleep(Duration::from_millis(20)).await;
    }
    let setup = Rc::clone(&shared.setup);
    let rng = fastrand::Rng::with_seed(setup.seed ^ 0xa0d1);
    let mut worker = Worker { id, shared: Rc::clone(&shared), rng, client: Client::new(1) };
    let end = Instant::now() + RECOVERY_MAX;
    for node in 1..=setup.nodes {
        worker.client.turn_to(node);
        for key in 0..setup.keys {
            loop {
                let key = format!("{DEFINITION}/k{key}");
                let mut operation = Operation::new(id, key, Kind::Get, shared.history.now());
                shared.history.begin(&mut operation);
                let sent = worker.client.send(&Call::new(Method::GET, path_of(&operation.key))).await;
                let status = sent.as_ref().map_or(0, |answer| answer.status);
                if let Ok(answer) = &sent {
                    complete(&mut operation, answer, shared.history.now());
                }
                shared.record(operation);
                if matches!(status, 200 | 404) {
                    break;
                }
                if Instant::now() > end {
                    let text = format!("{RECOVERY_MAX:?} after all faults node {node} answers {sent:?}");
                    shared.history.contradict(text);
                    return Ok(());
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(())
}
