//! The commands `key create|list|get|change|rotate|revoke`.
//!
//! A grant is written `VERBS:PATTERNS`, as in `read,write:billing.*,limits`; verbs that are about no definition stand
//! alone, as in `cluster,backup`.
//!
//! **Invariant:** the text of a key is written to standard output and nowhere else.

use clap::{Args, Subcommand};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::{Failure, NodeArgs, call};

const KEYS: &str = "/api/v1/api_key/";

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Create an access key; its text is shown once
    Create(CreateArgs),
    /// List access keys
    List {
        #[command(flatten)]
        node: NodeArgs,
        /// Only keys whose name or id contains this text
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// The number of the page
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
    /// Change an access key; what is not named stays as it is
    Change(ChangeArgs),
    /// Give an access key another text, which is shown once
    Rotate {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key
        id: String,
        /// For how many seconds the text before stays good
        #[arg(long, value_name = "S")]
        grace_s: u64,
    },
    /// Revoke an access key
    Revoke {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the key
        id: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// What to call the key
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What the key may do, as in `read,write:billing.*,limits` or `cluster`; repeat for more
    #[arg(long = "grant", required = true, value_parser = parse_grant, value_name = "VERBS:PATTERNS")]
    grants: Vec<Value>,
    /// When the key ends, as in `2027-01-01T00:00:00Z`
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The id of the key
    id: String,
    /// What to call the key
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// All that the key may do from now on; repeat for more
    #[arg(long = "grant", value_parser = parse_grant, value_name = "VERBS:PATTERNS")]
    grants: Vec<Value>,
    /// When the key ends
    #[arg(long, value_name = "TIME", conflicts_with = "never_expires")]
    expires_at: Option<String>,
    /// The key never ends
    #[arg(long)]
    never_expires: bool,
}

/// Parses a grant of the command line. Whether its verbs and patterns exist is for the node to say.
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
            call(&args.node, (Method::POST, KEYS), Some(&body))
        }
        KeyCommand::List { node, search, page, limit } => {
            let search = search.unwrap_or_default();
            let search = utf8_percent_encode(&search, NON_ALPHANUMERIC);
            let path =
                format!("{KEYS}?sort_by=name&sort_order=asc&page={page}&limit={limit}&search={search}");
            call(&node, (Method::GET, &path), None)
        }
        KeyCommand::Get { node, id } => call(&node, (Method::GET, &path_of(&id)), None),
        KeyCommand::Change(args) => call(&args.node, (Method::PATCH, &path_of(&args.id)), Some(&args.body())),
        KeyCommand::Rotate { node, id, grace_s } => {
            let path = format!("{}/rotate", path_of(&id));
            call(&node, (Method::POST, &path), Some(&json!({ "grace_s": grace_s })))
        }
        KeyCommand::Revoke { node, id } => call(&node, (Method::DELETE, &path_of(&id)), None),
    }
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
    }
}
