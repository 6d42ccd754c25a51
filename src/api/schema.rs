//! What a definition asks of its configs beside its indexes: its schema and its unique paths.
//!
//! Both are parts of the definition, so its revision is their entity tag. The ten operations show them as they
//! always did; these paths are their own.
//!
//! **Invariant:** a dry run and a refusal tell the same of the same configs; `policy=force` alone stores a schema
//! that configs break.

use axum::extract::State;
use serde_json::{Value, json};

use super::{
    body,
    definitions::{KEY, find, identity},
    extract::{Ask, Params, Read, key, violation},
    json::Object,
    reply::{Problem, Reply, place},
};
use crate::{
    model::record::Definition,
    service::{Breaking, Compiled, NewSchema, NewUnique, Report, Service, Write},
};

/// The schema of a definition.
pub(super) async fn get(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let show = |definition: &Definition| Object::new().raw("json_schema", text(definition.schema.as_deref()));
    show_part(&service, &read, "schema found", show).await
}

/// Changes it.
pub(super) async fn put(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let expect = ask.condition.change()?;
    let force = force(&ask.params)?;
    let schema = body::new_schema(ask.json(&service)?)?;
    let new = NewSchema { key: ask.keys.definition, schema, expect, force, compiled: Compiled::default() };
    if ask.caller.dry_run {
        let tried = service.try_schema(ask.caller, new).await?;
        let data = reported(Object::new(), &tried.report).end();
        let reply = Reply::done("schema checked, nothing was stored", &data);
        return Ok(reply.breaking(tried.report.count).at(tried.revision).tried());
    }
    let shown = new.schema.as_ref().map(|schema| schema.text.clone());
    let data = identity(&new.key).raw("json_schema", text(shown.as_deref()));
    let written = service.write(ask.caller, Write::SetSchema(new.clone())).await?;
    let reply = if force {
        let tried = service.breaking(new).await?;
        let reply = Reply::done("schema stored", &reported(data, &tried.report).end());
        reply.breaking(tried.report.count).at(tried.revision)
    } else {
        Reply::done("schema stored", &data.end()).at(written.revision)
    };
    Ok(reply.of(written.applied.revision, written.applied.at))
}

/// The unique paths of a definition.
pub(super) async fn get_unique(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let show = |definition: &Definition| Object::new().value("paths", &definition.unique);
    show_part(&service, &read, "unique paths found", show).await
}

/// Changes them.
pub(super) async fn put_unique(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let expect = ask.condition.change()?;
    let paths = body::new_paths(ask.json(&service)?)?;
    let data = Object::new().value("paths", &paths).end();
    let new = NewUnique { key: ask.keys.definition, paths, expect };
    if ask.caller.dry_run {
        let revision = service.try_unique(ask.caller, new).await?;
        return Ok(Reply::done("unique paths checked, nothing was stored", &data).at(revision).tried());
    }
    let written = service.write(ask.caller, Write::SetUnique(new)).await?;
    let reply = Reply::done("unique paths stored", &data);
    Ok(reply.of(written.applied.revision, written.applied.at).at(written.revision))
}

/// Reads a definition and shows a part of it.
async fn show_part(
    service: &Service,
    read: &Read,
    message: &'static str,
    show: impl Fn(&Definition) -> Object,
) -> Result<Reply, Problem> {
    let (consistency, ()) = read.params.read(Ok(()))?;
    key(&read.keys.definition, KEY)?;
    let state = service.view(consistency).await?;
    let definition = &find(&state, &read.keys.definition)?.definition;
    let reply = if read.has(definition.revision) {
        Reply::not_modified()
    } else {
        Reply::done(message, &show(definition).end())
    };
    Ok(reply.of(definition.revision, definition.modified_at).at(state.revision()))
}

/// The text of a schema, or of its absence.
fn text(schema: Option<&str>) -> &str {
    schema.unwrap_or("null")
}

fn reported(data: Object, report: &Report) -> Object {
    let breaking: Vec<Value> = report.breaking.iter().map(shown).collect();
    data.value("breaking_count", &report.count)
        .value("breaking", &breaking)
        .value("checked", &report.checked)
        .value("scan", if report.scanned { &"full" } else { &"skipped" })
}

fn shown(breaking: &Breaking) -> Value {
    let errors: Vec<Value> = breaking
        .violations
        .iter()
        .map(|violation| json!({"loc": place(&violation.loc), "msg": violation.msg}))
        .collect();
    json!({"config_key": breaking.key.as_str(), "errors": errors})
}

/// Whether `policy=force` is asked.
fn force(params: &Params) -> Result<bool, Problem> {
    match params.get("policy") {
        None => Ok(false),
        Some("force") => Ok(true),
        Some(_) => Err(Problem::violation(violation("policy", "`policy` must be `force` or absent"))),
    }
}
