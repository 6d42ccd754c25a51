//! How the command line connects to a cluster: node URLs, access key and certificates from options, environment or a
//! context.
//!
//! **Invariants:** the access key of a context is sent only to the nodes of that context. The key is written nowhere.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use concord_client::{Client, Login, Options, Request, Retry, Tls, shown_url};
use concord_model::system::environment::{DEFAULT_ENVIRONMENT, EnvironmentName};
use http::Method;
use serde_json::Value;

pub(super) use super::failure::Failure;

use super::{
    context::{Context, Contexts},
    interrupt::{self, Doing},
    output::{self, OutputArgs},
};
use crate::settings::KeyArgs;

/// The default URL: the first node of a local cluster.
const DEFAULT_URL: &str = "http://127.0.0.1:8101";
/// Time limit of an operator's request; bootstrapping a cluster waits for the first leader.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// TLS options of a client.
#[derive(Debug, Args)]
pub(super) struct ClientTls {
    /// CA certificates to verify the nodes with, in PEM [default: the CAs that this machine trusts]
    #[arg(long, env = "CONCORD_CA_FILE", value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Client certificate, in PEM
    #[arg(long, env = "CONCORD_CLIENT_CERT_FILE", requires = "key_of_cert", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, in PEM
    #[arg(
        id = "key_of_cert",
        long = "key",
        env = "CONCORD_CLIENT_KEY_FILE",
        requires = "cert",
        value_name = "FILE"
    )]
    key: Option<PathBuf>,
}

/// The cluster and the access key.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    #[command(flatten)]
    pub(super) format: OutputArgs,
    /// Print data, errors and warnings only, no summaries and no progress
    #[arg(short, long)]
    quiet: bool,
    /// Print each request as a curl command, without the access key and the data
    #[arg(short, long)]
    verbose: bool,
    /// Put the name of this environment, with a dot, before each definition key: `limits` is `prod.limits`. Output has
    /// the keys without it. `default` has no prefix. Names of environments, grants of access keys and change requests
    /// that are read have whole keys
    #[arg(long, env = "CONCORD_ENVIRONMENT", value_name = "NAME")]
    env: Option<String>,
    /// Request id for the logs and the audit log [default: a new one for each request]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Node URLs, comma-separated; if one is unreachable, the next is tried [default: the context's, or else
    /// `http://127.0.0.1:8101`]
    #[arg(long, env = "CONCORD_URL", value_delimiter = ',', value_name = "URL")]
    url: Vec<String>,
    /// The context to use; `concord context list` shows the names
    #[arg(long, env = "CONCORD_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    key: KeyArgs,
    /// Without an access key: the identity provider with whose token to log in
    #[arg(long, env = "CONCORD_PROVIDER", value_name = "NAME")]
    provider: Option<String>,
    /// The file with the token of the identity provider
    #[arg(long, env = "CONCORD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: ClientTls,
}

/// The time limit of requests, and the reason for a change.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TryArgs {
    /// Time limit of a request with all its retries, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "S")]
    timeout_s: u64,
    /// Reason for the change, stored in the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl TryArgs {
    /// Those of requests that bring their own reason.
    pub(super) fn lasting(timeout_s: u64) -> Self {
        Self { timeout_s, reason: None }
    }

    /// The same with another reason.
    pub(super) fn with_reason(&self, reason: &str) -> Self {
        Self { reason: Some(reason.to_owned()), ..self.clone() }
    }

    /// The reason for the change.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref().filter(|reason| !reason.is_empty())
    }

    /// The same with this reason, unless one was given.
    pub(super) fn or_reason(&self, reason: String) -> Self {
        let given = self.reason().map(str::to_owned);
        Self { timeout_s: self.timeout_s, reason: given.or(Some(reason)) }
    }
}

/// How fresh a read must be; see docs/guides/read-consistency.md.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct FreshnessArgs {
    /// Read consistency. linearizable: sees every write acknowledged before the read. lease: the same without
    /// asking a quorum, if clock drift is bounded. local: what the receiving node has applied, which may be stale
    /// [default: linearizable]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "LEVEL")]
    consistency: Option<ConsistencyLevel>,
    /// With `--consistency local`: if the node's state is older than this, it asks the others
    #[arg(long, value_name = "MS")]
    max_staleness_ms: Option<u64>,
    /// Wait until the node has applied this revision
    #[arg(long, value_name = "REVISION")]
    min_revision: Option<u64>,
}

/// The consistency levels of the API.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum ConsistencyLevel {
    Linearizable,
    Lease,
    Local,
}

impl FreshnessArgs {
    /// Reads what the receiving node has applied.
    pub(super) fn local() -> Self {
        Self::of(Some(ConsistencyLevel::Local))
    }

    /// Reads with this consistency.
    pub(super) fn of(consistency: Option<ConsistencyLevel>) -> Self {
        Self { consistency, ..Self::default() }
    }

    /// Adds the options to a read. The node checks whether they can be combined.
    pub(super) fn on(&self, request: Request) -> Request {
        let level = self.consistency.map(|level| match level {
            ConsistencyLevel::Linearizable => "linearizable",
            ConsistencyLevel::Lease => "lease",
            ConsistencyLevel::Local => "local",
        });
        let request = level.into_iter().fold(request, |request, level| request.query("consistency", level));
        let numbers = [("max_staleness_ms", self.max_staleness_ms), ("min_revision", self.min_revision)];
        numbers.into_iter().fold(request, |request, (name, number)| match number {
            Some(number) => request.query(name, number),
            None => request,
        })
    }
}

