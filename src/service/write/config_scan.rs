//! A check of all configs of a definition, picture by picture: first all of them, then those that were written
//! since the picture before.
//!
//! It runs on a thread for long work, beside the service. What it found is exact at its last picture: a config
//! that was mended or deleted since does not count any more.
//!
//! **Invariants:** every config of the last picture has been checked in the form that it has there. A check ends
//! soon when nobody waits for it.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::redefine::Compiled;
use crate::{
    model::{
        error::{LocSegment, Violation},
        key::Key,
        record::{Config, Revision},
        schema::{Schema, accepts_any},
    },
    service::{NewSchema, NewUnique, Refusal, Write},
    state::{Collection, State},
};

/// Checks that run on a node at once; each keeps a processor busy. More wait.
pub(in crate::service) const SCANS_MAX: usize = 2;
/// Breaking configs that a report lists.
const BREAKING_MAX: usize = 100;
/// Violations that it lists of each.
const FAULTS_MAX: usize = 10;
/// Configs between two looks at whether anybody still waits.
const LOOK_UP: u64 = 256;

/// What all configs are checked for.
#[derive(Debug)]
enum Asked {
    /// They take any data.
    Nothing,
    /// Their data are objects: there is no schema.
    Object,
    Schema(Arc<Schema>),
    /// Each value of these paths is one config's.
    Unique(Vec<String>),
}

/// Configs that break a schema, at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many configs there are, when they were looked at.
    pub checked: u64,
    /// How many of them break it.
    pub count: u64,
    /// The first of those by key, at most a hundred.
    pub breaking: Vec<Breaking>,
    /// Whether they had to be looked at: a schema that asks nothing is broken by none.
    pub scanned: bool,
}

/// A config that breaks a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaking {
    /// Its key.
    pub key: Key,
    /// What is wrong with its data, from the root of the record; at most ten violations.
    pub violations: Vec<Violation>,
}

/// When a check need not go on.
#[derive(Debug, Clone)]
pub(in crate::service) struct Stop {
    pub(in crate::service) gone: CancellationToken,
    pub(in crate::service) deadline: Option<Instant>,
}

/// A check that was stopped; it can go on with a later picture only from its beginning.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::service) struct Stopped;

/// A check under way.
#[derive(Debug)]
pub(in crate::service) struct Scan {
    asked: Asked,
    /// The definition's id: another one with its key has other configs.
    definition: Option<Revision>,
    /// The revision of the last picture.
    upto: Revision,
    /// The configs that broke the schema, with their revisions then.
    breaking: BTreeMap<Key, Revision>,
    /// A unique path with two configs of one value.
    clash: Option<(String, Key, Key)>,
}

impl Scan {
    /// A check for what a prepared write asks of all configs.
    pub(in crate::service) fn of(write: &Write) -> Result<Self, Refusal> {
        let compile = |compiled: &Compiled, value: &Value| {
            compiled.of(value).map(Asked::Schema).map_err(|violations| {
                Refusal::Internal(format!("a schema that was checked does not compile: {violations:?}"))
            })
        };
        let asked = match write {
            Write::SetSchema(NewSchema { schema: None, .. }) => Asked::Object,
            Write::SetSchema(NewSchema { schema: Some(schema), .. }) if accepts_any(&schema.value) => {
                Asked::Nothing
            }
            Write::SetSchema(NewSchema { schema: Some(schema), compiled, .. }) => {
                compile(compiled, &schema.value)?
            }
            Write::SetUnique(NewUnique { paths, .. }) => Asked::Unique(paths.clone()),
            Write::CreateDefinition { .. }
            | Write::SetIndexes { .. }
            | Write::DeleteDefinition { .. }
            | Write::WriteConfig { .. }
            | Write::DeleteConfig { .. }
            | Write::PatchConfig { .. }
            | Write::Rollback(_)
            | Write::Batch(_) => Asked::Nothing,
        };
        Ok(Self { asked, definition: None, upto: 0, breaking: BTreeMap::new(), clash: None })
    }

    /// Whether the configs need not be looked at.
    pub(in crate::service) fn is_idle(&self) -> bool {
        matches!(self.asked, Asked::Nothing)
    }

    /// The revision of the picture that was checked last.
    pub(in crate::service) fn upto(&self) -> Revision {
        self.upto
    }

    /// Goes on to a later picture; how many configs were new in it.
    pub(in crate::service) fn advance(
        &mut self,
        state: &State,
        found: &Collection,
        stop: &Stop,
    ) -> Result<u64, Stopped> {
        if self.definition != Some(found.definition.id) {
            (self.definition, self.upto, self.clash) = (Some(found.definition.id), 0, None);
            self.breaking.clear();
        }
        let since = self.upto;
        let written =
            found.indexes().by_modified.back_from(u64::MAX).map(|written| found.config_of(&written.of));
        let mut news = 0;
        match self.asked {
            Asked::Nothing => {}
            // Neighbours in the order of values are looked at, and that of those that are there now.
            Asked::Unique(_) if since == 0 || self.clash.is_some() => {
                news = found.by_key.len();
                self.find_clash(found, stop)?;
            }
            Asked::Unique(_) | Asked::Schema(_) | Asked::Object => {
                for config in written.take_while(|config| config.revision > since) {
                    news += 1;
                    if news.is_multiple_of(LOOK_UP) {
                        stop.look_up()?;
                    }
                    self.look_at(found, config);
                }
                self.breaking.retain(|key, revision| {
                    found.config(key.as_str()).is_some_and(|config| config.revision == *revision)
                });
            }
        }
        self.upto = state.revision();
        Ok(news)
    }

