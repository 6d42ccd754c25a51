//! What a client does with each kind of answer, against listeners that answer as they are told.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use http::Method;

use super::*;

/// A listener that gives one answer after the other, each on a connection of its own, and notes the requests. An empty
/// answer closes the connection without a byte. Headers stand behind the status, as in `200|etag:"7" {}`; `~` is a space in
/// them.
fn listener(answers: &'static [&'static str]) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let request = request_on(&mut stream);
            notes.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
            let (status, body) = answer.split_once(' ').unwrap_or(("", ""));
            if !status.is_empty() {
                let length = body.len();
                let (status, headers) = status.split_once('|').unwrap_or((status, "x-none: none"));
                let headers = headers.replace('|', "\r\n").replace('~', " ");
                let head = format!(
                    "HTTP/1.1 {status} X\r\n{headers}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            }
        }
    });
    (url, seen)
}

/// Whether a request has its head and its body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn client(urls: &[&str]) -> Client {
    let urls = urls.iter().map(|url| (*url).to_owned()).collect();
    let timeout = Duration::from_secs(10);
    Client::new(Options { urls, key: "k".into(), timeout, ..Options::default() }).unwrap()
}

/// The URL of a port on which nothing listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn idempotency_key(request: &str) -> Option<&str> {
    request.lines().find_map(|line| line.strip_prefix("idempotency-key: "))
}

const NO_LEADER: &str = r#"503 {"errors": [{"msg": "there is no leader"}]}"#;
const OK: &str = r#"200 {"status":"SUCCESS","message":"","data":{"a":7.0}}"#;

fn write() -> Request {
    Request::new(Method::PUT, "/x").body("application/json", "{}")
}

