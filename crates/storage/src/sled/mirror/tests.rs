//! When updates are merged and written, with a mirror that is stepped by hand.

use std::path::Path;

use super::*;
use crate::{
    at_rest::AtRest,
    snapshot::file::tests::{config, definition},
};
use concord_model::time::Timestamp;
use concord_state::{Edit, builder::StateBuilder};

/// The revision at an entry: another number, so that a test fails where one is taken for the other.
fn revision(index: LogIndex) -> Revision {
    index + 1000
}

fn checkpoint(index: LogIndex) -> Checkpoint {
    let position = Position { index, raft_meta: Vec::new() };
    Checkpoint {
        feature_level: 1,
        position,
        revision: revision(index),
        last_at: Timestamp(index),
        digest: 0,
        compaction_revision: 0,
        root_disabled: false,
        void: Vec::new(),
    }
}

/// A mirror whose first rebuild is complete.
fn start(directory: &Path, backlog_max: usize) -> Mirror {
    let databases = DatabaseDir::open(directory, 1 << 20, AtRest::default()).unwrap();
    let newest = (State::new(), Position { index: 0, raft_meta: Vec::new() });
    let mut mirror = Mirror::new(MirrorStart { databases, trees: None, existed: false, newest }, backlog_max);
    work(&mut mirror, idle(0));
    mirror
}

/// Nothing was applied for a while.
fn idle(log_durable: LogIndex) -> StepContext {
    let applied_at =
        Instant::now().checked_sub(2 * MERGE_IDLE_DELAY).expect("the machine has been running for longer");
    StepContext { log_durable, applied_at, closing: None }
}

fn loaded(log_durable: LogIndex) -> StepContext {
    StepContext { applied_at: Instant::now(), ..idle(log_durable) }
}

/// Steps until there is nothing to do now.
fn work(mirror: &mut Mirror, context: StepContext) -> MirrorProgress {
    loop {
        match mirror.step(context) {
            MirrorProgress::Worked => {}
            progress @ (MirrorProgress::Idle | MirrorProgress::Wait(_)) => return progress,
        }
    }
}

fn enqueue(mirror: &mut Mirror, index: LogIndex) {
    let after = Some(Arc::new(config(&format!("k{index}"), index, "{}")));
    let edits = vec![Edit::Config { definition: definition(1).id, before: None, after }];
    let at = Timestamp(index);
    let change = Change { revision: revision(index), at, by: "root".into(), reason: None, edits };
    mirror.enqueue(checkpoint(index), vec![Arc::new(change)], None);
}

fn position(mirror: &Mirror) -> Option<Checkpoint> {
    mirror.trees.open().unwrap().checkpoint().unwrap()
}

#[test]
fn updates_are_merged_when_idle_and_only_as_far_as_the_log_is_durable() {
    let directory = tempfile::tempdir().unwrap();
    let mut mirror = start(directory.path(), 1000);
    (1..=5).for_each(|index| enqueue(&mut mirror, index));
    assert_eq!(work(&mut mirror, idle(0)), MirrorProgress::Idle);
    let waits = work(&mut mirror, loaded(4));
    assert!(matches!(waits, MirrorProgress::Wait(time) if time <= MERGE_IDLE_DELAY), "{waits:?}");
    assert_eq!(mirror.mirrored(), 0);
    assert_eq!(work(&mut mirror, idle(4)), MirrorProgress::Idle);
    assert_eq!((mirror.mirrored(), position(&mirror)), (revision(4), Some(checkpoint(4))));
    assert_eq!(
        work(&mut mirror, StepContext { closing: Some(Instant::now()), ..loaded(5) }),
        MirrorProgress::Idle
    );
    assert_eq!((mirror.mirrored(), position(&mirror)), (revision(5), Some(checkpoint(5))));
    mirror.close();
}

