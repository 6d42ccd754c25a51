//! Which command may change what, by its source: every kind of command, alone, as a step and in a transaction.

use super::*;
use concord_model::{command::source::RevertUse, system::change::Window};

/// Change requests of the world: what each touches, and whether it is approved.
const CONTENT: u64 = 1;
const UNAPPROVED: u64 = 2;
const RULES: u64 = 3;
const ELSEWHERE: u64 = 4;
/// As [`CONTENT`], and left to the cluster.
const SCHEDULED: u64 = 5;
/// Applied, and due to be taken back by the cluster.
const ARMED: u64 = 6;

/// What the rules of a situation mean for `prod`.
struct Judged {
    /// Whether `prod` has a record of its own.
    has_own: bool,
    /// Whether an approval is needed.
    asks: bool,
    is_frozen: Option<Rejection>,
}

impl Judged {
    fn of(situation: &Situation) -> Self {
        let rules = |wanted: &str| situation.records.iter().find(|(name, _)| *name == wanted);
        let has_own = rules("prod").is_some();
        let judged = rules("prod").or_else(|| rules("default"));
        let asks = judged.is_some_and(|(_, rules)| rules.approvals > 0);
        let is_frozen = judged.and_then(|(name, rules)| {
            let until = rules.frozen_until(Timestamp(NOW), Timestamp(NOW))?;
            Some(Rejection::EnvironmentFrozen { environment: key(name), until })
        });
        Self { has_own, asks, is_frozen }
    }

    /// Why a change request may not apply a command, by what the command changes.
    fn rejects(&self, number: u64, changes: Changes) -> Option<Rejection> {
        let other = Some(Rejection::ChangeDigest);
        match (number, changes) {
            (UNAPPROVED, Changes::Content) if self.asks => Some(not_approved(1, 0)),
            (CONTENT | UNAPPROVED | SCHEDULED, Changes::Content) => self.is_frozen.clone(),
            // A record that leaves the rules of `default` keeps no freeze of it.
            (RULES, Changes::Rules) if !self.has_own => self.is_frozen.clone(),
            (RULES, Changes::Rules) => None,
            _ => other,
        }
    }
}

/// A world in a situation, with the change requests.
fn world_in(situation: &Situation) -> ChangeWorld {
    let of_world = ["dev.d", "prod.d", "prod.gone", "prod.new"];
    let mut world = ChangeWorld::new();
    for (number, scope) in [
        (CONTENT, edition_of(1, &of_world)),
        (UNAPPROVED, edition_of(1, &of_world)),
        (RULES, NewEdition { scope: rules_of("prod"), ..edition(1) }),
        (ELSEWHERE, edition_of(1, &["dev.d"])),
    ] {
        world.act("ann", number, ChangeAction::Create(scope.into())).unwrap();
        if number != UNAPPROVED {
            world.approve("bob", number);
        }
    }
    let window = Some(Window { not_before: Timestamp(0), not_after: Timestamp(NOW + HOUR) });
    let timing = Timing { window, ..Timing::default() };
    let sent = NewEdition { timing, ..edition_of(1, &of_world) };
    world.act("ann", SCHEDULED, ChangeAction::Create(sent.into())).unwrap();
    world.approve("bob", SCHEDULED);
    let schedule = ChangeAction::Schedule { edition: 1, digest: [1; 32] };
    world.act("dan", SCHEDULED, schedule).unwrap();
    let timing = Timing { revert_after_s: Some(1), ..Timing::default() };
    let definition = world.state.definition("dev.d").unwrap().definition.id;
    let bases = vec![Guard::Config { definition, key: key("armed"), revision: None }];
    let sent = NewEdition { timing, content: Content::new(bases, [9; 32]), ..edition_of(1, &["dev.d"]) };
    world.act("ann", ARMED, ChangeAction::Create(sent.into())).unwrap();
    world.approve("bob", ARMED);
    let proposal = world.with_change("dan", ARMED, write("dev.d", "armed"));
    world.decide(&proposal).unwrap();
    // At a time when no freeze has begun.
    world.at = 2 * SECOND;
    for (name, environment) in &situation.records {
        let proposal = world.proposal("root", put(name, environment.clone()));
        world.state.apply(world.state.revision() + 1, &proposal);
    }
    world.at = NOW + 2 * SECOND;
    world
}

