//! Contexts: named clusters, in a file of the user.
//!
//! **Invariants:** only the owner can read the file, from the moment it exists. A change replaces it atomically.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, IsTerminal as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    connection::Failure,
    output::{Format, OutputArgs, Table, confirm, print_value, say},
};

#[derive(Debug, Subcommand)]
pub(super) enum ContextCommand {
    /// List the contexts, or show one of them
    List {
        /// The name of the context [default: all contexts]
        name: Option<String>,
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Make a context the current one
    Use {
        /// The name of the context
        name: String,
    },
    /// Create or replace a context
    Set(SetArgs),
    /// Delete a context
    Delete {
        /// The name of the context
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// The name of the context
    name: String,
    /// Node URLs, comma-separated
    #[arg(long, required = true, value_delimiter = ',', value_name = "URL")]
    url: Vec<String>,
    /// The file that holds the access key. Without it, the key is read from stdin and stored in the context
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// CA certificates to verify the nodes with, in PEM
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
}

/// How to connect to a cluster. `Debug` does not show the key.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Context {
    pub(super) urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) api_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) api_key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ca_file: Option<PathBuf>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { urls, api_key, api_key_file, ca_file } = self;
        f.debug_struct("Context")
            .field("urls", urls)
            .field("api_key", &api_key.as_ref().map(|_| "***"))
            .field("api_key_file", api_key_file)
            .field("ca_file", ca_file)
            .finish()
    }
}

impl Context {
    /// Its key.
    pub(super) fn read_key(&self) -> Result<String, String> {
        match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Ok(key.clone()),
            (None, Some(path)) => {
                let text =
                    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(text.lines().next().unwrap_or_default().trim().to_owned())
            }
            (None, None) => Err("the context has no key: set CONCORD_API_KEY or CONCORD_API_KEY_FILE".into()),
        }
    }
}

/// All contexts of the user.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) current: Option<String>,
    pub(super) contexts: BTreeMap<String, Context>,
}

/// The file of the contexts; `None` if the user has no home directory.
fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(config.join("concord").join("contexts.json"))
}

impl Contexts {
    /// The contexts of the user; none if there is no file.
    pub(super) fn read() -> Result<Self, String> {
        let Some(path) = path() else { return Ok(Self::default()) };
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// The error for an unknown context.
    pub(super) fn has_no(&self, name: &str) -> String {
        let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
        let hint = if known.is_empty() {
            "no context exists: create one with `concord context set NAME --url URL --api-key-file FILE`"
                .to_owned()
        } else {
            format!("existing contexts: {}", known.join(", "))
        };
        format!("context `{name}` does not exist\nhint: {hint}")
    }

    /// Changes the contexts of the user. Concurrent commands wait for each other.
    pub(super) fn change(change: impl FnOnce(&mut Self) -> Result<(), Failure>) -> Result<(), Failure> {
        let no_home = || String::from("no home directory: set HOME or XDG_CONFIG_HOME");
        let path = path().ok_or_else(no_home)?;
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let lock = folder.join("contexts.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(lock)
            .map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut contexts = Self::read()?;
        change(&mut contexts)?;
        let text = serde_json::to_string_pretty(&contexts).map_err(|error| error.to_string())?;
        let new = folder.join("contexts.json.new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error).into()),
            _ => {}
        }
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(failed)?;
        Ok(file.sync_all().and_then(|()| fs::rename(&new, &path)).map_err(failed)?)
    }
}

/// Runs a command.
pub(super) fn run(command: ContextCommand) -> Result<(), Failure> {
    match command {
        ContextCommand::List { name, format } => list(name.as_deref(), &format.or_table()),
        ContextCommand::Use { name } => Contexts::change(|contexts| {
            if !contexts.contexts.contains_key(&name) {
                return Err(Failure::Missing(contexts.has_no(&name)));
            }
            contexts.current = Some(name);
            Ok(())
        }),
        ContextCommand::Set(args) => set(args),
        ContextCommand::Delete { name, yes } => delete(&name, yes),
    }
}

fn delete(name: &str, yes: bool) -> Result<(), Failure> {
    // The confirmation happens without the lock, so that no other command waits for it.
    let contexts = Contexts::read().map_err(Failure::Failed)?;
    let found = contexts.contexts.get(name).ok_or_else(|| Failure::Missing(contexts.has_no(name)))?;
    let with_key = if found.api_key.is_some() { " and the access key stored in it" } else { "" };
    confirm(&format!("context {name}{with_key} will be deleted"), yes)?;
    Contexts::change(|contexts| {
        if contexts.contexts.remove(name).is_none() {
            return Err(Failure::Missing(contexts.has_no(name)));
        }
        if contexts.current.as_deref() == Some(name) {
            contexts.current = None;
        }
        Ok(())
    })
}

fn set(args: SetArgs) -> Result<(), Failure> {
    let api_key = if args.api_key_file.is_some() {
        None
    } else {
        if io::stdin().is_terminal() {
            say("paste the access key and press Enter:");
        }
        let mut line = String::new();
        io::stdin().read_line(&mut line).map_err(|error| format!("stdin: {error}"))?;
        let key = line.trim().to_owned();
        if key.is_empty() {
            return Err(Failure::Usage("pass --api-key-file, or the key on stdin".into()));
        }
        Some(key)
    };
    // Commands in other directories use the paths too.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let context = Context {
        urls: args.url,
        api_key,
        api_key_file: args.api_key_file.map(absolute),
        ca_file: args.cacert.map(absolute),
    };
    Contexts::change(|contexts| {
        contexts.contexts.insert(args.name.clone(), context);
        contexts.current.get_or_insert(args.name);
        Ok(())
    })
}

fn list(name: Option<&str>, format: &Format) -> Result<(), Failure> {
    let mut contexts = Contexts::read().map_err(Failure::Failed)?;
    if let Some(name) = name {
        if !contexts.contexts.contains_key(name) {
            return Err(Failure::Missing(contexts.has_no(name)));
        }
        contexts.contexts.retain(|known, _| known == name);
    }
    let mut table = Table::new("name", &["CURRENT", "NAME", "URLS"], &["KEY FILE", "CA FILE"]);
    let mut rows = Vec::new();
    for (name, context) in &contexts.contexts {
        let is_current = contexts.current.as_ref() == Some(name);
        let text = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(String::new, |path| path.display().to_string())
        };
        let (key_file, ca_file) = (text(&context.api_key_file), text(&context.ca_file));
        let mark = if is_current { "*" } else { "" };
        table.row(&[mark, name, &context.urls.join(","), &key_file, &ca_file]);
        rows.push(json!({
            "name": name,
            "current": is_current,
            "urls": context.urls,
            "api_key_file": context.api_key_file,
            "ca_file": context.ca_file,
        }));
    }
    print_value(format, &rows.into(), &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_shows_no_key() {
        let context = Context { api_key: Some("concord_a-secret-key".into()), ..Context::default() };
        let all = Contexts { current: None, contexts: BTreeMap::from([("prod".into(), context)]) };
        let shown = format!("{all:?}");
        assert!(!shown.contains("a-secret-key") && shown.contains("prod"), "{shown}");
    }
}
