//! Which upserts and rollbacks of a batch have created their config: the log's answer to a batch says only that all was done.
//!
//! A create stores one time twice, and every write after it another one of the last change. So the record that the batch
//! wrote tells, if no other operation of the batch is of the same config, and history has it when it was written again
//! since. Else the operations before tell, or the state before the batch.
//!
//! **Invariant:** the answer to a request that is sent again is the same, or says that it is not known any more.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Instant, timeout_at};

use super::transaction::ReadConfig;
use crate::{
    Service,
    request::{Effect, Principal, Rollback, Target, Write, Written},
};
use concord_model::{access_key::Verb, command::Expect, record::Config};

/// What the operations of a batch say by themselves of an upsert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upsert {
    /// Whether it creates: an operation before it writes or deletes the config, or its definition.
    Known(bool),
    /// No other operation is of the config.
    Alone,
    /// A later operation is, or deletes its definition, and none before.
    First,
}

/// The upserts among the operations that are carried out, each by its place among them.
#[must_use]
pub fn upserts(operations: &[Write]) -> BTreeMap<usize, Upsert> {
    let mut found = BTreeMap::new();
    if !operations.iter().any(is_upsert) {
        return found;
    }
    // Whether a config exists, as far as the operations so far tell.
    let mut configs: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    let mut emptied: BTreeSet<&str> = BTreeSet::new();
    let mut first: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (place, operation) in operations.iter().enumerate() {
        match operation.target() {
            Target::Definition(definition) => {
                let empties =
                    matches!(operation, Write::CreateDefinition { .. } | Write::DeleteDefinition { .. });
                if empties {
                    emptied.insert(definition);
                    for (_, place) in first.extract_if(.., |(of, _), _| *of == definition) {
                        found.insert(place, Upsert::First);
                    }
                    configs.retain(|(of, _), _| *of != definition);
                }
            }
            Target::Config { definition, key } if operation.effect() != Effect::Read => {
                let config = (definition, key);
                if let Some(before) = first.remove(&config) {
                    found.insert(before, Upsert::First);
                }
                let exists =
                    configs.get(&config).copied().or_else(|| emptied.contains(definition).then_some(false));
                if is_upsert(operation) {
                    found.insert(place, exists.map_or(Upsert::Alone, |exists| Upsert::Known(!exists)));
                    if exists.is_none() {
                        first.insert(config, place);
                    }
                }
                configs.insert(config, operation.effect() != Effect::Remove);
            }
            Target::Config { .. } | Target::Batch | Target::Keys => {}
        }
    }
    found
}

/// Whether an operation creates a config or replaces it, as it finds it.
fn is_upsert(operation: &Write) -> bool {
    matches!(
        operation,
        Write::WriteConfig { expect: Expect::Any, .. }
            | Write::Rollback(Rollback { expect: Expect::Any, .. })
    )
}

impl Service {
    /// Whether the upserts of a batch have created their configs, or would; `None` where that is not known any more. All
    /// together they have the time of one read.
    pub async fn created_by<'a>(
        &self,
        principal: &Principal,
        upserts: impl Iterator<Item = (&'a str, &'a str, Upsert)>,
        written: &Written,
    ) -> Vec<Option<bool>> {
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let mut created = Vec::new();
        for (definition, key, upsert) in upserts {
            let is_new = self.has_created(principal, (definition, key), upsert, written);
            created.push(timeout_at(deadline, is_new).await.unwrap_or(None));
        }
        created
    }

    async fn has_created(
        &self,
        principal: &Principal,
        (definition, key): (&str, &str),
        upsert: Upsert,
        written: &Written,
    ) -> Option<bool> {
        principal.authorize(Verb::Write, Some(definition)).ok()?;
        match upsert {
            Upsert::Known(created) => return Some(created),
            Upsert::Alone if !written.dry_run => {
                let config = self.config_written_at(definition, key, written.applied.revision).await.ok()?;
                return Some(is_new(&config));
            }
            Upsert::Alone | Upsert::First => {}
        }
        let before = self.reads_of(principal, std::iter::once((definition, key)), true, written).await;
        match before.first()? {
            ReadConfig::Found(..) => Some(false),
            ReadConfig::Absent => Some(true),
            ReadConfig::Unknown => None,
        }
    }
}

/// Whether a record is as it was created.
fn is_new(config: &Config) -> bool {
    config.created_at == config.modified_at
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::document::Document;

    fn of_config(key: &str, expect: Expect) -> Write {
        let (definition, data) = ("d".into(), Document::new(serde_json::json!({})));
        Write::WriteConfig { definition, key: key.into(), data, expect }
    }

    #[test]
    fn the_operations_before_and_after_an_upsert_tell_what_it_does() {
        let upsert = |key| of_config(key, Expect::Any);
        let remove = |key: &str| Write::DeleteConfig {
            definition: "d".into(),
            key: key.into(),
            expect: Expect::Present,
        };
        let create = || Write::CreateDefinition {
            key: "d".into(),
            indexes: Vec::new(),
            schema: None,
            format_assertion: None,
        };
        let read = || Write::Read { definition: "d".into(), key: "a".into() };
        let delete = || Write::DeleteDefinition { key: "d".into(), expect: Expect::Any, restrict: false };
        use Upsert::{Alone, First, Known};
        type Case = (Vec<Write>, &'static [(usize, Upsert)]);
        let cases: [Case; 8] = [
            (vec![of_config("a", Expect::Present)], &[]),
            (vec![upsert("a"), read(), upsert("b")], &[(0, Alone), (2, Alone)]),
            (vec![upsert("a"), upsert("a")], &[(0, First), (1, Known(false))]),
            (vec![upsert("a"), remove("a"), upsert("a")], &[(0, First), (2, Known(true))]),
            (vec![of_config("a", Expect::Absent), upsert("a")], &[(1, Known(false))]),
            (vec![remove("a"), upsert("a"), remove("a")], &[(1, Known(true))]),
            (vec![create(), upsert("a"), upsert("a")], &[(1, Known(true)), (2, Known(false))]),
            (vec![upsert("a"), delete(), create(), upsert("a")], &[(0, First), (3, Known(true))]),
        ];
        for (operations, expected) in cases {
            let found: Vec<_> = upserts(&operations).into_iter().collect();
            assert_eq!(found, expected, "{operations:?}");
        }
    }
}
