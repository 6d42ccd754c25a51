//! `concord import --from KIND`: files of another store, or of a program, as files of definitions and configs.
//!
//! | what | file |
//! |---|---|
//! | the options, the files that are written | `mod` (this file) |
//! | what the report says | `finding` |
//! | reads files, up to a limit | `input` |
//! | data before they have types; values at paths | `raw` |
//! | what a text stands for, which looks like a secret | `meaning` |
//! | the schema, and the values with its types | `draft` |
//! | Consul, etcd | `key_value` |
//! | `.env` files, properties | `lines` |
//! | YAML; Spring Boot; Nacos and Apollo | `yaml`, `spring`, `portal` |
//!
//! **Invariants:** nothing is sent to a cluster. No file that exists is changed. What is written passes `concord check`,
//! and what of the source is not in it is in the report.

mod draft;
mod finding;
mod input;
mod key_value;
mod lines;
mod meaning;
mod portal;
mod raw;
mod spring;
mod yaml;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use concord_formats::yaml::write_exact;
use concord_model::{
    key::{Key, KeyError},
    limits::{KEY_BYTES_MAX, Limits},
};
use serde_json::{Value, json};

use super::{
    check,
    connection::Failure,
    manifest::{ManifestDefinition, config_json},
    output::{Columns, Format, counted, note, print_columns},
    transfer::file_name,
};
use draft::Shape;
use finding::{Code, Findings};
use key_value::Mapping;
use raw::{DEPTH_MAX, Members, Raw, VALUE};

/// The key of a config whose name is empty: that of values above all folders, and of `.env`.
const DEFAULT_KEY: &str = "default";
/// Bytes of a key that leave room for a number behind it.
const NAME_BYTES_MAX: usize = KEY_BYTES_MAX - 15;

/// The columns of the report.
const COLUMNS: Columns = Columns {
    name: "at",
    narrow: &[("CODE", "/code"), ("LEFT OUT", "/left_out"), ("AT", "/at"), ("WHAT", "/msg")],
    wide: &[],
};

/// Where configs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// The output of `consul kv export`
    Consul,
    /// The output of `etcdctl get --prefix "" -w json`
    Etcd,
    /// The zip file of the console's export, or its unpacked directory
    Nacos,
    /// Exported files of the portal, and JSON of the open API: namespaces with their items
    Apollo,
    /// `.env` files
    Dotenv,
    /// Properties of Java
    Properties,
    /// A directory of Spring Boot: NAME.yml, NAME-PROFILE.properties
    Spring,
    /// YAML files, with anchors, aliases and merge keys
    Yaml,
}

/// The options of `import --from`.
#[derive(Debug, Args)]
pub(super) struct FromArgs {
    /// Turn these files of another store into files of definitions and configs, without a cluster
    #[arg(long, value_enum, value_name = "KIND", requires_all = ["out", "paths"], conflicts_with = "dir")]
    pub(super) from: Option<Kind>,
    /// With --from: the files or directories to read; `-` for stdin
    #[arg(value_name = "PATH", requires = "from")]
    paths: Vec<PathBuf>,
    /// With --from: the directory to write to, which must be new or empty
    #[arg(long, value_name = "DIR", requires = "from")]
    out: Option<PathBuf>,
    /// With --from: the key of the drafted definition [default: settings]
    #[arg(long, value_name = "KEY", requires = "from")]
    definition: Option<String>,
    /// With --from consul or etcd: how many segments of a path name a config [default: 1]
    #[arg(long, value_name = "N", requires = "from")]
    depth: Option<usize>,
    /// With --from consul or etcd: only the keys below this path, which is no part of their names
    #[arg(long, value_name = "PATH", requires = "from")]
    prefix: Option<String>,
    /// With --from spring: one config for each name, with these profiles
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "from")]
    profile: Vec<String>,
    /// With --from: mark the fields that look like secrets as `x-concord-secret`
    #[arg(long, requires = "from")]
    mark_secrets: bool,
}

/// A config of another store.
struct SourceConfig {
    /// The parts of its name: folders, and its own.
    name: Vec<String>,
    /// Where it was read.
    at: String,
    data: Raw,
}

