//! Rollouts: when one begins, goes on, pauses and ends, what is rejected meanwhile, and who sees what.

mod seen;

use super::*;
use concord_model::{
    command::{RolloutStage, StepOutcome, source::RevertUse},
    error::{NotDue, RolloutBound, RolloutWait},
    limits::ROLLOUTS_MAX,
    system::{
        change::{ApplyMode, Failure, Window},
        pace::Actor,
        rollout::{
            Candidate, Evidence, GateRule, LabelValues, OnFail, Plan, Reader, Rollout, Running, SHARE_ALL,
            Stage as RollingStage, StagedEdition,
        },
    },
};

/// A stage of ten minutes.
const STAGE_S: u32 = 600;
const STAGE: u64 = STAGE_S as u64 * SECOND;

fn stages(labels: Vec<LabelValues>) -> Vec<RollingStage> {
    let first = RollingStage { labels, share: SHARE_ALL, for_s: STAGE_S, min_healthy: 2 };
    vec![first.clone(), RollingStage { labels: Vec::new(), min_healthy: 0, ..first }]
}

/// First the readers with `ring=canary`, then all.
fn plan() -> Plan {
    let canary = LabelValues { name: "ring".into(), values: vec!["canary".into()] };
    let gates = vec![GateRule { name: "errors".into(), fresh_s: 60 }];
    Plan { stages: stages(vec![canary]), max_failed: 1, gates, on_fail: OnFail::Abort, timeout_s: 3600 }
}

const WELL: Evidence = Evidence { healthy: 2, failed: 1, gates: 1 };

fn reader(labels: &[(&str, &str)]) -> Reader {
    let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Reader { id: "host-1".into(), labels }
}

fn canary() -> Reader {
    reader(&[("ring", "canary")])
}

fn put_data(name: &str, data: &str) -> Command {
    let (definition, key, entries) = (key("prod.d"), key(name), Box::default());
    Command::WriteConfig { definition, key, data: data.into(), entries, expect: Expect::Any }
}

fn active(number: u64) -> Result<(), Rejection> {
    Err(Rejection::RolloutActive { change: id(number) })
}

fn waits(wait: RolloutWait) -> Result<(), Rejection> {
    Err(Rejection::RolloutWaits(wait))
}

impl ChangeWorld {
    /// A world with the configs `k` and `l` in the restricted `prod.d`.
    fn to_roll() -> Self {
        let mut world = Self::new();
        world.done("root", put_data("l", "{}"));
        world.rules("prod", refusing());
        world
    }

    /// As [`ChangeWorld::decide`], for what no version of the log has yet.
    fn try_to(&mut self, who: &str, number: u64, action: ChangeAction) -> Result<(), Rejection> {
        let proposal = self.proposal(who, Command::System(SystemCommand::Change { id: id(number), action }));
        assert_eq!(proposal.feature_level(), ROLLOUTS, "{proposal}");
        self.at += 1;
        match self.state.apply(self.state.revision() + 1, &proposal).0 {
            Verdict::Decided(outcome) => outcome.map(drop),
            Verdict::Stale => Err(Rejection::Precondition { current: 0 }),
        }
    }

    fn config_base(&self, name: &str) -> Guard {
        let found = self.state.definition("prod.d").unwrap();
        let revision = found.config(name).map(|config| config.revision);
        Guard::Config { definition: found.definition.id, key: key(name), revision }
    }

    fn staged_edition(&self, timing: Timing, configs: &[&str], plan: Plan) -> Box<StagedEdition> {
        let bases = configs.iter().map(|name| self.config_base(name)).collect();
        let edition = NewEdition { timing, content: Content::new(bases, [9; 32]), ..edition(1) };
        Box::new(StagedEdition { edition, plan })
    }

    /// The change request of `ann` that rolls `k` and `l` out, approved by `cid`.
    fn planned(number: u64, timing: Timing) -> Self {
        let mut world = Self::to_roll();
        world.plan_one(number, timing, &["k", "l"]);
        world
    }

    fn plan_one(&mut self, number: u64, timing: Timing, configs: &[&str]) {
        let staged = self.staged_edition(timing, configs, plan());
        self.try_to("ann", number, ChangeAction::CreateStaged(staged)).unwrap();
        self.approve("cid", number);
    }

