//! The operations on change requests.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, Schema, Type, schema::OneOfBuilder};

use super::{
    builder::{
        OperationEntry, READ_PARAMETERS, READ_REFUSALS, RECORD_HEADERS, WRITE_PARAMETERS, WRITE_REFUSALS,
        describe, payload,
    },
    schemas::{
        NamedSchema, SchemaField, any_value, boolean, closed, integer, nullable, open, page, reference, text,
        time,
    },
};
use crate::{
    body::fields::schema_of,
    change_requests::{
        APPLY_MODES, PHASES, REVERTS, applied, components, digest_schema, edition, judged, withdrawn,
    },
    rollouts::{at_stage, plan, stopped},
};
use concord_model::limits::Limits;

const TAG: &str = "change requests";
/// A digest of the examples.
const DIGEST: &str = "3f9a1c5e7b2d4860a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718";

fn party() -> Value {
    json!({ "key_id": "4kPq0sWc7RtZ", "name": "ann-laptop", "person_id": "2049", "person": "ann" })
}

fn change() -> Value {
    json!({
        "change_id": "7hQx2mVb9KsT", "title": "raise the limit of acme", "description": "", "phase": "open",
        "bypass": false, "edition": 1, "digest": DIGEST, "apply": "when_approved",
        "schedule": { "not_before": "2026-11-29T04:00:00.000000Z", "not_after": "2026-11-29T05:00:00.000000Z" },
        "revert_after_s": 7200, "scheduled": null, "rollout": null, "config_definition_keys": ["prod.limits"],
        "environment": null, "environments": ["prod"], "revision": 2051, "sender": party(), "attested": true, "unattested": [], "sent_at": "2026-11-28T12:00:00.000001Z",
        "expires_at": "2026-12-28T12:00:00.000001Z", "authors": [party()], "approvals_needed": 1,
        "approvals_counted": 0, "approved": false, "stale": null, "waits": null, "approvals": [], "rejections": [], "reviews": [],
        "reviews_missing": 0, "applied": null, "revert": null, "closed": null, "created_at": "2026-11-28T12:00:00.000001Z",
        "modified_at": "2026-11-28T12:00:00.000001Z",
        "operations": [{ "op": "put_config", "config_definition_key": "prod.limits", "config_key": "acme" }],
    })
}

fn new_edition() -> Value {
    json!({
        "title": "raise the limit of acme",
        "operations": [{
            "op": "patch_config", "config_definition_key": "prod.limits", "config_key": "acme",
            "patch": { "requests": 2000 },
        }],
    })
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    [collection(), editions(), votes(), super::rollouts::operations()].into_iter().flatten().collect()
}

fn collection() -> Vec<OperationEntry> {
    let list = json!({ "results": [change()], "meta": { "page": 1, "limit": 10, "total": 1 } });
    vec![
        describe(TAG, "list_change_requests", "List change requests")
            .description("Newest first; those of which the access key may read every definition. `total` counts these.")
            .parameters(&["page", "limit", "sort_order", "search", "phase", "environment", "unreviewed", "revert"])
            .parameters(&["mine", "needs_me"])
            .parameters(READ_PARAMETERS)
            .success(200, "change requests found", payload("ChangeRequests", list), &[])
            .refusals(READ_REFUSALS),
        describe(TAG, "create_change_request", "Create a change request")
            .description(
                "The operations are those of a batch that change something, and three that are alone in their change \
                 request. They are validated now, and resolved into the data that will be stored. Nothing of them is \
                 changed before the change request is applied: by a person, or by the cluster with `when_approved` or a \
                 `schedule`. With `rollout` it reaches few readers first. With `revert_after_s` the cluster gives its configs back the data that they had.",
            )
            .parameters(WRITE_PARAMETERS)
            .body("ChangeRequestInput", new_edition())
            .success(
                201,
                "change request created",
                payload("ChangeRequest", change()),
                &[RECORD_HEADERS, &["Location"]].concat(),
            )
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 410, 412, 507]),
        describe(TAG, "get_change_request", "Get a change request")
            .parameters(&["change_include"])
            .parameters(READ_PARAMETERS)
            .success(200, "change request found", payload("ChangeRequest", change()), RECORD_HEADERS)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
    ]
}

/// An operation on a change request.
pub(super) fn on(id: &'static str, summary: &str, about: &str) -> OperationEntry {
    describe(TAG, id, summary).description(about).parameters(WRITE_PARAMETERS)
}

/// Its responses.
pub(super) fn ends(entry: OperationEntry, message: &str) -> OperationEntry {
    entry
        .success(200, message, payload("ChangeRequest", change()), RECORD_HEADERS)
        .refusals(WRITE_REFUSALS)
        .refusals(&[404, 409, 412, 507])
}

fn editions() -> Vec<OperationEntry> {
    vec![
        ends(
            on(
                "edit_change_request",
                "Replace what a change request proposes",
                "A new edition, which inherits nothing. Approvals and rejections end.",
            )
            .parameters(&["If-Match"])
            .body("ChangeRequestInput", new_edition())
            .refusals(&[410]),
            "change request edited",
        ),
        ends(
            on(
                "rebase_change_request",
                "Rebase a change request",
                "A new edition of the same operations, on the records as they are now. Approvals and rejections end.",
            )
            .parameters(&["If-Match"]),
            "change request rebased",
        ),
    ]
}

