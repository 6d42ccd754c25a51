//! Wakes the watches that a change concerns.
//!
//! One task follows the feed. For each event it records the revision in the [topics](super::topics) of the event, and
//! wakes their watches. So a change costs a few look-ups, however many watches wait for other topics, and a woken watch
//! finds its changes listed, without a search.
//!
//! **Invariant:** a watch is woken after its change can be read.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep_until},
};

use super::{
    permissions::WatchPermissions,
    scope::WatchScope,
    topics::{Topic, Topics},
};
use crate::{NodeReaders, Principal, ReaderWatch, request::WatchCount};
use concord_model::{
    key::Key, limits::READERS_OF_NODE_MAX, record::Revision, system::rollout::Reader, time::Timestamp,
};
use concord_state::feed::{Event, EventPage, EventPageMax, Feed};

/// What a watch reads at once, and so the most that a slow client holds in memory.
pub(super) const READ_MAX: EventPageMax = EventPageMax { events: 256, bytes: 256 << 10 };
/// What the task records at once under the lock.
const RECORD_MAX: EventPageMax = EventPageMax { events: 1024, bytes: usize::MAX };
/// Watches that are woken before other tasks run: waking thousands at once would delay every write.
const WAKE_BATCH: usize = 32;

/// A watch that does not name its definitions.
#[derive(Debug)]
struct WideWatch {
    scope: Arc<WatchScope>,
    is_identified: bool,
}

/// A watch whose client has said who it is.
#[derive(Debug)]
struct NamedWatch {
    scope: Arc<WatchScope>,
    reader: Arc<Reader>,
    since: Timestamp,
    /// The revision up to which its client has been told everything; 0 before the first one.
    told: Arc<AtomicU64>,
}

/// The watches of a node.
#[derive(Debug)]
pub struct WatchHub {
    topics: Mutex<Topics>,
    /// Those of all records: which of them is for a config only their scope says.
    wide: Mutex<BTreeMap<u64, WideWatch>>,
    /// Those that name their reader, in the order in which they began.
    named: Mutex<BTreeMap<u64, NamedWatch>>,
    next_id: AtomicU64,
    is_running: AtomicBool,
    watches_max: usize,
    /// The last moment at which this node had applied everything that was acknowledged.
    confirmed: Mutex<Instant>,
    /// The permissions of the open watches.
    pub(super) permissions: Arc<WatchPermissions>,
    /// One permit for each open watch.
    pub(super) permits: Arc<Semaphore>,
}

/// The registration of a watch for its topics. Dropping it unregisters the watch.
#[derive(Debug)]
pub(super) struct WatchRegistration {
    hub: Arc<WatchHub>,
    id: u64,
    topics: Vec<Topic>,
    pub(super) notify: Arc<Notify>,
    /// Set where it names its reader.
    told: Option<Arc<AtomicU64>>,
}

impl WatchHub {
    /// A hub for at most `watches_max` watches.
    #[must_use]
    pub fn new(watches_max: usize) -> Self {
        Self {
            topics: Mutex::default(),
            wide: Mutex::default(),
            named: Mutex::default(),
            next_id: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            watches_max,
            confirmed: Mutex::new(Instant::now()),
            permissions: Arc::default(),
            permits: Arc::new(Semaphore::new(watches_max)),
        }
    }

