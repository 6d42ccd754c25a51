//! Loading a state from the trees, when a node starts.
//!
//! One thread reads the rows of configs out of sled while another makes configs of them. On its way to a row sled
//! allocates and frees several times as much as the row. On one thread these blocks would lie among the configs, and
//! what is freed would leave gaps between them that the allocator can't give back for as long as the node runs.
//!
//! **Invariant:** a state is loaded only if its records have the digest of the checkpoint.

use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

use serde::Deserialize;

use super::{
    checkpoint::Checkpoint,
    keys,
    sealing::SealedTree,
    trees::{TreeError, Trees, catch_panic, damaged_row},
};
use concord_model::{
    access_key::AccessKey,
    audit::AuditAnchors,
    record::{Config, Definition, Revision},
    system::SystemRecord,
};
use concord_state::{
    RememberedOutcome, State,
    builder::{BuildError, StateBuilder},
};

/// Bytes of rows that are passed to the other thread at once.
const PART_BYTES: usize = 256 << 10;
/// Parts that wait for the thread that makes configs.
const PARTS_WAITING: usize = 4;

/// Rows, one behind the other.
#[derive(Debug, Default)]
struct RowBatch {
    bytes: Vec<u8>,
    /// The lengths of each row's key and value.
    lengths: Vec<(usize, usize)>,
}

impl RowBatch {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.lengths.push((key.len(), value.len()));
    }

    fn each(&self, read: &mut impl FnMut(&[u8], &[u8]) -> Result<(), TreeError>) -> Result<(), TreeError> {
        let mut rest = &self.bytes[..];
        for (key, value) in &self.lengths {
            let (row, others) = rest.split_at(key + value);
            let (key, value) = row.split_at(*key);
            read(key, value)?;
            rest = others;
        }
        Ok(())
    }
}

impl Trees {
    /// Loads the state of a checkpoint, validated by its digest; also returns its approximate bytes.
    pub(crate) fn load(&self, checkpoint: &Checkpoint) -> Result<(State, u64), TreeError> {
        let state = catch_panic(|| {
            let mut rows = RecordAssembler::default();
            self.rows(SealedTree::Definitions, &self.definitions, |key, value| {
                let place = keys::split(key);
                rows.add(place, value, &mut |_, record: Definition, rows| rows.builder.definition(record))
            })?;
            rows.end(&mut |_, record: Definition, rows| rows.builder.definition(record))?;
            // Rows whose keys are hashed do not ascend by the configs' keys, as the builder asks for.
            let mut unordered = Vec::new();
            let mut take = |id, record: Config, rows: &mut RecordAssembler| {
                if self.sealing.is_some() {
                    unordered.push((id, record));
                    return Ok(());
                }
                rows.builder.config(id, record)
            };
            self.each_row_of_configs(&mut |key, value| rows.add(keys::split(key), value, &mut take))?;
            rows.end(&mut take)?;
            unordered.sort_unstable_by(|(one, a), (other, b)| (one, &a.key).cmp(&(other, &b.key)));
            for (id, config) in unordered {
                rows.builder.config(id, config).map_err(|error| TreeError::new(error.0))?;
            }
            self.rows(SealedTree::Requests, &self.requests, |_, value| {
                let request: RememberedOutcome = keys::decode(value).ok_or_else(damaged_row)?;
                rows.builder.request(request).map_err(|error| TreeError::new(error.0))
            })?;
            self.rows(SealedTree::AccessKeys, &self.access_keys, |_, value| {
                let key: AccessKey = keys::decode(value).ok_or_else(damaged_row)?;
                rows.builder.access_key(key).map_err(|error| TreeError::new(error.0))
            })?;
            self.rows(SealedTree::AuditAnchors, &self.audit_anchors, |_, value| {
                let anchors: AuditAnchors = keys::decode(value).ok_or_else(damaged_row)?;
                rows.builder.audit_anchors(anchors).map_err(|error| TreeError::new(error.0))
            })?;
            let mut take =
                |_, record: SystemRecord, rows: &mut RecordAssembler| rows.builder.system_record(record);
            self.rows(SealedTree::System, &self.system, |key, value| {
                rows.add(keys::split_system(key), value, &mut take)
            })?;
            rows.end(&mut take)?;
            let logical = rows.bytes;
            rows.builder.compaction_revision(checkpoint.compaction_revision);
            rows.builder.void_revisions(&checkpoint.void);
            rows.builder.feature_level(checkpoint.feature_level);
            rows.builder.root_disabled(checkpoint.root_disabled);
            let state = rows
                .builder
                .finish(checkpoint.revision, checkpoint.last_at)
                .map_err(|error| TreeError::new(error.0))?;
            Ok((state, logical))
        })?;
        if state.0.digest() == checkpoint.digest || concord_model::sabotage::is("digest-ignored") {
            Ok(state)
        } else {
            Err(TreeError::new("the records in sled have another digest than its checkpoint"))
        }
    }

