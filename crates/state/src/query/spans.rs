//! The bounds of the values that a filter accepts, by which they are looked up in an index.
//!
//! **Invariant:** a record that a filter finds has a value within them.

use std::ops::Bound;

use super::STRING_TAG;
use concord_model::{
    index::TOO_MANY,
    query::{Field, Filter, Test, Within},
};

pub(super) type Span = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of the values that a filter accepts; `None` when they have no bounds.
pub(super) fn spans(filter: &Filter) -> Option<Vec<Span>> {
    let mut spans = spans_of_values(filter)?;
    // What has more values than are indexed is among the candidates of every test.
    spans.extend(filter.within.iter().map(|_| only(TOO_MANY)));
    Some(spans)
}

pub(super) fn only(value: &[u8]) -> Span {
    (Bound::Included(value.to_vec()), Bound::Included(value.to_vec()))
}

pub(super) fn is_one_value((from, to): &Span) -> bool {
    matches!((from, to), (Bound::Included(from), Bound::Included(to)) if from == to)
}

fn spans_of_values(filter: &Filter) -> Option<Vec<Span>> {
    let owned = |bound: &Bound<Box<[u8]>>| bound.as_ref().map(|bytes| bytes.to_vec());
    Some(match &filter.test {
        Test::AnyOf(values) => values.iter().map(|value| only(value)).collect(),
        Test::Ranges(ranges) => ranges.iter().map(|(from, to)| (owned(from), owned(to))).collect(),
        Test::Prefix(text) => {
            let tag = if matches!(filter.field, Field::Slot(_)) { STRING_TAG } else { &[] };
            let from = [tag, text.as_bytes()].concat();
            // No UTF-8 text contains this byte, so this bound is above all texts with the prefix.
            let to = [&from[..], &[0xFF]].concat();
            vec![(Bound::Included(from), Bound::Excluded(to))]
        }
        // An empty array has a value and no entry.
        Test::Exists(true) if matches!(filter.field, Field::Slot(_)) && filter.empty_array_at.is_none() => {
            match &filter.within {
                None => vec![(Bound::Unbounded, Bound::Unbounded)],
                // No value begins with this byte.
                Some(Within { prefix, .. }) => {
                    vec![(Bound::Included(prefix.to_vec()), Bound::Excluded([&prefix[..], &[0xFF]].concat()))]
                }
            }
        }
        Test::Exists(_) | Test::NoneOf(_) => return None,
    })
}
