//! What is around every request.

use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;

use super::*;
use crate::endpoints::DEFINITIONS;
use concord_model::query::Page;
use concord_net::Member;
use concord_service::{
    Consistency, Level, Principal, Service,
    read::list::{ListRequest, ListScope, PageSource},
    testing::{KEY, patient_service},
};

mod readers;
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
    service.members.init(&Principal::root(), vec![Member { id: 1, api_addr, peer_addr }]).await.unwrap();
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

/// The principal that the access layer finds for a credential.
async fn owner_of(api: &Api, credential: &str) -> Principal {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_str(credential).unwrap());
    match access::authenticate(&api.service, &headers, &http::Extensions::new(), false).await {
        Ok(RequestAccess::Authenticated(principal)) => principal,
        Ok(RequestAccess::Public) => panic!("a credential is no public access"),
        Err(response) => panic!("{response:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_names_the_parameters_that_have_no_effect() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let config = format!("{CONFIG_D}k");
    let warning = async |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path).header(header::AUTHORIZATION, KEY);
        let response = api.handle(request.body(Body::empty()).unwrap()).await;
        let text = response.headers().get(header::WARNING).map(|text| text.to_str().unwrap().to_owned());
        (response.status(), text)
    };
    let named = |names: &str| Some(format!("299 - \"without effect: {names}\""));
    for (path, expected) in [
        (format!("{config}?feilds=n"), named("unknown query parameter `feilds`")),
        (
            format!("{config}?x=1&consistency=local&y%20=2"),
            named("unknown query parameter `x`, unknown query parameter `y?`"),
        ),
        (
            format!(
                "{config}?consistency=local&max_staleness_ms=60000&min_revision=1&include=revision&$fields=n"
            ),
            None,
        ),
        (format!("{config}?$pretty=true&revision="), None),
        (config.clone(), None),
        (format!("{DEFINITIONS}?sort=x"), named("unknown query parameter `sort`")),
        (format!("{DEFINITIONS}?limit=1&page=1&$include=revision"), None),
        (format!("{config}/history?after=1&before=9"), named("unknown query parameter `after`")),
        ("/api/v1/whoami?consistency=local".to_owned(), named("unknown query parameter `consistency`")),
        ("/api/v1/api_key/?sort_by=name&seach=a".to_owned(), named("unknown query parameter `seach`")),
        ("/livez?x=1".to_owned(), None),
        (format!("{CONFIG_D}?n=1&sort_by=n"), None),
        (format!("{CONFIG_D}?n=1&n=2&page=1&$fields=n"), None),
        (
            format!("{config}?consistency=local&consistency=linearizable"),
            named("all but the last query parameter `consistency`"),
        ),
        (
            format!("{CONFIG_D}?limit=5&page=7&page=1&page=1"),
            named("all but the last query parameter `page`"),
        ),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let (status, found) = warning(method, &path).await;
            if path.ends_with("revision=") {
                // Malformed: it is rejected, not ignored.
                assert_eq!((status, found), (StatusCode::UNPROCESSABLE_ENTITY, None));
                continue;
            }
            assert_eq!((status, &found), (StatusCode::OK, &expected), "{path}");
        }
    }
    let repeated = "all but the last query parameter `from`, all but the last query parameter `wait`";
    assert_eq!(
        warning(Method::GET, "/api/v1/changes?wait=5&from=1&from=1&wait=0&definition=d&definition=e").await,
        (StatusCode::OK, named(repeated))
    );
    assert_eq!(
        warning(Method::GET, &format!("{CONFIG_D}?x=1")).await,
        (StatusCode::UNPROCESSABLE_ENTITY, None),
        "a filter"
    );
    assert_eq!(warning(Method::GET, &format!("{CONFIG_D}absent?x=1")).await, (StatusCode::NOT_FOUND, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_taken_is_refused_by_its_path_or_its_method() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).header(header::AUTHORIZATION, KEY);
        let answer = api.handle(request.body(Body::empty()).unwrap()).await;
        let allow = answer.headers().get(header::ALLOW).map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), allow)
    };
    let config = format!("{CONFIG_D}k");
    for (method, path, status, allow) in [
        ("GET", config.as_str(), 200, None),
        ("HEAD", &config, 200, None),
        ("POST", &config, 405, Some("GET,HEAD,PUT,PATCH,DELETE")),
        ("OPTIONS", &config, 405, Some("GET,HEAD,PUT,PATCH,DELETE")),
        ("PUTX", &config, 405, Some("GET,HEAD,PUT,PATCH,DELETE")),
        ("HEAD", "/api/v1/watch", 405, Some("GET")),
        ("HEAD", "/api/v1/changes", 405, Some("GET")),
        ("HEAD", "/api/v1/cluster/backup", 405, Some("GET")),
        ("GET", "/api/v1/batch", 405, Some("POST")),
        ("POST", "/livez", 405, Some("GET,HEAD")),
        ("GET", "/livez/", 404, None),
        ("GET", "/docs/a/b", 404, None),
        ("POST", "/api/v1/nothing", 404, None),
    ] {
        assert_eq!(ask(method, path).await, (status, allow.map(str::to_owned)), "{method} {path}");
    }
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_has_the_head_of_get_and_no_body() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    for path in [&*format!("{CONFIG_D}k"), "/api/v1/whoami", "/livez", "/docs", "/nothing"] {
        let ask = async |method: Method| {
            let request = Request::builder().method(method).uri(path).header(header::AUTHORIZATION, KEY);
            let request = request.header(REQUEST_ID, "one").body(Body::empty()).unwrap();
            let (mut parts, body) = api.handle(request).await.into_parts();
            let stated = parts.headers.remove(header::CONTENT_LENGTH);
            let body = body.collect().await.unwrap().to_bytes();
            (parts.status, stated.map(|value| value.to_str().unwrap().to_owned()), body)
        };
        let (whole, head) = (ask(Method::GET).await, ask(Method::HEAD).await);
        assert_eq!(head, (whole.0, Some(whole.2.len().to_string()), bytes::Bytes::new()), "{path}");
    }
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_steers_a_rollout_may_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    for what in ["pause", "resume", "advance", "abort"] {
        let ask = async |body: &'static str| {
            let path = format!("/api/v1/change_request/absent/{what}");
            let request = Request::post(path).header(header::AUTHORIZATION, KEY);
            api.handle(request.body(Body::from(body)).unwrap()).await.status()
        };
        for taken in ["", "{}", r#"{"stage": 0}"#] {
            assert_eq!(ask(taken).await, StatusCode::NOT_FOUND, "{what} {taken}: it was read");
        }
        // Only what is stored is taken.
        let stored = matches!(what, "pause" | "abort");
        let expected = if stored { StatusCode::NOT_FOUND } else { StatusCode::UNPROCESSABLE_ENTITY };
        assert_eq!(ask(r#"{"comment": "errors rise"}"#).await, expected, "{what}");
        assert_eq!(ask(r#"{"because": "x"}"#).await, StatusCode::UNPROCESSABLE_ENTITY, "{what}");
    }
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_an_unchanged_config_states_no_length() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    for method in [Method::GET, Method::HEAD] {
        let request = Request::builder().method(method.clone()).uri(format!("{CONFIG_D}k"));
        let request = request.header(header::AUTHORIZATION, KEY).header(header::IF_NONE_MATCH, "*");
        let answer = api.handle(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(
            answer.headers().get(header::CONTENT_LENGTH),
            None,
            "{method}: of 200 it would be another"
        );
    }
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_reserves_its_memory_before_it_is_rendered() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let list = async || {
        let list = ListRequest { scope: ListScope::Configs("d".into()), params: Vec::new() };
        let page = Page { page: 1, limit: 10, descending: false, search: String::new() };
        let source = PageSource::Fresh(Consistency { level: Level::Linearizable, min_revision: None });
        api.service.reads.list(&Principal::root(), list, page, source).await
    };
    assert!(list().await.unwrap().reservation.bytes() > 0);
    let mut held = api.service.cx.reservation(Share::Callers);
    held.grow_anyway(1 << 40);
    let refused = list().await.unwrap_err().refusal;
    assert!(matches!(refused, Refusal::LimitReached(_)), "{refused:?}");
    drop(held);
    // What it has reserved is released with the response, and not reserved twice.
    let request = Request::get(CONFIG_D).header(header::AUTHORIZATION, KEY).version(http::Version::HTTP_2);
    let answer = api.handle(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.extensions().get::<weight::Weighed>().is_some());
    drop(answer);
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_has_a_bounded_number_of_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let ask = async |count: usize| {
        let query = vec!["n=1"; count].join("&");
        let request = Request::get(format!("{CONFIG_D}?{query}")).header(header::AUTHORIZATION, KEY);
        let (parts, body) = api.handle(request.body(Body::empty()).unwrap()).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, String::from_utf8(body.to_vec()).unwrap().contains("4096 parameters"))
    };
    assert_eq!(ask(1000).await, (StatusCode::OK, false));
    assert!(!ask(4096).await.1, "another limit is reached before");
    assert_eq!(ask(4097).await, (StatusCode::UNPROCESSABLE_ENTITY, true));
    api.service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_about_a_config_have_the_standard_headers_and_need_a_key() {
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