#[tokio::test]
async fn a_request_goes_to_the_next_node_when_one_is_gone() {
    let (url, seen) = listener(&[OK, OK]);
    let client = client(&[&nobody(), &url]);
    let answer = client.send(Request::get("/a")).await.unwrap();
    assert_eq!(answer.data().unwrap().to_string(), r#"{"a":7.0}"#);
    assert!(seen.lock().unwrap()[0].contains("authorization: k\r\n"));
    // The node that answered is asked first from now on.
    assert_eq!(client.0.preferred.load(Ordering::Relaxed), 1);
    client.send(write().retry(Retry::OtherNode)).await.unwrap();
}

#[tokio::test]
async fn a_write_that_is_sent_again_keeps_its_idempotency_key() {
    let (url, seen) = listener(&["", NO_LEADER, "503 {}", OK]);
    client(&[&url]).send(write()).await.unwrap();
    let seen = seen.lock().unwrap();
    let keys: Vec<_> = seen.iter().map(|request| idempotency_key(request).unwrap()).collect();
    assert_eq!(keys.len(), 4);
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[tokio::test]
async fn a_request_without_a_key_goes_past_a_node_that_can_not_serve() {
    let (lost, _) = listener(&[r#"503 {"errors":[{"msg":"no cluster"}]}"#; 2]);
    let (url, seen) = listener(&[OK]);
    client(&[&lost, &url]).send(write().retry(Retry::OtherNode)).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 1);
    let error = client(&[&lost]).send(write().retry(Retry::OtherNode)).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(refusal) if refusal.status == 503), "{error}");
}

#[tokio::test]
async fn a_write_without_a_key_is_unknown_after_a_lost_answer() {
    let (url, seen) = listener(&["", OK]);
    let error = client(&[&url]).send(write().retry(Retry::OtherNode)).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    assert_eq!(seen.lock().unwrap().len(), 1);
    let (url, _) = listener(&[r#"504 {"errors":[{"msg":"late"}]}"#]);
    let error = client(&[&url]).send(write().retry(Retry::OtherNode)).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
}

#[tokio::test]
async fn an_unknown_outcome_is_not_ended_by_a_refusal_that_the_log_did_not_make() {
    const EXISTS: &str = r#"409 {"errors": [{"code": "config_exists", "msg": "m"}]}"#;
    const BUILDING: &str = r#"409 {"errors": [{"code": "index_building", "msg": "m"}]}"#;
    // The log does not store it: another copy may be applied when the freeze is over.
    const FROZEN: &str = r#"409 {"errors": [{"code": "environment_frozen", "msg": "m"}]}"#;
    const INVALID: &str = r#"422 {"errors": [{"code": "data_invalid", "msg": "m"}]}"#;
    let refusals: [(&'static [&'static str], bool); 10] = [
        (&["504 {}", "422 {}"], true),
        (&["504 {}", "401 {}"], true),
        (&["504 {}", "409 {}"], true),
        (&["504 {}", EXISTS], false),
        (&["504 {}", BUILDING], true),
        (&["504 {}", FROZEN], true),
        (&["503 {}", "422 {}"], true),
        (&[NO_LEADER, INVALID], false),
        // In the words of a proxy: it may have passed the write on.
        (&[NO_LEADER, "400 {}"], true),
        (&[NO_LEADER, "408 {}"], true),
    ];
    for (answers, is_unknown) in refusals {
        let (url, _) = listener(answers);
        let error = client(&[&url]).send(write()).await.unwrap_err();
        assert_eq!(matches!(error, Error::Unknown { .. }), is_unknown, "{answers:?}: {error}");
    }
}

#[tokio::test]
async fn a_refusal_by_a_freeze_is_a_refusal_and_is_not_tried_again() {
    const FROZEN: &str = r#"409 {"errors": [{"code": "environment_frozen", "msg": "m"}]}"#;
    let (url, _) = listener(&[FROZEN, "200 {}"]);
    let error = client(&[&url]).send(write()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused(refusal) if refusal.items[0].code == "environment_frozen"),
        "{error}"
    );
}

#[tokio::test]
async fn a_cluster_that_can_not_be_reached_is_unavailable() {
    let error = client(&[&nobody()]).send(write().timeout(Duration::from_millis(300))).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    let error = client(&[&nobody()]).send(write().retry(Retry::OtherNode)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    // Each node is named, with the reason of its own.
    let (url, _) = listener(&[NO_LEADER; 50]);
    let gone = nobody();
    let error = client(&[&gone, &url]).send(write().timeout(Duration::from_millis(300))).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)), "{text}");
    assert!(text.starts_with(&format!("all 2 nodes failed: {gone} can't be reached: ")), "{text}");
    assert!(text.contains("there is no leader"), "{text}");
}

#[tokio::test]
async fn an_answer_that_is_not_of_a_node_is_told_from_a_refusal() {
    let (url, _) = listener(&["200 hello"]);
    let answer = client(&[&url]).send(Request::get("/")).await.unwrap();
    assert!(matches!(answer.data(), Err(Error::Protocol(_))));
}

/// Reads a request, or what came of it before its client left.
fn request_on(stream: &mut TcpStream) -> Vec<u8> {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !is_whole(&request) {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        request.extend_from_slice(&buffer[..count]);
    }
    request
}

/// A listener that takes connections and requests, sends the beginning of an answer, and then nothing.
fn silent(begin: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // An answer that comes before its request ends the connection.
            request_on(&mut stream);
            stream.write_all(begin.as_bytes()).unwrap();
            held.push(stream);
        }
    });
    url
}

