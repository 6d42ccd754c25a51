//! The document is valid `OpenAPI` 3.1 with valid examples, and describes the routes of the router: no more, and no
//! less but pages for people. `tests/harness/document.rs` validates every response of a black-box test against it.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Method, Request, StatusCode, header};
use serde_json::Value;

use crate::{
    Api,
    endpoints::{ENDPOINTS, METRICS, RequiredRight, TABLE},
};
use concord_model::limits::Limits;
use concord_service::testing::{KEY, service};

/// The schema of `OpenAPI` 3.1 documents, of 2022-10-07, from spec.openapis.org.
const META: &str = include_str!("openapi-3.1.schema.json");

fn ours() -> Value {
    serde_json::to_value(super::document(&Limits::default())).unwrap()
}

/// Every `$ref` below a value.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(target) = member.as_str().filter(|_| name == "$ref") {
                    found.insert(target.to_owned());
                }
                references(member, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_document_is_valid_openapi_3_1() {
    let meta: Value = serde_json::from_str(META).unwrap();
    let validator = jsonschema::draft202012::new(&meta).unwrap();
    let wrong: Vec<_> =
        validator.iter_errors(&ours()).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, schema) in ours()["components"]["schemas"].as_object().unwrap() {
        assert!(jsonschema::meta::is_valid(schema), "{name}");
    }
}

#[test]
fn every_reference_resolves_and_every_component_is_used() {
    let document = ours();
    let mut targets = BTreeSet::new();
    references(&document, &mut targets);
    for target in &targets {
        let place = target.strip_prefix('#').unwrap();
        assert!(document.pointer(place).is_some(), "{target}");
    }
    for (kind, components) in document["components"].as_object().unwrap() {
        for name in components.as_object().unwrap().keys() {
            let target = format!("#/components/{kind}/{name}");
            let is_used = kind == "securitySchemes" || targets.contains(&target);
            assert!(is_used, "{target}");
        }
    }
}

#[test]
fn every_operation_has_a_unique_name_and_lists_its_errors() {
    let mut names = BTreeSet::new();
    for (path, item) in ours()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
            let responses = operation["responses"].as_object().unwrap();
            let is_open = operation["security"] == serde_json::json!([{}]);
            // A login has no credential, but a token.
            let has_credential = !is_open || operation["operationId"] == "log_in";
            assert_eq!(responses.contains_key("401"), has_credential, "{method} {path}");
            assert!(responses.contains_key("500"), "{method} {path}");
            assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
        }
    }
}

#[test]
fn the_examples_are_valid() {
    let document = ours();
    let check = |place: &str, content: &Value| {
        let (Some(schema), Some(example)) = (content.get("schema"), content.get("example")) else { return };
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let wrong: Vec<_> = validator.iter_errors(example).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{place}: {wrong:?}");
    };
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let contents = |of: &Value| of["content"].as_object().cloned().unwrap_or_default();
            contents(&operation["requestBody"]).values().for_each(|content| check(path, content));
            for response in operation["responses"].as_object().unwrap().values() {
                contents(response).values().for_each(|content| check(path, content));
            }
        }
    }
    for (name, response) in document["components"]["responses"].as_object().unwrap() {
        check(name, &response["content"]["application/json"]);
    }
}

