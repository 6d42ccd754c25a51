//! A cache against a cluster that answers as it is told: what is fresh, what is stale, and what is kept.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

use serde_json::{Value, json};

use super::*;
use crate::Options;

const WAIT: Duration = Duration::from_secs(30);

/// A node of one's own making: it answers each poll from a list and keeps its watches open.
struct Node {
    url: String,
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
struct Script {
    /// The revision that the cluster is at; `None`: it has lost the cluster.
    revision: Option<u64>,
    /// What polls from a revision on return.
    events: Vec<Value>,
    state: Value,
    watches: Vec<TcpStream>,
    /// The requests that came, as their first lines and `last-event-id`.
    seen: VecDeque<String>,
    is_gone: bool,
    /// The id that it tells of its cluster.
    cluster: Option<&'static str>,
    /// It opens no watch.
    has_no_watch: bool,
    /// The reports that came, with what they are about.
    reports: Vec<(String, Value)>,
    /// The key lacks `report`.
    has_no_report: bool,
}

impl Node {
    fn start(revision: u64, state: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Script { revision: Some(revision), state, ..Script::default() };
        let script = Arc::new(Mutex::new(script));
        let shared = script.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &shared);
            }
        });
        Self { url, script }
    }

    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Sends an event over all watches. A cluster that tells of a change has it.
    fn send(&self, name: &str, id: u64, data: &Value) {
        let text = format!("event: {name}\nid: {id}\ndata: {data}\n\n");
        let mut script = self.script();
        if name == "change" {
            script.revision = script.revision.map(|revision| revision.max(id));
        }
        script.watches.retain_mut(|watch| watch.write_all(text.as_bytes()).is_ok());
    }

    fn cache(&self, change: impl FnOnce(CacheOptions) -> CacheOptions) -> Cache {
        let options =
            Options { urls: vec![self.url.clone()], key: "k".into(), timeout: WAIT, ..Options::default() };
        let mut cached = CacheOptions::new(vec![Selection::definition("a")]);
        cached.confirm_every = Duration::from_millis(20);
        Client::new(options).unwrap().cache(change(cached)).unwrap()
    }
}

fn answer(mut stream: TcpStream, script: &Mutex<Script>) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
    let text = String::from_utf8_lossy(&request).to_lowercase();
    let line = text.lines().next().unwrap_or_default().to_owned();
    let mut script = script.lock().unwrap();
    let last = text.lines().find_map(|line| line.strip_prefix("last-event-id: ")).map(str::to_owned);
    script.seen.push_back(format!("{line} {}", last.as_deref().unwrap_or("-")));
    let cluster = script.cluster.map(|id| format!("x-concord-cluster: {id}\r\n")).unwrap_or_default();
    let close = format!("connection: close\r\nx-concord-node: 7\r\n{cluster}");
    if line.starts_with("post ") {
        // Of a change request, or of a config: `definition/key`.
        let path = line.split(' ').nth(1).unwrap_or_default();
        let path = path
            .trim_start_matches("/api/v1/change_request/")
            .trim_start_matches("/api/v1/config_definition/");
        let about = path.trim_end_matches("/report").replace("/config/", "/");
        script.reports.push((about, body_of(&mut stream, request, &text)));
        let status = if script.has_no_report { "403 Forbidden" } else { "200 OK" };
        let _ =
            stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n{close}\r\n{{}}").as_bytes());
        return;
    }
    if line.contains("/watch?") {
        if script.has_no_watch {
            let refused = format!("HTTP/1.1 503 X\r\ncontent-length: 2\r\n{close}\r\n{{}}");
            let _ = stream.write_all(refused.as_bytes());
            return;
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{close}\r\n");
        let refused = format!("HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n{close}\r\n{{}}");
        if last.is_some() && script.is_gone {
            let _ = stream.write_all(refused.as_bytes());
            return;
        }
        let revision = script.state["revision"].clone();
        let first = match last {
            Some(_) => String::new(),
            None => format!("event: state\nid: {revision}\ndata: {}\n\n", script.state),
        };
        let _ = stream.write_all(format!("{head}{first}").as_bytes());
        script.watches.push(stream);
        return;
    }
    let from = line.split("from=").nth(1).and_then(|rest| rest.split(['&', ' ']).next()?.parse::<u64>().ok());
    let Some(revision) = script.revision else {
        let _ =
            stream.write_all(format!("HTTP/1.1 503 X\r\ncontent-length: 2\r\n{close}\r\n{{}}").as_bytes());
        return;
    };
    let events: Vec<&Value> = match from {
        Some(from) => {
            script.events.iter().filter(|event| event["revision"].as_u64().unwrap() >= from).collect()
        }
        None => Vec::new(),
    };
    let next = format!("x-concord-next-from: {}\r\n", revision + 1);
    let text = if events.is_empty() {
        format!("HTTP/1.1 304 X\r\n{close}{next}\r\n")
    } else {
        let body = json!({"data": {"events": events}}).to_string();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{close}{next}\r\n{body}", body.len())
    };
    let _ = stream.write_all(text.as_bytes());
}

