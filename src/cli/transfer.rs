//! `export` and `import`: all definitions and configs as files, a folder for each definition.
//!
//! A definition is `DIR/KEY/definition.json`, its configs are `DIR/KEY/config/CONFIG.json`. Equal data give equal bytes,
//! so that Git shows only real differences. A file with the right content is not written again, and an import skips
//! records that are equal already: after an interruption, both continue with the rest.
//!
//! **Invariants:** a file is complete, or absent: it is written under another name first. What a node sends names no file
//! outside the directory, and no file twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use concord_model::key::Key;
use concord_state::Collection;
use concord_storage::snapshot::backup::Input;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    apply::{PruneBounds, execute},
    backup::OpeningArgs,
    change::WayArgs,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    current::{self, ListedConfig},
    file_update,
    import::{self, FromArgs},
    manifest::{FileArgs, ManifestDefinition, Manifests, config_json},
    output::{Format, counted, note, print_done},
    plan::ApplyPlan,
    point::PointArgs,
    progress::Progress,
    secret_source::{IfAbsent, SecretArgs},
};

/// Longest key that is the name of its file; the name of a file has at most 255 bytes.
const NAME_BYTES_MAX: usize = 200;
/// Revisions that the summary of an import names.
const REVISIONS_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The directory to write to; it may hold an earlier export
    #[arg(long, value_name = "DIR", required_unless_present = "update")]
    dir: Option<PathBuf>,
    /// Bring the definitions and configs in these files and directories to the state of the cluster, in place: comments
    /// and layout stay, and no secret value is written; repeatable
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dir", "definitions", "prune", "from_backup"])]
    update: Vec<PathBuf>,
    /// Export only this definition; repeatable
    #[arg(long = "definition", value_name = "KEY")]
    definitions: Vec<String>,
    /// Remove files of an earlier export whose records no longer exist
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    bounds: PruneBounds,
    /// Export out of this backup file, without a cluster
    #[arg(long, value_name = "FILE")]
    from_backup: Option<PathBuf>,
    #[command(flatten)]
    opening: OpeningArgs,
    #[command(flatten)]
    point: PointArgs,
    /// The file of data keys, if the directory of --history is encrypted
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    data_key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The directory of an export
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    foreign: FromArgs,
}

/// Runs `export`.
pub(super) fn export(args: &ExportArgs) -> Result<(), Failure> {
    if args.node.format.or_table() == Format::Yaml {
        let text = "the files of an export are JSON, and -o is the format of the summary: for YAML that `apply -f` \
                    reads, use `concord config get DEF --for-apply`";
        return Err(Failure::Usage(text.into()));
    }
    if let Some(backup) = &args.from_backup {
        return export_backup(args, backup);
    }
    if args.point.is_given() {
        return Err(Failure::Usage(
            "--history and --at need --from-backup: a node exports its current state".into(),
        ));
    }
    with_cluster(&args.node, &args.tries, async |client| {
        if !args.update.is_empty() {
            return file_update::update(&client, &args.update, &args.node.format.or_table()).await;
        }
        let keys = if args.definitions.is_empty() {
            current::definition_keys(&client).await?
        } else {
            args.definitions.clone()
        };
        let mut files = Files::new(args.dir.clone().unwrap_or_default());
        let (mut exported, mut total) = (Vec::new(), 0);
        for key in keys {
            // It was deleted in the meantime.
            let Some(found) = current::definition(&client, &key).await? else {
                if args.definitions.contains(&key) {
                    return Err(Failure::Missing(format!("definition {key} does not exist")));
                }
                continue;
            };
            files.write(&definition_file(&key)?, &found.value.to_json(&key))?;
            total += current::count(&client, &key).await?;
            exported.push(key);
        }
        let progress = Progress::new(total, "configs");
        if !exported.is_empty() {
            current::configs(&client, &exported, |told| match told {
                ListedConfig::Config(definition, key, config) => {
                    progress.add(1);
                    files.write(&config_file(definition, key)?, &config_json(definition, key, &config.value))
                }
                ListedConfig::Again(definitions) => files.forget(definitions),
            })
            .await?;
        }
        drop(progress);
        finish(args, files, &exported)
    })
}

