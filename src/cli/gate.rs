//! `concord gate`: says whether all is well, for the rollouts that wait for a gate of this name.
//!
//! With `--prometheus` it asks Prometheus every so often, and says what the value means. A rollout counts what was said for
//! as long as its plan says.
//!
//! **Invariant:** silence is no evidence. If Prometheus fails, or answers with no value or with one that is not a number,
//! nothing is said.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args};
use concord_client::{Client, Error, Tls, shown_url};
use http::{HeaderMap, StatusCode};
use reqwest::Url;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    change_shown::json_of,
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    env::parse_duration,
    notify::webhook::{causes, headers, read},
    output::{Format, line, print_done, say},
    rollout_steer,
};

/// How long Prometheus may take for its answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of its response: a query for a gate has few values.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The most bytes of what is said.
const EVIDENCE_BYTES_MAX: usize = 1024;

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("word").required(true).args(["ok", "failed", "prometheus"]),
    group = ArgGroup::new("bound").multiple(true).args(["max", "min"]),
    after_help = "Example: concord gate errors --prometheus http://localhost:9090 --max 0.01 --every 30s \\\n    --query 'sum(rate(http_errors_total[2m])) / sum(rate(http_requests_total[2m]))'"
)]
pub(super) struct GateArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// The name of the gate, as in the plan of a rollout
    name: String,
    /// All is well
    #[arg(long)]
    ok: bool,
    /// Something is wrong
    #[arg(long)]
    failed: bool,
    /// Why, in a line; who may read the change request sees it
    #[arg(long, value_name = "TEXT", conflicts_with = "prometheus")]
    evidence: Option<String>,
    /// Ask Prometheus at this URL, again and again
    #[arg(long, value_name = "URL", requires_all = ["query", "bound"])]
    prometheus: Option<String>,
    /// What to ask Prometheus. If it has several values, each must be within the bounds
    #[arg(long, value_name = "PROMQL", requires = "prometheus")]
    query: Option<String>,
    /// All is well with values up to this one
    #[arg(long, value_name = "N", requires = "prometheus", allow_negative_numbers = true)]
    max: Option<f64>,
    /// All is well with values from this one on
    #[arg(long, value_name = "N", requires = "prometheus", allow_negative_numbers = true)]
    min: Option<f64>,
    /// How often to ask
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, requires = "prometheus")]
    every: Duration,
    /// Ask once, then exit
    #[arg(long, requires = "prometheus")]
    once: bool,
    /// File with headers of the requests to Prometheus, a `Name: value` in each line
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    headers: Option<PathBuf>,
    /// CA certificates to verify Prometheus with, in PEM [default: the CAs that this machine trusts]
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    prometheus_cacert: Option<PathBuf>,
}

/// Runs `gate`.
pub(super) fn run(args: &GateArgs) -> Result<(), Failure> {
    let format = args.node.format.or_table();
    let prometheus = Prometheus::new(args)?;
    with_cluster(&args.node, &args.tries, async |client| {
        let Some(prometheus) = prometheus else {
            let evidence = args.evidence.as_deref().unwrap_or_default();
            return say_word(&client, args, &format, &Word { is_ok: args.ok, evidence: evidence.into() })
                .await;
        };
        if args.once {
            let word = prometheus.word().await.map_err(|why| Failure::Failed(prometheus.silent(&why)))?;
            return say_word(&client, args, &format, &word).await;
        }
        follow(&client, args, &format, &prometheus).await
    })
}

/// Asks and says, until it is stopped or the key is rejected.
async fn follow(
    client: &Client,
    args: &GateArgs,
    format: &Format,
    prometheus: &Prometheus,
) -> Result<(), Failure> {
    let mut next = Instant::now();
    let mut problem = None;
    loop {
        sleep_until(next).await;
        // A pause after a slow answer: the times that were missed are not made up for.
        next = Instant::now() + args.every;
        let now = match prometheus.word().await {
            Err(why) => Some(prometheus.silent(&why)),
            Ok(word) => match say_word(client, args, format, &word).await {
                Ok(()) => None,
                Err(Failure::Client(Error::Refused(refusal))) if is_final(refusal.status) => {
                    return Err(Failure::Client(Error::Refused(refusal)));
                }
                Err(Failure::Client(error)) => Some(format!("nothing was said: {error}")),
                Err(failure) => return Err(failure),
            },
        };
        // What lasts is said once.
        if let Some(text) = now.as_ref().filter(|_| now != problem) {
            say(format_args!("warning: {text}"));
        }
        problem = now;
    }
}

