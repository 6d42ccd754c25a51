//! `concord top`: the access keys or the definitions that use the nodes most.
//!
//! Each node counts the requests that it has received. The command asks every node that the operator has named, twice
//! unless the time is 0, and adds up the differences.
//!
//! **Invariants:** a member that is not counted is named, and nothing is guessed for it. The key is sent only to addresses
//! that the operator has named.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::{Args, ValueEnum};
use concord_client::{Client, Options, Request, Retry, shown_url};
use futures::future::join_all;
use http::Uri;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, run_async},
    interrupt,
    output::{Columns, cell, print_columns, printable, say, shown_bytes},
};

const USAGE: &str = "/api/v1/cluster/usage";
const CLUSTER: &str = "/api/v1/cluster";
/// Time limit for each node.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// The figures that are added up.
const FIGURES: [&str; 6] =
    ["requests", "bytes_in", "bytes_out", "busy_us", "records_read", "records_written"];
/// The figures of a definition that are the same on every node.
const STORED: [&str; 2] = ["configs", "stored_bytes"];

const KEY_COLUMNS: Columns = Columns {
    name: "key_id",
    narrow: &[
        ("KEY", "/key_id"),
        ("NAME", "/name"),
        ("BUSY", "/busy"),
        ("REQUESTS", "/requests"),
        ("IN", "/in"),
        ("OUT", "/out"),
        ("READ", "/records_read"),
        ("WRITTEN", "/records_written"),
    ],
    wide: &[("BUSY US", "/busy_us"), ("BYTES IN", "/bytes_in"), ("BYTES OUT", "/bytes_out")],
};
const DEFINITION_COLUMNS: Columns = Columns {
    name: "config_definition_key",
    narrow: &[
        ("DEFINITION", "/config_definition_key"),
        ("CONFIGS", "/configs"),
        ("STORED", "/stored"),
        ("GROWN", "/grown"),
        ("BUSY", "/busy"),
        ("REQUESTS", "/requests"),
        ("OUT", "/out"),
        ("READ", "/records_read"),
        ("WRITTEN", "/records_written"),
    ],
    wide: &[
        ("STORED BYTES", "/stored_bytes"),
        ("GROWN BYTES", "/grown_bytes"),
        ("BUSY US", "/busy_us"),
        ("BYTES IN", "/bytes_in"),
        ("BYTES OUT", "/bytes_out"),
    ],
};

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TopKind {
    /// Access keys
    Keys,
    /// Definitions
    Definitions,
}

/// By what the list is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TopOrder {
    /// Time in which nodes worked for the requests
    Busy,
    /// Number of requests
    Requests,
    /// Bytes of the bodies of requests
    In,
    /// Bytes of the bodies of responses
    Out,
    /// Records read
    Read,
    /// Records written
    Written,
    /// Bytes by which the definition has grown, then the bytes that it stores (definitions only)
    Grown,
    /// Bytes of all configs (definitions only)
    Stored,
    /// Number of configs (definitions only)
    Configs,
}

impl TopOrder {
    fn figure(self) -> &'static str {
        match self {
            Self::Busy => "busy_us",
            Self::Requests => "requests",
            Self::In => "bytes_in",
            Self::Out => "bytes_out",
            Self::Read => "records_read",
            Self::Written => "records_written",
            Self::Grown => "grown_bytes",
            Self::Stored => "stored_bytes",
            Self::Configs => "configs",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// What to list
    #[arg(default_value = "keys")]
    kind: TopKind,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tries: TryArgs,
    /// Count what is used within this many seconds from now; 0 counts from the start of each node
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=3600), value_name = "S")]
    seconds: u64,
    /// Order the list by this [default: busy; for definitions: grown, or stored with `--seconds 0`]
    #[arg(long, value_name = "FIGURE")]
    by: Option<TopOrder>,
    /// Show this many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000), value_name = "N")]
    limit: u64,
}

