//! The changes that bring the cluster to the state of the files.
//!
//! **Invariants:** the plan has the previous value of every change, and each of its writes is conditional on that: if
//! another client changes a record in the meantime, the apply fails and overwrites nothing. Definitions come before
//! their configs. A definition that is missing from the files is never deleted.
//!
//! A schema is set before the configs of its definition, so that it validates them. If existing configs change too, they
//! may fit the new schema only after their change. Then the schema is set with `force`, and once more without it as the
//! last operation of the batch, where all configs must fit it.

use std::collections::{BTreeMap, BTreeSet};

use concord_client::{Client, IfMatch, Operation, PutMode};
use concord_formats::yaml;
use serde_json::Value;
use similar::TextDiff;

use super::{
    connection::Failure,
    current::{self, Versioned},
    document,
    manifest::{ManifestDefinition, Manifests, config_json, name},
    mask::Mask,
    secret_source::{IfAbsent, SecretArgs},
};

/// A change of one record.
#[derive(Debug)]
pub(super) struct PlannedChange {
    pub(super) definition: String,
    /// Empty for a definition.
    pub(super) key: String,
    /// The current value, in the form of a file.
    pub(super) before: Option<Value>,
    /// The value to store; `None` deletes the record.
    pub(super) after: Option<Value>,
    /// The current revision; `None` if the record does not exist.
    pub(super) revision: Option<u64>,
    /// The operations that make the change.
    pub(super) operations: Vec<Operation>,
}

impl PlannedChange {
    /// The verb of the change, for a summary.
    pub(super) fn verb(&self, is_done: bool) -> &'static str {
        match (&self.before, &self.after, is_done) {
            (None, _, true) => "created",
            (None, _, false) => "would be created",
            (Some(_), Some(_), true) => "changed",
            (Some(_), Some(_), false) => "would be changed",
            (Some(_), None, true) => "deleted",
            (Some(_), None, false) => "would be deleted",
        }
    }

    /// The lines that differ, as a unified diff of YAML; `old` and `new` say where the two sides are from.
    pub(super) fn diff(&self, old: &str, new: &str) -> String {
        let text = |value: &Option<Value>| value.as_ref().map(yaml::write_exact).unwrap_or_default();
        let (before, after) = (text(&self.before), text(&self.after));
        let name = name(&self.definition, &self.key);
        let side = |prefix: &str, value: &Option<Value>| {
            if value.is_some() { format!("{prefix}/{name}") } else { "/dev/null".into() }
        };
        let diff = TextDiff::from_lines(&before, &after);
        let (old, new) = (side(old, &self.before), side(new, &self.after));
        diff.unified_diff().context_radius(3).header(&old, &new).to_string()
    }
}

/// Unique fields whose indexes the batch creates: they can be set only once the indexes are ready.
#[derive(Debug)]
pub(super) struct UniqueFieldsStep {
    pub(super) definition: String,
    /// The unique fields at the time of the plan.
    pub(super) before: Vec<String>,
    pub(super) paths: Vec<String>,
}

/// What the cluster has of the records that are wanted.
#[derive(Debug, Default)]
pub(super) struct FoundRecords {
    /// The definitions; `None` if it does not exist.
    pub(super) definitions: BTreeMap<String, Option<Versioned<ManifestDefinition>>>,
    /// Configs by the keys of their definition and their own.
    pub(super) configs: BTreeMap<(String, String), Versioned<Value>>,
    /// The definitions in which configs that are not wanted are deleted.
    pub(super) pruned: BTreeSet<String>,
}

impl FoundRecords {
    /// What the cluster has of the records in files. With `prune`, of definitions in the files all configs.
    pub(super) async fn read(client: &Client, wanted: &Manifests, prune: bool) -> Result<Self, Failure> {
        let mut found = Self::default();
        for key in wanted.named() {
            let definition = current::definition(client, &key).await?;
            found.definitions.insert(key, definition);
        }
        let exists = |key: &str| found.definitions.get(key).is_some_and(Option::is_some);
        let keys: Vec<_> = wanted.configs.keys().filter(|(definition, _)| exists(definition)).collect();
        let existing: Vec<String> = found.definitions.keys().filter(|key| exists(key)).cloned().collect();
        if !existing.is_empty() {
            found.configs = current::some_or_all(client, &keys, &existing, prune).await?;
        }
        if prune {
            found.pruned = wanted.definitions.keys().cloned().collect();
        }
        Ok(found)
    }
}

