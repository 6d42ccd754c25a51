//! Access keys: create, list, get, change, revoke, rotate; the root key disabled; who the client is.
//!
//! | where is | file |
//! |---|---|
//! | the bodies of requests | `body` |
//!
//! **Invariants:** the secret of a key is only in the response to the request that created it, and no cache may
//! store a response of this file. Keys that a client may not manage do not exist for it.

pub(crate) mod body;

use serde_json::{Value, json};

use self::body::{NewKey, attested_revision, changed_key, grace, new_key};
use super::{
    endpoints::KEYS,
    extract::{BodyRequest, ReadRequest},
    identity::own_session_json,
    json::Object,
    reply::{Problem, Rendering, Reply},
};
use concord_model::{
    access_key::{
        AttestedBy, Attester, Grant, Grants, KeyId, Pattern, Quota, Verb, Verbs, list::KeyQuery, start_of_day,
    },
    error::Rejection,
    system::person::{PersonId, PersonLabel},
};
use concord_service::{MadeKey, SeenKey, Service, Share, quota::QuotaLeft};

/// The warning if the secret of a key is no longer known.
const NO_TEXT: &str = "an earlier attempt of this request created the key, and its secret is shown once: rotate the key for a new one";

/// Creates a key.
pub(super) async fn create(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    request.condition.for_create()?;
    let NewKey { terms, person } = request.read(&service, new_key).await?;
    let made = service.keys.create_key(request.caller, terms, person).await?;
    let location = format!("{KEYS}{}", made.seen.key.id);
    Ok(made_reply(Reply::created("access key created", &made_json(&made), &location), &made))
}

/// Lists the keys that the client may manage.
pub(super) async fn list(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let query = KeyQuery::parse(&request.params.0, service.cx.limits());
    let (consistency, query) = request.params.with_consistency(query)?;
    let page = query.page.clone();
    let (found, revision) = service.keys.access_keys(&request.principal, query, consistency).await?;
    let size = |_: &SeenKey| 0;
    let render = |object: Object, seen: &SeenKey| shown(object, seen);
    let reservation = service.cx.reservation(Share::Callers);
    let reply = Reply::page("access keys found", found, reservation, &page, Rendering { size, render });
    Ok(reply.state_revision(revision).no_store())
}

/// Gets a key.
pub(super) async fn get(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let (seen, revision) =
        service.keys.access_key(&request.principal, &key_id(&request.name())?, consistency).await?;
    let key = &seen.key;
    let reply = if request.has(key.tag()) {
        Reply::not_modified()
    } else {
        Reply::ok("access key found", &record(&seen).finish())
    };
    Ok(reply.record_version(key.tag(), key.modified_at).state_revision(revision).no_store())
}

/// Changes a key.
pub(super) async fn change(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_change()?;
    let patch = request.read(&service, changed_key).await?;
    let id = key_id(&request.name)?;
    let (seen, written) = service.keys.change_key(request.caller, id, patch, expect).await?;
    Ok(Reply::ok("access key changed", &record(&seen).finish()).for_write(&written).no_store())
}

/// Attests a key.
pub(super) async fn attest(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    request.condition.for_named_revision()?;
    let revision = request.read(&service, attested_revision).await?;
    let id = key_id(&request.name)?;
    let (seen, written) = service.keys.attest_key(request.caller, id, revision).await?;
    let is_attested = seen.key.attestation.is_some();
    let message =
        if is_attested { "access key attested" } else { "one more person must attest the access key" };
    let reply = Reply::ok(message, &record(&seen).finish()).for_write_without_record(&written);
    // One that was attested before has the version of then.
    Ok(reply.record_version(seen.key.tag(), seen.key.modified_at).no_store())
}

/// Revokes a key.
pub(super) async fn revoke(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_change()?;
    let id = key_id(&request.name)?;
    let data = Object::new().unescaped("key_id", id.as_str()).finish();
    let written = service.keys.revoke_key(request.caller, id, expect).await?;
    Ok(Reply::ok("access key revoked", &data).for_write_without_record(&written).no_store())
}

/// Rotates a key: gives it another secret.
pub(super) async fn rotate(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let expect = request.condition.for_change()?;
    let grace_us = request.read(&service, grace).await?;
    let id = key_id(&request.name)?;
    let made = service.keys.rotate_key(request.caller, id, grace_us, expect).await?;
    Ok(made_reply(Reply::ok("access key rotated", &made_json(&made)), &made))
}

