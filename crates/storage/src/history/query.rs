//! Queries of the history: the changes of one record, a config as of a revision.
//!
//! A config as of a revision is what the first change after that revision replaced; when nothing changed it
//! since, it is the current one. Each segment answers that on its own (see `format`), so that the query costs
//! the same however often the config was changed.
//!
//! **Invariant:** a query returns every change of its range in order, or an error; never a wrong or a skipped
//! one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    format::{SegmentFrame, StoredChange, StoredEdit},
    frames::SegmentFile,
    reader::SegmentReader,
    segment_index::{Few, Subject, TimeSeek},
    segments::{History, SegmentSpan, SegmentSpans},
};
use crate::{
    StoreError,
    files::{FileFrame, io},
};
use concord_model::{
    limits::HISTORY_PAGE_BYTES_MAX,
    record::{Config, Definition, Revision, STEP_BITS},
    time::Timestamp,
};

/// Offsets that are taken from an index at once.
const LOOKUP_BATCH: usize = 64;

/// Why the history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// It was compacted, on every node.
    #[error("the history is retained from revision {compaction_revision} on")]
    Compacted {
        /// The oldest revision whose state is retained.
        compaction_revision: Revision,
    },
    /// It is not on this node; another member may have it.
    #[error("this node's history lacks the changes after revision {after} up to {upto}")]
    Gap {
        /// The last revision before the gap.
        after: Revision,
        /// The last revision in the gap.
        upto: Revision,
    },
    /// It is damaged, or the disk fails.
    #[error(transparent)]
    Failed(#[from] StoreError),
}

/// What a change did to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordOperation {
    /// The record did not exist before.
    Create,
    /// The record's content was replaced.
    Update,
    /// The record was removed.
    Delete,
}

/// A record after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AfterImage {
    /// There is none: the record was deleted.
    Deleted,
    /// A definition.
    Definition(Arc<Definition>),
    /// A config.
    Config(Arc<Config>),
}

/// One change of one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The change's log entry.
    pub revision: Revision,
    /// The time of the change.
    pub at: Timestamp,
    /// The principal that made the change.
    pub by: String,
    /// The reason that the caller gave.
    pub reason: Option<String>,
    /// What was done.
    pub operation: RecordOperation,
    /// The record after the change.
    pub after: AfterImage,
}

/// Some changes of one record, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPage {
    /// The changes.
    pub items: Vec<HistoryEntry>,
    /// When there are older changes: they are before this revision.
    pub next_before: Option<Revision>,
    /// The oldest revision whose state is retained.
    pub compaction_revision: Revision,
}

/// A config as of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AsOf {
    /// Nothing changed it since: the current config, or its absence, is the answer.
    Unchanged,
    /// The config that the next change replaced; `None` when it did not exist.
    Value(Option<Arc<Config>>),
}

impl HistoryEntry {
    /// What a change did to a record; `None` when the record was absent before and after it.
    fn of(change: StoredChange, subject: &Subject) -> Option<Self> {
        let mut edits = change.edits.into_iter().filter(|edit| subject.matches(edit));
        let first = edits.next()?;
        let existed = match &first {
            StoredEdit::Definition { before, .. } | StoredEdit::Config { before, .. } => before.is_some(),
            StoredEdit::ConfigWithBefore { .. } | StoredEdit::DefinitionWithBefore { .. } => true,
            StoredEdit::Reindexed { .. }
            | StoredEdit::Deleted { .. }
            | StoredEdit::Undeleted { .. }
            | StoredEdit::Dropped { .. }
            | StoredEdit::Skipped(_)
            | StoredEdit::System { .. }
            | StoredEdit::Remember(_)
            | StoredEdit::Forget(_) => return None,
        };
        let after = match edits.last().unwrap_or(first) {
            StoredEdit::Definition { after, .. } | StoredEdit::DefinitionWithBefore { after, .. } => {
                after.map_or(AfterImage::Deleted, AfterImage::Definition)
            }
            StoredEdit::Config { after, .. } | StoredEdit::ConfigWithBefore { after, .. } => {
                after.map_or(AfterImage::Deleted, AfterImage::Config)
            }
            StoredEdit::Reindexed { .. }
            | StoredEdit::Deleted { .. }
            | StoredEdit::Undeleted { .. }
            | StoredEdit::Dropped { .. }
            | StoredEdit::Skipped(_)
            | StoredEdit::System { .. }
            | StoredEdit::Remember(_)
            | StoredEdit::Forget(_) => return None,
        };
        let operation = match (existed, &after) {
            (false, AfterImage::Deleted) => return None,
            (true, AfterImage::Deleted) => RecordOperation::Delete,
            (false, AfterImage::Definition(_) | AfterImage::Config(_)) => RecordOperation::Create,
            (true, AfterImage::Definition(_) | AfterImage::Config(_)) => RecordOperation::Update,
        };
        let StoredChange { revision, at, by, reason, .. } = change;
        Some(Self { revision, at, by, reason, operation, after })
    }