/// The hint if there is no access key.
const NO_KEY: &str = "set CONCORD_API_KEY or CONCORD_API_KEY_FILE, or save the cluster with its key as a context: \
                      `concord context set NAME --url URL --api-key-file FILE`";

impl NodeArgs {
    /// The client options.
    pub(super) fn options(&self, tries: &TryArgs) -> Result<Options, Failure> {
        let (context, has_key) = (self.context()?, self.has_key());
        let given = self.given_urls();
        if let Some(login) = self.login().filter(|_| !has_key) {
            return Ok(Options { login: Some(login), ..self.options_with(tries, context, String::new()) });
        }
        let key = match &context {
            Some(context) if !has_key && given.iter().any(|url| !context.urls.contains(url)) => {
                let text = "--url names a node outside the context, so the context's key is not sent: drop one of them, or pass --api-key-file";
                return Err(Failure::Usage(text.into()));
            }
            Some(context) if !has_key => context.read_key().map_err(Failure::Usage)?,
            None if !has_key => {
                let known =
                    if given.is_empty() { None } else { Contexts::read().map_err(Failure::Usage)?.current };
                let unused = known.map(|name| format!("with --url, the key of a context is sent only if --context names it, as in `--context {name}`; or ")).unwrap_or_default();
                return Err(Failure::Usage(format!("no access key\nhint: {unused}{NO_KEY}")));
            }
            _ => self.key.read().map_err(Failure::Usage)?.expose().to_owned(),
        };
        Ok(self.options_with(tries, context, key))
    }

    /// How to log in, if that was given.
    fn login(&self) -> Option<Login> {
        let provider = self.provider().filter(|name| !name.is_empty())?;
        let token_file = self.token_file().filter(|path| !path.as_os_str().is_empty())?;
        Some(Login { provider: provider.to_owned(), token_file: token_file.to_owned() })
    }

    /// The name of the identity provider.
    pub(super) fn provider(&self) -> Option<&str> {
        self.provider.as_deref()
    }

    /// The file with its token.
    pub(super) fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// The client options for requests that need no access key.
    pub(super) fn options_without_key(&self, tries: &TryArgs) -> Result<Options, Failure> {
        Ok(self.options_with(tries, self.context()?, String::new()))
    }

    /// Suppresses notes and progress with `--quiet`.
    pub(super) fn hush(&self) {
        if self.quiet {
            output::be_quiet();
        }
    }

    /// The environment that was given.
    pub(super) fn environment(&self) -> Option<&str> {
        self.env.as_deref()
    }

    /// What stands before definition keys: for what comes from a file, and not from a client.
    pub(super) fn definition_prefix(&self) -> Result<String, Failure> {
        match self.environment() {
            None | Some(DEFAULT_ENVIRONMENT) => Ok(String::new()),
            Some(name) => {
                let name = EnvironmentName::parse(name);
                Ok(format!("{}.", name.map_err(|error| Failure::Usage(format!("--env: {error}")))?))
            }
        }
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
            login: None,
            tls: Tls { authority, own },
            timeout: Duration::from_secs(tries.timeout_s),
            trace: self.verbose.then_some(trace as fn(&str)),
            warn: Some(warn),
            reason: tries.reason.clone(),
            request_id: self.request_id.clone(),
            environment: self.environment().map(str::to_owned),
            // Commands show and change what is proven, unless they are told to read as a reader.
            reader: None,
            labels: BTreeMap::new(),
        }
    }

    /// Fails if there is more than one node: each has its own audit log.
    pub(super) fn require_one_node(&self) -> Result<(), Failure> {
        let urls = self.options(&TryArgs::default())?.urls;
        if urls.len() > 1 {
            // With --url alone, the key of a context is not sent.
            let current =
                if self.has_key() { None } else { Contexts::read().map_err(Failure::Usage)?.current };
            let named = self.context.clone().filter(|name| !name.is_empty() && !self.has_key()).or(current);
            let with = named.map(|name| format!("--context {name} ")).unwrap_or_default();
            let text = format!("each node has its own audit log: choose one with {with}--url, of");
            let urls: Vec<_> = urls.iter().map(|url| shown_url(url)).collect();
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
    output::say(line);
}

/// A part of a request had no effect, or a response is incomplete: that is no summary, so `--quiet` does not hide it.
fn warn(text: &str) {
    output::say(format_args!("warning: {text}"));
}

/// Runs an async action.
pub(super) fn run_async<T>(action: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::Failed(format!("the runtime can't be started: {error}")))?;
    runtime.block_on(action)
}

/// Runs an action with a client that retries where that is safe.
pub(super) fn with_cluster<T>(
    node: &NodeArgs,
    tries: &TryArgs,
    action: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let client = client_of(node, tries)?;
    interrupt::listen()?;
    run_async(action(client))
}

/// A client, for a command that receives signals itself.
pub(super) fn client_of(node: &NodeArgs, tries: &TryArgs) -> Result<Client, Failure> {
    node.hush();
    Ok(Client::new(node.options(tries)?)?)
}

/// The time limit of operator requests.
pub(super) fn tries_of_operator() -> TryArgs {
    TryArgs::lasting(REQUEST_TIMEOUT.as_secs())
}

/// Runs an operator's action with a client.
pub(super) fn run_with_client<T>(
    node: &NodeArgs,
    action: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_cluster(node, &tries_of_operator(), action)
}

/// Sends an operator's request and returns the `data` of the response. The next node is tried only if one is
/// unreachable, so that the operator sees what went wrong.
///
/// # Errors
/// When no node is reachable, or one rejects the request.
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
