//! Older changes, from the history on this node's disk, in bounded pieces.
//!
//! **Invariant:** a reader gets every change of its scope between its position and the one that it is told, or a
//! refusal; a part of the history that this node does not have is never passed over.

use std::{collections::BTreeMap, sync::Arc};

use super::{filter::Scope, hub::PIECE};
use crate::{
    feed::{Before, Event, EventPage, RecordChange},
    model::{key::Key, record::Revision},
    raft::Consensus,
    store::{Changes, HistoryError, StoreError, StoredChange, StoredEdit},
};

/// Changes that are gone through at once: some ten milliseconds of a blocking thread.
const STRETCH: usize = 20_000;

/// A reader of the history.
#[derive(Debug)]
pub(super) struct Past {
    consensus: Consensus,
    scope: Arc<Scope>,
    begin: Revision,
    /// Up to here the history could be read when it was opened.
    reach: Revision,
    changes: Option<Changes>,
    /// Keys of definitions that are not there any more.
    names: BTreeMap<Revision, Key>,
}

/// What a reader found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) piece: EventPage,
    /// `None` when that was all.
    pub(super) rest: Option<Past>,
}

impl Past {
    /// A reader of what lies behind a position.
    pub(super) fn new(consensus: &Consensus, scope: &Arc<Scope>, seen: Revision) -> Self {
        Self {
            consensus: consensus.clone(),
            scope: Arc::clone(scope),
            begin: seen,
            reach: seen,
            changes: None,
            names: BTreeMap::new(),
        }
    }

    /// Where it began.
    pub(super) fn begin(&self) -> Revision {
        self.begin
    }

    /// The next piece. Blocking.
    pub(super) fn read(mut self) -> Result<Found, HistoryError> {
        let mut changes = match self.changes.take() {
            Some(changes) => changes,
            None => {
                // Asked for before it is opened: what was written by then is read.
                self.reach = self.reach.max(self.consensus.figures().history);
                self.consensus.store().history().changes_from(self.begin.saturating_add(1))?
            }
        };
        let mut piece = EventPage { events: Vec::new(), upto: self.begin };
        let mut bytes = 0;
        for _ in 0..STRETCH {
            let Some(change) = changes.next().transpose()? else {
                piece.upto = piece.upto.max(self.reach);
                return Ok(Found { piece, rest: None });
            };
            piece.upto = change.revision;
            if let Some(event) = self.event(change)?.filter(|event| self.concerns(event)) {
                bytes += event.bytes();
                piece.events.push(Arc::new(event));
            }
            if piece.events.len() >= PIECE.events || bytes >= PIECE.bytes {
                break;
            }
        }
        self.changes = Some(changes);
        Ok(Found { piece, rest: Some(self) })
    }

    fn concerns(&self, event: &Event) -> bool {
        event.items.iter().any(|item| self.scope.holds(item))
    }

    fn event(&mut self, change: StoredChange) -> Result<Option<Event>, HistoryError> {
        let mut items = Vec::with_capacity(change.edits.len());
        for edit in change.edits {
            match edit {
                StoredEdit::Definition { id, key, before, after } => {
                    self.names.insert(id, key.clone());
                    items.push(RecordChange::Definition { key, is_new: before.is_none(), after });
                }
                StoredEdit::Config { definition, key, before, after } => {
                    let before = before.map_or(Before::Nothing, |_| Before::Unknown);
                    let definition = self.name(definition, change.revision)?;
                    items.push(RecordChange::Config { definition, key, before, after });
                }
                StoredEdit::ConfigWithBefore { definition, before, after } => {
                    let (definition, key) = (self.name(definition, change.revision)?, before.key.clone());
                    items.push(RecordChange::Config {
                        definition,
                        key,
                        before: Before::Known(before),
                        after,
                    });
                }
                StoredEdit::Reindexed { .. } | StoredEdit::Remember(_) | StoredEdit::Forget(_) => {}
            }
        }
        Ok(Event::new(change.revision, change.at, (&change.by, change.reason.as_ref()), items))
    }

    /// The key of a definition that was there at a revision: it is there now, or its end is still to come.
    fn name(&mut self, id: Revision, at: Revision) -> Result<Key, HistoryError> {
        if let Some(key) = self.names.get(&id) {
            return Ok(key.clone());
        }
        let now = self.consensus.state().definition_by_id(id).map(|found| found.definition.key.clone());
        let key = match now {
            Some(key) => key,
            None => self.ended(id, at)?,
        };
        self.names.insert(id, key.clone());
        Ok(key)
    }

    fn ended(&self, sought: Revision, at: Revision) -> Result<Key, HistoryError> {
        for change in self.consensus.store().history().changes_from(at)? {
            let found = change?.edits.into_iter().find_map(|edit| match edit {
                StoredEdit::Definition { id, key, .. } if id == sought => Some(key),
                StoredEdit::Definition { .. }
                | StoredEdit::Reindexed { .. }
                | StoredEdit::Config { .. }
                | StoredEdit::ConfigWithBefore { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => None,
            });
            if let Some(key) = found {
                return Ok(key);
            }
        }
        // Its end may wait in the feed, not written yet.
        let text = format!("the history does not name the definition of revision {sought}");
        Err(StoreError::Damaged(text).into())
    }
}