/// Whether a rejection is the same at the next turn: of the key, or of the request.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error() && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT)
}

/// What is said of a gate.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    is_ok: bool,
    evidence: String,
}

async fn say_word(client: &Client, args: &GateArgs, format: &Format, word: &Word) -> Result<(), Failure> {
    let data = rollout_steer::say(client, &args.name, word.is_ok, &word.evidence).await?;
    let state = if word.is_ok { "good" } else { "not good" };
    let evidence = if word.evidence.is_empty() {
        String::new()
    } else {
        format!(": {}", json_of(&(*word.evidence).into()))
    };
    let text = format!("gate {} is {state}{evidence}", json_of(&(*args.name).into()));
    if format.is_table() { line(text) } else { print_done(format, &data, "counted", text) }
}

/// A query to Prometheus, and what its values mean.
#[derive(Debug)]
struct Prometheus {
    http: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    query: String,
    bounds: Bounds,
    shown: String,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    min: f64,
    max: f64,
}

impl Prometheus {
    fn new(args: &GateArgs) -> Result<Option<Self>, Failure> {
        let (Some(base), Some(query)) = (&args.prometheus, &args.query) else { return Ok(None) };
        let wrong = |error: String| Failure::Usage(format!("--prometheus: {error}"));
        let mut url = Url::parse(&format!("{}/api/v1/query", base.trim().trim_end_matches('/')))
            .map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong("expected http[s]://HOST:PORT".into()));
        }
        url.query_pairs_mut().append_pair("query", query);
        let bounds =
            Bounds { min: args.min.unwrap_or(f64::NEG_INFINITY), max: args.max.unwrap_or(f64::INFINITY) };
        if bounds.min.is_nan() || bounds.max.is_nan() || bounds.min > bounds.max {
            return Err(Failure::Usage("--min is greater than --max, or one of them is not a number".into()));
        }
        let tls = Tls { authority: args.prometheus_cacert.clone(), own: None };
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.config(url.scheme() == "https").map_err(Failure::Usage)?)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| Failure::Usage(causes(error)))?;
        let headers = match &args.headers {
            Some(path) => headers(&read(path)?)
                .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?,
            None => HeaderMap::new(),
        };
        let shown = shown_url(base).into_owned();
        Ok(Some(Self { http, url, headers, query: query.clone(), bounds, shown }))
    }

    /// That nothing is said, and why.
    fn silent(&self, why: &str) -> String {
        format!("nothing is said of the gate: {}: {why}", self.shown)
    }

    /// What the values of now mean.
    ///
    /// # Errors
    /// When there is no value: that is no evidence.
    async fn word(&self) -> Result<Word, String> {
        let request = self.http.get(self.url.clone()).headers(self.headers.clone()).send();
        let sent = timeout(TIMEOUT, request).await.map_err(|_| "it did not answer in time")?;
        let mut response = sent.map_err(|error| causes(error.without_url()))?;
        let status = response.status();
        let mut body = Vec::new();
        loop {
            let chunk = timeout(TIMEOUT, response.chunk()).await.map_err(|_| "its response stopped")?;
            let Some(chunk) = chunk.map_err(|error| causes(error.without_url()))? else { break };
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(format!("its response is longer than {ANSWER_BYTES_MAX} bytes"));
            }
        }
        let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
            return Err(format!("{status}, which is not from Prometheus"));
        };
        if !status.is_success() || answer["status"] != "success" {
            return Err(format!("{status}: {}", json_of(&answer["error"])));
        }
        self.bounds.judge(&self.query, &values_of(&answer["data"])?)
    }
}

