//! The settings file: which configs the agent keeps, which files it writes, where it serves.
//!
//! **Invariant:** settings in force are complete and checked: names exist, templates compile, and no two files have the
//! same path.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use concord_client::Selection;
use serde::Deserialize;

use super::{
    super::{connection::Failure, document, place::Target},
    format::{FileFormat, Layout, Variables},
    template::Template,
};

/// The settings as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSettings {
    configs: Vec<Selection>,
    data_dir: PathBuf,
    listen: Option<SocketAddr>,
    #[serde(default = "ten")]
    fresh_for_s: u64,
    #[serde(default = "two")]
    confirm_every_s: u64,
    #[serde(default)]
    files: Vec<WrittenFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    path: PathBuf,
    definition: Option<String>,
    config: Option<String>,
    format: Option<FileFormat>,
    prefix: Option<String>,
    names: Option<Vec<String>>,
    template: Option<PathBuf>,
    template_text: Option<String>,
    #[serde(default = "private")]
    mode: String,
    owner: Option<String>,
    group: Option<String>,
    #[serde(default)]
    check: Vec<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default = "half_a_second")]
    debounce_ms: u64,
    #[serde(default = "thirty")]
    timeout_s: u64,
    #[serde(default = "five")]
    retries: u32,
    #[serde(default)]
    when_absent: WhenAbsent,
}

fn ten() -> u64 {
    10
}

fn two() -> u64 {
    2
}

fn thirty() -> u64 {
    30
}

fn five() -> u32 {
    5
}

fn half_a_second() -> u64 {
    500
}

fn private() -> String {
    "0600".into()
}

/// What happens to a file whose config does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WhenAbsent {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is removed.
    Remove,
}

/// The content of a file.
#[derive(Debug)]
pub(super) enum FileContent {
    /// The data of a config.
    Config(String, String, Layout),
    /// The data of all configs of a definition, by key.
    Definition(String, Layout),
    /// A template over all configs that the agent keeps.
    Template(Template),
}

/// A file that the agent writes.
#[derive(Debug)]
pub(super) struct FileSettings {
    pub(super) path: PathBuf,
    pub(super) content: FileContent,
    pub(super) target: Target,
    /// Judges the new file before it replaces the current one.
    pub(super) check: Vec<String>,
    pub(super) command: Vec<String>,
    pub(super) debounce: Duration,
    pub(super) timeout: Duration,
    pub(super) retries: u32,
    pub(super) when_absent: WhenAbsent,
}

/// The settings of an agent.
#[derive(Debug)]
pub(super) struct AgentSettings {
    pub(super) configs: Vec<Selection>,
    pub(super) data_dir: PathBuf,
    pub(super) listen: Option<SocketAddr>,
    pub(super) fresh_for: Duration,
    pub(super) confirm_every: Duration,
    pub(super) files: Vec<FileSettings>,
}

impl AgentSettings {
    /// What the agent keeps of a definition: all of it, or some of its configs. Empty if it keeps nothing of it.
    pub(super) fn kept_of(&self, definition: &str) -> Vec<Option<&str>> {
        let selections = self.configs.iter().filter(|one| has_definition(one, definition));
        let kept: BTreeSet<Option<&str>> = selections.map(|one| one.config.as_deref()).collect();
        // All of it includes each of them.
        if kept.contains(&None) { vec![None] } else { kept.into_iter().collect() }
    }

    /// The definitions that the settings name, not by a key prefix.
    pub(super) fn named_definitions(&self) -> BTreeSet<String> {
        let names = self.configs.iter().map(|one| &one.definition);
        names.filter(|name| !name.ends_with('*')).cloned().collect()
    }

