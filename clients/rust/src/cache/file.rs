//! The last-known-good file: what a cache held when it last followed the cluster, for a start without nodes.
//!
//! The first line says how the second one, the content as JSON, is checked.
//!
//! **Invariants:** the file is replaced as a whole, and only by content that the cluster has sent whole. It is readable
//! by its owner alone from the moment it exists. A file of one environment is never used for another one: its keys are
//! the same, and its values are not. A file that others may write, or whose bytes are not those that were
//! written, is not used.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    content::{Config, Content, Selection, is_selected},
    source::Moment,
};

/// The format of the file.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    concord_cache: u32,
    crc32c: u32,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    revision: u64,
    confirmed_at_ms: u64,
    node: Option<&'a str>,
    /// Without one, the keys are as the cluster has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<&'a str>,
    selections: &'a [Selection],
    configs: Vec<&'a Config>,
}

#[derive(Debug, Deserialize)]
struct Read {
    revision: u64,
    confirmed_at_ms: u64,
    node: Option<String>,
    #[serde(default)]
    environment: Option<String>,
    selections: Vec<Selection>,
    configs: Vec<Config>,
}

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) content: Content,
    pub(super) confirmed: Moment,
    pub(super) node: Option<Arc<str>>,
}

/// What is written.
#[derive(Debug)]
pub(super) struct ToSave {
    pub(super) content: Content,
    pub(super) confirmed: Moment,
    pub(super) node: Option<Arc<str>>,
}

impl ToSave {
    /// Writes the file.
    pub(super) fn write(
        &self,
        path: &Path,
        environment: Option<&str>,
        selections: &[Selection],
    ) -> Result<(), String> {
        let body = serde_json::to_string(&Written {
            revision: self.content.position,
            confirmed_at_ms: self.confirmed.unix_ms(),
            node: self.node.as_deref(),
            environment,
            selections,
            configs: self.content.all().map(AsRef::as_ref).collect(),
        });
        let body = body.map_err(|error| error.to_string())?;
        let head = Head { concord_cache: FORMAT, crc32c: crc32c::crc32c(body.as_bytes()) };
        let head = serde_json::to_string(&head).map_err(|error| error.to_string())?;
        replace(path, format!("{head}\n{body}\n").as_bytes()).map_err(|error| named(path, &error))
    }
}

/// Reads the file; `None` if it does not exist.
///
/// # Errors
/// When it can't be read, is incomplete, is of another environment, or does not cover these selections.
pub(super) fn read(
    path: &Path,
    environment: Option<&str>,
    selections: &[Selection],
) -> Result<Option<Saved>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(path, &error)),
    };
    let mode = fs::metadata(path).map_err(|error| named(path, &error))?.mode();
    if mode & 0o022 != 0 {
        return Err(named(path, &format!("other users can write it (mode {:o})", mode & 0o777)));
    }
    let read = check(&text).map_err(|error| named(path, &error))?;
    if read.environment.as_deref() != environment {
        let (its, own) = (named_environment(read.environment.as_deref()), named_environment(environment));
        return Err(named(path, &format!("it is of {its}, and the client of {own}")));
    }
    let is_covered = |one: &Selection| read.selections.iter().any(|known| known.covers(one));
    if let Some(missing) = selections.iter().find(|one| !is_covered(one)) {
        return Err(named(path, &format!("it does not contain `{}`", missing.definition)));
    }
    let mut content = Content::at(read.revision);
    for config in read.configs {
        if is_selected(selections, &config.definition, &config.key) {
            content.insert(config);
        }
    }
    let confirmed = Moment::of_file(read.confirmed_at_ms);
    Ok(Some(Saved { content, confirmed, node: read.node.map(Into::into) }))
}

fn check(text: &str) -> Result<Read, String> {
    let damaged = || "it is damaged".to_owned();
    let (head, body) = text.split_once('\n').ok_or_else(damaged)?;
    let body = body.strip_suffix('\n').ok_or_else(damaged)?;
    let head: Head = serde_json::from_str(head).map_err(|_| damaged())?;
    if head.concord_cache != FORMAT {
        return Err(format!("its format {} is that of another version", head.concord_cache));
    }
    if crc32c::crc32c(body.as_bytes()) != head.crc32c {
        return Err(damaged());
    }
    serde_json::from_str(body).map_err(|error| error.to_string())
}

