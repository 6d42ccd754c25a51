//! The access keys as clients manage them: created, read, changed, rotated, revoked.
//!
//! The receiving node makes the secret of a key, returns it in its response, and writes and sends only the SHA-256. A
//! retry with an idempotency key gets a response without the secret, because nothing stores it. The client rotates the
//! key to get another one.
//!
//! A client sees only the keys whose grants it has.
//!
//! **Invariant:** the secret of a key is in one response, to the request that made it, after the log has decided it.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::{
    access::Authentication,
    clock::Clock,
    context::Context,
    freshness::{Freshness, Made},
    request::{AccessWrite, Caller, Consistency, DecidedWrite, KeyPatch, Principal, Refusal, Write},
    write::Writes,
};
use concord_model::{
    access_key::{AccessKey, KeyId, KeySecret, Verb, clear_text::ClearText, list::KeyQuery},
    command::{Expect, KeyTerms},
    error::Rejection,
    record::Revision,
    system::person::{PersonId, PersonLabel},
    time::Timestamp,
};
use concord_state::{State, query::QueryResult};

/// A key as a client sees it.
#[derive(Debug, Clone)]
pub struct SeenKey {
    /// The key.
    pub key: Arc<AccessKey>,
    /// The labels of the persons that it names, as far as the client may see them.
    pub labels: BTreeMap<PersonId, PersonLabel>,
    /// Whether no holder of another key has a secret of it that is valid now.
    pub has_own_secret: bool,
}

/// A key that a request made or rotated.
#[derive(Debug)]
pub struct MadeKey {
    /// The key.
    pub seen: SeenKey,
    /// Its secret; `None` if an earlier copy of the request has made the key.
    pub text: Option<ClearText>,
    /// The write.
    pub written: DecidedWrite,
}

/// The access keys of the cluster, for clients that manage them.
#[derive(Debug)]
pub struct AccessKeys {
    pub(crate) cx: Arc<Context>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) authentication: Arc<Authentication>,
    pub(crate) writes: Arc<Writes>,
}

impl AccessKeys {
    pub(crate) fn new(
        cx: &Arc<Context>,
        clock: &Arc<Clock>,
        freshness: &Arc<Freshness>,
        authentication: &Arc<Authentication>,
        writes: &Arc<Writes>,
    ) -> Self {
        Self {
            cx: Arc::clone(cx),
            clock: Arc::clone(clock),
            freshness: Arc::clone(freshness),
            authentication: Arc::clone(authentication),
            writes: Arc::clone(writes),
        }
    }

