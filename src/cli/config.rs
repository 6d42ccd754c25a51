//! `concord config`: the commands on configs.

use clap::{Args, Subcommand};

use super::{
    apply::{self, ApplyArgs},
    config_read::{self, ConfigGetArgs, ConfigHistoryArgs},
    config_readers::{self, ConfigReadersArgs, ConfigReportArgs},
    config_write::{
        self, ConfigCreateArgs, ConfigDeleteArgs, PatchArgs, PutArgs, RollbackArgs, ValidateArgs,
    },
    connection::{Failure, NodeArgs, TryArgs},
    edit::{self, EditArgs},
    follow::{self, ConfigWatchArgs},
    history_diff::{self, ConfigDiffArgs},
};

/// A cluster and one of its configs.
#[derive(Debug, Args)]
pub(super) struct ConfigTarget {
    #[command(flatten)]
    pub(super) node: NodeArgs,
    #[command(flatten)]
    pub(super) tries: TryArgs,
    /// The key of the definition
    pub(super) definition: String,
    /// The key of the config
    pub(super) key: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// List configs, or show one
    Get(ConfigGetArgs),
    /// Create a config
    Create(ConfigCreateArgs),
    /// Create or update definitions and configs from files (the same as `concord apply`)
    Apply(ApplyArgs),
    /// Compare a config at two revisions, or files with the cluster; exits 1 if they differ
    Diff(ConfigDiffArgs),
    /// Edit a config in an editor
    Edit(EditArgs),
    /// Replace the data of a config
    Put(PutArgs),
    /// Change a part of a config
    Patch(PatchArgs),
    /// Delete a config
    Delete(ConfigDeleteArgs),
    /// Show the changes of a config, newest first
    History(ConfigHistoryArgs),
    /// Restore the data that a config had at a revision, as a new change
    Rollback(RollbackArgs),
    /// Validate data without storing them; exits 5 if they are invalid
    Validate(ValidateArgs),
    /// Print changes as they happen
    Watch(ConfigWatchArgs),
    /// List the programs that follow a config now, and how they run with it
    Readers(ConfigReadersArgs),
    /// Report that a reader runs well with a config, or not
    Report(ConfigReportArgs),
}

/// Runs a command.
pub(super) fn run(command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Get(args) => config_read::get(&args),
        ConfigCommand::Create(args) => config_write::create(&args),
        ConfigCommand::Apply(args) => apply::apply(&args),
        ConfigCommand::Diff(args) => history_diff::run(args),
        ConfigCommand::Edit(args) => edit::run(&args),
        ConfigCommand::Put(args) => config_write::put(&args),
        ConfigCommand::Patch(args) => config_write::patch(&args),
        ConfigCommand::Delete(args) => config_write::delete(&args),
        ConfigCommand::History(args) => config_read::history(&args),
        ConfigCommand::Rollback(args) => config_write::rollback(&args),
        ConfigCommand::Validate(args) => config_write::validate(&args),
        ConfigCommand::Watch(args) => follow::run(&args),
        ConfigCommand::Readers(args) => config_readers::readers(&args),
        ConfigCommand::Report(args) => config_readers::report(&args),
    }
}
