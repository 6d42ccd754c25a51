//! The errors of shape of each body, its media types and its limit.

use super::*;
use serde_json::json;

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
    assert_eq!(shape_errors(NewDefinition::from_json(body)), expected);
    assert_eq!(
        shape_errors(NewDefinition::from_json(json!({"indexes": null}))),
        [at("body/config_definition_key", "missing"), at("body/indexes", "list_type")]
    );
}

#[test]
fn a_definition_needs_only_its_key() {
    for body in [
        json!({"config_definition_key": "d"}),
        json!({"config_definition_key": "d", "json_schema": null, "more": 1}),
    ] {
        let made = NewDefinition::from_json(body).unwrap();
        assert_eq!(made, NewDefinition { key: "d".into(), indexes: Vec::new(), schema: None });
    }
}

#[test]
fn an_update_of_indexes_that_names_none_is_refused() {
    assert_eq!(shape_errors(NewIndexes::from_json(json!({}))), [at("body/indexes", "missing")]);
    assert_eq!(
        shape_errors(NewIndexes::from_json(json!({"indexes": null}))),
        [at("body/indexes", "list_type")]
    );
    let made = NewIndexes::from_json(json!({"indexes": ["a"], "json_schema": {}})).unwrap();
    assert_eq!(made, NewIndexes { indexes: vec!["a".into()], has_schema: true });
}

#[test]
fn a_config_needs_a_key_and_an_object() {
    let both = [at("body/config_key", "missing"), at("body/data", "missing")];
    assert_eq!(shape_errors(NewConfig::from_json(json!({}))), both);
    for data in [json!(null), json!([]), json!("x"), json!(1)] {
        let body = json!({"config_key": "k", "data": data});
        assert_eq!(shape_errors(NewConfig::from_json(body.clone())), [at("body/data", "dict_type")]);
        assert_eq!(shape_errors(new_data(body)), [at("body/data", "dict_type")]);
    }
}

#[test]
fn a_body_that_is_not_an_object_is_refused_as_a_whole() {
    for body in [json!(null), json!([]), json!("x"), json!(1), json!(true)] {
        assert_eq!(shape_errors(NewConfig::from_json(body)), [at("body", "model_attributes_type")]);
    }
    assert_eq!(shape_errors(json(b"", 64)), [at("body", "missing")]);
}

#[test]
fn every_member_of_a_cluster_is_checked() {
    let good = json!({"id": 1, "api_addr": "a:1", "peer_addr": "a:2"});
    assert_eq!(members(json!({"members": [good]})).unwrap()[0].id, 1);
    let body = json!({"members": [{"id": -1, "api_addr": 2}, "x"]});
    let expected = [
        at("body/members/0/id", "int_type"),
        at("body/members/0/api_addr", "string_type"),
        at("body/members/0/peer_addr", "missing"),
        at("body/members/1", "model_attributes_type"),
    ];
    assert_eq!(shape_errors(members(body)), expected);
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

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_or_without_a_declared_length() {
    let is_too_large = |made: Result<Bytes, Problem>| {
        matches!(made, Err(Problem::Refused(Refusal::Invalid(Invalid::TooLarge(_)), None)))
    };
    let declared = HeaderMap::from_iter([(header::CONTENT_LENGTH, "6".parse().unwrap())]);
    assert!(is_too_large(receive(&declared, Body::empty(), 5).await));
    let stream = || {
        let parts = ["abc", "def"].map(|part| Ok::<_, std::convert::Infallible>(Bytes::from(part)));
        Body::from_stream(futures::stream::iter(parts))
    };
    assert!(is_too_large(receive(&HeaderMap::new(), stream(), 5).await));
    assert_eq!(receive(&HeaderMap::new(), stream(), 6).await.unwrap(), "abcdef");
    assert_eq!(receive(&declared, Body::from("abcdef"), 6).await.unwrap(), "abcdef");
}
