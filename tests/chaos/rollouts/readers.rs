//! Readers: each follows the configs by a watch, reads them on any node, and reports how it runs with a candidate.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use super::{
    CHANGES, DEFINITIONS, KEY,
    check::{CONFIGS, Followed, Item, Items, Seen, Who},
};
use crate::harness::{
    Answer, Call, Client,
    event::Event,
    time::pace,
    watch::{WATCH, Watch},
};

/// From this value on an agent can't use a config.
pub(super) const BAD_FOR_AGENTS: u64 = 1000;
/// From this value on a reader can't.
pub(super) const BAD_FOR_READERS: u64 = 2000;
/// How long a reader runs with a candidate before it reports: longer than the first stage lasts at least, so that a stage that
/// ends without evidence is seen.
const REPORT_AFTER: Duration = Duration::from_millis(2500);
/// A failure is reported sooner.
const FAIL_AFTER: Duration = Duration::from_millis(300);
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// How long one waits for an event: longer than a heartbeat takes.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// What all readers share.
#[derive(Debug)]
pub(super) struct Readers {
    pub(super) all: Vec<Who>,
    nodes: Vec<Client>,
    /// What each has by its watch; `None` before the first state.
    now: Vec<Mutex<Option<Items>>>,
    seen: Mutex<Vec<Seen>>,
    followed: Mutex<Vec<Followed>>,
    /// The newest revision that anybody has seen.
    newest: AtomicU64,
    /// When each reader has first sent that it runs well, by change request.
    healthy: Mutex<BTreeMap<String, BTreeMap<String, u64>>>,
    found: Mutex<Vec<String>>,
    opened: AtomicU64,
    stop: AtomicBool,
}

/// The time in microseconds, as the log has it.
pub(super) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_microsecond()).expect("after 1970")
}

/// Which readers there are: every fourth one is a canary, every tenth one does not say who it is.
fn who(place: usize) -> Who {
    let name = (place % 10 != 9).then(|| format!("host-{place}"));
    let ring = match place % 4 {
        0 => Some("canary"),
        1 => Some("stable"),
        _ => None,
    };
    Who { ring: ring.filter(|_| name.is_some()), name }
}

impl Readers {
    /// Starts so many.
    pub(super) fn start(nodes: Vec<Client>, count: usize, every: Duration) -> (Arc<Self>, JoinSet<()>) {
        let shared = Arc::new(Self {
            all: (0..count).map(who).collect(),
            nodes,
            now: (0..count).map(|_| Mutex::default()).collect(),
            seen: Mutex::default(),
            followed: Mutex::default(),
            newest: AtomicU64::default(),
            healthy: Mutex::default(),
            found: Mutex::default(),
            opened: AtomicU64::default(),
            stop: AtomicBool::default(),
        });
        let mut tasks = JoinSet::new();
        for place in 0..count {
            let (watch, read, report) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
            tasks.spawn(async move { watch.follow(place).await });
            tasks.spawn(async move { read.read(place, every).await });
            tasks.spawn(async move { report.report(place).await });
        }
        (shared, tasks)
    }

    /// Ends them. What they have seen, and what was wrong at once.
    pub(super) async fn end(&self, tasks: JoinSet<()>) -> (Vec<Seen>, Vec<Followed>, Vec<String>) {
        self.stop.store(true, Ordering::SeqCst);
        tasks.join_all().await;
        let take = |found: &Mutex<Vec<String>>| std::mem::take(&mut *found.lock().unwrap());
        let (seen, followed) = (self.seen.lock().unwrap().clone(), self.followed.lock().unwrap().clone());
        (seen, followed, take(&self.found))
    }

    /// How often watches were opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }

    /// How many have something else than this by their watches.
    pub(super) fn without(&self, items: &Items) -> usize {
        self.now.iter().filter(|now| now.lock().unwrap().as_ref() != Some(items)).count()
    }

    /// Who has reported that it runs well with a change request, and when first.
    pub(super) fn healthy(&self, change: &str) -> BTreeMap<String, u64> {
        self.healthy.lock().unwrap().get(change).cloned().unwrap_or_default()
    }

