//! Environments: the rules for changes of all definitions whose keys begin with one name.
//!
//! A definition belongs to the environment that its key names before the first dot: `prod.limits` to `prod`. If there is
//! no record of that environment, or no dot, it belongs to `default`, which need not have a record either. So a
//! definition has the rules of an environment from its first moment, and no record says which environment it is of.
//!
//! ```text
//! prod.limits ── a record of `prod`? ── its rules
//!                 └ no ── a record of `default`? ── its rules
//!                          └ no ── none
//! ```
//!
//! **Invariant:** the log's time of a change decides which freezes apply to it. No clock is read here.

use std::{borrow::Borrow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    key::Key,
    limits::{ENVIRONMENT_NAME_BYTES_MAX, SHORT_FREEZE_US_MAX},
    time::Timestamp,
};

/// The environment of the definitions that no other record is for.
pub const DEFAULT_ENVIRONMENT: &str = "default";

/// The name of the environment that a definition's key names; `None` when it names none.
#[must_use]
pub fn environment_name(definition: &str) -> Option<&str> {
    definition.split_once('.').map(|(name, _)| name)
}

/// The name of an environment: a key without a dot, of at most [`ENVIRONMENT_NAME_BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvironmentName(Key);

/// Why a text is no name of an environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of an environment is 1 to {ENVIRONMENT_NAME_BYTES_MAX} characters of A-Z, a-z, 0-9, `_`, `~`, `-`, the first \
     a letter or a digit"
)]
pub struct EnvironmentNameError;

impl EnvironmentName {
    /// Parses a name.
    ///
    /// # Errors
    /// When the text is empty, too long or holds a dot or another character outside the alphabet.
    pub fn parse(text: &str) -> Result<Self, EnvironmentNameError> {
        let is_name = text.len() <= ENVIRONMENT_NAME_BYTES_MAX && !text.contains('.');
        let key = Key::parse(text).ok().filter(|_| is_name);
        key.map(Self).ok_or(EnvironmentNameError)
    }

    /// The name as a key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0
    }

    /// The name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Serialize for EnvironmentName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for EnvironmentName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(Key::deserialize(from)?.as_str()).map_err(de::Error::custom)
    }
}

impl Borrow<str> for EnvironmentName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for EnvironmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for EnvironmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Whether definitions and configs of an environment may be changed without a change request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direct {
    /// They may.
    #[default]
    Allow,
    /// They may not.
    Refuse,
}

/// A time in which nothing of an environment changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Freeze {
    /// Its first moment.
    pub from: Timestamp,
    /// The first moment after it.
    pub until: Timestamp,
}

impl Freeze {
    /// Whether it has a moment of a time, given by its first and its last moment.
    #[must_use]
    pub fn overlaps(&self, first: Timestamp, last: Timestamp) -> bool {
        self.from <= last && first < self.until
    }

    /// Whether it is short and near, seen from a time.
    fn is_short(&self, at: Timestamp) -> bool {
        let within = |from: Timestamp, to: Timestamp| to.0.saturating_sub(from.0) <= SHORT_FREEZE_US_MAX;
        within(at, self.from) && within(self.from.max(at), self.until)
    }
}

/// The rules of an environment. An environment without a record of its own or of `default` has those of
/// [`Environment::default`]: everything is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Whether definitions and configs may be changed without a change request.
    pub direct: Direct,
    /// How many persons must approve a change request.
    pub approvals: u8,
    /// When nothing changes, whichever key asks.
    pub freezes: Vec<Freeze>,
}

impl Environment {
    /// When the freezes end that have a moment of a time, given by its first and its last moment; `None` when none has.
    #[must_use]
    pub fn frozen_until(&self, first: Timestamp, last: Timestamp) -> Option<Timestamp> {
        let frozen = self.freezes.iter().filter(|freeze| freeze.overlaps(first, last));
        frozen.map(|freeze| freeze.until).max()
    }

    /// Whether it has all freezes that another one has, but those that are over.
    #[must_use]
    pub fn keeps_freezes(&self, before: &Self, at: Timestamp) -> bool {
        before.freezes.iter().all(|freeze| freeze.until <= at || self.freezes.contains(freeze))
    }