    /// Reads and checks a file of settings. Paths in it are relative to its folder.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let named = |error: String| format!("{}: {error}", path.display());
        let mut documents = document::read_file(path).map_err(Failure::into_text)?;
        let (Some(document), true) = (documents.pop(), documents.is_empty()) else {
            return Err(named("expected one YAML document".into()));
        };
        let written: RawSettings = serde_json::from_value(document::without_schema_reference(document.value))
            .map_err(|error| named(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        written.check(folder).map_err(named)
    }
}

impl RawSettings {
    fn check(self, folder: &Path) -> Result<AgentSettings, String> {
        if self.configs.is_empty() {
            return Err("`configs` is empty: name the definitions to keep".into());
        }
        if let Some(address) = self.listen
            && !address.ip().is_loopback()
        {
            return Err(format!(
                "`listen: {address}` is not on loopback: its clients read without an access key"
            ));
        }
        if self.fresh_for_s <= self.confirm_every_s || self.confirm_every_s == 0 {
            return Err(
                "`fresh_for_s` must be greater than `confirm_every_s`, which must be greater than 0".into()
            );
        }
        let mut paths = BTreeSet::new();
        let mut files = Vec::new();
        for file in self.files {
            let file = file.check(folder, &self.configs)?;
            if !paths.insert(file.path.clone()) {
                return Err(format!("duplicate path in `files`: {}", file.path.display()));
            }
            files.push(file);
        }
        Ok(AgentSettings {
            configs: self.configs,
            data_dir: folder.join(self.data_dir),
            listen: self.listen,
            fresh_for: Duration::from_secs(self.fresh_for_s),
            confirm_every: Duration::from_secs(self.confirm_every_s),
            files,
        })
    }
}

impl WrittenFile {
    fn check(self, folder: &Path, configs: &[Selection]) -> Result<FileSettings, String> {
        let path = folder.join(&self.path);
        let named = |error: String| format!("file {}: {error}", path.display());
        let content = self.content(folder, configs).map_err(named)?;
        let target = Target::new(&path, &self.mode, self.owner.as_deref(), self.group.as_deref());
        Ok(FileSettings {
            content,
            target: target.map_err(named)?,
            check: self.check,
            command: self.command,
            debounce: Duration::from_millis(self.debounce_ms),
            timeout: Duration::from_secs(self.timeout_s.max(1)),
            retries: self.retries,
            when_absent: self.when_absent,
            path,
        })
    }

    /// The format with its settings.
    fn layout(&self) -> Result<Layout, String> {
        let format = self.format.unwrap_or(FileFormat::Json);
        match (format, &self.prefix, &self.names) {
            (FileFormat::Env, Some(prefix), None) => Variables::prefixed(prefix).map(Layout::Env),
            (FileFormat::Env, None, Some(names)) => Variables::listed(names).map(Layout::Env),
            (FileFormat::Env, None, None) => {
                Err("`format: env` needs `prefix`, with which the names of all variables \
                 begin, or `names`, the list of them: otherwise the data could set any variable"
                    .into())
            }
            (FileFormat::Env, Some(_), Some(_)) => Err("`prefix` and `names` can't be combined".into()),
            (_, None, None) => Ok(Layout::Data(format)),
            (..) => Err("`prefix` and `names` are for `format: env`".into()),
        }
    }

