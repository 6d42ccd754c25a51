//! The checker: what readers saw, compared with the stages that the change requests have shown, with what was proposed and with
//! the history.
//!
//! | | what is compared |
//! |---|---|
//! | O1 | each read of a reader that is in, up to the end of the rollout; the revisions of linearizable reads |
//! | O2 | reads of one reader at one revision; who saw a candidate with who may be in at that revision |
//! | O3 | the stages that have ended with the plan and with what was reported; the time of an apply with that of its stages |
//! | O4 | reads after the end of a rollout |
//! | O5 | the configs of one read |
//! | O6 | reads of those who are no readers, and of the past |
//! | O7 | what a watch has shown with reads at the same revision |
//!
//! A change request that was read at a revision shows how many stages have ended at it. So the stages at a revision lie
//! between those of the last look before it and of the first look after it. Where it began and where it ended, its record
//! says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use serde_json::Value;

use super::{
    ENVIRONMENT, Followed, How, Passed, Progress, Rollouts, Seen, Sent, Status, Version, Who, number_of,
    readers::value_of,
};
use crate::{chaos::changes::CHANGES, harness::Client, workload::Run};

/// Change requests of a page, and events.
const PAGE: usize = 100;
/// Contradictions of one kind that are told.
const TOLD_MAX: usize = 3;

/// What a cluster says of its past once nobody changes anything.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The change requests at the end.
    last: Vec<Status>,
    /// Of each config, what it was from each revision on; `None`: deleted.
    proven: BTreeMap<usize, BTreeMap<u64, Option<String>>>,
    /// What came up to this revision is not retained.
    compacted: u64,
    /// What came after this revision was not read.
    upto: u64,
}

impl Recorded {
    /// Reads it from a node; the error says what is wrong with it.
    pub(super) async fn read_from(client: &Client, run: &Run) -> Result<Self, String> {
        let mut recorded = Self::default();
        // What ends from here on is in no event that was read.
        let mut before = None::<u64>;
        loop {
            let of = format!("{ENVIRONMENT}.*");
            let mut call = client.get("/api/v1/changes").query(&[("latest", "1000"), ("definition", &of)]);
            if let Some(before) = before {
                call = call.query(&[("before", &before.to_string())]);
            }
            let answer = call.insist().await;
            if before.is_none() {
                recorded.upto = answer.header("x-concord-revision").parse().unwrap_or(0);
            }
            let data = &answer.body["data"];
            let events =
                data["events"].as_array().ok_or_else(|| format!("the latest changes: {answer:?}"))?;
            events.iter().for_each(|event| recorded.take(event));
            recorded.compacted = recorded.compacted.max(data["floor"].as_u64().unwrap_or(0));
            match data["next_before"].as_u64() {
                Some(next) if before.is_none_or(|before| next < before) => before = Some(next),
                Some(next) => {
                    return Err(format!("the page before {before:?} is followed by that before {next}"));
                }
                None => break,
            }
        }
        for page in 1.. {
            let (number, limit) = (page.to_string(), PAGE.to_string());
            let query = [("page", number.as_str()), ("limit", &limit), ("sort_order", "asc")];
            let answer = client.get(CHANGES).query(&query).insist().await;
            let all =
                answer.body["data"]["results"].as_array().ok_or_else(|| format!("a list: {answer:?}"))?;
            for one in all.iter().filter(|one| is_ours(one)) {
                let id = one["change_id"].as_str().unwrap_or_default();
                let answer = client.get(&format!("{CHANGES}{id}")).insist().await;
                let status = run.rollouts.note(&answer, run.shared.history.now());
                recorded.last.push(status.ok_or_else(|| format!("a change request: {answer:?}"))?);
            }
            if all.len() < PAGE {
                break;
            }
        }
        Ok(recorded)
    }

    fn take(&mut self, event: &Value) {
        let revision = event["revision"].as_u64().unwrap_or(0);
        for change in event["changes"].as_array().into_iter().flatten() {
            let text = |name: &str| change[name].as_str().unwrap_or_default();
            let Some(config) = number_of(text("config_definition_key"), text("config_key")) else { continue };
            let value = (text("type") != "config_deleted").then(|| value_of(&change["data"]));
            self.proven.entry(config).or_default().insert(revision, value);
        }
    }

