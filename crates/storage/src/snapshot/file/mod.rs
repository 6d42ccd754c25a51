//! The format of a snapshot file: one whole state, in blocks with a checksum each.
//!
//! ```text
//! frame 0          `CONCSNAP` · header (postcard): format, feature level, position, revision, time, counts, digest,
//!                  compaction revision, whether root is disabled
//! frames 1..n      01 · length of the block `u32le` · the block, compressed; a block holds whole records:
//!                  a definition, then its configs ascending by key; after all of them the requests, oldest first;
//!                  then the access keys, ascending by id; then the anchors of the audit logs;
//!                  then the system records, ascending by kind
//! last frame       02 · blocks `u64le` · records `u64le` · checksum of the blocks' checksums `u32le`
//! ```
//!
//! The order of the records is fixed, so that equal states at one position give equal files.
//!
//! In an encrypted directory all of this is the content of an encrypted file (`at_rest/stream.rs`).
//!
//! A snapshot is written while the node serves requests, which a core that is busy for seconds would delay. So after
//! each piece of the file that is durable, the writer rests as long as it worked.
//!
//! | file | what it does |
//! |---|---|
//! | `header` | the first frame |
//! | `fuzz` | snapshot files for the fuzzer |
//!
//! **Invariants:** a file that ends early, holds more than was written or differs in one bit is never accepted as a
//! snapshot. Writing takes at most half of a core, unless a piece takes longer than the longest rest.

mod header;

