//! The alarms about rolled-back disks, whose members have lost votes or entries that they had confirmed.

use crate::request::Alarm;
use concord_consensus::{Consensus, RolledBack, node_list};
use concord_net::NodeId;

/// An alarm for each member with a rolled-back disk, and one if this node's log contradicts the leader's.
pub(crate) fn disk_alarms(consensus: &Consensus, me: NodeId) -> Vec<Alarm> {
    let rolled_back = consensus.rolled_back().into_iter().map(|(id, one)| rolled_back_alarm(id, &one));
    let forked = consensus.contradicted().map(|(leader, index)| Alarm {
        kind: "forked",
        node_id: Some(me),
        message: format!(
            "entry {index} of node {me}'s log is committed, but the log of the leader, node {leader}, has another \
             entry there: acknowledged writes were lost, and node {me} may have the only copy of them"
        ),
    });
    rolled_back.chain(forked).collect()
}

fn rolled_back_alarm(id: NodeId, how: &RolledBack) -> Alarm {
    let then = match how {
        RolledBack::Waiting(nodes) => {
            format!(
                "it neither votes nor confirms entries until it has heard from {}, because only they may know \
                 what it had confirmed; if they are lost permanently, run `concord cluster vouch` on its host",
                node_list(nodes)
            )
        }
        RolledBack::CatchingUp(missing) => {
            let until =
                "it is catching up, and votes for no candidate that may lack an entry that it has lost";
            if missing.is_empty() {
                until.to_owned()
            } else {
                format!(
                    "{until}; only {} may have these entries: start what does not run, or if it is lost permanently, \
                     run `concord cluster vouch` on the host of node {id}",
                    node_list(missing)
                )
            }
        }
        RolledBack::CaughtUp => "it has caught up; find out who put the disk back".to_owned(),
    };
    let message = format!("node {id} has started from an earlier state of its disk: {then}");
    Alarm { kind: "rolled_back", node_id: Some(id), message }
}
