//! The command line: runs a node, reads and writes configs, and administers a cluster.
//!
//! | where is | file |
//! |---|---|
//! | the commands; exit codes; the start of logging | `mod` (this file) |
//! | node URLs, access key and certificates; contexts; error messages, hints and exit codes | `connection`, `context`, `failure` |
//! | `definition`, `explain` | `definition`, `explain` |
//! | `definition reindex` | `reindex` |
//! | `config` | `config`, `config_read`, `config_readers`, `config_write`, `edit`, `follow`, `history_diff` |
//! | `changes`, `undo` | `changes`, `undo` |
//! | `flag`: feature flags; `flag eval` | `flag`, `flag_eval` |
//! | `apply`, `diff`; the plan of changes, and in a file; what is shown of secret values | `apply`, `plan`, `plan_file`, `mask` |
//! | secret values that files name and do not have | `secret_source` |
//! | atomic replacement of a file, with mode and owner | `place` |
//! | what the access key may not see of printed data | `redacted` |
//! | `export`, `import`; `export --update`: files in place | `transfer`, `file_update`, `text_update` |
//! | `import --from`: files of other stores | `import` |
//! | `check`, `schema export`: files without a cluster, and in editors | `check`, `schema` |
//! | the current state of the cluster; definitions and configs in files; JSON and YAML | `current`, `manifest`, `document` |
//! | output formats; progress bars; Ctrl-C | `output`, `jsonpath`, `markdown`, `progress`, `interrupt` |
//! | `cluster status` and `watch`; bootstrap, members, leadership | `cluster`, `members` |
//! | `top` | `top` |
//! | `transaction` | `transaction` |
//! | `bench`; `probe`, `version`, `openapi` | `bench`, `probe` |
//! | `demo`: a cluster to try, with sample data | `demo` |
//! | `exec`: runs a program with a config | `exec` |
//! | `agent`: a local cache for programs that only read files or loopback HTTP | `agent` |
//! | the groups of the help, completions, manual pages | `reference` |
//! | `backup`, `verify`, `restore` | `backup` |
//! | `recover` | `recover` |
//! | `plan` | `capacity` |
//! | `cert` | `cert` |
//! | `audit verify`, `audit tail`, `audit export` | `audit` |
//! | `key`, `whoami` | `key` |
//! | `identity`, `role`, `session`; `login`, `logout` | `identity` |
//! | `env`, `freeze`, `unfreeze`: environments of the cluster | `env` |
//! | `env diff`; `promote`; two environments at one revision | `env_diff`, `promote`, `two_environments` |
//! | `change`: change requests; `--propose` and `--bypass` of writes | `change` |
//! | rollouts of change requests; `gate` | `rollout`, `rollout_steer`, `gate` |
//! | `notify`: posts what happens to change requests to a webhook | `notify` |
//! | `mcp`: tools for assistants | `mcp` |
//! | `keygen` | `keygen` |
//! | the options of `serve` and their checks; unknown variables of the environment | `settings`, `environment` |
//!
//! **Invariant:** the exit code is 0 when the command succeeded, 2 when the command line or a setting is wrong, and 70
//! after an internal error, which never looks like a result. `Failure::code` has the others.

mod agent;
mod apply;
mod audit;
mod backup;
mod bench;
mod capacity;
mod cert;
mod change;
mod change_shown;
mod changes;
mod check;
mod cluster;
mod config;
mod config_read;
mod config_readers;
mod config_write;
mod connection;
mod context;
mod current;
mod definition;
mod demo;
mod document;
mod edit;
mod env;
mod env_diff;
mod environment;
mod exec;
mod explain;
mod failure;
mod file_update;
mod flag;
mod flag_eval;
mod follow;
mod gate;
mod history_diff;
mod identity;
mod import;
mod interrupt;
mod jsonpath;
mod key;
mod keygen;
mod manifest;
mod markdown;
mod mask;
mod mcp;
mod members;
mod notify;
mod output;
mod place;
mod plan;
mod plan_file;
mod point;
mod probe;
mod progress;
mod promote;
mod recover;
mod redacted;
mod reference;
mod reindex;
mod rollout;
mod rollout_steer;
mod schedule;
mod schema;
mod secret_source;
mod text_update;
mod top;
mod transaction;
mod transfer;
mod two_environments;
mod undo;

