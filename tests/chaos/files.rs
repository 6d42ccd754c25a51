//! Damage to the files of a node that is down.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use super::faults::Fault;

/// Damages the files of a node that is down.
pub(super) fn damage(fault: Fault, directory: &Path, rng: &mut fastrand::Rng) {
    let (sled, snapshot) = (directory.join("store/sled"), directory.join("store/snapshot"));
    if fault == Fault::WipeSled {
        std::fs::remove_dir_all(sled).expect("sled's directory is there");
    } else if fault == Fault::TornHistory {
        tear(&directory.join("store/history"));
    } else {
        rot(if fault == Fault::RotSled { &sled } else { &snapshot }, rng);
    }
}

/// Makes the content of a directory that of another one. The directory itself stays, because it may be a volume.
pub(super) fn copy_content(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the directory can be made");
    for path in entries(to) {
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.expect("the content can be removed");
    }
    for path in entries(from) {
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy_content(&path, &target);
        } else {
            std::fs::copy(&path, target).expect("the file can be copied");
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("the directory is there");
    entries.map(|entry| entry.expect("the directory can be read").path()).collect()
}

/// Flips one bit of one file below a directory.
fn rot(directory: &Path, rng: &mut fastrand::Rng) {
    let mut files = files_below(directory);
    files.retain(|file| std::fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    if files.is_empty() {
        return;
    }
    let file = &files[rng.usize(..files.len())];
    let mut bytes = std::fs::read(file).expect("the file is there");
    let place = rng.usize(..bytes.len());
    bytes[place] ^= 1 << rng.u8(..8);
    std::fs::write(file, bytes).expect("the file can be written");
}

/// Leaves half a frame at the end of the newest history segment, as a crash in the middle of a write does.
fn tear(directory: &Path) {
    let Some(newest) = files_below(directory).into_iter().max() else { return };
    let mut file = std::fs::File::options().append(true).open(newest).expect("the segment is there");
    file.write_all(&[17, 0, 0, 0, 1, 2, 3]).expect("the segment can be written");
}

pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.path().is_dir() { left.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}
