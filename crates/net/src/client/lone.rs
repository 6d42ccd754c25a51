//! How many calls that carry one write each are made at once.
//!
//! Such a call has a connection of its own, and its receiver takes so many. A connection that finds no place there is
//! closed or waits, and nobody knows what became of its write; one that waits here was certainly not sent.
//!
//! **Invariant:** writes that may take long never use up the places of the others.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Peers;

/// Calls at once where no limit of open files asks for fewer: as many writes as a leader decides in a few flushes.
const LONE_CALLS_MAX: usize = 1024;
/// The part of them that may carry writes that take long.
const LONG_PART: usize = 4;

/// The places for such calls.
#[derive(Debug)]
pub(super) struct LoneCalls {
    all: Semaphore,
    long: Semaphore,
}

impl LoneCalls {
    fn new(most: usize) -> Self {
        let most = most.clamp(2, LONE_CALLS_MAX);
        Self { all: Semaphore::new(most), long: Semaphore::new((most / LONG_PART).max(1)) }
    }
}

impl Default for LoneCalls {
    fn default() -> Self {
        Self::new(LONE_CALLS_MAX)
    }
}

/// A place for a call that carries one write.
#[derive(Debug)]
pub struct LoneCall<'a> {
    _all: SemaphorePermit<'a>,
    _long: Option<SemaphorePermit<'a>>,
}

impl Peers {
    /// The same with at most so many calls at once that carry one write each.
    #[must_use]
    pub fn with_lone_calls(self, most: usize) -> Self {
        Self { lone: LoneCalls::new(most), ..self }
    }

    /// Waits for a place for a call that carries one write.
    pub async fn lone_call(&self, is_long: bool) -> LoneCall<'_> {
        let place = async |places| Semaphore::acquire(places).await.expect("it is never closed");
        let _long = if is_long { Some(place(&self.lone.long).await) } else { None };
        LoneCall { _all: place(&self.lone.all).await, _long }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Secrets;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn writes_that_take_long_leave_places_for_others() {
        let peers = Peers::new(Secrets(vec!["s".into()])).with_lone_calls(8);
        let long = [peers.lone_call(true).await, peers.lone_call(true).await];
        assert!(peers.lone_call(true).now_or_never().is_none());
        let mut short = Vec::new();
        for _ in 0..6 {
            short.push(peers.lone_call(false).await);
        }
        assert!(peers.lone_call(false).now_or_never().is_none());
        drop(long);
        assert!(peers.lone_call(false).now_or_never().is_some());
    }
}
