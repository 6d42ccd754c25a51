//! How the command line reaches a cluster: nodes, key and certificates of the options, of the environment or of a
//! context.
//!
//! **Invariants:** a context is taken whole, or not at all: its key goes to no node that it does not name. The key is
//! written nowhere.

use std::{io::Write as _, path::PathBuf, time::Duration};

use clap::Args;
use concord_client::{Client, Options, Request, Retry, Tls};
use http::Method;
use serde_json::Value;

pub(super) use super::failure::Failure;

use super::{
    context::{Context, Contexts},
    interrupt::{self, Doing},
    output::{self, OutputArgs},
};
use crate::settings::KeyArgs;

/// Where a node of this machine is, if nothing else is said.
const DEFAULT_URL: &str = "http://127.0.0.1:8101";
/// How long a request of an administrator may take; the formation of a cluster waits for its first leader.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How the command line proves itself and the node over TLS.
#[derive(Debug, Args)]
pub(super) struct ClientTls {
    /// The authority of the node's certificate, in PEM; by default those that this machine trusts
    #[arg(long, env = "CONCORD_CA_FILE", value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// A certificate to show to the node, in PEM
    #[arg(long, env = "CONCORD_CLIENT_CERT_FILE", requires = "key_of_cert", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(
        id = "key_of_cert",
        long = "key",
        env = "CONCORD_CLIENT_KEY_FILE",
        requires = "cert",
        value_name = "FILE"
    )]
    key: Option<PathBuf>,
}

/// Which cluster, and with which key.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    /// The URL of a node, or of several with commas between them: another is asked where one can't be reached.
    /// By default that of the context, or else `http://127.0.0.1:8101`
    #[arg(long, env = "CONCORD_URL", value_delimiter = ',', value_name = "URL")]
    url: Vec<String>,
    /// The context to use, as `concord context list` names it
    #[arg(long, env = "CONCORD_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    tls: ClientTls,
    /// Show each request as the command of curl that sends the same, without the key
    #[arg(short, long)]
    verbose: bool,
    /// Print the data and failures, and nothing else: no summaries, no progress
    #[arg(short, long)]
    quiet: bool,
    /// The id of the requests, in logs and in the audit log; a new one for each without it
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    pub(super) format: OutputArgs,
}

/// How often and how long a request is tried, and why a change is made.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TryArgs {
    /// How long a request may take with all its attempts, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "S")]
    timeout_s: u64,
    /// Why the change is made, for its history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// How fresh the answer to a read must be, as docs/guides/freshness.md has it.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct FreshnessArgs {
    /// linearizable: every write that was acknowledged before is seen. lease: the same, if clocks run evenly.
    /// local: what the node that answers has applied, without the others [default: linearizable]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "LEVEL")]
    consistency: Option<Consistency>,
    /// With `--consistency local`: a node whose state is older than this asks the others, too
    #[arg(long, value_name = "MS")]
    max_staleness_ms: Option<u64>,
    /// Only of a state that has this revision
    #[arg(long, value_name = "REVISION")]
    min_revision: Option<u64>,
}

/// The levels of the interface.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Consistency {
    Linearizable,
    Lease,
    Local,
}

impl FreshnessArgs {
    /// What a node has applied, without the others.
    pub(super) fn local() -> Self {
        Self { consistency: Some(Consistency::Local), ..Self::default() }
    }

    /// The read with what is asked for. Whether the levels go together is for the node to say.
    pub(super) fn on(&self, request: Request) -> Request {
        let level = self.consistency.map(|level| match level {
            Consistency::Linearizable => "linearizable",
            Consistency::Lease => "lease",
            Consistency::Local => "local",
        });
        let request = level.into_iter().fold(request, |request, level| request.query("consistency", level));
        let numbers = [("max_staleness_ms", self.max_staleness_ms), ("min_revision", self.min_revision)];
        numbers.into_iter().fold(request, |request, (name, number)| match number {
            Some(number) => request.query(name, number),
            None => request,
        })
    }
}

/// What to do where no key is known.
const NO_KEY: &str = "set CONCORD_API_KEY or CONCORD_API_KEY_FILE, or name a cluster with its key: \
                      `concord context set NAME --url URL --api-key-file FILE`";

impl NodeArgs {
    /// The options of a client.
    pub(super) fn options(&self, tries: &TryArgs) -> Result<Options, Failure> {
        let (context, has_key) = (self.context()?, self.has_key());
        let given = self.given_urls();
        let key = match &context {
            Some(context) if !has_key && given.iter().any(|url| !context.urls.contains(url)) => {
                let text = "the key of a context is for its own nodes: give --url or the context, or a key with them";
                return Err(Failure::Usage(text.into()));
            }
            Some(context) if !has_key => context.read_key().map_err(Failure::Usage)?,
            None if !has_key => {
                let known =
                    if given.is_empty() { None } else { Contexts::read().map_err(Failure::Usage)?.current };
                let unused = known.map(|name| format!("with --url the key of a context is sent only where --context names it, as in `--context {name}`; or ")).unwrap_or_default();
                return Err(Failure::Usage(format!("no access key is given\nhint: {unused}{NO_KEY}")));
            }
            _ => self.key.read().map_err(Failure::Usage)?.expose().to_owned(),
        };
        Ok(self.options_with(tries, context, key))
    }

