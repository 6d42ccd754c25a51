//! The command line: `concord serve`, `concord init`, `concord status`.
//!
//! Exit codes: 0 done, 1 failed, 2 the command line or a setting is wrong.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use http::Method;
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::{
    client::Client,
    node,
    raft::Member,
    settings::{KeyArgs, LogArgs, LogFormat, ServeArgs, Settings, parse_member},
};

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

fn call(node: &NodeArgs, (method, path): (Method, &str), body: Option<&Value>) -> Result<(), Failure> {
    let client = Client::new(&node.url, node.key.read().map_err(Failure::Wrong)?).map_err(Failure::Wrong)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("no runtime: {error}")))?;
    let data = runtime.block_on(client.call(method, path, body)).map_err(Failure::Failed)?;
    writeln!(io::stdout(), "{data:#}").map_err(|error| Failure::Failed(format!("standard output: {error}")))
}

fn as_json(member: &Member) -> Value {
    json!({ "id": member.id, "api_addr": member.api_addr, "peer_addr": member.peer_addr })
}

fn start_log(args: &LogArgs) -> Result<(), String> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| format!("--log: {error}"))?;
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
