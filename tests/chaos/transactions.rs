//! Transactions of the clients: conditions and reads of several configs, and changes in either branch.
//!
//! A transaction is recorded as what its parts are: each change an operation of the batch of its branch, each read an
//! operation on the state before, and what the choice rests on by itself. So every checker of single operations knows it,
//! and the branch that was not chosen must have left nothing.

use serde_json::{Value, json};

use super::{
    check::{CREATED_OR_NOT, FAILED_DEPENDENCY},
    history::{Chosen, Is, Kind, Operation, Transaction},
    requests::{batch_of, header, step},
    workload::{Guard, Worker},
};
use crate::harness::Answer;

/// A transaction before it is sent.
pub(super) struct Draft {
    pub(super) conditions: Vec<(String, Is)>,
    /// Keys that both branches read.
    pub(super) reads: Vec<String>,
    /// The operations of `then` and of `else`, with the numbers of their batches. The first of each is no delete: the
    /// checker finds a branch by the value that it writes.
    pub(super) branches: [(u64, Vec<Operation>); 2],
}

impl Worker {
    /// Conditions and reads of some configs, and changes of some, in one.
    pub(super) async fn transaction(&mut self) {
        let definitions = self.definitions();
        let keys: Vec<String> = definitions.into_iter().map(|definition| self.key(definition).0).collect();
        let conditions: Vec<(String, Is)> =
            keys[..self.rng.usize(1..=2)].iter().cloned().map(|key| self.condition(key)).collect();
        // Mostly all that the conditions are about.
        let read = if self.rng.u8(..4) == 0 { keys[1..].to_vec() } else { keys[..2].to_vec() };
        let then = self.branch(&keys);
        let otherwise =
            if self.rng.bool() { self.branch(&keys[..1]) } else { (self.shared.number(), Vec::new()) };
        self.decide(Draft { conditions, reads: read, branches: [then, otherwise] }).await;
    }

    /// What the client last saw of a config, or something else.
    fn condition(&mut self, key: String) -> (String, Is) {
        let is = match (self.shared.seen(&key), self.rng.u8(..5)) {
            (Some((revision, _)), 0..2) => Is::Revision(revision),
            (Some((_, value)), 2..4) => Is::Value(value),
            (Some(_), _) => Is::Present,
            (None, 0) => Is::Present,
            (None, _) => Is::Absent,
        };
        (key, is)
    }

    /// A change of each of some configs.
    fn branch(&mut self, keys: &[String]) -> (u64, Vec<Operation>) {
        let number = self.shared.number();
        let mut operations: Vec<Operation> = Vec::new();
        for key in keys {
            let seen = self.shared.seen(key);
            let op = match (self.rng.u8(..10), &seen) {
                (0, None) => Kind::Create,
                (0..2, Some(_)) if !operations.is_empty() => Kind::Delete,
                (2..4, Some(_)) if !operations.is_empty() => Kind::Rollback,
                (4, Some(_)) => Kind::Patch,
                (5, Some(_)) => Kind::Put,
                _ => Kind::Upsert,
            };
            let mut operation = self.draft(key.clone(), op, Guard::Nothing, number);
            if let (Kind::Rollback, Some((revision, value))) = (op, seen) {
                (operation.to, operation.value) = (Some(revision), Some(value));
            }
            operations.push(operation);
        }
        (number, operations)
    }

