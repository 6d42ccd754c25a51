//! Topics: what watches wait for, and when a change wakes them.
//!
//! A *topic* is all records, a definition with its configs, a definition alone, a config, or all change requests; and for
//! watches of readers the rollouts of all configs, of those of a definition, or of one. A topic lists only its last few
//! revisions. A watch that is further behind reads the whole feed, and older changes from the history. The lists are
//! a shortcut, never the source of truth.
//!
//! Waking a watch and writing to its socket takes about as long for one change as for ten. So a topic with many watches
//! wakes them at its first change, and then once per pause, with all changes since. The pause grows with the number of
//! watches. So the cost of a busy topic is bounded, and a single change is delivered at once.
//!
//! **Invariants:** a topic lists all its changes after `complete_after` and up to (and including) `recorded_upto`. The
//! watches of a topic with a recorded change have been woken since, or the topic is in `waiting`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::hub::READ_MAX;
use concord_model::{key::Key, record::Revision};
use concord_state::{
    feed::{Event, EventPage, RecordChange},
    seen::RolloutEdits,
};

/// Revisions that a topic lists: as many events as one read returns.
pub(super) const TOPIC_REVISIONS_MAX: usize = READ_MAX.events;
/// A topic with at most this many watches wakes them at each change.
const UNPACED_WATCHES_MAX: usize = 16;
/// The pause of a topic with more watches, per watch. A delivery takes some 8 µs of CPU time, so the deliveries of one topic
/// take a fortieth of one core.
const PAUSE_PER_WATCH: Duration = Duration::from_micros(300);
/// The longest pause, and so the longest delay of a change.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What a watch can wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// All definitions and configs.
    All,
    /// All change requests.
    ChangeRequests,
    /// A definition with all its configs.
    Definition(Key),
    /// A definition without its configs.
    DefinitionAlone(Key),
    /// A config of a definition.
    Config(Key, Key),
    /// All rollouts.
    Rollouts,
    /// The rollouts that have configs of a definition.
    RolloutsOfDefinition(Key),
    /// The rollouts that have a config of a definition.
    RolloutsOfConfig(Key, Key),
}

