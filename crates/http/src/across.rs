//! Lists of the configs of several definitions.
//!
//! **Invariant:** a list shows and counts only records of definitions that it names and that its client may read.

use super::{
    configs,
    cursor::{self, ListCall, PastRevision},
    definitions,
    extract::{QueryParams, ReadRequest, both, query_violation},
    json::Object,
    reply::{Problem, Rendering, Reply},
    shape::{Shape, without_shape},
};
use concord_model::{
    access_key::Pattern,
    limits::LIST_PATTERNS_MAX,
    query::{self, DEFINITION, PAST, Page, QueryError},
};
use concord_service::{Service, memory_budget::Reservation, read::list::ListScope};
use concord_state::query::{AcrossRecord, QueryResult};

/// Lists the configs of the definitions that `definition` names.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    // No one definition could decide what the name of a parameter means.
    let is_filter = |_: &str| false;
    let params = without_shape(&request.params, is_filter);
    let query = query::across(&params, service.cx.limits());
    let asked = both(
        Shape::of(&request.params, is_filter),
        both(both(patterns(&request.params), no_past(&request.params)), query),
    );
    let (consistency, (shape, ((patterns, ()), query))) = request.params.with_consistency(asked)?;
    let source = cursor::source(&request.params, consistency)?;
    let (scope, past) = (ListScope::Across(patterns), PastRevision::NONE);
    cursor::list(&service, &request, ListCall { scope, params, past, shape, page: query.page, source }).await
}

/// The definitions that the parameters name, all without any; what is malformed names none.
pub(super) fn named(params: &QueryParams) -> Vec<Pattern> {
    match patterns(params) {
        Ok(patterns) if patterns.is_empty() => vec![Pattern::all()],
        Ok(patterns) => patterns,
        Err(_) => Vec::new(),
    }
}

/// The definitions that the parameters name; none without any.
pub(super) fn patterns(params: &QueryParams) -> Result<Vec<Pattern>, QueryError> {
    let texts = params.0.iter().filter(|(name, _)| name == DEFINITION).map(|(_, text)| text.as_str());
    let (mut patterns, mut violations) = (Vec::new(), Vec::new());
    for text in texts {
        match Pattern::parse(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => violations.push(query_violation(DEFINITION, error.to_string())),
        }
    }
    if patterns.len() > LIST_PATTERNS_MAX {
        let msg = format!("a list names at most {LIST_PATTERNS_MAX} definitions or patterns");
        violations.push(query_violation(DEFINITION, msg));
    }
    if violations.is_empty() { Ok(patterns) } else { Err(QueryError::Violations(violations)) }
}

fn no_past(params: &QueryParams) -> Result<(), QueryError> {
    match params.get(PAST) {
        None => Ok(()),
        Some(_) => {
            let msg = "a list across definitions shows the current state only";
            Err(QueryError::Violations(vec![query_violation(PAST, msg)]))
        }
    }
}

pub(super) fn page(
    found: QueryResult<AcrossRecord>,
    page: &Page,
    reservation: Reservation,
    has_revision: bool,
) -> Reply {
    let size = |record: &AcrossRecord| record.config.data.len();
    let render = move |object: Object, record: &AcrossRecord| {
        let object = object.unescaped(definitions::KEY, record.definition.as_str());
        configs::shown(object, &record.config, has_revision)
    };
    Reply::page("configs found", found, reservation, page, Rendering { size, render })
}
