//! `concord agent`: a local cache for programs that only read files or loopback HTTP.
//!
//! | where is | file |
//! |---|---|
//! | the settings file, and its checks | `settings` |
//! | one managed file: rendering, writing, running its command | `upkeep` |
//! | data as JSON, YAML, TOML and environment variables | `format` |
//! | templates | `template` |
//! | atomic replacement of a file, with mode and owner | `place` |
//! | commands, with a time limit and their process group | `command` |
//! | HTTP on loopback | `serve`, `metrics` |
//!
//! The configs come from the client's cache: a watch, a check every few seconds that nothing is missing, and a
//! last-known-good file in the data directory.
//!
//! **Invariants:** if a file can't be rendered, the existing one stays. A file that already has the rendered bytes is not
//! written, and its command does not run. Invalid new settings leave the current ones in force. No child process outlives
//! an agent that is asked to stop.

mod command;
mod format;
mod metrics;
mod place;
mod serve;
mod settings;
mod template;
mod upkeep;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use concord_client::{Cache, CacheOptions, Client, Options};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use super::connection::{Failure, NodeArgs, TryArgs, run_async};
use metrics::AgentMetrics;
use settings::AgentSettings;
use upkeep::Upkeep;

/// The name of the last-known-good file in the data directory.
const CACHE_FILE: &str = "configs.json";
/// Time limit for finding a node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The exit codes after SIGTERM and SIGINT.
const EXIT_TERMINATED: u8 = 143;
const EXIT_INTERRUPTED: u8 = 130;
/// With `--once`: time limit for the first response of the cluster.
const ONCE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(super) struct AgentArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The settings file: YAML, or JSON with comments
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// Check the settings and the templates, then exit
    #[arg(long)]
    check: bool,
    /// Write all files once from the current state, run the commands of the files that changed, then exit
    #[arg(long, conflicts_with = "check")]
    once: bool,
    #[command(flatten)]
    pub(super) log: AgentLog,
}

/// How the agent logs.
#[derive(Debug, Args)]
pub(super) struct AgentLog {
    /// The format of log lines
    #[arg(long, env = "CONCORD_LOG_FORMAT", value_enum, default_value = "text")]
    pub(super) log_format: crate::settings::LogFormat,
    /// The log filter: a level, or levels by module
    #[arg(long, env = "CONCORD_LOG", default_value = "info", value_name = "FILTER")]
    pub(super) log: String,
}

/// What all parts of a running agent share.
#[derive(Debug)]
struct Agent {
    settings: Arc<AgentSettings>,
    cache: Cache,
    metrics: AgentMetrics,
    /// Set when the agent stops, or its settings are replaced.
    stopping: CancellationToken,
}

/// Why an agent stopped.
enum AgentSignal {
    Reload(Box<AgentSettings>),
    End,
}

/// Runs the command.
pub(super) fn run(args: &AgentArgs) -> Result<(), Failure> {
    let settings = AgentSettings::read(&args.config).map_err(Failure::Usage)?;
    if args.check {
        return super::output::line(format_args!(
            "{}: {} files",
            args.config.display(),
            settings.files.len()
        ));
    }
    if args.once {
        return run_async(once(args, settings));
    }
    run_async(follow(args, settings))
}

fn cache(args: &AgentArgs, settings: &AgentSettings) -> Result<Cache, Failure> {
    let options = args.node.options(&TryArgs::default())?;
    let client = Client::new(Options { timeout: REQUEST_TIMEOUT, ..options })?;
    let options = CacheOptions::new(settings.configs.clone()).file(settings.data_dir.join(CACHE_FILE));
    let options =
        CacheOptions { confirm_every: settings.confirm_every, fresh_for: settings.fresh_for, ..options };
    Ok(client.cache(options)?)
}

async fn once(args: &AgentArgs, settings: AgentSettings) -> Result<(), Failure> {
    let mut ends = Ends::new()?;
    let cache = cache(args, &settings)?;
    let (settings, metrics) = (Arc::new(settings), AgentMetrics::default());
    let agent = Agent { settings, cache, metrics, stopping: CancellationToken::new() };
    let work = write_all(&agent);
    tokio::pin!(work);
    let mut asked = None;
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            // The work stops by itself, after it has stopped a running command.
            code = ends.next(), if asked.is_none() => {
                asked = Some(code);
                agent.stopping.cancel();
            }
        }
    };
    match (done, asked) {
        // The signal arrived after all work was done.
        (Ok(()), _) => Ok(()),
        (Err(failure), None) => Err(failure),
        (Err(failure), Some(code)) => Err(Failure::Interrupted(failure.into_text(), code)),
    }
}

