//! The schema, the unique paths and the protection of a definition, each a resource with a path of its own.
//!
//! They are parts of the definition, so its revision is their entity tag.
//!
//! **Invariants:** a dry run reports the same configs that a rejection names. Only `policy=force` stores a schema that
//! configs do not fit.

use serde_json::{Value, json};

use super::{
    body::fields::{self, BodyFields, FieldType, PATHS},
    definitions::{FORMAT_ASSERTION, KEY, SCHEMA, find, identity},
    extract::{BodyRequest, QueryParams, ReadRequest, check_key, query_violation},
    json::{Object, loc_json},
    openapi::schemas::boolean,
    reply::{Problem, Reply},
};
use concord_model::{
    access_key::Verb,
    command::Expect,
    document::Document,
    record::{Definition, Revision},
};
use concord_service::{
    BreakingConfig, LazySchema, NewProtection, NewSchema, NewUnique, Refusal, SchemaReport, Service, Write,
};

/// The body that replaces a schema.
#[derive(Debug)]
pub(super) struct SchemaBody {
    /// `None` removes the schema.
    schema: Option<Document>,
    format_assertion: Option<bool>,
}

impl SchemaBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        Self {
            schema: fields.required_or_null("json_schema", &SCHEMA).map(Document::new),
            format_assertion: fields.nullable("format_assertion", &FORMAT_ASSERTION),
        }
    }

    pub(super) fn into_schema(self, key: String, expect: Expect, force: bool) -> NewSchema {
        let Self { schema, format_assertion } = self;
        NewSchema { key, schema, format_assertion, expect, force, compiled: LazySchema::default() }
    }
}

/// The body that replaces the unique paths.
#[derive(Debug)]
pub(super) struct UniqueBody {
    pub(super) paths: Vec<String>,
}

impl UniqueBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        Self { paths: fields.required("paths", &PATHS) }
    }
}

/// Gets the schema of a definition.
pub(super) async fn get(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let part = |definition: &Definition| {
        let schema = definition.schema.as_ref();
        let asserted = schema.map(|schema| schema.formats.is_asserted());
        Object::new()
            .raw("json_schema", schema_or_null(definition.schema.as_deref()))
            .value("format_assertion", &asserted)
    };
    get_part(&service, &request, "schema found", part).await
}

/// Replaces or removes the schema of a definition.
pub(super) async fn put(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let force = force(&request.params)?;
    let body = request.read(&service, SchemaBody::read).await?;
    let new = body.into_schema(request.keys.definition, expect, force);
    if request.caller.dry_run {
        let report = service.writes.try_schema(request.caller, new).await?;
        let data = with_report(Object::new(), &report).finish();
        let reply = Reply::ok("schema checked, nothing was stored", &data);
        return Ok(reply.breaking_configs(report.count).state_revision(report.revision).dry_run());
    }
    let stored = new.schema.as_ref().map(|schema| schema.text.clone());
    let data = identity(&new.key).raw("json_schema", schema_or_null(stored.as_deref()));
    let principal = request.caller.principal.clone();
    let written = service.writes.write(request.caller, Write::SetSchema(new.clone())).await?;
    let report = if force { service.writes.breaking(&principal, new).await } else { Ok(None) };
    let reply = stored_reply(data, report, written.revision);
    Ok(reply.record_version(written.applied.revision, written.applied.at))
}

/// The response when a schema is stored, with the report on its configs if there is one. The write is applied, so a
/// missing report does not fail the request.
fn stored_reply(data: Object, report: Result<Option<SchemaReport>, Refusal>, revision: Revision) -> Reply {
    match report {
        Ok(Some(report)) => {
            let reply = Reply::ok("schema stored", &with_report(data, &report).finish());
            reply.breaking_configs(report.count).state_revision(report.revision)
        }
        Ok(None) => Reply::ok("schema stored", &data.finish()).state_revision(revision),
        Err(refusal) => {
            tracing::warn!(?refusal, "stored a schema by force, but could not report on its configs");
            let reply = Reply::ok("schema stored", &data.finish()).state_revision(revision);
            reply.warning(
                "the schema is stored, but its configs could not be checked; a dry run reports on them",
            )
        }
    }
}

/// Gets the unique paths of a definition.
pub(super) async fn get_unique(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let part = |definition: &Definition| Object::new().value("paths", &definition.unique);
    get_part(&service, &request, "unique paths found", part).await
}

