//! Checks the answers against the service's own history, and the history against the answers.
//!
//! The history of every config, read from each node at the end of a run, says what existed at every revision. Each
//! answer that names its revision is compared with it: reads, lists, point-in-time reads. A write is in the history
//! once when it was acknowledged, at most once when its outcome is unknown, and never when it was refused; a batch is
//! there as a whole at one revision; a transaction rests on the state just before it; a watch received exactly these changes; no config breaks the schema of its time.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use concord_model::time::Timestamp;
use serde_json::Value;

use super::{
    bank::{self, BANK},
    freezes::{FROZEN, Freezes, time},
    history::{History, Is, Kind, ListRead, Operation, PointInTimeRead, Transaction},
    stored_keys::changes_after_the_end,
    workload::{CLAIMS, DEFINITIONS, group_of, is_odd, owner_of},
};
use crate::harness::{Client, load::definition};

/// One change of a config: revision, key (`def/cfg`), and the value that it had from then on.
type Step = (u64, String, Option<String>);

/// What existed at every revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServiceHistory {
    configs: BTreeMap<String, BTreeMap<u64, Option<String>>>,
    /// Of each definition: from which revision on odd values were forbidden, or were not.
    strict: BTreeMap<String, BTreeMap<u64, bool>>,
    /// The node that was asked retains what came after this revision.
    pub(crate) compaction_revision: u64,
    /// The newest change of each author, of those that the node retains.
    pub(crate) newest_by: BTreeMap<String, u64>,
    /// The times of the changes of frozen definitions and their configs, of those that the node retains.
    times: BTreeMap<u64, Timestamp>,
}

/// All items of a history, newest first, and the compaction revision; the error says what is wrong with it.
async fn items(client: &Client, path: &str) -> Result<(Vec<Value>, u64), String> {
    let (mut items, mut before, mut compacted) = (Vec::new(), u64::MAX, 0);
    loop {
        let (page, limit) = (before.to_string(), ("limit", "1000"));
        let mut call = client.get(&format!("{path}/history")).query(&[limit]);
        if before != u64::MAX {
            call = call.query(&[("before", &page)]);
        }
        let answer = call.insist().await;
        match answer.status {
            200 => {}
            // It was never created.
            404 if items.is_empty() => return Ok((items, compacted)),
            _ => return Err(format!("a history: {answer:?}")),
        }
        items.extend(answer.data()["results"].as_array().cloned().unwrap_or_default());
        compacted = compacted.max(answer.data()["meta"]["floor"].as_u64().unwrap_or(0));
        match answer.data()["meta"]["next_before"].as_u64() {
            Some(next) if next < before => before = next,
            Some(next) => return Err(format!("the page before {before} is followed by that before {next}")),
            None => return Ok((items, compacted)),
        }
    }
}

/// Whether the configs of a definition are in the histories.
fn is_checked(definition: &str) -> bool {
    DEFINITIONS.contains(&definition) || definition == BANK || definition == CLAIMS
}

/// Whether a definition's schema forbids odd values.
fn is_strict(definition: &Value) -> bool {
    definition["json_schema"]["properties"]["odd"]["const"] == false
}

type ByRevision<T> = BTreeMap<String, BTreeMap<u64, T>>;

fn replace_past<T: Clone>(of: &mut ByRevision<T>, upto: u64, past: &ByRevision<T>) {
    for all in of.values_mut() {
        *all = all.split_off(&(upto + 1));
    }
    for (key, all) in past {
        let old = all.range(..=upto).map(|(revision, one)| (*revision, one.clone()));
        of.entry(key.clone()).or_default().extend(old);
    }
    of.retain(|_, all| !all.is_empty());
}

fn value_of(data: &Value) -> Option<String> {
    data["value"].as_str().map(str::to_owned)
}

impl ServiceHistory {
    /// Reads it from a node; the error says what is wrong with it.
    pub(crate) async fn read_from(client: &Client, keys: &[String]) -> Result<Self, String> {
        let mut history = Self::default();
        for key in keys {
            let (of, config) = key.split_once('/').expect("keys are def/cfg");
            let (items, compacted) = items(client, &format!("{}/config/{config}", definition(of))).await?;
            history.compaction_revision = history.compaction_revision.max(compacted);
            for item in items {
                let revision = item["revision"].as_u64().expect("an item has a revision");
                history.add(key, revision, value_of(&item["data"]))?;
                history.note_item(&item, of, revision);
            }
        }
        for key in DEFINITIONS {
            let (items, compacted) = items(client, &definition(key)).await?;
            history.compaction_revision = history.compaction_revision.max(compacted);
            for item in items {
                let revision = item["revision"].as_u64().expect("an item has a revision");
                let strict = is_strict(&item["data"]);
                history.strict.entry(key.to_owned()).or_default().insert(revision, strict);
                history.note_item(&item, key, revision);
            }
        }
        Ok(history)
    }

