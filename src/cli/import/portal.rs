//! Stores of whole documents with a portal: the exports of Nacos and Apollo.

use std::{
    collections::BTreeMap,
    io::Cursor,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;
use zip::ZipArchive;

use super::{
    super::connection::Failure,
    SourceConfig,
    finding::{Code, Findings},
    input::{Input, SourceFile, extension, files, stem, text_of},
    lines::{latin_or_utf8, properties_data, properties_of},
    raw::{Raw, Step, Tree},
    yaml,
};

/// The group of Nacos that is not part of the name of a config.
const DEFAULT_GROUP: &str = "DEFAULT_GROUP";
/// The cluster of Apollo that is not part of the name of a config.
const DEFAULT_CLUSTER: &str = "default";

/// A file of an export, and its name with its folders.
struct Entry {
    at: String,
    names: Vec<String>,
    bytes: Vec<u8>,
}

/// What Nacos says of a document beside it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NacosItem {
    #[serde(default)]
    group: String,
    #[serde(default)]
    data_id: String,
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    desc: Option<String>,
    #[serde(default)]
    app_name: Option<String>,
}

/// Reads the export of Nacos, as its zip file or unpacked: `GROUP/DATA_ID`, and what it says of them in `.metadata.yml`.
pub(super) fn nacos(paths: &[PathBuf], findings: &mut Findings) -> Result<Vec<SourceConfig>, Failure> {
    let mut input = Input::new();
    let mut configs = Vec::new();
    for path in paths {
        let (about, entries): (Vec<Entry>, Vec<Entry>) =
            entries(path, &mut input, findings)?.into_iter().partition(|entry| {
                matches!(entry.names.last().map(String::as_str), Some(".metadata.yml" | ".meta.yml"))
            });
        let mut types = BTreeMap::new();
        for entry in about {
            let (of_entry, described) = nacos_types(&entry, findings);
            types.extend(of_entry);
            if described > 0 {
                let text = format!("the descriptions and applications of {described} configs are not read");
                findings.add(Code::Skipped, entry.at, text);
            }
        }
        for Entry { at, mut names, bytes } in entries {
            let Some(data_id) = names.pop() else { continue };
            let format = types
                .get(&(names.join("/"), data_id.clone()))
                .cloned()
                .filter(|format| !format.is_empty())
                .unwrap_or_else(|| extension(&data_id));
            names.retain(|group| group != DEFAULT_GROUP);
            names.push(stem_of_format(&data_id).to_owned());
            let documents = documents(&format, bytes, &at, findings);
            configs.extend(yaml::numbered(names, documents, &at));
        }
    }
    Ok(configs)
}

/// The files of a folder or a zip file.
fn entries(path: &Path, input: &mut Input, findings: &mut Findings) -> Result<Vec<Entry>, Failure> {
    if path.is_dir() {
        let mut found = Vec::new();
        for SourceFile { path, parts: mut names } in files(&[path.to_owned()], |_| true)?.0 {
            names.pop();
            names.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
            found.push(Entry { at: path.display().to_string(), names, bytes: input.bytes(&path)? });
        }
        return Ok(found);
    }
    let invalid = |error: String| Failure::Invalid(format!("{}: {error}", path.display()));
    let mut archive = ZipArchive::new(Cursor::new(input.bytes(path)?))
        .map_err(|error| invalid(format!("it is neither a folder nor a zip file: {error}")))?;
    if archive.has_duplicate_names() {
        let text = "several of its files have one name: only the last one of each is read";
        findings.add(Code::Duplicate, path.display().to_string(), text);
    }
    let mut found = Vec::new();
    for number in 0..archive.len() {
        let entry = archive.by_index(number).map_err(|error| invalid(error.to_string()))?;
        if entry.is_dir() {
            continue;
        }
        // A name makes no path here: it becomes the key of a config.
        let name = entry.name().map_err(|error| invalid(error.to_string()))?.into_owned();
        let at = format!("{}/{name}", path.display());
        let bytes = input.take(entry, path).map_err(|error| invalid(format!("{name}: {error}")))??;
        found.push(Entry { at, names: name.split('/').map(str::to_owned).collect(), bytes });
    }
    Ok(found)
}

