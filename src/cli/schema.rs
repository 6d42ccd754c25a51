//! `concord schema export DIR`: JSON schemas for editors and checkers of files.
//!
//! One schema of the data of each definition, and one of files with definitions and configs, which refers to them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use concord_client::Request;
use concord_model::{
    key::{Key, KeyError},
    limits::KEY_BYTES_MAX,
    redaction::KEEP,
    schema::secret::MARK,
};
use serde_json::{Map, Value, json};

use super::{
    connection::{Failure, NodeArgs, run_with_client},
    manifest::{FileArgs, Manifests},
    output::{counted, line},
    secret_source::{ENV, FILE, PREFIX},
};

/// The draft of a schema that names none.
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
/// The draft of the schema of files: the one that all editors know.
const FILES_DRAFT: &str = "http://json-schema.org/draft-07/schema#";
/// The schema of files.
const SCHEMA_OF_FILES: &str = "concord.schema.json";
/// The folder of the schemas of data.
const DATA: &str = "data";

#[derive(Debug, Subcommand)]
pub(super) enum SchemaCommand {
    /// Write the JSON schemas of all definitions, and of files of definitions and configs, to a directory
    Export(SchemaExportArgs),
}

#[derive(Debug, Args)]
pub(super) struct SchemaExportArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The directory; it is created
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Take the definitions of these files and directories, not those of the cluster; repeatable
    #[arg(short, long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
}

/// Runs the command.
pub(super) fn run(command: &SchemaCommand) -> Result<(), Failure> {
    let SchemaCommand::Export(args) = command;
    if !args.files.is_empty() {
        let read = Manifests::read(&FileArgs::new(args.files.clone(), true))?;
        let schemas = read.definitions.into_iter().map(|(key, definition)| (key, definition.schema));
        return write(&args.dir, schemas.collect());
    }
    run_with_client(&args.node, async |client| {
        let first = Request::get("/api/v1/config_definition/").query("limit", 1000);
        let first = first.query("sort_by", "config_definition_key").query("sort_order", "asc");
        let found = client.pages(first).all().await?.into_iter().map(|mut definition| {
            let schema = Some(definition["json_schema"].take()).filter(|schema| !schema.is_null());
            (definition["config_definition_key"].as_str().unwrap_or_default().to_owned(), schema)
        });
        write(&args.dir, found.collect())
    })
}

fn write(dir: &Path, schemas: Vec<(String, Option<Value>)>) -> Result<(), Failure> {
    // A key is a part of a path.
    if let Some((key, _)) = schemas.iter().find(|(key, _)| Key::parse(key).is_err()) {
        return Err(Failure::Invalid(format!("`{key}`: {KeyError}")));
    }
    let failed = |path: &Path, error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    let data = dir.join(DATA);
    fs::create_dir_all(&data).map_err(|error| failed(&data, error))?;
    let keys: Vec<String> = schemas.iter().map(|(key, _)| key.clone()).collect();
    for (key, schema) in schemas {
        let path = data.join(format!("{key}.schema.json"));
        fs::write(&path, format!("{:#}\n", data_schema(&key, schema)))
            .map_err(|error| failed(&path, error))?;
    }
    let path = dir.join(SCHEMA_OF_FILES);
    fs::write(&path, format!("{:#}\n", files_schema(&keys))).map_err(|error| failed(&path, error))?;
    line(format_args!("{}: {}", path.display(), counted(keys.len() as u64, "definition")))
}

/// The schema of the data of a definition, with the draft that Concord takes it for. In files, a marker may stand in place
/// of a secret value.
fn data_schema(key: &str, mut schema: Option<Value>) -> Value {
    if let Some(schema) = &mut schema {
        let mut references = Vec::new();
        collect_references(schema, &mut references);
        members(schema, "#", &mut |schema, place| allow_marker(schema, place, &references));
    }
    match schema {
        None => json!({ "$schema": DRAFT, "title": key, "type": "object" }),
        Some(Value::Object(members)) if !members.contains_key("$schema") => {
            let mut all = Map::from_iter([("$schema".to_owned(), DRAFT.into())]);
            all.extend(members);
            all.into()
        }
        Some(other) => other,
    }
}

