//! Operations 1 to 5: definitions.
//!
//! **Invariant:** a handler says nothing that is not in its request, in the verdict on it, or in the one state
//! that it read, so that a request that is sent again is answered the same.

use std::sync::Arc;

use axum::extract::State;

use super::{
    body::{NewDefinition, NewIndexes},
    cursor,
    extract::{Ask, Read, key},
    indexes,
    json::Object,
    reply::{Problem, Reply},
};
use crate::{
    model::{
        error::Rejection,
        query::{self, Page},
        record::Definition,
    },
    service::{Service, Write},
    state::{self, Collection, query::ListPage},
};

/// The name of the path's first parameter, and of its field.
pub(super) const KEY: &str = "config_definition_key";

/// Operation 1.
pub(super) async fn create(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    ask.condition.create()?;
    let NewDefinition { key, indexes, schema } = NewDefinition::of(ask.json(&service)?)?;
    let data = identity(&key).value("indexes", &indexes);
    let data = schema.iter().fold(data, |data, schema| data.raw("json_schema", &schema.text)).end();
    let location = format!("{}/{key}", super::DEFINITIONS);
    let written = service.write(ask.caller, Write::CreateDefinition { key, indexes, schema }).await?;
    let reply = Reply::created("config definition created", &data, &location);
    Ok(reply.of_write(&written))
}

/// Operation 2.
pub(super) async fn list(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let (consistency, query) = read.params.read(query::definitions(&read.params.0, service.limits()))?;
    let source = cursor::source(&read.params, consistency)?;
    cursor::list(&service, &read, None, query.page, source).await
}

fn page(found: ListPage<Arc<Definition>>, page: &Page) -> Reply {
    let size = |definition: &Arc<Definition>| definition.schema.as_ref().map_or(0, |text| text.len());
    let show = |definition: &Arc<Definition>| record(definition);
    Reply::page("config definitions found", found, page, size, show)
}

/// Operation 3.
pub(super) async fn get(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let (consistency, ()) = read.params.read(Ok(()))?;
    key(&read.keys.definition, KEY)?;
    let state = service.view(consistency).await?;
    let collection = find(&state, &read.keys.definition)?;
    let definition = &collection.definition;
    let reply = if read.has(definition.revision) {
        Reply::not_modified()
    } else {
        Reply::done("config definition found", &record(definition))
    };
    let reply = reply.of(definition.revision, definition.modified_at);
    Ok(reply.building(indexes::building(collection)).at(state.revision()))
}

/// Operation 4.
pub(super) async fn set_indexes(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let expect = ask.condition.change()?;
    let NewIndexes { indexes, has_schema } = NewIndexes::of(ask.json(&service)?)?;
    let data = Object::new().value("indexes", &indexes).end();
    let key = ask.keys.definition.clone();
    let write = Write::SetIndexes { key: ask.keys.definition, indexes, expect };
    let written = service.write(ask.caller, write).await?;
    let mut reply = Reply::done("config definition updated", &data);
    if has_schema {
        reply = reply.warning(
            "json_schema is ignored here; PUT /api/v1/config_definition/{key}/schema changes the schema",
        );
    }
    // Told as it is now: the request that is sent again may find the build over.
    reply = reply.building(service.applied().definition(&key).and_then(|found| indexes::building(found)));
    Ok(reply.of_write(&written))
}

/// Operation 5.
pub(super) async fn delete(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let expect = ask.condition.change()?;
    let restrict = ask.params.restrict()?;
    let data = identity(&ask.keys.definition).end();
    let write = Write::DeleteDefinition { key: ask.keys.definition, expect, restrict };
    let written = service.write(ask.caller, write).await?;
    Ok(Reply::done("config definition deleted", &data).of_end(&written))
}

/// The definition that a read is about.
pub(super) fn find<'a>(state: &'a state::State, key: &str) -> Result<&'a Arc<Collection>, Problem> {
    let found = state.definition(key);
    found.ok_or_else(|| Problem::read(Rejection::DefinitionNotFound, state.revision()))
}

pub(super) fn identity(key: &str) -> Object {
    Object::new().value(KEY, &key)
}

fn record(definition: &Definition) -> String {
    let room = definition.schema.as_ref().map_or(0, |text| text.len());
    let text = Object::with_room(room).plain(KEY, &definition.key).value("indexes", &definition.indexes);
    let text = definition.schema.iter().fold(text, |text, schema| text.raw("json_schema", schema));
    text.plain("created_at", definition.created_at).plain("modified_at", definition.modified_at).end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{index::Indexing, key::Key, time::Timestamp};

    #[test]
    fn a_record_has_its_schema_as_written_or_none() {
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
        };
        let expected = r#"{"config_definition_key":"d","indexes":["a\\.b"],"json_schema":{"minimum":1e400},"created_at":"1970-01-01T00:00:00.000000Z","modified_at":"1970-01-01T00:00:00.000001Z"}"#;
        assert_eq!(record(&definition), expected);
        definition.schema = None;
        assert!(!record(&definition).contains("json_schema"));
    }
}