use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::{
    node::{self, NodeFailure, process::Unrestricted},
    settings::{LogFormat, ServeArgs, Settings, check_filter},
};
use cert::CertCommand;
use cluster::ClusterCommand;
use config::ConfigCommand;
use connection::{Failure, NodeArgs};
use context::ContextCommand;
use definition::DefinitionCommand;
use identity::{IdentityCommand, LoginArgs, RoleCommand, SessionCommand};
use key::KeyCommand;
use members::MemberCommand;
use output::{Columns, OutputArgs, print_columns, say};
use schema::SchemaCommand;

/// The exit code for a wrong command line or setting, as in clap.
const EXIT_USAGE: u8 = 2;
/// The exit code for an internal error (`EX_SOFTWARE` of `sysexits.h`).
const EXIT_INTERNAL: u8 = 70;

/// The first steps of a new user.
const BEGIN: &str = "To try Concord: run `concord demo`, and `concord get definition` in a second terminal.
To use a running cluster: `concord context set NAME --url https://HOST:8100 --api-key-file FILE`.
`concord COMMAND --help` describes a command and its options.";

/// A replicated service for typed configuration.
#[derive(Debug, Parser)]
#[command(name = "concord", version, about, max_term_width = 110, after_help = BEGIN)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start a demo cluster of three nodes with sample data; Ctrl-C stops and deletes it
    Demo(demo::DemoArgs),
    /// Create, read, update, check and delete definitions
    #[command(subcommand, visible_alias = "def")]
    Definition(DefinitionCommand),
    /// Create, read, update, watch and delete configs
    #[command(subcommand, visible_alias = "cfg")]
    Config(ConfigCommand),
    /// Create or update definitions and configs from files, in one atomic batch
    Apply(apply::ApplyArgs),
    /// Show what `apply` would change; exits 1 if there are changes
    Diff(apply::DiffArgs),
    /// Check definitions and configs in files without a cluster; exits 1 if something is wrong
    Check(check::CheckArgs),
    /// Write JSON schemas for editors and checkers of files
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// List the latest changes, newest first
    Changes(changes::ChangesArgs),
    /// Set back the configs that a revision changed, in one atomic batch
    Undo(undo::UndoArgs),
    /// List definitions or configs, or show one
    #[command(subcommand)]
    Get(GetCommand),
    /// Describe a definition, or a field of its configs, from its schema
    Explain(explain::ExplainArgs),
    /// Write all definitions and configs to files
    Export(transfer::ExportArgs),
    /// Create or update everything in an export directory, or turn files of another store into files
    Import(transfer::ImportArgs),
    /// Apply several operations atomically, with optional conditions
    #[command(visible_alias = "txn")]
    Transaction(transaction::TransactionArgs),
    /// List, show, switch and evaluate feature flags
    #[command(subcommand)]
    Flag(flag::FlagCommand),
    /// List, show, create, compare and delete environments
    #[command(subcommand, visible_alias = "environment")]
    Env(env::EnvCommand),
    /// Make the configs of an environment as those of another one are, in one batch or change request
    Promote(promote::PromoteArgs),
    /// List, show, approve, apply, release and withdraw change requests; review bypasses
    #[command(subcommand)]
    Change(change::ChangeCommand),
    /// Say whether all is well, for the rollouts that wait for this gate
    Gate(Box<gate::GateArgs>),
    /// Post what happens to change requests, configs or definitions to a webhook
    Notify(Box<notify::NotifyArgs>),
    /// Refuse all changes of an environment's definitions and configs for a while
    Freeze(env::FreezeArgs),
    /// End the freeze of an environment
    Unfreeze(env::UnfreezeArgs),
    /// Show the cluster, bootstrap it, and change its members and leader
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Show the access keys or definitions that use the nodes most; exits 1 if a node is not counted
    Top(top::TopArgs),
    /// Run a program with a config as its environment variables or as a file
    Exec(exec::ExecArgs),
    /// Write configs to files, run commands on changes, and serve the configs on loopback
    Agent(Box<agent::AgentArgs>),
    /// Let an assistant read configs by the Model Context Protocol, and write with --allow-write
    Mcp(Box<mcp::McpArgs>),
    /// Check node liveness or readiness; exits 1 if a check fails
    Probe(probe::ProbeArgs),
    /// Measure the throughput and latency of reads and writes from this machine
    Bench(bench::BenchArgs),
    /// Manage contexts: named clusters with their URLs and access keys
    #[command(subcommand)]
    Context(ContextCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the manual pages of all commands
    Man {
        /// Write the manual pages of all commands to this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    #[command(about = "Print the OpenAPI document of a node")]
    Openapi(probe::OpenApiArgs),
    /// Print the version
    Version(OutputArgs),
    /// Run a node
    Serve(Box<ServeArgs>),
    /// Run a node that stops with its parent process
    #[command(hide = true)]
    DemoNode(Box<ServeArgs>),
    /// Bootstrap a cluster from running nodes (the same as `concord cluster init`)
    #[command(hide = true)]
    Init(members::InitArgs),
    /// Show the cluster as one node reports it (`concord cluster status` asks all members)
    #[command(hide = true)]
    Status(NodeArgs),
    /// Add, promote, replace and remove members (the same as `concord cluster add` and so on)
    #[command(subcommand, hide = true)]
    Member(MemberCommand),
    /// Transfer leadership to a member (the same as `concord cluster transfer-leader`)
    #[command(hide = true)]
    Transfer(members::TransferArgs),
    /// Create, show, change, rotate and revoke access keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show the access key or session in use and its permissions
    Whoami(NodeArgs),
    /// Manage identity providers: CI systems and clusters whose jobs and pods log in
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Manage roles: permissions, and who has them
    #[command(subcommand)]
    Role(RoleCommand),
    /// List and end sessions
    #[command(subcommand)]
    Session(SessionCommand),
    /// Exchange a token of an identity provider for a session, and print it
    Login(LoginArgs),
    /// End the session in use
    Logout(NodeArgs),
    /// Re-enable the root key at the next start of a stopped node
    RecoverRoot {
        /// The data directory of the node
        #[arg(long, env = "CONCORD_DATA_DIR", value_name = "DIR")]
        data_dir: PathBuf,
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Continue alone after the loss of a majority, or find moved members: on a stopped node
    ///
    /// With --single the node keeps its data, its history, its access keys and its audit log, in a new cluster. Run it on
    /// the member that has the most, and add empty nodes to the new cluster afterwards.
    Recover(recover::RecoverArgs),
    /// Print the memory and disk that each node needs for so many configs
    Plan(capacity::PlanArgs),
    /// Download a backup of the whole cluster
    Backup(backup::BackupArgs),
    /// Verify a backup and show its contents
    Verify(backup::VerifyArgs),
    /// Restore a backup as the first member of a new cluster
    Restore(backup::RestoreArgs),
    /// Create and inspect certificates: the cluster's CA and its nodes
    #[command(subcommand)]
    Cert(CertCommand),
    /// Show, export and verify a node's audit log
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Generate a key for encrypted data or backups, in a new file
    Keygen {
        /// What the key is used for
        kind: keygen::KeyUse,
        /// The file to create
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        format: OutputArgs,
    },
}

#[derive(Debug, Subcommand)]
enum GetCommand {
    /// List definitions, or show one
    #[command(visible_alias = "def", aliases = ["definitions", "defs"])]
    Definition(definition::DefinitionGetArgs),
    /// List configs, or show one
    #[command(visible_alias = "cfg", aliases = ["configs", "cfgs"])]
    Config(config_read::ConfigGetArgs),
}

/// Runs the command line.
#[must_use]
pub fn run() -> ExitCode {
    let before = node::process::restrict();
    let cli = match parsed(arranged(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns the help and the version as errors. There is nowhere to report a failure to print.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    ExitCode::from(code_of(|| run_command(cli.command, &before)))
}

/// The command line as clap declares it, with its commands in groups.
fn declared() -> clap::Command {
    reference::in_groups(Cli::command())
}

fn parsed(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = declared();
    let mut matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The arguments, with options before the command moved behind it: users of other tools type
/// `concord --url URL get def`.
fn arranged(words: Vec<OsString>) -> Vec<OsString> {
    const FLAGS: [&str; 4] = ["--verbose", "-v", "--quiet", "-q"];
    const WITH_VALUE: [&str; 13] = [
        "--url",
        "--context",
        "--api-key",
        "--api-key-file",
        "--provider",
        "--token-file",
        "--cacert",
        "--cert",
        "--key",
        "--output",
        "-o",
        "--request-id",
        "--env",
    ];
    let mut rest = words.into_iter();
    let mut all: Vec<OsString> = rest.next().into_iter().collect();
    let mut moved = Vec::new();
    while let Some(word) = rest.next() {
        let name = word.to_string_lossy().split('=').next().unwrap_or_default().to_owned();
        let has_value = WITH_VALUE.contains(&name.as_str());
        if !has_value && !FLAGS.contains(&name.as_str()) {
            all.push(word);
            break;
        }
        let is_whole = !has_value || word.to_string_lossy().contains('=');
        moved.push(word);
        if !is_whole {
            moved.extend(rest.next());
        }
    }
    all.extend(rest);
    // Nothing after `--` is an option.
    let end = all.iter().position(|word| word == "--").unwrap_or(all.len());
    all.splice(end..end, moved);
    all
}

/// Runs a command, reports its failure, and returns the exit code.
fn code_of(command: impl FnOnce() -> Result<(), Failure>) -> u8 {
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            failure.report();
            failure.code()
        }
        // The panic message has been printed already.
        Err(_) => {
            say("concord: internal error; the command may be partly done");
            say("hint: please report it, with the lines above and the output of `concord version`");
            EXIT_INTERNAL
        }
    }
}

/// Runs a command. `before` is what the process had at its start.
fn run_command(command: CliCommand, before: &Unrestricted) -> Result<(), Failure> {
    match command {
        CliCommand::Serve(args) => serve(*args),
        CliCommand::Demo(args) => demo::run(&args),
        CliCommand::DemoNode(args) => {
            demo::end_with_parent()?;
            serve(*args)
        }
        CliCommand::Definition(command) => definition::run(command),
        CliCommand::Config(command) => config::run(command),
        CliCommand::Flag(command) => flag::run(command),
        CliCommand::Apply(args) => apply::apply(&args),
        CliCommand::Diff(args) => apply::diff(&args),
        CliCommand::Check(args) => check::run(&args),
        CliCommand::Schema(command) => schema::run(&command),
        CliCommand::Changes(args) => changes::run(&args),
        CliCommand::Undo(args) => undo::run(&args),
        CliCommand::Get(GetCommand::Definition(args)) => definition::get(&args),
        CliCommand::Get(GetCommand::Config(args)) => config_read::get(&args),
        CliCommand::Explain(args) => explain::run(&args),
        CliCommand::Export(args) => transfer::export(&args),
        CliCommand::Import(args) => transfer::import(&args),
        CliCommand::Cluster(command) => cluster::run(command),
        CliCommand::Top(args) => top::run(&args),
        CliCommand::Exec(args) => exec::run(&args, before),
        CliCommand::Agent(args) => {
            start_log(&args.log.log, args.log.log_format).map_err(Failure::Usage)?;
            agent::run(&args)
        }
        CliCommand::Mcp(args) => {
            // Stdout is for the protocol.
            start_log("warn", LogFormat::Text).map_err(Failure::Usage)?;
            mcp::run(&args)
        }
        CliCommand::Context(command) => context::run(command),
        CliCommand::Completions { shell } => reference::completions(declared(), shell),
        CliCommand::Man { dir } => reference::man(declared(), dir.as_deref()),
        CliCommand::Init(args) => members::init(&args),
        CliCommand::Status(args) => members::status(&args),
        CliCommand::Member(command) => members::run(command),
        CliCommand::Transfer(args) => members::transfer(&args),
        CliCommand::Transaction(args) => transaction::run(&args),
        CliCommand::Probe(args) => probe::run(&args),
        CliCommand::Bench(args) => bench::run(&args),
        CliCommand::Openapi(args) => probe::openapi(&args),
        CliCommand::Version(format) => probe::version(&format),
        CliCommand::Key(command) => key::run(command),
        CliCommand::Env(command) => env::run(command),
        CliCommand::Promote(args) => promote::run(&args),
        CliCommand::Change(command) => change::run(command),
        CliCommand::Gate(args) => gate::run(&args),
        CliCommand::Notify(args) => notify::run(&args),
        CliCommand::Freeze(args) => env::freeze(&args),
        CliCommand::Unfreeze(args) => env::unfreeze(&args),
        CliCommand::Whoami(args) => key::whoami(&args),
        CliCommand::Identity(command) => identity::run(command),
        CliCommand::Role(command) => identity::run_role(command),
        CliCommand::Session(command) => identity::run_session(command),
        CliCommand::Login(args) => identity::log_in(&args),
        CliCommand::Logout(node) => identity::log_out(&node),
        CliCommand::RecoverRoot { data_dir, format } => recover_root(&data_dir, &format),
        CliCommand::Backup(args) => backup::back_up(&args),
        CliCommand::Recover(args) => recover::run(&args),
        CliCommand::Plan(args) => capacity::run(&args),
        CliCommand::Verify(args) => backup::verify(&args),
        CliCommand::Restore(args) => backup::restore(args),
        CliCommand::Keygen { kind, out, format } => {
            print(&format, keygen::make(kind, &out), &keygen::COLUMNS)
        }
        CliCommand::Cert(command) => {
            let format = command.format().clone();
            print(&format, cert::run(command), &cert::COLUMNS)
        }
        CliCommand::Audit(command) => audit::run(command),
    }
}

fn recover_root(data_dir: &Path, format: &OutputArgs) -> Result<(), Failure> {
    const COLUMNS: Columns = Columns { name: "root", narrow: &[("ROOT KEY", "/root")], wide: &[] };
    let asked = node::recover_root(data_dir);
    print(format, asked.map(|()| json!({ "root": "enabled at the next start of this node" })), &COLUMNS)
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    start_log(&args.log.filter(), args.log.log_format).map_err(Failure::Usage)?;
    environment::report_unknown();
    let settings = Settings::check(args).map_err(Failure::Usage)?;
    node::run(settings).map_err(|failure| {
        let (reason, code) = match failure {
            NodeFailure::Setting(reason) => (reason, EXIT_USAGE),
            NodeFailure::Failed(reason) => (reason, 1),
        };
        tracing::error!("{reason}");
        Failure::Logged(code)
    })
}

/// Prints the result of a command.
fn print(format: &OutputArgs, data: Result<Value, String>, columns: &Columns) -> Result<(), Failure> {
    print_columns(&format.or_json(), &data?, columns)
}

fn start_log(filter: &str, format: LogFormat) -> Result<(), String> {
    check_filter(filter).map_err(|error| format!("--log: {error}"))?;
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("--log: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match format {
        LogFormat::Text => log
            .with_ansi(is_coloured(io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref()))
            .try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("logging can't be started: {error}"))
}

/// Whether log lines are coloured: on a terminal, unless `NO_COLOR` is set and not empty.
fn is_coloured(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_before_the_command_belong_to_it() {
        let arranged = |line: &str| {
            let words = arranged(line.split(' ').map(OsString::from).collect());
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(arranged("concord --url a -v get def -o json"), "concord get def -o json --url a -v");
        assert_eq!(arranged("concord --env prod get def"), "concord get def --env prod");
        assert_eq!(arranged("concord --output=json get def -- x"), "concord get def --output=json -- x");
        assert_eq!(arranged("concord serve --node-id 1"), "concord serve --node-id 1");
        assert_eq!(arranged("concord --help"), "concord --help");
        assert_eq!(arranged("concord --url"), "concord --url");
    }

    #[test]
    fn colours_are_for_terminals_of_those_who_want_them() {
        let is_coloured =
            |is_terminal, no_color: Option<&str>| is_coloured(is_terminal, no_color.map(OsStr::new));
        assert!(is_coloured(true, None) && is_coloured(true, Some("")));
        assert!(!is_coloured(true, Some("1")) && !is_coloured(false, None));
    }

    #[test]
    fn a_mistake_of_the_program_has_a_code_of_its_own() {
        assert_eq!(code_of(|| panic!("a mistake")), EXIT_INTERNAL);
        assert_eq!(code_of(|| Err(Failure::Difference)), 1);
        assert_eq!(code_of(|| Ok(())), 0);
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
}
