//! A reader of watches: server-sent events as they arrive, and a follower that resumes at the next node.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::task::JoinHandle;

use super::{Answer, Call, Client, DEADLINE, PAUSE, check, event, eventually, time::pace};
pub(crate) use event::Event;

/// The path of watches.
pub(crate) const WATCH: &str = "/api/v1/watch";

/// An open watch.
#[derive(Debug)]
pub(crate) struct Watch {
    response: reqwest::Response,
    text: Vec<u8>,
}

impl Client {
    /// Opens a watch; the error is the refusal, or none when the node was not reached.
    pub(crate) async fn try_watch(
        &self,
        query: &[(&str, &str)],
        last: Option<u64>,
    ) -> Result<Watch, Option<Answer>> {
        let mut call = self.get(WATCH).query(query);
        if let Some(last) = last {
            call = call.header("last-event-id", &last.to_string());
        }
        let response = call.open().await.map_err(|_| None)?;
        if response.status().as_u16() == 200 {
            return Ok(Watch { response, text: Vec::new() });
        }
        Err(call.answer(response).await.ok())
    }

    /// Opens a watch; asks again when a busy node refuses.
    pub(crate) async fn watch(&self, query: &[(&str, &str)], last: Option<u64>) -> Watch {
        eventually("a watch opens", async || match self.try_watch(query, last).await {
            Ok(watch) => Ok(watch),
            Err(Some(answer)) if matches!(answer.status, 429 | 503) => Err(format!("{answer:?}")),
            Err(Some(answer)) => panic!("{answer:?}"),
            Err(None) => Err("the node was not reached".to_owned()),
        })
        .await
    }
}

impl Watch {
    /// The stream that answers a call.
    pub(crate) async fn of(call: &Call) -> Self {
        eventually("a stream opens", async || {
            let response = call.open().await?;
            check(response.status().as_u16() == 200, || format!("{response:?}"))?;
            Ok(Self { response, text: Vec::new() })
        })
        .await
    }

