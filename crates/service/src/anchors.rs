//! Anchors this node's audit log in the replicated state, and checks that the log still has its anchors.
//!
//! An attacker who owns a host can rewrite the log on it, with matching hashes. So each node notes the number and the hash of its
//! last line in the state of the cluster, about once a minute if lines were added. The other members have these anchors,
//! and no command removes them.
//!
//! Only lines that are on the disk are anchored. So a power loss takes no anchored line, and a log without one was
//! rewritten, rolled back or replaced.
//!
//! **Invariants:** no request waits for this work. A cluster whose logs do not grow writes no entry for it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    audit::DurableHead,
    context::Context,
    freshness::Freshness,
    request::{Alarm, AuditWrite, Caller, Consistency, DecidedWrite, Principal, Refusal, Write},
    run_blocking,
    write::Writes,
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Verb,
    audit::{AnchoredLog, AuditAnchors},
    record::Revision,
    time::Timestamp,
};
use concord_net::NodeId;

/// How often the node looks whether anything is due.
const TICK: Duration = Duration::from_secs(1);
/// How often the node looks for all anchors. In between it looks for the newest, each time before it adds one: all take
/// some 200 MB of reads if the log has its greatest size.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// The anchors of the audit logs.
#[derive(Debug)]
pub struct AuditAnchoring {
    pub(crate) cx: Arc<Context>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) writes: Arc<Writes>,
}

/// The anchors of all logs, at a revision.
#[derive(Debug)]
pub struct AnchorsView {
    /// By cluster and node.
    pub logs: Vec<Arc<AuditAnchors>>,
    /// The revision of the state that they were read from.
    pub revision: Revision,
}

/// What the task remembers between its rounds.
struct Rounds {
    anchor_at: Instant,
    check_at: Instant,
    /// The acceptance that the last check knew.
    accepted: Option<Timestamp>,
}

impl AuditAnchoring {
    /// The anchors of all logs.
    ///
    /// # Errors
    /// When the principal lacks the permission, or no state is fresh enough.
    pub async fn anchors(
        &self,
        principal: &Principal,
        consistency: Consistency,
    ) -> Result<AnchorsView, Refusal> {
        principal.authorize(Verb::Audit, None)?;
        let state = self.freshness.view(consistency).await?;
        Ok(AnchorsView { logs: state.audit_anchors().cloned().collect(), revision: state.revision() })
    }

    /// Accepts that the log of a node does not have its anchors.
    ///
    /// # Errors
    /// When the principal lacks the permission, or the node has no anchors in this cluster. See [`Refusal`].
    pub async fn accept(&self, caller: Caller, node: NodeId) -> Result<DecidedWrite, Refusal> {
        caller.principal.authorize(Verb::Cluster, None)?;
        let log = self.log_of(node).ok_or_else(|| Refusal::Unavailable(self.cx.absence()))?;
        self.writes.write(caller, Write::Audit(AuditWrite::Accept { log })).await
    }

