//! Each kind of answer with data of configs, to a client that may see their secret values and to one who may not.

use futures::StreamExt as _;
use serde_json::{Value, json};

use super::*;

const CONFIGS_S: &str = "/api/v1/config_definition/s/config/";
const CONFIG_S: &str = "/api/v1/config_definition/s/config/k";
const KEEP: &str = r#"{"$concord-keep": true}"#;

/// A node with a definition `s` whose `pw` and the tokens of whose `list` are secret, and a config `k` of two
/// revisions, with `<secret0>` and `<secret1>` in them. The second value, a revision of the first.
async fn node_with_secrets(directory: &std::path::Path) -> (Api, u64) {
    let api = node(directory).await;
    let schema = json!({
        "properties": {
            "pw": {"x-concord-secret": true, "type": ["string", "null"]},
            "list": {"items": {"$ref": "#/$defs/entry"}},
            "name": {"type": "string"}
        },
        "additionalProperties": false,
        "$defs": {"entry": {"properties": {"token": {"x-concord-secret": true}}}}
    });
    let definition = json!({"config_definition_key": "s", "indexes": ["name"], "json_schema": schema});
    let root = Principal::root();
    let created = ask(&api, &root, Method::POST, DEFINITIONS, &definition.to_string()).await;
    assert_eq!(created.0, StatusCode::CREATED, "{}", created.2);
    let data = |n: u64| json!({"pw": format!("<secret{n}>"), "list": [{"token": [format!("<secret{n}>")]}], "name": "open"});
    let body = json!({"config_key": "k", "data": data(0)});
    let (status, headers, text) = ask(&api, &root, Method::POST, CONFIGS_S, &body.to_string()).await;
    assert_eq!(status, StatusCode::CREATED, "{text}");
    let revision = headers["etag"].to_str().unwrap().trim_matches('"').parse().unwrap();
    let (status, ..) = ask(&api, &root, Method::PUT, CONFIG_S, &json!({"data": data(1)}).to_string()).await;
    assert_eq!(status, StatusCode::OK);
    (api, revision)
}

async fn respond(api: &Api, principal: &Principal, method: Method, path: &str, body: &str) -> Response {
    let kind =
        if body.starts_with('[') { "application/json-patch+json" } else { "application/merge-patch+json" };
    let kind = if method == Method::PATCH { kind } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let matched = TABLE.find(request.method(), request.uri().path());
    api.dispatch(RequestAccess::Authenticated(principal.clone()), MatchedRequest::new(request, matched)).await
}

