//! Identity: providers, roles, and the sessions of those who log in.
//!
//! | topic | file |
//! |---|---|
//! | a token is exchanged for a session | `login` |
//! | why a token is accepted or not, for those who manage providers | `tried` |
//! | the keys of providers, which the leader fetches | `key_sets` |
//!
//! This file has providers, roles and sessions as clients manage them. Their permissions are those of `policy`. `write/identity.rs` prepares what they change, and
//! the log decides it (`crates/state/src/identity`).
//!
//! **Invariants:** what somebody may do follows from the kept claims of the session and the roles of now. A client manages
//! only what gives no more than it has: roles with grants that it has, and providers and sessions whose roles are such.

pub(crate) mod key_sets;
pub(crate) mod login;
pub(crate) mod tried;

use std::sync::Arc;

use crate::{
    clock::Clock,
    context::Context,
    freshness::{Freshness, Made},
    policy::{
        self, Policy,
        texts::{SessionText, StoredRole},
    },
    request::{Caller, Consistency, DecidedWrite, IdentityWrite, NewRole, Principal, Refusal, Write},
    write::Writes,
};
use concord_model::{
    access_key::{KeyId, Quota, Verb, grants::Grants},
    command::{Done, Expect, StepOutcome},
    document::Document,
    error::IdentityRejection,
    key::Key,
    record::Revision,
    system::SystemRecord,
    time::Timestamp,
};
use concord_state::State;

/// A provider as a client sees it.
#[derive(Debug, Clone)]
pub struct ProviderView {
    /// Its record: the name, the document, the times and the revision.
    pub record: Arc<SystemRecord>,
    /// Its keys, unless they are in its document.
    pub keys: Option<KeysView>,
    /// How many sessions it has.
    pub sessions: u64,
}

/// The keys of a provider that a node has fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysView {
    /// How many there are.
    pub count: usize,
    /// When the provider last gave exactly these.
    pub confirmed_at: Timestamp,
}

/// A role as a client sees it.
#[derive(Debug, Clone)]
pub struct RoleView {
    /// Its record: the name, the times and the revision.
    pub record: Arc<SystemRecord>,
    /// What it allows.
    pub grants: Grants,
    /// How much of it.
    pub quota: Quota,
    /// The JSON text of its members.
    pub members: String,
    /// How long a session with it lasts, in seconds.
    pub session_s: u64,
}

/// A session as a client sees it.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// Its id.
    pub id: KeyId,
    /// The name of its owner.
    pub owner: String,
    /// The provider that has named the owner.
    pub provider: Key,
    /// Its roles.
    pub roles: Vec<Key>,
    /// What is kept of the claims: the text of a JSON object.
    pub claims: String,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// A provider or a role that a request stored, or would have stored.
#[derive(Debug)]
pub struct StoredIdentity<T> {
    /// What is stored.
    pub view: T,
    /// Whether the request created it.
    pub is_created: bool,
    /// The write.
    pub written: DecidedWrite,
}

/// Providers, roles and sessions, for clients that manage them.
#[derive(Debug)]
pub struct Identities {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    freshness: Arc<Freshness>,
    writes: Arc<Writes>,
}

impl Identities {
    pub(crate) fn new(
        cx: &Arc<Context>,
        clock: &Arc<Clock>,
        freshness: &Arc<Freshness>,
        writes: &Arc<Writes>,
    ) -> Self {
        let (cx, clock) = (Arc::clone(cx), Arc::clone(clock));
        Self { cx, clock, freshness: Arc::clone(freshness), writes: Arc::clone(writes) }
    }

    /// The providers that the client may manage, by name, and the revision of the state that they were read from.
    ///
    /// # Errors
    /// When the client may not manage any, or no state is fresh enough.
    pub async fn providers(
        &self,
        principal: &Principal,
        consistency: Consistency,
    ) -> Result<(Vec<ProviderView>, Revision), Refusal> {
        principal.authorize(Verb::Keys, None)?;
        let state = self.freshness.view(consistency).await?;
        let policy = self.cx.policies.of(&state);
        let seen = state.providers().filter(|record| policy.may_manage(principal, &record.name));
        Ok((seen.map(|record| provider_view(&state, record)).collect(), state.revision()))
    }

    /// A provider, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When there is none that the client may manage, or no state is fresh enough.
    pub async fn provider(
        &self,
        principal: &Principal,
        name: &str,
        consistency: Consistency,
    ) -> Result<(ProviderView, Revision), Refusal> {
        principal.authorize(Verb::Keys, None)?;
        let state = self.freshness.view(consistency).await?;
        let record = self.provider_seen(&state, principal, name)?;
        Ok((provider_view(&state, record), state.revision()))
    }

