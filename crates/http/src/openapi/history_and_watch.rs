//! The operations on history: its lists, rollback; and watches.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Type, content::ContentBuilder, schema::SchemaType};

use super::{
    builder::{
        CODED, DRY_RUN_WRITE_PARAMETERS, ExamplePayload, OperationEntry, READ_PARAMETERS, READ_REFUSALS,
        READER_PARAMETERS, REDACTED, WRITE_REFUSALS, describe, payload,
    },
    configs,
    schemas::{
        NamedSchema, SchemaField, any_value, boolean, closed, example_schema, integer, json_object, key,
        nullable, paths, reference, text, time,
    },
};
use crate::{body::fields::schema_of, change_requests::digest_schema, history::RollbackBody};
use concord_model::limits::Limits;

const TAG: &str = "history";

/// The headers of responses to polls.
const POLL_HEADERS: &[&str] = &["X-Concord-Next-From", "X-Concord-Cluster"];

const WATCH_DESCRIPTION: &str = "Server-sent events, in the order of revisions, each once. `change` has all changes of one \
revision: `revision`, `at`, `by`, `reason` and `changes`, whose items have a `type` (`config_created`, \
`config_updated`, `config_deleted`, `config_unmatched`, `definition_created`, `definition_updated`, \
`definition_deleted`), their keys, and the record after the change; a deleted definition has the `count` of the \
configs that went with it. With `prev=true` each config has `prev`, its \
data before the change, null for a new one (and `prev_redacted`, as `redacted`). `state` is a part of the initial state: \
`revision`, `definitions`, `configs`, and `complete`, which is true in the last part. `heartbeat` has the `revision` \
up to which all changes were sent. A config with secret values that the key may not see has \
`redacted`, their places as in the header `X-Concord-Redacted`. `error` has the body of a refusal, and ends the stream.\n\n\
A watch with `X-Concord-Reader` returns what that reader sees while rollouts run: a config that is a candidate has \
`variant`, with the `change_id`. An item that shows another version than the event has written has its `revision`. Such a \
watch has no filter.\n\n\
With `change_requests=true` the changes are those of the change requests that the key may read. Their `type` says what \
happened: `change_request_created`, `_edited`, `_approved`, `_rejected`, `_scheduled`, `_begun`, `_advanced`, `_paused`, `_resumed`, `_applied`, `_reverted`, `_revert_failed`, `_kept`, `_closed`, `_held`, `_bypassed`, \
`_reviewed`, `_updated`. `change_request_hidden` says that a new edition changes what the key may not read, and \
`change_request_dropped` that an old one is no longer kept; both have the `change_id` alone.\n\n\
Any other parameter filters configs as in a list of configs; this needs exactly one `definition`, which exists and is \
no pattern. HEAD is refused, because a stream has no length.";

const POLL_DESCRIPTION: &str = "A long poll: answers with the first changes from `from` on, and those that are there already \
behind them, as soon as there are any; 304 when none came in time. Both have the `from` to go on with, on this node or \
another. Without `from` it waits for the next change. The changes are those of `/api/v1/watch`, with the same \
parameters; a poll counts as a watch while it waits. HEAD is refused, because it would wait as well.\n\nWith `latest` it \
lists the latest changes that are there, newest first and as they were written, for readers, too, and never waits: \
`before`, `since` and `by` choose among them, a filter and `from` don't. `next_before` is the `before` of the next page, null on the last one. A page that has examined \
many revisions may have few changes, or none. `floor` is the compaction revision; `from` goes on with new changes.";

const EXAMPLE_EVENTS: &str = "retry: 1000\nevent: heartbeat\nid: 41\ndata: {\"revision\":41}\n\nevent: change\nid: 42\n\
data: {\"revision\":42,\"at\":\"2026-03-01T12:00:00.000001Z\",\"by\":\"root\",\"reason\":null,\"changes\":[{\"type\":\
\"config_deleted\",\"config_definition_key\":\"app\",\"config_key\":\"prod\"}]}\n\n";

fn example_changes() -> Value {
    let change = json!({ "type": "config_deleted", "config_definition_key": "app", "config_key": "prod" });
    let at = "2026-03-01T12:00:00.000001Z";
    json!({
        "events": [{ "revision": 42, "at": at, "by": "root", "reason": null, "changes": [change] }],
        "from": 43,
    })
}

