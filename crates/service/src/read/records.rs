//! The records of a list or of a page: cut into pages, and pages into chunks that fit one RPC.
//!
//! **Invariant:** consecutive pages, and consecutive chunks, join without a gap and without an overlap.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use concord_model::record::{Config, Definition};
use concord_state::query::AcrossRecord;

/// A chunk ends after this many bytes of records. A page of the largest records is larger than one RPC may be.
const CHUNK_BYTES: usize = 4 << 20;

/// The sorted records of a list or of a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ListRecords {
    /// Definitions.
    Definitions(Vec<Arc<Definition>>),
    /// Configs.
    Configs(Vec<Arc<Config>>),
    /// Configs of several definitions.
    Across(Vec<AcrossRecord>),
}

impl Default for ListRecords {
    fn default() -> Self {
        Self::Definitions(Vec::new())
    }
}

impl ListRecords {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Definitions(records) => records.len(),
            Self::Configs(records) => records.len(),
            Self::Across(records) => records.len(),
        }
    }

    /// The total bytes of their data or schemas.
    pub(super) fn bytes(&self) -> u64 {
        let bytes: usize = match self {
            Self::Definitions(records) => {
                records.iter().map(|record| record.schema.as_ref().map_or(0, |text| text.len())).sum()
            }
            Self::Configs(records) => records.iter().map(|record| record.data.len()).sum(),
            Self::Across(records) => records.iter().map(|record| record.config.data.len()).sum(),
        };
        bytes as u64
    }

    /// The records of one page.
    pub(super) fn page(&self, page: u64, limit: u64) -> Self {
        let from = page.saturating_sub(1).saturating_mul(limit);
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(self.len());
        let (from, to) = (index(from), index(from.saturating_add(limit)));
        match self {
            Self::Definitions(records) => Self::Definitions(records[from..to].to_vec()),
            Self::Configs(records) => Self::Configs(records[from..to].to_vec()),
            Self::Across(records) => Self::Across(records[from..to].to_vec()),
        }
    }

    /// The chunk that begins at the index `from`, and the number of records after it.
    pub(super) fn chunk(self, from: usize) -> (Self, u64) {
        match self {
            Self::Definitions(records) => {
                let bytes = |record: &Arc<Definition>| record.schema.as_ref().map_or(0, |text| text.len());
                let (chunk, left) = chunk(records, from, bytes);
                (Self::Definitions(chunk), left)
            }
            Self::Configs(records) => {
                let (chunk, left) = chunk(records, from, |record| record.data.len());
                (Self::Configs(chunk.iter().map(without_entries).collect()), left)
            }
            Self::Across(records) => {
                let (mut chunk, left) = chunk(records, from, |record| record.config.data.len());
                for record in &mut chunk {
                    record.config = without_entries(&record.config);
                }
                (Self::Across(chunk), left)
            }
        }
    }

    /// Appends records of the same kind.
    pub(super) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Definitions(records), Self::Definitions(more)) => records.extend(more),
            (Self::Configs(records), Self::Configs(more)) => records.extend(more),
            (Self::Across(records), Self::Across(more)) => records.extend(more),
            // The page is still empty and has the default kind.
            (all @ (Self::Definitions(_) | Self::Configs(_) | Self::Across(_)), more) => *all = more,
        }
    }
}

/// A config without its index entries, which the receiving node does not need.
fn without_entries(config: &Arc<Config>) -> Arc<Config> {
    Arc::new(Config { entries: Box::default(), ..Config::clone(config) })
}

/// The records from the index `from` on, up to the one that reaches [`CHUNK_BYTES`], and the number of records after
/// them.
fn chunk<R>(records: Vec<R>, from: usize, bytes: impl Fn(&R) -> usize) -> (Vec<R>, u64) {
    let mut sum = 0_usize;
    let rest = records.len().saturating_sub(from);
    let fits = |record: &R| {
        let before = sum;
        sum = sum.saturating_add(bytes(record));
        before < CHUNK_BYTES
    };
    let chunk: Vec<R> = records.into_iter().skip(from).take_while(fits).collect();
    let left = rest.saturating_sub(chunk.len()) as u64;
    (chunk, left)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use concord_model::{key::Key, time::Timestamp};

    pub(in crate::read) fn configs(number: usize, bytes: usize) -> ListRecords {
        let config = |place: usize| Config {
            key: Key::parse(&format!("k{place}")).unwrap(),
            data: "x".repeat(bytes).into(),
            entries: Box::default(),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 1,
        };
        ListRecords::Configs((0..number).map(|place| Arc::new(config(place))).collect())
    }

    #[test]
    fn pages_and_chunks_join_without_gap_or_overlap() {
        let all = configs(10, CHUNK_BYTES / 2);
        let mut joined = all.page(1, 4);
        for page in 2..=4 {
            joined.append(all.page(page, 4));
        }
        assert_eq!(joined, all);
        assert_eq!(all.page(u64::MAX, u64::MAX).len(), 0);
        let (mut received, mut left) = all.clone().chunk(0);
        assert_eq!((received.len(), left), (2, 8));
        while left > 0 {
            let (more, rest) = all.clone().chunk(received.len());
            received.append(more);
            left = rest;
        }
        assert_eq!(received, all);
        assert_eq!(configs(1, CHUNK_BYTES * 2).chunk(0).0.len(), 1, "one record always fits");
        assert_eq!(configs(1, 1).chunk(5), (ListRecords::Configs(Vec::new()), 0));
    }
}
