//! What the leader keeps at hand to check writes: compiled schemas, and how full the volume is.
//!
//! Compiling a schema costs a hundred times what checking a document costs, so compiled ones are kept by the
//! revision of their definition: a definition that changes has another revision, and nothing is ever stale here.
//!
//! **Invariant:** the kept schemas are bounded by their number and by the bytes of their texts.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    model::{
        error::{Invalid, LocSegment, Violation},
        index::{self, StoredPath},
        record::{Definition, Entries, Revision},
        schema::Schema,
    },
    service::Refusal,
};

/// Compiled schemas that are kept: what a busy cluster uses at once.
const KEPT_MAX: usize = 512;
/// Bytes of the texts of the kept schemas; compiled ones take some ten times as much.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// How long a look at the volume holds: a volume does not fill by more than its reserve in that time.
const LOOK: Duration = Duration::from_secs(1);

/// What checks the data of a definition's configs.
#[derive(Debug)]
pub(in crate::service) struct Validator {
    schema: Option<Schema>,
    paths: Vec<StoredPath>,
    bytes: usize,
}

impl Validator {
    /// Compiles what a stored definition says.
    fn of(definition: &Definition) -> Result<Self, Refusal> {
        let schema = stored_schema(definition)?
            .map(|value| Schema::compile(&value))
            .transpose()
            .map_err(|violations| fault(definition, &format!("does not compile: {violations:?}")))?;
        let bytes = definition.schema.as_ref().map_or(0, |text| text.len());
        Ok(Self { schema, paths: index::stored_paths(definition), bytes })
    }

    /// Checks a config's data and computes its index entries.
    pub(in crate::service) fn check(&self, data: &Value) -> Result<Entries, Invalid> {
        match &self.schema {
            Some(schema) => {
                schema.check(data).map_err(|violations| Invalid::Violations(within("data", violations)))?;
            }
            None if data.is_object() => {}
            None => return Err(Violation::at(vec!["data".into()], "data must be an object").into()),
        }
        index::entries(&self.paths, data).map_err(|fault| Invalid::Violations(within("data", vec![fault])))
    }
}

/// The value of a definition's schema.
pub(in crate::service) fn stored_schema(definition: &Definition) -> Result<Option<Value>, Refusal> {
    definition
        .schema
        .as_deref()
        .map(serde_json::from_str)
        .transpose()
        .map_err(|error| fault(definition, &format!("is not JSON: {error}")))
}

fn fault(definition: &Definition, what: &str) -> Refusal {
    Refusal::Internal(format!("the stored schema of {:?} at {} {what}", definition.key, definition.revision))
}

/// Violations of a part, told as violations of the whole: `name` is the part's member.
pub(in crate::service) fn within(name: &str, mut violations: Vec<Violation>) -> Vec<Violation> {
    for fault in &mut violations {
        fault.loc.insert(0, LocSegment::from(name));
    }
    violations
}

/// The compiled schemas that were used last.
#[derive(Debug, Default)]
pub(in crate::service) struct Validators {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_definition: BTreeMap<(Revision, Revision), Slot>,
    bytes: usize,
    /// Grows with every use; the slot with the least was used longest ago.
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    validator: Arc<Validator>,
    used: u64,
}

impl Validators {
    /// The validator of a definition. Two callers may compile the same one at once; one of them is kept.
    pub(in crate::service) fn of(&self, definition: &Definition) -> Result<Arc<Validator>, Refusal> {
        let id = (definition.id, definition.revision);
        if let Some(validator) = self.lock().find(id) {
            return Ok(validator);
        }
        let validator = Arc::new(Validator::of(definition)?);
        self.lock().keep(id, Arc::clone(&validator));
        Ok(validator)
    }

    /// Whether the definition's validator is at hand.
    pub(in crate::service) fn has(&self, definition: &Definition) -> bool {
        self.lock().by_definition.contains_key(&(definition.id, definition.revision))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held but for lack of memory; what is kept is whole in any case.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, id: (Revision, Revision)) -> Option<Arc<Validator>> {
        self.uses += 1;
        let slot = self.by_definition.get_mut(&id)?;
        slot.used = self.uses;
        Some(Arc::clone(&slot.validator))
    }

