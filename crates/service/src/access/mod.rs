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
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use tokio::time::Instant;

use super::{
    clock::Clock,
    context::Context,
    freshness::Freshness,
    request::{Principal, Refusal},
};
use concord_model::{
    access_key::{AccessKey, KeyId, clear_text::ClearText},
    limits::{KEYS_MARKED_MAX, KEYS_UNCONFIRMED_MAX},
    time::Timestamp,
};
use concord_state::State;
use upkeep::Used;

/// How long a request may take to arrive, or to be answered, until its caller is judged again.
const JUDGED_AGAIN_AFTER: Duration = Duration::from_secs(1);
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

/// Finds who asks, and judges again whether they still may.
#[derive(Debug)]
pub struct Authentication {
    pub(crate) cx: Arc<Context>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) access: Access,
}

impl Authentication {
    /// From now on these root keys are accepted and no others.
    pub fn set_root_keys<'a>(&self, root_keys: impl IntoIterator<Item = &'a str>) {
        self.access.roots.store(Arc::new(digests(root_keys)));
    }

    /// The principal of a credential (the header's value without `Bearer `).
    ///
    /// # Errors
    /// When it is not valid, or this node can't know whether it is.
    pub async fn authenticate(&self, credential: &[u8]) -> Result<Principal, NotAuthenticated> {
        let given: [u8; 32] = Sha256::digest(credential).into();
        if self.access.is_root(&given) {
            let is_disabled =
                self.cx.consensus().is_some_and(|consensus| consensus.state().is_root_disabled());
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
        let consensus = self.cx.consensus().filter(|_| !self.cx.has_left())?;
        self.freshness.staleness().filter(|age| *age < KEYS_UNCONFIRMED_MAX)?;
        self.owner(&consensus.state(), id, given)
    }

    fn owner(&self, state: &State, id: &KeyId, given: &[u8; 32]) -> Option<Principal> {
        let key = state.access_key(id)?;
        let at = if key.has_end() { self.clock.log_time(state) } else { Timestamp(0) };
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
    /// Notes that a key was used, if that is news. Once it is marked, this costs no lock until the next day.
    pub(super) fn note_use(&self, key: &AccessKey) {
        let access = &self.access;
        let today = access.today.load(Ordering::Relaxed);
        // Just after a start the day is not known: whether it is news is judged when the keys are marked.
        if today != 0 && key.last_used_day >= Some(today) {
            return;
        }
        let mut used = access.used();
        if used.len() < 4 * KEYS_MARKED_MAX {
            used.insert(key.id.clone());
        }
    }

    async fn confirmed_state(&self) -> Result<Arc<State>, NotAuthenticated> {
        let unknown = |why: &str| {
            NotAuthenticated::Unconfirmed(format!(
                "this node can't know now whether the access key is valid: {why}"
            ))
        };
        let consensus = self.cx.consensus().filter(|_| !self.cx.has_left());
        let consensus = consensus.ok_or_else(|| unknown(&self.cx.absence()))?;
        match self.freshness.confirm_until(consensus, Instant::now() + CONFIRM_TIMEOUT).await {
            Ok(()) => Ok(consensus.state()),
            Err(Refusal::Unavailable(why)) => Err(unknown(&why)),
            Err(_) => Err(unknown("it has lost the cluster")),
        }
    }
}

impl Authentication {
    /// A principal as it is now: what lasts longer than a request asks again whether it may go on.
    ///
    /// # Errors
    /// [`Refusal::KeyEnded`]; on a node that has lost the cluster, that it can't know.
    pub(super) fn renewed(&self, principal: &Principal) -> Result<Principal, Refusal> {
        if !principal.is_root() && self.freshness.staleness().is_none_or(|age| age > KEYS_UNCONFIRMED_MAX) {
            let text = "this node has lost the cluster, and can't know whether the key is still valid";
            return Err(Refusal::Unavailable(text.into()));
        }
        self.judged(principal)
    }

    /// The principal of a request that began at this time and is read only now: its body may have taken so long that its
    /// right has ended.
    ///
    /// # Errors
    /// That the key is not good any more, or that this node has lost the cluster and cannot tell.
    pub fn still(&self, principal: Principal, begin: Instant) -> Result<Principal, Refusal> {
        if begin.elapsed() < JUDGED_AGAIN_AFTER { Ok(principal) } else { self.renewed(&principal) }
    }

    /// Refuses the answer to a read that began at this time, where it took so long that the right to it has ended, or
    /// may have.
    ///
    /// # Errors
    /// The same; and that the key has lost a part of its grants meanwhile: whoever asks again is judged
    /// by those that are left.
    pub fn check_still(&self, principal: &Principal, begin: Instant) -> Result<(), Refusal> {
        if begin.elapsed() < JUDGED_AGAIN_AFTER {
            return Ok(());
        }
        let now = self.renewed(principal)?;
        let (Some(before), Some(now)) = (&principal.key, &now.key) else { return Ok(()) };
        if now.grants.covers(&before.grants) {
            return Ok(());
        }
        let text = "the grants of the access key were changed while the request was under way: send it again";
        Err(Refusal::Unavailable(text.into()))
    }

    /// A principal as it is by the state that this node has applied.
    ///
    /// # Errors
    /// [`Refusal::KeyEnded`].
    pub(super) fn judged(&self, principal: &Principal) -> Result<Principal, Refusal> {
        let state = self.cx.applied();
        if principal.is_root() {
            let is_replaced = principal.secret != 0 && !self.access.has_root(principal.secret);
            let has_ended = state.is_root_disabled() || is_replaced;
            return if has_ended { Err(Refusal::KeyEnded) } else { Ok(principal.clone()) };
        }
        let key =
            KeyId::parse(&principal.id).and_then(|id| state.access_key(&id)).ok_or(Refusal::KeyEnded)?;
        let at = if key.has_end() { self.clock.log_time(&state) } else { Timestamp(0) };
        if !key.is_valid_at(at) || key.secret_at(principal.secret, at).is_none() {
            return Err(Refusal::KeyEnded);
        }
        Ok(Principal::of_key(Arc::clone(key), principal.secret))
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
