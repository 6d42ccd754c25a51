//! From records to rows: what is put into the trees and removed from them when a record changes.
//!
//! **Invariant:** an index row that is the same before and after is not written, and each row occurs once.

use super::keys;
use concord_model::{
    access_key::{AccessKey, KeyId},
    audit::{AnchoredLog, AuditAnchors},
    key::Key,
    record::{Config, Definition, IndexEntries, Revision},
    system::{SystemBody, SystemKey, SystemRecord},
};
use concord_state::RememberedOutcome;

/// A tree whose rows are records or index entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SledTable {
    Definitions,
    Configs,
    Indexes,
    Requests,
    AccessKeys,
    AuditAnchors,
    System,
}

/// A row to put, or to remove when it has no value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SledRow {
    pub(super) table: SledTable,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// Rows to put and to remove.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) list: Vec<SledRow>,
    /// Approximate bytes that are added and removed.
    pub(super) added: u64,
    pub(super) removed: u64,
}

impl Rows {
    fn put(&mut self, table: SledTable, key: Vec<u8>, value: Vec<u8>) {
        self.list.push(SledRow { table, key, value: Some(value) });
    }

    fn remove(&mut self, table: SledTable, key: Vec<u8>) {
        self.list.push(SledRow { table, key, value: None });
    }

    pub(super) fn definition(&mut self, before: Option<&Definition>, after: Option<&Definition>) {
        let Some(id) = after.or(before).map(|record| record.id) else { return };
        let rough = |record: &Definition| {
            let paths: usize = record.indexes.iter().chain(&record.unique).map(|path| path.len() + 5).sum();
            // A slot or two for each path, and the cursor of an index build.
            record.schema.as_ref().map_or(0, |schema| schema.len()) + paths + 6 * record.indexes.len() + 1024
        };
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            self.added += bytes.len() as u64;
            for (chunk, bytes) in keys::chunks(&bytes) {
                self.put(SledTable::Definitions, keys::definition(id, chunk), bytes.to_vec());
                written = chunk + 1;
            }
        }
        if let Some(before) = before {
            self.removed += rough(before) as u64;
            for chunk in written..keys::chunk_count(before, rough(before)) {
                self.remove(SledTable::Definitions, keys::definition(id, chunk));
            }
        }
    }

    pub(super) fn config(
        &mut self,
        definition: Revision,
        key: &Key,
        before: Option<&ConfigRows>,
        after: Option<&Config>,
    ) {
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            for (chunk, bytes) in keys::chunks(&bytes) {
                self.put(SledTable::Configs, keys::config(definition, key, chunk), bytes.to_vec());
                written = chunk + 1;
            }
            self.added += rough_bytes(after) as u64;
        }
        if let Some(before) = before {
            for chunk in written..before.chunks {
                self.remove(SledTable::Configs, keys::config(definition, key, chunk));
            }
            self.removed += before.bytes as u64;
        }
        self.entries(definition, key, before, after);
    }

    /// Both lists are sorted: an entry that is in one of them only is put or removed, the others are not
    /// written.
    fn entries(
        &mut self,
        definition: Revision,
        key: &Key,
        before: Option<&ConfigRows>,
        after: Option<&Config>,
    ) {
        let old = before.map_or(&[][..], |rows| &rows.entries);
        let new = after.map_or(&[][..], |record| &record.entries);
        for entry in old.iter().filter(|entry| new.binary_search(entry).is_err()) {
            self.remove(SledTable::Indexes, keys::index(definition, entry.slot, &entry.value, key));
        }
        for entry in new.iter().filter(|entry| old.binary_search(entry).is_err()) {
            self.put(SledTable::Indexes, keys::index(definition, entry.slot, &entry.value, key), Vec::new());
        }
    }

    pub(super) fn remember(&mut self, request: &RememberedOutcome) {
        self.put(SledTable::Requests, keys::request(request.revision).to_vec(), keys::encode(request));
    }

    pub(super) fn access_key(&mut self, id: &KeyId, after: Option<&AccessKey>) {
        match after {
            Some(after) => self.put(SledTable::AccessKeys, keys::access_key(id), keys::encode(after)),
            None => self.remove(SledTable::AccessKeys, keys::access_key(id)),
        }
    }

    pub(super) fn audit_anchors(&mut self, log: &AnchoredLog, after: Option<&AuditAnchors>) {
        match after {
            Some(after) => self.put(SledTable::AuditAnchors, keys::anchored_log(log), keys::encode(after)),
            None => self.remove(SledTable::AuditAnchors, keys::anchored_log(log)),
        }
    }

    pub(super) fn system(
        &mut self,
        key: &SystemKey,
        before: Option<&SystemRows>,
        after: Option<&SystemRecord>,
    ) {
        let mut written = 0;
        if let Some(after) = after {
            let bytes = keys::encode(after);
            self.added += bytes.len() as u64;
            for (chunk, bytes) in keys::chunks(&bytes) {
                self.put(SledTable::System, keys::system(key, chunk), bytes.to_vec());
                written = chunk + 1;
            }
        }
        if let Some(before) = before {
            self.removed += before.bytes as u64;
            for chunk in written..before.chunks {
                self.remove(SledTable::System, keys::system(key, chunk));
            }
        }
    }

    pub(super) fn forget(&mut self, revision: Revision) {
        self.remove(SledTable::Requests, keys::request(revision).to_vec());
    }
}

/// The rows that the trees hold of a system record.
#[derive(Debug)]
pub(super) struct SystemRows {
    chunks: u16,
    /// Approximate bytes; see [`rough_system_bytes`].
    bytes: usize,
}

impl SystemRows {
    pub(super) fn of(record: &SystemRecord) -> Self {
        let bytes = rough_system_bytes(record);
        Self { chunks: keys::chunk_count(record, bytes), bytes }
    }
}

/// The approximate bytes of a system record; at least its encoded length.
pub(super) fn rough_system_bytes(record: &SystemRecord) -> usize {
    let body = match &record.body {
        // Two times of at most ten bytes each for a freeze.
        SystemBody::Environment(environment) => 20 * environment.freezes.len(),
        SystemBody::Person(person) => person.label.as_str().len(),
        // Digests, numbers and times.
        SystemBody::Session(session) => session.name.len() + 96,
        SystemBody::Provider(_) | SystemBody::KeySet(_) => 48,
        SystemBody::Role | SystemBody::Policy => 0,
        // They have lists of lists, and are few.
        SystemBody::Change(_) | SystemBody::Content(_) | SystemBody::Rollout(_) => {
            return keys::encode(record).len();
        }
    };
    record.text.len() + record.name.as_str().len() + body + 64
}

/// The approximate bytes of a config in all trees; at least its encoded length.
pub(super) fn rough_bytes(config: &Config) -> usize {
    let key = config.key.as_str().len();
    let entries: usize = config.entries.iter().map(|entry| entry.value.len() * 2 + key + 24).sum();
    config.data.len() + key + entries + 64
}

/// The rows that the trees hold of a config.
#[derive(Debug)]
pub(super) struct ConfigRows {
    chunks: u16,
    /// Approximate bytes; see [`rough_bytes`].
    bytes: usize,
    entries: IndexEntries,
}

impl ConfigRows {
    pub(super) fn of(config: &Config) -> Self {
        let bytes = rough_bytes(config);
        Self { chunks: keys::chunk_count(config, bytes), bytes, entries: config.entries.clone() }
    }
}