    fn provider_seen<'s>(
        &self,
        state: &'s State,
        principal: &Principal,
        name: &str,
    ) -> Result<&'s Arc<SystemRecord>, Refusal> {
        let policy = self.cx.policies.of(state);
        let found = state.provider_record(name).filter(|record| policy.may_manage(principal, &record.name));
        found.ok_or_else(|| IdentityRejection::ProviderNotFound.into())
    }

    /// Creates or replaces a provider.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn put_provider(
        &self,
        caller: Caller,
        name: String,
        document: Document,
        expect: Expect,
    ) -> Result<StoredIdentity<ProviderView>, Refusal> {
        let write = IdentityWrite::PutProvider { name: name.clone(), document, expect };
        let (written, state) = self.put(caller, write).await?;
        let record = state.provider_record(&name).ok_or(IdentityRejection::ProviderNotFound)?;
        let view = provider_view(&state, record);
        Ok(StoredIdentity { view, is_created: is_created(&written), written })
    }

    /// The roles whose grants the client has, by name, and the revision of the state that they were read from.
    ///
    /// # Errors
    /// When the client may not manage any, or no state is fresh enough.
    pub async fn roles(
        &self,
        principal: &Principal,
        consistency: Consistency,
    ) -> Result<(Vec<RoleView>, Revision), Refusal> {
        principal.authorize(Verb::Keys, None)?;
        let state = self.freshness.view(consistency).await?;
        let views = state.roles().filter_map(role_view).filter(|role| principal.has_all(&role.grants));
        Ok((views.collect(), state.revision()))
    }

    /// A role, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When there is none whose grants the client has, or no state is fresh enough.
    pub async fn role(
        &self,
        principal: &Principal,
        name: &str,
        consistency: Consistency,
    ) -> Result<(RoleView, Revision), Refusal> {
        principal.authorize(Verb::Keys, None)?;
        let state = self.freshness.view(consistency).await?;
        let view = state.role_record(name).and_then(role_view);
        let view =
            view.filter(|role| principal.has_all(&role.grants)).ok_or(IdentityRejection::RoleNotFound)?;
        Ok((view, state.revision()))
    }

    /// Creates or replaces a role.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn put_role(
        &self,
        caller: Caller,
        name: String,
        role: NewRole,
        expect: Expect,
    ) -> Result<StoredIdentity<RoleView>, Refusal> {
        let write = IdentityWrite::PutRole { name: name.clone(), role, expect };
        let (written, state) = self.put(caller, write).await?;
        let view = state.role_record(&name).and_then(role_view).ok_or(IdentityRejection::RoleNotFound)?;
        Ok(StoredIdentity { view, is_created: is_created(&written), written })
    }

    async fn put(&self, caller: Caller, write: IdentityWrite) -> Result<(DecidedWrite, Arc<State>), Refusal> {
        let may_be_earlier = caller.idempotency_key.is_some();
        let mut written = self.run(caller, write).await?;
        let made = Made { revision: written.applied.revision, may_be_earlier };
        let state = self.freshness.state_after(made).await?;
        written.revision = state.revision();
        Ok((written, state))
    }

    /// Deletes a provider or a role, or ends sessions.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn run(&self, caller: Caller, write: IdentityWrite) -> Result<DecidedWrite, Refusal> {
        let write = Write::Identity(Box::new(write));
        caller.principal.authorize_write(&write)?;
        self.writes.write(caller, write).await
    }

    /// The sessions that the client may end, by id, and the revision of the state that they were read from. At most `limit`
    /// of them, after the given id.
    ///
    /// # Errors
    /// When no state is fresh enough.
    pub async fn sessions(
        &self,
        principal: &Principal,
        (after, limit): (Option<KeyId>, usize),
        consistency: Consistency,
    ) -> Result<(Vec<SessionView>, Revision), Refusal> {
        let state = self.freshness.view(consistency).await?;
        let (revision, principal, now) = (state.revision(), principal.clone(), self.clock.log_time(&state));
        let policy = self.cx.policies.of(&state);
        // The permissions of thousands may have to be computed.
        let found = self.cx.run_long(move || {
            let ids = state.sessions().filter_map(|record| KeyId::parse(record.name.as_str()));
            let later = ids.filter(|id| after.as_ref().is_none_or(|after| id > after));
            let views = later.filter_map(|id| session_view(&state, &policy, (&id, now), &principal));
            views.take(limit).collect::<Vec<_>>()
        });
        Ok((found.await?, revision))
    }
}

/// Whether a write has created something.
fn is_created(written: &DecidedWrite) -> bool {
    written.applied.done == Done::Single(StepOutcome::Created)
}

fn provider_view(state: &State, record: &Arc<SystemRecord>) -> ProviderView {
    let id = record.provider().map(|provider| provider.id);
    let keys = state.key_set_record(record.name.as_str()).and_then(|keys| {
        let count = concord_identity::KeySet::parse(keys.text.as_bytes()).map_or(0, |set| set.len());
        Some(KeysView { count, confirmed_at: keys.key_set()?.confirmed_at })
    });
    let sessions = id.map_or(0, |id| state.session_count_of(id));
    ProviderView { record: Arc::clone(record), keys, sessions }
}

/// `None` for what another version has written.
fn role_view(record: &Arc<SystemRecord>) -> Option<RoleView> {
    let StoredRole { grants, quota, members, session_s } = StoredRole::of(&record.text)?;
    let members = members.to_string();
    Some(RoleView { record: Arc::clone(record), grants, quota, members, session_s })
}

/// A session that is accepted, if the client may end it: it is its own, or its permissions are no more than those of the
/// client, who may manage keys.
fn session_view(
    state: &State,
    policy: &Policy,
    (id, now): (&KeyId, Timestamp),
    principal: &Principal,
) -> Option<SessionView> {
    let logged_in = policy.session(state, id, now)?;
    if !policy::may_end(principal, &logged_in) {
        return None;
    }
    let record = state.session_record(id.as_str())?;
    let text = SessionText::of(&record.text)?;
    Some(SessionView {
        id: id.clone(),
        owner: logged_in.machine.name.clone(),
        provider: logged_in.provider.clone(),
        roles: logged_in.roles.clone(),
        claims: text.claims.to_text(),
        opened_at: record.created_at,
        expires_at: logged_in.expires_at,
    })
}