    fn note_item(&mut self, item: &Value, definition: &str, revision: u64) {
        if definition.split('.').next() == Some(FROZEN) {
            self.times.insert(revision, time(&item["at"]));
        }
        let newest = self.newest_by.entry(item["by"].as_str().unwrap_or_default().to_owned()).or_default();
        *newest = revision.max(*newest);
    }

    /// What a follower received of the configs and the schemas.
    pub(crate) fn of_events(events: &[(u64, Value)]) -> Self {
        let mut history = Self::default();
        for (revision, changes) in events {
            for change in changes.as_array().into_iter().flatten() {
                let text = |name: &str| change[name].as_str().unwrap_or_default();
                let of = text("config_definition_key");
                if !is_checked(of) {
                    continue;
                }
                if text("type").starts_with("config_") {
                    let key = format!("{of}/{}", text("config_key"));
                    history.configs.entry(key).or_default().insert(*revision, value_of(&change["data"]));
                } else if DEFINITIONS.contains(&of) {
                    history.strict.entry(of.to_owned()).or_default().insert(*revision, is_strict(change));
                }
            }
        }
        history
    }

    /// Takes what came up to a revision from another history, because the nodes need not retain it.
    pub(crate) fn with_past(mut self, upto: u64, past: &Self) -> Self {
        replace_past(&mut self.configs, upto, &past.configs);
        replace_past(&mut self.strict, upto, &past.strict);
        self.compaction_revision = upto;
        // Nodes that retain more know more authors and times; they are compared before.
        self.newest_by.clear();
        self.times.clear();
        self
    }

    /// What there was at a revision. A write whose client has given up may arrive later, while the histories are read.
    fn until(mut self, end: u64) -> Self {
        self.configs.values_mut().for_each(|all| all.retain(|revision, _| *revision <= end));
        self.configs.retain(|_, all| !all.is_empty());
        self.strict.values_mut().for_each(|all| all.retain(|revision, _| *revision <= end));
        self.strict.retain(|_, all| !all.is_empty());
        self
    }

    fn add(&mut self, key: &str, revision: u64, value: Option<String>) -> Result<(), String> {
        match self.configs.entry(key.to_owned()).or_default().insert(revision, value) {
            None => Ok(()),
            Some(_) => Err(format!("the history of `{key}` has revision {revision} twice")),
        }
    }

    /// The revision and the value of a config at a revision.
    fn at(&self, key: &str, revision: u64) -> Option<(u64, &str)> {
        let (own, value) = self.configs.get(key)?.range(..=revision).next_back()?;
        Some((*own, value.as_deref()?))
    }

    /// Every change, in the order of a watch; those of one revision by key.
    fn steps(&self) -> BTreeSet<Step> {
        let step = |key: &String, (revision, value): (&u64, &Option<String>)| {
            (*revision, key.clone(), value.clone())
        };
        self.configs.iter().flat_map(|(key, all)| all.iter().map(move |one| step(key, one))).collect()
    }
}

/// What the nodes have, compared with one another, with all answers and with what was followed, at these revisions; and
/// the revision up to which a node does not retain the history. Some follower must have received everything of them, unless
/// all nodes retain everything.
pub(crate) fn differences(
    histories: Vec<ServiceHistory>,
    seen: &History,
    freezes: &Freezes,
    revisions: RangeInclusive<u64>,
    received: &[Vec<(u64, Value)>],
) -> (u64, Vec<String>) {
    let mut found = Vec::new();
    for history in &histories {
        found.extend(changes_after_the_end(&history.newest_by, &seen.ends()));
        found.extend(freezes.broken(&history.times));
    }
    // What the nodes do not retain any more is known from a follower; the others are compared with it.
    let compacted = histories.iter().map(|history| history.compaction_revision).max().unwrap_or(0);
    let past = received.first().map(|events| ServiceHistory::of_events(events)).unwrap_or_default();
    let histories: Vec<_> = histories
        .into_iter()
        .map(|history| history.with_past(compacted, &past).until(*revisions.end()))
        .collect();
    let Some(history) = histories.first() else { return (compacted, found) };
    if histories.iter().any(|other| other != history) {
        found.push("the nodes have different histories".to_owned());
    }
    let (operations, list_reads) = (seen.operations(), seen.list_reads());
    let (point_in_time_reads, transactions) = (seen.point_in_time_reads(), seen.transactions());
    found
        .extend(violations(history, &Answered { operations, list_reads, point_in_time_reads, transactions }));
    for events in received {
        found.extend(watched(history, &revisions, events));
    }
    (compacted, found)
}

