//! The keys that a watch is for, and whether its caller may read them.
//!
//! A watch names definitions by their keys and by patterns (`billing.*`). What is named by its key must be granted, or
//! the watch is refused. A pattern, like a watch that names nothing, means what of it the caller may read: the watch
//! ends when that becomes something else, because a caller that goes on under other grants begins anew with what it was
//! given under the old ones.
//!
//! **Invariant:** a watch returns nothing outside its scope, and its scope is within the grants of its caller as they
//! were judged last.

use std::collections::BTreeSet;

use super::{invalid, topics::Topic};
use crate::{Principal, Refusal};
use concord_model::{
    access_key::{Pattern, Verb},
    key::Key,
    key_set::{KeyRange, KeySet},
    limits::WATCH_KEYS_MAX,
};
use concord_state::feed::RecordChange;

/// The message for a filter, or keys of configs, without exactly one definition.
pub(super) const NEEDS_ONE_DEFINITION: &str =
    "a filter and `config_key` need exactly one `definition`, which is no pattern";

/// The keys that a watch is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchScope {
    /// Everything that the caller may read, by the definitions' keys.
    Visible(KeySet),
    /// Definitions that patterns name, with all their configs.
    Matching(Matching),
    /// These definitions with all their configs.
    Definitions(BTreeSet<Key>),
    /// These configs of one definition, and the definition itself.
    Configs(Key, BTreeSet<Key>),
}

/// Definitions by keys and patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matching {
    /// What was named by its key.
    keys: BTreeSet<Key>,
    /// All that was named.
    asked: KeySet,
    /// What of it the caller may read.
    readable: KeySet,
}

impl Matching {
    /// Of what the patterns name a caller may read this much; `None` when that is nothing.
    fn new(keys: BTreeSet<Key>, patterns: Vec<KeyRange>, principal: &Principal) -> Option<Self> {
        let asked = KeySet::of(keys.iter().cloned().map(KeyRange::Key).chain(patterns));
        let readable = asked.and(&principal.visible(Verb::Read));
        (!readable.is_empty()).then_some(Self { keys, asked, readable })
    }
}

impl WatchScope {
    /// The scope that the keys of a request name; without keys everything that the principal may read.
    pub(super) fn of(
        principal: &Principal,
        definitions: &[String],
        configs: &[String],
    ) -> Result<Self, Refusal> {
        for (parameter, texts) in [("definition", definitions), ("config_key", configs)] {
            if texts.len() > WATCH_KEYS_MAX {
                return Err(invalid(parameter, format!("a watch names at most {WATCH_KEYS_MAX} keys")));
            }
        }
        let key = |parameter: &str, text: &String| {
            Key::parse(text).map_err(|error| invalid(parameter, error.to_string()))
        };
        let (mut keys, mut patterns) = (BTreeSet::new(), Vec::new());
        for text in definitions {
            match pattern(text) {
                Some(range) => patterns.push(range),
                None => drop(keys.insert(key("definition", text)?)),
            }
        }
        let configs =
            configs.iter().map(|text| key("config_key", text)).collect::<Result<BTreeSet<Key>, _>>()?;
        let needs_one_definition = || invalid("definition", NEEDS_ONE_DEFINITION);
        match (keys.len(), patterns.is_empty(), configs.is_empty()) {
            (0, true, true) => Ok(Self::Visible(principal.visible(Verb::Read))),
            (_, true, true) => Ok(Self::Definitions(keys)),
            (_, false, true) => {
                let forbidden = Refusal::Forbidden { verb: Verb::Read, operation: None };
                Matching::new(keys, patterns, principal).map(Self::Matching).ok_or(forbidden)
            }
            (1, true, false) => {
                let definition = keys.pop_first().ok_or_else(needs_one_definition)?;
                Ok(Self::Configs(definition, configs))
            }
            (_, _, false) => Err(needs_one_definition()),
        }
    }

    /// Whether a principal may read all of it.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`].
    pub(super) fn authorize(&self, principal: &Principal) -> Result<(), Refusal> {
        let read = |key: &str| principal.authorize(Verb::Read, Some(key));
        let forbidden = Err(Refusal::Forbidden { verb: Verb::Read, operation: None });
        match self {
            Self::Definitions(keys) => keys.iter().try_for_each(|key| read(key.as_str())),
            Self::Configs(definition, _) => read(definition.as_str()),
            Self::Matching(of) => {
                of.keys.iter().try_for_each(|key| read(key.as_str()))?;
                principal.authorize(Verb::Read, None)?;
                let readable = of.asked.and(&principal.visible(Verb::Read));
                if readable == of.readable { Ok(()) } else { forbidden }
            }
            Self::Visible(keys) if principal.visible(Verb::Read) == *keys => {
                principal.authorize(Verb::Read, None)
            }
            Self::Visible(_) => forbidden,
        }
    }

