//! Watches and polls, as a reader or not, whose events are applied to what was there when they began.
//!
//! **Invariant (O7 of the design):** what is there after an event is what a read at that revision shows to the same reader.

use std::{collections::BTreeMap, rc::Rc, sync::atomic::Ordering, time::Duration};

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    CONFIGS, DEFINITIONS, ENVIRONMENT, Followed, READERS, Version, Who, number_of,
    readers::{as_reader, shown_of_many, value_of},
};
use crate::{
    harness::{Call, Client, event, time::pace},
    workload::Run,
};

/// How long one waits for the next event before it looks whether the run is over.
const NEXT_EVENT_TIMEOUT: Duration = Duration::from_millis(500);

/// One host that follows.
pub(super) struct Following {
    pub(super) run: Rc<Run>,
    pub(super) nodes: Vec<Client>,
    pub(super) rng: fastrand::Rng,
}

/// Which configs are followed.
#[derive(Debug, Clone, Copy)]
enum Scope {
    All,
    Definition(usize),
    Config(usize),
}

impl Scope {
    fn draw(rng: &mut fastrand::Rng) -> Self {
        match rng.u8(..4) {
            0 => Self::Definition(rng.usize(..DEFINITIONS.len())),
            1 => Self::Config(rng.usize(..CONFIGS.len())),
            _ => Self::All,
        }
    }

    fn add_to(self, call: Call) -> Call {
        match self {
            Self::All => call.query(&[("definition", &format!("{ENVIRONMENT}.*"))]),
            Self::Definition(definition) => call.query(&[("definition", DEFINITIONS[definition])]),
            Self::Config(config) => {
                let (definition, key) = CONFIGS[config];
                call.query(&[("definition", definition), ("config_key", key)])
            }
        }
    }

    fn configs(self) -> impl Iterator<Item = usize> {
        (0..CONFIGS.len()).filter(move |config| match self {
            Self::All => true,
            Self::Definition(definition) => CONFIGS[*config].0 == DEFINITIONS[definition],
            Self::Config(one) => *config == one,
        })
    }
}

/// What is there by the events up to now.
struct View {
    who: Who,
    scope: Scope,
    followed: Followed,
}

impl View {
    fn new(who: Who, scope: Scope, node: &Client) -> Self {
        let followed = Followed { who, node: node.base.clone(), states: BTreeMap::new(), upto: 0 };
        Self { who, scope, followed }
    }

    fn begin(&mut self, revision: u64, shown: impl Iterator<Item = (usize, Option<Version>)>) {
        let mut state: BTreeMap<usize, Option<Version>> =
            self.scope.configs().map(|config| (config, None)).collect();
        for (config, version) in shown {
            if let Some(place) = state.get_mut(&config) {
                *place = version;
            }
        }
        self.followed.states.insert(revision, state);
        self.followed.upto = revision;
    }

    /// Applies an event. The error is what is wrong with it.
    fn apply(&mut self, event: &Value) -> Result<(), String> {
        let revision = event["revision"].as_u64().ok_or("an event without a revision")?;
        if revision <= self.followed.upto {
            return Err(format!("O7: revision {revision} came after {}", self.followed.upto));
        }
        let last = self.followed.states.values().next_back().ok_or("an event before the initial state")?;
        let mut state = last.clone();
        for change in event["changes"].as_array().into_iter().flatten() {
            let text = |name: &str| change[name].as_str().unwrap_or_default();
            let Some(config) = number_of(text("config_definition_key"), text("config_key")) else { continue };
            let Some(place) = state.get_mut(&config) else {
                return Err(format!("O7: a change of a config that was not asked for: {event}"));
            };
            *place = shown(change, revision);
        }
        self.followed.states.insert(revision, state);
        self.followed.upto = revision;
        Ok(())
    }

    fn is_at(&mut self, revision: u64) {
        self.followed.upto = self.followed.upto.max(revision);
    }
}

/// What a change or a part of the initial state says of a config. `revision`: that of the event.
fn shown(change: &Value, revision: u64) -> Option<Version> {
    let is_there = change["type"] != "config_deleted";
    is_there.then(|| Version {
        value: value_of(&change["data"]),
        variant: change["variant"]["change_id"].as_str().map(str::to_owned),
        revision: Some(change["revision"].as_u64().unwrap_or(revision)),
    })
}

impl Following {
    pub(super) async fn run(mut self) {
        while !self.is_over() {
            let who = (self.rng.u8(..4) > 0).then(|| self.rng.usize(..READERS.len()));
            let scope = Scope::draw(&mut self.rng);
            let mut view = View::new(who, scope, &self.node());
            match self.rng.u8(..3) {
                0 => self.poll(&mut view).await,
                1 => self.watch(&mut view, true).await,
                _ => self.watch(&mut view, false).await,
            }
            self.run.rollouts.followed.borrow_mut().push(view.followed);
            pace(Duration::from_millis(self.rng.u64(5..100))).await;
        }
    }

