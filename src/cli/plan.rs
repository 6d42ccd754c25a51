//! What has to change so that the cluster has what files say.
//!
//! **Invariants:** the plan names every change with what was there before, and each of its writes is conditional on
//! that: what somebody else changes meanwhile makes the apply fail and is never overwritten. Definitions come before
//! their configs. A definition that no file has is never deleted.
//!
//! A schema comes before the configs of its definition, so that they are checked by it. Where configs that are there
//! change with it, they may fit the new one only as they will be: then it is set by force, and once more as the last
//! operation of the batch, where all configs must fit it.

use std::collections::{BTreeMap, BTreeSet};

use concord_client::Client;
use serde_json::{Value, json};
use similar::TextDiff;

use super::{
    connection::Failure,
    current::{self, Versioned},
    document,
    manifest::{Definition, Manifests, config_json, name},
    yaml_writer,
};

const SET_SCHEMA: &str = "set_schema";
const SET_UNIQUE: &str = "set_unique";

/// A change of one record.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) definition: String,
    /// Empty for a definition.
    pub(super) key: String,
    /// What is there now, as a file has it.
    pub(super) before: Option<Value>,
    /// What shall be there.
    pub(super) after: Option<Value>,
    /// The operations of a batch that do it.
    pub(super) operations: Vec<Value>,
}

impl Change {
    /// What is done, in the past tense when it is done.
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

    /// The lines that differ, as a unified diff of YAML.
    pub(super) fn diff(&self) -> String {
        let text = |value: &Option<Value>| value.as_ref().map(yaml_writer::write).unwrap_or_default();
        let (before, after) = (text(&self.before), text(&self.after));
        let name = name(&self.definition, &self.key);
        let side = |prefix: &str, value: &Option<Value>| {
            if value.is_some() { format!("{prefix}/{name}") } else { "/dev/null".into() }
        };
        let diff = TextDiff::from_lines(&before, &after);
        let (old, new) = (side("cluster", &self.before), side("file", &self.after));
        diff.unified_diff().context_radius(3).header(&old, &new).to_string()
    }
}

/// Unique paths whose indexes the batch before begins to build: only once these are ready they can be unique.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) definition: String,
    /// Those that were there when the plan was made.
    pub(super) before: Vec<String>,
    pub(super) paths: Vec<String>,
}

/// What has to change.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    /// The last operations of the batch: schemas once more, and unique paths.
    pub(super) closing: Vec<Value>,
    /// After the batch.
    pub(super) after: Vec<Step>,
    pub(super) unchanged: usize,
}

impl Plan {
    /// Compares files with the cluster. With `prune`, configs of the definitions in the files that no file has are
    /// deleted.
    pub(super) async fn new(client: &Client, wanted: &Manifests, prune: bool) -> Result<Self, Failure> {
        let mut plan = Self::default();
        let mut known = BTreeMap::new();
        for key in wanted.named() {
            let found = current::definition(client, &key).await?;
            if let Some(definition) = wanted.definitions.get(&key) {
                plan.definition(&key, definition, found.as_ref());
            } else if found.is_none() {
                let place = wanted.configs.keys().find(|(definition, _)| *definition == key);
                let place =
                    place.and_then(|(definition, key)| wanted.place(definition, key)).unwrap_or_default();
                let text =
                    format!("{place}: there is no definition {key}, neither in the files nor in the cluster");
                return Err(Failure::Invalid(text));
            }
            known.insert(key, found.is_some());
        }
        let keys: Vec<_> = wanted.configs.keys().filter(|(definition, _)| known[definition]).collect();
        let existing: Vec<String> =
            known.iter().filter(|(_, exists)| **exists).map(|(key, _)| key.clone()).collect();
        let found = if existing.is_empty() {
            BTreeMap::new()
        } else {
            current::some_or_all(client, &keys, &existing, prune).await?
        };
        // What is deleted goes first: its value of a unique path may be that of a new config.
        if prune {
            for ((definition, key), now) in &found {
                let is_owned = wanted.definitions.contains_key(definition);
                if is_owned && !wanted.configs.contains_key(&(definition.clone(), key.clone())) {
                    plan.delete(definition, key, now);
                }
            }
        }
        for ((definition, key), data) in &wanted.configs {
            let now = found.get(&(definition.clone(), key.clone()));
            plan.config(definition, key, data, now);
        }
        plan.close_schemas();
        Ok(plan)
    }

    /// The changes for several batches, and their last operations. What comes between may be interrupted: a schema must
    /// fit the configs that there are when it is set, and what is deleted goes last.
    pub(super) fn divided(mut self) -> Self {
        self.changes.sort_by_key(|change| change.after.is_none());
        let is_schema = |operation: &Value| operation["op"] == SET_SCHEMA;
        self.closing.retain(|operation| !is_schema(operation));
        let operations = self.changes.iter_mut().flat_map(|change| &mut change.operations);
        for operation in operations.filter(|operation| is_schema(operation)) {
            if let Some(members) = operation.as_object_mut() {
                members.shift_remove("policy");
            }
        }
        self
    }

