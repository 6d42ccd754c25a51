//! What readers see, by reads and by the events of the feed.

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::feed::{self, Event, RecordChange};

/// What a client has of a config: its data, its revision, and the change request whose candidate it is.
type Version = (String, u64, Option<String>);
type Versions = BTreeMap<String, Version>;

const CONFIGS: [&str; 3] = ["k", "l", "m"];

impl ChangeWorld {
    /// What a client reads.
    fn versions(&self, reader: Option<&Reader>) -> Versions {
        let found = self.state.definition("prod.d").unwrap();
        let version = |name: &&str| {
            let proven = found.config(name)?;
            let version = match self.state.seen_by(found.definition.id, proven, reader) {
                None => (proven.data.to_string(), proven.revision, None),
                Some(seen) => (
                    seen.config.data.to_string(),
                    seen.config.revision,
                    Some(seen.variant.change.to_string()),
                ),
            };
            Some(((*name).to_owned(), version))
        };
        CONFIGS.iter().filter_map(version).collect()
    }

    /// Does something to the world, unless it is rejected.
    fn try_step(&mut self, proposal: &Proposal, changes: &mut Vec<Arc<StoredChange>>) -> bool {
        self.at += 1;
        let (verdict, change) = self.state.apply(self.state.revision() + 1, proposal);
        changes.extend(change.map(Arc::new));
        matches!(verdict, Verdict::Decided(Ok(_)))
    }

    fn action(&self, who: &str, number: u64, action: ChangeAction) -> Proposal {
        self.proposal(who, Command::System(SystemCommand::Change { id: id(number), action }))
    }

    /// Plans and begins the rollout of some configs.
    fn try_begin(&mut self, number: u64, configs: &[&str], changes: &mut Vec<Arc<StoredChange>>) {
        let staged = self.staged_edition(Timing::default(), configs, plan());
        let create = self.action("ann", number, ChangeAction::CreateStaged(staged));
        if self.try_step(&create, changes) {
            let candidates = self.candidates(configs);
            let begin = ChangeAction::BeginRollout { edition: 1, digest: [1; 32], candidates };
            let begin = self.action("dan", number, begin);
            self.try_step(&begin, changes);
        }
    }

    /// Something that may happen to one of the rollouts that run, or to a config.
    fn any_step(&self, number: u64, rng: &mut fastrand::Rng) -> Proposal {
        let running: Vec<ChangeId> =
            self.state.running_rollouts().filter_map(|(id, _)| ChangeId::parse(id.as_str())).collect();
        let Some(one) = rng.choice(&running) else {
            let name = CONFIGS[rng.usize(..3)];
            let delete =
                Command::DeleteConfig { definition: key("prod.d"), key: key(name), expect: Expect::Any };
            let write = put_data(name, &format!("{{\"n\":{number}}}"));
            return self.proposal("root", if rng.u8(..4) == 0 { delete } else { write });
        };
        let one: u64 = one.as_str().parse().unwrap();
        let at = self.stage_of(one);
        match rng.u8(..16) {
            0 => self.proposal("cluster", Command::System(SystemCommand::HoldChanges)),
            1 => self.action("ann", one, withdraw()),
            2 => self.action("dan", one, ChangeAction::PauseRollout { at, comment: String::new() }),
            3 => self.action("dan", one, ChangeAction::ResumeRollout { at }),
            4..=8 => self.action("dan", one, ChangeAction::AdvanceRollout { at, evidence: WELL }),
            9..=11 => {
                let rollout = self.state.rollout(&id(one)).unwrap();
                let write = |candidate: &Candidate| step(put_data(candidate.key.as_str(), &candidate.data));
                let batch = Command::Batch(rollout.candidates.iter().map(write).collect());
                self.with_change("cluster", one, batch)
            }
            _ => {
                let write = put_data(CONFIGS[rng.usize(..3)], &format!("{{\"n\":{number}}}"));
                self.proposal("root", write)
            }
        }
    }
}

/// What a client has after an event.
fn apply(event: &Event, versions: &mut Versions) {
    for (place, item) in event.items.iter().enumerate() {
        let RecordChange::Config { definition, key, after, .. } = item else { continue };
        assert_eq!(definition.as_str(), "prod.d");
        match after {
            None => drop(versions.remove(key.as_str())),
            Some(config) => {
                let variant = event.variants.get(&place).map(ToString::to_string);
                versions.insert(key.to_string(), (config.data.to_string(), config.revision, variant));
            }
        }
    }
}

