//! The owner of a credential, and the permissions of the owner.
//!
//! **Invariant:** [`Principal::authorize`] alone decides whether a principal may do something. Lists are filtered by
//! the same grants: definitions and configs by [`Principal::visible`], access keys by [`Principal::may_see_key`], the rows of
//! the usage by [`Principal::may_name`] and [`Principal::may_name_key`], environments by
//! [`Principal::may_see_environment`], change requests by [`Principal::may_see_change`].

use std::sync::Arc;

use smol_str::SmolStr;

use super::{AccessWrite, ChangeWrite, Effect, IdentityWrite, Refusal, Target, Write};
use concord_model::{
    access_key::{AccessKey, Grants, KeyId, Pattern, Quota, Verb},
    key::Key,
    key_set::{KeyRange, KeySet},
    record::Revision,
    sabotage,
    system::{
        change::{Machine, Party, Scope},
        environment::DEFAULT_ENVIRONMENT,
    },
    time::Timestamp,
};

/// The id of the root key: the author of changes made with it.
const ROOT: &str = "root";
/// The author of writes that a node requests itself. Neither this nor the root key's id has the length of a stored
/// key's id.
const CLUSTER: &str = "cluster";

/// The owner of a credential. A clone copies a few words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The author of changes: the key's id, or what history and audit call the owner of a session.
    pub id: SmolStr,
    holder: Holder,
    /// The revision that made the secret in the request, or opened the session. For a root key it is the tag that
    /// distinguishes it from other root keys (`access`), or 0 if the tag is unknown: the request came through another
    /// node or from this node itself.
    pub secret: Revision,
}

/// The owner of a session, and what the owner may do by the roles of now.
#[derive(Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// The permissions and the quota, as those of an access key. Its id is [`Principal::owner`].
    pub key: Arc<AccessKey>,
    /// Who it is, as change requests name it.
    pub machine: Machine,
    /// The provider that has named it.
    pub provider: Key,
    /// The roles that it has.
    pub roles: Vec<Key>,
    /// When the session ends.
    pub expires_at: Timestamp,
    /// Until when the roles are these, if they stay as they are.
    pub(crate) until: Timestamp,
}

/// Who holds the credential. Private, so that code asks what it means: [`Principal::is_unbounded`] for *nothing limits
/// it*, [`Principal::key`] for the permissions of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Holder {
    /// The owner of the root key.
    Root,
    /// A node itself.
    Cluster,
    /// The owner of a key that another node names. It has no permission until the key is found in the state.
    Named,
    /// The owner of a stored key, as the key was when the request arrived.
    Key(Arc<AccessKey>),
    /// The owner of a session that another node names. It has no permission until the session is found in the state.
    NamedSession(Box<NamedSession>),
    /// The owner of a session, with the permissions of the roles when the request arrived.
    Session(Arc<LoggedIn>),
}

/// A session that another node names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedSession {
    id: KeyId,
    owner: KeyId,
}

impl Principal {
    /// The owner of the root key.
    #[must_use]
    pub fn root() -> Self {
        Self { id: SmolStr::new_static(ROOT), holder: Holder::Root, secret: 0 }
    }

    /// The owner of one of the root keys that this node accepts.
    pub(crate) fn of_root(secret: u64) -> Self {
        Self { secret, ..Self::root() }
    }

    /// The owner of a stored key, with the secret that this revision made.
    #[must_use]
    pub fn of_key(key: Arc<AccessKey>, secret: Revision) -> Self {
        Self { id: key.id.as_str().into(), holder: Holder::Key(key), secret }
    }

    /// The owner of a stored key that another node names. The leader finds the key in the state.
    #[must_use]
    pub fn named(id: &str, secret: Revision) -> Self {
        Self { id: id.into(), holder: Holder::Named, secret }
    }

    /// The owner of a session.
    pub(crate) fn of_session(session: Arc<LoggedIn>) -> Self {
        let Machine { name, opened, .. } = &session.machine;
        Self { id: name.into(), secret: *opened, holder: Holder::Session(session) }
    }