    /// Sets schemas by force, and again at the end, where configs change with them.
    fn close_schemas(&mut self) {
        let of_configs =
            self.changes.iter().filter(|change| !change.key.is_empty() && change.before.is_some());
        let touched: BTreeSet<String> = of_configs.map(|change| change.definition.clone()).collect();
        let mut again = Vec::new();
        for change in &mut self.changes {
            let operations = change.operations.iter_mut().filter(|operation| operation["op"] == SET_SCHEMA);
            for operation in operations.filter(|_| touched.contains(&change.definition)) {
                let mut last = operation.clone();
                if let Some(members) = last.as_object_mut() {
                    members.shift_remove("if_match");
                }
                again.push(last);
                operation["policy"] = "force".into();
            }
        }
        self.closing.splice(0..0, again);
    }

    fn definition(&mut self, key: &str, wanted: &Definition, found: Option<&Versioned<Definition>>) {
        let Some(found) = found else {
            self.create_definition(key, wanted);
            return;
        };
        let now = &found.value;
        // A file that says nothing of it leaves it as it is.
        let mut wanted = wanted.clone();
        let is_asserted = wanted.format_assertion;
        wanted.format_assertion = is_asserted.or(now.format_assertion);
        let (before, after) = (now.to_json(key), wanted.to_json(key));
        if document::is_same(&before, &after) {
            self.unchanged += 1;
            return;
        }
        let mut operations = Vec::new();
        // Paths that are given up go before their indexes do; new ones need indexes first.
        let kept: Vec<&String> = now.unique.iter().filter(|path| wanted.unique.contains(path)).collect();
        if kept.len() < now.unique.len() {
            operations.push(json!({ "op": SET_UNIQUE, "config_definition_key": key, "paths": kept }));
        }
        let text = |schema: &Option<Value>| schema.as_ref().map(Value::to_string);
        if text(&now.schema) != text(&wanted.schema) || now.format_assertion != wanted.format_assertion {
            let mut operation =
                json!({ "op": SET_SCHEMA, "config_definition_key": key, "json_schema": wanted.schema });
            if let Some(asserted) = is_asserted {
                operation["format_assertion"] = asserted.into();
            }
            operations.push(operation);
        }
        if now.indexes != wanted.indexes {
            operations.push(
                json!({ "op": "set_indexes", "config_definition_key": key, "indexes": wanted.indexes }),
            );
        }
        if kept.len() < wanted.unique.len() || kept.iter().ne(&wanted.unique.iter().collect::<Vec<_>>()) {
            let is_indexed = wanted.unique.iter().all(|path| now.indexes.contains(path));
            self.set_unique(key, (&now.unique, &wanted.unique), is_indexed);
        }
        // The first changes the revision for those after it.
        let closing = self.closing.last_mut().filter(|last| last["config_definition_key"] == key);
        if let Some(first) = operations.first_mut().or(closing) {
            first["if_match"] = found.revision.to_string().into();
        }
        let (before, after) = (Some(before), Some(after));
        self.changes.push(Change { definition: key.into(), key: String::new(), before, after, operations });
    }

    fn set_unique(&mut self, key: &str, (before, paths): (&[String], &[String]), is_indexed: bool) {
        if is_indexed {
            self.closing.push(json!({ "op": SET_UNIQUE, "config_definition_key": key, "paths": paths }));
        } else {
            let (before, paths) = (before.to_vec(), paths.to_vec());
            self.after.push(Step { definition: key.into(), before, paths });
        }
    }

    fn create_definition(&mut self, key: &str, wanted: &Definition) {
        let mut operation = json!({
            "op": "create_definition", "config_definition_key": key, "indexes": wanted.indexes,
        });
        if let Some(schema) = &wanted.schema {
            operation["json_schema"] = schema.clone();
        }
        if let Some(asserted) = wanted.format_assertion {
            operation["format_assertion"] = asserted.into();
        }
        if !wanted.unique.is_empty() {
            self.set_unique(key, (&[], &wanted.unique), true);
        }
        self.changes.push(Change {
            definition: key.into(),
            key: String::new(),
            before: None,
            after: Some(wanted.to_json(key)),
            operations: vec![operation],
        });
    }

    fn config(&mut self, definition: &str, key: &str, data: &Value, now: Option<&Versioned<Value>>) {
        let mut operation = json!({ "config_definition_key": definition, "config_key": key, "data": data });
        match now {
            Some(now) if document::is_same(&now.value, data) => {
                self.unchanged += 1;
                return;
            }
            Some(now) => {
                operation["op"] = "put_config".into();
                operation["if_match"] = now.revision.to_string().into();
            }
            None => operation["op"] = "create_config".into(),
        }
        self.changes.push(Change {
            definition: definition.into(),
            key: key.into(),
            before: now.map(|now| config_json(definition, key, &now.value)),
            after: Some(config_json(definition, key, data)),
            operations: vec![operation],
        });
    }

