//! Change requests: their records, what is done to them, and where proposals come from.

use super::{change_id, entry, key, plain, wire};
use concord_model::{
    access_key::{Author, KeyId},
    command::{
        ChangeAction, Command, Expect, Proposal, SystemCommand,
        source::{Bypass, ChangeUse, DefinitionThen, Guard, RevertUse, Source, Tail},
    },
    error::{ChangeBound, ChangeQuota, NotDue, NotRevertible, Rejection},
    system::{
        SystemBody, SystemRecord,
        change::{
            AppliedWith, ApplyMode, Change, CloseReason, Content, DataBefore, Edition, Failure, NewEdition,
            NewVote, Opinion, Party, Phase, Revert, RevertedBy, Scope, Timing, Vote, Window,
        },
        environment::EnvironmentName,
        person::PersonId,
    },
    time::Timestamp,
};

#[test]
fn tails_of_proposals() {
    let plain_bytes = "01e4e0f4e586ee900304726f6f74000000040164016b0000";
    let delete = || Command::DeleteConfig { definition: key("d"), key: key("k"), expect: Expect::Any };
    entry(&plain(delete()), plain_bytes);
    let with = |source, guards, tail: &str| {
        let proposal = Proposal { tail: Tail::of(source, guards), ..plain(delete()) };
        entry(&proposal, &format!("{plain_bytes}{tail}"));
    };
    let change = ChangeUse { id: change_id(), edition: 300, digest: [7; 32] };
    let bypass = Bypass { id: change_id(), digest: [8; 32], text: "{}".into() };
    with(
        Source::Change(change),
        vec![],
        "010c616161616161616161616161ac02070707070707070707070707070707070707070707070707070707070707070700",
    );
    with(
        Source::Bypass(Box::new(bypass)),
        vec![],
        "020c6161616161616161616161610808080808080808080808080808080808080808080808080808080808080808027b7d00",
    );
    with(
        Source::Revert(RevertUse { id: change_id(), edition: 300, is_bypass: true }),
        vec![],
        "030c616161616161616161616161ac020100",
    );
    let was = DefinitionThen { id: 301, revision: 302 };
    for (guard, expected) in [
        (Guard::Config { definition: 300, key: key("k"), revision: Some(301) }, "00ac02016b01ad02"),
        (Guard::Config { definition: 300, key: key("k"), revision: None }, "00ac02016b00"),
        (Guard::Definition { key: key("d"), was: Some(was) }, "01016401ad02ae02"),
        (Guard::Definition { key: key("d"), was: None }, "01016400"),
        (Guard::Configs { definition: 300, newest: 301, count: 2 }, "02ac02ad0202"),
        (
            Guard::AccessKey { id: KeyId::parse("0123456789aZ").unwrap(), revision: 300 },
            "030c30313233343536373839615aac02",
        ),
        (Guard::Environment { name: key("prod"), revision: Some(300) }, "040470726f6401ac02"),
        (Guard::Environment { name: key("prod"), revision: None }, "040470726f6400"),
    ] {
        with(Source::Direct, vec![guard], &format!("0001{expected}"));
    }
}

fn some_definitions() -> Scope {
    Scope::Definitions(vec![key("a"), key("b")])
}

fn some_environment() -> Scope {
    Scope::Environment(EnvironmentName::parse("prod").unwrap())
}

fn some_content() -> Content {
    let base = Guard::Environment { name: key("e"), revision: None };
    Content::new(vec![base], [9; 32])
}

fn some_party() -> Party {
    Party::Key { id: KeyId::parse("0123456789aZ").unwrap(), person: Some(PersonId(300)) }
}

