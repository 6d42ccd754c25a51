//! Unique paths: whether a value is taken, and whether any two configs share one.
//!
//! Both look into the order of the path's slot, where equal values stand side by side. An array stands there by
//! each of its elements, so each of them is a value of its config; null is a value, and what is missing is none.
//!
//! **Invariant:** a look-up costs a walk from the root for each value, whatever the number of configs.

use super::tree::Tree;
use crate::{
    model::{error::Rejection, key::Key, record::Entry},
    state::{BySlot, Collection},
};

impl Collection {
    /// The slot of an indexed path and its order.
    fn slot_of(&self, path: &str) -> Option<(u16, &Tree<BySlot>)> {
        let slot = self.definition.slot(path)?;
        Some((slot, self.order(slot)?))
    }

    /// The refusal of index entries of a config when another config has one of their values at a unique path.
    #[must_use]
    pub fn taken(&self, key: &str, entries: &[Entry]) -> Option<Rejection> {
        if crate::sabotage::is("unique-ignored") {
            return None;
        }
        self.definition.unique.iter().find_map(|path| {
            let by = self.shared(path, key, entries)?.clone();
            Some(Rejection::NotUnique { path: path.clone(), by })
        })
    }

    /// Another config that has one of these values at a path.
    #[must_use]
    pub fn shared(&self, path: &str, key: &str, entries: &[Entry]) -> Option<&Key> {
        let (slot, order) = self.slot_of(path)?;
        let values = entries.iter().filter(|entry| entry.slot == slot).map(|entry| &*entry.value);
        values.into_iter().find_map(|value| {
            let place = order.rank(|item| item.value() < value);
            let mut equal = order.from(place).take_while(|item| item.value() == value);
            equal.find(|item| item.key.as_str() != key).map(|item| &item.key)
        })
    }

    /// The configs of a path in the order of their values there, each with its value: neighbours with equal values
    /// are two configs.
    pub fn by_value(&self, path: &str) -> impl Iterator<Item = (&[u8], &Key)> {
        let items = self.slot_of(path).into_iter().flat_map(|(_, order)| order.from(0));
        items.map(|item| (item.value(), &item.key))
    }
}