    /// What it waits for. A change of any definition may be one of a pattern.
    pub(super) fn topics(&self) -> Vec<Topic> {
        match self {
            Self::Visible(_) | Self::Matching(_) => vec![Topic::All],
            Self::Definitions(keys) => keys.iter().cloned().map(Topic::Definition).collect(),
            Self::Configs(definition, keys) => {
                let config = |key: &Key| Topic::Config(definition.clone(), key.clone());
                let definition = Topic::DefinitionAlone(definition.clone());
                std::iter::once(definition).chain(keys.iter().map(config)).collect()
            }
        }
    }

    /// The definition that it is of, where it is one by name.
    pub(super) fn only_definition(&self) -> Option<&Key> {
        match self {
            Self::Configs(key, _) => Some(key),
            Self::Definitions(keys) if keys.len() == 1 => keys.first(),
            Self::Definitions(_) | Self::Matching(_) | Self::Visible(_) => None,
        }
    }

    /// The definitions that it is of, where they are not named by their keys alone.
    pub(super) fn key_set(&self) -> Option<&KeySet> {
        match self {
            Self::Visible(keys) => Some(keys),
            Self::Matching(of) => Some(&of.readable),
            Self::Definitions(_) | Self::Configs(..) => None,
        }
    }

    pub(super) fn contains(&self, item: &RecordChange) -> bool {
        match item {
            RecordChange::Definition { key, .. } => self.contains_definition(key),
            RecordChange::Config { definition, key, .. } => self.contains_config(definition, key),
        }
    }

    /// Whether a config is in it.
    pub(super) fn contains_config(&self, definition: &Key, key: &Key) -> bool {
        match self {
            Self::Configs(of, keys) => of == definition && keys.contains(key),
            Self::Visible(_) | Self::Matching(_) | Self::Definitions(_) => {
                self.contains_definition(definition)
            }
        }
    }

    fn contains_definition(&self, key: &Key) -> bool {
        match self {
            Self::Visible(keys) => keys.contains(key.as_str()),
            Self::Matching(of) => of.readable.contains(key.as_str()),
            Self::Definitions(keys) => keys.contains(key),
            Self::Configs(definition, _) => definition == key,
        }
    }
}

/// The keys that a pattern names; `None` for a text that is none, which is a key or malformed.
fn pattern(text: &str) -> Option<KeyRange> {
    Pattern::parse(text).ok().filter(|pattern| pattern.beginning().is_some()).as_ref().and_then(KeyRange::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    fn principal(patterns: &[&str]) -> Principal {
        key(&[(&[Verb::Read], patterns)])
    }

    fn of(principal: &Principal, definitions: &[&str]) -> Result<WatchScope, Refusal> {
        let definitions: Vec<String> = definitions.iter().map(|text| (*text).to_owned()).collect();
        WatchScope::of(principal, &definitions, &[])
    }

    fn contains(scope: &WatchScope, key: &str) -> bool {
        scope.contains_config(&Key::parse(key).unwrap(), &Key::parse("k").unwrap())
    }

    #[test]
    fn a_pattern_is_what_of_it_the_caller_may_read() {
        let reader = principal(&["billing.eu.*", "limits"]);
        let scope = of(&reader, &["billing.*", "limits"]).unwrap();
        let keys = ["billing.eu.a", "billing.us.a", "limits", "other"];
        assert_eq!(keys.map(|key| contains(&scope, key)), [true, false, true, false]);
        assert_eq!(scope.authorize(&reader), Ok(()));
        assert!(scope.authorize(&principal(&["billing.*", "limits"])).is_err(), "it would be more");
        assert!(scope.authorize(&principal(&["billing.eu.a", "limits"])).is_err(), "it would be less");
        assert_eq!(scope.authorize(&principal(&["billing.eu.*", "limits", "x"])), Ok(()));
        let named = of(&reader, &["billing.*", "other"]).unwrap();
        assert!(named.authorize(&reader).is_err(), "what is named by its key must be granted");
        assert!(of(&reader, &["other.*"]).is_err());
        assert!(of(&reader, &["a*b"]).is_err() && of(&reader, &["a b*"]).is_err());
        let root = of(&Principal::root(), &["*"]).unwrap();
        assert!(keys.iter().all(|key| contains(&root, key)));
    }
}
