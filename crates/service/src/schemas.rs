//! The validators of configs: compiled schemas, cached by the revision of their definition.
//!
//! Compiling a schema costs a hundred times what validating a document costs. A changed definition has another
//! revision, so the cache has no stale entries.
//!
//! **Invariant:** the cache is bounded by the number of its schemas and by their compiled size: a kilobyte of text may
//! become megabytes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use tokio::task::yield_now;

use super::{
    budget::Budget,
    context::Context,
    cpu_pool::{Cancel, Weight},
    request::{Refusal, Write},
};
use concord_model::{
    document::Document,
    error::{Invalid, LocSegment, Violation},
    index::{self, StoredPath},
    limits::CACHED_SCHEMAS_BYTES_MAX,
    record::{Definition, IndexEntries, Revision},
    schema::{Schema, secret::SecretPlaces},
};

/// Cached schemas: as many as a busy cluster uses at the same time.
const CACHED_MAX: usize = 512;

/// Validates the data of a definition's configs.
#[derive(Debug)]
pub(crate) struct Validator {
    schema: Option<Schema>,
    paths: Vec<StoredPath>,
    /// Approximate bytes of the compiled schema.
    bytes: usize,
}

impl Validator {
    /// The secret places of the data; `None` if there are none.
    pub(crate) fn secrets(&self) -> Option<&SecretPlaces> {
        self.schema.as_ref().and_then(Schema::secrets)
    }

    /// Compiles the schema of a stored definition.
    fn of(definition: &Definition) -> Result<Self, Refusal> {
        let formats = definition.schema.as_ref().map(|schema| schema.formats).unwrap_or_default();
        let schema = stored_schema(definition)?
            .map(|value| Schema::compile(&value, formats))
            .transpose()
            .map_err(|violations| broken(definition, &format!("does not compile: {violations:?}")))?;
        let bytes = schema.as_ref().map_or(0, Schema::weight_bytes);
        Ok(Self { schema, paths: index::stored_paths(definition), bytes })
    }

    /// Validates a config's data and computes its index entries, within the budget.
    ///
    /// # Errors
    /// The refusal by the budget. The inner error: the data is invalid.
    pub(super) fn check(
        &self,
        data: &Document,
        budget: &Budget,
    ) -> Result<Result<IndexEntries, Invalid>, Refusal> {
        budget.charge_data(data.text.len(), self.paths.len())?;
        let invalid = |violations| Invalid::Violations(within("data", violations));
        match &self.schema {
            Some(schema) => {
                let price = match schema.price(&data.value) {
                    Ok(price) => price,
                    Err(violation) => return Ok(Err(invalid(vec![violation]))),
                };
                budget.charge_check(price)?;
                if let Err(violations) = schema.check_priced(&data.value, price, budget.listed_variants()) {
                    return Ok(Err(invalid(violations)));
                }
            }
            None if data.value.is_object() => {}
            None => {
                return Ok(Err(Violation::at(vec!["data".into()], "data must be an object").into()));
            }
        }
        let entries = match index::entries(&self.paths, &data.value) {
            Ok(entries) => entries,
            Err(violation) => return Ok(Err(invalid(vec![violation]))),
        };
        let indexed: usize = entries.iter().map(|entry| entry.value.len()).sum();
        budget.charge_entry(data.text.len() + indexed)?;
        Ok(Ok(entries))
    }
}

/// The value of a definition's schema.
pub(super) fn stored_schema(definition: &Definition) -> Result<Option<Value>, Refusal> {
    definition
        .schema
        .as_deref()
        .map(serde_json::from_str)
        .transpose()
        .map_err(|error| broken(definition, &format!("is not JSON: {error}")))
}

fn broken(definition: &Definition, what: &str) -> Refusal {
    Refusal::Internal(format!("the stored schema of {:?} at {} {what}", definition.key, definition.revision))
}

/// The violations of a part as violations of the whole; `name` is the member that contains the part.
pub(super) fn within(name: &str, mut violations: Vec<Violation>) -> Vec<Violation> {
    for violation in &mut violations {
        violation.loc.insert(0, LocSegment::from(name));
    }
    violations
}

/// The validators that were used last.
#[derive(Debug, Default)]
pub(crate) struct Validators {
    cache: Mutex<ValidatorCache>,
}

#[derive(Debug, Default)]
struct ValidatorCache {
    by_definition: BTreeMap<(Revision, Revision), CachedValidator>,
    bytes: usize,
    /// Counts the uses; the entry with the lowest number was used longest ago.
    uses: u64,
}

#[derive(Debug)]
struct CachedValidator {
    validator: Arc<Validator>,
    last_use: u64,
}

impl Validators {
    /// The validator of a definition, if it is cached.
    pub(super) fn known(&self, definition: &Definition) -> Option<Arc<Validator>> {
        self.lock().find((definition.id, definition.revision))
    }

    /// The validator of a definition. Two callers may compile the same one at the same time; then one of the two is
    /// cached.
    pub(super) fn of(&self, definition: &Definition, budget: &Budget) -> Result<Arc<Validator>, Refusal> {
        let id = (definition.id, definition.revision);
        if let Some(validator) = self.lock().find(id) {
            return Ok(validator);
        }
        budget.charge_compilation(definition.schema.as_deref().unwrap_or_default())?;
        let validator = Arc::new(Validator::of(definition)?);
        self.lock().insert(id, Arc::clone(&validator));
        Ok(validator)
    }

