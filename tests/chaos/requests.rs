//! How operations are sent, sent again, and what an answer says of them.
//!
//! A write with an `Idempotency-Key` is sent again when its outcome is unknown, and now and then when it is known:
//! then the answer must be the same. A refusal counts as the decision on all tries where the service keeps it; else
//! it speaks of its own try only, for an earlier one may still be on its way.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{
    check::BESIDE,
    history::{Kind, Operation},
    workload::{DEFINITIONS, Guard, Worker, changing, data},
};
use crate::harness::{Answer, Call, Client, load::config};

/// Whether an answer certainly stands for every try of a stamped request: what was done, and refusals that are kept.
fn is_final(status: u16, kept: bool) -> bool {
    status < 300 || (kept && matches!(status, 404 | 409 | 412))
}

impl Worker {
    /// Sends a request; with a stamp up to four times. `kept` says that the service keeps its refusals, too. None is
    /// an unknown outcome.
    pub(super) async fn decided(
        &mut self,
        make: impl Fn(&Client) -> Call,
        stamped: bool,
        kept: bool,
    ) -> Option<Answer> {
        let stamp = stamped.then(|| format!("{:032x}", self.dice.u128(..)));
        let make = |node: &Client| match &stamp {
            Some(stamp) => make(node).header("idempotency-key", stamp),
            None => make(node),
        };
        let answer = match (self.send(&make).await, stamped) {
            (Err(()), true) => return self.again(&make, kept).await,
            (answer, _) => answer.ok()?,
        };
        if stamped && is_final(answer.status, kept) && self.dice.u8(..4) == 0 {
            self.compare(&make, &answer).await;
        }
        Some(answer)
    }

    /// Sends it once to some node; `Err` is an unknown outcome.
    async fn send(&mut self, make: &impl Fn(&Client) -> Call) -> Result<Answer, ()> {
        let answer = make(&self.node()).attempt().await.map_err(drop)?;
        if answer.status == 504 { Err(()) } else { Ok(answer) }
    }

    /// Up to three more tries elsewhere: whatever the first try did, a final answer is the one decision on all.
    async fn again(&mut self, make: &impl Fn(&Client) -> Call, kept: bool) -> Option<Answer> {
        for _ in 0..3 {
            match self.send(make).await {
                Ok(answer) if is_final(answer.status, kept) => return Some(answer),
                Ok(_) | Err(()) => tokio::time::sleep(Duration::from_millis(self.dice.u64(50..500))).await,
            }
        }
        None
    }

    /// A decided, stamped write that is sent once more must be answered the same.
    async fn compare(&mut self, make: &impl Fn(&Client) -> Call, first: &Answer) {
        let Ok(second) = self.send(make).await else { return };
        let told = |answer: &Answer| (answer.status, answer.headers.get("etag").cloned(), batch_of(answer));
        if told(first) != told(&second) && !matches!(second.status, 429 | 503 | 507) {
            self.board
                .history
                .complain(format!("a repeated request got another answer: {first:?} {second:?}"));
        }
    }

    /// A config of each of some definitions, written at once.
    pub(super) async fn batch(&mut self) {
        let mut definitions: Vec<usize> = (0..DEFINITIONS.len()).collect();
        self.dice.shuffle(&mut definitions);
        definitions.truncate(self.dice.usize(2..=DEFINITIONS.len()));
        let number = self.board.number();
        let mut members = Vec::new();
        for definition in definitions {
            let (key, _) = self.key(definition);
            let (op, guard) = match self.dice.u8(..10) {
                _ if self.board.seen(&key).is_none() => (Kind::Create, Guard::Nothing),
                // By the value of its first operation a batch is found.
                0..2 if !members.is_empty() => (Kind::Delete, Guard::Nothing),
                0..5 => (Kind::Put, Guard::Nothing),
                5..7 => (Kind::Put, Guard::Revision),
                7..9 => (Kind::Patch, Guard::Nothing),
                _ => (Kind::Patch, Guard::Value),
            };
            members.push(Operation { batch: Some(number), ..self.operation(key, op, guard) });
        }
        let body = json!({"operations": members.iter().map(step).collect::<Vec<_>>()});
        let stamped = self.dice.bool();
        let answer = self.decided(|node| node.post("/api/v1/batch", &body), stamped, false).await;
        if let Some(answer) = answer {
            let now = self.board.history.now();
            complete_all(&mut members, &answer, now);
        }
        members.into_iter().for_each(|member| self.board.note(member));
    }
}

/// The revision of a batch that was done.
fn batch_of(answer: &Answer) -> Option<u64> {
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
        Kind::Get => node.get(&path),
        Kind::Create => node.post(&config(of, ""), &json!({"config_key": key, "data": data()})),
        Kind::Put => node.put(&path, &json!({"data": data()})),
        Kind::Patch => {
            let form = if operation.tested.is_some() { "json-patch" } else { "merge-patch" };
            let call = node.call(Method::PATCH, &path);
            call.text(&format!("application/{form}+json"), &patch(operation).to_string())
        }
        Kind::Delete => node.delete(&path),
    };
    match operation.expected {
        Some(expected) => call.header("if-match", &format!("\"{expected}\"")),
        None => call,
    }
}

/// An operation as one of a batch.
fn step(operation: &Operation) -> Value {
    let (of, key) = operation.key.split_once('/').expect("keys are def/cfg");
    let data = || data(operation.value.as_deref().expect("writes have a value"));
    let (op, more) = match operation.op {
        Kind::Create => ("create_config", json!({"data": data()})),
        Kind::Put => ("put_config", json!({"data": data()})),
        Kind::Patch => ("patch_config", json!({"patch": patch(operation)})),
        Kind::Get | Kind::Delete => ("delete_config", json!({})),
    };
    let mut step = json!({"op": op, "config_definition_key": of, "config_key": key});
    let members = step.as_object_mut().expect("it is an object");
    members.extend(more.as_object().expect("it is an object").clone());
    if let Some(expected) = operation.expected {
        members.insert("if_match".into(), json!(format!("\"{expected}\"")));
    }
    step
}

fn header(answer: &Answer, name: &str) -> Option<u64> {
    answer.headers.get(name)?.to_str().ok()?.trim_matches('"').parse().ok()
}

/// The revision and the value of the record that an answer shows.
pub(super) fn record_of(answer: &Answer) -> Option<(u64, String)> {
    Some((header(answer, "etag")?, answer.body["data"]["data"]["value"].as_str()?.to_owned()))
}

/// What an answer says of its operation.
pub(super) fn complete(operation: &mut Operation, answer: &Answer, now: u64) {
    operation.ret = now;
    operation.status = answer.status;
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
            member.status = BESIDE;
        }
    }
}
