//! `concord export --update`: brings files to the state of the cluster, in place.
//!
//! **Invariants:** only values that differ are written; comments and layout stay. A secret value is never written: one that
//! a file has or names stays, and a new one is the marker that keeps it. A file is replaced as a whole or not at all, and
//! none before all new ones are complete on the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use concord_client::Client;
use concord_model::redaction::KEEP;
use serde_json::{Map, Value, json};

use super::{
    connection::Failure,
    document,
    manifest::{FileArgs, ManifestDefinition, Manifests, Place, name},
    mask::Mask,
    output::{Format, counted, note, print_done},
    place::Target,
    plan::FoundRecords,
    redacted::escaped,
    text_update,
};

/// Members of a definition that keep their setting where a file does not have them.
const OPTIONAL: [&str; 2] = ["format_assertion", "protected"];

/// Updates the files below these paths.
pub(super) async fn update(client: &Client, paths: &[PathBuf], format: &Format) -> Result<(), Failure> {
    if paths.iter().any(|path| path == Path::new("-")) {
        return Err(Failure::Usage("stdin can't be updated".into()));
    }
    let files = Manifests::read(&FileArgs::new(paths.to_vec(), true))?;
    let found = FoundRecords::read(client, &files, false).await?;
    let mut mask = Mask::default();
    for (key, stored) in &found.definitions {
        let stored = stored.as_ref().map(|stored| &stored.value);
        for definition in [stored, files.definitions.get(key)].into_iter().flatten() {
            mask.add(key, definition.schema.as_ref());
        }
    }
    let (mut texts, mut results, mut all) = (Vec::new(), Vec::new(), 0);
    for (path, records) in by_file(&files) {
        let text = fs::read_to_string(path).map_err(|error| failed(path, &error))?;
        let documents = document::read(&text, path).map_err(|error| failed(path, &error))?;
        let mut values: Vec<Value> = documents.into_iter().map(|one| one.value).collect();
        let mut names = Vec::new();
        for (definition, key, place) in records {
            let record = values.get_mut(place.document).and_then(|document| match place.item {
                Some(item) => document.get_mut(item),
                None => Some(document),
            });
            let Some(Value::Object(record)) = record else {
                return Err(failed(path, &"it has changed while it was read"));
            };
            let before = record.clone();
            if !set(record, &found, &mask, (definition, key)) {
                note(format_args!("{place}: left as it is: the cluster has no {}", name(definition, key)));
            } else if !document::is_same(&before.into(), &record.clone().into()) {
                names.push(name(definition, key));
            }
        }
        if !names.is_empty() {
            let new = text_update::update(&text, path, &values)
                .map_err(|error| failed(path, &format!("can't be updated in place: {error}")))?;
            all += names.len() as u64;
            results.push(json!({ "file": path, "updated": names }));
            texts.push((path, new));
        }
    }
    let line = |(path, _): &(&Path, String), result: &Value| {
        let updated = result["updated"].as_array().map_or(0, Vec::len) as u64;
        format!("{}: {} updated", path.display(), counted(updated, "record"))
    };
    let lines: Vec<String> = texts.iter().zip(&results).map(|(text, result)| line(text, result)).collect();
    let mut staged = Vec::new();
    for (path, text) in &texts {
        let target = Target::existing(path).map_err(|error| failed(path, &error))?;
        staged.push((path, target.stage(text.as_bytes()).map_err(|error| failed(path, &error))?));
    }
    for (path, file) in staged {
        file.publish().map_err(|error| failed(path, &error))?;
    }
    if lines.is_empty() && format.is_table() {
        note("the files are as the cluster is");
        return Ok(());
    }
    print_done(format, &json!({ "results": results, "meta": { "updated": all } }), "file", lines.join("\n"))
}

fn failed(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {why}", path.display()))
}

/// The records of each file with their keys and places.
fn by_file(files: &Manifests) -> BTreeMap<&Path, Vec<(&str, &str, &Place)>> {
    let mut all: BTreeMap<&Path, Vec<(&str, &str, &Place)>> = BTreeMap::new();
    for (definition, key, place) in files.places() {
        all.entry(&place.file).or_default().push((definition, key, place));
    }
    all
}

