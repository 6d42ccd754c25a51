//! The size of data as the cost of a check counts it: values, numbers whose comparison is expensive, texts.
//!
//! **Invariant:** measuring takes a time in proportion to the data.

use serde_json::{Number, Value};

/// Positions of a pattern that are followed at a byte of a text, for one evaluation.
const POSITIONS_PER_EVALUATION: u64 = 16;

/// The total size of the data: of all values, of the numbers, and of the texts.
#[derive(Default)]
pub(super) struct DataSize {
    pub(super) plain: u64,
    pub(super) numeric: u64,
    /// Bytes of texts and of the names of members.
    pub(super) text: u64,
}

/// The size of the data, and their depth.
pub(super) fn measure(data: &Value) -> (DataSize, usize) {
    let inner = |(sum, depth): (DataSize, usize), value: &Value| {
        let (more, deeper) = measure(value);
        let sum = DataSize {
            plain: sum.plain.saturating_add(more.plain),
            numeric: sum.numeric.saturating_add(more.numeric),
            text: sum.text.saturating_add(more.text),
        };
        (sum, depth.max(deeper))
    };
    let (mut size, depth) = match data {
        Value::Array(items) => items.iter().fold((DataSize::default(), 0), inner),
        Value::Object(map) => {
            let (mut size, depth) = map.values().fold((DataSize::default(), 0), inner);
            size.text = size.text.saturating_add(map.keys().map(|name| name.len() as u64).sum());
            (size, depth)
        }
        Value::Number(number) => (DataSize { numeric: arithmetic(number), ..DataSize::default() }, 0),
        Value::String(text) => (DataSize { text: text.len() as u64, ..DataSize::default() }, 0),
        Value::Null | Value::Bool(_) => (DataSize::default(), 0),
    };
    size.plain = size.plain.saturating_add(size_of(data));
    (size, depth + 1)
}

/// The cost of evaluating this value alone, relative to an ordinary one.
pub(super) fn size_of(data: &Value) -> u64 {
    match data {
        Value::String(text) => 1 + text.len() as u64 / 256,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => 1,
    }
}

/// The cost of a comparison with this number, in evaluations. Beyond a double the arithmetic uses fractions, and its
/// cost grows with the square of the expanded digits; beyond ten thousand digits the validator uses the text.
pub(super) fn arithmetic(number: &Number) -> u64 {
    let text = number.as_str();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent = exponent.trim_start_matches(['+', '-']).parse().unwrap_or(10_000_u64);
    let digits = (mantissa.len() as u64).saturating_add(exponent).min(10_000);
    if digits <= 20 { 1 } else { 4 * digits + digits * digits / 64 }
}

/// The cost of dividing by this number, beyond that of comparing with it: where the validator would use the text, it is
/// still expanded.
pub(super) fn divisor(value: &Value) -> u64 {
    let mantissa = |number: &Number| number.as_str().split(['e', 'E']).next().map_or(0, str::len) as u64;
    let digits = value.as_number().map_or(0, mantissa);
    if digits <= 10_000 { 0 } else { digits.saturating_mul(digits) / 64 }
}

/// The cost of comparing an ordinary number with all numbers of a keyword's value; a longer number multiplies it.
pub(super) fn numbers(value: &Value) -> u64 {
    match value {
        Value::Number(number) => arithmetic(number),
        Value::Array(items) => items.iter().map(numbers).fold(0, u64::saturating_add),
        Value::Object(map) => map.values().map(numbers).fold(0, u64::saturating_add),
        Value::Null | Value::Bool(_) | Value::String(_) => 0,
    }
}

/// The cost of matching texts of this many bytes with patterns of this many positions.
pub(super) fn matching(positions: u64, bytes: u64) -> u64 {
    positions.saturating_mul(bytes) / POSITIONS_PER_EVALUATION
}
