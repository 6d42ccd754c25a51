//! The operations on configs, except patches.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Type, schema::SchemaType};

use super::{
    builder::{
        CODED, DRY_RUN_WRITE_PARAMETERS, OperationEntry, READ_PARAMETERS, READ_REFUSALS, READER_PARAMETERS,
        RECORD_HEADERS, REDACTED, SEEN_HEADERS, WRITE_REFUSALS, describe, payload,
    },
    schemas::{NamedSchema, closed, included_revision, integer, json_object, page, reference, text, times},
};
use crate::{
    body::fields::schema_of,
    configs::{ConfigCreation, ConfigData},
    read::BulkReadBody,
};
use concord_model::limits::Limits;

/// The data of the examples.
pub(super) fn example_data() -> Value {
    json!({ "port": 8080 })
}

fn record() -> Value {
    json!({
        "config_key": "prod",
        "data": example_data(),
        "created_at": "2026-03-01T12:00:00.000001Z",
        "modified_at": "2026-03-01T12:00:00.000001Z",
    })
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let page = json!({ "results": [record()], "meta": { "page": 1, "limit": 10, "total": 1 } });
    let names = json!({ "config_definition_key": "app", "config_key": "prod" });
    let dry_run = ["X-Concord-Dry-Run", "Warning"];
    let deletion = [&dry_run[..], &["X-Concord-Write-Revision"]].concat();
    let updated = [RECORD_HEADERS, &dry_run, &[REDACTED]].concat();
    let created = [&["Location"], &*updated].concat();
    let mut operations = vec![
        describe("configs", "create_config", "Create a config")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["create_only"])
            .body("ConfigInput", json!({ "config_key": "prod", "data": example_data() }))
            .success(201, "config created", payload("Data", example_data()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 507]),
        describe("configs", "list_configs", "List configs")
            .description(
                "Filters and sorts use indexes, never a scan of all configs. `total` counts all matches. 409 while an index \
                 that the list needs is being built. With `revision`, the list as it was at that revision, by the \
                 definition of then. With `raw=true`, or with `Accept` of another format, all configs as one object \
                 by key: the document does not describe this response.",
            )
            .parameters(&["page", "limit", "sort_configs", "sort_order", "search", "cursor", "filters"])
            .parameters(&["list_revision", "include", "fields"])
            .parameters(READ_PARAMETERS)
            .success(200, "configs found", payload("ConfigPage", page), &[&["Link", REDACTED], CODED].concat())
            .refusals(READ_REFUSALS)
            .refusals(&[404, 409, 410]),
        describe("configs", "read_config", "Get a config")
            .description(
                "With `revision`, the config as of that revision. A reader that is in a rollout of the config gets the \
                 candidate: its data, with the times and the revision of the proven config. With `raw=true`, or with \
                 `Accept` of `application/yaml` or `text/x-java-properties`, the data alone: the document does not describe \
                 these responses.",
            )
            .parameters(&["If-None-Match", "revision", "include", "fields"])
            .parameters(READER_PARAMETERS)
            .parameters(READ_PARAMETERS)
            .success(
                200,
                "config found",
                payload("ConfigRecord", record()),
                &[SEEN_HEADERS, &[REDACTED], CODED].concat(),
            )
            .response(304, "The client has the current version.", None, SEEN_HEADERS)
            .refusals(READ_REFUSALS)
            .refusals(&[404, 410, 429]),
        describe("configs", "update_config", "Replace a config's data")
            .description(
                "With `If-None-Match: *` it creates the config, and fails when the config exists. With `upsert=true` and \
                 no condition it creates the config or replaces its data.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless", "upsert"])
            .body("DataInput", json!({ "data": example_data() }))
            .success(200, "config updated", payload("Data", example_data()), &updated)
            .success(201, "config created", payload("Data", example_data()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe("configs", "delete_config", "Delete a config")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .success(200, "config deleted", payload("ConfigIdentity", names), &deletion)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
    ];
    operations.extend(of_many());
    operations
}

