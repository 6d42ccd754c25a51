//! Many configs at once: `POST /api/v1/read`.
//!
//! Each config has a result with its keys and a `status`: `found` with the record and its revision, `not_modified` where
//! the caller has this version, `absent` and `forbidden` with the `errors` of a read of it alone. Who may read none of
//! them is refused as a whole.
//!
//! **Invariant:** all records of an answer are of one revision, which the answer names.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use super::{
    body::{Fields, not_an_object},
    configs::{self, members},
    decision::PartlyDenied,
    definitions,
    extract::{WriteRequest, names},
    json::Object,
    reply::{Problem, Reply, refusal_items},
};
use concord_model::{
    error::{Invalid, LocSegment, Violation},
    key::Key,
    limits::{READ_CONFIGS_MAX, READ_PAST_CONFIGS_MAX},
    record::{Config, Revision},
};
use concord_service::{
    Refusal, Service,
    read::bulk::{BulkRead, BulkRequest, ConfigName, ReadResult},
};

const CONFIGS: &str = "configs";

/// What a body asks for.
#[derive(Debug, PartialEq)]
struct Wanted {
    asked: Vec<ConfigName>,
    /// The versions that the caller has, as entity tags.
    known: Vec<Option<String>>,
    revision: Option<Revision>,
}

/// One result, before it is rendered.
struct Item {
    asked: ConfigName,
    known: Option<String>,
    result: ReadResult,
}

/// Reads the configs.
pub(super) async fn run(service: Service, request: WriteRequest) -> Result<Response, Problem> {
    let request = request.refuse_dry_run()?;
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    let Wanted { asked, known, revision } = request.read(&service, parse).await?;
    let principal = &request.caller.principal;
    let bulk = BulkRequest { configs: asked.clone(), at: revision };
    let made = service.reads.read_bulk(principal, consistency, bulk).await?;
    let BulkRead { results, redacted, revision, state_revision, reservation, may_compress } = made;
    let is_denied = |result: &ReadResult| matches!(result, ReadResult::Refused(Refusal::Forbidden { .. }));
    let is_partly_denied = results.iter().any(is_denied);
    let items: Vec<Item> = asked
        .into_iter()
        .zip(known)
        .zip(results)
        .map(|((asked, known), result)| Item { asked, known, result })
        .collect();
    let before = format!("\"revision\":{revision},");
    let reply = Reply::results("configs read", (items, reservation), (&before, "]}}"), size, render)
        .redacted(Some(&redacted))
        .state_revision(state_revision)
        .compressed_for(&request.headers, || may_compress);
    let mut response = reply.into_response();
    if is_partly_denied {
        response.extensions_mut().insert(PartlyDenied);
    }
    Ok(response)
}

fn size(item: &Item) -> usize {
    match &item.result {
        ReadResult::Found(config) => config.data.len(),
        ReadResult::Refused(_) => 0,
    }
}

/// The members of a result.
fn render(object: Object, item: &Item) -> Object {
    let object =
        object.unescaped(definitions::KEY, &item.asked.definition).unescaped(configs::KEY, &item.asked.key);
    match &item.result {
        ReadResult::Found(config) if is_known(item.known.as_deref(), config) => {
            object.unescaped("status", "not_modified").value("revision", &config.revision)
        }
        ReadResult::Found(config) => object
            .unescaped("status", "found")
            .value("revision", &config.revision)
            .object("config", |object| members(object, config)),
        ReadResult::Refused(refusal) => {
            let is_forbidden = matches!(refusal, Refusal::Forbidden { .. });
            let status = if is_forbidden { "forbidden" } else { "absent" };
            object.unescaped("status", status).value("errors", &refusal_items(refusal.clone()))
        }
    }
}

fn is_known(known: Option<&str>, config: &Arc<Config>) -> bool {
    known.is_some_and(|tags| names(tags.as_bytes(), config.revision))
}

/// What the body says.
fn parse(body: Value) -> Result<Wanted, Problem> {
    let mut fields = Fields::from_json(body)?;
    let (mut wanted, mut violations) =
        (Wanted { asked: Vec::new(), known: Vec::new(), revision: None }, Vec::new());
    let items = fields.list(CONFIGS);
    let revision = if fields.has("revision") && !fields.is_null("revision") {
        Some(fields.integer("revision"))
    } else {
        None
    };
    wanted.revision = revision;
    let most = if revision.is_some() { READ_PAST_CONFIGS_MAX } else { READ_CONFIGS_MAX };
    if items.len() > most {
        let of = if revision.is_some() { " of a revision" } else { "" };
        let msg = format!("a request reads at most {most} configs{of}");
        return Err(Problem::violation(Violation::at(vec!["body".into(), CONFIGS.into()], msg)));
    }
    for (index, (loc, item)) in (0..).zip(items) {
        let Value::Object(object) = item else {
            fields.note(not_an_object(loc));
            continue;
        };
        let mut item = Fields { object, loc, errors: std::mem::take(&mut fields.errors) };
        let asked = ConfigName { definition: item.string(definitions::KEY), key: item.string(configs::KEY) };
        let has_known = item.has("if_none_match") && !item.is_null("if_none_match");
        wanted.known.push(has_known.then(|| item.string("if_none_match")));
        fields.errors = item.errors;
        for (name, text) in [(definitions::KEY, &asked.definition), (configs::KEY, &asked.key)] {
            if let Err(error) = Key::parse(text) {
                let loc = vec!["body".into(), CONFIGS.into(), LocSegment::Index(index), name.into()];
                violations.push(Violation::at(loc, error.to_string()));
            }
        }
        wanted.asked.push(asked);
    }
    let wanted = fields.finish(wanted)?;
    if violations.is_empty() {
        Ok(wanted)
    } else {
        Err(Refusal::Invalid(Invalid::Violations(violations)).into())
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
            |definition: &str, key: &str| ConfigName { definition: definition.into(), key: key.into() };
        assert_eq!(wanted.asked, [asked("d", "k"), asked("e", "l")]);
        assert_eq!(wanted.known, [Some("\"7\"".to_owned()), None]);
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
