//! `concord check PATH…`: definitions and configs in files, checked as a node checks them, without a node.
//!
//! What only a cluster knows is not checked: its limits, the configs that it has, and what the access key may do.
//!
//! **Invariant:** a secret value is in no message.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, ValueEnum};
use concord_model::{
    error::{LocSegment, Violation},
    index::{self, IndexPath, StoredPath},
    key::{Key, KeyError},
    schema::{Formats, Schema},
};
use serde_json::{Value, json};

use super::{
    connection::Failure,
    document,
    manifest::{FileArgs, ManifestDefinition, Manifests, Place, name},
    mask::pointer,
    output::{counted, escaped, line, printable, say},
    secret_source::{self, Marker, NOT_SECRET},
};

/// Bytes that are read to find lines in one file. Each line takes a pass over the file; the others are those of their
/// documents.
const LINES_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Files of definitions and configs, or directories with their subdirectories; `-` for stdin
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Definitions that are not among these files, such as those of an export; they are not checked. Repeatable
    #[arg(long, value_name = "PATH")]
    definitions: Vec<PathBuf>,
    /// How to print what is wrong
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: CheckFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// A line for each, with file and line
    #[default]
    Text,
    /// A JSON list
    Json,
    /// Annotations of GitHub Actions
    Github,
}

/// Something that is wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    file: PathBuf,
    line: Option<usize>,
    /// The definition and the config; empty where the file can't be read.
    record: (String, String),
    /// The steps to it in the record.
    loc: Vec<LocSegment>,
    code: &'static str,
    text: String,
}

/// Runs the command.
pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let (manifests, unread) = Manifests::read_all(&FileArgs::new(args.paths.clone(), true))?;
    let mut known = Known::default();
    if !args.definitions.is_empty() {
        let others = Manifests::read(&FileArgs::new(args.definitions.clone(), true))?;
        for (key, definition) in &others.definitions {
            // The violations are those of other files.
            let (compiled, _) = Compiled::of(definition);
            known.definitions.insert(key.clone(), compiled);
        }
    }
    let mut problems: Vec<Problem> = unread
        .into_iter()
        .map(|problem| Problem {
            file: problem.file,
            line: problem.line,
            record: Default::default(),
            loc: Vec::new(),
            code: "file_invalid",
            text: problem.text,
        })
        .collect();
    problems.extend(known.check(&manifests));
    print(args.output, &problems)?;
    if !problems.is_empty() {
        say(format_args!("{} found", counted(problems.len() as u64, "problem")));
        return Err(Failure::Difference);
    }
    if args.output == CheckFormat::Text {
        let definitions = counted(manifests.definitions.len() as u64, "definition");
        line(format_args!("valid: {definitions}, {}", counted(manifests.configs.len() as u64, "config")))?;
    }
    Ok(())
}

/// What is wrong in a directory, a line for each.
pub(super) fn problems(folder: &Path) -> Result<Vec<String>, Failure> {
    let (manifests, unread) = Manifests::read_all(&FileArgs::folder(folder))?;
    let unread = unread.into_iter().map(|problem| format!("{}: {}", problem.file.display(), problem.text));
    Ok(unread.chain(Known::default().check(&manifests).iter().map(Problem::line)).collect())
}

/// What is needed of a definition for its configs.
struct Compiled {
    /// `None` accepts any object, and also stands for a schema that is wrong.
    schema: Option<Arc<Schema>>,
    indexes: Vec<StoredPath>,
    unique: Vec<String>,
}