    /// Creates an access key.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn create_key(
        &self,
        caller: Caller,
        terms: KeyTerms,
        person: Option<PersonLabel>,
    ) -> Result<MadeKey, Refusal> {
        caller.principal.authorize(Verb::Keys, None)?;
        let text = ClearText::from_random(&random()?);
        let (id, sha256) = (text.id().clone(), sha256_of(&text));
        self.make_key(caller, text, AccessWrite::Create { id, terms, sha256, person }).await
    }

    /// Rotates a key. The previous secret remains valid for `grace_us` microseconds.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn rotate_key(
        &self,
        caller: Caller,
        id: KeyId,
        grace_us: u64,
        expect: Expect,
    ) -> Result<MadeKey, Refusal> {
        caller.principal.authorize_rotation(&id)?;
        let text = ClearText::with_id(id.clone(), &random::<32>()?);
        let sha256 = sha256_of(&text);
        self.make_key(caller, text, AccessWrite::Rotate { id, sha256, grace_us, expect }).await
    }

    async fn make_key(
        &self,
        caller: Caller,
        text: ClearText,
        write: AccessWrite,
    ) -> Result<MadeKey, Refusal> {
        let (sha256, principal) = (sha256_of(&text), caller.principal.clone());
        let may_be_earlier = caller.idempotency_key.is_some();
        let mut written = self.writes.write(caller, Write::Access(write)).await?;
        let made = written.applied.revision;
        // The secret is shown once, and only here: what this request itself has made needs no confirmation.
        let made_here = |state: &State| {
            let is_own = |secret: &KeySecret| secret.made == made && sha256.ct_eq(&secret.sha256).into();
            state.access_key(text.id()).is_some_and(|key| key.secrets.iter().any(is_own))
        };
        let mut state = self.freshness.state_after(Made { revision: made, may_be_earlier: false }).await?;
        if may_be_earlier && !made_here(&state) {
            state = self.freshness.state_after(Made { revision: made, may_be_earlier }).await?;
        }
        written.revision = state.revision();
        let has_made = |key: &&Arc<AccessKey>| key.secrets.iter().any(|secret| secret.made == made);
        let own = state.access_key(text.id()).filter(has_made);
        // The id in another copy of the request is only known from the key that it made.
        let gone = || Refusal::Conflict("the key was created, and revoked or changed since".into());
        let key = own.or_else(|| state.access_keys().find(has_made)).ok_or_else(gone)?;
        let is_own =
            key.secrets.iter().any(|secret| secret.made == made && sha256.ct_eq(&secret.sha256).into());
        // By the time of a retry the key may have permissions that the client lacks.
        if !is_own && !principal.may_see_key(key) {
            return Err(gone());
        }
        let seen = self.seen(&state, &principal, key);
        Ok(MadeKey { seen, text: is_own.then_some(text), written })
    }

    /// Changes an access key.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn change_key(
        &self,
        caller: Caller,
        id: KeyId,
        patch: KeyPatch,
        expect: Expect,
    ) -> Result<(SeenKey, DecidedWrite), Refusal> {
        let write = AccessWrite::Change { id: id.clone(), patch, expect };
        self.write_key(caller, id, write).await
    }

    /// Attests a key at this revision: that its person, and nobody else, holds it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn attest_key(
        &self,
        caller: Caller,
        id: KeyId,
        revision: Revision,
    ) -> Result<(SeenKey, DecidedWrite), Refusal> {
        let write = AccessWrite::Attest { id: id.clone(), revision };
        self.write_key(caller, id, write).await
    }

    async fn write_key(
        &self,
        caller: Caller,
        id: KeyId,
        write: AccessWrite,
    ) -> Result<(SeenKey, DecidedWrite), Refusal> {
        caller.principal.authorize(Verb::Keys, None)?;
        let principal = caller.principal.clone();
        let may_be_earlier = caller.idempotency_key.is_some();
        let mut written = self.writes.write(caller, Write::Access(write)).await?;
        let made = Made { revision: written.applied.revision, may_be_earlier };
        let state = self.freshness.state_after(made).await?;
        written.revision = state.revision();
        // By the time of a retry the key may have permissions that the client lacks.
        let key = state.access_key(&id).filter(|key| principal.may_see_key(key));
        let key = key.ok_or(Rejection::KeyNotFound)?;
        Ok((self.seen(&state, &principal, key), written))
    }

    /// Revokes an access key. Once this has succeeded, no write with it is decided any more.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn revoke_key(
        &self,
        caller: Caller,
        id: KeyId,
        expect: Expect,
    ) -> Result<DecidedWrite, Refusal> {
        caller.principal.authorize(Verb::Keys, None)?;
        self.writes.write(caller, Write::Access(AccessWrite::Revoke { id, expect })).await
    }

    /// Disables the root key.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn disable_root(&self, caller: Caller) -> Result<DecidedWrite, Refusal> {
        caller.principal.authorize(Verb::Keys, None)?;
        self.writes.write(caller, Write::Access(AccessWrite::DisableRoot)).await
    }

    /// The access key with an id, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When there is no such key that the client may see, or no state is fresh enough.
    pub async fn access_key(
        &self,
        principal: &Principal,
        id: &KeyId,
        consistency: Consistency,
    ) -> Result<(SeenKey, Revision), Refusal> {
        principal.authorize(Verb::Keys, None)?;
        let state = self.freshness.view(consistency).await?;
        let key = state.access_key(id).filter(|key| principal.may_see_key(key));
        let key = key.ok_or(Rejection::KeyNotFound)?;
        Ok((self.seen(&state, principal, key), state.revision()))
    }

    /// A page of the access keys that the client may see, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When no state is fresh enough.
    pub async fn access_keys(
        &self,
        principal: &Principal,
        query: KeyQuery,
        consistency: Consistency,
    ) -> Result<(QueryResult<SeenKey>, Revision), Refusal> {
        principal.authorize(Verb::Keys, None)?;
        let state = self.freshness.view(consistency).await?;
        let (revision, principal, now) = (state.revision(), principal.clone(), self.clock.log_time(&state));
        // All keys are compared and sorted: up to a few milliseconds.
        let found = self.cx.run_long(move || {
            let seen = state.access_keys().filter(|key| principal.may_see_key(key)).cloned();
            let (results, total) = query.page_of(seen);
            let results = results.iter().map(|key| seen_key(&state, now, &principal, key)).collect();
            QueryResult { results, total }
        });
        Ok((found.await?, revision))
    }

    /// The key that a request uses, as its owner sees it by this node's state.
    #[must_use]
    pub fn own_key(&self, principal: &Principal) -> Option<SeenKey> {
        let key = principal.key()?;
        Some(self.seen(&self.cx.applied(), principal, key))
    }

    fn seen(&self, state: &State, principal: &Principal, key: &Arc<AccessKey>) -> SeenKey {
        seen_key(state, self.clock.log_time(state), principal, key)
    }
}

/// A key as a client sees it. The labels of others are for clients that may read keys.
fn seen_key(state: &State, now: Timestamp, principal: &Principal, key: &Arc<AccessKey>) -> SeenKey {
    let may_read = principal.authorize(Verb::Keys, None).is_ok();
    let seen = key.persons().filter(|person| may_read || key.person == Some(*person));
    let label = |person| state.person(person).map(|found| (person, found.label.clone()));
    SeenKey {
        key: Arc::clone(key),
        labels: seen.filter_map(label).collect(),
        has_own_secret: key.has_only_own_secrets(now),
    }
}

fn sha256_of(text: &ClearText) -> [u8; 32] {
    Sha256::digest(text.expose().as_bytes()).into()
}

/// Random bytes that cannot be guessed.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Refusal::Internal(format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}
