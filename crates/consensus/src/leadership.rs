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
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use openraft::async_runtime::WatchReceiver as _;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{
    figures::count,
    group::WriteGroups,
    network::NetworkContext,
    standstill::{Standstill, TICK_MAX},
    term::Term,
    types::Raft,
};
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

/// So many changes of the leader within [`FLAPPING_PERIOD`] that nobody asked for are an alarm.
pub const FLAPPING_CHANGES_MIN: usize = 3;
const FLAPPING_PERIOD: Duration = Duration::from_secs(60);

/// The newest changes of the leader without a transfer of leadership.
#[derive(Debug, Default)]
pub(super) struct LeaderChanges(Mutex<SeenChanges>);

#[derive(Debug, Default)]
struct SeenChanges {
    /// The last leader, with its term.
    last: Option<(NodeId, u64)>,
    /// Newest first.
    unplanned: VecDeque<Instant>,
}

impl LeaderChanges {
    /// A leader is known in a term. It may be the same one, heard of again.
    fn note(&self, now: Instant, leader: NodeId, term: u64, is_planned: bool) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.last.replace((leader, term));
        if is_planned || before.is_none_or(|last| last == (leader, term)) {
            return;
        }
        // Of more than a few within a minute, how many does not matter.
        seen.unplanned.truncate(LEADER_CHANGES_MAX - 1);
        seen.unplanned.push_front(now);
    }

    /// How many there were within the last minute; at most [`LEADER_CHANGES_MAX`].
    pub(super) fn count(&self, now: Instant) -> usize {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.unplanned.iter().filter(|at| now.saturating_duration_since(**at) < FLAPPING_PERIOD).count()
    }
}

/// Changes that are remembered at most.
const LEADER_CHANGES_MAX: usize = 100;

/// A transfer of leadership: the leader sends it to every member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Transfer {
    from: NodeId,
    to: NodeId,
    /// The term of the leader that transfers its leadership.
    term: u64,
    at: Instant,
}

/// A transfer of which nothing came in this time explains no later change.
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(5);

/// The last transfer of leadership that this node knows of.
#[derive(Debug, Default)]
pub(super) struct Transfers(Mutex<Option<Transfer>>);

impl Transfers {
    /// A leader transfers its leadership.
    pub(super) fn note(&self, from: NodeId, to: NodeId, term: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Transfer { from, to, term, at: Instant::now() });
    }

    /// The transfer that explains a change: of the leader of `before`, to the next term at most. A later election is
    /// another change.
    fn behind(&self, before: &Leadership, leader_id: Option<NodeId>, term: u64) -> Option<Transfer> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|one| {
            let is_of_leader = before.leader_id.is_none_or(|leader| leader == one.from);
            let is_recent = one.at.elapsed() <= TRANSFER_TIME_MAX;
            let is_next = is_recent && Term(term).is_next_at_most(Term(one.term)) && before.term >= one.term;
            is_of_leader && is_next && leader_id.is_none_or(|leader| leader == one.to)
        })
    }
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
    pub(super) transfers: Arc<Transfers>,
    pub(super) standstill: Arc<Standstill>,
    pub(super) context: Arc<NetworkContext>,
    pub(super) last_heard: Arc<LastHeard>,
}

/// How often a leader's silence is looked at.
const SILENCE_INTERVAL: Duration = TICK_MAX;

