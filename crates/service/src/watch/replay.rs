//! Reads older changes for a watch from the history on this node's disk, in bounded pieces.
//!
//! **Invariant:** a replay returns every change of its scope from its start up to (and including) the revision that it
//! reports, or an error. It never skips a part of the history that this node does not have.

use std::{collections::BTreeMap, sync::Arc};

use super::{hub::READ_MAX, scope::WatchScope};
use crate::authors::has_changed_at;
use concord_consensus::Consensus;
use concord_model::{
    key::Key,
    record::{Config, Definition, Revision},
    system::rollout::{Candidate, Reader},
};
use concord_state::{
    feed::{Before, ChangeRequestEdit, Event, EventPage, RecordChange},
    seen::{RolloutEdit, Sides},
};
use concord_storage::{AsOf, HistoryChanges, HistoryError, StoreError, StoredChange, StoredEdit, Subject};

/// Changes that one read examines at most: some ten milliseconds of a blocking thread.
const CHANGES_PER_READ_MAX: usize = 20_000;

/// A reader of the history.
#[derive(Debug)]
pub(super) struct Replay {
    consensus: Consensus,
    scope: Arc<WatchScope>,
    start: Revision,
    /// The last revision that the history held when it was opened.
    history_upto: Revision,
    changes: Option<HistoryChanges>,
    /// The keys of definitions by their ids, those of deleted ones included.
    definitions: BTreeMap<Revision, Key>,
    /// Whether events need the previous values of configs.
    has_prev: bool,
    /// Who is to see the events, if the rollouts in them are asked for.
    reader: Option<Arc<Reader>>,
    /// The last change that was read for previous values, and the configs that it wrote: a batch may have written many.
    written: Option<(Revision, WrittenConfigs)>,
}

/// The configs that a change wrote, by definition and key.
type WrittenConfigs = BTreeMap<(Revision, Key), Arc<Config>>;

impl Replay {
    /// A reader of the changes after a position.
    pub(super) fn new(
        consensus: &Consensus,
        scope: &Arc<WatchScope>,
        position: Revision,
        has_prev: bool,
    ) -> Self {
        Self {
            consensus: consensus.clone(),
            scope: Arc::clone(scope),
            start: position,
            history_upto: position,
            changes: None,
            definitions: BTreeMap::new(),
            has_prev,
            reader: None,
            written: None,
        }
    }

    /// The same for what a reader is to see.
    pub(super) fn of_reader(self, reader: Option<Arc<Reader>>) -> Self {
        Self { reader, ..self }
    }

    /// The position after which it began.
    pub(super) fn start(&self) -> Revision {
        self.start
    }

    /// The next piece, and the reader of the following pieces; `None` after the last one. Blocking.
    pub(super) fn read(mut self) -> Result<(EventPage, Option<Self>), HistoryError> {
        let mut changes = match self.changes.take() {
            Some(changes) => changes,
            None => {
                // Read before the history is opened. So the opened history contains everything up to this revision.
                self.history_upto = self.history_upto.max(self.consensus.figures().history);
                self.consensus.store().history().changes_from(self.start.saturating_add(1))?
            }
        };
        let mut piece = EventPage { events: Vec::new(), upto: self.start };
        let mut bytes = 0;
        for _ in 0..CHANGES_PER_READ_MAX {
            let Some(change) = changes.next().transpose()? else {
                piece.upto = piece.upto.max(self.history_upto);
                return Ok((piece, None));
            };
            piece.upto = change.revision;
            if let Some(event) = self.event(change)?.filter(|event| self.scope.contains_any_of(event)) {
                bytes += event.bytes();
                piece.events.push(Arc::new(event));
            }
            if piece.events.len() >= READ_MAX.events || bytes >= READ_MAX.bytes {
                break;
            }
        }
        self.changes = Some(changes);
        // It may be large, and the next piece may be read much later.
        self.written = None;
        Ok((piece, Some(self)))
    }