/// The references in a schema.
fn collect_references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| collect_references(member, found));
        }
        Value::Array(elements) => elements.iter().for_each(|element| collect_references(element, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Visits the schemas in a schema with their places, inner ones first.
fn members(schema: &mut Value, place: &str, visit: &mut impl FnMut(&mut Value, &str)) {
    let Value::Object(keywords) = schema else { return };
    for (keyword, value) in keywords {
        let place = format!("{place}/{keyword}");
        let mut all = |each: &mut dyn Iterator<Item = (String, &mut Value)>| {
            for (name, schema) in each {
                let place = format!("{place}/{name}");
                members(schema, &place, visit);
                visit(schema, &place);
            }
        };
        match (keyword.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(named),
            ) => {
                let escaped = |name: &String| name.replace('~', "~0").replace('/', "~1");
                all(&mut named.iter_mut().map(|(name, schema)| (escaped(name), schema)));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => {
                all(&mut list.iter_mut().enumerate().map(|(number, schema)| (number.to_string(), schema)));
            }
            (
                "items"
                | "additionalItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedItems"
                | "unevaluatedProperties"
                | "if"
                | "then"
                | "else",
                schema,
            ) => {
                members(schema, &place, visit);
                visit(schema, &place);
            }
            _ => {}
        }
    }
}

/// Lets a marker stand in place of a value that is marked as secret. Not where a reference leads into the schema: it
/// would lead nowhere.
fn allow_marker(schema: &mut Value, place: &str, references: &[String]) {
    let is_secret = schema.get(MARK).is_some_and(|mark| *mark != Value::Bool(false));
    let is_entered = || {
        let leads_in = |rest: &str| rest.starts_with('/');
        references.iter().any(|to| to.strip_prefix(place).is_some_and(leads_in))
    };
    if is_secret && !is_entered() {
        let marker = json!({
            "title": "A secret value that is elsewhere",
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": false,
            "properties": {
                KEEP: { "const": true, "description": "The value that the cluster has" },
                ENV: { "type": "string", "pattern": format!("^{PREFIX}[A-Za-z0-9_]+$"), "description": "The value of a variable of the environment" },
                FILE: { "type": "string", "description": "The text of a file below the directory of --secret-files" },
            },
        });
        *schema = json!({ "anyOf": [schema.take(), marker] });
    }
}

/// The schema of files: a definition, a config, or a list of them.
fn files_schema(keys: &[String]) -> Value {
    let of_data = keys.iter().map(|key| {
        json!({
            "if": { "properties": { "config_definition_key": { "const": key } } },
            "then": { "properties": { "data": { "$ref": format!("./{DATA}/{key}.schema.json") } } },
        })
    });
    // The definition of a config may be in the same files, so any key is valid; editors offer those that are known.
    let any_key = json!({ "type": "string", "pattern": format!("^[A-Za-z0-9][A-Za-z0-9_.~-]{{0,{}}}$", KEY_BYTES_MAX - 1) });
    let key = json!({ "anyOf": [{ "enum": keys }, any_key] });
    let paths = json!({ "type": ["array", "null"], "items": { "type": "string" }, "uniqueItems": true });
    let mut config = json!({
        "title": "A config",
        "type": "object",
        "required": ["config_definition_key", "config_key", "data"],
        "additionalProperties": false,
        "properties": {
            "config_definition_key": key,
            "config_key": any_key,
            "data": { "type": "object" },
        },
    });
    if !keys.is_empty() {
        // An empty list is no valid `allOf`.
        config["allOf"] = of_data.collect();
    }
    let mut definition = json!({
        "title": "A definition",
        "type": "object",
        "required": ["config_definition_key"],
        "additionalProperties": false,
        "properties": {
            "config_definition_key": key,
            "indexes": paths,
            "json_schema": { "type": ["object", "null"], "description": "What the data of its configs look like" },
            "unique": paths,
            "format_assertion": { "type": ["boolean", "null"], "description": "Whether `format` is checked" },
            "protected": { "type": ["boolean", "null"], "description": "Whether its deletion is rejected" },
        },
    });
    // Members that `apply` ignores.
    for (name, schema) in [
        ("$schema", json!({ "type": "string" })),
        ("created_at", json!({ "type": "string" })),
        ("modified_at", json!({ "type": "string" })),
        ("revision", json!({ "type": "integer" })),
    ] {
        config["properties"][name] = schema.clone();
        definition["properties"][name] = schema;
    }
    json!({
        "$schema": FILES_DRAFT,
        "title": "Definitions and configs of Concord",
        "if": { "type": "array" },
        "then": { "items": { "$ref": "#/definitions/record" } },
        "else": { "$ref": "#/definitions/record" },
        "definitions": {
            "record": {
                "if": { "required": ["config_key"] },
                "then": { "$ref": "#/definitions/config" },
                "else": { "$ref": "#/definitions/definition" },
            },
            "config": config,
            "definition": definition,
        },
    })
}

#[cfg(test)]
mod tests {
    use concord_model::schema::{Formats, Schema};

    use super::*;

    #[test]
    fn files_have_definitions_and_configs_and_no_other_member() {
        let files = files_schema(&[]);
        let schema = Schema::compile(&files, Formats::Asserted).unwrap();
        for (file, is_valid) in [
            (json!({ "config_definition_key": "limits", "indexes": ["plan"], "json_schema": {} }), true),
            (json!({ "config_definition_key": "limits", "json_schema": true }), false),
            (json!({ "config_definition_key": "-limits" }), false),
            (
                json!({ "$schema": "x", "config_definition_key": "limits", "config_key": "a", "data": {} }),
                true,
            ),
            (
                json!([{ "config_definition_key": "limits" }, { "config_definition_key": "l", "config_key": "a", "data": {} }]),
                true,
            ),
            (json!({ "config_definition_key": "limits", "index": [] }), false),
            (json!({ "config_definition_key": "limits", "config_key": "a" }), false),
            (json!([{ "config_definition_key": "limits", "config_key": "a", "data": 1 }]), false),
            (json!({ "config_definition_key": "no good" }), false),
        ] {
            assert_eq!(schema.accepts(&file), is_valid, "{file}");
        }
    }

    #[test]
    fn a_key_leads_to_no_other_directory() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("schemas");
        let failure = write(&dir, vec![("../../escaped".into(), None)]).unwrap_err();
        assert!(format!("{failure:?}").contains("`../../escaped`: a key is"), "{failure:?}");
        assert!(!dir.exists());
    }

    #[test]
    fn a_marker_may_stand_for_a_secret_value() {
        let schema = json!({
            "properties": {
                "host": { "type": "string" },
                "password": { "type": "string", "x-concord-secret": true },
                "keys": { "items": { "$ref": "#/$defs/key~1s" } },
                "open": { "x-concord-secret": false, "type": "string" },
                "pair": { "type": "object", "x-concord-secret": true, "properties": { "a": { "type": "integer" } } },
                "other": { "$ref": "#/properties/pair/properties/a" },
            },
            "$defs": { "key/s": { "type": "string", "x-concord-secret": 1 } },
        });
        let schema = Schema::compile(&data_schema("d", Some(schema)), Formats::Asserted).unwrap();
        let env = json!({ "$concord-env": "CONCORD_SECRET_X" });
        for (data, is_valid) in [
            (json!({ "host": "h", "password": "p", "keys": ["k"], "other": 1, "pair": { "a": 1 } }), true),
            (json!({ "password": env, "keys": ["k", env, { "$concord-file": "f" }] }), true),
            (json!({ "password": { "$concord-keep": true } }), true),
            (json!({ "password": { "$concord-env": "PATH" } }), false),
            (json!({ "password": { "$concord-env": "CONCORD_SECRET_X\ny" } }), false),
            (json!({ "password": { "$concord-env": "CONCORD_SECRET_X", "$concord-file": "f" } }), false),
            (json!({ "host": env }), false),
            (json!({ "open": env }), false),
            (json!({ "password": 1 }), false),
            (json!({ "other": "x" }), false),
        ] {
            assert_eq!(schema.accepts(&data), is_valid, "{data}");
        }
    }

    #[test]
    fn each_definition_has_the_schema_of_its_data() {
        let files = files_schema(&["prod.limits".into()]);
        let of_one = &files["definitions"]["config"]["allOf"][0];
        assert_eq!(of_one["if"]["properties"]["config_definition_key"]["const"], "prod.limits");
        assert_eq!(of_one["then"]["properties"]["data"]["$ref"], "./data/prod.limits.schema.json");
        let schema = data_schema("limits", Some(json!({ "type": "object", "title": "Limits" })));
        assert_eq!(
            schema.to_string(),
            format!(r#"{{"$schema":"{DRAFT}","type":"object","title":"Limits"}}"#)
        );
        let own = json!({ "$schema": FILES_DRAFT });
        assert_eq!(data_schema("limits", Some(own.clone())), own);
        assert_eq!(data_schema("limits", None)["type"], "object");
    }
}
