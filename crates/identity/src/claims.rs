//! Claims: their names, their values, and what is kept of a token with its session.
//!
//! A token may hold hundreds of groups. A provider says which claims are kept, and which of their values; only these can
//! make somebody a member of a role.
//!
//! A claim is named by its name (`groups`), or by a JSON pointer if it is inside another one
//! (`/kubernetes.io/serviceaccount/uid`; a `/` in a name is `~1`). A pointer goes through objects only: the place of an
//! element in a list says nothing.
//!
//! **Invariants:** a claim has one name. A kept value is a string, a boolean or an integer that the token has; values are
//! equal only if their JSON types are. The same set of values has the same text, in whatever order the provider sends it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use concord_model::{
    error::Violation,
    limits::{
        CLAIM_TEXT_BYTES_MAX, CLAIM_VALUE_BYTES_MAX, CLAIMS_BYTES_MAX, KEPT_CLAIMS_MAX, KEPT_VALUES_MAX,
    },
    unseen::is_unseen,
};
use serde_json::{Map, Number, Value};

use crate::{
    fields::{Members, Problems, finish},
    json::{self, JsonError},
};

/// Claims that differ in each token of one person. If one were kept, each login would change what is known of them.
const PASSING: [&str; 8] = ["exp", "iat", "nbf", "jti", "nonce", "at_hash", "c_hash", "auth_time"];

/// The name of a claim, or a pointer to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimName(String);

/// Why a text names no claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimNameError {
    /// Empty, too long, or with characters that a reader does not see.
    #[error("the name of a claim has 1 to {CLAIM_TEXT_BYTES_MAX} bytes and no unseen characters")]
    Text,
    /// A pointer with an empty segment, or with a `~` that stands for nothing.
    #[error("a JSON pointer has no empty segments, and `~` only as `~0` (for `~`) or `~1` (for `/`)")]
    Pointer,
    /// A pointer to a claim that has a name: two names of one claim would be compared as two claims.
    #[error("a claim that is not inside another one is named without the `/` at the beginning")]
    NeedlessPointer,
}

impl ClaimName {
    /// Parses the name of a claim; if it begins with `/`, it is a JSON pointer.
    ///
    /// # Errors
    /// When the text is no name, or names a claim that has a shorter name.
    pub fn parse(text: &str) -> Result<Self, ClaimNameError> {
        if !(1..=CLAIM_TEXT_BYTES_MAX).contains(&text.len()) || text.contains(is_unseen) {
            return Err(ClaimNameError::Text);
        }
        if let Some(pointer) = text.strip_prefix('/') {
            let is_escaped =
                |segment: &str| segment.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            if !pointer.split('/').all(|segment| !segment.is_empty() && is_escaped(segment)) {
                return Err(ClaimNameError::Pointer);
            }
            // `/~1a` is the one way to write the claim `/a`.
            if !pointer.contains('/') && !pointer.starts_with("~1") {
                return Err(ClaimNameError::NeedlessPointer);
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The text that was parsed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names of the members that lead to it, from the outermost.
    fn segments(&self) -> Vec<String> {
        match self.0.strip_prefix('/') {
            Some(pointer) => {
                pointer.split('/').map(|segment| segment.replace("~1", "/").replace("~0", "~")).collect()
            }
            None => vec![self.0.clone()],
        }
    }

    /// The name of the claim of the token that it is, or is inside of.
    #[must_use]
    pub fn outermost(&self) -> String {
        self.segments().swap_remove(0)
    }

    /// The claim's value in a payload.
    #[must_use]
    pub fn find<'v>(&self, payload: &'v Map<String, Value>) -> Option<&'v Value> {
        if !self.0.starts_with('/') {
            return payload.get(&self.0);
        }
        let segments = self.segments();
        let (first, rest) = segments.split_first()?;
        rest.iter().try_fold(payload.get(first)?, |value, segment| value.as_object()?.get(segment))
    }

    /// Reads a name in a document.
    pub(crate) fn read(text: &str, problems: &mut Problems) -> Option<Self> {
        Self::parse(text).map_err(|error| problems.add(error.to_string())).ok()
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value that can be kept and compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scalar {
    /// `true` or `false`.
    Boolean(bool),
    /// An integer, by its digits: `-?(0|[1-9][0-9]*)`, and not `-0`. Each integer has one such text.
    Integer(String),
    /// A string.
    Text(String),
}

impl Scalar {
    /// The scalar that a value is. `None` for other numbers, null, lists and objects.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(boolean) => Some(Self::Boolean(*boolean)),
            Value::Number(number) => {
                let text = number.to_string();
                let digits = text.strip_prefix('-').unwrap_or(&text);
                let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit()) && text != "-0";
                is_integer.then_some(Self::Integer(text))
            }
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// The JSON value.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Boolean(boolean) => Value::Bool(*boolean),
            // A number keeps its digits, however many it has.
            Self::Integer(digits) => digits.parse::<Number>().map_or(Value::Null, Value::Number),
            Self::Text(text) => Value::String(text.clone()),
        }
    }
}

