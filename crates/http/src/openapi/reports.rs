//! The operations by which readers and gates say how it goes, and by which the readers of a config are listed.

use serde_json::json;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

use super::{
    builder::{OperationEntry, READ_PARAMETERS, READ_REFUSALS, describe, payload},
    change_requests::{list_of, null_or},
    schemas::{NamedSchema, boolean, closed, integer, nullable, open, reference, text, time},
};
use crate::{
    body::fields::schema_of,
    reports::{STATES, UNKNOWN, config_report, report, word},
};
use concord_model::limits::Limits;

const TAG: &str = "change requests";
const CONFIGS: &str = "configs";
/// The rejections of both.
const REFUSALS: &[u16] = &[409, 413, 415, 422, 429, 503, 504];

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let report = json!({
        "reader": "host-17", "labels": { "ring": "canary" }, "instance": "5e2f0c7a91d34b68", "state": "failed",
        "detail": "does not start",
    });
    let config_report = json!({
        "reader": "host-17", "instance": "5e2f0c7a91d34b68", "revision": 812, "state": "failed",
        "detail": "limits/acme does not fit Limits at /requests",
    });
    let counted = || payload("Counted", json!({ "counted": true }));
    vec![
        describe(TAG, "report_reader", "Say how a reader runs with a rollout")
            .description(
                "The newest report of each instance of a reader counts for a minute: repeat it each 20 seconds. A reader has \
                 failed as long as one of its instances has. `labels` are those that the reader sends with its reads, as a text \
                 (`ring=canary,region=eu`) or an object. `counted` is false for a reader that does not see the candidates. The \
                 leader keeps reports in its memory; a new leader has none.",
            )
            .body("ReaderReport", report)
            .success(200, "report taken", counted(), &[])
            .refusals(REFUSALS)
            .refusals(&[404]),
        describe(CONFIGS, "report_config", "Say how a reader runs with a config")
            .description(
                "For a reader that sees the proven data of the config; for a candidate, report of its rollout. The newest \
                 report of each instance of a reader counts for a minute. `counted` is false if the config has a later \
                 revision by now. The list of the config's readers shows it. The leader keeps reports in its memory; a new \
                 leader has none.",
            )
            .body("ConfigReport", config_report)
            .success(200, "report taken", counted(), &[])
            .refusals(REFUSALS)
            .refusals(&[404]),
        describe(CONFIGS, "list_config_readers", "List the readers of a config")
            .description(
                "The programs that follow the config by a watch or a poll now, on all nodes, and what they report of it. \
                 Readers that have failed come first. A node lists at most 1,000 watches; `truncated` is true if it has more, \
                 or if more than 1,000 readers have failed; `watches` and `failed` are the numbers of all. A node that does not respond is in `missing_nodes`. `healthy` and `failed` \
                 count the readers that report of the proven data; they are null, and every `state` is `unknown`, while no \
                 leader answers.",
            )
            .parameters(READ_PARAMETERS)
            .success(200, "readers found", payload("ConfigReaders", readers_example()), &[])
            .refusals(READ_REFUSALS)
            .refusals(&[404, 409]),
        describe(TAG, "report_gate", "Say whether a gate is good")
            .description(
                "What a monitor sees. It counts for rollouts whose plan names the gate, for as long as the plan says, if the \
                 access key may `report` everything that the change request changes.",
            )
            .body("GateWord", json!({ "ok": true, "evidence": "0.02 % errors" }))
            .success(200, "gate heard", counted(), &[])
            .refusals(REFUSALS),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("ReaderReport", schema_of(limits, report).into()),
        ("ConfigReport", schema_of(limits, config_report).into()),
        ("GateWord", schema_of(limits, word).into()),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    vec![
        ("Counted", closed(vec![("counted", boolean().into())], Vec::new()).into()),
        ("ConfigReaders", readers().into()),
    ]
}

fn readers_example() -> serde_json::Value {
    let failed = json!({
        "reader": "host-17", "labels": { "ring": "canary" }, "node_id": 2, "since": "2026-03-01T12:00:00.000001Z",
        "revision": 815, "variant": null, "state": "failed",
        "detail": "limits/acme does not fit Limits at /requests", "reported_revision": 812,
        "reported_at": "2026-03-01T12:05:00.000001Z",
    });
    let meta = json!({
        "healthy": 0, "failed": 1, "watches": { "identified": 1, "unidentified": 4 }, "truncated": false,
        "missing_nodes": [],
    });
    json!({ "results": [failed], "meta": meta })
}

fn readers() -> ObjectBuilder {
    let integer_or_null = || RefOr::from(Schema::from(nullable(Type::Integer)));
    let text_or_null = || RefOr::from(Schema::from(nullable(Type::String)));
    let labels = ObjectBuilder::new().additional_properties(Some(text()));
    let variant = open(vec![("change_id", text().into())], Vec::new());
    let states = [STATES[0], STATES[1], UNKNOWN];
    let reader = open(
        vec![
            ("reader", text().into()),
            ("labels", labels.into()),
            ("node_id", integer_or_null()),
            ("since", null_or(time())),
            ("revision", integer_or_null()),
            ("variant", null_or(variant)),
            ("state", text().enum_values(Some(states)).into()),
            ("detail", text_or_null()),
            ("reported_revision", integer_or_null()),
            ("reported_at", null_or(time())),
        ],
        Vec::new(),
    );
    let meta = open(
        vec![
            ("healthy", integer_or_null()),
            ("failed", integer_or_null()),
            ("watches", reference("WatchCounts")),
            ("truncated", boolean().into()),
            ("missing_nodes", list_of(integer(1))),
        ],
        Vec::new(),
    );
    open(vec![("results", list_of(reader)), ("meta", meta.into())], Vec::new())
}
