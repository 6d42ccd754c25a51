//! The compiled flags that were used last, and the locks under which requests compile.
//!
//! **Invariants:** the cache is bounded by bytes. All entries of a definition are of the same version: one for each view, and
//! one more for each view of the readers that are in the same rollouts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::CompiledFlags;
use concord_model::{key::Key, limits::CACHED_FLAGS_BYTES_MAX, record::Revision, time::Timestamp};

/// What a client sees of a definition. The schema alone decides which fields are secret, so there are only two views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum View {
    /// All of it.
    Whole,
    /// All but the secret fields.
    Redacted,
}

/// The rollouts whose candidates a reader sees: each change request, and when its rollout began.
pub(super) type InRollouts = Vec<(Key, Timestamp)>;

/// Which flags of a version a client sees.
pub(super) type Slot = (View, InRollouts);

/// The version of a definition with its configs.
pub(super) type Version = (Revision, Revision, u128);

/// The request that holds it compiles.
type CompileLock = tokio::sync::Mutex<()>;

/// The compiled flags that were used last.
#[derive(Debug, Default)]
pub(super) struct FlagCache {
    entries: Mutex<FlagEntries>,
    /// The locks of the flags that requests are compiling.
    turns: Mutex<BTreeMap<(Version, Slot), Weak<CompileLock>>>,
}

#[derive(Debug, Default)]
struct FlagEntries {
    /// By the id of the definition and what a client sees: only the newest version is needed.
    by_definition: BTreeMap<(Revision, Slot), CachedFlags>,
    bytes: usize,
    /// Counts the uses; the entry with the lowest number was used longest ago.
    uses: u64,
}

#[derive(Debug)]
struct CachedFlags {
    version: Version,
    /// The revision of a state with this version.
    at: Revision,
    compiled: Arc<CompiledFlags>,
    last_use: u64,
}

