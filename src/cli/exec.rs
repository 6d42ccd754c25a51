//! `concord exec DEFINITION KEY -- COMMAND`: runs a program with a config as its environment variables, or as a file.
//!
//! The program takes the place of this process, so it gets the signals, and its exit code is that of the command. It sees
//! the config as it was at the start; `concord agent` runs a command at each change.
//!
//! **Invariants:** the program does not start without its config, or with a part of it. The file is in memory: the program
//! can read it, and its children if they inherit open files. Nobody can change it. The program does not get the access key,
//! and has the umask and the limits with which it would have been started.

use std::{
    ffi::OsString,
    io::{self, Seek as _, Write as _},
    os::{fd::IntoRawFd as _, unix::process::CommandExt as _},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use clap::Args;
use concord_client::{CacheOptions, Config, Request, Selection};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
};
use serde_json::Value;

use super::{
    agent::format::{Variables, check_variable},
    connection::{Failure, NodeArgs, run_with_client},
    current::config_path,
    output::say,
};
use crate::node::process::Unrestricted;

/// The lowest number of the file in memory.
const DESCRIPTOR_MIN: i32 = 500;

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The definition
    definition: String,
    /// The config
    key: String,
    /// Set a variable for each value, with this prefix: `APP_` makes `APP_DB_HOST` of `{"db": {"host": …}}`
    #[arg(long, value_name = "PREFIX", required_unless_present_any = ["names", "data_file"], conflicts_with = "names")]
    prefix: Option<String>,
    /// Set these variables, and no others
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    names: Vec<String>,
    /// Set this variable to the path of a file with the data as JSON
    #[arg(long, value_name = "VARIABLE")]
    data_file: Option<String>,
    /// Keep the config in this file, and use it if no node responds
    #[arg(long, value_name = "FILE")]
    known_good: Option<PathBuf>,
    /// How long to wait for a node, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "SECONDS")]
    wait_s: u64,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command. Returns only if the program can't be started. `before` is what the program gets back.
pub(super) fn run(args: &ExecArgs, before: &Unrestricted) -> Result<(), Failure> {
    let variables = match (&args.prefix, args.names.as_slice()) {
        (Some(prefix), _) => Some(Variables::prefixed(prefix)),
        (None, []) => None,
        (None, names) => Some(Variables::listed(names)),
    };
    let variables = variables.transpose().map_err(Failure::Usage)?;
    if let Some(name) = &args.data_file {
        check_variable(name).map_err(Failure::Usage)?;
    }
    let config = read(args)?;
    if !config.redacted.is_empty() {
        let places = config.redacted.join(", ");
        let text = format!("the access key may not see {places} of config {}/{}", args.definition, args.key);
        return Err(Failure::Hidden(text));
    }
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Failure::Usage("name the program to run after `--`".into()));
    };
    let mut command = Command::new(program);
    // Unless the config has a value for it.
    command.args(arguments).env_remove("CONCORD_API_KEY");
    if let Some(variables) = variables {
        let pairs = variables.pairs(&config.data).map_err(Failure::Failed)?;
        let is_set = |name: &String| pairs.iter().any(|(found, _)| found == name);
        if let Some(name) = args.names.iter().find(|name| !is_set(name)) {
            return Err(Failure::Failed(format!("the config has no value for the variable {name}")));
        }
        if let Some(name) = args.data_file.as_ref().filter(|name| is_set(name)) {
            return Err(Failure::Failed(format!(
                "the config has a value for the variable {name} of --data-file"
            )));
        }
        command.envs(pairs);
    }
    if let Some(name) = &args.data_file {
        let path =
            in_memory(&config.data).map_err(|error| Failure::Failed(format!("a file in memory: {error}")))?;
        command.env(name, path);
    }
    before.restore();
    let error = command.exec();
    say(format_args!("{}: {error}", program.to_string_lossy()));
    // As a shell exits.
    Err(Failure::Reported(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }))
}

/// The config, from a node or from the last-known-good file.
fn read(args: &ExecArgs) -> Result<Config, Failure> {
    let missing = || Failure::Missing(format!("config {}/{} does not exist", args.definition, args.key));
    run_with_client(&args.node, async |client| {
        if args.known_good.is_none() {
            let request = Request::get(config_path(&args.definition, &args.key));
            let request = request.timeout(Duration::from_secs(args.wait_s));
            let answer = client.send(request).await?;
            let mut found = answer.data()?;
            found["config_definition_key"] = args.definition.as_str().into();
            let config = serde_json::from_value::<Config>(found);
            let config =
                config.map_err(|error| Failure::Failed(format!("the response is no config: {error}")))?;
            return Ok(Config { redacted: answer.redacted_places(), ..config });
        }
        let selection = Selection::config(&args.definition, &args.key);
        let mut options = CacheOptions::new(vec![selection]);
        options.file.clone_from(&args.known_good);
        let cache = client.cache(options)?;
        let patience = Duration::from_secs(args.wait_s);
        if let Err(error) = cache.fresh(patience).await {
            // Without a file, or with one that can't be used, there is nothing to go on with.
            let source = cache.source().ok_or_else(|| Failure::from(error))?;
            say(format_args!("no node confirms the config, which is {} s old", source.age.as_secs()));
        }
        let found = cache.get(&args.definition, &args.key)?;
        // The next start may need the file; this one has its config.
        if let Err(error) = cache.save().await {
            say(format_args!("the file can't be written: {error}"));
        }
        found.map(|read| Config::clone(&read.config)).ok_or_else(missing)
    })
}

/// A file in memory with data, and its path for this process and those that it becomes or starts.
fn in_memory(data: &Value) -> io::Result<String> {
    let mut file = std::fs::File::from(memfd_create("concord", MemfdFlags::ALLOW_SEALING)?);
    file.write_all(data.to_string().as_bytes())?;
    file.rewind()?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    // Not closed by `exec`: the program reads it. Scripts use low numbers themselves, as in `9>lock`.
    let kept = fcntl_dupfd_cloexec(&file, DESCRIPTOR_MIN)?;
    fcntl_setfd(&kept, FdFlags::empty())?;
    Ok(format!("/proc/self/fd/{}", kept.into_raw_fd()))
}
