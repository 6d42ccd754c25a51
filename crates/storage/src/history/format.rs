//! The format of a stored change and of the segment files that hold changes.
//!
//! ```text
//! frame 0          00 · `CONCHIST` · format `u16le` · the revision after which the segment begins `u64le`
//! frames 1..n      01 · a change (postcard)              of one proposal
//!                  02 · revision `u64le`                 the applied mark: nothing more changed up to here
//! last but one     04 · the index (postcard): where the changes of each record are         if sealed
//! last frame       03 · frames `u64le` · last revision `u64le` · checksum of the frames' checksums `u32le` ·
//!                       offset of the index `u64le`                                        if sealed
//! ```
//!
//! The first frame of an encrypted segment has format 2 and continues with 16 random bytes; every frame after it is
//! encrypted (`frames`). Its other content is the same.
//!
//! A segment is named by the revision after which it begins: `segment-<20 digits>.open` while it is appended
//! to, `.sealed` when it is immutable. A stored edit names the revision of the record that it replaced; when
//! that record is in an older segment, the edit embeds the replaced record itself.
//!
//! **Invariant:** a segment alone shows what each record that changed in it was before and after: removing
//! older segments takes nothing from it.

use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{frames, segment_index::Index};
use crate::{
    StoreError,
    at_rest::{self, AtRest, FileKey},
    files::{self, FileFrame, io},
};
use concord_model::{
    encoding,
    key::Key,
    record::{Config, Definition, Revision, VoidRevisions},
    system::SystemRecord,
    time::Timestamp,
};
use concord_state::{Change, Edit, RememberedOutcome};

const MAGIC: &[u8; 8] = b"CONCHIST";
const FORMAT: u16 = 1;
/// The format of an encrypted segment.
const FORMAT_SEALED: u16 = 2;
/// Random bytes in the head of an encrypted segment.
const ID_BYTES: usize = 16;
// The kind of a frame: its first byte.
const HEADER: u8 = 0;
const CHANGE: u8 = 1;
const APPLIED_MARK: u8 = 2;
const SEAL: u8 = 3;
const INDEX: u8 = 4;
/// More than the first frame of any format has.
pub(super) const HEADER_FRAME_BYTES: u64 = 4096;

/// What one proposal changed, as the history stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredChange {
    /// The revision at which it was decided.
    pub revision: Revision,
    /// The time of the change.
    pub at: Timestamp,
    /// The principal that made the change.
    pub by: String,
    /// The reason that the caller gave.
    pub reason: Option<String>,
    /// Its edits, in order.
    pub edits: Vec<StoredEdit>,
}

/// One record's part of a stored change. New variants go to the end: the order is part of the format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredEdit {
    /// A definition was created, changed or deleted; deleting it deletes all its configs.
    Definition {
        /// The revision that created it.
        id: Revision,
        /// Its key.
        key: Key,
        /// The revision of the record that was replaced; `None` when it is new.
        before: Option<Revision>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Definition>>,
    },
    /// All configs of the definition were indexed again.
    Reindexed {
        /// The definition's id.
        definition: Revision,
    },
    /// A config was created, changed or deleted.
    Config {
        /// The definition's id.
        definition: Revision,
        /// Its key.
        key: Key,
        /// The revision of the record that was replaced; `None` when it is new.
        before: Option<Revision>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Config>>,
    },
    /// The outcome of a request is retained from now on.
    Remember(RememberedOutcome),
    /// The outcome of the request that made this revision is no longer retained.
    Forget(Revision),
    /// As `Config`, when the replaced record is not in the same segment.
    ConfigWithBefore {
        /// The definition's id.
        definition: Revision,
        /// The record that was replaced.
        before: Arc<Config>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Config>>,
    },
    /// So many configs went with the deleted definition; follows its `Definition`.
    Deleted {
        /// The definition's id.
        definition: Revision,
        /// The number of its configs before the change.
        configs: u64,
        /// Whether it is kept, so that the deletion can be undone.
        kept: bool,
    },
    /// As `Definition`, when the replaced record is not in the same segment.
    DefinitionWithBefore {
        /// The record that was replaced.
        before: Arc<Definition>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<Definition>>,
    },
    /// The definition returned with so many configs, whose deletion was undone; follows its `Definition`.
    Undeleted {
        /// The definition's id.
        definition: Revision,
        /// The number of its configs.
        configs: u64,
    },
    /// A deleted definition that was kept is gone for good.
    Dropped {
        /// The definition's id.
        definition: Revision,
    },
    /// A recovered cluster continues after these revisions, which no change has.
    Skipped(VoidRevisions),
    /// A system record was created, changed or deleted. Both are here: they are small.
    System {
        /// The record that was replaced; `None` when it is new.
        before: Option<Arc<SystemRecord>>,
        /// The record from now on; `None` when it was deleted.
        after: Option<Arc<SystemRecord>>,
    },
}

