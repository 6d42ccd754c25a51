//! Rollouts over a scripted consensus, in virtual time.

use std::time::Duration;

use crate::{
    ChangeView, ChangeWrite, GateWord, NewEdition, Principal, ProposedOperations, ReaderReport, ReaderState,
    Refusal, ReportAbout, Reported, RolloutSteer, Write,
    change_requests::due::tests::{Scene, put},
};
use concord_model::{
    command::{Command, Expect},
    error::{Rejection, RolloutBound},
    feature::ROLLOUTS,
    key::Key,
    system::{
        change::Timing,
        rollout::{GateRule, OnFail, Plan, Reader, Stage},
    },
};

const ID: &str = "Abcdefghijkl";

fn stage(share: u16, for_s: u32) -> Stage {
    Stage { labels: Vec::new(), share, for_s, min_healthy: 0 }
}

fn plan(stages: Vec<Stage>) -> Plan {
    Plan { stages, max_failed: 0, gates: Vec::new(), on_fail: OnFail::Abort, timeout_s: 60 }
}

fn edition(writes: Vec<Write>) -> NewEdition {
    let (title, description, timing) = ("t".into(), String::new(), Timing::default());
    let operations = ProposedOperations::Records(writes);
    NewEdition { title, description, operations, timing, seal: [7; 32] }
}

async fn scene() -> Scene {
    let scene = Scene::start().await;
    if scene.state().feature_level() < ROLLOUTS {
        scene.by_root(Command::RaiseFeatureLevel { to: ROLLOUTS });
    }
    scene
}

async fn propose(scene: &Scene, writes: Vec<Write>, plan: Plan) -> Result<ChangeView, Refusal> {
    let create = ChangeWrite::CreateStaged { id: ID.into(), edition: edition(writes), plan };
    scene.change(&scene.ann, create).await
}

async fn steer(scene: &Scene, by: &Principal, steer: RolloutSteer) -> Result<ChangeView, Refusal> {
    let write = ChangeWrite::Steer { id: ID.into(), steer, stage: None, comment: "c".into() };
    scene.change(by, write).await
}

/// One that has begun.
async fn begun(plan: Plan) -> (Scene, ChangeView) {
    let scene = scene().await;
    let made = propose(&scene, vec![put("k", 1)], plan).await.unwrap();
    scene.approve(&made).await;
    let begun = scene.apply(&made).await.unwrap();
    assert_eq!(begun.phase, "rolling");
    (scene, begun)
}

/// Whether a reader sees the candidate.
fn sees(scene: &Scene, reader: &str) -> bool {
    let state = scene.state();
    let id = state.definition("prod.a").unwrap().definition.id;
    let reader = Reader::parse(reader, "").unwrap();
    state.seen_candidate(id, &Key::parse("k").unwrap(), &reader).is_some()
}

fn stage_of(view: &ChangeView) -> Option<usize> {
    view.rollout.as_ref()?.status.as_ref()?.stage
}