    fn keep(&mut self, id: (Revision, Revision), validator: Arc<Validator>) {
        self.remove(id);
        // An older revision of the same definition is not asked for again.
        while let Some(old) = self.by_definition.range((id.0, 0)..id).next().map(|(old, _)| *old) {
            self.remove(old);
        }
        let bytes = validator.bytes;
        while self.by_definition.len() >= KEPT_MAX || self.bytes + bytes > KEPT_BYTES_MAX {
            let oldest = self.by_definition.iter().min_by_key(|(_, slot)| slot.used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.by_definition.insert(id, Slot { validator, used: self.uses });
    }

    fn remove(&mut self, id: (Revision, Revision)) {
        if let Some(slot) = self.by_definition.remove(&id) {
            self.bytes -= slot.validator.bytes;
        }
    }
}

/// How full the volume of the data directory is.
#[derive(Debug)]
pub(in crate::service) struct Disk {
    directory: PathBuf,
    reserve: u64,
    looked: Mutex<Option<(Instant, Option<u64>)>>,
}

impl Disk {
    pub(in crate::service) fn new(directory: PathBuf, reserve: u64) -> Self {
        Self { directory, reserve, looked: Mutex::new(None) }
    }

    /// Refuses while the volume has less than the reserve. The log's own appends must never meet a full volume:
    /// an append that fails stops the node.
    pub(in crate::service) fn room(&self) -> Result<(), Refusal> {
        match self.free() {
            Some(free) if free < self.reserve => Err(Refusal::StorageFull(format!(
                "the volume of the data directory has {free} bytes left, less than the reserve of {} bytes",
                self.reserve
            ))),
            // A volume that does not say how full it is must not stop the service: the log still finds out.
            Some(_) | None => Ok(()),
        }
    }

    fn free(&self) -> Option<u64> {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, free)) = *looked
            && at.elapsed() < LOOK
        {
            return free;
        }
        let free = match rustix::fs::statvfs(&self.directory) {
            Ok(volume) => Some(volume.f_bavail.saturating_mul(volume.f_frsize)),
            Err(error) => {
                tracing::warn!(%error, directory = %self.directory.display(), "the volume's free space is not known");
                None
            }
        };
        *looked = Some((Instant::now(), free));
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validator(bytes: usize) -> Arc<Validator> {
        Arc::new(Validator { schema: None, paths: Vec::new(), bytes })
    }

    #[test]
    fn validators_are_bounded_by_number_and_the_one_used_longest_ago_goes() {
        let mut kept = Kept::default();
        let most = u64::try_from(KEPT_MAX).unwrap();
        for id in 1..=most {
            kept.keep((id, id), validator(1));
        }
        assert!(kept.find((1, 1)).is_some());
        kept.keep((most + 1, most + 1), validator(1));
        assert_eq!(kept.by_definition.len(), KEPT_MAX);
        assert!(kept.find((1, 1)).is_some(), "it was used just now");
        assert!(kept.find((2, 2)).is_none(), "it was used longest ago");
    }

    #[test]
    fn validators_are_bounded_by_bytes() {
        let mut kept = Kept::default();
        for id in 1..=100 {
            kept.keep((id, id), validator(KEPT_BYTES_MAX / 4));
        }
        assert_eq!(kept.by_definition.len(), 4);
        assert_eq!(kept.bytes, KEPT_BYTES_MAX);
        kept.keep((200, 200), validator(KEPT_BYTES_MAX));
        assert_eq!(kept.by_definition.len(), 1);
    }

    #[test]
    fn a_newer_revision_takes_the_place_of_the_older() {
        let mut kept = Kept::default();
        kept.keep((7, 7), validator(10));
        kept.keep((7, 9), validator(10));
        kept.keep((7, 9), validator(20));
        assert!(kept.find((7, 7)).is_none());
        assert!(kept.find((7, 9)).is_some());
        assert_eq!(kept.bytes, 20);
    }

    #[test]
    fn faults_of_the_data_are_told_as_faults_of_the_body() {
        let violations =
            within("data", vec![Violation::at(vec![LocSegment::Index(3)], "bad"), Violation::new("worse")]);
        assert_eq!(violations[0].loc, vec![LocSegment::from("data"), LocSegment::Index(3)]);
        assert_eq!(violations[1].loc, vec![LocSegment::from("data")]);
    }

    #[test]
    fn a_volume_below_its_reserve_refuses() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Disk::new(directory.path().into(), 0).room(), Ok(()));
        let full = Disk::new(directory.path().into(), u64::MAX).room();
        assert!(matches!(full, Err(Refusal::StorageFull(_))));
    }
}
