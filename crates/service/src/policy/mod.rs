//! Providers and roles as this node has parsed them, and the permissions of sessions by them.
//!
//! A policy is parsed once for each of its revisions. What has not changed is taken over, so a change of one role parses
//! one role. The permissions of a session are computed when it is first used under a policy, and kept.
//!
//! What the texts of the records hold is in `texts`.
//!
//! **Invariants:** a policy belongs to one record of the state: another record, also one of the same revision in a restored
//! cluster, makes another policy. What can't be parsed gives nobody anything.

pub(crate) mod texts;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;

use concord_identity::{Membership, Owner, OwnerKind, Permissions, Provider, permissions::Role};
use concord_model::{
    access_key::{AccessKey, Grants, KeyId, Quota, Verb},
    key::Key,
    record::Revision,
    system::{SystemRecord, change::Machine},
    time::Timestamp,
};
use concord_state::State;

use texts::{SessionText, StoredRole};

use crate::request::{LoggedIn, Principal};

/// Sessions whose permissions are kept at most: some megabytes.
const SESSIONS_KEPT_MAX: usize = 4096;
/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// The policies of the states that this node has seen last.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    current: ArcSwap<Policy>,
}

/// The providers and roles of a state.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// The record of the policy, by which it is recognized; `None` before the first provider or role.
    record: Option<Arc<SystemRecord>>,
    providers: BTreeMap<Key, Arc<KnownProvider>>,
    roles: Vec<Arc<KnownRole>>,
    /// Sessions with their permissions.
    sessions: Mutex<BTreeMap<KeyId, Arc<LoggedIn>>>,
}

#[derive(Debug)]
struct KnownProvider {
    text: Arc<str>,
    /// `None` for what another version has written.
    parsed: Option<Provider>,
}

#[derive(Debug)]
struct KnownRole {
    name: Key,
    text: Arc<str>,
    /// `None` for what another version has written.
    parsed: Option<(Grants, Quota, Membership)>,
}

impl Policies {
    /// The policy of a state.
    pub(crate) fn of(&self, state: &State) -> Arc<Policy> {
        let current = self.current.load_full();
        if current.is_of(state) {
            return current;
        }
        let new = Arc::new(Policy::new(state, &current));
        self.current.store(Arc::clone(&new));
        new
    }

    /// The owner of a session while it is accepted. `at`: the time of the log.
    pub(crate) fn principal(&self, state: &State, id: &KeyId, at: Timestamp) -> Option<Principal> {
        self.of(state).session(state, id, at).map(Principal::of_session)
    }
}

impl Policy {
    fn is_of(&self, state: &State) -> bool {
        match (&self.record, state.policy_record()) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    fn new(state: &State, before: &Self) -> Self {
        let provider = |record: &Arc<SystemRecord>| {
            let known = before.providers.get(&record.name).filter(|known| known.text == record.text);
            let known = known.cloned().unwrap_or_else(|| {
                let parsed = serde_json::from_str(&record.text).ok();
                let parsed = parsed.and_then(|document| Provider::parse(&document).ok());
                Arc::new(KnownProvider { text: Arc::clone(&record.text), parsed })
            });
            (record.name.clone(), known)
        };
        let role = |record: &Arc<SystemRecord>| {
            let is_it = |known: &&Arc<KnownRole>| known.name == record.name && known.text == record.text;
            before.roles.iter().find(is_it).cloned().unwrap_or_else(|| {
                let parsed = StoredRole::of(&record.text).and_then(|role| {
                    let membership = role.membership().ok()?;
                    Some((role.grants, role.quota, membership))
                });
                Arc::new(KnownRole { name: record.name.clone(), text: Arc::clone(&record.text), parsed })
            })
        };
        Self {
            record: state.policy_record().cloned(),
            providers: state.providers().map(provider).collect(),
            roles: state.roles().map(role).collect(),
            sessions: Mutex::default(),
        }
    }

    /// Its revision; 0 before the first provider or role.
    pub(crate) fn revision(&self) -> Revision {
        self.record.as_ref().map_or(0, |record| record.revision)
    }

    /// The provider of this name.
    pub(crate) fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.get(name)?.parsed.as_ref()
    }

    /// All providers, by name.
    pub(crate) fn providers(&self) -> impl Iterator<Item = (&str, &Provider)> {
        self.providers.iter().filter_map(|(name, known)| Some((name.as_str(), known.parsed.as_ref()?)))
    }

