//! The configs of a cache, and how changes update them. No clock, no I/O.
//!
//! **Invariant:** the content is what the selected configs were at its position: every change up to the position is in,
//! and none after it. A change that comes a second time changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::Request;

/// The most names of definitions or configs that a node takes in one request.
const NAMES_MAX: usize = 64;

/// A config as the cluster has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The key of its definition.
    #[serde(rename = "config_definition_key")]
    pub definition: String,
    /// Its key.
    #[serde(rename = "config_key")]
    pub key: String,
    /// What it says.
    pub data: Value,
    /// The revision of its last change, for `If-Match`. 0 for a candidate, which has none: no condition holds with it.
    #[serde(default)]
    pub revision: u64,
    /// The id of the change request whose candidate it is: what this reader sees before the rollout has ended. `None` for
    /// what is proven.
    #[serde(default, deserialize_with = "variant", skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// When it was created, as RFC 3339 has it.
    #[serde(default)]
    pub created_at: String,
    /// When it was changed last.
    #[serde(default)]
    pub modified_at: String,
    /// The places of secret values that the key may not see; they are null in `data`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
}

/// The change request of a candidate: as nodes name it, or as the file has it.
fn variant<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Named {
        Sent { change_id: String },
        Stored(String),
    }
    Ok(Option::<Named>::deserialize(from)?.map(|named| match named {
        Named::Sent { change_id } | Named::Stored(change_id) => change_id,
    }))
}

/// A selection of a cache: all configs of a definition, or one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// The key of a definition; `PREFIX*` selects all definitions with this key prefix.
    pub definition: String,
    /// The key of a config; without one, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

impl Selection {
    /// All configs of a definition, or of all definitions with a key prefix (`PREFIX*`).
    pub fn definition(pattern: impl Into<String>) -> Self {
        Self { definition: pattern.into(), config: None }
    }

    /// One config.
    pub fn config(definition: impl Into<String>, key: impl Into<String>) -> Self {
        Self { definition: definition.into(), config: Some(key.into()) }
    }

    /// Whether it has this config.
    pub(crate) fn has(&self, definition: &str, key: &str) -> bool {
        self.has_definition(definition) && self.config.as_deref().is_none_or(|config| config == key)
    }

    fn has_definition(&self, definition: &str) -> bool {
        match self.definition.strip_suffix('*') {
            Some(prefix) => definition.starts_with(prefix),
            None => definition == self.definition,
        }
    }
}

/// The parameters that ask a node for what is selected, and for as little else as it can leave out.
///
/// # Errors
/// When nothing is selected, or more than a node takes.
pub(crate) fn query(selections: &[Selection]) -> Result<Vec<(&'static str, String)>, String> {
    let definitions: BTreeSet<&str> = selections.iter().map(|one| one.definition.as_str()).collect();
    if definitions.is_empty() {
        return Err("a cache needs at least one definition".into());
    }
    if definitions.contains("*") {
        return Ok(vec![("definition", "*".into())]);
    }
    if definitions.len() > NAMES_MAX {
        return Err(format!("a cache can name at most {NAMES_MAX} definitions: use patterns"));
    }
    let keys: BTreeSet<Option<&str>> = selections.iter().map(|one| one.config.as_deref()).collect();
    let is_narrow = definitions.len() == 1
        && !definitions.iter().any(|name| name.ends_with('*'))
        && !keys.contains(&None)
        && keys.len() <= NAMES_MAX;
    let mut query: Vec<_> = definitions.into_iter().map(|name| ("definition", name.to_owned())).collect();
    if is_narrow {
        query.extend(keys.into_iter().flatten().map(|key| ("config_key", key.to_owned())));
    }
    Ok(query)
}

