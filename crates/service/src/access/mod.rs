//! Authenticates callers: finds the principal of a credential. What a principal may do is in `request/principal.rs`.
//!
//! | to find | look in |
//! |---|---|
//! | keys made, shown, changed, rotated and revoked for a caller | `keys` |
//! | the day of a key's last use; the root key enabled again | `upkeep` |
//!
//! A stored key is looked up in the state that this node has applied. A credential that this state does not have may be
//! newer than it, so it is looked up again once the state is confirmed; what is good by this state is good at once. A
//! node that has lost the cluster cannot know whether a key was revoked since, and accepts none after a moment. The root
//! key goes on working there, to find out what is wrong.
//!
//! A root key is a setting of each node. One that was replaced is not accepted any more, and what its owner has open
//! ends: the principal has a tag of the key that it came with.
//!
//! **Invariant:** only digests of keys are stored, and digests are compared in constant time: neither a memory dump nor
//! the time that an answer takes reveals a key.

pub(crate) mod keys;
pub mod upkeep;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use arc_swap::ArcSwap;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use tokio::time::Instant;

use super::{
    Service,
    request::{Principal, Refusal},
};
use concord_model::{
    access_key::{KeyId, clear_text::ClearText},
    limits::KEYS_UNCONFIRMED_MAX,
    time::Timestamp,
};
use concord_state::State;
use upkeep::Used;

/// How long a credential that this node does not know waits for a newer state.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a credential is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAuthenticated {
    /// It is unknown, has expired or was revoked.
    NotValid,
    /// This node can't know; the text says why.
    Unconfirmed(String),
}

/// The root keys that this node accepts, and what it notes about the use of stored ones.
pub struct Access {
    roots: ArcSwap<Vec<[u8; 32]>>,
    used: Mutex<Used>,
    /// The day by the log's time; 0 before it is known.
    today: AtomicU64,
}

impl Access {
    /// Accepts these root keys: one, or two while the root key is rotated.
    #[must_use]
    pub fn new<'a>(root_keys: impl IntoIterator<Item = &'a str>) -> Self {
        let roots = ArcSwap::from_pointee(digests(root_keys));
        Self { roots, used: Mutex::default(), today: AtomicU64::new(0) }
    }

    fn is_root(&self, given: &[u8; 32]) -> bool {
        let all = self.roots.load();
        all.iter().fold(Choice::from(0), |found, root| found | given.ct_eq(root)).into()
    }

    /// Whether the root key with this tag is still accepted.
    pub(super) fn has_root(&self, tag: u64) -> bool {
        self.roots.load().iter().any(|root| tag_of(root) == tag)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digests<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<[u8; 32]> {
    keys.into_iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect()
}

/// What tells a root key from others on this node: a part of its digest, never 0.
fn tag_of(root: &[u8; 32]) -> u64 {
    let (head, _) = root.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    u64::from_be_bytes(*head).max(1)
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access")
    }
}