/// Exports out of a backup. A named definition that was deleted before the backup, and was kept, is exported as it was
/// deleted last.
fn export_backup(args: &ExportArgs, backup: &Path) -> Result<(), Failure> {
    let input = Input::new(backup, args.opening.read()?);
    let state = args.point.read(&input, args.data_key_file.as_deref())?.into_state();
    // A backup has the whole keys.
    let prefix = args.node.definition_prefix()?;
    let mut found: Vec<&Arc<Collection>> = Vec::new();
    for key in &args.definitions {
        let whole = format!("{prefix}{key}");
        let collection = state.definition(&whole).or_else(|| {
            let deleted = state.last_deleted(&whole)?;
            note(format_args!("definition {key} was deleted before the backup, which has kept it"));
            Some(deleted)
        });
        let missing = || Failure::Missing(format!("definition {key} is not in the backup"));
        found.push(collection.ok_or_else(missing)?);
    }
    if args.definitions.is_empty() {
        found.extend(state.definitions().filter(|one| one.definition.key.as_str().starts_with(&prefix)));
    }
    let total = found.iter().map(|collection| collection.by_key.len()).sum::<u64>();
    let progress = Progress::new(usize::try_from(total).unwrap_or(usize::MAX), "configs");
    let mut files = Files::new(args.dir.clone().unwrap_or_default());
    let failed = |error: serde_json::Error| Failure::Failed(format!("{}: {error}", backup.display()));
    for collection in &found {
        let definition = &collection.definition;
        let key = &definition.key.as_str()[prefix.len()..];
        let schema = definition.schema.as_ref();
        let value = ManifestDefinition {
            indexes: definition.indexes.clone(),
            schema: schema.map(|schema| serde_json::from_str(schema)).transpose().map_err(failed)?,
            unique: definition.unique.clone(),
            format_assertion: schema.map(|schema| schema.formats.is_asserted()),
            protected: Some(definition.protected),
        };
        files.write(&definition_file(key)?, &value.to_json(key))?;
        for config in collection.configs() {
            progress.add(1);
            let name = config.key.as_str();
            let data = serde_json::from_str(&config.data).map_err(failed)?;
            files.write(&config_file(key, name)?, &config_json(key, name, &data))?;
        }
    }
    drop(progress);
    let exported: Vec<String> =
        found.iter().map(|found| found.definition.key.as_str()[prefix.len()..].to_owned()).collect();
    finish(args, files, &exported)
}

/// Removes obsolete files, if it is to, and reports what was done.
fn finish(args: &ExportArgs, files: Files, exported: &[String]) -> Result<(), Failure> {
    let others = if args.definitions.is_empty() { files.others()? } else { files.others_of(exported)? };
    if args.prune {
        check_removals(&args.bounds, &files, &others)?;
        files.remove(&others)?;
    }
    let removed = others.len();
    let Files { written, same, .. } = files;
    let what = if args.prune { "removed" } else { "obsolete (--prune removes them)" };
    let text = format!("{written} files written, {same} unchanged, {removed} {what}");
    let data = json!({ "dir": args.dir, "written": written, "unchanged": same, "obsolete": removed, "pruned": args.prune });
    summary(&args.node, &data, &text)
}

/// Refuses to remove more than was said: what the access key may read no longer, and what another cluster does not have,
/// looks like records that were deleted.
fn check_removals(bounds: &PruneBounds, files: &Files, others: &[PathBuf]) -> Result<(), Failure> {
    const STATE: &str = "the records that are there are written, and no file was removed";
    if others.len() > bounds.max_deletes {
        return Err(Failure::Usage(format!(
            "{} would be removed, and --max-deletes is {}: are the cluster and the access key the right ones? If so, pass \
             --max-deletes {}; {STATE}",
            counted(others.len() as u64, "file"),
            bounds.max_deletes,
            others.len()
        )));
    }
    let emptied = files.emptied(others);
    if !emptied.is_empty() && !bounds.allow_empty {
        return Err(Failure::Usage(format!(
            "all files of {} would be removed: are the cluster and the access key the right ones? If so, pass \
             --allow-empty; {STATE}",
            emptied.join(", ")
        )));
    }
    Ok(())
}

/// Runs `import`.
pub(super) fn import(args: &ImportArgs) -> Result<(), Failure> {
    if let Some(kind) = args.foreign.from {
        args.node.hush();
        return import::run(&args.foreign, kind, &args.node.format.or_table());
    }
    let dir = args.dir.as_deref().ok_or_else(|| Failure::Usage("name the directory with --dir".into()))?;
    let wanted = Manifests::read(&FileArgs::folder(dir))?;
    with_cluster(&args.node, &args.tries, async |client| {
        let plan = ApplyPlan::new(&client, &wanted, false, (&SecretArgs::default(), IfAbsent::Fail)).await?;
        let (plan, revisions) = execute(&client, plan, true, &WayArgs::default()).await?;
        let (changed, unchanged) = (plan.changes.len(), plan.unchanged);
        let data = json!({ "dir": dir, "changed": changed, "unchanged": unchanged, "revisions": revisions });
        let at = match revisions.as_slice() {
            [] => String::new(),
            [one] => format!("; revision {one}"),
            all => {
                let shown: Vec<String> = all.iter().take(REVISIONS_SHOWN).map(u64::to_string).collect();
                let more = match all.len().saturating_sub(REVISIONS_SHOWN) {
                    0 => String::new(),
                    more => format!(" and {more} more, which -o json lists"),
                };
                format!("; revisions {}{more}", shown.join(" "))
            }
        };
        summary(&args.node, &data, &format!("{changed} changed, {unchanged} unchanged{at}"))
    })
}

