//! Cuts a failure down: the smallest run that still finds the same kind of violation, and the command that repeats it.
//!
//! A smaller run is another run, with other random numbers. So each is tried a few times, with another salt. What is
//! tried is what a reader has to understand: nodes, kinds of faults, clients, kinds of operations, time, configs, and then
//! the single faults.

use std::{
    collections::BTreeSet,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use crate::overrides::Overrides;
use crate::setup::Setup;

/// How often each smaller run is tried, with other random numbers.
const TRIES: u64 = 3;

/// What one run has found.
struct Found {
    kind: String,
    text: String,
    faults: u64,
    operations: u64,
    events: u64,
}

/// What a violation is about, without the numbers and names that differ from run to run.
fn kind_of(violation: &str) -> String {
    let mut kind = String::new();
    let mut is_quoted = false;
    // What follows is the record of one operation.
    let head = violation
        .trim_start_matches("the simulation ended: ")
        .split([':', '{', '[', '('])
        .next()
        .unwrap_or_default();
    for letter in head.chars() {
        match letter {
            '`' => is_quoted = !is_quoted,
            _ if is_quoted || letter.is_ascii_digit() => {}
            _ => kind.push(letter),
        }
    }
    kind.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The number before a word of the line that a run prints.
fn count(output: &str, word: &str) -> u64 {
    let mut last = "0";
    for part in output.lines().next().unwrap_or_default().split(' ') {
        if part.trim_matches([',', ')', '(']) == word {
            break;
        }
        last = part;
    }
    last.trim_matches(['(', ',']).parse().unwrap_or(0)
}

/// Runs a seed; none when nothing was found.
fn run(seed: u64, overrides: &Overrides, kind: Option<&str>) -> Option<Found> {
    let program = std::env::current_exe().expect("the path of this program");
    let words = overrides.to_string();
    let mut command = Command::new(program);
    command.args(["seed", &seed.to_string()]).args(words.split_whitespace());
    let output = command.output().expect("this program can be run");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let violations: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("VIOLATION ")).collect();
    let text = violations.into_iter().find(|text| kind.is_none_or(|kind| kind_of(text) == kind))?.to_owned();
    let (faults, operations) = (count(&output, "faults"), count(&output, "operations"));
    Some(Found { kind: kind_of(&text), text, faults, operations, events: count(&output, "events") })
}

/// Cuts down what one seed finds, for so many seconds at most.
pub(crate) fn cut(seed: u64, begin: &Overrides, seconds: u64) -> ExitCode {
    let end = Instant::now() + Duration::from_secs(seconds);
    let Some(found) = run(seed, begin, None) else {
        println!("seed {seed}{begin} finds nothing");
        return ExitCode::SUCCESS;
    };
    println!("cutting down, within {seconds} s: {}", found.text);
    let mut cutter = Cutter { seed, end, best: begin.clone(), found, runs: 1 };
    let was = cutter.size();
    while cutter.pass() {}
    println!("from {was}");
    println!(
        "to   {} ({} runs{})",
        cutter.size(),
        cutter.runs,
        if cutter.is_over() { ", time is up" } else { "" }
    );
    println!("VIOLATION {}", cutter.found.text);
    println!("again: scripts/simulate.sh seed {seed}{} --log", cutter.best);
    ExitCode::FAILURE
}

struct Cutter {
    seed: u64,
    end: Instant,
    best: Overrides,
    found: Found,
    runs: u64,
}

impl Cutter {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn setup(&self) -> Setup {
        let mut setup = Setup::draw(self.seed);
        self.best.apply(&mut setup).expect("what was run before");
        setup
    }

    fn size(&self) -> String {
        let setup = self.setup();
        format!(
            "{} nodes, {} clients, {} followers, {} kinds of operations, {} kinds of faults, {:.1} s, {} faults, \
             {} operations, {} events",
            setup.nodes,
            setup.clients,
            setup.work.followers,
            setup.work.mix.actions.len(),
            setup.faults.len(),
            setup.duration.as_secs_f64(),
            self.found.faults,
            self.found.operations,
            self.found.events,
        )
    }

    /// Tries something smaller; keeps it when it finds the same.
    fn attempt(&mut self, change: impl Fn(&mut Overrides)) -> bool {
        let mut smaller = self.best.clone();
        change(&mut smaller);
        if smaller == self.best {
            return false;
        }
        // Single faults are numbered: other random numbers would make others.
        let tries = if smaller.without == self.best.without { TRIES } else { 1 };
        for salt in 0..tries {
            if self.is_over() {
                return false;
            }
            let tried = Overrides {
                salt: if salt == 0 { self.best.salt } else { self.best.salt + salt },
                ..smaller.clone()
            };
            self.runs += 1;
            if let Some(found) = run(self.seed, &tried, Some(&self.found.kind)) {
                (self.best, self.found) = (tried, found);
                return true;
            }
        }
        false
    }

    /// Tries everything once; whether anything became smaller.
    fn pass(&mut self) -> bool {
        let before = self.best.clone();
        self.attempt(|smaller| smaller.faults = Some(Vec::new()));
        self.attempt(|smaller| (smaller.spares, smaller.nodes) = (Some(0), None));
        for nodes in [1, 3] {
            if self.setup().nodes > nodes && self.attempt(|smaller| smaller.nodes = Some(nodes)) {
                break;
            }
        }
        self.halve(|setup| setup.clients, 1, |smaller, clients| smaller.clients = Some(clients));
        self.lists();
        while self.setup().duration > Duration::from_millis(200) {
            let half = Duration::from_millis(
                u64::try_from(self.setup().duration.as_millis() / 2).unwrap_or(u64::MAX),
            );
            if !self.attempt(|smaller| smaller.duration = Some(half)) {
                break;
            }
        }
        self.attempt(|smaller| smaller.no_freezes = true);
        self.attempt(|smaller| smaller.no_keys = true);
        self.halve(|setup| setup.work.proposers, 0, |smaller, count| smaller.proposers = Some(count));
        self.halve(|setup| setup.work.rollers, 0, |smaller, count| smaller.rollers = Some(count));
        self.halve(|setup| setup.work.followers, 0, |smaller, count| smaller.followers = Some(count));
        self.halve(|setup| setup.work.mix.definitions, 2, |smaller, count| smaller.definitions = Some(count));
        self.halve(|setup| setup.work.mix.slots, 1, |smaller, count| smaller.slots = Some(count));
        self.single_faults();
        self.best != before && !self.is_over()
    }

    /// Makes a number smaller: to the least, to half, by one.
    fn halve(&mut self, of: impl Fn(&Setup) -> usize, least: usize, set: impl Fn(&mut Overrides, usize)) {
        loop {
            let is = of(&self.setup());
            if is <= least {
                return;
            }
            let mut smaller = [least, (is / 2).max(least), is - 1].to_vec();
            smaller.dedup();
            if !smaller.into_iter().any(|count| self.attempt(|overrides| set(overrides, count))) {
                return;
            }
        }
    }

    /// Leaves out kinds of faults and of operations, half of them or one.
    fn lists(&mut self) {
        let faults = self.setup().faults;
        self.thin(&faults, |smaller, faults| smaller.faults = Some(faults));
        let actions: Vec<_> = self.setup().work.mix.actions.iter().map(|(action, _)| *action).collect();
        self.thin(&actions, |smaller, actions| {
            if !actions.is_empty() {
                smaller.actions = Some(actions);
            }
        });
    }

    fn thin<T: Clone>(&mut self, all: &[T], set: impl Fn(&mut Overrides, Vec<T>)) {
        let (mut left, mut size) = (all.to_vec(), all.len().div_ceil(2));
        while size > 0 && !left.is_empty() {
            let mut place = 0;
            while place < left.len() {
                let upto = (place + size).min(left.len());
                let rest = [&left[..place], &left[upto..]].concat();
                if self.attempt(|smaller| set(smaller, rest.clone())) {
                    left = rest;
                } else {
                    place = upto;
                }
            }
            size /= 2;
        }
    }

    /// Leaves out single faults.
    fn single_faults(&mut self) {
        // Those that were left out have their numbers, too.
        let last = self.found.faults + self.best.without.len() as u64;
        let made: Vec<u64> = (1..=last).filter(|one| !self.best.without.contains(one)).collect();
        let out = self.best.without.clone();
        let all: BTreeSet<u64> = made.iter().copied().chain(out).collect();
        self.thin(&made, |smaller, left| {
            smaller.without = all.iter().copied().filter(|one| !left.contains(one)).collect();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_violation_has_no_numbers_and_names() {
        let one = "a list of `chaos.a` (Some(\"g1\")) at revision 7 differs from what was there in [(1, 2)]";
        let other = "a list of `chaos.b` (None) at revision 18 differs from what was there in [(7, 1)]";
        assert_eq!(kind_of(one), kind_of(other));
        assert_eq!(kind_of("`d/k` is not linearizable (12 operations)"), "is not linearizable");
        assert_ne!(kind_of("node 1 went back from revision 7 to 5"), kind_of("node 1 failed: x"));
    }

    #[test]
    fn the_counts_of_a_run_are_found_in_its_line() {
        let line = "seed 7: hash 00, 1200 events (1 messages, 2 log lines, 3 applied, 4 leaders, 5 faults, 6 operations), 1";
        assert_eq!([count(line, "events"), count(line, "faults"), count(line, "operations")], [1200, 5, 6]);
    }
}
