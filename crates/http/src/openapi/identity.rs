//! The operations on identity providers, roles and sessions; the login.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, Type};

use super::{
    builder::{
        OperationEntry, READ_PARAMETERS, READ_REFUSALS, RECORD_HEADERS, WRITE_PARAMETERS, WRITE_REFUSALS,
        describe, payload,
    },
    schemas::{
        NamedSchema, any_value, boolean, closed, integer, json_object, nullable, open, reference, text, time,
    },
};
use crate::{
    access_keys::body::grants,
    body::fields::schema_of,
    identity::body::{login, new_role, provider_document, role_member, role_quota, token},
};
use concord_model::limits::Limits;

const TAG: &str = "identity";
const NO_STORE: &[&str] = &["Cache-Control"];

fn document() -> Value {
    json!({
        "issuer": "https://token.actions.githubusercontent.com", "audiences": ["concord"],
        "require": { "repository_owner_id": ["9919"] }, "claims": { "repository_id": true, "environment": true },
    })
}

fn provider() -> Value {
    json!({
        "provider": "github", "document": document(),
        "keys": { "count": 4, "confirmed_at": "2026-12-01T12:00:00.000001Z" }, "sessions": 3,
        "created_at": "2026-12-01T11:00:00.000001Z", "modified_at": "2026-12-01T11:00:00.000001Z",
    })
}

fn members() -> Value {
    json!([{ "provider": "github", "match": { "repository_id": ["7712"], "environment": ["prod"] } }])
}

fn role_grants() -> Value {
    json!([{ "verbs": ["read", "propose"], "definitions": ["prod.*"] }])
}

fn role() -> Value {
    json!({
        "role": "deployers", "grants": role_grants(),
        "quota": { "requests_per_second": null, "writes_per_second": 20 }, "members": members(), "session_s": 3600,
        "created_at": "2026-12-01T11:00:00.000001Z", "modified_at": "2026-12-01T11:00:00.000001Z",
    })
}

fn session() -> Value {
    json!({
        "session_id": "4kPq0sWc7RtZ", "owner": "github/repo:acme/shop:environment:prod", "provider": "github",
        "roles": ["deployers"], "claims": { "environment": "prod", "repository_id": "7712" },
        "opened_at": "2026-12-01T12:00:00.000001Z", "expires_at": "2026-12-01T13:00:00.000001Z", "current": false,
    })
}

fn opened() -> Value {
    json!({
        "session": "concord_4kPq0sWc7RtZ_…", "session_id": "4kPq0sWc7RtZ",
        "owner": "github/repo:acme/shop:environment:prod", "roles": ["deployers"],
        "expires_at": "2026-12-01T13:00:00.000001Z", "expires_in_s": 3600,
    })
}

fn tried() -> Value {
    json!({
        "accepted": true, "reason": null,
        "checks": [{ "name": "aud", "holds": true, "wanted": "concord", "seen": "\"concord\"", "reason": "audience" }],
        "claims": { "environment": "prod", "repository_id": "7712" },
        "roles": [{
            "role": "deployers", "holds": true, "hints": [],
            "members": [{
                "holds": true,
                "claims": [{ "claim": "environment", "holds": true, "wanted": "\"prod\"", "seen": "\"prod\"" }],
            }],
        }],
        "session_s": 3600,
    })
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    providers().into_iter().chain(roles()).chain(sessions()).collect()
}