    fn has(&self, revision: u64) -> bool {
        revision > self.compacted && revision <= self.upto
    }

    /// What a config was at a revision; `None` if that is not retained.
    fn at(&self, config: usize, revision: u64) -> Option<&Option<String>> {
        let (from, value) = self.proven.get(&config)?.range(..=revision).next_back()?;
        (*from > self.compacted && revision <= self.upto).then_some(value)
    }
}

/// Whether a change request of a list is one with a plan.
fn is_ours(record: &Value) -> bool {
    record["title"].as_str().is_some_and(|title| title.starts_with(&format!("{ENVIRONMENT} ")))
}

/// What is known of a change request.
struct Line {
    sent: Sent,
    /// Ended stages by the revisions at which it was seen to roll.
    stages: BTreeMap<u64, usize>,
    /// It began after this revision.
    began_after: u64,
    /// It had begun at this revision.
    begun: Option<u64>,
    /// From this revision on nobody sees its candidates.
    end: Option<u64>,
    applied: Option<(u64, u64)>,
    progresses: Vec<(Progress, u64)>,
}

impl Line {
    fn new(sent: Sent, statuses: &[&Status]) -> Self {
        let rolling: Vec<&&Status> = statuses.iter().filter(|one| one.phase == "rolling").collect();
        let is_before = |one: &&&Status| matches!(one.phase.as_str(), "open" | "scheduled");
        let ended = statuses.iter().filter(|one| matches!(one.phase.as_str(), "applied" | "closed"));
        let applied = statuses.iter().find_map(|one| one.applied);
        let passed = |one: &Status| one.progress.as_ref().map(|progress| progress.passed.len());
        Self {
            sent,
            stages: rolling.iter().filter_map(|one| Some((one.revision, passed(one)?))).collect(),
            began_after: statuses.iter().filter(is_before).map(|one| one.revision).max().unwrap_or(0),
            begun: rolling.iter().map(|one| one.version).min(),
            end: applied.map(|(revision, _)| revision).or_else(|| ended.map(|one| one.version).min()),
            applied,
            progresses: statuses.iter().filter_map(|one| Some((one.progress.clone()?, one.ret))).collect(),
        }
    }

    fn is_ended(&self, revision: u64) -> bool {
        self.end.is_some_and(|end| revision >= end)
    }

    /// How many stages had ended at a revision at least.
    fn least(&self, revision: u64) -> usize {
        self.stages.range(..=revision).next_back().map_or(0, |(_, passed)| *passed)
    }

    /// And at most.
    fn most(&self, revision: u64) -> usize {
        self.stages.range(revision..).next().map_or(self.sent.plan.stages.len(), |(_, passed)| *passed)
    }

    /// Whether it certainly runs at a revision.
    fn runs(&self, revision: u64) -> bool {
        self.begun.is_some_and(|begun| begun <= revision) && !self.is_ended(revision)
    }
}

struct Checker<'a> {
    rollouts: &'a Rollouts,
    recorded: Recorded,
    lines: BTreeMap<String, Line>,
    /// The first revision at which a reader saw a candidate of a change request.
    first_in: BTreeMap<(usize, String), u64>,
    found: BTreeMap<&'static str, Vec<String>>,
}

/// What is wrong with all that was seen.
pub(super) fn violations(run: &Run, recorded: Recorded) -> Vec<String> {
    let rollouts = &run.rollouts;
    let statuses = rollouts.statuses.borrow();
    let mut by_id: BTreeMap<&str, Vec<&Status>> = BTreeMap::new();
    for status in statuses.iter() {
        by_id.entry(&status.id).or_default().push(status);
    }
    let sent = rollouts.sent.borrow();
    let mut checker = Checker {
        rollouts,
        recorded,
        lines: BTreeMap::new(),
        first_in: BTreeMap::new(),
        found: BTreeMap::new(),
    };
    for last in &checker.recorded.last {
        let of = by_id.get(last.id.as_str()).map(Vec::as_slice).unwrap_or_default();
        if let Some(sent) = sent.get(&last.title) {
            checker.lines.insert(last.id.clone(), Line::new(sent.clone(), of));
        }
    }
    checker.check();
    checker.found.into_values().flatten().collect()
}

