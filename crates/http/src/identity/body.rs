//! The bodies of requests about providers, roles and logins.
//!
//! **Invariant:** what a role allows is exactly what the body says. The document of a provider is stored as it was
//! validated.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder};

use crate::{
    access_keys::body::GRANTS,
    body::fields::{self, BodyFields, FieldType},
    openapi::schemas::{any_value, integer, object, reference, text},
};
use concord_model::{
    access_key::{Grants, Quota},
    document::Document,
    limits::{KEY_BYTES_MAX, ROLE_MEMBERS_MAX, SESSION_S, SESSION_S_DEFAULT, TOKEN_BYTES_MAX},
};
use concord_service::NewRole;

/// The body that creates or replaces a role.
pub(crate) fn new_role(fields: &mut BodyFields) -> NewRole {
    const QUOTA: FieldType<Quota> = FieldType {
        read: |value, fields| {
            let value = fields::any_object(value, fields)?;
            fields.object(value, role_quota)
        },
        schema: |_| reference("RoleQuota"),
    };
    const MEMBERS: FieldType<Value> = FieldType {
        read: |value, _| Some(value),
        schema: |_| {
            ArrayBuilder::new().items(reference("RoleMember")).max_items(Some(ROLE_MEMBERS_MAX)).into()
        },
    };
    const SESSION: FieldType<u64> = FieldType {
        read: fields::integer,
        schema: |_| {
            let seconds = |count: &u64| usize::try_from(*count).unwrap_or(usize::MAX);
            let about = "how many seconds a session with it lasts";
            integer(seconds(SESSION_S.start()))
                .maximum(Some(seconds(SESSION_S.end())))
                .description(Some(about))
                .into()
        },
    };
    let grants = Grants(fields.required("grants", &GRANTS));
    let quota = fields.nullable("quota", &QUOTA).unwrap_or_default();
    let members = fields.optional("members", &MEMBERS).unwrap_or_else(|| json!([]));
    let session_s = fields.optional("session_s", &SESSION).unwrap_or(SESSION_S_DEFAULT);
    NewRole {
        grants,
        quota,
        membership: Document::new(json!({ "members": members, "session_s": session_s })),
    }
}

/// The quota of a role: rates only.
pub(crate) fn role_quota(fields: &mut BodyFields) -> Quota {
    const LIMIT: FieldType<u64> = FieldType { read: fields::integer, schema: |_| integer(0).into() };
    Quota {
        requests_per_second: fields.nullable("requests_per_second", &LIMIT),
        writes_per_second: fields.nullable("writes_per_second", &LIMIT),
        ..Quota::default()
    }
}

const TOKEN: FieldType<String> =
    FieldType { read: fields::string, schema: |_| text().max_length(Some(TOKEN_BYTES_MAX)).into() };

/// The body that tries a token.
pub(crate) fn token(fields: &mut BodyFields) -> String {
    fields.required("token", &TOKEN)
}

/// A login.
#[derive(Debug)]
pub(crate) struct LoginRequest {
    /// The name of the provider.
    pub(crate) provider: String,
    /// The token.
    pub(crate) token: String,
}

/// The body of a login.
pub(crate) fn login(fields: &mut BodyFields) -> LoginRequest {
    const PROVIDER: FieldType<String> =
        FieldType { read: fields::string, schema: |_| text().max_length(Some(KEY_BYTES_MAX)).into() };
    LoginRequest { provider: fields.required("provider", &PROVIDER), token: fields.required("token", &TOKEN) }
}

/// The schema of a member of a role.
pub(crate) fn role_member() -> ObjectBuilder {
    let about = "claims that must all hold, each with the values of which it has one";
    object()
        .property("provider", text().description(Some("the name of an identity provider")))
        .required("provider")
        .property("match", crate::openapi::schemas::json_object().description(Some(about)))
        .required("match")
}

/// The schema of a provider's document.
pub(crate) fn provider_document() -> ObjectBuilder {
    let texts = || ArrayBuilder::new().items(text());
    let map = crate::openapi::schemas::json_object;
    object()
        .property("issuer", text().description(Some("the `iss` of its tokens")))
        .required("issuer")
        .property("audiences", texts().description(Some("one of these is the `aud` of its tokens")))
        .required("audiences")
        .property("algorithms", texts().description(Some("`RS256`, `PS256`, `ES256`, `EdDSA`")))
        .property("keys", any_value().description(Some("`discovery`, `{\"url\", \"ca\"}` or `{\"jwks\"}`")))
        .property("max_token_age_s", integer(1).description(Some("how old a token may be, in seconds")))
        .property("require", map().description(Some("claims that each token must have")))
        .property("single_tenant", text_or_boolean())
        .property("hosts", texts().description(Some("further hosts of its endpoints")))
        .property("claims", map().description(Some("claims that are kept, which roles can match")))
}

fn text_or_boolean() -> ObjectBuilder {
    crate::openapi::schemas::boolean().description(Some("whether the issuer gives tokens to nobody else"))
}
