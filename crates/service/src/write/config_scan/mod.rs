//! The scan of all configs of a definition, in passes: the first checks all configs of one state, each later one those
//! that were written since the pass before it.
//!
//! A scan runs in the pool for long work. Its findings are exact at the state of its last pass: a config that was
//! corrected or deleted since then no longer counts.
//!
//! In a batch the state is a scratch copy to which the earlier operations are applied. The configs that they wrote have
//! the revision [`THIS_ENTRY`] and are the same in every pass, so only the first pass checks them. If these operations
//! change, a new scan starts.
//!
//! **Invariants:** every config of the state has been checked as it is there. A scan stops at the next config once its
//! request has ended.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    cpu_pool::{Cancel, ScanYield},
    request::{LazySchema, NewSchema, NewUnique, Refusal, Write},
    schemas::within,
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

/// Index entries between two checks for cancellation: a few dozen microseconds. Each config has a check of its own
/// before it, because validating it may take a second.
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
pub struct SchemaReport {
    /// The revision of the state.
    pub revision: Revision,
    /// The number of configs; 0 if they were not scanned.
    pub checked: u64,
    /// The number of configs that violate the schema.
    pub count: u64,
    /// The first of those by key, at most a hundred.
    pub breaking: Vec<BreakingConfig>,
    /// Whether the configs were scanned: no config violates a schema that accepts everything.
    pub scanned: bool,
}

/// A config that violates a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakingConfig {
    /// Its key.
    pub key: Key,
    /// The violations, located from the root of the record; at most ten.
    pub violations: Vec<Violation>,
}

/// Two configs that share a value of a unique path.
#[derive(Debug, Clone)]
struct SharedValue {
    path: String,
    one: Key,
    other: Key,
}

/// Stops a scan once its request has ended, and lets other work of the pool run in between.
pub(super) struct ScanPace<'a> {
    pub(super) cancel: &'a Cancel,
    /// `None` for a scan that writes wait for: it runs without pauses.
    pub(super) way: Option<&'a mut ScanYield>,
}

impl ScanPace<'_> {
    /// Called before each config.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] once the request has ended. The scan can't continue then.
    pub(super) fn keep(&mut self) -> Result<(), Refusal> {
        self.check_time()?;
        let may_continue = self.way.as_mut().is_none_or(|way| way.yield_turn());
        if may_continue { Ok(()) } else { Err(out_of_time()) }
    }

    fn check_time(&self) -> Result<(), Refusal> {
        if self.cancel.is_over() { Err(out_of_time()) } else { Ok(()) }
    }
}

fn out_of_time() -> Refusal {
    Refusal::Unavailable("the configs could not be checked in time".into())
}

/// A scan and its findings so far.
#[derive(Debug)]
pub(super) struct ConfigScan {
    constraint: Constraint,
    /// What `format` means in its schema.
    formats: Formats,
    /// The definition's id: another definition with the same key has other configs.
    definition: Option<Revision>,
    /// The revision of the last state.
    revision: Revision,
    /// The configs that violate the schema, with their revisions.
    breaking: BTreeMap<Key, Revision>,
    shared_value: Option<SharedValue>,
}