    fn bytes(&self) -> usize {
        match &self.after {
            AfterImage::Deleted => 0,
            AfterImage::Config(config) => config.data.len(),
            AfterImage::Definition(definition) => definition.schema.as_ref().map_or(0, |schema| schema.len()),
        }
    }
}

impl Subject {
    /// The record has no change before this revision.
    fn created_after(&self) -> Revision {
        match self {
            Self::Definition(_) => 0,
            Self::Config { definition, .. } => (*definition >> STEP_BITS).saturating_sub(1),
        }
    }
}

impl History {
    /// The changes of a record up to and including a revision, newest first, `limit` at most. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, its changes are not on this node, or the disk fails.
    pub fn page(&self, subject: &Subject, upto: Revision, limit: usize) -> Result<HistoryPage, HistoryError> {
        match self.try_page(subject, upto, limit) {
            // A segment was compacted during the query; what the caller asked for is still retained.
            Err(HistoryError::Compacted { compaction_revision }) if upto >= compaction_revision => {
                self.try_page(subject, upto, limit)
            }
            page => page,
        }
    }

    fn try_page(&self, subject: &Subject, upto: Revision, limit: usize) -> Result<HistoryPage, HistoryError> {
        let SegmentSpans { all, compaction_revision, .. } = self.spans();
        if upto < compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        let after = compaction_revision.max(subject.created_after());
        let page = HistoryPage { items: Vec::new(), next_before: None, compaction_revision };
        let mut builder = PageBuilder { page, bytes: 0, limit };
        let mut next = upto;
        for span in all.into_iter().rev().skip_while(|span| span.after >= upto) {
            if next <= after {
                break;
            }
            if span.upto < next {
                return Err(HistoryError::Gap { after: span.upto.max(after), upto: next });
            }
            if SegmentLookup::new(self, span, subject).add_to(&mut builder, after, next)? {
                return Ok(builder.page);
            }
            next = span.after;
        }
        if next > after { Err(HistoryError::Gap { after, upto: next }) } else { Ok(builder.page) }
    }

    /// A config as of the revision `at`, by its changes after that, up to and including `upto`. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, its changes are not on this node, or the disk fails.
    pub fn config_as_of(
        &self,
        subject: &Subject,
        at: Revision,
        upto: Revision,
    ) -> Result<AsOf, HistoryError> {
        let SegmentSpans { all, compaction_revision, .. } = self.spans();
        if at < compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        let from = at.max(subject.created_after());
        let mut next = from;
        for span in all.into_iter().skip_while(|span| span.upto <= from) {
            if next >= upto {
                break;
            }
            if span.after > next {
                return Err(HistoryError::Gap { after: next, upto: span.after });
            }
            if let Some(value) = SegmentLookup::new(self, span, subject).first_replaced(at, upto)? {
                return Ok(value);
            }
            next = span.upto;
        }
        if next < upto { Err(HistoryError::Gap { after: next, upto }) } else { Ok(AsOf::Unchanged) }
    }

