//! Providers, roles, key sets and sessions, and whether the log may decide a proposal in the name of a session.
//!
//! The receiving node validates a token, and the leader proposes a session. The proposal names the policy and the key set by
//! which the token was validated. If there is another one by then, the verdict is stale, and the node validates the token
//! again. So only what the cluster trusts at that moment opens a session. This module reads no token, claim or document.
//!
//! A write in the name of a session names the policy that its permissions were computed by:
//!
//! | then | verdict |
//! |---|---|
//! | the session is there, its time is not over, and its provider trusts it | decided |
//! | the policy is another one | stale: the leader computes the permissions again |
//! | otherwise | rejected: the session has ended. Nothing is stored for a retry |
//!
//! A provider that is gone, that trusts others than before, or whose sessions were ended is one record, however many
//! sessions it has. [`IdentityCommand::SweepSessions`] removes them later.
//!
//! | file | what it does |
//! |---|---|
//! | `records` | the records, and the orders in which the log looks at sessions |
//!
//! **Invariants:** after an entry that ends a session, nothing is decided in its name. Every change of a provider or role,
//! and the end of all sessions of a provider, changes the revision of the policy, so that all nodes derive the same
//! permissions at one revision. A provider has at most
//! one key set, which goes with it.

pub(crate) mod records;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::records::IdentityRecords;
use super::{
    Edit, State,
    apply::EntryContext,
    change::fair_part,
    system::{expected, record_after},
};
use concord_model::{
    access_key::{KeyId, SessionUse},
    command::{
        Expect, IdentityCommand, KeptOfProvider, NewSession, Outcome, PolicyChange, StepOutcome, Verdict,
    },
    error::{IdentityRejection, Rejection},
    key::Key,
    limits::{MACHINE_SESSIONS_MAX, PROVIDERS_MAX, ROLES_MAX, SESSIONS_OF_OWNER_MAX, SESSIONS_SWEPT_MAX},
    record::Revision,
    sabotage,
    system::{
        SystemBody, SystemRecord,
        identity::{KeySet, Provider, ProviderId, Session, policy_name},
    },
    time::Timestamp,
};

/// The text of the policy's record.
const NO_TEXT: &str = "{}";

