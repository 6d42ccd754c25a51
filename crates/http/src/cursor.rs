//! Lists in the interface: the parameter `cursor`, and the `Link` header that names the next page.
//!
//! **Invariant:** a link repeats the parameters of its page, so that a client only has to follow it.

use std::sync::Arc;

use form_urlencoded::Serializer;

use super::{
    across, configs, definitions,
    extract::{QueryParams, ReadRequest, query_violation},
    reply::{Problem, Reply},
    shape::Shape,
};
use concord_model::{
    query::{PAST, Page, QueryError},
    record::Revision,
};
use concord_service::{
    Consistency, Service,
    read::{
        cursor::Cursor,
        list::{ListPage, ListRequest, ListScope, PLACE_PARAMETERS, PageSource},
        records::ListRecords,
    },
};
use concord_state::query::QueryResult;

/// Where the requested page comes from: the state that a cursor names, or one that is as fresh as requested.
pub(super) fn source(params: &QueryParams, consistency: Consistency) -> Result<PageSource, Problem> {
    // An empty parameter counts as absent, as an empty `search` does.
    let Some(text) = params.get("cursor").filter(|text| !text.is_empty()) else {
        return Ok(PageSource::Fresh(consistency));
    };
    let refused = |msg: &str| Problem::violation(query_violation("cursor", msg));
    if params.get("page").is_some() {
        return Err(refused("`cursor` names its page, so `page` must be absent"));
    }
    let cursor =
        Cursor::parse(text).ok_or_else(|| refused("`cursor` is not one that this service issued"))?;
    Ok(PageSource::Cursor(cursor))
}

/// The revision whose state a list shows, where the client names one.
#[derive(Debug, Clone, Copy)]
pub(super) struct PastRevision {
    revision: Option<Revision>,
    /// Whether `revision` is the name of an indexed path: then it is a filter.
    is_filter: bool,
}

/// The parameter of a list that names a revision, where no path of this name is indexed.
pub(super) const REVISION: &str = "revision";

impl PastRevision {
    /// That of a list which has none.
    pub(super) const NONE: Self = Self { revision: None, is_filter: true };

    /// What the parameters say of it.
    pub(super) fn of(params: &QueryParams, is_filter: bool) -> Result<Self, QueryError> {
        let name = match params.get(PAST) {
            Some(_) => PAST,
            None if is_filter => return Ok(Self { revision: None, is_filter }),
            None => REVISION,
        };
        let [revision] = params.numbers([name])?;
        Ok(Self { revision, is_filter })
    }

    /// The parameters of the list, with the revision in one form.
    fn applied_to(self, params: Vec<(String, String)>) -> Vec<(String, String)> {
        let is_past = |name: &str| name == PAST || (name == REVISION && !self.is_filter);
        let rest = params.into_iter().filter(|(name, _)| !is_past(name));
        let revision = self.revision.map(|revision| (PAST.to_owned(), revision.to_string()));
        rest.chain(revision).collect()
    }
}

/// A list, as the parameters of its request describe it.
pub(super) struct ListCall {
    pub(super) scope: ListScope,
    /// The parameters that decide which records the list has.
    pub(super) params: Vec<(String, String)>,
    pub(super) past: PastRevision,
    pub(super) shape: Shape,
    pub(super) page: Page,
    pub(super) source: PageSource,
}

/// Answers a list.
pub(super) async fn list(service: &Service, request: &ReadRequest, call: ListCall) -> Result<Reply, Problem> {
    let ListCall { scope, params, past, shape, page, source } = call;
    let is_open = match &scope {
        ListScope::Definitions | ListScope::DefinitionsOf(_) => true,
        ListScope::Configs(definition) => service.reads.may_compress(&request.principal, definition),
        // Any of them may have secret values.
        ListScope::Across(_) => false,
    };
    let list = ListRequest { scope, params: past.applied_to(params) };
    let listed = service.reads.list(&request.principal, list, page, source).await;
    let ListPage { records, total, page, revision, next, reservation, mut redacted, .. } =
        listed.map_err(|error| Problem::Refused(error.refusal, error.revision))?;
    let reply = match records {
        ListRecords::Definitions(results) => {
            definitions::page(QueryResult { results, total }, &page, reservation, shape.has_revision)
        }
        ListRecords::Configs(mut results) => {
            if let Some(fields) = shape.fields {
                redacted = fields.places(&redacted);
                results = Box::pin(service.reads.project(fields, results)).await?;
            }
            configs::page(QueryResult { results, total }, &page, reservation, shape.has_revision)
        }
        ListRecords::Across(mut results) => {
            if let Some(fields) = shape.fields {
                redacted = fields.places(&redacted);
                let configs = results.iter().map(|record| Arc::clone(&record.config)).collect();
                let parts = Box::pin(service.reads.project(fields, configs)).await?;
                results.iter_mut().zip(parts).for_each(|(record, part)| record.config = part);
            }
            across::page(QueryResult { results, total }, &page, reservation, shape.has_revision)
        }
    };
    let reply = reply.compressed_for(request.headers(), || is_open);
    let reply = reply.next_link(next.map(|next| link(request, next)).as_deref());
    Ok(reply.redacted(Some(&redacted)).state_revision(revision))
}

/// The path and query of the page that a cursor names.
fn link(request: &ReadRequest, cursor: Cursor) -> String {
    let params = request.params.0.iter().filter(|(name, _)| !PLACE_PARAMETERS.contains(&name.as_str()));
    let mut query = Serializer::new(String::new());
    query.extend_pairs(params).append_pair("cursor", &cursor.text());
    format!("{}?{}", request.path(), query.finish())
}
