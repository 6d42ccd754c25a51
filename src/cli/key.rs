//! The commands `key create|list|get|change|rotate|revoke`, and `whoami`.
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
    ],
    wide: &[("CREATED", "/created_at"), ("QUOTA", "/quota")],
};

/// With the secret of a key, which only the response that created it has.
const COLUMNS_WITH_TEXT: Columns = Columns {
    narrow: &[("ID", "/key_id"), ("NAME", "/name"), ("GRANTS", "/grants"), ("API KEY", "/api_key")],
    wide: &[("EXPIRES", "/expires_at"), ("CREATED", "/created_at"), ("QUOTA", "/quota")],
    ..COLUMNS
};

const KEYS: &str = "/api/v1/api_key/";

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
    Rotate {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key
        id: String,
        /// For how many seconds the previous secret remains valid; 0 invalidates it immediately
        #[arg(long, value_name = "S")]
        grace_s: u64,
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
            let path = format!("{}/rotate", path_of(&id));
            run_with_client(&node, async |client| {
                // With a grace period, the key's owner has time to switch to the new secret.
                if grace_s == 0 && !yes {
                    let key = described(&client, &id).await?;
                    confirm(&format!("the current secret of {key} will be invalid immediately"), false)?;
                }
                send(&client, &node, Method::POST, &path, Some(&json!({ "grace_s": grace_s }))).await
            })
        }
        KeyCommand::Revoke { node, id, yes } => run_with_client(&node, async |client| {
            if !yes {
                confirm(&format!("{} will be revoked permanently", described(&client, &id).await?), false)?;
            }
            send(&client, &node, Method::DELETE, &path_of(&id), None).await
        }),
    }
}

/// A key as a confirmation names it, because an id says little. Fails if the key does not exist.
async fn described(client: &Client, id: &str) -> Result<String, Failure> {
    let key = ask(client, Method::GET, &path_of(id), None).await?;
    let used =
        key["last_used_at"].as_str().map_or_else(|| "never used".into(), |at| format!("last used {at}"));
    Ok(printable(&format!("key {id} ({}, {used})", cell(&key["name"]))))
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

/// Formats the grants of a key as the command line takes them, for a table.
fn write_grants(key: &mut Value) {
    let all = |of: &Value| of.as_array().into_iter().flatten().map(cell).collect::<Vec<_>>().join(",");
    let grants = key["grants"].as_array().into_iter().flatten().map(|grant| {
        let (verbs, definitions) = (all(&grant["verbs"]), all(&grant["definitions"]));
        if definitions.is_empty() { verbs } else { format!("{verbs}:{definitions}") }
    });
    key["grants"] = grants.collect::<Vec<_>>().join(" ").into();
}

/// Shows the access key in use.
pub(super) fn whoami(node: &NodeArgs) -> Result<(), Failure> {
    call(node, Method::GET, "/api/v1/whoami", None)
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