/// Reports what was done: as a message, or as data.
fn summary(node: &NodeArgs, data: &Value, text: &str) -> Result<(), Failure> {
    let format = node.format.or_table();
    if format.is_table() {
        note(text);
        return Ok(());
    }
    print_done(&format, data, "dir", "")
}

fn definition_file(key: &str) -> Result<PathBuf, Failure> {
    Ok(Path::new(&file_name(key)?).join("definition.json"))
}

fn config_file(definition: &str, key: &str) -> Result<PathBuf, Failure> {
    let name = format!("{}.json", file_name(key)?);
    Ok(config_folder(definition)?.join(name))
}

fn config_folder(definition: &str) -> Result<PathBuf, Failure> {
    Ok(Path::new(&file_name(definition)?).join("config"))
}

/// The file name for a key. All characters of keys are valid in file names. A long key is cut, and a digest makes the
/// name unique.
///
/// # Errors
/// When the text is no key: a node, or a server in its place, names no file outside the folder.
pub(super) fn file_name(key: &str) -> Result<String, Failure> {
    if Key::parse(key).is_err() {
        return Err(Failure::Failed(format!(
            "the node has sent `{key}`, which is no key: nothing is written for it"
        )));
    }
    Ok(match key.get(..NAME_BYTES_MAX) {
        Some(begin) if key.len() > NAME_BYTES_MAX => {
            let digest = Sha256::digest(key.as_bytes());
            let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("{begin}~{hex}")
        }
        _ => key.to_owned(),
    })
}

/// The files of an export.
struct Files {
    folder: PathBuf,
    /// The files of existing records.
    kept: BTreeSet<PathBuf>,
    /// The files that are counted already.
    seen: BTreeSet<PathBuf>,
    /// The names of the files that were written, by their place on the disk.
    places: BTreeMap<(u64, u64), PathBuf>,
    written: usize,
    same: usize,
}

