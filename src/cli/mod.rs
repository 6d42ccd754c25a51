//! The command line: runs a node, administers a cluster through one of its nodes, and handles backups.
//!
//! | where is | file |
//! |---|---|
//! | the commands, their options and help; exit codes; the start of the log | `mod` (this file) |
//! | nodes, key and certificates of a command; contexts; what a failure says and returns | `connection`, `context`, `failure` |
//! | `definition`, `explain` | `definition`, `explain` |
//! | its indexes | `reindex` |
//! | `config` | `config`, `config_read`, `config_write`, `edit`, `follow`, `history_diff` |
//! | `apply`, `diff`; what they change | `apply`, `plan` |
//! | `export`, `import` | `transfer` |
//! | what the cluster has; what files say; files of JSON and YAML | `current`, `manifest`, `document` |
//! | formats of output; progress of long work, and its interruption | `output`, `jsonpath`, `yaml_writer`, `progress`, `interrupt` |
//! | `cluster`; `member`, `init`, `transfer`, `status` | `cluster`, `members` |
//! | `transaction` | `transaction` |
//! | `bench`; `probe`, `version`, `openapi` | `bench`, `probe` |
//! | `demo`: a cluster to try; its sample | `demo` |
//! | `agent`: a local cache for programs that only read files or loopback HTTP | `agent` |
//! | completions, manual pages | `reference` |
//! | `backup`, `verify`, `restore` | `backup` |
//! | `cert` | `cert` |
//! | `audit verify`, `audit tail`, `audit export` | `audit` |
//! | `key`, `whoami` | `key` |
//! | `keygen` | `keygen` |
//! | the options of `serve` and their checks | `settings` |
//!
//! **Invariant:** the exit code is 0 when the command succeeded, and 2 when the command line or a setting is wrong; the
//! others say more (`Failure::code`). A mistake of the program itself is 70, and never looks like an answer.

mod agent;
mod apply;
mod audit;
mod backup;
mod bench;
mod cert;
mod cluster;
mod config;
mod config_read;
mod config_write;
mod connection;
mod context;
mod current;
mod definition;
mod demo;
mod document;
mod edit;
mod explain;
mod failure;
mod follow;
mod history_diff;
mod interrupt;
mod jsonpath;
mod key;
mod keygen;
mod manifest;
mod members;
mod output;
mod plan;
mod probe;
mod progress;
mod reference;
mod reindex;
mod transaction;
mod transfer;
mod yaml_writer;

use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::{
    node,
    settings::{LogFormat, ServeArgs, Settings},
};
use cert::CertCommand;
use cluster::ClusterCommand;
use config::ConfigCommand;
use connection::{Failure, NodeArgs};
use context::ContextCommand;
use definition::DefinitionCommand;
use key::KeyCommand;
use members::MemberCommand;
use output::{Columns, OutputArgs, print_columns, say};

/// The exit code for a wrong command line or setting, the same that clap uses.
const EXIT_USAGE: u8 = 2;
/// The exit code for a mistake of the program itself, as `sysexits.h` has it.
const EXIT_INTERNAL: u8 = 70;

/// What somebody does first who has the program and nothing else.
const BEGIN: &str = "To try it: `concord demo`, and in a second terminal `concord get definition`.
To use a cluster that runs: `concord context set NAME --url https://HOST:8100 --api-key-file FILE`.";

/// A replicated service for typed configuration.
#[derive(Debug, Parser)]
#[command(name = "concord", version, about, max_term_width = 110, after_help = BEGIN)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster of three nodes to try, with sample data; Ctrl-C ends and deletes it
    Demo(demo::DemoArgs),
    /// Show, create, change, check and delete definitions
    #[command(subcommand, visible_alias = "def")]
    Definition(DefinitionCommand),
    /// Show, create, change, watch and delete configs
    #[command(subcommand, visible_alias = "cfg")]
    Config(ConfigCommand),
    /// Create or change definitions and configs, as files have them, all in one batch
    Apply(apply::ApplyArgs),
    /// Show what `apply` would change; the exit code is 1 when there is something
    Diff(apply::DiffArgs),
    /// Show definitions, or the configs of one
    #[command(subcommand)]
    Get(GetCommand),
    /// Explain a definition, or a field of its configs, from its schema
    Explain(explain::ExplainArgs),
    /// Write all definitions and configs into files
    Export(transfer::ExportArgs),
    /// Create or change what the files of an export have
    Import(transfer::ImportArgs),
    /// Do several operations as one, all or nothing, with conditions where they are wanted
    #[command(visible_alias = "txn")]
    Transaction(transaction::TransactionArgs),
    /// Show the cluster on one screen, follow what happens to it, change its members
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Keep files as configs say, run commands on changes, and serve the configs on loopback
    Agent(Box<agent::AgentArgs>),
    /// Ask nodes whether they live, or are ready; the exit code is 1 when one says no
    Probe(probe::ProbeArgs),
    /// Measure how many reads and writes the cluster takes from here, and how long they take
    Bench(bench::BenchArgs),
    /// Name clusters, and choose one
    #[command(subcommand)]
    Context(ContextCommand),
    /// Print what a shell needs to complete the command line
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands
    Man {
        /// The folder to write to
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Print the description of the interface, as `OpenAPI`, of the node that is asked
    Openapi(probe::OpenApiArgs),
    /// Print the version
    Version(OutputArgs),
    /// Run a node
    Serve(Box<ServeArgs>),
    /// Run a node that ends with the process that started it
    #[command(hide = true)]
    DemoNode(Box<ServeArgs>),
    /// Form a cluster of running nodes that belong to none
    Init(members::InitArgs),
    /// Show the cluster as a node knows it
    Status(NodeArgs),
    /// Add, promote, replace and remove members
    #[command(subcommand)]
    Member(MemberCommand),
    /// Transfer leadership to a member
    Transfer(members::TransferArgs),
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
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Download a backup of the whole cluster while it serves
    Backup(backup::BackupArgs),
    /// Verify a backup and show its contents
    Verify(backup::VerifyArgs),
    /// Restore a backup into the data directory of the first member of a new cluster
    Restore(backup::RestoreArgs),
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
        #[command(flatten)]
        format: OutputArgs,
    },
}

