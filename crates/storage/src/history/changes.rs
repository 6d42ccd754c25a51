//! All changes from a revision on, oldest first, read segment by segment.
//!
//! **Invariant:** the iterator returns every change of the range in order and ends after its first error: a
//! gap is an error, never a skipped change.

use std::{collections::VecDeque, sync::Arc};

use super::{
    format::StoredChange,
    query::HistoryError,
    reader::SegmentReader,
    segments::{History, SegmentSpan, SegmentSpans},
};
use concord_model::record::Revision;

/// The changes from a revision on that were written when it was created, oldest first.
#[derive(Debug)]
pub struct HistoryChanges {
    history: Arc<History>,
    from: Revision,
    spans: VecDeque<SegmentSpan>,
    current: Option<SegmentReader>,
    /// What is missing after the last of `spans`.
    gap: Option<HistoryError>,
}

impl History {
    /// The changes from a revision on, oldest first, as far as they have been written. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, its changes are not on this node, or the disk fails.
    pub fn changes_from(self: &Arc<Self>, from: Revision) -> Result<HistoryChanges, HistoryError> {
        let compaction_revision = self.compaction_revision();
        let from = from.max(1);
        if from <= compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        self.retained_from(from)
    }

    /// The same as far as this disk still has them, although they may be below the compaction revision.
    pub(super) fn retained_from(self: &Arc<Self>, from: Revision) -> Result<HistoryChanges, HistoryError> {
        let SegmentSpans { all, applied, .. } = self.spans();
        // After the end there is nothing yet, whatever is missing before it.
        let mut spans: VecDeque<SegmentSpan> = if from > applied { VecDeque::new() } else { all.into() };
        while spans.get(1).is_some_and(|next| next.after < from) {
            spans.pop_front();
        }
        let mut covered = from - 1;
        if spans.front().is_some_and(|first| first.after < from) {
            covered = spans.front().map_or(0, |first| first.upto);
        }
        let mut contiguous = 0;
        let mut gap = None;
        for span in &spans {
            if span.after > covered {
                gap = Some(HistoryError::Gap { after: covered, upto: span.after });
                break;
            }
            covered = span.upto;
            contiguous += 1;
        }
        if gap.is_none() && covered < applied && from <= applied {
            gap = Some(HistoryError::Gap { after: covered, upto: applied });
        }
        match gap {
            Some(gap) if covered < from => Err(gap),
            gap => {
                spans.truncate(contiguous);
                Ok(HistoryChanges { history: Arc::clone(self), from, spans, current: None, gap })
            }
        }
    }
}

impl HistoryChanges {
    fn advance(&mut self) -> Result<Option<StoredChange>, HistoryError> {
        loop {
            let Some(reader) = &mut self.current else {
                let Some(span) = self.spans.pop_front() else { return self.gap.take().map_or(Ok(None), Err) };
                let offset = self.history.with_index(span, |index| index.offset_before(self.from))?;
                self.current = Some(SegmentReader::open(
                    self.history.open(span)?,
                    (span, &self.history.damage),
                    offset,
                )?);
                continue;
            };
            match reader.next()? {
                Some(change) if change.revision >= self.from => return Ok(Some(change)),
                Some(_) => {}
                None => {
                    // The last segment may have grown since `spans` was read, or may not be flushed to its
                    // end yet.
                    if !self.spans.is_empty() || self.gap.is_some() {
                        reader.check_complete()?;
                    }
                    self.current = None;
                }
            }
        }
    }
}

impl Iterator for HistoryChanges {
    type Item = Result<StoredChange, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance();
        if item.is_err() {
            self.spans.clear();
            self.current = None;
            self.gap = None;
        }
        item.transpose()
    }
}
