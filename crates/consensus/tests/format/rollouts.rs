//! Rollouts: their records, and what is done to them. All of feature level 2.

use super::{change_id, entry, key, plain, wire};
use concord_model::{
    access_key::{Author, KeyId},
    command::{ChangeAction, Command, Expect, Proposal, RolloutStage, SystemCommand},
    error::{Rejection, RolloutBound, RolloutWait},
    system::{
        SystemBody, SystemRecord,
        change::{ChangeId, Content, NewEdition, Party, Phase, Scope, Timing},
        pace::{Actor, Pace, RolloutPause},
        rollout::{
            Candidate, Evidence, GateRule, LabelValues, OnFail, PassedStage, Plan, Progress, Rollout, Stage,
            StagedEdition,
        },
    },
    time::Timestamp,
};

fn plan(on_fail: OnFail) -> Plan {
    let labels = vec![LabelValues { name: "ring".into(), values: vec!["canary".into()] }];
    Plan {
        stages: vec![Stage { labels, share: 300, for_s: 301, min_healthy: 2 }],
        max_failed: 302,
        gates: vec![GateRule { name: "errors".into(), fresh_s: 303 }],
        on_fail,
        timeout_s: 304,
    }
}

fn candidate() -> Candidate {
    Candidate { definition: 300, key: key("k"), data: "{}".into() }
}

fn evidence() -> Evidence {
    Evidence { healthy: 300, failed: 1, gates: 2 }
}

#[test]
fn plans_and_progress() {
    wire(&plan(OnFail::Abort), "01010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0200b002");
    wire(&plan(OnFail::Pause), "01010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0201b002");
    let passed = |by| PassedStage { at: Timestamp(300), evidence: evidence(), by };
    wire(&passed(Actor::Cluster), "ac02ac02010200");
    wire(&passed(Actor::Root), "ac02ac02010201");
    wire(
        &passed(Actor::Key(KeyId::parse("0123456789aZ").unwrap())),
        "ac02ac020102020c30313233343536373839615a",
    );
}

#[test]
fn records_of_rollouts() {
    let record = |rollout| SystemRecord {
        name: key("aaaaaaaaaaaa"),
        body: SystemBody::Rollout(Box::new(rollout)),
        text: "{}".into(),
        created_at: Timestamp(100),
        modified_at: Timestamp(200),
        revision: 300,
    };
    let planned = Rollout::planned(2, plan(OnFail::Abort));
    wire(
        &record(planned.clone()),
        "0c616161616161616161616161040201010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0200b0020000027b7d64c801ac02",
    );
    let (at, by) = (Timestamp(301), Actor::Root);
    let paused = Some(RolloutPause { at, by: by.clone(), comment: "no".into() });
    let passed = vec![PassedStage { at, evidence: evidence(), by }];
    let progress = Some(Progress { begun_at: Timestamp(300), passed });
    wire(
        &record(Rollout { progress, candidates: vec![candidate()], ..planned }),
        "0c616161616161616161616161040201010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0200b00201ac0201ad02ac0201020101ac02016b027b7d027b7d64c801ac02",
    );
    let pace = Pace { since: at, by: Actor::Root, paused };
    wire(
        &Phase::Rolling { by: Some(Party::Root), at, scheduled_by: None, pace },
        "050100ad0200ad020101ad0201026e6f",
    );
}

#[test]
fn actions_on_rollouts() {
    let command = |action| Command::System(SystemCommand::Change { id: change_id(), action });
    let act = |action, expected: &str| entry(&plain(command(action)), expected);
    let edition = || {
        let edition = NewEdition {
            digest: [7; 32],
            scope: Scope::Definitions(vec![key("a")]),
            text: "{}".into(),
            operations: "[]".into(),
            content: Content::new(Vec::new(), [9; 32]),
            timing: Timing::default(),
        };
        Box::new(StagedEdition { edition, plan: plan(OnFail::Pause) })
    };
    act(
        ChangeAction::CreateStaged(edition()),
        "02e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616108070707070707070707070707070707070707070707070707070707070707070700010161027b7d025b5d0009090909090909090909090909090909090909090909090909090909090909090000000001010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0201b00200",
    );
    act(
        ChangeAction::EditStaged { after: 300, expect: Expect::At(301), edition: edition() },
        "02e4e0f4e586ee900304726f6f7400000012020c61616161616161616161616109ac0203ad02070707070707070707070707070707070707070707070707070707070707070700010161027b7d025b5d0009090909090909090909090909090909090909090909090909090909090909090000000001010472696e67010663616e617279ac02ad0202ae0201066572726f7273af0201b00200",
    );
    let candidates = vec![candidate()];
    act(
        ChangeAction::BeginRollout { edition: 300, digest: [7; 32], candidates },
        "02e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610aac02070707070707070707070707070707070707070707070707070707070707070701ac02016b027b7d00",
    );
    let at = RolloutStage { edition: 300, passed: 1, since: Timestamp(301) };
    act(
        ChangeAction::PauseRollout { at, comment: "no".into() },
        "02e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610cac0201ad02026e6f00",
    );
    act(
        ChangeAction::ResumeRollout { at },
        "02e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610dac0201ad0200",
    );
    let advance = command(ChangeAction::AdvanceRollout { at, evidence: evidence() });
    entry(
        &Proposal { author: Author::Cluster, ..plain(advance) },
        "02e4e0f4e586ee900304726f6f7400000012020c6161616161616161616161610bac0201ad02ac02010202",
    );
}

#[test]
fn rejections_of_rollouts() {
    let change = ChangeId::parse("aaaaaaaaaaaa").unwrap();
    wire(&Rejection::RolloutActive { change }, "2d0c616161616161616161616161");
    for (bound, expected) in [
        (RolloutBound::Stages, "2e00"),
        (RolloutBound::EmptyStage, "2e01"),
        (RolloutBound::Time, "2e02"),
        (RolloutBound::Labels, "2e03"),
        (RolloutBound::Gates, "2e04"),
        (RolloutBound::Configs, "2e05"),
        (RolloutBound::Bytes, "2e06"),
        (RolloutBound::Readers, "2e08"),
        (RolloutBound::NotUpdates, "2e07"),
    ] {
        wire(&Rejection::RolloutInvalid(bound), expected);
    }
    wire(&Rejection::TooManyRollouts, "2f");
    wire(&Rejection::RolloutStage, "30");
    for (wait, expected) in [
        (RolloutWait::Time(Timestamp(300)), "3100ac02"),
        (RolloutWait::Evidence, "3101"),
        (RolloutWait::Paused, "3102"),
    ] {
        wire(&Rejection::RolloutWaits(wait), expected);
    }
}
