//! The history of a stopped node, with which the state of a backup continues up to a point in time.
//!
//! ```text
//! backup:   ……………………R
//! history:      S═══════════════P═══════U
//!               └ compared ┘└ added ┘└ left out
//! ```
//!
//! The changes of the segment that has the backup's revision are compared with the backup: both must have changed the
//! same records last, at the same revisions. So a history of another cluster, or of one that has taken another way since
//! the backup, is rejected. A cluster id would not tell: a recovered cluster has another one, and its history goes on.
//!
//! **Invariants:** nothing in the directory is changed. All changes after the backup up to the point are added, or the
//! result is an error. One change is in memory at a time.

use std::{collections::BTreeMap, fs::File, path::Path, sync::Arc};

use super::{
    format::{self, Segment, StoredChange, StoredEdit},
    frames::SegmentFile,
    query::HistoryError,
    reader::scan,
    segments::{History, SegmentSpans, read_seal},
};
use crate::{StoreError, at_rest::AtRest, files::io};
use concord_model::{
    key::Key,
    record::{Config, Revision, VoidRevisions},
    system::{SystemBody, SystemKey, SystemRecord},
    time::Timestamp,
};
use concord_state::{
    State,
    continuation::{Continuation, Mismatch},
};

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// After the change of this revision.
    Revision(Revision),
    /// After the last change at this time of the log or before it.
    Time(Timestamp),
}

/// The point up to which a state was continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointReached {
    /// The revision of the backup.
    pub backup: Revision,
    /// The revision of the state.
    pub revision: Revision,
    /// The time of the last change of the state.
    pub at: Timestamp,
    /// How many changes were added to the backup.
    pub changes: u64,
    /// The first change that was left out; `None` if the history has none.
    pub next: Option<ChangeLeftOut>,
}

/// A change after the point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeLeftOut {
    /// Its revision.
    pub revision: Revision,
    /// Its time.
    pub at: Timestamp,
    /// Who made it.
    pub by: String,
    /// The reason that they gave.
    pub reason: Option<String>,
}

/// Why a state can't be continued up to a point.
#[derive(Debug, thiserror::Error)]
pub enum PointError {
    /// The backup is too young.
    #[error("the backup is of revision {revision}, {at}, and the point lies before it: use an older backup")]
    BeforeBackup {
        /// The revision of the backup.
        revision: Revision,
        /// The time of its last change.
        at: Timestamp,
    },
    /// The history is too short.
    #[error(
        "the history ends at revision {revision}{}, and the point lies after that: use the history of a node that was \
         stopped later, or `--at {revision}`",
        at.map(|at| format!(", its last change is of {at}")).unwrap_or_default()
    )]
    AfterHistory {
        /// The last revision that it covers.
        revision: Revision,
        /// The time of its last change, if it has one after the backup.
        at: Option<Timestamp>,
    },
    /// The history does not touch the backup.
    #[error("{text}: use {instead}, or the history of another node")]
    Apart {
        /// What is missing.
        text: String,
        /// What else may help.
        instead: &'static str,
    },
    /// The history is not that of the cluster that made the backup, or lacks a part of it.
    #[error(
        "the history does not continue the backup, at revision {revision}: {why}. Is it of another cluster?"
    )]
    Foreign {
        /// The revision of the history.
        revision: Revision,
        /// What differs.
        why: String,
    },
    /// The revision was given out by members that are lost, if at all.
    #[error(
        "{what} is of revision {revision}, and a recovery of the cluster has skipped the revisions from {} to {}",
        void.first, void.last
    )]
    Void {
        /// Whose revision it is.
        what: &'static str,
        /// The revision.
        revision: Revision,
        /// What was skipped.
        void: VoidRevisions,
    },
    /// The history can't be read.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// The history of a node that does not run.
#[derive(Debug)]
pub struct StoppedHistory {
    history: Arc<History>,
    damage: Vec<String>,
}

