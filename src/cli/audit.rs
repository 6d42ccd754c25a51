//! The commands `audit verify`, `audit tail` and `audit export`.
//!
//! **Invariant:** a line is printed as it stands in the log, so that its hash can be checked.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::{Failure, NodeArgs, client::Client, run_with_client};
use crate::service::audit::verify::{Report, verify};

/// How often `tail --follow` asks for new lines.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);
/// Lines that are asked for at once.
const PAGE_LINES: u64 = 1000;

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Check that no line of an audit log was changed, removed or inserted
    Verify {
        /// The directory of an audit log, or files of one log in their order, as `export` writes them
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Number and hash of a line that were noted earlier, as NUMBER:HASH: the log must still have this line
        #[arg(long, value_name = "HEAD")]
        head: Option<String>,
    },
    /// Print the newest lines of a node's audit log
    Tail {
        #[command(flatten)]
        node: NodeArgs,
        /// How many lines
        #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
        lines: u64,
        /// Go on with the lines that are added
        #[arg(short, long)]
        follow: bool,
    },
    /// Print a node's audit log, oldest line first
    Export {
        #[command(flatten)]
        node: NodeArgs,
        #[command(flatten)]
        filter: Filter,
    },
}

/// Which lines are exported; all of them form a chain that `verify` checks.
#[derive(Debug, Args)]
pub(super) struct Filter {
    /// After the line with this number
    #[arg(long, default_value_t = 0, value_name = "N")]
    after: u64,
    /// From this time on, as RFC 3339 has it
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Of this key
    #[arg(long, value_name = "ID")]
    key_id: Option<String>,
    /// About this definition
    #[arg(long, value_name = "KEY")]
    definition: Option<String>,
    /// With this outcome: `ok`, or the type of an error
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<String>,
}

impl Filter {
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
}

pub(super) fn run(command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::Verify { paths, head } => {
            let report = verify(&paths, head.as_deref()).map_err(Failure::Failed)?;
            print_report(&report)
        }
        AuditCommand::Tail { node, lines, follow } => {
            run_with_client(&node, async |client| tail(&client, lines, follow).await)
        }
        AuditCommand::Export { node, filter } => run_with_client(&node, async |client| {
            follow_pages(&client, &filter.query(), filter.after).await.map(drop)
        }),
    }
}

fn print_report(report: &Report) -> Result<(), Failure> {
    let lines = [
        format!("{} lines in {} files", report.lines, report.files),
        format!("head {}", report.head.as_deref().unwrap_or("none")),
    ];
    let defects = report.defects.iter().map(ToString::to_string);
    for line in lines.into_iter().chain(defects) {
        print(&line).map_err(Failure::Failed)?;
    }
    match report.defects.len() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("the audit log is not as it was written, in {count} places"))),
    }
}

fn print(line: &str) -> Result<(), String> {
    writeln!(io::stdout(), "{line}").map_err(|error| format!("standard output: {error}"))
}

async fn tail(client: &Client, lines: u64, follow: bool) -> Result<(), String> {
    let page = page(client, &format!("limit={lines}")).await?;
    for line in page.lines.iter().rev() {
        print(line)?;
    }
    // The newest is the first.
    let mut last = page.lines.first().and_then(|line| seq_of(line)).unwrap_or(0);
    if !follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(FOLLOW_PAUSE).await;
        last = follow_pages(client, "", last).await?;
    }
}

/// Prints what comes after a line, page by page, and returns the number of the last line that was looked at.
async fn follow_pages(client: &Client, filter: &str, mut after: u64) -> Result<u64, String> {
    loop {
        let page = page(client, &format!("limit={PAGE_LINES}&after={after}&{filter}")).await?;
        for line in &page.lines {
            print(line)?;
            after = seq_of(line).unwrap_or(after);
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(after),
        }
    }
}

struct Lines {
    lines: Vec<String>,
    next: Option<u64>,
}

async fn page(client: &Client, query: &str) -> Result<Lines, String> {
    let data = client.call(Method::GET, &format!("/api/v1/audit?{query}"), None).await?;
    let no_page = || "the answer is no page of an audit log".to_owned();
    let results = data.get("results").and_then(Value::as_array).ok_or_else(no_page)?;
    // Members keep their order and numbers their digits, so this is the text of the log again.
    let lines = results.iter().map(Value::to_string).collect();
    let next = data.get("meta").ok_or_else(no_page)?.get("next").and_then(Value::as_u64);
    Ok(Lines { lines, next })
}

fn seq_of(line: &str) -> Option<u64> {
    serde_json::from_str::<Value>(line).ok()?.get("seq")?.as_u64()
}
