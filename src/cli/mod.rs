//! The command line: runs a node, administers a cluster through one of its nodes, and handles backups.
//!
//! | where is | file |
//! |---|---|
//! | the commands, their options and help; exit codes; the start of the log | `mod` (this file) |
//! | requests to a node | `client` |
//! | `backup`, `verify`, `restore` | `backup` |
//! | `cert` | `cert` |
//! | `audit verify`, `audit tail`, `audit export` | `audit` |
//! | `key`, `whoami` | `key` |
//! | `keygen` | `keygen` |
//! | the options of `serve` and their checks | `settings` |
//!
//! **Invariant:** the exit code is 0 when the command succeeded, 1 when it failed, and 2 when the command line or a
//! setting is wrong.

mod audit;
mod backup;
mod cert;
mod client;
mod key;
mod keygen;

use std::{
    future::Future,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use http::Method;
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::{
    node,
    peer::{Member, NodeId},
    settings::{KeyArgs, LogArgs, LogFormat, ServeArgs, Settings, parse_member},
    store::snapshot::{
        backup::Input,
        envelope::{Envelope, Opening},
    },
};
use cert::CertCommand;
use client::{Client, ClientTls};
use key::KeyCommand;

/// The exit code for a wrong command line or setting, the same that clap uses.
const EXIT_USAGE: u8 = 2;

/// A replicated service for typed configuration.
#[derive(Debug, Parser)]
#[command(name = "concord", version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node
    Serve(Box<ServeArgs>),
    /// Form a cluster of running nodes that belong to none
    Init(InitArgs),
    /// Show the cluster as a node knows it
    Status(NodeArgs),
    /// Add, promote, replace and remove members
    #[command(subcommand)]
    Member(MemberCommand),
    /// Transfer leadership to a member
    Transfer(TransferArgs),
    /// Create, show, change, rotate and revoke access keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show who the credential is, and what it may do
    Whoami(NodeArgs),
    /// Ask for the root key to be enabled again at the next start of a stopped node
    RecoverRoot {
        /// The data directory of the node
        #[arg(long, env = "CONCORD_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
    },
    /// Download a backup of the whole cluster while it serves
    Backup(BackupArgs),
    /// Verify a backup and show its contents
    Verify {
        /// The backup file
        file: PathBuf,
        #[command(flatten)]
        opening: OpeningArgs,
    },
    /// Restore a backup into the data directory of the first member of a new cluster
    Restore(RestoreArgs),
    /// Make and show the certificates of a cluster
    #[command(subcommand)]
    Cert(CertCommand),
    /// Check, show and export the audit log of a node
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Make a key for encrypted data or for backups, in a new file
    Keygen {
        /// What the key is for
        kind: keygen::Kind,
        /// The file to create
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum MemberCommand {
    /// Add a running node that belongs to no cluster, as a learner without a vote
    Add {
        #[command(flatten)]
        node: NodeArgs,
        /// The new member; its id must be greater than all ids used before
        #[arg(value_parser = parse_member, value_name = "ID=API@PEER")]
        member: Member,
    },
    /// Make a learner a voter
    Promote {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member
        id: NodeId,
    },
    /// Replace a member, which may be down, with a new node
    Replace {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member to replace
        id: NodeId,
        /// The new member
        #[arg(value_parser = parse_member, value_name = "ID=API@PEER")]
        member: Member,
    },
    /// Remove a member from the cluster
    Remove {
        #[command(flatten)]
        node: NodeArgs,
        /// The id of the member
        id: NodeId,
    },
}

#[derive(Debug, Args)]
struct TransferArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The id of the member that becomes the leader
    #[arg(long, value_name = "ID")]
    to: NodeId,
}

#[derive(Debug, Args)]
struct BackupArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Where to write the backup
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Encrypt the backup to this recipient, as `concord keygen identity` or age-keygen prints it; repeat for several.
    /// Without one the backup is not encrypted
    #[arg(long, env = "CONCORD_BACKUP_RECIPIENTS", value_delimiter = ',', value_name = "RECIPIENT")]
    recipient: Vec<String>,
    /// A file that holds the key that signs encrypted backups
    #[arg(long, env = "CONCORD_BACKUP_SIGNING_KEY_FILE", value_name = "FILE")]
    signing_key: Option<PathBuf>,
}

