//! The disks of the nodes: how long an fsync of the log takes, in virtual time, and what is done to a disk from outside.
//!
//! What is queued for the log is written and flushed together when that time is over. A node that loses power before loses
//! some of it, often all (`volume`).

use std::{
    cell::{Cell, RefCell},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    machine::{self, HOSTS_MAX},
    node::name,
    volume::{self, Loss},
};

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

/// Runs `crash`, which ends a node, while nothing reaches its disk.
pub(crate) fn without_power<T>(node: usize, loss: Loss, crash: impl FnOnce() -> T) -> T {
    chunked_wal::simulation::set_power_is_off(true);
    concord_storage::set_power_is_off(true);
    let result = volume::crash(node, loss, crash);
    chunked_wal::simulation::set_power_is_off(false);
    concord_storage::set_power_is_off(false);
    result
}

/// Where the copy of a node's disk is.
fn image(node: usize) -> PathBuf {
    Path::new("images").join(name(node))
}

/// Copies the disk of a node as it is, without sled, which is missing there.
pub(crate) fn take_image(node: usize) -> std::io::Result<()> {
    volume::unwatched(|| {
        if image(node).exists() {
            std::fs::remove_dir_all(image(node))?;
        }
        volume::copy(Path::new(&name(node)), &image(node))
    })
}

/// Puts the copy in the place of the disk of a node that does not run.
pub(crate) fn put_back(node: usize) -> std::io::Result<()> {
    volume::forget(node);
    volume::unwatched(|| {
        std::fs::remove_dir_all(name(node))?;
        std::fs::rename(image(node), name(node))
    })
}

/// A bit of a file has flipped.
#[derive(Debug, Clone)]
pub(crate) struct Flip {
    pub(crate) file: PathBuf,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Flips a bit in a file of a node that does not run.
pub(crate) fn flip(node: usize, rng: &mut fastrand::Rng) -> Option<Flip> {
    volume::unwatched(|| {
        let mut files = volume::files_below(Path::new(&name(node)));
        files.retain(|file| std::fs::metadata(file).is_ok_and(|file| file.len() > 0));
        let file = rng.choice(&files)?.clone();
        let before = std::fs::read(&file).ok()?;
        let mut after = before.clone();
        after[rng.usize(..before.len())] ^= 1 << rng.u8(..8);
        std::fs::write(&file, &after).ok()?;
        Some(Flip { file, before, after })
    })
}

impl Flip {
    /// Does what an operator does who has a copy of the file.
    pub(crate) fn mend(&self) {
        volume::unwatched(|| {
            if std::fs::read(&self.file).is_ok_and(|now| now == self.after) {
                std::fs::write(&self.file, &self.before).expect("the file can be written");
            }
        });
    }
}