#[test]
fn actions_on_change_requests() {
    let act = |action| plain(Command::System(SystemCommand::Change { id: change_id(), action }));
    let edition = |scope| {
        Box::new(NewEdition {
            digest: [7; 32],
            scope,
            text: "{}".into(),
            operations: "[]".into(),
            content: some_content(),
            timing: Timing::default(),
        })
    };
    entry(
        &act(ChangeAction::Create(edition(some_definitions()))),
        "01e4e0f4e586ee900304726f6f7400000012020c616161616161616161616161000707070707070707070707070707070707070707070707070707070707070707000201610162027b7d025b5d010401650009090909090909090909090909090909090909090909090909090909090909090000000000",
    );
    let edit =
        ChangeAction::Edit { after: 300, expect: Expect::At(301), edition: edition(some_environment()) };
    entry(
        &act(edit),
        "01e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616101ac0203ad020707070707070707070707070707070707070707070707070707070707070707010470726f64027b7d025b5d010401650009090909090909090909090909090909090909090909090909090909090909090000000000",
    );
    let vote = |opinion| {
        let comment = "ok".into();
        ChangeAction::Vote(Box::new(NewVote {
            opinion,
            edition: 300,
            digest: [7; 32],
            is_redacted: true,
            comment,
        }))
    };
    for (opinion, expected) in [
        (
            Opinion::Approval,
            "01e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610200ac02070707070707070707070707070707070707070707070707070707070707070701026f6b00",
        ),
        (
            Opinion::Rejection,
            "01e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610201ac02070707070707070707070707070707070707070707070707070707070707070701026f6b00",
        ),
        (
            Opinion::Review,
            "01e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610202ac02070707070707070707070707070707070707070707070707070707070707070701026f6b00",
        ),
    ] {
        entry(&act(vote(opinion)), expected);
    }
    entry(
        &act(ChangeAction::Withdraw { comment: "no".into() }),
        "01e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616103026e6f00",
    );
    entry(
        &act(ChangeAction::Schedule { edition: 300, digest: [7; 32] }),
        "01e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616104ac02070707070707070707070707070707070707070707070707070707070707070700",
    );
    entry(
        &act(ChangeAction::Keep { edition: 300, digest: [7; 32], comment: "no".into() }),
        "01e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616107ac020707070707070707070707070707070707070707070707070707070707070707026e6f00",
    );
    let of_cluster = |command| Proposal { author: Author::Cluster, ..plain(Command::System(command)) };
    let failure = || Failure { code: "c".into(), text: "t".into() };
    let (id, edition) = (change_id(), 300);
    let action = ChangeAction::Fail { edition, failure: failure() };
    entry(
        &of_cluster(SystemCommand::Change { id: id.clone(), action }),
        "01e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616105ac020163017402",
    );
    let action = ChangeAction::FailRevert { edition, failure: failure() };
    entry(
        &of_cluster(SystemCommand::Change { id, action }),
        "01e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616106ac020163017402",
    );
    entry(
        &of_cluster(SystemCommand::SweepChanges { now: Timestamp(300) }),
        "01e4e0f4e586ee900304726f6f740000001203ac0202",
    );
    entry(&of_cluster(SystemCommand::HoldChanges), "01e4e0f4e586ee900304726f6f74000000120402");
}

#[test]
fn records_of_change_requests() {
    let record = |name: &str, body, text: &str| SystemRecord {
        name: key(name),
        body,
        text: text.into(),
        created_at: Timestamp(100),
        modified_at: Timestamp(200),
        revision: 300,
    };
    wire(
        &record("aaaaaaaaaaaa-1", SystemBody::Content(some_content()), "[]"),
        "0e6161616161616161616161612d31020104016500090909090909090909090909090909090909090909090909090909090909090900025b5d64c801ac02",
    );
    let by = some_party();
    let vote = Vote {
        opinion: Opinion::Rejection,
        edition: 2,
        digest: [7; 32],
        by,
        attestation: 300,
        is_redacted: false,
        comment: "ok".into(),
        at: Timestamp(400),
    };
    let change = |phase, scope| Change {
        edition: Edition {
            number: 2,
            digest: [7; 32],
            scope,
            sender: Party::Root,
            is_attested: false,
            sent_at: Timestamp(300),
            content_bytes: 301,
            timing: Timing::default(),
        },
        authors: vec![Party::Root, some_party()],
        votes: vec![vote.clone()],
        phase,
        revert: None,
        fingerprint: Some([3; 16]),
    };
    let stored =
        |phase, scope| record("aaaaaaaaaaaa", SystemBody::Change(Box::new(change(phase, scope))), "{}");
    wire(
        &stored(Phase::Open, some_definitions()),
        "0c616161616161616161616161010207070707070707070707070707070707070707070707070707070707070707070002016101620000ac02ad020000000200010c30313233343536373839615a01ac020101020707070707070707070707070707070707070707070707070707070707070707010c30313233343536373839615a01ac02ac0200026f6b900300000103030303030303030303030303030303027b7d64c801ac02",
    );
    wire(
        &stored(Phase::Held, some_environment()),
        "0c61616161616161616161616101020707070707070707070707070707070707070707070707070707070707070707010470726f640000ac02ad020000000200010c30313233343536373839615a01ac020101020707070707070707070707070707070707070707070707070707070707070707010c30313233343536373839615a01ac02ac0200026f6b900301000103030303030303030303030303030303027b7d64c801ac02",
    );
}

