//! The people of a run and their keys, and who changes those while the others work.
//!
//! The root key rotates keys, which attests them anew, and revokes them; both void the approvals that were given with them.
//! Two people with `keys` make a key for somebody who does not exist, and one of them or both attest it.
//!
//! **Invariant:** the text of a key is known here, or nobody uses the key.

use std::{sync::atomic::Ordering, time::Duration};

use concord_model::time::Timestamp;
use http::Method;
use serde_json::{Value, json};

use super::{
    ENVIRONMENTS, LABEL,
    deed::{By, Deed, What},
    environment,
};
use crate::{
    chaos::{freezes::time, history::End, workload::Shared},
    harness::{Answer, Client, time::pace},
};

const KEYS: &str = "/api/v1/api_key/";
/// Keys that have ended and are used on.
const ENDED: usize = 3;
/// Keys of people who do not exist.
const GHOSTS: usize = 3;

/// Who does something, and with which secret.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holder {
    pub(crate) by: By,
    /// Empty for the root key.
    text: String,
}

impl Holder {
    pub(crate) fn root() -> Self {
        Self { by: By { key: "root".into(), person: None }, text: String::new() }
    }

    /// A client with this credential, on the connections of another.
    pub(crate) fn on(&self, node: &Client) -> Client {
        let mut node = node.clone();
        if !self.text.is_empty() {
            node.key.clone_from(&self.text);
        }
        node
    }
}

/// What a role may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Makes changes, and may approve those of others.
    Author,
    Approver,
    /// May write past the rules.
    Bypasser,
    /// May make keys for people, and attest them.
    Personnel,
    /// A key of nobody.
    Machine,
}

impl Role {
    fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Author => &["read", "reveal", "write", "define", "delete", "approve"],
            Self::Approver => &["read", "approve"],
            Self::Bypasser => &["read", "reveal", "write", "bypass"],
            Self::Personnel => &["read", "approve", "keys"],
            Self::Machine => &["read", "propose"],
        }
    }
}

/// The people, by name. `ann` has two keys.
const PEOPLE: [(&str, Role); 11] = [
    ("ann", Role::Author),
    ("ann", Role::Author),
    ("bob", Role::Author),
    ("carol", Role::Approver),
    ("dan", Role::Approver),
    ("eve", Role::Approver),
    ("fay", Role::Bypasser),
    ("gus", Role::Personnel),
    ("hal", Role::Personnel),
    // Not a person: a key without one.
    ("", Role::Machine),
    ("ivy", Role::Approver),
];

/// The keys of a run.
#[derive(Debug, Default)]
pub(crate) struct People {
    good: Vec<(Role, Holder)>,
    /// The newest last.
    ended: Vec<Holder>,
    /// Keys of people who do not exist.
    ghosts: Vec<Holder>,
    ghosts_made: u64,
}

impl People {
    /// Somebody with a role; the root key if there is nobody.
    pub(crate) fn with(&self, role: Role, rng: &mut fastrand::Rng) -> Holder {
        let all: Vec<&Holder> = self.good.iter().filter(|(is, _)| *is == role).map(|(_, one)| one).collect();
        rng.choice(all).cloned().unwrap_or_else(Holder::root)
    }

    /// Who holds a key that is good.
    pub(crate) fn of_key(&self, key: &str) -> Option<Holder> {
        let all = self.good.iter().map(|(_, one)| one).chain(&self.ghosts);
        all.into_iter().find(|one| one.by.key == key).cloned()
    }

    /// Who sends an edition.
    pub(crate) fn sender(&self, rng: &mut fastrand::Rng) -> Holder {
        match rng.u8(..20) {
            0 => Holder::root(),
            1 => self.with(Role::Machine, rng),
            2 => self.stranger(rng),
            _ => self.with(Role::Author, rng),
        }
    }

