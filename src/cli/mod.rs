//! The command line: `concord serve`, and what an operator asks of running nodes and of backups.
//!
//! Exit codes: 0 done, 1 failed, 2 the command line or a setting is wrong.

mod backup;
mod client;

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
};
use client::Client;

/// The exit code of a wrong command line or setting, as clap has it.
const WRONG: u8 = 2;

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
    /// Form a cluster of nodes that run and belong to none
    Init(InitArgs),
    /// Show what a node knows of its cluster
    Status(NodeArgs),
    /// Add, promote, replace and remove members
    #[command(subcommand)]
    Member(MemberCommand),
    /// Give leadership to a member
    Transfer(TransferArgs),
    /// Fetch a file of all that the cluster holds, while it serves
    Backup(BackupArgs),
    /// Read a backup through and show what it holds
    Verify {
        /// The backup
        file: PathBuf,
    },
    /// Make a backup the data directory of the first member of a new cluster
    Restore(RestoreArgs),
}

#[derive(Debug, Subcommand)]
enum MemberCommand {
    /// Add a node that runs and belongs to no cluster; it gets no vote yet
    Add {
        #[command(flatten)]
        node: NodeArgs,
        /// The new member; its id must be greater than every id that was used before
        #[arg(value_parser = parse_member, value_name = "ID=API@PEER")]
        member: Member,
    },
    /// Give a member a vote
    Promote {
        #[command(flatten)]
        node: NodeArgs,
        /// The member
        id: NodeId,
    },
    /// Put a new node in the place of a member, which may be dead
    Replace {
        #[command(flatten)]
        node: NodeArgs,
        /// The member that goes
        id: NodeId,
        /// The member that comes
        #[arg(value_parser = parse_member, value_name = "ID=API@PEER")]
        member: Member,
    },
    /// Take a member out of the cluster
    Remove {
        #[command(flatten)]
        node: NodeArgs,
        /// The member
        id: NodeId,
    },
}

#[derive(Debug, Args)]
struct TransferArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The member that is to lead
    #[arg(long, value_name = "ID")]
    to: NodeId,
}

#[derive(Debug, Args)]
struct BackupArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Where the backup goes
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// The backup
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The data directory that is made; empty or missing
    #[arg(long, env = "CONCORD_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// The node that will serve it
    #[arg(long, value_parser = parse_member, value_name = "ID=API@PEER")]
    member: Member,
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The URL of a node
    #[arg(long, env = "CONCORD_URL", default_value = "http://127.0.0.1:8101")]
    url: String,
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Debug, Args)]
struct InitArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// A member, the asked node included; once for each
    #[arg(long = "member", required = true, value_parser = parse_member, value_name = "ID=API@PEER")]
    members: Vec<Member>,
}

/// Why a command did not do its work.
enum Failure {
    /// The command line or a setting is wrong.
    Wrong(String),
    /// It could not be done.
    Failed(String),
    /// It could not be done, and the log says why.
    Logged,
}

/// Does what the command line says.
#[must_use]
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // The help and the version are errors to clap, and not to us. Where nobody listens nothing is lost.
            let _unheard = error.print();
            return if error.use_stderr() { ExitCode::from(WRONG) } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Serve(args) => serve(*args),
        Command::Init(args) => {
            let members: Vec<Value> = args.members.iter().map(as_json).collect();
            let body = json!({ "members": members });
            call(&args.node, (Method::POST, "/api/v1/cluster/init"), Some(&body))
        }
        Command::Status(args) => call(&args, (Method::GET, "/api/v1/cluster"), None),
        Command::Member(command) => change(command),
        Command::Transfer(TransferArgs { node, to }) => {
            call(&node, (Method::POST, "/api/v1/cluster/leader"), Some(&json!({ "id": to })))
        }
        Command::Backup(BackupArgs { node, out }) => {
            ask(&node, async |client| backup::fetch(&client, &out).await)
        }
        Command::Verify { file } => show(backup::verify(&file)),
        Command::Restore(args) => show(backup::restore(&args.from, &args.data_dir, args.member)),
    };
    let (text, code) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Wrong(text)) => (text, ExitCode::from(WRONG)),
        Err(Failure::Failed(text)) => (text, ExitCode::FAILURE),
        Err(Failure::Logged) => return ExitCode::FAILURE,
    };
    let _unheard = writeln!(io::stderr(), "concord: {text}");
    code
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    start_log(&args.log).map_err(Failure::Wrong)?;
    let settings = Settings::check(args).map_err(Failure::Wrong)?;
    node::run(settings).map_err(|reason| {
        tracing::error!("{reason}");
        Failure::Logged
    })
}

fn change(command: MemberCommand) -> Result<(), Failure> {
    const MEMBERS: &str = "/api/v1/cluster/members";
    match command {
        MemberCommand::Add { node, member } => call(&node, (Method::POST, MEMBERS), Some(&as_json(&member))),
        MemberCommand::Promote { node, id } => {
            call(&node, (Method::POST, &format!("{MEMBERS}/{id}/promote")), None)
        }
        MemberCommand::Replace { node, id, member } => {
            call(&node, (Method::POST, &format!("{MEMBERS}/{id}/replace")), Some(&as_json(&member)))
        }
        MemberCommand::Remove { node, id } => call(&node, (Method::DELETE, &format!("{MEMBERS}/{id}")), None),
    }
}

fn call(node: &NodeArgs, (method, path): (Method, &str), body: Option<&Value>) -> Result<(), Failure> {
    ask(node, async |client| client.call(method, path, body).await)
}

/// Asks a node and shows what it says.
fn ask<F>(node: &NodeArgs, ask: impl FnOnce(Client) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<Value, String>>,
{
    let client = Client::new(&node.url, node.key.read().map_err(Failure::Wrong)?).map_err(Failure::Wrong)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("no runtime: {error}")))?;
    show(runtime.block_on(ask(client)))
}

fn show(data: Result<Value, String>) -> Result<(), Failure> {
    let data = data.map_err(Failure::Failed)?;
    writeln!(io::stdout(), "{data:#}").map_err(|error| Failure::Failed(format!("standard output: {error}")))
}

fn as_json(member: &Member) -> Value {
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
    fn the_command_line_is_sound() {
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
        assert_eq!(as_json(&init.members[1]), json!({ "id": 2, "api_addr": "c:3", "peer_addr": "d:4" }));
    }
}