    fn delete(&mut self, definition: &str, key: &str, now: &Versioned<Value>) {
        let operation = json!({
            "op": "delete_config", "config_definition_key": definition, "config_key": key,
            "if_match": now.revision.to_string(),
        });
        self.changes.push(Change {
            definition: definition.into(),
            key: key.into(),
            before: Some(config_json(definition, key, &now.value)),
            after: None,
            operations: vec![operation],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(indexes: &[&str], schema: Value, unique: &[&str]) -> Definition {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Definition {
            indexes: texts(indexes),
            schema: Some(schema),
            unique: texts(unique),
            format_assertion: None,
        }
    }

    fn planned(wanted: &Definition, now: &Definition) -> Plan {
        let mut plan = Plan::default();
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
        assert_eq!(plan.changes[0].operations, [expected]);
    }

    fn names(operations: &[Value]) -> Vec<&str> {
        operations.iter().map(|operation| operation["op"].as_str().unwrap()).collect()
    }

    #[test]
    fn the_first_change_of_a_definition_is_conditional_and_unique_paths_have_indexes_all_the_time() {
        let now = definition(&["a", "c"], json!({}), &["a"]);
        let plan = planned(&definition(&["a", "b", "c"], json!({}), &["a", "b"]), &now);
        assert_eq!((names(&plan.changes[0].operations), &plan.closing[..]), (vec!["set_indexes"], &[][..]));
        assert_eq!(plan.after[0].paths, ["a", "b"], "its index is built by another request");
        let plan = planned(&definition(&["a", "c"], json!({}), &["a", "c"]), &now);
        assert_eq!((plan.changes[0].operations.len(), plan.closing[0]["if_match"].clone()), (0, json!("7")));
        let plan = planned(&definition(&["c"], json!({}), &["c"]), &now);
        assert_eq!(names(&plan.changes[0].operations), ["set_unique", "set_indexes"]);
        assert_eq!(plan.changes[0].operations[0]["if_match"], "7");
        assert_eq!(plan.changes[0].operations[1].get("if_match"), None);
        assert_eq!((plan.closing[0]["paths"].clone(), plan.after.len()), (json!(["c"]), 0));
        let plan = planned(&definition(&["a", "c"], json!({}), &[]), &now);
        assert_eq!((names(&plan.changes[0].operations), plan.closing.len()), (vec!["set_unique"], 0));
    }

    #[test]
    fn a_schema_is_checked_at_the_end_where_configs_change_with_it() {
        let now = definition(&[], json!({}), &[]);
        let plan = || planned(&definition(&[], json!({"minProperties": 1}), &[]), &now);
        let data = Versioned { revision: 3, value: json!({}) };
        let mut created = plan();
        created.config("d", "k", &json!({"a": 1}), None);
        created.close_schemas();
        assert_eq!((created.changes[0].operations[0].get("policy"), created.closing.len()), (None, 0));
        let mut changed = plan();
        changed.config("d", "k", &json!({"a": 1}), Some(&data));
        changed.close_schemas();
        assert_eq!(changed.changes[0].operations[0]["policy"], "force");
        assert_eq!(names(&changed.closing), ["set_schema"]);
        assert_eq!((changed.closing[0].get("policy"), changed.closing[0].get("if_match")), (None, None));
        let divided = changed.divided();
        assert_eq!((divided.changes[0].operations[0].get("policy"), divided.closing.len()), (None, 0));
    }

    #[test]
    fn a_config_is_compared_by_its_digits_and_its_order() {
        let mut plan = Plan::default();
        let now = |text: &str| Versioned { revision: 3, value: serde_json::from_str(text).unwrap() };
        let wanted: Value = serde_json::from_str(r#"{"a": 7.0, "b": 1}"#).unwrap();
        plan.config("d", "k", &wanted, Some(&now(r#"{"a":7.0,"b":1}"#)));
        plan.config("d", "k", &wanted, Some(&now(r#"{"a":7,"b":1}"#)));
        plan.config("d", "k", &wanted, Some(&now(r#"{"b":1,"a":7.0}"#)));
        plan.config("d", "k", &wanted, None);
        assert_eq!((plan.unchanged, plan.changes.len()), (1, 3));
        assert_eq!(plan.changes[0].operations[0]["if_match"], "3");
        assert_eq!(plan.changes[2].operations[0]["op"], "create_config");
        let diff = plan.changes[0].diff();
        assert!(diff.contains("-  a: 7\n+  a: 7.0\n"), "{diff}");
    }
}
