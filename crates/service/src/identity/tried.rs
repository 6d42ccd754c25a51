//! Why a token is accepted or not, check by check, and which roles it would give.
//!
//! It opens no session and stores nothing. Who manages a provider may see what a token of it says.
//!
//! **Invariant:** what is shown has neither the token nor its signature.

use concord_identity::{Check, Judgement, Reason, Token, TokenSource, judge, roles::MemberCheck};
use concord_model::{error::IdentityRejection, key::Key};

use super::{
    Identities,
    login::{NotEvaluated, provider_keys},
};
use crate::request::{Consistency, Principal, Refusal};

/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// What a login with a token would come to.
#[derive(Debug)]
pub struct TriedToken {
    /// Each check of the token.
    pub checks: Vec<Check>,
    /// The reason of the first one that fails; `None` if the token is accepted.
    pub reason: Option<Reason>,
    /// What is kept of its claims: the text of a JSON object.
    pub claims: Option<String>,
    /// Each role that names the provider, and how its members compare with the claims.
    pub roles: Vec<TriedRole>,
    /// How long a session would last, in seconds; `None` if none would be opened.
    pub session_s: Option<u64>,
}

/// A role beside the claims of a token.
#[derive(Debug)]
pub struct TriedRole {
    /// Its name.
    pub role: Key,
    /// Whether the owner of the token has it.
    pub holds: bool,
    /// Its members that name the provider.
    pub members: Vec<MemberCheck>,
    /// What an administrator may have overlooked.
    pub hints: Vec<&'static str>,
}

impl Identities {
    /// Tries a token of a provider.
    ///
    /// # Errors
    /// When the client may not manage the provider, its keys are not known, or no state is fresh enough.
    pub async fn try_token(
        &self,
        principal: &Principal,
        name: &str,
        token: &str,
    ) -> Result<TriedToken, Refusal> {
        principal.authorize(concord_model::access_key::Verb::Keys, None)?;
        let state = self.freshness.view(Consistency::LINEARIZABLE).await?;
        let record = self.provider_seen(&state, principal, name)?;
        let policy = self.cx.policies.of(&state);
        let now = self.clock.log_time(&state);
        let found = provider_keys(&state, policy.provider(name), name, now).map_err(|error| match error {
            NotEvaluated::NoKeys(_, why) => Refusal::ProviderUnavailable(why),
            NotEvaluated::UnknownKey(_) | NotEvaluated::Refused(_) => {
                Refusal::from(concord_model::error::Rejection::from(IdentityRejection::ProviderNotFound))
            }
        })?;
        let Judgement { checks, outcome } = match Token::parse(token) {
            Ok(token) => judge(&token, found.provider, &found.keys, now.0 / SECOND_US, TokenSource::Client),
            Err(error) => Judgement::from(error),
        };
        let accepted = match outcome {
            Ok(accepted) => accepted,
            Err(reason) => {
                return Ok(TriedToken {
                    checks,
                    reason: Some(reason),
                    claims: None,
                    roles: Vec::new(),
                    session_s: None,
                });
            }
        };
        let permissions = policy.permissions(&record.name, &accepted.claims, 0);
        let has = |role: &Key| permissions.as_ref().is_some_and(|found| found.roles.contains(role));
        let roles = policy.roles().filter_map(|(role, membership)| {
            let members = membership.members.iter().filter(|member| member.provider == record.name);
            let members: Vec<_> = members.collect();
            (!members.is_empty()).then(|| TriedRole {
                role: role.name.clone(),
                holds: has(role.name),
                hints: members
                    .iter()
                    .flat_map(|member| member.hints())
                    .map(concord_identity::roles::Hint::text)
                    .collect(),
                members: members
                    .iter()
                    .map(|member| member.explain(&record.name, &accepted.claims))
                    .collect(),
            })
        });
        Ok(TriedToken {
            checks,
            reason: None,
            roles: roles.collect(),
            session_s: permissions.as_ref().map(|found| found.session_s),
            claims: Some(accepted.claims.to_text()),
        })
    }
}