impl State {
    /// The records of all providers, by name.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.identity.providers.values()
    }

    /// The record of the provider with this name.
    #[must_use]
    pub fn provider_record(&self, name: &str) -> Option<&Arc<SystemRecord>> {
        self.identity.providers.get(name)
    }

    /// The record of the provider with this id.
    #[must_use]
    pub fn provider(&self, id: ProviderId) -> Option<&Arc<SystemRecord>> {
        self.identity.provider(id)
    }

    /// The records of all roles, by name.
    pub fn roles(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.identity.roles.values()
    }

    /// The record of the role with this name.
    #[must_use]
    pub fn role_record(&self, name: &str) -> Option<&Arc<SystemRecord>> {
        self.identity.roles.get(name)
    }

    /// The record of the key set of the provider with this name.
    #[must_use]
    pub fn key_set_record(&self, provider: &str) -> Option<&Arc<SystemRecord>> {
        self.identity.key_sets.get(provider)
    }

    /// The records of all sessions, by id, also of those that have ended and are not removed yet.
    pub fn sessions(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.identity.sessions()
    }

    /// How many sessions there are, with those that have ended and are not removed yet.
    #[must_use]
    pub fn session_count(&self) -> u64 {
        self.identity.session_count()
    }

    /// How many sessions a provider has, with those that have ended and are not removed yet.
    #[must_use]
    pub fn session_count_of(&self, provider: ProviderId) -> u64 {
        self.identity.count_of_provider(provider)
    }

    /// The record of the session with this id.
    #[must_use]
    pub fn session_record(&self, id: &str) -> Option<&Arc<SystemRecord>> {
        self.identity.session(id)
    }

    /// The record of the session with this id while it is accepted, and that of its provider.
    #[must_use]
    pub fn valid_session(
        &self,
        id: &KeyId,
        at: Timestamp,
    ) -> Option<(&Arc<SystemRecord>, &Arc<SystemRecord>)> {
        let record = self.session_record(id.as_str())?;
        let session = record.session()?;
        let provider = self.provider(session.provider)?;
        let is_trusted = self.trusts_since(session.provider, record.revision);
        let is_in_time = at < session.expires_at || sabotage::is("session-outlives-its-end");
        (is_trusted && is_in_time).then_some((record, provider))
    }

    /// Whether a provider is there, and trusts what it trusted when this revision opened a session.
    #[must_use]
    pub fn trusts_since(&self, provider: ProviderId, opened: Revision) -> bool {
        let trust = self.provider(provider).and_then(|record| record.provider());
        trust.is_some_and(|trust| opened > trust.trusted_since || sabotage::is("trust-ignored"))
    }

    /// The revision of the newest change of a provider or role; 0 if there was none.
    #[must_use]
    pub fn policy_revision(&self) -> Revision {
        self.policy_record().map_or(0, |record| record.revision)
    }

    /// The record of the policy. Each change of a provider or role makes another one.
    #[must_use]
    pub fn policy_record(&self) -> Option<&Arc<SystemRecord>> {
        self.identity.policy()
    }

    /// The records of identity, by kind.
    pub(super) fn identity_records(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        let IdentityRecords { providers, roles, key_sets, .. } = &*self.identity;
        let few = providers.values().chain(roles.values());
        few.chain(self.sessions()).chain(key_sets.values()).chain(self.identity.policy())
    }

    /// Whether there are sessions that have ended at a time.
    #[must_use]
    pub fn has_ended_sessions(&self, at: Timestamp) -> bool {
        !self.identity.ended(at, 1).is_empty()
    }

    /// The verdict when nothing may be decided in the name of a session, or when the policy has changed since.
    pub(super) fn refused_session(&self, at: Timestamp, used: &SessionUse) -> Option<Verdict> {
        if self.valid_session(&used.id, at).is_none() {
            return Some(Verdict::Decided(Err(Rejection::SessionEnded)));
        }
        let is_current = used.policy == self.policy_revision() || sabotage::is("policy-ignored");
        (!is_current).then_some(Verdict::Stale)
    }

    /// Whether what a command was made from is something else by now.
    pub(super) fn is_identity_stale(&self, command: &IdentityCommand) -> bool {
        if let IdentityCommand::OpenSession(session) = command {
            return self.is_opening_stale(session);
        }
        let policy = self.policy_revision();
        command.policy_change().is_some_and(|of| of.policy != policy)
    }

    /// Whether a token was validated by other providers, roles or keys than those that count now.
    #[must_use]
    pub fn is_opening_stale(&self, session: &NewSession) -> bool {
        let name = self.provider(session.provider).map(|provider| &provider.name);
        let keys = name.and_then(|name| self.key_set_record(name.as_str())).map(|keys| keys.revision);
        let is_withdrawn = session.key_set.is_some_and(|judged_by| keys != Some(judged_by));
        session.policy != self.policy_revision() || (is_withdrawn && !sabotage::is("key-set-ignored"))
    }

    pub(super) fn decide_identity(
        &mut self,
        context: EntryContext,
        command: &IdentityCommand,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let done = match command {
            IdentityCommand::PutProvider { of, keeps, text } => {
                self.put_provider(context, of, (*keeps, text), edits)?
            }
            IdentityCommand::DeleteProvider(of) => {
                let before = self.expected_provider(&of.name, of.expect)?;
                let before = before.ok_or(IdentityRejection::ProviderNotFound)?;
                let keys = self.key_set_record(before.name.as_str()).map(Arc::clone);
                for gone in keys.into_iter().chain([before]) {
                    self.put_system_record(Some(gone), None, edits);
                }
                self.renew_policy(context, edits);
                StepOutcome::Deleted
            }
            IdentityCommand::PutRole { of, text } => {
                let before = self.expected_role(&of.name, of.expect)?;
                if before.is_none() && self.identity.roles.len() >= ROLES_MAX {
                    return Err(IdentityRejection::TooManyRoles.into());
                }
                self.renew_policy(context, edits);
                self.put_document(context, of, (before, SystemBody::Role, text), edits)
            }
            IdentityCommand::DeleteRole(of) => {
                let before = self.expected_role(&of.name, of.expect)?;
                self.put_system_record(Some(before.ok_or(IdentityRejection::RoleNotFound)?), None, edits);
                self.renew_policy(context, edits);
                StepOutcome::Deleted
            }
            IdentityCommand::EndSessions { name, expect } => {
                let before = self.expected_provider(name, *expect)?;
                let before = before.ok_or(IdentityRejection::ProviderNotFound)?;
                self.distrust(context, &before, edits);
                // What others decide by the claims of its machines is evaluated again.
                self.renew_policy(context, edits);
                StepOutcome::Changed
            }
            IdentityCommand::EndSession { id } => {
                let before = self.session_record(id.as_str()).ok_or(IdentityRejection::SessionNotFound)?;
                self.put_system_record(Some(Arc::clone(before)), None, edits);
                StepOutcome::Deleted
            }
            IdentityCommand::OpenSession(session) => {
                self.open_session(context, session, edits)?;
                StepOutcome::Created
            }
            IdentityCommand::PutKeySet { provider, text, confirmed_at } => {
                self.put_key_set(context, *provider, (text, *confirmed_at), edits);
                StepOutcome::NoRecord
            }
            IdentityCommand::SweepSessions { now } => {
                self.sweep_sessions(*now, edits);
                StepOutcome::NoRecord
            }
        };
        Ok(context.applied(done))
    }

    /// The provider that a command changes, if it meets the precondition.
    fn expected_provider(&self, name: &Key, expect: Expect) -> Result<Option<Arc<SystemRecord>>, Rejection> {
        expected(self.provider_record(name.as_str()), expect, IdentityRejection::ProviderNotFound.into())
    }

    /// The same of a role.
    fn expected_role(&self, name: &Key, expect: Expect) -> Result<Option<Arc<SystemRecord>>, Rejection> {
        expected(self.role_record(name.as_str()), expect, IdentityRejection::RoleNotFound.into())
    }

    fn put_provider(
        &mut self,
        context: EntryContext,
        of: &PolicyChange,
        (keeps, text): (KeptOfProvider, &Arc<str>),
        edits: &mut Vec<Edit>,
    ) -> Result<StepOutcome, Rejection> {
        let before = self.expected_provider(&of.name, of.expect)?;
        if before.is_none() && self.identity.providers.len() >= PROVIDERS_MAX {
            return Err(IdentityRejection::TooManyProviders.into());
        }
        let then = before.as_ref().and_then(|record| record.provider()).copied();
        let new = Provider {
            id: ProviderId(context.id()),
            trusted_since: context.revision,
            tokens_since: Timestamp(0),
        };
        let body = match then {
            None => new,
            Some(then) if keeps.trust => then,
            Some(then) => Provider { trusted_since: context.revision, ..then },
        };
        // They are from elsewhere now: nothing is opened with those that it had.
        if !keeps.keys
            && let Some(keys) = self.key_set_record(of.name.as_str()).map(Arc::clone)
        {
            self.put_system_record(Some(keys), None, edits);
        }
        self.renew_policy(context, edits);
        Ok(self.put_document(context, of, (before, SystemBody::Provider(body), text), edits))
    }

    fn put_document(
        &mut self,
        context: EntryContext,
        of: &PolicyChange,
        (before, body, text): (Option<Arc<SystemRecord>>, SystemBody, &Arc<str>),
        edits: &mut Vec<Edit>,
    ) -> StepOutcome {
        let done = if before.is_none() { StepOutcome::Created } else { StepOutcome::Changed };
        let record = record_after(context, before.as_deref(), (of.name.clone(), body, Arc::clone(text)));
        self.put_system_record(before, Some(record), edits);
        done
    }

    /// Ends all sessions of a provider. Tokens that were issued before open no others.
    fn distrust(&mut self, context: EntryContext, before: &Arc<SystemRecord>, edits: &mut Vec<Edit>) {
        let Some(then) = before.provider().copied() else { return };
        let body = Provider { trusted_since: context.revision, tokens_since: context.at, ..then };
        let of = (before.name.clone(), SystemBody::Provider(body), Arc::clone(&before.text));
        let record = record_after(context, Some(before), of);
        self.put_system_record(Some(Arc::clone(before)), Some(record), edits);
    }

    /// Ends all sessions, and drops all key sets: a cluster that was recovered may have forgotten that some had ended.
    pub(super) fn end_all_sessions(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        let keys: Vec<Arc<SystemRecord>> = self.identity.key_sets.values().map(Arc::clone).collect();
        for keys in keys {
            self.put_system_record(Some(keys), None, edits);
        }
        let providers: Vec<Arc<SystemRecord>> = self.providers().map(Arc::clone).collect();
        for provider in providers {
            self.distrust(context, &provider, edits);
        }
    }

    /// Removes all sessions and key sets: what a restored cluster does not have.
    pub(super) fn drop_sessions(&mut self) {
        let keys = self.identity.key_sets.values();
        let gone: Vec<Arc<SystemRecord>> = self.sessions().chain(keys).map(Arc::clone).collect();
        for record in gone {
            self.remove_system_record(&record);
        }
    }

    /// Gives the policy the revision of the entry.
    fn renew_policy(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        let before = self.identity.policy().map(Arc::clone);
        let of = (policy_name(), SystemBody::Policy, NO_TEXT.into());
        let record = record_after(context, before.as_deref(), of);
        self.put_system_record(before, Some(record), edits);
    }

    fn open_session(
        &mut self,
        context: EntryContext,
        session: &NewSession,
        edits: &mut Vec<Edit>,
    ) -> Result<(), Rejection> {
        let NewSession { id, sha256, provider, owner, name, expires_at, text, .. } = session;
        let trust = self.provider(*provider).and_then(|record| record.provider());
        let trust = trust.ok_or(IdentityRejection::ProviderNotFound)?;
        let is_in_time = context.at < session.token_ends_at && session.issued_at >= trust.tokens_since;
        if !is_in_time && !sabotage::is("late-token-accepted") {
            return Err(IdentityRejection::TokenEnded.into());
        }
        if self.session_record(id.as_str()).is_some() || self.access_key(id).is_some() {
            return Err(IdentityRejection::SessionExists.into());
        }
        let mut gone = self.identity.ended(context.at, SESSIONS_SWEPT_MAX);
        let oldest = self.identity.oldest_of(*owner, SESSIONS_OF_OWNER_MAX);
        gone.extend(oldest.filter(|oldest| !gone.contains(oldest)).cloned());
        let gone: Vec<Arc<SystemRecord>> =
            gone.iter().filter_map(|name| self.session_record(name.as_str())).cloned().collect();
        let is_own = |record: &&Arc<SystemRecord>| {
            record.session().is_some_and(|session| session.provider == *provider)
        };
        let (gone_own, gone_all) = (gone.iter().filter(is_own).count() as u64, gone.len() as u64);
        let own = self.identity.count_of_provider(*provider) - gone_own;
        let others = self.session_count() - gone_all - own;
        if own >= fair_part(MACHINE_SESSIONS_MAX, others) {
            return Err(IdentityRejection::TooManySessions.into());
        }
        for record in gone {
            self.put_system_record(Some(record), None, edits);
        }
        let body = SystemBody::Session(Box::new(Session {
            sha256: *sha256,
            provider: *provider,
            owner: *owner,
            name: name.clone(),
            expires_at: *expires_at,
        }));
        let record = record_after(context, None, (session_name(id), body, Arc::clone(text)));
        self.put_system_record(None, Some(record), edits);
        Ok(())
    }

    /// Replaces or confirms the keys of a provider, unless it is gone or has given newer ones since.
    fn put_key_set(
        &mut self,
        context: EntryContext,
        provider: ProviderId,
        (text, confirmed_at): (&Arc<str>, Timestamp),
        edits: &mut Vec<Edit>,
    ) {
        let Some(name) = self.provider(provider).map(|record| record.name.clone()) else { return };
        let before = self.key_set_record(name.as_str()).map(Arc::clone);
        let then = before.as_ref().and_then(|record| record.key_set());
        if then.is_some_and(|then| then.confirmed_at >= confirmed_at) {
            return;
        }
        let body = SystemBody::KeySet(KeySet { provider, confirmed_at });
        let record = record_after(context, before.as_deref(), (name, body, Arc::clone(text)));
        self.put_system_record(before, Some(record), edits);
    }

    fn sweep_sessions(&mut self, at: Timestamp, edits: &mut Vec<Edit>) {
        for name in self.identity.ended(at, SESSIONS_SWEPT_MAX) {
            let ended = self.session_record(name.as_str()).map(Arc::clone);
            self.put_system_record(ended, None, edits);
        }
    }

    /// A session or a key set that no state has: its name is no id, or that of an access key, or its provider has another
    /// name.
    pub(super) fn first_damaged_identity(&self) -> Option<&Key> {
        let is_sound = |record: &&Arc<SystemRecord>| match &record.body {
            SystemBody::Session(_) => {
                KeyId::parse(record.name.as_str()).is_some_and(|id| self.access_key(&id).is_none())
            }
            SystemBody::KeySet(keys) => {
                self.provider(keys.provider).is_some_and(|provider| provider.name == record.name)
            }
            SystemBody::Policy => record.name == policy_name(),
            SystemBody::Provider(_) | SystemBody::Role => {
                self.policy_revision() >= record.revision
                    || matches!(&record.body, SystemBody::Provider(of) if of.trusted_since == record.revision)
            }
            SystemBody::Environment(_)
            | SystemBody::Change(_)
            | SystemBody::Content(_)
            | SystemBody::Person(_)
            | SystemBody::Rollout(_) => true,
        };
        self.identity_records().find(|record| !is_sound(record)).map(|record| &record.name)
    }
}

/// The name of a session's record.
fn session_name(id: &KeyId) -> Key {
    Key::parse(id.as_str()).expect("letters and digits are a key")
}
