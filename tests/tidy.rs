//! The rules that the source keeps about itself: which room calls which, which library lives where, how long a
//! file is, that every file says what it is for.

use std::path::{Path, PathBuf};

/// The longest file. A file that is longer has become two.
const LINES_MAX: usize = 500;

/// The rooms from the lowest up: a room names only itself and those below.
const ROOMS: [&str; 8] = ["model", "state", "feed", "store", "peer", "raft", "service", "api"];

/// Where a library is used, and nowhere else.
const HOMES: [(&str, &str); 6] = [
    ("axum", "src/api"),
    ("openraft", "src/raft"),
    ("raft_log", "src/raft"),
    ("sled", "src/store"),
    ("jsonschema", "src/model/schema"),
    ("clap", "src/settings src/cli src/main.rs"),
];

#[derive(Debug)]
struct Source {
    /// From the package's root.
    path: String,
    text: String,
}

impl Source {
    /// The lines of code with their numbers, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(place, line)| (place + 1, line));
        lines.map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
    }

    /// The lines of code before the unit tests, which stand last.
    fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code().take_while(|(_, line)| !line.trim_start().starts_with("#[cfg(test)]"))
    }

    fn room(&self) -> Option<usize> {
        ROOMS.iter().position(|room| {
            self.path.starts_with(&format!("src/{room}/")) || self.path == format!("src/{room}.rs")
        })
    }
}

fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "{folder} holds sources");
    found
}

fn none(what: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{what}:\n{}", breaches.join("\n"));
}

/// The words of a line: runs of letters, digits and `_`, each with what stands right behind it.
fn words(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = line;
    std::iter::from_fn(move || {
        let begin = rest.find(is_word)?;
        let tail = &rest[begin..];
        let end = tail.find(|c| !is_word(c)).unwrap_or(tail.len());
        rest = &tail[end..];
        Some((&tail[..end], rest))
    })
}

/// The rooms that a file names: `crate::room`, `concord::room`, also inside `use crate::{…}`.
fn named_rooms(source: &Source) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    // Depth of the braces of a `use crate::{…}` that goes over several lines.
    let mut open = 0_usize;
    for (number, line) in source.code() {
        let mut rest = line;
        loop {
            if open == 0 {
                let Some((before, behind)) = rest.split_once("crate::") else { break };
                if before.ends_with("$") {
                    rest = behind;
                    continue;
                }
                if let Some(inside) = behind.strip_prefix('{') {
                    open = 1;
                    rest = inside;
                } else {
                    named.extend(words(behind).next().map(|(word, _)| (number, word.to_owned())));
                    rest = behind;
                }
                continue;
            }
            // Inside the braces: the first level names rooms.
            let Some(place) = rest.find(|c: char| c.is_alphanumeric() || c == '_' || c == '{' || c == '}')
            else {
                break;
            };
            let tail = &rest[place..];
            if let Some(behind) = tail.strip_prefix('{') {
                (open, rest) = (open + 1, behind);
            } else if let Some(behind) = tail.strip_prefix('}') {
                (open, rest) = (open - 1, behind);
            } else if let Some((word, behind)) = words(tail).next() {
                let begins_a_path = !rest[..place].trim_end().ends_with(':');
                if open == 1 && begins_a_path {
                    named.push((number, word.to_owned()));
                }
                rest = behind;
            }
        }
    }
    named
}

#[test]
fn a_room_calls_only_the_rooms_below_it() {
    let mut breaches = Vec::new();
    for source in sources("src") {
        let own = source.room();
        for (number, name) in named_rooms(&source) {
            let target = ROOMS.iter().position(|room| *room == name);
            let wrong = match (own, target) {
                (Some(own), Some(target)) => target > own,
                // What is above all rooms is named by none of them.
                (Some(_), None) => ["node", "cli", "main"].contains(&name.as_str()),
                _ => false,
            };
            if wrong {
                breaches.push(format!("{}:{number} names `{name}`", source.path));
            }
        }
    }
    none("calls go down only", &breaches);
}

