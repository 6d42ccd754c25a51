//! The reasons for which a test lets time pass. Everything else waits for a condition: [`super::eventually`].
//!
//! | a fixed time is | helper |
//! |---|---|
//! | how long a fault, a load or a slow request lasts | [`lasts`] |
//! | the pause between two requests of a load, or between two looks | [`pace`] |
//! | the time in which something must not happen | [`must_not_happen`] |
//!
//! **Invariant:** no other file of the tests sleeps (`tests/tidy/sleeps.rs`).

use std::time::{Duration, Instant};

use super::PAUSE;

/// Lets a fault, a load or a slow request last.
pub(crate) async fn lasts(time: Duration) {
    tokio::time::sleep(time).await;
}

/// [`lasts`] on a thread of its own.
pub(crate) fn lasts_blocking(time: Duration) {
    std::thread::sleep(time);
}

/// Pauses between two requests, or between two looks.
pub(crate) async fn pace(pause: Duration) {
    tokio::time::sleep(pause).await;
}

/// [`pace`] on a thread of its own.
pub(crate) fn pace_blocking(pause: Duration) {
    std::thread::sleep(pause);
}

/// Looks again and again for so long whether all is well. The error is the first one of `is_well`.
pub(crate) async fn stays(
    time: Duration,
    mut is_well: impl AsyncFnMut() -> Result<(), String>,
) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        // The last look is after the end.
        let is_over = begin.elapsed() >= time;
        is_well().await?;
        if is_over {
            return Ok(());
        }
        pace(PAUSE.min(time)).await;
    }
}

/// Panics as soon as something happens within a time. Where something else shows that it can't happen any more, a test
/// waits for that instead.
pub(crate) async fn must_not_happen(
    what: &str,
    time: Duration,
    is_well: impl AsyncFnMut() -> Result<(), String>,
) {
    if let Err(why) = stays(time, is_well).await {
        panic!("{what}: {why}");
    }
}
