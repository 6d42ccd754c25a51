//! Change requests that people make, approve, apply and take back while nodes fail.
//!
//! | file | what it does |
//! |---|---|
//! | `deed` | what somebody did, and what the answer shows of a change request |
//! | `people` | the people and their keys, which are rotated, revoked and attested meanwhile; freezes |
//! | `work` | the workers: proposals, approvals, applies, bypasses, direct writes |
//! | `witness` | keys that may read little, and what they are shown |
//! | `audit` | compares the audit logs with the deeds |
//! | `check` | the checker, over the deeds, the records of the change requests and the history |
//!
//! Two environments take change requests only. A worker acts as another person each time: so one conflicts with the other,
//! and many do what they may not.
//!
//! **Invariant:** each title and each value is sent for one edition or write only, so both say whose it is.

mod audit;
mod check;
pub(crate) mod deed;
mod people;
mod witness;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use self::{
    deed::{Rules, Shown},
    people::People,
    witness::Seen,
};
use super::workload::Shared;
use crate::harness::{Answer, Client, time::pace};

pub(crate) use self::{people::PersonAdmin, witness::Witness, work::Proposer};

pub(crate) const CHANGES: &str = "/api/v1/change_request/";
/// The environments that take change requests only, at most times, and the approvals that they ask for at first.
pub(crate) const ENVIRONMENTS: [(&str, u64); 2] = [("marks", 1), ("markv", 2)];
/// A definition for each tenant. What follows the dot is a marker: the keys and values of its configs begin with it, and so
/// do definitions that are created for the tenant.
pub(crate) const TENANTS: [&str; 4] = ["marks.mark0", "marks.mark1", "marks.mark2", "markv.mark3"];
/// A definition that belongs to no environment.
pub(crate) const FREE: &str = "free.mark9";
/// What every secret value begins with.
pub(crate) const HIDDEN: &str = "hidden-";
/// What every label of a person begins with.
pub(crate) const LABEL: &str = "label-";
/// What the title of a change of rules begins with.
pub(crate) const RULES: &str = "rules-";

/// How often the end of a run looks whether the cluster still has something to do by itself: for some 20 seconds, which is
/// longer than any schedule of a run.
const LOOKS: usize = 80;

/// The path of an environment.
pub(crate) fn environment(name: &str) -> String {
    format!("/api/v1/environment/{name}")
}

/// The name of the environment that a definition or one of its configs would belong to.
pub(crate) fn environment_of(record: &str) -> &str {
    record.split('.').next().unwrap_or_default()
}

/// The marker of a definition or of a config.
pub(crate) fn marker(record: &str) -> &str {
    let of = record.split('/').next().unwrap_or_default();
    of.split_once('.').map_or(of, |(_, marker)| marker)
}

/// What the workers of a run know of a change request that is open.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) shown: Shown,
    /// The digests of its earlier editions.
    pub(crate) earlier: Vec<String>,
}

/// What all workers of a run share.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    people: Mutex<People>,
    open: Mutex<BTreeMap<String, Open>>,
    /// Bypasses that wait for a review.
    unreviewed: Mutex<BTreeMap<String, Shown>>,
    /// Those that can be taken back.
    revertible: Mutex<BTreeMap<String, Shown>>,
    /// Definitions that change requests have created.
    defined: Mutex<BTreeSet<String>>,
    /// The rules of each revision of an environment that somebody has seen.
    rules: Mutex<BTreeMap<(String, u64), Rules>>,
    /// The definitions of each edition of a change request that somebody was shown or sent.
    scopes: Mutex<BTreeMap<String, BTreeSet<Vec<String>>>>,
    /// The revision on which somebody saw an edition rest, of each record.
    bases: Mutex<BTreeMap<String, u64>>,
    /// The newest time of the log that an answer named, in microseconds.
    time: AtomicU64,
    /// What each witness was shown.
    seen: Mutex<Vec<Seen>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no client panics")
}