/// Writes all files once, and runs the commands of those that changed.
async fn write_all(agent: &Agent) -> Result<(), Failure> {
    tokio::select! {
        () = agent.stopping.cancelled() => return Err(Failure::Failed("no file was written".into())),
        fresh = agent.cache.fresh(ONCE_TIMEOUT) => drop(fresh?),
    }
    let mut failed = Vec::new();
    for file in &agent.settings.files {
        let done = if agent.stopping.is_cancelled() {
            Err("it was not updated".to_owned())
        } else {
            Upkeep::new(agent, file).once().await
        };
        if let Err(error) = done {
            failed.push(format!("{}: {error}", file.path.display()));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Failed(failed.join("\n"))) }
}

/// The signals that stop an agent.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    Ok(signal(kind).map_err(|error| format!("signals can't be waited for: {error}"))?)
}

impl Ends {
    fn new() -> Result<Self, Failure> {
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for one of them. Returns its exit code as in shells: 128 plus the number of the signal.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => EXIT_TERMINATED,
            _ = self.interrupt.recv() => EXIT_INTERRUPTED,
        }
    }
}

/// The signals that an agent waits for.
struct Signals {
    reload: Signal,
    ends: Ends,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        Ok(Self { reload: listen(SignalKind::hangup())?, ends: Ends::new()? })
    }

    /// Waits for a signal. Invalid settings are logged and ignored.
    async fn next(&mut self, config: &Path) -> AgentSignal {
        loop {
            tokio::select! {
                _ = self.reload.recv() => match AgentSettings::read(config) {
                    Ok(settings) => return AgentSignal::Reload(Box::new(settings)),
                    Err(error) => tracing::error!("the settings were not reloaded: {error}"),
                },
                _ = self.ends.next() => return AgentSignal::End,
            }
        }
    }
}

/// Runs until a signal stops the agent; reloads the settings on SIGHUP.
async fn follow(args: &AgentArgs, settings: AgentSettings) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let mut settings = Arc::new(settings);
    let mut listener = bind(&settings).await?;
    let mut followed = cache(args, &settings)?;
    loop {
        let agent = Arc::new(Agent {
            settings: Arc::clone(&settings),
            cache: followed.clone(),
            metrics: AgentMetrics::default(),
            stopping: CancellationToken::new(),
        });
        let (configs, files) = (agent.settings.configs.len(), agent.settings.files.len());
        tracing::info!(configs, files, "the agent watches the cluster");
        let next = async {
            let next = signals.next(&args.config).await;
            // Running commands are stopped. Commands that are due stay noted, and run later.
            agent.stopping.cancel();
            next
        };
        let (next, ()) = tokio::join!(next, work(agent.clone(), listener.as_ref()));
        if let Err(error) = agent.cache.save().await {
            tracing::warn!("the last-known-good file could not be written: {error}");
        }
        let AgentSignal::Reload(new) = next else { return Ok(()) };
        match begin(args, &new, settings.listen).await {
            Ok((cache, bound)) => {
                followed = cache;
                listener = bound.unwrap_or(listener);
                settings = Arc::new(*new);
            }
            Err(failure) => tracing::error!("the settings were not reloaded: {}", failure.into_text()),
        }
    }
}

/// Prepares new settings: a cache, and a listener if the address differs. If one fails, nothing changes.
async fn begin(
    args: &AgentArgs,
    settings: &AgentSettings,
    listens: Option<SocketAddr>,
) -> Result<(Cache, Option<Option<TcpListener>>), Failure> {
    let bound = if settings.listen == listens { None } else { Some(bind(settings).await?) };
    Ok((cache(args, settings)?, bound))
}

async fn bind(settings: &AgentSettings) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = settings.listen else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    let bound = bound.map_err(|error| Failure::Failed(format!("listen {address}: {error}")))?;
    tracing::info!(%address, "serving configs on loopback");
    Ok(Some(bound))
}

/// Maintains all files and serves HTTP, until the agent stops.
async fn work(agent: Arc<Agent>, listener: Option<&TcpListener>) {
    let files = agent.settings.files.iter().map(|file| Upkeep::new(&agent, file).follow());
    let files = futures::future::join_all(files);
    let watch = metrics::log_freshness(&agent);
    match listener {
        Some(listener) => drop(tokio::join!(files, watch, serve::run(agent.clone(), listener))),
        None => drop(tokio::join!(files, watch, agent.stopping.cancelled())),
    }
}
