//! The people: each proposes a change of configs with a plan, another approves it, somebody begins it; then they pause it,
//! let it go on, advance it or take it back, and write what is in it, until it has ended.

use std::{rc::Rc, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use super::{CONFIGS, ENVIRONMENT, PEOPLE, Sent, Status, path, plan::Plan};
use crate::{
    chaos::changes::CHANGES,
    harness::{Answer, Call, Client, time::pace},
    workload::Run,
};

/// Attempts to begin what is open.
const BEGINS_MAX: u8 = 4;

/// One of them.
pub(super) struct Roller {
    pub(super) run: Rc<Run>,
    pub(super) nodes: Vec<Client>,
    pub(super) rng: fastrand::Rng,
}

impl Roller {
    pub(super) async fn run(mut self) {
        while !self.is_over() {
            if let Some((id, digest)) = self.propose().await {
                self.drive(&id, &digest).await;
            }
            pace(Duration::from_millis(self.rng.u64(5..200))).await;
        }
    }

    fn is_over(&self) -> bool {
        self.run.shared.stop.load(Ordering::Relaxed)
    }

    /// A node with the key of a person.
    fn node(&mut self, person: usize) -> Client {
        let mut node = self.nodes[self.rng.usize(..self.nodes.len())].clone();
        node.key.clone_from(&self.run.rollouts.keys.borrow()[person]);
        node
    }

    fn anybody(&mut self) -> Client {
        let person = self.rng.usize(..PEOPLE.len());
        self.node(person)
    }

    /// Sends it with an idempotency key until it is decided; `None` when the run ends before.
    async fn insist(&mut self, person: usize, make: impl Fn(&Client) -> Call) -> Option<Answer> {
        let key = format!("{:032x}", self.rng.u128(..));
        while !self.is_over() {
            let answer = make(&self.node(person)).header("idempotency-key", &key).attempt().await;
            match answer {
                Ok(answer) if !matches!(answer.status, 429 | 503 | 504 | 507) => return Some(answer),
                Ok(_) | Err(_) => pace(Duration::from_millis(self.rng.u64(50..300))).await,
            }
        }
        None
    }

    fn value(&self) -> String {
        format!("roll-{}", self.run.rollouts.number())
    }

    /// An edition: its body, and what is in it.
    fn edition(&mut self) -> (String, Value, Sent) {
        let mut configs: Vec<usize> = (0..CONFIGS.len()).collect();
        self.rng.shuffle(&mut configs);
        configs.truncate([1, 2, 2, 3][self.rng.usize(..4)]);
        let plan = Plan::draw(&mut self.rng);
        let sent = Sent { plan, values: configs.iter().map(|config| (*config, self.value())).collect() };
        let operation = |(config, value): (&usize, &String)| {
            let (definition, key) = CONFIGS[*config];
            json!({
                "op": "put_config", "config_definition_key": definition, "config_key": key, "data": {"value": value},
            })
        };
        let title = format!("{ENVIRONMENT} t{}", self.run.rollouts.number());
        let operations: Vec<Value> = sent.values.iter().map(operation).collect();
        let body = json!({"title": title, "operations": operations, "rollout": sent.plan.json()});
        (title, body, sent)
    }

    /// Proposes a change as one person, and approves it as another. Returns its id and its digest.
    async fn propose(&mut self) -> Option<(String, String)> {
        let (title, body, sent) = self.edition();
        self.run.rollouts.sent.borrow_mut().insert(title, sent);
        let author = self.rng.usize(..PEOPLE.len());
        let made = self.insist(author, |node| node.post(CHANGES, &body)).await?;
        if made.status != 201 {
            // A config is not there, or the level is not.
            if !matches!(made.status, 404 | 409 | 412) {
                self.run.shared.history.contradict(format!("a plan is rejected: {made:?}"));
            }
            return None;
        }
        let text = |name: &str| made.body["data"][name].as_str().unwrap_or_default().to_owned();
        let (id, digest) = (text("change_id"), text("digest"));
        if self.rng.u8(..12) > 0 {
            let approver = (author + self.rng.usize(1..PEOPLE.len())) % PEOPLE.len();
            let body = json!({"digest": digest});
            self.insist(approver, |node| node.post(&format!("{CHANGES}{id}/approve"), &body)).await?;
        }
        Some((id, digest))
    }

    /// Begins it, and does something with it until it has ended.
    async fn drive(&mut self, id: &str, digest: &str) {
        let mut begins = 0;
        while !self.is_over() {
            let Some(status) = self.look(id).await else { continue };
            match status.phase.as_str() {
                "open" | "scheduled" if begins < BEGINS_MAX => {
                    begins += 1;
                    self.act(id, "apply", &json!({"digest": digest})).await;
                }
                "open" | "scheduled" => self.act(id, "withdraw", &json!({})).await,
                "rolling" => self.steer(id, digest, &status).await,
                "applied" if self.rng.u8(..4) == 0 => {
                    self.act(id, "revert", &json!({"digest": digest})).await;
                    return;
                }
                _ => return,
            }
            pace(Duration::from_millis(self.rng.u64(10..150))).await;
        }
    }

    /// What a change request shows.
    async fn look(&mut self, id: &str) -> Option<Status> {
        let call = self.anybody().get(&format!("{CHANGES}{id}"));
        let call = if self.rng.u8(..4) == 0 { call.query(&[("consistency", "local")]) } else { call };
        let answer = call.attempt().await.ok().filter(|answer| answer.status == 200);
        let Some(answer) = answer else {
            pace(Duration::from_millis(50)).await;
            return None;
        };
        self.run.rollouts.note(&answer, self.run.shared.history.now())
    }

    /// Does something to it once.
    async fn act(&mut self, id: &str, action: &str, body: &Value) {
        let answer = self.anybody().post(&format!("{CHANGES}{id}/{action}"), body).attempt().await;
        let is_rejected = answer
            .as_ref()
            .is_ok_and(|answer| (400..500).contains(&answer.status) || matches!(answer.status, 503 | 507));
        if action == "advance" && !is_rejected {
            self.run.rollouts.advanced.borrow_mut().insert(id.to_owned());
        }
        if let Ok(answer) = answer
            && answer.status >= 500
            && !matches!(answer.status, 503 | 504 | 507)
        {
            self.run.shared.history.contradict(format!("a request about a rollout: {answer:?}"));
        }
    }

    /// Something that people do while it rolls; mostly nothing.
    async fn steer(&mut self, id: &str, digest: &str, status: &Status) {
        let is_paused = status.progress.as_ref().is_some_and(|progress| progress.is_paused);
        let comment = json!({"comment": "why"});
        match self.rng.u8(..100) {
            0..3 => self.act(id, "abort", &comment).await,
            3 => self.act(id, "withdraw", &comment).await,
            4..8 => self.act(id, "pause", &comment).await,
            8..12 => self.act(id, "advance", &json!({})).await,
            12..14 => self.act(id, "apply", &json!({"digest": digest})).await,
            14..24 => self.overwrite(status).await,
            24..26 => self.edit(id).await,
            26..80 if is_paused => self.act(id, "resume", &json!({})).await,
            _ => {}
        }
    }

    /// Writes a config, more often one that is in this rollout: by itself, in a batch or in a transaction.
    async fn overwrite(&mut self, status: &Status) {
        let in_it = self.run.rollouts.sent.borrow().get(&status.title).map(|sent| sent.values.clone());
        let in_it: Vec<usize> = in_it.unwrap_or_default().into_keys().collect();
        let any = self.rng.usize(..CONFIGS.len());
        let config = if self.rng.u8(..4) > 0 { self.rng.choice(in_it).unwrap_or(any) } else { any };
        let (node, value) = (self.anybody(), self.value());
        let ((definition, key), data) = (CONFIGS[config], json!({"value": value}));
        let put = json!({
            "op": "put_config", "config_definition_key": definition, "config_key": key, "data": data, "upsert": true,
        });
        let call = match self.rng.u8(..4) {
            0 => node.post("/api/v1/batch", &json!({"operations": [put]})),
            1 => node.post("/api/v1/transaction", &json!({"if": [], "then": [put]})),
            _ => node.put(&path(config), &json!({"data": data})).query(&[("upsert", "true")]),
        };
        drop(call.attempt().await);
    }

    /// Tries to edit what rolls.
    async fn edit(&mut self, id: &str) {
        let (title, body, sent) = self.edition();
        self.run.rollouts.sent.borrow_mut().insert(title, sent);
        drop(self.anybody().put(&format!("{CHANGES}{id}"), &body).attempt().await);
    }
}
