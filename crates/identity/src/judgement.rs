//! All checks of a token, in their order.
//!
//! Every check is made, so that an administrator sees all of them; what they show never includes the signature or the
//! whole token. A client is told one reason: that of the first check that failed.
//!
//! | order | checks |
//! |---|---|
//! | 1 | `alg` is one of the provider's; the key set has its key; the signature |
//! | 2 | issuer, audience, authorized party, subject |
//! | 3 | the times: `exp`, `iat`, age, `nbf` |
//! | 4 | the claims that the provider requires; how the token came; the nonce |
//! | 5 | groups are there; the label of a person; what is kept fits |
//!
//! So a reason after `signature` is about a token that the provider has signed.
//!
//! **Invariant:** the result is that of the list: a token is accepted only if each check of the list holds.

use concord_model::limits::{
    CLAIMS_BYTES_MAX, MACHINE_SUBJECT_BYTES_MAX, PERSON_SUBJECT_BYTES_MAX, TOKEN_AHEAD_S_MAX,
    TOKEN_AUDIENCES_MAX,
};
use concord_model::unseen::is_unseen;
use serde_json::{Map, Value};

use crate::{
    claims::{ClaimName, Claims, KeptClaims, Scalar, shown_patterns},
    json::{shown, shown_value},
    keys::KeySet,
    provider::{Provider, SubjectClaim, is_uuid},
    token::{Token, TokenError},
};

/// The last second of the year 9999: later times have no text.
const LAST_S: u64 = 253_402_300_799;

/// How a token came to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource<'n> {
    /// The provider sent it for a code that the node redeemed.
    Code {
        /// The nonce of the login, which the token repeats.
        nonce: &'n str,
    },
    /// The provider sent it for a device code that the node redeemed: such a login has no nonce.
    DeviceCode,
    /// A client presented it, as a machine does.
    Client,
}

impl TokenSource<'_> {
    /// As a message names it.
    fn name(self) -> &'static str {
        match self {
            Self::Code { .. } => "a code",
            Self::DeviceCode => "a device code",
            Self::Client => "a token",
        }
    }
}

/// Why a token is rejected. The texts are part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The text is no token, or a time in it is not an integer.
    Malformed,
    /// The header asks for another way of reading the token.
    UnsupportedHeader,
    /// The header says that it is another kind of token.
    TokenType,
    /// The algorithm is not one of the provider's.
    Algorithm,
    /// The key set has no key for it.
    UnknownKey,
    /// The signature is not that of the key.
    Signature,
    /// It is from another issuer.
    Issuer,
    /// It is for somebody else.
    Audience,
    /// It was issued to somebody else.
    AuthorizedParty,
    /// It names nobody.
    Subject,
    /// Its time is up.
    Expired,
    /// It was issued later than now.
    IssuedInTheFuture,
    /// It was issued longer ago than the provider allows.
    TooOld,
    /// Its time has not come.
    NotYetValid,
    /// A claim is not what the provider requires.
    Requirement,
    /// The provider has persons, and a client presented the token: it may be for something else than this login.
    CodeRequired,
    /// It is for another login.
    Nonce,
    /// The provider has left out the groups, because there are too many.
    GroupsMissing,
    /// The claim that labels the person is absent or no label.
    LabelInvalid,
    /// The provider does not say that the person's address is theirs.
    EmailNotVerified,
    /// The person's domain is not one of the provider's.
    Domain,
    /// More is to be kept of it than fits into a session.
    ClaimsTooLarge,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Malformed,
        Self::UnsupportedHeader,
        Self::TokenType,
        Self::Algorithm,
        Self::UnknownKey,
        Self::Signature,
        Self::Issuer,
        Self::Audience,
        Self::AuthorizedParty,
        Self::Subject,
        Self::Expired,
        Self::IssuedInTheFuture,
        Self::TooOld,
        Self::NotYetValid,
        Self::Requirement,
        Self::CodeRequired,
        Self::Nonce,
        Self::GroupsMissing,
        Self::LabelInvalid,
        Self::EmailNotVerified,
        Self::Domain,
        Self::ClaimsTooLarge,
    ];

    /// Its text in responses and in the audit log.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnsupportedHeader => "unsupported_header",
            Self::TokenType => "token_type",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::AuthorizedParty => "authorized_party",
            Self::Subject => "subject",
            Self::Expired => "expired",
            Self::IssuedInTheFuture => "issued_in_the_future",
            Self::TooOld => "too_old",
            Self::NotYetValid => "not_yet_valid",
            Self::Requirement => "requirement",
            Self::CodeRequired => "code_required",
            Self::Nonce => "nonce",
            Self::GroupsMissing => "groups_missing",
            Self::LabelInvalid => "label_invalid",
            Self::EmailNotVerified => "email_not_verified",
            Self::Domain => "domain",
            Self::ClaimsTooLarge => "claims_too_large",
        }
    }
}