    /// All roles, by name.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (Role<'_>, &Membership)> {
        self.roles.iter().filter_map(|known| {
            let (grants, quota, membership) = known.parsed.as_ref()?;
            Some((Role { name: &known.name, grants, quota, membership }, membership))
        })
    }

    /// The names and the grants of the roles that name a provider.
    pub(crate) fn roles_of<'p>(
        &'p self,
        provider: &'p str,
    ) -> impl Iterator<Item = (&'p Key, &'p Grants)> + 'p {
        let names = move |membership: &Membership| {
            membership.members.iter().any(|member| member.provider.as_str() == provider)
        };
        self.roles()
            .filter(move |(_, membership)| names(membership))
            .map(|(role, _)| (role.name, role.grants))
    }

    /// Whether a client may manage a provider: it may manage keys, and has all permissions of the roles that name the
    /// provider. Otherwise it could give itself these roles.
    pub(crate) fn may_manage(&self, principal: &Principal, provider: &Key) -> bool {
        let has_all = |(_, grants): (&Key, &Grants)| principal.has_all(grants);
        principal.authorize(Verb::Keys, None).is_ok() && self.roles_of(provider.as_str()).all(has_all)
    }

    /// The permissions of a machine with these claims, so many seconds after its login.
    pub(crate) fn permissions(
        &self,
        provider: &Key,
        claims: &concord_identity::Claims,
        age_s: u64,
    ) -> Option<Permissions> {
        // What the provider keeps no more gives no role.
        let claims = &self.provider(provider.as_str())?.claims.cut(claims);
        let owner = Owner { provider, kind: OwnerKind::Machine, claims, age_s };
        Permissions::of(self.roles().map(|(role, _)| role), owner)
    }

    /// The owner of a session while it is accepted. `at`: the time of the log.
    pub(crate) fn session(&self, state: &State, id: &KeyId, at: Timestamp) -> Option<Arc<LoggedIn>> {
        let (record, provider) = state.valid_session(id, at)?;
        let is_current = |kept: &&Arc<LoggedIn>| kept.machine.opened == record.revision && at < kept.until;
        let lock = || self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = lock().get(id).filter(is_current) {
            return Some(Arc::clone(kept));
        }
        let computed = Arc::new(self.logged_in(record, &provider.name, id, at)?);
        let mut sessions = lock();
        if sessions.len() >= SESSIONS_KEPT_MAX {
            sessions.clear();
        }
        sessions.insert(id.clone(), Arc::clone(&computed));
        Some(computed)
    }

    fn logged_in(
        &self,
        record: &SystemRecord,
        provider: &Key,
        id: &KeyId,
        at: Timestamp,
    ) -> Option<LoggedIn> {
        let session = record.session()?;
        let age_us = at.0.saturating_sub(record.created_at.0);
        let claims = SessionText::of(&record.text).map(|text| text.claims).unwrap_or_default();
        let permissions = self.permissions(provider, &claims, age_us / SECOND_US);
        let until = permissions.as_ref().map_or(session.expires_at, |permissions| {
            // A role counts as long after the login as it says.
            Timestamp(record.created_at.0.saturating_add(permissions.session_s.saturating_mul(SECOND_US)))
        });
        let (roles, grants, quota) = permissions.map_or_else(Default::default, |permissions| {
            (permissions.roles, permissions.grants, permissions.quota)
        });
        let key = AccessKey {
            id: KeyId::of_bytes(&session.owner.0),
            name: session.name.clone(),
            grants,
            quota,
            expires_at: Some(session.expires_at),
            created_at: record.created_at,
            created_by: session.name.clone(),
            modified_at: record.modified_at,
            revision: record.revision,
            secrets: Vec::new(),
            last_used_day: None,
            person: None,
            attestation: None,
            half_attested: None,
        };
        let machine = Machine {
            session: id.clone(),
            opened: record.revision,
            provider: session.provider,
            owner: session.owner,
            name: session.name.clone(),
        };
        Some(LoggedIn {
            key: Arc::new(key),
            machine,
            provider: provider.clone(),
            roles,
            expires_at: session.expires_at,
            until: until.min(session.expires_at),
        })
    }
}

/// Whether a client may end a session: its own, or one with no more permissions than the client, who may manage keys.
pub(crate) fn may_end(principal: &Principal, session: &LoggedIn) -> bool {
    let is_own = principal.session_id() == Some(&session.machine.session);
    is_own || (principal.authorize(Verb::Keys, None).is_ok() && principal.may_see_key(&session.key))
}
