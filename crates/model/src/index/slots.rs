//! The slots of a definition's indexed paths, and the progress of building new ones.
//!
//! A path keeps its number, its *slot*, for as long as it is indexed, at any position of the list: a change of the list
//! costs work for new paths only. A slot is reused for another path only after all others were used: configs may keep
//! entries of a dropped path for a while, and they must not be taken for another path's.
//!
//! The highest bit of a slot says that its path is a pattern (`path`), so that an entry alone says how it is read; the
//! other bits are its number.
//!
//! **Invariant:** while no build is in progress, a definition's configs have entries of its `slots` only. During a
//! build they may have entries of unused slots, but none of a slot that was assigned to a new path.

use serde::{Deserialize, Serialize};

use super::path::is_pattern;
use crate::{key::Key, record::Revision};

/// The bit of a slot whose path is a pattern.
const PATTERN_BIT: u16 = 1 << 15;
/// The greatest number of a slot.
const NUMBER_MAX: u16 = !PATTERN_BIT;

fn pattern_bit(path: &str) -> u16 {
    if is_pattern(path) { PATTERN_BIT } else { 0 }
}

/// Whether the path of a slot is a pattern.
#[must_use]
pub fn is_pattern_slot(slot: u16) -> bool {
    slot & PATTERN_BIT != 0
}

/// The slots of a definition's paths, and the build in progress.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Indexing {
    /// The slot of each indexed path, in the order of `Definition::indexes`.
    pub slots: Vec<u16>,
    /// Where the search for a new path's slot begins.
    pub next: u16,
    /// Set while the configs are reindexed, step by step.
    pub build: Option<Build>,
}

/// A pass over all configs by key that adds the entries of new paths and removes those of dropped paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The revision that began it; unique to this build.
    pub begun: Revision,
    /// The slots that are incomplete until it ends; none when paths were only dropped.
    pub slots: Vec<u16>,
    /// The last key that was processed; `None` before the first step.
    pub cursor: Option<Key>,
}

/// The slots of a new list of paths.
#[derive(Debug, PartialEq, Eq)]
pub struct SlotAssignment {
    /// The slot of each path of the new list.
    pub slots: Vec<u16>,
    /// Where the search for the next new path's slot begins.
    pub next: u16,
    /// The slots of paths that the old list does not have.
    pub added: Vec<u16>,
    /// Whether a path of the old list was dropped.
    pub dropped: bool,
}

impl Indexing {
    /// The slots of so many new paths, of which none is a pattern.
    #[must_use]
    pub fn fresh(count: usize) -> Self {
        let slots: Vec<u16> = (0..=NUMBER_MAX).take(count).collect();
        let next = slots.last().map_or(0, |last| (last + 1) & NUMBER_MAX);
        Self { slots, next, build: None }
    }

    /// The slots of a new definition's paths.
    #[must_use]
    pub fn of(paths: &[String]) -> Self {
        let mut indexing = Self::fresh(paths.len());
        for (slot, path) in indexing.slots.iter_mut().zip(paths) {
            *slot |= pattern_bit(path);
        }
        indexing
    }

    /// The position of a slot's path in the list; `None` for a dropped path.
    #[must_use]
    pub fn position(&self, slot: u16) -> Option<usize> {
        self.slots.iter().position(|other| *other == slot)
    }

    /// Whether a slot still lacks the entries of some configs.
    #[must_use]
    pub fn is_building(&self, slot: u16) -> bool {
        self.build.as_ref().is_some_and(|build| build.slots.contains(&slot))
    }

    /// The slots for a new list of paths: paths of both lists keep theirs. `None` when the slots have run out during a
    /// build: configs may then have entries of any slot, and all must be reindexed at once.
    #[must_use]
    pub fn reassigned(&self, old: &[String], new: &[String]) -> Option<SlotAssignment> {
        let retained = |path: &String| {
            let position = old.iter().position(|other| other == path)?;
            self.slots.get(position).copied()
        };
        let next = self.next & NUMBER_MAX;
        let wanted = new.iter().filter(|path| retained(path).is_none()).count();
        let last = usize::from(NUMBER_MAX);
        if self.build.is_some() && usize::from(next) + self.slots.len() + wanted > last + 1 {
            return None;
        }
        let mut assignment = SlotAssignment {
            slots: Vec::with_capacity(new.len()),
            next,
            added: Vec::new(),
            dropped: old.iter().any(|path| !new.contains(path)),
        };
        // Only slots that no old path has.
        let is_free = |number: &u16| self.slots.iter().all(|slot| slot & NUMBER_MAX != *number);
        let mut free = (0..=NUMBER_MAX).map(|n| next.wrapping_add(n) & NUMBER_MAX).filter(is_free);
        for path in new {
            let slot = match retained(path) {
                Some(slot) => slot,
                None => {
                    let number = free.next()?;
                    let slot = number | pattern_bit(path);
                    assignment.next = number.wrapping_add(1) & NUMBER_MAX;
                    assignment.added.push(slot);
                    slot
                }
            };
            assignment.slots.push(slot);
        }
        Some(assignment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_path_keeps_its_slot_and_a_dropped_one_is_not_used_again() {
        let first = Indexing::fresh(2);
        let renewed = first.reassigned(&paths(&["a", "b"]), &paths(&["b", "c"])).unwrap();
        assert_eq!(renewed, SlotAssignment { slots: vec![1, 2], next: 3, added: vec![2], dropped: true });
        let second = Indexing { slots: renewed.slots, next: renewed.next, build: None };
        let renewed = second.reassigned(&paths(&["b", "c"]), &paths(&["a", "c", "b"])).unwrap();
        assert_eq!(renewed, SlotAssignment { slots: vec![3, 2, 1], next: 4, added: vec![3], dropped: false });
        assert_eq!((second.position(2), second.position(0)), (Some(1), None));
    }

    #[test]
    fn slots_wrap_around_but_not_during_a_build() {
        let mut indexing = Indexing { slots: vec![0, 32_766], next: 32_767, build: None };
        let (old, new) = (paths(&["a", "b"]), paths(&["a", "b", "c", "d"]));
        let renewed = indexing.reassigned(&old, &new).unwrap();
        assert_eq!((renewed.slots, renewed.next), (vec![0, 32_766, 32_767, 1], 2));
        indexing.build = Some(Build { begun: 1, slots: vec![0], cursor: None });
        assert_eq!(indexing.reassigned(&old, &new), None);
        indexing.next = 100;
        assert!(indexing.reassigned(&old, &new).is_some());
        assert!(indexing.is_building(0) && !indexing.is_building(32_766));
    }

    #[test]
    fn patterns_have_slots_of_their_own() {
        let some = paths(&["a", "labels.*", "b"]);
        let indexing = Indexing::of(&some);
        assert_eq!((&indexing.slots[..], indexing.next), (&[0, PATTERN_BIT | 1, 2][..], 3));
        let renewed = indexing.reassigned(&some, &paths(&["labels.*", "items[].n", "a"])).unwrap();
        assert_eq!(renewed.slots, [PATTERN_BIT | 1, PATTERN_BIT | 3, 0]);
        assert_eq!((renewed.next, renewed.added, renewed.dropped), (4, vec![PATTERN_BIT | 3], true));
    }
}
