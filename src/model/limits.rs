//! Every limit of a body, page, queue, wait and retry, with its reason. What a user may set is in [`Limits`].

use serde::{Deserialize, Serialize};

/// Longest key in bytes: what a path segment of common file systems and proxies holds.
pub const KEY_BYTES_MAX: usize = 255;
/// Longest reason of a change in bytes; it rides in every log entry.
pub const REASON_BYTES_MAX: usize = 1024;
/// Longest idempotency key in bytes: a UUID is 36, a digest in hex 64.
pub const REQUEST_KEY_BYTES_MAX: usize = 255;
/// Answers of requests with an idempotency key that the cluster remembers at most: about 100 bytes each.
pub const REQUESTS_MAX: usize = 100_000;
/// How long such an answer is remembered, by the log's time: a day, as the makers of payment services do.
pub const REQUEST_AGE_US: u64 = 24 * 60 * 60 * 1_000_000;
/// Filters of one list query: each costs an index look-up.
pub const FILTERS_MAX: usize = 64;
/// Values of one filter (`in`, repeated equality).
pub const FILTER_VALUES_MAX: usize = 1000;
/// Violations that an answer lists: enough to mend a document, bounded for a hostile one.
pub const VIOLATIONS_MAX: usize = 1000;
/// Scalars of one config that one index takes: an array is indexed by element.
pub const INDEX_ENTRIES_MAX: usize = 10_000;
/// Changes that a node keeps in memory for its watchers: those of some seconds at the highest load.
pub const FEED_EVENTS_MAX: usize = 16_384;
/// Bytes of such changes, with the records that they replaced.
pub const FEED_BYTES_MAX: usize = 64 << 20;
/// Definitions or configs that one watch names.
pub const WATCH_KEYS_MAX: usize = 64;

/// Configs up to which a definition is indexed anew in the one entry that changes its paths: some 10 ms.
pub const INDEX_AT_ONCE_MAX: u64 = 1000;
/// Configs that one step of a build passes: some 5 ms, in which no other write is decided.
pub const INDEX_STEP_CONFIGS: usize = 250;
/// Bytes of data after which a step ends, whatever the number: they are parsed.
pub const INDEX_STEP_BYTES: usize = 512 << 10;
/// What one JSON Patch may cost, roughly in bytes that it copies and elements that it moves: some 100 ms at worst.
pub const PATCH_WORK_MAX: usize = 32 << 20;

/// The limits that a node's settings may change. They bound intake only: what has been agreed on is never
/// refused later, so nodes with different limits agree all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Bytes of a config's data.
    pub data_bytes: usize,
    /// Bytes of a schema.
    pub schema_bytes: usize,
    /// Nesting of a JSON text.
    pub json_depth: usize,
    /// Indexed paths of a definition.
    pub indexes: usize,
    /// Operations of a batch.
    pub batch_operations: usize,
    /// Records of a page.
    pub page_limit: usize,
    /// Writes that a node works on at once; more get 429 at once.
    pub writes_in_flight: usize,
    /// Watches that are open on a node at once; more get 429.
    pub watches: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            data_bytes: 1 << 20,
            schema_bytes: 256 << 10,
            json_depth: 64,
            indexes: 64,
            batch_operations: 1000,
            page_limit: 1000,
            writes_in_flight: 4096,
            watches: 10_000,
        }
    }
}
