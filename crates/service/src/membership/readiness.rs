//! Whether this node is ready: it has caught up with a live leader, as recently as a reader would notice.
//!
//! **Invariant:** a node that has not confirmed its state within `READY_STALENESS_MAX`, has left the cluster, or is
//! stopping is not ready.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::Service;
use concord_model::limits::READY_STALENESS_MAX;

/// How often this node confirms that it has caught up.
const READINESS_INTERVAL: Duration = Duration::from_millis(250);
/// How long one confirmation may take.
const READINESS_TIMEOUT: Duration = Duration::from_secs(1);

impl Service {
    /// Whether this node has caught up with a live leader.
    ///
    /// # Errors
    /// Why it has not.
    pub fn ready(&self) -> Result<(), String> {
        if self.inner.stopping.is_cancelled() {
            return Err("this node is stopping".into());
        }
        let consensus = self.consensus().filter(|_| !self.has_left()).ok_or_else(|| self.absence())?;
        if !consensus.status().running {
            return Err("consensus has ended on this node".into());
        }
        if let Some(stalled) = consensus.log_stalled() {
            return Err(format!("the log of this node has not moved for {} ms", stalled.as_millis()));
        }
        match self.staleness() {
            Some(age) if age < READY_STALENESS_MAX => Ok(()),
            Some(_) | None if consensus.leader().is_none() => Err("no leader is known".into()),
            Some(age) => Err(format!("this node has not caught up with a leader for {} ms", age.as_millis())),
            None => Err("this node has not caught up with a leader yet".into()),
        }
    }

    /// Confirms periodically that this node has caught up, as a read does, and logs when its readiness changes. On the
    /// leader it also completes the change of members that a lost leader has left half made.
    pub(super) async fn monitor_readiness(self) -> Result<(), String> {
        let Some(consensus) = self.consensus() else { return Ok(()) };
        let (mut was_ready, mut since) = (false, Instant::now());
        while !self.inner.stopping.is_cancelled() {
            if self.has_left() {
                consensus.retire();
                tracing::warn!("this node was taken out of the cluster and takes no part any more");
                return Ok(());
            }
            self.complete_change(consensus);
            let confirmed = timeout(READINESS_TIMEOUT, self.confirm(consensus)).await;
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
            tokio::select! {
                () = self.inner.stopping.cancelled() => {}
                () = sleep(READINESS_INTERVAL) => {}
            }
        }
        Ok(())
    }
}
