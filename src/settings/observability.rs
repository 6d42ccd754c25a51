//! What a node reports about itself: its log, its metrics, the spans of requests, the audit log.
//!
//! **Invariants:** a log filter that a user sets is used as it is, except that libraries that log too much have their own
//! levels. Without a collector no span is recorded. The directory of the audit log is known before anything is opened.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
use http::{Uri, uri::Scheme};
use tracing::level_filters::LevelFilter;

use concord_model::access_key::Pattern;
use concord_service::{audit, membership::check_address, spans};

/// Levels of libraries that log too much, unless the filter names them: openraft warns of an unreachable member with
/// every heartbeat, and `raft_log` logs each operation on its files.
const LIBRARY_LEVELS: &str = "openraft=error,chunked_wal=warn,raft_log=warn";

/// The crates that log, of this program and of those that it is made of.
const LOGGING_CRATES: [&str; 22] = [
    "chunked_wal",
    "concord",
    "concord_client",
    "concord_consensus",
    "concord_flags",
    "concord_formats",
    "concord_http",
    "concord_identity",
    "concord_model",
    "concord_net",
    "concord_service",
    "concord_state",
    "concord_storage",
    "h2",
    "hyper",
    "hyper_util",
    "openraft",
    "raft_log",
    "reqwest",
    "rustls",
    "sled",
    "tower_http",
];

/// Rejects a log filter that names no level and no crate that logs: nothing would be logged.
///
/// # Errors
/// The part of the filter that has no effect.
pub fn check_filter(filter: &str) -> Result<(), String> {
    // A filter by spans has commas of its own, and belongs to those who know their names.
    if filter.contains(['[', '{']) {
        return Ok(());
    }
    let parts = filter.split(',').map(str::trim).filter(|part| !part.is_empty());
    for part in parts.filter(|part| part.parse::<LevelFilter>().is_err()) {
        let (module, level) =
            part.split_once('=').map_or((part, None), |(module, level)| (module, Some(level)));
        if level.is_some_and(|level| level.parse::<LevelFilter>().is_err()) {
            return Err(format!("`{part}`: a level is `error`, `warn`, `info`, `debug`, `trace` or `off`"));
        }
        // A name without `::` stands for all that begin with it.
        let is_known = match module.split_once("::") {
            Some((name, _)) => LOGGING_CRATES.contains(&name),
            None => LOGGING_CRATES.iter().any(|known| known.starts_with(module)),
        };
        if !is_known {
            return Err(format!(
                "`{part}` is no level (`error`, `warn`, `info`, `debug`, `trace`, `off`), and no crate that logs has this prefix"
            ));
        }
    }
    Ok(())
}

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
    /// The log filter: a level, or levels by module as in `info,concord_consensus=debug`
    #[arg(long, env = "CONCORD_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// An address that serves `/metrics` without a key, host:port; restrict who can reach it
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

/// The effect of an audit line that can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditMode {
    /// There is no audit log.
    Off,
    /// The request continues, and the node raises an alarm.
    On,
    /// Writes are rejected. A write gets its response when its line is on the disk.
    Strict,
}

/// A log that is anchored less than once in an hour can be rewritten unnoticed for too long.
const ANCHOR_SECONDS_MAX: u64 = 3600;

