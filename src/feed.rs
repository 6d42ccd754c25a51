//! The recent changes in memory, as watchers read them: what the log decided, record by record, each with the keys
//! that it is known by.
//!
//! It is no queue. A reader has a position, a revision, and asks for what lies behind it; when the feed does not
//! reach back so far any more, the reader goes to the history. So a slow reader costs nothing here, and nobody
//! can be left out because something was full.
//!
//! Publishing is one push for each change under a lock that is held for microseconds: readers copy pointers under
//! it and nothing else.
//!
//! **Invariants**
//! 1. Every change behind `compaction_revision` and up to `reach` is there, in order. What was skipped (an installed snapshot)
//!    raises `compaction_revision`, so that it is seen as missing and never as nothing.
//! 2. A change is let go only when the history holds it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;

use crate::{
    model::{
        key::Key,
        limits::{FEED_BYTES_MAX, FEED_EVENTS_MAX},
        record::{Config, Definition, Revision},
        time::Timestamp,
    },
    state::{Change, Edit, State},
};

/// What one entry of the log did, as a watcher is told.
#[derive(Debug)]
pub struct Event {
    /// The entry.
    pub revision: Revision,
    /// Its time.
    pub at: Timestamp,
    /// Who asked for it.
    pub by: String,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// What it did, record by record; at least one.
    pub items: Vec<Item>,
    /// The whole of it as it is shown, made once for all who are shown the whole.
    pub shown: OnceLock<Bytes>,
    /// Its configs with the entries of a definition's indexes, made once for all who filter by that definition.
    indexed: Mutex<Option<Arc<Indexed>>>,
}

/// One record's part of an event.
#[derive(Debug, Clone)]
pub enum Item {
    /// A definition; its end is the end of all its configs.
    Definition {
        /// Its key.
        key: Key,
        /// Whether it is new.
        is_new: bool,
        /// As it is from now on; `None` when it was deleted.
        after: Option<Arc<Definition>>,
    },
    /// A config.
    Config {
        /// Its definition's key.
        definition: Key,
        /// Its key.
        key: Key,
        /// As it was.
        before: Before,
        /// As it is from now on; `None` when it was deleted.
        after: Option<Arc<Config>>,
    },
}

/// A config as it was before a change.
#[derive(Debug, Clone)]
pub enum Before {
    /// There was none.
    Nothing,
    /// This one.
    Known(Arc<Config>),
    /// There was one; an event that comes from the history does not say which.
    Unknown,
}

/// A config before and after an event, where they are known.
pub type BeforeAndAfter = (Option<Arc<Config>>, Option<Arc<Config>>);

/// The configs of an event with the entries that one version of their definition's indexes finds in them.
#[derive(Debug)]
pub struct Indexed {
    /// The definition.
    pub definition: Key,
    /// Its version.
    pub revision: Revision,
    /// For each item of the event, the config before and after, where they are known and of this definition.
    pub items: Vec<BeforeAndAfter>,
}

impl Event {
    /// An event without an item is none.
    #[must_use]
    pub fn new(
        revision: Revision,
        at: Timestamp,
        (by, reason): (&str, Option<&String>),
        items: Vec<Item>,
    ) -> Option<Self> {
        let (shown, indexed) = (OnceLock::new(), Mutex::new(None));
        let event = Self { revision, at, by: by.into(), reason: reason.cloned(), items, shown, indexed };
        (!event.items.is_empty()).then_some(event)
    }

    /// The event that a change is; `name` knows definitions by their id.
    fn of(change: &Change, mut name: impl FnMut(Revision) -> Option<Key>) -> Option<Self> {
        let item = |edit: &Edit| match edit {
            Edit::Definition { before, after } => {
                let key = after.as_ref().or(before.as_ref())?.key.clone();
                Some(Item::Definition { key, is_new: before.is_none(), after: after.clone() })
            }
            Edit::Config { definition, before, after } => {
                let key = after.as_ref().or(before.as_ref())?.key.clone();
                let before = before.clone().map_or(Before::Nothing, Before::Known);
                Some(Item::Config { definition: name(*definition)?, key, before, after: after.clone() })
            }
            Edit::Reindexed { .. }
            | Edit::Entries { .. }
            | Edit::Building { .. }
            | Edit::Remember(_)
            | Edit::Forget(_) => None,
        };
        let items = change.edits.iter().filter_map(item).collect();
        Self::new(change.revision, change.at, (&change.by, change.reason.as_ref()), items)
    }

