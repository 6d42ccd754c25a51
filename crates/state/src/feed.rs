//! The recent changes in memory, for watchers: the changed records of each proposal, with their keys.
//!
//! The feed is a ring buffer and no queue. A reader has a position, a revision, and requests the events after it. When
//! the feed no longer contains them, the reader reads the history instead. So a slow reader costs nothing here, and no
//! reader loses an event because a buffer was full.
//!
//! Publishing pushes one pointer for each change, under a lock that is held for microseconds; readers copy pointers
//! under it and do nothing else.
//!
//! **Invariants**
//! 1. The feed contains every change after `compaction_revision` up to and including `applied_revision`, in order. An
//!    installed snapshot skips changes and therefore raises `compaction_revision`: a reader learns that changes are
//!    missing.
//! 2. A change is removed only when the history holds it, or when a snapshot was installed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;

use crate::{
    Change, Edit, State,
    seen::{self, RolloutEdit, RolloutEdits},
};
use concord_model::{
    key::Key,
    limits::{FEED_BYTES_MAX, FEED_EVENTS_MAX},
    record::{Config, Definition, Revision},
    system::{
        SystemRecord,
        change::Phase,
        pace::{Actor, RolloutPause},
    },
    time::Timestamp,
};

/// Approximate bytes of an item without its records' texts.
const ITEM_BYTES: usize = 512;

/// What one proposal changed, as watchers receive it.
#[derive(Debug)]
pub struct Event {
    /// Its revision.
    pub revision: Revision,
    /// Its time.
    pub at: Timestamp,
    /// Its author.
    pub by: String,
    /// The caller's reason.
    pub reason: Option<String>,
    /// The changed records. None in an event of change requests and rollouts alone.
    pub items: Vec<RecordChange>,
    /// The change requests that were changed. No watch of records returns them.
    pub change_requests: Vec<ChangeRequestEdit>,
    /// The rollouts that began, went on or ended. Only watches of readers ask for them ([`Self::seen_by`]).
    pub rollouts: Option<Box<RolloutEdits>>,
    /// The change requests of whose rollouts the items at these places are candidates. None but in what a reader sees.
    pub variants: BTreeMap<usize, Key>,
    /// The whole event as it is sent, rendered once for all watchers that receive all of it.
    pub rendered: OnceLock<Bytes>,
    /// The same for watchers that may know of the change request that it was.
    pub rendered_with_request: OnceLock<Bytes>,
    /// Its configs with the entries of a definition's indexes, computed once for all watchers that filter by them.
    indexed: Mutex<Option<Arc<Indexed>>>,
}

/// The change of one record.
#[derive(Debug, Clone)]
pub enum RecordChange {
    /// A definition; its deletion includes that of all its configs.
    Definition {
        /// Its key.
        key: Key,
        /// Whether it is new.
        is_new: bool,
        /// After the change; `None` when it was deleted.
        after: Option<Arc<Definition>>,
        /// The number of configs that were deleted with it, where that is known.
        deleted_configs: Option<u64>,
        /// The number of configs that returned with it, when its deletion was undone. They are no items of the event.
        undeleted_configs: Option<u64>,
    },
    /// A config.
    Config {
        /// Its definition's key.
        definition: Key,
        /// Its key.
        key: Key,
        /// Before the change.
        before: Before,
        /// After the change; `None` when it was deleted.
        after: Option<Arc<Config>>,
    },
}

/// The record of a change request before and after a change; one of the two may be absent.
#[derive(Debug, Clone)]
pub struct ChangeRequestEdit {
    /// Before the change; `None` when it is new.
    pub before: Option<Arc<SystemRecord>>,
    /// After the change; `None` when it was dropped.
    pub after: Option<Arc<SystemRecord>>,
    /// What was done to its rollout, which has a record of its own.
    pub rollout: Option<RolloutStep>,
}

/// What was done to a rollout that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutStep {
    /// A stage has ended.
    Advanced(Actor),
    /// It waits for somebody.
    Paused(RolloutPause),
    /// It goes on.
    Resumed(Actor),
}

