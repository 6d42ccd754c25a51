//! The commands `identity`, `role`, `session`, `login` and `logout`.
//!
//! A provider and a role are in files: JSON or YAML, as `get` shows them. `set` with the unchanged output of `get` changes
//! nothing.
//!
//! **Invariant:** the text of a session is written to stdout, or to a file that only its owner can read, and nowhere else.
//! A token is printed nowhere.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use concord_client::{Client, Request, Retry, segment};
use concord_model::limits::TOKEN_BYTES_MAX;
use http::Method;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, ask, run_async, run_with_client, tries_of_operator},
    definition::one_value,
    interrupt::{self, Doing},
    key::grants_text,
    output::{self, Columns, Format, Table, cell, confirm, note, print_columns, print_done, print_value},
    place::Target,
};

const PROVIDER_COLUMNS: Columns = Columns {
    name: "provider",
    narrow: &[
        ("PROVIDER", "/provider"),
        ("ISSUER", "/document/issuer"),
        ("KEYS", "/keys_shown"),
        ("SESSIONS", "/sessions"),
    ],
    wide: &[("MODIFIED", "/modified_at")],
};
const ROLE_COLUMNS: Columns = Columns {
    name: "role",
    narrow: &[
        ("ROLE", "/role"),
        ("GRANTS", "/grants"),
        ("MEMBERS", "/members_shown"),
        ("SESSION", "/session_s"),
    ],
    wide: &[("MODIFIED", "/modified_at")],
};
const SESSION_COLUMNS: Columns = Columns {
    name: "session_id",
    narrow: &[
        ("ID", "/session_id"),
        ("OWNER", "/owner"),
        ("ROLES", "/roles_shown"),
        ("EXPIRES", "/expires_at"),
    ],
    wide: &[("OPENED", "/opened_at"), ("CLAIMS", "/claims")],
};

const PROVIDERS: &str = "/api/v1/identity_provider/";
const ROLES: &str = "/api/v1/role/";
const SESSIONS: &str = "/api/v1/session/";
const LOGIN: &str = "/api/v1/login";

/// Members of a provider or role that a response adds to what was stored.
const ADDED: [&str; 7] = ["provider", "role", "keys", "sessions", "created_at", "modified_at", "document"];