    /// Who votes: often somebody who may, and sometimes somebody who may not.
    pub(crate) fn voter(&self, rng: &mut fastrand::Rng) -> Holder {
        match rng.u8(..20) {
            0 => Holder::root(),
            1 => self.with(Role::Machine, rng),
            2..5 => self.with(Role::Author, rng),
            5 => self.with(Role::Bypasser, rng),
            6 => self.with(Role::Personnel, rng),
            7..9 => self.stranger(rng),
            _ => self.with(Role::Approver, rng),
        }
    }

    /// Who applies.
    pub(crate) fn applier(&self, rng: &mut fastrand::Rng) -> Holder {
        match rng.u8(..10) {
            0 => Holder::root(),
            1 => self.stranger(rng),
            2..6 => self.with(Role::Approver, rng),
            _ => self.with(Role::Author, rng),
        }
    }

    /// Somebody whose key has ended or is not attested.
    fn stranger(&self, rng: &mut fastrand::Rng) -> Holder {
        let from = if rng.bool() { &self.ended } else { &self.ghosts };
        rng.choice(from).cloned().unwrap_or_else(Holder::root)
    }

    /// Replaces the key of a holder; without another one the key has ended.
    fn replace(&mut self, id: &str, with: Option<Holder>) {
        let Some(place) = self.good.iter().position(|(_, one)| one.by.key == id) else { return };
        let (role, before) = self.good.remove(place);
        self.good.extend(with.map(|with| (role, with)));
        self.ended.push(before);
        if self.ended.len() > ENDED {
            self.ended.remove(0);
        }
    }
}

fn body(name: &str, role: Role) -> Value {
    let all: Vec<String> = ENVIRONMENTS.iter().map(|(name, _)| format!("{name}.*")).collect();
    let grants = json!([{"verbs": role.verbs(), "definitions": all}]);
    if name.is_empty() {
        json!({"name": "machine", "grants": grants})
    } else {
        json!({"name": name, "grants": grants, "person": format!("{LABEL}{name}")})
    }
}

/// The key that an answer shows, of this person.
fn holder(answer: &Answer, name: &str) -> Holder {
    let text = |name: &str| answer.data()[name].as_str().expect("a text").to_owned();
    let person = Some(name.to_owned()).filter(|name| !name.is_empty());
    Holder { by: By { key: text("key_id"), person }, text: text("api_key") }
}

/// Makes the keys. Without an idempotency key: an answer that comes late has no text of the key. One whose answer is lost is
/// used by nobody.
pub(crate) async fn prepare(client: &Client, shared: &Shared) {
    for (name, role) in PEOPLE {
        let made = create(client, &body(name, role)).await;
        shared.changes.people().good.push((role, holder(&made, name)));
    }
}

/// Makes a key.
pub(crate) async fn create(client: &Client, body: &Value) -> Answer {
    let call = client.post(KEYS, body);
    loop {
        let answer = call.insist().await;
        // The cluster has not risen yet to the level that has keys.
        if answer.status == 409 {
            pace(Duration::from_millis(50)).await;
            continue;
        }
        return answer.expect(201);
    }
}

/// Who changes keys and freezes environments, until the run stops.
pub(crate) struct PersonAdmin<'a> {
    shared: &'a Shared,
    nodes: Vec<Client>,
    rng: fastrand::Rng,
    /// Whether an attempt of the last request has an unknown outcome.
    is_unknown: bool,
}

impl<'a> PersonAdmin<'a> {
    pub(crate) fn new(shared: &'a Shared, nodes: Vec<Client>, rng: fastrand::Rng) -> Self {
        Self { shared, nodes, rng, is_unknown: false }
    }

    pub(crate) async fn run(mut self) {
        while !self.is_over() {
            match self.rng.u8(..10) {
                0..3 => self.rotate().await,
                3..5 => self.revoke().await,
                5..8 => self.ghost().await,
                _ => self.freeze().await,
            }
            pace(Duration::from_millis(self.rng.u64(100..900))).await;
        }
    }

