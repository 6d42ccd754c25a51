//! The background work for access keys: records the day of a key's last use, and enables the root key again when an
//! operator has asked for that in the data directory.
//!
//! The day of the last use helps operators to find unused keys. It is recorded once a day for each key, several keys
//! with one entry. A use may be missed if the node ends before it has recorded it.
//!
//! `concord recover-root` leaves a file in the data directory of a stopped node. The node finds it at its next start
//! and requests that the root key be enabled, which the log decides like any other change. An operator who can write
//! into the data directory of a node can act as that node anyway, so this grants nothing new.
//!
//! **Invariant:** no request waits for this work, and failed work is retried.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    access::keys::AccessKeys,
    request::{AccessWrite, Caller, Consistency, Refusal, Write},
    run_blocking,
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::{KeyId, day_of},
    limits::KEYS_MARKED_MAX,
};

/// The keys that were used today and are not marked yet.
pub(super) type UsedKeys = BTreeSet<KeyId>;

/// The interval at which keys are marked.
const INTERVAL: Duration = Duration::from_secs(1);
/// The file by which an operator asks for the root key.
const RECOVER_ROOT_FILE: &str = "recover-root";

impl AccessKeys {
    /// Marks keys as used, and enables the root key if an operator has asked for it, until this node stops.
    ///
    /// # Errors
    /// Never: failed work is retried.
    pub(crate) async fn keep_access(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let mut is_root_requested = true;
        while !self.cx.is_over() {
            if is_root_requested {
                is_root_requested = self.recover_root().await.unwrap_or_else(|error| {
                    tracing::warn!(?error, "could not enable the root key; retrying");
                    true
                });
            }
            let state = consensus.state();
            self.authentication.access.today.store(day_of(self.clock.log_time(&state)), Ordering::Relaxed);
            self.mark_used(consensus).await;
            self.cx.pause(INTERVAL).await;
        }
        Ok(())
    }

    /// Marks some of the used keys. Keys that could not be marked are marked later.
    async fn mark_used(&self, consensus: &Consensus) {
        let (access, state) = (&self.authentication.access, consensus.state());
        let today = access.today.load(Ordering::Relaxed);
        if today == 0 {
            return;
        }
        let is_due = |id: &KeyId| state.access_key(id).is_some_and(|key| key.last_used_day < Some(today));
        let mut due: Vec<KeyId> = {
            let mut used = access.used();
            used.retain(is_due);
            used.iter().take(KEYS_MARKED_MAX).cloned().collect()
        };
        if due.is_empty() {
            return;
        }
        match self
            .writes
            .write(Caller::cluster(None), Write::Access(AccessWrite::MarkUsed(due.clone())))
            .await
        {
            Ok(_) => {
                let mut used = access.used();
                due.drain(..).for_each(|id| {
                    used.remove(&id);
                });
            }
            Err(error) => tracing::debug!(?error, "could not record the use of access keys"),
        }
    }

    /// Enables the root key if the operator has asked for it. Returns whether to try again.
    async fn recover_root(&self) -> Result<bool, Refusal> {
        let path = self.cx.options.directory.join(RECOVER_ROOT_FILE);
        if !exists(path.clone()).await? {
            return Ok(false);
        }
        if self.freshness.view(Consistency::LINEARIZABLE).await?.is_root_disabled() {
            let reason = format!("concord recover-root on node {}", self.cx.node_id());
            self.writes.write(Caller::cluster(Some(reason)), Write::Access(AccessWrite::EnableRoot)).await?;
            tracing::warn!("enabled the root key again: an operator asked for it on this node");
        } else {
            tracing::info!("an operator asked for the root key on this node, but it is enabled already");
        }
        run_blocking(move || remove(&path)).await?.map_err(|error| Refusal::Internal(error.to_string()))?;
        Ok(false)
    }
}

async fn exists(path: PathBuf) -> Result<bool, Refusal> {
    let found = run_blocking(move || path.try_exists()).await?;
    found.map_err(|error| Refusal::Internal(error.to_string()))
}

fn remove(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(path)?;
    match path.parent() {
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Asks the node of this data directory, which is stopped, to enable the root key at its next start. The caller holds
/// the lock of the directory.
///
/// # Errors
/// When the file can't be written.
pub fn ask_for_root(directory: &Path) -> std::io::Result<()> {
    let file = std::fs::File::create(directory.join(RECOVER_ROOT_FILE))?;
    file.sync_all()?;
    std::fs::File::open(directory)?.sync_all()
}
