//! Definitions: create, list, get, replace the indexed paths, delete; the states of their indexes. Their schemas and
//! unique paths are in `schema`.
//!
//! The indexes of a large definition are built in the background, after the request that names them is answered. Until
//! an index is ready, a list that needs it is rejected. Responses about the definition report the progress in a header,
//! because their bodies take no further members.
//!
//! **Invariant:** a response is made of the request, of the outcome of its write, or of the one state that the read
//! saw, so that a request that is retried gets the same response.

use std::sync::Arc;

use serde_json::Value;

use super::{
    across,
    body::fields::{self, BodyFields, FieldType, KEY as KEY_TYPE, PATHS},
    cursor::{self, ListCall, PastRevision},
    endpoints::DEFINITIONS,
    extract::{BodyRequest, QueryParams, ReadRequest, both, check_key, query_violation},
    json::Object,
    openapi::schemas::{boolean, example_schema, integer, json_object, text},
    reply::{Problem, Rendering, Reply, ResultsFrame},
    shape::{Shape, TAKES_PARAMETER, takes_parameter, without_shape},
};
use concord_model::{
    access_key::Verb,
    command::{Done, StepOutcome},
    document::Document,
    index::Build,
    query::{self, Page, QueryError},
    record::{Definition, Revision},
    time::Timestamp,
};
use concord_service::{
    DefinitionView, DeletedDefinition, Service, UndeleteAt, Write, memory_budget::Reservation,
    read::list::ListScope,
};
use concord_state::{Collection, query::QueryResult};

/// The name of the path's first parameter, and of the field of a record.
pub(super) const KEY: &str = "config_definition_key";

/// The body that creates a definition.
#[derive(Debug, PartialEq)]
pub(super) struct DefinitionBody {
    pub(super) key: String,
    pub(super) indexes: Vec<String>,
    pub(super) schema: Option<Document>,
    pub(super) format_assertion: Option<bool>,
}

impl DefinitionBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        Self {
            key: fields.required(KEY, &KEY_TYPE),
            indexes: fields.optional("indexes", &PATHS).unwrap_or_default(),
            schema: fields.nullable("json_schema", &SCHEMA).map(Document::new),
            format_assertion: fields.nullable("format_assertion", &FORMAT_ASSERTION),
        }
    }

    pub(super) fn into_write(self) -> Write {
        let Self { key, indexes, schema, format_assertion } = self;
        Write::CreateDefinition { key, indexes, schema, format_assertion }
    }
}

/// A JSON schema.
pub(super) const SCHEMA: FieldType<Value> = FieldType {
    read: fields::any_object,
    schema: |_| {
        let about =
            "a JSON schema, draft 2020-12 unless `$schema` names another; without one, any object is valid";
        json_object().description(Some(about)).examples([example_schema()]).into()
    },
};

/// Whether `format` is asserted.
pub(super) const FORMAT_ASSERTION: FieldType<bool> = FieldType {
    read: fields::boolean,
    schema: |_| {
        let about = "whether `format` is asserted, in every draft; by default it is, and a definition whose schema is \
                     replaced keeps what it had";
        boolean().description(Some(about)).into()
    },
};

/// The body that replaces the indexed paths.
#[derive(Debug, PartialEq)]
pub(super) struct IndexesBody {
    pub(super) indexes: Vec<String>,
    /// The body has a schema too, which is ignored.
    pub(super) has_schema: bool,
}

impl IndexesBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        Self { has_schema: fields.has("json_schema"), indexes: fields.required("indexes", &PATHS) }
    }
}

/// Creates a definition.
pub(super) async fn create(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    request.condition.for_create()?;
    let new = request.read(&service, DefinitionBody::read).await?;
    let data = identity(&new.key).value("indexes", &new.indexes);
    let data = new.schema.iter().fold(data, |data, schema| data.raw("json_schema", &schema.text)).finish();
    let (location, takes_parameter) = (location(&new.key), takes_parameter(&new.indexes));
    let written = service.writes.write(request.caller, new.into_write()).await?;
    let reply = Reply::created("config definition created", &data, &location).for_write(&written);
    Ok(if takes_parameter { reply.warning(TAKES_PARAMETER) } else { reply })
}

/// Lists definitions.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let query = query::definitions(&request.params.0, service.cx.limits());
    let past = PastRevision::of(&request.params, false);
    let patterns = across::patterns(&request.params);
    let asked = both(past, both(query, both(shape(&request.params), patterns)));
    let (consistency, (past, (query, (shape, patterns)))) = request.params.with_consistency(asked)?;
    let source = cursor::source(&request.params, consistency)?;
    let params = without_shape(&request.params, |_| false);
    let scope = if patterns.is_empty() { ListScope::Definitions } else { ListScope::DefinitionsOf(patterns) };
    let call = ListCall { scope, params, past, shape, page: query.page, source };
    cursor::list(&service, &request, call).await
}