impl TopKind {
    /// The lists in the response of a node, and the member that names a row.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Keys => ("keys", "key_id"),
            Self::Definitions => ("definitions", "config_definition_key"),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &TopArgs) -> Result<(), Failure> {
    let order = args.by.unwrap_or(match args.kind {
        TopKind::Keys => TopOrder::Busy,
        TopKind::Definitions if args.seconds > 0 => TopOrder::Grown,
        TopKind::Definitions => TopOrder::Stored,
    });
    let is_stored = matches!(order, TopOrder::Stored | TopOrder::Configs | TopOrder::Grown);
    if args.kind == TopKind::Keys && is_stored {
        let text = "an access key stores nothing: `--by stored`, `configs` and `grown` are for definitions";
        return Err(Failure::Usage(text.into()));
    }
    if order == TopOrder::Grown && args.seconds == 0 {
        return Err(Failure::Usage("`--by grown` compares two moments: it needs `--seconds` above 0".into()));
    }
    let options = args.node.options(&args.tries)?;
    // Whether there is a node, and the key is usable.
    let client = Client::new(options.clone())?;
    interrupt::listen()?;
    run_async(top(&client, &options, args, order))
}

async fn top(client: &Client, options: &Options, args: &TopArgs, order: TopOrder) -> Result<(), Failure> {
    let mut before = None;
    if args.seconds > 0 {
        before = Some(ask_nodes(client, options).await?);
        tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    }
    let now = ask_nodes(client, options).await?;
    let mut missing = now.silent.clone();
    if let Some(before) = &before {
        missing.extend(before.silent.clone());
        let is_new = |node: &&u64| !before.nodes.contains_key(node);
        let new = now.nodes.keys().filter(is_new);
        missing.extend(new.map(|node| format!("node {node} responded the second time only")));
    }
    missing.extend(unnamed(client, &now).await?);
    let earlier = before.as_ref().map(|answers| &answers.nodes);
    let rows = rows(args.kind, order, earlier, &now.nodes);
    let rows: Vec<Value> = rows.into_iter().take(usize::try_from(args.limit).unwrap_or(usize::MAX)).collect();
    let columns = match args.kind {
        TopKind::Keys => &KEY_COLUMNS,
        TopKind::Definitions => &DEFINITION_COLUMNS,
    };
    print_columns(&args.node.format.or_table(), &Value::Array(rows), columns)?;
    for text in &missing {
        say(printable(&format!("not counted: {text}")));
    }
    if missing.is_empty() { Ok(()) } else { Err(Failure::Difference) }
}

/// What the nodes that the operator has named say.
#[derive(Debug)]
struct NodeAnswers {
    /// By the id of the node: two URLs may lead to one.
    nodes: BTreeMap<u64, Value>,
    /// The URLs without a response, each with the reason.
    silent: BTreeSet<String>,
    silent_urls: Vec<String>,
}

/// Asks each node that the operator has named. Fails if none responds.
async fn ask_nodes(client: &Client, options: &Options) -> Result<NodeAnswers, Failure> {
    let ask = async |url: &String| {
        let options = Options { urls: vec![url.clone()], trace: None, ..options.clone() };
        let request = Request::get(USAGE).retry(Retry::OtherNode).timeout(NODE_TIMEOUT);
        let answer = async { Client::new(options)?.send(request).await?.data() };
        (url.clone(), answer.await)
    };
    let all = join_all(client.urls().iter().map(ask)).await;
    let mut found = NodeAnswers { nodes: BTreeMap::new(), silent: BTreeSet::new(), silent_urls: Vec::new() };
    let mut failure = None;
    for (url, answer) in all {
        match answer {
            Ok(answer) => {
                found.nodes.insert(answer["node_id"].as_u64().unwrap_or_default(), answer);
            }
            Err(error) => {
                found.silent.insert(format!("{}: {error}", shown_url(&url)));
                found.silent_urls.push(url);
                failure.get_or_insert(error);
            }
        }
    }
    match failure {
        Some(error) if found.nodes.is_empty() => Err(Failure::Client(error)),
        _ => Ok(found),
    }
}