/// The changes to make.
#[derive(Debug, Default)]
pub(super) struct ApplyPlan {
    pub(super) changes: Vec<PlannedChange>,
    /// The last operations of the batch: schemas again, and unique fields.
    pub(super) closing: Vec<Operation>,
    /// After the batch.
    pub(super) after: Vec<UniqueFieldsStep>,
    pub(super) unchanged: usize,
    /// The definitions all of whose configs are deleted.
    pub(super) emptied: Vec<String>,
    /// The revisions of all definitions that the files name; `None` if it does not exist.
    pub(super) definitions: BTreeMap<String, Option<u64>>,
    /// What of the data is secret.
    pub(super) mask: Mask,
}

fn has_same_schema(one: &ManifestDefinition, other: &ManifestDefinition) -> bool {
    let text = |of: &ManifestDefinition| of.schema.as_ref().map(Value::to_string);
    text(one) == text(other) && one.format_assertion == other.format_assertion
}

impl ApplyPlan {
    /// Compares files with the cluster. With `prune`, configs that are missing from the files are deleted, in definitions
    /// that the files contain. The secret values that the files name are of `secrets`.
    pub(super) async fn new(
        client: &Client,
        wanted: &Manifests,
        prune: bool,
        secrets: (&SecretArgs, IfAbsent),
    ) -> Result<Self, Failure> {
        let found = FoundRecords::read(client, wanted, prune).await?;
        let schema_of = |key: &str| {
            let stored = || found.definitions.get(key)?.as_ref().map(|found| &found.value);
            wanted.definitions.get(key).or_else(stored)?.schema.clone()
        };
        let (sources, if_absent) = secrets;
        let wanted = &*sources.put(wanted, schema_of, if_absent)?;
        Self::of(wanted, &found)
    }

