//! The grants of a key: verbs on the definitions that patterns match.
//!
//! **Invariants:** whatever is not granted is rejected; grants only add up. [`Grants::covers`] never says yes to
//! something that [`Grants::allows`] rejects; it may say no where only several patterns together cover another one.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    feature::{LEVEL_MIN, ROLLOUTS},
    key::Key,
    limits::KEY_BYTES_MAX,
    system::environment::DEFAULT_ENVIRONMENT,
};

/// Something that a key may be allowed to do. The order is that of the bits in [`Verbs`]: new ones go to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verb {
    /// Read records, lists and history, and watch.
    Read,
    /// See secret fields in clear.
    Reveal,
    /// Write configs.
    Write,
    /// Create and change definitions.
    Define,
    /// Take backups.
    Backup,
    /// Change the members of the cluster and its leader. It includes [`Self::Observe`].
    Cluster,
    /// Manage access keys.
    Keys,
    /// Read the audit trail.
    Audit,
    /// See the state of the cluster and the metrics, and change nothing.
    Observe,
    /// Delete definitions with their configs.
    Delete,
    /// Make and edit change requests. [`Self::Write`] and [`Self::Define`] include it.
    Propose,
    /// Approve change requests.
    Approve,
    /// Change restricted and frozen environments without an approval, for a later review.
    Bypass,
    /// Say how readers run with what a rollout gives them, and whether a gate is good. [`Self::Approve`] includes it: who
    /// may end a rollout may also say why. So keys of a cluster whose root key is disabled can still give it.
    Report,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 14] = [
        Self::Read,
        Self::Reveal,
        Self::Write,
        Self::Define,
        Self::Backup,
        Self::Cluster,
        Self::Keys,
        Self::Audit,
        Self::Observe,
        Self::Delete,
        Self::Propose,
        Self::Approve,
        Self::Bypass,
        Self::Report,
    ];

    /// Its name in requests and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Reveal => "reveal",
            Self::Write => "write",
            Self::Define => "define",
            Self::Backup => "backup",
            Self::Cluster => "cluster",
            Self::Keys => "keys",
            Self::Audit => "audit",
            Self::Observe => "observe",
            Self::Delete => "delete",
            Self::Propose => "propose",
            Self::Approve => "approve",
            Self::Bypass => "bypass",
            Self::Report => "report",
        }
    }

    /// The verb of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// Whether it applies to definitions. The others apply to the cluster as a whole, whatever a grant's patterns are.
    #[must_use]
    pub fn is_about_definitions(self) -> bool {
        match self {
            Self::Read
            | Self::Reveal
            | Self::Write
            | Self::Define
            | Self::Delete
            | Self::Propose
            | Self::Approve
            | Self::Bypass
            | Self::Report => true,
            Self::Backup | Self::Cluster | Self::Keys | Self::Audit | Self::Observe => false,
        }
    }

    /// The verbs that include it.
    fn included_in(self) -> &'static [Self] {
        match self {
            Self::Observe => &[Self::Cluster],
            Self::Propose => &[Self::Write, Self::Define],
            Self::Report => &[Self::Approve],
            Self::Read
            | Self::Reveal
            | Self::Write
            | Self::Define
            | Self::Backup
            | Self::Cluster
            | Self::Keys
            | Self::Audit
            | Self::Delete
            | Self::Approve
            | Self::Bypass => &[],
        }
    }

    /// The feature level that a node must know to store a key with it.
    #[must_use]
    pub fn feature_level(self) -> u32 {
        match self {
            Self::Report => ROLLOUTS,
            Self::Read
            | Self::Reveal
            | Self::Write
            | Self::Define
            | Self::Backup
            | Self::Cluster
            | Self::Keys
            | Self::Audit
            | Self::Observe
            | Self::Delete
            | Self::Propose
            | Self::Approve
            | Self::Bypass => LEVEL_MIN,
        }
    }

    fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verbs(u16);

impl Verbs {
    /// Every verb.
    pub const ALL: Self = Self((1 << Verb::ALL.len()) - 1);