impl Changes {
    fn people(&self) -> MutexGuard<'_, People> {
        locked(&self.people)
    }

    /// Notes what an answer shows of a change request.
    fn note(&self, shown: &Shown) {
        self.note_time(shown.sent_at);
        self.note_scope(&shown.id, shown.definitions.clone());
        let note = |all: &Mutex<BTreeMap<String, Shown>>, is_one: bool| {
            if is_one {
                locked(all).insert(shown.id.clone(), shown.clone());
            } else {
                locked(all).remove(&shown.id);
            }
        };
        note(&self.unreviewed, shown.reviews_missing > 0);
        let is_possible = |state: &str| matches!(state, "possible" | "armed" | "held");
        note(&self.revertible, shown.revert.as_ref().is_some_and(|revert| is_possible(&revert.state)));
        let mut open = locked(&self.open);
        if !shown.is_pending() {
            open.remove(&shown.id);
            return;
        }
        match open.get_mut(&shown.id) {
            None => {
                open.insert(shown.id.clone(), Open { shown: shown.clone(), earlier: Vec::new() });
            }
            Some(known) if shown.edition >= known.shown.edition => {
                if known.shown.digest != shown.digest {
                    known.earlier.push(known.shown.digest.clone());
                }
                known.shown = shown.clone();
            }
            Some(_) => {}
        }
    }

    fn note_scope(&self, id: &str, definitions: Vec<String>) {
        locked(&self.scopes).entry(id.to_owned()).or_default().insert(definitions);
    }

    fn note_time(&self, time: u64) {
        self.time.fetch_max(time, Ordering::Relaxed);
    }

    /// Notes what an answer shows of an environment.
    fn note_rules(&self, answer: &Answer) -> Option<(u64, Rules)> {
        let revision = answer.tag().trim_matches('"').parse().ok()?;
        let (name, rules) = (answer.data()["environment"].as_str()?, Rules::of(answer.data()));
        locked(&self.rules).insert((name.to_owned(), revision), rules.clone());
        Some((revision, rules))
    }

    /// For the summary.
    pub(crate) fn summary(&self, shared: &Shared) -> Value {
        let mut done: BTreeMap<String, u64> = BTreeMap::new();
        let deeds = shared.history.deeds();
        for deed in &deeds {
            let outcome = if deed.ret == 0 {
                "unknown"
            } else if deed.is_done() {
                "done"
            } else {
                "rejected"
            };
            *done.entry(format!("{:?} {outcome}", deed.what).to_lowercase()).or_default() += 1;
        }
        json!({"deeds": deeds.len(), "by_outcome": done, "shown_to_witnesses": self.answers_seen()})
    }

    fn answers_seen(&self) -> u64 {
        locked(&self.seen).iter().map(|seen| seen.answers).sum()
    }
}

/// Makes the people, the definitions and the environments.
pub(crate) async fn prepare(client: &Client, shared: &Shared) {
    for name in TENANTS.into_iter().chain([FREE]) {
        let body =
            json!({"config_definition_key": name, "indexes": [], "json_schema": deed::secret_schema()});
        let post = client.post("/api/v1/config_definition/", &body);
        post.header("idempotency-key", name).insist().await.expect(201);
    }
    people::prepare(client, shared).await;
    witness::prepare(client, shared).await;
    for (name, approvals) in ENVIRONMENTS {
        let rules = json!({"direct": "refuse", "approvals": approvals, "freeze": []});
        let put = client.put(&environment(name), &rules).header("idempotency-key", name);
        put.insist().await.expect(201);
        look(client, shared, name).await;
    }
}

/// Reads the rules of an environment.
async fn look(client: &Client, shared: &Shared, name: &str) {
    let read = client.get(&environment(name)).insist().await.expect(200);
    shared.changes.note_rules(&read);
}

/// Waits until the cluster has nothing to do by itself any more. Without a confirmed time it does nothing, so this ends
/// without that, too.
async fn settle(client: &Client) {
    for _ in 0..LOOKS {
        let mut left = 0;
        for filter in [("phase", "scheduled"), ("revert", "armed")] {
            let answer = client.get(CHANGES).query(&[filter]).insist().await;
            left += answer.body["data"]["meta"]["total"].as_u64().unwrap_or(0);
        }
        let open = client.get(CHANGES).query(&[("phase", "open"), ("limit", "100")]).insist().await;
        let waits = |one: &&Value| one["apply"] == "when_approved" && one["approved"] == true;
        let open = open.body["data"]["results"].as_array().into_iter().flatten().filter(waits).count();
        if left == 0 && open == 0 {
            return;
        }
        pace(Duration::from_millis(250)).await;
    }
}

/// Compares everything once nobody changes anything any more: for the summary, and what is wrong. `is_logged`: the audit
/// logs have a line for each request that was acknowledged.
pub(crate) async fn check(clients: &[Client], is_logged: bool, shared: &Shared) -> (Value, Vec<String>) {
    settle(&clients[0]).await;
    for (name, _) in ENVIRONMENTS {
        look(&clients[0], shared, name).await;
    }
    let (mut pasts, mut found) = (Vec::new(), Vec::new());
    for client in clients {
        match check::Recorded::read_from(client).await {
            Ok(past) => pasts.push(past),
            Err(why) => found.push(format!("{}: {why}", client.base)),
        }
    }
    let mut summary = shared.changes.summary(shared);
    if is_logged {
        found.extend(audit::violations(&clients[0], clients.len(), &shared.history.deeds()).await);
    }
    if let Some((past, others)) = check::Recorded::longest(pasts) {
        found.extend(others);
        let checked = check::violations(shared, past);
        (summary["applied"], summary["bypasses"]) = (checked.applied.into(), checked.bypasses.into());
        summary["reverts"] = checked.reverts.into();
        found.extend(checked.found);
    }
    (summary, found)
}