use std::{
    fmt,
    fs::File,
    io::{BufReader, BufWriter, ErrorKind, Read, Write},
    path::Path,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub(crate) use self::header::Header;
use crate::{
    Position, StoreError,
    at_rest::{
        AtRest, KeyPurpose,
        stream::{DecryptingReader, Sink},
    },
    files::{self, FileFrame, InPieces, io},
};
use concord_model::{
    access_key::AccessKey,
    audit::AuditAnchors,
    encoding,
    record::{Config, Definition},
    system::SystemRecord,
};
use concord_state::{RememberedOutcome, State, builder::StateBuilder};

const BLOCK: u8 = 1;
const FOOTER: u8 = 2;
/// A block exceeds its setting by one record at most; a longer one is damage and must not be allocated.
const BLOCK_BYTES_MAX: usize = 1 << 30;
/// No bytes compress to less than a part in so many: one byte of LZ4 repeats at most 255 bytes.
const COMPRESSION_MAX: usize = 256;

/// A record as it is written; [`SnapshotRecord`] is what is read. Both have the same variants in the same order.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) enum SnapshotRecordRef<'a> {
    /// The configs up to the next definition belong to it.
    Definition(&'a Definition),
    Config(&'a Config),
    Request(&'a RememberedOutcome),
    AccessKey(&'a AccessKey),
    AuditAnchors(&'a AuditAnchors),
    System(&'a SystemRecord),
}

/// A record as it is read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) enum SnapshotRecord {
    Definition(Definition),
    Config(Config),
    Request(RememberedOutcome),
    AccessKey(AccessKey),
    AuditAnchors(AuditAnchors),
    System(SystemRecord),
}

/// The last frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct SnapshotTotals {
    blocks: u64,
    records: u64,
    check: u32,
    /// Bytes of the blocks before they were compressed: not in the frame.
    content_bytes: u64,
}

impl SnapshotTotals {
    fn block(&mut self, length: u32, check: u32) {
        self.blocks += 1;
        self.content_bytes += u64::from(length);
        self.check = crc32c::crc32c_append(self.check, &check.to_le_bytes());
    }

    fn to_bytes(self) -> Vec<u8> {
        [&[FOOTER][..], &self.blocks.to_le_bytes(), &self.records.to_le_bytes(), &self.check.to_le_bytes()]
            .concat()
    }
}

/// Writes a file record by record.
#[derive(Debug)]
pub(super) struct SnapshotWriter {
    file: BufWriter<Sink<Paced>>,
    name: String,
    block: Vec<u8>,
    block_bytes: usize,
    totals: SnapshotTotals,
}

impl SnapshotWriter {
    pub(super) fn create(
        path: &Path,
        header: &Header,
        block_bytes: usize,
        at_rest: &AtRest,
    ) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let failed = || format!("can't create {name}");
        let file = File::create(path).map_err(io(failed()))?;
        let file = Sink::new(Paced::new(file), at_rest, KeyPurpose::Snapshot).map_err(io(failed()))?;
        let mut writer = Self {
            file: BufWriter::with_capacity(256 << 10, file),
            name,
            block: Vec::with_capacity(block_bytes + block_bytes / 4),
            block_bytes,
            totals: SnapshotTotals::default(),
        };
        writer.frame(&header.to_bytes())?;
        Ok(writer)
    }

    pub(super) fn record(&mut self, record: SnapshotRecordRef<'_>) -> Result<(), StoreError> {
        let block = std::mem::take(&mut self.block);
        self.block = encoding::append(block, &record);
        self.totals.records += 1;
        if self.block.len() >= self.block_bytes { self.end_block() } else { Ok(()) }
    }

    /// Ends the file and makes its bytes durable; returns the bytes of its content. The caller makes its name durable.
    pub(super) fn finish(mut self) -> Result<u64, StoreError> {
        self.end_block()?;
        let footer = self.totals.to_bytes();
        self.frame(&footer)?;
        let failed = format!("can't write {}", self.name);
        let file = self.file.into_inner().map_err(|error| io(failed.clone())(error.into_error()))?;
        file.finish().and_then(Paced::finish).map_err(io(failed))?;
        Ok(self.totals.content_bytes)
    }

    fn end_block(&mut self) -> Result<(), StoreError> {
        if self.block.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(self.block.len()).map_err(|_| {
            StoreError::Damaged(format!("a record of {} bytes does not fit a snapshot", self.block.len()))
        })?;
        let mut frame = vec![BLOCK];
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&lz4_flex::block::compress(&self.block));
        let check = self.frame(&frame)?;
        self.totals.block(length, check);
        self.block.clear();
        Ok(())
    }

    fn frame(&mut self, bytes: &[u8]) -> Result<u32, StoreError> {
        files::write_frame(&mut self.file, bytes).map_err(io(format!("can't write {}", self.name)))
    }
}

/// Reads a file record by record.
#[derive(Debug)]
pub(super) struct SnapshotReader {
    file: BufReader<SnapshotSource>,
    name: String,
    pub(super) header: Header,
    block: Vec<u8>,
    /// How much of the block has been read.
    offset: usize,
    /// What has been read.
    totals: SnapshotTotals,
}

impl SnapshotReader {
    pub(super) fn open(path: &Path, at_rest: &AtRest) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(io(format!("can't open {name}")))?;
        let file = DecryptingReader::new(file, at_rest, KeyPurpose::Snapshot).map_err(read_error(&name))?;
        Self::new(SnapshotSource::File(file), name)
    }

    fn new(content: SnapshotSource, name: String) -> Result<Self, StoreError> {
        let mut file = BufReader::with_capacity(256 << 10, content);
        let damaged = |what: &str| StoreError::Damaged(format!("{name} is damaged: {what}"));
        let header = match files::read_frame(&mut file).map_err(read_error(&name))? {
            FileFrame::Whole(bytes, _) => Header::from_bytes(&bytes, &name)?,
            FileFrame::End => return Err(damaged("it is empty")),
            FileFrame::Cut(what) | FileFrame::Damaged(what) => {
                return Err(StoreError::Damaged(format!(
                    "{name} is damaged, or is neither a snapshot nor a backup: {what}"
                )));
            }
        };
        Ok(Self { file, name, header, block: Vec::new(), offset: 0, totals: SnapshotTotals::default() })
    }

    /// The next record; `None` at the end, once the whole file was valid.
    pub(super) fn next(&mut self) -> Result<Option<SnapshotRecord>, StoreError> {
        while self.offset == self.block.len() {
            match self.next_block()? {
                Some(frame) => self.decompress(&frame)?,
                None => return self.end().map(|()| None),
            }
        }
        let (record, rest) = postcard::take_from_bytes(&self.block[self.offset..])
            .map_err(|_| self.damaged("a record can't be decoded"))?;
        self.offset = self.block.len() - rest.len();
        self.totals.records += 1;
        Ok(Some(record))
    }

    /// Reads the rest without decompressing it and compares the checksums.
    pub(super) fn verify(mut self) -> Result<Header, StoreError> {
        while self.next_block()?.is_some() {}
        Ok(self.into_header())
    }

    /// The header of a file that was read through.
    fn into_header(self) -> Header {
        Header { content_bytes: self.totals.content_bytes, ..self.header }
    }

    /// The next block's frame; `None` after the footer, whose checksum over the blocks has been compared.
    fn next_block(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        match files::read_frame(&mut self.file).map_err(read_error(&self.name))? {
            FileFrame::Whole(bytes, check) if bytes.first() == Some(&BLOCK) => {
                self.totals.block(self.block_length(&bytes)?.0, check);
                Ok(Some(bytes))
            }
            FileFrame::Whole(bytes, _) => self.footer(&bytes).map(|()| None),
            FileFrame::End => Err(self.damaged("it ends early")),
            FileFrame::Cut(what) | FileFrame::Damaged(what) => Err(self.damaged(what)),
        }
    }

    /// The length of a frame's block, and the block, compressed.
    fn block_length<'a>(&self, frame: &'a [u8]) -> Result<(u32, &'a [u8]), StoreError> {
        let rest = frame.get(1..).and_then(|rest| rest.split_first_chunk::<4>());
        let (length, compressed) = rest.ok_or_else(|| self.damaged("a block has no length"))?;
        Ok((u32::from_le_bytes(*length), compressed))
    }

    fn decompress(&mut self, frame: &[u8]) -> Result<(), StoreError> {
        let (length, compressed) = self.block_length(frame)?;
        let length = length as usize;
        // What can't be is not allocated: a checksum shows damage, but not who wrote the file.
        if length > BLOCK_BYTES_MAX || length > compressed.len().saturating_mul(COMPRESSION_MAX) {
            return Err(self.damaged("a block is too long"));
        }
        self.block = lz4_flex::block::decompress(compressed, length)
            .map_err(|_| self.damaged("a block can't be decompressed"))?;
        self.offset = 0;
        if self.block.len() == length { Ok(()) } else { Err(self.damaged("a block has another length")) }
    }

    fn footer(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let records = bytes
            .get(9..)
            .and_then(|rest| rest.first_chunk::<8>())
            .map(|records| u64::from_le_bytes(*records))
            .ok_or_else(|| self.damaged("its footer is too short"))?;
        let expected = SnapshotTotals { records, ..self.totals };
        if expected.to_bytes() != bytes {
            return Err(self.damaged("its footer counts different blocks"));
        }
        if self.file.read(&mut [0]).map_err(read_error(&self.name))? != 0 {
            return Err(self.damaged("there are bytes after its footer"));
        }
        // The header's count is compared with the footer's here, and by `end` with the records that were
        // read.
        self.block.clear();
        self.offset = 0;
        if records == self.header.records() {
            Ok(())
        } else {
            Err(self.damaged("its header and its footer count different records"))
        }
    }

    fn end(&self) -> Result<(), StoreError> {
        if self.totals.records == self.header.records() {
            Ok(())
        } else {
            Err(self.damaged("it holds another number of records than its header says"))
        }
    }

    pub(super) fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged(format!("{} is damaged: {what}", self.name))
    }
}

