//! Schedules and reverts over a scripted consensus, in virtual time: freezes, limits, keys that end, wrong clocks, lost
//! leaders and lost entries.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use fastrand::Rng;
use serde_json::json;

use super::*;
use crate::{
    ChangeView, Consistency, EnvironmentRules, EnvironmentWrite, Level, NewEdition, NewFreeze, Principal,
    ProposedOperations, Share, testing::Scripted,
};
use concord_consensus::fake::Fate;
use concord_model::{
    access_key::{Grant, Grants, KeyId, Pattern, Quota, Verb},
    command::{AccessCommand, Expect, KeyTerms, Verdict},
    document::Document,
    schema::ListedVariants,
    system::{
        change::{ApplyMode, Timing, Window},
        person::PersonLabel,
    },
};

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
const HOUR_US: u64 = 60 * MINUTE_US;

/// A node with a definition and a config, whose people are Ann, who sends, and Bob, who approves.
pub(crate) struct Scene {
    pub(crate) node: Scripted,
    pub(crate) ann: Principal,
    pub(crate) bob: Principal,
    changes: u32,
}

impl Scene {
    pub(crate) async fn start() -> Self {
        Self::start_with(Quota::default(), None).await
    }

    /// The quota and the expiry are those of Ann's key.
    async fn start_with(quota: Quota, expires_in_us: Option<u64>) -> Self {
        // Long work is done by threads of real time.
        let time = Duration::from_secs(60);
        let node = Scripted::start_with(|options| options.write_timeout = time).await;
        node.fake.lead(Some(1));
        let mut scene = Self { ann: Principal::root(), bob: Principal::root(), node, changes: 0 };
        scene.pass(Duration::from_secs(1)).await;
        scene.ann = scene.make_key("AAAAAAAAAAAA", "ann", quota, expires_in_us);
        scene.bob = scene.make_key("BBBBBBBBBBBB", "bob", Quota::default(), None);
        scene.make_key("CCCCCCCCCCCC", "carol", Quota::default(), None);
        let (key, indexes) = ("prod.a".to_owned(), Vec::new());
        let definition = Write::CreateDefinition { key, indexes, schema: None, format_assertion: None };
        scene.write(&Principal::root(), definition).await;
        scene.write(&Principal::root(), put("k", 0)).await;
        scene.rules(Vec::new()).await;
        scene
    }

    fn make_key(&self, id: &str, person: &str, quota: Quota, expires_in_us: Option<u64>) -> Principal {
        let verbs = [Verb::Read, Verb::Write, Verb::Define, Verb::Approve, Verb::Bypass];
        let definitions = vec![Pattern::parse("prod.*").unwrap()];
        let terms = KeyTerms {
            name: person.into(),
            grants: Grants(vec![Grant { verbs: verbs.into_iter().collect(), definitions }]),
            quota,
            expires_at: expires_in_us.map(|us| Timestamp(self.now().0 + us)),
        };
        let (id, person) = (KeyId::parse(id).unwrap(), PersonLabel::parse(person).ok());
        let create = AccessCommand::Create { id: id.clone(), terms, sha256: [1; 32], person };
        self.by_root(Command::Access(create));
        let state = self.state();
        Principal::of_key(Arc::clone(state.access_key(&id).unwrap()), state.revision())
    }

    pub(crate) fn by_root(&self, command: Command) {
        let verdict = self.node.fake.decide(&Proposal::new(self.now(), "root", Author::Root, command));
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    }

    fn revoke(&self, principal: &Principal) {
        let id = KeyId::parse(&principal.id).unwrap();
        self.by_root(Command::Access(AccessCommand::Revoke { id, expect: Expect::Any }));
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.node.true_time()
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.node.service.cx.consensus().unwrap().state()
    }

    pub(crate) async fn write(&self, principal: &Principal, write: Write) {
        tokio::time::resume();
        self.node.service.writes.write(caller(principal), write).await.unwrap();
        tokio::time::pause();
    }

    pub(crate) async fn try_write(&self, write: Write) -> Result<(), Refusal> {
        tokio::time::resume();
        let written = self.node.service.writes.write(caller(&Principal::root()), write).await;
        tokio::time::pause();
        written.map(drop)
    }

