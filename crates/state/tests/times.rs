//! Times of change requests against a record of what happened to them that this file keeps itself, while the time of the
//! entries jumps, clocks go back, and the cluster is recovered and restored.
//!
//! | | what is compared with the record, or with the state right before |
//! |---|---|
//! | T1 | the stored times of what is applied lie in the window of its edition |
//! | T2 | the cluster takes back what is armed at most once, not before its time, and exactly; or its record says why not |
//! | T3 | after a restore or a recovery it applies and takes back nothing that was left to it before |

use std::{collections::BTreeMap, sync::Arc};

use concord_model::{
    access_key::{Author, Grants, KeyId, KeyUse, Quota},
    command::{
        AccessCommand, BatchStep, ChangeAction, Command, Expect, KeyTerms, Proposal, SystemCommand, Verdict,
        source::{Bypass, ChangeUse, Guard, RevertUse, Source, Tail},
    },
    error::Rejection,
    key::Key,
    record::{IndexEntry, Revision},
    system::{
        change::{
            ApplyMode, ChangeId, CloseReason, Content, Failure, NewEdition, NewVote, Opinion, Phase, Revert,
            RevertedBy, Scope, Timing, Window,
        },
        environment::{Direct, Environment, EnvironmentName},
        person::PersonLabel,
    },
    time::Timestamp,
};
use concord_state::{
    Change, Edit, State,
    change::time::{Deed, Due},
};
use fastrand::Rng;

use crate::replay::rebuilt;

const DEFINITIONS: [&str; 2] = ["a.d0", "a.d1"];
const CONFIGS: [&str; 3] = ["k0", "k1", "k2"];
const PERSONS: [&str; 3] = ["ann", "cid", "dan"];
const SECOND: u64 = 1_000_000;

/// A config, by its definition.
type Place = (&'static str, &'static str);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn key_id(who: &str) -> KeyId {
    KeyId::parse(&format!("{who:0<12}")).unwrap()
}

fn change_id(number: u64) -> ChangeId {
    ChangeId::parse(&format!("{number:012}")).unwrap()
}

/// The data is the value of the unique field.
fn write(place: Place, data: Arc<str>) -> Command {
    let entries = Box::new([IndexEntry { slot: 0, value: data.as_bytes().into() }]);
    let (definition, key, expect) = (key(place.0), key(place.1), Expect::Any);
    Command::WriteConfig { definition, key, data, entries, expect }
}

fn delete(place: Place) -> Command {
    Command::DeleteConfig { definition: key(place.0), key: key(place.1), expect: Expect::Any }
}

/// The data and the revision of every config.
fn configs(state: &State) -> BTreeMap<Place, (Arc<str>, Revision)> {
    let places = DEFINITIONS.iter().flat_map(|definition| CONFIGS.map(|config| (*definition, config)));
    let found = |place: Place| {
        let config = state.definition(place.0)?.config(place.1)?;
        Some((place, (Arc::clone(&config.data), config.revision)))
    };
    places.filter_map(found).collect()
}

/// How a change request was applied, and what has become of that.
#[derive(Debug, Clone)]
struct Applied {
    at: u64,
    /// What it has changed: the data before, and the revision after.
    changed: BTreeMap<Place, (Option<Arc<str>>, Option<Revision>)>,
    /// In which order.
    order: Vec<Place>,
    is_held: bool,
    is_over: bool,
}

/// What has happened to a change request.
#[derive(Debug, Clone)]
struct Known {
    edition: u32,
    timing: Timing,
    places: Vec<Place>,
    is_scheduled: bool,
    is_held: bool,
    is_ended: bool,
    applied: Option<Applied>,
}

impl Known {
    fn is_pending(&self) -> bool {
        self.applied.is_none() && !self.is_ended
    }

    /// When the cluster takes it back, if it is to.
    fn due(&self) -> Option<u64> {
        let applied =
            self.applied.as_ref().filter(|applied| !applied.is_over && !applied.changed.is_empty())?;
        Some(applied.at + u64::from(self.timing.revert_after_s?) * SECOND)
    }
}

