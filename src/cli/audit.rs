//! The commands `audit verify`, `audit tail`, `audit export`, `audit list`, `audit anchors` and `audit accept`.
//!
//! Each node has a log of its own. `list` merges the logs of all members by time, whichever node responds: it reads those
//! of the others. The other commands are about one log.
//!
//! **Invariants:** a line is printed exactly as in the log, so that its hash can be verified. If `list` could not read a
//! log to its end, it says so and fails.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use concord_client::Client;
use concord_formats::yaml;
use concord_model::time::Timestamp;
use http::Method;
use serde_json::{Value, json};

use super::{
    connection::{Failure, NodeArgs, TryArgs, ask, run_with_client, with_cluster},
    output::{Columns, Format, OutputArgs, line, print_columns, print_done, text},
};
use concord_service::audit::verify::{AnchorCounts, AuditReport, KnownAnchor, logs, verify};

/// How often `tail --follow` asks for new lines.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);
/// The path of the anchors.
const ANCHORS: &str = "/api/v1/audit/anchors";
/// Bytes of a file of anchors at most: many times as many as a cluster has.
const ANCHORS_BYTES_MAX: u64 = 64 << 20;
/// Lines per request.
const PAGE_LINES: u64 = 1000;

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Verify that no line of an audit log was changed, removed or inserted
    Verify {
        /// The directory of an audit log, or exported files of one log in their order; several logs are verified one after
        /// another
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// A line noted earlier, as NUMBER:HASH; fail unless the log still has it
        #[arg(long, value_name = "HEAD")]
        head: Option<String>,
        /// The output of `concord audit anchors` as a file, or `-` for stdin: fail unless the logs have the anchored lines
        #[arg(long, value_name = "FILE")]
        anchors: Option<PathBuf>,
        #[command(flatten)]
        format: OutputArgs,
    },
    /// Print the latest lines of a node's audit log
    Tail {
        #[command(flatten)]
        node: NodeArgs,
        /// Number of lines
        #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
        lines: u64,
        /// Keep printing new lines
        #[arg(short, long)]
        follow: bool,
    },
    /// Print a node's audit log, oldest first
    Export {
        #[command(flatten)]
        node: NodeArgs,
        /// Only lines after this line number
        #[arg(long, default_value_t = 0, value_name = "N")]
        after: u64,
        #[command(flatten)]
        filter: AuditFilter,
    },
    /// Print the audit logs of all members, merged by time, oldest first
    List {
        #[command(flatten)]
        node: NodeArgs,
        #[command(flatten)]
        filter: AuditFilter,
    },
    /// Print the anchors of the audit logs of all nodes: lines that the cluster remembers
    Anchors {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Accept that the audit log of a node does not have its anchors, because you have replaced the log
    Accept {
        /// The id of the node
        #[arg(value_name = "ID")]
        id: u64,
        #[command(flatten)]
        node: NodeArgs,
        #[command(flatten)]
        tries: TryArgs,
    },
}

/// Selects lines; without a filter they form the chain that `verify` checks.
#[derive(Debug, Default, Args)]
pub(super) struct AuditFilter {
    /// Only lines from this time on (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only lines before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only requests made with this access key
    #[arg(long, value_name = "ID")]
    key_id: Option<String>,
    /// Only requests about this definition
    #[arg(long, value_name = "KEY")]
    definition: Option<String>,
    /// Only requests about the config with this key
    #[arg(long, value_name = "KEY")]
    config: Option<String>,
    /// Only requests from this IP address
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Only requests with this outcome: `ok`, or an error type
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<String>,
}

impl AuditFilter {
    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let pairs = [
            ("since", &self.since),
            ("until", &self.until),
            ("key", &self.key_id),
            ("definition", &self.definition),
            ("outcome", &self.outcome),
        ];
        for (name, value) in pairs {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }

    /// Whether to print a line. The API has no parameter for these.
    fn accepts(&self, line: &Value) -> bool {
        let is = |name: &str, wanted: &Option<String>| {
            wanted.as_ref().is_none_or(|wanted| line[name].as_str() == Some(wanted))
        };
        is("config", &self.config) && is("address", &self.address)
    }
}