    fn is_over(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn node(&mut self) -> Client {
        let place = self.rng.usize(..self.nodes.len());
        self.nodes[place].clone()
    }

    /// An approver whose key is changed.
    fn approver(&mut self) -> Option<Holder> {
        let approver = self.shared.changes.people().with(Role::Approver, &mut self.rng);
        approver.by.person.is_some().then_some(approver)
    }

    /// Sends a request to one node after another until it is decided; none when the run ends before.
    async fn insist(
        &mut self,
        holder: &Holder,
        (method, path): (Method, &str),
        body: &Value,
    ) -> Option<Answer> {
        self.is_unknown = false;
        while !self.is_over() {
            let call = holder.on(&self.node()).call(method.clone(), path);
            let call = if body.is_null() { call } else { call.json(body) };
            match call.attempt().await {
                Ok(answer) if !matches!(answer.status, 429 | 503 | 504 | 507) => return Some(answer),
                Ok(answer) => self.is_unknown |= answer.status == 504,
                Err(_) => self.is_unknown = true,
            }
            pace(Duration::from_millis(100)).await;
        }
        None
    }

    /// Notes what became of a deed that was sent until it was decided. A rejection says nothing of an earlier attempt.
    fn record(&self, mut deed: Deed, answer: Option<&Answer>) -> Deed {
        if let Some(answer) = answer {
            deed.complete(answer, self.shared.history.now());
        }
        if self.is_unknown && !deed.is_done() {
            deed.ret = 0;
        }
        self.shared.history.record_deed(deed.clone());
        deed
    }

    fn contradict(&self, what: &str, answer: &Answer) {
        self.shared.history.contradict(format!("{what}: {answer:?}"));
    }

    /// The root key gives somebody another secret, and so attests their key anew.
    async fn rotate(&mut self) {
        let Some(holder) = self.approver() else { return };
        let mut deed = self.shared.history.deed(What::Rotate, &By { key: "root".into(), person: None });
        deed.of = Some(holder.by.key.clone());
        self.shared.history.begin_deed(&mut deed);
        let path = format!("{KEYS}{}/rotate", holder.by.key);
        let answer = self.insist(&Holder::root(), (Method::POST, &path), &json!({"grace_s": 0})).await;
        deed.at = answer
            .as_ref()
            .and_then(|answer| answer.body["data"]["modified_at"].as_str())
            .map(|at| time(&at.into()).0);
        self.record(deed, answer.as_ref());
        let Some(answer) = answer else { return };
        let Some(text) = answer.body["data"]["api_key"].as_str() else {
            return self.contradict("a rotation", &answer);
        };
        self.shared
            .changes
            .people()
            .replace(&holder.by.key, Some(Holder { text: text.to_owned(), ..holder.clone() }));
        self.shared.history.record_fault(&format!("the key of {:?} was rotated", holder.by));
    }

    /// Revokes the key of somebody, who gets another one.
    async fn revoke(&mut self) {
        let Some(holder) = self.approver() else { return };
        let path = format!("{KEYS}{}", holder.by.key);
        let Some(answer) = self.insist(&Holder::root(), (Method::DELETE, &path), &Value::Null).await else {
            return;
        };
        // 404: an attempt of unknown outcome has revoked it.
        if !matches!(answer.status, 200 | 404) {
            return self.contradict("a revocation", &answer);
        }
        let at = self.shared.history.now();
        // A linearizable read is of a state that has applied it.
        let read = self.insist(&Holder::root(), (Method::GET, KEYS), &Value::Null).await;
        let revision = read.filter(|read| read.status == 200).map(|read| read.revision());
        let name = holder.by.person.clone().unwrap_or_default();
        self.shared.history.record_end(&format!("{}/0", holder.by.key), End { at, revision });
        self.shared
            .history
            .record_fault(&format!("the key of {name} was revoked before revision {revision:?}"));
        self.shared.changes.people().replace(&holder.by.key, None);
        let made = self.insist(&Holder::root(), (Method::POST, KEYS), &body(&name, Role::Approver)).await;
        if let Some(made) = made.filter(|made| made.status == 201) {
            self.shared.changes.people().good.push((Role::Approver, self::holder(&made, &name)));
        }
    }

    /// Somebody with `keys` makes a key for a person who does not exist, who takes a secret of their own; then one or two
    /// people attest it.
    async fn ghost(&mut self) {
        let (number, makers) = {
            let mut people = self.shared.changes.people();
            people.ghosts_made += 1;
            let makers: Vec<Holder> = people
                .good
                .iter()
                .filter(|(role, _)| *role == Role::Personnel)
                .map(|(_, one)| one.clone())
                .collect();
            (people.ghosts_made, makers)
        };
        let [first, second] = &makers[..] else { return };
        let name = format!("ghost{number}");
        let Some(made) = self.insist(first, (Method::POST, KEYS), &body(&name, Role::Approver)).await else {
            return;
        };
        if made.status != 201 {
            return self.contradict("a key for another person", &made);
        }
        let mut ghost = holder(&made, &name);
        let path = format!("{KEYS}{}", ghost.by.key);
        // After an answer that was lost, nobody has its secret any more.
        let own =
            ghost.on(&self.node()).call(Method::POST, &format!("{path}/rotate")).json(&json!({"grace_s": 0}));
        let Ok(rotated) = own.attempt().await else { return };
        let Some(text) = rotated.body["data"]["api_key"].as_str() else { return };
        ghost.text = text.to_owned();
        let revision = rotated.data()["revision"].clone();
        let twice = [first, first];
        let attesters = if self.rng.bool() { [first, second] } else { twice };
        for attester in attesters {
            self.attest(attester, &ghost, &revision).await;
        }
        let mut people = self.shared.changes.people();
        people.ghosts.push(ghost);
        if people.ghosts.len() > GHOSTS {
            people.ghosts.remove(0);
        }
    }

    async fn attest(&mut self, by: &Holder, of: &Holder, revision: &Value) {
        let mut deed = self.shared.history.deed(What::Attest, &by.by);
        deed.of = Some(of.by.key.clone());
        self.shared.history.begin_deed(&mut deed);
        let path = format!("{KEYS}{}/attest", of.by.key);
        let answer = self.insist(by, (Method::POST, &path), &json!({"revision": revision})).await;
        deed.is_attested = answer.as_ref().is_some_and(|answer| answer.body["data"]["attested"] == true);
        self.record(deed, answer.as_ref());
    }

    /// Adds a freeze to an environment directly, which needs nobody's approval.
    async fn freeze(&mut self) {
        let (name, _) = ENVIRONMENTS[self.rng.usize(..ENVIRONMENTS.len())];
        let path = environment(name);
        let Some(read) = self.insist(&Holder::root(), (Method::GET, &path), &Value::Null).await else {
            return;
        };
        if read.status != 200 {
            return self.contradict("a read of an environment", &read);
        }
        let Some((revision, mut rules)) = self.shared.changes.note_rules(&read) else { return };
        let now = self.shared.changes.time.load(Ordering::Relaxed);
        rules.freezes.retain(|(_, until)| *until > now);
        let from = now + self.rng.u64(..300_000);
        rules.freezes.push((from, from + self.rng.u64(50_000..700_000)));
        let put = self.node().call(Method::PUT, &path).json(&json!({"freeze": rules.freezes_json()}));
        let put = put.header("if-match", &format!("\"{revision}\""));
        let mut deed = self.shared.history.deed(What::Freeze, &By { key: "root".into(), person: None });
        self.shared.history.begin_deed(&mut deed);
        if let Ok(answer) = put.attempt().await {
            deed.complete(&answer, self.shared.history.now());
            if deed.is_done() {
                self.shared.changes.note_rules(&answer);
                let (from, until) =
                    (Timestamp(from), Timestamp(rules.freezes.last().map_or(from, |last| last.1)));
                self.shared.history.record_fault(&format!("{name} is frozen from {from} until {until}"));
            }
        }
        self.shared.history.record_deed(deed);
        // It may have been applied although its answer was lost.
        if let Ok(answer) = self.node().get(&path).attempt().await
            && answer.status == 200
        {
            self.shared.changes.note_rules(&answer);
        }
    }
}
