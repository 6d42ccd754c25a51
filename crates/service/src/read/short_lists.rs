//! A thread that finds pages while callers wait for several.
//!
//! The threads of callers are fewer than the cores, for consensus has one of its own. Finding a page of a hundred configs
//! takes as long as twenty gets, and consensus needs little of its core while a node lists. So where several lists are
//! under way at once, one more thread finds pages beside them; a list that is alone is not worth waking it.
//!
//! **Invariant:** no more than [`WAITING_MAX`] lists wait for the thread, of less than about a millisecond each: what
//! finds no place there is done where it arrived.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
};

use crate::{Refusal, own_threads::OwnThreads};

/// Lists that are on the thread or wait for it: enough that it has work when one is done.
const WAITING_MAX: usize = 4;

/// Short lists in progress, and the thread.
#[derive(Debug)]
pub(crate) struct ShortLists {
    in_progress: AtomicUsize,
    places: Arc<Semaphore>,
    thread: OwnThreads,
}

/// A list in progress.
pub(super) struct ShortList<'a>(&'a ShortLists);

impl ShortLists {
    pub(crate) fn new() -> Self {
        Self {
            in_progress: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(WAITING_MAX)),
            thread: OwnThreads::new("concord-lists", 1, || ()),
        }
    }

    /// A list begins.
    pub(super) fn begin(&self) -> ShortList<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        ShortList(self)
    }

    /// Runs `work` on the thread.
    ///
    /// # Errors
    /// [`Refusal::Internal`] when it has panicked, or the node ends.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        place: OwnedSemaphorePermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let running = self.thread.run(move || {
            let found = work();
            drop(place);
            found
        });
        running.await.map_err(|error| Refusal::Internal(format!("a list ended early: {error}")))
    }
}

impl ShortList<'_> {
    /// A place on the thread, if other lists are in progress and there is one.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // Requests that have arrived meanwhile have not been looked at yet: a thread serves one after the other.
        yield_now().await;
        let is_alone = self.0.in_progress.load(Ordering::Relaxed) < 2;
        if is_alone { None } else { Arc::clone(&self.0.places).try_acquire_owned().ok() }
    }
}

impl Drop for ShortList<'_> {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn a_list_that_is_alone_stays_where_it_is() {
        let lists = ShortLists::new();
        let first = lists.begin();
        assert!(first.place().await.is_none());
        let second = lists.begin();
        assert!(first.place().await.is_some());
        drop(second);
        assert!(first.place().await.is_none());
    }

    #[tokio::test]
    async fn no_more_lists_wait_for_the_thread_than_may() {
        let lists = ShortLists::new();
        let (first, _second) = (lists.begin(), lists.begin());
        let mut places = Vec::new();
        while let Some(place) = first.place().await {
            places.push(place);
        }
        assert_eq!(places.len(), WAITING_MAX);
        let place = places.pop().unwrap();
        let on = lists.run(place, || thread::current().name().map(str::to_owned)).await.unwrap();
        assert_eq!(on.as_deref(), Some("concord-lists"));
        assert!(first.place().await.is_some(), "the place is free again");
    }

    #[tokio::test]
    async fn a_panic_frees_its_place() {
        let lists = ShortLists::new();
        let (first, _second) = (lists.begin(), lists.begin());
        for _ in 0..2 * WAITING_MAX {
            let place = first.place().await.unwrap();
            let refused: Result<(), Refusal> = lists.run(place, || panic!("on purpose")).await;
            assert!(matches!(refused, Err(Refusal::Internal(_))), "{refused:?}");
        }
    }
}
