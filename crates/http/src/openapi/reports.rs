//! The operations by which readers and gates say how a rollout goes.

use serde_json::json;

use super::{
    builder::{OperationEntry, describe, payload},
    schemas::{NamedSchema, boolean, closed},
};
use crate::{
    body::fields::schema_of,
    reports::{report, word},
};
use concord_model::limits::Limits;

const TAG: &str = "change requests";
/// The rejections of both.
const REFUSALS: &[u16] = &[409, 413, 415, 422, 429, 503, 504];

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let report = json!({
        "reader": "host-17", "labels": { "ring": "canary" }, "state": "failed", "detail": "does not start",
    });
    let counted = || payload("Counted", json!({ "counted": true }));
    vec![
        describe(TAG, "report_reader", "Say how a reader runs with a rollout")
            .description(
                "The newest report of a reader counts for a minute: repeat it each 20 seconds. `labels` are those that \
                 the reader sends with its reads, as a text (`ring=canary,region=eu`) or an object. `counted` is false for a \
                 reader that does not see the candidates. The leader keeps reports in its memory; a new leader has none.",
            )
            .body("ReaderReport", report)
            .success(200, "report taken", counted(), &[])
            .refusals(REFUSALS)
            .refusals(&[404]),
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
    vec![("ReaderReport", schema_of(limits, report).into()), ("GateWord", schema_of(limits, word).into())]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    vec![("Counted", closed(vec![("counted", boolean().into())], Vec::new()).into())]
}
