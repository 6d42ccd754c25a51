//! Key-value stores with paths as keys: the exports of Consul and etcd.
//!
//! The first segments of a key, one by default, name the config, and the others are the path of a field in it:
//! `shop/db/host` is `db.host` of the config `shop`. A key that has no more segments than name a config is a field of the
//! config of its folder, unless its value is a JSON object, which is then the data of a config.

use std::path::PathBuf;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use indexmap::IndexMap;
use serde::Deserialize;

use super::{
    super::{connection::Failure, output::printable},
    SourceConfig,
    finding::{Code, Findings},
    input::Input,
    raw::{Raw, Step, Tree},
};

/// How keys are taken apart.
#[derive(Debug)]
pub(super) struct Mapping<'a> {
    /// How many segments name a config.
    pub(super) depth: usize,
    /// The folder that is imported.
    pub(super) prefix: Option<&'a str>,
}

/// A key and its value, as bytes.
struct Pair {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// An element of an export of Consul.
#[derive(Deserialize)]
struct ConsulPair {
    key: String,
    #[serde(default)]
    flags: u64,
    #[serde(default)]
    value: String,
}

/// An export of etcd: a response to a range request.
#[derive(Deserialize)]
struct EtcdRange {
    #[serde(default)]
    kvs: Vec<EtcdPair>,
    #[serde(default)]
    count: u64,
}

/// A member with a default value is absent.
#[derive(Deserialize)]
struct EtcdPair {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    lease: i64,
}

/// Reads `consul kv export`.
pub(super) fn consul(
    paths: &[PathBuf],
    mapping: &Mapping<'_>,
    findings: &mut Findings,
) -> Result<Vec<SourceConfig>, Failure> {
    let mut input = Input::new();
    let mut all = Vec::new();
    for path in paths {
        let invalid = |error: String| Failure::Invalid(format!("{}: {error}", path.display()));
        let pairs: Vec<ConsulPair> = serde_json::from_slice(&input.bytes(path)?)
            .map_err(|error| invalid(format!("it is no output of `consul kv export` ({})", place(&error))))?;
        for ConsulPair { key, flags, value } in pairs {
            let value = decoded(&value)
                .map_err(|error| invalid(format!("the value of `{}` {error}", printable(&key))))?;
            if flags != 0 {
                findings.add(Code::Metadata, &key, format!("its flags ({flags}) are left out"));
            }
            all.push(Pair { key: key.into_bytes(), value });
        }
    }
    Ok(configs(all, mapping, findings))
}

/// Reads `etcdctl get --prefix "" -w json`.
pub(super) fn etcd(
    paths: &[PathBuf],
    mapping: &Mapping<'_>,
    findings: &mut Findings,
) -> Result<Vec<SourceConfig>, Failure> {
    let mut input = Input::new();
    let mut all = Vec::new();
    for path in paths {
        let invalid = |error: String| Failure::Invalid(format!("{}: {error}", path.display()));
        let range: EtcdRange = serde_json::from_slice(&input.bytes(path)?).map_err(|error| {
            invalid(format!("it is no output of `etcdctl get -w json` ({})", place(&error)))
        })?;
        let missing = range.count.saturating_sub(range.kvs.len() as u64);
        if missing > 0 {
            let text = format!("the export was limited: {missing} of {} keys are not in it", range.count);
            findings.add(Code::Unread, path.display().to_string(), text);
        }
        for EtcdPair { key, value, lease } in range.kvs {
            let key =
                decoded(&key).map_err(|error| invalid(format!("the key `{}` {error}", printable(&key))))?;
            let shown = String::from_utf8_lossy(&key).into_owned();
            let value = decoded(&value)
                .map_err(|error| invalid(format!("the value of `{}` {error}", printable(&shown))))?;
            if lease != 0 {
                let text = "its lease is left out: in etcd the key expires, in Concord it stays";
                findings.add(Code::Metadata, shown, text);
            }
            all.push(Pair { key, value });
        }
    }
    Ok(configs(all, mapping, findings))
}

/// Where JSON is not what it should be. The message of the library may quote a value.
fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

fn decoded(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("is no base64: {error}"))
}

