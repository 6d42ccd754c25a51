//! All alarms that this node knows of.

use crate::{
    approvers::approvers_alarm, change_requests::due::named, disk_alarms::disk_alarms, identity::key_sets,
    membership::ClusterMembers, reload::certificate_alarms, reload::data_key_alarm, request::Alarm, slowness,
};
use concord_consensus::Consensus;
use concord_model::{limits::READY_STALENESS_MAX, system::pace::Actor};
use concord_state::State;

/// Bypasses that wait for a review. It has their number only: who sees alarms need not see what they change.
fn unreviewed(state: &State) -> Option<Alarm> {
    let count = state.unreviewed_bypass_count();
    let message = format!(
        "bypasses of the rules of environments that wait for a review: {count}; `concord change list --unreviewed` lists \
         those that a key may read"
    );
    (count > 0).then_some(Alarm { kind: "bypass_unreviewed", node_id: None, message })
}

/// Rollouts that the cluster has paused: somebody decides.
fn rollouts_paused(state: &State) -> Option<Alarm> {
    let paused = state.running_rollouts().filter(|(_, running)| {
        running.pace.paused.as_ref().is_some_and(|paused| paused.by == Actor::Cluster)
    });
    let ids: Vec<String> = paused.map(|(id, _)| id.to_string()).collect();
    let message = || {
        format!(
            "the cluster has paused the rollout of {}: `concord change show ID` says why; resume or abort it",
            named(&ids)
        )
    };
    (!ids.is_empty()).then(|| Alarm { kind: "rollout_paused", node_id: None, message: message() })
}

impl ClusterMembers {
    /// What an operator must know of this node, and of the others as far as this node knows them.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let mut alarms = certificate_alarms(&self.cx);
        if let Some(consensus) = self.cx.consensus() {
            alarms.extend(self.clock.clock_alarms());
            alarms.extend(disk_alarms(consensus, self.cx.node_id()));
            alarms.extend(data_key_alarm(&self.cx));
            alarms.extend(slowness::alarms(consensus, self.cx.node_id()));
            alarms.extend(self.disk_space.alarms());
            alarms.extend(self.contact_alarms(consensus));
            let state = consensus.state();
            alarms.extend(approvers_alarm(&state, self.clock.log_time(&state)));
            alarms.extend(unreviewed(&state));
            alarms.extend(self.due_changes.alarms(&state));
            alarms.extend(rollouts_paused(&state));
            alarms.extend(key_sets::alarms(
                &state,
                &self.cx.policies.of(&state),
                self.clock.log_time(&state),
            ));
        }
        alarms.extend(self.anchors.alarms());
        alarms
    }

    /// A log that stands still, a leader that is missing, and members that the leader can't reach. The messages name no
    /// times: two requests in a row get the same alarms.
    fn contact_alarms(&self, consensus: &Consensus) -> Vec<Alarm> {
        let me = self.cx.node_id();
        let stalled = consensus.log_stalled().map(|_| Alarm {
            kind: "log_stalled",
            node_id: Some(me),
            message: format!("the log of node {me} has not moved for some seconds: its disk gives no answer"),
        });
        let status = consensus.status();
        let is_late = self.freshness.staleness().is_none_or(|age| age >= READY_STALENESS_MAX);
        let no_leader = (status.leader_id.is_none() && is_late && !status.members.is_empty()).then(|| Alarm {
            kind: "no_leader",
            node_id: Some(me),
            message: format!(
                "node {me} knows no leader: it can't reach the others, or they are no majority of the voters"
            ),
        });
        let lost = status.members.iter().filter(|member| {
            status.leader_id == Some(me)
                && member.contact.as_ref().is_some_and(|contact| !contact.is_reachable)
        });
        let lost = lost.map(|member| Alarm {
            kind: "unreachable",
            node_id: Some(member.member.id),
            message: format!(
                "node {} at {} does not respond to the leader, node {me}",
                member.member.id, member.member.peer_addr
            ),
        });
        stalled.into_iter().chain(no_leader).chain(lost).collect()
    }
}