#[tokio::test]
async fn a_response_that_stops_in_the_middle_is_asked_for_at_another_node() {
    const BEGUN: [&str; 3] = [
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{\"status\":",
        // A proxy that stops inside an error.
        "HTTP/1.1 503 X\r\ncontent-length: 50\r\n\r\n{\"errors\":",
    ];
    for begin in BEGUN {
        let (url, _) = listener(&[OK]);
        let client = client(&[&silent(begin), &url]);
        let begun = Instant::now();
        let answer = client.send(Request::get("/a").timeout(Duration::from_secs(4))).await.unwrap();
        assert_eq!(answer.data().unwrap().to_string(), r#"{"a":7.0}"#);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_watch_leaves_a_silent_connection_for_another_node() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: heartbeat\nid: 3\ndata: {\"revision\":3}\n\n";
    const NEXT: &str = "200 event: heartbeat\nid: 4\ndata: {\"revision\":4}\n\n";
    let (url, seen) = listener(&[NEXT]);
    let mut watch = client(&[&silent(HEAD), &url]).watch(Request::get("/api/v1/watch"));
    watch.silence = Duration::from_secs(2);
    assert_eq!(watch.next().await.unwrap().revision, Some(3));
    let event = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.unwrap().unwrap();
    assert_eq!(event.revision, Some(4));
    assert!(seen.lock().unwrap()[0].contains("last-event-id: 3"));
}

fn cases() -> serde_json::Value {
    serde_json::from_str(include_str!("../../../cases.json")).unwrap()
}

#[tokio::test]
async fn a_reason_is_sent_as_the_history_has_it_or_nothing_is() {
    for case in cases()["reasons"]["cases"].as_array().unwrap() {
        let (url, seen) = listener(&[OK]);
        let reason = case["reason"].as_str().map(str::to_owned);
        let made = Client::new(Options { urls: vec![url], reason, ..Options::default() });
        let Some(sent) = case["sent"].as_str() else {
            assert!(matches!(made, Err(Error::Usage(_))), "{case}");
            continue;
        };
        made.unwrap().send(write()).await.unwrap();
        assert!(seen.lock().unwrap()[0].contains(&format!("x-change-reason: {sent}\r\n")), "{case}");
    }
}

#[tokio::test]
async fn what_can_not_be_sent_is_an_error_at_once() {
    let (url, seen) = listener(&[OK]);
    let client = client(&[&url]);
    for request in [write().header("x-change-reason", "two\nlines"), write().idempotency_key("two words")] {
        let begun = Instant::now();
        let error = client.send(request).await.unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_answer_about_another_config_is_no_answer() {
    const OTHER: &str = r#"200 {"status":"SUCCESS","data":{"config_key":"other","data":{}}}"#;
    let (url, _) = listener(&[OTHER]);
    let error = client(&[&url]).config("d", "k").get::<serde_json::Value>().await.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    assert!(error.to_string().contains("about the config \"other\""), "{error}");
}

#[tokio::test]
async fn an_update_keeps_what_the_key_may_not_see() {
    const READ: &str = r#"200|etag:"7"|x-concord-redacted:#/password,#/list/0/token {"status":"SUCCESS","data":{"config_key":"k","data":{"host":"a","password":null,"list":[{"token":null}]}}}"#;
    const WRITTEN: &str =
        r#"200|etag:"8" {"status":"SUCCESS","data":{"host":"b","password":null,"list":[{"token":null}]}}"#;
    const BODY: &str = r#"{"data":{"host":"b","password":{"$concord-keep":true},"list":[{"token":{"$concord-keep":true}}]}}"#;
    /// Has room for neither a marker nor a list of its own.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Typed {
        host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        password: Option<String>,
        list: Vec<BTreeMap<String, Option<String>>>,
    }
    let (url, seen) = listener(&[READ, WRITTEN, READ, WRITTEN]);
    let config = client(&[&url]).config("d", "k");
    let value = config.update(|data: &mut serde_json::Value| data["host"] = "b".into()).await.unwrap();
    assert_eq!((value.value["password"].is_null(), value.revision), (true, 8));
    let typed = config.update(|data: &mut Typed| data.host = "b".into()).await.unwrap();
    assert_eq!((typed.value.host.as_str(), typed.value.password), ("b", None));
    for place in [1, 3] {
        let request = seen.lock().unwrap()[place].clone();
        let sent: serde_json::Value =
            serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(sent, serde_json::from_str::<serde_json::Value>(BODY).unwrap());
    }
    // What would be moved is not sent.
    let (url, seen) = listener(&[READ, READ]);
    let config = client(&[&url]).config("d", "k");
    let moved = config.update(|data: &mut serde_json::Value| {
        data["list"].as_array_mut().unwrap().insert(0, serde_json::json!({}));
    });
    assert!(matches!(moved.await, Err(Error::Usage(_))));
    let moved = config.update(|data: &mut Typed| data.list.insert(0, BTreeMap::new()));
    assert!(matches!(moved.await, Err(Error::Usage(_))));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn documents_of_all_kinds_are_read_and_written_as_they_are() {
    for case in cases()["documents"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let data: serde_json::Value = serde_json::from_str(text).unwrap();
        let again = serde_json::to_string(&data).unwrap();
        let back: serde_json::Value = serde_json::from_str(&again).unwrap();
        assert_eq!(back, data, "{}", case["name"]);
        let plain = |text: &str| text.replace("e+", "e").replace("E+", "e");
        let written = Request::operation(&crate::Operation::CreateConfig {
            definition: "d".into(),
            key: "k".into(),
            data,
        });
        let body = String::from_utf8(written.body.unwrap().1.to_vec()).unwrap();
        if !text.contains('\\') {
            assert!(plain(&body).contains(&plain(text)), "{}: {body}", case["name"]);
        }
    }
}

#[test]
fn urls_that_can_not_be_used_are_rejected_and_show_no_password() {
    for url in cases()["urls"]["refused"].as_array().unwrap() {
        let urls = vec![url.as_str().unwrap().to_owned()];
        let error = Client::new(Options { urls, key: "k".into(), ..Options::default() }).unwrap_err();
        assert!(matches!(error, Error::Usage(_)) && !error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn only_urls_of_http_are_accepted() {
    for wrong in ["127.0.0.1:8101", "ftp://a", ""] {
        let urls = vec![wrong.to_owned()];
        assert!(
            matches!(Client::new(Options { urls, ..Options::default() }), Err(Error::Usage(_))),
            "{wrong}"
        );
    }
}

#[test]
fn no_text_shows_the_password_of_a_url() {
    for url in ["ftp://user:secret@host", "http://user:secret@host"] {
        let options = Options { urls: vec![url.into()], key: "k".into(), ..Options::default() };
        let text = Client::new(options).unwrap_err().to_string();
        assert!(!text.contains("secret"), "{text}");
        assert!(shown_url(url).contains("://***@"), "{}", shown_url(url));
    }
    assert_eq!(shown_url("http://h:1/a@b?c=@"), "http://h:1/a@b?c=@");
}

#[test]
fn the_options_show_no_secret() {
    let urls = vec!["https://user:a-password@n:1".to_owned()];
    let options = Options { urls, key: "concord_a-secret-key".into(), ..Options::default() };
    let shown = format!("{options:?} {options:#?}");
    assert!(!shown.contains("a-secret-key") && !shown.contains("a-password"), "{shown}");
    assert!(shown.contains("key: \"***\"") && shown.contains("@n:1"), "{shown}");
    // A client does not either.
    let options = Options { urls: vec!["http://n:1".into()], ..options };
    let shown = format!("{:?}", Client::new(options).unwrap());
    assert!(!shown.contains("a-secret-key"), "{shown}");
}

#[tokio::test]
async fn warnings_are_told_and_returned() {
    use std::sync::Mutex;
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    const WARNED: &str = r#"200|warning:299~-~"one,~\"a\""|warning:299~-~"two" {"data":{}}"#;
    let (url, _) = listener(&[WARNED, OK]);
    let warn: fn(&str) = |text| TOLD.lock().unwrap().push(text.into());
    let client = Client::new(Options { urls: vec![url], warn: Some(warn), ..Options::default() }).unwrap();
    let answer = client.send(write()).await.unwrap();
    assert_eq!(answer.warnings(), ["one, \"a\"", "two"]);
    assert!(client.send(write()).await.unwrap().warnings().is_empty());
    assert_eq!(*TOLD.lock().unwrap(), answer.warnings());
}
