//! Reads the current state of the cluster for plans and exports: records with their revisions.
//!
//! Configs come from the initial state of a watch, because it is consistent and has the revision of each. A few configs
//! are read one by one.
//!
//! **Invariant:** a secret field that the access key may not read holds the marker that keeps its value
//! (`{"$concord-keep": true}`), never `null`: applying an exported file changes no secret.

use std::collections::BTreeMap;

use concord_client::{Answer, Client, Error, EventKind, Request, segment};
use serde_json::{Value, json};

use super::{connection::Failure, manifest::ManifestDefinition};

/// Most definitions that one watch names.
const DEFINITIONS_OF_A_WATCH: usize = 64;
/// Maximum number of reads of a definition that keeps changing.
const ATTEMPTS: usize = 10;

/// A record, and the revision of its last change.
#[derive(Debug, Clone)]
pub(super) struct Versioned<T> {
    pub(super) revision: u64,
    pub(super) value: T,
}

/// The path of a definition.
pub(super) fn definition_path(definition: &str) -> String {
    format!("/api/v1/config_definition/{}", segment(definition))
}

/// The path of a config.
pub(super) fn config_path(definition: &str, key: &str) -> String {
    format!("{}/config/{}", definition_path(definition), segment(key))
}

/// A definition with its schema, unique fields and protection, all of one revision; `None` if it does not exist.
pub(super) async fn definition(
    client: &Client,
    key: &str,
) -> Result<Option<Versioned<ManifestDefinition>>, Failure> {
    let path = definition_path(key);
    for _ in 0..ATTEMPTS {
        let found = match client.send(Request::get(&path)).await {
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        let parts = async |part: &str| client.send(Request::get(format!("{path}/{part}"))).await;
        let mut read = Vec::new();
        for part in ["schema", "unique", "protection"] {
            match parts(part).await {
                Ok(part) => read.push(part),
                // It was deleted in the meantime.
                Err(error) if error.is_not_found() => break,
                Err(error) => return Err(error.into()),
            }
        }
        let Ok([schema, unique, protection]) = <[Answer; 3]>::try_from(read) else { continue };
        let Some(revision) = found.revision() else {
            return Err(Error::Protocol(format!("{path} has no revision")).into());
        };
        if [&schema, &unique, &protection].iter().any(|part| part.revision() != Some(revision)) {
            continue;
        }
        let (found, mut schema, unique) = (found.data()?, schema.data()?, unique.data()?);
        let value = ManifestDefinition {
            indexes: texts(&found["indexes"]),
            unique: texts(&unique["paths"]),
            format_assertion: schema["format_assertion"].as_bool(),
            schema: Some(schema["json_schema"].take()).filter(|schema| !schema.is_null()),
            protected: protection.data()?["protected"].as_bool(),
        };
        return Ok(Some(Versioned { revision, value }));
    }
    Err(Failure::Failed(format!("definition {key} keeps changing while it is read: try again later")))
}

/// A definition in a list as of a revision; `None` if it did not exist. There is no other way to read one.
pub(super) async fn definition_at(
    client: &Client,
    key: &str,
    revision: u64,
) -> Result<Option<Value>, Failure> {
    let first = Request::get("/api/v1/config_definition/")
        .query("search", key)
        .query("limit", 1000)
        .query("sort_by", "config_definition_key")
        .query("sort_order", "asc")
        .query("revision", revision);
    let mut results = client.pages(first).all().await?;
    let place = results.iter().position(|one| one["config_definition_key"] == key);
    Ok(place.map(|place| results.swap_remove(place)))
}

/// The texts of a list.
pub(super) fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A config; `None` if it does not exist.
pub(super) async fn config(
    client: &Client,
    definition: &str,
    key: &str,
) -> Result<Option<Versioned<Value>>, Failure> {
    config_of(client, definition, key, Request::get(config_path(definition, key))).await
}

/// A config as it was at a revision; `None` if it did not exist.
pub(super) async fn config_at(
    client: &Client,
    definition: &str,
    key: &str,
    revision: u64,
) -> Result<Option<Versioned<Value>>, Failure> {
    let request = Request::get(config_path(definition, key)).query("revision", revision);
    config_of(client, definition, key, request).await
}

async fn config_of(
    client: &Client,
    definition: &str,
    key: &str,
    request: Request,
) -> Result<Option<Versioned<Value>>, Failure> {
    let answer = match client.send(request).await {
        Err(error) if error.is_not_found() => return Ok(None),
        answer => answer?,
    };
    let redacted: Vec<String> =
        answer.redacted().into_iter().flat_map(|places| places.split(", ")).map(str::to_owned).collect();
    let revision = answer.revision().ok_or_else(|| Error::Protocol("the config has no revision".into()))?;
    let mut value = answer.data()?["data"].take();
    keep_redacted(&mut value, redacted.iter().map(String::as_str))
        .map_err(|error| format!("config {definition}/{key}: {error}"))?;
    Ok(Some(Versioned { revision, value }))
}

/// An event while configs are listed.
pub(super) enum ListedConfig<'a> {
    /// A config, with the key of its definition and its own.
    Config(&'a str, &'a str, Versioned<Value>),
    /// The listing of these definitions starts over; of all, if none is named.
    Again(&'a [String]),
}

/// Lists all configs of these definitions; without a definition, all that the access key may read. Returns the revision
/// of the state.
pub(super) async fn configs(
    client: &Client,
    definitions: &[String],
    mut each: impl FnMut(ListedConfig<'_>) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let mut revision = 0;
    let chunks: Vec<&[String]> =
        if definitions.is_empty() { vec![&[]] } else { definitions.chunks(DEFINITIONS_OF_A_WATCH).collect() };
    for chunk in chunks {
        let mut request = Request::get("/api/v1/watch").query("initial", "true");
        for definition in chunk {
            request = request.query("definition", definition);
        }
        let mut watch = client.watch(request);
        loop {
            let event = watch.next().await?;
            match event.kind {
                EventKind::Restarted => {
                    each(ListedConfig::Again(chunk))?;
                    continue;
                }
                EventKind::Heartbeat | EventKind::Change => continue,
                EventKind::State => {}
            }
            for config in event.data["configs"].as_array().into_iter().flatten() {
                let (definition, key, found) = of_state(config)?;
                each(ListedConfig::Config(&definition, &key, found))?;
            }
            if event.data["complete"] == true {
                revision = event.data["revision"].as_u64().unwrap_or(revision).max(revision);
                break;
            }
        }
    }
    Ok(revision)
}

/// A config of the initial state of a watch, with the key of its definition and its own.
pub(super) fn of_state(config: &Value) -> Result<(String, String, Versioned<Value>), Failure> {
    let text = |name: &str| config[name].as_str().map(str::to_owned);
    let (Some(definition), Some(key), Some(revision)) =
        (text("config_definition_key"), text("config_key"), config["revision"].as_u64())
    else {
        return Err(Error::Protocol("an event has a config without a key".into()).into());
    };
    let mut value = config["data"].clone();
    let redacted = config["redacted"].as_array().into_iter().flatten().filter_map(Value::as_str);
    keep_redacted(&mut value, redacted).map_err(|error| format!("config {definition}/{key}: {error}"))?;
    Ok((definition, key, Versioned { revision, value }))
}

/// The configs with these keys; or all configs of their definitions, if all are needed or the keys are many.
pub(super) async fn some_or_all(
    client: &Client,
    keys: &[&(String, String)],
    definitions: &[String],
    all: bool,
) -> Result<BTreeMap<(String, String), Versioned<Value>>, Failure> {
    const READ_ONE_BY_ONE_MAX: usize = 64;
    let mut found = BTreeMap::new();
    if all || keys.len() > READ_ONE_BY_ONE_MAX {
        configs(client, definitions, |told| {
            match told {
                ListedConfig::Config(definition, key, config) => {
                    found.insert((definition.to_owned(), key.to_owned()), config);
                }
                ListedConfig::Again([]) => found.clear(),
                ListedConfig::Again(definitions) => {
                    found.retain(|(definition, _), _| !definitions.contains(definition));
                }
            }
            Ok(())
        })
        .await?;
        return Ok(found);
    }
    for (definition, key) in keys {
        if let Some(config) = config(client, definition, key).await? {
            found.insert((definition.clone(), key.clone()), config);
        }
    }
    Ok(found)
}

/// How many configs a definition has.
pub(super) async fn count(client: &Client, key: &str) -> Result<usize, Failure> {
    let list = Request::get(format!("{}/config/", definition_path(key))).query("limit", 1);
    match client.send(list).await {
        Ok(answer) => {
            let total = answer.data()?["meta"]["total"].as_u64().unwrap_or(0);
            Ok(usize::try_from(total).unwrap_or(usize::MAX))
        }
        // It was deleted in the meantime.
        Err(error) if error.is_not_found() => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The keys of all definitions that the key may read.
pub(super) async fn definition_keys(client: &Client) -> Result<Vec<String>, Failure> {
    let first = Request::get("/api/v1/config_definition/")
        .query("limit", 1000)
        .query("sort_by", "config_definition_key")
        .query("sort_order", "asc");
    let all = client.pages(first).all().await?;
    Ok(all.iter().filter_map(|found| found["config_definition_key"].as_str()).map(str::to_owned).collect())
}

/// The JSON pointer of a redacted place; `None` if the text is not a JSON pointer.
pub(super) fn pointer_of(place: &str) -> Option<String> {
    let pointer = place.strip_prefix('#')?;
    Some(percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?.into_owned())
}

/// Replaces each redacted value with the marker that keeps the stored value.
pub(super) fn keep_redacted<'a>(
    data: &mut Value,
    places: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    for place in places {
        let found = pointer_of(place).and_then(|pointer| data.pointer_mut(&pointer));
        let Some(found) = found else {
            return Err(
                "it has more secret fields than the response lists: use a key with the permission `reveal`"
                    .into(),
            );
        };
        *found = json!({ "$concord-keep": true });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redacted_place_is_kept_and_never_null() {
        let mut data = json!({"password": null, "a b": [{"token": null}], "none": null});
        keep_redacted(&mut data, ["#/password", "#/a%20b/0/token"].into_iter()).unwrap();
        let keep = json!({"$concord-keep": true});
        assert_eq!(data, json!({"password": keep, "a b": [{"token": keep}], "none": null}));
        for wrong in ["...", "#/absent"] {
            assert!(keep_redacted(&mut data, [wrong].into_iter()).is_err(), "{wrong}");
        }
        keep_redacted(&mut data, ["#"].into_iter()).unwrap();
        assert_eq!(data, keep);
    }
}