/// The members whose addresses the operator has not named.
async fn unnamed(client: &Client, answers: &NodeAnswers) -> Result<Vec<String>, Failure> {
    let seen: Value = client.send(Request::get(CLUSTER).retry(Retry::OtherNode)).await?.data()?;
    let is_silent = |address: &str| {
        let is_at = |url: &String| {
            url.parse::<Uri>().is_ok_and(|uri| uri.authority().is_some_and(|found| found == address))
        };
        answers.silent_urls.iter().any(is_at)
    };
    let members = seen["members"].as_array().into_iter().flatten();
    let others = members.filter(|one| !one["id"].as_u64().is_some_and(|id| answers.nodes.contains_key(&id)));
    let others =
        others.map(|one| (&one["id"], cell(&one["api_addr"]))).filter(|(_, address)| !is_silent(address));
    let text = |(id, address)| {
        format!("node {id} at {address}: --url or the context does not name its address, so it gets no key")
    };
    Ok(others.map(text).collect())
}

/// The rows of a node's answer by name.
fn rows_of(answer: &Value, kind: TopKind) -> BTreeMap<String, &Value> {
    let (list, name) = kind.names();
    answer[list].as_array().into_iter().flatten().map(|row| (cell(&row[name]), row)).collect()
}

/// The rows of all nodes, ordered: of what was used since they responded before, or since they started. A node that has
/// started again in between counts from its start; one that has not responded before is left out.
fn rows(
    kind: TopKind,
    order: TopOrder,
    before: Option<&BTreeMap<u64, Value>>,
    now: &BTreeMap<u64, Value>,
) -> Vec<Value> {
    let mut sums: BTreeMap<String, Value> = BTreeMap::new();
    for (node, answer) in now {
        let earlier = match before.map(|before| before.get(node)) {
            None => None,
            Some(None) => continue,
            Some(Some(earlier)) => Some(earlier),
        };
        let is_same_start =
            |earlier: &&Value| earlier["counted_ms"].as_u64() <= answer["counted_ms"].as_u64();
        let earlier = earlier.filter(is_same_start).map(|earlier| rows_of(earlier, kind)).unwrap_or_default();
        for (name, row) in rows_of(answer, kind) {
            // A row that was not among the first before has used little until then.
            let known = |figure: &str| earlier.get(&name)?.get(figure)?.as_u64();
            let used = |figure| row[figure].as_u64().unwrap_or(0).saturating_sub(known(figure).unwrap_or(0));
            let is_new = !sums.contains_key(&name);
            let sum = sums.entry(name.clone()).or_insert_with(|| row.clone());
            for figure in FIGURES {
                let others = if is_new { 0 } else { sum[figure].as_u64().unwrap_or(0) };
                sum[figure] = json!(others.saturating_add(used(figure)));
            }
            // The same on all nodes, but for those that have not applied the newest writes.
            for figure in STORED {
                if row[figure].as_u64() > sum[figure].as_u64() {
                    sum[figure] = row[figure].clone();
                }
            }
        }
    }
    if let (TopKind::Definitions, Some(before)) = (kind, before) {
        for (name, row) in &mut sums {
            let stored = |answer| rows_of(answer, kind).get(name)?["stored_bytes"].as_i64();
            let then = before.values().filter_map(stored).max();
            row["grown_bytes"] = row["stored_bytes"].as_i64().zip(then).map(|(now, then)| now - then).into();
        }
    }
    let mut all: Vec<Value> = sums.into_values().collect();
    all.retain(|row| FIGURES.iter().chain(&STORED).any(|figure| row[*figure].as_u64() > Some(0)));
    all.sort_by_key(|row| Reverse((row[order.figure()].as_i64(), row["stored_bytes"].as_i64())));
    all.iter_mut().for_each(show);
    all
}

