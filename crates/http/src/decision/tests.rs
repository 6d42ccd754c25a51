//! Every route that the router has, called once, has exactly one line.

use std::{fs, path::Path, time::Duration};

use axum::body::Body;
use http::header;

use super::*;
use crate::{
    Api,
    endpoints::{AUDIT, CHANGES, CONFIG, DEFINITIONS, TABLE, WATCH},
    openapi,
};
use concord_model::{access_key::Pattern, limits::Limits};
use concord_service::{
    audit::{AuditOptions, AuditPolicy},
    testing::{KEY, audited_service},
};

fn lines(directory: &Path) -> Vec<serde_json::Value> {
    let file = directory.join(format!("audit-{:020}.jsonl", 1));
    let text = fs::read_to_string(file).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    all.filter(|line| line.get("event").is_none()).collect()
}

fn options(directory: &Path, reads: &[&str]) -> AuditOptions {
    let reads = reads.iter().map(|text| Pattern::parse(text).unwrap()).collect();
    AuditOptions {
        mode: AuditPolicy::Strict,
        directory: directory.join("audit"),
        reads,
        ..AuditOptions::off()
    }
}

/// The lines of the requests, in their order.
async fn lines_of(service: &Service, directory: &Path) -> Vec<serde_json::Value> {
    service.shutdown().await;
    lines(&directory.join("audit"))
}

fn request(method: &str, path: &str) -> Request {
    let request = Request::builder().method(method).uri(path).header(header::AUTHORIZATION, KEY);
    request.header("x-request-id", format!("{method}{path}")).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn every_operation_called_once_has_exactly_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &["*"]));
    let api = Api::new(service.clone());
    let document = serde_json::to_value(openapi::document(&Limits::default())).unwrap();
    let needs_key = |operation: &serde_json::Value| operation.get("security").is_none();
    let mut called = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let target = path.replace("{config_definition_key}", "app").replace("{config_key}", "prod");
        let target = target.replace("{id}", "7").replace("{key_id}", "0123456789ab");
        for (method, operation) in item.as_object().unwrap() {
            let method = method.to_ascii_uppercase();
            if needs_key(operation) {
                let asked = request(&method, &target);
                let endpoint = TABLE.find(asked.method(), &target).endpoint;
                drop(api.handle(asked).await);
                // A report has a line if it is denied, or news.
                if endpoint.is_none_or(|endpoint| endpoint.audited != Audited::News) {
                    called.push((method, target.clone()));
                }
            }
        }
    }
    assert!(called.len() > 25, "{called:?}");
    let lines = lines_of(&service, directory.path()).await;
    let ids: Vec<&str> = lines.iter().map(|line| line["request_id"].as_str().unwrap()).collect();
    let expected: Vec<String> = called.iter().map(|(method, path)| format!("{method}{path}")).collect();
    assert_eq!(ids, expected);
    for (line, (method, path)) in lines.iter().zip(&called) {
        assert_eq!(line["method"], method.as_str());
        assert_eq!(line["key"], "root");
        assert!(line["verb"].is_string() && line["route"].is_string(), "{line}");
        assert!(line["status"].is_u64() && line["outcome"].is_string(), "{line}");
        let is_named = path.contains("definition/app") || path.contains("flags/app");
        assert_eq!(line["definition"] == "app", is_named, "{line}");
        assert_eq!(line["config"] == "prod", path.contains("/prod"), "{line}");
        assert_eq!(line["id"] == "7", path.contains("/7"), "{line}");
    }
}

#[tokio::test]
async fn without_a_setting_only_writes_backups_and_the_log_itself_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &["limits"]));
    let api = Api::new(service.clone());
    let definition = |name: &str| format!("{DEFINITIONS}{name}/config/prod");
    for (method, path) in [
        ("GET", definition("app")),
        ("HEAD", definition("app")),
        ("GET", definition("limits")),
        ("GET", format!("{WATCH}?definition=app&definition=limits")),
        ("GET", format!("{DEFINITIONS}limits/config/")),
        ("GET", DEFINITIONS.to_owned()),
        ("GET", "/api/v1/cluster".to_owned()),
        ("GET", "/api/v1/cluster/backup".to_owned()),
        ("GET", AUDIT.to_owned()),
        ("DELETE", definition("app")),
        ("POST", "/api/v1/nothing".to_owned()),
        ("GET", "/livez".to_owned()),
    ] {
        drop(api.handle(request(method, &path)).await);
    }
    let lines = lines_of(&service, directory.path()).await;
    let routes: Vec<_> = lines.iter().map(|line| line["route"].as_str().unwrap_or("none")).collect();
    assert_eq!(
        routes,
        [
            CONFIG,
            WATCH,
            "/api/v1/config_definition/{definition}/config",
            "/api/v1/cluster/backup",
            AUDIT,
            CONFIG,
            "none"
        ],
        "{lines:?}"
    );
    assert_eq!(lines[1]["definitions"], serde_json::json!(["app", "limits"]));
    assert_eq!((&lines[5]["outcome"], &lines[5]["status"]), (&"unavailable_error".into(), &503.into()));
}