/// The command alone, and after another step.
fn forms(world: &ChangeWorld, command: &Command, changes: Changes) -> Vec<Command> {
    let mut forms = vec![command.clone()];
    let other = || step(write("dev.d", "other"));
    let batch = Command::Batch(vec![other(), step(command.clone())]);
    let may_be_step = Proposal::from_bytes(&world.proposal("root", batch.clone()).to_bytes()).is_ok();
    if may_be_step && changes != Changes::Nothing {
        let steps = vec![(3, other()), (7, step(command.clone()))];
        forms.push(batch);
        forms.push(Command::Transaction(Transaction { reads: Vec::new(), chosen: Ok(true), steps }));
    }
    forms
}

/// None of the commands is what takes the armed change request back.
fn expect_no_revert(world: &ChangeWorld, who: &str, form: &Command) {
    for is_bypass in [false, true] {
        let expected = match (who, is_bypass) {
            ("cluster", true) => Rejection::Unauthored,
            ("cluster", false) | (_, true) => Rejection::ChangeDigest,
            (_, false) => Rejection::KeyNotAttested,
        };
        let of = RevertUse { id: id(ARMED), edition: 1, is_bypass };
        let tail = Tail::of(Source::Revert(of), Vec::new());
        let proposal = Proposal { tail, ..world.proposal(who, form.clone()) };
        expect_verdict(&world.state, &proposal, Some(&expected));
    }
}