#[derive(Debug, Subcommand)]
pub(super) enum IdentityCommand {
    /// List the identity providers
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Show an identity provider
    Get {
        #[command(flatten)]
        node: NodeArgs,
        /// The name of the provider
        name: String,
    },
    /// Put an identity provider: create it, or replace it
    Set(SetArgs),
    /// Say check by check why a login with a token succeeds or fails; exits 1 if it fails
    Try {
        #[command(flatten)]
        node: NodeArgs,
        /// The name of the provider
        name: String,
    },
    /// End all sessions of an identity provider
    EndSessions {
        #[command(flatten)]
        node: NodeArgs,
        /// The name of the provider
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Delete an identity provider: its sessions end
    #[command(visible_alias = "delete")]
    Rm(RmArgs),
}

#[derive(Debug, Subcommand)]
pub(super) enum RoleCommand {
    /// List the roles
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Show a role
    Get {
        #[command(flatten)]
        node: NodeArgs,
        /// The name of the role
        name: String,
    },
    /// Put a role: create it, or replace it
    Set(SetArgs),
    /// Delete a role
    #[command(visible_alias = "delete")]
    Rm(RmArgs),
}

#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List the sessions that the access key may end
    List {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// End a session
    End {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the session
        id: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct SetArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The name
    name: String,
    /// A JSON or YAML file with it, as `get` shows it; `-` for stdin
    #[arg(short, long, value_name = "PATH")]
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The name
    name: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example, in a CI job: export CONCORD_API_KEY=$(concord login --provider gitlab --token-file token)\n\nThe \
                  session is used as an access key is, and expires. `concord logout` ends it at once."
)]
pub(super) struct LoginArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Write the session to this file, which only its owner can read, instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The token of the options, from its file or from stdin.
fn token_of(node: &NodeArgs) -> Result<String, Failure> {
    let path = node.token_file().ok_or_else(|| {
        Failure::Usage("name the file with the token: `--token-file FILE`, or `-` for stdin".into())
    })?;
    let failed = |error: std::io::Error| Failure::Usage(format!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    // One byte more than a token has says that it is none.
    let most = TOKEN_BYTES_MAX as u64 + 3;
    if path == Path::new("-") {
        std::io::stdin().take(most).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        std::fs::File::open(path).map_err(failed)?.take(most).read_to_end(&mut bytes).map_err(failed)?;
    }
    let text = String::from_utf8(bytes).map_err(|_| Failure::Invalid("the token is not text".into()))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(Failure::Invalid(format!("{}: no token", path.display())));
    }
    Ok(token.to_owned())
}

/// Runs `identity`.
pub(super) fn run(command: IdentityCommand) -> Result<(), Failure> {
    match command {
        IdentityCommand::List { node } => list(&node, PROVIDERS, &PROVIDER_COLUMNS),
        IdentityCommand::Get { node, name } => get(&node, &path_of(PROVIDERS, &name), &PROVIDER_COLUMNS),
        IdentityCommand::Set(args) => set(&args, PROVIDERS, &PROVIDER_COLUMNS),
        IdentityCommand::Rm(args) => rm(&args, PROVIDERS, &PROVIDER_COLUMNS),
        IdentityCommand::Try { node, name } => try_token(&node, &name),
        IdentityCommand::EndSessions { node, name, yes } => run_with_client(&node, async |client| {
            if !yes {
                let shown = ask(&client, Method::GET, &path_of(PROVIDERS, &name), None).await?;
                let sessions = cell(&shown["sessions"]);
                confirm(&format!("the sessions of provider `{name}` will end: {sessions}"), false)?;
            }
            let path = format!("{}/end_sessions", path_of(PROVIDERS, &name));
            let data = ask(&client, Method::POST, &path, None).await?;
            let format = node.format.or_table();
            print_done(&format, &data, PROVIDER_COLUMNS.name, format!("the sessions of {name} have ended"))
        }),
    }
}

/// Runs `role`.
pub(super) fn run_role(command: RoleCommand) -> Result<(), Failure> {
    match command {
        RoleCommand::List { node } => list(&node, ROLES, &ROLE_COLUMNS),
        RoleCommand::Get { node, name } => get(&node, &path_of(ROLES, &name), &ROLE_COLUMNS),
        RoleCommand::Set(args) => set(&args, ROLES, &ROLE_COLUMNS),
        RoleCommand::Rm(args) => rm(&args, ROLES, &ROLE_COLUMNS),
    }
}

/// Runs `session`.
pub(super) fn run_session(command: SessionCommand) -> Result<(), Failure> {
    match command {
        SessionCommand::List { node } => run_with_client(&node, async |client| {
            let (mut all, mut after) = (Vec::new(), String::new());
            loop {
                let path = format!("{SESSIONS}?limit=1000{after}");
                let mut page = ask(&client, Method::GET, &path, None).await?;
                all.append(page["results"].as_array_mut().unwrap_or(&mut Vec::new()));
                match page["meta"]["next"].as_str() {
                    Some(next) => after = format!("&after={next}"),
                    None => break,
                }
            }
            let data = json!({ "results": all, "meta": { "total": all.len() } });
            show(&node.format.or_table(), data, &SESSION_COLUMNS)
        }),
        SessionCommand::End { node, id } => {
            run_with_client(&node, async |client| end(&client, &node.format.or_table(), &id).await)
        }
    }
}

/// Runs `login`.
pub(super) fn log_in(args: &LoginArgs) -> Result<(), Failure> {
    args.node.hush();
    let provider = args
        .node
        .provider()
        .ok_or_else(|| Failure::Usage("name the identity provider: `--provider NAME`".into()))?;
    let body = json!({ "provider": provider, "token": token_of(&args.node)? });
    let client = Client::new(args.node.options_without_key(&tries_of_operator())?)?;
    interrupt::listen()?;
    let data = run_async(async {
        // A session that was opened and not received expires.
        let request = Request::new(Method::POST, LOGIN).json(&body).retry(Retry::OtherNode);
        Ok(client.send(request).await?.data()?)
    })?;
    let session = data["session"].as_str().unwrap_or_default();
    let about = format!("logged in as {} until {}", cell(&data["owner"]), cell(&data["expires_at"]));
    if let Some(path) = &args.out {
        let staged = Target::private(path).stage(session.as_bytes());
        staged.and_then(super::place::StagedFile::publish).map_err(Failure::Failed)?;
        note(format!("{about}; the session is in {}", path.display()));
        return Ok(());
    }
    let format = args.node.format.or_table();
    if format.is_table() {
        note(about);
        return output::line(session);
    }
    print_value(&format, &data, &Table::new(SESSION_COLUMNS.name, &[], &[]))
}

/// Runs `logout`.
pub(super) fn log_out(node: &NodeArgs) -> Result<(), Failure> {
    run_with_client(node, async |client| end(&client, &node.format.or_table(), "current").await)
}

async fn end(client: &Client, format: &Format, id: &str) -> Result<(), Failure> {
    let data = ask(client, Method::DELETE, &path_of(SESSIONS, id), None).await?;
    let text = format!("session {} has ended", cell(&data["session_id"]));
    print_done(format, &data, SESSION_COLUMNS.name, text)
}

fn list(node: &NodeArgs, path: &str, columns: &Columns) -> Result<(), Failure> {
    run_with_client(node, async |client| {
        let data = ask(&client, Method::GET, path, None).await?;
        show(&node.format.or_table(), data, columns)
    })
}

fn get(node: &NodeArgs, path: &str, columns: &Columns) -> Result<(), Failure> {
    run_with_client(node, async |client| {
        let data = ask(&client, Method::GET, path, None).await?;
        show(&node.format.or_json(), data, columns)
    })
}

fn set(args: &SetArgs, path: &str, columns: &Columns) -> Result<(), Failure> {
    let body = sendable(one_value(&args.file)?);
    run_with_client(&args.node, async |client| {
        interrupt::now(Doing::Writing);
        let request = Request::new(Method::PUT, path_of(path, &args.name)).json(&body);
        let data = client.send(request).await?.data()?;
        let text = format!("{} {} stored", columns.name, args.name);
        print_done(&args.node.format.or_table(), &data, columns.name, text)
    })
}

/// What a request can have of a provider or role that a response has shown.
fn sendable(mut shown: Value) -> Value {
    if shown.get("provider").is_some() && shown["document"].is_object() {
        return shown["document"].take();
    }
    if shown.get("role").is_some()
        && let Some(members) = shown.as_object_mut()
    {
        members.retain(|name, _| !ADDED.contains(&name.as_str()));
    }
    shown
}

fn rm(args: &RmArgs, path: &str, columns: &Columns) -> Result<(), Failure> {
    run_with_client(&args.node, async |client| {
        confirm(&format!("{} `{}` will be deleted", columns.name, args.name), args.yes)?;
        let data = ask(&client, Method::DELETE, &path_of(path, &args.name), None).await?;
        let text = format!("{} {} deleted", columns.name, args.name);
        print_done(&args.node.format.or_table(), &data, columns.name, text)
    })
}

fn try_token(node: &NodeArgs, name: &str) -> Result<(), Failure> {
    let body = json!({ "token": token_of(node)? });
    run_with_client(node, async |client| {
        let path = format!("{}/try", path_of(PROVIDERS, name));
        let data = ask(&client, Method::POST, &path, Some(&body)).await?;
        let format = node.format.or_table();
        print_value(&format, &data, &checks(&data))?;
        match data["reason"].as_str() {
            Some(reason) => note(format!("the token is not accepted: {reason}")),
            None if data["session_s"].is_null() => note("the token is accepted, and gives no role"),
            None => return Ok(()),
        }
        Err(Failure::Difference)
    })
}

/// The checks of a token, and the roles beside its claims.
fn checks(data: &Value) -> Table {
    let mut table = Table::new("check", &["CHECK", "HOLDS", "WANTED", "SEEN"], &[]);
    let holds = |of: &Value| if of["holds"] == true { "yes" } else { "no" };
    for check in data["checks"].as_array().into_iter().flatten() {
        let (name, wanted, seen) = (cell(&check["name"]), cell(&check["wanted"]), cell(&check["seen"]));
        table.row(&[name, holds(check).to_owned(), wanted, seen]);
    }
    for role in data["roles"].as_array().into_iter().flatten() {
        let name = cell(&role["role"]);
        for claim in role["members"].as_array().into_iter().flatten().flat_map(claims_of) {
            let (wanted, seen) = (cell(&claim["wanted"]), cell(&claim["seen"]));
            table.row(&[
                format!("role {name}: {}", cell(&claim["claim"])),
                holds(claim).to_owned(),
                wanted,
                seen,
            ]);
        }
        for hint in role["hints"].as_array().into_iter().flatten() {
            output::say(format!("warning: role {name}: {}", cell(hint)));
        }
    }
    table
}

fn claims_of(member: &Value) -> impl Iterator<Item = &Value> {
    member["claims"].as_array().into_iter().flatten()
}

fn show(format: &Format, mut data: Value, columns: &Columns) -> Result<(), Failure> {
    if format.is_table() {
        match data.get_mut("results").and_then(Value::as_array_mut) {
            Some(all) => all.iter_mut().for_each(for_table),
            None => for_table(&mut data),
        }
    }
    print_columns(format, &data, columns)
}

/// Formats what a table shows otherwise than it is.
fn for_table(record: &mut Value) {
    if record.get("grants").is_some() {
        record["grants"] = grants_text(record).into();
        record["members_shown"] = record["members"].as_array().map_or(0, Vec::len).into();
    }
    if record.get("document").is_some() {
        let keys = record["keys"]["confirmed_at"].as_str().map(|at| format!("fetched {at}"));
        let is_fixed = record["document"]["keys"].get("jwks").is_some();
        let none = if is_fixed { "in the document" } else { "not fetched yet" };
        record["keys_shown"] = keys.unwrap_or_else(|| none.to_owned()).into();
    }
    if let Some(roles) = record["roles"].as_array() {
        record["roles_shown"] = roles.iter().map(cell).collect::<Vec<_>>().join(",").into();
    }
}

fn path_of(kind: &str, name: &str) -> String {
    format!("{kind}{}", segment(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_get_shows_can_be_sent_back() {
        let provider =
            json!({ "provider": "ci", "document": { "issuer": "https://a" }, "keys": null, "sessions": 1 });
        assert_eq!(sendable(provider), json!({ "issuer": "https://a" }));
        let role = json!({ "role": "r", "grants": [], "members": [], "session_s": 300, "created_at": "t", "modified_at": "t" });
        assert_eq!(sendable(role), json!({ "grants": [], "members": [], "session_s": 300 }));
        let document = json!({ "issuer": "https://a", "keys": "discovery" });
        assert_eq!(sendable(document.clone()), document);
    }
}
