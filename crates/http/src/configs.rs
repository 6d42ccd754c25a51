//! Configs: create, list, get (also as of an earlier revision), replace, delete.
//!
//! **Invariants:** a response is made of the request, of the outcome of its write, or of the one state that the read
//! saw, and of nothing else. Stored data are sent as they were written; they are not parsed again.

use std::sync::Arc;

use http::header;
use serde_json::Value;

use super::{
    body::fields::{self, BodyFields, FieldType, KEY as KEY_TYPE},
    condition::Condition,
    cursor::{self, ListCall, PastRevision},
    definitions::{self, find},
    endpoints::DEFINITIONS,
    entity_tags,
    extract::{BodyRequest, ReadRequest, both, check_key, query_violation},
    json::Object,
    openapi::schemas::json_object,
    pretty::{self, PRETTY},
    raw,
    reader::reader_of,
    reply::{Problem, Rendering, Reply},
    shape::{Shape, TAKEN, without_shape},
};
use concord_model::{
    access_key::Verb,
    command::Expect,
    document::Document,
    error::Rejection,
    patch::{Patch, PatchFormat},
    query::{self, Page},
    record::{Config, Revision},
    redaction::{RedactedPlaces, may_keep},
};
use concord_service::{
    ConfigName, Consistency, DecidedWrite, RedactedConfig, RequestWork, Service, ShownTo, Variant, Write,
    memory_budget::Reservation,
    read::{
        list::ListScope,
        whole::{WholeRequest, WholeScope},
    },
};
use concord_state::query::QueryResult;

/// The name of the path's second parameter, and of the field of a record.
pub(super) const KEY: &str = "config_key";

/// The body that creates a config.
#[derive(Debug, PartialEq)]
pub(super) struct ConfigCreation {
    pub(super) key: String,
    pub(super) data: Document,
}

impl ConfigCreation {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        Self { key: fields.required(KEY, &KEY_TYPE), data: Document::new(fields.required("data", &DATA)) }
    }
}

/// The body that replaces the data of a config. A key in it is ignored.
#[derive(Debug)]
pub(super) struct ConfigData(pub(super) Document);

impl ConfigData {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        Self(Document::new(fields.required("data", &DATA)))
    }

    /// The write that replaces the data, or creates the config if `expect` permits that. If the data keep secret
    /// values, which the request does not have, the leader computes the new data, as it does for a patch.
    pub(super) fn into_write(self, definition: String, key: String, expect: Expect) -> Write {
        let Self(data) = self;
        if expect != Expect::None && may_keep(&data.text) {
            let patch = Patch { format: PatchFormat::Replace, document: data };
            return Write::PatchConfig { definition, key, patch, expect };
        }
        Write::WriteConfig { definition, key, data, expect }
    }
}

const DATA: FieldType<Value> = FieldType {
    read: fields::any_object,
    schema: |_| json_object().description(Some("validated against the definition's schema")).into(),
};

/// Creates a config.
pub(super) async fn create(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    request.condition.for_create()?;
    let ConfigCreation { key, data } = request.read(&service, ConfigCreation::read).await?;
    let definition = request.keys.definition;
    let (location, stored) = (location(&definition, &key), data.text.clone());
    let to = ShownTo::of(&request.caller.principal, &definition);
    let write = Write::WriteConfig { definition, key, data, expect: Expect::Absent };
    let written = service.writes.write(request.caller, write).await?;
    let (shown, redacted) = service.redactor.echo(to, stored).await;
    Ok(Reply::created("config created", &shown, &location).redacted(Some(&redacted)).for_write(&written))
}

/// The parameters of all configs as one object.
const OF_WHOLE: [&str; 7] =
    [raw::RAW, raw::ESCAPED, PRETTY, pretty::ESCAPED, "consistency", "max_staleness_ms", "min_revision"];
/// Bytes of configs up to which that object is made on the threads that serve requests.
const WHOLE_INLINE_BYTES_MAX: u64 = 32 << 10;

