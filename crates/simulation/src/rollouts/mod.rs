//! Rollouts while nodes fail: people who release change requests in stages, readers, and who looks on.
//!
//! | file | what it does |
//! |---|---|
//! | `plan` | what a plan asks for, and which readers a stage has |
//! | `work` | the people: proposals, approvals, beginnings, pauses, advances, aborts, writes of configs that are in a rollout |
//! | `readers` | reads of readers and of others, reports, words of gates |
//! | `follow` | watches and polls whose events are applied |
//! | `check` | the checker, over all that was seen: the invariants O1 to O7 of `docs/internals/rollouts.md` |
//!
//! What they work on belongs to them: two definitions in an environment of their own.
//!
//! **Invariants:** each title and each value is sent once, so both say whose they are. The checker has its own record of stages,
//! of the change requests that were read: it asks no node which readers are in.

mod check;
mod follow;
mod plan;
mod readers;
mod work;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::sleep;

use self::plan::Plan;
use crate::{
    chaos::{changes::environment, freezes::time},
    harness::{Answer, Client},
    workload::{Run, is_prepared, rng},
};

/// Their environment. What begins with it is of nobody else.
pub(crate) const ENVIRONMENT: &str = "roll";
const KEYS: &str = "/api/v1/api_key/";
const DEFINITIONS: [&str; 2] = ["roll.a", "roll.b"];
/// The configs, in the order of their numbers.
const CONFIGS: [(&str, &str); 4] = [("roll.a", "k0"), ("roll.a", "k1"), ("roll.b", "k0"), ("roll.b", "k1")];
/// The readers: their names and their labels. One name is there twice.
const READERS: [(&str, &str); 8] = [
    ("r0", "ring=canary"),
    ("r1", "ring=canary,region=eu"),
    ("r2", "ring=beta"),
    ("r3", "region=eu"),
    ("r4", ""),
    ("r5", ""),
    ("r0", ""),
    ("r6", "ring=stable,region=us"),
];
/// The people, who approve what the others propose.
const PEOPLE: [&str; 3] = ["kim", "lea", "max"];
/// Hosts that read.
const READING: usize = 2;
/// Hosts that follow.
const FOLLOWING: usize = 2;

/// A reader by its number; `None` says nothing of itself.
type Who = Option<usize>;

/// A version of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    value: String,
    /// The change request whose candidate it is.
    variant: Option<String>,
    /// That of the proven config.
    revision: Option<u64>,
}

/// How something was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Read,
    /// Of an earlier revision.
    AtRevision,
    Watch,
}

/// What somebody saw of configs at one revision.
#[derive(Debug, Clone)]
struct Seen {
    who: Who,
    how: How,
    #[expect(dead_code, reason = "for who reads a violation")]
    node: String,
    revision: u64,
    call: u64,
    ret: u64,
    is_linearizable: bool,
    /// Of each config by its number; `None`: it was not there.
    items: BTreeMap<usize, Option<Version>>,
}

/// What a watch showed from one revision to another.
#[derive(Debug, Clone)]
struct Followed {
    who: Who,
    node: String,
    /// From which revision on it was this.
    states: BTreeMap<u64, BTreeMap<usize, Option<Version>>>,
    upto: u64,
}

/// A stage that has ended, as a change request shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Passed {
    at: u64,
    /// Healthy and failed readers, and gates; `None` if a person has ended it.
    counts: Option<(u64, u64, u64)>,
}

/// How far a rollout was, as a change request shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Progress {
    begun_at: u64,
    since: u64,
    is_paused: bool,
    passed: Vec<Passed>,
}

/// A change request as an answer shows it.
#[derive(Debug, Clone)]
struct Status {
    id: String,
    title: String,
    /// That of the state.
    revision: u64,
    /// That of the record.
    version: u64,
    phase: String,
    applied: Option<(u64, u64)>,
    progress: Option<Progress>,
    /// When the response was there.
    ret: u64,
}

impl Status {
    fn of(answer: &Answer, ret: u64) -> Option<Self> {
        let data = &answer.body["data"];
        let text = |name: &str| data[name].as_str().map(str::to_owned);
        let at = |value: &Value| time(value).0;
        let applied = &data["applied"];
        let applied = applied["revision"].as_u64().map(|revision| (revision, at(&applied["at"])));
        let status = &data["rollout"]["status"];
        let passed = |one: &Value| Passed {
            at: at(&one["at"]),
            counts: one["by"].is_null().then(|| {
                let count = |name: &str| one[name].as_u64().unwrap_or(u64::MAX);
                (count("healthy"), count("failed"), count("gates"))
            }),
        };
        let progress = status.is_object().then(|| Progress {
            begun_at: at(&status["begun_at"]),
            since: at(&status["since"]),
            is_paused: !status["paused"].is_null(),
            passed: status["passed"].as_array().into_iter().flatten().map(passed).collect(),
        });
        Some(Self {
            id: text("change_id")?,
            title: text("title")?,
            revision: answer.header("x-concord-revision").parse().ok()?,
            version: answer.header("etag").trim_matches('"').parse().ok()?,
            phase: text("phase")?,
            applied,
            progress,
            ret,
        })
    }
}

