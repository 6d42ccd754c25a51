//! Operations that cost much, among the others: lists that examine many configs, schemas that are costly to compile and
//! to check, dry runs of them.
//!
//! What they may be answered is not known in advance, except that a list is right whenever it is answered: the configs
//! that it lists never change.

use std::{collections::BTreeMap, sync::Mutex};

use serde_json::{Value, json};

use super::workload::Worker;
use crate::harness::{Answer, Client, load::definition};

/// The definition whose configs are listed. They are written once.
const WIDE: &str = "wide";
/// Its configs.
const CONFIGS: u64 = 2000;
/// The definition whose schema is changed.
const COSTLY: &str = "costly";

/// How often each operation was answered, by status.
#[derive(Debug, Default)]
pub(crate) struct Expensive(Mutex<BTreeMap<String, u64>>);

impl Expensive {
    fn count(&self, what: &str, answer: &Result<Answer, String>) {
        let status = answer.as_ref().map_or_else(|_| "lost".to_owned(), |answer| answer.status.to_string());
        *self.0.lock().expect("no client panics").entry(format!("{what} {status}")).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> Value {
        json!(*self.0.lock().expect("no client panics"))
    }
}

/// Creates what the operations need.
pub(crate) async fn prepare(client: &Client) {
    for (name, indexes) in [(WIDE, json!(["n", "tags"])), (COSTLY, json!([]))] {
        let body = json!({"config_definition_key": name, "indexes": indexes});
        let post = client.post("/api/v1/config_definition/", &body);
        post.header("idempotency-key", name).insist().await.expect(201);
    }
    for part in 0..CONFIGS / 500 {
        let create = |n: u64| {
            let data = json!({"n": n, "tags": [n % 7, n % 11, n % 13], "text": "x".repeat(500)});
            json!({"op": "create_config", "config_definition_key": WIDE, "config_key": format!("c{n}"), "data": data})
        };
        let operations: Vec<Value> = (part * 500..(part + 1) * 500).map(create).collect();
        let batch = client.post("/api/v1/batch", &json!({"operations": operations}));
        batch.header("idempotency-key", &format!("wide{part}")).insist().await.expect(200);
    }
}

impl Worker {
    pub(super) async fn expensive(&mut self) {
        let node = self.node();
        match self.rng.u8(..4) {
            0 | 1 => self.wide_list(&node).await,
            2 => {
                let path = format!("{}/schema", definition(COSTLY));
                let schema = costly_schema(self.rng.usize(10..200));
                let answer = node.put(&path, &json!({"json_schema": schema})).attempt().await;
                self.shared.expensive.count("schema", &answer);
            }
            _ => {
                let items: Vec<String> = (0..self.rng.usize(100..2000)).map(|n| format!("a{n}")).collect();
                let body = json!({"config_key": "k", "data": {"items": items}});
                let call = node.post(&format!("{}/config/", definition(COSTLY)), &body);
                let answer = call.query(&[("dry_run", "true")]).attempt().await;
                self.shared.expensive.count("dry run", &answer);
            }
        }
    }

    /// A list with filters that all configs must be compared with.
    async fn wide_list(&mut self, node: &Client) {
        let (below, page) = (self.rng.u64(..CONFIGS), self.rng.u64(1..4).to_string());
        let (below_text, not) = (below.to_string(), self.rng.u64(..CONFIGS));
        let not_text = not.to_string();
        let call = node.get(&format!("{}/config/", definition(WIDE))).query(&[
            ("limit", "100"),
            ("page", &page),
            ("sort_by", "n"),
            ("sort_order", "desc"),
            ("n[lt]", &below_text),
            ("n[ne]", &not_text),
            ("search", "c"),
        ]);
        let answer = call.attempt().await;
        self.shared.expensive.count("list", &answer);
        let Ok(answer) = answer else { return };
        let expected = below - u64::from(not < below);
        let total = answer.body["data"]["meta"]["total"].as_u64();
        if answer.status == 200 && total != Some(expected) {
            self.shared.history.contradict(format!("a list of {expected} configs: {answer:?}"));
        }
    }
}

/// A schema with many patterns and alternatives, within the limits or beyond.
fn costly_schema(alternatives: usize) -> Value {
    let one =
        |n: usize| json!({"pattern": format!("^(a|b|[c-z]{{1,{}}})*\\\\w{n}$", n % 50 + 1), "maxLength": n});
    let any: Vec<Value> = (0..alternatives).map(one).collect();
    json!({"properties": {"items": {"items": {"anyOf": any}}}})
}
