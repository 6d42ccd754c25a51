//! `concord demo`: a cluster to try, of three child processes, with sample data and a context.
//!
//! | where is | file |
//! |---|---|
//! | the nodes: ports, processes, shutdown | `nodes` |
//! | the sample data | `sample` |
//!
//! **Invariants:** no node outlives the demo: the kernel kills each when its parent ends, so even a killed demo leaves no
//! process. Without `--keep` nothing is left, neither data nor context. Each demo has a new access key, which is in no
//! process argument.

mod nodes;
mod sample;

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use concord_client::{Client, Options, Request, Retry, Tls};
use http::Method;
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::{
    apply::execute,
    change::WayArgs,
    connection::{Failure, run_async},
    context::{Context, Contexts},
    output::{line, say},
    plan::ApplyPlan,
    secret_source::{IfAbsent, SecretArgs},
};
use nodes::{DemoSettings, Nodes};

/// The name of the context.
const CONTEXT: &str = "demo";
/// How long the start of the cluster may take.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the nodes are polled for the leader.
const POLL_PAUSE: Duration = Duration::from_millis(300);
/// The pause between two attempts while the cluster starts.
const START_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Keep the data in this directory, and reuse them the next time
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Do not load sample data
    #[arg(long)]
    no_sample: bool,
    /// Use TLS, with certificates generated for this demo
    #[arg(long)]
    tls: bool,
    /// The number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=5), value_name = "N")]
    nodes: u16,
    /// The port of the first node; the ports of the other nodes are 10 apart. A busy port is skipped
    #[arg(long, default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1024..=65_000), value_name = "PORT")]
    port: u16,
    /// `json`, for programs: print the URLs and the access key as one line of JSON when the nodes are ready, and save no context. If stdin is a pipe, the demo ends when it is closed
    #[arg(short, long, value_parser = ["json"], value_name = "FORMAT")]
    output: Option<String>,
}

impl DemoArgs {
    fn is_for_programs(&self) -> bool {
        self.output.is_some()
    }
}

/// Ends this process when its parent ends.
pub(super) fn end_with_parent() -> Result<(), Failure> {
    let asked = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    asked.map_err(|error| Failure::Failed(format!("the parent process can't be followed: {error}")))
}

/// Runs the command.
pub(super) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let folder = args.keep.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("concord-demo-{}", uuid::Uuid::new_v4().simple()))
    });
    // The nodes and the context name it from other directories.
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", folder.display()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    let done = run_async(async {
        // Signals are handled from here on, so that every process is stopped in order.
        let failed = |error: std::io::Error| Failure::Failed(format!("signals can't be received: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        let mut demo = Demo::default();
        let result = tokio::select! {
            result = demo.run(args, &folder) => result,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
            _ = hangup.recv() => Ok(()),
            () = end_of_input(), if args.is_for_programs() => Ok(()),
        };
        demo.end(args.keep.is_some()).await;
        result
    });
    let left = if args.keep.is_none() {
        fs::remove_dir_all(&folder).map_err(failed)?;
        "deleted".into()
    } else {
        format!("in {}", folder.display())
    };
    if !args.is_for_programs() {
        say(format_args!("the demo stopped; its data are {left}"));
    }
    done
}

/// Waits until a pipe at stdin is closed: the program that started the demo has ended, even if it was killed.
async fn end_of_input() {
    let mode =
        rustix::fs::fstat(std::io::stdin()).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
    if !matches!(mode, Ok(rustix::fs::FileType::Fifo | rustix::fs::FileType::Socket)) {
        return std::future::pending().await;
    }
    let (sender, ended) = tokio::sync::oneshot::channel();
    // A thread of its own: nothing can interrupt a read of stdin.
    std::thread::spawn(move || {
        // An error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = sender.send(());
    });
    let _ = ended.await;
}

/// The parts to clean up at the end.
#[derive(Debug, Default)]
struct Demo {
    nodes: Option<Nodes>,
    /// The context of the demo, and the one that was in use before.
    context: Option<(Context, Option<String>)>,
}

