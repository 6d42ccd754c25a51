//! Another schema or other unique paths for a definition, which all its configs must satisfy.
//!
//! ```text
//! prepare ─ check all configs of one state ─ check those written since … ─ raise the write barrier ─ the last few ─ propose
//! ```
//!
//! The command names the revision up to which the configs were checked, and the log refuses it as stale when one was
//! written since. A write that was validated against the old schema and is ordered after the change is stale as well,
//! because the definition has another revision then. So at no position of the log a config violates the schema of its
//! definition, unless the caller forced that.
//!
//! **Invariants:** a refusal because of configs is confirmed at a read index. A dry run and the report on a forced
//! change are reads of one state.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    config_scan::{Cancelled, Report, Scan, check as check_cancelled},
    prepare::{
        Preparation, Prepared, PreparedWrite, check_definition_expect, check_intake, formats_for,
        rejection_first,
    },
};
use crate::{
    Principal,
    cpu_pool::{Cancel, ScanYield, Weight},
    request::{Caller, Consistency, NewSchema, NewUnique, Refusal, Write, WriteRequest},
    schemas::within,
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    command::Command,
    error::{Invalid, LocSegment, Violation},
    index,
    limits::CONFIG_CHECK_TIMEOUT,
    record::{Definition, Revision},
    schema::{Formats, Schema, StoredSchema, accepts_any},
};
use concord_state::{Collection, State};

/// The result of a schema's dry run.
#[derive(Debug, Clone)]
pub struct Tried {
    /// Which configs violate it.
    pub report: Report,
    /// The revision of the state that this is true of.
    pub revision: Revision,
}

/// Prepares another schema; the configs are checked later if the command needs it.
pub(super) fn set_schema(
    found: &Collection,
    new: &NewSchema,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let secrets = with.secrets();
    secrets.check_redefinition(found)?;
    let formats = formats_for(new.format_assertion, found.definition.schema.as_ref());
    let precondition = check_definition_expect(new.expect, found);
    with.budget.charge_compilation(new.schema.as_ref().map_or("", |schema| &schema.text))?;
    let value = new.schema.as_ref().map(|schema| &schema.value);
    let compiled = value.map(|value| new.compiled.get(value, formats)).transpose();
    let checked = compiled
        .map_err(|violations| Invalid::Violations(within("json_schema", violations)))
        .and_then(|compiled| {
            let paths = index::check_stored_paths(&found.definition, value).map_err(Invalid::Violations)?;
            let places = compiled.as_deref().and_then(Schema::secrets);
            secrets.check_comparisons(places)?;
            secrets.check_paths(places, &paths)
        });
    rejection_first(&precondition, checked)?;
    let fits = new.force || precondition.is_err() || value.is_some_and(accepts_any);
    let command = Command::SetSchema {
        key: found.definition.key.clone(),
        schema: new.schema.as_ref().map(|schema| StoredSchema { text: Arc::clone(&schema.text), formats }),
        expect: new.expect,
        configs_read: (!fits).then_some(0),
    };
    Ok(PreparedWrite { command, definition_read: Some(found.definition.revision), precondition })
}

/// Prepares other unique paths, likewise.
pub(super) fn set_unique(found: &Collection, new: &NewUnique) -> Result<PreparedWrite, Refusal> {
    let precondition = check_definition_expect(new.expect, found);
    rejection_first(&precondition, check_unique_paths(found, &new.paths))?;
    let unfinished = |path: &&String| {
        found.definition.slot(path).is_some_and(|slot| found.definition.indexing.is_building(slot))
    };
    if let Some(path) = new.paths.iter().find(unfinished).filter(|_| precondition.is_ok()) {
        return Err(Refusal::Conflict(format!("`{path}` is being indexed; ask again when that is done")));
    }
    let fits = new.paths.is_empty() || precondition.is_err();
    let command = Command::SetUnique {
        key: found.definition.key.clone(),
        paths: new.paths.clone(),
        expect: new.expect,
        configs_read: (!fits).then_some(0),
    };
    Ok(PreparedWrite { command, definition_read: Some(found.definition.revision), precondition })
}