fn votes() -> Vec<OperationEntry> {
    let judged = || json!({ "digest": DIGEST, "comment": "looks right" });
    vec![
        ends(
            on(
                "approve_change_request",
                "Approve a change request",
                "`digest` is that of what was read. Needs an attested key of a person who is no author.",
            )
            .body("Judgement", judged()),
            "change request approved",
        ),
        ends(
            on(
                "reject_change_request",
                "Reject a change request",
                "The edition can't be applied then; a later edition can.",
            )
            .body("Judgement", judged()),
            "change request rejected",
        ),
        ends(
            on(
                "review_bypass",
                "Review a bypass",
                "Ends the alarm about it. Needs an attested key of another person than the writer's.",
            )
            .body("Judgement", judged()),
            "bypass reviewed",
        ),
        ends(
            on(
                "apply_change_request",
                "Apply a change request",
                "All of its operations, as one entry of the log. Of two who apply it, one does; the other gets the same \
                 response. Before `schedule.not_before` it is left to the cluster, which applies it then. With a `rollout` it \
                 begins, and the cluster applies it after its last stage.",
            )
            .body("AppliedDigest", json!({ "digest": DIGEST })),
            "change request applied",
        ),
        ends(
            on(
                "revert_change_request",
                "Take a change request back",
                "Each of its configs gets the data that it had before, as one entry; nothing if one of them was changed since. \
                 By a person whose approval counted, or as a bypass, which others review.",
            )
            .parameters(&["bypass"])
            .body("AppliedDigest", json!({ "digest": DIGEST })),
            "change request taken back",
        ),
        ends(
            on(
                "keep_change_request",
                "Keep what a change request has changed",
                "The cluster was to take it back, or would have, before a restore or a recovery. Nobody takes it back any more. \
                 By a person whose approval counted.",
            )
            .body("Judgement", judged()),
            "change kept",
        ),
        ends(
            on("withdraw_change_request", "Withdraw a change request", "By an author or an approver.")
                .body("Withdrawal", json!({ "comment": "not needed any more" })),
            "change request withdrawn",
        ),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    let mut requests = vec![
        ("ChangeRequestInput", schema_of(limits, edition).into()),
        ("Judgement", schema_of(limits, judged).into()),
        ("AppliedDigest", schema_of(limits, applied).into()),
        ("Withdrawal", schema_of(limits, withdrawn).into()),
        ("StopRollout", schema_of(limits, stopped).into()),
        ("ContinueRollout", schema_of(limits, at_stage).into()),
        ("RolloutPlan", schema_of(limits, plan).into()),
    ];
    requests.extend(components(limits));
    requests.extend(parts());
    requests
}

pub(super) fn null_or(other: impl Into<RefOr<Schema>>) -> RefOr<Schema> {
    OneOfBuilder::new().item(other.into()).item(ObjectBuilder::new().schema_type(Type::Null)).into()
}

pub(super) fn list_of(item: impl Into<RefOr<Schema>>) -> RefOr<Schema> {
    ArrayBuilder::new().items(item.into()).into()
}

/// What an operation or a record is about.
fn names() -> Vec<SchemaField> {
    vec![
        ("config_definition_key", text().into()),
        ("config_key", text().into()),
        ("environment", text().into()),
    ]
}

/// The preview of an edition.
fn preview() -> ObjectBuilder {
    let revision_or_null = || RefOr::from(Schema::from(nullable(Type::Integer)));
    let operation =
        open(vec![("op", text().into())], vec![("force", boolean().into()), ("restrict", boolean().into())]);
    let record = open(
        vec![
            ("base_revision", revision_or_null()),
            ("revision", revision_or_null()),
            ("before", any_value().into()),
            ("after", any_value().into()),
            ("fields", list_of(text())),
            ("redacted", list_of(text())),
            ("before_omitted", boolean().into()),
            ("fields_omitted", boolean().into()),
            ("deleted", boolean().into()),
        ],
        [
            names(),
            vec![
                ("operations", list_of(operation)),
                ("configs", integer(0).into()),
                ("returned_configs", integer(0).into()),
            ],
        ]
        .concat(),
    );
    let effect = open(vec![("definitions", integer(0).into()), ("configs", integer(0).into())], Vec::new());
    open(vec![("records", list_of(record)), ("environment_effect", null_or(effect))], Vec::new())
}

/// The members that name somebody.
fn party_fields() -> Vec<SchemaField> {
    let text_or_null = || RefOr::from(Schema::from(nullable(Type::String)));
    vec![
        ("key_id", text().into()),
        ("name", text_or_null()),
        ("person_id", text_or_null()),
        ("person", text_or_null()),
    ]
}

/// Somebody.
pub(super) fn party_schema() -> RefOr<Schema> {
    reference("Party")
}

/// A vote, with further members.
fn vote(more: Vec<SchemaField>) -> ObjectBuilder {
    let own: Vec<SchemaField> =
        vec![("at", time().into()), ("comment", text().into()), ("redacted", boolean().into())];
    open([party_fields(), own, more].concat(), Vec::new())
}

/// The parts of change requests that occur in several places.
fn parts() -> [NamedSchema; 4] {
    let counts = boolean().description(Some("whether the key exists and is attested as it was then"));
    let failure = open(vec![("code", text().into()), ("msg", text().into())], Vec::new());
    [
        ("Party", closed(party_fields(), Vec::new()).into()),
        ("Vote", vote(Vec::new()).into()),
        ("Approval", vote(vec![("counts", counts.into())]).into()),
        ("ChangeFailure", failure.into()),
    ]
}

/// The window, who left it to the cluster, and whether it is taken back.
fn time_schemas() -> (ObjectBuilder, ObjectBuilder, ObjectBuilder) {
    let schedule = open(vec![("not_before", time().into()), ("not_after", time().into())], Vec::new());
    let scheduled = open(vec![("at", time().into()), ("by", party_schema())], Vec::new());
    let text_or_null = || RefOr::from(Schema::from(nullable(Type::String)));
    let revert = open(
        vec![
            ("state", text().enum_values(Some(REVERTS)).into()),
            ("due_at", text_or_null()),
            ("possible_until", text_or_null()),
            ("revision", nullable(Type::Integer).into()),
            ("at", text_or_null()),
            ("by", null_or(party_schema())),
            ("bypass", boolean().into()),
            ("error", null_or(reference("ChangeFailure"))),
            ("stale", text_or_null()),
            ("comment", text_or_null()),
        ],
        Vec::new(),
    );
    (schedule, scheduled, revert)
}

/// What a change request waits for besides its approvals.
fn waits() -> ObjectBuilder {
    let text_or_null = || RefOr::from(Schema::from(nullable(Type::String)));
    open(
        vec![
            ("for", text().enum_values(Some(["freeze", "schedule", "cluster"])).into()),
            ("environment", text_or_null()),
            ("since", text_or_null()),
            ("until", text_or_null()),
        ],
        Vec::new(),
    )
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    let text_or_null = || RefOr::from(Schema::from(nullable(Type::String)));
    let applied = open(
        vec![
            ("revision", integer(1).into()),
            ("at", time().into()),
            ("by", null_or(party_schema())),
            ("scheduled_by", null_or(party_schema())),
            ("approved_by", list_of(party_schema())),
        ],
        Vec::new(),
    );
    let (schedule, scheduled, revert) = time_schemas();
    let closed = open(
        vec![
            ("reason", text().enum_values(Some(["withdrawn", "expired", "restored", "failed"])).into()),
            ("at", time().into()),
            ("by", null_or(party_schema())),
            ("comment", text().into()),
            ("error", null_or(reference("ChangeFailure"))),
        ],
        Vec::new(),
    );
    let operation = open(vec![("op", text().into())], names());
    let own: Vec<SchemaField> = vec![
        ("change_id", text().into()),
        ("title", text().into()),
        ("description", text().into()),
        ("phase", text().enum_values(Some(PHASES)).into()),
        ("bypass", boolean().into()),
        ("edition", integer(1).into()),
        ("digest", digest_schema().into()),
        ("apply", text().enum_values(Some(APPLY_MODES)).into()),
        ("schedule", null_or(schedule)),
        ("revert_after_s", nullable(Type::Integer).into()),
        ("scheduled", null_or(scheduled)),
        ("config_definition_keys", list_of(text())),
        ("environment", text_or_null()),
        ("environments", list_of(text())),
        ("sender", party_schema()),
        ("attested", boolean().description(Some("whether the sender's key was attested")).into()),
        ("unattested", list_of(party_schema())),
        ("sent_at", time().into()),
        ("expires_at", text_or_null()),
        ("authors", list_of(party_schema())),
        ("approvals_needed", integer(0).into()),
        ("approvals_counted", integer(0).into()),
        ("approved", boolean().into()),
        ("stale", nullable(Type::String).description(Some("why it must be rebased; null otherwise")).into()),
        ("waits", null_or(waits())),
        ("approvals", list_of(reference("Approval"))),
        ("rejections", list_of(reference("Vote"))),
        ("reviews", list_of(reference("Vote"))),
        ("reviews_missing", integer(0).into()),
        ("applied", null_or(applied)),
        ("revert", null_or(revert)),
        ("closed", null_or(closed)),
        ("created_at", time().into()),
        ("modified_at", time().into()),
        ("revision", integer(1).description(Some("of its record, as in its `ETag`")).into()),
    ];
    let optional: Vec<SchemaField> = vec![
        ("operations", list_of(operation)),
        ("preview", preview().into()),
        // Nodes of 1.0 do not have it.
        ("rollout", null_or(super::rollouts::rollout())),
    ];
    vec![("ChangeRequest", open(own, optional).into()), ("ChangeRequests", page("ChangeRequest").into())]
}
