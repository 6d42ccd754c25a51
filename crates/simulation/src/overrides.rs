//! What is different from what a seed draws: a run that was cut down is a seed and these.
//!
//! | option | what |
//! |---|---|
//! | `--nodes N`, `--clients N`, `--followers N` | so many. Nodes that join are among them |
//! | `--spares N` | nodes that join |
//! | `--duration 4s` (or `400ms`) | how long clients work and faults are made |
//! | `--faults crash,split` | these kinds of faults; `none` |
//! | `--actions get,put` | these kinds of operations of clients |
//! | `--definitions N`, `--slots N` | configs that are worked on |
//! | `--no-keys` | nobody creates and ends access keys |
//! | `--proposers N` | workers at change requests |
//! | `--rollers N` | people who release change requests in stages |
//! | `--no-freezes` | nobody freezes the definitions |
//! | `--without 1,3-7` | not these faults, by their number in the run |
//! | `--salt N` | other random numbers with the same setup |

use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{
    chaos::workload::{Action, Mix},
    setup::{FAULTS, Fault, Setup},
};

/// What is different.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    pub(crate) nodes: Option<usize>,
    pub(crate) clients: Option<usize>,
    pub(crate) spares: Option<usize>,
    pub(crate) followers: Option<usize>,
    pub(crate) proposers: Option<usize>,
    pub(crate) rollers: Option<usize>,
    pub(crate) duration: Option<Duration>,
    pub(crate) faults: Option<Vec<Fault>>,
    pub(crate) actions: Option<Vec<Action>>,
    pub(crate) definitions: Option<usize>,
    pub(crate) slots: Option<usize>,
    pub(crate) no_keys: bool,
    pub(crate) no_freezes: bool,
    pub(crate) without: BTreeSet<u64>,
    pub(crate) salt: u64,
}

fn name(of: impl fmt::Debug) -> String {
    format!("{of:?}").to_lowercase()
}

fn chosen<T: Copy + fmt::Debug>(from: &[T], names: &str) -> Result<Vec<T>, String> {
    let names = names.split(',').filter(|name| *name != "none");
    let find = |wanted: &str| {
        let found = from.iter().find(|one| name(one) == wanted.to_lowercase());
        found.copied().ok_or_else(|| format!("there is no `{wanted}`; there are {}", listed(from)))
    };
    names.map(find).collect()
}

fn listed<T: fmt::Debug>(all: &[T]) -> String {
    if all.is_empty() { "none".to_owned() } else { all.iter().map(name).collect::<Vec<_>>().join(",") }
}

fn actions() -> Vec<Action> {
    Mix::default().actions.into_iter().map(|(action, _)| action).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn duration(text: &str) -> Result<Duration, String> {
    match text.strip_suffix("ms") {
        Some(ms) => Ok(Duration::from_millis(number(ms)?)),
        None => Ok(Duration::from_secs(number(text.strip_suffix('s').unwrap_or(text))?)),
    }
}

/// Numbers and ranges of them.
fn numbers(text: &str) -> Result<BTreeSet<u64>, String> {
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(number::<u64>(first)?..=number::<u64>(last)?);
    }
    Ok(all)
}

