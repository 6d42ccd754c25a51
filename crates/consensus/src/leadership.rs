//! Publishes and logs the leader that openraft knows, its term and the reason of the change.
//!
//! It watches openraft's server metrics only. The other metrics change with each entry, and waking this task for
//! them would cost every write a thread switch.
//!
//! openraft goes on naming the leader of its vote, however long that one has been silent, and after a start the leader of
//! the stored vote. So a leader is known here only while it is heard of.
//!
//! **Invariant:** each change of the leader or of its term is one line of the log, on every node that learns of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use openraft::async_runtime::WatchReceiver as _;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{figures::count, group::WriteGroups, network::NetworkContext, types::Raft};
use concord_net::{Member, NodeId};

/// The leader that a node knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, if one is known.
    pub leader_id: Option<NodeId>,
    /// The leader's term, or that of the election in progress.
    pub term: u64,
    /// Why the previous leader stepped down or this one was elected.
    pub why: String,
}

/// When leaders were last heard of, past ones too: those of several terms may send for a while.
#[derive(Debug)]
pub(super) struct LastHeard {
    heard: Mutex<BTreeMap<NodeId, Instant>>,
    /// How long a leader may be silent: by then its followers have begun an election.
    silence_max: Duration,
    /// A leader is heard of that was not.
    is_back: Notify,
}

