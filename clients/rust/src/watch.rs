//! Watches that survive lost connections.
//!
//! **Invariant:** after a lost connection the watch resumes after the last event that it returned, at any node: no change
//! is missed or duplicated. If the nodes now belong to another cluster, for example one restored from a backup, the watch
//! ends. If the connection breaks during the initial state, that starts over, and [`EventKind::Restarted`] says so.

use std::{collections::VecDeque, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use crate::{Client, Error, Refusal, Request, client::SILENCE};

/// The largest event: a whole revision, which may be a batch of 1000 large records.
const EVENT_BYTES_MAX: usize = 1 << 30;
/// The pause before a reconnect.
const PAUSE: Duration = Duration::from_millis(200);

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// All changes of one revision.
    Change,
    /// A part of the initial state.
    State,
    /// Everything up to the event's revision has been sent.
    Heartbeat,
    /// The initial state starts over: discard the parts received so far.
    Restarted,
}

/// An event.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// The revision up to which everything has been received, if the event names it.
    pub revision: Option<u64>,
    /// Its data.
    pub data: Value,
}

/// A watch.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    request: Request,
    open: Option<(reqwest::Response, String)>,
    last: Option<u64>,
    node: Option<String>,
    cluster: Option<String>,
    /// Parts of the state were handed out, and its last part was not.
    is_in_state: bool,
    frames: Frames,
    /// How long a connection without data is open.
    pub(crate) silence: Duration,
}

impl Watch {
    pub(crate) fn new(client: Client, request: Request) -> Self {
        let request = request.header("accept", "text/event-stream");
        Self {
            client,
            request,
            open: None,
            last: None,
            node: None,
            cluster: None,
            is_in_state: false,
            frames: Frames::default(),
            silence: SILENCE,
        }
    }

    /// The revision up to which [`Watch::next`] has returned everything.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.last
    }

    /// The id of the node that sends the events, once one has responded.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The id of the cluster that sends the events, once a node has responded with it.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// The next event.
    ///
    /// # Errors
    /// When a node rejects the request; 410 when the changes after the last event are no longer retained, or the nodes now
    /// belong to another cluster. A lost connection is an error only if no node is reachable for the client's time limit.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(frame) = self.frames.next() {
                match self.event(&frame)? {
                    Some(event) => return Ok(event),
                    None => continue,
                }
            }
            if self.open.is_none() {
                self.reconnect().await?;
                if std::mem::take(&mut self.is_in_state) {
                    return Ok(Event { kind: EventKind::Restarted, revision: None, data: Value::Null });
                }
            }
            let Some((response, _)) = &mut self.open else { continue };
            match tokio::time::timeout(self.silence, response.chunk()).await {
                Ok(Ok(Some(chunk))) => self.frames.push(&chunk)?,
                // The end or an error: another connection goes on behind the last event.
                Ok(Ok(None) | Err(_)) => self.lose().await,
                // Silence: what holds back here takes new connections as well.
                Err(_) => {
                    self.client.leave_node();
                    self.lose().await;
                }
            }
        }
    }

    async fn lose(&mut self) {
        self.open = None;
        self.frames = Frames::default();
        tokio::time::sleep(PAUSE).await;
    }

    async fn reconnect(&mut self) -> Result<(), Error> {
        let mut request = self.request.clone();
        if let Some(last) = self.last {
            request = request.header("last-event-id", last.to_string());
        }
        let deadline = Instant::now() + self.client.timeout();
        let (response, url) = self.client.stream(&request, deadline).await?;
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        if let Some(cluster) = header("x-concord-cluster") {
            let before = self.cluster.get_or_insert_with(|| cluster.clone());
            if *before != cluster && self.last.is_some() {
                return Err(Error::Refused(Box::new(Refusal::other_cluster(&url))));
            }
            *before = cluster;
        }
        self.node = header("x-concord-node");
        self.open = Some((response, url));
        Ok(())
    }

    fn event(&mut self, frame: &Frame) -> Result<Option<Event>, Error> {
        let mut data: Value = serde_json::from_str(&frame.data)
            .map_err(|_| Error::Protocol("the data of an event are not JSON".into()))?;
        let kind = match frame.name.as_str() {
            "change" => EventKind::Change,
            "state" => EventKind::State,
            "heartbeat" => EventKind::Heartbeat,
            "error" => return self.ended(&data, &frame.data).map(|()| None),
            // Kinds that a later version adds.
            _ => return Ok(None),
        };
        self.client.leave_event(&mut data);
        self.last = frame.id.or(self.last);
        self.is_in_state = kind == EventKind::State && frame.id.is_none();
        Ok(Some(Event { kind, revision: frame.id, data }))
    }

    /// An `error` event ends the stream: at another node, or for good.
    fn ended(&mut self, data: &Value, text: &str) -> Result<(), Error> {
        let url = self.open.take().map_or_else(String::new, |(_, url)| url);
        self.frames = Frames::default();
        let kind = data["errors"][0]["type"].as_str().unwrap_or_default();
        let status = match kind {
            "unavailable_error" | "timeout_error" | "server_error" | "rate_limited" => return Ok(()),
            "expired_error" => http::StatusCode::GONE,
            "unauthorized_error" => http::StatusCode::UNAUTHORIZED,
            "forbidden_error" => http::StatusCode::FORBIDDEN,
            "not_found_error" => http::StatusCode::NOT_FOUND,
            "conflict_error" => http::StatusCode::CONFLICT,
            _ => http::StatusCode::UNPROCESSABLE_ENTITY,
        };
        Err(Error::Refused(Box::new(Refusal::new(&url, status, String::new(), text))))
    }
}