/// One check of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What is checked: `signature`, `exp`, `require /kubernetes.io/namespace`.
    pub name: String,
    /// The reason of the rejection if it does not hold.
    pub reason: Reason,
    /// What the provider's document asks for.
    pub wanted: String,
    /// What the token has, cut if it is long.
    pub seen: String,
    /// Whether it holds.
    pub holds: bool,
}

/// What a valid token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// `sub`, or of a person the claim that the provider names: with the issuer, it is who logs in.
    pub subject: String,
    /// `iat`, in seconds since 1970.
    pub issued_at_s: u64,
    /// `exp`, in seconds since 1970.
    pub expires_at_s: u64,
    /// The label of the person; none of a machine.
    pub label: Option<String>,
    /// What is kept of its claims.
    pub claims: Claims,
    /// `kid`, for the audit log.
    pub key_id: Option<String>,
    /// `jti`, for the audit log: cut if it is long.
    pub token_id: Option<String>,
}

/// What became of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// All checks, in their order.
    pub checks: Vec<Check>,
    /// What the token says, or the reason of the first check that failed.
    pub outcome: Result<Accepted, Reason>,
}

impl Judgement {
    /// Whether a newer key set may help: the set has no key for the token, and the token says that it is from this
    /// provider, for us.
    #[must_use]
    pub fn needs_newer_keys(&self) -> bool {
        let fails = |reason| self.checks.iter().any(|check| check.reason == reason && !check.holds);
        let is_other = [Reason::Algorithm, Reason::Issuer, Reason::Audience].into_iter().any(fails);
        fails(Reason::UnknownKey) && !is_other
    }

    /// Whether the provider has signed the token, valid or not.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.checks.iter().any(|check| check.reason == Reason::Signature && check.holds)
    }
}

/// A text that is no token has one check.
impl From<TokenError> for Judgement {
    fn from(error: TokenError) -> Self {
        let reason = error.reason();
        let check = Check {
            name: "form".to_owned(),
            reason,
            wanted: "a signed JWT".to_owned(),
            seen: shown(&error.to_string()),
            holds: false,
        };
        Self { checks: vec![check], outcome: Err(reason) }
    }
}

/// Judges a token by the provider that the client names, its key set, the time, and how the token came.
#[must_use]
pub fn judge(
    token: &Token,
    provider: &Provider,
    keys: &KeySet,
    now_s: u64,
    source: TokenSource<'_>,
) -> Judgement {
    let mut checks = Checks { payload: &token.payload, list: Vec::new() };
    checks.signature(token, provider, keys);
    checks.issuer(provider);
    checks.audience(provider);
    let subject = checks.subject(provider);
    let times = checks.times(provider, now_s);
    checks.requirements(provider);
    checks.source(provider, source);
    checks.groups(&provider.claims);
    let label = checks.label(provider);
    let claims = checks.kept(&provider.claims);
    let list = checks.list;
    let outcome = match list.iter().find(|check| !check.holds) {
        Some(failed) => Err(failed.reason),
        None => subject.zip(times).zip(claims).ok_or(Reason::Malformed),
    };
    let outcome = outcome.map(|((subject, times), claims)| Accepted {
        subject,
        issued_at_s: times.issued_at_s,
        expires_at_s: times.expires_at_s,
        label,
        claims,
        key_id: token.key_id.clone(),
        token_id: token.payload.get("jti").and_then(Value::as_str).map(shown),
    });
    Judgement { checks: list, outcome }
}

struct Times {
    issued_at_s: u64,
    expires_at_s: u64,
}

/// The checks so far.
struct Checks<'t> {
    payload: &'t Map<String, Value>,
    list: Vec<Check>,
}

impl<'t> Checks<'t> {
    /// Adds a check of a claim of the payload.
    fn claim(&mut self, name: &str, reason: Reason, wanted: impl Into<String>, holds: bool) {
        let seen = shown_value(self.payload.get(name));
        self.list.push(Check { name: name.to_owned(), reason, wanted: wanted.into(), seen, holds });
    }

