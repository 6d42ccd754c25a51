//! The table: what its rows agree in, and which row is that of a request.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::openapi;

fn find(method: &str, path: &str) -> Matched {
    TABLE.find(&Method::from_bytes(method.as_bytes()).unwrap(), path)
}

fn template(path: &str) -> &'static str {
    find("GET", path).template().unwrap_or("none")
}

/// The name of the operation that a request is for.
fn operation(method: &str, path: &str) -> &'static str {
    find(method, path).endpoint.map_or("none", |endpoint| endpoint.operation)
}

#[test]
fn no_two_rows_are_one_and_those_of_a_path_agree() {
    let (mut operations, mut methods) = (BTreeSet::new(), BTreeSet::new());
    let mut paths: BTreeMap<&str, &Endpoint> = BTreeMap::new();
    for row in ENDPOINTS {
        assert!(operations.insert(row.operation), "{row:?}");
        assert!(methods.insert((row.template(), row.method.http().to_string())), "{row:?}");
        let first = paths.entry(row.template()).or_insert(row);
        let is_open = |row: &Endpoint| row.right == RequiredRight::Open;
        assert_eq!(
            (first.path, is_open(first), first.takes_slash),
            (row.path, is_open(row), row.takes_slash),
            "{row:?}"
        );
        assert_eq!(is_open(row), matches!(row.handler, Handler::Open(_) | Handler::Login(_)), "{row:?}");
        assert!(row.gauge.is_none() || row.method == EndpointMethod::Get, "{row:?}");
    }
    assert_eq!(TABLE.routes().len(), paths.len());
}

#[test]
fn a_row_takes_a_body_where_the_document_has_one() {
    let limits = concord_model::limits::Limits::default();
    let document = serde_json::to_value(openapi::document(&limits)).unwrap();
    for row in ENDPOINTS.iter().filter(|row| row.right != RequiredRight::Open) {
        let method = row.method.http().as_str().to_lowercase();
        let has_body = document["paths"][openapi::builder::path(row)][&method]["requestBody"].is_object();
        assert_eq!(row.takes_body, has_body, "{row:?}");
    }
}

#[test]
fn only_watches_and_polls_end_with_their_client() {
    let rows = ENDPOINTS.iter().filter(|row| row.ends_with_its_client).map(|row| row.operation);
    assert_eq!(rows.collect::<Vec<_>>(), ["watch_flags", "watch", "poll_changes", "consul_kv"]);
    let ends = |method: &str, path: &str| {
        let request = find(method, path);
        request.endpoint.is_some_and(|endpoint| endpoint.ends_with_its_client)
    };
    assert!(ends("GET", "/api/v1/watch/") && ends("GET", CHANGES));
    // A path that only begins so is another one.
    assert!(!ends("GET", "/api/v1/watchers") && !ends("POST", WATCH));
}

#[test]
fn each_row_is_found_by_its_path_with_and_without_a_slash() {
    for row in ENDPOINTS {
        let path: Vec<&str> =
            row.template().split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
        let path = path.join("/");
        assert_eq!(operation(row.method.http().as_str(), &path), row.operation);
        let slashed = operation(row.method.http().as_str(), &format!("{path}/"));
        assert_eq!(slashed, if row.takes_slash { row.operation } else { "none" }, "{path}/");
    }
}

#[test]
fn a_path_has_the_template_of_its_rows() {
    for (path, expected) in [
        ("/api/v1/config_definition/a/config/b", CONFIG),
        ("/api/v1/config_definition/a/config/b/", CONFIG),
        ("/api/v1/config_definition/", "/api/v1/config_definition"),
        ("/api/v1/config_definition/a/config/", "/api/v1/config_definition/{definition}/config"),
        ("/api/v1/config_definition/config/config/config", CONFIG),
        ("/api/v1/config_definition/%2F/config/%", CONFIG),
        ("/api/v1/config_definition/./config/..", CONFIG),
        ("/api/v1/cluster/members/7/promote", "/api/v1/cluster/members/{id}/promote"),
        // A literal comes first; where it leads nowhere, the same segment is a parameter.
        ("/api/v1/api_key/root/disable", "/api/v1/api_key/root/disable"),
        ("/api/v1/api_key/root/rotate", "/api/v1/api_key/{key_id}/rotate"),
        ("/api/v1/api_key/root", "/api/v1/api_key/{key_id}"),
        // What is empty is a parameter, too, which its handler rejects.
        ("/api/v1/config_definition//", "/api/v1/config_definition/{definition}"),
        ("/docs/x.css", "/docs/{file}"),
        ("/docs", "/docs"),
        ("/docs/", "/docs"),
        ("/ui/x/y", "/ui/{folder}/{file}"),
        ("/metrics", METRICS),
        ("/", "/"),
        ("//", "none"),
        ("", "none"),
        ("*", "none"),
        ("/no/such/path", "none"),
        ("/api/v1", "none"),
        ("/api/v1/", "none"),
        ("/api/v1//", "none"),
        ("/api/v1/nothing", "none"),
        ("/api/v1/config_definition//config/k", CONFIG),
        ("/api/v1/config_definition/d//config/k", "none"),
        ("/api/v1/config_definition/d/config//", CONFIG),
        ("/api/v1/config_definition/d/config/k//", "none"),
        ("/api/v1/config_definition/d/config/k/l", "none"),
        ("/api/v1/config_definition/d/Config/k", "none"),
        ("/api/v1/config_definition/d/config%2Fk", "none"),
        ("/api/v1/config%5Fdefinition/d/config/k", "none"),
        ("//api/v1/config_definition/d/config/k", "none"),
        ("/x/api/v1/config_definition/d/config/k", "none"),
    ] {
        assert_eq!(template(path), expected, "{path}");
    }
}

