//! Who leads, since when and why: the leader that openraft knows, for the rest of the node and for the log.
//!
//! It watches openraft's server metrics only. The other metrics change with each entry, and waking this task for
//! them would cost every write a thread switch.
//!
//! **Invariant:** each change of the leader or of its term is one line of the log, on every node that learns of it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::watch;

use super::{figures::count, group::WriteGroups, network::NetworkContext, types::Raft};
use concord_net::{Member, NodeId};

/// Who leads, as a node knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader; `None` while none is known.
    pub leader_id: Option<NodeId>,
    /// The term: its own, or that of an election that is under way.
    pub term: u64,
    /// Why the leader before leads no more.
    pub why: String,
}

/// Follows openraft's server metrics.
pub(super) struct LeaderFollower {
    pub(super) leader: watch::Sender<Option<Member>>,
    pub(super) leadership: watch::Sender<Leadership>,
    /// The writes that wait are sent back when the leader changes.
    pub(super) groups: Arc<WriteGroups>,
    pub(super) stopping: Arc<AtomicBool>,
    /// The member that has handed leadership over to this node; 0 when none did since it led last.
    pub(super) handed_over: Arc<AtomicU64>,
    pub(super) context: Arc<NetworkContext>,
}

impl LeaderFollower {
    /// Publishes the leader that openraft knows, and sends back the writes that wait when it changes; ends with the
    /// failure that ends openraft.
    pub(super) async fn follow(self, raft: Raft) -> Result<(), String> {
        let (mut server, metrics) = (raft.server_metrics(), raft.metrics());
        drop(raft);
        loop {
            let (me, current, term) = {
                let seen = server.borrow_watched();
                let leader = seen.current_leader.and_then(|id| seen.membership_config.get_node(&id).cloned());
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
            if server.changed().await.is_err() {
                break;
            }
        }
        // A failure is in the last metrics. After a panic of openraft's core they end without one.
        let ended = match &metrics.borrow_watched().running_state {
            Err(fatal) => format!("openraft has stopped: {fatal}"),
            Ok(()) => "openraft has ended".to_owned(),
        };
        if self.stopping.load(Ordering::Relaxed) { Ok(()) } else { Err(ended) }
    }

    /// Logs who leads when that has changed, and tells those who wait for it.
    fn note(&self, me: NodeId, leader_id: Option<NodeId>, term: u64) {
        let before = self.leadership.borrow().clone();
        // The terms of elections that nobody has won yet are no news.
        if before.leader_id == leader_id && (before.term == term || leader_id.is_none()) {
            return;
        }
        let handed_over = match leader_id {
            Some(id) if id == me => self.handed_over.swap(0, Ordering::Relaxed),
            _ => 0,
        };
        let is_stopping = self.stopping.load(Ordering::Relaxed);
        let why = why((&before, me), (leader_id, term), handed_over, is_stopping);
        let was_mine = before.leader_id == Some(me);
        match leader_id {
            Some(id) if id == me => {
                tracing::info!(term, why, "this node leads the cluster from now on, in term {term}");
                count(&self.context.counts.elections_won);
            }
            Some(leader) if was_mine => {
                tracing::info!(
                    term,
                    leader,
                    why,
                    "this node leads no more: node {leader} does, in term {term}"
                );
            }
            None if was_mine => tracing::info!(term, why, "this node leads no more"),
            Some(leader) => {
                tracing::info!(term, leader, why, "node {leader} leads the cluster, in term {term}");
            }
            None => tracing::info!(term, why, "no leader is known"),
        }
        if leader_id.is_some() {
            count(&self.context.counts.leaders_seen);
        }
        self.leadership.send_replace(Leadership { leader_id, term, why });
    }
}

/// Why the leader has changed, as far as a member can know.
fn why(
    (before, me): (&Leadership, NodeId),
    (leader_id, term): (Option<NodeId>, u64),
    handed_over: NodeId,
    is_stopping: bool,
) -> String {
    match (before.leader_id, leader_id) {
        (_, Some(_)) if handed_over > 0 => format!("node {handed_over} handed leadership over"),
        (Some(old), _) if old == me && is_stopping => "this node is stopping".into(),
        (Some(old), Some(_)) if old == me => {
            format!("a majority has elected another leader after term {}", before.term)
        }
        (Some(old), None) if old == me && term > before.term => {
            format!("term {term} has begun with an election")
        }
        (Some(old), None) if old == me => "no majority of the voters answers".into(),
        (Some(old), None) => format!("node {old} was not heard of for an election time-out"),
        (Some(old), Some(_)) => format!("elected after node {old}, which led in term {}", before.term),
        (None, Some(_)) if before.why.is_empty() => "elected; this node has just started".into(),
        (None, Some(_)) => format!("elected; before, {}", before.why),
        (None, None) => before.why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_reason() {
        let at = |leader_id, term| Leadership { leader_id, term, why: "x".into() };
        let of = |before: Leadership, after, handed_over| why((&before, 1), after, handed_over, false);
        assert_eq!(of(Leadership::default(), (Some(2), 1), 0), "elected; this node has just started");
        assert_eq!(of(at(None, 1), (Some(2), 1), 0), "elected; before, x");
        assert_eq!(of(at(Some(2), 1), (None, 2), 0), "node 2 was not heard of for an election time-out");
        assert_eq!(of(at(Some(2), 1), (Some(1), 2), 2), "node 2 handed leadership over");
        assert_eq!(of(at(Some(2), 1), (Some(3), 2), 0), "elected after node 2, which led in term 1");
        let replaced = "a majority has elected another leader after term 1";
        assert_eq!(of(at(Some(1), 1), (Some(3), 2), 0), replaced);
        assert_eq!(of(at(Some(1), 1), (None, 2), 0), "term 2 has begun with an election");
        assert_eq!(of(at(Some(1), 1), (None, 1), 0), "no majority of the voters answers");
        assert_eq!(why((&at(Some(1), 1), 1), (None, 1), 0, true), "this node is stopping");
    }
}
