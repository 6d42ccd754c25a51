//! Watches: the changes as server-sent events.
//!
//! ```text
//! event: state       data: {"revision","definitions":[…],"configs":[…],"complete"}   the initial state, in parts
//! event: change      data: {"revision","at","by","reason","changes":[…]}             one for each revision, complete
//! event: heartbeat   data: {"revision"}                                              all changes up to it were sent
//! event: error       data: the body of a refusal                                     the end of the stream
//! ```
//!
//! **Invariant:** an event has an `id` only when everything up to its revision has been sent, so that a caller who
//! continues after the last id they received misses nothing and gets nothing twice.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::{
    condition::{header_problem, single},
    extract::{Params, QueryErrors, ReadRequest, query_violation},
    json::Object,
    redaction::with_redacted,
    reply::{Problem, Reply, refusal_body},
};
use crate::{
    feed::{Before, Event, RecordChange},
    model::{
        key::Key,
        query::QueryError,
        record::{Config, Definition},
        redaction::RedactedPlaces,
    },
    service::{
        Service,
        watch::{InitialChunk, Notice, Selected, Watch, WatchRequest, WatchStart},
    },
};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Parameters that are not filters.
const RESERVED: [&str; 12] = [
    "definition",
    "config_key",
    "from",
    "initial",
    "page",
    "limit",
    "sort_by",
    "sort_order",
    "cursor",
    "consistency",
    "max_staleness_ms",
    "min_revision",
];
/// Bytes of events after which no further event joins a chunk of the response.
const CHUNK_BYTES: usize = 16 << 10;
/// Tells an `EventSource` to reconnect a second after its connection ends.
const RETRY_LINE: &str = "retry: 1000\n";

/// Opens a watch.
pub(super) async fn open(
    State(service): State<Service>,
    method: Method,
    headers: HeaderMap,
    request: ReadRequest,
) -> Result<Response, Problem> {
    if method == Method::HEAD {
        let allow = [(header::ALLOW, HeaderValue::from_static("GET"))];
        return Ok((allow, Problem::MethodNotAllowed.into_response()).into_response());
    }
    let last = last_event_id(&headers)?;
    let (consistency, begin) = request.params.with_consistency(begin(&request.params, last))?;
    let all = |name: &str| {
        let named = request.params.0.iter().filter(|(other, _)| other == name);
        named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let is_filter = |(name, value): &&(String, String)| {
        !RESERVED.contains(&name.as_str()) && (name != "search" || !value.is_empty())
    };
    let wanted = WatchRequest {
        definitions: all("definition"),
        configs: all("config_key"),
        filters: request.params.0.iter().filter(is_filter).cloned().collect(),
        start: begin,
        consistency,
    };
    let watch = service.watch(request.principal, wanted).await?;
    let position = watch.position();
    let first = stream::once(async { Ok(Bytes::from_static(RETRY_LINE.as_bytes())) });
    let rest = stream::unfold(watch, |mut watch: Watch| async {
        let first = render(watch.next().await?);
        Some((Ok::<_, Infallible>(with_ready_events(first, &mut watch)), watch))
    });
    let body = Body::from_stream(first.chain(rest));
    Ok(Reply::event_stream(body).state_revision(position).into_response())
}

/// The id of the last event that the caller received; an `EventSource` that reconnects sends it.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = single(headers, &LAST_EVENT_ID)? else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| header_problem(&LAST_EVENT_ID, "not the id of an event"))
}

/// Where the watch begins. `Last-Event-ID` wins over the parameters, which an `EventSource` repeats.
fn begin(params: &Params, last: Option<u64>) -> Result<WatchStart, QueryError> {
    let mut errors = QueryErrors::default();
    let is_initial = match params.get("initial") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => {
            errors.violations.push(query_violation("initial", "`initial` must be `true` or `false`"));
            false
        }
    };
    let from = errors.number(params, "from");
    if is_initial && from.is_some() {
        let msg = "`initial=true` begins with the current state, so `from` must be absent";
        errors.violations.push(query_violation("initial", msg));
    }
    errors.finish(Some(match (last, from, is_initial) {
        (Some(seen), _, _) => WatchStart::After(seen),
        (None, Some(from), _) => WatchStart::After(from.saturating_sub(1)),
        (None, None, true) => WatchStart::InitialState,
        (None, None, false) => WatchStart::Now,
    }))
}

