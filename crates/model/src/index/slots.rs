//! The slots of a definition's indexed paths, and the progress of building new ones.
//!
//! A path keeps its number, its *slot*, for as long as it is indexed, at any position of the list: a change of the list
//! costs work for new paths only. A slot is reused for another path only after all others were used: configs may keep
//! entries of a dropped path for a while, and they must not be taken for another path's.
//!
//! From feature level 2 on the highest bit of a slot says that its path is a pattern (`path`), and the other bits alone
//! are its number. A path that level 1 stored has such a slot only after 32,768 changes of the definition's paths.
//!
//! **Invariant:** while no build is in progress, a definition's configs have entries of its `slots` only. During a build
//! they may have entries of unused slots, but none of a slot that was assigned to a new path.

use serde::{Deserialize, Serialize};

use super::path::{PATTERNS_LEVEL, is_pattern};
use crate::{key::Key, record::Revision};

/// The number of slots: what a `u16` can name.
const SLOT_COUNT: usize = 1 << 16;
/// The bit of a slot whose path is a pattern.
const PATTERN_BIT: u16 = 1 << 15;

/// Whether the path of a slot may be a pattern.
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
    /// The slots of a new definition's paths.
    #[must_use]
    pub fn fresh(count: usize) -> Self {
        let slots: Vec<u16> = (0..=u16::MAX).take(count).collect();
        let next = slots.last().map_or(0, |last| last.wrapping_add(1));
        Self { slots, next, build: None }
    }

    /// The slots of a new definition's paths in a cluster of a feature level.
    #[must_use]
    pub fn of(paths: &[String], level: u32) -> Self {
        let mut indexing = Self::fresh(paths.len());
        if level >= PATTERNS_LEVEL {
            for (slot, path) in indexing.slots.iter_mut().zip(paths) {
                *slot |= if is_pattern(path) { PATTERN_BIT } else { 0 };
            }
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
    pub fn reassigned(&self, old: &[String], new: &[String], level: u32) -> Option<SlotAssignment> {
        let (numbers, bit) =
            if level < PATTERNS_LEVEL { (SLOT_COUNT, 0) } else { (SLOT_COUNT / 2, PATTERN_BIT) };
        let pattern_bit = |path: &String| if bit != 0 && is_pattern(path) { bit } else { 0 };
        let retained = |path: &String| {
            let position = old.iter().position(|other| other == path)?;
            // A member called `*` of level 1 is no pattern, though its text is one now.
            self.slots.get(position).copied().filter(|slot| bit == 0 || slot & bit == pattern_bit(path))
        };
        let next = self.next & !bit;
        let wanted = new.iter().filter(|path| retained(path).is_none()).count();
        if self.build.is_some() && usize::from(next) + self.slots.len() + wanted > numbers {
            return None;
        }
        let mut assignment = SlotAssignment {
            slots: Vec::with_capacity(new.len()),
            next,
            added: Vec::new(),
            dropped: old.iter().any(|path| !new.contains(path) || retained(path).is_none()),
        };
        // Only slots that no old path has.
        let is_free = |number: &u16| self.slots.iter().all(|slot| slot & !bit != *number);
        let last = !bit;
        let mut free = (0..=last).map(|n| next.wrapping_add(n) & last).filter(is_free);
        for path in new {
            let slot = match retained(path) {
                Some(slot) => slot,
                None => {
                    let number = free.next()?;
                    let slot = number | pattern_bit(path);
                    assignment.next = number.wrapping_add(1) & last;
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
        let renewed = first.reassigned(&paths(&["a", "b"]), &paths(&["b", "c"]), 1).unwrap();
        assert_eq!(renewed, SlotAssignment { slots: vec![1, 2], next: 3, added: vec![2], dropped: true });
        let second = Indexing { slots: renewed.slots, next: renewed.next, build: None };
        let renewed = second.reassigned(&paths(&["b", "c"]), &paths(&["a", "c", "b"]), 1).unwrap();
        assert_eq!(renewed, SlotAssignment { slots: vec![3, 2, 1], next: 4, added: vec![3], dropped: false });
        assert_eq!((second.position(2), second.position(0)), (Some(1), None));
    }

    #[test]
    fn slots_wrap_around_but_not_during_a_build() {
        let mut indexing = Indexing { slots: vec![0, 65_534], next: 65_535, build: None };
        let (old, new) = (paths(&["a", "b"]), paths(&["a", "b", "c", "d"]));
        let renewed = indexing.reassigned(&old, &new, 1).unwrap();
        assert_eq!((renewed.slots, renewed.next), (vec![0, 65_534, 65_535, 1], 2));
        indexing.build = Some(Build { begun: 1, slots: vec![0], cursor: None });
        assert_eq!(indexing.reassigned(&old, &new, 1), None);
        indexing.next = 100;
        assert!(indexing.reassigned(&old, &new, 1).is_some());
        assert!(indexing.is_building(0) && !indexing.is_building(65_534));
    }

    #[test]
    fn patterns_have_slots_of_their_own_from_level_2_on() {
        let some = paths(&["a", "labels.*", "b"]);
        assert_eq!(Indexing::of(&some, 1), Indexing::fresh(3));
        let indexing = Indexing::of(&some, 2);
        assert_eq!((&indexing.slots[..], indexing.next), (&[0, PATTERN_BIT | 1, 2][..], 3));
        let renewed = indexing.reassigned(&some, &paths(&["labels.*", "items[].n", "a"]), 2).unwrap();
        assert_eq!(renewed.slots, [PATTERN_BIT | 1, PATTERN_BIT | 3, 0]);
        assert_eq!((renewed.next, renewed.added, renewed.dropped), (4, vec![PATTERN_BIT | 3], true));
        // The same text, stored as the name of a member.
        let renewed = Indexing::fresh(3).reassigned(&some, &some, 2).unwrap();
        assert_eq!((renewed.slots, renewed.dropped), (vec![0, PATTERN_BIT | 3, 2], true));
        let worn = Indexing { slots: vec![0, 40_000], next: u16::MAX, build: None };
        let renewed = worn.reassigned(&paths(&["a", "b"]), &paths(&["a", "b", "c"]), 2).unwrap();
        assert_eq!((renewed.slots, renewed.next), (vec![0, 32_767, 1], 2));
    }
}
