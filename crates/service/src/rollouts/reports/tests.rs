//! Reports and words on a node over a scripted consensus.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{ConfigName, Consistency, testing::Scripted};
use concord_model::{
    access_key::{AccessKey, Author, Grant, Grants, KeyId, Pattern, Quota, Verb},
    command::{
        AccessCommand, ChangeAction, Command, Expect, KeyTerms, Proposal, SystemCommand, source::Guard,
    },
    key::Key,
    system::{
        change::{Content, NewEdition, Scope, Timing},
        rollout::{
            Candidate, Evidence, GateRule, LabelValues, OnFail, Plan, Rollout, SHARE_ALL, Stage,
            StagedEdition,
        },
    },
};

const CHANGE: &str = "AbCdEf012345";

/// A node of a cluster with rollouts, that leads.
struct World {
    node: Scripted,
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn id() -> ChangeId {
    ChangeId::parse(CHANGE).unwrap()
}

/// First the readers with `ring=canary`, then all; one gate.
fn plan() -> Plan {
    let canary = LabelValues { name: "ring".into(), values: vec!["canary".into()] };
    let stage = |labels| Stage { labels, share: SHARE_ALL, for_s: 600, min_healthy: 1 };
    let gates = vec![GateRule { name: "errors".into(), fresh_s: 120 }];
    Plan {
        stages: vec![stage(vec![canary]), stage(Vec::new())],
        max_failed: 0,
        gates,
        on_fail: OnFail::Abort,
        timeout_s: 3600,
    }
}

fn report(reader: &str, labels: &str, state: ReaderState) -> ReaderReport {
    let [change, reader, labels, detail] = [CHANGE, reader, labels, "no\nstart"].map(str::to_owned);
    ReaderReport { about: ReportAbout::Rollout(change), reader, labels, instance: None, state, detail }
}

/// About a revision of config `k` of definition `d`.
fn report_of_config(reader: &str, revision: Revision, state: ReaderState) -> ReaderReport {
    let about = ReportAbout::Config { definition: "d".into(), key: "k".into(), revision };
    ReaderReport { about, ..report(reader, "", state) }
}

fn word(gate: &str, is_ok: bool) -> GateWord {
    GateWord { gate: gate.into(), is_ok, evidence: "0.1 %".into() }
}

impl World {
    /// Without a rollout, and at level 1.
    async fn old() -> Self {
        let node = Scripted::start().await;
        let now = node.true_time();
        node.hear_clocks(&[(2, now), (3, now)]);
        node.fake.lead(Some(1));
        Self { node }
    }

    fn decide(&self, author: Author, command: Command) {
        let verdict = self.node.fake.decide(&Proposal::new(self.node.true_time(), "root", author, command));
        assert!(format!("{verdict:?}").starts_with("Decided(Ok"), "{verdict:?}");
    }