/// What is written.
struct Draft {
    definition: String,
    schema: Value,
    /// Keys and data.
    configs: Vec<(String, Value)>,
}

/// Runs the command.
pub(super) fn run(args: &FromArgs, kind: Kind, format: &Format) -> Result<(), Failure> {
    let definition = args.definition.clone().unwrap_or_else(|| "settings".into());
    if Key::parse(&definition).is_err() {
        return Err(Failure::Usage(format!("--definition `{definition}`: {KeyError}")));
    }
    let is_key_value = matches!(kind, Kind::Consul | Kind::Etcd);
    if (args.depth.is_some() || args.prefix.is_some()) && !is_key_value {
        return Err(Failure::Usage("--depth and --prefix are for `--from consul` and `--from etcd`".into()));
    }
    if !args.profile.is_empty() && kind != Kind::Spring {
        return Err(Failure::Usage("--profile is for `--from spring`".into()));
    }
    let out = args.out.as_deref().ok_or_else(|| Failure::Usage("--from needs --out DIR".into()))?;
    check_is_empty(out)?;
    let mut findings = Findings::default();
    let sources = read(args, kind, &mut findings)?;
    if sources.is_empty() {
        let named: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::Invalid(format!("no config was found in {}", named.join(", "))));
    }
    let draft = Draft::new(definition, sources, args.mark_secrets, &mut findings);
    draft.write(out, kind)?;
    let problems = check::problems(out)?;
    if !problems.is_empty() {
        let text = format!("`concord check` does not accept what was written to {}:\n  ", out.display());
        return Err(Failure::Invalid(text + &problems.join("\n  ")));
    }
    report(&draft, out, &findings, format)
}

fn read(args: &FromArgs, kind: Kind, findings: &mut Findings) -> Result<Vec<SourceConfig>, Failure> {
    let mapping = Mapping { depth: args.depth.unwrap_or(1), prefix: args.prefix.as_deref() };
    let paths = args.paths.as_slice();
    match kind {
        Kind::Consul => key_value::consul(paths, &mapping, findings),
        Kind::Etcd => key_value::etcd(paths, &mapping, findings),
        Kind::Nacos => portal::nacos(paths, findings),
        Kind::Apollo => portal::apollo(paths, findings),
        Kind::Dotenv => lines::dotenv(paths, findings),
        Kind::Properties => lines::properties(paths, findings),
        Kind::Spring => spring::spring(paths, &args.profile, findings),
        Kind::Yaml => yaml::yaml(paths, findings),
    }
}

/// Refuses a directory with anything in it.
fn check_is_empty(out: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Usage(format!("{}: {error}", out.display()));
    match fs::read_dir(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => {
                Err(Failure::Usage(format!("{}: --out must be a new or an empty directory", out.display())))
            }
        },
    }
}

/// Prints the report, and fails if something is in no file.
fn report(draft: &Draft, out: &Path, findings: &Findings, format: &Format) -> Result<(), Failure> {
    let left_out = findings.left_out();
    let data = json!({
        "out": out,
        "config_definition_key": draft.definition,
        "configs": draft.configs.len(),
        "left_out": left_out,
        "results": findings.to_json(),
    });
    if findings.count() > 0 || !format.is_for_records() {
        print_columns(format, &data, &COLUMNS)?;
    }
    note(format_args!(
        "{}: definition {} and {}; {} reported. Next: look at the schema, `concord check {0}`, `concord apply -R -f {0}`",
        out.display(),
        draft.definition,
        counted(draft.configs.len() as u64, "config"),
        counted(findings.count() as u64, "finding"),
    ));
    if left_out > 0 {
        let text = format!(
            "something of the source is in no file: {} with LEFT OUT",
            counted(left_out as u64, "line")
        );
        return Err(Failure::Partial(text));
    }
    Ok(())
}

