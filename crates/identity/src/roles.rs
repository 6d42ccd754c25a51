//! The members of a role: which kept claims of which provider make one.
//!
//! ```json
//! {"members": [{"provider": "github", "match": {"repository_id": ["7712"], "environment": ["prod"]}},
//!              {"provider": "gitlab", "match": {"project_path": ["acme/shop/*"], "ref_protected": ["true"]}},
//!              {"provider": "corp", "match": {"groups": ["concord-platform"]}}],
//!  "session_s": 3600}
//! ```
//!
//! All claims of a `match` must hold, each by one of its values. A list claim holds if it contains one. JSON types must be
//! equal: `7712` is not `"7712"`. A `*` stands at the end, right after `/` or `:`, and never alone.
//!
//! The members `grants` and `quota` of a role are those of an access key, and are read with them.
//!
//! **Invariants:** a claim that is absent never matches, and there is no `not`: who has fewer claims is a member of no more
//! roles. A `match` is never empty. The result and its explanation are made by one comparison.

use std::collections::{BTreeMap, BTreeSet};

use concord_model::{
    error::Violation,
    key::Key,
    limits::{
        KEY_BYTES_MAX, MATCH_CLAIMS_MAX, MATCH_VALUES_MAX, ROLE_MEMBERS_MAX, SESSION_S, SESSION_S_DEFAULT,
    },
};
use serde_json::Value;

use crate::{
    claims::{Claim, ClaimName, Claims, Star, ValuePattern, shown_patterns},
    fields::{Problems, finish},
    json::shown,
};

/// Claims that name the owner of something, and not which of its things: any repository, project or user of the owner has
/// the same.
pub const OWNER_CLAIMS: [&str; 13] = [
    "repository_owner",
    "repository_owner_id",
    "enterprise",
    "enterprise_id",
    "namespace_path",
    "namespace_id",
    "root_namespace_id",
    "organization_id",
    "organization_slug",
    "terraform_organization_id",
    "workspaceUuid",
    "tid",
    "hd",
];

/// Claims of a job that any repository, project or user of an owner can have.
pub const COMMON_CLAIMS: [&str; 12] = [
    "ref",
    "ref_type",
    "ref_protected",
    "ref_path",
    "base_ref",
    "head_ref",
    "event_name",
    "pipeline_source",
    "runner_environment",
    "repository_visibility",
    "workflow",
    "email_verified",
];

/// Claims that say of which kind a token is.
pub const KIND_CLAIMS: [&str; 5] = ["acr", "amr", "idtyp", "typ", "ver"];

/// Who has a role, and how long a session with it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Who one of these matches has the role.
    pub members: Vec<Member>,
    /// Seconds. A session of several roles lasts as long as the shortest says.
    pub session_s: u64,
}

/// Some users or machines of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of the provider. Another one with the same issuer is another one.
    pub provider: Key,
    /// The claims that must hold, each by one of its values; at least one.
    matches: BTreeMap<ClaimName, BTreeSet<ValuePattern>>,
}

/// What an administrator may have overlooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// The match names the owner only, or less: every repository, project or user of the owner is a member.
    OnlyOwner,
}

impl Hint {
    /// What to say of it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::OnlyOwner => {
                "the match names only the owner, or less: every repository, project or user there has the role; match \
                 the id of a repository or project, an environment or a group as well"
            }
        }
    }
}

/// How a member compares with the claims of somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberCheck {
    /// The member's provider.
    pub provider: Key,
    /// Whether that is who the claims are from.
    pub is_provider: bool,
    /// Each claim of the match.
    pub claims: Vec<ClaimCheck>,
    /// Whether all of it holds.
    pub holds: bool,
}

/// How a claim of a match compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimCheck {
    /// The claim.
    pub claim: ClaimName,
    /// The values of the match.
    pub wanted: String,
    /// What is kept of the token's claim; `absent` if nothing is.
    pub seen: String,
    /// Whether one of the values is there.
    pub holds: bool,
}

impl Membership {
    /// Reads `members` and `session_s` of the document of a role. Both may be absent.
    ///
    /// # Errors
    /// All problems, each with its member.
    pub fn parse(document: &Value) -> Result<Self, Vec<Violation>> {
        finish(|problems| {
            let document = problems.object(document, &["members", "session_s"])?;
            let members = problems.optional(document, "members", |value, problems| {
                problems.list(value, 0..=ROLE_MEMBERS_MAX, Member::read)
            });
            let session_s = problems
                .optional(document, "session_s", |value, problems| problems.integer(value, SESSION_S));
            let session_s = session_s.unwrap_or(SESSION_S_DEFAULT);
            Some(Self { members: members.unwrap_or_default(), session_s })
        })
    }