#[test]
fn sled_is_closed_while_nothing_is_written_and_opened_for_the_next_merge() {
    let directory = tempfile::tempdir().unwrap();
    let mut mirror = start(directory.path(), 1000);
    let databases = mirror.databases.clone();
    let later = Duration::from_secs(60);
    for index in 1..=3 {
        let left = mirror.close_unused(Instant::now()).unwrap();
        assert!(!left.is_zero() && left < later, "{left:?}");
        assert_eq!(mirror.close_unused(Instant::now() + later), None);
        // Nobody holds it any more, and it is whole.
        let closed = databases.current().unwrap().unwrap();
        assert_eq!(closed.checkpoint().unwrap().unwrap().position, checkpoint(index - 1).position);
        closed.close().unwrap();
        enqueue(&mut mirror, index);
        assert_eq!(work(&mut mirror, idle(index)), MirrorProgress::Idle);
        assert_eq!((mirror.mirrored(), position(&mirror)), (revision(index), Some(checkpoint(index))));
    }
    assert_eq!(mirror.close_unused(Instant::now() + later), None);
    mirror.close();
    let closed = databases.current().unwrap().unwrap();
    assert_eq!((closed.checkpoint().unwrap(), closed.merge_target().unwrap()), (Some(checkpoint(3)), None));
    closed.close().unwrap();
}

#[test]
fn sled_that_is_gone_when_it_is_opened_again_is_rebuilt() {
    let directory = tempfile::tempdir().unwrap();
    let mut mirror = start(directory.path(), 1000);
    assert_eq!(mirror.close_unused(Instant::now() + Duration::from_secs(60)), None);
    mirror.databases.remove_all().unwrap();
    enqueue(&mut mirror, 1);
    mirror.set_newest(State::new(), checkpoint(1).position);
    assert_eq!(work(&mut mirror, idle(1)), MirrorProgress::Idle);
    assert_eq!((mirror.rebuilds(), mirror.errors), (1, 0));
    assert_eq!(position(&mirror).unwrap().position, checkpoint(1).position);
    mirror.close();
}

#[test]
fn under_load_a_large_merge_is_written_before_the_backlog_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let mut mirror = start(directory.path(), 20);
    for index in 1..=95 {
        enqueue(&mut mirror, index);
        work(&mut mirror, loaded(index));
    }
    assert_eq!((mirror.mirrored(), mirror.rebuilds()), (revision(90), 0));
    mirror.abandon();
}

#[test]
fn a_store_that_is_closed_waits_for_a_small_state_only() {
    let now = Instant::now();
    let long_ago = now.checked_sub(2 * CLOSING_TIME_MAX).expect("the machine has been running for longer");
    // 200 configs and their definition.
    for (closing_max, since, is_complete) in [(201, now, true), (200, now, false), (201, long_ago, false)] {
        let directory = tempfile::tempdir().unwrap();
        let mut mirror = start(directory.path(), 1000);
        mirror.closing_max = closing_max;
        let mut builder = StateBuilder::new();
        builder.definition(definition(1)).unwrap();
        (100..300).for_each(|number| builder.config(1, config(&format!("k{number}"), number, "{}")).unwrap());
        mirror.install(builder.finish(revision(300), Timestamp(300)).unwrap(), checkpoint(300).position);
        assert_eq!(mirror.step(loaded(300)), MirrorProgress::Worked, "the rebuild begins");
        assert_eq!(
            work(&mut mirror, StepContext { closing: Some(since), ..loaded(300) }),
            MirrorProgress::Idle
        );
        assert_eq!(mirror.mirrored() == revision(300), is_complete);
        let databases = mirror.databases.clone();
        mirror.close();
        let trees = databases.current().unwrap().unwrap();
        let at = if is_complete { 300 } else { 0 };
        assert_eq!(trees.checkpoint().unwrap().unwrap().position, checkpoint(at).position);
        assert!(trees.load(&trees.checkpoint().unwrap().unwrap()).is_ok());
        trees.close().unwrap();
    }
}
