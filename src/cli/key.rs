//! The commands `key create|list|get|change|rotate|attest|revoke`, and `whoami`.
//!
//! A quota is written `NAME=N`, as in `writes_per_second=10`. A grant is written `VERBS:PATTERNS`, as in
//! `read,write:billing.*,limits`; verbs that apply to the whole cluster stand alone, as in `cluster,backup`.
//!
//! **Invariant:** the secret of a key is written to stdout and nowhere else.

use clap::{Args, Subcommand};
use concord_client::Client;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::{
    connection::{Failure, NodeArgs, ask, run_with_client},
    output::{Columns, Format, cell, confirm, print_columns, printable},
};

const COLUMNS: Columns = Columns {
    name: "key_id",
    narrow: &[
        ("ID", "/key_id"),
        ("NAME", "/name"),
        ("GRANTS", "/grants"),
        ("EXPIRES", "/expires_at"),
        ("LAST USED", "/last_used_at"),
        ("PERSON", "/person/label"),
        ("ATTESTED", "/attested"),
    ],
    wide: &[("ATTESTED BY", "/attested_by"), ("CREATED", "/created_at"), ("QUOTA", "/quota")],
};

/// With the secret of a key, which only the response that created it has.
const COLUMNS_WITH_TEXT: Columns = Columns {
    narrow: &[("ID", "/key_id"), ("NAME", "/name"), ("GRANTS", "/grants"), ("API KEY", "/api_key")],
    wide: &[("EXPIRES", "/expires_at"), ("CREATED", "/created_at"), ("QUOTA", "/quota")],
    ..COLUMNS
};

const KEYS: &str = "/api/v1/api_key/";
const WHOAMI: &str = "/api/v1/whoami";

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Create an access key and print its secret, which is shown only once
    Create(KeyCreateArgs),
    /// List access keys
    List {
        #[command(flatten)]
        node: NodeArgs,
        /// Only keys whose name or id contains this text
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// The page number
        #[arg(long, default_value_t = 1, value_name = "N")]
        page: u64,
        /// Keys per page
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: u64,
    },
    /// Show an access key
    Get {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key
        id: String,
    },
    /// Change the name, the grants, the expiry or the quotas of an access key
    Change(ChangeArgs),
    /// Rotate the secret of an access key and print the new one, which is shown only once
    ///
    /// A key that has a person may rotate itself.
    Rotate {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key [default: the key in use]
        id: Option<String>,
        /// For how many seconds the previous secret remains valid; 0 invalidates it immediately
        #[arg(long, value_name = "S")]
        grace_s: u64,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Attest that the person of an access key, and nobody else, holds it
    #[command(
        long_about = "Attest that the person of an access key, and nobody else, holds it.\n\nWith the root key, the \
                            key is attested at once. Otherwise two persons must attest it, each with an attested key of \
                            their own. Ask the person for the revision that they see in `concord whoami`: both must name \
                            the same one."
    )]
    Attest {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key
        id: String,
        /// The revision of the key that its person has named [default: the current one, after a confirmation]
        #[arg(long, value_name = "N")]
        revision: Option<u64>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Revoke an access key permanently
    Revoke {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key
        id: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct KeyCreateArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The name of the key
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A grant: permissions, and the definitions they apply to, as in `read,write:billing.*,limits` or `observe`;
    /// repeatable
    #[arg(long = "grant", required = true, value_parser = parse_grant, value_name = "VERBS:PATTERNS")]
    grants: Vec<Value>,
    /// When the key expires, as in `2027-01-01T00:00:00Z` [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// A quota of the key, as in `writes_per_second=10`; repeatable
    #[arg(long, value_parser = parse_quota, value_name = "NAME=N")]
    quota: Vec<(String, u64)>,
    /// The person who holds the key, such as `ada@example.com`; it never changes
    #[arg(long, value_name = "LABEL")]
    person: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The id of the key
    id: String,
    /// The name of the key
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Replace all grants of the key with this one; repeatable
    #[arg(long = "grant", value_parser = parse_grant, value_name = "VERBS:PATTERNS")]
    grants: Vec<Value>,
    /// When the key expires
    #[arg(long, value_name = "TIME", conflicts_with = "never_expires")]
    expires_at: Option<String>,
    /// The key never expires
    #[arg(long)]
    never_expires: bool,
    /// Replace all quotas of the key with this one; repeatable
    #[arg(long, value_parser = parse_quota, value_name = "NAME=N", conflicts_with = "no_quota")]
    quota: Vec<(String, u64)>,
    /// Remove all quotas of the key
    #[arg(long)]
    no_quota: bool,
}

/// The names of quotas, as the API has them.
const QUOTAS: [&str; 7] =
    ["requests_per_second", "writes_per_second", "bytes", "records", "watches", "cursors", "lists"];

/// Parses a quota. A key with an unknown name would have no quota.
fn parse_quota(text: &str) -> Result<(String, u64), String> {
    let parsed =
        text.split_once('=').and_then(|(name, number)| Some((name.trim(), number.trim().parse().ok()?)));
    let (name, number) = parsed.ok_or("expected NAME=N, as in `writes_per_second=10`")?;
    if !QUOTAS.contains(&name) {
        return Err(format!("unknown quota `{name}`: expected one of {}", QUOTAS.join(", ")));
    }
    Ok((name.to_owned(), number))
}

fn quota_json(quota: &[(String, u64)]) -> Value {
    quota.iter().map(|(name, number)| (name.clone(), Value::from(*number))).collect::<Map<_, _>>().into()
}

/// Parses a grant. The node checks its verbs and patterns.
fn parse_grant(text: &str) -> Result<Value, String> {
    let list = |text: &str| -> Vec<String> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Into::into).collect()
    };
    let (verbs, patterns) = match text.split_once(':') {
        Some((verbs, patterns)) => (list(verbs), list(patterns)),
        None => (list(text), Vec::new()),
    };
    if verbs.is_empty() {
        return Err("expected VERBS:PATTERNS, as in `read,write:billing.*,limits`, or VERBS alone".into());
    }
    Ok(json!({ "verbs": verbs, "definitions": patterns }))
}

