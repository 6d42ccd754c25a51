//! The reports of readers and the words of gates that a leader remembers.
//!
//! ```text
//! Memory ── Group, Group, …      of each rollout, and of each config: the newest report of each instance of its readers
//!         └ Word, Word, …        of each gate and key: the newest thing that it has said
//! ```
//!
//! A reader is a name, and several programs may have it. So each of them has a report of its own, and a reader has failed as
//! long as one of its instances has.
//!
//! **Invariants:** it never has more than [`ROLLOUT_READERS_MAX`] reports about one rollout or one config, [`REPORTS_MAX`] in
//! all, [`CONFIG_REPORTS_MAX`] of them about configs and [`CONFIG_REPORTS_OF_KEY_MAX`] of those by one access key, of one config half
//! of what the other keys leave, and
//! [`GATE_WORDS_MAX`] words. What is full of readers that run well still takes a failure: the oldest of those makes room. Only
//! a key that has used up its own part gets none from others. What it has is of one term, so a new leader begins with nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use tokio::time::{Duration, Instant};

use super::evidence::FailureReport;
use crate::request::Principal;
use concord_model::{
    key::Key,
    limits::{
        CONFIG_REPORT_DETAILS_MAX, CONFIG_REPORT_DETAILS_OF_KEY_MAX, CONFIG_REPORTS_MAX,
        CONFIG_REPORTS_OF_KEY_MAX, GATE_WORDS_MAX, READERS_OF_NODE_MAX, REPORT_AGE_S_MAX, REPORT_DETAILS_MAX,
        REPORTS_MAX, ROLLOUT_READERS_MAX, ROLLOUT_TIME_S_MAX,
    },
    record::Revision,
    system::{change::ChangeId, rollout::Reader},
    time::Timestamp,
};

/// How long a report counts.
const REPORT_AGE: Duration = Duration::from_secs(REPORT_AGE_S_MAX);
/// How long a word is kept: no plan counts an older one.
const WORD_AGE: Duration = Duration::from_secs(ROLLOUT_TIME_S_MAX as u64);

/// There is no room for a report or a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// One run of a rollout: its edition, and when it began. What readers have said of an earlier run counts for nothing.
pub(super) type Run = (u32, Timestamp);

/// What a report is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// The candidates of a rollout.
    Rollout(ChangeId),
    /// The proven data of a config, by the id of its definition and its key.
    Config(u64, Key),
}

/// Of what the reports of a group are: those of another version count for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// One run of a rollout.
    Run(Run),
    /// The current revision of a config.
    Revision(Revision),
}

/// What a report is about, as exactly as it must be to count.
#[derive(Debug, Clone, Copy)]
pub(super) enum About<'a> {
    /// One run of a rollout.
    Rollout(&'a ChangeId, Run),
    /// The current revision of a config, as a key says of it.
    Config { definition: u64, key: &'a Key, revision: Revision, by: &'a SmolStr },
}

/// When something is said, by the monotonic clock and by the time of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// What ages are counted by.
    pub(super) now: Instant,
    /// What is shown.
    pub(super) time: Timestamp,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It says nothing of what counts: it is about an earlier revision, or its reader does not see the candidates.
    Dropped,
    /// It counts.
    Counted,
    /// It counts, and is a failure of a reader that had none.
    News,
}

/// What a reader has said, in the sum of its instances. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Said {
    /// Whether one of its instances has failed.
    pub(super) is_failed: bool,
    /// What its newest report of this kind says of which the detail was kept.
    pub(super) detail: Option<String>,
    /// The revision that this report is about; 0 of a candidate.
    pub(super) revision: Revision,
    /// When it came.
    pub(super) at: Timestamp,
}

/// What a memory has at most.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Reports about one rollout or config.
    of_subject: usize,
    reports: usize,
    of_configs: usize,
    of_key: usize,
    words: usize,
}

const BOUNDS: Bounds = Bounds {
    of_subject: ROLLOUT_READERS_MAX,
    reports: REPORTS_MAX,
    of_configs: CONFIG_REPORTS_MAX,
    of_key: CONFIG_REPORTS_OF_KEY_MAX,
    words: GATE_WORDS_MAX,
};

