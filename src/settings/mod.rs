//! The settings of a node. Each is a flag and an environment variable (`CONCORD_*`), so that it can be a line of
//! `cluster/*.env`; the flag takes precedence.
//!
//! [`ServeArgs`] is the command line as clap parses it, [`Settings`] its checked meaning. Every error is found here,
//! before anything is opened, and reported in one line.
//!
//! **Invariants:** a secret is never shown, neither in the help nor by `Debug`. There is no default key: a node without
//! one does not start.

mod at_rest;
mod callers;
mod limits;
mod observability;
mod secrets;
mod tls;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use concord_consensus::Timers;
use concord_model::{
    access_key::Quota,
    feature::{LEVEL_MIN, level_max},
    limits::{Limits, NODE_ID_MAX},
};
use concord_net::{Member, NodeId, outgoing::address::OutgoingPolicy};
use concord_service::{self as service, Retention, membership::check_address};

pub use at_rest::{AtRestArgs, AtRestSettings};
pub use callers::CallerArgs;
pub use limits::{BODY_BYTES_MAX, LimitArgs, QuotaArgs};
pub use observability::{AuditArgs, AuditMode, LogArgs, LogFormat, TraceArgs, check_filter};
pub use secrets::{KeyArgs, RootKeys, Secret, digest_of};
pub use tls::{PeerMode, TlsArgs, TlsSettings};

use secrets::{SecretNames, read_secrets};

/// Timeouts and intervals.
#[derive(Debug, Clone, Args)]
pub struct TimeArgs {
    /// The timeout of a write, in milliseconds
    #[arg(long, env = "CONCORD_WRITE_TIMEOUT_MS", default_value_t = 10_000, value_name = "MS")]
    pub write_timeout_ms: u64,
    /// The timeout of a read, in milliseconds
    #[arg(long, env = "CONCORD_READ_TIMEOUT_MS", default_value_t = 5_000, value_name = "MS")]
    pub read_timeout_ms: u64,
    /// How long a connection that is not authenticated yet may take to send a whole request, in milliseconds
    #[arg(long, env = "CONCORD_HEADER_TIMEOUT_MS", default_value_t = 10_000, value_name = "MS")]
    pub header_timeout_ms: u64,
    /// How long an authenticated connection may be idle between two requests, in milliseconds
    #[arg(long, env = "CONCORD_IDLE_TIMEOUT_MS", default_value_t = 75_000, value_name = "MS")]
    pub idle_timeout_ms: u64,
    /// How long a client may take to accept the next part of its response, in milliseconds
    #[arg(long, env = "CONCORD_SEND_TIMEOUT_MS", default_value_t = 30_000, value_name = "MS")]
    pub send_timeout_ms: u64,
    /// How long a watch is silent before it gets a heartbeat, in milliseconds
    #[arg(long, env = "CONCORD_WATCH_HEARTBEAT_MS", default_value_t = 10_000, value_name = "MS")]
    pub watch_heartbeat_ms: u64,
    /// The interval of the leader's heartbeats, in milliseconds
    #[arg(long, env = "CONCORD_HEARTBEAT_MS", default_value_t = 200, value_name = "MS")]
    pub heartbeat_ms: u64,
    /// The shortest election timeout of a follower, in milliseconds
    #[arg(long, env = "CONCORD_ELECTION_MIN_MS", default_value_t = 600, value_name = "MS")]
    pub election_min_ms: u64,
    /// The longest election timeout of a follower, in milliseconds; also the leader's lease
    #[arg(long, env = "CONCORD_ELECTION_MAX_MS", default_value_t = 900, value_name = "MS")]
    pub election_max_ms: u64,
    /// Serve reads with `consistency=lease`; set it on all members or on none
    #[arg(long, env = "CONCORD_LEASE_READS", value_name = "BOOL", default_value_t = false,
          num_args = 0..=1, default_missing_value = "true")]
    pub lease_reads: bool,
    /// Exit when an I/O stall of the log lasts this long, in milliseconds
    #[arg(long, env = "CONCORD_LOG_STALL_TIMEOUT_MS", default_value_t = 20_000, value_name = "MS")]
    pub log_stall_timeout_ms: u64,
}

/// How much of the history is retained.
#[derive(Debug, Clone, Args)]
pub struct RetentionArgs {
    /// How many of the newest revisions are retained; older ones may be compacted. 0 retains all
    #[arg(long, env = "CONCORD_HISTORY_REVISIONS", default_value_t = 1_000_000, value_name = "N")]
    pub history_revisions: u64,
    /// For how many seconds changes are retained; older ones are compacted. 0 retains all
    #[arg(long, env = "CONCORD_HISTORY_AGE_S", default_value_t = 30 * 24 * 60 * 60, value_name = "S")]
    pub history_age_s: u64,
}

