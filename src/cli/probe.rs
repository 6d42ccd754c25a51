//! `concord probe`, `version` and `openapi`.
//!
//! **Invariant:** a probe needs no access key. It exits 0 only if every node of `--url` passes.

use std::time::Duration;

use clap::{Args, ValueEnum};
use concord_client::{Client, Error, Options, Request, Retry, shown_url};
use futures::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, run_async, tries_of_operator, with_cluster},
    output::{Columns, OutputArgs, print_columns, print_done},
};
use concord_model::feature::{LEVEL_MIN, level_max};

const COLUMNS: Columns =
    Columns { name: "url", narrow: &[("URL", "/url"), ("ANSWER", "/is"), ("WHY", "/why")], wide: &[] };

/// The check to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Question {
    /// Does the process respond?
    Live,
    /// Can the node serve requests: has it caught up, and is there a leader?
    Ready,
}

#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// The check that every node of --url must pass
    #[arg(value_name = "CHECK")]
    question: Question,
    /// Time limit for each node, in milliseconds
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=600_000), value_name = "MS")]
    timeout_ms: u64,
}

#[derive(Debug, Args)]
pub(super) struct OpenApiArgs {
    #[command(flatten)]
    node: NodeArgs,
}

/// Runs `probe`.
pub(super) fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let options = args.node.options_without_key(&TryArgs::default())?;
    let path = match args.question {
        Question::Live => "/livez",
        Question::Ready => "/readyz",
    };
    let urls = Client::new(options.clone())?.urls().to_vec();
    run_async(async {
        let timeout = Duration::from_millis(args.timeout_ms);
        let answers = join_all(urls.iter().map(|url| ask(&options, url, path, timeout))).await;
        let shown: Vec<Value> = urls.iter().zip(&answers).map(|(url, answer)| answer.shown(url)).collect();
        print_columns(&args.node.format.or_table(), &shown.into(), &COLUMNS)?;
        if answers.iter().any(|answer| matches!(answer, ProbeResult::No(_))) {
            return Err(Failure::Difference);
        }
        match answers.into_iter().find_map(ProbeResult::failure) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    })
}

/// The result of a check.
enum ProbeResult {
    Yes,
    /// It responds, and the check fails.
    No(String),
    /// It does not respond.
    Silent(Error),
}

impl ProbeResult {
    fn shown(&self, url: &str) -> Value {
        let (is, why) = match self {
            Self::Yes => ("yes", None),
            Self::No(why) => ("no", Some(why.clone())),
            Self::Silent(error) => ("none", Some(error.to_string())),
        };
        json!({ "url": shown_url(url), "is": is, "why": why })
    }

    fn failure(self) -> Option<Error> {
        match self {
            Self::Silent(error) => Some(error),
            Self::Yes | Self::No(_) => None,
        }
    }
}

async fn ask(options: &Options, url: &str, path: &str, timeout: Duration) -> ProbeResult {
    let one = Options { urls: vec![url.to_owned()], ..options.clone() };
    let client = match Client::new(one) {
        Ok(client) => client,
        Err(error) => return ProbeResult::Silent(error),
    };
    match client.send(Request::get(path).retry(Retry::OtherNode).timeout(timeout)).await {
        Ok(_) => ProbeResult::Yes,
        Err(Error::Refused(refusal)) if refusal.status == StatusCode::SERVICE_UNAVAILABLE => {
            let reasons: Vec<String> = refusal.items.iter().map(ToString::to_string).collect();
            ProbeResult::No(reasons.join("; "))
        }
        Err(error) => ProbeResult::Silent(error),
    }
}

/// Runs `openapi`: the document of the receiving node, with its limits.
pub(super) fn openapi(args: &OpenApiArgs) -> Result<(), Failure> {
    with_cluster(&args.node, &tries_of_operator(), async |client| {
        let document = client.send(Request::get("/openapi.json")).await?.json()?;
        let format = args.node.format.or_json();
        let format = if format.is_table() { super::output::Format::Json } else { format };
        print_done(&format, &document, "openapi", "")
    })
}

/// Runs `version`.
pub(super) fn version(format: &OutputArgs) -> Result<(), Failure> {
    let (version, level_max) = (env!("CARGO_PKG_VERSION"), level_max());
    let data = json!({
        "version": version, "feature_level_min": LEVEL_MIN, "feature_level_max": level_max,
        "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    });
    let levels = match level_max {
        LEVEL_MIN => format!("feature level {LEVEL_MIN}"),
        _ => format!("feature levels {LEVEL_MIN} to {level_max}"),
    };
    let text = format!("concord {version}, {levels}");
    print_done(&format.or_table(), &data, "version", text)
}