    /// The options of a client that asks what needs no key.
    pub(super) fn options_without_key(&self, tries: &TryArgs) -> Result<Options, Failure> {
        Ok(self.options_with(tries, self.context()?, String::new()))
    }

    fn has_key(&self) -> bool {
        let has_text = self.key.api_key.as_ref().is_some_and(|key| !key.expose().is_empty());
        has_text || self.key.api_key_file.as_ref().is_some_and(|path| !path.as_os_str().is_empty())
    }

    fn given_urls(&self) -> Vec<String> {
        self.url.iter().filter(|url| !url.is_empty()).cloned().collect()
    }

    fn context(&self) -> Result<Option<Context>, Failure> {
        self.find_context(self.given_urls().is_empty())
    }

    fn options_with(&self, tries: &TryArgs, context: Option<Context>, key: String) -> Options {
        let given = self.given_urls();
        let context = context.unwrap_or_default();
        let urls = match (given.is_empty(), context.urls.is_empty()) {
            (false, _) => given,
            (true, false) => context.urls,
            (true, true) => vec![DEFAULT_URL.into()],
        };
        let authority = self.tls.cacert.clone().or(context.ca_file);
        let own = self.tls.cert.clone().zip(self.tls.key.clone());
        Options {
            urls,
            key,
            tls: Tls { authority, own },
            timeout: Duration::from_secs(tries.timeout_s),
            trace: self.verbose.then_some(trace as fn(&str)),
            reason: tries.reason.clone(),
            request_id: self.request_id.clone(),
        }
    }

    /// Refuses more than one node, for what each has of its own.
    pub(super) fn require_one_node(&self) -> Result<(), Failure> {
        let urls = self.options(&TryArgs::default())?.urls;
        if urls.len() > 1 {
            // With --url alone the key of a context is not sent.
            let current =
                if self.has_key() { None } else { Contexts::read().map_err(Failure::Usage)?.current };
            let named = self.context.clone().filter(|name| !name.is_empty() && !self.has_key()).or(current);
            let with = named.map(|name| format!("--context {name} ")).unwrap_or_default();
            let text = format!("each node has an audit log of its own: name one with {with}--url, of");
            return Err(Failure::Usage(format!("{text} {}", urls.join(", "))));
        }
        Ok(())
    }

    fn find_context(&self, use_current: bool) -> Result<Option<Context>, Failure> {
        match &self.context {
            Some(name) if !name.is_empty() => {
                let contexts = Contexts::read().map_err(Failure::Usage)?;
                let found = contexts.contexts.get(name).cloned();
                found.map(Some).ok_or_else(|| Failure::Usage(contexts.has_no(name)))
            }
            _ if use_current => {
                let contexts = Contexts::read().map_err(Failure::Usage)?;
                Ok(contexts.current.and_then(|name| contexts.contexts.get(&name).cloned()))
            }
            _ => Ok(None),
        }
    }
}

fn trace(line: &str) {
    // A failure to print has nowhere to be reported.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs an action to its end.
pub(super) fn run_async<T>(action: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::Failed(format!("the runtime can't be started: {error}")))?;
    runtime.block_on(action)
}

/// Connects to a cluster for an action whose requests are sent again where that is safe.
pub(super) fn with_cluster<T>(
    node: &NodeArgs,
    tries: &TryArgs,
    action: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if node.quiet {
        output::be_quiet();
    }
    let client = Client::new(node.options(tries)?)?;
    interrupt::listen()?;
    run_async(action(client))
}

/// How long an administrator's requests may take.
pub(super) fn tries_of_operator() -> TryArgs {
    TryArgs { timeout_s: REQUEST_TIMEOUT.as_secs(), reason: None }
}

/// Connects to a cluster for an administrator's action.
pub(super) fn run_with_client<T>(
    node: &NodeArgs,
    action: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_cluster(node, &tries_of_operator(), action)
}

/// Sends an administrator's request and returns the `data` of the answer. It is sent to another node only if one can't
/// be reached, so that the operator sees what went wrong.
///
/// # Errors
/// When no node can be reached, or one refuses.
pub(super) async fn ask(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    if !method.is_safe() {
        interrupt::now(Doing::Writing);
    }
    let request = Request::new(method, path).retry(Retry::OtherNode).timeout(REQUEST_TIMEOUT);
    let request = body.into_iter().fold(request, Request::json);
    Ok(client.send(request).await?.data()?)
}