pub(super) fn run(command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::Verify { paths, head, anchors, format } => {
            let logs = logs(&paths).map_err(Failure::Failed)?;
            if logs.len() > 1 && head.is_some() {
                let text =
                    "--head is a line of one log, but these are the logs of several nodes: verify each alone";
                return Err(Failure::Usage(text.into()));
            }
            let anchors = anchors.map_or_else(|| Ok(Vec::new()), |path| read_anchors(&path))?;
            let verified = logs.iter().map(|paths| verify(paths, head.as_deref(), &anchors));
            let reports = verified.collect::<Result<Vec<_>, _>>().map_err(Failure::Failed)?;
            print_reports(&reports, &format.or_table())
        }
        AuditCommand::Tail { node, lines, follow } => {
            node.require_one_node()?;
            let printer = Printer::new(node.format.or(Format::Jsonl));
            run_with_client(&node, async |client| tail(&client, printer, lines, follow).await)
        }
        AuditCommand::Export { node, after, filter } => {
            node.require_one_node()?;
            let printer = Printer::new(node.format.or(Format::Jsonl));
            run_with_client(&node, async |client| {
                follow_pages(&client, &printer, &filter, after).await.map(drop)
            })
        }
        AuditCommand::List { node, filter } => {
            let printer = Printer::new(node.format.or_table());
            run_with_client(&node, async |client| {
                let logs = NodeLog::all(&client, &filter).await?;
                list(logs, &printer, &filter).await
            })
        }
        AuditCommand::Anchors { node } => {
            let format = node.format.or(Format::Json);
            run_with_client(&node, async |client| {
                let data = ask(&client, Method::GET, ANCHORS, None).await?;
                print_anchors(&format, &data)
            })
        }
        AuditCommand::Accept { id, node, tries } => {
            let format = node.format.or_table();
            with_cluster(&node, &tries, async |client| {
                let data = ask(&client, Method::POST, &format!("{ANCHORS}/{id}/accept"), None).await?;
                print_done(&format, &data, "node_id", format!("audit log of node {id} accepted"))
            })
        }
    }
}

/// Reads the anchors that `audit anchors` has printed.
fn read_anchors(path: &Path) -> Result<Vec<KnownAnchor>, Failure> {
    let mut text = Vec::new();
    let read = |mut from: Box<dyn Read>, text: &mut Vec<u8>| from.read_to_end(text);
    let opened: io::Result<Box<dyn Read>> = if path == Path::new("-") {
        Ok(Box::new(io::stdin().take(ANCHORS_BYTES_MAX)))
    } else {
        File::open(path).map(|file| Box::new(file.take(ANCHORS_BYTES_MAX)) as Box<dyn Read>)
    };
    let failed = |why: &dyn std::fmt::Display| Failure::Failed(format!("{}: {why}", path.display()));
    opened.and_then(|from| read(from, &mut text)).map_err(|error| failed(&error))?;
    KnownAnchor::parse_all(&text).map_err(|why| failed(&format!("not the anchors of audit logs: {why}")))
}

/// Prints the anchors: as they are, or what there is of each log.
fn print_anchors(format: &Format, data: &Value) -> Result<(), Failure> {
    if matches!(format, Format::Json | Format::Yaml | Format::Path(_)) {
        return print_done(format, data, "logs", "");
    }
    const COLUMNS: Columns = Columns {
        name: "node",
        narrow: &[
            ("NODE", "/node"),
            ("CLUSTER", "/cluster"),
            ("ANCHORS", "/anchors"),
            ("FROM", "/from"),
            ("LAST", "/last"),
            ("LINE", "/line"),
            ("ACCEPTED", "/accepted"),
        ],
        wide: &[("BY", "/by")],
    };
    let logs = data["logs"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |log: &Value| {
        let anchors = log["anchors"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |anchor: Option<&Value>, name: &str| anchor.map_or(Value::Null, |one| one[name].clone());
        json!({
            "node": log["node_id"], "cluster": log["cluster_id"], "anchors": anchors.len(),
            "from": of(anchors.first(), "at"), "last": of(anchors.last(), "at"),
            "line": of(anchors.last(), "seq"), "accepted": log["accepted"]["at"], "by": log["accepted"]["by"],
        })
    };
    print_columns(format, &logs.iter().map(row).collect(), &COLUMNS)
}

/// Prints what was found in each log; several have their nodes before them.
fn print_reports(reports: &[AuditReport], format: &Format) -> Result<(), Failure> {
    for report in reports {
        let defects: Vec<String> = report.defects.iter().map(ToString::to_string).collect();
        if !format.is_table() {
            let (lines, files) = (report.lines, report.files);
            let mut data = json!({ "lines": lines, "files": files, "head": report.head, "defects": defects });
            if report.anchors != AnchorCounts::default() {
                let AnchorCounts { matched, differing, accepted, outside } = report.anchors;
                data["anchors"] = json!({
                    "matched": matched, "differing": differing, "accepted": accepted, "outside": outside,
                });
            }
            if reports.len() > 1 {
                data["node"] = json!(report.node);
            }
            print_done(format, &data, "head", "")?;
            continue;
        }
        let node = report
            .node
            .map_or_else(|| "a log without lines".into(), |node| format!("the log of node {node}"));
        let lines = [
            format!("{} lines in {} files", report.lines, report.files),
            format!("head {}", report.head.as_deref().unwrap_or("none")),
        ];
        let AnchorCounts { matched, differing, accepted, outside } = report.anchors;
        let anchors = (report.anchors != AnchorCounts::default()).then(|| {
            format!("anchors: {matched} match, {differing} differ, {accepted} differ as accepted, {outside} are of lines outside")
        });
        let node = Some(node).filter(|_| reports.len() > 1);
        node.iter().chain(&lines).chain(&anchors).chain(&defects).try_for_each(line)?;
    }
    is_whole(reports.iter().map(|report| report.defects.len()).sum())
}

fn is_whole(defects: usize) -> Result<(), Failure> {
    match defects {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("the audit log was altered: {count} defects"))),
    }
}

