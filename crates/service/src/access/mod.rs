//! Authenticates clients: finds the principal of a credential. `request/principal.rs` decides what a principal may do.
//!
//! | topic | file |
//! |---|---|
//! | creating, reading, changing, rotating and revoking access keys | `keys` |
//! | tickets for streams that take no header | `ticket` |
//! | the day of a key's last use; enabling the root key again | `upkeep` |
//!
//! The credential of a session has the form of an access key, and is looked up beside them (`identity/policy.rs` has its
//! permissions).
//!
//! A stored key is looked up in the state that this node has applied. A key that is valid in this state is accepted at
//! once. A credential that is not in this state may be newer, so it is looked up again once the state is confirmed. A
//! node that is isolated from the quorum cannot know whether a key was revoked since, and soon accepts no stored keys.
//! It still accepts the root key, so that an operator can find out what is wrong.
//!
//! A root key is a setting of each node. When it is replaced, the node no longer accepts the old one and ends whatever
//! its owner has open: the principal has a tag of the root key that it authenticated with.
//!
//! **Invariant:** only digests of keys are stored, and digests are compared in constant time. Neither a memory dump
//! nor the time of a response reveals a key.

pub(crate) mod keys;
mod ticket;
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
    error::Rejection,
    limits::{KEYS_MARKED_MAX, KEYS_UNCONFIRMED_MAX},
    time::Timestamp,
};
use concord_state::State;
use upkeep::UsedKeys;

/// When a request takes longer than this to arrive or to be answered, its client is authorized again.
const REAUTHORIZED_AFTER: Duration = Duration::from_secs(1);
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

/// What a node knows of a credential at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// It is valid, and this is its owner.
    Valid(Principal),
    /// It is not valid.
    NotValid,
    /// Only a state that is newer than the request can tell: [`Authentication::settle`].
    Unsettled,
}

/// The root keys that this node accepts, and the recent use of stored keys.
pub struct Access {
    roots: ArcSwap<Vec<[u8; 32]>>,
    used: Mutex<UsedKeys>,
    /// The day by the log's time; 0 before it is known.
    today: AtomicU64,
}

impl Access {
    /// Accepts these root keys: one, or two during a rotation.
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

    fn used(&self) -> MutexGuard<'_, UsedKeys> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(credential: &[u8]) -> [u8; 32] {
    Sha256::digest(credential).into()
}

fn digests<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<[u8; 32]> {
    keys.into_iter().map(|key| digest(key.as_bytes())).collect()
}

/// Distinguishes a root key from others on this node: a part of its digest, never 0.
fn tag_of(root: &[u8; 32]) -> u64 {
    let (head, _) = root.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    u64::from_be_bytes(*head).max(1)
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access")
    }
}

/// Authenticates clients, and checks later whether they still have their permissions.
#[derive(Debug)]
pub struct Authentication {
    pub(crate) cx: Arc<Context>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) access: Access,
}

