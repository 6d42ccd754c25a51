//! A store in an encrypted directory: its files reveal nothing and are read as they were written, and anything else is
//! rejected or rebuilt.

use std::fs;

use super::fixture::{Fixture, delete_environment, put_environment};
use crate::{
    Loaded, StoreError, StoreOptions,
    at_rest::{AtRest, KEYS},
};

/// Stands in every record, and is sought on the disk.
const TELLING: &str = "telling";

/// A store, and its keys in a directory of their own.
struct Encrypted {
    keys: tempfile::TempDir,
    fixture: Fixture,
}

impl Encrypted {
    fn new() -> Self {
        let mut encrypted = Self::plain();
        encrypted.turn(KEYS[0]);
        encrypted
    }

    /// Not encrypted yet.
    fn plain() -> Self {
        let options =
            StoreOptions { segment_bytes: 4 << 10, block_bytes: 1 << 10, ..StoreOptions::default() };
        Self { keys: tempfile::tempdir().unwrap(), fixture: Fixture::with(options) }
    }

    /// Opens the store with another content of the key file, as a start of the node does.
    fn turn(&mut self, lines: &str) {
        self.fixture.close();
        let at_rest = AtRest::for_tests(self.keys.path(), lines);
        self.fixture.options.at_rest = at_rest.clone();
        self.fixture.open();
        at_rest.converted().unwrap();
    }

    /// The files of a part of the store.
    fn files(&self, part: &str) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(self.fixture.path(part)).unwrap();
        let mut files: Vec<_> =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
        files.sort();
        files
    }

    /// The files in which a text stands.
    fn holding(&self, text: &str) -> Vec<std::path::PathBuf> {
        let sled =
            self.fixture.path("sled").join(fs::read_to_string(self.fixture.path("sled/CURRENT")).unwrap());
        let mut files = [self.files("snapshot"), self.files("history")].concat();
        files.extend(
            fs::read_dir(sled).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()),
        );
        let holds = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        files.retain(|file| holds(&fs::read(file).unwrap()));
        files
    }

    fn fill(&mut self) {
        self.fixture.define("d-telling");
        self.fixture.apply(vec![put_environment("telling", 100), put_environment("more-telling", 200_000)]);
        self.fixture.apply(vec![delete_environment("more-telling")]);
        self.fixture.write("d-telling", 0..60, &"a telling value".repeat(10));
        self.fixture.snapshot();
        self.fixture.write("d-telling", 20..70, "another telling value");
        self.fixture.snapshot();
        self.fixture.write("d-telling", 40..50, "the last telling value");
        self.fixture.wait_for_mirror();
    }
}

#[test]
fn an_encrypted_store_is_loaded_from_sled_and_shows_no_text() {
    let mut encrypted = Encrypted::new();
    encrypted.fill();
    encrypted.fixture.write("d-telling", 0..2, &"a telling value".repeat(10_000));
    let revisions = encrypted.fixture.revisions_when_written();
    let (digest, revision) = (encrypted.fixture.state.digest(), encrypted.fixture.state.revision());
    for _ in 0..2 {
        encrypted.fixture.close();
        assert_eq!(encrypted.holding(TELLING), [] as [std::path::PathBuf; 0]);
        encrypted.fixture.open();
        assert_eq!(
            (encrypted.fixture.state.digest(), encrypted.fixture.state.revision()),
            (digest, revision)
        );
        assert_eq!(encrypted.fixture.store().figures().rebuilds, 0, "sled is not rebuilt");
        assert_eq!(encrypted.fixture.revisions(), revisions);
    }
    // Rows are found again to be removed.
    encrypted.fixture.write("d-telling", 0..70, "y");
    encrypted.fixture.wait_for_mirror();
    let digest = encrypted.fixture.state.digest();
    encrypted.fixture.close();
    let rows = encrypted.fixture.rows().len();
    assert_eq!(rows, encrypted.fixture.expected_rows().len());
    encrypted.fixture.open();
    assert_eq!(encrypted.fixture.state.digest(), digest);
}

#[test]
fn turning_encryption_on_and_off_leaves_the_state_and_the_history_as_they_are() {
    let mut encrypted = Encrypted::plain();
    encrypted.fill();
    fs::write(encrypted.fixture.path("history/segment-00000000000000000001.damaged"), TELLING).unwrap();
    let revisions = encrypted.fixture.revisions_when_written();
    let digest = encrypted.fixture.state.digest();
    assert!(encrypted.fixture.store().current_snapshot().is_some());
    let both = format!("{}\n{}", KEYS[1], KEYS[0]);
    let off = format!("none\n{}", KEYS[1]);
    for (lines, is_encrypted) in [(KEYS[0], true), (&both, true), (&off, false), (KEYS[1], true)] {
        encrypted.turn(lines);
        assert_eq!(encrypted.fixture.state.digest(), digest);
        assert_eq!(encrypted.fixture.revisions(), revisions);
        encrypted.fixture.wait_for_mirror();
        encrypted.fixture.crash();
        assert_eq!(encrypted.holding(TELLING).is_empty(), is_encrypted, "{lines}");
        // sled alone, then the snapshots alone.
        encrypted.fixture.open();
        assert_eq!(encrypted.fixture.state.digest(), digest);
        encrypted.fixture.close();
        fs::remove_dir_all(encrypted.fixture.path("sled")).unwrap();
        encrypted.fixture.open();
        assert_eq!(encrypted.fixture.state.digest(), digest);
        encrypted.fixture.wait_for_mirror();
    }
    assert_eq!(encrypted.files("history").iter().filter(|file| file.ends_with(".damaged")).count(), 0);
}