    /// Notes that this node has applied everything that was acknowledged before this moment.
    pub(super) fn confirm(&self, moment: Instant) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        *confirmed = moment.max(*confirmed);
    }

    /// The time since the last confirmed moment.
    pub(super) fn unconfirmed(&self) -> Duration {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// The number of open watches, and its limit.
    pub(crate) fn figures(&self) -> [usize; 2] {
        [self.watches_max.saturating_sub(self.permits.available_permits()), self.watches_max]
    }

    /// Whether any watch is open.
    pub(super) fn has_watches(&self) -> bool {
        self.permits.available_permits() < self.watches_max
    }

    /// The limit of open watches.
    pub(super) fn watches_max(&self) -> usize {
        self.watches_max
    }

    /// The limit of open watches of one principal. A stored key leaves some to the others.
    pub(super) fn watches_max_of(&self, principal: &Principal) -> u64 {
        let all = self.watches_max as u64;
        principal.key().map_or(all, |key| key.quota.watches.unwrap_or((all / 2).max(1)).min(all))
    }

    fn topics(&self) -> MutexGuard<'_, Topics> {
        // No code panics while it holds the lock.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to record the feed, once. If this call began it, it returns true, and the caller runs [`Self::follow`].
    pub(super) fn begin(&self, feed: &Feed) -> bool {
        let is_first = !self.is_running.swap(true, Ordering::Relaxed);
        if is_first {
            self.topics().begin(feed.applied_revision());
        }
        is_first
    }

    /// Wakes watches until the feed's node ends.
    pub(super) async fn follow(
        self: Arc<Self>,
        feed: Arc<Feed>,
        mut revisions: watch::Receiver<Revision>,
    ) -> Result<(), String> {
        loop {
            let due = self.topics().next_wake();
            tokio::select! {
                changed = revisions.changed() => if changed.is_err() { return Ok(()) },
                () = at(due) => {}
            }
            loop {
                let (woken, has_more) = self.record_next(&feed);
                for batch in woken.chunks(WAKE_BATCH) {
                    batch.iter().for_each(|watch| watch.notify_one());
                    tokio::task::yield_now().await;
                }
                if !has_more {
                    break;
                }
            }
        }
    }

    /// Records the next events of the feed. Returns the watches to wake, and whether there may be more events.
    fn record_next(&self, feed: &Feed) -> (Vec<Arc<Notify>>, bool) {
        let (mut topics, now) = (self.topics(), Instant::now());
        let mut woken = topics.take_due(now);
        match feed.after(topics.recorded_upto(), RECORD_MAX) {
            Some(piece) => {
                let has_more = piece.events.len() == RECORD_MAX.events;
                woken.extend(topics.record(&piece, feed.compaction_revision(), now));
                (woken, has_more)
            }
            // The feed has dropped events before they were recorded. Every watch must read the feed.
            None => (topics.reset(feed.compaction_revision()), true),
        }
    }

    /// Records all events of the feed. [`Self::follow`] does so by itself a moment after each change.
    pub(super) fn catch_up(&self, feed: &Feed) {
        loop {
            let (woken, has_more) = self.record_next(feed);
            woken.iter().for_each(|watch| watch.notify_one());
            if !has_more {
                return;
            }
        }
    }

    fn wide(&self) -> MutexGuard<'_, BTreeMap<u64, WideWatch>> {
        // No code panics while it holds the lock.
        self.wide.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a watch for the topics of its scope; that of a reader for the rollouts in it, too.
    pub(super) fn register(self: &Arc<Self>, scope: &Arc<WatchScope>, is_reader: bool) -> WatchRegistration {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let notify = Arc::new(Notify::new());
        let mut topics = scope.topics();
        if is_reader {
            let rollouts: Vec<Topic> = topics.iter().filter_map(Topic::of_rollouts).collect();
            topics.extend(rollouts);
        }
        if topics.contains(&Topic::All) {
            self.wide().insert(id, WideWatch { scope: Arc::clone(scope), is_identified: is_reader });
        }
        self.topics().add(&topics, id, &notify);
        WatchRegistration { hub: Arc::clone(self), id, topics, notify, told: None }
    }

    fn named(&self) -> MutexGuard<'_, BTreeMap<u64, NamedWatch>> {
        // No code panics while it holds the lock.
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The readers that follow a config by watches of this node, those that began first: at most [`READERS_OF_NODE_MAX`]. Takes
    /// about a millisecond with ten thousand watches that name their reader.
    pub(crate) fn readers_of(&self, definition: &Key, key: &Key) -> NodeReaders {
        let WatchCount { identified, unidentified } = self.watches_of(definition, key);
        let all = identified + unidentified;
        let (mut readers, mut named_count) = (Vec::new(), 0);
        for named in self.named().values().filter(|named| named.scope.contains_config(definition, key)) {
            named_count += 1;
            if readers.len() < READERS_OF_NODE_MAX {
                let told = named.told.load(Ordering::Relaxed);
                readers.push(ReaderWatch {
                    reader: named.reader.id.clone(),
                    labels: named.reader.labels.clone(),
                    since: named.since,
                    revision: (told > 0).then_some(told),
                });
            }
        }
        // What follows the steps of rollouts for others names nobody either.
        NodeReaders { readers, identified: named_count, unidentified: all.saturating_sub(named_count) }
    }

    /// How many watches follow a config. Takes about a millisecond with ten thousand watches of all records.
    pub(crate) fn watches_of(&self, definition: &Key, key: &Key) -> WatchCount {
        let topics = [Topic::Definition(definition.clone()), Topic::Config(definition.clone(), key.clone())];
        let (mut all, mut identified) = (0, 0);
        {
            let listed = self.topics();
            for topic in &topics {
                all += listed.watches_of(topic);
                identified += topic.of_rollouts().map_or(0, |rollouts| listed.watches_of(&rollouts));
            }
        }
        for watch in self.wide().values().filter(|watch| watch.scope.contains_config(definition, key)) {
            all += 1;
            identified += usize::from(watch.is_identified);
        }
        WatchCount { identified: identified as u64, unidentified: all.saturating_sub(identified) as u64 }
    }
}

