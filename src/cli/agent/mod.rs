//! `concord agent`: a local cache for programs that only read files or loopback HTTP.
//!
//! | where is | file |
//! |---|---|
//! | the settings file, and its checks | `settings` |
//! | one managed file: rendering, writing, running its command | `upkeep` |
//! | which configs a failure of a file is about | `history` |
//! | what all files say of their configs | `verdicts` |
//! | data as JSON, YAML, TOML and environment variables | `format` |
//! | templates | `template` |
//! | commands, with a time limit and their process group | `command` |
//! | the data directory: one agent at a time | `data_dir` |
//! | the agent as process 1 of a container | `init` |
//! | HTTP on loopback | `serve`, `metrics` |
//!
//! The configs come from the client's cache: a watch, a check every few seconds that nothing is missing, and a
//! last-known-good file in the data directory.
//!
//! **Invariants:** if a file can't be rendered, the existing one stays. A file that already has the rendered bytes is not
//! written, and its command does not run. Two agents never share a data directory. Invalid new settings leave the current ones in force. No child process outlives
//! an agent that is asked to stop.

mod command;
mod data_dir;
pub(super) mod format;
mod history;
mod init;
mod metrics;
mod serve;
mod settings;
mod template;
mod upkeep;
mod verdicts;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use concord_client::{Cache, CacheOptions, Client, Options, Request, Retry};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{Failure, NodeArgs, TryArgs, run_async},
    rollout_steer::{labels_of, parse_label},
};
use data_dir::DataDir;
use metrics::AgentMetrics;
use settings::AgentSettings;
use upkeep::Upkeep;
use verdicts::Verdicts;

/// The name of the last-known-good file in the data directory.
const CACHE_FILE: &str = "configs.json";
/// Time limit for finding a node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The exit codes after SIGTERM and SIGINT.
const EXIT_TERMINATED: u8 = 143;
const EXIT_INTERRUPTED: u8 = 130;
/// With `--once`: time limit for the first response of the cluster.
const ONCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a start waits for the first configs before it says so, and how often it says so again.
const SILENT_MAX: Duration = Duration::from_secs(1);
const REMIND_EVERY: Duration = Duration::from_secs(30);
/// Time limit of the request that finds out why there are no configs yet.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

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
    /// The name of this reader: by it and by its labels, a rollout chooses who sees its candidates [default: the host name]
    #[arg(long, env = "CONCORD_READER", value_name = "NAME")]
    reader: Option<String>,
    /// A label of this reader, as in `ring=canary`; repeatable
    #[arg(
        long = "label",
        env = "CONCORD_LABELS",
        value_delimiter = ',',
        value_parser = parse_label,
        value_name = "NAME=VALUE"
    )]
    labels: Vec<(String, String)>,
    /// Be no reader: candidates of rollouts are seen at their end only
    #[arg(long, conflicts_with_all = ["reader", "labels"])]
    no_reader: bool,
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
    client: Client,
    cache: Cache,
    /// What the copy does not know.
    absent: serve::AbsentDefinitions,
    metrics: AgentMetrics,
    /// What the files say of candidates of rollouts.
    verdicts: Arc<Verdicts>,
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
    if init::is_needed() {
        return run_async(init::run());
    }
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

/// A client with its cache, and what the files say of candidates.
type Connected = (Client, Cache, Arc<Verdicts>);

fn connect(args: &AgentArgs, settings: &Arc<AgentSettings>) -> Result<Connected, Failure> {
    let options = args.reading(args.node.options(&TryArgs::default())?)?;
    let warn: fn(&str) = |text| tracing::warn!("a node warns: {text}");
    let client = Client::new(Options { timeout: REQUEST_TIMEOUT, warn: Some(warn), ..options })?;
    let options = CacheOptions::new(settings.configs.clone()).file(settings.data_dir.join(CACHE_FILE));
    let options =
        CacheOptions { confirm_every: settings.confirm_every, fresh_for: settings.fresh_for, ..options };
    let (verdicts, settings) = (Arc::new(Verdicts::default()), Arc::clone(settings));
    let (judging, rejecting) = (Arc::clone(&verdicts), Arc::clone(&verdicts));
    let options = options.judge(move |config| judging.of(&settings, config));
    let cache = client.cache(options.rejected(move || rejecting.rejected()))?;
    Ok((client, cache, verdicts))
}

