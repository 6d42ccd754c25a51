//! The history after a power loss in the middle of the changes of one log entry.
//!
//! An entry may hold several proposals, and each has its own revision and its own change in the history. The end of the
//! newest segment is not durable, so a power loss may leave some of them. The log has the entry, and applying it again
//! writes the rest and nothing twice.

use std::{collections::BTreeSet, fs};

use super::fixture::{DEADLINE, Fixture, write};
use crate::{StoreOptions, StoredChange, history::format};
use concord_model::{command::Command, record::Revision};

const CHANGES: u64 = 24;

/// What one entry writes: some configs more than once.
fn entry() -> Vec<Command> {
    (0..CHANGES).map(|number| write("d", &format!("k{}", number % 7), &format!("value {number}"))).collect()
}

fn history(fixture: &Fixture) -> Vec<StoredChange> {
    fixture.snapshot();
    fixture.store().history().changes_from(1).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn the_changes_of_an_entry_are_complete_after_a_power_loss_at_any_byte() {
    let begun = || {
        let options =
            StoreOptions { segment_bytes: 1 << 20, block_bytes: 1 << 10, ..StoreOptions::default() };
        let mut fixture = Fixture::with(options);
        fixture.define("d");
        fixture.write("d", 0..3, "before");
        fixture
    };
    let mut whole = begun();
    whole.apply(entry());
    let (expected, digest) = (history(&whole), whole.state.digest());
    let revisions: Vec<Revision> = expected.iter().map(|change| change.revision).collect();
    assert_eq!(revisions, (1..=4 + CHANGES).collect::<Vec<_>>());

    let mut ends = BTreeSet::new();
    for part in 0..=20 {
        let mut fixture = begun();
        fixture.apply(entry());
        assert!(fixture.store().wait_for_history(fixture.state.revision(), DEADLINE));
        fixture.crash();
        let directory = fixture.path("history");
        let newest = format::segments(&directory).unwrap().pop().unwrap();
        let path = newest.path(&directory);
        assert!(path.extension().is_some_and(|extension| extension == "open"));
        let length = fs::metadata(&path).unwrap().len();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length * part / 20).unwrap();

        fixture.open();
        ends.insert(fixture.store().figures().history);
        // The log after the loaded state. What sled holds never lies after what the history holds.
        let from = fixture.state.revision();
        assert!(from <= 4 || from == 4 + CHANGES, "a state is one between two entries: {from}");
        if from == 0 {
            fixture.define("d");
        }
        if from < 4 {
            let written = u32::try_from(from.saturating_sub(1)).unwrap();
            fixture.write("d", written..3, "before");
        }
        if from <= 4 {
            fixture.apply(entry());
        }
        assert_eq!(fixture.state.digest(), digest, "part {part}");
        assert_eq!(history(&fixture), expected, "part {part}");
        fixture.check();
    }
    let within = ends.iter().filter(|applied| (5..4 + CHANGES).contains(*applied)).count();
    assert!(within > 3, "some cuts were in the middle of the entry: {ends:?}");
}