    /// What is wrong with the logs of the members: with this node's by its lines, with the others' by their anchors.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let own = self.cx.node_id();
        let mut alarms: Vec<Alarm> = self.cx.audit.alarms(own);
        let (Some(consensus), Some(log)) = (self.cx.consensus(), self.log_of(own)) else { return alarms };
        let is_reported = self.cx.audit.anchors_failure().is_some();
        let state = consensus.state();
        let others = state.audit_anchors().filter(|one| one.log.cluster == log.cluster);
        alarms.extend(others.filter(|one| one.log.node != own || !is_reported).filter_map(|one| {
            let (before, after) = one.regression()?;
            let node = one.log.node;
            let message = format!(
                "the audit log of node {node} was rolled back or replaced: line {} was anchored at {}, after line {} at {}. {}",
                after.seq, &*after.at.text(), before.seq, &*before.at.text(), what_to_do(node)
            );
            Some(Alarm { kind: "audit", node_id: Some(node), message })
        }));
        alarms
    }

    /// The log of a node in this cluster.
    fn log_of(&self, node: NodeId) -> Option<AnchoredLog> {
        Some(AnchoredLog { cluster: *self.cx.cluster_id()?.as_bytes(), node })
    }

    /// Adds anchors and looks for them, until this node stops.
    ///
    /// # Errors
    /// Never: failed work is retried.
    pub(crate) async fn keep_anchoring(self: Arc<Self>) -> Result<(), String> {
        let (Some(consensus), Some(log)) = (self.cx.consensus(), self.log_of(self.cx.node_id())) else {
            return Ok(());
        };
        let Some(interval) = self.cx.audit.anchor_interval() else { return Ok(()) };
        let now = Instant::now();
        let mut rounds = Rounds { anchor_at: now + jittered(interval), check_at: now, accepted: None };
        while !self.cx.is_over() {
            self.round(consensus, &log, &mut rounds, interval).await;
            self.cx.pause(TICK.min(interval)).await;
        }
        Ok(())
    }

    async fn round(&self, consensus: &Consensus, log: &AnchoredLog, rounds: &mut Rounds, interval: Duration) {
        let own = consensus.state().audit_anchors_of(log).cloned();
        let accepted = own.as_ref().and_then(|own| Some(own.accepted.as_ref()?.at));
        if rounds.check_at <= Instant::now() || rounds.accepted != accepted {
            (rounds.check_at, rounds.accepted) = (Instant::now() + CHECK_INTERVAL, accepted);
            self.check(own.clone(), usize::MAX).await;
        }
        if rounds.anchor_at > Instant::now() {
            return;
        }
        rounds.anchor_at = Instant::now() + jittered(interval);
        let newest = own.as_ref().and_then(|own| own.anchors.last()).copied();
        let Some(head) = self.cx.audit.durable_head() else { return };
        if newest.is_some_and(|newest| (newest.seq, newest.sha256) == (head.seq, head.sha256)) {
            return;
        }
        self.check(own, 1).await;
        self.anchor(*log, head).await;
    }

    /// Proposes an anchor. One that fails is not repeated: the next one stands for it.
    async fn anchor(&self, log: AnchoredLog, head: DurableHead) {
        let caller = Caller::cluster(None);
        let write = AuditWrite::Anchor { log, seq: head.seq, sha256: head.sha256 };
        match self.writes.write(caller, Write::Audit(write)).await {
            // This node may apply it later, for instance while its disk hangs.
            Ok(decided) => {
                let state = self.cx.applied();
                if state.revision() >= decided.applied.revision && state.audit_anchors_of(&log).is_none() {
                    tracing::warn!("the audit log is not anchored: the state has no room for another log");
                }
            }
            Err(error) => tracing::debug!(?error, "the audit log was not anchored"),
        }
    }

    /// Looks for the newest anchors of this node's log that nobody has accepted. A check of all of them decides the alarm;
    /// a check of some can only raise it.
    async fn check(&self, own: Option<Arc<AuditAnchors>>, most: usize) {
        let look = self.cx.audit.search(own, most);
        let looked = run_blocking(look).await;
        let found = match looked {
            Ok(Ok(found)) => found,
            // The log has an alarm of its own while it can't be read.
            Ok(Err(error)) => return tracing::debug!(%error, "the audit log could not be read"),
            Err(error) => return tracing::debug!(?error, "the audit log was not checked"),
        };
        let before = self.cx.audit.anchors_failure();
        if found.is_none() && most != usize::MAX {
            return;
        }
        let node = self.cx.node_id();
        let text = found.map(|found| format!("{found} {}", what_to_do(node)));
        match (&before, &text) {
            (None, Some(text)) => {
                tracing::error!(node, "the audit log is not the one that was anchored: {text}");
            }
            (Some(_), None) => {
                tracing::info!(node, "the audit log has all anchors that were not accepted");
            }
            _ => {}
        }
        // The reason of a check of all anchors is the better one.
        if before.is_none() || most == usize::MAX {
            self.cx.audit.note_anchors_failure(text);
        }
    }
}

/// How an operator goes on.
fn what_to_do(node: NodeId) -> String {
    format!("compare it with `concord audit verify --anchors`; if you know why: concord audit accept {node}")
}

/// Between three quarters of the time and five quarters, so that the nodes of a cluster do not write at once.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(fastrand::f64().mul_add(0.5, 0.75))
}
