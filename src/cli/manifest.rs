//! Definitions and configs in files, with the members of the API and no others.
//!
//! A definition is `config_definition_key`, `indexes`, `json_schema`, `unique`, `format_assertion` and `protected`; a
//! config is `config_definition_key`, `config_key` and `data`. Members that the service adds to a record (`created_at`,
//! `modified_at`, `revision`) are ignored, and so is `$schema`, which tells editors how to check a file.
//!
//! **Invariant:** unknown members are rejected: a typo must not pass for an absent setting.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
};

use clap::Args;
use concord_client::Operation;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{connection::Failure, document};

const DEFINITION_KEY: &str = "config_definition_key";
const CONFIG_KEY: &str = "config_key";
/// Members that say nothing here: those that the service adds to a record, and the one by which editors check a file.
const ADDED: [&str; 4] = ["created_at", "modified_at", "revision", "$schema"];
/// The extensions of the files that are read in a directory.
const EXTENSIONS: [&str; 4] = ["json", "jsonc", "yaml", "yml"];

/// The files to read.
#[derive(Debug, Clone, Args)]
pub(super) struct FileArgs {
    /// A file of definitions and configs, a directory of such files, or `-` for stdin; repeatable
    #[arg(short, long = "file", required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Also read subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl FileArgs {
    /// All files below a folder.
    pub(super) fn folder(path: &Path) -> Self {
        Self { files: vec![path.to_owned()], recursive: true }
    }

    /// These files and folders.
    pub(super) fn new(files: Vec<PathBuf>, recursive: bool) -> Self {
        Self { files, recursive }
    }

    /// The files to read, in their order.
    fn paths(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        for path in &self.files {
            if path.is_dir() {
                collect(path, self.recursive, &mut files).map_err(Failure::Usage)?;
            } else {
                files.push(path.clone());
            }
        }
        // A file that is named twice, as by itself and by its directory, is read once.
        let mut known = BTreeSet::new();
        files.retain(|path| path.canonicalize().map_or(true, |path| known.insert(path)));
        Ok(files)
    }
}

/// A definition as in a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ManifestDefinition {
    pub(super) indexes: Vec<String>,
    pub(super) schema: Option<Value>,
    pub(super) unique: Vec<String>,
    /// Whether `format` is asserted; `None` keeps the current setting.
    pub(super) format_assertion: Option<bool>,
    /// Whether its deletion is rejected; `None` keeps the current setting.
    pub(super) protected: Option<bool>,
}

impl ManifestDefinition {
    /// The key and the members of a definition.
    ///
    /// # Errors
    /// When a member is invalid or unknown; `place` is where it stands.
    pub(super) fn parse(value: Value, place: &str) -> Result<(String, Self), String> {
        let Value::Object(object) = value else { return Err(format!("{place}: expected an object")) };
        let mut fields = ManifestFields { object, place };
        Ok((fields.text(DEFINITION_KEY)?, fields.definition()?))
    }

    /// Creates it, without its unique fields and its protection.
    pub(super) fn create(&self, key: &str) -> Operation {
        Operation::CreateDefinition {
            definition: key.to_owned(),
            indexes: self.indexes.clone(),
            schema: self.schema.clone(),
            format_assertion: self.format_assertion,
        }
    }

    /// The definition in the form of a file, with its members always in the same order.
    pub(super) fn to_json(&self, key: &str) -> Value {
        let mut object = json!({ DEFINITION_KEY: key, "indexes": self.indexes });
        if let Some(schema) = &self.schema {
            object["json_schema"] = schema.clone();
        }
        if !self.unique.is_empty() {
            object["unique"] = json!(self.unique);
        }
        if let Some(asserted) = self.format_assertion {
            object["format_assertion"] = asserted.into();
        }
        if self.protected == Some(true) {
            object["protected"] = true.into();
        }
        object
    }
}

/// A config in the form of a file.
pub(super) fn config_json(definition: &str, key: &str, data: &Value) -> Value {
    json!({ DEFINITION_KEY: definition, CONFIG_KEY: key, "data": data })
}

/// All that was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Manifests {
    pub(super) definitions: BTreeMap<String, ManifestDefinition>,
    /// By definition and key.
    pub(super) configs: BTreeMap<(String, String), Value>,
    /// The place of each record, by definition and key; a definition has an empty second key.
    places: BTreeMap<(String, String), Place>,
    /// Definitions that are in the files and can't be read.
    unread: BTreeSet<String>,
}

/// Where a record was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    /// The number of its document, from 0.
    pub(super) document: usize,
    /// Its position, if the document is a list of records.
    pub(super) item: Option<usize>,
    /// The line at which it begins.
    pub(super) line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// What is wrong with a file or a record in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileProblem {
    pub(super) file: PathBuf,
    /// From 1, as far as it is known.
    pub(super) line: Option<usize>,
    pub(super) text: String,
}