impl BackupArgs {
    /// What the backup is encrypted and signed with; `None` when no recipient is set.
    fn envelope(&self) -> Result<Option<Envelope>, String> {
        let recipients: Vec<String> =
            self.recipient.iter().filter(|text| !text.is_empty()).cloned().collect();
        match (recipients.is_empty(), &self.signing_key) {
            (true, None) => Ok(None),
            (true, Some(_)) => Err("--signing-key is for encrypted backups: give a --recipient too".into()),
            (false, None) => Err("an encrypted backup is signed: give --signing-key".into()),
            (false, Some(path)) => Envelope::read(&recipients, path).map(Some),
        }
    }
}

/// What an encrypted backup is read with.
#[derive(Debug, Args)]
struct OpeningArgs {
    /// A file that holds the identity that the backup is encrypted to
    #[arg(long, env = "CONCORD_BACKUP_IDENTITY_FILE", value_name = "FILE")]
    identity: Option<PathBuf>,
    /// The public key of who may have signed the backup; repeat for several. With one, a backup that nobody signed is
    /// refused
    #[arg(long, env = "CONCORD_BACKUP_SIGNERS", value_delimiter = ',', value_name = "KEY")]
    signer: Vec<String>,
}

impl OpeningArgs {
    fn read(&self) -> Result<Opening, Failure> {
        let signers: Vec<String> = self.signer.iter().filter(|text| !text.is_empty()).cloned().collect();
        Opening::read(self.identity.as_deref(), &signers).map_err(Failure::Usage)
    }
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// The backup file
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The data directory to create; it must be empty or absent
    #[arg(long, env = "CONCORD_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// The node that will serve the data
    #[arg(long, value_parser = parse_member, value_name = "ID=API@PEER")]
    member: Member,
    /// A file of data keys: the data directory is encrypted under the first one
    #[arg(long, env = "CONCORD_DATA_KEY_FILE", value_name = "FILE")]
    data_key_file: Option<PathBuf>,
    #[command(flatten)]
    opening: OpeningArgs,
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The URL of a node
    #[arg(long, env = "CONCORD_URL", default_value = "http://127.0.0.1:8101")]
    url: String,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    tls: ClientTls,
}

#[derive(Debug, Args)]
struct InitArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// A member of the new cluster; repeat for each, the contacted node included
    #[arg(long = "member", required = true, value_parser = parse_member, value_name = "ID=API@PEER")]
    members: Vec<Member>,
}

/// Why a command failed.
enum Failure {
    /// The command line or a setting is wrong.
    Usage(String),
    /// The command could not be carried out.
    Failed(String),
    /// The command could not be carried out, and the reason is logged.
    Logged,
}

/// Runs the command line.
#[must_use]
pub fn run() -> ExitCode {
    node::hygiene::restrict_process();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns the help and the version as errors. A failure to print has nowhere to be reported.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Serve(args) => serve(*args),
        Command::Init(args) => {
            let members: Vec<Value> = args.members.iter().map(member_json).collect();
            let body = json!({ "members": members });
            call(&args.node, (Method::POST, "/api/v1/cluster/init"), Some(&body))
        }
        Command::Status(args) => call(&args, (Method::GET, "/api/v1/cluster"), None),
        Command::Member(command) => change_members(command),
        Command::Transfer(TransferArgs { node, to }) => {
            call(&node, (Method::POST, "/api/v1/cluster/leader"), Some(&json!({ "id": to })))
        }
        Command::Key(command) => key::run(command),
        Command::Whoami(args) => call(&args, (Method::GET, "/api/v1/whoami"), None),
        Command::RecoverRoot { data_dir } => {
            let asked = node::recover_root(&data_dir);
            print(asked.map(|()| json!({ "root": "enabled at the next start of this node" })))
        }
        Command::Backup(args) => back_up(&args),
        Command::Verify { file, opening } => {
            opening.read().and_then(|opening| print(backup::verify(&file, opening)))
        }
        Command::Keygen { kind, out } => print(keygen::make(kind, &out)),
        Command::Cert(command) => print(cert::run(command)),
        Command::Audit(command) => audit::run(command),
        Command::Restore(args) => restore(args),
    };
    let (text, code) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => (text, ExitCode::from(EXIT_USAGE)),
        Err(Failure::Failed(text)) => (text, ExitCode::FAILURE),
        Err(Failure::Logged) => return ExitCode::FAILURE,
    };
    let _ = writeln!(io::stderr(), "concord: {text}");
    code
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    start_log(&args.log).map_err(Failure::Usage)?;
    let settings = Settings::check(args).map_err(Failure::Usage)?;
    node::run(settings).map_err(|reason| {
        tracing::error!("{reason}");
        Failure::Logged
    })
}

