//! Each file says what it is for and is short; each folder lists what is in it; nothing is left unfinished.

use std::collections::BTreeSet;

use super::{SRC, Source, TESTS, assert_none};

/// A longer file has more than one topic: `docs/internals/style.md`. A lower limit splits files within a topic.
const LINES_MAX: usize = 800;

/// Children that need no row: unit tests and what they share, and the binary beside the library.
const NO_ROW: [&str; 4] = ["tests", "testing", "suite", "main"];

#[test]
fn every_file_says_what_it_is_for_and_is_short() {
    let mut breaches = Vec::new();
    for source in SRC.iter().chain(TESTS.iter()) {
        if !source.text.starts_with("//! ") {
            breaches.push(format!("{} does not begin with `//! `", source.path));
        }
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            breaches.push(format!("{} has {lines} lines; the most is {LINES_MAX}", source.path));
        }
    }
    assert_none("a file's head and length", &breaches);
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that this file does not hold them.
    let marks = [["//! ST", "UB"], ["FIX", "ME"], ["TO", "DO"], ["todo", "!("], ["dbg", "!("]]
        .map(|mark| mark.concat());
    let mut breaches = Vec::new();
    for source in SRC.iter().chain(TESTS.iter()) {
        for (place, line) in source.text.lines().enumerate() {
            let found = marks.iter().filter(|mark| line.contains(mark.as_str()));
            breaches.extend(found.map(|mark| format!("{}:{} holds `{mark}`", source.path, place + 1)));
        }
    }
    assert_none("no mark of unfinished work", &breaches);
}

/// What the first cell of a table's head says when its rows are files or folders.
const HEADS: [&str; 7] = ["file", "folder", "module", "layer", "unit", "part", "name"];

/// The rows of the tables at a file's head: the first cell of the table's first line, and the names that the row has in
/// its cells as `name`, `name.rs`, `name/` or [`name`], the first cell's apart.
fn rows(source: &Source) -> Vec<(String, Vec<String>, Vec<String>)> {
    let names = |cell: &str| -> Vec<String> {
        let plain = |name: &str| {
            let first = name.split('/').next().unwrap_or(name);
            first.strip_suffix(".rs").unwrap_or(first).to_owned()
        };
        cell.split('`').skip(1).step_by(2).map(plain).collect()
    };
    let (mut found, mut head) = (Vec::new(), None);
    for line in source.text.lines().take_while(|line| line.starts_with("//!")) {
        let Some(row) = line.strip_prefix("//! |") else {
            head = None;
            continue;
        };
        let (first, others) = row.split_once('|').unwrap_or((row, ""));
        let head: &String = head.get_or_insert_with(|| first.trim().to_owned());
        found.push((head.clone(), names(first), names(others)));
    }
    found
}

/// What is wrong with the table of a folder's `mod.rs` or of a crate's `lib.rs`: children without a row, rows without a child.
fn wrong_rows(root: &Source, all: &[Source]) -> Vec<String> {
    let Some((folder, _)) = root.path.rsplit_once('/') else { return Vec::new() };
    let inside = all.iter().filter_map(|source| source.path.strip_prefix(&format!("{folder}/")));
    let children = inside.filter_map(|path| path.split('/').next());
    let children: BTreeSet<&str> = children.map(|child| child.strip_suffix(".rs").unwrap_or(child)).collect();
    let own = root.path[folder.len() + 1..].trim_end_matches(".rs");
    let rows = rows(root);
    let has_row = |child: &str| {
        let mut names = rows.iter().flat_map(|(_, first, others)| first.iter().chain(others));
        names.any(|name| name == child)
    };
    let needed = children.iter().filter(|child| **child != own && !NO_ROW.contains(child));
    let missing = needed.filter(|child| !has_row(child));
    let missing = missing.map(|child| format!("{} has no row for `{child}`", root.path));
    let listed = rows.iter().filter(|(head, ..)| HEADS.contains(&head.as_str()));
    let stale = listed.flat_map(|(_, first, _)| first).filter(|name| !children.contains(name.as_str()));
    missing
        .chain(stale.map(|name| format!("{} has a row for `{name}`, which is not there", root.path)))
        .collect()
}

#[test]
fn every_folder_lists_what_is_in_it() {
    let is_root = |source: &&Source| source.path.ends_with("/mod.rs") || source.path.ends_with("/lib.rs");
    let roots = SRC.iter().filter(is_root).filter(|source| !source.is_test());
    let breaches: Vec<String> = roots.flat_map(|root| wrong_rows(root, &SRC)).collect();
    assert_none(
        "the table at the head of `mod.rs` or `lib.rs` has a row for each file and folder, and no other",
        &breaches,
    );
}

#[test]
fn a_child_without_a_row_and_a_row_without_a_child_are_found() {
    let root = Source::new(
        "src/x/mod.rs",
        "//! X.\n//!\n//! | file | what |\n//! |---|---|\n//! | `a`, [`b`], `c/` | `e` |\n//! | `f` | |\n",
    );
    let child = |path: &str| Source::new(path, "");
    let all = ["src/x/a.rs", "src/x/b.rs", "src/x/c/mod.rs", "src/x/tests.rs", "src/x/d.rs"].map(child);
    assert_eq!(
        wrong_rows(&root, &all),
        ["src/x/mod.rs has no row for `d`", "src/x/mod.rs has a row for `f`, which is not there"]
    );
}