impl StoredChange {
    /// The stored form of a change, for a segment that begins after a revision.
    #[must_use]
    pub fn of(change: &Change, segment_after: Revision) -> Self {
        Self {
            revision: change.revision,
            at: change.at,
            by: change.by.clone(),
            reason: change.reason.clone(),
            edits: change.edits.iter().filter_map(|edit| StoredEdit::of(edit, segment_after)).collect(),
        }
    }
}

impl StoredEdit {
    /// `None` for an edit that the history does not store, and for one without a record before and after,
    /// which no change has.
    fn of(edit: &Edit, segment_after: Revision) -> Option<Self> {
        Some(match edit {
            Edit::Definition { before: Some(before), after } if before.revision <= segment_after => {
                Self::DefinitionWithBefore { before: before.clone(), after: after.clone() }
            }
            Edit::Definition { before, after } => {
                let any = after.as_ref().or(before.as_ref())?;
                Self::Definition {
                    id: any.id,
                    key: any.key.clone(),
                    before: before.as_ref().map(|record| record.revision),
                    after: after.clone(),
                }
            }
            Edit::Reindexed { definition } => Self::Reindexed { definition: *definition },
            Edit::Undeleted { kept, configs } => Self::Undeleted { definition: kept.id, configs: *configs },
            Edit::Deleted { definition, configs, kept } => {
                Self::Deleted { definition: *definition, configs: *configs, kept: kept.is_some() }
            }
            Edit::Dropped { kept } => Self::Dropped { definition: kept.id },
            Edit::Skipped(void) => Self::Skipped(*void),
            Edit::System { .. } if !edit.is_in_history() => return None,
            Edit::System { before, after } => Self::System { before: before.clone(), after: after.clone() },
            Edit::Config { definition, before: Some(before), after } if before.revision <= segment_after => {
                Self::ConfigWithBefore {
                    definition: *definition,
                    before: before.clone(),
                    after: after.clone(),
                }
            }
            Edit::Config { definition, before, after } => Self::Config {
                definition: *definition,
                key: after.as_ref().or(before.as_ref())?.key.clone(),
                before: before.as_ref().map(|record| record.revision),
                after: after.clone(),
            },
            Edit::Remember(request) => Self::Remember(request.clone()),
            Edit::Forget(request) => Self::Forget(request.revision),
            Edit::Entries { .. }
            | Edit::Building { .. }
            | Edit::AuditAnchors { .. }
            | Edit::AccessKey { .. } => return None,
        })
    }
}

/// The format of a segment whose first frame this is; `None` when it is none.
fn format_of(first_frame: &[u8]) -> Option<u16> {
    let format = first_frame.strip_prefix(&[HEADER])?.strip_prefix(MAGIC)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*format))
}

