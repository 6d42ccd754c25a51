//! The rules that the source keeps about itself, checked by reading it.
//!
//! | file | rule |
//! |---|---|
//! | `manifests` | a crate depends only on the crates below it; a library is used by one crate |
//! | `units` | the units of `service` name each other one way |
//! | `grants` | records leave the service for a principal only |
//! | `purity` | `model` and `state` depend on their input only; they hold no lock and no global but the listed ones |
//! | `files` | a file says what it is for and is short, the tables of files are right, nothing is unfinished |
//! | `sleeps` | a test waits for a condition; a fixed time has its reason as a name, or is virtual |
//! | `tasks` | a task that lives as long as the node is supervised; others stand in a list |
//! | `syntax` | the tokens of a file and the paths that it names, for the other rules |
//!
//! **Invariant:** each rule's matcher is tested on a text that breaks the rule.

mod files;
mod grants;
mod manifests;
mod purity;
mod sleeps;
mod syntax;
mod tasks;
mod units;

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use syntax::{Token, tokens};

/// The Rust files of the program and of each crate, read once for all rules.
static SRC: LazyLock<Vec<Source>> = LazyLock::new(|| sources("src"));

/// The Rust files of the tests of processes and of the tests of each crate.
static TESTS: LazyLock<Vec<Source>> = LazyLock::new(|| sources("tests"));

/// A Rust file.
#[derive(Debug)]
struct Source {
    /// From the package's root, with `/`.
    path: String,
    text: String,
    /// Without comments, and with strings emptied.
    tokens: Vec<Token>,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), tokens: tokens(text) }
    }

    /// Whether the whole file is compiled for tests only.
    fn is_test(&self) -> bool {
        let files = ["/tests.rs", "/testing.rs", "/suite.rs"];
        let folders = ["/tests/", "/testing/"];
        files.iter().any(|file| self.path.ends_with(file))
            || folders.iter().any(|folder| self.path.contains(folder))
    }

    /// The lines outside unit tests with their numbers, without comments.
    fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        let tested = syntax::test_lines(&self.tokens);
        self.text.lines().enumerate().filter_map(move |(place, line)| {
            let number = place + 1;
            let is_product = !tested.iter().any(|lines| lines.contains(&number));
            is_product.then(|| (number, line.split("//").next().unwrap_or_default()))
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder whose extension is one of these, from the package's root, sorted. A folder that is absent
/// has none.
fn files_below(folder: &str, extensions: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = vec![root().join(folder)];
    while let Some(folder) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            if path.is_dir() {
                pending.push(path);
            } else if extensions.contains(&extension) {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The folders of the libraries.
fn crates() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The Rust files of one folder of the program and of that folder of each crate.
fn sources(folder: &str) -> Vec<Source> {
    let inside = crates().into_iter().map(|name| format!("crates/{name}/{folder}"));
    let found = inside.chain([folder.to_owned()]).flat_map(|folder| files_below(&folder, &["rs"]));
    found.map(|path| Source::new(&path, &read(&path))).collect()
}

#[track_caller]
fn assert_none(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}; {} breaches:\n{}", breaches.len(), breaches.join("\n"));
}
