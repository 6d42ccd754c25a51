//! A JSON number as an exact decimal: sign, digits and exponent.
//!
//! Numbers are compared in this form and never expanded: `1e999999999` costs as much as `1`. A double would round:
//! `9007199254740993.0` would be less than `9007199254740993`.
//!
//! **Invariant:** two numbers have the same decimal exactly when they are equal, and decimals sort like the numbers. An
//! exponent beyond 64 bits counts as the nearest one within.

use std::cmp::Ordering;

use num_bigint::BigUint;

/// A number: `±0.d₁d₂… × 10^exponent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) is_negative: bool,
    /// The digits, each from 0 to 9, without leading or trailing zeros; none for zero.
    pub(crate) digits: Vec<u8>,
    /// The exponent; 0 for zero.
    pub(crate) exponent: i64,
}

/// Digits of a chunk: a chunk and its power of ten each fit 64 bits.
const CHUNK_DIGITS: usize = 18;

impl Decimal {
    /// Reads the JSON text of a number.
    pub(crate) fn of(text: &str) -> Self {
        let (is_negative, magnitude) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = magnitude.split_once(['e', 'E']).unwrap_or((magnitude, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|digit| digit - b'0').collect();
        let Some(last) = digits.iter().rposition(|digit| *digit != 0) else {
            return Self { is_negative: false, digits: Vec::new(), exponent: 0 };
        };
        digits.truncate(last + 1);
        let leading = digits.iter().take_while(|digit| **digit == 0).count();
        digits.drain(..leading);
        let shift = signed(whole.len()) - signed(leading);
        Self { is_negative, digits, exponent: parse_exponent(exponent).saturating_add(shift) }
    }

    /// Whether the number is an integer times `of`. Nothing is a multiple of zero but zero.
    pub(crate) fn is_multiple_of(&self, of: &Self) -> bool {
        if self.digits.is_empty() || of.digits.is_empty() {
            return self.digits.is_empty();
        }
        // The quotient is `self.digits / of.digits * 10^shift` with both digits as integers. A negative shift would
        // need digits that ten divides, and they do not end in a zero.
        let Ok(shift) = u128::try_from(self.last_exponent() - of.last_exponent()) else { return false };
        let divisor = integer(&of.digits);
        let rest = self.digits.chunks(CHUNK_DIGITS).fold(BigUint::ZERO, |rest, chunk| {
            let power = 10_u64.pow(u32::try_from(chunk.len()).expect("a chunk is short"));
            (rest * power + integer(chunk)) % &divisor
        });
        let power = BigUint::from(10_u8).modpow(&BigUint::from(shift), &divisor);
        (rest * power % divisor) == BigUint::ZERO
    }

    /// The exponent of the last digit, as an integer.
    fn last_exponent(&self) -> i128 {
        i128::from(self.exponent) - i128::from(signed(self.digits.len()))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.digits.is_empty(), number.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let magnitude = || self.exponent.cmp(&other.exponent).then_with(|| self.digits.cmp(&other.digits));
        let same_sign = || if self.is_negative { magnitude().reverse() } else { magnitude() };
        sign(self).cmp(&sign(other)).then_with(same_sign)
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The integer with these digits.
fn integer(digits: &[u8]) -> BigUint {
    BigUint::from_radix_be(digits, 10).expect("each is a digit")
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn parse_exponent(text: &str) -> i64 {
    let extreme = if text.starts_with('-') { i64::MIN } else { i64::MAX };
    text.parse().unwrap_or(extreme)
}

#[cfg(test)]
mod tests {
    use num_bigint::BigInt;
    use proptest::prelude::*;

    use super::*;

    /// The number times 10^600, expanded: another way to compare than that of [`Decimal`].
    fn expanded(text: &str) -> BigInt {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent = exponent.parse::<i32>().unwrap() + 600 - i32::try_from(fraction.len()).unwrap();
        let integer: BigInt = format!("{whole}{fraction}").parse().unwrap();
        integer * BigInt::from(10).pow(exponent.try_into().unwrap())
    }

    /// Numbers as people and programs write them, many of them close to others: `-12.500e-3`, `4503599627370496.1`.
    pub(super) fn number() -> impl Strategy<Value = String> {
        let magnitude = prop_oneof![
            "0|[1-9][0-9]{0,2}",
            "900719925474099[1-5]|450359962737049[5-7]|1844674407370955161[4-7]",
            "[1-9]0{0,30}",
            "[1-9][0-9]{0,40}",
        ];
        let fraction = prop_oneof![Just(String::new()), "\\.0{1,3}", "\\.[0-9]{1,3}", "\\.0{15,25}[1-9]"];
        let exponent = prop_oneof![3 => Just(String::new()), 1 => "e[+-]?[0-9]{1,2}", 1 => "e-?[34][0-9]{2}"];
        (any::<bool>(), magnitude, fraction, exponent)
            .prop_map(|(minus, a, b, c)| format!("{}{a}{b}{c}", if minus { "-" } else { "" }))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn decimals_compare_as_the_expanded_numbers(a in number(), b in number(), factor in -99_i64..99) {
            let (one, other) = (Decimal::of(&a), Decimal::of(&b));
            let (expanded_one, expanded_other) = (expanded(&a), expanded(&b));
            prop_assert_eq!(one.cmp(&other), expanded_one.cmp(&expanded_other), "{} {}", a, b);
            let zero = BigInt::ZERO;
            let is_multiple =
                if expanded_other == zero { expanded_one == zero } else { &expanded_one % &expanded_other == zero };
            prop_assert_eq!(one.is_multiple_of(&other), is_multiple, "{} {}", a, b);
            // A product of the two is a multiple of each, written as another number.
            let product = (expanded_other * factor).to_string();
            let product = Decimal::of(&format!("{product}e-600"));
            prop_assert!(other.digits.is_empty() || product.is_multiple_of(&other), "{} * {}", b, factor);
        }
    }

    #[test]
    fn exponents_are_never_expanded() {
        let of = Decimal::of;
        assert!(
            of("1e999999999999").is_multiple_of(&of("7e999999999998")) == of("10").is_multiple_of(&of("7"))
        );
        assert!(of("21e999999999999").is_multiple_of(&of("7e-999999999999")));
        assert!(!of("1e-999999999999").is_multiple_of(&of("1")));
        assert!(of("1e99999999999999999999") > of("9e9999999999999999"));
        assert!(of("-1e99999999999999999999") < of("-9e9999999999999999"));
        assert!(of("1e-99999999999999999999") > of("0.0e5"));
    }
}