/// Those that read configs of several definitions.
fn of_many() -> [OperationEntry; 2] {
    let mut with_definition = record();
    with_definition["config_definition_key"] = json!("app");
    let across = json!({ "results": [with_definition], "meta": { "page": 1, "limit": 10, "total": 1 } });
    let names = json!({ "config_definition_key": "app", "config_key": "prod" });
    let found = json!({
        "config_definition_key": "app", "config_key": "prod", "status": "found", "revision": 41, "config": record(),
    });
    let many = json!({ "revision": 42, "results": [found] });
    [
        describe("configs", "list_configs_across", "List the configs of several definitions")
            .description(
                "Of the definitions that `definition` names, as far as the key may read them; of all without it. A filter \
                 finds configs of the definitions in which its path is indexed and its text can be read; where that is so \
                 in none, it is refused.",
            )
            .parameters(&["page", "limit", "sort_across", "sort_order", "search", "cursor", "filters"])
            .parameters(&["definition_patterns", "include", "fields"])
            .parameters(READ_PARAMETERS)
            .success(200, "configs found", payload("AcrossPage", across), &["Link", REDACTED])
            .refusals(READ_REFUSALS)
            .refusals(&[409, 410]),
        describe("configs", "read_configs", "Read many configs at once")
            .description(
                "All of one revision. Each config has a result, in the order of the request: `found` with its record, \
                 `not_modified` where `if_none_match` names its version, `absent` and `forbidden` with the errors of a read \
                 of it alone. 403 when the key may read none of them. With `revision`, the configs as of that revision, \
                 fewer of them at once. Where a result has `variant`, the reader is in a rollout: `config` is the candidate, and \
                 its entity tag is the `change_id`.",
            )
            .parameters(READER_PARAMETERS)
            .parameters(READ_PARAMETERS)
            .body("ManyConfigs", json!({ "configs": [names] }))
            .success(200, "configs read", payload("ReadConfigs", many), &[&[REDACTED], CODED].concat())
            .refusals(READ_REFUSALS)
            .refusals(&[410, 413, 415]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("ConfigInput", schema_of(limits, ConfigCreation::read).into()),
        ("DataInput", schema_of(limits, ConfigData::read).into()),
        ("ManyConfigs", schema_of(limits, BulkReadBody::read).into()),
        // Parts of payloads, which no request answers.
        ("AcrossRecord", across_record().into()),
        ("Variant", variant().into()),
    ]
}

/// A config with its definition.
fn across_record() -> ObjectBuilder {
    let data = json_object().schema_type(SchemaType::from_iter([Type::Object, Type::Null]));
    let keys = [("config_definition_key", reference("Key")), ("config_key", reference("Key"))];
    let members = keys.into_iter().chain([("data", data.into())]).chain(times()).collect();
    closed(members, vec![included_revision()])
}

/// That a config is a candidate.
fn variant() -> ObjectBuilder {
    let id = text().description(Some("the id of the change request, and the entity tag"));
    closed(vec![("change_id", id.into())], Vec::new())
        .description(Some("the config is the candidate of a rollout that the reader is in"))
}

/// The results of a read of many configs.
fn read_configs() -> ObjectBuilder {
    let items = ArrayBuilder::new().items(json_object()).min_items(Some(1));
    let result = closed(
        vec![
            ("config_definition_key", reference("Key")),
            ("config_key", reference("Key")),
            ("status", text().enum_values(Some(["found", "not_modified", "absent", "forbidden"])).into()),
        ],
        vec![
            ("revision", integer(1).description(Some("that of the config")).into()),
            ("variant", reference("Variant")),
            ("config", reference("ConfigRecord")),
            ("errors", items.description(Some("the errors of a read of this config alone")).into()),
        ],
    );
    let revision = integer(0).description(Some("the revision that all configs are of"));
    closed(
        vec![("revision", revision.into()), ("results", ArrayBuilder::new().items(result).into())],
        Vec::new(),
    )
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    // The whole of the data may be secret.
    let data = || json_object().schema_type(SchemaType::from_iter([Type::Object, Type::Null]));
    let mut record = vec![("config_key", reference("Key")), ("data", data().into())];
    record.extend(times());
    let identity = vec![("config_definition_key", reference("Key")), ("config_key", reference("Key"))];
    vec![
        (
            "Data",
            data()
                .description(Some("the data of a config, as they were written; a secret value is null"))
                .into(),
        ),
        ("ConfigRecord", closed(record, vec![included_revision()]).into()),
        ("ConfigPage", page("ConfigRecord").into()),
        ("AcrossPage", page("AcrossRecord").into()),
        ("ReadConfigs", read_configs().into()),
        ("ConfigIdentity", closed(identity, Vec::new()).into()),
    ]
}
