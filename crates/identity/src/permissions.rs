//! The permissions of somebody who has logged in: those of all roles that the kept claims give.
//!
//! | part | of several roles |
//! |---|---|
//! | grants | all of them: roles only add up |
//! | each limit of the quota | the greatest; none if a role has none |
//! | `session_s` | the shortest: a role that must be short is |
//!
//! A role counts only as long after the login as its `session_s` says: otherwise an old session would have a new or short
//! role for hours. A role that gives somebody nothing does not count, so it opens no session and lifts no limit.
//!
//! A machine never approves, bypasses rules or makes keys, whatever its roles say: each of these counts as an act of a
//! human. [`Verb::Approve`] includes [`Verb::Report`], and a machine loses both with it; a role names `report` for machines.
//!
//! **Invariants:** who has fewer claims has no more permissions, apart from the length of a session. Who has no role has no
//! permissions: there are no default ones.

use concord_model::{
    access_key::{Grant, Grants, Quota, Verb, Verbs},
    key::Key,
};

use crate::{claims::Claims, roles::Membership};

/// Whether a human logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerKind {
    /// A human.
    Person,
    /// A CI job, a pod.
    Machine,
}

/// Who has logged in, as far as permissions depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'o> {
    /// The provider that has named them.
    pub provider: &'o Key,
    /// Whether it is a human.
    pub kind: OwnerKind,
    /// What is kept of their claims, cut to what the provider keeps now ([`KeptClaims::cut`](crate::claims::KeptClaims::cut)).
    pub claims: &'o Claims,
    /// Seconds since the login; 0 if it is now.
    pub age_s: u64,
}

/// A role.
#[derive(Debug, Clone, Copy)]
pub struct Role<'r> {
    /// Its name.
    pub name: &'r Key,
    /// What it allows.
    pub grants: &'r Grants,
    /// How much of it.
    pub quota: &'r Quota,
    /// Who has it.
    pub membership: &'r Membership,
}

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// The names of their roles, in the given order.
    pub roles: Vec<Key>,
    /// What they may do.
    pub grants: Grants,
    /// How much of it.
    pub quota: Quota,
    /// How long a session lasts, in seconds.
    pub session_s: u64,
}

impl Permissions {
    /// The permissions that roles give to somebody; `None` if they have none of them.
    #[must_use]
    pub fn of<'r>(roles: impl IntoIterator<Item = Role<'r>>, owner: Owner<'_>) -> Option<Self> {
        let is_current = |role: &Role<'_>| owner.age_s < role.membership.session_s;
        let has = |role: &Role<'_>| is_current(role) && role.membership.has(owner.provider, owner.claims);
        roles.into_iter().filter(has).fold(None, |permissions, role| {
            let grants = role.grants.0.iter().filter_map(|grant| given(grant, owner.kind));
            let grants: Vec<Grant> = grants.collect();
            if grants.is_empty() { permissions } else { Some(Self::with(permissions, role, grants)) }
        })
    }

    fn with(permissions: Option<Self>, role: Role<'_>, grants: Vec<Grant>) -> Self {
        let Some(mut permissions) = permissions else {
            return Self {
                roles: vec![role.name.clone()],
                grants: Grants(grants),
                quota: *role.quota,
                session_s: role.membership.session_s,
            };
        };
        permissions.roles.push(role.name.clone());
        permissions.grants.0.extend(grants);
        permissions.quota = greatest(permissions.quota, *role.quota);
        permissions.session_s = permissions.session_s.min(role.membership.session_s);
        permissions
    }
}

/// What a grant gives to somebody of this kind; `None` if that is nothing.
fn given(grant: &Grant, kind: OwnerKind) -> Option<Grant> {
    let is_given = |verb: &Verb| kind == OwnerKind::Person || is_for_machines(*verb);
    let verbs: Verbs = grant.verbs.iter().filter(is_given).collect();
    (!verbs.is_empty()).then(|| Grant { verbs, definitions: grant.definitions.clone() })
}

/// Whether a machine can have a verb.
fn is_for_machines(verb: Verb) -> bool {
    match verb {
        Verb::Approve | Verb::Bypass | Verb::Keys => false,
        Verb::Read
        | Verb::Reveal
        | Verb::Write
        | Verb::Define
        | Verb::Backup
        | Verb::Cluster
        | Verb::Audit
        | Verb::Observe
        | Verb::Delete
        | Verb::Propose
        | Verb::Report => true,
    }
}

/// Of two quotas, the greater limit of each thing.
fn greatest(one: Quota, other: Quota) -> Quota {
    let limit = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.max(other));
    Quota {
        requests_per_second: limit(one.requests_per_second, other.requests_per_second),
        writes_per_second: limit(one.writes_per_second, other.writes_per_second),
        bytes: limit(one.bytes, other.bytes),
        records: limit(one.records, other.records),
        watches: limit(one.watches, other.watches),
        cursors: limit(one.cursors, other.cursors),
        lists: limit(one.lists, other.lists),
    }
}
