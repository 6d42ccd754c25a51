//! The files of Spring Boot: `NAME.yml`, `NAME-PROFILE.properties` and so on, with profiles.
//!
//! A config has what Spring Boot gives a program: `NAME` the values without a profile and those of the profile `default`,
//! `NAME-PROFILE` the values without a profile and those of the profile over them. Objects are merged, and everything else is replaced. Properties are over YAML, the files of a
//! profile are over those without, and later documents of a file are over earlier ones.
//!
//! **Invariant:** a document that applies to something else than a list of profiles is in the report.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use indexmap::IndexMap;
use serde_json::Value;

use super::{
    super::connection::Failure,
    SourceConfig,
    finding::{Code, Findings},
    input::{Input, SourceFile, extension, files},
    lines::{Line, latin_or_utf8, note_skipped, properties_data, properties_of, steps},
    raw::{Members, Raw, Step, Tree},
    yaml,
};

/// The names that need no file without a profile.
const NAMES: [&str; 2] = ["application", "bootstrap"];
/// The profile of a program that has no other.
const DEFAULT_PROFILE: &str = "default";
/// Where a document says to which profiles it applies.
const CONDITIONS: [&[&str]; 3] = [
    &["spring", "config", "activate", "on-profile"],
    &["spring", "config", "activate", "onProfile"],
    &["spring", "profiles"],
];
/// What names other sources.
const SOURCES: [&[&str]; 5] = [
    &["spring", "config", "import"],
    &["spring", "config", "location"],
    &["spring", "profiles", "active"],
    &["spring", "profiles", "include"],
    &["spring", "profiles", "group"],
];

/// A document of a file.
struct Layer {
    /// The profiles of which it needs one; without any it always applies.
    profiles: Vec<String>,
    data: Raw,
}

/// The files of one name.
#[derive(Default)]
struct Application {
    at: String,
    layers: Vec<Layer>,
    /// The documents of the files of a profile.
    of_profile: IndexMap<String, Vec<Layer>>,
}

/// Reads the files. With `profiles`, a name has one config, with these profiles; otherwise one without, and one for each.
pub(super) fn spring(
    paths: &[PathBuf],
    profiles: &[String],
    findings: &mut Findings,
) -> Result<Vec<SourceConfig>, Failure> {
    let (mut files, skipped) =
        files(paths, |name| matches!(extension(name).as_str(), "yml" | "yaml" | "properties"))?;
    note_skipped(skipped, findings);
    let is_properties =
        |file: &SourceFile| file.path.extension().is_some_and(|extension| extension == "properties");
    files.sort_by_key(is_properties);
    let bases: BTreeSet<Vec<String>> = files.iter().map(|file| file.parts.clone()).collect();
    let mut input = Input::new();
    let mut applications: IndexMap<Vec<String>, Application> = IndexMap::new();
    for file in &files {
        let (name, profile) = name_and_profile(&file.parts, &bases);
        let at = file.path.display().to_string();
        let documents = if is_properties(file) {
            let lines = properties_of(&latin_or_utf8(input.bytes(&file.path)?, &at, findings));
            let parts = lines.split(|line| *line == Line::Separator);
            parts.map(|lines| properties_data(lines.to_vec(), &at, findings)).collect()
        } else {
            yaml::documents(&input.text(&file.path)?, &at, findings)?
        };
        let application = applications.entry(name).or_default();
        if application.at.is_empty() {
            application.at.clone_from(&at);
        }
        for document in documents {
            let Some(layer) = layer(document, profile.as_deref(), &at, findings) else { continue };
            match &profile {
                Some(profile) => application.of_profile.entry(profile.clone()).or_default().push(layer),
                None => application.layers.push(layer),
            }
        }
    }
    for profile in profiles {
        if !applications.values().any(|application| application.has(profile)) {
            findings.add(Code::Skipped, profile, "no file and no document has this profile");
        }
    }
    let mut configs = Vec::new();
    for (name, application) in applications {
        application.into_configs(&name, profiles, findings, &mut configs);
    }
    Ok(configs)
}

