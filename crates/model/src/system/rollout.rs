//! Rollouts: the release of a change request in stages.
//!
//! ```text
//! Rollout ── Plan ── Stage, Stage, …        which readers see the candidates, how long, on which evidence
//!          ├ Progress                        the present stage; `None` before it begins
//!          └ Candidate, Candidate, …         what the configs will be; none before it begins
//! Pace                                      since when the present stage lasts, and whether it waits
//! ```
//!
//! The [`Pace`] is a part of the change request ([`Phase::Rolling`]): so the record of a rollout, which may be large, changes
//! only when its readers do.
//!
//! A reader is *in* if it matches a stage up to the present one. Every node computes that from the record and from what the
//! reader says of itself alone, so all nodes at one revision choose the same side.
//!
//! **Invariants:** stages only add readers. All candidates of a rollout are in one record, so a reader sees all configs of a
//! change request on one side.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    change::{Change, ChangeId, NewEdition, Phase},
    pace::{Actor, Pace},
};
use crate::{
    command::RolloutStage,
    encoding,
    error::RolloutBound,
    key::Key,
    limits::{
        GATE_NAME_BYTES_MAX, LABEL_BYTES_MAX, READER_BYTES_MAX, READER_LABELS_BYTES_MAX,
        ROLLOUT_CANDIDATE_BYTES_MAX, ROLLOUT_CONFIGS_MAX, ROLLOUT_GATES_MAX, ROLLOUT_LABELS_BYTES_MAX,
        ROLLOUT_LABELS_MAX, ROLLOUT_READERS_MAX, ROLLOUT_STAGES_MAX, ROLLOUT_TIME_S_MAX,
    },
    sabotage,
    time::Timestamp,
    unseen::is_unseen,
};

/// All readers, as [`Stage::share`].
pub const SHARE_ALL: u16 = 10_000;

/// A reader, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// Its name.
    pub id: String,
    /// Its labels, each name once.
    pub labels: Vec<(String, String)>,
}

/// The values of one label that a stage is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelValues {
    /// The name of the label.
    pub name: String,
    /// A reader has one of these.
    pub values: Vec<String>,
}

/// Which readers see the candidates, for how long, and on which evidence the rollout goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// A reader has a value of each of these labels. Empty: any reader.
    pub labels: Vec<LabelValues>,
    /// How many of those readers: hundredths of a percent, by a hash that is the same over all stages.
    pub share: u16,
    /// Seconds that it lasts at least.
    pub for_s: u32,
    /// Readers that must run well before it ends.
    pub min_healthy: u32,
}

/// A monitor that must say that all is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRule {
    /// The name of the gate.
    pub name: String,
    /// What it has said counts for so many seconds.
    pub fresh_s: u32,
}

/// What follows when a gate or too many readers say that something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFail {
    /// The rollout is taken back.
    Abort,
    /// It stays as it is, and somebody decides.
    Pause,
}

/// How an edition is released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The stages, in their order.
    pub stages: Vec<Stage>,
    /// So many readers may say that something is wrong.
    pub max_failed: u32,
    /// What must be well before a stage ends.
    pub gates: Vec<GateRule>,
    /// What follows when something is not.
    pub on_fail: OnFail,
    /// The rollout pauses when a stage takes so many seconds longer than it must.
    pub timeout_s: u32,
}

/// The evidence by which a stage ended. The leader counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Readers that run well.
    pub healthy: u32,
    /// Readers that say that something is wrong.
    pub failed: u32,
    /// Gates that have said lately that all is well, of those that the plan names.
    pub gates: u32,
}

/// A stage that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedStage {
    /// When it ended.
    pub at: Timestamp,
    /// By what evidence.
    pub evidence: Evidence,
    /// Who ended it.
    pub by: Actor,
}

/// How far a rollout is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// When it began.
    pub begun_at: Timestamp,
    /// The stages that have ended, in their order. The present stage is the one after them.
    pub passed: Vec<PassedStage>,
}

