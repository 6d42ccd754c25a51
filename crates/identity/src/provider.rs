//! The document of a provider: whose tokens are accepted, and whom they may name.
//!
//! ```json
//! {"issuer": "https://login.example.com", "audiences": ["concord"], "algorithms": ["RS256"],
//!  "keys": "discovery" | {"url": "https://…", "ca": "-----BEGIN CERTIFICATE-----…"} | {"jwks": {"keys": […]}},
//!  "max_token_age_s": 3600, "require": {"tid": ["9f…"]}, "single_tenant": false, "hosts": [],
//!  "claims": {"groups": ["concord-*"], "environment": true},
//!  "persons": {"label": "email", "domains": ["example.com"], "verified_by": "email_verified", "subject": "sub",
//!              "max_claims_age_s": 604800},
//!  "login": {"client_id": "concord", "scopes": ["openid", "email"],
//!            "redirect_uris": ["https://concord.example.com/ui/callback"], "loopback_port": 8400, "device": false}}
//! ```
//!
//! `issuer` and `audiences` are required. A provider without `persons` is one of machines, and has no `login`.
//!
//! Many issuers give a token to anybody, with any audience: those of CI systems, of Google, of an identity service with
//! many tenants. No list of them is complete. So each provider says whom it trusts: by claims (`require`), by the domains
//! of its persons, or by `single_tenant`, which says that the issuer has no others.
//!
//! A label with an `@` is read as an address, so its domain is always one of `domains`, whatever claim it is from.
//! Otherwise the user name `ceo@example.com` of another provider would be taken for that person.
//!
//! With its issuer, a person is one claim: `sub`. Entra and others give a human another `sub` for each client, so that a new
//! client id makes every human a new person. Entra's `oid` is the same for all clients of a tenant; a token has it if the
//! login requests the scope `profile`.
//!
//! **Invariant:** a [`Provider`] has no problem: [`Provider::parse`] is the only constructor, and an unknown member is a
//! problem.

use std::collections::{BTreeMap, BTreeSet};

use concord_model::{
    error::Violation,
    limits::{
        CLAIM_TEXT_BYTES_MAX, CLAIMS_AGE_S, CLAIMS_AGE_S_DEFAULT, ISSUER_BYTES_MAX, LOGIN_LABEL_BYTES_MAX,
        LOGIN_SCOPES_MAX, MATCH_CLAIMS_MAX, MATCH_VALUES_MAX, PERSON_DOMAINS_MAX, PROVIDER_AUDIENCES_MAX,
        PROVIDER_CA_BYTES_MAX, PROVIDER_HOSTS_MAX, PROVIDER_URL_BYTES_MAX, REDIRECT_URIS_MAX, TOKEN_AGE_S,
        TOKEN_AGE_S_DEFAULT,
    },
    system::person::PersonLabel,
};
use serde_json::{Map, Value};

use crate::{
    claims::{ClaimName, KeptClaims, Scalar, Star, ValuePattern},
    fields::{Members, Problems, finish},
    judgement::Reason,
    keys::{Algorithm, KeySet, has_private_key},
    roles::{COMMON_CLAIMS, KIND_CLAIMS},
    url::{self, HttpsUrl, is_loopback},
};

/// The members of a provider.
const MEMBERS: [&str; 11] = [
    "issuer",
    "audiences",
    "algorithms",
    "keys",
    "max_token_age_s",
    "require",
    "single_tenant",
    "hosts",
    "claims",
    "persons",
    "login",
];
/// The label that is an address, and must be verified.
const EMAIL: &str = "email";
/// Claims that say nothing about whose a token is: they are checked in any case, or differ in each token.
const NOT_OWNERS: [&str; 7] = ["iss", "aud", "exp", "iat", "nbf", "jti", "nonce"];
/// Claims that tokens of many owners have in common, besides [`COMMON_CLAIMS`] and [`KIND_CLAIMS`]. They can be required, but
/// not alone.
const SHARED: [&str; 3] = ["auth_time", "azp", "environment"];
/// What Entra says of an address: the tenant, or the home tenant of a guest, owns its domain. An optional claim of the
/// app registration.
const ENTRA_VERIFIED: &str = "xms_edov";
/// Claims that name the tenant of an identity service: Entra's, and Google's.
const TENANT: [&str; 2] = ["tid", "hd"];
/// The tenant of Entra in which everybody's personal account is.
const CONSUMERS: &str = "9188040d-6c67-4c5b-b112-36a304b66dad";
/// Characters of a UUID, as Entra writes the id of a tenant and of an object.
const UUID_CHARACTERS: usize = 36;