    /// Sends a transaction and records it; what was chosen, where that is known.
    pub(super) async fn decide(&mut self, draft: Draft) -> Option<Chosen> {
        let Draft { conditions, reads, branches: [(then_number, mut then), (else_number, mut otherwise)] } =
            draft;
        let mut transaction = Transaction {
            branches: [then_number, else_number],
            changes: [!then.is_empty(), !otherwise.is_empty()],
            conditions,
            reads,
            decided: None,
        };
        self.shared.history.begin_transaction(transaction.clone());
        let mut gets: Vec<Operation> = Vec::new();
        for key in &transaction.reads {
            gets.push(self.operation(key.clone(), Kind::Get, Guard::Nothing, None));
        }
        for operation in then.iter_mut().chain(&mut otherwise) {
            operation.call = self.shared.history.now();
            self.shared.history.begin(operation);
        }
        let list = |changes: &[Operation]| changes.iter().chain(&gets).map(step).collect::<Vec<_>>();
        let conditions: Vec<Value> = transaction.conditions.iter().map(condition).collect();
        let body = json!({"if": conditions, "then": list(&then), "else": list(&otherwise)});
        let with_key = self.rng.bool();
        let answer = self.decided(|node| node.post("/api/v1/batch", &body), with_key, false).await;
        let now = self.shared.history.now();
        if let Some(answer) = answer {
            for operation in then.iter_mut().chain(&mut otherwise).chain(&mut gets) {
                (operation.ret, operation.status) = (now, FAILED_DEPENDENCY);
            }
            if answer.status == 200 {
                let succeeded = answer.body["data"]["succeeded"].as_bool();
                let revision = batch_of(&answer);
                if let (Some(succeeded), Some(revision)) = (succeeded, revision) {
                    let changed = if succeeded { &mut then } else { &mut otherwise };
                    acknowledge(changed, &answer, revision);
                    let found = found(&answer, changed.len(), gets.len());
                    let chosen = Chosen { succeeded, revision, found };
                    answer_reads(&mut gets, &chosen, transaction.before(&chosen));
                    transaction.decided = Some(chosen);
                } else {
                    self.shared.history.contradict(format!("an answer to a transaction: {answer:?}"));
                }
            }
        }
        self.shared.history.record_transaction(transaction.clone());
        // The reads first: what is seen last is what the transaction has written.
        gets.into_iter().chain(then).chain(otherwise).for_each(|operation| self.shared.record(operation));
        transaction.decided
    }
}

fn condition((key, is): &(String, Is)) -> Value {
    let (of, config) = key.split_once('/').expect("keys are def/cfg");
    let is = match is {
        Is::Absent => json!({"absent": true}),
        Is::Present => json!({"absent": false}),
        Is::Revision(revision) => json!({"revision": revision}),
        Is::Value(value) => json!({"pointer": "/value", "equals": value}),
    };
    let mut condition = json!({"config_definition_key": of, "config_key": config});
    let members = condition.as_object_mut().expect("it is an object");
    members.extend(is.as_object().expect("it is an object").clone());
    condition
}

/// The changes of the chosen branch, which are done.
fn acknowledge(changed: &mut [Operation], answer: &Answer, revision: u64) {
    let results = &answer.body["data"]["results"];
    for (place, operation) in changed.iter_mut().enumerate() {
        let created = results[place]["created"].as_bool();
        operation.revision = Some(revision);
        operation.state = header(answer, "x-concord-revision");
        operation.status = match (operation.op, created) {
            (Kind::Create, _) | (Kind::Upsert, Some(true)) => 201,
            (Kind::Upsert, None) => CREATED_OR_NOT,
            _ => 200,
        };
    }
}

/// What was read, after the results of so many changes; `None` where a config is not known any more.
fn found(answer: &Answer, changes: usize, reads: usize) -> Option<Vec<Option<(u64, String)>>> {
    let results = answer.body["data"]["results"].as_array()?;
    let read = |result: &Value| {
        let config = result.get("config")?;
        if config.is_null() {
            return Some(None);
        }
        Some(Some((config["revision"].as_u64()?, config["data"]["value"].as_str()?.to_owned())))
    };
    if results.len() != changes + reads {
        return None;
    }
    results[changes..].iter().map(read).collect()
}

/// The reads as operations on the state before the transaction. Those that are not known say nothing.
fn answer_reads(gets: &mut [Operation], chosen: &Chosen, before: u64) {
    for (get, found) in gets.iter_mut().zip(chosen.found.iter().flatten()) {
        get.state = Some(before);
        get.status = if found.is_some() { 200 } else { 404 };
        if let Some((revision, value)) = found {
            (get.revision, get.result) = (Some(*revision), Some(value.clone()));
        }
    }
}