#[derive(Debug, Subcommand)]
enum GetCommand {
    /// Show definitions
    #[command(visible_alias = "def", aliases = ["definitions", "defs"])]
    Definition(definition::GetArgs),
    /// Show configs
    #[command(visible_alias = "cfg", aliases = ["configs", "cfgs"])]
    Config(config_read::GetArgs),
}

/// Runs the command line.
#[must_use]
pub fn run() -> ExitCode {
    node::hygiene::restrict_process();
    let cli = match Cli::try_parse_from(arranged(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns the help and the version as errors. A failure to print has nowhere to be reported.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    ExitCode::from(code_of(|| run_command(cli.command)))
}

/// The arguments, with what stands before the command put behind it: `concord --url URL get def` is what people type who
/// come from other tools.
fn arranged(words: Vec<OsString>) -> Vec<OsString> {
    const FLAGS: [&str; 4] = ["--verbose", "-v", "--quiet", "-q"];
    const WITH_VALUE: [&str; 10] = [
        "--url",
        "--context",
        "--api-key",
        "--api-key-file",
        "--cacert",
        "--cert",
        "--key",
        "--output",
        "-o",
        "--request-id",
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
    // What stands behind `--` is no option.
    let end = all.iter().position(|word| word == "--").unwrap_or(all.len());
    all.splice(end..end, moved);
    all
}

/// The exit code of a command, after its failure was said.
fn code_of(command: impl FnOnce() -> Result<(), Failure>) -> u8 {
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            failure.report();
            failure.code()
        }
        // What went wrong, and where, was written when it happened.
        Err(_) => {
            say("concord: this is a mistake in concord itself; what it was doing may be half done");
            say("hint: please report it, with the lines above and `concord version`");
            EXIT_INTERNAL
        }
    }
}

fn run_command(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve(*args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoNode(args) => {
            demo::end_with_parent()?;
            serve(*args)
        }
        Command::Definition(command) => definition::run(command),
        Command::Config(command) => config::run(command),
        Command::Apply(args) => apply::apply(&args),
        Command::Diff(args) => apply::diff(&args),
        Command::Get(GetCommand::Definition(args)) => definition::get(&args),
        Command::Get(GetCommand::Config(args)) => config_read::get(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Export(args) => transfer::export(&args),
        Command::Import(args) => transfer::import(&args),
        Command::Cluster(command) => cluster::run(command),
        Command::Agent(args) => {
            start_log(&args.log.log, args.log.log_format).map_err(Failure::Usage)?;
            agent::run(&args)
        }
        Command::Context(command) => context::run(command),
        Command::Completions { shell } => reference::completions(Cli::command(), shell),
        Command::Man { dir } => reference::man(Cli::command(), dir.as_deref()),
        Command::Init(args) => members::init(&args),
        Command::Status(args) => members::status(&args),
        Command::Member(command) => members::run(command),
        Command::Transfer(args) => members::transfer(&args),
        Command::Transaction(args) => transaction::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Openapi(args) => probe::openapi(&args),
        Command::Version(format) => probe::version(&format),
        Command::Key(command) => key::run(command),
        Command::Whoami(args) => key::whoami(&args),
        Command::RecoverRoot { data_dir, format } => {
            const COLUMNS: Columns = Columns { name: "root", narrow: &[("ROOT KEY", "/root")], wide: &[] };
            let asked = node::recover_root(&data_dir);
            print(
                &format,
                asked.map(|()| json!({ "root": "enabled at the next start of this node" })),
                &COLUMNS,
            )
        }
        Command::Backup(args) => backup::back_up(&args),
        Command::Verify(args) => backup::verify(&args),
        Command::Restore(args) => backup::restore(args),
        Command::Keygen { kind, out, format } => print(&format, keygen::make(kind, &out), &keygen::COLUMNS),
        Command::Cert(command) => {
            let format = command.format().clone();
            print(&format, cert::run(command), &cert::COLUMNS)
        }
        Command::Audit(command) => audit::run(command),
    }
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    start_log(&args.log.filter(), args.log.log_format).map_err(Failure::Usage)?;
    let settings = Settings::check(args).map_err(Failure::Usage)?;
    node::run(settings).map_err(|reason| {
        tracing::error!("{reason}");
        Failure::Logged
    })
}

/// Prints what was made or asked for.
fn print(format: &OutputArgs, data: Result<Value, String>, columns: &Columns) -> Result<(), Failure> {
    print_columns(&format.or_json(), &data?, columns)
}

fn start_log(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("--log: {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match format {
        LogFormat::Text => log
            .with_ansi(is_coloured(io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref()))
            .try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| format!("the log can't be started: {error}"))
}

/// Whether text for people is coloured: on a terminal, unless `NO_COLOR` says that no program shall do so. An empty
/// value says nothing.
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
