//! Cursors in the interface: the parameter `cursor`, and the `Link` header that names the next page.
//!
//! **Invariant:** a link repeats the parameters of its page, so that a caller only has to follow it.

use form_urlencoded::Serializer;

use super::{
    extract::{Params, ReadRequest, query_violation},
    reply::Problem,
};
use crate::service::read::{
    cursor::Cursor,
    page::{ASIDE, Listed},
};

/// The cursor of a request for a list, where it has one.
pub(super) fn parse(params: &Params) -> Result<Option<Cursor>, Problem> {
    // An empty parameter counts as absent, as an empty `search` does.
    let Some(text) = params.get("cursor").filter(|text| !text.is_empty()) else { return Ok(None) };
    let refused = |msg: &str| Problem::violation(query_violation("cursor", msg));
    if params.get("page").is_some() {
        return Err(refused("`cursor` names its page, so `page` must be absent"));
    }
    Cursor::parse(text).map(Some).ok_or_else(|| refused("`cursor` is not one that this service issued"))
}

/// The list that a request names: the configs of a definition, or the definitions.
pub(super) fn listed(request: &ReadRequest, definition: Option<&str>) -> Listed {
    Listed { definition: definition.map(str::to_owned), params: request.params.0.clone() }
}

/// The path and query of the page that a cursor names.
pub(super) fn link(request: &ReadRequest, cursor: Option<Cursor>) -> Option<String> {
    let params = request.params.0.iter().filter(|(name, _)| !ASIDE.contains(&name.as_str()));
    let mut query = Serializer::new(String::new());
    query.extend_pairs(params).append_pair("cursor", &cursor?.text());
    Some(format!("{}?{}", request.path, query.finish()))
}
