//! Lists of the latest changes, newest first: the second form of `GET /api/v1/changes`.
//!
//! **Invariant:** the events are those of a watch, with the same members.

use super::{
    extract::{QueryErrors, QueryParams, ReadRequest, query_violation},
    json::Object,
    reply::{Problem, Reply},
    watch::{NEXT_FROM, RESERVED, flag, of_cluster, selected_json},
};
use concord_model::{query::QueryError, time::Timestamp};
use concord_service::{
    Service,
    watch::{LatestRequest, ListedChanges},
};

/// The parameter that asks for a list, and says how long it is.
pub(super) const LATEST: &str = "latest";
/// Its other parameters.
const OF_LISTS: [&str; 4] = [LATEST, "before", "since", "by"];
/// Parameters of a poll that a list does not have.
const OF_POLLS: [&str; 4] = ["from", "initial", "wait", "change_requests"];

/// Lists the latest changes.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let params = &request.params;
    let (consistency, asked) = params.with_consistency(asked(params, service.cx.limits().page_limit))?;
    let has_prev = flag(params, "prev")?;
    let all = |name: &str| {
        let named = params.0.iter().filter(|(other, _)| other == name);
        named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let wanted = LatestRequest {
        definitions: all("definition"),
        configs: all("config_key"),
        has_prev,
        consistency,
        before: asked.before,
        limit: asked.limit,
        listed: asked.listed,
    };
    let page = service.watches.latest(request.principal, wanted).await?;
    let events = page.events.iter();
    let events: Vec<String> = events
        .map(|(event, selected, redacted)| selected_json(event, selected, redacted, has_prev))
        .collect();
    let from = page.revision.saturating_add(1);
    let data = Object::new()
        .raw("events", &format!("[{}]", events.join(",")))
        .value("from", &from)
        .value("next_before", &page.next_before)
        .value("floor", &page.compaction_revision);
    let reply = Reply::ok("changes found", &data.finish()).header(NEXT_FROM, &from.to_string());
    Ok(of_cluster(reply, page.cluster).state_revision(page.revision))
}

/// Which changes the parameters ask for.
#[derive(Debug, PartialEq)]
struct AskedChanges {
    before: Option<u64>,
    limit: usize,
    listed: ListedChanges,
}

fn asked(params: &QueryParams, limit_max: usize) -> Result<AskedChanges, QueryError> {
    let mut errors = QueryErrors::default();
    let [limit, before] = [LATEST, "before"].map(|name| errors.number(params, name));
    let limit = usize::try_from(limit.unwrap_or(1)).unwrap_or(usize::MAX);
    if limit == 0 || limit > limit_max {
        errors.violations.push(query_violation(LATEST, format!("`{LATEST}` must be 1 to {limit_max}")));
    }
    let since = params.get("since").and_then(|text| {
        let time = Timestamp::parse(text);
        if time.is_none() {
            errors.violations.push(query_violation("since", "`since` must be an RFC 3339 time"));
        }
        time
    });
    for (name, _) in &params.0 {
        let name = name.as_str();
        if OF_POLLS.contains(&name) || !(RESERVED.contains(&name) || OF_LISTS.contains(&name)) {
            let msg = format!("a list with `{LATEST}` has no `{name}`");
            errors.violations.push(query_violation(name, msg));
        }
    }
    let by = params.get("by").filter(|text| !text.is_empty()).map(str::to_owned);
    errors.finish(Some(AskedChanges { before, limit, listed: ListedChanges { by, since } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_of(query: &str) -> Result<AskedChanges, QueryError> {
        asked(&QueryParams::from_uri(&format!("/?{query}").parse().unwrap()), 1000)
    }

    #[test]
    fn a_list_has_no_filter_and_nothing_of_a_poll() {
        let listed = ListedChanges { by: Some("K".into()), since: Timestamp::parse("2026-01-01T00:00:00Z") };
        let expected = AskedChanges { before: Some(7), limit: 50, listed };
        let query = "latest=50&before=7&by=K&since=2026-01-01T00:00:00Z&prev=true&definition=a&config_key=b";
        assert_eq!(asked_of(query), Ok(expected));
        for (bad, name) in [
            ("latest=0", LATEST),
            ("latest=1001", LATEST),
            ("latest=1&from=3", "from"),
            ("latest=1&wait=3", "wait"),
            ("latest=1&initial=false", "initial"),
            ("latest=1&port=80", "port"),
            ("latest=1&change_requests=true", "change_requests"),
            ("latest=1&search=x", "search"),
            ("latest=1&since=yesterday", "since"),
        ] {
            let Err(QueryError::Violations(violations)) = asked_of(bad) else { panic!("{bad}") };
            assert_eq!(violations[0].loc, query_violation(name, "").loc, "{bad}");
        }
    }
}