/// A request with these parameters.
pub(crate) fn ask(path: &str, query: &[(&'static str, String)]) -> Request {
    query.iter().fold(Request::get(path), |request, (name, value)| request.query(name, value))
}

/// The configs of one definition by key.
pub(crate) type Configs = BTreeMap<String, Arc<Config>>;

/// The configs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    configs: BTreeMap<String, Configs>,
    pub(crate) position: u64,
}

impl Content {
    /// No configs, at a position.
    pub(crate) fn at(position: u64) -> Self {
        Self { configs: BTreeMap::new(), position }
    }

    pub(crate) fn get(&self, definition: &str, key: &str) -> Option<&Arc<Config>> {
        self.configs.get(definition)?.get(key)
    }

    pub(crate) fn definitions(&self) -> impl Iterator<Item = (&String, &Configs)> {
        self.configs.iter()
    }

    pub(crate) fn of(&self, definition: &str) -> Option<&Configs> {
        self.configs.get(definition)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Config>> {
        self.configs.values().flat_map(BTreeMap::values)
    }

    pub(crate) fn insert(&mut self, config: Config) {
        let of = self.configs.entry(config.definition.clone()).or_default();
        of.insert(config.key.clone(), Arc::new(config));
    }

    fn remove(&mut self, definition: &str, key: &str) -> bool {
        let Some(of) = self.configs.get_mut(definition) else { return false };
        let was_there = of.remove(key).is_some();
        if of.is_empty() {
            self.configs.remove(definition);
        }
        was_there
    }

    /// Adds a part of a state.
    pub(crate) fn add_state(&mut self, part: &Value, selections: &[Selection]) -> Result<(), String> {
        for config in part["configs"].as_array().into_iter().flatten() {
            let mut config = Config::deserialize(config)
                .map_err(|error| format!("invalid config in a state event: {error}"))?;
            if config.variant.is_some() {
                config.revision = 0;
            }
            if is_selected(selections, &config.definition, &config.key) {
                self.insert(config);
            }
        }
        Ok(())
    }

    /// Does what one revision did. Returns whether a selected config is another now.
    pub(crate) fn apply(&mut self, event: &Value, selections: &[Selection]) -> Result<bool, String> {
        let revision = event["revision"].as_u64().ok_or("an event has no revision")?;
        if revision <= self.position {
            return Ok(false);
        }
        let mut has_changed = false;
        for change in event["changes"].as_array().into_iter().flatten() {
            let text = |name: &str| change[name].as_str().unwrap_or_default();
            let (definition, key) = (text("config_definition_key"), text("config_key"));
            match text("type") {
                "config_created" | "config_updated" if is_selected(selections, definition, key) => {
                    self.insert(changed(change, revision));
                    has_changed = true;
                }
                "config_deleted" | "config_unmatched" => has_changed |= self.remove(definition, key),
                "definition_deleted" => has_changed |= self.configs.remove(definition).is_some(),
                _ => {}
            }
        }
        self.position = revision;
        Ok(has_changed)
    }

    /// The configs that are candidates of rollouts, with the ids of their change requests.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (&str, &Arc<Config>)> {
        self.all().filter_map(|config| Some((config.variant.as_deref()?, config)))
    }

    /// Whether it contains the same configs, at any position.
    pub(crate) fn has_same(&self, other: &Self) -> bool {
        self.configs == other.configs
    }
}

pub(crate) fn is_selected(selections: &[Selection], definition: &str, key: &str) -> bool {
    selections.iter().any(|selection| selection.has(definition, key))
}

/// The config that a change made. A reader that a rollout has left gets what is proven by a change of a later revision than
/// that of the config, which is named then.
fn changed(change: &Value, revision: u64) -> Config {
    let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
    let redacted = change["redacted"].as_array().into_iter().flatten();
    let variant = change["variant"]["change_id"].as_str().map(str::to_owned);
    let own_revision = change["revision"].as_u64().unwrap_or(revision);
    Config {
        definition: text("config_definition_key"),
        key: text("config_key"),
        data: change["data"].clone(),
        revision: if variant.is_some() { 0 } else { own_revision },
        variant,
        created_at: text("created_at"),
        modified_at: text("modified_at"),
        redacted: redacted.filter_map(|place| place.as_str().map(str::to_owned)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(revision: u64, changes: &Value) -> Value {
        json!({"revision": revision, "changes": changes})
    }

    fn put(definition: &str, key: &str, data: &Value) -> Value {
        json!({"type": "config_updated", "config_definition_key": definition, "config_key": key, "data": data,
               "created_at": "c", "modified_at": "m"})
    }

    #[test]
    fn changes_are_applied_once_and_in_order() {
        let selections = [Selection::definition("a*"), Selection::config("b", "one")];
        let mut content = Content::default();
        let first = event(
            3,
            &json!([put("ab", "k", &json!(7.0)), put("b", "one", &json!(1)), put("b", "two", &json!(2))]),
        );
        assert_eq!(content.apply(&first, &selections), Ok(true));
        assert_eq!(content.get("ab", "k").unwrap().data.to_string(), "7.0");
        assert_eq!(content.get("ab", "k").unwrap().revision, 3);
        assert!(content.get("b", "one").is_some() && content.get("b", "two").is_none());

        // Of a revision that is in already nothing is done again, and a position never goes back.
        assert_eq!(content.apply(&event(2, &json!([put("ab", "k", &json!(0))])), &selections), Ok(false));
        assert_eq!(content.apply(&first, &selections), Ok(false));
        assert_eq!((content.position, content.all().count()), (3, 2));

        let delete = json!([{"type": "config_deleted", "config_definition_key": "b", "config_key": "one"},
                            {"type": "config_deleted", "config_definition_key": "b", "config_key": "two"}]);
        assert_eq!(content.apply(&event(5, &delete), &selections), Ok(true));
        assert_eq!(content.apply(&event(6, &delete), &selections), Ok(false));
        let gone = json!([{"type": "definition_deleted", "config_definition_key": "ab", "count": 1}]);
        assert_eq!(content.apply(&event(7, &gone), &selections), Ok(true));
        assert_eq!((content.position, content.all().count()), (7, 0));
    }

    #[test]
    fn secret_values_are_named() {
        let mut content = Content::default();
        let change = json!([{"type": "config_created", "config_definition_key": "a", "config_key": "k",
                             "data": {"password": null}, "redacted": ["#/password"]}]);
        content.apply(&event(1, &change), &[Selection::definition("*")]).unwrap();
        assert_eq!(content.get("a", "k").unwrap().redacted, ["#/password"]);
    }

    #[test]
    fn a_reader_that_a_rollout_leaves_has_what_is_proven() {
        let selections = [Selection::definition("*")];
        let mut content = Content::default();
        content.add_state(&json!({"configs": [{"config_definition_key": "a", "config_key": "k", "data": 1, "revision": 3}]}), &selections).unwrap();
        let mut begun = put("a", "k", &json!(2));
        begun["variant"] = json!({"change_id": "change-1"});
        begun["revision"] = 3.into();
        content.apply(&event(5, &json!([begun])), &selections).unwrap();
        let found = content.get("a", "k").unwrap();
        assert_eq!((found.revision, found.variant.as_deref(), &found.data), (0, Some("change-1"), &json!(2)));
        assert_eq!(content.candidates().map(|(change, _)| change).collect::<Vec<_>>(), ["change-1"]);

        let mut back = put("a", "k", &json!(1));
        back["revision"] = 3.into();
        content.apply(&event(7, &json!([back])), &selections).unwrap();
        let found = content.get("a", "k").unwrap();
        assert_eq!((found.revision, &found.variant, &found.data), (3, &None, &json!(1)));
        assert_eq!((content.position, content.candidates().count()), (7, 0));
    }

    #[test]
    fn a_node_is_asked_for_no_more_than_needed() {
        let config = Selection::config;
        let asked = |selections: &[Selection]| {
            let query = query(selections).unwrap();
            query.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
        };
        assert_eq!(asked(&[config("a", "k"), config("a", "l")]), "definition=a&config_key=k&config_key=l");
        assert_eq!(asked(&[config("a", "k"), Selection::definition("a")]), "definition=a");
        assert_eq!(asked(&[config("a", "k"), config("b", "k")]), "definition=a&definition=b");
        assert_eq!(asked(&[config("a*", "k")]), "definition=a*");
        assert_eq!(asked(&[Selection::definition("*"), config("b", "k")]), "definition=*");
        assert!(query(&[]).is_err());
        let many: Vec<_> =
            (0..=NAMES_MAX).map(|number| Selection::definition(format!("d{number}"))).collect();
        assert!(query(&many).is_err());
    }
}
