//! A new schema or new unique paths for a definition, which all its configs must satisfy.
//!
//! ```text
//! prepare ─ check all configs of one state ─ check those written since … ─ raise the write barrier ─ the last few ─ propose
//! ```
//!
//! The command names the revision up to which the configs were checked, and the log rejects it as stale if a config was
//! written after that. A write that was validated against the old schema and is ordered after the change is stale as
//! well, because the definition then has another revision.
//!
//! **Invariants:** at no position of the log does a config violate the schema of its definition, unless a client has
//! forced that. A refusal because of configs is confirmed at a read index. A dry run and the report on a forced change
//! are reads of one state.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    config_scan::{ConfigScan, ScanPace, SchemaReport},
    prepare::{
        Preparation, Prepared, PreparedWrite, check_definition_expect, check_intake, formats_for,
        rejection_first,
    },
};
use crate::{
    Principal,
    cpu_pool::{Cancel, ScanYield, Weight},
    request::{Caller, Consistency, NewProtection, NewSchema, NewUnique, Refusal, Write, WriteRequest},
    schemas::within,
    write::{
        Writes,
        secrets::{check_comparisons, check_index_paths},
    },
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

/// Prepares a new schema. The configs are checked later if the command needs it.
pub(super) fn set_schema(
    found: &Collection,
    new: &NewSchema,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    with.check_redefinition(found)?;
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
            check_comparisons(places)?;
            check_index_paths(places, &paths)
        });
    rejection_first(&precondition, checked)?;
    let fits = new.force || precondition.is_err() || value.is_some_and(accepts_any);
    let command = Command::SetSchema {
        key: found.definition.key.clone(),
        schema: new.schema.as_ref().map(|schema| StoredSchema { text: Arc::clone(&schema.text), formats }),
        expect: new.expect,
        configs_read: (!fits).then_some(0),
    };
    Ok(PreparedWrite {
        definition_read: Some(found.definition.revision),
        precondition,
        ..PreparedWrite::of(command)
    })
}

/// Prepares new unique paths, likewise.
pub(super) fn set_unique(found: &Collection, new: &NewUnique) -> Result<PreparedWrite, Refusal> {
    let precondition = check_definition_expect(new.expect, found);
    rejection_first(&precondition, check_unique_paths(found, &new.paths))?;
    let unfinished = |path: &&String| {
        found.definition.slot(path).is_some_and(|slot| found.definition.indexing.is_building(slot))
    };
    if let Some(path) = new.paths.iter().find(unfinished).filter(|_| precondition.is_ok()) {
        return Err(Refusal::Conflict(format!("`{path}` is being indexed; retry when that is done")));
    }
    let fits = new.paths.is_empty() || precondition.is_err();
    let command = Command::SetUnique {
        key: found.definition.key.clone(),
        paths: new.paths.clone(),
        expect: new.expect,
        configs_read: (!fits).then_some(0),
    };
    Ok(PreparedWrite {
        definition_read: Some(found.definition.revision),
        precondition,
        ..PreparedWrite::of(command)
    })
}

/// Prepares a new protection.
pub(super) fn set_protection(found: &Collection, new: &NewProtection) -> PreparedWrite {
    let command = Command::SetProtection {
        key: found.definition.key.clone(),
        protected: new.protected,
        expect: new.expect,
    };
    let precondition = check_definition_expect(new.expect, found);
    PreparedWrite { precondition, ..PreparedWrite::of(command) }
}