impl RolloutStep {
    /// By the record of the rollout before and after.
    fn of_rollout(before: Option<&SystemRecord>, after: Option<&SystemRecord>) -> Option<Self> {
        let passed = |record: Option<&'_ SystemRecord>| Some(record?.rollout()?.progress.clone()?.passed);
        let (before, after) = (passed(before)?, passed(after)?);
        let last = after.last().filter(|_| after.len() > before.len())?;
        Some(Self::Advanced(last.by.clone()))
    }

    /// By the record of the change request before and after: a stage that ends may let a rollout go on, too.
    fn of_change(before: Option<&SystemRecord>, after: Option<&SystemRecord>) -> Option<Self> {
        let pace = |record: Option<&'_ SystemRecord>| match &record?.change()?.phase {
            Phase::Rolling { pace, .. } => Some(pace.clone()),
            Phase::Open
            | Phase::Scheduled { .. }
            | Phase::Held
            | Phase::Applied { .. }
            | Phase::Closed { .. } => None,
        };
        let (before, after) = (pace(before)?, pace(after)?);
        match (before.paused, after.paused) {
            (None, Some(paused)) => Some(Self::Paused(paused)),
            (Some(_), None) => Some(Self::Resumed(after.by)),
            (None, None) | (Some(_), Some(_)) => None,
        }
    }
}

/// A system record before and after a change.
pub type SystemEdit<'e> = (Option<&'e Arc<SystemRecord>>, Option<&'e Arc<SystemRecord>>);

impl ChangeRequestEdit {
    /// The edit of a system record, if that is a change request.
    #[must_use]
    pub fn of(before: Option<&Arc<SystemRecord>>, after: Option<&Arc<SystemRecord>>) -> Option<Self> {
        after.or(before)?.change()?;
        let rollout = RolloutStep::of_change(before.map(Arc::as_ref), after.map(Arc::as_ref));
        Some(Self { before: before.cloned(), after: after.cloned(), rollout })
    }

    /// The change requests among the edits of system records of one entry, with what was done to their rollouts.
    #[must_use]
    pub fn all<'e>(edits: impl Iterator<Item = SystemEdit<'e>> + Clone) -> Vec<Self> {
        let mut all: Vec<Self> =
            edits.clone().filter_map(|(before, after)| Self::of(before, after)).collect();
        if all.is_empty() {
            return all;
        }
        for (before, after) in edits {
            let step = RolloutStep::of_rollout(before.map(Arc::as_ref), after.map(Arc::as_ref));
            let (Some(step), Some(record)) = (step, after) else { continue };
            let is_of = |edit: &&mut Self| edit.after.as_ref().is_some_and(|of| of.name == record.name);
            if let Some(edit) = all.iter_mut().find(is_of) {
                edit.rollout = Some(step);
            }
        }
        all
    }

    fn bytes(&self) -> u64 {
        [&self.before, &self.after].into_iter().flatten().map(|record| record.bytes()).sum()
    }
}

/// A config before a change.
#[derive(Debug, Clone)]
pub enum Before {
    /// It did not exist.
    Nothing,
    /// It was this.
    Known(Arc<Config>),
    /// It existed; an event from the history does not contain it.
    Unknown,
}

/// A config before and after an event, as far as known.
pub type BeforeAndAfter = (Option<Arc<Config>>, Option<Arc<Config>>);

/// The configs of an event, with the index entries that one version of their definition gives them.
#[derive(Debug)]
pub struct Indexed {
    /// The definition.
    pub definition: Key,
    /// The revision of the definition.
    pub revision: Revision,
    /// For each item of the event, the config before and after, as far as known and of this definition.
    pub items: Vec<BeforeAndAfter>,
}

impl Event {
    /// An event with at least one item or change request; `None` without.
    #[must_use]
    pub fn new(
        revision: Revision,
        at: Timestamp,
        author: (&str, Option<&String>),
        items: Vec<RecordChange>,
        change_requests: Vec<ChangeRequestEdit>,
    ) -> Option<Self> {
        Self::with_rollouts(revision, at, author, (items, change_requests), Vec::new())
    }

