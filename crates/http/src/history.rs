//! The history of configs and definitions, and rollback.
//!
//! Each page lists the changes before a revision, the last one of the previous page: its cost does not depend on how
//! old it is, and changes that are made meanwhile do not shift it.
//!
//! **Invariant:** the data of an old revision are sent byte for byte as they were stored then.

use super::{
    body::fields::{self, BodyFields, FieldType},
    configs, definitions,
    extract::{BodyRequest, QueryParams, ReadRequest, check_key, query_violation},
    json::Object,
    openapi::schemas::integer,
    reply::{Problem, Reply},
    watch::with_author,
};
use concord_model::{limits::Limits, query::QueryError, record::Revision};
use concord_service::{AuthorView, ConfigName, HistoryRange, RedactedHistory, Restored, Rollback, Service};
use concord_storage::{AfterImage, HistoryEntry, HistoryPage, RecordOperation};

/// Bytes of a page up to which it is written where it is answered from: some 50 microseconds.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// What a change has beside its data, as a rule.
const ITEM_BYTES: usize = 160;
/// Changes of a page where the client sets no `limit`.
const LIMIT_DEFAULT: u64 = 10;

/// Lists the changes of a config.
pub(super) async fn of_config(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let range = page_range(&request.params, service.cx.limits());
    let (consistency, (before, limit)) = request.params.with_consistency(range)?;
    let range = HistoryRange { before, limit };
    let (definition, config) = (&request.definition(), &request.config());
    check_key(definition, definitions::KEY)?;
    let name = ConfigName { definition, key: config };
    let found = service.history.config_history(&request.principal, consistency, name, range).await?;
    let RedactedHistory { page, revision, redacted, authors } = found;
    let path = format!("{}/history", configs::location(definition, config));
    let reply = page_reply(&service, (page, authors), limit, path).await?;
    let reply = reply.redacted(Some(&redacted)).state_revision(revision);
    Ok(reply.compressed_for(request.headers(), || service.reads.may_compress(&request.principal, definition)))
}

/// Lists the changes of a definition.
pub(super) async fn of_definition(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let range = page_range(&request.params, service.cx.limits());
    let (consistency, (before, limit)) = request.params.with_consistency(range)?;
    let definition = &request.definition();
    check_key(definition, definitions::KEY)?;
    let range = HistoryRange { before, limit };
    let found =
        service.history.definition_history(&request.principal, consistency, definition, range).await?;
    let path = format!("{}/history", definitions::location(definition));
    let RedactedHistory { page, revision, authors, .. } = found;
    let reply = page_reply(&service, (page, authors), limit, path).await?;
    Ok(reply.state_revision(revision).compressed_for(request.headers(), || true))
}

/// The body of a rollback.
#[derive(Debug)]
pub(super) struct RollbackBody {
    pub(super) revision: Revision,
}

impl RollbackBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        const RESTORED: FieldType<Revision> = FieldType {
            read: fields::integer,
            schema: |_| integer(0).description(Some("the revision whose data are written")).into(),
        };
        Self { revision: fields.required("revision", &RESTORED) }
    }
}

/// Writes the data that a config had at a revision, as a new change.
pub(super) async fn rollback(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let RollbackBody { revision: to } = request.read(&service, RollbackBody::read).await?;
    let (definition, config) = (&request.keys.definition, &request.keys.config);
    check_key(definition, definitions::KEY)?;
    let (restored, expect) = (Restored::At(to), request.condition.for_create_or_replace());
    let rollback = Rollback { definition: definition.clone(), key: config.clone(), restored, expect };
    let written = service.writes.rollback(request.caller, rollback).await?;
    let restored = written.content.as_deref().unwrap_or("null");
    let reply = if written.applied.has_created() {
        Reply::created("config restored", restored, &configs::location(definition, config))
    } else {
        Reply::ok("config rolled back", restored)
    };
    Ok(reply.redacted(Some(&written.redacted)).for_write(&written))
}

/// The revision that a page ends before, and its length.
fn page_range(params: &QueryParams, limits: &Limits) -> Result<(Option<Revision>, usize), QueryError> {
    let [before, limit] = params.numbers(["before", "limit"])?;
    let limit_max = limits.page_limit;
    let limit = limit.unwrap_or(LIMIT_DEFAULT.min(limit_max as u64));
    match usize::try_from(limit).ok().filter(|limit| (1..=limit_max).contains(limit)) {
        Some(limit) => Ok((before, limit)),
        None => {
            let text = if limit == 0 {
                "`limit` must be greater than 0".to_owned()
            } else {
                format!("`limit` must be at most {limit_max}")
            };
            Err(QueryError::Violations(vec![query_violation("limit", text)]))
        }
    }
}

/// Answers with a page: a long one is written in the pool.
async fn page_reply(
    service: &Service,
    (page, authors): (HistoryPage, Vec<AuthorView>),
    limit: usize,
    path: String,
) -> Result<Reply, Problem> {
    if page.items.iter().map(bytes_of).sum::<usize>() <= INLINE_BYTES_MAX {
        return Ok(write_page((&page, &authors), limit, &path));
    }
    Ok(Box::pin(service.cx.run_long(move || write_page((&page, &authors), limit, &path))).await?)
}

/// About as many bytes as [`item`] writes.
fn bytes_of(change: &HistoryEntry) -> usize {
    let data = match &change.after {
        AfterImage::Deleted => 0,
        AfterImage::Config(config) => config.data.len(),
        AfterImage::Definition(definition) => definition.schema.as_ref().map_or(0, |schema| schema.len()),
    };
    data + ITEM_BYTES
}

fn write_page((page, authors): (&HistoryPage, &[AuthorView]), limit: usize, path: &str) -> Reply {
    let items: Vec<String> =
        page.items.iter().zip(authors).map(|(change, author)| item(change, author)).collect();
    let meta = Object::new().value("limit", &limit).value("next_before", &page.next_before);
    let meta = meta.value("floor", &page.compaction_revision).finish();
    let data = Object::new().raw("results", &format!("[{}]", items.join(","))).raw("meta", &meta).finish();
    let next = page.next_before.map(|before| format!("{path}?limit={limit}&before={before}"));
    Reply::ok("history found", &data).next_link(next.as_deref())
}

/// A change as JSON.
fn item(change: &HistoryEntry, author: &AuthorView) -> String {
    let operation = match change.operation {
        RecordOperation::Create => "create",
        RecordOperation::Update => "update",
        RecordOperation::Delete => "delete",
    };
    let data = match &change.after {
        AfterImage::Deleted => "null".to_owned(),
        AfterImage::Config(config) => config.data.to_string(),
        AfterImage::Definition(definition) => {
            let text = Object::new().value("indexes", &definition.indexes);
            definition.schema.iter().fold(text, |text, schema| text.raw("json_schema", schema)).finish()
        }
    };
    let object = Object::with_capacity(data.len())
        .value("revision", &change.revision)
        .unescaped("operation", operation)
        .time("at", change.at)
        .value("by", &change.by);
    with_author(object, author, &change.reason).raw("data", &data).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::time::Timestamp;

    #[test]
    fn a_deletion_has_null_data_and_texts_are_escaped() {
        let deletion = HistoryEntry {
            revision: 7,
            at: Timestamp(1),
            by: "root".into(),
            reason: Some("\"why\"".into()),
            operation: RecordOperation::Delete,
            after: AfterImage::Deleted,
        };
        let expected = r#"{"revision":7,"operation":"delete","at":"1970-01-01T00:00:00.000001Z","by":"root","reason":"\"why\"","data":null}"#;
        assert_eq!(item(&deletion, &AuthorView::default()), expected);
    }
}
