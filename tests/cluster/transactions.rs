//! A lock, a bank, a queue of jobs and changes of a schema with all its configs, each of transactions alone, by sixteen
//! clients over all nodes while leaders are killed.
//!
//! Each transaction has an idempotency key, so that one whose answer was lost is sent again until its outcome is known.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use futures::future::{join, join_all};
use serde_json::{Value, json};

use crate::harness::{
    Answer, Client, Cluster,
    load::define,
    time::{lasts, pace},
};

const CLIENTS: usize = 16;
const LEADERS_KILLED: usize = 3;
const ACCOUNTS: u64 = 6;
const BALANCE: u64 = 100;
const JOBS: u64 = 120;
/// Configs whose form changes with their schema.
const SHAPES: u64 = 5;

/// What the clients of a run share.
struct Run {
    clients: Vec<Client>,
    is_over: Cell<bool>,
    sent: Cell<u64>,
    /// Who holds the lock, as they know it.
    holder: Cell<Option<usize>>,
    tokens: RefCell<Vec<u64>>,
    /// By job, who has done it.
    done: RefCell<BTreeMap<u64, usize>>,
    transfers: Cell<u64>,
    /// Changes of the schema that were acknowledged, and writes that the schema of their time has refused.
    migrations: Cell<u64>,
    misfits: Cell<u64>,
}

/// The member that configs of a version have, and no others.
fn member_of(version: u64) -> &'static str {
    if version.is_multiple_of(2) { "even" } else { "odd" }
}

/// What configs of a version must be.
fn schema_of(version: u64) -> Value {
    let member = member_of(version);
    json!({"properties": {member: {"type": "integer"}}, "required": [member], "additionalProperties": false})
}

fn set_schema(schema: &Value) -> Value {
    json!({"op": "set_schema", "config_definition_key": "shapes", "json_schema": schema})
}

fn shape(version: u64, number: u64) -> Value {
    let data = json!({"data": {member_of(version): number}, "upsert": true});
    operation("put_config", "shapes", &format!("s{number}"), &data)
}

fn operation(op: &str, definition: &str, key: &str, more: &Value) -> Value {
    let mut made = json!({"op": op, "config_definition_key": definition, "config_key": key});
    made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    made
}

fn check(definition: &str, key: &str, more: &Value) -> Value {
    operation("check_config", definition, key, more)
}

impl Run {
    async fn send(&self, client: usize, body: &Value) -> Answer {
        let number = self.sent.replace(self.sent.get() + 1);
        // Another node each time, also for the same client.
        let node = &self.clients[(client + usize::try_from(number).unwrap()) % self.clients.len()];
        let call = node.post("/api/v1/batch", body).header("idempotency-key", &format!("t-{number}"));
        call.insist().await
    }

    /// Whether the conditions held.
    async fn choose(&self, client: usize, conditions: &[Value], then: &[Value]) -> (bool, u64) {
        let answer = self.send(client, &json!({"if": conditions, "then": then})).await.expect(200);
        let data = answer.data();
        (data["succeeded"].as_bool().unwrap(), data["revision"].as_u64().unwrap())
    }

    /// Takes the lock, and gives it back. The revision at which it was taken is its fencing token.
    async fn lock(&self, client: usize) {
        let owner = json!({"data": {"owner": client}});
        let free = [check("locks", "one", &json!({"absent": true}))];
        let (taken, token) =
            self.choose(client, &free, &[operation("create_config", "locks", "one", &owner)]).await;
        if !taken {
            return pace(Duration::from_millis(5)).await;
        }
        assert_eq!(self.holder.replace(Some(client)), None, "two hold the lock");
        self.tokens.borrow_mut().push(token);
        pace(Duration::from_millis(1)).await;
        assert_eq!(self.holder.replace(None), Some(client));
        let own = [check("locks", "one", &json!({"pointer": "/owner", "equals": client}))];
        let (given, _) =
            self.choose(client, &own, &[operation("delete_config", "locks", "one", &json!({}))]).await;
        assert!(given, "a lock was lost while it was held");
    }