    /// Whether it has all that another one has but freezes that are over, and adds nothing but short freezes: what one
    /// person may do in an emergency, where every other change needs another person's approval.
    #[must_use]
    pub fn only_adds_short_freezes(&self, before: &Self, at: Timestamp) -> bool {
        let Self { direct, approvals, freezes } = self;
        let is_allowed = |freeze: &Freeze| before.freezes.contains(freeze) || freeze.is_short(at);
        (direct, approvals) == (&before.direct, &before.approvals)
            && self.keeps_freezes(before, at)
            && freezes.iter().all(is_allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * 60 * 1_000_000;

    fn freeze(from: u64, until: u64) -> Freeze {
        Freeze { from: Timestamp(from), until: Timestamp(until) }
    }

    fn with(freezes: &[(u64, u64)]) -> Environment {
        let freezes = freezes.iter().map(|(from, until)| freeze(*from, *until)).collect();
        Environment { freezes, ..Environment::default() }
    }

    #[test]
    fn a_name_is_a_key_without_a_dot() {
        for good in ["a", "0", "Prod", "prod-eu_1~", &"x".repeat(64), "default"] {
            assert_eq!(EnvironmentName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a.b", "a.", ".", "-a", "a b", "prod/x", "ä", &"x".repeat(65)] {
            assert_eq!(EnvironmentName::parse(bad), Err(EnvironmentNameError), "{bad:?}");
        }
        let stored = postcard::to_stdvec("a.b").unwrap();
        assert!(postcard::from_bytes::<EnvironmentName>(&stored).is_err(), "checked again");
    }

    #[test]
    fn a_definition_names_its_environment_before_the_first_dot() {
        assert_eq!(environment_name("prod.limits.eu"), Some("prod"));
        assert_eq!(environment_name("prod."), Some("prod"));
        assert_eq!(environment_name("prod"), None);
        assert_eq!(environment_name("prod-limits"), None);
        assert_eq!(environment_name("Prod.limits"), Some("Prod"), "another one than `prod`");
    }

    #[test]
    fn a_freeze_has_its_first_moment_and_not_its_end() {
        let environment = with(&[(10, 20), (15, 30), (40, 41)]);
        let until = |first, last| environment.frozen_until(Timestamp(first), Timestamp(last)).map(|at| at.0);
        assert_eq!((until(0, 9), until(0, 10), until(9, 14)), (None, Some(20), Some(20)));
        assert_eq!((until(14, 15), until(29, 29), until(30, 39)), (Some(30), Some(30), None));
        assert_eq!((until(40, 40), until(41, 50), until(0, 100)), (Some(41), None, Some(41)));
    }

    #[test]
    fn only_short_and_near_freezes_are_added_alone() {
        let now = 1000 * HOUR;
        let before = with(&[(now - HOUR, now + 100 * HOUR), (now - 9, now)]);
        let adds = |freezes: &[(u64, u64)]| {
            let kept = [(now - HOUR, now + 100 * HOUR)];
            with(&[&kept, freezes].concat()).only_adds_short_freezes(&before, Timestamp(now))
        };
        assert!(adds(&[]), "one that is over goes");
        assert!(adds(&[(now, now + 24 * HOUR)]));
        assert!(adds(&[(now + 24 * HOUR, now + 48 * HOUR)]));
        assert!(
            adds(&[(now - HOUR, now + 24 * HOUR), (now + 1, now + 2)]),
            "its part that is over does not count"
        );
        for longer in [(now, now + 24 * HOUR + 1), (now + 24 * HOUR + 1, now + 24 * HOUR + 2), (0, u64::MAX)]
        {
            assert!(!adds(&[longer]), "{longer:?}");
        }
        let at = Timestamp(now);
        assert!(!with(&[]).only_adds_short_freezes(&before, at), "one is ended early");
        let shorter = with(&[(now - HOUR, now + 99 * HOUR)]);
        assert!(!shorter.only_adds_short_freezes(&before, at));
        for other in [
            Environment { direct: Direct::Refuse, ..before.clone() },
            Environment { approvals: 1, ..before.clone() },
        ] {
            assert!(!other.only_adds_short_freezes(&before, at));
            assert!(other.only_adds_short_freezes(&other, at));
        }
    }
}