fn body_of(stream: &mut TcpStream, mut request: Vec<u8>, head: &str) -> Value {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let begin = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut buffer = [0; 4096];
    while request.len() < begin + length.parse::<usize>().unwrap() {
        let count = stream.read(&mut buffer).unwrap();
        request.extend_from_slice(&buffer[..count]);
    }
    serde_json::from_slice(&request[begin..]).unwrap()
}

fn config(key: &str, n: u64) -> Value {
    json!({"config_definition_key": "a", "config_key": key, "data": {"n": n}, "revision": 1,
           "created_at": "c", "modified_at": "m"})
}

fn state(revision: u64, n: u64) -> Value {
    json!({"revision": revision, "definitions": [], "configs": [config("k", n)], "complete": true})
}

fn event(revision: u64, n: u64) -> Value {
    let mut change = config("k", n);
    change["type"] = "config_updated".into();
    // A change names a revision only where it is another one than that of its event.
    change.as_object_mut().unwrap().remove("revision");
    json!({"revision": revision, "changes": [change]})
}

async fn until(cache: &Cache, what: &str, is_so: impl Fn(&Cache) -> bool) {
    let mut changes = cache.subscribe();
    let waited = tokio::time::timeout(WAIT, async {
        while !is_so(cache) {
            assert!(changes.next().await);
        }
    });
    assert!(waited.await.is_ok(), "{what}: {:?}", cache.status());
}

fn n(cache: &Cache) -> u64 {
    cache.get("a", "k").unwrap().unwrap().config.data["n"].as_u64().unwrap()
}

#[tokio::test]
async fn a_cache_has_the_state_and_then_each_change() {
    let node = Node::start(5, state(5, 1));
    let cache = node.cache(|options| options);
    assert!(matches!(cache.get("a", "k"), Err(Error::Unavailable(_))));
    assert!(matches!(cache.get("b", "k"), Err(Error::Usage(_))));
    let source = cache.ready(WAIT).await.unwrap();
    assert_eq!((source.origin, source.revision, source.node.as_deref()), (Origin::Cache, 5, Some("7")));
    assert_eq!(n(&cache), 1);
    assert!(cache.get("a", "other").unwrap().is_none());
    node.send("change", 6, &event(6, 2));
    until(&cache, "the change", |cache| n(cache) == 2).await;
    assert_eq!(cache.get("a", "k").unwrap().unwrap().config.revision, 6);
    assert_eq!(cache.list("a").unwrap().0.len(), 1);
}

#[tokio::test]
async fn a_change_that_the_watch_does_not_bring_comes_by_the_question() {
    let node = Node::start(5, state(5, 1));
    let cache = node.cache(|options| options);
    cache.ready(WAIT).await.unwrap();
    {
        let mut script = node.script();
        script.events.push(event(7, 9));
        script.revision = Some(8);
    }
    // The watch's node has lost the cluster and sends on what it knows.
    node.send("heartbeat", 6, &json!({"revision": 6}));
    until(&cache, "the change", |cache| n(cache) == 9).await;
    cache.reached(8, WAIT).await.unwrap();
    // What comes late is known already.
    node.send("change", 7, &event(7, 9));
    node.send("change", 9, &event(9, 10));
    until(&cache, "the next", |cache| n(cache) == 10).await;
}