/// The values in an answer.
fn values_of(data: &Value) -> Result<Vec<f64>, String> {
    let value = |pair: &Value| {
        let text = pair[1].as_str().ok_or("a value is not a text")?;
        text.parse::<f64>().map_err(|_| format!("{} is not a number", json_of(&pair[1])))
    };
    let values: Vec<f64> = match data["resultType"].as_str() {
        Some("scalar") => vec![value(&data["result"])?],
        Some("vector") => {
            let results = data["result"].as_array().ok_or("a vector is not a list")?;
            results.iter().map(|result| value(&result["value"])).collect::<Result<_, _>>()?
        }
        Some(_) | None => {
            return Err(format!("the query has a result of type {}, and not a value", data["resultType"]));
        }
    };
    match values.as_slice() {
        [] => Err("the query has no value".into()),
        some if some.iter().any(|value| value.is_nan()) => Err("the query has a value that is NaN".into()),
        _ => Ok(values),
    }
}

impl Bounds {
    /// What values mean: the worst of them is named. There is at least one.
    fn judge(self, query: &str, values: &[f64]) -> Result<Word, String> {
        let worst = values.iter().copied().max_by(|a, b| self.excess(*a).total_cmp(&self.excess(*b)));
        let worst = worst.ok_or("the query has no value")?;
        let is_ok = self.excess(worst) <= 0.0;
        let bound = match (worst > self.max, worst < self.min) {
            (true, _) => format!(" > {}", self.max),
            (_, true) => format!(" < {}", self.min),
            (false, false) => String::new(),
        };
        let evidence = format!("{worst}{bound}: {query}");
        let end = evidence.floor_char_boundary(EVIDENCE_BYTES_MAX);
        let evidence = evidence[..end].replace(char::is_control, " ");
        Ok(Word { is_ok, evidence })
    }

    /// How far a value is outside; not positive if it is inside.
    fn excess(self, value: f64) -> f64 {
        if value > self.max {
            // The difference of two infinities is none.
            (value - self.max).max(f64::MIN_POSITIVE)
        } else if value < self.min {
            (self.min - value).max(f64::MIN_POSITIVE)
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vector(values: &[&str]) -> Value {
        let results: Vec<Value> =
            values.iter().map(|value| json!({"metric": {}, "value": [1.5, value]})).collect();
        json!({"resultType": "vector", "result": results})
    }

    #[test]
    fn an_answer_without_a_number_is_no_evidence() {
        assert_eq!(values_of(&vector(&["0.5", "+Inf"])), Ok(vec![0.5, f64::INFINITY]));
        assert_eq!(values_of(&json!({"resultType": "scalar", "result": [1, "3"]})), Ok(vec![3.0]));
        let bad = [
            vector(&[]),
            vector(&["0", "NaN"]),
            vector(&["many"]),
            json!({"resultType": "matrix", "result": []}),
            json!({}),
            Value::Null,
        ];
        for data in bad {
            assert!(values_of(&data).is_err(), "{data}");
        }
    }

    #[test]
    fn the_worst_value_decides() {
        let judge = |bounds: Bounds, values: &[f64]| bounds.judge("q", values).unwrap();
        let most = Bounds { min: f64::NEG_INFINITY, max: 0.1 };
        assert_eq!(judge(most, &[0.0, 0.1]), Word { is_ok: true, evidence: "0.1: q".into() });
        assert_eq!(judge(most, &[0.0, 0.2]), Word { is_ok: false, evidence: "0.2 > 0.1: q".into() });
        let both = Bounds { min: 1.0, max: 2.0 };
        assert_eq!(judge(both, &[1.5, -3.0, 2.5]), Word { is_ok: false, evidence: "-3 < 1: q".into() });
        let none = Bounds { min: 1.0, max: f64::INFINITY };
        assert!(judge(none, &[f64::INFINITY]).is_ok && !judge(most, &[f64::INFINITY]).is_ok);
        assert!(!judge(none, &[f64::NEG_INFINITY]).is_ok);
    }
}