fn back_up(args: &BackupArgs) -> Result<(), Failure> {
    let envelope = args.envelope().map_err(Failure::Usage)?;
    with_client(&args.node, async |client| backup::fetch(&client, &args.out, envelope.as_ref()).await)
}

fn restore(args: RestoreArgs) -> Result<(), Failure> {
    let input = Input::new(&args.from, args.opening.read()?);
    print(backup::restore(&input, &args.data_dir, args.member, args.data_key_file.as_deref()))
}

fn change_members(command: MemberCommand) -> Result<(), Failure> {
    const MEMBERS: &str = "/api/v1/cluster/members";
    match command {
        MemberCommand::Add { node, member } => {
            call(&node, (Method::POST, MEMBERS), Some(&member_json(&member)))
        }
        MemberCommand::Promote { node, id } => {
            call(&node, (Method::POST, &format!("{MEMBERS}/{id}/promote")), None)
        }
        MemberCommand::Replace { node, id, member } => {
            call(&node, (Method::POST, &format!("{MEMBERS}/{id}/replace")), Some(&member_json(&member)))
        }
        MemberCommand::Remove { node, id } => call(&node, (Method::DELETE, &format!("{MEMBERS}/{id}")), None),
    }
}

fn call(node: &NodeArgs, (method, path): (Method, &str), body: Option<&Value>) -> Result<(), Failure> {
    with_client(node, async |client| client.call(method, path, body).await)
}

/// Connects to a node and prints the result of `action`.
fn with_client<F>(node: &NodeArgs, action: impl FnOnce(Client) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<Value, String>>,
{
    print(Ok(run_with_client(node, action)?))
}

/// Connects to a node for `action`.
fn run_with_client<F, T>(node: &NodeArgs, action: impl FnOnce(Client) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, String>>,
{
    let key = node.key.read().map_err(Failure::Usage)?;
    let client = Client::new(&node.url, key, &node.tls).map_err(Failure::Usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::Failed(format!("the runtime can't be started: {error}")))?;
    runtime.block_on(action(client)).map_err(Failure::Failed)
}

/// Prints a result. A reader that closes the pipe early, as `head` does, has read all that it wants: that is no failure.
fn print(data: Result<Value, String>) -> Result<(), Failure> {
    let data = data.map_err(Failure::Failed)?;
    match writeln!(io::stdout(), "{data:#}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("standard output: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn member_json(member: &Member) -> Value {
    json!({ "id": member.id, "api_addr": member.api_addr, "peer_addr": member.peer_addr })
}

fn start_log(args: &LogArgs) -> Result<(), String> {
    let filter = EnvFilter::try_new(args.filter()).map_err(|error| format!("--log: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match args.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("the log can't be started: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_shows_no_secret() {
        let help = Cli::command()
            .find_subcommand_mut("serve")
            .map(|serve| serve.render_long_help().to_string())
            .unwrap_or_default();
        assert!(help.contains("CONCORD_API_KEY") && !help.contains("CONCORD_API_KEY="), "{help}");
        assert!(help.contains("CONCORD_CLUSTER_SECRET") && !help.contains("CONCORD_CLUSTER_SECRET="));
    }

    #[test]
    fn init_reads_its_members() {
        let line = ["concord", "init", "--member", "1=a:1@b:2", "--member", "2=c:3@d:4"];
        let Command::Init(init) = Cli::try_parse_from(line).unwrap().command else { panic!("not init") };
        assert_eq!(member_json(&init.members[1]), json!({ "id": 2, "api_addr": "c:3", "peer_addr": "d:4" }));
    }
}
