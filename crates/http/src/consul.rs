//! The key-value store of Consul, read only: `GET /v1/kv/{key}`, for clients that speak its protocol.
//!
//! ```text
//! limits                       no key
//! limits/acme                  the data of the config `acme` of the definition `limits`, as JSON text
//! limits/acme/db/hosts/0       the text of one value in it: a string as it is, another value as JSON
//! ```
//!
//! Names of members are written as in a JSON pointer (RFC 6901): `~1` is a slash in a name, `~0` a tilde.
//!
//! With `recurse` or `keys`, a key is the beginning of keys. Up to the key of a config, these are the keys of configs;
//! from there on (`limits/acme`, `limits/acme/`), those of the values in it that have no values in them, too.
//!
//! With `index`, a request waits until something has changed after that revision, as long polling does. `X-Consul-Index`
//! is the revision of the state that the response is made from, so a client that goes on with it misses nothing. After a
//! wait without a change it is that of the request: clients take another one for a change.
//!
//! **Invariants:** a value that is redacted has no key of its own: `null` would pass for it. A response has the entries of
//! one state.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{HeaderName, HeaderValue};
use jiff::SignedDuration;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{
    extract::{QueryParams, ReadRequest, query_violation},
    json::Object,
    raw::{NotWritten, formatted_max, room_for},
    reader::reader_of,
    reply::{Detail, Problem, Reply},
};
use concord_model::{
    error::{Invalid, LocSegment, Rejection, Violation},
    key::Key,
    limits::POLL_WAIT_MAX_S,
    record::{Config, Revision},
    redaction::RedactedPlaces,
};
use concord_service::{
    Consistency, Level, Refusal, RequestWork, Service,
    quota::Gauge,
    read::{
        bulk::{BulkConfig, BulkRequest, ReadResult},
        whole::{WholeRequest, WholeScope},
    },
    watch::{WatchRequest, WatchStart},
};
use concord_state::feed::RecordChange;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Bytes of data up to which the entries are made on the threads that serve requests.
const INLINE_BYTES_MAX: usize = 16 << 10;
/// How old an index may be that is repeated when nothing has changed.
const INDEX_LAG_MAX: Revision = 10_000;
/// What an entry has beside its key and its value, at most.
const ENTRY_BYTES: usize = 128;

/// What a request counts as while it is answered.
pub(super) fn gauge(params: &QueryParams) -> Option<Gauge> {
    if index(params).is_ok_and(|index| index > 0) {
        return Some(Gauge::Watches);
    }
    (params.get("recurse").is_some() || params.get("keys").is_some()).then_some(Gauge::Lists)
}

/// What the key of a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KvPlace {
    /// The configs of the definitions whose keys begin with this.
    Definitions(String),
    /// A config, or those of a definition whose keys begin with this.
    Config { definition: String, config: String },
    /// A value in a config, or those whose paths begin with this.
    Value { definition: String, config: String, path: String },
}

impl KvPlace {
    fn of(key: &str) -> Self {
        // A slash at the begin has no meaning: clients write it or not.
        let mut parts = key.strip_prefix('/').unwrap_or(key).splitn(3, '/').map(str::to_owned);
        match (parts.next().unwrap_or_default(), parts.next(), parts.next()) {
            (beginning, None, _) => Self::Definitions(beginning),
            (definition, Some(config), None) => Self::Config { definition, config },
            (definition, Some(config), Some(path)) => Self::Value { definition, config, path },
        }
    }

    /// Whether an item of an event that its watch returns is one of its keys. The event may have others.
    fn is_about(&self, item: &RecordChange, is_one: bool) -> bool {
        match (self, item) {
            // The watch has no others.
            (Self::Definitions(_), _) => true,
            // All its configs may come or go with it.
            (
                Self::Config { definition, .. } | Self::Value { definition, .. },
                RecordChange::Definition { key, .. },
            ) => key.as_str() == definition,
            (
                Self::Config { definition, config } | Self::Value { definition, config, .. },
                RecordChange::Config { definition: of, key, .. },
            ) => {
                let is_beginning = !is_one && matches!(self, Self::Config { .. });
                let is_key =
                    key.as_str() == config || is_beginning && key.as_str().starts_with(config.as_str());
                of.as_str() == definition && is_key
            }
        }
    }
}