impl Manifests {
    /// Reads files and folders.
    pub(super) fn read(args: &FileArgs) -> Result<Self, Failure> {
        let mut all = Self::default();
        for path in args.paths()? {
            all.add_file(&path, Err)?;
        }
        if all.definitions.is_empty() && all.configs.is_empty() {
            return Err(Failure::Usage(nothing_in(args)));
        }
        Ok(all)
    }

    /// The same, with everything that is wrong in place of the first.
    pub(super) fn read_all(args: &FileArgs) -> Result<(Self, Vec<FileProblem>), Failure> {
        let (mut all, mut problems) = (Self::default(), Vec::new());
        for path in args.paths()? {
            let is_named = args.files.contains(&path);
            all.add_file(&path, |failure| {
                // Not being readable is a problem of one of many files in a directory, and an error of one that is named.
                let is_unreadable = !is_named && matches!(failure, Failure::Usage(_));
                if !is_unreadable && !matches!(failure, Failure::Invalid(_)) {
                    return Err(failure);
                }
                let text = failure.into_text();
                problems.push(problem_of(&path, &text));
                Ok(())
            })?;
        }
        if all.definitions.is_empty() && all.configs.is_empty() && problems.is_empty() {
            return Err(Failure::Usage(nothing_in(args)));
        }
        Ok((all, problems))
    }

    /// Reads a file. `judge` decides whether it goes on after what is wrong.
    fn add_file(
        &mut self,
        file: &Path,
        mut judge: impl FnMut(Failure) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let documents = match document::read_file(file) {
            Ok(documents) => documents,
            Err(failure) => return judge(failure),
        };
        for (number, document) in documents.into_iter().enumerate() {
            let place = |item, line| Place { file: file.to_owned(), document: number, item, line };
            let items = match document.value {
                // An empty document, for example only a comment.
                Value::Null => Vec::new(),
                Value::Array(items) => {
                    let numbered = (0..).zip(document.items).zip(items);
                    numbered.map(|((n, line), item)| (place(Some(n), line), item)).collect()
                }
                one @ (Value::Object(_) | Value::String(_) | Value::Bool(_) | Value::Number(_)) => {
                    vec![(place(None, document.line), one)]
                }
            };
            for (place, item) in items {
                if let Err(text) = self.add(item, place) {
                    judge(Failure::Invalid(text))?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, value: Value, at: Place) -> Result<(), String> {
        let place = &at.to_string();
        let Value::Object(object) = value else {
            return Err(format!("{place}: expected a definition or a config, an object"));
        };
        let mut fields = ManifestFields { object, place };
        let definition = fields.text(DEFINITION_KEY)?;
        let id = if fields.object.contains_key(CONFIG_KEY) {
            let key = fields.text(CONFIG_KEY)?;
            let data = fields.object.shift_remove("data").ok_or(format!("{place}: `data` is missing"))?;
            fields.finish()?;
            self.configs.insert((definition.clone(), key.clone()), data);
            (definition, key)
        } else {
            let read = fields.definition().inspect_err(|_| {
                let _ = self.unread.insert(definition.clone());
            })?;
            self.definitions.insert(definition.clone(), read);
            (definition, String::new())
        };
        match self.places.insert(id.clone(), at) {
            None => Ok(()),
            Some(other) => Err(format!("{place}: {} is already defined at {other}", name(&id.0, &id.1))),
        }
    }

    /// Whether the files have a definition that can't be read.
    pub(super) fn is_unread(&self, definition: &str) -> bool {
        self.unread.contains(definition)
    }

    /// All records with their keys and places; the second key of a definition is empty.
    pub(super) fn places(&self) -> impl Iterator<Item = (&str, &str, &Place)> {
        self.places.iter().map(|((definition, key), place)| (definition.as_str(), key.as_str(), place))
    }

    /// Where something was read.
    pub(super) fn place(&self, definition: &str, key: &str) -> Option<&Place> {
        self.places.get(&(definition.to_owned(), key.to_owned()))
    }

    /// The digest of all that was read: it depends on the records alone, not on comments and the order of files.
    pub(super) fn digest(&self) -> String {
        let definitions = self.definitions.iter().map(|(key, definition)| definition.to_json(key));
        let configs = self.configs.iter().map(|((definition, key), data)| config_json(definition, key, data));
        let mut digest = Sha256::new();
        for record in definitions.chain(configs) {
            digest.update(record.to_string());
            digest.update("\n");
        }
        format!("{:x}", digest.finalize())
    }

    /// The keys of all definitions that are named.
    pub(super) fn named(&self) -> Vec<String> {
        let mut named: Vec<String> = self.definitions.keys().cloned().collect();
        named.extend(self.configs.keys().map(|(definition, _)| definition.clone()));
        named.sort();
        named.dedup();
        named
    }
}

/// How messages name a definition, which has no second key, or a config.
pub(super) fn name(definition: &str, key: &str) -> String {
    if key.is_empty() { format!("definition {definition}") } else { format!("config {definition}/{key}") }
}

/// The parts of a message `FILE[:LINE[:COLUMN]]: TEXT`.
fn problem_of(file: &Path, text: &str) -> FileProblem {
    let rest = text.strip_prefix(&file.display().to_string()).unwrap_or(text);
    let (place, text) = rest.split_once(": ").unwrap_or(("", rest));
    let line = place.split(':').nth(1).and_then(|line| line.parse().ok());
    FileProblem { file: file.to_owned(), line, text: text.to_owned() }
}

/// The error for files without definitions and configs.
fn nothing_in(args: &FileArgs) -> String {
    let named: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
    let text = format!("no definitions or configs found in {}", named.join(", "));
    if args.files.iter().any(|path| path.is_dir()) && !args.recursive {
        format!(
            "{text}\nhint: in a directory, files named {} are read; pass -R to include subdirectories",
            EXTENSIONS.map(|end| format!("*.{end}")).join(", ")
        )
    } else {
        text
    }
}

/// The files below a folder, in the order of their names.
fn collect(folder: &Path, recursive: bool, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            // A link may lead back to a folder above it.
            if recursive && !path.is_symlink() {
                collect(&path, recursive, files)?;
            }
        } else if path.extension().is_some_and(|found| EXTENSIONS.iter().any(|known| found == *known))
            // To read a pipe or a device might never end. A link that leads nowhere is an error when it is read.
            && (path.is_file() || !path.exists())
        {
            files.push(path);
        }
    }
    Ok(())
}

/// The members of an object that is read.
struct ManifestFields<'a> {
    object: Map<String, Value>,
    place: &'a str,
}