fn ranges(all: &BTreeSet<u64>) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for one in all {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *one => *last = *one,
            _ => ranges.push((*one, *one)),
        }
    }
    let text = |(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

impl Overrides {
    /// Takes an option with its value, or says that it is none of these.
    pub(crate) fn take(
        &mut self,
        option: &str,
        value: impl FnOnce() -> Option<String>,
    ) -> Result<bool, String> {
        if option == "--no-freezes" {
            self.no_freezes = true;
            return Ok(true);
        }
        if option == "--no-keys" {
            self.no_keys = true;
            return Ok(true);
        }
        let known = [
            "--nodes",
            "--clients",
            "--spares",
            "--followers",
            "--proposers",
            "--rollers",
            "--duration",
            "--faults",
            "--actions",
            "--definitions",
            "--slots",
            "--without",
            "--salt",
        ];
        if !known.contains(&option) {
            return Ok(false);
        }
        let value = value().ok_or_else(|| format!("`{option}` needs a value"))?;
        let value = value.as_str();
        match option {
            "--nodes" => self.nodes = Some(number(value)?),
            "--clients" => self.clients = Some(number(value)?),
            "--spares" => self.spares = Some(number(value)?),
            "--followers" => self.followers = Some(number(value)?),
            "--proposers" => self.proposers = Some(number(value)?),
            "--rollers" => self.rollers = Some(number(value)?),
            "--duration" => self.duration = Some(duration(value)?),
            "--faults" => self.faults = Some(chosen(&FAULTS, value)?),
            "--actions" => self.actions = Some(chosen(&actions(), value)?),
            "--definitions" => self.definitions = Some(number(value)?),
            "--slots" => self.slots = Some(number(value)?),
            "--without" => self.without = numbers(value)?,
            _ => self.salt = number(value)?,
        }
        Ok(true)
    }

    /// Changes what a seed has drawn.
    pub(crate) fn apply(&self, setup: &mut Setup) -> Result<(), String> {
        let at_least = |name: &str, value: Option<usize>, least: usize| match value {
            Some(value) if value < least => Err(format!("`{name}` must be {least} at least")),
            _ => Ok(()),
        };
        at_least("--nodes", self.nodes, 1)?;
        at_least("--definitions", self.definitions, 2)?;
        at_least("--slots", self.slots, 1)?;
        let mix = &mut setup.work.mix;
        if let Some(actions) = &self.actions {
            mix.actions.retain(|(action, _)| actions.contains(action));
            let missing: Vec<_> =
                actions.iter().filter(|one| !mix.actions.iter().any(|(is, _)| is == *one)).collect();
            mix.actions.extend(missing.into_iter().map(|action| (*action, 3)));
        }
        mix.definitions = self.definitions.unwrap_or(mix.definitions);
        mix.slots = self.slots.unwrap_or(mix.slots);
        setup.work.followers = self.followers.unwrap_or(setup.work.followers);
        setup.work.proposers = self.proposers.unwrap_or(setup.work.proposers);
        setup.work.rollers = self.rollers.unwrap_or(setup.work.rollers);
        if self.no_freezes {
            setup.work.has_freezes = false;
        }
        if self.no_keys {
            (setup.work.has_keys, setup.work.mix.with_key) = (false, 0);
        }
        let founders = setup.founders();
        setup.work.spares = self.spares.unwrap_or(setup.work.spares);
        setup.nodes = self.nodes.unwrap_or(founders + setup.work.spares);
        if setup.nodes <= setup.work.spares {
            return Err("`--nodes` must be above `--spares`: some node is a founder".into());
        }
        setup.clients = self.clients.unwrap_or(setup.clients);
        setup.duration = self.duration.unwrap_or(setup.duration);
        if let Some(faults) = &self.faults {
            setup.faults.clone_from(faults);
        }
        setup.without.clone_from(&self.without);
        setup.seed ^= self.salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(())
    }
}

/// The options that give the same again.
impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("--nodes", self.nodes),
            ("--clients", self.clients),
            ("--spares", self.spares),
            ("--followers", self.followers),
            ("--proposers", self.proposers),
            ("--rollers", self.rollers),
            ("--definitions", self.definitions),
            ("--slots", self.slots),
        ];
        for (option, count) in counts {
            if let Some(count) = count {
                write!(f, " {option} {count}")?;
            }
        }
        if let Some(duration) = self.duration {
            write!(f, " --duration {}ms", duration.as_millis())?;
        }
        if let Some(faults) = &self.faults {
            write!(f, " --faults {}", listed(faults))?;
        }
        if let Some(actions) = &self.actions {
            write!(f, " --actions {}", listed(actions))?;
        }
        if self.no_freezes {
            write!(f, " --no-freezes")?;
        }
        if self.no_keys {
            write!(f, " --no-keys")?;
        }
        if !self.without.is_empty() {
            write!(f, " --without {}", ranges(&self.without))?;
        }
        if self.salt != 0 {
            write!(f, " --salt {}", self.salt)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_overrides_give_the_same_overrides() {
        let text = "--nodes 3 --clients 1 --proposers 2 --rollers 1 --duration 400ms --faults crash,split --actions get,batch --no-freezes --no-keys --without 1,3-7 --salt 2";
        let mut words = text.split(' ').map(str::to_owned);
        let mut overrides = Overrides::default();
        while let Some(option) = words.next() {
            assert_eq!(overrides.take(&option, || words.next()), Ok(true), "{option}");
        }
        assert_eq!(overrides.to_string(), format!(" {text}"));
        assert_eq!(overrides.without.len(), 6);
        assert!(overrides.take("--faults", || Some("flood".into())).unwrap_err().contains("cutclients"));
        assert_eq!(overrides.take("--log", || None), Ok(false));
    }
}
