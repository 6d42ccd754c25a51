//! Lists, and their cursors: the parameter `cursor`, and the `Link` to the next page.
//!
//! **Invariant:** a link repeats the parameters of its page, so a caller needs to know nothing but the link.

use form_urlencoded::Serializer;

use super::{
    configs, definitions,
    extract::{Params, Read},
    reply::{Problem, Reply},
};
use crate::{
    model::{error::Violation, query::Page},
    service::{
        Consistency, Service,
        read::{
            cursor::Cursor,
            list::{ListPage, ListRequest, PLACE_PARAMETERS, PageSource},
            records::ListRecords,
        },
    },
    state::query::Found,
};

/// The state of the requested page: that of the cursor, or one that is as fresh as requested.
pub(super) fn source(params: &Params, consistency: Consistency) -> Result<PageSource, Problem> {
    // An empty cursor is none, as an empty `search` is.
    let Some(text) = params.get("cursor").filter(|text| !text.is_empty()) else {
        return Ok(PageSource::Fresh(consistency));
    };
    let wrong = |msg: &str| Problem::violation(Violation::at(vec!["query".into(), "cursor".into()], msg));
    if params.get("page").is_some() {
        return Err(wrong("`cursor` names its page, so `page` must be absent"));
    }
    let cursor = Cursor::parse(text).ok_or_else(|| wrong("`cursor` is none that this service made"))?;
    Ok(PageSource::Cursor(cursor))
}

/// Answers a list: of a definition's configs, or of definitions. `page` is what the parameters say of pages.
pub(super) async fn list(
    service: &Service,
    read: &Read,
    definition: Option<&str>,
    page: Page,
    source: PageSource,
) -> Result<Reply, Problem> {
    let request = ListRequest { definition: definition.map(str::to_owned), params: read.params.0.clone() };
    let list = service.list(request, page, source).await;
    let ListPage { records, total, page, revision, next } =
        list.map_err(|error| Problem::Refused(error.refusal, error.revision))?;
    let reply = match records {
        ListRecords::Definitions(results) => definitions::page(Found { results, total }, &page),
        ListRecords::Configs(results) => configs::page(Found { results, total }, &page),
    };
    Ok(reply.next(next.map(|next| link(read, next)).as_deref()).at(revision))
}

/// The path of a cursor's page.
fn link(read: &Read, cursor: Cursor) -> String {
    let params = read.params.0.iter().filter(|(name, _)| !PLACE_PARAMETERS.contains(&name.as_str()));
    let mut query = Serializer::new(String::new());
    query.extend_pairs(params).append_pair("cursor", &cursor.text());
    format!("{}?{}", read.path, query.finish())
}
