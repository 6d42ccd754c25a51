//! What a node tells of itself: what it logs and how, where its metrics are read, where its spans go.
//!
//! **Invariant:** a filter that a user gives is used as it is, but for libraries that log too much.

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;

use super::traces::TraceArgs;
use concord_service::membership::check_address;

/// Levels of libraries that log too much, unless the filter names them: openraft warns of an unreachable member with
/// every heartbeat, and `raft_log` logs each operation on its files.
const LIBRARY_LEVELS: &str = "openraft=error,chunked_wal=warn,raft_log=warn";

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What is logged, and how.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// The format of log lines
    #[arg(long, env = "CONCORD_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// The log filter: a level, or levels by module as in `info,concord::raft=debug`
    #[arg(long, env = "CONCORD_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// An address where `/metrics` is read without a key, host:port; only whoever may see it may reach it
    #[arg(long, env = "CONCORD_METRICS_ADDR", value_name = "ADDR")]
    pub metrics_addr: Option<String>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub traces: TraceArgs,
}

impl LogArgs {
    /// The address of the listener of metrics, if there is one.
    pub(super) fn metrics_addr(&self) -> Result<Option<String>, String> {
        let given = self.metrics_addr.as_ref().filter(|address| !address.is_empty());
        given.map_or(Ok(()), |address| {
            check_address(address).map_err(|text| format!("--metrics-addr: {text}"))
        })?;
        Ok(given.cloned())
    }

    /// The filter, preceded by `LIBRARY_LEVELS` unless it is a single level that logs less than `warn`, which those
    /// would raise.
    #[must_use]
    pub fn filter(&self) -> String {
        let is_quieter = self.log.parse::<LevelFilter>().is_ok_and(|level| level < LevelFilter::WARN);
        if is_quieter { self.log.clone() } else { format!("{LIBRARY_LEVELS},{}", self.log) }
    }
}
