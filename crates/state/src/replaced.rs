//! What a snapshot of the state keeps in memory after the state has moved on.
//!
//! A state counts the bytes of its records, and what was replaced in all states before it. So the difference between
//! two states bounds what the older one holds alone, without a look at its records: texts that were replaced, and the
//! nodes of the indexes on the way to each of them.
//!
//! **Invariant:** the counts decide nothing that is agreed on; they are neither stored nor sent, and differ between
//! nodes. So their arithmetic saturates: a wrong count must not stop a node that applies.

use super::{Collection, State};
use concord_model::record::{Config, Definition};

/// Bytes of index nodes that the change of one record replaces: one path in each of four indexes.
pub(super) const NODE_BYTES_PER_CHANGE: u64 = 16 << 10;
/// Bytes of a record in addition to its text, including its share of all indexes.
pub(super) const BYTES_PER_RECORD: u64 = 512;
/// Bytes of an index entry in addition to its value.
const BYTES_PER_ENTRY: usize = 64;

/// What was replaced in all states up to one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Replaced {
    /// Bytes of records.
    bytes: u64,
    /// Changes of one record each.
    changes: u64,
}

/// The bytes of a config's text and index entries.
pub(super) fn config_bytes(config: &Config) -> u64 {
    let entries: usize = config.entries.iter().map(|entry| BYTES_PER_ENTRY + entry.value.len()).sum();
    (config.data.len() + entries) as u64
}

/// The bytes of a definition's text.
pub(super) fn definition_bytes(definition: &Definition) -> u64 {
    definition.schema.as_ref().map_or(0, |schema| schema.len() as u64)
}

impl State {
    /// Counts a replaced record, of this many bytes.
    pub(super) fn count_replaced(&mut self, bytes: u64) {
        self.replaced.bytes = self.replaced.bytes.saturating_add(bytes);
        self.replaced.changes = self.replaced.changes.saturating_add(1);
    }

    /// Counts the records of a definition that is deleted, or whose records are all replaced.
    pub(super) fn count_replaced_collection(&mut self, collection: &Collection) {
        let records = collection.by_key.len().saturating_mul(BYTES_PER_RECORD);
        self.count_replaced(collection.bytes.saturating_add(records));
    }

    /// This state in the place of another that it shares nothing with, as after a snapshot was installed.
    #[must_use]
    pub fn in_place_of(mut self, other: &Self) -> Self {
        let Replaced { bytes, changes } = other.replaced;
        let all = other.bytes.saturating_add(other.nodes_bytes());
        self.replaced = Replaced { bytes: bytes.saturating_add(all), changes: changes.saturating_add(1) };
        self
    }

    /// At most how many bytes this state keeps in memory that `newer`, a later state of the same node, does not hold.
    #[must_use]
    pub fn bytes_kept_beside(&self, newer: &Self) -> u64 {
        let bytes = newer.replaced.bytes.saturating_sub(self.replaced.bytes);
        let changes = newer.replaced.changes.saturating_sub(self.replaced.changes);
        let nodes = changes.saturating_mul(NODE_BYTES_PER_CHANGE).min(self.nodes_bytes());
        // A deleted definition counts with its nodes, so the sum of both is the limit of the first.
        bytes.min(self.bytes.saturating_add(self.nodes_bytes())).saturating_add(nodes)
    }

    /// The bytes of all indexes.
    pub(super) fn nodes_bytes(&self) -> u64 {
        let configs = self.configs.saturating_add(self.deleted_configs);
        let records = configs.saturating_add(self.by_key.len()).saturating_add(self.requests.len());
        records.saturating_mul(BYTES_PER_RECORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        access_key::Author,
        command::{Command, Expect, Proposal},
        key::Key,
        time::Timestamp,
    };

    fn apply(state: &mut State, command: Command) {
        let revision = state.revision() + 1;
        let definition_read = state.definition("d").map(|found| found.definition.revision);
        let (by, at) = ("root".into(), Timestamp(revision));
        let proposal = Proposal {
            at,
            by,
            reason: None,
            request: None,
            definition_read,
            command,
            author: Author::Root,
            tail: None,
        };
        assert!(state.apply(revision, &proposal).1.is_some());
    }

    fn write(state: &mut State, number: u64, bytes: usize) {
        let data = format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes)).into();
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse(&format!("k{number}")).unwrap());
        apply(
            state,
            Command::WriteConfig { definition, key, data, entries: Box::default(), expect: Expect::Any },
        );
    }

    #[test]
    fn an_older_state_keeps_the_records_replaced_since() {
        let mut state = State::new();
        apply(
            &mut state,
            Command::CreateDefinition { key: Key::parse("d").unwrap(), indexes: vec![], schema: None },
        );
        for number in 0..10 {
            write(&mut state, number, 100_000);
        }
        let old = state.clone();
        assert_eq!(old.bytes_kept_beside(&state), 0);
        write(&mut state, 10, 100_000);
        assert!(old.bytes_kept_beside(&state) < 100_000, "a new record replaces none");
        for number in 0..5 {
            write(&mut state, number, 10);
        }
        let kept = old.bytes_kept_beside(&state);
        assert!((500_000..600_000).contains(&kept), "{kept}");
        for number in (0..10).cycle().take(100) {
            write(&mut state, number, 100_000);
        }
        let kept = old.bytes_kept_beside(&state);
        assert!((1_000_000..1_100_000).contains(&kept), "{kept}: no more than it holds");
        let before = state.clone();
        let (key, expect) = (Key::parse("d").unwrap(), Expect::Any);
        apply(&mut state, Command::DeleteDefinition { key, expect, restrict: false, keep: None });
        assert!(before.bytes_kept_beside(&state) > 1_100_000);
        assert_eq!(state.bytes, 0);
        let installed = State::new().in_place_of(&before);
        assert!(before.bytes_kept_beside(&installed) > 1_100_000);
    }
}
