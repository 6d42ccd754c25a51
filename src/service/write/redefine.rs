//! Another schema or other unique paths for a definition, which all its configs must fit.
//!
//! ```text
//! judge ─ check all configs of one picture ─ check those written since … ─ close the gate ─ the last few ─ propose
//! ```
//!
//! The command names the revision up to which the configs were checked, and the log refuses it as stale when one
//! was written since. A write that was checked against the old schema and comes behind the change is stale as
//! well, because the definition has another revision then. So at no place in the log a config breaks the schema
//! of its definition, unless that was asked for.
//!
//! **Invariants:** what is refused for its configs is judged at a read index. A dry run and the report on a forced
//! change are reads of one state.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::{OwnedRwLockWriteGuard, OwnedSemaphorePermit},
    time::{Instant, timeout_at},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Attempt,
    config_scan::{Report, Scan, Stop, Stopped},
    prepare::{Asked, Judged, Prepared, check_definition_expect, check_intake, rejection_first},
    run_blocking,
    validators::within,
    write_barrier::Keeper,
};
use crate::{
    model::{
        command::{Command, Expect},
        document::Document,
        error::{Invalid, LocSegment, Violation},
        index,
        record::{Definition, Revision},
        schema::{Schema, accepts_any},
    },
    raft::Consensus,
    service::{Caller, Consistency, Level, Refusal, Service, Write},
    state::{Collection, State},
};

/// Configs up to which a change that checks them all has no more time than any other write: they take some 10 ms.
const MANY: u64 = 10_000;
/// How long it may take otherwise; a million of them take some seconds.
const CHECK_TIME: Duration = Duration::from_secs(50);
/// Configs of the last picture up to which the gate is closed: milliseconds.
const FEW: u64 = 1000;
/// Pictures after which it is closed all the same.
const PICTURES_MAX: u32 = 6;

/// Another schema for a definition, as a caller asks it.
#[derive(Debug, Clone)]
pub struct NewSchema {
    /// The definition.
    pub key: String,
    /// Its schema from now on; `None` takes any object.
    pub schema: Option<Document>,
    /// What must be there.
    pub expect: Expect,
    /// Store it though configs break it.
    pub force: bool,
    /// Its compiled form.
    pub compiled: Compiled,
}

/// A schema that is compiled when it is first asked for, and once: the write that brings it may be prepared many
/// times while others change the definition, and one that takes longer than they do would never be done.
#[derive(Debug, Clone, Default)]
pub struct Compiled(Arc<OnceLock<Result<Arc<Schema>, Vec<Violation>>>>);

impl Compiled {
    pub(in crate::service) fn of(&self, value: &Value) -> Result<Arc<Schema>, Vec<Violation>> {
        self.0.get_or_init(|| Schema::compile(value).map(Arc::new)).clone()
    }
}

/// Other unique paths for a definition, as a caller asks it.
#[derive(Debug, Clone)]
pub struct NewUnique {
    /// The definition.
    pub key: String,
    /// All its unique paths from now on.
    pub paths: Vec<String>,
    /// What must be there.
    pub expect: Expect,
}

/// What a schema would do to the configs, and the revision of the state that says so.
#[derive(Debug, Clone)]
pub struct Tried {
    /// Which configs break it.
    pub report: Report,
    /// The state's revision.
    pub revision: Revision,
}

/// Judges another schema; the configs are checked later, where the command says so.
pub(in crate::service) fn set_schema(found: &Collection, new: &NewSchema) -> Result<Judged, Refusal> {
    let standing = check_definition_expect(new.expect, found);
    let value = new.schema.as_ref().map(|schema| &schema.value);
    let compiled = value.map_or(Ok(()), |value| new.compiled.of(value).map(drop));
    let checked = compiled
        .map_err(|violations| Invalid::Violations(within("json_schema", violations)))
        .and_then(|()| {
            let indexes = &found.definition.indexes;
            index::check_paths(indexes, value, indexes.len()).map_err(Invalid::Violations)
        });
    rejection_first(&standing, checked)?;
    let fits = new.force || standing.is_err() || value.is_some_and(accepts_any);
    let command = Command::SetSchema {
        key: found.definition.key.clone(),
        schema: new.schema.as_ref().map(|schema| Arc::clone(&schema.text)),
        expect: new.expect,
        configs_read: (!fits).then_some(0),
    };
    Ok((command, Some(found.definition.revision), standing))
}