/// How often each has happened.
#[derive(Debug, Default)]
struct Seen {
    applied_by_cluster: u32,
    applied_by_hand: u32,
    not_due: u32,
    failed: u32,
    expired: u32,
    reverted_by_cluster: u32,
    reverted_by_hand: u32,
    reverted_by_bypass: u32,
    reverts_failed: u32,
    stale_reverts: u32,
    held_applies: u32,
    held_reverts: u32,
    taken_values: u32,
    kept: u32,
}

struct Run {
    random: Rng,
    state: State,
    /// The leader's clock.
    at: u64,
    known: BTreeMap<u64, Known>,
    seen: Seen,
}

impl Run {
    fn new(seed: u64) -> Self {
        let at = 1 << 40;
        let mut run = Self {
            random: Rng::with_seed(seed),
            state: State::new(),
            at,
            known: BTreeMap::new(),
            seen: Seen::default(),
        };
        for who in PERSONS {
            let terms = KeyTerms {
                name: "n".into(),
                grants: Grants::default(),
                quota: Quota::default(),
                expires_at: None,
            };
            let person = PersonLabel::parse(who).ok();
            let create = AccessCommand::Create { id: key_id(who), terms, sha256: [1; 32], person };
            run.decide("root", Command::Access(create), None);
        }
        for definition in DEFINITIONS {
            let (indexes, paths) = (vec!["n".into()], vec!["n".into()]);
            let create = Command::CreateDefinition { key: key(definition), indexes, schema: None };
            run.decide("root", create, None);
            let (key, expect) = (key(definition), Expect::Any);
            run.decide("root", Command::SetUnique { key, paths, expect, configs_read: Some(0) }, None);
        }
        let (name, text) = (EnvironmentName::parse("a").unwrap(), "{}".into());
        let after = Environment { direct: Direct::Refuse, approvals: 1, freezes: Vec::new() };
        let put = SystemCommand::PutEnvironment { name, after, text, expect: Expect::Any };
        run.decide("root", Command::System(put), None);
        run
    }

    fn author(&self, who: &str) -> Author {
        match who {
            "root" => Author::Root,
            "cluster" => Author::Cluster,
            _ => {
                let key = self.state.access_key(&key_id(who)).unwrap();
                let secret = key.secrets.last().unwrap().made;
                Author::Key(KeyUse { id: key.id.clone(), revision: key.revision, secret })
            }
        }
    }