impl StoppedHistory {
    /// Opens the segments in a directory. Blocking.
    ///
    /// # Errors
    /// When there are none, one can't be decrypted, or the disk fails.
    pub fn open(directory: &Path, at_rest: &AtRest) -> Result<Self, StoreError> {
        let (history, mut damage) = (Arc::new(History::new(directory, at_rest)), Vec::new());
        for segment in format::segments(directory)? {
            let path = segment.path(directory);
            format::refuse_newer(&path)?;
            if let Some((upto, bytes)) = sealed(&segment, &path, at_rest)? {
                history.add(&segment, upto, bytes, None);
                continue;
            }
            // What a crash has torn, or damage has cut, ends there.
            let scan = scan(&path, segment.after, at_rest)?;
            if let Some(what) = scan.damage.filter(|_| segment.sealed) {
                let (path, upto) = (path.display(), scan.totals.upto);
                damage.push(format!("{path} is damaged after revision {upto}: {what}"));
            }
            let open = Segment { sealed: false, ..segment };
            history.add(&open, scan.totals.upto, scan.bytes, Some(scan.index));
        }
        if history.spans().all.is_empty() {
            return Err(StoreError::Damaged(format!("{} has no history", directory.display())));
        }
        Ok(Self { history, damage })
    }

    /// The last revision that it covers.
    #[must_use]
    pub fn upto(&self) -> Revision {
        self.history.applied()
    }

    /// The files that are not whole, with the last revision that can be read of each.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Continues the state of a backup up to a point. Blocking.
    ///
    /// # Errors
    /// When the history does not continue the backup, does not reach the point, or can't be read.
    pub fn continued(&self, state: State, point: Point) -> Result<(State, PointReached), PointError> {
        let (backup, last_at) = (state.revision(), state.last_at());
        let is_before = match point {
            Point::Revision(at) => at < backup,
            Point::Time(time) => time < last_at,
        };
        if is_before {
            return Err(PointError::BeforeBackup { revision: backup, at: last_at });
        }
        let mut overlap = Overlap::new(self.begin(backup)?);
        let mut changes = self.history.retained_from(overlap.after + 1)?;
        let first = loop {
            match self.next(&mut changes, point)? {
                Some(change) if change.revision <= backup => overlap.add(change),
                first => break first,
            }
        };
        overlap.compare(&state)?;
        let mut added = Added { continuation: Continuation::new(state), changes: 0, last: (backup, last_at) };
        let mut next = first;
        while let Some(change) = next.take_if(|change| is_upto(change, point)) {
            added.add(change, backup)?;
            next = self.next(&mut changes, point)?;
        }
        if let Some(void) = next.as_ref().and_then(void_of) {
            refuse_void("the backup", backup, void)?;
            if let Point::Revision(at) = point {
                refuse_void("the point", at, void)?;
            }
        }
        let is_reached = match point {
            Point::Revision(at) => at <= self.upto(),
            // Whether there was a change between the end of the history and the time is not known.
            Point::Time(_) => next.is_some(),
        };
        if !is_reached {
            let at = Some(added.last.1).filter(|_| added.changes > 0);
            return Err(PointError::AfterHistory { revision: self.upto(), at });
        }
        let (last, at) = added.last;
        let revision = if let Point::Revision(at) = point { at } else { last };
        let next = next.map(|StoredChange { revision, at, by, reason, .. }| ChangeLeftOut {
            revision,
            at,
            by,
            reason,
        });
        let reached = PointReached { backup, revision, at, changes: added.changes, next };
        Ok((added.continuation.finish(revision), reached))
    }

    /// The next change. What the history lacks after the point does not matter.
    fn next(
        &self,
        changes: &mut impl Iterator<Item = Result<StoredChange, HistoryError>>,
        point: Point,
    ) -> Result<Option<StoredChange>, PointError> {
        match (changes.next().transpose(), point) {
            (Err(HistoryError::Gap { after, .. }), Point::Revision(at)) if after >= at => Ok(None),
            (next, _) => Ok(next?),
        }
    }

    /// The revision after which the segment begins that has a revision, or that follows it.
    fn begin(&self, backup: Revision) -> Result<Revision, PointError> {
        let SegmentSpans { all, applied, .. } = self.history.spans();
        if applied < backup {
            let text = format!("the history ends at revision {applied}, before the backup's, {backup}");
            return Err(PointError::Apart { text, instead: "an older backup" });
        }
        let of_backup = all.iter().find(|span| span.after < backup && span.upto >= backup);
        if let Some(span) = of_backup.or_else(|| all.iter().find(|span| span.after == backup)) {
            return Ok(span.after);
        }
        let next = all.iter().map(|span| span.after).find(|after| *after > backup).unwrap_or(applied);
        let text = format!(
            "the history lacks the changes after revision {backup}, the backup's, up to revision {next}"
        );
        Err(PointError::Apart { text, instead: "a newer backup" })
    }
}

