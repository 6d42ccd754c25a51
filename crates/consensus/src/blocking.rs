//! Where work runs that may wait for a disk, or that takes long: on the threads of the runtime for that.
//!
//! A simulation has one thread, and what blocks it runs at once (`docs/internals/simulation.md`). Nothing else in the
//! crates of a node calls `spawn_blocking`; `tests/tidy/tasks.rs` checks that.

use tokio::task::JoinError;
#[cfg(not(feature = "simulation"))]
use tokio::task::spawn_blocking;

/// Runs work on a blocking thread, and waits for it.
///
/// # Errors
/// When it has panicked.
#[cfg(not(feature = "simulation"))]
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    spawn_blocking(work).await
}

/// Runs work.
///
/// # Errors
/// Never.
#[cfg(feature = "simulation")]
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    Ok(work())
}

/// Drops a value on a blocking thread: freeing a million records takes long.
pub fn drop_elsewhere<T: Send + 'static>(value: T) {
    #[cfg(not(feature = "simulation"))]
    drop(spawn_blocking(move || drop(value)));
    #[cfg(feature = "simulation")]
    drop(value);
}
