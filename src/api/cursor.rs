//! How a cursor is said: the parameter `cursor`, and the `Link` to the next page.
//!
//! **Invariant:** a link repeats the parameters of its page, so that following it is all that a caller needs to know.

use form_urlencoded::Serializer;

use super::{
    extract::{Params, Read},
    reply::Problem,
};
use crate::{
    model::error::Violation,
    service::read::{
        cursor::Cursor,
        page::{ASIDE, Listed},
    },
};

/// The cursor that a list was asked with.
pub(super) fn given(params: &Params) -> Result<Option<Cursor>, Problem> {
    // An empty one is none, as an empty `search` is.
    let Some(text) = params.get("cursor").filter(|text| !text.is_empty()) else { return Ok(None) };
    let wrong = |msg: &str| Problem::violation(Violation::at(vec!["query".into(), "cursor".into()], msg));
    if params.get("page").is_some() {
        return Err(wrong("`cursor` names its page, so `page` must be absent"));
    }
    Cursor::parse(text).map(Some).ok_or_else(|| wrong("`cursor` is none that this service made"))
}

/// The list that was asked for, of a definition's configs or of definitions.
pub(super) fn listed(read: &Read, definition: Option<&str>) -> Listed {
    Listed { definition: definition.map(str::to_owned), params: read.params.0.clone() }
}

/// Where the page of a cursor is.
pub(super) fn link(read: &Read, cursor: Option<Cursor>) -> Option<String> {
    let kept = read.params.0.iter().filter(|(name, _)| !ASIDE.contains(&name.as_str()));
    let mut query = Serializer::new(String::new());
    query.extend_pairs(kept).append_pair("cursor", &cursor?.text());
    Some(format!("{}?{}", read.path, query.finish()))
}
