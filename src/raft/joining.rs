//! Letting the tasks that are ready to run join what is about to leave: the next group of writes, the next call to the
//! leader, the next request for a read index.
//!
//! Whatever leaves costs about as much with one member as with many, and the task that sends it is woken before those
//! that would still join: the runtime runs a task that was just woken first. So the sender yields, and the requests that
//! have arrived get as far as joining. There is no timer in it: where nobody else is ready, yielding takes microseconds.
//!
//! **Invariant:** it ends, however many join: after a bounded number of passes over the tasks that are ready.

use tokio::task::yield_now;

/// Most passes over the tasks that are ready. Twenty brought no more.
const PASSES_MAX: u32 = 8;

/// Yields to the tasks that are ready to run, for as long as that lets others join. `joined` is how many have. After
/// `patience` passes in which nobody did, it returns: a request takes some passes from its socket to where it joins.
pub(crate) async fn let_others_join(patience: u32, joined: impl Fn() -> usize) {
    let (mut before, mut quiet) = (joined(), 0);
    for _ in 0..PASSES_MAX {
        yield_now().await;
        let now = joined();
        quiet = if now > before { 0 } else { quiet + 1 };
        before = now;
        if quiet >= patience {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// Joins after so many passes.
    async fn joins(after: u32, joined: Arc<AtomicUsize>) {
        for _ in 0..after {
            yield_now().await;
        }
        joined.fetch_add(1, Ordering::SeqCst);
    }

    async fn joined_with(patience: u32, after: &[u32]) -> usize {
        let joined = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> =
            after.iter().map(|after| tokio::spawn(joins(*after, Arc::clone(&joined)))).collect();
        let_others_join(patience, || joined.load(Ordering::SeqCst)).await;
        let seen = joined.load(Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        seen
    }

    #[tokio::test]
    async fn those_that_are_ready_join_and_nobody_is_waited_for() {
        assert_eq!(joined_with(1, &[]).await, 0);
        assert_eq!(joined_with(1, &[0, 0, 0]).await, 3);
        assert_eq!(joined_with(1, &[0, 1, 2]).await, 3, "each pass brings one");
        assert_eq!(joined_with(1, &[0, 4]).await, 1, "a pass without one ends it");
        assert_eq!(joined_with(3, &[0, 3]).await, 2, "unless it is patient");
    }

    #[tokio::test]
    async fn it_ends_though_more_and_more_join() {
        let after: Vec<u32> = (0..100).collect();
        let seen = joined_with(3, &after).await;
        assert!(seen <= PASSES_MAX as usize + 1, "{seen}");
    }
}
