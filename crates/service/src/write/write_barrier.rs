//! The write barrier of a definition: lets a change that must check all its configs finish while others write them.
//!
//! Such a change checks all configs of one state, then those written since, then those written since that. For its last
//! pass it needs a moment without writes: it raises the barrier of the definition, and the writes of its configs wait
//! before they are prepared.
//!
//! A batch may change several definitions in this way and write configs of others. It waits for no barrier before it is
//! prepared, because it may raise some itself. When it raises them, it takes all that it needs together.
//!
//! **Invariant:** a barrier only ensures that the change finishes. Correctness does not depend on it: the log rejects a
//! change that has not checked the newest config. So a write that was in progress before the barrier existed need not
//! know of it. A definition that is not being changed has no barrier, and its writes only read one number.

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

#[derive(Debug, Default)]
struct HeldBarrier {
    barrier: Barrier,
    /// The number of [`BarrierHolder`]s.
    holders: usize,
}

/// The barriers of the definitions that are being changed.
#[derive(Debug, Default)]
pub(crate) struct WriteBarriers {
    by_definition: Mutex<BTreeMap<String, HeldBarrier>>,
    /// The number of these definitions.
    count: AtomicUsize,
}

impl WriteBarriers {
    /// Waits until a write may be prepared. Its barriers can't be raised while the guards live.
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
            found.map(|held| Arc::clone(&held.barrier)).collect()
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
        let held = all.entry(definition.to_owned()).or_default();
        held.holders += 1;
        let barrier = Arc::clone(&held.barrier);
        self.count.store(all.len(), Ordering::Relaxed);
        BarrierHolder { barriers: Arc::clone(self), definition: definition.to_owned(), barrier }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, HeldBarrier>> {
        // Nothing that could panic runs while the map is inconsistent.
        self.by_definition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it lives, some barriers are raised and others can't be raised.
#[derive(Debug)]
pub(super) struct RaisedBarriers {
    _raised: Vec<OwnedRwLockWriteGuard<()>>,
    _admitted: Vec<OwnedRwLockReadGuard<()>>,
}

/// Raises the barriers of a change: waits until all admitted writes are decided, and admits no others while the result
/// lives. If the change also writes definitions whose barriers other changes hold, it is admitted there as well.
pub(super) async fn raise(holders: &[BarrierHolder], write: &Write) -> RaisedBarriers {
    let (mut raised, mut admitted) = (Vec::new(), Vec::new());
    // In the order of the definitions, as everywhere, so that there is no deadlock.
    for definition in write.definitions() {
        if let Some(holder) = holders.iter().find(|holder| holder.definition == definition) {
            raised.push(holder.raise().await);
        } else if let Some(holder) = holders.first() {
            let other = holder.barriers.lock().get(definition).map(|held| Arc::clone(&held.barrier));
            if let Some(other) = other {
                admitted.push(other.read_owned().await);
            }
        }
    }
    RaisedBarriers { _raised: raised, _admitted: admitted }
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
        if let Some(held) = all.get_mut(&self.definition) {
            held.holders -= 1;
            if held.holders == 0 {
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
