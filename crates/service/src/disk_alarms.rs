//! The alarms of what the members tell each other: rolled-back disks, logs that were discarded, leases; and of another
//! process with the id of this node.

use std::collections::BTreeMap;

use crate::request::Alarm;
use concord_consensus::{Condition, Consensus, RolledBack, node_list};
use concord_net::NodeId;

/// The alarms about the members as this node knows them, and one if this node's log contradicts the leader's.
pub(crate) fn disk_alarms(consensus: &Consensus, me: NodeId) -> Vec<Alarm> {
    let conditions = consensus.conditions();
    let voters = consensus.status().members.into_iter().filter(|member| member.voter);
    let voters: Vec<NodeId> = voters.map(|voter| voter.member.id).collect();
    let mut alarms = Vec::new();
    for (id, condition) in &conditions {
        alarms.extend(condition.rolled_back.as_ref().map(|how| rolled_back_alarm(*id, how)));
        alarms.extend(discarded_log_alarm(*id, &condition.discarded_logs));
        alarms.extend(condition.is_copied.then(|| duplicate_id_alarm(*id, None)));
    }
    alarms.extend(lease_alarm(&conditions, &voters));
    alarms.extend(consensus.twin().map(|address| duplicate_id_alarm(me, Some(&address))));
    alarms.extend(consensus.contradicted().map(|(leader, index)| Alarm {
        kind: "forked",
        node_id: Some(me),
        message: format!(
            "entry {index} of node {me}'s log is committed, but the log of the leader, node {leader}, has another \
             entry there: acknowledged writes were lost, and node {me} may have the only copy of them"
        ),
    }));
    alarms
}

fn rolled_back_alarm(id: NodeId, how: &RolledBack) -> Alarm {
    let then = match how {
        RolledBack::Waiting(missing) => {
            let lost = if missing.nodes.is_empty() {
                "it is asking them"
            } else if missing.has_majority {
                "if they are lost permanently, run `concord cluster vouch` on its host"
            } else {
                "start enough of them for a majority: without one, it can't continue"
            };
            format!(
                "it neither votes nor confirms entries until it has heard from {}, because only they may know \
                 what it had confirmed; {lost}",
                node_list(&missing.nodes)
            )
        }
        RolledBack::CatchingUp(missing) => {
            let until =
                "it is catching up, and votes for no candidate that may lack an entry that it has lost";
            let nodes = node_list(&missing.nodes);
            if missing.nodes.is_empty() {
                until.to_owned()
            } else if missing.has_majority {
                format!(
                    "{until}; only {nodes} may have these entries: start what does not run, or if it is lost \
                     permanently, run `concord cluster vouch` on the host of node {id}"
                )
            } else {
                format!(
                    "{until}. It waits for {nodes}: start enough of them for a majority: without one, it can't continue"
                )
            }
        }
        RolledBack::CaughtUp => "it has caught up; find out who put the disk back".to_owned(),
    };
    let message = format!("node {id} has started from an earlier state of its disk: {then}");
    Alarm { kind: "rolled_back", node_id: Some(id), message }
}

fn discarded_log_alarm(id: NodeId, logs: &[String]) -> Option<Alarm> {
    let message = format!(
        "node {id} has discarded its log, because a majority of the members had another history or another state. The \
         log is kept in its data directory as {}, and may be the only copy of acknowledged writes: copy it, then delete it \
         there",
        logs.join(", ")
    );
    (!logs.is_empty()).then_some(Alarm { kind: "discarded_log", node_id: Some(id), message })
}

/// Leases of some voters only: no lease read depends on them until all have one.
fn lease_alarm(conditions: &BTreeMap<NodeId, Condition>, voters: &[NodeId]) -> Option<Alarm> {
    let known = voters.iter().filter_map(|id| Some((*id, conditions.get(id)?.lease)));
    let (with, without): (Vec<_>, Vec<_>) = known.partition(|(_, lease)| lease.is_some());
    let without: Vec<NodeId> = without.into_iter().map(|(id, _)| id).collect();
    let message = format!(
        "lease reads are off: {} does not have CONCORD_LEASE_READS, and other voters have it. Reads with \
         `consistency=lease` ask a majority until all voters have it",
        node_list(&without)
    );
    let node_id = if let [one] = without[..] { Some(one) } else { None };
    (!with.is_empty() && !without.is_empty()).then_some(Alarm { kind: "lease", node_id, message })
}

/// `reached_at`: the address of the node, if the members reach the other process there and not this one.
fn duplicate_id_alarm(id: NodeId, reached_at: Option<&str>) -> Alarm {
    let message = match reached_at {
        Some(address) => format!(
            "another process with the id of node {id} is running at {address}: one of the two runs from a copy of the \
             other's data directory. This one takes no part: if it is the copy, stop it and delete its directory"
        ),
        None => format!(
            "another process with the id of node {id} is running from a copy of its data directory. It takes no part: \
             stop it, and delete the copy"
        ),
    };
    Alarm { kind: "duplicate_id", node_id: Some(id), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_without_a_lease_is_named_where_another_has_one() {
        let told = |leases: &[Option<u64>]| -> BTreeMap<NodeId, Condition> {
            let conditions = leases.iter().map(|lease| Condition { lease: *lease, ..Condition::default() });
            (1..).zip(conditions).collect()
        };
        let alarm = |leases: &[Option<u64>]| lease_alarm(&told(leases), &[1, 2, 3]);
        for all_or_none in [vec![Some(900); 3], vec![None; 3], vec![Some(900), Some(600)]] {
            assert!(alarm(&all_or_none).is_none(), "{all_or_none:?}");
        }
        assert!(alarm(&[Some(900), Some(900), Some(900), None]).is_none(), "node 4 is no voter");
        let one = alarm(&[Some(900), None, Some(900)]).unwrap();
        assert!(one.node_id == Some(2) && one.message.contains("node 2 does not have CONCORD_LEASE_READS"));
        assert_eq!(alarm(&[Some(900), None, None]).unwrap().node_id, None);
    }
}