/// Rejects a segment whose first frame is whole and of a format that this version does not know.
pub(crate) fn refuse_newer(path: &Path) -> Result<(), StoreError> {
    let name = path.display().to_string();
    let mut file = File::open(path).map_err(io(format!("can't open {name}")))?;
    // Only the header's bytes: a damaged length must not read the whole file.
    let first = files::read_frame(&mut (&mut file).take(HEADER_FRAME_BYTES))
        .map_err(io(format!("can't read {name}")))?;
    match first {
        FileFrame::Whole(bytes, _) => match format_of(&bytes) {
            Some(format) if !(FORMAT..=FORMAT_SEALED).contains(&format) => {
                Err(StoreError::unknown_format(&name, format, FORMAT..=FORMAT_SEALED))
            }
            Some(_) | None => Ok(()),
        },
        FileFrame::End | FileFrame::Cut(_) | FileFrame::Damaged(_) => Ok(()),
    }
}

/// The first frame of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// The revision after which the segment begins.
    pub(super) after: Revision,
    /// What the key of an encrypted one is derived from.
    pub(super) id: Option<[u8; ID_BYTES]>,
}

impl SegmentHead {
    fn to_bytes(self) -> Vec<u8> {
        let format = if self.id.is_some() { FORMAT_SEALED } else { FORMAT };
        let id = self.id.as_ref().map_or(&[][..], |id| id);
        [&[HEADER][..], MAGIC, &format.to_le_bytes(), &self.after.to_le_bytes(), id].concat()
    }

    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let format = format_of(frame)?;
        let (after, rest) = frame.get(1 + MAGIC.len() + 2..)?.split_first_chunk::<8>()?;
        let id = match format {
            FORMAT if rest.is_empty() => None,
            FORMAT_SEALED => Some(rest.try_into().ok()?),
            _ => return None,
        };
        Some(Self { after: Revision::from_le_bytes(*after), id })
    }
}

/// A frame of a segment.
#[derive(Debug)]
pub(super) enum SegmentFrame {
    /// The revision after which the segment begins.
    Header(Revision),
    Change(StoredChange),
    /// The entries up to and including this one changed nothing more.
    AppliedMark(Revision),
    Seal(Seal),
    Index(Index),
}

/// What a segment's frames add up to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SegmentTotals {
    pub(super) frames: u64,
    /// The last revision that the segment covers.
    pub(super) upto: Revision,
    pub(super) check: u32,
}

/// The last frame of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) totals: SegmentTotals,
    /// The offset of the index's frame.
    pub(super) index_at: u64,
}

impl SegmentTotals {
    pub(super) fn add(&mut self, upto: Revision, check: u32) {
        self.frames += 1;
        self.upto = upto;
        self.check = crc32c::crc32c_append(self.check, &check.to_le_bytes());
    }
}

impl Seal {
    /// Bytes of its frame with the frame's header, if it is not encrypted: it is found by counting them back from the
    /// end of a file.
    pub(super) const FRAME_BYTES: usize = files::FRAME_HEADER_BYTES + 1 + 8 + 8 + 4 + 8;

    fn to_bytes(self) -> Vec<u8> {
        let SegmentTotals { frames, upto, check } = self.totals;
        let numbers = [frames.to_le_bytes(), upto.to_le_bytes()].concat();
        [&[SEAL][..], &numbers, &check.to_le_bytes(), &self.index_at.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (frames, rest) = bytes.split_first_chunk::<8>()?;
        let (upto, rest) = rest.split_first_chunk::<8>()?;
        let (check, rest) = rest.split_first_chunk::<4>()?;
        let totals = SegmentTotals {
            frames: u64::from_le_bytes(*frames),
            upto: Revision::from_le_bytes(*upto),
            check: u32::from_le_bytes(*check),
        };
        Some(Self { totals, index_at: u64::from_le_bytes(rest.try_into().ok()?) })
    }
}

impl SegmentFrame {
    /// `None` when the frame holds nothing that this version writes.
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        let (kind, bytes) = frame.split_first()?;
        match *kind {
            HEADER => SegmentHead::parse(frame).map(|head| Self::Header(head.after)),
            CHANGE => whole(bytes).map(Self::Change),
            APPLIED_MARK => Some(Self::AppliedMark(Revision::from_le_bytes(bytes.try_into().ok()?))),
            SEAL => Seal::from_bytes(bytes).map(Self::Seal),
            INDEX => whole(bytes).map(Self::Index),
            _ => None,
        }
    }
}

