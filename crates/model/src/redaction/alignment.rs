//! Finds the stored element that an element of written data is, so that a marker in a list keeps the value of its own
//! element.
//!
//! A position does not identify an element: a client that removes the first element of `[a, b]` writes `[b]`, and its
//! marker is that of `b`. So an element is recognized by what the client sees of it, which is all but the secret values:
//!
//! | written element | it is |
//! |---|---|
//! | has a token (a patch was applied to hidden data) | the element that the token names |
//! | looks like exactly one stored element, and no other written one does | that element |
//! | one of several that look alike, all of which are still there with all of their values kept | the one in the same order |
//! | the only other one with a marker, while only one stored element is left | that element, which was changed |
//! | anything else | unclear: rejected |
//!
//! **Invariant:** two written elements are the same stored element only if tokens say so.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{KEEP, at, pointer, source_of};
use crate::{error::LocSegment, schema::secret::SecretPlaces};

/// Why the stored place of a marker is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unaligned {
    /// There is no stored list here.
    NoList,
    /// The element may be one of several.
    Unclear,
    /// Comparing the elements costs more than is left.
    TooCostly,
}

/// Stored and written data, in which secret values look alike.
pub(super) struct Alignment {
    /// Each secret value is `null`.
    before: Value,
    /// Each secret value that is not a marker is `{"$concord-keep": false}`.
    written: Value,
    /// For each list of the written data that was compared, the stored index of each element.
    lists: BTreeMap<String, Vec<Option<usize>>>,
}

/// An element of a list.
#[derive(Default)]
struct ElementView {
    /// What a client sees of it, with members in alphabetical order.
    text: String,
    /// Whether a secret value below it is kept.
    has_marker: bool,
    /// Whether a secret value below it is written.
    has_value: bool,
    /// The place that a token below it names.
    token: Option<Vec<LocSegment>>,
}

impl Alignment {
    /// Compares stored data with written data. Their texts have so many bytes.
    pub(super) fn new(
        places: &SecretPlaces,
        before: &Value,
        before_bytes: usize,
        written: &Value,
        bytes: usize,
    ) -> Self {
        let (mut before, mut written) = (before.clone(), written.clone());
        places.visit_mut(&mut before, before_bytes, &mut |_, value| *value = Value::Null);
        places.visit_mut(&mut written, bytes, &mut |_, value| {
            if !is_marker(value) {
                *value = Value::Object(Map::from_iter([(KEEP.to_owned(), Value::Bool(false))]));
            }
        });
        Self { before, written, lists: BTreeMap::new() }
    }

    /// The stored place of the marker at a place of the written data.
    pub(super) fn source(
        &mut self,
        path: &[LocSegment],
        cost_left: &mut usize,
    ) -> Result<Vec<LocSegment>, Unaligned> {
        let mut source: Vec<LocSegment> = Vec::with_capacity(path.len());
        for (depth, segment) in path.iter().enumerate() {
            let LocSegment::Index(index) = segment else {
                source.push(segment.clone());
                continue;
            };
            let list = path.get(..depth).unwrap_or_default();
            let name = pointer(list);
            *cost_left = cost_left.checked_sub(name.len()).ok_or(Unaligned::TooCostly)?;
            if !self.lists.contains_key(&name) {
                let pairs = self.compare(&source, list, cost_left)?;
                self.lists.insert(name.clone(), pairs);
            }
            let pairs = self.lists.get(&name).map_or(&[][..], Vec::as_slice);
            let stored = usize::try_from(*index).ok().and_then(|index| *pairs.get(index)?);
            let stored = stored.and_then(|stored| u64::try_from(stored).ok()).ok_or(Unaligned::Unclear)?;
            source.push(LocSegment::Index(stored));
        }
        Ok(source)
    }