    /// The stream of an answer.
    pub(crate) fn from(response: reqwest::Response) -> Self {
        Self { response, text: Vec::new() }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next event; `None` at the end of the stream, an error when the connection is lost or nothing comes.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, String> {
        loop {
            match event::next(&mut self.text) {
                Some(Some(event)) => return Ok(Some(event)),
                Some(None) => continue,
                None => {}
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk());
            match chunk.await.map_err(|_| "nothing came".to_owned())? {
                Ok(Some(bytes)) => self.text.extend_from_slice(&bytes),
                Ok(None) => {
                    assert!(self.text.is_empty(), "a stream ends between two events");
                    return Ok(None);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The next event of a stream that has not ended.
    pub(crate) async fn event(&mut self) -> Event {
        self.next().await.expect("the stream goes on").expect("the stream has not ended")
    }

    /// The next event that is not a heartbeat.
    pub(crate) async fn data_event(&mut self) -> Event {
        loop {
            let event = self.event().await;
            if event.name != "heartbeat" {
                return event;
            }
        }
    }

    /// Reads to the end without parsing; counts the bytes.
    pub(crate) async fn drain(mut self, bytes: Arc<AtomicU64>) {
        while let Ok(Some(chunk)) = self.response.chunk().await {
            bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
    }

    /// The changes of the next events, each with its revision, until there are so many.
    pub(crate) async fn changes(&mut self, number: usize) -> Vec<(u64, Value)> {
        let mut found = Vec::new();
        while found.len() < number {
            found.extend(changes_of(&self.data_event().await));
        }
        found
    }
}

/// The changes of an event, after asserting its format.
pub(crate) fn changes_of(event: &Event) -> Vec<(u64, Value)> {
    assert_eq!(event.name, "change", "{event:?}");
    let revision = event.data["revision"].as_u64().expect("a revision");
    assert_eq!(event.id, Some(revision), "{event:?}");
    let changes = event.data["changes"].as_array().expect("`changes` is a list");
    assert!(!changes.is_empty(), "{event:?}");
    changes.iter().map(|change| (revision, change.clone())).collect()
}

/// The configs of a caller that applies the changes that they receive, by definition and key.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Mirror(pub(crate) BTreeMap<(String, String), Value>);

impl Mirror {
    pub(crate) fn apply(&mut self, change: &Value) {
        let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
        let key = (text("config_definition_key"), text("config_key"));
        if let Some(prev) = change.get("prev") {
            let known = self.0.get(&key).unwrap_or(&Value::Null);
            assert_eq!(prev, known, "each change names the data of the one before: {change}");
        }
        match change["type"].as_str().expect("a change has a type") {
            "config_created" | "config_updated" => drop(self.0.insert(key, change["data"].clone())),
            "config_deleted" | "config_unmatched" => drop(self.0.remove(&key)),
            "definition_deleted" => self.0.retain(|(definition, _), _| *definition != key.0),
            "definition_created" | "definition_updated" => {}
            other => panic!("an unknown type: {other}"),
        }
    }

    /// The configs of one definition.
    pub(crate) fn of(&self, definition: &str) -> BTreeMap<String, Value> {
        let mine = self.0.iter().filter(|((of, _), _)| of == definition);
        mine.map(|((_, key), data)| (key.clone(), data.clone())).collect()
    }
}

/// A caller that follows a watch whatever happens to the nodes: it resumes at the next one after the last event id.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Revision and changes of each event, in the order of arrival.
    received: Arc<Mutex<Vec<(u64, Value)>>>,
    /// How often it has opened a watch.
    pub(crate) opened: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Follows from a revision on, at first at the client in the first place. After `patience` events it leaves a
    /// healthy node, too.
    pub(crate) fn start(clients: Vec<Client>, from: u64, patience: usize) -> Self {
        Self::start_with(clients, from, patience, &[])
    }

    /// The same with more parameters.
    pub(crate) fn start_with(
        clients: Vec<Client>,
        from: u64,
        patience: usize,
        more: &'static [(&str, &str)],
    ) -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let (opened, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let task = tokio::spawn({
            let (received, opened, stop) = (Arc::clone(&received), Arc::clone(&opened), Arc::clone(&stop));
            async move {
                let mut last = None;
                for client in clients.iter().cycle() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let from = from.to_string();
                    let query = [&[("from", from.as_str())], more].concat();
                    match client.try_watch(&query, last).await {
                        Ok(watch) => {
                            opened.fetch_add(1, Ordering::SeqCst);
                            follow(watch, &received, &mut last, patience, &stop).await;
                        }
                        Err(Some(answer)) if answer.status == 410 => match resume_after(&answer.text) {
                            Some(revision) => last = Some(revision),
                            None => panic!("{answer:?}"),
                        },
                        Err(Some(answer)) if !matches!(answer.status, 429 | 503) => panic!("{answer:?}"),
                        Err(_) => pace(PAUSE).await,
                    }
                }
            }
        });
        Self { received, opened, stop, task }
    }

    /// Waits until it has received the changes up to a revision.
    pub(crate) async fn reaches(&self, revision: u64) {
        eventually("a follower receives the last change", async || {
            assert!(!self.task.is_finished(), "a follower has given up");
            let last = self.received.lock().expect("no holder panics").last().map_or(0, |last| last.0);
            check(last >= revision, || format!("at {last} of {revision}"))
        })
        .await;
    }

    /// Ends it and returns what it received.
    pub(crate) async fn end(self) -> Vec<(u64, Value)> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.abort();
        if let Err(error) = self.task.await {
            assert!(error.is_cancelled(), "a follower panicked: {error}");
        }
        std::mem::take(&mut self.received.lock().expect("no holder panics"))
    }
}

/// The revision after which a watch may go on that has ended because a definition has returned with its configs: no event
/// tells of these. No checked definition returns.
fn resume_after(message: &str) -> Option<u64> {
    let (_, after) = message.split_once("or resume after revision ")?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

async fn follow(
    mut watch: Watch,
    received: &Mutex<Vec<(u64, Value)>>,
    last: &mut Option<u64>,
    patience: usize,
    stop: &AtomicBool,
) {
    let mut number = 0;
    // A lost connection, an end of the stream and an error event are alike: it resumes elsewhere.
    while let Ok(Some(event)) = watch.next().await {
        if event.name == "error" {
            let error = &event.data["errors"][0];
            match resume_after(error["msg"].as_str().unwrap_or_default()) {
                Some(revision) => *last = Some(revision),
                None => assert_eq!(error["type"], "unavailable_error", "{event:?}"),
            }
        }
        if event.name == "change" {
            number += 1;
            let revision = event.data["revision"].as_u64().expect("a revision");
            received.lock().expect("no holder panics").push((revision, event.data["changes"].clone()));
        }
        if let Some(id) = event.id {
            assert!(last.is_none_or(|last| id >= last), "ids never go back: {last:?}, then {event:?}");
            *last = Some(id);
        }
        if number >= patience || stop.load(Ordering::SeqCst) {
            return;
        }
    }
    pace(Duration::from_millis(5)).await;
}