    fn candidates(&self, configs: &[&str]) -> Vec<Candidate> {
        let definition = self.state.definition("prod.d").unwrap().definition.id;
        let one = |name: &&str| Candidate { definition, key: key(name), data: r#"{"new":true}"#.into() };
        configs.iter().map(one).collect()
    }

    fn begin_with(&mut self, who: &str, number: u64, candidates: Vec<Candidate>) -> Result<(), Rejection> {
        let edition = self.state.change(&id(number)).map_or(1, |change| change.edition.number);
        self.try_to(who, number, ChangeAction::BeginRollout { edition, digest: [1; 32], candidates })
    }

    fn begin(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        let candidates = self.candidates(&["k", "l"]);
        self.begin_with(who, number, candidates)
    }

    fn rolling(number: u64) -> Self {
        let mut world = Self::planned(number, Timing::default());
        world.begin("dan", number).unwrap();
        world
    }

    fn stage_of(&self, number: u64) -> RolloutStage {
        self.state.running_rollout(&id(number)).unwrap().at()
    }

    fn advance(&mut self, who: &str, number: u64, evidence: Evidence) -> Result<(), Rejection> {
        let at = self.stage_of(number);
        self.try_to(who, number, ChangeAction::AdvanceRollout { at, evidence })
    }

    fn pause(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        let at = self.stage_of(number);
        self.try_to(who, number, ChangeAction::PauseRollout { at, comment: "a look".into() })
    }

    fn resume(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        let at = self.stage_of(number);
        self.try_to(who, number, ChangeAction::ResumeRollout { at })
    }

    /// What a reader sees of `k` and `l`.
    fn seen(&self, reader: &Reader) -> [bool; 2] {
        let definition = self.state.definition("prod.d").unwrap().definition.id;
        ["k", "l"].map(|name| self.state.seen_candidate(definition, &key(name), reader).is_some())
    }

    fn end(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        let data = r#"{"new":true}"#;
        let batch = Command::Batch(["k", "l"].map(|name| step(put_data(name, data))).into());
        let proposal = self.with_change(who, number, batch);
        self.decide(&proposal).map(drop)
    }

    fn data_of(&self, name: &str) -> String {
        self.state.definition("prod.d").unwrap().config(name).unwrap().data.to_string()
    }

    /// The state is the one that its records make.
    fn expect_rebuilt(&self) {
        let mut builder = StateBuilder::new();
        let keys = self.state.access_keys().map(|key| (**key).clone());
        keys.for_each(|key| builder.access_key(key).unwrap());
        let records = self.state.system_records().map(|record| (**record).clone());
        records.for_each(|record| builder.system_record(record).unwrap());
        let found = self.state.definition("prod.d").unwrap();
        builder.definition((*found.definition).clone()).unwrap();
        for config in found.by_key.from(0) {
            builder.config(found.definition.id, (*config.record).clone()).unwrap();
        }
        let built = builder.finish(self.state.revision(), self.state.last_at()).unwrap();
        assert_eq!(format!("{:?}", built.changes), format!("{:?}", self.state.changes));
    }
}

#[test]
fn a_rollout_begins_with_its_first_readers_and_changes_nothing_that_is_proven() {
    let mut world = ChangeWorld::planned(1, Timing::default());
    world.expect_rebuilt();
    assert_eq!(world.seen(&canary()), [false; 2], "it has not begun");
    assert_eq!(world.end("dan", 1), Err(Rejection::RolloutStage), "what has stages is not applied at once");
    world.begin("dan", 1).unwrap();
    world.expect_rebuilt();
    assert!(matches!(world.phase(1), Some(Phase::Rolling { by: Some(_), scheduled_by: None, .. })));
    assert_eq!((world.seen(&canary()), world.seen(&reader(&[]))), ([true; 2], [false; 2]));
    assert_eq!(world.data_of("k"), "{}", "the data that is proven stays");
    assert_eq!(world.begin("dan", 1), active(1));
}

#[test]
fn a_stage_ends_with_its_time_and_its_evidence() {
    let mut world = ChangeWorld::rolling(1);
    let until = RolloutWait::Time(Timestamp(world.stage_of(1).since.0 + STAGE));
    assert_eq!(world.advance("cluster", 1, WELL), waits(until));
    world.at += STAGE;
    for lacking in
        [Evidence { healthy: 1, ..WELL }, Evidence { failed: 2, ..WELL }, Evidence { gates: 0, ..WELL }]
    {
        assert_eq!(world.advance("cluster", 1, lacking), waits(RolloutWait::Evidence), "{lacking:?}");
    }
    let before = world.stage_of(1);
    world.advance("cluster", 1, WELL).unwrap();
    let late = ChangeAction::AdvanceRollout { at: before, evidence: WELL };
    assert_eq!(world.try_to("cluster", 1, late), Err(Rejection::RolloutStage), "of two leaders, one wins");
    assert_eq!((world.seen(&canary()), world.seen(&reader(&[]))), ([true; 2], [true; 2]));
    assert_eq!(world.end("cluster", 1), active(1), "the last stage has not ended");

    // The last stage needs no reader that runs well.
    world.at += STAGE;
    world.advance("cluster", 1, Evidence { healthy: 0, ..WELL }).unwrap();
    assert_eq!(world.advance("cluster", 1, WELL), Err(Rejection::RolloutStage), "there is no stage left");
}

#[test]
fn a_rollout_is_applied_after_its_last_stage_by_the_cluster() {
    let mut world = ChangeWorld::rolling(1);
    for _ in 0..2 {
        world.at += STAGE;
        world.advance("cluster", 1, WELL).unwrap();
    }
    world.expect_rebuilt();
    assert_eq!(world.end("dan", 1), active(1), "a person does not end it");
    world.end("cluster", 1).unwrap();
    let Some(Phase::Applied { by: None, scheduled_by: Some(begun_by), .. }) = world.phase(1) else {
        panic!("{:?}", world.phase(1))
    };
    assert_eq!(begun_by.person(), world.state.access_key(&key_id("dan")).unwrap().person);
    assert_eq!(
        (world.data_of("k"), world.data_of("l")),
        (r#"{"new":true}"#.into(), r#"{"new":true}"#.into())
    );
    assert_eq!((world.state.rollouts().count(), world.seen(&canary())), (0, [false; 2]));
    world.expect_rebuilt();
    world.bypass("root", 2, put_data("k", "{}")).unwrap();
}

#[test]
fn nothing_else_changes_what_is_in_a_rollout() {
    let mut world = ChangeWorld::rolling(1);
    let definition = || key("prod.d");
    let delete_k = Command::DeleteConfig { definition: definition(), key: key("k"), expect: Expect::Any };
    let schema =
        Command::SetSchema { key: definition(), schema: None, expect: Expect::Any, configs_read: None };
    let unique =
        Command::SetUnique { key: definition(), paths: Vec::new(), expect: Expect::Any, configs_read: None };
    let commands = [put_data("k", "{}"), delete_k, schema, unique, delete("prod.d", None)];
    for (number, command) in (10..).zip(commands) {
        assert_eq!(world.bypass("root", 2, command.clone()).map(drop), active(1), "{command:?}");
        let batch = Command::Batch(vec![step(put_data("m", "{}")), step(command.clone())]);
        let in_batch =
            Rejection::InBatch { index: 1, rejection: Rejection::RolloutActive { change: id(1) }.into() };
        assert_eq!(world.bypass("root", 2, batch).map(drop), Err(in_batch), "{command:?}");
        let steps = vec![(4, step(command.clone()))];
        let branch = Command::Transaction(Transaction { reads: Vec::new(), chosen: Ok(true), steps });
        let in_branch =
            Rejection::InBatch { index: 4, rejection: Rejection::RolloutActive { change: id(1) }.into() };
        assert_eq!(world.bypass("root", 2, branch).map(drop), Err(in_branch), "{command:?}");
        // Nor does another change request.
        world.create("ann", number);
        world.approve("cid", number);
        let proposal = world.with_change("dan", number, command.clone());
        assert_eq!(world.decide(&proposal).map(drop), active(1), "{command:?}");
    }
    // What was applied before is not taken back meanwhile.
    let source = Source::Revert(RevertUse { id: id(9), edition: 1, is_bypass: true });
    let tail = Tail::of(source, Vec::new());
    let proposal = Proposal { tail, ..world.proposal("root", put_data("k", "{}")) };
    assert_eq!(world.decide(&proposal).map(drop), active(1));
    // Others do change.
    world.bypass("root", 4, put_data("m", "{}")).unwrap();
    let protect = Command::SetProtection { key: definition(), protected: true, expect: Expect::Any };
    world.bypass("root", 5, protect).unwrap();
    assert_eq!(world.seen(&canary()), [true; 2]);
}

#[test]
fn a_rollout_begins_as_a_change_request_is_applied() {
    let mut world = ChangeWorld::to_roll();
    let staged = world.staged_edition(Timing::default(), &["k", "l"], plan());
    world.try_to("ann", 1, ChangeAction::CreateStaged(staged)).unwrap();
    assert_eq!(world.begin("dan", 1), Err(not_approved(1, 0)));
    world.approve("cid", 1);
    let one = world.candidates(&["k"]);
    let updates = Err(Rejection::RolloutInvalid(RolloutBound::NotUpdates));
    assert_eq!(world.begin_with("dan", 1, one), updates, "not all configs");
    let other = world.candidates(&["k", "m"]);
    assert_eq!(world.begin_with("dan", 1, other), updates, "another config");
    assert_eq!(world.begin_with("dan", 1, Vec::new()), Err(Rejection::RolloutInvalid(RolloutBound::Configs)));
    assert_eq!(world.begin("cluster", 1), Err(Rejection::Unauthored), "it is not left to the cluster");
    assert_eq!(world.begin("dan", 7), Err(Rejection::ChangeNotFound));
    world.create("ann", 2);
    world.approve("cid", 2);
    assert_eq!(world.begin("dan", 2), Err(Rejection::RolloutStage), "it has no stages");

    // A config that is created, an unknown one, another rollout.
    world.plan_one(3, Timing::default(), &["k", "new"]);
    let created = world.candidates(&["k", "new"]);
    assert_eq!(world.begin_with("dan", 3, created), updates);
    world.plan_one(4, Timing::default(), &["l"]);
    world.begin("dan", 1).unwrap();
    let of_another = world.candidates(&["l"]);
    assert_eq!(world.begin_with("dan", 4, of_another), active(1));

    // A base that changed.
    let mut world = ChangeWorld::planned(1, Timing::default());
    world.bypass("root", 2, put_data("k", r#"{"other":1}"#)).unwrap();
    assert_eq!(world.begin("dan", 1), Err(Rejection::Precondition { current: 0 }), "stale");

    // A freeze: it neither begins nor goes on, by a person neither, but it can be paused and aborted.
    let mut world = ChangeWorld::rolling(1);
    let (from, until) = (world.at, world.at + HOUR);
    let rules = Environment { freezes: frozen(from, until).freezes, ..refusing() };
    world.rules("prod", rules);
    let is_frozen = Err(Rejection::EnvironmentFrozen { environment: key("prod"), until: Timestamp(until) });
    world.at += STAGE;
    assert_eq!(world.advance("cluster", 1, WELL), is_frozen);
    assert_eq!(world.advance("dan", 1, WELL), is_frozen);
    world.pause("dan", 1).unwrap();
    world.plan_one(5, Timing::default(), &["m"]);
    world.act("ann", 1, withdraw()).unwrap();
    assert_eq!(world.seen(&canary()), [false; 2]);
    let mut world = ChangeWorld::planned(1, Timing::default());
    let (from, until) = (world.at, world.at + HOUR);
    world.rules("prod", Environment { freezes: frozen(from, until).freezes, ..refusing() });
    let is_frozen = Err(Rejection::EnvironmentFrozen { environment: key("prod"), until: Timestamp(until) });
    assert_eq!(world.begin("dan", 1), is_frozen);
}

#[test]
fn the_cluster_begins_what_is_left_to_it() {
    let window = Window { not_before: Timestamp(NOW + HOUR), not_after: Timestamp(NOW + 2 * HOUR) };
    let timed = Timing { window: Some(window), ..Timing::default() };
    let mut world = ChangeWorld::planned(1, timed);
    let early = Err(Rejection::ChangeNotDue(NotDue::Before(window.not_before)));
    assert_eq!(world.begin("dan", 1), early);
    let current = ChangeAction::Schedule { edition: 1, digest: [1; 32] };
    world.act("dan", 1, current).unwrap();
    assert_eq!(world.begin("cluster", 1), early);
    world.at = NOW + HOUR;
    world.begin("cluster", 1).unwrap();
    assert!(matches!(world.phase(1), Some(Phase::Rolling { by: None, scheduled_by: Some(_), .. })));
    // The window was that of its beginning.
    for _ in 0..2 {
        world.at += 2 * HOUR;
        world.advance("cluster", 1, WELL).unwrap();
    }
    world.end("cluster", 1).unwrap();
    assert!(matches!(world.phase(1), Some(Phase::Applied { by: None, scheduled_by: Some(_), .. })));

    let when_approved = Timing { apply: ApplyMode::WhenApproved, ..Timing::default() };
    let mut world = ChangeWorld::planned(1, when_approved);
    world.begin("cluster", 1).unwrap();
    // It does not expire while it rolls, however long somebody lets it wait.
    world.pause("dan", 1).unwrap();
    world.at += EDITION_AGE_US_MAX + HOUR;
    let now = Timestamp(world.at);
    world.done("cluster", Command::Access(AccessCommand::MarkUsed { ids: vec![key_id("ann")] }));
    let sweep = world.proposal("cluster", Command::System(SystemCommand::SweepChanges { now }));
    world.decide(&sweep).unwrap();
    assert_eq!(world.seen(&canary()), [true; 2]);
}

#[test]
fn a_person_pauses_a_rollout_lets_it_go_on_and_ends_a_stage() {
    let mut world = ChangeWorld::rolling(1);
    world.at += STAGE;
    assert_eq!(world.resume("dan", 1), Err(Rejection::RolloutStage), "it does not wait");
    world.pause("cluster", 1).unwrap();
    assert_eq!(world.pause("dan", 1), waits(RolloutWait::Paused));
    assert_eq!(world.advance("cluster", 1, WELL), waits(RolloutWait::Paused));
    assert_eq!(world.resume("cluster", 1), Err(Rejection::Unauthored), "a person decides");
    assert_eq!(world.seen(&canary()), [true; 2], "who is in stays in");
    world.resume("dan", 1).unwrap();
    let until = RolloutWait::Time(Timestamp(world.stage_of(1).since.0 + STAGE));
    assert_eq!(world.advance("cluster", 1, WELL), waits(until), "the time of the stage begins again");
    world.pause("dan", 1).unwrap();
    world.advance("dan", 1, Evidence::default()).unwrap();
    let Running { progress, pace, .. } = world.state.running_rollout(&id(1)).unwrap();
    assert_eq!(progress.passed[0].by, Actor::Key(key_id("dan")));
    assert_eq!((progress.passed[0].evidence, &pace.paused), (Evidence::default(), &None));
    let record = world.state.rollout_record(id(1).as_str()).cloned();
    world.pause("dan", 1).unwrap();
    world.resume("dan", 1).unwrap();
    world.pause("dan", 1).unwrap();
    let now = world.state.rollout_record(id(1).as_str()).cloned();
    assert!(Arc::ptr_eq(&record.unwrap(), &now.unwrap()), "a pause does not write the candidates again");
    assert!(!world.state.running_rollout(&id(1)).unwrap().is_complete());
    world.advance("root", 1, Evidence::default()).unwrap();
    world.pause("dan", 1).unwrap();
    assert_eq!(world.end("cluster", 1), active(1), "it waits for somebody before it is applied, too");
    world.resume("dan", 1).unwrap();
    world.end("cluster", 1).unwrap();
    for action in [
        ChangeAction::PauseRollout {
            at: RolloutStage { edition: 1, passed: 0, since: Timestamp(0) },
            comment: String::new(),
        },
        ChangeAction::ResumeRollout { at: RolloutStage { edition: 1, passed: 0, since: Timestamp(0) } },
    ] {
        assert_eq!(world.try_to("dan", 1, action), Err(Rejection::RolloutStage), "it has ended");
    }
}

#[test]
fn an_abort_takes_every_reader_back_at_once() {
    let fail = ChangeAction::Fail {
        edition: 1,
        failure: Failure { code: "rollout_failed".into(), text: "2 readers failed".into() },
    };
    for (who, action, failed) in [("ann", withdraw(), false), ("cluster", fail, true)] {
        let mut world = ChangeWorld::rolling(1);
        world.advance("dan", 1, WELL).unwrap();
        assert_eq!(world.seen(&reader(&[])), [true; 2]);
        world.act(who, 1, action).unwrap();
        assert_eq!((world.seen(&reader(&[])), world.seen(&canary())), ([false; 2], [false; 2]));
        let Some(Phase::Closed { reason, .. }) = world.phase(1) else { panic!("{:?}", world.phase(1)) };
        assert_eq!(matches!(reason, CloseReason::Failed(_)), failed);
        assert_eq!((world.state.rollouts().count(), world.data_of("k")), (0, "{}".into()));
        world.expect_rebuilt();
        assert_eq!(world.end("cluster", 1), Err(Rejection::ChangeClosed));
        world.bypass("root", 2, put_data("k", "{}")).unwrap();
    }
}

#[test]
fn a_restore_or_a_recovery_ends_a_rollout_and_holds_its_change_request() {
    let mut world = ChangeWorld::rolling(1);
    world.done("cluster", Command::System(SystemCommand::HoldChanges));
    assert_eq!((world.phase(1), world.seen(&canary())), (Some(Phase::Held), [false; 2]));
    assert!(world.state.rollout(&id(1)).is_some_and(|rollout| !rollout.is_running()), "its plan stays");
    world.expect_rebuilt();
    assert_eq!(world.begin("dan", 1), Err(Rejection::ChangeHeld));
    let again = world.staged_edition(Timing::default(), &["k", "l"], plan());
    let edit = ChangeAction::EditStaged { after: 1, expect: Expect::Any, edition: again };
    world.try_to("ann", 1, edit).unwrap();
    world.approve("cid", 1);
    world.begin("dan", 1).unwrap();
    let restored = world.state.clone().restored_at(world.state.revision() + 1);
    assert!(restored.running_rollouts().next().is_none());
}

#[test]
fn an_edition_has_its_own_plan_and_none_while_it_rolls() {
    let mut world = ChangeWorld::planned(1, Timing::default());
    world.edit("ann", 1, 2).unwrap();
    assert_eq!(world.state.rollouts().count(), 0, "an edition without stages");
    let empty = Plan { stages: Vec::new(), ..plan() };
    let before = world.state.digest();
    let staged = world.staged_edition(Timing::default(), &["k"], empty.clone());
    let edit = ChangeAction::EditStaged { after: 2, expect: Expect::Any, edition: staged };
    let invalid = Err(Rejection::RolloutInvalid(RolloutBound::Stages));
    assert_eq!(world.try_to("ann", 1, edit), invalid);
    let staged = world.staged_edition(Timing::default(), &["k"], empty);
    assert_eq!(world.try_to("ann", 2, ChangeAction::CreateStaged(staged)), invalid);
    assert_eq!(world.state.digest(), before, "a plan that can't be leaves nothing");

    let mut world = ChangeWorld::rolling(1);
    assert_eq!(world.edit("ann", 1, 2), active(1));
    let staged = world.staged_edition(Timing::default(), &["k"], plan());
    let edit = ChangeAction::EditStaged { after: 1, expect: Expect::Any, edition: staged };
    assert_eq!(world.try_to("ann", 1, edit), active(1));
    // A rejection stops it at its stage, and at its end.
    world.at += STAGE;
    world.advance("cluster", 1, WELL).unwrap();
    world.vote("bob", 1, Opinion::Rejection).unwrap();
    world.at += STAGE;
    for author in ["cluster", "dan"] {
        assert_eq!(world.advance(author, 1, WELL), Err(Rejection::EditionRejected), "{author}");
    }
}

#[test]
fn only_so_many_rollouts_run() {
    let mut world = ChangeWorld::new();
    let names: Vec<String> = (0..=ROLLOUTS_MAX).map(|number| format!("c{number}")).collect();
    for name in &names {
        world.done("root", put_data(name, "{}"));
    }
    // Of what the others leave, each gets a half, and one at least.
    let most = [("ann", 32), ("bob", 16), ("cid", 8), ("dan", 4), ("bot", 2), ("eve", 1), ("root", 1)];
    let mut configs = (1..).zip(&names);
    for (place, (who, most)) in (1000..).zip(most) {
        for count in 1..=most + 1 {
            let (number, name) = if count > most { (place, &names[0]) } else { configs.next().unwrap() };
            let staged = world.staged_edition(Timing::default(), &[name], plan());
            world.try_to(who, number, ChangeAction::CreateStaged(staged)).unwrap();
            let candidates = world.candidates(&[name]);
            let begun = world.begin_with("root", number, candidates);
            assert_eq!(begun, if count > most { Err(Rejection::TooManyRollouts) } else { Ok(()) }, "{who}");
        }
        world.act(who, place, withdraw()).unwrap();
    }
    assert_eq!(world.state.running_rollouts().count(), ROLLOUTS_MAX);
    world.expect_rebuilt();
}

#[test]
fn a_rollout_that_fits_no_change_request_is_no_state() {
    let world = ChangeWorld::rolling(1);
    let built = |change: &dyn Fn(&mut SystemRecord)| {
        let mut builder = StateBuilder::new();
        let keys = world.state.access_keys().map(|key| (**key).clone());
        keys.for_each(|key| builder.access_key(key).unwrap());
        for record in world.state.system_records() {
            let mut record = (**record).clone();
            change(&mut record);
            builder.system_record(record).unwrap();
        }
        let found = world.state.definition("prod.d").unwrap();
        builder.definition((*found.definition).clone()).unwrap();
        for config in found.by_key.from(0) {
            builder.config(found.definition.id, (*config.record).clone()).unwrap();
        }
        builder.finish(world.state.revision(), world.state.last_at()).map(drop)
    };
    let with = |change: &dyn Fn(&mut Rollout)| {
        built(&|record| {
            if let SystemBody::Rollout(rollout) = &mut record.body {
                change(rollout);
            }
        })
    };
    with(&|_| {}).unwrap();
    assert!(with(&|rollout| rollout.edition = 2).is_err());
    assert!(with(&|rollout| rollout.progress = None).is_err());
    assert!(with(&|rollout| rollout.candidates.clear()).is_err());
    assert!(with(&|rollout| rollout.plan.stages.clear()).is_err());
    assert!(with(&|rollout| rollout.candidates[0].key = key("m")).is_err());
    let other_phase = |record: &mut SystemRecord| {
        if let SystemBody::Change(change) = &mut record.body {
            change.phase = Phase::Open;
        }
    };
    assert!(built(&other_phase).is_err());
    let other_name = |record: &mut SystemRecord| {
        if record.rollout().is_some() {
            record.name = id(7).key().clone();
        }
    };
    assert!(built(&other_name).is_err());
}

#[test]
fn an_applied_rollout_is_one_change() {
    let mut world = ChangeWorld::rolling(1);
    for _ in 0..2 {
        world.at += STAGE;
        world.advance("cluster", 1, WELL).unwrap();
    }
    let data = r#"{"new":true}"#;
    let batch = Command::Batch(["k", "l"].map(|name| step(put_data(name, data))).into());
    let proposal = world.with_change("cluster", 1, batch);
    let (verdict, change) = world.propose(&proposal);
    let Verdict::Decided(Ok(applied)) = verdict else { panic!("{verdict:?}") };
    assert_eq!(applied.steps(), [StepOutcome::Changed, StepOutcome::Changed]);
    let ended = |edit: &Edit| matches!(edit, Edit::System { before: Some(before), after: None } if before.rollout().is_some());
    assert!(change.unwrap().edits.iter().any(ended), "data and the end of the rollout are one entry");
}