#[test]
fn a_crash_leaves_a_history_that_goes_on_in_a_segment_of_its_own() {
    let mut encrypted = Encrypted::new();
    encrypted.fixture.define("d-telling");
    for round in 0..4_u32 {
        encrypted.fixture.write("d-telling", 0..10, "a telling value");
        let written = encrypted.fixture.state.revision();
        assert!(encrypted.fixture.store().wait_for_history(written, super::fixture::DEADLINE));
        encrypted.fixture.wait_for_mirror();
        encrypted.fixture.crash();
        let open = encrypted
            .files("history")
            .into_iter()
            .find(|file| file.extension().is_some_and(|end| end == "open"));
        if let Some(open) = open.filter(|_| round % 2 == 0) {
            // Its end is torn off.
            let length = fs::metadata(&open).unwrap().len();
            fs::File::options().write(true).open(&open).unwrap().set_len(length - 5).unwrap();
        }
        encrypted.fixture.open();
        let opened = encrypted.fixture.state.revision();
        // What the log would apply again.
        encrypted.fixture.log.last = encrypted.fixture.log.last.max(super::fixture::index(opened));
        assert!(
            encrypted.files("history").iter().all(|file| file.extension().is_some_and(|end| end == "sealed"))
        );
        let all = encrypted.fixture.revisions();
        assert!(all.windows(2).all(|two| two[0] < two[1]), "{all:?}");
    }
}

#[test]
fn files_that_change_places_are_rejected() {
    let mut encrypted = Encrypted::new();
    encrypted.fill();
    let digest = encrypted.fixture.state.digest();
    let revisions = encrypted.fixture.revisions_when_written();
    encrypted.fixture.close();
    let swap = |files: &[std::path::PathBuf]| {
        let contents: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        fs::write(&files[0], &contents[1]).unwrap();
        fs::write(&files[1], &contents[0]).unwrap();
    };
    let snapshots = encrypted.files("snapshot");
    swap(&snapshots);
    let segments = encrypted.files("history");
    swap(&segments);
    encrypted.fixture.open();
    assert_eq!(encrypted.fixture.state.digest(), digest, "sled has the state");
    assert!(encrypted.fixture.store().current_snapshot().is_none(), "both snapshots are set aside");
    let found: Result<Vec<_>, _> =
        encrypted.fixture.store().history().changes_from(1).and_then(Iterator::collect);
    assert!(found.is_err(), "not what was written: {}", revisions.len());
}

#[test]
fn unencrypted_files_are_rejected_once_everything_is_encrypted() {
    let mut plain = Fixture::new();
    plain.define("d");
    plain.write("d", 0..9, "somebody else's");
    plain.snapshot();
    let foreign = plain.store().current_snapshot().unwrap().path;
    plain.close();
    let mut encrypted = Encrypted::new();
    encrypted.fixture.define("d");
    encrypted.fixture.write("d", 0..9, "ours");
    let own = encrypted.fixture.snapshot().path;
    let digest = encrypted.fixture.state.digest();
    encrypted.fixture.close();
    assert_eq!(foreign.file_name(), own.file_name());
    fs::copy(&foreign, &own).unwrap();
    fs::remove_dir_all(encrypted.fixture.path("sled")).unwrap();
    match encrypted.fixture.try_open() {
        Ok(Loaded::State(state, _)) => assert!(state.revision() == 0 || state.digest() == digest),
        Ok(Loaded::Nothing) | Err(StoreError::Damaged(_)) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(own.with_extension("damaged").exists(), "it was set aside");
}

#[test]
fn a_flipped_bit_anywhere_costs_no_more_than_its_file() {
    let mut encrypted = Encrypted::new();
    encrypted.fill();
    let digest = encrypted.fixture.state.digest();
    let revisions = encrypted.fixture.revisions_when_written();
    encrypted.fixture.close();
    let (directory, copy) = (encrypted.fixture.directory.path().to_owned(), tempfile::tempdir().unwrap());
    let copied =
        std::process::Command::new("cp").arg("-a").arg(directory.join(".")).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..40 {
        let files = [encrypted.files("snapshot"), encrypted.files("history")].concat();
        let file = files[round % files.len()].clone();
        let mut bytes = fs::read(&file).unwrap();
        let place = if round % 3 == 0 { rng.usize(..64) } else { rng.usize(..bytes.len()) };
        bytes[place] ^= 1 << rng.u8(..8);
        fs::write(&file, bytes).unwrap();
        if round % 2 == 0 {
            fs::remove_dir_all(directory.join("sled")).unwrap();
        }
        let loaded = encrypted.fixture.try_open();
        let Ok(Loaded::State(state, _)) = loaded else { panic!("{}: {loaded:?}", file.display()) };
        // The newest state, or that of the older snapshot: never another one.
        if state.revision() == *revisions.last().unwrap() {
            assert_eq!(state.digest(), digest);
        }
        let history = encrypted.fixture.store().history().clone();
        for change in history.changes_from(1).into_iter().flatten() {
            match change {
                Ok(change) => assert!(revisions.contains(&change.revision)),
                Err(_) => break,
            }
        }
        encrypted.fixture.crash();
        fs::remove_dir_all(&directory).unwrap();
        let restored = std::process::Command::new("cp").arg("-a").arg(copy.path()).arg(&directory).status();
        assert!(restored.unwrap().success());
    }
}
