//! Secret values that a file names and does not have, so that they stay out of Git: `{"$concord-env": "CONCORD_SECRET_X"}`
//! and `{"$concord-file": "PATH"}` in the data of a config. Also finds the marker that keeps a value.
//!
//! **Invariants:** a value is put only where it is secret, so that no command shows it. It is in no message and in no
//! digest. A change of the files can read no other variable and no other file: the names of the variables begin with
//! `CONCORD_SECRET_`, and the files are below the directory of `--secret-files`, wherever links lead.

use std::{
    borrow::Cow,
    env::{self, VarError},
    fs::File,
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
};

use clap::Args;
use concord_model::{error::LocSegment, redaction::KEEP};
use serde_json::{Map, Value, json};

use super::{
    connection::Failure,
    manifest::{Manifests, name},
    mask::{Mask, pointer},
    output::{printable, say},
};

/// The markers of values from elsewhere.
pub(super) const ENV: &str = "$concord-env";
pub(super) const FILE: &str = "$concord-file";
/// With what the names of the variables begin.
pub(super) const PREFIX: &str = "CONCORD_SECRET_";
const WRONG_ENV: &str = "expected exactly {\"$concord-env\": \"CONCORD_SECRET_…\"}, with letters, digits and _: files can name no other variable";
const WRONG_FILE: &str =
    "expected exactly {\"$concord-file\": \"PATH\"}, with a path below the directory of --secret-files";
/// The size of a file: the default limit of a config.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where secret values come from.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SecretArgs {
    /// The directory of the files that `{"$concord-file": "PATH"}` names in place of a secret value
    #[arg(long, value_name = "DIR")]
    secret_files: Option<PathBuf>,
}

/// What happens where a variable or a file does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfAbsent {
    Fail,
    /// The value is taken for the one that the cluster has, with a warning.
    Keep,
}

/// What stands in place of a secret value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Marker {
    /// The value that the cluster has.
    Keep,
    /// One from elsewhere.
    Source(Source),
    /// An invalid one, and why it is invalid.
    Wrong(&'static str),
}

/// Where a secret value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Variable(String),
    /// Below the directory of `--secret-files`.
    File(PathBuf),
}

impl Marker {
    fn of(members: &Map<String, Value>) -> Option<Self> {
        if members.get(KEEP) == Some(&Value::Bool(true)) {
            return Some(Self::Keep);
        }
        let (value, wrong, source): (_, _, fn(&str) -> Option<Source>) =
            match (members.get(ENV), members.get(FILE)) {
                (Some(value), _) => (value, WRONG_ENV, Source::variable),
                (None, Some(value)) => (value, WRONG_FILE, Source::file),
                (None, None) => return None,
            };
        let source = value.as_str().filter(|_| members.len() == 1).and_then(source);
        Some(source.map_or(Self::Wrong(wrong), Self::Source))
    }
}

impl Source {
    fn variable(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX).filter(|rest| !rest.is_empty())?;
        let is_name = rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then(|| Self::Variable(name.to_owned()))
    }

    fn file(path: &str) -> Option<Self> {
        let is_below = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        (is_below && !path.is_empty()).then(|| Self::File(path.into()))
    }
}

