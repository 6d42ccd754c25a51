//! The checker: what became of every change request, compared with what was done and with the history.
//!
//! It rests on three things that know nothing of each other: what the workers sent and were answered, the records of the change
//! requests at the end, and the changes of each revision. The invariants are those of the design of safe change:
//!
//! | | what is compared |
//! |---|---|
//! | C1 | the approvals of each applied edition with the rules right before it, the deeds of their givers and the ends of their keys |
//! | C2 | the edition of each vote that was acknowledged |
//! | C3 | the records that changed at the revision of an apply with those of its edition |
//! | C4 | the revision and the time of each record right before it was replaced with what the edition rested on |
//! | C5 | each change of a restricted environment with the records of change requests |
//! | C6 | what the witnesses were shown (`witness`) |
//! | T1, T2 | the times of applies and reverts with what the edition says, and who did them; what a revert changed |
//! | F1 | the time of each change with the freezes right before it |
//!
//! What was acknowledged is there, and what was rejected is not. What is unknown may be either.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    CHANGES, ENVIRONMENTS, FREE,
    deed::{Applied, Deed, Does, Reverted, Rules, Shown, Step, Timing, Vote, What},
    environment_of, locked, witness,
};
use crate::{
    chaos::{freezes::time, history::End, workload::Shared},
    harness::Client,
};

/// Records of a page.
const PAGE: usize = 100;

/// Whether a change request is none of these workers: a simulation has others, whose titles begin with the name of their
/// environment (`crates/simulation/src/rollouts`).
fn is_of_rollouts(record: &Value) -> bool {
    record["title"].as_str().is_some_and(|title| title.starts_with("roll "))
}

/// All changes of one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    at: u64,
    /// What each definition or config was from then on; `None`: deleted.
    changed: BTreeMap<String, Option<Value>>,
}

impl Event {
    fn of(event: &Value) -> Option<(u64, Self)> {
        let mut changed = BTreeMap::new();
        for change in event["changes"].as_array()? {
            let of = change["config_definition_key"].as_str()?;
            let kind = change["type"].as_str()?;
            let name = change["config_key"].as_str().map_or(of.to_owned(), |key| format!("{of}/{key}"));
            let data = if change["data"].is_null() { &change["indexes"] } else { &change["data"] };
            changed.insert(name, (!kind.ends_with("_deleted")).then(|| data.clone()));
        }
        Some((event["revision"].as_u64()?, Self { at: time(&event["at"]).0, changed }))
    }
}

/// What a cluster says of its past, once nobody changes anything.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    records: Vec<Shown>,
    events: BTreeMap<u64, Event>,
    /// What came up to this revision is not retained.
    compacted: u64,
}

impl Recorded {
    /// Reads it from a node; the error says what is wrong with it.
    pub(crate) async fn read_from(client: &Client) -> Result<Self, String> {
        let mut past = Self::default();
        for page in 1.. {
            let number = page.to_string();
            let limit = PAGE.to_string();
            let query = [("page", number.as_str()), ("limit", &limit), ("sort_order", "asc")];
            let answer = client.get(CHANGES).query(&query).insist().await;
            let results =
                answer.body["data"]["results"].as_array().ok_or_else(|| format!("a list: {answer:?}"))?;
            past.records
                .extend(results.iter().filter(|record| !is_of_rollouts(record)).filter_map(Shown::of));
            if results.len() < PAGE {
                break;
            }
        }
        let mut before = None::<u64>;
        loop {
            let mut call = client.get("/api/v1/changes").query(&[("latest", "1000"), ("definition", FREE)]);
            for (name, _) in ENVIRONMENTS {
                call = call.query(&[("definition", &format!("{name}.*"))]);
            }
            if let Some(before) = before {
                call = call.query(&[("before", &before.to_string())]);
            }
            let answer = call.insist().await;
            let data = &answer.body["data"];
            let events =
                data["events"].as_array().ok_or_else(|| format!("the latest changes: {answer:?}"))?;
            past.events.extend(events.iter().filter_map(Event::of));
            past.compacted = past.compacted.max(data["floor"].as_u64().unwrap_or(0));
            match data["next_before"].as_u64() {
                Some(next) if before.is_none_or(|before| next < before) => before = Some(next),
                Some(next) => {
                    return Err(format!("the page before {before:?} is followed by that before {next}"));
                }
                None => break,
            }
        }
        // Part of what it says of these is compacted, perhaps.
        past.events = past.events.split_off(&(past.compacted + 1));
        Ok(past)
    }