/// Which keys a response has.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// That of the request, with its value.
    One { is_raw: bool },
    /// All that begin with it, with their values.
    Entries,
    /// All that begin with it; cut after the separator, if there is one.
    Keys { separator: Option<String> },
}

impl Form {
    fn of(params: &QueryParams) -> Self {
        if params.get("keys").is_some() {
            let separator = params.get("separator").filter(|text| !text.is_empty());
            return Self::Keys { separator: separator.map(str::to_owned) };
        }
        if params.get("recurse").is_some() {
            return Self::Entries;
        }
        Self::One { is_raw: params.get("raw").is_some() }
    }
}

/// Answers a request for a key or for keys. What is wrong with it is said as Consul does, with 400 and a text.
pub(super) async fn kv(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    match answered(&service, &request).await {
        Err(Problem::Refused(Refusal::Invalid(invalid), _)) => Ok(Reply::bad_request(texts(&invalid))),
        Err(Problem::Shape(details)) => {
            let text = |one: Detail| match one.loc.last() {
                Some(LocSegment::Name(name)) => format!("`{name}`: {}", one.msg),
                Some(LocSegment::Index(_)) | None => one.msg.into_owned(),
            };
            Ok(Reply::bad_request(details.into_iter().map(text).collect()))
        }
        answered => answered,
    }
}

fn texts(invalid: &Invalid) -> Vec<String> {
    match invalid {
        Invalid::Violations(all) => all.iter().map(|violation| violation.msg.clone()).collect(),
        Invalid::TooLarge(text) => vec![text.clone()],
        Invalid::TooLargeAt(violation) => vec![violation.msg.clone()],
    }
}

async fn answered(service: &Service, request: &ReadRequest) -> Result<Reply, Problem> {
    let [key, ..] = request.names();
    let (place, form) = (KvPlace::of(&key), Form::of(&request.params));
    let asked = consistency(&request.params)?;
    let (index, wait) = (index(&request.params)?, wait(&request.params)?);
    let waited = if index > 0 {
        wait_for_change(service, request, &place, (index, wait, asked)).await?
    } else {
        Waited::NotAtAll
    };
    let min_revision = match waited {
        Waited::NotAtAll => None,
        Waited::ForChange(revision) | Waited::InVain(revision) => Some(revision),
    };
    let consistency = Consistency { min_revision, ..asked };
    let (reply, revision) = match (place, form) {
        (KvPlace::Definitions(key), Form::One { .. }) if key.is_empty() => {
            return Err(Problem::violation(Violation::new("Missing key name")));
        }
        (KvPlace::Definitions(_), Form::One { .. }) => {
            (Reply::no_key(), service.reads.state_revision(&request.principal, consistency).await?)
        }
        (KvPlace::Definitions(beginning), Form::Entries | Form::Keys { .. }) => {
            configs(service, request, WholeScope::Definitions { beginning }, consistency).await?
        }
        (KvPlace::Config { definition, config }, Form::Entries | Form::Keys { .. }) => {
            let scope = WholeScope::Definition { definition, configs: config };
            configs(service, request, scope, consistency).await?
        }
        (KvPlace::Config { definition, config }, form) => {
            let wanted = ConfigPath { definition, config, path: None, form };
            values(service, request, wanted, consistency).await?
        }
        (KvPlace::Value { definition, config, path }, form) => {
            let wanted = ConfigPath { definition, config, path: Some(path), form };
            values(service, request, wanted, consistency).await?
        }
    };
    // Clients take another index for a change. From one that is old, the next wait would read much of the history.
    let is_same = matches!(waited, Waited::InVain(_)) && revision.saturating_sub(index) <= INDEX_LAG_MAX;
    let reply = with_index(reply, if is_same { index } else { revision }).state_revision(revision);
    Ok(with_contact(reply, service, asked))
}

/// How a wait for a change has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    /// There was none, or it had no end that means anything.
    NotAtAll,
    /// With a change at this revision.
    ForChange(Revision),
    /// Without one up to this revision.
    InVain(Revision),
}