/// Judges other unique paths, likewise.
pub(in crate::service) fn set_unique(found: &Collection, new: &NewUnique) -> Result<Judged, Refusal> {
    let standing = check_definition_expect(new.expect, found);
    rejection_first(&standing, check_unique_paths(found, &new.paths))?;
    let unfinished = |path: &&String| {
        found.definition.slot(path).is_some_and(|slot| found.definition.indexing.is_building(slot))
    };
    if let Some(path) = new.paths.iter().find(unfinished).filter(|_| standing.is_ok()) {
        return Err(Refusal::Conflict(format!("`{path}` is being indexed; ask again when that is done")));
    }
    let fits = new.paths.is_empty() || standing.is_err();
    let command = Command::SetUnique {
        key: found.definition.key.clone(),
        paths: new.paths.clone(),
        expect: new.expect,
        configs_read: (!fits).then_some(0),
    };
    Ok((command, Some(found.definition.revision), standing))
}

fn check_unique_paths(found: &Collection, paths: &[String]) -> Result<(), Invalid> {
    let mut violations = Vec::new();
    for (place, path) in paths.iter().enumerate() {
        let msg = if found.definition.slot(path).is_none() {
            format!("`{path}` is no indexed path of the definition, so it can't be unique")
        } else if paths[..place].contains(path) {
            format!("`{path}` is listed twice")
        } else {
            continue;
        };
        let loc = vec!["paths".into(), LocSegment::Index(u64::try_from(place).unwrap_or(u64::MAX))];
        violations.push(Violation::at(loc, msg));
        // As many as there can be indexes: a list of any length has an answer of bounded length.
        if violations.len() > found.definition.indexes.len() {
            break;
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Refuses indexes that leave a unique path out: whether its values repeat could not be told any more.
pub(in crate::service) fn keep_unique(found: &Definition, indexes: &[String]) -> Result<(), Refusal> {
    let lost = found.unique.iter().find(|path| !indexes.contains(path));
    lost.map_or(Ok(()), |path| {
        Err(Refusal::Conflict(format!(
            "`{path}` is a unique path, so it stays indexed; take it from the unique paths first"
        )))
    })
}

/// Whether a command waits for a check of all configs.
pub(in crate::service) fn needs_check(command: &Command) -> bool {
    match command {
        Command::SetSchema { configs_read, .. } | Command::SetUnique { configs_read, .. } => {
            configs_read.is_some()
        }
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::DeleteDefinition { .. }
        | Command::WriteConfig { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::BuildIndex { .. }
        | Command::Batch(_) => false,
    }
}

/// Notes in a command how far the configs were checked.
pub(in crate::service) fn set_configs_read(command: &mut Command, read: Revision) {
    if let Command::SetSchema { configs_read, .. } | Command::SetUnique { configs_read, .. } = command {
        *configs_read = Some(read);
    }
}

/// A check of all configs of a definition, kept through all tries at one write.
#[derive(Debug)]
pub(in crate::service) struct Check {
    asked: Arc<Asked>,
    scan: Option<Box<Scan>>,
    /// Kept from the first picture to the end: who has closed the gate must not wait behind other checks.
    place: Option<OwnedSemaphorePermit>,
    keeper: Keeper,
    closed: Option<OwnedRwLockWriteGuard<()>>,
    pictures: u32,
    /// Ends the check with the request.
    gone: DropGuard,
}

/// What a picture of the configs shows.
enum Seen {
    /// The definition is not the one that the command was judged against.
    Changed,
    /// All configs fit; so many were new, and this is the picture's revision.
    Fits(u64, Revision),
    Breaks(Refusal),
}

impl Service {
    /// How long a write may take in all.
    pub(in crate::service) fn time_for(&self, write: &Write) -> Duration {
        let time = self.inner.options.write_timeout;
        let is_large = |state: Arc<State>| {
            state.definition(write.definition()).is_some_and(|found| found.by_key.len() > MANY)
        };
        match write {
            Write::SetSchema(_) | Write::SetUnique(_)
                if self.consensus().map(Consensus::state).is_some_and(is_large) =>
            {
                time.max(CHECK_TIME)
            }
            Write::SetSchema(_) | Write::SetUnique(_) => time,
            Write::CreateDefinition { .. }
            | Write::SetIndexes { .. }
            | Write::DeleteDefinition { .. }
            | Write::WriteConfig { .. }
            | Write::DeleteConfig { .. }
            | Write::PatchConfig { .. }
            | Write::Batch(_)
            | Write::Rollback(_) => time,
        }
    }

    pub(in crate::service) fn new_check(&self, asked: &Arc<Asked>) -> Check {
        let keeper = self.inner.gates.of(asked.write.definition());
        let gone = CancellationToken::new().drop_guard();
        Check { asked: Arc::clone(asked), scan: None, place: None, keeper, closed: None, pictures: 0, gone }
    }

    /// Checks all configs; the revision up to which they fit, or `None` when the definition has changed since
    /// `read`. From its first success on no config of the definition is written from here.
    pub(in crate::service) async fn check_configs(
        &self,
        consensus: &Consensus,
        check: &mut Check,
        read: Option<Revision>,
        deadline: Instant,
    ) -> Result<Option<Revision>, Attempt> {
        loop {
            let seen = self.look_at_all(check, consensus.state(), read, deadline).await?;
            let (news, upto) = match seen {
                Seen::Changed => return Ok(None),
                Seen::Fits(news, upto) => (news, upto),
                Seen::Breaks(_) => {
                    check.closed = None;
                    Self::confirm_lead(consensus, deadline).await?;
                    match self.look_at_all(check, consensus.state(), read, deadline).await? {
                        Seen::Changed => return Ok(None),
                        Seen::Breaks(refusal) => return Err(Attempt::Refused(refusal)),
                        Seen::Fits(news, upto) => (news, upto),
                    }
                }
            };
            if check.closed.is_some() {
                return Ok(Some(upto));
            }
            check.pictures += 1;
            if news <= FEW || check.pictures >= PICTURES_MAX {
                let closed = timeout_at(deadline, check.keeper.close()).await;
                let late = |_| Attempt::Later("writes under way did not end in time".into());
                check.closed = Some(closed.map_err(late)?);
            }
        }
    }

    /// Looks at one picture, aside.
    async fn look_at_all(
        &self,
        check: &mut Check,
        state: Arc<State>,
        read: Option<Revision>,
        deadline: Instant,
    ) -> Result<Seen, Attempt> {
        let late = || Attempt::Later("the configs could not be checked in time".into());
        let place = match check.place.take() {
            Some(place) => place,
            None => self.place(deadline).await.ok_or_else(late)?,
        };
        let stop = Stop { gone: check.gone.token().clone(), deadline: Some(deadline) };
        let (asked, scan) = (Arc::clone(&check.asked), check.scan.take());
        let looked = run_blocking(move || {
            let mut scan = match scan {
                Some(scan) => scan,
                None => Box::new(Scan::of(&asked.write)?),
            };
            let found = state.definition(asked.write.definition());
            let Some(found) = found.filter(|found| Some(found.definition.revision) == read) else {
                return Ok(Ok((scan, place, Seen::Changed)));
            };
            // The place comes back with the work, however long after its request that ends.
            Ok(scan.advance(&state, found, &stop).map(|news| {
                let seen = scan.refusal(found).map_or(Seen::Fits(news, scan.upto()), Seen::Breaks);
                (scan, place, seen)
            }))
        });
        let looked: Result<Result<_, Stopped>, Refusal> = looked.await.and_then(|looked| looked);
        let (scan, place, seen) = looked.map_err(Attempt::Refused)?.map_err(|Stopped| late())?;
        (check.scan, check.place) = (Some(scan), Some(place));
        Ok(seen)
    }

    /// Waits for a place among the checks that run at once; `None` when there was none in time.
    async fn place(&self, deadline: Instant) -> Option<OwnedSemaphorePermit> {
        timeout_at(deadline, Arc::clone(&self.inner.scans).acquire_owned()).await.ok()?.ok()
    }

    /// What a schema would do, without storing it: all checks of [`Self::write`], and the report instead of a
    /// refusal.
    ///
    /// # Errors
    /// What the write would be refused with but for its configs.
    pub async fn try_schema(&self, caller: Caller, new: NewSchema) -> Result<Tried, Refusal> {
        let _permit = self.inner.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        let (state, write) = self.try_redefinition(caller, Write::SetSchema(new)).await?;
        self.report(state, write).await.map(|(tried, _)| tried)
    }

    /// Whether paths could be unique, without storing it; the revision of the state that says so.
    ///
    /// # Errors
    /// What the write would be refused with.
    pub async fn try_unique(&self, caller: Caller, new: NewUnique) -> Result<Revision, Refusal> {
        let _permit = self.inner.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        let (state, write) = self.try_redefinition(caller, Write::SetUnique(new)).await?;
        let (tried, refusal) = self.report(state, write).await?;
        refusal.map_or(Ok(tried.revision), Err)
    }

    /// Which configs break a schema that was stored all the same, on this node's state.
    ///
    /// # Errors
    /// *Undecided*: the schema is stored, and the report failed.
    pub async fn breaking(&self, new: NewSchema) -> Result<Tried, Refusal> {
        let stored = |refusal| {
            Refusal::Undecided(format!("the schema is stored, but there is no report on it: {refusal:?}"))
        };
        let consensus = self.consensus_or_refusal().map_err(stored)?;
        let report = self.report(consensus.state(), Write::SetSchema(new)).await;
        report.map(|(tried, _)| tried).map_err(stored)
    }

    /// The state that a write would be decided on, once its checks but that of the configs have passed.
    async fn try_redefinition(&self, caller: Caller, write: Write) -> Result<(Arc<State>, Write), Refusal> {
        check_intake(&write, self.limits())?;
        let consistency = Consistency { level: Level::Linearizable, min_revision: None };
        let state = self.view(consistency).await?;
        // Nothing is stored, so nothing is remembered either.
        let asked = Arc::new(Asked { caller: Caller { request: None, ..caller }, write });
        match self.prepare(Arc::clone(&state), &asked).await? {
            Prepared::Propose { .. } => Ok((state, asked.write.clone())),
            Prepared::Known(_) => Err(Refusal::Internal("a request without a stamp is known".into())),
        }
    }

    async fn report(&self, state: Arc<State>, write: Write) -> Result<(Tried, Option<Refusal>), Refusal> {
        let deadline = Instant::now() + CHECK_TIME;
        let late = || Refusal::Unavailable("the configs could not be checked in time".into());
        let place = self.place(deadline).await.ok_or_else(late)?;
        let guard = CancellationToken::new().drop_guard();
        let stop = Stop { gone: guard.token().clone(), deadline: Some(deadline) };
        let looked = run_blocking(move || {
            let _place = place;
            let mut scan = Scan::of(&write)?;
            let revision = state.revision();
            let Some(found) = state.definition(write.definition()) else {
                return Ok(Ok((Tried { report: Report::of_nothing(&scan), revision }, None)));
            };
            Ok(scan
                .advance(&state, found, &stop)
                .map(|_| (Tried { report: scan.report(found), revision }, scan.refusal(found))))
        });
        let looked: Result<Result<_, Stopped>, Refusal> = looked.await.and_then(|looked| looked);
        looked?.map_err(|Stopped| late())
    }
}

#[cfg(test)]
mod tests;