/// The type of each document by group and name, and how many have a description.
fn nacos_types(entry: &Entry, findings: &mut Findings) -> (BTreeMap<(String, String), String>, usize) {
    // The older form has the names of applications only, a line for each.
    if entry.names.last().is_some_and(|name| name == ".meta.yml") {
        let lines = entry.bytes.split(|byte| *byte == b'\n').filter(|line| line.contains(&b'=')).count();
        return (BTreeMap::new(), lines);
    }
    let text = String::from_utf8_lossy(&entry.bytes);
    let found = yaml::documents(&text, &entry.at, findings).unwrap_or_default();
    let items = found.into_iter().filter_map(|document| match document {
        Raw::Members(mut members) => members.shift_remove("metadata"),
        Raw::Text(_) | Raw::Binary(_) | Raw::Typed(_) | Raw::List(_) | Raw::Folder(_) => None,
    });
    let items = items.flat_map(|items| match plain(items) {
        Value::Array(items) => items,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Vec::new(),
    });
    let items: Vec<NacosItem> = items.filter_map(|item| serde_json::from_value(item).ok()).collect();
    let is_said = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let described = items.iter().filter(|item| is_said(&item.desc) || is_said(&item.app_name)).count();
    let types = items
        .into_iter()
        .map(|item| ((item.group, item.data_id), item.r#type.unwrap_or_default().to_ascii_lowercase()));
    (types.collect(), described)
}

/// A value whose texts are texts.
fn plain(raw: Raw) -> Value {
    match raw {
        Raw::Text(text) | Raw::Binary(text) => text.into(),
        Raw::Typed(value) => value,
        Raw::List(elements) => elements.into_iter().map(plain).collect(),
        Raw::Members(members) => {
            Value::Object(members.into_iter().map(|(name, value)| (name, plain(value))).collect())
        }
        Raw::Folder(_) => Value::Null,
    }
}

/// A name without the extension of a format. `com.example.shop` has none.
fn stem_of_format(name: &str) -> &str {
    const FORMATS: [&str; 9] = ["properties", "yaml", "yml", "json", "xml", "txt", "text", "html", "toml"];
    if FORMATS.contains(&extension(name).as_str()) { stem(name) } else { name }
}

/// A document in a format. What is not read is one text.
fn documents(format: &str, bytes: Vec<u8>, at: &str, findings: &mut Findings) -> Vec<Raw> {
    let whole = |text: String, reason: &str, findings: &mut Findings| {
        findings.add(Code::Document, at, format!("{reason}: it stays one text"));
        vec![Raw::Typed(text.into())]
    };
    let text = match text_of(bytes, Path::new(at)) {
        Ok(text) => text,
        Err(failure) => {
            findings.add(Code::Unread, at, failure.into_text());
            return Vec::new();
        }
    };
    match format {
        "yaml" | "yml" => match yaml::documents(&text, at, findings) {
            Ok(documents) if documents.is_empty() => whole(text, "it has no value", findings),
            Ok(documents) => documents,
            Err(failure) => whole(text, &failure.into_text(), findings),
        },
        "properties" => vec![properties_data(properties_of(&text), at, findings)],
        "json" => match Raw::of_text(text) {
            Raw::Text(text) => whole(text, "it is no JSON object or list", findings),
            document @ (Raw::Binary(_) | Raw::Typed(_) | Raw::List(_) | Raw::Members(_) | Raw::Folder(_)) => {
                vec![document]
            }
        },
        _ => whole(text, "its format is not read", findings),
    }
}

/// A namespace in the open API of Apollo.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApolloNamespace {
    #[serde(default)]
    app_id: String,
    #[serde(default)]
    cluster_name: String,
    namespace_name: String,
    #[serde(default)]
    format: String,
    items: Vec<ApolloItem>,
}

/// An item of a namespace. A comment is an item without a key.
#[derive(Deserialize)]
struct ApolloItem {
    key: String,
    value: String,
}

/// A page of the items of a namespace.
#[derive(Deserialize)]
struct ApolloPage {
    content: Vec<ApolloItem>,
    #[serde(default)]
    total: u64,
}

/// What a response of the open API has: a namespace, some, the items of one, or a page of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum ApolloResponse {
    Namespace(ApolloNamespace),
    Namespaces(Vec<ApolloNamespace>),
    Page(ApolloPage),
    Items(Vec<ApolloItem>),
}

/// Reads exports of Apollo: files of its portal, and responses of its open API with namespaces and their items.
pub(super) fn apollo(paths: &[PathBuf], findings: &mut Findings) -> Result<Vec<SourceConfig>, Failure> {
    let mut input = Input::new();
    let mut configs = Vec::new();
    for SourceFile { path, parts } in files(paths, |name| !name.starts_with('.'))?.0 {
        let at = path.display().to_string();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = input.bytes(&path)?;
        let is_json =
            bytes.trim_ascii_start().starts_with(b"{") || bytes.trim_ascii_start().starts_with(b"[");
        let response = if is_json { serde_json::from_slice(&bytes).ok() } else { None };
        let namespaces = match response {
            Some(ApolloResponse::Namespaces(none)) if none.is_empty() => {
                findings.add(Code::Unread, at, "it is an empty list: it has no namespace and no item");
                continue;
            }
            Some(ApolloResponse::Namespace(one)) => vec![one],
            Some(ApolloResponse::Namespaces(several)) => several,
            Some(ApolloResponse::Page(ApolloPage { content, total })) => {
                let missing = total.saturating_sub(content.len() as u64);
                if missing > 0 {
                    let text = format!("it is one page: {missing} of {total} items are not in it");
                    findings.add(Code::Unread, &at, text);
                }
                vec![ApolloNamespace::of_items(content)]
            }
            Some(ApolloResponse::Items(items)) => vec![ApolloNamespace::of_items(items)],
            None if is_json && names_namespace(&bytes) => {
                let text =
                    "it has a `namespaceName`, and is no namespace with items as the open API has them";
                findings.add(Code::Unread, at, text);
                continue;
            }
            // A file of the portal: `NAMESPACE.FORMAT`, or `APP+CLUSTER+NAMESPACE.FORMAT` of many.
            None => {
                let format = extension(&file);
                let format = if format.is_empty() { "properties".to_owned() } else { format };
                let bytes = if format == "properties" {
                    latin_or_utf8(bytes, &at, findings).into_bytes()
                } else {
                    bytes
                };
                let (stem, folders) =
                    parts.split_last().map_or(("", &[][..]), |(stem, folders)| (stem.as_str(), folders));
                let mut name = folders.to_vec();
                name.extend(stem.split('+').filter(|part| *part != DEFAULT_CLUSTER).map(str::to_owned));
                configs.extend(yaml::numbered(name, documents(&format, bytes, &at, findings), &at));
                continue;
            }
        };
        for namespace in namespaces {
            let data = namespace.data(&at, findings);
            configs.extend(yaml::numbered(namespace.name(&parts), data, &at));
        }
    }
    Ok(configs)
}

