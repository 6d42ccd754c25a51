//! A state that differs from the other members' is removed, and a file without a state is rejected.

use super::{
    super::{Loaded, Store, StoreError, at_rest::AtRest, snapshot},
    fixture::{Fixture, flip},
};

#[test]
fn an_invalidated_state_is_removed() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..20, "x");
    fixture.snapshot();
    fixture.store().invalidate(b"why").unwrap();
    fixture.close();
    let purged = fixture.log.purged;
    fixture.log.purged = fixture.log.last;
    assert!(matches!(fixture.try_open().unwrap(), Loaded::Nothing), "only a peer has the state");
    fixture.close();
    fixture.log.purged = purged;
    assert!(matches!(fixture.try_open().unwrap(), Loaded::Nothing), "the own log may be what was wrong");
    assert!(!fixture.path("distrusted").exists());
    let note = Store::invalidation_note(&fixture.path("."));
    assert_eq!(note.as_deref(), Some(&b"why"[..]), "it outlives the state");
    fixture.store().trust().unwrap();
    fixture.close();
    assert!(matches!(fixture.try_open().unwrap(), Loaded::State(..)), "another state was proven");
}

#[test]
fn a_damaged_snapshot_to_send_is_set_aside_and_rebuilt_without_new_writes() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..20, "x");
    let damaged = fixture.snapshot();
    flip(&damaged.path, usize::try_from(damaged.bytes / 2).unwrap());
    assert!(matches!(fixture.store().verify_or_reject(&damaged), Err(StoreError::Damaged(_))));
    assert!(fixture.store().current_snapshot().is_none());
    let built = fixture.snapshot();
    assert_eq!(built.position, damaged.position);
    fixture.store().verify_or_reject(&built).unwrap();
}

#[test]
fn a_whole_file_without_a_state_is_rejected_before_it_is_adopted() {
    let mut fixture = Fixture::new();
    fixture.write("d", 0..10, "1");
    let own = fixture.snapshot();
    let path = fixture.store().incoming().unwrap();
    snapshot::file::tests::without_a_state(&path);
    let file = snapshot::retained::verify(&path, &AtRest::default()).unwrap();
    let refused = fixture.store().verify(&path, &file.position, file.digest);
    assert!(
        matches!(&refused, Err(StoreError::Damaged(why)) if why.contains("no definition")),
        "{refused:?}"
    );
    assert!(matches!(fixture.store().install(&path), Err(StoreError::Damaged(_))));
    assert_eq!(fixture.store().current_snapshot().unwrap().path, own.path);
}