    /// The same with edits of rollouts; `None` without any of the three.
    #[must_use]
    pub fn with_rollouts(
        revision: Revision,
        at: Timestamp,
        (by, reason): (&str, Option<&String>),
        (items, change_requests): (Vec<RecordChange>, Vec<ChangeRequestEdit>),
        rollouts: Vec<RolloutEdit>,
    ) -> Option<Self> {
        let rollouts = RolloutEdits::new(rollouts);
        let is_empty = items.is_empty() && change_requests.is_empty() && rollouts.is_none();
        (!is_empty).then(|| Self {
            revision,
            at,
            by: by.into(),
            reason: reason.cloned(),
            items,
            change_requests,
            rollouts,
            variants: BTreeMap::new(),
            rendered: OnceLock::new(),
            rendered_with_request: OnceLock::new(),
            indexed: Mutex::new(None),
        })
    }

    /// What somebody is shown of it: these items and change requests, possibly none, and no rollouts.
    #[must_use]
    pub fn of_items(&self, items: Vec<RecordChange>, change_requests: Vec<ChangeRequestEdit>) -> Self {
        Self {
            revision: self.revision,
            at: self.at,
            by: self.by.clone(),
            reason: self.reason.clone(),
            items,
            change_requests,
            rollouts: None,
            variants: BTreeMap::new(),
            rendered: OnceLock::new(),
            rendered_with_request: OnceLock::new(),
            indexed: Mutex::new(None),
        }
    }

    /// The same with the change requests whose candidates some of its items are.
    #[must_use]
    pub fn with_variants(self, variants: BTreeMap<usize, Key>) -> Self {
        Self { variants, ..self }
    }

    /// The event of a change; `name` returns the key of a definition by its id, `after` has the later changes up to that of
    /// the state.
    fn of(
        change: &Change,
        after: (&[Arc<Change>], &State),
        mut name: impl FnMut(Revision) -> Option<Key>,
    ) -> Option<Self> {
        let deleted = |sought: Revision| {
            change.edits.iter().find_map(|edit| {
                if let Edit::Deleted { definition, configs, .. } = edit
                    && *definition == sought
                {
                    return Some(*configs);
                }
                None
            })
        };
        let undeleted = |sought: Revision| {
            change.edits.iter().find_map(|edit| {
                if let Edit::Undeleted { kept, configs } = edit
                    && kept.id == sought
                {
                    return Some(*configs);
                }
                None
            })
        };
        let item = |edit: &Edit| match edit {
            Edit::Definition { before, after } => {
                let any = after.as_ref().or(before.as_ref())?;
                let deleted_configs = if after.is_none() { deleted(any.id) } else { None };
                let undeleted_configs = if before.is_none() { undeleted(any.id) } else { None };
                let (key, is_new, after) = (any.key.clone(), before.is_none(), after.clone());
                Some(RecordChange::Definition { key, is_new, after, deleted_configs, undeleted_configs })
            }
            Edit::Config { definition, before, after } => {
                let key = after.as_ref().or(before.as_ref())?.key.clone();
                let before = before.clone().map_or(Before::Nothing, Before::Known);
                Some(RecordChange::Config {
                    definition: name(*definition)?,
                    key,
                    before,
                    after: after.clone(),
                })
            }
            Edit::Reindexed { .. }
            | Edit::Deleted { .. }
            | Edit::Entries { .. }
            | Edit::Building { .. }
            | Edit::Remember(_)
            | Edit::AccessKey { .. }
            | Edit::AuditAnchors { .. }
            | Edit::System { .. }
            | Edit::Undeleted { .. }
            | Edit::Dropped { .. }
            | Edit::Skipped(_)
            | Edit::Forget(_) => None,
        };
        let system = change.edits.iter().filter_map(|edit| {
            let Edit::System { before, after } = edit else { return None };
            Some((before.as_ref(), after.as_ref()))
        });
        let items = change.edits.iter().filter_map(item).collect();
        let change_requests = ChangeRequestEdit::all(system);
        let by = (change.by.as_str(), change.reason.as_ref());
        let rollouts = seen::edits_of(change, after, &mut name);
        Self::with_rollouts(change.revision, change.at, by, (items, change_requests), rollouts)
    }

