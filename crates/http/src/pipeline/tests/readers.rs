//! What the interface answers to clients that say who they are, while a rollout runs.

use futures::StreamExt as _;
use serde_json::{Value, json};

use super::*;
use concord_model::{
    command::{Proposal, Verdict},
    system::change::ChangeId,
    time::Timestamp,
};
use concord_state::testing::rollouts::Rolling;

const ID: &str = "changechange";
const CONFIG: &str = "/api/v1/config_definition/d/config/k";
const CANARY: [(&str, &str); 2] = [("x-concord-reader", "host-1"), ("x-concord-labels", "ring=canary")];
const OTHER: [(&str, &str); 1] = [("x-concord-reader", "host-2")];

fn rolling() -> Rolling<'static> {
    Rolling {
        id: ChangeId::parse(ID).unwrap(),
        definition: "d",
        configs: &[("k", r#"{"n":7,"s":"<secret>"}"#)],
    }
}

async fn decide(api: &Api, make: impl FnOnce(&concord_state::State, Timestamp) -> Proposal) -> u64 {
    let consensus = api.service.cx.consensus().unwrap();
    let proposal = make(&consensus.state(), concord_service::now());
    let verdict = consensus.write(proposal).await.unwrap();
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    api.service.cx.revision()
}

/// A node with `d` and `k`, of which a rollout has begun. Its `s` is secret.
async fn rolling_node(directory: &std::path::Path) -> Api {
    let api = node(directory).await;
    let schema = json!({"properties": {"n": {"type": "number"}, "s": {"x-concord-secret": true}}});
    let body = json!({"json_schema": schema}).to_string();
    let path = "/api/v1/config_definition/d/schema";
    let set = ask(&api, (Method::PUT, path), &[], &body).await;
    assert_eq!(set.status, StatusCode::OK, "{}", set.body);
    decide(&api, |state, at| rolling().create(state, at)).await;
    decide(&api, |state, at| rolling().begin(state, at)).await;
    api
}

async fn respond(
    api: &Api,
    principal: &Principal,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    let mut request = Request::builder().method(method).uri(path);
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let matched = TABLE.find(request.method(), request.uri().path());
    api.dispatch(RequestAccess::Authenticated(principal.clone()), MatchedRequest::new(request, matched)).await
}

/// The status, the entity tag, the variant and the body of a response.
async fn ask(api: &Api, request: (Method, &str), headers: &[(&str, &str)], body: &str) -> Answer {
    let response = respond(api, &Principal::root(), request, headers, body).await;
    let text = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (tag, variant, vary) = (text("etag"), text("x-concord-variant"), text("vary"));
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    Answer { status, tag, variant, vary, body: serde_json::from_slice(&body).unwrap_or_default() }
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    tag: Option<String>,
    variant: Option<String>,
    vary: Option<String>,
    body: Value,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_in_gets_the_candidate_and_its_tag() {
    let directory = tempfile::tempdir().unwrap();
    let api = rolling_node(directory.path()).await;
    let get = async |headers: &[(&str, &str)]| ask(&api, (Method::GET, CONFIG), headers, "").await;
    let proven = get(&[]).await;
    assert_eq!(
        (&proven.body["data"]["data"], &proven.variant, &proven.vary),
        (&json!({"n": 1}), &None, &None)
    );
    let out = get(&OTHER).await;
    assert_eq!((&out.body, &out.tag, &out.variant), (&proven.body, &proven.tag, &None));
    let seen = get(&CANARY).await;
    assert_eq!(seen.body["data"]["data"]["n"], 7);
    assert_eq!(seen.body["data"]["modified_at"], proven.body["data"]["modified_at"], "of the proven config");
    assert_eq!(seen.tag.as_deref(), Some("\"changechange-1\""));
    assert_eq!(seen.variant.as_deref(), Some("candidate; change=changechange"));
    assert_eq!(seen.vary.as_deref(), Some("x-concord-reader, x-concord-labels"));

    // Neither has the version of the other.
    let has = async |headers: &[(&str, &str)], tag: &str| {
        let answer = get(&[headers, &[("if-none-match", tag)]].concat()).await;
        answer.status == StatusCode::NOT_MODIFIED
    };
    let tag = proven.tag.unwrap();
    assert!(has(&CANARY, "\"changechange-1\"").await && has(&OTHER, &tag).await && has(&[], &tag).await);
    assert!(!has(&CANARY, &tag).await && !has(&OTHER, "\"changechange-1\"").await);

    // Parts of it, and no other part of the interface.
    let part = ask(&api, (Method::GET, &format!("{CONFIG}?fields=n&include=revision")), &CANARY, "").await;
    assert_eq!((&part.body["data"]["data"], part.variant.is_some()), (&json!({"n": 7}), true));
    let revision = &part.body["data"]["revision"];
    assert_eq!(format!("\"{revision}\""), tag, "of the proven config");
    for path in
        [format!("{CONFIG}?revision={revision}"), format!("{CONFIG_D}?n=1"), format!("{CONFIG}/history")]
    {
        let answer = ask(&api, (Method::GET, &path), &CANARY, "").await;
        assert!(
            answer.status.is_success() && !answer.body.to_string().contains("\"n\":7"),
            "{path}: {answer:?}"
        );
        assert_eq!(answer.variant, None, "{path}");
    }
    let write =
        ask(&api, (Method::PUT, CONFIG), &[("if-match", "\"changechange-1\"")], r#"{"data":{"n":2}}"#).await;
    assert!([StatusCode::CONFLICT, StatusCode::PRECONDITION_FAILED].contains(&write.status), "{write:?}");

    // After the abort nobody sees it.
    decide(&api, |_, at| rolling().abort(at)).await;
    let after = get(&CANARY).await;
    assert_eq!((after.body, after.tag, after.variant), (proven.body, Some(tag), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_configs_are_read_as_their_reader_sees_them() {
    let directory = tempfile::tempdir().unwrap();
    let api = rolling_node(directory.path()).await;
    let read = async |headers: &[(&str, &str)], tag: Option<&str>| {
        let configs = ["k", "a~b"]
            .map(|key| json!({"config_definition_key": "d", "config_key": key, "if_none_match": tag}));
        let body = json!({"configs": configs}).to_string();
        ask(&api, (Method::POST, "/api/v1/read"), headers, &body).await.body["data"]["results"].clone()
    };
    let (proven, seen) = (read(&[], None).await, read(&CANARY, None).await);
    assert_eq!(seen[1], proven[1], "it is in no rollout");
    assert_eq!((&proven[0]["variant"], &proven[0]["config"]["data"]), (&Value::Null, &json!({"n": 1})));
    assert_eq!(seen[0]["variant"], json!({"change_id": ID}));
    assert_eq!((&seen[0]["config"]["data"]["n"], &seen[0]["revision"]), (&json!(7), &proven[0]["revision"]));
    let tag = format!("\"{}\"", proven[0]["revision"]);
    let status =
        async |headers: &[(&str, &str)], tag: &str| read(headers, Some(tag)).await[0]["status"].clone();
    assert_eq!(status(&CANARY, "\"changechange-1\"").await, "not_modified");
    assert_eq!(status(&CANARY, &tag).await, "found");
    assert_eq!(
        (status(&[], &tag).await, status(&[], "\"changechange-1\"").await),
        (json!("not_modified"), json!("found"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_and_polls_say_which_version_their_reader_sees() {
    let directory = tempfile::tempdir().unwrap();
    let api = rolling_node(directory.path()).await;
    let begun = api.service.cx.revision();
    let read = async |path: &str, headers: &[(&str, &str)], until: &str| {
        let response = respond(&api, &Principal::root(), (Method::GET, path), headers, "").await;
        assert_eq!(response.status(), StatusCode::OK);
        let (mut stream, mut all) = (response.into_body().into_data_stream(), String::new());
        while !all.contains(until) {
            all.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
        }
        all
    };
    let variant = r#""variant":{"change_id":"changechange"}"#;
    let initial = "/api/v1/watch?initial=true&definition=d";
    assert!(read(initial, &CANARY, "\"complete\":true").await.contains(variant));
    for headers in [&[][..], &OTHER] {
        let text = read(initial, headers, "\"complete\":true").await;
        assert!(!text.contains(variant) && text.contains("\"n\":1"), "{text}");
    }
    let aborted = decide(&api, |_, at| rolling().abort(at)).await;
    let poll = format!("/api/v1/changes?definition=d&wait=0&from={begun}");
    let polled = ask(&api, (Method::GET, &poll), &CANARY, "").await.body;
    let events = &polled["data"]["events"];
    assert_eq!(
        (&events[0]["revision"], &events[1]["revision"]),
        (&json!(begun), &json!(aborted)),
        "{polled}"
    );
    let items = [0, 1].map(|place| &events[place]["changes"][0]);
    assert_eq!(items.map(|item| &item["data"]["n"]), [&json!(7), &json!(1)]);
    assert_eq!([&items[0]["variant"], &items[1]["variant"]], [&json!({"change_id": ID}), &Value::Null]);
    assert_eq!(items[0]["revision"], items[1]["revision"], "of the proven config");
    assert!(items[1]["revision"].as_u64().unwrap() < begun);
    let unidentified = ask(&api, (Method::GET, &poll), &[], "").await;
    assert_eq!(unidentified.status, StatusCode::NOT_MODIFIED);
    let latest = "/api/v1/changes?definition=d&latest=9";
    let lists = [&[][..], &CANARY].map(|headers| ask(&api, (Method::GET, latest), headers, ""));
    let [one, other] = futures::future::join_all(lists).await.try_into().unwrap();
    assert_eq!(
        (one.status, one.body["data"]["events"].clone()),
        (other.status, other.body["data"]["events"].clone())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secrets_of_a_candidate_are_redacted() {
    let directory = tempfile::tempdir().unwrap();
    let api = rolling_node(directory.path()).await;
    let before = api.service.cx.revision();
    let blind = concord_service::testing::owner(&[concord_model::access_key::Verb::Read]);
    let body = r#"{"configs":[{"config_definition_key":"d","config_key":"k"}]}"#;
    let poll = format!("/api/v1/changes?definition=d&wait=0&from={before}");
    for (principal, sees) in [(&blind, false), (&Principal::root(), true)] {
        for (method, path, body) in
            [(Method::GET, CONFIG, ""), (Method::POST, "/api/v1/read", body), (Method::GET, &*poll, "")]
        {
            let response = respond(&api, principal, (method, path), &CANARY, body).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
            let text = std::str::from_utf8(&bytes).unwrap();
            assert!(text.contains("\"n\":7"), "the candidate: {text}");
            assert_eq!(text.contains("<secret>"), sees, "{path}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_reader_says_of_itself_is_checked_where_it_counts() {
    let directory = tempfile::tempdir().unwrap();
    let api = node(directory.path()).await;
    let labels = [("x-concord-labels", "ring=canary")];
    let body = r#"{"configs":[{"config_definition_key":"d","config_key":"k"}]}"#;
    for (method, path, body) in [
        (Method::GET, CONFIG, ""),
        (Method::POST, "/api/v1/read", body),
        (Method::GET, "/api/v1/watch", ""),
        (Method::GET, "/api/v1/changes?wait=0", ""),
    ] {
        let answer = ask(&api, (method, path), &labels, body).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        assert_eq!(answer.body["errors"][0]["loc"], json!(["header", "x-concord-labels"]), "{path}");
    }
    let filtered = ask(&api, (Method::GET, "/api/v1/watch?definition=d&n=1"), &OTHER, "").await;
    assert_eq!(filtered.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(filtered.body["errors"][0]["loc"], json!(["header", "x-concord-reader"]));
    assert_eq!(ask(&api, (Method::GET, CONFIG_D), &labels, "").await.status, StatusCode::OK);
}