/// All that a leader remembers.
#[derive(Debug)]
pub(super) struct Memory {
    term: u64,
    groups: BTreeMap<Subject, Group>,
    totals: Totals,
    words: BTreeMap<(String, SmolStr), Word>,
    /// Numbers reports and words by their age.
    last_number: u64,
    bounds: Bounds,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            term: 0,
            groups: BTreeMap::new(),
            totals: Totals::default(),
            words: BTreeMap::new(),
            last_number: 0,
            bounds: BOUNDS,
        }
    }
}

/// How many reports and details there are.
#[derive(Debug, Default)]
struct Totals {
    reports: usize,
    of_configs: Part,
    /// Of those about configs, by the id of the key that has sent them.
    of_keys: BTreeMap<SmolStr, Part>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    reports: usize,
    /// Of them, those of instances that run well.
    healthy: usize,
    details: usize,
}

impl Totals {
    /// Reports about configs by a key.
    fn of_key(&self, by: &SmolStr) -> Part {
        self.of_keys.get(by).copied().unwrap_or_default()
    }

    fn add(&mut self, report: &Report, is_failed: bool) {
        self.reports += 1;
        let Some(by) = &report.by else { return };
        for part in [&mut self.of_configs, self.of_keys.entry(by.clone()).or_default()] {
            part.reports += 1;
            part.healthy += usize::from(!is_failed);
            part.details += usize::from(report.detail.is_some());
        }
    }

    fn remove(&mut self, report: &Report, is_failed: bool) {
        self.reports -= 1;
        let Some(by) = &report.by else { return };
        for part in [&mut self.of_configs, self.of_keys.entry(by.clone()).or_default()] {
            part.reports -= 1;
            part.healthy -= usize::from(!is_failed);
            part.details -= usize::from(report.detail.is_some());
        }
        if self.of_key(by).reports == 0 {
            self.of_keys.remove(by);
        }
    }
}