/// Whether the request takes any state, or the newest one.
fn consistency(params: &QueryParams) -> Result<Consistency, Problem> {
    let level = match (params.get("stale").is_some(), params.get("consistent").is_some()) {
        (true, true) => {
            let msg = "a read is `stale` or `consistent`, not both";
            return Err(Problem::violation(query_violation("stale", msg)));
        }
        (true, false) => Level::Local { max_staleness: None },
        (false, _) => Level::Linearizable,
    };
    Ok(Consistency { level, min_revision: None })
}

/// The revision after which a change is waited for; 0 to wait for none.
fn index(params: &QueryParams) -> Result<Revision, Problem> {
    let [index] = params.numbers(["index"])?;
    Ok(index.unwrap_or(0))
}

/// How long a request waits for a change: at most as long as the server allows for long polling, which is the default of Consul.
fn wait(params: &QueryParams) -> Result<Duration, Problem> {
    let most = Duration::from_secs(u64::from(POLL_WAIT_MAX_S));
    let Some(text) = params.get("wait").filter(|text| !text.is_empty()) else { return Ok(most) };
    let wanted = text.parse::<SignedDuration>().ok().and_then(|wait| Duration::try_from(wait).ok());
    let wanted = wanted.ok_or_else(|| {
        Problem::violation(query_violation("wait", "`wait` is a time such as `500ms`, `10s` or `1m30s`"))
    })?;
    Ok(if wanted.is_zero() { most } else { wanted.min(most) })
}

/// Waits until something has changed after a revision, or for so long. If the changes are not known any more, or the
/// revision is one of another cluster, the client takes what is there.
async fn wait_for_change(
    service: &Service,
    request: &ReadRequest,
    place: &KvPlace,
    (index, wait, consistency): (Revision, Duration, Consistency),
) -> Result<Waited, Problem> {
    let is_key = |text: &str| Key::parse(text).is_ok();
    let (definitions, configs) = match place {
        KvPlace::Definitions(beginning) if beginning.is_empty() => (Vec::new(), Vec::new()),
        KvPlace::Definitions(beginning) => (vec![format!("{beginning}*")], Vec::new()),
        KvPlace::Value { definition, config, .. } if is_key(config) => {
            (vec![definition.clone()], vec![config.clone()])
        }
        KvPlace::Config { definition, .. } | KvPlace::Value { definition, .. } => {
            (vec![definition.clone()], Vec::new())
        }
    };
    if !definitions.iter().all(|text| is_key(text.strip_suffix('*').unwrap_or(text))) {
        // No such key can come, whatever the revision.
        return Ok(Waited::InVain(0));
    }
    let until = Instant::now() + wait;
    let mut after = index;
    loop {
        let wanted = WatchRequest {
            of_change_requests: false,
            definitions: definitions.clone(),
            configs: configs.clone(),
            filters: Vec::new(),
            has_prev: false,
            start: WatchStart::After(after),
            consistency,
            reader: reader_of(request.headers())?,
            follows_rollouts: false,
        };
        let left = until.saturating_duration_since(Instant::now());
        let changes = match service.watches.poll(request.principal.clone(), wanted, left).await {
            Ok(changes) => changes,
            Err(Refusal::Expired(_)) => return Ok(Waited::NotAtAll),
            Err(refusal) => return Err(refusal.into()),
        };
        let is_one = matches!(Form::of(&request.params), Form::One { .. });
        let items = changes.events.iter().flat_map(|(event, ..)| event.items.iter());
        if items.into_iter().any(|item| place.is_about(item, is_one)) {
            return Ok(Waited::ForChange(changes.upto));
        }
        after = changes.upto;
        if Instant::now() >= until {
            return Ok(Waited::InVain(after));
        }
    }
}