/// Each group's index finds exactly the configs of the group.
pub(crate) async fn indexes_are_complete(client: &Client, definition: &str) -> Vec<String> {
    let path = format!("/api/v1/config_definition/{definition}/config/");
    let all = async || client.get(&path).query(&[("limit", "1000")]).insist().await;
    let (mut listed, mut found) = (all().await, Vec::new());
    for group in ["g0", "g1", "g2", "g3"] {
        // Both of one state: a write whose client has given up may arrive in between.
        let by_index = loop {
            let by_index = client.get(&path).query(&[("limit", "1000"), ("group", group)]).insist().await;
            if by_index.revision() == listed.revision() {
                break by_index;
            }
            listed = all().await;
        };
        let rows: Vec<Value> = listed.data()["results"].as_array().cloned().unwrap_or_default();
        let mut expected: Vec<&str> = rows
            .iter()
            .filter(|row| row["data"]["group"] == group)
            .filter_map(|row| row["config_key"].as_str())
            .collect();
        let mut is = by_index.config_keys();
        expected.sort_unstable();
        is.sort();
        if is != expected {
            found.push(format!(
                "{} finds {is:?} in `{group}` of `{definition}`, not {expected:?}",
                client.base
            ));
        }
    }
    found
}

/// All answers.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    pub(crate) operations: Vec<Operation>,
    pub(crate) list_reads: Vec<ListRead>,
    pub(crate) point_in_time_reads: Vec<PointInTimeRead>,
    pub(crate) transactions: Vec<Transaction>,
}

/// All contradictions between the history and the answers, in words.
pub(crate) fn violations(history: &ServiceHistory, answered: &Answered) -> Vec<String> {
    let mut found = writes(history, &answered.operations);
    found.extend(deletes(history, &answered.operations));
    found.extend(batches(history, &answered.operations));
    found.extend(transactions(history, answered));
    found.extend(bank::violations(&history.configs));
    found.extend(reads(history, answered));
    found.extend(lists(history, &answered.list_reads));
    found.extend(schemas(history));
    found.extend(claims(history));
    found
}

/// Each value is in the history as often as its write says.
fn writes(history: &ServiceHistory, operations: &[Operation]) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
    for (key, all) in &history.configs {
        for (revision, value) in all.iter().filter_map(|(at, value)| Some((at, value.as_deref()?))) {
            places.entry((key, value)).or_default().push(*revision);
        }
    }
    // Several of one value where a rollback has written it again.
    let mut of_value: BTreeMap<(&str, &str), Vec<&Operation>> = BTreeMap::new();
    for operation in operations.iter().filter(|o| o.is_write()) {
        let Some(value) = &operation.value else { continue };
        of_value.entry((&operation.key, value)).or_default().push(operation);
    }
    let mut found = Vec::new();
    for (of, operations) in of_value {
        let at = places.remove(&of).unwrap_or_default();
        let done: Vec<Option<u64>> = operations.iter().filter(|o| o.is_done()).map(|o| o.revision).collect();
        let unknown = operations.iter().filter(|o| o.ret == 0).count();
        let is_there = done.iter().all(|own| own.is_some_and(|own| at.contains(&own)));
        if !is_there || at.len() < done.len() || at.len() > done.len() + unknown {
            found.push(format!("the history has it at {at:?}: {operations:?}"));
        }
    }
    found.extend(
        places.iter().map(|(one, at)| format!("nobody wrote {one:?}, which is in the history at {at:?}")),
    );
    found
}

/// Each config was deleted as often as was acknowledged, and no more often than was tried.
fn deletes(history: &ServiceHistory, operations: &[Operation]) -> Vec<String> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for operation in operations.iter().filter(|o| o.op == Kind::Delete) {
        let (least, most) = counts.entry(&operation.key).or_default();
        *least += usize::from(operation.is_done());
        *most += usize::from(operation.is_done() || operation.ret == 0);
    }
    let empty = BTreeMap::new();
    let keys: BTreeSet<&str> =
        counts.keys().copied().chain(history.configs.keys().map(String::as_str)).collect();
    let wrong = keys.into_iter().filter_map(|key| {
        let (least, most) = counts.get(key).copied().unwrap_or_default();
        let is = history.configs.get(key).unwrap_or(&empty).values().filter(|value| value.is_none()).count();
        (is < least || is > most)
            .then(|| format!("`{key}` was deleted {is} times, not {least} to {most} times"))
    });
    wrong.collect()
}