#[test]
fn the_way_into_a_room_is_found() {
    let text = "use crate::{\n    api::{reply, raft},\n    model::key::Key, state,\n};\nfn f() { crate::store::open() }\n";
    let source = Source { path: "src/model/x.rs".into(), text: text.into() };
    let named: Vec<String> = named_rooms(&source).into_iter().map(|(_, name)| name).collect();
    assert_eq!(named, ["api", "model", "state", "store"]);
}

#[test]
fn only_the_node_knows_the_front_end() {
    let mut breaches = Vec::new();
    for source in sources("src") {
        let allowed = ["src/api/", "src/node.rs", "src/node/", "src/lib.rs"];
        if allowed.iter().any(|path| source.path.starts_with(path)) {
            continue;
        }
        let named = named_rooms(&source).into_iter().filter(|(_, name)| name == "api");
        breaches.extend(named.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    none("`api` is named outside `node`", &breaches);
}

#[test]
fn each_library_has_its_home() {
    let mut breaches = Vec::new();
    for source in sources("src") {
        for (library, homes) in HOMES {
            if homes.split(' ').any(|home| source.path.starts_with(home)) {
                continue;
            }
            for (number, line) in source.code() {
                let begins_a_path =
                    |(word, behind): (&str, &str)| word == library && behind.starts_with("::");
                let used = words(line).any(begins_a_path) || line.trim() == format!("use {library};");
                // `crate::store::sled::…` is our own module of that name.
                let own = line.contains(&format!("::{library}::"));
                if used && !own {
                    breaches
                        .push(format!("{}:{number} uses `{library}`, which lives in {homes}", source.path));
                }
            }
        }
    }
    none("a library outside its home", &breaches);
}

#[test]
fn what_is_agreed_on_depends_on_nothing_but_its_input() {
    let banned = [
        "SystemTime",
        "Instant",
        "std::fs",
        "std::net",
        "std::env",
        "std::thread",
        "tokio::",
        "fastrand::",
        "Timestamp::now",
        "HashMap",
        "HashSet",
        "RandomState",
        "async fn",
        "println!",
        "new_v4",
        "now_v7",
    ];
    let mut breaches = Vec::new();
    for source in sources("src") {
        let pure = ["src/model/", "src/state/"].iter().any(|room| source.path.starts_with(room));
        if !pure || source.path.ends_with("/tests.rs") {
            continue;
        }
        for (number, line) in source.product() {
            let found = banned.iter().filter(|word| line.contains(**word));
            breaches.extend(found.map(|word| format!("{}:{number} holds `{word}`", source.path)));
        }
    }
    none("`model` and `state` are pure", &breaches);
}

#[test]
fn only_the_reply_knows_status_codes() {
    let mut breaches = Vec::new();
    for source in sources("src") {
        let allowed = ["src/api/", "src/cli/", "src/peer/client.rs"];
        if allowed.iter().any(|path| source.path.starts_with(path)) {
            continue;
        }
        let lines = source.product().filter(|(_, line)| line.contains("StatusCode"));
        breaches.extend(lines.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    none("a status code outside `api`", &breaches);
}

#[test]
fn every_file_says_what_it_is_for_and_is_not_too_long() {
    let mut breaches = Vec::new();
    for source in sources("src").into_iter().chain(sources("tests")) {
        if !source.text.starts_with("//! ") {
            breaches.push(format!("{} does not begin with `//! `", source.path));
        }
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            breaches.push(format!("{} has {lines} lines; {LINES_MAX} are enough", source.path));
        }
    }
    none("a file's head and length", &breaches);
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that this file does not hold them.
    let marks = [
        ["//! ST", "UB"].concat(),
        ["FIX", "ME"].concat(),
        ["TO", "DO"].concat(),
        ["todo", "!("].concat(),
        ["dbg", "!("].concat(),
    ];
    let mut breaches = Vec::new();
    for source in sources("src").into_iter().chain(sources("tests")) {
        for (place, line) in source.text.lines().enumerate() {
            let found = marks.iter().filter(|mark| line.contains(mark.as_str()));
            breaches.extend(found.map(|mark| format!("{}:{} holds `{mark}`", source.path, place + 1)));
        }
    }
    none("a mark of unfinished work", &breaches);
}
