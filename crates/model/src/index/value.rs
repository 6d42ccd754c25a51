//! Values as bytes that sort like the values: null < false < true < numbers < strings, then arrays and objects,
//! which are compared for equality only.
//!
//! Numbers are decimals of any length in one exact order, independent of their text: `6`, `6.0` and `60e-1` have the
//! same bytes. A number is encoded as its sign, the exponent of `0.d₁d₂… × 10^e`, and its digits, two in a byte; a
//! negative one as the complement of its magnitude. Numbers are never expanded: `1e400` costs as much as `1`. Exponents
//! beyond 64 bits saturate.
//!
//! **Invariant:** for scalars `encode(a) < encode(b)` exactly when a < b, and equal exactly when a = b.

use serde_json::Value;

use crate::decimal::Decimal;

const NULL: u8 = 0x10;
const FALSE: u8 = 0x20;
const TRUE: u8 = 0x21;
const NUMBER: u8 = 0x30;
/// The first byte of every string, and of no other value.
pub const STRING: u8 = 0x40;
const ARRAY: u8 = 0x50;
const OBJECT: u8 = 0x51;

const NEGATIVE: u8 = 0;
const ZERO: u8 = 1;
const POSITIVE: u8 = 2;

/// The greatest magnitude of an exponent that is encoded in one byte.
const ONE_BYTE_EXPONENT_MAX: i64 = 120;

/// Encodes a value.
#[must_use]
pub fn encode(value: &Value) -> Box<[u8]> {
    let mut bytes = Vec::new();
    write(value, &mut bytes);
    bytes.into()
}

/// The bounds, first inclusive and last exclusive, of the values of the same kind as an encoded one.
#[must_use]
pub fn kind_bounds(encoded: &[u8]) -> (Box<[u8]>, Box<[u8]>) {
    let begin = encoded.first().map_or(0, |tag| tag & 0xF0);
    (Box::new([begin]), Box::new([begin + 0x10]))
}

fn write(value: &Value, to: &mut Vec<u8>) {
    match value {
        Value::Null => to.push(NULL),
        Value::Bool(false) => to.push(FALSE),
        Value::Bool(true) => to.push(TRUE),
        Value::Number(number) => write_number(&Decimal::of(number.as_str()), to),
        Value::String(text) => {
            to.reserve_exact(text.len() + 1);
            to.push(STRING);
            to.extend_from_slice(text.as_bytes());
        }
        Value::Array(elements) => {
            to.push(ARRAY);
            elements.iter().for_each(|element| write_part(element, to));
        }
        Value::Object(members) => {
            to.push(OBJECT);
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            for (name, member) in sorted {
                write_prefixed(name.as_bytes(), to);
                write_part(member, to);
            }
        }
    }
}

/// A part of an array or object, prefixed by its length, so that different values have different bytes.
fn write_part(value: &Value, to: &mut Vec<u8>) {
    let mut part = Vec::new();
    write(value, &mut part);
    write_prefixed(&part, to);
}

fn write_prefixed(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    to.extend_from_slice(bytes);
}

/// Encodes a number.
fn write_number(number: &Decimal, to: &mut Vec<u8>) {
    to.push(NUMBER);
    if number.digits.is_empty() {
        to.push(ZERO);
        return;
    }
    to.push(if number.is_negative { NEGATIVE } else { POSITIVE });
    let begin = to.len();
    write_exponent(number.exponent, to);
    // Each byte of digits is at least 1, so a number is less than a longer one with the same first digits.
    to.extend(number.digits.chunks(2).map(|pair| pair[0] * 10 + pair.get(1).unwrap_or(&0) + 1));
    if number.is_negative {
        to[begin..].iter_mut().for_each(|byte| *byte = !*byte);
        to.push(u8::MAX);
    }
}

fn write_exponent(exponent: i64, to: &mut Vec<u8>) {
    if (-ONE_BYTE_EXPONENT_MAX..=ONE_BYTE_EXPONENT_MAX).contains(&exponent) {
        to.extend(u8::try_from(exponent + 128));
        return;
    }
    to.push(if exponent < 0 { 0x01 } else { 0xFE });
    // Flipping the sign bit makes unsigned order equal signed order.
    to.extend_from_slice(&(exponent.cast_unsigned() ^ (1 << 63)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn number(text: &str) -> Box<[u8]> {
        encode(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn kinds_have_their_order() {
        let ascending = [
            json!(null),
            json!(false),
            json!(true),
            json!(-5),
            json!(0),
            json!(0.5),
            json!(7),
            json!(""),
            json!("A"),
            json!("a"),
            json!("a\u{0}"),
            json!("ä"),
            json!("\u{10FFFF}"),
        ];
        for pair in ascending.windows(2) {
            assert!(encode(&pair[0]) < encode(&pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn numbers_of_any_size_have_one_order() {
        let ascending = [
            "-1e999999999999999999999",
            "-1e400",
            "-123456789012345678901234567890",
            "-123",
            "-12.5",
            "-12",
            "-1e-400",
            "0",
            "1e-999999999",
            "1e-400",
            "0.001",
            "0.01",
            "0.1",
            "1",
            "1.000000000000000000001",
            "9.99",
            "10",
            "12",
            "120",
            "123",
            "123456789012345678901234567890",
            "123456789012345678901234567891",
            "1e120",
            "1e121",
            "1e400",
            "2e400",
            "1e999999999",
        ];
        for pair in ascending.windows(2) {
            assert!(number(pair[0]) < number(pair[1]), "{pair:?}");
        }
        for same in
            [["6", "6.0"], ["6", "60e-1"], ["-0.0", "0"], ["1e2", "100"], ["0.5", "5E-1"], ["0e5", "0"]]
        {
            assert_eq!(number(same[0]), number(same[1]), "{same:?}");
        }
    }

    #[test]
    fn arrays_and_objects_are_equal_by_value() {
        assert_eq!(encode(&json!({"a": 1, "b": [2]})), encode(&json!({"b": [2.0], "a": 1})));
        assert_ne!(encode(&json!(["a", "b"])), encode(&json!(["ab"])));
        assert_ne!(encode(&json!([[], "a"])), encode(&json!([["a"]])));
    }

    proptest! {
        #[test]
        fn integers_sort_exactly(a in any::<i128>(), b in any::<i128>(), cut in 0u32..100) {
            let (a, b) = (a >> cut, b >> cut);
            prop_assert_eq!(number(&a.to_string()).cmp(&number(&b.to_string())), a.cmp(&b));
        }

        #[test]
        fn floats_sort_exactly(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_finite() && b.is_finite());
            let expected = a.partial_cmp(&b).unwrap_or(Ordering::Equal);
            prop_assert_eq!(number(&format!("{a:e}")).cmp(&number(&format!("{b:e}"))), expected);
        }
    }
}