/// The audit log.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// The audit log: `off`; `on`: requests never wait for it, and an alarm counts lost lines; `strict`: no write is carried
    /// out without its line
    #[arg(long, env = "CONCORD_AUDIT", value_enum, default_value = "on", value_name = "MODE")]
    pub audit: AuditMode,
    /// The directory of the audit log; by default `audit` in the data directory
    #[arg(long, env = "CONCORD_AUDIT_DIR", value_name = "DIR")]
    pub audit_dir: Option<PathBuf>,
    /// Definitions whose reads are recorded, comma-separated: keys, or key prefixes with `*` at the end; `*` records all
    /// reads
    #[arg(long, env = "CONCORD_AUDIT_READS", value_delimiter = ',', value_parser = parse_pattern, value_name = "LIST")]
    pub audit_reads: Vec<Pattern>,
    /// Size of an audit log file at which the next one begins, in bytes
    #[arg(long, env = "CONCORD_AUDIT_FILE_BYTES", default_value_t = 64 << 20, value_name = "N")]
    pub audit_file_bytes: u64,
    /// Most audit log files; the oldest is removed when the next one begins
    #[arg(long, env = "CONCORD_AUDIT_FILES", default_value_t = 16, value_name = "N")]
    pub audit_files: usize,
    /// How often the node anchors its audit log in the replicated state, if it has new lines, in seconds; 0 for never
    #[arg(long, env = "CONCORD_AUDIT_ANCHOR_SECONDS", default_value_t = 60, value_name = "S")]
    pub audit_anchor_seconds: u64,
    /// The syslog server that gets each line of the audit log: `tcp://host:port`, `udp://host:port` or `unix:///path`; by
    /// default none
    #[arg(long, env = "CONCORD_AUDIT_SYSLOG", value_name = "URL")]
    pub audit_syslog: Option<String>,
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|error| error.to_string())
}

impl AuditArgs {
    /// The checked settings.
    ///
    /// # Errors
    /// When a file could hold nothing, or none would be retained.
    pub(super) fn check(self, data_dir: &Path) -> Result<audit::AuditOptions, String> {
        if self.audit_file_bytes < 1 << 12 {
            return Err("--audit-file-bytes must be at least 4096".into());
        }
        if self.audit_files < 2 {
            return Err("--audit-files must be at least 2".into());
        }
        if self.audit_anchor_seconds > ANCHOR_SECONDS_MAX {
            return Err(format!(
                "--audit-anchor-seconds must be at most {ANCHOR_SECONDS_MAX}, or 0 for never"
            ));
        }
        let anchor_interval =
            (self.audit_anchor_seconds > 0).then(|| Duration::from_secs(self.audit_anchor_seconds));
        let given = self.audit_syslog.as_deref().filter(|text| !text.is_empty());
        let syslog = given.map(|text| audit::SyslogTarget::parse(text, check_address)).transpose();
        let syslog = syslog.map_err(|why| format!("--audit-syslog: {why}"))?;
        if syslog.is_some() && self.audit == AuditMode::Off {
            return Err("--audit-syslog needs an audit log, and --audit is `off`".into());
        }
        let mode = match self.audit {
            AuditMode::Off => audit::AuditPolicy::Off,
            AuditMode::On => audit::AuditPolicy::Alarm,
            AuditMode::Strict => audit::AuditPolicy::Strict,
        };
        Ok(audit::AuditOptions {
            mode,
            directory: self.audit_dir.unwrap_or_else(|| data_dir.join(audit::DIRECTORY)),
            reads: self.audit_reads,
            file_bytes: self.audit_file_bytes,
            files_max: self.audit_files,
            anchor_interval,
            syslog,
        })
    }
}

/// The collector of spans.
#[derive(Debug, Clone, Default, Args)]
pub struct TraceArgs {
    /// A collector of spans by OTLP over HTTP, as `http[s]://host:port`; spans are sent to its `/v1/traces`; by default none
    #[arg(long, env = "CONCORD_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// The share of requests without a `traceparent` that begin a trace, 0 to 1; a `traceparent` decides for its own request
    #[arg(long, env = "CONCORD_OTLP_SAMPLE", default_value_t = 0.0, value_name = "SHARE")]
    pub otlp_sample: f64,
    /// CA certificates to verify the collector with, in PEM; by default the CAs that this machine trusts
    #[arg(long, env = "CONCORD_OTLP_CA_FILE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,
}

