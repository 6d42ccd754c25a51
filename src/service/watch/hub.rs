//! Who is woken by which change.
//!
//! One task goes through the feed as it grows, looks up the topics that each change touches, notes the revision
//! there and wakes those who wait for it. So the cost of a change is a few look-ups, whatever the number of
//! watches on other things; and a watcher that is woken finds its changes listed, without a search.
//!
//! A topic lists its last few revisions only. A watcher that is further behind goes through the whole feed, and
//! behind that through the history: the lists are a short cut and never the truth.
//!
//! **Invariant:** a topic lists every one of its changes behind its `behind` and up to `reach`; a watcher is woken
//! after its change can be read.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, watch},
    time::Instant,
};

use crate::{
    feed::{Event, EventPage, EventPageMax, Feed, RecordChange},
    model::{key::Key, record::Revision},
};

/// Revisions that a topic lists: a watcher that is further behind is not helped by a list.
const HITS_MAX: usize = 256;
/// What a watcher takes at once, and so the most that a slow reader holds.
pub(super) const PIECE: EventPageMax = EventPageMax { events: 256, bytes: 256 << 10 };
/// What is gone through at once between two looks at the clock.
const STRETCH: EventPageMax = EventPageMax { events: 1024, bytes: usize::MAX };
/// Watchers that are woken at once, and what else there is to do comes between: thousands that were woken together
/// would keep every write waiting behind them.
const WOKEN_AT_ONCE: usize = 32;
/// Watchers that read the history at once: more would only make each other slow.
const HISTORY_READERS: usize = 4;

/// What a change is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// Everything.
    All,
    /// A definition with all its configs.
    Definition(Key),
    /// A definition without its configs.
    Itself(Key),
    /// A config of a definition.
    Config(Key, Key),
}

/// The watches of a node.
#[derive(Debug)]
pub struct Hub {
    topics: Mutex<Topics>,
    next: AtomicU64,
    is_running: AtomicBool,
    most: usize,
    /// When this node was last known to have applied all that was acknowledged by then.
    confirmed: Mutex<Instant>,
    /// One place for each watch.
    pub(super) places: Arc<Semaphore>,
    /// One place for each that reads the history.
    pub(super) readers: Semaphore,
}

#[derive(Debug, Default)]
struct Topics {
    slots: BTreeMap<Topic, Slot>,
    /// Everything up to here has been noted.
    reach: Revision,
}

#[derive(Debug)]
struct Slot {
    hits: VecDeque<Revision>,
    /// What is up to here may be missing in `hits`.
    behind: Revision,
    watchers: BTreeMap<u64, Arc<Notify>>,
}

/// A watcher's place among those who are woken. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    hub: Arc<Hub>,
    id: u64,
    topics: Vec<Topic>,
    pub(super) notify: Arc<Notify>,
}

impl Hub {
    /// A hub for so many watches.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            topics: Mutex::default(),
            next: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            most,
            confirmed: Mutex::new(Instant::now()),
            places: Arc::new(Semaphore::new(most)),
            readers: Semaphore::new(HISTORY_READERS),
        }
    }

    /// This node has applied all that was acknowledged before a moment.
    pub(super) fn confirm(&self, asked: Instant) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        *confirmed = asked.max(*confirmed);
    }

    /// Since when nothing is known of that.
    pub(super) fn unconfirmed(&self) -> Duration {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether any watch is open.
    pub(super) fn is_used(&self) -> bool {
        self.places.available_permits() < self.most
    }

    /// How many watches it has places for.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    fn topics(&self) -> MutexGuard<'_, Topics> {
        // Nothing between two consistent forms of the topics can panic.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task that wakes, once; it ends with the feed's node. Whether this call has started it.
    pub(super) fn run(self: &Arc<Self>, feed: Arc<Feed>, revisions: watch::Receiver<Revision>) -> bool {
        let is_first = !self.is_running.swap(true, Ordering::Relaxed);
        if is_first {
            self.topics().reach = feed.applied_revision();
            drop(tokio::spawn(Arc::clone(self).work(feed, revisions)));
        }
        is_first
    }

    async fn work(self: Arc<Self>, feed: Arc<Feed>, mut revisions: watch::Receiver<Revision>) {
        while revisions.changed().await.is_ok() {
            loop {
                let (woken, more) = self.step(&feed);
                for some in woken.chunks(WOKEN_AT_ONCE) {
                    some.iter().for_each(|watcher| watcher.notify_one());
                    tokio::task::yield_now().await;
                }
                if !more {
                    break;
                }
            }
        }
    }

    /// Notes some of what is new; gives those who wait for it, and whether more may be.
    fn step(&self, feed: &Feed) -> (Vec<Arc<Notify>>, bool) {
        let mut topics = self.topics();
        match feed.after(topics.reach, STRETCH) {
            Some(piece) => {
                (topics.note(&piece, feed.compaction_revision()), piece.events.len() == STRETCH.events)
            }
            // Changes are gone that were not noted: everybody looks for himself.
            None => (topics.reset(feed.compaction_revision()), true),
        }
    }

    /// A place for a watcher of these topics.
    pub(super) fn register(self: &Arc<Self>, topics: Vec<Topic>) -> Place {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let notify = Arc::new(Notify::new());
        let mut all = self.topics();
        let behind = all.reach;
        for topic in &topics {
            let slot = all.slots.entry(topic.clone()).or_insert_with(|| Slot::new(behind));
            slot.watchers.insert(id, Arc::clone(&notify));
        }
        drop(all);
        Place { hub: Arc::clone(self), id, topics, notify }
    }
}