/// A rollout that runs.
#[derive(Debug, Clone, Copy)]
pub struct Running<'r> {
    /// Its record.
    pub rollout: &'r Rollout,
    /// How far it is.
    pub progress: &'r Progress,
    /// How it goes on.
    pub pace: &'r Pace,
}

/// What a config will be when the rollout has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The id of its definition.
    pub definition: u64,
    /// Its key.
    pub key: Key,
    /// The JSON text of its data.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub data: Arc<str>,
}

/// The release of one edition of a change request. The name of its record is the id of the change request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The edition.
    pub edition: u32,
    /// How it is released.
    pub plan: Plan,
    /// How far it is; `None` before it begins.
    pub progress: Option<Progress>,
    /// What the configs will be: ascending by definition and key, each once. None before it begins.
    pub candidates: Vec<Candidate>,
}

/// An edition that is released in stages, as its sender sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedEdition {
    /// The edition.
    pub edition: NewEdition,
    /// How it is released.
    pub plan: Plan,
}

/// What is wrong with what a reader says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    /// Its name.
    #[error("a reader's name has 1 to {READER_BYTES_MAX} bytes, and no characters that can't be seen")]
    Id,
    /// Its labels.
    #[error(
        "a reader's labels are `name=value`, comma-separated: at most {ROLLOUT_LABELS_MAX}, each name once, and \
         {READER_LABELS_BYTES_MAX} bytes in all"
    )]
    Labels,
}

