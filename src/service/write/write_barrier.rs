//! Lets a change that needs all configs of a definition checked come to an end while others write them.
//!
//! Such a change checks one picture of the configs, then what was written since, then what was written since that.
//! For the last step it needs a moment in which nothing is written: it closes the definition's gate, and the
//! writes of its configs wait before they are prepared.
//!
//! **Invariant:** nothing rests on a gate but that the change comes to an end: the log refuses one that has not
//! seen the newest config. So a write that was under way before there was a gate need not know of it, and a
//! definition that nobody changes has none: its writes pay for one look at a number.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::service::Write;

type Gate = Arc<RwLock<()>>;

/// The definitions that are being changed, each with its gate and the number of its changes.
#[derive(Debug, Default)]
pub(in crate::service) struct Gates {
    by_definition: Mutex<BTreeMap<String, (Gate, usize)>>,
    /// How many definitions those are.
    open: AtomicUsize,
}

impl Gates {
    /// Lets a write through; it holds what it gets until it is decided.
    pub(in crate::service) async fn pass(&self, write: &Write) -> Vec<OwnedRwLockReadGuard<()>> {
        if self.open.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let gates: Vec<Gate> = {
            let all = self.lock();
            let of = |definition: &str| all.get(definition).map(|(gate, _)| Arc::clone(gate));
            match write {
                // In the order of the definitions, so that nobody waits in a circle.
                Write::Batch(operations) => {
                    let definitions: BTreeSet<&str> = operations.iter().map(Write::definition).collect();
                    definitions.into_iter().filter_map(of).collect()
                }
                Write::WriteConfig { .. } | Write::PatchConfig { .. } | Write::Rollback(_) => {
                    of(write.definition()).into_iter().collect()
                }
                Write::CreateDefinition { .. }
                | Write::SetIndexes { .. }
                | Write::DeleteDefinition { .. }
                | Write::DeleteConfig { .. }
                | Write::SetSchema(_)
                | Write::SetUnique(_) => Vec::new(),
            }
        };
        let mut passed = Vec::with_capacity(gates.len());
        for gate in gates {
            passed.push(gate.read_owned().await);
        }
        passed
    }

    /// The gate of a definition, for one that will close it.
    pub(in crate::service) fn of(self: &Arc<Self>, definition: &str) -> Keeper {
        let mut all = self.lock();
        let (gate, keepers) = all.entry(definition.to_owned()).or_default();
        *keepers += 1;
        let gate = Arc::clone(gate);
        self.open.store(all.len(), Ordering::Relaxed);
        Keeper { gates: Arc::clone(self), definition: definition.to_owned(), gate }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Gate, usize)>> {
        // Nothing between two consistent forms of the map can panic.
        self.by_definition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that may close a gate; the gate is there as long as it has keepers.
#[derive(Debug)]
pub(in crate::service) struct Keeper {
    gates: Arc<Gates>,
    definition: String,
    gate: Gate,
}

impl Keeper {
    /// Waits until all that have passed are decided, and lets nobody else pass as long as the guard lives.
    pub(in crate::service) async fn close(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.gate).write_owned().await
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut all = self.gates.lock();
        if let Some((_, keepers)) = all.get_mut(&self.definition) {
            *keepers -= 1;
            if *keepers == 0 {
                all.remove(&self.definition);
            }
        }
        self.gates.open.store(all.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::model::{command::Expect, document::Document};

    fn write(definition: &str) -> Write {
        let data = Document::new(serde_json::json!({}));
        Write::WriteConfig { definition: definition.into(), key: "k".into(), data, expect: Expect::Present }
    }

    #[tokio::test]
    async fn a_closed_gate_holds_the_writes_of_its_definition_and_no_others() {
        let gates = Arc::new(Gates::default());
        assert!(gates.pass(&write("d")).await.is_empty(), "no gate, nothing to hold");
        let (one, two) = (gates.of("d"), gates.of("d"));
        let passed = gates.pass(&write("d")).await;
        assert!(!passed.is_empty());
        assert!(one.close().now_or_never().is_none(), "a write is under way");
        drop(passed);
        let closed = one.close().await;
        assert!(gates.pass(&write("d")).now_or_never().is_none());
        assert!(gates.pass(&write("e")).now_or_never().is_some());
        assert!(two.close().now_or_never().is_none());
        drop(closed);
        drop(one);
        assert!(!gates.pass(&write("d")).await.is_empty(), "there is a keeper still");
        drop(two);
        assert!(gates.pass(&write("d")).await.is_empty());
        assert!(gates.lock().is_empty());
    }
}