/// The configs of a scope, as keys with their data.
async fn configs(
    service: &Service,
    request: &ReadRequest,
    scope: WholeScope,
    consistency: Consistency,
) -> Result<(Reply, Revision), Problem> {
    let exact = match &scope {
        WholeScope::Definition { configs, .. } => configs.clone(),
        WholeScope::Definitions { .. } => String::new(),
    };
    let reader = reader_of(request.headers())?;
    let wanted = WholeRequest { scope, consistency, reader };
    let read = match service.reads.read_whole(&request.principal, wanted).await {
        Ok(read) => read,
        Err(Refusal::Rejected(Rejection::DefinitionNotFound)) => {
            let revision = service.reads.state_revision(&request.principal, consistency).await?;
            return Ok((Reply::no_key(), revision));
        }
        Err(refusal) => return Err(refusal.into()),
    };
    let (mut reservation, revision, may_compress) = (read.reservation, read.revision, read.may_compress);
    let configs = read.definitions.iter().map(|one| one.configs.len()).sum();
    RequestWork::note_read(configs);
    let bytes = usize::try_from(reservation.bytes()).unwrap_or(usize::MAX);
    reservation.grow(room_for(bytes))?;
    let [key, ..] = request.names();
    let (definitions, form, redacted) = (read.definitions, Form::of(&request.params), read.redacted.clone());
    let make = move || {
        let mut made = Entries::new(form, key.strip_prefix('/').unwrap_or(&key).len(), bytes);
        for definition in &definitions {
            for config in &definition.configs {
                let key = format!("{}/{}", definition.key.as_str(), config.key.as_str());
                // What begins with the key of a config are its values, too.
                if config.key.as_str() == exact {
                    made.add_values(&key, (&key, config), &redacted)?;
                }
                made.add(key, &config.data, config.revision)?;
            }
        }
        Ok::<_, NotWritten>(made.finish())
    };
    let text = if bytes <= INLINE_BYTES_MAX { make() } else { service.cx.run_long(make).await? };
    let reply =
        text?.map_or_else(Reply::no_key, |text| Reply::text(JSON, text)).redacted(Some(&read.redacted));
    Ok((reply.compressed_for(request.headers(), || may_compress), revision))
}

/// A config, or a place in it, and what of it is in a response.
struct ConfigPath {
    definition: String,
    config: String,
    /// `None` for the config itself.
    path: Option<String>,
    form: Form,
}

/// A config as a whole, or values in it.
async fn values(
    service: &Service,
    request: &ReadRequest,
    wanted: ConfigPath,
    consistency: Consistency,
) -> Result<(Reply, Revision), Problem> {
    let name = BulkConfig { definition: wanted.definition.clone(), key: wanted.config.clone() };
    let bulk = BulkRequest { configs: vec![name], at: None, reader: reader_of(request.headers())? };
    let mut read = service.reads.read_bulk(&request.principal, consistency, bulk).await?;
    let (revision, redacted, may_compress) = (read.state_revision, read.redacted, read.may_compress);
    let Some(ReadResult::Found(config)) = read.results.pop() else {
        return Ok((Reply::no_key(), revision));
    };
    RequestWork::note_read(1);
    let mut reservation = read.reservation;
    let (bytes, form) = (config.data.len(), wanted.form.clone());
    reservation.grow(room_for(bytes))?;
    let places = redacted.clone();
    let make = move || made_of(&wanted, &config, &places);
    let made = if bytes <= INLINE_BYTES_MAX { make() } else { service.cx.run_long(make).await? };
    let reply = match (made?, form) {
        (None, _) => Reply::no_key(),
        (Some(text), Form::One { is_raw: true }) => Reply::text(PLAIN, text),
        (Some(text), Form::One { is_raw: false } | Form::Entries | Form::Keys { .. }) => {
            Reply::text(JSON, text)
        }
    };
    let reply = reply.redacted(Some(&redacted)).compressed_for(request.headers(), || may_compress);
    Ok((reply, revision))
}

/// The response about a config; `None` where it has no such key.
fn made_of(
    wanted: &ConfigPath,
    config: &Arc<Config>,
    redacted: &RedactedPlaces,
) -> Result<Option<String>, NotWritten> {
    let ConfigPath { definition, config: key, path, form } = wanted;
    let key = format!("{definition}/{key}");
    let Some(path) = path else {
        return Ok(Some(one(&key, config.data.to_string(), config.revision, form)));
    };
    if let Form::One { .. } = form {
        let data = parsed(config)?;
        let found = find(&data, path).filter(|(value, place)| !is_hidden(value, place, redacted));
        return Ok(
            found.map(|(value, _)| one(&format!("{key}/{path}"), text_of(value), config.revision, form))
        );
    }
    let beginning = format!("{key}/{path}");
    let mut made = Entries::new(form.clone(), beginning.len(), config.data.len());
    made.add_values(&beginning, (&key, config), redacted)?;
    Ok(made.finish())
}