    fn look_at(&mut self, found: &Collection, config: &Config) {
        let fits = match &self.asked {
            Asked::Nothing => true,
            Asked::Object => is_object(config),
            Asked::Schema(schema) => data(config).is_some_and(|data| schema.accepts(&data)),
            Asked::Unique(paths) => {
                let clash = paths.iter().find_map(|path| {
                    let other = found.other_with_value(path, config.key.as_str(), &config.entries)?;
                    Some((path.clone(), other.clone(), config.key.clone()))
                });
                self.clash = self.clash.take().or(clash);
                true
            }
        };
        if !fits {
            self.breaking.insert(config.key.clone(), config.revision);
        }
    }

    /// Two configs of one value stand side by side.
    fn find_clash(&mut self, found: &Collection, stop: &Stop) -> Result<(), Stopped> {
        self.clash = None;
        let Asked::Unique(paths) = &self.asked else { return Ok(()) };
        for path in paths {
            let mut before: Option<(&[u8], &Key)> = None;
            for (place, (value, key)) in (1u64..).zip(found.by_value(path)) {
                if place.is_multiple_of(LOOK_UP) {
                    stop.look_up()?;
                }
                if let Some((_, other)) = before.filter(|(other, _)| *other == value) {
                    self.clash = Some((path.clone(), other.clone(), key.clone()));
                    return Ok(());
                }
                before = Some((value, key));
            }
        }
        Ok(())
    }

    /// What the configs of the last picture are refused for.
    pub(in crate::service) fn refusal(&self, found: &Collection) -> Option<Refusal> {
        if let Some((path, one, other)) = &self.clash {
            let text = format!("`{path}` can't be unique: configs `{one}` and `{other}` have the same value");
            return Some(Refusal::Conflict(text));
        }
        if self.breaking.is_empty() {
            return None;
        }
        let report = self.report(found);
        let summary = format!(
            "{} of {} configs would break the schema; none was changed",
            report.count, report.checked
        );
        let items = report.breaking.into_iter().map(|breaking| {
            let shown = breaking.violations.iter().map(shown).collect::<Vec<_>>().join("; ");
            Violation::at(
                vec!["config".into(), LocSegment::from(breaking.key.as_str())],
                format!("config `{}`: {shown}", breaking.key),
            )
        });
        let first = Violation::at(vec!["json_schema".into()], summary);
        Some(Refusal::Breaks(report.count, std::iter::once(first).chain(items).collect()))
    }

    /// What there is to tell of the last picture.
    pub(in crate::service) fn report(&self, found: &Collection) -> Report {
        let listed = self.breaking.keys().take(BREAKING_MAX);
        let breaking = listed
            .filter_map(|key| {
                let config = found.config(key.as_str())?;
                Some(Breaking { key: key.clone(), violations: self.violations(config) })
            })
            .collect();
        let count = u64::try_from(self.breaking.len()).unwrap_or(u64::MAX);
        let scanned = !self.is_idle();
        Report { checked: if scanned { found.by_key.len() } else { 0 }, count, breaking, scanned }
    }

    fn violations(&self, config: &Config) -> Vec<Violation> {
        let mut violations = match (&self.asked, data(config)) {
            (Asked::Schema(schema), Some(data)) => schema.check(&data).err().unwrap_or_default(),
            (Asked::Schema(_) | Asked::Object | Asked::Unique(_) | Asked::Nothing, _) => {
                vec![Violation::new("data must be an object")]
            }
        };
        if violations.len() > FAULTS_MAX {
            let more = violations.len() - FAULTS_MAX;
            violations.truncate(FAULTS_MAX);
            violations.push(Violation::new(format!("and {more} more violations")));
        }
        super::validators::within("data", violations)
    }
}

impl Report {
    /// The report on a definition that is there no more.
    pub(in crate::service) fn of_nothing(scan: &Scan) -> Self {
        Self { checked: 0, count: 0, breaking: Vec::new(), scanned: !scan.is_idle() }
    }
}

impl Stop {
    fn look_up(&self) -> Result<(), Stopped> {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late || self.gone.is_cancelled() { Err(Stopped) } else { Ok(()) }
    }
}

/// The value of stored data; always there, because they were parsed when they were taken in.
fn data(config: &Config) -> Option<Value> {
    serde_json::from_str(&config.data).ok()
}

fn is_object(config: &Config) -> bool {
    config.data.trim_start().starts_with('{')
}

/// A fault with its place, on one line.
fn shown(fault: &Violation) -> String {
    let step = |step: &LocSegment| match step {
        LocSegment::Name(name) => name.clone(),
        LocSegment::Index(place) => place.to_string(),
    };
    let place = fault.loc.iter().map(step).collect::<Vec<_>>().join(".");
    format!("{place}: {}", fault.msg)
}

#[cfg(test)]
mod tests;
