//! Lists in the interface: the parameter `cursor`, and the `Link` header that names the next page.
//!
//! **Invariant:** a link repeats the parameters of its page, so that a caller only has to follow it.

use form_urlencoded::Serializer;

use super::{
    configs, definitions,
    extract::{Params, ReadRequest, query_violation},
    reply::{Problem, Reply},
    shape::Shape,
};
use crate::{
    model::query::Page,
    service::{
        Consistency, Service,
        read::{
            cursor::Cursor,
            list::{ListPage, ListRequest, PLACE_PARAMETERS, PageSource},
            records::ListRecords,
        },
    },
    state::query::QueryResult,
};

/// Where the requested page comes from: the state that a cursor names, or one that is as fresh as requested.
pub(super) fn source(params: &Params, consistency: Consistency) -> Result<PageSource, Problem> {
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

/// Answers a list: of a definition's configs, or of definitions. `page` is what the parameters say of pages.
pub(super) async fn list(
    service: &Service,
    request: &ReadRequest,
    (definition, params): (Option<&str>, Vec<(String, String)>),
    (shape, page): (Shape, Page),
    source: PageSource,
) -> Result<Reply, Problem> {
    let list = ListRequest { definition: definition.map(str::to_owned), params };
    let listed = service.list(&request.principal, list, page, source).await;
    let ListPage { records, total, page, revision, next, reservation, mut redacted } =
        listed.map_err(|error| Problem::Refused(error.refusal, error.revision))?;
    let reply = match records {
        ListRecords::Definitions(results) => {
            definitions::page(QueryResult { results, total }, &page, reservation, shape.has_revision)
        }
        ListRecords::Configs(mut results) => {
            if let Some(fields) = shape.fields {
                redacted = fields.places(&redacted);
                results = Box::pin(service.project(fields, results)).await?;
            }
            configs::page(QueryResult { results, total }, &page, reservation, shape.has_revision)
        }
    };
    let is_open = || definition.is_none_or(|key| service.may_compress(&request.principal, key));
    let reply = reply.compressed_for(request.headers(), is_open);
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