/// The error of a read: what can't be decrypted is damaged.
pub(super) fn read_error(name: &str) -> impl FnOnce(std::io::Error) -> StoreError + use<> {
    let name = name.to_owned();
    move |error| {
        if error.kind() == ErrorKind::InvalidData {
            StoreError::Damaged(format!("{name}: {error}"))
        } else if error.kind() == ErrorKind::Unsupported {
            StoreError::Newer(format!("{name}: {error}"))
        } else {
            io(format!("can't read {name}"))(error)
        }
    }
}

/// Writes a state to a file and returns its header. The caller renames the file and makes its name durable.
pub(crate) fn write(
    path: &Path,
    state: &State,
    position: &Position,
    block_bytes: usize,
    at_rest: &AtRest,
) -> Result<Header, StoreError> {
    #[cfg(feature = "sabotage")]
    let without_requests = without_requests(state);
    #[cfg(feature = "sabotage")]
    let state = without_requests.as_ref().unwrap_or(state);
    let header = Header::of(state, position);
    let mut writer = SnapshotWriter::create(path, &header, block_bytes, at_rest)?;
    for collection in state.stored_definitions() {
        writer.record(SnapshotRecordRef::Definition(&collection.definition))?;
        for config in collection.by_key.from(0) {
            writer.record(SnapshotRecordRef::Config(&config.record))?;
        }
    }
    for request in state.requests() {
        writer.record(SnapshotRecordRef::Request(request))?;
    }
    for key in state.access_keys() {
        writer.record(SnapshotRecordRef::AccessKey(key))?;
    }
    for anchors in state.audit_anchors() {
        writer.record(SnapshotRecordRef::AuditAnchors(anchors))?;
    }
    for record in state.system_records() {
        writer.record(SnapshotRecordRef::System(record))?;
    }
    Ok(Header { content_bytes: writer.finish()?, ..header })
}

