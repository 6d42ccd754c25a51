//! Reading the history: all changes from a revision on, the changes of one key, a config as it was.
//!
//! A config at a revision is what the first change behind that revision replaced; when nothing changed it since,
//! it is as it is now. Each segment can tell that of itself (`changes.rs`), so that the answer costs the same
//! however often the key was changed.
//!
//! **Invariant:** a reader gets every change of the range in order, or an error; never a wrong or a skipped one.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufReader, Seek, SeekFrom},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    format::{Part, StoredChange, StoredEdit},
    reader::Reading,
    segment_index::Subject,
    segments::{Catalog, Span, Spans},
};
use crate::{
    model::{
        record::{Config, Definition, Revision, STEP_BITS},
        time::Timestamp,
    },
    store::{
        StoreError,
        files::{self, Frame, io},
    },
};

/// Stored text from which on a page ends early: a page of the largest records would have a gigabyte.
const PAGE_BYTES: usize = 4 << 20;
/// Places that are looked up at once.
const LOOK_UPS: usize = 64;

/// Why the history was not read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// It is gone everywhere.
    #[error("the history is retained from revision {compaction_revision} on")]
    Compacted {
        /// The oldest revision whose state is kept.
        compaction_revision: Revision,
    },
    /// It is not here; another member may have it.
    #[error("this node's history has nothing between the revisions {behind} and {to}")]
    Gap {
        /// It is known up to here.
        behind: Revision,
        /// And again behind this one.
        to: Revision,
    },
    /// It is damaged, or the disk refuses.
    #[error(transparent)]
    Failed(#[from] StoreError),
}

/// What a change did to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// It is new.
    Create,
    /// It has other content.
    Update,
    /// It is gone.
    Delete,
}

/// A record as a change left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Left {
    /// Nothing: it was deleted.
    Nothing,
    /// A definition.
    Definition(Arc<Definition>),
    /// A config.
    Config(Arc<Config>),
}

/// One change of one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The entry.
    pub revision: Revision,
    /// When.
    pub at: Timestamp,
    /// Who asked.
    pub by: String,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// What was done.
    pub operation: Operation,
    /// What it left.
    pub left: Left,
}

/// Some changes of one record, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastPage {
    /// The changes.
    pub items: Vec<Past>,
    /// There are older ones, all before this revision.
    pub next_before: Option<Revision>,
    /// How far back the history goes.
    pub compaction_revision: Revision,
}

/// A config as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Was {
    /// As it is now.
    Unchanged,
    /// Like this, or not there.
    Then(Option<Arc<Config>>),
}

impl Past {
    /// What a change did to a record; `None` when nothing that anybody saw.
    fn of(change: StoredChange, subject: &Subject) -> Option<Self> {
        let mut edits = change.edits.into_iter().filter(|edit| subject.has(edit));
        let first = edits.next()?;
        let was_there = match &first {
            StoredEdit::Definition { before, .. } | StoredEdit::Config { before, .. } => before.is_some(),
            StoredEdit::ConfigOver { .. } => true,
            StoredEdit::Reindexed { .. } | StoredEdit::Remember(_) | StoredEdit::Forget(_) => return None,
        };
        let left = match edits.last().unwrap_or(first) {
            StoredEdit::Definition { after, .. } => after.map_or(Left::Nothing, Left::Definition),
            StoredEdit::Config { after, .. } | StoredEdit::ConfigOver { after, .. } => {
                after.map_or(Left::Nothing, Left::Config)
            }
            StoredEdit::Reindexed { .. } | StoredEdit::Remember(_) | StoredEdit::Forget(_) => return None,
        };
        let operation = match (was_there, &left) {
            (false, Left::Nothing) => return None,
            (true, Left::Nothing) => Operation::Delete,
            (false, Left::Definition(_) | Left::Config(_)) => Operation::Create,
            (true, Left::Definition(_) | Left::Config(_)) => Operation::Update,
        };
        let StoredChange { revision, at, by, reason, .. } = change;
        Some(Self { revision, at, by, reason, operation, left })
    }

    fn bytes(&self) -> usize {
        match &self.left {
            Left::Nothing => 0,
            Left::Config(config) => config.data.len(),
            Left::Definition(definition) => definition.schema.as_ref().map_or(0, |schema| schema.len()),
        }
    }
}

impl Subject {
    /// Before this revision there is nothing of it.
    fn begins(&self) -> Revision {
        match self {
            Self::Definition(_) => 0,
            Self::Config { definition, .. } => *definition >> STEP_BITS,
        }
    }
}