#[test]
fn head_is_get_and_an_unknown_method_has_no_row() {
    let path = "/api/v1/config_definition/a/config/b";
    assert_eq!((operation("HEAD", path), operation("PATCH", path)), ("read_config", "patch_config"));
    for method in ["POST", "OPTIONS", "TRACE", "CONNECT", "get", "PUTX"] {
        assert_eq!((operation(method, path), find(method, path).template()), ("none", Some(CONFIG)));
    }
    let allow = |path: &str| find("TRACE", path).route.unwrap().allow.to_str().unwrap().to_owned();
    assert_eq!(allow(path), "GET,HEAD,PUT,PATCH,DELETE");
    assert_eq!((allow(WATCH), allow("/api/v1/batch")), ("GET".to_owned(), "POST".to_owned()));
}

#[test]
fn the_parameters_of_a_path_are_decoded_where_they_are_asked_for() {
    let of = |path: &str| (find("PUT", path), path.parse::<http::Uri>().unwrap());
    let (matched, uri) = of("/api/v1/config_definition/%64x/config/k%20/");
    assert_eq!((&*matched.definition(&uri), &*matched.config(&uri)), ("dx", "k "));
    let raw: Vec<_> = matched.parameters(&uri).collect();
    assert_eq!(raw, [("definition", "%64x"), ("config", "k%20")]);
    assert_eq!(matched.name(&uri), "");
    let (matched, uri) = of("/api/v1/config_definition/%ff/schema");
    assert_eq!((&*matched.definition(&uri), &*matched.config(&uri)), ("\u{fffd}", ""));
    let (matched, uri) = of("/api/v1/cluster/members/%37");
    assert_eq!((&*matched.definition(&uri), &*matched.name(&uri)), ("", "7"));
    let (matched, uri) = of("/ui/a%62/%ff");
    assert_eq!(matched.names(&uri), ["ab", "\u{fffd}", ""]);
    let (matched, uri) = of("/api/v1/cluster");
    assert_eq!((matched.parameters(&uri).count(), &*matched.name(&uri)), (0, ""));
}

#[test]
fn only_reads_of_the_probes_and_of_the_pages_need_no_key() {
    let is_open = |method: &Method, path: &str| TABLE.find(method, path).is_open(method, path);
    for path in [
        "/",
        "/livez",
        "/readyz",
        "/health",
        "/readiness-probe",
        "/openapi.json",
        "/docs",
        "/docs/",
        "/docs/swagger-ui.css",
        "/docs/absent",
        "/docs/a/b/c",
        "/docs/a/",
        "/ui",
        "/ui/",
        "/ui/app.js",
        "/ui/pages/configs.js",
        "/ui/absent/a/b",
    ] {
        assert!(is_open(&Method::GET, path) && is_open(&Method::HEAD, path), "{path}");
        for method in [Method::POST, Method::OPTIONS, Method::PUT, Method::DELETE] {
            assert!(!is_open(&method, path), "{method} {path}");
        }
    }
    for path in [
        "",
        "//",
        "/livez/",
        "//livez",
        "/%6civez",
        "/livez/../api/v1/cluster",
        "/metrics",
        "/openapi.json/",
        "/docsx",
        "/doc",
        "//docs",
        "/api/v1/docs",
        "/uix",
        "//ui",
        "/api/v1/cluster",
        "/api/v1/nothing",
    ] {
        assert!(!is_open(&Method::GET, path), "{path}");
    }
}

#[test]
fn a_write_is_what_may_change_something() {
    let is_write = |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        TABLE.find(&method, path).is_write(&method)
    };
    assert!(
        !is_write("GET", "/api/v1/batch") && !is_write("HEAD", CONFIG) && !is_write("POST", "/api/v1/read")
    );
    assert!(
        !is_write("POST", "/api/v1/gate/errors") && !is_write("POST", "/api/v1/change_request/x/report"),
        "a report stores nothing"
    );
    assert!(
        is_write("POST", "/api/v1/batch")
            && is_write("PUT", CONFIG)
            && is_write("DELETE", "/api/v1/api_key/x")
    );
    assert!(is_write("POST", "/api/v1/nothing") && is_write("POST", "/api/v1/whoami"));
}

#[test]
fn the_reference_lists_each_endpoint_with_its_right() {
    let page = include_str!("../../../../docs/reference/interface.md");
    let cells = page.lines().filter_map(|line| {
        let (asked, rest) = line.strip_prefix("| `")?.split_once('`')?;
        let (method, path) = asked.split_once(' ')?;
        let right = rest.trim_end_matches([' ', '|']).rsplit('|').next()?;
        path.starts_with("/api/").then(|| ((method.to_owned(), path.to_owned()), right.to_owned()))
    });
    let on_page: BTreeMap<(String, String), String> = cells.collect();
    let rows = ENDPOINTS.iter().filter(|row| row.path.starts_with("/api/"));
    let known: BTreeSet<(String, String)> =
        rows.clone().map(|row| (row.method.http().to_string(), openapi::builder::path(row))).collect();
    assert_eq!(on_page.keys().cloned().collect::<BTreeSet<_>>(), known);
    for row in rows {
        let right = &on_page[&(row.method.http().to_string(), openapi::builder::path(row))];
        let is_said = match row.right {
            // Each operation of a batch needs its own.
            RequiredRight::Needs(_) if row.operation == "run_batch" => right.contains("each operation"),
            RequiredRight::Needs(verb) => right.contains(&format!("`{}`", verb.name())),
            RequiredRight::Open | RequiredRight::AnyKey => !right.contains('`'),
        };
        assert!(is_said, "{row:?}: {right}");
    }
}