impl Draft {
    fn new(
        definition: String,
        mut sources: Vec<SourceConfig>,
        marks_secrets: bool,
        findings: &mut Findings,
    ) -> Self {
        // A config whose name is a key has it, whatever other names become.
        sources.sort_by_key(|source| {
            let name = source.name.join(".");
            key_of(&name) != name
        });
        let mut taken = BTreeMap::new();
        let mut shape = Shape::default();
        let mut raws = Vec::new();
        for SourceConfig { name, at, data } in sources {
            // What is no object becomes a member of one.
            let around = usize::from(!matches!(data, Raw::Members(_)));
            if data.depth(DEPTH_MAX) + around > DEPTH_MAX {
                findings.add(Code::TooDeep, at, format!("it is nested deeper than {DEPTH_MAX} levels"));
                continue;
            }
            let key = free_key(&name, &at, &mut taken, findings);
            let data = match data {
                object @ Raw::Members(_) => object,
                other @ (Raw::Text(_) | Raw::Binary(_) | Raw::Typed(_) | Raw::List(_) | Raw::Folder(_)) => {
                    let text = format!("its data are no object: they are the member `{VALUE}` of one");
                    findings.add(Code::Document, &at, text);
                    Raw::Members(Members::from([(VALUE.to_owned(), other)]))
                }
            };
            shape.learn(&data, raws.len());
            raws.push((key, at, data));
        }
        let keys: Vec<String> = raws.iter().map(|(key, ..)| key.clone()).collect();
        shape.report(&keys, marks_secrets, findings);
        let limits = Limits::default();
        let mut schema = shape.schema(marks_secrets);
        if schema.to_string().len() > limits.schema_bytes {
            let text = format!(
                "the schema has more than {} bytes, which nodes accept: it is `type: object`",
                limits.schema_bytes
            );
            findings.add(Code::Schema, &definition, text);
            schema = json!({ "type": "object" });
        }
        let mut configs = Vec::new();
        for (key, at, data) in raws {
            let data = shape.value(data);
            let bytes = data.to_string().len();
            if bytes > limits.data_bytes {
                let text = format!(
                    "config {key} has {bytes} bytes, more than the {} that nodes accept",
                    limits.data_bytes
                );
                findings.add(Code::TooLarge, at, text);
            } else {
                configs.push((key, data));
            }
        }
        Self { definition, schema, configs }
    }

    /// Writes the files. If that fails, none is left.
    fn write(&self, out: &Path, kind: Kind) -> Result<(), Failure> {
        let name = kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let head = format!(
            "# Drafted by `concord import --from {name}`: check the types and the required fields.\n"
        );
        let schema = Some(self.schema.clone());
        let definition = ManifestDefinition { schema, ..ManifestDefinition::default() };
        let folder = out.join(file_name(&self.definition)?);
        let text = head + &write_exact(&definition.to_json(&self.definition));
        let mut files = vec![(folder.join("definition.yaml"), text)];
        for (key, data) in &self.configs {
            let path = folder.join("config").join(format!("{}.yaml", file_name(key)?));
            files.push((path, write_exact(&config_json(&self.definition, key, data))));
        }
        let mut written = Vec::new();
        let done = files.iter().try_for_each(|(path, text)| {
            let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            let mut file = File::create_new(path).map_err(failed)?;
            written.push(path);
            file.write_all(text.as_bytes()).map_err(failed)
        });
        if done.is_err() {
            for path in written {
                // The failure that is reported says more.
                let _ = fs::remove_file(path);
            }
            let _ = fs::remove_dir(folder.join("config"));
            let _ = fs::remove_dir(folder);
        }
        done
    }
}

/// A key that no other config has. `taken` has the keys, each with the number that the next config of this name gets.
fn free_key(name: &[String], at: &str, taken: &mut BTreeMap<String, u64>, findings: &mut Findings) -> String {
    let name = name.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(".");
    let wanted = key_of(&name);
    // File systems may not tell upper from lower case.
    let mut key = wanted.clone();
    if let Some(mut number) = taken.get(&wanted.to_ascii_lowercase()).copied() {
        while taken.contains_key(&key.to_ascii_lowercase()) {
            key = format!("{wanted}~{number}");
            number += 1;
        }
        taken.insert(wanted.to_ascii_lowercase(), number);
    }
    taken.insert(key.to_ascii_lowercase(), 2);
    if key != name && !(name.is_empty() && key == DEFAULT_KEY) {
        findings.add(Code::Renamed, at, format!("its config is `{key}`"));
    }
    key
}