/// The reports about one run of a rollout, or about one revision of a config.
#[derive(Debug, Default)]
struct Group {
    version: Option<Version>,
    /// Readers with reports, and how many of their instances have failed.
    readers: BTreeMap<Arc<str>, Instances>,
    failed_readers: usize,
    /// The place of each instance of a reader in one of the two others.
    places: BTreeMap<(Arc<str>, SmolStr), Place>,
    /// By age.
    healthy: BTreeMap<u64, Report>,
    /// By age.
    failed: BTreeMap<u64, Report>,
    /// Those of `failed` that have a detail: one of each reader at most.
    details: usize,
    /// Reports about a config by the key that has sent them.
    of_keys: BTreeMap<SmolStr, usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Instances {
    all: usize,
    failed: usize,
    has_detail: bool,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    number: u64,
    is_failed: bool,
}

#[derive(Debug)]
struct Report {
    reader: Arc<str>,
    instance: SmolStr,
    /// The key that has sent it, of a report about a config.
    by: Option<SmolStr>,
    at: Instant,
    time: Timestamp,
    /// What is shown of a failure; of the first [`REPORT_DETAILS_MAX`] readers only.
    detail: Option<Box<Detail>>,
}

#[derive(Debug)]
struct Detail {
    labels: Vec<(String, String)>,
    text: String,
}

/// What a key has said of a gate.
#[derive(Debug, Clone)]
pub(super) struct Word {
    /// Whether all is well.
    pub(super) is_ok: bool,
    /// What the monitor has seen.
    pub(super) evidence: String,
    /// When.
    pub(super) at: Moment,
    /// Whose key.
    pub(super) by: Principal,
    number: u64,
}

fn is_old(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) >= REPORT_AGE
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Group {
    fn len(&self) -> usize {
        self.places.len()
    }

    /// The readers that run well, and those that do not.
    fn count(&self) -> (usize, usize) {
        (self.readers.len() - self.failed_readers, self.failed_readers)
    }

    /// The revision that its reports are about; 0 of candidates.
    fn revision(&self) -> Revision {
        if let Some(Version::Revision(revision)) = self.version { revision } else { 0 }
    }

    fn has_failed(&self, reader: &str) -> bool {
        self.readers.get(reader).is_some_and(|instances| instances.failed > 0)
    }

    /// Where the report of an instance is.
    fn place(&self, reader: &str, instance: &SmolStr) -> Option<Place> {
        let (name, _) = self.readers.get_key_value(reader)?;
        self.places.get(&(Arc::clone(name), instance.clone())).copied()
    }

    fn report(&self, place: Place) -> Option<&Report> {
        if place.is_failed { self.failed.get(&place.number) } else { self.healthy.get(&place.number) }
    }

    /// Forgets the report of an instance.
    fn forget(&mut self, reader: &str, instance: &SmolStr, totals: &mut Totals) {
        let Some(Place { number, is_failed }) = self.place(reader, instance) else { return };
        let all = if is_failed { &mut self.failed } else { &mut self.healthy };
        if let Some(report) = all.remove(&number) {
            self.removed(report, is_failed, totals);
        }
    }

    /// What follows from it that a report was taken out of one of the two.
    fn removed(&mut self, report: Report, is_failed: bool, totals: &mut Totals) {
        totals.remove(&report, is_failed);
        self.details -= usize::from(report.detail.is_some());
        if let Some(by) = &report.by
            && let Some(count) = self.of_keys.get_mut(by)
        {
            *count -= 1;
            if *count == 0 {
                self.of_keys.remove(by);
            }
        }
        if let Some(instances) = self.readers.get_mut(&report.reader) {
            instances.all -= 1;
            instances.failed -= usize::from(is_failed);
            instances.has_detail &= report.detail.is_none();
            self.failed_readers -= usize::from(is_failed && instances.failed == 0);
            if instances.all == 0 {
                self.readers.remove(&report.reader);
            }
        }
        self.places.remove(&(report.reader, report.instance));
    }

    /// Forgets what counts no more.
    fn expire(&mut self, now: Instant, totals: &mut Totals) {
        while let Some(oldest) = self.healthy.first_entry().filter(|oldest| is_old(oldest.get().at, now)) {
            let report = oldest.remove();
            self.removed(report, false, totals);
        }
        while let Some(oldest) = self.failed.first_entry().filter(|oldest| is_old(oldest.get().at, now)) {
            let report = oldest.remove();
            self.removed(report, true, totals);
        }
    }

    /// Forgets the oldest report of an instance that runs well. Whether there was one.
    fn make_room(&mut self, totals: &mut Totals) -> bool {
        let Some((_, oldest)) = self.healthy.pop_first() else { return false };
        self.removed(oldest, false, totals);
        true
    }

    /// The same of those that a key has sent.
    fn make_room_of(&mut self, by: &SmolStr, totals: &mut Totals) -> bool {
        let is_own = |(_, report): &(&u64, &Report)| report.by.as_ref() == Some(by);
        let oldest = self.healthy.iter().find(is_own).map(|(number, _)| *number);
        let Some(oldest) = oldest.and_then(|number| self.healthy.remove(&number)) else { return false };
        self.removed(oldest, false, totals);
        true
    }

    /// Forgets all of it.
    fn clear(&mut self, totals: &mut Totals) {
        self.healthy.values().for_each(|report| totals.remove(report, false));
        self.failed.values().for_each(|report| totals.remove(report, true));
        *self = Self::default();
    }

    /// Adds a report of an instance that has none.
    fn add(&mut self, place: Place, report: Report, totals: &mut Totals) {
        totals.add(&report, place.is_failed);
        self.details += usize::from(report.detail.is_some());
        let instances = self.readers.entry(Arc::clone(&report.reader)).or_default();
        instances.all += 1;
        self.failed_readers += usize::from(place.is_failed && instances.failed == 0);
        instances.failed += usize::from(place.is_failed);
        instances.has_detail |= report.detail.is_some();
        if let Some(by) = &report.by {
            *self.of_keys.entry(by.clone()).or_default() += 1;
        }
        self.places.insert((Arc::clone(&report.reader), report.instance.clone()), place);
        let all = if place.is_failed { &mut self.failed } else { &mut self.healthy };
        all.insert(place.number, report);
    }

    /// What the instances of a reader have said.
    fn said(&self, reader: &str) -> Option<Said> {
        let (name, instances) = self.readers.get_key_value(reader)?;
        let is_failed = instances.failed > 0;
        let first = (Arc::clone(name), SmolStr::default());
        let own = self.places.range(first..).take_while(|((of, _), _)| of == name);
        let own = own.map(|(_, place)| *place).filter(|place| place.is_failed == is_failed);
        let report = own.filter_map(|place| self.report(place));
        let report = report.max_by_key(|report| (report.detail.is_some(), report.time))?;
        let detail = report.detail.as_ref().map(|detail| detail.text.clone());
        Some(Said { is_failed, detail, revision: self.revision(), at: report.time })
    }

    fn failure(&self, failed: &Report) -> FailureReport {
        let (labels, detail) = failed
            .detail
            .as_ref()
            .map(|detail| (detail.labels.clone(), detail.text.clone()))
            .unwrap_or_default();
        FailureReport {
            reader: failed.reader.to_string(),
            instance: failed.instance.to_string(),
            labels,
            detail,
            revision: self.revision(),
            at: failed.time,
        }
    }

    /// The failures of which there are details, the newest first: one of each reader at most.
    fn failures(&self) -> Vec<FailureReport> {
        let with_detail = self.failed.values().rev().filter(|failed| failed.detail.is_some());
        with_detail.map(|failed| self.failure(failed)).collect()
    }

    /// A failure of each reader that has failed, those with a detail first: at most so many.
    fn failures_of_readers(&self, most: usize) -> Vec<FailureReport> {
        let mut all = self.failures();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let has_detail = |reader: &str| self.readers.get(reader).is_some_and(|of| of.has_detail);
        let others = self.failed.values().rev().filter(|failed| !has_detail(&failed.reader));
        let others = others.filter(|failed| known.insert(&failed.reader));
        let room = most.saturating_sub(all.len());
        all.extend(others.take(room).map(|failed| self.failure(failed)));
        all
    }
}

impl About<'_> {
    fn subject(&self) -> Subject {
        match self {
            Self::Rollout(change, _) => Subject::Rollout((*change).clone()),
            Self::Config { definition, key, .. } => Subject::Config(*definition, (*key).clone()),
        }
    }