    /// How many see a candidate of a change request by their watches.
    pub(super) fn inside(&self, change: &str) -> usize {
        let sees = |now: &&Mutex<Option<Items>>| {
            now.lock().unwrap().as_ref().is_some_and(|items| items[0].change.as_deref() == Some(change))
        };
        self.now.iter().filter(sees).count()
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn wrong(&self, text: String) {
        self.found.lock().unwrap().push(text);
    }

    fn as_reader(&self, call: Call, place: usize) -> Call {
        let who = &self.all[place];
        let Some(name) = &who.name else { return call };
        let call = call.header("x-concord-reader", name);
        match who.ring {
            Some(ring) => call.header("x-concord-labels", &format!("region=eu,ring={ring}")),
            None => call,
        }
    }

    /// Follows at one node after the other. Each second time it resumes after the last event, where it can.
    async fn follow(&self, place: usize) {
        let mut last: Option<Followed> = None;
        let mut noted = 0;
        for turn in place.. {
            if !self.goes_on() {
                break;
            }
            let resumes = turn % 2 == 0;
            last = self.follow_once(place, turn, last.filter(|_| resumes)).await;
            *self.now[place].lock().unwrap() = None;
            // One that is resumed has all of this again. One that could not be opened shows nothing new.
            if let Some(followed) = last.as_ref().filter(|followed| followed.upto != noted) {
                noted = followed.upto;
                self.followed.lock().unwrap().push(followed.clone());
            }
            pace(Duration::from_millis(50)).await;
        }
    }

    /// One watch until it ends; what it has shown.
    async fn follow_once(&self, place: usize, turn: usize, resumed: Option<Followed>) -> Option<Followed> {
        let node = &self.nodes[turn % self.nodes.len()];
        let query: Vec<_> = DEFINITIONS.iter().map(|definition| ("definition", *definition)).collect();
        let call = self.as_reader(node.get(WATCH), place).query(&query);
        let call = match &resumed {
            Some(followed) => call.header("last-event-id", &followed.upto.to_string()),
            None => call.query(&[("initial", "true")]),
        };
        let opened = timeout(EVENT_TIMEOUT, call.open()).await;
        let Ok(Ok(response)) = opened else { return resumed };
        match response.status().as_u16() {
            200 => {}
            // What it would resume from is not retained: it begins with the state.
            410 => return None,
            429 | 503 | 504 => return resumed,
            status => {
                self.wrong(format!("a watch is rejected: {status}"));
                return None;
            }
        }
        self.opened.fetch_add(1, Ordering::SeqCst);
        let mut watch = Watch::from(response);
        let mut view = View { followed: resumed, part: Items::default() };
        if let Some(items) = view.items() {
            *self.now[place].lock().unwrap() = Some(items);
        }
        while self.goes_on() {
            // A lost connection, an end, and silence are alike.
            let Ok(Ok(Some(event))) = timeout(EVENT_TIMEOUT, watch.next()).await else { break };
            if let Err(why) = view.apply(place, &event) {
                self.wrong(format!("the watch of reader {place}: {why}: {event:?}"));
                break;
            }
            if event.name == "error" {
                break;
            }
            if let (Some(items), Some(followed)) = (view.items(), &view.followed) {
                self.newest.fetch_max(followed.upto, Ordering::SeqCst);
                *self.now[place].lock().unwrap() = Some(items);
            }
        }
        view.followed
    }

    /// Reads again and again: in turns linearizably, and locally at least at the newest revision that it has seen.
    async fn read(&self, place: usize, every: Duration) {
        let mut rng = fastrand::Rng::with_seed(place as u64);
        let mut own = 0;
        pace(every.mul_f64(rng.f64())).await;
        while self.goes_on() {
            let id = rng.usize(..self.nodes.len());
            let (node, is_linearizable) = (&self.nodes[id], rng.bool());
            let wanted = DEFINITIONS
                .map(|definition| json!({"config_definition_key": definition, "config_key": KEY}))
                .to_vec();
            let call = self.as_reader(node.post("/api/v1/read", &json!({ "configs": wanted })), place);
            let least = if is_linearizable { self.newest.load(Ordering::SeqCst) } else { own };
            let revision = own.to_string();
            let call = if is_linearizable {
                call
            } else {
                call.query(&[("consistency", "local"), ("min_revision", &revision)])
            };
            if let Ok(Ok(answer)) = timeout(EVENT_TIMEOUT, call.attempt()).await {
                match shown(&answer) {
                    Some((revision, items)) => {
                        own = revision.max(own);
                        self.newest.fetch_max(revision, Ordering::SeqCst);
                        let node = id as u64 + 1;
                        self.seen.lock().unwrap().push(Seen { reader: place, node, revision, least, items });
                    }
                    None if matches!(answer.status, 429 | 503 | 504) => {}
                    None => self.wrong(format!("a read is rejected: {answer:?}")),
                }
            }
            pace(every.mul_f64(0.5 + rng.f64())).await;
        }
    }

    /// Reports how it runs with a candidate, again and again while it has one.
    async fn report(&self, place: usize) {
        let Some(name) = &self.all[place].name else { return };
        let mut since: Option<(String, Instant)> = None;
        let mut sent = None::<Instant>;
        while self.goes_on() {
            pace(Duration::from_millis(100)).await;
            let now = self.now[place].lock().unwrap().clone();
            let Some(Item { n, change: Some(change) }) = now.map(|[item, _]| item) else { continue };
            if since.as_ref().is_none_or(|(known, _)| *known != change) {
                (since, sent) = (Some((change.clone(), Instant::now())), None);
            }
            let seen_for = since.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
            let fails = n >= BAD_FOR_READERS;
            let is_due = seen_for >= if fails { FAIL_AFTER } else { REPORT_AFTER };
            if !is_due || sent.is_some_and(|sent| sent.elapsed() < REPORT_EVERY) {
                continue;
            }
            if !fails {
                let mut all = self.healthy.lock().unwrap();
                all.entry(change.clone()).or_default().entry(name.clone()).or_insert_with(now_of_log);
            }
            sent = Some(Instant::now());
            self.send(place, &change, fails).await;
        }
    }

    async fn send(&self, place: usize, change: &str, fails: bool) {
        let who = &self.all[place];
        let labels: Value = who.ring.map_or_else(|| json!({}), |ring| json!({"region": "eu", "ring": ring}));
        let state = if fails { "failed" } else { "healthy" };
        let body =
            json!({"reader": who.name, "labels": labels, "state": state, "detail": "n is out of range"});
        for turn in 0..self.nodes.len() {
            let node = &self.nodes[(place + turn) % self.nodes.len()];
            let call = node.post(&format!("{CHANGES}{change}/report"), &body);
            match timeout(Duration::from_secs(5), call.attempt()).await {
                // It has ended, or is at another stage.
                Ok(Ok(answer)) if matches!(answer.status, 200 | 404 | 409) => return,
                Ok(Ok(answer)) if !matches!(answer.status, 429 | 503 | 504) => {
                    return self.wrong(format!("a report is rejected: {answer:?}"));
                }
                Ok(Ok(_) | Err(_)) | Err(_) => {}
            }
        }
    }
}

fn now_of_log() -> u64 {
    now()
}

/// A config of a response, a state or an event.
fn item(data: &Value, variant: &Value) -> Option<Item> {
    Some(Item { n: data["n"].as_u64()?, change: variant["change_id"].as_str().map(str::to_owned) })
}

/// What a read of both configs shows, and at which revision.
fn shown(answer: &Answer) -> Option<(u64, Items)> {
    if answer.status != 200 {
        return None;
    }
    let data = &answer.body["data"];
    let one = |place: usize| {
        let result = &data["results"][place];
        item(&result["config"]["data"], &result["variant"])
    };
    Some((data["revision"].as_u64()?, [one(0)?, one(1)?]))
}

/// What is there by the events up to now.
struct View {
    followed: Option<Followed>,
    /// The initial state, as far as it has come.
    part: Items,
}

impl View {
    fn items(&self) -> Option<Items> {
        self.followed.as_ref()?.states.last_key_value().map(|(_, items)| items.clone())
    }

