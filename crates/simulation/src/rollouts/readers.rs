//! Who reads: as a reader or not, one config or all, now or at an earlier revision. Readers that see a candidate report how they
//! run, and a monitor says what gates say.

use std::{rc::Rc, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use super::{CONFIGS, How, READERS, Seen, Version, Who, number_of, path, plan};
use crate::{
    chaos::changes::CHANGES,
    harness::{Answer, Call, Client, time::pace},
    workload::Run,
};

/// One host that reads.
pub(super) struct Reading {
    pub(super) run: Rc<Run>,
    pub(super) nodes: Vec<Client>,
    pub(super) rng: fastrand::Rng,
}

/// A request as a reader sends it.
pub(super) fn as_reader(call: Call, who: Who) -> Call {
    let Some(reader) = who else { return call };
    let (name, labels) = READERS[reader];
    let call = call.header("x-concord-reader", name);
    if labels.is_empty() { call } else { call.header("x-concord-labels", labels) }
}

/// The value of a config's data.
pub(super) fn value_of(data: &Value) -> String {
    data["value"].as_str().unwrap_or_default().to_owned()
}

/// The body of a read of configs by their numbers.
fn wanted(configs: impl Iterator<Item = usize>) -> Value {
    let one = |config: usize| {
        let (definition, key) = CONFIGS[config];
        json!({"config_definition_key": definition, "config_key": key})
    };
    json!({"configs": configs.map(one).collect::<Vec<_>>()})
}

/// Configs by their numbers, as a read shows them.
type Shown = Vec<(usize, Option<Version>)>;

/// What a read of several configs shows, and at which revision; `None` if it was rejected.
pub(super) fn shown_of_many(answer: &Answer) -> Option<(u64, Shown)> {
    if answer.status != 200 {
        return None;
    }
    let data = &answer.body["data"];
    let item = |result: &Value| {
        let text = |name: &str| result[name].as_str().unwrap_or_default();
        let config = number_of(text("config_definition_key"), text("config_key"))?;
        let version = (text("status") == "found").then(|| Version {
            value: value_of(&result["config"]["data"]),
            variant: result["variant"]["change_id"].as_str().map(str::to_owned),
            revision: result["revision"].as_u64(),
        });
        Some((config, version))
    };
    let items = data["results"].as_array()?.iter().filter_map(item).collect();
    Some((data["revision"].as_u64()?, items))
}

/// Notes a read of several configs.
fn note(
    run: &Run,
    (node, who, how): (&Client, Who, How),
    (call, is_linearizable): (u64, bool),
    answer: &Answer,
) {
    let Some((revision, items)) = shown_of_many(answer) else { return };
    let (node, ret) = (node.base.clone(), run.shared.history.now());
    let items = items.into_iter().collect();
    let seen = Seen { who, how, node, revision, call, ret, is_linearizable, items };
    run.rollouts.seen.borrow_mut().push(seen);
}

/// Reads all configs at once, linearizably, until there is an answer.
pub(super) async fn read_all(node: &Client, run: &Run, who: Who) {
    let call = run.shared.history.now();
    let answer = as_reader(node.post("/api/v1/read", &wanted(0..CONFIGS.len())), who).insist().await;
    note(run, (node, who, How::Read), (call, true), &answer);
}

impl Reading {
    pub(super) async fn run(mut self) {
        while !self.run.shared.stop.load(Ordering::Relaxed) {
            self.step().await;
            pace(Duration::from_millis(self.rng.u64(5..60))).await;
        }
    }

    fn node(&mut self) -> Client {
        let place = self.rng.usize(..self.nodes.len());
        self.nodes[place].clone()
    }

    /// A node with the key of somebody who may report.
    fn reporter(&mut self) -> Client {
        let mut node = self.node();
        node.key = self.rng.choice(self.run.rollouts.keys.borrow().iter()).expect("people").clone();
        node
    }

    async fn step(&mut self) {
        let who = (self.rng.u8(..5) > 0).then(|| self.rng.usize(..READERS.len()));
        match self.rng.u8(..20) {
            0..9 => self.get(who).await,
            9..17 => self.read_many(who).await,
            17 => self.read_past(who).await,
            _ => self.say().await,
        }
    }

    /// How consistent a read is: the parameter, and whether it is linearizable.
    fn consistency(&mut self, call: Call) -> (Call, bool) {
        match self.rng.u8(..10) {
            0..6 => (call, true),
            6..8 => (call.query(&[("consistency", "lease")]), false),
            _ => (call.query(&[("consistency", "local")]), false),
        }
    }

    async fn get(&mut self, who: Who) {
        let (node, config) = (self.node(), self.rng.usize(..CONFIGS.len()));
        let (call, is_linearizable) = self.consistency(as_reader(node.get(&path(config)), who));
        let begun = self.run.shared.history.now();
        let Ok(answer) = call.attempt().await else { return };
        let Ok(revision) = answer.header("x-concord-revision").parse() else { return };
        let variant =
            answer.header("x-concord-variant").strip_prefix("candidate; change=").map(str::to_owned);
        let tag = answer.header("etag").trim_matches('"').to_owned();
        let version = match answer.status {
            200 => Some(Version {
                value: value_of(&answer.body["data"]["data"]),
                variant: variant.clone(),
                revision: tag.parse().ok(),
            }),
            404 => None,
            _ => return,
        };
        // It names the edition, too.
        let is_of = |change: &str| tag.strip_prefix(change).is_some_and(|rest| rest.starts_with('-'));
        if variant.as_deref().is_some_and(|change| !is_of(change)) {
            let wrong = format!("the entity tag of a candidate is another one: {answer:?}");
            self.run.shared.history.contradict(wrong);
        }
        let (node, ret) = (node.base, self.run.shared.history.now());
        let items = [(config, version)].into();
        let seen = Seen { who, how: How::Read, node, revision, call: begun, ret, is_linearizable, items };
        self.run.rollouts.seen.borrow_mut().push(seen);
        self.report(who, variant).await;
    }

    async fn read_many(&mut self, who: Who) {
        let (node, first) = (self.node(), self.rng.usize(..2));
        let call = as_reader(node.post("/api/v1/read", &wanted(first..CONFIGS.len())), who);
        let (call, is_linearizable) = self.consistency(call);
        let begun = self.run.shared.history.now();
        let Ok(answer) = call.attempt().await else { return };
        note(&self.run, (&node, who, How::Read), (begun, is_linearizable), &answer);
        let variants = shown_of_many(&answer).into_iter().flat_map(|(_, items)| items);
        let variants: Vec<String> = variants.filter_map(|(_, version)| version?.variant).collect();
        let variant = self.rng.choice(variants);
        self.report(who, variant).await;
    }

    /// Reads all configs as they were some changes ago.
    async fn read_past(&mut self, who: Who) {
        let newest = self.run.rollouts.seen.borrow().iter().map(|seen| seen.revision).max();
        let Some(newest) = newest else { return };
        let (node, at) = (self.node(), newest.saturating_sub(self.rng.u64(..20)));
        let mut body = wanted(0..CONFIGS.len());
        body["revision"] = at.into();
        let begun = self.run.shared.history.now();
        let Ok(answer) = as_reader(node.post("/api/v1/read", &body), who).attempt().await else { return };
        note(&self.run, (&node, who, How::AtRevision), (begun, false), &answer);
    }

    /// A reader says how it runs with a candidate. Sometimes it says so although it sees none.
    async fn report(&mut self, who: Who, variant: Option<String>) {
        let rollouts = &self.run.rollouts;
        let change = match variant {
            Some(change) if self.rng.u8(..10) < 7 => change,
            None if self.rng.u8(..20) == 0 => {
                let rolling: Vec<String> = rollouts.rolling.borrow().iter().cloned().collect();
                let Some(change) = self.rng.choice(rolling) else { return };
                change
            }
            Some(_) | None => return,
        };
        let Some(reader) = who else { return };
        let is_healthy = self.rng.u8(..30) > 0;
        if is_healthy {
            rollouts.healthy.borrow_mut().entry(change.clone()).or_default().insert(reader);
        }
        let (name, labels) = READERS[reader];
        let state = if is_healthy { "healthy" } else { "failed" };
        let body = json!({"reader": name, "labels": labels, "state": state, "detail": "a detail"});
        // An answer that is lost is followed by another report, sometime.
        drop(self.reporter().post(&format!("{CHANGES}{change}/report"), &body).attempt().await);
    }

    /// A monitor says that all is well, mostly.
    async fn say(&mut self) {
        let (gate, is_ok) = (plan::gate(&mut self.rng), self.rng.u8(..25) > 0);
        if is_ok {
            self.run.rollouts.good.borrow_mut().insert(gate.to_owned());
        }
        let body = json!({"ok": is_ok, "evidence": "a number"});
        drop(self.reporter().post(&format!("/api/v1/gate/{gate}"), &body).attempt().await);
    }
}