impl Catalog {
    /// The changes of a record up to a revision, newest first, `limit` at most.
    pub(in crate::store) fn page(
        &self,
        subject: &Subject,
        upper: Revision,
        limit: usize,
    ) -> Result<PastPage, HistoryError> {
        let Spans { all, compaction_revision, .. } = self.spans();
        if upper < compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        let low = compaction_revision.max(subject.begins().saturating_sub(1));
        let mut filling = Filling {
            page: PastPage { items: Vec::new(), next_before: None, compaction_revision },
            bytes: 0,
            limit,
        };
        let mut next = upper;
        for span in all.into_iter().rev().skip_while(|span| span.behind >= upper) {
            if next <= low {
                break;
            }
            if span.reach < next {
                return Err(HistoryError::Gap { behind: span.reach.max(low), to: next });
            }
            if Places::new(self, span, subject).fill(&mut filling, low, next)? {
                return Ok(filling.page);
            }
            next = span.behind;
        }
        if next > low { Err(HistoryError::Gap { behind: low, to: next }) } else { Ok(filling.page) }
    }

    /// A config as it was at a revision, if it was changed up to `upto` since.
    pub(in crate::store) fn config_at(
        &self,
        subject: &Subject,
        at: Revision,
        upto: Revision,
    ) -> Result<Was, HistoryError> {
        let Spans { all, compaction_revision, .. } = self.spans();
        if at < compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        let from = at.max(subject.begins().saturating_sub(1));
        let mut next = from;
        for span in all.into_iter().skip_while(|span| span.reach <= from) {
            if next >= upto {
                break;
            }
            if span.behind > next {
                return Err(HistoryError::Gap { behind: next, to: span.behind });
            }
            if let Some(was) = Places::new(self, span, subject).first(at, upto)? {
                return Ok(was);
            }
            next = span.reach;
        }
        if next < upto { Err(HistoryError::Gap { behind: next, to: upto }) } else { Ok(Was::Unchanged) }
    }

    /// The config that a change at a revision left.
    pub(in crate::store) fn config_of(
        &self,
        subject: &Subject,
        revision: Revision,
    ) -> Result<Arc<Config>, HistoryError> {
        let Spans { all, compaction_revision, .. } = self.spans();
        let span = all.into_iter().find(|span| span.behind < revision && span.reach >= revision);
        let span = span.ok_or(if revision <= compaction_revision {
            HistoryError::Compacted { compaction_revision }
        } else {
            HistoryError::Gap { behind: revision - 1, to: revision }
        })?;
        Places::new(self, span, subject).config(revision)
    }

    /// The last revision whose change is not younger than a time; 0 when there is none.
    pub(in crate::store) fn oldest_after(&self, at: Timestamp) -> Result<Revision, HistoryError> {
        let mut found = None;
        for span in self.spans().all {
            match self.with_index(span, |index| index.at(at))? {
                Some(mark) => found = Some((span, mark)),
                None => break,
            }
        }
        let Some((span, mark)) = found else { return Ok(0) };
        let mut reading = Reading::open(self.open(span)?, span, mark.offset)?;
        let mut last = 0;
        while let Some(change) = reading.next()?.filter(|change| change.at <= at) {
            last = change.revision;
        }
        Ok(last)
    }
}

/// A page in the making.
struct Filling {
    page: PastPage,
    bytes: usize,
    limit: usize,
}

impl Filling {
    /// Takes the next older change; `false` when the page is full without it.
    fn take(&mut self, past: Past) -> bool {
        let last = self.page.items.last().map(|last| last.revision);
        if self.page.items.len() >= self.limit || (self.bytes > PAGE_BYTES && last.is_some()) {
            self.page.next_before = last;
            return false;
        }
        self.bytes += past.bytes();
        self.page.items.push(past);
        true
    }
}

/// Reads single changes of one segment.
struct Places<'a> {
    catalog: &'a Catalog,
    span: Span,
    subject: &'a Subject,
    file: Option<BufReader<File>>,
}

impl<'a> Places<'a> {
    fn new(catalog: &'a Catalog, span: Span, subject: &'a Subject) -> Self {
        Self { catalog, span, subject, file: None }
    }

    /// Adds the changes above `low` and at most `high` to a page, newest first; whether it is full.
    fn fill(&mut self, to: &mut Filling, low: Revision, mut high: Revision) -> Result<bool, HistoryError> {
        let subject = self.subject;
        loop {
            let found = self.catalog.with_index(self.span, |index| {
                index.find(subject, low, high).rev().take(LOOK_UPS).collect::<Vec<_>>()
            })?;
            for (_, offset) in &found {
                let past = Past::of(self.change(*offset)?, subject);
                if past.is_some_and(|past| !to.take(past)) {
                    return Ok(true);
                }
            }
            match found.last().filter(|_| found.len() == LOOK_UPS) {
                Some((oldest, _)) => high = oldest - 1,
                None => return Ok(false),
            }
        }
    }

    /// What the first change above `low` and at most `high` replaced.
    fn first(&mut self, mut low: Revision, high: Revision) -> Result<Option<Was>, HistoryError> {
        let subject = self.subject;
        loop {
            let found = self.catalog.with_index(self.span, |index| {
                index.find(subject, low, high).take(LOOK_UPS).collect::<Vec<_>>()
            })?;
            for (_, offset) in &found {
                let change = self.change(*offset)?;
                if let Some(was) = self.replaced(change)? {
                    return Ok(Some(was));
                }
            }
            match found.last().filter(|_| found.len() == LOOK_UPS) {
                Some((newest, _)) => low = *newest,
                None => return Ok(None),
            }
        }
    }

