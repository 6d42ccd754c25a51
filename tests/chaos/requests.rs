//! How operations are sent and repeated, and what an answer says of them.
//!
//! A write with an `Idempotency-Key` is repeated when its outcome is unknown, and sometimes when it is known: then the
//! answer must be the same. A refusal is the decision on all attempts where the service remembers it; else it is about
//! its own attempt only, because an earlier one may still arrive.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{
    check::FAILED_DEPENDENCY,
    history::{Kind, Operation},
    workload::{Guard, Worker, changing, data},
};
use crate::harness::{
    Answer, Call, Client,
    load::{config, lease_reads},
    time::pace,
};

/// Whether an answer is certainly the one of every attempt with the same idempotency key: a success, or a refusal that
/// is remembered.
fn is_final(answer: &Answer, remembered: bool) -> bool {
    answer.status < 300 || (remembered && matches!(answer.status, 404 | 409 | 412) && !is_frozen(answer))
}

/// Whether it is the refusal of a freeze. It is not remembered: the same request may be applied later.
fn is_frozen(answer: &Answer) -> bool {
    answer.body["errors"][0]["code"] == "environment_frozen"
}

impl Worker {
    /// Sends a request; with an idempotency key up to four times. `remembered` says that the service remembers its
    /// refusals, too. None is an unknown outcome.
    pub(super) async fn decided(
        &mut self,
        make: impl Fn(&Client) -> Call,
        with_key: bool,
        remembered: bool,
    ) -> Option<Answer> {
        let id = with_key.then(|| format!("{:032x}", self.rng.u128(..)));
        let make = |node: &Client| match &id {
            Some(id) => make(node).header("idempotency-key", id),
            None => make(node),
        };
        let answer = match (self.send(&make).await, with_key) {
            (Err(()), true) => return self.again(&make, remembered).await,
            (answer, _) => answer.ok()?,
        };
        if with_key && is_final(&answer, remembered) && self.rng.u8(..4) == 0 {
            self.compare(&make, &answer).await;
        }
        Some(answer)
    }

    /// Sends it once to a random node; `Err` is an unknown outcome.
    async fn send(&mut self, make: &impl Fn(&Client) -> Call) -> Result<Answer, ()> {
        let answer = make(&self.node()).attempt().await.map_err(drop)?;
        if answer.status == 504 { Err(()) } else { Ok(answer) }
    }

    /// Up to three more attempts elsewhere: whatever the first did, a final answer is the decision on all.
    async fn again(&mut self, make: &impl Fn(&Client) -> Call, remembered: bool) -> Option<Answer> {
        for _ in 0..3 {
            match self.send(make).await {
                Ok(answer) if is_final(&answer, remembered) => return Some(answer),
                Ok(_) | Err(()) => pace(Duration::from_millis(self.rng.u64(50..500))).await,
            }
        }
        None
    }

    /// A decided write that is repeated with its idempotency key must be answered the same.
    async fn compare(&mut self, make: &impl Fn(&Client) -> Call, first: &Answer) {
        let Ok(second) = self.send(make).await else { return };
        let compared = |answer: &Answer| {
            let of_transaction = answer.body["data"]["succeeded"].clone();
            (answer.status, answer.headers.get("etag").cloned(), batch_of(answer), of_transaction)
        };
        if compared(first) != compared(&second) && !matches!(second.status, 401 | 403 | 429 | 503 | 507) {
            self.shared
                .history
                .contradict(format!("a repeated request got another answer: {first:?} {second:?}"));
        }
    }

    /// Writes a config of each of some definitions in one batch.
    pub(super) async fn batch(&mut self) {
        let definitions = self.definitions();
        let number = self.shared.number();
        let mut members = Vec::new();
        for definition in definitions {
            let (key, _) = self.key(definition);
            let (op, guard) = match self.rng.u8(..10) {
                _ if self.shared.seen(&key).is_none() => (Kind::Create, Guard::Nothing),
                // A batch is found by the value of its first operation, so that is no delete.
                0..2 if !members.is_empty() => (Kind::Delete, Guard::Nothing),
                0..5 => (Kind::Put, Guard::Nothing),
                5..7 => (Kind::Put, Guard::Revision),
                7..9 => (Kind::Patch, Guard::Nothing),
                _ => (Kind::Patch, Guard::Value),
            };
            members.push(self.operation(key, op, guard, Some(number)));
        }
        let body = json!({"operations": members.iter().map(step).collect::<Vec<_>>()});
        let with_key = self.rng.bool();
        let answer = self.decided(|node| node.post("/api/v1/batch", &body), with_key, false).await;
        if let Some(answer) = answer {
            let now = self.shared.history.now();
            complete_all(&mut members, &answer, now);
        }
        members.into_iter().for_each(|member| self.shared.record(member));
    }
}

/// The revision of a batch that was done.
pub(super) fn batch_of(answer: &Answer) -> Option<u64> {
    answer.body["data"]["revision"].as_u64()
}