impl ConfigScan {
    /// A scan for the constraint that a prepared write sets.
    pub(crate) fn of(write: &Write, formats: Formats) -> Result<Self, Refusal> {
        let compile = |compiled: &LazySchema, value: &Value| {
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
            | Write::UndeleteDefinition(_)
            | Write::SetProtection(_)
            | Write::WriteConfig { .. }
            | Write::DeleteConfig { .. }
            | Write::PatchConfig { .. }
            | Write::Rollback(_)
            | Write::Access(_)
            | Write::Audit(_)
            | Write::Identity(_)
            | Write::Environment(_)
            | Write::Change(_)
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
            shared_value: None,
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

    /// Continues with a later state. Returns the number of configs that were new in it.
    ///
    /// # Errors
    /// See [`ScanPace::keep`].
    pub(super) fn advance(
        &mut self,
        state: &State,
        found: &Collection,
        pace: &mut ScanPace<'_>,
    ) -> Result<u64, Refusal> {
        if self.definition != Some(found.definition.id) {
            (self.definition, self.revision, self.shared_value) = (Some(found.definition.id), 0, None);
            self.breaking.clear();
        }
        let since = self.revision;
        let written =
            found.indexes().by_modified.back_from(u64::MAX).map(|written| found.config_of(&written.of));
        let mut new_configs = 0;
        match self.constraint {
            Constraint::None => {}
            // The index has only the configs that exist now, and configs that share a value are neighbours in it.
            Constraint::Unique(_) if since == 0 || self.shared_value.is_some() => {
                new_configs = found.by_key.len();
                self.find_shared_value(found, pace)?;
            }
            Constraint::Unique(_) | Constraint::Schema(_) | Constraint::Object => {
                // The newest come first.
                let is_new = |config: &&Arc<Config>| since == 0 || config.revision != THIS_ENTRY;
                for config in written.take_while(|config| config.revision > since).filter(is_new) {
                    new_configs += 1;
                    pace.keep()?;
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
                let shared = paths.iter().find_map(|path| {
                    let one = found.other_with_value(path, config.key.as_str(), &config.entries)?.clone();
                    Some(SharedValue { path: path.clone(), one, other: config.key.clone() })
                });
                self.shared_value = self.shared_value.take().or(shared);
                true
            }
        };
        if !is_satisfied {
            self.breaking.insert(config.key.clone(), config.revision);
        }
    }

    /// Finds two configs that share a value.
    fn find_shared_value(&mut self, found: &Collection, pace: &mut ScanPace<'_>) -> Result<(), Refusal> {
        self.shared_value = None;
        let Constraint::Unique(paths) = &self.constraint else { return Ok(()) };
        for path in paths {
            let mut before: Option<(&[u8], &Key)> = None;
            for (place, (value, key)) in (1u64..).zip(found.by_value(path)) {
                if place.is_multiple_of(CANCEL_CHECK_ENTRIES) {
                    pace.keep()?;
                }
                if let Some((_, one)) = before.filter(|(other, _)| *other == value) {
                    let (path, one, other) = (path.clone(), one.clone(), key.clone());
                    self.shared_value = Some(SharedValue { path, one, other });
                    return Ok(());
                }
                before = Some((value, key));
            }
        }
        Ok(())
    }

    /// Why the configs of the last state do not permit the change; `None` if they do.
    ///
    /// # Errors
    /// See [`ScanPace::keep`].
    pub(super) fn refusal(
        &self,
        found: &Collection,
        pace: &ScanPace<'_>,
    ) -> Result<Option<Refusal>, Refusal> {
        if let Some(SharedValue { path, one, other }) = self.shared_value.clone() {
            return Ok(Some(Refusal::NotUniqueYet { path, one, other }));
        }
        if self.breaking.is_empty() {
            return Ok(None);
        }
        let report = self.report(found, pace)?;
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
        Ok(Some(Refusal::Breaks { count: report.count, violations }))
    }

    /// The report on the last state.
    ///
    /// # Errors
    /// See [`ScanPace::keep`].
    pub(super) fn report(&self, found: &Collection, pace: &ScanPace<'_>) -> Result<SchemaReport, Refusal> {
        let mut breaking = Vec::new();
        for key in self.breaking.keys().take(REPORTED_CONFIGS_MAX) {
            pace.check_time()?;
            let Some(config) = found.config(key.as_str()) else { continue };
            breaking.push(BreakingConfig { key: key.clone(), violations: self.violations(config) });
        }
        let count = u64::try_from(self.breaking.len()).unwrap_or(u64::MAX);
        let checked = if self.is_idle() { 0 } else { found.by_key.len() };
        Ok(SchemaReport { checked, count, breaking, ..self.empty_report(self.revision) })
    }

    /// The report on a state without configs.
    pub(super) fn empty_report(&self, revision: Revision) -> SchemaReport {
        SchemaReport { revision, checked: 0, count: 0, breaking: Vec::new(), scanned: !self.is_idle() }
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