    fn content(&self, folder: &Path, configs: &[Selection]) -> Result<FileContent, String> {
        let layout = self.layout()?;
        let template = match (&self.template, &self.template_text) {
            (Some(_), Some(_)) => return Err("`template` and `template_text` can't be combined".into()),
            (Some(path), None) => Some(Template::read(&folder.join(path))?),
            (None, Some(text)) => Some(Template::new(&self.path.display().to_string(), text)?),
            (None, None) => None,
        };
        match (template, &self.definition, &self.config) {
            (Some(template), None, None) if self.format.is_none() => Ok(FileContent::Template(template)),
            (Some(_), ..) => {
                Err("a template can't be combined with `definition`, `config` or `format`".into())
            }
            (None, Some(definition), config) => {
                let is_held = |one: &Selection| holds(one, definition, config.as_deref());
                if !configs.iter().any(is_held) {
                    return Err(format!("`configs` does not include `{definition}`, which this file needs"));
                }
                Ok(match config {
                    Some(config) => FileContent::Config(definition.clone(), config.clone(), layout),
                    None => FileContent::Definition(definition.clone(), layout),
                })
            }
            (None, None, _) => Err("`definition` or a template is missing".into()),
        }
    }
}

/// Whether a selection has configs of this definition.
fn has_definition(selection: &Selection, definition: &str) -> bool {
    match selection.definition.strip_suffix('*') {
        Some(prefix) => definition.starts_with(prefix),
        None => definition == selection.definition,
    }
}

/// Whether a selection includes this config, or the whole definition.
fn holds(selection: &Selection, definition: &str, config: Option<&str>) -> bool {
    has_definition(selection, definition)
        && (selection.config.is_none() || selection.config.as_deref() == config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AgentSettings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.yaml");
        std::fs::write(&path, text).unwrap();
        AgentSettings::read(&path).map_err(|error| error.replace(folder.path().to_str().unwrap(), ""))
    }

    const HEAD: &str = "configs: [{definition: limits}]\ndata_dir: d\n";

    #[test]
    fn settings_have_defaults() {
        let settings =
            read(&format!("{HEAD}files: [{{path: a.json, definition: limits, config: acme}}]")).unwrap();
        assert_eq!((settings.fresh_for.as_secs(), settings.confirm_every.as_secs()), (10, 2));
        assert!(settings.data_dir.ends_with("d"));
        let file = &settings.files[0];
        assert!(
            matches!(&file.content, FileContent::Config(definition, config, Layout::Data(FileFormat::Json)) if definition == "limits" && config == "acme")
        );
        assert_eq!((file.debounce.as_millis(), file.retries, file.when_absent), (500, 5, WhenAbsent::Keep));
    }

    #[test]
    fn what_is_kept_of_a_definition_is_known() {
        let settings = read(
            "configs: [{definition: one, config: a}, {definition: one, config: b}, {definition: 'two.*'}, \
             {definition: two.x, config: c}]\ndata_dir: d\n",
        )
        .unwrap();
        assert_eq!(settings.kept_of("one"), [Some("a"), Some("b")]);
        assert_eq!((settings.kept_of("two.x"), settings.kept_of("three").len()), (vec![None], 0));
        assert_eq!(settings.named_definitions().into_iter().collect::<Vec<_>>(), ["one", "two.x"]);
    }

    #[test]
    fn what_can_not_be_used_is_refused_with_its_place() {
        for (tail, expected) in [
            ("listen: 0.0.0.0:80", "not on loopback"),
            ("fresh_for_s: 2", "must be greater"),
            ("colour: red", "unknown field `colour`"),
            ("files: [{path: a}]", "`definition` or a template is missing"),
            ("files: [{path: a, definition: other}]", "`configs` does not include `other`"),
            ("files: [{path: a, template_text: '{{', mode: '0600'}]", "template"),
            ("files: [{path: a, template_text: x, definition: limits}]", "can't be combined"),
            ("files: [{path: a, definition: limits, mode: rw}]", "mode"),
            ("files: [{path: a, definition: limits, format: env}]", "needs `prefix`"),
            ("files: [{path: a, definition: limits, format: env, prefix: LD_}]", "obeyed"),
            ("files: [{path: a, definition: limits, format: env, names: [PATH]}]", "obeyed"),
            ("files: [{path: a, definition: limits, prefix: X_}]", "are for `format: env`"),
            ("files: [{path: a, definition: limits, owner: nobody-has-this-name}]", "nobody-has-this-name"),
            (
                "files: [{path: a, definition: limits}, {path: a, definition: limits}]",
                "duplicate path in `files`",
            ),
        ] {
            let error = read(&format!("{HEAD}{tail}")).unwrap_err();
            assert!(error.starts_with("/agent.yaml") && error.contains(expected), "{tail}: {error}");
        }
    }
}