    /// The approximate bytes that it retains in memory: the records and their rendering.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let item = |item: &RecordChange| match item {
            RecordChange::Definition { after, .. } => {
                let schema = after.as_ref().and_then(|definition| definition.schema.as_ref());
                2 * schema.map_or(0, |schema| schema.len())
            }
            RecordChange::Config { before, after, .. } => {
                let before = match before {
                    Before::Known(config) => config.data.len(),
                    Before::Nothing | Before::Unknown => 0,
                };
                before + 2 * after.as_ref().map_or(0, |config| config.data.len())
            }
        };
        let records: usize = self.items.iter().map(|each| ITEM_BYTES + item(each)).sum();
        let change_requests: u64 = self.change_requests.iter().map(ChangeRequestEdit::bytes).sum();
        let rollouts = self.rollouts.as_ref().map_or(0, |rollouts| rollouts.bytes());
        records
            .saturating_add(usize::try_from(change_requests.saturating_add(rollouts)).unwrap_or(usize::MAX))
    }

    /// The bytes of its configs' data before it, as far as known.
    #[must_use]
    pub fn bytes_before(&self) -> usize {
        let item = |item: &RecordChange| match item {
            RecordChange::Config { before: Before::Known(config), .. } => config.data.len(),
            RecordChange::Config { .. } | RecordChange::Definition { .. } => 0,
        };
        self.items.iter().map(item).sum()
    }

    /// Its configs with the entries of a definition's indexes; `make` computes them unless the last call was for the
    /// same version of the same definition.
    pub fn indexed(
        &self,
        definition: &Key,
        revision: Revision,
        make: impl FnOnce() -> Indexed,
    ) -> Arc<Indexed> {
        let mut cached = self.indexed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some(found) if found.definition == *definition && found.revision == revision => Arc::clone(found),
            Some(_) | None => Arc::clone(cached.insert(Arc::new(make()))),
        }
    }
}

/// The events of consecutive changes; `state` is the state after the last of them.
pub fn events(changes: &[Arc<Change>], state: &State) -> Vec<Arc<Event>> {
    // Consecutive changes are mostly of one definition.
    let mut last: Option<(Revision, Key)> = None;
    let mut name = |id: Revision| {
        if let Some((known, key)) = &last
            && *known == id
        {
            return Some(key.clone());
        }
        let found = state.definition_by_id(id).map(|found| found.definition.key.clone());
        // A definition that the state does not have was deleted by one of the changes.
        let key = found.or_else(|| {
            changes.iter().flat_map(|change| &change.edits).find_map(|edit| match edit {
                Edit::Definition { before: Some(before), after: None } if before.id == id => {
                    Some(before.key.clone())
                }
                Edit::Definition { .. }
                | Edit::Reindexed { .. }
                | Edit::Deleted { .. }
                | Edit::Entries { .. }
                | Edit::Building { .. }
                | Edit::Config { .. }
                | Edit::Remember(_)
                | Edit::AccessKey { .. }
                | Edit::AuditAnchors { .. }
                | Edit::System { .. }
                | Edit::Undeleted { .. }
                | Edit::Dropped { .. }
                | Edit::Skipped(_)
                | Edit::Forget(_) => None,
            })
        })?;
        last = Some((id, key.clone()));
        Some(key)
    };
    let event = |(place, change): (usize, &Arc<Change>)| {
        let later = changes.get(place + 1..).unwrap_or_default();
        Event::of(change, (later, state), &mut name).map(Arc::new)
    };
    changes.iter().enumerate().filter_map(event).collect()
}

/// A page of the events after a position.
#[derive(Debug, Default)]
pub struct EventPage {
    /// In order; possibly none.
    pub events: Vec<Arc<Event>>,
    /// The page contains all requested events up to and including this revision.
    pub upto: Revision,
}

/// How much a page may contain. It contains at least one event when there is any.
#[derive(Debug, Clone, Copy)]
pub struct EventPageMax {
    /// Events.
    pub events: usize,
    /// Bytes of them.
    pub bytes: usize,
}

/// The recent events.
#[derive(Debug)]
pub struct Feed {
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Changes up to and including this revision are not in the ring.
    compaction_revision: Revision,
    /// The last applied revision.
    applied_revision: Revision,
}