    fn is_over(&self) -> bool {
        self.run.shared.stop.load(Ordering::Relaxed)
    }

    fn node(&mut self) -> Client {
        let place = self.rng.usize(..self.nodes.len());
        self.nodes[place].clone()
    }

    fn contradict(&self, view: &View, wrong: &str) {
        let Followed { who, node, .. } = &view.followed;
        self.run.shared.history.contradict(format!("the watch of {who:?} at {node}: {wrong}"));
    }

    /// Begins with a read of all that is followed.
    async fn read(&mut self, view: &mut View) -> Option<u64> {
        let one = |config: usize| {
            let (definition, key) = CONFIGS[config];
            json!({"config_definition_key": definition, "config_key": key})
        };
        let body = json!({"configs": view.scope.configs().map(one).collect::<Vec<_>>()});
        let answer = as_reader(self.node().post("/api/v1/read", &body), view.who).attempt().await.ok()?;
        let (revision, items) = shown_of_many(&answer)?;
        view.begin(revision, items.into_iter());
        Some(revision)
    }

    /// Asks again and again for what has changed, on one node after another.
    async fn poll(&mut self, view: &mut View) {
        let Some(mut from) = self.read(view).await.map(|revision| revision + 1) else { return };
        for _ in 0..self.rng.u8(5..60) {
            if self.is_over() {
                return;
            }
            let call = view.scope.add_to(self.node().get("/api/v1/changes"));
            let call = call.query(&[("wait", "1"), ("from", &from.to_string())]);
            let answer = as_reader(call, view.who).attempt().await;
            let Some(answer) = answer.ok().filter(|answer| !matches!(answer.status, 429 | 503 | 504)) else {
                pace(Duration::from_millis(50)).await;
                continue;
            };
            // What was there is compacted, or not known any more.
            if !matches!(answer.status, 200 | 304) {
                if answer.status != 410 {
                    self.contradict(view, &format!("a poll: {answer:?}"));
                }
                return;
            }
            for event in answer.body["data"]["events"].as_array().into_iter().flatten() {
                if let Err(wrong) = view.apply(event) {
                    return self.contradict(view, &wrong);
                }
            }
            let Ok(next) = answer.header("x-concord-next-from").parse::<u64>() else {
                return self.contradict(view, &format!("a poll: {answer:?}"));
            };
            from = next;
            view.is_at(next - 1);
        }
    }

    /// Applies a stream of events until it ends, or for some events. It begins with the initial state, or behind a read.
    async fn watch(&mut self, view: &mut View, is_initial: bool) {
        let node = self.node();
        let call = view.scope.add_to(node.get("/api/v1/watch"));
        let call = if is_initial {
            call.query(&[("initial", "true")])
        } else {
            let Some(revision) = self.read(view).await else { return };
            call.query(&[("from", &(revision + 1).to_string())])
        };
        let Ok(response) = as_reader(call, view.who).open().await else { return };
        let (head, mut body) = response.into_parts();
        if head.status != 200 {
            if !matches!(head.status.as_u16(), 410 | 429 | 503 | 504) {
                self.contradict(view, &format!("a watch is answered {}", head.status));
            }
            return;
        }
        let (mut arrived, mut patience) = (Vec::new(), [5, 50, 1000][self.rng.usize(..3)]);
        let mut initial = Vec::new();
        while patience > 0 && !self.is_over() {
            let frame = match timeout(NEXT_EVENT_TIMEOUT, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(_)) | None) => return,
                Err(_) => continue,
            };
            arrived.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            while let Some(event) = event::next(&mut arrived) {
                let Some(event) = event else { continue };
                patience -= 1;
                match take(view, &mut initial, &event) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(wrong) => return self.contradict(view, &wrong),
                }
            }
        }
    }
}

/// Takes an event of a stream. Returns whether it goes on; the error is what is wrong.
fn take(
    view: &mut View,
    initial: &mut Vec<(usize, Option<Version>)>,
    event: &event::Event,
) -> Result<bool, String> {
    match event.name.as_str() {
        "state" => {
            let revision = event.data["revision"].as_u64().ok_or("a state without a revision")?;
            for config in event.data["configs"].as_array().into_iter().flatten() {
                let text = |name: &str| config[name].as_str().unwrap_or_default();
                let number = number_of(text("config_definition_key"), text("config_key"));
                initial.extend(number.map(|number| (number, shown(config, revision))));
            }
            if event.data["complete"] == true {
                view.begin(revision, initial.drain(..));
            }
        }
        "change" => view.apply(&event.data)?,
        "heartbeat" => {
            view.is_at(event.data["revision"].as_u64().ok_or("a heartbeat without a revision")?);
        }
        "error" => return Ok(false),
        _ => return Err(format!("an unknown event: {event:?}")),
    }
    Ok(true)
}
