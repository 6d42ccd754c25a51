//! Operations 6 to 10: configs.
//!
//! **Invariant:** a handler says nothing that is not in its request, in the verdict on it, or in the one state
//! that it read; stored data is shown as it is stored, unparsed.

use std::sync::Arc;

use axum::extract::State;

use super::{
    body::{self, NewConfig},
    cursor,
    definitions::{self, find},
    extract::{Ask, Read, key},
    json::Object,
    reply::{Problem, Reply},
};
use crate::{
    model::{
        command::Expect,
        error::Rejection,
        query::{self, Page},
        record::Config,
    },
    service::{Service, Write},
    state::query::ListPage,
};

pub(super) const KEY: &str = "config_key";

/// Operation 6.
pub(super) async fn create(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    ask.condition.create()?;
    let NewConfig { key, data } = NewConfig::of(ask.json(&service)?)?;
    let definition = ask.keys.definition;
    let (location, shown) = (location(&definition, &key), data.text.clone());
    let write = Write::WriteConfig { definition, key, data, expect: Expect::Absent };
    let written = service.write(ask.caller, write).await?;
    let reply = Reply::created("config created", &shown, &location);
    Ok(reply.of_write(&written))
}

/// Operation 7.
pub(super) async fn list(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let (consistency, page) = read.params.read(query::configs_shape(&read.params.0, service.limits()))?;
    let source = cursor::source(&read.params, consistency)?;
    key(&read.keys.definition, definitions::KEY)?;
    cursor::list(&service, &read, Some(&read.keys.definition), page, source).await
}

fn page(found: ListPage<Arc<Config>>, page: &Page) -> Reply {
    let size = |config: &Arc<Config>| config.data.len();
    let show = |config: &Arc<Config>| record(config);
    Reply::page("configs found", found, page, size, show)
}

/// Operation 8.
pub(super) async fn get(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let (consistency, [revision]) = read.params.read(read.params.numbers(["revision"]))?;
    key(&read.keys.definition, definitions::KEY)?;
    if let Some(revision) = revision {
        return super::history::config_at(&service, &read, consistency, revision).await;
    }
    let state = service.view(consistency).await?;
    let collection = find(&state, &read.keys.definition)?;
    key(&read.keys.config, KEY)?;
    let not_found = || Problem::read(Rejection::ConfigNotFound, state.revision());
    let config = collection.config(&read.keys.config).ok_or_else(not_found)?;
    let reply = if read.has(config.revision) {
        Reply::not_modified()
    } else {
        Reply::done("config found", &record(config))
    };
    Ok(reply.of(config.revision, config.modified_at).at(state.revision()))
}

/// Operation 9.
pub(super) async fn put(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let data = body::new_data(ask.json(&service)?)?;
    let (definition, key) = (ask.keys.definition, ask.keys.config);
    let (location, shown) = (location(&definition, &key), data.text.clone());
    let write = Write::WriteConfig { definition, key, data, expect: ask.condition.put() };
    let written = service.write(ask.caller, write).await?;
    let reply = if written.applied.created {
        Reply::created("config created", &shown, &location)
    } else {
        Reply::done("config updated", &shown)
    };
    Ok(reply.of_write(&written))
}

/// Operation 10.
pub(super) async fn delete(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let expect = ask.condition.change()?;
    let (definition, key) = (ask.keys.definition, ask.keys.config);
    let data = Object::new().value(definitions::KEY, &definition).value(KEY, &key).end();
    let written = service.write(ask.caller, Write::DeleteConfig { definition, key, expect }).await?;
    Ok(Reply::done("config deleted", &data).of_end(&written))
}

pub(super) fn location(definition: &str, key: &str) -> String {
    format!("{}/{definition}/config/{key}", super::DEFINITIONS)
}

pub(super) fn record(config: &Config) -> String {
    let text = Object::with_room(config.data.len()).plain(KEY, &config.key).raw("data", &config.data);
    text.plain("created_at", config.created_at).plain("modified_at", config.modified_at).end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{key::Key, time::Timestamp};

    #[test]
    fn a_record_has_four_members_and_its_data_as_written() {
        let config = Config {
            key: Key::parse("k").unwrap(),
            data: r#"{"b":7.0,"a":-0.0}"#.into(),
            entries: Box::default(),
            created_at: Timestamp(0),
            modified_at: Timestamp(1),
            revision: 1,
        };
        let expected = r#"{"config_key":"k","data":{"b":7.0,"a":-0.0},"created_at":"1970-01-01T00:00:00.000000Z","modified_at":"1970-01-01T00:00:00.000001Z"}"#;
        assert_eq!(record(&config), expected);
    }
}