async fn ask(
    api: &Api,
    principal: &Principal,
    method: Method,
    path: &str,
    body: &str,
) -> (StatusCode, HeaderMap, String) {
    let response = respond(api, principal, method, path, body).await;
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    (parts.status, parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

/// The owner of a new key with these verbs for all definitions.
async fn owner(api: &Api, verbs: &[&str]) -> Principal {
    let key = json!({"name": "some", "grants": [{"verbs": verbs, "definitions": ["*"]}]});
    let (status, _, text) =
        ask(api, &Principal::root(), Method::POST, "/api/v1/api_key/", &key.to_string()).await;
    assert_eq!(status, StatusCode::CREATED, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let credential = answer["data"]["api_key"].as_str().unwrap();
    owner_of(api, credential).await
}

async fn blind(api: &Api) -> Principal {
    owner(api, &["read", "write", "define", "delete"]).await
}

async fn seeing(api: &Api) -> Principal {
    owner(api, &["read", "write", "define", "delete", "reveal"]).await
}

#[tokio::test]
async fn no_answer_shows_a_secret_value_without_the_right_to_reveal() {
    let directory = tempfile::tempdir().unwrap();
    let (api, first) = node_with_secrets(directory.path()).await;
    let put = |data: &str| format!(r#"{{"data": {data}}}"#);
    let own = r#"{"pw": "<secret2>", "list": [{"token": "<secret2>"}]}"#;
    let kept = format!(r#"{{"pw": {KEEP}, "list": [{{"token": {KEEP}}}], "name": "kept"}}"#);
    let new = |key: &str| format!(r#"{{"config_key": "{key}", "data": {own}}}"#);
    let at = format!("{CONFIG_S}?revision={first}");
    let requests = |n: usize| {
        vec![
            (Method::GET, CONFIG_S.to_owned(), String::new()),
            (Method::GET, format!("{CONFIG_S}?consistency=local"), String::new()),
            (Method::GET, at.clone(), String::new()),
            (Method::GET, CONFIGS_S.to_owned(), String::new()),
            (Method::GET, format!("{CONFIGS_S}?name=open&sort_by=name"), String::new()),
            (Method::GET, format!("{CONFIG_S}/history"), String::new()),
            (Method::POST, format!("{CONFIGS_S}?dry_run=true"), new("dry")),
            (Method::POST, CONFIGS_S.to_owned(), new(&format!("new{n}"))),
            (Method::PUT, format!("{CONFIG_S}?dry_run=true"), put(own)),
            (Method::PUT, format!("{CONFIG_S}?dry_run=true"), put(&kept)),
            (Method::PUT, CONFIG_S.to_owned(), put(&kept)),
            (Method::PATCH, CONFIG_S.to_owned(), r#"{"name": "merged"}"#.to_owned()),
            (
                Method::PATCH,
                format!("{CONFIG_S}?dry_run=true"),
                r#"[{"op": "remove", "path": "/name"}]"#.to_owned(),
            ),
            (
                Method::POST,
                format!("{CONFIG_S}/rollback?dry_run=true"),
                format!(r#"{{"revision": {first}}}"#),
            ),
            (Method::POST, format!("{CONFIG_S}/rollback"), format!(r#"{{"revision": {first}}}"#)),
        ]
    };
    let principals = [blind(&api).await, seeing(&api).await, Principal::root()];
    for (n, principal) in principals.iter().enumerate() {
        let sees = n > 0;
        for (method, path, body) in requests(n) {
            let (status, headers, text) = ask(&api, principal, method.clone(), &path, &body).await;
            let shown = format!("{n} {method} {path} {body}: {headers:?} {text}");
            assert!(status.is_success(), "{shown}");
            assert_eq!(text.contains("<secret"), sees, "{shown}");
            let redacted = headers.get("x-concord-redacted").map(|value| value.to_str().unwrap());
            let expected = if sees { None } else { Some("#/list/0/token, #/pw") };
            assert_eq!(redacted, expected, "{shown}");
            if !sees {
                let answer: Value = serde_json::from_str(&text).unwrap();
                let one = answer["data"]["results"].get(0).unwrap_or(&answer["data"]);
                let data = one.get("data").unwrap_or(one);
                assert_eq!((&data["pw"], &data["list"][0]["token"]), (&Value::Null, &Value::Null), "{shown}");
            }
        }
    }
    // The response to a batch has no data, and what it wrote is redacted like all else.
    let batch = format!(
        r#"{{"operations": [{{"op": "put_config", "config_definition_key": "s", "config_key": "k", "data": {kept}}}]}}"#
    );
    let (status, _, text) = ask(&api, &blind(&api).await, Method::POST, "/api/v1/batch", &batch).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(text.contains(r#""op":"put_config""#) && !text.contains("<secret"), "{text}");
    let (_, _, text) = ask(&api, &seeing(&api).await, Method::GET, CONFIG_S, "").await;
    assert!(text.contains(r#""pw":"<secret0>""#), "the batch has kept it: {text}");
}

#[tokio::test]
async fn pages_of_a_cursor_are_redacted_too() {
    let directory = tempfile::tempdir().unwrap();
    let (api, _) = node_with_secrets(directory.path()).await;
    for n in 0..3 {
        let body = format!(r#"{{"config_key": "more{n}", "data": {{"pw": "<secret{n}>"}}}}"#);
        assert_eq!(
            ask(&api, &Principal::root(), Method::POST, CONFIGS_S, &body).await.0,
            StatusCode::CREATED
        );
    }
    for (principal, sees) in [(blind(&api).await, false), (seeing(&api).await, true)] {
        let mut path = format!("{CONFIGS_S}?limit=1");
        let mut pages = 0;
        loop {
            let (status, headers, text) = ask(&api, &principal, Method::GET, &path, "").await;
            assert_eq!((status, text.contains("<secret")), (StatusCode::OK, sees), "{text}");
            assert_eq!(headers.contains_key("x-concord-redacted"), !sees);
            pages += 1;
            let Some(link) = headers.get("link") else { break };
            path = link.to_str().unwrap().split(['<', '>']).nth(1).unwrap().to_owned();
        }
        assert_eq!(pages, 4);
    }
}

#[tokio::test]
async fn refusals_do_not_quote_secret_values() {
    let directory = tempfile::tempdir().unwrap();
    let (api, _) = node_with_secrets(directory.path()).await;
    let bad =
        r#"{"data": {"pw": {"inner": "<secret3>"}, "name": 7, "list": [{"token": "<secret3>"}], "more": 1}}"#;
    let principals = [blind(&api).await, seeing(&api).await, Principal::root()];
    for (n, principal) in principals.into_iter().enumerate() {
        for (method, path, body) in [
            (Method::PUT, CONFIG_S, bad),
            (Method::PATCH, CONFIG_S, r#"{"pw": ["<secret3>"]}"#),
            (Method::PUT, CONFIG_S, r#"{"data": {"name": {"$concord-keep": true}}}"#),
        ] {
            let (status, _, text) = ask(&api, &principal, method, path, body).await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{text}");
            assert!(!text.contains("<secret"), "{text}");
        }
        // Which configs do not fit a schema, and why.
        let schema = r#"{"json_schema": {"properties": {"name": {}, "pw": {"x-concord-secret": true, "maxLength": 1}}}}"#;
        let path = "/api/v1/config_definition/s/schema?dry_run=true";
        let (status, _, text) = ask(&api, &principal, Method::PUT, path, schema).await;
        assert!(!text.contains("<secret"), "{text}");
        let is_blind = n == 0;
        assert_eq!(status, if is_blind { StatusCode::FORBIDDEN } else { StatusCode::OK }, "{text}");
        assert_eq!(text.contains("maxLength"), !is_blind, "{text}");
    }
    let null = r#"{"data": {"pw": null, "list": [{"token": null}]}}"#;
    assert_eq!(
        ask(&api, &blind(&api).await, Method::PUT, CONFIG_S, null).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert_eq!(ask(&api, &seeing(&api).await, Method::PUT, CONFIG_S, null).await.0, StatusCode::OK);
}

#[tokio::test]
async fn no_schema_tells_by_comparing_whether_a_guess_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let (api, _) = node_with_secrets(directory.path()).await;
    let list = |is_unique: bool| json!({"properties": {"keys": {"uniqueItems": is_unique, "items": {"x-concord-secret": true}}}});
    let definition = |is_unique: bool| {
        json!({"config_definition_key": "u", "indexes": [], "json_schema": list(is_unique)}).to_string()
    };
    let root = Principal::root();
    let (status, _, text) = ask(&api, &root, Method::POST, DEFINITIONS, &definition(true)).await;
    assert!(status == StatusCode::UNPROCESSABLE_ENTITY && text.contains("uniqueItems"), "{text}");
    assert_eq!(ask(&api, &root, Method::POST, DEFINITIONS, &definition(false)).await.0, StatusCode::CREATED);
    for query in ["", "?dry_run=true", "?policy=force"] {
        let path = format!("/api/v1/config_definition/u/schema{query}");
        let body = json!({"json_schema": list(true)}).to_string();
        let (status, _, text) = ask(&api, &root, Method::PUT, &path, &body).await;
        assert!(
            status == StatusCode::UNPROCESSABLE_ENTITY && text.contains("uniqueItems"),
            "{query}: {text}"
        );
    }
    let path = "/api/v1/config_definition/u/config/";
    let stored = r#"{"config_key": "k", "data": {"keys": ["<secret>"]}}"#;
    assert_eq!(ask(&api, &root, Method::POST, path, stored).await.0, StatusCode::CREATED);
    let blind = blind(&api).await;
    let [right, wrong] = ["<secret>", "<guess>"]
        .map(|guess| json!([{"op": "add", "path": "/keys/-", "value": guess}]).to_string());
    let path = "/api/v1/config_definition/u/config/k?dry_run=true";
    let (right, wrong) = (
        ask(&api, &blind, Method::PATCH, path, &right).await,
        ask(&api, &blind, Method::PATCH, path, &wrong).await,
    );
    assert_eq!((right.0, right.2), (wrong.0, wrong.2));
}

/// Reads a watch until a text is in it.
async fn watched(api: &Api, principal: &Principal, path: &str, last: &str) -> String {
    let response = respond(api, principal, Method::GET, path, "").await;
    assert_eq!(response.status(), StatusCode::OK);
    let (mut stream, mut all) = (response.into_body().into_data_stream(), String::new());
    while !all.contains(last) {
        let chunk = stream.next().await.expect("the watch goes on").unwrap();
        all.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    all
}

#[tokio::test]
async fn the_events_of_a_watch_are_redacted() {
    let directory = tempfile::tempdir().unwrap();
    let (api, first) = node_with_secrets(directory.path()).await;
    let last = r#"{"config_key": "last", "data": {"pw": "<secret9>", "name": "the end"}}"#;
    assert_eq!(ask(&api, &Principal::root(), Method::POST, CONFIGS_S, last).await.0, StatusCode::CREATED);
    for path in [
        "/api/v1/watch?initial=true".to_owned(),
        "/api/v1/watch?initial=true&definition=s&name=the%20end".to_owned(),
        format!("/api/v1/watch?from={first}"),
        format!("/api/v1/watch?from={first}&definition=s&config_key=k&config_key=last"),
    ] {
        for (principal, sees) in
            [(blind(&api).await, false), (seeing(&api).await, true), (Principal::root(), true)]
        {
            let text = watched(&api, &principal, &path, "the end").await;
            assert_eq!(text.contains("<secret"), sees, "{path}: {text}");
            assert_eq!(text.contains("\"redacted\":[\"#/pw\"]"), !sees, "{path}: {text}");
        }
    }
    // Of a definition that is gone nobody knows any more what was secret.
    let gone = ask(&api, &blind(&api).await, Method::DELETE, "/api/v1/config_definition/s", "").await;
    assert_eq!(gone.0, StatusCode::OK);
    let again = r#"{"config_definition_key": "s", "indexes": []}"#;
    assert_eq!(ask(&api, &blind(&api).await, Method::POST, DEFINITIONS, again).await.0, StatusCode::CREATED);
    let open = r#"{"config_key": "open", "data": {"name": "of the new one"}}"#;
    assert_eq!(ask(&api, &blind(&api).await, Method::POST, CONFIGS_S, open).await.0, StatusCode::CREATED);
    let path = format!("/api/v1/watch?from={first}&definition=s");
    let text = watched(&api, &blind(&api).await, &path, "of the new one").await;
    assert!(!text.contains("<secret") && text.contains(r##""redacted":["#"]"##), "{text}");
    assert!(watched(&api, &seeing(&api).await, &path, "of the new one").await.contains("<secret"));
}

#[tokio::test]
async fn no_filter_finds_configs_of_a_definition_that_is_gone_by_what_was_secret() {
    let directory = tempfile::tempdir().unwrap();
    let (api, first) = node_with_secrets(directory.path()).await;
    let (blind, seeing) = (blind(&api).await, seeing(&api).await);
    let gone = ask(&api, &blind, Method::DELETE, "/api/v1/config_definition/s", "").await;
    assert_eq!(gone.0, StatusCode::OK);
    // The same key, without the mark: what was secret can be indexed now.
    let again = r#"{"config_definition_key": "s", "indexes": ["pw"]}"#;
    let (status, headers, text) = ask(&api, &blind, Method::POST, DEFINITIONS, again).await;
    assert_eq!(status, StatusCode::CREATED, "{text}");
    let created: u64 = headers["etag"].to_str().unwrap().trim_matches('"').parse().unwrap();
    let poll = async |principal: &Principal, from: u64, filter: &str| {
        let path = format!("/api/v1/changes?definition=s&wait=0&from={from}{filter}");
        let (status, _, text) = ask(&api, principal, Method::GET, &path, "").await;
        (status, text)
    };
    for guess in ["&pw=%3Csecret1%3E", "&pw=%3Csecret9%3E", "&pw[gte]=%3Csecret0"] {
        let (status, text) = poll(&blind, first, guess).await;
        assert_eq!(status, StatusCode::GONE, "{guess}: {text}");
        let path = format!("/api/v1/watch?definition=s&from={first}{guess}");
        assert_eq!(ask(&api, &blind, Method::GET, &path, "").await.0, StatusCode::GONE, "{guess}");
        assert_eq!(poll(&blind, created, guess).await.0, StatusCode::OK, "from its creation on");
    }
    let (status, text) = poll(&blind, first, "").await;
    assert!(status == StatusCode::OK && !text.contains("<secret"), "{text}");
    let (right, wrong) =
        (poll(&seeing, first, "&pw=%3Csecret1%3E").await, poll(&seeing, first, "&pw=%3Csecret9%3E").await);
    assert!(right.1.contains("<secret1>") && !wrong.1.contains("<secret"), "{right:?} {wrong:?}");
    assert_eq!((right.0, wrong.0), (StatusCode::OK, StatusCode::OK));
}