/// Sets a record of a file to what the cluster has. False if it has none.
fn set(record: &mut Map<String, Value>, found: &FoundRecords, mask: &Mask, id: (&str, &str)) -> bool {
    let (definition, key) = id;
    let stored = found.definitions.get(definition).and_then(Option::as_ref).map(|found| &found.value);
    if key.is_empty() {
        stored.into_iter().for_each(|stored| set_definition(record, definition, stored));
        return stored.is_some();
    }
    let Some(config) = found.configs.get(&(definition.to_owned(), key.to_owned())) else { return false };
    let data = record.get("data").cloned().unwrap_or_default();
    record.insert("data".into(), with_secrets_of(&data, config.value.clone(), mask, definition));
    true
}

fn set_definition(record: &mut Map<String, Value>, key: &str, stored: &ManifestDefinition) {
    let Value::Object(members) = stored.to_json(key) else { return };
    // What a file says of nothing and the cluster does not have.
    let is_nothing = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    for member in ["indexes", "json_schema", "unique"] {
        match members.get(member).filter(|value| !is_nothing(value)) {
            Some(value) => drop(record.insert(member.into(), value.clone())),
            None if record.get(member).is_some_and(|value| !is_nothing(value)) => {
                record.shift_remove(member);
            }
            None => {}
        }
    }
    for member in OPTIONAL {
        if let Some(value) = record.get_mut(member).filter(|value| !value.is_null()) {
            *value = members.get(member).cloned().unwrap_or(false.into());
        }
    }
}

/// Data of the cluster with the secret values of a file.
fn with_secrets_of(file: &Value, mut data: Value, mask: &Mask, definition: &str) -> Value {
    let blank = |data: &Value| {
        let mut blank = data.clone();
        for place in mask.places(definition, data) {
            blank.pointer_mut(&place).into_iter().for_each(|value| *value = Value::Null);
        }
        blank
    };
    let secrets = mask.places(definition, &data).into_iter().collect();
    let visible = blank(&data);
    keep_secrets(&mut data, &visible, Some((file, &blank(file))), ("", &secrets));
    data
}

/// Puts what a file has at secret fields into data, or else the marker that keeps a value. `visible` is the data without
/// secret values; of the file there are both.
fn keep_secrets(
    data: &mut Value,
    visible: &Value,
    file: Option<(&Value, &Value)>,
    (path, secrets): (&str, &BTreeSet<String>),
) {
    if secrets.contains(path) {
        *data = file.map_or_else(|| json!({ KEEP: true }), |(whole, _)| whole.clone());
        return;
    }
    match (data, visible) {
        (Value::Object(members), Value::Object(visible)) => {
            for (name, member) in members {
                let of_file = file.and_then(|(whole, visible)| Some((whole.get(name)?, visible.get(name)?)));
                let path = format!("{path}/{}", escaped(name));
                keep_secrets(member, visible.get(name).unwrap_or(&Value::Null), of_file, (&path, secrets));
            }
        }
        (Value::Array(elements), Value::Array(visible)) => {
            let of_file = file.and_then(|(whole, visible)| Some((whole.as_array()?, visible.as_array()?)));
            let places = same_elements(visible, of_file.map_or(&[], |(_, visible)| visible));
            for (((place, element), visible), in_file) in
                elements.iter_mut().enumerate().zip(visible).zip(places)
            {
                let of_file = of_file
                    .zip(in_file)
                    .and_then(|((whole, visible), place)| Some((whole.get(place)?, visible.get(place)?)));
                keep_secrets(element, visible, of_file, (&format!("{path}/{place}"), secrets));
            }
        }
        _ => {}
    }
}

