//! A token of an identity provider is exchanged for a session.
//!
//! The receiving node validates the token by a state that is confirmed, and proposes a session through the leader. The
//! token itself does not leave the node, and no node asks the provider about it. If another policy or key set counts by the
//! time of the entry, nothing is opened, and the node validates the token again.
//!
//! A token of a key that the key set lacks is rejected at once. The node tells the leader to fetch the keys soon, so that the
//! same token is accepted some seconds later.
//!
//! **Invariants:** a session is opened only for a token that was validated by the providers, roles and keys that count when
//! the log opens it. Its text is in one response, and stored nowhere. A client learns one reason why a token is rejected.

use std::{sync::Arc, time::Duration};

use sha2::{Digest as _, Sha256};

use concord_identity::{
    Accepted, Judgement, KeySet, Permissions, Provider, Reason, Token, TokenSource, judge,
    provider::KeySource,
};
use concord_model::{
    access_key::clear_text::ClearText, command::NewSession, key::Key, limits::MACHINE_NAME_BYTES_MAX,
    record::Revision, system::identity::ProviderId, time::Timestamp,
};
use concord_state::State;

use crate::{
    clock::Clock,
    context::Context,
    freshness::Freshness,
    policy::texts::SessionText,
    request::{Caller, Consistency, IdentityWrite, Refusal, Write},
    write::Writes,
};

/// A key set that is older opens no session: the provider may have withdrawn a key since.
pub(crate) const KEYS_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a token is validated because providers, roles or keys have changed in between.
const ATTEMPTS_MAX: u32 = 3;
/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// A session that a login has opened.
#[derive(Debug)]
pub struct OpenedSession {
    /// Its text: the credential.
    pub text: ClearText,
    /// What history and audit call its owner.
    pub owner: String,
    /// The roles of the owner.
    pub roles: Vec<Key>,
    /// When it ends.
    pub expires_at: Timestamp,
    /// Seconds until then.
    pub expires_in_s: u64,
    /// The revision that opened it.
    pub revision: Revision,
}

/// Why a login has failed, and whether the token is one of the provider's.
#[derive(Debug)]
pub struct FailedLogin {
    /// Why.
    pub refusal: Refusal,
    /// Whether the provider has signed the token: nobody has made it up.
    pub is_signed: bool,
}

/// Exchanges tokens for sessions.
#[derive(Debug)]
pub struct Logins {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    freshness: Arc<Freshness>,
    writes: Arc<Writes>,
}

/// A provider in a state, with the keys that verify its tokens.
pub(super) struct ProviderKeys<'p> {
    pub(super) name: &'p Key,
    pub(super) id: ProviderId,
    pub(super) provider: &'p Provider,
    pub(super) keys: KeySet,
    /// The revision of the key set; `None` if the keys are in the document.
    pub(super) key_set: Option<Revision>,
}

impl Logins {
    pub(crate) fn new(
        cx: &Arc<Context>,
        clock: &Arc<Clock>,
        freshness: &Arc<Freshness>,
        writes: &Arc<Writes>,
    ) -> Self {
        let (cx, clock) = (Arc::clone(cx), Arc::clone(clock));
        Self { cx, clock, freshness: Arc::clone(freshness), writes: Arc::clone(writes) }
    }

    /// Opens a session for the owner of a token.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn log_in(&self, provider: &str, token: &str) -> Result<OpenedSession, FailedLogin> {
        let unsigned = |refusal: Refusal| FailedLogin { refusal, is_signed: false };
        let token = Token::parse(token).map_err(|error| unsigned(rejected(error.reason())))?;
        let mut is_signed = false;
        for _ in 0..ATTEMPTS_MAX {
            let failed = |refusal| FailedLogin { refusal, is_signed };
            let state = self.freshness.view(Consistency::LINEARIZABLE).await.map_err(failed)?;
            let evaluated = self.evaluated(&state, provider, &token, &mut is_signed);
            let failed = |refusal| FailedLogin { refusal, is_signed };
            let (new, opened) = match evaluated {
                Ok(evaluated) => evaluated,
                Err(NotEvaluated::UnknownKey(id)) => {
                    self.ask_for_keys(id).await;
                    return Err(failed(rejected(Reason::UnknownKey)));
                }
                Err(NotEvaluated::NoKeys(id, why)) => {
                    self.ask_for_keys(id).await;
                    return Err(failed(Refusal::ProviderUnavailable(why)));
                }
                Err(NotEvaluated::Refused(refusal)) => return Err(failed(refusal)),
            };
            let write = Write::Identity(Box::new(IdentityWrite::OpenSession(Box::new(new))));
            match self.writes.write(Caller::cluster(None), write).await {
                Ok(written) => return Ok(OpenedSession { revision: written.applied.revision, ..opened }),
                // By the entry's time, other providers, roles or keys count.
                Err(Refusal::LoginStale) => {}
                Err(refusal) => return Err(failed(refusal)),
            }
        }
        let text = "identity providers, roles or their keys changed while the token was validated";
        Err(FailedLogin { refusal: Refusal::Unavailable(text.into()), is_signed })
    }

    /// Validates a token by a state, and makes the session that it opens.
    fn evaluated(
        &self,
        state: &State,
        provider: &str,
        token: &Token,
        is_signed: &mut bool,
    ) -> Result<(NewSession, OpenedSession), NotEvaluated> {
        let policy = self.cx.policies.of(state);
        let now = self.clock.log_time(state);
        let found = provider_keys(state, policy.provider(provider), provider, now)?;
        let judgement = judge(token, found.provider, &found.keys, now.0 / SECOND_US, TokenSource::Client);
        *is_signed = judgement.is_signed();
        if judgement.needs_newer_keys() && found.key_set.is_some() {
            return Err(NotEvaluated::UnknownKey(found.id));
        }
        let Judgement { outcome, .. } = judgement;
        let accepted = outcome.map_err(|reason| NotEvaluated::Refused(rejected(reason)))?;
        let permissions = policy.permissions(found.name, &accepted.claims, 0);
        let permissions = permissions.ok_or_else(|| no_role(&found, &accepted))?;
        new_session(&found, accepted, permissions, (policy.revision(), now)).map_err(NotEvaluated::Refused)
    }

    /// Asks the leader to fetch the keys of a provider. That it can't be asked now changes nothing: it fetches them in some
    /// minutes anyway.
    async fn ask_for_keys(&self, provider: ProviderId) {
        let write = Write::Identity(Box::new(IdentityWrite::FetchKeys(provider)));
        if let Err(error) = self.writes.write(Caller::cluster(None), write).await {
            tracing::debug!(
                ?error,
                "the leader could not be asked to fetch the keys of an identity provider"
            );
        }
    }
}

