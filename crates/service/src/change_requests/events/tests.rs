//! Events of change requests: what each says, and who sees it.

use std::sync::Arc;

use super::*;
use crate::testing;
use concord_model::{
    access_key::{KeyId, Verb},
    key::Key,
    system::{
        SystemBody,
        change::{AppliedWith, CloseReason, Edition, Failure, Scope, Timing, Vote},
        environment::EnvironmentName,
    },
    time::Timestamp,
};

fn definitions(keys: &[&str]) -> Scope {
    Scope::Definitions(keys.iter().map(|key| Key::parse(key).unwrap()).collect())
}

fn of(id: &str) -> Party {
    Party::Key { id: KeyId::parse(id).unwrap(), person: None }
}

fn open(scope: Scope) -> Change {
    let edition = Edition {
        number: 1,
        digest: [7; 32],
        scope,
        sender: of("aaaaaaaaaaaa"),
        is_attested: true,
        sent_at: Timestamp(1),
        content_bytes: 1,
        timing: Timing::default(),
    };
    let authors = vec![edition.sender.clone()];
    Change { edition, authors, votes: Vec::new(), phase: Phase::Open, fingerprint: None, revert: None }
}

fn record(change: &Change) -> Arc<SystemRecord> {
    Arc::new(SystemRecord {
        name: Key::parse("changechange").unwrap(),
        body: SystemBody::Change(Box::new(change.clone())),
        text: r#"{"title":"a title","description":""}"#.into(),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
    })
}

fn with_vote(change: &Change, opinion: Opinion) -> Change {
    let mut after = change.clone();
    after.votes.push(Vote {
        opinion,
        edition: change.edition.number,
        digest: change.edition.digest,
        by: of("bbbbbbbbbbbb"),
        attestation: 1,
        is_redacted: false,
        comment: "because".into(),
        at: Timestamp(2),
    });
    after
}

fn edited(change: &Change, scope: Scope) -> Change {
    let mut after = Change { votes: Vec::new(), phase: Phase::Open, ..change.clone() };
    (after.edition.number, after.edition.scope) = (change.edition.number + 1, scope);
    after.edition.sender = of("cccccccccccc");
    after
}

fn seen_by(
    principal: &Principal,
    before: Option<&Change>,
    after: Option<&Change>,
) -> Option<ChangeRequestEvent> {
    let edit = ChangeRequestEdit { before: before.map(record), after: after.map(record), rollout: None };
    let event = Event::new(9, Timestamp(9), ("root", None), Vec::new(), vec![edit]).unwrap();
    let mut seen = events(&State::new(), principal, &event);
    assert!(seen.len() <= 1);
    seen.pop()
}

#[test]
fn an_event_says_what_happened_and_by_whom() {
    let one = open(definitions(&["prod.a"]));
    let closed = |reason, by| Phase::Closed { reason, at: Timestamp(3), by, comment: "no longer".to_owned() };
    let with = |phase: Phase| Change { phase, ..one.clone() };
    let applied = |with| Phase::Applied {
        revision: 9,
        at: Timestamp(3),
        by: Some(of("dddddddddddd")),
        with,
        scheduled_by: None,
    };
    let [a, b, c, d] = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc", "dddddddddddd"].map(Some);
    let held = with(Phase::Held);
    let approved = with_vote(&one, Opinion::Approval);
    let bypass = with(applied(AppliedWith::Bypass));
    let failure = || Failure { code: "change_stale".into(), text: "it is stale".into() };
    let with_revert =
        |revert| Change { revert: Some(revert), ..with(applied(AppliedWith::Approvals(Vec::new()))) };
    let armed = with_revert(Revert::Armed { due: Timestamp(9), bytes: 1 });
    let reverted = |by| with_revert(Revert::Done { revision: 10, at: Timestamp(4), by });
    let by_bypass = RevertedBy::Bypass { by: of("cccccccccccc"), is_attested: true };
    let cases = [
        (None, one.clone(), "created", a, "", None),
        (None, bypass.clone(), "bypassed", a, "", None),
        (Some(&one), edited(&one, definitions(&["prod.b"])), "edited", c, "", None),
        (Some(&held), edited(&held, definitions(&["prod.a"])), "edited", c, "", None),
        (Some(&one), approved.clone(), "approved", b, "because", None),
        (Some(&one), with_vote(&one, Opinion::Rejection), "rejected", b, "because", None),
        (Some(&approved), with_vote(&one, Opinion::Rejection), "rejected", b, "because", None),
        (Some(&bypass), with_vote(&bypass, Opinion::Review), "reviewed", b, "because", None),
        (Some(&one), with(applied(AppliedWith::Approvals(Vec::new()))), "applied", d, "", None),
        (Some(&one), with(Phase::Held), "held", None, "", None),
        (
            Some(&one),
            with(closed(CloseReason::Withdrawn, Some(of("bbbbbbbbbbbb")))),
            "closed",
            b,
            "no longer",
            Some("withdrawn"),
        ),
        (Some(&one), with(closed(CloseReason::Expired, None)), "closed", None, "no longer", Some("expired")),
        (
            Some(&one),
            with(closed(CloseReason::Failed(failure()), None)),
            "closed",
            None,
            "it is stale",
            Some("failed"),
        ),
        (
            Some(&one),
            with(Phase::Scheduled { by: of("dddddddddddd"), at: Timestamp(3) }),
            "scheduled",
            d,
            "",
            None,
        ),
        (Some(&armed), reverted(RevertedBy::Cluster), "reverted", None, "", None),
        (Some(&armed), reverted(RevertedBy::Approver(of("bbbbbbbbbbbb"))), "reverted", b, "", None),
        (Some(&armed), reverted(by_bypass), "reverted", c, "", None),
        (
            Some(&armed),
            with_revert(Revert::Failed { at: Timestamp(4), failure: failure() }),
            "revert_failed",
            None,
            "it is stale",
            None,
        ),
        (Some(&armed), with_revert(Revert::Held { due: Timestamp(9), bytes: 1 }), "held", None, "", None),
    ];
    for (before, after, kind, by, comment, reason) in cases {
        let seen = seen_by(&Principal::root(), before, Some(&after)).unwrap();
        assert_eq!((seen.kind, seen.id.as_str()), (&*format!("change_request_{kind}"), "changechange"));
        let then = seen.change.unwrap();
        let who = then.by.as_ref().map(|party| party.key.as_str());
        assert_eq!((who, then.comment.as_str(), then.reason), (by, comment, reason), "{kind}");
        assert_eq!((then.title.as_str(), &then.environments[..]), ("a title", &["default".to_owned()][..]));
        assert_eq!((then.edition, then.is_bypass), (after.edition.number, after.is_bypass()), "{kind}");
    }
    let dropped = seen_by(&Principal::root(), Some(&bypass), None).unwrap();
    assert_eq!((dropped.kind, dropped.change), ("change_request_dropped", None));
}