    /// The one that is retained longest, and how the others differ from it.
    pub(crate) fn longest(mut pasts: Vec<Self>) -> Option<(Self, Vec<String>)> {
        pasts.sort_by_key(|past| past.compacted);
        let mut pasts = pasts.into_iter();
        let longest = pasts.next()?;
        let mut found = Vec::new();
        for mut other in pasts {
            for (revision, event) in longest.events.range(other.compacted + 1..) {
                let is = other.events.remove(revision);
                if is.as_ref() != Some(event) {
                    found.push(format!("the nodes differ at revision {revision}: {event:?} {is:?}"));
                }
            }
            if !other.events.is_empty() || other.records != longest.records {
                found.push("the nodes have different change requests, or changes".to_owned());
            }
        }
        Some((longest, found))
    }
}

/// All that is known of a run.
pub(crate) struct Ledger {
    deeds: Vec<Deed>,
    ends: BTreeMap<String, End>,
    /// Of each environment, from which revision on it had which rules.
    rules: BTreeMap<String, BTreeMap<u64, Rules>>,
    past: Recorded,
    /// The deed that sent each title.
    senders: BTreeMap<String, usize>,
    /// The deeds about each change request.
    about: BTreeMap<String, Vec<usize>>,
    /// The person of each key that did something.
    holders: BTreeMap<String, Option<String>>,
    found: Vec<String>,
}

/// What the checker says.
pub(crate) struct Checked {
    /// How many change requests were applied, without bypasses.
    pub(crate) applied: usize,
    pub(crate) bypasses: usize,
    /// How many were taken back.
    pub(crate) reverts: usize,
    /// All contradictions, in words.
    pub(crate) found: Vec<String>,
}

/// Compares the past of a cluster with all that was done.
pub(crate) fn violations(shared: &Shared, past: Recorded) -> Checked {
    let seen = locked(&shared.changes.seen);
    let mut scopes = locked(&shared.changes.scopes).clone();
    for record in &past.records {
        scopes.entry(record.id.clone()).or_default().insert(record.definitions.clone());
    }
    let mut found = witness::violations(&seen, &scopes);
    let rules = locked(&shared.changes.rules).clone();
    let ledger = Ledger::new(shared.history.deeds(), shared.history.ends(), rules, past);
    let applied = |is_bypass: bool| {
        let records = ledger.past.records.iter();
        records.filter(|record| record.applied.is_some() && record.is_bypass == is_bypass).count()
    };
    let (applied, bypasses) = (applied(false), applied(true));
    let is_done = |record: &&Shown| record.revert.as_ref().is_some_and(|revert| revert.revision.is_some());
    let reverts = ledger.past.records.iter().filter(is_done).count();
    found.extend(ledger.check());
    Checked { applied, bypasses, reverts, found }
}

impl Ledger {
    pub(crate) fn new(
        deeds: Vec<Deed>,
        ends: BTreeMap<String, End>,
        noted: BTreeMap<(String, u64), Rules>,
        past: Recorded,
    ) -> Self {
        let mut senders = BTreeMap::new();
        let (mut holders, mut about) = (BTreeMap::new(), BTreeMap::<_, Vec<usize>>::new());
        for (place, deed) in deeds.iter().enumerate() {
            if let Some(of) = &deed.of {
                about.entry(of.clone()).or_default().push(place);
            }
            holders.insert(deed.by.key.clone(), deed.by.person.clone());
            if let Some(title) = &deed.title {
                senders.insert(title.clone(), place);
            }
        }
        let mut ledger =
            Self { deeds, ends, rules: BTreeMap::new(), past, senders, about, holders, found: Vec::new() };
        for ((name, revision), rules) in noted {
            ledger.rules.entry(name).or_default().insert(revision, rules);
        }
        for record in &ledger.past.records {
            let (Some(name), Some(applied)) = (&record.environment, &record.applied) else { continue };
            let steps = ledger.senders.get(&record.title).map(|place| &ledger.deeds[*place].steps);
            let Some(rules) = steps.and_then(|steps| steps.first()?.rules.clone()) else { continue };
            ledger.rules.entry(name.clone()).or_default().entry(applied.revision).or_insert(rules);
        }
        ledger
    }

