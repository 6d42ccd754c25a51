//! The past of configs and definitions, bringing it back, and following what comes.

use serde_json::{Value, json};
use utoipa::openapi::{
    ArrayBuilder,
    HttpMethod::{Get, Post},
    ObjectBuilder, RefOr, Schema, Type,
    content::ContentBuilder,
    schema::SchemaType,
};

use super::{
    builder::{Described, FRESHNESS, READ, TRIED, WRITE, describe},
    configs, definitions,
    schemas::{closed, indexes, integer, json_object, nullable, open, text, time},
};
use crate::model::limits::Limits;

const TAG: &str = "history";
const OF_DEFINITION: &str = "/api/v1/config_definition/{config_definition_key}/history";
const OF_CONFIG: &str = "/api/v1/config_definition/{config_definition_key}/config/{config_key}/history";
const ROLLBACK: &str = "/api/v1/config_definition/{config_definition_key}/config/{config_key}/rollback";

const FOLLOWING: &str = "Server-sent events, in the order of revisions, each once. `change` has all that one revision \
did: `revision`, `at`, `by`, `reason` and `changes`, whose items have a `type` (`config_created`, `config_updated`, \
`config_deleted`, `config_unmatched`, `definition_created`, `definition_updated`, `definition_deleted`), their keys and \
what they left. `state` is a part of the state to begin with: `revision`, `definitions`, `configs`, and `complete` in \
the last. `heartbeat` has the `revision` up to which everything has been told. `error` has the body of a refusal, and \
ends the stream.\n\nA parameter that is none of these filters configs as in a list of configs; that needs exactly one \
`definition`, which exists. HEAD is refused: a stream has no end that could be told before.";

const EVENTS: &str = "retry: 1000\nevent: heartbeat\nid: 41\ndata: {\"revision\":41}\n\nevent: change\nid: 42\n\
data: {\"revision\":42,\"at\":\"2026-03-01T12:00:00.000001Z\",\"by\":\"root\",\"reason\":null,\"changes\":[{\"type\":\
\"config_deleted\",\"config_definition_key\":\"app\",\"config_key\":\"prod\"}]}\n\n";

fn page(operation: &str, data: &Value) -> Value {
    let change = json!({
        "revision": 41,
        "operation": operation,
        "at": "2026-03-01T12:00:00.000001Z",
        "by": "root",
        "reason": "first try",
        "data": data,
    });
    json!({ "results": [change], "meta": { "limit": 10, "next_before": 41, "floor": 1 } })
}

fn history(path: &'static str, id: &str, summary: &str, payload: (&str, Value)) -> Described {
    describe(Get, path, TAG, id, summary)
        .about(
            "Newest first. A page goes on before a revision, the one that `meta.next_before` and `Link` name, until \
             both are missing. `meta.floor` is the oldest revision whose state is kept.",
        )
        .takes(&["before", "limit"])
        .takes(FRESHNESS)
        .answers(200, "history found", payload, &["Link"])
        .refuses(READ)
        .refuses(&[404, 410, 429])
}

/// Every operation of this file.
pub(super) fn all() -> Vec<Described> {
    let config = page("update", &configs::data());
    let definition = page("create", &json!({ "indexes": ["port"], "json_schema": definitions::schema() }));
    let restored = ["Location", "ETag", "Last-Modified", "X-Concord-Dry-Run"];
    let events = text().description(Some("a stream of events"));
    let events = ContentBuilder::new().schema(Some(events)).example(Some(json!(EVENTS))).build();
    vec![
        history(
            OF_DEFINITION,
            "get_definition_history",
            "Show a definition's changes",
            ("DefinitionHistory", definition),
        ),
        history(OF_CONFIG, "get_config_history", "Show a config's changes", ("ConfigHistory", config)),
        describe(Post, ROLLBACK, TAG, "roll_back_config", "Write what a config was, as a new change")
            .about("The data must fit the schema of now. A deleted config comes back.")
            .takes(TRIED)
            .takes(&["If-Match", "create_only"])
            .body("Rollback", json!({ "revision": 41 }))
            .answers(200, "config rolled back", ("Data", configs::data()), &restored[1..])
            .answers(201, "config restored", ("Data", configs::data()), &restored)
            .refuses(WRITE)
            .refuses(&[404, 409, 410, 412, 507]),
        describe(Get, "/api/v1/watch", "watch", "watch", "Follow the changes")
            .about(FOLLOWING)
            .takes(&["definition", "watched_config", "from", "initial", "search", "filters", "Last-Event-ID"])
            .takes(FRESHNESS)
            .responds(
                200,
                "The stream. It ends with an `error`, or with the connection.",
                Some(("text/event-stream", events)),
                &[],
            )
            .refuses(READ)
            .refuses(&[404, 405, 409, 410, 429]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests() -> Vec<(&'static str, RefOr<Schema>)> {
    let revision = integer(0).description(Some("the config is written as it was then"));
    vec![("Rollback", open(vec![("revision", revision.into())], Vec::new()).into())]
}

/// The payloads of its answers.
pub(super) fn payloads(limits: &Limits) -> Vec<(&'static str, RefOr<Schema>)> {
    let kinds = || SchemaType::from_iter([Type::Object, Type::Null]);
    let config =
        json_object().schema_type(kinds()).description(Some("what was written; null for a deletion"));
    let definition = closed(
        vec![("indexes", indexes(limits).into())],
        vec![("json_schema", json_object().description(Some("absent when there was none")).into())],
    );
    let definition = definition.schema_type(kinds()).description(Some("null for a deletion"));
    vec![("ConfigHistory", changes(config).into()), ("DefinitionHistory", changes(definition).into())]
}

/// A page of changes that left such data.
fn changes(data: ObjectBuilder) -> ObjectBuilder {
    let operation = text().enum_values(Some(["create", "update", "delete"]));
    let change = closed(
        vec![
            ("revision", integer(1).into()),
            ("operation", operation.into()),
            ("at", time().into()),
            ("by", text().description(Some("whose key it was")).into()),
            ("reason", nullable(Type::String).description(Some("the `X-Change-Reason`")).into()),
            ("data", data.into()),
        ],
        Vec::new(),
    );
    let before =
        nullable(Type::Integer).description(Some("`before` of the next page; null when there is none"));
    let meta = closed(
        vec![
            ("limit", integer(1).into()),
            ("next_before", before.into()),
            ("floor", integer(0).description(Some("the oldest revision whose state is kept")).into()),
        ],
        Vec::new(),
    );
    closed(vec![("results", ArrayBuilder::new().items(change).into()), ("meta", meta.into())], Vec::new())
}