/// Why a token was not evaluated, or opens nothing.
pub(super) enum NotEvaluated {
    /// The key set lacks the key; a newer one may have it.
    UnknownKey(ProviderId),
    /// There is no key set, or it is too old.
    NoKeys(ProviderId, String),
    /// Otherwise.
    Refused(Refusal),
}

/// A provider with its keys.
pub(super) fn provider_keys<'p>(
    state: &'p State,
    parsed: Option<&'p Provider>,
    name: &str,
    now: Timestamp,
) -> Result<ProviderKeys<'p>, NotEvaluated> {
    // Whether there is such a provider says no more than its name, which is in no response.
    let unknown = || NotEvaluated::Refused(Refusal::TokenRejected { reason: "provider".into() });
    let record = state.provider_record(name).ok_or_else(unknown)?;
    let (id, provider) = record.provider().map(|of| of.id).zip(parsed).ok_or_else(unknown)?;
    let name = &record.name;
    if let KeySource::Fixed(keys) = &provider.keys {
        return Ok(ProviderKeys { name, id, provider, keys: keys.clone(), key_set: None });
    }
    let none = |why: &str| NotEvaluated::NoKeys(id, why.into());
    let found = state.key_set_record(name.as_str());
    let found =
        found.ok_or_else(|| none("the cluster has not fetched the keys of the identity provider yet"))?;
    let confirmed_at = found.key_set().map_or(Timestamp(0), |keys| keys.confirmed_at);
    let age_max = u64::try_from(KEYS_AGE_MAX.as_micros()).unwrap_or(u64::MAX);
    if now.0.saturating_sub(confirmed_at.0) >= age_max {
        return Err(none("the cluster could not fetch the keys of the identity provider for a day"));
    }
    let keys = KeySet::parse(found.text.as_bytes())
        .map_err(|_| none("this version can't read the keys of the identity provider"))?;
    Ok(ProviderKeys { name, id, provider, keys, key_set: Some(found.revision) })
}

fn rejected(reason: Reason) -> Refusal {
    Refusal::TokenRejected { reason: reason.text().into() }
}

fn no_role(found: &ProviderKeys<'_>, accepted: &Accepted) -> NotEvaluated {
    let owner = owner_name(found.name, &accepted.subject);
    NotEvaluated::Refused(Refusal::NoRole(format!("no role has `{owner}` as a member")))
}

/// What history and audit call the owner of a token.
pub(super) fn owner_name(provider: &Key, subject: &str) -> String {
    let mut end = subject.len().min(MACHINE_NAME_BYTES_MAX);
    while !subject.is_char_boundary(end) {
        end -= 1;
    }
    format!("{provider}/{}", &subject[..end])
}

fn new_session(
    found: &ProviderKeys<'_>,
    accepted: Accepted,
    permissions: Permissions,
    (policy, now): (Revision, Timestamp),
) -> Result<(NewSession, OpenedSession), Refusal> {
    let Accepted { subject, issued_at_s, expires_at_s, claims, .. } = accepted;
    let name = owner_name(found.name, &subject);
    let text = SessionText { subject, claims };
    let clear = ClearText::from_random(&crate::access::keys::random()?);
    let seconds = |count: u64| Timestamp(count.saturating_mul(SECOND_US));
    let expires_at = Timestamp(now.0.saturating_add(seconds(permissions.session_s).0));
    let new = NewSession {
        id: clear.id().clone(),
        sha256: Sha256::digest(clear.expose().as_bytes()).into(),
        provider: found.id,
        policy,
        key_set: found.key_set,
        owner: text.owner(&found.provider.issuer),
        name: name.clone(),
        issued_at: seconds(issued_at_s),
        token_ends_at: seconds(expires_at_s),
        expires_at,
        text: text.to_text(),
    };
    let (roles, expires_in_s) = (permissions.roles, permissions.session_s);
    Ok((new, OpenedSession { text: clear, owner: name, roles, expires_at, expires_in_s, revision: 0 }))
}