impl Service {
    /// From now on these root keys are accepted and no others.
    pub fn set_root_keys<'a>(&self, root_keys: impl IntoIterator<Item = &'a str>) {
        self.inner.access.roots.store(Arc::new(digests(root_keys)));
    }

    /// The principal of a credential (the header's value without `Bearer `).
    ///
    /// # Errors
    /// When it is not valid, or this node can't know whether it is.
    pub async fn authenticate(&self, credential: &[u8]) -> Result<Principal, NotAuthenticated> {
        let given: [u8; 32] = Sha256::digest(credential).into();
        if self.inner.access.is_root(&given) {
            let is_disabled = self.consensus().is_some_and(|consensus| consensus.state().is_root_disabled());
            if !is_disabled {
                return Ok(Principal::of_root(tag_of(&given)));
            }
            // Boxed, as below: every request would have its space.
            let state = Box::pin(self.confirmed_state()).await?;
            return if state.is_root_disabled() {
                Err(NotAuthenticated::NotValid)
            } else {
                Ok(Principal::of_root(tag_of(&given)))
            };
        }
        let id = ClearText::id_of(credential).ok_or(NotAuthenticated::NotValid)?;
        if let Some(known) = self.known_owner(&id, &given) {
            return Ok(known);
        }
        let state = Box::pin(self.confirmed_state()).await?;
        self.owner(&state, &id, &given).ok_or(NotAuthenticated::NotValid)
    }

    /// The owner of a stored key that is certainly good by what this node knows. It is for a caller behind whose address
    /// others guess: a stored key is 256 random bits, so whoever brings a good one has not guessed it. The root key is
    /// what an operator chose, so it is none of these.
    #[must_use]
    pub fn known_key(&self, credential: &[u8]) -> Option<Principal> {
        let id = ClearText::id_of(credential)?;
        self.known_owner(&id, &Sha256::digest(credential).into())
    }

    /// The owner of a stored key by the applied state, while that is confirmed to be recent.
    fn known_owner(&self, id: &KeyId, given: &[u8; 32]) -> Option<Principal> {
        let consensus = self.consensus().filter(|_| !self.has_left())?;
        self.staleness().filter(|age| *age < KEYS_UNCONFIRMED_MAX)?;
        self.owner(&consensus.state(), id, given)
    }

    fn owner(&self, state: &State, id: &KeyId, given: &[u8; 32]) -> Option<Principal> {
        let key = state.access_key(id)?;
        let at = if key.has_end() { self.log_time(state) } else { Timestamp(0) };
        let is_good = |until: Option<Timestamp>| until.is_none_or(|end| at < end);
        let mut secrets = key.secrets.iter().filter(|secret| is_good(secret.until));
        let secret = secrets.find(|secret| bool::from(given.ct_eq(&secret.sha256)))?;
        if !key.is_valid_at(at) {
            return None;
        }
        self.note_use(key);
        Some(Principal::of_key(Arc::clone(key), secret.made))
    }

    /// A state that has every change that was acknowledged before the call.
    async fn confirmed_state(&self) -> Result<Arc<State>, NotAuthenticated> {
        let unknown = |why: &str| {
            NotAuthenticated::Unconfirmed(format!(
                "this node can't know now whether the access key is valid: {why}"
            ))
        };
        let consensus = self.consensus().filter(|_| !self.has_left());
        let consensus = consensus.ok_or_else(|| unknown(&self.absence()))?;
        match self.confirm_until(consensus, Instant::now() + CONFIRM_TIMEOUT).await {
            Ok(()) => Ok(consensus.state()),
            Err(Refusal::Unavailable(why)) => Err(unknown(&why)),
            Err(_) => Err(unknown("it has lost the cluster")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_root_key_is_accepted() {
        let access = Access::new(["correct horse battery", "another staple"]);
        let is_root = |text: &[u8]| access.is_root(&Sha256::digest(text).into());
        assert!(is_root(b"correct horse battery") && is_root(b"another staple"));
        for wrong in
            [&b""[..], b"correct horse batter", b"correct horse battery ", b"Correct horse battery", b"\xff"]
        {
            assert!(!is_root(wrong));
        }
        assert!(!Access::new([]).is_root(&Sha256::digest(b"").into()));
    }

    #[test]
    fn a_root_key_that_was_replaced_is_known_by_its_tag() {
        let tag = |text: &str| tag_of(&Sha256::digest(text.as_bytes()).into());
        let access = Access::new(["the first", "the second"]);
        assert!(access.has_root(tag("the first")) && access.has_root(tag("the second")));
        access.roots.store(Arc::new(digests(["the second"])));
        assert!(!access.has_root(tag("the first")) && access.has_root(tag("the second")));
        assert!(!access.has_root(0) && tag_of(&[0; 32]) != 0);
    }

    #[test]
    fn the_key_is_not_shown() {
        assert_eq!(format!("{:?}", Access::new(["correct horse battery"])), "Access");
    }
}
