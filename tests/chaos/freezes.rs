//! Freezes that come and go while the clients work, and whether a change was made in one.
//!
//! One worker puts the environment of most definitions. Each put names the revision of the record that it replaces. So
//! the worker has seen every record that there was: a put whose answer was lost is found by a read, or never applied.
//!
//! **Invariant (F1 of the design of safe change):** no change has a time in a freeze that the record had right before.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use concord_model::time::Timestamp;
use serde_json::{Value, json};

use super::workload::Shared;
use crate::harness::{Answer, Client, time::pace};

/// What the keys of its definitions begin with, and a dot.
pub(super) const FROZEN: &str = "chaos";
const PATH: &str = "/api/v1/environment/chaos";

/// A freeze: from its first to its last time, which is not in it.
type Window = (Timestamp, Timestamp);

/// The freezes of each revision of the environment.
#[derive(Debug, Default)]
pub(crate) struct Freezes(Mutex<BTreeMap<u64, Vec<Window>>>);

impl Freezes {
    fn records(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Window>>> {
        self.0.lock().expect("no client panics")
    }

    /// How often a freeze began.
    pub(crate) fn count(&self) -> usize {
        self.records().values().filter(|windows| !windows.is_empty()).count()
    }

    /// Notes what an answer shows of the environment.
    fn note(&self, answer: &Answer) {
        let revision = answer.tag().trim_matches('"').parse().expect("a revision");
        let windows = answer.data()["freeze"].as_array().cloned().unwrap_or_default();
        let window = |freeze: &Value| (time(&freeze["from"]), time(&freeze["until"]));
        self.records().insert(revision, windows.iter().map(window).collect());
    }

    /// The changes that were made in a freeze, of changes of frozen definitions by revision.
    pub(super) fn broken(&self, changes: &BTreeMap<u64, Timestamp>) -> Vec<String> {
        let records = self.records();
        let mut found = Vec::new();
        for (revision, at) in changes {
            let Some((since, windows)) = records.range(..revision).next_back() else { continue };
            if let Some((from, until)) = windows.iter().find(|(from, until)| from <= at && at < until) {
                found.push(format!(
                    "the change of revision {revision} at {at} is in the freeze from {from} to {until} of revision {since}"
                ));
            }
        }
        found
    }
}

/// A time of the service.
pub(crate) fn time(text: &Value) -> Timestamp {
    text.as_str().and_then(Timestamp::parse).unwrap_or_else(|| panic!("a time: {text}"))
}

/// Freezes the definitions, until the run stops.
pub(crate) struct Freezer<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) nodes: Vec<Client>,
    pub(crate) rng: fastrand::Rng,
}

impl Freezer<'_> {
    pub(crate) async fn run(mut self) {
        while !self.is_over() {
            // Without freezes first: that ends one, and the answer has the log's time.
            if let Some(answer) = self.put(&json!([])).await
                && self.rng.u8(..4) > 0
            {
                let from = time(&answer.data()["modified_at"]).0 + self.rng.u64(..300_000);
                let until = from + self.rng.u64(100_000..1_200_000);
                let (from, until) = (Timestamp(from).to_string(), Timestamp(until).to_string());
                let freeze = json!([{"from": from, "until": until, "reason": "chaos"}]);
                if self.put(&freeze).await.is_some() {
                    self.shared.history.record_fault(&format!("frozen from {from} until {until}"));
                }
            }
            pace(Duration::from_millis(self.rng.u64(300..3000))).await;
        }
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Puts the freezes, unless the record is not the one that was seen last.
    async fn put(&mut self, freezes: &Value) -> Option<Answer> {
        let newest = self.shared.freezes.records().keys().next_back().copied();
        let place = self.rng.usize(..self.nodes.len());
        let put = self.nodes[place].call(http::Method::PUT, PATH).json(&json!({"freeze": freezes}));
        let put = match newest {
            Some(revision) => put.header("if-match", &format!("\"{revision}\"")),
            None => put.header("if-none-match", "*"),
        };
        match put.attempt().await {
            Ok(answer) if matches!(answer.status, 200 | 201) => {
                self.shared.freezes.note(&answer);
                Some(answer)
            }
            // Busy, without a leader, without space, unknown; 409 until the cluster has risen to the level that has
            // environments; 422 if the freeze was over before it arrived.
            Ok(answer)
                if !matches!(answer.status, 409 | 412 | 429 | 503 | 504 | 507)
                    && answer.body["errors"][0]["loc"] != json!(["freeze", 0, "until"]) =>
            {
                self.shared.history.contradict(format!("a put of the environment: {answer:?}"));
                None
            }
            Ok(_) | Err(_) => {
                let read = self.nodes[place].get(PATH).attempt().await;
                if let Ok(answer) = read
                    && answer.status == 200
                {
                    self.shared.freezes.note(&answer);
                }
                None
            }
        }
    }
}

/// Reads the environment once nobody puts it any more: the last answer may have been lost.
pub(crate) async fn look(node: &Client, shared: &Shared) {
    let answer = node.get(PATH).insist().await;
    if answer.status == 200 {
        shared.freezes.note(&answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_a_freeze_is_found_and_no_other() {
        let freezes = Freezes::default();
        freezes.records().insert(10, vec![(Timestamp(100), Timestamp(200))]);
        freezes.records().insert(20, Vec::new());
        for (revision, at, wrong) in
            [(11, 100, 1), (11, 199, 1), (11, 99, 0), (11, 200, 0), (9, 150, 0), (10, 150, 0), (21, 150, 0)]
        {
            let changes = BTreeMap::from([(revision, Timestamp(at))]);
            assert_eq!(freezes.broken(&changes).len(), wrong, "{revision} {at}");
        }
    }
}