fn whole<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().and_then(|(value, rest)| rest.is_empty().then_some(value))
}

/// Writes a segment frame by frame, into a file or into memory.
#[derive(Debug)]
pub(super) struct Encoder<W> {
    pub(super) to: W,
    key: Option<FileKey>,
    totals: SegmentTotals,
    pub(super) bytes: u64,
    /// The frame that is being encoded; kept for the next one.
    buffer: Vec<u8>,
}

/// Bytes of the buffer that is kept for the next frame: more than most changes have.
const BUFFER_BYTES_MAX: usize = 64 << 10;

impl<W: Write> Encoder<W> {
    /// Begins a segment after a revision: an encrypted one if the directory is.
    pub(super) fn new(to: W, after: Revision, at_rest: &AtRest) -> std::io::Result<Self> {
        let id = at_rest.seals().then(at_rest::random_id).transpose()?;
        let mut encoder =
            Self { to, key: None, totals: SegmentTotals::default(), bytes: 0, buffer: Vec::new() };
        encoder.frame(&SegmentHead { after, id }.to_bytes(), after)?;
        encoder.key = id.and_then(|id| frames::segment_key(at_rest, after, &id));
        Ok(encoder)
    }

    /// Continues a segment that was scanned, with its key.
    pub(super) fn resume(to: W, key: Option<FileKey>, totals: SegmentTotals, bytes: u64) -> Self {
        Self { to, key, totals, bytes, buffer: Vec::new() }
    }

    pub(super) fn change(&mut self, change: &StoredChange) -> std::io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.push(CHANGE);
        let mut buffer = encoding::append(buffer, change);
        let written = self.frame(&buffer, change.revision);
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES_MAX);
        self.buffer = buffer;
        written
    }

    /// Raises the applied mark: the entries up to and including this one changed nothing more.
    pub(super) fn applied_mark(&mut self, index: Revision) -> std::io::Result<()> {
        self.frame(&[&[APPLIED_MARK][..], &index.to_le_bytes()].concat(), index)
    }

    /// The last revision that it covers so far.
    pub(super) fn upto(&self) -> Revision {
        self.totals.upto
    }

    /// Ends the segment with its index and its seal.
    pub(super) fn seal(mut self, index: &Index) -> std::io::Result<W> {
        let index_at = self.bytes;
        let index = encoding::append(vec![INDEX], index);
        self.frame(&index, self.totals.upto)?;
        let seal = Seal { totals: self.totals, index_at };
        frames::write(&mut self.to, self.key.as_ref(), self.bytes, &seal.to_bytes())?;
        Ok(self.to)
    }

    fn frame(&mut self, bytes: &[u8], upto: Revision) -> std::io::Result<()> {
        let (check, length) = frames::write(&mut self.to, self.key.as_ref(), self.bytes, bytes)?;
        self.totals.add(upto, check);
        self.bytes += length;
        Ok(())
    }
}

/// A segment as its file's name describes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    /// The revision after which it begins.
    pub(super) after: Revision,
    pub(super) sealed: bool,
}

impl Segment {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (number, ending) = name.strip_prefix("segment-")?.split_once('.')?;
        let sealed = match ending {
            "sealed" => true,
            "open" => false,
            _ => return None,
        };
        Some(Self { after: number.parse().ok()?, sealed })
    }

    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        let ending = if self.sealed { "sealed" } else { "open" };
        directory.join(format!("segment-{:020}.{ending}", self.after))
    }
}

/// The segments of a directory, ascending.
pub(crate) fn segments(directory: &Path) -> Result<Vec<Segment>, StoreError> {
    Ok(files::names(directory)?.iter().filter_map(|name| Segment::parse(name)).collect())
}