/// Where the keys of a provider come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// From the `jwks_uri` of its discovery document.
    Discovery,
    /// From a URL.
    Url {
        /// An `https` URL.
        url: String,
        /// The certificates, as PEM, that its host is checked with; those of the system if there are none.
        ca: Option<String>,
    },
    /// From the document: no node calls the provider.
    Fixed(KeySet),
}

/// A provider.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// The `iss` of its tokens, compared byte for byte. Its host is a name if a node calls it: for discovery, or for a login.
    /// Otherwise it may be an address, as that of a Kubernetes cluster.
    pub issuer: String,
    /// Who its tokens must be for. A provider of persons has one: the client id.
    pub audiences: BTreeSet<String>,
    /// The algorithms that its tokens may be signed with.
    pub algorithms: BTreeSet<Algorithm>,
    /// Where its keys come from.
    pub keys: KeySource,
    /// Seconds after `iat` for which a token is accepted.
    pub max_token_age_s: u64,
    /// Claims that each token must have, each with one of these values.
    pub require: BTreeMap<ClaimName, BTreeSet<ValuePattern>>,
    /// Whether the issuer gives tokens to nobody else.
    pub single_tenant: bool,
    /// Other hosts that its endpoints may have, besides that of the issuer.
    pub hosts: BTreeSet<String>,
    /// The claims that are kept, and that roles can match.
    pub claims: KeptClaims,
    /// Its persons; none of a provider of machines.
    pub persons: Option<Persons>,
    /// How persons log in.
    pub login: Option<Login>,
}

/// What makes a label that is an address that of the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifiedBy {
    /// The claim `email_verified`, which must be `true`.
    EmailVerified,
    /// The tenant, whose administrator gives the addresses. `require` names the tenant. A guest of Entra brings the address
    /// of another tenant, so a token with `tid` also needs the claim `xms_edov`. Without that claim, the label can be `upn`:
    /// that of a guest is in a domain of Microsoft.
    Tenant,
}

/// The claim that, with the issuer, is the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectClaim {
    /// `sub`.
    Sub,
    /// `oid`, the object of a human in a tenant of Entra. `require` names the tenant.
    Oid,
}

impl SubjectClaim {
    /// Its name in a token.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sub => "sub",
            Self::Oid => "oid",
        }
    }
}

/// The persons of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Persons {
    /// The claim that is the person.
    pub subject: SubjectClaim,
    /// The claim with the label. The claim `email` must be verified; the provider answers for any other one.
    pub label: ClaimName,
    /// The domains of addresses, in lower case. A subdomain is another domain.
    pub domains: BTreeSet<String>,
    /// What makes an address that of the person.
    pub verified_by: VerifiedBy,
    /// Seconds after a person's last login for which what it has shown counts.
    pub max_claims_age_s: u64,
}

/// How persons log in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Login {
    /// The client id at the provider.
    pub client_id: String,
    /// The scopes that the login requests.
    pub scopes: Vec<String>,
    /// Where the provider may send a browser back to.
    pub redirect_uris: Vec<String>,
    /// The port on which the command line waits for the browser; any if there is none.
    pub loopback_port: Option<u16>,
    /// Whether a login may begin on one device and end on another. Somebody who is talked into ending one logs the other in.
    pub device: bool,
}

impl Provider {
    /// Reads the document of a provider.
    ///
    /// # Errors
    /// All problems, each with its member.
    pub fn parse(document: &Value) -> Result<Self, Vec<Violation>> {
        finish(|problems| {
            let members = problems.object(document, &MEMBERS)?;
            let provider = Self::read(members, problems);
            if let Some(provider) = &provider {
                provider.check_issuer(problems);
                provider.check_trust(problems);
                provider.check_login(problems);
            }
            provider
        })
    }

