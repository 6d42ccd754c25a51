//! The write that takes back what a change request has changed: each config gets the data that it had before.
//!
//! It is a write like that which applies a change request (`applied`). The data is that of then, validated by the
//! definitions of now.
//!
//! **Invariants:** nothing is taken back if one of the records was changed since. Who takes a change request back has
//! approved it and still may, or passes the rules, or is the cluster at the time that the edition names.

use std::sync::Arc;

use super::{
    super::{
        batch::prepare_records,
        prepare::{Preparation, PreparedWrite},
    },
    Used, found_for,
};
use crate::{
    editions::{FoundChange, stale_revert},
    request::{EditionUse, Principal, Refusal, STORED_JSON_DEPTH_MAX, UsedEdition, Write, WriteRequest},
};
use concord_model::{
    access_key::Verb,
    command::{
        Applied, Done, Expect, StepOutcome,
        source::{Guard, RevertUse, Source, Tail},
    },
    document::{self, Document},
    error::{NotRevertible, Rejection},
    system::change::{ChangeDigest, Content, DataBefore, Phase, Revert},
};
use concord_state::State;

/// What a revert of an edition is.
pub(super) fn taking_back(
    state: &State,
    request: &WriteRequest,
    (id, digest): (&str, &ChangeDigest),
    principal: &Principal,
) -> Result<Used, Refusal> {
    let found = found_for(state, id, principal)?;
    let is_bypass = request.caller.bypass.is_some();
    authorize_reverter(principal, &found, is_bypass)?;
    let edition = &found.change.edition;
    let Phase::Applied { .. } = &found.change.phase else {
        return Err(Rejection::NotRevertible(NotRevertible::NotApplied).into());
    };
    if edition.digest != *digest {
        return Err(Rejection::ChangeDigest.into());
    }
    // A retry, or another one who does it: it was taken back once.
    if let Some(Revert::Done { revision, at, .. }) = &found.change.revert {
        let done = Done::Single(StepOutcome::Changed);
        return Ok(Used::Decided(Ok(Applied { revision: *revision, at: *at, done })));
    }
    let content = state.change_before(&found.id).ok_or(Rejection::NotRevertible(NotRevertible::Over))?;
    if let Some(text) = stale_revert(state, &content.bases) {
        return Err(Refusal::ChangeStale(text));
    }
    let mut inner = WriteRequest::new(request.caller.clone(), Write::Batch(writes_back(state, content)?));
    // It makes no change request of its own.
    inner.caller.bypass = None;
    inner.edition = Some(Box::new(UsedEdition {
        purpose: EditionUse::Revert { is_bypass },
        id: found.id.clone(),
        number: edition.number,
        digest: *digest,
        seal: content.digest_key,
        bases: content.bases.clone(),
        alone: None,
    }));
    Ok(Used::Write(Box::new(inner)))
}

/// Who may take it back, as far as permissions go. Whether it is somebody whose approval counted, the log decides.
fn authorize_reverter(
    principal: &Principal,
    found: &FoundChange<'_>,
    is_bypass: bool,
) -> Result<(), Refusal> {
    if principal.is_cluster() {
        return Ok(());
    }
    let verbs: &[Verb] = if is_bypass { &[Verb::Bypass, Verb::Write] } else { &[Verb::Approve] };
    verbs.iter().try_for_each(|verb| principal.authorize_scope(*verb, found.scope()))
}

/// The writes that give each config what it had before, in the order of the bases.
fn writes_back(state: &State, content: &Content) -> Result<Vec<Write>, Refusal> {
    let back = |(base, before): (&Guard, &Option<DataBefore>)| {
        let Guard::Config { definition, key, .. } = base else {
            return Err(Refusal::Internal("only configs are taken back".into()));
        };
        let definition = state.definition_by_id(*definition);
        let definition = definition.ok_or(Rejection::DefinitionNotFound)?.definition.key.to_string();
        let key = key.to_string();
        let Some(DataBefore { data }) = before else {
            return Ok(Write::DeleteConfig { definition, key, expect: Expect::Present });
        };
        let value = document::parse(data.as_bytes(), STORED_JSON_DEPTH_MAX)
            .map_err(|error| Refusal::Internal(format!("a stored document is invalid: {error}")))?;
        let data = Document { text: Arc::clone(data), value };
        Ok(Write::WriteConfig { definition, key, data, expect: Expect::Any })
    };
    content.bases.iter().zip(&content.before).map(back).collect()
}

/// Makes the command that takes back what was applied. `with`: of the one who does it.
pub(super) fn prepare_reverted(
    state: &State,
    request: &WriteRequest,
    edition: &UsedEdition,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let found = found_for(state, edition.id.as_str(), with.principal)?;
    let is_bypass = edition.purpose == EditionUse::Revert { is_bypass: true };
    // The key may have changed since the change request was found.
    authorize_reverter(with.principal, &found, is_bypass)?;
    if let Some(text) = stale_revert(state, &edition.bases) {
        return Err(Refusal::ChangeStale(text));
    }
    // It was stored before, so nobody is asked whether they may see its secret values.
    let root = Principal::root();
    let command =
        prepare_records(state, request.write.operations(), Preparation { principal: &root, ..with })?;
    let used = RevertUse { id: edition.id.clone(), edition: edition.number, is_bypass };
    Ok(PreparedWrite { tail: Tail::of(Source::Revert(used), Vec::new()), ..PreparedWrite::of(command) })
}