    fn text(&self, name: &str) -> Option<&'t str> {
        self.payload.get(name).and_then(Value::as_str)
    }

    fn signature(&mut self, token: &Token, provider: &Provider, keys: &KeySet) {
        let algorithm = token.algorithm;
        let names: Vec<&str> = provider.algorithms.iter().map(|algorithm| algorithm.name()).collect();
        let is_allowed = provider.algorithms.contains(&algorithm);
        self.list.push(check(
            "alg",
            Reason::Algorithm,
            names.join(" or "),
            algorithm.name().to_owned(),
            is_allowed,
        ));

        let key = keys.find(algorithm, token.key_id.as_deref());
        let kind = algorithm.kind();
        let (wanted, absent) = match &token.key_id {
            Some(id) => (format!("key `{}` of type {kind}", shown(id)), "none"),
            None => (format!("one key of type {kind}, as the token has no `kid`"), "none, or several"),
        };
        let found =
            if key.is_some() { "found".to_owned() } else { format!("{absent} of {} keys", keys.len()) };
        self.list.push(check("kid", Reason::UnknownKey, wanted, found, key.is_some()));

        let message = token.signed().as_bytes();
        let is_valid = key.map(|key| key.verifies(algorithm, message, &token.signature));
        let seen = match is_valid {
            Some(true) => "valid",
            Some(false) => "invalid",
            None => "not checked, as there is no key",
        };
        let is_valid = is_valid.unwrap_or(false);
        self.list.push(check("signature", Reason::Signature, "that of the key", seen.to_owned(), is_valid));
    }

    fn issuer(&mut self, provider: &Provider) {
        let is_own = self.text("iss") == Some(provider.issuer.as_str());
        self.claim("iss", Reason::Issuer, &provider.issuer, is_own);
    }

    /// The audience, and who the token was issued to: for a person always our client, if the token names anybody. A
    /// machine may get its token through another client. If the token has several audiences, the provider says which
    /// client by `require`: Keycloak gives service accounts several audiences, and `azp` is never one of them.
    fn audience(&mut self, provider: &Provider) {
        let audiences: Vec<Option<&str>> = match self.payload.get("aud") {
            Some(Value::Array(items)) if items.len() <= TOKEN_AUDIENCES_MAX => {
                items.iter().map(Value::as_str).collect()
            }
            Some(one) => vec![one.as_str()],
            None => Vec::new(),
        };
        let is_own = |name: &&str| provider.audiences.contains(*name);
        let named: Option<Vec<&str>> = audiences.into_iter().collect();
        let named = named.unwrap_or_default();
        let own: Vec<&str> = provider.audiences.iter().map(String::as_str).collect();
        let wanted = own.join(" or ");
        self.claim("aud", Reason::Audience, &wanted, named.iter().any(is_own));

        let party = self.payload.get("azp");
        let is_person = provider.persons.is_some();
        let is_required = provider.require.keys().any(|name| name.as_str() == "azp");
        let is_needed = (named.len() > 1 && (is_person || !is_required)) || (is_person && party.is_some());
        let holds = !is_needed || party.and_then(Value::as_str).is_some_and(|party| is_own(&party));
        let wanted = if is_needed { wanted } else { "not needed".to_owned() };
        self.claim("azp", Reason::AuthorizedParty, wanted, holds);
    }

    /// Who the token names: by `sub`, or for persons by the claim that the provider names.
    fn subject(&mut self, provider: &Provider) -> Option<String> {
        let persons = provider.persons.as_ref();
        let claim = persons.map_or(SubjectClaim::Sub, |persons| persons.subject);
        let bytes_max = if persons.is_some() { PERSON_SUBJECT_BYTES_MAX } else { MACHINE_SUBJECT_BYTES_MAX };
        let is_subject = |text: &&str| match claim {
            SubjectClaim::Sub => (1..=bytes_max).contains(&text.len()) && !text.contains(is_unseen),
            // In upper case it would be another human.
            SubjectClaim::Oid => is_uuid(text) && !text.contains(|c: char| c.is_ascii_uppercase()),
        };
        let name = claim.name();
        let subject = self.text(name).filter(is_subject);
        let wanted = match claim {
            SubjectClaim::Sub => format!("1 to {bytes_max} bytes without unseen characters"),
            SubjectClaim::Oid => "a UUID in lower case".to_owned(),
        };
        self.claim(name, Reason::Subject, wanted, subject.is_some());
        subject.map(str::to_owned)
    }

    /// Adds a check of a time. A time that is not written as an integer is malformed, whatever else it would be.
    fn time(
        &mut self,
        name: &str,
        reason: Reason,
        wanted: String,
        holds: impl FnOnce(u64) -> bool,
    ) -> Option<u64> {
        let Some(time) = self.payload.get(name).and_then(seconds) else {
            self.claim(name, Reason::Malformed, "seconds since 1970, as digits only", false);
            return None;
        };
        self.claim(name, reason, wanted, holds(time));
        Some(time)
    }

    fn times(&mut self, provider: &Provider, now_s: u64) -> Option<Times> {
        let ahead_s = now_s.saturating_add(TOKEN_AHEAD_S_MAX);
        let oldest_s = now_s.saturating_sub(provider.max_token_age_s);
        let not_ahead = || format!("{ahead_s} or earlier");
        let expires = self.time("exp", Reason::Expired, format!("later than {now_s}"), |time| time > now_s);
        let issued = self.time("iat", Reason::IssuedInTheFuture, not_ahead(), |time| time <= ahead_s);
        if let Some(issued) = issued {
            self.claim("iat", Reason::TooOld, format!("{oldest_s} or later"), issued >= oldest_s);
        }
        if self.payload.contains_key("nbf") {
            self.time("nbf", Reason::NotYetValid, not_ahead(), |time| time <= ahead_s);
        }
        Some(Times { issued_at_s: issued?, expires_at_s: expires? })
    }

    fn requirements(&mut self, provider: &Provider) {
        for (name, values) in &provider.require {
            let found = name.find(self.payload);
            let scalar = found.and_then(Scalar::of);
            let holds = scalar.is_some_and(|scalar| values.iter().any(|value| value.matches(&scalar)));
            let label = format!("require {name}");
            self.list.push(check(
                &label,
                Reason::Requirement,
                shown_patterns(values),
                shown_value(found),
                holds,
            ));
        }
    }

    /// A person never presents a token: one issuer may sign tokens of its users and of CI jobs, and a job chooses its
    /// audience. What the node redeems was made for this client.
    fn source(&mut self, provider: &Provider, source: TokenSource<'_>) {
        let is_person = provider.persons.is_some();
        let wanted = if is_person { "a code or a device code, which the node redeems" } else { "not needed" };
        let holds = !is_person || source != TokenSource::Client;
        self.list.push(check("source", Reason::CodeRequired, wanted, source.name().to_owned(), holds));
        if let TokenSource::Code { nonce } = source {
            let holds = !nonce.is_empty() && self.text("nonce") == Some(nonce);
            self.claim("nonce", Reason::Nonce, "that of this login", holds);
        }
    }

    /// Entra leaves out the groups of somebody with many: then `_claim_names` says where to ask for them, or `hasgroups`
    /// that there are some. Without them, somebody would have fewer permissions than they should, and nobody would know.
    fn groups(&mut self, kept: &KeptClaims) {
        let is_absent = |name: &&ClaimName| !self.payload.contains_key(&name.outermost());
        let elsewhere = self.payload.get("_claim_names");
        let is_elsewhere = |name: &str| match elsewhere {
            Some(Value::Object(names)) => names.contains_key(name),
            // A list of names is in no standard: it may be any of them.
            Some(_) => true,
            None => false,
        };
        let has_groups = self.payload.contains_key("hasgroups");
        let is_left_out = |name: &&ClaimName| {
            let name = name.outermost();
            is_elsewhere(&name) || (has_groups && name == "groups")
        };
        let missing = kept.names().filter(is_absent).find(is_left_out);
        let seen = missing.map_or("in the token, or never sent".to_owned(), |name| {
            format!("the provider has left out `{}`: too many values", shown(name.as_str()))
        });
        self.list.push(check("groups", Reason::GroupsMissing, "in the token", seen, missing.is_none()));
    }

    fn label(&mut self, provider: &Provider) -> Option<String> {
        let persons = provider.persons.as_ref()?;
        let label = persons.label(self.payload);
        let seen = match &label {
            Ok(label) => shown(label),
            Err(reason) => {
                let seen = shown_value(persons.label.find(self.payload));
                format!("{seen}: {}", reason.text())
            }
        };
        let reason = label.as_ref().err().copied().unwrap_or(Reason::LabelInvalid);
        self.list.push(check("label", reason, persons.wanted(), seen, label.is_ok()));
        label.ok()
    }

    fn kept(&mut self, kept: &KeptClaims) -> Option<Claims> {
        let claims = kept.of(self.payload);
        let wanted = format!("at most {CLAIMS_BYTES_MAX} bytes");
        let seen = match &claims {
            Ok(claims) => format!("{} bytes", claims.to_text().len()),
            Err(error) => error.to_string(),
        };
        self.list.push(check("claims", Reason::ClaimsTooLarge, wanted, seen, claims.is_ok()));
        claims.ok()
    }
}

fn check(name: &str, reason: Reason, wanted: impl Into<String>, seen: String, holds: bool) -> Check {
    Check { name: name.to_owned(), reason, wanted: wanted.into(), seen, holds }
}

/// A time that is written as digits only, up to the year 9999.
fn seconds(value: &Value) -> Option<u64> {
    let Value::Number(number) = value else { return None };
    let text = number.to_string();
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|seconds| is_digits && *seconds <= LAST_S)
}
