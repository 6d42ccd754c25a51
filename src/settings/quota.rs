//! How much callers may ask of this node: the quotas of access keys that have none of their own, and failed
//! credentials.
//!
//! **Invariant:** the root key has no quota, whatever is set here.

use clap::Args;

use concord_model::access_key::Quota;

/// The quotas of keys that have none of their own, and the limit on failed credentials.
#[derive(Debug, Clone, Args)]
pub struct QuotaArgs {
    /// Failed credentials of one address in a minute; beyond, its requests are refused with 429 before their credential is
    /// looked at. 0 allows as many as come
    #[arg(long, env = "CONCORD_FAILED_CREDENTIALS_PER_MINUTE", default_value_t = 10, value_name = "N")]
    pub failed_credentials_per_minute: u64,
    /// Requests a second of an access key that has no such quota of its own; by default as many as come
    #[arg(long, env = "CONCORD_KEY_REQUESTS_PER_SECOND", value_name = "N")]
    pub key_requests_per_second: Option<u64>,
    /// Writes a second of such a key
    #[arg(long, env = "CONCORD_KEY_WRITES_PER_SECOND", value_name = "N")]
    pub key_writes_per_second: Option<u64>,
    /// Open watches of such a key
    #[arg(long, env = "CONCORD_KEY_WATCHES", value_name = "N")]
    pub key_watches: Option<u64>,
    /// Cursors of such a key
    #[arg(long, env = "CONCORD_KEY_CURSORS", value_name = "N")]
    pub key_cursors: Option<u64>,
    /// Lists of such a key that are computed at once
    #[arg(long, env = "CONCORD_KEY_LISTS", value_name = "N")]
    pub key_lists: Option<u64>,
}

impl QuotaArgs {
    /// What counts for a key that has none of its own. Bytes and records are decided for the cluster, not by a node.
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
