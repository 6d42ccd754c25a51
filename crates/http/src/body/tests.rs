//! The errors of shape of each body, its media types and its limit.

use serde_json::json;

use super::{
    fields::{BodyFields, schema_of},
    *,
};
use crate::{
    cluster::members,
    configs::{ConfigCreation, ConfigData},
    definitions::{DefinitionBody, IndexesBody},
};
use concord_model::limits::Limits;
use concord_service::memory_budget::{MemoryBudget, Share};

/// Reads the members of a body.
fn parse<T>(read: fn(&mut BodyFields) -> T, body: Value) -> Result<T, Problem> {
    BodyFields::read(body, read)
}

/// The locations and types of the errors in the shape of a body.
fn shape_errors<T: std::fmt::Debug>(made: Result<T, Problem>) -> Vec<(String, &'static str)> {
    let Err(Problem::Shape(details)) = made else { panic!("{made:?} is not a refusal of a shape") };
    let name = |step: &LocSegment| match step {
        LocSegment::Name(name) => name.clone(),
        LocSegment::Index(place) => place.to_string(),
    };
    let place = |loc: &[LocSegment]| loc.iter().map(name).collect::<Vec<_>>().join("/");
    details.iter().map(|detail| (place(&detail.loc), detail.kind)).collect()
}

fn at(place: &str, kind: &'static str) -> (String, &'static str) {
    (place.to_owned(), kind)
}

#[test]
fn all_wrong_fields_of_a_definition_are_listed_and_not_only_the_first() {
    let body = json!({"config_definition_key": 1, "indexes": ["a", 1, null], "json_schema": []});
    let expected = [
        at("body/config_definition_key", "string_type"),
        at("body/indexes/1", "string_type"),
        at("body/indexes/2", "string_type"),
        at("body/json_schema", "dict_type"),
    ];
    assert_eq!(shape_errors(parse(DefinitionBody::read, body)), expected);
    assert_eq!(
        shape_errors(parse(DefinitionBody::read, json!({"indexes": null}))),
        [at("body/config_definition_key", "missing"), at("body/indexes", "list_type")]
    );
}

#[test]
fn a_definition_needs_only_its_key() {
    for body in [
        json!({"config_definition_key": "d"}),
        json!({"config_definition_key": "d", "json_schema": null, "more": 1}),
    ] {
        let (made, _) = BodyFields::read_leniently(body, DefinitionBody::read).unwrap();
        assert_eq!(
            made,
            DefinitionBody { key: "d".into(), indexes: Vec::new(), schema: None, format_assertion: None }
        );
    }
}

#[test]
fn an_unknown_member_is_an_error_unless_the_body_may_have_it() {
    let body = || json!({"config_definition_key": "d", "idexes": ["a"], "more": 1});
    assert_eq!(
        shape_errors(parse(DefinitionBody::read, body())),
        [at("body/idexes", "extra_forbidden"), at("body/more", "extra_forbidden")]
    );
    let (_, ignored) = BodyFields::read_leniently(body(), DefinitionBody::read).unwrap();
    assert_eq!(ignored, ["idexes", "more"]);
    let member = json!({"members": [{"id": 1, "api_addr": "a:1", "peer_addr": "a:2", "wight": 1}]});
    assert_eq!(shape_errors(parse(members, member)), [at("body/members/0/wight", "extra_forbidden")]);
}

#[test]
fn an_update_of_indexes_that_names_none_is_refused() {
    assert_eq!(shape_errors(parse(IndexesBody::read, json!({}))), [at("body/indexes", "missing")]);
    assert_eq!(
        shape_errors(parse(IndexesBody::read, json!({"indexes": null}))),
        [at("body/indexes", "list_type")]
    );
    let made = parse(IndexesBody::read, json!({"indexes": ["a"], "json_schema": {}})).unwrap();
    assert_eq!(made, IndexesBody { indexes: vec!["a".into()], has_schema: true });
}

