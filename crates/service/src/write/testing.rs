//! Requests, and their preparation, for the tests of this folder.

use super::prepare::{Preparation, Prepared, PreparedWrite, prepare};
use crate::{
    budget::Budget,
    policy::Policies,
    request::{Caller, Principal, Refusal, Write, WriteRequest},
    schemas::Validators,
};
use concord_model::{access_key::Author, command::Verdict, limits::Limits, time::Timestamp};
use concord_state::State;

/// A request with the root key.
pub(crate) fn request(write: Write) -> WriteRequest {
    request_by(Principal::root(), write)
}

pub(super) fn request_by(principal: Principal, write: Write) -> WriteRequest {
    let caller = Caller {
        principal,
        reason: None,
        idempotency_key: None,
        dry_run: false,
        listed_variants: concord_model::schema::ListedVariants::default(),
        bypass: None,
    };
    WriteRequest::new(caller, write)
}

/// Prepares a request for its own principal.
pub(super) fn prepared(state: &State, request: &WriteRequest) -> Result<Prepared, Refusal> {
    let budget = Budget::of_test(&request.write);
    let (validators, limits) = (Validators::default(), Limits::default());
    let principal = &request.caller.principal;
    let policies = Policies::default();
    let with = Preparation {
        validators: &validators,
        policies: &policies,
        limits: &limits,
        budget: &budget,
        principal,
        now: &|| Timestamp(0),
    };
    prepare(state, request, with)
}

/// The command of a request that can be proposed.
pub(super) fn proposed(state: &State, request: &WriteRequest) -> PreparedWrite {
    match prepared(state, request) {
        Ok(Prepared::Propose(prepared)) => prepared,
        other => panic!("{other:?}"),
    }
}

/// Prepares a write and applies it at the next revision.
pub(crate) fn apply(state: &mut State, request: &WriteRequest) -> Verdict {
    let proposal = request.proposal(Timestamp(1), proposed(state, request), Author::Root);
    state.apply(state.revision() + 1, &proposal).0
}