fn check_unique_paths(found: &Collection, paths: &[String]) -> Result<(), Invalid> {
    let mut violations = Vec::new();
    for (place, path) in paths.iter().enumerate() {
        let msg = if found.definition.slot(path).is_none() {
            format!("`{path}` is not an indexed path of the definition, so it can't be unique")
        } else if index::is_pattern(path) {
            format!("`{path}` may match several members, so it can't be unique")
        } else if paths[..place].contains(path) {
            format!("`{path}` is listed twice")
        } else {
            continue;
        };
        let loc = vec!["paths".into(), LocSegment::Index(u64::try_from(place).unwrap_or(u64::MAX))];
        violations.push(Violation::at(loc, msg));
        // At most one violation more than the definition has indexes: the response is bounded whatever the list is.
        if violations.len() > found.definition.indexes.len() {
            break;
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Rejects indexes that omit a unique path: without an index Concord can't know that its values are unique.
pub(super) fn check_unique_stay_indexed(found: &Definition, indexes: &[String]) -> Result<(), Refusal> {
    let lost = found.unique.iter().find(|path| !indexes.contains(path));
    lost.map_or(Ok(()), |path| {
        Err(Refusal::Conflict(format!(
            "`{path}` is a unique path, so it must stay indexed; remove it from the unique paths first"
        )))
    })
}

/// The report of a scan, and why the write would be rejected because of it.
struct ScanReport {
    report: SchemaReport,
    refusal: Option<Refusal>,
}

impl Writes {
    /// Tries a schema without storing it: validated as by [`Self::write`], with a report in place of a rejection
    /// because of configs. The report names configs, so the client must have the permission to read them.
    ///
    /// # Errors
    /// Any other refusal that the write would get.
    pub async fn try_schema(
        self: &Arc<Self>,
        caller: Caller,
        new: NewSchema,
    ) -> Result<SchemaReport, Refusal> {
        self.try_redefinition(caller, Write::SetSchema(new)).await.map(|scanned| scanned.report)
    }

    /// Tries unique paths without storing them. Returns the revision of the state that they were tried on.
    ///
    /// # Errors
    /// The refusal that the write would get.
    pub async fn try_unique(self: &Arc<Self>, caller: Caller, new: NewUnique) -> Result<Revision, Refusal> {
        let scanned = self.try_redefinition(caller, Write::SetUnique(new)).await?;
        scanned.refusal.map_or(Ok(scanned.report.revision), Err)
    }

    /// The configs that violate a schema that was stored by force, on this node's state; `None` for a client that may
    /// not read them.
    ///
    /// # Errors
    /// Why there is no report. The schema is stored all the same, so this does not reject the request.
    pub async fn breaking(
        self: &Arc<Self>,
        principal: &Principal,
        new: NewSchema,
    ) -> Result<Option<SchemaReport>, Refusal> {
        if principal.authorize(Verb::Read, Some(&new.key)).is_err() {
            return Ok(None);
        }
        let consensus = self.cx.consensus_or_refusal()?;
        let scanned = self.scan(consensus.state(), Write::SetSchema(new)).await?;
        Ok(Some(scanned.report))
    }

    async fn try_redefinition(self: &Arc<Self>, caller: Caller, write: Write) -> Result<ScanReport, Refusal> {
        let _permit = self.admission.admit(&caller.principal)?;
        caller.principal.authorize(Verb::Read, Some(write.definition()))?;
        check_intake(&write, self.cx.limits())?;
        caller.principal.authorize_write(&write)?;
        let state = self.freshness.view(Consistency::LINEARIZABLE).await?;
        // Nothing is stored, so there is no idempotency record either.
        let request = Arc::new(WriteRequest::new(Caller { idempotency_key: None, ..caller }, write));
        let deadline = Instant::now() + self.cx.options.write_timeout;
        match self.prepare(Arc::clone(&state), &request, deadline).await?.0 {
            Prepared::Propose(_) => self.scan(state, request.write.clone()).await,
            Prepared::Known(_) | Prepared::Read(_) => {
                Err(Refusal::Internal("a request without an idempotency key has a stored response".into()))
            }
        }
    }

    /// Checks all configs of a state against a new schema or new unique paths.
    async fn scan(self: &Arc<Self>, state: Arc<State>, write: Write) -> Result<ScanReport, Refusal> {
        let deadline = Instant::now() + CONFIG_CHECK_TIMEOUT;
        let mut turn = self.cx.cpu_pool.turn(Weight::Scan, deadline).await?;
        let place = turn.take_place();
        let work = move |cancel: &Cancel, way: &mut ScanYield| {
            let _place = place;
            let mut pace = ScanPace { cancel, way: Some(way) };
            let mut scan = ConfigScan::of(&write, formats_of(&write, &state))?;
            let Some(found) = state.definition(write.definition()) else {
                return Ok(ScanReport { report: scan.empty_report(state.revision()), refusal: None });
            };
            scan.advance(&state, found, &mut pace)?;
            Ok(ScanReport { report: scan.report(found, &pace)?, refusal: scan.refusal(found, &pace)? })
        };
        self.cx.cpu_pool.run_in(turn, deadline, work).await?
    }
}

/// What `format` means in the schema of a write, according to a state.
pub(super) fn formats_of(write: &Write, state: &State) -> Formats {
    let requested = if let Write::SetSchema(new) = write { new.format_assertion } else { None };
    let before = state.definition(write.definition()).and_then(|found| found.definition.schema.as_ref());
    formats_for(requested, before)
}

#[cfg(test)]
mod tests;