/// Where the pattern of a value may have a `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Star {
    /// Nowhere: the value is the whole one.
    Never,
    /// At the end, after at least one character.
    AtEnd,
    /// At the end, right after `/` or `:`. So `repo:acme/shop*` can't match `repo:acme/shop-evil`.
    AfterSeparator,
}

/// What a value is compared with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValuePattern {
    /// This value.
    Exact(Scalar),
    /// Strings that begin with this text.
    Prefix(String),
}

impl ValuePattern {
    /// Whether a value is this one, or has this prefix.
    #[must_use]
    pub fn matches(&self, value: &Scalar) -> bool {
        match (self, value) {
            (Self::Exact(own), other) => own == other,
            (Self::Prefix(prefix), Scalar::Text(text)) => text.starts_with(prefix.as_str()),
            (Self::Prefix(_), Scalar::Boolean(_) | Scalar::Integer(_)) => false,
        }
    }

    /// Reads a value or pattern in a document.
    pub(crate) fn read(value: &Value, star: Star, problems: &mut Problems) -> Option<Self> {
        let Some(scalar) = Scalar::of(value) else {
            return problems.none("expected a string, a boolean or an integer");
        };
        let text = match &scalar {
            Scalar::Text(_) => problems.text(value, CLAIM_VALUE_BYTES_MAX)?,
            Scalar::Integer(digits) if digits.len() > CLAIM_VALUE_BYTES_MAX => {
                return problems
                    .none(format!("expected an integer of at most {CLAIM_VALUE_BYTES_MAX} digits"));
            }
            Scalar::Integer(_) | Scalar::Boolean(_) => return Some(Self::Exact(scalar)),
        };
        let Some((prefix, "")) = text.split_once('*') else {
            let msg = "expected a `*` at the end only";
            return if text.contains('*') { problems.none(msg) } else { Some(Self::Exact(scalar)) };
        };
        match star {
            Star::AtEnd if !prefix.is_empty() => Some(Self::Prefix(prefix.to_owned())),
            Star::AtEnd => problems.none("expected characters before the `*`; `true` keeps every value"),
            Star::AfterSeparator if prefix.ends_with(['/', ':']) => Some(Self::Prefix(prefix.to_owned())),
            Star::AfterSeparator => problems.none("expected the `*` right after a `/` or a `:`"),
            Star::Never => problems.none("expected a whole value, without a `*`"),
        }
    }
}

/// A pattern as it is written.
impl fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(scalar) => scalar.to_value().fmt(f),
            Self::Prefix(prefix) => Value::String(format!("{prefix}*")).fmt(f),
        }
    }
}

/// Patterns as a message names them.
pub(crate) fn shown_patterns<'a>(patterns: impl IntoIterator<Item = &'a ValuePattern>) -> String {
    let texts: Vec<String> = patterns.into_iter().map(|pattern| json::shown(&pattern.to_string())).collect();
    if texts.len() == 1 { texts.concat() } else { format!("one of {}", texts.join(", ")) }
}

/// The value of a kept claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// One value.
    One(Scalar),
    /// The values of a list that were kept; at least one.
    Many(BTreeSet<Scalar>),
}

impl Claim {
    /// Its values.
    pub fn values(&self) -> impl Iterator<Item = &Scalar> {
        let (one, many) = match self {
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The JSON value.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::One(one) => one.to_value(),
            Self::Many(many) => many.iter().map(Scalar::to_value).collect(),
        }
    }
}

/// What is kept of a token's claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims(BTreeMap<ClaimName, Claim>);

/// Why a text is not that of kept claims.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimsError {
    /// Not a JSON object, or too long.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A member is no claim.
    #[error("the claim `{0}` has no name or value that is kept")]
    Claim(String),
}

impl Claims {
    /// The claim of this name.
    #[must_use]
    pub fn get(&self, name: &ClaimName) -> Option<&Claim> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ClaimName, &Claim)> {
        self.0.iter()
    }

    /// The text with which they are stored: a JSON object, sorted by name, lists sorted. Equal claims have equal texts.
    #[must_use]
    pub fn to_text(&self) -> String {
        let members: Members =
            self.iter().map(|(name, claim)| (name.as_str().to_owned(), claim.to_value())).collect();
        Value::Object(members).to_string()
    }

    /// The claims of a stored text.
    ///
    /// # Errors
    /// When the text is no JSON object, is longer than 4 KiB, or has a member that [`Self::to_text`] never writes.
    pub fn from_text(text: &str) -> Result<Self, ClaimsError> {
        let mut claims = Self::default();
        for (name, value) in json::object(text.as_bytes(), CLAIMS_BYTES_MAX, 2)? {
            let claim = match &value {
                Value::Array(items) if !items.is_empty() => {
                    items.iter().map(Scalar::of).collect::<Option<_>>().map(Claim::Many)
                }
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_) => Scalar::of(&value).map(Claim::One),
            };
            let (Ok(parsed), Some(claim)) = (ClaimName::parse(&name), claim) else {
                return Err(ClaimsError::Claim(json::shown(&name)));
            };
            claims.0.insert(parsed, claim);
        }
        Ok(claims)
    }
}