/// An unidentified client, a reader in the first stage, and one in the last.
fn clients() -> [Option<Reader>; 3] {
    [None, Some(canary()), Some(reader(&[("ring", "other")]))]
}

#[test]
fn who_applies_the_events_has_what_it_reads_whatever_happens_to_rollouts() {
    let (mut begun, mut candidates) = (0, 0);
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Without rules, so that others may write directly.
        let mut world = ChangeWorld::new();
        world.done("root", put_data("l", "{}"));
        world.done("root", put_data("m", "{}"));
        let clients = clients();
        let mut known = clients.each_ref().map(|client| world.versions(client.as_ref()));
        let mut changes: Vec<Arc<StoredChange>> = Vec::new();
        for number in 1..120_u64 {
            if rng.u8(..6) == 0 {
                let configs: &[&str] = [&["k"][..], &["l"], &["k", "l"], &["l", "m"]][rng.usize(..4)];
                world.try_begin(number, configs, &mut changes);
                begun += u32::from(world.state.rollout(&id(number)).is_some_and(Rollout::is_running));
            } else {
                let step = world.any_step(number, &mut rng);
                world.try_step(&step, &mut changes);
            }
            // Several changes are published at once while the node is busy.
            if rng.bool() {
                continue;
            }
            for event in feed::events(&std::mem::take(&mut changes), &world.state) {
                for (client, versions) in clients.iter().zip(&mut known) {
                    let view = match client {
                        None => Arc::clone(&event),
                        Some(reader) => event.seen_by(reader).unwrap(),
                    };
                    assert!(client.is_none() || view.rollouts.is_none());
                    apply(&view, versions);
                }
            }
            for (client, versions) in clients.iter().zip(&known) {
                let read = world.versions(client.as_ref());
                assert_eq!(*versions, read, "seed {seed}, step {number}, {client:?}");
                let shown = read.values().filter(|(.., variant)| variant.is_some()).count();
                assert!(client.is_some() || shown == 0, "who is no reader sees candidates");
                candidates += shown;
            }
        }
    }
    assert!(begun > 200 && candidates > 500, "{begun} begun, {candidates} seen");
}

#[test]
fn a_reader_gets_a_change_only_where_what_it_sees_changes() {
    let mut world = ChangeWorld::planned(1, Timing::default());
    let mut changes = Vec::new();
    let candidates = world.candidates(&["k", "l"]);
    let begin = ChangeAction::BeginRollout { edition: 1, digest: [1; 32], candidates };
    let proposal = world.action("dan", 1, begin);
    assert!(world.try_step(&proposal, &mut changes));
    let event = |world: &mut ChangeWorld, proposal: &Proposal| {
        let mut changes = Vec::new();
        assert!(world.try_step(proposal, &mut changes));
        feed::events(&changes, &world.state).pop()
    };
    let begun = feed::events(&changes, &world.state).pop().unwrap();
    let [in_at_once, in_at_last] = [canary(), reader(&[])];
    let items = |event: &Arc<Event>, reader: &Reader| event.seen_by(reader).unwrap().items.len();
    assert_eq!((begun.items.len(), items(&begun, &in_at_once), items(&begun, &in_at_last)), (0, 2, 0));
    let shown = begun.seen_by(&in_at_once).unwrap();
    assert!(Arc::ptr_eq(&shown, &begun.seen_by(&in_at_once).unwrap()), "made once for all readers");

    let at = world.stage_of(1);
    let pause = world.action("dan", 1, ChangeAction::PauseRollout { at, comment: String::new() });
    let paused = event(&mut world, &pause).unwrap();
    assert!(paused.rollouts.is_none() && paused.items.is_empty(), "nobody sees anything else");
    let advance = world.action("dan", 1, ChangeAction::AdvanceRollout { at, evidence: WELL });
    let advanced = event(&mut world, &advance).unwrap();
    assert_eq!((items(&advanced, &in_at_once), items(&advanced, &in_at_last)), (0, 2));

    // Not known any more: the definition went before the events were made.
    let abort = world.action("ann", 1, withdraw());
    let mut changes = Vec::new();
    assert!(world.try_step(&abort, &mut changes));
    let gone = world.with_bypass("root", 2, delete("prod.d", None));
    assert!(world.try_step(&gone, &mut changes));
    let aborted = feed::events(&changes, &world.state).remove(0);
    assert!(aborted.seen_by(&in_at_once).is_none());
}