impl Topics {
    /// Notes what a piece touches; gives those who wait for it.
    fn note(&mut self, piece: &EventPage, compaction_revision: Revision) -> Vec<Arc<Notify>> {
        self.reach = self.reach.max(piece.upto);
        if self.slots.is_empty() {
            return Vec::new();
        }
        let mut touched = BTreeSet::new();
        for event in &piece.events {
            let topics = event.items.iter().flat_map(topics_of);
            for topic in std::iter::once(Topic::All).chain(topics) {
                let Some(slot) = self.slots.get_mut(&topic) else { continue };
                if slot.hits.back() != Some(&event.revision) {
                    slot.hits.push_back(event.revision);
                    slot.cut(compaction_revision, HITS_MAX);
                    touched.insert(topic);
                }
            }
        }
        waiting(touched.iter().filter_map(|topic| self.slots.get(topic)))
    }

    /// What was up to `compaction_revision` was not noted.
    fn reset(&mut self, compaction_revision: Revision) -> Vec<Arc<Notify>> {
        self.reach = self.reach.max(compaction_revision);
        for slot in self.slots.values_mut() {
            slot.hits.clear();
            slot.behind = slot.behind.max(compaction_revision);
        }
        waiting(self.slots.values())
    }

    /// The revisions behind a position that touch any of the topics, and whether they are all of them up to
    /// `reach`; `None` when the lists do not reach back so far.
    fn hits(
        &mut self,
        topics: &[Topic],
        seen: Revision,
        compaction_revision: Revision,
    ) -> Option<(Vec<Revision>, bool)> {
        let mut hits = Vec::new();
        for topic in topics {
            let slot = self.slots.get_mut(topic)?;
            slot.cut(compaction_revision, HITS_MAX);
            if slot.behind > seen {
                return None;
            }
            let from = slot.hits.partition_point(|hit| *hit <= seen);
            hits.extend(slot.hits.range(from..));
        }
        hits.sort_unstable();
        hits.dedup();
        let is_all = hits.len() <= PIECE.events;
        hits.truncate(PIECE.events);
        Some((hits, is_all))
    }
}

/// All who wait for any of some topics, each once.
fn waiting<'a>(slots: impl Iterator<Item = &'a Slot>) -> Vec<Arc<Notify>> {
    let woken: BTreeMap<u64, &Arc<Notify>> =
        slots.flat_map(|slot| &slot.watchers).map(|(id, watcher)| (*id, watcher)).collect();
    woken.into_values().cloned().collect()
}

/// The topics of an item, beside [`Topic::All`].
fn topics_of(item: &RecordChange) -> [Topic; 2] {
    match item {
        RecordChange::Definition { key, .. } => [Topic::Definition(key.clone()), Topic::Itself(key.clone())],
        RecordChange::Config { definition, key, .. } => {
            [Topic::Definition(definition.clone()), Topic::Config(definition.clone(), key.clone())]
        }
    }
}

impl Slot {
    fn new(behind: Revision) -> Self {
        Self { hits: VecDeque::new(), behind, watchers: BTreeMap::new() }
    }

    /// Lets go of what the feed does not have any more, and of what is too much.
    fn cut(&mut self, compaction_revision: Revision, most: usize) {
        while self.hits.front().is_some_and(|hit| *hit <= compaction_revision || self.hits.len() > most) {
            self.behind = self.hits.pop_front().unwrap_or(self.behind);
        }
    }
}