/// Joins the first event with those that are ready, in one chunk: a watcher that lags behind then costs little more
/// than one that does not.
fn with_ready_events(first: Bytes, watch: &mut Watch) -> Bytes {
    let may_grow = first.len() < CHUNK_BYTES;
    let Some(second) = may_grow.then(|| watch.try_next()).flatten() else { return first };
    let mut all = BytesMut::from(first);
    all.extend_from_slice(&render(second));
    while all.len() < CHUNK_BYTES
        && let Some(notice) = watch.try_next()
    {
        all.extend_from_slice(&render(notice));
    }
    all.freeze()
}

fn render(notice: Notice) -> Bytes {
    match notice {
        Notice::State(part) => {
            let id = part.is_last.then_some(part.revision);
            sse_event("state", id, &state_json(&part)).into()
        }
        Notice::Changes(event, Selected::All, redacted) => event
            .rendered
            .get_or_init(|| {
                let items = event.items.iter().enumerate();
                let items = items.map(|(number, item)| change_json(item, false, redacted.get(&number)));
                sse_event("change", Some(event.revision), &changes_json(&event, items)).into()
            })
            .clone(),
        Notice::Changes(event, Selected::Items(places), redacted) => {
            let items = places.iter().filter_map(|(place, has_left)| {
                event.items.get(*place).map(|item| change_json(item, *has_left, redacted.get(place)))
            });
            sse_event("change", Some(event.revision), &changes_json(&event, items)).into()
        }
        Notice::Progress(revision) => {
            let data = Object::new().value("revision", &revision).finish();
            sse_event("heartbeat", Some(revision), &data).into()
        }
        Notice::End(refusal) => sse_event("error", None, &refusal_body(refusal)).into(),
    }
}

/// One server-sent event. The data are one line, because JSON strings escape line ends.
fn sse_event(name: &str, id: Option<u64>, data: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}

fn changes_json(event: &Event, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    Object::new()
        .value("revision", &event.revision)
        .time("at", event.at)
        .value("by", &event.by)
        .value("reason", &event.reason)
        .raw("changes", &format!("[{}]", items.join(",")))
        .finish()
}

fn change_json(item: &RecordChange, has_left: bool, redacted: Option<&RedactedPlaces>) -> String {
    match item {
        RecordChange::Definition { key, is_new, after } => match after {
            Some(definition) => {
                let kind = if *is_new { "definition_created" } else { "definition_updated" };
                with_definition(Object::new().unescaped("type", kind), definition).finish()
            }
            None => Object::new()
                .unescaped("type", "definition_deleted")
                .unescaped("config_definition_key", key.as_str())
                .finish(),
        },
        RecordChange::Config { definition, key, before, after } => match after.as_ref().filter(|_| !has_left)
        {
            Some(config) => {
                let is_new = matches!(before, Before::Nothing);
                let kind = if is_new { "config_created" } else { "config_updated" };
                let object = Object::with_capacity(config.data.len()).unescaped("type", kind);
                with_redacted(with_config(object, definition, config), redacted).finish()
            }
            None => {
                let kind = if has_left { "config_unmatched" } else { "config_deleted" };
                let object = Object::new()
                    .unescaped("type", kind)
                    .unescaped("config_definition_key", definition.as_str());
                object.unescaped("config_key", key.as_str()).finish()
            }
        },
    }
}

