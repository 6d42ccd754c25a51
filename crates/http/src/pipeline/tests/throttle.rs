//! Clients behind an address where somebody guesses credentials.

use std::{net::IpAddr, time::Duration};

use serde_json::{Value, json};

use super::*;
use concord_service::{CallerAddress, testing::throttling_service};

/// A new connection from one address.
fn connection() -> CallerAddress {
    let address = IpAddr::from([10, 0, 0, 1]);
    CallerAddress::new(address, address)
}

/// The status of a request with a credential.
async fn ask_on(connection: &CallerAddress, api: &Api, credential: &str) -> StatusCode {
    let request = Request::get(format!("{CONFIG_D}k")).header(header::AUTHORIZATION, credential);
    let answered = api.handle(request.body(Body::empty()).unwrap());
    connection.clone().serve(answered).await.status()
}

/// The same on a new connection.
async fn ask(api: &Api, credential: &str) -> StatusCode {
    ask_on(&connection(), api, credential).await
}

/// Creates a stored key that may read everything; its id and its text.
async fn new_key(api: &Api) -> (String, String) {
    let key = json!({"name": "k", "grants": [{"verbs": ["read"], "definitions": ["*"]}]});
    let request = Request::post("/api/v1/api_key/").header(header::AUTHORIZATION, KEY);
    let response = api.handle(request.body(Body::from(key.to_string())).unwrap()).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let data = serde_json::from_slice::<Value>(&body).unwrap()["data"].take();
    let text = |name: &str| data[name].as_str().unwrap().to_owned();
    (text("key_id"), text("api_key"))
}

#[tokio::test]
async fn whoever_loses_a_key_while_a_read_waits_learns_nothing_from_its_response() {
    let directory = tempfile::tempdir().unwrap();
    let api = node_of(throttling_service(directory.path(), 2)).await;
    let (id, text) = new_key(&api).await;
    let principal = owner_of(&api, &text).await;
    let waiting = || WaitingReader::of(&RequestAccess::Authenticated(principal.clone()), true).unwrap();
    let readers: Vec<WaitingReader> = (0..4).map(|_| waiting()).collect();
    let path = format!("/api/v1/api_key/{id}");
    let revoke = Request::delete(path).header(header::AUTHORIZATION, KEY).body(Body::empty()).unwrap();
    assert_eq!(api.handle(revoke).await.status(), StatusCode::OK);
    // So long that the reader is authorized again.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(1100)).await;
    tokio::time::resume();
    let statuses =
        [StatusCode::OK, StatusCode::NOT_MODIFIED, StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE];
    let answered = readers
        .into_iter()
        .zip(statuses)
        .map(|(reader, status)| reader.answered(&api.service, status.into_response()).status());
    let expected = [
        StatusCode::UNAUTHORIZED,
        StatusCode::UNAUTHORIZED,
        StatusCode::UNAUTHORIZED,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    assert_eq!(answered.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_good_key_is_not_locked_out_by_who_guesses_behind_its_address() {
    let directory = tempfile::tempdir().unwrap();
    let api = node_of(throttling_service(directory.path(), 2)).await;
    let ((id, good), (_, other)) = (new_key(&api).await, new_key(&api).await);
    for _ in 0..2 {
        assert_eq!(ask(&api, "guessed").await, StatusCode::UNAUTHORIZED);
    }
    // From now on a credential is looked at only if nobody can have guessed it.
    assert_eq!(ask(&api, "guessed").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&api, KEY).await, StatusCode::TOO_MANY_REQUESTS, "an operator chose the root key");
    assert_eq!(ask(&api, &good).await, StatusCode::OK);
    assert_eq!(ask(&api, &other).await, StatusCode::OK);
    let path = format!("/api/v1/api_key/{id}");
    let revoke = Request::delete(path).header(header::AUTHORIZATION, KEY).body(Body::empty()).unwrap();
    assert_eq!(api.handle(revoke).await.status(), StatusCode::OK);
    assert_eq!(ask(&api, &good).await, StatusCode::TOO_MANY_REQUESTS, "it was revoked");
    assert_eq!(ask(&api, &other).await, StatusCode::OK);
}

#[tokio::test]
async fn the_work_of_a_connection_is_that_of_its_last_good_key() {
    for failures_max in [0, 2] {
        let directory = tempfile::tempdir().unwrap();
        let api = node_of(throttling_service(directory.path(), failures_max)).await;
        let ((_, one), (_, other)) = (new_key(&api).await, new_key(&api).await);
        let (first, second) = (connection(), connection());
        let mut owners = Vec::new();
        for credential in ["guessed", &one, &one, "guessed", &other, &one] {
            ask_on(&first, &api, credential).await;
            owners.push(first.owner());
        }
        assert_eq!(owners[0], connection().owner(), "nobody is known");
        assert_eq!(owners[1..], [owners[1], owners[1], owners[1], owners[4], owners[1]]);
        assert!(owners[0] != owners[1] && owners[1] != owners[4] && owners[0] != owners[4]);
        // With the limit, no attempt is left.
        let refused =
            if failures_max == 0 { StatusCode::UNAUTHORIZED } else { StatusCode::TOO_MANY_REQUESTS };
        assert_eq!(ask_on(&second, &api, "guessed").await, refused);
        assert_eq!(ask_on(&second, &api, &one).await, StatusCode::OK);
        assert!(second.owner() == owners[1] && second.is_known());
    }
}