/// Runs a command.
pub(super) fn run(command: KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::Create(args) => {
            let mut body = json!({ "name": args.name, "grants": args.grants });
            if let Some(end) = args.expires_at {
                body["expires_at"] = end.into();
            }
            if !args.quota.is_empty() {
                body["quota"] = quota_json(&args.quota);
            }
            if let Some(person) = args.person {
                body["person"] = person.into();
            }
            call(&args.node, Method::POST, KEYS, Some(&body))
        }
        KeyCommand::List { node, search, page, limit } => {
            let search = search.unwrap_or_default();
            let search = utf8_percent_encode(&search, NON_ALPHANUMERIC);
            let path =
                format!("{KEYS}?sort_by=name&sort_order=asc&page={page}&limit={limit}&search={search}");
            run_with_client(&node, async |client| {
                let data = ask(&client, Method::GET, &path, None).await?;
                show(&node.format.or_table(), data)
            })
        }
        KeyCommand::Get { node, id } => call(&node, Method::GET, &path_of(&id), None),
        KeyCommand::Change(args) => call(&args.node, Method::PATCH, &path_of(&args.id), Some(&args.body())),
        KeyCommand::Rotate { node, id, grace_s, yes } => {
            run_with_client(&node, async |client| {
                // With a grace period, the key's owner has time to switch to the new secret.
                let is_confirmed = grace_s > 0 || yes;
                // The holder of the key in use may lack the permission to read it.
                let own = match &id {
                    Some(_) if is_confirmed => None,
                    Some(_) | None => Some(ask(&client, Method::GET, WHOAMI, None).await?),
                };
                let own_id = own.as_ref().map(|own| cell(&own["key_id"]));
                let id = id.or(own_id).unwrap_or_default();
                if !is_confirmed {
                    let key = match own.filter(|own| own["key_id"] == id.as_str()) {
                        Some(own) => described(&own),
                        None => read_key(&client, &id).await?,
                    };
                    confirm(&format!("the current secret of {key} will be invalid immediately"), false)?;
                }
                let path = format!("{}/rotate", path_of(&id));
                send(&client, &node, Method::POST, &path, Some(&json!({ "grace_s": grace_s }))).await
            })
        }
        KeyCommand::Attest { node, id, revision, yes } => run_with_client(&node, async |client| {
            let key = ask(&client, Method::GET, &path_of(&id), None).await?;
            let revision = revision.map_or_else(|| key["revision"].clone(), Value::from);
            if !yes {
                confirm(&attestation(&key, &revision), false)?;
            }
            let path = format!("{}/attest", path_of(&id));
            send(&client, &node, Method::POST, &path, Some(&json!({ "revision": revision }))).await
        }),
        KeyCommand::Revoke { node, id, yes } => run_with_client(&node, async |client| {
            if !yes {
                confirm(&format!("{} will be revoked permanently", read_key(&client, &id).await?), false)?;
            }
            send(&client, &node, Method::DELETE, &path_of(&id), None).await
        }),
    }
}

/// A key as a confirmation names it. Fails if the key does not exist.
async fn read_key(client: &Client, id: &str) -> Result<String, Failure> {
    Ok(described(&ask(client, Method::GET, &path_of(id), None).await?))
}

/// A key as a confirmation names it, because an id says little.
fn described(key: &Value) -> String {
    let used =
        key["last_used_at"].as_str().map_or_else(|| "never used".into(), |at| format!("last used {at}"));
    printable(&format!("key {} ({}, {used})", cell(&key["key_id"]), cell(&key["name"])))
}

/// What an attestation says, for a confirmation.
fn attestation(key: &Value, revision: &Value) -> String {
    let person = key["person"]["label"].as_str().unwrap_or("nobody");
    printable(&format!(
        "you confirm that {person}, and nobody else, holds {} at revision {}, with the grants {}",
        described(key),
        cell(revision),
        grants_text(key)
    ))
}