impl AgentArgs {
    /// The options of a client that reads as this reader.
    fn reading(&self, options: Options) -> Result<Options, Failure> {
        if self.no_reader {
            return Ok(options);
        }
        // An empty variable is none.
        let given = self.reader.clone().filter(|name| !name.is_empty());
        let reader = given.or(Options::default().reader);
        Ok(Options { reader, labels: labels_of(&self.labels)?, ..options })
    }
}

async fn once(args: &AgentArgs, settings: AgentSettings) -> Result<(), Failure> {
    let mut ends = Ends::new()?;
    let _held = DataDir::hold(&settings.data_dir)?;
    let settings = Arc::new(settings);
    let (client, cache, verdicts) = connect(args, &settings)?;
    let metrics = AgentMetrics::default();
    let (absent, stopping) = (serve::AbsentDefinitions::default(), CancellationToken::new());
    let agent = Agent { settings, client, cache, absent, metrics, verdicts, stopping };
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
        () = tell_waiting(agent, true) => {}
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
    let mut held = DataDir::hold(&settings.data_dir)?;
    let mut listener = bind(&settings).await?;
    let (mut client, mut followed, mut verdicts) = connect(args, &settings)?;
    loop {
        let agent = Arc::new(Agent {
            settings: Arc::clone(&settings),
            client: client.clone(),
            cache: followed.clone(),
            absent: serve::AbsentDefinitions::default(),
            metrics: AgentMetrics::default(),
            verdicts: Arc::clone(&verdicts),
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
        let new = Arc::new(*new);
        match begin(args, &new, &settings).await {
            Ok(Begun { data_dir, connected, listener: bound }) => {
                held = data_dir.unwrap_or(held);
                (client, followed, verdicts) = connected;
                listener = bound.unwrap_or(listener);
                settings = new;
            }
            Err(failure) => tracing::error!("the settings were not reloaded: {}", failure.into_text()),
        }
    }
}

/// What new settings need; `None` where the present one goes on.
struct Begun {
    data_dir: Option<DataDir>,
    connected: Connected,
    listener: Option<Option<TcpListener>>,
}

/// Prepares new settings. If one step fails, nothing changes.
async fn begin(args: &AgentArgs, new: &Arc<AgentSettings>, now: &AgentSettings) -> Result<Begun, Failure> {
    let data_dir = if new.data_dir == now.data_dir { None } else { Some(DataDir::hold(&new.data_dir)?) };
    let listener = if new.listen == now.listen { None } else { Some(bind(new).await?) };
    Ok(Begun { data_dir, connected: connect(args, new)?, listener })
}

/// While there are no configs, says at once and now and then what the agent waits for, and why. Ends never, so that a
/// select can have it.
async fn tell_waiting(agent: &Agent, is_fresh_needed: bool) {
    let mut pause = SILENT_MAX;
    loop {
        tokio::time::sleep(pause).await;
        pause = REMIND_EVERY;
        let status = agent.cache.status();
        if status.source.is_some_and(|source| source.is_fresh() || !is_fresh_needed) {
            continue;
        }
        let why = match status.problem {
            Some(problem) => problem,
            None => {
                let probe = Request::get("/livez").retry(Retry::OtherNode).timeout(PROBE_TIMEOUT);
                match agent.client.send(probe).await {
                    Ok(_) => "a node responds, and has not sent the configs yet".to_owned(),
                    Err(error) => error.to_string(),
                }
            }
        };
        let nodes = agent.client.urls().join(", ");
        tracing::warn!("no configs from the cluster yet; the agent keeps trying {nodes}: {why}");
    }
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
    let watch = async {
        tokio::select! {
            () = metrics::log_freshness(&agent) => {}
            () = tell_waiting(&agent, false) => {}
        }
    };
    match listener {
        Some(listener) => drop(tokio::join!(files, watch, serve::run(agent.clone(), listener))),
        None => drop(tokio::join!(files, watch, agent.stopping.cancelled())),
    }
}