fn parsed(config: &Config) -> Result<Value, NotWritten> {
    serde_json::from_str(&config.data).map_err(|error| NotWritten::Malformed(error.to_string()))
}

/// One key with its value.
fn one(key: &str, value: String, revision: Revision, form: &Form) -> String {
    match form {
        Form::One { is_raw: true } => value,
        Form::One { is_raw: false } | Form::Entries | Form::Keys { .. } => {
            format!("[{}]", entry(key, &value, revision))
        }
    }
}

/// A value as text.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

/// The value at a path, and the path; a place in a list is named by its digits.
fn find<'a>(data: &'a Value, path: &str) -> Option<(&'a Value, Vec<LocSegment>)> {
    let value = data.pointer(&format!("/{path}"))?;
    let name = |token: &str| LocSegment::Name(token.replace("~1", "/").replace("~0", "~"));
    Some((value, path.split('/').map(name).collect()))
}

/// Whether a value is null because its client may not see it.
fn is_hidden(value: &Value, place: &[LocSegment], redacted: &RedactedPlaces) -> bool {
    value.is_null() && !redacted.is_empty() && !redacted.on(&[place.to_vec()]).is_empty()
}

/// Adds the values of a config that have no values in them.
struct Leaves<'a> {
    made: &'a mut Entries,
    /// What the key of each has to begin with.
    beginning: String,
    redacted: &'a RedactedPlaces,
    revision: Revision,
}

