//! A directory with files of a newer version is rejected at the start, and every file stays as it was.

use std::collections::BTreeMap;

use super::*;

/// All files below a directory with their bytes.
fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(content(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

/// Changes the first frame of a file and gives it the checksum of its new bytes.
fn rewrite_first_frame(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let files::FileFrame::Whole(mut frame, _) = files::read_frame(&mut rest).unwrap() else {
        panic!("a frame")
    };
    change(&mut frame);
    let mut written = Vec::new();
    files::write_frame(&mut written, &frame).unwrap();
    written.extend_from_slice(rest);
    fs::write(path, written).unwrap();
}

#[test]
fn a_file_of_an_unknown_format_prevents_the_start_and_nothing_changes() {
    // The place of the format in the first frame of each kind of file.
    for (directory, beginning, place) in
        [("snapshot", "snapshot-", 8), ("history", "segment-", 9), ("sled", "", 0)]
    {
        let mut fixture = Fixture::new();
        fixture.define("d");
        fixture.write("d", 0..50, &"x".repeat(200));
        fixture.snapshot();
        fixture.write("d", 0..5, "after the snapshot");
        fixture.close();
        if directory == "sled" {
            let mut meta = vec![9, 9, 9];
            meta.extend_from_slice(&crc32c::crc32c(&meta).to_le_bytes());
            fixture.with_sled(|db| {
                drop(db.open_tree("meta").unwrap().insert("position", meta).unwrap());
                db.flush().unwrap();
            });
        } else {
            let names = files::names(&fixture.path(directory)).unwrap();
            let newest = names.iter().rfind(|name| name.starts_with(beginning)).unwrap();
            rewrite_first_frame(&fixture.path(directory).join(newest), |frame| frame[place] = 9);
        }
        let before = content(fixture.directory.path());
        let refused = fixture.try_open().err().unwrap();
        assert!(matches!(refused, StoreError::Newer(_)), "{directory}: {refused:?}");
        assert!(refused.to_string().contains("start a newer version"), "{directory}: {refused}");
        let after = content(fixture.directory.path());
        let kept = |path: &&PathBuf| before[*path] == after.get(*path).cloned().unwrap_or_default();
        // sled writes to its own files whenever it is opened; its records stay.
        let lost: Vec<_> =
            before.keys().filter(|path| !path.starts_with(fixture.path("sled")) && !kept(path)).collect();
        assert!(lost.is_empty(), "{directory}: {lost:?}");
        assert!(fixture.sled().is_dir(), "{directory}");
    }
}