    pub(crate) fn check(mut self) -> Vec<String> {
        let records = std::mem::take(&mut self.past.records);
        let mut revisions = BTreeMap::new();
        for record in &records {
            self.votes(record);
            let Some(applied) = &record.applied else { continue };
            if let Some(other) = revisions.insert(applied.revision, record) {
                self.wrong(format!(
                    "C3: two change requests were applied at one revision: {other:?} {record:?}"
                ));
            }
            if record.is_bypass {
                self.bypass(record, applied);
            } else {
                self.approvals(record, applied);
            }
            self.whole(record, applied);
            self.bases(record, applied, &records);
            self.in_time(record, applied);
            let Some(revert) = record.revert.as_ref().filter(|revert| revert.state != "possible") else {
                if self.timing(record).revert_after.is_some() && !record.is_bypass {
                    self.wrong(format!("T2: it was to be taken back, and nothing says so: {record:?}"));
                }
                continue;
            };
            self.reverted(record, (applied, revert));
            if let Some(other) = revert.revision.and_then(|revision| revisions.insert(revision, record)) {
                self.wrong(format!("C3: a revert has the revision of another change: {other:?} {record:?}"));
            }
        }
        self.restricted(&revisions);
        self.values(&records);
        self.acknowledged(&records);
        self.late();
        self.found
    }

    fn wrong(&mut self, text: String) {
        self.found.push(text);
    }

    fn person(&self, key: &str) -> Option<&str> {
        self.holders.get(key)?.as_deref()
    }

    /// Whether two keys may be of one human.
    fn may_be(&self, one: &str, other: &str) -> bool {
        let person = self.person(one);
        one == other || (person.is_some() && person == self.person(other))
    }

    /// Whether somebody may have done this with a key to a change request.
    fn tried(&self, what: What, key: &str, record: &Shown) -> bool {
        self.about(&record.id).any(|deed| {
            let names = deed.digest.as_ref() == Some(&record.digest);
            deed.what == what && deed.by.key == key && names && deed.may_be_done()
        })
    }

    /// The deeds about a change request or a key.
    fn about(&self, id: &str) -> impl Iterator<Item = &Deed> {
        self.about.get(id).into_iter().flatten().map(|place| &self.deeds[*place])
    }

    /// What the edition that a record shows does; empty if nobody sent it.
    fn steps(&self, record: &Shown) -> Vec<Step> {
        self.senders.get(&record.title).map(|place| self.deeds[*place].steps.clone()).unwrap_or_default()
    }

    /// When the edition that a record shows is to be applied.
    fn timing(&self, record: &Shown) -> Timing {
        self.senders.get(&record.title).map(|place| self.deeds[*place].timing.clone()).unwrap_or_default()
    }

    /// The rules of an environment right before a revision.
    fn rules_before(&self, name: &str, revision: u64) -> Option<&Rules> {
        self.rules.get(name)?.range(..revision).next_back().map(|(_, rules)| rules)
    }

    /// Each vote was tried with its key, for this edition, by no author, and by each person once (C2).
    fn votes(&mut self, record: &Shown) {
        let all = [
            (What::Approve, &record.approvals),
            (What::Reject, &record.rejections),
            (What::Review, &record.reviews),
        ];
        let mut persons = BTreeSet::new();
        for (what, vote) in
            all.into_iter().flat_map(|(what, votes)| votes.iter().map(move |vote| (what, vote)))
        {
            let Vote { key, at } = vote;
            if !self.tried(what, key, record) {
                self.wrong(format!(
                    "C2: nobody gave this vote ({what:?}) of {key} for this edition: {record:?}"
                ));
            }
            if *at < record.sent_at {
                self.wrong(format!("C2: the vote of {key} is older than its edition: {record:?}"));
            }
            // A revert by bypass is reviewed by others than who made it.
            let reverter = record.revert.as_ref().map(|revert| revert.by.clone());
            let of_revert = reverter.filter(|_| what == What::Review && !record.is_bypass);
            let authors = of_revert.map_or(record.authors.clone(), |reverter| vec![reverter]);
            if authors.iter().any(|author| self.may_be(author, key)) {
                self.wrong(format!("C1: {key} is an author and has a vote: {record:?}"));
            }
            match self.person(key).map(str::to_owned) {
                None => self.wrong(format!("C1: {key} is of nobody and has a vote: {record:?}")),
                Some(person) => {
                    if !persons.insert((what == What::Review, person)) {
                        self.wrong(format!("C1: the person of {key} has two votes: {record:?}"));
                    }
                }
            }
        }
    }

