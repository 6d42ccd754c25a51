//! Reads the definitions and configs of two environments at one revision, for `env diff` and `promote`.
//!
//! `prod.limits` of the environment `prod` and `staging.limits` of `staging` are the same record in two environments: its
//! key is `limits` here. All configs come from the initial state of one watch, or, where they are named, from reads at one
//! revision. A definition has the revision of its last change. If that is not later, it is as it was then; otherwise all
//! is read again.
//!
//! **Invariant:** both sides are of one revision. A value that the access key may not see is the marker that keeps the
//! stored value, as in an export.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use concord_client::{Client, Error, EventKind, Request, segment};
use concord_model::system::environment::{DEFAULT_ENVIRONMENT, EnvironmentName};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use super::{
    connection::Failure,
    current::{self, Versioned},
    manifest::ManifestDefinition,
    output::note,
};

/// Most definitions of both environments that a watch names one by one.
const NAMED_DEFINITIONS_MAX: usize = 32;
/// Most configs that are read one by one.
const NAMED_CONFIGS_MAX: usize = 1000;
/// Records that are read at the same time.
const READS_AT_ONCE: usize = 16;
/// Maximum number of reads of environments that keep changing.
const ATTEMPTS: usize = 10;

/// A record that is named on the command line: a definition, or one of its configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedRecord {
    definition: String,
    config: Option<String>,
}

impl FromStr for NamedRecord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (definition, config) = match text.split_once('/') {
            Some((definition, config)) => (definition, Some(config)),
            None => (text, None),
        };
        if [Some(definition), config].into_iter().flatten().any(|key| key.is_empty() || key.contains('/')) {
            return Err("expected DEF or DEF/CONFIG, without the name of an environment".into());
        }
        Ok(Self { definition: definition.to_owned(), config: config.map(str::to_owned) })
    }
}

/// Which records are read; everything if none is named.
#[derive(Debug, Default)]
pub(super) struct NamedRecords {
    /// The definitions that are named as a whole.
    whole: BTreeSet<String>,
    configs: BTreeSet<(String, String)>,
}

impl NamedRecords {
    pub(super) fn of(named: &[NamedRecord]) -> Self {
        let mut all = Self::default();
        for NamedRecord { definition, config } in named.iter().cloned() {
            match config {
                Some(config) => drop(all.configs.insert((definition, config))),
                None => drop(all.whole.insert(definition)),
            }
        }
        all.configs.retain(|(definition, _)| !all.whole.contains(definition));
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.configs.is_empty()
    }

    /// Whether a definition is named as a whole.
    pub(super) fn names(&self, definition: &str) -> bool {
        self.whole.contains(definition)
    }

    /// Whether all configs of a definition are read.
    pub(super) fn has_all_of(&self, definition: &str) -> bool {
        self.is_empty() || self.names(definition)
    }

    /// Whether a config is read.
    fn has(&self, definition: &str, key: &str) -> bool {
        self.has_all_of(definition) || self.configs.contains(&(definition.to_owned(), key.to_owned()))
    }

    /// The definitions that are named, also by one of their configs.
    fn definitions(&self) -> BTreeSet<String> {
        self.whole.iter().chain(self.configs.iter().map(|(definition, _)| definition)).cloned().collect()
    }
}

/// The records of an environment, by their keys without its name.
#[derive(Debug, Default)]
pub(super) struct EnvironmentRecords {
    pub(super) definitions: BTreeMap<String, Versioned<ManifestDefinition>>,
    /// By the keys of their definition and their own.
    pub(super) configs: BTreeMap<(String, String), Versioned<Value>>,
}

/// Two environments at one revision.
#[derive(Debug, Default)]
pub(super) struct TwoEnvironments {
    pub(super) revision: u64,
    pub(super) from: EnvironmentRecords,
    pub(super) to: EnvironmentRecords,
}

/// The key of a definition in an environment.
pub(super) fn key_in(environment: &str, definition: &str) -> String {
    format!("{environment}.{definition}")
}

/// Fails unless these are the names of two environments whose definitions have prefixes.
pub(super) fn check_names(from: &str, to: &str) -> Result<(), Failure> {
    for name in [from, to] {
        if name == DEFAULT_ENVIRONMENT {
            let text =
                "the definitions of `default` have no common prefix, so they can't be compared with others";
            return Err(Failure::Usage(text.into()));
        }
        EnvironmentName::parse(name).map_err(|error| Failure::Usage(format!("`{name}`: {error}")))?;
    }
    if from == to {
        return Err(Failure::Usage(format!("`{from}` is both environments: name two")));
    }
    Ok(())
}