/// A key that is like a name.
fn key_of(name: &str) -> String {
    let accepted = |c: char| if c.is_ascii_alphanumeric() || "_.~-".contains(c) { c } else { '-' };
    let mut key: String = name.chars().map(accepted).collect();
    key = key.trim_start_matches(|first: char| !first.is_ascii_alphanumeric()).to_owned();
    key.truncate(NAME_BYTES_MAX);
    if key.is_empty() { DEFAULT_KEY.to_owned() } else { key }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_config_has_a_key_of_its_own() {
        let (mut taken, mut findings) = (BTreeMap::new(), Findings::default());
        let long = "x".repeat(300);
        let mut key = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            free_key(&parts, &parts.join("/"), &mut taken, &mut findings)
        };
        for (parts, expected) in [
            (&["shop", "db"][..], "shop.db"),
            (&["shop.db"], "shop.db~2"),
            (&["", "shop"], "shop"),
            (&["Shop"], "Shop~2"),
            (&[], "default"),
            (&["default"], "default~2"),
            (&["team a"], "team-a"),
            (&["_x"], "x"),
            (&["é"], "default~3"),
            (&[&long], &long[..240]),
            (&[&long], &format!("{}~2", &long[..240])),
        ] {
            let key = key(parts);
            assert_eq!(key, expected);
            assert!(Key::parse(&key).is_ok(), "{key}");
        }
        assert_eq!(findings.count(), 8, "{:?}", findings.places());
    }

    #[test]
    fn what_nodes_do_not_accept_is_left_out_and_said() {
        let config = |name: &str, data: Raw| SourceConfig { name: vec![name.into()], at: name.into(), data };
        let large = Raw::Members(Members::from([("a".to_owned(), Raw::Typed("x".repeat(2 << 20).into()))]));
        let sources = vec![config("large", large), config("list", Raw::List(vec![Raw::Typed(1.into())]))];
        let mut findings = Findings::default();
        let draft = Draft::new("d".into(), sources, false, &mut findings);
        assert_eq!(draft.configs, [("list".to_owned(), json!({ "_value": [1] }))]);
        assert_eq!(findings.places(), ["document list", "too_large large"]);
        assert_eq!(findings.left_out(), 1);
        let deep = (0..DEPTH_MAX).fold(Raw::Typed(1.into()), |inner, _| Raw::List(vec![inner]));
        let fits = Raw::Members(Members::from([("a".to_owned(), Raw::Typed(1.into()))]));
        let sources = vec![config("deep", deep), config("fits", fits)];
        let mut findings = Findings::default();
        let draft = Draft::new("d".into(), sources, false, &mut findings);
        assert_eq!(draft.configs, [("fits".to_owned(), json!({ "a": 1 }))]);
        assert_eq!(findings.places(), ["too_deep deep"]);
        let wide = (0..200_000).map(|n| (format!("member{n}"), Raw::Typed(n.into()))).collect();
        let mut findings = Findings::default();
        let draft = Draft::new("d".into(), vec![config("wide", Raw::Members(wide))], false, &mut findings);
        assert_eq!(draft.schema, json!({ "type": "object" }));
        assert_eq!(findings.places(), ["schema d", "too_large wide"]);
    }

    #[test]
    fn a_failure_leaves_no_file_and_changes_none() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("d/config");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("b.yaml"), "mine").unwrap();
        assert!(check_is_empty(folder.path()).is_err());
        check_is_empty(&folder.path().join("new")).unwrap();
        let configs = vec![("a".to_owned(), json!({})), ("b".to_owned(), json!({}))];
        let draft = Draft { definition: "d".into(), schema: json!({}), configs };
        assert!(draft.write(folder.path(), Kind::Yaml).is_err());
        assert_eq!(fs::read_to_string(config.join("b.yaml")).unwrap(), "mine");
        assert!(!config.join("a.yaml").exists() && !folder.path().join("d/definition.yaml").exists());
    }
}