/// The last revision of a sealed segment, and its length; `None` if it ends without its seal.
fn sealed(segment: &Segment, path: &Path, at_rest: &AtRest) -> Result<Option<(Revision, u64)>, StoreError> {
    if !segment.sealed {
        return Ok(None);
    }
    let failed = || format!("can't read {}", path.display());
    let file = File::open(path).map_err(io(failed()))?;
    let mut file = SegmentFile::new(file, at_rest, segment.after).map_err(io(failed()))?;
    let seal = read_seal(&mut file).map_err(io(failed()))?;
    let bytes = file.length().map_err(io(failed()))?;
    Ok(seal.map(|seal| (seal.totals.upto, bytes)))
}

fn is_upto(change: &StoredChange, point: Point) -> bool {
    match point {
        Point::Revision(at) => change.revision <= at,
        Point::Time(time) => change.at <= time,
    }
}

/// The revisions that a change has skipped.
fn void_of(change: &StoredChange) -> Option<VoidRevisions> {
    change.edits.iter().find_map(|edit| match edit {
        StoredEdit::Skipped(void) => Some(*void),
        StoredEdit::Definition { .. }
        | StoredEdit::DefinitionWithBefore { .. }
        | StoredEdit::Reindexed { .. }
        | StoredEdit::Deleted { .. }
        | StoredEdit::Undeleted { .. }
        | StoredEdit::Dropped { .. }
        | StoredEdit::Config { .. }
        | StoredEdit::ConfigWithBefore { .. }
        | StoredEdit::Remember(_)
        | StoredEdit::System { .. }
        | StoredEdit::Forget(_) => None,
    })
}

fn refuse_void(what: &'static str, revision: Revision, void: VoidRevisions) -> Result<(), PointError> {
    if (void.first..=void.last).contains(&revision) {
        return Err(PointError::Void { what, revision, void });
    }
    Ok(())
}

/// Whether a system record has a revision of its own, and is in the history. A person has that of the key that names it first,
/// and a rollout that of its change request.
fn is_compared(record: &SystemRecord) -> bool {
    match &record.body {
        SystemBody::Environment(_)
        | SystemBody::Change(_)
        | SystemBody::Provider(_)
        | SystemBody::Role
        | SystemBody::Policy => true,
        SystemBody::Person(_)
        | SystemBody::Content(_)
        | SystemBody::Rollout(_)
        | SystemBody::Session(_)
        | SystemBody::KeySet(_) => false,
    }
}

/// The records that a segment has changed up to the backup, with their revisions; `None` for one that was deleted.
struct Overlap {
    /// The revision after which the segment begins.
    after: Revision,
    definitions: BTreeMap<u64, Option<Revision>>,
    configs: BTreeMap<(u64, Key), Option<Revision>>,
    system: BTreeMap<SystemKey, Option<Revision>>,
    upto: Revision,
}

impl Overlap {
    fn new(after: Revision) -> Self {
        Self {
            after,
            definitions: BTreeMap::new(),
            configs: BTreeMap::new(),
            system: BTreeMap::new(),
            upto: after,
        }
    }

