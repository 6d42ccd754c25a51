//! The operations on rollouts, and what a change request shows of one.

use serde_json::json;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

use super::{
    builder::OperationEntry,
    change_requests::{ends, list_of, null_or, on, party_schema},
    schemas::{SchemaField, integer, nullable, number, open, reference, text, time},
};
use crate::rollouts::ON_FAIL;

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let stop = |id, summary, about, message| {
        ends(on(id, summary, about).body("StopRollout", json!({ "comment": "errors rise" })), message)
    };
    let go_on = |id, summary, about, message| {
        ends(on(id, summary, about).body("ContinueRollout", json!({ "stage": 0 })), message)
    };
    vec![
        stop(
            "pause_rollout",
            "Pause a rollout",
            "It stays at its stage until somebody resumes it. Failures still take it back. By an approver.",
            "rollout paused",
        ),
        go_on(
            "resume_rollout",
            "Resume a rollout",
            "The time of its stage begins again. By an approver.",
            "rollout resumed",
        ),
        go_on(
            "advance_rollout",
            "Advance a rollout",
            "Its stage ends now, whatever its time and its evidence. By an approver.",
            "rollout advanced",
        ),
        stop(
            "abort_rollout",
            "Abort a rollout",
            "No reader sees its candidates any more, and the change request is closed. By an author, an approver, or a key \
             that may write what it changes.",
            "rollout aborted",
        ),
    ]
}

/// The rollout of a change request.
pub(super) fn rollout() -> ObjectBuilder {
    let integer_or_null = || RefOr::from(Schema::from(nullable(Type::Integer)));
    let labels = ObjectBuilder::new().additional_properties(Some(list_of(text())));
    let stage = open(
        vec![
            ("labels", labels.into()),
            ("share", number().into()),
            ("for_s", integer(0).into()),
            ("min_healthy", integer(0).into()),
        ],
        Vec::new(),
    );
    let gate = open(vec![("name", text().into()), ("fresh_s", integer(1).into())], Vec::new());
    let plan: Vec<SchemaField> = vec![
        ("stages", list_of(stage)),
        ("max_failed", integer(0).into()),
        ("gates", list_of(gate)),
        ("on_fail", text().enum_values(Some(ON_FAIL)).into()),
        ("timeout_s", integer(1).into()),
    ];
    let at_by = || vec![("at", time().into()), ("by", null_or(party_schema()))];
    let paused = open([at_by(), vec![("comment", text().into())]].concat(), Vec::new());
    let counts =
        vec![("healthy", integer_or_null()), ("failed", integer_or_null()), ("gates", integer_or_null())];
    let passed = open([at_by(), counts].concat(), Vec::new());
    let labels = ObjectBuilder::new().additional_properties(Some(text()));
    let failure = open(
        vec![
            ("reader", text().into()),
            ("instance", nullable(Type::String).into()),
            ("labels", labels.into()),
            ("detail", nullable(Type::String).into()),
            ("at", time().into()),
        ],
        Vec::new(),
    );
    let gate_status = open(
        vec![
            ("name", text().into()),
            ("ok", nullable(Type::Boolean).into()),
            ("evidence", text().into()),
            ("at", nullable(Type::String).into()),
        ],
        Vec::new(),
    );
    let status = open(
        vec![
            ("stage", integer_or_null()),
            ("begun_at", time().into()),
            ("since", time().into()),
            ("paused", null_or(paused)),
            ("passed", list_of(passed)),
            ("healthy", integer_or_null()),
            ("failed", integer_or_null()),
            ("failures", null_or(list_of(failure))),
            ("gates", null_or(list_of(gate_status))),
            ("watches", null_or(reference("WatchCounts"))),
            ("waits_for", list_of(text())),
        ],
        Vec::new(),
    );
    open([plan, vec![("status", null_or(status))]].concat(), Vec::new())
}