impl Compiled {
    /// A definition for its configs, and what is wrong with it: the code, and the violation.
    fn of(definition: &ManifestDefinition) -> (Self, Vec<(&'static str, Violation)>) {
        let mut wrong = Vec::new();
        let formats = Formats::of(definition.format_assertion.unwrap_or(true));
        let schema = match definition.schema.as_ref().map(|schema| Schema::compile(schema, formats)) {
            Some(Ok(schema)) => Some(Arc::new(schema)),
            Some(Err(violations)) => {
                wrong
                    .extend(within("json_schema", violations).map(|violation| ("schema_invalid", violation)));
                None
            }
            None => None,
        };
        // How many there may be is a setting of the nodes.
        let paths = index::check_paths(&definition.indexes, definition.schema.as_ref(), usize::MAX);
        let paths = paths.unwrap_or_else(|violations| {
            wrong.extend(violations.into_iter().map(|violation| ("index_invalid", violation)));
            Vec::new()
        });
        if definition.schema.as_ref().is_some_and(|schema| !schema.is_object()) {
            wrong
                .push(("schema_invalid", Violation::at(vec!["json_schema".into()], "a schema is an object")));
        }
        for (n, path) in definition.unique.iter().enumerate() {
            let text = if !definition.indexes.contains(path) {
                format!("`{path}` is not an indexed path of the definition, so it can't be unique")
            } else if index::is_pattern(path) {
                format!("`{path}` may match several members, so it can't be unique")
            } else if definition.unique[..n].contains(path) {
                format!("`{path}` is listed twice")
            } else {
                continue;
            };
            let loc = vec!["unique".into(), LocSegment::Index(n as u64)];
            wrong.push(("index_invalid", Violation::at(loc, text)));
        }
        let slot = |(slot, path): (u16, IndexPath)| StoredPath { slot, path };
        let indexes = (0..).zip(paths).map(slot).collect();
        (Self { schema, indexes, unique: definition.unique.clone() }, wrong)
    }
}

/// The locations of violations from the record.
fn within(member: &str, violations: Vec<Violation>) -> impl Iterator<Item = Violation> {
    violations.into_iter().map(move |violation| {
        let mut loc = vec![member.into()];
        loc.extend(violation.loc);
        Violation { loc, ..violation }
    })
}

/// The definitions by which configs are checked.
#[derive(Default)]
struct Known {
    definitions: BTreeMap<String, Compiled>,
}

impl Known {
    /// What is wrong with definitions and configs, in the order of their keys.
    fn check(&mut self, manifests: &Manifests) -> Vec<Problem> {
        let mut found = Found::default();
        for (key, definition) in &manifests.definitions {
            let place = manifests.place(key, "");
            if Key::parse(key).is_err() {
                let loc = vec!["config_definition_key".into()];
                found.add(place, (key, ""), "key_invalid", Violation::at(loc, key_text(key)));
            }
            let (compiled, wrong) = Compiled::of(definition);
            for (code, violation) in wrong {
                found.add(place, (key, ""), code, violation);
            }
            self.definitions.insert(key.clone(), compiled);
        }
        let mut values = BTreeMap::new();
        for ((definition, key), data) in &manifests.configs {
            if manifests.is_unread(definition) {
                continue;
            }
            let place = manifests.place(definition, key);
            for (code, violation) in self.config(definition, key, data, &mut values) {
                found.add(place, (definition, key), code, violation);
            }
        }
        found.problems
    }