    fn add(&mut self, change: StoredChange) {
        self.upto = change.revision;
        for edit in change.edits {
            match edit {
                StoredEdit::Definition { id, after, .. } => {
                    self.definitions.insert(id, after.map(|after| after.revision));
                }
                StoredEdit::DefinitionWithBefore { before, after } => {
                    self.definitions.insert(before.id, after.map(|after| after.revision));
                }
                StoredEdit::Config { definition, key, after, .. } => {
                    self.configs.insert((definition, key), after.map(|after| after.revision));
                }
                StoredEdit::ConfigWithBefore { definition, before, after } => {
                    let place = (definition, before.key.clone());
                    self.configs.insert(place, after.map(|after| after.revision));
                }
                StoredEdit::System { before, after } => {
                    let Some(record) = after.as_ref().or(before.as_ref()) else { continue };
                    if is_compared(record) {
                        self.system.insert(record.key(), after.as_ref().map(|after| after.revision));
                    }
                }
                StoredEdit::Reindexed { .. }
                | StoredEdit::Deleted { .. }
                | StoredEdit::Undeleted { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => {}
            }
        }
    }

    /// Rejects a state whose system records others have changed.
    fn compare_system(&self, state: &State) -> Result<(), PointError> {
        let differs = |key: &SystemKey, why: &str| {
            Err(PointError::Foreign { revision: self.upto, why: format!("{key} {why}") })
        };
        for (key, expected) in &self.system {
            if state.system_record(key).map(|record| record.revision) != *expected {
                return differs(key, "is another one in the backup");
            }
        }
        for record in state.system_records().filter(|record| is_compared(record)) {
            if record.revision > self.after && !self.system.contains_key(&record.key()) {
                return differs(&record.key(), "has a change that it lacks");
            }
        }
        Ok(())
    }

    /// Rejects a state that other changes have led to.
    fn compare(&self, state: &State) -> Result<(), PointError> {
        let differs = |why: String| PointError::Foreign { revision: self.upto, why };
        for (id, expected) in &self.definitions {
            let found = state.definition_by_id(*id).map(|found| found.definition.revision);
            if found != *expected {
                return Err(differs(format!("definition {id} is another one in the backup")));
            }
        }
        for ((id, key), expected) in &self.configs {
            // Those of a definition that was deleted went with it.
            let Some(collection) = state.definition_by_id(*id) else { continue };
            if collection.config(key.as_str()).map(|config| config.revision) != *expected {
                return Err(differs(format!(
                    "config `{key}` of definition {id} is another one in the backup"
                )));
            }
        }
        for collection in state.definitions() {
            let definition = &collection.definition;
            if definition.revision > self.after && !self.definitions.contains_key(&definition.id) {
                return Err(differs(format!("it has no change of definition `{}`", definition.key)));
            }
            let is_unknown = |config: &Config| {
                config.revision > self.after
                    && !self.configs.contains_key(&(definition.id, config.key.clone()))
            };
            if let Some(config) = collection.configs().find(|config| is_unknown(config)) {
                let (key, definition) = (&config.key, &definition.key);
                return Err(differs(format!("it has no change of config `{key}` of `{definition}`")));
            }
        }
        self.compare_system(state)
    }
}

/// What was added to a backup.
struct Added {
    continuation: Continuation,
    changes: u64,
    /// The revision and the time of the last change.
    last: (Revision, Timestamp),
}

impl Added {
    fn add(&mut self, change: StoredChange, backup: Revision) -> Result<(), PointError> {
        if let Some(void) = void_of(&change) {
            refuse_void("the backup", backup, void)?;
        }
        let StoredChange { revision, at, edits, .. } = change;
        self.continuation.begin(revision, at);
        let returned: Vec<u64> = edits
            .iter()
            .filter_map(|edit| {
                if let StoredEdit::Undeleted { definition, .. } = edit { Some(*definition) } else { None }
            })
            .collect();
        for edit in edits {
            self.add_edit(edit, &returned)
                .map_err(|why| PointError::Foreign { revision, why: why.to_string() })?;
        }
        self.changes += 1;
        self.last = (revision, at);
        Ok(())
    }

    fn add_edit(&mut self, edit: StoredEdit, returned: &[u64]) -> Result<(), Mismatch> {
        let to = &mut self.continuation;
        match edit {
            StoredEdit::Definition { id, key, before, after } => {
                to.definition(id, &key, before, (after.as_ref(), returned.contains(&id)))
            }
            StoredEdit::DefinitionWithBefore { before, after } => {
                to.definition(before.id, &before.key, Some(before.revision), (after.as_ref(), false))
            }
            StoredEdit::Config { definition, key, before, after } => {
                to.config(definition, &key, before, after.as_ref())
            }
            StoredEdit::ConfigWithBefore { definition, before, after } => {
                to.config(definition, &before.key, Some(before.revision), after.as_ref())
            }
            StoredEdit::Reindexed { definition } => {
                to.reindexed(definition);
                Ok(())
            }
            StoredEdit::Deleted { definition, kept, .. } => {
                to.deleted(definition, kept);
                Ok(())
            }
            StoredEdit::Dropped { definition } => {
                to.dropped(definition);
                Ok(())
            }
            StoredEdit::Remember(outcome) => {
                to.remember(outcome);
                Ok(())
            }
            StoredEdit::Forget(revision) => {
                to.forget(revision);
                Ok(())
            }
            StoredEdit::System { before, after } => to.system_record(before.as_ref(), after.as_ref()),
            // It came with its definition.
            StoredEdit::Undeleted { .. } | StoredEdit::Skipped(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