impl RetentionArgs {
    fn read(&self) -> Retention {
        let some = |number: u64| Some(number).filter(|number| *number > 0);
        let age = some(self.history_age_s).map(Duration::from_secs);
        Retention { revisions: some(self.history_revisions), age }
    }
}

/// The addresses of identity providers that a node may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IdentityCalls {
    /// Addresses of the internet
    Public,
    /// Private addresses as well, for a provider in the same network
    Any,
    /// None: the keys are in the documents of the providers
    Off,
}

impl IdentityCalls {
    fn policy(self) -> OutgoingPolicy {
        match self {
            Self::Public => OutgoingPolicy::Public,
            Self::Any => OutgoingPolicy::Any,
            Self::Off => OutgoingPolicy::Off,
        }
    }
}

/// The command line of `concord serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The id of this node, from 1. Never use the id of a node for another one, not even after the node is lost
    #[arg(long, env = "CONCORD_NODE_ID", value_name = "N")]
    pub node_id: NodeId,
    /// The data directory
    #[arg(long, env = "CONCORD_DATA_DIR", value_name = "DIR")]
    pub data_dir: PathBuf,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub at_rest: AtRestArgs,
    /// The address of the API, host:port
    #[arg(long, env = "CONCORD_API_ADDR", default_value = "127.0.0.1:8101", value_name = "ADDR")]
    pub api_addr: String,
    /// The address for peer RPCs, host:port
    #[arg(long, env = "CONCORD_PEER_ADDR", default_value = "127.0.0.1:8201", value_name = "ADDR")]
    pub peer_addr: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub key: KeyArgs,
    /// A second root key, accepted while the root key is rotated
    #[arg(long, env = "CONCORD_SECOND_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub second_api_key: Option<Secret>,
    /// The secret that the nodes of a cluster share, for unencrypted RPCs. While it is rotated, two secrets,
    /// comma-separated: the node sends the first and accepts both
    #[arg(
        long,
        env = "CONCORD_CLUSTER_SECRET",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "SECRET"
    )]
    pub cluster_secret: Vec<Secret>,
    /// A file that holds the cluster secret
    #[arg(long, env = "CONCORD_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub cluster_secret_file: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub tls: TlsArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub limits: LimitArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub times: TimeArgs,
    /// The members, comma-separated, as ID=API@PEER; a node whose state is damaged fetches a snapshot from them
    #[arg(long, env = "CONCORD_PEERS", value_delimiter = ',', value_parser = parse_member, value_name = "LIST")]
    pub peers: Vec<Member>,
    /// Bootstrap the cluster of `--peers` once all of them respond; the node with the lowest id does so, the others wait
    #[arg(long, env = "CONCORD_FORM", value_name = "BOOL", default_value_t = false,
          num_args = 0..=1, default_missing_value = "true", requires = "peers")]
    pub form: bool,
    /// Bytes of log after which a snapshot is written
    #[arg(long, env = "CONCORD_SNAPSHOT_LOG_BYTES", default_value_t = 64 << 20, value_name = "N")]
    pub snapshot_log_bytes: u64,
    /// Free bytes of the volume below which writes, except deletes, are rejected with 507
    #[arg(long, env = "CONCORD_DISK_RESERVE_BYTES", default_value_t = 256 << 20, value_name = "N")]
    pub disk_reserve_bytes: u64,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub history: RetentionArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub callers: CallerArgs,
    /// The highest feature level that this node agrees to. A lower level than this version's keeps the cluster compatible
    /// with the previous version
    #[arg(
        long,
        env = "CONCORD_FEATURE_LEVEL_MAX",
        default_value_t = level_max(),
        value_parser = clap::value_parser!(u32).range(i64::from(LEVEL_MIN)..),
        value_name = "N"
    )]
    pub feature_level_max: u32,
    /// At which addresses the leader may fetch the keys of identity providers
    #[arg(
        long,
        env = "CONCORD_IDENTITY_CALLS",
        value_enum,
        default_value = "public",
        value_name = "ADDRESSES"
    )]
    pub identity_calls: IdentityCalls,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub audit: AuditArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub quota: QuotaArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its fields are the help")]
    pub log: LogArgs,
}