    /// An edition that was applied has the approvals that the rules right before it ask for (C1).
    fn approvals(&mut self, record: &Shown, applied: &Applied) {
        let touched: BTreeSet<&str> = match &record.environment {
            Some(name) => BTreeSet::from([name.as_str()]),
            None => record.definitions.iter().map(|key| environment_of(key)).collect(),
        };
        let asked = touched.iter().filter_map(|name| self.rules_before(name, applied.revision));
        let asked = asked.map(|rules| rules.approvals).max().unwrap_or(0);
        let is_attested = record.authors.iter().all(|author| self.person(author).is_some());
        let needed = if asked > 0 && !is_attested { asked + 1 } else { asked };
        let mut persons = BTreeSet::new();
        for key in &applied.approved_by {
            if let Some(why) = self.why_not(key, record, applied) {
                self.wrong(format!("C1: the approval of {key} counted, and {why}: {record:?}"));
            } else {
                persons.extend(self.person(key).map(str::to_owned));
            }
        }
        if (persons.len() as u64) < needed {
            self.wrong(format!("C1: {needed} approvals were needed, and it has {persons:?}: {record:?}"));
        }
        if !record.rejections.is_empty() {
            self.wrong(format!("C1: it was rejected and applied: {record:?}"));
        }
        let timing = self.timing(record);
        let by = if applied.by.is_empty() { &applied.scheduled_by } else { &applied.by };
        let is_left_to_the_cluster = applied.by.is_empty() && by.is_empty() && timing.is_when_approved;
        if !is_left_to_the_cluster && !self.tried(What::Apply, by, record) {
            self.wrong(format!("nobody applied it with the key {by}: {record:?}"));
        }
    }

    /// Why an approval that counted must not have.
    fn why_not(&self, key: &str, record: &Shown, applied: &Applied) -> Option<String> {
        let vote = record.approvals.iter().find(|vote| vote.key == key);
        let Some(vote) = vote else { return Some("there is no such vote".to_owned()) };
        if let Some(End { revision: Some(revision), .. }) = self.ends.get(&format!("{key}/0"))
            && *revision < applied.revision
        {
            return Some(format!("the key was revoked up to revision {revision}"));
        }
        let anew = self.about(key).filter(|deed| deed.what == What::Rotate && deed.is_done());
        if let Some(at) = anew.filter_map(|deed| deed.at).find(|at| vote.at < *at && *at < applied.at) {
            return Some(format!("the key was attested anew at {at}"));
        }
        self.person(key).filter(|person| person.starts_with("ghost"))?;
        let by = self.attesters(key);
        (by.len() < 2).then(|| format!("only {by:?} attested the key"))
    }

    /// Who may have attested a key.
    fn attesters(&self, key: &str) -> BTreeSet<&str> {
        let attested = self.about(key).filter(|deed| deed.what == What::Attest && deed.may_be_done());
        attested.filter_map(|deed| deed.by.person.as_deref()).collect()
    }

    /// A bypass is of somebody who may, and was tried.
    fn bypass(&mut self, record: &Shown, applied: &Applied) {
        let sender = self.senders.get(&record.title).map(|place| &self.deeds[*place]);
        let is_sent = sender
            .is_some_and(|deed| deed.what == What::Bypass && deed.by.key == applied.by && deed.may_be_done());
        let may = applied.by == "root" || self.person(&applied.by) == Some("fay");
        if !is_sent || !may {
            self.wrong(format!("C1: nobody who may made this bypass: {record:?}"));
        }
    }