#[test]
fn times_of_change_requests() {
    let window = Some(Window { not_before: Timestamp(300), not_after: Timestamp(301) });
    wire(&Timing::default(), "000000");
    let timing = Timing { apply: ApplyMode::WhenApproved, window, revert_after_s: Some(302) };
    wire(&timing, "0101ac02ad0201ae02");
    let base = Guard::Config { definition: 300, key: key("k"), revision: Some(301) };
    let data = Some(DataBefore { data: "{}".into() });
    let content = Content { bases: vec![base.clone(), base], digest_key: [0; 32], before: vec![data, None] };
    wire(
        &content,
        "0200ac02016b01ad0200ac02016b01ad0200000000000000000000000000000000000000000000000000000000000000000201027b7d00",
    );
    let (due, at) = (Timestamp(300), Timestamp(301));
    let failure = || Failure { code: "c".into(), text: "t".into() };
    let done = |by| Revert::Done { revision: 300, at, by };
    for (revert, expected) in [
        (Revert::ByHand { until: due, bytes: 302 }, "00ac02ae02"),
        (Revert::Armed { due, bytes: 302 }, "01ac02ae02"),
        (Revert::Held { due, bytes: 302 }, "02ac02ae02"),
        (done(RevertedBy::Cluster), "03ac02ad0200"),
        (done(RevertedBy::Approver(Party::Root)), "03ac02ad020100"),
        (done(RevertedBy::Bypass { by: Party::Root, is_attested: true }), "03ac02ad02020001"),
        (Revert::Failed { at, failure: failure() }, "04ad0201630174"),
        (Revert::Ended { at, by: Party::Root, comment: "no".into() }, "05ad0200026e6f"),
    ] {
        wire(&revert, expected);
    }
    let reason = CloseReason::Failed(failure());
    for (phase, expected) in [
        (Phase::Scheduled { by: Party::Root, at }, "0400ad02"),
        (Phase::Closed { reason, at, by: None, comment: String::new() }, "030301630174ad020000"),
    ] {
        wire(&phase, expected);
    }
}

#[test]
fn phases_of_change_requests() {
    let by = some_party();
    let applied = |with| Phase::Applied {
        revision: 300,
        at: Timestamp(301),
        by: Some(Party::Root),
        with,
        scheduled_by: None,
    };
    for (phase, expected) in [
        (Phase::Open, "00"),
        (Phase::Held, "01"),
        (
            applied(AppliedWith::Approvals(vec![by.clone()])),
            "02ac02ad0201000001010c30313233343536373839615a01ac0200",
        ),
        (applied(AppliedWith::Bypass), "02ac02ad0201000100"),
        (
            Phase::Closed {
                reason: CloseReason::Withdrawn,
                at: Timestamp(300),
                by: Some(by.clone()),
                comment: "no".into(),
            },
            "0300ac0201010c30313233343536373839615a01ac02026e6f",
        ),
        (
            Phase::Closed {
                reason: CloseReason::Expired,
                at: Timestamp(300),
                by: None,
                comment: String::new(),
            },
            "0301ac020000",
        ),
        (
            Phase::Closed {
                reason: CloseReason::Restored,
                at: Timestamp(300),
                by: None,
                comment: String::new(),
            },
            "0302ac020000",
        ),
    ] {
        wire(&phase, expected);
    }
}

#[test]
fn rejections_of_change_requests() {
    for (rejection, expected) in [
        (Rejection::ChangeNotFound, "1d"),
        (Rejection::ChangeExists, "1e"),
        (Rejection::ChangeClosed, "1f"),
        (Rejection::ChangeHeld, "20"),
        (Rejection::ChangeDigest, "21"),
        (Rejection::NotApproved { needed: 2, counted: 1 }, "220201"),
        (Rejection::EditionRejected, "23"),
        (Rejection::OwnChange, "24"),
        (Rejection::TooManyChanges(ChangeQuota::OfParty), "2500"),
        (Rejection::TooManyChanges(ChangeQuota::BytesOfParty), "2501"),
        (Rejection::TooManyChanges(ChangeQuota::OfEnvironment), "2502"),
        (Rejection::TooManyChanges(ChangeQuota::Unreviewed), "2503"),
        (Rejection::ChangesFull, "26"),
        (Rejection::ChangeTooLarge(ChangeBound::Definitions), "2700"),
        (Rejection::ChangeTooLarge(ChangeBound::Content), "2701"),
        (Rejection::ChangeTooLarge(ChangeBound::Bases), "2702"),
        (Rejection::ChangeTooLarge(ChangeBound::Authors), "2703"),
        (Rejection::ChangeTooLarge(ChangeBound::Votes), "2704"),
        (Rejection::ChangeTooLarge(ChangeBound::Record), "2705"),
        (Rejection::ChangeTooLarge(ChangeBound::Schedule), "2706"),
        (Rejection::ChangeTooLarge(ChangeBound::RevertAfter), "2707"),
        (Rejection::ChangeNotDue(NotDue::Before(Timestamp(300))), "2800ac02"),
        (Rejection::ChangeNotDue(NotDue::After(Timestamp(300))), "2801ac02"),
        (Rejection::ChangeNotDue(NotDue::NoSchedule), "2802"),
        (Rejection::NotRevertible(NotRevertible::NotOfConfigs), "2900"),
        (Rejection::NotRevertible(NotRevertible::TooLarge), "2901"),
        (Rejection::NotRevertible(NotRevertible::Over), "2902"),
        (Rejection::NotApprover, "2a"),
        (Rejection::SenderEnded, "2b"),
        (Rejection::NotRevertible(NotRevertible::NotApplied), "2903"),
        (Rejection::NotRevertible(NotRevertible::NotArmed), "2904"),
        (Rejection::FreezeLeft { environment: key("prod"), until: Timestamp(300) }, "2c0470726f64ac02"),
    ] {
        wire(&rejection, expected);
    }
}