impl Reader {
    /// A reader by its name and its labels: `ring=canary,region=eu`, or nothing.
    ///
    /// # Errors
    /// When one of them has another form, or is too large.
    pub fn parse(id: &str, labels: &str) -> Result<Self, ReaderError> {
        if !is_name(id, READER_BYTES_MAX) || id.contains(is_unseen) {
            return Err(ReaderError::Id);
        }
        if labels.len() > READER_LABELS_BYTES_MAX || labels.contains(is_unseen) {
            return Err(ReaderError::Labels);
        }
        let parts = labels.split(',').map(str::trim).filter(|part| !part.is_empty());
        let label = |part: &str| {
            let (name, value) = part.split_once('=')?;
            let (name, value) = (name.trim(), value.trim());
            (!name.is_empty() && !value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        let labels: Option<Vec<(String, String)>> = parts.map(label).collect();
        let labels = labels.ok_or(ReaderError::Labels)?;
        let names: BTreeSet<&str> = labels.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() != labels.len() || labels.len() > ROLLOUT_LABELS_MAX {
            return Err(ReaderError::Labels);
        }
        Ok(Self { id: id.to_owned(), labels })
    }
}

impl LabelValues {
    fn text_bytes(&self) -> usize {
        self.name.len() + self.values.iter().map(String::len).sum::<usize>()
    }
}

impl Stage {
    /// Whether a reader matches it. `place`: that of the reader among all ([`place_of`]).
    fn has(&self, reader: &Reader, place: u16) -> bool {
        let has_value = |of: &LabelValues| {
            reader.labels.iter().any(|(name, value)| *name == of.name && of.values.contains(value))
        };
        place < self.share && self.labels.iter().all(has_value)
    }

    /// Whether every reader of another stage matches this one.
    fn includes(&self, other: &Self) -> bool {
        let is_wider = |of: &LabelValues| {
            other.labels.iter().any(|known| {
                known.name == of.name && known.values.iter().all(|value| of.values.contains(value))
            })
        };
        other.share <= self.share && self.labels.iter().all(is_wider)
    }

    fn is_for_all(&self) -> bool {
        self.labels.is_empty() && self.share == SHARE_ALL
    }
}

/// The place of a reader among all, for one change request: 0 to 9,999, by XXH3-64 (<https://xxhash.com>) of the id of the
/// change request, a zero byte and the reader's name.
#[must_use]
pub fn place_of(change: &ChangeId, reader: &str) -> u16 {
    let text = [change.as_str().as_bytes(), &[0], reader.as_bytes()].concat();
    let place = xxhash_rust::xxh3::xxh3_64(&text) % u64::from(SHARE_ALL);
    u16::try_from(place).expect("less than 10,000")
}

fn is_name(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len())
}

impl Plan {
    /// Checks that it can be carried out.
    ///
    /// # Errors
    /// What it has too much or too little of.
    pub fn check(&self) -> Result<(), RolloutBound> {
        let Self { stages, max_failed, gates, on_fail: _, timeout_s } = self;
        if !(1..=ROLLOUT_STAGES_MAX).contains(&stages.len()) {
            return Err(RolloutBound::Stages);
        }
        let is_empty = |stage: &Stage| !(1..=SHARE_ALL).contains(&stage.share);
        let mut counts = stages.iter().map(|stage| stage.min_healthy).chain([*max_failed]);
        if counts.any(|count| usize::try_from(count).is_ok_and(|count| count >= ROLLOUT_READERS_MAX)) {
            return Err(RolloutBound::Readers);
        }
        // A stage that an earlier one includes adds no reader.
        let adds_none = stages.iter().enumerate().any(|(place, stage)| {
            stages[..place].iter().any(|earlier| earlier.includes(stage) && !stage.is_for_all())
        });
        if adds_none || stages.iter().any(is_empty) {
            return Err(RolloutBound::EmptyStage);
        }
        let time: u64 = stages.iter().map(|stage| u64::from(stage.for_s)).sum();
        if time > u64::from(ROLLOUT_TIME_S_MAX) || !(1..=ROLLOUT_TIME_S_MAX).contains(timeout_s) {
            return Err(RolloutBound::Time);
        }
        let has_labels = |stage: &Stage| {
            let names: BTreeSet<&str> = stage.labels.iter().map(|of| of.name.as_str()).collect();
            let values = stage.labels.iter().flat_map(|of| &of.values);
            stage.labels.len() <= ROLLOUT_LABELS_MAX
                && names.len() == stage.labels.len()
                && stage.labels.iter().all(|of| (1..=ROLLOUT_LABELS_MAX).contains(&of.values.len()))
                && names
                    .into_iter()
                    .chain(values.map(String::as_str))
                    .all(|text| is_name(text, LABEL_BYTES_MAX))
        };
        let of_labels = |stage: &Stage| stage.labels.iter().map(LabelValues::text_bytes).sum::<usize>();
        let bytes: usize = stages.iter().map(of_labels).sum();
        if !stages.iter().all(has_labels) || bytes > ROLLOUT_LABELS_BYTES_MAX {
            return Err(RolloutBound::Labels);
        }
        let names: BTreeSet<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
        let is_gate = |gate: &GateRule| {
            is_name(&gate.name, GATE_NAME_BYTES_MAX) && (1..=ROLLOUT_TIME_S_MAX).contains(&gate.fresh_s)
        };
        let are_gates = gates.len() <= ROLLOUT_GATES_MAX && names.len() == gates.len();
        if !are_gates || !gates.iter().all(is_gate) {
            return Err(RolloutBound::Gates);
        }
        Ok(())
    }
}

impl Rollout {
    /// One that has not begun.
    #[must_use]
    pub fn planned(edition: u32, plan: Plan) -> Self {
        Self { edition, plan, progress: None, candidates: Vec::new() }
    }

    /// Whether it has begun.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.progress.is_some()
    }

    /// The number of the present stage, from 0; `None` before it begins and after its last stage.
    #[must_use]
    pub fn stage(&self) -> Option<usize> {
        let passed = self.progress.as_ref()?.passed.len();
        (passed < self.plan.stages.len()).then_some(passed)
    }

    /// Whether a reader sees the candidates. `change`: the name of its record.
    #[must_use]
    pub fn has(&self, change: &ChangeId, reader: &Reader) -> bool {
        let Some(progress) = &self.progress else { return false };
        let place = place_of(change, &reader.id);
        let past = if sabotage::is("reader-leaves-stage") { progress.passed.len() } else { 0 };
        let mut upto_present = self.plan.stages.iter().take(progress.passed.len() + 1).skip(past);
        upto_present.any(|stage| stage.has(reader, place))
    }