impl Demo {
    async fn run(&mut self, args: &DemoArgs, folder: &Path) -> Result<(), Failure> {
        let begin = Instant::now();
        let settings = DemoSettings::find_or_make(folder, args.nodes, args.port, args.tls)?;
        let authority = settings.authority(folder);
        let options = Options {
            urls: settings.urls(),
            key: settings.key.clone(),
            tls: Tls { authority: authority.clone(), own: None },
            ..Options::default()
        };
        let nodes = self.nodes.insert(Nodes::start(folder, &settings)?);
        let client = Client::new(Options {
            timeout: START_TIMEOUT,
            reason: Some("sample data of the demo".into()),
            ..options.clone()
        })?;
        form(&client, nodes, &settings).await?;
        wait_until_ready(&options, nodes).await?;
        let seconds = begin.elapsed().as_secs_f64();
        let (mut definitions, mut configs) = (0, 0);
        if !args.no_sample && !settings.is_loaded {
            let wanted = sample::manifests();
            (definitions, configs) = (wanted.definitions.len(), wanted.configs.len());
            let plan =
                ApplyPlan::new(&client, &wanted, false, (&SecretArgs::default(), IfAbsent::Fail)).await?;
            execute(&client, plan, true, &WayArgs::default()).await?;
            settings.remember_loaded(folder)?;
        }
        if args.is_for_programs() {
            line(json!({ "urls": settings.urls(), "key": settings.key, "ca_file": authority }))?;
            return self.watch_elections(&options, None).await;
        }
        self.save_context(&settings, authority.as_deref());
        let status = client.send(Request::get("/api/v1/cluster")).await?.data()?;
        let nodes = if args.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", args.nodes) };
        line(format_args!(
            "{nodes} up in {seconds:.1} s · leader node {} (term {}) · {definitions} definitions, {configs} configs loaded",
            status["leader_id"], status["term"],
        ))?;
        self.greet(&settings, authority.as_deref(), args.keep.is_some())?;
        self.watch_elections(&options, Some(&status)).await
    }

    /// Prints the addresses, the access key and commands to try.
    fn greet(&self, settings: &DemoSettings, authority: Option<&Path>, is_kept: bool) -> Result<(), Failure> {
        let url = &settings.urls()[0];
        let saved =
            if self.context.is_some() { "saved as context \"demo\"" } else { "not saved as a context" };
        line(format_args!("console  {url}/ui      API  {url}/docs"))?;
        line(format_args!("key      {}  (for this demo only; {saved})", settings.key))?;
        // The program may not be on the PATH: show it as it was called.
        let program = std::env::args().next().unwrap_or_else(|| "concord".into());
        line(format_args!("try      {program} get def"))?;
        line(format_args!("         {program} explain service-limits.owner"))?;
        line(format_args!("         {program} config watch service-limits"))?;
        let trust = authority.map(|file| format!("--cacert {} ", file.display())).unwrap_or_default();
        let (key, list) = (&settings.key, "/api/v1/config_definition/");
        line(format_args!("         curl -s {trust}-H \"Authorization: {key}\" {url}{list}"))?;
        let end =
            if is_kept { "stops everything and keeps the data" } else { "stops and deletes everything" };
        let tls = if authority.is_some() { "TLS with a CA of its own" } else { "no TLS" };
        line(format_args!("Loopback only, {tls}: not for production. Ctrl-C {end}."))
    }

    /// Makes the demo the current context. A user without a home directory has no contexts, but still a demo.
    fn save_context(&mut self, settings: &DemoSettings, authority: Option<&Path>) {
        let context = Context {
            urls: settings.urls(),
            api_key: Some(settings.key.clone()),
            api_key_file: None,
            ca_file: authority.map(Path::to_owned),
        };
        let mut before = None;
        let saved = Contexts::change(|contexts| {
            before = contexts.current.replace(CONTEXT.into()).filter(|name| name != CONTEXT);
            contexts.contexts.insert(CONTEXT.into(), context.clone());
            Ok(())
        });
        match saved {
            Ok(()) => self.context = Some((context, before)),
            Err(error) => say(format_args!("the context could not be saved: {}", error.into_text())),
        }
    }