/// How often a list is made whose parameters mean something else by the time that it is there.
const LIST_TRIES: usize = 4;

/// Lists the configs of a definition.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    if request.is_raw {
        return whole(&service, &request).await;
    }
    // What this node has applied before may lack the newest indexes. The list does not, nor does what is applied then.
    let mut filters = filters_named(&service, &request);
    for _ in 1..LIST_TRIES {
        let answer = list_by(&service, &request, &filters).await;
        let now = filters_named(&service, &request);
        if now == filters {
            return answer;
        }
        filters = now;
    }
    list_by(&service, &request, &filters).await
}

/// All configs of a definition as one object, by key. It is for programs that know no pages, so it has none.
async fn whole(service: &Service, request: &ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let is_of_pages = |name: &&str| !OF_WHOLE.contains(name);
    if let Some(name) = request.params.0.iter().map(|(name, _)| name.as_str()).find(is_of_pages) {
        let msg = format!("all configs as one object have no `{name}`: leave it out, or read a list");
        return Err(Problem::violation(query_violation(name, msg)));
    }
    let definition = request.definition().into_owned();
    check_key(&definition, definitions::KEY)?;
    let scope = WholeScope::Definition { definition, configs: String::new() };
    let wanted = WholeRequest { scope, consistency, reader: reader_of(request.headers())? };
    let is_identified = wanted.reader.is_some();
    let mut read = service.reads.read_whole(&request.principal, wanted).await?;
    let configs: Vec<Arc<Config>> = read.definitions.into_iter().flat_map(|one| one.configs).collect();
    RequestWork::note_read(configs.len());
    let bytes = read.reservation.bytes();
    read.reservation.grow(bytes)?;
    let make = move || {
        let member = |object: Object, config: &Arc<Config>| object.keyed(&config.key, &config.data);
        let text = configs.iter().fold(Object::new(), member).finish();
        let tag = entity_tags::of_body(text.as_bytes());
        (text, tag)
    };
    let (text, tag) =
        if bytes <= WHOLE_INLINE_BYTES_MAX { make() } else { service.cx.run_long(make).await? };
    let reply = if request.has_tag(&tag) { Reply::not_modified() } else { Reply::ok("configs found", &text) };
    let reply = reply.header(header::ETAG, &format!("\"{tag}\"")).redacted(Some(&read.redacted));
    let reply = reply.state_revision(read.revision).seen_by(is_identified);
    Ok(reply.compressed_for(request.headers(), || read.may_compress))
}

/// The parameters that are filters, since the definition has indexes of their names. Looked at only where one is given.
fn filters_named(service: &Service, request: &ReadRequest) -> Vec<&'static str> {
    let is_filter = |name: &&str| {
        request.params.get(name).is_some()
            && service.reads.has_index_named(&request.principal, &request.definition(), name)
    };
    TAKEN.into_iter().filter(is_filter).collect()
}

async fn list_by(service: &Service, request: &ReadRequest, filters: &[&str]) -> Result<Reply, Problem> {
    let definition = request.definition();
    let is_filter = |name: &str| filters.contains(&name);
    let past = PastRevision::of(&request.params, is_filter(cursor::REVISION));
    let page = query::configs_shape(&request.params.0, service.cx.limits());
    let (consistency, (past, (shape, page))) =
        request.params.with_consistency(both(past, both(Shape::of(&request.params, is_filter), page)))?;
    let source = cursor::source(&request.params, consistency)?;
    check_key(&definition, definitions::KEY)?;
    let params = without_shape(&request.params, is_filter);
    let scope = ListScope::Configs(definition.clone().into_owned());
    cursor::list(service, request, ListCall { scope, params, past, shape, page, source }).await
}

pub(super) fn page(
    found: QueryResult<Arc<Config>>,
    page: &Page,
    reservation: Reservation,
    has_revision: bool,
) -> Reply {
    let size = |config: &Arc<Config>| config.data.len();
    let render = move |object: Object, config: &Arc<Config>| shown(object, config, has_revision);
    Reply::page("configs found", found, reservation, page, Rendering { size, render })
}