#[test]
fn a_config_needs_a_key_and_an_object() {
    let both = [at("body/config_key", "missing"), at("body/data", "missing")];
    assert_eq!(shape_errors(parse(ConfigCreation::read, json!({}))), both);
    for data in [json!(null), json!([]), json!("x"), json!(1)] {
        let body = json!({"config_key": "k", "data": data});
        assert_eq!(shape_errors(parse(ConfigCreation::read, body.clone())), [at("body/data", "dict_type")]);
        let changed = json!({"data": body["data"]});
        assert_eq!(shape_errors(parse(ConfigData::read, changed)), [at("body/data", "dict_type")]);
    }
}

#[test]
fn the_schema_of_a_body_has_the_members_that_are_read() {
    let schema = serde_json::to_value(schema_of(&Limits::default(), DefinitionBody::read).build()).unwrap();
    assert_eq!(schema["required"], json!(["config_definition_key"]));
    let type_of = |name: &str| schema["properties"][name]["type"].clone();
    assert_eq!(schema["properties"].as_object().unwrap().len(), 4);
    assert_eq!(type_of("indexes"), "array", "null is rejected");
    assert_eq!(type_of("json_schema"), json!(["object", "null"]), "null is read");
    assert_eq!(type_of("format_assertion"), json!(["boolean", "null"]));
    let schema = serde_json::to_value(schema_of(&Limits::default(), IndexesBody::read).build()).unwrap();
    assert_eq!(
        schema["properties"].as_object().unwrap().len(),
        1,
        "a member that is ignored is not documented"
    );
}

#[test]
fn a_body_that_is_not_an_object_is_refused_as_a_whole() {
    for body in [json!(null), json!([]), json!("x"), json!(1), json!(true)] {
        assert_eq!(shape_errors(parse(ConfigCreation::read, body)), [at("body", "model_attributes_type")]);
    }
    assert_eq!(shape_errors(json(b"", 64)), [at("body", "missing")]);
}

#[test]
fn every_member_of_a_cluster_is_checked() {
    let good = json!({"id": 1, "api_addr": "a:1", "peer_addr": "a:2"});
    assert_eq!(parse(members, json!({"members": [good]})).unwrap()[0].id, 1);
    let body = json!({"members": [{"id": -1, "api_addr": 2}, "x"]});
    let expected = [
        at("body/members/0/id", "int_type"),
        at("body/members/0/api_addr", "string_type"),
        at("body/members/0/peer_addr", "missing"),
        at("body/members/1", "model_attributes_type"),
    ];
    assert_eq!(shape_errors(parse(members, body)), expected);
}

#[test]
fn only_json_media_types_or_none_are_accepted() {
    let check = |value: &str| {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]);
        check_type(&headers)
    };
    for good in ["", "application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
        assert!(check(good).is_ok(), "{good}");
    }
    assert!(check_type(&HeaderMap::new()).is_ok());
    for bad in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"] {
        assert_eq!(shape_errors(check(bad)), [at("body", "model_attributes_type")], "{bad}");
    }
}

#[test]
fn only_the_two_media_types_are_patches() {
    let format_of =
        |value: &str| patch_format(&HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]));
    assert_eq!(format_of("application/merge-patch+json"), Some(PatchFormat::Merge));
    assert_eq!(format_of("Application/JSON-Patch+json; charset=utf-8"), Some(PatchFormat::Json));
    for other in ["", "application/json", "application/patch+json", "text/plain"] {
        assert_eq!(format_of(other), None, "{other}");
    }
    assert_eq!(patch_format(&HeaderMap::new()), None);
}

fn reservation(bytes: u64) -> Reservation {
    MemoryBudget::new(bytes).begin(Share::Callers)
}

