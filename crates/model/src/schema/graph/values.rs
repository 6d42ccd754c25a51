//! Every value of a document by its address, so that the target of a reference is found among them and can be located.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::LocSegment;

/// Every value of the document by its address, with its container's address and the segment that leads from there.
#[derive(Debug, Default)]
pub(super) struct Values<'s>(pub(super) BTreeMap<usize, (usize, LocSegment, &'s Value)>);

impl<'s> Values<'s> {
    pub(super) fn of(schema: &'s Value) -> Self {
        let mut values = Self::default();
        values.0.insert(address(schema), (0, LocSegment::Index(0), schema));
        let mut queue = vec![schema];
        while let Some(value) = queue.pop() {
            let container = address(value);
            let mut add = |child: &'s Value, segment| {
                values.0.insert(address(child), (container, segment, child));
                queue.push(child);
            };
            match value {
                Value::Object(map) => {
                    for (name, child) in map {
                        add(child, name.as_str().into());
                    }
                }
                Value::Array(items) => {
                    for (child, index) in items.iter().zip(0..) {
                        add(child, LocSegment::Index(index));
                    }
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        values
    }

    /// The document's value at the same address, when there is one and it may be a schema.
    pub(super) fn find(&self, value: &Value) -> Option<&'s Value> {
        let found = self.0.get(&address(value)).map(|(.., found)| *found);
        found.filter(|found| found.is_object() || found.is_boolean())
    }

    pub(super) fn loc(&self, address: usize) -> Vec<LocSegment> {
        let mut loc = Vec::new();
        let mut at = address;
        // The root has no container: address 0.
        while let Some((container, segment, _)) = self.0.get(&at).filter(|(container, ..)| *container != 0) {
            loc.push(segment.clone());
            at = *container;
        }
        loc.reverse();
        loc
    }
}

/// Identifies a value: the document is borrowed for as long as the graph lives, so addresses are stable.
#[must_use]
pub fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}
