//! The scan of all configs of a definition, pass by pass: first all configs of one state, then those that were written
//! since the pass before.
//!
//! It runs in the pool for long work. Its findings are exact at the state of its last pass: a config that was corrected or
//! deleted since does not count any more.
//!
//! In a batch the state is a scratch copy to which the earlier operations are applied. What they wrote has the revision
//! [`THIS_ENTRY`], is the same in every pass, and so is checked in the first one alone. Who changes these operations
//! begins another scan.
//!
//! **Invariants:** every config of that state has been checked as it is there. A scan ends with the
//! config that it is at when its request has ended.

use std::{collections::BTreeMap, sync::Arc};

use crate::schemas::within;
use crate::{
    cpu_pool::Cancel,
    request::{Compiled, NewSchema, NewUnique, Refusal, Write},
};
use concord_model::{
    command::THIS_ENTRY,
    error::{LocSegment, Violation},
    key::Key,
    limits::{REPORTED_CONFIGS_MAX, REPORTED_VIOLATIONS_MAX},
    record::{Config, Revision},
    schema::{Formats, Schema, accepts_any},
};
use concord_state::{Collection, State};
use serde_json::Value;

/// Index entries between two checks for cancellation: some dozen microseconds. Before each check of a config, which may
/// take a second, there is one.
const CANCEL_CHECK_ENTRIES: u64 = 256;

/// What all configs must satisfy.
#[derive(Debug)]
enum Constraint {
    /// Any data satisfies it.
    None,
    /// The data is an object: there is no schema.
    Object,
    Schema(Arc<Schema>),
    /// No two configs share a value of one of these paths.
    Unique(Vec<String>),
}

/// The configs that violate a schema, at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many configs there are, if they were scanned.
    pub checked: u64,
    /// How many of them violate it.
    pub count: u64,
    /// The first of those by key, at most a hundred.
    pub breaking: Vec<Breaking>,
    /// Whether they had to be scanned: no config violates a schema that accepts everything.
    pub scanned: bool,
}

/// A config that violates a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaking {
    /// Its key.
    pub key: Key,
    /// The violations, located from the root of the record; at most ten.
    pub violations: Vec<Violation>,
}

/// A scan was cancelled; it can't continue from there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cancelled;

/// Called between two configs: makes way for other work, and says when nobody waits for the scan.
pub(super) type Pace<'a> = dyn FnMut() -> Result<(), Cancelled> + 'a;

/// A scan and its findings so far.
#[derive(Debug)]
pub(super) struct Scan {
    constraint: Constraint,
    /// What `format` means in its schema.
    formats: Formats,
    /// The definition's id: another definition of the same key has other configs.
    definition: Option<Revision>,
    /// The revision of the last state.
    revision: Revision,
    /// The configs that violate the schema, with their revisions.
    breaking: BTreeMap<Key, Revision>,
    /// A unique path with two configs that share a value.
    duplicate: Option<(String, Key, Key)>,
}

impl Scan {
    /// A scan for what a prepared write demands of all configs.
    pub(crate) fn of(write: &Write, formats: Formats) -> Result<Self, Refusal> {
        let compile = |compiled: &Compiled, value: &Value| {
            compiled.get(value, formats).map(Constraint::Schema).map_err(|violations| {
                Refusal::Internal(format!("a validated schema does not compile: {violations:?}"))
            })
        };
        let constraint = match write {
            Write::SetSchema(NewSchema { schema: None, .. }) => Constraint::Object,
            Write::SetSchema(NewSchema { schema: Some(schema), .. }) if accepts_any(&schema.value) => {
                Constraint::None
            }
            Write::SetSchema(NewSchema { schema: Some(schema), compiled, .. }) => {
                compile(compiled, &schema.value)?
            }
            Write::SetUnique(NewUnique { paths, .. }) => Constraint::Unique(paths.clone()),
            Write::CreateDefinition { .. }
            | Write::SetIndexes { .. }
            | Write::DeleteDefinition { .. }
            | Write::WriteConfig { .. }
            | Write::DeleteConfig { .. }
            | Write::PatchConfig { .. }
            | Write::Rollback(_)
            | Write::Access(_)
            | Write::Check(_)
            | Write::Read { .. }
            | Write::Transaction(_)
            | Write::Batch(_) => Constraint::None,
        };
        Ok(Self {
            constraint,
            formats,
            definition: None,
            revision: 0,
            breaking: BTreeMap::new(),
            duplicate: None,
        })
    }

    /// What `format` means in its schema.
    pub(super) fn formats(&self) -> Formats {
        self.formats
    }

    /// Whether the configs need not be scanned.
    fn is_idle(&self) -> bool {
        matches!(self.constraint, Constraint::None)
    }

    /// The revision of the state that was scanned last.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Continues with a later state; how many configs were new in it.
    pub(super) fn advance(
        &mut self,
        state: &State,
        found: &Collection,
        pace: &mut Pace<'_>,
    ) -> Result<u64, Cancelled> {
        if self.definition != Some(found.definition.id) {
            (self.definition, self.revision, self.duplicate) = (Some(found.definition.id), 0, None);
            self.breaking.clear();
        }
        let since = self.revision;
        let written =
            found.indexes().by_modified.back_from(u64::MAX).map(|written| found.config_of(&written.of));
        let mut new_configs = 0;
        match self.constraint {
            Constraint::None => {}
            // Duplicates are neighbours in the index, which has only the configs that exist now.
            Constraint::Unique(_) if since == 0 || self.duplicate.is_some() => {
                new_configs = found.by_key.len();
                self.find_duplicate(found, pace)?;
            }
            Constraint::Unique(_) | Constraint::Schema(_) | Constraint::Object => {
                // These are the newest.
                let is_new = |config: &&Arc<Config>| since == 0 || config.revision != THIS_ENTRY;
                for config in written.take_while(|config| config.revision > since).filter(is_new) {
                    new_configs += 1;
                    pace()?;
                    self.check(found, config);
                }
                self.breaking.retain(|key, revision| {
                    found.config(key.as_str()).is_some_and(|config| config.revision == *revision)
                });
            }
        }
        self.revision = state.revision();
        Ok(new_configs)
    }