    /// The URL of its discovery document.
    #[must_use]
    pub fn discovery_url(&self) -> String {
        format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'))
    }

    /// The tenants whose tokens it accepts: those that it requires, and the one whose id is in the path of its issuer.
    pub(crate) fn tenants(&self) -> BTreeSet<&str> {
        let required = self.require.iter().filter(|(name, _)| TENANT.contains(&name.as_str()));
        let required = required.flat_map(|(_, values)| values).filter_map(|value| match value {
            ValuePattern::Exact(Scalar::Text(text)) => Some(text.as_str()),
            ValuePattern::Exact(Scalar::Boolean(_) | Scalar::Integer(_)) | ValuePattern::Prefix(_) => None,
        });
        required.chain(self.issuer.split('/').filter(|segment| is_uuid(segment))).collect()
    }

    fn read(members: &Members, problems: &mut Problems) -> Option<Self> {
        let issuer = problems.required(members, "issuer", issuer);
        let audiences = problems.required(members, "audiences", |value, problems| {
            problems.list(value, 1..=PROVIDER_AUDIENCES_MAX, |item, problems| {
                problems.text(item, CLAIM_TEXT_BYTES_MAX).map(str::to_owned)
            })
        });
        let algorithms = problems.optional(members, "algorithms", algorithms);
        let keys = problems.optional(members, "keys", key_source);
        let max_token_age_s = problems
            .optional(members, "max_token_age_s", |value, problems| problems.integer(value, TOKEN_AGE_S));
        let require = problems.optional(members, "require", require);
        let single_tenant =
            problems.optional(members, "single_tenant", |value, problems| problems.boolean(value));
        let hosts = problems.optional(members, "hosts", hosts);
        let claims = problems.optional(members, "claims", KeptClaims::read);
        let persons = problems.optional(members, "persons", Persons::read);
        let login = problems.optional(members, "login", Login::read);
        Some(Self {
            issuer: issuer?,
            audiences: audiences?.into_iter().collect(),
            algorithms: algorithms.unwrap_or_else(|| BTreeSet::from([Algorithm::Rs256])),
            keys: keys.unwrap_or(KeySource::Discovery),
            max_token_age_s: max_token_age_s.unwrap_or(TOKEN_AGE_S_DEFAULT),
            require: require.unwrap_or_default(),
            single_tenant: single_tenant.unwrap_or(false),
            hosts: hosts.unwrap_or_default(),
            claims: claims.unwrap_or_default(),
            persons,
            login,
        })
    }

    /// Whether its issuer can be called, if a node calls it.
    fn check_issuer(&self, problems: &mut Problems) {
        let is_called = self.keys == KeySource::Discovery || self.login.is_some();
        if is_called && let Err(error) = HttpsUrl::parse(&self.issuer) {
            problems.add_in("issuer", error.to_string());
        }
    }

    /// Whether it says whom it trusts.
    fn check_trust(&self, problems: &mut Problems) {
        let shared = || COMMON_CLAIMS.iter().chain(&KIND_CLAIMS).chain(&SHARED);
        let is_shared = |name: &str| shared().any(|shared| *shared == name);
        if self.tenants().contains(CONSUMERS) {
            problems.add_in(
                "require",
                "everybody can have an account in this tenant: expected that of a company",
            );
        }
        let names_owner = self.single_tenant || self.require.keys().any(|name| !is_shared(name.as_str()));
        let Some(persons) = &self.persons else {
            if !names_owner {
                let msg = "many issuers give a token to anybody: expected a claim that names the owner, such as \
                           `repository_owner_id` or `tid`; or `\"single_tenant\": true` if the issuer has no others";
                problems.add_in("require", msg);
            }
            return;
        };
        if self.audiences.len() != 1 {
            problems.add_in("audiences", "expected exactly one for a provider of persons: the client id");
        }
        let needs_domains = persons.label.as_str() == EMAIL || !names_owner;
        if persons.domains.is_empty() && needs_domains {
            let msg = "many issuers have users of anybody: expected `domains` if the label is `email`; with another \
                       label also `require`, or `\"single_tenant\": true` if the issuer has no others";
            problems.add_in("persons", msg);
        }
        if persons.subject == SubjectClaim::Oid && self.tenants().len() != 1 {
            problems.add_in(
                "require",
                "expected one `tid`, that of the issuer: `oid` is unique in one tenant of Entra only (`subject`)",
            );
        }
        let names_tenant = self.require.keys().any(|name| TENANT.contains(&name.as_str()));
        if persons.verified_by == VerifiedBy::Tenant && !names_tenant {
            problems.add_in(
                "require",
                "expected `tid` or `hd`, as the tenant verifies addresses (`verified_by`)",
            );
        }
    }