    /// Whether the verb is among them.
    #[must_use]
    pub fn contains(self, verb: Verb) -> bool {
        self.0 & verb.bit() != 0
    }

    /// Whether they allow what the verb does: it is among them, or one of them includes it.
    #[must_use]
    pub fn allow(self, verb: Verb) -> bool {
        self.contains(verb) || verb.included_in().iter().any(|other| self.contains(*other))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The verbs, in their order.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.contains(*verb))
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Self {
        Self(verbs.into_iter().fold(0, |bits, verb| bits | verb.bit()))
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Which definitions: one by its key, or all whose keys begin with a text that `*` follows; `*` alone is all of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a pattern is the key of a definition, or the beginning of keys with `*` at its end")]
pub struct PatternError;

impl Pattern {
    /// All definitions.
    #[must_use]
    pub fn all() -> Self {
        Self("*".into())
    }

    /// Parses a pattern.
    ///
    /// # Errors
    /// When the text is invalid.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let beginning = text.strip_suffix('*');
        let is_good = match beginning {
            // The beginning of a key is a key itself, or empty.
            Some(beginning) => beginning.is_empty() || Key::parse(beginning).is_ok(),
            None => Key::parse(text).is_ok(),
        };
        if is_good && text.len() <= KEY_BYTES_MAX { Ok(Self(text.into())) } else { Err(PatternError) }
    }

    /// The pattern's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names the definition of this key.
    #[must_use]
    pub fn matches(&self, definition: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => definition.starts_with(beginning),
            None => self.0 == definition,
        }
    }

    /// The text that the keys begin with, when it may name more than one.
    #[must_use]
    pub fn beginning(&self) -> Option<&str> {
        self.0.strip_suffix('*')
    }

    /// Whether it names a definition whose key begins with a text.
    #[must_use]
    pub fn meets(&self, beginning: &str) -> bool {
        self.beginning().is_some_and(|own| beginning.starts_with(own))
            || self.beginning().unwrap_or(&self.0).starts_with(beginning)
    }

    /// Whether it names every definition that the other one names.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self.beginning(), other.beginning()) {
            (Some(own), Some(others)) => others.starts_with(own),
            (None, Some(_)) => false,
            (_, None) => self.matches(&other.0),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// Some verbs on some definitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// What may be done.
    pub verbs: Verbs,
    /// With which definitions. Verbs that are not about definitions ignore it, except that [`Verb::Observe`] names these
    /// definitions in what it shows of the cluster.
    pub definitions: Vec<Pattern>,
}

/// Everything that a key may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants(pub Vec<Grant>);

impl Grants {
    /// Whether the verb is allowed for the definition of this key, valid or not. Without a definition: whether it is
    /// allowed for any at all, or, for a verb that is not about definitions, whether it is allowed.
    #[must_use]
    pub fn allows(&self, verb: Verb, definition: Option<&str>) -> bool {
        let mut with_verb = self.0.iter().filter(|grant| grant.verbs.allow(verb));
        match definition {
            Some(definition) if verb.is_about_definitions() => {
                with_verb.any(|grant| grant.definitions.iter().any(|pattern| pattern.matches(definition)))
            }
            None if verb.is_about_definitions() => with_verb.any(|grant| !grant.definitions.is_empty()),
            Some(_) | None => with_verb.next().is_some(),
        }
    }