    /// Calls `read` with each row of the tree of configs, in its order; another thread reads them out of sled.
    fn each_row_of_configs(
        &self,
        read: &mut impl FnMut(&[u8], &[u8]) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let (to, parts) = sync_channel(PARTS_WAITING);
        thread::scope(|scope| {
            let sender = thread::Builder::new().name("sled-rows".into());
            let sent = sender.spawn_scoped(scope, move || catch_panic(|| self.send_configs(&to)));
            let sent = sent.map_err(|error| TreeError::new(format!("no thread: {error}")))?;
            let taken = parts.iter().try_for_each(|part: RowBatch| part.each(read));
            // The sender learns of an error here by the end of the channel.
            drop(parts);
            let sent = sent.join().unwrap_or_else(|_| Err(TreeError::new("the thread has panicked")));
            match (sent, taken) {
                // The database must no longer be used.
                (Err(error), _) if error.panicked => Err(error),
                (sent, taken) => taken.and(sent),
            }
        })
    }

    fn send_configs(&self, to: &SyncSender<RowBatch>) -> Result<(), TreeError> {
        let send = |part| to.send(part).map_err(|_| TreeError::new("the rows are not wanted any more"));
        let mut part = RowBatch::default();
        self.rows(SealedTree::Configs, &self.configs, |key, value| {
            part.add(key, value);
            if part.bytes.len() < PART_BYTES { Ok(()) } else { send(std::mem::take(&mut part)) }
        })?;
        send(part)
    }
}

/// Bytes of a row's key beside its name: the id of a definition and the number of a chunk.
const ROW_NUMBERS_BYTES: usize = 8 + 2;

/// Joins the chunks of records while the rows of a tree are read in order.
struct RecordAssembler {
    builder: StateBuilder,
    row: Option<(Revision, Vec<u8>, u16)>,
    value: Vec<u8>,
    bytes: u64,
}

impl Default for RecordAssembler {
    fn default() -> Self {
        Self { builder: StateBuilder::new(), row: None, value: Vec::new(), bytes: 0 }
    }
}

type Finish<'a, T> = &'a mut dyn FnMut(Revision, T, &mut RecordAssembler) -> Result<(), BuildError>;

impl RecordAssembler {
    fn add<T: for<'de> Deserialize<'de>>(
        &mut self,
        place: Option<(u64, &[u8], u16)>,
        value: &[u8],
        finish: Finish<'_, T>,
    ) -> Result<(), TreeError> {
        let (id, name, chunk) = place.ok_or_else(damaged_row)?;
        self.bytes += (ROW_NUMBERS_BYTES + name.len() + value.len()) as u64;
        match &mut self.row {
            Some((last_id, last_name, last_chunk)) if *last_id == id && last_name == name => {
                if *last_chunk + 1 != chunk {
                    return Err(damaged_row());
                }
                *last_chunk = chunk;
            }
            _ => {
                self.end(finish)?;
                if chunk != 0 {
                    return Err(damaged_row());
                }
                self.row = Some((id, name.into(), 0));
            }
        }
        self.value.extend_from_slice(value);
        Ok(())
    }

    fn end<T: for<'de> Deserialize<'de>>(&mut self, finish: Finish<'_, T>) -> Result<(), TreeError> {
        let Some((id, ..)) = self.row.take() else { return Ok(()) };
        let record = keys::decode(&self.value).ok_or_else(damaged_row)?;
        self.value.clear();
        finish(id, record, self).map_err(|error| TreeError::new(error.0))
    }
}