    /// What is wrong with a config. `values` are the values of unique fields that other configs have, with their keys.
    fn config<'m>(
        &self,
        definition: &'m str,
        key: &'m str,
        data: &Value,
        values: &mut BTreeMap<(&'m str, u16, Vec<u8>), &'m str>,
    ) -> Vec<(&'static str, Violation)> {
        let mut wrong = Vec::new();
        if Key::parse(key).is_err() {
            wrong.push(("key_invalid", Violation::at(vec!["config_key".into()], key_text(key))));
        }
        let Some(known) = self.definitions.get(definition) else {
            let text = format!("definition {definition} is in no file; --definitions names others");
            wrong.push(("definition_not_found", Violation::at(vec!["config_definition_key".into()], text)));
            return wrong;
        };
        if !data.is_object() {
            let text = "the data of a config are an object";
            wrong.push(("data_invalid", Violation::at(vec!["data".into()], text)));
            return wrong;
        }
        // The secret value that a marker stands for is not here; it fits or not.
        let (marked, misplaced) = markers(known.schema.as_deref(), data);
        wrong.extend(within("data", misplaced).map(|violation| ("data_invalid", violation)));
        let checked = known.schema.as_ref().map_or(Ok(()), |schema| schema.check(data));
        if let Err(mut violations) = checked {
            violations.retain(|violation| !marked.contains(&violation.loc));
            wrong.extend(within("data", violations).map(|violation| ("data_invalid", violation)));
        }
        match index::entries(&known.indexes, data) {
            Err(violation) => {
                wrong.extend(within("data", vec![violation]).map(|violation| ("data_invalid", violation)));
            }
            Ok(entries) => {
                for entry in &entries {
                    let path = &known.indexes[usize::from(entry.slot)].path.text;
                    let value = (definition, entry.slot, entry.value.to_vec());
                    if known.unique.contains(path)
                        && let Some(other) = values.insert(value, key)
                    {
                        let text =
                            format!("`{path}` is unique, and config `{other}` has the same value there");
                        let steps = path.split('.').map(LocSegment::from);
                        let loc = std::iter::once("data".into()).chain(steps).collect();
                        wrong.push(("unique_taken", Violation::at(loc, text)));
                    }
                }
            }
        }
        wrong
    }
}

/// The places of markers of secret values, and what is wrong with markers.
fn markers(schema: Option<&Schema>, data: &Value) -> (Vec<Vec<LocSegment>>, Vec<Violation>) {
    let found = secret_source::markers(data);
    if found.is_empty() {
        return Default::default();
    }
    let mut secret: Vec<Vec<LocSegment>> = Vec::new();
    if let Some(places) = schema.and_then(Schema::secrets) {
        places.visit(data, data.to_string().len(), &mut |loc, _| secret.push(loc.to_vec()));
    }
    let (mut marked, mut wrong) = (Vec::new(), Vec::new());
    for (loc, marker) in found {
        let text = match marker {
            Marker::Wrong(text) => {
                marked.push(loc.clone());
                text
            }
            Marker::Keep | Marker::Source(_) if secret.iter().any(|place| loc.starts_with(place)) => {
                marked.push(loc);
                continue;
            }
            Marker::Keep | Marker::Source(_) => NOT_SECRET,
        };
        wrong.push(Violation::at(loc, text));
    }
    (marked, wrong)
}

fn key_text(key: &str) -> String {
    format!("`{key}`: {KeyError}")
}

/// What is wrong with the data of a config by its definition alone: the codes, and the violations.
pub(super) fn violations(
    definition: &ManifestDefinition,
    key: &str,
    data: &Value,
) -> Vec<(&'static str, Violation)> {
    // There is one definition, whatever its key.
    let known = Known { definitions: BTreeMap::from([(String::new(), Compiled::of(definition).0)]) };
    known.config("", key, data, &mut BTreeMap::new())
}

/// The problems, with the texts of the files in which their lines are looked for.
#[derive(Default)]
struct Found {
    problems: Vec<Problem>,
    texts: BTreeMap<PathBuf, (usize, String)>,
}

impl Found {
    fn add(
        &mut self,
        place: Option<&Place>,
        (definition, key): (&str, &str),
        code: &'static str,
        Violation { msg, loc }: Violation,
    ) {
        let file = place.map_or_else(PathBuf::new, |place| place.file.clone());
        let line = place.map(|place| self.line(place, &loc));
        let record = (definition.to_owned(), key.to_owned());
        self.problems.push(Problem { file, line, record, loc, code, text: msg });
    }

