//! Readiness: whether this node has recently caught up with a live leader. Also records changes of the leader in the audit
//! log.
//!
//! **Invariant:** a node is not ready if it has not confirmed its state within `READY_STALENESS_MAX`, was removed from the
//! cluster, or is stopping.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use crate::{context::Context, membership::ClusterMembers};
use concord_consensus::Leadership;
use concord_model::limits::READY_STALENESS_MAX;

/// How often this node confirms that it has caught up.
const READINESS_INTERVAL: Duration = Duration::from_millis(250);
/// How long one confirmation may take.
const READINESS_TIMEOUT: Duration = Duration::from_secs(1);

impl ClusterMembers {
    /// Whether this node has caught up with a live leader.
    ///
    /// # Errors
    /// Why it has not.
    pub fn ready(&self) -> Result<(), String> {
        if self.cx.stopping.is_cancelled() {
            return Err("this node is stopping".into());
        }
        let consensus =
            self.cx.consensus().filter(|_| !self.cx.has_left()).ok_or_else(|| self.cx.absence())?;
        if !consensus.status().running {
            return Err("consensus has ended on this node".into());
        }
        if let Some(stalled) = consensus.log_stalled() {
            return Err(format!("the log of this node has not moved for {} ms", stalled.as_millis()));
        }
        if let Some(why) = consensus.not_whole() {
            return Err(why);
        }
        match self.freshness.staleness() {
            Some(age) if age < READY_STALENESS_MAX => Ok(()),
            Some(_) | None if consensus.leader().is_none() => Err("no leader is known".into()),
            Some(age) => Err(format!("this node has not caught up with a leader for {} ms", age.as_millis())),
            None => Err("this node has not caught up with a leader yet".into()),
        }
    }

    /// Whether this node also takes writes that need space.
    ///
    /// # Errors
    /// Why it does not.
    pub fn ready_for_writes(&self) -> Result<(), String> {
        self.ready()?;
        let full = self.disk_space.alarms().into_iter().map(|alarm| alarm.message).collect::<Vec<_>>();
        if full.is_empty() { Ok(()) } else { Err(full.join("; ")) }
    }

    /// Confirms periodically that this node has caught up, like a read, and logs when its readiness changes. On the leader
    /// it also completes an incomplete change of members of a lost leader.
    pub(super) async fn monitor_readiness(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let (mut was_ready, mut since) = (false, Instant::now());
        while !self.cx.stopping.is_cancelled() {
            if self.cx.has_left() {
                consensus.retire();
                tracing::warn!("this node was removed from the cluster; stop it");
                return Ok(());
            }
            self.complete_change(consensus);
            let confirmed = timeout(READINESS_TIMEOUT, self.freshness.confirm(consensus)).await;
            let why = match &confirmed {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the leader did not answer in time".into(),
            };
            let ready = self.ready();
            if ready.is_ok() != was_ready {
                was_ready = !was_ready;
                let lasted_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                since = Instant::now();
                match ready {
                    Ok(()) => tracing::info!(lasted_ms, "ready: caught up with a live leader"),
                    Err(text) => tracing::warn!(lasted_ms, why, "not ready: {text}"),
                }
            }
            self.cx.pause(READINESS_INTERVAL).await;
        }
        Ok(())
    }
}

/// Records in the audit log when this node becomes the leader and when it steps down: an election has no request that would
/// be recorded. Each node records only its own leadership.
pub(super) async fn record_leadership(cx: Arc<Context>) -> Result<(), String> {
    let Some(consensus) = cx.consensus() else { return Ok(()) };
    let (mut leadership, mut was_mine) = (consensus.leadership(), false);
    loop {
        let Leadership { leader_id, term, .. } = leadership.borrow_and_update().clone();
        let is_mine = leader_id == Some(cx.node_id());
        if is_mine != was_mine {
            cx.audit.record_leadership(is_mine, term);
        }
        was_mine = is_mine;
        let is_over = tokio::select! {
            () = cx.stopping.cancelled() => true,
            changed = leadership.changed() => changed.is_err(),
        };
        if is_over {
            return Ok(());
        }
    }
}