    fn version(&self) -> Version {
        match self {
            Self::Rollout(_, run) => Version::Run(*run),
            Self::Config { revision, .. } => Version::Revision(*revision),
        }
    }

    /// The key whose part it counts for.
    fn by(&self) -> Option<&SmolStr> {
        match self {
            Self::Rollout(..) => None,
            Self::Config { by, .. } => Some(by),
        }
    }
}

impl Memory {
    /// Forgets all that is of another term.
    pub(super) fn begin_term(&mut self, term: u64) {
        if self.term != term {
            *self = Self { term, bounds: self.bounds, ..Self::default() };
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The reports about a version of a rollout or a config, without those that count no more.
    fn group(&mut self, subject: &Subject, version: Version, now: Instant) -> Option<&mut Group> {
        let group = self.groups.get_mut(subject).filter(|group| group.version == Some(version))?;
        group.expire(now, &mut self.totals);
        Some(group)
    }

    /// Takes the report of an instance of a reader; `failure`: what it says of it, if it does not run well. The reader of a
    /// rollout is in.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn report(
        &mut self,
        about: About<'_>,
        (reader, instance): (&Reader, &SmolStr),
        failure: Option<&str>,
        at: Moment,
    ) -> Result<Taken, Full> {
        let (subject, version, is_failed) = (about.subject(), about.version(), failure.is_some());
        let totals = &mut self.totals;
        let group = self.groups.entry(subject.clone()).or_default();
        if group.version != Some(version) {
            if let (Some(Version::Revision(known)), Version::Revision(reported)) = (group.version, version)
                && known > reported
            {
                return Ok(Taken::Dropped);
            }
            group.clear(totals);
            group.version = Some(version);
        }
        group.expire(at.now, totals);
        let before = group.place(&reader.id, instance).and_then(|place| group.report(place));
        // What replaces a report of the same key takes no more room. What is rejected changes nothing.
        if before.is_none_or(|before| before.by.as_ref() != about.by()) {
            self.find_room(&subject, about.by(), is_failed, at.now)?;
        }
        let group = self.groups.entry(subject.clone()).or_default();
        let had_failed = group.has_failed(&reader.id);
        group.forget(&reader.id, instance, &mut self.totals);
        let place = Place { number: self.next_number(), is_failed };
        let has_room = self.has_room_for_detail(&subject, about.by());
        let group = self.groups.entry(subject).or_default();
        group.version = Some(version);
        let is_first = group.readers.get(reader.id.as_str()).is_none_or(|of| !of.has_detail);
        let detail = failure.filter(|_| has_room && is_first).map(|text| {
            let (labels, text) = (reader.labels.clone(), text.to_owned());
            Box::new(Detail { labels, text })
        });
        let known = group.readers.get_key_value(reader.id.as_str()).map(|(name, _)| Arc::clone(name));
        let report = Report {
            reader: known.unwrap_or_else(|| reader.id.as_str().into()),
            instance: instance.clone(),
            by: about.by().cloned(),
            at: at.now,
            time: at.time,
            detail,
        };
        group.add(place, report, &mut self.totals);
        Ok(if is_failed && !had_failed { Taken::News } else { Taken::Counted })
    }

    /// Whether there is room for what one more failure says.
    fn has_room_for_detail(&self, subject: &Subject, by: Option<&SmolStr>) -> bool {
        let own = self.groups.get(subject).map_or(0, |group| group.details);
        own < REPORT_DETAILS_MAX
            && by.is_none_or(|by| {
                self.totals.of_configs.details < CONFIG_REPORT_DETAILS_MAX
                    && self.totals.of_key(by).details < CONFIG_REPORT_DETAILS_OF_KEY_MAX
            })
    }

    /// Makes room for one more report; `by`: the key that sends it, if it is about a config.
    fn find_room(
        &mut self,
        subject: &Subject,
        by: Option<&SmolStr>,
        is_failure: bool,
        now: Instant,
    ) -> Result<(), Full> {
        let Bounds { of_subject, reports, of_configs, of_key, .. } = self.bounds;
        let totals = &mut self.totals;
        let own = self.groups.get_mut(subject).ok_or(Full)?;
        if let Some(by) = by {
            // Of one config a key may send half of what the others leave: it shuts none of them out.
            let of_own = own.of_keys.get(by).copied().unwrap_or_default();
            let others = own.len() - of_own;
            let is_own_part = of_own >= (of_subject.saturating_sub(others) / 2).max(1);
            if is_own_part {
                return if is_failure && own.make_room_of(by, totals) { Ok(()) } else { Err(Full) };
            }
        }
        if own.len() >= of_subject && !(is_failure && own.make_room(totals)) {
            return Err(Full);
        }
        let own = own.len();
        if let Some(by) = by {
            // Neither a key nor all reports about configs take a place from the rollouts.
            let part = totals.of_key(by);
            let is_used_up = part.reports >= of_key;
            if !is_used_up && totals.of_configs.reports < of_configs && totals.reports < reports {
                return Ok(());
            }
            let gives = if is_used_up { part.healthy > 0 } else { totals.of_configs.healthy > 0 };
            if !(is_failure && gives) {
                return Err(Full);
            }
            let configs =
                self.groups.iter_mut().filter(|(subject, _)| matches!(subject, Subject::Config(..)));
            let mut configs = configs.map(|(_, group)| group);
            let is_made = if is_used_up {
                configs.any(|group| group.make_room_of(by, totals))
            } else {
                let most = configs.max_by_key(|group| group.healthy.len());
                most.is_some_and(|most| most.make_room(totals))
            };
            return if is_made { Ok(()) } else { Err(Full) };
        }
        if totals.reports < reports {
            return Ok(());
        }
        self.groups.values_mut().for_each(|group| group.expire(now, totals));
        if totals.reports < reports {
            return Ok(());
        }
        // The rollout that has the most gives a place to any that has fewer, and to a failure in any case.
        let most = self.groups.values_mut().max_by_key(|group| group.healthy.len());
        let gives = most.is_some_and(|most| (is_failure || most.len() > own + 1) && most.make_room(totals));
        if gives { Ok(()) } else { Err(Full) }
    }

    /// The readers that run well with a rollout, and those that do not.
    pub(super) fn count(&mut self, change: &ChangeId, run: Run, now: Instant) -> (u32, u32) {
        let group = self.group(&Subject::Rollout(change.clone()), Version::Run(run), now);
        let (healthy, failed) = group.map_or((0, 0), |group| group.count());
        (number(healthy), number(failed))
    }

    /// The failures of a rollout of which there are details, the newest first.
    pub(super) fn failures(&mut self, change: &ChangeId, run: Run, now: Instant) -> Vec<FailureReport> {
        let group = self.group(&Subject::Rollout(change.clone()), Version::Run(run), now);
        group.map(|group| group.failures()).unwrap_or_default()
    }

    /// What readers have said of a version of a rollout or of a config, in their order.
    pub(super) fn said<'r>(
        &mut self,
        subject: &Subject,
        version: Version,
        readers: impl Iterator<Item = &'r str>,
        now: Instant,
    ) -> Vec<Option<Said>> {
        let group = self.group(subject, version, now);
        readers.map(|reader| group.as_ref().and_then(|group| group.said(reader))).collect()
    }