/// Disables the root key.
pub(super) async fn disable_root(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let written = service.keys.disable_root(request.caller).await?;
    let data = json!({ "root": "disabled" }).to_string();
    Ok(Reply::ok("root key disabled", &data).for_write_without_record(&written).no_store())
}

/// Shows the key or session that the request uses.
pub(super) async fn whoami(service: Service, request: ReadRequest) -> Reply {
    let principal = &request.principal;
    let data = match (service.keys.own_key(principal), principal.session()) {
        (_, Some(session)) => {
            let left = left_json(&service.quotas.quota_left(principal));
            Object::new()
                .value("key_id", &principal.id.as_str())
                .value("name", &principal.id.as_str())
                .value("grants", &grants_json(&session.key.grants))
                .time("expires_at", session.expires_at)
                .value("quota", &quota_json(&session.key.quota))
                .raw("root", "false")
                .value("quota_left", &left)
                .raw("session", &own_session_json(session))
                .finish()
        }
        (Some(seen), None) => {
            let left = left_json(&service.quotas.quota_left(principal));
            record(&seen).raw("root", "false").value("quota_left", &left).finish()
        }
        (None, None) => Object::new()
            .unescaped("key_id", &principal.id)
            .value("name", &"root key")
            .value("grants", &grants_json(&everything()))
            .raw("expires_at", "null")
            .value("quota", &quota_json(&Quota::default()))
            .raw("root", "true")
            .finish(),
    };
    Reply::ok("caller found", &data).no_store()
}

/// The grants of the root key.
fn everything() -> Grants {
    Grants(vec![Grant { verbs: Verbs::ALL, definitions: vec![Pattern::all()] }])
}

/// The id in a path. A text that is not an id names no key.
fn key_id(text: &str) -> Result<KeyId, Problem> {
    KeyId::parse(text).ok_or_else(|| concord_service::Refusal::from(Rejection::KeyNotFound).into())
}

fn made_json(made: &MadeKey) -> String {
    let record = record(&made.seen);
    match &made.text {
        Some(text) => record.unescaped("api_key", text.expose()),
        None => record,
    }
    .finish()
}

fn made_reply(reply: Reply, made: &MadeKey) -> Reply {
    let reply = reply.for_write(&made.written).no_store();
    if made.text.is_some() { reply } else { reply.warning(NO_TEXT) }
}

/// A key as it is shown: without its text and without any digest of it.
fn record(seen: &SeenKey) -> Object {
    shown(Object::new(), seen)
}

/// The members of a key as it is shown.
fn shown(object: Object, seen: &SeenKey) -> Object {
    let key = &seen.key;
    let time = |object: Object, name, at| match at {
        Some(at) => object.time(name, at),
        None => object.raw(name, "null"),
    };
    let rotating = key.secrets.iter().filter_map(|secret| secret.until).max();
    let object = object
        .unescaped("key_id", key.id.as_str())
        .value("name", &key.name)
        .value("grants", &grants_json(&key.grants));
    let object = time(object, "expires_at", key.expires_at)
        .time("created_at", key.created_at)
        .value("created_by", &key.created_by)
        .time("modified_at", key.modified_at);
    let object = time(object, "last_used_at", key.last_used_day.map(start_of_day));
    let object = time(object, "previous_until", rotating).value("quota", &quota_json(&key.quota));
    object
        .value("person", &person_json(seen, key.person))
        .value("attested", &key.attestation.is_some())
        .value("attested_by", &attesters_json(seen))
        .value("own_secret", &seen.has_own_secret)
        .value("revision", &key.revision)
}

/// A person: the label only if the client may see it.
fn person_json(seen: &SeenKey, id: Option<PersonId>) -> Value {
    let Some(id) = id else { return Value::Null };
    json!({ "person_id": id.to_string(), "label": seen.labels.get(&id).map(PersonLabel::as_str) })
}

/// Who has attested a key; or who has, if one more person must.
fn attesters_json(seen: &SeenKey) -> Value {
    let attester =
        |by: &Attester| json!({ "key_id": by.key.as_str(), "person": person_json(seen, Some(by.person)) });
    match seen.key.attestation.as_ref().map(|attestation| &attestation.by) {
        Some(AttestedBy::Root) => json!([{ "key_id": "root", "person": null }]),
        Some(AttestedBy::Persons(attesters)) => attesters.iter().map(attester).collect(),
        None => seen.key.half_attested.iter().map(|half| attester(&half.by)).collect(),
    }
}