/// What was proposed.
#[derive(Debug, Clone)]
struct Sent {
    plan: Plan,
    /// The candidate of each config by its number.
    values: BTreeMap<usize, String>,
}

/// What all of them share.
#[derive(Debug, Default)]
pub(crate) struct Rollouts {
    keys: RefCell<Vec<String>>,
    numbers: Cell<u64>,
    /// By title.
    sent: RefCell<BTreeMap<String, Sent>>,
    statuses: RefCell<Vec<Status>>,
    /// The change requests that roll, as far as somebody knows.
    rolling: RefCell<BTreeSet<String>>,
    seen: RefCell<Vec<Seen>>,
    followed: RefCell<Vec<Followed>>,
    /// Who was reported to run well, of each change request.
    healthy: RefCell<BTreeMap<String, BTreeSet<usize>>>,
    /// Gates that said once that all is well.
    good: RefCell<BTreeSet<String>>,
    /// Change requests that a person may have advanced.
    advanced: RefCell<BTreeSet<String>>,
}

impl Rollouts {
    fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Notes what an answer shows of a change request.
    fn note(&self, answer: &Answer, ret: u64) -> Option<Status> {
        let status = Status::of(answer, ret)?;
        if status.phase == "rolling" {
            self.rolling.borrow_mut().insert(status.id.clone());
        } else {
            self.rolling.borrow_mut().remove(&status.id);
        }
        self.statuses.borrow_mut().push(status.clone());
        Some(status)
    }
}

/// A config by its number.
fn path(config: usize) -> String {
    let (definition, key) = CONFIGS[config];
    crate::harness::load::config(definition, key)
}

fn number_of(definition: &str, key: &str) -> Option<usize> {
    CONFIGS.iter().position(|one| *one == (definition, key))
}

/// How many hosts take part.
pub(crate) fn hosts(rollers: usize) -> usize {
    if rollers == 0 { 0 } else { rollers + READING + FOLLOWING }
}

/// One of the hosts, until its time is over.
pub(crate) async fn take_part(host: usize, run: Rc<Run>) -> turmoil::Result {
    is_prepared(&run).await;
    let (rollers, rng) = (run.setup.work.rollers, rng(&run, 4000 + host as u64));
    let nodes = Client::all(run.setup.nodes);
    if host < rollers {
        work::Roller { run: Rc::clone(&run), nodes, rng }.run().await;
    } else if host < rollers + READING {
        readers::Reading { run: Rc::clone(&run), nodes, rng }.run().await;
    } else {
        follow::Following { run: Rc::clone(&run), nodes, rng }.run().await;
    }
    run.working.set(run.working.get() - 1);
    Ok(())
}

/// Makes the environment, the configs and the keys.
pub(crate) async fn prepare(client: &Client, run: &Run) {
    for name in DEFINITIONS {
        let body = json!({"config_definition_key": name, "indexes": []});
        let post = client.post("/api/v1/config_definition/", &body);
        post.header("idempotency-key", name).insist().await.expect(201);
    }
    for config in 0..CONFIGS.len() {
        let put = client.put(&path(config), &json!({"data": {"value": format!("first-{config}")}}));
        let put = put.query(&[("upsert", "true")]).header("idempotency-key", &format!("roll-{config}"));
        put.insist().await.expect(201);
    }
    let verbs = ["read", "write", "approve", "report"];
    let grants = json!([{"verbs": verbs, "definitions": [format!("{ENVIRONMENT}.*")]}]);
    for person in PEOPLE {
        let call = client.post(KEYS, &json!({"name": person, "grants": grants, "person": person}));
        let mut answer = call.insist().await;
        // The cluster has not risen yet to the level that has the verb.
        while matches!(answer.status, 409 | 422) {
            sleep(Duration::from_millis(50)).await;
            answer = call.insist().await;
        }
        let key = answer.expect(201).data()["api_key"].as_str().expect("a text").to_owned();
        run.rollouts.keys.borrow_mut().push(key);
    }
    let rules = json!({"direct": "allow", "approvals": 1, "freeze": []});
    let put = client.put(&environment(ENVIRONMENT), &rules).header("idempotency-key", ENVIRONMENT);
    put.insist().await.expect(201);
}

/// Reads everything once all faults are over, and says what is wrong with all that was seen.
pub(crate) async fn check(nodes: &[Client], run: &Run) -> Vec<String> {
    for node in nodes {
        for who in (0..READERS.len()).map(Some).chain([None]) {
            readers::read_all(node, run, who).await;
        }
    }
    match check::Recorded::read_from(&nodes[0], run).await {
        Ok(past) => check::violations(run, past),
        Err(why) => vec![why],
    }
}