    /// The readers that run well with a revision of a config, those that do not, and a failure of each of these, of
    /// [`READERS_OF_NODE_MAX`] at most.
    pub(super) fn of_config(
        &mut self,
        (definition, key, revision): (u64, &Key, Revision),
        now: Instant,
    ) -> (u32, u32, Vec<FailureReport>) {
        let subject = Subject::Config(definition, key.clone());
        let Some(group) = self.group(&subject, Version::Revision(revision), now) else {
            return (0, 0, Vec::new());
        };
        let (healthy, failed) = group.count();
        (number(healthy), number(failed), group.failures_of_readers(READERS_OF_NODE_MAX))
    }

    /// Takes what a key says of a gate. `is_needed`: whether a rollout that runs waits for this gate and counts this key.
    /// Returns whether it is something else than it has said before.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn say(
        &mut self,
        gate: &str,
        (by, is_ok, evidence): (&Principal, bool, String),
        at: Moment,
        is_needed: impl Fn(&str, &Principal) -> bool,
    ) -> Result<bool, Full> {
        let place = (gate.to_owned(), by.id.clone());
        let before = self.words.remove(&place);
        if self.words.len() >= self.bounds.words {
            let unneeded = self.words.iter().filter(|((gate, _), word)| !is_needed(gate, &word.by));
            let oldest = unneeded.min_by_key(|(_, word)| word.number).map(|(place, _)| place.clone());
            // Who fills the memory keeps nobody's word out that something is wrong.
            let good = || self.words.iter().filter(|(_, word)| word.is_ok && !is_ok);
            let oldest_good = || good().min_by_key(|(_, word)| word.number).map(|(place, _)| place.clone());
            let oldest = oldest.or_else(oldest_good).ok_or(Full)?;
            self.words.remove(&oldest);
        }
        let number = self.next_number();
        self.words.insert(place, Word { is_ok, evidence, at, by: by.clone(), number });
        Ok(before.is_none_or(|before| before.is_ok != is_ok))
    }

    /// The newest word of a gate by a key that counts.
    pub(super) fn word(&self, gate: &str, counts: impl Fn(&Principal) -> bool) -> Option<&Word> {
        let first = (gate.to_owned(), SmolStr::default());
        let of_gate = self.words.range(first..).take_while(|((name, _), _)| name == gate);
        let newest_first = |(_, word): &(&_, &Word)| std::cmp::Reverse(word.number);
        let mut words: Vec<_> = of_gate.collect();
        words.sort_unstable_by_key(newest_first);
        words.into_iter().map(|(_, word)| word).find(|word| counts(&word.by))
    }

    /// Forgets what counts no more, and the reports about rollouts that do not run.
    pub(super) fn tidy(&mut self, now: Instant, runs: impl Fn(&ChangeId) -> bool) {
        let totals = &mut self.totals;
        self.groups.retain(|subject, group| {
            group.expire(now, totals);
            let counts = match subject {
                Subject::Rollout(change) => runs(change),
                Subject::Config(..) => true,
            };
            if !counts {
                group.clear(totals);
            }
            group.len() > 0
        });
        self.words.retain(|_, word| now.saturating_duration_since(word.at.now) < WORD_AGE);
    }
}

#[cfg(test)]
mod tests;