impl Place {
    /// What the watcher has to look at behind its position; `None` when the feed does not reach back so far. Events
    /// of other topics may be among it.
    pub(super) fn read(&self, feed: &Feed, seen: Revision) -> Option<EventPage> {
        if self.topics != [Topic::All] {
            let compaction_revision = feed.compaction_revision();
            let mut topics = self.hub.topics();
            let hits = topics.hits(&self.topics, seen, compaction_revision);
            let reach = topics.reach.max(seen);
            drop(topics);
            if let Some((hits, is_all)) = hits {
                let events = feed.pick(&hits, PIECE.bytes)?;
                let last = events.last().map_or(seen, |event: &Arc<Event>| event.revision);
                let upto = if is_all && events.len() == hits.len() { reach } else { last };
                return Some(EventPage { events, upto });
            }
        }
        feed.after(seen, PIECE)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.hub.topics();
        for topic in &self.topics {
            if let Some(slot) = all.slots.get_mut(topic) {
                slot.watchers.remove(&self.id);
                if slot.watchers.is_empty() {
                    all.slots.remove(topic);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::feed::tests::{event, key};

    fn place(hub: &Arc<Hub>, definition: &str) -> Place {
        hub.register(vec![Topic::Definition(key(definition))])
    }

    fn is_woken(place: &Place) -> bool {
        place.notify.notified().now_or_never().is_some()
    }

    fn publish(hub: &Hub, feed: &Feed, events: &[Arc<Event>]) {
        let last = events.last().unwrap().revision;
        feed.publish(events.to_vec(), last, last);
        step(hub, feed);
    }

    /// What the task does, all at once.
    fn step(hub: &Hub, feed: &Feed) {
        loop {
            let (woken, more) = hub.step(feed);
            woken.iter().for_each(|watcher| watcher.notify_one());
            if !more {
                return;
            }
        }
    }

    fn read(place: &Place, feed: &Feed, seen: Revision) -> (Vec<Revision>, Revision) {
        let piece = place.read(feed, seen).unwrap();
        (piece.events.iter().map(|event| event.revision).collect(), piece.upto)
    }

    #[test]
    fn only_those_are_woken_whose_topic_is_touched_and_they_find_it_listed() {
        let (hub, feed) = (Arc::new(Hub::new(9)), Feed::new(0));
        let (one, two, all) = (place(&hub, "one"), place(&hub, "two"), hub.register(vec![Topic::All]));
        let config = hub.register(vec![
            Topic::Itself(key("one")),
            Topic::Config(key("one"), key("a")),
            Topic::Config(key("one"), key("c")),
        ]);
        publish(&hub, &feed, &[event(1, "one", "a", "{}"), event(2, "one", "b", "{}")]);
        assert!(is_woken(&one) && is_woken(&all) && is_woken(&config) && !is_woken(&two));
        assert_eq!(read(&one, &feed, 0), (vec![1, 2], 2));
        assert_eq!(read(&config, &feed, 0), (vec![1], 2));
        assert_eq!(read(&two, &feed, 0), (vec![], 2));
        assert_eq!(read(&all, &feed, 1), (vec![2], 2));
        publish(&hub, &feed, &[event(5, "one", "c", "{}")]);
        assert!(is_woken(&config) && !is_woken(&two));
        assert_eq!(read(&config, &feed, 1), (vec![5], 5));
        drop((one, two, all, config));
        assert!(hub.topics().slots.is_empty());
    }

    #[test]
    fn a_watcher_that_is_older_than_its_topic_goes_through_the_feed() {
        let (hub, feed) = (Arc::new(Hub::new(9)), Feed::new(0));
        publish(&hub, &feed, &[event(1, "one", "a", "{}"), event(2, "two", "b", "{}")]);
        let two = place(&hub, "two");
        assert_eq!(read(&two, &feed, 0), (vec![1, 2], 2), "the topic lists nothing up to 2");
        publish(&hub, &feed, &[event(3, "two", "b", "{}"), event(4, "one", "b", "{}")]);
        assert_eq!(read(&two, &feed, 2), (vec![3], 4));
    }

    #[test]
    fn a_topic_lists_a_bounded_number_and_forgets_what_the_feed_forgot() {
        let (hub, feed) = (Arc::new(Hub::new(9)), Feed::new(0));
        let one = place(&hub, "one");
        let many: Vec<_> = (1..=HITS_MAX as u64 + 50).map(|r| event(r, "one", "a", "{}")).collect();
        publish(&hub, &feed, &many);
        assert_eq!(hub.topics().slots.values().next().unwrap().hits.len(), HITS_MAX);
        let (first, upto) = read(&one, &feed, 0);
        assert_eq!((first.len(), upto), (PIECE.events, PIECE.events as u64), "from the feed");
        assert_eq!(read(&one, &feed, 300), ((301..=306).collect(), 306), "from the list");
        feed.reset(400);
        step(&hub, &feed);
        assert!(is_woken(&one) && one.read(&feed, 306).is_none(), "a gap is seen");
        assert_eq!(read(&one, &feed, 400), (vec![], 400));
    }
}