impl ManifestFields<'_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        match self.object.shift_remove(name) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            Some(_) => Err(format!("{}: `{name}` must be a non-empty string", self.place)),
            None => Err(format!("{}: `{name}` is missing", self.place)),
        }
    }

    fn texts(&mut self, name: &str) -> Result<Vec<String>, String> {
        let wrong = || format!("{}: `{name}` must be a list of strings", self.place);
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                items.into_iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>, String> {
        match self.object.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(format!("{}: `{name}` must be true or false", self.place)),
        }
    }

    /// The members of a definition beside its key.
    fn definition(&mut self) -> Result<ManifestDefinition, String> {
        let read = ManifestDefinition {
            indexes: self.texts("indexes")?,
            schema: self.object.shift_remove("json_schema").filter(|schema| !schema.is_null()),
            unique: self.texts("unique")?,
            format_assertion: self.boolean("format_assertion")?,
            protected: self.boolean("protected")?,
        };
        self.finish()?;
        Ok(read)
    }

    fn finish(&self) -> Result<(), String> {
        let unknown: Vec<&str> =
            self.object.keys().map(String::as_str).filter(|name| !ADDED.contains(name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(format!("{}: unknown members: {}", self.place, unknown.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Manifests, String> {
        let mut all = Manifests::default();
        all.add(value, place("f", 1))?;
        Ok(all)
    }

    fn place(file: &str, line: usize) -> Place {
        Place { file: file.into(), document: 0, item: None, line }
    }

    #[test]
    fn a_definition_and_a_config_are_read_and_written_alike() {
        let value = json!({"config_definition_key": "d", "indexes": ["a"], "json_schema": {"type": "object"},
            "unique": ["a"], "format_assertion": false, "protected": true});
        let all = read(value.clone()).unwrap();
        assert_eq!(all.definitions["d"].to_json("d").to_string(), value.to_string());
        let value = json!({"config_definition_key": "d", "config_key": "k", "data": {"a": 1}, "revision": 7,
            "$schema": "concord.schema.json"});
        let all = read(value).unwrap();
        assert_eq!(all.configs[&("d".into(), "k".into())], json!({"a": 1}));
    }

    #[test]
    fn what_is_not_known_or_occurs_twice_is_refused() {
        for (value, expected) in [
            (json!({"config_definition_key": "d", "index": []}), "f:1: unknown members: index"),
            (json!({"config_definition_key": "d", "config_key": "k"}), "f:1: `data` is missing"),
            (json!({"config_key": "k", "data": {}}), "f:1: `config_definition_key` is missing"),
            (
                json!({"config_definition_key": "d", "indexes": "a"}),
                "f:1: `indexes` must be a list of strings",
            ),
            (json!([]), "f:1: expected a definition or a config, an object"),
        ] {
            assert_eq!(read(value).unwrap_err(), expected);
        }
        let mut all = read(json!({"config_definition_key": "d"})).unwrap();
        let again = all.add(json!({"config_definition_key": "d"}), place("g", 2)).unwrap_err();
        assert_eq!(again, "g:2: definition d is already defined at f:1");
    }
}