impl Authentication {
    /// Accepts these root keys from now on, and no others.
    pub fn set_root_keys<'a>(&self, root_keys: impl IntoIterator<Item = &'a str>) {
        self.access.roots.store(Arc::new(digests(root_keys)));
    }

    /// What this node knows of a credential (the header's value without `Bearer `) without asking another one.
    #[must_use]
    pub fn judge(&self, credential: &[u8]) -> Judgement {
        let given = digest(credential);
        if self.access.is_root(&given) {
            let is_disabled =
                self.cx.consensus().is_some_and(|consensus| consensus.state().is_root_disabled());
            return if is_disabled {
                Judgement::Unsettled
            } else {
                Judgement::Valid(Principal::of_root(tag_of(&given)))
            };
        }
        let Some(id) = ClearText::id_of(credential) else { return Judgement::NotValid };
        self.known_owner(&id, &given).map_or(Judgement::Unsettled, Judgement::Valid)
    }

    /// The principal of a credential that is unsettled, by a state that is newer than the call.
    ///
    /// # Errors
    /// When it is not valid, or this node can't know whether it is.
    pub async fn settle(&self, credential: &[u8]) -> Result<Principal, NotAuthenticated> {
        let given = digest(credential);
        let state = self.confirmed_state().await?;
        let owner = if self.access.is_root(&given) {
            (!state.is_root_disabled()).then(|| Principal::of_root(tag_of(&given)))
        } else {
            ClearText::id_of(credential).and_then(|id| self.owner(&state, &id, &given))
        };
        owner.ok_or(NotAuthenticated::NotValid)
    }

    /// Whether a credential is that of a stored key by the applied state, however old that is. Such a credential was not
    /// guessed: it has 256 random bits.
    #[must_use]
    pub fn is_stored(&self, credential: &[u8]) -> bool {
        let Some(id) = ClearText::id_of(credential) else { return false };
        self.owner(&self.cx.applied(), &id, &digest(credential)).is_some()
    }

    /// The owner of a stored key by the applied state, while that is confirmed to be recent.
    fn known_owner(&self, id: &KeyId, given: &[u8; 32]) -> Option<Principal> {
        let consensus = self.cx.consensus().filter(|_| !self.cx.has_left())?;
        self.freshness.staleness().filter(|age| *age < KEYS_UNCONFIRMED_MAX)?;
        self.owner(&consensus.state(), id, given)
    }

    fn owner(&self, state: &State, id: &KeyId, given: &[u8; 32]) -> Option<Principal> {
        let Some(key) = state.access_key(id) else { return self.owner_of_session(state, id, given) };
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

    /// The owner of a session. No session has the id of an access key.
    fn owner_of_session(&self, state: &State, id: &KeyId, given: &[u8; 32]) -> Option<Principal> {
        let session = state.session_record(id.as_str())?.session()?;
        if !bool::from(given.ct_eq(&session.sha256)) {
            return None;
        }
        self.cx.policies.principal(state, id, self.clock.log_time(state))
    }

    /// Records that a key was used, unless that is recorded for today already. Then it takes no lock until the next
    /// day.
    pub(super) fn note_use(&self, key: &AccessKey) {
        let access = &self.access;
        let today = access.today.load(Ordering::Relaxed);
        // Just after a start the day is unknown. Keys that are recorded already are dropped when the keys are marked.
        if today != 0 && key.last_used_day >= Some(today) {
            return;
        }
        let mut used = access.used();
        if used.len() < 4 * KEYS_MARKED_MAX {
            used.insert(key.id.clone());
        }
    }

    /// A state with every change that was acknowledged before the call.
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
            Err(_) => Err(unknown("it is isolated from the quorum")),
        }
    }

    /// A principal with its current key: for watches and other work that lasts longer than a request.
    ///
    /// # Errors
    /// [`Refusal::KeyEnded`], [`Rejection::SessionEnded`]; [`Refusal::Unavailable`] on a node that is isolated from the
    /// quorum.
    pub(super) fn renewed(&self, principal: &Principal) -> Result<Principal, Refusal> {
        if !principal.is_root() && self.freshness.staleness().is_none_or(|age| age > KEYS_UNCONFIRMED_MAX) {
            let text = "this node is isolated from the quorum and can't know whether the key is still valid";
            return Err(Refusal::Unavailable(text.into()));
        }
        self.current(principal)
    }

    /// The principal of a request that began at this time and has arrived now: its body may have taken so long that
    /// the key has ended.
    ///
    /// # Errors
    /// As for [`Self::renewed`].
    pub fn still(&self, principal: Principal, begin: Instant) -> Result<Principal, Refusal> {
        if begin.elapsed() < REAUTHORIZED_AFTER { Ok(principal) } else { self.renewed(&principal) }
    }

    /// Refuses the response to a read that began at this time, if it took so long that the client may have lost its
    /// permissions.
    ///
    /// # Errors
    /// As for [`Self::renewed`]; [`Refusal::Unavailable`] when the key has lost a part of its grants: a retry is
    /// authorized by the others.
    pub fn check_still(&self, principal: &Principal, begin: Instant) -> Result<(), Refusal> {
        if begin.elapsed() < REAUTHORIZED_AFTER {
            return Ok(());
        }
        let now = self.renewed(principal)?;
        let (Some(before), Some(now)) = (principal.key(), now.key()) else { return Ok(()) };
        if now.grants.covers(&before.grants) {
            return Ok(());
        }
        let text = "the grants of the access key were changed while the request was in progress; retry";
        Err(Refusal::Unavailable(text.into()))
    }

    /// A principal with its key in the state that this node has applied.
    ///
    /// # Errors
    /// [`Refusal::KeyEnded`], [`Rejection::SessionEnded`].
    pub(super) fn current(&self, principal: &Principal) -> Result<Principal, Refusal> {
        let state = self.cx.applied();
        if principal.is_root() {
            let is_replaced = principal.secret != 0 && !self.access.has_root(principal.secret);
            let has_ended = state.is_root_disabled() || is_replaced;
            return if has_ended { Err(Refusal::KeyEnded) } else { Ok(principal.clone()) };
        }
        if let Some(session) = principal.session_id() {
            let now = self.clock.log_time(&state);
            let current = self.cx.policies.principal(&state, session, now);
            return current.ok_or_else(|| Rejection::SessionEnded.into());
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
    fn a_replaced_root_key_is_recognized_by_its_tag() {
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