    /// Moves money between two accounts, as much as was there when they were read.
    async fn transfer(&self, client: usize) {
        let (from, to) = (fastrand::u64(..ACCOUNTS), fastrand::u64(1..ACCOUNTS));
        let names = [from, (from + to) % ACCOUNTS].map(|number| format!("a{number}"));
        let all: Vec<Value> =
            (0..ACCOUNTS).map(|n| operation("get_config", "bank", &format!("a{n}"), &json!({}))).collect();
        let answer = self.send(client, &json!({"operations": all})).await.expect(200);
        let accounts: BTreeMap<String, (u64, u64)> = answer.data()["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|result| {
                let config = &result["config"];
                let balance = config["data"]["balance"].as_u64().expect("what was read is known");
                let name = config["config_key"].as_str().unwrap().to_owned();
                (name, (balance, config["revision"].as_u64().unwrap()))
            })
            .collect();
        let sum: u64 = accounts.values().map(|(balance, _)| balance).sum();
        assert_eq!(sum, ACCOUNTS * BALANCE, "all accounts were read at one revision");
        let [(from, at_from), (to, at_to)] = [accounts[&names[0]], accounts[&names[1]]];
        let amount = fastrand::u64(..=from);
        let as_read = [
            check("bank", &names[0], &json!({"revision": at_from})),
            check("bank", &names[1], &json!({"revision": at_to})),
        ];
        let put = |name: &str, balance: u64| {
            operation("put_config", "bank", name, &json!({"data": {"balance": balance}}))
        };
        let moved = [put(&names[0], from - amount), put(&names[1], to + amount)];
        if self.choose(client, &as_read, &moved).await.0 {
            self.transfers.set(self.transfers.get() + 1);
        }
    }

    /// Takes a job that nobody has done, and notes that it is done; false when all are.
    async fn job(&self, client: usize) -> bool {
        let open: Vec<u64> = (0..JOBS).filter(|job| !self.done.borrow().contains_key(job)).collect();
        let Some(job) = fastrand::choice(open) else { return false };
        let name = format!("j{job}");
        let is_open = [check("jobs", &name, &json!({"pointer": "/state", "equals": "open"}))];
        let done = [
            operation("patch_config", "jobs", &name, &json!({"patch": {"state": "done", "by": client}})),
            operation("create_config", "results", &name, &json!({"data": {"by": client}})),
        ];
        if self.choose(client, &is_open, &done).await.0 {
            assert_eq!(self.done.borrow_mut().insert(job, client), None, "a job was done twice");
        }
        true
    }

    /// Gives all configs another form, and their definition the schema that asks for it; or one the form of before, which
    /// must be refused when the schema has changed meanwhile.
    async fn migrate(&self, client: usize) {
        let read = [operation("get_config", "version", "of", &json!({}))];
        let answer = self.send(client, &json!({"operations": read})).await.expect(200);
        let version = answer.data()["results"][0]["config"]["data"]["n"].as_u64().unwrap();
        if fastrand::bool() {
            let answer = self.send(client, &json!({"operations": [shape(version, SHAPES)]})).await;
            assert!(matches!(answer.status, 200 | 422), "{answer:?}");
            self.misfits.set(self.misfits.get() + u64::from(answer.status == 422));
            return;
        }
        let is_same = [check("version", "of", &json!({"pointer": "/n", "equals": version}))];
        let next = version + 1;
        let all = (0..=SHAPES).map(|number| shape(next, number));
        let noted = operation("put_config", "version", "of", &json!({"data": {"n": next}}));
        let then: Vec<Value> = std::iter::once(set_schema(&Value::Null))
            .chain(all)
            .chain([set_schema(&schema_of(next)), noted])
            .collect();
        if self.choose(client, &is_same, &then).await.0 {
            self.migrations.set(self.migrations.get() + 1);
        }
    }

    async fn client(&self, id: usize) {
        while !self.is_over.get() {
            match id % 4 {
                0 => self.lock(id).await,
                1 => self.transfer(id).await,
                2 => {
                    self.migrate(id).await;
                    pace(Duration::from_millis(20)).await;
                }
                // A job now and then: they last until the last leader was killed.
                _ if self.job(id).await => pace(Duration::from_millis(100)).await,
                _ => pace(Duration::from_millis(20)).await,
            }
        }
    }
}