fn example_page(operation: &str, data: &Value) -> Value {
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

fn history(id: &'static str, summary: &str, payload: ExamplePayload<'_>) -> OperationEntry {
    describe(TAG, id, summary)
        .description(
            "Newest first. The next page is the one `before` the revision that `meta.next_before` and `Link` name; on \
             the last page, `next_before` is null and `Link` is absent. `meta.floor` is the compaction revision: the \
             oldest one whose state is retained.",
        )
        .parameters(&["before", "limit"])
        .parameters(READ_PARAMETERS)
        .success(200, "history found", payload, &[&["Link", REDACTED], CODED].concat())
        .refusals(READ_REFUSALS)
        .refusals(&[404, 410, 429])
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let config = example_page("update", &configs::example_data());
    let definition = example_page("create", &json!({ "indexes": ["port"], "json_schema": example_schema() }));
    let restored = ["Location", "ETag", "Last-Modified", "X-Concord-Dry-Run", REDACTED];
    let events = text().description(Some("a stream of events"));
    let events = ContentBuilder::new().schema(Some(events)).example(Some(json!(EXAMPLE_EVENTS))).build();
    vec![
        history(
            "get_definition_history",
            "List the changes of a definition",
            payload("DefinitionHistory", definition),
        ),
        history("get_config_history", "List the changes of a config", payload("ConfigHistory", config)),
        describe(TAG, "roll_back_config", "Write the data of an earlier revision, as a new change")
            .description("The data must fit the current schema. A deleted config is created again.")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless"])
            .body("Rollback", json!({ "revision": 41 }))
            .success(200, "config rolled back", payload("Data", configs::example_data()), &restored[1..])
            .success(201, "config restored", payload("Data", configs::example_data()), &restored)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 410, 412, 507]),
        describe("watch", "watch", "Watch changes")
            .description(WATCH_DESCRIPTION)
            .parameters(&[
                "definition",
                "watched_config",
                "from",
                "initial",
                "prev",
                "change_requests",
                "search",
                "filters",
                "Last-Event-ID",
            ])
            .parameters(READER_PARAMETERS)
            .parameters(READ_PARAMETERS)
            .response(
                200,
                "The stream. It ends with an `error` event, or with the connection.",
                Some(("text/event-stream", events)),
                &["X-Concord-Cluster"],
            )
            .refusals(READ_REFUSALS)
            .refusals(&[404, 409, 410, 429]),
        describe("watch", "poll_changes", "Wait for changes")
            .description(POLL_DESCRIPTION)
            .parameters(&["definition", "watched_config", "from", "wait", "prev", "change_requests"])
            .parameters(&["search", "filters"])
            .parameters(&["latest", "changes_before", "changes_since", "changes_by"])
            .parameters(READER_PARAMETERS)
            .parameters(READ_PARAMETERS)
            .success(200, "changes found", payload("Changes", example_changes()), POLL_HEADERS)
            .response(304, "No change came in time.", None, POLL_HEADERS)
            .refusals(READ_REFUSALS)
            .refusals(&[404, 409, 410, 429]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![("Rollback", schema_of(limits, RollbackBody::read).into()), ("HistoryMeta", history_meta().into())]
}

/// The payloads of its answers.
pub(super) fn payloads(limits: &Limits) -> Vec<NamedSchema> {
    let kinds = || SchemaType::from_iter([Type::Object, Type::Null]);
    let config =
        json_object().schema_type(kinds()).description(Some("what was written; null for a deletion"));
    let definition = closed(
        vec![("indexes", paths(limits).into())],
        vec![("json_schema", json_object().description(Some("absent when the definition had none")).into())],
    );
    let definition = definition.schema_type(kinds()).description(Some("null for a deletion"));
    vec![
        ("ConfigHistory", changes(config).into()),
        ("DefinitionHistory", changes(definition).into()),
        ("Changes", polled(limits).into()),
    ]
}

/// The changes that a poll returns.
fn polled(limits: &Limits) -> ObjectBuilder {
    let kinds = [
        "config_created",
        "config_updated",
        "config_deleted",
        "config_unmatched",
        "definition_created",
        "definition_updated",
        "definition_deleted",
        "change_request_created",
        "change_request_edited",
        "change_request_approved",
        "change_request_rejected",
        "change_request_scheduled",
        "change_request_begun",
        "change_request_advanced",
        "change_request_paused",
        "change_request_resumed",
        "change_request_applied",
        "change_request_reverted",
        "change_request_revert_failed",
        "change_request_kept",
        "change_request_closed",
        "change_request_held",
        "change_request_bypassed",
        "change_request_reviewed",
        "change_request_updated",
        "change_request_hidden",
        "change_request_dropped",
    ];
    let places = |about| ArrayBuilder::new().items(text()).description(Some(about));
    let data = |about| any_value().description(Some(about));
    let change = closed(
        vec![("type", text().enum_values(Some(kinds)).into())],
        vec![
            ("config_definition_key", key().description(Some("absent in those of change requests")).into()),
            ("config_key", key().into()),
            ("data", data("the config after the change").into()),
            ("revision", integer(1).description(Some("of a version that the event has not written")).into()),
            ("variant", reference("Variant")),
            ("prev", data("the config before the change").into()),
            ("redacted", places("the secret places of `data`").into()),
            ("prev_redacted", places("the secret places of `prev`").into()),
            ("indexes", paths(limits).into()),
            ("json_schema", any_value().into()),
            ("created_at", time().into()),
            ("modified_at", time().into()),
            ("count", integer(0).description(Some("the configs that went with a definition")).into()),
            (
                "change_id",
                text().description(Some("the change request; with it the following members")).into(),
            ),
            ("title", text().into()),
            ("phase", text().into()),
            ("bypass", ObjectBuilder::new().schema_type(Type::Boolean).into()),
            ("edition", integer(1).into()),
            ("digest", digest_schema().into()),
            ("environments", ArrayBuilder::new().items(text()).into()),
            ("by", any_value().description(Some("who did it; null for the cluster")).into()),
            ("comment", text().into()),
            ("closed_reason", nullable(Type::String).into()),
        ],
    );
    let event = closed(
        vec![
            ("revision", integer(1).into()),
            ("at", time().into()),
            ("by", nullable(Type::String).into()),
            ("reason", nullable(Type::String).into()),
            ("changes", ArrayBuilder::new().items(change).into()),
        ],
        author_fields(),
    );
    let from = integer(0).description(Some("the `from` to go on with"));
    let before = nullable(Type::Integer).description(Some("with `latest`: `before` of the next page"));
    let oldest = integer(0).description(Some("with `latest`: the compaction revision"));
    closed(
        vec![("events", ArrayBuilder::new().items(event).into()), ("from", from.into())],
        vec![("next_before", before.into()), ("floor", oldest.into())],
    )
}

/// Members of a change that a key has which may know them.
fn author_fields() -> Vec<SchemaField> {
    vec![
        ("by_name", text().description(Some("the name of the access key; not in watches")).into()),
        ("by_person", text().description(Some("the label of its person; not in watches")).into()),
        ("change_id", text().description(Some("the change request that it was")).into()),
        ("change_title", text().into()),
        ("change_reverted", boolean().into()),
    ]
}

/// A page of changes whose records have such data.
fn changes(data: ObjectBuilder) -> ObjectBuilder {
    let operation = text().enum_values(Some(["create", "update", "delete"]));
    let change = closed(
        vec![
            ("revision", integer(1).into()),
            ("operation", operation.into()),
            ("at", time().into()),
            ("by", text().description(Some("the principal whose key was used")).into()),
            ("reason", nullable(Type::String).description(Some("the `X-Change-Reason`")).into()),
            ("data", data.into()),
        ],
        author_fields(),
    );
    let results = ArrayBuilder::new().items(change);
    closed(vec![("results", results.into()), ("meta", reference("HistoryMeta"))], Vec::new())
}

/// Which part of a history a page is.
fn history_meta() -> ObjectBuilder {
    let before =
        nullable(Type::Integer).description(Some("`before` of the next page; null when there is none"));
    closed(
        vec![
            ("limit", integer(1).into()),
            ("next_before", before.into()),
            (
                "floor",
                integer(0)
                    .description(Some("the compaction revision: the oldest one whose state is retained"))
                    .into(),
            ),
        ],
        Vec::new(),
    )
}