    /// Somebody with these grants, and nothing else: to compare them with those of a request.
    pub(crate) fn with_grants(grants: Grants) -> Self {
        let key = AccessKey {
            id: KeyId::of_bytes(&[0; 16]),
            name: String::new(),
            grants,
            quota: Quota::default(),
            expires_at: None,
            created_at: Timestamp(0),
            created_by: String::new(),
            modified_at: Timestamp(0),
            revision: 0,
            secrets: Vec::new(),
            last_used_day: None,
            person: None,
            attestation: None,
            half_attested: None,
        };
        Self::of_key(Arc::new(key), 0)
    }

    /// The owner of a session that another node names: the session, [`Self::owner`] and [`Self::id`]. The leader finds the
    /// session in the state.
    pub(crate) fn named_session(id: KeyId, owner: KeyId, name: &str) -> Self {
        Self { id: name.into(), holder: Holder::NamedSession(NamedSession { id, owner }.into()), secret: 0 }
    }

    /// A node itself.
    pub(crate) fn cluster() -> Self {
        Self { id: SmolStr::new_static(CLUSTER), holder: Holder::Cluster, secret: 0 }
    }

    /// Whether it is the owner of the root key.
    #[must_use]
    pub fn is_root(&self) -> bool {
        matches!(self.holder, Holder::Root)
    }