    /// Applies an event; the error says what is wrong with it.
    fn apply(&mut self, reader: usize, event: &Event) -> Result<(), String> {
        if event.name == "error" {
            return Ok(());
        }
        let revision = event.data["revision"].as_u64().ok_or("no revision")?;
        match event.name.as_str() {
            "state" => {
                put(&mut self.part, &event.data["configs"])?;
                if event.data["complete"] == true {
                    let states = [(revision, self.part.clone())].into();
                    self.followed = Some(Followed { reader, states, upto: revision });
                }
            }
            "change" => {
                let followed = self.followed.as_mut().ok_or("a change before the state")?;
                if revision <= followed.upto {
                    return Err(format!("revision {revision} after {}", followed.upto));
                }
                let last = followed.states.last_key_value().map(|(_, items)| items.clone());
                let mut items = last.ok_or("no state")?;
                put(&mut items, &event.data["changes"])?;
                followed.states.insert(revision, items);
                followed.upto = revision;
            }
            "heartbeat" => {
                if let Some(followed) = &mut self.followed {
                    followed.upto = revision.max(followed.upto);
                }
            }
            other => return Err(format!("an unknown event `{other}`")),
        }
        Ok(())
    }
}

fn put(items: &mut [Item; CONFIGS], list: &Value) -> Result<(), String> {
    for one in list.as_array().ok_or("no list")? {
        let definition = one["config_definition_key"].as_str().unwrap_or_default();
        let place = DEFINITIONS.iter().position(|known| *known == definition);
        if one["config_key"].is_null() {
            continue;
        }
        let place = place.ok_or("a config that is not followed")?;
        items[place] = item(&one["data"], &one["variant"]).ok_or("no number")?;
    }
    Ok(())
}
