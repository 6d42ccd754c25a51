//! Each file says what it is for and is short; a table of files names no other; nothing is left unfinished.

use std::collections::BTreeSet;

use super::{SRC, Source, TESTS, assert_none};

/// A longer file has more than one topic: `docs/internals/style.md`. A lower limit splits files within a topic.
const LINES_MAX: usize = 800;

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

/// The names that the tables of files at a file's head have in their first column, as `name`, `name.rs`, `name/` or
/// [`name`].
fn listed(source: &Source) -> Vec<String> {
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
        let first = row.split('|').next().unwrap_or(row);
        let head: &String = head.get_or_insert_with(|| first.trim().to_owned());
        if HEADS.contains(&head.as_str()) {
            found.extend(names(first));
        }
    }
    found
}

/// The rows of the table of a `mod.rs` or `lib.rs` that name no file and no folder beside it.
fn stale_rows(root: &Source, all: &[Source]) -> Vec<String> {
    let Some((folder, _)) = root.path.rsplit_once('/') else { return Vec::new() };
    let inside = all.iter().filter_map(|source| source.path.strip_prefix(&format!("{folder}/")));
    let children = inside.filter_map(|path| path.split('/').next());
    let children: BTreeSet<&str> = children.map(|child| child.strip_suffix(".rs").unwrap_or(child)).collect();
    let stale = listed(root).into_iter().filter(|name| !children.contains(name.as_str()));
    stale.map(|name| format!("{} has a row for `{name}`, which is not there", root.path)).collect()
}

#[test]
fn a_table_of_files_names_no_absent_file() {
    let is_root = |source: &&Source| source.path.ends_with("/mod.rs") || source.path.ends_with("/lib.rs");
    let roots = SRC.iter().filter(is_root).filter(|source| !source.is_test());
    let breaches: Vec<String> = roots.flat_map(|root| stale_rows(root, &SRC)).collect();
    assert_none(
        "each row of the table at the head of `mod.rs` or `lib.rs` names a file or a folder",
        &breaches,
    );
}

#[test]
fn a_row_without_a_file_is_found() {
    let root = Source::new(
        "src/x/mod.rs",
        "//! X.\n//!\n//! | file | what |\n//! |---|---|\n//! | `a`, [`b`], `c/` | `e` |\n//! | `f` | |\n",
    );
    let child = |path: &str| Source::new(path, "");
    let all = ["src/x/a.rs", "src/x/b.rs", "src/x/c/mod.rs", "src/x/d.rs"].map(child);
    assert_eq!(stale_rows(&root, &all), ["src/x/mod.rs has a row for `f`, which is not there"]);
}