    /// Whether it is a node.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.holder, Holder::Cluster)
    }

    /// Whether nothing limits what it sees and uses: the owner of the root key, and a node itself.
    #[must_use]
    pub fn is_unbounded(&self) -> bool {
        self.is_root() || self.is_cluster()
    }

    /// The key as it was when the request arrived; of a session, what stands for one. `None` for the root key and a node
    /// itself, and for what another node names.
    #[must_use]
    pub fn key(&self) -> Option<&Arc<AccessKey>> {
        match &self.holder {
            Holder::Key(key) => Some(key),
            Holder::Session(session) => Some(&session.key),
            Holder::Root | Holder::Cluster | Holder::Named | Holder::NamedSession(_) => None,
        }
    }

    /// The session as it was when the request arrived.
    #[must_use]
    pub fn session(&self) -> Option<&Arc<LoggedIn>> {
        if let Holder::Session(session) = &self.holder { Some(session) } else { None }
    }

    /// The id of its session, also of one that another node names.
    pub(crate) fn session_id(&self) -> Option<&KeyId> {
        match &self.holder {
            Holder::Session(session) => Some(&session.machine.session),
            Holder::NamedSession(named) => Some(&named.id),
            Holder::Root | Holder::Cluster | Holder::Named | Holder::Key(_) => None,
        }
    }

    /// Whose requests these are: the id of the key, or an id that all sessions of one owner have. Idempotency keys, quotas
    /// and turns go by it.
    #[must_use]
    pub fn owner(&self) -> &str {
        match &self.holder {
            Holder::Session(session) => session.key.id.as_str(),
            Holder::NamedSession(named) => named.owner.as_str(),
            Holder::Root | Holder::Cluster | Holder::Named | Holder::Key(_) => &self.id,
        }
    }

    /// As a change request names it; `None` for a node, and for what another node names.
    #[must_use]
    pub(crate) fn party(&self) -> Option<Party> {
        match &self.holder {
            Holder::Root => Some(Party::Root),
            Holder::Key(key) => Some(Party::Key { id: key.id.clone(), person: key.person }),
            Holder::Session(session) => Some(Party::Machine(Box::new(session.machine.clone()))),
            Holder::Cluster | Holder::Named | Holder::NamedSession(_) => None,
        }
    }

    /// Whether it has all of these permissions.
    #[must_use]
    pub(crate) fn has_all(&self, grants: &Grants) -> bool {
        match self.key() {
            None => self.is_root(),
            Some(own) => own.grants.covers(grants),
        }
    }

    /// Whether it has all permissions of the root key.
    #[must_use]
    pub fn may_everything(&self) -> bool {
        match self.key() {
            None => self.is_root(),
            Some(key) => Verb::ALL.into_iter().all(|verb| key.grants.allows_all(verb)),
        }
    }

    /// Authorizes the rotation of a key. The holder of a key with a person may rotate that key itself, because its first
    /// secret is known to the client that created it; but not by a secret that is valid for a grace only.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], whether the key exists or not.
    pub(crate) fn authorize_rotation(&self, id: &KeyId) -> Result<(), Refusal> {
        let is_own =
            |own: &Arc<AccessKey>| own.id == *id && own.person.is_some() && own.is_newest_secret(self.secret);
        if self.key().is_some_and(is_own) { Ok(()) } else { self.authorize(Verb::Keys, None) }
    }

    /// Whether it may see and manage this key. It cannot see keys with permissions that it lacks.
    #[must_use]
    pub fn may_see_key(&self, other: &AccessKey) -> bool {
        self.has_all(&other.grants)
    }

    /// The definitions for which the principal has a permission.
    #[must_use]
    pub fn visible(&self, verb: Verb) -> KeySet {
        match self.key() {
            _ if self.is_root() => KeySet::ALL,
            None => KeySet::NONE,
            Some(key) => KeySet::of(key.grants.patterns(verb).filter_map(KeyRange::of)),
        }
    }

    /// Whether it may know that there is, or was, the definition of this key.
    #[must_use]
    pub fn may_name(&self, definition: &str) -> bool {
        self.key().map_or(self.is_root(), |key| key.grants.names(definition))
    }

    /// Whether it may know the id and the name of an access key, which is `None` if it was revoked: its own, those that
    /// it manages, and all of them if it may know of every definition.
    #[must_use]
    pub fn may_name_key(&self, id: &str, key: Option<&AccessKey>) -> bool {
        let Some(own) = self.key() else { return self.is_root() };
        self.id == id
            || own.grants.names_all()
            || (own.grants.allows(Verb::Keys, None) && key.is_some_and(|key| self.may_see_key(key)))
    }

    /// Whether it may see an environment: it may name a definition in it. `others`: all environments that there are.
    #[must_use]
    pub fn may_see_environment<'a>(&self, name: &str, mut others: impl Iterator<Item = &'a str>) -> bool {
        let Some(own) = self.key() else { return self.is_root() };
        if name != DEFAULT_ENVIRONMENT {
            return own.grants.named().any(|pattern| pattern.meets(&prefix_of(name)));
        }
        // It has what no other environment has.
        let outside = |pattern: &Pattern| {
            !others.any(|other| other != name && pattern.as_str().starts_with(&prefix_of(other)))
        };
        own.grants.named().any(outside)
    }

    /// Whether it may see a change request of this scope: it may read everything that the change request changes.
    #[must_use]
    pub(crate) fn may_see_change(&self, scope: &Scope) -> bool {
        self.may_in(Verb::Read, scope) || sabotage::is("hidden-change-shown")
    }

    /// Authorizes a verb for all definitions that an environment can have.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], whether the environment exists or not.
    pub fn authorize_environment(&self, verb: Verb, name: &str) -> Result<(), Refusal> {
        match self.key() {
            None if self.is_root() => Ok(()),
            Some(key) if key.grants.allows_environment(verb, name) => Ok(()),
            None | Some(_) => Err(Refusal::Forbidden { verb }),
        }
    }

    /// Authorizes a verb for a definition. Without a definition: for at least one, or, for a verb that is not about
    /// definitions, in general.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], whether the definition exists or not.
    pub fn authorize(&self, verb: Verb, definition: Option<&str>) -> Result<(), Refusal> {
        match self.key() {
            None if self.is_root() => Ok(()),
            Some(key) if key.grants.allows(verb, definition) => Ok(()),
            None | Some(_) => Err(Refusal::Forbidden { verb }),
        }
    }

    /// Authorizes a write; of a batch, each operation. The receiving node asks this and the leader asks it again: the
    /// key may have been changed in between.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], of a batch as that of the first operation without permission.
    pub(crate) fn authorize_write(&self, write: &Write) -> Result<(), Refusal> {
        if self.is_root() {
            return Ok(());
        }
        if write.effect() != Effect::Batch {
            return self.authorize_one(write);
        }
        for (place, operation) in (0..).zip(write.operations()) {
            if place > 0 && sabotage::is("batch-grant-skipped") {
                break;
            }
            self.authorize_one(operation).map_err(|refusal| refusal.of_operation(place))?;
        }
        Ok(())
    }

    fn authorize_one(&self, write: &Write) -> Result<(), Refusal> {
        match (write.target(), write.effect()) {
            // It brings back the configs too. The response does not show them.
            (Target::Definition(definition), Effect::Restore) => {
                self.authorize(Verb::Define, Some(definition))?;
                self.authorize(Verb::Write, Some(definition))
            }
            // Who changes definitions can't thereby delete one with all its configs.
            (Target::Definition(definition), Effect::Remove) => {
                self.authorize(Verb::Delete, Some(definition))
            }
            (Target::Definition(definition), _) => self.authorize(Verb::Define, Some(definition)),
            // Their responses contain data that the client did not send, and a patch can test for a value.
            (Target::Config { definition, .. }, Effect::Compute | Effect::Restore) => {
                self.authorize(Verb::Write, Some(definition))?;
                self.authorize(Verb::Read, Some(definition))
            }
            (Target::Config { definition, .. }, Effect::Read) => self.authorize(Verb::Read, Some(definition)),
            (Target::Config { definition, .. }, _) => self.authorize(Verb::Write, Some(definition)),
            (Target::Keys | Target::Anchors | Target::Identity, _) if self.is_cluster() => Ok(()),
            (Target::Environment(name), _) => self.authorize_environment(Verb::Define, name),
            // What a change request changes is in the state, where the leader finds it.
            (Target::Change(_), _) => match write.change().and_then(ChangeWrite::edition) {
                Some(edition) => self.authorize_edition(&edition.operations),
                None => Ok(()),
            },
            (Target::Keys, _) => match write.access() {
                Some(AccessWrite::Rotate { id, .. }) => self.authorize_rotation(id),
                Some(_) | None => self.authorize(Verb::Keys, None),
            },
            (Target::Identity, _) => match write.identity() {
                Some(IdentityWrite::EndSession { id }) if self.session_id() == Some(id) => Ok(()),
                // Which permissions it must have in addition, the leader knows.
                Some(_) | None => self.authorize(Verb::Keys, None),
            },
            (Target::Anchors, _) => self.authorize(Verb::Cluster, None),
            // A batch contains no batch.
            (Target::Batch, _) => Err(Refusal::Forbidden { verb: Verb::Write }),
        }
    }
}

