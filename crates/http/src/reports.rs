//! What readers and gates say, and which readers a config has.
//!
//! **Invariant:** a change request that the client may neither read nor report of is answered as one that does not exist.

use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use utoipa::openapi::{ObjectBuilder, Type, schema::SchemaType};

use super::{
    body::fields::{self, BodyFields, FieldType},
    change_requests::unconditional,
    decision::News,
    definitions,
    extract::{BodyRequest, ReadRequest, check_key},
    json::Object,
    openapi::schemas::{boolean, integer, text},
    reply::{Problem, Reply},
};
use concord_model::{
    error::LocSegment,
    limits::{
        INSTANCE_BYTES_MAX, LABEL_BYTES_MAX, READER_BYTES_MAX, READER_LABELS_BYTES_MAX, REPORT_TEXT_BYTES_MAX,
    },
    record::Revision,
    time::Timestamp,
};
use concord_service::{
    ConfigName, ConfigReader, ConfigReaders, GateWord, ReaderReport, ReaderState, ReportAbout, Reported,
    Service,
};

/// How a reader runs: the names in a body.
pub(super) const STATES: [&str; 2] = ["healthy", "failed"];
/// The state of a reader that has not reported lately.
pub(super) const UNKNOWN: &str = "unknown";

const WORDS: FieldType<String> =
    FieldType { read: fields::string, schema: |_| text().max_length(Some(REPORT_TEXT_BYTES_MAX)).into() };

/// The labels of a reader as its header has them, or as an object.
const LABELS: FieldType<String> = FieldType {
    read: |value, fields| {
        if let Value::Object(labels) = value {
            return Some(joined(labels, fields));
        }
        fields::string(value, fields)
    },
    schema: |_| {
        // One schema of two types: generated clients in Java can't make a choice of which one part is a map.
        ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::String, Type::Object]))
            .max_length(Some(READER_LABELS_BYTES_MAX))
            .additional_properties(Some(text().min_length(Some(1))))
            .description(Some("`ring=canary,region=eu`, or an object"))
            .into()
    },
};

/// Labels as the header of a reader has them. A label that it can't have would be another one there.
fn joined(labels: Map<String, Value>, fields: &mut BodyFields) -> String {
    let mut parts = Vec::with_capacity(labels.len());
    for (name, value) in labels {
        let is_name = !name.is_empty() && !name.contains([',', '=']) && name.trim() == name;
        let value = value.as_str().filter(|value| !value.contains(',') && value.trim() == *value);
        match value.filter(|value| is_name && !value.is_empty()) {
            Some(value) => parts.push(format!("{name}={value}")),
            None => {
                let name: String = name.chars().take(LABEL_BYTES_MAX).collect();
                let msg = "expected a text without a comma and without spaces around it; its name has no `=` either";
                fields.violation(&[LocSegment::Name(name)], msg);
            }
        }
    }
    parts.join(",")
}

/// The body of a reader's report about a rollout. The change request is in the path.
pub(super) fn report(fields: &mut BodyFields) -> ReaderReport {
    said(fields, ReportAbout::Rollout(String::new()))
}

/// The body of a reader's report about a config. The keys are in the path.
pub(super) fn config_report(fields: &mut BodyFields) -> ReaderReport {
    const REVISION: FieldType<Revision> = FieldType {
        read: fields::integer,
        schema: |_| integer(0).description(Some("the revision of the config that the reader has")).into(),
    };
    let revision = fields.required("revision", &REVISION);
    said(fields, ReportAbout::Config { definition: String::new(), key: String::new(), revision })
}

fn said(fields: &mut BodyFields, about: ReportAbout) -> ReaderReport {
    const READER: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| text().min_length(Some(1)).max_length(Some(READER_BYTES_MAX)).into(),
    };
    const INSTANCE: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| {
            let about =
                "which of the programs with this name: a random text that the program makes when it starts";
            let text = text().min_length(Some(1)).max_length(Some(INSTANCE_BYTES_MAX));
            text.description(Some(about)).into()
        },
    };
    const STATE: FieldType<Option<ReaderState>> = FieldType {
        read: |value, fields| match fields::string(value, fields)?.as_str() {
            "healthy" => Some(Some(ReaderState::Healthy)),
            "failed" => Some(Some(ReaderState::Failed)),
            _ => {
                fields.violation(&[], format!("expected one of `{}`", STATES.join("`, `")));
                None
            }
        },
        schema: |_| text().enum_values(Some(STATES)).into(),
    };
    ReaderReport {
        about,
        reader: fields.required("reader", &READER),
        labels: fields.optional("labels", &LABELS).unwrap_or_default(),
        instance: fields.optional("instance", &INSTANCE),
        state: fields.required("state", &STATE).unwrap_or(ReaderState::Failed),
        detail: fields.optional("detail", &WORDS).unwrap_or_default(),
    }
}

/// The body of what a monitor says. The gate is in the path.
pub(super) fn word(fields: &mut BodyFields) -> GateWord {
    const OK: FieldType<bool> = FieldType { read: fields::boolean, schema: |_| boolean().into() };
    GateWord {
        gate: String::new(),
        is_ok: fields.required("ok", &OK),
        evidence: fields.optional("evidence", &WORDS).unwrap_or_default(),
    }
}

/// Takes the report of a reader about a rollout.
pub(super) async fn take_report(service: Service, request: BodyRequest) -> Result<Response, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let about = ReportAbout::Rollout(request.name.clone());
    let report = ReaderReport { about, ..request.read(&service, report).await? };
    let reported = service.reports.report(&request.caller.principal, report).await?;
    Ok(answered("report taken", reported))
}

