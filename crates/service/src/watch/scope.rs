//! The keys that a watch is for, and whether its client may read them.
//!
//! A watch names definitions by their keys and by patterns (`billing.*`). A definition that is named by its key must be
//! granted, or the watch is rejected. A pattern, and a watch that names nothing, covers the definitions that the client
//! may read. When the grants change that set, the watch ends, and the client must resync. So does a watch of change
//! requests: which of them a client sees depends on all that it may read.
//!
//! **Invariant:** a watch returns nothing outside its scope, and its scope is within the grants of its client as they were
//! last authorized.

use std::collections::BTreeSet;

use super::{invalid, topics::Topic};
use crate::{Principal, Refusal};
use concord_model::{
    access_key::{Pattern, Verb},
    key::Key,
    key_set::{KeyRange, KeySet},
    limits::WATCH_KEYS_MAX,
};
use concord_state::feed::{Event, RecordChange};

/// The message for a filter, or keys of configs, without exactly one definition.
pub(super) const NEEDS_ONE_DEFINITION: &str =
    "a filter and `config_key` need exactly one `definition`, which is no pattern";

/// The keys that a watch is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchScope {
    /// Everything that the client may read, by the keys of definitions.
    Visible(KeySet),
    /// Definitions that match patterns, with all their configs.
    Matching(Matching),
    /// These definitions with all their configs.
    Definitions(BTreeSet<Key>),
    /// These configs of one definition, and the definition itself.
    Configs(Key, BTreeSet<Key>),
    /// No records: the change requests of these definitions, which are all that the client may read.
    ChangeRequests(KeySet),
}

/// Definitions by keys and patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matching {
    /// The definitions that were named by their keys.
    keys: BTreeSet<Key>,
    /// All requested keys.
    asked: KeySet,
    /// Those of them that the client may read.
    readable: KeySet,
}

impl Matching {
    /// `None` if the client may read none of the requested definitions.
    fn new(keys: BTreeSet<Key>, patterns: Vec<KeyRange>, principal: &Principal) -> Option<Self> {
        let asked = KeySet::of(keys.iter().cloned().map(KeyRange::Key).chain(patterns));
        let readable = asked.and(&principal.visible(Verb::Read));
        (!readable.is_empty()).then_some(Self { keys, asked, readable })
    }
}

impl WatchScope {
    /// The scope of the keys in a request. Without keys, everything that the principal may read.
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
                let forbidden = Refusal::Forbidden { verb: Verb::Read };
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
        let forbidden = Err(Refusal::Forbidden { verb: Verb::Read });
        match self {
            Self::Definitions(keys) => keys.iter().try_for_each(|key| read(key.as_str())),
            Self::Configs(definition, _) => read(definition.as_str()),
            Self::Matching(of) => {
                of.keys.iter().try_for_each(|key| read(key.as_str()))?;
                principal.authorize(Verb::Read, None)?;
                let readable = of.asked.and(&principal.visible(Verb::Read));
                if readable == of.readable { Ok(()) } else { forbidden }
            }
            Self::Visible(keys) | Self::ChangeRequests(keys) if principal.visible(Verb::Read) == *keys => {
                principal.authorize(Verb::Read, None)
            }
            Self::Visible(_) | Self::ChangeRequests(_) => forbidden,
        }
    }

    /// The topics that it waits for. Any definition may match a pattern.
    pub(super) fn topics(&self) -> Vec<Topic> {
        match self {
            Self::Visible(_) | Self::Matching(_) => vec![Topic::All],
            Self::ChangeRequests(_) => vec![Topic::ChangeRequests],
            Self::Definitions(keys) => keys.iter().cloned().map(Topic::Definition).collect(),
            Self::Configs(definition, keys) => {
                let config = |key: &Key| Topic::Config(definition.clone(), key.clone());
                let definition = Topic::DefinitionAlone(definition.clone());
                std::iter::once(definition).chain(keys.iter().map(config)).collect()
            }
        }
    }

    /// The only definition of the scope, if it has one and names it by its key.
    pub(super) fn only_definition(&self) -> Option<&Key> {
        match self {
            Self::Configs(key, _) => Some(key),
            Self::Definitions(keys) if keys.len() == 1 => keys.first(),
            Self::Definitions(_) | Self::Matching(_) | Self::Visible(_) | Self::ChangeRequests(_) => None,
        }
    }

    /// The definitions of the scope, if it does not name all of them by their keys.
    pub(super) fn key_set(&self) -> Option<&KeySet> {
        match self {
            Self::Visible(keys) => Some(keys),
            Self::Matching(of) => Some(&of.readable),
            Self::Definitions(_) | Self::Configs(..) | Self::ChangeRequests(_) => None,
        }
    }

    /// Whether the watch is for change requests, and not for records.
    pub(super) fn is_of_change_requests(&self) -> bool {
        matches!(self, Self::ChangeRequests(_))
    }

    /// Whether something of an event is in the scope.
    pub(super) fn contains_any_of(&self, event: &Event) -> bool {
        match self {
            Self::ChangeRequests(_) => !event.change_requests.is_empty(),
            Self::Visible(_) | Self::Matching(_) | Self::Definitions(_) | Self::Configs(..) => {
                event.items.iter().any(|item| self.contains(item))
                    || event.rollouts.iter().any(|rollouts| {
                        rollouts.configs().any(|(definition, key)| self.contains_config(definition, key))
                    })
            }
        }
    }

    pub(super) fn contains(&self, item: &RecordChange) -> bool {
        match item {
            RecordChange::Definition { key, .. } => self.contains_definition(key),
            RecordChange::Config { definition, key, .. } => self.contains_config(definition, key),
        }
    }

    /// Whether a config is in the scope.
    pub(super) fn contains_config(&self, definition: &Key, key: &Key) -> bool {
        match self {
            Self::Configs(of, keys) => of == definition && keys.contains(key),
            Self::Visible(_) | Self::Matching(_) | Self::Definitions(_) | Self::ChangeRequests(_) => {
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
            Self::ChangeRequests(_) => false,
        }
    }
}

/// The keys that a pattern matches. `None` for a text that is not a pattern: a key, or malformed.
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
    fn a_pattern_covers_the_matching_definitions_that_the_client_may_read() {
        let reader = principal(&["billing.eu.*", "limits"]);
        let scope = of(&reader, &["billing.*", "limits"]).unwrap();
        let keys = ["billing.eu.a", "billing.us.a", "limits", "other"];
        assert_eq!(keys.map(|key| contains(&scope, key)), [true, false, true, false]);
        assert_eq!(scope.authorize(&reader), Ok(()));
        assert!(scope.authorize(&principal(&["billing.*", "limits"])).is_err(), "it would cover more");
        assert!(scope.authorize(&principal(&["billing.eu.a", "limits"])).is_err(), "it would cover less");
        assert_eq!(scope.authorize(&principal(&["billing.eu.*", "limits", "x"])), Ok(()));
        let named = of(&reader, &["billing.*", "other"]).unwrap();
        assert!(named.authorize(&reader).is_err(), "a definition that is named by its key must be granted");
        assert!(of(&reader, &["other.*"]).is_err());
        assert!(of(&reader, &["a*b"]).is_err() && of(&reader, &["a b*"]).is_err());
        let root = of(&Principal::root(), &["*"]).unwrap();
        assert!(keys.iter().all(|key| contains(&root, key)));
    }
}