fn check_unique_paths(found: &Collection, paths: &[String]) -> Result<(), Invalid> {
    let mut violations = Vec::new();
    for (place, path) in paths.iter().enumerate() {
        let msg = if found.definition.slot(path).is_none() {
            format!("`{path}` is no indexed path of the definition, so it can't be unique")
        } else if index::is_pattern(path) {
            format!("`{path}` may have several values of several members, so it can't be unique")
        } else if paths[..place].contains(path) {
            format!("`{path}` is listed twice")
        } else {
            continue;
        };
        let loc = vec!["paths".into(), LocSegment::Index(u64::try_from(place).unwrap_or(u64::MAX))];
        violations.push(Violation::at(loc, msg));
        // No more violations than there are indexes: a list of any length has an answer of bounded length.
        if violations.len() > found.definition.indexes.len() {
            break;
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Refuses indexes that leave a unique path out: without an index its values can't be known to be unique.
pub(super) fn check_unique_stay_indexed(found: &Definition, indexes: &[String]) -> Result<(), Refusal> {
    let lost = found.unique.iter().find(|path| !indexes.contains(path));
    lost.map_or(Ok(()), |path| {
        Err(Refusal::Conflict(format!(
            "`{path}` is a unique path, so it stays indexed; take it from the unique paths first"
        )))
    })
}

impl Writes {
    /// Tries a schema without storing it: validated as by [`Self::write`], with a report in place of a refusal because
    /// of configs. The report names configs, so the caller must have the right to read them.
    ///
    /// # Errors
    /// Any other refusal that the write would get.
    pub async fn try_schema(self: &Arc<Self>, caller: Caller, new: NewSchema) -> Result<Tried, Refusal> {
        let _permit = self.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        caller.principal.authorize(Verb::Read, Some(&new.key))?;
        let (state, write) = self.prepare_redefinition(caller, Write::SetSchema(new)).await?;
        self.report(state, write).await.map(|(tried, _)| tried)
    }

    /// Tries unique paths without storing them; the revision of the state that they were tried on.
    ///
    /// # Errors
    /// The refusal that the write would get.
    pub async fn try_unique(self: &Arc<Self>, caller: Caller, new: NewUnique) -> Result<Revision, Refusal> {
        let _permit = self.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        caller.principal.authorize(Verb::Read, Some(&new.key))?;
        let (state, write) = self.prepare_redefinition(caller, Write::SetUnique(new)).await?;
        let (tried, refusal) = self.report(state, write).await?;
        refusal.map_or(Ok(tried.revision), Err)
    }

    /// Which configs violate a schema that was stored by force, on this node's state; `None` for a caller who may not
    /// read them.
    ///
    /// # Errors
    /// Why there is no report. The schema is stored all the same, so this is no refusal of the request.
    pub async fn breaking(
        self: &Arc<Self>,
        principal: &Principal,
        new: NewSchema,
    ) -> Result<Option<Tried>, Refusal> {
        if principal.authorize(Verb::Read, Some(&new.key)).is_err() {
            return Ok(None);
        }
        let consensus = self.cx.consensus_or_refusal()?;
        let report = self.report(consensus.state(), Write::SetSchema(new)).await;
        report.map(|(tried, _)| Some(tried))
    }

    /// Validates a change except for its configs. Returns the state that the configs are to be checked in.
    async fn prepare_redefinition(
        self: &Arc<Self>,
        caller: Caller,
        write: Write,
    ) -> Result<(Arc<State>, Write), Refusal> {
        check_intake(&write, self.cx.limits())?;
        caller.principal.authorize_write(&write)?;
        let state = self.freshness.view(Consistency::LINEARIZABLE).await?;
        // Nothing is stored, so nothing is remembered either.
        let request = Arc::new(WriteRequest { caller: Caller { idempotency_key: None, ..caller }, write });
        let deadline = Instant::now() + self.cx.options.write_timeout;
        match self.prepare(Arc::clone(&state), &request, deadline).await?.0 {
            Prepared::Propose { .. } => Ok((state, request.write.clone())),
            Prepared::Known(_) | Prepared::Read(_) => {
                Err(Refusal::Internal("a request without an idempotency key is remembered".into()))
            }
        }
    }

    async fn report(
        self: &Arc<Self>,
        state: Arc<State>,
        write: Write,
    ) -> Result<(Tried, Option<Refusal>), Refusal> {
        let deadline = Instant::now() + CONFIG_CHECK_TIMEOUT;
        let late = || Refusal::Unavailable("the configs could not be checked in time".into());
        let mut turn = self.cx.cpu_pool.turn(Weight::Scan, deadline).await?;
        let place = turn.take_place();
        let work = move |cancel: &Cancel, way: &mut ScanYield| {
            let _place = place;
            let mut scan = Scan::of(&write, formats_of(&write, &state))?;
            let revision = state.revision();
            let Some(found) = state.definition(write.definition()) else {
                return Ok(Ok((Tried { report: Report::empty(&scan), revision }, None)));
            };
            Ok(scan.advance(&state, found, &mut || keep_pace(cancel, way)).and_then(|_| {
                let report = scan.report(found, cancel)?;
                Ok((Tried { report, revision }, scan.refusal(found, cancel)?))
            }))
        };
        let scanned: Result<Result<_, Cancelled>, Refusal> =
            self.cx.cpu_pool.run_in(turn, deadline, work).await?;
        scanned?.map_err(|Cancelled| late())
    }
}

/// What `format` means in the schema of a write, by a state.
pub(super) fn formats_of(write: &Write, state: &State) -> Formats {
    let asked = if let Write::SetSchema(new) = write { new.format_assertion } else { None };
    let before = state.definition(write.definition()).and_then(|found| found.definition.schema.as_ref());
    formats_for(asked, before)
}

/// Goes on with a scan as long as somebody waits for it, and makes way for other work.
pub(super) fn keep_pace(cancel: &Cancel, way: &mut ScanYield) -> Result<(), Cancelled> {
    check_cancelled(cancel)?;
    if way.yield_turn() { Ok(()) } else { Err(Cancelled) }
}

#[cfg(test)]
mod tests;