/// Gets a config, as it is or as of a revision.
pub(super) async fn get(service: &Service, request: &ReadRequest) -> Result<Reply, Problem> {
    let asked = both(request.params.numbers(["revision"]), Shape::of(&request.params, |_| false));
    let (consistency, ([revision], shape)) = request.params.with_consistency(asked)?;
    let definition = request.definition();
    check_key(&definition, definitions::KEY)?;
    let reader = reader_of(request.headers())?;
    if let Some(revision) = revision {
        return Box::pin(get_at(service, request, consistency, shape, revision)).await;
    }
    let view = service.reads.read(&request.principal, Verb::Read, &definition, consistency).await?;
    let collection = find(&view)?;
    let key = request.config();
    check_key(&key, KEY)?;
    let not_found = || Problem::rejected(Rejection::ConfigNotFound, view.revision());
    let config = collection.config(&key).ok_or_else(not_found)?;
    let seen = view.seen(config, reader.as_ref());
    let (config, variant) = seen.as_ref().map_or((config, None), |seen| (&seen.config, Some(&seen.variant)));
    let shown = view.shown(&service.reads, &request.principal, config).await?;
    let (config, redacted) = shown.as_ref().map_or((config, None), |(config, places)| (config, Some(places)));
    let is_open = || !collection.may_have_secrets();
    let reply = if shape == Shape::default() {
        found(request, (config, variant), false).redacted(redacted)
    } else {
        Box::pin(parts(service, request, shape, (config, variant), redacted.cloned())).await?
    };
    let reply = reply.state_revision(view.revision()).seen_by(reader.is_some());
    Ok(reply.compressed_for(request.headers(), is_open))
}

/// The parts of a config that the client asks for.
async fn parts(
    service: &Service,
    request: &ReadRequest,
    shape: Shape,
    (config, variant): (&Arc<Config>, Option<&Variant>),
    redacted: Option<RedactedPlaces>,
) -> Result<Reply, Problem> {
    let Some(fields) = shape.fields else {
        return Ok(found(request, (config, variant), shape.has_revision).redacted(redacted.as_ref()));
    };
    let redacted = redacted.map(|places| fields.places(&places));
    let part = service.reads.project(fields, vec![Arc::clone(config)]).await?;
    let config = part.first().unwrap_or(config);
    Ok(found(request, (config, variant), shape.has_revision).redacted(redacted.as_ref()))
}

/// Gets a config as of a revision, from the history.
async fn get_at(
    service: &Service,
    request: &ReadRequest,
    consistency: Consistency,
    shape: Shape,
    at: Revision,
) -> Result<Reply, Problem> {
    let (definition, key) = (request.definition(), request.config());
    let name = ConfigName { definition: &definition, key: &key };
    let found = service.history.config_at(&request.principal, consistency, name, at).await?;
    let RedactedConfig { config, revision, redacted } = found;
    let reply = parts(service, request, shape, (&config, None), Some(redacted)).await?;
    Ok(reply.state_revision(revision))
}

/// A config, or what a reader sees in place of it: the candidate of this change request.
fn found(request: &ReadRequest, (config, variant): (&Config, Option<&Variant>), has_revision: bool) -> Reply {
    let is_known =
        variant.map_or_else(|| request.has(config.revision), |variant| request.has_tag(&variant.tag()));
    let reply = if is_known {
        Reply::not_modified()
    } else {
        Reply::ok_with("config found", config.data.len(), |data| shown(data, config, has_revision))
    };
    let reply = reply.record_version(config.revision, config.modified_at);
    variant.into_iter().fold(reply, Reply::variant)
}