impl LastHeard {
    pub(super) fn new(silence_max: Duration) -> Self {
        Self { heard: Mutex::default(), silence_max, is_back: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message of the leader has arrived.
    pub(super) fn note(&self, leader: NodeId) {
        let now = Instant::now();
        let before = self.lock().insert(leader, now);
        if before.is_none_or(|at| now.duration_since(at) > self.silence_max) {
            self.is_back.notify_one();
        }
    }

    fn is_heard(&self, leader: NodeId) -> bool {
        self.lock().get(&leader).is_some_and(|at| at.elapsed() <= self.silence_max)
    }
}

/// Follows openraft's server metrics.
pub(super) struct LeaderFollower {
    pub(super) leader: watch::Sender<Option<Member>>,
    pub(super) leadership: watch::Sender<Leadership>,
    /// Reset when the leader changes.
    pub(super) groups: WriteGroups,
    pub(super) stopping: Arc<AtomicBool>,
    /// The member that transferred leadership to this node; 0 if none did since it last led.
    pub(super) handed_over: Arc<AtomicU64>,
    pub(super) context: Arc<NetworkContext>,
    pub(super) last_heard: Arc<LastHeard>,
}

/// How often a leader's silence is looked at.
const SILENCE_INTERVAL: Duration = Duration::from_millis(100);

impl LeaderFollower {
    /// Publishes the leader that openraft knows, and gives waiting writes back when it changes. Ends with the failure
    /// that ends openraft.
    pub(super) async fn follow(self, raft: Raft) -> Result<(), String> {
        let (mut server, metrics) = (raft.server_metrics(), raft.metrics());
        drop(raft);
        loop {
            let (me, current, term) = {
                let seen = server.borrow_watched();
                let leader = seen.current_leader.filter(|id| *id == seen.id || self.last_heard.is_heard(*id));
                let leader = leader.and_then(|id| seen.membership_config.get_node(&id).cloned());
                (seen.id, leader, seen.vote.leader_id.term)
            };
            let leader_id = current.as_ref().map(|leader| leader.id);
            let is_new = self.leader.send_if_modified(|known| {
                let is_new = *known != current;
                *known = current;
                is_new
            });
            if is_new {
                self.groups.reset();
            }
            self.note(me, leader_id, term);
            let changed = tokio::select! {
                changed = server.changed() => changed.is_ok(),
                _ = timeout(SILENCE_INTERVAL, self.last_heard.is_back.notified()) => true,
            };
            if !changed {
                break;
            }
        }
        // A failure is in the last metrics. After a panic of openraft's core they end without one.
        let ended = match &metrics.borrow_watched().running_state {
            Err(fatal) => format!("openraft has stopped: {fatal}"),
            Ok(()) => "openraft has stopped".to_owned(),
        };
        if self.stopping.load(Ordering::Relaxed) { Ok(()) } else { Err(ended) }
    }

    /// Logs a change of the leader and publishes it.
    fn note(&self, me: NodeId, leader_id: Option<NodeId>, term: u64) {
        let before = self.leadership.borrow().clone();
        // The terms of elections without a winner are not reported.
        if before.leader_id == leader_id && (before.term == term || leader_id.is_none()) {
            return;
        }
        let handed_over = match leader_id {
            Some(id) if id == me => self.handed_over.swap(0, Ordering::Relaxed),
            _ => 0,
        };
        let is_stopping = self.stopping.load(Ordering::Relaxed);
        let why = LeaderChange { before: &before, me, leader_id, term, handed_over, is_stopping }.why();
        let was_mine = before.leader_id == Some(me);
        match leader_id {
            Some(id) if id == me => {
                tracing::info!(term, why, "this node became leader in term {term}");
                count(&self.context.counts.elections_won);
            }
            Some(leader) if was_mine => {
                tracing::info!(
                    term,
                    leader,
                    why,
                    "this node stepped down as leader; node {leader} became leader in term {term}"
                );
            }
            None if was_mine => tracing::info!(term, why, "this node stepped down as leader"),
            Some(leader) => {
                tracing::info!(term, leader, why, "node {leader} became leader in term {term}");
            }
            None => tracing::info!(term, why, "no leader is known"),
        }
        if leader_id.is_some() {
            count(&self.context.counts.leaders_seen);
        }
        self.leadership.send_replace(Leadership { leader_id, term, why });
    }
}

/// What a node knows of a change of the leader or of its term.
struct LeaderChange<'a> {
    before: &'a Leadership,
    /// This node.
    me: NodeId,
    leader_id: Option<NodeId>,
    term: u64,
    /// The member that transferred leadership to this node; 0 if none did.
    handed_over: NodeId,
    is_stopping: bool,
}

impl LeaderChange<'_> {
    /// Why the leader has changed, as far as a member can know.
    fn why(&self) -> String {
        let Self { before, me, leader_id, term, handed_over, is_stopping } = *self;
        match (before.leader_id, leader_id) {
            (_, Some(_)) if handed_over > 0 => format!("node {handed_over} transferred leadership"),
            (Some(old), _) if old == me && is_stopping => "this node is shutting down".into(),
            (Some(old), Some(_)) if old == me => {
                format!("a majority elected another leader after term {}", before.term)
            }
            (Some(old), None) if old == me && term > before.term => {
                format!("an election started in term {term}")
            }
            (Some(old), None) if old == me => "no majority of the voters responds".into(),
            (Some(old), None) => format!("no message from node {old} within the election timeout"),
            (Some(old), Some(_)) => format!("elected after node {old}, the leader in term {}", before.term),
            (None, Some(_)) if before.why.is_empty() => "elected; this node has just started".into(),
            (None, Some(_)) => format!("elected; before that, {}", before.why),
            (None, None) => before.why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_leader_is_known_while_it_is_heard_of() {
        let heard = LastHeard::new(Duration::from_secs(3600));
        assert!(!heard.is_heard(1), "not after a start");
        heard.note(1);
        heard.is_back.notified().await;
        assert!(heard.is_heard(1) && !heard.is_heard(2));
        let heard = LastHeard::new(Duration::ZERO);
        for _ in 0..2 {
            heard.note(1);
            heard.is_back.notified().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(!heard.is_heard(1), "it is silent");
        }
    }

    #[test]
    fn each_change_has_a_reason() {
        let at = |leader_id, term| Leadership { leader_id, term, why: "x".into() };
        let why = |before: Leadership, (leader_id, term), handed_over, is_stopping| {
            LeaderChange { before: &before, me: 1, leader_id, term, handed_over, is_stopping }.why()
        };
        let of = |before, after, handed_over| why(before, after, handed_over, false);
        assert_eq!(of(Leadership::default(), (Some(2), 1), 0), "elected; this node has just started");
        assert_eq!(of(at(None, 1), (Some(2), 1), 0), "elected; before that, x");
        assert_eq!(of(at(Some(2), 1), (None, 2), 0), "no message from node 2 within the election timeout");
        assert_eq!(of(at(Some(2), 1), (Some(1), 2), 2), "node 2 transferred leadership");
        assert_eq!(of(at(Some(2), 1), (Some(3), 2), 0), "elected after node 2, the leader in term 1");
        let replaced = "a majority elected another leader after term 1";
        assert_eq!(of(at(Some(1), 1), (Some(3), 2), 0), replaced);
        assert_eq!(of(at(Some(1), 1), (None, 2), 0), "an election started in term 2");
        assert_eq!(of(at(Some(1), 1), (None, 1), 0), "no majority of the voters responds");
        assert_eq!(why(at(Some(1), 1), (None, 1), 0, true), "this node is shutting down");
    }
}