#[test]
fn a_client_sees_those_of_which_it_may_read_all_and_the_end_of_those_that_leave() {
    let reader = testing::key(&[(&[Verb::Read], &["prod.*"])]);
    let (own, both) = (open(definitions(&["prod.a", "prod.b"])), open(definitions(&["prod.a", "team.b"])));
    let others = open(definitions(&["team.b"]));
    let is_shown = |before: Option<&Change>, after: Option<&Change>| {
        seen_by(&reader, before, after).map(|event| (event.kind, event.change.is_some()))
    };
    assert_eq!(is_shown(None, Some(&own)), Some(("change_request_created", true)));
    for hidden in [&both, &others] {
        assert_eq!(is_shown(None, Some(hidden)), None);
        assert_eq!(is_shown(Some(hidden), Some(&with_vote(hidden, Opinion::Approval))), None);
        assert_eq!(is_shown(Some(hidden), None), None);
    }
    let left = edited(&own, definitions(&["prod.a", "team.b"]));
    assert_eq!(is_shown(Some(&own), Some(&left)), Some(("change_request_hidden", false)));
    assert_eq!(is_shown(Some(&left), Some(&with_vote(&left, Opinion::Approval))), None, "once");
    let back = edited(&left, definitions(&["prod.a"]));
    assert_eq!(is_shown(Some(&left), Some(&back)), Some(("change_request_edited", true)));
    assert_eq!(is_shown(Some(&own), None), Some(("change_request_dropped", false)));
    let rules = |name: &str| open(Scope::Environment(EnvironmentName::parse(name).unwrap()));
    assert!(is_shown(None, Some(&rules("prod"))).is_some() && is_shown(None, Some(&rules("team"))).is_none());
}

#[test]
fn what_an_entry_changes_by_the_way_tells_nothing_of_its_author() {
    let one = open(definitions(&["prod.a"]));
    let is_of_its_author = |before: Option<&Change>, after: Option<&Change>| {
        seen_by(&Principal::root(), before, after).unwrap().is_of_its_author()
    };
    assert!(is_of_its_author(None, Some(&one)));
    assert!(is_of_its_author(Some(&one), Some(&with_vote(&one, Opinion::Approval))));
    assert!(!is_of_its_author(Some(&one), None), "it is dropped because there are too many");
    assert!(!is_of_its_author(Some(&with_vote(&one, Opinion::Rejection)), Some(&one)));
}

#[test]
fn that_something_can_no_longer_be_taken_back_is_no_event() {
    let mut by_hand = open(definitions(&["prod.a"]));
    by_hand.phase = Phase::Applied {
        revision: 9,
        at: Timestamp(3),
        by: None,
        with: AppliedWith::Approvals(Vec::new()),
        scheduled_by: None,
    };
    by_hand.revert = Some(Revert::ByHand { until: Timestamp(9), bytes: 1 });
    let over = Change { revert: None, ..by_hand.clone() };
    assert_eq!(seen_by(&Principal::root(), Some(&by_hand), Some(&over)), None);
}