    async fn rules(&self, freezes: Vec<NewFreeze>) {
        let rules = EnvironmentRules { refuses_direct: Some(false), approvals: Some(1), freezes };
        let put = EnvironmentWrite::Put { name: "prod".into(), rules, expect: Expect::Any };
        self.write(&Principal::root(), Write::Environment(put)).await;
    }

    pub(crate) async fn change(
        &self,
        principal: &Principal,
        write: ChangeWrite,
    ) -> Result<ChangeView, Refusal> {
        tokio::time::resume();
        let stored = self.node.service.changes.write(caller(principal), write).await;
        tokio::time::pause();
        stored.map(|stored| stored.change)
    }

    /// A change request of Ann that puts the config.
    pub(crate) async fn propose(&mut self, timing: Timing, writes: Vec<Write>) -> ChangeView {
        self.propose_by(&self.ann.clone(), timing, writes).await
    }

    async fn propose_by(&mut self, sender: &Principal, timing: Timing, writes: Vec<Write>) -> ChangeView {
        self.changes += 1;
        let id = format!("Change{:06}", self.changes);
        let operations = ProposedOperations::Records(writes);
        let edition =
            NewEdition { title: "t".into(), description: String::new(), operations, timing, seal: [7; 32] };
        self.change(sender, ChangeWrite::Create { id, edition }).await.unwrap()
    }

    pub(crate) async fn approve(&self, change: &ChangeView) {
        let (id, digest) = (change.id.clone(), change.digest);
        let judgement = crate::ChangeJudgement::Approve;
        let judge = ChangeWrite::Judge { id, judgement, digest, comment: String::new() };
        self.change(&self.bob, judge).await.unwrap();
    }

    pub(crate) async fn apply(&self, change: &ChangeView) -> Result<ChangeView, Refusal> {
        let (id, digest) = (change.id.clone(), change.digest);
        self.change(&self.ann, ChangeWrite::Apply { id, digest }).await
    }

    pub(crate) async fn shown(&self, change: &ChangeView) -> ChangeView {
        tokio::time::resume();
        let consistency = Consistency { level: Level::Local { max_staleness: None }, min_revision: None };
        let mut held = self.node.service.cx.memory_budget.begin(Share::Callers);
        let changes = &self.node.service.changes;
        let shown = changes.get(&Principal::root(), &change.id, false, (consistency, &mut held)).await;
        tokio::time::pause();
        shown.unwrap().0
    }

    /// What the config is.
    pub(crate) fn config(&self) -> Option<String> {
        let state = self.state();
        Some(state.definition("prod.a")?.config("k")?.data.to_string())
    }

    /// Time passes, in which all clocks are right, and the leader looks each second.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = self.now().0 + u64::try_from(time.as_micros()).unwrap();
        while self.now().0 < end {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.now();
            self.node.set_wall(now);
            self.node.hear_clocks(&[(2, now), (3, now)]);
            self.look().await;
        }
    }

    async fn look(&self) {
        // Long work is done by threads of real time.
        tokio::time::resume();
        let consensus = self.node.service.cx.consensus().unwrap();
        self.node.service.members.rollouts.look(consensus).await;
        self.node.service.members.due_changes.look(consensus).await;
        tokio::time::pause();
    }

    /// The alarms about change requests.
    fn alarms(&self) -> Vec<&'static str> {
        self.node.service.members.due_changes.alarms(&self.state()).iter().map(|alarm| alarm.kind).collect()
    }
}

fn caller(principal: &Principal) -> Caller {
    Caller {
        principal: principal.clone(),
        reason: Some("test".into()),
        idempotency_key: None,
        dry_run: false,
        listed_variants: ListedVariants::default(),
        bypass: None,
    }
}

pub(crate) fn put(key: &str, n: u64) -> Write {
    let data = Document::new(json!({ "n": n }));
    Write::WriteConfig { definition: "prod.a".into(), key: key.into(), data, expect: Expect::Any }
}