/// The name and the profile of a file. A name with a dash is that of a profile where a file has the name before the dash.
fn name_and_profile(parts: &[String], bases: &BTreeSet<Vec<String>>) -> (Vec<String>, Option<String>) {
    let Some((stem, folder)) = parts.split_last() else { return (Vec::new(), None) };
    // The shortest one: in a longer one that a file has, the part behind this name is a profile.
    for (at, _) in stem.match_indices('-') {
        let (Some(base), Some(profile)) = (stem.get(..at), stem.get(at + 1..)) else { continue };
        let name: Vec<String> = folder.iter().cloned().chain([base.to_owned()]).collect();
        if NAMES.contains(&base) || bases.contains(&name) {
            return (name, Some(profile.to_owned()));
        }
    }
    (parts.to_vec(), None)
}

/// A document with its profiles, unless it can't be said to which it applies.
fn layer(document: Raw, profile: Option<&str>, at: &str, findings: &mut Findings) -> Option<Layer> {
    let mut data = nested(document, at, findings);
    for source in SOURCES {
        if find(&data, source).is_some() {
            let text = format!("`{}` names other sources, which are not read", source.join("."));
            findings.add(Code::Reference, at, text);
        }
    }
    if find(&data, &["spring", "config", "activate", "on-cloud-platform"]).is_some() {
        findings.add(Code::Unread, at, "a document that applies to a cloud platform is left out");
        return None;
    }
    let mut profiles = Vec::new();
    for condition in CONDITIONS {
        // `spring.profiles` is an object where it does not say this.
        if !find(&data, condition).is_none_or(|found| matches!(found, Raw::Members(_))) {
            profiles = take(&mut data, condition).map(names).unwrap_or_default();
        }
    }
    let is_name = |name: &String| !name.contains(['!', '&', '|', '(', ')']);
    if !profiles.iter().all(is_name) || (!profiles.is_empty() && profile.is_some()) {
        let text = format!(
            "a document that applies to `{}` is left out: it is no list of profiles",
            profiles.join(",")
        );
        findings.add(Code::Unread, at, text);
        return None;
    }
    Some(Layer { profiles, data })
}

/// The names in a comma-separated text or a list.
fn names(raw: Raw) -> Vec<String> {
    match raw {
        Raw::Text(text) | Raw::Typed(Value::String(text)) => {
            text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
        }
        Raw::List(elements) => elements.into_iter().flat_map(names).collect(),
        Raw::Typed(value) => vec![value.to_string()],
        Raw::Binary(_) | Raw::Members(_) | Raw::Folder(_) => Vec::new(),
    }
}

impl Application {
    /// Whether something of it is of a profile.
    fn has(&self, profile: &String) -> bool {
        self.of_profile.contains_key(profile)
            || self.layers.iter().any(|layer| layer.profiles.contains(profile))
    }

    /// The values with profiles.
    fn effective(&self, profiles: &[String]) -> Raw {
        let applies = |layer: &&Layer| {
            layer.profiles.is_empty() || layer.profiles.iter().any(|profile| profiles.contains(profile))
        };
        let of_profiles = profiles.iter().filter_map(|profile| self.of_profile.get(profile)).flatten();
        let mut whole = Raw::Members(Members::new());
        for layer in self.layers.iter().filter(applies).chain(of_profiles) {
            merge(&mut whole, layer.data.clone());
        }
        whole
    }

    fn into_configs(
        self,
        name: &[String],
        asked: &[String],
        findings: &mut Findings,
        configs: &mut Vec<SourceConfig>,
    ) {
        let mut spellings = BTreeMap::new();
        let mut add = |profiles: &[String], suffix: &str| {
            let data = self.effective(profiles);
            find_spellings(&data, "", &mut spellings);
            let mut name = name.to_vec();
            if let Some(last) = name.last_mut() {
                last.push_str(suffix);
            }
            configs.push(SourceConfig { name, at: self.at.clone(), data });
        };
        if asked.is_empty() {
            let in_documents = self.layers.iter().flat_map(|layer| &layer.profiles);
            let mut profiles: BTreeSet<&String> = self.of_profile.keys().chain(in_documents).collect();
            let default = DEFAULT_PROFILE.to_owned();
            let is_for_all = |layer: &Layer| layer.profiles.is_empty();
            if profiles.remove(&default) || profiles.is_empty() || self.layers.iter().any(is_for_all) {
                add(&[default], "");
            }
            for profile in profiles {
                add(std::slice::from_ref(profile), &format!("-{profile}"));
            }
        } else {
            add(asked, "");
        }
        for (path, (one, other)) in spellings {
            let text = format!("Spring takes `{one}` and `{other}` for one property: here they are two");
            findings.add(Code::Ambiguous, format!("{} {path}", self.at), text);
        }
    }
}