/// How definitions are shown: they have no data, so `fields` has no meaning.
fn shape(params: &QueryParams) -> Result<Shape, QueryError> {
    let shape = Shape::of(params, |_| false)?;
    if shape.fields.is_some() {
        let msg = "`fields` selects parts of config data; definitions have no data";
        return Err(QueryError::Violations(vec![query_violation("fields", msg)]));
    }
    Ok(shape)
}

pub(super) fn page(
    found: QueryResult<Arc<Definition>>,
    page: &Page,
    reservation: Reservation,
    has_revision: bool,
) -> Reply {
    let size = |definition: &Arc<Definition>| definition.schema.as_ref().map_or(0, |text| text.len());
    let render = move |object: Object, definition: &Arc<Definition>| shown(object, definition, has_revision);
    Reply::page("config definitions found", found, reservation, page, Rendering { size, render })
}

/// Gets a definition.
pub(super) async fn get(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, shape) = request.params.with_consistency(shape(&request.params))?;
    check_key(&request.definition(), KEY)?;
    let key = request.definition();
    let view = service.reads.read(&request.principal, Verb::Read, &key, consistency).await?;
    let collection = find(&view)?;
    let definition = &collection.definition;
    let reply = if request.has(definition.revision) {
        Reply::not_modified()
    } else {
        Reply::ok("config definition found", &record(definition, shape.has_revision))
    };
    let reply = reply.record_version(definition.revision, definition.modified_at);
    let reply = reply.compressed_for(request.headers(), || true);
    Ok(reply.index_building(build_progress(collection)).state_revision(view.revision()))
}

/// Replaces the indexed paths of a definition.
pub(super) async fn set_indexes(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let IndexesBody { indexes, has_schema } = request.read(&service, IndexesBody::read).await?;
    let data = Object::new().value("indexes", &indexes).finish();
    let (key, principal) = (request.keys.definition.clone(), request.caller.principal.clone());
    let takes_parameter = takes_parameter(&indexes);
    let write = Write::SetIndexes { key: request.keys.definition, indexes, expect };
    let written = service.writes.write(request.caller, write).await?;
    let mut reply = Reply::ok("config definition updated", &data);
    if has_schema {
        reply = reply.warning(
            "json_schema is ignored here; PUT /api/v1/config_definition/{key}/schema changes the schema",
        );
    }
    if takes_parameter {
        reply = reply.warning(TAKES_PARAMETER);
    }
    // The progress is that of the newest state: a request that is retried may find the build finished. It tells how
    // many configs there are, so a client that may not read them is not told.
    let view = service.reads.read_applied(&principal, Verb::Read, &key).ok();
    let progress = view.and_then(|view| build_progress(view.collection().ok()?));
    Ok(reply.index_building(progress).for_write(&written))
}

/// Deletes a definition.
pub(super) async fn delete(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let (restrict, purge) = (request.params.restrict()?, request.params.purge()?);
    let data = identity(&request.keys.definition).finish();
    let write = Write::DeleteDefinition { key: request.keys.definition, expect, restrict, purge };
    let written = service.writes.write(request.caller, write).await?;
    let reply = Reply::ok("config definition deleted", &data).for_deletion(&written);
    let is_kept = written.applied.done == Done::Single(StepOutcome::Retained);
    let reply = reply.deletion(is_kept);
    Ok(if is_kept || purge { reply } else { reply.warning(NOT_KEPT) })
}

/// The warning to a deletion that can't be undone, although the client did not ask for that.
pub(super) const NOT_KEPT: &str =
    "the deletion can't be undone: the definition takes more memory than CONCORD_DELETED_BYTES allows";

/// The body that undoes a deletion: as of when the definition returns.
#[derive(Debug, PartialEq)]
pub(super) struct UndeleteBody {
    at: UndeleteAt,
}

impl UndeleteBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        const REVISION: FieldType<Revision> = FieldType {
            read: fields::integer,
            schema: |_| integer(0).description(Some("the revision as of which it returns")).into(),
        };
        const TIME: FieldType<Timestamp> = FieldType {
            read: |value, fields| {
                let time = Timestamp::parse(&fields::string(value, fields)?);
                if time.is_none() {
                    fields.violation(&[], "expected an RFC 3339 time such as `2027-01-01T00:00:00Z`");
                }
                time
            },
            schema: |_| {
                text().description(Some("RFC 3339: as of the last change at this time or before it")).into()
            },
        };
        let (revision, time) = (fields.optional("revision", &REVISION), fields.optional("time", &TIME));
        let at = match (revision, time) {
            (None, None) => UndeleteAt::Deletion,
            (Some(revision), None) => UndeleteAt::Revision(revision),
            (None, Some(time)) => UndeleteAt::Time(time),
            (Some(_), Some(_)) => {
                fields.violation_in("time", "`revision` and `time` exclude each other");
                UndeleteAt::Deletion
            }
        };
        Self { at }
    }
}

/// Undoes the deletion of a definition.
pub(super) async fn undelete(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    request.condition.for_create()?;
    let UndeleteBody { at } = request.read(&service, UndeleteBody::read).await?;
    let key = request.keys.definition;
    let (written, undeleted) = service.writes.undelete(request.caller, key.clone(), at).await?;
    let data = identity(&key).value("deleted_revision", &undeleted.deleted);
    let data = data.value("revision", &undeleted.at);
    let data = undeleted
        .size
        .iter()
        .fold(data, |data, size| data.value("configs", &size.configs).value("bytes", &size.bytes));
    Ok(Reply::created("config definition undeleted", &data.finish(), &location(&key)).for_write(&written))
}