/// The patch that gives a config the operation's value.
fn patch(operation: &Operation) -> Value {
    let members = changing(operation.value.as_deref().expect("writes have a value"));
    let Some(tested) = &operation.tested else { return members };
    let mut steps = vec![json!({"op": "test", "path": "/value", "value": tested})];
    let members = members.as_object().expect("it is an object");
    let replace = |(name, value)| json!({"op": "replace", "path": format!("/{name}"), "value": value});
    steps.extend(members.iter().map(replace));
    json!(steps)
}

/// An operation on one key as a request of its own.
pub(super) fn request(node: &Client, operation: &Operation) -> Call {
    let (of, key) = operation.key.split_once('/').expect("keys are def/cfg");
    let path = config(of, key);
    let data = || data(operation.value.as_deref().expect("writes have a value"));
    let call = match operation.op {
        // They promise the same while clocks keep their rate, as all do here. The call's time is as good as a die.
        Kind::Get if lease_reads() && operation.call.is_multiple_of(3) => {
            node.get(&path).query(&[("consistency", "lease")])
        }
        Kind::Get => node.get(&path),
        Kind::Create => node.post(&config(of, ""), &json!({"config_key": key, "data": data()})),
        Kind::Put => node.put(&path, &json!({"data": data()})),
        Kind::Upsert => node.put(&path, &json!({"data": data()})).query(&[("upsert", "true")]),
        Kind::Rollback => node.post(&format!("{path}/rollback"), &json!({"revision": operation.to})),
        Kind::Patch => {
            let kind = if operation.tested.is_some() { "json-patch" } else { "merge-patch" };
            let call = node.call(Method::PATCH, &path);
            call.text(&format!("application/{kind}+json"), &patch(operation).to_string())
        }
        Kind::Delete => node.delete(&path),
    };
    match operation.expected {
        // Any of a list: no config has the revision of the first definition.
        Some(expected) if operation.call.is_multiple_of(2) => {
            call.header("if-match", &format!("\"1\", \"{expected}\""))
        }
        Some(expected) => call.header("if-match", &format!("\"{expected}\"")),
        None => call,
    }
}

/// An operation as one of a batch.
pub(super) fn step(operation: &Operation) -> Value {
    let (of, key) = operation.key.split_once('/').expect("keys are def/cfg");
    let data = || data(operation.value.as_deref().expect("writes have a value"));
    let (op, more) = match operation.op {
        Kind::Create => ("create_config", json!({"data": data()})),
        Kind::Put => ("put_config", json!({"data": data()})),
        Kind::Upsert => ("put_config", json!({"data": data(), "upsert": true})),
        Kind::Patch => ("patch_config", json!({"patch": patch(operation)})),
        Kind::Delete => ("delete_config", json!({})),
        Kind::Rollback => ("rollback_config", json!({"revision": operation.to})),
        Kind::Get => ("get_config", json!({})),
    };
    let mut step = json!({"op": op, "config_definition_key": of, "config_key": key});
    let members = step.as_object_mut().expect("it is an object");
    members.extend(more.as_object().expect("it is an object").clone());
    if let Some(expected) = operation.expected {
        members.insert("if_match".into(), json!(format!("\"{expected}\"")));
    }
    step
}

pub(super) fn header(answer: &Answer, name: &str) -> Option<u64> {
    answer.headers.get(name)?.to_str().ok()?.trim_matches('"').parse().ok()
}

/// The revision and the value of the record that an answer shows.
pub(super) fn record_of(answer: &Answer) -> Option<(u64, String)> {
    Some((header(answer, "etag")?, answer.body["data"]["data"]["value"].as_str()?.to_owned()))
}

/// What an answer says of its operation.
pub(super) fn complete(operation: &mut Operation, answer: &Answer, now: u64) {
    operation.ret = now;
    operation.status = match answer.status {
        // Another config is in its way, or a freeze.
        409 if answer.body["errors"][0]["code"] == "unique_taken" || is_frozen(answer) => FAILED_DEPENDENCY,
        // The config that it brings back was deleted, or was not.
        201 if operation.op == Kind::Rollback => 200,
        status => status,
    };
    operation.state = header(answer, "x-concord-revision");
    if answer.status < 300 {
        operation.revision = header(answer, "etag");
        if operation.op == Kind::Get {
            operation.result = record_of(answer).map(|(_, value)| value);
        }
    }
}

/// What an answer to a batch says of its operations: a refusal is about the one that it names, and nothing was done.
fn complete_all(members: &mut [Operation], answer: &Answer, now: u64) {
    let named = answer.body["errors"][0]["loc"][1].as_u64();
    for (place, member) in (0..).zip(members) {
        complete(member, answer, now);
        member.revision = batch_of(answer);
        if answer.status == 200 && member.op == Kind::Create {
            member.status = 201;
        } else if matches!(answer.status, 404 | 409 | 412) && named != Some(place) {
            member.status = FAILED_DEPENDENCY;
        }
    }
}