    fn check(&mut self, found: &Collection, config: &Config) {
        let is_satisfied = match &self.constraint {
            Constraint::None => true,
            Constraint::Object => is_object(config),
            Constraint::Schema(schema) => data(config).is_some_and(|data| schema.accepts(&data)),
            Constraint::Unique(paths) => {
                let duplicate = paths.iter().find_map(|path| {
                    let other = found.other_with_value(path, config.key.as_str(), &config.entries)?;
                    Some((path.clone(), other.clone(), config.key.clone()))
                });
                self.duplicate = self.duplicate.take().or(duplicate);
                true
            }
        };
        if !is_satisfied {
            self.breaking.insert(config.key.clone(), config.revision);
        }
    }

    /// Finds two configs that share a value: they are neighbours in the index.
    fn find_duplicate(&mut self, found: &Collection, pace: &mut Pace<'_>) -> Result<(), Cancelled> {
        self.duplicate = None;
        let Constraint::Unique(paths) = &self.constraint else { return Ok(()) };
        for path in paths {
            let mut before: Option<(&[u8], &Key)> = None;
            for (place, (value, key)) in (1u64..).zip(found.by_value(path)) {
                if place.is_multiple_of(CANCEL_CHECK_ENTRIES) {
                    pace()?;
                }
                if let Some((_, other)) = before.filter(|(other, _)| *other == value) {
                    self.duplicate = Some((path.clone(), other.clone(), key.clone()));
                    return Ok(());
                }
                before = Some((value, key));
            }
        }
        Ok(())
    }

    /// The refusal because of the configs of the last state.
    pub(super) fn refusal(&self, found: &Collection, cancel: &Cancel) -> Result<Option<Refusal>, Cancelled> {
        if let Some((path, one, other)) = &self.duplicate {
            return Ok(Some(Refusal::NotUniqueYet {
                path: path.clone(),
                one: one.clone(),
                other: other.clone(),
                operation: None,
            }));
        }
        if self.breaking.is_empty() {
            return Ok(None);
        }
        let report = self.report(found, cancel)?;
        let summary = format!(
            "{} of {} configs would break the schema; none was changed",
            report.count, report.checked
        );
        let items = report.breaking.into_iter().map(|breaking| {
            let shown = breaking.violations.iter().map(on_one_line).collect::<Vec<_>>().join("; ");
            Violation::at(
                vec!["config".into(), LocSegment::from(breaking.key.as_str())],
                format!("config `{}`: {shown}", breaking.key),
            )
        });
        let first = Violation::at(vec!["json_schema".into()], summary);
        let violations = std::iter::once(first).chain(items).collect();
        Ok(Some(Refusal::Breaks { count: report.count, violations, operation: None }))
    }

    /// The report on the last state.
    pub(super) fn report(&self, found: &Collection, cancel: &Cancel) -> Result<Report, Cancelled> {
        let mut breaking = Vec::new();
        for key in self.breaking.keys().take(REPORTED_CONFIGS_MAX) {
            check(cancel)?;
            let Some(config) = found.config(key.as_str()) else { continue };
            breaking.push(Breaking { key: key.clone(), violations: self.violations(config) });
        }
        let count = u64::try_from(self.breaking.len()).unwrap_or(u64::MAX);
        let scanned = !self.is_idle();
        Ok(Report { checked: if scanned { found.by_key.len() } else { 0 }, count, breaking, scanned })
    }

    fn violations(&self, config: &Config) -> Vec<Violation> {
        let mut violations = match (&self.constraint, data(config)) {
            (Constraint::Schema(schema), Some(data)) => schema.check(&data).err().unwrap_or_default(),
            (Constraint::Schema(_) | Constraint::Object | Constraint::Unique(_) | Constraint::None, _) => {
                vec![Violation::new("data must be an object")]
            }
        };
        if violations.len() > REPORTED_VIOLATIONS_MAX {
            let more = violations.len() - REPORTED_VIOLATIONS_MAX;
            violations.truncate(REPORTED_VIOLATIONS_MAX);
            violations.push(Violation::new(format!("and {more} more violations")));
        }
        within("data", violations)
    }
}

impl Report {
    /// The report on a definition that was deleted.
    pub(super) fn empty(scan: &Scan) -> Self {
        Self { checked: 0, count: 0, breaking: Vec::new(), scanned: !scan.is_idle() }
    }
}

pub(super) fn check(cancel: &Cancel) -> Result<(), Cancelled> {
    if cancel.is_over() { Err(Cancelled) } else { Ok(()) }
}

/// The value of stored data; always `Some`, because the text was parsed when it was accepted.
fn data(config: &Config) -> Option<Value> {
    serde_json::from_str(&config.data).ok()
}

fn is_object(config: &Config) -> bool {
    config.data.trim_start().starts_with('{')
}

/// A violation with its location, on one line.
fn on_one_line(violation: &Violation) -> String {
    let step = |step: &LocSegment| match step {
        LocSegment::Name(name) => name.clone(),
        LocSegment::Index(place) => place.to_string(),
    };
    let place = violation.loc.iter().map(step).collect::<Vec<_>>().join(".");
    format!("{place}: {}", violation.msg)
}

#[cfg(test)]
mod tests;