    /// What a config will be.
    #[must_use]
    pub fn candidate(&self, definition: u64, key: &Key) -> Option<&Candidate> {
        let place = self
            .candidates
            .binary_search_by(|candidate| (candidate.definition, &candidate.key).cmp(&(definition, key)));
        self.candidates.get(place.ok()?)
    }

    /// Checks the candidates of one that begins.
    ///
    /// # Errors
    /// When they are too many or too large, or not in order.
    pub fn check_candidates(candidates: &[Candidate]) -> Result<(), RolloutBound> {
        let place = |candidate: &Candidate| (candidate.definition, candidate.key.clone());
        let is_in_order = candidates.is_sorted_by(|one, other| place(one) < place(other));
        let bytes: u64 = candidates.iter().map(Candidate::bytes).sum();
        if !(1..=ROLLOUT_CONFIGS_MAX).contains(&candidates.len()) || !is_in_order {
            return Err(RolloutBound::Configs);
        }
        if bytes > ROLLOUT_CANDIDATE_BYTES_MAX {
            return Err(RolloutBound::Bytes);
        }
        Ok(())
    }

    /// The bytes of its texts and lists in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let stage = |stage: &Stage| {
            let labels = stage.labels.iter();
            let of = |of: &LabelValues| of.text_bytes() + size_of_val(&of.values[..]);
            size_of::<Stage>() + labels.map(|one| size_of::<LabelValues>() + of(one)).sum::<usize>()
        };
        let stages: usize = self.plan.stages.iter().map(stage).sum();
        let gates: usize = self.plan.gates.iter().map(|gate| size_of::<GateRule>() + gate.name.len()).sum();
        let progress = self.progress.as_ref().map_or(0, |progress| size_of_val(&progress.passed[..]));
        let candidates: u64 = self.candidates.iter().map(Candidate::bytes).sum();
        stages + gates + progress + usize::try_from(candidates).unwrap_or(usize::MAX)
    }
}

impl<'r> Running<'r> {
    /// The rollout of a change request, if it runs.
    #[must_use]
    pub fn of(change: &'r Change, rollout: &'r Rollout) -> Option<Self> {
        let Phase::Rolling { pace, .. } = &change.phase else { return None };
        Some(Self { rollout, progress: rollout.progress.as_ref()?, pace })
    }

    /// The present stage as an action names it.
    #[must_use]
    pub fn at(&self) -> RolloutStage {
        let passed = u32::try_from(self.progress.passed.len()).unwrap_or(u32::MAX);
        RolloutStage { edition: self.rollout.edition, passed, since: self.pace.since }
    }

    /// The present stage; `None` after the last one.
    #[must_use]
    pub fn stage(&self) -> Option<&'r Stage> {
        self.rollout.plan.stages.get(self.rollout.stage()?)
    }

    /// Until when the present stage lasts at least; `None` after the last one.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        let for_us = u64::from(self.stage()?.for_s) * 1_000_000;
        Some(Timestamp(self.pace.since.0.saturating_add(for_us)))
    }

    /// Whether all stages have ended and nothing keeps it from being applied.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.rollout.stage().is_none() && self.pace.paused.is_none()
    }
}