fn providers() -> Vec<OperationEntry> {
    let created = [&["Location"], RECORD_HEADERS].concat();
    let page = json!({ "results": [provider()], "meta": { "total": 1 } });
    let name = || payload("IdentityProviderName", json!({ "provider": "github" }));
    vec![
        describe(TAG, "list_identity_providers", "List identity providers")
            .description("By name; those whose roles give no more than the access key has.")
            .parameters(READ_PARAMETERS)
            .success(200, "identity providers found", payload("IdentityProviders", page), &[])
            .refusals(READ_REFUSALS),
        describe(TAG, "get_identity_provider", "Get an identity provider")
            .description("`keys` is null if the keys are in the document, or were not fetched yet.")
            .parameters(READ_PARAMETERS)
            .success(200, "identity provider found", payload("IdentityProvider", provider()), RECORD_HEADERS)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe(TAG, "put_identity_provider", "Put an identity provider")
            .description(
                "Its sessions end if it trusts others than before. It needs all permissions of the roles that name it. The \
                 issuer of a provider never changes. More than ten changes of providers and roles at once, or one a second, get 429.",
            )
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match", "create_only"])
            .body("IdentityProviderDocument", document())
            .success(200, "identity provider stored", payload("IdentityProvider", provider()), RECORD_HEADERS)
            .success(201, "identity provider created", payload("IdentityProvider", provider()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "delete_identity_provider", "Delete an identity provider")
            .description("Its sessions end. 409 while a role names it.")
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .success(200, "identity provider deleted", name(), &[])
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
        describe(TAG, "try_token", "Try a token of an identity provider")
            .description("Says check by check why a login with the token succeeds or fails. It opens no session.")
            .body("TokenToTry", json!({ "token": "eyJhbGciOiJSUzI1NiIs…" }))
            .success(200, "token tried", payload("TriedToken", tried()), NO_STORE)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409]),
        describe(TAG, "end_sessions_of_identity_provider", "End all sessions of an identity provider")
            .description("Tokens that were issued before open no others.")
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .success(200, "sessions ended", name(), &[])
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
    ]
}

