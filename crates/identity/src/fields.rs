//! The members of a document that people write, and every problem that they have.
//!
//! A reader goes on after a problem, so that one answer names all of them. `None` stands for a value that is wrong: its
//! problem has been added.
//!
//! **Invariant:** a document with a problem is never used: [`finish`] gives the value only if there is none.

use std::ops::RangeInclusive;

use concord_model::{
    error::{LocSegment, Violation},
    limits::VIOLATIONS_MAX,
    unseen::is_unseen,
};
use serde_json::{Map, Value};

use crate::json::shown;

/// The members of an object.
pub(crate) type Members = Map<String, Value>;

/// The problems that were found so far, and the place that is read.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    path: Vec<LocSegment>,
    found: Vec<Violation>,
}

/// The value that a reader has made.
///
/// # Errors
/// All problems, if there is any.
pub(crate) fn finish<T>(read: impl FnOnce(&mut Problems) -> Option<T>) -> Result<T, Vec<Violation>> {
    let mut problems = Problems::default();
    let made = read(&mut problems);
    if let (Some(made), true) = (made, problems.found.is_empty()) { Ok(made) } else { Err(problems.found) }
}

impl Problems {
    /// Adds a problem of the place that is read.
    pub(crate) fn add(&mut self, msg: impl Into<String>) {
        if self.found.len() < VIOLATIONS_MAX {
            self.found.push(Violation::at(self.path.clone(), msg));
        }
    }

    /// Adds a problem, as a reader does that can't make its value.
    pub(crate) fn none<T>(&mut self, msg: impl Into<String>) -> Option<T> {
        self.add(msg);
        None
    }

    /// Adds a problem of a member of the place that is read.
    pub(crate) fn add_in(&mut self, name: &str, msg: impl Into<String>) {
        self.within(LocSegment::Name(name.to_owned()), |problems| problems.add(msg));
    }

    /// Runs a reader at a member or an element.
    pub(crate) fn within<T>(&mut self, segment: LocSegment, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(segment);
        let made = read(self);
        self.path.pop();
        made
    }

    /// The object that a value is; its members are among these.
    pub(crate) fn object<'v>(&mut self, value: &'v Value, known: &[&str]) -> Option<&'v Members> {
        let Value::Object(members) = value else { return self.none("expected an object") };
        for name in members.keys().filter(|name| !known.contains(&name.as_str())) {
            self.within(LocSegment::Name(shown(name)), |problems| {
                problems.add(format!("unknown member; expected one of `{}`", known.join("`, `")));
            });
        }
        Some(members)
    }

    /// A member, if it is there.
    pub(crate) fn optional<'v, T>(
        &mut self,
        members: &'v Members,
        name: &str,
        read: impl FnOnce(&'v Value, &mut Self) -> Option<T>,
    ) -> Option<T> {
        let value = members.get(name)?;
        self.within(LocSegment::Name(name.to_owned()), |problems| read(value, problems))
    }

    /// A member that must be there.
    pub(crate) fn required<'v, T>(
        &mut self,
        members: &'v Members,
        name: &str,
        read: impl FnOnce(&'v Value, &mut Self) -> Option<T>,
    ) -> Option<T> {
        if !members.contains_key(name) {
            self.add_in(name, "missing");
        }
        self.optional(members, name, read)
    }

    /// The elements of a list that has so many. Wrong ones are left out.
    pub(crate) fn list<'v, T>(
        &mut self,
        value: &'v Value,
        length: RangeInclusive<usize>,
        mut read: impl FnMut(&'v Value, &mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let Value::Array(items) = value else { return self.none("expected a list") };
        if !length.contains(&items.len()) {
            return self.none(format!("expected a list of {} to {} elements", length.start(), length.end()));
        }
        let mut made = Vec::new();
        for (place, item) in (0..).zip(items) {
            made.extend(self.within(LocSegment::Index(place), |problems| read(item, problems)));
        }
        Some(made)
    }

    /// The members of an object whose names the writer chooses.
    pub(crate) fn named<'v, T>(
        &mut self,
        value: &'v Value,
        length: RangeInclusive<usize>,
        mut read: impl FnMut(&'v str, &'v Value, &mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let Value::Object(members) = value else { return self.none("expected an object") };
        if !length.contains(&members.len()) {
            let (least, most) = (length.start(), length.end());
            return self.none(format!("expected an object of {least} to {most} members"));
        }
        let mut made = Vec::new();
        for (name, value) in members {
            let segment = LocSegment::Name(shown(name));
            made.extend(self.within(segment, |problems| read(name, value, problems)));
        }
        Some(made)
    }

    /// A string of 1 to so many bytes, without characters that a reader does not see.
    pub(crate) fn text<'v>(&mut self, value: &'v Value, bytes_max: usize) -> Option<&'v str> {
        let text = value.as_str().filter(|text| (1..=bytes_max).contains(&text.len()));
        match text.filter(|text| !text.contains(is_unseen)) {
            Some(text) => Some(text),
            None => {
                self.none(format!("expected a string of 1 to {bytes_max} bytes without unseen characters"))
            }
        }
    }

    /// An integer in a range.
    pub(crate) fn integer(&mut self, value: &Value, range: RangeInclusive<u64>) -> Option<u64> {
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => self.none(format!("expected an integer from {} to {}", range.start(), range.end())),
        }
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, value: &Value) -> Option<bool> {
        match value.as_bool() {
            Some(boolean) => Some(boolean),
            None => self.none("expected `true` or `false`"),
        }
    }
}