#[test]
fn a_request_takes_the_query_parameters_that_the_document_lists_and_no_others() {
    let document = ours();
    for row in ENDPOINTS.iter().filter(|row| row.is_documented) {
        let path = super::builder::path(row);
        let method = format!("{:?}", row.method).to_lowercase();
        let operation = &document["paths"][&path][&method];
        if row.right == RequiredRight::Open {
            continue;
        }
        let listed = operation["parameters"].as_array().cloned().unwrap_or_default();
        let names = listed.iter().filter_map(|parameter| {
            let place = parameter["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
            let parameter = document.pointer(place).unwrap();
            (parameter["in"] == "query").then(|| parameter["name"].as_str().unwrap().to_owned())
        });
        let mut names: BTreeSet<String> = names.collect();
        let is_read = method == "get";
        // A page of metrics is no JSON, so the document does not list it.
        names.extend((!is_read || path == METRICS).then(|| "pretty".to_owned()));
        names.extend((!is_read).then(|| "dry_run".to_owned()));
        // Any other name is a filter.
        let has_filters = names.contains("filters");
        let all = document["components"]["parameters"].as_object().unwrap().values();
        for name in all.map(|parameter| parameter["name"].as_str().unwrap()).chain(["dryrun"]) {
            assert_eq!(row.takes(name), has_filters || names.contains(name), "{method} {path} {name}");
        }
    }
}

#[test]
fn the_limits_are_those_of_the_node() {
    let limits = Limits { page_limit: 7, indexes: 3, batch_operations: 5, ..Limits::default() };
    let document = serde_json::to_value(super::document(&limits)).unwrap();
    let components = &document["components"];
    assert_eq!(components["parameters"]["limit"]["schema"]["maximum"], 7);
    assert_eq!(components["schemas"]["DefinitionInput"]["properties"]["indexes"]["maxItems"], 3);
    assert_eq!(components["schemas"]["PlainBatch"]["properties"]["operations"]["maxItems"], 5);
    for name in ["if", "then", "else"] {
        assert_eq!(components["schemas"]["Transaction"]["properties"][name]["maxItems"], 5);
    }
}

/// What generators of clients stumble over: `scripts/openapi-test.sh` generates and compiles.
#[test]
fn the_schemas_are_those_of_which_generators_make_clients_that_compile() {
    let document = ours();
    let mut objects = BTreeSet::new();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(!name.starts_with("New"), "{name} is a constructor in Go");
        generates(name, schema, &mut objects);
    }
    for (name, parameter) in document["components"]["parameters"].as_object().unwrap() {
        generates(name, &parameter["schema"], &mut objects);
        assert!(parameter["schema"].get("default").is_none(), "clients would send the default of {name}");
    }
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            assert_ne!(operation["operationId"], "get_config", "clients in PHP have this function");
        }
    }
}

/// Checks a schema and all below it. `objects` are those without a name.
fn generates(place: &str, schema: &Value, objects: &mut BTreeSet<String>) {
    let is_null = |schema: &Value| schema["type"] == "null";
    let choices: Vec<_> =
        schema["oneOf"].as_array().into_iter().flatten().filter(|one| !is_null(one)).collect();
    for choice in &choices {
        let is_scalar = ["string", "integer"].iter().any(|kind| choice["type"] == *kind);
        assert!(is_scalar || choices.len() == 1 || choice["$ref"].is_string(), "{place}: {choice}");
    }
    for kind in ["integer", "number"] {
        let is_number = schema["type"] == kind || schema["type"][0] == kind;
        assert!(!is_number || schema["format"].is_string(), "{place} would have 32 bits");
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        generates(&format!("{place}.{name}"), below, objects);
    }
    let below = [&schema["items"], &schema["additionalProperties"]].into_iter().chain(choices);
    for below in below.filter(|below| below.is_object()) {
        generates(&format!("{place}[]"), below, objects);
    }
    // A component is one of a kind anyway.
    let is_unnamed = place.contains(['.', '[']) && schema["properties"].is_object();
    assert!(
        !is_unnamed || objects.insert(schema.to_string()),
        "{place} would have the name of another place"
    );
}

/// A path without the names of its parameters and without a slash at its end.
fn shape(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.trim_end_matches('/').split('/').map(part).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn the_routes_of_the_router_are_those_of_the_document() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let documented = ours();
    let paths = documented["paths"].as_object().unwrap();
    let templates = TABLE.routes().iter().filter(|route| route.is_documented());
    let templates = templates.map(|route| shape(route.template));
    assert_eq!(templates.collect::<BTreeSet<_>>(), paths.keys().map(|path| shape(path)).collect());
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
    ];
    let api = Api::new(service);
    for (path, item) in paths {
        let target = shape(path).replace("{}", "1");
        let target = if target.is_empty() { "/" } else { &target };
        for method in &methods {
            let name =
                if method == Method::HEAD { "get".into() } else { method.as_str().to_ascii_lowercase() };
            let request = Request::builder().method(method).uri(target).header(header::AUTHORIZATION, KEY);
            let response = api.handle(request.body(Body::empty()).unwrap()).await;
            let is_taken = response.status() != StatusCode::METHOD_NOT_ALLOWED;
            // A read that rejects HEAD documents 405.
            let has_no_head = method == Method::HEAD && item[&name]["responses"].get("405").is_some();
            let is_documented = item.get(&name).is_some() && !has_no_head;
            assert_eq!(is_taken, is_documented, "{method} {path}");
            assert_eq!(response.headers().contains_key(header::ALLOW), !is_taken, "{method} {path}");
        }
    }
}
