//! The authorization of a write by the state that it is prepared on; changes of the access keys and of anchors.
//!
//! The receiving node has authorized the request by its own state. The leader authorizes it again by the state that the
//! command rests on, and the proposal names the key as it was then. If the key changes before the entry is applied, the
//! verdict is *stale*, and the write is authorized and prepared again (`crates/state/src/access/mod.rs`).
//!
//! A key can grant only what it has: to create or change a key, a client needs all permissions that the key has
//! afterwards. A key with permissions that the client lacks does not exist for the client.
//!
//! **Invariants:** nothing here changes anything. Every way to obtain a credential, creating and rotating a key, passes
//! [`check_given`] with all terms of that key.

use std::sync::Arc;

use super::prepare::PreparedWrite;
use crate::{
    policy::Policies,
    request::{AccessWrite, AuditWrite, ChangeWrite, Principal, Refusal, WriteRequest},
};
use concord_model::{
    access_key::{AccessKey, Author, KeyId, KeyUse, SessionUse, Verb},
    command::{AccessCommand, AuditCommand, Command, Expect, KeyTerms},
    error::Rejection,
    time::Timestamp,
};
use concord_state::State;

/// The client of an authorized write.
#[derive(Debug)]
pub(super) struct Authorized {
    /// The client, with its key as the state has it.
    pub(super) principal: Principal,
    /// In whose name the proposal is made.
    pub(super) author: Author,
}

/// Authorizes a write by a state. `now`: the time of the log.
///
/// # Errors
/// [`Refusal::KeyEnded`], [`Refusal::Forbidden`], [`Rejection::SessionEnded`].
pub(super) fn authorize(
    state: &State,
    policies: &Policies,
    request: &WriteRequest,
    now: impl FnOnce() -> Timestamp,
) -> Result<Authorized, Refusal> {
    let principal = &request.caller.principal;
    if principal.is_cluster() {
        // What was left to it, as the log knows.
        let is_own = request.write.is_of_the_cluster()
            || request.edition.is_some()
            || request.write.change().is_some_and(ChangeWrite::is_of_records);
        return if is_own {
            Ok(Authorized { principal: principal.clone(), author: Author::Cluster })
        } else {
            Err(Refusal::KeyEnded)
        };
    }
    if principal.is_root() {
        if state.is_root_disabled() {
            return Err(Refusal::KeyEnded);
        }
        return Ok(Authorized { principal: principal.clone(), author: Author::Root });
    }
    if let Some(session) = principal.session_id() {
        let policy = policies.of(state);
        let found = policy.session(state, session, now()).ok_or(Rejection::SessionEnded)?;
        let author = Author::Session(SessionUse { id: session.clone(), policy: policy.revision() });
        let principal = Principal::of_session(found);
        authorize_request(&principal, request)?;
        return Ok(Authorized { principal, author });
    }
    let key = KeyId::parse(&principal.id).and_then(|id| state.access_key(&id)).ok_or(Refusal::KeyEnded)?;
    let at = if key.has_end() { now() } else { Timestamp(0) };
    if !key.is_valid_at(at) || key.secret_at(principal.secret, at).is_none() {
        return Err(Refusal::KeyEnded);
    }
    let secret = principal.secret;
    let principal = Principal::of_key(Arc::clone(key), secret);
    authorize_request(&principal, request)?;
    let author = Author::Key(KeyUse { id: key.id.clone(), revision: key.revision, secret });
    Ok(Authorized { principal, author })
}

/// Authorizes what a request does.
fn authorize_request(principal: &Principal, request: &WriteRequest) -> Result<(), Refusal> {
    // What a change request changes, others may have the permissions for. Who may apply it is asked when it is found.
    if request.edition.is_some() {
        return Ok(());
    }
    principal.authorize_write(&request.write)?;
    if request.caller.bypass.is_some() {
        principal.authorize_bypass(&request.write)?;
    }
    Ok(())
}