impl Topic {
    /// The topic of the rollouts that a reader has to know of who waits for this one. A definition alone is in no rollout,
    /// and what waits for change requests has no reader.
    pub(super) fn of_rollouts(&self) -> Option<Self> {
        match self {
            Self::All => Some(Self::Rollouts),
            Self::Definition(key) => Some(Self::RolloutsOfDefinition(key.clone())),
            Self::Config(definition, key) => Some(Self::RolloutsOfConfig(definition.clone(), key.clone())),
            Self::ChangeRequests
            | Self::DefinitionAlone(_)
            | Self::Rollouts
            | Self::RolloutsOfDefinition(_)
            | Self::RolloutsOfConfig(..) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Topics {
    by_topic: BTreeMap<Topic, TopicState>,
    /// All changes up to (and including) this revision have been recorded.
    recorded_upto: Revision,
    /// The topics that have changed since they woke their watches, and when they wake them next.
    waiting: BTreeSet<(Instant, Topic)>,
}

/// A topic with at least one watch.
#[derive(Debug)]
struct TopicState {
    revisions: VecDeque<Revision>,
    /// `revisions` may lack changes up to (and including) this revision.
    complete_after: Revision,
    watches: BTreeMap<u64, Arc<Notify>>,
    /// When its watches may be woken next. `None` before the first time.
    next_wake: Option<Instant>,
    is_waiting: bool,
}

impl Topics {
    /// All changes up to (and including) this revision have been recorded, or concern no watch.
    pub(super) fn recorded_upto(&self) -> Revision {
        self.recorded_upto
    }

    /// Begins after a revision, before there is a watch.
    pub(super) fn begin(&mut self, revision: Revision) {
        self.recorded_upto = revision;
    }

    /// Adds a watch to topics.
    pub(super) fn add(&mut self, topics: &[Topic], id: u64, notify: &Arc<Notify>) {
        for topic in topics {
            let state =
                self.by_topic.entry(topic.clone()).or_insert_with(|| TopicState::new(self.recorded_upto));
            state.watches.insert(id, Arc::clone(notify));
        }
    }

    /// Removes a watch from topics.
    pub(super) fn remove(&mut self, topics: &[Topic], id: u64) {
        for topic in topics {
            if let Some(state) = self.by_topic.get_mut(topic) {
                state.watches.remove(&id);
                if state.watches.is_empty() {
                    self.by_topic.remove(topic);
                }
            }
        }
    }

    /// Records the topics of a piece of the feed. Returns the watches to wake now.
    pub(super) fn record(
        &mut self,
        piece: &EventPage,
        compaction_revision: Revision,
        now: Instant,
    ) -> Vec<Arc<Notify>> {
        self.recorded_upto = self.recorded_upto.max(piece.upto);
        if self.by_topic.is_empty() {
            return Vec::new();
        }
        let mut touched = BTreeSet::new();
        for event in &piece.events {
            for topic in topics_of(event) {
                let Some(state) = self.by_topic.get_mut(&topic) else { continue };
                if state.revisions.back() != Some(&event.revision) {
                    state.revisions.push_back(event.revision);
                    state.trim(compaction_revision);
                    touched.insert(topic);
                }
            }
        }
        touched.retain(|topic| self.may_wake(topic, now));
        watches(touched.iter().filter_map(|topic| self.by_topic.get(topic)))
    }

    /// Whether a changed topic wakes its watches now. Otherwise it is added to `waiting`.
    fn may_wake(&mut self, topic: &Topic, now: Instant) -> bool {
        let Some(state) = self.by_topic.get_mut(topic) else { return false };
        if state.is_waiting {
            return false;
        }
        match state.next_wake {
            Some(due) if due > now => {
                state.is_waiting = true;
                self.waiting.insert((due, topic.clone()));
                false
            }
            Some(_) | None => {
                state.pause(now);
                true
            }
        }
    }

    /// When the next waiting topic may wake its watches.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// The watches of the topics whose pause is over.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Arc<Notify>> {
        let mut topics = Vec::new();
        while self.next_wake().is_some_and(|due| due <= now) {
            topics.extend(self.waiting.pop_first().map(|(_, topic)| topic));
        }
        for topic in &topics {
            if let Some(state) = self.by_topic.get_mut(topic) {
                state.is_waiting = false;
                state.pause(now);
            }
        }
        watches(topics.iter().filter_map(|topic| self.by_topic.get(topic)))
    }

    /// Notes that changes up to (and including) `compaction_revision` were not recorded. Returns all watches.
    pub(super) fn reset(&mut self, compaction_revision: Revision) -> Vec<Arc<Notify>> {
        self.recorded_upto = self.recorded_upto.max(compaction_revision);
        for state in self.by_topic.values_mut() {
            state.revisions.clear();
            state.complete_after = state.complete_after.max(compaction_revision);
        }
        watches(self.by_topic.values())
    }

    /// How many watches wait for a topic.
    pub(super) fn watches_of(&self, topic: &Topic) -> usize {
        self.by_topic.get(topic).map_or(0, |state| state.watches.len())
    }

    /// How many revisions each topic lists.
    #[cfg(test)]
    pub(super) fn listed(&self) -> Vec<usize> {
        self.by_topic.values().map(|state| state.revisions.len()).collect()
    }

    /// The first revisions of the topics after a position, and whether these are all up to `recorded_upto`. `None` if the
    /// lists do not reach back to the position.
    pub(super) fn revisions(
        &mut self,
        topics: &[Topic],
        position: Revision,
        compaction_revision: Revision,
    ) -> Option<(Vec<Revision>, bool)> {
        let mut revisions = Vec::new();
        for topic in topics {
            let state = self.by_topic.get_mut(topic)?;
            state.trim(compaction_revision);
            if state.complete_after > position {
                return None;
            }
            let from = state.revisions.partition_point(|revision| *revision <= position);
            revisions.extend(state.revisions.range(from..));
        }
        revisions.sort_unstable();
        revisions.dedup();
        let is_all = revisions.len() <= READ_MAX.events;
        revisions.truncate(READ_MAX.events);
        Some((revisions, is_all))
    }
}

/// The watches of these topics, each once.
fn watches<'a>(topics: impl Iterator<Item = &'a TopicState>) -> Vec<Arc<Notify>> {
    let by_id: BTreeMap<u64, &Arc<Notify>> =
        topics.flat_map(|topic| &topic.watches).map(|(id, watch)| (*id, watch)).collect();
    by_id.into_values().cloned().collect()
}

/// The topics of an event.
fn topics_of(event: &Event) -> impl Iterator<Item = Topic> {
    let all = (!event.items.is_empty()).then_some(Topic::All);
    let change_requests = (!event.change_requests.is_empty()).then_some(Topic::ChangeRequests);
    let rollouts = event.rollouts.iter().flat_map(|rollouts| topics_of_rollouts(rollouts));
    all.into_iter().chain(change_requests).chain(event.items.iter().flat_map(topics_of_item)).chain(rollouts)
}

/// The topics of the edits of rollouts.
fn topics_of_rollouts(rollouts: &RolloutEdits) -> impl Iterator<Item = Topic> {
    let of_config = |(definition, key): (&Key, &Key)| {
        let of_definition = Topic::RolloutsOfDefinition(definition.clone());
        [of_definition, Topic::RolloutsOfConfig(definition.clone(), key.clone())]
    };
    std::iter::once(Topic::Rollouts).chain(rollouts.configs().flat_map(of_config))
}

/// The topics of an item, apart from [`Topic::All`].
fn topics_of_item(item: &RecordChange) -> [Topic; 2] {
    match item {
        RecordChange::Definition { key, .. } => {
            [Topic::Definition(key.clone()), Topic::DefinitionAlone(key.clone())]
        }
        RecordChange::Config { definition, key, .. } => {
            [Topic::Definition(definition.clone()), Topic::Config(definition.clone(), key.clone())]
        }
    }
}

impl TopicState {
    fn new(complete_after: Revision) -> Self {
        Self {
            revisions: VecDeque::new(),
            complete_after,
            watches: BTreeMap::new(),
            next_wake: None,
            is_waiting: false,
        }
    }

