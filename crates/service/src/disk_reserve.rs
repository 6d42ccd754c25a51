//! Refuses writes before the volume of the data directory is full.
//!
//! The log's own appends must never meet a full volume: an append that fails stops the node. So a reserve stays free,
//! and below it only writes that remove something are accepted.
//!
//! **Invariant:** a volume that does not report its free space never stops the service: the log still finds out.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::request::Refusal;

/// How long a measurement is valid: a volume does not fill by more than its reserve in that time.
const MEASUREMENT_AGE_MAX: Duration = Duration::from_secs(1);

/// The free space of the data directory's volume, compared with the reserve.
#[derive(Debug)]
pub(super) struct DiskReserve {
    directory: PathBuf,
    reserve_bytes: u64,
    /// The last measurement; its value is `None` when the volume did not answer.
    measured: Mutex<Option<(Instant, Option<u64>)>>,
    /// Whether less than the reserve was free at the last measurement.
    was_full: AtomicBool,
}

impl DiskReserve {
    pub(super) fn new(directory: PathBuf, reserve_bytes: u64) -> Self {
        Self { directory, reserve_bytes, measured: Mutex::new(None), was_full: AtomicBool::new(false) }
    }

    /// Refuses while less than the reserve is free.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        match self.free_bytes() {
            Some(free) if free < self.reserve_bytes => Err(Refusal::StorageFull(format!(
                "the volume of the data directory has {free} bytes left, less than the reserve of {} bytes",
                self.reserve_bytes
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// The bytes that stay free.
    pub(super) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// The free bytes of the volume, if it says how many.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, free)) = *measured
            && at.elapsed() < MEASUREMENT_AGE_MAX
        {
            return free;
        }
        let free = match rustix::fs::statvfs(&self.directory) {
            Ok(volume) => Some(volume.f_bavail.saturating_mul(volume.f_frsize)),
            Err(error) => {
                tracing::warn!(%error, directory = %self.directory.display(), "the volume's free space is unknown");
                None
            }
        };
        *measured = Some((Instant::now(), free));
        if let Some(free_bytes) = free {
            self.note(free_bytes);
        }
        free
    }

    /// Logs when the volume begins and ceases to be full.
    fn note(&self, free_bytes: u64) {
        let (is_full, reserve_bytes) = (free_bytes < self.reserve_bytes, self.reserve_bytes);
        match (self.was_full.swap(is_full, Ordering::Relaxed), is_full) {
            (false, true) => tracing::warn!(
                free_bytes,
                reserve_bytes,
                "writes other than deletes are refused: the volume of the data directory has less free space than the reserve"
            ),
            (true, false) => tracing::info!(
                free_bytes,
                reserve_bytes,
                "there is room for writes again: the volume of the data directory has more free space than the reserve"
            ),
            (true, true) | (false, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_below_its_reserve_refuses() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(DiskReserve::new(directory.path().into(), 0).check(), Ok(()));
        let full = DiskReserve::new(directory.path().into(), u64::MAX).check();
        assert!(matches!(full, Err(Refusal::StorageFull(_))));
    }
}
