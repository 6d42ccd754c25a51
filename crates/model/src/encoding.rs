//! The encoding of what is stored or sent between nodes: postcard, appended to bytes that begin with a tag or a
//! version.
//!
//! postcard's own way to append takes texts byte by byte. Each change is encoded several times on each node, for the
//! log, the digest, the history and sled, and most of a record is one text; so here a text is one copy.
//!
//! **Invariant:** the bytes are those of postcard's own functions. `crates/consensus/tests/format.rs` pins them.

use std::{fmt, sync::Arc};

use postcard::{ser_flavors::Flavor, serialize_with_flavor};
use serde::{Deserializer, Serialize, de};

/// Up to so many bytes, which numbers have, pushing each is cheaper than the call of a copy.
const PUSHED_BYTES_MAX: usize = 4;

/// Where the bytes are appended.
struct Appending(Vec<u8>);

impl Flavor for Appending {
    type Output = Vec<u8>;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() <= PUSHED_BYTES_MAX {
            bytes.iter().for_each(|byte| self.0.push(*byte));
        } else {
            self.0.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// The bytes with the encoding of a value after them. The value is plain data: what it consists of knows its length.
pub fn append<T: Serialize + ?Sized>(to: Vec<u8>, value: &T) -> Vec<u8> {
    serialize_with_flavor(value, Appending(to)).expect("plain data has an encoding, and memory grows")
}

/// A buffer that begins with a byte and has room for so many after it.
pub(crate) fn begun_with(first: u8, bytes: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(1 + bytes);
    buffer.push(first);
    buffer
}

/// Decodes a text that is shared: in one allocation, where the library's own way takes three.
///
/// # Errors
/// When there is no text.
pub(crate) fn shared_text<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = Arc<str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Arc<str>, E> {
            Ok(text.into())
        }
    }
    from.deserialize_str(Visitor)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_postcard() {
        let text = |length: usize| -> Arc<str> { "x".repeat(length).into() };
        let value = (
            (u64::MAX, 0_u32, -1_i64, true, u128::MAX, [7_u8; 16]),
            [0, 1, 4, 5, 127, 128, 100_000].map(text),
            (Some(vec![Some(1_u16), None]), BTreeMap::from([("a", 300_u32)]), ()),
        );
        let expected = [&[9][..], &postcard::to_stdvec(&value).unwrap()].concat();
        assert_eq!(append(begun_with(9, 3), &value), expected);
    }
}