/// Each batch is there whole, at one revision, or not at all.
fn batches(history: &ServiceHistory, operations: &[Operation]) -> Vec<String> {
    let mut by_number: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        if let Some(number) = operation.batch {
            by_number.entry(number).or_default().push(operation);
        }
    }
    let place = |operation: &Operation| {
        // The value of a rollback is that of another operation, too.
        if operation.op == Kind::Rollback {
            return None;
        }
        let all = history.configs.get(&operation.key)?;
        let (revision, _) = all.iter().find(|(_, value)| value.is_some() && **value == operation.value)?;
        Some(*revision)
    };
    let mut found = Vec::new();
    for (number, members) in by_number {
        let Some(revision) = members.iter().find_map(|member| place(member)) else { continue };
        let there = |member: &&&Operation| {
            history.configs.get(&member.key).and_then(|all| all.get(&revision)) == Some(&member.value)
        };
        let count = members.iter().filter(there).count();
        if count != members.len() {
            found.push(format!(
                "of batch {number} {count} of {} operations were done at revision {revision}: {members:?}",
                members.len()
            ));
        }
    }
    found
}

/// Each transaction rests on the state just before it: there its conditions hold as it says, and there is what it has
/// read. Of one whose outcome is unknown the branch that is there must be the one that the conditions choose, and one that
/// was refused is not there.
fn transactions(history: &ServiceHistory, answered: &Answered) -> Vec<String> {
    let mut first: BTreeMap<u64, &Operation> = BTreeMap::new();
    for operation in answered.operations.iter().filter(|o| o.op != Kind::Rollback && o.value.is_some()) {
        if let Some(batch) = operation.batch {
            first.entry(batch).or_insert(operation);
        }
    }
    // The revision at which a branch was carried out.
    let place = |batch: u64| {
        let operation = first.get(&batch)?;
        let all = history.configs.get(&operation.key)?;
        all.iter().find(|(_, value)| value.is_some() && **value == operation.value).map(|(at, _)| *at)
    };
    let mut found = Vec::new();
    for transaction in &answered.transactions {
        let hold_at = |at: u64| {
            let holds = |(key, is): &(String, Is)| is.holds(history.at(key, at));
            transaction.conditions.iter().all(holds)
        };
        let places = transaction.branches.map(place);
        let Some(chosen) = &transaction.decided else {
            let right = match places {
                [None, None] => true,
                [Some(_), Some(_)] => false,
                [Some(at), None] => hold_at(at - 1),
                [None, Some(at)] => !hold_at(at - 1),
            };
            if !right {
                found.push(format!("a transaction was done at {places:?} that must not be: {transaction:?}"));
            }
            continue;
        };
        let before = transaction.before(chosen);
        if hold_at(before) != chosen.succeeded {
            found.push(format!("the conditions choose the other branch at {before}: {transaction:?}"));
        }
        for (key, read) in transaction.reads.iter().zip(chosen.found.iter().flatten()) {
            let read = read.as_ref().map(|(revision, value)| (*revision, value.as_str()));
            if history.at(key, before) != read {
                found.push(format!(
                    "at {before} there was {:?} of `{key}`: {transaction:?}",
                    history.at(key, before)
                ));
            }
        }
        let own = usize::from(!chosen.succeeded);
        let is_there = !transaction.changes[own] || places[own] == Some(chosen.revision);
        if !is_there || places[1 - own].is_some() {
            found.push(format!("the branches are at {places:?}: {transaction:?}"));
        }
    }
    found
}

/// Each read shows what existed at the revision that it names.
fn reads(history: &ServiceHistory, answered: &Answered) -> Vec<String> {
    let mut found = Vec::new();
    for operation in answered.operations.iter().filter(|o| !o.is_write() && matches!(o.status, 200 | 404)) {
        let Some(state) = operation.state else {
            found.push(format!("no revision is named: {operation:?}"));
            continue;
        };
        let is = operation.revision.zip(operation.result.as_deref());
        if history.at(&operation.key, state) != is {
            found
                .push(format!("at {state} there was {:?}: {operation:?}", history.at(&operation.key, state)));
        }
    }
    for read in &answered.point_in_time_reads {
        if read.is_gone {
            if read.at >= history.compaction_revision {
                found.push(format!("the history begins at {}: {read:?}", history.compaction_revision));
            }
            continue;
        }
        let is = read.found.as_ref().map(|(revision, value)| (*revision, value.as_str()));
        if history.at(&read.key, read.at) != is {
            found.push(format!("at {} there was {:?}: {read:?}", read.at, history.at(&read.key, read.at)));
        }
    }
    found
}