/// The state without its retained requests: the bug that the sabotage build can switch on.
#[cfg(feature = "sabotage")]
fn without_requests(state: &State) -> Option<State> {
    if !concord_model::sabotage::is("requests-not-in-snapshot") {
        return None;
    }
    let mut builder = StateBuilder::new();
    for collection in state.stored_definitions() {
        builder.definition((*collection.definition).clone()).ok()?;
        for config in collection.configs() {
            builder.config(collection.definition.id, (**config).clone()).ok()?;
        }
    }
    builder.compaction_revision(state.compaction_revision());
    builder.void_revisions(state.void_revisions());
    builder.feature_level(state.feature_level());
    builder.root_disabled(state.is_root_disabled());
    for key in state.access_keys() {
        builder.access_key((**key).clone()).ok()?;
    }
    for anchors in state.audit_anchors() {
        builder.audit_anchors((**anchors).clone()).ok()?;
    }
    for record in state.system_records() {
        builder.system_record((**record).clone()).ok()?;
    }
    builder.finish(state.revision(), state.last_at()).ok()
}

/// The feature level of the state in a file.
pub(crate) fn feature_level_of(path: &Path, at_rest: &AtRest) -> Result<u32, StoreError> {
    Ok(SnapshotReader::open(path, at_rest)?.header.feature_level)
}

/// Reads the state of a file, validated by the digest that the header names.
pub(crate) fn read(path: &Path, at_rest: &AtRest) -> Result<(State, Header), StoreError> {
    state_of(SnapshotReader::open(path, at_rest)?)
}

/// The same of content that is not in a file of its own.
pub(super) fn read_content(content: SnapshotSource, name: String) -> Result<(State, Header), StoreError> {
    state_of(SnapshotReader::new(content, name)?)
}

fn state_of(mut reader: SnapshotReader) -> Result<(State, Header), StoreError> {
    let mut builder = StateBuilder::new();
    let mut definition = None;
    while let Some(record) = reader.next()? {
        let added = match record {
            SnapshotRecord::Definition(record) => {
                definition = Some(record.id);
                builder.definition(record)
            }
            SnapshotRecord::Config(record) => {
                let id = definition.ok_or_else(|| reader.damaged("a config has no definition"))?;
                builder.config(id, record)
            }
            SnapshotRecord::Request(record) => builder.request(record),
            SnapshotRecord::AccessKey(record) => builder.access_key(record),
            SnapshotRecord::AuditAnchors(record) => builder.audit_anchors(record),
            SnapshotRecord::System(record) => builder.system_record(record),
        };
        added.map_err(|error| reader.damaged(&error.0))?;
    }
    let header = &reader.header;
    builder.compaction_revision(header.compaction_revision);
    builder.void_revisions(&header.void);
    builder.feature_level(header.feature_level);
    builder.root_disabled(header.root_disabled);
    let state = builder.finish(header.revision, header.last_at).map_err(|error| reader.damaged(&error.0))?;
    if state.digest() != header.digest {
        return Err(reader.damaged("its records have another digest than its header"));
    }
    Ok((state, reader.into_header()))
}

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzz;
#[cfg(test)]
pub(crate) mod tests;

/// Where the content of a snapshot is read from.
pub(crate) enum SnapshotSource {
    File(DecryptingReader),
    /// An encrypted backup.
    Backup(Box<dyn Read + Send>),
}

impl fmt::Debug for SnapshotSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Content")
    }
}

impl Read for SnapshotSource {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::File(source) => source.read(to),
            Self::Backup(content) => content.read(to),
        }
    }
}

/// Longest rest. A piece takes longer only on an overloaded machine, where a longer rest does not help.
const REST_MAX: Duration = Duration::from_millis(100);

/// A file that is written piece by piece, with rests.
#[derive(Debug)]
struct Paced {
    file: InPieces,
    /// When the current piece was started.
    begun: Instant,
}

impl Paced {
    fn new(file: File) -> Self {
        Self { file: InPieces::new(file), begun: Instant::now() }
    }

    /// Makes the last piece durable.
    fn finish(self) -> std::io::Result<()> {
        self.file.finish().map(drop)
    }
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let worked = self.begun.elapsed();
        if self.file.end_piece()? {
            std::thread::sleep(worked.min(REST_MAX));
            self.begun = Instant::now();
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
