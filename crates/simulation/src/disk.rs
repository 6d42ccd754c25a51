//! The disks of the nodes: how long an fsync of the log takes, in virtual time.
//!
//! What is queued for the log is written and flushed together when that time is over, so a node that loses power before
//! loses all of it.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use crate::machine::{self, HOSTS_MAX};

thread_local! {
    static RNG: RefCell<fastrand::Rng> = const { RefCell::new(fastrand::Rng::with_seed(0)) };
    static FLUSH_MAX_MS: [Cell<u64>; HOSTS_MAX] = const { [const { Cell::new(0) }; HOSTS_MAX] };
}

pub(crate) fn begin(seed: u64, flush_max_ms: u64) {
    RNG.with_borrow_mut(|rng| rng.seed(seed ^ 0xd15c));
    (0..HOSTS_MAX).for_each(|host| set_flush_max(host, flush_max_ms));
    chunked_wal::simulation::set_later(later);
}

pub(crate) fn set_flush_max(host: usize, ms: u64) {
    FLUSH_MAX_MS.with(|all| all[host].set(ms));
}

/// Flushes a log as late as the disk of the host that runs is slow.
fn later(flush: Box<dyn FnOnce() + Send>) {
    let longest = FLUSH_MAX_MS.with(|all| all[machine::host()].get());
    let ms = RNG.with_borrow_mut(|rng| rng.u64(..=longest));
    drop(tokio::spawn(async move {
        if ms == 0 {
            // After what is running now: the caller may hold locks that a flush takes.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        flush();
    }));
}

/// Runs `crash` while nothing reaches a disk.
pub(crate) fn without_power<T>(crash: impl FnOnce() -> T) -> T {
    chunked_wal::simulation::set_power_is_off(true);
    concord_storage::set_power_is_off(true);
    let result = crash();
    chunked_wal::simulation::set_power_is_off(false);
    concord_storage::set_power_is_off(false);
    result
}