    /// The changes that make what was found what is wanted.
    pub(super) fn of(wanted: &Manifests, found: &FoundRecords) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for key in wanted.named() {
            let now = found.definitions.get(&key).and_then(Option::as_ref);
            plan.definitions.insert(key.clone(), now.map(|now| now.revision));
            plan.mask.add(&key, now.and_then(|now| now.value.schema.as_ref()));
            plan.mask.add(&key, wanted.definitions.get(&key).and_then(|wanted| wanted.schema.as_ref()));
            if let Some(definition) = wanted.definitions.get(&key) {
                plan.definition(&key, definition, now);
            } else if now.is_none() {
                let place = wanted.configs.keys().find(|(definition, _)| *definition == key);
                let place = place.and_then(|(definition, key)| wanted.place(definition, key));
                let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
                let text = format!(
                    "{place}definition {key} does not exist, neither in the files nor in the cluster"
                );
                return Err(Failure::Invalid(text));
            }
        }
        // Deletions come first: a new config may take over the unique value of a deleted one.
        let kept: BTreeSet<&String> = wanted.configs.keys().map(|(definition, _)| definition).collect();
        let had: BTreeSet<&String> = found.configs.keys().map(|(definition, _)| definition).collect();
        let emptied = had.difference(&kept).filter(|definition| found.pruned.contains(**definition));
        plan.emptied = emptied.map(|definition| (*definition).clone()).collect();
        for ((definition, key), now) in &found.configs {
            let is_wanted = wanted.configs.contains_key(&(definition.clone(), key.clone()));
            if found.pruned.contains(definition) && !is_wanted {
                plan.delete(definition, key, now);
            }
        }
        for ((definition, key), data) in &wanted.configs {
            let now = found.configs.get(&(definition.clone(), key.clone()));
            plan.config(definition, key, data, now);
        }
        plan.close_schemas();
        Ok(plan)
    }

    /// Hides the secret values of what is shown: the operations stay as they are.
    pub(super) fn hide_secrets(&mut self) {
        for change in self.changes.iter_mut().filter(|change| !change.key.is_empty()) {
            let data = |value: &mut Option<Value>| {
                value.as_mut().and_then(|value| value.get_mut("data").map(Value::take))
            };
            let (mut before, mut after) = (data(&mut change.before), data(&mut change.after));
            self.mask.hide(&change.definition, before.as_mut(), after.as_mut());
            for (value, data) in [(&mut change.before, before), (&mut change.after, after)] {
                if let (Some(value), Some(data)) = (value, data) {
                    value["data"] = data;
                }
            }
        }
    }

    /// The plan for several batches. They may be interrupted in between: so a schema must fit the configs that exist when
    /// it is set, and deletions come last.
    pub(super) fn divided(mut self) -> Self {
        self.changes.sort_by_key(|change| change.after.is_none());
        self.closing.retain(|operation| !matches!(operation, Operation::SetSchema { .. }));
        for operation in self.changes.iter_mut().flat_map(|change| &mut change.operations) {
            if let Operation::SetSchema { force, .. } = operation {
                *force = false;
            }
        }
        self
    }

    /// If existing configs change with a schema, sets it with `force` first and again, without, at the end.
    fn close_schemas(&mut self) {
        let of_configs =
            self.changes.iter().filter(|change| !change.key.is_empty() && change.before.is_some());
        let touched = of_configs.map(|change| change.definition.clone()).collect();
        self.close_schemas_of(&touched);
    }

    /// The same for the definitions of which configs change.
    pub(super) fn close_schemas_of(&mut self, touched: &BTreeSet<String>) {
        let mut again = Vec::new();
        for change in self.changes.iter_mut().filter(|change| touched.contains(&change.definition)) {
            for operation in &mut change.operations {
                if let Operation::SetSchema { definition, schema, format_assertion, force, .. } = operation {
                    let (definition, schema) = (definition.clone(), schema.clone());
                    again.push(Operation::SetSchema {
                        definition,
                        schema,
                        format_assertion: *format_assertion,
                        force: false,
                        if_match: None,
                    });
                    *force = true;
                }
            }
        }
        self.closing.splice(0..0, again);
    }

    /// Plans the change of a definition, unless it is what is wanted.
    pub(super) fn definition(
        &mut self,
        key: &str,
        wanted: &ManifestDefinition,
        found: Option<&Versioned<ManifestDefinition>>,
    ) {
        let Some(found) = found else {
            self.create_definition(key, wanted);
            return;
        };
        let now = &found.value;
        // Without `format_assertion` or `protected` in the file, the setting stays.
        let mut wanted = wanted.clone();
        wanted.protected = wanted.protected.or(now.protected);
        let is_asserted = wanted.format_assertion;
        wanted.format_assertion = is_asserted.or(now.format_assertion);
        let (before, after) = (now.to_json(key), wanted.to_json(key));
        if document::is_same(&before, &after) {
            self.unchanged += 1;
            return;
        }
        let mut operations = Vec::new();
        // Only the first operation is conditional: it changes the revision for those after it.
        let mut if_match = Some(IfMatch::Revision(found.revision));
        // Unique fields are dropped before their indexes, and added after them.
        let kept: Vec<String> =
            now.unique.iter().filter(|path| wanted.unique.contains(path)).cloned().collect();
        let has_new_paths = kept != wanted.unique;
        if kept.len() < now.unique.len() {
            operations.push(Operation::SetUnique {
                definition: key.into(),
                paths: kept,
                if_match: if_match.take(),
            });
        }
        let mut indexes = now.indexes.clone();
        if !has_same_schema(now, &wanted) {
            // The schema need not have the fields of indexes that are dropped.
            indexes.retain(|path| wanted.indexes.contains(path));
            if indexes.len() < now.indexes.len() {
                operations.push(Operation::SetIndexes {
                    definition: key.into(),
                    indexes: indexes.clone(),
                    if_match: if_match.take(),
                });
            }
            operations.push(Operation::SetSchema {
                definition: key.into(),
                schema: wanted.schema,
                format_assertion: is_asserted,
                force: false,
                if_match: if_match.take(),
            });
        }
        if indexes != wanted.indexes {
            operations.push(Operation::SetIndexes {
                definition: key.into(),
                indexes: wanted.indexes,
                if_match: if_match.take(),
            });
        }
        if now.protected != wanted.protected {
            operations.push(Operation::SetProtection {
                definition: key.into(),
                protected: wanted.protected == Some(true),
                if_match: if_match.take(),
            });
        }
        if has_new_paths {
            let is_indexed = wanted.unique.iter().all(|path| now.indexes.contains(path));
            if is_indexed {
                self.closing.push(Operation::SetUnique {
                    definition: key.into(),
                    paths: wanted.unique,
                    if_match,
                });
            } else {
                let before = now.unique.clone();
                self.after.push(UniqueFieldsStep { definition: key.into(), before, paths: wanted.unique });
            }
        }
        let (before, after) = (Some(before), Some(after));
        self.changes.push(PlannedChange {
            definition: key.into(),
            key: String::new(),
            before,
            after,
            revision: Some(found.revision),
            operations,
        });
    }

    fn create_definition(&mut self, key: &str, wanted: &ManifestDefinition) {
        let operation = wanted.create(key);
        if !wanted.unique.is_empty() {
            let (definition, paths) = (key.into(), wanted.unique.clone());
            self.closing.push(Operation::SetUnique { definition, paths, if_match: None });
        }
        if wanted.protected == Some(true) {
            let definition = key.into();
            self.closing.push(Operation::SetProtection { definition, protected: true, if_match: None });
        }
        self.changes.push(PlannedChange {
            definition: key.into(),
            key: String::new(),
            before: None,
            after: Some(wanted.to_json(key)),
            revision: None,
            operations: vec![operation],
        });
    }

    fn config(&mut self, definition: &str, key: &str, data: &Value, now: Option<&Versioned<Value>>) {
        let is_same = |now: &Value| document::is_same(now, data) || self.mask.keeps(definition, now, data);
        if now.is_some_and(|now| is_same(&now.value)) {
            self.unchanged += 1;
            return;
        }
        let (of, its_key, new) = (definition.to_owned(), key.to_owned(), data.clone());
        let operation = match now {
            Some(now) => Operation::PutConfig {
                definition: of,
                key: its_key,
                data: new,
                mode: PutMode::ReplaceIf(now.revision),
            },
            None => Operation::CreateConfig { definition: of, key: its_key, data: new },
        };
        self.changes.push(PlannedChange {
            definition: definition.into(),
            key: key.into(),
            before: now.map(|now| config_json(definition, key, &now.value)),
            after: Some(config_json(definition, key, data)),
            revision: now.map(|now| now.revision),
            operations: vec![operation],
        });
    }

    fn delete(&mut self, definition: &str, key: &str, now: &Versioned<Value>) {
        let operation = Operation::DeleteConfig {
            definition: definition.into(),
            key: key.into(),
            if_match: Some(now.revision.into()),
        };
        self.changes.push(PlannedChange {
            definition: definition.into(),
            key: key.into(),
            before: Some(config_json(definition, key, &now.value)),
            after: None,
            revision: Some(now.revision),
            operations: vec![operation],
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(indexes: &[&str], schema: Value, unique: &[&str]) -> ManifestDefinition {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        ManifestDefinition {
            indexes: texts(indexes),
            schema: Some(schema),
            unique: texts(unique),
            format_assertion: None,
            protected: Some(false),
        }
    }

    fn planned(wanted: &ManifestDefinition, now: &ManifestDefinition) -> ApplyPlan {
        let mut plan = ApplyPlan::default();
        plan.definition("d", wanted, Some(&Versioned { revision: 7, value: now.clone() }));
        plan
    }

    #[test]
    fn what_is_equal_is_no_change_and_an_order_is_one() {
        let now = definition(&["a"], json!({"type": "object", "title": "x"}), &[]);
        let mut same = now.clone();
        assert_eq!((planned(&same, &now).changes.len(), planned(&same, &now).unchanged), (0, 1));
        same.schema = Some(json!({"title": "x", "type": "object"}));
        let plan = planned(&same, &now);
        assert_eq!(plan.changes.len(), 1);
        let expected = json!({"op": "set_schema", "config_definition_key": "d",
            "json_schema": {"title": "x", "type": "object"}, "if_match": "7"});
        assert_eq!(as_json(&plan.changes[0].operations), [expected]);
    }

    #[test]
    fn a_protection_stays_unless_the_file_has_one() {
        let with = |protected| ManifestDefinition { protected, ..definition(&[], json!({}), &[]) };
        for (wanted, now, set) in [
            (None, true, None),
            (None, false, None),
            (Some(true), true, None),
            (Some(true), false, Some(true)),
            (Some(false), true, Some(false)),
        ] {
            let plan = planned(&with(wanted), &with(Some(now)));
            let operations = plan.changes.iter().flat_map(|change| as_json(&change.operations));
            let expected = set.map(|protected| {
                json!({"op": "set_protection", "config_definition_key": "d", "protected": protected, "if_match": "7"})
            });
            assert_eq!(operations.collect::<Vec<_>>(), Vec::from_iter(expected), "{wanted:?} {now}");
        }
    }

    #[test]
    fn a_marker_at_a_secret_place_is_no_change() {
        let schema = json!({"properties": {"password": {"x-concord-secret": true}, "reps": {"items":
            {"properties": {"token": {"x-concord-secret": true}}}}}});
        let mut plan = ApplyPlan::default();
        plan.mask.add("d", Some(&schema));
        let stored = json!({"host": "h", "password": "p", "reps": [{"n": 1, "token": "t"}]});
        let now = Versioned { revision: 3, value: stored };
        let keep = json!({"$concord-keep": true});
        let with = |host: Value, password: &Value, n: u64| json!({"host": host, "password": password, "reps": [{"n": n, "token": keep}]});
        plan.config("d", "k", &with(json!("h"), &keep, 1), Some(&now));
        plan.config("d", "k", &with(json!("h"), &json!("p"), 1), Some(&now));
        assert_eq!((plan.unchanged, plan.changes.len()), (2, 0));
        for changed in [
            with(json!("h2"), &keep, 1),
            with(json!("h"), &json!("p2"), 1),
            with(json!("h"), &keep, 2),
            with(keep.clone(), &keep, 1), // not a secret field: the cluster says so
        ] {
            plan.config("d", "k", &changed, Some(&now));
        }
        assert_eq!((plan.unchanged, plan.changes.len()), (2, 4));
    }

    fn as_json(operations: &[Operation]) -> Vec<Value> {
        operations.iter().map(|operation| serde_json::to_value(operation).unwrap()).collect()
    }

    fn names(operations: &[Operation]) -> Vec<String> {
        as_json(operations).iter().map(|operation| operation["op"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_first_change_of_a_definition_is_conditional_and_unique_paths_have_indexes_all_the_time() {
        let now = definition(&["a", "c"], json!({}), &["a"]);
        let plan = planned(&definition(&["a", "b", "c"], json!({}), &["a", "b"]), &now);
        assert_eq!(
            (names(&plan.changes[0].operations), plan.closing.len()),
            (vec!["set_indexes".to_owned()], 0)
        );
        assert_eq!(plan.after[0].paths, ["a", "b"], "its index is built by another request");
        let plan = planned(&definition(&["a", "c"], json!({}), &["a", "c"]), &now);
        assert_eq!(
            (plan.changes[0].operations.len(), as_json(&plan.closing)[0]["if_match"].clone()),
            (0, json!("7"))
        );
        let plan = planned(&definition(&["c"], json!({}), &["c"]), &now);
        assert_eq!(names(&plan.changes[0].operations), ["set_unique", "set_indexes"]);
        let operations = as_json(&plan.changes[0].operations);
        assert_eq!((&operations[0]["if_match"], operations[1].get("if_match")), (&json!("7"), None));
        assert_eq!((as_json(&plan.closing)[0]["paths"].clone(), plan.after.len()), (json!(["c"]), 0));
        let plan = planned(&definition(&["a", "c"], json!({}), &[]), &now);
        assert_eq!(
            (names(&plan.changes[0].operations), plan.closing.len()),
            (vec!["set_unique".to_owned()], 0)
        );
    }

    #[test]
    fn a_schema_is_checked_at_the_end_where_configs_change_with_it() {
        let now = definition(&[], json!({}), &[]);
        let plan = || planned(&definition(&[], json!({"minProperties": 1}), &[]), &now);
        let data = Versioned { revision: 3, value: json!({}) };
        let mut created = plan();
        created.config("d", "k", &json!({"a": 1}), None);
        created.close_schemas();
        assert_eq!(
            (as_json(&created.changes[0].operations)[0].get("policy"), created.closing.len()),
            (None, 0)
        );
        let mut changed = plan();
        changed.config("d", "k", &json!({"a": 1}), Some(&data));
        changed.close_schemas();
        assert_eq!(as_json(&changed.changes[0].operations)[0]["policy"], "force");
        assert_eq!(names(&changed.closing), ["set_schema"]);
        let closing = as_json(&changed.closing);
        assert_eq!((closing[0].get("policy"), closing[0].get("if_match")), (None, None));
        let divided = changed.divided();
        assert_eq!(
            (as_json(&divided.changes[0].operations)[0].get("policy"), divided.closing.len()),
            (None, 0)
        );
    }

    #[test]
    fn a_config_is_compared_by_its_digits_and_its_order() {
        let mut plan = ApplyPlan::default();
        let now = |text: &str| Versioned { revision: 3, value: serde_json::from_str(text).unwrap() };
        let wanted: Value = serde_json::from_str(r#"{"a": 7.0, "b": 1}"#).unwrap();
        plan.config("d", "k", &wanted, Some(&now(r#"{"a":7.0,"b":1}"#)));
        plan.config("d", "k", &wanted, Some(&now(r#"{"a":7,"b":1}"#)));
        plan.config("d", "k", &wanted, Some(&now(r#"{"b":1,"a":7.0}"#)));
        plan.config("d", "k", &wanted, None);
        assert_eq!((plan.unchanged, plan.changes.len()), (1, 3));
        assert_eq!(as_json(&plan.changes[0].operations)[0]["if_match"], "3");
        assert_eq!(names(&plan.changes[2].operations), ["create_config"]);
        let diff = plan.changes[0].diff("cluster", "file");
        assert!(diff.contains("-  a: 7\n+  a: 7.0\n"), "{diff}");
    }
}
