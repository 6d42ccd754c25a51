//! Many configs at once: `POST /api/v1/read`.
//!
//! Each config has a result with its keys and a `status`: `found` with the record and its revision, `not_modified`
//! where the client has this version, `absent` and `forbidden` with the `errors` of a read of it alone. Who may read
//! none of them is rejected as a whole.
//!
//! **Invariant:** all records of a response are of one revision, which the response names.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use utoipa::openapi::Schema;

use super::{
    body::fields::{self, BodyFields, FieldType, KEY, array, schema_of},
    configs::{self, members},
    decision::PartlyDenied,
    definitions,
    entity_tags::names,
    extract::BodyRequest,
    json::Object,
    openapi::schemas::{integer, text},
    reader::{reader_of, with_variant},
    reply::{Problem, Rendering, Reply, ResultsFrame, refusal_items},
};
use concord_model::{
    key::Key,
    limits::{READ_CONFIGS_MAX, READ_PAST_CONFIGS_MAX},
    record::{Config, Revision},
};
use concord_service::{
    Refusal, Service, Variant,
    read::bulk::{BulkConfig, BulkRead, BulkRequest, ReadResult},
};

const CONFIGS: &str = "configs";

/// The body of a bulk read.
#[derive(Debug)]
pub(super) struct BulkReadBody {
    configs: Vec<WantedConfig>,
    revision: Option<Revision>,
}

impl BulkReadBody {
    pub(super) fn read(fields: &mut BodyFields) -> Self {
        const REVISION: FieldType<Revision> = FieldType {
            read: fields::integer,
            schema: |_| {
                let about =
                    format!("the configs as of this revision; at most {READ_PAST_CONFIGS_MAX} of them");
                integer(0).description(Some(about)).into()
            },
        };
        const LISTED: FieldType<Vec<WantedConfig>> = FieldType {
            read: |value, fields| fields.list(value, |item, fields| fields.object(item, wanted_config)),
            schema: |limits| array(Schema::from(schema_of(limits, wanted_config)), READ_CONFIGS_MAX).into(),
        };
        let configs = fields.required(CONFIGS, &LISTED);
        let revision = fields.nullable("revision", &REVISION);
        let most = if revision.is_some() { READ_PAST_CONFIGS_MAX } else { READ_CONFIGS_MAX };
        if configs.len() > most {
            let of = if revision.is_some() { " of a revision" } else { "" };
            fields.violation_in(CONFIGS, format!("a request reads at most {most} configs{of}"));
        }
        Self { configs, revision }
    }
}

/// One config of a bulk read.
#[derive(Debug)]
struct WantedConfig {
    asked: BulkConfig,
    /// The versions that the client has, as entity tags.
    known: Option<String>,
}

/// One result, before it is rendered.
struct BulkReadResult {
    wanted: WantedConfig,
    result: ReadResult,
    /// The change request whose candidate it is.
    variant: Option<Variant>,
}

/// Reads the configs.
pub(super) async fn run(service: Service, request: BodyRequest) -> Result<Response, Problem> {
    let request = request.refuse_dry_run()?;
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let reader = reader_of(&request.headers)?;
    let BulkReadBody { configs, revision } = request.read_value(&service, parse).await?;
    let principal = &request.caller.principal;
    let names = configs.iter().map(|wanted| wanted.asked.clone()).collect();
    let is_identified = reader.is_some();
    let bulk = BulkRequest { configs: names, at: revision, reader };
    let made = service.reads.read_bulk(principal, consistency, bulk).await?;
    let BulkRead { results, mut variants, redacted, revision, state_revision, reservation, may_compress } =
        made;
    let is_denied = |result: &ReadResult| matches!(result, ReadResult::Refused(Refusal::Forbidden { .. }));
    let is_partly_denied = results.iter().any(is_denied);
    let items = configs.into_iter().zip(results).enumerate();
    let item =
        |(place, (wanted, result))| BulkReadResult { wanted, result, variant: variants.remove(&place) };
    let items: Vec<_> = items.map(item).collect();
    let before = format!("\"revision\":{revision},");
    let frame = ResultsFrame { before: &before, tail: "]}}" };
    let reply = Reply::results("configs read", items, reservation, frame, Rendering { size, render })
        .redacted(Some(&redacted))
        .state_revision(state_revision)
        .seen_by(is_identified)
        .compressed_for(&request.headers, || may_compress);
    let mut response = reply.into_response();
    if is_partly_denied {
        response.extensions_mut().insert(PartlyDenied);
    }
    Ok(response)
}