/// Puts one value over another. Objects are merged.
fn merge(under: &mut Raw, over: Raw) {
    match (under, over) {
        (Raw::Members(under), Raw::Members(over)) => {
            for (name, value) in over {
                match under.get_mut(&name) {
                    Some(known) => merge(known, value),
                    None => drop(under.insert(name, value)),
                }
            }
        }
        (under, over) => *under = over,
    }
}

/// A value in which each name is one step: `server.port: 80` is `port` in `server`.
fn nested(raw: Raw, at: &str, findings: &mut Findings) -> Raw {
    match raw {
        Raw::Members(members) => {
            let mut tree = Tree::default();
            put_members(&mut tree, &[], members, at, findings);
            tree.finish(at, findings)
        }
        Raw::List(elements) => {
            Raw::List(elements.into_iter().map(|element| nested(element, at, findings)).collect())
        }
        scalar @ (Raw::Text(_) | Raw::Binary(_) | Raw::Typed(_) | Raw::Folder(_)) => scalar,
    }
}

fn put_members(tree: &mut Tree, above: &[Step], members: Members, at: &str, findings: &mut Findings) {
    for (name, value) in members {
        let path: Vec<Step> = above.iter().cloned().chain(steps(&name)).collect();
        match value {
            Raw::Members(members) if !members.is_empty() => put_members(tree, &path, members, at, findings),
            value @ (Raw::Text(_)
            | Raw::Binary(_)
            | Raw::Typed(_)
            | Raw::List(_)
            | Raw::Members(_)
            | Raw::Folder(_)) => {
                let value = nested(value, at, findings);
                tree.put(&path, value, &format!("{at} {name}"), findings);
            }
        }
    }
}

fn find<'r>(raw: &'r Raw, path: &[&str]) -> Option<&'r Raw> {
    path.iter().try_fold(raw, |raw, name| match raw {
        Raw::Members(members) => members.get(*name),
        Raw::Text(_) | Raw::Binary(_) | Raw::Typed(_) | Raw::List(_) | Raw::Folder(_) => None,
    })
}

/// Takes a value out, and the objects that are empty without it.
fn take(raw: &mut Raw, path: &[&str]) -> Option<Raw> {
    let Raw::Members(members) = raw else { return None };
    let (name, rest) = path.split_first()?;
    if rest.is_empty() {
        return members.shift_remove(*name);
    }
    let inner = members.get_mut(*name)?;
    let taken = take(inner, rest);
    if *inner == Raw::Members(Members::new()) {
        members.shift_remove(*name);
    }
    taken
}