fn state_json(part: &InitialChunk) -> String {
    let definitions: Vec<String> = part
        .definitions
        .iter()
        .map(|found| with_definition(Object::new(), found).value("revision", &found.revision).finish())
        .collect();
    let config = |(number, (definition, config)): (usize, &(Key, Arc<Config>))| {
        let object = Object::with_capacity(config.data.len());
        let object = with_config(object, definition, config).value("revision", &config.revision);
        with_redacted(object, part.redacted.get(&number)).finish()
    };
    let configs: Vec<String> = part.configs.iter().enumerate().map(config).collect();
    Object::new()
        .value("revision", &part.revision)
        .raw("definitions", &format!("[{}]", definitions.join(",")))
        .raw("configs", &format!("[{}]", configs.join(",")))
        .value("complete", &part.is_last)
        .finish()
}

fn with_definition(object: Object, definition: &Definition) -> Object {
    let object = object
        .unescaped("config_definition_key", definition.key.as_str())
        .value("indexes", &definition.indexes);
    let object = match &definition.schema {
        Some(schema) => object.raw("json_schema", schema),
        None => object,
    };
    object.time("created_at", definition.created_at).time("modified_at", definition.modified_at)
}

fn with_config(object: Object, definition: &Key, config: &Config) -> Object {
    object
        .unescaped("config_definition_key", definition.as_str())
        .unescaped("config_key", config.key.as_str())
        .raw("data", &config.data)
        .time("created_at", config.created_at)
        .time("modified_at", config.modified_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{feed::tests::event, service::RedactedRecords};

    fn begin_of(query: &str, last: Option<u64>) -> Result<WatchStart, QueryError> {
        begin(&Params::from_uri(&format!("/?{query}").parse().unwrap()), last)
    }

    #[test]
    fn the_last_event_id_wins_over_the_parameters() {
        assert_eq!(begin_of("", None), Ok(WatchStart::Now));
        assert_eq!(begin_of("initial=true", None), Ok(WatchStart::InitialState));
        assert_eq!(begin_of("initial=true", Some(9)), Ok(WatchStart::After(9)));
        assert_eq!(begin_of("from=5", None), Ok(WatchStart::After(4)));
        assert_eq!(begin_of("from=5", Some(9)), Ok(WatchStart::After(9)));
        assert_eq!(begin_of("from=0&initial=false", None), Ok(WatchStart::After(0)));
        for bad in ["initial=1", "from=-1", "initial=true&from=3"] {
            assert!(
                matches!(begin_of(bad, None), Err(QueryError::Violations(violations)) if violations.len() == 1),
                "{bad}"
            );
        }
        assert_eq!(begin_of("from=x", None), Err(QueryError::NotIntegers(vec!["from".into()])));
    }

    #[test]
    fn an_unfiltered_event_is_rendered_once_and_shared() {
        let event = event(7, "d", "k", r#"{"n":1e400}"#);
        let all = |event| render(Notice::Changes(event, Selected::All, RedactedRecords::new()));
        let (one, two) = (all(event.clone()), all(event.clone()));
        assert_eq!(one.as_ptr(), two.as_ptr());
        let expected = concat!(
            "event: change\nid: 7\ndata: {\"revision\":7,\"at\":\"1970-01-01T00:00:00.000007Z\",\"by\":\"root\",",
            "\"reason\":null,\"changes\":[{\"type\":\"config_created\",\"config_definition_key\":\"d\",",
            "\"config_key\":\"k\",\"data\":{\"n\":1e400},\"created_at\":\"1970-01-01T00:00:00.000001Z\",",
            "\"modified_at\":\"1970-01-01T00:00:00.000007Z\"}]}\n\n"
        );
        assert_eq!(one, expected);
        let left = render(Notice::Changes(event, Selected::Items(vec![(0, true)]), RedactedRecords::new()));
        let left = String::from_utf8(left.to_vec()).unwrap();
        assert!(left.contains(r#"{"type":"config_unmatched","config_definition_key":"d","config_key":"k"}"#));
        assert_eq!(render(Notice::Progress(3)), "event: heartbeat\nid: 3\ndata: {\"revision\":3}\n\n");
    }
}
