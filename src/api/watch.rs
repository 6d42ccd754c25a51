//! Watches as server-sent events.
//!
//! ```text
//! event: state       data: {"revision","definitions":[…],"configs":[…],"complete"}   the state to begin with, in parts
//! event: change      data: {"revision","at","by","reason","changes":[…]}             one for each revision, whole
//! event: heartbeat   data: {"revision"}                                              all up to here has been told
//! event: error       data: the body of a refusal                                     the end, and why
//! ```
//!
//! **Invariant:** an `id` is sent only with an event up to whose revision everything has been told, so that a caller
//! who goes on behind the last id that he has seen misses nothing and gets nothing twice.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::{
    condition::{single, wrong},
    extract::{Params, Read, Wrong, violation},
    json::Object,
    reply::{Problem, Reply, refusal_body},
};
use crate::{
    feed::{Event, RecordChange},
    model::{
        key::Key,
        query::QueryError,
        record::{Config, Definition},
    },
    service::{
        Service,
        watch::{InitialChunk, Notice, Selected, Watch, WatchRequest, WatchStart},
    },
};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Parameters that are no filters.
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
/// Bytes of events after which a piece of the answer ends.
const PIECE_BYTES: usize = 16 << 10;
/// How soon a caller whose watch ended comes again.
const RETRY: &str = "retry: 1000\n";

/// Opens a watch.
pub(super) async fn open(
    State(service): State<Service>,
    method: Method,
    headers: HeaderMap,
    read: Read,
) -> Result<Response, Problem> {
    if method == Method::HEAD {
        let allow = [(header::ALLOW, HeaderValue::from_static("GET"))];
        return Ok((allow, Problem::NoMethod.into_response()).into_response());
    }
    let last = last_event_id(&headers)?;
    let (consistency, begin) = read.params.read(begin(&read.params, last))?;
    let all = |name: &str| {
        let named = read.params.0.iter().filter(|(other, _)| other == name);
        named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let is_filter = |(name, value): &&(String, String)| {
        !RESERVED.contains(&name.as_str()) && (name != "search" || !value.is_empty())
    };
    let wanted = WatchRequest {
        definitions: all("definition"),
        configs: all("config_key"),
        filters: read.params.0.iter().filter(is_filter).cloned().collect(),
        start: begin,
        consistency,
    };
    let watch = service.watch(wanted).await?;
    let position = watch.position();
    let first = stream::once(async { Ok(Bytes::from_static(RETRY.as_bytes())) });
    let rest = stream::unfold(watch, |mut watch: Watch| async {
        let first = show(watch.next().await?);
        Some((Ok::<_, Infallible>(with_more(first, &mut watch)), watch))
    });
    let body = Body::from_stream(stream::StreamExt::chain(first, rest));
    Ok(Reply::events(body).at(position).into_response())
}

/// The last event that the caller has seen. An `EventSource` sends it with the request that it began with.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = single(headers, &LAST_EVENT_ID)? else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| wrong(&LAST_EVENT_ID, "not the id of an event of a watch"))
}

fn begin(params: &Params, last: Option<u64>) -> Result<WatchStart, QueryError> {
    let mut wrong = Wrong::default();
    let is_initial = match params.get("initial") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => {
            wrong.violations.push(violation("initial", "`initial` must be `true` or `false`"));
            false
        }
    };
    let from = wrong.number(params, "from");
    if is_initial && from.is_some() {
        let msg = "`initial=true` begins with the state of now: it takes no `from`";
        wrong.violations.push(violation("initial", msg));
    }
    wrong.end(Some(match (last, from, is_initial) {
        (Some(seen), _, _) => WatchStart::After(seen),
        (None, Some(from), _) => WatchStart::After(from.saturating_sub(1)),
        (None, None, true) => WatchStart::InitialState,
        (None, None, false) => WatchStart::Now,
    }))
}

/// What lies ready goes with the first in one piece: a watcher who is behind costs little more than one who is not.
fn with_more(first: Bytes, watch: &mut Watch) -> Bytes {
    let has_room = first.len() < PIECE_BYTES;
    let Some(second) = has_room.then(|| watch.try_next()).flatten() else { return first };
    let mut all = BytesMut::from(first);
    all.extend_from_slice(&show(second));
    while all.len() < PIECE_BYTES
        && let Some(notice) = watch.try_next()
    {
        all.extend_from_slice(&show(notice));
    }
    all.freeze()
}

fn show(notice: Notice) -> Bytes {
    match notice {
        Notice::State(part) => {
            let id = part.is_last.then_some(part.revision);
            frame("state", id, &state(&part)).into()
        }
        Notice::Changes(event, Picked::All) => event
            .rendered
            .get_or_init(|| {
                let items = event.items.iter().map(|item| change(item, false));
                frame("change", Some(event.revision), &changes(&event, items)).into()
            })
            .clone(),
        Notice::Changes(event, Selected::Items(places)) => {
            let items = places
                .iter()
                .filter_map(|(place, has_left)| event.items.get(*place).map(|item| change(item, *has_left)));
            frame("change", Some(event.revision), &changes(&event, items)).into()
        }
        Notice::Progress(revision) => {
            let data = Object::new().value("revision", &revision).end();
            frame("heartbeat", Some(revision), &data).into()
        }
        Notice::End(refusal) => frame("error", None, &refusal_body(refusal)).into(),
    }
}

