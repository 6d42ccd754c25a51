//! The document describes what the router answers: no more and no less.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Method, Request, StatusCode, header};

use super::document;
use crate::{Api, endpoints::TABLE};
use concord_model::limits::Limits;
use concord_service::testing::{KEY, service};

/// A path without the names of its parameters and without a slash at its end.
fn shape(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.trim_end_matches('/').split('/').map(part).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn the_routes_of_the_router_are_those_of_the_document() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path(), Limits::default());
    let documented = serde_json::to_value(document(&Limits::default())).unwrap();
    let paths = documented["paths"].as_object().unwrap();
    let templates = TABLE.routes().iter().map(|route| shape(route.template));
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
            // A read that refuses HEAD documents 405.
            let has_no_head = method == Method::HEAD && item[&name]["responses"].get("405").is_some();
            let is_documented = item.get(&name).is_some() && !has_no_head;
            assert_eq!(is_taken, is_documented, "{method} {path}");
            assert_eq!(response.headers().contains_key(header::ALLOW), !is_taken, "{method} {path}");
        }
    }
}