    /// Whether its login is that of its persons.
    fn check_login(&self, problems: &mut Problems) {
        let Some(login) = &self.login else { return };
        if self.persons.is_none() {
            problems.add_in("login", "expected none without `persons`: machines show a token");
        } else if !self.audiences.contains(&login.client_id) {
            problems.add_in("login", "expected a `client_id` that is the one of `audiences`");
        }
    }
}

impl Persons {
    fn read(value: &Value, problems: &mut Problems) -> Option<Self> {
        let known = ["label", "domains", "verified_by", "subject", "max_claims_age_s"];
        let members = problems.object(value, &known)?;
        let label = problems.required(members, "label", |value, problems| {
            let text = problems.text(value, CLAIM_TEXT_BYTES_MAX)?;
            ClaimName::read(text, problems)
        });
        let domains = problems.optional(members, "domains", |value, problems| {
            problems.list(value, 0..=PERSON_DOMAINS_MAX, domain)
        });
        let verified_by = problems.optional(members, "verified_by", |value, problems| match value.as_str() {
            Some("email_verified") => Some(VerifiedBy::EmailVerified),
            Some("tenant") => Some(VerifiedBy::Tenant),
            Some(_) | None => problems.none("expected `email_verified` or `tenant`"),
        });
        let subject = problems.optional(members, "subject", |value, problems| match value.as_str() {
            Some("sub") => Some(SubjectClaim::Sub),
            Some("oid") => Some(SubjectClaim::Oid),
            Some(_) | None => problems.none("expected `sub` or `oid`"),
        });
        let age = problems
            .optional(members, "max_claims_age_s", |value, problems| problems.integer(value, CLAIMS_AGE_S));
        let label = label?;
        if verified_by.is_some() && label.as_str() != EMAIL {
            problems.add_in("verified_by", "expected only with the label `email`");
        }
        Some(Self {
            subject: subject.unwrap_or(SubjectClaim::Sub),
            label,
            domains: domains.unwrap_or_default().into_iter().collect(),
            verified_by: verified_by.unwrap_or(VerifiedBy::EmailVerified),
            max_claims_age_s: age.unwrap_or(CLAIMS_AGE_S_DEFAULT),
        })
    }

    /// The label of the person that a payload names, in lower case.
    ///
    /// # Errors
    /// [`Reason::LabelInvalid`] if the claim is no string, or no label of at most 128 printable ASCII characters;
    /// [`Reason::EmailNotVerified`] if it is an address that nobody has verified; [`Reason::Domain`] if it has a domain
    /// that is not one of these.
    pub fn label(&self, payload: &Map<String, Value>) -> Result<String, Reason> {
        let text = self.label.find(payload).and_then(Value::as_str);
        let text = text.filter(|text| text.len() <= LOGIN_LABEL_BYTES_MAX).ok_or(Reason::LabelInvalid)?;
        let label = PersonLabel::parse(text).map_err(|_| Reason::LabelInvalid)?;
        let is_email = self.label.as_str() == EMAIL;
        if is_email && !self.is_verified(payload) {
            return Err(Reason::EmailNotVerified);
        }
        if is_email || !self.domains.is_empty() || label.as_str().contains('@') {
            let (user, domain) = label.as_str().rsplit_once('@').ok_or(Reason::LabelInvalid)?;
            if user.is_empty() {
                return Err(Reason::LabelInvalid);
            }
            if !self.domains.contains(domain) {
                return Err(Reason::Domain);
            }
        }
        Ok(label.as_str().to_owned())
    }