fn rejection<T: std::fmt::Debug>(result: Result<T, Refusal>) -> Rejection {
    match result {
        Err(Refusal::Rejected(rejection)) => rejection,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_rollout_goes_through_its_stages_and_is_applied_by_the_cluster() {
    let (scene, begun) = begun(plan(vec![stage(5000, 60), stage(10_000, 30)])).await;
    let readers: Vec<String> = (0..40).map(|number| format!("r{number}")).collect();
    let count = |scene: &Scene| readers.iter().filter(|reader| sees(scene, reader)).count();
    let first = count(&scene);
    assert!((10..30).contains(&first), "{first} of 40 see it at once");
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":0}"#), "the proven data stays");
    let retried = scene.apply(&begun).await.unwrap();
    assert_eq!((retried.phase, retried.revision), ("rolling", begun.revision), "it begins once");
    scene.pass(Duration::from_secs(55)).await;
    assert_eq!(stage_of(&scene.shown(&begun).await), Some(0), "it is not over");
    scene.pass(Duration::from_secs(10)).await;
    assert_eq!((stage_of(&scene.shown(&begun).await), count(&scene)), (Some(1), 40));
    scene.pass(Duration::from_secs(40)).await;
    let applied = scene.shown(&begun).await;
    assert_eq!((applied.phase, scene.config().as_deref()), ("applied", Some(r#"{"n":1}"#)));
    assert!(applied.applied.unwrap().by.is_none(), "by the cluster");
    assert!(applied.rollout.is_none() && count(&scene) == 0, "nothing is left of it");
}

#[tokio::test]
async fn nothing_else_writes_what_rolls_and_an_abort_takes_it_back() {
    let (scene, _) = begun(plan(vec![stage(10_000, 600)])).await;
    assert!(sees(&scene, "r"));
    let delete =
        Write::DeleteConfig { definition: "prod.a".into(), key: "k".into(), expect: Expect::Present };
    let Rejection::RolloutActive { change } = rejection(scene.try_write(put("k", 2)).await) else { panic!() };
    assert_eq!(change.as_str(), ID);
    assert!(matches!(rejection(scene.try_write(delete).await), Rejection::RolloutActive { .. }));
    let edited = ChangeWrite::EditStaged {
        id: ID.into(),
        edition: edition(vec![put("k", 3)]),
        plan: plan(vec![stage(10_000, 1)]),
        if_match: None,
    };
    assert!(matches!(rejection(scene.change(&scene.ann, edited).await), Rejection::RolloutActive { .. }));
    let aborted = steer(&scene, &scene.ann, RolloutSteer::Abort).await.unwrap();
    assert_eq!((aborted.phase, aborted.closed.unwrap().reason), ("closed", "withdrawn"));
    assert!(!sees(&scene, "r"));
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":0}"#));
    scene.try_write(put("k", 2)).await.unwrap();
    assert!(matches!(
        rejection(steer(&scene, &scene.bob, RolloutSteer::Resume).await),
        Rejection::ChangeClosed
    ));
}

#[tokio::test]
async fn a_person_pauses_resumes_and_advances_it() {
    let (scene, begun) = begun(plan(vec![stage(100, 60), stage(10_000, 600)])).await;
    let paused = steer(&scene, &scene.bob, RolloutSteer::Pause).await.unwrap();
    let by = paused.rollout.unwrap().status.unwrap().paused.unwrap();
    assert_eq!((by.by.unwrap().key, by.comment.as_str()), ("BBBBBBBBBBBB".to_owned(), "c"));
    scene.pass(Duration::from_secs(90)).await;
    assert_eq!(stage_of(&scene.shown(&begun).await), Some(0), "it waits");
    steer(&scene, &scene.bob, RolloutSteer::Resume).await.unwrap();
    scene.pass(Duration::from_secs(50)).await;
    assert_eq!(stage_of(&scene.shown(&begun).await), Some(0), "its time has begun again");
    let (id, comment) = (ID.into(), String::new());
    let late = ChangeWrite::Steer { id, steer: RolloutSteer::Advance, stage: Some(1), comment };
    assert!(matches!(rejection(scene.change(&scene.bob, late).await), Rejection::RolloutStage));
    let advanced = steer(&scene, &scene.bob, RolloutSteer::Advance).await.unwrap();
    assert_eq!(stage_of(&advanced), Some(1));
    let status = advanced.rollout.unwrap().status.unwrap();
    assert_eq!(status.passed[0].by.as_ref().unwrap().key, "BBBBBBBBBBBB");
    assert_eq!(status.passed[0].evidence, None, "a person has ended it");
    assert_eq!(status.waits_for, ["time"]);
}

#[tokio::test]
async fn an_invalid_plan_is_rejected_when_it_is_sent() {
    let scene = scene().await;
    let create = |key: &str, n| put(key, n);
    let new = propose(&scene, vec![create("k", 1), create("new", 1)], plan(vec![stage(500, 60)])).await;
    assert!(matches!(rejection(new), Rejection::RolloutInvalid(RolloutBound::NotUpdates)), "a new config");
    let empty = propose(&scene, vec![put("k", 1)], plan(Vec::new())).await;
    assert!(matches!(rejection(empty), Rejection::RolloutInvalid(RolloutBound::Stages)));
    let delete =
        Write::DeleteConfig { definition: "prod.a".into(), key: "k".into(), expect: Expect::Present };
    let deleted = propose(&scene, vec![delete], plan(vec![stage(500, 60)])).await;
    assert!(matches!(rejection(deleted), Rejection::RolloutInvalid(RolloutBound::NotUpdates)));
}

/// Reports, with the root key.
async fn report(scene: &Scene, reader: &str, state: ReaderState) -> Reported {
    let report = ReaderReport {
        about: ReportAbout::Rollout(ID.into()),
        reader: reader.into(),
        labels: String::new(),
        instance: None,
        state,
        detail: "it does not parse".into(),
    };
    tokio::time::resume();
    let reported = scene.node.service.reports.report(&Principal::root(), report).await.unwrap();
    tokio::time::pause();
    reported
}

#[tokio::test]
async fn one_failure_too_many_takes_it_back_at_once() {
    let mut plan = plan(vec![stage(10_000, 600)]);
    plan.max_failed = 1;
    let (scene, begun) = begun(plan).await;
    assert!(report(&scene, "r1", ReaderState::Failed).await.is_counted);
    scene.pass(Duration::from_secs(1)).await;
    let status = scene.shown(&begun).await.rollout.unwrap().status.unwrap();
    let known = status.evidence.unwrap();
    assert_eq!((known.failed, known.failures[0].reader.as_str()), (1, "r1"));
    report(&scene, "r2", ReaderState::Failed).await;
    scene.pass(Duration::from_secs(1)).await;
    let closed = scene.shown(&begun).await.closed.unwrap();
    let failure = closed.failure.unwrap();
    assert_eq!((closed.reason, failure.code.as_str(), closed.by), ("failed", "rollout_failed", None));
    assert!(!sees(&scene, "r1"));
}

#[tokio::test]
async fn a_stage_waits_for_readers_that_run_well_and_for_gates_and_a_late_one_pauses() {
    let mut plan = plan(vec![Stage { min_healthy: 2, ..stage(10_000, 10) }]);
    plan.gates = vec![GateRule { name: "errors".into(), fresh_s: 30 }];
    let (scene, begun) = begun(plan).await;
    scene.pass(Duration::from_secs(20)).await;
    let status = scene.shown(&begun).await.rollout.unwrap().status.unwrap();
    assert_eq!((status.stage, &status.waits_for[..]), (Some(0), &["min_healthy", "gates"][..]));
    for reader in ["r1", "r2", "r2"] {
        report(&scene, reader, ReaderState::Healthy).await;
    }
    let word = GateWord { gate: "errors".into(), is_ok: true, evidence: "0.1 %".into() };
    tokio::time::resume();
    scene.node.service.reports.say(&Principal::root(), word.clone()).await.unwrap();
    tokio::time::pause();
    scene.pass(Duration::from_secs(5)).await;
    assert_eq!(scene.shown(&begun).await.phase, "applied");
}

#[tokio::test]
async fn a_stage_that_lacks_evidence_for_too_long_pauses() {
    let (scene, begun) = begun(plan(vec![Stage { min_healthy: 1, ..stage(10_000, 10) }])).await;
    scene.pass(Duration::from_secs(65)).await;
    assert!(scene.shown(&begun).await.rollout.unwrap().status.unwrap().paused.is_none());
    scene.pass(Duration::from_secs(10)).await;
    let paused = scene.shown(&begun).await.rollout.unwrap().status.unwrap().paused.unwrap();
    assert!(paused.by.is_none() && paused.comment.contains("0 of 1 readers"), "{paused:?}");
}

#[tokio::test]
async fn a_new_leader_hears_the_readers_before_a_stage_ends() {
    let (scene, begun) = begun(plan(vec![stage(10_000, 10)])).await;
    scene.node.fake.lead(Some(2));
    scene.pass(Duration::from_secs(3)).await;
    scene.node.fake.lead(Some(1));
    scene.pass(Duration::from_secs(28)).await;
    assert_eq!(scene.shown(&begun).await.phase, "rolling", "it may not know of failures");
    scene.pass(Duration::from_secs(10)).await;
    assert_eq!(scene.shown(&begun).await.phase, "applied");
}

#[tokio::test]
async fn what_somebody_has_rejected_reaches_no_more_readers() {
    let (scene, begun) = begun(plan(vec![stage(100, 10), stage(10_000, 600)])).await;
    let judge = ChangeWrite::Judge {
        id: ID.into(),
        judgement: crate::ChangeJudgement::Reject,
        digest: begun.digest,
        comment: String::new(),
    };
    scene.change(&scene.bob, judge).await.unwrap();
    scene.pass(Duration::from_secs(20)).await;
    let status = scene.shown(&begun).await.rollout.unwrap().status.unwrap();
    assert!(status.stage == Some(0) && status.paused.is_some_and(|paused| paused.by.is_none()));
    for step in [RolloutSteer::Advance, RolloutSteer::Resume] {
        assert_eq!(rejection(steer(&scene, &scene.bob, step).await), Rejection::EditionRejected, "{step:?}");
    }
    steer(&scene, &scene.ann, RolloutSteer::Abort).await.unwrap();
}
