//! What a plan asks for, and which readers a stage has.
//!
//! **Invariant:** this is computed from the design alone, with no code of a node.

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::READERS;

/// Hundredths of a percent that are everybody.
const ALL: u64 = 10_000;
const GATES: [&str; 2] = ["errors", "latency"];

/// A stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) labels: Vec<(&'static str, Vec<&'static str>)>,
    pub(super) share: u64,
    pub(super) for_s: u64,
    pub(super) min_healthy: u64,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) stages: Vec<Stage>,
    pub(super) max_failed: u64,
    /// The gates, with the seconds that a word counts.
    pub(super) gates: Vec<(&'static str, u64)>,
    pub(super) on_fail: &'static str,
    pub(super) timeout_s: u64,
}

fn one_of<T: Copy>(rng: &mut fastrand::Rng, all: &[T]) -> T {
    all[rng.usize(..all.len())]
}

/// Some gate.
pub(super) fn gate(rng: &mut fastrand::Rng) -> &'static str {
    one_of(rng, &GATES)
}

impl Stage {
    fn json(&self) -> Value {
        let labels: Map<String, Value> =
            self.labels.iter().map(|(name, values)| ((*name).to_owned(), json!(values))).collect();
        let mut stage = json!({"for_s": self.for_s, "min_healthy": self.min_healthy});
        if !labels.is_empty() {
            stage["labels"] = labels.into();
        }
        if self.share < ALL {
            let percent = format!("{}.{:02}", self.share / 100, self.share % 100);
            stage["share"] = serde_json::from_str(&percent).expect("a number");
        }
        stage
    }

    /// Whether a reader matches it.
    fn has(&self, change: &str, reader: usize) -> bool {
        let (name, labels) = READERS[reader];
        let of: Vec<(&str, &str)> = labels.split(',').filter_map(|label| label.split_once('=')).collect();
        let place = xxh3_64(format!("{change}\0{name}").as_bytes()) % ALL;
        let matches = |(label, values): &(&str, Vec<&str>)| {
            of.iter().any(|(own, value)| own == label && values.contains(value))
        };
        place < self.share && self.labels.iter().all(matches)
    }
}

/// The values that each label of a stage may have.
type Labels = Vec<(&'static str, Vec<&'static str>)>;

impl Plan {
    pub(super) fn draw(rng: &mut fastrand::Rng) -> Self {
        let (few, more) = (one_of(rng, &[1250, 2500, 4000]), one_of(rng, &[5000, 7500]));
        let canary = || vec![("ring", vec!["canary"])];
        let of: Vec<(Labels, u64)> = match rng.u8(..7) {
            0 => vec![(canary(), ALL), (vec![], ALL)],
            1 => vec![(vec![], few), (vec![], more)],
            2 => vec![(canary(), 5000), (vec![], more)],
            3 => vec![(vec![("ring", vec!["canary", "beta"])], ALL), (vec![("region", vec!["eu"])], ALL)],
            4 => vec![(vec![], more)],
            5 => vec![(canary(), ALL), (vec![], few), (vec![], ALL)],
            _ => vec![(vec![], few), (vec![("region", vec!["eu", "us"])], ALL), (vec![], more)],
        };
        let stage = |(labels, share)| Stage {
            labels,
            share,
            for_s: one_of(rng, &[0, 0, 1, 1, 2]),
            min_healthy: one_of(rng, &[0, 0, 0, 1, 1, 2]),
        };
        let stages = of.into_iter().map(stage).collect();
        let gates = if rng.u8(..4) == 0 { vec![(gate(rng), one_of(rng, &[1, 5, 60]))] } else { vec![] };
        Self {
            stages,
            max_failed: one_of(rng, &[0, 0, 1]),
            gates,
            on_fail: one_of(rng, &["abort", "abort", "pause"]),
            timeout_s: one_of(rng, &[1, 5, 60]),
        }
    }

    /// It as a body has it.
    pub(super) fn json(&self) -> Value {
        let gate = |(name, fresh_s): &(&str, u64)| json!({"name": name, "fresh_s": fresh_s});
        json!({
            "stages": self.stages.iter().map(Stage::json).collect::<Vec<_>>(), "max_failed": self.max_failed,
            "gates": self.gates.iter().map(gate).collect::<Vec<_>>(), "on_fail": self.on_fail,
            "timeout_s": self.timeout_s,
        })
    }

    /// Whether a reader is in once so many stages have ended.
    pub(super) fn has(&self, change: &str, reader: usize, passed: usize) -> bool {
        self.stages.iter().take(passed + 1).any(|stage| stage.has(change, reader))
    }
}