/// Which claims a provider keeps: names, and for each the patterns of its values, or none for any value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptClaims(BTreeMap<ClaimName, Option<Vec<ValuePattern>>>);

/// More is to be kept than fits into a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kept claims have {bytes} bytes, more than {CLAIMS_BYTES_MAX}; `{biggest}` has most: keep only its values that \
     roles match"
)]
pub struct ClaimsTooLarge {
    /// The claim with the longest text.
    pub biggest: ClaimName,
    /// The bytes of all.
    pub bytes: usize,
}

impl KeptClaims {
    /// The member `claims` of a provider: `{"groups": ["concord-*"], "environment": true}`.
    ///
    /// # Errors
    /// All problems of names and patterns.
    pub fn parse(value: &Value) -> Result<Self, Vec<Violation>> {
        finish(|problems| Self::read(value, problems))
    }

    pub(crate) fn read(value: &Value, problems: &mut Problems) -> Option<Self> {
        let kept = problems.named(value, 0..=KEPT_CLAIMS_MAX, |name, value, problems| {
            if PASSING.contains(&name) {
                problems.add("this claim differs in each token, and can't be kept");
            }
            let patterns = match value {
                Value::Bool(true) => None,
                Value::Array(_) => Some(problems.list(value, 1..=KEPT_VALUES_MAX, |item, problems| {
                    ValuePattern::read(item, Star::AtEnd, problems)
                })?),
                Value::Null | Value::Bool(false) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                    return problems.none("expected a list of values, or `true` to keep any value");
                }
            };
            Some((ClaimName::read(name, problems)?, patterns))
        })?;
        Some(Self(kept.into_iter().collect()))
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &ClaimName> {
        self.0.keys()
    }

    /// What of stored claims would still be kept. The provider may keep less than when they were stored, and what it keeps
    /// no more gives nobody a role.
    #[must_use]
    pub fn cut(&self, claims: &Claims) -> Claims {
        let still_kept = claims.iter().filter_map(|(name, claim)| {
            let patterns = self.0.get(name)?.as_deref();
            let claim = match claim {
                Claim::One(one) => keeps(patterns, one).then(|| Claim::One(one.clone()))?,
                Claim::Many(many) => {
                    many_of(many.iter().filter(|value| keeps(patterns, value)).cloned().collect())?
                }
            };
            Some((name.clone(), claim))
        });
        Claims(still_kept.collect())
    }

    /// What of a payload is kept.
    ///
    /// # Errors
    /// When it has more than 4 KiB.
    pub fn of(&self, payload: &Map<String, Value>) -> Result<Claims, ClaimsTooLarge> {
        let found = self.0.iter().filter_map(|(name, patterns)| {
            Some((name.clone(), kept(name.find(payload)?, patterns.as_deref())?))
        });
        let claims = Claims(found.collect());
        let bytes = claims.to_text().len();
        let length = |claim: &Claim| claim.to_value().to_string().len();
        let biggest = claims.iter().max_by_key(|(_, claim)| length(claim));
        match biggest {
            Some((biggest, _)) if bytes > CLAIMS_BYTES_MAX => {
                Err(ClaimsTooLarge { biggest: biggest.clone(), bytes })
            }
            Some(_) | None => Ok(claims),
        }
    }
}

/// Whether a value is kept: it has one of the patterns, or there are none.
fn keeps(patterns: Option<&[ValuePattern]>, value: &Scalar) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(value)))
}

/// The part of a claim that is kept.
fn kept(value: &Value, patterns: Option<&[ValuePattern]>) -> Option<Claim> {
    if let Value::Array(items) = value {
        let values = items.iter().filter_map(Scalar::of);
        return many_of(values.filter(|value| keeps(patterns, value)).collect());
    }
    Scalar::of(value).filter(|value| keeps(patterns, value)).map(Claim::One)
}

/// A list of values. One of which nothing is kept is as absent as a value that is not.
fn many_of(values: BTreeSet<Scalar>) -> Option<Claim> {
    (!values.is_empty()).then_some(Claim::Many(values))
}
