//! Who asks for something, and whether they may.
//!
//! **Invariant:** [`Principal::authorize`] alone decides whether somebody may do something. What a list shows is filtered
//! by the same grants: definitions and configs by [`Principal::visible`], access keys by [`Principal::may_see_key`].

use std::sync::Arc;

use smol_str::SmolStr;

use super::{Effect, Refusal, Target, Write};
use concord_model::{
    access_key::{AccessKey, Verb},
    key_set::{KeyRange, KeySet},
    record::Revision,
};

/// The id of the root key: the author of changes made with it.
const ROOT: &str = "root";
/// The author of what a node asks for itself. Neither it nor the root key's id has the length of a stored key's.
const CLUSTER: &str = "cluster";

/// The owner of a credential. A clone copies some words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The key's id: the author of changes.
    pub id: SmolStr,
    /// The key as it was when the request came; `None` for the root key, which may do everything, and for a name from
    /// another node, which may do nothing until the key is found in the state.
    pub key: Option<Arc<AccessKey>>,
    /// The revision that made the secret of the key that the request brought. For a root key what tells it from others
    /// (`access`), 0 where it is not known: it came through another node, or the owner is none who calls.
    pub secret: Revision,
}

impl Principal {
    /// The owner of the root key.
    #[must_use]
    pub fn root() -> Self {
        Self { id: SmolStr::new_static(ROOT), key: None, secret: 0 }
    }

    /// The owner of one of the root keys that this node accepts.
    pub(crate) fn of_root(secret: u64) -> Self {
        Self { secret, ..Self::root() }
    }

    /// The owner of a stored key, by the secret that this revision made.
    #[must_use]
    pub fn of_key(key: Arc<AccessKey>, secret: Revision) -> Self {
        Self { id: key.id.as_str().into(), key: Some(key), secret }
    }

    /// The owner of a stored key that another node names; the leader finds the key in the state.
    pub(crate) fn named(id: &str, secret: Revision) -> Self {
        Self { id: id.into(), key: None, secret }
    }

    /// A node itself.
    pub(crate) fn cluster() -> Self {
        Self { id: SmolStr::new_static(CLUSTER), key: None, secret: 0 }
    }

    /// Whether it is the owner of the root key.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.key.is_none() && self.id == ROOT
    }

    /// Whether it is a node.
    pub(crate) fn is_cluster(&self) -> bool {
        self.key.is_none() && self.id == CLUSTER
    }

    /// Whether it may do everything that the root key may.
    #[must_use]
    pub fn may_everything(&self) -> bool {
        match &self.key {
            None => self.is_root(),
            Some(key) => Verb::ALL.into_iter().all(|verb| key.grants.allows_all(verb)),
        }
    }

    /// Whether it may see and manage this key: a key that may do more does not exist for it.
    #[must_use]
    pub fn may_see_key(&self, other: &AccessKey) -> bool {
        match &self.key {
            None => self.is_root(),
            Some(own) => own.grants.covers(&other.grants),
        }
    }

    /// The definitions for which the principal has the right to a verb.
    #[must_use]
    pub fn visible(&self, verb: Verb) -> KeySet {
        match &self.key {
            _ if self.is_root() => KeySet::ALL,
            None => KeySet::NONE,
            Some(key) => KeySet::of(key.grants.patterns(verb).filter_map(KeyRange::of)),
        }
    }

    /// Whether the principal may do something with a definition. Without a definition: with any at all, or, for a
    /// verb that is not about definitions, at all.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], whether the definition exists or not.
    pub fn authorize(&self, verb: Verb, definition: Option<&str>) -> Result<(), Refusal> {
        match &self.key {
            None if self.is_root() => Ok(()),
            Some(key) if key.grants.allows(verb, definition) => Ok(()),
            None | Some(_) => Err(Refusal::Forbidden { verb, operation: None }),
        }
    }

    /// Whether the principal may make a write, each operation of a batch by itself. The node that was asked and the
    /// leader that decides ask this, so that a key that was changed meanwhile counts as it is.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`], which names the first operation without the right.
    pub(crate) fn authorize_write(&self, write: &Write) -> Result<(), Refusal> {
        if self.is_root() {
            return Ok(());
        }
        if write.effect() != Effect::Batch {
            return self.authorize_one(write);
        }
        for (place, operation) in (0..).zip(write.operations()) {
            if place > 0 && concord_model::sabotage::is("batch-grant-skipped") {
                break;
            }
            self.authorize_one(operation).map_err(|refusal| {
                let Refusal::Forbidden { verb, .. } = refusal else { return refusal };
                Refusal::Forbidden { verb, operation: Some(place) }
            })?;
        }
        Ok(())
    }

    fn authorize_one(&self, write: &Write) -> Result<(), Refusal> {
        match (write.target(), write.effect()) {
            (Target::Definition(definition), _) => self.authorize(Verb::Define, Some(definition)),
            // Their answers have data that the caller did not send, and a patch can ask for a value.
            (Target::Config { definition, .. }, Effect::Compute | Effect::Restore) => {
                self.authorize(Verb::Write, Some(definition))?;
                self.authorize(Verb::Read, Some(definition))
            }
            (Target::Config { definition, .. }, Effect::Read) => self.authorize(Verb::Read, Some(definition)),
            (Target::Config { definition, .. }, _) => self.authorize(Verb::Write, Some(definition)),
            (Target::Keys, _) if self.is_cluster() => Ok(()),
            (Target::Keys, _) => self.authorize(Verb::Keys, None),
            // A batch holds no batch.
            (Target::Batch, _) => Err(Refusal::Forbidden { verb: Verb::Write, operation: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        access_key::{Grant, Grants, KeyId, Pattern, Quota},
        time::Timestamp,
    };

    #[test]
    fn a_key_may_do_what_it_is_granted_and_root_everything() {
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
        };
        let reader = Principal::of_key(Arc::new(key), 1);
        assert_eq!(reader.authorize(Verb::Read, Some("billing.eu")), Ok(()));
        assert_eq!(reader.authorize(Verb::Read, None), Ok(()));
        let forbidden = |verb| Err(Refusal::Forbidden { verb, operation: None });
        assert_eq!(reader.authorize(Verb::Read, Some("other")), forbidden(Verb::Read));
        assert_eq!(reader.authorize(Verb::Keys, None), forbidden(Verb::Keys));
        for verb in Verb::ALL {
            assert_eq!(Principal::root().authorize(verb, Some("other")), Ok(()));
        }
    }
}