impl Selection {
    /// Whether all that the other one has is in this one.
    fn covers(&self, other: &Self) -> bool {
        let has_definition = match self.definition.strip_suffix('*') {
            Some(prefix) => other.definition.trim_end_matches('*').starts_with(prefix),
            None => self.definition == other.definition,
        };
        has_definition && (self.config.is_none() || self.config == other.config)
    }
}

fn named_environment(name: Option<&str>) -> String {
    name.map_or_else(|| "no environment".into(), |name| format!("the environment `{name}`"))
}

fn named(path: &Path, error: &impl ToString) -> String {
    format!("{}: {}", path.display(), error.to_string())
}

/// Replaces a file as a whole.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Several caches may share a file; each writes one of its own first.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{:x}.new", std::process::id(), fastrand::u64(..)));
    let new: PathBuf = folder.join(name);
    let written = write_new(&new, bytes).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // The first error is the one that counts.
        let _ = fs::remove_file(&new);
        return written;
    }
    // The name is durable once its folder is.
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn sample() -> ToSave {
        let mut content = Content::at(9);
        for (definition, key, data) in [("a", "one", json!({"n": 1})), ("b", "two", json!(2))] {
            let (definition, key) = (definition.to_owned(), key.to_owned());
            let (created_at, modified_at) = ("c".to_owned(), "m".to_owned());
            content.insert(Config {
                definition,
                key,
                data,
                revision: 5,
                variant: None,
                created_at,
                modified_at,
                redacted: Vec::new(),
            });
        }
        content.insert(Config {
            definition: "a".into(),
            key: "exact".into(),
            data: serde_json::from_str("[7.0, 1e400, 123456789012345678901234567890]").unwrap(),
            revision: 0,
            variant: Some("change-1".into()),
            created_at: String::new(),
            modified_at: String::new(),
            redacted: vec!["#/0".into()],
        });
        ToSave { content, confirmed: Moment::now(), node: Some("2".into()) }
    }

    #[test]
    fn what_is_saved_is_read_for_the_same_selections_or_fewer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/cache.json");
        let all = [Selection::definition("*")];
        assert!(read(&path, None, &all).unwrap().is_none());
        let saved = sample();
        saved.write(&path, None, &all).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let found = read(&path, None, &all).unwrap().unwrap();
        assert!(found.content.has_same(&saved.content));
        assert_eq!((found.content.position, found.node.as_deref()), (9, Some("2")));
        let fewer = read(&path, None, &[Selection::config("b", "two")]).unwrap().unwrap();
        assert_eq!(fewer.content.all().count(), 1);

        saved.write(&path, None, &[Selection::definition("a")]).unwrap();
        let error = read(&path, None, &all).unwrap_err();
        assert!(error.contains("it does not contain `*`"), "{error}");
    }

    #[test]
    fn a_file_of_one_environment_is_not_used_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.json");
        let all = [Selection::definition("*")];
        let names = [None, Some("prod"), Some("staging")];
        for written in names {
            sample().write(&path, written, &all).unwrap();
            for asked in names {
                let found = read(&path, asked, &all);
                if asked == written {
                    assert!(found.unwrap().is_some());
                } else {
                    let error = found.unwrap_err();
                    assert!(error.contains("environment"), "{written:?}, {asked:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_not_as_it_was_written_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.json");
        let all = [Selection::definition("*")];
        sample().write(&path, None, &all).unwrap();
        let good = fs::read(&path).unwrap();
        for length in [0, 1, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..length]).unwrap();
            assert!(read(&path, None, &all).is_err(), "cut to {length}");
        }
        for place in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[place] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(read(&path, None, &all).is_err(), "a flipped bit at {place}");
        }
        fs::write(&path, &good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(read(&path, None, &all).unwrap_err().contains("other users can write it"));
    }
}
