//! Secret values in data: hidden from a client without the permission `reveal`, and kept when such a client writes the
//! rest.
//!
//! A redacted value is `null`, and the response names its place. A client that sends `{"$concord-keep": true}` at the
//! place of a secret value leaves it as it is: [`resolve`] puts the stored value there. In a list it keeps the value of
//! its own element, wherever that was (`alignment`). Elsewhere that member has no meaning and is rejected: a marker that was stored as data would have replaced the value that it was meant to keep.
//!
//! A patch of a client without `reveal` is applied to data in which each is hidden behind a token, a marker that names
//! the place of its value ([`hide`]). So no `test` compares a value and no `copy` moves one to an open place: a token
//! is resolved only at a secret field with the same names on the way to it. Elements of an array may have moved.
//!
//! Such a client can't write `null` at a secret field ([`check_nulls`]): that is what they were shown. A client that
//! reads, changes and writes back a record would destroy the value.
//!
//! **Invariants:** everything here follows from the arguments alone. A stored value never gets to a place that is not
//! secret, and never to another element because of a position.

mod alignment;

use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value};

use super::{
    error::{LocSegment, Violation},
    limits::REDACTED_PLACES_BYTES_MAX,
    patch,
    schema::secret::SecretPlaces,
};
use alignment::{Alignment, Unaligned};

/// The only member of a marker that keeps a secret value.
pub const KEEP: &str = "$concord-keep";

/// What a JSON pointer in a fragment (RFC 6901, 6) may not contain, and what separates two of them in a header.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b',')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The places of redacted values, each once, as JSON pointers from the root of `data`; in all at most
/// [`REDACTED_PLACES_BYTES_MAX`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedactedPlaces {
    pointers: BTreeSet<String>,
    bytes: usize,
    is_cut: bool,
}

impl RedactedPlaces {
    /// The whole of the data.
    #[must_use]
    pub fn whole() -> Self {
        let mut places = Self::default();
        places.add(&[]);
        places
    }

    /// Whether nothing was redacted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty() && !self.is_cut
    }

    /// Adds a place.
    pub fn add(&mut self, path: &[LocSegment]) {
        if !self.is_cut {
            self.add_text(pointer(path));
        }
    }

    /// Adds the places of another part of the answer.
    pub fn extend(&mut self, more: Self) {
        self.is_cut |= more.is_cut;
        for pointer in more.pointers {
            self.add_text(pointer);
        }
    }

    fn add_text(&mut self, pointer: String) {
        let bytes = self.bytes + pointer.len() + 2;
        if self.pointers.contains(&pointer) {
            return;
        }
        if bytes > REDACTED_PLACES_BYTES_MAX {
            self.is_cut = true;
            return;
        }
        self.bytes = bytes;
        self.pointers.insert(pointer);
    }

    /// The places on one of the paths, below it or above it.
    #[must_use]
    pub fn on(&self, paths: &[Vec<LocSegment>]) -> Self {
        let asked: Vec<String> = paths.iter().map(|path| pointer(path)).collect();
        let is_below = |one: &str, other: &str| {
            one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_asked = |place: &str| asked.iter().any(|path| is_below(place, path) || is_below(path, place));
        let mut kept = Self { is_cut: self.is_cut, ..Self::default() };
        for place in self.pointers.iter().filter(|place| is_asked(place)) {
            kept.bytes += place.len() + 2;
            kept.pointers.insert(place.clone());
        }
        kept
    }

    /// The places, and `...` last where there are more.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let cut = self.is_cut.then_some("...");
        self.pointers.iter().map(String::as_str).chain(cut)
    }
}

/// A path as a JSON pointer in the form of a URI fragment: visible ASCII without commas.
fn pointer(path: &[LocSegment]) -> String {
    let mut text = String::from("#");
    for segment in path {
        text.push('/');
        match segment {
            LocSegment::Name(name) => {
                let name = name.replace('~', "~0").replace('/', "~1");
                text.extend(utf8_percent_encode(&name, ENCODED));
            }
            LocSegment::Index(index) => text.push_str(&index.to_string()),
        }
    }
    text
}

/// Data as a client without `reveal` sees them: as text, with the places that were redacted. `None` when there is
/// nothing to redact.
#[must_use]
pub fn redacted(places: &SecretPlaces, text: &str) -> Option<(String, RedactedPlaces)> {
    let Ok(mut data) = serde_json::from_str::<Value>(text) else {
        // Stored data were parsed when they were written.
        return Some(("null".into(), RedactedPlaces::whole()));
    };
    let mut redacted = RedactedPlaces::default();
    let mut found_any = false;
    places.visit_mut(&mut data, text.len(), &mut |path, value| {
        found_any = true;
        redacted.add(path);
        *value = Value::Null;
    });
    found_any.then(|| (data.to_string(), redacted))
}