fn when_approved() -> Timing {
    Timing { apply: ApplyMode::WhenApproved, ..Timing::default() }
}

fn between(scene: &Scene, from_us: u64, until_us: u64) -> Timing {
    let now = scene.now().0;
    let window = Window { not_before: Timestamp(now + from_us), not_after: Timestamp(now + until_us) };
    Timing { window: Some(window), ..when_approved() }
}

#[tokio::test]
async fn what_is_approved_is_applied_and_taken_back_after_its_time() {
    let mut scene = Scene::start().await;
    let timing = Timing { revert_after_s: Some(7200), ..when_approved() };
    let made = scene.propose(timing, vec![put("k", 1)]).await;
    scene.pass(Duration::from_secs(20)).await;
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":0}"#), "it is not approved");
    scene.approve(&made).await;
    scene.pass(Duration::from_secs(3)).await;
    let applied = scene.shown(&made).await;
    let at = applied.applied.clone().unwrap();
    assert_eq!((applied.phase, at.by, scene.config().as_deref()), ("applied", None, Some(r#"{"n":1}"#)));
    let revert = applied.revert.unwrap();
    assert_eq!((revert.state, revert.due_at), ("armed", Some(Timestamp(at.at.0 + 7200 * SECOND_US))));
    // Nobody's key is needed.
    scene.revoke(&scene.ann);
    scene.revoke(&scene.bob);
    scene.pass(Duration::from_secs(7190)).await;
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":1}"#), "it is not due");
    scene.pass(Duration::from_secs(15)).await;
    let done = scene.shown(&made).await.revert.unwrap();
    assert_eq!((done.state, done.by, scene.config().as_deref()), ("done", None, Some(r#"{"n":0}"#)));
    assert!(done.at.unwrap() >= revert.due_at.unwrap());
    assert!(scene.alarms().is_empty(), "{:?}", scene.alarms());
    scene.node.stop().await;
}

#[tokio::test]
async fn what_is_left_to_the_cluster_is_applied_in_its_window() {
    let mut scene = Scene::start().await;
    let timing = Timing { apply: ApplyMode::Manual, ..between(&scene, HOUR_US, 2 * HOUR_US) };
    let made = scene.propose(timing, vec![put("k", 1)]).await;
    assert!(matches!(scene.apply(&made).await, Err(Refusal::Rejected(_))), "it is not approved");
    scene.approve(&made).await;
    let left = scene.apply(&made).await.unwrap();
    assert_eq!((left.phase, left.scheduled.is_some()), ("scheduled", true));
    assert_eq!(scene.apply(&made).await.unwrap().revision, left.revision, "once");
    scene.pass(Duration::from_secs(3580)).await;
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":0}"#));
    scene.pass(Duration::from_secs(25)).await;
    let applied = scene.shown(&made).await.applied.unwrap();
    assert!(timing.window.unwrap().has(applied.at, applied.at));
    assert_eq!((applied.by, applied.scheduled_by.map(|by| by.key)), (None, Some(scene.ann.id.to_string())));
    scene.node.stop().await;
}

#[tokio::test]
async fn a_freeze_in_the_window_is_waited_for_until_the_window_ends() {
    let mut scene = Scene::start().await;
    let freeze = |scene: &Scene, until_us: u64| NewFreeze {
        from: None,
        until: Timestamp(scene.now().0 + until_us),
        reason: "incident".into(),
    };
    let timing = between(&scene, MINUTE_US, HOUR_US);
    let made = scene.propose(timing, vec![put("k", 1)]).await;
    scene.approve(&made).await;
    scene.rules(vec![freeze(&scene, 30 * MINUTE_US)]).await;
    let proposals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&proposals);
    scene.node.fake.script(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        (Duration::ZERO, Fate::Decided)
    });
    scene.pass(Duration::from_secs(29 * 60)).await;
    assert_eq!((scene.shown(&made).await.phase, scene.alarms()), ("open", vec!["change_waits"]));
    assert_eq!(proposals.load(Ordering::Relaxed), 0, "what would be rejected is not written into the log");
    scene.pass(Duration::from_secs(120)).await;
    assert_eq!((scene.shown(&made).await.phase, scene.config().as_deref()), ("applied", Some(r#"{"n":1}"#)));
    // Another one, whose window the freeze outlives.
    let timing = between(&scene, MINUTE_US, 20 * MINUTE_US);
    let late = scene.propose(timing, vec![put("k", 2)]).await;
    scene.approve(&late).await;
    scene.rules(vec![freeze(&scene, HOUR_US)]).await;
    scene.pass(Duration::from_secs(21 * 60)).await;
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":1}"#));
    let now = scene.now();
    assert!(scene.state().has_changes_to_sweep(now));
    scene.by_cluster(SystemCommand::SweepChanges { now });
    let closed = scene.shown(&late).await.closed.unwrap();
    assert_eq!((closed.reason, scene.alarms().len()), ("expired", 0));
    scene.node.stop().await;
}

impl Scene {
    fn by_cluster(&self, command: SystemCommand) {
        let proposal = Proposal::new(self.now(), AUTHOR, Author::Cluster, Command::System(command));
        let verdict = self.node.fake.decide(&proposal);
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    }
}

#[tokio::test]
async fn a_limit_is_waited_for_and_a_key_that_has_expired_is_enough() {
    let quota = Quota { records: Some(2), ..Quota::default() };
    let mut scene = Scene::start_with(quota, Some(2 * HOUR_US)).await;
    let timing = between(&scene, HOUR_US, 6 * HOUR_US);
    let made = scene.propose(timing, vec![put("k2", 1)]).await;
    scene.approve(&made).await;
    scene.pass(Duration::from_secs(4 * 3600)).await;
    assert_eq!(
        (scene.shown(&made).await.phase, scene.alarms()),
        ("open", vec!["change_waits"]),
        "the quota is full"
    );
    let delete =
        Write::DeleteConfig { definition: "prod.a".into(), key: "k".into(), expect: Expect::Present };
    scene.write(&Principal::root(), delete).await;
    scene.pass(Duration::from_secs(60)).await;
    assert_eq!(scene.shown(&made).await.phase, "applied", "the key of the sender has expired, and is there");
    scene.node.stop().await;
}

#[tokio::test]
async fn what_can_not_be_applied_is_closed_with_the_reason_and_an_alarm() {
    let mut scene = Scene::start().await;
    let failed = async |scene: &Scene, made: &ChangeView| {
        scene.pass(Duration::from_secs(90)).await;
        let closed = scene.shown(made).await.closed.unwrap();
        assert_eq!((closed.reason, scene.alarms()), ("failed", vec!["change_failed"]));
        closed.failure.unwrap().code
    };
    // A record has changed since.
    let timing = between(&scene, MINUTE_US, HOUR_US);
    let stale = scene.propose(timing, vec![put("k", 1)]).await;
    scene.approve(&stale).await;
    scene.write(&Principal::root(), put("k", 7)).await;
    assert_eq!(failed(&scene, &stale).await, "change_stale");
    // It was left to the cluster, and the approval no longer counts.
    let timing = Timing { apply: ApplyMode::Manual, ..between(&scene, MINUTE_US, HOUR_US) };
    let left = scene.propose(timing, vec![put("k", 2)]).await;
    scene.approve(&left).await;
    scene.apply(&left).await.unwrap();
    scene.revoke(&scene.bob);
    assert_eq!(failed(&scene, &left).await, "not_approved");
    scene.bob = scene.make_key("DDDDDDDDDDDD", "dan", Quota::default(), None);
    // The key of the sender is gone.
    let timing = between(&scene, MINUTE_US, HOUR_US);
    let orphan = scene.propose(timing, vec![put("k", 3)]).await;
    scene.approve(&orphan).await;
    scene.revoke(&scene.ann);
    assert_eq!(failed(&scene, &orphan).await, "author_ended");
    assert_eq!(scene.config().as_deref(), Some(r#"{"n":7}"#), "nothing was changed");
    // The alarm ends.
    scene.pass(Duration::from_secs(60)).await;
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    scene.pass(Duration::from_secs(2)).await;
    assert!(scene.alarms().is_empty());
    scene.node.stop().await;
}

#[tokio::test]
async fn an_alarm_comes_before_a_revert_that_is_not_possible_is_due() {
    let mut scene = Scene::start().await;
    let timing = Timing { revert_after_s: Some(3600), ..when_approved() };
    let made = scene.propose(timing, vec![put("k", 1)]).await;
    scene.approve(&made).await;
    scene.pass(Duration::from_secs(5)).await;
    scene.write(&Principal::root(), put("k", 7)).await;
    scene.pass(Duration::from_secs(65)).await;
    assert_eq!(scene.alarms(), ["revert_failed"]);
    assert_eq!(scene.shown(&made).await.revert.unwrap().state, "armed");
    let alarm = scene.node.service.members.due_changes.alarms(&scene.state()).pop().unwrap().message;
    assert!(alarm.contains(&made.id) && !alarm.contains("prod"), "{alarm}");
    scene.pass(Duration::from_secs(3600)).await;
    let failed = scene.shown(&made).await.revert.unwrap();
    assert_eq!((failed.state, failed.failure.unwrap().code.as_str()), ("failed", "change_stale"));
    assert_eq!((scene.alarms(), scene.config().as_deref()), (vec!["revert_failed"], Some(r#"{"n":7}"#)));
    scene.node.stop().await;
}

#[tokio::test]
async fn without_a_time_that_a_majority_confirms_nothing_is_done_and_an_alarm_says_so() {
    let mut scene = Scene::start().await;
    let timing = between(&scene, MINUTE_US, 10 * HOUR_US);
    let made = scene.propose(timing, vec![put("k", 1)]).await;
    scene.approve(&made).await;
    for minute in 0..60 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let now = scene.now();
        // Each shows another time.
        scene.node.set_wall(Timestamp(now.0 + HOUR_US));
        scene.node.hear_clocks(&[(2, Timestamp(now.0 - HOUR_US)), (3, now)]);
        scene.look().await;
        assert_eq!(scene.state().pending_change_count(), 1, "after {minute} minutes");
    }
    assert_eq!(scene.alarms(), ["schedule_waits_for_clock"]);
    assert!(scene.node.service.members.due_changes.overdue_s(&scene.state()) > 50 * 60);
    scene.pass(Duration::from_secs(60)).await;
    assert_eq!((scene.shown(&made).await.phase, scene.alarms().len()), ("applied", 0));
    assert_eq!(scene.node.service.members.due_changes.overdue_s(&scene.state()), 0);
    scene.node.stop().await;
}

/// Eighty change requests, while leaders are lost, entries are lost, and one clock jumps.
#[tokio::test]
async fn each_is_applied_once_in_its_window_and_taken_back_once_whoever_leads_and_whatever_one_clock_shows() {
    let mut scene = Scene::start().await;
    let mut rng = Rng::with_seed(5);
    let mut fates = rng.fork();
    let (mut applied, mut reverted, mut lost) = (0, 0, 0);
    for round in 0..80_u64 {
        scene.node.fake.script(|| (Duration::ZERO, Fate::Decided));
        scene.node.fake.lead(Some(1));
        scene.pass(Duration::from_secs(10)).await;
        let begin = scene.now().0;
        let (from, length) = (rng.u64(20..200) * SECOND_US, rng.u64(60..400) * SECOND_US);
        let timing =
            Timing { revert_after_s: Some(rng.u32(30..300)), ..between(&scene, from, from + length) };
        let made = scene.propose(timing, vec![put("k", round + 1)]).await;
        scene.approve(&made).await;
        let window = timing.window.unwrap();
        let before = scene.config().unwrap();
        let mut script = fates.fork();
        scene.node.fake.script(move || {
            let all = [Fate::NotAppended, Fate::LostAndApplied, Fate::LostAndGone, Fate::Decided];
            (Duration::ZERO, all[script.usize(..4)])
        });
        fates.u64(..);
        let (mut ahead, mut is_well) = (0_i64, true);
        while scene.now().0 < begin + 900 * SECOND_US {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = scene.now();
            if rng.u32(..100) == 0 {
                // One clock jumps, or is set right.
                ahead = if ahead == 0 { rng.i64(1..40) * 86_400_000_000 } else { 0 };
                is_well = false;
            }
            let others = if round % 2 == 0 { (ahead, 0) } else { (0, ahead) };
            scene.node.set_wall(Timestamp(now.0.saturating_add_signed(others.0)));
            scene.node.hear_clocks(&[(2, Timestamp(now.0.saturating_add_signed(others.1))), (3, now)]);
            if rng.u32(..60) == 0 {
                scene.node.fake.lead([Some(1), Some(2), None][rng.usize(..3)]);
                is_well = false;
            }
            scene.look().await;
        }
        let shown = scene.shown(&made).await;
        if let Some(done) = &shown.applied {
            applied += 1;
            assert!(window.has(done.at, done.at), "{done:?}");
            let revert = shown.revert.clone().unwrap();
            if revert.state == "done" {
                reverted += 1;
                let due = Timestamp(done.at.0 + u64::from(timing.revert_after_s.unwrap()) * SECOND_US);
                assert!(revert.at.unwrap() >= due && revert.due_at.is_none(), "{revert:?}");
                assert_eq!(scene.config().unwrap(), before);
            } else {
                assert_eq!(
                    (revert.state, scene.config().unwrap()),
                    ("armed", format!(r#"{{"n":{}}}"#, round + 1))
                );
            }
        } else {
            assert!(!is_well && shown.phase == "open", "nothing was in the way: {shown:?}");
            lost += 1;
        }
        // Whatever is left of it ends before the next one.
        scene.node.fake.script(|| (Duration::ZERO, Fate::Decided));
        scene.node.fake.lead(Some(1));
        scene.pass(Duration::from_secs(60)).await;
        if shown.phase == "open" {
            scene.by_cluster(SystemCommand::SweepChanges { now: scene.now() });
        }
        assert_eq!(scene.config().unwrap(), before, "each is taken back");
    }
    assert!(applied > 40 && reverted > 20 && lost > 0, "{applied} {reverted} {lost}");
    scene.node.stop().await;
}

#[tokio::test]
async fn what_fails_again_and_again_keeps_nothing_from_its_turn() {
    let mut scene = Scene::start().await;
    let timing = between(&scene, MINUTE_US, HOUR_US);
    let first = scene.propose(timing, vec![put("k", 1)]).await;
    let second = scene.propose(timing, vec![put("other", 1)]).await;
    for made in [&first, &second] {
        scene.approve(made).await;
    }
    let now = Timestamp(scene.now().0 + 2 * MINUTE_US);
    let due_changes = &scene.node.service.members.due_changes;
    let order = || {
        let due = due_changes.due(&scene.state(), now);
        due.into_iter().map(|(_, id)| id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(order(), [first.id.clone(), second.id.clone()]);
    for _ in 0..3 {
        due_changes.pause(ChangeId::parse(&first.id).unwrap());
    }
    assert_eq!(order(), std::slice::from_ref(&second.id), "it pauses");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(order(), [second.id.clone(), first.id.clone()]);
    tokio::time::sleep(PAUSE_MAX * 3).await;
    assert_eq!(order(), [second.id.clone(), first.id.clone()], "as long as it is due");
    assert!(due_changes.due(&scene.state(), Timestamp(0)).is_empty());
    assert!(due_changes.progress().paused.is_empty(), "nothing is kept for ever");
    // Another person's comes before the second one of this person.
    let third = scene.propose_by(&scene.bob.clone(), timing, vec![put("third", 1)]).await;
    let (id, digest, judgement) = (third.id.clone(), third.digest, crate::ChangeJudgement::Approve);
    let judge = ChangeWrite::Judge { id, judgement, digest, comment: String::new() };
    scene.change(&scene.ann, judge).await.unwrap();
    let all: Vec<_> = scene.node.service.members.due_changes.due(&scene.state(), now);
    let all: Vec<String> = all.into_iter().map(|(_, id)| id.to_string()).collect();
    assert_eq!(all, [first.id, third.id, second.id]);
    scene.node.stop().await;
}