    /// At its revision all of its records changed as it says, and nothing else (C3).
    fn whole(&mut self, record: &Shown, applied: &Applied) {
        let revision = applied.revision;
        let steps = self.steps(record);
        if steps.is_empty() {
            return self.wrong(format!("nobody sent this edition: {record:?}"));
        }
        if revision <= self.past.compacted {
            return;
        }
        let event = self.past.events.get(&revision).cloned().unwrap_or_default();
        let rules = |step: &&Step| step.does == Does::Rules;
        let expected: BTreeSet<&str> =
            steps.iter().filter(|step| !rules(step)).map(|step| step.record.as_str()).collect();
        let is: BTreeSet<&str> = event.changed.keys().map(String::as_str).collect();
        if is != expected {
            self.wrong(format!("C3: at revision {revision} {is:?} changed, not {expected:?}: {record:?}"));
        }
        for step in steps.iter().filter(|step| step.does != Does::Rules) {
            let Some(after) = event.changed.get(&step.record) else { continue };
            let is_right = match (step.does, after) {
                (Does::Delete | Does::Undefine, after) => after.is_none(),
                (Does::Define | Does::Rules, after) => after.is_some(),
                (Does::Put | Does::Create, Some(data)) => *data == step.data(),
                (Does::Patch, Some(data)) => {
                    let before = self
                        .before(&step.record, revision)
                        .and_then(|(_, event)| event.changed.get(&step.record));
                    let kept =
                        before.and_then(Option::as_ref).is_none_or(|before| before["put"] == data["put"]);
                    kept && data["value"].as_str() == step.value.as_deref()
                }
                (Does::Put | Does::Create | Does::Patch, None) => false,
            };
            if !is_right {
                self.wrong(format!("C3: at revision {revision} {step:?} left {after:?}: {record:?}"));
            }
        }
    }

    /// The last change of a record before a revision, of those that are retained.
    fn before(&self, record: &str, revision: u64) -> Option<(u64, &Event)> {
        let definition = record.split('/').next().unwrap_or_default();
        let touches = |event: &Event| {
            let is_gone = event.changed.get(definition).is_some_and(Option::is_none);
            event.changed.contains_key(record) || is_gone
        };
        let mut earlier = self.past.events.range(..revision).rev();
        earlier.find(|(_, event)| touches(event)).map(|(revision, event)| (*revision, event))
    }

    /// Each record that it replaced was as its edition rests on it (C4).
    fn bases(&mut self, record: &Shown, applied: &Applied, all: &[Shown]) {
        if record.is_bypass || applied.revision <= self.past.compacted {
            return;
        }
        // The newest change of its environment by another change request.
        let rules = all
            .iter()
            .filter(|other| record.environment.is_some() && other.environment == record.environment);
        let others = rules.filter_map(|other| other.applied.as_ref());
        let between = |other: &&Applied| other.revision < applied.revision && other.at > record.sent_at;
        if let Some(other) = others.clone().find(between) {
            self.wrong(format!(
                "C4: the environment was changed by {other:?} since this was sent: {record:?}"
            ));
        }
        let previews: Vec<BTreeMap<String, Option<u64>>> = self
            .about(&record.id)
            .filter(|deed| deed.is_done() && !deed.bases.is_empty())
            // That of an applied one says what it would take to take it back.
            .filter(|deed| {
                deed.shown.as_ref().is_some_and(|shown| shown.digest == record.digest && shown.is_pending())
            })
            .map(|deed| deed.bases.clone())
            .collect();
        // A rebase replaces the bases that the sender named. Of an unknown outcome it may have been done.
        let may_be_that = |deed: &Deed| deed.shown.as_ref().is_none_or(|shown| shown.digest == record.digest);
        let is_rebased = self.about(&record.id).any(|deed| deed.what == What::Rebase && may_be_that(deed));
        for step in self.steps(record).iter().filter(|step| step.does != Does::Rules) {
            let before = self.before(&step.record, applied.revision);
            let (was, at) = (before.map(|(revision, _)| revision), before.map_or(0, |(_, event)| event.at));
            let is_there =
                before.is_some_and(|(_, event)| event.changed.get(&step.record).is_some_and(Option::is_some));
            // What was absent may have been there in between: nobody can tell the one absence from the other.
            if at > record.sent_at && is_there {
                self.wrong(format!(
                    "C4: `{}` changed at revision {was:?} after this was sent: {record:?}",
                    step.record
                ));
            }
            let is_known = was.is_some() || self.past.compacted == 0;
            let named = previews.iter().filter_map(|bases| bases.get(&step.record).copied());
            let named = named.chain(step.expected.filter(|_| !is_rebased).map(Some));
            let was = was.filter(|_| is_there);
            for base in named.filter(|base| is_known && *base != was).collect::<Vec<_>>() {
                self.wrong(format!(
                    "C4: `{}` was {was:?}, and its base is {base:?}: {record:?}",
                    step.record
                ));
            }
        }
    }