    /// The config that the change at a revision wrote. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, its change is not on this node, or the disk fails.
    pub fn config_written_at(
        &self,
        subject: &Subject,
        revision: Revision,
    ) -> Result<Arc<Config>, HistoryError> {
        SegmentLookup::new(self, self.span_of(revision)?, subject).config_written_at(revision)
    }

    /// The whole change of a revision, found by a record that it changed. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, its change is not on this node, or the disk fails.
    pub fn change_of(&self, subject: &Subject, revision: Revision) -> Result<StoredChange, HistoryError> {
        SegmentLookup::new(self, self.span_of(revision)?, subject).change_at(revision)
    }

    /// The segment that has the change of a revision.
    fn span_of(&self, revision: Revision) -> Result<SegmentSpan, HistoryError> {
        let SegmentSpans { all, compaction_revision, .. } = self.spans();
        let span = all.into_iter().find(|span| span.after < revision && span.upto >= revision);
        span.ok_or(if revision <= compaction_revision {
            HistoryError::Compacted { compaction_revision }
        } else {
            HistoryError::Gap { after: revision - 1, upto: revision }
        })
    }

    /// The definition of this key that the change at a revision wrote. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, its change is not on this node, or the disk fails.
    pub(super) fn definition_written_at(
        &self,
        key: &str,
        revision: Revision,
    ) -> Result<Arc<Definition>, HistoryError> {
        let subject = Subject::Definition(key.into());
        match HistoryEntry::of(self.change_of(&subject, revision)?, &subject).map(|entry| entry.after) {
            Some(AfterImage::Definition(definition)) => Ok(definition),
            Some(AfterImage::Deleted | AfterImage::Config(_)) | None => Err(no_change_at(revision)),
        }
    }

    /// The last revision whose change was made at a time or before it, as far as this node knows; 0 when
    /// there is none. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn last_revision_at(&self, at: Timestamp) -> Result<Revision, HistoryError> {
        let mut found = None;
        for span in self.spans().all {
            match self.with_index(span, |index| index.seek_point_at(at))? {
                TimeSeek::Point(point) => found = Some((span, point)),
                // Of elections and restarts alone.
                TimeSeek::NoChange => {}
                TimeSeek::Later => break,
            }
        }
        let Some((span, point)) = found else { return Ok(0) };
        let mut reader = SegmentReader::open(self.open(span)?, (span, &self.damage), point.offset)?;
        let mut last = 0;
        while let Some(change) = reader.next()?.filter(|change| change.at <= at) {
            last = change.revision;
        }
        Ok(last)
    }
}

/// A page that is being filled.
struct PageBuilder {
    page: HistoryPage,
    bytes: usize,
    limit: usize,
}

impl PageBuilder {
    /// Adds the next older change; `false` when the page is full without it.
    fn add(&mut self, entry: HistoryEntry) -> bool {
        let last = self.page.items.last().map(|last| last.revision);
        if self.page.items.len() >= self.limit || (self.bytes > HISTORY_PAGE_BYTES_MAX && last.is_some()) {
            self.page.next_before = last;
            return false;
        }
        self.bytes += entry.bytes();
        self.page.items.push(entry);
        true
    }
}

/// Reads the changes of one record from one segment, by the segment's index.
struct SegmentLookup<'a> {
    history: &'a History,
    span: SegmentSpan,
    subject: &'a Subject,
    file: Option<SegmentFile>,
}

impl<'a> SegmentLookup<'a> {
    fn new(history: &'a History, span: SegmentSpan, subject: &'a Subject) -> Self {
        Self { history, span, subject, file: None }
    }

    /// Adds the changes after `after`, up to and including `upto`, to a page, newest first; returns whether
    /// the page is full.
    fn add_to(
        &mut self,
        page: &mut PageBuilder,
        after: Revision,
        mut upto: Revision,
    ) -> Result<bool, HistoryError> {
        let subject = self.subject;
        loop {
            let found = self
                .history
                .with_index(self.span, |index| index.find(subject, after, upto, Few::Newest(LOOKUP_BATCH)))?;
            for (_, offset) in &found {
                let entry = HistoryEntry::of(self.change(*offset)?, subject);
                if entry.is_some_and(|entry| !page.add(entry)) {
                    return Ok(true);
                }
            }
            match found.last().filter(|_| found.len() == LOOKUP_BATCH) {
                Some((oldest, _)) => upto = oldest - 1,
                None => return Ok(false),
            }
        }
    }