    /// Prints a line for each election after `status` and each node that exits, and without it nothing; returns only if
    /// no node runs.
    async fn watch_elections(&mut self, options: &Options, status: Option<&Value>) -> Result<(), Failure> {
        let Some(nodes) = &mut self.nodes else { return Ok(()) };
        let Some(status) = status else {
            while nodes.any_runs() {
                sleep(POLL_PAUSE).await;
                nodes.ended()?.into_iter().for_each(say);
            }
            return Err(Failure::Failed("all nodes have exited".into()));
        };
        let mut known = (status["leader_id"].clone(), status["term"].as_u64());
        let mut clients = Vec::new();
        for url in &options.urls {
            clients.push(Client::new(Options { urls: vec![url.clone()], ..options.clone() })?);
        }
        loop {
            sleep(POLL_PAUSE).await;
            for text in nodes.ended()? {
                line(text)?;
            }
            if !nodes.any_runs() {
                return Err(Failure::Failed("all nodes have exited".into()));
            }
            for client in &clients {
                let request =
                    Request::get("/api/v1/cluster").retry(Retry::OtherNode).timeout(Duration::from_secs(1));
                // A node that was killed or hangs does not respond.
                let Ok(answer) = client.send(request).await else { continue };
                let status = answer.data()?;
                let seen = (status["leader_id"].clone(), status["term"].as_u64());
                if !seen.0.is_null() && seen.1 >= known.1 && seen != known {
                    let process = nodes.process(&seen.0);
                    line(format_args!("leader node {} (term {}){process}", seen.0, seen.1.unwrap_or(0)))?;
                    known = seen;
                }
            }
        }
    }

    /// Stops the nodes, and restores the context if it is still that of the demo.
    async fn end(&mut self, is_kept: bool) {
        if let Some((own, before)) = self.context.take() {
            let taken = Contexts::change(|contexts| {
                let is_ours =
                    contexts.contexts.get(CONTEXT).is_some_and(|found| found.api_key == own.api_key);
                if is_ours && !is_kept {
                    contexts.contexts.remove(CONTEXT);
                }
                if is_ours && contexts.current.as_deref() == Some(CONTEXT) {
                    contexts.current = before;
                }
                Ok(())
            });
            if let Err(error) = taken {
                say(format_args!("the context `{CONTEXT}` could not be removed: {}", error.into_text()));
            }
        }
        if let Some(mut nodes) = self.nodes.take() {
            nodes.end(is_kept).await;
        }
    }
}

/// Bootstraps the cluster as soon as the nodes listen. An existing cluster stays unchanged.
async fn form(client: &Client, nodes: &mut Nodes, settings: &DemoSettings) -> Result<(), Failure> {
    let body = json!({ "members": settings.members() });
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let request = Request::new(Method::POST, "/api/v1/cluster/init").json(&body);
        let request = request.retry(Retry::OtherNode).timeout(START_TIMEOUT);
        let Err(error) = client.send(request).await else { return Ok(()) };
        nodes.all_run()?;
        if Instant::now() >= deadline {
            return Err(error.into());
        }
        sleep(START_PAUSE).await;
    }
}

async fn wait_until_ready(options: &Options, nodes: &mut Nodes) -> Result<(), Failure> {
    let deadline = Instant::now() + START_TIMEOUT;
    for url in &options.urls {
        let client = Client::new(Options { urls: vec![url.clone()], ..options.clone() })?;
        loop {
            let request = Request::get("/readyz").retry(Retry::OtherNode).timeout(Duration::from_secs(2));
            let Err(error) = client.send(request).await else { break };
            nodes.all_run()?;
            if Instant::now() >= deadline {
                return Err(error.into());
            }
            sleep(START_PAUSE).await;
        }
    }
    Ok(())
}