    /// It was applied in its window (T1).
    fn in_time(&mut self, record: &Shown, applied: &Applied) {
        let timing = self.timing(record);
        if let Some((from, until)) = timing.window
            && !record.is_bypass
            && !(from..=until).contains(&applied.at)
        {
            self.wrong(format!("T1: it was applied outside its window: {timing:?} {record:?}"));
        }
    }

    /// A revert gave all of its records what they had before, once, by somebody who may, and by the cluster not before its
    /// time; one that failed had a reason, and one that was kept was kept by somebody who may (T2).
    fn reverted(&mut self, record: &Shown, (applied, revert): (&Applied, &Reverted)) {
        let timing = self.timing(record);
        let records: BTreeSet<String> = self.steps(record).into_iter().map(|step| step.record).collect();
        if revert.state == "kept" {
            let mut counted = applied.approved_by.iter();
            let may = applied.approved_by.is_empty() || counted.any(|one| self.may_be(one, &revert.by));
            if !may || !self.tried(What::Keep, &revert.by, record) {
                self.wrong(format!("T2: it was kept by somebody who may not: {record:?}"));
            }
        }
        let Some(revision) = revert.revision else {
            let changed = |name: &String| {
                let last = self.before(name, u64::MAX).map(|(revision, _)| revision);
                last.is_some_and(|last| last > applied.revision)
            };
            if revert.state == "failed"
                && self.past.compacted < applied.revision
                && !records.iter().any(changed)
            {
                self.wrong(format!("T2: a revert failed although nothing was changed since: {record:?}"));
            }
            return;
        };
        let due = timing.revert_after.map(|after| applied.at + after);
        let is_right = match (revert.is_bypass, revert.by.as_str()) {
            (_, "") => due.is_some_and(|due| due <= revert.at),
            (true, key) => {
                let may = key == "root" || self.person(key) == Some("fay");
                may && self.tried(What::RevertByBypass, key, record)
            }
            (false, key) => {
                let end = self.ends.get(&format!("{key}/0")).and_then(|end| end.revision);
                let is_good = end.is_none_or(|end| end >= revision);
                let counted = applied.approved_by.iter().any(|one| self.may_be(one, key));
                is_good && counted && self.tried(What::Revert, key, record)
            }
        };
        if !is_right {
            self.wrong(format!(
                "T2: it was taken back too early, or by somebody who may not: {timing:?} {record:?}"
            ));
        }
        if applied.revision <= self.past.compacted {
            return;
        }
        let event = self.past.events.get(&revision).cloned().unwrap_or_default();
        let is: BTreeSet<String> = event.changed.keys().cloned().collect();
        if is != records {
            self.wrong(format!(
                "C3: the revert at revision {revision} changed {is:?}, not {records:?}: {record:?}"
            ));
        }
        for name in &records {
            let (last, was_there) = self.before(name, revision).map_or((None, false), |(last, event)| {
                (Some(last), event.changed.get(name).is_some_and(Option::is_some))
            });
            let left_it = self.past.events.get(&applied.revision).and_then(|event| event.changed.get(name));
            // What it deleted may have been there in between: nobody can tell the one absence from the other.
            let is_absent_again = !was_there && left_it.is_some_and(Option::is_none);
            if last != Some(applied.revision) && !is_absent_again {
                self.wrong(format!("T2: `{name}` was changed at {last:?} before the revert: {record:?}"));
            }
            let before = self
                .before(name, applied.revision)
                .map(|(_, event)| event.changed.get(name).cloned().flatten());
            let is_known = before.is_some() || self.past.compacted == 0;
            let after = event.changed.get(name).cloned().flatten();
            if is_known && after != before.flatten() {
                self.wrong(format!("T2: the revert left {after:?} of `{name}`: {record:?}"));
            }
        }
    }