impl WatchRegistration {
    /// Names the reader of the watch.
    pub(super) fn name(&mut self, scope: &Arc<WatchScope>, reader: &Arc<Reader>, since: Timestamp) {
        let told = Arc::new(AtomicU64::new(0));
        self.told = Some(Arc::clone(&told));
        let (scope, reader) = (Arc::clone(scope), Arc::clone(reader));
        self.hub.named().insert(self.id, NamedWatch { scope, reader, since, told });
    }

    /// Notes that the client has been told everything up to a revision.
    pub(super) fn told(&self, upto: Revision) {
        if let Some(told) = &self.told {
            told.store(upto, Ordering::Relaxed);
        }
    }

    /// Events after a position that may concern the watch; events of other topics may be among them. `None` if the feed
    /// does not reach back to the position.
    pub(super) fn read(&self, feed: &Feed, position: Revision) -> Option<EventPage> {
        if !self.topics.contains(&Topic::All) {
            let compaction_revision = feed.compaction_revision();
            let mut topics = self.hub.topics();
            let listed = topics.revisions(&self.topics, position, compaction_revision);
            let recorded_upto = topics.recorded_upto().max(position);
            drop(topics);
            if let Some((revisions, is_all)) = listed {
                let events = feed.pick(&revisions, READ_MAX.bytes)?;
                let last = events.last().map_or(position, |event: &Arc<Event>| event.revision);
                let upto = if is_all && events.len() == revisions.len() { recorded_upto } else { last };
                return Some(EventPage { events, upto });
            }
        }
        feed.after(position, READ_MAX)
    }
}

impl Drop for WatchRegistration {
    fn drop(&mut self) {
        self.hub.topics().remove(&self.topics, self.id);
        if self.told.is_some() {
            self.hub.named().remove(&self.id);
        }
        if self.topics.contains(&Topic::All) {
            self.hub.wide().remove(&self.id);
        }
    }
}