fn size(item: &BulkReadResult) -> usize {
    match &item.result {
        ReadResult::Found(config) => config.data.len(),
        ReadResult::Refused(_) => 0,
    }
}

/// The members of a result.
fn render(object: Object, item: &BulkReadResult) -> Object {
    let WantedConfig { asked, known } = &item.wanted;
    let variant = item.variant.as_ref();
    let object = object.unescaped(definitions::KEY, &asked.definition).unescaped(configs::KEY, &asked.key);
    match &item.result {
        ReadResult::Found(config) if is_known(known.as_deref(), config, variant) => {
            let object = object.unescaped("status", "not_modified").value("revision", &config.revision);
            with_variant(object, variant.map(|variant| &variant.change))
        }
        ReadResult::Found(config) => {
            let object = object.unescaped("status", "found").value("revision", &config.revision);
            with_variant(object, variant.map(|variant| &variant.change))
                .object("config", |object| members(object, config))
        }
        ReadResult::Refused(refusal) => {
            let is_forbidden = matches!(refusal, Refusal::Forbidden { .. });
            let status = if is_forbidden { "forbidden" } else { "absent" };
            object.unescaped("status", status).value("errors", &refusal_items(refusal.clone()))
        }
    }
}

fn is_known(known: Option<&str>, config: &Arc<Config>, variant: Option<&Variant>) -> bool {
    known.is_some_and(|tags| match variant {
        None => names(tags.as_bytes(), itoa::Buffer::new().format(config.revision)),
        Some(variant) => names(tags.as_bytes(), &variant.tag()),
    })
}

/// Reads the body.
fn parse(body: Value) -> Result<BulkReadBody, Problem> {
    BodyFields::read_value("body", body, |body, fields| fields.object(body, BulkReadBody::read))
}

/// Reads one config of the body.
fn wanted_config(fields: &mut BodyFields) -> WantedConfig {
    const VALID_KEY: FieldType<String> = FieldType {
        read: |value, fields| {
            let key = fields::string(value, fields)?;
            if let Err(error) = Key::parse(&key) {
                fields.violation(&[], error.to_string());
            }
            Some(key)
        },
        schema: KEY.schema,
    };
    const TAGS: FieldType<String> = FieldType {
        read: fields::string,
        schema: |_| {
            let about = "entity tags of versions that the client has, as in `If-None-Match`";
            text().description(Some(about)).into()
        },
    };
    WantedConfig {
        asked: BulkConfig {
            definition: fields.required(definitions::KEY, &VALID_KEY),
            key: fields.required(configs::KEY, &VALID_KEY),
        },
        known: fields.nullable("if_none_match", &TAGS),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_names_configs_and_what_the_caller_has() {
        let one = json!({"config_definition_key": "d", "config_key": "k", "if_none_match": "\"7\""});
        let two = json!({"config_definition_key": "e", "config_key": "l", "if_none_match": null});
        let wanted = parse(json!({"configs": [one, two], "revision": 9})).unwrap();
        let asked =
            |definition: &str, key: &str| BulkConfig { definition: definition.into(), key: key.into() };
        let known: Vec<_> = wanted.configs.iter().map(|wanted| wanted.known.as_deref()).collect();
        assert_eq!(known, [Some("\"7\""), None]);
        let keys: Vec<_> = wanted.configs.into_iter().map(|wanted| wanted.asked).collect();
        assert_eq!(keys, [asked("d", "k"), asked("e", "l")]);
        assert_eq!(wanted.revision, Some(9));
        for wrong in [
            json!([]),
            json!({}),
            json!({"configs": [1]}),
            json!({"configs": [{}]}),
            json!({"configs": [], "revision": "x"}),
        ] {
            assert!(matches!(parse(wrong.clone()), Err(Problem::Shape(_))), "{wrong}");
        }
        let key = json!({"config_definition_key": "d", "config_key": "a/b"});
        assert!(matches!(parse(json!({"configs": [key]})), Err(Problem::Refused(..))));
        let many = |number: usize| vec![one.clone(); number];
        assert!(parse(json!({"configs": many(READ_CONFIGS_MAX)})).is_ok());
        assert!(parse(json!({"configs": many(READ_CONFIGS_MAX + 1)})).is_err());
        assert!(parse(json!({"configs": many(READ_PAST_CONFIGS_MAX + 1), "revision": 1})).is_err());
    }
}
