//! The write barrier of a definition: lets a change that must check all its configs finish while others write them.
//!
//! Such a change checks all configs of one state, then those written since, then those written since that. For the last
//! step it needs a moment without writes: it raises the definition's barrier, and the writes of its configs wait before
//! they are prepared.
//!
//! A batch may change several definitions in this way and write configs of others. It waits for no barrier before it is
//! prepared, because it may come to raise some itself; it takes all that it needs together, when it raises them.
//!
//! **Invariant:** a barrier only makes sure that the change finishes. Correctness does not depend on it: the log refuses
//! a change that has not seen the newest config. So a write that was in progress before there was a barrier need not
//! know of it, and a definition that is not being changed has none: its writes pay for reading one number.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::request::{Effect, Write};

type Barrier = Arc<RwLock<()>>;

/// The barriers of the definitions that are being changed, each with the number of its holders.
#[derive(Debug, Default)]
pub(crate) struct WriteBarriers {
    by_definition: Mutex<BTreeMap<String, (Barrier, usize)>>,
    /// How many definitions those are.
    count: AtomicUsize,
}

impl WriteBarriers {
    /// Waits until a write may be prepared. Its barriers can't be raised while it holds the guards.
    pub(super) async fn admit(&self, write: &Write) -> Vec<OwnedRwLockReadGuard<()>> {
        let is_subject = match write.effect() {
            Effect::Store | Effect::Restore | Effect::Compute | Effect::Read | Effect::Batch => true,
            Effect::Define | Effect::Constrain | Effect::Remove | Effect::Access => false,
        };
        if !is_subject || self.count.load(Ordering::Relaxed) == 0 || write.constrains() {
            return Vec::new();
        }
        // In the order of the definitions, so that there is no deadlock.
        let barriers: Vec<Barrier> = {
            let all = self.lock();
            let found = write.definitions().into_iter().filter_map(|definition| all.get(definition));
            found.map(|(barrier, _)| Arc::clone(barrier)).collect()
        };
        let mut admitted = Vec::with_capacity(barriers.len());
        for barrier in barriers {
            admitted.push(barrier.read_owned().await);
        }
        admitted
    }

    /// The barrier of a definition, for a change that will raise it.
    pub(super) fn of(self: &Arc<Self>, definition: &str) -> BarrierHolder {
        let mut all = self.lock();
        let (barrier, holders) = all.entry(definition.to_owned()).or_default();
        *holders += 1;
        let barrier = Arc::clone(barrier);
        self.count.store(all.len(), Ordering::Relaxed);
        BarrierHolder { barriers: Arc::clone(self), definition: definition.to_owned(), barrier }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Barrier, usize)>> {
        // Nothing between two consistent states of the map can panic.
        self.by_definition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Barriers that are raised, and others that can't be raised, while it lives.
#[derive(Debug)]
pub(super) struct Raised {
    _raised: Vec<OwnedRwLockWriteGuard<()>>,
    _admitted: Vec<OwnedRwLockReadGuard<()>>,
}

/// Raises the barriers of a change: waits until all admitted writes are decided, and admits no other while the result
/// lives. Where others hold the barriers of other definitions that it writes, it is admitted there at the same time.
pub(super) async fn raise(holders: &[BarrierHolder], write: &Write) -> Raised {
    let (mut raised, mut admitted) = (Vec::new(), Vec::new());
    // In the order of the definitions, as all do who take several: so there is no deadlock.
    for definition in write.definitions() {
        if let Some(holder) = holders.iter().find(|holder| holder.definition == definition) {
            raised.push(holder.raise().await);
        } else if let Some(holder) = holders.first() {
            let other = holder.barriers.lock().get(definition).map(|(barrier, _)| Arc::clone(barrier));
            if let Some(other) = other {
                admitted.push(other.read_owned().await);
            }
        }
    }
    Raised { _raised: raised, _admitted: admitted }
}

/// A change that may raise a barrier; the barrier exists as long as it has holders.
#[derive(Debug)]
pub(super) struct BarrierHolder {
    barriers: Arc<WriteBarriers>,
    definition: String,
    barrier: Barrier,
}

impl BarrierHolder {
    /// Waits until all admitted writes are decided, and admits no other while the guard lives.
    async fn raise(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.barrier).write_owned().await
    }
}

impl Drop for BarrierHolder {
    fn drop(&mut self) {
        let mut all = self.barriers.lock();
        if let Some((_, holders)) = all.get_mut(&self.definition) {
            *holders -= 1;
            if *holders == 0 {
                all.remove(&self.definition);
            }
        }
        self.barriers.count.store(all.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::request::NewUnique;
    use concord_model::{command::Expect, document::Document};

    fn write(definition: &str) -> Write {
        let data = Document::new(serde_json::json!({}));
        Write::WriteConfig { definition: definition.into(), key: "k".into(), data, expect: Expect::Present }
    }

    #[tokio::test]
    async fn a_raised_barrier_delays_the_writes_of_its_definition_and_no_others() {
        let barriers = Arc::new(WriteBarriers::default());
        assert!(barriers.admit(&write("d")).await.is_empty(), "there is no barrier");
        let (one, two) = (barriers.of("d"), barriers.of("d"));
        let admitted = barriers.admit(&write("d")).await;
        assert!(!admitted.is_empty());
        assert!(one.raise().now_or_never().is_none(), "a write is in progress");
        drop(admitted);
        let raised = one.raise().await;
        assert!(barriers.admit(&write("d")).now_or_never().is_none());
        assert!(barriers.admit(&write("e")).now_or_never().is_some());
        assert!(two.raise().now_or_never().is_none());
        drop(raised);
        drop(one);
        assert!(!barriers.admit(&write("d")).await.is_empty(), "there is another holder");
        drop(two);
        assert!(barriers.admit(&write("d")).await.is_empty());
        assert!(barriers.lock().is_empty());
    }

    #[tokio::test]
    async fn a_batch_waits_for_no_barrier_before_it_takes_all_of_them() {
        let barriers = Arc::new(WriteBarriers::default());
        let unique = NewUnique { key: "d".into(), paths: Vec::new(), expect: Expect::Present };
        let batch = Write::Batch(vec![write("e"), Write::SetUnique(unique), write("f")]);
        let (own, other) = ([barriers.of("d")], barriers.of("e"));
        let changing = other.raise().await;
        assert!(barriers.admit(&batch).await.is_empty());
        assert!(raise(&own, &batch).now_or_never().is_none(), "`e` is being changed");
        drop(changing);
        let raised = raise(&own, &batch).await;
        assert!(barriers.admit(&write("d")).now_or_never().is_none());
        assert!(barriers.admit(&write("f")).now_or_never().is_some());
        assert!(other.raise().now_or_never().is_none(), "the batch writes `e`");
        drop(raised);
        assert!(other.raise().now_or_never().is_some());
        assert!(!barriers.admit(&write("d")).await.is_empty());
    }
}
