//! Targets of the fuzzer: what is read from snapshot files and history segments (`fuzz_targets`).

use std::path::PathBuf;

use super::{
    Position,
    at_rest::AtRest,
    history::fuzz as history,
    snapshot::file::{self, fuzz as snapshot},
};
use concord_state::testing::{parts, samples};

/// The file of this thread.
fn path() -> PathBuf {
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    std::env::temp_dir().join(format!("concord-fuzz-{}-{number}", std::process::id()))
}

/// A snapshot file: as it is, or in parts that are put into frames.
pub fn snapshot_file(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    let path = path();
    let content = if kind % 2 == 0 { bytes.to_vec() } else { snapshot::framed(&parts(bytes)) };
    std::fs::write(&path, content).expect("the directory for temporary files can be written");
    let read = file::read(&path, &AtRest::default());
    if let Ok((state, header)) = &read {
        // What was accepted can be written, and is the same state then.
        file::write(&path, state, &header.position, 4096, &AtRest::default())
            .expect("the file can be written");
        let (again, _) = file::read(&path, &AtRest::default()).expect("what was written is read");
        assert_eq!(again.digest(), state.digest());
    }
    std::fs::remove_file(&path).expect("the file is there");
    read.is_ok()
}

/// Real inputs of [`snapshot_file`].
pub fn snapshot_seeds() -> Vec<Vec<u8>> {
    let (state, _) = samples::state();
    let path = path().with_extension("seed");
    let write = |block_bytes| {
        let position = Position { index: 4, raft_meta: vec![1, 2, 3] };
        file::write(&path, &state, &position, block_bytes, &AtRest::default())
            .expect("the file can be written");
        std::fs::read(&path).expect("it was written")
    };
    let (one, many) = (write(1 << 20), write(64));
    std::fs::remove_file(&path).expect("the file is there");
    let raw = |bytes: &[u8]| [&[0], bytes].concat();
    let in_parts = |bytes: &[u8]| [vec![1], snapshot::unframed(bytes)].concat();
    vec![raw(&one), raw(&many), in_parts(&one), in_parts(&many)]
}

/// A segment of the history: as it is, or in parts that are put into frames.
pub fn history_segment(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    if kind % 2 == 0 { history::scan(bytes) } else { history::scan(&history::framed(&parts(bytes))) }
}

/// Real inputs of [`history_segment`].
pub fn history_seeds() -> Vec<Vec<u8>> {
    let (_, changes) = samples::state();
    let [sealed, open] = history::segments(&changes);
    let in_parts = [vec![1], history::unframed(&sealed)].concat();
    vec![[&[0], &sealed[..]].concat(), [&[0], &open[..]].concat(), in_parts]
}