/// Takes the report of a reader about a config.
pub(super) async fn take_config_report(service: Service, request: BodyRequest) -> Result<Response, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let (definition, key) = (request.keys.definition.clone(), request.keys.config.clone());
    check_key(&definition, definitions::KEY)?;
    let mut report = request.read(&service, config_report).await?;
    if let ReportAbout::Config { revision, .. } = report.about {
        report.about = ReportAbout::Config { definition, key, revision };
    }
    let reported = service.reports.report(&request.caller.principal, report).await?;
    Ok(answered("report taken", reported))
}

/// Lists the readers of a config.
pub(super) async fn readers(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let (definition, config) = (&request.definition(), &request.config());
    check_key(definition, definitions::KEY)?;
    let name = ConfigName { definition, key: config };
    let found = Box::pin(service.reports.readers(&request.principal, name, consistency)).await?;
    let revision = found.revision;
    // Some milliseconds for thousands of readers.
    let data = service.cx.run_long(move || listed(&found)).await?;
    Ok(Reply::ok("readers found", &data).state_revision(revision))
}

fn listed(found: &ConfigReaders) -> String {
    let readers: Vec<String> = found.readers.iter().map(row).collect();
    let (healthy, failed) = found.counts.unzip();
    let meta = Object::new()
        .value("healthy", &healthy)
        .value("failed", &failed)
        .object("watches", |watches| {
            watches.value("identified", &found.identified).value("unidentified", &found.unidentified)
        })
        .value("truncated", &found.is_truncated)
        .value("missing_nodes", &found.missing_nodes)
        .finish();
    Object::new().raw("results", &format!("[{}]", readers.join(","))).raw("meta", &meta).finish()
}

/// A reader as JSON.
fn row(reader: &ConfigReader) -> String {
    let labels: Map<String, Value> =
        reader.labels.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let said = reader.said.as_ref();
    let state = match said.map(|said| said.state) {
        Some(ReaderState::Healthy) => STATES[0],
        Some(ReaderState::Failed) => STATES[1],
        None => UNKNOWN,
    };
    let time = |time: Timestamp| time.to_string();
    Object::new()
        .value("reader", &reader.reader)
        .value("labels", &labels)
        .value("node_id", &reader.node)
        .value("since", &reader.since.map(time))
        .value("revision", &reader.revision)
        .value("variant", &reader.variant.as_ref().map(|change| json!({ "change_id": change })))
        .unescaped("state", state)
        .value("detail", &said.and_then(|said| said.detail.as_deref()))
        .value("reported_revision", &said.and_then(|said| said.revision))
        .value("reported_at", &said.map(|said| time(said.at)))
        .finish()
}

/// Takes what a monitor says of a gate.
pub(super) async fn take_word(service: Service, request: BodyRequest) -> Result<Response, Problem> {
    let request = request.refuse_dry_run()?;
    unconditional(request.condition)?;
    let word = GateWord { gate: request.name.clone(), ..request.read(&service, word).await? };
    let reported = service.reports.say(&request.caller.principal, word).await?;
    Ok(answered("gate heard", reported))
}

fn answered(message: &'static str, reported: Reported) -> Response {
    let data = Object::new().value("counted", &reported.is_counted).finish();
    let mut response = Reply::ok(message, &data).into_response();
    if reported.is_news {
        response.extensions_mut().insert(News);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_a_text_or_an_object() {
        let read = |labels: Value| {
            let body = json!({ "reader": "a", "state": "healthy", "labels": labels });
            BodyFields::read(body, report).map(|report| report.labels)
        };
        assert_eq!(read(json!("ring=canary, region=eu")).unwrap(), "ring=canary, region=eu");
        assert_eq!(read(json!({ "region": "eu", "ring": "canary" })).unwrap(), "region=eu,ring=canary");
        assert_eq!(read(json!({})).unwrap(), "");
        for wrong in [
            json!(5),
            json!(["a=b"]),
            json!({ "a": 5 }),
            json!({ "a": "" }),
            json!({ "a": "b,c=d" }),
            json!({ "a": " b" }),
            json!({ "a=b": "c" }),
            json!({ "": "c" }),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_report_and_a_word_have_what_they_need() {
        let report = |body| BodyFields::read(body, report);
        let read = report(json!({ "reader": "a", "state": "failed", "detail": "no start" })).unwrap();
        assert_eq!((read.state, &*read.detail), (ReaderState::Failed, "no start"));
        for wrong in [
            json!({ "state": "failed" }),
            json!({ "reader": "a" }),
            json!({ "reader": "a", "state": "dead" }),
            json!({ "reader": "a", "state": "failed", "details": "" }),
        ] {
            assert!(report(wrong.clone()).is_err(), "{wrong}");
        }
        assert_eq!(read.instance, None);
        let read = report(json!({ "reader": "a", "state": "failed", "instance": "i" })).unwrap();
        assert_eq!(read.instance.as_deref(), Some("i"));
        let of_config = |body| BodyFields::read(body, config_report);
        let read = of_config(json!({ "reader": "a", "state": "failed", "revision": 7 })).unwrap();
        assert!(matches!(read.about, ReportAbout::Config { revision: 7, .. }));
        assert!(of_config(json!({ "reader": "a", "state": "failed" })).is_err(), "it needs a revision");
        let word = |body| BodyFields::read(body, word);
        assert!(!word(json!({ "ok": false })).unwrap().is_ok);
        assert!(word(json!({ "ok": "yes" })).is_err() && word(json!({})).is_err());
    }
}
