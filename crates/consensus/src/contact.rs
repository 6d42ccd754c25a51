//! Which members respond to the leader, and since when one does not.
//!
//! openraft knows when each member last acknowledged a heartbeat, but does not report when that was long ago. The task
//! here compares that time with [`LIVENESS_TIMEOUT`] and logs each change once.
//!
//! **Invariant:** only the leader knows the contact of members. On every other node the list is empty.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openraft::async_runtime::WatchReceiver as _;
use tokio::time::{Instant, sleep};

use super::{
    membership::{LIVENESS_TIMEOUT, since_heartbeat},
    standstill::Standstill,
    types::{Metrics, Raft},
};
use concord_net::NodeId;

/// How often the task checks the members.
const INTERVAL: Duration = Duration::from_millis(500);

/// The contact of the leader with a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// Time since its last response, or since this node became leader.
    pub silent_for: Duration,
    /// Whether that is short enough.
    pub is_reachable: bool,
}

/// A member as the task has seen it.
#[derive(Debug, Clone, Copy)]
struct SeenMember {
    /// When it last responded, as far as is known; when it was first checked, if it never did.
    answered_at: Instant,
    is_silent: bool,
}

/// What the leader knows of all members. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Contacts {
    seen: Arc<Mutex<BTreeMap<NodeId, SeenMember>>>,
    standstill: Arc<Standstill>,
}

/// A member that has started or stopped responding.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Silent(NodeId, Duration),
    Back(NodeId, Duration),
}

impl Contacts {
    pub(super) fn new(standstill: Arc<Standstill>) -> Self {
        Self { seen: Arc::default(), standstill }
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<NodeId, SeenMember>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a member; `None` on a node that does not lead.
    pub(super) fn of(&self, metrics: &Metrics, id: NodeId) -> Option<Contact> {
        if metrics.current_leader != Some(metrics.id) {
            return None;
        }
        if id == metrics.id {
            return Some(Contact { silent_for: Duration::ZERO, is_reachable: true });
        }
        let since_seen = || self.seen().get(&id).map_or(Duration::ZERO, |seen| seen.answered_at.elapsed());
        let silent_for = since_heartbeat(metrics, id).unwrap_or_else(since_seen);
        let now = Instant::now();
        Some(Contact { silent_for, is_reachable: self.blamed_for(now, silent_for) <= LIVENESS_TIMEOUT })
    }

    /// The part of a silence in which this process ran: what was sent while it stood still, it has not read yet.
    fn blamed_for(&self, now: Instant, silent_for: Duration) -> Duration {
        let runs_since =
            self.standstill.last(now).map(|(ended_at, _)| now.saturating_duration_since(ended_at));
        runs_since.map_or(silent_for, |runs| silent_for.min(runs))
    }

    /// Takes over what is known now: for each other member, when it answered last, if ever. Returns what has changed.
    fn update(&self, now: Instant, members: &BTreeMap<NodeId, Option<Instant>>) -> Vec<News> {
        let (mut seen, mut news) = (self.seen(), Vec::new());
        seen.retain(|id, _| members.contains_key(id));
        for (id, answered_at) in members {
            let one = seen.entry(*id).or_insert(SeenMember { answered_at: now, is_silent: false });
            let before = one.answered_at;
            one.answered_at = answered_at.map_or(before, |at| at.max(before));
            let silent_for = now.saturating_duration_since(one.answered_at);
            let is_silent = self.blamed_for(now, silent_for) > LIVENESS_TIMEOUT;
            if is_silent != one.is_silent {
                one.is_silent = is_silent;
                let lasted = one.answered_at.saturating_duration_since(before);
                news.push(if is_silent { News::Silent(*id, silent_for) } else { News::Back(*id, lasted) });
            }
        }
        news
    }

    fn clear(&self) {
        self.seen().clear();
    }

    /// Looks until openraft ends, whose reason another task reports.
    pub(super) async fn follow(self, raft: Raft) -> Result<(), String> {
        let receiver = raft.metrics();
        drop(raft);
        loop {
            let metrics = receiver.borrow_watched().clone();
            if metrics.running_state.is_err() {
                return Ok(());
            }
            if metrics.current_leader == Some(metrics.id) {
                self.look(&metrics);
            } else {
                self.clear();
            }
            drop(metrics);
            sleep(INTERVAL).await;
        }
    }

    fn look(&self, metrics: &Metrics) {
        let now = Instant::now();
        let others = metrics.membership_config.nodes().filter(|(id, _)| **id != metrics.id);
        let answered = others
            .map(|(id, _)| (*id, since_heartbeat(metrics, *id).and_then(|since| now.checked_sub(since))));
        for one in self.update(now, &answered.collect()) {
            let (News::Silent(node, lasted) | News::Back(node, lasted)) = one;
            let address =
                metrics.membership_config.membership().get_node(&node).map(|member| member.peer_addr.clone());
            let address = address.unwrap_or_default();
            let ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
            match one {
                News::Silent(..) => {
                    tracing::warn!(
                        node,
                        address,
                        silent_ms = ms,
                        "node {node} does not respond to this leader"
                    );
                }
                News::Back(..) => {
                    tracing::info!(
                        node,
                        address,
                        silent_ms = ms,
                        "node {node} responds to this leader again"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_stood_still_accuses_no_member_for_that_time() {
        let (contacts, begin) = (Contacts::new(Arc::default()), Instant::now());
        let answered = BTreeMap::from([(2, Some(begin))]);
        let update = |at| contacts.update(at, &answered);
        assert_eq!(update(begin), []);
        // Nobody has looked at the clock since: the responses of that time are unread.
        let mut now = begin + LIVENESS_TIMEOUT * 2;
        let mut news = update(now);
        while news.is_empty() {
            now += Duration::from_millis(100);
            news = update(now);
        }
        let blamed_after = LIVENESS_TIMEOUT + Duration::from_millis(100);
        assert_eq!(now.duration_since(begin), LIVENESS_TIMEOUT * 2 + blamed_after);
        assert_eq!(news, [News::Silent(2, LIVENESS_TIMEOUT * 2 + blamed_after)]);
    }

    #[test]
    fn a_silent_member_is_reported_once_and_so_is_its_return() {
        let (contacts, begin) = (Contacts::new(Arc::default()), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let update = |now: u64, two: Option<u64>| {
            (0..now * 10)
                .for_each(|tick| contacts.standstill.look(begin + Duration::from_millis(100 * tick)));
            let members = BTreeMap::from([(2, two.map(at)), (3, Some(at(now)))]);
            contacts.update(at(now), &members)
        };
        assert_eq!(update(10, None), []);
        assert_eq!(update(13, None), [], "it has as long as all from the first look on");
        assert_eq!(update(14, None), [News::Silent(2, Duration::from_secs(4))]);
        assert_eq!(update(20, None), []);
        assert_eq!(update(21, Some(21)), [News::Back(2, Duration::from_secs(11))]);
        assert_eq!(update(22, Some(22)), []);
        (0..990).for_each(|tick| contacts.standstill.look(begin + Duration::from_millis(100 * tick)));
        assert_eq!(contacts.update(at(99), &BTreeMap::from([(3, Some(at(99)))])), [], "removed, not silent");
    }
}