/// Lists the deleted definitions whose deletion can be undone.
pub(super) async fn deleted(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, patterns) = request.params.with_consistency(across::patterns(&request.params))?;
    let found = service.reads.deleted(&request.principal, &patterns, consistency).await?;
    let render = |object: Object, one: &DeletedDefinition| {
        let item = object.value(KEY, &one.key).value("deleted_revision", &one.deletion.revision);
        let item = item.time("deleted_at", one.deletion.at);
        item.value("configs", &one.configs).value("bytes", &one.bytes)
    };
    let meta = Object::new().value("total", &found.results.len()).finish();
    let tail = format!("],\"meta\":{meta}}}}}");
    let frame = ResultsFrame { before: "", tail: &tail };
    let rendering = Rendering { size: DeletedDefinition::listed_bytes, render };
    let reply =
        Reply::results("deleted definitions found", found.results, found.reservation, frame, rendering);
    Ok(reply.state_revision(found.revision))
}

/// The definition that a read names, with its configs.
pub(super) fn find<'a>(view: &'a DefinitionView<'_>) -> Result<&'a Collection, Problem> {
    view.collection().map_err(|rejection| Problem::rejected(rejection, view.revision()))
}

/// The path of a definition.
pub(super) fn location(key: &str) -> String {
    format!("{DEFINITIONS}{key}")
}

/// An object that begins with the definition's key.
pub(super) fn identity(key: &str) -> Object {
    Object::new().value(KEY, &key)
}

/// How far an index build is while it keeps a path from being used: `done/of`.
pub(super) fn build_progress(collection: &Collection) -> Option<String> {
    let build = collection.definition.indexing.build.as_ref();
    build.filter(|build: &&Build| !build.slots.is_empty())?;
    collection.progress().map(|progress| format!("{}/{}", progress.done, progress.total))
}

/// A definition as JSON.
fn record(definition: &Definition, has_revision: bool) -> String {
    let schema_bytes = definition.schema.as_ref().map_or(0, |text| text.len());
    shown(Object::with_capacity(schema_bytes), definition, has_revision).finish()
}

/// The members of a definition as it is shown.
fn shown(object: Object, definition: &Definition, has_revision: bool) -> Object {
    let object = object.unescaped(KEY, definition.key.as_str());
    let object = object.value("indexes", &definition.indexes);
    let object = definition.schema.iter().fold(object, |object, schema| object.raw("json_schema", schema));
    let object = object.time("created_at", definition.created_at).time("modified_at", definition.modified_at);
    if has_revision { object.value("revision", &definition.revision) } else { object }
}

/// Lists the indexes of a definition: whether each can be used, and how many configs it holds.
pub(super) async fn index_states(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    check_key(&request.definition(), KEY)?;
    let key = request.definition();
    let view = service.reads.read(&request.principal, Verb::Read, &key, consistency).await?;
    let collection = find(&view)?;
    let definition = &collection.definition;
    let reply = Reply::ok("indexes found", &states(collection));
    let reply = reply.record_version(definition.revision, definition.modified_at);
    Ok(reply.index_building(build_progress(collection)).state_revision(view.revision()))
}

fn states(collection: &Collection) -> String {
    let definition = &collection.definition;
    let of = collection.by_key.len();
    let done = collection.progress().map_or(of, |progress| progress.done);
    let item = |(path, slot): (&String, &u16)| {
        let is_building = definition.indexing.is_building(*slot);
        let (state, done) = if is_building { ("building", done) } else { ("ready", of) };
        let item = Object::new().value("path", path).unescaped("state", state);
        item.value("done", &done).value("of", &of).finish()
    };
    let items: Vec<String> = definition.indexes.iter().zip(&definition.indexing.slots).map(item).collect();
    Object::new().raw("indexes", &format!("[{}]", items.join(","))).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{index::Indexing, key::Key, time::Timestamp};

    #[test]
    fn a_record_has_its_schema_as_written_or_no_such_member() {
        let mut definition = Definition {
            id: 1,
            key: Key::parse("d").unwrap(),
            indexes: vec![r"a\.b".into()],
            schema: Some(r#"{"minimum":1e400}"#.into()),
            indexing: Indexing::fresh(1),
            created_at: Timestamp(0),
            modified_at: Timestamp(1),
            revision: 1,
            unique: Vec::new(),
            protected: false,
            standing: <_>::default(),
        };
        let expected = r#"{"config_definition_key":"d","indexes":["a\\.b"],"json_schema":{"minimum":1e400},"created_at":"1970-01-01T00:00:00.000000Z","modified_at":"1970-01-01T00:00:00.000001Z"}"#;
        assert_eq!(record(&definition, false), expected);
        definition.schema = None;
        assert!(!record(&definition, false).contains("json_schema"));
    }
}