    fn event(&mut self, change: StoredChange) -> Result<Option<Event>, HistoryError> {
        let by = (change.by.as_str(), change.reason.as_ref());
        if self.scope.is_of_change_requests() {
            let edits = change.edits.iter().filter_map(|edit| {
                let StoredEdit::System { before, after } = edit else { return None };
                Some((before.as_ref(), after.as_ref()))
            });
            let change_requests = ChangeRequestEdit::all(edits);
            return Ok(Event::new(change.revision, change.at, by, Vec::new(), change_requests));
        }
        let mut items = Vec::with_capacity(change.edits.len());
        let (mut change_requests, mut rollouts) = (Vec::new(), Vec::new());
        for edit in change.edits {
            match edit {
                StoredEdit::Definition { id, key, before, after } => {
                    self.definitions.insert(id, key.clone());
                    items.push(definition_change(key, before.is_none(), after));
                }
                StoredEdit::DefinitionWithBefore { before, after } => {
                    let key = before.key.clone();
                    self.definitions.insert(before.id, key.clone());
                    items.push(definition_change(key, false, after));
                }
                StoredEdit::Config { definition, key, before, after } => {
                    let (id, definition) = (definition, self.definition_key(definition, change.revision)?);
                    let before = match before {
                        None => Before::Nothing,
                        Some(revision) if self.has_prev && self.scope.contains_config(&definition, &key) => {
                            Before::Known(self.written_at(revision, id, &key)?)
                        }
                        Some(_) => Before::Unknown,
                    };
                    items.push(RecordChange::Config { definition, key, before, after });
                }
                StoredEdit::ConfigWithBefore { definition, before, after } => {
                    let definition = self.definition_key(definition, change.revision)?;
                    let key = before.key.clone();
                    items.push(RecordChange::Config {
                        definition,
                        key,
                        before: Before::Known(before),
                        after,
                    });
                }
                StoredEdit::Deleted { configs, .. } => {
                    if let Some(RecordChange::Definition { deleted_configs, .. }) = items.last_mut() {
                        *deleted_configs = Some(configs);
                    }
                }
                StoredEdit::Undeleted { configs, .. } => {
                    if let Some(RecordChange::Definition { undeleted_configs, .. }) = items.last_mut() {
                        *undeleted_configs = Some(configs);
                    }
                }
                StoredEdit::System { before, after } => {
                    if let Some(reader) = &self.reader {
                        let edit = RolloutEdit::of(before.as_ref(), after.as_ref());
                        rollouts.extend(edit.filter(|edit| edit.sides(reader) != Sides::default()));
                    }
                    // Of the change requests that it changed, that which made it is named: others would only take memory.
                    let made = after.filter(|record| has_changed_at(record, change.revision));
                    change_requests.extend(ChangeRequestEdit::of(None, made.as_ref()));
                }
                StoredEdit::Reindexed { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => {}
            }
        }
        if items.is_empty() && rollouts.is_empty() {
            // No watch of records returns it.
            return Ok(None);
        }
        for rollout in &mut rollouts {
            self.add_configs(rollout, &items, change.revision)?;
        }
        let records = (items, change_requests);
        Ok(Event::with_rollouts(change.revision, change.at, by, records, rollouts))
    }

    /// Adds to the edit of a rollout those of its configs that the watch is for, as they are proven after a revision. At most
    /// two edits of a rollout need them: a reader comes in once, and goes out once.
    fn add_configs(
        &mut self,
        rollout: &mut RolloutEdit,
        items: &[RecordChange],
        at: Revision,
    ) -> Result<(), HistoryError> {
        let Some(reader) = self.reader.clone() else { return Ok(()) };
        let Sides { was_in, is_in } = rollout.sides(&reader);
        let is_changed = |definition: &Key, candidate: &Candidate| {
            items.iter().any(|item| match item {
                RecordChange::Config { definition: of, key, .. } => of == definition && *key == candidate.key,
                RecordChange::Definition { .. } => false,
            })
        };
        rollout.add_configs(|candidate| {
            let definition = self.definition_key(candidate.definition, at)?;
            if !self.scope.contains_config(&definition, &candidate.key) {
                return Ok(None);
            }
            let is_needed = was_in != is_in && !is_changed(&definition, candidate);
            let proven = if is_needed { self.proven_at(candidate, at)? } else { None };
            Ok(Some((definition, proven)))
        })
    }

    /// The proven config of a candidate as of a revision. `None` if its definition is gone.
    fn proven_at(&self, candidate: &Candidate, at: Revision) -> Result<Option<Arc<Config>>, HistoryError> {
        let state = self.consensus.state();
        let Some(found) = state.definition_by_id(candidate.definition) else { return Ok(None) };
        let current = found.config(candidate.key.as_str());
        if let Some(current) = current.filter(|config| config.revision <= at) {
            return Ok(Some(Arc::clone(current)));
        }
        let key = candidate.key.as_str().into();
        let (subject, upto) = (Subject::Config { definition: candidate.definition, key }, self.history_upto);
        match self.consensus.store().history().config_as_of(&subject, at, upto)? {
            AsOf::Value(config) => Ok(config),
            // What replaced it is in the feed, and will be in the history in a moment.
            AsOf::Unchanged => Err(HistoryError::Gap { after: upto, upto: state.revision() }),
        }
    }

    /// The config that the change at a revision wrote. The segment of a change that replaced it has it.
    fn written_at(
        &mut self,
        revision: Revision,
        id: Revision,
        key: &Key,
    ) -> Result<Arc<Config>, HistoryError> {
        let place = (id, key.clone());
        if !self.written.as_ref().is_some_and(|(at, all)| *at == revision && all.contains_key(&place)) {
            let subject = Subject::Config { definition: id, key: key.as_str().into() };
            let change = self.consensus.store().history().change_of(&subject, revision)?;
            let written = change.edits.into_iter().filter_map(|edit| match edit {
                StoredEdit::Config { definition, after: Some(after), .. }
                | StoredEdit::ConfigWithBefore { definition, after: Some(after), .. } => {
                    Some(((definition, after.key.clone()), after))
                }
                StoredEdit::Config { after: None, .. }
                | StoredEdit::ConfigWithBefore { after: None, .. }
                | StoredEdit::Definition { .. }
                | StoredEdit::DefinitionWithBefore { .. }
                | StoredEdit::Reindexed { .. }
                | StoredEdit::Deleted { .. }
                | StoredEdit::Undeleted { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::System { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => None,
            });
            self.written = Some((revision, written.collect()));
        }
        let found = self.written.as_ref().and_then(|(_, all)| all.get(&place)).map(Arc::clone);
        let text =
            format!("the history has no config at revision {revision}, although a later change replaced it");
        found.ok_or_else(|| StoreError::Damaged(text).into())
    }

    /// The key of a definition that existed at a revision: it still exists, or was deleted later.
    fn definition_key(&mut self, id: Revision, at: Revision) -> Result<Key, HistoryError> {
        if let Some(key) = self.definitions.get(&id) {
            return Ok(key.clone());
        }
        let current = self.consensus.state().definition_by_id(id).map(|found| found.definition.key.clone());
        let key = match current {
            Some(key) => key,
            None => self.deleted_definition_key(id, at)?,
        };
        self.definitions.insert(id, key.clone());
        Ok(key)
    }

    /// The key, from the change that deleted the definition.
    fn deleted_definition_key(&self, sought: Revision, at: Revision) -> Result<Key, HistoryError> {
        for change in self.consensus.store().history().changes_from(at)? {
            let found = change?.edits.into_iter().find_map(|edit| match edit {
                StoredEdit::Definition { id, key, .. } if id == sought => Some(key),
                StoredEdit::DefinitionWithBefore { before, .. } if before.id == sought => {
                    Some(before.key.clone())
                }
                StoredEdit::Definition { .. }
                | StoredEdit::DefinitionWithBefore { .. }
                | StoredEdit::Reindexed { .. }
                | StoredEdit::Deleted { .. }
                | StoredEdit::Undeleted { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::System { .. }
                | StoredEdit::Config { .. }
                | StoredEdit::ConfigWithBefore { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => None,
            });
            if let Some(key) = found {
                return Ok(key);
            }
        }
        // The deletion may be in the feed and not yet in the history.
        let text = format!("the history does not name the definition of revision {sought}");
        Err(StoreError::Damaged(text).into())
    }
}

/// A change of a definition. What was deleted or returned with it follows as an edit of its own.
fn definition_change(key: Key, is_new: bool, after: Option<Arc<Definition>>) -> RecordChange {
    RecordChange::Definition { key, is_new, after, deleted_configs: None, undeleted_configs: None }
}