pub(super) fn grants_json(grants: &Grants) -> Value {
    let grant = |grant: &Grant| {
        let verbs: Vec<_> = grant.verbs.iter().map(Verb::name).collect();
        let definitions: Vec<_> = grant.definitions.iter().map(Pattern::as_str).collect();
        json!({ "verbs": verbs, "definitions": definitions })
    };
    grants.0.iter().map(grant).collect()
}

/// What is left of a key's quota.
fn left_json(left: &QuotaLeft) -> Value {
    let QuotaLeft { requests, writes, bytes, records, watches, cursors, lists } = left;
    json!({
        "requests_per_second": requests,
        "writes_per_second": writes,
        "bytes": bytes,
        "records": records,
        "watches": watches,
        "cursors": cursors,
        "lists": lists,
    })
}

fn quota_json(quota: &Quota) -> Value {
    let Quota { requests_per_second, writes_per_second, bytes, records, watches, cursors, lists } = quota;
    json!({
        "requests_per_second": requests_per_second,
        "writes_per_second": writes_per_second,
        "bytes": bytes,
        "records": records,
        "watches": watches,
        "cursors": cursors,
        "lists": lists,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use concord_model::{
        access_key::{AccessKey, Attestation, HalfAttestation},
        testing::key,
        time::Timestamp,
    };

    #[test]
    fn a_key_is_shown_without_its_secret() {
        let mut key = key(1);
        key.last_used_day = Some(1);
        key.secrets[0].until = Some(Timestamp(2_000_000));
        let expected = r#"{"key_id":"000000000001","name":"key-99","grants":[{"verbs":["read"],"definitions":["*"]}],"expires_at":null,"created_at":"1970-01-01T00:00:00.000001Z","created_by":"root","modified_at":"1970-01-01T00:00:00.000001Z","last_used_at":"1970-01-02T00:00:00.000000Z","previous_until":"1970-01-01T00:00:02.000000Z","quota":{"requests_per_second":null,"writes_per_second":null,"bytes":null,"records":null,"watches":null,"cursors":null,"lists":null},"person":null,"attested":false,"attested_by":[],"own_secret":false,"revision":1}"#;
        assert_eq!(record(&seen(key, &[])).finish(), expected);
    }

    fn seen(key: AccessKey, labels: &[(u64, &str)]) -> SeenKey {
        let label = |(id, label): &(u64, &str)| (PersonId(*id), PersonLabel::parse(label).unwrap());
        SeenKey { key: Arc::new(key), labels: labels.iter().map(label).collect(), has_own_secret: false }
    }

    #[test]
    fn a_key_is_shown_with_its_person_and_with_who_has_attested_it() {
        let by = |id: &str, person| Attester { key: KeyId::parse(id).unwrap(), person: PersonId(person) };
        let mut key = key(1);
        key.person = Some(PersonId(5));
        key.half_attested = Some(HalfAttestation { at: 8, by: by("000000000002", 6) });
        let shown = |key: &AccessKey| {
            let record = record(&seen(key.clone(), &[(5, "ada"), (6, "bob")])).finish();
            let record: Value = serde_json::from_str(&record).unwrap();
            (record["person"].clone(), record["attested"].clone(), record["attested_by"].clone())
        };
        let ada = json!({ "person_id": "5", "label": "ada" });
        let bob = json!({ "key_id": "000000000002", "person": { "person_id": "6", "label": "bob" } });
        let unknown = json!({ "key_id": "000000000003", "person": { "person_id": "7", "label": null } });
        assert_eq!(shown(&key), (ada.clone(), json!(false), json!([bob])));
        key.half_attested = None;
        let both = AttestedBy::Persons([by("000000000002", 6), by("000000000003", 7)]);
        key.attestation = Some(Attestation { at: 9, by: both });
        assert_eq!(shown(&key), (ada.clone(), json!(true), json!([bob, unknown])));
        key.attestation = Some(Attestation { at: 9, by: AttestedBy::Root });
        assert_eq!(shown(&key), (ada, json!(true), json!([{ "key_id": "root", "person": null }])));
    }

    #[test]
    fn a_text_that_is_no_id_names_no_key() {
        for text in ["", "root", "a b", "0123456789abc"] {
            assert!(key_id(text).is_err(), "{text}");
        }
        assert!(key_id("0123456789ab").is_ok());
    }
}