    fn decide(&mut self, who: &str, command: Command, source: Option<Source>) -> (Verdict, Option<Change>) {
        // The leader's clock may be behind that of the one before.
        let behind = if self.random.u8(0..8) == 0 { self.random.u64(0..SECOND) } else { 0 };
        let at = Timestamp(self.at - behind);
        let tail = source.and_then(|source| Tail::of(source, Vec::new()));
        let proposal = Proposal { tail, ..Proposal::new(at, who, self.author(who), command) };
        let stored = Proposal::from_bytes(&proposal.to_bytes()).unwrap();
        let before = self.state.digest();
        let (verdict, change) = self.state.apply(self.state.revision() + 1, &stored);
        if change.is_none() {
            assert_eq!(self.state.digest(), before, "{proposal}");
        }
        self.at = self.at.max(self.state.last_at().0) + self.random.u64(0..3);
        (verdict, change)
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.random.usize(0..list.len())]
    }

    fn timing(&mut self) -> Timing {
        let apply = if self.random.bool() { ApplyMode::Manual } else { ApplyMode::WhenApproved };
        let window = (self.random.u8(0..3) > 0).then(|| {
            let not_before = self.at + self.random.u64(0..2 * SECOND);
            let not_after = Timestamp(not_before + self.random.u64(1..6 * SECOND));
            Window { not_before: Timestamp(not_before), not_after }
        });
        let revert_after_s = self.random.bool().then(|| self.random.u32(1..4));
        Timing { apply, window, revert_after_s }
    }

    fn edition(&mut self) -> (NewEdition, Vec<Place>) {
        let mut places = vec![(self.pick(&DEFINITIONS), self.pick(&CONFIGS))];
        if self.random.bool() {
            places.push((self.pick(&DEFINITIONS), self.pick(&CONFIGS)));
        }
        places.sort_unstable();
        places.dedup();
        let now = configs(&self.state);
        let base = |place: &Place| Guard::Config {
            definition: self.state.definition(place.0).unwrap().definition.id,
            key: key(place.1),
            revision: now.get(place).map(|(_, revision)| *revision),
        };
        let bases = places.iter().map(base).collect();
        let mut scope: Vec<Key> = places.iter().map(|place| key(place.0)).collect();
        scope.dedup();
        let edition = NewEdition {
            digest: [1; 32],
            scope: Scope::Definitions(scope),
            text: "{}".into(),
            operations: "[]".into(),
            content: Content::new(bases, [1; 32]),
            timing: self.timing(),
        };
        (edition, places)
    }

    fn some_known(&mut self, is_wanted: impl Fn(&Known) -> bool) -> Option<u64> {
        let all: Vec<u64> =
            self.known.iter().filter(|(_, known)| is_wanted(known)).map(|(number, _)| *number).collect();
        (!all.is_empty()).then(|| self.pick(&all))
    }

    fn act(&mut self, who: &str, number: u64, action: ChangeAction) -> (Verdict, Option<Change>) {
        self.decide(who, Command::System(SystemCommand::Change { id: change_id(number), action }), None)
    }

    /// Creates a change request, or sends another edition of one.
    fn send(&mut self) {
        let (edition, places) = self.edition();
        let timing = edition.timing;
        let pending = if self.random.u8(0..3) == 0 { self.some_known(Known::is_pending) } else { None };
        let number = pending.unwrap_or(self.known.len() as u64);
        let after = self.known.get(&number).map(|known| known.edition);
        let action = match after {
            None => ChangeAction::Create(edition.into()),
            Some(after) => ChangeAction::Edit { after, expect: Expect::Any, edition: edition.into() },
        };
        let (verdict, _) = self.act("ann", number, action);
        if matches!(verdict, Verdict::Decided(Ok(_))) {
            let (is_scheduled, is_held, is_ended, applied) = (false, false, false, None);
            let edition = after.unwrap_or(0) + 1;
            let known = Known { edition, timing, places, is_scheduled, is_held, is_ended, applied };
            self.known.insert(number, known);
        }
    }

    fn schedule(&mut self) {
        let Some(number) = self.some_known(Known::is_pending) else { return };
        let action = ChangeAction::Schedule { edition: self.known[&number].edition, digest: [1; 32] };
        let who = self.pick(&["cluster", "dan", "ann"]);
        let (verdict, _) = self.act(who, number, action);
        if matches!(verdict, Verdict::Decided(Ok(_))) {
            let known = self.known.get_mut(&number).unwrap();
            assert!(who != "cluster" && !known.is_held && known.timing.apply == ApplyMode::Manual);
            assert!(known.timing.window.is_some());
            known.is_scheduled = true;
        }
    }

    fn vote(&mut self) {
        let Some(number) = self.some_known(Known::is_pending) else { return };
        let (edition, digest) = (self.known[&number].edition, [1; 32]);
        let opinion = Opinion::Approval;
        let vote = NewVote { opinion, edition, digest, is_redacted: false, comment: String::new() };
        let who = self.pick(&["cid", "dan"]);
        self.act(who, number, ChangeAction::Vote(vote.into()));
    }

    fn content(&mut self, place: Place) -> Command {
        if self.random.u8(0..4) == 0 && self.state.definition(place.0).unwrap().config(place.1).is_some() {
            return delete(place);
        }
        // Few values, so that they move from one config to another.
        write(place, format!(r#"{{"n":{}}}"#, self.random.u8(0..7)).into())
    }

    fn apply(&mut self, who: &str, number: u64, place: &str) {
        let known = self.known[&number].clone();
        let mut places = known.places.clone();
        let other = (self.pick(&DEFINITIONS), self.pick(&CONFIGS));
        if self.random.u8(0..9) == 0 && !places.contains(&other) {
            places.push(other);
        }
        self.random.shuffle(&mut places);
        let steps =
            places.iter().map(|place| BatchStep { definition_read: None, command: self.content(*place) });
        let command = Command::Batch(steps.collect());
        let source =
            Source::Change(ChangeUse { id: change_id(number), edition: known.edition, digest: [1; 32] });
        let before = configs(&self.state);
        let (verdict, change) = self.decide(who, command, Some(source));
        match verdict {
            Verdict::Decided(Ok(_)) => {}
            Verdict::Decided(Err(Rejection::ChangeNotDue(_))) => {
                self.seen.not_due += 1;
                return;
            }
            Verdict::Decided(Err(Rejection::ChangeHeld)) => {
                self.seen.held_applies += u32::from(who == "cluster");
                return;
            }
            Verdict::Decided(Err(_)) | Verdict::Stale => return,
        }
        let change = change.unwrap();
        assert!(known.is_pending() && !known.is_held, "T3, {place}: {known:?}");
        let times = stored_times(&change);
        if let Some(window) = known.timing.window {
            let is_in = |at: &Timestamp| window.not_before <= *at && *at < window.not_after;
            assert!(times.iter().all(is_in), "T1, {place}: {times:?} {window:?}");
        }
        if who == "cluster" {
            assert!(
                known.is_scheduled || known.timing.apply == ApplyMode::WhenApproved,
                "{place}: {known:?}"
            );
            self.seen.applied_by_cluster += 1;
        } else {
            self.seen.applied_by_hand += 1;
        }
        let after = configs(&self.state);
        let mut changed = BTreeMap::new();
        for place in before.keys().chain(after.keys()) {
            let (old, new) = (before.get(place), after.get(place));
            if old.map(|old| old.1) != new.map(|new| new.1) {
                changed.insert(*place, (old.map(|old| Arc::clone(&old.0)), new.map(|new| new.1)));
            }
        }
        let at = change.at.0;
        let applied = Applied { at, changed, order: places, is_held: false, is_over: false };
        self.known.get_mut(&number).unwrap().applied = Some(applied);
    }

    /// The command that takes a change request back, as this file knows it; at times another one.
    fn back(&mut self, applied: &Applied) -> Command {
        let mut steps: Vec<BatchStep> = Vec::new();
        for place in applied.order.iter().rev() {
            let Some((before, _)) = applied.changed.get(place) else { continue };
            let data = before.clone();
            let data = if self.random.u8(0..20) == 0 { Some(r#"{"wrong":1}"#.into()) } else { data };
            let command = match data {
                Some(data) => write(*place, data),
                None => delete(*place),
            };
            steps.push(BatchStep { definition_read: None, command });
        }
        if self.random.u8(0..20) == 0 {
            steps.pop();
        }
        Command::Batch(steps)
    }

    fn revert(&mut self, who: &str, number: u64, place: &str) {
        let known = self.known[&number].clone();
        let is_bypass = who != "cluster" && self.random.u8(0..4) == 0;
        let applied = known.applied.clone();
        let (changed, order) = (BTreeMap::new(), Vec::new());
        let empty = Applied { at: 0, changed, order, is_held: false, is_over: false };
        let command = self.back(applied.as_ref().unwrap_or(&empty));
        let source = Source::Revert(RevertUse { id: change_id(number), edition: known.edition, is_bypass });
        let before = configs(&self.state);
        let (verdict, change) = self.decide(who, command, Some(source));
        if !matches!(verdict, Verdict::Decided(Ok(_))) {
            self.expect_refused(&verdict, applied.as_ref(), place);
            return;
        }
        let (change, applied) = (change.unwrap(), applied.unwrap());
        assert!(!applied.is_over, "T2, {place}: twice, or after it has failed: {known:?}");
        self.expect_back(&applied, &before, place);
        self.note_revert((who, is_bypass), (number, &known), &change, place);
    }

    /// Why something was not taken back.
    fn expect_refused(&mut self, verdict: &Verdict, applied: Option<&Applied>, place: &str) {
        if *verdict == Verdict::Stale {
            self.seen.stale_reverts += 1;
        }
        let is_refused = matches!(verdict, Verdict::Decided(Err(Rejection::Unauthored)));
        if is_refused && applied.is_some_and(|applied| applied.is_held) {
            self.seen.held_reverts += 1;
        }
        if let Verdict::Decided(Err(Rejection::InBatch { index, rejection })) = verdict
            && let Rejection::NotUnique { by, .. } = &**rejection
        {
            let applied = applied.unwrap();
            let back = applied.order.iter().rev().filter(|place| applied.changed.contains_key(*place));
            let (definition, _) = back.clone().nth(usize::try_from(*index).unwrap()).unwrap();
            let is_own = back.into_iter().any(|own| own.0 == *definition && own.1 == by.as_str());
            assert!(!is_own, "{place}: {by} is taken back later: {applied:?}");
            self.seen.taken_values += 1;
        }
    }

    /// All of it, and nothing else, is as it was before.
    fn expect_back(&self, applied: &Applied, before: &BTreeMap<Place, (Arc<str>, Revision)>, place: &str) {
        let after = configs(&self.state);
        for (config, (data, revision)) in &applied.changed {
            assert_eq!(before.get(config).map(|found| found.1), *revision, "{place}: it was changed since");
            assert_eq!(after.get(config).map(|found| &found.0), data.as_ref(), "{place}: {config:?}");
        }
        for (config, found) in &after {
            let is_other = !applied.changed.contains_key(config);
            assert!(!is_other || before.get(config) == Some(found), "{place}: {config:?}");
        }
    }

    fn note_revert(
        &mut self,
        (who, is_bypass): (&str, bool),
        (number, known): (u64, &Known),
        change: &Change,
        place: &str,
    ) {
        let is_held = known.applied.as_ref().unwrap().is_held;
        if who == "cluster" {
            let first = stored_times(change).into_iter().min().unwrap();
            assert!(known.due().is_some_and(|due| first.0 >= due), "T2, {place}: {first:?} {known:?}");
            assert!(!is_held, "T3, {place}: {known:?}");
            self.seen.reverted_by_cluster += 1;
        } else if is_bypass {
            self.seen.reverted_by_bypass += 1;
        } else {
            self.seen.reverted_by_hand += 1;
        }
        let Some(Revert::Done { revision, at, by }) = &self.state.change(&change_id(number)).unwrap().revert
        else {
            panic!("{place}: no record of it")
        };
        assert_eq!((*revision, *at), (change.revision, change.at), "{place}");
        let is_right = match by {
            RevertedBy::Cluster => who == "cluster",
            RevertedBy::Approver(_) => who != "cluster" && !is_bypass,
            RevertedBy::Bypass { .. } => is_bypass,
        };
        assert!(is_right, "{place}: {by:?}");
        self.known.get_mut(&number).unwrap().applied.as_mut().unwrap().is_over = true;
    }

    /// The leader says that it could not do something, rightly or not.
    fn fail(&mut self, place: &str) {
        let who = self.pick(&["cluster", "cluster", "root", "dan"]);
        let is_revert = self.random.bool();
        let wanted = |known: &Known| if is_revert { known.due().is_some() } else { known.is_pending() };
        let Some(number) = self.some_known(wanted) else { return };
        let known = self.known[&number].clone();
        let failure = Failure { code: "c".into(), text: String::new() };
        let edition = known.edition;
        let action = if is_revert {
            ChangeAction::FailRevert { edition, failure }
        } else {
            ChangeAction::Fail { edition, failure }
        };
        let before = configs(&self.state);
        let (verdict, change) = self.act(who, number, action);
        if !matches!(verdict, Verdict::Decided(Ok(_))) {
            return;
        }
        let at = change.unwrap().at;
        assert_eq!(who, "cluster", "{place}");
        let entry = self.known.get_mut(&number).unwrap();
        if let Some(applied) = &mut entry.applied {
            assert!(known.due().is_some_and(|due| at.0 >= due), "T2, {place}: before its time: {known:?}");
            let is_same = |(config, (_, revision)): (&Place, &(_, Option<Revision>))| {
                before.get(config).map(|found| found.1) == *revision
            };
            let is_possible = applied.changed.iter().all(|(config, change)| is_same((config, change)));
            assert!(!applied.is_held || !is_possible, "{place}: a person decides");
            applied.is_over = true;
            self.seen.reverts_failed += 1;
        } else {
            assert!(
                known.is_scheduled || known.timing.apply == ApplyMode::WhenApproved,
                "{place}: {known:?}"
            );
            let begin = known.timing.window.map_or(Timestamp(0), |window| window.not_before);
            assert!(at >= begin && !known.is_held, "{place}: {known:?}");
            entry.is_ended = true;
            self.seen.failed += 1;
        }
    }

    /// A person keeps what was to be taken back: nothing changes, then or later.
    fn keep(&mut self, place: &str) {
        let who = self.pick(&["cid", "cid", "ann", "dan", "root", "cluster"]);
        let is_any = self.random.u8(0..8) == 0;
        let wanted = |known: &Known| known.due().is_some() || (is_any && known.applied.is_some());
        let Some(number) = self.some_known(wanted) else { return };
        let known = self.known[&number].clone();
        let (edition, digest, comment) = (known.edition, [1; 32], String::new());
        let before = configs(&self.state);
        let (verdict, _) = self.act(who, number, ChangeAction::Keep { edition, digest, comment });
        if !matches!(verdict, Verdict::Decided(Ok(_))) {
            return;
        }
        assert!(known.due().is_some(), "{place}: nothing takes it back: {known:?}");
        assert_ne!(who, "cluster", "{place}");
        assert!(configs(&self.state) == before, "{place}: it changes nothing");
        self.known.get_mut(&number).unwrap().applied.as_mut().unwrap().is_over = true;
        self.seen.kept += 1;
    }

    fn sweep(&mut self, place: &str) {
        let now = Timestamp(self.at + self.random.u64(0..SECOND) - SECOND / 2);
        let sweep = Command::System(SystemCommand::SweepChanges { now });
        let (_, change) = self.decide("cluster", sweep, None);
        for (number, known) in &mut self.known {
            let phase = &self.state.change(&change_id(*number)).unwrap().phase;
            let is_expired = matches!(phase, Phase::Closed { reason: CloseReason::Expired, .. });
            if known.is_pending() && is_expired {
                let end = known.timing.window.unwrap().not_after;
                let at = change.as_ref().unwrap().at;
                assert!(end <= now && end <= at, "{place}: {end:?} {now:?} {at:?}");
                known.is_ended = true;
                self.seen.expired += 1;
            }
        }
    }

    /// A recovery or a restore: what was left to the cluster is left to persons.
    fn hold(&mut self) {
        if self.random.bool() {
            self.decide("cluster", Command::System(SystemCommand::HoldChanges), None);
        } else {
            self.state = self.state.clone().restored_at(self.state.revision() + 10);
            for who in PERSONS {
                let revision = self.state.access_key(&key_id(who)).unwrap().revision;
                let attest = AccessCommand::Attest { id: key_id(who), revision };
                self.decide("root", Command::Access(attest), None);
            }
        }
        for known in self.known.values_mut() {
            (known.is_held, known.is_scheduled) = (known.is_pending(), false);
            if let Some(applied) = &mut known.applied {
                applied.is_held |= !applied.is_over;
            }
        }
    }

    /// What the leader does each second.
    fn lead(&mut self, place: &str) {
        let now = Timestamp(self.at);
        let number = |due: Due<'_>| (due.deed, due.record.name.as_str().parse().unwrap());
        let due: Vec<(Deed, u64)> = self.state.due_changes(now).map(number).collect();
        for (deed, number) in due {
            let known = &self.known[&number];
            let is_due = match deed {
                Deed::Revert => known.due().is_some_and(|due| due <= self.at),
                Deed::Apply => known.is_pending() && !known.is_held,
            };
            assert!(is_due, "{place}: {deed:?} {known:?}");
            match deed {
                Deed::Apply => self.apply("cluster", number, place),
                Deed::Revert => self.revert("cluster", number, place),
            }
        }
    }

    /// What the records of the state say is what has happened.
    fn expect_records(&self, place: &str) {
        for (number, known) in &self.known {
            let change = self.state.change(&change_id(*number)).unwrap();
            let is_right = match &change.phase {
                Phase::Open => known.is_pending() && !known.is_held && !known.is_scheduled,
                Phase::Scheduled { .. } => known.is_pending() && known.is_scheduled,
                Phase::Rolling { .. } => false,
                Phase::Held => known.is_pending() && known.is_held,
                Phase::Applied { .. } => known.applied.is_some(),
                Phase::Closed { .. } => known.is_ended,
            };
            assert!(is_right, "{place}: {:?} {known:?}", change.phase);
            let Some(applied) = &known.applied else { continue };
            let is_empty = applied.changed.is_empty();
            let is_right = match (&change.revert, known.timing.revert_after_s) {
                (Some(Revert::Armed { due, .. }), Some(_)) => known.due() == Some(due.0) && !applied.is_held,
                (Some(Revert::Held { due, .. }), Some(_)) => known.due() == Some(due.0) && applied.is_held,
                (Some(Revert::ByHand { .. }), None) => !applied.is_over,
                (Some(Revert::Done { .. } | Revert::Failed { .. }), _) => applied.is_over,
                (Some(Revert::Ended { .. }), after) => applied.is_over && after.is_some(),
                (None, _) => is_empty,
                (Some(Revert::Armed { .. } | Revert::Held { .. }), None)
                | (Some(Revert::ByHand { .. }), Some(_)) => false,
            };
            assert!(is_right, "T2, {place}: {:?} {known:?}", change.revert);
        }
    }

    fn turn(&mut self, place: &str) {
        if self.random.u8(0..6) == 0 {
            self.at += self.random.u64(0..SECOND);
        }
        match self.random.u8(0..100) {
            0..=19 => self.send(),
            20..=39 => self.vote(),
            40..=49 => self.schedule(),
            50..=61 => {
                let who = self.pick(&["cluster", "cluster", "dan"]);
                if let Some(number) = self.some_known(Known::is_pending) {
                    self.apply(who, number, place);
                }
            }
            62..=71 => {
                let who = self.pick(&["cluster", "cluster", "cid", "dan", "root"]);
                // Mostly what can be taken back.
                let is_any = self.random.u8(0..8) == 0;
                let is_open =
                    |known: &Known| is_any || known.applied.as_ref().is_some_and(|applied| !applied.is_over);
                if let Some(number) = self.some_known(is_open) {
                    self.revert(who, number, place);
                }
            }
            72..=76 => self.fail(place),
            77..=80 => self.sweep(place),
            81..=83 => {
                let config = (self.pick(&DEFINITIONS), self.pick(&CONFIGS));
                let id = change_id(900_000_000 + self.state.revision());
                let source = Source::Bypass(Bypass { id, digest: [0; 32], text: "{}".into() }.into());
                let command = self.content(config);
                self.decide("root", command, Some(source));
            }
            84 if self.random.u8(0..3) == 0 => self.hold(),
            85..=86 => self.keep(place),
            _ => self.lead(place),
        }
        self.expect_records(place);
    }
}

/// The times that a change has stored with its configs, and its own, which is that of the last step.
fn stored_times(change: &Change) -> Vec<Timestamp> {
    let of = |edit: &Edit| {
        let Edit::Config { after, .. } = edit else { return None };
        Some(after.as_ref()?.modified_at)
    };
    change.edits.iter().filter_map(of).chain([change.at]).collect()
}

#[test]
fn the_cluster_applies_and_takes_back_by_itself_what_is_left_to_it_at_its_time() {
    let mut all = [0; 14];
    for seed in 1..=12 {
        let mut run = Run::new(seed);
        for turn in 0..1500 {
            let place = format!("seed {seed}, {turn}");
            run.turn(&place);
            if turn % 50 == 0 {
                let again = rebuilt(&run.state);
                assert_eq!(again.digest(), run.state.digest(), "{place}");
                let due = |state: &State| {
                    let found = |due: Due<'_>| (due.deed, due.at, due.record.name.clone());
                    state.due_changes(Timestamp(u64::MAX)).map(found).collect::<Vec<_>>()
                };
                assert_eq!(due(&again), due(&run.state), "{place}");
                assert_eq!(again.change_content_bytes(), run.state.change_content_bytes(), "{place}");
                run.state = again;
            }
        }
        let Seen {
            applied_by_cluster,
            applied_by_hand,
            not_due,
            failed,
            expired,
            reverted_by_cluster,
            reverted_by_hand,
            reverted_by_bypass,
            reverts_failed,
            stale_reverts,
            held_applies,
            held_reverts,
            taken_values,
            kept,
        } = run.seen;
        let seen = [
            applied_by_cluster,
            applied_by_hand,
            not_due,
            failed,
            expired,
            reverted_by_cluster,
            reverted_by_hand,
            reverted_by_bypass,
            reverts_failed,
            stale_reverts,
            held_applies,
            held_reverts,
            taken_values,
            kept,
        ];
        all.iter_mut().zip(seen).for_each(|(all, seen)| *all += seen);
    }
    assert!(all.iter().all(|count| *count > 10), "{all:?}");
}
