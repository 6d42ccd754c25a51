//! The JSON Schema test suite: verdict by verdict, what agrees, and by name what does not.
//!
//! `CONCORD_SUITE` names its directory `tests`; scripts/schema-suite.sh fetches it and runs this. What is expected is
//! `fixtures/schema-suite.txt`: for each draft the required cases, the optional ones, and those of formats, which are
//! asserted there; by name each group of cases whose schema is rejected, and each case whose verdict is another.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use concord_model::schema::{Formats, Schema};
use serde_json::Value;

const DRAFTS: [(&str, &str); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

/// What was found of the files of one directory.
#[derive(Default)]
struct SuiteResult {
    agreed: usize,
    refused: usize,
    /// A line for each group that is rejected and each case that disagrees.
    named: Vec<String>,
}

impl SuiteResult {
    /// Runs all files of a directory.
    fn of(directory: &Path, uri: &str, formats: Formats) -> Self {
        let mut found = Self::default();
        for file in files(directory) {
            let text = std::fs::read_to_string(&file).unwrap();
            let groups: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            for group in groups.as_array().expect("a list of groups") {
                found.add(&name, group, uri, formats);
            }
        }
        found
    }

    fn add(&mut self, file: &str, group: &Value, uri: &str, formats: Formats) {
        let mut schema = group["schema"].clone();
        if let Some(members) = schema.as_object_mut() {
            members.entry("$schema").or_insert_with(|| uri.into());
        }
        let cases = group["tests"].as_array().expect("a list of cases");
        let title = group["description"].as_str().expect("a text");
        match Schema::compile(&schema, formats) {
            Err(violations) => {
                self.refused += cases.len();
                let why = reason(&violations[0].msg);
                self.named.push(format!("  refused, {} cases, {why}: {file}: {title}", cases.len()));
            }
            Ok(schema) => {
                for case in cases {
                    if schema.accepts(&case["data"]) == case["valid"] {
                        self.agreed += 1;
                    } else {
                        let case = case["description"].as_str().expect("a text");
                        self.named.push(format!("  disagrees: {file}: {title}: {case}"));
                    }
                }
            }
        }
    }
}

/// Why a schema is rejected: nothing is fetched, and there are no dialects but the drafts. Anything else is unexpected.
fn reason(message: &str) -> &str {
    match message {
        _ if message.contains("Concord fetches nothing") => "refers to another document",
        _ if message.contains("unknown dialect") => "has a dialect of its own",
        _ => message,
    }
}

/// The files of a directory, in their order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{directory:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "json"));
    files.sort();
    assert!(!files.is_empty(), "{directory:?} has no cases");
    files
}

#[expect(clippy::disallowed_methods, reason = "the directory is the caller's")]
#[test]
#[ignore = "needs the JSON Schema test suite"]
fn verdicts_are_those_of_the_suite_except_the_named_ones() {
    let suite = PathBuf::from(std::env::var("CONCORD_SUITE").expect("the directory is named"));
    let mut report = String::new();
    for (draft, uri) in DRAFTS {
        for (kind, directory, formats) in [
            ("required", draft.to_owned(), Formats::Annotated),
            ("optional", format!("{draft}/optional"), Formats::Annotated),
            ("formats", format!("{draft}/optional/format"), Formats::Asserted),
        ] {
            let found = SuiteResult::of(&suite.join(directory), uri, formats);
            let disagreed = found.named.iter().filter(|line| line.starts_with("  disagrees")).count();
            let (agreed, refused) = (found.agreed, found.refused);
            writeln!(report, "{draft}, {kind}: {agreed} agree, {disagreed} disagree, {refused} refused")
                .unwrap();
            for line in found.named {
                writeln!(report, "{line}").unwrap();
            }
        }
    }
    let expected = include_str!("fixtures/schema-suite.txt");
    assert!(
        report == expected,
        "what was found differs from crates/model/tests/fixtures/schema-suite.txt:\n{report}"
    );
}