/// Replaces the data of a config; with `If-None-Match: *` creates it, and with `upsert=true` does one or the other.
pub(super) async fn put(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let data = request.read(&service, ConfigData::read).await?;
    let (definition, key) = (request.keys.definition, request.keys.config);
    let may_create = request.params.flag("upsert")? && request.condition == Condition::Unconditional;
    let expect = if may_create { Expect::Any } else { request.condition.for_put() };
    let to = ShownTo::of(&request.caller.principal, &definition);
    let stored = data.0.text.clone();
    // Only these let a PUT create.
    let location = matches!(expect, Expect::None | Expect::Any).then(|| location(&definition, &key));
    let write = data.into_write(definition, key, expect);
    let is_computed = matches!(write, Write::PatchConfig { .. });
    let written = service.writes.write(request.caller, write).await?;
    if is_computed {
        return Ok(computed_reply(&written));
    }
    let (shown, redacted) = service.redactor.echo(to, stored).await;
    let reply = match location.filter(|_| written.applied.has_created()) {
        Some(location) => Reply::created("config created", &shown, &location),
        None => Reply::ok("config updated", &shown),
    };
    Ok(reply.redacted(Some(&redacted)).for_write(&written))
}

/// Applies a JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902) to the data of a config.
///
/// An operation that cannot be applied to the current data is 422, because the patch is wrong. A `test` that finds
/// another value is 409, because the record has changed: RFC 5789, 2.2 calls this a conflicting state.
pub(super) async fn patch(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let format = request.patch_format.ok_or(Problem::UnsupportedPatch)?;
    let read = move |patch: Value, fields: &mut BodyFields| {
        fields.patch(format, &patch);
        Some(Patch { format, document: Document::new(patch) })
    };
    let patch = request.read_value(&service, move |body| BodyFields::read_value("patch", body, read)).await?;
    let (definition, key) = (request.keys.definition, request.keys.config);
    let write = Write::PatchConfig { definition, key, patch, expect };
    Ok(computed_reply(&service.writes.write(request.caller, write).await?))
}

/// The response to a write whose data the leader has made.
pub(super) fn computed_reply(written: &DecidedWrite) -> Reply {
    let reply = match &written.content {
        Some(content) => Reply::ok("config updated", content),
        None => Reply::without_data("config updated"),
    };
    reply.redacted(Some(&written.redacted)).for_write(written)
}

/// Deletes a config.
pub(super) async fn delete(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let expect = request.condition.for_change()?;
    let (definition, key) = (request.keys.definition, request.keys.config);
    let data = Object::new().value(definitions::KEY, &definition).value(KEY, &key).finish();
    let written =
        service.writes.write(request.caller, Write::DeleteConfig { definition, key, expect }).await?;
    Ok(Reply::ok("config deleted", &data).for_deletion(&written))
}

/// The path of a config.
pub(super) fn location(definition: &str, key: &str) -> String {
    format!("{DEFINITIONS}{definition}/config/{key}")
}

/// The members of a config as it is shown.
pub(super) fn shown(object: Object, config: &Config, has_revision: bool) -> Object {
    let object = members(object, config);
    if has_revision { object.value("revision", &config.revision) } else { object }
}

/// The members of a config's JSON.
pub(super) fn members(object: Object, config: &Config) -> Object {
    let object = object.unescaped(KEY, config.key.as_str()).raw("data", &config.data);
    object.time("created_at", config.created_at).time("modified_at", config.modified_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{key::Key, time::Timestamp};

    #[test]
    fn a_record_has_four_members_and_its_data_as_written() {
        let config = Config {
            key: Key::parse("k").unwrap(),
            data: r#"{"b":7.0,"a":-0.0}"#.into(),
            entries: Box::default(),
            created_at: Timestamp(0),
            modified_at: Timestamp(1),
            revision: 1,
        };
        let expected = r#"{"config_key":"k","data":{"b":7.0,"a":-0.0},"created_at":"1970-01-01T00:00:00.000000Z","modified_at":"1970-01-01T00:00:00.000001Z"}"#;
        assert_eq!(shown(Object::new(), &config, false).finish(), expected);
        let with_revision = format!("{},\"revision\":1}}", expected.strip_suffix('}').unwrap());
        assert_eq!(shown(Object::new(), &config, true).finish(), with_revision);
    }
}
