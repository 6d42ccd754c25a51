//! What a key may not do is refused whatever happens, and a secret value is shown to nobody who may not see it.
//!
//! Two keys that stay as they are for the whole run: one reads everything without `reveal`, the other works on one
//! definition. Secret values and forbidden ones can be told from all others, so that any answer that has one is found.
//! No forbidden value is in the record: if one is written, the service's history has what nobody wrote.

use std::time::Duration;

use serde_json::{Value, json};

use super::workload::{DEFINITIONS, Shared, Worker};
use crate::harness::{
    Answer, Client,
    load::{config, definition},
    time::pace,
};

/// The definition whose configs have secret values.
const SECRET: &str = "chaos.secret";
/// Its configs.
const SECRETS: u64 = 3;
/// What every secret value begins with.
const HIDDEN: &str = "hidden-";

/// The texts of the two keys.
#[derive(Debug, Default, Clone)]
pub(crate) struct Limited {
    /// May read everything, and see no secret value.
    reader: String,
    /// May do everything with configs of the first definition only.
    narrow: String,
}

/// Creates the keys and the definition.
pub(crate) async fn prepare(client: &Client, shared: &Shared) {
    let secret = json!({"properties": {"secret": {"type": "string", "x-concord-secret": true}}});
    let body = json!({"config_definition_key": SECRET, "indexes": [], "json_schema": secret});
    let post = client.post("/api/v1/config_definition/", &body);
    post.header("idempotency-key", SECRET).insist().await.expect(201);
    let reader = key(client, &json!([{"verbs": ["read"], "definitions": ["*"]}])).await;
    let verbs = ["read", "reveal", "write"];
    let narrow = key(client, &json!([{"verbs": verbs, "definitions": [DEFINITIONS[0]]}])).await;
    *shared.limited.lock().expect("no client panics") = Limited { reader, narrow };
}

/// A key with these grants. Without an idempotency key: an answer that comes late has no text of the key. One whose
/// answer is lost is used by nobody.
async fn key(client: &Client, grants: &Value) -> String {
    let call = client.post("/api/v1/api_key/", &json!({"name": "limited", "grants": grants}));
    loop {
        let answer = call.insist().await;
        // The cluster has not risen yet to the level that has keys.
        if answer.status == 409 {
            pace(Duration::from_millis(50)).await;
            continue;
        }
        return answer.expect(201).data()["api_key"].as_str().expect("a text").to_owned();
    }
}

impl Worker {
    /// Writes a secret value, or tries what a key may not do.
    pub(super) async fn limited(&mut self) {
        self.credential = None;
        let Limited { reader, narrow } = self.shared.limited.lock().expect("no client panics").clone();
        let forbidden = json!({"value": format!("{HIDDEN}{}", self.shared.number())});
        let one = config(SECRET, &format!("s{}", self.rng.u64(..SECRETS)));
        match self.rng.u8(..8) {
            0..2 => {
                let secret = json!({"secret": format!("{HIDDEN}{}", self.shared.number())});
                let put = self.node().put(&one, &json!({"data": secret})).query(&[("upsert", "true")]);
                // What becomes of it does not matter.
                drop(put.attempt().await);
            }
            2..6 => self.peek(&reader, &one).await,
            6 => {
                let (own, key) = (DEFINITIONS[0], format!("narrow-{}", self.rng.u8(..3)));
                let put = |of: &str| {
                    let data = &forbidden;
                    json!({"op": "put_config", "config_definition_key": of, "config_key": key, "data": data, "upsert": true})
                };
                let operations = [put(own), put(DEFINITIONS[1])];
                let node = with_key(self.node(), &narrow);
                let answer = node.post("/api/v1/batch", &json!({"operations": operations})).attempt().await;
                self.must_be_refused(answer);
            }
            _ => {
                let node = with_key(self.node(), if self.rng.bool() { &narrow } else { &reader });
                let path = config(DEFINITIONS[1], "forbidden");
                let answer = node.put(&path, &json!({"data": forbidden})).query(&[("upsert", "true")]);
                self.must_be_refused(answer.attempt().await);
                let node = with_key(self.node(), &narrow);
                self.must_be_refused(node.get(&one).attempt().await);
            }
        }
    }

    /// Reads secret values without the right to see them: as they are, as they were, in a list, as changes.
    async fn peek(&mut self, reader: &str, one: &str) {
        let node = with_key(self.node(), reader);
        let now = self.shared.newest();
        let at = self.rng.u64(now / 2..=now).to_string();
        let from = now.saturating_sub(self.rng.u64(..20)).max(1).to_string();
        let call = match self.rng.u8(..5) {
            0 => node.get(one),
            1 => node.get(one).query(&[("revision", &at)]),
            2 => node.get(&format!("{one}/history")),
            3 => node.get(&format!("{}/config/", definition(SECRET))),
            _ => node.get("/api/v1/changes").query(&[("definition", SECRET), ("from", &from), ("wait", "0")]),
        };
        let Ok(answer) = call.attempt().await else { return };
        if answer.text.contains(HIDDEN) {
            self.shared.history.contradict(format!("a secret value is shown: {answer:?}"));
        }
    }

    fn must_be_refused(&self, answer: Result<Answer, String>) {
        let Ok(answer) = answer else { return };
        if answer.status < 300 {
            self.shared.history.contradict(format!("a key did what it may not do: {answer:?}"));
        }
    }
}

fn with_key(mut node: Client, text: &str) -> Client {
    text.clone_into(&mut node.key);
    node
}
