//! The past of configs and definitions, and bringing it back.
//!
//! A page goes on *before* the revision that the one before it ended with: it costs the same however far back it
//! is, and changes that come meanwhile don't move it.
//!
//! **Invariant:** what is shown of the past is what was stored then, byte for byte.

use axum::extract::State;

use super::{
    body, configs, definitions,
    extract::{Ask, Params, Read, key},
    json::Object,
    reply::{Problem, Reply},
};
use crate::{
    model::{error::Violation, limits::Limits, query::QueryError, record::Revision},
    service::{Consistency, Service},
    store::{AfterImage, HistoryEntry, HistoryPage, Operation},
};

/// Changes of a page when none is asked.
const LIMIT: u64 = 10;

/// The changes of a config.
pub(super) async fn of_config(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let asked = page(&read.params, service.limits());
    let (consistency, (before, limit)) = read.params.read(asked)?;
    let (definition, config) = (&read.keys.definition, &read.keys.config);
    key(definition, definitions::KEY)?;
    let (past, revision) = service.config_history(consistency, (definition, config), (before, limit)).await?;
    let path = format!("{}/history", configs::location(definition, config));
    Ok(show(&past, limit, &path).at(revision))
}

/// The changes of a definition.
pub(super) async fn of_definition(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let asked = page(&read.params, service.limits());
    let (consistency, (before, limit)) = read.params.read(asked)?;
    let definition = &read.keys.definition;
    key(definition, definitions::KEY)?;
    let (past, revision) = service.definition_history(consistency, definition, (before, limit)).await?;
    let path = format!("{}/{definition}/history", super::DEFINITIONS);
    Ok(show(&past, limit, &path).at(revision))
}

/// A config as it was.
pub(super) async fn config_at(
    service: &Service,
    read: &Read,
    consistency: Consistency,
    at: Revision,
) -> Result<Reply, Problem> {
    let keys = (read.keys.definition.as_str(), read.keys.config.as_str());
    let (config, revision) = service.config_at(consistency, keys, at).await?;
    let reply = if read.has(config.revision) {
        Reply::not_modified()
    } else {
        Reply::done("config found", &configs::record(&config))
    };
    Ok(reply.of(config.revision, config.modified_at).at(revision))
}

/// What a config was, as a new change.
pub(super) async fn rollback(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let to = body::revision(ask.json(&service)?)?;
    let (definition, config) = (&ask.keys.definition, &ask.keys.config);
    key(definition, definitions::KEY)?;
    let keys = (definition.as_str(), config.as_str());
    let (written, was) = service.rollback(ask.caller, keys, to, ask.condition.any()).await?;
    let reply = if written.applied.created {
        Reply::created("config restored", &was.data, &configs::location(definition, config))
    } else {
        Reply::done("config rolled back", &was.data)
    };
    Ok(reply.of_write(&written))
}

/// The revision that a page ends before, and its length.
fn page(params: &Params, limits: &Limits) -> Result<(Option<Revision>, usize), QueryError> {
    let [before, limit] = params.numbers(["before", "limit"])?;
    let limit = limit.unwrap_or(LIMIT.min(limits.page_limit as u64));
    let most = limits.page_limit;
    match usize::try_from(limit).ok().filter(|limit| (1..=most).contains(limit)) {
        Some(limit) => Ok((before, limit)),
        None => {
            let text = if limit == 0 {
                "`limit` must be greater than 0".to_owned()
            } else {
                format!("`limit` must be at most {most}")
            };
            Err(QueryError::Violations(vec![Violation::at(vec!["query".into(), "limit".into()], text)]))
        }
    }
}

fn show(page: &HistoryPage, limit: usize, path: &str) -> Reply {
    let items: Vec<String> = page.items.iter().map(item).collect();
    let meta = Object::new().value("limit", &limit).value("next_before", &page.next_before);
    let meta = meta.value("floor", &page.compaction_revision).end();
    let data = Object::new().raw("results", &format!("[{}]", items.join(","))).raw("meta", &meta).end();
    let reply = Reply::done("history found", &data);
    match page.next_before {
        Some(before) => reply.next(Some(&format!("{path}?limit={limit}&before={before}"))),
        None => reply,
    }
}

fn item(past: &HistoryEntry) -> String {
    let operation = match past.operation {
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Delete => "delete",
    };
    let data = match &past.after {
        AfterImage::Deleted => "null".to_owned(),
        AfterImage::Config(config) => config.data.to_string(),
        AfterImage::Definition(definition) => {
            let text = Object::new().value("indexes", &definition.indexes);
            definition.schema.iter().fold(text, |text, schema| text.raw("json_schema", schema)).end()
        }
    };
    Object::with_room(data.len())
        .value("revision", &past.revision)
        .plain("operation", operation)
        .plain("at", past.at)
        .value("by", &past.by)
        .value("reason", &past.reason)
        .raw("data", &data)
        .end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;

    #[test]
    fn a_deletion_has_no_data_and_texts_are_escaped() {
        let past = HistoryEntry {
            revision: 7,
            at: Timestamp(1),
            by: "root".into(),
            reason: Some("\"why\"".into()),
            operation: Operation::Delete,
            after: AfterImage::Deleted,
        };
        let expected = r#"{"revision":7,"operation":"delete","at":"1970-01-01T00:00:00.000001Z","by":"root","reason":"\"why\"","data":null}"#;
        assert_eq!(item(&past), expected);
    }
}