    fn lock(&self) -> MutexGuard<'_, ValidatorCache> {
        // Nothing panics while it is held, except for lack of memory, and then all entries are complete.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ValidatorCache {
    fn find(&mut self, id: (Revision, Revision)) -> Option<Arc<Validator>> {
        self.uses += 1;
        let slot = self.by_definition.get_mut(&id)?;
        slot.last_use = self.uses;
        Some(Arc::clone(&slot.validator))
    }

    fn insert(&mut self, id: (Revision, Revision), validator: Arc<Validator>) {
        self.remove(id);
        // An older revision of the same definition is not needed again.
        while let Some(old) = self.by_definition.range((id.0, 0)..id).next().map(|(old, _)| *old) {
            self.remove(old);
        }
        let bytes = validator.bytes;
        while self.by_definition.len() >= CACHED_MAX || self.bytes + bytes > CACHED_SCHEMAS_BYTES_MAX {
            let oldest = self.by_definition.iter().min_by_key(|(_, slot)| slot.last_use).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_definition.insert(id, CachedValidator { validator, last_use: self.uses });
    }

    fn remove(&mut self, id: (Revision, Revision)) {
        if let Some(slot) = self.by_definition.remove(&id) {
            self.bytes -= slot.validator.bytes;
        }
    }
}

/// The compiled schemas of this node.
#[derive(Debug)]
pub(crate) struct Schemas {
    pub(crate) cx: Arc<Context>,
    pub(crate) validators: Validators,
}

impl Schemas {
    /// The compiled schema of a definition, which knows the secret fields of its data.
    ///
    /// # Errors
    /// When it was not compiled in time.
    pub(crate) async fn validator(
        self: &Arc<Self>,
        definition: &Arc<Definition>,
    ) -> Result<Arc<Validator>, Refusal> {
        if let Some(known) = self.validators.known(definition) {
            return Ok(known);
        }
        let budget = Budget::inline();
        let found = self.validators.of(definition, &budget);
        if !budget.is_abandoned() {
            // A response may need a thousand definitions, each of which takes up to a millisecond. Other tasks run in
            // between.
            yield_now().await;
            return found;
        }
        let (this, definition) = (Arc::clone(self), Arc::clone(definition));
        let work = move |cancel: &Cancel| this.validator_in_pool(&definition, cancel);
        let deadline = self.cx.read_deadline();
        self.cx.cpu_pool.run(Weight::Short, deadline, work).await?
    }

    /// The same, for callers that run on a thread for long work already.
    ///
    /// # Errors
    /// When the request has ended.
    pub(crate) fn validator_in_pool(
        &self,
        definition: &Definition,
        cancel: &Cancel,
    ) -> Result<Arc<Validator>, Refusal> {
        // A budget of its own: it is charged for the compilation alone.
        let budget = Budget::in_pool(&Write::Batch(Vec::new()), cancel.clone());
        self.validators.of(definition, &budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validator(bytes: usize) -> Arc<Validator> {
        Arc::new(Validator { schema: None, paths: Vec::new(), bytes })
    }

    #[test]
    fn the_cache_is_bounded_by_number_and_evicts_the_validator_used_longest_ago() {
        let mut cache = ValidatorCache::default();
        let most = u64::try_from(CACHED_MAX).unwrap();
        for id in 1..=most {
            cache.insert((id, id), validator(1));
        }
        assert!(cache.find((1, 1)).is_some());
        cache.insert((most + 1, most + 1), validator(1));
        assert_eq!(cache.by_definition.len(), CACHED_MAX);
        assert!(cache.find((1, 1)).is_some(), "it was used just now");
        assert!(cache.find((2, 2)).is_none(), "it was used longest ago");
    }

    #[test]
    fn the_cache_is_bounded_by_bytes() {
        let mut cache = ValidatorCache::default();
        for id in 1..=100 {
            cache.insert((id, id), validator(CACHED_SCHEMAS_BYTES_MAX / 4));
        }
        assert_eq!(cache.by_definition.len(), 4);
        assert_eq!(cache.bytes, CACHED_SCHEMAS_BYTES_MAX);
        cache.insert((200, 200), validator(CACHED_SCHEMAS_BYTES_MAX));
        assert_eq!(cache.by_definition.len(), 1);
    }

    #[test]
    fn a_newer_revision_replaces_the_older_one() {
        let mut cache = ValidatorCache::default();
        cache.insert((7, 7), validator(10));
        cache.insert((7, 9), validator(10));
        cache.insert((7, 9), validator(20));
        assert!(cache.find((7, 7)).is_none());
        assert!(cache.find((7, 9)).is_some());
        assert_eq!(cache.bytes, 20);
    }

    #[test]
    fn violations_of_the_data_become_violations_of_the_body() {
        let violations =
            within("data", vec![Violation::at(vec![LocSegment::Index(3)], "bad"), Violation::new("worse")]);
        assert_eq!(violations[0].loc, vec![LocSegment::from("data"), LocSegment::Index(3)]);
        assert_eq!(violations[1].loc, vec![LocSegment::from("data")]);
    }
}