/// One server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    name: String,
    id: Option<u64>,
    data: String,
}

/// The events in the bytes that came.
#[derive(Debug, Default)]
struct Frames {
    pending: Vec<u8>,
    ready: VecDeque<Frame>,
}

impl Frames {
    fn next(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), Error> {
        // An end may lie on the border of two chunks.
        let mut from = self.pending.len().saturating_sub(1);
        self.pending.extend_from_slice(chunk);
        if self.pending.len() > EVENT_BYTES_MAX {
            return Err(Error::Protocol("an event exceeds the size limit".into()));
        }
        let mut begin = 0;
        while let Some(end) = self.pending[from..].windows(2).position(|two| two == b"\n\n") {
            let end = from + end;
            let text = String::from_utf8_lossy(&self.pending[begin..end]);
            self.ready.extend(frame(&text));
            begin = end + 2;
            from = begin;
        }
        self.pending.drain(..begin);
        Ok(())
    }
}

/// An event; `None` where a block has no data, as the one that sets the time to reconnect.
fn frame(text: &str) -> Option<Frame> {
    let mut frame = Frame::default();
    let mut has_data = false;
    for line in text.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut frame.name),
            "id" => frame.id = value.parse().ok(),
            "data" => {
                if has_data {
                    frame.data.push('\n');
                }
                has_data = true;
                frame.data.push_str(value);
            }
            _ => {}
        }
    }
    has_data.then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_bytes_are_cut() {
        let text =
            "retry: 1000\n\nevent: heartbeat\nid: 3\ndata: {\"revision\":3}\n\nevent: state\ndata: {}\n\n";
        let expected = [
            Frame { name: "heartbeat".into(), id: Some(3), data: "{\"revision\":3}".into() },
            Frame { name: "state".into(), id: None, data: "{}".into() },
        ];
        for size in 1..=text.len() {
            let mut frames = Frames::default();
            for chunk in text.as_bytes().chunks(size) {
                frames.push(chunk).unwrap();
            }
            assert_eq!(frames.ready, expected, "in chunks of {size}");
            assert!(frames.pending.is_empty());
        }
    }
}