/// The checked settings of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The id of this node.
    pub node_id: NodeId,
    /// The data directory.
    pub data_dir: PathBuf,
    /// What protects data on the disk.
    pub at_rest: AtRestSettings,
    /// The address of the API.
    pub api_addr: String,
    /// The address for peer RPCs.
    pub peer_addr: String,
    /// The address where metrics are read without a key.
    pub metrics_addr: Option<String>,
    /// The members that a node whose state is damaged fetches a snapshot from.
    pub peers: Vec<Member>,
    /// Whether these bootstrap a cluster by themselves.
    pub form: bool,
    /// The root keys: one, or two while they are rotated.
    pub api_keys: Vec<Secret>,
    /// Where they are read from.
    pub root_keys: RootKeys,
    /// The cluster's secrets; the first one is sent. Empty if no RPC is unencrypted.
    pub cluster_secrets: Vec<Secret>,
    /// The files of TLS.
    pub tls: TlsSettings,
    /// The limits of requests.
    pub limits: Limits,
    /// The timeout of a write.
    pub write_timeout: Duration,
    /// The timeout of a read.
    pub read_timeout: Duration,
    /// How long a connection that is not authenticated yet may take to send a whole request.
    pub header_timeout: Duration,
    /// How long an authenticated connection may be idle.
    pub idle_timeout: Duration,
    /// How long a client may take to accept the next part of its response.
    pub send_timeout: Duration,
    /// Connections of one address to a listener; by default half of all.
    pub connections_per_address: Option<usize>,
    /// The origins whose pages may use the API; `*` alone for all.
    pub cors_origins: Vec<String>,
    /// How long a watch is silent before it gets a heartbeat.
    pub watch_heartbeat: Duration,
    /// Raft's timers.
    pub timers: Timers,
    /// Bytes of log after which a snapshot is written.
    pub snapshot_log_bytes: u64,
    /// The process exits when an I/O stall of the log lasts this long.
    pub log_stall_timeout: Duration,
    /// Free bytes of the volume below which writes are rejected.
    pub disk_reserve_bytes: u64,
    /// How much of the history is retained.
    pub retention: Retention,
    /// The highest feature level of the cluster that this node agrees to.
    pub feature_level_max: u32,
    /// The addresses at which the leader may fetch the keys of identity providers.
    pub identity_calls: OutgoingPolicy,
    /// The audit log.
    pub audit: service::audit::AuditOptions,
    /// The quotas of keys that have none of their own.
    pub quotas: Quota,
    /// Failed credentials of an address in a minute; 0 for no limit.
    pub failed_credentials: u64,
    /// Threads that serve requests.
    pub worker_threads: usize,
    /// Where spans are sent, and of which requests.
    pub spans: Option<service::spans::SpanOptions>,
}

impl Settings {
    /// Overwrites the secrets, once everything that needs them has what it needs.
    pub fn forget_secrets(&mut self) {
        self.api_keys.clear();
        self.cluster_secrets.clear();
        self.root_keys.forget();
    }

    /// The members of the cluster that this node bootstraps, if it bootstraps one.
    pub fn forms(&self) -> Option<&[Member]> {
        let first = self.peers.iter().map(|member| member.id).min();
        (self.form && first == Some(self.node_id)).then_some(&self.peers)
    }

