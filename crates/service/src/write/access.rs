//! In whose name a write is made, judged by the state that it is prepared on; and changes of the access keys.
//!
//! The node that was asked has judged the request already, by its own state. The leader judges it again by the state
//! that the command rests on, and the proposal names the key as it was then; if the key changes before the entry is
//! applied, the verdict is *stale*, and all of this is done once more (`crates/state/src/access/mod.rs`).
//!
//! A key can give only what it has: who creates or changes a key must have all that the key may do afterwards, and
//! a key that may do more than the caller is to the caller as if it did not exist.
//!
//! **Invariant:** nothing here changes anything.

use std::sync::Arc;

use super::prepare::Prepared;
use crate::request::{AccessWrite, Principal, Refusal, WriteRequest};
use concord_model::{
    access_key::{AccessKey, KeyId, KeyUse, Verb},
    command::{AccessCommand, Command, Expect, KeyTerms},
    error::Rejection,
    time::Timestamp,
};
use concord_state::State;

/// A request whose caller may make it.
#[derive(Debug)]
pub(super) struct Judged {
    /// The caller as the state has it.
    pub(super) principal: Principal,
    /// What the proposal names.
    pub(super) key: Option<KeyUse>,
}

/// Judges by a state whether the caller may make a write, at a time of the log.
pub(super) fn judge(
    state: &State,
    request: &WriteRequest,
    now: impl FnOnce() -> Timestamp,
) -> Result<Judged, Refusal> {
    let principal = &request.caller.principal;
    if principal.is_cluster() {
        let is_own = request.write.access().is_some_and(AccessWrite::is_of_the_cluster);
        return if is_own {
            Ok(Judged { principal: principal.clone(), key: None })
        } else {
            Err(Refusal::KeyEnded)
        };
    }
    if principal.is_root() {
        if state.is_root_disabled() {
            return Err(Refusal::KeyEnded);
        }
        return Ok(Judged { principal: principal.clone(), key: None });
    }
    let key = KeyId::parse(&principal.id).and_then(|id| state.access_key(&id)).ok_or(Refusal::KeyEnded)?;
    let at = if key.has_end() { now() } else { Timestamp(0) };
    if !key.is_valid_at(at) || key.secret_at(principal.secret, at).is_none() {
        return Err(Refusal::KeyEnded);
    }
    let secret = principal.secret;
    let principal = Principal::of_key(Arc::clone(key), secret);
    principal.authorize_write(&request.write)?;
    let key = KeyUse { id: key.id.clone(), revision: key.revision, secret };
    Ok(Judged { principal, key: Some(key) })
}

/// Makes the command of a change of the access keys.
pub(super) fn prepare_access(
    state: &State,
    principal: &Principal,
    write: &AccessWrite,
) -> Result<Prepared, Refusal> {
    let command = match write {
        AccessWrite::Create { id, terms, sha256 } => {
            check_given(principal, terms, (true, true))?;
            AccessCommand::Create { id: id.clone(), terms: terms.clone(), sha256: *sha256 }
        }
        AccessWrite::Change { id, patch, expect } => {
            let key = seen(state, principal, id)?;
            let (patch, given) = (patch.clone(), (patch.expires_at.is_some(), patch.quota.is_some()));
            let terms = KeyTerms {
                name: patch.name.unwrap_or_else(|| key.name.clone()),
                grants: patch.grants.unwrap_or_else(|| key.grants.clone()),
                quota: patch.quota.unwrap_or(key.quota),
                expires_at: patch.expires_at.unwrap_or(key.expires_at),
            };
            check_given(principal, &terms, given)?;
            AccessCommand::Change { id: id.clone(), terms, expect: expect_of(key, *expect)? }
        }
        AccessWrite::Revoke { id, expect } => {
            let key = seen(state, principal, id)?;
            AccessCommand::Revoke { id: id.clone(), expect: expect_of(key, *expect)? }
        }
        AccessWrite::Rotate { id, sha256, grace_us, expect } => {
            let key = seen(state, principal, id)?;
            let expect = expect_of(key, *expect)?;
            AccessCommand::Rotate { id: id.clone(), sha256: *sha256, grace_us: *grace_us, expect }
        }
        AccessWrite::MarkUsed(ids) => AccessCommand::MarkUsed { ids: ids.clone() },
        AccessWrite::DisableRoot => {
            // The root key may do everything, and only who may do as much may take that away.
            if !principal.may_everything() {
                return Err(Refusal::Forbidden { verb: Verb::Keys, operation: None });
            }
            AccessCommand::DisableRoot
        }
        AccessWrite::EnableRoot => AccessCommand::EnableRoot,
    };
    Ok(Prepared::Propose { command: Command::Access(command), definition_read: None })
}

/// The key, if the caller may see it.
fn seen<'a>(state: &'a State, principal: &Principal, id: &KeyId) -> Result<&'a Arc<AccessKey>, Refusal> {
    let key = state.access_key(id).filter(|key| principal.may_see_key(key));
    key.ok_or_else(|| Rejection::KeyNotFound.into())
}

/// Refuses what the caller does not have: rights, and where they are given a longer life and a larger quota.
fn check_given(
    principal: &Principal,
    terms: &KeyTerms,
    (gives_time, gives_quota): (bool, bool),
) -> Result<(), Refusal> {
    let Some(own) = &principal.key else { return Ok(()) };
    let is_longer = gives_time
        && own.expires_at.is_some_and(|own| terms.expires_at.is_none_or(|expires_at| expires_at > own));
    let is_larger = gives_quota && !own.quota.covers(&terms.quota);
    if is_longer || is_larger || !own.grants.covers(&terms.grants) {
        return Err(Refusal::Forbidden { verb: Verb::Keys, operation: None });
    }
    Ok(())
}

/// The precondition that the caller names, or that the key is still the one that was judged.
fn expect_of(key: &AccessKey, expect: Expect) -> Result<Expect, Refusal> {
    match expect {
        Expect::At(revision) if revision != key.revision => {
            Err(Rejection::Precondition { current: key.revision }.into())
        }
        Expect::At(_) => Ok(expect),
        Expect::Any | Expect::Absent | Expect::Present | Expect::None | Expect::Read(_) => {
            Ok(Expect::Read(Some(key.revision)))
        }
    }
}

#[cfg(test)]
mod tests;
