//! Keys of definitions and configs: `[A-Za-z0-9][A-Za-z0-9_.~-]{0,254}`, the whole string, case-sensitive.
//!
//! The alphabet is the unreserved set of RFC 3986, so a key needs no escaping in a URL path.
//!
//! **Invariant:** every `Key` is valid: [`Key::parse`] is the only constructor, also for deserialisation.

use std::{borrow::Borrow, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

use super::limits::KEY_BYTES_MAX;

/// A valid key; a clone copies three words. A key of up to 23 bytes, as most are, is stored inline, so that an index
/// compares keys without following a pointer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmolStr);

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key is 1 to {KEY_BYTES_MAX} characters of A-Z, a-z, 0-9, `_`, `.`, `~`, `-`, the first a letter or a digit"
)]
pub struct KeyError;

impl Key {
    /// Parses a key.
    ///
    /// # Errors
    /// When the text is empty, too long or holds a character outside the alphabet.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let bytes = text.as_bytes();
        let first_ok = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        let all_ok = bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_.~-".contains(b));
        if first_ok && all_ok && bytes.len() <= KEY_BYTES_MAX { Ok(Self(text.into())) } else { Err(KeyError) }
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                Key::parse(text).map_err(E::custom)
            }
        }
        from.deserialize_str(Visitor)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0.into()
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_accepted_and_nothing_else() {
        for good in ["a", "0", "A.b_c~d-e", &"x".repeat(255)] {
            assert_eq!(Key::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".a", "-a", "a b", "a/b", "ä", "a\n", "a%41", &"x".repeat(256)] {
            assert_eq!(Key::parse(bad), Err(KeyError), "{bad:?}");
        }
    }

    #[test]
    fn a_stored_key_is_checked_again() {
        let bytes = postcard::to_stdvec("a/b").unwrap();
        assert!(postcard::from_bytes::<Key>(&bytes).is_err());
    }
}