    /// Checks a command line.
    ///
    /// # Errors
    /// The first error, in one line.
    pub fn check(args: ServeArgs) -> Result<Self, String> {
        if !(1..=NODE_ID_MAX).contains(&args.node_id) {
            return Err(format!("--node-id must be an integer from 1 to {NODE_ID_MAX}"));
        }
        for (flag, address) in [("--api-addr", &args.api_addr), ("--peer-addr", &args.peer_addr)] {
            check_address(address).map_err(|text| format!("{flag}: {text}"))?;
        }
        let mut ids = BTreeSet::new();
        if let Some(twice) = args.peers.iter().find(|member| !ids.insert(member.id)) {
            return Err(format!("--peers names node {} twice", twice.id));
        }
        let (limits, timers) = (args.limits.check()?, args.times.check()?);
        check_at_least("--snapshot-log-bytes", args.snapshot_log_bytes, 1 << 12)?;
        at_rest::check_files(&args)?;
        let names = SecretNames {
            flag: "--cluster-secret",
            file_flag: "--cluster-secret-file",
            env: "CONCORD_CLUSTER_SECRET",
        };
        let secrets: Vec<_> = args.cluster_secret.into_iter().filter(|secret| !secret.0.is_empty()).collect();
        let tls = args.tls.check(&args.api_addr, &args.peer_addr)?;
        let cluster_secrets = match (&secrets, &args.cluster_secret_file) {
            (given, None) if given.is_empty() && !tls.has_plain_calls() => Vec::new(),
            _ => read_secrets(secrets, args.cluster_secret_file.as_ref(), &names)?,
        };
        let audit = args.audit.check(&args.data_dir)?;
        let spans = args.log.traces.check(&args.api_addr, tls.callers.is_some())?;
        let root_keys = RootKeys::new(args.key, args.second_api_key, cluster_secrets.clone());
        let api_keys = root_keys.read()?;
        Ok(Self {
            audit,
            quotas: args.quota.quotas(),
            failed_credentials: args.quota.failed_credentials_per_minute,
            node_id: args.node_id,
            data_dir: args.data_dir,
            at_rest: args.at_rest.check()?,
            api_addr: args.api_addr,
            peer_addr: args.peer_addr,
            metrics_addr: args.log.metrics_addr()?,
            peers: args.peers,
            form: args.form,
            api_keys,
            root_keys,
            cluster_secrets,
            tls,
            limits,
            write_timeout: Duration::from_millis(args.times.write_timeout_ms),
            read_timeout: Duration::from_millis(args.times.read_timeout_ms),
            header_timeout: Duration::from_millis(args.times.header_timeout_ms),
            idle_timeout: Duration::from_millis(args.times.idle_timeout_ms),
            send_timeout: Duration::from_millis(args.times.send_timeout_ms),
            cors_origins: args.callers.origins()?,
            connections_per_address: args.callers.connections_per_address.filter(|most| *most > 0),
            watch_heartbeat: Duration::from_millis(args.times.watch_heartbeat_ms),
            timers,
            snapshot_log_bytes: args.snapshot_log_bytes,
            log_stall_timeout: Duration::from_millis(args.times.log_stall_timeout_ms),
            disk_reserve_bytes: args.disk_reserve_bytes,
            feature_level_max: args.feature_level_max,
            identity_calls: args.identity_calls.policy(),
            retention: args.history.read(),
            worker_threads: args.callers.worker_threads()?,
            spans,
        })
    }
}

impl TimeArgs {
    fn check(&self) -> Result<Timers, String> {
        const HOUR_MS: u64 = 60 * 60 * 1000;
        for (flag, value) in [
            ("--write-timeout-ms", self.write_timeout_ms),
            ("--read-timeout-ms", self.read_timeout_ms),
            ("--header-timeout-ms", self.header_timeout_ms),
            ("--idle-timeout-ms", self.idle_timeout_ms),
            ("--send-timeout-ms", self.send_timeout_ms),
            ("--watch-heartbeat-ms", self.watch_heartbeat_ms),
            ("--heartbeat-ms", self.heartbeat_ms),
            ("--election-max-ms", self.election_max_ms),
            ("--log-stall-timeout-ms", self.log_stall_timeout_ms),
        ] {
            check_at_least(flag, value, 10)?;
            if value > HOUR_MS {
                return Err(format!("{flag} must be at most {HOUR_MS}"));
            }
        }
        check_at_least("--log-stall-timeout-ms", self.log_stall_timeout_ms, 1000)?;
        if self.election_min_ms <= self.heartbeat_ms || self.election_max_ms <= self.election_min_ms {
            return Err("--heartbeat-ms, --election-min-ms and --election-max-ms must ascend".into());
        }
        Ok(Timers {
            heartbeat_ms: self.heartbeat_ms,
            election_min_ms: self.election_min_ms,
            election_max_ms: self.election_max_ms,
            lease_reads: self.lease_reads,
        })
    }
}

/// Parses a member of the command line.
///
/// # Errors
/// When it is not `ID=API_HOST:PORT@PEER_HOST:PORT`.
pub fn parse_member(text: &str) -> Result<Member, String> {
    let parts = text.split_once('=').and_then(|(id, rest)| Some((id, rest.split_once('@')?)));
    let (id, (api_addr, peer_addr)) = parts.ok_or("expected ID=API_HOST:PORT@PEER_HOST:PORT")?;
    check_address(api_addr)?;
    check_address(peer_addr)?;
    match id.parse() {
        Ok(id) if id > 0 => Ok(Member { id, api_addr: api_addr.into(), peer_addr: peer_addr.into() }),
        _ => Err(format!("`{id}` is not a node id")),
    }
}

fn check_at_least(flag: &str, value: u64, minimum: u64) -> Result<(), String> {
    (value >= minimum).then_some(()).ok_or_else(|| format!("{flag} must be at least {minimum}"))
}

#[cfg(test)]
mod tests;