#[tokio::test]
async fn what_nothing_confirms_is_not_fresh_although_the_watch_goes_on() {
    let node = Node::start(5, state(5, 1));
    let cache = node.cache(|options| CacheOptions { fresh_for: Duration::from_millis(300), ..options });
    assert!(cache.fresh(WAIT).await.is_ok());
    node.script().revision = None;
    let begin = std::time::Instant::now();
    loop {
        node.send("heartbeat", 5, &json!({"revision": 5}));
        let source = cache.source().unwrap();
        if !source.is_fresh() {
            assert!(source.age > Duration::from_millis(300) && source.stale_since().is_some());
            break;
        }
        assert!(begin.elapsed() < WAIT);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It still answers, and is fresh again once the cluster is there.
    assert_eq!(n(&cache), 1);
    node.script().revision = Some(5);
    cache.fresh(WAIT).await.unwrap();
}

#[tokio::test]
async fn a_broken_watch_goes_on_and_one_that_can_not_begins_anew() {
    let node = Node::start(5, state(5, 1));
    let cache = node.cache(|options| options);
    cache.ready(WAIT).await.unwrap();
    node.send("change", 6, &event(6, 2));
    until(&cache, "the change", |cache| n(cache) == 2).await;
    let cut = || {
        let watches = std::mem::take(&mut node.script().watches);
        watches.into_iter().for_each(|watch| watch.shutdown(std::net::Shutdown::Both).unwrap());
    };
    let watched = |after: &str| {
        let seen = &node.script().seen;
        seen.iter().any(|line| line.contains("/watch?") && line.ends_with(after))
    };
    cut();
    let begin = std::time::Instant::now();
    while !watched(" 6") {
        assert!(begin.elapsed() < WAIT, "{:?}", node.script().seen);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(cache.status().listings, 1);
    // The changes are no longer kept: another state, in which the config is gone.
    {
        let mut script = node.script();
        script.is_gone = true;
        script.state =
            json!({"revision": 9, "definitions": [], "configs": [config("l", 3)], "complete": true});
        script.revision = Some(9);
    }
    cut();
    until(&cache, "a new listing", |cache| cache.status().listings == 2).await;
    assert!(cache.get("a", "k").unwrap().is_none() && cache.get("a", "l").unwrap().is_some());
}

/// The nodes are those of another cluster, or of an earlier state, while the watch is still open at a node of before.
async fn superseded(change: impl FnOnce(&mut Script), revision: u64) {
    let node = Node::start(50, state(50, 1));
    node.script().cluster = Some("one");
    let cache = node.cache(|options| CacheOptions { fresh_for: Duration::from_secs(3600), ..options });
    cache.fresh(WAIT).await.unwrap();
    {
        let mut script = node.script();
        change(&mut script);
        script.state = state(revision, 0);
        script.revision = Some(revision);
        script.has_no_watch = true;
    }
    // The state can't be listed yet. Nothing that is known is fresh, however short ago it was.
    until(&cache, "it is not fresh", |cache| !cache.source().unwrap().is_fresh()).await;
    assert!(cache.status().problem.unwrap().contains("another cluster"), "{:?}", cache.status());
    assert_eq!((n(&cache), cache.source().unwrap().origin), (1, Origin::Cache));
    // What the node of before sends on is of the cluster of before.
    node.send("heartbeat", 51, &json!({"revision": 51}));
    assert!(cache.fresh(Duration::from_millis(200)).await.is_err());
    node.script().has_no_watch = false;
    until(&cache, "the new state", |cache| n(cache) == 0).await;
    assert!(cache.source().unwrap().is_fresh());
    assert_eq!((cache.source().unwrap().revision, cache.status().listings), (revision, 2));
    node.send("change", revision + 1, &event(revision + 1, 3));
    until(&cache, "a change", |cache| n(cache) == 3).await;
}

#[tokio::test]
async fn a_cluster_of_an_earlier_state_confirms_nothing_and_is_listed_anew() {
    superseded(|_| {}, 20).await;
}

#[tokio::test]
async fn another_cluster_confirms_nothing_and_is_listed_anew() {
    superseded(|script| script.cluster = Some("two"), 50).await;
    superseded(|script| script.cluster = Some("two"), 70).await;
}

#[tokio::test]
async fn a_watch_does_not_go_on_in_another_cluster() {
    let node = Node::start(5, state(5, 1));
    node.script().cluster = Some("one");
    let options = Options { urls: vec![node.url.clone()], key: "k".into(), ..Options::default() };
    let client = Client::new(options).unwrap();
    let mut watch = client.watch(Request::get("/api/v1/watch").query("initial", "true"));
    assert_eq!((watch.next().await.unwrap().revision, watch.cluster()), (Some(5), Some("one")));
    node.script().cluster = Some("two");
    let watches = std::mem::take(&mut node.script().watches);
    watches.into_iter().for_each(|watch| watch.shutdown(std::net::Shutdown::Both).unwrap());
    let error = tokio::time::timeout(WAIT, watch.next()).await.unwrap().unwrap_err();
    assert_eq!(error.status(), Some(http::StatusCode::GONE), "{error}");
    assert!(error.to_string().contains("another cluster"), "{error}");
}

#[tokio::test]
async fn a_start_without_nodes_answers_from_the_file_and_calls_nothing_fresh() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cache.json");
    let node = Node::start(5, state(5, 1));
    let cache = node.cache(|options| options.file(&file));
    cache.ready(WAIT).await.unwrap();
    cache.save().await.unwrap();
    drop(cache);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = Node { url: format!("http://{}", listener.local_addr().unwrap()), script: Arc::default() };
    drop(listener);
    let cache = nobody.cache(|options| options.file(&file));
    let read = cache.get("a", "k").unwrap().unwrap();
    assert_eq!(read.config.data["n"], 1);
    assert_eq!((read.source.origin, read.source.revision, read.source.is_fresh()), (Origin::File, 5, false));
    assert!(read.source.age < WAIT && read.source.stale_since().is_some());
    let error = cache.fresh(Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)));
    // A read of a node falls back to it, and a file that was never confirmed is not written again.
    let read = cache.read("a", "k", Duration::from_millis(300)).await.unwrap().unwrap();
    assert_eq!(read.source.origin, Origin::File);
    std::fs::remove_file(&file).unwrap();
    cache.save().await.unwrap();
    assert!(!file.exists());
    // Without a file nothing is known, which is an error and no empty answer.
    let cache = nobody.cache(|options| options);
    assert!(matches!(cache.get("a", "k"), Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn a_type_keeps_the_last_value_that_it_admits() {
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Limits {
        n: u64,
    }
    let node = Node::start(5, state(5, 1));
    let cache = node.cache(|options| options);
    let typed = cache.typed::<Limits>("a", "k");
    cache.ready(WAIT).await.unwrap();
    let first = typed.get().unwrap().unwrap();
    assert_eq!((&*first.value, first.revision, first.rejected), (&Limits { n: 1 }, 1, None));
    assert!(Arc::ptr_eq(&first.value, &typed.get().unwrap().unwrap().value));

    let mut wrong = event(6, 0);
    wrong["changes"][0]["data"] = json!({"n": "many"});
    node.send("change", 6, &wrong);
    until(&cache, "the change", |cache| cache.source().unwrap().revision == 6).await;
    let kept = typed.get().unwrap().unwrap();
    assert_eq!((kept.value.n, kept.revision), (1, 1));
    assert!(kept.rejected.unwrap().contains("a/k at revision 6"));
    assert!(matches!(cache.typed::<Limits>("a", "k").get(), Err(Error::Protocol(_))));
    node.send("change", 7, &event(7, 3));
    until(&cache, "the change", |cache| cache.source().unwrap().revision == 7).await;
    assert_eq!(typed.get().unwrap().unwrap().value.n, 3);
}

/// A state with a candidate.
fn with_candidate(revision: u64, data: &Value) -> Value {
    let mut state = state(revision, 0);
    state["configs"] = json!([{"config_definition_key": "a", "config_key": "k", "data": data, "revision": 2,
                               "variant": {"change_id": "change-1"}, "created_at": "c", "modified_at": "m"}]);
    state
}

#[derive(Debug, serde::Deserialize)]
struct Counted {
    n: u64,
}

#[tokio::test]
async fn a_candidate_is_reported_healthy_until_the_type_rejects_it() {
    let node = Node::start(5, with_candidate(5, &json!({"n": 1})));
    let cache = node.cache(|options| options);
    let typed = cache.typed::<Counted>("a", "k");
    cache.ready(WAIT).await.unwrap();
    let read = cache.get("a", "k").unwrap().unwrap().config;
    assert_eq!((read.revision, read.variant.as_deref()), (0, Some("change-1")));
    until(&cache, "a report", |_| !node.script().reports.is_empty()).await;
    let (change, report) = node.script().reports[0].clone();
    assert_eq!(change, "change-1");
    assert_eq!(report["state"], "healthy");
    assert_eq!(report["reader"].as_str(), cache.0.shared.client.reader());

    let candidate = json!({"type": "config_updated", "config_definition_key": "a", "config_key": "k",
                           "data": {"n": "s3cret"}, "revision": 2, "variant": {"change_id": "change-1"}, "created_at": "c", "modified_at": "m"});
    node.send("change", 6, &json!({"revision": 6, "changes": [candidate]}));
    let has_failed =
        |_: &Cache| node.script().reports.last().is_some_and(|(_, report)| report["state"] == "failed");
    until(&cache, "the failure", has_failed).await;
    let report = node.script().reports.last().unwrap().1.clone();
    let detail = report["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("a/k of change request change-1") && !detail.contains("s3cret"), "{detail}");
    assert!(typed.get().is_err(), "it admitted nothing before this");

    // The rollout is taken back: the config has an earlier revision than what was read before.
    let back = json!({"type": "config_updated", "config_definition_key": "a", "config_key": "k", "data": {"n": 3},
                      "revision": 2, "created_at": "c", "modified_at": "m"});
    node.send("change", 7, &json!({"revision": 7, "changes": [back]}));
    cache.reached(7, WAIT).await.unwrap();
    let read = typed.get().unwrap().unwrap();
    assert_eq!((read.value.n, read.revision, read.variant), (3, 2, None));
}

#[tokio::test]
async fn a_judge_says_what_is_reported_and_a_key_without_the_verb_stops_it() {
    static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let node = Node::start(5, with_candidate(5, &json!({"n": 1})));
    node.script().has_no_report = true;
    let warn: fn(&str) = |text| WARNED.lock().unwrap().push(text.to_owned());
    let options =
        Options { urls: vec![node.url.clone()], warn: Some(warn), timeout: WAIT, ..Options::default() };
    let mut cached = CacheOptions::new(vec![Selection::definition("a")]);
    cached.confirm_every = Duration::from_millis(20);
    let cached = cached.judge(|config| Verdict::Failed(format!("{}: no", config.key)));
    let cache = Client::new(options).unwrap().cache(cached).unwrap();
    until(&cache, "a warning", |_| !WARNED.lock().unwrap().is_empty()).await;
    assert_eq!(node.script().reports[0].1["detail"], "k: no");
    // Several confirmations later there is still one report, and one warning.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((node.script().reports.len(), WARNED.lock().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn a_config_that_the_program_rejects_is_reported_outside_rollouts_until_it_does_not() {
    let mut state = with_candidate(5, &json!({"n": "s3cret"}));
    state["configs"][0]["variant"] = Value::Null;
    let node = Node::start(5, state);
    let cache = Client::new(Options { urls: vec![node.url.clone()], timeout: WAIT, ..Options::default() });
    let mut options = CacheOptions::new(vec![Selection::definition("a")]);
    options.confirm_every = Duration::from_millis(20);
    let cache = cache.unwrap().cache(options).unwrap();
    let typed = cache.typed::<Counted>("a", "k");
    until(&cache, "a report", |_| !node.script().reports.is_empty()).await;
    let (about, report) = node.script().reports[0].clone();
    assert_eq!(about, "a/k");
    assert_eq!((&report["state"], &report["revision"]), (&json!("failed"), &json!(2)));
    assert_eq!(report["instance"].as_str().map(str::len), Some(16));
    let detail = report["detail"].as_str().unwrap();
    assert!(detail.contains("a/k at revision 2") && !detail.contains("s3cret"), "{detail}");
    assert!(typed.get().is_err());
    let good = json!({"type": "config_updated", "config_definition_key": "a", "config_key": "k", "data": {"n": 3},
                      "created_at": "c", "modified_at": "m"});
    node.send("change", 7, &json!({"revision": 7, "changes": [good]}));
    until(&cache, "the end", |_| node.script().reports.len() > 1).await;
    let last = node.script().reports.last().unwrap().1.clone();
    assert_eq!((&last["state"], &last["revision"]), (&json!("healthy"), &json!(7)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.script().reports.len(), 2, "what runs well is silent");
}

/// A type that panics at some data.
#[derive(Debug)]
struct Fragile;

impl<'de> serde::Deserialize<'de> for Fragile {
    fn deserialize<D: serde::Deserializer<'de>>(data: D) -> Result<Self, D::Error> {
        let Counted { n } = serde::Deserialize::deserialize(data)?;
        assert!(n != 4711, "s3cret {n}");
        Ok(Self)
    }
}

/// A change of the config `a/k` of [`with_candidate`].
fn changed(revision: u64, data: &Value, variant: Option<&str>) -> Value {
    let mut change = json!({"type": "config_updated", "config_definition_key": "a", "config_key": "k", "data": data,
                            "created_at": "c", "modified_at": "m"});
    if let Some(id) = variant {
        change["variant"] = json!({ "change_id": id });
    }
    json!({"revision": revision, "changes": [change]})
}

#[tokio::test]
async fn a_panic_of_the_program_is_a_failure_and_ends_no_cache() {
    for is_of_type in [true, false] {
        let node = Node::start(5, with_candidate(5, &json!({"n": 4711})));
        let judge = |config: &Config| {
            assert!(config.data["n"] != 4711, "s3cret");
            Verdict::Healthy
        };
        let cache = node.cache(|options| if is_of_type { options } else { options.judge(judge) });
        let _typed = is_of_type.then(|| cache.typed::<Fragile>("a", "k"));
        until(&cache, "the failure", |_| !node.script().reports.is_empty()).await;
        let report = node.script().reports[0].1.clone();
        let who = if is_of_type { "type" } else { "judge" };
        assert_eq!(report["state"], "failed");
        assert_eq!(report["detail"], format!("a/k: the {who} of the program panicked"));
        // It follows, confirms and reports as before.
        node.send("change", 6, &changed(6, &json!({"n": 2}), Some("change-2")));
        cache.reached(6, WAIT).await.unwrap();
        let is_well = |_: &Cache| {
            let script = node.script();
            script.reports.iter().any(|(of, report)| of == "change-2" && report["state"] == "healthy")
        };
        until(&cache, "the next rollout", is_well).await;
        assert_eq!(cache.get("a", "k").unwrap().unwrap().source.freshness, Freshness::Fresh);
    }
}

#[tokio::test]
async fn a_list_that_panics_is_told_once_and_takes_back_nothing() {
    static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut state = with_candidate(5, &json!({"n": 1}));
    state["configs"][0]["variant"] = Value::Null;
    let node = Node::start(5, state);
    // A hook of the program that panics itself.
    let warn: fn(&str) = |text| {
        WARNED.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        panic!("{text}");
    };
    let warned = || WARNED.lock().unwrap_or_else(PoisonError::into_inner).len();
    let options =
        Options { urls: vec![node.url.clone()], warn: Some(warn), timeout: WAIT, ..Options::default() };
    let mut cached = CacheOptions::new(vec![Selection::definition("a")]);
    cached.confirm_every = Duration::from_millis(20);
    let known = Arc::new(Mutex::new(None::<Arc<Config>>));
    let listed = known.clone();
    let cached = cached.rejected(move || {
        let config = listed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(config) = config else { return Vec::new() };
        assert!(config.data["n"] == 1, "s3cret");
        vec![(config, Verdict::Failed("no".into()))]
    });
    let cache = Client::new(options).unwrap().cache(cached).unwrap();
    cache.ready(WAIT).await.unwrap();
    *known.lock().unwrap() = Some(cache.get("a", "k").unwrap().unwrap().config);
    until(&cache, "the failure", |_| !node.script().reports.is_empty()).await;
    node.send("change", 6, &changed(6, &json!({"n": 2}), None));
    cache.reached(6, WAIT).await.unwrap();
    *known.lock().unwrap() = Some(cache.get("a", "k").unwrap().unwrap().config);
    until(&cache, "the warning", |_| warned() > 0).await;
    node.send("change", 7, &changed(7, &json!({"n": 3}), None));
    cache.reached(7, WAIT).await.unwrap();
    // Several looks later there is one warning, and nothing said that the config is good again.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((node.script().reports.len(), warned()), (1, 1));
}