/// Sends a request about keys and prints the answer.
fn call(node: &NodeArgs, method: Method, path: &str, body: Option<&Value>) -> Result<(), Failure> {
    run_with_client(node, async |client| send(&client, node, method, path, body).await)
}

async fn send(
    client: &Client,
    node: &NodeArgs,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(), Failure> {
    show(&node.format.or_json(), ask(client, method, path, body).await?)
}

fn show(format: &Format, mut data: Value) -> Result<(), Failure> {
    if format.is_table() {
        match data.get_mut("results").and_then(Value::as_array_mut) {
            Some(keys) => keys.iter_mut().for_each(write_grants),
            None => write_grants(&mut data),
        }
    }
    let columns = if data.get("api_key").is_some() { &COLUMNS_WITH_TEXT } else { &COLUMNS };
    print_columns(format, &data, columns)
}

/// Formats the lists of a key for a table.
fn write_grants(key: &mut Value) {
    let by = |by: &Value| cell(by["person"].get("label").unwrap_or(&by["key_id"]));
    let attesters: Vec<String> = key["attested_by"].as_array().into_iter().flatten().map(by).collect();
    key["attested_by"] = attesters.join(",").into();
    key["grants"] = grants_text(key).into();
}

/// The grants of a key as the command line takes them.
pub(super) fn grants_text(key: &Value) -> String {
    let all = |of: &Value| of.as_array().into_iter().flatten().map(cell).collect::<Vec<_>>().join(",");
    let grants = key["grants"].as_array().into_iter().flatten().map(|grant| {
        let (verbs, definitions) = (all(&grant["verbs"]), all(&grant["definitions"]));
        if definitions.is_empty() { verbs } else { format!("{verbs}:{definitions}") }
    });
    grants.collect::<Vec<_>>().join(" ")
}

/// Shows the access key in use.
pub(super) fn whoami(node: &NodeArgs) -> Result<(), Failure> {
    call(node, Method::GET, WHOAMI, None)
}

fn path_of(id: &str) -> String {
    format!("{KEYS}{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

impl ChangeArgs {
    fn body(&self) -> Value {
        let mut body = Map::new();
        if let Some(name) = &self.name {
            body.insert("name".into(), name.as_str().into());
        }
        if !self.grants.is_empty() {
            body.insert("grants".into(), self.grants.clone().into());
        }
        if let Some(end) = &self.expires_at {
            body.insert("expires_at".into(), end.as_str().into());
        }
        if self.never_expires {
            body.insert("expires_at".into(), Value::Null);
        }
        if self.no_quota || !self.quota.is_empty() {
            body.insert("quota".into(), quota_json(&self.quota));
        }
        body.into()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: KeyCommand,
    }

    #[test]
    fn a_grant_has_verbs_and_patterns() {
        let grant = |text| parse_grant(text).unwrap();
        assert_eq!(
            grant("read, write:billing.*,limits"),
            json!({ "verbs": ["read", "write"], "definitions": ["billing.*", "limits"] })
        );
        assert_eq!(grant("cluster,backup"), json!({ "verbs": ["cluster", "backup"], "definitions": [] }));
        for wrong in ["", ":a", ",:a"] {
            assert!(parse_grant(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_attestation_says_what_it_confirms() {
        let grants = json!([{ "verbs": ["read", "approve"], "definitions": ["prod.*"] }]);
        let mut key = json!({ "key_id": "0123456789ab", "name": "ada", "person": { "label": "ada@x" },
            "grants": grants, "attested_by": [{ "key_id": "root", "person": null },
            { "key_id": "cdefghijklmn", "person": { "label": "bob@x" } }] });
        let text = attestation(&key, &json!(44));
        assert!(
            text.starts_with("you confirm that ada@x, and nobody else, holds key 0123456789ab"),
            "{text}"
        );
        assert!(text.ends_with("at revision 44, with the grants read,approve:prod.*"), "{text}");
        write_grants(&mut key);
        assert_eq!(
            (&key["attested_by"], &key["grants"]),
            (&json!("root,bob@x"), &json!("read,approve:prod.*"))
        );
    }

    #[test]
    fn a_change_names_what_it_changes() {
        let body = |more: &[&str]| {
            let line = [&["key", "change", "0123456789ab"], more].concat();
            let KeyCommand::Change(args) = Line::try_parse_from(line).unwrap().command else {
                panic!("a change")
            };
            args.body()
        };
        assert_eq!(body(&[]), json!({}));
        assert_eq!(body(&["--never-expires"]), json!({ "expires_at": null }));
        let grants = json!([{ "verbs": ["read"], "definitions": ["*"] }]);
        assert_eq!(body(&["--name", "n", "--grant", "read:*"]), json!({ "name": "n", "grants": grants }));
        let quota = ["--quota", "writes_per_second=10", "--quota", "records=5"];
        assert_eq!(body(&quota), json!({ "quota": { "writes_per_second": 10, "records": 5 } }));
        assert_eq!(body(&["--no-quota"]), json!({ "quota": {} }));
        for wrong in ["records", "records=many", "records=-1", "writes_per_sec=10"] {
            assert!(parse_quota(wrong).is_err(), "{wrong}");
        }
    }
}