/// Prints lines of the log.
struct Printer {
    format: Format,
}

impl Printer {
    fn new(format: Format) -> Self {
        Self { format }
    }

    /// Prints lines in their order. A line of JSON is the line of the log.
    fn print(&self, lines: &[&Value]) -> Result<(), Failure> {
        const COLUMNS: Columns = Columns {
            name: "seq",
            narrow: &[
                ("NODE", "/node"),
                ("SEQ", "/seq"),
                ("TIME", "/time"),
                ("KEY", "/key"),
                ("METHOD", "/method"),
                ("DEFINITION", "/definition"),
                ("CONFIG", "/config"),
                ("OUTCOME", "/outcome"),
            ],
            wide: &[
                ("VERB", "/verb"),
                ("ROUTE", "/route"),
                ("ADDRESS", "/address"),
                ("REQUEST", "/request_id"),
                ("EVENT", "/event"),
            ],
        };
        let each = |one: &&Value| {
            if self.format == Format::Yaml {
                // A document for each line, as there may be any number of them.
                text(&format!("---\n{}", yaml::write(one)))
            } else {
                print_columns(&self.format, one, &COLUMNS)
            }
        };
        match &self.format {
            Format::Table | Format::Wide | Format::Markdown if lines.is_empty() => Ok(()),
            Format::Table | Format::Wide | Format::Markdown | Format::Jsonl | Format::Name => {
                print_columns(&self.format, &lines.iter().copied().cloned().collect(), &COLUMNS)
            }
            Format::Json | Format::Yaml | Format::Path(_) => lines.iter().try_for_each(each),
        }
    }
}

async fn tail(client: &Client, printer: Printer, lines: u64, follow: bool) -> Result<(), Failure> {
    let page = page(client, &format!("limit={lines}")).await?;
    printer.print(&page.lines.iter().rev().collect::<Vec<_>>())?;
    // The newest is the first.
    let mut last = page.lines.first().and_then(seq_of).unwrap_or(0);
    if !follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(FOLLOW_PAUSE).await;
        last = follow_pages(client, &printer, &AuditFilter::default(), last).await?;
    }
}

/// Prints what comes after a line, page by page, and returns the number of the last line that was looked at.
async fn follow_pages(
    client: &Client,
    printer: &Printer,
    filter: &AuditFilter,
    mut after: u64,
) -> Result<u64, Failure> {
    let query = filter.query();
    loop {
        let page = page(client, &format!("limit={PAGE_LINES}&after={after}&{query}")).await?;
        printer.print(&page.lines.iter().filter(|line| filter.accepts(line)).collect::<Vec<_>>())?;
        after = page.lines.last().and_then(seq_of).unwrap_or(after);
        match page.next {
            Some(next) => after = next,
            None => return Ok(after),
        }
    }
}

fn no_page() -> String {
    "the response is not a page of an audit log".to_owned()
}

