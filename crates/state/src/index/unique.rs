//! Unique paths: whether another config has a value, and whether any two configs share one.
//!
//! Both read the index of the path's slot, where equal values are adjacent. An array has an entry for each element, so
//! each element is a value of its config; null is a value, a missing member is none.
//!
//! **Invariant:** a look-up costs one descent from the root for each value, whatever the number of configs.

use super::tree::Tree;
use crate::{BySlot, Collection};
use concord_model::{error::Rejection, key::Key, record::Entry};

impl Collection {
    /// The slot of an indexed path and its index.
    fn slot_of(&self, path: &str) -> Option<(u16, &Tree<BySlot>)> {
        let slot = self.definition.slot(path)?;
        Some((slot, self.index(slot)?))
    }

    /// The rejection of a config's index entries, when another config has one of their values at a unique path.
    #[must_use]
    pub fn unique_conflict(&self, key: &str, entries: &[Entry]) -> Option<Rejection> {
        if concord_model::sabotage::is("unique-ignored") {
            return None;
        }
        self.definition.unique.iter().find_map(|path| {
            let by = self.other_with_value(path, key, entries)?.clone();
            Some(Rejection::NotUnique { path: path.clone(), by })
        })
    }

    /// Another config that has one of these values at a path.
    #[must_use]
    pub fn other_with_value(&self, path: &str, key: &str, entries: &[Entry]) -> Option<&Key> {
        let (slot, index) = self.slot_of(path)?;
        let values = entries.iter().filter(|entry| entry.slot == slot).map(|entry| &*entry.value);
        values.into_iter().find_map(|value| {
            let position = index.rank(|item| item.value() < value);
            let mut equal = index.from(position).take_while(|item| item.value() == value);
            equal.find(|item| item.key.as_str() != key).map(|item| &item.key)
        })
    }

    /// The entries of a path in the order of their values, each with its config. The entries of a config are unique, so
    /// two equal adjacent values belong to two configs.
    pub fn by_value(&self, path: &str) -> impl Iterator<Item = (&[u8], &Key)> {
        let items = self.slot_of(path).into_iter().flat_map(|(_, index)| index.from(0));
        items.map(|item| (item.value(), &item.key))
    }
}