    /// Begins the pause after its watches were woken.
    fn pause(&mut self, now: Instant) {
        let count = self.watches.len();
        self.next_wake = (count > UNPACED_WATCHES_MAX).then(|| {
            let pause = PAUSE_PER_WATCH.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
            now + pause.min(PAUSE_MAX)
        });
    }

    /// Removes revisions that the feed no longer has, and the oldest beyond the limit.
    fn trim(&mut self, compaction_revision: Revision) {
        while self
            .revisions
            .front()
            .is_some_and(|first| *first <= compaction_revision || self.revisions.len() > TOPIC_REVISIONS_MAX)
        {
            self.complete_after = self.revisions.pop_front().unwrap_or(self.complete_after);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use concord_state::testing::events::{event, key};

    const MS: Duration = Duration::from_millis(1);

    fn topics(watches: usize) -> (Topics, Vec<Arc<Notify>>) {
        let (mut topics, topic) = (Topics::default(), [Topic::Definition(key("one"))]);
        let notifies: Vec<_> = (0..watches).map(|_| Arc::new(Notify::new())).collect();
        notifies.iter().zip(0..).for_each(|(notify, id)| topics.add(&topic, id, notify));
        (topics, notifies)
    }

    fn change(topics: &mut Topics, revision: Revision, now: Instant) -> usize {
        let events = vec![event(revision, "one", "a", "{}"), event(revision, "other", "a", "{}")];
        topics.record(&EventPage { events, upto: revision }, 0, now).len()
    }

    #[test]
    fn many_watches_are_woken_at_the_first_change_and_then_once_per_pause() {
        let (mut topics, _) = topics(100);
        let begin = Instant::now();
        assert_eq!(change(&mut topics, 1, begin), 100, "at once");
        assert_eq!(topics.next_wake(), None);
        assert_eq!(change(&mut topics, 2, begin + MS), 0);
        assert_eq!(change(&mut topics, 3, begin + 29 * MS), 0);
        let due = topics.next_wake().unwrap();
        assert_eq!(due, begin + 100 * PAUSE_PER_WATCH, "the second change did not put it off");
        assert_eq!(topics.take_due(due - MS).len(), 0);
        assert_eq!(topics.take_due(due).len(), 100);
        assert_eq!((topics.next_wake(), topics.take_due(due + 99 * MS).len()), (None, 0), "once");
        assert_eq!(change(&mut topics, 4, due + MS), 0, "the pause begins when they are woken");
        assert_eq!(topics.take_due(due + 30 * MS).len(), 100);
        assert_eq!(change(&mut topics, 5, due + 99 * MS), 100, "after it at once again");
    }

    #[test]
    fn few_watches_are_woken_at_each_change_and_pauses_are_bounded() {
        let (mut few, _) = topics(UNPACED_WATCHES_MAX);
        let begin = Instant::now();
        let woken: Vec<_> = (1..9).map(|revision| change(&mut few, revision, begin)).collect();
        assert_eq!(woken, [UNPACED_WATCHES_MAX; 8]);
        let (mut many, _) = topics(5000);
        assert_eq!((change(&mut many, 1, begin), change(&mut many, 2, begin)), (5000, 0));
        assert_eq!(many.next_wake(), Some(begin + PAUSE_MAX));
    }

    #[test]
    fn a_waiting_topic_delays_no_other_and_may_lose_its_watches() {
        let (mut topics, notifies) = topics(100);
        let other = Arc::new(Notify::new());
        topics.add(&[Topic::Definition(key("other"))], 1000, &other);
        let begin = Instant::now();
        assert_eq!(change(&mut topics, 1, begin), 101);
        assert_eq!(change(&mut topics, 2, begin), 1, "the other topic's watch");
        (0..100).for_each(|id| topics.remove(&[Topic::Definition(key("one"))], id));
        assert_eq!(topics.take_due(begin + PAUSE_MAX).len(), 0);
        assert_eq!(topics.next_wake(), None);
        assert!(notifies.iter().chain([&other]).all(|notify| notify.notified().now_or_never().is_none()));
    }
}
