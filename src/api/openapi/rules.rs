//! What a definition asks of its configs: its schema, its unique paths, and how far its indexes are.

use serde_json::{Value, json};
use utoipa::openapi::{
    ArrayBuilder,
    HttpMethod::{Get, Put},
    RefOr, Schema, Type,
    schema::OneOfBuilder,
};

use super::{
    builder::{Described, FRESHNESS, READ, RECORD, TRIED, WRITE, describe},
    definitions,
    schemas::{Field, closed, indexes, integer, key, nullable, open, place, schema_or_none, text},
};
use crate::model::limits::Limits;

const TAG: &str = "definitions";
const SCHEMA: &str = "/api/v1/config_definition/{config_definition_key}/schema";
const UNIQUE: &str = "/api/v1/config_definition/{config_definition_key}/unique";
const INDEXES: &str = "/api/v1/config_definition/{config_definition_key}/indexes";

/// A part of a definition, which has the definition's entity tag.
fn part(path: &'static str, id: &str, summary: &str, done: &str, payload: (&str, Value)) -> Described {
    describe(Get, path, TAG, id, summary)
        .takes(&["If-None-Match"])
        .takes(FRESHNESS)
        .answers(200, done, payload, RECORD)
        .responds(304, "The caller has this version.", None, RECORD)
        .refuses(READ)
        .refuses(&[404])
}

/// Every operation of this file.
pub(super) fn all() -> Vec<Described> {
    let schema = || json!({ "json_schema": definitions::schema() });
    let paths = || json!({ "paths": ["name"] });
    let unique = || ("UniquePaths", paths());
    let mut stored = schema();
    stored["config_definition_key"] = json!("app");
    let states =
        json!({ "indexes": [{ "path": "port", "state": "building", "done": 51250, "of": 200_000 }] });
    let told = [RECORD, &["X-Concord-Dry-Run", "X-Concord-Breaking-Configs"]].concat();
    let changed = [RECORD, &["X-Concord-Dry-Run"]].concat();
    vec![
        part(SCHEMA, "get_schema", "Show a definition's schema", "schema found", ("Rules", schema())),
        describe(Put, SCHEMA, TAG, "update_schema", "Change a definition's schema")
            .about(
                "All configs of the definition must fit it: else 422, whose items name the first hundred that do not. \
                 A dry run answers with a report of them instead; `policy=force` stores the schema all the same, and \
                 adds the report. A config that does not fit stays as it is, and has to fit when it is written next.",
            )
            .takes(TRIED)
            .takes(&["If-Match", "policy"])
            .body("NewRules", schema())
            .answers(200, "schema stored", ("RulesChange", stored), &told)
            .refuses(WRITE)
            .refuses(&[404, 412, 507])
            .refuses_with(422, &["X-Concord-Breaking-Configs"]),
        part(UNIQUE, "get_unique", "Show a definition's unique paths", "unique paths found", unique()),
        describe(Put, UNIQUE, TAG, "update_unique", "Replace a definition's unique paths")
            .about(
                "Indexed paths, of which no two configs may have the same value. 409 when two have one already, and \
                 from then on of every write that would repeat one. An empty list ends it.",
            )
            .takes(TRIED)
            .takes(&["If-Match"])
            .body("NewUniquePaths", paths())
            .answers(200, "unique paths stored", unique(), &changed)
            .refuses(WRITE)
            .refuses(&[404, 409, 412, 507]),
        describe(Get, INDEXES, TAG, "get_index_states", "Show how far a definition's indexes are")
            .about("The indexes of many configs are built behind the answer that names them.")
            .takes(FRESHNESS)
            .answers(
                200,
                "indexes found",
                ("IndexStates", states),
                &[RECORD, &["X-Concord-Index-Building"]].concat(),
            )
            .refuses(READ)
            .refuses(&[404]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<(&'static str, RefOr<Schema>)> {
    vec![
        ("NewRules", open(vec![("json_schema", schema_or_none().into())], Vec::new()).into()),
        ("NewUniquePaths", open(vec![("paths", indexes(limits).into())], Vec::new()).into()),
    ]
}

/// Which configs break a schema.
fn report() -> Vec<Field> {
    let error = closed(vec![("loc", place().into()), ("msg", text().into())], Vec::new());
    let config = closed(
        vec![("config_key", key().into()), ("errors", ArrayBuilder::new().items(error).into())],
        Vec::new(),
    );
    let scan = text()
        .enum_values(Some(["full", "skipped"]))
        .description(Some("`skipped`: the schema asks nothing of data"));
    vec![
        ("breaking_count", integer(0).into()),
        ("breaking", ArrayBuilder::new().items(config).max_items(Some(100)).into()),
        ("checked", integer(0).description(Some("configs that were looked at")).into()),
        ("scan", scan.into()),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads(limits: &Limits) -> Vec<(&'static str, RefOr<Schema>)> {
    let rules = || -> Field { ("json_schema", nullable(Type::Object).into()) };
    let stored = || vec![("config_definition_key", key().into()), rules()];
    let change = OneOfBuilder::new()
        .item(closed(stored(), Vec::new()).description(Some("stored")))
        .item(
            closed([stored(), report()].concat(), Vec::new()).description(Some("stored with `policy=force`")),
        )
        .item(closed(report(), Vec::new()).description(Some("a dry run")));
    let state = closed(
        vec![
            ("path", text().into()),
            ("state", text().enum_values(Some(["building", "ready"])).into()),
            ("done", integer(0).description(Some("configs that it holds")).into()),
            ("of", integer(0).into()),
        ],
        Vec::new(),
    );
    vec![
        ("Rules", closed(vec![rules()], Vec::new()).into()),
        ("RulesChange", change.into()),
        ("UniquePaths", closed(vec![("paths", indexes(limits).into())], Vec::new()).into()),
        (
            "IndexStates",
            closed(vec![("indexes", ArrayBuilder::new().items(state).into())], Vec::new()).into(),
        ),
    ]
}
