//! `concord bench`: measures throughput and latency of reads and writes from this machine.
//!
//! It creates a definition with configs, reads and writes them with concurrent clients, and deletes the definition at the
//! end. The result includes the network between this machine and the cluster; `scripts/bench.sh` compares with etcd.
//!
//! **Invariant:** it changes only the definition that it has created, under a unique key.

use std::time::Duration;

use clap::Args;
use concord_client::{Client, Operation, PutMode, Request, Retry};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    connection::{Failure, NodeArgs, TryArgs, with_cluster},
    output::{Columns, print_columns, say},
    progress::Progress,
};

/// Configs per batch.
const BATCH: usize = 500;
/// How often the progress bar is updated.
const TICK: Duration = Duration::from_millis(250);
const COLUMNS: Columns = Columns {
    name: "operation",
    narrow: &[
        ("OPERATION", "/operation"),
        ("COUNT", "/count"),
        ("PER SECOND", "/per_second"),
        ("P50 MS", "/p50_ms"),
        ("P99 MS", "/p99_ms"),
        ("MAX MS", "/max_ms"),
        ("FAILED", "/failed"),
    ],
    wide: &[("P90 MS", "/p90_ms"), ("P99.9 MS", "/p999_ms"), ("FIRST FAILURE", "/first_failure")],
};

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// Duration, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "S")]
    seconds: u64,
    /// Number of concurrent requests
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096), value_name = "N")]
    clients: u16,
    /// Number of configs
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    configs: u32,
    /// Percentage of requests that are reads
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    reads: u8,
    /// Size of each config's text, in bytes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=900_000), value_name = "BYTES")]
    size: u32,
    /// Read with `consistency=local`
    #[arg(long)]
    local: bool,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let key = format!("bench-{}", uuid::Uuid::now_v7());
    with_cluster(&args.node, &args.tries, async |client| {
        let create = Operation::CreateDefinition {
            definition: key.clone(),
            indexes: Vec::new(),
            schema: None,
            format_assertion: None,
        };
        client.send(Request::operation(&create)).await?;
        let measured = load_and_measure(&client, args, &key).await;
        let delete = Operation::DeleteDefinition { definition: key.clone(), restrict: false, if_match: None };
        let deleted = client.send(Request::operation(&delete)).await;
        if let Err(error) = &deleted {
            say(format_args!("definition {key} could not be deleted: {error}"));
        }
        let results = measured?;
        deleted?;
        let failed = results.iter().any(|result| result["failed"] != 0);
        print_columns(&args.node.format.or_table(), &json!({ "results": results }), &COLUMNS)?;
        if failed {
            Err(Failure::Partial("some requests failed: -o wide shows the first error".into()))
        } else {
            Ok(())
        }
    })
}

async fn load_and_measure(client: &Client, args: &BenchArgs, key: &str) -> Result<Vec<Value>, Failure> {
    let rest = format!("definition {key} still exists: delete it");
    let text = "x".repeat(args.size as usize);
    let configs = args.configs as usize;
    let progress = Progress::with_rest(configs, "configs", &rest);
    for first in (0..configs).step_by(BATCH) {
        let operation = |n: usize| Operation::CreateConfig {
            definition: key.to_owned(),
            key: format!("k{n}"),
            data: json!({ "n": 0, "text": text }),
        };
        let operations: Vec<Operation> = (first..configs.min(first + BATCH)).map(operation).collect();
        let count = operations.len();
        client.batch(&operations).await?;
        progress.add(count);
    }
    drop(progress);
    let millis = usize::try_from(args.seconds.saturating_mul(1000)).unwrap_or(usize::MAX);
    let progress = Progress::with_rest(millis, "ms", &rest);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(args.seconds);
    let clients = (0..args.clients).map(|_| one_client(client, args, key, &text, end));
    let tick = async {
        while Instant::now() < end {
            tokio::time::sleep(TICK).await;
            progress.set(u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX), millis as u64);
        }
    };
    let (seen, ()) = futures::join!(join_all(clients), tick);
    let elapsed = begin.elapsed();
    drop(progress);
    let (mut reads, mut writes) = (Samples::default(), Samples::default());
    for (read, written) in seen {
        reads.add(read);
        writes.add(written);
    }
    let all = [("read", reads), ("write", writes)];
    Ok(all
        .into_iter()
        .filter(|(_, seen)| seen.count() > 0)
        .map(|(name, seen)| seen.shown(name, elapsed))
        .collect())
}

/// Sends one request after the other until the end.
async fn one_client(
    client: &Client,
    args: &BenchArgs,
    key: &str,
    text: &str,
    end: Instant,
) -> (Samples, Samples) {
    let (mut reads, mut writes) = (Samples::default(), Samples::default());
    let mut n = 0_u64;
    while Instant::now() < end {
        n += 1;
        let (definition, key) = (key.to_owned(), format!("k{}", fastrand::u32(0..args.configs)));
        let is_read = fastrand::u8(0..100) < args.reads;
        let operation = if is_read {
            Operation::GetConfig { definition, key }
        } else {
            let data = json!({ "n": n, "text": text });
            Operation::PutConfig { definition, key, data, mode: PutMode::Replace }
        };
        let request = Request::operation(&operation);
        let request = if is_read && args.local { request.query("consistency", "local") } else { request };
        let begin = Instant::now();
        // A retry would distort the latency.
        let answer = client.send(request.retry(Retry::OtherNode)).await;
        let seen = if is_read { &mut reads } else { &mut writes };
        match answer {
            Ok(_) => seen.micros.push(u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX)),
            Err(error) => {
                seen.failed += 1;
                seen.first_failure.get_or_insert_with(|| error.to_string());
                tokio::time::sleep(TICK).await;
            }
        }
    }
    (reads, writes)
}

/// What became of requests of one kind.
#[derive(Debug, Default)]
struct Samples {
    /// How long each one that succeeded took.
    micros: Vec<u32>,
    failed: usize,
    first_failure: Option<String>,
}

impl Samples {
    fn add(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }

    fn count(&self) -> usize {
        self.micros.len() + self.failed
    }

    fn shown(mut self, operation: &str, elapsed: Duration) -> Value {
        self.micros.sort_unstable();
        let at = |permille: usize| {
            let last = self.micros.len().saturating_sub(1);
            let micros = self.micros.get(last * permille / 1000).copied().unwrap_or(0);
            f64::from(micros) / 1000.0
        };
        let count = u32::try_from(self.micros.len()).unwrap_or(u32::MAX);
        let rate = (f64::from(count) / elapsed.as_secs_f64()).round();
        json!({
            "operation": operation, "count": count, "per_second": rate,
            "p50_ms": at(500), "p90_ms": at(900), "p99_ms": at(990), "p999_ms": at(999), "max_ms": at(1000),
            "failed": self.failed, "first_failure": self.first_failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_by_their_ranks() {
        let seen = Samples { micros: (1..=1001).rev().collect(), failed: 2, first_failure: Some("x".into()) };
        let shown = seen.shown("read", Duration::from_secs(2));
        assert_eq!((&shown["count"], &shown["per_second"]), (&json!(1001), &json!(501.0)));
        assert_eq!(
            (&shown["p50_ms"], &shown["p99_ms"], &shown["max_ms"]),
            (&json!(0.501), &json!(0.991), &json!(1.001))
        );
        assert_eq!((&shown["failed"], &shown["first_failure"]), (&json!(2), &json!("x")));
        assert_eq!(Samples::default().shown("write", Duration::from_secs(1))["max_ms"], json!(0.0));
    }
}
