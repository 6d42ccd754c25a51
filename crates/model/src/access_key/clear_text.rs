//! The text of a key that its owner holds: `concord_<id>_<secret>_<checksum>`.
//!
//! The secret is 256 random bits in 43 characters, the checksum the CRC-32C of everything before it in 6, both in base
//! 62. The fixed beginning lets scanners of source code and logs find a key that leaked; the checksum exposes a mistyped
//! or invented text before anything is looked up.
//!
//! **Invariant:** the text is the credential, so `Debug` shows only the id.

use std::fmt;

use super::{ID_CHARS, KeyId};

/// What every key begins with.
pub const PREFIX: &str = "concord_";
/// Characters of 256 bits in base 62.
const SECRET_CHARS: usize = 43;
/// Characters of 32 bits in base 62.
const CHECKSUM_CHARS: usize = 6;
/// Characters of a whole key.
pub const CLEAR_TEXT_CHARS: usize = PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS + 1 + CHECKSUM_CHARS;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A key in clear.
#[derive(Clone, PartialEq, Eq)]
pub struct ClearText {
    id: KeyId,
    text: String,
}

impl ClearText {
    /// Makes a new key from random bytes.
    ///
    /// # Panics
    /// Never: digits of base 62 are a valid id.
    #[must_use]
    pub fn from_random(bytes: &[u8; 48]) -> Self {
        let (id, secret) = bytes.split_first_chunk::<16>().expect("48 bytes have a first 16");
        Self::with_id(KeyId::of_bytes(id), secret)
    }

    /// Makes another secret for the same id from 32 random bytes.
    #[must_use]
    pub fn with_id(id: KeyId, secret: &[u8]) -> Self {
        let mut text = format!("{PREFIX}{id}_{}", base62(secret, SECRET_CHARS));
        let checksum = checksum(&text);
        text.push('_');
        text.push_str(&checksum);
        Self { id, text }
    }

    /// The id of a key, when the text is one: the form and the checksum are right. Whether the key exists is not known.
    #[must_use]
    pub fn id_of(text: &[u8]) -> Option<KeyId> {
        if text.len() != CLEAR_TEXT_CHARS {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let rest = text.strip_prefix(PREFIX)?;
        let (id, rest) = rest.split_at_checked(ID_CHARS)?;
        let (secret, given) = rest.strip_prefix('_')?.split_at_checked(SECRET_CHARS)?;
        let given = given.strip_prefix('_')?;
        let body = &text[..CLEAR_TEXT_CHARS - CHECKSUM_CHARS - 1];
        if !is_base62(secret) || checksum(body) != given {
            return None;
        }
        KeyId::parse(id)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// The text itself, for its owner alone.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl KeyId {
    /// The id that these bytes give: of random bytes a new one, of a digest always the same.
    ///
    /// # Panics
    /// Never: digits of base 62 are a valid id.
    #[must_use]
    pub fn of_bytes(bytes: &[u8; 16]) -> Self {
        Self::parse(&base62(bytes, ID_CHARS)).expect("made of its alphabet")
    }
}

impl fmt::Debug for ClearText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_***", self.id)
    }
}

/// Whether a text has digits of base 62 only.
pub(crate) fn is_base62(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn checksum(text: &str) -> String {
    base62(&crc32c::crc32c(text.as_bytes()).to_be_bytes(), CHECKSUM_CHARS)
}

/// The last `chars` digits of a number of big-endian bytes.
fn base62(bytes: &[u8], chars: usize) -> String {
    let mut number = bytes.to_vec();
    let mut digits = vec![b'0'; chars];
    for digit in digits.iter_mut().rev() {
        let mut rest = 0u16;
        for byte in &mut number {
            let dividend = (rest << 8) | u16::from(*byte);
            // A quotient is below 256, because the rest before it was below 62.
            *byte = u8::try_from(dividend / 62).unwrap_or(u8::MAX);
            rest = dividend % 62;
        }
        *digit = DIGITS[usize::from(rest)];
    }
    digits.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> ClearText {
        let mut bytes = [0; 48];
        (0..).zip(&mut bytes).for_each(|(number, byte)| *byte = number);
        ClearText::from_random(&bytes)
    }

    #[test]
    fn numbers_in_base_62() {
        assert_eq!(base62(&[0], 3), "000");
        assert_eq!(base62(&[61], 2), "0z");
        assert_eq!(base62(&[62], 2), "10");
        assert_eq!(base62(&[0xFF, 0xFF, 0xFF, 0xFF], 6), "4gfFC3");
        assert_eq!(base62(&[0xFF; 32], 43), "yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp1");
    }

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = example();
        assert_eq!(key.expose().len(), CLEAR_TEXT_CHARS);
        assert_eq!(ClearText::id_of(key.expose().as_bytes()).as_ref(), Some(key.id()));
        let rotated = ClearText::with_id(key.id().clone(), &[7; 32]);
        assert_eq!((rotated.id() == key.id(), rotated == key), (true, false));
        assert_eq!(ClearText::id_of(rotated.expose().as_bytes()).as_ref(), Some(key.id()));
    }

    #[test]
    fn every_changed_character_is_found_before_a_look_up() {
        let text = example().expose().to_owned();
        for place in 0..text.len() {
            for other in [b'0', b'z', b'_', b'*', 0xFF] {
                let mut bytes = text.clone().into_bytes();
                if bytes[place] != other {
                    bytes[place] = other;
                    assert_eq!(ClearText::id_of(&bytes), None, "{place}");
                }
            }
        }
        for wrong in ["", "concord_", &text[1..], &format!("{text}0"), &text.to_uppercase()] {
            assert_eq!(ClearText::id_of(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_text_is_not_shown() {
        let key = example();
        assert_eq!(format!("{key:?}"), format!("concord_{}_***", key.id()));
    }
}