/// What the keys of an environment's definitions begin with.
fn prefix_of(name: &str) -> String {
    format!("{name}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        access_key::{Grant, Grants, KeyId, Pattern, Quota},
        time::Timestamp,
    };

    #[test]
    fn a_key_has_its_grants_and_the_root_key_has_all_permissions() {
        let grant = Grant {
            verbs: [Verb::Read].into_iter().collect(),
            definitions: vec![Pattern::parse("billing.*").unwrap()],
        };
        let key = AccessKey {
            id: KeyId::parse("abcdefghijkl").unwrap(),
            name: "reader".into(),
            grants: Grants(vec![grant]),
            quota: Quota::default(),
            expires_at: None,
            created_at: Timestamp(1),
            created_by: "root".into(),
            modified_at: Timestamp(1),
            revision: 1,
            secrets: Vec::new(),
            last_used_day: None,
            person: None,
            attestation: None,
            half_attested: None,
        };
        let reader = Principal::of_key(Arc::new(key), 1);
        assert_eq!(reader.authorize(Verb::Read, Some("billing.eu")), Ok(()));
        assert_eq!(reader.authorize(Verb::Read, None), Ok(()));
        let forbidden = |verb| Err(Refusal::Forbidden { verb });
        assert_eq!(reader.authorize(Verb::Read, Some("other")), forbidden(Verb::Read));
        assert_eq!(reader.authorize(Verb::Keys, None), forbidden(Verb::Keys));
        for verb in Verb::ALL {
            assert_eq!(Principal::root().authorize(verb, Some("other")), Ok(()));
        }
    }
}