#[test]
fn every_command_is_judged_by_its_source_in_every_environment() {
    let table = table(&ChangeWorld::new().state);
    let of_dev = Command::Batch(vec![step(write("dev.d", "k"))]);
    let mut seen = [0; KINDS];
    for situation in situations() {
        let (world, judged) = (world_in(&situation), Judged::of(&situation));
        for (command, changes) in &table {
            seen[kind(command)] += 1;
            // A batch of another environment is the content of that one.
            let changes = if *command == of_dev { Changes::Content } else { *changes };
            for form in forms(&world, command, changes) {
                for who in ["root", "bot", "cluster"] {
                    for number in [CONTENT, UNAPPROVED, RULES, ELSEWHERE, SCHEDULED] {
                        let is_elsewhere = number == ELSEWHERE && *command == of_dev;
                        let expected = if is_elsewhere { None } else { judged.rejects(number, changes) };
                        let is_other = expected == Some(Rejection::ChangeDigest);
                        let expected = if who == "cluster" && number != SCHEDULED && !is_other {
                            Some(Rejection::Unauthored)
                        } else {
                            expected
                        };
                        let proposal = world.with_change(who, number, form.clone());
                        expect_verdict(&world.state, &proposal, expected.as_ref());
                    }
                    expect_no_revert(&world, who, &form);
                    let is_own = form.is_of_the_cluster();
                    let expected = match (changes, who) {
                        (_, "cluster") if !is_own => Some(Rejection::Unauthored),
                        (Changes::Nothing, _) => Some(Rejection::ChangeDigest),
                        (Changes::Content, _) | (Changes::Rules, "root") => None,
                        (Changes::Rules, _) => Some(Rejection::ChangeRequired { environment: key("prod") }),
                    };
                    let proposal = world.with_bypass(who, 77, form.clone());
                    expect_verdict(&world.state, &proposal, expected.as_ref());
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn a_revert_passes_the_rules_of_every_environment() {
    for situation in situations() {
        let world = world_in(&situation);
        let delete =
            Command::DeleteConfig { definition: key("dev.d"), key: key("armed"), expect: Expect::Any };
        for (who, is_bypass) in [("cluster", false), ("bob", false), ("bot", true)] {
            let source = Source::Revert(RevertUse { id: id(ARMED), edition: 1, is_bypass });
            let tail = Tail::of(source, Vec::new());
            let mut world = ChangeWorld { state: world.state.clone(), at: world.at };
            world.rules("dev", Environment { freezes: frozen(NOW, NOW + HOUR).freezes, ..refusing() });
            let proposal = Proposal { tail, ..world.proposal(who, delete.clone()) };
            let change = world.decide(&proposal).unwrap().unwrap();
            let Some(Revert::Done { revision, .. }) = world.state.change(&id(ARMED)).unwrap().revert else {
                panic!("{who}")
            };
            assert_eq!(revision, change.revision);
            expect_sound(&world.state);
        }
    }
}

/// Expects that exactly this rejection is the verdict, which leaves nothing; or, without one, that neither an environment
/// nor the change request rejects the proposal, and that what it changes stands in one change with the record.
fn expect_verdict(state: &State, proposal: &Proposal, expected: Option<&Rejection>) {
    let mut after = state.clone();
    let (verdict, change) = after.apply(state.revision() + 1, proposal);
    if let Some(expected) = expected {
        assert_eq!(verdict, Verdict::Decided(Err(expected.clone())), "{proposal}");
        assert_eq!((change, after.digest()), (None, state.digest()), "{proposal}");
        return;
    }
    let Verdict::Decided(outcome) = &verdict else { panic!("{proposal} is stale") };
    match outcome {
        Ok(_) => {
            let change = change.unwrap();
            let makes_record = |edit: &Edit| {
                let Edit::System { after: Some(after), .. } = edit else { return false };
                let phase = after.change().map(|change| change.phase.clone());
                matches!(phase, Some(Phase::Applied { revision, .. }) if revision == change.revision)
            };
            assert_eq!(change.edits.iter().filter(|edit| makes_record(edit)).count(), 1, "{proposal}");
        }
        Err(rejection) => {
            let inner =
                if let Rejection::InBatch { rejection, .. } = rejection { rejection } else { rejection };
            let is_by_rules = matches!(
                inner,
                Rejection::ChangeRequired { .. }
                    | Rejection::EnvironmentFrozen { .. }
                    | Rejection::NotApproved { .. }
                    | Rejection::EditionRejected
                    | Rejection::ChangeDigest
                    | Rejection::ChangeClosed
                    | Rejection::ChangeHeld
                    | Rejection::ChangeNotFound
            );
            assert!(!is_by_rules, "{proposal}: {rejection}");
            assert_eq!((change, after.digest()), (None, state.digest()), "{proposal}");
        }
    }
}

#[test]
fn a_config_that_was_not_there_is_not_as_it_was_when_its_definition_is_another_one() {
    let mut world = ChangeWorld::restricted();
    let definition = world.state.definition("prod.d").unwrap().definition.id;
    let mut sent = edition(1);
    sent.content.bases = vec![Guard::Config { definition, key: key("new"), revision: None }];
    world.act("ann", 1, ChangeAction::Create(sent.into())).unwrap();
    world.approve("bob", 1);
    let delete =
        Command::DeleteDefinition { key: key("prod.d"), expect: Expect::Any, restrict: false, keep: None };
    world.bypass("root", 700, delete).unwrap();
    let create = Command::CreateDefinition { key: key("prod.d"), indexes: vec![], schema: None };
    world.bypass("root", 701, create).unwrap();
    world.bypass("root", 702, write("prod.d", "new")).unwrap();
    let proposal = world.with_change("dan", 1, write("prod.d", "new"));
    assert_eq!(world.propose(&proposal).0, Verdict::Stale);
}

#[test]
fn a_rebase_by_an_attested_key_does_not_save_the_approval_that_a_machine_needs() {
    let mut world = ChangeWorld::restricted();
    world.create("bot", 1);
    world.edit("bob", 1, 2).unwrap();
    world.approve("ann", 1);
    let rejected = world.apply("dan", 1).map(drop);
    assert!(matches!(rejected, Err(Rejection::NotApproved { needed: 2, counted: 1 })), "{rejected:?}");
}