    /// The stored index of each element of the written list at `list`, which was the list at `stored`.
    fn compare(
        &self,
        stored: &[LocSegment],
        list: &[LocSegment],
        cost_left: &mut usize,
    ) -> Result<Vec<Option<usize>>, Unaligned> {
        let elements = |data, path| at(data, path).and_then(Value::as_array).ok_or(Unaligned::NoList);
        let mut view = |element: &Value| {
            let mut view = ElementView::default();
            view.add(element);
            *cost_left = cost_left.checked_sub(view.text.len()).ok_or(Unaligned::TooCostly)?;
            Ok(view)
        };
        let before =
            elements(&self.before, stored)?.iter().map(&mut view).collect::<Result<Vec<_>, Unaligned>>()?;
        let written =
            elements(&self.written, list)?.iter().map(&mut view).collect::<Result<Vec<_>, Unaligned>>()?;
        Ok(pairs(stored, &before, &written))
    }
}

/// The stored index of each written element, where it is clear.
fn pairs(list: &[LocSegment], before: &[ElementView], written: &[ElementView]) -> Vec<Option<usize>> {
    let mut found: Vec<Option<usize>> = written.iter().map(|view| view.token_in(list)).collect();
    let mut is_left = vec![true; before.len()];
    let use_up = |is_left: &mut Vec<bool>, stored: usize| {
        if let Some(left) = is_left.get_mut(stored) {
            *left = false;
        }
    };
    found.iter().flatten().for_each(|stored| use_up(&mut is_left, *stored));
    let mut alike: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (stored, view) in before.iter().enumerate().filter(|(stored, _)| is_left.get(*stored) == Some(&true))
    {
        alike.entry(&view.text).or_default().0.push(stored);
    }
    for (index, (view, _)) in written.iter().zip(&found).enumerate().filter(|(_, (_, found))| found.is_none())
    {
        alike.entry(&view.text).or_default().1.push(index);
    }
    for (stored, indexes) in alike.into_values() {
        let keeps_all = |index: &usize| written.get(*index).is_some_and(|view| !view.has_value);
        if stored.len() != indexes.len() || (stored.len() > 1 && !indexes.iter().all(keeps_all)) {
            continue;
        }
        for (stored, index) in stored.into_iter().zip(indexes) {
            use_up(&mut is_left, stored);
            if let Some(found) = found.get_mut(index) {
                *found = Some(stored);
            }
        }
    }
    let mut stored_left = (0..).zip(&is_left).filter(|(_, is_left)| **is_left).map(|(stored, _)| stored);
    let mut open = found.iter_mut().zip(written).filter(|(found, view)| found.is_none() && view.has_marker);
    if let (Some(stored), None, Some((changed, _)), None) =
        (stored_left.next(), stored_left.next(), open.next(), open.next())
    {
        *changed = Some(stored);
    }
    found
}

impl ElementView {
    fn add(&mut self, value: &Value) {
        match value {
            Value::Object(members) => match members.get(KEEP) {
                Some(kept) => self.add_secret(kept),
                None => self.add_members(members),
            },
            Value::Array(elements) => {
                self.text.push('[');
                for element in elements {
                    self.add(element);
                    self.text.push(',');
                }
                self.text.push(']');
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                self.text.push_str(&value.to_string());
            }
        }
    }

    fn add_members(&mut self, members: &Map<String, Value>) {
        let mut members: Vec<(&String, &Value)> = members.iter().collect();
        members.sort_unstable_by_key(|(name, _)| *name);
        self.text.push('{');
        for (name, member) in members {
            self.text.push_str(&Value::from(name.as_str()).to_string());
            self.text.push(':');
            self.add(member);
            self.text.push(',');
        }
        self.text.push('}');
    }

    /// Adds what is kept or written in a secret field, which looks as it does in the stored data.
    fn add_secret(&mut self, kept: &Value) {
        self.text.push_str("null");
        if kept == &Value::Bool(false) {
            self.has_value = true;
            return;
        }
        self.has_marker = true;
        if let (None, Value::Array(segments)) = (&self.token, kept) {
            self.token = source_of(segments);
        }
    }

    /// The index in the stored list that a token names.
    fn token_in(&self, list: &[LocSegment]) -> Option<usize> {
        match self.token.as_ref()?.strip_prefix(list)?.first()? {
            LocSegment::Index(index) => usize::try_from(*index).ok(),
            LocSegment::Name(_) => None,
        }
    }
}

fn is_marker(value: &Value) -> bool {
    value.as_object().is_some_and(|members| members.contains_key(KEEP))
}
