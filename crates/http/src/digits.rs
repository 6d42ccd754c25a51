//! Numbers in headers: an answer has several, and each is written on the stack and copied once, into the header's value.
//!
//! **Invariant:** the text is what `to_string` gives.

use http::HeaderValue;

/// A number as the value of a header.
pub(super) fn number(number: u64) -> HeaderValue {
    let digits = Digits::of(number);
    HeaderValue::from_str(digits.plain()).expect("digits are visible ASCII")
}

/// The digits of a number in quotes.
#[derive(Debug)]
pub(super) struct Digits {
    text: [u8; 22],
    from: usize,
}

impl Digits {
    pub(super) fn of(number: u64) -> Self {
        let (mut text, mut from, mut rest) = ([b'"'; 22], 21, number);
        loop {
            from -= 1;
            text[from] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        Self { text, from }
    }

    /// Without the quotes.
    fn plain(&self) -> &str {
        std::str::from_utf8(&self.text[self.from..21]).expect("digits are ASCII")
    }

    /// With them, as an entity tag has it.
    pub(super) fn quoted(&self) -> &str {
        std::str::from_utf8(&self.text[self.from - 1..]).expect("digits and quotes are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_anywhere_else() {
        for value in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX / 10, u64::MAX] {
            assert_eq!(number(value), HeaderValue::from(value));
            assert_eq!(Digits::of(value).quoted(), format!("\"{value}\""));
        }
    }
}