    /// Whether the address of a payload is that of the person.
    fn is_verified(&self, payload: &Map<String, Value>) -> bool {
        match self.verified_by {
            VerifiedBy::EmailVerified => payload.get("email_verified") == Some(&Value::Bool(true)),
            VerifiedBy::Tenant => {
                // Entra has written it in each of these ways.
                let is_true = [Value::Bool(true), Value::from(1), Value::from("1")];
                !payload.contains_key("tid")
                    || payload.get(ENTRA_VERIFIED).is_some_and(|value| is_true.contains(value))
            }
        }
    }

    /// What a label must be, for a message.
    pub(crate) fn wanted(&self) -> String {
        let domains: Vec<&str> = self.domains.iter().map(String::as_str).collect();
        let of = if domains.is_empty() {
            " without an `@`, as there are no `domains`".to_owned()
        } else {
            format!(" of {}", domains.join(", "))
        };
        let verified = match (self.label.as_str() == EMAIL, self.verified_by) {
            (false, VerifiedBy::EmailVerified | VerifiedBy::Tenant) => "",
            (true, VerifiedBy::EmailVerified) => ", with `email_verified`: true",
            (true, VerifiedBy::Tenant) => ", with `xms_edov`: true if there is a `tid`",
        };
        format!("printable ASCII in `{}`{of}{verified}", self.label)
    }
}

impl Login {
    fn read(value: &Value, problems: &mut Problems) -> Option<Self> {
        let known = ["client_id", "scopes", "redirect_uris", "loopback_port", "device"];
        let members = problems.object(value, &known)?;
        let client_id = problems.required(members, "client_id", |value, problems| {
            problems.text(value, CLAIM_TEXT_BYTES_MAX).map(str::to_owned)
        });
        let scopes = problems.optional(members, "scopes", scopes);
        let redirect_uris = problems.optional(members, "redirect_uris", |value, problems| {
            problems.list(value, 0..=REDIRECT_URIS_MAX, redirect_uri)
        });
        let port = problems.optional(members, "loopback_port", |value, problems| {
            let port = problems.integer(value, 1..=u64::from(u16::MAX))?;
            u16::try_from(port).ok()
        });
        let device = problems.optional(members, "device", |value, problems| problems.boolean(value));
        Some(Self {
            client_id: client_id?,
            scopes: scopes.unwrap_or_else(|| vec!["openid".to_owned()]),
            redirect_uris: redirect_uris.unwrap_or_default(),
            loopback_port: port,
            device: device.unwrap_or(false),
        })
    }
}

/// Whether a text has the form of a UUID.
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == UUID_CHARACTERS && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn issuer(value: &Value, problems: &mut Problems) -> Option<String> {
    let text = problems.text(value, ISSUER_BYTES_MAX)?;
    match url::check_compared(text) {
        Ok(()) if text.contains('?') => problems.none("expected a URL without a query"),
        Ok(()) => Some(text.to_owned()),
        Err(error) => problems.none(error.to_string()),
    }
}

fn algorithms(value: &Value, problems: &mut Problems) -> Option<BTreeSet<Algorithm>> {
    let listed = problems.list(value, 1..=Algorithm::ALL.len(), |item, problems| {
        match item.as_str().and_then(Algorithm::named) {
            Some(algorithm) => Some(algorithm),
            None => problems.none("expected `RS256`, `PS256`, `ES256` or `EdDSA`"),
        }
    })?;
    Some(listed.into_iter().collect())
}