impl Leaves<'_> {
    fn add(&mut self, key: &str, value: &Value, place: &mut Vec<LocSegment>) -> Result<(), NotWritten> {
        // Only on the way to the beginning, or below it.
        if !key.starts_with(&self.beginning) && !self.beginning.starts_with(key) {
            return Ok(());
        }
        // Each key repeats the names around its value.
        self.made.charge(key.len())?;
        match value {
            Value::Object(members) if !members.is_empty() => {
                for (name, value) in members {
                    let token = name.replace('~', "~0").replace('/', "~1");
                    self.step(&format!("{key}/{token}"), value, (LocSegment::Name(name.clone()), place))?;
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (index, value) in items.iter().enumerate() {
                    self.step(&format!("{key}/{index}"), value, (LocSegment::Index(index as u64), place))?;
                }
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {
                if key.starts_with(&self.beginning) && !is_hidden(value, place, self.redacted) {
                    self.made.add(key.to_owned(), &text_of(value), self.revision)?;
                }
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        key: &str,
        value: &Value,
        (segment, place): (LocSegment, &mut Vec<LocSegment>),
    ) -> Result<(), NotWritten> {
        place.push(segment);
        let added = self.add(key, value, place);
        place.pop();
        added
    }
}

/// The entries of a response, at most as many bytes as data may become.
struct Entries {
    form: Form,
    /// The bytes of the beginning of all keys.
    beginning: usize,
    made: Vec<(String, String)>,
    left: usize,
}

impl Entries {
    /// `bytes` is the length of the data.
    fn new(form: Form, beginning: usize, bytes: usize) -> Self {
        Self { form, beginning, made: Vec::new(), left: formatted_max(bytes) }
    }

    fn add(&mut self, key: String, value: &str, revision: Revision) -> Result<(), NotWritten> {
        let (key, text) = match &self.form {
            Form::Keys { separator } => {
                let after = key.get(self.beginning..).unwrap_or_default();
                let end = separator.as_deref().and_then(|one| Some(after.find(one)? + one.len()));
                let key = end.map_or(key.as_str(), |end| &key[..self.beginning + end]).to_owned();
                (key.clone(), Value::String(key).to_string())
            }
            Form::One { .. } | Form::Entries => {
                let text = entry(&key, value, revision);
                (key, text)
            }
        };
        self.charge(key.len() + text.len() + ENTRY_BYTES)?;
        self.made.push((key, text));
        Ok(())
    }

    /// Adds the values of a config whose keys begin with a text.
    fn add_values(
        &mut self,
        beginning: &str,
        (key, config): (&str, &Config),
        redacted: &RedactedPlaces,
    ) -> Result<(), NotWritten> {
        let data = parsed(config)?;
        // Without members it is a value itself, and has the key of the config.
        if data.as_object().is_none_or(Map::is_empty) {
            return Ok(());
        }
        let beginning = beginning.to_owned();
        let mut leaves = Leaves { made: self, beginning, redacted, revision: config.revision };
        leaves.add(key, &data, &mut Vec::new())
    }

    fn charge(&mut self, bytes: usize) -> Result<(), NotWritten> {
        self.left = self.left.checked_sub(bytes).ok_or(NotWritten::TooLarge)?;
        Ok(())
    }

    /// The response; `None` without any.
    fn finish(mut self) -> Option<String> {
        // As Consul lists them; a key that ends at its separator is there once.
        self.made.sort_unstable();
        self.made.dedup();
        let texts: Vec<String> = self.made.into_iter().map(|(_, text)| text).collect();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(",")))
    }
}

/// An entry as Consul writes it. When the key was created is not kept: both indexes are that of its last change.
fn entry(key: &str, value: &str, revision: Revision) -> String {
    let object = Object::new().value("LockIndex", &0).value("Key", &key).value("Flags", &0);
    let object = object.unescaped("Value", &BASE64.encode(value));
    object.value("CreateIndex", &revision).value("ModifyIndex", &revision).finish()
}

/// Consul counts from 1.
fn with_index(reply: Reply, index: Revision) -> Reply {
    reply.header(INDEX, &index.max(1).to_string())
}

/// How long ago this node was known to have all changes: clients reject an old response to a `stale` read by it.
fn with_contact(reply: Reply, service: &Service, asked: Consistency) -> Reply {
    let age = match asked.level {
        Level::Local { .. } => service.reads.staleness(),
        Level::Linearizable | Level::Lease => Some(Duration::ZERO),
    };
    // Of no contact at all nothing is known: as old as can be said.
    let millis = age.map_or(u128::from(u32::MAX), |age| age.as_millis().min(u128::from(u32::MAX)));
    let reply = reply.header(KNOWN_LEADER, if service.reads.knows_leader() { "true" } else { "false" });
    reply.header(LAST_CONTACT, &millis.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use concord_model::time::Timestamp;
    use concord_state::feed::Before;

    fn config(data: &Value) -> Arc<Config> {
        let key = Key::parse("acme").unwrap();
        let (created_at, modified_at) = (Timestamp(0), Timestamp(0));
        let data = data.to_string().into();
        Arc::new(Config { key, data, entries: Box::default(), created_at, modified_at, revision: 7 })
    }

    fn made(data: &Value, path: Option<&str>, form: Form, redacted: &RedactedPlaces) -> Option<Value> {
        let path = path.map(str::to_owned);
        let wanted = ConfigPath { definition: "limits".into(), config: "acme".into(), path, form };
        let text = made_of(&wanted, &config(data), redacted).unwrap()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    fn keys_and_values(made: Option<Value>) -> Vec<(String, String)> {
        let Some(Value::Array(entries)) = made else { return Vec::new() };
        let text = |entry: &Value| BASE64.decode(entry["Value"].as_str().unwrap()).unwrap();
        let pair =
            |entry: &Value| (entry["Key"].as_str().unwrap().into(), String::from_utf8(text(entry)).unwrap());
        entries.iter().map(pair).collect()
    }

    #[test]
    fn a_request_waits_for_a_duration_of_go() {
        let of = |text: &str| wait(&QueryParams(vec![("wait".into(), text.into())]));
        let expected = [
            ("10s", 10.0),
            ("1m30s", 90.0),
            ("500ms", 0.5),
            ("0.5s", 0.5),
            ("60000ms", 60.0),
            ("100us", 1e-4),
        ];
        for (text, seconds) in expected {
            assert_eq!(of(text).unwrap(), Duration::from_secs_f64(seconds), "{text}");
        }
        for most in ["", "0s", "10m", "1.5h"] {
            assert_eq!(of(most).unwrap(), Duration::from_secs(300), "{most}");
        }
        for wrong in ["s", "soon", "-1s", "7", "1e999s", "99999999999999999999h"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_change_of_another_definition_is_none() {
        let item = |definition: &str, key: &str| RecordChange::Config {
            definition: Key::parse(definition).unwrap(),
            key: Key::parse(key).unwrap(),
            before: Before::Nothing,
            after: None,
        };
        let place = KvPlace::of("limits/ac");
        assert!(place.is_about(&item("limits", "acme"), false));
        assert!(!place.is_about(&item("limits", "acme"), true));
        assert!(!place.is_about(&item("limits", "zoo"), false));
        assert!(!place.is_about(&item("other", "acme"), false), "an event may have items of both");
        assert!(!KvPlace::of("limits/acme/db").is_about(&item("other", "acme"), false));
    }

    #[test]
    fn a_key_names_definitions_a_config_or_a_value() {
        let config = |definition: &str, config: &str| KvPlace::Config {
            definition: definition.into(),
            config: config.into(),
        };
        assert_eq!(KvPlace::of(""), KvPlace::Definitions(String::new()));
        assert_eq!(KvPlace::of("li"), KvPlace::Definitions("li".into()));
        assert_eq!(KvPlace::of("limits/"), config("limits", ""));
        assert_eq!(KvPlace::of("/limits/acme"), config("limits", "acme"));
        let path = KvPlace::Value { definition: "limits".into(), config: "acme".into(), path: "a/b".into() };
        assert_eq!(KvPlace::of("limits/acme/a/b"), path);
    }

    #[test]
    fn values_have_the_paths_of_json_pointers() {
        let data =
            json!({"db": {"host": "a", "ports": [1, 2.5], "none": null}, "a/b~c": true, "e": {}, "dbx": 1});
        let none = RedactedPlaces::default();
        let all = keys_and_values(made(&data, Some(""), Form::Entries, &none));
        let expected = [
            ("limits/acme/a~1b~0c", "true"),
            ("limits/acme/db/host", "a"),
            ("limits/acme/db/none", "null"),
            ("limits/acme/db/ports/0", "1"),
            ("limits/acme/db/ports/1", "2.5"),
            ("limits/acme/dbx", "1"),
            ("limits/acme/e", "{}"),
        ];
        assert_eq!(all, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        for (key, value) in &all {
            let path = key.strip_prefix("limits/acme/").unwrap();
            let one = keys_and_values(made(&data, Some(path), Form::One { is_raw: false }, &none));
            assert_eq!(one, [(key.clone(), value.clone())]);
        }
        for absent in ["", "db/", "db/ports/2", "db/ports/00", "db/ports/+1", "db/host/x", "nothing"] {
            assert_eq!(made(&data, Some(absent), Form::One { is_raw: false }, &none), None, "{absent}");
        }
    }

    #[test]
    fn keys_end_at_the_separator_and_are_there_once() {
        let data = json!({"db": {"host": "a", "port": 1}, "dbx": 1});
        let none = RedactedPlaces::default();
        let keys = |path: &str, separator: Option<&str>| {
            made(&data, Some(path), Form::Keys { separator: separator.map(str::to_owned) }, &none)
        };
        assert_eq!(keys("d", Some("/")), Some(json!(["limits/acme/db/", "limits/acme/dbx"])));
        assert_eq!(keys("db/", Some("/")), Some(json!(["limits/acme/db/host", "limits/acme/db/port"])));
        assert_eq!(keys("db/h", None), Some(json!(["limits/acme/db/host"])));
        assert_eq!(keys("z", None), None);
    }

    #[test]
    fn a_value_that_is_redacted_has_no_key() {
        let data = json!({"user": "u", "password": null, "none": null});
        let mut redacted = RedactedPlaces::default();
        redacted.add(&[LocSegment::Name("password".into())]);
        let keys = made(&data, Some(""), Form::Keys { separator: None }, &redacted);
        assert_eq!(keys, Some(json!(["limits/acme/none", "limits/acme/user"])));
        assert_eq!(made(&data, Some("password"), Form::One { is_raw: false }, &redacted), None);
    }

    #[test]
    fn names_that_repeat_a_long_one_are_bounded() {
        let data = json!({"x".repeat(100_000): vec![1; 1000]});
        let wanted = ConfigPath {
            definition: "limits".into(),
            config: "acme".into(),
            path: Some(String::new()),
            form: Form::Keys { separator: Some("/".into()) },
        };
        let made = made_of(&wanted, &config(&data), &RedactedPlaces::default());
        assert_eq!(made, Err(NotWritten::TooLarge));
    }
}
