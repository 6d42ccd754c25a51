//! The timeline of a run: one HTML file with the nodes as lines over virtual time, who led in which term, the faults, and
//! what became of each operation of the clients.
//!
//! It is drawn by `timeline.html`, which gets the events as JSON. What is recorded is compared with the step before, so the
//! code that makes the events knows nothing of it.
//!
//! **Invariant:** a recorder changes nothing: a run has one hash with it and without it.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use crate::{
    chaos::history::{History, Operation},
    setup::Setup,
    world::{Seen, World},
};

const PAGE: &str = include_str!("timeline.html");
/// More operations than this are not drawn: the file stays below a few megabytes.
const OPERATIONS_MAX: usize = 20_000;

/// What a node was from some time on.
struct Stretch {
    from: u128,
    /// None: it was off.
    is: Option<Seen>,
}

/// A fault, until it was over.
struct Bar {
    from: u128,
    to: Option<u128>,
    what: String,
}

/// Records a run.
pub(crate) struct Recorder {
    nodes: Vec<Vec<Stretch>>,
    faults: Vec<Bar>,
    violations: Vec<(u128, String)>,
    /// The time of the last step.
    end: u128,
}

impl Recorder {
    pub(crate) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| Vec::new()).collect();
        Self { nodes, faults: Vec::new(), violations: Vec::new(), end: 0 }
    }

    /// Called after each step, with the present faults.
    pub(crate) fn step(&mut self, now: Duration, world: &World, present: &[String]) {
        let now = now.as_millis();
        self.end = now;
        for (place, stretches) in self.nodes.iter_mut().enumerate() {
            let is = world.seen(place + 1);
            let role = |is: &Seen| (is.term, is.leader);
            let last = stretches.last_mut();
            match (last, is) {
                (Some(last), Some(seen)) if last.is.as_ref().map(role) == Some(role(&seen)) => {
                    last.is = Some(seen)
                }
                (Some(Stretch { is: None, .. }), None) => {}
                _ => stretches.push(Stretch { from: now, is }),
            }
        }
        let mut begun: Vec<&String> = present.iter().collect();
        for bar in self.faults.iter_mut().filter(|bar| bar.to.is_none()) {
            match begun.iter().position(|what| **what == bar.what) {
                Some(place) => drop(begun.remove(place)),
                None => bar.to = Some(now),
            }
        }
        self.faults.extend(begun.into_iter().map(|what| Bar { from: now, to: None, what: what.clone() }));
        for text in &world.violations[self.violations.len().min(world.violations.len())..] {
            self.violations.push((now, text.clone()));
        }
    }

    /// The page.
    pub(crate) fn page(&self, setup: &Setup, history: &History, found: &[String], command: &str) -> String {
        let end = self.end;
        let nodes: Vec<Value> = self.nodes.iter().map(|stretches| json!(of_node(stretches, end))).collect();
        let faults: Vec<Value> = self
            .faults
            .iter()
            .map(|bar| json!({"from": bar.from, "to": bar.to.unwrap_or(end), "what": in_words(&bar.what)}))
            .collect();
        let marked: BTreeSet<u64> = found.iter().flat_map(|text| numbers(text)).collect();
        let mut operations = history.operations();
        operations.sort_by_key(|operation| operation.call);
        operations.truncate(OPERATIONS_MAX);
        let operations: Vec<Value> = operations
            .iter()
            .map(|operation| of_operation(operation, marked.contains(&operation.number)))
            .collect();
        let violations: Vec<Value> = found
            .iter()
            .map(|text| {
                let at = self.violations.iter().find(|(_, seen)| seen == text).map(|(at, _)| *at);
                json!({"text": text.chars().take(600).collect::<String>(), "at": at})
            })
            .collect();
        let data = json!({
            "seed": setup.seed,
            "command": command,
            "setup": format!("{setup:#?}"),
            "end": end,
            "nodes": nodes,
            "faults": faults,
            "operations": operations,
            "violations": violations,
        });
        // No text of it can end the script.
        PAGE.replace("\"DATA\"", &data.to_string().replace('<', "\\u003c"))
    }
}

fn of_node(stretches: &[Stretch], end: u128) -> Vec<Value> {
    let mut ends: Vec<u128> = stretches.iter().skip(1).map(|next| next.from).collect();
    ends.push(end);
    let one = |(stretch, to): (&Stretch, u128)| {
        let Some(is) = stretch.is else { return json!({"from": stretch.from, "to": to}) };
        json!({"from": stretch.from, "to": to, "term": is.term, "leader": is.leader, "revision": is.applied})
    };
    stretches.iter().zip(ends).map(one).collect()
}

fn of_operation(operation: &Operation, is_marked: bool) -> Value {
    let ms = |at: u64| at as f64 / 1e6;
    let text = |name: &str, value: &Option<String>| {
        value.as_ref().map_or_else(String::new, |value| format!(", {name} {value}"))
    };
    let number =
        |name: &str, value: Option<u64>| value.map_or_else(String::new, |value| format!(", {name} {value}"));
    let mut what = format!("{:?} {}", operation.op, operation.key).to_lowercase();
    what += &text("value", &operation.value);
    what += &number("if revision", operation.expected);
    what += &text("if value", &operation.tested);
    what += &number("to revision", operation.to);
    what += &number("batch", operation.batch);
    what += &text("key", &operation.by);
    what += &text("found", &operation.result);
    what += &number("revision", operation.revision);
    what += &number("state", operation.state);
    json!([
        operation.client,
        ms(operation.call),
        ms(operation.ret),
        operation.status,
        what,
        u8::from(is_marked)
    ])
}

/// The numbers of the operations that a violation names.
fn numbers(text: &str) -> Vec<u64> {
    let after = text.split("Operation { number: ").skip(1);
    after.filter_map(|rest| rest.split(',').next()?.parse().ok()).collect()
}

/// What ends a fault, as what the fault is.
fn in_words(what: &str) -> String {
    let (name, rest) = what.split_once('(').unwrap_or((what, ""));
    let rest = rest.trim_end_matches(')').replace('"', "");
    let pair = rest.replace(", ", " → n");
    match name {
        "Start" => format!("n{rest} is off"),
        "Restart" => format!("n{} shuts down", rest.split(',').next().unwrap_or_default()),
        "Repair" => format!(
            "cut: {}",
            rest.trim_matches(['[', ']']).replace("), (", "; ").replace(['(', ')'], "").replace(", ", "–")
        ),
        "Release" => format!("messages are held: n{}", pair.replace(" → ", "–")),
        "Latency" => format!("slow links of n{rest}"),
        "Losses" => format!("messages are lost at times: n{}", pair.replace(" → ", "–")),
        "Disk" => format!("slow disk of n{rest}"),
        "Clock" => format!("wrong wall clock of n{rest}"),
        _ => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_described_by_what_ends_it() {
        for (what, words) in [
            ("Start(2)", "n2 is off"),
            ("Restart(2, 60.1s)", "n2 shuts down"),
            ("Repair([(\"n1\", \"n2\"), (\"n1\", \"n3\")])", "cut: n1–n2; n1–n3"),
            ("Release(1, 3)", "messages are held: n1–n3"),
            ("Something(4)", "Something(4)"),
        ] {
            assert_eq!(in_words(what), words);
        }
    }

    #[test]
    fn operations_that_a_violation_names_are_found() {
        assert_eq!(
            numbers("at 7: Operation { number: 12, client: 1 } and Operation { number: 3, x"),
            [12, 3]
        );
    }
}
