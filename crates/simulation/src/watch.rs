//! Follows everything that changes: by a stream of events, or by waiting reads. A follower that is cut off resumes at another node
//! behind the last change that it has.
//!
//! What was received is compared with the service's history at the end (`tests/chaos/service_history.rs`): nothing is
//! missing, nothing comes twice, everything is in order.

use std::{rc::Rc, time::Duration};

use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    harness::{Answer, Client, RECOVERY_MAX, event},
    trace,
    workload::Run,
};

/// Longer than a node is silent.
const SILENCE_MAX: Duration = Duration::from_secs(12);

/// What one follower has received.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Each event: its revision and its changes.
    pub(crate) events: Vec<(u64, Value)>,
    /// What it had not seen was compacted meanwhile: it went on from the present.
    pub(crate) has_gap: bool,
}

struct Follower {
    id: usize,
    run: Rc<Run>,
    rng: fastrand::Rng,
    /// Where it goes on; none: at the present.
    from: Option<u64>,
    followed: Followed,
}

/// One follower, until it has seen the last change of all.
pub(crate) async fn follow(id: usize, run: Rc<Run>) -> turmoil::Result {
    let mut rng = fastrand::Rng::with_seed(run.setup.seed.wrapping_mul(37).wrapping_add(id as u64));
    while run.from.get() == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    let clients = Client::all(run.setup.nodes);
    let mut place = rng.usize(..clients.len());
    let from = Some(run.from.get());
    let mut follower = Follower { id, run: Rc::clone(&run), rng, from, followed: Followed::default() };
    let mut patience = None;
    while !follower.is_at_the_end() {
        // As soon as there is nothing more to come it must not take long any more.
        if run.end.get().is_some() {
            let end = *patience.get_or_insert_with(|| Instant::now() + RECOVERY_MAX);
            if Instant::now() > end {
                let text = format!("follower {id} is at {:?} of {:?}", follower.from, run.end.get());
                run.shared.history.contradict(text);
                break;
            }
        }
        let client = &clients[place];
        if id.is_multiple_of(2) {
            follower.wait(client).await
        } else {
            follower.stream(client).await
        }
        place = (place + 1) % clients.len();
        sleep(Duration::from_millis(follower.rng.u64(5..100))).await;
    }
    run.followed.borrow_mut().push(follower.followed);
    run.following.set(run.following.get() - 1);
    Ok(())
}

impl Follower {
    fn is_at_the_end(&self) -> bool {
        self.run.end.get().is_some_and(|end| self.from.is_some_and(|from| from > end))
    }

    fn contradict(&self, text: &str) {
        self.run.shared.history.contradict(format!("follower {}: {text}", self.id));
    }

    fn receive(&mut self, revision: u64, changes: &Value) {
        trace::note(|_| (), format_args!("follower {} at {revision}", self.id));
        if self.from.is_some_and(|from| revision < from) {
            self.contradict(&format!("revision {revision} came, and {:?} was due", self.from));
        }
        self.followed.events.push((revision, changes.clone()));
        self.from = Some(revision + 1);
    }

    /// What a rejection means.
    async fn refused(&mut self, answer: &Answer) {
        match answer.status {
            410 => (self.from, self.followed.has_gap) = (None, true),
            429 | 503 | 504 => sleep(Duration::from_millis(50)).await,
            _ => self.contradict(&format!("a rejection: {answer:?}")),
        }
    }

    /// Asks again and again for what has changed.
    async fn wait(&mut self, client: &Client) {
        for _ in 0..self.rng.u8(1..20) {
            if self.is_at_the_end() {
                return;
            }
            let mut call = client.get("/api/v1/changes").query(&[("wait", "2"), ("prev", "true")]);
            if let Some(from) = self.from {
                call = call.query(&[("from", &from.to_string())]);
            }
            let Ok(answer) = call.attempt().await else { return };
            if !matches!(answer.status, 200 | 304) {
                return self.refused(&answer).await;
            }
            for event in answer.body["data"]["events"].as_array().into_iter().flatten() {
                let revision = event["revision"].as_u64().expect("a revision");
                self.receive(revision, &event["changes"]);
            }
            let Ok(next) = answer.header("x-concord-next-from").parse() else {
                return self.contradict(&format!("it says no place to go on: {answer:?}"));
            };
            if self.from.is_some_and(|from| next < from) {
                self.contradict(&format!("it goes back from {:?}: {answer:?}", self.from));
            }
            self.from = Some(next);
        }
    }

    /// Reads a stream of events until it ends, or for some events.
    async fn stream(&mut self, client: &Client) {
        let mut call = client.get("/api/v1/watch").query(&[("prev", "true")]);
        match self.from {
            Some(from) if self.rng.bool() => call = call.header("last-event-id", &(from - 1).to_string()),
            Some(from) => call = call.query(&[("from", &from.to_string())]),
            None => {}
        }
        let Ok(response) = call.open().await else { return };
        let (head, mut body) = response.into_parts();
        if head.status != 200 {
            let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let (asked, status, headers, body) =
                ("a watch".into(), head.status.as_u16(), head.headers, Value::Null);
            return self.refused(&Answer { asked, status, headers, text, body }).await;
        }
        let (mut arrived, mut patience) = (Vec::new(), [3, 30, 1000][self.rng.usize(..3)]);
        while patience > 0 && !self.is_at_the_end() {
            let Ok(Some(Ok(frame))) = timeout(SILENCE_MAX, body.frame()).await else { return };
            arrived.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            while let Some(event) = event::next(&mut arrived) {
                let Some(event) = event else { continue };
                patience -= 1;
                match event.name.as_str() {
                    "change" => {
                        let revision = event.data["revision"].as_u64().expect("a revision");
                        self.receive(revision, &event.data["changes"]);
                    }
                    "heartbeat" => {
                        let upto = event.data["revision"].as_u64().expect("a revision");
                        self.from = Some(self.from.map_or(upto + 1, |from| from.max(upto + 1)));
                    }
                    "error" => {
                        if event.data["errors"][0]["type"] == "expired_error" {
                            (self.from, self.followed.has_gap) = (None, true);
                        }
                        return;
                    }
                    _ => self.contradict(&format!("an unknown event: {event:?}")),
                }
            }
        }
    }
}