/// Each list shows exactly what existed at its revision.
fn lists(history: &ServiceHistory, list_reads: &[ListRead]) -> Vec<String> {
    let mut found = Vec::new();
    for list in list_reads {
        let prefix = format!("{}/", list.definition);
        let there = history.configs.keys().filter_map(|key| {
            let config = key.strip_prefix(&prefix)?;
            let (_, value) = history.at(key, list.state)?;
            let asked = list.group.as_ref().is_none_or(|group| *group == group_of(value));
            asked.then_some((config, value))
        });
        let there: BTreeSet<(&str, &str)> = there.collect();
        let shown: BTreeSet<(&str, &str)> =
            list.found.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if there != shown {
            let differ: Vec<_> = there.symmetric_difference(&shown).collect();
            found.push(format!(
                "a list of `{}` ({:?}) at revision {} differs from what was there in {differ:?}",
                list.definition, list.group, list.state
            ));
        }
    }
    found
}

/// No owner has two claims at any revision.
fn claims(history: &ServiceHistory) -> Vec<String> {
    let prefix = format!("{CLAIMS}/");
    let all: Vec<_> = history.configs.iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
    let revisions: BTreeSet<u64> = all.iter().flat_map(|(_, changes)| changes.keys().copied()).collect();
    let mut found = Vec::new();
    for revision in revisions {
        let mut owners = BTreeMap::new();
        for (key, _) in &all {
            let Some((_, value)) = history.at(key, revision) else { continue };
            if let Some(other) = owners.insert(owner_of(value), key) {
                found.push(format!("`{key}` and `{other}` have one owner at revision {revision}"));
            }
        }
    }
    found
}

/// No config breaks the schema of its time.
fn schemas(history: &ServiceHistory) -> Vec<String> {
    let odd = |value: &Option<String>| value.as_deref().is_some_and(is_odd);
    let mut found = Vec::new();
    for (key, all) in &history.configs {
        let of = key.split_once('/').expect("keys are def/cfg").0;
        let strict = history.strict.get(of).cloned().unwrap_or_default();
        let forbids = |at: u64| strict.range(..=at).next_back().is_some_and(|(_, strict)| *strict);
        let written = all.iter().filter(|(at, value)| odd(value) && forbids(**at)).map(|(at, _)| *at);
        let begun = strict.iter().filter(|(_, strict)| **strict).map(|(at, _)| *at);
        let existing = begun.filter(|at| history.at(key, *at).is_some_and(|(_, value)| is_odd(value)));
        found.extend(written.chain(existing).map(|at| format!("`{key}` breaks its schema at revision {at}")));
    }
    found
}

/// Compares the changes of configs that a follower received with the history from a revision on.
pub(crate) fn watched(
    history: &ServiceHistory,
    revisions: &RangeInclusive<u64>,
    events: &[(u64, Value)],
) -> Vec<String> {
    let mut found = Vec::new();
    if !events.is_sorted_by(|one, two| one.0 < two.0) {
        found.push("a follower received a revision twice or out of order".to_owned());
    }
    let mut steps = BTreeSet::new();
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    for (revision, changes) in events {
        for change in changes.as_array().into_iter().flatten() {
            let text = |name: &str| change[name].as_str().unwrap_or_default();
            let of = text("config_definition_key");
            if !is_checked(of) || !text("type").starts_with("config_") {
                continue;
            }
            let key = format!("{of}/{}", text("config_key"));
            // A watch that tells the data before each change has a chain of them for each config.
            if let Some(prev) = change.get("prev") {
                let data = change.get("data").cloned().unwrap_or_default();
                if known.insert(key.clone(), data).is_some_and(|before| before != *prev) {
                    found.push(format!("`prev` of `{key}` at revision {revision} is not what was there"));
                }
            }
            if !steps.insert((*revision, key.clone(), value_of(&change["data"]))) {
                found.push(format!("a follower received the change of `{key}` at revision {revision} twice"));
            }
        }
    }
    let all = history.steps().split_off(&(*revisions.start(), String::new(), None));
    steps.retain(|(revision, _, _)| revision <= revisions.end());
    let differ: Vec<_> = all.symmetric_difference(&steps).take(5).collect();
    if !differ.is_empty() {
        found.push(format!("a follower received other changes than the history has: {differ:?}"));
    }
    found
}

#[cfg(test)]
#[path = "service_history/tests.rs"]
mod tests;