fn key_source(value: &Value, problems: &mut Problems) -> Option<KeySource> {
    let expected = "expected `\"discovery\"`, `{\"url\": …}` or `{\"jwks\": …}`";
    match value {
        Value::String(text) if text == "discovery" => Some(KeySource::Discovery),
        Value::Object(members) if members.contains_key("jwks") => {
            problems.object(value, &["jwks"])?;
            problems.required(members, "jwks", |value, problems| {
                // The document is stored as it is written, and stays in the history.
                if has_private_key(value) {
                    return problems.none("a key is private or symmetric; expected public keys only");
                }
                match KeySet::parse(value.to_string().as_bytes()) {
                    Ok(keys) if keys.is_empty() => {
                        problems.none("expected at least one key that verifies tokens")
                    }
                    Ok(keys) => Some(KeySource::Fixed(keys)),
                    Err(error) => problems.none(error.to_string()),
                }
            })
        }
        Value::Object(members) if members.contains_key("url") => {
            problems.object(value, &["url", "ca"])?;
            let url = problems.required(members, "url", https_url);
            let ca = problems.optional(members, "ca", certificates);
            Some(KeySource::Url { url: url?, ca })
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => problems.none(expected),
    }
}

fn https_url(value: &Value, problems: &mut Problems) -> Option<String> {
    let text = problems.text(value, PROVIDER_URL_BYTES_MAX)?;
    HttpsUrl::parse(text).map_err(|error| problems.add(error.to_string())).ok()?;
    Some(text.to_owned())
}

/// Certificates as PEM, by their form: the TLS client parses them.
fn certificates(value: &Value, problems: &mut Problems) -> Option<String> {
    let text = value.as_str().filter(|text| text.len() <= PROVIDER_CA_BYTES_MAX);
    let is_pem = |text: &&str| {
        let is_whole = text.trim_start().starts_with("-----BEGIN CERTIFICATE-----")
            && text.trim_end().ends_with("-----END CERTIFICATE-----");
        is_whole && !text.contains("PRIVATE KEY")
    };
    match text.filter(is_pem) {
        Some(text) => Some(text.to_owned()),
        None => problems.none(format!("expected PEM certificates of at most {PROVIDER_CA_BYTES_MAX} bytes")),
    }
}

fn require(value: &Value, problems: &mut Problems) -> Option<BTreeMap<ClaimName, BTreeSet<ValuePattern>>> {
    let claims = problems.named(value, 0..=MATCH_CLAIMS_MAX, |name, value, problems| {
        if NOT_OWNERS.contains(&name) {
            problems.add("this claim does not say whose the token is; expected one that names the owner");
        }
        let values = problems.list(value, 1..=MATCH_VALUES_MAX, |item, problems| {
            ValuePattern::read(item, Star::Never, problems)
        });
        Some((ClaimName::read(name, problems)?, values?.into_iter().collect()))
    })?;
    Some(claims.into_iter().collect())
}

fn hosts(value: &Value, problems: &mut Problems) -> Option<BTreeSet<String>> {
    let listed = problems.list(value, 0..=PROVIDER_HOSTS_MAX, |item, problems| {
        let text = problems.text(item, PROVIDER_URL_BYTES_MAX)?;
        url::host(text).map_err(|error| problems.add(error.to_string())).ok()
    })?;
    Some(listed.into_iter().collect())
}

fn domain(value: &Value, problems: &mut Problems) -> Option<String> {
    let text = problems.text(value, LOGIN_LABEL_BYTES_MAX)?;
    match url::host(text) {
        Ok(domain) if domain == text => Some(domain),
        Ok(_) | Err(_) => problems.none("expected a domain in lower case, such as `example.com`"),
    }
}

/// Scopes as RFC 6749 spells them.
fn scopes(value: &Value, problems: &mut Problems) -> Option<Vec<String>> {
    let is_scope = |text: &&str| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte));
    let listed = problems.list(value, 1..=LOGIN_SCOPES_MAX, |item, problems| {
        match problems.text(item, CLAIM_TEXT_BYTES_MAX).filter(is_scope) {
            Some(scope) => Some(scope.to_owned()),
            None => problems.none("expected a scope: printable ASCII without spaces"),
        }
    })?;
    if !listed.iter().any(|scope| scope == "openid") {
        problems.add("expected `openid` among them: without it the provider sends no ID token");
    }
    Some(listed)
}

fn redirect_uri(value: &Value, problems: &mut Problems) -> Option<String> {
    let text = problems.text(value, PROVIDER_URL_BYTES_MAX)?;
    let is_usable = HttpsUrl::parse(text).is_ok() || is_loopback(text);
    if is_usable {
        return Some(text.to_owned());
    }
    problems.none("expected an `https` URL, or `http` on a loopback address, without user and fragment")
}
