//! The limits of requests and of clients, and the values that an operator may set.
//!
//! **Invariants:** the accepted values fit together: data and schemas into a body, a body into a peer RPC, a config and
//! its response into the memory of requests. The root key has no quota, whatever is set here.

use clap::Args;

use concord_model::{
    access_key::Quota,
    limits::{BATCH_STEPS_MAX, Limits},
};

/// Largest value of `--body-bytes`: a write of such a body must fit into a peer RPC.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Least value of `--in-flight-bytes`: a config of the default limit and its response fit into it.
const IN_FLIGHT_BYTES_MIN: usize = 32 << 20;

/// The limits of requests; each rejection names its limit.
#[derive(Debug, Clone, Args)]
pub struct LimitArgs {
    /// Largest request body, in bytes
    #[arg(long, env = "CONCORD_BODY_BYTES", default_value_t = Limits::default().body_bytes, value_name = "N")]
    pub body_bytes: usize,
    /// Largest data of a config, in bytes
    #[arg(long, env = "CONCORD_DATA_BYTES", default_value_t = Limits::default().data_bytes, value_name = "N")]
    pub data_bytes: usize,
    /// Largest schema of a definition, in bytes
    #[arg(long, env = "CONCORD_SCHEMA_BYTES", default_value_t = Limits::default().schema_bytes, value_name = "N")]
    pub schema_bytes: usize,
    /// Deepest nesting of JSON, in levels
    #[arg(long, env = "CONCORD_JSON_DEPTH", default_value_t = Limits::default().json_depth, value_name = "N")]
    pub json_depth: usize,
    /// Most indexed fields of a definition
    #[arg(long, env = "CONCORD_INDEXES", default_value_t = Limits::default().indexes, value_name = "N")]
    pub indexes: usize,
    /// Most operations of a batch
    #[arg(long, env = "CONCORD_BATCH_OPERATIONS", default_value_t = 1000, value_name = "N")]
    pub batch_operations: usize,
    /// Most records of a page
    #[arg(long, env = "CONCORD_PAGE_LIMIT", default_value_t = Limits::default().page_limit, value_name = "N")]
    pub page_limit: usize,
    /// Most concurrent writes of this node; more are rejected with 429
    #[arg(
        long, env = "CONCORD_WRITES_IN_FLIGHT", default_value_t = Limits::default().writes_in_flight,
        value_name = "N"
    )]
    pub writes_in_flight: usize,
    /// Most open watches of this node; more are rejected with 429
    #[arg(long, env = "CONCORD_WATCHES", default_value_t = Limits::default().watches, value_name = "N")]
    pub watches: usize,
    /// Memory for requests in flight and for the states retained for cursors and watches, in bytes; requests that do not
    /// fit are rejected with 429
    #[arg(
        long, env = "CONCORD_IN_FLIGHT_BYTES", default_value_t = Limits::default().in_flight_bytes,
        value_name = "N"
    )]
    pub in_flight_bytes: usize,
    /// Memory up to which deleted definitions are kept, in bytes, so that `concord definition undelete` can undo their
    /// deletion; 0 keeps none
    #[arg(
        long, env = "CONCORD_DELETED_BYTES", default_value_t = Limits::default().deleted_bytes,
        value_name = "N"
    )]
    pub deleted_bytes: u64,
}

impl LimitArgs {
    pub(super) fn check(&self) -> Result<Limits, String> {
        for (flag, value) in [
            ("--body-bytes", self.body_bytes),
            ("--data-bytes", self.data_bytes),
            ("--schema-bytes", self.schema_bytes),
            ("--json-depth", self.json_depth),
            ("--batch-operations", self.batch_operations),
            ("--page-limit", self.page_limit),
            ("--writes-in-flight", self.writes_in_flight),
            ("--watches", self.watches),
        ] {
            if value == 0 {
                return Err(format!("{flag} must be at least 1"));
            }
        }
        if self.body_bytes > BODY_BYTES_MAX {
            return Err(format!("--body-bytes must be at most {BODY_BYTES_MAX}"));
        }
        if self.in_flight_bytes < IN_FLIGHT_BYTES_MIN {
            return Err(format!("--in-flight-bytes must be at least {IN_FLIGHT_BYTES_MIN}"));
        }
        if self.data_bytes.max(self.schema_bytes) > self.body_bytes {
            return Err("--data-bytes and --schema-bytes must be at most --body-bytes".into());
        }
        // The JSON parser stops at 127 levels; an index entry names its path in 16 bits.
        if self.json_depth > 100 || self.indexes > 1000 || self.batch_operations > BATCH_STEPS_MAX {
            return Err("at most: --json-depth 100, --indexes 1000, --batch-operations 1024".into());
        }
        if self.page_limit > 100_000 || self.writes_in_flight > 1_000_000 || self.watches > 1_000_000 {
            return Err(
                "--page-limit must be at most 100000, --writes-in-flight and --watches at most 1000000"
                    .into(),
            );
        }
        Ok(Limits {
            body_bytes: self.body_bytes,
            data_bytes: self.data_bytes,
            schema_bytes: self.schema_bytes,
            json_depth: self.json_depth,
            indexes: self.indexes,
            batch_operations: self.batch_operations,
            page_limit: self.page_limit,
            writes_in_flight: self.writes_in_flight,
            watches: self.watches,
            in_flight_bytes: self.in_flight_bytes,
            deleted_bytes: self.deleted_bytes,
        })
    }
}

/// The quotas of keys that have none of their own, and the limit on failed credentials.
#[derive(Debug, Clone, Args)]
pub struct QuotaArgs {
    /// Failed credentials of one address in a minute; further requests of the address are rejected with 429 before their
    /// credential is checked. 0: no limit
    #[arg(long, env = "CONCORD_FAILED_CREDENTIALS_PER_MINUTE", default_value_t = 10, value_name = "N")]
    pub failed_credentials_per_minute: u64,
    /// Requests per second of an access key without such a quota of its own; by default no limit
    #[arg(long, env = "CONCORD_KEY_REQUESTS_PER_SECOND", value_name = "N")]
    pub key_requests_per_second: Option<u64>,
    /// Writes per second of such a key
    #[arg(long, env = "CONCORD_KEY_WRITES_PER_SECOND", value_name = "N")]
    pub key_writes_per_second: Option<u64>,
    /// Open watches of such a key
    #[arg(long, env = "CONCORD_KEY_WATCHES", value_name = "N")]
    pub key_watches: Option<u64>,
    /// Cursors of such a key
    #[arg(long, env = "CONCORD_KEY_CURSORS", value_name = "N")]
    pub key_cursors: Option<u64>,
    /// Concurrent lists of such a key
    #[arg(long, env = "CONCORD_KEY_LISTS", value_name = "N")]
    pub key_lists: Option<u64>,
}

impl QuotaArgs {
    /// The quotas of a key without its own. Bytes and records are limited for the cluster, not by a node.
    pub(super) fn quotas(&self) -> Quota {
        Quota {
            requests_per_second: self.key_requests_per_second,
            writes_per_second: self.key_writes_per_second,
            bytes: None,
            records: None,
            watches: self.key_watches,
            cursors: self.key_cursors,
            lists: self.key_lists,
        }
    }
}
