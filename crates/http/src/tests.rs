//! What is around every request, and the short way of the most frequent ones beside the route table.

use http::{Request, StatusCode, Uri, header};
use http_body_util::BodyExt as _;

use super::*;
use concord_model::limits::KEY_BYTES_MAX;
use concord_net::Member;
use concord_service::testing::{KEY, patient_service};

mod secrets;
mod throttle;

const CONFIG_D: &str = "/api/v1/config_definition/d/config/";

#[test]
fn a_visible_request_id_is_echoed_and_any_other_is_replaced() {
    let echo = |id: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap());
        request_id(&headers).to_str().unwrap() == id
    };
    assert!(echo("a") && echo("trace/1;x=\"y\"") && echo(&"x".repeat(128)));
    assert!(!echo("") && !echo("a b") && !echo(&"x".repeat(129)));
    let new = request_id(&HeaderMap::new());
    assert_eq!(Uuid::parse_str(new.to_str().unwrap()).unwrap().get_version_num(), 7);
}

/// A node alone, with a definition `d` and two configs.
async fn node(directory: &std::path::Path) -> Api {
    node_of(patient_service(directory)).await
}

async fn node_of(service: Service) -> Api {
    // Nobody calls these.
    let (api_addr, peer_addr) = ("127.0.0.1:1".into(), "127.0.0.1:2".into());
    service.init(&Principal::root(), vec![Member { id: 1, api_addr, peer_addr }]).await.unwrap();
    let api = Api::new(service);
    let bodies = [
        (DEFINITIONS, r#"{"config_definition_key":"d","indexes":["n"]}"#),
        (CONFIG_D, r#"{"config_key":"k","data":{"n":1}}"#),
        (CONFIG_D, r#"{"config_key":"a~b","data":{"n":2.50,"s":"\u00e4"}}"#),
    ];
    for (path, body) in bodies {
        let request = Request::post(path).header(header::AUTHORIZATION, KEY).body(Body::from(body)).unwrap();
        assert_eq!(api.handle(request).await.status(), StatusCode::CREATED);
    }
    api
}

/// Ends of the path of one config, and what is nearly one.
const BELOW: &[&str] = &[
    "k",
    "k/",
    "k//",
    "k?",
    "k?consistency=local",
    "k/?consistency=local",
    "k?unknown=1&unknown=2",
    "k?consistency=local&consistency=linearizable",
    "k?consistency=both",
    "k?min_revision=-1",
    "k?min_revision=x&max_staleness_ms=",
    "k?revision=1",
    "k?revision=3",
    "k?revision=x",
    "k?a=/b/c",
    "k?consistency=%6cocal",
    "k?dry_run=true",
    "k?dry_run=1",
    "%6b",
    "%6B/",
    "%256b",
    "a~b",
    "a%7Eb",
    "a%7eb/",
    "%2F",
    "k%2F",
    "k%2f/",
    "%2Fk",
    "k%2Fhistory",
    "%",
    "%z",
    "%6",
    "k%00",
    "%ff",
    "%C3%A4",
    "k%20",
    "k+",
    "-k",
    ".",
    "..",
    "./k",
    "../config/k",
    "k;a=b",
    "absent",
    "absent/",
    "",
    "/",
    "/k",
    "//k",
    "k/history",
    "k/history/",
    "k/rollback",
    "k/other",
    "k/k/k",
];

/// Whole paths beside it.
const OTHERS: &[&str] = &[
    "/",
    "//",
    "/api/v1/config_definition",
    "/api/v1/config_definition/",
    "/api/v1/config_definition/d",
    "/api/v1/config_definition/d/",
    "/api/v1/config_definition/d/config",
    "/api/v1/config_definition//config/k",
    "/api/v1/config_definition/d//config/k",
    "/api/v1/config_definition/d/config%2Fk",
    "/api/v1/config_definition/d/Config/k",
    "/api/v1/config_definition/d/confi%67/k",
    "/api/v1/config_definition/d/configs/k",
    "/api/v1/config_definition/d/schema/k",
    "/api/v1/config_definition/%64/config/k",
    "/api/v1/config_definition/d%2F/config/k",
    "/api/v1/config_definition/absent/config/k",
    "/api/v1/config_definition/%ff/config/k",
    "/api/v1/config_definition/config/config/config",
    "/api/v1/config%5Fdefinition/d/config/k",
    "/api/v1//config_definition/d/config/k",
    "//api/v1/config_definition/d/config/k",
    "/api/v1/Config_Definition/d/config/k",
    "/api/v1/config_definitiond/config/k",
    "/api/v2/config_definition/d/config/k",
    "/x/api/v1/config_definition/d/config/k",
    "http://elsewhere/api/v1/config_definition/d/config/k",
    "*",
    "/api/v1/config_definition/d/config/\u{e4}",
    "/api/v1/config_definition/\u{e4}/config/k",
];

fn paths() -> Vec<String> {
    let long =
        [KEY_BYTES_MAX, KEY_BYTES_MAX + 1, 20_000].map(|bytes| format!("{CONFIG_D}{}", "x".repeat(bytes)));
    let below = BELOW.iter().map(|rest| format!("{CONFIG_D}{rest}"));
    below.chain(OTHERS.iter().map(|&path| path.to_owned())).chain(long).collect()
}

/// Headers and bodies of a request that changes nothing.
fn variants(method: &Method) -> Vec<(Vec<(HeaderName, &'static str)>, &'static str)> {
    let tag = |value| vec![(header::IF_NONE_MATCH, value)];
    if method == Method::GET || method == Method::HEAD {
        return vec![(vec![], ""), (tag("*"), ""), (tag("\"1\", W/\"2\""), ""), (tag("1"), "{}")];
    }
    // No record has it.
    let never = (header::IF_MATCH, "\"0\"");
    let json = (header::CONTENT_TYPE, "Application/Vnd.d+JSON; charset=utf-8");
    let bodies =
        [r#"{"data":{"n":3}}"#, r#"{"data":{"n":3},"config_key":"other"}"#, "", "{", "[]", r#"{"data":1}"#];
    let mut variants: Vec<_> = bodies.map(|body| (vec![never.clone()], body)).into();
    variants.push((vec![never.clone(), never.clone()], bodies[0]));
    variants.push((vec![never.clone(), json], bodies[0]));
    variants.push((vec![never.clone(), (header::CONTENT_TYPE, "text/plain")], bodies[0]));
    variants.push((vec![never.clone(), (header::CONTENT_LENGTH, "99999999999")], bodies[0]));
    variants.push((vec![never.clone(), (HeaderName::from_static("idempotency-key"), "a b")], bodies[0]));
    variants.push((vec![never, (HeaderName::from_static("x-change-reason"), "\u{e4}")], bodies[0]));
    variants
}

/// An answer as the caller sees it. The length of the body is part of it: where no header states it, the server does.
async fn seen(response: Response) -> (StatusCode, HeaderMap, Option<u64>, bytes::Bytes) {
    let (mut parts, body) = response.into_parts();
    let stated =
        parts.headers.remove(header::CONTENT_LENGTH).map(|value| value.to_str().unwrap().parse().unwrap());
    let length = stated.or(body.size_hint().exact());
    (parts.status, parts.headers, length, body.collect().await.unwrap().to_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_short_way_answers_as_the_route_table_does() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let granted = || Access::Granted(Principal::root());
    let methods =
        ["GET", "PUT", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PUTX"];
    let (mut found, mut refused) = (0, 0);
    for method in methods.map(|name| Method::from_bytes(name.as_bytes()).unwrap()) {
        for path in paths() {
            let uri = Uri::from_maybe_shared(path.clone().into_bytes()).unwrap();
            let mut variants = variants(&method);
            if method == Method::PUT && path.contains("dry_run=true") {
                variants.push((vec![], r#"{"data":{"n":3}}"#));
            }
            for (headers, body) in variants {
                let request = || {
                    let mut request = Request::new(Body::from(body));
                    (*request.method_mut(), *request.uri_mut()) = (method.clone(), uri.clone());
                    for (name, value) in &headers {
                        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
                        request.headers_mut().append(name, value);
                    }
                    request
                };
                // The node itself writes now and then, which the answers would differ by.
                let (short, long) = loop {
                    let revision = api.service.revision();
                    let short = seen(api.route(granted(), request()).await).await;
                    let long = seen(api.route_by_table(granted(), request()).await).await;
                    if api.service.revision() == revision {
                        break (short, long);
                    }
                };
                assert_eq!(short, long, "{method} {path} {headers:?} {body}");
                *(if short.0.is_success() { &mut found } else { &mut refused }) += 1;
            }
        }
    }
    assert!(found > 100 && refused > 1000, "{found} {refused}");
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_short_way_has_the_standard_headers_and_is_closed_without_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let body = r#"{"data":{"n":3}}"#;
    for (method, key, status) in [
        (Method::GET, KEY, StatusCode::OK),
        (Method::PUT, KEY, StatusCode::OK),
        (Method::GET, "wrong", StatusCode::UNAUTHORIZED),
        (Method::PUT, "wrong", StatusCode::UNAUTHORIZED),
    ] {
        let request = Request::builder().method(method).uri(format!("{CONFIG_D}k"));
        let request = request.header(header::AUTHORIZATION, key).header(REQUEST_ID, "mine");
        let answer = api.handle(request.body(Body::from(body)).unwrap()).await;
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()[REQUEST_ID], "mine");
        assert_eq!(answer.headers()[NODE], "1");
        assert_eq!(answer.headers().contains_key(STATE_REVISION), status == StatusCode::OK);
        assert_eq!(answer.headers().contains_key(header::ETAG), status == StatusCode::OK);
    }
    api.service.shutdown().await;
}

#[test]
fn a_path_of_a_config_has_all_its_segments() {
    for path in ["d/config/k", "d/config/k/", "config/config/config", "%2F/config/%", "./config/.."] {
        assert!(is_config(&format!("{DEFINITIONS}/{path}")), "{path}");
    }
    for path in [
        "",
        "d",
        "d/config",
        "d/config/",
        "d/config//",
        "/config/k",
        "d//config/k",
        "d/config/k//",
        "d/config/k/l",
    ] {
        assert!(!is_config(&format!("{DEFINITIONS}/{path}")), "{path}");
    }
    assert!(!is_config("") && !is_config("*") && !is_config("/") && !is_config(DEFINITIONS));
}