/// Rejects data, or a merge patch, with `null` at a secret field. `bytes` is the length of its text.
///
/// # Errors
/// When there is one, with its location.
pub fn check_nulls(places: &SecretPlaces, data: &Value, bytes: usize) -> Result<(), Violation> {
    let mut first = None;
    places.visit(data, bytes, &mut |path, value| {
        if value.is_null() && first.is_none() {
            first = Some(path.to_vec());
        }
    });
    let msg = "the value here is secret and was shown to you as `null`: send `{\"$concord-keep\": true}` to leave \
               it as it is, or another value; `null` itself takes the right to `reveal`";
    first.map_or(Ok(()), |loc| Err(Violation::at(loc, msg)))
}

/// Puts a token in place of each secret value of stored data.
///
/// # Errors
/// When the places of the values, which the tokens name, take too much.
pub fn hide(places: &SecretPlaces, data: &mut Value, bytes: usize) -> Result<(), ResolveError> {
    let mut left = Some(MARKED_PATHS_BYTES_MAX);
    places.visit_mut(data, bytes, &mut |path, value| {
        left = left.and_then(|left| left.checked_sub(path_bytes(path)));
        *value = if left.is_some() { token(path) } else { Value::Null };
    });
    left.map(drop).ok_or_else(too_many_places)
}

/// The most bytes of the places of secret values, or of markers, that one write looks at.
const MARKED_PATHS_BYTES_MAX: usize = 32 << 20;

fn path_bytes(path: &[LocSegment]) -> usize {
    let bytes = |segment: &LocSegment| match segment {
        LocSegment::Name(name) => size_of::<LocSegment>() + name.len(),
        LocSegment::Index(_) => size_of::<LocSegment>(),
    };
    path.iter().map(bytes).sum()
}

fn too_many_places() -> ResolveError {
    let msg = "the paths of the secret values are too long in total";
    ResolveError::TooCostly(Violation::at(Vec::new(), msg))
}

/// What the markers of data are resolved with.
#[derive(Debug)]
pub struct MarkerSource<'a> {
    /// The stored data; `None` for a config that does not exist.
    pub before: Option<&'a Value>,
    /// The length of their text.
    pub before_bytes: usize,
    /// Whether the data were made from hidden ones, so that there may be tokens among the markers.
    pub is_hidden: bool,
    /// What the values that are kept, and the elements of lists that are compared, may take together; what they take is
    /// subtracted.
    pub cost_left: &'a mut usize,
}

/// What a value counts whose length must stay unknown: the next power of two, and all short values the same. A limit
/// that counted it exactly would tell its length to a client that fills the rest of the data.
fn rounded(bytes: usize) -> usize {
    bytes.next_power_of_two().max(KEPT_BYTES_MIN)
}

/// Longer than passwords and most tokens.
const KEPT_BYTES_MIN: usize = 256;

/// Puts the stored values in place of the markers and tokens of `data`, whose text has so many bytes. Returns how many
/// bytes the values count beyond their own, for a client that must not learn their lengths: each counts as the next
/// power of two, and at least 256.
///
/// # Errors
/// When a marker or a token is not at a secret field, has no value, or more is copied than `cost_left` allows.
pub fn resolve(
    places: &SecretPlaces,
    data: &mut Value,
    bytes: usize,
    mut stored: MarkerSource<'_>,
) -> Result<usize, ResolveError> {
    let mut markers = Vec::new();
    let mut left = MARKED_PATHS_BYTES_MAX;
    find_markers(data, &mut Vec::new(), &mut markers, &mut left).ok_or_else(too_many_places)?;
    if markers.is_empty() {
        return Ok(0);
    }
    let is_in_list = |marker: &Vec<LocSegment>| {
        marker.iter().any(|segment| matches!(segment, LocSegment::Index(_)))
            && at(data, marker).and_then(|value| value.get(KEEP)) == Some(&Value::Bool(true))
    };
    let before = stored.before.filter(|_| markers.iter().any(is_in_list));
    let mut lists = before.map(|before| Alignment::new(places, before, stored.before_bytes, data, bytes));
    // Both walks meet the values in the same order.
    let (mut next, mut error, mut beyond) = (0, None, 0_usize);
    places.visit_mut(data, bytes, &mut |path, value| {
        if error.is_some() || markers.get(next).is_none_or(|marker| !marker.starts_with(path)) {
            return;
        }
        match resolved(path, value, &mut stored, lists.as_mut()) {
            Ok(kept) => {
                let bytes = kept.to_string().len();
                beyond = beyond.saturating_add(rounded(bytes).saturating_sub(bytes));
                *value = kept;
                next += 1;
            }
            Err(wrong) => error = Some(wrong),
        }
    });
    if let Some(error) = error {
        return Err(error);
    }
    match markers.get(next) {
        None => Ok(beyond),
        Some(path) => {
            let msg = "`$concord-keep` keeps a secret value, but this field is not secret";
            Err(ResolveError::Violation(Violation::at(path.clone(), msg)))
        }
    }
}

/// Whether a text may contain a marker. Texts of documents have no escapes that they do not need.
#[must_use]
pub fn may_keep(text: &str) -> bool {
    text.contains(KEEP)
}