impl Feed {
    /// A feed of the changes after a revision.
    #[must_use]
    pub fn new(at: Revision) -> Self {
        Self {
            ring: Mutex::new(Ring {
                events: VecDeque::new(),
                bytes: 0,
                compaction_revision: at,
                applied_revision: at,
            }),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // No code that holds the lock can panic between two consistent states of the ring.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the events of the changes up to and including `applied_revision`. The history holds all changes up to and
    /// including `in_history`.
    pub fn publish(&self, events: Vec<Arc<Event>>, applied_revision: Revision, in_history: Revision) {
        let mut removed = Vec::new();
        let mut ring = self.ring();
        for event in events {
            ring.bytes += event.bytes();
            ring.events.push_back(event);
        }
        ring.applied_revision = ring.applied_revision.max(applied_revision);
        while ring.events.len() > FEED_EVENTS_MAX || ring.bytes > FEED_BYTES_MAX {
            let Some(oldest) = ring.events.pop_front_if(|oldest| oldest.revision <= in_history) else {
                break;
            };
            ring.bytes -= oldest.bytes();
            ring.compaction_revision = oldest.revision;
            removed.push(oldest);
        }
        drop(ring);
        // Freed after the lock is released.
        drop(removed);
    }

    /// A snapshot was installed: the changes before it are missing.
    pub fn reset(&self, at: Revision) {
        let mut ring = self.ring();
        let removed = std::mem::take(&mut ring.events);
        ring.bytes = 0;
        ring.compaction_revision = ring.compaction_revision.max(at);
        ring.applied_revision = ring.applied_revision.max(at);
        drop(ring);
        drop(removed);
    }

    /// Its events, and their bytes.
    #[must_use]
    pub fn figures(&self) -> (usize, usize) {
        let ring = self.ring();
        (ring.events.len(), ring.bytes)
    }

    /// Changes up to and including this revision are not in the feed.
    #[must_use]
    pub fn compaction_revision(&self) -> Revision {
        self.ring().compaction_revision
    }

    /// The last applied revision.
    #[must_use]
    pub fn applied_revision(&self) -> Revision {
        self.ring().applied_revision
    }

    /// The events after a position; `None` when the feed no longer contains all of them.
    #[must_use]
    pub fn after(&self, seen: Revision, max: EventPageMax) -> Option<EventPage> {
        let ring = self.ring();
        if seen < ring.compaction_revision {
            return None;
        }
        let from = ring.events.partition_point(|event| event.revision <= seen);
        let (mut events, mut bytes) = (Vec::new(), 0_usize);
        for event in ring.events.range(from..) {
            if events.len() >= max.events || bytes >= max.bytes {
                break;
            }
            bytes += event.bytes();
            events.push(Arc::clone(event));
        }
        let is_all = from + events.len() == ring.events.len();
        let last = events.last().map(|event| event.revision);
        let upto = if is_all { ring.applied_revision.max(seen) } else { last.unwrap_or(seen) };
        Some(EventPage { events, upto })
    }

    /// The events of these ascending revisions, until `bytes_max` is reached; `None` when one is no longer in the feed.
    #[must_use]
    pub fn pick(&self, revisions: &[Revision], bytes_max: usize) -> Option<Vec<Arc<Event>>> {
        let ring = self.ring();
        let (mut events, mut bytes) = (Vec::with_capacity(revisions.len()), 0_usize);
        for revision in revisions {
            if bytes >= bytes_max {
                break;
            }
            if *revision <= ring.compaction_revision {
                return None;
            }
            let position = ring.events.binary_search_by_key(revision, |event| event.revision).ok()?;
            bytes += ring.events[position].bytes();
            events.push(Arc::clone(&ring.events[position]));
        }
        Some(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::events::{event, key};
    use concord_model::{
        access_key::Author,
        command::{Command, Expect, Proposal},
    };

    const PAGE_MAX: EventPageMax = EventPageMax { events: 4, bytes: 1 << 20 };

    fn revisions(page: &EventPage) -> Vec<Revision> {
        page.events.iter().map(|event| event.revision).collect()
    }

    #[test]
    fn pages_have_no_gap_and_end_at_the_applied_revision() {
        let feed = Feed::new(10);
        assert!(feed.after(9, PAGE_MAX).is_none(), "changes before its beginning are missing");
        let page = feed.after(10, PAGE_MAX).unwrap();
        assert_eq!((revisions(&page), page.upto), (vec![], 10));
        let events = [11, 13, 14, 17, 18].map(|revision| event(revision, "d", "k", "{}"));
        feed.publish(events.into(), 20, 0);
        let page = feed.after(10, PAGE_MAX).unwrap();
        assert_eq!((revisions(&page), page.upto), (vec![11, 13, 14, 17], 17));
        let page = feed.after(17, PAGE_MAX).unwrap();
        assert_eq!((revisions(&page), page.upto), (vec![18], 20));
        assert_eq!(feed.after(30, PAGE_MAX).unwrap().upto, 30, "a reader may be ahead of this node");
        let small = EventPageMax { events: 9, bytes: 1 };
        assert_eq!(revisions(&feed.after(12, small).unwrap()), [13], "at least one is returned");
        let picked = feed.pick(&[13, 18], usize::MAX).unwrap();
        assert_eq!(picked.iter().map(|event| event.revision).collect::<Vec<_>>(), [13, 18]);
    }

    #[test]
    fn only_changes_in_the_history_are_removed() {
        let feed = Feed::new(0);
        let last = FEED_EVENTS_MAX as u64 + 10;
        for revision in 1..=last {
            feed.publish(vec![event(revision, "d", "k", "{}")], revision, 4);
        }
        assert_eq!(feed.compaction_revision(), 4);
        assert_eq!(revisions(&feed.after(4, PAGE_MAX).unwrap()), [5, 6, 7, 8]);
        assert!(feed.after(3, PAGE_MAX).is_none() && feed.pick(&[4, 5], usize::MAX).is_none());
        feed.publish(Vec::new(), last, last);
        assert_eq!(feed.compaction_revision(), 10);
        let large = "x".repeat(FEED_BYTES_MAX);
        feed.publish(vec![event(last + 1, "d", "k", &large)], last + 1, last);
        assert_eq!(feed.compaction_revision(), last, "bytes are bounded, too");
    }

    #[test]
    fn an_installed_state_is_a_gap() {
        let feed = Feed::new(0);
        feed.publish(vec![event(1, "d", "k", "{}")], 1, 0);
        feed.reset(9);
        assert!(feed.after(1, PAGE_MAX).is_none() && feed.after(8, PAGE_MAX).is_none());
        assert_eq!(feed.after(9, PAGE_MAX).unwrap().upto, 9);
    }

    #[test]
    fn configs_name_their_definition_even_when_it_is_deleted_in_the_same_run() {
        let mut state = State::new();
        let mut changes = Vec::new();
        let mut apply = |revision: Revision, command: Command, definition_read| {
            let (by, at) = ("root".into(), Timestamp(revision));
            let proposal = Proposal {
                at,
                by,
                reason: None,
                request: None,
                definition_read,
                command,
                author: Author::Root,
                tail: None,
            };
            changes.extend(state.apply(revision, &proposal).1.map(Arc::new));
        };
        let (d, k) = (key("d"), key("k"));
        apply(1, Command::CreateDefinition { key: d.clone(), indexes: vec![], schema: None }, None);
        let (data, entries, expect) = ("{}".into(), Box::default(), Expect::Absent);
        let write = Command::WriteConfig { definition: d.clone(), key: k.clone(), data, entries, expect };
        apply(2, write, Some(1));
        apply(
            3,
            Command::DeleteDefinition { key: d, expect: Expect::Any, restrict: false, keep: None },
            None,
        );
        let made = events(&changes, &state);
        assert_eq!(made.len(), 3);
        assert!(matches!(
            &made[1].items[..],
            [RecordChange::Config { definition, key, before: Before::Nothing, after: Some(_) }]
                if definition.as_str() == "d" && *key == k
        ));
        assert!(matches!(&made[2].items[..], [RecordChange::Definition { after: None, is_new: false, .. }]));
    }
}