    /// The feature level that a node must know to store them.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        let verbs = self.0.iter().flat_map(|grant| grant.verbs.iter());
        verbs.map(Verb::feature_level).max().unwrap_or(LEVEL_MIN)
    }

    /// The patterns of the definitions for which the verb is allowed.
    pub fn patterns(&self, verb: Verb) -> impl Iterator<Item = &Pattern> {
        let with_verb = self.0.iter().filter(move |grant| grant.verbs.allow(verb));
        with_verb.flat_map(|grant| &grant.definitions)
    }

    /// Whether the verb is allowed for every definition.
    #[must_use]
    pub fn allows_all(&self, verb: Verb) -> bool {
        let all = Pattern::all();
        if verb.is_about_definitions() {
            self.patterns(verb).any(|pattern| pattern.covers(&all))
        } else {
            self.allows(verb, None)
        }
    }

    /// Whether a verb, which is about definitions, is allowed for every definition that an environment can have; for
    /// `default`, for every definition at all.
    #[must_use]
    pub fn allows_environment(&self, verb: Verb, name: &str) -> bool {
        let beginning = if name == DEFAULT_ENVIRONMENT { String::new() } else { format!("{name}.") };
        self.patterns(verb).any(|own| own.beginning().is_some_and(|own| beginning.starts_with(own)))
    }

    /// Whether everything that the other grants allow is allowed: a key can give only what it has.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|grant| grant.verbs.iter().all(|verb| self.covers_grant(verb, grant)))
    }

    fn covers_grant(&self, verb: Verb, grant: &Grant) -> bool {
        if verb.is_about_definitions() {
            return grant.definitions.iter().all(|wanted| self.patterns(verb).any(|own| own.covers(wanted)));
        }
        let names_no_more = |wanted| self.named().any(|own| own.covers(wanted));
        self.allows(verb, None)
            && (!Verbs::from_iter([verb]).allow(Verb::Observe) || grant.definitions.iter().all(names_no_more))
    }

    /// The patterns of the definitions that the key may know of: it may do something with them, or observes them.
    pub fn named(&self) -> impl Iterator<Item = &Pattern> {
        let names = |verb: Verb| verb.is_about_definitions() || verb == Verb::Observe;
        let verbs = move |verbs: Verbs| Verb::ALL.into_iter().any(|verb| names(verb) && verbs.allow(verb));
        self.0.iter().filter(move |grant| verbs(grant.verbs)).flat_map(|grant| &grant.definitions)
    }

    /// Whether the key may know that there is the definition of this key: it may do something with it, or observes it.
    #[must_use]
    pub fn names(&self, definition: &str) -> bool {
        self.named().any(|pattern| pattern.matches(definition))
    }

    /// The same for every definition.
    #[must_use]
    pub fn names_all(&self) -> bool {
        let all = Pattern::all();
        self.named().any(|pattern| pattern.covers(&all))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grant(verbs: &[Verb], patterns: &[&str]) -> Grant {
        let definitions = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        Grant { verbs: verbs.iter().copied().collect(), definitions }
    }

    #[test]
    fn a_pattern_is_a_key_or_the_beginning_of_keys() {
        for text in ["a", "*", "billing.*", "limits", "a*", &"x".repeat(255)] {
            assert_eq!(Pattern::parse(text).unwrap().as_str(), text);
        }
        for text in ["", "**", "*a", "a*b", "a/b*", ".a*", "ä", "a *", &"x".repeat(256)] {
            assert_eq!(Pattern::parse(text), Err(PatternError), "{text:?}");
        }
        let bytes = postcard::to_stdvec("a*b").unwrap();
        assert!(postcard::from_bytes::<Pattern>(&bytes).is_err(), "a stored pattern is checked again");
    }

    #[test]
    fn a_definition_is_named_by_its_key_or_by_how_it_begins() {
        let matches = |pattern: &str, key: &str| Pattern::parse(pattern).unwrap().matches(key);
        for (pattern, key, expected) in [
            ("billing.*", "billing.eu", true),
            ("billing.*", "billing.", true),
            ("billing.*", "billing", false),
            ("billing.*", "Billing.eu", false),
            ("billing", "billing", true),
            ("billing", "billing.eu", false),
            ("*", "anything", true),
        ] {
            assert_eq!(matches(pattern, key), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn verbs_are_allowed_where_they_are_granted_and_nowhere_else() {
        let grants = Grants(vec![
            grant(&[Verb::Read, Verb::Write], &["billing.*", "limits"]),
            grant(&[Verb::Read], &["public.*"]),
            grant(&[Verb::Cluster], &[]),
            grant(&[Verb::Define], &[]),
        ]);
        assert!(grants.allows(Verb::Write, Some("limits")) && grants.allows(Verb::Read, Some("public.a")));
        assert!(!grants.allows(Verb::Write, Some("public.a")) && !grants.allows(Verb::Read, Some("other")));
        assert!(!grants.allows(Verb::Reveal, Some("limits")), "to read is not to reveal");
        assert!(grants.allows(Verb::Cluster, None) && grants.allows(Verb::Cluster, Some("other")));
        assert!(grants.allows(Verb::Read, None) && !grants.allows(Verb::Keys, None));
        assert!(!grants.allows(Verb::Define, None), "on no definition at all");
        assert!(!grants.allows_all(Verb::Read) && grants.allows_all(Verb::Cluster));
        assert!(Grants(vec![grant(&[Verb::Read], &["a", "*"])]).allows_all(Verb::Read));
        assert!(Verb::ALL.into_iter().all(|verb| !Grants::default().allows(verb, None)));
    }

    #[test]
    fn verbs_have_names_and_stay_where_they_are() {
        let bits: Vec<u16> = Verb::ALL.into_iter().map(Verb::bit).collect();
        assert_eq!(bits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192], "they are stored");
        assert!(Verb::ALL.into_iter().all(|verb| Verb::named(verb.name()) == Some(verb)));
        assert_eq!((Verb::named("Read"), Verb::named("")), (None, None));
        assert_eq!(Verbs::ALL.iter().collect::<Vec<_>>(), Verb::ALL);
        assert!(Verbs::default().is_empty() && !Verbs::ALL.is_empty());
    }

    #[test]
    fn a_key_that_reports_is_of_the_level_of_rollouts_and_all_others_are_as_before() {
        for verb in Verb::ALL {
            let expected = if verb == Verb::Report { ROLLOUTS } else { LEVEL_MIN };
            let grants = Grants(vec![grant(&[Verb::Read], &["a"]), grant(&[verb], &["*"])]);
            assert_eq!(grants.feature_level(), expected, "{verb}");
        }
        assert_eq!(Grants::default().feature_level(), LEVEL_MIN);
    }

    #[test]
    fn to_change_the_cluster_includes_to_observe_it_and_not_the_reverse() {
        let (cluster, observe) =
            (Grants(vec![grant(&[Verb::Cluster], &[])]), Grants(vec![grant(&[Verb::Observe], &[])]));
        assert!(cluster.allows(Verb::Observe, None) && observe.allows(Verb::Observe, None));
        assert!(!observe.allows(Verb::Cluster, None));
        assert!(cluster.covers(&observe) && !observe.covers(&cluster));
        for verb in Verb::ALL.into_iter().filter(|verb| ![Verb::Observe, Verb::Cluster].contains(verb)) {
            assert!(!cluster.allows(verb, None) && !observe.allows(verb, None), "{verb}");
        }
    }

    #[test]
    fn to_write_or_to_define_includes_to_propose_and_nothing_includes_to_approve() {
        let may = |verbs: &[Verb], verb| Grants(vec![grant(verbs, &["prod.*"])]).allows(verb, Some("prod.a"));
        for (own, expected) in
            [(Verb::Write, true), (Verb::Define, true), (Verb::Propose, true), (Verb::Delete, false)]
        {
            assert_eq!(may(&[own], Verb::Propose), expected, "{own}");
        }
        assert!(!may(&[Verb::Propose], Verb::Write) && !may(&[Verb::Propose], Verb::Define));
        for verb in [Verb::Approve, Verb::Bypass] {
            let others: Vec<Verb> = Verb::ALL.into_iter().filter(|other| *other != verb).collect();
            assert!(!may(&others, verb) && may(&[verb], verb), "{verb}");
        }
        assert!(may(&[Verb::Approve], Verb::Report) && may(&[Verb::Report], Verb::Report));
        assert!(!may(&[Verb::Report], Verb::Approve) && !may(&[Verb::Write], Verb::Report));
        let (write, propose) =
            (Grants(vec![grant(&[Verb::Write], &["a*"])]), Grants(vec![grant(&[Verb::Propose], &["ab"])]));
        assert!(write.covers(&propose) && !propose.covers(&write));
    }

    #[test]
    fn to_observe_names_the_definitions_of_its_grant_and_no_key_gives_more() {
        let one = |verbs: &[Verb], patterns: &[&str]| Grants(vec![grant(verbs, patterns)]);
        for (verbs, patterns, expected) in [
            (&[Verb::Observe][..], &["billing.*"][..], true),
            (&[Verb::Cluster], &["*"], true),
            (&[Verb::Read], &["billing.eu"], true),
            (&[Verb::Delete], &["billing.eu"], true),
            (&[Verb::Observe], &[], false),
            (&[Verb::Observe], &["other"], false),
            (&[Verb::Keys, Verb::Audit, Verb::Backup], &["*"], false),
        ] {
            assert_eq!(one(verbs, patterns).names("billing.eu"), expected, "{verbs:?} {patterns:?}");
        }
        assert!(one(&[Verb::Observe], &["*"]).names_all() && !one(&[Verb::Observe], &["b*"]).names_all());
        for (own, given, expected) in [
            (one(&[Verb::Observe], &[]), one(&[Verb::Observe], &["*"]), false),
            (one(&[Verb::Cluster], &[]), one(&[Verb::Cluster], &["*"]), false),
            (one(&[Verb::Cluster], &["*"]), one(&[Verb::Observe], &["billing.*"]), true),
            (one(&[Verb::Observe, Verb::Read], &["a*"]), one(&[Verb::Observe], &["ab"]), true),
            (one(&[Verb::Keys], &[]), one(&[Verb::Keys], &["*"]), true),
        ] {
            assert_eq!(own.covers(&given), expected, "{own:?} {given:?}");
        }
    }

    #[test]
    fn a_key_gives_only_what_it_has() {
        let own =
            Grants(vec![grant(&[Verb::Read, Verb::Keys], &["billing.*"]), grant(&[Verb::Write], &["b"])]);
        for (verbs, patterns, expected) in [
            (&[Verb::Read][..], &["billing.eu"][..], true),
            (&[Verb::Read], &["billing.eu.*", "billing."], true),
            (&[Verb::Read, Verb::Keys], &["billing.*"], true),
            (&[Verb::Read], &["billing*"], false),
            (&[Verb::Read], &["*"], false),
            (&[Verb::Write], &["billing.eu"], false),
            (&[Verb::Read, Verb::Write], &["b"], false),
            (&[Verb::Audit], &[], false),
            (&[], &["*"], true),
        ] {
            let wanted = Grants(vec![grant(verbs, patterns)]);
            assert_eq!(own.covers(&wanted), expected, "{verbs:?} {patterns:?}");
        }
        assert!(own.covers(&own) && own.covers(&Grants::default()));
    }

    fn patterns() -> impl Strategy<Value = Vec<Pattern>> {
        let one = "[ab]{1,3}|[ab]{0,2}\\*".prop_map(|text| Pattern::parse(&text).unwrap());
        proptest::collection::vec(one, 0..3)
    }

    fn grants() -> impl Strategy<Value = Grants> {
        let one = (0..=Verbs::ALL.0, patterns())
            .prop_map(|(bits, definitions)| Grant { verbs: Verbs(bits), definitions });
        proptest::collection::vec(one, 0..4).prop_map(Grants)
    }

    proptest! {
        #[test]
        fn what_is_covered_is_allowed(own in grants(), given in grants(), key in "[ab]{1,4}") {
            if own.covers(&given) {
                for verb in Verb::ALL {
                    prop_assert!(!given.allows(verb, Some(&key)) || own.allows(verb, Some(&key)));
                    prop_assert!(!given.allows(verb, None) || own.allows(verb, None));
                }
                prop_assert!(!given.names(&key) || own.names(&key));
                prop_assert!(!given.names_all() || own.names_all());
            }
            prop_assert!(own.covers(&own));
        }
    }
}