    /// With the rollout of config `k` of definition `d`.
    async fn rolling() -> Self {
        let world = Self::old().await;
        world.decide(Author::Cluster, Command::RaiseFeatureLevel { to: ROLLOUTS });
        world.decide(
            Author::Root,
            Command::CreateDefinition { key: key("d"), indexes: Vec::new(), schema: None },
        );
        let data = |text: &str| text.into();
        world.decide(
            Author::Root,
            Command::WriteConfig {
                definition: key("d"),
                key: key("k"),
                data: data("{}"),
                entries: Box::default(),
                expect: Expect::Absent,
            },
        );
        let state = world.state();
        let found = state.definition("d").unwrap();
        let revision = found.config("k").map(|config| config.revision);
        let definition = found.definition.id;
        let base = Guard::Config { definition, key: key("k"), revision };
        let edition = NewEdition {
            digest: [1; 32],
            scope: Scope::Definitions(vec![key("d")]),
            text: "{}".into(),
            operations: "[]".into(),
            content: Content::new(vec![base], [2; 32]),
            timing: Timing::default(),
        };
        world.act(ChangeAction::CreateStaged(Box::new(StagedEdition { edition, plan: plan() })));
        let candidates = vec![Candidate { definition, key: key("k"), data: data(r#"{"new":true}"#) }];
        world.act(ChangeAction::BeginRollout { edition: 1, digest: [1; 32], candidates });
        world
    }

    fn act(&self, action: ChangeAction) {
        self.decide(Author::Root, Command::System(SystemCommand::Change { id: id(), action }));
    }

    fn state(&self) -> Arc<State> {
        self.node.service.cx.applied()
    }

    fn rollout(&self) -> Rollout {
        self.state().rollout(&id()).unwrap().clone()
    }

    /// The holder of a stored key with `report` for these definitions.
    fn reporter(&self, name: &str, verb: Verb, patterns: &[&str]) -> Principal {
        let definitions = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        let grants = Grants(vec![Grant { verbs: [verb].into_iter().collect(), definitions }]);
        let terms = KeyTerms { name: name.into(), grants, quota: Quota::default(), expires_at: None };
        let id = KeyId::parse(&format!("{name:a>12}")).unwrap();
        let create = AccessCommand::Create { id: id.clone(), terms, sha256: [7; 32], person: None };
        self.decide(Author::Root, Command::Access(create));
        let state = self.state();
        let key: &Arc<AccessKey> = state.access_key(&id).unwrap();
        Principal::of_key(Arc::clone(key), key.secrets[0].made)
    }

    fn reports(&self) -> &Reports {
        &self.node.service.reports
    }

    fn counted(&self) -> Evidence {
        self.reports().evidence.counted(&id(), &self.rollout())
    }

    fn counts(&self) -> (u32, u32, u32) {
        let Evidence { healthy, failed, gates } = self.counted();
        (healthy, failed, gates)
    }

    async fn takes(&self, by: &Principal, reader: &str, labels: &str, state: ReaderState) -> Reported {
        self.reports().report(by, report(reader, labels, state)).await.unwrap()
    }
}

const COUNTED: Reported = Reported { is_counted: true, is_news: false };
const NEWS: Reported = Reported { is_counted: true, is_news: true };
const NOTHING: Reported = Reported { is_counted: false, is_news: false };

#[tokio::test]
async fn the_leader_counts_the_readers_that_see_the_candidates() {
    let world = World::rolling().await;
    let root = Principal::root();
    assert_eq!(world.takes(&root, "a", "ring=canary", ReaderState::Healthy).await, COUNTED);
    assert_eq!(world.takes(&root, "b", "ring=late", ReaderState::Failed).await, NOTHING, "it is not in");
    assert_eq!(world.takes(&root, "c", "ring=canary", ReaderState::Failed).await, NEWS);
    assert_eq!(world.takes(&root, "c", "ring=canary", ReaderState::Failed).await, COUNTED);
    assert_eq!(world.counts(), (1, 1, 0));
    let shown = world.reports().evidence.shown(&id(), &world.rollout());
    assert_eq!((shown.healthy, shown.failed, shown.failures.len()), (1, 1, 1));
    let failure = &shown.failures[0];
    assert_eq!((&*failure.reader, &*failure.detail), ("c", "no\nstart"));
    assert_eq!(failure.at.0 / 1_000_000, world.node.true_time().0 / 1_000_000);
    assert_eq!(
        world.takes(&root, "a", "", ReaderState::Failed).await,
        NOTHING,
        "with these labels it is not in"
    );
    assert_eq!(world.counts(), (1, 1, 0), "it has no effect");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.counts(), (0, 0, 0));
    world.node.stop().await;
}

#[tokio::test]
async fn two_programs_with_one_name_hide_no_failure_of_each_other() {
    let world = World::rolling().await;
    let root = Principal::root();
    let takes = async |instance: &str, state: ReaderState| {
        let one = ReaderReport { instance: Some(instance.into()), ..report("host", "ring=canary", state) };
        world.reports().report(&root, one).await.unwrap()
    };
    assert_eq!(takes("one", ReaderState::Failed).await, NEWS);
    assert_eq!(takes("two", ReaderState::Healthy).await, COUNTED);
    assert_eq!(world.counts(), (0, 1, 0));
    let other_labels =
        ReaderReport { instance: Some("two".into()), ..report("host", "", ReaderState::Failed) };
    assert_eq!(world.reports().report(&root, other_labels).await, Ok(NOTHING), "it is not in");
    assert_eq!(takes("one", ReaderState::Healthy).await, COUNTED);
    assert_eq!(world.counts(), (1, 0, 0));
    world.node.stop().await;
}

#[tokio::test]
async fn a_reader_reports_of_a_config_outside_rollouts() {
    let world = World::rolling().await;
    let (own, other) =
        (world.reporter("own", Verb::Report, &["d"]), world.reporter("other", Verb::Report, &["e"]));
    let revision = world.state().definition("d").unwrap().config("k").unwrap().revision;
    let failed = || report_of_config("a", revision, ReaderState::Failed);
    assert_eq!(world.reports().report(&own, failed()).await, Ok(NEWS));
    assert_eq!(world.reports().report(&own, failed()).await, Ok(COUNTED));
    let earlier = report_of_config("a", revision - 1, ReaderState::Healthy);
    assert_eq!(world.reports().report(&own, earlier).await, Ok(NOTHING));
    let of_future = report_of_config("b", Revision::MAX, ReaderState::Healthy);
    assert_eq!(world.reports().report(&own, of_future).await, Ok(COUNTED));
    let said = |name: &str| {
        let state = world.state();
        let definition = state.definition("d").unwrap().definition.id;
        let readers = [(name.to_owned(), false)];
        world
            .reports()
            .evidence
            .said((definition, &key("k"), revision), None, &readers)
            .said
            .remove(0)
            .unwrap()
    };
    assert_eq!((said("a").is_failed, said("a").revision), (true, revision));
    assert_eq!(said("b").revision, revision, "there is no later one");
    assert_eq!(world.counts(), (0, 0, 0), "they say nothing of the rollout");
    let denied = world.reports().report(&other, failed()).await;
    assert_eq!(denied, Err(Refusal::Forbidden { verb: Verb::Report }));
    for (definition, config, missing) in [
        ("none", "k", Rejection::DefinitionNotFound),
        ("d", "none", Rejection::ConfigNotFound),
        ("d", "\n", Rejection::ConfigNotFound),
    ] {
        let about = ReportAbout::Config { definition: definition.into(), key: config.into(), revision: 1 };
        let taken = world.reports().report(&Principal::root(), ReaderReport { about, ..failed() }).await;
        assert_eq!(taken, Err(missing.into()), "{definition}/{config}");
    }
    world.node.stop().await;
}

#[tokio::test]
async fn the_readers_of_a_config_have_what_they_say_of_the_data_that_they_see() {
    let world = World::rolling().await;
    let root = Principal::root();
    world.takes(&root, "a", "ring=canary", ReaderState::Failed).await;
    let of = world.state().definition("d").unwrap().config("k").unwrap().revision;
    world.reports().report(&root, report_of_config("a", of, ReaderState::Healthy)).await.unwrap();
    world.reports().report(&root, report_of_config("gone", of, ReaderState::Failed)).await.unwrap();
    let watch = async |reader: Option<&str>| {
        let request = crate::watch::WatchRequest {
            of_change_requests: false,
            definitions: vec!["d".into()],
            configs: vec!["k".into()],
            filters: Vec::new(),
            has_prev: false,
            start: crate::watch::WatchStart::Now,
            consistency: Consistency::LINEARIZABLE,
            reader: reader.map(|labels| Reader::parse("a", labels).unwrap()),
            follows_rollouts: false,
        };
        world.node.service.watches.watch(root.clone(), request).await.unwrap()
    };
    let mut open = [watch(Some("ring=canary")).await, watch(Some("")).await, watch(None).await];
    for one in &mut open {
        one.next().await.unwrap();
    }
    let name = ConfigName { definition: "d", key: "k" };
    let readers = async |by: &Principal| {
        // The threads that put the rows together know no other time.
        tokio::time::resume();
        let found = world.reports().readers(by, name, Consistency::LINEARIZABLE).await;
        tokio::time::pause();
        found
    };
    let all = readers(&root).await.unwrap();
    assert_eq!((all.identified, all.unidentified, all.is_truncated, all.counts), (2, 1, false, Some((1, 1))));
    let rows = all.readers.iter().map(|reader| {
        let said = reader.said.as_ref().unwrap();
        (reader.reader.as_str(), reader.node, reader.variant.as_deref(), said.state, said.revision)
    });
    let expected = [
        ("a", Some(1), Some(CHANGE), ReaderState::Failed, None),
        ("gone", None, None, ReaderState::Failed, Some(of)),
        ("a", Some(1), None, ReaderState::Healthy, Some(of)),
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    let revision = world.state().revision();
    assert!(all.readers.iter().all(|row| row.node.is_none() || row.revision == Some(revision)));
    drop(open);
    assert_eq!(readers(&root).await.unwrap().identified, 0);
    let other = world.reporter("other", Verb::Read, &["e"]);
    assert_eq!(readers(&other).await.unwrap_err(), Refusal::Forbidden { verb: Verb::Read });
    world.node.stop().await;
}

#[tokio::test]
async fn a_node_that_stops_leading_forgets_and_a_new_leader_begins_with_nothing() {
    let world = World::rolling().await;
    let root = Principal::root();
    world.takes(&root, "a", "ring=canary", ReaderState::Healthy).await;
    world.node.fake.lead(Some(2));
    assert_eq!(world.counts(), (0, 0, 0));
    // No other node answers in this test.
    let elsewhere = world.reports().report(&root, report("a", "ring=canary", ReaderState::Healthy)).await;
    assert!(matches!(elsewhere, Err(Refusal::Unavailable(_))), "{elsewhere:?}");
    world.node.fake.lead(Some(1));
    assert_eq!(world.counts(), (0, 0, 0));
    world.takes(&root, "a", "ring=canary", ReaderState::Healthy).await;
    world.node.fake.lead(Some(1));
    assert_eq!(world.counts(), (0, 0, 0), "in a new term, too");
    world.node.stop().await;
}

#[tokio::test]
async fn a_failure_or_a_bad_gate_ends_the_wait_and_nothing_else_does() {
    let world = World::rolling().await;
    let (root, evidence) = (Principal::root(), Arc::clone(&world.reports().evidence));
    let waits = async || timeout(Duration::from_secs(5), evidence.changed()).await.is_ok();
    world.takes(&root, "a", "ring=canary", ReaderState::Healthy).await;
    world.reports().say(&root, word("errors", true)).await.unwrap();
    assert!(!waits().await);
    let begin = Instant::now();
    world.takes(&root, "b", "ring=canary", ReaderState::Failed).await;
    assert!(waits().await && begin.elapsed() < Duration::from_secs(1));
    world.takes(&root, "b", "ring=canary", ReaderState::Failed).await;
    assert!(!waits().await, "it is known");
    world.reports().say(&root, word("errors", false)).await.unwrap();
    assert!(waits().await);
    world.node.stop().await;
}

#[tokio::test]
async fn a_gate_is_good_or_bad_while_its_newest_word_is_fresh() {
    let world = World::rolling().await;
    let root = Principal::root();
    let bad = || world.reports().evidence.bad_gate(&id(), &world.rollout());
    assert_eq!(world.reports().say(&root, word("errors", true)).await, Ok(NEWS));
    assert_eq!(world.reports().say(&root, word("latency", false)).await, Ok(NEWS), "of no plan");
    assert_eq!((world.counts().2, bad()), (1, None));
    assert_eq!(world.reports().say(&root, word("errors", false)).await, Ok(NEWS));
    assert_eq!((world.counts().2, bad()), (0, Some("errors".into())));
    let shown = || world.reports().evidence.shown(&id(), &world.rollout()).gates.remove(0);
    assert_eq!((shown().ok, &*shown().evidence), (Some(false), "0.1 %"));
    sleep(Duration::from_secs(120)).await;
    assert_eq!((world.counts().2, bad()), (0, None), "what is old counts for nothing");
    assert_eq!((shown().ok, shown().at.is_some()), (None, true));
    world.node.stop().await;
}

#[tokio::test]
async fn nobody_ends_the_rollout_of_others_by_the_name_of_their_gate() {
    let world = World::rolling().await;
    let (own, other) =
        (world.reporter("own", Verb::Report, &["d"]), world.reporter("other", Verb::Report, &["e"]));
    let bad = || world.reports().evidence.bad_gate(&id(), &world.rollout());
    world.reports().say(&own, word("errors", true)).await.unwrap();
    world.reports().say(&other, word("errors", false)).await.unwrap();
    assert_eq!((world.counts().2, bad()), (1, None));
    world.reports().say(&own, word("errors", false)).await.unwrap();
    world.reports().say(&other, word("errors", true)).await.unwrap();
    assert_eq!(bad(), Some("errors".into()));
    let revoke = AccessCommand::Revoke { id: KeyId::parse(&own.id).unwrap(), expect: Expect::Any };
    world.decide(Author::Root, Command::Access(revoke));
    assert_eq!((world.counts().2, bad()), (0, None), "a key that was revoked says nothing");
    world.node.stop().await;
}

#[tokio::test]
async fn who_may_not_report_is_told_no_more_than_it_may_know() {
    let world = World::rolling().await;
    let keys = [
        ("report", Verb::Report, "d", Ok(COUNTED)),
        ("approve", Verb::Approve, "d*", Ok(COUNTED)),
        ("else", Verb::Report, "e", Err(Rejection::ChangeNotFound.into())),
        ("write", Verb::Write, "d", Err(Refusal::Forbidden { verb: Verb::Report })),
    ];
    for (name, verb, pattern, expected) in keys {
        let by = world.reporter(name, verb, &[pattern]);
        let taken = world.reports().report(&by, report("a", "ring=canary", ReaderState::Healthy)).await;
        assert_eq!(taken, expected, "{name}");
    }
    let root = Principal::root();
    let mut of_none = report("a", "", ReaderState::Healthy);
    of_none.about = ReportAbout::Rollout("zzzzzzzzzzzz".into());
    assert_eq!(world.reports().report(&root, of_none).await, Err(Rejection::ChangeNotFound.into()));
    world.act(ChangeAction::Withdraw { comment: String::new() });
    let late = world.reports().report(&root, report("a", "ring=canary", ReaderState::Healthy)).await;
    assert_eq!(late, Err(Rejection::RolloutStage.into()));
    world.node.stop().await;
}

#[tokio::test]
async fn what_has_not_its_form_is_rejected() {
    let world = World::rolling().await;
    let root = Principal::root();
    let long = "x".repeat(REPORT_TEXT_BYTES_MAX + 1);
    let good = || report("a", "ring=canary", ReaderState::Healthy);
    for (report, place) in [
        (ReaderReport { reader: String::new(), ..good() }, "reader"),
        (ReaderReport { labels: "ring".into(), ..good() }, "labels"),
        (ReaderReport { detail: long.clone(), ..good() }, "detail"),
        (ReaderReport { detail: "\u{7}".into(), ..good() }, "detail"),
        (ReaderReport { instance: Some(String::new()), ..good() }, "instance"),
        (ReaderReport { instance: Some("a b".into()), ..good() }, "instance"),
        (ReaderReport { instance: Some("x".repeat(INSTANCE_BYTES_MAX + 1)), ..good() }, "instance"),
    ] {
        let refused = world.reports().report(&root, report).await.unwrap_err();
        let Refusal::Invalid(Invalid::Violations(all)) = refused else { panic!("{refused:?}") };
        assert_eq!(all[0].loc, [place.into()]);
    }
    for wrong in [
        word("", true),
        word(&"x".repeat(65), true),
        word("a\nb", true),
        GateWord { evidence: long.clone(), ..word("a", true) },
    ] {
        assert!(matches!(world.reports().say(&root, wrong).await, Err(Refusal::Invalid(_))));
    }
    world.node.stop().await;
}

#[tokio::test]
async fn before_the_level_of_rollouts_nothing_is_reported_and_no_key_gets_the_verb() {
    use crate::request::{AccessWrite, Caller, Write};
    let world = World::old().await;
    let root = Principal::root();
    let needs = Refusal::NotUpgraded { needs: ROLLOUTS, has: 1 };
    let said = world.reports().say(&root, word("errors", true)).await;
    assert_eq!(said, Err(needs.clone()));
    let reported = world.reports().report(&root, report_of_config("a", 1, ReaderState::Failed)).await;
    assert_eq!(reported, Err(needs.clone()));
    let name = ConfigName { definition: "d", key: "k" };
    let readers = world.reports().readers(&root, name, Consistency::LINEARIZABLE).await;
    assert_eq!(readers.unwrap_err(), needs);
    let create = |verb: Verb| {
        let grant = Grant { verbs: [verb].into_iter().collect(), definitions: vec![Pattern::all()] };
        let terms = KeyTerms {
            name: "k".into(),
            grants: Grants(vec![grant]),
            quota: Quota::default(),
            expires_at: None,
        };
        let id = KeyId::parse("abcdefghijkl").unwrap();
        let write = Write::Access(AccessWrite::Create { id, terms, sha256: [1; 32], person: None });
        let caller = Caller { principal: Principal::root(), ..Caller::cluster(None) };
        world.node.service.writes.write(caller, write)
    };
    assert_eq!(create(Verb::Report).await.unwrap_err(), needs);
    world.decide(Author::Cluster, Command::RaiseFeatureLevel { to: ROLLOUTS });
    create(Verb::Report).await.unwrap();
    world.node.stop().await;
}

#[test]
fn what_is_sent_decodes_to_what_was_encoded() {
    for asked in [
        Asked::Report(report("a", "ring=canary", ReaderState::Failed)),
        Asked::Word(word("errors", true)),
        Asked::Show(CHANGE.into()),
        Asked::Report(ReaderReport {
            instance: Some("i".into()),
            ..report_of_config("a", 7, ReaderState::Failed)
        }),
        Asked::ListWatches(7, "k".into()),
        Asked::Said(SaidQuestion {
            definition: 7,
            key: "k".into(),
            change: Some(CHANGE.into()),
            readers: vec![("a".into(), true)],
        }),
    ] {
        let forwarded = Forwarded { by: "root".into(), remaining_ms: 9, asked };
        let body = encode(&forwarded);
        assert_eq!(decode::<Forwarded>(&body).unwrap(), forwarded);
        assert!(decode::<Forwarded>(&body[..body.len() - 1]).is_err());
    }
    let view = EvidenceView { healthy: 1, ..EvidenceView::default() };
    let said = ConfigSaid { healthy: 1, said: vec![None], ..ConfigSaid::default() };
    let answers: [Attempt<Answer>; 5] = [
        Ok(Answer::Reported(NEWS)),
        Ok(Answer::Listed(Box::new(NodeReaders { identified: 1, ..NodeReaders::default() }))),
        Ok(Answer::Said(Box::new(said))),
        Ok(Answer::Shown(Box::new(view))),
        Err(AttemptError::Refused(Rejection::RolloutStage.into())),
    ];
    for answer in answers {
        assert_eq!(decode::<Attempt<Answer>>(&encode(&answer)).unwrap(), answer);
    }
}