impl Candidate {
    /// The bytes that it takes, about.
    fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.key.as_str().len() + self.data.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(share: u16, labels: &[(&str, &[&str])]) -> Stage {
        let of = |(name, values): &(&str, &[&str])| LabelValues {
            name: (*name).into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        Stage { labels: labels.iter().map(of).collect(), share, for_s: 1, min_healthy: 0 }
    }

    fn plan(stages: Vec<Stage>) -> Plan {
        Plan { stages, max_failed: 0, gates: Vec::new(), on_fail: OnFail::Abort, timeout_s: 60 }
    }

    fn reader(id: &str, labels: &[(&str, &str)]) -> Reader {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Reader { id: id.into(), labels }
    }

    fn running(stages: Vec<Stage>, passed: usize) -> Rollout {
        let at = Timestamp(1);
        let passed = (0..passed)
            .map(|_| PassedStage { at, evidence: Evidence::default(), by: Actor::Cluster })
            .collect();
        let progress = Some(Progress { begun_at: at, passed });
        Rollout { progress, ..Rollout::planned(1, plan(stages)) }
    }

    fn change() -> ChangeId {
        ChangeId::parse("AbCdEf012345").unwrap()
    }

    #[test]
    fn a_reader_says_its_name_and_its_labels() {
        let read = Reader::parse("host-17", "ring=canary, region=eu,").unwrap();
        assert_eq!(read, reader("host-17", &[("ring", "canary"), ("region", "eu")]));
        assert_eq!(Reader::parse("ä", "").unwrap(), reader("ä", &[]));
        let long = "x".repeat(READER_BYTES_MAX + 1);
        for id in ["", "a\nb", &long] {
            assert_eq!(Reader::parse(id, ""), Err(ReaderError::Id), "{id}");
        }
        let many: Vec<String> = (0..=ROLLOUT_LABELS_MAX).map(|number| format!("l{number}=v")).collect();
        let large = format!("a={}", "x".repeat(READER_LABELS_BYTES_MAX));
        for labels in ["a", "a=", "=b", "a=1,a=2", "a=\u{7}", &many.join(","), &large] {
            assert_eq!(Reader::parse("r", labels), Err(ReaderError::Labels), "{labels}");
        }
    }

    #[test]
    fn the_place_of_a_reader_is_pinned() {
        // Nodes of different versions choose the same readers: the hash never changes.
        let places = ["", "host-17", "host-18", "ä"].map(|id| place_of(&change(), id));
        assert_eq!(places, PINNED);
        let other = ChangeId::parse("AbCdEf012346").unwrap();
        assert_ne!(place_of(&other, "host-17"), places[1], "another rollout begins with other readers");
    }

    const PINNED: [u16; 4] = [5774, 6460, 4062, 8315];

    #[test]
    fn a_share_has_that_many_of_the_readers_and_stages_only_add() {
        let all: Vec<Reader> = (0..2000).map(|number| reader(&format!("host-{number}"), &[])).collect();
        let stages = vec![stage(500, &[]), stage(2500, &[]), stage(SHARE_ALL, &[])];
        let mut before: Vec<&str> = Vec::new();
        for (passed, share) in [(0, 0.05), (1, 0.25), (2, 1.0), (3, 1.0)] {
            let rollout = running(stages.clone(), passed);
            let inside: Vec<&str> = all
                .iter()
                .filter(|reader| rollout.has(&change(), reader))
                .map(|reader| &*reader.id)
                .collect();
            let part = inside.len() as f64 / all.len() as f64;
            assert!((part - share).abs() < 0.03, "{part} of {share}");
            assert!(before.iter().all(|id| inside.contains(id)), "a stage takes none away");
            before = inside;
        }
        assert!(!Rollout::planned(1, plan(stages)).has(&change(), &all[0]), "it has not begun");
    }

    #[test]
    fn a_stage_is_for_readers_that_have_a_value_of_each_label() {
        let rollout =
            running(vec![stage(SHARE_ALL, &[("ring", &["canary", "early"]), ("region", &["eu"])])], 0);
        let has = |labels| rollout.has(&change(), &reader("a", labels));
        assert!(has(&[("region", "eu"), ("ring", "early")]));
        assert!(!has(&[("ring", "early")]) && !has(&[("region", "eu"), ("ring", "late")]) && !has(&[]));
    }

    #[test]
    fn a_plan_is_checked() {
        let canary = || stage(SHARE_ALL, &[("ring", &["canary"])]);
        let check = |stages| plan(stages).check();
        assert_eq!(check(vec![canary(), stage(500, &[]), stage(SHARE_ALL, &[])]), Ok(()));
        assert_eq!(check(vec![stage(SHARE_ALL, &[]), stage(SHARE_ALL, &[])]), Ok(()), "a stage of more time");
        assert_eq!(check(vec![]), Err(RolloutBound::Stages));
        assert_eq!(check(vec![stage(0, &[])]), Err(RolloutBound::EmptyStage));
        assert_eq!(check(vec![stage(SHARE_ALL + 1, &[])]), Err(RolloutBound::EmptyStage));
        assert_eq!(check(vec![stage(500, &[]), stage(400, &[])]), Err(RolloutBound::EmptyStage));
        assert_eq!(check(vec![stage(500, &[]), stage(500, &[("a", &["b"])])]), Err(RolloutBound::EmptyStage));
        assert_eq!(check(vec![stage(1, &[("a", &[])])]), Err(RolloutBound::Labels));
        assert_eq!(check(vec![stage(1, &[("a", &["b"]), ("a", &["c"])])]), Err(RolloutBound::Labels));
        let long: Vec<String> = (0..16).map(|number| format!("{number:0>200}")).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        let all: Vec<Stage> = (0..6).map(|number| stage(number + 1, &[("a", &long)])).collect();
        assert_eq!(check(all[..5].to_vec()), Ok(()));
        assert_eq!(check(all), Err(RolloutBound::Labels), "in all");
        let late = Stage { for_s: ROLLOUT_TIME_S_MAX + 1, ..stage(1, &[]) };
        assert_eq!(check(vec![late]), Err(RolloutBound::Time));
        assert_eq!(Plan { timeout_s: 0, ..plan(vec![stage(1, &[])]) }.check(), Err(RolloutBound::Time));
        let lax = Plan { max_failed: 10_000, ..plan(vec![stage(1, &[])]) };
        assert_eq!(lax.check(), Err(RolloutBound::Readers), "so many are never counted");
    }

    #[test]
    fn the_gates_of_a_plan_are_checked() {
        let gate = |name: &str, fresh_s| GateRule { name: name.into(), fresh_s };
        let with = |gates| Plan { gates, ..plan(vec![stage(1, &[])]) }.check();
        assert_eq!(with(vec![gate("errors", 60), gate("latency", 60)]), Ok(()));
        assert_eq!(with(vec![gate("errors", 60), gate("errors", 60)]), Err(RolloutBound::Gates));
        assert_eq!(with(vec![gate("errors", 0)]), Err(RolloutBound::Gates));
        assert_eq!(with(vec![gate("", 1)]), Err(RolloutBound::Gates));
    }

    #[test]
    fn candidates_are_checked_and_found() {
        let candidate = |definition, key: &str, bytes: usize| Candidate {
            definition,
            key: Key::parse(key).unwrap(),
            data: "x".repeat(bytes).into(),
        };
        let all = vec![candidate(1, "b", 1), candidate(2, "a", 2), candidate(2, "c", 3)];
        assert_eq!(Rollout::check_candidates(&all), Ok(()));
        let rollout = Rollout { candidates: all.clone(), ..running(vec![stage(1, &[])], 0) };
        let found = |definition, key: &str| {
            rollout.candidate(definition, &Key::parse(key).unwrap()).map(|candidate| candidate.data.len())
        };
        assert_eq!(
            [found(1, "b"), found(2, "a"), found(2, "c"), found(1, "a")],
            [Some(1), Some(2), Some(3), None]
        );
        let check = Rollout::check_candidates;
        assert_eq!(check(&[]), Err(RolloutBound::Configs));
        assert_eq!(check(&[all[1].clone(), all[1].clone()]), Err(RolloutBound::Configs), "each once");
        assert_eq!(check(&[all[1].clone(), all[0].clone()]), Err(RolloutBound::Configs), "in order");
        assert_eq!(check(&[candidate(1, "a", 2 << 20)]), Err(RolloutBound::Bytes));
        let many: Vec<Candidate> = (0..65).map(|number| candidate(number, "a", 1)).collect();
        assert_eq!(check(&many), Err(RolloutBound::Configs));
    }
}
