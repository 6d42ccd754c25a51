//! Hides secret values where changes are shown: in a terminal, in the log of a pipeline, in a pull request.
//!
//! **Invariant:** a value at a place that a schema of the cluster or of the files marks as secret is never shown. Whether
//! it changes is said only if both values are known.

use std::{collections::BTreeMap, sync::Arc};

use concord_model::{
    error::LocSegment,
    redaction,
    schema::{Formats, Schema},
};
use serde_json::{Value, json};

use super::document::is_same;

/// The schemas that say what is secret, by definition.
#[derive(Debug, Default)]
pub(super) struct Mask(BTreeMap<String, Vec<Compiled>>);

/// A schema; `None` if it does not compile, so that nobody knows what it would mark.
type Compiled = Option<Arc<Schema>>;

impl Mask {
    /// Whether it has a schema of a definition.
    pub(super) fn has(&self, definition: &str) -> bool {
        self.0.contains_key(definition)
    }

    /// Adds a schema of a definition.
    pub(super) fn add(&mut self, definition: &str, schema: Option<&Value>) {
        let Some(schema) = schema.filter(|schema| !schema.is_null()) else { return };
        let compiled = Schema::compile(schema, Formats::default()).ok().map(Arc::new);
        self.0.entry(definition.to_owned()).or_default().push(compiled);
    }

    /// Adds the schemas of definitions that have other names here.
    pub(super) fn add_renamed(&mut self, others: &Self, rename: impl Fn(&str) -> String) {
        for (definition, schemas) in &others.0 {
            self.0.entry(rename(definition)).or_default().extend(schemas.iter().cloned());
        }
    }

    /// Whether applying `wanted` leaves `now` as it is, because what differs are markers that keep secret values.
    pub(super) fn keeps(&self, definition: &str, now: &Value, wanted: &Value) -> bool {
        if !redaction::may_keep(&wanted.to_string()) {
            return false;
        }
        let schemas = self.0.get(definition).map(Vec::as_slice).unwrap_or_default();
        let (mut kept, keep) = (now.clone(), json!({ "$concord-keep": true }));
        for place in places(schemas, now) {
            if wanted.pointer(&place) == Some(&keep) {
                kept.pointer_mut(&place).into_iter().for_each(|value| value.clone_from(&keep));
            }
        }
        is_same(&kept, wanted)
    }

    /// The places of data that are secret, as JSON pointers, outer ones before those in them.
    pub(super) fn places(&self, definition: &str, data: &Value) -> Vec<String> {
        places(self.0.get(definition).map(Vec::as_slice).unwrap_or_default(), data)
    }

    /// Hides the secret values of a config's data before and after a change.
    pub(super) fn hide(&self, definition: &str, before: Option<&mut Value>, after: Option<&mut Value>) {
        let schemas = self.0.get(definition).map(Vec::as_slice).unwrap_or_default();
        let (mut none, mut nothing) = (Value::Null, Value::Null);
        let (had, has) = (before.is_some(), after.is_some());
        let (before, after) = (before.unwrap_or(&mut none), after.unwrap_or(&mut nothing));
        let (old, new) = (places(schemas, before), places(schemas, after));
        let texts: Vec<&str> = new
            .iter()
            .map(|place| told(before.pointer(place).filter(|_| had), after.pointer(place).filter(|_| has)))
            .collect();
        for place in &old {
            before.pointer_mut(place).into_iter().for_each(|value| *value = HIDDEN.into());
        }
        for (place, text) in new.iter().zip(texts) {
            after.pointer_mut(place).into_iter().for_each(|value| *value = text.into());
        }
    }
}

/// What is shown in place of a secret value.
pub(super) const HIDDEN: &str = "(secret)";

/// What is shown in place of a new value.
fn told(before: Option<&Value>, after: Option<&Value>) -> &'static str {
    let keep = json!({ "$concord-keep": true });
    match (before, after) {
        (_, Some(after)) if *after == keep => HIDDEN,
        (Some(before), Some(after)) if before == after => HIDDEN,
        // The access key may not read the stored value.
        (Some(before), _) if *before == keep => "(secret, may have changed)",
        (Some(_), _) => "(secret, changed)",
        (None, _) => HIDDEN,
    }
}

/// The secret fields of data as JSON pointers, outer ones before those in them.
fn places(schemas: &[Compiled], data: &Value) -> Vec<String> {
    let bytes = data.to_string().len();
    let mut found = Vec::new();
    for schema in schemas {
        match schema {
            None => found.push(String::new()),
            Some(schema) => {
                if let Some(secrets) = schema.secrets() {
                    secrets.visit(data, bytes, &mut |path, _| found.push(pointer(path)));
                }
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A place as a JSON pointer.
pub(super) fn pointer(path: &[LocSegment]) -> String {
    path.iter()
        .map(|segment| match segment {
            LocSegment::Name(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            LocSegment::Index(index) => format!("/{index}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(
        schemas: &[Value],
        before: Option<Value>,
        after: Option<Value>,
    ) -> (Option<Value>, Option<Value>) {
        let mut mask = Mask::default();
        schemas.iter().for_each(|schema| mask.add("d", Some(schema)));
        let (mut before, mut after) = (before, after);
        mask.hide("d", before.as_mut(), after.as_mut());
        (before, after)
    }

    #[test]
    fn secret_values_are_hidden_on_both_sides() {
        let schema = json!({"properties": {"password": {"type": "string", "x-concord-secret": true}}});
        let data = |password: Value| json!({"host": "h", "password": password});
        let (old, same) = (data(json!("old")), data(json!("old")));
        let hidden = data(json!("(secret)"));
        assert_eq!(
            masked(std::slice::from_ref(&schema), Some(old.clone()), Some(data(json!("new")))),
            (Some(hidden.clone()), Some(data(json!("(secret, changed)"))))
        );
        assert_eq!(
            masked(std::slice::from_ref(&schema), Some(old.clone()), Some(same)),
            (Some(hidden.clone()), Some(hidden.clone()))
        );
        let keep = data(json!({"$concord-keep": true}));
        assert_eq!(
            masked(std::slice::from_ref(&schema), Some(keep.clone()), Some(data(json!("new")))).1,
            Some(data(json!("(secret, may have changed)")))
        );
        assert_eq!(
            masked(std::slice::from_ref(&schema), Some(old.clone()), Some(keep)).1,
            Some(hidden.clone())
        );
        assert_eq!(
            masked(std::slice::from_ref(&schema), None, Some(old.clone())),
            (None, Some(hidden.clone()))
        );
        // A schema that the files add, and one that does not compile.
        let open = json!({"type": "object"});
        assert_eq!(masked(&[open.clone(), schema], Some(old.clone()), None), (Some(hidden), None));
        assert_eq!(masked(&[open], Some(old.clone()), None).0, Some(old.clone()));
        assert_eq!(masked(&[json!({"type": "nothing"})], Some(old), None).0, Some(json!("(secret)")));
    }
}