/// Finds members that Spring takes for one, as `max-size` and `maxSize`.
fn find_spellings(raw: &Raw, path: &str, found: &mut BTreeMap<String, (String, String)>) {
    let Raw::Members(members) = raw else { return };
    let mut seen: BTreeMap<String, &String> = BTreeMap::new();
    for (name, value) in members {
        let path = format!("{path}/{name}");
        let bare: String =
            name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect();
        if let Some(other) = seen.insert(bare, name) {
            found.insert(path.clone(), (other.clone(), name.clone()));
        }
        find_spellings(value, &path, found);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::import::draft::Shape;

    fn read(files: &[(&str, &str)], profiles: &[&str]) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut findings = Findings::default();
        let profiles: Vec<String> = profiles.iter().map(|name| (*name).to_owned()).collect();
        let configs = spring(&[folder.path().to_owned()], &profiles, &mut findings).unwrap();
        let shown = configs.into_iter().map(|config| {
            let mut shape = Shape::default();
            shape.learn(&config.data, 0);
            format!("{} {}", config.name.join("/"), shape.value(config.data))
        });
        let places = findings.places().into_iter();
        let root = format!("{}/", folder.path().display());
        (shown.collect(), places.map(|place| place.replace(&root, "")).collect())
    }

    #[test]
    fn profiles_are_over_the_values_without_one() {
        let files = [
            (
                "application.yml",
                "server.port: 80\ndb: {host: a, pool: [1, 2]}\n---\nspring.config.activate.on-profile: dev, test\ndb.host: b\n",
            ),
            ("application.properties", "db.user=u\nserver.port=81\n#---\nspring.profiles=test\ndb.user=t\n"),
            ("application-prod.yaml", "db:\n  host: c\n  pool: [3]\n"),
            ("application-prod.properties", "db.host=d\n"),
            ("shop.yml", "a: 1\n"),
            ("shop-eu-prod.yml", "b: 2\n"),
            ("other-prod.yml", "c: 3\n"),
            ("logback.xml", ""),
        ];
        let (configs, places) = read(&files, &[]);
        assert_eq!(
            configs,
            [
                r#"application {"server":{"port":81},"db":{"host":"a","pool":[1,2],"user":"u"}}"#,
                r#"application-dev {"server":{"port":81},"db":{"host":"b","pool":[1,2],"user":"u"}}"#,
                r#"application-prod {"server":{"port":81},"db":{"host":"d","pool":[3],"user":"u"}}"#,
                r#"application-test {"server":{"port":81},"db":{"host":"b","pool":[1,2],"user":"t"}}"#,
                r#"other-prod {"c":3}"#,
                r#"shop {"a":1}"#,
                r#"shop-eu-prod {"a":1,"b":2}"#,
            ]
        );
        assert_eq!(places, ["skipped "]);
        let (configs, _) = read(&files[..4], &["test", "prod"]);
        assert_eq!(
            configs,
            [r#"application {"server":{"port":81},"db":{"host":"d","pool":[3],"user":"t"}}"#]
        );
    }

    #[test]
    fn a_profile_may_have_a_dash_and_default_is_that_of_a_program_without_one() {
        let files = [
            ("application.yml", "a: 1\nb: 1\n---\nspring.config.activate.on-profile: default\nb: 2\n"),
            ("application-prod.yml", "a: 3\n"),
            ("application-prod-eu.yml", "a: 4\n"),
            ("shop-default.yml", "c: 2\n"),
            ("shop.yml", "c: 1\n"),
            ("shop-eu.yml", "d: 1\n"),
            ("shop-eu-prod.yml", "d: 2\n"),
        ];
        let (configs, places) = read(&files, &[]);
        assert_eq!(
            configs,
            [
                r#"application {"a":1,"b":2}"#,
                r#"application-prod {"a":3,"b":1}"#,
                r#"application-prod-eu {"a":4,"b":1}"#,
                r#"shop {"c":2}"#,
                r#"shop-eu {"c":1,"d":1}"#,
                r#"shop-eu-prod {"c":1,"d":2}"#,
            ]
        );
        assert!(places.is_empty(), "{places:?}");
        let (configs, places) = read(&files[..3], &["prod-eu", "prdo"]);
        assert_eq!(configs, [r#"application {"a":4,"b":1}"#]);
        assert_eq!(places, ["skipped prdo"]);
    }

    #[test]
    fn what_can_not_be_said_in_profiles_is_reported() {
        let (configs, places) = read(
            &[
                (
                    "application.yml",
                    "a: 1\nspring: {profiles: {active: dev}, config: {import: x}}\nmax-size: 1\nmaxSize: 2\n---\nspring.config.activate.on-profile: '!prod'\nb: 2\n---\nspring.config.activate.on-cloud-platform: kubernetes\nc: 3\n",
                ),
                ("application-dev.yml", "spring.profiles: eu\nd: 4\n"),
                ("eu/application.yml", "e: ${HOST}\n"),
            ],
            &[],
        );
        assert_eq!(
            configs,
            [
                r#"application {"a":1,"spring":{"profiles":{"active":"dev"},"config":{"import":"x"}},"max-size":1,"maxSize":2}"#,
                r#"eu/application {"e":"${HOST}"}"#,
            ]
        );
        assert_eq!(
            places,
            [
                "unread application-dev.yml",
                "reference application.yml",
                "reference application.yml",
                "unread application.yml",
                "unread application.yml",
                "ambiguous application-dev.yml /maxSize",
            ]
        );
    }
}