/// Whether JSON is meant to be a namespace, or a list of some.
fn names_namespace(bytes: &[u8]) -> bool {
    let is_meant = |value: &Value| value.get("namespaceName").is_some();
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Array(elements)) => elements.iter().any(is_meant),
        Ok(value) => is_meant(&value),
        Err(_) => false,
    }
}

impl ApolloNamespace {
    fn of_items(items: Vec<ApolloItem>) -> Self {
        let none = String::new;
        Self { app_id: none(), cluster_name: none(), namespace_name: none(), format: none(), items }
    }

    /// The name of its config; without a name of its own it has that of its file.
    fn name(&self, file: &[String]) -> Vec<String> {
        if self.namespace_name.is_empty() {
            return file.to_vec();
        }
        let cluster = if self.cluster_name == DEFAULT_CLUSTER { "" } else { &self.cluster_name };
        let parts = [&self.app_id, cluster, stem_of_format(&self.namespace_name)];
        parts.iter().filter(|part| !part.is_empty()).map(|part| (*part).to_owned()).collect()
    }

    fn data(&self, at: &str, findings: &mut Findings) -> Vec<Raw> {
        if !matches!(self.format.as_str(), "" | "properties") {
            // A namespace of another format is one item.
            let content = self.items.iter().find(|item| item.key == "content");
            let others = self.items.iter().filter(|item| !item.key.is_empty()).count()
                - usize::from(content.is_some());
            if others > 0 {
                let text =
                    format!("{others} items beside `content`, which alone is the document, are not read");
                findings.add(Code::Unread, at, text);
            }
            let bytes = content.map(|item| item.value.clone().into_bytes()).unwrap_or_default();
            return documents(&self.format, bytes, at, findings);
        }
        let mut tree = Tree::default();
        for item in self.items.iter().filter(|item| !(item.key.is_empty() && item.value.is_empty())) {
            let steps: Vec<Step> = super::lines::steps(&item.key);
            tree.put(&steps, Raw::of_text(item.value.clone()), &format!("{at} {}", item.key), findings);
        }
        vec![tree.finish(at, findings)]
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    #[test]
    fn files_of_one_name_in_a_zip_file_are_reported() {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["g/one.yaml", "g/two.yaml"] {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(format!("a: {name}\n").as_bytes()).unwrap();
        }
        let mut bytes = zip.finish().unwrap().into_inner();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("export.zip");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let mut findings = Findings::default();
            let configs = nacos(std::slice::from_ref(&path), &mut findings).unwrap();
            (configs.len(), findings.places())
        };
        assert_eq!(read(&bytes), (2, vec![]));
        while let Some(at) = bytes.windows(10).position(|name| name == b"g/two.yaml") {
            bytes[at..at + 10].copy_from_slice(b"g/one.yaml");
        }
        assert_eq!(read(&bytes).1, [format!("duplicate {}", path.display())]);
    }

    #[test]
    fn responses_of_apollo_that_are_not_read_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            let mut findings = Findings::default();
            let configs = apollo(std::slice::from_ref(&path), &mut findings).unwrap();
            let places = findings.places().into_iter();
            (
                configs.len(),
                places.map(|place| place.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>(),
            )
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(
            read(r#"{"namespaceName": "a", "items": [{"key": "k", "value": "v"}]}"#),
            (1, none.clone())
        );
        assert_eq!(read(r#"{"namespace": "a file of the portal"}"#), (1, none.clone()));
        for text in [
            "[]",
            r#"{"namespaceName": "a", "items": null}"#,
            r#"[{"namespaceName": "a", "items": [{"key": 1}]}]"#,
        ] {
            assert_eq!(read(text), (0, vec!["unread".to_owned()]), "{text}");
        }
        let document = r#"{"namespaceName": "a.yaml", "format": "yaml", "items": [{"key": "", "value": ""}, {"key": "content", "value": "a: 1"}OTHER]}"#;
        assert_eq!(read(&document.replace("OTHER", "")), (1, none));
        let others = document.replace("OTHER", r#", {"key": "k", "value": "v"}"#);
        assert_eq!(read(&others), (1, vec!["unread".to_owned()]));
    }
}