/// Waits until a moment, or for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::{super::topics::TOPIC_REVISIONS_MAX, *};
    use concord_model::key_set::{KeyRange, KeySet};
    use concord_state::testing::events::{event, key};

    fn register(hub: &Arc<WatchHub>, definition: &str) -> WatchRegistration {
        hub.register(&Arc::new(WatchScope::Definitions([key(definition)].into())), false)
    }

    fn all() -> Arc<WatchScope> {
        Arc::new(WatchScope::Visible(KeySet::ALL))
    }

    fn configs(keys: &[&str]) -> Arc<WatchScope> {
        Arc::new(WatchScope::Configs(key("one"), keys.iter().map(|name| key(name)).collect()))
    }

    fn is_woken(watch: &WatchRegistration) -> bool {
        watch.notify.notified().now_or_never().is_some()
    }

    fn publish(hub: &WatchHub, feed: &Feed, events: &[Arc<Event>]) {
        let last = events.last().unwrap().revision;
        feed.publish(events.to_vec(), last, last);
        record_all(hub, feed);
    }

    /// Does the work of the task at once.
    fn record_all(hub: &WatchHub, feed: &Feed) {
        loop {
            let (woken, has_more) = hub.record_next(feed);
            woken.iter().for_each(|watch| watch.notify_one());
            if !has_more {
                return;
            }
        }
    }

    fn read(watch: &WatchRegistration, feed: &Feed, position: Revision) -> (Vec<Revision>, Revision) {
        let piece = watch.read(feed, position).unwrap();
        (piece.events.iter().map(|event| event.revision).collect(), piece.upto)
    }

    #[test]
    fn only_watches_of_a_touched_topic_are_woken_and_find_the_change_listed() {
        let (hub, feed) = (Arc::new(WatchHub::new(9)), Feed::new(0));
        let (one, two) = (register(&hub, "one"), register(&hub, "two"));
        let all = hub.register(&all(), false);
        let config = hub.register(&configs(&["a", "c"]), false);
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
        assert!(hub.topics().listed().is_empty());
    }

    #[test]
    fn the_watches_of_a_config_are_counted_by_whether_they_say_who_they_are() {
        let hub = Arc::new(WatchHub::new(9));
        let count = |name: &str| {
            let WatchCount { identified, unidentified } = hub.watches_of(&key("one"), &key(name));
            (identified, unidentified)
        };
        let other = Arc::new(WatchScope::Visible(KeySet::of([KeyRange::Key(key("two"))])));
        let open = [
            register(&hub, "one"),
            register(&hub, "two"),
            hub.register(&all(), false),
            hub.register(&all(), true),
            hub.register(&other, true),
            hub.register(&configs(&["a"]), true),
            hub.register(&configs(&["a", "b"]), false),
        ];
        assert_eq!((count("a"), count("b"), count("c")), ((2, 3), (1, 3), (1, 2)));
        drop(open);
        assert_eq!(count("a"), (0, 0));
        assert!(hub.topics().listed().is_empty() && hub.wide().is_empty());
    }

    #[test]
    fn the_readers_of_a_config_are_listed_as_long_as_they_watch_and_so_many_of_them() {
        let hub = Arc::new(WatchHub::new(9));
        let reader = Arc::new(Reader::parse("host", "ring=canary").unwrap());
        let named = |scope: &Arc<WatchScope>, since: u64| {
            let mut watch = hub.register(scope, true);
            watch.name(scope, &reader, Timestamp(since));
            watch
        };
        let (first, _wide, other) =
            (named(&configs(&["a"]), 1), named(&all(), 2), named(&configs(&["b"]), 3));
        let nameless = hub.register(&all(), true);
        first.told(7);
        let listed = hub.readers_of(&key("one"), &key("a"));
        let rows: Vec<_> = listed.readers.iter().map(|row| (row.since.0, row.revision)).collect();
        assert_eq!(rows, [(1, Some(7)), (2, None)]);
        assert_eq!(
            (listed.identified, listed.unidentified),
            (2, 1),
            "one follows the rollouts of all readers"
        );
        assert_eq!(listed.readers[0].labels, [("ring".to_owned(), "canary".to_owned())]);
        let many: Vec<_> = (0..READERS_OF_NODE_MAX).map(|_| named(&configs(&["a"]), 4)).collect();
        let listed = hub.readers_of(&key("one"), &key("a"));
        assert_eq!((listed.readers.len(), listed.identified), (READERS_OF_NODE_MAX, many.len() as u64 + 2));
        drop((many, first, other, nameless));
        assert_eq!(hub.readers_of(&key("one"), &key("a")).identified, 1);
        assert_eq!(hub.readers_of(&key("one"), &key("b")).readers[0].since, Timestamp(2));
    }

    #[test]
    fn a_watch_behind_its_topics_list_reads_the_whole_feed() {
        let (hub, feed) = (Arc::new(WatchHub::new(9)), Feed::new(0));
        publish(&hub, &feed, &[event(1, "one", "a", "{}"), event(2, "two", "b", "{}")]);
        let two = register(&hub, "two");
        assert_eq!(read(&two, &feed, 0), (vec![1, 2], 2), "the topic lists nothing up to 2");
        publish(&hub, &feed, &[event(3, "two", "b", "{}"), event(4, "one", "b", "{}")]);
        assert_eq!(read(&two, &feed, 2), (vec![3], 4));
    }

    #[test]
    fn a_topic_lists_a_bounded_number_of_revisions_and_none_that_the_feed_has_dropped() {
        let (hub, feed) = (Arc::new(WatchHub::new(9)), Feed::new(0));
        let one = register(&hub, "one");
        let many: Vec<_> =
            (1..=TOPIC_REVISIONS_MAX as u64 + 50).map(|r| event(r, "one", "a", "{}")).collect();
        publish(&hub, &feed, &many);
        assert_eq!(hub.topics().listed(), [TOPIC_REVISIONS_MAX]);
        let (first, upto) = read(&one, &feed, 0);
        assert_eq!((first.len(), upto), (READ_MAX.events, READ_MAX.events as u64), "from the feed");
        assert_eq!(read(&one, &feed, 300), ((301..=306).collect(), 306), "from the list");
        feed.reset(400);
        record_all(&hub, &feed);
        assert!(is_woken(&one) && one.read(&feed, 306).is_none(), "the watch notices the gap");
        assert_eq!(read(&one, &feed, 400), (vec![], 400));
    }
}