/// Adds the figures of a row as the table has them.
fn show(row: &mut Value) {
    let bytes = |name: &str| row[name].as_u64().map(shown_bytes);
    let (sent, received, stored) = (bytes("bytes_out"), bytes("bytes_in"), bytes("stored_bytes"));
    let grown = row["grown_bytes"].as_i64().map(|bytes| {
        let sign = if bytes < 0 { "-" } else { "" };
        format!("{sign}{}", shown_bytes(bytes.unsigned_abs()))
    });
    let busy = row["busy_us"].as_u64().unwrap_or(0);
    row["busy"] = format!("{}.{:03} s", busy / 1_000_000, busy / 1000 % 1000).into();
    row["out"] = sent.into();
    row["in"] = received.into();
    row["stored"] = stored.into();
    row["grown"] = grown.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(all: &[(u64, u64, Vec<Value>)], list: &str) -> BTreeMap<u64, Value> {
        let answer = |(node, counted_ms, rows): &(u64, u64, Vec<Value>)| {
            (*node, json!({ "node_id": node, "counted_ms": counted_ms, list: rows }))
        };
        all.iter().map(answer).collect()
    }

    fn keys(all: &[(&str, u64)]) -> Vec<Value> {
        let key =
            |(id, busy): &(&str, u64)| json!({"key_id": id, "name": null, "busy_us": busy, "requests": 1});
        all.iter().map(key).collect()
    }

    fn busy(before: Option<&BTreeMap<u64, Value>>, now: &BTreeMap<u64, Value>) -> Vec<(String, u64)> {
        let found = rows(TopKind::Keys, TopOrder::Busy, before, now);
        found.iter().map(|row| (cell(&row["key_id"]), row["busy_us"].as_u64().unwrap())).collect()
    }

    #[test]
    fn the_differences_of_all_nodes_are_added_up() {
        let before = [(1, 10, keys(&[("a", 100), ("b", 5000)])), (2, 10, keys(&[("a", 50)]))];
        let now = [(1, 20, keys(&[("a", 300), ("b", 5000)])), (2, 20, keys(&[("a", 60), ("c", 7)]))];
        let (before, now) = (answers(&before, "keys"), answers(&now, "keys"));
        assert_eq!(
            busy(Some(&before), &now),
            [("a".into(), 210), ("c".into(), 7)],
            "`b` did nothing meanwhile"
        );
        let all = [("b".into(), 5000), ("a".into(), 360), ("c".into(), 7)];
        assert_eq!(busy(None, &now), all);
        // A node that has started again counts from zero.
        let restarted = answers(&[(1, 5, keys(&[("a", 40)]))], "keys");
        assert_eq!(busy(Some(&before), &restarted), [("a".into(), 40)]);
        // Of one that did not respond before, nothing is known of the time between.
        let third = answers(&[(3, 90, keys(&[("a", 9_000_000)]))], "keys");
        assert!(busy(Some(&before), &third).is_empty());
    }

    #[test]
    fn what_a_definition_stores_is_not_added_up_and_what_grows_comes_first() {
        let rows_with = |grows: u64, shrinks: u64| {
            vec![
                json!({"config_definition_key": "large", "configs": 7, "stored_bytes": 5_000_000, "requests": 1}),
                json!({"config_definition_key": "grows", "configs": 1, "stored_bytes": grows, "requests": 9}),
                json!({"config_definition_key": "shrinks", "configs": 1, "stored_bytes": shrinks}),
            ]
        };
        let before = answers(&[(1, 9, rows_with(10, 900)), (2, 9, rows_with(0, 900))], "definitions");
        // Node 2 has not applied the newest write.
        let now = answers(&[(1, 20, rows_with(4010, 800)), (2, 20, rows_with(2000, 800))], "definitions");
        let found = |order, before| {
            let found = rows(TopKind::Definitions, order, before, &now);
            found.iter().map(|row| cell(&row["config_definition_key"])).collect::<Vec<_>>()
        };
        assert_eq!(found(TopOrder::Stored, None), ["large", "grows", "shrinks"]);
        assert_eq!(found(TopOrder::Grown, Some(&before)), ["grows", "large", "shrinks"]);
        let all = rows(TopKind::Definitions, TopOrder::Grown, Some(&before), &now);
        let grown: Vec<_> = all.iter().map(|row| row["grown_bytes"].as_i64().unwrap()).collect();
        assert_eq!(grown, [4000, 0, -100]);
        let since_start = rows(TopKind::Definitions, TopOrder::Stored, None, &now);
        assert_eq!((&since_start[0]["requests"], &since_start[0]["stored"]), (&json!(2), &json!("5000 kB")));
        assert_eq!(since_start[0]["grown"], Value::Null);
    }
}