    fn change(&mut self, offset: u64) -> Result<StoredChange, HistoryError> {
        let behind = self.span.behind;
        let failed = || format!("can't read the history behind revision {behind}");
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufReader::new(self.catalog.open(self.span)?)),
        };
        file.seek(SeekFrom::Start(offset)).map_err(io(failed()))?;
        if let Frame::Whole(bytes, _) = files::read_frame(file).map_err(io(failed()))?
            && let Some(Part::Change(change)) = Part::parse(&bytes)
        {
            return Ok(change);
        }
        let text = format!("the segment of the history behind {behind} has no change where its index says");
        Err(StoreError::Damaged(text).into())
    }

    /// What a change replaced; `None` when it is no change of the subject's.
    fn replaced(&mut self, change: StoredChange) -> Result<Option<Was>, HistoryError> {
        let subject = self.subject;
        let Some(edit) = change.edits.into_iter().find(|edit| subject.has(edit)) else { return Ok(None) };
        let before = match edit {
            StoredEdit::ConfigOver { before, .. } => Some(before),
            StoredEdit::Config { before: Some(before), .. } => Some(self.config(before)?),
            StoredEdit::Config { before: None, .. } => None,
            StoredEdit::Definition { .. }
            | StoredEdit::Reindexed { .. }
            | StoredEdit::Remember(_)
            | StoredEdit::Forget(_) => return Ok(None),
        };
        Ok(Some(Was::Then(before)))
    }

    /// The config that the change at a revision left.
    fn config(&mut self, revision: Revision) -> Result<Arc<Config>, HistoryError> {
        let subject = self.subject;
        let found = self.catalog.with_index(self.span, |index| {
            index.find(subject, revision.saturating_sub(1), revision).collect::<Vec<_>>()
        })?;
        for (_, offset) in found {
            if let Some(Left::Config(config)) = Past::of(self.change(offset)?, subject).map(|past| past.left)
            {
                return Ok(config);
            }
        }
        let text = format!("the history has no change of the config at revision {revision}");
        Err(StoreError::Damaged(text).into())
    }
}

/// The changes from a revision on, oldest first, as far as they were written when it was made. It ends behind the
/// first error.
#[derive(Debug)]
pub struct Changes {
    catalog: Arc<Catalog>,
    from: Revision,
    spans: VecDeque<Span>,
    current: Option<Reading>,
    /// What is missing behind the last of `spans`.
    gap: Option<HistoryError>,
}

impl Changes {
    pub(in crate::store) fn new(catalog: &Arc<Catalog>, from: Revision) -> Result<Self, HistoryError> {
        let Spans { all, compaction_revision, reach } = catalog.spans();
        let from = from.max(1);
        if from <= compaction_revision {
            return Err(HistoryError::Compacted { compaction_revision });
        }
        // Behind the end there is nothing yet, whatever is missing before it.
        let mut spans: VecDeque<Span> = if from > reach { VecDeque::new() } else { all.into() };
        while spans.get(1).is_some_and(|next| next.behind < from) {
            spans.pop_front();
        }
        let mut known = from - 1;
        if spans.front().is_some_and(|first| first.behind < from) {
            known = spans.front().map_or(0, |first| first.reach);
        }
        let mut whole = 0;
        let mut gap = None;
        for span in &spans {
            if span.behind > known {
                gap = Some(HistoryError::Gap { behind: known, to: span.behind });
                break;
            }
            known = span.reach;
            whole += 1;
        }
        if gap.is_none() && known < reach && from <= reach {
            gap = Some(HistoryError::Gap { behind: known, to: reach });
        }
        match gap {
            Some(gap) if known < from => Err(gap),
            gap => {
                spans.truncate(whole);
                Ok(Self { catalog: Arc::clone(catalog), from, spans, current: None, gap })
            }
        }
    }

    fn advance(&mut self) -> Result<Option<StoredChange>, HistoryError> {
        loop {
            let Some(reading) = &mut self.current else {
                let Some(span) = self.spans.pop_front() else { return self.gap.take().map_or(Ok(None), Err) };
                let offset = self.catalog.with_index(span, |index| index.before(self.from))?;
                self.current = Some(Reading::open(self.catalog.open(span)?, span, offset)?);
                continue;
            };
            match reading.next()? {
                Some(change) if change.revision >= self.from => return Ok(Some(change)),
                Some(_) => {}
                None => {
                    // The last one may have grown since it was looked at, or not be written to its end yet.
                    if !self.spans.is_empty() || self.gap.is_some() {
                        reading.check_reach()?;
                    }
                    self.current = None;
                }
            }
        }
    }
}

impl Iterator for Changes {
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