impl FlagCache {
    fn lock(&self) -> MutexGuard<'_, FlagEntries> {
        // Nothing panics while it is held, except for lack of memory, and then all entries are complete.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, version: Version, slot: &Slot) -> Option<Arc<CompiledFlags>> {
        let mut entries = self.lock();
        entries.uses += 1;
        let uses = entries.uses;
        let found = entries.by_definition.get_mut(&(version.0, slot.clone()));
        let found = found.filter(|found| found.version == version)?;
        found.last_use = uses;
        Some(Arc::clone(&found.compiled))
    }

    /// Keeps flags that were compiled from a state of revision `at`. False if they are not kept.
    pub(super) fn insert(
        &self,
        version: Version,
        slot: &Slot,
        at: Revision,
        compiled: &Arc<CompiledFlags>,
    ) -> bool {
        self.lock().insert(version, slot, at, Arc::clone(compiled))
    }

    /// The lock under which a request compiles.
    pub(super) fn turn(&self, version: Version, slot: &Slot) -> Arc<CompileLock> {
        // A panic leaves a lock too many or too few: flags are compiled twice.
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (version, slot.clone());
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(CompileLock::new(()));
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

impl FlagEntries {
    fn insert(&mut self, version: Version, slot: &Slot, at: Revision, compiled: Arc<CompiledFlags>) -> bool {
        let bytes = compiled.bytes();
        let first = (version.0, (View::Whole, InRollouts::new()));
        let kept = self.by_definition.range(first..).take_while(|((of, _), _)| *of == version.0);
        let old: Vec<_> = kept.filter(|(_, kept)| kept.version != version).collect();
        // A request with an earlier state may end after one with a later state.
        let is_late = old.iter().any(|(_, kept)| kept.at > at);
        if is_late || bytes > CACHED_FLAGS_BYTES_MAX {
            return false;
        }
        let old: Vec<_> = old.into_iter().map(|(key, _)| key.clone()).collect();
        let key = (version.0, slot.clone());
        old.iter().chain([&key]).for_each(|key| self.remove(key));
        while self.bytes.saturating_add(bytes) > CACHED_FLAGS_BYTES_MAX {
            let oldest =
                self.by_definition.iter().min_by_key(|(_, kept)| kept.last_use).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.remove(&oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        let entry = CachedFlags { version, at, compiled, last_use: self.uses };
        self.by_definition.insert(key, entry);
        true
    }

    fn remove(&mut self, key: &(Revision, Slot)) {
        if let Some(kept) = self.by_definition.remove(key) {
            self.bytes -= kept.compiled.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_flags::FlagSet;
    use concord_model::redaction::RedactedPlaces;

    fn compiled(rules: usize) -> Arc<CompiledFlags> {
        let flag = |n: usize| {
            let rule = serde_json::json!({ "==": [{ "var": "x" }, "y".repeat(1 << 10)] });
            let flag = serde_json::json!({ "state": "ENABLED", "variants": {}, "targeting": rule });
            (format!("f{n}"), flag.to_string())
        };
        let flags: Vec<(String, String)> = (0..rules).map(flag).collect();
        let set = FlagSet::compile(flags.iter().map(|(key, data)| (key.as_str(), Some(data.as_str()))));
        Arc::new(CompiledFlags { set, redacted: RedactedPlaces::default() })
    }

    fn whole() -> Slot {
        (View::Whole, InRollouts::new())
    }

    fn redacted() -> Slot {
        (View::Redacted, InRollouts::new())
    }

    #[test]
    fn readers_of_the_same_rollouts_share_what_they_see() {
        let cache = FlagCache::default();
        let one = compiled(1);
        let at = |time| (View::Whole, vec![(Key::parse("changechange").unwrap(), Timestamp(time))]);
        let version = (1, 1, 1);
        assert!(cache.insert(version, &whole(), 1, &one) && cache.insert(version, &at(1), 1, &one));
        assert!(cache.find(version, &whole()).is_some() && cache.find(version, &at(1)).is_some());
        assert!(cache.find(version, &at(2)).is_none(), "another rollout of the change request");
        assert!(cache.insert((1, 1, 2), &at(1), 2, &one));
        assert!(cache.find(version, &whole()).is_none() && cache.lock().bytes == one.bytes());
    }

    #[test]
    fn the_cache_has_the_newest_version_and_is_bounded_by_bytes() {
        let cache = FlagCache::default();
        let one = compiled(1000);
        let most = CACHED_FLAGS_BYTES_MAX / one.bytes();
        assert!(most >= 2, "{most}");
        assert!(cache.insert((1, 1, 1), &whole(), 1, &one) && cache.insert((1, 1, 2), &whole(), 2, &one));
        let has = |version| cache.find(version, &whole()).is_some();
        assert!(!has((1, 1, 1)) && has((1, 1, 2)));
        for id in 2..=most as u64 + 1 {
            assert!(has((1, 1, 2)));
            assert!(cache.insert((id, id, 1), &whole(), id, &one));
        }
        assert!(has((1, 1, 2)), "it was used just now");
        assert!(!has((2, 2, 1)), "it was used longest ago");
        assert!(cache.lock().bytes <= CACHED_FLAGS_BYTES_MAX);
    }

    #[test]
    fn both_views_of_a_definition_are_of_its_newest_version() {
        let cache = FlagCache::default();
        let one = compiled(1);
        let (old, new) = ((1, 1, 1), (1, 1, 2));
        for slot in [&whole(), &redacted()] {
            assert!(cache.insert(old, slot, 1, &one));
        }
        assert!(cache.find(old, &whole()).is_some() && cache.find(old, &redacted()).is_some());
        assert!(cache.insert(new, &redacted(), 2, &one));
        assert!(cache.find(old, &whole()).is_none(), "nobody needs it any longer");
        assert!(!cache.insert(old, &whole(), 1, &one), "its state is older");
        assert!(cache.find(new, &redacted()).is_some());
        assert_eq!(cache.lock().bytes, one.bytes());
    }

    #[test]
    fn requests_for_the_same_flags_share_one_lock() {
        let cache = FlagCache::default();
        let first = cache.turn((1, 1, 1), &whole());
        assert!(Arc::ptr_eq(&first, &cache.turn((1, 1, 1), &whole())));
        assert!(!Arc::ptr_eq(&first, &cache.turn((1, 1, 1), &redacted())));
        drop(first);
        drop(cache.turn((1, 1, 2), &whole()));
        assert_eq!(cache.turns.lock().unwrap().len(), 1, "unused locks are removed");
    }
}