    /// Whether somebody with these claims of this provider has the role.
    #[must_use]
    pub fn has(&self, provider: &Key, claims: &Claims) -> bool {
        self.members.iter().any(|member| member.matches(provider, claims))
    }
}

impl Member {
    fn read(value: &Value, problems: &mut Problems) -> Option<Self> {
        let members = problems.object(value, &["provider", "match"])?;
        let provider = problems.required(members, "provider", |value, problems| {
            let name = problems.text(value, KEY_BYTES_MAX)?;
            Key::parse(name).map_err(|error| problems.add(error.to_string())).ok()
        });
        let matches = problems.required(members, "match", |value, problems| {
            problems.named(value, 1..=MATCH_CLAIMS_MAX, |name, value, problems| {
                let values = problems.list(value, 1..=MATCH_VALUES_MAX, |item, problems| {
                    ValuePattern::read(item, Star::AfterSeparator, problems)
                });
                Some((ClaimName::read(name, problems)?, values?.into_iter().collect()))
            })
        });
        Some(Self { provider: provider?, matches: matches?.into_iter().collect() })
    }

    /// Whether somebody with these claims of this provider is the member.
    #[must_use]
    pub fn matches(&self, provider: &Key, claims: &Claims) -> bool {
        self.provider == *provider && self.compared(claims).all(|compared| compared.holds)
    }

    /// Why somebody with these claims is the member, or is not.
    #[must_use]
    pub fn explain(&self, provider: &Key, claims: &Claims) -> MemberCheck {
        let checks = self.compared(claims).map(|compared| ClaimCheck {
            claim: compared.name.clone(),
            wanted: shown_patterns(compared.wanted),
            seen: compared.seen.map_or("absent".to_owned(), |claim| shown(&claim.to_value().to_string())),
            holds: compared.holds,
        });
        let is_provider = self.provider == *provider;
        let claims: Vec<ClaimCheck> = checks.collect();
        let holds = is_provider && claims.iter().all(|check| check.holds);
        MemberCheck { provider: self.provider.clone(), is_provider, claims, holds }
    }

    /// Each claim of the match beside that of somebody.
    fn compared<'a>(&'a self, claims: &'a Claims) -> impl Iterator<Item = Compared<'a>> {
        self.matches.iter().map(|(name, wanted)| {
            let seen = claims.get(name);
            let is_wanted = |value| wanted.iter().any(|pattern| pattern.matches(value));
            let holds = seen.is_some_and(|claim| claim.values().any(is_wanted));
            Compared { name, wanted, seen, holds }
        })
    }

    /// How many values its claims are compared with.
    #[must_use]
    pub fn value_count(&self) -> usize {
        self.matches.values().map(BTreeSet::len).sum()
    }

    /// What its administrator may have overlooked.
    #[must_use]
    pub fn hints(&self) -> Vec<Hint> {
        let is_common = |name: &ClaimName| {
            COMMON_CLAIMS.iter().chain(&KIND_CLAIMS).any(|common| *common == name.as_str())
        };
        let (owners, others): (Vec<_>, Vec<_>) =
            self.matches.iter().partition(|(name, values)| names_owner(name, values));
        let is_only_owner = !owners.is_empty() && others.iter().all(|(name, _)| is_common(name));
        if is_only_owner { vec![Hint::OnlyOwner] } else { Vec::new() }
    }
}

struct Compared<'a> {
    name: &'a ClaimName,
    wanted: &'a BTreeSet<ValuePattern>,
    seen: Option<&'a Claim>,
    holds: bool,
}

/// Whether a claim of a match holds for everything of an owner, or of all owners: `repository_owner`, or `sub` with
/// `repo:acme/*`, `repo:*` or `system:serviceaccount:*`.
fn names_owner(name: &ClaimName, values: &BTreeSet<ValuePattern>) -> bool {
    let is_of_owner = |pattern: &ValuePattern| match pattern {
        ValuePattern::Exact(_) => false,
        ValuePattern::Prefix(prefix) => prefix.find('/').is_none_or(|place| place == prefix.len() - 1),
    };
    OWNER_CLAIMS.contains(&name.as_str()) || values.iter().any(is_of_owner)
}