    /// What the first change after `after`, up to and including `upto`, replaced.
    fn first_replaced(&mut self, mut after: Revision, upto: Revision) -> Result<Option<AsOf>, HistoryError> {
        let subject = self.subject;
        loop {
            let found = self
                .history
                .with_index(self.span, |index| index.find(subject, after, upto, Few::Oldest(LOOKUP_BATCH)))?;
            for (_, offset) in &found {
                let change = self.change(*offset)?;
                if let Some(value) = self.replaced(change)? {
                    return Ok(Some(value));
                }
            }
            match found.last().filter(|_| found.len() == LOOKUP_BATCH) {
                Some((newest, _)) => after = *newest,
                None => return Ok(None),
            }
        }
    }

    fn change(&mut self, offset: u64) -> Result<StoredChange, HistoryError> {
        let after = self.span.after;
        let failed = || format!("can't read the history segment after revision {after}");
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(self.history.open(self.span)?),
        };
        file.seek(offset).map_err(io(failed()))?;
        if let FileFrame::Whole(bytes, _) = file.next().map_err(io(failed()))?
            && let Some(SegmentFrame::Change(change)) = SegmentFrame::parse(&bytes)
        {
            return Ok(change);
        }
        Err(self.history.damage.found(self.span, "it has no change where its index says").into())
    }

    /// What a change replaced; `None` when it did not change the record.
    fn replaced(&mut self, change: StoredChange) -> Result<Option<AsOf>, HistoryError> {
        let subject = self.subject;
        let Some(edit) = change.edits.into_iter().find(|edit| subject.matches(edit)) else { return Ok(None) };
        let before = match edit {
            StoredEdit::ConfigWithBefore { before, .. } => Some(before),
            StoredEdit::Config { before: Some(before), .. } => Some(self.config_written_at(before)?),
            StoredEdit::Config { before: None, .. } => None,
            StoredEdit::Definition { .. }
            | StoredEdit::DefinitionWithBefore { .. }
            | StoredEdit::Reindexed { .. }
            | StoredEdit::Deleted { .. }
            | StoredEdit::Undeleted { .. }
            | StoredEdit::Dropped { .. }
            | StoredEdit::Skipped(_)
            | StoredEdit::System { .. }
            | StoredEdit::Remember(_)
            | StoredEdit::Forget(_) => return Ok(None),
        };
        Ok(Some(AsOf::Value(before)))
    }

    fn config_written_at(&mut self, revision: Revision) -> Result<Arc<Config>, HistoryError> {
        match HistoryEntry::of(self.change_at(revision)?, self.subject).map(|entry| entry.after) {
            Some(AfterImage::Config(config)) => Ok(config),
            Some(AfterImage::Deleted | AfterImage::Definition(_)) | None => Err(no_change_at(revision)),
        }
    }

    /// The change of the record that was made at a revision.
    fn change_at(&mut self, revision: Revision) -> Result<StoredChange, HistoryError> {
        let subject = self.subject;
        let found = self.history.with_index(self.span, |index| {
            index.find(subject, revision.saturating_sub(1), revision, Few::Oldest(LOOKUP_BATCH))
        })?;
        // The index finds by a hash: another record's change may be among them.
        for (_, offset) in found {
            let change = self.change(offset)?;
            if change.edits.iter().any(|edit| subject.matches(edit)) {
                return Ok(change);
            }
        }
        Err(no_change_at(revision))
    }
}

fn no_change_at(revision: Revision) -> HistoryError {
    let text = format!("the history has no change of the record at revision {revision}");
    StoreError::Damaged(text).into()
}