/// Replaces the unique paths of a definition.
pub(super) async fn put_unique(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let UniqueBody { paths } = request.read(&service, UniqueBody::read).await?;
    let data = Object::new().value("paths", &paths).finish();
    let new = NewUnique { key: request.keys.definition, paths, expect };
    if request.caller.dry_run {
        let revision = service.writes.try_unique(request.caller, new).await?;
        return Ok(Reply::ok("unique paths checked, nothing was stored", &data)
            .state_revision(revision)
            .dry_run());
    }
    let written = service.writes.write(request.caller, Write::SetUnique(new)).await?;
    let reply = Reply::ok("unique paths stored", &data);
    Ok(reply.record_version(written.applied.revision, written.applied.at).state_revision(written.revision))
}

/// The body that protects a definition from deletion, or no longer.
#[derive(Debug)]
pub(super) struct ProtectionBody {
    pub(super) protected: bool,
}

impl ProtectionBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        const PROTECTED: FieldType<bool> = FieldType {
            read: fields::boolean,
            schema: |_| boolean().description(Some("whether its deletion is rejected")).into(),
        };
        Self { protected: fields.required("protected", &PROTECTED) }
    }
}

/// Gets the protection of a definition.
pub(super) async fn get_protection(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let part = |definition: &Definition| Object::new().value("protected", &definition.protected);
    get_part(&service, &request, "protection found", part).await
}

/// Protects a definition from deletion, or no longer.
pub(super) async fn put_protection(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let ProtectionBody { protected } = request.read(&service, ProtectionBody::read).await?;
    let data = Object::new().value("protected", &protected).finish();
    let new = NewProtection { key: request.keys.definition, protected, expect };
    let written = service.writes.write(request.caller, Write::SetProtection(new)).await?;
    Ok(Reply::ok("protection stored", &data).for_write(&written))
}

/// Gets a part of a definition.
async fn get_part(
    service: &Service,
    request: &ReadRequest,
    message: &'static str,
    part: impl Fn(&Definition) -> Object,
) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    check_key(&request.definition(), KEY)?;
    let key = request.definition();
    let view = service.reads.read(&request.principal, Verb::Read, &key, consistency).await?;
    let definition = &find(&view)?.definition;
    let reply = if request.has(definition.revision) {
        Reply::not_modified()
    } else {
        Reply::ok(message, &part(definition).finish())
    };
    let reply =
        reply.record_version(definition.revision, definition.modified_at).state_revision(view.revision());
    Ok(reply.compressed_for(request.headers(), || true))
}

/// The text of a schema, or `null`.
fn schema_or_null(schema: Option<&str>) -> &str {
    schema.unwrap_or("null")
}

fn with_report(data: Object, report: &SchemaReport) -> Object {
    let breaking: Vec<Value> = report.breaking.iter().map(breaking_json).collect();
    data.value("breaking_count", &report.count)
        .value("breaking", &breaking)
        .value("checked", &report.checked)
        .value("scan", if report.scanned { &"full" } else { &"skipped" })
}

fn breaking_json(breaking: &BreakingConfig) -> Value {
    let errors: Vec<Value> = breaking
        .violations
        .iter()
        .map(|violation| json!({"loc": loc_json(&violation.loc), "msg": violation.msg}))
        .collect();
    json!({"config_key": breaking.key.as_str(), "errors": errors})
}

/// Whether the client sets `policy=force`.
fn force(params: &QueryParams) -> Result<bool, Problem> {
    match params.get("policy") {
        None => Ok(false),
        Some("force") => Ok(true),
        Some(_) => Err(Problem::violation(query_violation("policy", "`policy` must be `force` or absent"))),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::to_bytes, response::IntoResponse as _};
    use http::{StatusCode, header};

    use super::*;

    #[tokio::test]
    async fn a_schema_that_is_stored_is_200_whatever_keeps_the_report_from_being_made() {
        for refusal in [
            Refusal::Unavailable("the configs could not be checked in time".into()),
            Refusal::Internal("a text for the log".into()),
            Refusal::Overloaded,
        ] {
            let answer =
                stored_reply(Object::new().raw("json_schema", "{}"), Err(refusal), 7).into_response();
            assert_eq!(answer.status(), StatusCode::OK);
            assert!(answer.headers()[header::WARNING].to_str().unwrap().contains("could not be checked"));
            let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["data"], json!({"json_schema": {}}), "nothing of the refusal");
        }
    }
}
