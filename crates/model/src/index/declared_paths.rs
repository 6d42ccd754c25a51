//! The types that a schema declares for the paths of a definition, read once for each version of it.
//!
//! Filters are parsed by these types, so each list needs them, and a schema of 2 MiB takes some 20 ms to read. The
//! result is a few bytes for each path.
//!
//! The results of recent large schemas are shared by the process, with the text that they were read from. The entry of
//! a text is found by its address, which stays unique while the entry holds the text.
//!
//! **Invariant:** the result depends on the definition alone; whether it was read before only affects the time.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Declared, Types, stored_paths};
use crate::record::{Definition, Revision};

/// Bytes of a schema up to which it is read each time: some dozens of microseconds.
const SMALL_SCHEMA_BYTES: usize = 2 << 10;
/// Bytes of a schema above which reading it takes longer than a request may take on the threads that serve them.
const LONG_SCHEMA_BYTES: usize = 64 << 10;
/// Results that are shared, and the bytes of the texts that they hold.
const SHARED_MAX: usize = 128;
const SHARED_BYTES_MAX: usize = 32 << 20;

/// The types of a definition's paths, in their order.
pub type DeclaredPaths = Arc<[Declared]>;

#[derive(Debug)]
struct KnownPaths {
    schema: Arc<str>,
    revision: Revision,
    paths: DeclaredPaths,
}

static RECENT: Mutex<VecDeque<KnownPaths>> = Mutex::new(VecDeque::new());

fn recent() -> MutexGuard<'static, VecDeque<KnownPaths>> {
    // No code that holds the lock can panic between two consistent values.
    RECENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The schema of a definition, if reading it is worth remembering.
fn large(definition: &Definition) -> Option<&Arc<str>> {
    let text = &definition.schema.as_ref()?.text;
    (text.len() > SMALL_SCHEMA_BYTES).then_some(text)
}

fn known(schema: &Arc<str>, definition: &Definition) -> Option<DeclaredPaths> {
    let recent = recent();
    let is_it =
        |known: &&KnownPaths| Arc::ptr_eq(&known.schema, schema) && known.revision == definition.revision;
    recent.iter().find(is_it).map(|known| Arc::clone(&known.paths))
}

/// Whether the types are known, or take no longer than about a millisecond to read.
#[must_use]
pub fn is_quick_to_declare(definition: &Definition) -> bool {
    large(definition)
        .is_none_or(|schema| schema.len() <= LONG_SCHEMA_BYTES || known(schema, definition).is_some())
}

/// The types of a definition's paths.
#[must_use]
pub fn declared_paths(definition: &Definition) -> DeclaredPaths {
    let large = large(definition);
    if let Some(paths) = large.and_then(|schema| known(schema, definition)) {
        return paths;
    }
    let schema = definition.schema.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let types = Types::of(schema.as_ref());
    let declared = stored_paths(definition);
    let paths: DeclaredPaths =
        declared.iter().map(|stored| types.declared(&stored.path).unwrap_or(Declared::ANY)).collect();
    if let Some(schema) = large {
        let (schema, revision) = (Arc::clone(schema), definition.revision);
        let mut recent = recent();
        recent.push_back(KnownPaths { schema, revision, paths: Arc::clone(&paths) });
        let mut bytes: usize = recent.iter().map(|known| known.schema.len()).sum();
        let mut removed = Vec::new();
        while recent.len() > SHARED_MAX || (bytes > SHARED_BYTES_MAX && recent.len() > 1) {
            let Some(oldest) = recent.pop_front() else { break };
            bytes -= oldest.schema.len();
            removed.push(oldest);
        }
        drop(recent);
        // Freed after the lock is released.
        drop(removed);
    }
    paths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        index::{Indexing, JsonKind, JsonKinds},
        key::Key,
        time::Timestamp,
    };

    fn definition(schema: &Arc<str>, revision: Revision, index: &str) -> Definition {
        Definition {
            id: 1,
            key: Key::parse("d").unwrap(),
            indexes: vec![index.into()],
            schema: Some(Arc::clone(schema).into()),
            indexing: Indexing::fresh(1),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision,
            unique: Vec::new(),
            protected: false,
            standing: <_>::default(),
        }
    }

    #[test]
    fn the_types_of_a_large_schema_are_read_once_for_each_version() {
        let description = "d".repeat(LONG_SCHEMA_BYTES);
        let schema = |kind: &str| -> Arc<str> {
            let properties = json!({"a": {"type": kind}, "b": {"type": "boolean"}});
            json!({"description": description, "properties": properties}).to_string().into()
        };
        let (text, other) = (schema("string"), schema("integer"));
        let kinds = |definition: &Definition| declared_paths(definition)[0].kinds;
        let first = definition(&text, 1, "a");
        assert!(!is_quick_to_declare(&first));
        assert_eq!(kinds(&first), JsonKinds::of([JsonKind::String]));
        assert!(is_quick_to_declare(&first) && Arc::ptr_eq(&declared_paths(&first), &declared_paths(&first)));
        assert_eq!(kinds(&definition(&text, 2, "b")), JsonKinds::of([JsonKind::Boolean]), "other indexes");
        assert_eq!(kinds(&definition(&other, 1, "a")), JsonKinds::of([JsonKind::Number]), "another schema");
        assert_eq!(kinds(&first), JsonKinds::of([JsonKind::String]));
        for _ in 0..SHARED_MAX {
            kinds(&definition(&schema("null"), 1, "a"));
        }
        let held: usize = recent().iter().map(|known| known.schema.len()).sum();
        assert!(recent().len() <= SHARED_MAX && held <= SHARED_BYTES_MAX);
    }
}
