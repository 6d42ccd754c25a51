//! The history: every change by revision, in append-only segment files.
//!
//! The Raft log is purged after a snapshot. The history keeps what was changed, by whom and why until
//! compaction removes it, for lists of changes, reads as of a revision, rollback and watches that resume.
//!
//! ```text
//! history/segment-<after>.sealed   the changes after revision <after>; immutable, fsynced, with its index
//!         segment-<after>.open     the newest changes; at most one; torn at its end after a crash
//! ```
//!
//! | where | what it does |
//! |---|---|
//! | `format` | the format of a change and of a segment file |
//! | `frames` | the frames of a segment, encrypted or not |
//! | `conversion` | rewrites segments after encryption was turned on or off |
//! | `writer` | appends changes to the open segment, seals it, removes compacted segments |
//! | `segments` | [`History`]: which segments exist, shared by the writer and the readers |
//! | `segment_index` | the index of one segment: offsets by record, by revision and by time |
//! | `reader` | reads one segment frame by frame |
//! | `query` | the changes of one record, a config as of a revision |
//! | `changes` | all changes from a revision on, in order |
//! | `undo` | the records that the changes after a revision replaced |
//! | `stopped` | the state of a backup, continued by the history of a stopped node |
//! | `fuzz` | segments for the fuzzer |
//! | `transfer` | segments that fill a gap in the history of another member |
//!
//! **Invariants:** a change is written once, in the order of revisions. A reader gets every change of its range or an
//! error: a part that was compacted or is missing is never skipped.

mod changes;
mod conversion;
pub(super) mod format;
mod frames;
#[cfg(any(test, feature = "testing"))]
pub(super) mod fuzz;
mod query;
mod reader;
mod segment_index;
mod segments;
mod stopped;
mod transfer;
mod undo;
pub(super) mod writer;

pub use changes::HistoryChanges;
pub use format::{StoredChange, StoredEdit};
pub use query::{AfterImage, AsOf, HistoryEntry, HistoryError, HistoryPage, RecordOperation};
pub use segment_index::Subject;
pub use segments::History;
pub use stopped::{ChangeLeftOut, Point, PointError, PointReached, StoppedHistory};
pub use undo::{Undo, UndoError, UndoScope};