/// Why markers can't be resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolveError {
    /// A marker is wrong.
    Violation(Violation),
    /// More would be copied than it may cost.
    TooCostly(Violation),
}

/// The stored value for what is at a secret field, which begins with a marker.
fn resolved(
    path: &[LocSegment],
    value: &Value,
    stored: &mut MarkerSource<'_>,
    lists: Option<&mut Alignment>,
) -> Result<Value, ResolveError> {
    let wrong = |msg: &str| ResolveError::Violation(Violation::at(path.to_vec(), msg));
    let marker = value.as_object().filter(|members| members.len() == 1).and_then(|members| members.get(KEEP));
    let source = match marker {
        Some(Value::Bool(true)) => match lists {
            None => path.to_vec(),
            Some(lists) => {
                lists.source(path, stored.cost_left).map_err(|unaligned| unclear(path, unaligned))?
            }
        },
        Some(Value::Array(segments)) if stored.is_hidden => {
            source_of(segments).ok_or_else(|| wrong(NOT_WHOLE))?
        }
        Some(_) | None => return Err(wrong(NOT_WHOLE)),
    };
    if !is_same_shape(&source, path) {
        return Err(wrong("without the permission `reveal`, a secret value can't move to another path"));
    }
    let before = stored.before.ok_or_else(|| wrong("there is no value to keep: the config is new"))?;
    let kept = at(before, &source).ok_or_else(|| wrong(NOTHING_TO_KEEP))?;
    match stored.cost_left.checked_sub(rounded(patch::size(kept))) {
        Some(left) => *stored.cost_left = left,
        None => {
            let msg = "the secret values to keep are too large in total";
            return Err(ResolveError::TooCostly(Violation::at(path.to_vec(), msg)));
        }
    }
    Ok(kept.clone())
}

fn unclear(path: &[LocSegment], unaligned: Unaligned) -> ResolveError {
    let violation = |msg: &str| Violation::at(path.to_vec(), msg);
    match unaligned {
        Unaligned::NoList => ResolveError::Violation(violation(NOTHING_TO_KEEP)),
        Unaligned::Unclear => ResolveError::Violation(violation(
            "it is unclear which element of the stored list this is, and so which secret value to keep: change the list \
             in several steps, or send a JSON Patch, which names the elements that it changes",
        )),
        Unaligned::TooCostly => ResolveError::TooCostly(violation(
            "the lists with secret values to keep are too large in total to be compared",
        )),
    }
}

const NOTHING_TO_KEEP: &str = "there is no value to keep here";
const NOT_WHOLE: &str = "a secret value is kept as a whole by exactly `{\"$concord-keep\": true}` at its place, or replaced as a whole";

/// The paths of all objects with the member of a marker, in the order of the data; `None` when they take more than is
/// left.
fn find_markers(
    value: &Value,
    path: &mut Vec<LocSegment>,
    found: &mut Vec<Vec<LocSegment>>,
    left: &mut usize,
) -> Option<()> {
    match value {
        Value::Object(members) => {
            if members.contains_key(KEEP) {
                *left = left.checked_sub(path_bytes(path))?;
                found.push(path.clone());
                return Some(());
            }
            for (name, member) in members {
                path.push(name.as_str().into());
                find_markers(member, path, found, left)?;
                path.pop();
            }
        }
        Value::Array(elements) => {
            for (index, element) in (0..).zip(elements) {
                path.push(LocSegment::Index(index));
                find_markers(element, path, found, left)?;
                path.pop();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Some(())
}

/// The marker of a value that was hidden.
fn token(path: &[LocSegment]) -> Value {
    let segment = |segment: &LocSegment| match segment {
        LocSegment::Name(name) => Value::from(name.as_str()),
        LocSegment::Index(index) => Value::from(*index),
    };
    Value::Object(Map::from_iter([(KEEP.to_owned(), path.iter().map(segment).collect())]))
}

fn source_of(segments: &[Value]) -> Option<Vec<LocSegment>> {
    let segment = |segment: &Value| match segment {
        Value::String(name) => Some(LocSegment::from(name.as_str())),
        Value::Number(index) => index.as_u64().map(LocSegment::Index),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    segments.iter().map(segment).collect()
}

/// Whether two paths differ in the indexes of elements only.
fn is_same_shape(one: &[LocSegment], other: &[LocSegment]) -> bool {
    let is_same = |pair: (&LocSegment, &LocSegment)| match pair {
        (LocSegment::Name(one), LocSegment::Name(other)) => one == other,
        (LocSegment::Index(_), LocSegment::Index(_)) => true,
        (LocSegment::Name(_), LocSegment::Index(_)) | (LocSegment::Index(_), LocSegment::Name(_)) => false,
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}

/// The value at a path.
fn at<'v>(data: &'v Value, path: &[LocSegment]) -> Option<&'v Value> {
    path.iter().try_fold(data, |value, segment| match segment {
        LocSegment::Name(name) => value.as_object()?.get(name),
        LocSegment::Index(index) => value.as_array()?.get(usize::try_from(*index).ok()?),
    })
}

#[cfg(test)]
mod tests;