    /// What changes in a restricted environment stands with a change request (C5), and nothing else changes in a freeze than
    /// a bypass (F1).
    fn restricted(&mut self, revisions: &BTreeMap<u64, &Shown>) {
        let events = std::mem::take(&mut self.past.events);
        for (revision, event) in &events {
            let by = revisions.get(revision);
            let environments: BTreeSet<&str> =
                event.changed.keys().map(|record| environment_of(record)).collect();
            for rules in environments
                .iter()
                .filter_map(|name| self.rules_before(name, *revision))
                .cloned()
                .collect::<Vec<_>>()
            {
                if rules.refuses && by.is_none() {
                    self.wrong(format!(
                        "C5: no change request names the change of revision {revision}: {event:?}"
                    ));
                }
                let frozen =
                    rules.freezes.iter().find(|(from, until)| *from <= event.at && event.at < *until);
                if let Some(freeze) = frozen
                    && by.is_none_or(|record| !record.is_bypass && !record.is_taken_back_at(*revision))
                {
                    self.wrong(format!("F1: revision {revision} is in the freeze {freeze:?}: {event:?}"));
                }
            }
        }
        self.past.events = events;
    }

    /// Each value is in the history once at most, and only where it was applied or may have been written directly.
    fn values(&mut self, records: &[Shown]) {
        let mut of_value: BTreeMap<&str, &Deed> = BTreeMap::new();
        for deed in &self.deeds {
            of_value.extend(deed.steps.iter().filter_map(|step| Some((step.value.as_deref()?, deed))));
        }
        let applied: BTreeMap<(&str, u64), &Shown> = records
            .iter()
            .filter_map(|record| Some(((record.title.as_str(), record.applied.as_ref()?.revision), record)))
            .collect();
        let (mut found, mut places) = (Vec::new(), BTreeMap::new());
        // A revert writes earlier values again.
        let reverts: BTreeSet<u64> =
            records.iter().filter_map(|record| record.revert.as_ref()?.revision).collect();
        for (revision, event) in self.past.events.iter().filter(|(revision, _)| !reverts.contains(revision)) {
            for (name, data) in event.changed.iter().filter_map(|(name, data)| Some((name, data.as_ref()?))) {
                let Some(value) = data["value"].as_str() else { continue };
                let Some(deed) = of_value.get(value) else {
                    found.push(format!("nobody wrote `{value}`, which `{name}` has at revision {revision}"));
                    continue;
                };
                if let Some(other) = places.insert(value, *revision) {
                    found.push(format!(
                        "C3: `{value}` is in the history at {other} and at {revision}: {deed:?}"
                    ));
                }
                let is_right = match &deed.title {
                    Some(title) => applied.contains_key(&(title.as_str(), *revision)),
                    None => deed.may_be_done(),
                };
                if !is_right {
                    found.push(format!(
                        "`{value}` was not applied, and is in the history at {revision}: {deed:?}"
                    ));
                }
            }
        }
        let direct = self.deeds.iter().filter(|deed| deed.what == What::Direct && deed.is_done());
        for (deed, step) in direct.flat_map(|deed| deed.steps.iter().map(move |step| (deed, step))) {
            if let Some(value) =
                step.value.as_deref().filter(|value| self.past.compacted == 0 && !places.contains_key(value))
            {
                found.push(format!("`{value}` was acknowledged and is not in the history: {deed:?}"));
            }
        }
        self.found.extend(found);
    }

    /// What was acknowledged is there, and what there is was not rejected.
    fn acknowledged(&mut self, records: &[Shown]) {
        let by_id: BTreeMap<&str, &Shown> =
            records.iter().map(|record| (record.id.as_str(), record)).collect();
        let by_title: BTreeMap<&str, &Shown> =
            records.iter().map(|record| (record.title.as_str(), record)).collect();
        let mut found = Vec::new();
        for deed in self.deeds.iter().filter(|deed| deed.is_done()) {
            let record = match (&deed.of, &deed.shown, &deed.title) {
                (Some(id), ..) => by_id.get(id.as_str()),
                (None, Some(shown), _) => by_id.get(shown.id.as_str()),
                (None, None, Some(title)) => by_title.get(title.as_str()),
                (None, None, None) => continue,
            };
            if matches!(deed.what, What::Rotate | What::Attest | What::Freeze | What::Direct) {
                continue;
            }
            let Some(record) = record else {
                found.push(format!("it was acknowledged, and there is no such change request: {deed:?}"));
                continue;
            };
            if !self.is_kept(deed, record) {
                found.push(format!("it was acknowledged, and is lost: {deed:?} {record:?}"));
            }
        }
        for record in records {
            let sender = self.senders.get(&record.title).map(|place| &self.deeds[*place]);
            if sender.is_some_and(|deed| !deed.may_be_done()) {
                found.push(format!("it was rejected, and is there: {sender:?} {record:?}"));
            }
        }
        self.found.extend(found);
    }