async fn prepare(node: &Client) {
    for definition in ["locks", "bank", "jobs", "results", "shapes", "version"] {
        define(node, definition).await;
    }
    let account =
        |n| operation("create_config", "bank", &format!("a{n}"), &json!({"data": {"balance": BALANCE}}));
    let job = |n| operation("create_config", "jobs", &format!("j{n}"), &json!({"data": {"state": "open"}}));
    let version = operation("create_config", "version", "of", &json!({"data": {"n": 0}}));
    let shapes = (0..=SHAPES).map(|number| shape(0, number)).chain([set_schema(&schema_of(0)), version]);
    let operations: Vec<Value> = (0..ACCOUNTS).map(account).chain((0..JOBS).map(job)).chain(shapes).collect();
    node.post("/api/v1/batch", &json!({"operations": operations})).await.expect(200);
}

/// Each change of the schema was made once, with all its configs.
async fn shapes_fit(node: &Client, version: u64) {
    let path = |definition: &str| format!("/api/v1/config_definition/{definition}");
    let noted = node.get(&format!("{}/config/of", path("version"))).await.expect(200);
    assert_eq!(noted.data()["data"]["n"], version);
    let schema = node.get(&format!("{}/schema", path("shapes"))).await.expect(200);
    assert_eq!(schema.data()["json_schema"], schema_of(version));
    for number in 0..=SHAPES {
        let found = node.get(&format!("{}/config/s{number}", path("shapes"))).await.expect(200);
        assert_eq!(found.data()["data"], json!({member_of(version): number}));
    }
}

#[tokio::test]
async fn a_lock_a_bank_and_a_queue_keep_their_promises_while_leaders_die() {
    let mut cluster = Cluster::start("transactions").await;
    prepare(&cluster.client(1)).await;
    let run = Run {
        clients: cluster.clients(),
        is_over: Cell::new(false),
        sent: Cell::new(0),
        holder: Cell::new(None),
        tokens: RefCell::default(),
        done: RefCell::default(),
        transfers: Cell::new(0),
        migrations: Cell::new(0),
        misfits: Cell::new(0),
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
        crate::harness::eventually("all jobs are done", async || {
            let done = run.done.borrow().len() as u64;
            crate::harness::check(done >= JOBS, || format!("{done} of {JOBS}"))
        })
        .await;
        run.is_over.set(true);
    };
    join(faults, join_all((0..CLIENTS).map(|id| run.client(id)))).await;
    let (tokens, done) = (run.tokens.take(), run.done.take());
    assert!(tokens.len() > 5 && tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert!(run.transfers.get() > 5, "{} transfers", run.transfers.get());
    println!("{} changes of the schema, {} configs did not fit it", run.migrations.get(), run.misfits.get());
    assert!(run.migrations.get() > 5, "{} changes of the schema", run.migrations.get());
    cluster.equal_digests().await;
    for node in cluster.clients() {
        shapes_fit(&node, run.migrations.get()).await;
        for (job, client) in &done {
            for definition in ["jobs", "results"] {
                let path = format!("/api/v1/config_definition/{definition}/config/j{job}");
                let found = node.get(&path).await.expect(200);
                assert_eq!(found.data()["data"]["by"], json!(client), "{definition} {job}");
            }
        }
    }
}