/// The configs of pairs, in the order in which they begin.
fn configs(pairs: Vec<Pair>, mapping: &Mapping<'_>, findings: &mut Findings) -> Vec<SourceConfig> {
    let mut trees: IndexMap<Vec<String>, Tree> = IndexMap::new();
    let mut outside = 0;
    for Pair { key, value } in pairs {
        let text = String::from_utf8_lossy(&key).into_owned();
        let Some(segments) = mapping.segments(&text) else {
            outside += 1;
            continue;
        };
        // Some programs make folders as keys without values.
        if value.is_empty() && text.ends_with('/') {
            findings.add(Code::Skipped, text, "it is a folder without a value of its own");
            continue;
        }
        if text.as_bytes() != key {
            findings.add(Code::Renamed, &text, "its key is not UTF-8: other bytes are `\u{fffd}`");
        }
        let value = match String::from_utf8(value) {
            Ok(text) => Raw::of_text(text),
            Err(error) => Raw::Binary(STANDARD.encode(error.as_bytes())),
        };
        let at = mapping.split(&segments, &value);
        let (config, field) = segments.split_at(at);
        let field: Vec<Step> = field.iter().cloned().map(Step::Name).collect();
        // `/a/b` and `a/b` are two keys.
        let root = text.starts_with('/').then(String::new);
        let config = root.into_iter().chain(config.iter().cloned()).collect();
        trees.entry(config).or_default().put(&field, value, &text, findings);
    }
    if outside > 0 {
        let prefix = mapping.prefix.unwrap_or_default();
        findings.add(Code::Skipped, prefix, format!("{outside} keys are not below this prefix"));
    }
    let finished = trees.into_iter().map(|(name, tree)| {
        let at = name.join("/");
        let data = tree.finish(&at, findings);
        SourceConfig { name, at, data }
    });
    finished.collect()
}

impl Mapping<'_> {
    /// The segments of a key below the prefix. A slash before the first begins no folder: in etcd many keys have one.
    fn segments(&self, key: &str) -> Option<Vec<String>> {
        let prefix = self.prefix.unwrap_or_default().trim_matches('/');
        let mut rest = key.strip_prefix('/').unwrap_or(key);
        if !prefix.is_empty() {
            rest = rest.strip_prefix(prefix)?;
            rest = if rest.is_empty() { rest } else { rest.strip_prefix('/')? };
        }
        Some(rest.split('/').map(str::to_owned).collect())
    }

    /// How many of the segments name the config.
    fn split(&self, segments: &[String], value: &Raw) -> usize {
        let is_config = segments.len() == self.depth && matches!(value, Raw::Members(_));
        if is_config { self.depth } else { self.depth.min(segments.len() - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &[u8])], depth: usize, prefix: Option<&str>) -> (Vec<String>, Vec<String>) {
        let mut findings = Findings::default();
        let pair =
            |(key, value): &(&str, &[u8])| Pair { key: key.as_bytes().to_vec(), value: value.to_vec() };
        let pairs = pairs.iter().map(pair).collect();
        let found = configs(pairs, &Mapping { depth, prefix }, &mut findings);
        let shown = found.iter().map(|config| format!("{:?} {:?}", config.name, config.data));
        (shown.collect(), findings.places())
    }

    #[test]
    fn segments_name_the_config_and_the_field() {
        let pairs: [(&str, &[u8]); 4] =
            [("shop/db/host", b"h"), ("shop/on", b"x"), ("top", b"y"), ("doc", b"{\"a\":1}")];
        let names = |depth| -> Vec<String> {
            let (found, _) = read(&pairs, depth, None);
            found.iter().map(|config| config.split(" M").next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(names(0), ["[]"]);
        assert_eq!(names(1), [r#"["shop"]"#, "[]", r#"["doc"]"#]);
        assert_eq!(names(2), [r#"["shop", "db"]"#, r#"["shop"]"#, "[]"]);
        let (found, places) = read(&pairs, 1, Some("/shop/"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(places, ["skipped /shop/"]);
    }

    #[test]
    fn folders_bytes_and_two_spellings_of_a_key_are_reported() {
        let pairs: [(&str, &[u8]); 5] =
            [("a/b/", b""), ("a/c", b"\xff"), ("/a/d", b"1"), ("a/d", b"2"), ("a/e/", b"x")];
        let (found, places) = read(&pairs, 1, None);
        assert_eq!(places, ["skipped a/b/"]);
        assert_eq!(
            found,
            [
                r#"["a"] Members({"c": Binary("/w=="), "d": Text("2"), "e": Members({"": Text("x")})})"#,
                r#"["", "a"] Members({"d": Text("1")})"#,
            ]
        );
    }
}