    /// Whether a record has what was acknowledged.
    fn is_kept(&self, deed: &Deed, record: &Shown) -> bool {
        let has = |votes: &[Vote]| votes.iter().any(|vote| self.may_be(&vote.key, &deed.by.key));
        let is_current = deed.digest.as_ref() == Some(&record.digest);
        match deed.what {
            What::Create | What::Edit | What::Rebase | What::Preview => {
                deed.shown.as_ref().is_none_or(|shown| {
                    let is_same = shown.edition != record.edition || shown.digest == record.digest;
                    shown.edition <= record.edition && is_same
                })
            }
            // Another vote of the same person has replaced it, perhaps.
            What::Approve | What::Reject => !is_current || has(&record.approvals) || has(&record.rejections),
            What::Review => !is_current || has(&record.reviews),
            // Before its window it is left to the cluster, and may be edited, withdrawn or fail until then: the answer may show
            // that it was.
            What::Apply if deed.shown.as_ref().is_some_and(Shown::is_pending) => true,
            What::Apply if self.timing(record).window.is_some() && record.phase == "closed" && is_current => {
                deed.shown.as_ref().is_some_and(|shown| shown.phase == "closed")
            }
            What::Apply => {
                let shown = deed.shown.as_ref().and_then(|shown| shown.applied.as_ref());
                is_current && record.applied.is_some() && shown == record.applied.as_ref()
            }
            What::Revert | What::RevertByBypass => {
                let shown = deed.shown.as_ref().and_then(|shown| shown.revert.as_ref());
                record
                    .revert
                    .as_ref()
                    .is_some_and(|revert| revert.revision.is_some() && Some(revert) == shown)
            }
            What::Keep => {
                let shown = deed.shown.as_ref().and_then(|shown| shown.revert.as_ref());
                record.revert.as_ref().is_some_and(|revert| revert.state == "kept" && Some(revert) == shown)
            }
            What::Withdraw => record.phase == "closed",
            What::Bypass => record.is_bypass,
            What::Direct | What::Freeze | What::Rotate | What::Attest => true,
        }
    }

    /// What was accepted although it was too late by then: a vote on an earlier edition, one of an author, anything with a
    /// key that had ended, an attestation by one person (C2, C1).
    fn late(&mut self) {
        let mut editions: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut sent: BTreeMap<&str, Vec<(u64, u64, &Deed)>> = BTreeMap::new();
        for (deed, shown) in self.deeds.iter().filter_map(|deed| Some((deed, deed.shown.as_ref()?))) {
            editions.insert((&shown.id, &shown.digest), shown.edition);
            if matches!(deed.what, What::Create | What::Edit | What::Rebase) && deed.is_done() {
                sent.entry(&shown.id).or_default().push((deed.ret, shown.edition, deed));
            }
        }
        let mut found = Vec::new();
        for deed in self.deeds.iter().filter(|deed| deed.is_done()) {
            let end = self.ends.get(&format!("{}/0", deed.by.key));
            if end.is_some_and(|end| deed.call >= end.at) {
                found.push(format!("accepted after the end of its key: {deed:?}"));
            }
            if deed.is_attested && deed.of.as_ref().is_some_and(|of| self.attesters(of).len() < 2) {
                found.push(format!("C1: one person alone has attested a key: {deed:?}"));
            }
            let (Some(id), Some(digest)) = (&deed.of, &deed.digest) else { continue };
            let before = sent.get(id.as_str()).map(Vec::as_slice).unwrap_or_default();
            let before = before.iter().filter(|(ret, ..)| *ret < deed.call);
            let named = editions.get(&(id.as_str(), digest.as_str()));
            if named.is_some_and(|named| before.clone().any(|(_, edition, _)| edition > named)) {
                found.push(format!("C2: accepted for an earlier edition: {deed:?}"));
            }
            let is_vote = matches!(deed.what, What::Approve | What::Reject);
            if is_vote && before.clone().any(|(.., author)| author.by.may_be(&deed.by)) {
                found.push(format!("C1: an author has voted: {deed:?}"));
            }
        }
        self.found.extend(found);
    }
}

#[cfg(test)]
#[path = "check/tests.rs"]
mod tests;