    /// About the bytes that it keeps in memory: the records, and what it is shown as.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let item = |item: &Item| match item {
            Item::Definition { after, .. } => {
                let schema = after.as_ref().and_then(|definition| definition.schema.as_ref());
                2 * schema.map_or(0, |schema| schema.len())
            }
            Item::Config { before, after, .. } => {
                let before = match before {
                    Before::Known(config) => config.data.len(),
                    Before::Nothing | Before::Unknown => 0,
                };
                before + 2 * after.as_ref().map_or(0, |config| config.data.len())
            }
        };
        self.items.iter().map(|each| 512 + item(each)).sum()
    }

    /// Its configs with the entries of a definition's indexes; `make` is called when the last that asked had
    /// another version in mind.
    pub fn indexed(
        &self,
        definition: &Key,
        revision: Revision,
        make: impl FnOnce() -> Indexed,
    ) -> Arc<Indexed> {
        let mut kept = self.indexed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(found) if found.definition == *definition && found.revision == revision => Arc::clone(found),
            Some(_) | None => Arc::clone(kept.insert(Arc::new(make()))),
        }
    }
}

/// The events of a run of changes; `state` is the one behind the run.
pub(crate) fn events(changes: &[Arc<Change>], state: &State) -> Vec<Arc<Event>> {
    // Neighbours are mostly of one definition.
    let mut last: Option<(Revision, Key)> = None;
    let mut name = |id: Revision| {
        if let Some((known, key)) = &last
            && *known == id
        {
            return Some(key.clone());
        }
        let found = state.definition_by_id(id).map(|found| found.definition.key.clone());
        // What is not there behind the run was deleted within it.
        let key = found.or_else(|| {
            changes.iter().flat_map(|change| &change.edits).find_map(|edit| match edit {
                Edit::Definition { before: Some(before), after: None } if before.id == id => {
                    Some(before.key.clone())
                }
                Edit::Definition { .. }
                | Edit::Reindexed { .. }
                | Edit::Entries { .. }
                | Edit::Building { .. }
                | Edit::Config { .. }
                | Edit::Remember(_)
                | Edit::Forget(_) => None,
            })
        })?;
        last = Some((id, key.clone()));
        Some(key)
    };
    changes.iter().filter_map(|change| Event::of(change, &mut name)).map(Arc::new).collect()
}

/// Some of the events behind a position.
#[derive(Debug, Default)]
pub struct Piece {
    /// In order; perhaps none.
    pub events: Vec<Arc<Event>>,
    /// All that the piece was asked for is in it up to this revision.
    pub upto: Revision,
}

/// How much a piece may hold; at least one event is in it when there is any.
#[derive(Debug, Clone, Copy)]
pub struct Most {
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
    /// What is up to here is not in the ring.
    compaction_revision: Revision,
    /// The last applied revision.
    reach: Revision,
}

