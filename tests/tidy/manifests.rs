//! A crate depends only on the crates below it, and a library belongs to one crate.
//!
//! The compiler keeps a crate to its manifest, and cargo refuses circles. Neither refuses a dependency that nobody
//! wants: the protocol between nodes would know what it carries.

use super::{assert_none, crates, read};

/// What a crate may depend on, from the lowest up.
const BELOW: [(&str, &[&str]); 11] = [
    ("model", &[]),
    ("formats", &["model"]),
    // Flags know nothing of the cluster that holds them.
    ("flags", &["model"]),
    // Tokens are judged without a look at the cluster.
    ("identity", &["model"]),
    ("state", &["model"]),
    ("storage", &["model", "state"]),
    // The calls between nodes know nothing of what they carry.
    ("net", &["model"]),
    ("consensus", &["model", "state", "storage", "net"]),
    // The TLS of the client is that of the connection to a collector of spans.
    ("service", &["model", "flags", "identity", "state", "storage", "net", "consensus", "client"]),
    ("http", &["model", "formats", "flags", "state", "storage", "net", "consensus", "service"]),
    // A program for tests, above everything.
    ("simulation", &["model", "storage", "net", "consensus", "service", "http"]),
];

/// The manifest that alone names a library; that of the program is `Cargo.toml`.
const LIBRARIES: [(&str, &str); 14] = [
    ("age", "crates/storage/Cargo.toml"),
    ("axum", "crates/http/Cargo.toml"),
    ("clap", "Cargo.toml"),
    ("datalogic-rs", "crates/flags/Cargo.toml"),
    ("jsonschema", "crates/model/Cargo.toml"),
    ("openraft", "crates/consensus/Cargo.toml"),
    ("opentelemetry-proto", "crates/service/Cargo.toml"),
    ("prometheus-client", "crates/service/Cargo.toml"),
    ("prost", "crates/service/Cargo.toml"),
    ("raft-log", "crates/consensus/Cargo.toml"),
    ("rustls", "crates/net/Cargo.toml"),
    ("sled", "crates/storage/Cargo.toml"),
    ("utoipa", "crates/http/Cargo.toml"),
    ("x509-parser", "crates/net/Cargo.toml"),
];

/// The names in the tables of a manifest whose head is one of these.
fn names<'a>(manifest: &'a str, heads: &[&str]) -> Vec<&'a str> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = heads.contains(&line.trim());
        } else if is_inside && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            found.extend(line.split(['.', ' ', '=']).next());
        }
    }
    found
}

/// The crates of ours that a crate depends on and may not.
fn upward(own: &str, manifest: &str) -> Vec<String> {
    let may = BELOW.iter().find(|(name, _)| *name == own).map_or(&[][..], |(_, below)| below);
    let heads = ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"];
    let ours = names(manifest, &heads).into_iter().filter_map(|name| name.strip_prefix("concord-"));
    ours.filter(|name| !may.contains(name)).map(|name| format!("`{own}` depends on `{name}`")).collect()
}

/// The libraries that a manifest names and that belong to another.
fn foreign(path: &str, manifest: &str) -> Vec<String> {
    let named = names(manifest, &["[dependencies]"]).into_iter();
    let wrong = named.filter(|name| LIBRARIES.iter().any(|(library, home)| library == name && *home != path));
    wrong.map(|name| format!("{path} names `{name}`")).collect()
}

fn path_of(name: &str) -> String {
    format!("crates/{name}/Cargo.toml")
}

#[test]
fn a_crate_depends_only_on_those_below_it() {
    let mut known: Vec<&str> = BELOW.map(|(name, _)| name).to_vec();
    known.sort_unstable();
    assert_eq!(crates(), known, "each crate has its place in the order");
    let breaches: Vec<String> =
        BELOW.iter().flat_map(|(name, _)| upward(name, &read(&path_of(name)))).collect();
    assert_none("dependencies go down", &breaches);
}

#[test]
fn a_library_is_named_by_one_manifest() {
    let paths = BELOW.iter().map(|(name, _)| path_of(name)).chain(["Cargo.toml".to_owned()]);
    let breaches: Vec<String> = paths.flat_map(|path| foreign(&path, &read(&path))).collect();
    assert_none("each library belongs to one crate", &breaches);
    for (library, home) in LIBRARIES {
        assert!(
            names(&read(home), &["[dependencies]"]).contains(&library),
            "{home} names no `{library}` any more"
        );
    }
}

#[test]
fn a_dependency_upward_is_found() {
    let manifest = "[package]\nname = \"concord-net\"\n[features]\ntesting = [\"concord-http/testing\"]\n\
                    [dependencies]\n# concord-http\nconcord-model.workspace = true\n\
                    concord-state = { path = \"../state\" }\nsled = \"1\"\nrustls.workspace = true\n\
                    [dev-dependencies]\nconcord-storage.workspace = true\naxum.workspace = true\n";
    assert_eq!(upward("net", manifest), ["`net` depends on `state`", "`net` depends on `storage`"]);
    assert_eq!(upward("consensus", manifest), Vec::<String>::new());
    assert_eq!(foreign("crates/net/Cargo.toml", manifest), ["crates/net/Cargo.toml names `sled`"]);
}
