//! The operations on environments.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, Type};

use super::{
    builder::{
        DRY_RUN_WRITE_PARAMETERS, OperationEntry, READ_PARAMETERS, READ_REFUSALS, RECORD_HEADERS,
        WRITE_REFUSALS, describe, payload,
    },
    schemas::{NamedSchema, SchemaField, boolean, closed, nullable, open, reference, text, time},
};
use crate::{
    body::fields::schema_of,
    environments::{approvals, direct, freeze, rules},
};
use concord_model::limits::Limits;

const TAG: &str = "environments";

fn environment() -> Value {
    json!({
        "environment": "prod", "direct": "allow", "approvals": 0, "approvers": null,
        "freeze": [{
            "from": "2026-12-23T12:00:00.000000Z", "until": "2027-01-02T08:00:00.000000Z",
            "reason": "end of the year", "by": "root", "active": false,
        }],
        "frozen_until": null,
        "created_at": "2026-11-27T12:00:00.000001Z", "modified_at": "2026-11-27T12:00:00.000001Z",
    })
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let list = json!({ "results": [environment()], "meta": { "total": 1 } });
    let body = json!({ "freeze": [{ "until": "2026-11-27T14:00:00Z", "reason": "incident 4711" }] });
    let stored = [RECORD_HEADERS, &["X-Concord-Dry-Run"]].concat();
    let created = [&["Location"], &*stored].concat();
    vec![
        describe(TAG, "list_environments", "List environments")
            .description(
                "By name; those that have a definition which the access key may name. A definition belongs to the \
                 environment that is named by its key up to the first `.`, if there is one, else to `default`.",
            )
            .parameters(READ_PARAMETERS)
            .success(200, "environments found", payload("Environments", list), &[])
            .refusals(READ_REFUSALS),
        describe(TAG, "get_environment", "Get an environment")
            .description(
                "`frozen_until` is null unless a freeze refuses changes now. `approvers` is the number of persons who \
                 could approve every change of the environment; null if no approval is needed, or if the access key may \
                 not change its rules.",
            )
            .parameters(READ_PARAMETERS)
            .success(200, "environment found", payload("Environment", environment()), RECORD_HEADERS)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe(TAG, "put_environment", "Create an environment, or replace its rules")
            .description(
                "`freeze` is the list of all its freezes: one that is left out ends. While a freeze lasts, every change of \
                 the environment's definitions and configs gets 409 (`environment_frozen`), whatever the access key may \
                 do. A freeze without `from` begins at once. `direct` and `approvals` stay as they are if they are absent.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "create_only"])
            .body("EnvironmentRules", body)
            .success(200, "environment stored", payload("Environment", environment()), &stored)
            .success(201, "environment created", payload("Environment", environment()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "delete_environment", "Delete an environment")
            .description("Its freezes end. Its definitions belong to `default` then.")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .success(
                200,
                "environment deleted",
                payload("EnvironmentName", json!({ "environment": "prod" })),
                &["X-Concord-Dry-Run"],
            )
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("EnvironmentRules", schema_of(limits, rules).into()),
        ("FreezeInput", schema_of(limits, freeze).into()),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    let kept = open(
        vec![
            ("from", time().into()),
            ("until", time().into()),
            ("reason", text().into()),
            ("by", text().description(Some("the id of the access key that set it")).into()),
            ("active", boolean().description(Some("whether it refuses changes now")).into()),
        ],
        Vec::new(),
    );
    let frozen =
        nullable(Type::String).description(Some("until when changes are rejected now; null if they are not"));
    let approvers = nullable(Type::Integer).description(Some("how many persons could approve every change"));
    let own: Vec<SchemaField> = vec![
        ("environment", text().into()),
        ("direct", direct().into()),
        ("approvals", approvals().into()),
        ("freeze", ArrayBuilder::new().items(kept).into()),
        ("frozen_until", frozen.into()),
        ("created_at", time().into()),
        ("modified_at", time().into()),
    ];
    let results = ArrayBuilder::new().items(reference("Environment"));
    vec![
        ("Environment", open(own, vec![("approvers", approvers.into())]).into()),
        (
            "Environments",
            open(vec![("results", results.into()), ("meta", reference("TotalMeta"))], Vec::new()).into(),
        ),
        ("EnvironmentName", closed(vec![("environment", text().into())], Vec::new()).into()),
    ]
}