fn in_parts(parts: [&'static str; 2]) -> Body {
    let parts = parts.map(|part| Ok::<_, std::convert::Infallible>(Bytes::from(part)));
    Body::from_stream(futures::stream::iter(parts))
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_or_without_a_declared_length() {
    let is_too_large = |made: Result<Bytes, Problem>| {
        matches!(made, Err(Problem::Refused(Refusal::Invalid(Invalid::TooLarge(_)), None)))
    };
    let declared = HeaderMap::from_iter([(header::CONTENT_LENGTH, "6".parse().unwrap())]);
    let held = &mut reservation(1 << 30);
    assert!(is_too_large(receive(&declared, Body::empty(), 5, held).await));
    let stream = || in_parts(["abc", "def"]);
    assert!(is_too_large(receive(&HeaderMap::new(), stream(), 5, held).await));
    assert_eq!(receive(&HeaderMap::new(), stream(), 6, held).await.unwrap(), "abcdef");
    assert_eq!(receive(&declared, stream(), 6, held).await.unwrap(), "abcdef");
    assert_eq!(receive(&declared, Body::from("abcdef"), 6, held).await.unwrap(), "abcdef");
}

#[tokio::test]
async fn a_body_holds_what_has_arrived_and_is_refused_beyond_the_budget() {
    let declared = HeaderMap::from_iter([(header::CONTENT_LENGTH, "1000000".parse().unwrap())]);
    let mut held = reservation(1 << 30);
    let received = receive(&declared, in_parts(["abc", "def"]), 1_000_000, &mut held).await.unwrap();
    assert_eq!((received.len() as u64 * BODY_COPIES, held.bytes()), (18, 18));
    let budget = MemoryBudget::new(800);
    let _another = budget.reserve(Share::Callers, 290).unwrap();
    let mut held = budget.begin(Share::Callers);
    let refused = receive(&HeaderMap::new(), in_parts(["abc", "defg"]), 100, &mut held).await;
    assert!(matches!(refused, Err(Problem::Refused(Refusal::LimitReached(_), None))), "{refused:?}");
    assert_eq!(held.bytes(), 9, "the first part did fit");
}

#[test]
fn a_body_that_comes_slowly_is_given_up_only_where_others_need_the_memory() {
    let budget = MemoryBudget::new(8 << 20);
    let held = budget.begin(Share::Callers);
    let is_kept = |seconds: u64, received: usize| {
        let begin = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        check_pace(begin, received, &held).is_ok()
    };
    assert!(is_kept(100, 3), "nobody else needs it");
    let _others = budget.reserve(Share::Callers, 2 << 20).unwrap();
    assert!(!is_kept(100, 3) && !is_kept(7, 1 << 20));
    assert!(is_kept(1, 3) && is_kept(7, 4 << 20));
}

#[test]
fn no_text_has_more_values_than_are_counted() {
    fn values(value: &Value) -> u64 {
        1 + match value {
            Value::Array(items) => items.iter().map(values).sum(),
            Value::Object(members) => members.values().map(values).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0_u64,
        }
    }
    for text in ["1", "[]", "[1]", "[[],[],{}]", r#"{"a":1,"b":[1,2,{"c":[[[]]]}]}"#, r#""a,b""#] {
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(parsed_bytes(text.as_bytes()) >= values(&value) * PARSED_VALUE_BYTES, "{text}");
    }
}

#[tokio::test]
async fn a_long_body_is_read_on_a_thread_for_long_work() {
    let directory = tempfile::tempdir().unwrap();
    let service = concord_service::testing::service(directory.path(), Limits::default());
    for (length, expected) in [(10, false), (INLINE_PARSE_BYTES_MAX, true)] {
        let body = format!(r#"{{"data":{{"x":"{}"}}}}"#, "x".repeat(length));
        let received = Received::new(body.into(), service.cx.reservation(Share::Callers)).unwrap();
        let read = |value: Value| {
            let ConfigData(document) = parse(ConfigData::read, value)?;
            Ok((document.text.len(), std::thread::current().name() == Some("concord-cpu")))
        };
        assert_eq!(received.read(&service, read).await.unwrap(), (length + 8, expected));
        let wrong = received.read(&service, |body| parse(ConfigCreation::read, body)).await;
        assert_eq!(shape_errors(wrong)[0], at("body/config_key", "missing"));
    }
}