impl TwoEnvironments {
    /// Reads both environments.
    ///
    /// # Errors
    /// When one of them has neither a definition nor a record: its name is misspelt. When a named record is in neither.
    pub(super) async fn read(
        client: &Client,
        from: &str,
        to: &str,
        named: &NamedRecords,
    ) -> Result<Self, Failure> {
        check_names(from, to)?;
        for _ in 0..ATTEMPTS {
            let Some(both) = Self::attempt(client, from, to, named).await? else { continue };
            both.check_named(from, to, named)?;
            for (name, records) in [(from, &both.from), (to, &both.to)] {
                if records.definitions.is_empty() && !exists(client, name, named).await? {
                    let text = format!(
                        "no definition that the access key may read begins with `{name}.`, and there is no environment \
                         `{name}`: `concord env set {name}` creates it"
                    );
                    return Err(Failure::Missing(text));
                }
                if !may_read_all(client, name).await? {
                    note(format_args!(
                        "the access key may not read all of `{name}.*`: what it may not read is left out"
                    ));
                }
            }
            return Ok(both);
        }
        Err(Failure::Failed(format!("{from} and {to} keep changing while they are read: try again later")))
    }

    /// `None` if something has changed meanwhile.
    async fn attempt(
        client: &Client,
        from: &str,
        to: &str,
        named: &NamedRecords,
    ) -> Result<Option<Self>, Failure> {
        let mut listed = if named.whole.is_empty() && !named.configs.is_empty() {
            if named.configs.len() > NAMED_CONFIGS_MAX {
                let text =
                    format!("at most {NAMED_CONFIGS_MAX} configs can be named: name their definitions");
                return Err(Failure::Usage(text));
            }
            ListedRecords::named(client, [from, to], named).await?
        } else {
            ListedRecords::all(client, [from, to], named).await?
        };
        let mut both = Self { revision: listed.revision, ..Self::default() };
        for (name, records) in [(from, &mut both.from), (to, &mut both.to)] {
            let keys: Vec<String> =
                listed.definitions.iter().filter(|key| is_in(name, key)).cloned().collect();
            let read = keys.into_iter().map(async |key| {
                let found = current::definition(client, &key).await?;
                Ok::<_, Failure>((key, found))
            });
            let mut read = stream::iter(read).buffered(READS_AT_ONCE);
            while let Some((key, found)) = read.try_next().await? {
                let is_known = listed.known.contains(&key);
                match found {
                    Some(found) if found.revision <= listed.revision => {
                        records.definitions.insert(without(name, &key).to_owned(), found);
                    }
                    None if !is_known => {}
                    Some(_) | None => return Ok(None),
                }
            }
            drop(read);
            for ((definition, key), config) in std::mem::take(&mut listed.configs) {
                if is_in(name, &definition) {
                    records.configs.insert((without(name, &definition).to_owned(), key), config);
                } else {
                    listed.configs.insert((definition, key), config);
                }
            }
        }
        Ok(Some(both))
    }

    fn check_named(&self, from: &str, to: &str, named: &NamedRecords) -> Result<(), Failure> {
        let sides = [&self.from, &self.to];
        let hint = |definition: &str| {
            let is_prefixed = [from, to].iter().any(|name| is_in(name, definition));
            if is_prefixed { "\nhint: name it without the environment" } else { "" }
        };
        for definition in &named.whole {
            if !sides.iter().any(|side| side.definitions.contains_key(definition)) {
                let text = format!(
                    "definition {definition} is in neither {from} nor {to}, or the access key may not read it{}",
                    hint(definition)
                );
                return Err(Failure::Missing(text));
            }
        }
        for (definition, key) in &named.configs {
            if !sides.iter().any(|side| side.configs.contains_key(&(definition.clone(), key.clone()))) {
                let text =
                    format!("config {definition}/{key} is in neither {from} nor {to}{}", hint(definition));
                return Err(Failure::Missing(text));
            }
        }
        Ok(())
    }
}

/// Configs, and the definitions that have to be read, by their whole keys.
#[derive(Debug, Default)]
struct ListedRecords {
    revision: u64,
    definitions: BTreeSet<String>,
    /// Those of the definitions that existed at the revision.
    known: BTreeSet<String>,
    configs: BTreeMap<(String, String), Versioned<Value>>,
}