/// Makes the command of a change of the access keys.
pub(super) fn prepare_access(
    state: &State,
    principal: &Principal,
    write: &AccessWrite,
) -> Result<PreparedWrite, Refusal> {
    let command = match write {
        AccessWrite::Create { id, terms, sha256, person } => {
            check_given(principal, GivenTerms { terms, has_expiry: true, has_quota: true })?;
            let (id, terms, person) = (id.clone(), terms.clone(), person.clone());
            AccessCommand::Create { id, terms, sha256: *sha256, person }
        }
        AccessWrite::Change { id, patch, expect } => {
            let key = seen(state, principal, id)?;
            let (has_expiry, has_quota) = (patch.expires_at.is_some(), patch.quota.is_some());
            let (patch, terms) = (patch.clone(), terms_of(key));
            let terms = KeyTerms {
                name: patch.name.unwrap_or(terms.name),
                grants: patch.grants.unwrap_or(terms.grants),
                quota: patch.quota.unwrap_or(terms.quota),
                expires_at: patch.expires_at.unwrap_or(terms.expires_at),
            };
            check_given(principal, GivenTerms { terms: &terms, has_expiry, has_quota })?;
            AccessCommand::Change { id: id.clone(), terms, expect: expect_of(key, *expect)? }
        }
        AccessWrite::Revoke { id, expect } => {
            let key = seen(state, principal, id)?;
            AccessCommand::Revoke { id: id.clone(), expect: expect_of(key, *expect)? }
        }
        AccessWrite::Rotate { id, sha256, grace_us, expect } => {
            let key = seen(state, principal, id)?;
            // Whoever rotates a key has its new secret, as if they had created the key.
            check_given(principal, GivenTerms { terms: &terms_of(key), has_expiry: true, has_quota: true })?;
            let expect = expect_of(key, *expect)?;
            AccessCommand::Rotate { id: id.clone(), sha256: *sha256, grace_us: *grace_us, expect }
        }
        AccessWrite::Attest { id, revision } => {
            seen(state, principal, id)?;
            AccessCommand::Attest { id: id.clone(), revision: *revision }
        }
        AccessWrite::MarkUsed(ids) => AccessCommand::MarkUsed { ids: ids.clone() },
        AccessWrite::DisableRoot => {
            // Only a key with all permissions of the root key may disable it.
            if !principal.may_everything() {
                return Err(Refusal::Forbidden { verb: Verb::Keys });
            }
            AccessCommand::DisableRoot
        }
        AccessWrite::EnableRoot => AccessCommand::EnableRoot,
    };
    Ok(PreparedWrite::of(Command::Access(command)))
}

/// Makes the command of a change of the anchors of an audit log.
pub(super) fn prepare_audit(
    state: &State,
    principal: &Principal,
    write: &AuditWrite,
) -> Result<PreparedWrite, Refusal> {
    let command = match write {
        AuditWrite::Anchor { log, seq, sha256 } => {
            if !principal.is_cluster() {
                return Err(Refusal::Forbidden { verb: Verb::Cluster });
            }
            AuditCommand::Anchor { log: *log, seq: *seq, sha256: *sha256 }
        }
        AuditWrite::Accept { log } if state.audit_anchors_of(log).is_none() => {
            let text = format!("this cluster has no anchors of the audit log of node {}", log.node);
            return Err(Refusal::NotThere(text));
        }
        AuditWrite::Accept { log } => AuditCommand::Accept { log: *log },
    };
    Ok(PreparedWrite::of(Command::Audit(command)))
}

/// The key, if the client may see it.
fn seen<'a>(state: &'a State, principal: &Principal, id: &KeyId) -> Result<&'a Arc<AccessKey>, Refusal> {
    let key = state.access_key(id).filter(|key| principal.may_see_key(key));
    key.ok_or_else(|| Rejection::KeyNotFound.into())
}

fn terms_of(key: &AccessKey) -> KeyTerms {
    KeyTerms {
        name: key.name.clone(),
        grants: key.grants.clone(),
        quota: key.quota,
        expires_at: key.expires_at,
    }
}

/// The terms of a key that is created, changed or rotated.
struct GivenTerms<'a> {
    terms: &'a KeyTerms,
    /// Whether the client gives the expiry; a change may leave it as it is.
    has_expiry: bool,
    /// Whether the client gives the quota.
    has_quota: bool,
}

/// Refuses permissions that the client lacks, and a later expiry or a larger quota than its own.
fn check_given(principal: &Principal, given: GivenTerms<'_>) -> Result<(), Refusal> {
    let GivenTerms { terms, has_expiry, has_quota } = given;
    if principal.is_unbounded() {
        return Ok(());
    }
    let own = principal.key().ok_or(Refusal::Forbidden { verb: Verb::Keys })?;
    let is_later = has_expiry
        && own.expires_at.is_some_and(|own| terms.expires_at.is_none_or(|expires_at| expires_at > own));
    let is_larger = has_quota && !own.quota.covers(&terms.quota);
    if is_later || is_larger || !own.grants.covers(&terms.grants) {
        return Err(Refusal::Forbidden { verb: Verb::Keys });
    }
    Ok(())
}

/// The client's precondition; if there is none, that the key is still at the revision that was read.
fn expect_of(key: &AccessKey, expect: Expect) -> Result<Expect, Refusal> {
    match expect {
        Expect::At(tag) if tag != key.tag() => Err(Rejection::Precondition { current: key.tag() }.into()),
        Expect::At(_) => Ok(expect),
        Expect::Any | Expect::Absent | Expect::Present | Expect::None | Expect::Read(_) => {
            Ok(Expect::Read(Some(key.revision)))
        }
    }
}

#[cfg(test)]
mod tests;