impl Checker<'_> {
    fn wrong(&mut self, which: &'static str, text: &str, what: &dyn Debug) {
        let all = self.found.entry(which).or_default();
        if all.len() < TOLD_MAX {
            all.push(format!("{which}: {text}: {what:?}"));
        }
    }

    fn check(&mut self) {
        let followed = self.rollouts.followed.borrow();
        let mut seen: Vec<Seen> = self.rollouts.seen.borrow().clone();
        self.in_order(&seen);
        self.watches(&followed, &seen);
        for one in followed.iter() {
            let shown = one.states.iter().map(|(revision, items)| Seen {
                who: one.who,
                how: How::Watch,
                node: one.node.clone(),
                revision: *revision,
                call: 0,
                ret: 0,
                is_linearizable: false,
                items: items.clone(),
            });
            seen.extend(shown);
        }
        self.note_first(&seen);
        for one in &seen {
            for (config, version) in &one.items {
                self.version(one, *config, version.as_ref());
            }
            self.sides(one);
        }
        self.same(&seen);
        self.lines();
    }

    /// No linearizable read is of an earlier revision than anything that was seen before it began (O1, O4).
    fn in_order(&mut self, seen: &[Seen]) {
        let statuses = self.rollouts.statuses.borrow();
        let mut known: Vec<(u64, u64)> = seen.iter().map(|one| (one.ret, one.revision)).collect();
        known.extend(statuses.iter().map(|one| (one.ret, one.revision)));
        known.sort_unstable();
        let mut newest = 0;
        for (_, revision) in &mut known {
            newest = newest.max(*revision);
            *revision = newest;
        }
        for one in seen.iter().filter(|one| one.is_linearizable) {
            let before = known.partition_point(|(ret, _)| *ret < one.call);
            let newest = before.checked_sub(1).map_or(0, |place| known[place].1);
            if one.revision < newest {
                self.wrong("O1", &format!("a linearizable read is older than revision {newest}"), one);
            }
        }
    }

    fn note_first(&mut self, seen: &[Seen]) {
        for one in seen {
            let Some(reader) = one.who else { continue };
            for change in one.items.values().flatten().filter_map(|version| version.variant.clone()) {
                let first = self.first_in.entry((reader, change)).or_insert(u64::MAX);
                *first = one.revision.min(*first);
            }
        }
    }

    fn version(&mut self, seen: &Seen, config: usize, version: Option<&Version>) {
        match version.and_then(|version| Some((version, version.variant.as_ref()?))) {
            Some((version, change)) => self.candidate(seen, config, (version, change)),
            None => self.proven(seen, config, version.map(|version| version.value.as_str())),
        }
    }

    /// A candidate is seen by a reader that may be in, while its rollout runs (O2, O4, O6).
    fn candidate(&mut self, seen: &Seen, config: usize, (version, change): (&Version, &str)) {
        let revision = seen.revision;
        let Some(reader) = seen.who.filter(|_| seen.how != How::AtRevision) else {
            return self.wrong("O6", "a candidate is shown to who is no reader, or of the past", seen);
        };
        let Some(line) = self.lines.get(change) else {
            return self.wrong("O2", "a candidate of no change request", seen);
        };
        let wrong = if line.is_ended(revision) {
            Some(("O4", format!("a candidate after the end of its rollout at {:?}", line.end)))
        } else if revision <= line.began_after {
            Some(("O2", "a candidate before its rollout began".to_owned()))
        } else if line.sent.values.get(&config) != Some(&version.value) {
            Some(("O2", "a candidate that was not proposed".to_owned()))
        } else if !line.sent.plan.has(change, reader, line.most(revision)) {
            Some((
                "O2",
                format!("a candidate for a reader that is not in after {} stages", line.most(revision)),
            ))
        } else {
            None
        };
        if let Some((which, text)) = wrong {
            self.wrong(which, &text, seen);
        }
    }

    /// What is proven is seen by who is not in (O1), and it is what the history has (O6).
    fn proven(&mut self, seen: &Seen, config: usize, value: Option<&str>) {
        let revision = seen.revision;
        if self.recorded.at(config, revision).is_some_and(|proven| proven.as_deref() != value) {
            self.wrong("O6", &format!("config {config} is not what the history has"), seen);
        }
        let Some(reader) = seen.who.filter(|_| seen.how != How::AtRevision) else { return };
        let is_missed = |(change, line): &(&String, &Line)| {
            let is_known = line.sent.plan.has(change, reader, line.least(revision));
            let first = self.first_in.get(&(reader, (*change).clone()));
            let was_in = first.is_some_and(|first| *first <= revision);
            line.sent.values.contains_key(&config) && line.runs(revision) && (is_known || was_in)
        };
        let missed = self.lines.iter().find(is_missed);
        if let Some((change, line)) = missed {
            let text = format!(
                "a reader that is in {change} after {} stages does not see config {config}",
                line.least(revision)
            );
            self.wrong("O1", &text, seen);
        }
    }

    /// All configs of a change request are on one side (O5).
    fn sides(&mut self, seen: &Seen) {
        let mut shown: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (config, version) in &seen.items {
            if let Some(change) = version.as_ref().and_then(|version| version.variant.as_deref()) {
                shown.entry(change).or_default().insert(*config);
            }
        }
        let is_torn = |(change, configs): &(&&str, &BTreeSet<usize>)| {
            let line = self.lines.get(**change);
            let of = |line: &Line| {
                let all = line.sent.values.keys().filter(|config| seen.items.contains_key(config));
                all.copied().collect::<BTreeSet<usize>>()
            };
            line.is_some_and(|line| of(line) != **configs)
        };
        if shown.iter().any(|one| is_torn(&one)) {
            self.wrong("O5", "some configs of a change request are on one side, some on the other", seen);
        }
    }

    /// What one reader sees of a config at one revision is the same everywhere (O2).
    fn same(&mut self, seen: &[Seen]) {
        let mut known: BTreeMap<(Who, usize, u64), (&Option<Version>, &Seen)> = BTreeMap::new();
        for one in seen.iter().filter(|one| one.how == How::Read) {
            for (config, version) in &one.items {
                let (other, by) = *known.entry((one.who, *config, one.revision)).or_insert((version, one));
                if !is_same(other.as_ref(), version.as_ref()) {
                    self.wrong("O2", "one reader, one revision, two versions", &(one, by));
                }
            }
        }
    }

    /// What a watch shows at a revision is what reads show to the same reader (O7).
    fn watches(&mut self, followed: &[Followed], seen: &[Seen]) {
        let mut reads: BTreeMap<Who, Vec<&Seen>> = BTreeMap::new();
        for one in seen.iter().filter(|one| one.how == How::Read) {
            reads.entry(one.who).or_default().push(one);
        }
        for one in followed {
            for read in reads.get(&one.who).into_iter().flatten() {
                let Some((from, state)) = one.states.range(..=read.revision).next_back() else { continue };
                if read.revision > one.upto {
                    continue;
                }
                for (config, version) in &read.items {
                    let Some(shown) = state.get(config) else { continue };
                    if !is_same(shown.as_ref(), version.as_ref()) {
                        let text =
                            format!("the watch at {} shows {shown:?} from {from} to {}", one.node, one.upto);
                        self.wrong("O7", &text, read);
                    }
                }
            }
        }
    }

    /// What the change requests and the history say.
    fn lines(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        for (change, line) in &lines {
            self.overwritten(change, line);
            self.stages(change, line);
            self.end(change, line);
        }
        self.lines = lines;
    }

    /// Nothing else changes what is in a rollout; and what is not applied is not in the history.
    fn overwritten(&mut self, change: &str, line: &Line) {
        for (config, value) in &line.sent.values {
            let proven = self.recorded.proven.get(config).cloned().unwrap_or_default();
            if let Some((revision, by)) = proven.iter().find(|(revision, _)| {
                line.begun.is_some_and(|begun| begun < **revision) && line.runs(**revision)
            }) {
                let text =
                    format!("config {config} of {change}, which rolls since {:?}, is changed", line.begun);
                self.wrong("overwritten", &text, &(revision, by, line.end));
            }
            let places: Vec<u64> = proven
                .iter()
                .filter(|(_, is)| is.as_ref() == Some(value))
                .map(|(revision, _)| *revision)
                .collect();
            let applied = line.applied.map(|(revision, _)| revision);
            // It may have come back since, when a later change was taken back.
            let is_compacted = applied.is_some_and(|applied| applied <= self.recorded.compacted);
            let first = applied.filter(|applied| self.recorded.has(*applied));
            let is_right = is_compacted || places.first().copied() == first;
            if !is_right {
                let text = format!("the candidate of config {config} of {change} is applied at {applied:?}");
                self.wrong("applied", &text, &places);
            }
        }
    }

    /// No stage ended without its time or its evidence, unless a person has ended it (O3).
    fn stages(&mut self, change: &str, line: &Line) {
        let mut since = BTreeMap::new();
        for (progress, _) in &line.progresses {
            let last = since.entry(progress.passed.len()).or_insert(0);
            *last = progress.since.max(*last);
        }
        for (progress, ret) in &line.progresses {
            let mut before = progress.begun_at;
            for (number, passed) in progress.passed.iter().enumerate() {
                let from = since.get(&number).copied().unwrap_or(0).max(before);
                if let Some(text) = self.stage_wrong(change, line, (number, passed), from) {
                    self.wrong("O3", &text, &(change, progress, ret, &line.sent.plan));
                }
                before = passed.at;
            }
        }
    }

    /// What is wrong with the end of a stage.
    fn stage_wrong(
        &self,
        change: &str,
        line: &Line,
        (number, passed): (usize, &Passed),
        from: u64,
    ) -> Option<String> {
        let plan = &line.sent.plan;
        let Some(stage) = plan.stages.get(number) else {
            return Some("a stage that is not planned".to_owned());
        };
        let Some((healthy, failed, gates)) = passed.counts else {
            let is_tried = self.rollouts.advanced.borrow().contains(change);
            return (!is_tried).then(|| format!("stage {number} was ended by nobody"));
        };
        let reported = self.rollouts.healthy.borrow().get(change).map_or(0, |names| names.len() as u64);
        if passed.at < from + stage.for_s * 1_000_000 {
            Some(format!("stage {number} ended early: from {from} to {}", passed.at))
        } else if healthy < stage.min_healthy || failed > plan.max_failed || gates != plan.gates.len() as u64
        {
            Some(format!("stage {number} ended without its evidence"))
        } else if healthy > reported {
            Some(format!("stage {number} ended by {healthy} readers, and {reported} have reported"))
        } else {
            None
        }
    }

    /// One that was applied has had all of its stages, also those that nobody has seen (O3).
    fn end(&mut self, change: &str, line: &Line) {
        let Some((_, at)) = line.applied.filter(|_| !self.rollouts.advanced.borrow().contains(change)) else {
            return;
        };
        let plan = &line.sent.plan;
        let least: u64 = plan.stages.iter().map(|stage| stage.for_s * 1_000_000).sum();
        let begun = line.progresses.iter().map(|(progress, _)| progress.begun_at).max();
        if let Some(begun) = begun.filter(|begun| at < begun + least) {
            self.wrong("O3", &format!("{change} was applied early"), &(begun, at, plan));
        }
        let needed = plan.stages.iter().map(|stage| stage.min_healthy).max().unwrap_or(0);
        let reported = self.rollouts.healthy.borrow().get(change).map_or(0, |names| names.len() as u64);
        let good = self.rollouts.good.borrow().clone();
        if reported < needed || plan.gates.iter().any(|(gate, _)| !good.contains(*gate)) {
            self.wrong("O3", &format!("{change} was applied without evidence"), &(reported, plan));
        }
    }
}

/// Whether two versions are one. A read of one config does not say the revision of a candidate.
fn is_same(one: Option<&Version>, other: Option<&Version>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
    let revisions = (one.revision, other.revision);
    let is_one_revision = !matches!(revisions, (Some(one), Some(other)) if one != other);
    one.value == other.value && one.variant == other.variant && is_one_revision
}