fn roles() -> Vec<OperationEntry> {
    let created = [&["Location"], RECORD_HEADERS].concat();
    let body = json!({ "grants": role_grants(), "members": members(), "session_s": 3600 });
    let page = json!({ "results": [role()], "meta": { "total": 1 } });
    vec![
        describe(TAG, "list_roles", "List roles")
            .description("By name; those whose grants the access key has.")
            .parameters(READ_PARAMETERS)
            .success(200, "roles found", payload("Roles", page), &[])
            .refusals(READ_REFUSALS),
        describe(TAG, "get_role", "Get a role")
            .parameters(&["If-None-Match"])
            .parameters(READ_PARAMETERS)
            .success(200, "role found", payload("Role", role()), RECORD_HEADERS)
            .response(304, "The client has the current version.", None, RECORD_HEADERS)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe(TAG, "put_role", "Put a role")
            .description(
                "It needs all grants of the role, before and after. Sessions have the new permissions at once. No machine \
                 has `approve`, `bypass` or `keys`.",
            )
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match", "create_only"])
            .body("RoleInput", body)
            .success(200, "role stored", payload("Role", role()), RECORD_HEADERS)
            .success(201, "role created", payload("Role", role()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "delete_role", "Delete a role")
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .success(200, "role deleted", payload("RoleName", json!({ "role": "deployers" })), &[])
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
    ]
}

fn sessions() -> Vec<OperationEntry> {
    let page = json!({ "results": [session()], "meta": { "limit": 100, "next": null } });
    vec![
        describe(TAG, "list_sessions", "List sessions")
            .description(
                "By id: the own one, and with the verb `keys` those that have no more permissions than the access key. \
                 `next` is the value of `after` for the next page.",
            )
            .parameters(&["after_session", "limit"])
            .parameters(READ_PARAMETERS)
            .success(200, "sessions found", payload("SessionPage", page), NO_STORE)
            .refusals(READ_REFUSALS),
        describe(TAG, "end_session", "End a session")
            .description(
                "The id `current` is that of the request's own session. After the response, no node applies a write of it.",
            )
            .parameters(WRITE_PARAMETERS)
            .success(200, "session ended", payload("SessionId", json!({ "session_id": "4kPq0sWc7RtZ" })), NO_STORE)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409]),
        describe(TAG, "log_in", "Exchange a token for a session")
            .description(
                "The token is one of the identity provider, for one of its audiences. `session` is a credential, as the text \
                 of an access key is; no other response has it. 401 says in a word why the token is not accepted; with \
                 `unknown_key`, the same token may be accepted some seconds later.",
            )
            .body("LoginInput", json!({ "provider": "github", "token": "eyJhbGciOiJSUzI1NiIs…" }))
            .success(201, "session opened", payload("OpenedSession", opened()), &["Location", "Cache-Control"])
            .refusals(WRITE_REFUSALS)
            .refusals(&[401, 403, 409, 507]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("IdentityProviderDocument", provider_document().into()),
        ("LoginInput", schema_of(limits, login).into()),
        ("RoleInput", schema_of(limits, new_role).into()),
        ("RoleMember", role_member().into()),
        ("RoleQuota", schema_of(limits, role_quota).into()),
        ("TokenToTry", schema_of(limits, token).into()),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    let list = |record: &str| {
        let results = ArrayBuilder::new().items(reference(record));
        closed(vec![("results", results.into()), ("meta", reference("TotalMeta"))], Vec::new())
    };
    let keys = closed(vec![("count", integer(0).into()), ("confirmed_at", time().into())], Vec::new());
    let provider = vec![
        ("provider", text().into()),
        ("document", reference("IdentityProviderDocument")),
        ("keys", utoipa::openapi::schema::OneOfBuilder::new().item(keys).item(null()).into()),
        ("sessions", integer(0).into()),
        ("created_at", time().into()),
        ("modified_at", time().into()),
    ];
    let role = vec![
        ("role", text().into()),
        ("grants", grants().into()),
        // Without a name of its own, generators give it that of the body's.
        ("quota", reference("RoleQuota")),
        ("members", ArrayBuilder::new().items(reference("RoleMember")).into()),
        ("session_s", integer(1).into()),
        ("created_at", time().into()),
        ("modified_at", time().into()),
    ];
    vec![
        ("IdentityProvider", open(provider, Vec::new()).into()),
        ("IdentityProviders", list("IdentityProvider").into()),
        ("IdentityProviderName", closed(vec![("provider", text().into())], Vec::new()).into()),
        ("Role", open(role, Vec::new()).into()),
        ("Roles", list("Role").into()),
        ("RoleName", closed(vec![("role", text().into())], Vec::new()).into()),
    ]
    .into_iter()
    .chain(session_payloads())
    .collect()
}

fn null() -> utoipa::openapi::ObjectBuilder {
    utoipa::openapi::ObjectBuilder::new().schema_type(Type::Null)
}

fn session_payloads() -> Vec<NamedSchema> {
    let texts = || ArrayBuilder::new().items(text());
    let session = vec![
        ("session_id", text().into()),
        ("owner", text().description(Some("what history and audit call it")).into()),
        ("provider", text().into()),
        ("roles", texts().into()),
        ("claims", json_object().into()),
        ("opened_at", time().into()),
        ("expires_at", time().into()),
        ("current", boolean().description(Some("whether the request has used it")).into()),
    ];
    let meta =
        closed(vec![("limit", integer(1).into()), ("next", nullable(Type::String).into())], Vec::new());
    let results = ArrayBuilder::new().items(open(session, Vec::new()));
    let opened = vec![
        ("session", text().description(Some("the credential")).into()),
        ("session_id", text().into()),
        ("owner", text().into()),
        ("roles", texts().into()),
        ("expires_at", time().into()),
        ("expires_in_s", integer(1).description(Some("seconds until then")).into()),
    ];
    let tried = vec![
        ("accepted", boolean().into()),
        ("reason", nullable(Type::String).into()),
        ("checks", ArrayBuilder::new().items(json_object()).into()),
        (
            "claims",
            any_value()
                .description(Some("what is kept of them; null for a token that is not accepted"))
                .into(),
        ),
        ("roles", ArrayBuilder::new().items(json_object()).into()),
        ("session_s", nullable(Type::Integer).into()),
    ];
    vec![
        ("SessionPage", closed(vec![("results", results.into()), ("meta", meta.into())], Vec::new()).into()),
        ("SessionId", closed(vec![("session_id", text().into())], Vec::new()).into()),
        ("OpenedSession", open(opened, Vec::new()).into()),
        ("TriedToken", open(tried, Vec::new()).into()),
    ]
}