/// The places of the same elements in the list of a file. Elements may have come, gone or moved: a list that looks as it
/// did is the same one. In any other, an element is the same only if it alone looks so, before and now.
fn same_elements(now: &[Value], of_file: &[Value]) -> Vec<Option<usize>> {
    if now == of_file {
        return (0..now.len()).map(Some).collect();
    }
    let single = |list: &[Value]| {
        let mut places: BTreeMap<String, Option<usize>> = BTreeMap::new();
        for (place, element) in list.iter().enumerate() {
            places.entry(element.to_string()).and_modify(|known| *known = None).or_insert(Some(place));
        }
        places
    };
    let (single_now, single_in_file) = (single(now), single(of_file));
    let of = |element: &Value| {
        let text = element.to_string();
        let place = |all: &BTreeMap<String, Option<usize>>| all.get(&text).copied().flatten();
        place(&single_now).and_then(|_| place(&single_in_file))
    };
    now.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_value_stays_as_a_file_has_it() {
        let schema = json!({"properties": {
            "password": {"x-concord-secret": true},
            "all": {"items": {"properties": {"token": {"x-concord-secret": true}}}},
        }});
        let mut mask = Mask::default();
        mask.add("d", Some(&schema));
        let (env, keep) = (json!({"$concord-env": "CONCORD_SECRET_X"}), json!({"$concord-keep": true}));
        let of = |file: Value, data: Value| with_secrets_of(&file, data, &mask, "d");
        let both = json!({"host": "new", "password": "pw"});
        assert_eq!(of(json!({"password": env}), both.clone()), json!({"host": "new", "password": env}));
        assert_eq!(of(json!({"password": "old"}), both.clone()), json!({"host": "new", "password": "old"}));
        assert_eq!(of(json!({}), both), json!({"host": "new", "password": keep}));
        let list = |one: Value, two: Value| json!({"all": [{"n": 1, "token": one}, {"n": 2, "token": two}]});
        assert_eq!(
            of(list(env.clone(), json!("b")), list(json!("x"), json!("y"))),
            list(env.clone(), json!("b"))
        );
        // The first element is gone: its value must not become that of the second one, which has its own.
        let one = json!({"all": [{"n": 2, "token": "y"}]});
        assert_eq!(of(list(env, json!("b")), one), json!({"all": [{"n": 2, "token": "b"}]}));
    }

    #[test]
    fn a_secret_value_of_a_list_never_becomes_that_of_another_element() {
        let schema = json!({"properties": {
            "tokens": {"items": {"x-concord-secret": true}},
            "all": {"items": {"properties": {"token": {"x-concord-secret": true}}}},
        }});
        let mut mask = Mask::default();
        mask.add("d", Some(&schema));
        let of = |file: Value, data: Value| with_secrets_of(&file, data, &mask, "d");
        let keep = json!({"$concord-keep": true});
        let [a, b] = ["CONCORD_SECRET_A", "CONCORD_SECRET_B"].map(|name| json!({ "$concord-env": name }));
        // As many as before: each is at its place. One is gone, or has come: nobody knows which.
        let tokens = |all: &[&Value]| json!({ "tokens": all });
        let (file, hidden) = (tokens(&[&a, &b]), Value::Null);
        assert_eq!(of(file.clone(), tokens(&[&hidden, &hidden])), file);
        assert_eq!(of(file.clone(), tokens(&[&hidden])), tokens(&[&keep]));
        assert_eq!(of(file, tokens(&[&hidden, &hidden, &hidden])), tokens(&[&keep, &keep, &keep]));
        // Two look alike.
        let element = |role: &str, token: &Value| json!({"role": role, "token": token});
        let all = |all: &[Value]| json!({ "all": all });
        let file = all(&[element("ro", &a), element("ro", &b), element("rw", &a)]);
        assert_eq!(
            of(file, all(&[element("ro", &hidden), element("rw", &hidden)])),
            all(&[element("ro", &keep), element("rw", &a)])
        );
        // One was put before the others.
        let file = all(&[element("ro", &a), element("rw", &b)]);
        let now = ["ro", "rx", "ro", "rw"].map(|role| element(role, &hidden));
        let expected = [element("ro", &keep), element("rx", &keep), element("ro", &keep), element("rw", &b)];
        assert_eq!(of(file.clone(), all(&now)), all(&expected));
        // They have changed places.
        let now = ["rw", "ro"].map(|role| element(role, &hidden));
        assert_eq!(of(file, all(&now)), all(&[element("rw", &b), element("ro", &a)]));
    }

    #[test]
    fn a_definition_has_no_more_members_than_it_needs() {
        let set = |record: Value, stored: &ManifestDefinition| {
            let Value::Object(mut record) = record else { panic!("{record}") };
            set_definition(&mut record, "limits", stored);
            Value::Object(record)
        };
        let nothing = ManifestDefinition { format_assertion: Some(true), ..ManifestDefinition::default() };
        for same in [
            json!({"config_definition_key": "limits"}),
            json!({"config_definition_key": "limits", "indexes": [], "json_schema": null, "format_assertion": true}),
        ] {
            assert_eq!(set(same.clone(), &nothing), same);
        }
        let more = ManifestDefinition {
            indexes: vec!["a".into()],
            unique: vec!["a".into()],
            protected: Some(true),
            ..nothing.clone()
        };
        let file = json!({"config_definition_key": "limits", "json_schema": {"a": 1}, "protected": false});
        assert_eq!(
            set(file, &more),
            json!({"config_definition_key": "limits", "protected": true, "indexes": ["a"], "unique": ["a"]})
        );
    }
}