struct Lines {
    lines: Vec<Value>,
    next: Option<u64>,
}

async fn page(client: &Client, query: &str) -> Result<Lines, Failure> {
    let mut data = ask(client, Method::GET, &format!("/api/v1/audit?{query}"), None).await?;
    let next = data.get("meta").ok_or_else(no_page)?.get("next").and_then(Value::as_u64);
    // Members keep their order and numbers their digits, so a value written out is the text of the log again.
    let Value::Array(lines) = data["results"].take() else { return Err(no_page().into()) };
    Ok(Lines { lines, next })
}

/// When a line was written. The cluster's time comes first, so that lines of nodes with different clocks are in their order;
/// lines between two changes have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LineTime {
    cluster: Timestamp,
    host: Timestamp,
}

/// The log of one member, read page by page.
struct NodeLog {
    client: Client,
    node: u64,
    query: String,
    /// The number of the last line that was fetched; `None` after the last page.
    next: Option<u64>,
    lines: VecDeque<Value>,
    /// Why the rest of the log could not be read.
    failure: Option<Failure>,
}

impl NodeLog {
    /// The logs of all members.
    async fn all(client: &Client, filter: &AuditFilter) -> Result<Vec<Self>, Failure> {
        let data = ask(client, Method::GET, "/api/v1/audit?limit=1", None).await?;
        let nodes = data["meta"]["nodes"].as_array().ok_or_else(no_page)?;
        let log = |node: u64| {
            let query = format!("node={node}&{}", filter.query());
            Self { client: client.clone(), node, query, next: Some(0), lines: VecDeque::new(), failure: None }
        };
        Ok(nodes.iter().filter_map(Value::as_u64).map(log).collect())
    }

    /// The times of the next line, which is fetched first. `None` at the end, or when the node does not respond.
    async fn next_time(&mut self, filter: &AuditFilter) -> Option<LineTime> {
        while self.lines.is_empty()
            && let Some(after) = self.next
        {
            match page(&self.client, &format!("limit={PAGE_LINES}&after={after}&{}", self.query)).await {
                Ok(page) => {
                    self.next = page.next;
                    self.lines = page.lines.into_iter().filter(|line| filter.accepts(line)).collect();
                }
                Err(failure) => (self.next, self.failure) = (None, Some(failure)),
            }
        }
        let line = self.lines.front()?;
        let time = |name: &str| line[name].as_str().and_then(Timestamp::parse);
        let host = time("time").unwrap_or_default();
        // A line of the log itself has the host's time only.
        Some(LineTime { cluster: time("log_time").unwrap_or(host), host })
    }
}

/// Prints the lines of several logs in the order of their times.
async fn list(mut logs: Vec<NodeLog>, printer: &Printer, filter: &AuditFilter) -> Result<(), Failure> {
    let page_lines = usize::try_from(PAGE_LINES).unwrap_or(usize::MAX);
    let mut lines = Vec::new();
    loop {
        let mut earliest: Option<(LineTime, usize)> = None;
        for (place, log) in logs.iter_mut().enumerate() {
            if let Some(time) = log.next_time(filter).await
                && earliest.is_none_or(|(found, _)| time < found)
            {
                earliest = Some((time, place));
            }
        }
        let Some(line) = earliest.and_then(|(_, place)| logs[place].lines.pop_front()) else { break };
        lines.push(line);
        if lines.len() == page_lines {
            printer.print(&std::mem::take(&mut lines).iter().collect::<Vec<_>>())?;
        }
    }
    printer.print(&lines.iter().collect::<Vec<_>>())?;
    let count = logs.len();
    let failed = logs.into_iter().filter_map(|log| log.failure.map(|failure| (log.node, failure)));
    let mut failed: Vec<_> = failed.collect();
    if failed.len() == count
        && let Some((_, failure)) = failed.pop()
    {
        return Err(failure);
    }
    if failed.is_empty() {
        return Ok(());
    }
    let texts = failed.into_iter().map(|(node, failure)| {
        let why = if let Failure::Client(error) = failure { error.to_string() } else { failure.into_text() };
        format!("lines of node {node} are missing: {why}")
    });
    Err(Failure::Partial(texts.collect::<Vec<_>>().join("\n")))
}

fn seq_of(line: &Value) -> Option<u64> {
    line.get("seq")?.as_u64()
}
