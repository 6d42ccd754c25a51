//! Watches: the changes as server-sent events, or as the response to a long poll.
//!
//! ```text
//! event: state       data: {"revision","definitions":[…],"configs":[…],"complete"}   the initial state, in parts
//! event: change      data: {"revision","at","by","reason","changes":[…]}             one for each revision, complete;
//!                                                                                    of records or of change requests
//! event: heartbeat   data: {"revision"}                                              all changes up to it were sent
//! event: error       data: the body of a rejection                                   the end of the stream
//! ```
//!
//! A long poll answers with the `data` of such changes, and with the revision to go on from, in the body and in a
//! header: 304, for nothing new, has no body.
//!
//! **Invariant:** an event has an `id` only when everything up to its revision has been sent, so that a client that
//! continues after the last id it received misses nothing and gets nothing twice.

use std::{convert::Infallible, sync::Arc, time::Duration};

use serde::Serialize;

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName};
use uuid::Uuid;

use super::{
    change_requests,
    condition::{header_problem, single},
    extract::{QueryErrors, QueryParams, ReadRequest, query_violation},
    json::{Object, with_redacted},
    latest::{self, LATEST},
    reader::{reader_of, with_variant},
    reply::{Problem, Reply, refusal_body},
};
use concord_model::{
    key::Key,
    limits::{POLL_WAIT_DEFAULT_S, POLL_WAIT_MAX_S},
    query::QueryError,
    record::{Config, Definition},
    redaction::RedactedPlaces,
};
use concord_service::{
    AuthorView, ChangeRequestEvent, PartyView, RedactedEvent, Service,
    watch::{InitialChunk, Notice, OpenWatch, Selected, WatchRequest, WatchStart},
};
use concord_state::feed::{Before, Event, RecordChange};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The header with the revision from which a poller goes on.
pub(super) const NEXT_FROM: HeaderName = HeaderName::from_static("x-concord-next-from");
/// The header with the id of the cluster. A client that goes on from a revision learns by it that the nodes are now
/// those of another cluster, as one that was made from a backup, in which that revision is another one.
const CLUSTER: HeaderName = HeaderName::from_static("x-concord-cluster");
/// The parameter that asks for change requests in place of records.
const CHANGE_REQUESTS: &str = "change_requests";
/// Parameters that a watch of change requests does not have: all but those that say where it begins, and how fresh it is.
const OF_RECORDS: [&str; 4] = ["definition", "config_key", "initial", "prev"];
/// Parameters that are not filters.
pub(super) const RESERVED: [&str; 14] = [
    CHANGE_REQUESTS,
    "definition",
    "config_key",
    "from",
    "initial",
    "prev",
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
/// Bytes of a part of the initial state up to which it is rendered where it is sent from.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// What a record has beside its data, as a rule.
const RECORD_BYTES: usize = 160;
/// Tells an `EventSource` to reconnect a second after its connection ends.
const RETRY_LINE: &str = "retry: 1000\n";

/// Opens a watch.
pub(super) async fn open(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let last = last_event_id(request.headers())?;
    let wanted = wanted(&request, begin(&request.params, last), |name| !RESERVED.contains(&name))?;
    let has_prev = wanted.has_prev;
    let watch = service.watches.watch(request.principal, wanted).await?;
    let (position, cluster) = (watch.position(), watch.cluster());
    let first = stream::once(async { Ok(Bytes::from_static(RETRY_LINE.as_bytes())) });
    let rest = stream::unfold(watch, move |mut watch: OpenWatch| async move {
        let first = rendered(watch.next().await?, &mut watch, has_prev).await;
        Some((Ok::<_, Infallible>(with_ready_events(first, &mut watch, has_prev)), watch))
    });
    let body = Body::from_stream(first.chain(rest));
    Ok(of_cluster(Reply::event_stream(body), cluster).state_revision(position))
}

/// Names the cluster.
pub(super) fn of_cluster(reply: Reply, cluster: Option<Uuid>) -> Reply {
    match cluster {
        Some(id) => reply.header(CLUSTER, &id.to_string()),
        None => reply,
    }
}

/// Answers a long poll, or lists the latest changes.
pub(super) async fn poll(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    if request.params.get(LATEST).is_some() {
        return latest::list(service, request).await;
    }
    let is_filter = |name: &str| !RESERVED.contains(&name) && name != "wait";
    let wanted = wanted(&request, begin(&request.params, None), is_filter)?;
    let wait = wait(&request.params)?;
    if wanted.start == WatchStart::InitialState {
        let msg = "a poll starts with changes; read the current state with a list or a watch";
        return Err(Problem::violation(query_violation("initial", msg)));
    }
    let has_prev = wanted.has_prev;
    let changes = service.watches.poll(request.principal, wanted, wait).await?;
    let next = changes.upto.saturating_add(1);
    let reply = if changes.events.is_empty() {
        Reply::not_modified()
    } else {
        let events = changes.events.iter();
        let events: Vec<String> = events
            .map(|(event, selected, redacted)| selected_json(event, selected, redacted, has_prev))
            .collect();
        let data = Object::new().raw("events", &format!("[{}]", events.join(",")));
        Reply::ok("changes found", &data.value("from", &next).finish())
    };
    let reply = of_cluster(reply.header(NEXT_FROM, &next.to_string()), changes.cluster);
    Ok(reply.state_revision(changes.upto))
}

/// What the parameters ask for, and for whom.
fn wanted(
    request: &ReadRequest,
    start: Result<WatchStart, QueryError>,
    is_filter: impl Fn(&str) -> bool,
) -> Result<WatchRequest, Problem> {
    let params = &request.params;
    let (consistency, start) = params.with_consistency(start)?;
    let reader = reader_of(request.headers())?;
    let has_prev = flag(params, "prev")?;
    let all = |name: &str| {
        let named = params.0.iter().filter(|(other, _)| other == name);
        named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let is_filter =
        |(name, value): &&(String, String)| is_filter(name) && (name != "search" || !value.is_empty());
    let of_change_requests = flag(params, CHANGE_REQUESTS)?;
    let of_records = |name: &str| OF_RECORDS.contains(&name) || is_filter(&&(name.into(), "?".into()));
    if of_change_requests && let Some((name, _)) = params.0.iter().find(|(name, _)| of_records(name)) {
        let msg =
            format!("a watch of change requests has no `{name}`; read the current ones with their list");
        return Err(Problem::violation(query_violation(name, msg)));
    }
    Ok(WatchRequest {
        of_change_requests,
        definitions: all("definition"),
        configs: all("config_key"),
        filters: params.0.iter().filter(is_filter).cloned().collect(),
        has_prev,
        start,
        consistency,
        reader,
    })
}

/// The id of the last event that the client received; an `EventSource` that reconnects sends it.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = single(headers, &LAST_EVENT_ID)? else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| header_problem(&LAST_EVENT_ID, "expected the id of an event"))
}

/// Where the watch begins. `Last-Event-ID` wins over the parameters, which an `EventSource` repeats.
fn begin(params: &QueryParams, last: Option<u64>) -> Result<WatchStart, QueryError> {
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

/// A parameter that is `true` or `false`.
pub(super) fn flag(params: &QueryParams, name: &str) -> Result<bool, Problem> {
    match params.get(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => {
            let msg = format!("`{name}` must be `true` or `false`");
            Err(Problem::violation(query_violation(name, msg)))
        }
    }
}

/// How long a poll waits.
fn wait(params: &QueryParams) -> Result<Duration, Problem> {
    let [seconds] = params.numbers(["wait"])?;
    let seconds = seconds.unwrap_or(POLL_WAIT_DEFAULT_S);
    if seconds > u64::from(POLL_WAIT_MAX_S) {
        let msg = format!("a poll waits at most {POLL_WAIT_MAX_S} seconds");
        return Err(Problem::violation(query_violation("wait", msg)));
    }
    Ok(Duration::from_secs(seconds))
}

/// Joins the first event with those that are ready, in one chunk: a watcher that lags behind then costs little more
/// than one that does not.
fn with_ready_events(first: Bytes, watch: &mut OpenWatch, has_prev: bool) -> Bytes {
    let may_grow = first.len() < CHUNK_BYTES;
    let Some(second) = may_grow.then(|| watch.try_next()).flatten() else { return first };
    let mut all = BytesMut::from(first);
    all.extend_from_slice(&render(second, has_prev));
    while all.len() < CHUNK_BYTES
        && let Some(notice) = watch.try_next()
    {
        all.extend_from_slice(&render(notice, has_prev));
    }
    all.freeze()
}

/// Renders a notice, a long part of the initial state in the pool.
async fn rendered(notice: Notice, watch: &mut OpenWatch, has_prev: bool) -> Bytes {
    match notice {
        Notice::State(part) if is_long(&part) => {
            match Box::pin(watch.run_long(move || render(Notice::State(part), has_prev))).await {
                Ok(bytes) => bytes,
                Err(refusal) => render(watch.fail(refusal), has_prev),
            }
        }
        notice @ (Notice::State(_) | Notice::Changes(..) | Notice::Progress(_) | Notice::End(_)) => {
            render(notice, has_prev)
        }
    }
}

/// Whether a part takes longer to render than a request thread may be busy.
fn is_long(part: &InitialChunk) -> bool {
    part.bytes + (part.definitions.len() + part.configs.len()) * RECORD_BYTES > INLINE_BYTES_MAX
}

fn render(notice: Notice, has_prev: bool) -> Bytes {
    match notice {
        Notice::State(part) => {
            let id = part.is_last.then_some(part.revision);
            sse_event("state", id, &state_json(&part)).into()
        }
        // Most watches ask for this, so it is rendered once for all of them; and once for those that see what change
        // request it was. A watch has no names.
        Notice::Changes(event, Selected::All, redacted) if !has_prev => {
            let has_request = redacted.author.request.is_some();
            let rendered = if has_request { &event.rendered_with_request } else { &event.rendered };
            rendered
                .get_or_init(|| {
                    let data = selected_json(&event, &Selected::All, &redacted, false);
                    sse_event("change", Some(event.revision), &data).into()
                })
                .clone()
        }
        Notice::Changes(event, selected, redacted) => {
            let data = selected_json(&event, &selected, &redacted, has_prev);
            sse_event("change", Some(event.revision), &data).into()
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

/// An event, or the part of it that was selected.
pub(super) fn selected_json(
    event: &Event,
    selected: &Selected,
    redacted: &RedactedEvent,
    has_prev: bool,
) -> String {
    let item = |place: usize, has_left: bool| {
        let item = event.items.get(place)?;
        let object = change_json(item, has_left, redacted.after.get(&place));
        let object = with_version(object, event, place);
        Some(match item {
            RecordChange::Config { before, .. } if has_prev => {
                with_prev(object, before, redacted.before.get(&place)).finish()
            }
            RecordChange::Config { .. } | RecordChange::Definition { .. } => object.finish(),
        })
    };
    let (mut by, mut reason) = (Some(&event.by), event.reason.as_ref());
    let items: Vec<String> = match selected {
        Selected::ChangeRequests(seen) => {
            // Of a request that changed what the client may not read, it learns nothing.
            if !seen.iter().any(ChangeRequestEvent::is_of_its_author) {
                (by, reason) = (None, None);
            }
            seen.iter().map(change_request_json).collect()
        }
        Selected::All => (0..event.items.len()).filter_map(|place| item(place, false)).collect(),
        Selected::Items(places) => {
            places.iter().filter_map(|(place, has_left)| item(*place, *has_left)).collect()
        }
    };
    let object = Object::new().value("revision", &event.revision).time("at", event.at).value("by", &by);
    let object = with_author(object, &redacted.author, &reason);
    object.raw("changes", &format!("[{}]", items.join(","))).finish()
}

/// Adds the author of a change, the reason, and the change request that it was: those members that the client may see.
pub(super) fn with_author(object: Object, author: &AuthorView, reason: &impl Serialize) -> Object {
    let names = [("by_name", &author.name), ("by_person", &author.person)];
    let object = names.into_iter().fold(object, |object, (name, text)| {
        text.iter().fold(object, |object, text| object.value(name, text))
    });
    let object = object.value("reason", reason);
    let Some(request) = &author.request else { return object };
    let object = object.unescaped("change_id", &request.id).value("change_title", &request.title);
    if request.is_revert { object.value("change_reverted", &true) } else { object }
}

/// What happened to a change request.
fn change_request_json(event: &ChangeRequestEvent) -> String {
    let object = Object::new().unescaped("type", event.kind).unescaped("change_id", &event.id);
    let Some(then) = &event.change else { return object.finish() };
    let party = |party: &PartyView| change_requests::party(party);
    object
        .value("title", &then.title)
        .unescaped("phase", then.phase)
        .value("bypass", &then.is_bypass)
        .value("edition", &then.edition)
        .unescaped("digest", &change_requests::digest_text(&then.digest))
        .value("environments", &then.environments)
        .value("by", &then.by.as_ref().map(party))
        .value("comment", &then.comment)
        .value("closed_reason", &then.reason)
        .finish()
}

/// Adds the data of a config before its change; null for a new one.
fn with_prev(object: Object, before: &Before, redacted: Option<&RedactedPlaces>) -> Object {
    let object = match before {
        Before::Known(config) => object.raw("prev", &config.data),
        Before::Nothing => object.raw("prev", "null"),
        // A watch that asks for it has it read.
        Before::Unknown => object,
    };
    match redacted {
        Some(places) => object.value("prev_redacted", &places.texts().collect::<Vec<_>>()),
        None => object,
    }
}

/// Adds to the change of a config what version it is, where that is none that the event has written: a reader sees the
/// candidate from now on, or the proven config again.
fn with_version(object: Object, event: &Event, place: usize) -> Object {
    let Some(RecordChange::Config { after: Some(config), .. }) = event.items.get(place) else {
        return object;
    };
    if config.revision == event.revision {
        return object;
    }
    with_variant(object.value("revision", &config.revision), event.variants.get(&place))
}

fn change_json(item: &RecordChange, has_left: bool, redacted: Option<&RedactedPlaces>) -> Object {
    match item {
        RecordChange::Definition { key, is_new, after, deleted_configs, undeleted_configs } => match after {
            Some(definition) => {
                let kind = if *is_new { "definition_created" } else { "definition_updated" };
                let object = with_definition(Object::new().unescaped("type", kind), definition);
                // Those that returned with it, which only lists have: a watch ends there.
                undeleted_configs.iter().fold(object, |object, count| object.value("count", count))
            }
            None => {
                let object = Object::new().unescaped("type", "definition_deleted");
                let object = object.unescaped("config_definition_key", key.as_str());
                match deleted_configs {
                    Some(count) => object.value("count", count),
                    None => object,
                }
            }
        },
        RecordChange::Config { definition, key, before, after } => match after.as_ref().filter(|_| !has_left)
        {
            Some(config) => {
                let is_new = matches!(before, Before::Nothing);
                let kind = if is_new { "config_created" } else { "config_updated" };
                let object = Object::with_capacity(config.data.len()).unescaped("type", kind);
                with_redacted(with_config(object, definition, config), redacted)
            }
            None => {
                let kind = if has_left { "config_unmatched" } else { "config_deleted" };
                let object = Object::new()
                    .unescaped("type", kind)
                    .unescaped("config_definition_key", definition.as_str());
                object.unescaped("config_key", key.as_str())
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
        with_variant(with_redacted(object, part.redacted.get(&number)), part.variants.get(&number)).finish()
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
    use concord_service::{ChangeRequestThen, RequestName};
    use concord_state::testing::events::event;

    fn begin_of(query: &str, last: Option<u64>) -> Result<WatchStart, QueryError> {
        begin(&QueryParams::from_uri(&format!("/?{query}").parse().unwrap()), last)
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
        let all = |event| render(Notice::Changes(event, Selected::All, RedactedEvent::default()), false);
        let (one, two) = (all(event.clone()), all(event.clone()));
        assert_eq!(one.as_ptr(), two.as_ptr());
        let expected = concat!(
            "event: change\nid: 7\ndata: {\"revision\":7,\"at\":\"1970-01-01T00:00:00.000007Z\",\"by\":\"root\",",
            "\"reason\":null,\"changes\":[{\"type\":\"config_created\",\"config_definition_key\":\"d\",",
            "\"config_key\":\"k\",\"data\":{\"n\":1e400},\"created_at\":\"1970-01-01T00:00:00.000001Z\",",
            "\"modified_at\":\"1970-01-01T00:00:00.000007Z\"}]}\n\n"
        );
        assert_eq!(one, expected);
        // Who may know which change request it was shares another text, that names nobody.
        let of_request = |event| {
            let request =
                Some(RequestName { id: "changechange".into(), title: "t".into(), is_revert: false });
            let author = AuthorView { request, ..AuthorView::default() };
            let redacted = RedactedEvent { author, ..RedactedEvent::default() };
            render(Notice::Changes(event, Selected::All, redacted), false)
        };
        let (three, four) = (of_request(Arc::clone(&event)), of_request(Arc::clone(&event)));
        assert_eq!(three.as_ptr(), four.as_ptr());
        let named = r#""reason":null,"change_id":"changechange","change_title":"t","changes":[{"#;
        assert!(String::from_utf8_lossy(&three).contains(named) && one == expected);
        assert_eq!(all(Arc::clone(&event)), expected, "the others learn nothing");
        let with_prev =
            render(Notice::Changes(Arc::clone(&event), Selected::All, RedactedEvent::default()), true);
        assert!(String::from_utf8_lossy(&with_prev).contains(r#","prev":null}]}"#));
        let unmatched = Notice::Changes(event, Selected::Items(vec![(0, true)]), RedactedEvent::default());
        let left = render(unmatched, false);
        let left = String::from_utf8(left.to_vec()).unwrap();
        assert!(left.contains(r#"{"type":"config_unmatched","config_definition_key":"d","config_key":"k"}"#));
        assert_eq!(render(Notice::Progress(3), false), "event: heartbeat\nid: 3\ndata: {\"revision\":3}\n\n");
    }

    #[test]
    fn an_event_names_its_author_to_those_who_see_what_they_did() {
        let then = ChangeRequestThen {
            title: "t".into(),
            phase: "open",
            is_bypass: false,
            edition: 1,
            digest: [1; 32],
            environments: vec!["prod".into()],
            by: None,
            comment: String::new(),
            reason: None,
        };
        let seen = |kind: &'static str, change: Option<&ChangeRequestThen>| ChangeRequestEvent {
            kind,
            id: "changechange".into(),
            change: change.cloned(),
        };
        let json = |seen: Vec<ChangeRequestEvent>| {
            let selected = Selected::ChangeRequests(seen);
            selected_json(&event(7, "d", "k", "{}"), &selected, &RedactedEvent::default(), false)
        };
        let (own, other) = (seen("change_request_applied", Some(&then)), seen("change_request_hidden", None));
        let by_the_way = seen("change_request_updated", Some(&then));
        assert!(json(vec![own.clone(), other.clone()]).contains(r#""by":"root""#));
        // Somebody did something else that the client does not see, and this happened with it.
        for unseen in [vec![other.clone()], vec![by_the_way.clone()], vec![by_the_way, other]] {
            assert!(json(unseen).contains(r#","by":null,"reason":null,"changes":[{"#));
        }
        assert!(!json(vec![own]).contains("config_created"), "no records");
    }
}