impl LeaderFollower {
    /// Publishes the leader that openraft knows, and gives waiting writes back when it changes. Ends with the failure
    /// that ends openraft.
    pub(super) async fn follow(self, raft: Raft) -> Result<(), String> {
        let (mut server, metrics) = (raft.server_metrics(), raft.metrics());
        drop(raft);
        loop {
            self.standstill.tick();
            let (me, current, term) = {
                let seen = server.borrow_watched();
                let leader = seen.current_leader.filter(|id| *id == seen.id || self.last_heard.is_heard(*id));
                let leader = leader.and_then(|id| seen.membership_config.get_node(&id).cloned());
                (seen.id, leader, seen.vote.leader_id.term.0)
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
        let transfer = self.transfers.behind(&before, leader_id, term);
        let is_stopping = self.stopping.load(Ordering::Relaxed);
        let now = Instant::now();
        // A standstill explains the silence of a leader for as long as it takes to hear of it again.
        let standstill = self
            .standstill
            .last(now)
            .filter(|(ended_at, _)| now.saturating_duration_since(*ended_at) <= self.last_heard.silence_max);
        let stood_still = standstill.map(|(_, lasted)| lasted);
        let why =
            LeaderChange { before: &before, me, leader_id, term, transfer, is_stopping, stood_still }.why();
        if let Some(leader) = leader_id {
            self.context.counts.leader_changes.note(now, leader, term, transfer.is_some());
        }
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
            None => match transfer {
                Some(Transfer { from, to, .. }) => {
                    tracing::info!(term, from, to, "node {from} is transferring leadership to node {to}");
                }
                None => tracing::info!(term, why, "no leader is known"),
            },
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
    /// The transfer of leadership that it belongs to.
    transfer: Option<Transfer>,
    is_stopping: bool,
    /// How long this process stood still just before.
    stood_still: Option<Duration>,
}

impl LeaderChange<'_> {
    /// Why the leader has changed, as far as a member can know.
    fn why(&self) -> String {
        let Self { before, me, leader_id, term, transfer, is_stopping, stood_still } = *self;
        if let Some(Transfer { from, to, .. }) = transfer {
            let from = if from == me { "this node".to_owned() } else { format!("node {from}") };
            return match leader_id {
                Some(_) => format!("{from} transferred leadership"),
                None => format!("{from} is transferring leadership to node {to}"),
            };
        }
        if let (Some(_), None, Some(lasted)) = (before.leader_id, leader_id, stood_still) {
            return format!("this process stood still for {:.1} s", lasted.as_secs_f64());
        }
        match (before.leader_id, leader_id) {
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

    #[tokio::test(start_paused = true)]
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

    fn at(leader_id: Option<NodeId>, term: u64) -> Leadership {
        Leadership { leader_id, term, why: "x".into() }
    }

    /// Why node 1 finds another leader than before, after node `transferred` has transferred its leadership in term 1.
    fn why(before: &Leadership, (leader_id, term): (Option<NodeId>, u64), transferred: NodeId) -> String {
        let transfers = Transfers::default();
        if transferred > 0 {
            transfers.note(transferred, 1 + transferred % 2, 1);
        }
        let transfer = transfers.behind(before, leader_id, term);
        let (is_stopping, stood_still) = (false, None);
        LeaderChange { before, me: 1, leader_id, term, transfer, is_stopping, stood_still }.why()
    }

    #[test]
    fn each_change_has_a_reason() {
        let started = Leadership::default();
        for (before, after, expected) in [
            (started, (Some(2), 1), "elected; this node has just started"),
            (at(None, 1), (Some(2), 1), "elected; before that, x"),
            (at(Some(2), 1), (None, 2), "no message from node 2 within the election timeout"),
            (at(Some(2), 1), (Some(3), 2), "elected after node 2, the leader in term 1"),
            (at(Some(1), 1), (Some(3), 2), "a majority elected another leader after term 1"),
            (at(Some(1), 1), (None, 2), "an election started in term 2"),
            (at(Some(1), 1), (None, 1), "no majority of the voters responds"),
        ] {
            assert_eq!(why(&before, after, 0), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_transfer_explains_its_own_changes_and_no_others() {
        let from_two = "node 2 transferred leadership";
        for (before, after, transferred, expected) in [
            (at(Some(2), 1), (Some(1), 2), 2, from_two),
            (at(Some(2), 1), (None, 2), 2, "node 2 is transferring leadership to node 1"),
            (at(None, 2), (Some(1), 2), 2, from_two),
            (at(Some(1), 1), (None, 2), 1, "this node is transferring leadership to node 2"),
            (at(Some(1), 1), (Some(2), 2), 1, "this node transferred leadership"),
            // Another member was faster; a later election; another leader.
            (at(None, 2), (Some(3), 2), 2, "elected; before that, x"),
            (at(None, 3 << 20), (Some(1), 3 << 20), 2, "elected; before that, x"),
            (at(Some(3), 2), (None, 3), 2, "no message from node 3 within the election timeout"),
        ] {
            assert_eq!(why(&before, after, transferred), expected, "{before:?} {after:?} {transferred}");
        }
    }

    #[test]
    fn a_process_that_stood_still_accuses_nobody() {
        let change = |before: &Leadership, stood_still, is_stopping| {
            LeaderChange { before, me: 1, leader_id: None, term: 1, transfer: None, is_stopping, stood_still }
                .why()
        };
        let stood_still = Some(Duration::from_millis(3040));
        assert_eq!(change(&at(Some(2), 1), stood_still, false), "this process stood still for 3.0 s");
        assert_eq!(change(&at(Some(1), 1), None, true), "this node is shutting down");
    }

    #[test]
    fn leader_changes_are_counted_for_a_minute() {
        let (changes, begin) = (LeaderChanges::default(), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        changes.note(at(0), 1, 4, false);
        assert_eq!(changes.count(at(0)), 0, "the first one does not count");
        for (term, seconds) in [(5, 0), (6, 10), (7, 20)] {
            changes.note(at(seconds), 1, term, false);
            changes.note(at(seconds), 1, term, false);
        }
        changes.note(at(20), 2, 8, true);
        assert_eq!(changes.count(at(59)), FLAPPING_CHANGES_MIN);
        assert_eq!(changes.count(at(60)), FLAPPING_CHANGES_MIN - 1);
        (0..2 * LEADER_CHANGES_MAX as u64).for_each(|term| changes.note(at(90), 1, 9 + term, false));
        assert_eq!(changes.count(at(90)), LEADER_CHANGES_MAX);
    }
}