impl TraceArgs {
    /// Where spans are sent, if they are. They name the address of the client listener, and whether it is encrypted.
    ///
    /// # Errors
    /// When the address or the share is invalid, or this program was built without `otlp`.
    pub(super) fn check(
        &self,
        api_addr: &str,
        is_encrypted: bool,
    ) -> Result<Option<spans::SpanOptions>, String> {
        if !(0.0..=1.0).contains(&self.otlp_sample) {
            return Err("--otlp-sample must be 0 to 1".into());
        }
        let given = self.otlp_endpoint.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let Some(endpoint) = given else { return Ok(None) };
        if cfg!(not(feature = "otlp")) {
            return Err("--otlp-endpoint: this program was built without the feature `otlp`".into());
        }
        let url = traces_url(endpoint)?;
        let authority = self.otlp_ca_file.clone().filter(|file| !file.as_os_str().is_empty());
        if authority.is_some() {
            // It is read again when the first span is sent.
            let tls = concord_client::Tls { authority: authority.clone(), own: None };
            drop(tls.config(true).map_err(|error| format!("--otlp-ca-file: {error}"))?);
        }
        Ok(Some(spans::SpanOptions {
            url,
            authority,
            sample: self.otlp_sample,
            address: api_addr.to_owned(),
            is_encrypted,
        }))
    }
}

/// The URL that spans are sent to.
fn traces_url(endpoint: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "--otlp-endpoint: `{}` is no address of a collector: expected http[s]://host:port",
            shown(endpoint)
        )
    };
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    let is_http = uri.scheme().is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
    if !is_http || uri.query().is_some() || authority.host().is_empty() {
        return Err(wrong());
    }
    // The address is logged.
    if authority.as_str().contains('@') {
        return Err("--otlp-endpoint must hold no user and no password".into());
    }
    Ok(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
}

/// A text as an error repeats it: not what may be a password.
fn shown(endpoint: &str) -> &str {
    endpoint.rsplit('@').next().unwrap_or(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(endpoint: &str, sample: f64) -> Result<Option<String>, String> {
        let args =
            TraceArgs { otlp_endpoint: Some(endpoint.into()), otlp_sample: sample, otlp_ca_file: None };
        args.check("127.0.0.1:8101", false).map(|options| options.map(|options| options.url))
    }

    #[test]
    fn a_filter_that_would_log_nothing_is_rejected() {
        for good in [
            "",
            "info",
            "OFF",
            " warn , concord_http=debug",
            "concord=trace",
            "concord_consensus::log=debug",
            "openraft=error,chunked_wal=warn,raft_log=warn,info",
            "concord_service[request{path=a,b=c}]=info",
            "concord_http",
        ] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for wrong in ["inof", "info,concrod_http=debug", "concord_http=inof", "concord_hhtp::server=info"] {
            assert!(check_filter(wrong).is_err(), "{wrong}");
        }
        // The package of the client has the name that is free in its registry.
        let lock = include_str!("../../Cargo.lock")
            .replace("concord-config-client", "concord-client")
            .replace('-', "_");
        for name in LOGGING_CRATES {
            assert!(lock.contains(&format!("name = \"{name}\"")), "{name}");
        }
        let own = lock.lines().filter_map(|line| line.strip_prefix("name = \"concord")?.strip_suffix('"'));
        // No node has the simulation.
        for name in own.filter(|name| *name != "_simulation") {
            assert!(LOGGING_CRATES.contains(&format!("concord{name}").as_str()), "concord{name}");
        }
    }

    #[test]
    fn nothing_is_sent_without_an_address() {
        assert!(TraceArgs::default().check("a:1", false).unwrap().is_none());
        assert_eq!(checked(" ", 1.0).unwrap(), None);
    }

    #[test]
    fn a_share_is_0_to_1() {
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(checked("", wrong).unwrap_err().contains("--otlp-sample"), "{wrong}");
        }
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn an_address_is_that_of_a_collector() {
        for (given, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://c.example/", "https://c.example/v1/traces"),
            ("http://[::1]:4318/a/b", "http://[::1]:4318/a/b/v1/traces"),
        ] {
            assert_eq!(checked(given, 0.5).unwrap().as_deref(), Some(url));
        }
        for wrong in ["127.0.0.1:4318", "grpc://a:4317", "/v1/traces", "http://", "http://a/?key=b", "a b"] {
            assert!(checked(wrong, 0.0).unwrap_err().contains("no address of a collector"), "{wrong}");
        }
        for secret in ["http://user:hidden@a:4318", "x://user:hidden@a"] {
            assert!(!checked(secret, 0.0).unwrap_err().contains("hidden"), "{secret}");
        }
    }
}