/// The markers in data with their places.
pub(super) fn markers(data: &Value) -> Vec<(Vec<LocSegment>, Marker)> {
    fn find(value: &Value, loc: &mut Vec<LocSegment>, found: &mut Vec<(Vec<LocSegment>, Marker)>) {
        match value {
            Value::Object(members) => match Marker::of(members) {
                Some(marker) => found.push((loc.clone(), marker)),
                None => members.iter().for_each(|(name, member)| {
                    loc.push(name.as_str().into());
                    find(member, loc, found);
                    loc.pop();
                }),
            },
            Value::Array(elements) => (0_u64..).zip(elements).for_each(|(place, element)| {
                loc.push(LocSegment::Index(place));
                find(element, loc, found);
                loc.pop();
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    find(data, &mut Vec::new(), &mut found);
    found
}

/// The message for a marker at a place that is not secret.
pub(super) const NOT_SECRET: &str = "this stands for a secret value, but the field is not secret";

/// The value of a marker, or why there is none.
enum Sourced {
    Value(String),
    Absent(String),
}

impl SecretArgs {
    /// Puts the values into the configs of files. `schema_of` is the schema that a definition will have.
    ///
    /// # Errors
    /// With the place of a marker that is wrong, stands where no value is secret, or has no value.
    pub(super) fn put<'m>(
        &self,
        wanted: &'m Manifests,
        schema_of: impl Fn(&str) -> Option<Value>,
        if_absent: IfAbsent,
    ) -> Result<Cow<'m, Manifests>, Failure> {
        let mut changed: Option<Manifests> = None;
        let mut mask = Mask::default();
        for ((definition, key), data) in &wanted.configs {
            let markers = markers(data);
            if markers.iter().all(|(_, marker)| *marker == Marker::Keep) {
                continue;
            }
            let failed = |loc: &[LocSegment], text: &str| {
                let place =
                    wanted.place(definition, key).map(|place| format!("{place}: ")).unwrap_or_default();
                let text = format!("{place}{} /data{}: {text}", name(definition, key), pointer(loc));
                // A name with several lines would be commands to a pipeline that reads this.
                Failure::Invalid(printable(&text))
            };
            let (mut data, mut absent) = (data.clone(), Vec::new());
            for (loc, marker) in &markers {
                let source = match marker {
                    Marker::Source(source) => source,
                    Marker::Wrong(text) => return Err(failed(loc, text)),
                    Marker::Keep => continue,
                };
                let value = match self.value(source).map_err(|text| failed(loc, &text))? {
                    Sourced::Value(text) => text.into(),
                    Sourced::Absent(why) if if_absent == IfAbsent::Keep => {
                        let text = failed(loc, &why).into_text();
                        say(format_args!("warning: {text}: the value is taken as unchanged"));
                        absent.push(loc);
                        Value::Null
                    }
                    Sourced::Absent(why) => return Err(failed(loc, &why)),
                };
                data.pointer_mut(&pointer(loc)).into_iter().for_each(|place| place.clone_from(&value));
            }
            // By the data that will be stored: which values are secret may depend on them.
            if !mask.has(definition) {
                mask.add(definition, schema_of(definition).as_ref());
            }
            let places = mask.places(definition, &data);
            for (loc, _) in markers.iter().filter(|(_, marker)| *marker != Marker::Keep) {
                let place = pointer(loc);
                let is_in = |outer: &&String| {
                    place.strip_prefix(*outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                let Some(secret) = places.iter().find(is_in) else { return Err(failed(loc, NOT_SECRET)) };
                if absent.contains(&loc) {
                    // A secret value is kept as a whole.
                    data.pointer_mut(secret).into_iter().for_each(|value| *value = json!({ KEEP: true }));
                }
            }
            changed
                .get_or_insert_with(|| wanted.clone())
                .configs
                .insert((definition.clone(), key.clone()), data);
        }
        Ok(changed.map_or(Cow::Borrowed(wanted), Cow::Owned))
    }

    #[expect(clippy::disallowed_methods, reason = "files name the variable")]
    fn value(&self, source: &Source) -> Result<Sourced, String> {
        match source {
            // What a pipeline does not have it often sets to nothing.
            Source::Variable(name) => match env::var(name) {
                Ok(text) if !text.is_empty() => Ok(Sourced::Value(text)),
                Ok(_) | Err(VarError::NotPresent) => Ok(Sourced::Absent(format!("{name} is not set"))),
                Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
            },
            Source::File(path) => match &self.secret_files {
                Some(folder) => file(folder, path),
                None => Ok(Sourced::Absent("there is no --secret-files".into())),
            },
        }
    }
}

/// The text of a file below a folder, without the end of its last line.
fn file(folder: &Path, path: &Path) -> Result<Sourced, String> {
    let path = &folder.join(path);
    let mut bytes = Vec::new();
    // Links lead to files below the folder, as those of a volume of Kubernetes do.
    let real = folder.canonicalize().and_then(|folder| Ok((folder, path.canonicalize()?)));
    let read = match real {
        Ok((folder, real)) if !real.starts_with(&folder) => {
            return Err(format!("{}: the link leads out of the directory of --secret-files", path.display()));
        }
        Ok((_, real)) => {
            File::open(real).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        }
        Err(error) => Err(error),
    };
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Sourced::Absent(format!("{} does not exist", path.display())));
        }
        Err(error) => return Err(format!("{}: {error}", path.display())),
        Ok(read) if read as u64 > FILE_BYTES_MAX => {
            return Err(format!("{}: more than {FILE_BYTES_MAX} bytes", path.display()));
        }
        Ok(_) => {}
    }
    let mut text = String::from_utf8(bytes).map_err(|_| format!("{}: not UTF-8", path.display()))?;
    if text.ends_with('\n') {
        text.pop();
    }
    if text.ends_with('\r') {
        text.pop();
    }
    if text.is_empty() {
        return Ok(Sourced::Absent(format!("{} is empty", path.display())));
    }
    Ok(Sourced::Value(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::manifest::FileArgs;

    /// Puts values into a config of files; its message, or its data.
    fn put(folder: &Path, schema: &Value, data: &Value, if_absent: IfAbsent) -> Result<Value, String> {
        let files = folder.join("files");
        std::fs::create_dir_all(&files).unwrap();
        let config = json!({ "config_definition_key": "db", "config_key": "main", "data": data });
        std::fs::write(files.join("f.json"), config.to_string()).unwrap();
        let wanted = Manifests::read(&FileArgs::folder(&files)).unwrap();
        let args = SecretArgs { secret_files: Some(folder.join("secrets")) };
        let put = args.put(&wanted, |_| Some(schema.clone()), if_absent).map_err(Failure::into_text)?;
        Ok(put.configs[&("db".to_owned(), "main".to_owned())].clone())
    }

    #[test]
    fn a_value_is_put_only_where_it_is_secret() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = folder.path().join("secrets");
        std::fs::create_dir_all(secrets.join("sub")).unwrap();
        for (file, text) in [("one", "hunter2\n"), ("sub/two", "a\r\nb\r\n"), ("none", "\n"), ("bad", "x")] {
            std::fs::write(secrets.join(file), text).unwrap();
        }
        std::fs::write(secrets.join("bad"), [0xff]).unwrap();
        std::fs::write(secrets.join("long"), vec![b'x'; 1 + (1 << 20)]).unwrap();
        // As Kubernetes has them, and as somebody does who wants another file.
        std::fs::create_dir_all(secrets.join("..2026")).unwrap();
        std::fs::write(secrets.join("..2026/three"), "3").unwrap();
        for (to, link) in
            [("..2026", "..data"), ("..data/three", "three"), ("../files/f.json", "out"), ("../files", "dir")]
        {
            std::os::unix::fs::symlink(to, secrets.join(link)).unwrap();
        }
        let schema = json!({"properties": {
            "host": {"type": "string"},
            "password": {"x-concord-secret": true},
            "all": {"items": {"x-concord-secret": true}},
        }});
        let try_put = |data: Value| put(folder.path(), &schema, &data, IfAbsent::Fail);
        assert_eq!(
            try_put(
                json!({"host": "h", "password": {"$concord-file": "one"}, "all": [1, {"a": {"$concord-file": "sub/two"}}]})
            ),
            Ok(json!({"host": "h", "password": "hunter2", "all": [1, {"a": "a\r\nb"}]}))
        );
        assert_eq!(try_put(json!({"password": {"$concord-file": "three"}})), Ok(json!({"password": "3"})));
        let keep = json!({"password": {"$concord-keep": true}});
        assert_eq!(try_put(keep.clone()), Ok(keep));
        for (data, text) in [
            (
                json!({"host": {"$concord-file": "one"}}),
                "/data/host: this stands for a secret value, but the field is not",
            ),
            (json!({"password": {"$concord-file": "../files/f.json"}}), "below the directory"),
            (json!({"password": {"$concord-file": "/etc/passwd"}}), "below the directory"),
            (json!({"password": {"$concord-file": "out"}}), "out: the link leads out of the directory"),
            (json!({"password": {"$concord-file": "dir/f.json"}}), "dir/f.json: the link leads out"),
            (json!({"password": {"$concord-file": "none"}}), "none is empty"),
            (json!({"password": {"$concord-file": "gone"}}), "gone does not exist"),
            (json!({"password": {"$concord-file": "bad"}}), "bad: not UTF-8"),
            (json!({"password": {"$concord-file": "long"}}), "more than 1048576 bytes"),
            (json!({"password": {"$concord-file": "one", "x": 1}}), "expected exactly"),
            (json!({"password": {"$concord-env": 7}}), "expected exactly"),
            (json!({"password": {"$concord-env": "PATH"}}), "files can name no other variable"),
            (json!({"password": {"$concord-env": "CONCORD_SECRET_A\n::x::"}}), "files can name no other"),
            (json!({"a\n::error::b": {"$concord-env": "CONCORD_SECRET_A"}}), "/a\u{fffd}::error::b: "),
            (
                json!({"password": {"$concord-env": "CONCORD_SECRET_OF_NO_TEST"}}),
                "CONCORD_SECRET_OF_NO_TEST is not set",
            ),
        ] {
            let failed = try_put(data).unwrap_err();
            assert!(failed.contains("f.json:1: config db/main /data/") && failed.contains(text), "{failed}");
        }
        let absent = json!({"password": {"$concord-env": "CONCORD_SECRET_OF_NO_TEST"}});
        assert_eq!(
            put(folder.path(), &schema, &absent, IfAbsent::Keep),
            Ok(json!({"password": {"$concord-keep": true}}))
        );
        let open = json!({"properties": {"password": {"x-concord-secret": false}}});
        assert!(put(folder.path(), &open, &absent, IfAbsent::Keep).unwrap_err().contains(NOT_SECRET));
    }
}