impl Feed {
    /// A feed that begins behind a revision.
    #[must_use]
    pub fn new(at: Revision) -> Self {
        Self {
            ring: Mutex::new(Ring { events: VecDeque::new(), bytes: 0, compaction_revision: at, reach: at }),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Nothing between two consistent forms of the ring can panic.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the events of a run that ends at `reach`. The history holds everything up to `kept`.
    pub(crate) fn publish(&self, events: Vec<Arc<Event>>, reach: Revision, kept: Revision) {
        let mut gone = Vec::new();
        let mut ring = self.ring();
        for event in events {
            ring.bytes += event.bytes();
            ring.events.push_back(event);
        }
        ring.reach = ring.reach.max(reach);
        while ring.events.len() > FEED_EVENTS_MAX || ring.bytes > FEED_BYTES_MAX {
            let Some(oldest) = ring.events.pop_front_if(|oldest| oldest.revision <= kept) else { break };
            ring.bytes -= oldest.bytes();
            ring.compaction_revision = oldest.revision;
            gone.push(oldest);
        }
        drop(ring);
        // Freed outside of the lock.
        drop(gone);
    }

    /// A state was installed: nothing is known of the way to it.
    pub(crate) fn reset(&self, at: Revision) {
        let mut ring = self.ring();
        let gone = std::mem::take(&mut ring.events);
        ring.bytes = 0;
        ring.compaction_revision = ring.compaction_revision.max(at);
        ring.reach = ring.reach.max(at);
        drop(ring);
        drop(gone);
    }

    /// What is up to this revision is not here.
    #[must_use]
    pub fn compaction_revision(&self) -> Revision {
        self.ring().compaction_revision
    }

    /// The last revision that it knows of.
    #[must_use]
    pub fn reach(&self) -> Revision {
        self.ring().reach
    }

    /// What lies behind a position; `None` when the feed does not reach back so far.
    #[must_use]
    pub fn after(&self, seen: Revision, most: Most) -> Option<Piece> {
        let ring = self.ring();
        if seen < ring.compaction_revision {
            return None;
        }
        let from = ring.events.partition_point(|event| event.revision <= seen);
        let (mut events, mut bytes) = (Vec::new(), 0_usize);
        for event in ring.events.range(from..) {
            if events.len() >= most.events || bytes >= most.bytes {
                break;
            }
            bytes += event.bytes();
            events.push(Arc::clone(event));
        }
        let is_all = from + events.len() == ring.events.len();
        let last = events.last().map(|event| event.revision);
        let upto = if is_all { ring.reach.max(seen) } else { last.unwrap_or(seen) };
        Some(Piece { events, upto })
    }

    /// The events of these revisions, ascending, up to `bytes` and one more; `None` when the first is gone.
    #[must_use]
    pub fn pick(&self, revisions: &[Revision], bytes_most: usize) -> Option<Vec<Arc<Event>>> {
        let ring = self.ring();
        let (mut events, mut bytes) = (Vec::with_capacity(revisions.len()), 0_usize);
        for revision in revisions {
            if bytes >= bytes_most {
                break;
            }
            if *revision <= ring.compaction_revision {
                return None;
            }
            let place = ring.events.binary_search_by_key(revision, |event| event.revision).ok()?;
            bytes += ring.events[place].bytes();
            events.push(Arc::clone(&ring.events[place]));
        }
        Some(events)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::command::{Command, Expect, Proposal};

    pub(crate) fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    pub(crate) fn config(name: &str, revision: Revision, data: &str) -> Arc<Config> {
        Arc::new(Config {
            key: key(name),
            data: data.into(),
            entries: Box::default(),
            created_at: Timestamp(1),
            modified_at: Timestamp(revision),
            revision,
        })
    }

    /// The event of a new config.
    pub(crate) fn event(revision: Revision, definition: &str, name: &str, data: &str) -> Arc<Event> {
        let after = Some(config(name, revision, data));
        let item =
            Item::Config { definition: key(definition), key: key(name), before: Before::Nothing, after };
        Arc::new(Event::new(revision, Timestamp(revision), ("root", None), vec![item]).unwrap())
    }

    const MOST: Most = Most { events: 4, bytes: 1 << 20 };

    fn revisions(piece: &Piece) -> Vec<Revision> {
        piece.events.iter().map(|event| event.revision).collect()
    }

    #[test]
    fn pieces_meet_and_reach_to_the_end() {
        let feed = Feed::new(10);
        assert!(feed.after(9, MOST).is_none(), "what lies before its beginning is not nothing");
        let piece = feed.after(10, MOST).unwrap();
        assert_eq!((revisions(&piece), piece.upto), (vec![], 10));
        let events = [11, 13, 14, 17, 18].map(|revision| event(revision, "d", "k", "{}"));
        feed.publish(events.into(), 20, 0);
        let piece = feed.after(10, MOST).unwrap();
        assert_eq!((revisions(&piece), piece.upto), (vec![11, 13, 14, 17], 17));
        let piece = feed.after(17, MOST).unwrap();
        assert_eq!((revisions(&piece), piece.upto), (vec![18], 20));
        assert_eq!(feed.after(30, MOST).unwrap().upto, 30, "a reader may be ahead of this node");
        let small = Most { events: 9, bytes: 1 };
        assert_eq!(revisions(&feed.after(12, small).unwrap()), [13], "one is always given");
        let picked = feed.pick(&[13, 18], usize::MAX).unwrap();
        assert_eq!(picked.iter().map(|event| event.revision).collect::<Vec<_>>(), [13, 18]);
    }

    #[test]
    fn only_what_the_history_holds_is_let_go() {
        let feed = Feed::new(0);
        let last = FEED_EVENTS_MAX as u64 + 10;
        for revision in 1..=last {
            feed.publish(vec![event(revision, "d", "k", "{}")], revision, 4);
        }
        assert_eq!(feed.compaction_revision(), 4);
        assert_eq!(revisions(&feed.after(4, MOST).unwrap()), [5, 6, 7, 8]);
        assert!(feed.after(3, MOST).is_none() && feed.pick(&[4, 5], usize::MAX).is_none());
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
        assert!(feed.after(1, MOST).is_none() && feed.after(8, MOST).is_none());
        assert_eq!(feed.after(9, MOST).unwrap().upto, 9);
    }

    #[test]
    fn configs_are_named_by_their_definition_even_when_it_ends_in_the_same_run() {
        let mut state = State::new();
        let mut changes = Vec::new();
        let mut apply = |revision: Revision, command: Command, definition_read| {
            let (by, at) = ("root".into(), Timestamp(revision));
            let proposal = Proposal { at, by, reason: None, request: None, definition_read, command };
            changes.extend(state.apply(revision, &proposal).1.map(Arc::new));
        };
        let (d, k) = (key("d"), key("k"));
        apply(1, Command::CreateDefinition { key: d.clone(), indexes: vec![], schema: None }, None);
        let (data, entries, expect) = ("{}".into(), Box::default(), Expect::Absent);
        let write = Command::WriteConfig { definition: d.clone(), key: k.clone(), data, entries, expect };
        apply(2, write, Some(1));
        apply(3, Command::DeleteDefinition { key: d, expect: Expect::Any, restrict: false }, None);
        let made = events(&changes, &state);
        assert_eq!(made.len(), 3);
        assert!(matches!(
            &made[1].items[..],
            [Item::Config { definition, key, before: Before::Nothing, after: Some(_) }]
                if definition.as_str() == "d" && *key == k
        ));
        assert!(matches!(&made[2].items[..], [Item::Definition { after: None, is_new: false, .. }]));
    }
}