impl Files {
    fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            kept: BTreeSet::new(),
            seen: BTreeSet::new(),
            places: BTreeMap::new(),
            written: 0,
            same: 0,
        }
    }

    /// Drops the configs of definitions: the watch lists them again.
    fn forget(&mut self, definitions: &[String]) -> Result<(), Failure> {
        let of = definitions.iter().map(|key| config_folder(key)).collect::<Result<Vec<_>, _>>()?;
        self.kept.retain(|name| !of.iter().any(|folder| name.starts_with(folder)));
        Ok(())
    }

    fn write(&mut self, name: &Path, value: &Value) -> Result<(), Failure> {
        let path = self.folder.join(name);
        let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let text = format!("{value:#}\n");
        // A record that was listed twice counts once.
        let is_new = self.seen.insert(name.to_owned());
        self.kept.insert(name.to_owned());
        self.refuse_shared(name, &path)?;
        if fs::read(&path).is_ok_and(|bytes| bytes == text.as_bytes()) {
            self.same += usize::from(is_new);
            return self.remember(name, &path);
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let new = path.with_extension("json.new");
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, &path)).map_err(failed)?;
        self.written += usize::from(is_new);
        self.remember(name, &path)
    }

    /// Two records never share a file, as keys that differ in upper and lower case only do on some file systems.
    fn refuse_shared(&self, name: &Path, path: &Path) -> Result<(), Failure> {
        let Ok(found) = fs::metadata(path) else { return Ok(()) };
        match self.places.get(&(found.dev(), found.ino())).filter(|other| *other != name) {
            None => Ok(()),
            Some(other) => Err(Failure::Failed(format!(
                "{} and {} are one file in this directory: export to a file system that tells upper from lower case",
                self.folder.join(other).display(),
                path.display()
            ))),
        }
    }

    fn remember(&mut self, name: &Path, path: &Path) -> Result<(), Failure> {
        let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        self.places.insert((found.dev(), found.ino()), name.to_owned());
        Ok(())
    }

    /// The files whose records do not exist.
    fn others(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut others = Vec::new();
        for folder in self.entries(Path::new(""))? {
            let definition = folder.join("definition.json");
            if !self.folder.join(&definition).is_file() {
                continue;
            }
            others.extend(self.others_in(&folder.join("config"))?);
            if !self.kept.contains(&definition) {
                others.push(definition);
            }
        }
        Ok(others)
    }

    /// The same, only for configs of these definitions.
    fn others_of(&self, definitions: &[String]) -> Result<Vec<PathBuf>, Failure> {
        let mut others = Vec::new();
        for definition in definitions {
            others.extend(self.others_in(&config_folder(definition)?)?);
        }
        Ok(others)
    }

    fn others_in(&self, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
        let is_other = |name: &PathBuf| {
            name.extension().is_some_and(|extension| extension == "json") && !self.kept.contains(name)
        };
        Ok(self.entries(folder)?.into_iter().filter(is_other).collect())
    }

    /// The folders of definitions of which no config is left, or not even the definition.
    fn emptied(&self, others: &[PathBuf]) -> Vec<String> {
        let folder = |name: &PathBuf| name.iter().next().map(|name| name.to_string_lossy().into_owned());
        let is_config = |name: &&PathBuf| !name.ends_with("definition.json");
        let kept: BTreeSet<String> = self.kept.iter().filter(is_config).filter_map(folder).collect();
        let touched: BTreeSet<String> = others.iter().filter_map(folder).collect();
        touched.difference(&kept).cloned().collect()
    }

    /// The names in a folder below the export's; none where it is not there.
    fn entries(&self, inside: &Path) -> Result<Vec<PathBuf>, Failure> {
        let folder = self.folder.join(inside);
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| inside.join(entry.file_name()));
        let names: io::Result<Vec<PathBuf>> = entries.map(name).collect();
        names.map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))
    }

    /// Removes files, and the folders of definitions that have none left.
    fn remove(&self, names: &[PathBuf]) -> Result<(), Failure> {
        for name in names {
            let path = self.folder.join(name);
            fs::remove_file(&path)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
            if name.ends_with("definition.json")
                && let Some(folder) = path.parent()
            {
                // A directory with other files stays.
                let _ = fs::remove_dir(folder.join("config"));
                let _ = fs::remove_dir(folder);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_have_names_of_their_own() {
        let long = "k".repeat(255);
        let other = format!("{}x", "k".repeat(254));
        let name = |key: &str| file_name(key).unwrap();
        assert_eq!(name("a.b~-_"), "a.b~-_");
        assert_eq!(name(&"k".repeat(200)), "k".repeat(200));
        assert!(name(&long).len() < 240 && name(&long) != name(&other));
    }

    #[test]
    fn no_more_files_are_removed_than_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let export = |configs: &[(&str, usize)]| {
            let mut files = Files::new(folder.path().to_owned());
            for (definition, count) in configs {
                files.write(&definition_file(definition).unwrap(), &json!({})).unwrap();
                for n in 0..*count {
                    files.write(&config_file(definition, &format!("k{n}")).unwrap(), &json!({})).unwrap();
                }
            }
            files
        };
        let check = |configs: &[(&str, usize)], max_deletes: usize, allow_empty: bool| {
            let files = export(configs);
            let bounds = PruneBounds { max_deletes, allow_empty };
            check_removals(&bounds, &files, &files.others().unwrap()).map_err(Failure::into_text)
        };
        export(&[("a", 3), ("b", 2)]);
        check(&[("a", 3), ("b", 1)], 1, false).unwrap();
        let error = check(&[("a", 1), ("b", 2)], 1, true).unwrap_err();
        assert!(error.contains("2 files would be removed") && error.contains("--max-deletes 2"), "{error}");
        // A key that may read nothing of `b` any more, a definition without configs, and nothing at all.
        for (left, named) in
            [(&[("a", 3)][..], "all files of b"), (&[("a", 3), ("b", 0)], "of b"), (&[], "of a, b")]
        {
            let error = check(left, 20, false).unwrap_err();
            assert!(error.contains(named) && error.contains("--allow-empty"), "{error}");
            check(left, 20, true).unwrap();
        }
    }

    #[test]
    fn what_is_no_key_names_no_file() {
        for wrong in ["../../escaped", "..", "/etc/passwd", "a/b", "", "a\0", ".hidden"] {
            assert!(definition_file(wrong).is_err() && config_folder(wrong).is_err(), "{wrong}");
            assert!(config_file("d", wrong).is_err() && config_file(wrong, "k").is_err(), "{wrong}");
        }
    }

    #[test]
    fn two_records_never_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        // As on a file system that does not tell `A` from `a`.
        fs::create_dir(folder.path().join("A")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("A"), folder.path().join("a")).unwrap();
        let mut files = Files::new(folder.path().to_owned());
        for _ in 0..2 {
            files.write(&definition_file("A").unwrap(), &json!({ "is": "A" })).unwrap();
        }
        let error = files.write(&definition_file("a").unwrap(), &json!({ "is": "a" })).unwrap_err();
        assert!(error.into_text().contains("are one file"));
        let text = fs::read_to_string(folder.path().join("A/definition.json")).unwrap();
        assert!(text.contains("\"is\": \"A\""), "{text}");
    }
}