#[tokio::test]
async fn a_watch_of_more_than_the_recorded_definitions_is_recorded_too() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &["billing.*", "limits"]));
    let api = Api::new(service.clone());
    let cases = [
        ("", true),
        ("?from=1", true),
        ("?definition=billing.eu", true),
        ("?definition=other&definition=limits", true),
        ("?definition=b*", true),
        ("?definition=billing.e*", true),
        ("?definition=lim*", true),
        ("?definition=*", true),
        ("?definition=other", false),
        ("?definition=limits.*", false),
        ("?definition=o*", false),
        ("?definition=%2F", false),
    ];
    let asked = cases
        .iter()
        .flat_map(|(query, expected)| [WATCH, CHANGES].map(|path| (format!("{path}{query}"), *expected)));
    let mut expected = Vec::new();
    for (path, is_recorded) in asked {
        drop(api.handle(request("GET", &path)).await);
        if is_recorded {
            expected.push(format!("GET{path}"));
        }
    }
    let lines = lines_of(&service, directory.path()).await;
    let ids: Vec<&str> = lines.iter().map(|line| line["request_id"].as_str().unwrap()).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn a_dry_run_is_not_taken_for_the_write() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &["*"]));
    let api = Api::new(service.clone());
    let path = "/api/v1/config_definition/app/config/prod";
    let cases = [
        ("DELETE", "", false),
        ("DELETE", "?dry_run=true", true),
        ("DELETE", "?x=1&dry_run=true", true),
        ("DELETE", "?dry_run=false", false),
        ("DELETE", "?dry_run=yes", false),
        ("GET", "?dry_run=true", false),
    ];
    for (method, query, _) in cases {
        drop(api.handle(request(method, &format!("{path}{query}"))).await);
    }
    let lines = lines_of(&service, directory.path()).await;
    assert_eq!(lines.len(), cases.len());
    for (line, (method, query, expected)) in lines.iter().zip(cases) {
        assert_eq!(line.get("dry_run"), expected.then_some(&true.into()), "{method} {query}: {line}");
    }
}

#[tokio::test]
async fn a_write_names_what_its_body_is_about() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &[]));
    let api = Api::new(service.clone());
    let batch = r#"{"operations":[{"op":"create_config","config_definition_key":"app","config_key":"a","data":{"secret":"x"}},
        {"op":"delete_config","config_definition_key":"limits","config_key":"b"}]}"#;
    let define = r#"{"config_definition_key":"fresh","indexes":[]}"#;
    for (path, body) in [("/api/v1/batch", batch), (DEFINITIONS, define)] {
        let (mut parts, _) = request("POST", path).into_parts();
        parts.headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        drop(api.handle(Request::from_parts(parts, Body::from(body))).await);
    }
    let lines = lines_of(&service, directory.path()).await;
    assert_eq!(lines[0]["definitions"], serde_json::json!(["app", "limits"]), "{lines:?}");
    assert_eq!(lines[0]["operations"], 2);
    assert_eq!(lines[1]["definition"], "fresh");
    assert!(!format!("{lines:?}").contains("secret"));
}

#[tokio::test]
async fn a_write_whose_caller_leaves_has_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &[]));
    let api = Api::new(service.clone());
    let (mut parts, _) = request("PUT", &format!("{DEFINITIONS}app/config/prod")).into_parts();
    parts.headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    // A body that never comes.
    let body = Body::from_stream(futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>());
    let left =
        tokio::time::timeout(Duration::from_millis(50), api.handle(Request::from_parts(parts, body))).await;
    assert!(left.is_err());
    let lines = lines_of(&service, directory.path()).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((&lines[0]["outcome"], lines[0].get("status")), (&"unknown".into(), None));
}

#[tokio::test]
async fn a_request_without_a_good_credential_has_one_line_and_names_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &["*"]));
    let api = Api::new(service.clone());
    for credential in ["", "wrong"] {
        let mut request = request("GET", &format!("{DEFINITIONS}app"));
        request.headers_mut().insert(header::AUTHORIZATION, credential.parse().unwrap());
        assert_eq!(api.handle(request).await.status(), StatusCode::UNAUTHORIZED);
    }
    let lines = lines_of(&service, directory.path()).await;
    assert_eq!(lines.len(), 1, "the second one is counted: {lines:?}");
    assert_eq!(lines[0]["outcome"], "unauthorized_error");
    assert_eq!((lines[0].get("key"), lines[0].get("definition")), (None, None));
}

#[tokio::test]
async fn a_report_has_a_line_when_it_is_news_or_denied() {
    let directory = tempfile::tempdir().unwrap();
    let service = audited_service(directory.path(), options(directory.path(), &["*"]));
    let gets_line = |path: &str, status: StatusCode, is_news: bool| {
        let asked = request("POST", path);
        let matched = TABLE.find(asked.method(), path);
        let id = HeaderValue::from_static("x");
        let asked = MatchedRequest::new(asked, matched);
        let pending = begin(&service, &asked, &id, &Principal::root()).expect("a line may come of it");
        let mut response = status.into_response();
        if is_news {
            response.extensions_mut().insert(News);
        }
        !pending.gets_no_line(&response)
    };
    for path in ["/api/v1/gate/errors", "/api/v1/change_request/AbCdEf012345/report"] {
        assert!(gets_line(path, StatusCode::OK, true) && gets_line(path, StatusCode::FORBIDDEN, false));
        assert!(!gets_line(path, StatusCode::OK, false) && !gets_line(path, StatusCode::NOT_FOUND, false));
    }
    assert!(lines_of(&service, directory.path()).await.is_empty(), "none was ended");
}