impl ListedRecords {
    /// Everything of both environments, or of the named definitions.
    async fn all(client: &Client, environments: [&str; 2], named: &NamedRecords) -> Result<Self, Failure> {
        let definitions = named.definitions();
        let is_each_named = !definitions.is_empty() && definitions.len() <= NAMED_DEFINITIONS_MAX;
        let mut request = Request::get("/api/v1/watch").query("initial", "true");
        for environment in environments {
            if is_each_named {
                for definition in &definitions {
                    request = request.query("definition", key_in(environment, definition));
                }
            } else {
                request = request.query("definition", format_args!("{environment}.*"));
            }
        }
        let is_wanted = |key: &str| {
            let short = environments.iter().find(|name| is_in(name, key)).map(|name| without(name, key));
            short.is_some_and(|short| definitions.is_empty() || definitions.contains(short))
        };
        let mut found = Self::default();
        let mut watch = client.watch(request);
        loop {
            let event = watch.next().await?;
            match event.kind {
                EventKind::Restarted => found = Self::default(),
                EventKind::Heartbeat | EventKind::Change => {}
                EventKind::State => {
                    for definition in event.data["definitions"].as_array().into_iter().flatten() {
                        let key = definition["config_definition_key"].as_str();
                        let key = key.ok_or_else(|| Error::Protocol("a definition has no key".into()))?;
                        if is_wanted(key) {
                            found.definitions.insert(key.to_owned());
                        }
                    }
                    for config in event.data["configs"].as_array().into_iter().flatten() {
                        let (definition, key, config) = current::of_state(config)?;
                        let short = environments.iter().find(|name| is_in(name, &definition));
                        if short.is_some_and(|name| named.has(without(name, &definition), &key)) {
                            found.configs.insert((definition, key), config);
                        }
                    }
                    if event.data["complete"] == true {
                        let revision = event.data["revision"].as_u64();
                        found.revision =
                            revision.ok_or_else(|| Error::Protocol("a state has no revision".into()))?;
                        found.known = found.definitions.clone();
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// The named configs, as they were at one revision.
    async fn named(client: &Client, environments: [&str; 2], named: &NamedRecords) -> Result<Self, Failure> {
        let now = client.send(Request::get("/api/v1/config_definition/").query("limit", 1)).await?;
        let revision = now.state_revision();
        let revision = revision.ok_or_else(|| Error::Protocol("a list has no revision".into()))?;
        let mut found = Self { revision, ..Self::default() };
        let keys: Vec<(String, &String)> = environments
            .iter()
            .flat_map(|name| named.configs.iter().map(|(definition, key)| (key_in(name, definition), key)))
            .collect();
        let read = keys.into_iter().map(async |(definition, key)| {
            let config = current::config_at(client, &definition, key, revision).await?;
            Ok::<_, Failure>((definition, key.clone(), config))
        });
        let mut read = stream::iter(read).buffered(READS_AT_ONCE);
        while let Some((definition, key, config)) = read.try_next().await? {
            found.definitions.insert(definition.clone());
            if let Some(config) = config {
                found.known.insert(definition.clone());
                found.configs.insert((definition, key), config);
            }
        }
        Ok(found)
    }
}

/// Whether a definition is one of an environment.
pub(super) fn is_in(environment: &str, definition: &str) -> bool {
    definition.strip_prefix(environment).is_some_and(|rest| rest.starts_with('.'))
}

/// The key of a definition without its environment.
pub(super) fn without<'a>(environment: &str, definition: &'a str) -> &'a str {
    definition.strip_prefix(environment).and_then(|rest| rest.strip_prefix('.')).unwrap_or(definition)
}

/// Whether an environment in which none of the records was found has a record, or other definitions.
async fn exists(client: &Client, name: &str, named: &NamedRecords) -> Result<bool, Failure> {
    if !named.is_empty() && current::definition_keys(client).await?.iter().any(|key| is_in(name, key)) {
        return Ok(true);
    }
    match client.send(Request::get(format!("/api/v1/environment/{}", segment(name)))).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the access key may read every definition of an environment.
async fn may_read_all(client: &Client, environment: &str) -> Result<bool, Failure> {
    let own = client.send(Request::get("/api/v1/whoami")).await?.data()?;
    let prefix = key_in(environment, "");
    let has = |value: &Value, is_it: &dyn Fn(&str) -> bool| {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).any(is_it)
    };
    let covers = |pattern: &str| pattern.strip_suffix('*').is_some_and(|begin| prefix.starts_with(begin));
    let mut grants = own["grants"].as_array().into_iter().flatten();
    Ok(grants
        .any(|grant| has(&grant["verbs"], &|verb| verb == "read") && has(&grant["definitions"], &covers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_named_without_its_environment() {
        let named = |text: &str| text.parse::<NamedRecord>();
        let config = Some("acme".to_owned());
        assert_eq!(named("limits/acme"), Ok(NamedRecord { definition: "limits".into(), config }));
        assert_eq!(named("limits"), Ok(NamedRecord { definition: "limits".into(), config: None }));
        for wrong in ["", "/", "limits/", "/acme", "a/b/c"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
        let all = NamedRecords::of(&["a/x", "b", "b/y"].map(|text| named(text).unwrap()));
        assert!(all.has("a", "x") && !all.has("a", "y") && all.has("b", "z") && !all.has("c", "x"));
        assert!(!all.has_all_of("a") && all.has_all_of("b") && !all.names("a") && all.names("b"));
        let every = NamedRecords::default();
        assert!(every.has("c", "x") && every.has_all_of("c") && !every.names("c"));
    }

    #[test]
    fn an_environment_has_the_keys_that_begin_with_its_name_and_a_dot() {
        for (key, expected) in
            [("prod.a", true), ("prod.a.b", true), ("prod", false), ("prod-x.a", false), ("product.a", false)]
        {
            assert_eq!(is_in("prod", key), expected, "{key}");
        }
        assert_eq!((without("prod", "prod.a.b"), key_in("prod", "a.b")), ("a.b", "prod.a.b".to_owned()));
        for (from, to) in [("default", "prod"), ("a.b", "prod"), ("", "prod"), ("prod", "prod")] {
            assert!(check_names(from, to).is_err(), "{from} {to}");
        }
        check_names("staging", "prod").unwrap();
    }
}