    fn line(&mut self, place: &Place, loc: &[LocSegment]) -> usize {
        if place.file == Path::new("-") {
            return place.line;
        }
        let read = || (0, fs::read_to_string(&place.file).unwrap_or_default());
        let (lookups, text) = self.texts.entry(place.file.clone()).or_insert_with(read);
        *lookups += 1;
        if lookups.saturating_mul(text.len()) > LINES_BYTES_MAX {
            return place.line;
        }
        let steps = place
            .item
            .map(|item| item.to_string())
            .into_iter()
            .chain(loc.iter().map(step))
            .collect::<Vec<_>>();
        document::line_of(text, &place.file, place.document, &steps).unwrap_or(place.line)
    }
}

fn step(segment: &LocSegment) -> String {
    match segment {
        LocSegment::Name(name) => name.clone(),
        LocSegment::Index(place) => place.to_string(),
    }
}

fn print(format: CheckFormat, problems: &[Problem]) -> Result<(), Failure> {
    if format == CheckFormat::Json {
        let all: Vec<Value> = problems.iter().map(Problem::to_json).collect();
        return line(escaped(&format!("{:#}", Value::Array(all))));
    }
    // Names of members and files are whatever somebody wrote: each problem is one line, all of which is seen.
    for problem in problems {
        match format {
            CheckFormat::Github => line(printable(&problem.annotation()))?,
            CheckFormat::Text | CheckFormat::Json => line(printable(&problem.line()))?,
        }
    }
    Ok(())
}

impl Problem {
    fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}", self.file.display())
    }

    /// What it is about: the record and the place in it.
    fn subject(&self) -> String {
        let (definition, key) = &self.record;
        if definition.is_empty() {
            return String::new();
        }
        let place = if self.loc.is_empty() { String::new() } else { format!(" {}", pointer(&self.loc)) };
        format!("{}{place}: ", name(definition, key))
    }

    fn line(&self) -> String {
        format!("{}: {}{}", self.place(), self.subject(), self.text)
    }

    fn to_json(&self) -> Value {
        let (definition, key) = &self.record;
        let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        json!({
            "file": self.file.display().to_string(),
            "line": self.line,
            "config_definition_key": text(definition),
            "config_key": text(key),
            "path": pointer(&self.loc),
            "code": self.code,
            "msg": self.text,
        })
    }

    /// A workflow command: <https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands>.
    fn annotation(&self) -> String {
        let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
        let line = self.line.map(|line| format!(",line={line}")).unwrap_or_default();
        let file = property(&self.file.display().to_string());
        format!("::error file={file}{line}::{}{}", data(&self.subject()), data(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let (manifests, unread) = Manifests::read_all(&FileArgs::folder(folder.path())).unwrap();
        let unread = unread.into_iter().map(|problem| {
            let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
            format!("{}{line}: {}", problem.file.display(), problem.text)
        });
        let found = Known::default().check(&manifests);
        let all = unread.chain(found.iter().map(Problem::line));
        all.map(|line| line.replace(&format!("{}/", folder.path().display()), "")).collect()
    }

    const DEFINITION: &str = "config_definition_key: limits
indexes: [plan, port]
unique: [port]
json_schema:
  properties:
    plan: {enum: [free, pro]}
    port: {type: integer}
    password: {type: string, x-concord-secret: true}
";

    #[test]
    fn each_violation_has_its_file_and_line() {
        let configs = "config_definition_key: limits
config_key: acme
data:
  plan: gold
  port: x
---
config_definition_key: limits
config_key: globex
data: {plan: pro, password: 7}
";
        assert_eq!(
            problems(&[("a.yaml", DEFINITION), ("b.yaml", configs)]),
            [
                "b.yaml:4: config limits/acme /data/plan: \"gold\" is not one of \"free\" or \"pro\"",
                "b.yaml:5: config limits/acme /data/port: \"x\" is not of type \"integer\"",
                "b.yaml:9: config limits/globex /data/password: the secret value breaks `type` of the schema",
            ]
        );
    }

    #[test]
    fn what_is_wrong_with_a_definition_is_at_its_member() {
        let text = r#"[
  {"config_definition_key": "ok"},
  {
    "config_definition_key": "no good",
    "indexes": ["a", "b"],
    "unique": ["c"],
    "json_schema": {
      "properties": {"a": {"type": "text"}}
    }
  }
]"#;
        let found = problems(&[("a.json", text)]);
        let begin = |line: &String| line.split(": ").take(2).collect::<Vec<_>>().join(": ");
        assert_eq!(
            found.iter().map(begin).collect::<Vec<_>>(),
            [
                "a.json:4: definition no good /config_definition_key",
                "a.json:8: definition no good /json_schema/properties/a/type",
                "a.json:5: definition no good /indexes/1",
                "a.json:6: definition no good /unique/0",
            ],
            "{found:#?}"
        );
    }

    #[test]
    fn unique_values_and_unknown_definitions_are_found_across_files() {
        let config = |definition: &str, key: &str, port: &str| {
            format!("config_definition_key: {definition}\nconfig_key: {key}\ndata:\n  port: {port}\n")
        };
        assert_eq!(
            problems(&[
                ("a.yaml", DEFINITION),
                ("b.yaml", &config("limits", "one", "80")),
                ("c.yaml", &config("limits", "two", "8.0e1")),
                ("d.yaml", &config("others", "one", "1")),
                ("e.yaml", "- 1\n- config_key: x\n"),
                ("f.json", "{\"config_definition_key\": \"a\",\n \"indexs\": []}"),
                ("g.json", "{\n  nothing"),
            ]),
            [
                "e.yaml:1: expected a definition or a config, an object",
                "e.yaml:2: `config_definition_key` is missing",
                "f.json:1: unknown members: indexs",
                "g.json:2: Expected string for object property",
                "c.yaml:4: config limits/two /data/port: `port` is unique, and config `one` has the same value there",
                "d.yaml:1: config others/one /config_definition_key: definition others is in no file; --definitions names others",
            ]
        );
    }

    #[test]
    fn a_marker_keeps_a_secret_value_and_nothing_else() {
        let config = |data: &str| format!("config_definition_key: limits\nconfig_key: a\ndata: {data}\n");
        let valid = config("{plan: pro, password: {$concord-keep: true}}");
        assert_eq!(problems(&[("a.yaml", DEFINITION), ("b.yaml", &valid)]), Vec::<String>::new());
        let wrong = config("{plan: {$concord-keep: true}}");
        let found = problems(&[("a.yaml", DEFINITION), ("b.yaml", &wrong)]);
        assert!(
            found[0].ends_with("/data/plan: this stands for a secret value, but the field is not secret"),
            "{found:?}"
        );
    }

    #[test]
    fn what_is_named_is_found_once_and_at_its_line() {
        // A definition that can't be read is not one that is in no file.
        let found = problems(&[
            ("a.yaml", "config_definition_key: limits\nindex: [plan]\n"),
            ("b.yaml", "config_definition_key: limits\nconfig_key: a\ndata: {}\n"),
        ]);
        assert!(found.len() == 1 && found[0].contains("unknown members: index"), "{found:?}");
        let list = "[\n  {\"config_definition_key\": \"limits\"},\n\n  {\"config_key\": 1}\n]\n";
        let found = problems(&[("a.json", list)]);
        assert!(found.len() == 1 && found[0].contains("a.json:4: "), "{found:?}");
        let marked = "config_definition_key: limits\nconfig_key: a\ndata: {plan: pro, password: {$concord-env: PATH}}\n";
        let found = problems(&[("a.yaml", DEFINITION), ("b.yaml", marked)]);
        assert!(found.len() == 1 && found[0].contains("files can name no other variable"), "{found:?}");

        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.yaml"), DEFINITION).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("b.yaml")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("c.yaml"), rustix::fs::Mode::RUSR).unwrap();
        let paths = vec![folder.path().to_owned(), folder.path().join("a.yaml")];
        let (read, problems) = Manifests::read_all(&FileArgs::new(paths, false)).unwrap();
        assert_eq!((read.definitions.len(), problems.len()), (1, 1), "{problems:?}");
        assert!(problems[0].text.contains("No such file"), "{problems:?}");
    }

    #[test]
    fn an_annotation_has_no_line_end_and_no_other_property() {
        let problem = Problem {
            file: "a,b:c.yaml".into(),
            line: Some(3),
            record: ("limits".into(), "acme".into()),
            loc: vec!["data".into(), "a/b".into()],
            code: "data_invalid",
            text: "100% of\nthem".into(),
        };
        let expected = "::error file=a%2Cb%3Ac.yaml,line=3::config limits/acme /data/a~1b: 100%25 of%0Athem";
        assert_eq!(problem.annotation(), expected);
    }
}