/// One event. JSON of ours is one line: line ends within texts are escaped.
fn frame(name: &str, id: Option<u64>, data: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}

fn changes(event: &Event, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    Object::new()
        .value("revision", &event.revision)
        .plain("at", event.at)
        .value("by", &event.by)
        .value("reason", &event.reason)
        .raw("changes", &format!("[{}]", items.join(",")))
        .end()
}

fn change(item: &RecordChange, has_left: bool) -> String {
    match item {
        RecordChange::Definition { key, is_new, after } => match after {
            Some(definition) => {
                let kind = if *is_new { "definition_created" } else { "definition_updated" };
                definition_of(Object::new().plain("type", kind), definition).end()
            }
            None => {
                Object::new().plain("type", "definition_deleted").plain("config_definition_key", key).end()
            }
        },
        RecordChange::Config { definition, key, before, after } => match after.as_ref().filter(|_| !has_left)
        {
            Some(config) => {
                let is_new = matches!(before, crate::feed::Before::Nothing);
                let kind = if is_new { "config_created" } else { "config_updated" };
                let object = Object::with_room(config.data.len()).plain("type", kind);
                config_of(object, definition, config).end()
            }
            None => {
                let kind = if has_left { "config_unmatched" } else { "config_deleted" };
                let object = Object::new().plain("type", kind).plain("config_definition_key", definition);
                object.plain("config_key", key).end()
            }
        },
    }
}

fn state(part: &InitialChunk) -> String {
    let definitions: Vec<String> = part
        .definitions
        .iter()
        .map(|found| definition_of(Object::new(), found).value("revision", &found.revision).end())
        .collect();
    let config = |(definition, config): &(Key, std::sync::Arc<Config>)| {
        let object = Object::with_room(config.data.len());
        config_of(object, definition, config).value("revision", &config.revision).end()
    };
    let configs: Vec<String> = part.configs.iter().map(config).collect();
    Object::new()
        .value("revision", &part.revision)
        .raw("definitions", &format!("[{}]", definitions.join(",")))
        .raw("configs", &format!("[{}]", configs.join(",")))
        .value("complete", &part.is_last)
        .end()
}

fn definition_of(object: Object, definition: &Definition) -> Object {
    let object = object.plain("config_definition_key", &definition.key).value("indexes", &definition.indexes);
    let object = match &definition.schema {
        Some(schema) => object.raw("json_schema", schema),
        None => object,
    };
    object.plain("created_at", definition.created_at).plain("modified_at", definition.modified_at)
}

fn config_of(object: Object, definition: &Key, config: &Config) -> Object {
    object
        .plain("config_definition_key", definition)
        .plain("config_key", &config.key)
        .raw("data", &config.data)
        .plain("created_at", config.created_at)
        .plain("modified_at", config.modified_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::tests::event;

    fn begun(query: &str, last: Option<u64>) -> Result<WatchStart, QueryError> {
        begin(&Params::of(&format!("/?{query}").parse().unwrap()), last)
    }

    #[test]
    fn the_last_event_wins_over_what_the_request_began_with() {
        assert_eq!(begun("", None), Ok(WatchStart::Now));
        assert_eq!(begun("initial=true", None), Ok(WatchStart::InitialState));
        assert_eq!(begun("initial=true", Some(9)), Ok(WatchStart::After(9)));
        assert_eq!(begun("from=5", None), Ok(WatchStart::After(4)));
        assert_eq!(begun("from=5", Some(9)), Ok(WatchStart::After(9)));
        assert_eq!(begun("from=0&initial=false", None), Ok(WatchStart::After(0)));
        for bad in ["initial=1", "from=-1", "initial=true&from=3"] {
            assert!(
                matches!(begun(bad, None), Err(QueryError::Violations(violations)) if violations.len() == 1),
                "{bad}"
            );
        }
        assert_eq!(begun("from=x", None), Err(QueryError::NotIntegers(vec!["from".into()])));
    }

    #[test]
    fn a_whole_event_is_shown_once_and_shared() {
        let event = event(7, "d", "k", r#"{"n":1e400}"#);
        let one = show(Notice::Changes(event.clone(), Selected::All));
        let two = show(Notice::Changes(event.clone(), Selected::All));
        assert_eq!(one.as_ptr(), two.as_ptr());
        let expected = concat!(
            "event: change\nid: 7\ndata: {\"revision\":7,\"at\":\"1970-01-01T00:00:00.000007Z\",\"by\":\"root\",",
            "\"reason\":null,\"changes\":[{\"type\":\"config_created\",\"config_definition_key\":\"d\",",
            "\"config_key\":\"k\",\"data\":{\"n\":1e400},\"created_at\":\"1970-01-01T00:00:00.000001Z\",",
            "\"modified_at\":\"1970-01-01T00:00:00.000007Z\"}]}\n\n"
        );
        assert_eq!(one, expected);
        let left = show(Notice::Changes(event, Selected::Items(vec![(0, true)])));
        let left = String::from_utf8(left.to_vec()).unwrap();
        assert!(left.contains(r#"{"type":"config_unmatched","config_definition_key":"d","config_key":"k"}"#));
        assert_eq!(show(Notice::Progress(3)), "event: heartbeat\nid: 3\ndata: {\"revision\":3}\n\n");
    }
}
